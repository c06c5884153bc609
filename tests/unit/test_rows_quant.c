/*
 * test_rows_quant.c - quantisation of rows against the definition in rows.h, computed in double
 * with every operation rounded to float once (a quotient or product of floats is rounded correctly
 * that way), and encoded by the reference.
 */
#include "config.h"

#include <stdlib.h>

#include "rows_ref.h"

static const int x_dtypes[] = {MPIX_EP_F32, MPIX_EP_F16, MPIX_EP_BF16};

/* The scale of a group (as its pattern) and the factor of its elements. */
static uint64_t ref_scale(double amax, double top, int kind, float *factor) {
    float s = (float)(amax / top);
    uint64_t bits;
    if (kind == MPIX_EP_SCALES_F32) {
        *factor = (float)(top / amax);
        return ref_encode(MPIX_EP_F32, s);
    }
    if (isinf(s)) {
        *factor = 0;
        return 255;
    }
    int exponent;
    double fraction = frexp(s, &exponent); /* s = fraction * 2^exponent, fraction in [0.5, 1) */
    exponent -= fraction == 0.5;
    *factor = (float)ldexp(1.0, -exponent);
    bits = (uint64_t)(exponent + 127);
    return bits;
}

static uint64_t ref_quant(float v, int qdtype, double top) {
    if (isnan(v))
        return 0x7f;
    return ref_encode(qdtype, fabs(v) > top ? copysign(top, v) : v);
}

/* Compares one row of n columns, x, with what every variant makes of it. */
static void check_row(const char *x, int xdtype, size_t n, int qdtype, int kind) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    size_t groups = (n + 127) / 128, ssize = kind == MPIX_EP_SCALES_F32 ? 4 : 1;
    double top = qdtype == MPIX_EP_F8E4M3 ? 448 : 57344;
    for (int run = 0; run < nops; run++) {
        guarded q = guarded_new(n, rnd_below(2) ? GUARD_END : GUARD_START, 0);
        guarded s = guarded_new(groups * ssize, rnd_below(2) ? GUARD_END : GUARD_START, 0);
        memset(q.p, 0xa5, n);
        memset(s.p, 0xa5, groups * ssize);
        ops[run]->quantize(x, xdtype, q.p, qdtype, s.p, kind, n);
        for (size_t g = 0; g < groups; g++) {
            double amax = 0x1p-110;
            for (size_t c = g * 128; c < n && c < g * 128 + 128; c++) {
                double v = fabs(ref_decode(xdtype, ref_element(x, xdtype, c)));
                amax = v > amax ? v : amax;
            }
            float factor;
            uint64_t want = ref_scale(amax, top, kind, &factor), got = 0;
            memcpy(&got, s.p + g * ssize, ssize);
            if (got != want)
                ck_abort_msg("%s: group %zu has the scale %#llx, not %#llx", ops[run]->name, g,
                             (unsigned long long)got, (unsigned long long)want);
            for (size_t c = g * 128; c < n && c < g * 128 + 128; c++) {
                float v = (float)(ref_decode(xdtype, ref_element(x, xdtype, c)) * (double)factor);
                want = ref_quant(v, qdtype, top);
                got = (uint8_t)q.p[c];
                if (got != want)
                    ck_abort_msg("%s: column %zu, %#llx, becomes %#llx, not %#llx", ops[run]->name,
                                 c, (unsigned long long)ref_element(x, xdtype, c),
                                 (unsigned long long)got, (unsigned long long)want);
            }
        }
        guarded_check(&q);
        guarded_check(&s);
        guarded_free(&q);
        guarded_free(&s);
    }
}

/* Random rows: any patterns, or numbers of like size; lengths around groups; any alignment of x. */
START_TEST(test_quant_random) {
    int xdtype = x_dtypes[_i % 3], qdtype = _i / 3 % 2 ? MPIX_EP_F8E5M2 : MPIX_EP_F8E4M3;
    int kind = _i / 6 ? MPIX_EP_SCALES_UE8M0 : MPIX_EP_SCALES_F32;
    size_t size = mpix_dtype_size(xdtype);
    rnd_seed((uint64_t)_i + 1);
    for (int round = 0; round < 150; round++) {
        size_t n = round < 40 ? (size_t)round + 1 : 1 + (size_t)rnd_below(round % 10 ? 300 : 3000);
        size_t offset = (size_t)rnd_below(16), bytes = n * size;
        char *memory = malloc(bytes + offset), *x = memory + offset;
        for (size_t c = 0; c < n; c++) {
            double v = ldexp((double)rnd_below(1 << 20) - (1 << 19), (int)(round % 7) * 2 - 26);
            uint64_t any = rnd() & (size == 4 ? 0xffffffffu : 0xffffu);
            ref_element_set(x, xdtype, c, round % 3 ? ref_encode(xdtype, v) : any);
        }
        check_row(x, xdtype, n, qdtype, kind);
        free(memory);
    }
}
END_TEST

/* Zeros, the smallest and largest numbers, infinities, NaNs, and values halfway between
 * two fp8 numbers. */
START_TEST(test_quant_edges) {
    int qdtype = _i % 2 ? MPIX_EP_F8E5M2 : MPIX_EP_F8E4M3,
        kind = _i / 2 ? MPIX_EP_SCALES_UE8M0 : MPIX_EP_SCALES_F32;
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0xffc12345, 0x3f800000, 0x08800000};
    enum { SPECIAL = sizeof special / sizeof *special };
    uint32_t x[128];
    for (int a = 0; a < SPECIAL; a++)
        for (int b = 0; b < SPECIAL; b++) {
            for (int c = 0; c < 128; c++)
                x[c] = special[c % 2 ? a : b];
            check_row((const char *)x, MPIX_EP_F32, 128, qdtype, kind);
        }
    /* With the largest at top the factor is one: every tie and its neighbours. */
    float top = qdtype == MPIX_EP_F8E4M3 ? 448 : 57344;
    for (int i = 0; i < 0x7e - (qdtype == MPIX_EP_F8E5M2 ? 3 : 0); i++) {
        double tie = (ref_decode(qdtype, (uint64_t)i) + ref_decode(qdtype, (uint64_t)i + 1)) / 2;
        uint32_t bits = (uint32_t)ref_encode(MPIX_EP_F32, tie);
        memset(x, 0, sizeof x);
        memcpy(x, &top, 4);
        x[1] = bits;
        x[2] = bits - 1;
        x[3] = bits + 1;
        x[4] = bits | 0x80000000u;
        check_row((const char *)x, MPIX_EP_F32, 128, qdtype, kind);
    }
}
END_TEST

TCase *rows_quant_tests(void) {
    TCase *tc = tcase_create("quantise");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_quant_random, 0, 12);
    tcase_add_loop_test(tc, test_quant_edges, 0, 4);
    return tc;
}
