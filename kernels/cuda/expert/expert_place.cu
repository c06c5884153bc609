/*
 * expert_place.cu - the second kernel of route in the EXPERT layout: the row of each choice, for
 * this rank and, as records, for the ranks that receive the rows. Nothing waits.
 *
 * Right to write. Records of a route are written after the receiver's counts of that route were
 * seen, which it sends in the order of its stream after everything that reads earlier records: so
 * one bank is enough. Whoever reads them has first seen READY or ROWS of this rank (a release by a
 * later kernel of this rank's stream), so they need no signal of their own. Proxied ranks get
 * theirs with rows and requests (remote_expert.cuh).
 */
#include "expert.cuh"
#include "common/launch.h"

/* REMOTE: some ranks are proxied. */
template <int REMOTE>
__global__ void __launch_bounds__(256) place_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                    const __grid_constant__ mpix_cuda_route c) {
    const mpix_cuda_expert &x = h.expert;
    if (*(volatile int32_t *)h.failed || !h.state->routed)
        return;
    int K = c.topk;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
            step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = first; i < c.tokens * K; i += step) {
        int64_t t = i / K;
        int k = (int)(i % K), id = h.ids[t * h.max_topk + k], owner = id >= 0 ? h.owner[id] : -1;
        int32_t row = id < 0
                          ? -1
                          : (int32_t)(x.base[id] +
                                      x.blk[(size_t)(t / MPIX_CUDA_BLOCK_TOKENS) * h.experts + id] +
                                      x.rel[t * h.max_topk + k]);
        x.row[t * h.max_topk + k] = row;
        for (uint32_t m = REMOTE ? h.bitmap[t] & ~h.remote.is : h.bitmap[t]; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            expert_record rec = record_of(h, r, row_of(h, t, r));
            rec.rows[k] = owner == r ? row : -1;
            if (k == 0)
                *rec.token = (int32_t)t;
        }
    }
    for (int64_t i = first; i < c.tokens * h.size; i += step) { /* the lowest row at each rank */
        int64_t t = i / h.size;
        int r = (int)(i % h.size);
        int32_t low = 0x7fffffff;
        for (int k = 0; k < K; k++) {
            int id = h.ids[t * h.max_topk + k];
            if (id < 0 || h.owner[id] != r)
                continue;
            int32_t row = (int32_t)(x.base[id] +
                                    x.blk[(size_t)(t / MPIX_CUDA_BLOCK_TOKENS) * h.experts + id] +
                                    x.rel[t * h.max_topk + k]);
            low = row < low ? row : low;
        }
        x.first[i] = low == 0x7fffffff ? -1 : low;
    }
    /* pairs before each chunk */
    for (int64_t i = first; i < (int64_t)(x.chunks + 1) * h.size; i += step) {
        int64_t t = i / h.size * x.chunk;
        int r = (int)(i % h.size);
        if (REMOTE && (h.remote.is >> r & 1))
            continue;
        uint32_t n = t < c.tokens ? h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r]
                                  : h.state->send[r];
        starts_of(h, r, h.rank)[i / h.size] = n;
    }
}

cudaError_t mpix_cuda_place_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                   const mpix_cuda_route *c, cudaStream_t stream) {
    int64_t n = c->tokens * (c->topk > h->size ? c->topk : h->size), blocks = (n + 255) / 256;
    if (blocks < 4)
        blocks = 4;
    unsigned grid = (unsigned)(blocks < 2 * d->sms ? blocks : 2 * d->sms);
    if (h->remote.is)
        place_kernel<1><<<grid, 256, 0, stream>>>(*h, *c);
    else
        place_kernel<0><<<grid, 256, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_place_load(int *arch) {
    return mpix_cuda_load(arch, place_kernel<0>, place_kernel<1>);
}
