/* test_proxy_counted.c - unit tests of the proxy: arrivals in any order, and in order. */
#include "config.h"

#include <string.h>

#include "tests/unit/proxy_fixture.h"

static mpix_net_arrival kept[64];
static int nkept, keeping;

/* Collects arrivals; the test feeds them back in the order it likes. */
static int keep_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    int n = 0;

    nkept += real->poll_arrivals(net, kept + nkept, 64 - nkept);
    if (keeping)
        return 0;
    while (nkept > 0 && n < max) { /* last first */
        arrivals[n++] = kept[--nkept];
    }
    return n;
}

static void feed(int i) {
    mpix_net_arrival one = kept[i];

    memmove(kept + i, kept + i + 1, (size_t)(--nkept - i) * sizeof *kept);
    memmove(kept + 1, kept, (size_t)nkept * sizeof *kept);
    kept[0] = one;
    int rest = nkept;
    nkept = 1;
    keeping = 0;
    steps(1);
    keeping = 1;
    memmove(kept, kept + 1, (size_t)rest * sizeof *kept);
    nkept = rest;
}

/* Every order of the arrivals of one batch: the word is seen with the last of them,
 * never before. */
START_TEST(counted_orders) {
    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.poll_arrivals = keep_arrivals;
    nkept = 0;
    keeping = 1;
    for (int order = 0; order < 24; order++) {
        int left = order;
        for (int i = 0; i < 3; i++)
            (void)put(0, 0, 100, 5);
        signal_word(3, (uint64_t)order + 1, 5, 3);
        steps(2);
        ck_assert_int_eq(nkept, 4);
        for (int n = 4; n > 0; n--) {
            ck_assert_uint_eq(word(3), (uint64_t)order);
            feed(left % n);
            left /= n;
        }
        ck_assert_uint_eq(word(3), (uint64_t)order + 1);
    }
    ck_assert_int_eq(mpix_proxy_failed(proxy, 0, NULL), 0);
}
END_TEST

/* Batches with counters of their own that are complete in another order are seen in the order of
 * the lane: the word grows. */
START_TEST(counted_in_turn) {
    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.poll_arrivals = keep_arrivals;
    nkept = 0;
    keeping = 1;
    for (uint32_t c = 0; c < 4; c++)
        signal_word(0, c + 1, c, 0);
    steps(2);
    ck_assert_int_eq(nkept, 4);
    feed(3);
    feed(1);
    ck_assert_uint_eq(word(0), 0);
    feed(0);
    ck_assert_uint_eq(word(0), 2);
    feed(0);
    ck_assert_uint_eq(word(0), 4);
    ck_assert_int_eq(mpix_proxy_failed(proxy, 0, NULL), 0);
}
END_TEST

void counted_tests(TCase *all) {
    tcase_add_test(all, counted_orders);
    tcase_add_test(all, counted_in_turn);
}
