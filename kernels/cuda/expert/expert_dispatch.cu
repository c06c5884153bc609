/*
 * expert_dispatch.cu - dispatch in the EXPERT layout: two kernels.
 *
 * A row crosses the link once per rank, to the lowest of its rows there. In the first kernel some
 * blocks send (`senders`), the others begin with this rank's own rows, which go to all their places
 * at once; senders join them when they are through. The second kernel copies received rows from
 * their lowest row to the others: it needs the peers' signals, so it waits for them, and it uses
 * all blocks. A capacity drops the highest rows, so of a pair's rows the lowest is dropped last.
 * The halves of a call that is begun and ended are these kernels.
 *
 * Words, offers and rights to write are those of dispatch.cu: READY by the first block before
 * anything waits; only senders wait for the peers' READYs, only the second kernel for rows, so no
 * block waits for one that may not have started. Own rows and padding need no READY but this rank's
 * own, which the order of its stream gives.
 */
#include "expert_rows.cuh"
#include "common/launch.h"
#include "common/quant.cuh"
#include "common/ring.cuh"

/* ---- feeds ----------------------------------------------------------------------------------- */
/* This rank's tokens to the lowest row at each other rank: lane r. */
struct send_feed {
    struct part {
        int32_t row;
        uint32_t token;
    };
    const mpix_cuda_handle &h;
    const char *x;
    int64_t x_stride;
    target to;
    __device__ part none() const { return {-1, 0}; }
    __device__ part ask(uint32_t t) const {
        int lane = threadIdx.x % 32;
        return {lane < h.size && lane != h.rank ? h.expert.first[(size_t)t * h.size + lane] : -1,
                t};
    }
    __device__ const char *source(const part &p) const { return x + p.token * x_stride; }
    __device__ char *place(const part &p) const {
        return p.row >= 0 && p.row < to.rows ? to.x + p.row * to.stride : nullptr;
    }
};

/* Pairs of this rank itself to all their rows: lane k. */
struct own_feed {
    struct part {
        int32_t row, token;
    };
    const mpix_cuda_handle &h;
    const char *x;
    int64_t x_stride, first;
    target to; /* this rank, in all lanes */
    __device__ part none() const { return {-1, 0}; }
    __device__ part ask(uint32_t i) const {
        int lane = threadIdx.x % 32;
        expert_record rec = record_of(h, h.rank, first + i);
        return {lane < h.state->topk ? rec.rows[lane] : -1, *rec.token};
    }
    __device__ const char *source(const part &p) const { return x + p.token * x_stride; }
    __device__ char *place(const part &p) const {
        return p.row >= 0 && p.row < to.rows ? to.x + p.row * to.stride : nullptr;
    }
};

/* Received pairs from their lowest row to the others: lane k. */
struct expand_feed {
    struct part {
        int32_t row, low;
    };
    const mpix_cuda_handle &h;
    const pair_order &order;
    int width;
    char *x;
    int64_t stride, rows;
    __device__ part none() const { return {-1, -1}; }
    __device__ part ask(uint32_t i) const {
        int lane = threadIdx.x % 32;
        expert_record rec = record_of(h, h.rank, order_find(h, order, i).pair);
        int32_t row = lane < width ? *(const volatile int32_t *)&rec.rows[lane] : -1;
        return {row >= 0 && row < rows ? row : -1, 0};
    }
    __device__ int64_t low(const part &p) const {
        return __reduce_min_sync(~0u, p.row >= 0 ? (unsigned)p.row : 0x7fffffffu);
    }
    __device__ const char *source(const part &p) const { return x + low(p) * stride; }
    __device__ char *place(const part &p) const {
        return p.row > low(p) ? x + p.row * stride : nullptr;
    }
};

/* ---- what goes beside the rows, by threads first .. of each block, one element each ---------- */
/* fn(i, k): element k of the i-th of n things with `each` elements. begin, step: of this
 * thread among all. */
template <class FN>
__device__ static void each_of(int64_t n, int each, int64_t begin, int64_t step, FN fn) {
    for (int64_t i = begin; i < n * each; i += step)
        fn(i / each, (int)(i % each));
}

/* To the peers: scales beside the lowest row, weights into records. to: in shared memory. */
__device__ static void scales_weights_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                           const target *to, int64_t begin, int64_t step) {
    uint64_t bits = (uint64_t)c.scales | (uint64_t)c.scale_stride | (uint64_t)c.scale_row;
    bool weights = false;
    for (int r = 0; r < h.size; r++) {
        bits |= to[r].rows > 0 && r != h.rank
                    ? (uint64_t)to[r].scales | (uint64_t)to[r].scale_stride
                    : 0;
        weights |= (to[r].flags & MPIX_EP_OFFER_WANTS_WEIGHTS) && r != h.rank;
    }
    int access = access_of(bits);
    each_of(c.quant ? 0 : c.tokens, (int)(c.scale_row / access), begin, step,
            [&](int64_t t, int k) {
                for (int r = 0; r < h.size; r++) {
                    int64_t row = r == h.rank ? -1 : h.expert.first[t * h.size + r];
                    if (row >= 0 && row < to[r].rows)
                        copy_access(to[r].scales + row * to[r].scale_stride,
                                    c.scales + t * c.scale_stride, k, access);
                }
            });
    each_of(weights ? c.tokens : 0, c.topk, begin, step, [&](int64_t t, int k) {
        float w = c.weights[t * c.topk + k];
        for (uint32_t m = h.bitmap[t] & ~(1u << h.rank); m; m &= m - 1) {
            int r = __ffs(m) - 1;
            if (to[r].flags & MPIX_EP_OFFER_WANTS_WEIGHTS)
                record_of(h, r, row_of(h, t, r)).weights[k] = w;
        }
    });
}

/* Of this rank's own pairs: scales to all rows, weights into the records. */
__device__ static void scales_weights_own(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                          const target &own, int64_t begin, int64_t step) {
    int64_t first = h.state->first[h.rank], n = h.state->recv[h.rank];
    int K = c.topk,
        access = access_of((uint64_t)c.scales | (uint64_t)c.scale_stride | (uint64_t)c.scale_row |
                           (uint64_t)own.scales | (uint64_t)own.scale_stride);
    each_of(c.quant ? 0 : n, (int)(c.scale_row / access), begin, step, [&](int64_t i, int e) {
        expert_record rec = record_of(h, h.rank, first + i);
        for (int k = 0; k < K; k++)
            if (rec.rows[k] >= 0 && rec.rows[k] < own.rows)
                copy_access(own.scales + rec.rows[k] * own.scale_stride,
                            c.scales + *rec.token * c.scale_stride, e, access);
    });
    each_of(c.out_weights ? n : 0, K, begin, step, [&](int64_t i, int k) {
        expert_record rec = record_of(h, h.rank, first + i);
        rec.weights[k] = c.weights[(int64_t)*rec.token * K + k];
    });
}

/* Rows that become fp8: each token once, to the lowest row at each other rank and to all of this
 * rank's own. `own`: this rank. */
__device__ static void quant_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                  const target &to, const target &own) {
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int64_t t = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; t < c.tokens;
         t += (int64_t)gridDim.x * warps) {
        int64_t row = lane < h.size && lane != h.rank ? h.expert.first[t * h.size + lane] : -1;
        int32_t id = lane < c.topk ? h.ids[t * h.max_topk + lane] : -1;
        int64_t here = id >= 0 && h.owner[id] == h.rank ? h.expert.row[t * h.max_topk + lane] : -1;
        bool goes = row >= 0 && row < to.rows, stays = here >= 0 && here < own.rows;
        quant_place places[2] = {{goes ? to.x + row * to.stride : nullptr,
                                  goes ? to.scales + row * to.scale_stride : nullptr},
                                 {stays ? own.x + here * own.stride : nullptr,
                                  stays ? own.scales + here * own.scale_stride : nullptr}};
        quant_row(c.x + t * c.x_stride, c.quant, c.hidden, c.offer.dtype == F8E5M2,
                  c.offer.scale_kind, places, 2);
    }
}

/* ---- the first kernel ------------------------------------------------------------------------ */
template <int BULK>
__global__ void __launch_bounds__(512)
    expert_send_kernel(const __grid_constant__ mpix_cuda_handle h,
                       const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ __align__(128) char smem[];
    __shared__ target to[MPIX_CUDA_RANKS];
    __shared__ int outcome;
    int lane = threadIdx.x % 32, w = threadIdx.x / 32;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c);
    if (block_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && w == 0) {
        mpix_cuda_offer mine = c.offer;
        mine.status = status;
        offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
        if (lane == 0 && !c.offer.status && status == MPIX_KIND_ARG)
            report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
        else if (lane == 0 && !c.offer.status && status == MPIX_KIND_TRUNCATE)
            report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
    }
    cut rows = {c.row, c.piece, c.pieces};
    /* the other warps of the bulk path send what goes beside the rows */
    bool mover = !BULK || w < c.warps;
    int movers = BULK ? c.warps : blockDim.x / 32;
    int first = BULK ? c.warps * 32 : 0;
#if __CUDA_ARCH__ >= 900
    ring g = {};
    if (BULK && mover)
        g = ring_make(smem, w, c.warps, c.stages, c.pending, c.piece);
#endif
    if ((int)blockIdx.x < c.senders) {
        if (w == 0) {
            mpix_cuda_offer o;
            int bad = offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch,
                                  nullptr, c.report, &o);
            if (lane < h.size)
                to[lane] = target_of(h, o, lane);
            if (lane == 0)
                outcome = bad;
        }
        __syncthreads();
        if (outcome == 2)
            return;
        if (outcome == 0) {
            send_feed f = {h, c.x, c.x_stride,
                           lane < h.size ? to[lane] : target{nullptr, nullptr, 0, 0, 0, 0}};
            bool odd = __any_sync(~0u, lane != h.rank && f.to.rows > 0 &&
                                           ((uint64_t)f.to.x | (uint64_t)f.to.stride) % 16);
            deal d = {h.size > 1 ? (uint32_t)c.tokens : 0, (uint32_t)(w * c.senders + blockIdx.x),
                      (uint32_t)(c.senders * movers), &h.state->item[MPIX_CUDA_DISPATCH]};
#if __CUDA_ARCH__ >= 900
            if (BULK && mover && !odd) {
                ring_copy(g, f, d, rows);
                bulk_wait();
                fence_async();
            }
#endif
            if (!BULK && c.quant) /* own rows too; all blocks are senders */
                quant_send(h, c, f.to, target_of(h, c.offer, h.rank));
            else if (mover && (!BULK || odd))
                vector_copy(f, d, rows);
            if ((int)threadIdx.x >= first)
                scales_weights_send(h, c, to,
                                    (int64_t)blockIdx.x * (blockDim.x - first) + threadIdx.x -
                                        first,
                                    (int64_t)c.senders * (blockDim.x - first));
        }
        __syncthreads();
        block_signal(h, offsetof(mpix_cuda_words, rows_here), epoch);
    }
    if (status == 0) {
        target own = target_of(h, c.offer, h.rank);
        own_feed f = {h, c.x, c.x_stride, (int64_t)h.state->first[h.rank], own};
        bool odd = own.rows > 0 && ((uint64_t)own.x | (uint64_t)own.stride) % 16;
        /* Blocks that do not send come first. */
        uint32_t place = blockIdx.x >= c.senders ? blockIdx.x - c.senders
                                                 : blockIdx.x + gridDim.x - c.senders;
        deal d = {h.state->recv[h.rank], w * gridDim.x + place, gridDim.x * movers,
                  &h.state->more[0]};
#if __CUDA_ARCH__ >= 900
        if (BULK && mover && !odd) {
            ring_copy(g, f, d, rows);
            bulk_wait();
            fence_async();
        }
#endif
        if (mover && (!BULK || odd) && !c.quant)
            vector_copy(f, d, rows);
        if ((int)threadIdx.x >= first) {
            scales_weights_own(h, c, own,
                               (int64_t)blockIdx.x * (blockDim.x - first) + threadIdx.x - first,
                               (int64_t)gridDim.x * (blockDim.x - first));
            padding_fill(h, c, own, (w - first / 32) * gridDim.x + blockIdx.x,
                         gridDim.x * (blockDim.x - first) / 32);
        }
    }
    if (last_block(h, MPIX_CUDA_DISPATCH) && threadIdx.x == 0)
        counters_reset(h, MPIX_CUDA_DISPATCH);
}

/* ---- the second kernel ----------------------------------------------------------------------- */
/* By threads first .. of each block: scales of received pairs to their other rows; the caller's
 * arrays, of all pairs. */
__device__ static void scales_expand(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                     const target &own, int64_t begin, int64_t step) {
    const mpix_cuda_state *st = h.state;
    int64_t pairs = (int64_t)st->first[h.size - 1] + st->recv[h.size - 1];
    int width = st->width, access = access_of((uint64_t)c.scale_row | (uint64_t)own.scales |
                                              (uint64_t)own.scale_stride);
    each_of(pairs, (int)(c.scale_row / access), begin, step, [&](int64_t i, int e) {
        if (i >= st->first[h.rank] && i < (int64_t)st->first[h.rank] + st->recv[h.rank])
            return;
        expert_record rec = record_of(h, h.rank, i);
        int32_t low = 0x7fffffff;
        for (int k = 0; k < width; k++)
            low = rec.rows[k] >= 0 && rec.rows[k] < low ? rec.rows[k] : low;
        for (int k = 0; k < width; k++)
            if (rec.rows[k] > low && rec.rows[k] < own.rows)
                copy_access(own.scales + rec.rows[k] * own.scale_stride,
                            own.scales + low * own.scale_stride, e, access);
    });
    each_of(c.src_rank || c.src_token || c.out_weights ? pairs : 0, width, begin, step,
            [&](int64_t i, int k) {
                expert_record rec = record_of(h, h.rank, i);
                int32_t row = rec.rows[k];
                if (row < 0 || row >= own.rows)
                    return;
                int s = 0;
                while (s + 1 < h.size && i >= (int64_t)st->first[s + 1])
                    s++;
                if (c.src_rank)
                    c.src_rank[row] = s;
                if (c.src_token)
                    c.src_token[row] = *rec.token;
                if (c.out_weights)
                    c.out_weights[row] = rec.weights[k];
            });
    for (int64_t e = begin; c.cumulative && e < h.local_experts; e += step)
        c.cumulative[e] += h.recv_expert[e];
}

template <int BULK>
__global__ void __launch_bounds__(512) expand_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                     const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ __align__(128) char smem[];
    __shared__ pair_order order;
    if (block_refused(h, c.report))
        return;
    int w = threadIdx.x / 32;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (!blocks_wait(h, offsetof(mpix_cuda_words, rows_here), h.ready, epoch,
                     blockIdx.x == 0 ? c.wait_ns : nullptr, c.report))
        return;
    fence_async();
    if (!*(volatile int32_t *)&h.state->err && own_status(h, c) == 0) {
        order_fill(h, order,
                   smem + (BULK ? (size_t)c.warps * c.stages * ring_stage_bytes(c.piece) : 0));
        target own = target_of(h, c.offer, h.rank);
        cut rows = {c.row, c.piece, c.pieces};
        int movers = BULK ? c.warps : blockDim.x / 32, first = BULK ? c.warps * 32 : 0;
        expand_feed f = {h, order, h.state->width, own.x, own.stride, own.rows};
        deal d = {order_count(h, order), w * gridDim.x + blockIdx.x, gridDim.x * movers,
                  &h.state->more[1]};
        bool odd = own.rows > 0 && ((uint64_t)own.x | (uint64_t)own.stride) % 16;
#if __CUDA_ARCH__ >= 900
        if (BULK && w < movers && !odd) {
            ring g = ring_make(smem, w, c.warps, c.stages, c.pending, c.piece);
            ring_copy(g, f, d, rows);
            bulk_wait();
            fence_async();
        }
#endif
        if (w < movers && (!BULK || odd))
            vector_copy(f, d, rows);
        if ((int)threadIdx.x >= first)
            scales_expand(h, c, own,
                          (int64_t)blockIdx.x * (blockDim.x - first) + threadIdx.x - first,
                          (int64_t)gridDim.x * (blockDim.x - first));
    }
    if (last_block(h, MPIX_CUDA_DISPATCH) && threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* ---- launches -------------------------------------------------------------------------------- */
struct form {
    int sms, threads;
    size_t smem;
};

/* How rows are moved: c is filled in. x: whether source rows allow bulk copies, or there are none
 * to copy; more: shared memory besides the rings. */
static form form_of(const mpix_cuda_device *d, mpix_cuda_dispatch *c, int sms, bool x, size_t more,
                    int *bulk) {
    *bulk = d->bulk && c->path != MPIX_CUDA_PATH_VECTOR && x && c->row % 16 == 0;
    if (!*bulk) {
        c->warps = 16;
        c->piece = 4096;
        c->pieces = (int)((c->row + c->piece - 1) / c->piece);
        return {sms, 512, 0};
    }
    enum { BESIDE = 8 };
    size_t room = mpix_cuda_room(d, 180224, more + MPIX_CUDA_RANKS * sizeof(target) + 512);
    mpix_cuda_rings r = mpix_cuda_rings_of(c->row, ring_stage_bytes(0), room, room, true);
    c->pieces = r.pieces;
    c->piece = r.piece;
    c->warps = r.warps;
    c->stages = r.stages;
    c->pending = r.pending;
    return {sms, (c->warps + BESIDE) * 32, r.smem};
}

template <class K>
static cudaError_t launch(K kernel, const form &f, size_t more, const mpix_cuda_handle *h,
                          const mpix_cuda_dispatch *c, cudaStream_t stream) {
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)(f.smem + more));
    if (err != cudaSuccess)
        return err;
    kernel<<<f.sms, f.threads, f.smem + more, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_expand_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                    mpix_cuda_dispatch *c, int sms, cudaStream_t stream) {
    int bulk;
    form f = form_of(d, c, sms, true, order_bytes(h), &bulk);
    return bulk ? launch(expand_kernel<1>, f, order_bytes(h), h, c, stream)
                : launch(expand_kernel<0>, f, order_bytes(h), h, c, stream);
}

cudaError_t mpix_cuda_expert_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                             mpix_cuda_dispatch *c, cudaStream_t stream) {
    /* Expansion is a matter of local memory: all by default. What makes rows fp8 waits for the
     * peers in all of its blocks. */
    int sms = mpix_cuda_blocks(d, c->num_sms > 0 ? c->num_sms : d->sms), bulk;
    int first = c->quant && c->num_sms <= 0 && h->size > 1 ? mpix_cuda_half(d, sms) : sms;
    c->senders = sms < MPIX_CUDA_SMS || c->quant ? first : MPIX_CUDA_SMS;
    c->offer.blocks = c->senders;
    cudaError_t err = cudaSuccess;
    if (c->part != MPIX_CUDA_END) {
        form f = form_of(d, c, first,
                         !c->quant && ((uint64_t)c->x | (uint64_t)c->x_stride) % 16 == 0, 0, &bulk);
        err = bulk ? launch(expert_send_kernel<1>, f, 0, h, c, stream)
                   : launch(expert_send_kernel<0>, f, 0, h, c, stream);
    }
    return c->part != MPIX_CUDA_BEGIN && err == cudaSuccess
               ? mpix_cuda_expand_launch(d, h, c, sms, stream)
               : err;
}

cudaError_t mpix_cuda_expert_dispatch_load(int *arch) {
    return mpix_cuda_load(arch, expert_send_kernel<0>, expert_send_kernel<1>, expand_kernel<0>,
                          expand_kernel<1>);
}
