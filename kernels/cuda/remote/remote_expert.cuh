/*
 * remote_expert.cuh - the EXPERT layout where some peers are reached through the proxy: pairs that
 * travel. The kernels are in remote_expert_dispatch.cu and remote_expert_combine.cu; batches, words
 * and rights to write are remote.cuh's, what concerns mapped ranks is as in expert_dispatch.cu and
 * expert_combine.cu.
 *
 * A rank cannot write records into a proxied one's window, so what a record says travels: beside
 * the row in dispatch, and again as a request (REMOTE_ASK) in combine. So neither depends on the
 * other: a combine may follow a route, or another routing's dispatch. A pair has the number that it
 * has at its rank, counted from the source's first: items of dispatch, requests and partial sums
 * are numbered alike.
 */
#ifndef MPIX_KERNELS_CUDA_REMOTE_EXPERT_CUH
#define MPIX_KERNELS_CUDA_REMOTE_EXPERT_CUH
#include "expert/expert.cuh"
#include "forward.cuh"

/* What travels of a pair (form pair). */
struct remote_record {
    int64_t *token;
    int32_t *rows;
    float *weights;
};
__device__ __forceinline__ remote_record remote_record_at(const mpix_cuda_handle &h,
                                                          const char *at) {
    return {(int64_t *)at,
            (int32_t *)mpix_record_int_of(at, MPIX_RECORD_GPU, MPIX_RECORD_PAIR_ROW, h.max_topk, 0),
            (float *)mpix_record_float_of(at, MPIX_RECORD_GPU, MPIX_RECORD_PAIR_WEIGHT, h.max_topk,
                                          0)};
}

/* The number of token t at the lane's rank, from this rank's first. */
__device__ __forceinline__ uint32_t remote_index(const mpix_cuda_handle &h, int64_t t, int r) {
    return h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r] + h.rel[t * h.size + r];
}

/* Of token t, by a warp; rec: of lane r, where it goes for rank r, or null. weights: of the token's
 * choices, or null. */
__device__ inline void remote_record_pack(const mpix_cuda_handle &h, int64_t t, int topk,
                                          const float *weights, char *rec) {
    int lane = threadIdx.x % 32, id = lane < topk ? h.ids[t * h.max_topk + lane] : -1,
        owner = id >= 0 ? h.owner[id] : -1;
    int32_t row = id >= 0 ? h.expert.row[t * h.max_topk + lane] : -1;
    float w = weights && lane < topk ? weights[lane] : 1.0f;
    for (uint32_t m = __ballot_sync(~0u, rec != nullptr); m; m &= m - 1) {
        int r = __ffs(m) - 1;
        remote_record p =
            remote_record_at(h, (const char *)__shfl_sync(~0u, (unsigned long long)rec, r));
        if (lane == 0)
            *p.token = t;
        if (lane < topk) {
            p.rows[lane] = owner == r ? row : -1;
            p.weights[lane] = w;
        }
    }
}
#endif
