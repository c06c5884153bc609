/*
 * ll_sum.cuh - low-latency combine: sums of listed rows, 16 bytes at a time, rows, wire and output
 * of one dtype and without scales.
 *
 * A block has up to LL_ROUND lists of rows at a time. Their pieces (LL_PIECE bytes of all rows
 * of a list) are dealt out to the warps in turn, so that all have as much to do whatever the
 * numbers of blocks and lists. A warp asks for DEEP rows' pieces before it needs the first,
 * across the ends of lists.
 */
#ifndef MPIX_KERNELS_CUDA_LL_SUM_CUH
#define MPIX_KERNELS_CUDA_LL_SUM_CUH
#include "common/elem.cuh"
#include "ll_room.cuh"

/* Sums to be sent, and this rank's own parts. */
struct lists {
    int count[LL_ROUND];
    int32_t row[LL_ROUND][32]; /* of in.x, in the order of the choices */
    char *to[LL_ROUND];
};
/* Sums of a rank's tokens: of answers by rank, of biases. */
struct finals {
    int count[LL_ROUND];
    const char *at[LL_ROUND][MPIX_CUDA_RANKS + 2];
};
#define FINAL_NONE ((const char *)0) /* zeros: of a token that is nowhere */
#define FINAL_OWN ((const char *)1)  /* what the warp holds */

/* ---- where a warp is ------------------------------------------------------------------------- */
/* lists: of which pieces are left, a bit each; col: the piece; held: the number of the warp's
 * piece, those without rows too; n: row of the list. */
struct cursor {
    uint32_t lists;
    int col, held, n;
};
__device__ __forceinline__ int cursor_list(const cursor &c) { return __ffs(c.lists) - 1; }
__device__ __forceinline__ void cursor_settle(cursor &c, const int *count, int cols) {
    while (c.lists) {
        if (c.col >= cols) {
            c.col -= cols;
            c.lists &= c.lists - 1;
        } else if (count[cursor_list(c)] == 0) {
            c.col += LL_WARPS;
            c.held++;
        } else {
            return;
        }
    }
}
__device__ __forceinline__ cursor cursor_first(uint32_t lists, const int *count, int cols) {
    cursor c = {lists, (int)(threadIdx.x / 32), 0, 0};
    cursor_settle(c, count, cols);
    return c;
}
__device__ __forceinline__ void cursor_next(cursor &c, const int *count, int cols, int rows) {
    if (++c.n < rows)
        return;
    c.n = 0;
    c.col += LL_WARPS;
    c.held++;
    cursor_settle(c, count, cols);
}

template <int X> struct columns { float f[ROOM_VECTORS][vec<X>::N]; };
/* Adds a row; first: there was none before. */
template <int X, bool weighted>
__device__ __forceinline__ void columns_add(columns<X> &sum, const uint4 (&v)[ROOM_VECTORS],
                                            float w, bool first) {
    if (first) { /* no selections, element by element */
#pragma unroll
        for (int u = 0; u < ROOM_VECTORS; u++) {
            vec<X>::up(v[u], sum.f[u]);
#pragma unroll
            for (int k = 0; weighted && k < vec<X>::N; k++)
                sum.f[u][k] = __fmul_rn(sum.f[u][k], w);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < ROOM_VECTORS; u++) {
        float f[vec<X>::N];
        vec<X>::up(v[u], f);
#pragma unroll
        for (int k = 0; k < vec<X>::N; k++)
            sum.f[u][k] = __fadd_rn(sum.f[u][k], weighted ? __fmul_rn(f[k], w) : f[k]);
    }
}

/* ---- parts: sums of this rank's rows, rounded; one row without a factor is copied ------------ */
struct parts {
    const char *x;
    const float *weights;
    int64_t stride, bytes;
    int cols;
};

template <bool weighted>
__device__ __forceinline__ void part_ask(const parts &p, const lists *l, cursor &c, uint32_t slot) {
    if (c.lists) {
        int j = cursor_list(c);
        int64_t row = l->row[j][c.n], at = (int64_t)c.col * LL_PIECE + threadIdx.x % 32 * 16;
        const char *x = p.x + row * p.stride + at;
#pragma unroll
        for (int u = 0; u < ROOM_VECTORS; u++)
            if (at + u * 512 < p.bytes)
                room_ask(slot + u * 512, x + u * 512);
        if (weighted) /* a lane's own, behind the piece */
            room_ask_word(slot + LL_PIECE - threadIdx.x % 32 * 12, p.weights + row);
        cursor_next(c, l->count, p.cols, l->count[j]);
    }
    room_asked();
}
/* hold: where the sums are kept, or 0: they go to their places. */
template <int X, bool weighted>
__device__ __forceinline__ void parts_run(const parts &p, const lists *l, uint32_t which,
                                          uint32_t room, uint32_t hold) {
    cursor sums = cursor_first(which, l->count, p.cols), asks = sums;
    columns<X> sum = {};
    uint32_t end = room + DEEP * SLOT, slot = room;
#pragma unroll 1
    for (int d = 0; d < DEEP; d++)
        part_ask<weighted>(p, l, asks, room + d * SLOT);
#pragma unroll 1
    while (sums.lists) {
        int j = cursor_list(sums), rows = l->count[j];
        uint4 v[ROOM_VECTORS];
        room_wait<DEEP - 1>();
#pragma unroll
        for (int u = 0; u < ROOM_VECTORS; u++)
            v[u] = room_load(slot + u * 512);
        float w = weighted ? room_load_word(slot + LL_PIECE - threadIdx.x % 32 * 12) : 1.0f;
        columns_add<X, weighted>(sum, v, w, sums.n == 0);
        if (sums.n == rows - 1) {
            int64_t at = (int64_t)sums.col * LL_PIECE + threadIdx.x % 32 * 16;
#pragma unroll
            for (int u = 0; u < ROOM_VECTORS; u++) {
                uint4 y = rows == 1 && !weighted ? v[u] : down_fast<X>(sum.f[u]);
                if (hold)
                    room_store(hold + sums.held * LL_PIECE + u * 512, y);
                else if (at + u * 512 < p.bytes)
                    *(uint4 *)(l->to[j] + at + u * 512) = y;
            }
        }
        cursor_next(sums, l->count, p.cols, rows);
        part_ask<weighted>(p, l, asks, slot);
        slot = slot + SLOT == end ? room : slot + SLOT;
    }
    room_wait<0>();
}
template <int X>
__device__ static __noinline__ void parts_sum(parts p, const lists *l, uint32_t which,
                                              uint32_t room, uint32_t hold) {
    if (p.weights)
        parts_run<X, true>(p, l, which, room, hold);
    else
        parts_run<X, false>(p, l, which, room, hold);
}

/* ---- the rank's tokens ----------------------------------------------------------------------- */
/* y: of list 0; stride: between lists */
struct outputs {
    char *y;
    int64_t stride, bytes;
    int cols;
};

__device__ __forceinline__ void final_ask(const outputs &o, const finals *f, cursor &c,
                                          uint32_t slot, uint32_t hold) {
    if (c.lists) {
        int j = cursor_list(c);
        const char *x = f->at[j][c.n];
        int64_t at = (int64_t)c.col * LL_PIECE + threadIdx.x % 32 * 16;
#pragma unroll
        for (int u = 0; u < ROOM_VECTORS; u++) {
            if (x == FINAL_OWN)
                room_store(slot + u * 512, room_load(hold + c.held * LL_PIECE + u * 512));
            else if (x == FINAL_NONE)
                room_store(slot + u * 512, make_uint4(0, 0, 0, 0));
            else if (at + u * 512 < o.bytes)
                room_ask(slot + u * 512, x + at + u * 512);
        }
        cursor_next(c, f->count, o.cols, f->count[j]);
    }
    room_asked();
}
/* Of the first n lists. */
template <int X>
__device__ static __noinline__ void finals_sum(outputs o, const finals *f, int n, uint32_t room,
                                               uint32_t hold) {
    cursor sums = cursor_first((1u << n) - 1, f->count, o.cols), asks = sums;
    columns<X> sum = {};
    uint32_t end = room + DEEP * SLOT, slot = room;
#pragma unroll 1
    for (int d = 0; d < DEEP; d++)
        final_ask(o, f, asks, room + d * SLOT, hold);
#pragma unroll 1
    while (sums.lists) {
        int j = cursor_list(sums), rows = f->count[j];
        uint4 v[ROOM_VECTORS];
        room_wait<DEEP - 1>();
#pragma unroll
        for (int u = 0; u < ROOM_VECTORS; u++)
            v[u] = room_load(slot + u * 512);
        columns_add<X, false>(sum, v, 1.0f, sums.n == 0);
        if (sums.n == rows - 1) {
            int64_t at = (int64_t)sums.col * LL_PIECE + threadIdx.x % 32 * 16;
#pragma unroll
            for (int u = 0; u < ROOM_VECTORS; u++)
                if (at + u * 512 < o.bytes)
                    *(uint4 *)(o.y + j * o.stride + at + u * 512) = down_fast<X>(sum.f[u]);
        }
        cursor_next(sums, f->count, o.cols, rows);
        final_ask(o, f, asks, slot, hold);
        slot = slot + SLOT == end ? room : slot + SLOT;
    }
    room_wait<0>();
}
#endif
