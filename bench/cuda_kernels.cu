/*
 * cuda_kernels.cu - what surrounds NCCL or MPI in a baseline: placing, packing, unpacking, summing;
 * each one pass over the data, with accesses of 16 bytes where rows allow them, and as many blocks
 * as fill the GPU.
 */
#include "cuda_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

enum { F64 = 1, F32, F16, BF16, F8E4M3, F8E5M2, BYTES }; /* MPIX_EP_* */
enum { COUNT_THREADS = 1024, THREADS = 512, BLOCKS = 528 };

/* Block r: tokens that go to rank r, 1024 at a time. */
__global__ void __launch_bounds__(COUNT_THREADS)
    count_kernel(const int32_t *ids, const int32_t *owner, int64_t n, int k, int size,
                 int32_t *place, int32_t *counts) {
    __shared__ int warps[32];
    int r = blockIdx.x, lane = threadIdx.x % 32, w = threadIdx.x / 32, base = 0;
    for (int64_t t0 = 0; t0 < n; t0 += COUNT_THREADS) {
        int64_t t = t0 + threadIdx.x;
        int goes = 0;
        for (int j = 0; t < n && j < k; j++) {
            int id = ids[t * k + j];
            goes |= id >= 0 && owner[id] == r;
        }
        unsigned mask = __ballot_sync(~0u, goes);
        if (lane == 0)
            warps[w] = __popc(mask);
        __syncthreads();
        int before = 0, all = 0;
        for (int i = 0; i < 32; i++) {
            before += i < w ? warps[i] : 0;
            all += warps[i];
        }
        if (t < n)
            place[t * size + r] = goes ? base + before + __popc(mask & ((1u << lane) - 1)) : -1;
        base += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        counts[r] = base;
}

/* n bytes from one place to several, by a warp. */
template <typename V>
__device__ static void warp_copy(const char *src, char *const *to, int nto, int64_t n, int lane) {
    constexpr int DEPTH = 8;
    for (int64_t i0 = 0; i0 < n; i0 += 32 * DEPTH * (int64_t)sizeof(V)) {
        V v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
            if (i < n)
                v[d] = *(const V *)(src + i);
        }
        for (int q = 0; q < nto; q++)
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
                if (i < n)
                    *(V *)(to[q] + i) = v[d];
            }
    }
}

__device__ static void copy_any(const char *src, char *const *to, int nto, int64_t n, int lane) {
    uint64_t bits = (uint64_t)src | (uint64_t)n;
    for (int q = 0; q < nto; q++)
        bits |= (uint64_t)to[q];
    if (bits % 16 == 0)
        warp_copy<uint4>(src, to, nto, n, lane);
    else if (bits % 4 == 0)
        warp_copy<uint32_t>(src, to, nto, n, lane);
    else
        warp_copy<uint8_t>(src, to, nto, n, lane);
}

__global__ void __launch_bounds__(THREADS) pack_kernel(const __grid_constant__ bench_pack p) {
    int lane = threadIdx.x % 32;
    int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t t = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; t < p.n; t += step) {
        char *to[BENCH_CUDA_RANKS];
        int nto = 0;
        for (int r = 0; r < p.size; r++) {
            int at = p.place[t * p.size + r];
            if (at >= 0)
                to[nto++] = p.to[r] + at * p.record;
        }
        copy_any(p.x + t * p.row, to, nto, p.row, lane);
        for (int q = 0; q < nto; q++) {
            char *one = to[q] + p.scale_at, *meta = to[q] + p.meta_at;
            if (p.scales)
                copy_any(p.scales + t * p.scale_row, &one, 1, p.scale_row, lane);
            if (p.ids)
                copy_any(p.ids + t * p.meta, &meta, 1, p.meta, lane);
            meta += p.meta;
            if (p.weights)
                copy_any(p.weights + t * p.meta, &meta, 1, p.meta, lane);
        }
    }
}

__global__ void __launch_bounds__(THREADS) unpack_kernel(const __grid_constant__ bench_unpack u) {
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < u.rows * u.k; i += step) {
        const char *meta = u.recv + i / u.k * u.record + u.meta_at;
        int id = ((const int32_t *)meta)[i % u.k] - u.first;
        u.local_ids[i] = id >= 0 && id < u.local ? id : -1;
        u.weights[i] = ((const float *)meta)[u.k + i % u.k];
    }
}

template <int D> struct element;
template <> struct element<F64> {
    typedef double type;
    typedef double sum;
};
template <> struct element<F32> {
    typedef float type;
    typedef float sum;
};
template <> struct element<F16> {
    typedef __half type;
    typedef float sum;
};
template <> struct element<BF16> {
    typedef __nv_bfloat16 type;
    typedef float sum;
};
template <> struct element<F8E4M3> {
    typedef __nv_fp8_e4m3 type;
    typedef float sum;
};
template <> struct element<F8E5M2> {
    typedef __nv_fp8_e5m2 type;
    typedef float sum;
};

template <typename T, int V> struct __align__(sizeof(T) * V) pieces { T v[V]; };

/* One warp per token and span of columns, V elements a thread; the first two ranks' rows are asked
 * for together. */
template <int D, int Y, int V>
__global__ void __launch_bounds__(THREADS) sum_kernel(const __grid_constant__ bench_sum s) {
    typedef typename element<D>::type X;
    typedef typename element<D>::sum S;
    typedef typename element<Y>::type O;
    int lane = threadIdx.x % 32;
    int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t t = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; t < s.n; t += step) {
        const char *rows[BENCH_CUDA_RANKS];
        int n = 0;
        for (int r = 0; r < s.size; r++) {
            int at = s.place[t * s.size + r];
            if (at >= 0)
                rows[n++] = s.from[r] + at * s.stride;
        }
#pragma unroll 4
        for (int64_t c = (int64_t)lane * V; c < s.hidden; c += 32 * V) {
            S sum[V];
            pieces<O, V> out;
#pragma unroll
            for (int i = 0; i < V; i++)
                sum[i] = 0;
            for (int q = 0; q < n; q++) {
                pieces<X, V> x = *(const pieces<X, V> *)(rows[q] + c * (int64_t)sizeof(X));
                S scale = 1;
                if (s.scale_kind == 1)
                    scale = *(const float *)(rows[q] + s.scale_at + c / 128 * 4);
                else if (s.scale_kind == 2)
                    scale = exp2f((float)*(const uint8_t *)(rows[q] + s.scale_at + c / 128) - 127);
#pragma unroll
                for (int i = 0; i < V; i++)
                    sum[i] += scale * (S)x.v[i];
            }
#pragma unroll
            for (int i = 0; i < V; i++)
                out.v[i] = (O)sum[i];
            *(pieces<O, V> *)(s.y + (t * s.hidden + c) * (int64_t)sizeof(O)) = out;
        }
    }
}

template <int D, int Y> static int sum_launch(const bench_sum *s, cudaStream_t stream) {
    constexpr int V = 16 / sizeof(typename element<D>::type) > 8
                          ? 8
                          : 16 / sizeof(typename element<D>::type);
    uint64_t bits = (uint64_t)s->y | (uint64_t)s->stride;
    for (int r = 0; r < s->size; r++)
        bits |= (uint64_t)s->from[r];
    if (bits % 16 == 0 && s->hidden % 8 == 0)
        sum_kernel<D, Y, V><<<BLOCKS, THREADS, 0, stream>>>(*s);
    else
        sum_kernel<D, Y, 1><<<BLOCKS, THREADS, 0, stream>>>(*s);
    return cudaGetLastError();
}

int bench_cuda_count(const int32_t *ids, const int32_t *owner, int64_t n, int k, int size,
                     int32_t *place, int32_t *counts, void *stream) {
    count_kernel<<<size, COUNT_THREADS, 0, (cudaStream_t)stream>>>(ids, owner, n, k, size, place,
                                                                   counts);
    return cudaGetLastError();
}
int bench_cuda_pack(const bench_pack *p, void *stream) {
    pack_kernel<<<BLOCKS, THREADS, 0, (cudaStream_t)stream>>>(*p);
    return cudaGetLastError();
}
int bench_cuda_unpack(const bench_unpack *u, void *stream) {
    unpack_kernel<<<BLOCKS, THREADS, 0, (cudaStream_t)stream>>>(*u);
    return cudaGetLastError();
}
int bench_cuda_sum(const bench_sum *s, void *stream) {
    cudaStream_t at = (cudaStream_t)stream;
    switch (s->dtype) {
    case F64: return sum_launch<F64, F64>(s, at);
    case F32: return sum_launch<F32, F32>(s, at);
    case F16: return sum_launch<F16, F16>(s, at);
    case BF16: return sum_launch<BF16, BF16>(s, at);
    case F8E4M3: return sum_launch<F8E4M3, BF16>(s, at);
    default: return sum_launch<F8E5M2, BF16>(s, at);
    }
}
