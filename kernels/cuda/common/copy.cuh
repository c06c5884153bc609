/* copy.cuh - copies by a warp: one source, as many places as lanes have. */
#ifndef MPIX_KERNELS_CUDA_COPY_CUH
#define MPIX_KERNELS_CUDA_COPY_CUH
#include <stdint.h>

/* n bytes to as many places as lanes have (dst of lane r: rank r, or null), by a warp. V: what src,
 * n and all places are aligned to. */
template <typename V, int DEPTH>
__device__ static void warp_copy(const char *src, char *dst, int64_t n, int lane) {
    uint32_t mask = __ballot_sync(~0u, dst != nullptr);
    for (int64_t i0 = 0; i0 < n; i0 += 32 * DEPTH * (int64_t)sizeof(V)) {
        V v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
            if (i < n)
                v[d] = *(const V *)(src + i);
        }
        for (uint32_t m = mask; m; m &= m - 1) {
            char *to = (char *)__shfl_sync(~0u, (unsigned long long)dst, __ffs(m) - 1);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
                if (i < n)
                    *(V *)(to + i) = v[d];
            }
        }
    }
}

__device__ static void warp_copy_any(const char *src, char *dst, int64_t n, int lane) {
    uint64_t bits = (uint64_t)src | (uint64_t)n | (uint64_t)dst;
    for (int d = 16; d; d /= 2)
        bits |= __shfl_xor_sync(~0u, bits, d);
    if (bits % 16 == 0)
        warp_copy<uint4, 8>(src, dst, n, lane);
    else if (bits % 4 == 0)
        warp_copy<uint32_t, 8>(src, dst, n, lane);
    else
        warp_copy<uint8_t, 4>(src, dst, n, lane);
}
#endif
