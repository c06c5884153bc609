/*
 * copy_engine_kernels.cuh - what stands before, between and behind the copies: kernels that count,
 * pack, tell and wait. The protocol is in copy_engine.cu, which launches them.
 */
#ifndef MPIX_KERNELS_CUDA_COPY_ENGINE_KERNELS_CUH
#define MPIX_KERNELS_CUDA_COPY_ENGINE_KERNELS_CUH
#include "common/copy.cuh"
#include "copy_engine.cuh"
#include "common/launch.h"

/* Of h.copy_engine.signals: values of words; PUSHED + i: with i + 1 pieces. DONE + i: what is
 * packed of piece i, zero between calls. */
enum { SIGNAL_PULLED, SIGNAL_PUSHED, SIGNAL_DONE = 16 };
/* Of h.copy_engine.host; CUTS: [size][PIECES + 1] rows from each source before a piece. */
enum { HOST_ROUTED, HOST_WIDTH, HOST_TOTAL, HOST_CUTS };
enum { CHUNK = 4096 }; /* bytes of a row that a warp packs at a time */

/* Pieces that are moved one by one, in sixteenths of the tokens. What comes before the first copy
 * of dispatch and after the last of combine hides behind nothing, so those are small; more pieces
 * cost more than they hide. */
enum { DPIECES = 4, CPIECES = 3, PACK_BLOCKS = 64 };

/* ---- counts ---------------------------------------------------------------------------------- */

/* After route: how many rows of each piece come from whom, told to the host. One block. */
__global__ void cuts_kernel(const __grid_constant__ mpix_cuda_handle h,
                            const __grid_constant__ mpix_cuda_route c) {
    if (block_refused(h, c.report))
        return;
    const mpix_cuda_state *st = h.state;
    const int cuts = MPIX_CUDA_PIECES + 1;
    uint64_t epoch = st->epoch[MPIX_CUDA_ROUTE];
    for (int i = threadIdx.x; i < h.size * cuts; i += blockDim.x) {
        int r = i / cuts, k = i % cuts;
        int64_t first = piece_token(c.tokens, k);
        uint32_t rows = !st->routed        ? 0
                        : first < c.tokens ? h.blk[first / MPIX_CUDA_BLOCK_TOKENS * h.size + r]
                                           : st->send[r];
        ((uint32_t *)(block_of(h, r, h.rank) + h.copy_engine.cuts))[(epoch & 1) * cuts + k] = rows;
    }
    __syncthreads();
    int bad = 0;
    if ((int)threadIdx.x < h.size) {
        word_store(&copy_engine_words(h, threadIdx.x, h.rank)->cuts, epoch);
        delay(h, 3);
        bad = !word_wait(h, &copy_engine_words(h, h.rank, threadIdx.x)->cuts, epoch, threadIdx.x,
                         c.report);
    }
    bad = __syncthreads_or(bad);
    for (int i = threadIdx.x; i < h.size * cuts && !bad; i += blockDim.x)
        h.copy_engine.host[HOST_CUTS + i] =
            ((const volatile uint32_t *)(block_of(h, h.rank, i / cuts) +
                                         h.copy_engine.cuts))[(epoch & 1) * cuts + i % cuts];
    if (threadIdx.x == 0) {
        h.copy_engine.host[HOST_WIDTH] = st->width;
        h.copy_engine.host[HOST_TOTAL] = st->recv_total;
        h.copy_engine.host[HOST_ROUTED] = !bad && st->routed;
    }
}

/* ---- dispatch -------------------------------------------------------------------------------- */

struct pack_plan {
    int64_t first[DPIECES + 1];
};

/* All peers have packed a piece, or some rank failed its part. One warp. */
__global__ void packed_wait_kernel(const __grid_constant__ mpix_cuda_handle h,
                                   const __grid_constant__ mpix_cuda_dispatch c, int piece) {
    int peer = threadIdx.x;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1, start = now_ns();
    /* here, since the copy that takes it waits for this kernel, not for the one that packs */
    if (peer == 0)
        h.copy_engine.signals[SIGNAL_PULLED] = epoch;
    if (call_refused(h, c.report) || own_status(h, c) || peer >= h.size || peer == h.rank)
        return;
    if (word_wait(h, &words_of(h, h.rank, peer)->ready, epoch, peer, c.report) &&
        *(const volatile int32_t *)&offer_of(h, h.rank, peer, h.ready, epoch)->status == 0)
        word_wait(h, &copy_engine_words(h, h.rank, peer)->packed[piece], epoch, peer, c.report);
    if (c.wait_ns)
        c.wait_ns[peer] += (int64_t)(now_ns() - start);
}

/* So many rows of a piece are packed by this warp; who counts the last tells the peers. */
__device__ static void piece_count(const mpix_cuda_handle &h, uint64_t epoch, int piece, int64_t n,
                                   int64_t all) {
    int lane = threadIdx.x % 32;
    unsigned long long before = 0;
    __syncwarp();
    if (lane == 0 && n > 0) {
        __threadfence();
        before = atomicAdd((unsigned long long *)&h.copy_engine.signals[SIGNAL_DONE + piece],
                           (unsigned long long)n) +
                 n;
        __threadfence();
    }
    if ((int64_t)__shfl_sync(~0u, before, 0) != all || n == 0)
        return;
    __syncwarp();
    if (lane == 0)
        h.copy_engine.signals[SIGNAL_DONE + piece] = 0;
    if (lane < h.size && lane != h.rank) {
        delay(h, 52 + lane);
        word_store(&copy_engine_words(h, lane, h.rank)->packed[piece], epoch);
    }
}

/* The first warp sends READY, which carries what ranks compare; all pack, in the order of the
 * tokens. Half a multiprocessor's registers stay free for the warp that waits. */
__global__ void __launch_bounds__(512, 2) pack_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                      const __grid_constant__ mpix_cuda_dispatch c,
                                                      const __grid_constant__ pack_plan plan) {
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c), lane = threadIdx.x % 32, warp = threadIdx.x / 32, fine = 1;
    bool peer = lane < h.size && lane != h.rank;
    if (block_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && warp == 0) {
        mpix_cuda_offer mine = c.offer;
        mine.status = status;
        offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
        if (lane == 0) {
            if (!c.offer.status && status == MPIX_KIND_ARG)
                report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
            else if (!c.offer.status && status == MPIX_KIND_TRUNCATE)
                report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
        }
        if (status && peer) /* fetches nothing */
            word_store(&copy_engine_words(h, lane, h.rank)->pulled, epoch);
        for (int k = 0; k < DPIECES && !status && peer; k++)
            if (plan.first[k] == plan.first[k + 1]) /* nobody packs it */
                word_store(&copy_engine_words(h, lane, h.rank)->packed[k], epoch);
    }
    if (status)
        return;
    delay(h, 4);
    if (peer) /* has fetched the last batch, and pushes no more */
        fine = word_wait(h, &copy_engine_words(h, h.rank, lane)->pulled, epoch - 1, lane,
                         c.report) &&
               (word_load(&copy_engine_words(h, h.rank, lane)->pushed) >=
                    pieces_word(h.state->epoch[MPIX_CUDA_COMBINE], CPIECES) ||
                word_wait(h, &words_of(h, h.rank, lane)->ready, epoch, lane, c.report));
    if (!__all_sync(~0u, fine))
        return;
    int chunks = (int)((c.row + CHUNK - 1) / CHUNK), piece = 0;
    int64_t base = lane == h.rank ? h.state->base[lane] : 0;
    char *rows = nullptr, *scales = nullptr, *records = nullptr;
    int64_t stride = c.row, scale_stride = c.scale_row, most = INT64_MAX, done = 0;
    if (peer) {
        staged s = staged_of(h.state->send[lane], c.row, c.scale_row);
        rows = place_of(h, h.rank, lane);
        scales = rows + s.scales;
        records = rows + s.records;
    } else if (lane == h.rank) {
        rows = c.out;
        scales = c.out_scales;
        records = h.window[lane] + h.records;
        stride = (int64_t)c.offer.at[MPIX_EP_PLACE_X].stride;
        scale_stride = (int64_t)c.offer.at[MPIX_EP_PLACE_SCALES].stride;
        most = c.offer.rows;
    }
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32),
            mine = (int64_t)warp * gridDim.x + blockIdx.x;
    for (int64_t i = mine; i < c.tokens * chunks; i += warps) {
        int64_t t = i / chunks, off = i % chunks * CHUNK,
                n = c.row - off < CHUNK ? c.row - off : CHUNK;
        while (t >= plan.first[piece + 1]) {
            piece_count(h, epoch, piece, done,
                        (plan.first[piece + 1] - plan.first[piece]) * chunks);
            done = 0;
            piece++;
        }
        int64_t row = -1;
        if (lane < h.size && (h.bitmap[t] >> lane & 1))
            row = base + h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + lane] +
                  h.rel[t * h.size + lane];
        if (row >= most)
            row = -1;
        warp_copy_any(c.x + t * c.x_stride + off, row >= 0 ? rows + row * stride + off : nullptr, n,
                      lane);
        done++;
        if (off > 0)
            continue;
        if (c.scale_row > 0)
            warp_copy_any(c.scales + t * c.scale_stride,
                          row >= 0 ? scales + row * scale_stride : nullptr, c.scale_row, lane);
        record_pack(h, c, t, row >= 0 ? records + row * h.record_bytes : nullptr, lane);
    }
    piece_count(h, epoch, piece, done, (plan.first[piece + 1] - plan.first[piece]) * chunks);
}

/* All is here, or some rank failed its part. One warp. */
__global__ void pull_end_kernel(const __grid_constant__ mpix_cuda_handle h,
                                const __grid_constant__ mpix_cuda_dispatch c) {
    mpix_cuda_offer o;
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr, c.report,
                    &o) == 2)
        return;
    __syncwarp();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* ---- combine --------------------------------------------------------------------------------- */

/* The owner no longer packs at the place that this rank pushes to; false: time-out. */
__device__ static bool packed_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  uint64_t epoch, int owner) {
    bool all = true;
    for (int k = 0; k < DPIECES; k++)
        all = word_load(&copy_engine_words(h, h.rank, owner)->packed[k]) >=
                  h.state->epoch[MPIX_CUDA_DISPATCH] &&
              all;
    return all || word_wait(h, &words_of(h, h.rank, owner)->rows_offered, epoch, owner, c.report);
}

/* Before anything is pushed: ROWS, which carries what ranks compare, and the owners have done with
 * the places. One warp. */
__global__ void push_gate_kernel(const __grid_constant__ mpix_cuda_handle h,
                                 const __grid_constant__ mpix_cuda_combine c) {
    int lane = threadIdx.x, fault = routing_fault(h, c.tokens, c.topk);
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    bool refused = __any_sync(~0u, call_refused(h, c.report));
    if (lane < CPIECES)
        h.copy_engine.signals[SIGNAL_PUSHED + lane] = pieces_word(epoch, lane + 1);
    if (!refused) {
        rows_offer_send(h, c, h.state->recv_total, fault, epoch);
        delay(h, 4);
    }
    bool late =
        lane < h.size && lane != h.rank &&
        (refused ||
         !word_wait(h, &copy_engine_words(h, h.rank, lane)->summed, epoch - 1, lane, c.report) ||
         !packed_all(h, c, epoch, lane));
    if (__any_sync(~0u, late) && lane < h.size)
        word_store(&copy_engine_words(h, lane, h.rank)->revoked, epoch);
}

/* So many pieces are here from all peers, or some rank failed its part. One warp. */
__global__ void pushed_wait_kernel(const __grid_constant__ mpix_cuda_handle h,
                                   const __grid_constant__ mpix_cuda_combine c, int pieces) {
    int lane = threadIdx.x, status = 0, fine = 1;
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1, start = now_ns();
    if (lane < h.size &&
        (fine = word_wait(h, &words_of(h, h.rank, lane)->rows_offered, epoch, lane, c.report)))
        status = *(const volatile int32_t *)&offer_of(h, h.rank, lane, h.offered, epoch)->status;
    if (__any_sync(~0u, status || !fine))
        return;
    if (lane < h.size && lane != h.rank) {
        word_wait(h, &copy_engine_words(h, h.rank, lane)->pushed, pieces_word(epoch, pieces), lane,
                  c.report);
        if (c.wait_ns)
            c.wait_ns[lane] += (int64_t)(now_ns() - start);
    }
}
#endif
