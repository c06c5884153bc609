/*
 * ref_num.c - the reference for numbers: conversions through double with one rounding, and sums one
 * element at a time.
 *
 * Compile without contraction (-ffp-contract=off): a fused multiply-add would round once where the
 * definition rounds twice.
 */
#include "ref.h"

#include <math.h>
#include <string.h>

/* The small formats: bits of exponent and of mantissa. */
typedef struct {
    int dtype, ebits, mbits, fn;
} format;
static const format formats[] = {
    {MPIX_EP_F16, 5, 10, 0},
    {MPIX_EP_BF16, 8, 7, 0},
    {MPIX_EP_F8E4M3, 4, 3, 1},
    {MPIX_EP_F8E5M2, 5, 2, 0},
};

static const format *find(int dtype) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

size_t ref_size(int dtype) {
    static const size_t sizes[] = {0, 8, 4, 2, 2, 1, 1, 1};
    return sizes[dtype];
}

const char *ref_name(int dtype) {
    static const char *const names[] = {"none", "f64",    "f32",    "f16",
                                        "bf16", "f8e4m3", "f8e5m2", "bytes"};
    return names[dtype];
}

size_t ref_scales(int scale_kind, int64_t hidden) {
    size_t n = (size_t)(hidden + 127) / 128;
    return scale_kind == MPIX_EP_SCALES_F32 ? 4 * n : scale_kind == MPIX_EP_SCALES_UE8M0 ? n : 0;
}

static double widen(const format *f, unsigned bits) {
    unsigned mantissa = bits & ((1u << f->mbits) - 1),
             exponent = bits >> f->mbits & ((1u << f->ebits) - 1);
    int bias = (1 << (f->ebits - 1)) - 1, top = (1 << f->ebits) - 1;
    double sign = bits >> (f->ebits + f->mbits) & 1 ? -1.0 : 1.0;
    if ((int)exponent == top && !f->fn)
        return mantissa ? NAN : sign * INFINITY;
    /* "fn": only the last pattern is no number */
    if ((int)exponent == top && mantissa == (1u << f->mbits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - f->mbits);
    return sign * ldexp((double)((1u << f->mbits) + mantissa), (int)exponent - bias - f->mbits);
}

/* Round to nearest even: scale so that the last place becomes 1, and let nearbyint round. */
static unsigned narrow(const format *f, double value) {
    int bias = (1 << (f->ebits - 1)) - 1, top = (1 << f->ebits) - 1, exponent;
    unsigned sign = signbit(value) ? 1u << (f->ebits + f->mbits) : 0;
    double size = fabs(value);
    if (isnan(value))
        return sign | (unsigned)top << f->mbits | 1u << (f->mbits - 1);
    if (isinf(value))
        return sign | (unsigned)top << f->mbits;
    frexp(size, &exponent); /* size = m * 2^exponent, m in [0.5, 1) */
    exponent--;             /* as 1.xxx */
    if (exponent < 1 - bias)
        exponent = 1 - bias; /* denormal: the last place stays where it is */
    double places = nearbyint(ldexp(size, f->mbits - exponent));
    if (places >= ldexp(1, f->mbits + 1)) {
        places /= 2;
        exponent++;
    }
    if (exponent > bias)
        return sign | (unsigned)top << f->mbits;
    unsigned mantissa = (unsigned)places;
    if (mantissa < 1u << f->mbits)
        return sign | mantissa;
    return sign | (unsigned)(exponent + bias) << f->mbits | (mantissa & ((1u << f->mbits) - 1));
}

double ref_load(int dtype, const void *row, int64_t i) {
    const char *at = (const char *)row + (size_t)i * ref_size(dtype);
    double d;
    float s;
    uint16_t h;
    uint8_t b;
    switch (ref_size(dtype)) {
    case 8: memcpy(&d, at, 8); return d;
    case 4: memcpy(&s, at, 4); return s;
    case 2: memcpy(&h, at, 2); return widen(find(dtype), h);
    default: memcpy(&b, at, 1); return widen(find(dtype), b);
    }
}

void ref_store(int dtype, void *row, int64_t i, double value) {
    char *at = (char *)row + (size_t)i * ref_size(dtype);
    float s = (float)value;
    uint16_t h;
    switch (ref_size(dtype)) {
    case 8: memcpy(at, &value, 8); break;
    case 4: memcpy(at, &s, 4); break;
    default: h = (uint16_t)narrow(find(dtype), value); memcpy(at, &h, 2);
    }
}

/* Patterns of fp8 numbers grow with the number: the nearest by trying all, the even pattern of two
 * that are as near. */
static uint8_t nearest_fp8(int to, float v) {
    const format *f = find(to);
    int best = 0, last = to == MPIX_EP_F8E4M3 ? 0x7e : 0x7b;
    double size = fabs((double)v);
    if (isnan(v))
        return 0x7f;
    for (int b = 1; b <= last; b++) {
        double here = fabs(widen(f, (unsigned)b) - size),
               there = fabs(widen(f, (unsigned)best) - size);
        if (here < there || (here == there && b % 2 == 0) || isinf(size))
            best = b;
    }
    return (uint8_t)(best | (signbit(v) ? 0x80 : 0));
}

static void quantise_group(int dtype, const void *x, int64_t from, int64_t end, int to,
                           int to_scale, uint8_t *y, void *scales) {
    double amax = ldexp(1, -110), top = to == MPIX_EP_F8E4M3 ? 448 : 57344;
    for (int64_t i = from; i < end; i++)
        if (fabs(ref_load(dtype, x, i)) > amax)
            amax = fabs(ref_load(dtype, x, i));
    float scale = (float)(amax / top), factor = (float)(top / amax);
    if (to_scale == MPIX_EP_SCALES_UE8M0) {
        int e = -127;
        while (e < 128 && ldexp(1, e) < (double)scale)
            e++;
        ((uint8_t *)scales)[from / 128] = (uint8_t)(e + 127);
        factor = e == 128 ? 0 : (float)ldexp(1, -e);
    } else {
        ((float *)scales)[from / 128] = scale;
    }
    for (int64_t i = from; i < end; i++)
        y[i] = nearest_fp8(to, (float)(ref_load(dtype, x, i) * (double)factor));
}

void ref_convert(int dtype, const void *x, int64_t hidden, int to, int to_scale, void *y,
                 void *scales) {
    for (int64_t i = 0; !to_scale && i < hidden; i++)
        ref_store(to, y, i, ref_load(dtype, x, i));
    for (int64_t i = 0; to_scale && i < hidden; i += 128)
        quantise_group(dtype, x, i, i + 128 < hidden ? i + 128 : hidden, to, to_scale, y, scales);
}

int ref_same(int dtype, const void *a, const void *b, int64_t i) {
    size_t size = ref_size(dtype);
    if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size) == 0)
        return 1;
    return dtype != MPIX_EP_BYTES && isnan(ref_load(dtype, a, i)) && isnan(ref_load(dtype, b, i));
}

static float scale_of(const void *scales, int scale_kind, int64_t i) {
    if (scale_kind == MPIX_EP_SCALES_F32)
        return ((const float *)scales)[i / 128];
    return (float)ldexp(1, ((const uint8_t *)scales)[i / 128] - 127);
}

static double sum_double(int nterms, const ref_term *terms, int64_t i) {
    double total = 0, group = 0;
    for (int t = 0, groups = 0; t < nterms; t++) {
        double value = ref_load(MPIX_EP_F64, terms[t].x, i);
        for (int w = 0; w < terms[t].nw; w++)
            value = value * (double)terms[t].w[w];
        group = t > 0 && terms[t].group == terms[t - 1].group ? group + value : value;
        if (t + 1 == nterms || terms[t + 1].group != terms[t].group)
            total = groups++ ? total + group : group;
    }
    return total;
}

static float sum_float(int nterms, const ref_term *terms, int xdtype, int scale_kind, int64_t i) {
    float total = 0, group = 0;
    for (int t = 0, groups = 0; t < nterms; t++) {
        float value = (float)ref_load(xdtype, terms[t].x, i);
        if (terms[t].scales)
            value = value * scale_of(terms[t].scales, scale_kind, i);
        for (int w = 0; w < terms[t].nw; w++)
            value = value * terms[t].w[w];
        group = t > 0 && terms[t].group == terms[t - 1].group ? group + value : value;
        if (t + 1 == nterms || terms[t + 1].group != terms[t].group)
            total = groups++ ? total + group : group;
    }
    return total;
}

void ref_sum(int nterms, const ref_term *terms, int xdtype, int scale_kind, int nbias,
             const void *const bias[], int ydtype, int64_t hidden, void *y) {
    for (int64_t i = 0; i < hidden; i++) {
        if (xdtype == MPIX_EP_F64) {
            double d = sum_double(nterms, terms, i);
            for (int b = 0; b < nbias; b++)
                d = d + ref_load(ydtype, bias[b], i);
            ref_store(ydtype, y, i, d);
        } else {
            float s = sum_float(nterms, terms, xdtype, scale_kind, i);
            for (int b = 0; b < nbias; b++)
                s = s + (float)ref_load(ydtype, bias[b], i);
            ref_store(ydtype, y, i, s);
        }
    }
}

/* ---- contents -------------------------------------------------------------------------------- */

static double mixed(uint64_t h, int flavour) {
    double mantissa = 1 + (double)(h >> 12) / 4503599627370496.0;
    int exponent = (int)(h & 15) - 8;
    double value = ldexp(mantissa, exponent);
    if (flavour == REF_WILD && (h >> 5 & 15) == 0) {
        static const double odd[] = {0.0,   INFINITY, 1e-40, 3e38,   6e-8,
                                     65504, 1e-45,    2e-5,  5e-324, 1e300};
        uint64_t pick = h >> 20 & 1023;
        value = pick < 6 ? NAN : odd[pick % (sizeof odd / sizeof *odd)];
    }
    return h & 16 ? -value : value;
}

void ref_fill(uint64_t seed, int dtype, int64_t hidden, int flavour, void *row) {
    unsigned char *bytes = row;
    size_t n = (size_t)hidden * ref_size(dtype);
    if (flavour == REF_RAW || dtype == MPIX_EP_BYTES || ref_size(dtype) == 1) {
        for (size_t i = 0; i < n; i += 8) {
            uint64_t h = t_hash2(seed, i);
            memcpy(bytes + i, &h, n - i < 8 ? n - i : 8);
        }
        for (size_t i = 0; i < n && flavour == REF_MIXED && find(dtype); i++)
            if (!isfinite(ref_load(dtype, bytes, (int64_t)i)))
                bytes[i] = (unsigned char)(i & 63);
        return;
    }
    for (int64_t i = 0; i < hidden; i++)
        ref_store(dtype, row, i, mixed(t_hash2(seed, (uint64_t)i), flavour));
}

void ref_fill_scales(uint64_t seed, int scale_kind, int64_t hidden, void *scales) {
    for (int64_t i = 0; i < (hidden + 127) / 128; i++) {
        uint64_t h = t_hash2(seed, (uint64_t)i);
        if (scale_kind == MPIX_EP_SCALES_F32)
            ((float *)scales)[i] = ref_weight(h);
        if (scale_kind == MPIX_EP_SCALES_UE8M0)
            ((uint8_t *)scales)[i] = (uint8_t)(h % 64 == 0 ? 0 : 117 + h % 20);
    }
}

float ref_weight(uint64_t seed) { return (float)mixed(t_hash2(seed, 77), REF_MIXED) / 64; }

/* ---- checks of the reference itself ---------------------------------------------------------- */

static void selftest_format(const format *f) {
    unsigned last = 1u << (f->ebits + f->mbits + 1);
    for (unsigned bits = 0; bits < last; bits++) {
        double value = widen(f, bits);
        if (!isnan(value) && !f->fn)
            CHECK(narrow(f, value) == bits, "%s %#x widens to %g and narrows to %#x",
                  ref_name(f->dtype), bits, value, narrow(f, value));
        double next = widen(f, bits + 1 < last ? bits + 1 : bits);
        if (f->fn || !isfinite(value) || !isfinite(next) || signbit(value) != signbit(next) ||
            value == next)
            continue;
        double middle = (value + next) / 2; /* exact in double: a tie goes to the even neighbour */
        unsigned even = bits & 1 ? bits + 1 : bits;
        CHECK(narrow(f, middle) == even, "%s: tie after %#x gives %#x", ref_name(f->dtype), bits,
              narrow(f, middle));
        CHECK(narrow(f, nextafter(middle, value)) == bits, "%s: below the tie after %#x",
              ref_name(f->dtype), bits);
        CHECK(narrow(f, nextafter(middle, next)) == bits + 1, "%s: above the tie after %#x",
              ref_name(f->dtype), bits);
    }
}

void ref_selftest(void) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        selftest_format(&formats[i]);
    CHECK(widen(find(MPIX_EP_F8E4M3), 0x7e) == 448 &&
              widen(find(MPIX_EP_F8E4M3), 1) == ldexp(1, -9),
          "e4m3 range");
    CHECK(widen(find(MPIX_EP_F8E5M2), 0x7b) == 57344, "e5m2 range");
    CHECK(widen(find(MPIX_EP_F16), 0x3555) == 0.333251953125 &&
              narrow(find(MPIX_EP_F16), 65520) == 0x7c00,
          "f16");
    /* 0x1.ff9...p127: past the last tie */
    CHECK(narrow(find(MPIX_EP_BF16), 3.4e38) == 0x7f80, "bf16 overflow");
    for (uint64_t s = 0; s < 2000; s++) { /* bf16 is the upper half of a float */
        float value = (float)mixed(t_mix(s), REF_MIXED);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        unsigned expect = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        CHECK(narrow(find(MPIX_EP_BF16), value) == expect, "bf16 of %a", (double)value);
    }
    float a = 16777216, b = 1, c = -16777216, y;
    const ref_term one_rank[] = {{&a, NULL, 0, {0}, 0},
                                 {&b, NULL, 0, {0}, 0},
                                 {&c, NULL, 0, {0}, 0}};
    const ref_term two_ranks[] = {{&b, NULL, 0, {0}, 0},
                                  {&a, NULL, 0, {0}, 1},
                                  {&c, NULL, 0, {0}, 1}};
    ref_sum(3, one_rank, MPIX_EP_F32, 0, 0, NULL, MPIX_EP_F32, 1, &y);
    CHECK(y == 0, "(2^24 + 1) - 2^24 in float is 0, not %g", (double)y);
    ref_sum(3, two_ranks, MPIX_EP_F32, 0, 0, NULL, MPIX_EP_F32, 1, &y);
    CHECK(y == 1, "1 + (2^24 - 2^24) is 1, not %g", (double)y);
}
