/*
 * copy_engine.c - contexts whose rows are moved by copy engines (config.num_sms =
 * MPIX_EP_SMS_NONE): their part of a handle's window, and the counts that the host has to know. The
 * protocol is in kernels/cuda/copy_engine/copy_engine.cu.
 *
 * A handle's window has room for a batch to each peer (packed by dispatch, fetched from there) and
 * for one from each peer (pushed by combine). That is as much as the rows themselves, and the
 * reason why it is not the default.
 */
#include "config.h"

#include "coll/gpu/gpu.h"

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void mpix_ep_gpu_copy_engine_block(mpix_cuda_handle *d) {
    d->copy_engine.on = 1;
    d->copy_engine.words = d->block;
    d->copy_engine.cuts = d->copy_engine.words + sizeof(mpix_cuda_copy_engine_words);
    d->block = up(d->copy_engine.cuts + 2 * (MPIX_CUDA_PIECES + 1) * sizeof(uint32_t), 128);
}

size_t mpix_ep_gpu_copy_engine_window(mpix_ep *ep, mpix_cuda_handle *d, size_t bytes) {
    size_t tokens = (size_t)ep->config.max_tokens, row = (size_t)ep->config.max_row_bytes,
           peers = (size_t)ep->size - 1;
    size_t packed = row + d->record_bytes, pushed = row + 4 + 4 * (size_t)ep->config.max_topk;
    d->copy_engine.places = up(bytes, 4096);
    d->copy_engine.place_bytes = up(tokens * (packed > pushed ? packed : pushed) + 64, 4096);
    return d->copy_engine.places + peers * d->copy_engine.place_bytes + 1;
}

int mpix_ep_gpu_copy_engine_create(mpix_ep *ep, mpix_cuda_handle *d, char *why) {
    mpix_ep_gpu *gpu = ep->gpu;
    size_t counts = 3 + (size_t)ep->size * (MPIX_CUDA_PIECES + 1);
    int kind = gpu->ops->pinned_alloc(counts * sizeof(int64_t), (void **)&d->copy_engine.host, why);
    return kind ? kind
                : gpu->ops->copy_engine_create(&gpu->device, ep->params.gpu_copy_streams,
                                               &d->copy_engine.copies, why);
}

void mpix_ep_gpu_copy_engine_free(mpix_ep *ep, mpix_cuda_handle *d) {
    if (d->copy_engine.copies)
        ep->gpu->ops->copy_engine_destroy(&ep->gpu->device, d->copy_engine.copies);
    if (d->copy_engine.host)
        ep->gpu->ops->pinned_free(d->copy_engine.host);
}

int mpix_ep_gpu_copy_engine_counts(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    char why[MPIX_CUDA_WHY] = "";
    if (!g->dev.copy_engine.on || g->counted)
        return 0;
    /* The handle's last call was route, or a failed one behind it. Its kernels are bounded in time,
     * so this is too. */
    int kind = ep->gpu->ops->event_sync(&ep->gpu->device, g->event, why);
    g->counted = !kind;
    return kind ? mpix_fail(kind, NULL, "%s", why) : 0;
}
