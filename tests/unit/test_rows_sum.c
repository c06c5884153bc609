/*
 * test_rows_sum.c - sums of rows against the reference, one operation after another in the promised
 * order, and the variants against each other bit by bit: shapes, dtypes, weights, groups, bias,
 * scales, alignments, guard pages, floating-point modes of the caller.
 */
#include "config.h"

#include <fenv.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rows_ref.h"

enum { MAX_TERMS = 12, NANS = 1 /* special values among the data */ };

/* A sum with its memory: every row in a guarded buffer of its own. */
typedef struct problem {
    int xdtype, ydtype, scale_kind, nterms;
    size_t hidden;
    guarded x[MAX_TERMS], scales[MAX_TERMS], bias[2];
    mpix_row_term terms[MAX_TERMS];
    mpix_row_sum sum;
} problem;

/* A value of moderate size, so that sums round and don't overflow; or with special any
 * pattern at all. */
static uint64_t random_bits(int dtype, int special) {
    if (special && rnd_below(40) == 0)
        return rnd() &
               (mpix_dtype_size(dtype) == 8 ? UINT64_MAX
                                            : (UINT64_C(1) << 8 * mpix_dtype_size(dtype)) - 1);
    double v = ldexp((double)rnd_below(1 << 24) / (1 << 24) - 0.5, (int)rnd_below(9) - 4);
    return ref_encode(dtype, v);
}

static guarded random_row(int dtype, size_t hidden, int special) {
    size_t size = mpix_dtype_size(dtype);
    guarded g = guarded_new(hidden * size, rnd_below(2) ? GUARD_END : GUARD_START,
                            rnd_below(2) ? 0 : rnd_below(64));
    for (size_t i = 0; i < hidden; i++) {
        uint64_t bits = random_bits(dtype, special);
        if (dtype == MPIX_EP_F8E4M3 && ref_is_nan(dtype, bits) && !special)
            bits = 0;
        ref_element_set(g.p, dtype, i, bits);
    }
    return g;
}

static guarded random_scales(int kind, size_t hidden) {
    size_t n = (hidden + 127) / 128;
    guarded g = guarded_new(n * (kind == MPIX_EP_SCALES_F32 ? 4 : 1),
                            rnd_below(2) ? GUARD_END : GUARD_START, rnd_below(9));
    for (size_t i = 0; i < n; i++) {
        if (kind == MPIX_EP_SCALES_F32)
            ref_element_set(g.p, MPIX_EP_F32, i,
                            ref_encode(MPIX_EP_F32, (double)(1 + rnd_below(1000)) / 300));
        else
            g.p[i] = (char)(120 + rnd_below(16));
    }
    return g;
}

static void problem_init(problem *p, int xdtype, int ydtype, size_t hidden, int nterms,
                         int special) {
    int fp8 = xdtype == MPIX_EP_F8E4M3 || xdtype == MPIX_EP_F8E5M2, group = (int)rnd_below(3),
        spread = (int)rnd_below(3);
    int weights = (int)rnd_below(4);
    *p = (problem){.xdtype = xdtype, .ydtype = ydtype, .hidden = hidden, .nterms = nterms};
    p->scale_kind = fp8 ? (int)rnd_below(3) : MPIX_EP_NO_SCALES;
    for (int t = 0; t < nterms; t++) {
        /* All in one group, each in its own, or mixed. */
        group += t > 0 && (spread == 1 || (spread == 2 && rnd_below(2)));
        p->x[t] = random_row(xdtype, hidden, special);
        p->terms[t] = (mpix_row_term){.x = p->x[t].p,
                                      .nw = weights < 3 ? weights : (int)rnd_below(3),
                                      .group = group};
        for (int i = 0; i < 2; i++)
            p->terms[t].w[i] = (float)((double)rnd_below(1 << 24) / (1 << 23) - 0.9);
        if (p->scale_kind != MPIX_EP_NO_SCALES) {
            p->scales[t] = random_scales(p->scale_kind, hidden);
            p->terms[t].scales = p->scales[t].p;
        }
    }
    p->sum = (mpix_row_sum){.nterms = nterms, .terms = p->terms};
    int biases = (int)rnd_below(4);
    for (int i = 0; i < 2; i++) {
        if (biases & 1 << i) {
            p->bias[i] = random_row(ydtype, hidden, special);
            p->sum.bias[i] = p->bias[i].p;
        }
    }
}

static void problem_free(problem *p) {
    for (int t = 0; t < p->nterms; t++) {
        guarded_check(&p->x[t]);
        guarded_free(&p->x[t]);
        if (p->terms[t].scales)
            guarded_free(&p->scales[t]);
    }
    for (int i = 0; i < 2; i++)
        if (p->sum.bias[i])
            guarded_free(&p->bias[i]);
}

/* All variants, streaming and not, at several alignments of y: equal to the reference and
 * to one another. */
static void problem_check(problem *p) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    size_t size = mpix_dtype_size(p->ydtype), bytes = p->hidden * size;
    char *first = malloc(bytes + 1);
    for (int run = 0; run < 2 * nops; run++) {
        size_t offset = rnd_below(4) == 0 ? rnd_below(64)
                                          : rnd_below(2) * rnd_below(64 / size) * size;
        guarded y = guarded_new(bytes, rnd_below(2) ? GUARD_END : GUARD_START, offset);
        p->sum.y = y.p;
        ops[run / 2]->sum(&p->sum, p->xdtype, p->scale_kind, p->ydtype, p->hidden, run % 2);
        ops[run / 2]->fence();
        guarded_check(&y);
        if (run == 0)
            memcpy(first, y.p, bytes);
        for (size_t c = 0; c < p->hidden; c++) {
            uint64_t got = ref_element(y.p, p->ydtype, c), same = ref_element(first, p->ydtype, c);
            uint64_t want = run == 0 ? ref_sum(&p->sum, p->xdtype, p->scale_kind, p->ydtype, c)
                                     : same;
            int quiet_nan = run == 0 && ref_is_nan(p->ydtype, want) && ref_is_nan(p->ydtype, got) &&
                            (got & want) >> (ref_format_of(p->ydtype)->fraction_bits - 1) & 1;
            if (got != want && !quiet_nan)
                ck_abort_msg("%s (streaming %d): %s to %s, %d terms, hidden %zu: column %zu is "
                             "%#llx, not %#llx",
                             ops[run / 2]->name, run % 2, mpix_dtype_name(p->xdtype),
                             mpix_dtype_name(p->ydtype), p->nterms, p->hidden, c,
                             (unsigned long long)got, (unsigned long long)want);
        }
        guarded_free(&y);
    }
    free(first);
}

static void check(int xdtype, int ydtype, size_t hidden, int nterms, int special) {
    problem p;
    problem_init(&p, xdtype, ydtype, hidden, nterms, special);
    problem_check(&p);
    problem_free(&p);
}

/* _i: every pair of dtypes, 6 * 4. */
static int loop_x(int i) { return MPIX_EP_F64 + i % 6; }
static int loop_y(int i) { return MPIX_EP_F64 + i / 6; }

START_TEST(test_random) {
    rnd_seed(10 + (uint64_t)_i);
    for (int round = 0; round < 60; round++)
        check(loop_x(_i), loop_y(_i), 1 + rnd_below(600), (int)rnd_below(MAX_TERMS + 1), 0);
    for (size_t hidden = 0; hidden <= 40; hidden++)
        check(loop_x(_i), loop_y(_i), hidden, 1 + (int)rnd_below(3), 0);
}
END_TEST

START_TEST(test_long_rows) {
    rnd_seed(50 + (uint64_t)_i);
    for (int nterms = 1; nterms <= 8; nterms += 1 + (int)rnd_below(3))
        check(loop_x(_i), loop_y(_i), 7168, nterms, 0);
}
END_TEST

/* NaNs with payloads, signalling ones, infinities, denormals, numbers that overflow: among
 * ordinary ones. */
START_TEST(test_special_values) {
    rnd_seed(90 + (uint64_t)_i);
    for (int round = 0; round < 60; round++)
        check(loop_x(_i), loop_y(_i), 1 + rnd_below(400), (int)rnd_below(6), NANS);
}
END_TEST

/* Of several NaNs the first one stays, whatever the variant. */
START_TEST(test_first_nan) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    uint32_t a[256], b[256], y[256];
    for (int i = 0; i < 256; i++) {
        a[i] = i % 7 ? 0x3f800000 : 0xffa00001; /* signalling, negative */
        b[i] = i % 2 ? 0x40000000 : 0x7fc00123;
    }
    for (int run = 0; run < 4 * nops; run++) { /* both ways of storing, both of grouping */
        mpix_row_term terms[] = {{.x = a}, {.x = b, .group = run / (2 * nops)}};
        mpix_row_sum sum = {.y = y, .nterms = 2, .terms = terms};
        ops[run / 2 % nops]->sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 256, run % 2);
        for (int i = 0; i < 256; i++)
            ck_assert_uint_eq(y[i], i % 7 == 0 ? 0xffe00001 : i % 2 ? 0x40400000 : 0x7fc00123);
    }
}
END_TEST

/* Products are rounded before they are added: with a fused multiply-add these sums
 * would not be zero. */
START_TEST(test_no_fused_multiply) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    float x[160], minus[160], y[160], w = 1.0f + 0x1p-12f;
    double xd[160], minusd[160], yd[160];
    for (int i = 0; i < 160; i++) {
        volatile float product = (x[i] = 1.0f + (float)(i + 1) * 0x1p-18f) * w;
        volatile double productd = (xd[i] = 1.0 + (i + 1) * 0x1p-48) * (double)w;
        minus[i] = -product;
        minusd[i] = -productd;
        ck_assert(fmaf(x[i], w, minus[i]) != 0.0f || i % 64 == 63);
    }
    mpix_row_term terms[] = {{.x = minus}, {.x = x, .w = {w}, .nw = 1}},
                  termsd[] = {{.x = minusd}, {.x = xd, .w = {w}, .nw = 1}};
    for (int run = 0; run < nops; run++) {
        mpix_row_sum sum = {.y = y, .nterms = 2, .terms = terms},
                     sumd = {.y = yd, .nterms = 2, .terms = termsd};
        ops[run]->sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 160, 0);
        ops[run]->sum(&sumd, MPIX_EP_F64, MPIX_EP_NO_SCALES, MPIX_EP_F64, 160, 0);
        for (int i = 0; i < 160; i++) {
            ck_assert_msg(y[i] == 0.0f, "%s: column %d is %a", ops[run]->name, i, (double)y[i]);
            ck_assert_msg(yd[i] == 0.0, "%s: column %d is %a in f64", ops[run]->name, i, yd[i]);
        }
    }
}
END_TEST

/* (a + b) + (c + d) by groups, not ((a + b) + c) + d. */
START_TEST(test_group_order) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    float row[4][70], y[70];
    /* Beside 1 each of the others vanishes alone, two together do not. */
    static const float value[4] = {1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f};
    mpix_row_term terms[4];
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < 70; i++)
            row[t][i] = value[t];
        terms[t] = (mpix_row_term){.x = row[t], .group = t / 2};
    }
    for (int run = 0; run < nops; run++) {
        mpix_row_sum sum = {.y = y, .nterms = 4, .terms = terms};
        ops[run]->sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 70, 0);
        for (int i = 0; i < 70; i++)
            ck_assert(y[i] == 1.0f + 0x1p-23f);
    }
}
END_TEST

/* A single negative zero stays one; no terms give a positive one, to which bias is added. */
START_TEST(test_zeros) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    float zero[40], bias[40], y[40];
    for (int i = 0; i < 40; i++) {
        zero[i] = -0.0f;
        bias[i] = i % 2 ? (float)i : -0.0f;
    }
    mpix_row_term term = {.x = zero};
    for (int run = 0; run < nops; run++) {
        mpix_row_sum one = {.y = y, .nterms = 1, .terms = &term}, none = {.y = y},
                     biased = {.y = y, .bias = {NULL, bias}};
        ops[run]->sum(&one, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 40, 0);
        for (int i = 0; i < 40; i++)
            ck_assert(y[i] == 0.0f && signbit(y[i]));
        ops[run]->sum(&none, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 40, 0);
        for (int i = 0; i < 40; i++)
            ck_assert(y[i] == 0.0f && !signbit(y[i]));
        ops[run]->sum(&biased, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 40, 0);
        for (int i = 0; i < 40; i++)
            ck_assert(y[i] == (i % 2 ? (float)i : 0.0f) && !signbit(y[i]));
    }
}
END_TEST

/* y may be one of the rows that enter the sum: each column is read before it is written. */
START_TEST(test_in_place) {
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    for (int run = 0; run < 2 * nops; run++) {
        for (int n = 1; n < 300; n += 13) {
            float *x = aligned_alloc(64, 2048), *y = x + 5;
            for (int i = 0; i < n; i++)
                y[i] = (float)i;
            mpix_row_term terms[] = {{.x = y, .group = 0}, {.x = y, .group = 1}};
            mpix_row_sum sum = {.y = y, .bias = {y, NULL}, .nterms = 2, .terms = terms};
            ops[run / 2]->sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, (size_t)n,
                              run % 2);
            for (int i = 0; i < n; i++)
                ck_assert(y[i] == 3.0f * (float)i);
            free(x);
        }
    }
}
END_TEST

#if defined(__x86_64__) && !defined(MPIX_ROWS_PLAIN)
/* Under -ffast-math programs flush denormals; some trap on overflow, or round another way. The sums
 * don't care, and leave no trace. */
START_TEST(test_caller_modes) {
    static const unsigned modes[] = {0x8040 | 0x1f80, 0x6000 | 0x1f80, 0x2000 | 0x1f80, 0x0000};
    const mpix_rows_ops *ops[3];
    int nops = ref_variants(ops);
    float x[3][100], y[100], want[100];
    mpix_row_term terms[3];
    rnd_seed(200);
    for (int t = 0; t < 3; t++) {
        /* denormals, ordinary numbers, and numbers that overflow together */
        for (int i = 0; i < 100; i++)
            x[t][i] = (float)(1 + rnd_below(1000)) * (i % 3 == 0   ? 0x1p-149f
                                                      : i % 3 == 1 ? 0.1f
                                                                   : 0x1p118f);
        terms[t] = (mpix_row_term){.x = x[t], .w = {0.7f}, .nw = t % 2};
    }
    mpix_row_sum sum = {.y = y, .nterms = 3, .terms = terms};
    for (size_t c = 0; c < 100; c++) {
        uint32_t bits = (uint32_t)ref_sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, c);
        memcpy(&want[c], &bits, 4);
    }
    for (int run = 0; run < nops; run++) {
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            unsigned before = _mm_getcsr();
            _mm_setcsr(modes[m]);
            if (_mm_getcsr() != modes[m]) { /* valgrind knows the rounding only */
                _mm_setcsr(before);
                continue;
            }
            ops[run]->sum(&sum, MPIX_EP_F32, MPIX_EP_NO_SCALES, MPIX_EP_F32, 100, 0);
            unsigned after = _mm_getcsr();
            _mm_setcsr(before);
            ck_assert_uint_eq(after, modes[m]);
            ck_assert_msg(memcmp(y, want, sizeof y) == 0, "%s: another result in mode %#x",
                          ops[run]->name, modes[m]);
        }
    }
}
END_TEST
#endif

TCase *rows_sum_tests(void) {
    TCase *tc = tcase_create("sum");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_random, 0, 24);
    tcase_add_loop_test(tc, test_long_rows, 0, 24);
    tcase_add_loop_test(tc, test_special_values, 0, 24);
    tcase_add_test(tc, test_first_nan);
    tcase_add_test(tc, test_no_fused_multiply);
    tcase_add_test(tc, test_group_order);
    tcase_add_test(tc, test_zeros);
    tcase_add_test(tc, test_in_place);
#if defined(__x86_64__) && !defined(MPIX_ROWS_PLAIN)
    tcase_add_test(tc, test_caller_modes);
#endif
    return tc;
}
