/* expert_combine.cuh - combine in the EXPERT layout: what its ways of summing share; the protocol
 * is described in expert_combine.cu. */
#ifndef MPIX_KERNELS_CUDA_EXPERT_COMBINE_CUH
#define MPIX_KERNELS_CUDA_EXPERT_COMBINE_CUH
#include "common/elem.cuh"
#include "expert.cuh"

/* What all warps of a block need. */
struct common {
    mpix_cuda_offer offers[MPIX_CUDA_RANKS];
    int wide, pdtype, slots, bad; /* partial sums: wider than x; their dtype; chunks that
                                   * the room holds */
    int64_t prow;                 /* bytes from partial sum to partial sum */
};

__device__ __forceinline__ uint64_t mark(uint64_t epoch, int chunk) {
    return epoch << 24 | (uint32_t)(chunk + 1);
}
__device__ __forceinline__ uint64_t *word_at(const mpix_cuda_handle &h, int owner, int source,
                                             uint64_t at, int slot) {
    return (uint64_t *)(block_of(h, owner, source) + at) + slot;
}
/* The partial sum of `source` for token t of `owner`. */
__device__ __forceinline__ char *partial_at(const mpix_cuda_handle &h, const common &g, int owner,
                                            int source, int64_t t) {
    int64_t chunk = t / h.expert.chunk,
            place = chunk % g.slots * h.expert.chunk + t % h.expert.chunk;
    return h.window[owner] + h.expert.partial +
           (source < owner ? source : source - 1) * (int64_t)h.expert.partial_bytes +
           place * g.prow;
}
__device__ __forceinline__ float *slots_at(const mpix_cuda_handle &h, int owner, int64_t t) {
    return (float *)(h.window[owner] + h.expert.values) + t * h.max_topk;
}

/* The rows of a token at one rank: lane k knows choice k. has: factors that apply. */
struct rows_of {
    const char *x, *scales;
    float w[2];
    uint32_t mask;
    bool has[2];
};

__device__ static rows_of rows_make(const mpix_cuda_combine &c, int64_t rows, int32_t row,
                                    float choice, bool choices) {
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

/* A partial sum of N columns at column j. */
template <int X>
__device__ __forceinline__ void partial_store(bool wide, char *to, int64_t j, const float *f) {
    enum { N = vec<X>::N };
    if (!wide) {
        *(uint4 *)(to + j * (16 / N)) = down_fast<X>(f);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e += 4)
        *(uint4 *)(to + (j + e) * 4) = vec<F32>::down(f + e);
}
template <int X>
__device__ __forceinline__ void partial_load(bool wide, const char *p, int64_t j, float *f) {
    enum { N = vec<X>::N };
    if (!wide) {
        vec<X>::up(*(const uint4 *)(p + j * (16 / N)), f);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e += 4)
        vec<F32>::up(*(const uint4 *)(p + (j + e) * 4), f + e);
}

/* What is known of a pair: where it is in the order, lane k its choice's row and weight. */
struct pair_part {
    pair_place at;
    int32_t row, token;
    float choice;
};
__device__ __forceinline__ pair_part pair_ask(const mpix_cuda_handle &h, const common &g,
                                              const pair_order &order, int width, uint32_t i) {
    int lane = threadIdx.x % 32;
    pair_part p = {order_find(h, order, i), -1, 0, 1.0f};
    expert_record rec = record_of(h, h.rank, p.at.pair);
    p.token = *rec.token;
    if (lane < width) {
        p.row = rec.rows[lane];
        if (g.offers[p.at.source].flags & MPIX_EP_OFFER_CHOICES)
            p.choice = *(const volatile float *)&rec.returned[lane];
    }
    return p;
}

/* One more piece of a pair has been pushed, by all lanes: the one that completes the chunk says so.
 * pieces: of a row. */
__device__ static void chunk_pushed(const mpix_cuda_handle &h, const common &g, uint64_t epoch,
                                    int source, int chunk, uint32_t in_chunk, int pieces) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        delay(h, 81);
        __threadfence();
        uint32_t *count = &h.expert.pushed[source * h.expert.chunks + chunk];
        if (atomicAdd(count, 1) == in_chunk * pieces - 1) {
            *count = 0;
            __threadfence();
            word_store(word_at(h, source, h.rank, h.expert.arrived, chunk % g.slots),
                       mark(epoch, chunk));
        }
    }
    __syncwarp();
}

/* Waits until the place of a chunk at its rank is free; by all lanes. False: time-out. What lies
 * there is the last chunk below it, of those that share the place, in which `source` has tokens for
 * this rank: nothing was pushed of the others, and nobody says that they are used up. */
__device__ static bool chunk_free(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const common &g, uint64_t epoch, int source, int chunk) {
    if (chunk < g.slots)
        return true;
    delay(h, 80);
    bool fine = true;
    if (threadIdx.x % 32 == 0) {
        const volatile uint32_t *starts = starts_of(h, h.rank, source);
        int before = chunk - g.slots;
        while (before >= 0 && starts[before + 1] == starts[before])
            before -= g.slots;
        fine = before < 0 ||
               word_wait(h, word_at(h, h.rank, source, h.expert.freed, chunk % g.slots),
                         mark(epoch, before), source, c.report);
    }
    return __all_sync(~0u, fine);
}

/* What lanes know of a token: lane k its choice's row and owner, lane r its lowest row there. */
struct token_part {
    int32_t row, owner, first;
    float choice;
};
__device__ __forceinline__ token_part token_ask(const mpix_cuda_handle &h,
                                                const mpix_cuda_combine &c, int64_t t) {
    token_part p = {-1, -1, -1, 1.0f};
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
__device__ static uint32_t sent_in_chunk(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                         int chunk, int r) {
    int64_t t = (int64_t)chunk * h.expert.chunk, end = t + h.expert.chunk;
    return (end < c.tokens ? h.blk[end / MPIX_CUDA_BLOCK_TOKENS * h.size + r] : h.state->send[r]) -
           h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r];
}

/* One more piece of a token has been read: tell the ranks whose chunk is used up. */
__device__ static void chunk_used(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const common &g, uint64_t epoch, int chunk, int32_t first) {
    int lane = threadIdx.x % 32;
    __syncwarp();
    if (lane < h.size && lane != h.rank && first >= 0) {
        delay(h, 82);
        __threadfence();
        uint32_t *count = &h.expert.used[lane * h.expert.chunks + chunk];
        if (atomicAdd(count, 1) == sent_in_chunk(h, c, chunk, lane) * c.pieces - 1) {
            *count = 0;
            __threadfence();
            word_store(word_at(h, lane, h.rank, h.expert.freed, chunk % g.slots),
                       mark(epoch, chunk));
        }
    }
    __syncwarp();
}

/* Waits for the partial sums of a token; lane r, `there`: of rank r, if that is not this one.
 * False: time-out. */
__device__ static bool chunk_arrived(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                     const common &g, uint64_t epoch, int chunk, bool there) {
    int lane = threadIdx.x % 32;
    bool fine = !there || lane == h.rank ||
                word_wait(h, word_at(h, h.rank, lane, h.expert.arrived, chunk % g.slots),
                          mark(epoch, chunk), lane, c.report);
    return __all_sync(~0u, fine);
}

/* The slot value of this lane's choice, for the token's owner. */
__device__ static float slot_value(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                   const common &g, int64_t t, int32_t row, int32_t owner) {
    if (owner < 0 || row >= g.offers[owner].rows)
        return 0;
    return owner == h.rank ? c.slot_values[row]
                           : *(const volatile float *)(slots_at(h, h.rank, t) + threadIdx.x % 32);
}
#endif
