/*
 * test_rows_convert.c - conversions of the row kernels: every pattern of the small formats,
 * and roundings where they are hard. Conversions are seen through sums of one term, as the
 * library uses them.
 */
#include "config.h"

#include <stdlib.h>

#include "rows_ref.h"

static const int targets[] = {MPIX_EP_F64, MPIX_EP_F32, MPIX_EP_F16, MPIX_EP_BF16};
enum { NTARGETS = 4 };

/* The quiet NaN of dtype to with the sign and the leading fraction bits of a NaN of dtype from. */
static uint64_t nan_kept(int from, uint64_t bits, int to) {
    const ref_format *f = ref_format_of(from), *t = ref_format_of(to);
    uint64_t sign = bits >> (f->exponent_bits + f->fraction_bits) & 1,
             fraction = bits & ((UINT64_C(1) << f->fraction_bits) - 1);
    fraction = from == MPIX_EP_F8E4M3 ? 0 : fraction; /* its only NaN has no payload */
    fraction = t->fraction_bits >= f->fraction_bits
                   ? fraction << (t->fraction_bits - f->fraction_bits)
                   : fraction >> (f->fraction_bits - t->fraction_bits);
    uint64_t exponent = ((UINT64_C(1) << t->exponent_bits) - 1) << t->fraction_bits;
    return sign << (t->exponent_bits + t->fraction_bits) | exponent | fraction |
           UINT64_C(1) << (t->fraction_bits - 1);
}

/* Converts n elements with every variant, streaming or not, and compares each with
 * the reference. */
static void check_conversion(const void *x, size_t n, int from, int to) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    size_t bytes = n * mpix_dtype_size(to);
    char *y = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    uint64_t *want = malloc(n * sizeof *want);
    ck_assert(y && want);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = ref_element(x, from, i);
        want[i] = ref_is_nan(from, bits) ? nan_kept(from, bits, to)
                                         : ref_encode(to, ref_decode(from, bits));
    }
    for (int run = 0; run < 2 * nops; run++) {
        mpix_row_term term = {.x = x};
        mpix_row_sum sum = {.y = y, .nterms = 1, .terms = &term};
        memset(y, 0x5a, bytes);
        ops[run / 2]->sum(&sum, from, MPIX_EP_NO_SCALES, to, n, run % 2);
        ops[run / 2]->fence();
        for (size_t i = 0; i < n; i++)
            if (ref_element(y, to, i) != want[i])
                ck_abort_msg("%s: %s %#llx to %s gives %#llx, not %#llx", ops[run / 2]->name,
                             mpix_dtype_name(from), (unsigned long long)ref_element(x, from, i),
                             mpix_dtype_name(to), (unsigned long long)ref_element(y, to, i),
                             (unsigned long long)want[i]);
    }
    free(want);
    free(y);
}

START_TEST(test_every_pattern) {
    static const int from[] = {MPIX_EP_F16, MPIX_EP_BF16, MPIX_EP_F8E4M3, MPIX_EP_F8E5M2};
    int dtype = from[_i];
    size_t n = mpix_dtype_size(dtype) == 2 ? 65536 : 256;
    void *x = malloc(n * 2);
    for (size_t i = 0; i < n; i++)
        ref_element_set(x, dtype, i, i);
    for (int t = 0; t < NTARGETS; t++)
        check_conversion(x, n, dtype, targets[t]);
    /* The NaNs, which take a way of their own, must not hide their neighbours: all but
     * them once more. */
    size_t finite = 0;
    for (size_t i = 0; i < n; i++)
        if (!ref_is_nan(dtype, i))
            ref_element_set(x, dtype, finite++, i);
    ck_assert_uint_gt(finite, n / 2);
    for (int t = 0; t < NTARGETS; t++)
        check_conversion(x, finite, dtype, targets[t]);
    free(x);
}
END_TEST

/* Some values of the formats, against surprises that the reference and the library might share. */
START_TEST(test_known_values) {
    static const struct {
        int dtype;
        unsigned bits;
        double value;
    } known[] = {
        {MPIX_EP_F8E4M3, 0x38, 1.0},        {MPIX_EP_F8E4M3, 0x7e, 448.0},
        {MPIX_EP_F8E4M3, 0x01, 0x1p-9},     {MPIX_EP_F8E4M3, 0x08, 0x1p-6},
        {MPIX_EP_F8E4M3, 0xfe, -448.0},     {MPIX_EP_F8E5M2, 0x3c, 1.0},
        {MPIX_EP_F8E5M2, 0x7b, 57344.0},    {MPIX_EP_F8E5M2, 0x01, 0x1p-16},
        {MPIX_EP_F8E5M2, 0x7c, INFINITY},   {MPIX_EP_F16, 0x3c00, 1.0},
        {MPIX_EP_F16, 0x7bff, 65504.0},     {MPIX_EP_F16, 0x0001, 0x1p-24},
        {MPIX_EP_F16, 0xfc00, -INFINITY},   {MPIX_EP_BF16, 0x3f80, 1.0},
        {MPIX_EP_BF16, 0x7f7f, 0x1.fep127}, {MPIX_EP_BF16, 0x0001, 0x1p-133},
        {MPIX_EP_BF16, 0x4049, 3.140625},   {MPIX_EP_BF16, 0xff80, -INFINITY},
    };
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    for (int run = 0; run < nops; run++) {
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            mpix_row_term term = {.x = &known[k].bits};
            double y = 0.0;
            mpix_row_sum sum = {.y = &y, .nterms = 1, .terms = &term};
            ops[run]->sum(&sum, known[k].dtype, MPIX_EP_NO_SCALES, MPIX_EP_F64, 1, 0);
            ck_assert_msg(y == known[k].value, "%s: %s %#x gives %a", ops[run]->name,
                          mpix_dtype_name(known[k].dtype), known[k].bits, y);
        }
    }
}
END_TEST

/* f32 to the 16-bit formats: every upper half of a float, NaNs too, with lower halves
 * around a tie. */
START_TEST(test_narrow_f32) {
    static const uint32_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001,
                                     0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { NLOWER = sizeof lower / sizeof *lower, N = 65536 };
    uint32_t *x = malloc(N * sizeof *x);
    for (int l = 0; l < NLOWER; l++) {
        for (uint32_t i = 0; i < N; i++)
            x[i] = i << 16 | lower[l];
        for (int t = 0; t < NTARGETS; t++)
            check_conversion(x, N, MPIX_EP_F32, targets[t]);
    }
    rnd_seed(1);
    for (int round = 0; round < 4; round++) {
        /* every other time no NaN, so that vector code does the work */
        for (uint32_t i = 0; i < N; i++)
            x[i] = (uint32_t)rnd() & (round % 2 ? 0xff7fffffu : 0xffffffffu);
        for (int t = 0; t < NTARGETS; t++)
            check_conversion(x, N, MPIX_EP_F32, targets[t]);
    }
    free(x);
}
END_TEST

/* All values halfway between two neighbours of f16 or bf16 as floats, and the floats
 * next to them. */
START_TEST(test_ties_f32) {
    int to = _i ? MPIX_EP_BF16 : MPIX_EP_F16;
    size_t n = 0, infinity = to == MPIX_EP_F16 ? 0x7c00 : 0x7f80;
    float *x = malloc(6 * infinity * sizeof *x);
    for (size_t h = 0; h < infinity; h++) {
        /* The neighbour of the largest value is the power of two that stands for infinity. */
        double a = ref_decode(to, h), b = h + 1 < infinity
                                              ? ref_decode(to, h + 1)
                                              : ldexp(1.0, to == MPIX_EP_F16 ? 16 : 128);
        float tie = (float)((a + b) / 2);
        if (2.0 * (double)tie != a + b)
            ck_abort_msg("the tie above %#zx is not a float", h);
        for (int sign = -1; sign <= 1; sign += 2) {
            x[n++] = (float)sign * tie;
            x[n++] = (float)sign * nextafterf(tie, INFINITY);
            x[n++] = (float)sign * nextafterf(tie, 0.0f);
        }
    }
    check_conversion(x, n, MPIX_EP_F32, to);
    free(x);
}
END_TEST

/* Doubles that two roundings, by way of float, would get wrong: nearer to a tie than
 * floats can tell. */
START_TEST(test_double_rounding) {
    int to = _i ? MPIX_EP_BF16 : MPIX_EP_F16, traps = 0;
    size_t n = 0, infinity = to == MPIX_EP_F16 ? 0x7c00 : 0x7f80;
    double *x = malloc(6 * infinity * sizeof *x);
    for (size_t h = 0; h < infinity; h++) {
        double a = ref_decode(to, h), b = h + 1 < infinity
                                              ? ref_decode(to, h + 1)
                                              : ldexp(1.0, to == MPIX_EP_F16 ? 16 : 128);
        double tie = (a + b) / 2;
        for (int sign = -1; sign <= 1; sign += 2) {
            x[n++] = sign * tie;
            x[n++] = sign * nextafter(tie, INFINITY);
            x[n++] = sign * nextafter(tie, 0.0);
        }
    }
    for (size_t i = 0; i < n; i++)
        traps += ref_encode(to, x[i]) != ref_encode(to, (float)x[i]);
    ck_assert_int_gt(traps, (int)infinity / 2);
    check_conversion(x, n, MPIX_EP_F64, to);
    free(x);
}
END_TEST

/* Doubles of all sizes to every dtype: random patterns, ties and edges of float,
 * denormals, NaNs. */
START_TEST(test_narrow_f64) {
    enum { N = 60000 };
    static const double edges[] = {
        0x1.fffffep127,
        0x1.ffffffp127,
        0x1.fffffefffffffp127,
        0x1.ffffff0000001p127,
        0x1p128,
        0x1.fffp1023,
        0x1p-149,
        0x1p-150,
        0x1.0000000000001p-150,
        0x1.fffffffffffffp-151,
        0x1.8p-149,
        0x1p-1074,
        65504.0,
        65519.99999,
        65520.0,
        65519.99999999999,
        0x1p-24,
        0x1p-25,
        0x1.0000000000001p-25,
        0x1.8p-24,
        0x1p-133,
        0x1p-134,
        0x1.0000000000001p-134,
        0x1.fffffffp-15,
        0.0,
        1.0,
        0x1.fep127,
        0x1.ffp127,
        0x1.feffffffffffp127,
        INFINITY,
    };
    enum { NEDGES = sizeof edges / sizeof *edges };
    double *x = malloc(N * sizeof *x);
    rnd_seed(2);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++) {
            uint64_t bits = rnd();
            /* exponents from below the smallest f16 or float to beyond the largest */
            if (round % 2)
                bits = (bits & UINT64_C(0x800fffffffffffff)) | (1023 - 160 + rnd_below(320)) << 52;
            if (round > 1) /* few fraction bits, so that ties are frequent */
                bits &= ~((UINT64_C(1) << (20 + rnd_below(30))) - 1);
            memcpy(&x[i], &bits, sizeof bits);
        }
        for (int i = 0; i < NEDGES; i++) {
            x[100 + 2 * i] = edges[i];
            x[101 + 2 * i] = -edges[i];
        }
        for (int t = 0; t < NTARGETS; t++)
            check_conversion(x, N, MPIX_EP_F64, targets[t]);
    }
    free(x);
}
END_TEST

/* Every scale of a byte with every finite element, and floats as scales, not aligned. */
START_TEST(test_scales) {
    enum { HIDDEN = 256 * 128 };
    int dtype = _i % 2 ? MPIX_EP_F8E5M2 : MPIX_EP_F8E4M3,
        kind = _i / 2 ? MPIX_EP_SCALES_UE8M0 : MPIX_EP_SCALES_F32;
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    uint8_t *x = malloc(HIDDEN), scales[1 + 256 * 4];
    float *y = malloc(HIDDEN * sizeof *y);
    rnd_seed(3);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < HIDDEN; i++)
            x[i] = (uint8_t)(i % 128 + 128 * half);
        for (int b = 0; b < 256; b++) {
            uint32_t bits = (uint32_t)rnd() & 0xbfffffffu; /* up to 2 */
            if (kind == MPIX_EP_SCALES_UE8M0)
                scales[1 + b] = (uint8_t)b;
            else
                memcpy(&scales[1 + 4 * b], &bits, 4);
        }
        mpix_row_term term = {.x = x, .scales = scales + 1};
        mpix_row_sum sum = {.y = y, .nterms = 1, .terms = &term};
        for (int run = 0; run < nops; run++) {
            memset(y, 0x5a, HIDDEN * sizeof *y);
            ops[run]->sum(&sum, dtype, kind, MPIX_EP_F32, HIDDEN, 0);
            for (int c = 0; c < HIDDEN; c++) {
                uint64_t want = ref_sum(&sum, dtype, kind, MPIX_EP_F32, (size_t)c),
                         got = ref_element(y, MPIX_EP_F32, (size_t)c);
                if (ref_is_nan(MPIX_EP_F32, want) ? !ref_is_nan(MPIX_EP_F32, got) : got != want)
                    ck_abort_msg("%s: %#x times scale %d gives %#llx, not %#llx", ops[run]->name,
                                 x[c], c / 128, (unsigned long long)got, (unsigned long long)want);
            }
        }
    }
    free(y);
    free(x);
}
END_TEST

TCase *rows_convert_tests(void) {
    TCase *tc = tcase_create("convert");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_every_pattern, 0, 4);
    tcase_add_test(tc, test_known_values);
    tcase_add_test(tc, test_narrow_f32);
    tcase_add_loop_test(tc, test_ties_f32, 0, 2);
    tcase_add_loop_test(tc, test_double_rounding, 0, 2);
    tcase_add_test(tc, test_narrow_f64);
    tcase_add_loop_test(tc, test_scales, 0, 4);
    return tc;
}
