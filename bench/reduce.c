/*
 * reduce.c - the baseline's sum of rows: what a user who cares would write. Columns in blocks that
 * stay in the first-level cache, loops of constant length that compilers make vectors of, built for
 * the wider instruction sets as well where the compiler can.
 */
#include "config.h"

#include "bench/bench.h"

#include <string.h>

#if defined(__x86_64__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define REDUCE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#include <immintrin.h>
#define REDUCE_AVX2 1
#endif
#ifndef REDUCE_CLONES
#define REDUCE_CLONES
#endif

enum { REDUCE_BLOCK = 256, REDUCE_STEP = 32, REDUCE_GROUP = 128 /* channels per scale */ };

static inline float reduce_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t reduce_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float reduce_from_f16(uint16_t h) {
    uint32_t u = reduce_bits(reduce_float((uint32_t)(h & 0x7fff) << 13) * 0x1p112f);
    u |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return reduce_float(u | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t reduce_to_f16(float f) {
    uint32_t u = reduce_bits(f), a = u & 0x7fffffffu;
    uint32_t normal = (a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = reduce_bits(reduce_float(a) + 0.5f) - 0x3f000000u;
    uint32_t big = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
    /* Chosen by masks: a branch around the sum above would keep the loop from becoming vectors. */
    uint32_t h = normal ^ ((normal ^ small) & -(uint32_t)(a < 0x38800000u));
    h ^= (h ^ big) & -(uint32_t)(a >= 0x47800000u);
    return (uint16_t)(h | (u >> 16 & 0x8000u));
}

static inline uint16_t reduce_to_bf16(float f) {
    uint32_t u = reduce_bits(f), r = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : r);
}

/* One macro makes, per dtype, the function that adds w times n elements: steps of constant length,
 * then the rest. */
#define REDUCE_ADD(name, acctype, type, convert) \
    REDUCE_CLONES static void name(acctype *restrict acc, const void *restrict row, size_t n, \
                                   acctype w) { \
        const type *restrict x = row; \
        size_t i = 0; \
        for (; i + REDUCE_STEP <= n; i += REDUCE_STEP) \
            for (size_t j = 0; j < REDUCE_STEP; j++) \
                acc[i + j] += w * convert(x[i + j]); \
        for (; i < n; i++) \
            acc[i] += w * convert(x[i]); \
    }
#define REDUCE_SAME(v) (v)
#define REDUCE_FROM_BF16(v) reduce_float((uint32_t)(v) << 16)
REDUCE_ADD(reduce_add_f64, double, double, REDUCE_SAME)
REDUCE_ADD(reduce_add_f32, float, float, REDUCE_SAME)
REDUCE_ADD(reduce_add_f16, float, uint16_t, reduce_from_f16)
REDUCE_ADD(reduce_add_bf16, float, uint16_t, REDUCE_FROM_BF16)

#define REDUCE_STORE(name, type, convert) \
    REDUCE_CLONES static void name(const float *restrict acc, void *restrict row, size_t n) { \
        type *restrict y = row; \
        size_t i = 0; \
        for (; i + REDUCE_STEP <= n; i += REDUCE_STEP) \
            for (size_t j = 0; j < REDUCE_STEP; j++) \
                y[i + j] = convert(acc[i + j]); \
        for (; i < n; i++) \
            y[i] = convert(acc[i]); \
    }
REDUCE_STORE(reduce_store_f16, uint16_t, reduce_to_f16)
REDUCE_STORE(reduce_store_bf16, uint16_t, reduce_to_bf16)

/* fp8 through a table of both formats; each group of channels has its own scale. */
static void reduce_add_f8(float *acc, const void *row, const void *scales, int scale_kind,
                          size_t col, size_t n, int dtype, float w) {
    static float table[2][256];
    static int made;
    if (!made) {
        for (int i = 0; i < 256; i++) {
            unsigned char c = (unsigned char)i;
            table[0][i] = (float)bench_decode(MPIX_EP_F8E4M3, &c);
            table[1][i] = (float)bench_decode(MPIX_EP_F8E5M2, &c);
        }
        made = 1;
    }
    const float *value = table[dtype == MPIX_EP_F8E5M2];
    const unsigned char *x = row;
    for (size_t i0 = 0; i0 < n; i0 += REDUCE_GROUP) {
        size_t group = (col + i0) / REDUCE_GROUP,
               end = n - i0 < REDUCE_GROUP ? n : i0 + REDUCE_GROUP;
        float s = w;
        if (scale_kind == MPIX_EP_SCALES_F32) {
            float scale;
            memcpy(&scale, (const unsigned char *)scales + 4 * group, sizeof scale);
            s *= scale;
        } else if (scale_kind == MPIX_EP_SCALES_UE8M0) {
            unsigned e = ((const unsigned char *)scales)[group];
            s *= e ? reduce_float(e << 23) : 0x1p-127f;
        }
        for (size_t i = i0; i < end; i++)
            acc[i] += s * value[x[i]];
    }
}

#ifdef REDUCE_AVX2
/*
 * The two dtypes that layers really use, by hand: sums stay in registers until all rows are in.
 * Returns the columns done, a multiple of 16; the rest is the general code's.
 */
#define REDUCE_ROW_AVX2(name, FROM, TO) \
    __attribute__((target("avx2,f16c"))) static size_t name(size_t hidden, int n, \
                                                            const void *const rows[], \
                                                            const float *w, uint16_t *y) { \
        size_t c = 0; \
        for (; c + 16 <= hidden; c += 16) { \
            __m256 a = _mm256_setzero_ps(), b = a; \
            for (int i = 0; i < n; i++) { \
                const uint16_t *x = (const uint16_t *)rows[i] + c; \
                __m256 p = FROM(x), q = FROM(x + 8); \
                if (w) { \
                    p = _mm256_mul_ps(p, _mm256_set1_ps(w[i])); \
                    q = _mm256_mul_ps(q, _mm256_set1_ps(w[i])); \
                } \
                a = _mm256_add_ps(a, p); \
                b = _mm256_add_ps(b, q); \
            } \
            TO(y + c, a, b); \
        } \
        return c; \
    }
#define REDUCE_LOAD8(x) _mm_loadu_si128((const __m128i *)(const void *)(x))
#define REDUCE_AVX2_FROM_F16(x) _mm256_cvtph_ps(REDUCE_LOAD8(x))
#define REDUCE_AVX2_FROM_BF16(x) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(REDUCE_LOAD8(x)), 16))
#define REDUCE_AVX2_TO_F16(y, a, b) \
    do { \
        _mm_storeu_si128((__m128i *)(void *)(y), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); \
        _mm_storeu_si128((__m128i *)(void *)((y) + 8), \
                         _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT)); \
    } while (0)

__attribute__((target("avx2"))) static inline __m256i reduce_round_bf16(__m256 v) {
    __m256i u = _mm256_castps_si256(v), high = _mm256_srli_epi32(u, 16);
    __m256i even = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)),
                                    _mm256_set1_epi32(0x7fff));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, even), 16),
            quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
#define REDUCE_AVX2_TO_BF16(y, a, b) \
    _mm256_storeu_si256((__m256i *)(void *)(y), \
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(reduce_round_bf16(a), \
                                                                     reduce_round_bf16(b)), \
                                                 0xd8))
REDUCE_ROW_AVX2(reduce_row_f16_avx2, REDUCE_AVX2_FROM_F16, REDUCE_AVX2_TO_F16)
REDUCE_ROW_AVX2(reduce_row_bf16_avx2, REDUCE_AVX2_FROM_BF16, REDUCE_AVX2_TO_BF16)

static size_t reduce_row_fast(int xdtype, int ydtype, size_t hidden, int n,
                              const void *const rows[], const float *w, void *y) {
    /* every CPU with AVX2 converts f16 too */
    if (xdtype != ydtype || !__builtin_cpu_supports("avx2"))
        return 0;
    return xdtype == MPIX_EP_BF16  ? reduce_row_bf16_avx2(hidden, n, rows, w, y)
           : xdtype == MPIX_EP_F16 ? reduce_row_f16_avx2(hidden, n, rows, w, y)
                                   : 0;
}
#else
static size_t reduce_row_fast(int xdtype, int ydtype, size_t hidden, int n,
                              const void *const rows[], const float *w, void *y) {
    (void)xdtype, (void)ydtype, (void)hidden, (void)n, (void)rows, (void)w, (void)y;
    return 0;
}
#endif

static void reduce_row_f64(size_t hidden, int nterms, const void *const rows[], const float *w,
                           double *y) {
    for (size_t c = 0; c < hidden; c += REDUCE_BLOCK) {
        size_t n = hidden - c < REDUCE_BLOCK ? hidden - c : REDUCE_BLOCK;
        double acc[REDUCE_BLOCK] = {0};
        for (int i = 0; i < nterms; i++)
            reduce_add_f64(acc, (const double *)rows[i] + c, n, w ? w[i] : 1.0);
        memcpy(y + c, acc, n * sizeof *acc);
    }
}

void bench_reduce_row(int xdtype, int scale_kind, int ydtype, size_t hidden, int nterms,
                      const void *const rows[], const void *const scales[], const float *w,
                      void *y) {
    size_t elem = bench_dtype_size(xdtype), y_elem = bench_dtype_size(ydtype);
    if (xdtype == MPIX_EP_F64) {
        reduce_row_f64(hidden, nterms, rows, w, y);
        return;
    }
    for (size_t c = reduce_row_fast(xdtype, ydtype, hidden, nterms, rows, w, y); c < hidden;
         c += REDUCE_BLOCK) {
        size_t n = hidden - c < REDUCE_BLOCK ? hidden - c : REDUCE_BLOCK;
        float acc[REDUCE_BLOCK] = {0};
        for (int i = 0; i < nterms; i++) {
            const unsigned char *x = (const unsigned char *)rows[i] + c * elem;
            float wi = w ? w[i] : 1.0f;
            switch (xdtype) {
            case MPIX_EP_F32: reduce_add_f32(acc, x, n, wi); break;
            case MPIX_EP_F16: reduce_add_f16(acc, x, n, wi); break;
            case MPIX_EP_BF16: reduce_add_bf16(acc, x, n, wi); break;
            default: reduce_add_f8(acc, x, scales ? scales[i] : NULL, scale_kind, c, n, xdtype, wi);
            }
        }
        unsigned char *out = (unsigned char *)y + c * y_elem;
        if (ydtype == MPIX_EP_F32)
            memcpy(out, acc, n * sizeof *acc);
        else if (ydtype == MPIX_EP_F16)
            reduce_store_f16(acc, out, n);
        else
            reduce_store_bf16(acc, out, n);
    }
}
