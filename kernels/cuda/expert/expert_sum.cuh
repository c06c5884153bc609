/* expert_sum.cuh - combine in the EXPERT layout: sums of a token's rows at one rank, and their way
 * to mapped ranks; see expert_combine.cu. */
#ifndef MPIX_KERNELS_CUDA_EXPERT_SUM_CUH
#define MPIX_KERNELS_CUDA_EXPERT_SUM_CUH
#include "expert_combine.cuh"
#include "common/launch.h"

enum {
    THREADS = 512,
    PUSHERS = 6,
    PIECE = 3584
}; /* warps that push first; columns of a unit of
    * work; see doc/performance.md */

/* ---- element by element, T: float or double -------------------------------------------------- */
template <typename T> __device__ __forceinline__ T times(T a, float b) {
    return sizeof(T) == 8 ? (T)__dmul_rn((double)a, (double)b) : (T)__fmul_rn((float)a, b);
}
template <typename T> __device__ __forceinline__ T plus(T a, T b) {
    return sizeof(T) == 8 ? (T)__dadd_rn((double)a, (double)b) : (T)__fadd_rn((float)a, (float)b);
}

template <typename T> struct any_sum {
    typedef T acc;
    /* Column j of all lanes: the sum of a token's rows here; all lanes take part, those beyond
     * `hidden` without a result. */
    __device__ static T group(const mpix_cuda_combine &c, const rows_of &t, int64_t j) {
        T sum = 0;
        bool first = true;
        for (uint32_t m = t.mask; m; m &= m - 1) {
            int k = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)t.x, k),
                       *s = (const char *)__shfl_sync(~0u, (unsigned long long)t.scales, k);
            float w0 = __shfl_sync(~0u, t.w[0], k), w1 = __shfl_sync(~0u, t.w[1], k);
            if (j >= c.hidden)
                continue;
            T v = sizeof(T) == 8 ? (T)elem_up64(x, c.xdtype, j) : (T)elem_up(x, c.xdtype, j);
            if (s)
                v = times(v, scale_up(s, c.scale_kind, j));
            if (t.has[0])
                v = times(v, w0);
            if (t.has[1])
                v = times(v, w1);
            sum = first ? v : plus(sum, v);
            first = false;
        }
        return sum;
    }
    __device__ static void push(const mpix_cuda_combine &c, const common &g, const rows_of &t,
                                char *to, int64_t off, int64_t n) {
        for (int64_t j = off + threadIdx.x % 32; j - threadIdx.x % 32 < off + n; j += 32) {
            T sum = group(c, t, j < off + n ? j : c.hidden);
            if (j < off + n)
                elem_down<T>(to, g.pdtype, j, sum);
        }
    }
    /* ranks: that the token has rows at; lane r: where its partial sum is. */
    __device__ static void finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const common &g, const rows_of &t, uint32_t ranks,
                                  const char *partial, int64_t token, int64_t off, int64_t n) {
        for (int64_t j = off + threadIdx.x % 32; j - threadIdx.x % 32 < off + n; j += 32) {
            bool in = j < off + n, first = true;
            T sum = 0;
            for (uint32_t m = ranks; m; m &= m - 1) {
                int r = __ffs(m) - 1;
                const char *p = (const char *)__shfl_sync(~0u, (unsigned long long)partial, r);
                T v = r == h.rank      ? group(c, t, in ? j : c.hidden)
                      : !in            ? 0
                      : sizeof(T) == 8 ? (T)elem_up64(p, g.pdtype, j)
                                       : (T)elem_up(p, g.pdtype, j);
                sum = first ? v : plus(sum, v);
                first = false;
            }
            if (!in)
                continue;
            for (int b = 0; b < c.num_bias; b++) {
                const char *row = c.bias[b] + token * c.bias_stride[b];
                sum = plus(sum, sizeof(T) == 8    ? (T)elem_up64(row, c.ydtype, j)
                                : c.ydtype == F64 ? (T)(float)((const double *)row)[j]
                                                  : (T)elem_up(row, c.ydtype, j));
            }
            elem_down<T>(c.y + token * c.y_stride, c.ydtype, j, sum);
        }
    }
};

/* ---- 16 bytes at a time; offsets in elements, multiples of N, the end too -------------------- */
/* What becomes of sums: pushed, or finished. ask: before the rows are loaded; put: the
 * sum at column j. */
template <int X> struct push_sink {
    enum { N = vec<X>::N };
    char *to;
    bool wide;
    struct asked {};
    __device__ void ask(int64_t, asked &) const {}
    __device__ void put(int64_t j, const asked &, float *sum) const {
        partial_store<X>(wide, to, j, sum);
    }
};
template <int X> struct finish_sink {
    enum { N = vec<X>::N };
    const mpix_cuda_handle &h;
    const mpix_cuda_combine &c;
    const common &g;
    uint32_t ranks;
    int rank, bias;
    bool wide;
    char *y;
    int other; /* the first other rank: its partial sum is asked for before the sums
                * here are made */
    const char *its;
    int64_t token;
    struct asked {
        float f[N];
    };
    __device__ void ask(int64_t j, asked &a) const {
        if (other >= 0)
            partial_load<X>(wide, its, j, a.f);
    }
    __device__ void put(int64_t j, const asked &a, float *sum) const {
        float total[N];
        bool first = true;
        auto add = [&](const float *f) {
            if (first) {
#pragma unroll
                for (int e = 0; e < N; e++)
                    total[e] = f[e];
            } else {
#pragma unroll
                for (int e = 0; e < N; e++)
                    total[e] = __fadd_rn(total[e], f[e]);
            }
            first = false;
        };
        for (uint32_t m = ranks; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            if (r == rank) {
                add(sum);
            } else if (r == other) {
                add(a.f);
            } else {
                float f[N];
                partial_load<X>(wide, partial_at(h, g, rank, r, token), j, f);
                add(f);
            }
        }
        if (first)
#pragma unroll
            for (int e = 0; e < N; e++)
                total[e] = 0;
        for (int b = 0; b < bias; b++) {
            float f[N];
            vec<X>::up(*(const uint4 *)(c.bias[b] + token * c.bias_stride[b] + j * (16 / N)), f);
#pragma unroll
            for (int e = 0; e < N; e++)
                total[e] = __fadd_rn(total[e], f[e]);
        }
        __stcs((uint4 *)(y + j * (16 / N)), down_fast<X>(total));
    }
};

template <int X> struct vec_sum {
    enum { N = vec<X>::N, STEP = 32 * N };
    template <bool W>
    __device__ __forceinline__ static void term(const rows_of &t, uint4 v, float w0, float w1,
                                                bool first, float *sum) {
        float f[N];
        vec<X>::up(v, f);
        if (W && t.has[0])
#pragma unroll
            for (int e = 0; e < N; e++)
                f[e] = __fmul_rn(f[e], w0);
        if (W && t.has[1])
#pragma unroll
            for (int e = 0; e < N; e++)
                f[e] = __fmul_rn(f[e], w1);
        if (first) {
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] = f[e];
        } else {
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] = __fadd_rn(sum[e], f[e]);
        }
    }
    /* Rows are asked for B at a time. W: with factors. Kept in line and small: what is kept in
     * local memory is lost to the L2 cache at each acquire. */
    template <int B, bool W, class SINK>
    __device__ __forceinline__ static void columns(const rows_of &t, const SINK &sink, int64_t off,
                                                   int64_t end) {
#pragma unroll 1
        for (int64_t j0 = off; j0 < end; j0 += STEP) {
            int64_t j = j0 + threadIdx.x % 32 * N;
            float sum[N];
            typename SINK::asked asked;
            if (j < end)
                sink.ask(j, asked);
            for (uint32_t m = t.mask; m;) {
                int n = __popc(m) < B ? __popc(m) : B;
                bool first = m == t.mask;
                uint4 v[B];
                float w0[B], w1[B];
#pragma unroll
                for (int i = 0; i < B; i++) {
                    if (i >= n)
                        break;
                    int k = __ffs(m) - 1;
                    m &= m - 1;
                    const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)t.x, k);
                    if (W) {
                        w0[i] = __shfl_sync(~0u, t.w[0], k);
                        w1[i] = __shfl_sync(~0u, t.w[1], k);
                    }
                    if (j < end)
                        v[i] = __ldcs((const uint4 *)(x + j * (16 / N)));
                }
#pragma unroll
                for (int i = 0; i < B; i++) {
                    if (i >= n)
                        break;
                    term<W>(t, v[i], W ? w0[i] : 1.0f, W ? w1[i] : 1.0f, first && i == 0, sum);
                }
            }
            if (j < end)
                sink.put(j, asked, sum);
        }
    }
    template <class SINK>
    __device__ __forceinline__ static void columns(const rows_of &t, const SINK &sink, int64_t off,
                                                   int64_t n) {
        if (t.has[0] || t.has[1])
            columns<4, true>(t, sink, off, off + n);
        else
            columns<8, false>(t, sink, off, off + n);
    }
    __device__ static void push(const mpix_cuda_combine &c, const common &g, const rows_of &t,
                                char *to, int64_t off, int64_t n) {
        columns(t, push_sink<X>{to, g.wide != 0}, off, n);
    }
    __device__ static void finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const common &g, const rows_of &t, uint32_t ranks,
                                  const char *partial, int64_t token, int64_t off, int64_t n) {
        int other = __ffs(ranks & ~(1u << h.rank)) - 1;
        const char *its = (const char *)__shfl_sync(~0u, (unsigned long long)partial,
                                                    other < 0 ? 0 : other);
        columns(t,
                finish_sink<X>{h, c, g, ranks, h.rank, c.num_bias, g.wide != 0,
                               c.y + token * c.y_stride, other, its, token},
                off, n);
    }
};

/* ---- pushing --------------------------------------------------------------------------------- */
/* False: time-out. */
template <class SUM>
__device__ static bool push_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                const common &g, const pair_order &order, uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t rows = g.offers[h.rank].rows;
    uint32_t units = order_count(h, order) * (uint32_t)c.pieces,
             *taken = &h.state->item[MPIX_CUDA_COMBINE], unit = 0;
    pair_part then;
    if (lane == 0)
        unit = atomicAdd(taken, 1);
    uint32_t next = __shfl_sync(~0u, unit, 0);
    if (next < units)
        then = pair_ask(h, g, order, width, next / c.pieces);
    for (;;) {
        uint32_t now = next;
        pair_part p = then;
        if (now >= units)
            return true;
        if (lane == 0)
            unit = atomicAdd(taken, 1);
        int s = p.at.source, chunk = p.at.chunk, piece = (int)(now % c.pieces);
        rows_of terms = rows_make(c, rows, p.row, p.choice,
                                  g.offers[s].flags & MPIX_EP_OFFER_CHOICES);
        if (!chunk_free(h, c, g, epoch, s, chunk))
            return false;
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = pair_ask(h, g, order, width, next / c.pieces);
        int64_t off = (int64_t)piece * c.piece,
                n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        if (terms.mask)
            SUM::push(c, g, terms, partial_at(h, g, s, h.rank, p.token), off, n);
        if (piece == 0 && c.slot_values && terms.x)
            slots_at(h, s, p.token)[lane] = c.slot_values[p.row];
        chunk_pushed(h, g, epoch, s, chunk, p.at.in_chunk, c.pieces);
    }
}

/* By one thread, when all offers are here: the form of partial sums. */
__device__ static void form_choose(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                   common &g) {
    int exact = 0, small = c.xdtype == BF16 || c.xdtype == F16;
    for (int r = 0; r < h.size; r++)
        exact |= g.offers[r].flags & MPIX_EP_OFFER_EXACT;
    g.wide = small && exact;
    g.pdtype = c.xdtype == F64 ? F64 : small && !exact ? c.xdtype : F32;
    g.prow = (c.hidden * (g.pdtype == F64 ? 8 : g.pdtype == F32 ? 4 : 2) + 15) / 16 * 16;
    int64_t room = (int64_t)h.expert.partial_bytes / (g.prow * h.expert.chunk);
    g.slots = room < h.expert.chunks ? (int)room : h.expert.chunks;
    if (g.slots < 1)
        g.slots = 1;
}

/* ---- launches -------------------------------------------------------------------------------- */
/* run(sum) with the sum that the call's dtypes, addresses and strides allow; with every one, until
 * the first error. */
template <class RUN> static cudaError_t sum_choose(const mpix_cuda_combine *c, const RUN &run) {
    if (c->xdtype == F64)
        return run(any_sum<double>());
    if (c->ydtype != c->xdtype ||
        mpix_cuda_combine_bits(c, c->hidden * (c->xdtype == F32 ? 4 : 2)) % 16)
        return run(any_sum<float>());
    return c->xdtype == F32    ? run(vec_sum<F32>())
           : c->xdtype == F16  ? run(vec_sum<F16>())
           : c->xdtype == BF16 ? run(vec_sum<BF16>())
                               : run(any_sum<float>());
}
template <class RUN> static cudaError_t sum_each(const RUN &run) {
    cudaError_t err = run(any_sum<double>());
    err = err == cudaSuccess ? run(any_sum<float>()) : err;
    err = err == cudaSuccess ? run(vec_sum<F32>()) : err;
    err = err == cudaSuccess ? run(vec_sum<F16>()) : err;
    return err == cudaSuccess ? run(vec_sum<BF16>()) : err;
}
#endif
