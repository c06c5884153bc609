/*
 * ll.c - low-latency contexts in GPU memory: where things lie in a handle's window, the arguments
 * of dispatch and combine, combine's buffer. The protocol is in kernels/cuda/ll/ll.cuh.
 *
 * A window holds, for each source, a block of words, heads and counts; then, for each bank, a place
 * for max_tokens rows of each source and for max_tokens * min(max_topk, ranks) answers. Nobody
 * reaches into callers' memory, so their rows may lie anywhere on the device.
 */
#include "config.h"

#include "coll/gpu/gpu.h"

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

#define MOST ((double)((uint64_t)1 << 46))

int mpix_ep_gpu_ll_geometry(const MPIX_Ep_config *c, const mpix_ep_placement *p, mpix_cuda_ll *ll) {
    size_t ranks = (size_t)p->ranks, tokens = (size_t)c->max_tokens, k = (size_t)c->max_topk,
           depth = (size_t)c->depth, local = 0, at;
    for (int r = 0; r < p->ranks; r++)
        local = (size_t)p->nlocal[r] > local ? (size_t)p->nlocal[r] : local;
    *ll = (mpix_cuda_ll){.on = 1,
                         .expert = c->layout == MPIX_EP_EXPERT,
                         .depth = c->depth,
                         .align = c->expert_align};
    double most = (double)tokens * (double)ranks * (double)(k < local ? k : local) +
                  (double)local * c->expert_align;
    if (most > 2147483647.0 || (double)tokens * (double)ranks * (double)depth > 2147483647.0)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "config.max_tokens",
            "MPIX_EP_LL in GPU memory: %g rows at most, 2^31 - 1 can be had in this version", most);
    if (ll->expert && (local + 1) * (ranks + 1) > MPIX_EP_GPU_LL_SHARED_WORDS)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "config.num_experts",
            "MPIX_EP_LL in GPU memory, EXPERT layout: %zu experts on a rank, of %zu ranks; their "
            "product may be %d at most in this version",
            local, ranks, MPIX_EP_GPU_LL_SHARED_WORDS);
    if ((double)depth * ((double)ranks + 1) * ((double)tokens + 1) *
            (2.0 * (double)c->max_row_bytes + 24.0 * (double)k + 256) >
        MOST)
        return mpix_fail(MPIX_ERRK_NO_MEM, "config.max_tokens",
                         "the banks for batches of %lld tokens exceed 2^46 bytes",
                         (long long)c->max_tokens);
    size_t places = depth * ranks * tokens, answers = tokens * (k < ranks ? k : ranks);
    ll->most = (int64_t)answers;
    ll->counts = 64 + 2 * depth * MPIX_CUDA_LL_HEAD;
    ll->counts_bytes = up(8 * local, 64);
    ll->block = up(ll->counts + depth * ll->counts_bytes, 128);
    ll->record = up(mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_LL, k), 16);
    ll->row = up((size_t)c->max_row_bytes + 15, 16); /* the scales begin at a multiple of 16 */
    ll->answer = up((size_t)c->max_row_bytes, 16);
    at = ll->block * ranks;
    ll->flags[0] = at, at = up(at + 8 * places, 256);
    ll->flags[1] = at, at = up(at + 8 * depth * answers, 256);
    ll->records = at, at = up(at + ll->record * places, 256);
    ll->rows = at, at = up(at + ll->row * places, 256);
    ll->answers = at, at = up(at + ll->answer * depth * answers, 256);
    ll->values = at, at = up(at + 4 * k * depth * answers, 256);
    ll->bytes = at;
    return 0;
}

int mpix_ep_gpu_ll_window_size(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                               int ranks_per_host, MPI_Count *bytes) {
    mpix_ep_placement placement;
    mpix_cuda_ll ll;
    int kind = mpix_ep_placement_sizes(&placement, c, ranks);
    if (kind)
        return kind;
    kind = mpix_ep_gpu_ll_geometry(c, &placement, &ll);
    mpix_ep_placement_free(&placement);
    if (kind)
        return kind;
    size_t remote = ranks_per_host < ranks
                        ? mpix_ep_gpu_remote_bytes(c, params, &ll, ranks, ranks_per_host)
                        : 0;
    *bytes = (MPI_Count)(2 * 4096 + ll.bytes + remote);
    return 0;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static int dispatch_memory(mpix_ep *ep, const MPIX_Ep_dispatch_in *in,
                           const MPIX_Ep_dispatch_out *out, int64_t tokens) {
    const struct {
        const void *p;
        const char *arg;
        int wanted;
    } all[] = {{in->x.data, "in.x.data", tokens > 0},
               {in->x.scales, "in.x.scales", tokens > 0},
               {in->topk_weights, "in.topk_weights", tokens > 0},
               {out->x.data, "out.x.data", out->capacity_rows > 0},
               {out->x.scales, "out.x.scales", out->capacity_rows > 0},
               {out->local_ids, "out.local_ids", 1},
               {out->src_rank, "out.src_rank", 1},
               {out->src_token, "out.src_token", 1},
               {out->topk_weights, "out.topk_weights", 1},
               {out->cumulative, "out.cumulative", 1},
               {out->wait_ns, "out.wait_ns", 1}};
    int kind = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !kind; i++)
        if (all[i].wanted)
            kind = mpix_ep_gpu_check(ep, all[i].p, all[i].arg);
    return kind;
}

static int dispatch_fill(struct mpix_ep_handle *handle, MPIX_Ep_dispatch_in *in,
                         MPIX_Ep_dispatch_out *out, mpix_cuda_dispatch *c, mpix_ep_gpu_call *call) {
    mpix_ep *ep = handle->ep;
    const mpix_cuda_handle *d = &((const mpix_ep_gpu_handle *)handle->gpu)->dev;
    int kind;
    int64_t tokens = handle->tokens, n = ep->size, local = d->local_experts,
            limit = out->capacity_rows, slots = n * ep->config.max_tokens;
    int bounded = ep->config.max_recv_rows > 0 && ep->config.max_recv_rows < limit;
    const char *arg = bounded ? "config.max_recv_rows" : "out.capacity_rows";
    limit = bounded ? ep->config.max_recv_rows : limit;
    if (!d->ll.expert && slots > limit && !d->drop)
        return mpix_fail(MPIX_ERRK_TRUNCATE, arg, "this rank receives %lld rows, %s is %lld",
                         (long long)slots, arg, (long long)limit);
    *c = (mpix_cuda_dispatch){.x = in->x.data,
                              .scales = in->x.scales,
                              .weights = in->topk_weights,
                              .tokens = tokens,
                              .x_stride = in->x.stride,
                              .scale_stride = in->x.scale_stride,
                              .row = (int64_t)mpix_ep_row_bytes(&out->x, in->hidden),
                              .scale_row = (int64_t)mpix_ep_scale_bytes(&out->x, in->hidden),
                              .topk = handle->topk,
                              .num_sms = ep->config.num_sms,
                              .hidden = in->hidden,
                              .quant = in->x.dtype != out->x.dtype ? in->x.dtype : 0,
                              .local_ids = out->local_ids,
                              .src_rank = out->src_rank,
                              .src_token = (int64_t *)out->src_token,
                              .out_weights = out->topk_weights,
                              .cumulative = out->cumulative,
                              .wait_ns = out->wait_ns,
                              .capacity = out->capacity_rows,
                              .out = out->x.data,
                              .out_scales = out->x.scales,
                              .out_stride = out->x.stride,
                              .out_scale_stride = out->x.scale_stride};
    c->offer = (mpix_cuda_offer){.dtype = (int16_t)out->x.dtype,
                                 .scale_kind = (int16_t)out->x.scale_kind,
                                 .hidden = in->hidden,
                                 .rows = limit};
    if ((kind = dispatch_memory(ep, in, out, tokens)))
        return kind;
    const int64_t *r = d->results + 2;
    c->counts = out->recv_per_rank || out->recv_per_expert || out->expert_offset;
    if ((kind = mpix_ep_gpu_count_output(ep, out->recv_per_rank, r, n, "out.recv_per_rank", call,
                                         &c->recv_per_rank)) ||
        (kind = mpix_ep_gpu_count_output(ep, out->recv_per_expert, r + 2 * n, local,
                                         "out.recv_per_expert", call, &c->recv_per_expert)))
        return kind;
    return mpix_ep_gpu_count_output(ep, out->expert_offset, r + 2 * n + local + d->experts,
                                    local + 1, "out.expert_offset", call, &c->expert_offset);
}

/* ---- combine --------------------------------------------------------------------------------- */

static int combine_fill(struct mpix_ep_handle *handle, MPIX_Ep_combine_in *in,
                        MPIX_Ep_combine_out *out, mpix_cuda_combine *c) {
    mpix_ep *ep = handle->ep;
    int kind = 0;
    int64_t tokens = handle->tokens, rows = handle->capacity,
            slots = ep->size * ep->config.max_tokens;
    mpix_ep_gpu_combine_set(handle, in, out, c);
    c->row = (int64_t)(mpix_dtype_size(in->wire) * (size_t)in->hidden);
    rows = rows < slots ? rows : slots;
    c->offer = (mpix_cuda_offer){.dtype = (int16_t)in->wire, .hidden = in->hidden, .rows = rows};
    for (int b = 0; b < in->num_bias && !kind; b++) {
        c->bias[b] = in->bias[b].data;
        c->bias_stride[b] = in->bias[b].stride;
        if (tokens > 0)
            kind = mpix_ep_gpu_check(ep, in->bias[b].data,
                                     b ? "in.bias[1].data" : "in.bias[0].data");
    }
    const struct {
        const void *p;
        const char *arg;
        int wanted;
    } all[] = {{in->x.data, "in.x.data", rows != 0},
               {in->x.scales, "in.x.scales", rows != 0},
               {in->row_weights, "in.row_weights", rows != 0},
               {in->slot_values, "in.slot_values", rows != 0},
               {out->y.data, "out.y.data", tokens > 0},
               {out->slot_values, "out.slot_values", 1},
               {out->wait_ns, "out.wait_ns", 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all && !kind; i++)
        if (all[i].wanted)
            kind = mpix_ep_gpu_check(ep, all[i].p, all[i].arg);
    return kind;
}

int mpix_ep_gpu_ll_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                            const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form) {
    return mpix_ep_gpu_dispatch_by(handle, in, out, form, dispatch_fill);
}

int mpix_ep_gpu_ll_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                           const MPIX_Ep_combine_out *out, const mpix_ep_form *form) {
    return mpix_ep_gpu_combine_by(handle, in, out, form, combine_fill);
}

/* One buffer serves all banks: in stream order a combine has read its rows when it ends. */
int mpix_ep_gpu_ll_combine_buffer(struct mpix_ep_handle *handle, MPIX_Ep_rows *rows) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    size_t pitch = up((size_t)ep->config.max_row_bytes, 64),
           bytes = (size_t)ep->size * (size_t)ep->config.max_tokens * pitch;
    int code = g->buffer ? MPI_SUCCESS
                         : mpix_ep_gpu_alloc(ep, (MPI_Count)bytes, MPI_INFO_NULL, &g->buffer);
    if (code != MPI_SUCCESS)
        return code;
    if (!rows)
        return mpix_boot_raise(ep->boot, mpix_fail(MPIX_ERRK_ARG, "rows", "rows is NULL"));
    *rows = (MPIX_Ep_rows){.data = g->buffer, .stride = (MPI_Count)pitch};
    return MPI_SUCCESS;
}
