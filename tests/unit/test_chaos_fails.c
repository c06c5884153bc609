/* test_chaos_fails.c - unit tests of the transport chaos: what fails, and stalls. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/chaos_fixture.h"

/* The chosen operation fails, those before it on the lane complete, those after it never land. */
START_TEST(fails_at) {
    int refused = 0, later = 0;

    set("chaos_fail_at", "9");
    set("chaos_reorder", "no");
    for (int seed = 1; seed <= 16; seed++) {
        mpix_net_op ops[OPS];
        int posted;
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        memset(to, 0, BYTES);
        for (int i = 0; i < OPS; i++)
            ops[i] = write_op(i, seed & 1);
        posted = net->ops->post(net, ops, OPS);
        if (posted == -MPIX_ERRK_TRANSPORT) {
            refused++;
            ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "operation 9"));
        } else {
            seen s = {0};
            later++;
            ck_assert_int_eq(posted, OPS);
            for (int i = 0; i < 1000; i++)
                poll_once(&s);
            ck_assert_int_eq(s.failed, MPIX_ERRK_TRANSPORT);
            ck_assert_ptr_nonnull(strstr(s.text, "operation 9"));
            ck_assert_int_eq(s.done, 8);
            ck_assert_int_ne(landed(8), 2);
            /* the lane is broken */
            ck_assert_int_eq(net->ops->post(net, ops, 1), -MPIX_ERRK_TRANSPORT);
        }
        for (int i = 9; i < OPS; i++)
            ck_assert_int_eq(landed(i), 0);
        close_net();
    }
    ck_assert_int_gt(refused, 2);
    ck_assert_int_gt(later, 2);
}
END_TEST

START_TEST(fails_sometimes) {
    int failed = 0;

    for (int ppm = 0; ppm <= 1000000; ppm += 500000)
        for (int seed = 1; seed <= 20; seed++) {
            char text[16];
            mpix_net_op op;
            snprintf(text, sizeof text, "%d", ppm);
            set("chaos_fail_ppm", text);
            set_seed(seed);
            ck_assert_int_eq(open_net(), 0);
            op = write_op(0, 0);
            int bad = net->ops->post(net, &op, 1) < 0;
            for (int i = 0; i < 20 && !bad; i++) {
                mpix_net_done done = {0};
                bad = net->ops->poll(net, &done, 1) == 1 && done.kind;
            }
            ck_assert_int_eq(bad && ppm == 0, 0);
            ck_assert_int_eq(!bad && ppm == 1000000, 0);
            failed += bad && ppm == 500000;
            close_net();
        }
    ck_assert_int_gt(failed, 3);
    ck_assert_int_lt(failed, 17);
}
END_TEST

/* On another rank than this nothing fails, and nothing stalls. */
START_TEST(other_rank) {
    set("chaos_rank", "1");
    set("chaos_fail_at", "3");
    set("chaos_stall_at", "2");
    set("chaos_fail_call", "connect");
    ck_assert_int_eq(open_net(), 0);
    seen s = run(1, 1000);
    whole(&s, 1);
}
END_TEST

START_TEST(stalls) {
    set("chaos_stall_at", "5");
    ck_assert_int_eq(open_net(), 0);
    seen s = run(1, 2000);
    ck_assert_int_eq(s.done + s.narrivals + s.failed + s.norder, 0);
    close_net();
    set("chaos_stall_ms", "30");
    memset(to, 0, BYTES);
    ck_assert_int_eq(open_net(), 0);
    s = run(1, 1 << 30);
    whole(&s, 1);
    ck_assert_uint_gt(s.ns, 29000000);
    close_net();
    set("chaos_stall_thread", "yes");
    memset(to, 0, BYTES);
    ck_assert_int_eq(open_net(), 0);
    uint64_t polls = s.polls;
    s = run(1, 1 << 30);
    whole(&s, 1);
    ck_assert_uint_gt(s.ns, 29000000);
    ck_assert_uint_lt(s.polls, polls / 2); /* one of them took the time */
    close_net();
    set("chaos_stall_ms", "0");
    ck_assert_int_eq(open_net(), MPIX_ERRK_ARG);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "chaos_stall_ms"));
}
END_TEST

START_TEST(fails_in_set_up) {
    static const char *const calls[] = {"open", "address", "connect", "register", "key"};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        set("chaos_fail_call", calls[i]);
        ck_assert_int_eq(open_net(), MPIX_ERRK_TRANSPORT);
        ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "chaos_fail_call"));
        ck_assert_int_eq(net == NULL, i == 0);
        close_net();
    }
    set("chaos_fail_call", "none");
    ck_assert_int_eq(open_net(), 0);
}
END_TEST

void chaos_fails_tests(TCase *all) {
    tcase_add_test(all, fails_at);
    tcase_add_test(all, fails_sometimes);
    tcase_add_test(all, other_rank);
    tcase_add_test(all, stalls);
    tcase_add_test(all, fails_in_set_up);
}
