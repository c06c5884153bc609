/*
 * ll_answers.cuh - low-latency combine: answers, made where the experts are and sent to the tokens'
 * owners. ll_combine.cu sums them there. By warps of ll_combine_kernel.
 */
#ifndef MPIX_KERNELS_CUDA_LL_ANSWERS_CUH
#define MPIX_KERNELS_CUDA_LL_ANSWERS_CUH
#include "common/copy.cuh"
#include "common/launch.h"
#include "ll_sum.cuh"

__device__ __forceinline__ void rows_sum(const elem_terms &a) {
    if (a.xdtype == F64)
        elem_sum<double>(a, threadIdx.x / 32, LL_WARPS);
    else
        elem_sum<float>(a, threadIdx.x / 32, LL_WARPS);
}

/* ---- what the clerk finds out for the workers ------------------------------------------------ */
struct known {
    uint32_t recv[MPIX_CUDA_RANKS], reply[MPIX_CUDA_RANKS], base[MPIX_CUDA_RANKS];
    int64_t limit;
    int width;
};

__device__ __forceinline__ bool is_plain(const mpix_cuda_combine &c) {
    return !c.row_weights && c.offer.dtype == c.xdtype;
}
/* By the clerk. What this rank knows of the routing; then 0: the call can be made. */
struct routing {
    uint32_t recv, reply, base;
    int routed, topk, learnt, width;
    int64_t tokens, limit;
};
__device__ __forceinline__ routing routing_ask(const mpix_cuda_handle &h) {
    const mpix_cuda_state *st = h.state;
    int r = threadIdx.x % 32;
    routing a = {0, 0, 0, st->routed, st->topk, st->learnt, st->width, st->tokens, st->limit};
    if (r < h.size)
        a.recv = st->recv[r], a.reply = st->reply[r], a.base = st->base[r];
    return a;
}
__device__ static int own_fault(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                const routing &a, known *k, int64_t *rows) {
    int r = threadIdx.x % 32;
    int64_t n = a.recv;
    k->recv[r] = a.recv;
    k->reply[r] = a.reply;
    k->base[r] = a.base;
    if (r == 0) {
        k->limit = a.limit;
        k->width = a.width;
    }
    for (int d = 16; d; d /= 2)
        n += __shfl_xor_sync(~0u, n, d);
    *rows = n;
    return !a.routed                                                       ? MPIX_CUDA_NOT_ROUTED
           : a.tokens != c.tokens || a.topk != c.topk                      ? MPIX_CUDA_STALE
           : !a.learnt                                                     ? MPIX_CUDA_NO_DISPATCH
           : n > 0 && a.limit > 0 && (!c.x || (c.scale_kind && !c.scales)) ? MPIX_CUDA_NO_ROWS
                                                                           : 0;
}

/* ---- sending --------------------------------------------------------------------------------- */
/* Rows to send are numbered by (peer, place among those that came from it), peers in turn from the
 * next rank on. */
__device__ __forceinline__ uint32_t rows_most(const mpix_cuda_handle &h) {
    return (uint32_t)((h.size - 1) * h.max_tokens);
}
__device__ __forceinline__ int source_of(const mpix_cuda_handle &h, uint32_t u) {
    return (h.rank + 1 + (int)(u / (uint32_t)h.max_tokens)) % h.size;
}
__device__ __forceinline__ int64_t place_of(const mpix_cuda_handle &h, uint32_t u) {
    return u % (uint32_t)h.max_tokens;
}

/* By the first block's workers. */
template <class F>
__device__ static void heads_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const ll_shared &s, const known &k) {
    int r = threadIdx.x;
    if (r >= h.size)
        return;
    mpix_ep_ll_head mine = {};
    mine.status = s.status;
    mine.flags = c.slot_values ? MPIX_EP_LL_SLOTS : 0;
    mine.rows = s.status ? 0 : k.recv[r];
    mine.dtype = c.offer.dtype;
    mine.hidden = c.hidden;
    ll_head_put<F>(h, r, 1, s.epoch, s.bank, mine);
}

/* EXPERT: the row of each choice of a token, by lane; before it is known how many
 * choices there are. */
template <class F>
__device__ __forceinline__ int64_t rows_ask(const mpix_cuda_handle &h, int s, int64_t i) {
    int lane = threadIdx.x % 32;
    return F::expert(h) && lane < h.max_topk
               ? h.ll.place[(s * h.max_tokens + i) * h.max_topk + lane]
               : -1;
}
/* The row of the lane, of a token that came from source s as its i-th; -1: none. */
template <class F>
__device__ __forceinline__ int64_t row_here(const mpix_cuda_handle &h, const known &k, int s,
                                            int64_t i, int64_t asked) {
    int lane = threadIdx.x % 32;
    int64_t row = F::expert(h) ? lane < k.width ? asked : -1
                  : lane == 0  ? s * h.max_tokens + i
                               : -1;
    return row < k.limit ? row : -1;
}

/* Where the parts of an answer go; row null: nowhere. */
struct answer {
    char *row;
    float *values;
    uint64_t *flag;
};
__device__ __forceinline__ answer own_answer(const mpix_cuda_handle &h, int64_t n) {
    return {ll_answer_row(h, h.rank, n), ll_answer_values(h, h.rank, n), nullptr};
}
/* That for the i-th token of a source. */
template <class F>
__device__ __forceinline__ answer answer_of(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                            const known &k, int source, int64_t i, int bank) {
    if (F::remote(h, source)) {
        char *item = ll_remote_item(h, c, source, 1, i), *record = item + ll_item_of(h, c).record;
        return {item, (float *)(record + 16), (uint64_t *)record};
    }
    int64_t n = ll_answer(h, (int64_t)k.reply[source] + i, bank);
    return {ll_answer_row(h, source, n), ll_answer_values(h, source, n),
            ll_answer_flag(h, source, n)};
}

/* Anything that is not for vectors: the sum of a token's rows, a row of each lane,
 * by the workers. */
template <class F>
__device__ static __noinline__ void answer_make(const mpix_cuda_handle &h,
                                                const mpix_cuda_combine &c, const known &known,
                                                int64_t row, answer to_answer) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = known.width;
    elem_terms a = {};
    a.there = row >= 0;
    if (a.there) {
        a.x = c.x + row * c.x_stride;
        a.scales = c.scale_kind ? c.scales + row * c.scale_stride : nullptr;
        a.w = c.row_weights ? c.row_weights[row] : 1.0f;
    }
    uint32_t mask = __ballot_sync(~0u, a.there);
    if (c.slot_values && mask && warp == LL_WARPS / 2) {
        float *to = to_answer.values;
        int64_t first = __shfl_sync(~0u, row, 0);
        for (int k = lane; k < width; k += 32)
            to[k] = F::expert(h) ? row >= 0 ? c.slot_values[row] : 0.0f
                                 : c.slot_values[first * width + k];
    }
    if (!mask || !to_answer.row)
        return;
    a.y = to_answer.row;
    if (is_plain(c) && __popc(mask) == 1) {
        const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, __ffs(mask) - 1);
        int64_t n, at = ll_part(c.row, &n);
        if (n > 0)
            warp_copy_any(x + at, lane == 0 ? a.y + at : nullptr, n, lane);
        return;
    }
    a.weighted = c.row_weights != nullptr;
    a.xdtype = c.xdtype;
    a.scale_kind = c.scale_kind;
    a.ydtype = c.offer.dtype;
    a.hidden = c.hidden;
    rows_sum(a);
}

__device__ __forceinline__ parts parts_of(const mpix_cuda_combine &c) {
    return {c.x, c.row_weights, c.x_stride, c.row, (int)((c.row + LL_PIECE - 1) / LL_PIECE)};
}
/* By a warp: the j-th list, of the lanes that have a row. Whether any does. */
__device__ __forceinline__ bool list_make(lists *l, int j, int64_t row, char *to) {
    int lane = threadIdx.x % 32;
    uint32_t mask = __ballot_sync(~0u, row >= 0);
    if (row >= 0)
        l->row[j][__popc(mask & ((1u << lane) - 1))] = (int32_t)row;
    if (lane == 0) {
        l->count[j] = __popc(mask);
        l->to[j] = to;
    }
    return mask != 0;
}

/* What is left over of other blocks', by the workers. */
template <int X, class F>
__device__ static __noinline__ void answers_steal(const mpix_cuda_handle &h,
                                                  const mpix_cuda_combine &c, ll_shared *s,
                                                  const known &k, lists *l, uint32_t room) {
    uint32_t u = 0, n = rows_most(h);
    auto exists = [&](uint32_t u) { return place_of(h, u) < k.recv[source_of(h, u)]; };
    while ((u = ll_steal(h.ll.claims[1], n, u, s->epoch, s, exists)) < n) {
        int from = source_of(h, u);
        int64_t i = place_of(h, u), row = row_here<F>(h, k, from, i, rows_ask<F>(h, from, i));
        answer to = answer_of<F>(h, c, k, from, i, s->bank);
        bool there = __any_sync(~0u, row >= 0);
        if (F::vectors) {
            if (threadIdx.x < 32)
                list_make(l, 0, row, to.row);
            ll_meet();
            parts_sum<X>(parts_of(c), l, there ? 1 : 0, room, 0);
        } else {
            answer_make<F>(h, c, k, row, to);
        }
        ll_meet(); /* the release covers all workers' stores */
        if (threadIdx.x == 0)
            word_store(to.flag, s->epoch | (there ? 0 : LL_EMPTY));
        __syncwarp();
    }
}

/* By the workers. asked: for the warp's row of the first round. */
template <int X, class F>
__device__ __forceinline__ void answers_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                             int64_t asked, ll_shared *s, const known &k, lists *l,
                                             uint32_t room) {
    uint64_t epoch = s->epoch;
    uint32_t n = rows_most(h);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto exists = [&](uint32_t u) { return place_of(h, u) < k.recv[source_of(h, u)]; };
    auto mine = [&](uint32_t round, int j) {
        return ll_owned(round, j) < n && exists(ll_owned(round, j)) && ll_got(s, round, j, epoch);
    };
    for (uint32_t round = 0; ll_owned(round, 0) < n; round++) {
        uint32_t u = ll_owned(round, warp);
        int from = u < n ? source_of(h, u) : 0;
        int64_t i = u < n ? place_of(h, u) : 0;
        if (round) {
            asked = u < n ? rows_ask<F>(h, from, i) : -1;
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        bool own = mine(round, warp),
             there = list_make(l, warp, own ? row_here<F>(h, k, from, i, asked) : -1,
                               own ? answer_of<F>(h, c, k, from, i, s->bank).row : nullptr);
        if (lane == 0)
            s->there[round & 1][warp] = there;
        ll_meet();
        if (F::vectors) {
            parts_sum<X>(parts_of(c), l,
                         __ballot_sync(~0u,
                                       lane < LL_ROUND && l->count[lane < LL_ROUND ? lane : 0] > 0),
                         room, 0);
        } else {
            for (int j = 0; j < LL_ROUND; j++) {
                if (!mine(round, j))
                    continue;
                uint32_t v = ll_owned(round, j);
                int64_t at = place_of(h, v);
                answer_make<F>(h, c, k,
                               row_here<F>(h, k, source_of(h, v), at,
                                           rows_ask<F>(h, source_of(h, v), at)),
                               answer_of<F>(h, c, k, source_of(h, v), at, s->bank));
            }
        }
        if (ll_owned(round + 1, 0) < n)
            ll_sync(LL_BAR_SENT, LL_WORKERS + 32); /* before the flagger claims more */
        else
            ll_arrive(LL_BAR_SENT, LL_WORKERS + 32);
    }
    if (ll_left(h.ll.claims[1], n, epoch, exists)) /* lists are free again when all have asked */
        answers_steal<X, F>(h, c, s, k, l, room);
}

/* By the flagger, of the same rounds. The first round's rows are claimed. */
template <class F>
__device__ static void flags_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  uint64_t epoch, ll_shared *s, const known &k) {
    int lane = threadIdx.x % 32;
    uint32_t n = rows_most(h);
    for (uint32_t round = 0; ll_owned(round, 0) < n; round++) {
        if (round) {
            ll_claim_round(h.ll.claims[1], n, round, ll_bit(epoch), s);
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        uint32_t u = lane < LL_ROUND ? ll_owned(round, lane) : n;
        int from = u < n ? source_of(h, u) : 0;
        int64_t i = u < n ? place_of(h, u) : 0;
        bool mine = u < n && i < k.recv[from] && ll_got(s, round, lane, epoch);
        __syncwarp();
        ll_sync(LL_BAR_SENT, LL_WORKERS + 32);
        __threadfence_system(); /* covers what all workers have stored before that barrier */
        if (mine) {
            delay(h, 20 + from);
            ll_put(answer_of<F>(h, c, k, from, i, s->bank).flag,
                   epoch | (s->there[round & 1][lane] ? 0 : LL_EMPTY));
        }
        __syncwarp();
    }
}
#endif
