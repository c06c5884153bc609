/* test_chaos_order.c - unit tests of the transport chaos: what it reorders, delays and keeps. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "mem/shared.h"
#include "tests/unit/chaos_fixture.h"

/* Everything lands once and whole, whatever the seed; over the seeds order is broken and writes are
 * seen in part. */
START_TEST(reorders) {
    int inverted = 0, partial = 0, arrivals = 0;

    for (int seed = 1; seed <= 20; seed++) {
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        ck_assert_int_eq(net->caps.ordered, 0);
        ck_assert_ptr_nonnull(strstr(net->caps.why, "chaos_reorder"));
        memset(to, 0, BYTES);
        seen s = run(seed & 1, 1000);
        whole(&s, seed & 1);
        inverted += s.inverted;
        partial += s.partial;
        arrivals += s.arrivals_inverted;
        close_net();
    }
    ck_assert_int_gt(inverted, 10);
    ck_assert_int_gt(partial, 2);
    ck_assert_int_gt(arrivals, 5);
}
END_TEST

START_TEST(keeps_order) {
    int partial = 0;

    set("chaos_reorder", "no");
    for (int seed = 1; seed <= 20; seed++) {
        set_seed(seed);
        set("chaos_pieces", seed & 2 ? "1" : "8");
        ck_assert_int_eq(open_net(), 0);
        ck_assert_int_eq(net->caps.ordered, 1);
        memset(to, 0, BYTES);
        seen s = run(seed & 1, 1000);
        whole(&s, seed & 1);
        ck_assert_int_eq(s.inverted, 0);
        ck_assert_int_eq(s.arrivals_inverted, 0);
        ck_assert_int_eq(s.partial && (seed & 2), 0);
        partial += s.partial;
        close_net();
    }
    ck_assert_int_gt(partial, 2);
}
END_TEST

/* A word behind the writes of its lane: whoever sees it sees them. */
START_TEST(word_after_writes) {
    set("chaos_reorder", "no");
    for (int seed = 1; seed <= 30; seed++) {
        mpix_net_op ops[OPS + 1];
        seen s = {0};
        const uint64_t *word = (const uint64_t *)(void *)(to + OPS * LEN);
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        memset(to, 0, BYTES);
        for (int i = 0; i < OPS; i++)
            ops[i] = write_op(i, 0);
        ops[OPS] = (mpix_net_op){.op = MPIX_NET_WORD,
                                 .rmem = rmem,
                                 .roff = OPS * LEN,
                                 .len = 8,
                                 .value = 77,
                                 .counter = -1};
        ck_assert_int_eq(net->ops->post(net, ops, OPS + 1), OPS + 1);
        for (int i = 0; i < 1000 && s.done < OPS; i++) {
            mpix_net_done done[4];
            int n = net->ops->poll(net, done, 4);
            for (int k = 0; k < n; k++)
                s.done += done[k].n;
            for (int k = 0; *word && k < OPS; k++)
                if (landed(k) != 2)
                    ck_abort_msg("the word came before write %d", k);
        }
        for (int i = 0; i < 100 && *word == 0; i++)
            poll_once(&(seen){.done = 0});
        ck_assert_uint_eq(*word, 77);
        close_net();
    }
}
END_TEST

/* The same seed gives the same order, another one another. */
START_TEST(by_seed) {
    seen first, again;
    int differs = 0;

    for (int seed = 1; seed <= 8; seed++) {
        set_seed(1);
        ck_assert_int_eq(open_net(), 0);
        memset(to, 0, BYTES);
        first = run(1, 1000);
        close_net();
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        memset(to, 0, BYTES);
        again = run(1, 1000);
        close_net();
        int same = memcmp(first.order, again.order, sizeof first.order) == 0 &&
                   memcmp(first.arrivals, again.arrivals, sizeof first.arrivals) == 0;
        if (seed == 1)
            ck_assert_int_eq(same, 1);
        differs += !same;
    }
    ck_assert_int_eq(differs, 7);
}
END_TEST

START_TEST(delays) {
    set("chaos_delay_us", "20000");
    ck_assert_int_eq(open_net(), 0);
    seen s = run(1, 1 << 30);
    whole(&s, 1);
    ck_assert_uint_gt(s.ns, 5000000);
}
END_TEST

/* The source is read until the completion is told: what is written there too early shows
 * at the target. */
START_TEST(reads_late) {
    int late = 0;

    for (int seed = 1; seed <= 10; seed++) {
        mpix_net_op op;
        mpix_net_done done;
        char old = from[0];
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        op = write_op(0, 0);
        memset(to, 0, BYTES);
        ck_assert_int_eq(net->ops->post(net, &op, 1), 1);
        from[0] = 99;
        for (int i = 0; i < 100 && net->ops->poll(net, &done, 1) == 0; i++)
            ;
        late += to[0] == 99;
        from[0] = old;
        close_net();
    }
    ck_assert_int_eq(late, 10);
}
END_TEST

void chaos_order_tests(TCase *all) {
    tcase_add_test(all, reorders);
    tcase_add_test(all, keeps_order);
    tcase_add_test(all, word_after_writes);
    tcase_add_test(all, by_seed);
    tcase_add_test(all, delays);
    tcase_add_test(all, reads_late);
}
