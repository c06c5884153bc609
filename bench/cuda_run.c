/*
 * cuda_run.c - mpix_ep_bench in GPU memory: a context of either mode, its buffers, the library's
 * calls, and what they deliver.
 */
#include "config.h"

#include "bench/bench.h"

#ifdef HAVE_CUDA
#include "bench/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

/* ---- context and buffers --------------------------------------------------------------------- */

static void *plain(cuda_run *x, size_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, bytes + 64));
    CUDA(cudaMemset(p, 0x11, bytes + 64));
    return p;
}
static void *shared(cuda_run *x, size_t bytes) { /* collective */
    void *p;
    bench_check(x->b, MPIX_Ep_alloc(x->ep, (MPI_Count)bytes + 64, MPI_INFO_NULL, &p),
                "MPIX_Ep_alloc");
    return p;
}

void cuda_run_create(cuda_run *x) {
    const bench *b = x->b;
    size_t n = (size_t)x->n, rows = (size_t)x->capacity + 1, k = (size_t)b->opt.topk,
           row = b->row_bytes + b->scale_bytes;
    size_t wire = b->y_bytes, fp8_scales = ((size_t)b->opt.hidden + 127) / 128 * sizeof(float),
           fp8 = (size_t)b->opt.hidden + fp8_scales;
    cudaStream_t stream;
    MPIX_Ep_config config;
    MPI_Info info = MPI_INFO_NULL;
    MPIX_INIT(&config);
    config.mode = x->ll ? MPIX_EP_LL : MPIX_EP_HT;
    config.layout = x->ll && b->opt.layout == MPIX_EP_COMPACT ? MPIX_EP_SLOTS : b->opt.layout;
    config.memkind = MPIX_EP_CUDA;
    config.max_topk = b->opt.topk ? b->opt.topk : 1;
    config.expert_align = b->opt.layout == MPIX_EP_EXPERT ? b->opt.expert_align : 0;
    config.num_experts = b->opt.num_experts;
    config.max_tokens = x->n;
    config.max_recv_rows = x->ll ? 0 : x->capacity;
    if (x->ll) { /* fp8 rows come back as bf16, others may become fp8 */
        row = wire > row ? wire : row;
        row = fp8 > row ? fp8 : row;
    }
    config.max_row_bytes = (MPI_Count)row;
    config.num_sms = b->sms;
    if (b->opt.two_hops) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpix_ep_two_hops", b->opt.two_hops == 1 ? "on" : "off");
    }
    bench_check(b, MPIX_Ep_create(b->ep_comm, &config, info, &x->ep), "MPIX_Ep_create");
    if (b->opt.two_hops)
        MPI_Info_free(&info);
    x->chained = !x->ll && bench_chained(b, x->ep);
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
    x->out_scales = shared(x, rows * (b->scale_bytes > fp8_scales ? b->scale_bytes : fp8_scales));
    x->ein = shared(x, rows * b->row_bytes);
    x->ein_scales = shared(x, rows * b->scale_bytes);
}

void cuda_run_free(cuda_run *x) {
    void *const all[] = {x->ids,       x->weights,     x->x,        x->x_scales, x->y,
                         x->local_ids, x->out_weights, x->src_rank, x->src_token};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CUDA(cudaFree(all[i]));
    CUDA(cudaStreamDestroy(x->stream));
    for (int i = 0; i < 4; i++)
        CUDA(cudaEventDestroy(x->event[i]));
    bench_check(x->b, MPIX_Ep_free(&x->ep), "MPIX_Ep_free");
}

/* ---- the library's calls --------------------------------------------------------------------- */

void cuda_ours_route(cuda_run *x, int how) {
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPI_Count total;
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = x->n;
    routing.topk = x->b->opt.topk;
    routing.ids = x->n && x->b->opt.topk ? x->ids : NULL;
    counts.recv_total = &total;
    bench_check(x->b,
                how == CUDA_BLOCKING ? MPIX_Ep_route(x->handle, &routing, x->ll ? NULL : &counts)
                                     : MPIX_Ep_route_enqueue(x->handle, &routing, NULL, x->stream),
                "MPIX_Ep_route");
    if (how == CUDA_BLOCKING && !x->ll && total != x->plan->rows)
        bench_die(x->b, "recv_total is %lld, expected %ld", (long long)total, x->plan->rows);
}

void cuda_ours_dispatch(cuda_run *x, int how, int what) {
    const bench *b = x->b;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){
        x->x, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->x_scales : NULL, 0};
    out.capacity_rows = x->ll ? x->capacity : x->plan->rows;
    out.x = (MPIX_Ep_rows){
        x->out, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->out_scales : NULL, 0};
    if (b->opt.metadata) {
        in.topk_weights = x->weights;
        out.topk_weights = x->out_weights;
        out.local_ids = b->opt.layout == MPIX_EP_COMPACT ? x->local_ids : NULL;
    }
    if (what == CUDA_TO_FP8)
        out.x = (MPIX_Ep_rows){x->out, 0, MPIX_EP_F8E4M3, MPIX_EP_SCALES_F32, x->out_scales, 0};
    if (what == CUDA_ALL) {
        out.src_rank = x->src_rank;
        out.src_token = x->src_token;
    }
    int code;
    if (how == CUDA_BLOCKING)
        code = MPIX_Ep_dispatch(x->handle, &in, &out);
    else if (how == CUDA_BEGIN)
        code = MPIX_Ep_dispatch_begin_enqueue(x->handle, &in, &out, x->stream);
    else
        code = MPIX_Ep_dispatch_enqueue(x->handle, &in, &out, x->stream);
    bench_check(b, code, "MPIX_Ep_dispatch");
}

void cuda_ours_combine(cuda_run *x, int how, int wire) {
    const bench *b = x->b;
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){
        x->ein, 0, b->opt.dtype, b->opt.scale_kind, b->scale_bytes ? x->ein_scales : NULL, 0};
    if (b->opt.layout == MPIX_EP_EXPERT && b->opt.metadata && x->ll)
        in.row_weights = x->out_weights; /* as dispatch brought them */
    else if (b->opt.layout == MPIX_EP_EXPERT && b->opt.metadata)
        in.topk_weights = x->weights;
    in.wire = wire;
    out.y.data = x->y;
    out.y.dtype = b->ydtype;
    int code;
    if (how == CUDA_BLOCKING)
        code = MPIX_Ep_combine(x->handle, &in, &out);
    else if (how == CUDA_BEGIN)
        code = MPIX_Ep_combine_begin_enqueue(x->handle, &in, &out, x->stream);
    else
        code = MPIX_Ep_combine_enqueue(x->handle, &in, &out, x->stream);
    bench_check(b, code, "MPIX_Ep_combine");
}

void cuda_ours_end(cuda_run *x, int combine) {
    if (combine)
        bench_check(x->b, MPIX_Ep_combine_end_enqueue(x->handle, x->stream),
                    "MPIX_Ep_combine_end_enqueue");
    else
        bench_check(x->b, MPIX_Ep_dispatch_end_enqueue(x->handle, x->stream),
                    "MPIX_Ep_dispatch_end_enqueue");
}

/* ---- contents and verification --------------------------------------------------------------- */

static void upload(cuda_run *x, void *to, const void *from, size_t bytes) {
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
static void *download(cuda_run *x, const void *from, size_t bytes) {
    void *p = bench_alloc(x->b, bytes);
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    return p;
}

static int is_slots(const cuda_run *x) { return x->ll && x->b->opt.layout == MPIX_EP_COMPACT; }

/* Combine's input, from rows in the plan's order. */
static void fill_slots(cuda_run *x, void *to, void *rows, size_t size) {
    if (!is_slots(x)) {
        upload(x, to, rows, (size_t)x->plan->rows * size);
        return;
    }
    char *slots = bench_alloc(x->b, (size_t)x->capacity * size);
    bench_ll_squeeze(x->plan, slots, size, 1, rows);
    upload(x, to, slots, (size_t)x->capacity * size);
    free(slots);
}

void cuda_fill(cuda_run *x, int round, int exact) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    size_t n = (size_t)p->n, rows = (size_t)p->rows, stride = (size_t)x->base.ein_stride;
    char *rows_host = bench_alloc(b, n * b->row_bytes),
         *scales = bench_alloc(b, n * b->scale_bytes);
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
    fill_slots(x, x->ein, rows_host, b->row_bytes);
    fill_slots(x, x->ein_scales, scales, b->scale_bytes);
    for (size_t i = 0; x->has_base && i < 2 && rows > 0; i++)
        if (i == 0 || b->scale_bytes)
            CUDA(cudaMemcpy2D(x->base.ein + (i ? x->base.scale_at : 0), stride,
                              i ? scales : rows_host, i ? b->scale_bytes : b->row_bytes,
                              i ? b->scale_bytes : b->row_bytes, rows, cudaMemcpyHostToDevice));
    free(rows_host);
    free(scales);
}

int cuda_verify_ours(cuda_run *x, int round, int exact) {
    const bench *b = x->b;
    const bench_plan *p = x->plan;
    size_t rows = is_slots(x) ? (size_t)x->capacity : (size_t)p->rows, k = (size_t)p->k,
           choices = b->opt.layout == MPIX_EP_COMPACT ? k : 1;
    CUDA(cudaMemset(x->out, 0xa5, rows * b->row_bytes + 64));
    CUDA(cudaMemset(x->y, 0xa5, (size_t)p->n * b->y_bytes));
    cuda_ours_route(x, CUDA_BLOCKING);
    cuda_ours_dispatch(x, CUDA_BLOCKING, CUDA_ALL);
    void *out = download(x, x->out, rows * b->row_bytes + 64),
         *scales = download(x, x->out_scales, rows * b->scale_bytes);
    int *ids = download(x, x->local_ids, rows * k * 4), *src = download(x, x->src_rank, rows * 4);
    float *weights = download(x, x->out_weights, rows * choices * 4);
    MPI_Count *token = download(x, x->src_token, rows * sizeof(MPI_Count));
    int beyond = 0;
    for (int i = 0; i < 64; i++)
        beyond |= ((unsigned char *)out)[rows * b->row_bytes + (size_t)i] != 0xa5;
    if (beyond)
        fprintf(stderr, "mpix_ep_bench: rank %d: dispatch wrote beyond its output\n", b->rank);
    if (is_slots(x)) { /* in place: a row never moves up */
        bench_ll_squeeze(p, out, b->row_bytes, 0, out);
        bench_ll_squeeze(p, scales, b->scale_bytes, 0, scales);
        bench_ll_squeeze(p, ids, k * sizeof *ids, 0, ids);
        bench_ll_squeeze(p, src, sizeof *src, 0, src);
        bench_ll_squeeze(p, token, sizeof *token, 0, token);
        bench_ll_squeeze(p, weights, k * sizeof *weights, 0, weights);
    }
    int good = bench_verify_received(b, p, x->ll ? "ll" : "MPIX_Ep", out, b->row_bytes, scales,
                                     b->scale_bytes,
                                     b->opt.metadata && b->opt.layout == MPIX_EP_COMPACT ? ids
                                                                                         : NULL,
                                     src, token, b->opt.metadata ? weights : NULL, round);
    free(out), free(scales), free(ids), free(src), free(weights), free(token);
    if (b->has_combine) {
        cuda_ours_combine(x, CUDA_BLOCKING, 0);
        void *y = download(x, x->y, (size_t)p->n * b->y_bytes);
        /* The sums of a rank are rounded on their way, which only exact ones do not show. */
        if (!x->ll || exact)
            good &= bench_verify_sums(b, p, x->ll ? "ll" : "MPIX_Ep", y, round, exact, !x->chained,
                                      x->chained || (!x->ll && b->opt.layout == MPIX_EP_EXPERT));
        free(y);
    }
    return good && !beyond;
}

int cuda_verify_base(cuda_run *x, int round, int exact) {
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
    int good = bench_verify_received(b, p, "baseline", out, (size_t)m->record, out + m->scale_at,
                                     (size_t)m->record, b->opt.metadata ? ids : NULL, NULL, NULL,
                                     b->opt.metadata ? weights : NULL, round);
    free(out), free(ids), free(weights);
    if (b->has_combine) {
        CUDA(cudaMemset(m->y, 0xa5, (size_t)p->n * b->y_bytes));
        cuda_base_combine(x);
        CUDA(cudaStreamSynchronize(x->stream));
        void *y = download(x, m->y, (size_t)p->n * b->y_bytes);
        good &= bench_verify_sums(b, p, "baseline", y, round, exact, 1, 0);
        free(y);
    }
    return good;
}
#endif
