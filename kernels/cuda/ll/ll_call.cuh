/*
 * ll_call.cuh - low latency: what both calls share of how a block waits, claims rows, and starts
 * and ends. The protocol is in ll.cuh.
 */
#ifndef MPIX_KERNELS_CUDA_LL_CALL_CUH
#define MPIX_KERNELS_CUDA_LL_CALL_CUH
#include "ll.cuh"

/* ---- waiting --------------------------------------------------------------------------------- */
/* Between two looks there is nothing but the look itself: whether it takes too long is asked now
 * and then, as that takes as long as a look. */
struct ll_patience {
    uint64_t start;
    uint32_t looks;
};
/* By a warp, whose lanes leave together. */
__device__ __forceinline__ bool ll_too_long(const mpix_cuda_handle &h, ll_patience &p) {
    enum { EACH = 64 };
    if (++p.looks % EACH)
        return false;
    if (p.looks == EACH)
        p.start = now_ns();
    return __any_sync(~0u, now_ns() - p.start > h.timeout_ns || *(volatile int32_t *)h.failed);
}
__device__ __forceinline__ void ll_timed_out(const mpix_cuda_handle &h, int source,
                                             mpix_cuda_status *to) {
    status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, source, 0, 0, 0});
    *(volatile int32_t *)h.failed = 1;
}
/* By a warp: lanes with a word await this very epoch (the top bit apart), bounded; source: whom
 * the lane waits for. All lanes leave together, and what was acquired is there for all of them.
 * False: time-out. */
__device__ inline bool ll_await(const mpix_cuda_handle &h, const uint64_t *p, uint64_t epoch,
                                int source, mpix_cuda_status *to, uint64_t *got) {
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
    int bank;                      /* epoch modulo depth */
    int go, status;                /* go: the call can be made, and the places are free; status: it
                                    * fails, which the heads say */
    int bad, late;                 /* bad: clerk: 0, or 1: the call fails, 2: time-out; late:
                                    * of a row, later */
    uint32_t claimed[2][LL_WARPS]; /* by round and row of the block: the word before its claim */
    int there[2][LL_WARPS];        /* combine: there is one */
    uint32_t stolen;               /* combine */
};

/* By the clerk. */
__device__ inline void ll_open(const mpix_cuda_handle &h, int combine, const ll_asked &a,
                               mpix_cuda_status *to, ll_shared *s) {
    bool ok = ll_may_go(h, combine, a, to);
    if (threadIdx.x % 32 == 0) {
        s->epoch = a.epoch;
        s->bank = a.bank == (uint32_t)h.ll.depth ? 0 : (int)a.bank;
        s->go = ok;
        s->late = 0;
    }
    __syncwarp();
}
/* By the clerk: all heads of this epoch. False: time-out. */
__device__ inline bool ll_heads(const mpix_cuda_handle &h, int combine, uint64_t epoch, int bank,
                                mpix_cuda_status *to, bool waited, mpix_ep_ll_head *heads) {
    enum { WORDS = sizeof *heads / 4 };
    int r = threadIdx.x % 32;
    uint64_t start = waited ? now_ns() : 0, v[WORDS];
    const uint64_t *head = r < h.size ? ll_head(h, h.rank, r, combine, bank) : nullptr;
    bool there = !head;
    ll_patience patience = {0, 0};
    delay(h, 1);
    for (;;) {
        if (!there) {
            there = true;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                v[i] = ll_look(head + i);
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                there = there && ll_is(v[i], epoch);
        }
        if (__all_sync(~0u, there))
            break;
        if (ll_too_long(h, patience)) {
            if (!there)
                ll_timed_out(h, r, to);
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

/* ---- claims ---- A claim is a bit of the row's word, the one of the epoch's parity. An owner sets
 * both, so that it need not know the epoch, which would have to be loaded first, and looks later at
 * the one that counts. That was 0 when the call began: the block that started last in the call
 * before, after the first claims of all blocks, has cleared it in the words of all rows that a call
 * can have; later claims of that call set only its own bit.
 */
__device__ __forceinline__ uint32_t ll_bit(uint64_t epoch) { return 1u << (epoch & 1); }
/* By a warp of the block that started last: the other bit, for the next call. */
__device__ inline void ll_claims_clear(uint32_t *claims, int64_t n, uint64_t epoch) {
    for (int64_t u = threadIdx.x % 32; u < n; u += 32)
        atomicAnd(&claims[u], ll_bit(epoch));
}
__device__ __forceinline__ bool ll_got(const ll_shared *s, uint32_t round, int j, uint64_t epoch) {
    return !(s->claimed[round & 1][j] & ll_bit(epoch));
}
/* By a warp: claims the first row from `from` on that nobody had claimed; n: there is none.
 * there(u): whether there is such a row. */
template <class F>
__device__ __forceinline__ uint32_t ll_claim_next(uint32_t lane, uint32_t *claims, uint32_t n,
                                                  uint32_t from, uint64_t epoch, F there) {
    uint32_t bit = ll_bit(epoch), u = n;
    for (uint32_t u0 = from; u0 < n && u == n; u0 += 32) {
        uint32_t mask;
        while ((mask = __ballot_sync(~0u, u0 + lane < n && there(u0 + lane) &&
                                              !(*(volatile uint32_t *)&claims[u0 + lane] & bit)))) {
            uint32_t at = u0 + __ffs(mask) - 1, before = lane == 0 ? atomicOr(&claims[at], bit) : 0;
            if (!(__shfl_sync(~0u, before, 0) & bit)) {
                u = at;
                break;
            }
        }
    }
    return u;
}
/* By the workers: whether any row is left. */
template <class F>
__device__ inline bool ll_left(const uint32_t *claims, uint32_t n, uint64_t epoch, F there) {
    bool left = false;
    for (uint32_t u = threadIdx.x; u < n; u += LL_WORKERS)
        left |= !(*(volatile const uint32_t *)&claims[u] & ll_bit(epoch)) && there(u);
    return ll_workers_or(left);
}

/* ---- the end --------------------------------------------------------------------------------- */
/* By the last-started block's clerk, when it has found the verdict. ends: with this kernel. */
__device__ inline void ll_count(const mpix_cuda_handle &h, int combine, bool ends,
                                const ll_shared &s, mpix_cuda_status *to) {
    int type = combine ? MPIX_CUDA_COMBINE : MPIX_CUDA_DISPATCH;
    if (threadIdx.x % 32)
        return;
    if (ends) {
        h.state->bank[combine] = s.bank;
        call_end(h, type, s.epoch, to);
    } else {
        counters_reset(h, type);
    }
}
#endif
