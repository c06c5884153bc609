/*
 * remote.cuh - peers that are reached through the proxy: what the kernels of route, dispatch and
 * combine share. The kernels are in remote_dispatch.cu and remote_combine.cu; the host's part in
 * coll/gpu/remote.c.
 *
 * Ways. This rank's kernel writes what goes to a proxied peer into its window in host memory and
 * queues commands (mpix_device.cuh): a put, and behind it a word. The proxy's thread moves them;
 * nothing else of any host takes part. What peers send arrives in the same window, words last.
 * Nobody polls host memory but one warp, the lead - the first of the first block -, which passes on
 * to GPU memory what has come: an offer is copied into the block of this rank's GPU window where a
 * mapped source would have written it, so that everything that waits for offers is the mapped
 * kernels' code; and of the chunks of a batch it says how many are here. (All warps polling for
 * themselves would keep the words' cache lines from the processor, and the link busy.)
 *
 * With several proxy threads a peer is reached by several ways, each a queue with an order of its
 * own. A put and its word go one way, chunks by turns, offers and counts by the first: nothing here
 * depends on the order of two puts, for each has its word.
 *
 * A batch is what one source sends one peer in a call: an item per row, numbered as the rows are at
 * the receiver, cut into chunks of per_chunk items. An item is the row, its scales, and what goes
 * beside it. Chunks are put when their last row has been packed, in whatever order that is, each
 * with a word of its own, which becomes the epoch.
 *
 * Right to write. One place for each source serves dispatch and combine. A source puts into it only
 * after it has seen this rank's READY (dispatch) or ROWS (combine) of the call. Those are sent in
 * stream order after everything that read the place in earlier calls of the handle, and the lead is
 * done only when all that it expects is here, so nothing of an earlier call is still on its way. A
 * handle's offers and counts alternate between two banks, of which the argument is the mapped one's
 * (dispatch.cu, route.cu). This rank's own packing room and mirror are free when the proxy has
 * completed all that the handle queued before; the lead sees to that before it tells anybody
 * anything, and nobody packs before all offers are here.
 *
 * Order. Rows are stored by a warp's lanes; after a __syncwarp the lane that counts for the peer
 * fences and adds to the chunk's count; who reaches its size fences, fences for the system, and
 * stores the command. So all of the chunk's stores come before the command for who acquires
 * that: the proxy. It stores (or the network writes) the word after the data; the lead acquires
 * it at system scope and releases `here`; who waits for a chunk acquires that, at the scope of
 * the GPU, and reads.
 *
 * Progress. Work is taken by tickets, and nothing waits for arrivals before all tickets of packing
 * are taken, but the lead, which is one warp of a block that has more. So whatever blocks run, each
 * rank's chunks are packed and queued, and each lead passes on what comes. The proxy depends on no
 * kernel: it puts what is queued. All waits are bounded, and end when the proxy has lost the peer.
 *
 * Two hops: forward.cuh.
 */
#ifndef MPIX_KERNELS_CUDA_REMOTE_CUH
#define MPIX_KERNELS_CUDA_REMOTE_CUH
#define MPIX_DEVICE_ONLY
#include "common/device.cuh"
#include "mpix_device.cuh"

enum {
    REMOTE_DISPATCH,
    REMOTE_COMBINE,
    REMOTE_ASK
};                          /* words of chunks; ASK: of two hops
                             * (forward.cuh) */
enum { REMOTE_UNITS = 16 }; /* pieces of a chunk that warps take */
enum {
    REMOTE_STEP = 2 * MPIX_CUDA_REMOTE_CHUNKS
}; /* `here` is epoch * REMOTE_STEP + chunks: it only grows,
    * for each type of call */

__device__ __forceinline__ bool remote_is(const mpix_cuda_handle &h, int r) {
    return r < h.size && (h.remote.is >> r & 1);
}
__device__ __forceinline__ bool mapped_is(const mpix_cuda_handle &h, int r) {
    return r < h.size && !(h.remote.is >> r & 1);
}
/* The block that r writes here; the mirror of the one that this rank writes at r. */
__device__ __forceinline__ char *remote_in(const mpix_cuda_handle &h, int r) {
    return h.remote.window + h.remote.block * r;
}
__device__ __forceinline__ uint64_t remote_out(const mpix_cuda_handle &h, int r) {
    return h.remote.out + h.remote.block * r;
}
/* Offsets in this rank's window: what comes from r, what is packed for r; in r's: what comes
 * from this rank. */
__device__ __forceinline__ uint64_t remote_land(const mpix_cuda_handle &h, int r) {
    return h.remote.land + h.remote.room * h.remote.room_index[r];
}
__device__ __forceinline__ uint64_t remote_pack(const mpix_cuda_handle &h, int r) {
    return h.remote.pack + h.remote.room * h.remote.room_index[r];
}
__device__ __forceinline__ uint64_t remote_there(const mpix_cuda_handle &h, int r) {
    return h.remote.land + h.remote.room * h.remote.there[r];
}
/* The same of requests. */
__device__ __forceinline__ uint64_t ask_land(const mpix_cuda_handle &h, int r) {
    return remote_land(h, r) + h.remote.asks;
}
__device__ __forceinline__ uint64_t ask_pack(const mpix_cuda_handle &h, int r) {
    return remote_pack(h, r) + h.remote.asks;
}
__device__ __forceinline__ uint64_t ask_there(const mpix_cuda_handle &h, int r) {
    return remote_there(h, r) + h.remote.asks;
}

/* The wait for r is over without success. */
__device__ inline void remote_give_up(const mpix_cuda_handle &h, int r, mpix_cuda_status *to) {
    int32_t lost = (int32_t)mpix_dev_relaxed(h.remote.queue->peers[r].error);
    status_write(h, to,
                 {lost ? (int32_t)MPIX_CUDA_LOST : (int32_t)MPIX_CUDA_TIMEOUT, 0, r, 0, lost, 0});
    *(volatile int32_t *)h.failed = 1;
}

/* Whether a wait for r that began at start must end. */
__device__ inline bool remote_late(const mpix_cuda_handle &h, int r, uint64_t start) {
    return mpix_dev_relaxed(h.remote.queue->peers[r].error) || now_ns() - start > h.timeout_ns ||
           *(volatile int32_t *)h.failed;
}

/* Waits for a word in host memory that r or the proxy writes; bounded. False: the
 * context has failed. */
__device__ inline bool remote_word_wait(const mpix_cuda_handle &h, const uint64_t *p,
                                        uint64_t value, int r, mpix_cuda_status *to) {
    uint64_t start = now_ns();
    for (uint32_t turn = 1; word_load(p) < value; turn++)
        if (turn % 16 == 0 && remote_late(h, r, start)) {
            remote_give_up(h, r, to);
            return false;
        }
    return true;
}

/* All that this handle has queued for r is complete, by whatever way. */
__device__ inline bool remote_settled(const mpix_cuda_handle &h, int r, mpix_cuda_status *to) {
    const mpix_dev_state &s = *h.remote.queue;
    bool fine = true;
    for (int rail = 0; rail < s.ways && fine; rail++) {
        int i = rail * s.size + r;
        fine = h.remote.last[i] == 0 ||
               remote_word_wait(h, (const uint64_t *)s.peers[i].done, h.remote.last[i], r, to);
    }
    return fine;
}

/* Queues a put of bytes (a multiple of 16) from an offset here to one at r, and the word behind
 * it, by one of the rails there. By one thread; covers what it and those that it synchronised
 * with have stored. */
__device__ inline bool remote_post(const mpix_cuda_handle &h, int r, uint64_t from, uint64_t at,
                                   uint64_t bytes, uint64_t word, uint64_t value,
                                   mpix_cuda_status *to, int rail = 0) {
    const mpix_dev_state &s = *h.remote.queue;
    const int i = rail * s.size + r;
    const mpix_dev_fifo &f = s.fifo[s.peers[i].fifo];
    const mpix_dev_put_cmd put(h.remote.rwin + r, at, h.remote.lwin, from, bytes);
    unsigned long long number;
    if (!mpix_dev_claim(f, 2, h.timeout_ns, &number)) {
        remote_give_up(h, r, to);
        return false;
    }
    mpix_dev_fence_sys();
    mpix_dev_store(f, number, put.word0, put.word1);
    mpix_dev_store(f, number + 1,
                   (unsigned long long)MPIX_DEV_CMD_WORD |
                       (unsigned long long)(h.remote.rwin + r) << 3 | word / 8 << 19,
                   value);
    atomicMax((unsigned long long *)&h.remote.last[i], number + 2);
    mpix_dev_note(s.peers[i], number + 2);
    mpix_dev_refresh(f, number, 2);
    return true;
}

/* The word alone. */
__device__ inline bool remote_word_post(const mpix_cuda_handle &h, int r, uint64_t word,
                                        uint64_t value, mpix_cuda_status *to) {
    const mpix_dev_peer &p = h.remote.queue->peers[r];
    const mpix_dev_fifo &f = h.remote.queue->fifo[p.fifo];
    unsigned long long number;
    if (!mpix_dev_claim(f, 1, h.timeout_ns, &number)) {
        remote_give_up(h, r, to);
        return false;
    }
    mpix_dev_fence_sys();
    mpix_dev_store(f, number,
                   (unsigned long long)MPIX_DEV_CMD_WORD |
                       (unsigned long long)(h.remote.rwin + r) << 3 | word / 8 << 19,
                   value);
    atomicMax((unsigned long long *)&h.remote.last[r], number + 1);
    mpix_dev_note(p, number + 1);
    mpix_dev_refresh(f, number, 1);
    return true;
}

/* A part of this rank's block at r, from the mirror, and the word that tells of it. */
__device__ inline bool remote_publish(const mpix_cuda_handle &h, int r, uint64_t at, uint64_t bytes,
                                      uint64_t word, uint64_t epoch, mpix_cuda_status *to) {
    return remote_post(h, r, remote_out(h, r) + at, h.remote.block * h.rank + at, bytes,
                       h.remote.block * h.rank + word, epoch, to);
}

/* By the lead: this rank's offer to everybody, when what the handle queued before is complete. */
__device__ inline bool remote_offers_send(const mpix_cuda_handle &h, const mpix_cuda_offer &offer,
                                          uint64_t at, int word, uint64_t epoch,
                                          mpix_cuda_status *to) {
    int lane = threadIdx.x % 32;
    bool fine = !remote_is(h, lane) || remote_settled(h, lane, to);
    if (!__all_sync(~0u, fine))
        return false;
    if (lane < h.size)
        delay(h, 2 + lane);
    if (remote_is(h, lane)) {
        uint64_t bank = at + (epoch & 1) * sizeof offer;
        *(mpix_cuda_offer *)(h.remote.window + remote_out(h, lane) + bank) = offer;
        fine = remote_publish(h, lane, bank, sizeof offer, word, epoch, to);
    } else if (lane < h.size) {
        *offer_of(h, lane, h.rank, at, epoch) = offer;
        word_store((uint64_t *)((char *)words_of(h, lane, h.rank) + word), epoch);
    }
    return __all_sync(~0u, fine);
}

/* By the lead: the offers of proxied ranks, to where those of mapped ones are. */
__device__ inline bool remote_offers_carry(const mpix_cuda_handle &h, uint64_t at, int word,
                                           uint64_t epoch, mpix_cuda_status *to) {
    int lane = threadIdx.x % 32;
    bool fine = true;
    if (remote_is(h, lane) &&
        (fine = remote_word_wait(h, (const uint64_t *)(remote_in(h, lane) + word), epoch, lane,
                                 to))) {
        const volatile uint64_t *from =
            (const volatile uint64_t *)(remote_in(h, lane) + at +
                                        (epoch & 1) * sizeof(mpix_cuda_offer));
        uint64_t *own = (uint64_t *)offer_of(h, h.rank, lane, at, epoch);
#pragma unroll
        for (unsigned i = 0; i < sizeof(mpix_cuda_offer) / 8; i++)
            own[i] = from[i];
        word_store((uint64_t *)((char *)words_of(h, h.rank, lane) + word), epoch);
    }
    return __all_sync(~0u, fine);
}

/* Dispatch, by the lead: READY, with what this rank finds wrong (own_status), and the proxied
 * ranks' passed on. False: the context has failed. */
__device__ inline bool remote_ready(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    int status, uint64_t epoch) {
    mpix_cuda_offer mine = c.offer;
    mine.status = status;
    if (threadIdx.x % 32 == 0 && !c.offer.status && status == MPIX_KIND_ARG)
        report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
    else if (threadIdx.x % 32 == 0 && !c.offer.status && status == MPIX_KIND_TRUNCATE)
        report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
    return remote_offers_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch,
                              c.report) &&
           remote_offers_carry(h, h.ready, offsetof(mpix_cuda_words, ready), epoch, c.report);
}

/* By the lead: passes on the chunks that come. rows: of lane r's batch, 0: none is awaited. False:
 * the context has failed. */
__device__ inline bool remote_chunks_carry(const mpix_cuda_handle &h, int type, uint64_t epoch,
                                           int64_t rows, int64_t per_chunk, int64_t *wait_ns,
                                           mpix_cuda_status *to) {
    int lane = threadIdx.x % 32, next = 0,
        n = remote_is(h, lane) && rows > 0 ? (int)((rows + per_chunk - 1) / per_chunk) : 0;
    const uint64_t *words =
        (const uint64_t *)(remote_in(h, lane < h.size ? lane : 0) + h.remote.arrived) +
        type * MPIX_CUDA_REMOTE_CHUNKS;
    uint64_t begin = now_ns(), start = begin;
    bool fine = true;
    for (uint32_t turn = 1; __any_sync(~0u, fine && next < n); turn++) {
        if (!fine || next >= n)
            continue;
        int before = next;
        while (next < n && word_load(&words[next]) >= epoch)
            next++;
        if (next > before) {
            asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(
                             &h.remote.here[type * h.size + lane]),
                         "l"(epoch * REMOTE_STEP + next)
                         : "memory");
            start = now_ns();
            if (wait_ns && next == n)
                wait_ns[lane] += (int64_t)(start - begin);
        } else if (turn % 16 == 0 && remote_late(h, lane, start)) {
            remote_give_up(h, lane, to);
            fine = false;
        }
    }
    return __all_sync(~0u, fine);
}

__device__ __forceinline__ uint64_t remote_chunk_word(uint64_t epoch, int64_t chunk) {
    return epoch * REMOTE_STEP + (uint64_t)chunk + 1;
}

/* Whether r's chunks are here; acquires. */
__device__ __forceinline__ bool remote_here(const mpix_cuda_handle &h, int type, int r,
                                            uint64_t word) {
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                 : "=l"(v)
                 : "l"(&h.remote.here[type * h.size + r])
                 : "memory");
    return v >= word;
}

/* By a warp: until for each lane that says so the chunk of rank r is here. False: the context has
 * failed. The lead's waits are bounded, so this is. */
__device__ __forceinline__ bool remote_chunks_wait(const mpix_cuda_handle &h, int type, bool needed,
                                                   int r, uint64_t word) {
    while (!__all_sync(~0u, !needed || remote_here(h, type, r, word))) {
        if (__any_sync(~0u, *(volatile int32_t *)h.failed))
            return false;
        __nanosleep(100);
    }
    __syncwarp();
    return true;
}

/* So many rows of a chunk for r, which has n, were packed by this warp; by one lane, after a
 * __syncwarp. Who counts the last puts it. */
__device__ inline bool remote_chunk_count(const mpix_cuda_handle &h,
                                          const mpix_cuda_remote_batch &b, int type, int r,
                                          int64_t chunk, uint32_t rows, uint32_t n, uint64_t epoch,
                                          mpix_cuda_status *to) {
    uint32_t *count =
        &h.remote
             .packed[(size_t)((type == REMOTE_ASK) * h.size + r) * MPIX_CUDA_REMOTE_CHUNKS + chunk];
    __threadfence();
    if (atomicAdd(count, rows) + rows != n)
        return true;
    *count = 0;
    __threadfence();
    uint64_t at = (uint64_t)(chunk * b.per_chunk) * b.item,
             from = type == REMOTE_ASK ? ask_pack(h, r) : remote_pack(h, r);
    uint64_t there = type == REMOTE_ASK ? ask_there(h, r) : remote_there(h, r);
    return remote_post(h, r, from + at, there + at, n * b.item,
                       h.remote.block * h.rank + h.remote.arrived +
                           (type * MPIX_CUDA_REMOTE_CHUNKS + chunk) * sizeof(uint64_t),
                       epoch, to, (int)(chunk % h.remote.queue->ways));
}

/* A unit of work on batches of proxied peers: some rows of a chunk. All peers' first
 * chunks come first. */
/* rows [first, end) of the batch; n: of the chunk */
struct remote_unit {
    int r;
    int64_t chunk, first, end;
    uint32_t n;
};

/* By a warp: the next unit that has rows. peers: a bit each; rows: of lane r's batch; units: taken
 * so far. False: there is none. */
__device__ inline bool remote_unit_take(const mpix_cuda_handle &h, uint32_t peers,
                                        const mpix_cuda_remote_batch &b, int64_t rows,
                                        uint32_t *units, remote_unit *u) {
    int lane = threadIdx.x % 32, npeers = __popc(peers);
    int64_t most = peers >> lane & 1 ? rows : 0;
    for (int d = 16; d; d /= 2) {
        int64_t other = __shfl_xor_sync(~0u, most, d);
        most = other > most ? other : most;
    }
    int64_t all = (most + b.per_chunk - 1) / b.per_chunk * npeers * REMOTE_UNITS;
    for (;;) {
        uint32_t i = lane == 0 ? atomicAdd(units, 1) : 0;
        i = __shfl_sync(~0u, i, 0);
        if (i >= all)
            return false;
        u->r = __fns(peers, 0, i / REMOTE_UNITS % npeers + 1);
        u->chunk = i / (REMOTE_UNITS * npeers);
        int64_t batch = __shfl_sync(~0u, rows, u->r), first = u->chunk * b.per_chunk,
                n = batch - first < b.per_chunk ? batch - first : b.per_chunk;
        if (n <= 0)
            continue;
        u->n = (uint32_t)n;
        u->first = first + n * (i % REMOTE_UNITS) / REMOTE_UNITS;
        u->end = first + n * (i % REMOTE_UNITS + 1) / REMOTE_UNITS;
        if (u->first < u->end)
            return true;
    }
}

/* A barrier of all warps but the lead. Whether any thread of them says yes. */
__device__ __forceinline__ bool remote_workers_meet(bool yes) {
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.aligned.pred q, "
                 "1, %2, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((int)yes), "r"(blockDim.x - (blockIdx.x == 0 ? 32 : 0))
                 : "memory");
    return any;
}

/* Tells mapped ranks that this block's part is complete; by a warp, after the block's barrier. */
__device__ inline void remote_block_signal(const mpix_cuda_handle &h, int words, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    if (mapped_is(h, lane)) {
        delay(h, 52 + lane);
        word_store((uint64_t *)((char *)words_of(h, lane, h.rank) + words) + blockIdx.x, epoch);
    }
}

/* How items of so many bytes are cut. */
static inline mpix_cuda_remote_batch remote_items_of(const mpix_cuda_handle *h, uint64_t item) {
    mpix_cuda_remote_batch b = {};
    int64_t least = (h->max_tokens + MPIX_CUDA_REMOTE_CHUNKS - 1) / MPIX_CUDA_REMOTE_CHUNKS;
    b.item = item;
    b.per_chunk = (int64_t)(h->remote.chunk_bytes / b.item);
    if (h->remote.chunk_bytes == 0) /* one piece */
        b.per_chunk = h->max_tokens;
    if (b.per_chunk > (int64_t)((UINT64_C(1) << 31) / b.item)) /* a command has 32 bits for bytes */
        b.per_chunk = (int64_t)((UINT64_C(1) << 31) / b.item);
    if (b.per_chunk < least)
        b.per_chunk = least;
    if (b.per_chunk < 1)
        b.per_chunk = 1;
    return b;
}

/* How items lie, for rows of row bytes with scales and a record of so many. */
static inline mpix_cuda_remote_batch remote_batch_of(const mpix_cuda_handle *h, int64_t row,
                                                     int64_t scales, int64_t record) {
    uint64_t scales_at = (uint64_t)(row + 15) / 16 * 16,
             record_at = scales_at + (uint64_t)(scales + 15) / 16 * 16;
    mpix_cuda_remote_batch b = remote_items_of(h, (record_at + (uint64_t)record + 127) / 128 * 128);
    b.scales = scales_at;
    b.record = record_at;
    return b;
}
#endif
