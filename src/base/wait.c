/* wait.c - bounded waiting: spin, yield, sleep on a doorbell. The argument is in wait.h. */
#include "config.h"

#include "base/clock.h"
#include "base/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_DEFAULT_NS 20000u /* free cores: a peer's store arrives within microseconds */
#define SHORT_ROUNDS 64        /* pauses without a look at the clock */
#define YIELD_NS 2000000u      /* then yield: a peer that needs this core gets it */
#define SLEEP_NS 20000000      /* longest sleep, so that deaths and time limits are seen */

void mpix_wait_start(mpix_wait *wait, mpix_doorbell *bell, int spin_us, int oversubscribed) {
    wait->bell = bell;
    wait->start_ns = 0;
    wait->spin_ns = spin_us >= 0 ? (uint64_t)spin_us * 1000u : oversubscribed ? 0 : SPIN_DEFAULT_NS;
    wait->yield_ns = YIELD_NS;
    wait->announced = 0;
    wait->rounds = 0;
    wait->slept = 0;
}

static void wait_sleep(mpix_wait *wait) {
    if (!wait->bell) {
        struct timespec t = {0, 200000};
        nanosleep(&t, NULL);
        wait->slept++;
        return;
    }
    if (!wait->announced) { /* the caller checks once more before the sleep */
        wait->seq = atomic_load_explicit(&wait->bell->seq, memory_order_relaxed);
        atomic_store_explicit(&wait->bell->sleepers, 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        wait->announced = 1;
        return;
    }
    struct timespec t = {0, SLEEP_NS};
    syscall(SYS_futex, &wait->bell->seq, FUTEX_WAIT, wait->seq, &t, NULL, 0);
    wait->announced = 0;
    atomic_store_explicit(&wait->bell->sleepers, 0, memory_order_relaxed);
    wait->slept++;
}

void mpix_wait_pause(mpix_wait *wait) {
    if (wait->announced) {
        wait_sleep(wait);
        return;
    }
    /* what comes now comes soon: looking at the clock would cost more than the wait */
    if (wait->spin_ns && wait->rounds < SHORT_ROUNDS) {
        wait->rounds++;
        mpix_cpu_relax();
        return;
    }
    if (wait->start_ns == 0)
        wait->start_ns = mpix_clock_ns();
    uint64_t waited = mpix_clock_ns() - wait->start_ns;
    if (waited < wait->spin_ns) {
        for (int i = 0; i < 8; i++)
            mpix_cpu_relax();
    } else if (waited < wait->spin_ns + wait->yield_ns) {
        sched_yield();
    } else {
        wait_sleep(wait);
    }
}

void mpix_wait_end(mpix_wait *wait) {
    if (wait->announced)
        atomic_store_explicit(&wait->bell->sleepers, 0, memory_order_relaxed);
    wait->announced = 0;
}

void mpix_doorbell_ring(mpix_doorbell *bell) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed) == 0)
        return;
    atomic_fetch_add_explicit(&bell->seq, 1, memory_order_release);
    syscall(SYS_futex, &bell->seq, FUTEX_WAKE, 1, NULL, NULL, 0);
}
