/*
 * test_proxy.c - unit tests of the proxy on one rank, which is its own peer: over null, over shmem,
 * and over shmem with some of its functions replaced, to see partial posts, errors, arrivals out of
 * order and nonsense from a peer. MPI is initialized once; the tests share the process.
 */
#include "config.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/shared.h"
#include "check_suite.h"
#include "mpi_check.h"
#include "proxy/proxy_internal.h"

enum { BYTES = 1 << 16, COUNTERS = 8 };
enum { FROM, TO, WORDS };

static mpix_boot *boot;
static mpix_params params;
static mpix_proxy *proxy;
static mpix_doorbell bell;
static char *from, *to;
static uint64_t *words;
static mpix_net_ops hooked; /* shmem's, changed by a test */
static const mpix_net_ops *real;
static char log_name[] = "/tmp/mpix-test-XXXXXX";

static void fresh(void) {
    int fd = mkstemp(strcpy(log_name, "/tmp/mpix-test-XXXXXX"));

    close(fd);
    ck_assert_int_eq(mpix_params_read(&params), 0);
    mpix_log_configure(MPIX_LOG_WARN, log_name);
    memset(from, 1, BYTES);
    memset(to, 2, BYTES);
    memset(words, 0, BYTES);
}

static void close_proxy(void) {
    mpix_proxy_free(proxy);
    proxy = NULL;
    unlink(log_name);
}

static const char *log_text(void) {
    static char text[16384];
    int fd = open(log_name, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static int count_text(const char *text, const char *what) {
    int n = 0;

    while ((text = strstr(text, what)) != NULL) {
        text += strlen(what);
        n++;
    }
    return n;
}

static void set(const char *name, const char *value) {
    ck_assert_msg(mpix_params_set(&params, name, value) == 0, "%s", mpix_error_tls()->text);
}

static void open_proxy(const char *transport, const char *who, const char *form) {
    static const unsigned char want = 1;

    set("transport", transport);
    set("proxy", who);
    set("signal", form);
    ck_assert_msg(mpix_proxy_create(boot, &params, &want, COUNTERS, 0, &bell, &proxy) == 0, "%s",
                  mpix_error_tls()->text);
    ck_assert_int_eq(mpix_proxy_window(proxy, FROM, from, BYTES), 0);
    ck_assert_int_eq(mpix_proxy_window(proxy, TO, to, BYTES), 0);
    ck_assert_int_eq(mpix_proxy_window(proxy, WORDS, words, BYTES), 0);
}

/* Only with proxy=caller. */
static void hook(void) {
    real = proxy->part[0]->net->ops;
    hooked = *real;
    proxy->part[0]->net->ops = &hooked;
}

static uint64_t word(int i) {
    return atomic_load_explicit((_Atomic uint64_t *)&words[i], memory_order_acquire);
}

static uint64_t put(uint64_t loff, uint64_t roff, uint64_t len, uint32_t counter) {
    uint64_t seq = 0;

    while (mpix_proxy_put(proxy, 0, 0, FROM, loff, TO, roff, len, counter, &seq) != 1)
        (void)mpix_proxy_step(proxy);
    return seq;
}

static uint64_t signal_word(int i, uint64_t value, uint32_t counter, uint32_t writes) {
    uint64_t seq = 0;

    while (mpix_proxy_signal(proxy, 0, 0, WORDS, (uint64_t)i * 8, value, counter, writes, &seq) !=
           1)
        (void)mpix_proxy_step(proxy);
    return seq;
}

static void steps(int n) {
    while (n-- > 0)
        (void)mpix_proxy_step(proxy);
}

static void wait_completed(uint64_t seq) {
    uint64_t start = mpix_clock_ns();

    while (mpix_proxy_completed(proxy, 0, 0) < seq) {
        (void)mpix_proxy_step(proxy);
        sched_yield();
        ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
    }
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Over null: numbers grow, completion follows posting, messages and bytes are counted as
 * they were split. */
START_TEST(counts) {
    uint64_t seq[5], messages, bytes;

    set("max_op", "1000");
    open_proxy("null", "caller", "ordered");
    seq[0] = put(0, 0, 1000, 0);
    seq[1] = put(0, 0, 1001, 0);
    seq[2] = put(3, 5, 0, 0);
    seq[3] = put(0, 0, 4096, 0);
    seq[4] = signal_word(0, 1, 0, 4);
    for (int i = 1; i < 5; i++)
        ck_assert_uint_gt(seq[i], seq[i - 1]);
    ck_assert_uint_eq(mpix_proxy_completed(proxy, 0, 0), 0);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, 0);
    ck_assert_int_eq(mpix_proxy_step(proxy), 1);
    ck_assert_uint_eq(mpix_proxy_completed(proxy, 0, 0), seq[4]);
    ck_assert_int_eq(mpix_proxy_step(proxy), 0);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ck_assert_uint_eq(messages, 1 + 2 + 1 + 5 + 1);
    ck_assert_uint_eq(bytes, 1000 + 1001 + 4096 + 8);
    ck_assert_int_eq(mpix_proxy_threads(proxy), 0);
    ck_assert_int_eq(mpix_proxy_counted(proxy), 0);
}
END_TEST

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

/* ---- signals --------------------------------------------------------------------------------- */

static int no_poll(mpix_net *net, mpix_net_done *done, int max) {
    (void)net, (void)done, (void)max;
    return 0;
}

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

/* ---- failures -------------------------------------------------------------------------------- */

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

/* ---- windows --------------------------------------------------------------------------------- */

START_TEST(windows) {
    char *other = calloc(1, 4096);
    uint64_t seq;

    open_proxy("shmem", "caller", "ordered");
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, 4, 0, TO, 0, 16, 0, &seq), -MPIX_ERRK_INTERNAL);
    ck_assert_int_eq(mpix_proxy_window(proxy, MPIX_PROXY_WINDOWS, other, 4096), MPIX_ERRK_INTERNAL);
    ck_assert_int_eq(mpix_proxy_window(proxy, -1, other, 4096), MPIX_ERRK_INTERNAL);
    ck_assert_int_eq(mpix_proxy_window(proxy, 4, other, SIZE_MAX), MPIX_ERRK_ARG);
    ck_assert_int_eq(mpix_proxy_window(proxy, TO, other, 4096), 0); /* again, elsewhere */
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 4090, 16, 0, &seq),
                     -MPIX_ERRK_INTERNAL);
    wait_completed(put(0, 4000, 96, 0));
    ck_assert_int_eq(memcmp(other + 4000, from, 96), 0);
    ck_assert_int_eq(mpix_proxy_window(proxy, TO, NULL, 0), 0); /* gone */
    ck_assert_int_eq(mpix_proxy_put(proxy, 0, 0, FROM, 0, TO, 0, 1, 0, &seq), -MPIX_ERRK_INTERNAL);
    free(other);
}
END_TEST

/* ---- thread ---------------------------------------------------------------------------------- */

typedef struct feeder {
    pthread_t thread;
    int id, commands;
    uint64_t last;
} feeder;

/* Each has a part of the memory, and puts its pieces in an order of its own. */
static void *feed_thread(void *arg) {
    feeder *f = arg;
    const uint64_t part = BYTES / 8, base = (uint64_t)f->id * part;

    for (int i = 0; i < f->commands; i++) {
        uint64_t at = base + (uint64_t)i * 37 % (part - 80),
                 len = (uint64_t)(i % 5) * 16 + (uint64_t)(i % 3);
        uint64_t last = f->last;
        int queued;
        do {
            queued = mpix_proxy_put(proxy, 0, 0, FROM, at, TO, at, len, 0, &f->last);
            if (queued == 0 && !mpix_proxy_step(proxy))
                sched_yield();
        } while (queued == 0);
        if (queued < 0 || f->last <= last)
            return f;
        if (i % 1000 == 999)
            usleep(1000); /* lets the thread go to sleep now and then */
    }
    return NULL;
}

/* Several producers, who also make the turns where nobody else does. */
START_TEST(producers) {
    static const char *const who[] = {"caller", "thread"};
    uint64_t messages, bytes;
    feeder f[8];
    void *failed;

    set("proxy_depth", "16");
    set("fifo_slots", "8");
    set("proxy_descs", "4");
    set("spin_us", "0");
    for (int mode = 0; mode < 4; mode++)
        for (int n = 1; n <= 8; n += n < 4 ? 3 : 4) {
            uint64_t last = 0;
            open_proxy("shmem", who[mode % 2], mode < 2 ? "ordered" : "counted");
            for (int i = 0; i < n; i++) {
                f[i] = (feeder){.id = i, .commands = 2500};
                ck_assert_int_eq(pthread_create(&f[i].thread, NULL, feed_thread, &f[i]), 0);
            }
            for (int i = 0; i < n; i++) {
                pthread_join(f[i].thread, &failed);
                ck_assert_ptr_eq(failed, NULL);
                last = f[i].last > last ? f[i].last : last;
            }
            wait_completed(last);
            ck_assert_uint_eq(last, (uint64_t)n * 2500);
            mpix_proxy_counts(proxy, 0, &messages, &bytes);
            ck_assert_uint_eq(messages, (uint64_t)n * 2500);
            for (int i = 0; i < n; i++)
                for (uint64_t k = 0; k * 37 < BYTES / 8 - 80; k++)
                    if (k % 15) /* those put nothing */
                        ck_assert_int_eq(to[(uint64_t)i * (BYTES / 8) + k * 37], 1);
            mpix_proxy_free(proxy);
            proxy = NULL;
        }
}
END_TEST

/* It sleeps when nothing is to be done, uses next to nothing then, and wakes for a command and
 * for an arrival. */
START_TEST(sleep_and_wake) {
    static const char *const nets[] = {"null", "shmem"};
    struct rusage before, after;
    uint64_t start, best = UINT64_MAX, sleeps;
    double used;

    for (int net = 0; net < 2; net++) {
        open_proxy(nets[net], "thread", "counted");
        ck_assert_int_eq(mpix_proxy_threads(proxy), 1);
        ck_assert_int_eq(mpix_proxy_step(proxy), 0);
        usleep(50000);
        getrusage(RUSAGE_SELF, &before);
        usleep(500000);
        getrusage(RUSAGE_SELF, &after);
        used = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
                        before.ru_stime.tv_sec) +
               1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                               after.ru_stime.tv_usec - before.ru_stime.tv_usec);
        ck_assert_msg(used < 0.05, "an idle thread used %f s of 0.5 s", used);
        for (uint64_t i = 1; i <= 30; i++) {
            start = mpix_clock_ns();
            while (!atomic_load(&proxy->part[0]->sleeping) &&
                   mpix_clock_ns() - start < 10000000000u)
                usleep(500);
            ck_assert_int_eq(atomic_load(&proxy->part[0]->sleeping), 1);
            usleep(200);
            start = mpix_clock_ns();
            put(0, 0, 16, 0);
            wait_completed(signal_word(0, i, 0, 1));
            while (net == 1 && word(0) < i && mpix_clock_ns() - start < 10000000000u)
                sched_yield();
            ck_assert_int_eq(net == 0 || word(0) == i, 1);
            best = mpix_clock_ns() - start < best ? mpix_clock_ns() - start : best;
        }
        proxy_lock(proxy->part[0]);
        sleeps = proxy->part[0]->sleeps;
        proxy_unlock(proxy->part[0]);
        ck_assert_uint_ge(sleeps, 30);
        ck_assert_msg(best < 20000000,
                      "the best wake-up took %llu ns: only the bound of a sleep ended it",
                      (unsigned long long)best);
        mpix_proxy_free(proxy);
        proxy = NULL;
    }
}
END_TEST

/* Threads that were stopped are started again: a put goes without a caller's turn, each time. */
START_TEST(restart) {
    open_proxy("shmem", "caller", "ordered");
    for (uint64_t i = 1; i <= 3; i++) {
        uint64_t start = mpix_clock_ns();
        ck_assert_int_eq(mpix_proxy_start_threads(proxy, &params), 0);
        ck_assert_int_eq(mpix_proxy_threads(proxy), 1);
        (void)put(0, 0, 100, 0);
        (void)signal_word(0, i, 0, 1);
        while (word(0) != i) {
            sched_yield();
            ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
        }
        proxy_thread_stop(proxy->part[0]);
        ck_assert_int_eq(mpix_proxy_threads(proxy), 0);
    }
    wait_completed(put(0, 0, 100, 0)); /* and the caller's turns do it */
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

/* The dump says what is stuck. */
START_TEST(dump) {
    open_proxy("shmem", "caller", "counted");
    hook();
    hooked.poll = no_poll;
    put(0, 0, 5000, 2);
    steps(1);
    put(0, 0, 77, 2);
    mpix_proxy_dump(proxy);
    ck_assert_msg(strstr(log_text(), "queue 1 of 1024") != NULL, "%s", log_text());
    ck_assert_msg(strstr(log_text(), "commands 2 admitted 1 taken 1 posted 0 complete") != NULL,
                  "%s", log_text());
    ck_assert_msg(strstr(log_text(), "5000 of 16777216 bytes") != NULL, "%s", log_text());
    ck_assert_msg(strstr(log_text(),
                         "from rank 0 counter 2: 1 writes have arrived, the header has not") !=
                      NULL,
                  "%s", log_text());
}
END_TEST

int main(int argc, char **argv) {
    Suite *suite = suite_create("proxy");
    TCase *all = tcase_create("proxy");
    void *p = NULL, *q = NULL;
    int failed;

    check_mpi_init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot) || mpix_mem_shared_alloc(BYTES, &p) ||
        mpix_mem_shared_alloc(BYTES, &q))
        MPI_Abort(MPI_COMM_WORLD, 1);
    from = calloc(1, BYTES);
    to = p;
    words = q;
    tcase_add_checked_fixture(all, fresh, close_proxy);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, counts);
    tcase_add_test(all, limits);
    tcase_add_test(all, credit);
    tcase_add_test(all, counted_orders);
    tcase_add_test(all, counted_in_turn);
    tcase_add_test(all, mirror_waits);
    tcase_add_test(all, no_room_at_peer);
    tcase_add_test(all, failures);
    tcase_add_test(all, nonsense_from_peer);
    tcase_add_test(all, wrong_writes);
    tcase_add_test(all, windows);
    tcase_add_test(all, producers);
    tcase_add_test(all, sleep_and_wake);
    tcase_add_test(all, restart);
    tcase_add_test(all, abandoned);
    tcase_add_test(all, last_word_counted);
    tcase_add_test(all, dump);
    suite_add_tcase(suite, all);
    failed = check_suite_run(suite);
    mpix_mem_shared_free(to);
    mpix_mem_shared_free(words);
    free(from);
    mpix_boot_free(boot, 0);
    check_leaks();
    MPI_Finalize();
    return failed != 0;
}
