/* test_proxy_thread.c - unit tests of the proxy: its thread, and threads that queue commands. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/proxy_fixture.h"

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

void thread_tests(TCase *all) {
    tcase_add_test(all, producers);
    tcase_add_test(all, sleep_and_wake);
    tcase_add_test(all, restart);
}
