/*
 * remote_expert_combine.cu - combine in the EXPERT layout where some peers are reached through the
 * proxy: one kernel. What is summed, and how, is expert_combine.cu's, so its bits are the same
 * whatever ranks are mapped; batches and words are remote.cuh's.
 *
 * Warps first write which rows of each token they want summed at proxied ranks (REMOTE_ASK: a
 * pair's rows, and the weights of its choices), then sum what proxied ranks ask for - a partial sum
 * per pair, with slot values beside it -, and then finish this rank's own tokens, in order. PUSHERS
 * of each block first push to mapped ranks, as there. A chunk of partial sums is put when its last
 * one has been made.
 *
 * Partial sums travel in one of two dtypes, which all offers together decide; batches of
 * both shapes are prepared, and both ends take the same. The room for what comes from a peer
 * holds all of a batch, so nobody waits for a place: ROWS grants it, for requests too
 * (forward.cuh has the argument).
 *
 * Progress. Requests are taken by tickets and wait for nobody but the offers, so they come; sums
 * for proxied ranks wait for requests alone. What remains is the argument of expert_combine.cu:
 * pushes to mapped ranks wait for chunks that have been used up below them, and those are used by
 * warps that finish once requests and sums for others are done, which wait for no push. The lead
 * passes on requests before it looks at sums.
 */
#include "expert/expert_sum.cuh"
#include "remote_expert.cuh"
#include "common/launch.h"

/* What this rank wants summed at proxied ranks. False: the context has failed. */
__device__ static bool pairs_ask(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                 uint64_t epoch) {
    int lane = threadIdx.x % 32;
    uint32_t *taken = &h.state->asked, ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    const bool remote = remote_is(h, lane);
    int64_t n = remote ? h.state->send[lane] : 0;
    bool fine = true;
    for (int64_t t; (t = __shfl_sync(~0u, ticket, 0)) < c.tokens;) {
        if (lane == 0)
            ticket = atomicAdd(taken, 1);
        bool goes = remote && (h.bitmap[t] >> lane & 1);
        uint32_t index = goes ? remote_index(h, t, lane) : 0;
        remote_record_pack(h, t, c.topk, c.choice_weights ? c.choice_weights + t * c.topk : nullptr,
                           goes ? h.remote.window + ask_pack(h, lane) + index * c.ask_batch.item
                                : nullptr);
        __syncwarp();
        if (goes && fine)
            fine = forward_item_count(h, c.ask_batch, REMOTE_ASK, lane, index, n, epoch, c.report);
        __syncwarp();
    }
    return __all_sync(~0u, fine);
}

/* What proxied ranks want summed here. False: the context has failed. */
template <class SUM>
__device__ static bool pairs_serve(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                   const common &g, const mpix_cuda_remote_batch &b,
                                   uint64_t epoch) {
    int lane = threadIdx.x % 32, width = h.state->width;
    int64_t rows = g.offers[h.rank].rows, pairs = remote_is(h, lane) ? h.state->recv[lane] : 0;
    bool fine = true;
    remote_unit u;
    while (fine && remote_unit_take(h, h.remote.is, b, pairs, &h.state->more[1], &u)) {
        if (!remote_chunks_wait(h, REMOTE_ASK, true, u.r,
                                remote_chunk_word(epoch, (u.end - 1) / c.ask_batch.per_chunk)))
            return false;
        bool choices = g.offers[u.r].flags & MPIX_EP_OFFER_CHOICES;
        for (int64_t i = u.first; i < u.end; i++) {
            remote_record p = remote_record_at(h, h.remote.window + ask_land(h, u.r) +
                                                      i * (int64_t)c.ask_batch.item);
            int32_t row = lane < width ? p.rows[lane] : -1;
            rows_of terms = rows_make(c, rows, row,
                                      choices && lane < width ? p.weights[lane] : 1.0f, choices);
            char *item = h.remote.window + remote_pack(h, u.r) + i * (int64_t)b.item;
            if (terms.mask) /* else all are dropped, and the owner takes nothing */
                SUM::push(c, g, terms, item, 0, c.hidden);
            if (c.slot_values && terms.x)
                ((float *)(item + b.record))[lane] = c.slot_values[row];
        }
        __syncwarp();
        if (lane == 0)
            fine = remote_chunk_count(h, b, REMOTE_COMBINE, u.r, u.chunk,
                                      (uint32_t)(u.end - u.first), u.n, epoch, c.report);
        fine = __shfl_sync(~0u, fine, 0);
    }
    return fine;
}

/* ---- finishing ------------------------------------------------------------------------------- */
/* As finish_sink, where partial sums lie anywhere. */
template <int X> struct remote_sink {
    enum { N = vec<X>::N };
    const mpix_cuda_combine &c;
    uint32_t ranks;
    int rank, other; /* other: the first other rank: its partial sum is asked for before the sums
                      * here are made */
    bool wide;
    const char *const *partial; /* [ranks], shared */
    int64_t token;
    struct asked {
        float f[N];
    };
    __device__ void ask(int64_t j, asked &a) const {
        if (other >= 0)
            partial_load<X>(wide, partial[other], j, a.f);
    }
    __device__ __forceinline__ static void add(float *total, const float *f, bool first) {
#pragma unroll
        for (int e = 0; e < N; e++)
            total[e] = first ? f[e] : __fadd_rn(total[e], f[e]);
    }
    __device__ void put(int64_t j, const asked &a, float *sum) const {
        float total[N], f[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            total[e] = 0;
        for (uint32_t m = ranks; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            bool first = m == ranks;
            if (r == rank) {
                add(total, sum, first);
            } else if (r == other) {
                add(total, a.f, first);
            } else {
                partial_load<X>(wide, partial[r], j, f);
                add(total, f, first);
            }
        }
        for (int b = 0; b < c.num_bias; b++) {
            vec<X>::up(*(const uint4 *)(c.bias[b] + token * c.bias_stride[b] + j * (16 / N)), f);
            add(total, f, false);
        }
        __stcs((uint4 *)(c.y + token * c.y_stride + j * (16 / N)), down_fast<X>(total));
    }
};

/* A piece of a token; partial: of lane r, rank r's sum. all: [ranks], shared, this warp's. */
template <typename T>
__device__ __forceinline__ void
piece_finish(any_sum<T>, const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g,
             const rows_of &terms, uint32_t ranks, const char *partial, const char **, int64_t t,
             int64_t off, int64_t n) {
    any_sum<T>::finish(h, c, g, terms, ranks, partial, t, off, n);
}
template <int X>
__device__ __forceinline__ void
piece_finish(vec_sum<X>, const mpix_cuda_handle &h, const mpix_cuda_combine &c, const common &g,
             const rows_of &terms, uint32_t ranks, const char *partial, const char **all, int64_t t,
             int64_t off, int64_t n) {
    __syncwarp();
    all[threadIdx.x % 32] = partial;
    __syncwarp();
    vec_sum<X>::columns(terms,
                        remote_sink<X>{c, ranks, h.rank, __ffs(ranks & ~(1u << h.rank)) - 1,
                                       g.wide != 0, all, t},
                        off, n);
}

/* The slot value of this lane's choice; partial: of the lane's rank. By a warp. */
__device__ static float value_of(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                 const common &g, const mpix_cuda_remote_batch &b, int64_t t,
                                 const token_part &p, const char *partial) {
    int lane = threadIdx.x % 32;
    const char *its = (const char *)__shfl_sync(~0u, (unsigned long long)partial,
                                                p.owner < 0 ? 0 : p.owner);
    if (p.owner < 0 || !remote_is(h, p.owner) || p.row >= g.offers[p.owner].rows)
        return slot_value(h, c, g, t, p.row, p.owner);
    return ((const volatile float *)(its + b.record))[lane];
}

/* This rank's tokens, in order. False: the context has failed. values: where slot values go, null:
 * not wanted. all: [ranks], shared, this warp's. */
template <class SUM>
__device__ static bool tokens_finish(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                     const common &g, const mpix_cuda_remote_batch &b,
                                     uint64_t epoch, float *values, const char **all) {
    const bool remote = remote_is(h, threadIdx.x % 32), ring = h.expert.chunks > g.slots;
    int lane = threadIdx.x % 32;
    int64_t units = c.tokens * c.pieces, mine = g.offers[h.rank].rows,
            theirs = lane < h.size ? g.offers[lane].rows : 0;
    const char *items = remote ? h.remote.window + remote_land(h, lane) : nullptr;
    uint32_t *taken = &h.state->more[0], ticket = lane == 0 ? atomicAdd(taken, 1) : 0;
    for (int64_t now; (now = __shfl_sync(~0u, ticket, 0)) < units;) {
        if (lane == 0)
            ticket = atomicAdd(taken, 1);
        int64_t t = now / c.pieces;
        int chunk = (int)(t / h.expert.chunk), piece = (int)(now % c.pieces);
        token_part p = token_ask(h, c, t);
        float choice = c.choice_weights && lane < c.topk ? c.choice_weights[t * c.topk + lane]
                                                         : 1.0f;
        rows_of terms = rows_make(c, mine, p.owner == h.rank ? p.row : -1, choice,
                                  c.choice_weights != nullptr);
        bool there = lane < h.size && p.first >= 0 && p.first < theirs;
        uint32_t index = there && remote ? remote_index(h, t, lane) : 0;
        if (!chunk_arrived(h, c, g, epoch, chunk, there && !remote) ||
            !remote_chunks_wait(h, REMOTE_COMBINE, there && remote, lane,
                                remote_chunk_word(epoch, index / b.per_chunk)))
            return false;
        const char *partial = !there || lane == h.rank ? nullptr
                              : remote                 ? items + index * b.item
                                                       : partial_at(h, g, h.rank, lane, t);
        uint32_t ranks = __ballot_sync(~0u, there);
        int64_t off = (int64_t)piece * c.piece,
                n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        piece_finish(SUM(), h, c, g, terms, ranks, partial, all, t, off, n);
        if (values && piece == 0) {
            float v = value_of(h, c, g, b, t, p, partial);
            if (lane < c.topk)
                values[t * c.topk + lane] = v;
        }
        if (ring)
            chunk_used(h, c, g, epoch, chunk, remote ? -1 : p.first);
    }
    return true;
}

/* ---- the kernel ------------------------------------------------------------------------------ */
/* This rank's weights of choices into the records of the pairs at mapped ranks. */
__device__ static void choices_give(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    uint64_t epoch) {
    uint32_t others = ~(h.remote.is | 1u << h.rank);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.tokens * c.topk;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = i / c.topk;
        for (uint32_t m = h.bitmap[t] & others; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            record_of(h, r, row_of(h, t, r)).returned[i % c.topk] = c.choice_weights[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < 32)
        remote_block_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
}

/* Waits for the weights of all mapped sources that send any. False in all threads: time-out. */
__device__ static bool choices_here(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    const common &g, uint64_t epoch) {
    int bad = 0;
    for (int s = threadIdx.x / 32; s < h.size; s += blockDim.x / 32)
        for (int i = threadIdx.x % 32;
             mapped_is(h, s) && s != h.rank && (g.offers[s].flags & MPIX_EP_OFFER_CHOICES) &&
             i < g.offers[s].blocks;
             i += 32)
            bad |= !word_wait(h, &words_of(h, h.rank, s)->read_done[i], epoch, s, c.report);
    return !__syncthreads_or(bad);
}

/* By the lead: passes on what comes. False: the context has failed. */
__device__ static bool combine_carry(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                     const mpix_cuda_remote_batch &b, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    int64_t recv = lane < h.size ? h.state->recv[lane] : 0,
            send = lane < h.size ? h.state->send[lane] : 0;
    return remote_chunks_carry(h, REMOTE_ASK, epoch, recv, c.ask_batch.per_chunk, nullptr,
                               c.report) &&
           remote_chunks_carry(h, REMOTE_COMBINE, epoch, send, b.per_chunk, c.wait_ns, c.report);
}

/* Where slot values go; null: not wanted, or a rank gives none: told, and the sums go on, for peers
 * wait for this rank's part. */
__device__ static float *values_find(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                     const common &g) {
    float *values = c.out_slots;
    for (int r = 0; r < h.size; r++)
        if (c.out_slots && g.offers[r].rows > 0 && !(g.offers[r].flags & MPIX_EP_OFFER_HAS_SLOTS)) {
            values = nullptr;
            if (threadIdx.x == 0)
                report(h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
        }
    return values;
}

template <class SUM>
__global__ void __launch_bounds__(THREADS)
    remote_expert_combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                                 const __grid_constant__ mpix_cuda_combine c) {
    __shared__ common g;
    __shared__ pair_order order;
    __shared__ const char *partials[THREADS / 32][MPIX_CUDA_RANKS];
    extern __shared__ __align__(128) char smem[]; /* the order */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool lead = blockIdx.x == 0 && warp == 0;
    const uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t rows = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk),
        bad = __any_sync(~0u, call_refused(h, c.report)) ? 2 : 0;
    if (lead && c.part != MPIX_CUDA_END && !bad &&
        !remote_offers_send(h, rows_offer_of(h, c, rows, fault), h.offered,
                            offsetof(mpix_cuda_words, rows_offered), epoch, c.report))
        bad = 2;
    /* begun: peers may ask and push; all else is the second half's */
    if (c.part == MPIX_CUDA_BEGIN || __syncthreads_or(bad == 2))
        return;
    if (c.choice_weights && !c.offer.status && !fault)
        choices_give(h, c, epoch);
    if (warp == 0) {
        mpix_cuda_offer o = {};
        if (lead && !remote_offers_carry(h, h.offered, offsetof(mpix_cuda_words, rows_offered),
                                         epoch, c.report))
            bad = 2;
        if (!bad)
            bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch,
                              lead ? c.wait_ns : nullptr, c.report, &o);
        g.offers[lane] = o;
        __syncwarp();
        if (lane == 0) {
            g.bad = bad;
            form_choose(h, c, g);
        }
    }
    __syncthreads();
    if (g.bad == 2)
        return;
    bool fine = true;
    if (g.bad == 0) {
        const mpix_cuda_remote_batch &b = g.wide ? c.forward_batch : c.batch;
        float *values = values_find(h, c, g);
        if (!choices_here(h, c, g, epoch))
            return;
        order_fill(h, order, smem); /* of mapped sources: proxied ones write no starts here */
        if (lead) {
            fine = combine_carry(h, c, b, epoch);
        } else {
            if (warp < PUSHERS)
                fine = push_all<SUM>(h, c, g, order, epoch);
            fine = fine && pairs_ask(h, c, epoch) && pairs_serve<SUM>(h, c, g, b, epoch) &&
                   tokens_finish<SUM>(h, c, g, b, epoch, values, partials[warp]);
        }
    }
    if (__syncthreads_or(!fine))
        return;
    if (last_block(h, MPIX_CUDA_COMBINE) && threadIdx.x == 0) {
        h.state->asked = 0;
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */
template <class SUM>
static cudaError_t launch(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c,
                          cudaStream_t stream) {
    remote_expert_combine_kernel<SUM><<<sms, THREADS, order_bytes(h), stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_remote_expert_combine_launch(const mpix_cuda_device *d,
                                                   const mpix_cuda_handle *h, mpix_cuda_combine *c,
                                                   cudaStream_t stream) {
    int sms = c->num_sms > 0 ? c->num_sms : mpix_cuda_half(d, MPIX_CUDA_REMOTE_EXPERT_SMS),
        small = c->xdtype == BF16 || c->xdtype == F16;
    int64_t values = 4 * (int64_t)h->max_topk, wide = c->xdtype == F64 ? 8 : 4;
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms;
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    c->piece = PIECE;
    c->pieces = (int)((c->hidden + c->piece - 1) / c->piece);
    /* the two forms of partial sums (form_choose) */
    c->batch = remote_batch_of(h, c->hidden * (small ? 2 : wide), 0, values);
    c->forward_batch = remote_batch_of(h, c->hidden * wide, 0, values);
    c->ask_batch = remote_items_of(h, h->remote.ask);
    return sum_choose(c, [&](auto sum) { return launch<decltype(sum)>(sms, h, c, stream); });
}

cudaError_t mpix_cuda_remote_expert_combine_load(int *arch) {
    return sum_each([=](auto sum) {
        return mpix_cuda_load(arch, remote_expert_combine_kernel<decltype(sum)>);
    });
}
