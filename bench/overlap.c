/*
 * overlap.c - how much of a nonblocking call hides behind computation: a loop of fused
 * multiply-adds in registers, as long as the call alone. The figure is (call started, computation,
 * wait) over the longer of the two: 1 is perfect, 2 is none at all.
 */
#include "config.h"

#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { OVERLAP_CHAINS = 16 };

static volatile float overlap_sink;

/* Independent chains keep the arithmetic units busy; nothing leaves the registers. */
static void overlap_compute(long rounds) {
    float a[OVERLAP_CHAINS];
    for (int i = 0; i < OVERLAP_CHAINS; i++)
        a[i] = (float)i;
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < OVERLAP_CHAINS; i++)
            a[i] = a[i] * 0.999f + 0.001f;
    float sum = 0;
    for (int i = 0; i < OVERLAP_CHAINS; i++)
        sum += a[i];
    overlap_sink = sum;
}

typedef struct overlap_run {
    const bench *b;
    const bench_plan *plan;
    bench_ours *o;
    int combine;
    long rounds;
} overlap_run;

static void overlap_start(overlap_run *x, MPIX_Xfer *xfer) {
    if (x->combine)
        bench_ours_combine(x->b, x->o, x->plan, 0, xfer);
    else
        bench_ours_dispatch(x->b, x->o, x->plan, 0, 0, xfer);
}

enum { OVERLAP_CALL = 1, OVERLAP_COMPUTE = 2 };

static bench_stats overlap_time(overlap_run *x, int what, int n, double *samples) {
    const bench *b = x->b;
    for (int i = -BENCH_DROP; i < n; i++) {
        MPIX_Xfer xfer = MPIX_XFER_NULL;
        MPI_Barrier(b->comm);
        double t0 = bench_now_us();
        if (what & OVERLAP_CALL)
            overlap_start(x, &xfer);
        if (what & OVERLAP_COMPUTE)
            overlap_compute(x->rounds);
        if (what & OVERLAP_CALL)
            bench_ours_wait(b, &xfer,
                            x->combine ? "MPIX_Xfer_wait of combine"
                                       : "MPIX_Xfer_wait of dispatch");
        if (i >= 0)
            samples[i] = bench_now_us() - t0;
    }
    return bench_stats_of(b, samples, n);
}

/* Rounds that take as long as the call: by proportion, all ranks computing at once, three times. */
static void overlap_calibrate(overlap_run *x, double want_us, int n, double *samples) {
    x->rounds = 1000;
    for (int i = 0; i < 4; i++) {
        double us = overlap_time(x, OVERLAP_COMPUTE, n < 7 ? n : 7, samples).median;
        if (us <= 0)
            us = 0.01;
        double rounds = (double)x->rounds * want_us / us;
        x->rounds = rounds < 1 ? 1 : rounds > 1e12 ? (long)1e12 : (long)rounds;
    }
}

static void overlap_op(overlap_run *x, const char *progress, bench_overlap *out) {
    int n = x->b->opt.iterations;
    double *samples = bench_alloc(x->b, (size_t)(n > 7 ? n : 7) * sizeof *samples);
    out->progress = progress;
    out->op = x->combine ? "combine" : "dispatch";
    bench_progress(x->b, "%ld tokens: overlap of %s, progress by %s", x->plan->n, out->op,
                   progress);
    out->call = overlap_time(x, OVERLAP_CALL, n, samples);
    overlap_calibrate(x, out->call.median, n, samples);
    out->compute = overlap_time(x, OVERLAP_COMPUTE, n, samples);
    out->both = overlap_time(x, OVERLAP_CALL | OVERLAP_COMPUTE, n, samples);
    double longer = out->call.median > out->compute.median ? out->call.median : out->compute.median;
    out->ratio = longer > 0 ? out->both.median / longer : 0;
    bench_progress(x->b, "%s", "");
    free(samples);
}

void bench_overlap_run(const bench *b, const bench_plan *plan, long capacity, bench_result *r) {
    static const char *const modes[] = {"caller", "thread"};
    for (int i = 0; i < 2; i++) {
        bench_ours o;
        bench_values values;
        bench_ours_create(b, plan->n, capacity,
                          b->opt.buffers == BENCH_MALLOC ? BENCH_MALLOC : BENCH_ALLOC, modes[i],
                          &o);
        bench_fill_tokens(b, plan, 0, o.x, o.x_scales);
        if (b->has_combine) {
            bench_values_make(b, 0, &values);
            bench_fill_experts(b, plan, 0, &values, o.buf[0].ein, 0, o.buf[0].ein_scales, 0);
        }
        bench_ours_route(b, &o, plan, 0);
        for (int combine = 0; combine <= b->has_combine; combine++) {
            overlap_run x = {b, plan, &o, combine, 0};
            overlap_op(&x, modes[i], &r->overlap[r->noverlap++]);
        }
        bench_ours_free(b, &o);
    }
}
