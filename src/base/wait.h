/*
 * wait.h - bounded waiting on words that other processes write.
 *
 * A waiter spins briefly, then yields, then sleeps on its own doorbell, a futex in its window
 * that writers ring after they have published something. The waiter announces itself (sleepers =
 * 1), the caller checks its condition once more, then the waiter sleeps on the sequence number
 * it read before announcing. A writer publishes, fences, and rings only if it sees a sleeper.
 * Either the writer sees the announcement and moves the sequence, so the sleep returns at once,
 * or the waiter's check sees what was published: both sides put a sequentially consistent fence
 * between their store and their load. Sleeps are at most 20 ms, so a death or a time-out is
 * noticed without a ring.
 */
#ifndef MPIX_BASE_WAIT_H
#define MPIX_BASE_WAIT_H
#include <stdatomic.h>
#include <stdint.h>

typedef struct mpix_doorbell {
    _Alignas(64) _Atomic uint32_t seq;
    _Atomic uint32_t sleepers;
} mpix_doorbell;

typedef struct mpix_wait {
    mpix_doorbell *bell; /* of this rank; NULL: sleeps are timed only */
    uint64_t start_ns, spin_ns, yield_ns;
    uint32_t seq;
    int announced;
    int rounds;
    int slept; /* times this waiter slept: check for deaths and the time limit
                * when it grows */
} mpix_wait;

static inline void mpix_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* spin_us as the parameter; oversubscribed: more ranks than cores, do not spin. */
void mpix_wait_start(mpix_wait *wait, mpix_doorbell *bell, int spin_us, int oversubscribed);
/* One pause; the caller checks its condition between pauses. */
void mpix_wait_pause(mpix_wait *wait);
/* To be called when the condition holds: withdraws an announcement. */
void mpix_wait_end(mpix_wait *wait);
/* Wakes the owner of a doorbell if it sleeps. The caller has published with a release
 * store before. */
void mpix_doorbell_ring(mpix_doorbell *bell);
#endif
