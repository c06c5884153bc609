/* test_rows_copy.c - copies and zeros of rows at any size and alignment between guard pages; the
 * fence; the tables. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "rows_ref.h"

enum { MAX_DST = 9 };

/* One copy from a guarded source to guarded destinations, each at an alignment of its own or all at
 * the same one. */
static void check_copy(const mpix_rows_ops *ops, size_t n, int ndst, int streaming, int where,
                       int same) {
    size_t offset = rnd_below(80);
    guarded src = guarded_new(n, where, where == GUARD_END && rnd_below(2) ? 0 : rnd_below(80)),
            dst[MAX_DST];
    void *to[MAX_DST];
    for (size_t i = 0; i < n; i++)
        src.p[i] = (char)rnd();
    for (int d = 0; d < ndst; d++) {
        dst[d] = guarded_new(n, where, same ? offset : rnd_below(3) ? rnd_below(80) : 0);
        to[d] = dst[d].p;
    }
    ops->copy(src.p, n, to, ndst, streaming);
    ops->fence();
    for (int d = 0; d < ndst; d++) {
        if (memcmp(dst[d].p, src.p, n) != 0)
            ck_abort_msg("%s: copy %d of %zu bytes to %d places differs", ops->name, d, n, ndst);
        guarded_check(&dst[d]);
        guarded_free(&dst[d]);
    }
    guarded_free(&src);
}

/* _i: variant, streaming, end. */
static const mpix_rows_ops *loop_ops(int i) { return mpix_rows_get(MPIX_ISA_PORTABLE + i % 3); }

START_TEST(test_copy) {
    const mpix_rows_ops *ops = loop_ops(_i);
    int streaming = _i / 3 % 2, where = _i / 6;
    if (!ops)
        return;
    rnd_seed((uint64_t)_i);
    for (size_t n = 0; n <= 300; n++)
        check_copy(ops, n, 1 + (int)(n % MAX_DST), streaming, where, 0);
    for (int i = 0; i < 250; i++) /* around the sizes of lines and blocks */
        check_copy(ops, (size_t)(1 + rnd_below(4)) * 4096 - 130 + rnd_below(260),
                   1 + (int)rnd_below(MAX_DST), streaming, where, i % 2);
    for (int ndst = 0; ndst <= MAX_DST; ndst++) {
        check_copy(ops, 14336, ndst, streaming, where, 1);
        check_copy(ops, 14336 + rnd_below(9000), ndst, streaming, where, 0);
    }
}
END_TEST

START_TEST(test_zero) {
    const mpix_rows_ops *ops = loop_ops(_i);
    int streaming = _i / 3 % 2, where = _i / 6;
    if (!ops)
        return;
    rnd_seed((uint64_t)_i);
    for (size_t i = 0; i < 900; i++) {
        size_t n = i <= 300 ? i : rnd_below(9000);
        guarded g = guarded_new(n, where, rnd_below(3) ? rnd_below(80) : 0);
        ops->zero(g.p, n, streaming);
        ops->fence();
        for (size_t k = 0; k < n; k++)
            if (g.p[k] != 0)
                ck_abort_msg("%s: byte %zu of %zu is not zero", ops->name, k, n);
        guarded_check(&g);
        guarded_free(&g);
    }
}
END_TEST

/* A reader that sees the signal sees the whole row. Its end is a part of a line, which waits
 * longest in a write-combining buffer. */
enum { FENCE_ROW = 14336 + 32, FENCE_ROWS = 3000 };
static struct {
    const mpix_rows_ops *ops;
    char *window;
    _Atomic uint64_t signal, seen;
} fenced;

static void fence_await(_Atomic uint64_t *word, uint64_t epoch) {
    for (int spins = 0; atomic_load_explicit(word, memory_order_acquire) != epoch; spins++)
        if (spins % 1000 == 999) /* the machine may be busy */
            sched_yield();
}

static void *fence_writer(void *arg) {
    char *row = aligned_alloc(64, FENCE_ROW + 32);
    (void)arg;
    for (uint64_t epoch = 1; epoch <= FENCE_ROWS; epoch++) {
        for (size_t i = 0; i < FENCE_ROW; i += 8)
            memcpy(row + i, &epoch, 8);
        fence_await(&fenced.seen, epoch - 1);
        fenced.ops->copy(row, FENCE_ROW, (void *[]){fenced.window}, 1, 1);
        fenced.ops->fence();
        atomic_store_explicit(&fenced.signal, epoch, memory_order_release);
    }
    free(row);
    return NULL;
}

START_TEST(test_fence) {
    pthread_t writer;
    int stale = 0;
    fenced.ops = loop_ops(_i);
    if (!fenced.ops)
        return;
    fenced.window = aligned_alloc(64, FENCE_ROW + 32);
    memset(fenced.window, 0, FENCE_ROW);
    ck_assert_int_eq(pthread_create(&writer, NULL, fence_writer, NULL), 0);
    for (uint64_t epoch = 1; epoch <= FENCE_ROWS; epoch++) {
        fence_await(&fenced.signal, epoch);
        for (size_t i = FENCE_ROW; i >= 8; i -= 8) /* the last written first */
            stale += memcmp(fenced.window + i - 8, &epoch, 8) != 0;
        atomic_store_explicit(&fenced.seen, epoch, memory_order_release);
    }
    pthread_join(writer, NULL);
    free(fenced.window);
    ck_assert_int_eq(stale, 0);
}
END_TEST

START_TEST(test_tables) {
    static const char *const names[] = {"portable", "avx2", "avx512"};
    const mpix_rows_ops *best = mpix_rows_get(MPIX_ISA_PORTABLE);
    ck_assert_ptr_nonnull(best);
    for (int isa = MPIX_ISA_PORTABLE; isa <= MPIX_ISA_AVX512; isa++) {
        const mpix_rows_ops *ops = mpix_rows_get(isa);
        if (ops)
            ck_assert_str_eq(ops->name, names[isa - MPIX_ISA_PORTABLE]);
        best = ops ? ops : best;
    }
    ck_assert_ptr_eq(mpix_rows_get(MPIX_ISA_AUTO), best);
    ck_assert_ptr_null(mpix_rows_get(MPIX_ISA_AVX512 + 1));
    ck_assert_ptr_null(mpix_rows_get(-1));
}
END_TEST

START_TEST(test_dtypes) {
    static const struct {
        int dtype;
        size_t size;
        const char *name;
    } dtypes[] = {{MPIX_EP_BYTES, 1, "bytes"},  {MPIX_EP_F64, 8, "f64"},
                  {MPIX_EP_F32, 4, "f32"},      {MPIX_EP_F16, 2, "f16"},
                  {MPIX_EP_BF16, 2, "bf16"},    {MPIX_EP_F8E4M3, 1, "f8e4m3"},
                  {MPIX_EP_F8E5M2, 1, "f8e5m2"}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        ck_assert_uint_eq(mpix_dtype_size(dtypes[i].dtype), dtypes[i].size);
        ck_assert_str_eq(mpix_dtype_name(dtypes[i].dtype), dtypes[i].name);
    }
    ck_assert_uint_eq(mpix_dtype_size(-1), 0);
    ck_assert_uint_eq(mpix_dtype_size(0), 0);
    ck_assert_uint_eq(mpix_dtype_size(MPIX_EP_BYTES + 1), 0);
    ck_assert_ptr_nonnull(mpix_dtype_name(MPIX_EP_BYTES + 1));
    ck_assert_ptr_nonnull(mpix_dtype_name(0));
}
END_TEST

TCase *rows_copy_tests(void) {
    TCase *tc = tcase_create("copy");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_copy, 0, 12);
    tcase_add_loop_test(tc, test_zero, 0, 12);
    tcase_add_loop_test(tc, test_fence, 0, 3);
    tcase_add_test(tc, test_tables);
    tcase_add_test(tc, test_dtypes);
    return tc;
}
