/* ll_tokens.cuh - low-latency dispatch, sending: heads, tokens, records, flags. The protocol
 * is in ll.cuh. */
#ifndef MPIX_KERNELS_CUDA_LL_TOKENS_CUH
#define MPIX_KERNELS_CUDA_LL_TOKENS_CUH
#include "common/copy.cuh"
#include "ll_team.cuh"
#include "common/launch.h"
#include "common/quant.cuh"

/* ---- rows, 16 bytes at a time: pieces of LL_PIECE bytes, LL_FLIGHT of a warp in flight ------- */
enum { LL_PIECE = 1024, LL_FLIGHT = 3 };
struct ll_pieces {
    uint4 v[LL_FLIGHT][2];
};

/* n bytes of x from the warp's first-th piece on. wide: a lane has 32 bytes in one place, otherwise
 * twice 16, so that the lanes' are adjacent. */
template <bool received>
__device__ __forceinline__ void ll_load(ll_pieces &p, const char *x, int64_t n, const ll_team &t,
                                        int first, bool wide) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < LL_FLIGHT; u++) {
        int64_t at = (int64_t)((first + u) * t.warps + t.part) * LL_PIECE + lane * (wide ? 32 : 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t j = at + i * (wide ? 16 : 512);
            const uint4 *q = (const uint4 *)(x + j);
            p.v[u][i] = j < n ? received ? __ldcg(q) : *q : make_uint4(0, 0, 0, 0);
        }
    }
}
/* To one place, as they were loaded (not wide). */
__device__ __forceinline__ void ll_store(const ll_pieces &p, char *to, int64_t n, const ll_team &t,
                                         int first) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < LL_FLIGHT; u++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t j = (int64_t)((first + u) * t.warps + t.part) * LL_PIECE + lane * 16 + i * 512;
            if (j < n)
                *(uint4 *)(to + j) = p.v[u][i];
        }
}
/* Rounds of LL_FLIGHT pieces that a warp needs for n bytes. */
__device__ __forceinline__ int ll_rounds(const ll_team &t, int64_t n) {
    int64_t bytes = (int64_t)LL_PIECE * LL_FLIGHT * t.warps;
    return (int)((n + bytes - 1) / bytes);
}

template <class F>
__device__ __forceinline__ uint64_t *counts_at(const mpix_cuda_handle &h, int owner, int bank) {
    return F::remote(h, owner) ? ll_remote_head(h, owner, 0) + MPIX_CUDA_LL_HEAD / 8
                               : ll_counts(h, owner, h.rank, bank);
}
/* By the first block's workers: what comes, to everybody. What the heads are made of, of thread r
 * and, by turns, of thread e. */
struct batches {
    uint32_t rows, at, choices, before;
    int owner, local;
};
__device__ __forceinline__ batches batches_ask(const mpix_cuda_handle &h) {
    int r = threadIdx.x;
    batches b = {};
    if (r < h.size)
        b.rows = h.state->send[r], b.at = h.state->base[r], b.choices = h.state->choices[r];
    if (r < h.experts)
        b.before = h.ll.sends[r], b.owner = h.owner[r], b.local = h.local[r];
    return b;
}
template <class F>
__device__ __forceinline__ void heads_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                           int status, uint64_t epoch, int bank, const batches &b) {
    int r = threadIdx.x;
    if (r < h.size) {
        mpix_ep_ll_head mine = {};
        mine.status = status;
        mine.flags = (c.weights ? MPIX_EP_LL_WEIGHTS : 0) | (c.tokens > 0 ? MPIX_EP_LL_TOKENS : 0);
        mine.rows = status ? 0 : b.rows;
        mine.width = c.topk;
        mine.dtype = c.offer.dtype;
        mine.scale_kind = c.offer.scale_kind;
        mine.hidden = c.hidden;
        mine.reply = b.at;
        mine.exist = b.choices;
        ll_head_put<F>(h, r, 0, epoch, bank, mine);
    }
    if (r < h.experts && !status)
        ll_put(counts_at<F>(h, b.owner, bank) + b.local, ll_word(b.before, epoch));
    for (int e = r + LL_WORKERS; e < h.experts && !status; e += LL_WORKERS)
        ll_put(counts_at<F>(h, h.owner[e], bank) + h.local[e], ll_word(h.ll.sends[e], epoch));
}

__device__ __forceinline__ const char *token_at(const mpix_cuda_dispatch &c, int64_t t) {
    return c.x + t * c.x_stride;
}
template <class F> __device__ __forceinline__ int64_t token_bytes(const mpix_cuda_dispatch &c) {
    return F::quant ? c.hidden * 2 : c.row;
}

/* What a worker has to know and to hold of a token. Of lane r: the token's place at rank r, and
 * where that is in the first bank; null: nothing goes there. */
struct outgoing {
    uint32_t map;
    int64_t i;
    quant_place to;
    uint64_t banks; /* bytes from one bank to the next */
    ll_pieces row;
};

/* Asks for all of it at once. What needs no epoch is found out here, while the call
 * can't be made yet. */
template <class F>
__device__ __forceinline__ void token_load(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                           const ll_team &team, int64_t t, outgoing &o) {
    int lane = threadIdx.x % 32;
    o.map = h.bitmap[t];
    o.i = lane < h.size ? ll_place_of(h, t, lane) : 0;
    if (F::vectors)
        ll_load<false>(o.row, token_at(c, t), token_bytes<F>(c), team, 0, F::quant);
    o.to = {nullptr, nullptr};
    o.banks = 0;
    if (lane >= h.size || !(o.map >> lane & 1))
        return;
    if (F::remote(h, lane)) {
        o.to.row = ll_remote_item(h, c, lane, 0, o.i);
    } else if (lane == h.rank && !F::expert(h)) { /* its place is known and free */
        int64_t row = h.rank * h.max_tokens + o.i;
        if (row < c.offer.rows)
            o.to = {c.out + row * c.out_stride, c.out_scales + row * c.out_scale_stride};
        return;
    } else {
        o.to.row = ll_row(h, lane, ll_place(h, h.rank, o.i, 0));
        o.banks = h.size * h.max_tokens * h.ll.row;
    }
    o.to.scales = o.to.row + ll_up16(c.row);
}

/* What travels beside choice k of token t (of none, k = 0 stands for the token), by a thread. */
template <class F>
__device__ __forceinline__ void choice_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                            int64_t t, int k, int bank) {
    int K = h.max_topk, id = k < c.topk ? h.ids[t * K + k] : -1;
    uint32_t map = h.bitmap[t];
    float weight = c.weights && k < c.topk ? c.weights[t * c.topk + k] : 0.0f;
    int owner = id >= 0 ? h.owner[id] : -1, local = id >= 0 ? h.local[id] : -1;
    int before = id >= 0 && F::expert(h)
                     ? (int)(h.expert.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.experts + id] +
                             h.expert.rel[t * K + k])
                     : 0;
    for (uint32_t m = map; m; m &= m - 1) {
        int r = __ffs(m) - 1;
        int64_t i = ll_place_of(h, t, r);
        int32_t *rec = F::remote(h, r)
                           ? (int32_t *)(ll_remote_item(h, c, r, 0, i) + ll_item_of(h, c).record)
                           : ll_record(h, r, ll_place(h, h.rank, i, bank));
        if (k == 0)
            rec[0] = (int32_t)t;
        if (k >= c.topk)
            continue;
        rec[mpix_record_word(MPIX_RECORD_LL_LOCAL, K, k)] = owner == r ? local : -1;
        if (F::expert(h))
            rec[mpix_record_word(MPIX_RECORD_LL_BEFORE, K, k)] = before;
        if (c.weights)
            rec[mpix_record_word(MPIX_RECORD_LL_WEIGHT, K, k)] = __float_as_int(weight);
    }
}

/* One round of pieces to the places of the lanes in mask. */
template <class F>
__device__ __forceinline__ void pieces_send(const mpix_cuda_dispatch &c, const ll_team &team,
                                            const ll_pieces &p, int first, const quant_place &to,
                                            uint32_t mask) {
    int lane = threadIdx.x % 32;
    for (uint32_t m = F::quant ? 0 : mask; m; m &= m - 1)
        ll_store(p, (char *)__shfl_sync(~0u, (unsigned long long)to.row, __ffs(m) - 1), c.row, team,
                 first);
#pragma unroll
    for (int u = 0; F::quant && u < LL_FLIGHT; u++) {
        int64_t at = (int64_t)((first + u) * team.warps + team.part) * (LL_PIECE / 2),
                j = at + lane * 16;
        if (at >= c.hidden)
            break;
        float f[16];
#pragma unroll
        for (int i = 0; i < 2; i++)
            c.quant == BF16 ? vec<BF16>::up(p.v[u][i], f + 8 * i)
                            : vec<F16>::up(p.v[u][i], f + 8 * i);
        quant_sixteen q = quant_lane(f, c.offer.dtype == F8E5M2, c.offer.scale_kind);
        for (uint32_t m = mask; m; m &= m - 1) {
            char *row = (char *)__shfl_sync(~0u, (unsigned long long)to.row, __ffs(m) - 1);
            char *scales = (char *)__shfl_sync(~0u, (unsigned long long)to.scales, __ffs(m) - 1);
            if (j >= c.hidden)
                continue;
            *(uint4 *)(row + j) = {q.q[0], q.q[1], q.q[2], q.q[3]};
            if (lane % 8 == 0)
                quant_scale(scales, j, c.offer.scale_kind, q);
        }
    }
}

/* What is rare stays out of the way of registers. */
__device__ static __noinline__ void bytes_send(const char *x, char *to, int64_t n) {
    warp_copy_any(x, to, n, threadIdx.x % 32);
}
__device__ static __noinline__ void row_send(const mpix_cuda_dispatch &c, ll_team team,
                                             const char *x, quant_place to) {
    if (c.quant) {
        quant_row(x, c.quant, c.hidden, c.offer.dtype == F8E5M2, c.offer.scale_kind, &to, 1,
                  team.part, team.warps);
        return;
    }
    int64_t n, at = ll_part(team, c.row, &n);
    if (n > 0)
        bytes_send(x + at, to.row ? to.row + at : nullptr, n);
}

/* A token to its places; by a team, which then meets and releases the flags. */
template <class F>
__device__ __forceinline__ void token_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                           const ll_team &team, int64_t t, outgoing &o, int bank) {
    uint32_t places = __ballot_sync(~0u, o.to.row != nullptr);
    quant_place to = {o.to.row + bank * o.banks, o.to.scales + bank * o.banks};
    const char *x = token_at(c, t);
    if (!places)
        return;
    if (F::vectors) {
        pieces_send<F>(c, team, o.row, 0, to, places);
        for (int round = 1; round < ll_rounds(team, token_bytes<F>(c)); round++) {
            ll_load<false>(o.row, x, token_bytes<F>(c), team, round * LL_FLIGHT, F::quant);
            pieces_send<F>(c, team, o.row, round * LL_FLIGHT, to, places);
        }
    } else {
        row_send(c, team, x, to);
    }
    if (c.scale_row && !F::quant && team.part == 0)
        bytes_send(c.scales + t * c.scale_stride, to.row ? to.scales : nullptr, c.scale_row);
}

/* What is left over of other blocks', by a team. */
template <class F>
__device__ static __noinline__ void tokens_steal(const mpix_cuda_handle &h,
                                                 const mpix_cuda_dispatch &c, ll_team team,
                                                 uint64_t epoch, int bank, uint32_t *shared) {
    int lane = threadIdx.x % 32;
    uint32_t t = 0, n = (uint32_t)c.tokens;
    outgoing o;
    while ((t = ll_steal(team, h.ll.claims[0], n, t, epoch, shared,
                         [](uint32_t) { return true; })) < n) {
        token_load<F>(h, c, team, t, o);
        token_send<F>(h, c, team, t, o, bank);
        for (int k = lane; team.part == 0 && (k < c.topk || k == 0); k += 32)
            choice_send<F>(h, c, t, k, bank);
        ll_meet(team); /* the release covers the whole team's stores */
        if (team.part == 0 && lane < h.size && (o.map >> lane & 1) && !F::remote(h, lane))
            word_store(ll_flag(h, lane, ll_place(h, h.rank, o.i, bank)), epoch);
        __syncwarp();
    }
}

/* By the workers. o: of the team's first token, which it has asked for. */
template <class F>
__device__ __forceinline__ void tokens_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                            const ll_team &team, outgoing &o, ll_shared *s,
                                            uint32_t *shared) {
    uint64_t epoch = s->epoch;
    uint32_t n = (uint32_t)c.tokens;
    for (uint32_t round = 0; ll_owned(0, 1, round * team.teams) < n; round++) {
        uint32_t t = ll_owned(team.number, team.teams, round);
        if (round) {
            if (t < n)
                token_load<F>(h, c, team, t, o);
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        if (t < n && ll_got(s, round, team.number, epoch))
            token_send<F>(h, c, team, t, o, s->bank);
        if (ll_owned(0, 1, (round + 1) * team.teams) < n)
            ll_sync(LL_BAR_SENT, LL_WORKERS + 32); /* before the flagger claims more */
        else
            ll_arrive(LL_BAR_SENT, LL_WORKERS + 32);
    }
    if (ll_left(h.ll.claims[0], n, epoch, [](uint32_t) { return true; }) && !ll_idle(team))
        tokens_steal<F>(h, c, team, epoch, s->bank, shared);
}

/* By the flagger: of the same rounds records and flags. The first round's rows are claimed. */
template <class F>
__device__ static void flags_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                  uint64_t epoch, ll_shared *s) {
    int lane = threadIdx.x % 32, bank = s->bank, teams = LL_WARPS / c.team[0],
        each = c.topk > 0 ? c.topk : 1;
    uint32_t n = (uint32_t)c.tokens;
    for (uint32_t round = 0; ll_owned(0, 1, round * teams) < n; round++) {
        if (round) {
            ll_claim_round(h.ll.claims[0], n, teams, round, ll_bit(epoch), s);
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        for (int j = lane; j < teams * each; j += 32)
            if (ll_got(s, round, j / each, epoch))
                choice_send<F>(h, c, ll_owned(j / each, teams, round), j % each, bank);
        uint64_t *flag = nullptr;
        for (int j0 = 0; j0 < teams * h.size; j0 += 32) {
            int j = j0 + lane, r = j % h.size;
            uint32_t t = ll_owned(j / h.size, teams, round);
            bool goes = j < teams * h.size && ll_got(s, round, j / h.size, epoch) &&
                        (h.bitmap[t] >> r & 1) && !F::remote(h, r);
            flag = goes ? ll_flag(h, r, ll_place(h, h.rank, ll_place_of(h, t, r), bank)) : nullptr;
            if (j0 == 0) {
                __syncwarp();
                ll_sync(LL_BAR_SENT, LL_WORKERS + 32);
                /* covers what all workers have stored before that barrier, and this
                 * warp's records */
                __threadfence_system();
                __syncwarp();
            }
            if (flag) {
                delay(h, 20 + r);
                ll_put(flag, epoch);
            }
        }
        __syncwarp();
    }
}
#endif
