/*
 * proxy_thread.c - a part's own thread: turns while there is work, then spins, yields, and sleeps.
 *
 * Sleep. The thread announces itself (sleeping = 1), fences, arms the net, makes one more turn, and
 * only if that did nothing polls the net's descriptor and its eventfd. A producer queues its
 * command, fences, and writes the eventfd if it sees the announcement. Both put a sequentially
 * consistent fence between their store and their load: either the producer sees the announcement,
 * and the eventfd ends the sleep, or the thread's last turn sees the command. What arrives from the
 * network after the net was armed makes its descriptor readable. A sleep is bounded all the same,
 * for what no descriptor tells: a queue at the peer that has room again, the death of a process;
 * and it is short where kernels queue commands, for they can't make system calls.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/topo.h"
#include "base/trace.h"

enum {
    THREAD_SPIN_NS = 20000,   /* an answer over a network takes microseconds */
    THREAD_YIELD_NS = 200000, /* then others may have the core */
    THREAD_SLICE_NS = 100000, /* the shortest there is */
    THREAD_SLEEP_MS = 50,     /* nothing to do */
    THREAD_BLOCKED_MS = 1,    /* work that the net does not take now, a net without a descriptor, or
                               * kernels, which can't wake anybody */
    THREAD_GPU_US = 50,       /* the same, as long as kernels have queued something in the last */
    THREAD_GPU_BUSY_MS = 20,
    THREAD_SPINS = 64 /* turns between two looks at the clock */
};

static inline void thread_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/*
 * Some 0.1 us after a turn that found work. A consumer on the heels of its producer reads the cache
 * line that is being written, which costs both more than it gains: 20 instead of 16 million
 * commands/s between distant cores.
 */
static void thread_let_produce(void) {
    for (int i = 0; i < 6; i++)
        thread_relax();
}

void proxy_lock(proxy_part *part) {
    for (int i = 0; !proxy_try_lock(part); i++)
        if (i > 100)
            sched_yield();
        else
            thread_relax();
}

static void thread_ring(proxy_part *part) {
    const uint64_t one = 1;

    while (write(part->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* The exchange lets one of many producers make the system call. */
void proxy_wake(proxy_part *part) {
    if (!part->threaded)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&part->sleeping, memory_order_relaxed) &&
        atomic_exchange_explicit(&part->sleeping, 0, memory_order_relaxed))
        thread_ring(part);
}

static int thread_turn(proxy_part *part) {
    int happened;

    if (!proxy_try_lock(part))
        return -1; /* windows are being registered */
    happened = proxy_turn(part);
    proxy_unlock(part);
    return happened;
}

static void thread_doze(proxy_part *part, uint64_t idle_ns) {
    struct pollfd fds[2] = {{.fd = part->wake_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    int happened = 0, blocked = 0, gpu, armed;
    uint64_t drained;

    if (!proxy_try_lock(part))
        return;
    atomic_store_explicit(&part->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    armed = part->net->ops->arm(part->net, &fds[1].fd) == 0;
    happened = proxy_turn(part);
    gpu = part->gpu != NULL;
    blocked = part->nactive > 0 || !armed || fds[1].fd < 0 || gpu;
    part->sleeps += !happened;
    proxy_unlock(part);

    if (!happened && !atomic_load_explicit(&part->stop, memory_order_acquire)) {
        mpix_trace_begin("proxy", "sleep", (uint64_t)(uintptr_t)part, -1, -1);
        struct timespec nap = {0, gpu && idle_ns < THREAD_GPU_BUSY_MS * 1000000u
                                      ? THREAD_GPU_US * 1000
                                      : THREAD_BLOCKED_MS * 1000000};
        (void)(blocked ? ppoll(fds, 2, &nap, NULL) : poll(fds, 2, THREAD_SLEEP_MS));
        mpix_trace_end("proxy", "sleep", (uint64_t)(uintptr_t)part);
    }
    atomic_store_explicit(&part->sleeping, 0, memory_order_relaxed);
    if (fds[0].revents & POLLIN)
        (void)!read(part->wake_fd, &drained, sizeof drained);
    proxy_lock(part);
    if (armed)
        part->net->ops->ack(part->net);
    proxy_unlock(part);
}

static void *thread_main(void *arg) {
    proxy_part *part = arg;
    uint64_t idle_since = 0;
    /* Where a turn is a system call, 64 of them would keep the core from others for longer than it
     * is meant to spin. */
    unsigned idle = 0, spins = part->net->caps.target_works ? 1 : THREAD_SPINS;

    while (!atomic_load_explicit(&part->stop, memory_order_acquire)) {
        int happened = thread_turn(part);
        uint64_t idle_ns;

        if (happened > 0) {
            idle = 0;
            thread_let_produce();
            continue;
        }
        if (idle++ == 0)
            idle_since = mpix_clock_ns();
        else if (idle % spins != 0 && part->spin_ns > 0) {
            thread_relax();
            continue;
        }
        idle_ns = mpix_clock_ns() - idle_since;
        if (idle_ns < part->spin_ns)
            thread_relax();
        else if (idle_ns < part->spin_ns + THREAD_YIELD_NS || happened < 0)
            sched_yield();
        else
            thread_doze(part, idle_ns);
    }
    return NULL;
}

/*
 * A thread that wakes for one command and sleeps again should not wait for the end of another's
 * slice of the core. From Linux 6.12 a thread may ask for short slices of its own, which puts it
 * before others when it wakes (measured: 30 us from the command to its completion, without it 950
 * us when the scheduler wakes it on the producer's core). Older kernels ignore it.
 */
static void thread_ask_short_slices(void) {
#ifdef SYS_sched_setattr
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr};

    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != SCHED_OTHER)
        return;
    attr.runtime = THREAD_SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
#endif
}

typedef struct thread_start {
    proxy_part *part;
    int main_pu;
} thread_start;

/* A rank that is bound to a part of its host knows where it runs, and its helpers get other PUs
 * of that part. */
static void *thread_begin(void *arg) {
    const thread_start start = *(thread_start *)arg;
    int pu = mpix_topo_bind_helper(start.main_pu, start.part->index);

    free(arg);
    thread_ask_short_slices();
    if (pu >= 0)
        mpix_log(MPIX_LOG_DEBUG, "thread %d of the proxy is bound to PU %d", start.part->index, pu);
    return thread_main(start.part);
}

int proxy_thread_start(proxy_part *part, const mpix_params *params) {
    const mpix_topo *topo = mpix_topo_get();
    int oversubscribed = part->boot->local_size >= topo->pus_host || topo->pus < 2, kind;
    thread_start *start = malloc(sizeof *start);
    char name[16];

    if (!start)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the start of the proxy's thread");
    part->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (part->wake_fd < 0) {
        int err = errno;
        free(start);
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "eventfd of the proxy's thread");
    }
    part->spin_ns = params->spin_us >= 0 ? (uint64_t)params->spin_us * 1000u
                    : oversubscribed     ? 0
                                         : THREAD_SPIN_NS;
    *start = (thread_start){part, topo->pus < topo->pus_host ? sched_getcpu() : -1};
    part->threaded = 1;
    snprintf(name, sizeof name, "mpixep-proxy%d", part->index);
    kind = mpix_thread_start(&part->thread, name,
                             "a thread of the proxy (parameters proxy, proxy_threads)",
                             thread_begin, start);
    if (kind) {
        free(start);
        part->threaded = 0;
    }
    return kind;
}

/* The thread never waits for a peer, so neither does its end. */
void proxy_thread_stop(proxy_part *part) {
    if (part->threaded) {
        atomic_store_explicit(&part->stop, 1, memory_order_release);
        thread_ring(part);
        pthread_join(part->thread, NULL);
        part->threaded = 0;
        /* another thread may be started */
        atomic_store_explicit(&part->stop, 0, memory_order_relaxed);
    }
    if (part->wake_fd >= 0)
        close(part->wake_fd);
    part->wake_fd = -1;
}
