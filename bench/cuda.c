/*
 * cuda.c - mpix_ep_bench in GPU memory: a context, its buffers, a baseline; verification; times of
 * two kinds. Whole calls are timed by the host's clock around blocking calls, as in host memory.
 * GPU times are those of calls on a stream between two events, behind a route that lines the ranks'
 * GPUs up, so that they do not count how far the hosts are apart; for dispatch and combine the
 * routing is cached, and the baseline's counts are known.
 */
#include "config.h"

#include "bench/bench.h"

#ifdef HAVE_CUDA
#include "bench/cuda.h"
#include "bench/nccl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_NVTX3_NVTOOLSEXT_H
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(name) ((void)(name))
#define nvtxRangePop() ((void)0)
#endif

void cuda_check(const bench *b, int err, const char *call) {
    if (err)
        bench_die(b, "%s: %s", call, cudaGetErrorString((cudaError_t)err));
}

const char *bench_cuda_open(bench *b) {
    MPI_Comm local;
    int rank, ranks, devices = 0;
    struct cudaDeviceProp prop;
    MPI_Comm_split_type(b->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &rank);
    MPI_Comm_size(local, &ranks);
    MPI_Comm_free(&local);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return "--memory cuda: no CUDA device can be used here";
    if (b->opt.overlap && cuda_overlap_lacks())
        return cuda_overlap_lacks();
    if (b->size > BENCH_CUDA_RANKS)
        return "--memory cuda: at most 32 ranks";
    cuda_check(b, cudaSetDevice(rank % devices), "cudaSetDevice");
    cuda_check(b, cudaGetDeviceProperties(&prop, rank % devices), "cudaGetDeviceProperties");
    snprintf(b->gpu, sizeof b->gpu, "%.63s", prop.name);
    if (b->opt.baseline == BENCH_NCCL && ranks > devices)
        return "--baseline nccl: NCCL does not let ranks share a GPU; use mpi or none";
    return b->opt.baseline == BENCH_NCCL ? bench_nccl_load(&b->nccl_version) : NULL;
}

/* ---- times ----------------------------------------------------------------------------------- */

enum {
    OP_DISPATCH,
    OP_BASE_DISPATCH,
    OP_COMBINE,
    OP_BASE_COMBINE,
    OP_TOTAL,
    OP_BASE_TOTAL,
    OP_GPU_ROUTE,
    OP_GPU_DISPATCH,
    OP_GPU_BASE_DISPATCH,
    OP_GPU_COMBINE,
    OP_GPU_BASE_COMBINE,
    OP_GPU_TOTAL,
    OP_GPU_TO_FP8,
    OP_GPU_FLOAT_SUMS,
    OP_GPU_BARE,
    OPS
};
enum { PHASES = 4 };
static const char *const op_names[OPS] = {"route, dispatch",
                                          "baseline: counts, dispatch",
                                          "combine",
                                          "baseline: combine",
                                          "total",
                                          "baseline: total",
                                          "GPU: route",
                                          "GPU: dispatch",
                                          "GPU: baseline dispatch",
                                          "GPU: combine",
                                          "GPU: baseline combine",
                                          "GPU: total",
                                          "GPU: dispatch to fp8",
                                          "GPU: combine, sums in float",
                                          "GPU: bare all-to-all-v"};

/* Rows that become fp8 on their way must fit a row as it is; copy engines convert none. */
static int becomes_fp8(const cuda_run *x) {
    size_t scales = ((size_t)x->b->opt.hidden + 127) / 128 * sizeof(float);
    int dtype = x->b->opt.dtype;
    return (dtype == MPIX_EP_F32 || dtype == MPIX_EP_F16 || dtype == MPIX_EP_BF16) &&
           x->b->sms != MPIX_EP_SMS_NONE && (size_t)x->b->opt.hidden + scales <= x->b->row_bytes;
}
/* EXPERT: partial sums travel as their rows do, or in float. */
static int has_float_sums(const cuda_run *x) {
    int dtype = x->b->opt.dtype;
    return x->b->opt.layout == MPIX_EP_EXPERT && (dtype == MPIX_EP_F16 || dtype == MPIX_EP_BF16);
}

static int op_wanted(const cuda_run *x, int op) {
    if (op == OP_GPU_TO_FP8)
        return becomes_fp8(x);
    if (op == OP_GPU_FLOAT_SUMS)
        return has_float_sums(x);
    int base = op == OP_BASE_DISPATCH || op == OP_BASE_COMBINE || op == OP_BASE_TOTAL,
        gpu = op == OP_GPU_BASE_DISPATCH || op == OP_GPU_BASE_COMBINE || op == OP_GPU_BARE;
    int sums = op == OP_COMBINE || op == OP_BASE_COMBINE || op == OP_GPU_COMBINE ||
               op == OP_GPU_BASE_COMBINE || op == OP_TOTAL || op == OP_BASE_TOTAL ||
               op == OP_GPU_TOTAL;
    return (!base || x->has_base) && (!gpu || (x->has_base && x->base.nccl)) &&
           (!sums || x->b->has_combine);
}

static void op_start(cuda_run *x, int op) {
    switch (op) {
    case OP_GPU_ROUTE: cuda_ours_route(x, CUDA_ON_STREAM); break;
    case OP_GPU_DISPATCH: cuda_ours_dispatch(x, CUDA_ON_STREAM, CUDA_LEAN); break;
    case OP_GPU_TO_FP8: cuda_ours_dispatch(x, CUDA_ON_STREAM, CUDA_TO_FP8); break;
    case OP_GPU_COMBINE: cuda_ours_combine(x, CUDA_ON_STREAM, 0); break;
    case OP_GPU_FLOAT_SUMS: cuda_ours_combine(x, CUDA_ON_STREAM, MPIX_EP_F32); break;
    case OP_GPU_TOTAL:
        cuda_ours_route(x, CUDA_ON_STREAM);
        cuda_ours_dispatch(x, CUDA_ON_STREAM, CUDA_LEAN);
        cuda_ours_combine(x, CUDA_ON_STREAM, 0);
        break;
    case OP_GPU_BASE_DISPATCH: cuda_base_dispatch(x); break;
    case OP_GPU_BASE_COMBINE: cuda_base_combine(x); break;
    default: cuda_base_bare(x);
    }
}

double cuda_elapsed(cuda_run *x, int from, int to) {
    float ms;
    CUDA(cudaEventElapsedTime(&ms, x->event[from], x->event[to]));
    return (double)ms * 1e3;
}

/* t: phases, then the whole last. */
static void op_gpu(cuda_run *x, int op, double *t) {
    cuda_ours_route(x, CUDA_ON_STREAM);
    CUDA(cudaEventRecord(x->event[0], x->stream));
    op_start(x, op);
    CUDA(cudaEventRecord(x->event[3], x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    t[PHASES - 1] = cuda_elapsed(x, 0, 3);
    if (op == OP_GPU_BASE_DISPATCH || op == OP_GPU_BASE_COMBINE) {
        t[0] = cuda_elapsed(x, 0, 1);
        t[1] = cuda_elapsed(x, 1, 2);
        t[2] = cuda_elapsed(x, 2, 3);
    }
}

static void op_whole(cuda_run *x, int op, double *t) {
    double t0 = bench_now_us();
    int base = op == OP_BASE_DISPATCH || op == OP_BASE_COMBINE || op == OP_BASE_TOTAL;
    if (op == OP_DISPATCH || op == OP_TOTAL) {
        cuda_ours_route(x, CUDA_BLOCKING);
        t[0] = bench_now_us() - t0;
        cuda_ours_dispatch(x, CUDA_BLOCKING, CUDA_LEAN);
        t[1] = bench_now_us() - t0 - t[0];
    }
    if (op == OP_BASE_DISPATCH || op == OP_BASE_TOTAL) {
        cuda_base_counts(x);
        t[0] = bench_now_us() - t0;
        cuda_base_dispatch(x);
    }
    if (op == OP_COMBINE || (op == OP_TOTAL && x->b->has_combine))
        cuda_ours_combine(x, CUDA_BLOCKING, 0);
    if (op == OP_BASE_COMBINE || (op == OP_BASE_TOTAL && x->b->has_combine))
        cuda_base_combine(x);
    if (base)
        CUDA(cudaStreamSynchronize(x->stream));
    t[PHASES - 1] = bench_now_us() - t0;
}

static void measure(cuda_run *x, bench_result *r) {
    const bench *b = x->b;
    int blocks = (b->opt.iterations + BENCH_BLOCK - 1) / BENCH_BLOCK, samples = blocks * BENCH_KEEP;
    double *all = bench_alloc(b, (size_t)(OPS * PHASES * samples) * sizeof *all), t[PHASES] = {0};
    bench_stats s[OPS][PHASES];
    for (int block = -1; block < blocks; block++)
        for (int op = 0; op < OPS; op++) {
            int calls = block < 0 ? b->opt.warmup : BENCH_BLOCK;
            for (int i = 0; i < calls && op_wanted(x, op); i++) {
                MPI_Barrier(b->comm);
                nvtxRangePushA(op_names[op]);
                (op >= OP_GPU_ROUTE ? op_gpu : op_whole)(x, op, t);
                nvtxRangePop();
                for (int p = 0; block >= 0 && i >= BENCH_DROP && p < PHASES; p++)
                    all[(op * PHASES + p) * samples + block * BENCH_KEEP + i - BENCH_DROP] = t[p];
            }
        }
    for (int op = 0; op < OPS; op++)
        for (int p = 0; p < PHASES; p++)
            s[op][p] = bench_stats_of(b, all + (op * PHASES + p) * samples, samples);
    free(all);
    bench_side *side = &r->side[0];
    const int whole = PHASES - 1;
    r->samples = samples;
    r->nside = 1;
    side->route = s[OP_DISPATCH][0];
    side->dispatch = s[OP_DISPATCH][1];
    side->route_dispatch = s[OP_DISPATCH][whole];
    side->combine = s[OP_COMBINE][whole];
    side->total = s[OP_TOTAL][whole];
    side->gpu_route = s[OP_GPU_ROUTE][whole];
    side->gpu_dispatch = s[OP_GPU_DISPATCH][whole];
    side->gpu_combine = s[OP_GPU_COMBINE][whole];
    side->gpu_total = s[OP_GPU_TOTAL][whole];
    r->has_to_fp8 = becomes_fp8(x);
    side->gpu_to_fp8 = s[OP_GPU_TO_FP8][whole];
    r->has_float_sums = has_float_sums(x);
    side->gpu_float_sums = s[OP_GPU_FLOAT_SUMS][whole];
    r->has_base = x->has_base;
    r->base_dispatch_all = s[OP_BASE_DISPATCH][whole];
    r->base_dispatch[BASE_COUNTS] = s[OP_BASE_DISPATCH][0];
    r->base_combine_all = s[OP_BASE_COMBINE][whole];
    r->base_total = s[OP_BASE_TOTAL][whole];
    r->has_gpu_base = x->has_base && x->base.nccl;
    memcpy(r->gpu_base_dispatch, s[OP_GPU_BASE_DISPATCH], sizeof r->gpu_base_dispatch);
    memcpy(r->gpu_base_combine, s[OP_GPU_BASE_COMBINE], sizeof r->gpu_base_combine);
    r->gpu_base_bare = s[OP_GPU_BARE][whole];
}

void bench_cuda_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                     long recv_capacity, bench_result *r) {
    cuda_run run = {.b = b,
                    .plan = &plans[0],
                    .n = plans[0].n,
                    .capacity = capacity,
                    .has_base = b->opt.baseline != BENCH_NO_BASELINE},
             *x = &run;
    r->tokens = plans[0].n;
    r->sms = b->sms;
    r->verified = b->opt.validate ? 1 : -1;
    r->base_verified = b->opt.validate && x->has_base ? 1 : -1;
    cuda_run_create(x);
    if (x->has_base)
        cuda_base_create(x, recv_capacity);
    for (int i = rounds - 1; i >= -1; i--) { /* the last time after everything that was measured */
        int round = i < 0 ? 0 : i;
        x->plan = &plans[round];
        if (i < 0) {
            cuda_fill(x, 0, 0);
            cuda_ours_route(x, CUDA_BLOCKING);
            if (x->has_base)
                cuda_base_counts(x);
            bench_measure_bytes(b, x->plan, r);
            measure(x, r);
            if (b->opt.bounds)
                cuda_bounds(x, &r->bounds);
            if (b->opt.overlap)
                cuda_overlap(x, r);
        }
        if (!b->opt.validate)
            continue;
        cuda_fill(x, round, round % 2 == 0);
        r->verified &= cuda_verify_ours(x, round, round % 2 == 0);
        if (x->has_base)
            r->base_verified &= cuda_verify_base(x, round, round % 2 == 0);
    }
    if (x->has_base)
        cuda_base_free(x);
    cuda_run_free(x);
}

const char *bench_cuda_available(int nccl) {
#ifndef HAVE_NCCL
    if (nccl)
        return "this build has no NCCL (nccl.h was not found when it was configured)";
#endif
    (void)nccl;
    return NULL;
}
int bench_cuda_default(void) {
#ifdef HAVE_NCCL
    return BENCH_NCCL;
#else
    return BENCH_MPI;
#endif
}

#else

const char *bench_cuda_available(int nccl) {
    (void)nccl;
    return "this build has no GPU memory (nvcc was not found when it was configured)";
}
int bench_cuda_default(void) { return BENCH_MPI; }
const char *bench_cuda_open(bench *b) {
    (void)b;
    return bench_cuda_available(0);
}
void bench_cuda_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                     long recv_capacity, bench_result *r) {
    (void)plans, (void)rounds, (void)capacity, (void)recv_capacity, (void)r;
    bench_die(b, "no GPU memory");
}
int bench_cuda_ll_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                       long recv_capacity, bench_result *r) {
    (void)plans, (void)rounds, (void)capacity, (void)recv_capacity, (void)r;
    bench_die(b, "no GPU memory");
}

#endif
