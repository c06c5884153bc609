/*
 * ll_block.cuh - low-latency combine: how a block's warps share rows, claim them and wait. The protocol is in ll.cuh; dispatch's way is in ll_team.cuh.
 *
 * Rows are shared by all workers, in pieces of LL_PIECE bytes. The flagger watches the flags of the rows that the block receives, some at a time, for
 * its workers, which meanwhile do what needs no peer: no more warps poll than there are blocks.
 *
 * A claim is a bit of the row's word, the one of the epoch's parity. An owner sets both, so that it need not know the epoch, which would have to be
 * loaded first, and looks later at the one that counts. That was 0 when the call began: the block that started last in the call before, after
 * the first claims of all blocks, has cleared it in the words of all rows; later claims of that call set only its own bit.
 */
#ifndef MPIX_KERNELS_CUDA_LL_BLOCK_CUH
#define MPIX_KERNELS_CUDA_LL_BLOCK_CUH
#include "ll.cuh"

enum { LL_PIECE = 1024, LL_ROUND = LL_WARPS }; /* bytes that a warp moves at a time; rows of a block that are sent before their flags */

/* ---- waiting ---- */
/* Between two looks there is nothing but the look itself: whether it takes too long is asked now and then, as that takes as long as a look. */
struct ll_patience { uint64_t start; uint32_t looks; };
/* By a warp, whose lanes leave together. */
__device__ __forceinline__ bool ll_too_long(const mpix_cuda_handle &h, ll_patience &p) {
    enum { EACH = 64 };
    if (++p.looks % EACH)
        return false;
    if (p.looks == EACH)
        p.start = now_ns();
    return __any_sync(~0u, now_ns() - p.start > h.timeout_ns || *(volatile int32_t *)h.failed);
}
__device__ __forceinline__ void ll_timed_out(const mpix_cuda_handle &h, int source, mpix_cuda_status *to) {
    status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, source, 0, 0, 0});
    *(volatile int32_t *)h.failed = 1;
}
/* By a warp: lanes with a word await this very epoch (the top bit apart), bounded; source: whom the lane waits for. All lanes leave together,
 * and what was acquired is there for all of them. False: time-out. */
__device__ inline bool ll_await(const mpix_cuda_handle &h, const uint64_t *p, uint64_t epoch, int source, mpix_cuda_status *to, uint64_t *got) {
    uint64_t v = p ? word_load(p) : epoch;
    ll_patience patience = {0, 0};
    bool there, late = false;
    while (!__all_sync(~0u, there = (v & ~LL_EMPTY) == epoch) && !(late = ll_too_long(h, patience)))
        if (!there)
            v = word_load(p);
    if (late && !there)
        ll_timed_out(h, source, to);
    *got = v;
    __syncwarp();
    return !late;
}

/* What the warps of a block tell each other. */
struct ll_shared {
    uint64_t epoch;
    int bank;                    /* epoch modulo depth */
    int go, status;              /* go: the call can be made, and the places are free; status: it fails, which the heads say */
    int bad, late;               /* bad: clerk: 0, or 1: the call fails, 2: time-out; late: of a row, later */
    uint32_t claimed[2][LL_ROUND]; /* by round and row: the word before the block's claim */
    int there[2][LL_ROUND];      /* combine: there is one */
    uint32_t stolen;
};

/* By the clerk. */
__device__ inline void ll_open(const mpix_cuda_handle &h, int combine, const ll_asked &a, mpix_cuda_status *to, ll_shared *s) {
    bool ok = ll_may_go(h, combine, a, to);
    if (threadIdx.x % 32 == 0) {
        s->epoch = a.epoch;
        s->bank = a.bank == (uint32_t)h.ll.depth ? 0 : (int)a.bank;
        s->go = ok;
        s->late = 0;
    }
    __syncwarp();
}
/* By the clerk: all heads of this epoch. False: time-out. also: other words that it looks at in the same moments; it awaits them too, unless a
 * head says that its rank's call fails. */
struct ll_nothing {
    __device__ void look() {}
    __device__ bool there() { return true; }
};
template <class F>
__device__ inline bool ll_heads(const mpix_cuda_handle &h, int combine, uint64_t epoch, int bank, mpix_cuda_status *to, bool waited,
                                mpix_cuda_ll_head *heads, F also) {
    enum { WORDS = sizeof *heads / 4 };
    int r = threadIdx.x % 32;
    uint64_t start = waited ? now_ns() : 0, v[WORDS];
    const uint64_t *head = r < h.size ? ll_head(h, h.rank, r, combine, bank) : nullptr;
    bool there = !head, fails = false, others = false;
    ll_patience patience = {0, 0};
    delay(h, 1);
    for (;;) {
        bool looks = !there;
        if (looks) {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                v[i] = ll_look(head + i);
        }
        if (!others)
            also.look();
        if (looks) {
            there = true;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                there = there && ll_is(v[i], epoch);
            fails = there && (uint32_t)v[0] != 0;
        }
        others = others || also.there();
        bool failing = __any_sync(~0u, fails);
        if (__all_sync(~0u, there && (others || failing)))
            break;
        if (ll_too_long(h, patience)) {
            if (!there || !others)
                ll_timed_out(h, there ? -1 : r, to);
            __syncwarp();
            return false;
        }
    }
    if (head) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            ((uint32_t *)&heads[r])[i] = (uint32_t)v[i];
    }
    if (waited && r < h.size && r != h.rank)
        atomicMax((unsigned long long *)&h.state->waited[r], now_ns() - start);
    __syncwarp();
    return true;
}

__device__ __forceinline__ void ll_meet() { ll_sync(LL_BAR_WORKERS, LL_WORKERS); }

/* ---- claims ---- */
/* Row j of a round of those that this block owns; the first block has the heads to send, so it owns none if there are others. */
__device__ __forceinline__ uint32_t ll_owned(uint32_t round, int j) {
    uint32_t blocks = gridDim.x > 1 ? gridDim.x - 1 : 1, block = gridDim.x > 1 ? blockIdx.x - 1 : 0;
    return block >= blocks ? ~0u : (round * LL_ROUND + j) * blocks + block;
}
__device__ __forceinline__ uint32_t ll_bit(uint64_t epoch) { return 1u << (epoch & 1); }
/* By the flagger: the block's rows of a round, of n. bits: both, of the first round. */
__device__ __forceinline__ void ll_claim_round(uint32_t *claims, uint32_t n, uint32_t round, uint32_t bits, ll_shared *s) {
    int j = threadIdx.x % 32;
    if (j < LL_ROUND) {
        uint32_t u = ll_owned(round, j);
        s->claimed[round & 1][j] = u < n ? atomicOr(&claims[u], bits) : ~0u;
    }
    __syncwarp();
}
__device__ __forceinline__ bool ll_got(const ll_shared *s, uint32_t round, int j, uint64_t epoch) { return !(s->claimed[round & 1][j] & ll_bit(epoch)); }
/* By a warp of the block that started last: the other bit, for the next call. */
__device__ inline void ll_claims_clear(uint32_t *claims, int64_t n, uint64_t epoch) {
    for (int64_t u = threadIdx.x % 32; u < n; u += 32)
        atomicAnd(&claims[u], ll_bit(epoch));
}
/* By the workers: a row, from `from` on, that nobody had claimed; n: none. Their stores until now are before what any of them does then. */
template <class F>
__device__ inline uint32_t ll_steal(uint32_t *claims, uint32_t n, uint32_t from, uint64_t epoch, ll_shared *s, F there) {
    if (threadIdx.x < 32) {
        uint32_t lane = threadIdx.x, bit = ll_bit(epoch), u = n;
        for (uint32_t u0 = from; u0 < n && u == n; u0 += 32) {
            uint32_t mask;
            while ((mask = __ballot_sync(~0u, u0 + lane < n && there(u0 + lane) && !(*(volatile uint32_t *)&claims[u0 + lane] & bit)))) {
                uint32_t at = u0 + __ffs(mask) - 1, before = lane == 0 ? atomicOr(&claims[at], bit) : 0;
                if (!(__shfl_sync(~0u, before, 0) & bit)) {
                    u = at;
                    break;
                }
            }
        }
        if (lane == 0)
            s->stolen = u;
    }
    ll_meet();
    return s->stolen;
}
/* By the workers: whether any row is left. */
template <class F> __device__ inline bool ll_left(const uint32_t *claims, uint32_t n, uint64_t epoch, F there) {
    bool left = false;
    for (uint32_t u = threadIdx.x; u < n; u += LL_WORKERS)
        left |= !(*(volatile const uint32_t *)&claims[u] & ll_bit(epoch)) && there(u);
    return ll_workers_or(left);
}

/* This worker's part of n bytes, in pieces of 512: where it begins; its size. */
__device__ __forceinline__ int64_t ll_part(int64_t n, int64_t *bytes) {
    int64_t piece = ((n + LL_WARPS - 1) / LL_WARPS + 511) / 512 * 512, at = threadIdx.x / 32 * piece, left = n - at;
    *bytes = left < piece ? left : piece;
    return at;
}

/* ---- the end ---- */
/* By the last-started block's clerk, when it has found the verdict. ends: with this kernel. */
__device__ inline void ll_count(const mpix_cuda_handle &h, int kind, bool ends, const ll_shared &s, mpix_cuda_status *to) {
    if (threadIdx.x % 32)
        return;
    if (ends)
        h.state->bank = s.bank;
    if (ends)
        call_end(h, kind, s.epoch, to);
    else
        counters_reset(h, kind);
}
#endif
