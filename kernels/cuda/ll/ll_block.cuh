/*
 * ll_block.cuh - low-latency combine: how a block's warps share rows, claim them and wait. The
 * protocol is in ll.cuh; dispatch's way is in ll_team.cuh.
 *
 * Rows are shared by all workers, in pieces of LL_PIECE bytes. The flagger watches the flags of the
 * rows that the block receives, some at a time, for its workers, which meanwhile do what needs no
 * peer: no more warps poll than there are blocks.
 */
#ifndef MPIX_KERNELS_CUDA_LL_BLOCK_CUH
#define MPIX_KERNELS_CUDA_LL_BLOCK_CUH
#include "ll_call.cuh"

enum {
    LL_PIECE = 1024,
    LL_ROUND = LL_WARPS
}; /* bytes that a warp moves at a time; rows of a block
    * that are sent before their flags */

__device__ __forceinline__ void ll_meet() { ll_sync(LL_BAR_WORKERS, LL_WORKERS); }

/* ---- claims ---------------------------------------------------------------------------------- */
/* Row j of a round of those that this block owns; the first block has the heads to send, so it owns
 * none if there are others. */
__device__ __forceinline__ uint32_t ll_owned(uint32_t round, int j) {
    uint32_t blocks = gridDim.x > 1 ? gridDim.x - 1 : 1, block = gridDim.x > 1 ? blockIdx.x - 1 : 0;
    return block >= blocks ? ~0u : (round * LL_ROUND + j) * blocks + block;
}
/* By the flagger: the block's rows of a round, of n. bits: both, of the first round. */
__device__ __forceinline__ void ll_claim_round(uint32_t *claims, uint32_t n, uint32_t round,
                                               uint32_t bits, ll_shared *s) {
    int j = threadIdx.x % 32;
    if (j < LL_ROUND) {
        uint32_t u = ll_owned(round, j);
        s->claimed[round & 1][j] = u < n ? atomicOr(&claims[u], bits) : ~0u;
    }
    __syncwarp();
}
/* By the workers: a row, from `from` on, that nobody had claimed; n: none. Their stores until now
 * are before what any of them does then. */
template <class F>
__device__ inline uint32_t ll_steal(uint32_t *claims, uint32_t n, uint32_t from, uint64_t epoch,
                                    ll_shared *s, F there) {
    if (threadIdx.x < 32) {
        uint32_t u = ll_claim_next(threadIdx.x, claims, n, from, epoch, there);
        if (threadIdx.x == 0)
            s->stolen = u;
    }
    ll_meet();
    return s->stolen;
}
/* This worker's part of n bytes, in pieces of 512: where it begins; its size. */
__device__ __forceinline__ int64_t ll_part(int64_t n, int64_t *bytes) {
    int64_t piece = ((n + LL_WARPS - 1) / LL_WARPS + 511) / 512 * 512,
            at = threadIdx.x / 32 * piece, left = n - at;
    *bytes = left < piece ? left : piece;
    return at;
}

#endif
