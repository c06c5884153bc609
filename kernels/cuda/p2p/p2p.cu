/*
 * p2p.cu - MPIX_P2p_* in GPU memory: many pieces by one kernel, long or few ones by the copy
 * engine, additions, and what tells of their end.
 *
 * Notifications. A GPU's additions to host memory are not atomic with the processor's over PCIe,
 * so a GPU writes words of its own. On the library's stream the host knows each sum, and the
 * stream writes it (module.cu). Calls on streams of the caller's may run in any order and, in
 * graphs, again: their sum lies in device memory. Its top bit is a lock around "add, store",
 * which makes the word grow when kernels of several streams tell at once; its holder runs, so
 * nobody waits long.
 *
 * Order. One block: barrier, then one thread's fence at system scope covers what all its threads
 * stored. Several blocks or the copy engine: the tail is a kernel or a write of the stream behind
 * them, which begins when they are complete.
 */
#include "common/device.cuh"
#include "common/launch.h"

#include <stdio.h>

enum {
#if CUDART_VERSION >= 12010
    MANY = 1280, /* pieces whose addresses travel as parameters of one launch: 32 KB of them */
#else
    MANY = 160, /* 4 KB */
#endif
    FEW = 8,
    SOME = 160,
    BLOCKS = 64,
    THREADS = 512,
    UNIT_MIN = 512,
    UNIT_MAX = 4096,  /* bytes that a warp takes at once */
    PIECES_MIN = 4,   /* fewer are faster by the copy engine */
    ONE_BLOCK = 32768 /* bytes in all that one block moves, so that it can tell
                       * the end itself */
};

struct part {
    char *to;
    const char *from;
    uint32_t bytes, first; /* units before this piece */
};

template <int N> struct batch {
    mpix_cuda_tail tail;
    uint32_t n, units, unit, pad;
    part p[N];
};

/* ---- bytes ----------------------------------------------------------------------------------- */

template <typename T>
__device__ __forceinline__ void move_as(char *to, const char *from, uint32_t bytes, int lane) {
    constexpr int DEEP = 8;
    const T *src = (const T *)from;
    T *dst = (T *)to;
    uint32_t n = bytes / sizeof(T), i = lane;
    for (; i + (DEEP - 1) * 32 < n; i += DEEP * 32) {
        T v[DEEP];
#pragma unroll
        for (int k = 0; k < DEEP; k++)
            v[k] = src[i + k * 32];
#pragma unroll
        for (int k = 0; k < DEEP; k++)
            dst[i + k * 32] = v[k];
    }
    for (; i < n; i += 32)
        dst[i] = src[i];
}

/* By a warp. What both sides' alignment allows; an aligned word of 2, 4 or 8 bytes is one store. */
__device__ void move_warp(char *to, const char *from, uint32_t bytes, int lane) {
    uint32_t differ = (uint32_t)((uintptr_t)to ^ (uintptr_t)from), head;
    uint32_t width = differ & 1 ? 1 : differ & 2 ? 2 : differ & 4 ? 4 : differ & 8 ? 8 : 16;
    if (bytes < width)
        width = bytes >= 8 ? 8 : bytes >= 4 ? 4 : bytes >= 2 ? 2 : 1;
    head = (uint32_t)(-(uintptr_t)to & (width - 1));
    if (head > bytes)
        head = bytes;
    if (lane < (int)head)
        to[lane] = from[lane];
    to += head, from += head, bytes -= head;
    switch (width) {
    case 16: move_as<uint4>(to, from, bytes, lane); break;
    case 8: move_as<uint64_t>(to, from, bytes, lane); break;
    case 4: move_as<uint32_t>(to, from, bytes, lane); break;
    case 2: move_as<uint16_t>(to, from, bytes, lane); break;
    default: move_as<uint8_t>(to, from, bytes, lane); break;
    }
    uint32_t done = bytes & ~(width - 1);
    if (lane < (int)(bytes - done))
        to[done + lane] = from[done + lane];
}

/* The address of a parameter, which the compiler can't see through. */
__device__ __forceinline__ const void *generic(const void *p) {
    asm volatile("" : "+l"(p));
    return p;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* By one thread, behind a fence at system scope that covers everything it tells of. */
__device__ void tail_run(const mpix_cuda_tail &t) {
    const unsigned long long lock = 1ull << 63;
    if (t.counter) {
        unsigned long long *c = (unsigned long long *)t.counter, old;
        while ((old = atomicOr(c, lock)) & lock)
            __nanosleep(20);
        __threadfence();
        *(volatile uint64_t *)t.word = old + t.value;
        __threadfence_system(); /* the next holder's store comes after this one */
        atomicExch(c, old + t.value);
    } else if (t.word) {
        *(volatile uint64_t *)t.word = t.value;
    }
    if (t.done)
        *(volatile uint64_t *)t.done = t.end;
}

template <int N>
__global__ void __launch_bounds__(THREADS) move_kernel(const __grid_constant__ batch<N> b) {
    /* The pieces go to shared memory by ordinary loads: a search among parameters as such would be
     * a row of misses of the constant cache. */
    __shared__ part p[N];
    const uint64_t *from = (const uint64_t *)generic(&b.p[0]);
    for (uint32_t i = threadIdx.x; i < b.n * (sizeof(part) / 8); i += blockDim.x)
        ((uint64_t *)p)[i] = from[i];
    __syncthreads();
    uint32_t warps = blockDim.x / 32, lane = threadIdx.x % 32;
    for (uint32_t u = blockIdx.x * warps + threadIdx.x / 32; u < b.units; u += gridDim.x * warps) {
        uint32_t low = 0, high = b.n; /* the last piece that begins at u or before */
        while (high - low > 1) {
            uint32_t mid = (low + high) / 2;
            if (p[mid].first <= u)
                low = mid;
            else
                high = mid;
        }
        uint32_t off = (u - p[low].first) * b.unit, left = p[low].bytes - off;
        move_warp(p[low].to + off, p[low].from + off, left < b.unit ? left : b.unit, (int)lane);
    }
    if (!b.tail.word && !b.tail.done)
        return; /* several blocks: somebody else tells */
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        tail_run(b.tail);
    }
}

__global__ void tail_kernel(mpix_cuda_tail t) {
    __threadfence_system();
    tail_run(t);
}

__global__ void add_kernel(unsigned long long *word, unsigned long long add, uint64_t *old,
                           mpix_cuda_tail t) {
    *(volatile uint64_t *)old = atomicAdd_system(word, add);
    __threadfence_system();
    tail_run(t);
}

/* ---- launches -------------------------------------------------------------------------------- */

cudaError_t mpix_cuda_p2p_load(int *arch) {
    return mpix_cuda_load(arch, move_kernel<FEW>, move_kernel<SOME>, move_kernel<MANY>, tail_kernel,
                          add_kernel);
}

template <int N>
static cudaError_t launch(const mpix_cuda_piece *pieces, int n, uint64_t bytes, uint64_t most,
                          const mpix_cuda_tail *tail, cudaStream_t stream) {
    batch<N> b; /* what lies behind the last piece is not read */
    int one = bytes <= ONE_BLOCK, threads = THREADS;
    uint64_t warps = one ? THREADS / 32 : BLOCKS * (THREADS / 32),
             unit = (bytes / warps + UNIT_MIN - 1) / UNIT_MIN * UNIT_MIN, units = 0;
    if (unit > most) /* no piece is longer */
        unit = (most + UNIT_MIN - 1) / UNIT_MIN * UNIT_MIN;
    b.unit = (uint32_t)(unit < UNIT_MIN ? UNIT_MIN : unit > UNIT_MAX ? UNIT_MAX : unit);
    b.tail = one && tail ? *tail : mpix_cuda_tail{};
    b.n = (uint32_t)n;
    b.pad = 0;
    for (int i = 0; i < n; i++) {
        b.p[i] = {(char *)pieces[i].to, (const char *)pieces[i].from, (uint32_t)pieces[i].bytes,
                  (uint32_t)units};
        units += (pieces[i].bytes + b.unit - 1) / b.unit;
    }
    b.units = (uint32_t)units;
    if (units < THREADS / 32) /* a warp each is enough */
        threads = (int)(units ? units : 1) * 32;
    uint64_t blocks = one ? 1 : (units + THREADS / 32 - 1) / (THREADS / 32);
    move_kernel<N><<<(unsigned)(blocks < BLOCKS ? blocks : BLOCKS), threads, 0, stream>>>(b);
    return cudaGetLastError();
}

static cudaError_t launch_any(const mpix_cuda_piece *pieces, int n, uint64_t bytes, uint64_t most,
                              const mpix_cuda_tail *tail, cudaStream_t stream) {
    return n <= FEW    ? launch<FEW>(pieces, n, bytes, most, tail, stream)
           : n <= SOME ? launch<SOME>(pieces, n, bytes, most, tail, stream)
                       : launch<MANY>(pieces, n, bytes, most, tail, stream);
}

cudaError_t mpix_cuda_p2p_tail(const mpix_cuda_tail *tail, cudaStream_t stream) {
    tail_kernel<<<1, 1, 0, stream>>>(*tail);
    return cudaGetLastError();
}

static cudaError_t engine(const mpix_cuda_piece *p, cudaStream_t stream) {
    return cudaMemcpyAsync(p->to, p->from, p->bytes, cudaMemcpyDefault, stream);
}

/* All but the tail, unless that has a counter: then it is told here, by the kernel that copies
 * if one block can. The kernel's pieces are moved to the front of the array, the others are
 * started at once. */
cudaError_t mpix_cuda_p2p_move(mpix_cuda_piece *pieces, int n, uint64_t kernel_bytes,
                               const mpix_cuda_tail *tail, cudaStream_t stream) {
    uint64_t bytes = 0, most = 0;
    int small = 0, others = 0;
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < n && err == cudaSuccess; i++) {
        if (pieces[i].bytes == 0)
            continue;
        if (pieces[i].kernel && pieces[i].bytes <= kernel_bytes) {
            bytes += pieces[i].bytes;
            most = pieces[i].bytes > most ? pieces[i].bytes : most;
            pieces[small++] = pieces[i];
        } else {
            others = 1;
            err = engine(&pieces[i], stream);
        }
    }
    int fused = tail->counter && !others && small > 0 && small <= MANY && bytes <= ONE_BLOCK;
    for (; small < PIECES_MIN && !fused && small > 0 && err == cudaSuccess; small--)
        err = engine(&pieces[small - 1], stream);
    for (int at = 0; at < small && err == cudaSuccess;) {
        int m = small - at < MANY ? small - at : MANY;
        uint64_t part = bytes;
        if (small > MANY) {
            part = 0;
            for (int i = 0; i < m; i++)
                part += pieces[at + i].bytes;
        }
        err = launch_any(pieces + at, m, part, most, fused ? tail : NULL, stream);
        at += m;
    }
    return err == cudaSuccess && tail->counter && !fused ? mpix_cuda_p2p_tail(tail, stream) : err;
}

cudaError_t mpix_cuda_p2p_add(uint64_t *word, uint64_t add, uint64_t *old,
                              const mpix_cuda_tail *tail, cudaStream_t stream) {
    add_kernel<<<1, 1, 0, stream>>>((unsigned long long *)word, (unsigned long long)add, old,
                                    *tail);
    return cudaGetLastError();
}
