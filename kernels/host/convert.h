/*
 * convert.h - conversions of one element, exact to IEEE rounding, by integer arithmetic.
 *
 * They define what every variant computes. A NaN stays a quiet NaN: the sign and the leading bits
 * of the payload are kept, the quiet bit is set.
 */
#ifndef MPIX_KERNELS_HOST_CONVERT_H
#define MPIX_KERNELS_HOST_CONVERT_H
#include <stdint.h>
#include <string.h>

static inline uint32_t mpix_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float mpix_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint64_t mpix_f64_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double mpix_f64_of_bits(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* NaN tests on the bits: they hold whatever the compiler was told about NaNs. */
static inline int mpix_f32_isnan(float x) { return (mpix_f32_bits(x) & 0x7fffffffu) > 0x7f800000u; }
static inline int mpix_f64_isnan(double x) {
    return (mpix_f64_bits(x) & 0x7fffffffffffffffull) > 0x7ff0000000000000ull;
}
static inline float mpix_f32_quiet(float x) {
    return mpix_f32_of_bits(mpix_f32_bits(x) | 0x00400000u);
}
static inline double mpix_f64_quiet(double x) {
    return mpix_f64_of_bits(mpix_f64_bits(x) | 0x0008000000000000ull);
}

/* ---- widening: exact ------------------------------------------------------------------------- */

static inline float mpix_f32_from_bf16(uint16_t h) { return mpix_f32_of_bits((uint32_t)h << 16); }

static inline float mpix_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) /* infinity, or NaN with its payload */
        return mpix_f32_of_bits(sign | 0x7f800000u | (a & 0x3ffu) << 13 |
                                (a > 0x7c00u ? 0x00400000u : 0));
    if (a >= 0x0400u)
        return mpix_f32_of_bits(sign | (a + 0x1c000u) << 13);
    /* A denormal counts units of 2^-24; both factors and the product are normal floats. */
    return mpix_f32_of_bits(sign | mpix_f32_bits((float)a * 0x1p-24f));
}

/* The formats of fp8 are cut-down f16: e5m2 is its upper byte, e4m3's exponent has a bias that
 * is 8 smaller. */
static inline float mpix_f32_from_f8e5m2(uint8_t b) {
    return mpix_f32_from_f16((uint16_t)(b << 8));
}

static inline float mpix_f32_from_f8e4m3(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, a = b & 0x7fu;
    if (a == 0x7fu)
        return mpix_f32_of_bits(sign | 0x7fc00000u);
    return mpix_f32_of_bits(sign | mpix_f32_bits(mpix_f32_from_f16((uint16_t)(a << 7)) * 256.0f));
}

/* A scale is 2^(e - 127); the smallest is a denormal float. */
static inline float mpix_f32_from_ue8m0(uint8_t e) {
    return mpix_f32_of_bits(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* The compiler's conversion is exact and quiets a NaN. */
static inline double mpix_f64_from_f32(float x) { return (double)x; }

/* ---- narrowing: to nearest, ties to even, beyond the range to infinity ----------------------- */

static inline uint16_t mpix_bf16_from_f32(float x) {
    uint32_t u = mpix_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline uint16_t mpix_f16_from_f32(float x) {
    uint32_t u = mpix_f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520, halfway between the largest f16 and the next power of two */
        return (uint16_t)(sign | 0x7c00u);
    /* 2^-14, the smallest normal: a carry out of the fraction goes to the exponent */
    if (a >= 0x38800000u)
        return (uint16_t)(sign | (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13);
    if (a < 0x33000000u) /* below 2^-25, half of the smallest denormal */
        return (uint16_t)sign;
    /* In units of 2^-24 the value is m >> shift; shift is 14 .. 24. */
    uint32_t shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1u)))));
}

static inline float mpix_f32_from_f64(double x) { return (float)x; }

/*
 * Rounds to odd: the neighbour nearer to zero, with its last bit set if x lies between. A second
 * rounding to a format with at least two bits less then gives what one rounding would have given,
 * since the odd bit remembers on which side of a tie x was. (float)x is one of the two neighbours;
 * where it is the larger one (infinity included) its bits minus one are the other.
 */
static inline float mpix_f32_odd_from_f64(double x) {
    float r = (float)x;
    double back = (double)r;
    if (back == x || mpix_f64_isnan(x))
        return r;
    uint32_t u = mpix_f32_bits(r);
    if ((mpix_f64_bits(back) & 0x7fffffffffffffffull) > (mpix_f64_bits(x) & 0x7fffffffffffffffull))
        u -= 1u;
    return mpix_f32_of_bits(u | 1u);
}

static inline uint16_t mpix_bf16_from_f64(double x) {
    return mpix_bf16_from_f32(mpix_f32_odd_from_f64(x));
}
static inline uint16_t mpix_f16_from_f64(double x) {
    return mpix_f16_from_f32(mpix_f32_odd_from_f64(x));
}

/* The scale of column c in a row's scales: bytes (UE8M0) or floats, at any alignment. */
static inline float mpix_scale_of_column(const void *scales, int ue8m0, size_t c) {
    if (ue8m0)
        return mpix_f32_from_ue8m0(((const uint8_t *)scales)[c / 128]);
    float scale;
    memcpy(&scale, (const char *)scales + c / 128 * sizeof scale, sizeof scale);
    return scale;
}

#endif
