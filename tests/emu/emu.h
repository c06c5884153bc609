/*
 * emu.h - CUDA's device code on a processor, for tests where no GPU is: prepare.pl makes C++ of the
 * module's sources, which sees these functions in the place of what CUDA has built in. A thread of
 * a kernel is a fiber; threads of a warp meet in __shfl_sync and its kin, those of a block at
 * barriers; loads of words that others write let other fibers run. Atomic operations are the
 * processor's, between ranks too. What it can't show: the memory order of a GPU, races, speed,
 * asynchronous copies that are late, streams (a launch returns when the kernel has ended).
 */
#ifndef MPIX_TESTS_EMU_EMU_H
#define MPIX_TESTS_EMU_EMU_H
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <utility>

#undef __align__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __noinline__
#undef __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __device__
#define __forceinline__ inline
#define __global__ static
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))

#ifndef EMU_ARCH
#define EMU_ARCH 800 /* in the place of __CUDA_ARCH__ */
#endif

/* ---- where a thread is ----------------------------------------------------------------------- */
struct emu_place {
    dim3 thread, block, threads, blocks;
};
extern emu_place emu_here; /* of the fiber that runs */
#define threadIdx emu_here.thread
#define blockIdx emu_here.block
#define blockDim emu_here.threads
#define gridDim emu_here.blocks

void emu_yield();
void emu_exchange(uint64_t mine, uint64_t *all);             /* a word of each lane of the warp */
int emu_barrier(int id, int threads, int value, bool waits); /* the sum of the values */
void *emu_static(int id, size_t bytes);                      /* shared memory: a variable; what the
                                                              * launch asked for */
void *emu_dynamic();
uint64_t emu_now();
void emu_do(const std::function<void()> &what); /* now, or if a stream is being captured when the
                                                 * graph is launched */
void emu_launch(unsigned blocks, unsigned threads, size_t shared,
                const std::function<void()> &kernel);
template <class... P, class... A>
static inline void emu_launch_as(unsigned blocks, unsigned threads, size_t shared,
                                 void (*kernel)(P...), const A &...a) {
    emu_do([=] { emu_launch(blocks, threads, shared, [&] { kernel(a...); }); });
}

/* ---- warps ----------------------------------------------------------------------------------- */
template <class T> static inline T emu_from(T v, unsigned lane) {
    uint64_t mine = 0, all[32];
    T got;
    memcpy(&mine, &v, sizeof v);
    emu_exchange(mine, all);
    memcpy(&got, &all[lane % 32], sizeof got);
    return got;
}
template <class T> static inline T __shfl_sync(uint32_t, T v, int lane) {
    return emu_from(v, (unsigned)lane);
}
template <class T> static inline T __shfl_xor_sync(uint32_t, T v, int d) {
    return emu_from(v, threadIdx.x % 32 ^ (unsigned)d);
}
template <class T> static inline T __shfl_up_sync(uint32_t, T v, int d) {
    unsigned lane = threadIdx.x % 32;
    return emu_from(v, lane >= (unsigned)d ? lane - (unsigned)d : lane);
}
static inline uint32_t __ballot_sync(uint32_t, int yes) {
    uint64_t all[32];
    uint32_t mask = 0;
    emu_exchange(yes != 0, all);
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)all[i] << i;
    return mask;
}
static inline int __any_sync(uint32_t m, int yes) { return __ballot_sync(m, yes) != 0; }
static inline int __all_sync(uint32_t m, int yes) { return __ballot_sync(m, yes) == ~0u; }
static inline unsigned __reduce_min_sync(uint32_t, unsigned v) {
    uint64_t all[32];
    emu_exchange(v, all);
    for (int i = 0; i < 32; i++)
        v = all[i] < v ? (unsigned)all[i] : v;
    return v;
}
static inline void __syncwarp(uint32_t = ~0u) {
    uint64_t all[32];
    emu_exchange(0, all);
}

/* ---- blocks ---------------------------------------------------------------------------------- */
static inline void __syncthreads() { emu_barrier(0, (int)blockDim.x, 0, true); }
static inline int __syncthreads_count(int yes) {
    return emu_barrier(0, (int)blockDim.x, yes != 0, true);
}
static inline int __syncthreads_or(int yes) { return __syncthreads_count(yes) != 0; }
static inline void emu_barrier_sync(int id, int threads) { emu_barrier(id, threads, 0, true); }
static inline void emu_barrier_arrive(int id, int threads) { emu_barrier(id, threads, 0, false); }
static inline void emu_barrier_or(int &any, int yes, unsigned threads, int id = 1) {
    any = emu_barrier(id, (int)threads, yes != 0, true) != 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void emu_fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { emu_yield(); }
template <class T> static inline T __ldcg(const T *p) { return *(const volatile T *)p; }
static inline uint4 __ldcg(const uint4 *p) { return *p; }
static inline float4 __ldcg(const float4 *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T, class V> static inline T atomicAdd(T *p, V v) {
    return __atomic_fetch_add(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T, class V> static inline T atomicOr(T *p, V v) {
    return __atomic_fetch_or(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T, class V> static inline T atomicAnd(T *p, V v) {
    return __atomic_fetch_and(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T, class V> static inline T atomicExch(T *p, V v) {
    return __atomic_exchange_n(p, (T)v, __ATOMIC_SEQ_CST);
}
template <class T> static inline T atomicCAS(T *p, T expected, T v) {
    __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
template <class T, class V> static inline T atomicMax(T *p, V v) {
    T old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (old < (T)v &&
           !__atomic_compare_exchange_n(p, &old, (T)v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return old;
}
template <class T> static inline void emu_load(T &to, const void *p) {
    emu_yield();
    to = (T)__atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}
static inline void emu_load_two(uint64_t &a, uint64_t &b, const uint64_t *p) {
    emu_load(a, p);
    b = __atomic_load_n(p + 1, __ATOMIC_ACQUIRE);
}
static inline void emu_store(void *p, uint64_t v) {
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
}
/* The reader looks at both halves by themselves (fifo.h). */
static inline void emu_store_two(void *p, uint64_t a, uint64_t b) {
    __atomic_store_n((uint64_t *)p, a, __ATOMIC_RELEASE);
    __atomic_store_n((uint64_t *)p + 1, b, __ATOMIC_RELEASE);
}
template <class T> static inline void emu_fetch_add(T &old, void *p, uint64_t n) {
    old = (T)__atomic_fetch_add((uint64_t *)p, n, __ATOMIC_SEQ_CST);
}
static inline void emu_fetch_inc(uint32_t &old, void *p, uint32_t most) {
    uint32_t *word = (uint32_t *)p;
    old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(word, &old, old >= most ? 0 : old + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
        ;
}
static inline void emu_add(void *p, uint64_t n) {
    __atomic_fetch_add((uint64_t *)p, n, __ATOMIC_SEQ_CST);
}
static inline void emu_max(void *p, uint64_t n) { atomicMax((uint64_t *)p, n); }
template <class T> static inline void emu_clock(T &v) { v = emu_now(); }

/* Shared memory lies below 4 GiB, so an address of 32 bits is one. Copies to it are
 * there at once. */
static inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }
template <int N> static inline void emu_copy(uint32_t to, const void *from) {
    memcpy((void *)(uintptr_t)to, from, N);
}
template <class... A> static inline void emu_nothing(A...) {}
static inline void emu_shared_load(unsigned &x, unsigned &y, unsigned &z, unsigned &w,
                                   uint32_t at) {
    const unsigned *v = (const unsigned *)(uintptr_t)at;
    x = v[0], y = v[1], z = v[2], w = v[3];
}
static inline void emu_shared_word(float &v, uint32_t at) {
    memcpy(&v, (const void *)(uintptr_t)at, 4);
}
static inline void emu_shared_store(uint32_t at, unsigned x, unsigned y, unsigned z, unsigned w) {
    unsigned v[4] = {x, y, z, w};
    memcpy((void *)(uintptr_t)at, v, sizeof v);
}

/* Barriers that count bytes, in 64 bits; bulk copies are there at once. Both want what a GPU wants
 * of addresses. */
struct emu_bar {
    int32_t bytes;
    int16_t missing;
    uint8_t threads, phase;
};
void emu_bar_patience(uint64_t since);
void emu_bulk_check(const void *a, size_t b, uint32_t bytes);
static inline emu_bar *emu_bar_at(uint32_t at) { return (emu_bar *)(uintptr_t)at; }
static inline void emu_bar_turn(emu_bar *b) {
    if (b->missing == 0 && b->bytes == 0) {
        b->missing = b->threads;
        b->phase ^= 1;
    }
}
static inline void emu_bar_init(uint32_t at, int n) {
    *emu_bar_at(at) = {0, (int16_t)n, (uint8_t)n, 0};
}
static inline void emu_bar_expect(uint32_t at, uint32_t bytes) {
    emu_bar_at(at)->bytes += (int32_t)bytes;
    emu_bar_at(at)->missing--;
    emu_bar_turn(emu_bar_at(at));
}
static inline void emu_bar_wait(uint32_t at, uint32_t parity) {
    uint64_t since = emu_now();
    while (emu_bar_at(at)->phase == parity) {
        emu_bar_patience(since);
        emu_yield();
    }
}
static inline void emu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    emu_bulk_check(from, to, bytes);
    memcpy((void *)(uintptr_t)to, from, bytes);
    emu_bar_at(bar)->bytes -= (int32_t)bytes;
    emu_bar_turn(emu_bar_at(bar));
}
static inline void emu_bulk_store(void *to, uint32_t from, uint32_t bytes) {
    emu_bulk_check(to, from, bytes);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
}

/* ---- arithmetic: compile with -ffp-contract=off ---------------------------------------------- */
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __ffs(uint32_t x) { return __builtin_ffs((int)x); }
static inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
static inline unsigned __fns(uint32_t mask, unsigned base, int n) {
    for (unsigned i = base; i < 32; i++)
        if (mask >> i & 1 && --n == 0)
            return i;
    return ~0u;
}
/* The processor's returns a signaling NaN, a GPU's leaves every NaN out. */
static inline float emu_fmaxf(float a, float b) { return a != a ? b : b != b ? a : a > b ? a : b; }
#define fmaxf emu_fmaxf
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline int __float_as_int(float f) {
    int u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float __int_as_float(int u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float __double2float_rz(double d) {
    float f = (float)d;
    return fabs((double)f) > fabs(d) ? nextafterf(f, 0) : f;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t v = a | (uint64_t)b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(v >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

/* ---- the runtime, as far as launchers call it ------------------------------------------------ */
/* static: sources are compiled for different architectures */
template <class K> static inline cudaError_t emu_attributes(cudaFuncAttributes *a, K) {
    a->ptxVersion = a->binaryVersion = EMU_ARCH / 10;
    return cudaSuccess;
}
cudaError_t emu_shared_set(int bytes);
#define cudaFuncGetAttributes emu_attributes
#define cudaFuncSetAttribute(kernel, what, bytes) emu_shared_set(bytes)
#define cudaGetLastError() cudaSuccess
/* gridDim, blockDim */
struct emu_config {
    emu_place emu_here;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
#define cudaLaunchConfig_t emu_config
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const emu_config *c, void (*kernel)(P...),
                                             const A &...a) {
    emu_launch_as(c->gridDim.x, c->blockDim.x, c->dynamicSmemBytes, kernel, a...);
    return cudaSuccess;
}
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(to, ...) (*(to) = 1, cudaSuccess)
#endif
