/*
 * test_proxy_lost.c - unit tests of the proxy: a peer that is lost, and an object that is given up.
 */
#include "config.h"

#include <string.h>

#include "mem/shared.h"
#include "tests/unit/proxy_fixture.h"

static int count_text(const char *text, const char *what) {
    int n = 0;

    while ((text = strstr(text, what)) != NULL) {
        text += strlen(what);
        n++;
    }
    return n;
}

static int fail_kind;

static int fail_post(mpix_net *net, const mpix_net_op *ops, int n) {
    (void)net, (void)ops, (void)n;
    return -mpix_fail(fail_kind, NULL, "the device is on fire");
}

static int fail_poll(mpix_net *net, mpix_net_done *done, int max) {
    (void)net, (void)max;
    *done = (mpix_net_done){.kind = fail_kind, .text = "transport retry counter exceeded"};
    return 1;
}

/* Latched once, with the device's words; commands for the peer are refused, and what was queued is
 * never told as complete. */
static void check_failed(int kind, const char *text) {
    MPIX_Error error;
    uint64_t seq = 7;

    ck_assert_int_eq(mpix_proxy_failed(proxy, 0, &error), kind);
    ck_assert_int_eq(error.kind, kind);
    ck_assert_int_eq(error.rank, 0);
    ck_assert_str_eq(error.host, boot->hostnames[0]);
    ck_assert_msg(strstr(error.text, text) && strstr(error.text, "shmem"), "%s", error.text);
    memset(mpix_error_tls(), 0, sizeof *mpix_error_tls());
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 16, 0, &seq), -kind);
    ck_assert_int_eq(mpix_proxy_signal(proxy, 0, 0, WORDS, 0, 1, 0, 0, &seq), -kind);
    ck_assert_str_eq(mpix_error_tls()->text, error.text);
    ck_assert_uint_eq(seq, 7);
    steps(5);
    ck_assert_uint_eq(mpix_proxy_completed(proxy, 0, 0), 0);
    ck_assert_uint_eq(word(0), 0);
}

START_TEST(failures) {
    static const int kinds[] = {MPIX_ERRK_PEER, MPIX_ERRK_TRANSPORT};
    uint64_t seq, messages, bytes;

    for (int k = 0; k < 2; k++)
        for (int by_poll = 0; by_poll < 2; by_poll++) {
            fail_kind = kinds[k];
            open_proxy("shmem", "caller", by_poll ? "counted" : "ordered");
            hook();
            hooked.post = by_poll ? real->post : fail_post;
            hooked.poll = by_poll ? fail_poll : no_poll;
            put(0, 0, 100, 0);
            put(1, 3, 100, 0);
            ck_assert_int_eq(mpix_proxy_step(proxy), 1);
            hooked.post = real->post;
            hooked.poll = real->poll;
            check_failed(kinds[k], by_poll ? "retry counter exceeded" : "on fire");
            ck_assert_int_eq(strstr(log_text(), "is lost over shmem") != NULL, 1);
            mpix_proxy_free(proxy);
            proxy = NULL;
        }
    /* A second failure changes nothing, and is not logged. */
    open_proxy("shmem", "caller", "ordered");
    hook();
    hooked.poll = fail_poll;
    fail_kind = MPIX_ERRK_PEER;
    put(0, 0, 100, 0);
    steps(1);
    fail_kind = MPIX_ERRK_TRANSPORT;
    steps(3);
    check_failed(MPIX_ERRK_PEER, "retry counter exceeded");
    ck_assert_int_eq(count_text(log_text(), "is lost over shmem"), 5);
    mpix_proxy_free(proxy);
    proxy = NULL;
    /* Commands that were queued before the failure and are taken after it are not posted. */
    open_proxy("shmem", "caller", "ordered");
    hook();
    hooked.poll = fail_poll;
    for (int i = 0; i < PROXY_BATCH + 10; i++)
        put(0, 0, 16, 0);
    steps(3);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, PROXY_BATCH);
    mpix_proxy_free(proxy);
    proxy = NULL;
    /* Commands that are in the FIFO when the peer fails: taken and dropped, their
     * descriptors given back. */
    set("proxy_descs", "2");
    fail_kind = MPIX_ERRK_PEER;
    open_proxy("shmem", "caller", "ordered");
    hook();
    hooked.poll = fail_poll;
    steps(1);
    hooked.poll = real->poll;
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 1, TO, 0, 16, 0, &seq), -MPIX_ERRK_PEER);
    steps(2);
    ck_assert_int_ge(mpix_descs_get(&proxy->part[0]->descs), 0);
    ck_assert_int_ge(mpix_descs_get(&proxy->part[0]->descs), 0);
}
END_TEST

static mpix_net_arrival nonsense;
static int nonsense_left;

static int nonsense_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    if (nonsense_left-- > 0) {
        *arrivals = nonsense;
        return 1;
    }
    return real->poll_arrivals(net, arrivals, max);
}

/* What a peer with a defect may send: latched, nothing is stored outside the windows. */
START_TEST(nonsense_from_peer) {
    static const proxy_header headers[] = {
        {.window = MPIX_PROXY_WINDOWS, .writes = 1},
        {.window = WORDS, .writes = 1, .off = 4},
        {.window = WORDS, .writes = 1, .off = BYTES},
        {.window = WORDS, .writes = 1, .off = ((uint64_t)1 << 56) - 8},
        {.window = WORDS, .writes = 1, .lane = 1},
        {.window = 5, .writes = 1}, /* not registered */
        {.window = WORDS, .writes = 0},
    };

    for (size_t i = 0; i < 1 + sizeof headers / sizeof *headers; i++) {
        open_proxy("shmem", "caller", "counted");
        hook();
        hooked.poll_arrivals = nonsense_arrivals;
        if (i == 0) {
            nonsense = (mpix_net_arrival){0, 2 * COUNTERS}; /* there is no such counter */
        } else {
            proxy->part[0]->table[3] = headers[i - 1];
            nonsense = (mpix_net_arrival){0, COUNTERS + 3};
        }
        nonsense_left = 1;
        steps(1);
        ck_assert_int_eq(mpix_proxy_failed(proxy, 0, NULL), MPIX_ERRK_INTERNAL);
        ck_assert_uint_eq(word(0), 0);
        mpix_proxy_free(proxy);
        proxy = NULL;
    }
}
END_TEST

/* A signal that says another number of puts than were queued would never complete, or too early: it
 * is a failure at once. */
START_TEST(wrong_writes) {
    open_proxy("shmem", "caller", "counted");
    put(0, 0, 100, 1);
    signal_word(0, 1, 1, 2);
    steps(2);
    check_failed(MPIX_ERRK_INTERNAL, "2 puts follows 1");
}
END_TEST

static int blocked_post(mpix_net *net, const mpix_net_op *ops, int n) {
    (void)net, (void)ops, (void)n;
    return 0;
}

static void abandon(void) {
    mpix_fail(MPIX_ERRK_TIMEOUT, NULL, "the object has failed");
    mpix_proxy_abandon(proxy, MPIX_ERRK_TIMEOUT);
}

/* What is queued when the object fails is never posted, in lanes or in the FIFO; the last word is,
 * though the lane was full; and the end takes all handles. */
START_TEST(abandoned) {
    mpix_proxy_mem *mem = NULL;
    mpix_proxy_rmem *rmem = NULL;
    char key[4096], *other = NULL;
    void *memory;
    uint64_t seq;

    set("proxy_depth", "4");
    open_proxy("shmem", "caller", "ordered");
    ck_assert_int_eq(mpix_mem_shared_alloc(BYTES, &memory), 0);
    other = memory;
    ck_assert_int_eq(mpix_proxy_mem_reg(proxy, other, BYTES, &mem), 0);
    ck_assert_uint_le(mpix_proxy_key_bytes(proxy), sizeof key);
    mpix_proxy_mem_key(proxy, mem, key);
    ck_assert_int_eq(mpix_proxy_rmem_open(proxy, 0, key, &rmem), 0);
    hook();
    hooked.post = blocked_post;
    (void)put(0, 0, 100, 0);
    steps(2);
    mpix_net_op op = {.op = MPIX_NET_WRITE, .peer = 0, .local = other, .len = 100, .counter = -1};
    ck_assert_int_eq(mpix_proxy_post(proxy, &op, mem, rmem, &seq), 1);
    (void)put(0, 0, 100, 0);
    (void)signal_word(1, 7, 0, 0);
    /* the lane is full */
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 8, 0, &seq), 0);
    abandon();
    ck_assert_int_eq(mpix_proxy_last_word(proxy, 0, 0, WORDS, 16, 9, 1), 1);
    hooked.post = real->post;
    steps(5);
    ck_assert_int_eq(to[0], 2);
    ck_assert_uint_eq(word(1), 0);
    ck_assert_uint_eq(word(2), 9);
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 8, 0, &seq), -MPIX_ERRK_TIMEOUT);
    ck_assert_int_eq(mpix_proxy_end(proxy), 0);
    mpix_mem_shared_free(memory);
    steps(3);
    mpix_proxy_rmem_close(proxy, rmem);
    mpix_proxy_mem_dereg(proxy, mem);
    ck_assert_int_eq(mpix_proxy_end(proxy), 0);
}
END_TEST

/* The same in the counted form, where the device has the lane's whole credit; and a peer that is
 * lost gets no word. */
START_TEST(last_word_counted) {
    set("credit_ops", "2");
    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.poll = no_poll;
    (void)put(0, 0, 100, 5);
    (void)put(0, 0, 100, 5);
    (void)put(0, 200, 100, 5);
    steps(3);
    ck_assert_int_eq(to[200], 2);
    abandon();
    ck_assert_int_eq(mpix_proxy_last_word(proxy, 0, 0, WORDS, 24, 11, 6), 1);
    steps(3);
    ck_assert_uint_eq(word(3), 11);
    ck_assert_int_eq(to[200], 2);
}
END_TEST

void lost_tests(TCase *all) {
    tcase_add_test(all, failures);
    tcase_add_test(all, nonsense_from_peer);
    tcase_add_test(all, wrong_writes);
    tcase_add_test(all, abandoned);
    tcase_add_test(all, last_word_counted);
}
