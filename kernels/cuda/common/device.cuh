/* device.cuh - what all kernels share: words between GPUs, bulk copies, bounded waits, the
 * end of a call. */
#ifndef MPIX_KERNELS_CUDA_DEVICE_CUH
#define MPIX_KERNELS_CUDA_DEVICE_CUH
#include "coll/record.h"
#include "gpu/cuda_module.h"

#include <cuda_runtime.h>
#include <stddef.h>

/* ---- words ----------------------------------------------------------------------------------- */
/* Publication: plain or bulk stores, then a release at system scope; a reader acquires at
 * system scope. */
__device__ __forceinline__ uint64_t word_load(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void word_store(uint64_t *p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ uint64_t now_ns() {
    uint64_t v;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
    return v;
}
__device__ __forceinline__ void fence_async() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/* ---- kernels that are launched early (mpix_cuda_launch_early) -------------------------------- */
/* They begin before the kernel in front of them has ended. */
/* First of all: until what is in front of this kernel in its stream has ended, and what that
 * wrote is there. */
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next kernel may be launched, to wait there. */
__device__ __forceinline__ void grid_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* By a warp: the sum of the lanes up to and with this one. */
template <class T> __device__ __forceinline__ T lanes_sum(T v, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        T up = __shfl_up_sync(~0u, v, d);
        v += lane >= d ? up : 0;
    }
    return v;
}

/* ---- bulk copies (sm_90) --------------------------------------------------------------------- */
__device__ __forceinline__ uint32_t smem_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void bar_init(uint64_t *bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_at(bar)), "r"(n) : "memory");
}
__device__ __forceinline__ void bar_expect(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_at(bar)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p "
                 "bra D;\nbra W;\nD:\n}" ::"r"(smem_at(bar)),
                 "r"(parity)
                 : "memory");
}
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes,
                                          uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(smem_at(to)),
        "l"(from), "r"(bytes), "r"(smem_at(bar))
        : "memory");
}
__device__ __forceinline__ void bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(smem_at(from)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void pending_wait(int n) {
    if (n == N)
        bulk_wait_read<N>();
    else if (N > 0)
        pending_wait<(N > 0 ? N - 1 : 0)>(n);
}
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

/* ---- the window of a handle ------------------------------------------------------------------ */
/* The block that source writes in the window of owner. */
__device__ __forceinline__ char *block_of(const mpix_cuda_handle &h, int owner, int source) {
    return h.window[owner] + h.block * source;
}
__device__ __forceinline__ mpix_cuda_words *words_of(const mpix_cuda_handle &h, int owner,
                                                     int source) {
    return (mpix_cuda_words *)block_of(h, owner, source);
}
__device__ __forceinline__ mpix_cuda_offer *offer_of(const mpix_cuda_handle &h, int owner,
                                                     int source, uint64_t at, uint64_t epoch) {
    return (mpix_cuda_offer *)(block_of(h, owner, source) + at) + (epoch & 1);
}

/* Tests only (parameter gpu_delay_us): a pause whose length is a hash of who is where, so that
 * orders come up that a quiet machine does not show. One call in four pauses. */
static __device__ __noinline__ void delay_take(const mpix_cuda_handle &h, uint32_t point) {
    uint64_t x = (uint64_t)point << 48 ^ (uint64_t)h.rank << 40 ^ (uint64_t)blockIdx.x << 20 ^
                 (uint64_t)(threadIdx.x / 32) << 12;
    for (int k = 0; k < MPIX_CUDA_TYPES; k++)
        x = (x + h.state->epoch[k] + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    if (x & 3)
        return;
    uint64_t start = now_ns(), pause = (x >> 2) % h.delay_ns;
    while (now_ns() - start < pause)
        __nanosleep(500);
}
__device__ __forceinline__ void delay(const mpix_cuda_handle &h, uint32_t point) {
    if (h.delay_ns)
        delay_take(h, point);
}

/* To pinned memory, where the host may be looking: one thread writes, what is there already stays,
 * the code comes last. */
__device__ inline void status_write(const mpix_cuda_handle &h, mpix_cuda_status *to,
                                    const mpix_cuda_status &s) {
    volatile mpix_cuda_status *v = to;
    if (v->code || atomicCAS(&to->taken, 0, 1))
        return;
    v->kind = s.kind;
    v->peer = s.peer;
    v->a = s.a;
    v->b = s.b;
    __threadfence_system();
    v->code = s.code;
    __threadfence_system();
    *(volatile int32_t *)h.alarm = 1;
    __threadfence_system();
}

/* The first error of a call stays. */
__device__ inline void report(const mpix_cuda_handle &h, int code, int kind, int peer, int64_t a,
                              int64_t b) {
    if (atomicCAS(&h.state->err, 0, code) == 0) {
        h.state->status = {code, kind, peer, 0, a, b};
        __threadfence();
    }
}

/* Waits until a word that source writes has reached epoch; bounded. False: time-out, and the
 * context has failed. */
__device__ inline bool word_wait(const mpix_cuda_handle &h, const uint64_t *p, uint64_t epoch,
                                 int source, mpix_cuda_status *to) {
    if (word_load(p) >= epoch)
        return true;
    uint64_t start = now_ns();
    while (word_load(p) < epoch) {
        if (now_ns() - start > h.timeout_ns || *(volatile int32_t *)h.failed) {
            /* Told at once: blocks that start from now on do nothing, so the end of the call
             * may never come. */
            status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, source, 0, 0, 0});
            *(volatile int32_t *)h.failed = 1;
            return false;
        }
    }
    return true;
}

/* The offer of this rank, to everybody; by the first warp of a kernel's first block, before
 * anything waits. */
__device__ inline void offer_send(const mpix_cuda_handle &h, const mpix_cuda_offer &offer,
                                  uint64_t at, int word, uint64_t epoch) {
    int lane = threadIdx.x % 32;
    if (lane < h.size) {
        delay(h, 2 + lane);
        *offer_of(h, lane, h.rank, at, epoch) = offer;
        word_store((uint64_t *)((char *)words_of(h, lane, h.rank) + word), epoch);
    }
}

/* Combine's offer, with what this rank finds wrong with the call: a fault of its routing, or fewer
 * rows than it was sent. By the first warp of a block. */
__device__ __forceinline__ mpix_cuda_offer rows_offer_of(const mpix_cuda_handle &h,
                                                         const mpix_cuda_combine &c, int64_t rows,
                                                         int fault) {
    mpix_cuda_offer mine = c.offer;
    if (!mine.status && fault) {
        mine.status = MPIX_KIND_ARG;
        if (threadIdx.x == 0)
            report(h, fault, 0, -1, h.state->tokens, c.tokens);
    } else if (!mine.status && mine.rows < rows && !h.drop) {
        mine.status = MPIX_KIND_TRUNCATE;
        if (threadIdx.x == 0)
            report(h, MPIX_CUDA_CAPACITY, 0, -1, rows, mine.rows);
    }
    if (mine.rows > rows)
        mine.rows = rows;
    return mine;
}
__device__ __forceinline__ void rows_offer_send(const mpix_cuda_handle &h,
                                                const mpix_cuda_combine &c, int64_t rows, int fault,
                                                uint64_t epoch) {
    offer_send(h, rows_offer_of(h, c, rows, fault), h.offered,
               offsetof(mpix_cuda_words, rows_offered), epoch);
}

/* By a warp: lane r awaits the offer of rank r and gets it. 0: all are fine; 1: the call fails,
 * alike on all ranks, and that is reported; 2: time-out. An offer is judged against this rank's
 * own: if any two ranks differ, every rank finds one that differs from it. */
__device__ inline int offers_wait(const mpix_cuda_handle &h, const mpix_cuda_offer &mine,
                                  uint64_t at, int word, uint64_t epoch, int64_t *wait_ns,
                                  mpix_cuda_status *to, mpix_cuda_offer *o) {
    int lane = threadIdx.x % 32, bad = 0;
    delay(h, 1);
    memset(o, 0, sizeof *o);
    uint64_t start = wait_ns ? now_ns() : 0;
    if (lane < h.size &&
        !word_wait(h, (const uint64_t *)((const char *)words_of(h, h.rank, lane) + word), epoch,
                   lane, to))
        bad = 2;
    if (wait_ns && lane < h.size && lane != h.rank)
        wait_ns[lane] += (int64_t)(now_ns() - start);
    if (__any_sync(~0u, bad))
        return 2;
    if (lane < h.size) {
        const volatile uint64_t *from = (const volatile uint64_t *)offer_of(h, h.rank, lane, at,
                                                                            epoch);
#pragma unroll
        for (unsigned i = 0; i < sizeof *o / 8; i++)
            ((uint64_t *)o)[i] = from[i];
        bad = o->status != 0;
        if (bad && lane != h.rank)
            report(h, MPIX_CUDA_REMOTE, 0, lane, o->status, 0);
    }
    if (__any_sync(~0u, bad))
        return 1;
    bool wanted = __any_sync(~0u, lane < h.size && (o->flags & MPIX_EP_OFFER_WANTS_WEIGHTS));
    if (lane < h.size) {
        if (o->hidden != mine.hidden)
            bad = 1, report(h, MPIX_CUDA_HIDDEN, 0, lane, o->hidden, mine.hidden);
        else if (o->dtype != mine.dtype)
            bad = 1, report(h, MPIX_CUDA_DTYPE, 0, lane, o->dtype, mine.dtype);
        else if (o->scale_kind != mine.scale_kind)
            bad = 1, report(h, MPIX_CUDA_SCALES, 0, lane, o->scale_kind, mine.scale_kind);
        else if (wanted && !(o->flags & MPIX_EP_OFFER_HAS_WEIGHTS))
            bad = 1, report(h, MPIX_CUDA_WEIGHTS, 0, lane, 0, 0);
    }
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* Tells everybody that this block's part is complete: what its threads wrote before the barrier
 * that precedes this call. By the first warp. The release of one thread after a block barrier
 * covers the whole block's writes; each block has a word of its own at each peer, so no block waits
 * for another before it signals. */
__device__ inline void block_signal(const mpix_cuda_handle &h, int words, uint64_t epoch) {
    if ((int)threadIdx.x < h.size) {
        delay(h, 52 + threadIdx.x);
        word_store((uint64_t *)((char *)words_of(h, threadIdx.x, h.rank) + words) + blockIdx.x,
                   epoch);
    }
}

/* By one thread of the last block: the counters are ready for the next call. */
__device__ inline void counters_reset(const mpix_cuda_handle &h, int type) {
    h.state->ticket[type] = 0;
    h.state->item[type] = 0;
    h.state->more[0] = h.state->more[1] = 0;
}

/* Whether this block is the last of the call to get here; after a block barrier. */
__device__ inline bool last_block(const mpix_cuda_handle &h, int type) {
    __shared__ int last;
    delay(h, 50);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&h.state->ticket[type], 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* By the last block: waits until all blocks of all mapped sources have signalled; a warp per
 * source. False in all threads: time-out. */
__device__ inline bool blocks_wait(const mpix_cuda_handle &h, int words, uint64_t at,
                                   uint64_t epoch, int64_t *wait_ns, mpix_cuda_status *to) {
    int lane = threadIdx.x % 32, bad = 0;
    uint64_t start = now_ns();
    for (int s = threadIdx.x / 32; s < h.size; s += blockDim.x / 32) {
        if (h.remote.is >> s & 1) /* proxied ranks' chunks have words of their own (remote.cuh) */
            continue;
        int n = *(const volatile int32_t *)&offer_of(h, h.rank, s, at, epoch)->blocks;
        const uint64_t *p = (const uint64_t *)((const char *)words_of(h, h.rank, s) + words);
        for (int i = lane; i < n && i < MPIX_CUDA_BLOCK_WORDS; i += 32)
            bad |= !word_wait(h, p + i, epoch, s, to);
        __syncwarp();
        if (wait_ns && lane == 0 && s != h.rank)
            wait_ns[s] += (int64_t)(now_ns() - start);
    }
    return !__syncthreads_or(bad);
}

/* By one thread of the last block, when everything else is done. err: the state's, since when
 * nothing was reported. */
__device__ inline void call_end(const mpix_cuda_handle &h, int type, uint64_t epoch,
                                mpix_cuda_status *to, int err) {
    counters_reset(h, type);
    h.state->epoch[type] = epoch;
    h.state->outcome[type] = err;
    if (err)
        status_write(h, to, h.state->status);
    h.state->err = 0;
}
__device__ inline void call_end(const mpix_cuda_handle &h, int type, uint64_t epoch,
                                mpix_cuda_status *to) {
    call_end(h, type, epoch, to, h.state->err);
}

/* A call of a context that has failed does nothing. True: it has. failed: the context's word. */
__device__ __forceinline__ int context_failed(const mpix_cuda_handle &h) {
    return *(volatile int32_t *)h.failed;
}
__device__ inline bool call_refused(const mpix_cuda_handle &h, mpix_cuda_status *to, int failed) {
    if (!failed) {
        delay(h, 51);
        return false;
    }
    if (blockIdx.x == 0 && threadIdx.x % 32 == 0)
        status_write(h, to, {MPIX_CUDA_FAILED, 0, -1, 0, 0, 0});
    return true;
}
__device__ inline bool call_refused(const mpix_cuda_handle &h, mpix_cuda_status *to) {
    return call_refused(h, to, context_failed(h));
}

/* By all threads of a block at its start, of which one looks: all leave, or none. The word may be
 * set meanwhile. */
__device__ inline bool block_refused(const mpix_cuda_handle &h, mpix_cuda_status *to) {
    return __syncthreads_or(call_refused(h, to, threadIdx.x == 0 ? context_failed(h) : 0));
}

/* Whether the routing can serve a call of so many tokens: a call in a graph keeps the numbers that
 * it was captured with. 0: yes. */
__device__ inline int routing_fault(const mpix_cuda_handle &h, int64_t tokens, int topk) {
    if (!h.state->routed)
        return MPIX_CUDA_NOT_ROUTED;
    return h.state->tokens != tokens || h.state->topk != topk ? MPIX_CUDA_STALE : 0;
}

/* What this rank says about its own part, as its READY does. */
__device__ __forceinline__ int own_status(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c) {
    return c.offer.status                                ? c.offer.status
           : routing_fault(h, c.tokens, c.topk)          ? MPIX_KIND_ARG
           : h.state->recv_total > c.capacity && !h.drop ? MPIX_KIND_TRUNCATE
                                                         : 0;
}

/* Where a place of rank r is mapped here. */
__device__ __forceinline__ char *place_at(const mpix_cuda_handle &h, int r,
                                          const mpix_ep_place &p) {
    return p.window < 0 ? nullptr : (char *)h.bases[p.window * MPIX_CUDA_RANKS + r] + p.off;
}

/* The row that token t has at rank r; -1: none. */
__device__ __forceinline__ int64_t row_of(const mpix_cuda_handle &h, int64_t t, int r) {
    if (!(h.bitmap[t] >> r & 1))
        return -1;
    return (int64_t)h.state->base[r] + h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + r] +
           h.rel[t * h.size + r];
}

/* What goes beside the row of token t, by a warp; rec: of lane r, where its record at rank r
 * goes, or null. */
__device__ inline void record_pack(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                   int64_t t, char *rec, int lane) {
    for (int r = 0; r < h.size; r++) {
        char *to = (char *)__shfl_sync(~0u, (unsigned long long)rec, r);
        if (!to)
            continue;
        if (lane == 0)
            *(int64_t *)to = t;
        for (int k = lane; k < c.topk; k += 32) {
            int32_t id = h.ids[t * h.max_topk + k];
            *mpix_record_int(to, MPIX_RECORD_GPU, MPIX_RECORD_ROW_LOCAL, h.max_topk,
                             k) = id >= 0 && h.owner[id] == r ? h.local[id] : -1;
            if (c.weights)
                *mpix_record_float(to, MPIX_RECORD_GPU, MPIX_RECORD_ROW_WEIGHT, h.max_topk,
                                   k) = c.weights[t * c.topk + k];
        }
    }
}
#endif
