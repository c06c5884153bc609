/* elem.cuh - elements of rows: to float or double and back, one by one or 16 bytes at a time, as
 * kernels/host/convert.h defines it. */
#ifndef MPIX_KERNELS_CUDA_ELEM_CUH
#define MPIX_KERNELS_CUDA_ELEM_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

enum { F64 = 1, F32, F16, BF16, F8E4M3, F8E5M2, BYTES }; /* as in mpix_ep.h */

__device__ __forceinline__ float bf16_up(uint16_t b) { return __uint_as_float((uint32_t)b << 16); }
__device__ __forceinline__ uint16_t bf16_down(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
__device__ inline float f8_up(uint8_t v, int e5m2) {
    int mbits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, e = (v & 0x7f) >> mbits,
        m = v & ((1 << mbits) - 1);
    float sign = v & 0x80 ? -1.0f : 1.0f;
    if (e5m2 && e == 31)
        return m ? __uint_as_float(0x7fc00000 | (v & 0x80u) << 24)
                 : sign * __uint_as_float(0x7f800000);
    if (!e5m2 && (v & 0x7f) == 0x7f)
        return __uint_as_float(0x7fc00000 | (v & 0x80u) << 24);
    return sign * (e ? ldexpf((float)(m | 1 << mbits), e - bias - mbits)
                     : ldexpf((float)m, 1 - bias - mbits));
}
__device__ inline float elem_up(const char *row, int dtype, int64_t j) {
    switch (dtype) {
    case F32: return ((const float *)row)[j];
    case F16: return __half2float(((const __half *)row)[j]);
    case BF16: return bf16_up(((const uint16_t *)row)[j]);
    default: return f8_up(((const uint8_t *)row)[j], dtype == F8E5M2);
    }
}
__device__ inline float scale_up(const char *scales, int scale_kind, int64_t j) {
    if (scale_kind == 1)
        return ((const float *)scales)[j / 128];
    int e = ((const uint8_t *)scales)[j / 128];
    return e == 255 ? __uint_as_float(0x7fc00000) : ldexpf(1.0f, e - 127);
}
__device__ inline double elem_up64(const char *row, int dtype, int64_t j) {
    return dtype == F64 ? ((const double *)row)[j] : (double)elem_up(row, dtype, j);
}
template <typename T> __device__ inline void elem_down(char *row, int dtype, int64_t j, T v) {
    switch (dtype) {
    case F64: ((double *)row)[j] = (double)v; break;
    case F32: ((float *)row)[j] = (float)v; break;
    case F16:
        ((__half *)row)[j] = sizeof(T) == 8 ? __double2half((double)v) : __float2half_rn((float)v);
        break;
    default:
        /* one rounding: to odd first, so that the second one can't go the wrong way */
        if (sizeof(T) == 8) {
            double d = (double)v;
            float f = __double2float_rz(d);
            uint32_t u = __float_as_uint(f);
            if ((double)f != d && (u & 0x7f800000) != 0x7f800000)
                u |= 1;
            ((uint16_t *)row)[j] = bf16_down(__uint_as_float(u));
        } else {
            ((uint16_t *)row)[j] = bf16_down((float)v);
        }
    }
}

/* ---- sums, element by element ---------------------------------------------------------------- */
/* Rows of any dtype that lanes hold, summed in the order of the lanes. */
struct elem_terms {
    const char *x, *scales; /* of the lane; scales NULL: none */
    float w;
    bool there, weighted;
    int xdtype;
    int scale_kind, ydtype, num_bias; /* alike on all lanes, as what follows */
    char *y;
    const char *bias[2];
    int64_t hidden;
};
/* By `warps` warps, of which this is number `part`. T: double for rows of F64, otherwise float. */
template <typename T>
__device__ static __noinline__ void elem_sum(elem_terms a, int part, int warps) {
    int lane = threadIdx.x % 32;
    uint32_t mask = __ballot_sync(~0u, a.there), weighted = __ballot_sync(~0u, a.weighted);
    for (int64_t j0 = part * 32; j0 < a.hidden; j0 += warps * 32) {
        int64_t j = j0 + lane;
        T sum = 0;
        bool first = true;
        for (uint32_t m = mask; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, r);
            const char *s = (const char *)__shfl_sync(~0u, (unsigned long long)a.scales, r);
            float w = __shfl_sync(~0u, a.w, r);
            int xdtype = __shfl_sync(~0u, a.xdtype, r);
            if (j >= a.hidden)
                continue;
            T v;
            if (sizeof(T) == 8) {
                v = (T)elem_up64(x, xdtype, j);
                if (weighted >> r & 1)
                    v = (T)__dmul_rn((double)v, (double)w);
            } else {
                float f = elem_up(x, xdtype, j);
                if (s)
                    f = __fmul_rn(f, scale_up(s, a.scale_kind, j));
                if (weighted >> r & 1)
                    f = __fmul_rn(f, w);
                v = (T)f;
            }
            sum = first            ? v
                  : sizeof(T) == 8 ? (T)__dadd_rn((double)sum, (double)v)
                                   : (T)__fadd_rn((float)sum, (float)v);
            first = false;
        }
        for (int b = 0; b < a.num_bias && j < a.hidden; b++) {
            if (sizeof(T) == 8)
                sum = (T)__dadd_rn((double)sum, elem_up64(a.bias[b], a.ydtype, j));
            else
                sum = (T)__fadd_rn((float)sum, a.ydtype == F64
                                                   ? (float)((const double *)a.bias[b])[j]
                                                   : elem_up(a.bias[b], a.ydtype, j));
        }
        if (j < a.hidden)
            elem_down<T>(a.y, a.ydtype, j, sum);
    }
}

/* ---- 16 bytes at a time ---------------------------------------------------------------------- */
template <int X> struct vec;
template <> struct vec<F32> {
    enum { N = 4 };
    __device__ static void up(uint4 v, float *f) {
        f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y), f[2] = __uint_as_float(v.z),
        f[3] = __uint_as_float(v.w);
    }
    __device__ static uint4 down(const float *f) {
        return {__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                __float_as_uint(f[3])};
    }
};
template <> struct vec<BF16> {
    enum { N = 8 };
    __device__ static void up(uint4 v, float *f) {
        const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[2 * i] = __uint_as_float(u[i] << 16),
                  f[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000);
    }
    __device__ static uint4 down(const float *f) {
        uint32_t u[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            u[i] = bf16_down(f[2 * i]) | (uint32_t)bf16_down(f[2 * i + 1]) << 16;
        return {u[0], u[1], u[2], u[3]};
    }
};
template <> struct vec<F16> {
    enum { N = 8 };
    __device__ static void up(uint4 v, float *f) {
        const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[2 * i] = __half2float(__ushort_as_half((unsigned short)u[i])),
                  f[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(u[i] >> 16)));
    }
    __device__ static uint4 down(const float *f) {
        uint32_t u[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            u[i] = __half_as_ushort(__float2half_rn(f[2 * i])) |
                   (uint32_t)__half_as_ushort(__float2half_rn(f[2 * i + 1])) << 16;
        return {u[0], u[1], u[2], u[3]};
    }
};

/* As down; for bf16 the processor's conversion, which differs for NaN only. */
template <int X> __device__ __forceinline__ uint4 down_fast(const float *f) {
    return vec<X>::down(f);
}
template <> __device__ __forceinline__ uint4 down_fast<BF16>(const float *f) {
    float any = ((f[0] + f[1]) + (f[2] + f[3])) + ((f[4] + f[5]) + (f[6] + f[7]));
    if (any != any)
        return vec<BF16>::down(f);
    uint32_t u[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 b = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
        u[i] = *(uint32_t *)&b;
    }
    return {u[0], u[1], u[2], u[3]};
}
#endif
