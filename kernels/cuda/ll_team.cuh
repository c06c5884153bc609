/*
 * ll_team.cuh - low-latency dispatch: how its warps share rows, claim them and wait. The protocol is in ll.cuh; combine's way is in ll_block.cuh.
 *
 * A row belongs to a team of warps, which is the whole block where rows are few. Its first pieces are in registers when the call can be made. A claim
 * is the epoch, exchanged.
 */
#ifndef MPIX_KERNELS_CUDA_LL_TEAM_CUH
#define MPIX_KERNELS_CUDA_LL_TEAM_CUH
#include "ll.cuh"

/* ---- waiting ---- */
/* By a warp: lanes with a word await this very epoch (the top bit apart), bounded; source: whom the lane waits for. All lanes leave together,
 * and what was acquired is there for all of them. False: time-out. */
__device__ inline bool ll_await(const mpix_cuda_handle &h, const uint64_t *p, uint64_t epoch, int source, mpix_cuda_status *to, uint64_t *got) {
    uint64_t v = p ? word_load(p) : epoch;
    bool bad = false;
    if (!__all_sync(~0u, (v & ~LL_EMPTY) == epoch)) {
        uint64_t start = now_ns();
        for (;;) {
            bool there = (v & ~LL_EMPTY) == epoch;
            if (!there && (now_ns() - start > h.timeout_ns || *(volatile int32_t *)h.failed)) {
                status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, source, 0, 0, 0});
                *(volatile int32_t *)h.failed = 1;
                bad = true;
            }
            if (__all_sync(~0u, there || bad))
                break;
            if (!there && !bad)
                v = word_load(p);
        }
    }
    *got = v;
    __syncwarp();
    return !__any_sync(~0u, bad);
}

/* What the warps of a block tell each other. */
struct ll_shared {
    uint64_t epoch;
    int go, status;         /* go: the call can be made, and the places are free; status: it fails, which the heads say */
    int bad;                /* clerk: 0, or 1: the call fails, 2: time-out */
    int got[2][LL_WARPS];   /* by round and team: the row is the block's */
};

/* By the clerk. */
__device__ inline void ll_open(const mpix_cuda_handle &h, int combine, const ll_asked &a, mpix_cuda_status *to, ll_shared *s) {
    bool ok = ll_may_go(h, combine, a, to);
    if (threadIdx.x % 32 == 0) {
        s->epoch = a.epoch;
        s->go = ok;
    }
    __syncwarp();
}
/* By the clerk: all heads of this epoch. False: time-out. */
__device__ inline bool ll_heads(const mpix_cuda_handle &h, int combine, uint64_t epoch, mpix_cuda_status *to, bool waited, mpix_cuda_ll_head *heads) {
    enum { WORDS = sizeof *heads / 4 };
    int r = threadIdx.x % 32;
    uint64_t start = now_ns(), v[WORDS];
    const uint64_t *head = r < h.size ? ll_head(h, h.rank, r, combine, (int)(epoch % h.ll.depth)) : nullptr;
    bool there = !head, bad = false;
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
        if (!there && (now_ns() - start > h.timeout_ns || *(volatile int32_t *)h.failed)) {
            status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, r, 0, 0, 0});
            *(volatile int32_t *)h.failed = 1;
            bad = true;
        }
        if (__any_sync(~0u, bad))
            return false;
        if (__all_sync(~0u, there))
            break;
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

/* ---- teams: warps of a block that share a row ---- */
struct ll_team { int warps, number, part, teams; }; /* number: of the team in its block; part: of the warp in its team */
__device__ __forceinline__ ll_team ll_team_of(int warps) {
    int w = threadIdx.x / 32;
    return {warps, w / warps, w % warps, LL_WARPS / warps};
}
__device__ __forceinline__ bool ll_idle(const ll_team &t) { return t.number >= t.teams; } /* warps that make no team */
__device__ __forceinline__ void ll_meet(const ll_team &t) {
    if (t.warps == 1)
        __syncwarp();
    else
        asm volatile("barrier.cta.sync %0, %1;" ::"r"(t.number + 1), "r"(t.warps * 32) : "memory");
}

/* ---- claims ---- */
/* The row that a team of this block owns in a round; the first block has the heads to send, so it owns none if there are others. */
__device__ __forceinline__ uint32_t ll_owned(int team, int teams, uint32_t round) {
    uint32_t blocks = gridDim.x > 1 ? gridDim.x - 1 : 1, block = gridDim.x > 1 ? blockIdx.x - 1 : 0;
    return team >= teams || (blockIdx.x == 0 && gridDim.x > 1) ? ~0u : (round * teams + team) * blocks + block;
}
__device__ __forceinline__ bool ll_claim(uint64_t *claims, uint32_t u, uint64_t epoch) {
    return atomicExch((unsigned long long *)&claims[u], (unsigned long long)epoch) != epoch;
}
/* By the flagger: the block's rows of a round, of n. */
__device__ __forceinline__ void ll_claim_round(uint64_t *claims, uint32_t n, int teams, uint32_t round, uint64_t epoch, ll_shared *s) {
    int team = threadIdx.x % 32;
    if (team < teams) {
        uint32_t u = ll_owned(team, teams, round);
        s->got[round & 1][team] = u < n && ll_claim(claims, u, epoch);
    }
    __syncwarp();
}
/* By the flagger, before anything else. */
__device__ inline void ll_flagger_open(const mpix_cuda_handle &h, bool sends, uint64_t *claims, uint32_t n, int teams, ll_shared *s) {
    uint64_t epoch = *(volatile uint64_t *)&h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (sends)
        ll_claim_round(claims, n, teams, 0, epoch, s);
}
/* What nobody has claimed, from `from` on; n: nothing. By a team; ends with its barrier. there(u): whether there is such a row. */
template <class F>
__device__ inline uint32_t ll_steal(const ll_team &t, uint64_t *claims, uint32_t n, uint32_t from, uint64_t epoch, uint32_t *shared, F there) {
    if (t.part == 0) {
        uint32_t lane = threadIdx.x % 32, u = n;
        for (uint32_t u0 = from; u0 < n && u == n; u0 += 32) {
            uint32_t mask;
            while ((mask = __ballot_sync(~0u, u0 + lane < n && there(u0 + lane) && *(volatile uint64_t *)&claims[u0 + lane] != epoch))) {
                uint32_t at = u0 + __ffs(mask) - 1, mine = lane == 0 ? ll_claim(claims, at, epoch) : 0;
                if (__shfl_sync(~0u, mine, 0)) {
                    u = at;
                    break;
                }
            }
        }
        if (lane == 0)
            shared[t.number] = u;
    }
    ll_meet(t);
    return shared[t.number];
}
/* By the workers: whether any row is left. */
template <class F> __device__ inline bool ll_left(uint64_t *claims, uint32_t n, uint64_t epoch, F there) {
    bool left = false;
    for (uint32_t u = threadIdx.x; u < n; u += LL_WORKERS)
        left |= *(volatile uint64_t *)&claims[u] != epoch && there(u);
    return ll_workers_or(left);
}

/* This warp's part of n bytes, in pieces of 512: where it begins; its size. */
__device__ __forceinline__ int64_t ll_part(const ll_team &t, int64_t n, int64_t *bytes) {
    int64_t piece = ((n + t.warps - 1) / t.warps + 511) / 512 * 512, at = t.part * piece, left = n - at;
    *bytes = left < piece ? left : piece;
    return at;
}

/* ---- the end ---- */
/* By the last-started block's clerk, when it has found the verdict. ends: with this kernel. */
__device__ inline void ll_count(const mpix_cuda_handle &h, int kind, bool ends, uint64_t epoch, mpix_cuda_status *to) {
    if (threadIdx.x % 32)
        return;
    if (ends)
        call_end(h, kind, epoch, to);
    else
        counters_reset(h, kind);
}
/* Warps per row, so that the rows of a call keep all warps busy. */
static inline int ll_team_size(int blocks, int64_t rows) {
    static const int sizes[] = {14, 7, 4, 2, 1};
    int i = 0;
    while (sizes[i] > 1 && (int64_t)blocks * (LL_WARPS / sizes[i]) < rows)
        i++;
    return sizes[i];
}
#endif
