/*
 * ring.cuh - rows from one place to several, by a warp: through a ring of shared memory with bulk
 * copies (sm_90), or with vector accesses.
 *
 * What is copied is told by a feed: `part ask(item)`, what a lane knows of an item (loads that may
 * be on their way while others are copied); `const char *source(part)`, by the whole warp; `char
 * *place(part)`, where this lane wants the row, or null.
 */
#ifndef MPIX_KERNELS_CUDA_RING_CUH
#define MPIX_KERNELS_CUDA_RING_CUH
#include "copy.cuh"
#include "device.cuh"

/* How the work is dealt out: each warp's first two items by its number, the others as
 * warps get to them. */
struct deal {
    uint32_t items, first, step, *taken;
};

/* Rows of bytes `row`, cut into pieces. */
struct cut {
    int64_t row;
    int piece, pieces;
};

template <class F> __device__ static void vector_copy(F &f, const deal &d, const cut &k) {
    int lane = threadIdx.x % 32;
    for (int64_t i = d.first; i < (int64_t)d.items * k.pieces; i += d.step) {
        typename F::part p = f.ask((uint32_t)(i / k.pieces));
        int64_t off = i % k.pieces * k.piece, n = k.row - off < k.piece ? k.row - off : k.piece;
        const char *src = f.source(p);
        char *dst = f.place(p);
        if (!__any_sync(~0u, dst != nullptr)) /* then src may be nowhere */
            continue;
        warp_copy_any(src + off, dst ? dst + off : nullptr, n, lane);
    }
}

/* Shared memory of a stage: its bytes, the places, a barrier, the size. */
__host__ __device__ static inline size_t ring_stage_bytes(int piece) {
    return (size_t)piece + 32 * sizeof(char *) + 8 + 8;
}

#if __CUDA_ARCH__ >= 900
/* A warp's ring. Only the lane that wrote a place reads it. */
struct ring {
    char *bytes;     /* [stages][piece] */
    char **places;   /* [stages][32] */
    uint64_t *bars;  /* [stages] */
    uint32_t *sizes; /* [stages] */
    int stages, pending, at;
    uint32_t parity;
};

/* By each warp w of `warps`. */
__device__ static ring ring_make(char *smem, int w, int warps, int stages, int pending, int piece) {
    ring g;
    int lane = threadIdx.x % 32, all = warps * stages;
    g.bytes = smem + (size_t)w * stages * piece;
    g.places = (char **)(smem + (size_t)all * piece) + (size_t)w * stages * 32;
    g.bars = (uint64_t *)((char **)(smem + (size_t)all * piece) + (size_t)all * 32) + w * stages;
    g.sizes =
        (uint32_t *)((uint64_t *)((char **)(smem + (size_t)all * piece) + (size_t)all * 32) + all) +
        w * stages;
    g.stages = stages;
    g.pending = pending;
    g.at = 0;
    g.parity = 0;
    if (lane < stages)
        bar_init(&g.bars[lane], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    __syncwarp();
    return g;
}

/* Returns when the stores have read the ring; bulk_wait says when they are complete. */
template <class F> __device__ static void ring_copy(ring &g, F &f, const deal &d, const cut &k) {
    int lane = threadIdx.x % 32, S = g.stages, limit = S - g.pending, ahead = 0, piece = 0,
        ls = g.at, ss = g.at;
    uint32_t item = d.first, after = d.first + d.step, ticket = 0;
    typename F::part now = f.none(), then = f.none();
    if (item < d.items)
        now = f.ask(item);
    if (after < d.items)
        then = f.ask(after);
    if (lane == 0 && item < d.items)
        ticket = atomicAdd(d.taken, 1);
    while (item < d.items || ahead > 0) {
        while (item < d.items && ahead < limit) {
            char *dst = f.place(now);
            const char *src = f.source(now);
            bool any = __any_sync(~0u, dst != nullptr);
            if (any) {
                int off = piece * k.piece, n = k.row - off < k.piece ? (int)(k.row - off) : k.piece;
                pending_wait<4>(g.pending);
                g.places[ls * 32 + lane] = dst ? dst + off : nullptr;
                __syncwarp(); /* all lanes' stores have read the stage */
                if (lane == 0) {
                    g.sizes[ls] = n;
                    bar_expect(&g.bars[ls], n);
                    bulk_load(g.bytes + (size_t)ls * k.piece, src + off, n, &g.bars[ls]);
                }
                ahead++;
                ls = ls + 1 == S ? 0 : ls + 1;
            }
            if (!any || ++piece == k.pieces) {
                piece = 0;
                item = after;
                now = then;
                after = 2 * d.step + __shfl_sync(~0u, ticket, 0);
                if (after < d.items) {
                    if (lane == 0)
                        ticket = atomicAdd(d.taken, 1);
                    then = f.ask(after);
                }
            }
        }
        if (ahead > 0) {
            bar_wait(&g.bars[ss], g.parity >> ss & 1);
            g.parity ^= 1u << ss;
            __syncwarp();
            char *dst = g.places[ss * 32 + lane];
            if (dst)
                bulk_store(dst, g.bytes + (size_t)ss * k.piece, g.sizes[ss]);
            bulk_commit();
            ahead--;
            ss = ss + 1 == S ? 0 : ss + 1;
        }
    }
    bulk_wait_read<0>();
    __syncwarp();
    g.at = ls;
}
#endif
#endif
