/*
 * remote_expert_dispatch.cu - dispatch in the EXPERT layout where some peers are reached
 * through the proxy: a kernel here, and behind it the second one of expert_dispatch.cu. The
 * protocol is remote.cuh's.
 *
 * A warp takes a token and stores its row everywhere at once: to the lowest of its rows at each
 * mapped rank, to all of its rows here, once into the batch of each proxied rank. When all tokens
 * are taken, warps expand what comes from proxied ranks: from the landing room to all rows of the
 * pair, and what travelled beside it into the pair's record, where a mapped source would have
 * written it. What mapped ranks sent to lowest rows is expanded by the second kernel, which waits
 * for their words and writes the caller's arrays of all pairs.
 *
 * Halves: the first is this kernel up to the words to mapped ranks; the second is the rest of it
 * and the other kernel.
 */
#include "common/copy.cuh"
#include "expert/expert_rows.cuh"
#include "remote_expert.cuh"
#include "common/launch.h"
#include "common/quant.cuh"

/* Where a token's row goes: of lane r to rank r, of lane k to the row here of choice k;
 * null: nowhere. */
struct pair_places {
    quant_place of[2];
};

__device__ __forceinline__ quant_place place_in(const target &to, int64_t row) {
    return {to.x + row * to.stride, to.scales + row * to.scale_stride};
}

__device__ static void row_store(const mpix_cuda_dispatch &c, int64_t t, const pair_places &p) {
    int lane = threadIdx.x % 32;
    if (c.quant) {
        quant_row(c.x + t * c.x_stride, c.quant, c.hidden, c.offer.dtype == F8E5M2,
                  c.offer.scale_kind, p.of, 2);
        return;
    }
    for (int i = 0; i < 2; i++) {
        bool goes = p.of[i].row != nullptr;
        if (!__any_sync(~0u, goes))
            continue;
        warp_copy_any(c.x + t * c.x_stride, p.of[i].row, c.row, lane);
        if (c.scale_row > 0)
            warp_copy_any(c.scales + t * c.scale_stride, goes ? p.of[i].scales : nullptr,
                          c.scale_row, lane);
    }
}

/* Whole tokens, by warps. to: the target of the lane's rank, own: this rank's. 0, or 2: the
 * context has failed. */
__device__ static int tokens_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                  const target &to, const target &own, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    uint32_t *taken = &h.state->item[MPIX_CUDA_DISPATCH],
             ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    const bool remote = remote_is(h, lane), mapped = mapped_is(h, lane);
    int64_t send = remote ? h.state->send[lane] : 0;
    bool fine = true;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0) /* the next one, while this one is copied */
            ticket = atomicAdd(taken, 1);
        bool needs = lane < h.size && (h.bitmap[t] >> lane & 1), goes = remote && needs;
        uint32_t index = goes ? remote_index(h, t, lane) : 0;
        char *item = goes ? h.remote.window + remote_pack(h, lane) + index * c.batch.item : nullptr;
        int64_t row = mapped && needs && lane != h.rank ? h.expert.first[t * h.size + lane] : -1,
                here = -1;
        int32_t id = lane < c.topk ? h.ids[t * h.max_topk + lane] : -1;
        if (id >= 0 && h.owner[id] == h.rank)
            here = h.expert.row[t * h.max_topk + lane];
        pair_places p = {{{nullptr, nullptr}, {nullptr, nullptr}}};
        if (goes)
            p.of[0] = {item, item + c.batch.scales};
        else if (row >= 0 && row < to.rows)
            p.of[0] = place_in(to, row);
        if (here >= 0 && here < own.rows)
            p.of[1] = place_in(own, here);
        row_store(c, t, p);
        float w = c.weights && lane < c.topk ? c.weights[t * c.topk + lane] : 0.0f;
        for (uint32_t m = __ballot_sync(~0u, c.weights && mapped && needs &&
                                                 (to.flags & MPIX_EP_OFFER_WANTS_WEIGHTS));
             m; m &= m - 1) {
            int r = __ffs(m) - 1;
            if (lane < c.topk)
                record_of(h, r, row_of(h, t, r)).weights[lane] = w;
        }
        remote_record_pack(h, t, c.topk, c.weights ? c.weights + t * c.topk : nullptr,
                           item ? item + c.batch.record : nullptr);
        __syncwarp();
        if (goes && fine)
            fine = forward_item_count(h, c.batch, REMOTE_DISPATCH, lane, index, send, epoch,
                                      c.report);
        __syncwarp();
    }
    return __all_sync(~0u, fine) ? 0 : 2;
}

/* What comes from proxied ranks, to all rows of each pair. 0, or 2: the context has failed. */
__device__ static int pairs_expand(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                   const target &own, uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t pairs = remote_is(h, lane) ? h.state->recv[lane] : 0;
    remote_unit u;
    while (remote_unit_take(h, h.remote.is, c.batch, pairs, &h.state->more[0], &u)) {
        if (!remote_chunks_wait(h, REMOTE_DISPATCH, true, u.r, remote_chunk_word(epoch, u.chunk)))
            return 2;
        for (int64_t i = u.first; i < u.end; i++) {
            const char *item = h.remote.window + remote_land(h, u.r) + i * (int64_t)c.batch.item;
            remote_record p = remote_record_at(h, item + c.batch.record);
            int32_t row = lane < width ? p.rows[lane] : -1;
            quant_place to = {nullptr, nullptr};
            if (row >= 0 && row < own.rows)
                to = place_in(own, row);
            warp_copy_any(item, to.row, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(item + c.batch.scales, to.row ? to.scales : nullptr, c.scale_row,
                              lane);
            expert_record rec = record_of(h, h.rank, (int64_t)h.state->first[u.r] + i);
            if (lane == 0)
                *rec.token = (int32_t)*p.token;
            if (lane < width) {
                rec.rows[lane] = row;
                rec.weights[lane] = p.weights[lane];
            }
        }
    }
    return 0;
}

/* No thread leaves before all have met at the end: the workers' barrier counts on them. */
__global__ void __launch_bounds__(512)
    remote_expert_dispatch_kernel(const __grid_constant__ mpix_cuda_handle h,
                                  const __grid_constant__ mpix_cuda_dispatch c) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const bool lead = blockIdx.x == 0 && warp == 0, sends = c.part != MPIX_CUDA_END,
               receives = c.part != MPIX_CUDA_BEGIN;
    const uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c), bad = call_refused(h, c.report) ? 2 : 0;
    bad = __any_sync(~0u, bad) ? 2 : 0;
    if (lead && sends && !bad && !remote_ready(h, c, status, epoch))
        bad = 2;
    mpix_cuda_offer o;
    if (!bad)
        bad = offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr,
                          c.report, &o);
    target own = target_of(h, c.offer, h.rank);
    if (lead) {
        int64_t pairs = lane < h.size ? h.state->recv[lane] : 0;
        if (!bad && receives &&
            !remote_chunks_carry(h, REMOTE_DISPATCH, epoch, pairs, c.batch.per_chunk, c.wait_ns,
                                 c.report))
            bad = 2;
    } else {
        if (!bad && sends) {
            bad = tokens_send(h, c, target_of(h, o, lane), own, epoch);
            /* without the lead */
            padding_fill(h, c, own, (int)blockIdx.x * warps + warp - 1, (int)gridDim.x * warps - 1);
        }
        __syncwarp();
        if (sends && remote_workers_meet(bad == 2))
            bad = 2;
        else if (sends && warp == (blockIdx.x == 0 ? 1 : 0))
            remote_block_signal(h, offsetof(mpix_cuda_words, rows_here), epoch);
        if (!bad && receives)
            bad = pairs_expand(h, c, own, epoch);
    }
    if (__syncthreads_or(bad == 2))
        return;
    if (last_block(h, MPIX_CUDA_DISPATCH) && threadIdx.x == 0)
        counters_reset(h, MPIX_CUDA_DISPATCH); /* the call ends with the other kernel */
}

cudaError_t mpix_cuda_remote_expert_dispatch_launch(const mpix_cuda_device *d,
                                                    const mpix_cuda_handle *h,
                                                    mpix_cuda_dispatch *c, cudaStream_t stream) {
    int sms = c->num_sms > 0 ? c->num_sms : mpix_cuda_half(d, MPIX_CUDA_REMOTE_EXPERT_SMS);
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms;
    c->batch = remote_batch_of(h, c->row, c->scale_row, 8 + 8 * (int64_t)h->max_topk);
    remote_expert_dispatch_kernel<<<sms, 512, 0, stream>>>(*h, *c);
    cudaError_t err = cudaGetLastError();
    return err == cudaSuccess && c->part != MPIX_CUDA_BEGIN
               ? mpix_cuda_expand_launch(d, h, c, sms, stream)
               : err;
}

cudaError_t mpix_cuda_remote_expert_dispatch_load(int *arch) {
    return mpix_cuda_load(arch, remote_expert_dispatch_kernel);
}
