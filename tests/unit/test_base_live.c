/* test_base_live.c - unit tests of the set of live objects. */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>

#include "boot/boot.h"
#include "base/status.h"
#include "tests/unit/base_fixture.h"

START_TEST(live_basic) {
    mpix_live entries[2];
    int a = 0, b = 0;

    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 0);
    mpix_live_remove(&a); /* nothing there */
    mpix_live_add(&entries[0], &a, MPIX_LIVE_EP);
    mpix_live_add(&entries[1], &b, MPIX_LIVE_XFER);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 1);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_HANDLE), 0);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 1);
    ck_assert_int_eq(mpix_live_check(NULL, MPIX_LIVE_EP), 0);
    mpix_live_remove(&a);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 0);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 1);
    mpix_live_remove(&b);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 0);
}
END_TEST

/* Random additions and removals against a plain array; addresses lie close together, so that
 * buckets are shared. */
START_TEST(live_random) {
    enum { N = 3000 };
    static char objects[16 * N];
    static mpix_live entries[N];
    static int tags[N];
    unsigned seed = 1;

    for (int step = 0; step < 60000; step++) {
        int i = rand_r(&seed) % N, tag = 1 + rand_r(&seed) % 6;
        /* First it grows, then it shrinks. */
        if (rand_r(&seed) % 4 < (step < 30000 ? 3 : 1)) {
            mpix_live_add(&entries[i], objects + 16 * i, tag);
            tags[i] = tag;
        } else {
            mpix_live_remove(objects + 16 * i);
            tags[i] = 0;
        }
        if (step % 500 == 0) {
            int wrong = 0;
            for (int k = 0; k < N; k++)
                for (int t = 1; t <= 6; t++)
                    wrong += mpix_live_check(objects + 16 * k, t) != (tags[k] == t);
            ck_assert_int_eq(wrong, 0);
        }
    }
    for (int k = 0; k < N; k++)
        mpix_live_remove(objects + 16 * k);
}
END_TEST

static void *live_worker(void *arg) {
    char *mine = arg;
    mpix_live entries[50];

    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 50; i++)
            mpix_live_add(&entries[i], mine + 16 * i, MPIX_LIVE_XFER);
        for (int i = 0; i < 50; i++)
            if (!mpix_live_check(mine + 16 * i, MPIX_LIVE_XFER))
                return mine;
        for (int i = 0; i < 50; i++)
            mpix_live_remove(mine + 16 * i);
    }
    return NULL;
}

START_TEST(live_threads) {
    static char objects[4][16 * 50];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, live_worker, objects[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_null(result);
    }
}
END_TEST

TCase *base_live_case(void) {
    TCase *c = tcase_create("live");

    tcase_add_test(c, live_basic);
    tcase_add_test(c, live_random);
    tcase_add_test(c, live_threads);
    return c;
}
