/*
 * vec_avx512.h - sixteen columns in AVX-512 registers (F, BW, VL, DQ): the operations that
 * sum_impl.h and copy_impl.h are written in.
 *
 * vf holds floats, vd doubles. Loads take any alignment. Stores with nt set are non-temporal and
 * take addresses aligned to the bytes they write, at most 64. NaNs need not be right here, only
 * stay NaNs: see scalar.h.
 */
#include "kernels/host/convert.h"

/* Everything becomes part of the loop over passes, so that columns stay in registers. */
#define V_INLINE MPIX_INLINE_PASSES

typedef __m512 vf;
typedef struct {
    __m512d lo, hi;
} vd;

enum { VF_VECS = 8, VD_VECS = 4 }; /* registers of columns per pass */

MPIX_ALWAYS_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
MPIX_ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
MPIX_ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
MPIX_ALWAYS_INLINE int vf_any_nan(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }

MPIX_ALWAYS_INLINE vd vd_set1(float x) { return (vd){_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
MPIX_ALWAYS_INLINE vd vd_add(vd a, vd b) {
    return (vd){_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)};
}
MPIX_ALWAYS_INLINE vd vd_mul(vd a, vd b) {
    return (vd){_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)};
}
MPIX_ALWAYS_INLINE int vd_any_nan(vd a, vd b) {
    return _mm512_cmp_pd_mask(a.lo, b.lo, _CMP_UNORD_Q) |
           _mm512_cmp_pd_mask(a.hi, b.hi, _CMP_UNORD_Q);
}

/* ---- between float and double ---------------------------------------------------------------- */

MPIX_ALWAYS_INLINE vd vd_from_vf(vf a) {
    return (vd){_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1))};
}

MPIX_ALWAYS_INLINE vf vf_join(__m256 lo, __m256 hi) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
}

MPIX_ALWAYS_INLINE vf vf_from_vd(vd a) {
    return vf_join(_mm512_cvtpd_ps(a.lo), _mm512_cvtpd_ps(a.hi));
}

/* Rounding to odd (convert.h): toward zero, then the last bit set where that was inexact. */
MPIX_ALWAYS_INLINE __m256 vf_odd_half(__m512d a) {
    __m256 r = _mm512_cvt_roundpd_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(r), a, _CMP_NEQ_OQ);
    __m256i u = _mm256_castps_si256(r);
    return _mm256_castsi256_ps(_mm256_mask_or_epi32(u, inexact, u, _mm256_set1_epi32(1)));
}

MPIX_ALWAYS_INLINE vf vf_odd_from_vd(vd a) { return vf_join(vf_odd_half(a.lo), vf_odd_half(a.hi)); }

/* ---- loads of sixteen elements --------------------------------------------------------------- */

MPIX_ALWAYS_INLINE vf vf_load_f32(const char *p) { return _mm512_loadu_ps(p); }
MPIX_ALWAYS_INLINE vf vf_load_f16(const char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

MPIX_ALWAYS_INLINE vf vf_load_bf16(const char *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

/*
 * Columns v * 16 on of bf16 in pairs: those at even places for an even v, those at odd ones for the
 * next. Where nothing but bf16 goes in and out the order within a pair does not matter, and a shift
 * or a mask widens faster than a conversion.
 */
#define V_PAIRS 1
MPIX_ALWAYS_INLINE vf vf_load_bf16_pairs(const char *p, int v) {
    __m512i u = _mm512_loadu_si512(p + v / 2 * 64);
    return _mm512_castsi512_ps(v % 2 ? _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000))
                                     : _mm512_slli_epi32(u, 16));
}

MPIX_ALWAYS_INLINE vf vf_load_f8e5m2(const char *p) {
    return _mm512_cvtph_ps(
        _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
}

MPIX_ALWAYS_INLINE vf vf_load_f8e4m3(const char *p) {
    const __m256i low = _mm256_set1_epi16(0x7f);
    __m256i u = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)),
            a = _mm256_and_si256(u, low);
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(low, u), 8);
    __m256i h = _mm256_mask_blend_epi16(_mm256_cmpeq_epi16_mask(a, low), _mm256_slli_epi16(a, 7),
                                        _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(h, sign)), _mm512_set1_ps(256.0f));
}

MPIX_ALWAYS_INLINE vd vd_load_f64(const char *p) {
    return (vd){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 64)};
}

/* ---- stores of sixteen elements -------------------------------------------------------------- */

MPIX_ALWAYS_INLINE void v_store256(char *p, __m256i u, int nt) {
    /* Keeps the compiler from merging a conversion with the store: vpmovdw to memory is slow, and
     * not a streaming store. */
    __asm__("" : "+v"(u));
    if (nt)
        _mm256_stream_si256((__m256i *)p, u);
    else
        _mm256_storeu_si256((__m256i *)p, u);
}

MPIX_ALWAYS_INLINE void vf_store_f32(char *p, vf a, int nt) {
    if (nt)
        _mm512_stream_ps((float *)p, a);
    else
        _mm512_storeu_ps(p, a);
}

MPIX_ALWAYS_INLINE void vf_store_f16(char *p, vf a, int nt) {
    v_store256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), nt);
}

/* The bits of floats rounded to bf16, in the upper halves. */
MPIX_ALWAYS_INLINE __m512i v_round_bf16(vf a) {
    __m512i u = _mm512_castps_si512(a),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
}

MPIX_ALWAYS_INLINE void vf_store_bf16(char *p, vf a, int nt) {
    v_store256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_round_bf16(a), 16)), nt);
}

MPIX_ALWAYS_INLINE void vf_store_bf16_pairs(char *p, vf even, vf odd, int nt) {
    __m512i lower = _mm512_srli_epi32(v_round_bf16(even), 16);
    __m512i u = _mm512_mask_blend_epi16(0xaaaaaaaa, lower, v_round_bf16(odd));
    if (nt)
        _mm512_stream_si512((__m512i *)p, u);
    else
        _mm512_storeu_si512(p, u);
}

MPIX_ALWAYS_INLINE void vd_store_f64(char *p, vd a, int nt) {
    if (nt) {
        _mm512_stream_pd((double *)p, a.lo);
        _mm512_stream_pd((double *)(p + 64), a.hi);
    } else {
        _mm512_storeu_pd(p, a.lo);
        _mm512_storeu_pd(p + 64, a.hi);
    }
}

/* ---- quantisation ---------------------------------------------------------------------------- */

/* The larger of a, which is positive, and b's magnitude; a NaN counts as nothing. Patterns are
 * ordered as numbers. */
MPIX_ALWAYS_INLINE vf vf_larger(vf a, vf b) {
    __m512i u = _mm512_castps_si512(a),
            m = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(0x7fffffff));
    __mmask16 number = _mm512_cmple_epi32_mask(m, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(_mm512_mask_max_epi32(u, number, u, m));
}

/*
 * Rounded to fp8 and cut to its largest number, top; a NaN becomes 0x7f. Normal numbers round by a
 * carry into the exponent. Denormal ones count units, the unit in the last place of floats beside
 * `beside`: an addition rounds to it.
 */
MPIX_ALWAYS_INLINE void v_store_fp8(char *p, vf x, int top, int normal, int bias, int drop,
                                    float beside) {
    const __m512i one = _mm512_set1_epi32(1),
                  half = _mm512_set1_epi32((1 << (drop - 1)) - 1 - bias);
    __m512i u = _mm512_castps_si512(x), m = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __m512i a = _mm512_min_epi32(m, _mm512_set1_epi32(top)), sum, r;
    sum = _mm512_add_epi32(_mm512_add_epi32(a, half),
                           _mm512_and_si512(_mm512_srli_epi32(a, (unsigned)drop), one));
    r = _mm512_srli_epi32(sum, (unsigned)drop);
    sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_set1_ps(beside)));
    r = _mm512_mask_sub_epi32(r, _mm512_cmplt_epi32_mask(a, _mm512_set1_epi32(normal)), sum,
                              _mm512_castps_si512(_mm512_set1_ps(beside)));
    r = _mm512_or_si512(r, _mm512_and_si512(_mm512_srli_epi32(u, 24), _mm512_set1_epi32(0x80)));
    r = _mm512_mask_mov_epi32(r, _mm512_cmpgt_epi32_mask(m, _mm512_set1_epi32(0x7f800000)),
                              _mm512_set1_epi32(0x7f));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(r));
}

/* ---- bytes, for copies ----------------------------------------------------------------------- */

typedef __m512i vb;
enum { VB_BYTES = 64 };
MPIX_ALWAYS_INLINE vb vb_load(const char *p) { return _mm512_loadu_si512(p); }
MPIX_ALWAYS_INLINE vb vb_zero(void) { return _mm512_setzero_si512(); }
MPIX_ALWAYS_INLINE void vb_stream(char *p, vb v) { _mm512_stream_si512((__m512i *)p, v); }
MPIX_ALWAYS_INLINE void v_fence(void) { _mm_sfence(); }
MPIX_ALWAYS_INLINE void v_prefetch(const char *p) { _mm_prefetch(p, _MM_HINT_T0); }
