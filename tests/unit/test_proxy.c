/*
 * test_proxy.c - unit tests of the proxy on one rank, which is its own peer: over null, over shmem,
 * and over shmem with some of its functions replaced, to see partial posts, errors, arrivals out of
 * order and nonsense from a peer. MPI is initialized once; the tests share the process.
 */
#include "config.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/shared.h"
#include "check_suite.h"
#include "mpi_check.h"
#include "tests/unit/proxy_fixture.h"

mpix_boot *boot;
mpix_params params;
mpix_proxy *proxy;
char *from, *to;
uint64_t *words;
mpix_net_ops hooked;
const mpix_net_ops *real;
static mpix_doorbell bell;
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

const char *log_text(void) {
    static char text[16384];
    int fd = open(log_name, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

void set(const char *name, const char *value) {
    ck_assert_msg(mpix_params_set(&params, name, value) == 0, "%s", mpix_error_tls()->text);
}

void open_proxy(const char *transport, const char *who, const char *form) {
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

void hook(void) {
    real = proxy->part[0]->net->ops;
    hooked = *real;
    proxy->part[0]->net->ops = &hooked;
}

uint64_t word(int i) {
    return atomic_load_explicit((_Atomic uint64_t *)&words[i], memory_order_acquire);
}

uint64_t put(uint64_t loff, uint64_t roff, uint64_t len, uint32_t counter) {
    uint64_t seq = 0;

    while (mpix_proxy_put(proxy, 0, 0, FROM, loff, TO, roff, len, counter, &seq) != 1)
        (void)mpix_proxy_step(proxy);
    return seq;
}

uint64_t signal_word(int i, uint64_t value, uint32_t counter, uint32_t writes) {
    uint64_t seq = 0;

    while (mpix_proxy_signal(proxy, 0, 0, WORDS, (uint64_t)i * 8, value, counter, writes, &seq) !=
           1)
        (void)mpix_proxy_step(proxy);
    return seq;
}

void steps(int n) {
    while (n-- > 0)
        (void)mpix_proxy_step(proxy);
}

void wait_completed(uint64_t seq) {
    uint64_t start = mpix_clock_ns();

    while (mpix_proxy_completed(proxy, 0, 0) < seq) {
        (void)mpix_proxy_step(proxy);
        sched_yield();
        ck_assert_uint_lt(mpix_clock_ns() - start, 20000000000u);
    }
}

int no_poll(mpix_net *net, mpix_net_done *done, int max) {
    (void)net, (void)done, (void)max;
    return 0;
}

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
    tcase_add_test(all, windows);
    tcase_add_test(all, dump);
    credit_tests(all);
    counted_tests(all);
    lost_tests(all);
    thread_tests(all);
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
