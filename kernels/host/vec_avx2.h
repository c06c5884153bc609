/*
 * vec_avx2.h - sixteen columns in AVX2 registers (and F16C): the operations that sum_impl.h and
 * copy_impl.h are written in. The rules are those of vec_avx512.h.
 */
#include "kernels/host/convert.h"

/* Everything becomes part of the loop over passes, so that columns stay in registers. */
#define V_INLINE MPIX_INLINE_PASSES

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256d q[4];
} vd;

enum {
    VF_VECS = 2,
    VD_VECS = 1
}; /* sixteen columns each: with a term's values and two sums, twelve of the sixteen registers */

MPIX_ALWAYS_INLINE vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MPIX_ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MPIX_ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MPIX_ALWAYS_INLINE int vf_any_nan(vf a, vf b) {
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q)));
}

MPIX_ALWAYS_INLINE vd vd_set1(float x) {
    __m256d v = _mm256_set1_pd(x);
    return (vd){{v, v, v, v}};
}

MPIX_ALWAYS_INLINE vd vd_add(vd a, vd b) {
    return (vd){{_mm256_add_pd(a.q[0], b.q[0]), _mm256_add_pd(a.q[1], b.q[1]),
                 _mm256_add_pd(a.q[2], b.q[2]), _mm256_add_pd(a.q[3], b.q[3])}};
}

MPIX_ALWAYS_INLINE vd vd_mul(vd a, vd b) {
    return (vd){{_mm256_mul_pd(a.q[0], b.q[0]), _mm256_mul_pd(a.q[1], b.q[1]),
                 _mm256_mul_pd(a.q[2], b.q[2]), _mm256_mul_pd(a.q[3], b.q[3])}};
}

MPIX_ALWAYS_INLINE int vd_any_nan(vd a, vd b) {
    __m256d lo = _mm256_or_pd(_mm256_cmp_pd(a.q[0], b.q[0], _CMP_UNORD_Q),
                              _mm256_cmp_pd(a.q[1], b.q[1], _CMP_UNORD_Q));
    __m256d hi = _mm256_or_pd(_mm256_cmp_pd(a.q[2], b.q[2], _CMP_UNORD_Q),
                              _mm256_cmp_pd(a.q[3], b.q[3], _CMP_UNORD_Q));
    return _mm256_movemask_pd(_mm256_or_pd(lo, hi));
}

/* ---- between float and double ---------------------------------------------------------------- */

MPIX_ALWAYS_INLINE vd vd_from_vf(vf a) {
    return (vd){{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)),
                 _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
                 _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)),
                 _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}

MPIX_ALWAYS_INLINE vf vf_from_vd(vd a) {
    return (vf){_mm256_set_m128(_mm256_cvtpd_ps(a.q[1]), _mm256_cvtpd_ps(a.q[0])),
                _mm256_set_m128(_mm256_cvtpd_ps(a.q[3]), _mm256_cvtpd_ps(a.q[2]))};
}

/* A mask of four doubles as a mask of four floats. */
MPIX_ALWAYS_INLINE __m128i v_mask_narrow(__m256d m) {
    __m128 lo = _mm_castpd_ps(_mm256_castpd256_pd128(m)),
           hi = _mm_castpd_ps(_mm256_extractf128_pd(m, 1));
    return _mm_castps_si128(_mm_shuffle_ps(lo, hi, 0x88));
}

/* Rounding to odd, as mpix_f32_odd_from_f64 does it: masks are -1, so adding one
 * takes a step back. */
MPIX_ALWAYS_INLINE __m128 vf_odd_quarter(__m256d a) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    __m128 r = _mm256_cvtpd_ps(a);
    __m256d back = _mm256_cvtps_pd(r);
    __m128i inexact = v_mask_narrow(_mm256_cmp_pd(back, a, _CMP_NEQ_OQ));
    __m128i beyond = v_mask_narrow(
        _mm256_cmp_pd(_mm256_andnot_pd(sign, back), _mm256_andnot_pd(sign, a), _CMP_GT_OQ));
    __m128i u = _mm_add_epi32(_mm_castps_si128(r), beyond);
    return _mm_castsi128_ps(_mm_or_si128(u, _mm_srli_epi32(inexact, 31)));
}

MPIX_ALWAYS_INLINE vf vf_odd_from_vd(vd a) {
    return (vf){_mm256_set_m128(vf_odd_quarter(a.q[1]), vf_odd_quarter(a.q[0])),
                _mm256_set_m128(vf_odd_quarter(a.q[3]), vf_odd_quarter(a.q[2]))};
}

/* ---- loads of sixteen elements --------------------------------------------------------------- */

MPIX_ALWAYS_INLINE __m128i v_load128(const char *p) { return _mm_loadu_si128((const __m128i *)p); }

MPIX_ALWAYS_INLINE vf vf_load_f32(const char *p) {
    return (vf){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)(p + 32))};
}

MPIX_ALWAYS_INLINE vf vf_load_f16(const char *p) {
    return (vf){_mm256_cvtph_ps(v_load128(p)), _mm256_cvtph_ps(v_load128(p + 16))};
}

MPIX_ALWAYS_INLINE vf vf_load_bf16(const char *p) {
    return (
        vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_load128(p)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_load128(p + 16)), 16))};
}

/* As in vec_avx512.h: even columns for an even v, odd ones for the next. */
#define V_PAIRS 1
MPIX_ALWAYS_INLINE __m256 v_half_bf16(__m256i u, int odd) {
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000))
                                   : _mm256_slli_epi32(u, 16));
}

MPIX_ALWAYS_INLINE vf vf_load_bf16_pairs(const char *p, int v) {
    const __m256i *u = (const __m256i *)(p + v / 2 * 64);
    return (vf){v_half_bf16(_mm256_loadu_si256(u), v % 2),
                v_half_bf16(_mm256_loadu_si256(u + 1), v % 2)};
}

MPIX_ALWAYS_INLINE vf vf_of_f16(__m256i h) {
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

MPIX_ALWAYS_INLINE vf vf_load_f8e5m2(const char *p) {
    return vf_of_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(v_load128(p)), 8));
}

MPIX_ALWAYS_INLINE vf vf_load_f8e4m3(const char *p) {
    const __m256i low = _mm256_set1_epi16(0x7f);
    __m256i u = _mm256_cvtepu8_epi16(v_load128(p)), a = _mm256_and_si256(u, low);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(low, u), 8);
    __m256i h = _mm256_blendv_epi8(_mm256_slli_epi16(a, 7), _mm256_set1_epi16(0x7e00),
                                   _mm256_cmpeq_epi16(a, low));
    return vf_mul(vf_of_f16(_mm256_or_si256(h, sign)), vf_set1(256.0f));
}

MPIX_ALWAYS_INLINE vd vd_load_f64(const char *p) {
    const double *d = (const double *)p;
    return (vd){{_mm256_loadu_pd(d), _mm256_loadu_pd(d + 4), _mm256_loadu_pd(d + 8),
                 _mm256_loadu_pd(d + 12)}};
}

/* ---- stores of sixteen elements -------------------------------------------------------------- */

MPIX_ALWAYS_INLINE void v_store256(char *p, __m256i u, int nt) {
    if (nt)
        _mm256_stream_si256((__m256i *)p, u);
    else
        _mm256_storeu_si256((__m256i *)p, u);
}

MPIX_ALWAYS_INLINE void vf_store_f32(char *p, vf a, int nt) {
    v_store256(p, _mm256_castps_si256(a.lo), nt);
    v_store256(p + 32, _mm256_castps_si256(a.hi), nt);
}

MPIX_ALWAYS_INLINE void vf_store_f16(char *p, vf a, int nt) {
    v_store256(p,
               _mm256_set_m128i(_mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT),
                                _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT)),
               nt);
}

/* The bits of floats rounded to bf16, in the upper halves. */
MPIX_ALWAYS_INLINE __m256i v_round_bf16(__m256 a) {
    __m256i u = _mm256_castps_si256(a),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

MPIX_ALWAYS_INLINE void vf_store_bf16(char *p, vf a, int nt) {
    __m256i lo = _mm256_srli_epi32(v_round_bf16(a.lo), 16),
            hi = _mm256_srli_epi32(v_round_bf16(a.hi), 16);
    /* The pack works within 128 bits: put the quarters back in order. */
    v_store256(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8), nt);
}

MPIX_ALWAYS_INLINE __m256i v_merge_bf16(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(v_round_bf16(even), 16), v_round_bf16(odd), 0xaa);
}

MPIX_ALWAYS_INLINE void vf_store_bf16_pairs(char *p, vf even, vf odd, int nt) {
    v_store256(p, v_merge_bf16(even.lo, odd.lo), nt);
    v_store256(p + 32, v_merge_bf16(even.hi, odd.hi), nt);
}

MPIX_ALWAYS_INLINE void vd_store_f64(char *p, vd a, int nt) {
    MPIX_EACH(4, 4, v_store256(p + 32 * v, _mm256_castpd_si256(a.q[v]), nt));
}

/* ---- quantisation: see vec_avx512.h ---------------------------------------------------------- */

MPIX_ALWAYS_INLINE __m256 v_larger(__m256 a, __m256 b) {
    __m256i m = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(m, _mm256_set1_epi32(0x7f800000));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_castps_si256(a), _mm256_andnot_si256(nan, m)));
}
MPIX_ALWAYS_INLINE vf vf_larger(vf a, vf b) {
    return (vf){v_larger(a.lo, b.lo), v_larger(a.hi, b.hi)};
}

MPIX_ALWAYS_INLINE __m256i v_to_fp8(__m256 x, int top, int normal, int bias, int drop,
                                    float beside) {
    const __m256i one = _mm256_set1_epi32(1),
                  half = _mm256_set1_epi32((1 << (drop - 1)) - 1 - bias);
    __m256i u = _mm256_castps_si256(x), m = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i a = _mm256_min_epi32(m, _mm256_set1_epi32(top)), sum, r, small;
    sum = _mm256_add_epi32(_mm256_add_epi32(a, half),
                           _mm256_and_si256(_mm256_srli_epi32(a, drop), one));
    r = _mm256_srli_epi32(sum, drop);
    sum = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(beside)));
    small = _mm256_cmpgt_epi32(_mm256_set1_epi32(normal), a);
    r = _mm256_blendv_epi8(r, _mm256_sub_epi32(sum, _mm256_castps_si256(_mm256_set1_ps(beside))),
                           small);
    r = _mm256_or_si256(r, _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80)));
    return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7f),
                              _mm256_cmpgt_epi32(m, _mm256_set1_epi32(0x7f800000)));
}

MPIX_ALWAYS_INLINE void v_store_fp8(char *p, vf x, int top, int normal, int bias, int drop,
                                    float beside) {
    __m256i lo = v_to_fp8(x.lo, top, normal, bias, drop, beside),
            hi = v_to_fp8(x.hi, top, normal, bias, drop, beside);
    /* Packing goes by halves of registers, which the permutation puts in order. */
    __m256i h = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
    _mm_storeu_si128((__m128i *)p,
                     _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

/* ---- bytes, for copies ----------------------------------------------------------------------- */

typedef __m256i vb;
enum { VB_BYTES = 32 };
MPIX_ALWAYS_INLINE vb vb_load(const char *p) { return _mm256_loadu_si256((const __m256i *)p); }
MPIX_ALWAYS_INLINE vb vb_zero(void) { return _mm256_setzero_si256(); }
MPIX_ALWAYS_INLINE void vb_stream(char *p, vb v) { _mm256_stream_si256((__m256i *)p, v); }
MPIX_ALWAYS_INLINE void v_fence(void) { _mm_sfence(); }
MPIX_ALWAYS_INLINE void v_prefetch(const char *p) { _mm_prefetch(p, _MM_HINT_T0); }
