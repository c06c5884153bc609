/*
 * vec_portable.h - sixteen columns in the compiler's vectors of 16 bytes, which every processor
 * with vectors has: the operations that sum_impl.h and copy_impl.h are written in. The rules are
 * those of vec_avx512.h.
 *
 * Conversions do in vectors what convert.h does for one element, with a choice between results
 * instead of branches.
 */
#include "kernels/host/convert.h"

#define V_INLINE MPIX_INLINE_PASSES
#define V_PAIRS 0

typedef float v4f __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));
typedef int64_t v2l __attribute__((vector_size(16)));
typedef double v2d __attribute__((vector_size(16)));
typedef struct {
    v4f q[4];
} vf;
typedef struct {
    v2d q[8];
} vd;

enum { VF_VECS = 1, VD_VECS = 1 };

#ifdef __clang__
#define V_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define V_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v8h){__VA_ARGS__})
#endif

MPIX_ALWAYS_INLINE vf vf_set1(float x) {
    v4f q = {x, x, x, x};
    return (vf){{q, q, q, q}};
}

MPIX_ALWAYS_INLINE vf vf_add(vf a, vf b) {
    MPIX_EACH(4, 4, a.q[v] += b.q[v]);
    return a;
}

MPIX_ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    MPIX_EACH(4, 4, a.q[v] *= b.q[v]);
    return a;
}

/* Whether any bit is set. */
MPIX_ALWAYS_INLINE int v_any(v4i mask) {
    uint64_t u[2];
    memcpy(u, &mask, sizeof u);
    return (u[0] | u[1]) != 0;
}

MPIX_ALWAYS_INLINE int vf_any_nan(vf a, vf b) {
    v4i nan = {0};
    MPIX_EACH(4, 4, nan |= (v4i)(a.q[v] != a.q[v]) | (v4i)(b.q[v] != b.q[v]));
    return v_any(nan);
}

MPIX_ALWAYS_INLINE vd vd_set1(float x) {
    v2d q = {x, x};
    return (vd){{q, q, q, q, q, q, q, q}};
}

MPIX_ALWAYS_INLINE vd vd_add(vd a, vd b) {
    MPIX_EACH(8, 8, a.q[v] += b.q[v]);
    return a;
}

MPIX_ALWAYS_INLINE vd vd_mul(vd a, vd b) {
    MPIX_EACH(8, 8, a.q[v] *= b.q[v]);
    return a;
}

MPIX_ALWAYS_INLINE int vd_any_nan(vd a, vd b) {
    v4i nan = {0};
    MPIX_EACH(8, 8, nan |= (v4i)(a.q[v] != a.q[v]) | (v4i)(b.q[v] != b.q[v]));
    return v_any(nan);
}

/* mask ? a : b; masks are all ones or zero, as comparisons give them. */
MPIX_ALWAYS_INLINE v4u v_select(v4i mask, v4u a, v4u b) {
    return (a & (v4u)mask) | (b & ~(v4u)mask);
}

/* ---- between float and double: element by element, which is rare ----------------------------- */

MPIX_ALWAYS_INLINE vd vd_from_vf(vf a) {
    vd r;
    MPIX_EACH(8, 8, r.q[v] = (v2d){a.q[v / 2][v % 2 * 2], a.q[v / 2][v % 2 * 2 + 1]});
    return r;
}

#define V_NARROW(d, convert) \
    (v4f) { convert((d)[0][0]), convert((d)[0][1]), convert((d)[1][0]), convert((d)[1][1]) }

MPIX_ALWAYS_INLINE vf vf_from_vd(vd a) {
    vf r;
    MPIX_EACH(4, 4, r.q[v] = V_NARROW(&a.q[2 * v], mpix_f32_from_f64));
    return r;
}

MPIX_ALWAYS_INLINE vf vf_odd_from_vd(vd a) {
    vf r;
    MPIX_EACH(4, 4, r.q[v] = V_NARROW(&a.q[2 * v], mpix_f32_odd_from_f64));
    return r;
}

/* ---- loads of sixteen elements --------------------------------------------------------------- */

MPIX_ALWAYS_INLINE vf vf_load_f32(const char *p) {
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}

MPIX_ALWAYS_INLINE vd vd_load_f64(const char *p) {
    vd a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* Four elements of two bytes, or of one, as words. */
MPIX_ALWAYS_INLINE v4u v_widen16(const char *p) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t u;
    memcpy(&u, p, sizeof u);
    v8h low = (v8h)(v2l){(int64_t)u, 0}, zero = {0};
    return (v4u)V_SHUFFLE(low, zero, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    uint16_t u[4];
    memcpy(u, p, sizeof u);
    return (v4u){u[0], u[1], u[2], u[3]};
#endif
}

MPIX_ALWAYS_INLINE v4u v_widen8(const char *p) {
    const uint8_t *u = (const uint8_t *)p;
    return (v4u){u[0], u[1], u[2], u[3]};
}

/* The product moves the exponent's bias, makes normal floats of denormals, and is exact. */
MPIX_ALWAYS_INLINE v4f v_of_f16(v4u h) {
    v4u a = h & 0x7fff, sign = (h & 0x8000) << 16;
    v4u finite = (v4u)((v4f)(a << 13) * 0x1p112f), other = a << 13 | 0x7f800000;
    return (v4f)(sign | v_select((v4i)a > 0x7bff, other, finite));
}

MPIX_ALWAYS_INLINE v4f v_of_f8e4m3(v4u u) {
    v4u a = u & 0x7f, sign = (u & 0x80) << 24,
        nan = {0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000};
    return (v4f)(sign | v_select((v4i)a == 0x7f, nan, (v4u)((v4f)(a << 20) * 0x1p120f)));
}

#define V_LOAD(name, expression) \
    MPIX_ALWAYS_INLINE vf name(const char *p) { \
        vf r; \
        MPIX_EACH(4, 4, r.q[v] = expression); \
        return r; \
    }
V_LOAD(vf_load_f16, v_of_f16(v_widen16(p + 8 * v)))
V_LOAD(vf_load_bf16, (v4f)(v_widen16(p + 8 * v) << 16))
V_LOAD(vf_load_f8e4m3, v_of_f8e4m3(v_widen8(p + 4 * v)))
V_LOAD(vf_load_f8e5m2, v_of_f16(v_widen8(p + 4 * v) << 8))

/* ---- quantisation: see vec_avx512.h ---------------------------------------------------------- */

MPIX_ALWAYS_INLINE vf vf_larger(vf a, vf b) {
    MPIX_EACH(4, 4, {
        v4i u = (v4i)a.q[v], m = (v4i)b.q[v] & 0x7fffffff;
        m &= m <= 0x7f800000;
        a.q[v] = (v4f)v_select(m > u, (v4u)m, (v4u)u);
    });
    return a;
}

MPIX_ALWAYS_INLINE v4u v_to_fp8(v4f x, int top, int normal, int bias, int drop, float beside) {
    v4i all = (v4i)x & 0x7fffffff, most = {top, top, top, top}, nan = {0x7f, 0x7f, 0x7f, 0x7f};
    v4i a = (v4i)v_select(all < top, (v4u)all, (v4u)most);
    v4f unit = {beside, beside, beside, beside};
    v4i rounded = (a - bias + ((1 << (drop - 1)) - 1) + (a >> drop & 1)) >> drop;
    v4i units = (v4i)((v4f)a + unit) - (v4i)unit;
    v4u r = v_select(a < normal, (v4u)units, (v4u)rounded) | ((v4u)x >> 24 & 0x80);
    return v_select(all > 0x7f800000, (v4u)nan, r);
}

MPIX_ALWAYS_INLINE void v_store_fp8(char *p, vf x, int top, int normal, int bias, int drop,
                                    float beside) {
    MPIX_EACH(4, 4, {
        v4u r = v_to_fp8(x.q[v], top, normal, bias, drop, beside);
        for (int i = 0; i < 4; i++)
            p[4 * v + i] = (char)r[i];
    });
}

/* ---- bytes, for copies: what any x86-64 has; elsewhere ordinary stores ----------------------- */

#if MPIX_ROWS_X86
typedef __m128i vb;
enum { VB_BYTES = 16 };
MPIX_ALWAYS_INLINE vb vb_load(const char *p) { return _mm_loadu_si128((const __m128i *)p); }
MPIX_ALWAYS_INLINE vb vb_zero(void) { return _mm_setzero_si128(); }
MPIX_ALWAYS_INLINE void vb_stream(char *p, vb v) { _mm_stream_si128((__m128i *)p, v); }
MPIX_ALWAYS_INLINE void v_fence(void) { _mm_sfence(); }
#else
typedef struct {
    char b[16];
} vb;
enum { VB_BYTES = 16 };
MPIX_ALWAYS_INLINE vb vb_load(const char *p) {
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}
MPIX_ALWAYS_INLINE vb vb_zero(void) { return (vb){{0}}; }
MPIX_ALWAYS_INLINE void vb_stream(char *p, vb v) { memcpy(p, &v, sizeof v); }
/* There are no streaming stores to order: the release store that follows orders all there is. */
MPIX_ALWAYS_INLINE void v_fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
#endif
MPIX_ALWAYS_INLINE void v_prefetch(const char *p) { __builtin_prefetch(p); }

/* ---- stores of sixteen elements -------------------------------------------------------------- */

/* bytes is a multiple of 16, a constant. */
MPIX_ALWAYS_INLINE void v_store(char *p, const void *from, size_t bytes, int nt) {
    if (nt)
        for (size_t i = 0; i < bytes; i += VB_BYTES)
            vb_stream(p + i, vb_load((const char *)from + i));
    else
        memcpy(p, from, bytes);
}

/* Eight words of which the lower halves count. */
MPIX_ALWAYS_INLINE v8h v_narrow16(v4u a, v4u b) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return V_SHUFFLE((v8h)a, (v8h)b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    return V_SHUFFLE((v8h)a, (v8h)b, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

MPIX_ALWAYS_INLINE v4u v_to_bf16(v4f a) {
    v4u u = (v4u)a;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

MPIX_ALWAYS_INLINE v4u v_to_f16(v4f x) {
    v4u u = (v4u)x, sign = u >> 16 & 0x8000, a = u & 0x7fffffff,
        infinity = {0x7c00, 0x7c00, 0x7c00, 0x7c00};
    v4u normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
    /* Beside 0.5 the unit in the last place is f16's smallest denormal: the addition
     * rounds to it. */
    v4u denormal = (v4u)((v4f)a + 0.5f) - 0x3f000000;
    v4u finite = v_select((v4i)a < 0x38800000, denormal, normal);
    return sign | v_select((v4i)a >= 0x477ff000, infinity, finite);
}

#define V_STORE(name, convert) \
    MPIX_ALWAYS_INLINE void name(char *p, vf a, int nt) { \
        v8h h[2] = {v_narrow16(convert(a.q[0]), convert(a.q[1])), \
                    v_narrow16(convert(a.q[2]), convert(a.q[3]))}; \
        v_store(p, h, sizeof h, nt); \
    }
V_STORE(vf_store_f16, v_to_f16)
V_STORE(vf_store_bf16, v_to_bf16)

MPIX_ALWAYS_INLINE void vf_store_f32(char *p, vf a, int nt) { v_store(p, &a, sizeof a, nt); }
MPIX_ALWAYS_INLINE void vd_store_f64(char *p, vd a, int nt) { v_store(p, &a, sizeof a, nt); }
