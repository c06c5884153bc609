/*
 * cuda.c - mpix_ep_bench in GPU memory: a context, its buffers, a baseline; verification; times of two kinds. Whole calls are timed by
 * the host's clock around blocking calls, as in host memory. GPU times are those of calls on a stream between two events, behind a route
 * that lines the ranks' GPUs up, so that they do not count how far the hosts are apart; for dispatch and combine the routing is cached,
 * and the baseline's counts are known.
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
    if (b->size > BENCH_CUDA_RANKS)
        return "--memory cuda: at most 32 ranks";
    cuda_check(b, cudaSetDevice(rank % devices), "cudaSetDevice");
    cuda_check(b, cudaGetDeviceProperties(&prop, rank % devices), "cudaGetDeviceProperties");
    snprintf(b->gpu, sizeof b->gpu, "%.63s", prop.name);
    if (b->opt.baseline == BENCH_NCCL && ranks > devices)
        return "--baseline nccl: NCCL does not let ranks share a GPU; use mpi or none";
    return b->opt.baseline == BENCH_NCCL ? bench_nccl_load(&b->nccl_version) : NULL;
}

/* ---- context and buffers ---- */

static void *plain(cuda_run *x, size_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, bytes + 64));
    CUDA(cudaMemset(p, 0x11, bytes + 64));
    return p;
}
static void *shared(cuda_run *x, size_t bytes) { /* collective */
    void *p;
    bench_check(x->b, MPIX_Ep_alloc(x->ep, (MPI_Count)bytes + 64, MPI_INFO_NULL, &p), "MPIX_Ep_alloc");
    return p;
}

static void run_create(cuda_run *x) {
    const bench *b = x->b;
    size_t n = (size_t)x->n, rows = (size_t)x->capacity + 1, k = (size_t)b->opt.topk;
    cudaStream_t stream;
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.layout = b->opt.layout;
    config.memkind = MPIX_EP_CUDA;
    config.max_topk = b->opt.topk ? b->opt.topk : 1;
    config.expert_align = b->opt.layout == MPIX_EP_EXPERT ? b->opt.expert_align : 0;
    config.num_experts = b->opt.num_experts;
    config.max_tokens = x->n;
    config.max_recv_rows = x->capacity;
    config.max_row_bytes = (MPI_Count)(b->row_bytes + b->scale_bytes);
    config.num_sms = b->sms;
    bench_check(b, MPIX_Ep_create(b->ep_comm, &config, MPI_INFO_NULL, &x->ep), "MPIX_Ep_create");
    bench_check(b, MPIX_Ep_handle_create(x->ep, &x->handle), "MPIX_Ep_handle_create");
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    x->stream = stream;
    for (int i = 0; i < 4; i++) {
        cudaEvent_t event;
        CUDA(cudaEventCreate(&event));
        x->event[i] = event;
    }
    x->ids = plain(x, n * k * 4);
    x->weights = plain(x, n * k * 4);
    x->x = plain(x, n * b->row_bytes);
    x->x_scales = plain(x, n * b->scale_bytes);
    x->y = plain(x, n * b->y_bytes);
    x->local_ids = plain(x, rows * k * 4);
    x->out_weights = plain(x, rows * (k ? k : 1) * 4);
    x->src_rank = plain(x, rows * 4);
    x->src_token = plain(x, rows * sizeof(MPI_Count));
    x->out = shared(x, rows * b->row_bytes);
    x->out_scales = shared(x, rows * b->scale_bytes);
    x->ein = shared(x, rows * b->row_bytes);
    x->ein_scales = shared(x, rows * b->scale_bytes);
}

static void run_free(cuda_run *x) {
    void *const all[] = {x->ids, x->weights, x->x, x->x_scales, x->y, x->local_ids, x->out_weights, x->src_rank, x->src_token};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CUDA(cudaFree(all[i]));
    CUDA(cudaStreamDestroy(x->stream));
    for (int i = 0; i < 4; i++)
        CUDA(cudaEventDestroy(x->event[i]));
    bench_check(x->b, MPIX_Ep_free(&x->ep), "MPIX_Ep_free");
}

/* ---- the library's calls ---- */

enum { ON_STREAM, BLOCKING };

static void ours_route(cuda_run *x, int how) {
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPI_Count total;
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = x->n;
    routing.topk = x->b->opt.topk;
    routing.ids = x->n && x->b->opt.topk ? x->ids : NULL;
    counts.recv_total = &total;
    bench_check(x->b, how == BLOCKING ? MPIX_Ep_route(x->handle, &routing, &counts) : MPIX_Ep_route_enqueue(x->handle, &routing, NULL, x->stream),
                "MPIX_Ep_route");
    if (how == BLOCKING && total != x->plan->rows)
        bench_die(x->b, "recv_total is %lld, expected %ld", (long long)total, x->plan->rows);
}

static void ours_dispatch(cuda_run *x, int how, int all) {
    const bench *b = x->b;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){x->x, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->x_scales : NULL, 0};
    out.capacity_rows = x->plan->rows;
    out.x = (MPIX_Ep_rows){x->out, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->out_scales : NULL, 0};
    if (b->opt.metadata) {
        in.topk_weights = x->weights;
        out.topk_weights = x->out_weights;
        out.local_ids = b->opt.layout == MPIX_EP_COMPACT ? x->local_ids : NULL;
    }
    if (all) {
        out.src_rank = x->src_rank;
        out.src_token = x->src_token;
    }
    bench_check(b, how == BLOCKING ? MPIX_Ep_dispatch(x->handle, &in, &out) : MPIX_Ep_dispatch_enqueue(x->handle, &in, &out, x->stream),
                "MPIX_Ep_dispatch");
}

static void ours_combine(cuda_run *x, int how) {
    const bench *b = x->b;
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){x->ein, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->ein_scales : NULL, 0};
    if (b->opt.layout == MPIX_EP_EXPERT && b->opt.metadata)
        in.topk_weights = x->weights;
    out.y.data = x->y;
    out.y.dtype = b->ydtype;
    bench_check(b, how == BLOCKING ? MPIX_Ep_combine(x->handle, &in, &out) : MPIX_Ep_combine_enqueue(x->handle, &in, &out, x->stream), "MPIX_Ep_combine");
}

/* ---- contents and verification ---- */

static void upload(cuda_run *x, void *to, const void *from, size_t bytes) { CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice)); }
static void *download(cuda_run *x, const void *from, size_t bytes) {
    void *p = bench_alloc(x->b, bytes);
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    return p;
}

static void fill(cuda_run *x, int round, int exact) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    size_t n = (size_t)p->n, rows = (size_t)p->rows, stride = (size_t)x->base.ein_stride;
    char *rows_host = bench_alloc(b, n * b->row_bytes), *scales = bench_alloc(b, n * b->scale_bytes);
    bench_fill_tokens(b, p, round, rows_host, scales);
    upload(x, x->x, rows_host, n * b->row_bytes);
    upload(x, x->x_scales, scales, n * b->scale_bytes);
    upload(x, x->ids, p->ids, n * (size_t)p->k * 4);
    upload(x, x->weights, p->weights, n * (size_t)p->k * 4);
    free(rows_host);
    free(scales);
    if (!b->has_combine)
        return;
    bench_values values;
    bench_values_make(b, exact, &values);
    rows_host = bench_alloc(b, rows * b->row_bytes), scales = bench_alloc(b, rows * b->scale_bytes);
    bench_fill_experts(b, p, round, &values, rows_host, 0, scales, 0);
    upload(x, x->ein, rows_host, rows * b->row_bytes);
    upload(x, x->ein_scales, scales, rows * b->scale_bytes);
    for (size_t i = 0; x->has_base && i < 2 && rows > 0; i++)
        if (i == 0 || b->scale_bytes)
            CUDA(cudaMemcpy2D(x->base.ein + (i ? x->base.scale_at : 0), stride, i ? scales : rows_host, i ? b->scale_bytes : b->row_bytes,
                              i ? b->scale_bytes : b->row_bytes, rows, cudaMemcpyHostToDevice));
    free(rows_host);
    free(scales);
}

static int verify_ours(cuda_run *x, int round, int exact) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    size_t rows = (size_t)p->rows, k = (size_t)p->k;
    CUDA(cudaMemset(x->out, 0xa5, rows * b->row_bytes + 64));
    CUDA(cudaMemset(x->y, 0xa5, (size_t)p->n * b->y_bytes));
    ours_route(x, BLOCKING);
    ours_dispatch(x, BLOCKING, 1);
    void *out = download(x, x->out, rows * b->row_bytes + 64), *scales = download(x, x->out_scales, rows * b->scale_bytes);
    int *ids = download(x, x->local_ids, rows * k * 4), *src = download(x, x->src_rank, rows * 4);
    float *weights = download(x, x->out_weights, rows * (k ? k : 1) * 4);
    MPI_Count *token = download(x, x->src_token, rows * sizeof(MPI_Count));
    int beyond = 0;
    for (int i = 0; i < 64; i++)
        beyond |= ((unsigned char *)out)[rows * b->row_bytes + (size_t)i] != 0xa5;
    if (beyond)
        fprintf(stderr, "mpix_ep_bench: rank %d: dispatch wrote beyond recv_total\n", b->rank);
    int good = bench_verify_received(b, p, "MPIX_Ep", out, b->row_bytes, scales, b->scale_bytes,
                                     b->opt.metadata && b->opt.layout == MPIX_EP_COMPACT ? ids : NULL, src, token, b->opt.metadata ? weights : NULL, round);
    free(out), free(scales), free(ids), free(src), free(weights), free(token);
    if (b->has_combine) {
        ours_combine(x, BLOCKING);
        void *y = download(x, x->y, (size_t)p->n * b->y_bytes);
        good &= bench_verify_sums(b, p, "MPIX_Ep", y, round, exact, b->opt.layout == MPIX_EP_EXPERT);
        free(y);
    }
    return good && !beyond;
}

static int verify_base(cuda_run *x, int round, int exact) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    cuda_base *m = &x->base;
    size_t rows = (size_t)p->rows, k = (size_t)p->k;
    CUDA(cudaMemset(m->recv, 0xa5, (size_t)m->recv_rows * (size_t)m->record));
    cuda_base_counts(x);
    cuda_base_dispatch(x);
    CUDA(cudaStreamSynchronize(x->stream));
    char *out = download(x, m->recv, rows * (size_t)m->record);
    int *ids = download(x, m->local_ids, rows * k * 4);
    float *weights = download(x, m->weights, rows * k * 4);
    int good = bench_verify_received(b, p, "baseline", out, (size_t)m->record, out + m->scale_at, (size_t)m->record, b->opt.metadata ? ids : NULL, NULL, NULL,
                                     b->opt.metadata ? weights : NULL, round);
    free(out), free(ids), free(weights);
    if (b->has_combine) {
        CUDA(cudaMemset(m->y, 0xa5, (size_t)p->n * b->y_bytes));
        cuda_base_combine(x);
        CUDA(cudaStreamSynchronize(x->stream));
        void *y = download(x, m->y, (size_t)p->n * b->y_bytes);
        good &= bench_verify_sums(b, p, "baseline", y, round, exact, 0);
        free(y);
    }
    return good;
}

/* ---- times ---- */

enum { OP_DISPATCH, OP_BASE_DISPATCH, OP_COMBINE, OP_BASE_COMBINE, OP_TOTAL, OP_BASE_TOTAL, OP_GPU_ROUTE, OP_GPU_DISPATCH, OP_GPU_BASE_DISPATCH,
       OP_GPU_COMBINE, OP_GPU_BASE_COMBINE, OP_GPU_TOTAL, OP_GPU_BARE, OPS };
enum { PHASES = 4 };
static const char *const op_names[OPS] = {"route, dispatch", "baseline: counts, dispatch", "combine", "baseline: combine", "total", "baseline: total",
    "GPU: route", "GPU: dispatch", "GPU: baseline dispatch", "GPU: combine", "GPU: baseline combine", "GPU: total", "GPU: bare all-to-all-v"};

static int op_wanted(const cuda_run *x, int op) {
    int base = op == OP_BASE_DISPATCH || op == OP_BASE_COMBINE || op == OP_BASE_TOTAL, gpu = op == OP_GPU_BASE_DISPATCH || op == OP_GPU_BASE_COMBINE || op == OP_GPU_BARE;
    int sums = op == OP_COMBINE || op == OP_BASE_COMBINE || op == OP_GPU_COMBINE || op == OP_GPU_BASE_COMBINE || op == OP_TOTAL || op == OP_BASE_TOTAL || op == OP_GPU_TOTAL;
    return (!base || x->has_base) && (!gpu || (x->has_base && x->base.nccl)) && (!sums || x->b->has_combine);
}

static void op_start(cuda_run *x, int op) {
    switch (op) {
    case OP_GPU_ROUTE: ours_route(x, ON_STREAM); break;
    case OP_GPU_DISPATCH: ours_dispatch(x, ON_STREAM, 0); break;
    case OP_GPU_COMBINE: ours_combine(x, ON_STREAM); break;
    case OP_GPU_TOTAL:
        ours_route(x, ON_STREAM);
        ours_dispatch(x, ON_STREAM, 0);
        ours_combine(x, ON_STREAM);
        break;
    case OP_GPU_BASE_DISPATCH: cuda_base_dispatch(x); break;
    case OP_GPU_BASE_COMBINE: cuda_base_combine(x); break;
    default: cuda_base_bare(x);
    }
}

static double elapsed(cuda_run *x, int from, int to) {
    float ms;
    CUDA(cudaEventElapsedTime(&ms, x->event[from], x->event[to]));
    return (double)ms * 1e3;
}

/* t: phases, then the whole last. */
static void op_gpu(cuda_run *x, int op, double *t) {
    ours_route(x, ON_STREAM);
    CUDA(cudaEventRecord(x->event[0], x->stream));
    op_start(x, op);
    CUDA(cudaEventRecord(x->event[3], x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    t[PHASES - 1] = elapsed(x, 0, 3);
    if (op == OP_GPU_BASE_DISPATCH || op == OP_GPU_BASE_COMBINE) {
        t[0] = elapsed(x, 0, 1);
        t[1] = elapsed(x, 1, 2);
        t[2] = elapsed(x, 2, 3);
    }
}

static void op_whole(cuda_run *x, int op, double *t) {
    double t0 = bench_now_us();
    int base = op == OP_BASE_DISPATCH || op == OP_BASE_COMBINE || op == OP_BASE_TOTAL;
    if (op == OP_DISPATCH || op == OP_TOTAL) {
        ours_route(x, BLOCKING);
        t[0] = bench_now_us() - t0;
        ours_dispatch(x, BLOCKING, 0);
        t[1] = bench_now_us() - t0 - t[0];
    }
    if (op == OP_BASE_DISPATCH || op == OP_BASE_TOTAL) {
        cuda_base_counts(x);
        t[0] = bench_now_us() - t0;
        cuda_base_dispatch(x);
    }
    if (op == OP_COMBINE || (op == OP_TOTAL && x->b->has_combine))
        ours_combine(x, BLOCKING);
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

void bench_cuda_size(const bench *b, const bench_plan *plans, int rounds, long capacity, long recv_capacity, bench_result *r) {
    cuda_run run = {.b = b, .plan = &plans[0], .n = plans[0].n, .capacity = capacity, .has_base = b->opt.baseline != BENCH_NO_BASELINE}, *x = &run;
    r->tokens = plans[0].n;
    r->sms = b->sms;
    r->verified = b->opt.validate ? 1 : -1;
    r->base_verified = b->opt.validate && x->has_base ? 1 : -1;
    run_create(x);
    if (x->has_base)
        cuda_base_create(x, recv_capacity);
    for (int i = rounds - 1; i >= -1; i--) { /* the last time after everything that was measured */
        int round = i < 0 ? 0 : i;
        x->plan = &plans[round];
        if (i < 0) {
            fill(x, 0, 0);
            ours_route(x, BLOCKING);
            if (x->has_base)
                cuda_base_counts(x);
            bench_measure_bytes(b, x->plan, r);
            measure(x, r);
        }
        if (!b->opt.validate)
            continue;
        fill(x, round, round % 2 == 0);
        r->verified &= verify_ours(x, round, round % 2 == 0);
        if (x->has_base)
            r->base_verified &= verify_base(x, round, round % 2 == 0);
    }
    if (x->has_base)
        cuda_base_free(x);
    run_free(x);
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
int bench_cuda_default(void) {
    return BENCH_MPI;
}
const char *bench_cuda_open(bench *b) {
    (void)b;
    return bench_cuda_available(0);
}
void bench_cuda_size(const bench *b, const bench_plan *plans, int rounds, long capacity, long recv_capacity, bench_result *r) {
    (void)plans, (void)rounds, (void)capacity, (void)recv_capacity, (void)r;
    bench_die(b, "no GPU memory");
}

#endif
