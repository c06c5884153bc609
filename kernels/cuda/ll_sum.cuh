/* ll_sum.cuh - low-latency combine: sums of rows by a team of warps, of any dtypes, or of one and 16 bytes at a time. */
#ifndef MPIX_KERNELS_CUDA_LL_SUM_CUH
#define MPIX_KERNELS_CUDA_LL_SUM_CUH
#include "elem.cuh"
#include "ll.cuh"

/* A sum of the rows that lanes hold, in the order of the lanes. */
struct ll_sum {
    const char *x, *scales; /* of the lane */
    float w;
    bool there, weighted;
    int xdtype, scale_kind, ydtype, num_bias;
    char *y;
    const char *bias[2];
    int64_t hidden;
};

template <typename T> __device__ static __noinline__ void sum_any(ll_sum a, ll_team team) {
    int lane = threadIdx.x % 32;
    uint32_t mask = __ballot_sync(~0u, a.there);
    for (int64_t j0 = team.part * 32; j0 < a.hidden; j0 += team.warps * 32) {
        int64_t j = j0 + lane;
        T sum = 0;
        bool first = true;
        for (uint32_t m = mask; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, r);
            const char *s = (const char *)__shfl_sync(~0u, (unsigned long long)a.scales, r);
            float w = __shfl_sync(~0u, a.w, r);
            if (j >= a.hidden)
                continue;
            T v;
            if (sizeof(T) == 8) {
                v = (T)elem_up64(x, a.xdtype, j);
                if (a.weighted)
                    v = (T)__dmul_rn((double)v, (double)w);
            } else {
                float f = elem_up(x, a.xdtype, j);
                if (a.scale_kind)
                    f = __fmul_rn(f, scale_up(s, a.scale_kind, j));
                if (a.weighted)
                    f = __fmul_rn(f, w);
                v = (T)f;
            }
            sum = first ? v : sizeof(T) == 8 ? (T)__dadd_rn((double)sum, (double)v) : (T)__fadd_rn((float)sum, (float)v);
            first = false;
        }
        for (int b = 0; b < a.num_bias && j < a.hidden; b++) {
            if (sizeof(T) == 8)
                sum = (T)__dadd_rn((double)sum, elem_up64(a.bias[b], a.ydtype, j));
            else
                sum = (T)__fadd_rn((float)sum, a.ydtype == F64 ? (float)((const double *)a.bias[b])[j] : elem_up(a.bias[b], a.ydtype, j));
        }
        if (j < a.hidden)
            elem_down<T>(a.y, a.ydtype, j, sum);
    }
}

__device__ __forceinline__ void sum_rows(const ll_sum &a, const ll_team &team) {
    if (a.xdtype == F64)
        sum_any<double>(a, team);
    else
        sum_any<float>(a, team);
}

/* ---- 16 bytes at a time: rows, wire and output of one dtype, without scales ---- */
enum { AT_ONCE = 4, ANSWERS = 2, COLUMNS = 2 }; /* rows and vectors of a lane that are in flight */

/* The vectors of a lane: u-th of the round that begins at `first`. */
__device__ __forceinline__ int64_t column(const ll_team &t, int64_t first, int u) {
    return first + (u * t.warps + t.part) * 512 + threadIdx.x % 32 * 16;
}
__device__ __forceinline__ int64_t round_bytes(const ll_team &t) { return COLUMNS * 512 * t.warps; }

template <int X> struct columns { float f[COLUMNS][vec<X>::N]; };

/* Adds rows in order; *first: there was none before. */
template <int X> __device__ __forceinline__ void columns_add(columns<X> &sum, const uint4 (&v)[COLUMNS], bool weighted, float w, bool first) {
#pragma unroll
    for (int u = 0; u < COLUMNS; u++) {
        float f[vec<X>::N];
        vec<X>::up(v[u], f);
#pragma unroll
        for (int k = 0; k < vec<X>::N; k++) {
            float p = weighted ? __fmul_rn(f[k], w) : f[k];
            sum.f[u][k] = first ? p : __fadd_rn(sum.f[u][k], p);
        }
    }
}
__device__ __forceinline__ void columns_load(uint4 (&v)[COLUMNS], const char *x, const ll_team &team, int64_t at, int64_t n) {
#pragma unroll
    for (int u = 0; u < COLUMNS; u++) {
        int64_t i = column(team, at, u);
        v[u] = i < n ? __ldcg((const uint4 *)(x + i)) : make_uint4(0, 0, 0, 0);
    }
}

/* A token's rows here, of the lanes in mask: the sum, rounded. n: bytes of a row. */
template <int X>
__device__ __forceinline__ void part_sum(const char *x, float w, bool weighted, uint32_t mask, const ll_team &team, int64_t at, int64_t n,
                                         uint4 (&y)[COLUMNS]) {
    columns<X> sum;
    bool first = true, copies = !weighted && __popc(mask) == 1;
    for (uint32_t m = mask; m;) {
        uint4 v[AT_ONCE][COLUMNS];
        float weights[AT_ONCE];
        int left = __popc(m);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (j >= left)
                continue;
            int r = __ffs(m) - 1;
            m &= m - 1;
            weights[j] = __shfl_sync(~0u, w, r);
            columns_load(v[j], (const char *)__shfl_sync(~0u, (unsigned long long)x, r), team, at, n);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (j < left)
                columns_add<X>(sum, v[j], weighted, weights[j], first && j == 0);
        }
        first = false;
        if (copies) {
#pragma unroll
            for (int u = 0; u < COLUMNS; u++)
                y[u] = v[0][u];
        }
    }
#pragma unroll
    for (int u = 0; u < COLUMNS && !copies; u++)
        y[u] = down_fast<X>(sum.f[u]);
}
#endif
