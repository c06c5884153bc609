/*
 * far_combine.cu - combine where some peers are reached through the proxy: one kernel. The protocol and its arguments are in far.cuh.
 *
 * Rows of mapped ranks are read where they lie, as in combine.cu. The rows of a proxied rank's tokens are pushed to it: in COMPACT that is a row
 * per (token, rank), so what travels is what a sum per rank would be. First all warps pack, chunk by chunk; then they take tokens in order,
 * wait for the chunks of the proxied ranks that a token needs, and add. The sum is combine.cu's, in its order, so its bits are the same whatever ranks
 * are mapped.
 *
 * READ-DONE goes to mapped ranks only: proxied ones read nothing here, and what is packed has left in.x.
 */
#include "copy.cuh"
#include "far.cuh"
#include "launch.h"
#include "sums.cuh"

/* Rows of rank lane, as a block sees them; record: weights and slot values of a proxied rank. */
struct far_source { char *x, *scales, *w, *slots; int64_t rows; uint64_t stride, scale_stride; };

/* Rows that this rank has for source r, the lane's. */
__device__ static int64_t rows_for(const mpix_cuda_handle &h, int r, int64_t rows) {
    int64_t first = h.state->first[r], n = h.state->recv[r];
    return rows <= first ? 0 : rows - first < n ? rows - first : n;
}

/* What goes back to proxied ranks. 0, or 2: the context has failed. */
__device__ static int rows_push(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t exist = c.offer.rows < h.state->recv_total ? c.offer.rows : h.state->recv_total, rows = far_is(h, lane) ? rows_for(h, lane, exist) : 0;
    bool fine = true;
    far_unit u;
    while (fine && far_unit_take(h, c.batch, rows, &h.state->item[MPIX_CUDA_COMBINE], &u)) {
        char *items = h.far.window + far_pack(h, u.r);
        for (int64_t i = u.first; i < u.end; i++) {
            int64_t row = (int64_t)h.state->first[u.r] + i;
            char *item = items + i * (int64_t)c.batch.item;
            warp_copy_any(c.x + row * c.x_stride, lane == 0 ? item : nullptr, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(c.scales + row * c.scale_stride, lane == 0 ? item + c.batch.scales : nullptr, c.scale_row, lane);
            float *record = (float *)(item + c.batch.record);
            if (c.row_weights && lane == 0)
                record[0] = c.row_weights[row];
            for (int k = lane; c.slot_values && k < width; k += 32)
                record[1 + k] = c.slot_values[row * width + k];
        }
        __syncwarp();
        if (lane == 0)
            fine = far_chunk_count(h, c.batch, FAR_COMBINE, u.r, u.chunk, (uint32_t)(u.end - u.first), u.n, epoch, c.report);
        fine = __shfl_sync(~0u, fine, 0);
    }
    return fine ? 0 : 2;
}

__device__ static far_source source_of(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const mpix_cuda_offer &o, int r) {
    far_source s = {place_at(h, r, o.at[MPIX_CUDA_AT_X]), place_at(h, r, o.at[MPIX_CUDA_AT_SCALES]), place_at(h, r, o.at[MPIX_CUDA_AT_WEIGHTS]),
                    place_at(h, r, o.at[MPIX_CUDA_AT_SLOTS]), o.rows, o.at[MPIX_CUDA_AT_X].stride, o.at[MPIX_CUDA_AT_SCALES].stride};
    if (r == h.rank) {
        s.x = (char *)c.x, s.scales = (char *)c.scales, s.w = (char *)c.row_weights, s.slots = (char *)c.slot_values;
    } else if (far_is(h, r)) { /* numbered as they are there */
        char *items = h.far.window + far_land(h, r) - (int64_t)h.state->base[r] * (int64_t)c.batch.item;
        s.x = items;
        s.scales = c.scale_row ? items + c.batch.scales : nullptr;
        s.w = o.at[MPIX_CUDA_AT_WEIGHTS].window < 0 ? nullptr : items + c.batch.record;
        s.slots = o.at[MPIX_CUDA_AT_SLOTS].window < 0 ? nullptr : items + c.batch.record + 4;
        s.stride = s.scale_stride = c.batch.item;
    }
    return s;
}

/* The values that the experts' ranks set for each choice of a token, by a warp. row: of the token at rank lane, -1: none. */
__device__ static void slots_of_token(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const far_source *src, int64_t t, int64_t row, int lane) {
    int width = h.state->width;
    for (int k0 = 0; k0 < c.topk; k0 += 32) {
        int k = k0 + lane, id = k < c.topk ? h.ids[t * h.max_topk + k] : -1, r = id >= 0 ? h.owner[id] : 0;
        int64_t at = __shfl_sync(~0u, row, r);
        float v = 0;
        if (id >= 0 && at >= 0)
            v = *(const volatile float *)(src[r].slots + at * (far_is(h, r) ? (int64_t)c.batch.item : 4 * width) + 4 * k);
        if (k < c.topk)
            c.out_slots[t * c.topk + k] = v;
    }
}

enum { ANY, VECTOR, F8 };

/* Whole tokens, in order. 0, or 2: the context has failed. */
template <int HOW, int X>
__device__ static int tokens_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const far_source *src, bool any, uint32_t weighted, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    uint32_t *taken = &h.state->more[0];
    far_source mine = src[lane < h.size ? lane : 0];
    int64_t base = lane < h.size ? h.state->base[lane] : 0;
    uint32_t ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0)
            ticket = atomicAdd(taken, 1);
        int64_t row = lane < h.size ? row_of(h, t, lane) : -1;
        lane_term term = {nullptr, nullptr, 1.0f, false};
        if (row >= mine.rows)
            row = -1;
        if (!far_chunks_wait(h, FAR_COMBINE, row >= 0 && far_is(h, lane), lane, far_chunk_word(epoch, row < 0 ? 0 : (row - base) / c.batch.per_chunk)))
            return 2;
        if (row >= 0) {
            term.x = mine.x + row * (int64_t)mine.stride;
            term.scales = mine.scales ? mine.scales + row * (int64_t)mine.scale_stride : nullptr;
            if (mine.w)
                term.w = *(const volatile float *)(mine.w + row * (far_is(h, lane) ? (int64_t)c.batch.item : 4));
            term.there = true;
        }
        if (HOW == ANY || any) {
            if (c.xdtype == F64)
                token_sum_any<double>(c, term, weighted, t, lane);
            else
                token_sum_any<float>(c, term, weighted, t, lane);
        } else if (HOW == F8) {
            f8_token_sum<X>(c, term, weighted, t, lane);
        } else {
            piece_sum<X>(c, __ballot_sync(~0u, term.there), term.x, term.w, weighted, t, 0, (int)c.row, lane);
        }
        if (c.out_slots)
            slots_of_token(h, c, src, t, row, lane);
    }
    return 0;
}

template <int HOW, int X>
__global__ void __launch_bounds__(512) far_combine_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c) {
    __shared__ far_source src[MPIX_CUDA_RANKS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool lead = blockIdx.x == 0 && warp == 0;
    const uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t recv_total = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk), bad = __any_sync(~0u, call_refused(h, c.report)) ? 2 : 0;
    if (lead && c.part != MPIX_CUDA_END && !bad &&
        !far_offers_send(h, rows_offer_of(h, c, recv_total, fault), h.offered, offsetof(mpix_cuda_words, rows_offered), epoch, c.report))
        bad = 2;
    if (c.part == MPIX_CUDA_BEGIN) /* the peers may read and push; all else is the second half's */
        return;
    if (lead && !bad && !far_offers_carry(h, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch, c.report))
        bad = 2;
    mpix_cuda_offer o;
    if (!bad)
        bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch, lead ? c.wait_ns : nullptr, c.report, &o);
    if (warp == 0 && !bad && lane < h.size)
        src[lane] = source_of(h, c, o, lane);
    if (!bad && c.out_slots && lane < h.size && o.rows > 0) {
        bool none = lane == h.rank ? !c.slot_values : o.at[MPIX_CUDA_AT_SLOTS].window < 0;
        if (none)
            report(h, MPIX_CUDA_SLOTS, 0, lane, 0, 0);
    }
    if (!bad && c.out_slots)
        bad = __any_sync(~0u, lane < h.size && o.rows > 0 && (lane == h.rank ? !c.slot_values : o.at[MPIX_CUDA_AT_SLOTS].window < 0)) ? 3 : 0;
    bool stop = __syncthreads_or(bad == 2);
    if (stop)
        return;
    if (bad == 0 || bad == 3) { /* 3: this rank can't have its sums, others get what they wait for */
        if (lead) {
            int64_t base = lane < h.size ? h.state->base[lane] : 0, send = lane < h.size ? h.state->send[lane] : 0;
            int64_t rows = lane >= h.size || o.rows <= base ? 0 : o.rows - base < send ? o.rows - base : send;
            if (!far_chunks_carry(h, FAR_COMBINE, epoch, rows, c.batch.per_chunk, c.wait_ns, c.report))
                bad = 2;
        } else {
            if (rows_push(h, c, epoch))
                bad = 2;
            uint32_t weighted = 0;
            uint64_t bits = 0;
            for (int r = 0; r < h.size; r++) {
                weighted |= (uint32_t)(src[r].w != nullptr) << r;
                bits |= src[r].rows > 0 ? (uint64_t)src[r].x | src[r].stride : 0;
            }
            if (!bad)
                bad = tokens_sum<HOW, X>(h, c, src, bits % 16 != 0, weighted, epoch);
        }
    }
    if (__syncthreads_or(bad == 2))
        return;
    if (warp == 0)
        far_lane_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
    if (!last_block(h, MPIX_CUDA_COMBINE))
        return;
    if (!lanes_wait(h, offsetof(mpix_cuda_words, read_done), h.offered, epoch, nullptr, c.report))
        return;
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

template <int HOW, int X> static cudaError_t launch_far(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c, cudaStream_t stream) {
    far_combine_kernel<HOW, X><<<sms, 512, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_far_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream) {
    int rows_f8 = c->xdtype == F8E4M3 || c->xdtype == F8E5M2, size = c->xdtype == F64 ? 8 : c->xdtype == F32 ? 4 : rows_f8 ? 1 : 2;
    int sms = c->num_sms ? c->num_sms : rows_f8 ? 4 * MPIX_CUDA_SMS : MPIX_CUDA_SMS;
    if (sms > d->sms)
        sms = d->sms;
    if (sms > MPIX_CUDA_LANES)
        sms = MPIX_CUDA_LANES;
    c->offer.lanes = sms;
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    c->row = c->hidden * size;
    c->scale_row = c->scale_kind == 1 ? 4 * ((c->hidden + 127) / 128) : c->scale_kind ? (c->hidden + 127) / 128 : 0;
    c->batch = far_batch_of(h, c->row, c->scale_row, 4 + 4 * (int64_t)h->max_topk);
    uint64_t bits = (uint64_t)c->x | (uint64_t)c->x_stride | (uint64_t)c->y | (uint64_t)c->y_stride | (uint64_t)c->row;
    for (int b = 0; b < c->num_bias; b++)
        bits |= (uint64_t)c->bias[b] | (uint64_t)c->bias_stride[b];
    bool fast = bits % 16 == 0 && c->row < 1 << 30;
    if (fast && rows_f8 && (c->ydtype == F32 || c->ydtype == F16 || c->ydtype == BF16))
        return c->ydtype == F32   ? launch_far<F8, F32>(sms, h, c, stream)
               : c->ydtype == F16 ? launch_far<F8, F16>(sms, h, c, stream)
                                  : launch_far<F8, BF16>(sms, h, c, stream);
    if (fast && c->ydtype == c->xdtype && (c->xdtype == F32 || c->xdtype == F16 || c->xdtype == BF16))
        return c->xdtype == F32   ? launch_far<VECTOR, F32>(sms, h, c, stream)
               : c->xdtype == F16 ? launch_far<VECTOR, F16>(sms, h, c, stream)
                                  : launch_far<VECTOR, BF16>(sms, h, c, stream);
    return launch_far<ANY, BF16>(sms, h, c, stream);
}

template <int X> static cudaError_t load_typed(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, far_combine_kernel<VECTOR, X>);
    return err == cudaSuccess ? cudaFuncGetAttributes(&a, far_combine_kernel<F8, X>) : err;
}

cudaError_t mpix_cuda_far_combine_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, far_combine_kernel<ANY, BF16>);
    err = err == cudaSuccess ? load_typed<F32>() : err;
    err = err == cudaSuccess ? load_typed<F16>() : err;
    return err == cudaSuccess ? load_typed<BF16>() : err;
}
