/*
 * cuda_ll.c - --mode ll in GPU memory: the low-latency mode beside HT and NCCL, GPU
 * times, in one run.
 *
 * A call by itself: events around it on its stream, behind one call of its kind that lines the
 * ranks' GPUs up, so that it does not count how far the hosts are apart; it contains what the
 * events and the start of a kernel cost. Blocks of ten of each kind alternate as in measure.c. In a
 * graph: a replay of a graph of IN_GRAPH calls between events, and a call's mean share of it;
 * replays of all kinds alternate. LL's dispatch is measured with a routing that is there, and with
 * its route, as a layer calls it whose router has just chosen; HT's comes with its route, which
 * exchanges the counts that LL does not need. The baseline's counts are known, and it is not put
 * into graphs. A route is never last before a combine, which needs a dispatch.
 */
#include "config.h"

#include "bench/bench.h"

#ifdef HAVE_CUDA
#include "bench/cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IN_GRAPH = 20, LEAST_REPLAYS = 10 };
enum { ROUTE = 1, DISPATCH = 2, COMBINE = 4, FP8 = 8, BASE = 16 };
enum {
    LL_ROUTE,
    LL_DISPATCH,
    LL_COMBINE,
    LL_BOTH,
    LL_FP8,
    LL_ROUTED,
    LL_ROUTED_FP8,
    LL_ALL,
    HT_DISPATCH,
    HT_COMBINE,
    HT_BOTH,
    BASE_DISPATCH,
    BASE_COMBINE,
    KINDS
};

static const struct kind {
    const char *name, *in_graph;
    int what;
} kinds[KINDS] = {{"ll route", "ll route, graph", ROUTE},
                  {"ll dispatch", "ll dispatch, graph", DISPATCH},
                  {"ll combine", "ll combine, graph", COMBINE},
                  {"ll dispatch + combine", "ll dispatch + combine, graph", DISPATCH | COMBINE},
                  {"ll dispatch to fp8", "ll dispatch to fp8, graph", DISPATCH | FP8},
                  {"ll route + dispatch", "ll route + dispatch, graph", ROUTE | DISPATCH},
                  {"ll route + dispatch to fp8", "ll route + dispatch to fp8, graph",
                   ROUTE | DISPATCH | FP8},
                  {"ll route + dispatch + combine", "ll route + dispatch + combine, graph",
                   ROUTE | DISPATCH | COMBINE},
                  {"ht route + dispatch", "ht route + dispatch, graph", ROUTE | DISPATCH},
                  {"ht combine", "ht combine, graph", COMBINE},
                  {"ht route + dispatch + combine", "ht route + dispatch + combine, graph",
                   ROUTE | DISPATCH | COMBINE},
                  {"nccl dispatch", NULL, BASE | DISPATCH},
                  {"nccl combine", NULL, BASE | COMBINE}};

typedef struct ll_times {
    const bench *b;
    cuda_run low, ht;
    double *alone[KINDS], *graph[KINDS];
    int samples, replays;
} ll_times;

static cuda_run *run_of(ll_times *l, int kind) { return kind < HT_DISPATCH ? &l->low : &l->ht; }

static int wanted(const ll_times *l, int kind) {
    int dtype = l->b->opt.dtype;
    if (kinds[kind].what & FP8)
        return dtype == MPIX_EP_BF16 || dtype == MPIX_EP_F16 || dtype == MPIX_EP_F32;
    return kind < BASE_DISPATCH || l->ht.has_base;
}

static void start(cuda_run *x, int what) {
    if (what & BASE) {
        (what & DISPATCH ? cuda_base_dispatch : cuda_base_combine)(x);
        return;
    }
    if (what & ROUTE)
        cuda_ours_route(x, CUDA_ON_STREAM);
    if (what & DISPATCH)
        cuda_ours_dispatch(x, CUDA_ON_STREAM, what & FP8 ? CUDA_TO_FP8 : CUDA_LEAN);
    if (what & COMBINE)
        cuda_ours_combine(x, CUDA_ON_STREAM, 0);
}

/* What stands between two events, behind something that all ranks take part in. */
static double time_one(cuda_run *x, int what, cudaGraphExec_t graph) {
    MPI_Barrier(x->b->comm);
    start(x, what & BASE ? ROUTE : what);
    CUDA(cudaEventRecord(x->event[0], x->stream));
    if (graph)
        CUDA(cudaGraphLaunch(graph, x->stream));
    else
        start(x, what);
    CUDA(cudaEventRecord(x->event[3], x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    return cuda_elapsed(x, 0, 3);
}

static void measure_alone(ll_times *l) {
    int blocks = l->samples / BENCH_KEEP;
    for (int block = -1; block < blocks; block++) /* block -1: the warm-up */
        for (int kind = 0; kind < KINDS; kind++) {
            int calls = !wanted(l, kind) ? 0 : block < 0 ? l->b->opt.warmup : BENCH_BLOCK;
            for (int i = 0; i < calls; i++) {
                double t = time_one(run_of(l, kind), kinds[kind].what, NULL);
                if (block >= 0 && i >= BENCH_DROP)
                    l->alone[kind][block * BENCH_KEEP + i - BENCH_DROP] = t;
            }
        }
}

static cudaGraphExec_t graph_make(cuda_run *x, int what) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(x->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < IN_GRAPH; i++)
        start(x, what);
    CUDA(cudaStreamEndCapture(x->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void measure_graphs(ll_times *l) {
    cudaGraphExec_t exec[KINDS] = {NULL};
    for (int kind = 0; kind < BASE_DISPATCH; kind++)
        if (wanted(l, kind))
            exec[kind] = graph_make(run_of(l, kind), kinds[kind].what);
    for (int i = -2; i < l->replays; i++)
        for (int kind = 0; kind < BASE_DISPATCH; kind++) {
            if (!exec[kind])
                continue;
            double t = time_one(run_of(l, kind), kinds[kind].what, exec[kind]) / IN_GRAPH;
            if (i >= 0)
                l->graph[kind][i] = t;
        }
    for (int kind = 0; kind < BASE_DISPATCH; kind++)
        if (exec[kind]) {
            cuda_run *x = run_of(l, kind);
            CUDA(cudaGraphExecDestroy(exec[kind]));
        }
}

/* ---- rows that became fp8: the values and their scales by the definition in mpix_ep.h -------- */

/* To nearest even; 448 is the largest, below 2^-6 steps are of 2^-9. */
static double to_e4m3(double v) {
    int e = v == 0 || fabs(v) < 0x1p-6 ? -6 : ilogb(v);
    double unit = ldexp(1, e - 3);
    return fmin(fmax(nearbyint(v / unit) * unit, -448), 448);
}

/* 128 columns or fewer: what they become. */
static void quantised(const bench *b, const unsigned char *x, long n, float *scale, double *value) {
    float amax = 0x1p-110f;
    for (long i = 0; i < n; i++)
        amax = fmaxf(amax, (float)fabs(bench_decode(b->opt.dtype, x + (size_t)i * b->elem)));
    float inverse = 448.0f / amax;
    *scale = amax / 448.0f;
    for (long i = 0; i < n; i++) {
        float scaled = (float)bench_decode(b->opt.dtype, x + (size_t)i * b->elem) * inverse;
        value[i] = to_e4m3((double)scaled);
    }
}

static int row_is_quantised(const bench *b, const unsigned char *x, const unsigned char *got,
                            const float *scales) {
    double value[128];
    float scale;
    int wrong = 0;
    for (long c = 0; c < b->opt.hidden; c += 128) {
        long n = b->opt.hidden - c < 128 ? b->opt.hidden - c : 128;
        quantised(b, x + (size_t)c * b->elem, n, &scale, value);
        wrong += scales[c / 128] != scale;
        for (long i = 0; i < n; i++)
            wrong += bench_decode(MPIX_EP_F8E4M3, got + c + i) != value[i];
    }
    return wrong == 0;
}

static int verify_fp8(cuda_run *x) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    size_t groups = ((size_t)b->opt.hidden + 127) / 128, rows = (size_t)x->capacity,
           hidden = (size_t)b->opt.hidden;
    unsigned char *row = bench_alloc(b, (size_t)p->n * b->row_bytes + b->row_bytes),
                  *out = bench_alloc(b, rows * hidden);
    float *scales = bench_alloc(b, rows * groups * sizeof *scales);
    bench_values values;
    int good = 1, all;
    bench_values_make(b, 0, &values);
    for (long t = 0; t < p->n; t++)
        bench_values_row(b, &values, bench_token_seed(b, 0, b->rank, t),
                         row + (size_t)t * b->row_bytes, NULL);
    CUDA(cudaMemcpy(x->x, row, (size_t)p->n * b->row_bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(x->out, 0xa5, rows * b->row_bytes));
    CUDA(cudaMemset(x->out_scales, 0xa5, rows * groups * sizeof *scales));
    cuda_ours_route(x, CUDA_BLOCKING);
    cuda_ours_dispatch(x, CUDA_BLOCKING, CUDA_TO_FP8);
    CUDA(cudaMemcpy(out, x->out, rows * hidden, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(scales, x->out_scales, rows * groups * sizeof *scales, cudaMemcpyDeviceToHost));
    if (b->opt.layout == MPIX_EP_COMPACT) {
        bench_ll_squeeze(p, out, hidden, 0, out);
        bench_ll_squeeze(p, scales, groups * sizeof *scales, 0, scales);
    }
    for (long i = 0; i < p->rows && good; i++) {
        if (p->row_rank[i] < 0)
            continue;
        bench_values_row(b, &values, bench_token_seed(b, 0, p->row_rank[i], p->row_token[i]), row,
                         NULL);
        good = row_is_quantised(b, row, out + (size_t)i * hidden, scales + (size_t)i * groups);
        if (!good)
            fprintf(stderr,
                    "mpix_ep_bench: rank %d: ll: row %ld (of rank %d, token %ld) is not its "
                    "token's fp8\n",
                    b->rank, i, p->row_rank[i], p->row_token[i]);
    }
    free(row), free(out), free(scales);
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, b->comm);
    return all;
}

/* ---- one number of tokens -------------------------------------------------------------------- */

static void times_report(ll_times *l, bench_result *r) {
    const bench *b = l->b;
    bench_stats alone[KINDS];
    for (int kind = 0; kind < KINDS; kind++)
        if (wanted(l, kind))
            alone[kind] = bench_stats_of(b, l->alone[kind], l->samples);
    for (int kind = 0; kind < KINDS; kind++) {
        if (!wanted(l, kind))
            continue;
        int base = kind == LL_DISPATCH ? BASE_DISPATCH : BASE_COMBINE,
            against = (kind == LL_DISPATCH || kind == LL_COMBINE) && l->ht.has_base;
        bench_ll_line(b, l->low.n, kinds[kind].name, &alone[kind], against ? alone[base].median : 0,
                      r);
        if (!kinds[kind].in_graph)
            continue;
        bench_stats graph = bench_stats_of(b, l->graph[kind], l->replays);
        bench_ll_line(b, l->low.n, kinds[kind].in_graph, &graph, 0, r);
    }
    fflush(stdout);
}

int bench_cuda_ll_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                       long recv_capacity, bench_result *r) {
    int blocks = (b->opt.iterations + BENCH_BLOCK - 1) / BENCH_BLOCK, good = 1;
    int replays = b->opt.iterations / IN_GRAPH;
    ll_times times = {.b = b,
                      .samples = blocks * BENCH_KEEP,
                      .replays = replays > LEAST_REPLAYS ? replays : LEAST_REPLAYS};
    ll_times *l = &times;
    long n = plans[0].n;
    l->low = (cuda_run){.b = b,
                        .plan = plans,
                        .ll = 1,
                        .n = n,
                        .capacity = b->opt.layout == MPIX_EP_COMPACT ? n * b->size : capacity};
    l->ht = (cuda_run){.b = b,
                       .plan = plans,
                       .n = n,
                       .capacity = capacity,
                       .has_base = b->opt.baseline == BENCH_NCCL};
    *r = (bench_result){.tokens = n, .samples = l->samples, .sms = b->sms};
    if (b->rank == 0)
        printf("# SMs: %d\n", b->sms);
    cuda_run_create(&l->low);
    cuda_run_create(&l->ht);
    if (l->ht.has_base)
        cuda_base_create(&l->ht, recv_capacity);
    for (int kind = 0; kind < KINDS; kind++) {
        l->alone[kind] = bench_alloc(b, (size_t)l->samples * sizeof(double));
        l->graph[kind] = bench_alloc(b, (size_t)l->replays * sizeof(double));
    }
    for (int i = rounds - 1; i >= -1; i--) { /* the last time after everything that was measured */
        int round = i < 0 ? 0 : i, exact = round % 2 == 0;
        l->low.plan = l->ht.plan = &plans[round];
        cuda_fill(&l->low, round, exact);
        cuda_fill(&l->ht, round, exact);
        if (i < 0) {
            cuda_ours_route(&l->low, CUDA_BLOCKING);
            cuda_ours_dispatch(&l->low, CUDA_BLOCKING, CUDA_LEAN);
            cuda_ours_route(&l->ht, CUDA_BLOCKING);
            if (l->ht.has_base)
                cuda_base_counts(&l->ht);
            measure_alone(l);
            measure_graphs(l);
            times_report(l, r);
        }
        if (!b->opt.validate)
            continue;
        good &= cuda_verify_ours(&l->low, round, exact);
        good &= cuda_verify_ours(&l->ht, round, exact);
        if (l->ht.has_base)
            good &= cuda_verify_base(&l->ht, round, exact);
        if (wanted(l, LL_FP8) && round == 0)
            good &= verify_fp8(&l->low);
    }
    r->verified = b->opt.validate ? good : -1;
    if (!good && b->rank == 0)
        printf("# %ld tokens: VERIFICATION FAILED\n", n);
    for (int kind = 0; kind < KINDS; kind++) {
        free(l->alone[kind]);
        free(l->graph[kind]);
    }
    if (l->ht.has_base)
        cuda_base_free(&l->ht);
    cuda_run_free(&l->ht);
    cuda_run_free(&l->low);
    return good;
}
#endif
