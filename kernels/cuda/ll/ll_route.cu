/*
 * ll_route.cu - routing of a low-latency batch on the device: one block, which keeps in shared
 * memory what the blocks of route.cu tell each other.
 *
 * A thread has a choice, not a token: its id is loaded at once, and its rank looked up in a table
 * in shared memory, so the call is two loads deep. Counts are of bits: of each rank and, in EXPERT,
 * of each expert a map of the tokens that go there. What is written is what route.cu writes, which
 * serves batches that are larger than fits here.
 */
#include "ll_route.cuh"
#include "common/launch.h"

enum {
    ROUTE_THREADS = 1024,
    ROUTE_WARPS = ROUTE_THREADS / 32,
    ROUTE_CHOICES = 4 * ROUTE_THREADS,
    ROUTE_TOKENS = 1024,
    ROUTE_EXPERTS = 1024,
    ROUTE_MAPS = 32768, /* bytes of the experts' maps */
    BLOCK_WORDS = MPIX_CUDA_BLOCK_TOKENS / 32
};

/* Words of a map; from one expert's map to the next one's, an odd number, so that they begin in
 * different banks. */
__host__ __device__ __forceinline__ int map_words(int64_t tokens) {
    return (int)((tokens + 31) / 32);
}
__host__ __device__ __forceinline__ int map_pitch(int64_t tokens) { return map_words(tokens) | 1; }

/* Bits of the words [from, to). */
__device__ __forceinline__ uint32_t bits_of(const uint32_t *map, int stride, int from, int to) {
    uint32_t n = 0;
    for (int w = from; w < to; w++)
        n += __popc(map[w * stride]);
    return n;
}
/* Tokens of the map before t in t's block of MPIX_CUDA_BLOCK_TOKENS. */
__device__ __forceinline__ uint32_t before_in_block(const uint32_t *map, int stride, int t) {
    int w = t / 32;
    return bits_of(map, stride, w / BLOCK_WORDS * BLOCK_WORDS, w) +
           __popc(map[w * stride] & ((1u << t % 32) - 1));
}

/* An expert that the choice's token has already, in a choice before it. */
__device__ static void twice_check(const mpix_cuda_handle &h, const mpix_cuda_route &c, int choice,
                                   int64_t id) {
    int t = choice / c.topk, k = choice - t * c.topk;
    const char *at = (const char *)c.ids + t * c.stride;
    for (int j = 0; j < k; j++)
        if ((c.bits == 64 ? ((const int64_t *)at)[j] : ((const int32_t *)at)[j]) == id)
            report(h, MPIX_CUDA_TWICE, 0, -1, t, id);
}

/* EXPERT, by all threads, where a token has an expert twice: the choices have one row
 * and count once. */
__device__ __noinline__ static void count_again(const mpix_cuda_handle &h, const uint32_t *maps,
                                                uint32_t *chosen, const uint8_t *owner, int words) {
    for (int e = threadIdx.x; e < h.experts; e += ROUTE_THREADS)
        chosen[e] = bits_of(&maps[e * (words | 1)], 1, 0, words);
    __syncthreads();
    if ((int)threadIdx.x / 32 < h.size)
        ll_sends_count(
            h, threadIdx.x / 32, [&](int e) { return (int)owner[e]; },
            [&](int e) { return chosen[e]; });
}

/* EACH: choices of a thread at most, so that the usual batch has little code to fetch. */
template <int EACH, bool EXPERT>
__global__ void __launch_bounds__(ROUTE_THREADS)
    ll_route_kernel(const __grid_constant__ mpix_cuda_handle h,
                    const __grid_constant__ mpix_cuda_route c) {
    extern __shared__ uint32_t maps[]; /* EXPERT: [experts], of map_pitch words each */
    /* ranks: of a token; goes: a map for each rank */
    __shared__ uint32_t ranks[ROUTE_TOKENS], goes[ROUTE_TOKENS / 32][MPIX_CUDA_RANKS],
        chosen[ROUTE_EXPERTS];
    __shared__ uint8_t owner[ROUTE_EXPERTS];
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, n = (int)c.tokens,
        words = map_words(n), pitch = map_pitch(n), choices = n * c.topk;
    grid_wait();
    grid_next();
    int64_t id[EACH];
    int token[EACH], k[EACH], failed = context_failed(h), err = 0, twice = 0;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_ROUTE] + 1;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = i * ROUTE_THREADS + tid;
        token[i] = k[i] = 0, id[i] = -1;
        if (j < choices) {
            token[i] = j / c.topk, k[i] = j - token[i] * c.topk;
            const char *at = (const char *)c.ids + token[i] * c.stride;
            id[i] = c.bits == 64 ? ((const int64_t *)at)[k[i]] : ((const int32_t *)at)[k[i]];
        }
    }
    for (int e = tid; e < h.experts; e += ROUTE_THREADS) {
        owner[e] = (uint8_t)h.owner[e];
        chosen[e] = 0;
    }
    for (int t = tid; t < words * 32; t += ROUTE_THREADS)
        ranks[t] = 0;
    for (int i = tid; EXPERT && i < h.experts * pitch; i += ROUTE_THREADS)
        maps[i] = 0;
    if (__syncthreads_or(call_refused(h, c.report, failed)))
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * ROUTE_THREADS + tid >= choices)
            continue;
        /* never an index, whether the caller wants to hear of it or not */
        if (id[i] < -1 || id[i] >= h.experts) {
            if (h.check)
                report(h, MPIX_CUDA_BAD_ID, 0, -1, token[i], id[i]);
            id[i] = -1;
        }
        h.ids[token[i] * h.max_topk + k[i]] = (int32_t)id[i];
        if (id[i] < 0)
            continue;
        atomicOr(&ranks[token[i]], 1u << owner[id[i]]);
        atomicAdd(&chosen[id[i]], 1u);
        if (EXPERT)
            atomicOr(&maps[id[i] * pitch + token[i] / 32], 1u << token[i] % 32);
    }
    for (int i = 0; h.check && i < EACH; i++)
        if (id[i] >= 0)
            twice_check(h, c, i * ROUTE_THREADS + tid, id[i]);
    __syncthreads();
    if (tid == 0)
        err = *(volatile int32_t *)&h.state->err; /* all reports have been made */
    if (warp < words) {
        int t = warp * 32 + lane;
        uint32_t map = ranks[t], mine = 0;
        for (int r = 0; r < h.size; r++) {
            uint32_t mask = __ballot_sync(~0u, map >> r & 1);
            mine = lane == r ? mask : mine;
            if (c.token_in_rank && t < n)
                c.token_in_rank[t * h.size + r] = map >> r & 1;
        }
        goes[warp][lane] = mine;
        if (t < n)
            h.bitmap[t] = map;
    }
    if (ROUTE_WARPS - 1 - warp < h.size)
        ll_sends_count(
            h, ROUTE_WARPS - 1 - warp, [&](int e) { return (int)owner[e]; },
            [&](int e) { return chosen[e]; });
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (EXPERT && id[i] >= 0)
            h.expert.rel[token[i] * h.max_topk + k[i]] =
                (uint8_t)before_in_block(&maps[id[i] * pitch], 1, token[i]);
    for (int e = tid; e < h.experts; e += ROUTE_THREADS) {
        uint32_t sum = 0;
        for (int b = 0; EXPERT && b * BLOCK_WORDS < words; b++) {
            h.expert.blk[(size_t)b * h.experts + e] = sum;
            sum += bits_of(&maps[e * pitch], 1, b * BLOCK_WORDS, min((b + 1) * BLOCK_WORDS, words));
        }
        uint32_t rows = EXPERT ? sum : chosen[e];
        twice |= rows != chosen[e];
        if (c.send_per_expert)
            c.send_per_expert[e] = rows;
        if (c.counts)
            h.results[2 + 2 * h.size + h.local_experts + e] = rows;
    }
    if (__syncthreads_or(twice))
        count_again(h, maps, chosen, owner, words);
    for (int i = tid; i < n * h.size; i += ROUTE_THREADS) {
        int t = i / h.size;
        h.rel[i] = before_in_block(&goes[0][i - t * h.size], MPIX_CUDA_RANKS, t);
    }
    for (int i = tid; i < (words + BLOCK_WORDS - 1) / BLOCK_WORDS * h.size; i += ROUTE_THREADS)
        h.blk[i] = bits_of(&goes[0][i % h.size], MPIX_CUDA_RANKS, 0, i / h.size * BLOCK_WORDS);
    if (warp)
        return;
    ll_routed(h, c, lane < h.size ? bits_of(&goes[0][lane], MPIX_CUDA_RANKS, 0, words) : 0, err);
    if (tid == 0)
        call_end(h, MPIX_CUDA_ROUTE, epoch, c.report, err);
}

static size_t maps_bytes(const mpix_cuda_handle *h, const mpix_cuda_route *c) {
    return h->ll.expert ? (size_t)h->experts * (size_t)map_pitch(c->tokens) * sizeof(uint32_t) : 0;
}

int mpix_cuda_ll_route_fits(const mpix_cuda_handle *h, const mpix_cuda_route *c) {
    return c->tokens <= ROUTE_TOKENS && h->experts <= ROUTE_EXPERTS &&
           (c->topk == 0 || c->tokens <= ROUTE_CHOICES / c->topk) &&
           maps_bytes(h, c) <= ROUTE_MAPS && !c->send_per_host;
}

typedef void (*route_form)(mpix_cuda_handle, mpix_cuda_route);
static const route_form forms[2][2] = {/* [EXPERT][more choices than threads] */
                                       {ll_route_kernel<1, false>,
                                        ll_route_kernel<ROUTE_CHOICES / ROUTE_THREADS, false>},
                                       {ll_route_kernel<1, true>,
                                        ll_route_kernel<ROUTE_CHOICES / ROUTE_THREADS, true>}};

cudaError_t mpix_cuda_ll_route_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                      const mpix_cuda_route *c, cudaStream_t stream) {
    route_form form = forms[h->ll.expert != 0][c->tokens * c->topk > ROUTE_THREADS];
    return mpix_cuda_launch_early(d, form, 1, ROUTE_THREADS, maps_bytes(h, c), stream, *h, *c);
}

cudaError_t mpix_cuda_ll_route_load(int *arch) {
    return mpix_cuda_load(arch, forms[0][0], forms[0][1], forms[1][0], forms[1][1]);
}
