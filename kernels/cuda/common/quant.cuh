/*
 * quant.cuh - rows to fp8 with a scale per 128 columns, on their way to as many places as lanes
 * have; by a warp. What is computed is defined in kernels/host/rows.h, operation by operation, so
 * the bytes are the host's.
 */
#ifndef MPIX_KERNELS_CUDA_QUANT_CUH
#define MPIX_KERNELS_CUDA_QUANT_CUH
#include "elem.cuh"

#include <cuda_fp8.h>

/* Of a lane: where a row and its scales go, or null. */
struct quant_place {
    char *row, *scales;
};

__device__ static void quant_load(const char *x, int dtype, int64_t j, int64_t hidden, bool vectors,
                                  float (&f)[16]) {
    if (vectors && j < hidden) { /* 16 columns are there, from a 16-byte address */
        if (dtype == F32) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                vec<F32>::up(((const uint4 *)(x + j * 4))[i], f + 4 * i);
        } else {
            uint4 v[2] = {((const uint4 *)(x + j * 2))[0], ((const uint4 *)(x + j * 2))[1]};
#pragma unroll
            for (int i = 0; i < 2; i++)
                dtype == BF16 ? vec<BF16>::up(v[i], f + 8 * i) : vec<F16>::up(v[i], f + 8 * i);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        f[i] = j + i < hidden ? elem_up(x, dtype, j + i) : 0.0f;
}

__device__ __forceinline__ uint32_t quant_four(const float *f, float inverse, bool e5m2) {
    __nv_fp8_interpretation_t to = e5m2 ? __NV_E5M2 : __NV_E4M3;
    uint32_t low =
        __nv_cvt_float2_to_fp8x2(make_float2(__fmul_rn(f[0], inverse), __fmul_rn(f[1], inverse)),
                                 __NV_SATFINITE, to);
    return low | (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(__fmul_rn(f[2], inverse),
                                                                __fmul_rn(f[3], inverse)),
                                                    __NV_SATFINITE, to)
                     << 16;
}

/* Sixteen columns of a lane, and the scale of its group: eight lanes have one. scale_kind:
 * MPIX_EP_SCALES_F32 (1) or UE8M0 (2). By a warp. */
struct quant_sixteen {
    uint32_t q[4], e;
    float scale;
};
__device__ __forceinline__ quant_sixteen quant_lane(const float (&f)[16], bool e5m2,
                                                    int scale_kind) {
    quant_sixteen r;
    float top = e5m2 ? 57344.0f : 448.0f, amax = 0x1p-110f, inverse;
#pragma unroll
    for (int i = 0; i < 16; i++)
        amax = fmaxf(amax, fabsf(f[i])); /* leaves NaNs out */
#pragma unroll
    for (int d = 1; d < 8; d *= 2)
        amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
    r.scale = __fdiv_rn(amax, top);
    /* the power of two that is not below; 255: NaN, for an infinity */
    r.e = (__float_as_uint(r.scale) + 0x7fffffu) >> 23;
    if (scale_kind == 2)
        inverse = r.e == 255 ? 0.0f : __uint_as_float((254u - r.e) << 23);
    else
        inverse = __fdiv_rn(top, amax);
#pragma unroll
    for (int i = 0; i < 4; i++)
        r.q[i] = quant_four(f + 4 * i, inverse, e5m2);
    return r;
}
__device__ __forceinline__ void quant_scale(char *scales, int64_t j, int scale_kind,
                                            const quant_sixteen &r) {
    if (scale_kind == 2)
        scales[j / 128] = (char)r.e;
    else
        ((float *)scales)[j / 128] = r.scale;
}

/* Eight lanes have a group. Of `warps` warps that share a row this is number `part`. */
__device__ static void quant_row(const char *x, int dtype, int64_t hidden, bool e5m2,
                                 int scale_kind, const quant_place *places, int nplaces,
                                 int part = 0, int warps = 1) {
    int lane = threadIdx.x % 32;
    bool vectors = hidden % 16 == 0 && (uint64_t)x % 16 == 0, wide = hidden % 16 == 0;
    for (int p = 0; p < nplaces; p++)
        wide = wide && !__any_sync(~0u, (uint64_t)places[p].row % 16);
    for (int64_t j0 = part * 512; j0 < hidden; j0 += warps * 512) {
        int64_t j = j0 + lane * 16;
        float f[16];
        quant_load(x, dtype, j, hidden, vectors, f);
        quant_sixteen r = quant_lane(f, e5m2, scale_kind);
        for (int p = 0; p < nplaces; p++)
            for (uint32_t m = __ballot_sync(~0u, places[p].row != nullptr); m; m &= m - 1) {
                char *row = (char *)__shfl_sync(~0u, (unsigned long long)places[p].row,
                                                __ffs(m) - 1);
                char *scales = (char *)__shfl_sync(~0u, (unsigned long long)places[p].scales,
                                                   __ffs(m) - 1);
                if (j >= hidden)
                    continue;
                if (wide)
                    *(uint4 *)(row + j) = {r.q[0], r.q[1], r.q[2], r.q[3]};
                else
#pragma unroll
                    for (int i = 0; i < 16; i++)
                        if (j + i < hidden)
                            row[j + i] = (char)(r.q[i / 4] >> i % 4 * 8);
                if (lane % 8 == 0)
                    quant_scale(scales, j, scale_kind, r);
            }
    }
}
#endif
