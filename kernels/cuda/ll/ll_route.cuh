/* ll_route.cuh - low latency's route: what it leaves for dispatch, by both kernels (ll_route.cu,
 * route.cu). Ranks exchange nothing. */
#ifndef MPIX_KERNELS_CUDA_LL_ROUTE_CUH
#define MPIX_KERNELS_CUDA_LL_ROUTE_CUH
#include "common/device.cuh"

/* By a warp: of rank r's experts, how many choices come before each. owner(e): an expert's rank;
 * chosen(e): its choices here. */
template <class O, class C>
__device__ __forceinline__ void ll_sends_count(const mpix_cuda_handle &h, int r, O owner,
                                               C chosen) {
    enum { AT_ONCE = 8 }; /* sums that do not wait for each other */
    int lane = threadIdx.x % 32;
    uint32_t before = 0; /* experts of a rank are numbered in the order of all */
    for (int e0 = lane; e0 - lane < h.experts; e0 += 32 * AT_ONCE) {
        uint32_t n[AT_ONCE], sum[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int e = e0 + 32 * i;
            sum[i] = n[i] = e < h.experts && owner(e) == r ? chosen(e) : 0;
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                uint32_t up = __shfl_up_sync(~0u, sum[i], d);
                sum[i] += lane >= d ? up : 0;
            }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int e = e0 + 32 * i;
            if (e < h.experts && owner(e) == r)
                h.ll.sends[e] = before + sum[i] - n[i];
            before += __shfl_sync(~0u, sum[i], 31);
        }
    }
    if (lane == 0)
        h.state->choices[r] = before;
}

/* By the first warp, a lane for each rank that is sent n tokens: what is known now.
 * err: the state's. */
__device__ __forceinline__ void ll_routed(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                          uint32_t n, int err) {
    mpix_cuda_state *st = h.state;
    int r = threadIdx.x;
    uint32_t sum = lanes_sum(n, r);
    if (r < h.size) {
        st->send[r] = n;
        st->base[r] = sum - n;
        if (c.send_per_rank)
            c.send_per_rank[r] = n;
        if (c.counts)
            h.results[2 + h.size + r] = n;
    }
    if (r)
        return;
    st->topk = st->width = c.topk;
    st->tokens = c.tokens;
    st->recv_total = h.size * h.max_tokens; /* SLOTS */
    st->learnt = 0;
    st->routed = !err && !c.status;
    if (c.counts)
        h.results[0] = h.size * h.max_tokens;
    if (c.recv_total)
        *c.recv_total = h.size * h.max_tokens;
}
#endif
