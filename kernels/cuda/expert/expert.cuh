/* expert.cuh - what the kernels of the EXPERT layout share: records of (token, rank) pairs, and the
 * pairs of a batch in the order of chunks. */
#ifndef MPIX_KERNELS_CUDA_EXPERT_CUH
#define MPIX_KERNELS_CUDA_EXPERT_CUH
#include "common/device.cuh"

/* What a rank knows about a pair, by its number there. */
struct expert_record {
    int32_t *rows, *token;     /* rows: [max_topk] */
    float *weights, *returned; /* [max_topk] of dispatch, of combine */
};

__device__ __forceinline__ expert_record record_of(const mpix_cuda_handle &h, int rank,
                                                   int64_t pair) {
    char *at = h.window[rank] + h.records + pair * (int64_t)h.record_bytes;
    return {mpix_record_int(at, 0, MPIX_RECORD_EXPERT_ROW, h.max_topk, 0),
            mpix_record_int(at, 0, MPIX_RECORD_EXPERT_TOKEN, h.max_topk, 0),
            mpix_record_float(at, 0, MPIX_RECORD_EXPERT_WEIGHT, h.max_topk, 0),
            mpix_record_float(at, 0, MPIX_RECORD_EXPERT_RETURNED, h.max_topk, 0)};
}

/* [chunks + 1] pairs of source at owner before each of source's chunks. */
__device__ __forceinline__ uint32_t *starts_of(const mpix_cuda_handle &h, int owner, int source) {
    return (uint32_t *)(block_of(h, owner, source) + h.expert.starts);
}

/*
 * The pairs that came here, ordered by (chunk, source), without those of this rank itself.
 * Filled by a block; ends[chunk * size + source] counts the pairs up to and with that
 * chunk of that source.
 */
struct pair_order {
    uint32_t *ends;    /* [chunks * size], in dynamic shared memory: order_bytes */
    uint32_t sums[32]; /* scratch */
};

static inline size_t order_bytes(const mpix_cuda_handle *h) {
    return ((size_t)h->expert.chunks * h->size * sizeof(uint32_t) + 15) / 16 * 16;
}

__device__ inline void order_fill(const mpix_cuda_handle &h, pair_order &o, char *ends) {
    if (threadIdx.x == 0)
        o.ends = (uint32_t *)ends;
    __syncthreads();
    int n = h.expert.chunks * h.size, lane = threadIdx.x % 32, w = threadIdx.x / 32,
        warps = blockDim.x / 32;
    uint32_t total = 0;
    for (int i0 = 0; i0 < n; i0 += (int)blockDim.x) {
        int i = i0 + (int)threadIdx.x;
        uint32_t v = 0;
        if (i < n && i % h.size != h.rank) {
            const volatile uint32_t *starts = starts_of(h, h.rank, i % h.size);
            v = starts[i / h.size + 1] - starts[i / h.size];
        }
        v = lanes_sum(v, lane);
        if (lane == 31)
            o.sums[w] = v;
        __syncthreads();
        uint32_t before = total, all = total;
        for (int j = 0; j < warps; j++) {
            before += j < w ? o.sums[j] : 0;
            all += o.sums[j];
        }
        if (i < n)
            o.ends[i] = before + v;
        total = all;
        __syncthreads();
    }
}

__device__ __forceinline__ uint32_t order_count(const mpix_cuda_handle &h, const pair_order &o) {
    return h.expert.chunks ? o.ends[h.expert.chunks * h.size - 1] : 0;
}

/* The i-th of them, i < order_count. */
/* pair: its number here; in_chunk: pairs of that chunk and source */
struct pair_place {
    int chunk, source;
    uint32_t pair, in_chunk;
};
__device__ __forceinline__ pair_place order_find(const mpix_cuda_handle &h, const pair_order &o,
                                                 uint32_t i) {
    int lo = 0, hi = h.expert.chunks * h.size - 1;
    while (lo < hi) { /* the first end beyond i */
        int mid = (lo + hi) / 2;
        if (o.ends[mid] > i)
            hi = mid;
        else
            lo = mid + 1;
    }
    uint32_t begin = lo ? o.ends[lo - 1] : 0;
    int s = lo % h.size, c = lo / h.size;
    return {c, s,
            h.state->first[s] + *(const volatile uint32_t *)(starts_of(h, h.rank, s) + c) +
                (i - begin),
            o.ends[lo] - begin};
}
#endif
