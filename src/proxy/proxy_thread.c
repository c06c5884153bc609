/*
 * proxy_thread.c - the proxy's own thread: turns while there is work, then spins, yields, and sleeps.
 *
 * Sleep. The thread announces itself (sleeping = 1), fences, arms the net, makes one more turn, and only if that did
 * nothing polls the net's descriptor and its eventfd. A producer queues its command, fences, and writes the eventfd if
 * it sees the announcement. Both put a sequentially consistent fence between their store and their load: either the
 * producer sees the announcement, and the eventfd ends the sleep, or the thread's last turn sees the command. What
 * arrives from the network after the net was armed makes its descriptor readable. A sleep is bounded all the same, for
 * what no descriptor tells: a queue at the peer that has room again, the death of a process; and it is short where
 * kernels queue commands, for they can't make system calls.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/topo.h"
#include "base/trace.h"

enum {
    THREAD_SPIN_NS = 20000,   /* an answer over a network takes microseconds */
    THREAD_YIELD_NS = 200000, /* then others may have the core */
    THREAD_SLICE_NS = 100000, /* the shortest there is */
    THREAD_SLEEP_MS = 50,     /* nothing to do */
    THREAD_BLOCKED_MS = 1,    /* work that the net does not take now, a net without a descriptor, or kernels, which can't wake anybody */
    THREAD_GPU_US = 50,       /* the same, as long as kernels have queued something in the last */
    THREAD_GPU_BUSY_MS = 20,
    THREAD_SPINS = 64         /* turns between two looks at the clock */
};

static inline void thread_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/*
 * Some 0.1 us after a turn that found work. A consumer on the heels of its producer reads the cache line that is being
 * written, which costs both more than it gains: 20 instead of 16 million commands/s between distant cores.
 */
static void thread_let_produce(void) {
    for (int i = 0; i < 6; i++)
        thread_relax();
}

void proxy_lock(mpix_proxy *proxy) {
    for (int i = 0; !proxy_try_lock(proxy); i++)
        if (i > 100)
            sched_yield();
        else
            thread_relax();
}

static void thread_ring(mpix_proxy *proxy) {
    const uint64_t one = 1;

    while (write(proxy->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* The exchange lets one of many producers make the system call. */
void proxy_wake(mpix_proxy *proxy) {
    if (!proxy->threaded)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&proxy->sleeping, memory_order_relaxed) &&
        atomic_exchange_explicit(&proxy->sleeping, 0, memory_order_relaxed))
        thread_ring(proxy);
}

static int thread_turn(mpix_proxy *proxy) {
    int happened;

    if (!proxy_try_lock(proxy))
        return -1; /* windows are being registered */
    happened = proxy_turn(proxy);
    proxy_unlock(proxy);
    return happened;
}

static void thread_doze(mpix_proxy *proxy, uint64_t idle_ns) {
    struct pollfd fds[2] = {{.fd = proxy->wake_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    int happened = 0, blocked = 0, gpu, armed;
    uint64_t drained;

    if (!proxy_try_lock(proxy))
        return;
    atomic_store_explicit(&proxy->sleeping, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    armed = proxy->net->ops->arm(proxy->net, &fds[1].fd) == 0;
    happened = proxy_turn(proxy);
    gpu = proxy->gpu != NULL;
    blocked = proxy->nactive > 0 || !armed || fds[1].fd < 0 || gpu;
    proxy->sleeps += !happened;
    proxy_unlock(proxy);

    if (!happened && !atomic_load_explicit(&proxy->stop, memory_order_acquire)) {
        mpix_trace_begin("proxy", "sleep", (uint64_t)(uintptr_t)proxy, -1, -1);
        struct timespec nap = {0, gpu && idle_ns < THREAD_GPU_BUSY_MS * 1000000u ? THREAD_GPU_US * 1000 : THREAD_BLOCKED_MS * 1000000};
        (void)(blocked ? ppoll(fds, 2, &nap, NULL) : poll(fds, 2, THREAD_SLEEP_MS));
        mpix_trace_end("proxy", "sleep", (uint64_t)(uintptr_t)proxy);
    }
    atomic_store_explicit(&proxy->sleeping, 0, memory_order_relaxed);
    if (fds[0].revents & POLLIN)
        (void)!read(proxy->wake_fd, &drained, sizeof drained);
    proxy_lock(proxy);
    if (armed)
        proxy->net->ops->ack(proxy->net);
    proxy_unlock(proxy);
}

static void *thread_main(void *arg) {
    mpix_proxy *proxy = arg;
    uint64_t idle_since = 0;
    /* Where a turn is a system call, 64 of them would keep the core from others for longer than it is meant to spin. */
    unsigned idle = 0, spins = proxy->net->caps.target_works ? 1 : THREAD_SPINS;

    while (!atomic_load_explicit(&proxy->stop, memory_order_acquire)) {
        int happened = thread_turn(proxy);
        uint64_t idle_ns;

        if (happened > 0) {
            idle = 0;
            thread_let_produce();
            continue;
        }
        if (idle++ == 0)
            idle_since = mpix_clock_ns();
        else if (idle % spins != 0 && proxy->spin_ns > 0) {
            thread_relax();
            continue;
        }
        idle_ns = mpix_clock_ns() - idle_since;
        if (idle_ns < proxy->spin_ns)
            thread_relax();
        else if (idle_ns < proxy->spin_ns + THREAD_YIELD_NS || happened < 0)
            sched_yield();
        else
            thread_doze(proxy, idle_ns);
    }
    return NULL;
}

/*
 * A thread that wakes for one command and sleeps again should not wait for the end of another's slice of the core. From
 * Linux 6.12 a thread may ask for short slices of its own, which puts it before others when it wakes (measured: 30 us
 * from the command to its completion, without it 950 us when the scheduler wakes it on the producer's core). Older
 * kernels ignore it.
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
    mpix_proxy *proxy;
    int main_pu;
} thread_start;

/* A rank that is bound to a part of its host knows where it runs, and the helper gets another PU of that part. */
static void *thread_begin(void *arg) {
    const thread_start start = *(thread_start *)arg;
    int pu = mpix_topo_bind_helper(start.main_pu);

    free(arg);
    thread_ask_short_slices();
    if (pu >= 0)
        mpix_log(MPIX_LOG_DEBUG, "the proxy's thread is bound to PU %d", pu);
    return thread_main(start.proxy);
}

int proxy_thread_start(mpix_proxy *proxy, const mpix_params *params) {
    const mpix_topo *topo = mpix_topo_get();
    int crowded = proxy->boot->local_size >= topo->pus_host || topo->pus < 2, err;
    thread_start *start = malloc(sizeof *start);
    sigset_t all, old;

    if (!start)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the start of the proxy's thread");
    proxy->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (proxy->wake_fd < 0) {
        err = errno;
        free(start);
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "eventfd of the proxy's thread");
    }
    proxy->spin_ns = params->spin_us >= 0 ? (uint64_t)params->spin_us * 1000u : crowded ? 0 : THREAD_SPIN_NS;
    *start = (thread_start){proxy, topo->pus < topo->pus_host ? sched_getcpu() : -1};
    proxy->threaded = 1;
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    err = pthread_create(&proxy->thread, NULL, thread_begin, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        free(start);
        proxy->threaded = 0;
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "the proxy's thread can't be started");
    }
    return 0;
}

int mpix_proxy_start_thread(mpix_proxy *proxy, const mpix_params *params) {
    return proxy->threaded ? 0 : proxy_thread_start(proxy, params);
}

/* The thread never waits for a peer, so neither does its end. */
void proxy_thread_stop(mpix_proxy *proxy) {
    if (proxy->threaded) {
        atomic_store_explicit(&proxy->stop, 1, memory_order_release);
        thread_ring(proxy);
        pthread_join(proxy->thread, NULL);
        proxy->threaded = 0;
    }
    if (proxy->wake_fd >= 0)
        close(proxy->wake_fd);
    proxy->wake_fd = -1;
}
