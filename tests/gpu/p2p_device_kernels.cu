/* p2p_device_kernels.cu - see p2p_device_kernels.h. */
#define MPIX_DEVICE_ONLY
#include "p2p_device_kernels.h"

#include "mpix_device.cuh"

#include <cuda_runtime.h>

template <typename F> static int run(F launch) {
    int *result = nullptr, bad = 0;
    cudaError_t err = cudaMalloc(&result, sizeof *result);
    if (err == cudaSuccess)
        err = cudaMemset(result, 0, sizeof *result);
    if (err == cudaSuccess) {
        launch(result);
        err = cudaGetLastError();
    }
    if (err == cudaSuccess)
        err = cudaMemcpy(&bad, result, sizeof bad, cudaMemcpyDeviceToHost);
    cudaFree(result);
    return err == cudaSuccess ? bad : 100 + (int)err;
}

/* Odd turns signal in a call of its own. */
template <mpix_scope S>
__global__ void put_kernel(MPIX_Device d, MPIX_Device_rmem to, uint64_t roff, MPIX_Device_mem from,
                           uint64_t off, uint64_t len, int peer, int source, int slot,
                           uint64_t turn, int *result) {
    int bad = 0;
    if (S == MPIX_THREAD && threadIdx.x)
        return;
    if (turn & 1) {
        bad = mpix_put<S>(d, to, roff, from, off, len);
        if (!bad)
            bad = mpix_signal<S>(d, peer, slot, 1);
    } else {
        bad = mpix_put_signal<S>(d, to, roff, from, off, len, slot, 1);
    }
    if (!bad && turn % 3 == 0)
        bad = mpix_flush<S>(d, peer);
    if (!bad)
        bad = mpix_wait<S>(d, source, slot, turn);
    if (bad)
        atomicMax(result, bad);
}

extern "C" int d_put(int scope, MPIX_Device d, MPIX_Device_rmem to, uint64_t roff,
                     MPIX_Device_mem from, uint64_t off, uint64_t len, int peer, int source,
                     int slot, uint64_t turn) {
    return run([=](int *result) {
        if (scope == D_THREAD)
            put_kernel<MPIX_THREAD>
                <<<1, 32>>>(d, to, roff, from, off, len, peer, source, slot, turn, result);
        else if (scope == D_WARP)
            put_kernel<MPIX_WARP>
                <<<1, 32>>>(d, to, roff, from, off, len, peer, source, slot, turn, result);
        else
            put_kernel<MPIX_BLOCK>
                <<<1, dim3(64, 3)>>>(d, to, roff, from, off, len, peer, source, slot, turn, result);
    });
}

__global__ void many_kernel(MPIX_Device d, MPIX_Device_rmem to, MPIX_Device_mem from, int each,
                            int add, int source, int slot, uint64_t signals, int bar, uint64_t turn,
                            int *result) {
    uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    int bad = 0;
    for (int i = 0; i < each && !bad; i++) {
        uint64_t at = (thread * each + i) * 8;
        /* the put takes what the thread has just stored */
        *(volatile uint64_t *)((char *)from.ptr + at) = at * 31 + turn;
        bad = mpix_put_signal<MPIX_THREAD>(d, to, at, from, at, 8, slot, 1);
        if (!bad && add)
            bad = mpix_atomic_add<MPIX_THREAD>(d, to, threads * each * 8, 3);
    }
    __syncthreads();
    if (!bad)
        bad = mpix_flush<MPIX_BLOCK>(d, to.peer);
    if (!bad)
        bad = mpix_signal<MPIX_BLOCK>(d, to.peer, bar, 1);
    if (!bad && threadIdx.x < 32)
        bad = mpix_wait<MPIX_WARP>(d, source, slot, signals);
    if (bad)
        atomicMax(result, bad);
}

extern "C" int d_many(MPIX_Device d, MPIX_Device_rmem to, MPIX_Device_mem from, int blocks,
                      int each, int add, int source, int slot, uint64_t signals, int bar,
                      uint64_t turn) {
    return run([=](int *result) {
        many_kernel<<<blocks, 256>>>(d, to, from, each, add, source, slot, signals, bar, turn,
                                     result);
    });
}

__global__ void wait_kernel(MPIX_Device d, int peer, int slot, uint64_t at_least, int *result) {
    *result = mpix_wait<MPIX_THREAD>(d, peer, slot, at_least);
}
__global__ void signal_kernel(MPIX_Device d, int peer, int slot, uint64_t add, int *result) {
    *result = mpix_signal<MPIX_THREAD>(d, peer, slot, add);
}
__global__ void flush_kernel(MPIX_Device d, int peer, int *result) {
    *result = mpix_flush<MPIX_THREAD>(d, peer);
}
__global__ void add_kernel(MPIX_Device d, MPIX_Device_rmem to, uint64_t roff, int64_t value,
                           int *result) {
    *result = mpix_atomic_add<MPIX_THREAD>(d, to, roff, value);
}
extern "C" int d_wait(MPIX_Device d, int peer, int slot, uint64_t at_least) {
    return run([=](int *result) { wait_kernel<<<1, 1>>>(d, peer, slot, at_least, result); });
}
extern "C" int d_signal(MPIX_Device d, int peer, int slot, uint64_t add) {
    return run([=](int *result) { signal_kernel<<<1, 1>>>(d, peer, slot, add, result); });
}
extern "C" int d_flush(MPIX_Device d, int peer) {
    return run([=](int *result) { flush_kernel<<<1, 1>>>(d, peer, result); });
}
extern "C" int d_add(MPIX_Device d, MPIX_Device_rmem to, uint64_t roff, int64_t value) {
    return run([=](int *result) { add_kernel<<<1, 1>>>(d, to, roff, value, result); });
}
