/*
 * expert_combine.cu - combine in the EXPERT layout: each rank sums a token's rows that lie with it, the token's rank adds those sums. One kernel.
 *
 * PUSHERS of each block's warps push: they sum the rows of a pair and store the partial sum in the window of the token's rank, in the
 * order of chunks (tokens of the source, then sources). The others finish: they take this rank's tokens in order, wait for the chunk
 * of each rank that the token has rows at, sum the rows that lie here themselves, and write y. Who has nothing more to push finishes too.
 *
 * Right to write. Partial sums go to the window of a rank after its ROWS of this epoch, which it sends in the order of its stream after
 * it has read those of the last. Where a batch does not fit (gpu_partial_bytes) the room is a ring of chunks: chunk c is
 * written when c - slots has been used up (`freed`). No deadlock: let c be the lowest chunk of any rank's tokens that is not finished.
 * Pushes are taken in the order of chunks, so whoever pushes to c, or waits before that, waits for a chunk below c only, and those are
 * finished; tokens are taken in order, so all up to chunk c are taken or done, and wait for pushes of chunks up to c only. Every block has
 * warps of both kinds, so they run whenever it does. Weights of choices are written into the pairs' records before anything waits.
 *
 * Words. arrived[slot] and freed[slot] hold epoch << 24 | chunk + 1: one writer each, growing. The warp that completes a chunk, by a
 * counter in device memory, releases the word; the fence and the addition of each warp before it order that warp's stores.
 *
 * Partial sums travel in float (double for F64) if a rank asks for it or x is fp8, and then the result is that of the host path, bit by
 * bit; otherwise they are rounded to x's dtype once. The sum of the rows at the token's own rank is never rounded.
 */
#include "expert_combine.cuh"
#include "launch.h"

enum { THREADS = 512, PUSHERS = 6, PIECE = 3584 }; /* warps that push first; columns of a unit of work; see doc/performance.md */

/* ---- element by element, T: float or double ---- */
template <typename T> __device__ __forceinline__ T times(T a, float b) { return sizeof(T) == 8 ? (T)__dmul_rn((double)a, (double)b) : (T)__fmul_rn((float)a, b); }
template <typename T> __device__ __forceinline__ T plus(T a, T b) { return sizeof(T) == 8 ? (T)__dadd_rn((double)a, (double)b) : (T)__fadd_rn((float)a, (float)b); }

template <typename T> struct any_sum {
    typedef T acc;
    /* Column j of all lanes: the sum of a token's rows here; all lanes take part, those beyond `hidden` without a result. */
    __device__ static T group(const mpix_cuda_combine &c, const rows_of &t, int64_t j) {
        T sum = 0;
        bool first = true;
        for (uint32_t m = t.mask; m; m &= m - 1) {
            int k = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)t.x, k), *s = (const char *)__shfl_sync(~0u, (unsigned long long)t.scales, k);
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
    __device__ static void push(const mpix_cuda_combine &c, const common &g, const rows_of &t, char *to, int64_t off, int64_t n) {
        for (int64_t j = off + threadIdx.x % 32; j - threadIdx.x % 32 < off + n; j += 32) {
            T sum = group(c, t, j < off + n ? j : c.hidden);
            if (j < off + n)
                elem_down<T>(to, g.pdtype, j, sum);
        }
    }
    /* ranks: that the token has rows at; lane r: where its partial sum is. */
    __device__ static void finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, const rows_of &t, uint32_t ranks, const char *partial, int64_t token,
                                  int64_t off, int64_t n) {
        for (int64_t j = off + threadIdx.x % 32; j - threadIdx.x % 32 < off + n; j += 32) {
            bool in = j < off + n, first = true;
            T sum = 0;
            for (uint32_t m = ranks; m; m &= m - 1) {
                int r = __ffs(m) - 1;
                const char *p = (const char *)__shfl_sync(~0u, (unsigned long long)partial, r);
                T v = r == h.rank ? group(c, t, in ? j : c.hidden) : !in ? 0 : sizeof(T) == 8 ? (T)elem_up64(p, g.pdtype, j) : (T)elem_up(p, g.pdtype, j);
                sum = first ? v : plus(sum, v);
                first = false;
            }
            if (!in)
                continue;
            for (int b = 0; b < c.num_bias; b++) {
                const char *row = c.bias[b] + token * c.bias_stride[b];
                sum = plus(sum, sizeof(T) == 8 ? (T)elem_up64(row, c.ydtype, j) : c.ydtype == F64 ? (T)(float)((const double *)row)[j] : (T)elem_up(row, c.ydtype, j));
            }
            elem_down<T>(c.y + token * c.y_stride, c.ydtype, j, sum);
        }
    }
};

/* ---- 16 bytes at a time; offsets in elements, multiples of N except the end, which is one too ---- */
/* What becomes of sums: pushed, or finished. ask: before the rows are loaded; put: the sum at column j. */
template <int X> struct push_sink {
    enum { N = vec<X>::N };
    char *to;
    bool wide;
    struct asked {};
    __device__ void ask(int64_t, asked &) const {}
    __device__ void put(int64_t j, const asked &, float *sum) const { partial_store<X>(wide, to, j, sum); }
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
    int other;              /* the first other rank: its partial sum is asked for before the sums here are made */
    const char *its;
    int64_t token;
    struct asked { float f[N]; };
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
    template <bool W> __device__ __forceinline__ static void term(const rows_of &t, uint4 v, float w0, float w1, bool first, float *sum) {
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
    /* Rows are asked for B at a time. W: with factors. Kept in line and small: what is kept in local memory is lost to the L2 cache at each
     * acquire. */
    template <int B, bool W, class SINK> __device__ __forceinline__ static void columns(const rows_of &t, const SINK &sink, int64_t off, int64_t end) {
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
    template <class SINK> __device__ __forceinline__ static void columns(const rows_of &t, const SINK &sink, int64_t off, int64_t n) {
        if (t.has[0] || t.has[1])
            columns<4, true>(t, sink, off, off + n);
        else
            columns<8, false>(t, sink, off, off + n);
    }
    __device__ static void push(const mpix_cuda_combine &c, const common &g, const rows_of &t, char *to, int64_t off, int64_t n) {
        columns(t, push_sink<X>{to, g.wide != 0}, off, n);
    }
    __device__ static void finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, const rows_of &t, uint32_t ranks, const char *partial, int64_t token,
                                  int64_t off, int64_t n) {
        int other = __ffs(ranks & ~(1u << h.rank)) - 1;
        const char *its = (const char *)__shfl_sync(~0u, (unsigned long long)partial, other < 0 ? 0 : other);
        columns(t, finish_sink<X>{h, c, g, ranks, h.rank, c.num_bias, g.wide != 0, c.y + token * c.y_stride, other, its, token}, off, n);
    }
};

/* ---- pushing ---- */
/* False: time-out. */
template <class SUM> __device__ static bool push_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, const pair_order &order, uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t rows = g.offers[h.rank].rows;
    uint32_t units = order_count(h, order) * (uint32_t)c.pieces, *taken = &h.state->item[MPIX_CUDA_COMBINE], unit = 0;
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
        rows_of terms = rows_make(c, rows, p.row, p.choice, g.offers[s].flags & MPIX_CUDA_OFFER_CHOICES);
        if (!chunk_free(h, c, g, epoch, s, chunk))
            return false;
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = pair_ask(h, g, order, width, next / c.pieces);
        int64_t off = (int64_t)piece * c.piece, n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        if (terms.mask)
            SUM::push(c, g, terms, partial_at(h, g, s, h.rank, p.token), off, n);
        if (piece == 0 && c.slot_values && terms.x)
            slots_at(h, s, p.token)[lane] = c.slot_values[p.row];
        chunk_pushed(h, g, epoch, s, chunk, p.at.in_chunk, c.pieces);
    }
}

/* ---- finishing ---- */
/* False: time-out. values: where slot values go, null: not wanted. */
template <class SUM> __device__ static bool finish_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, uint64_t epoch, float *values) {
    const mpix_cuda_expert &x = h.expert;
    int lane = threadIdx.x % 32;
    uint32_t units = (uint32_t)(c.tokens * c.pieces), *taken = &h.state->more[0], unit = 0;
    bool ring = x.chunks > g.slots;
    int64_t mine = g.offers[h.rank].rows, theirs = lane < h.size ? g.offers[lane].rows : 0;
    token_part then = {-1, -1, -1, 1.0f};
    if (lane == 0)
        unit = atomicAdd(taken, 1);
    uint32_t next = __shfl_sync(~0u, unit, 0);
    if (next < units)
        then = token_ask(h, c, next / c.pieces);
    for (;;) {
        uint32_t now = next;
        token_part p = then;
        if (now >= units)
            return true;
        if (lane == 0)
            unit = atomicAdd(taken, 1);
        int64_t t = now / c.pieces;
        int chunk = (int)(t / x.chunk), piece = (int)(now % c.pieces);
        float choice = c.choice_weights && lane < c.topk ? c.choice_weights[t * c.topk + lane] : 1.0f;
        rows_of terms = rows_make(c, mine, p.owner == h.rank ? p.row : -1, choice, c.choice_weights != nullptr);
        bool there = lane < h.size && p.first >= 0 && p.first < theirs;
        if (!chunk_arrived(h, c, g, epoch, chunk, there))
            return false;
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = token_ask(h, c, next / c.pieces);
        uint32_t ranks = __ballot_sync(~0u, there);
        const char *partial = there && lane != h.rank ? partial_at(h, g, h.rank, lane, t) : nullptr;
        int64_t off = (int64_t)piece * c.piece, n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        SUM::finish(h, c, g, terms, ranks, partial, t, off, n);
        if (values && piece == 0 && lane < c.topk)
            values[t * c.topk + lane] = slot_value(h, c, g, t, p.row, p.owner);
        if (ring)
            chunk_used(h, c, g, epoch, chunk, p.first);
    }
}

/* ---- the kernel ---- */
/* This rank's weights of choices into the records of the pairs at their ranks. */
__device__ static void choices_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.tokens * c.topk; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = i / c.topk;
        for (uint32_t m = h.bitmap[t] & ~(1u << h.rank); m; m &= m - 1) {
            int r = __ffs(m) - 1;
            record_of(h, r, row_of(h, t, r)).returned[i % c.topk] = c.choice_weights[i];
        }
    }
    __syncthreads();
    lane_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
}

/* Waits for the weights of all sources that send any. False in all threads: time-out. */
__device__ static bool choices_wait(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, uint64_t epoch) {
    int bad = 0;
    for (int s = threadIdx.x / 32; s < h.size; s += blockDim.x / 32)
        for (int i = threadIdx.x % 32; s != h.rank && (g.offers[s].flags & MPIX_CUDA_OFFER_CHOICES) && i < g.offers[s].lanes; i += 32)
            bad |= !word_wait(h, &words_of(h, h.rank, s)->read_done[i], epoch, s, c.report);
    return !__syncthreads_or(bad);
}

/* By one thread, when all offers are here: the form of partial sums. */
__device__ static void form_choose(const mpix_cuda_handle &h, const mpix_cuda_combine &c, common &g) {
    int exact = 0, small = c.xdtype == BF16 || c.xdtype == F16;
    for (int r = 0; r < h.size; r++)
        exact |= g.offers[r].flags & MPIX_CUDA_OFFER_EXACT;
    g.wide = small && exact;
    g.pdtype = c.xdtype == F64 ? F64 : small && !exact ? c.xdtype : F32;
    g.prow = (c.hidden * (g.pdtype == F64 ? 8 : g.pdtype == F32 ? 4 : 2) + 15) / 16 * 16;
    int64_t room = (int64_t)h.expert.partial_bytes / (g.prow * h.expert.chunk);
    g.slots = room < h.expert.chunks ? (int)room : h.expert.chunks;
    if (g.slots < 1)
        g.slots = 1;
}

template <class SUM>
__global__ void __launch_bounds__(THREADS) expert_combine_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c) {
    __shared__ common g;
    __shared__ pair_order order;
    extern __shared__ __align__(128) char smem[]; /* the order */
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t rows = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk);
    if (call_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && threadIdx.x < 32 && c.part != MPIX_CUDA_END)
        rows_offer_send(h, c, rows, fault, epoch);
    if (c.part == MPIX_CUDA_BEGIN)
        return;
    if (c.choice_weights && !c.offer.status && !fault)
        choices_send(h, c, epoch);
    if (threadIdx.x < 32) {
        mpix_cuda_offer o;
        int bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch, blockIdx.x == 0 ? c.wait_ns : nullptr, c.report, &o);
        g.offers[threadIdx.x] = o;
        __syncwarp();
        if (threadIdx.x == 0) {
            g.bad = bad;
            form_choose(h, c, g);
        }
    }
    __syncthreads();
    if (g.bad == 2)
        return;
    bool fine = true;
    if (g.bad == 0) {
        float *values = c.out_slots;
        for (int r = 0; r < h.size; r++) /* the sums go on: peers' pushes wait for them to be used */
            if (c.out_slots && g.offers[r].rows > 0 && !(g.offers[r].flags & MPIX_CUDA_OFFER_SLOTS)) {
                values = nullptr;
                if (threadIdx.x == 0)
                    report(h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
            }
        if (!choices_wait(h, c, g, epoch))
            return;
        order_fill(h, order, smem);
        if (threadIdx.x / 32 < PUSHERS)
            fine = push_all<SUM>(h, c, g, order, epoch);
        if (fine)
            fine = finish_all<SUM>(h, c, g, epoch, values);
    }
    if (__syncthreads_or(!fine))
        return;
    if (last_block(h, MPIX_CUDA_COMBINE) && threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

/* ---- launches ---- */
template <class SUM> static cudaError_t launch(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c, cudaStream_t stream) {
    expert_combine_kernel<SUM><<<sms, THREADS, order_bytes(h), stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_expert_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream) {
    int sms = c->num_sms > 0 && c->num_sms < d->sms ? c->num_sms : d->sms, size = c->xdtype == F32 ? 4 : 2; /* sums here are a matter of local memory */
    if (sms > MPIX_CUDA_LANES)
        sms = MPIX_CUDA_LANES;
    c->offer.lanes = sms;
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    uint64_t bits = (uint64_t)c->x | (uint64_t)c->x_stride | (uint64_t)c->y | (uint64_t)c->y_stride | (uint64_t)(c->hidden * size);
    for (int b = 0; b < c->num_bias; b++)
        bits |= (uint64_t)c->bias[b] | (uint64_t)c->bias_stride[b];
    /* Pieces of a row are the units of work: a chunk is complete when all pieces of its pairs are. */
    c->piece = PIECE;
    c->pieces = (int)((c->hidden + c->piece - 1) / c->piece);
    if (c->xdtype == F64)
        return launch<any_sum<double>>(sms, h, c, stream);
    if (c->ydtype != c->xdtype || bits % 16)
        return launch<any_sum<float>>(sms, h, c, stream);
    return c->xdtype == F32    ? launch<vec_sum<F32>>(sms, h, c, stream)
           : c->xdtype == F16  ? launch<vec_sum<F16>>(sms, h, c, stream)
           : c->xdtype == BF16 ? launch<vec_sum<BF16>>(sms, h, c, stream)
                               : launch<any_sum<float>>(sms, h, c, stream);
}

template <class SUM> static cudaError_t load(void) {
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, expert_combine_kernel<SUM>);
}

cudaError_t mpix_cuda_expert_combine_load(void) {
    cudaError_t (*const all[])(void) = {load<any_sum<double>>, load<any_sum<float>>, load<vec_sum<F32>>, load<vec_sum<F16>>, load<vec_sum<BF16>>};
    for (auto one : all) {
        cudaError_t err = one();
        if (err != cudaSuccess)
            return err;
    }
    return cudaSuccess;
}
