/* test_proxy_credit.c - unit tests of the proxy: limits, credit, what waits for a completion. */
#include "config.h"

#include <string.h>

#include "tests/unit/proxy_fixture.h"

/* A lane takes `proxy_depth` commands, then waits for completions; the FIFO and the descriptors are
 * limits of their own. */
START_TEST(limits) {
    uint64_t seq;
    int n;

    set("proxy_depth", "5"); /* rounded up to 8 */
    open_proxy("null", "caller", "ordered");
    for (n = 0; mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 16, 0, &seq) == 1; n++)
        ;
    ck_assert_int_eq(n, 8);
    steps(1);
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 16, 0, &seq), 1);
    mpix_proxy_free(proxy);

    set("proxy_depth", "256");
    set("fifo_slots", "4");
    open_proxy("null", "caller", "ordered");
    for (n = 0; mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 16, 0, &seq) == 1; n++)
        ;
    ck_assert_int_eq(n, 4);
    mpix_proxy_free(proxy);

    set("fifo_slots", "64");
    set("proxy_descs", "3");
    open_proxy("null", "caller", "ordered");
    for (n = 0; mpix_proxy_put(proxy, 0, 0, FROM, 1, TO, 0, 16, 0, &seq) == 1; n++)
        ;
    ck_assert_int_eq(n, 3);
    /* this one needs none */
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 16, 0, &seq), 1);
    steps(1);
    ck_assert_int_eq(mpix_proxy_signal(proxy, 0, 0, WORDS, 0, 1, 0, 0, &seq), 1);
    wait_completed(seq);
}
END_TEST

static uint32_t most_ops;
static uint64_t most_bytes;
static int post_most; /* operations that a post takes */

/* Holds completions back, and sees how much is in flight. */
static uint32_t flight_ops;
static uint64_t flight_bytes, flight_len[64];

static int credit_post(mpix_net *net, const mpix_net_op *ops, int n) {
    int taken = n < post_most ? n : post_most, posted;

    ck_assert_int_gt(n, 0);
    posted = real->post(net, ops, taken);
    for (int i = 0; i < posted; i++) {
        flight_len[flight_ops++] = ops[i].len;
        flight_bytes += ops[i].len;
    }
    most_ops = flight_ops > most_ops ? flight_ops : most_ops;
    most_bytes = flight_bytes > most_bytes ? flight_bytes : most_bytes;
    return posted;
}

/* One completion at a time, oldest first. */
static int credit_poll(mpix_net *net, mpix_net_done *done, int max) {
    mpix_net_done all[8];

    ck_assert_int_gt(max, 0);
    (void)real->poll(net, all, 8);
    if (flight_ops == 0)
        return 0;
    *done = (mpix_net_done){.n = 1};
    flight_bytes -= flight_len[0];
    memmove(flight_len, flight_len + 1, --flight_ops * sizeof *flight_len);
    return 1;
}

START_TEST(credit) {
    static const struct {
        const char *ops, *bytes;
        uint32_t most;
        uint64_t bytes_most;
    } cases[] = {{"3", "0", 3, 3000},
                 {"0", "2500", 40, 2500},
                 {"64", "100", 1, 1000},
                 {"1", "1m", 1, 1000}};

    for (size_t c = 0; c < 2 * sizeof cases / sizeof *cases; c++)
        for (post_most = 1; post_most <= 64; post_most += 21) {
            uint64_t seq = 0, before, start;
            set("credit_ops", cases[c / 2].ops);
            set("credit_bytes", cases[c / 2].bytes);
            set("max_op", "1000");
            open_proxy("shmem", "caller", c & 1 ? "ordered" : "counted");
            hook();
            hooked.post = credit_post;
            hooked.poll = credit_poll;
            most_ops = flight_ops = 0;
            most_bytes = flight_bytes = 0;
            for (int i = 0; i < 10; i++)
                seq = put((uint64_t)i * 3000, (uint64_t)i * 3000, 2500, 0);
            seq = signal_word(1, c + 1 + 100u * (unsigned)post_most, 0, 10);
            start = mpix_clock_ns();
            for (before = 0; before < seq;) { /* one operation at a time is complete: numbers grow,
                                                 none is told too early */
                uint64_t now = mpix_proxy_completed(proxy, 0, 0);
                ck_assert_uint_ge(now, before);
                ck_assert_uint_le(now, seq);
                before = now;
                steps(1);
                ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
            }
            ck_assert_uint_le(most_ops, cases[c / 2].most);
            ck_assert_uint_le(most_bytes, cases[c / 2].bytes_most);
            if (post_most > 40)
                ck_assert_uint_ge(most_bytes, cases[c / 2].bytes_most - 500);
            ck_assert_uint_eq(word(1), c + 1 + 100u * (unsigned)post_most);
            for (int i = 0; i < 10; i++)
                ck_assert_int_eq(memcmp(from + i * 3000, to + i * 3000, 2500), 0);
            mpix_proxy_free(proxy);
            proxy = NULL;
        }
}
END_TEST

/* Headers are sent from one place per counter: the next one waits until the last is complete. */
START_TEST(mirror_waits) {
    uint64_t messages, bytes, seq;

    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.post = credit_post;
    hooked.poll = no_poll;
    post_most = 64;
    flight_ops = 0;
    flight_bytes = 0;
    signal_word(0, 1, 2, 0);
    seq = signal_word(0, 2, 2, 0);
    steps(3);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, 1);
    ck_assert_uint_eq(word(0), 1);
    hooked.poll = real->poll;
    wait_completed(seq);
    steps(1);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, 2);
    ck_assert_uint_eq(word(0), 2);
}
END_TEST

static int no_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    (void)net, (void)arrivals, (void)max;
    return 0;
}

/* A peer that does not poll: what the network can't take stays with the proxy, and goes when
 * there is room. */
START_TEST(no_room_at_peer) {
    uint64_t messages, bytes, seq;

    set("proxy_depth", "1024");
    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.poll_arrivals = no_arrivals;
    for (int i = 0; i < 700; i++)
        put((uint64_t)i * 16, (uint64_t)i * 16, 16, 4);
    seq = signal_word(2, 9, 4, 700);
    steps(50);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, 256);
    ck_assert_uint_lt(mpix_proxy_completed(proxy, 0, 0), seq);
    hooked.poll_arrivals = real->poll_arrivals;
    wait_completed(seq);
    steps(20);
    ck_assert_uint_eq(word(2), 9);
    ck_assert_int_eq(memcmp(from, to, 700 * 16), 0);
}
END_TEST

void credit_tests(TCase *all) {
    tcase_add_test(all, limits);
    tcase_add_test(all, credit);
    tcase_add_test(all, mirror_waits);
    tcase_add_test(all, no_room_at_peer);
}
