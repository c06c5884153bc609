/*
 * ll.cuh - the low-latency mode in GPU memory: where things lie, and how words, heads and flags are
 * awaited. The protocol is that of coll/host_ll/ll.h; what follows is what kernels do differently.
 *
 * A block has workers, a clerk and a flagger, a warp each of the latter. While the workers load
 * what they will send, the clerk looks whether the call can be made and whether the places are
 * free, and the flagger learns which rows are the block's. Then the clerk waits for all heads,
 * finds the verdict and in EXPERT where rows begin; the workers send: the first block's the heads,
 * then rows, to the places that they have at all their ranks; the flagger waits until they have,
 * and after a fence at system scope writes the rows' flags. Then workers receive, as flags come. No
 * counts come first. In dispatch teams of warps share a row (ll_team.cuh), in combine all workers
 * their block's rows (ll_block.cuh).
 *
 * Who sends what. A row has an owner, so that it is known at the start what to load, and a claim,
 * an atomic operation under way at the same time as the row: who finds that nobody had it in this
 * epoch sends the row. Workers who are done with their own rows claim what is left, before they
 * receive anything: so rows of blocks that have not started are sent by those that have.
 *
 * No deadlock on missing blocks: no worker receives before all rows are claimed, and who has
 * claimed one awaits only `taken`, which earlier calls say. The first block of a kernel, which is
 * started first, writes the heads before its workers wait for arrivals. So of a kernel one block is
 * enough for its peers. Handles on several streams whose calls ranks start in different orders need
 * room for a block of each, and a block fills a multiprocessor: hence a default of less than half
 * of them. The halves of a call apart (..._begin_enqueue) hold no block in between.
 *
 * Right to write: a place is free for epoch e when its reader has said `taken` >= e - depth. A
 * handle's calls follow each other on the device, so one word per (source, type of call) is enough.
 * The next call of the type says it when it starts, for then nothing reads any more: so nobody
 * waits at the end of a call for all blocks. With depth 1 that would be too late, as the peer's
 * next call waits for it; then the last block to end says it at once. It is said whether a call has
 * failed or not: what a slower source still writes for an epoch comes before what it writes later,
 * since its own calls follow each other too.
 *
 * The epoch is counted by the block that starts last, as a counter says which each block raises
 * when it has read the epoch. It is also the one that reports what is wrong with the heads, about
 * which all blocks come to the same verdict.
 *
 * Flags count if they hold exactly this epoch (that of an answer also whether there is a row). A
 * place's flag still holds e - depth, or less, when the batch of e is written, since `taken`
 * e - depth was seen by then, and all sizes are the configuration's, so flags never lie where
 * anything else did. Heads and counts have no flag and need no fence: each word of 64 bits holds 32
 * of them and the epoch's low 32 bits, and counts if these are this epoch's. All words of a head
 * are written in every call, and those of the counts in every one whose head bears no error, so
 * what a word held before is of e - depth, or after errors of a few calls before: the 32 bits
 * cannot have come round.
 *
 * A call that fails before it sends writes heads with a status and no rows.
 */
#ifndef MPIX_KERNELS_CUDA_LL_CUH
#define MPIX_KERNELS_CUDA_LL_CUH
#include "common/device.cuh"
#include "common/launch.h"

/* Warps that work, then the two others: sixteen, so a thread may have 128 registers. */
enum {
    LL_WARPS = 14,
    LL_WORKERS = 32 * LL_WARPS,
    LL_CLERK = LL_WARPS,
    LL_FLAGGER,
    LL_THREADS = LL_WORKERS + 64
};
/* of an answer's flag: the token has no row there, all were dropped */
#define LL_EMPTY (1ull << 63)

/*
 * What a kernel is made for: rows that are quantised; that are moved 16 bytes at a time, and then
 * the layout, which is asked for otherwise; some peers are reached through the proxy
 * (ll_remote.cu). Machine code that is not in an instruction cache costs as much as the loads of a
 * call: some 100 KB instead of 200 were 1.5 to 2.5 us of dispatch (doc/performance.md).
 */
template <bool QUANT, bool VECTORS, bool EXPERT, bool REMOTE = false> struct ll_form {
    static constexpr bool quant = QUANT, vectors = VECTORS;
    static __device__ __forceinline__ bool expert(const mpix_cuda_handle &h) {
        return VECTORS ? EXPERT : h.ll.expert != 0;
    }
    static __device__ __forceinline__ bool remote(const mpix_cuda_handle &h, int r) {
        return REMOTE && r < h.size && (h.remote.is >> r & 1);
    }
};

__device__ __forceinline__ char *ll_block(const mpix_cuda_handle &h, int owner, int source) {
    return h.window[owner] + h.ll.block * source;
}
__device__ __forceinline__ uint64_t *ll_taken(const mpix_cuda_handle &h, int owner, int source,
                                              int combine) {
    return (uint64_t *)ll_block(h, owner, source) + combine;
}
/* Words that tell by themselves whether they are this epoch's. */
__device__ __forceinline__ uint64_t ll_word(uint32_t v, uint64_t epoch) { return epoch << 32 | v; }
__device__ __forceinline__ bool ll_is(uint64_t word, uint64_t epoch) {
    return (uint32_t)(word >> 32) == (uint32_t)epoch;
}
__device__ __forceinline__ uint64_t ll_look(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
/* p: a multiple of 16 */
__device__ __forceinline__ void ll_look_two(const uint64_t *p, uint64_t v[2]) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v[0]), "=l"(v[1])
                 : "l"(p)
                 : "memory");
}
__device__ __forceinline__ void ll_put(uint64_t *p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint64_t *ll_head(const mpix_cuda_handle &h, int owner, int source,
                                             int combine, int bank) {
    return (uint64_t *)(ll_block(h, owner, source) + 64 +
                        (combine * h.ll.depth + bank) * MPIX_CUDA_LL_HEAD);
}
__device__ __forceinline__ uint64_t *ll_counts(const mpix_cuda_handle &h, int owner, int source,
                                               int bank) {
    return (uint64_t *)(ll_block(h, owner, source) + h.ll.counts + bank * h.ll.counts_bytes);
}
/* The number of a place of dispatch, and what lies there in owner's window. */
__device__ __forceinline__ int64_t ll_place(const mpix_cuda_handle &h, int source, int64_t i,
                                            int bank) {
    return ((int64_t)bank * h.size + source) * h.max_tokens + i;
}
__device__ __forceinline__ uint64_t *ll_flag(const mpix_cuda_handle &h, int owner, int64_t place) {
    return (uint64_t *)(h.window[owner] + h.ll.flags[0]) + place;
}
__device__ __forceinline__ int32_t *ll_record(const mpix_cuda_handle &h, int owner, int64_t place) {
    return (int32_t *)(h.window[owner] + h.ll.records + place * h.ll.record);
}
/* scales lie behind the row */
__host__ __device__ __forceinline__ int64_t ll_up16(int64_t n) { return (n + 15) / 16 * 16; }
__device__ __forceinline__ char *ll_row(const mpix_cuda_handle &h, int owner, int64_t place) {
    return h.window[owner] + h.ll.rows + place * h.ll.row;
}
/* An answer of combine. */
__device__ __forceinline__ int64_t ll_answer(const mpix_cuda_handle &h, int64_t i, int bank) {
    return bank * h.ll.most + i;
}
__device__ __forceinline__ uint64_t *ll_answer_flag(const mpix_cuda_handle &h, int owner,
                                                    int64_t answer) {
    return (uint64_t *)(h.window[owner] + h.ll.flags[1]) + answer;
}
__device__ __forceinline__ char *ll_answer_row(const mpix_cuda_handle &h, int owner,
                                               int64_t answer) {
    return h.window[owner] + h.ll.answers + answer * h.ll.answer;
}
__device__ __forceinline__ float *ll_answer_values(const mpix_cuda_handle &h, int owner,
                                                   int64_t answer) {
    return (float *)(h.window[owner] + h.ll.values) + answer * h.max_topk;
}

/* ---- what is packed for a proxied peer r, in host memory (ll_remote.cu) ---------------------- */
/* Where the items of a batch begin, behind the head and, in dispatch, the counts; and how they lie:
 * row and scales, or row, flag and slot values. */
__device__ __forceinline__ uint64_t ll_items_at(const mpix_cuda_handle &h, int combine) {
    return MPIX_CUDA_LL_HEAD + (combine ? 0 : h.ll.counts_bytes);
}
struct ll_item {
    uint64_t record, pitch;
}; /* record: dispatch: the record; combine: the flag, the
    * values 16 bytes behind it */
__host__ __device__ __forceinline__ ll_item ll_item_of(const mpix_cuda_handle &h,
                                                       const mpix_cuda_dispatch &c) {
    uint64_t record = (uint64_t)(ll_up16(c.row) + ll_up16(c.scale_row));
    return {record, record + h.ll.record};
}
__host__ __device__ __forceinline__ ll_item ll_item_of(const mpix_cuda_handle &h,
                                                       const mpix_cuda_combine &c) {
    uint64_t record = (uint64_t)ll_up16(c.row);
    return {record, record + 16 + (uint64_t)ll_up16(4 * h.max_topk)};
}
__device__ __forceinline__ uint64_t ll_remote_out(const mpix_cuda_handle &h, int r, int combine) {
    return h.remote.pack + (h.remote.batch[0] + h.remote.batch[1]) * h.remote.room_index[r] +
           (combine ? h.remote.batch[0] : 0);
}
__device__ __forceinline__ uint64_t *ll_remote_head(const mpix_cuda_handle &h, int r, int combine) {
    return (uint64_t *)(h.remote.window + ll_remote_out(h, r, combine));
}
template <class C>
__device__ __forceinline__ char *ll_remote_item(const mpix_cuda_handle &h, const C &c, int r,
                                                int combine, int64_t i) {
    return h.remote.window + ll_remote_out(h, r, combine) + ll_items_at(h, combine) +
           (uint64_t)i * ll_item_of(h, c).pitch;
}

/* Place of token t among those that go to rank r. */
__device__ __forceinline__ uint32_t ll_place_of(const mpix_cuda_handle &h, int64_t t, int r) {
    return h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r] + h.rel[t * h.size + r];
}

/* ---- what the warps of a block do together --------------------------------------------------- */
/* Barriers; that of whole blocks is 0, those of dispatch's teams are 1 to 7. */
enum {
    LL_BAR_LISTS = 9,
    LL_BAR_THERE,
    LL_BAR_VERDICT,
    LL_BAR_ROUND,
    LL_BAR_SENT,
    LL_BAR_HEADS,
    LL_BAR_WORKERS
};
__device__ __forceinline__ void ll_sync(int bar, int threads) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}
__device__ __forceinline__ void ll_arrive(int bar, int threads) {
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}

/* By the workers: whether any of them says so. */
__device__ __forceinline__ bool ll_workers_or(bool mine) {
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.pred q, %3, %2, "
                 "p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((int)mine), "n"((int)LL_WORKERS), "n"((int)LL_BAR_WORKERS)
                 : "memory");
    return any;
}

/* ---- the start ------------------------------------------------------------------------------- */
/* By the clerk, when the block's warps have read the epoch and made its first claims; who asks what
 * it gave waits for it. */
__device__ __forceinline__ uint32_t ll_started(const mpix_cuda_handle &h, int type) {
    return threadIdx.x % 32 == 0 ? atomicAdd(&h.state->ticket[type], 1) : 0;
}
/* Whether the block was the last to start. */
__device__ __forceinline__ bool ll_is_last(uint32_t before) {
    return __shfl_sync(~0u, before, 0) == gridDim.x - 1;
}

/* By the clerk, in two parts, so that other loads are under way at the same time. combine: which
 * type; sends: places are needed. */
/* bank: the next one, depth for 0 */
struct ll_asked {
    uint64_t epoch, taken;
    uint32_t bank;
    int failed;
    bool asks;
};
__device__ __forceinline__ ll_asked ll_ask(const mpix_cuda_handle &h, int combine, bool sends) {
    int r = threadIdx.x % 32;
    ll_asked a;
    a.epoch =
        *(volatile uint64_t *)&h.state->epoch[combine ? MPIX_CUDA_COMBINE : MPIX_CUDA_DISPATCH] + 1;
    a.bank = *(volatile uint32_t *)&h.state->bank[combine] + 1;
    a.failed = *(volatile int32_t *)h.failed;
    a.asks = sends && r < h.size && r != h.rank;
    a.taken = a.asks ? word_load(ll_taken(h, h.rank, r, combine)) : 0;
    return a;
}
/* The second part: whether the call can be made, and the places are free. */
__device__ __forceinline__ bool ll_may_go(const mpix_cuda_handle &h, int combine, const ll_asked &a,
                                          mpix_cuda_status *to) {
    int r = threadIdx.x % 32;
    bool ok = true;
    if (a.failed) {
        if (blockIdx.x == 0 && r == 0)
            status_write(h, to, {MPIX_CUDA_FAILED, 0, -1, 0, 0, 0});
        ok = false;
    } else {
        delay(h, 51);
        if (a.asks && a.epoch > (uint64_t)h.ll.depth && a.taken < a.epoch - h.ll.depth)
            ok = word_wait(h, ll_taken(h, h.rank, r, combine), a.epoch - h.ll.depth, r, to);
    }
    return __all_sync(~0u, ok);
}
/* By one thread for rank r. */
template <class F>
__device__ __forceinline__ void ll_head_put(const mpix_cuda_handle &h, int r, int combine,
                                            uint64_t epoch, int bank, const mpix_ep_ll_head &mine) {
    uint64_t *to = F::remote(h, r) ? ll_remote_head(h, r, combine)
                                   : ll_head(h, r, h.rank, combine, bank);
    delay(h, 2 + r);
#pragma unroll
    for (unsigned i = 0; i < sizeof mine / 4; i++)
        ll_put(to + i, ll_word(((const uint32_t *)&mine)[i], epoch));
}

/* By the first block's clerk, when its call has started: the one before has ended. */
template <class F>
__device__ __forceinline__ void ll_say_taken(const mpix_cuda_handle &h, int combine,
                                             uint64_t epoch) {
    int r = threadIdx.x % 32;
    if (r < h.size && r != h.rank && !F::remote(h, r))
        word_store(ll_taken(h, r, h.rank, combine), epoch - 1);
    __syncwarp();
}

__device__ __forceinline__ void ll_report(bool tells, const mpix_cuda_handle &h, int code, int kind,
                                          int peer, int64_t a, int64_t b) {
    if (tells)
        report(h, code, kind, peer, a, b);
}
/* By the clerk. What is wrong with the heads, alike on all blocks, of which one tells:
 * 1; otherwise 0. */
__device__ inline int ll_judge(const mpix_cuda_handle &h, bool tells, const mpix_ep_ll_head *heads,
                               int64_t hidden, int dtype, int scale_kind) {
    int r = threadIdx.x % 32, bad = 0;
    if (r < h.size && heads[r].status) {
        bad = 1;
        if (r != h.rank)
            ll_report(tells, h, MPIX_CUDA_REMOTE, 0, r, heads[r].status, 0);
    }
    if (__any_sync(~0u, bad))
        return 1;
    if (r < h.size) {
        const mpix_ep_ll_head &o = heads[r];
        if (o.hidden != hidden)
            bad = 1, ll_report(tells, h, MPIX_CUDA_HIDDEN, 0, r, o.hidden, hidden);
        else if (o.dtype != dtype)
            bad = 1, ll_report(tells, h, MPIX_CUDA_DTYPE, 0, r, o.dtype, dtype);
        else if (o.scale_kind != scale_kind)
            bad = 1, ll_report(tells, h, MPIX_CUDA_SCALES, 0, r, o.scale_kind, scale_kind);
    }
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* ---- the end --------------------------------------------------------------------------------- */
/* By the first warp after a block barrier: whether the block is the last to end. What the others
 * have read and written is behind it. */
__device__ inline bool ll_last(const mpix_cuda_handle &h, int type) {
    uint32_t before = 0;
    delay(h, 50);
    if (threadIdx.x == 0)
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(&h.state->ended[type]), "r"(gridDim.x - 1)
                     : "memory");
    return __shfl_sync(~0u, before, 0) == gridDim.x - 1;
}
/* By the last block's first warp. Says `taken`; adds up what was waited. */
template <class F>
__device__ inline void ll_end(const mpix_cuda_handle &h, int combine, uint64_t epoch,
                              int64_t *wait_ns) {
    int r = threadIdx.x;
    if (r < h.size) {
        delay(h, 52 + r);
        if (r != h.rank && !F::remote(h, r))
            word_store(ll_taken(h, r, h.rank, combine), epoch);
        if (wait_ns) {
            if (r != h.rank)
                wait_ns[r] += (int64_t)h.state->waited[r];
            h.state->waited[r] = 0;
        }
    }
    __syncwarp();
}

static inline int ll_blocks(const mpix_cuda_device *d, int num_sms) {
    int n = num_sms > 0 ? num_sms : mpix_cuda_half(d, MPIX_CUDA_LL_SMS);
    return n < d->sms ? n : d->sms;
}
#endif
