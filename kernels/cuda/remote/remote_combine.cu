/*
 * remote_combine.cu - combine where some peers are reached through the proxy: one kernel. The
 * protocol and its arguments are in remote.cuh.
 *
 * Rows of mapped ranks are read where they lie, as in combine.cu. The rows of a proxied rank's
 * tokens are pushed to it: in COMPACT that is a row per (token, rank), so what travels is what a
 * sum per rank would be. First all warps pack, chunk by chunk; then they take tokens in order, wait
 * for the chunks of the proxied ranks that a token needs, and add. The sum is combine.cu's, in its
 * order, so its bits are the same whatever ranks are mapped.
 *
 * With two hops (forward.cuh) nothing is pushed rank by rank. Warps first write which sums they
 * want of other hosts, then make the sums that other hosts' ranks want of this one's, and then add:
 * the rows of their own host, then one sum of each other host.
 *
 * READ-DONE goes to mapped ranks only: proxied ones read nothing here, and what is
 * packed has left in.x.
 */
#include "common/copy.cuh"
#include "forward.cuh"
#include "common/launch.h"
#include "common/sums.cuh"

/* Terms of sums, as a block sees them. With one hop term r is rank r. With two, first come the
 * ranks of this host, then the other hosts' sums, both ascending; those are numbered as tokens for
 * the host are. rank: that numbers the rows, or forwards; host: -1: a rank's rows. */
struct remote_source {
    char *x, *scales, *w, *slots;
    int64_t rows;
    uint64_t stride, scale_stride, w_stride, slot_stride;
    int32_t rank, host;
};
/* rows: that each rank offers */
struct remote_terms {
    remote_source of[MPIX_CUDA_RANKS];
    int64_t rows[MPIX_CUDA_RANKS];
    int32_t n;
};

/* Rows that this rank has for source r, the lane's. */
__device__ static int64_t rows_for(const mpix_cuda_handle &h, int r, int64_t rows) {
    int64_t first = h.state->first[r], n = h.state->recv[r];
    return rows <= first ? 0 : rows - first < n ? rows - first : n;
}

/* What goes back to proxied ranks. 0, or 2: the context has failed. */
__device__ static int rows_push(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t exist = c.offer.rows < h.state->recv_total ? c.offer.rows : h.state->recv_total,
            rows = remote_is(h, lane) ? rows_for(h, lane, exist) : 0;
    bool fine = true;
    remote_unit u;
    while (fine &&
           remote_unit_take(h, h.remote.is, c.batch, rows, &h.state->item[MPIX_CUDA_COMBINE], &u)) {
        char *items = h.remote.window + remote_pack(h, u.r);
        for (int64_t i = u.first; i < u.end; i++) {
            int64_t row = (int64_t)h.state->first[u.r] + i;
            char *item = items + i * (int64_t)c.batch.item;
            warp_copy_any(c.x + row * c.x_stride, lane == 0 ? item : nullptr, c.row, lane);
            if (c.scale_row > 0)
                warp_copy_any(c.scales + row * c.scale_stride,
                              lane == 0 ? item + c.batch.scales : nullptr, c.scale_row, lane);
            float *record = (float *)(item + c.batch.record);
            if (c.row_weights && lane == 0)
                record[0] = c.row_weights[row];
            for (int k = lane; c.slot_values && k < width; k += 32)
                record[1 + k] = c.slot_values[row * width + k];
        }
        __syncwarp();
        if (lane == 0)
            fine = remote_chunk_count(h, c.batch, REMOTE_COMBINE, u.r, u.chunk,
                                      (uint32_t)(u.end - u.first), u.n, epoch, c.report);
        fine = __shfl_sync(~0u, fine, 0);
    }
    return fine ? 0 : 2;
}

__device__ static remote_source source_of(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                          const mpix_cuda_offer &o, int r) {
    uint64_t slots = 4 * (uint64_t)h.state->width;
    remote_source s = {place_at(h, r, o.at[MPIX_EP_PLACE_X]),
                       place_at(h, r, o.at[MPIX_EP_PLACE_SCALES]),
                       place_at(h, r, o.at[MPIX_EP_PLACE_WEIGHTS]),
                       place_at(h, r, o.at[MPIX_EP_PLACE_SLOTS]),
                       o.rows,
                       o.at[MPIX_EP_PLACE_X].stride,
                       o.at[MPIX_EP_PLACE_SCALES].stride,
                       4,
                       slots,
                       r,
                       -1};
    if (r == h.rank) {
        s.x = (char *)c.x, s.scales = (char *)c.scales, s.w = (char *)c.row_weights,
        s.slots = (char *)c.slot_values;
    } else if (remote_is(h, r)) { /* numbered as they are there */
        char *items = h.remote.window + remote_land(h, r) -
                      (int64_t)h.state->base[r] * (int64_t)c.batch.item;
        s.x = items;
        s.scales = c.scale_row ? items + c.batch.scales : nullptr;
        s.w = o.at[MPIX_EP_PLACE_WEIGHTS].window < 0 ? nullptr : items + c.batch.record;
        s.slots = o.at[MPIX_EP_PLACE_SLOTS].window < 0 ? nullptr : items + c.batch.record + 4;
        s.stride = s.scale_stride = s.w_stride = s.slot_stride = c.batch.item;
    }
    return s;
}

/* The sums of another host. */
__device__ static remote_source host_source_of(const mpix_cuda_handle &h,
                                               const mpix_cuda_combine &c, int host) {
    int via = h.remote.via[host];
    char *items = h.remote.window + remote_land(h, via);
    return {items,
            nullptr,
            nullptr,
            items + c.forward_batch.record,
            INT64_MAX,
            c.forward_batch.item,
            0,
            0,
            c.forward_batch.item,
            via,
            host};
}

/* Which term has what comes from rank r. */
__device__ __forceinline__ int term_of_rank(const mpix_cuda_handle &h, bool two_hops, int r) {
    uint32_t mine = h.remote.host[h.remote.here_host];
    int host = h.remote.host_of[r];
    return !two_hops                    ? r
           : host == h.remote.here_host ? __popc(mine & ((1u << r) - 1))
                                        : __popc(mine) + host - (host > h.remote.here_host);
}

/* By a warp; o: the offer of the lane's rank. */
__device__ static void terms_find(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const mpix_cuda_offer &o, bool two_hops, remote_terms *terms) {
    int lane = threadIdx.x % 32;
    if (lane < h.size) {
        terms->rows[lane] = o.rows;
        if (!two_hops || mapped_is(h, lane))
            terms->of[term_of_rank(h, two_hops, lane)] = source_of(h, c, o, lane);
    }
    if (two_hops && lane < h.remote.nhosts && lane != h.remote.here_host)
        terms->of[__popc(h.remote.host[h.remote.here_host]) + lane - (lane > h.remote.here_host)] =
            host_source_of(h, c, lane);
    if (lane == 0)
        terms->n = two_hops ? __popc(h.remote.host[h.remote.here_host]) + h.remote.nhosts - 1
                            : h.size;
}

/* The values that the experts' ranks set for each choice of a token, by a warp. row: of the lane's
 * term, -1: none. */
__device__ static void slots_of_token(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                      const remote_terms *terms, bool two_hops, int64_t t,
                                      int64_t row, int lane) {
    for (int k0 = 0; k0 < c.topk; k0 += 32) {
        int k = k0 + lane, id = k < c.topk ? h.ids[t * h.max_topk + k] : -1,
            i = id >= 0 ? term_of_rank(h, two_hops, h.owner[id]) : 0;
        int64_t at = __shfl_sync(~0u, row, i);
        float v = 0;
        if (id >= 0 && at >= 0)
            v = *(const volatile float *)(terms->of[i].slots +
                                          at * (int64_t)terms->of[i].slot_stride + 4 * k);
        if (k < c.topk)
            c.out_slots[t * c.topk + k] = v;
    }
}

enum { ANY, VECTOR, F8 };

/* The row of token t in the lane's term, -1: none. exist: ranks where the token has a row that
 * exists; with two hops. */
__device__ static int64_t term_row(const mpix_cuda_handle &h, const remote_source &mine, int64_t t,
                                   uint32_t exist) {
    if (mine.host >= 0) /* a sum of dropped rows only does not count */
        return exist & h.remote.host[mine.host] ? (int64_t)forward_index(h, t, mine.host) : -1;
    int64_t row = row_of(h, t, mine.rank);
    return row < mine.rows ? row : -1;
}

/* Ranks where token t has a row that exists, by a warp. */
__device__ __forceinline__ uint32_t ranks_with_rows(const mpix_cuda_handle &h,
                                                    const remote_terms *terms, int64_t t,
                                                    int lane) {
    if (!h.drop)
        return h.bitmap[t];
    int64_t row = lane < h.size ? row_of(h, t, lane) : -1;
    return __ballot_sync(~0u, row >= 0 && row < terms->rows[lane]);
}

/* The lane's term at a row. */
__device__ static lane_term term_at(const remote_source &s, int64_t row) {
    lane_term term = {nullptr, nullptr, 1.0f, false, false};
    if (row < 0)
        return term;
    term.x = s.x + row * (int64_t)s.stride;
    term.scales = s.scales ? s.scales + row * (int64_t)s.scale_stride : nullptr;
    if (s.w)
        term.w = *(const volatile float *)(s.w + row * (int64_t)s.w_stride);
    term.there = true;
    return term;
}

template <int HOW, int X>
__device__ __forceinline__ void token_sum(const mpix_cuda_combine &c, const lane_term &term,
                                          uint32_t weighted, bool any, int64_t t, int lane) {
    if (HOW == ANY || any) {
        if (c.xdtype == F64)
            token_sum_any<double>(c, term, weighted, t, lane);
        else
            token_sum_any<float>(c, term, weighted, t, lane);
    } else if (HOW == F8) {
        f8_token_sum<X, true>(c, term, weighted, t, lane);
    } else {
        piece_sum<X>(c, __ballot_sync(~0u, term.there), term.x, term.w, weighted, t, 0, (int)c.row,
                     lane);
    }
}

/* Whole tokens, in order. 0, or 2: the context has failed. */
template <int HOW, int X>
__device__ static int tokens_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                 const remote_terms *terms, bool two_hops, bool any,
                                 uint32_t weighted, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    uint32_t *taken = &h.state->more[0];
    remote_source mine = terms->of[lane < terms->n ? lane : 0];
    int64_t base = lane < terms->n && mine.host < 0 ? h.state->base[mine.rank] : 0,
            per_chunk = two_hops ? c.forward_batch.per_chunk : c.batch.per_chunk;
    uint32_t ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0)
            ticket = atomicAdd(taken, 1);
        uint32_t exist = two_hops ? ranks_with_rows(h, terms, t, lane) : 0;
        int64_t row = lane < terms->n ? term_row(h, mine, t, exist) : -1;
        if (!remote_chunks_wait(h, REMOTE_COMBINE, row >= 0 && remote_is(h, mine.rank), mine.rank,
                                remote_chunk_word(epoch, row < 0 ? 0 : (row - base) / per_chunk)))
            return 2;
        lane_term term = term_at(mine, row);
        term.wide = mine.host >= 0 && c.wire != c.xdtype;
        token_sum<HOW, X>(c, term, weighted, any, t, lane);
        if (c.out_slots)
            slots_of_token(h, c, terms, two_hops, t, row, lane);
    }
    return 0;
}

/* ---- two hops -------------------------------------------------------------------------------- */

/* What this rank wants summed elsewhere. 0, or 2: the context has failed. */
__device__ static int sums_ask(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                               uint64_t epoch) {
    int lane = threadIdx.x % 32, host = via_is(h, lane) ? h.remote.host_of[lane] : -1;
    uint32_t *taken = &h.state->item[MPIX_CUDA_COMBINE], needs = host < 0 ? 0 : h.remote.host[host];
    int64_t items = forward_items_out(h, lane);
    uint32_t ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    bool fine = true;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0)
            ticket = atomicAdd(taken, 1);
        bool goes = (h.bitmap[t] & needs) != 0;
        uint32_t index = goes ? forward_index(h, t, host) : 0;
        forward_record_pack(h, t, c.topk, nullptr,
                            goes ? h.remote.window + ask_pack(h, lane) + index * c.ask_batch.item
                                 : nullptr,
                            lane);
        __syncwarp();
        if (goes && fine)
            fine = forward_item_count(h, c.ask_batch, REMOTE_ASK, lane, index, items, epoch,
                                      c.report);
        __syncwarp();
    }
    return __all_sync(~0u, fine) ? 0 : 2;
}

/* The slot values that this host's ranks have for an item. row: of the lane's term. */
__device__ static void slots_of_item(const mpix_cuda_handle &h, const char *record,
                                     const remote_terms *terms, int64_t row, float *to, int lane) {
    int width = h.state->width;
    for (int k0 = 0; k0 < width; k0 += 32) {
        int k = k0 + lane, id = k < width ? forward_at(h, record, MPIX_RECORD_FORWARD_ID, k) : -1,
            i = id >= 0 ? term_of_rank(h, true, h.owner[id]) : 0;
        int64_t at = __shfl_sync(~0u, row, i);
        const remote_source &s = terms->of[i];
        if (k < width)
            to[k] = id >= 0 && at >= 0 && s.slots
                        ? *(const volatile float *)(s.slots + at * (int64_t)s.slot_stride + 4 * k)
                        : 0;
    }
}

/* What others want summed here. part: c with sums in the rows' place in the packing rooms, in units
 * of 16 bytes. 0, or 2: the context has failed. */
template <int HOW, int X>
__device__ static int sums_serve(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                 const mpix_cuda_combine &part, const remote_terms *terms, bool any,
                                 uint32_t weighted, uint64_t epoch) {
    int lane = threadIdx.x % 32, own = __popc(h.remote.host[h.remote.here_host]),
        width = h.state->width;
    remote_source mine = terms->of[lane < own ? lane : 0];
    int64_t items = forward_items_in(h, lane);
    bool fine = true, slots = __any_sync(~0u, lane < own && mine.slots != nullptr);
    remote_unit u;
    while (fine &&
           remote_unit_take(h, h.remote.serves, c.forward_batch, items, &h.state->more[1], &u)) {
        if (!remote_chunks_wait(h, REMOTE_ASK, true, u.r,
                                remote_chunk_word(epoch, (u.end - 1) / c.ask_batch.per_chunk)))
            return 2;
        uint64_t to = h.remote.room * h.remote.room_index[u.r];
        for (int64_t i = u.first; i < u.end; i++) {
            const char *record = h.remote.window + ask_land(h, u.r) + i * (int64_t)c.ask_batch.item;
            int64_t row = forward_record_row(h, record, width, mine.rank),
                    at = (int64_t)to + i * (int64_t)c.forward_batch.item;
            row = lane < own && row < mine.rows ? row : -1;
            token_sum<HOW, X>(part, term_at(mine, row), weighted, any, at / 16, lane);
            if (slots)
                slots_of_item(h, record, terms, row,
                              (float *)(part.y + at + c.forward_batch.record), lane);
        }
        __syncwarp();
        if (lane == 0)
            fine = remote_chunk_count(h, c.forward_batch, REMOTE_COMBINE, u.r, u.chunk,
                                      (uint32_t)(u.end - u.first), u.n, epoch, c.report);
        fine = __shfl_sync(~0u, fine, 0);
    }
    return fine ? 0 : 2;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* By the lead: passes on what comes. o: the offer of the lane's rank. 0, or 2: the
 * context has failed. */
__device__ static int combine_carry(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    const mpix_cuda_offer &o, bool two_hops, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    int64_t base = lane < h.size ? h.state->base[lane] : 0,
            send = lane < h.size ? h.state->send[lane] : 0;
    int64_t rows = lane >= h.size || o.rows <= base ? 0
                   : o.rows - base < send           ? o.rows - base
                                                    : send;
    if (!two_hops)
        return remote_chunks_carry(h, REMOTE_COMBINE, epoch, rows, c.batch.per_chunk, c.wait_ns,
                                   c.report)
                   ? 0
                   : 2;
    return remote_chunks_carry(h, REMOTE_ASK, epoch, forward_items_in(h, lane),
                               c.ask_batch.per_chunk, nullptr, c.report) &&
                   remote_chunks_carry(h, REMOTE_COMBINE, epoch, forward_items_out(h, lane),
                                       c.forward_batch.per_chunk, c.wait_ns, c.report)
               ? 0
               : 2;
}

template <int HOW, int X>
__global__ void __launch_bounds__(512)
    remote_combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                          const __grid_constant__ mpix_cuda_combine c,
                          const __grid_constant__ mpix_cuda_combine part) {
    __shared__ remote_terms terms;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool lead = blockIdx.x == 0 && warp == 0, two_hops = h.state->two_hops && c.two_hops;
    const uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t recv_total = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk),
        bad = __any_sync(~0u, call_refused(h, c.report)) ? 2 : 0;
    if (lead && c.part != MPIX_CUDA_END && !bad &&
        !remote_offers_send(h, rows_offer_of(h, c, recv_total, fault), h.offered,
                            offsetof(mpix_cuda_words, rows_offered), epoch, c.report))
        bad = 2;
    if (c.part == MPIX_CUDA_BEGIN) /* the peers may read and push; all else is the second half's */
        return;
    if (lead && !bad &&
        !remote_offers_carry(h, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch,
                             c.report))
        bad = 2;
    mpix_cuda_offer o;
    if (!bad)
        bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch,
                          lead ? c.wait_ns : nullptr, c.report, &o);
    if (warp == 0 && !bad)
        terms_find(h, c, o, two_hops, &terms);
    if (!bad && c.out_slots && lane < h.size && o.rows > 0) {
        bool none = lane == h.rank ? !c.slot_values : o.at[MPIX_EP_PLACE_SLOTS].window < 0;
        if (none)
            report(h, MPIX_CUDA_SLOTS, 0, lane, 0, 0);
    }
    if (!bad && c.out_slots)
        bad = __any_sync(~0u, lane < h.size && o.rows > 0 &&
                                  (lane == h.rank ? !c.slot_values
                                                  : o.at[MPIX_EP_PLACE_SLOTS].window < 0))
                  ? 3
                  : 0;
    bool stop = __syncthreads_or(bad == 2);
    if (stop)
        return;
    /* 3: this rank can't have its sums, others get what they wait for */
    if (bad == 0 || bad == 3) {
        if (lead) {
            if (combine_carry(h, c, o, two_hops, epoch))
                bad = 2;
        } else {
            uint32_t weighted = 0;
            uint64_t bits = 0;
            for (int i = 0; i < terms.n; i++) {
                const remote_source &s = terms.of[i];
                weighted |= (uint32_t)(s.w != nullptr) << i;
                bits |= s.rows > 0 ? (uint64_t)s.x | s.stride : 0;
            }
            bool any = bits % 16 != 0;
            if (!two_hops && rows_push(h, c, epoch))
                bad = 2;
            else if (two_hops &&
                     (sums_ask(h, c, epoch) || sums_serve < HOW,
                      HOW == F8 ? (int)BF16 : X > (h, c, part, &terms, any, weighted, epoch)))
                bad = 2;
            if (bad != 2)
                bad = tokens_sum<HOW, X>(h, c, &terms, two_hops, any, weighted, epoch);
        }
    }
    if (__syncthreads_or(bad == 2))
        return;
    if (warp == 0)
        remote_block_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
    if (!last_block(h, MPIX_CUDA_COMBINE))
        return;
    if (!blocks_wait(h, offsetof(mpix_cuda_words, read_done), h.offered, epoch, nullptr, c.report))
        return;
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

template <int HOW, int X>
static cudaError_t launch_remote(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c,
                                 cudaStream_t stream) {
    mpix_cuda_combine part = *c; /* sums for other hosts' owners */
    part.y = h->remote.window + h->remote.pack;
    part.y_stride = 16;
    part.ydtype = c->wire;
    part.num_bias = 0;
    remote_combine_kernel<HOW, X><<<sms, 512, 0, stream>>>(*h, *c, part);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_remote_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                            mpix_cuda_combine *c, cudaStream_t stream) {
    int rows_f8 = c->xdtype == F8E4M3 || c->xdtype == F8E5M2, size = c->xdtype == F64   ? 8
                                                                     : c->xdtype == F32 ? 4
                                                                     : rows_f8          ? 1
                                                                                        : 2;
    int sms = c->num_sms ? c->num_sms
              : rows_f8  ? mpix_cuda_half(d, 4 * MPIX_CUDA_SMS)
                         : MPIX_CUDA_SMS;
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms;
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    c->row = c->hidden * size;
    c->scale_row = c->scale_kind == 1 ? 4 * ((c->hidden + 127) / 128)
                   : c->scale_kind    ? (c->hidden + 127) / 128
                                      : 0;
    c->batch = remote_batch_of(h, c->row, c->scale_row, 4 + 4 * (int64_t)h->max_topk);
    c->forward_batch = remote_batch_of(h, rows_f8 ? 2 * c->hidden : c->row, 0,
                                       4 * (int64_t)h->max_topk);
    c->ask_batch = remote_items_of(h, h->remote.ask);
    bool fast = mpix_cuda_combine_bits(c, c->row) % 16 == 0 && c->row < 1 << 30;
    if (fast && rows_f8 && (c->ydtype == F32 || c->ydtype == F16 || c->ydtype == BF16))
        return c->ydtype == F32   ? launch_remote<F8, F32>(sms, h, c, stream)
               : c->ydtype == F16 ? launch_remote<F8, F16>(sms, h, c, stream)
                                  : launch_remote<F8, BF16>(sms, h, c, stream);
    if (fast && c->ydtype == c->xdtype &&
        (c->xdtype == F32 || c->xdtype == F16 || c->xdtype == BF16))
        return c->xdtype == F32   ? launch_remote<VECTOR, F32>(sms, h, c, stream)
               : c->xdtype == F16 ? launch_remote<VECTOR, F16>(sms, h, c, stream)
                                  : launch_remote<VECTOR, BF16>(sms, h, c, stream);
    return launch_remote<ANY, BF16>(sms, h, c, stream);
}

cudaError_t mpix_cuda_remote_combine_load(int *arch) {
    return mpix_cuda_load(arch, remote_combine_kernel<ANY, BF16>,
                          remote_combine_kernel<VECTOR, F32>, remote_combine_kernel<F8, F32>,
                          remote_combine_kernel<VECTOR, F16>, remote_combine_kernel<F8, F16>,
                          remote_combine_kernel<VECTOR, BF16>, remote_combine_kernel<F8, BF16>);
}
