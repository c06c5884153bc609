/*
 * content.c - what rows hold. Dispatched rows are bytes that follow from (round, rank, token)
 * alone, so a receiver can tell every wrong byte. Combine's input are elements drawn from a table
 * of 256 values of the dtype, whose worth is known in double. Conversions here are written apart
 * from the library's: through ldexp and nearbyint, not through bits.
 */
#include "config.h"

#include "bench/bench.h"

#include <math.h>
#include <string.h>

enum { CONTENT_TOKEN = 1, CONTENT_EXPERT };

uint64_t bench_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t content_row_seed(const bench *b, int round, int kind, long major, long rank,
                                 long token) {
    uint64_t h = bench_mix(b->opt.seed ^ (uint64_t)kind << 56 ^ (uint64_t)round << 40);
    h = bench_mix(h ^ (uint64_t)major);
    h = bench_mix(h ^ (uint64_t)rank << 32);
    return bench_mix(h ^ (uint64_t)token);
}

uint64_t bench_token_seed(const bench *b, int round, int rank, long token) {
    return content_row_seed(b, round, CONTENT_TOKEN, 0, rank, token);
}

uint64_t bench_expert_seed(const bench *b, int round, int place, int rank, long token) {
    return content_row_seed(b, round, CONTENT_EXPERT, place, rank, token);
}

/* Word i of a row; simple enough for compilers to make vectors of it. */
static inline uint32_t content_word(uint32_t seed, uint32_t i) {
    uint32_t h = seed + i * 0x9e3779b1u;
    h = (h ^ (h >> 15)) * 0x85ebca6bu;
    return h ^ (h >> 13);
}

void bench_bytes_fill(void *dst, size_t n, uint64_t seed) {
    uint32_t words[256];
    unsigned char *p = dst;
    for (size_t at = 0; at < n; at += sizeof words) {
        for (uint32_t i = 0; i < 256; i++)
            words[i] = content_word((uint32_t)seed, (uint32_t)(at / 4) + i);
        memcpy(p + at, words, n - at < sizeof words ? n - at : sizeof words);
    }
}

size_t bench_bytes_check(const void *src, size_t n, uint64_t seed) {
    uint32_t words[256];
    const unsigned char *p = src;
    size_t wrong = 0;
    for (size_t at = 0; at < n; at += sizeof words) {
        size_t len = n - at < sizeof words ? n - at : sizeof words;
        for (uint32_t i = 0; i < 256; i++)
            words[i] = content_word((uint32_t)seed, (uint32_t)(at / 4) + i);
        if (memcmp(p + at, words, len))
            for (size_t i = 0; i < len; i++)
                wrong += p[at + i] != ((unsigned char *)words)[i];
    }
    return wrong;
}

size_t bench_dtype_size(int dtype) {
    switch (dtype) {
    case MPIX_EP_F64: return 8;
    case MPIX_EP_F32: return 4;
    case MPIX_EP_F16:
    case MPIX_EP_BF16: return 2;
    default: return 1;
    }
}

int bench_precision(int dtype) {
    switch (dtype) {
    case MPIX_EP_F64: return 53;
    case MPIX_EP_F32: return 24;
    case MPIX_EP_F16: return 11;
    case MPIX_EP_BF16: return 8;
    case MPIX_EP_F8E4M3: return 4;
    default: return 3;
    }
}

/* Width of the exponent and its bias. */
static void content_format(int dtype, int *ebits, int *bias) {
    *ebits = dtype == MPIX_EP_F16 || dtype == MPIX_EP_F8E5M2 ? 5 : dtype == MPIX_EP_BF16 ? 8 : 4;
    *bias = (1 << (*ebits - 1)) - 1;
}

static double content_decode_bits(int dtype, uint32_t bits) {
    int ebits, bias, mbits = bench_precision(dtype) - 1;
    content_format(dtype, &ebits, &bias);
    uint32_t mant = bits & ((1u << mbits) - 1), exp = bits >> mbits & ((1u << ebits) - 1);
    double sign = bits >> (mbits + ebits) & 1 ? -1 : 1;
    int top = (1 << ebits) - 1;
    if (dtype == MPIX_EP_F8E4M3) { /* no infinities, one NaN */
        if (exp == (uint32_t)top && mant == 7)
            return NAN;
    } else if (exp == (uint32_t)top) {
        return mant ? NAN : sign * INFINITY;
    }
    return exp ? sign * ldexp((double)(mant | 1u << mbits), (int)exp - bias - mbits)
               : sign * ldexp(mant, 1 - bias - mbits);
}

double bench_decode(int dtype, const void *element) {
    if (dtype == MPIX_EP_F64) {
        double v;
        memcpy(&v, element, sizeof v);
        return v;
    }
    if (dtype == MPIX_EP_F32) {
        float v;
        memcpy(&v, element, sizeof v);
        return v;
    }
    if (bench_dtype_size(dtype) == 2) {
        uint16_t v;
        memcpy(&v, element, sizeof v);
        return content_decode_bits(dtype, v);
    }
    return content_decode_bits(dtype, *(const unsigned char *)element);
}

double bench_round(int dtype, double value) {
    if (dtype == MPIX_EP_F64 || value == 0 || !isfinite(value))
        return value;
    if (dtype == MPIX_EP_F32)
        return (double)(float)value;
    int ebits, bias, exp, p = bench_precision(dtype);
    content_format(dtype, &ebits, &bias);
    frexp(value, &exp);
    int lowest = 1 - bias - (p - 1), unit = exp - p < lowest ? lowest : exp - p;
    double v = ldexp(nearbyint(ldexp(value, -unit)), unit);
    return fabs(v) >= ldexp(1, bias + 1) ? copysign(INFINITY, v) : v;
}

/* Bits of a finite value that the dtype has exactly. */
static uint64_t content_encode(int dtype, double value) {
    uint64_t bits = 0;
    if (dtype == MPIX_EP_F64) {
        memcpy(&bits, &value, sizeof value);
        return bits;
    }
    if (dtype == MPIX_EP_F32) {
        float v = (float)value;
        uint32_t word;
        memcpy(&word, &v, sizeof v);
        return word;
    }
    int ebits, bias, mbits = bench_precision(dtype) - 1;
    content_format(dtype, &ebits, &bias);
    double a = fabs(value);
    if (a >= ldexp(1, 1 - bias)) {
        int e = ilogb(a);
        bits = (uint64_t)(e + bias) << mbits | ((uint64_t)ldexp(a, mbits - e) - (1u << mbits));
    } else {
        bits = (uint64_t)ldexp(a, bias - 1 + mbits);
    }
    return bits | (uint64_t)(value < 0) << (mbits + ebits);
}

void bench_values_make(const bench *b, int exact, bench_values *v) {
    int dtype = b->opt.dtype;
    memset(v, 0, sizeof *v);
    for (int i = 0; i < 256; i++) {
        uint64_t h = bench_mix(b->opt.seed + (uint64_t)i * 77 + (uint64_t)exact * 1000003);
        double x = exact ? (double)((int)(h % 5) - 2)
                         : ((double)(h >> 11) * 0x1p-53 * 2 - 1) * (i % 16 ? 1 : 0x1p-6);
        v->value[i] = bench_round(dtype, x);
        v->bits[i] = content_encode(dtype, v->value[i]);
        h = bench_mix(h);
        if (b->opt.scale_kind == MPIX_EP_SCALES_UE8M0) {
            int e = exact ? (int)(h % 2) : (int)(h % 5) - 2;
            v->scale[i] = ldexp(1, e);
            v->scale_bits[i] = (uint32_t)(e + 127);
        } else {
            float s = exact ? (float)(1 + h % 2) : 0.5f + 1.5f * (float)(h >> 40) * 0x1p-24f;
            v->scale[i] = s;
            memcpy(&v->scale_bits[i], &s, sizeof s);
        }
    }
}

void bench_values_row(const bench *b, const bench_values *v, uint64_t seed, void *row,
                      void *scales) {
    size_t n = (size_t)b->opt.hidden;
    uint32_t s = (uint32_t)seed;
    switch (b->elem) {
    case 8:
        for (size_t c = 0; c < n; c++)
            ((uint64_t *)row)[c] = v->bits[content_word(s, (uint32_t)c) >> 24];
        break;
    case 4:
        for (size_t c = 0; c < n; c++)
            ((uint32_t *)row)[c] = (uint32_t)v->bits[content_word(s, (uint32_t)c) >> 24];
        break;
    case 2:
        for (size_t c = 0; c < n; c++)
            ((uint16_t *)row)[c] = (uint16_t)v->bits[content_word(s, (uint32_t)c) >> 24];
        break;
    default:
        for (size_t c = 0; c < n; c++)
            ((uint8_t *)row)[c] = (uint8_t)v->bits[content_word(s, (uint32_t)c) >> 24];
    }
    for (size_t g = 0; g * b->scale_elem < b->scale_bytes; g++) {
        uint32_t bits = v->scale_bits[content_word(~s, (uint32_t)g) >> 24];
        if (b->scale_elem == 1)
            ((uint8_t *)scales)[g] = (uint8_t)bits;
        else
            memcpy((unsigned char *)scales + g * 4, &bits, 4);
    }
}

void bench_values_add(const bench *b, const bench_values *v, uint64_t seed, double w, double *sum,
                      double *mag) {
    size_t n = (size_t)b->opt.hidden;
    uint32_t s = (uint32_t)seed;
    for (size_t c0 = 0; c0 < n; c0 += 128) {
        double scaled = w;
        if (b->scale_bytes)
            scaled *= v->scale[content_word(~s, (uint32_t)(c0 / 128)) >> 24];
        for (size_t c = c0; c < n && c < c0 + 128; c++) {
            double x = scaled * v->value[content_word(s, (uint32_t)c) >> 24];
            sum[c] += x;
            mag[c] += fabs(x);
        }
    }
}

void bench_fill_tokens(const bench *b, const bench_plan *plan, int round, void *x, void *scales) {
    for (long t = 0; t < plan->n; t++) {
        uint64_t seed = bench_token_seed(b, round, b->rank, t);
        bench_bytes_fill((unsigned char *)x + (size_t)t * b->row_bytes, b->row_bytes, seed);
        if (b->scale_bytes)
            bench_bytes_fill((unsigned char *)scales + (size_t)t * b->scale_bytes, b->scale_bytes,
                             ~seed);
    }
}

void bench_fill_experts(const bench *b, const bench_plan *plan, int round, const bench_values *v,
                        void *x, size_t stride, void *scales, size_t scale_stride) {
    if (!stride)
        stride = b->row_bytes;
    if (!scale_stride)
        scale_stride = b->scale_bytes;
    for (long i = 0; i < plan->rows; i++) {
        unsigned char *row = (unsigned char *)x + (size_t)i * stride;
        unsigned char *row_scales = b->scale_bytes
                                        ? (unsigned char *)scales + (size_t)i * scale_stride
                                        : NULL;
        if (plan->row_rank[i] < 0) { /* padding is nobody's: all ones are a NaN in every dtype */
            memset(row, 0xff, b->row_bytes);
            if (row_scales)
                memset(row_scales, 0xff, b->scale_bytes);
            continue;
        }
        /* A row is told by its expert, or in COMPACT layout by the rank it is on. */
        int place = b->opt.layout == MPIX_EP_EXPERT ? plan->row_expert[i] : b->rank;
        bench_values_row(b, v,
                         bench_expert_seed(b, round, place, plan->row_rank[i], plan->row_token[i]),
                         row, row_scales);
    }
}
