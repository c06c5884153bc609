/*
 * gpu_fifo_bench.c - what a command of a GPU's kernels to the proxy costs: commands a
 * second and round trips, by number of producing warps. With -c: the check of the queue
 * that make check-gpu runs.
 *
 * usage: mpix_gpu_fifo_bench [-c] [-t SECONDS]
 *
 * Three consumers: `queue`, threads that only take; `proxy`, whole proxies over the transport null,
 * which moves nothing; and for round trips also `flag`, a word to a thread that sends it back,
 * which is the least that a round trip can cost. Everything is counted on both sides.
 */
#include "config.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/internal/gpu_fifo_consumers.h"

enum { MAX_PROXIES = 4, BUFFER = 1 << 16, SLOTS = 2048 };

static int failures, sms;
static mpix_boot *boot;

#define BAD(...) \
    do { \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr); \
        failures++; \
    } while (0)

static uint64_t sent_sum(const gf_run *r, uint64_t *late) {
    uint64_t n = 0;

    *late = 0;
    for (int i = 0; i < r->blocks * r->warps; i++) {
        n += r->sent[i].commands;
        *late += r->sent[i].late;
    }
    return n;
}

/* ---- the check ------------------------------------------------------------------------------- */

static void check_heads(const gf_run *r, uint64_t sent, const char *what) {
    uint64_t all = 0;

    for (int i = 0; i < r->nfifos; i++) {
        unsigned long long reserved, head;
        gf_fifo_heads(&r->fifo[i], &reserved, &head);
        if (reserved != head || head != *(volatile const unsigned long long *)r->fifo[i].tail)
            BAD("%s: queue %d: %llu let in, %llu given out, %llu taken", what, i, reserved, head,
                *r->fifo[i].tail);
        all += head;
    }
    if (all != sent)
        BAD("%s: %llu commands sent, %llu places given out", what, (unsigned long long)sent,
            (unsigned long long)all);
}

/*
 * Producers on every SM, queues much smaller than what they send; then the same while nobody
 * takes: each producer gives up, having left no hole, so that what was queued and what comes after
 * it are taken in order.
 */
static void check_one(int lanes, int nfifos, int slots, int warps, int give_up) {
    char what[96];
    gf_run r = {.blocks = sms,
                .warps = warps,
                .lanes = lanes,
                .nfifos = nfifos,
                .each = give_up ? 1 << 20 : 3200,
                .numbered = 1,
                .fence = 1};
    uint64_t *expect = calloc(GF_MAX_WARPS, sizeof *expect), sent, late, start = mpix_clock_ns();

    snprintf(what, sizeof what, "%d commands a claim, %d queues of %d, %d warps%s", lanes, nfifos,
             slots, sms * warps, give_up ? ", stalled" : "");
    r.timeout_ns = give_up ? 2000000 : 2000000000u;
    r.give_up = give_up;
    r.sent = gf_pinned((size_t)(sms * warps) * sizeof *r.sent);
    for (int i = 0; i < nfifos; i++)
        gf_fifo_make(&r.fifo[i], (unsigned long long)slots);
    atomic_store(&stall, give_up);
    consumers_start(r.fifo, nfifos, nfifos, NULL, expect, NULL);
    gf_send(&r);
    while (gf_busy() && mpix_clock_ns() - start < 10000000000u)
        usleep(200);
    if (gf_busy()) {
        BAD("%s: the producers do not end", what);
        _exit(1); /* exit waits for the GPU */
    }
    sent = sent_sum(&r, &late);
    if (give_up && (sent != (uint64_t)nfifos * (uint64_t)slots || late != (uint64_t)(sms * warps)))
        BAD("%s: %llu commands in full queues, %llu producers gave up", what,
            (unsigned long long)sent, (unsigned long long)late);
    if (!give_up && (late || sent != r.each * (uint64_t)(sms * warps)))
        BAD("%s: %llu commands sent, %llu late", what, (unsigned long long)sent,
            (unsigned long long)late);
    atomic_store(&stall, 0);
    for (int i = 0; i < 2000 && consumers_taken(nfifos) < sent; i++)
        usleep(1000);
    usleep(10000); /* more than was sent must not come */
    consumers_end(nfifos);
    for (int i = 0; i < nfifos; i++)
        if (consumers[i].wrong)
            BAD("%s: queue %d: %llu commands out of order", what, i,
                (unsigned long long)consumers[i].wrong);
    if (consumers_taken(nfifos) != sent)
        BAD("%s: %llu sent, %llu taken", what, (unsigned long long)sent,
            (unsigned long long)consumers_taken(nfifos));
    check_heads(&r, sent, what);
    printf("# %s: %llu commands in %.0f ms\n", what, (unsigned long long)sent,
           (double)(mpix_clock_ns() - start) / 1e6);
    for (int i = 0; i < nfifos; i++)
        gf_fifo_free(&r.fifo[i]);
    gf_pinned_free(r.sent);
    free(expect);
}

static void check(void) {
    for (int lanes = 1; lanes <= 32; lanes += 31)
        for (int give_up = 0; give_up < 2; give_up++) {
            check_one(lanes, 1, 64, 1, give_up);
            check_one(lanes, 1, 1024, 8, give_up);
            check_one(lanes, 4, 256, 8, give_up);
        }
}

/* ---- whole proxies --------------------------------------------------------------------------- */

static mpix_proxy *proxies[MAX_PROXIES];
static mpix_gpu_queues *queues[MAX_PROXIES];
static char *buffers[MAX_PROXIES];
static mpix_gpu gpu;

static void must(int kind) {
    if (kind) {
        fprintf(stderr, "mpix_gpu_fifo_bench: %s\n", mpix_error_tls()->text);
        exit(1);
    }
}

static void proxies_open(int n, int each, mpix_dev_fifo *fifos, const unsigned long long **done) {
    static const unsigned char want = 1;
    mpix_params params;

    must(mpix_params_read(&params));
    must(mpix_params_set(&params, "proxy", "thread"));
    must(mpix_params_set(&params, "proxy_threads", "1"));
    must(mpix_params_set(&params, "transport", "null"));
    for (int i = 0; i < n; i++) {
        mpix_gpu_queues_config config = {.queues = each,
                                         .entries = SLOTS,
                                         .counters = 1,
                                         .window = 0};
        mpix_dev_state state;
        mpix_dev_peer peer;
        buffers[i] = calloc(1, BUFFER);
        must(mpix_proxy_create(boot, &params, &want, 1, 0, NULL, &proxies[i]));
        must(mpix_proxy_window(proxies[i], 0, buffers[i], BUFFER));
        must(mpix_gpu_queues_open(proxies[i], &gpu, &config, &queues[i]));
        mpix_gpu_queues_local(queues[i], 0, mpix_proxy_window_mem(proxies[i], 0), buffers[i],
                              BUFFER);
        mpix_gpu_queues_remote(queues[i], 0, 0, mpix_proxy_window_rmem(proxies[i], 0, 0), 0, BUFFER,
                               0);
        mpix_gpu_queues_describe(queues[i], &state);
        mpix_gpu_queues_describe_peer(queues[i], 0, 0, &peer);
        for (int k = 0; k < each; k++) { /* neighbouring warps use different proxies */
            fifos[k * n + i] = state.fifo[k];
            done[k * n + i] = peer.done;
        }
    }
}

static void proxies_close(int n) {
    for (int i = 0; i < n; i++) {
        mpix_gpu_queues_close(queues[i]);
        mpix_proxy_free(proxies[i]);
        free(buffers[i]);
    }
}

static uint64_t proxies_posted(int n) {
    uint64_t all = 0, messages, bytes;

    for (int i = 0; i < n; i++) {
        mpix_proxy_counts(proxies[i], 0, &messages, &bytes);
        all += messages;
    }
    return all;
}

/* A put of 1 KiB, whose words any slot can have. */
static const uint64_t put_word0 = MPIX_DEV_CMD_PUT | (uint64_t)1024 << 31;

/* ---- rates ----------------------------------------------------------------------------------- */

/* Commands per second, millions. proxy: whole proxies, so many as there are threads. */
static double rate(int whole, int nfifos, int threads, int warps, int lanes, int fence,
                   double seconds) {
    gf_run r = {.blocks = warps < sms ? warps : sms,
                .lanes = lanes,
                .nfifos = nfifos,
                .fence = fence,
                .timeout_ns = 2000000000u,
                .word0 = put_word0};
    const unsigned long long *done[GF_FIFOS];
    uint64_t sent = 0, late, ns, guess = 4000000;

    r.warps = warps / r.blocks;
    r.sent = gf_pinned((size_t)(r.blocks * r.warps) * sizeof *r.sent);
    if (whole)
        proxies_open(threads, nfifos / threads, r.fifo, done);
    for (int i = 0; i < nfifos && !whole; i++)
        gf_fifo_make(&r.fifo[i], SLOTS);
    if (!whole)
        consumers_start(r.fifo, nfifos, threads, NULL, NULL, NULL);
    for (int pass = 0; pass < 2; pass++) { /* the first one tells how long the second has to be */
        uint64_t start, before = whole ? proxies_posted(threads) : consumers_taken(threads);
        r.each = guess / (uint64_t)(r.blocks * r.warps) / (uint64_t)lanes * (uint64_t)lanes;
        if (r.each < (uint64_t)lanes)
            r.each = (uint64_t)lanes;
        r.each = pass ? r.each : r.each / 10 / 32 * 32 + 32;
        start = mpix_clock_ns();
        gf_send(&r);
        sent = r.each * (uint64_t)(r.blocks * r.warps);
        while ((whole ? proxies_posted(threads) : consumers_taken(threads)) - before < sent &&
               mpix_clock_ns() - start < 10000000000u)
            relax();
        ns = mpix_clock_ns() - start;
        while (gf_busy() && mpix_clock_ns() - start < 20000000000u)
            ;
        if (gf_busy()) {
            BAD("%d warps, %d queues: the producers do not end", warps, nfifos);
            _exit(1);
        }
        guess = (uint64_t)((double)sent / (double)ns * 1e9 * seconds);
    }
    if (sent_sum(&r, &late) != sent || late)
        BAD("%llu commands were late", (unsigned long long)late);
    if (!whole)
        consumers_end(threads);
    if (whole)
        proxies_close(threads);
    for (int i = 0; i < nfifos && !whole; i++)
        gf_fifo_free(&r.fifo[i]);
    gf_pinned_free(r.sent);
    return (double)sent / (double)ns * 1e3;
}

static void report_rates(double seconds) {
    const int warps[] = {1, 8, 32, 64, 128, 2 * sms, 4 * sms, 8 * sms};
    static const int shapes[][2] = {{1, 1}, {4, 1}, {4, 2}, {4, 4}};

    for (int whole = 0; whole < 2; whole++)
        for (int lanes = 1; lanes <= 32; lanes += 31) {
            printf("# millions of commands/s, %s, %s claim, a fence each; queues/threads\n%-8s",
                   whole ? "proxies over null" : "taken by threads", lanes == 1 ? "one a" : "32 a",
                   "# warps");
            for (int s = 0; s < 4; s++)
                printf("      %d/%d", shapes[s][0], shapes[s][1]);
            printf("   4/4, no fence\n");
            for (size_t w = 0; w < sizeof warps / sizeof *warps; w++) {
                printf("%-8d", warps[w]);
                for (int s = 0; s < 4; s++)
                    printf(" %8.2f",
                           rate(whole, shapes[s][0], shapes[s][1], warps[w], lanes, 1, seconds));
                printf(" %15.2f\n", rate(whole, 4, 4, warps[w], lanes, 0, seconds));
                fflush(stdout);
            }
        }
}

/* ---- round trips ----------------------------------------------------------------------------- */

enum { TRIP_FLAG, TRIP_QUEUE, TRIP_PROXY };

static int by_size(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

    return x < y ? -1 : x > y;
}

/* p50, p99, p99.9 in us. rate: of all warps together, 0: one after the other without a pause. */
static void trips(int way, int warps, double rate_per_us, double out[3]) {
    gf_trip t = {.blocks = warps,
                 .warps = 1,
                 .nfifos = 1,
                 .bare = way == TRIP_FLAG,
                 .each = 20000 / (unsigned)warps + 2000,
                 .timeout_ns = 1000000000u};
    size_t all = (size_t)warps * t.each;
    _Atomic uint64_t *done = gf_pinned(64 * GF_FIFOS);

    t.word0 = put_word0;
    t.period_ns = rate_per_us > 0 ? (unsigned long long)(warps / rate_per_us * 1e3) : 0;
    t.cycles = gf_pinned(all * sizeof *t.cycles);
    t.clocks = gf_pinned(3 * sizeof *t.clocks);
    t.copies = gf_device(GF_FIFOS * 32 * sizeof *t.copies);
    t.flag = gf_pinned((size_t)warps * 64);
    t.echo = gf_pinned((size_t)warps * 64);
    if (way == TRIP_PROXY) {
        proxies_open(1, 1, t.fifo, t.done);
    } else {
        gf_fifo_make(&t.fifo[0], SLOTS);
        t.done[0] = (unsigned long long *)(void *)done;
        consumers_start(t.fifo, way == TRIP_QUEUE, 1, done, NULL, way == TRIP_FLAG ? &t : NULL);
    }
    gf_send_trips(&t);
    while (gf_busy())
        usleep(100);
    if (t.clocks[2])
        BAD("%llu warps had no answer", t.clocks[2]);
    if (way == TRIP_PROXY) {
        proxies_close(1);
    } else {
        consumers_end(1);
        gf_fifo_free(&t.fifo[0]);
    }
    qsort(t.cycles, all, sizeof *t.cycles, by_size);
    double us = (double)t.clocks[1] / (double)t.clocks[0] / 1e3;
    out[0] = t.cycles[all / 2] * us;
    out[1] = t.cycles[all * 99 / 100] * us;
    out[2] = t.cycles[all * 999 / 1000] * us;
    gf_pinned_free(t.cycles);
    gf_pinned_free(t.clocks);
    gf_device_free(t.copies);
    gf_pinned_free(t.flag);
    gf_pinned_free((void *)(uintptr_t)t.echo);
    gf_pinned_free((void *)done);
}

static void report_trips(void) {
    static const char *const names[] = {"flag", "queue", "proxy, null"};
    static const struct {
        int warps;
        double rate;
    } loads[] = {{1, 0}, {8, 1}, {16, 1}, {64, 1}, {64, 4}, {64, 0}};

    printf("# round trip, us: p50 p99 p99.9\n%-28s", "# warps, all at");
    for (int way = 0; way < 3; way++)
        printf(" %24s", names[way]);
    printf("\n");
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        char text[64];
        if (loads[i].rate > 0)
            snprintf(text, sizeof text, "%d, %.0f million/s", loads[i].warps, loads[i].rate);
        else
            snprintf(text, sizeof text, "%d, one after the other", loads[i].warps);
        printf("%-28s", text);
        for (int way = 0; way < 3; way++) {
            double us[3];
            trips(way, loads[i].warps, loads[i].rate, us);
            printf("   %6.2f %6.2f %7.2f", us[0], us[1], us[2]);
            fflush(stdout);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    double seconds = 0.1;
    int option, only_check = 0;
    char why[MPIX_CUDA_WHY] = "";
    mpix_params params;

    while ((option = getopt(argc, argv, "ct:h")) != -1)
        switch (option) {
        case 'c': only_check = 1; break;
        case 't': seconds = atof(optarg); break;
        default:
            fprintf(stderr, "usage: mpix_gpu_fifo_bench [-c] [-t SECONDS]\n");
            return option == 'h' ? 0 : 2;
        }
    if (seconds < 0.001 || seconds > 10) {
        fprintf(stderr, "mpix_gpu_fifo_bench: -t takes 0.001 to 10\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    must(mpix_boot_create(MPI_COMM_WORLD, &boot));
    must(mpix_params_read(&params));
    sms = gf_sms();
    if (sms == 0 || mpix_gpu_open(&gpu, &params, 0, why) != 0) {
        printf("# mpix_gpu_fifo_bench: no GPU can be used here %s\n", why);
        MPI_Finalize();
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("# mpix_gpu_fifo_bench %s, %s, %d SMs\n", PACKAGE_VERSION, gf_name(), sms);
    check();
    if (!only_check && !failures) {
        report_trips();
        report_rates(seconds);
    }
    printf("# %s\n", failures ? "FAILED" : "passed");
    mpix_boot_free(boot, 0);
    MPI_Finalize();
    return failures != 0;
}
