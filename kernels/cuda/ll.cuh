/*
 * ll.cuh - the low-latency mode in GPU memory: where things lie, and how words, heads and flags are awaited. The protocol is that of
 * coll/ep_ll.h; what follows is what kernels do differently.
 *
 * A kernel has two halves. Sending: the first block writes the heads; rows are taken by tickets, a team of warps each, and the team's first warp
 * releases the row's flag after the team's barrier, at system scope. Receiving: every block waits for all heads, then each warp for the flag of
 * the row that it takes next. No counts come first.
 *
 * No deadlock on missing blocks: no block receives before all tickets are taken, and who has a ticket awaits only `taken` of the ranks that it
 * writes to, which earlier calls say. The first block of a kernel, which is started first, writes the heads before it waits for arrivals.
 * So of a kernel one block is enough for its peers. Handles on several streams whose calls ranks start in different orders need room for a
 * block of each, and a block fills a multiprocessor: hence a default of less than half of them. The halves of a call apart (..._begin_enqueue)
 * hold no block in between.
 *
 * Right to write: a place is free for epoch e when its reader has said `taken` >= e - depth. A handle's calls follow each other on the device, so
 * one word per (source, kind) is enough. The last block of a call says it, after every block has read, whether the call has failed or not: what
 * a slower source still writes for this epoch comes before what it writes later, since its own calls follow each other too.
 *
 * Flags and heads count if they hold exactly this epoch (the flag of an answer also whether there is a row). A place's flag still holds
 * e - depth, or less, when the batch of e is written, since `taken` e - depth was seen by then.
 *
 * A call that fails before it sends writes heads with a status and no rows. Everybody finds the same verdict in the heads, all blocks alike.
 */
#ifndef MPIX_KERNELS_CUDA_LL_CUH
#define MPIX_KERNELS_CUDA_LL_CUH
#include "device.cuh"
#include "launch.h"

enum { LL_WARPS = 16, LL_THREADS = 32 * LL_WARPS };
#define LL_EMPTY (1ull << 63) /* of an answer's flag: the token has no row there, all were dropped */

__device__ __forceinline__ char *ll_block(const mpix_cuda_handle &h, int owner, int source) { return h.window[owner] + h.ll.block * source; }
__device__ __forceinline__ uint64_t *ll_taken(const mpix_cuda_handle &h, int owner, int source, int combine) {
    return (uint64_t *)ll_block(h, owner, source) + combine;
}
__device__ __forceinline__ mpix_cuda_ll_head *ll_head(const mpix_cuda_handle &h, int owner, int source, int combine, int bank) {
    return (mpix_cuda_ll_head *)(ll_block(h, owner, source) + 64) + combine * h.ll.depth + bank;
}
__device__ __forceinline__ uint32_t *ll_counts(const mpix_cuda_handle &h, int owner, int source, int bank) {
    return (uint32_t *)(ll_block(h, owner, source) + h.ll.counts + bank * h.ll.counts_bytes);
}
/* The number of a place of dispatch, and what lies there in owner's window. */
__device__ __forceinline__ int64_t ll_place(const mpix_cuda_handle &h, int source, int64_t i, int bank) {
    return ((int64_t)bank * h.size + source) * h.max_tokens + i;
}
__device__ __forceinline__ uint64_t *ll_flag(const mpix_cuda_handle &h, int owner, int64_t place) {
    return (uint64_t *)(h.window[owner] + h.ll.flags[0]) + place;
}
__device__ __forceinline__ int32_t *ll_record(const mpix_cuda_handle &h, int owner, int64_t place) {
    return (int32_t *)(h.window[owner] + h.ll.records + place * h.ll.record);
}
__device__ __forceinline__ char *ll_row(const mpix_cuda_handle &h, int owner, int64_t place) { return h.window[owner] + h.ll.rows + place * h.ll.row; }
__device__ __forceinline__ int64_t ll_up16(int64_t n) { return (n + 15) / 16 * 16; } /* scales lie behind the row */
/* An answer of combine. */
__device__ __forceinline__ int64_t ll_answer(const mpix_cuda_handle &h, int64_t i, int bank) { return bank * h.ll.most + i; }
__device__ __forceinline__ uint64_t *ll_answer_flag(const mpix_cuda_handle &h, int owner, int64_t answer) {
    return (uint64_t *)(h.window[owner] + h.ll.flags[1]) + answer;
}
__device__ __forceinline__ char *ll_answer_row(const mpix_cuda_handle &h, int owner, int64_t answer) {
    return h.window[owner] + h.ll.answers + answer * h.ll.answer;
}
__device__ __forceinline__ float *ll_answer_values(const mpix_cuda_handle &h, int owner, int64_t answer) {
    return (float *)(h.window[owner] + h.ll.values) + answer * h.max_topk;
}

/* Place of token t among those that go to rank r. */
__device__ __forceinline__ uint32_t ll_place_of(const mpix_cuda_handle &h, int64_t t, int r) {
    return h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r] + h.rel[t * h.size + r];
}

/* ---- waiting ---- */
/* By a warp: lanes with a word await this very epoch (the top bit apart), bounded; source: whom the lane waits for. All lanes leave together,
 * and what was acquired is there for all of them. False: time-out. */
__device__ inline bool ll_await(const mpix_cuda_handle &h, const uint64_t *p, uint64_t epoch, int source, mpix_cuda_status *to, uint64_t *got) {
    uint64_t v = p ? word_load(p) : epoch;
    bool bad = false;
    if (!__all_sync(~0u, (v & ~LL_EMPTY) == epoch)) {
        uint64_t start = now_ns();
        for (;;) {
            bool there = (v & ~LL_EMPTY) == epoch;
            if (!there && (now_ns() - start > h.timeout_ns || *(volatile int32_t *)h.failed)) {
                status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, source, 0, 0, 0});
                *(volatile int32_t *)h.failed = 1;
                bad = true;
            }
            if (__all_sync(~0u, there || bad))
                break;
            if (!there && !bad)
                v = word_load(p);
        }
    }
    *got = v;
    __syncwarp();
    return !__any_sync(~0u, bad);
}

/* By a warp: whether the places of this epoch are free at the ranks of the lanes that ask. Bounded. */
__device__ inline bool ll_room(const mpix_cuda_handle &h, bool asks, int combine, uint64_t epoch, mpix_cuda_status *to) {
    int r = threadIdx.x % 32;
    bool ok = true;
    if (asks && r != h.rank && epoch > (uint64_t)h.ll.depth)
        ok = word_wait(h, ll_taken(h, h.rank, r, combine), epoch - h.ll.depth, r, to);
    return __all_sync(~0u, ok);
}

/* By the first warp: all heads of this epoch. False: time-out. */
__device__ inline bool ll_heads(const mpix_cuda_handle &h, int combine, uint64_t epoch, mpix_cuda_status *to, bool waited, mpix_cuda_ll_head *heads) {
    int r = threadIdx.x % 32;
    uint64_t got, start = waited ? now_ns() : 0;
    const mpix_cuda_ll_head *head = r < h.size ? ll_head(h, h.rank, r, combine, (int)(epoch % h.ll.depth)) : nullptr;
    delay(h, 1);
    if (!ll_await(h, head ? &head->epoch : nullptr, epoch, r, to, &got))
        return false;
    for (unsigned i = 0; head && i < sizeof *head / 8; i++)
        ((uint64_t *)&heads[r])[i] = ((const volatile uint64_t *)head)[i];
    if (waited && r < h.size && r != h.rank)
        atomicMax((unsigned long long *)&h.state->waited[r], now_ns() - start);
    return true;
}

/* By the first warp. What is wrong with the heads, alike on all blocks: reported, 1; otherwise 0. */
__device__ inline int ll_judge(const mpix_cuda_handle &h, const mpix_cuda_ll_head *heads, int64_t hidden, int dtype, int scale_kind) {
    int r = threadIdx.x % 32, bad = 0;
    if (r < h.size && heads[r].status) {
        bad = 1;
        if (r != h.rank)
            report(h, MPIX_CUDA_REMOTE, 0, r, heads[r].status, 0);
    }
    if (__any_sync(~0u, bad))
        return 1;
    if (r < h.size) {
        const mpix_cuda_ll_head &o = heads[r];
        if (o.hidden != hidden)
            bad = 1, report(h, MPIX_CUDA_HIDDEN, 0, r, o.hidden, hidden);
        else if (o.dtype != dtype)
            bad = 1, report(h, MPIX_CUDA_DTYPE, 0, r, o.dtype, dtype);
        else if (o.scale_kind != scale_kind)
            bad = 1, report(h, MPIX_CUDA_SCALES, 0, r, o.scale_kind, scale_kind);
    }
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* ---- teams: warps of a block that share a row ---- */
struct ll_team { int warps, number, part; }; /* number: of the team in its block; part: of the warp in its team */
__device__ __forceinline__ ll_team ll_team_of(int warps) {
    int w = threadIdx.x / 32;
    return {warps, w / warps, w % warps};
}
__device__ __forceinline__ void ll_meet(const ll_team &t) {
    if (t.warps == 1)
        __syncwarp();
    else
        asm volatile("barrier.cta.sync %0, %1;" ::"r"(t.number + 1), "r"(t.warps * 32) : "memory");
}
/* Tickets, one after the other: by a whole team. next: asked for beforehand by the team's first thread; shared: a word per team. */
__device__ __forceinline__ uint32_t ll_ticket(const ll_team &t, uint32_t next, uint32_t *shared) {
    if (t.part == 0 && threadIdx.x % 32 == 0)
        shared[t.number] = next;
    ll_meet(t);
    return shared[t.number]; /* written again after the barrier at the row's end */
}

/* This warp's part of n bytes, in pieces of 512: where it begins; its size. */
__device__ __forceinline__ int64_t ll_part(const ll_team &t, int64_t n, int64_t *bytes) {
    int64_t piece = ((n + t.warps - 1) / t.warps + 511) / 512 * 512, at = t.part * piece, left = n - at;
    *bytes = left < piece ? left : piece;
    return at;
}

/* ---- the end ---- */
/* By the last block. Says `taken`; adds up what was waited. */
__device__ inline void ll_end(const mpix_cuda_handle &h, int combine, uint64_t epoch, int64_t *wait_ns) {
    int r = threadIdx.x;
    if (r < h.size) {
        delay(h, 52 + r);
        if (r != h.rank)
            word_store(ll_taken(h, r, h.rank, combine), epoch);
        if (wait_ns && r != h.rank)
            wait_ns[r] += (int64_t)h.state->waited[r];
        h.state->waited[r] = 0;
    }
}

/* Warps per row, so that the rows of a call keep all warps busy. */
static inline int ll_team_size(int blocks, int64_t rows) {
    int warps = LL_WARPS;
    while (warps > 1 && (int64_t)blocks * (LL_WARPS / warps) < rows)
        warps /= 2;
    return warps;
}
static inline int ll_blocks(const mpix_cuda_device *d, int num_sms) {
    int n = num_sms > 0 ? num_sms : MPIX_CUDA_LL_SMS;
    return n < d->sms ? n : d->sms;
}
#endif
