/*
 * vec_portable.h - sixteen columns in plain C: the operations that sum_impl.h and copy_impl.h are written in. The rules
 * are those of vec_avx512.h. The loops have constant bounds, so that compilers make of them what the processor has.
 */
#include "kernels/host/convert.h"

/* Left to the compiler: sixteen columns are too much for its registers, and the code would be very long. */
#define V_INLINE static inline

typedef struct {
    float f[16];
} vf;
typedef struct {
    double f[16];
} vd;

enum { VF_VECS = 1, VD_VECS = 1 };
#define V_PAIRS 0

#define V_LOOP for (int i = 0; i < 16; i++)

MPIX_ALWAYS_INLINE vf vf_set1(float x) {
    vf r;
    V_LOOP r.f[i] = x;
    return r;
}

MPIX_ALWAYS_INLINE vf vf_add(vf a, vf b) {
    V_LOOP a.f[i] += b.f[i];
    return a;
}

MPIX_ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    V_LOOP a.f[i] *= b.f[i];
    return a;
}

MPIX_ALWAYS_INLINE int vf_any_nan(vf a, vf b) {
    int nan = 0;
    V_LOOP nan |= mpix_f32_isnan(a.f[i]) | mpix_f32_isnan(b.f[i]);
    return nan;
}

MPIX_ALWAYS_INLINE vd vd_set1(float x) {
    vd r;
    V_LOOP r.f[i] = x;
    return r;
}

MPIX_ALWAYS_INLINE vd vd_add(vd a, vd b) {
    V_LOOP a.f[i] += b.f[i];
    return a;
}

MPIX_ALWAYS_INLINE vd vd_mul(vd a, vd b) {
    V_LOOP a.f[i] *= b.f[i];
    return a;
}

MPIX_ALWAYS_INLINE int vd_any_nan(vd a, vd b) {
    int nan = 0;
    V_LOOP nan |= mpix_f64_isnan(a.f[i]) | mpix_f64_isnan(b.f[i]);
    return nan;
}

/* ---- between float and double ---- */

MPIX_ALWAYS_INLINE vd vd_from_vf(vf a) {
    vd r;
    V_LOOP r.f[i] = a.f[i];
    return r;
}

MPIX_ALWAYS_INLINE vf vf_from_vd(vd a) {
    vf r;
    V_LOOP r.f[i] = (float)a.f[i];
    return r;
}

V_INLINE vf vf_odd_from_vd(vd a) {
    vf r;
    V_LOOP r.f[i] = mpix_f32_odd_from_f64(a.f[i]);
    return r;
}

/* ---- loads of sixteen elements ---- */

MPIX_ALWAYS_INLINE vf vf_load_f32(const char *p) {
    vf r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}

#define V_LOAD(name, type, convert) \
    V_INLINE vf name(const char *p) { \
        type u[16]; \
        vf r; \
        memcpy(u, p, sizeof u); \
        V_LOOP r.f[i] = convert(u[i]); \
        return r; \
    }
V_LOAD(vf_load_f16, uint16_t, mpix_f32_from_f16)
V_LOAD(vf_load_bf16, uint16_t, mpix_f32_from_bf16)
V_LOAD(vf_load_f8e4m3, uint8_t, mpix_f32_from_f8e4m3)
V_LOAD(vf_load_f8e5m2, uint8_t, mpix_f32_from_f8e5m2)

MPIX_ALWAYS_INLINE vd vd_load_f64(const char *p) {
    vd r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}

/* ---- bytes, for copies: what the base instruction set of x86-64 has; elsewhere ordinary stores ---- */

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

/* ---- stores of sixteen elements ---- */

/* bytes is a multiple of 16, a constant. */
MPIX_ALWAYS_INLINE void v_store(char *p, const void *from, size_t bytes, int nt) {
    if (nt)
        for (size_t i = 0; i < bytes; i += VB_BYTES)
            vb_stream(p + i, vb_load((const char *)from + i));
    else
        memcpy(p, from, bytes);
}

MPIX_ALWAYS_INLINE void vf_store_f32(char *p, vf a, int nt) { v_store(p, a.f, sizeof a.f, nt); }

V_INLINE void vf_store_f16(char *p, vf a, int nt) {
    uint16_t u[16];
    V_LOOP u[i] = mpix_f16_from_f32(a.f[i]);
    v_store(p, u, sizeof u, nt);
}

V_INLINE void vf_store_bf16(char *p, vf a, int nt) {
    uint16_t u[16];
    V_LOOP u[i] = mpix_bf16_from_f32(a.f[i]);
    v_store(p, u, sizeof u, nt);
}

MPIX_ALWAYS_INLINE void vd_store_f64(char *p, vd a, int nt) { v_store(p, a.f, sizeof a.f, nt); }
