/* expert_rows.cuh - dispatch in the EXPERT layout: where rows go, and the zeros between them. */
#ifndef MPIX_KERNELS_CUDA_EXPERT_ROWS_CUH
#define MPIX_KERNELS_CUDA_EXPERT_ROWS_CUH
#include "expert.cuh"

/* What a lane knows about the rank of its number. */
struct target {
    char *x, *scales;
    int64_t stride, scale_stride, rows;
    int32_t flags;
};

__device__ static target target_of(const mpix_cuda_handle &h, const mpix_cuda_offer &o, int r) {
    target t = {nullptr, nullptr, 0, 0, 0, 0};
    if (r < h.size)
        t = {place_at(h, r, o.at[MPIX_EP_PLACE_X]),
             place_at(h, r, o.at[MPIX_EP_PLACE_SCALES]),
             (int64_t)o.at[MPIX_EP_PLACE_X].stride,
             (int64_t)o.at[MPIX_EP_PLACE_SCALES].stride,
             o.rows,
             o.flags};
    return t;
}

/* The width of accesses that all addresses allow. */
__device__ __forceinline__ int access_of(uint64_t bits) {
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}
__device__ __forceinline__ void copy_access(char *to, const char *from, int k, int access) {
    if (access == 16)
        ((uint4 *)to)[k] = ((const uint4 *)from)[k];
    else if (access == 4)
        ((uint32_t *)to)[k] = ((const uint32_t *)from)[k];
    else
        to[k] = from[k];
}

/* Zeros between the experts' rows; by warps, an expert each. */
__device__ static void padding_fill(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    const target &own, int warp, int warps) {
    int lane = threadIdx.x % 32;
    int access = access_of(
        (uint64_t)own.x | (uint64_t)own.stride | (uint64_t)c.row |
        (c.scale_row ? (uint64_t)own.scales | (uint64_t)own.scale_stride | (uint64_t)c.scale_row
                     : 0));
    auto zero = [&](char *to, int64_t n) {
        for (int64_t i = lane; i < n / access; i += 32) {
            if (access == 16)
                ((uint4 *)to)[i] = {0, 0, 0, 0};
            else if (access == 4)
                ((uint32_t *)to)[i] = 0;
            else
                to[i] = 0;
        }
    };
    for (int e = warp; e < h.local_experts; e += warps) {
        int64_t end = h.expert.offset[e + 1];
        for (int64_t row = h.expert.offset[e] + h.recv_expert[e]; row < end && row < own.rows;
             row++) {
            zero(own.x + row * own.stride, c.row);
            if (c.scale_row)
                zero(own.scales + row * own.scale_stride, c.scale_row);
            if (lane == 0 && c.src_rank)
                c.src_rank[row] = -1;
            if (lane == 0 && c.src_token)
                c.src_token[row] = -1;
            if (lane == 0 && c.out_weights)
                c.out_weights[row] = 0;
        }
    }
}
#endif
