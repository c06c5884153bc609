/* handle.c - handles in GPU memory: the arrays and windows that their kernels use. */
#include "config.h"

#include "coll/gpu/gpu.h"

#include <stdlib.h>

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Cuts one allocation into the arrays that kernels use. */
static size_t carve(mpix_ep *ep, mpix_cuda_handle *d, char *at) {
    size_t used = 0, n = (size_t)ep->size, tokens = (size_t)ep->config.max_tokens + 1,
           e = (size_t)ep->placement.experts;
    size_t blocks = tokens / MPIX_CUDA_BLOCK_TOKENS + 1;
#define CUT(field, count) \
    (d->field = (void *)(at + used), used += up((count) * sizeof *d->field, 256))
    CUT(state, 1);
    CUT(bitmap, tokens);
    CUT(rel, tokens * n);
    CUT(blk, blocks * n);
    CUT(histogram, e + MPIX_CUDA_RANKS);
    CUT(ids, tokens * (size_t)ep->config.max_topk);
    CUT(recv_expert, (size_t)ep->placement.nlocal[ep->rank] + 1);
    if (d->expert.on) {
        size_t topk = (size_t)ep->config.max_topk;
        CUT(expert.row, tokens * topk);
        CUT(expert.rel, tokens * topk);
        CUT(expert.first, tokens * n);
        CUT(expert.blk, blocks * e);
        CUT(expert.base, e + 1);
        CUT(expert.offset, (size_t)ep->placement.nlocal[ep->rank] + 1);
        CUT(expert.pushed, n * (size_t)d->expert.chunks);
        CUT(expert.used, n * (size_t)d->expert.chunks);
    }
    if (d->ll.on) {
        CUT(ll.sends, e + 1);
        CUT(ll.claims[0], tokens);
        CUT(ll.claims[1], n * tokens);
    }
    if (d->ll.expert) {
        CUT(ll.place, n * tokens * (size_t)ep->config.max_topk);
        CUT(expert.rel, tokens * (size_t)ep->config.max_topk);
        CUT(expert.blk, blocks * e);
    }
    CUT(copy_engine.signals, 24);
    if (d->remote.is) {
        CUT(remote.packed, 2 * n * MPIX_CUDA_REMOTE_CHUNKS);
        CUT(remote.here, 3 * n);
        CUT(remote.last, n * MPIX_CUDA_REMOTE_RAILS);
        CUT(remote.rel, d->remote.two_hops ? tokens * (size_t)d->remote.nhosts : 0);
        CUT(remote.blk, d->remote.two_hops ? blocks * (size_t)d->remote.nhosts : 0);
    }
#undef CUT
    return used;
}

size_t mpix_ep_gpu_expert_block(size_t block, int64_t tokens, int ranks, mpix_cuda_expert *x) {
    int64_t chunk = MPIX_CUDA_BLOCK_TOKENS;
    while ((tokens + chunk - 1) / chunk * ranks > MPIX_CUDA_CHUNKS)
        chunk *= 2;
    x->chunk = (int32_t)chunk;
    x->chunks = (int32_t)((tokens + chunk - 1) / chunk);
    x->starts = block;
    x->arrived = up(x->starts + 4 * ((size_t)x->chunks + 1), 64);
    x->freed = x->arrived + 8 * (size_t)x->chunks;
    return up(x->freed + 8 * (size_t)x->chunks, 128);
}

/* What the EXPERT layout adds to a window; d->block and d->records are set, `records` ends the
 * window so far. The window's size. */
static size_t expert_geometry(mpix_ep *ep, mpix_cuda_handle *d) {
    mpix_cuda_expert *x = &d->expert;
    int64_t tokens = ep->config.max_tokens;
    x->on = 1;
    x->align = (int32_t)ep->placement.align;
    x->pairs = tokens * ep->size;
    if (d->rows_limit >= 0 && x->pairs > d->rows_limit) /* a pair has a row at least */
        x->pairs = d->rows_limit;
    d->block = mpix_ep_gpu_expert_block(d->block, tokens, ep->size, x);
    d->records = up(d->block * (size_t)ep->size, 256);
    d->record_bytes =
        up(mpix_record_bytes(0, MPIX_RECORD_EXPERT_TOKEN, (size_t)ep->config.max_topk) + 4, 16);
    x->values = up(d->records + d->record_bytes * (size_t)x->pairs, 256);
    x->partial = up(x->values + 4 * (size_t)tokens * (size_t)ep->config.max_topk + 1, 4096);
    /* Partial sums of a peer: all of a batch if that fits, a chunk at least. In float a row of fp8
     * is four times as long, of bf16 twice. */
    size_t row = up(4 * (size_t)ep->config.max_row_bytes, 16), least = (size_t)x->chunk * row,
           all = (size_t)x->chunks * least;
    size_t peers = ep->size > 1 ? (size_t)ep->size - 1 : 1,
           room = ep->params.gpu_partial_bytes / peers;
    x->partial_bytes = ep->size == 1 ? 0 : up(room < least ? least : room < all ? room : all, 4096);
    return x->partial + x->partial_bytes * (size_t)(ep->size - 1) + 1;
}

/* What a handle has besides its window. */
static int handle_memory(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu *gpu = ep->gpu;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_cuda_handle *d = &g->dev;
    size_t n = (size_t)ep->size, e = (size_t)ep->placement.experts;
    char why[MPIX_CUDA_WHY] = "";
    mpix_ep_gpu_window_made(gpu, &g->window);
    for (int r = 0; r < ep->size; r++)
        d->window[r] = g->window.mem[r].p;
    int kind = gpu->ops->local_alloc(&gpu->device, carve(ep, d, NULL), &g->local, why);
    if (!kind)
        kind =
            gpu->ops->pinned_alloc(sizeof *g->captured + (2 + 2 * n + 2 * (size_t)d->local_experts +
                                                          1 + e + MPIX_CUDA_RANKS) *
                                                             sizeof(int64_t),
                                   &g->results, why);
    if (!kind)
        kind = gpu->ops->event_create(&gpu->device, &g->event, why);
    if (!kind)
        kind = gpu->ops->event_create(&gpu->device, &g->capture_event, why);
    if (!kind && d->copy_engine.on)
        kind = mpix_ep_gpu_copy_engine_create(ep, d, why);
    carve(ep, d, g->local);
    if (!kind)
        kind = mpix_ep_gpu_remote_begin(handle, d, why);
    g->captured = g->results;
    d->results = (int64_t *)(g->captured + 1);
    return mpix_boot_agree(ep->boot,
                           kind ? mpix_fail(kind, NULL, "a handle in GPU memory: %s", why) : 0);
}

int mpix_ep_gpu_handle_create(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu *gpu = ep->gpu;
    size_t n = (size_t)ep->size, e = (size_t)ep->placement.experts;
    mpix_ep_gpu_handle *g = calloc(1, sizeof *g);
    int kind = mpix_boot_agree(ep->boot,
                               g ? mpix_ep_gpu_keep_room(gpu)
                                 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle"));
    if (!kind)
        kind = mpix_ep_gpu_windows_collect(ep);
    if (kind) {
        free(g);
        return kind;
    }
    mpix_cuda_handle *d = &g->dev;
    handle->gpu = g;
    d->rank = ep->rank;
    d->size = ep->size;
    d->experts = (int32_t)e;
    d->local_experts = (int32_t)ep->placement.nlocal[ep->rank];
    d->max_topk = ep->config.max_topk;
    d->max_tokens = ep->config.max_tokens;
    d->max_rows = ep->max_rows;
    d->drop = ep->config.overflow == MPIX_EP_OVERFLOW_DROP;
    d->rows_limit = d->drop || ep->config.max_recv_rows == 0 ? -1 : ep->config.max_recv_rows;
    d->check = ep->config.check > 0;
    d->timeout_ns = ep->limit_ns;
    d->delay_ns = (uint64_t)ep->params.gpu_delay_us * 1000;
    d->ready = sizeof(mpix_cuda_words);
    d->offered = d->ready + 2 * sizeof(mpix_cuda_offer);
    d->counts = d->offered + 2 * sizeof(mpix_cuda_offer);
    /* of hosts: for two hops */
    d->counts_bytes = up(16 + 4 * (n + e + (size_t)ep->boot->nhosts), 64);
    d->block = up(d->counts + 2 * d->counts_bytes, 128);
    if (ep->config.num_sms == MPIX_EP_SMS_NONE)
        mpix_ep_gpu_copy_engine_block(d);
    d->records = up(d->block * n, 256);
    d->record_bytes = mpix_record_bytes(MPIX_RECORD_GPU, MPIX_RECORD_ROW,
                                        (size_t)ep->config.max_topk);
    d->bases = gpu->bases;
    d->failed = gpu->failed;
    d->alarm = gpu->alarm;
    d->owner = gpu->tables;
    d->local = gpu->tables + e;
    d->mine = gpu->tables + 2 * e;
    size_t bytes = d->records + d->record_bytes * (size_t)ep->max_rows + 1;
    if (ep->config.mode == MPIX_EP_LL) {
        /* was fine when the context was created */
        kind = mpix_ep_gpu_ll_geometry(&ep->config, &ep->placement, &d->ll);
        bytes = d->ll.bytes;
    } else if (ep->config.layout == MPIX_EP_EXPERT) {
        bytes = expert_geometry(ep, d);
    }
    if (d->copy_engine.on)
        bytes = mpix_ep_gpu_copy_engine_window(ep, d, bytes);
    kind = mpix_ep_gpu_remote_handle(handle, d);
    if (!kind)
        kind = mpix_ep_gpu_window_create(ep, bytes, &g->window);
    if (!kind)
        kind = handle_memory(handle);
    if (kind)
        mpix_ep_gpu_handle_free(handle, 0);
    return kind;
}

void mpix_ep_gpu_handle_free(struct mpix_ep_handle *handle, int with_context) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    (void)with_context; /* which ends handles first, as long as there are kernels to wait for */
    if (!g)
        return;
    const mpix_cuda_ops *ops = ep->gpu->ops;
    ops->device_sync(&ep->gpu->device); /* kernels end, if only by their time limit */
    mpix_ep_gpu_remote_end(handle, &g->dev);
    if (g->buffer)
        mpix_ep_gpu_dealloc(ep, g->buffer);
    if (!ep->failed && g->window.used)
        mpix_ep_gpu_window_back(ep, &g->window);
    if (g->local)
        ops->local_free(&ep->gpu->device, g->local);
    if (g->results)
        ops->pinned_free(g->results);
    if (g->event)
        ops->event_destroy(g->event);
    if (g->capture_event)
        ops->event_destroy(g->capture_event);
    mpix_ep_gpu_copy_engine_free(ep, &g->dev);
    free(g);
    handle->gpu = NULL;
}
