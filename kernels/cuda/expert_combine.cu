/*
 * expert_combine.cu - combine in the EXPERT layout: each rank sums a token's rows that lie with it, the token's rank adds those sums. One kernel.
 *
 * Half of each block's warps push: they sum the rows of a pair and store the partial sum in the window of the token's rank, in the
 * order of chunks (tokens of the source, then sources). The other half finish: they take this rank's tokens in order, wait for the chunk
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
#include "elem.cuh"
#include "expert.cuh"
#include "launch.h"

/* What all warps of a block need. */
struct common {
    mpix_cuda_offer offers[MPIX_CUDA_RANKS];
    int wide, pdtype, slots, bad; /* partial sums: wider than x; their dtype; chunks that the room holds */
    int64_t prow;                 /* bytes from partial sum to partial sum */
};

__device__ __forceinline__ uint64_t mark(uint64_t epoch, int chunk) { return epoch << 24 | (uint32_t)(chunk + 1); }
__device__ __forceinline__ uint64_t *word_at(const mpix_cuda_handle &h, int owner, int source, uint64_t at, int slot) {
    return (uint64_t *)(block_of(h, owner, source) + at) + slot;
}
/* The partial sum of `source` for token t of `owner`. */
__device__ __forceinline__ char *partial_at(const mpix_cuda_handle &h, const common &g, int owner, int source, int64_t t) {
    int64_t chunk = t / h.expert.chunk, place = chunk % g.slots * h.expert.chunk + t % h.expert.chunk;
    return h.window[owner] + h.expert.partial + (source < owner ? source : source - 1) * (int64_t)h.expert.partial_bytes + place * g.prow;
}
__device__ __forceinline__ float *slots_at(const mpix_cuda_handle &h, int owner, int64_t t) {
    return (float *)(h.window[owner] + h.expert.values) + t * h.max_topk;
}

/* The rows of a token at one rank: lane k knows choice k. has: factors that apply. */
struct rows_of { const char *x, *scales; float w[2]; uint32_t mask; bool has[2]; };

__device__ static rows_of rows_make(const mpix_cuda_combine &c, int64_t rows, int32_t row, float choice, bool choices) {
    rows_of t = {nullptr, nullptr, {1.0f, 1.0f}, 0, {c.row_weights != nullptr, choices}};
    bool there = row >= 0 && row < rows;
    if (there) {
        t.x = c.x + row * c.x_stride;
        t.scales = c.scales ? c.scales + row * c.scale_stride : nullptr;
        if (c.row_weights)
            t.w[0] = c.row_weights[row];
        t.w[1] = choice;
    }
    t.mask = __ballot_sync(~0u, there);
    return t;
}

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
template <int X> struct vec_sum {
    enum { N = vec<X>::N, U = 2, B = 4, STEP = 32 * N };
    /* The sums of U vectors of each lane, at columns j and j + STEP below `end`. */
    __device__ static void group(const rows_of &t, int64_t j, int64_t end, float (&sum)[U][N]) {
        bool first = true;
        for (uint32_t m = t.mask; m;) {
            int n = __popc(m) < B ? __popc(m) : B;
            uint4 v[B][U];
            float w0[B], w1[B];
#pragma unroll
            for (int i = 0; i < B; i++) {
                if (i >= n)
                    break;
                int k = __ffs(m) - 1;
                m &= m - 1;
                const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)t.x, k);
                w0[i] = t.has[0] ? __shfl_sync(~0u, t.w[0], k) : 1.0f;
                w1[i] = t.has[1] ? __shfl_sync(~0u, t.w[1], k) : 1.0f;
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (j + u * STEP < end)
                        v[i][u] = __ldcs((const uint4 *)(x + (j + u * STEP) * (16 / N)));
            }
#pragma unroll
            for (int i = 0; i < B; i++) {
                if (i >= n)
                    break;
#pragma unroll
                for (int u = 0; u < U; u++) {
                    float f[N];
                    vec<X>::up(v[i][u], f);
                    if (t.has[0])
#pragma unroll
                        for (int e = 0; e < N; e++)
                            f[e] = __fmul_rn(f[e], w0[i]);
                    if (t.has[1])
#pragma unroll
                        for (int e = 0; e < N; e++)
                            f[e] = __fmul_rn(f[e], w1[i]);
#pragma unroll
                    for (int e = 0; e < N; e++)
                        sum[u][e] = first ? f[e] : __fadd_rn(sum[u][e], f[e]);
                }
                first = false;
            }
        }
    }
    __device__ static void push(const mpix_cuda_combine &c, const common &g, const rows_of &t, char *to, int64_t off, int64_t n) {
#pragma unroll 1
        for (int64_t j0 = off; j0 < off + n; j0 += U * STEP) {
            int64_t j = j0 + threadIdx.x % 32 * N;
            float sum[U][N];
            group(t, j, off + n, sum);
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (j + u * STEP >= off + n)
                    break;
                if (!g.wide) {
                    *(uint4 *)(to + (j + u * STEP) * (16 / N)) = down_fast<X>(sum[u]);
                    continue;
                }
#pragma unroll
                for (int e = 0; e < N; e += 4)
                    *(uint4 *)(to + (j + u * STEP + e) * 4) = vec<F32>::down(sum[u] + e);
            }
        }
    }
    __device__ static void finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, const rows_of &t, uint32_t ranks, const char *partial, int64_t token,
                                  int64_t off, int64_t n) {
#pragma unroll 1
        for (int64_t j0 = off; j0 < off + n; j0 += U * STEP) {
            int64_t j = j0 + threadIdx.x % 32 * N, end = off + n;
            float sum[U][N];
            bool first = true;
#pragma unroll
            for (int u = 0; u < U; u++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    sum[u][e] = 0;
            for (uint32_t m = ranks; m; m &= m - 1) {
                int r = __ffs(m) - 1;
                const char *p = (const char *)__shfl_sync(~0u, (unsigned long long)partial, r);
                float f[U][N];
                if (r == h.rank) {
                    group(t, j, end, f);
                } else {
#pragma unroll
                    for (int u = 0; u < U; u++) {
                        if (j + u * STEP >= end)
                            break;
                        if (!g.wide) {
                            vec<X>::up(*(const uint4 *)(p + (j + u * STEP) * (16 / N)), f[u]);
                            continue;
                        }
#pragma unroll
                        for (int e = 0; e < N; e += 4)
                            vec<F32>::up(*(const uint4 *)(p + (j + u * STEP + e) * 4), f[u] + e);
                    }
                }
#pragma unroll
                for (int u = 0; u < U; u++)
#pragma unroll
                    for (int e = 0; e < N; e++)
                        sum[u][e] = first ? f[u][e] : __fadd_rn(sum[u][e], f[u][e]);
                first = false;
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (j + u * STEP >= end)
                    break;
                for (int b = 0; b < c.num_bias; b++) {
                    float f[N];
                    vec<X>::up(*(const uint4 *)(c.bias[b] + token * c.bias_stride[b] + (j + u * STEP) * (16 / N)), f);
#pragma unroll
                    for (int e = 0; e < N; e++)
                        sum[u][e] = __fadd_rn(sum[u][e], f[e]);
                }
                __stcs((uint4 *)(c.y + token * c.y_stride + (j + u * STEP) * (16 / N)), down_fast<X>(sum[u]));
            }
        }
    }
};

/* ---- pushing ---- */
/* What is known of a pair: where it is in the order, lane k its choice's row and weight. */
struct pair_part { pair_place at; int32_t row, token; float choice; };
__device__ __forceinline__ pair_part pair_ask(const mpix_cuda_handle &h, const common &g, const pair_order &order, int width, uint32_t i) {
    int lane = threadIdx.x % 32;
    pair_part p = {order_find(h, order, i), -1, 0, 1.0f};
    pair_record rec = record_of(h, h.rank, p.at.pair);
    p.token = *rec.token;
    if (lane < width) {
        p.row = rec.rows[lane];
        if (g.offers[p.at.source].flags & MPIX_CUDA_OFFER_CHOICES)
            p.choice = *(const volatile float *)&rec.returned[lane];
    }
    return p;
}

/* False: time-out. */
template <class SUM> __device__ __noinline__ static bool push_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, const pair_order &order, uint64_t epoch) {
    const mpix_cuda_expert &x = h.expert;
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
        int s = p.at.source, chunk = p.at.chunk, slot = chunk % g.slots, piece = (int)(now % c.pieces);
        rows_of terms = rows_make(c, rows, p.row, p.choice, g.offers[s].flags & MPIX_CUDA_OFFER_CHOICES);
        if (chunk >= g.slots) {
            delay(h, 80);
            bool fine = lane != 0 || word_wait(h, word_at(h, h.rank, s, x.freed, slot), mark(epoch, chunk - g.slots), s, c.report);
            if (!__all_sync(~0u, fine))
                return false;
        }
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = pair_ask(h, g, order, width, next / c.pieces);
        int64_t off = (int64_t)piece * c.piece, n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        if (terms.mask)
            SUM::push(c, g, terms, partial_at(h, g, s, h.rank, p.token), off, n);
        if (piece == 0 && c.slot_values && terms.x)
            slots_at(h, s, p.token)[lane] = c.slot_values[p.row];
        __syncwarp();
        if (lane == 0) {
            delay(h, 81);
            __threadfence_system();
            uint32_t *count = &x.pushed[s * x.chunks + chunk];
            if (atomicAdd(count, 1) == p.at.in_chunk * c.pieces - 1) {
                *count = 0;
                __threadfence();
                word_store(word_at(h, s, h.rank, x.arrived, slot), mark(epoch, chunk));
            }
        }
        __syncwarp();
    }
}

/* ---- finishing ---- */
/* What lanes know of a token: lane k its choice's row and owner, lane r its lowest row there. */
struct token_part { int32_t row, owner, first; };
__device__ __forceinline__ token_part token_ask(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int64_t t) {
    token_part p = {-1, -1, -1};
    int lane = threadIdx.x % 32;
    if (lane < c.topk) {
        int32_t id = h.ids[t * h.max_topk + lane];
        p.row = h.expert.row[t * h.max_topk + lane];
        p.owner = id >= 0 ? h.owner[id] : -1;
    }
    if (lane < h.size)
        p.first = h.expert.first[t * h.size + lane];
    return p;
}

/* Pairs of this rank's tokens with rank r in a chunk. */
__device__ static uint32_t sent_in_chunk(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int chunk, int r) {
    int64_t t = (int64_t)chunk * h.expert.chunk, end = t + h.expert.chunk;
    return (end < c.tokens ? h.blk[end / MPIX_CUDA_BLOCK_TOKENS * h.size + r] : h.state->send[r]) - h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r];
}

/* One more piece of a token has been read: tell the ranks whose chunk is used up. */
__device__ static void chunk_used(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, uint64_t epoch, int chunk, int32_t first) {
    int lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < h.size && lane != h.rank && first >= 0) {
        delay(h, 82);
        __threadfence();
        uint32_t *count = &h.expert.used[lane * h.expert.chunks + chunk];
        if (atomicAdd(count, 1) == sent_in_chunk(h, c, chunk, lane) * c.pieces - 1) {
            *count = 0;
            __threadfence();
            word_store(word_at(h, lane, h.rank, h.expert.freed, chunk % g.slots), mark(epoch, chunk));
        }
    }
    __syncwarp();
}

/* False: time-out. values: where slot values go, null: not wanted. */
template <class SUM> __device__ __noinline__ static bool finish_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g, uint64_t epoch, float *values) {
    const mpix_cuda_expert &x = h.expert;
    int lane = threadIdx.x % 32;
    uint32_t units = (uint32_t)(c.tokens * c.pieces), *taken = &h.state->more[0], unit = 0;
    bool ring = x.chunks > g.slots;
    int64_t mine = g.offers[h.rank].rows, theirs = lane < h.size ? g.offers[lane].rows : 0;
    token_part then = {-1, -1, -1};
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
        bool there = lane < h.size && p.first >= 0 && p.first < theirs, fine = true;
        if (there && lane != h.rank)
            fine = word_wait(h, word_at(h, h.rank, lane, x.arrived, chunk % g.slots), mark(epoch, chunk), lane, c.report);
        if (!__all_sync(~0u, fine))
            return false;
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = token_ask(h, c, next / c.pieces);
        uint32_t ranks = __ballot_sync(~0u, there);
        const char *partial = there && lane != h.rank ? partial_at(h, g, h.rank, lane, t) : nullptr;
        int64_t off = (int64_t)piece * c.piece, n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        SUM::finish(h, c, g, terms, ranks, partial, t, off, n);
        if (values && piece == 0 && lane < c.topk) {
            float v = 0;
            if (p.owner == h.rank && terms.x)
                v = c.slot_values[p.row];
            else if (p.owner >= 0 && p.owner != h.rank && p.row < g.offers[p.owner].rows)
                v = *(const volatile float *)(slots_at(h, h.rank, t) + lane);
            values[t * c.topk + lane] = v;
        }
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
__global__ void __launch_bounds__(512) expert_combine_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c) {
    __shared__ common g;
    __shared__ pair_order order;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t rows = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk);
    if (call_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && threadIdx.x < 32 && c.part != MPIX_CUDA_END) {
        mpix_cuda_offer mine = c.offer;
        if (!mine.status && fault) {
            mine.status = 1;
            if (threadIdx.x == 0)
                report(h, fault, 0, -1, h.state->tokens, c.tokens);
        } else if (!mine.status && mine.rows < rows && !h.drop) {
            mine.status = 2;
            if (threadIdx.x == 0)
                report(h, MPIX_CUDA_CAPACITY, 0, -1, rows, mine.rows);
        }
        if (mine.rows > rows)
            mine.rows = rows;
        offer_send(h, mine, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch);
    }
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
        order_fill(h, order);
        if (threadIdx.x / 32 < blockDim.x / 64)
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
    expert_combine_kernel<SUM><<<sms, 512, 0, stream>>>(*h, *c);
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
    c->piece = 3584;
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

cudaError_t mpix_cuda_expert_combine_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, expert_combine_kernel<any_sum<double>>);
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, expert_combine_kernel<any_sum<float>>) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, expert_combine_kernel<vec_sum<F32>>) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, expert_combine_kernel<vec_sum<F16>>) : err;
    return err == cudaSuccess ? cudaFuncGetAttributes(&a, expert_combine_kernel<vec_sum<BF16>>) : err;
}
