/*
 * expert_route.cuh - route's part for the EXPERT layout: how many choices of each expert come before a token's, from all ranks' counts
 * where each rank's rows of each expert begin, and how many rows each rank has.
 */
#ifndef MPIX_KERNELS_CUDA_EXPERT_ROUTE_CUH
#define MPIX_KERNELS_CUDA_EXPERT_ROUTE_CUH
#include "device.cuh"

enum { THREADS = MPIX_CUDA_BLOCK_TOKENS, WARPS = THREADS / 32 };

/* Counts of a rank: the head, tokens for each rank, choices of each expert. */
struct counts_head { int32_t status, topk; int64_t tokens; };

__device__ static uint32_t *counts_at(const mpix_cuda_handle &h, int owner, int source, uint64_t epoch) {
    return (uint32_t *)(block_of(h, owner, source) + h.counts + (epoch & 1) * h.counts_bytes);
}
__device__ static uint32_t choices_of(const mpix_cuda_handle &h, uint64_t epoch, int source, int expert) {
    return *(const volatile uint32_t *)(counts_at(h, h.rank, source, epoch) + sizeof(counts_head) / 4 + h.size + expert);
}

/* A rank that would receive more rows than it may. */
__device__ static void limit_check(const mpix_cuda_handle &h, int r, int64_t rows) {
    if (h.rows_limit < 0 || rows <= h.rows_limit)
        return;
    if (r == h.rank)
        report(h, MPIX_CUDA_ROWS_LIMIT, 0, -1, rows, h.rows_limit);
    else
        report(h, MPIX_CUDA_REMOTE, 0, r, 2, 0);
}

/* By all blocks: each choice's place among its block's choices of the same expert, by bit maps of the block's tokens. */
__device__ static void experts_rank(const mpix_cuda_handle &h, const mpix_cuda_route &c, int64_t t) {
    enum { AT_ONCE = 512 };
    __shared__ uint32_t maps[AT_ONCE][WARPS];
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, topk = t < c.tokens ? c.topk : 0;
    const int32_t *ids = h.ids + t * h.max_topk;
    for (int e0 = 0; e0 < h.experts; e0 += AT_ONCE) {
        int n = h.experts - e0 < AT_ONCE ? h.experts - e0 : (int)AT_ONCE;
        for (int i = threadIdx.x; i < n * WARPS; i += THREADS)
            maps[i / WARPS][i % WARPS] = 0;
        __syncthreads();
        for (int k = 0; k < topk; k++)
            if (ids[k] >= e0 && ids[k] < e0 + n)
                atomicOr(&maps[ids[k] - e0][w], 1u << lane);
        __syncthreads();
        for (int k = 0; k < topk; k++) {
            if (ids[k] < e0 || ids[k] >= e0 + n)
                continue;
            const uint32_t *map = maps[ids[k] - e0];
            uint32_t before = __popc(map[w] & ((1u << lane) - 1));
            for (int i = 0; i < w; i++)
                before += __popc(map[i]);
            h.expert.rel[t * h.max_topk + k] = (uint8_t)before;
        }
        for (int e = threadIdx.x; e < n; e += THREADS) {
            uint32_t all = 0;
            for (int i = 0; i < WARPS; i++)
                all += __popc(maps[e][i]);
            h.expert.blk[(size_t)blockIdx.x * h.experts + e0 + e] = all;
        }
        __syncthreads();
    }
}

/* By the last block: counts of blocks become what comes before each block. */
__device__ static void experts_scan(const mpix_cuda_handle &h, int nblocks) {
    for (int e = threadIdx.x; e < h.experts; e += THREADS) {
        uint32_t sum = 0;
        for (int b0 = 0; b0 < nblocks; b0 += 16) { /* sixteen at a time, so that their loads overlap */
            uint32_t n[16];
#pragma unroll
            for (int i = 0; i < 16; i++)
                n[i] = b0 + i < nblocks ? __ldcg(&h.expert.blk[(size_t)(b0 + i) * h.experts + e]) : 0;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (b0 + i < nblocks)
                    h.expert.blk[(size_t)(b0 + i) * h.experts + e] = sum;
                sum += n[i];
            }
        }
    }
    __syncthreads();
}

/* Rows that come from a source. */
__device__ static int64_t experts_from(const mpix_cuda_handle &h, uint64_t epoch, int source) {
    int64_t sum = 0;
    for (int e = 0; e < h.local_experts; e++)
        sum += choices_of(h, epoch, source, h.mine[e]);
    return sum;
}

/* By the last block, when all counts are here: experts ascending, sources ascending in each, each expert's rows begin aligned. */
__device__ static void experts_use(const mpix_cuda_handle &h, const mpix_cuda_route &c, uint64_t epoch) {
    const mpix_cuda_expert &x = h.expert;
    int lane = threadIdx.x % 32;
    int64_t *offset_results = h.results + 2 + 2 * h.size + h.local_experts + h.experts;
    for (int r = threadIdx.x / 32; r < h.size; r += WARPS) { /* a warp per rank */
        int64_t total = 0;
        for (int e0 = 0; e0 < h.experts; e0 += 32) {
            int e = e0 + lane;
            bool its = e < h.experts && h.owner[e] == r;
            uint32_t all = 0, before = 0;
            for (int s = 0; its && s < h.size; s++) {
                uint32_t n = choices_of(h, epoch, s, e);
                before += s < h.rank ? n : 0;
                all += n;
            }
            int64_t n = ((int64_t)all + x.align - 1) / x.align * x.align, s = n;
            for (int d = 1; d < 32; d *= 2) {
                int64_t up = __shfl_up_sync(~0u, s, d);
                s += lane >= d ? up : 0;
            }
            if (its) {
                int64_t start = total + s - n;
                x.base[e] = (uint32_t)(start + before);
                if (r == h.rank) {
                    x.offset[h.local[e]] = start;
                    offset_results[h.local[e]] = start;
                    if (c.expert_offset)
                        c.expert_offset[h.local[e]] = start;
                }
            }
            total += __shfl_sync(~0u, s, 31);
        }
        if (lane == 0) {
            limit_check(h, r, total);
            if (total > 0x7fffffff) /* rows are numbered by 32 bits */
                report(h, MPIX_CUDA_ROWS_LIMIT, 0, -1, total, 0x7fffffff);
        }
        if (lane == 0 && r == h.rank) {
            h.state->recv_total = total;
            x.offset[h.local_experts] = total;
            offset_results[h.local_experts] = total;
            if (c.expert_offset)
                c.expert_offset[h.local_experts] = total;
        }
    }
    __syncthreads();
}
#endif
