/*
 * sums.cuh - the sum of a token's rows, by a warp: lane r knows where the row of rank r is. Shared
 * by the kernels of mapped and of proxied peers; what is computed is in combine.cu.
 */
#ifndef MPIX_KERNELS_CUDA_SUMS_CUH
#define MPIX_KERNELS_CUDA_SUMS_CUH
#include "gpu/cuda_module.h"
#include "elem.cuh"

/* What a lane knows about the row of rank lane. wide: of c.wire and not of c.xdtype (sums of other
 * hosts' fp8 rows; they come last). */
struct lane_term {
    const char *x, *scales;
    float w;
    bool there, wide;
};

/* ---- element by element ---------------------------------------------------------------------- */
template <typename T>
__device__ __forceinline__ void token_sum_any(const mpix_cuda_combine &c, lane_term term,
                                              uint32_t weighted, int64_t t, int lane) {
    elem_terms a = {term.x,
                    term.scales,
                    term.w,
                    term.there,
                    (weighted >> lane & 1) != 0,
                    term.wide ? c.wire : c.xdtype,
                    c.scale_kind,
                    c.ydtype,
                    c.num_bias,
                    c.y + t * c.y_stride,
                    {nullptr, nullptr},
                    c.hidden};
    for (int b = 0; b < c.num_bias; b++)
        a.bias[b] = c.bias[b] + t * c.bias_stride[b];
    elem_sum<T>(a, 0, 1);
}

/* ---- 16 bytes at a time ---------------------------------------------------------------------- */
/* The common case, one or two rows without weights and biases: four vectors of each in flight. */
template <int X, int NT>
__device__ __forceinline__ void piece_sum_plain(const char *const *x, char *y, int n, int lane) {
    enum { U = NT == 1 ? 4 : NT == 2 ? 4 : 1 };
#pragma unroll 1
    for (int i0 = lane * 16; i0 < n; i0 += U * 512) {
        uint4 v[NT][U];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int j = 0; j < NT; j++)
                if (i0 + u * 512 < n)
                    v[j][u] = *(const uint4 *)(x[j] + i0 + u * 512);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float sum[vec<X>::N], f[vec<X>::N];
            if (i0 + u * 512 >= n)
                break;
            vec<X>::up(v[0][u], sum);
#pragma unroll
            for (int j = 1; j < NT; j++) {
                vec<X>::up(v[j][u], f);
#pragma unroll
                for (int k = 0; k < vec<X>::N; k++)
                    sum[k] = __fadd_rn(sum[k], f[k]);
            }
            __stcs((uint4 *)(y + i0 + u * 512), down_fast<X>(sum));
        }
    }
}

template <int X>
__device__ __forceinline__ void add_vec(float *sum, uint4 v, bool first, bool weighted, float w) {
    float f[vec<X>::N];
    vec<X>::up(v, f);
#pragma unroll
    for (int i = 0; i < vec<X>::N; i++) {
        float p = weighted ? __fmul_rn(f[i], w) : f[i];
        sum[i] = first ? p : __fadd_rn(sum[i], p);
    }
}

/* One piece of one token. at: where lane-held row r's piece is (global or shared memory); for BULK:
 * slot number times piece. */
template <int X>
__device__ __forceinline__ void piece_sum(const mpix_cuda_combine &c, uint32_t mask,
                                          const char *mine, float my_w, uint32_t weighted,
                                          int64_t t, int off, int n, int lane) {
    int nterms = __popc(mask);
    if (nterms >= 1 && nterms <= 2 && !weighted && c.num_bias == 0) {
        char *y = c.y + t * c.y_stride + off;
        const char *x[2];
        x[0] = (const char *)__shfl_sync(~0u, (unsigned long long)mine, __ffs(mask) - 1);
        x[1] = (const char *)__shfl_sync(~0u, (unsigned long long)mine, 31 - __clz(mask));
        if (nterms == 1)
            piece_sum_plain<X, 1>(x, y, n, lane);
        else
            piece_sum_plain<X, 2>(x, y, n, lane);
        return;
    }
#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += 32 * 16) {
        int i = i0 + lane * 16;
        float sum[vec<X>::N];
#pragma unroll
        for (int k = 0; k < vec<X>::N; k++)
            sum[k] = 0;
        bool first = true;
        for (uint32_t m = mask; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)mine, r);
            float w = weighted ? __shfl_sync(~0u, my_w, r) : 1.0f;
            if (i < n)
                add_vec<X>(sum, *(const uint4 *)(x + i), first, weighted >> r & 1, w);
            first = false;
        }
        for (int b = 0; b < c.num_bias; b++)
            if (i < n)
                add_vec<X>(sum, *(const uint4 *)(c.bias[b] + t * c.bias_stride[b] + off + i), false,
                           false, 1.0f);
        if (i < n)
            __stcs((uint4 *)(c.y + t * c.y_stride + off + i), down_fast<X>(sum));
    }
}

/* ---- fp8 rows, 16 bytes at a time; X: dtype of the sums -------------------------------------- */
/*
 * Sixteen elements as float. The bits behind the sign are shifted to where float has them, which is
 * the value times 2^-120 (e4m3) or 2^-112 (e5m2), exactly, subnormal or not; only infinities and
 * NaNs are looked at by themselves.
 */
__device__ __forceinline__ void f8_up16(uint4 v, int e5m2, float *f) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w}, special = e5m2 ? 0x04040404u : 0x01010101u;
    int shift = e5m2 ? 3 : 4;
    float up = e5m2 ? 0x1p112f : 0x1p120f;
#pragma unroll
    for (int k = 0; k < 16; k++) {
        int top = (int)__byte_perm(words[k / 4], 0, 0x0444 | k % 4 << 12);
        f[k] = __fmul_rn(__uint_as_float((uint32_t)(top >> shift) &
                                         (0x80000000u | 0x7f000000u >> shift)),
                         up);
    }
#pragma unroll
    for (int w = 0; w < 4; w++)
        if ((words[w] & 0x7f7f7f7fu) + special & 0x80808080u)
            for (int k = 0; k < 4; k++)
                f[w * 4 + k] = f8_up((uint8_t)(words[w] >> 8 * k), e5m2);
}

/* A token by a warp; two vectors of each of two rows in flight. WIDE: some terms can be. */
template <int X, bool WIDE = false>
__device__ __forceinline__ void f8_token_sum(const mpix_cuda_combine &c, lane_term term,
                                             uint32_t weighted, int64_t t, int lane) {
    enum { U = 2, COLUMNS = 32 * 16, N = vec<X>::N };
    int e5m2 = c.xdtype == F8E5M2;
    uint32_t wide = WIDE ? __ballot_sync(~0u, term.there && term.wide) : 0,
             mask = __ballot_sync(~0u, term.there) & ~wide;
#pragma unroll 1
    for (int64_t j0 = 0; j0 < c.hidden; j0 += U * COLUMNS) {
        float sum[U][16];
#pragma unroll
        for (int k = 0; k < U * 16; k++)
            sum[k / 16][k % 16] = 0;
        bool first = true;
#pragma unroll 1
        for (uint32_t m = mask; m;) {
            uint4 v[2][U];
            float scale[2][U], w[2];
            bool scaled[2];
            int ranks[2] = {__ffs(m) - 1, -1};
            m &= m - 1;
            if (m)
                ranks[1] = __ffs(m) - 1, m &= m - 1;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = ranks[i] < 0 ? 0 : ranks[i];
                const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)term.x, r);
                const char *s = (const char *)__shfl_sync(~0u, (unsigned long long)term.scales, r);
                w[i] = __shfl_sync(~0u, term.w, r);
                scaled[i] = s != nullptr;
#pragma unroll
                for (int u = 0; u < U; u++) {
                    int64_t j = j0 + u * COLUMNS + lane * 16;
                    bool there = ranks[i] >= 0 && j < c.hidden;
                    v[i][u] = there ? *(const uint4 *)(x + j) : uint4{0, 0, 0, 0};
                    scale[i][u] = there && s ? scale_up(s, c.scale_kind, j) : 1.0f;
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (ranks[i] < 0)
                    continue;
#pragma unroll
                for (int u = 0; u < U; u++) {
                    float f[16];
                    f8_up16(v[i][u], e5m2, f);
#pragma unroll
                    for (int k = 0; k < 16; k++) {
                        if (scaled[i])
                            f[k] = __fmul_rn(f[k], scale[i][u]);
                        if (weighted >> ranks[i] & 1)
                            f[k] = __fmul_rn(f[k], w[i]);
                        sum[u][k] = first ? f[k] : __fadd_rn(sum[u][k], f[k]);
                    }
                }
                first = false;
            }
        }
#pragma unroll 1
        for (uint32_t m = wide; m; m &= m - 1) {
            const uint4 *x = (const uint4 *)__shfl_sync(~0u, (unsigned long long)term.x,
                                                        __ffs(m) - 1);
#pragma unroll
            for (int u = 0; u < U; u++) {
                int64_t j = j0 + u * COLUMNS + lane * 16;
                if (j >= c.hidden)
                    continue;
                add_vec<BF16>(&sum[u][0], x[j / 8], first, false, 1.0f);
                add_vec<BF16>(&sum[u][8], x[j / 8 + 1], first, false, 1.0f);
            }
            first = false;
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t j = j0 + u * COLUMNS + lane * 16;
            if (j >= c.hidden)
                continue;
#pragma unroll
            for (int g = 0; g < 16 / N; g++) {
                int64_t at = (j + g * N) * (16 / N);
                for (int b = 0; b < c.num_bias; b++)
                    add_vec<X>(&sum[u][g * N],
                               *(const uint4 *)(c.bias[b] + t * c.bias_stride[b] + at), false,
                               false, 1.0f);
                __stcs((uint4 *)(c.y + t * c.y_stride + at), down_fast<X>(&sum[u][g * N]));
            }
        }
    }
}
#endif
