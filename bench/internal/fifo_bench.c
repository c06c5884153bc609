/*
 * fifo_bench.c - what a command costs: rate and latency of the proxy's queue with a network that
 * moves nothing, wake-up from sleep, and what an idle proxy uses.
 *
 * usage: mpix_fifo_bench [-t SECONDS] [-p PRODUCERS] [-r]
 *
 * One rank, which is its own peer over the transport null. -r: threads have real-time priority, to
 * measure one producer on a machine that others use too; needs the right to that, two PUs, and only
 * as many producers as leave one PU to the proxy.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/topo.h"
#include "proxy/proxy_internal.h"

enum { MAX_PRODUCERS = 16, SAMPLES = 200, BUFFER = 1 << 20 };

static mpix_proxy *proxy;
static _Atomic int go, stop;
static int real_time;

typedef struct producer {
    pthread_t thread;
    int pu; /* -1: not bound */
    uint64_t commands, refused;
    _Alignas(64) char pad[64];
} producer;

static void bind_to(int pu) {
    cpu_set_t set;

    if (pu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(pu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* The main thread is above the threads that it starts, which inherit the lower one. */
static void priority(int level) {
    struct sched_param param = {.sched_priority = level};

    if (real_time && pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) != 0) {
        fprintf(stderr, "mpix_fifo_bench: no right to real-time priority\n");
        exit(1);
    }
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* The PUs of this process, as many as fit. */
static int list_pus(int *pus, int max) {
    cpu_set_t set;
    int n = 0;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    for (int i = 0; i < CPU_SETSIZE && n < max; i++)
        if (CPU_ISSET(i, &set))
            pus[n++] = i;
    return n;
}

/* ---- the queue alone ------------------------------------------------------------------------- */

static mpix_fifo fifo;

static void *fifo_producer(void *arg) {
    producer *p = arg;
    mpix_cmd cmd = {{MPIX_CMD_PUT, 0}};

    bind_to(p->pu);
    while (!atomic_load(&go))
        relax();
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        if (mpix_fifo_push(&fifo, cmd))
            cmd.half[1] = ++p->commands;
        else {
            p->refused++;
            relax();
        }
    return NULL;
}

static void *proxy_producer(void *arg) {
    producer *p = arg;
    uint64_t seq;

    bind_to(p->pu);
    while (!atomic_load(&go))
        relax();
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        if (mpix_proxy_put(proxy, 0, 0, 0, 0, 0, 4096, 1024, 0, &seq) == 1)
            p->commands++;
        else {
            p->refused++;
            relax();
        }
    return NULL;
}

static void producers_start(producer *p, int n, void *(*run)(void *), const int *pus, int npus) {
    priority(10);
    atomic_store(&go, 0);
    atomic_store(&stop, 0);
    for (int i = 0; i < n; i++) {
        memset(&p[i], 0, sizeof p[i]);
        p[i].pu = npus >= n + 1 ? pus[i + 1] : npus == 2 && n == 1 ? pus[1] : -1;
        if (pthread_create(&p[i].thread, NULL, run, &p[i]) != 0)
            exit((perror("pthread_create"), 1));
    }
    priority(20);
    usleep(20000);
}

static uint64_t producers_end(producer *p, int n) {
    uint64_t commands = 0;

    for (int i = 0; i < n; i++) {
        pthread_join(p[i].thread, NULL);
        commands += p[i].commands;
    }
    return commands;
}

/* The main thread consumes; returns commands per second. */
static double fifo_rate(int n, double seconds, const int *pus, int npus) {
    static producer p[MAX_PRODUCERS];
    uint64_t start, ns = 0, taken = 0;
    mpix_cmd cmds[64];
    int idle = 0;

    if (mpix_fifo_init(&fifo, 1024) != 0)
        exit(1);
    producers_start(p, n, fifo_producer, pus, npus);
    start = mpix_clock_ns();
    atomic_store(&go, 1);
    do {
        for (int i = 0; i < 256; i++) {
            int k = mpix_fifo_take(&fifo, cmds, 64);
            taken += (uint64_t)k;
            if (k == 0) {
                relax();
                if (npus <= n && ++idle % 64 == 0)
                    sched_yield();
            }
        }
        ns = mpix_clock_ns() - start;
    } while (ns < (uint64_t)(seconds * 1e9));
    atomic_store(&stop, 1);
    (void)producers_end(p, n);
    mpix_fifo_free(&fifo);
    return (double)taken / (double)ns * 1e9;
}

/* ---- the proxy ------------------------------------------------------------------------------- */

static char *buffer;

static void proxy_open(mpix_boot *boot, const char *who, const char *transport) {
    static const unsigned char want = 1;
    mpix_params params;
    int kind = mpix_params_read(&params);

    priority(10);
    if (!kind)
        kind = mpix_params_set(&params, "proxy", who);
    if (!kind)
        kind = mpix_params_set(&params, "transport", transport);
    if (!kind)
        kind = mpix_proxy_create(boot, &params, &want, 1, 0, NULL, &proxy);
    if (!kind)
        kind = mpix_proxy_window(proxy, 0, buffer, BUFFER);
    if (kind) {
        fprintf(stderr, "mpix_fifo_bench: %s\n", mpix_error_tls()->text);
        exit(1);
    }
    priority(20);
}

static void proxy_close(void) {
    mpix_proxy_free(proxy);
    proxy = NULL;
}

/* Thread mode: the proxy's thread consumes, this thread only looks at the clock. Commands per
 * second that were completed. */
static double proxy_rate(mpix_boot *boot, int n, double seconds, const int *pus, int npus) {
    static producer p[MAX_PRODUCERS];
    uint64_t start, ns, before, commands, messages, bytes;
    cpu_set_t set;

    CPU_ZERO(&set);
    proxy_open(boot, "thread", "null");
    if (npus >= 2) {
        CPU_SET(pus[0], &set);
        (void)pthread_setaffinity_np(proxy->part[0]->thread, sizeof set, &set);
    }
    producers_start(p, n, proxy_producer, pus, npus);
    start = mpix_clock_ns();
    atomic_store(&go, 1);
    usleep(20000);
    mpix_proxy_counts(proxy, 0, &before, &bytes);
    start = mpix_clock_ns();
    usleep((useconds_t)(seconds * 1e6));
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    ns = mpix_clock_ns() - start;
    atomic_store(&stop, 1);
    commands = producers_end(p, n);
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    (void)commands;
    proxy_close();
    return (double)(messages - before) / (double)ns * 1e9;
}

/* One thread queues and makes the turns. */
static double caller_rate(mpix_boot *boot, double seconds) {
    uint64_t start, ns, messages, bytes, seq;

    proxy_open(boot, "caller", "null");
    start = mpix_clock_ns();
    do {
        for (int i = 0; i < 1024; i++)
            if (mpix_proxy_put(proxy, 0, 0, 0, 0, 0, 4096, 1024, 0, &seq) != 1)
                (void)mpix_proxy_step(proxy);
        ns = mpix_clock_ns() - start;
    } while (ns < (uint64_t)(seconds * 1e9));
    mpix_proxy_counts(proxy, 0, &messages, &bytes);
    proxy_close();
    return (double)messages / (double)ns * 1e9;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* From the put to its completion, us: median and p99 of samples with a pause between them, during
 * which the thread goes to sleep if it is long enough. */
static void proxy_latency(useconds_t pause, double *median, double *p99) {
    static uint64_t ns[SAMPLES];
    uint64_t seq;

    for (int i = 0; i < SAMPLES; i++) {
        if (pause)
            usleep(pause);
        ns[i] = mpix_clock_ns();
        while (mpix_proxy_put(proxy, 0, 0, 0, 0, 0, 4096, 1024, 0, &seq) != 1)
            (void)mpix_proxy_step(proxy);
        while (mpix_proxy_completed(proxy, 0, 0) < seq)
            if (!mpix_proxy_step(proxy))
                relax();
        ns[i] = mpix_clock_ns() - ns[i];
    }
    qsort(ns, SAMPLES, sizeof *ns, by_size);
    *median = (double)ns[SAMPLES / 2] / 1e3;
    *p99 = (double)ns[SAMPLES * 99 / 100] / 1e3;
}

static double cpu_seconds(void) {
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void report_rates(mpix_boot *boot, int producers, double seconds, const int *pus, int npus) {
    printf("# commands per second, millions\n%-12s %12s %20s\n", "# producers", "queue",
           "proxy, net null");
    for (int n = 1; n <= producers; n *= 2) {
        double alone = fifo_rate(n, seconds, pus, npus),
               whole = proxy_rate(boot, n, seconds, pus, npus);
        printf("%-12d %12.1f %20.1f\n", n, alone / 1e6, whole / 1e6);
        fflush(stdout);
    }
    printf("%-12s %12s %20.1f\n", "1, caller", "-", caller_rate(boot, seconds) / 1e6);
}

static void report_latency(mpix_boot *boot, double seconds) {
    static const char *const names[] = {"caller", "thread"};
    double median, p99, cpu;
    uint64_t sleeps, start;

    printf("# put to completion, us\n%-28s %10s %10s\n", "#", "median", "p99");
    for (int i = 0; i < 2; i++) {
        proxy_open(boot, names[i], "null");
        proxy_latency(0, &median, &p99);
        printf("%-28s %10.2f %10.2f\n", i ? "proxy=thread, awake" : "proxy=caller", median, p99);
        if (i) {
            sleeps = proxy->part[0]->sleeps;
            proxy_latency(3000, &median, &p99);
            printf("%-28s %10.2f %10.2f   (slept %llu times in %d)\n", "proxy=thread, from sleep",
                   median, p99, (unsigned long long)(proxy->part[0]->sleeps - sleeps), SAMPLES);
        }
        proxy_close();
    }
    for (int i = 0; i < 2; i++) {
        proxy_open(boot, "thread", i ? "shmem" : "null");
        usleep(50000);
        cpu = cpu_seconds();
        start = mpix_clock_ns();
        usleep((useconds_t)(seconds * 4e6));
        cpu = (cpu_seconds() - cpu) / ((double)(mpix_clock_ns() - start) / 1e9);
        printf("%-28s %9.3f %%\n", i ? "idle thread over shmem, CPU" : "idle thread over null, CPU",
               100 * cpu);
        proxy_close();
    }
}

int main(int argc, char **argv) {
    int pus[64], npus = list_pus(pus, 64), producers = 8, option;
    double seconds = 0.5;
    mpix_boot *boot;

    while ((option = getopt(argc, argv, "t:p:rh")) != -1)
        switch (option) {
        case 't': seconds = atof(optarg); break;
        case 'p': producers = atoi(optarg); break;
        case 'r': real_time = 1; break;
        default:
            fprintf(stderr, "usage: mpix_fifo_bench [-t SECONDS] [-p PRODUCERS] [-r]\n");
            return option == 'h' ? 0 : 2;
        }
    if (seconds < 0.01 || seconds > 100 || producers < 1 || producers > MAX_PRODUCERS) {
        fprintf(stderr, "mpix_fifo_bench: -t takes 0.01 to 100, -p 1 to %d\n", MAX_PRODUCERS);
        return 2;
    }
    if (real_time) {
        alarm(60); /* should it keep everybody else from running */
        producers = producers < npus ? producers : npus - 1;
    }
    MPI_Init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot)) {
        fprintf(stderr, "mpix_fifo_bench: %s\n", mpix_error_tls()->text);
        return 1;
    }
    if (boot->size != 1) {
        fprintf(stderr, "mpix_fifo_bench: one rank, not %d\n", boot->size);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    buffer = calloc(1, BUFFER);
    printf("# mpix_fifo_bench %s, %d PUs of %d\n", PACKAGE_VERSION, npus,
           mpix_topo_get()->pus_host);
    report_rates(boot, producers, seconds, pus, npus);
    report_latency(boot, seconds);
    free(buffer);
    mpix_boot_free(boot, 0);
    MPI_Finalize();
    return 0;
}
