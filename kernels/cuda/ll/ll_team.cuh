/*
 * ll_team.cuh - low-latency dispatch: how its warps share rows, claim them and wait. The protocol
 * is in ll.cuh; combine's way is in ll_block.cuh.
 *
 * A row belongs to a team of warps, which is the whole block where rows are few. Its first pieces
 * are in registers when the call can be made.
 */
#ifndef MPIX_KERNELS_CUDA_LL_TEAM_CUH
#define MPIX_KERNELS_CUDA_LL_TEAM_CUH
#include "ll_call.cuh"

/* ---- teams: warps of a block that share a row ------------------------------------------------ */
struct ll_team {
    int warps, number, part, teams;
}; /* number: of the team in its block; part: of
    * the warp in its team */
__device__ __forceinline__ ll_team ll_team_of(int warps) {
    int w = threadIdx.x / 32;
    return {warps, w / warps, w % warps, LL_WARPS / warps};
}
/* warps that make no team */
__device__ __forceinline__ bool ll_idle(const ll_team &t) { return t.number >= t.teams; }
__device__ __forceinline__ void ll_meet(const ll_team &t) {
    if (t.warps == 1)
        __syncwarp();
    else
        asm volatile("barrier.cta.sync %0, %1;" ::"r"(t.number + 1), "r"(t.warps * 32) : "memory");
}

/* ---- claims ---------------------------------------------------------------------------------- */
/* The row that a team of this block owns in a round; the first block has the heads to send, so it
 * owns none if there are others. */
__device__ __forceinline__ uint32_t ll_owned(int team, int teams, uint32_t round) {
    uint32_t blocks = gridDim.x > 1 ? gridDim.x - 1 : 1, block = gridDim.x > 1 ? blockIdx.x - 1 : 0;
    return team >= teams || (blockIdx.x == 0 && gridDim.x > 1)
               ? ~0u
               : (round * teams + team) * blocks + block;
}
/* By the flagger: the block's rows of a round, of n. bits: both, of the first round. */
__device__ __forceinline__ void ll_claim_round(uint32_t *claims, uint32_t n, int teams,
                                               uint32_t round, uint32_t bits, ll_shared *s) {
    int team = threadIdx.x % 32;
    if (team < teams) {
        uint32_t u = ll_owned(team, teams, round);
        s->claimed[round & 1][team] = u < n ? atomicOr(&claims[u], bits) : ~0u;
    }
    __syncwarp();
}
/* What nobody has claimed, from `from` on; n: nothing. By a team; ends with its barrier. there(u):
 * whether there is such a row. */
template <class F>
__device__ inline uint32_t ll_steal(const ll_team &t, uint32_t *claims, uint32_t n, uint32_t from,
                                    uint64_t epoch, uint32_t *shared, F there) {
    if (t.part == 0) {
        uint32_t u = ll_claim_next(threadIdx.x % 32, claims, n, from, epoch, there);
        if (threadIdx.x % 32 == 0)
            shared[t.number] = u;
    }
    ll_meet(t);
    return shared[t.number];
}
/* This warp's part of n bytes, in pieces of 512: where it begins; its size. */
__device__ __forceinline__ int64_t ll_part(const ll_team &t, int64_t n, int64_t *bytes) {
    int64_t piece = ((n + t.warps - 1) / t.warps + 511) / 512 * 512, at = t.part * piece,
            left = n - at;
    *bytes = left < piece ? left : piece;
    return at;
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
