/*
 * remote_dispatch.cu - dispatch where some peers are reached through the proxy: one kernel, and
 * unpack_kernel where the caller wants what travels beside the rows. The protocol and its
 * arguments are in remote.cuh.
 *
 * A warp takes a token and stores its row everywhere at once: to its final place at mapped ranks,
 * to the batch that is packed for each proxied one. When all tokens are taken, warps place what
 * comes from proxied ranks: from the landing room to the caller's rows, and records to where mapped
 * sources would have written them. So the link carries packing, the proxy's copies and placing at
 * the same time, chunk by chunk.
 *
 * With two hops (forward.cuh) there is a batch for each other host instead, and what comes is
 * stored at every rank of this host that needs it; the words to mapped ranks come behind that, so
 * in the second half of a call that has halves.
 */
#include "common/copy.cuh"
#include "forward.cuh"
#include "common/launch.h"
#include "common/quant.cuh"

/* Where the row of a token goes at the rank of the lane; null: nowhere. */
struct remote_place {
    char *x, *scales, *record;
};

__device__ static remote_place place_of(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                        const mpix_cuda_remote_batch &b, const mpix_cuda_offer &o,
                                        int64_t base, uint32_t index) {
    int lane = threadIdx.x % 32;
    remote_place p = {nullptr, nullptr, nullptr};
    if (remote_is(h, lane)) {
        p.x = h.remote.window + remote_pack(h, lane) + index * b.item;
        p.scales = p.x + b.scales;
        p.record = p.x + b.record;
    } else if (base + index < o.rows) {
        int64_t row = base + index;
        p.x = place_at(h, lane, o.at[MPIX_EP_PLACE_X]) +
              row * (int64_t)o.at[MPIX_EP_PLACE_X].stride;
        if (c.scale_row > 0)
            p.scales = place_at(h, lane, o.at[MPIX_EP_PLACE_SCALES]) +
                       row * (int64_t)o.at[MPIX_EP_PLACE_SCALES].stride;
        if (o.flags & MPIX_EP_OFFER_RECORDS)
            p.record = h.window[lane] + h.records + row * h.record_bytes;
    }
    return p;
}

/* Whole tokens, by warps. o: the offer of the lane's rank. 0, or 2: the context has failed. */
__device__ static int tokens_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                  const mpix_cuda_offer &o, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    uint32_t *taken = &h.state->item[MPIX_CUDA_DISPATCH];
    const bool two_hops = h.state->two_hops != 0;
    const mpix_cuda_remote_batch &b = two_hops ? c.forward_batch : c.batch;
    int64_t base = lane < h.size ? h.state->base[lane] : 0, send = lane >= h.size ? 0
                                                                   : two_hops
                                                                       ? forward_items_out(h, lane)
                                                                       : h.state->send[lane];
    /* that this rank reaches through the lane's */
    int host = two_hops && via_is(h, lane) ? h.remote.host_of[lane] : -1;
    uint32_t needs = lane >= h.size || (two_hops && host < 0 && remote_is(h, lane)) ? 0
                     : host >= 0 ? h.remote.host[host]
                                 : 1u << lane;
    uint32_t ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    bool fine = true;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0) /* the next one, while this one is copied */
            ticket = atomicAdd(taken, 1);
        bool goes = (h.bitmap[t] & needs) != 0;
        uint32_t index = !goes       ? 0
                         : host >= 0 ? forward_index(h, t, host)
                                     : h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + lane] +
                                           h.rel[t * h.size + lane];
        remote_place p = {nullptr, nullptr, nullptr};
        if (goes)
            p = place_of(h, c, b, o, base, index);
        if (!__any_sync(~0u, p.x != nullptr))
            continue;
        if (c.quant) {
            quant_place q = {p.x, p.scales};
            quant_row(c.x + t * c.x_stride, c.quant, c.hidden, c.offer.dtype == F8E5M2,
                      c.offer.scale_kind, &q, 1);
        } else {
            warp_copy_any(c.x + t * c.x_stride, p.x, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(c.scales + t * c.scale_stride, p.scales, c.scale_row, lane);
        }
        record_pack(h, c, t, host < 0 ? p.record : nullptr, lane);
        if (two_hops)
            forward_record_pack(h, t, c.topk, c.weights ? c.weights + t * c.topk : nullptr,
                                host < 0 ? nullptr : p.record, lane);
        __syncwarp();
        if (goes && fine && remote_is(h, lane))
            fine = forward_item_count(h, b, REMOTE_DISPATCH, lane, index, send, epoch, c.report);
        __syncwarp();
    }
    return __all_sync(~0u, fine) ? 0 : 2;
}

/* What comes from proxied ranks. 0, or 2: the context has failed. */
__device__ static int rows_place(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                 uint64_t epoch) {
    int lane = threadIdx.x % 32;
    int64_t rows = remote_is(h, lane) ? h.state->recv[lane] : 0,
            stride = (int64_t)c.offer.at[MPIX_EP_PLACE_X].stride;
    int64_t scale_stride = (int64_t)c.offer.at[MPIX_EP_PLACE_SCALES].stride;
    remote_unit u;
    while (remote_unit_take(h, h.remote.is, c.batch, rows, &h.state->more[0], &u)) {
        if (!remote_chunks_wait(h, REMOTE_DISPATCH, true, u.r, remote_chunk_word(epoch, u.chunk)))
            return 2;
        const char *items = h.remote.window + remote_land(h, u.r);
        for (int64_t i = u.first; i < u.end; i++) {
            int64_t row = (int64_t)h.state->first[u.r] + i;
            const char *item = items + i * (int64_t)c.batch.item;
            if (row >= c.offer.rows)
                break;
            warp_copy_any(item, lane == 0 ? c.out + row * stride : nullptr, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(item + c.batch.scales,
                              lane == 0 ? c.out_scales + row * scale_stride : nullptr, c.scale_row,
                              lane);
            if (c.offer.flags & MPIX_EP_OFFER_RECORDS)
                warp_copy_any(item + c.batch.record,
                              lane == 0
                                  ? h.window[h.rank] + h.records + row * (int64_t)h.record_bytes
                                  : nullptr,
                              (int64_t)h.record_bytes, lane);
        }
    }
    return 0;
}

/* What comes from sources of other hosts, to all ranks of this one that need it. o: the offer of
 * the lane's rank. 0, or 2: the context has failed. */
__device__ static int rows_forward(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                   const mpix_cuda_offer &o, uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t items = forward_items_in(h, lane);
    remote_unit u;
    while (remote_unit_take(h, h.remote.serves, c.forward_batch, items, &h.state->more[0], &u)) {
        if (!remote_chunks_wait(h, REMOTE_DISPATCH, true, u.r, remote_chunk_word(epoch, u.chunk)))
            return 2;
        for (int64_t i = u.first; i < u.end; i++) {
            const char *item = h.remote.window + remote_land(h, u.r) +
                               i * (int64_t)c.forward_batch.item,
                       *record = item + c.forward_batch.record;
            int64_t row = forward_record_row(h, record, width, lane);
            remote_place p = {nullptr, nullptr, nullptr};
            if (row >= 0 && mapped_is(h, lane))
                p = place_of(h, c, c.forward_batch, o, 0, (uint32_t)row);
            warp_copy_any(item, p.x, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(item + c.forward_batch.scales, p.scales, c.scale_row, lane);
            forward_record_expand(h, record, width, p.record, lane);
        }
    }
    return 0;
}

/* No thread leaves before all have met at the end: the workers' barrier counts on them. */
__global__ void __launch_bounds__(512)
    remote_dispatch_kernel(const __grid_constant__ mpix_cuda_handle h,
                           const __grid_constant__ mpix_cuda_dispatch c) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool lead = blockIdx.x == 0 && warp == 0, sends = c.part != MPIX_CUDA_END,
               receives = c.part != MPIX_CUDA_BEGIN;
    const bool two_hops = h.state->two_hops != 0, tells = two_hops ? receives : sends;
    const uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c), bad = call_refused(h, c.report) ? 2 : 0;
    bad = __any_sync(~0u, bad) ? 2 : 0;
    if (lead && sends && !bad && !remote_ready(h, c, status, epoch))
        bad = 2;
    mpix_cuda_offer o;
    if (!bad)
        bad = offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr,
                          c.report, &o);
    if (lead) {
        int64_t rows = lane >= h.size ? 0
                       : two_hops     ? forward_items_in(h, lane)
                                      : h.state->recv[lane];
        if (!bad && receives &&
            !remote_chunks_carry(h, REMOTE_DISPATCH, epoch, rows,
                                 two_hops ? c.forward_batch.per_chunk : c.batch.per_chunk,
                                 c.wait_ns, c.report))
            bad = 2;
    } else {
        if (!bad && sends)
            bad = tokens_send(h, c, o, epoch);
        if (!bad && receives && two_hops)
            bad = rows_forward(h, c, o, epoch);
        __syncwarp();
        if (tells && remote_workers_meet(bad == 2))
            bad = 2;
        else if (tells && warp == (blockIdx.x == 0 ? 1 : 0))
            remote_block_signal(h, offsetof(mpix_cuda_words, rows_here), epoch);
        if (!bad && receives && !two_hops)
            bad = rows_place(h, c, epoch);
    }
    if (__syncthreads_or(bad == 2))
        return;
    if (!last_block(h, MPIX_CUDA_DISPATCH))
        return;
    if (!receives) { /* the rest is the second half's */
        if (threadIdx.x == 0)
            counters_reset(h, MPIX_CUDA_DISPATCH);
        return;
    }
    if (!blocks_wait(h, offsetof(mpix_cuda_words, rows_here), h.ready, epoch, c.wait_ns, c.report))
        return;
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

cudaError_t mpix_cuda_remote_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                             mpix_cuda_dispatch *c, cudaStream_t stream) {
    int sms = c->num_sms ? c->num_sms
              : c->quant ? mpix_cuda_half(d, 4 * MPIX_CUDA_SMS)
                         : MPIX_CUDA_SMS;
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms;
    c->batch = remote_batch_of(h, c->row, c->scale_row, (int64_t)h->record_bytes);
    c->forward_batch = remote_batch_of(h, c->row, c->scale_row,
                                       (int64_t)mpix_record_bytes(MPIX_RECORD_GPU,
                                                                  MPIX_RECORD_FORWARD,
                                                                  (size_t)h->max_topk));
    remote_dispatch_kernel<<<sms, 512, 0, stream>>>(*h, *c);
    cudaError_t err = cudaGetLastError();
    return err == cudaSuccess && c->part != MPIX_CUDA_BEGIN
               ? mpix_cuda_unpack_launch(h, c, sms, stream)
               : err;
}

cudaError_t mpix_cuda_remote_dispatch_load(int *arch) {
    return mpix_cuda_load(arch, remote_dispatch_kernel);
}
