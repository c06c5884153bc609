/*
 * mpix_device.cuh - put, signal, wait, flush and atomic add inside a CUDA kernel. CUDA C++17, sm_70
 * or later. Handles come from mpix_device.h.
 *
 * Scope. Each function has a template parameter that says who calls it: one thread (MPIX_THREAD),
 * all 32 threads of a warp (MPIX_WARP), or all threads of a block (MPIX_BLOCK), each with the same
 * arguments; all get the same result. What the threads of the scope stored before the call belongs
 * to it: no barrier of the caller's is needed before or after.
 *
 * Order. A signal to a peer, alone or in mpix_put_signal, is seen there after everything that the
 * threads of its scope put to the same peer before, and after what others put before if they
 * synchronised with those threads. Puts among each other are not ordered. What a wait has seen
 * signalled can be read by the scope's threads with ordinary loads - not with ld.global.nc, and
 * memory that is waited for must not have been read before through __ldg or const __restrict__.
 *
 * Waiting. No call waits longer than the object's timeout_s. Kernels whose blocks wait for other
 * ranks must be resident on all of them at once: not more blocks than the GPU runs together, and
 * where ranks share a GPU, each must get its turn.
 */
#ifndef MPIX_DEVICE_CUH
#define MPIX_DEVICE_CUH
#include "mpix_device.h"

enum mpix_scope { MPIX_THREAD, MPIX_WARP, MPIX_BLOCK };

/* ---- private --------------------------------------------------------------------------------- */

__device__ __forceinline__ unsigned long long mpix_dev_now() {
    unsigned long long v;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
    return v;
}
__device__ __forceinline__ unsigned long long mpix_dev_acquire_sys(const unsigned long long *p) {
    unsigned long long v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ unsigned long long mpix_dev_acquire_gpu(const unsigned long long *p) {
    unsigned long long v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ unsigned long long mpix_dev_relaxed(const unsigned long long *p) {
    unsigned long long v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void mpix_dev_fence_sys() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ __forceinline__ unsigned long long mpix_dev_add_gpu(unsigned long long *p,
                                                               unsigned long long n) {
    unsigned long long old;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(n) : "memory");
    return old;
}
__device__ __forceinline__ void mpix_dev_seen(unsigned long long *p, unsigned long long tail) {
    asm volatile("red.release.gpu.max.u64 [%0], %1;" ::"l"(p), "l"(tail) : "memory");
}

template <mpix_scope S> __device__ __forceinline__ int mpix_dev_leader() {
    if (S == MPIX_BLOCK)
        return threadIdx.x + threadIdx.y + threadIdx.z == 0;
    return S == MPIX_THREAD ||
           (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == 0;
}
template <mpix_scope S> __device__ __forceinline__ void mpix_dev_sync() {
    if (S == MPIX_BLOCK)
        __syncthreads();
    else if (S == MPIX_WARP)
        __syncwarp();
}
/* The leader's result for all; also the barrier behind which what the leader acquired
 * is everybody's. */
template <mpix_scope S> __device__ __forceinline__ int mpix_dev_all(int result) {
    if (S == MPIX_BLOCK) {
        const int mine = mpix_dev_leader<S>() ? result : 0;
        if (!__syncthreads_or(mine)) /* says only whether, not which */
            return MPIX_DEVICE_OK;
        result = 0;
        for (int bit = 1; bit < 1 << 5; bit <<= 1)
            result |= __syncthreads_or(mine & bit) ? bit : 0;
        return result;
    }
    if (S == MPIX_WARP) {
        result = __shfl_sync(0xffffffffu, result, 0);
        __syncwarp();
    }
    return result;
}

/*
 * n places in a row of the queue; *position becomes the number of the first. 0: there was no room
 * in time, and nothing was claimed.
 *
 * Room and place are two counters, because a compare-and-swap of one fails for all but one of those
 * who try at once. `reserved` counts those who were let in: who finds, when it adds n, that
 * reserved + n exceeds tail + slots takes its n back. It never is less than the number of those who
 * were let in; ones that were refused and have not taken theirs back yet can refuse others too
 * early, but let nobody in too many: the k-th place is given out by `head` only after k were let
 * in, and then k <= tail + slots. So a slot that is written was taken, by a tail that was read with
 * acquire, here or by whoever stored `seen` with release. And as nobody is let in without room, a
 * producer that gives up leaves no hole.
 *
 * A full ring. `seen`, a copy of the tail in GPU memory, is all that is looked at while
 * others could be kept out; one producer at a time fetches the tail itself over PCIe. (All of
 * them fetching it, and each trying again at every sight of room: 0.4 instead of several
 * million commands/s.)
 */
__device__ inline int mpix_dev_claim(const mpix_dev_fifo &f, unsigned n,
                                     unsigned long long timeout_ns, unsigned long long *position) {
    const unsigned long long slots = f.mask + 1;
    unsigned long long start = 0;
    unsigned pause = 64;
    for (;;) {
        unsigned long long in = mpix_dev_relaxed(f.reserved) + n,
                           tail = mpix_dev_acquire_gpu(f.seen);
        if ((long long)(in - tail) <= (long long)slots) {
            in = mpix_dev_add_gpu(f.reserved, n) + n;
            if ((long long)(in - tail) <= (long long)slots) {
                *position = mpix_dev_add_gpu(f.head, n);
                return 1;
            }
            mpix_dev_add_gpu(f.reserved, 0ull - n);
        }
        unsigned long long now = mpix_dev_now();
        if (!start)
            start = now;
        else if (now - start > timeout_ns)
            return 0;
        if (atomicExch(f.looking, 1ull) == 0) {
            mpix_dev_seen(f.seen, mpix_dev_acquire_sys(f.tail));
            atomicExch(f.looking, 0ull);
        } else {
            __nanosleep(pause);
            pause = pause < 1024 ? pause * 2 : pause;
        }
    }
}

/* Relaxed: what the command tells of, its descriptor included, was fenced before. */
__device__ __forceinline__ void mpix_dev_store(const mpix_dev_fifo &f, unsigned long long position,
                                               unsigned long long word0, unsigned long long word1) {
    const unsigned long long valid = 1ull << 63, parity = position & (f.mask + 1) ? 0 : valid;
    unsigned long long *slot = f.slots + 2 * (position & f.mask);
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(slot),
                 "l"((word0 & ~valid) | parity), "l"((word1 & ~valid) | parity)
                 : "memory");
}

/* By whoever claimed n places: every quarter of a lap somebody reads the tail, so that the others
 * seldom find the ring full by an old copy. */
__device__ __forceinline__ void mpix_dev_refresh(const mpix_dev_fifo &f,
                                                 unsigned long long position, unsigned n) {
    const unsigned long long quarter = (f.mask + 1) / 4;
    if (quarter && position / quarter != (position + n) / quarter)
        mpix_dev_seen(f.seen, mpix_dev_acquire_sys(f.tail));
}

/* For a peer: notes the command's number, which mpix_flush waits for. */
__device__ __forceinline__ void mpix_dev_note(const mpix_dev_peer &p, unsigned long long number) {
    asm volatile("red.relaxed.gpu.max.u64 [%0], %1;" ::"l"(p.last), "l"(number) : "memory");
}

__device__ __forceinline__ unsigned long long
mpix_dev_word0(int op, unsigned remote, unsigned local, unsigned long long bytes) {
    return (unsigned long long)op | (unsigned long long)remote << 3 |
           (unsigned long long)local << 19 | bytes << 31;
}

/* A put as a command, with a descriptor at its place if it needs one. */
struct mpix_dev_put_cmd {
    unsigned long long word0, word1, loff, roff, bytes;
    int desc;
    __device__ mpix_dev_put_cmd(int rmem, unsigned long long roff_, int mem,
                                unsigned long long loff_, unsigned long long bytes_)
        : loff(loff_), roff(roff_), bytes(bytes_) {
        desc = ((loff | roff) & (MPIX_DEV_UNIT - 1)) != 0 || loff / MPIX_DEV_UNIT >> 31 ||
               roff / MPIX_DEV_UNIT >> 32 || bytes >> 32;
        word0 = mpix_dev_word0(desc ? MPIX_DEV_CMD_PUT_DESC : MPIX_DEV_CMD_PUT, (unsigned)rmem,
                               (unsigned)mem, desc ? 0 : bytes);
        word1 = desc ? 0 : loff / MPIX_DEV_UNIT | roff / MPIX_DEV_UNIT << 31;
    }
};

__device__ __forceinline__ void mpix_dev_desc(const mpix_dev_fifo &f, unsigned long long position,
                                              unsigned long long loff, unsigned long long roff,
                                              unsigned long long bytes, unsigned long long value) {
    volatile unsigned long long *d = f.descs + MPIX_DEV_DESC_WORDS * (position & f.mask);
    d[0] = loff;
    d[1] = roff;
    d[2] = bytes;
    d[3] = value;
}

/* By one thread; covers what it and those it synchronised with stored. put: NULL for none; slot: -1
 * for no signal. */
__device__ inline int mpix_dev_command(const mpix_dev_state &s, int peer,
                                       const mpix_dev_put_cmd *put, int slot,
                                       unsigned long long add) {
    const mpix_dev_peer &p = s.peers[peer];
    const mpix_dev_fifo &f = s.fifo[p.fifo];
    const unsigned n = (put ? 1u : 0u) + (slot >= 0 ? 1u : 0u);
    unsigned long long at;
    if (!mpix_dev_claim(f, n, s.timeout_ns, &at))
        return mpix_dev_relaxed(p.error) ? (int)mpix_dev_relaxed(p.error) : MPIX_DEVICE_TIMEOUT;
    if (put && put->desc)
        mpix_dev_desc(f, at, put->loff, put->roff, put->bytes, 0);
    mpix_dev_fence_sys();
    if (put)
        mpix_dev_store(f, at, put->word0, put->word1);
    if (slot >= 0)
        mpix_dev_store(f, at + n - 1,
                       mpix_dev_word0(MPIX_DEV_CMD_SIGNAL, (unsigned)peer, 0, (unsigned)slot), add);
    mpix_dev_note(p, at + n);
    mpix_dev_refresh(f, at, n);
    return MPIX_DEVICE_OK;
}

/* The counters of a mapped peer: by an addition over the link where that adds to the peer's
 * memory; elsewhere, as in host memory, where the GPU's additions are none to the processor, by
 * storing the new sum, which nobody else changes, under a lock that makes the word grow. By one
 * thread, behind a fence. */
__device__ inline void mpix_dev_count(const mpix_dev_peer &p, int slot, unsigned long long add) {
    if (!p.sums) {
        asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(p.out + slot), "l"(add)
                     : "memory");
        return;
    }
    const unsigned long long lock = 1ull << 63;
    unsigned long long old;
    while ((old = atomicOr(&p.sums[slot], lock)) & lock)
        __nanosleep(20);
    __threadfence();
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p.out + slot), "l"(old + add) : "memory");
    __threadfence_system(); /* the next holder's store comes after this one */
    atomicExch(&p.sums[slot], old + add);
}

template <typename T>
__device__ __forceinline__ void mpix_dev_move(char *to, const char *from, unsigned long long bytes,
                                              unsigned i, unsigned n) {
    const T *src = (const T *)from;
    T *dst = (T *)to;
    for (unsigned long long at = i; at < bytes / sizeof(T); at += n)
        dst[at] = src[at];
}

/* By n threads, each with its number i: in units that both addresses allow, a thread's neighbours
 * take the neighbouring ones. */
__device__ inline void mpix_dev_copy(char *to, const char *from, unsigned long long bytes,
                                     unsigned i, unsigned n) {
    unsigned long long differ = (unsigned long long)to ^ (unsigned long long)from;
    unsigned width = differ & 1 ? 1 : differ & 2 ? 2 : differ & 4 ? 4 : differ & 8 ? 8 : 16;
    unsigned long long head = (0ull - (unsigned long long)to) & (width - 1);
    if (head > bytes)
        head = bytes;
    for (unsigned k = i; k < head; k += n)
        to[k] = from[k];
    to += head, from += head, bytes -= head;
    switch (width) {
    case 16: mpix_dev_move<uint4>(to, from, bytes, i, n); break;
    case 8: mpix_dev_move<unsigned long long>(to, from, bytes, i, n); break;
    case 4: mpix_dev_move<unsigned>(to, from, bytes, i, n); break;
    case 2: mpix_dev_move<unsigned short>(to, from, bytes, i, n); break;
    default: mpix_dev_move<unsigned char>(to, from, bytes, i, n); break;
    }
    unsigned long long done = bytes & ~(unsigned long long)(width - 1);
    for (unsigned long long k = done + i; k < bytes; k += n)
        to[k] = from[k];
}

template <mpix_scope S>
__device__ __forceinline__ void mpix_dev_copy_scope(char *to, const char *from,
                                                    unsigned long long bytes) {
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    mpix_dev_sync<S>(); /* what the scope's other threads have just stored is to be read here */
    if (S == MPIX_THREAD)
        mpix_dev_copy(to, from, bytes, 0, 1);
    else
        mpix_dev_copy(to, from, bytes, S == MPIX_WARP ? thread % 32 : thread,
                      S == MPIX_WARP ? 32 : blockDim.x * blockDim.y * blockDim.z);
}

/* Whether a wait has to end; start: 0 at first. */
__device__ __forceinline__ int mpix_dev_late(const unsigned long long *error_word,
                                             unsigned long long timeout_ns,
                                             unsigned long long *start) {
    unsigned long long now = mpix_dev_now(), error = error_word ? mpix_dev_relaxed(error_word) : 0;
    if (error)
        return (int)error;
    if (!*start)
        *start = now;
    return now - *start > timeout_ns ? MPIX_DEVICE_TIMEOUT : MPIX_DEVICE_OK;
}

/* Until *word has reached at_least. */
__device__ inline int mpix_dev_await(const unsigned long long *word, unsigned long long at_least,
                                     const unsigned long long *error,
                                     unsigned long long timeout_ns) {
    unsigned long long start = 0;
    int bad = 0;
    for (unsigned turns = 0; mpix_dev_acquire_sys(word) < at_least && !bad; turns++)
        if (turns % 16 == 15)
            bad = mpix_dev_late(error, timeout_ns, &start);
    return bad;
}

/*
 * The same of a word in host memory that many threads wait for at once: one of them reads it over
 * PCIe and copies it to `seen`, in GPU memory, for the others. (Each reading for itself keeps the
 * cache line from the processor that wants to write it: a median of 64 instead of 4 to 6 us with 64
 * warps.) Whoever has got what it waited for leaves the reading to the next that finds it free.
 */
__device__ inline int mpix_dev_await_shared(const unsigned long long *word,
                                            unsigned long long *seen, unsigned long long *looking,
                                            unsigned long long at_least,
                                            const unsigned long long *error,
                                            unsigned long long timeout_ns) {
    unsigned long long start = 0, last = 0;
    int bad = 0;
    for (unsigned turns = 0; !bad; turns++) {
        if (atomicExch(looking, 1ull) == 0) {
            for (; !bad && last < at_least; turns++) {
                unsigned long long now = mpix_dev_acquire_sys(word);
                if (now > last)
                    mpix_dev_seen(seen, last = now);
                if (turns % 16 == 15)
                    bad = mpix_dev_late(error, timeout_ns, &start);
            }
            atomicExch(looking, 0ull);
            return bad;
        }
        if (mpix_dev_acquire_gpu(seen) >= at_least)
            return MPIX_DEVICE_OK;
        if (turns % 16 == 15)
            bad = mpix_dev_late(error, timeout_ns, &start);
    }
    return bad;
}

__device__ __forceinline__ int mpix_dev_within(unsigned long long bytes, unsigned long long off,
                                               unsigned long long len) {
    return len <= bytes && off <= bytes - len;
}

template <mpix_scope S>
__device__ inline int mpix_dev_put(const MPIX_Device &d, const MPIX_Device_rmem &to,
                                   unsigned long long roff, const MPIX_Device_mem &from,
                                   unsigned long long off, unsigned long long len, int slot,
                                   unsigned long long add) {
    if (!mpix_dev_within(to.bytes, roff, len) || !mpix_dev_within(from.bytes, off, len) ||
        slot >= d.slots || add >> 63)
        return MPIX_DEVICE_ARG;
    if (!to.ptr && (from.index < 0 || to.index < 0))
        return MPIX_DEVICE_UNSUPPORTED;
    if (!to.ptr) {
        int result = 0;
        mpix_dev_sync<S>();
        if (mpix_dev_leader<S>()) {
            const mpix_dev_put_cmd put(to.index, roff, from.index, off, len);
            result = mpix_dev_command(*d.state, to.peer, len ? &put : nullptr, slot, add);
        }
        return len || slot >= 0 ? mpix_dev_all<S>(result) : MPIX_DEVICE_OK;
    }
    mpix_dev_copy_scope<S>((char *)to.ptr + roff, (const char *)from.ptr + off, len);
    mpix_dev_sync<S>();
    if (slot >= 0 && mpix_dev_leader<S>()) {
        mpix_dev_fence_sys();
        mpix_dev_count(d.state->peers[to.peer], slot, add);
    }
    return MPIX_DEVICE_OK;
}

/* ---- for kernels ----------------------------------------------------------------------------- */

/**
 * Writes len bytes to a peer's memory. Any offsets and lengths; multiples of 16 are fastest.
 *
 * @param d     the object
 * @param to    the peer's memory
 * @param roff  offset in it
 * @param from  local memory, which must not change until mpix_flush, or until the peer has told
 *   that it has got the data
 * @param off   offset in it
 * @param len   bytes; 0 moves nothing
 * @return 0, or MPIX_DEVICE_ARG, _UNSUPPORTED, _TIMEOUT (no room in the queue: nothing
 *   was queued), _PEER
 */
template <mpix_scope S>
__device__ __forceinline__ int mpix_put(const MPIX_Device &d, const MPIX_Device_rmem &to,
                                        uint64_t roff, const MPIX_Device_mem &from, uint64_t off,
                                        uint64_t len) {
    return mpix_dev_put<S>(d, to, roff, from, off, len, -1, 0);
}

/**
 * mpix_put, and then mpix_signal to the same peer, which sees the signal after the data.
 *
 * @param slot  counter of (this rank, peer), 0 to d.slots - 1
 * @param add   what is added to it, below 2^63
 * @return as mpix_put
 */
template <mpix_scope S>
__device__ __forceinline__ int mpix_put_signal(const MPIX_Device &d, const MPIX_Device_rmem &to,
                                               uint64_t roff, const MPIX_Device_mem &from,
                                               uint64_t off, uint64_t len, int slot, uint64_t add) {
    return slot < 0 ? MPIX_DEVICE_ARG : mpix_dev_put<S>(d, to, roff, from, off, len, slot, add);
}

/**
 * Adds to a counter at a peer, after what was put there before.
 *
 * @param peer  the rank that will wait; may be this one
 * @param slot  counter of (this rank, peer)
 * @param add   below 2^63
 * @return 0, or MPIX_DEVICE_ARG, _TIMEOUT, _PEER
 */
template <mpix_scope S>
__device__ inline int mpix_signal(const MPIX_Device &d, int peer, int slot, uint64_t add) {
    int result = MPIX_DEVICE_OK;
    if (peer < 0 || peer >= d.size || slot < 0 || slot >= d.slots || add >> 63)
        return MPIX_DEVICE_ARG;
    mpix_dev_sync<S>();
    if (mpix_dev_leader<S>()) {
        const mpix_dev_peer &p = d.state->peers[peer];
        if (p.proxied) {
            result = mpix_dev_command(*d.state, peer, nullptr, slot, add);
        } else {
            mpix_dev_fence_sys();
            mpix_dev_count(p, slot, add);
        }
    }
    return mpix_dev_all<S>(result);
}

/** The value of a peer's counter here now. What was put before the signals that it counts can be
 * read. By each thread for itself. */
__device__ __forceinline__ uint64_t mpix_signal_value(const MPIX_Device &d, int peer, int slot) {
    return mpix_dev_acquire_sys(d.state->peers[peer].in + slot);
}

/**
 * Waits until a peer's counter has reached a value.
 *
 * @param peer      the rank that signals; may be this one
 * @param slot      counter of (peer, this rank)
 * @param at_least  its value
 * @return 0, or MPIX_DEVICE_ARG, _TIMEOUT, _PEER: then what was awaited must not be read
 */
template <mpix_scope S>
__device__ inline int mpix_wait(const MPIX_Device &d, int peer, int slot, uint64_t at_least) {
    int result = MPIX_DEVICE_OK;
    if (peer < 0 || peer >= d.size || slot < 0 || slot >= d.slots)
        return MPIX_DEVICE_ARG;
    if (mpix_dev_leader<S>()) {
        const mpix_dev_peer &p = d.state->peers[peer];
        result = mpix_dev_await(p.in + slot, at_least, p.error, d.state->timeout_ns);
    }
    return mpix_dev_all<S>(result);
}

/**
 * Waits until everything that the scope's threads have put and added to a peer before is in the
 * peer's memory; local memory may be used again then.
 *
 * @return 0, or MPIX_DEVICE_ARG, _TIMEOUT, _PEER
 */
template <mpix_scope S> __device__ inline int mpix_flush(const MPIX_Device &d, int peer) {
    int result = MPIX_DEVICE_OK;
    if (peer < 0 || peer >= d.size)
        return MPIX_DEVICE_ARG;
    mpix_dev_sync<S>();
    if (mpix_dev_leader<S>()) {
        const mpix_dev_state &s = *d.state;
        const mpix_dev_peer &p = s.peers[peer];
        mpix_dev_fence_sys();
        if (p.proxied && mpix_dev_acquire_gpu(p.last)) {
            const mpix_dev_fifo &f = s.fifo[p.fifo];
            unsigned long long at;
            if (!mpix_dev_claim(f, 1, s.timeout_ns, &at)) {
                result = MPIX_DEVICE_TIMEOUT;
            } else {
                mpix_dev_store(f, at, mpix_dev_word0(MPIX_DEV_CMD_FLUSH, (unsigned)peer, 0, 0), 0);
                mpix_dev_refresh(f, at, 1);
                result = mpix_dev_await_shared(p.done, p.done_seen, p.looking, at + 1, p.error,
                                               s.timeout_ns);
            }
        }
    }
    return mpix_dev_all<S>(result);
}

/**
 * Adds to a 64-bit integer in a peer's memory, atomically with all other additions of this
 * library's calls to it. Not ordered with puts; mpix_flush covers it.
 *
 * @param to     a peer's memory with to.atomics = 1
 * @param roff   offset of the word, a multiple of 8
 * @param value  what to add
 * @return 0, or MPIX_DEVICE_ARG, _UNSUPPORTED, _TIMEOUT, _PEER
 */
template <mpix_scope S>
__device__ inline int mpix_atomic_add(const MPIX_Device &d, const MPIX_Device_rmem &to,
                                      uint64_t roff, int64_t value) {
    int result = MPIX_DEVICE_OK;
    if (!mpix_dev_within(to.bytes, roff, 8) || ((unsigned long long)to.ptr + roff) % 8)
        return MPIX_DEVICE_ARG;
    if (!to.atomics)
        return MPIX_DEVICE_UNSUPPORTED;
    mpix_dev_sync<S>();
    if (mpix_dev_leader<S>() && to.ptr) {
        asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"((char *)to.ptr + roff),
                     "l"(value)
                     : "memory");
    } else if (mpix_dev_leader<S>()) {
        const mpix_dev_state &s = *d.state;
        const mpix_dev_peer &p = s.peers[to.peer];
        const mpix_dev_fifo &f = s.fifo[p.fifo];
        unsigned long long at;
        if (!mpix_dev_claim(f, 1, s.timeout_ns, &at)) {
            result = mpix_dev_relaxed(p.error) ? (int)mpix_dev_relaxed(p.error)
                                               : MPIX_DEVICE_TIMEOUT;
        } else {
            mpix_dev_desc(f, at, 0, roff, 8, (unsigned long long)value);
            mpix_dev_fence_sys();
            mpix_dev_store(f, at, mpix_dev_word0(MPIX_DEV_CMD_ADD_DESC, (unsigned)to.index, 0, 0),
                           0);
            mpix_dev_note(p, at + 1);
            mpix_dev_refresh(f, at, 1);
        }
    }
    return mpix_dev_all<S>(result);
}
#endif
