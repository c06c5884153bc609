/*
 * expert_route.cuh - route's part for the EXPERT layout: how many choices of each expert come
 * before a token's, from all ranks' counts where each rank's rows of each expert begin, and how
 * many rows each rank has.
 */
#ifndef MPIX_KERNELS_CUDA_EXPERT_ROUTE_CUH
#define MPIX_KERNELS_CUDA_EXPERT_ROUTE_CUH
#include "common/device.cuh"

enum { THREADS = MPIX_CUDA_BLOCK_TOKENS, WARPS = THREADS / 32 };

__device__ static uint32_t *counts_at(const mpix_cuda_handle &h, int owner, int source,
                                      uint64_t epoch) {
    return (uint32_t *)(block_of(h, owner, source) + h.counts + (epoch & 1) * h.counts_bytes);
}
__device__ __forceinline__ uint32_t choices_of(const mpix_cuda_handle &h, uint64_t epoch,
                                               int source, int expert) {
    return __ldcg(counts_at(h, h.rank, source, epoch) + sizeof(mpix_cuda_counts) / 4 + h.size +
                  expert);
}
/* All sources' choices of an expert; before: of those below this rank. */
struct choices {
    uint32_t all, before;
};
__device__ static choices choices_count(const mpix_cuda_handle &h, uint64_t epoch, int expert) {
    enum { FLIGHT = 8 };
    choices n = {0, 0};
    for (int s0 = 0; s0 < h.size; s0 += FLIGHT) {
        uint32_t v[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            v[i] = s0 + i < h.size ? choices_of(h, epoch, s0 + i, expert) : 0;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            n.all += v[i];
            n.before += s0 + i < h.rank ? v[i] : 0;
        }
    }
    return n;
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

/*
 * By all blocks: each choice's place among its block's choices of the same expert, by bit maps of
 * the block's tokens; counts for h.histogram. An expert that a token has twice counts once, and
 * both choices have the same row: so each row that is counted has a token that writes it.
 */
__device__ static void experts_rank(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                    int64_t t) {
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
            if (all)
                atomicAdd(&h.histogram[e0 + e], all);
        }
        __syncthreads();
    }
}

/* By the last block: counts of blocks become what comes before each block. */
__device__ static void experts_scan(const mpix_cuda_handle &h, int nblocks) {
    for (int e = threadIdx.x; e < h.experts; e += THREADS) {
        uint32_t sum = 0;
        /* sixteen at a time, so that their loads overlap */
        for (int b0 = 0; b0 < nblocks; b0 += 16) {
            uint32_t n[16];
#pragma unroll
            for (int i = 0; i < 16; i++)
                n[i] = b0 + i < nblocks ? __ldcg(&h.expert.blk[(size_t)(b0 + i) * h.experts + e])
                                        : 0;
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

/* Rows that come from a source, by a warp. */
__device__ static int64_t experts_from(const mpix_cuda_handle &h, uint64_t epoch, int source) {
    int64_t sum = 0;
#pragma unroll 4
    for (int e = threadIdx.x % 32; e < h.local_experts; e += 32)
        sum += choices_of(h, epoch, source, h.mine[e]);
    for (int d = 16; d; d /= 2)
        sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

/* This rank's rows of its i-th expert begin there. */
__device__ __forceinline__ void offset_set(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                           int i, int64_t row) {
    h.expert.offset[i] = row;
    if (c.counts)
        h.results[2 + 2 * h.size + h.local_experts + h.experts + i] = row;
    if (c.expert_offset)
        c.expert_offset[i] = row;
}

/* By a warp, of n experts from e0 on, which `count` and `owner` tell of: rank r's rows of each
 * begin behind those of experts before, which are `total`. */
__device__ static int64_t experts_place(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                        const choices *count, const uint8_t *owner, int e0, int n,
                                        int r, int64_t total) {
    const mpix_cuda_expert &x = h.expert;
    int lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < n; i0 += 32) {
        int i = i0 + lane, e = e0 + i;
        bool its = i < n && owner[i] == r;
        choices of = its ? count[i] : choices{0, 0};
        int64_t rows = ((int64_t)of.all + x.align - 1) / x.align * x.align,
                sum = lanes_sum(rows, lane);
        if (its) {
            int64_t start = total + sum - rows;
            x.base[e] = (uint32_t)(start + of.before);
            if (r == h.rank)
                offset_set(h, c, h.local[e], start);
        }
        total += __shfl_sync(~0u, sum, 31);
    }
    return total;
}

/* By the last block, when all counts are here: experts ascending, sources ascending in each, each
 * expert's rows begin aligned. */
__device__ static void experts_use(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                   uint64_t epoch) {
    enum { AT_ONCE = 512, EACH = MPIX_CUDA_RANKS / WARPS }; /* a warp has a rank in each WARPS */
    __shared__ choices count[AT_ONCE];
    __shared__ uint8_t owner[AT_ONCE];
    int warp = threadIdx.x / 32;
    int64_t total[EACH] = {0};
    for (int e0 = 0; e0 < h.experts; e0 += AT_ONCE) {
        int n = h.experts - e0 < AT_ONCE ? h.experts - e0 : (int)AT_ONCE;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            owner[i] = (uint8_t)h.owner[e0 + i];
            count[i] = choices_count(h, epoch, e0 + i);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (warp + j * WARPS < h.size)
                total[j] = experts_place(h, c, count, owner, e0, n, warp + j * WARPS, total[j]);
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int r = warp + j * WARPS;
        if (r >= h.size || threadIdx.x % 32)
            continue;
        limit_check(h, r, total[j]);
        if (total[j] > 0x7fffffff) /* rows are numbered by 32 bits */
            report(h, MPIX_CUDA_ROWS_LIMIT, 0, -1, total[j], 0x7fffffff);
        if (r == h.rank) {
            h.state->recv_total = total[j];
            offset_set(h, c, h.local_experts, total[j]);
        }
    }
    __syncthreads();
}
#endif
