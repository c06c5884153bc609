/* gpu_fifo_kernels.cu - see gpu_fifo.h. */
#include "gpu_fifo.h"

#include "mpix_device.cuh"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(cudaError_t err, const char *what) {
    if (err != cudaSuccess) {
        fprintf(stderr, "mpix_gpu_fifo_bench: %s: %s\n", what, cudaGetErrorString(err));
        exit(1);
    }
}

template <int LANES> __global__ void send_kernel(const __grid_constant__ gf_run r) {
    unsigned warp = blockIdx.x * r.warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    const mpix_dev_fifo &f = r.fifo[warp % r.nfifos];
    unsigned long long sent = 0, late = 0;
    if (LANES == 1 && lane)
        return;
    while (sent < r.each) {
        unsigned long long at = 0;
        int room = 0;
        if (lane == 0)
            room = mpix_dev_claim(f, LANES, r.timeout_ns, &at);
        if (LANES > 1) {
            room = __shfl_sync(0xffffffffu, room, 0);
            at = __shfl_sync(0xffffffffu, at, 0);
        }
        if (!room) {
            late++;
            if (r.give_up)
                break;
            continue;
        }
        if (r.fence)
            mpix_dev_fence_sys();
        mpix_dev_store(f, at + (LANES > 1 ? lane : 0), r.numbered ? warp : r.word0,
                       r.numbered ? sent + (LANES > 1 ? lane : 0) : 0);
        if (lane == 0)
            mpix_dev_refresh(f, at, LANES);
        sent += LANES;
    }
    if (lane == 0) {
        r.sent[warp].commands = sent;
        r.sent[warp].late = late;
    }
}

/* One thread a warp. */
__global__ void trip_kernel(const __grid_constant__ gf_trip t) {
    unsigned warp = blockIdx.x * t.warps + threadIdx.x / 32;
    if (threadIdx.x % 32)
        return;
    const mpix_dev_fifo &f = t.fifo[warp % t.nfifos];
    const unsigned long long *done = t.bare ? t.echo + 8 * warp : t.done[warp % t.nfifos];
    unsigned long long start_ns = mpix_dev_now(),
                       next = start_ns + t.period_ns * warp / (gridDim.x * t.warps), failed = 0;
    long long start = clock64();
    for (unsigned long long i = 0; i < t.each && !failed; i++) {
        while (t.period_ns && mpix_dev_now() < next)
            ;
        next += t.period_ns;
        long long begin = clock64();
        unsigned long long at = i;
        if (t.bare) {
            asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(t.flag + 8 * warp), "l"(i + 1)
                         : "memory");
        } else {
            if (!mpix_dev_claim(f, 1, t.timeout_ns, &at)) {
                failed = 1;
                break;
            }
            mpix_dev_store(f, at, t.word0, 0);
        }
        unsigned long long *copy = t.copies + 32 * (warp % t.nfifos);
        if (t.bare ? mpix_dev_await(done, at + 1, nullptr, t.timeout_ns)
                   : mpix_dev_await_shared(done, copy, copy + 16, at + 1, nullptr, t.timeout_ns))
            failed = 1;
        t.cycles[warp * t.each + i] = (unsigned)(clock64() - begin);
    }
    if (failed)
        atomicAdd_system(&t.clocks[2], 1ull);
    if (warp == 0) {
        t.clocks[0] = (unsigned long long)(clock64() - start);
        t.clocks[1] = mpix_dev_now() - start_ns;
    }
}

extern "C" void *gf_pinned(size_t bytes) {
    void *p = nullptr;
    must(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");
    memset(p, 0, bytes);
    return p;
}
extern "C" void gf_pinned_free(void *p) { cudaFreeHost(p); }

extern "C" void *gf_device(size_t bytes) {
    void *p = nullptr;
    must(cudaMalloc(&p, bytes), "GPU memory");
    must(cudaMemset(p, 0, bytes), "clearing GPU memory");
    return p;
}
extern "C" void gf_device_free(void *p) { cudaFree(p); }

extern "C" void gf_fifo_make(mpix_dev_fifo *f, unsigned long long slots) {
    char *heads = nullptr, *host = (char *)gf_pinned(64 + slots * 16);
    must(cudaMalloc(&heads, 4 * 128), "GPU memory");
    must(cudaMemset(heads, 0, 4 * 128), "clearing GPU memory");
    memset(f, 0, sizeof *f);
    f->reserved = (unsigned long long *)heads;
    f->head = (unsigned long long *)(heads + 128);
    f->seen = (unsigned long long *)(heads + 256);
    f->looking = (unsigned long long *)(heads + 384);
    f->tail = (unsigned long long *)host;
    f->slots = (unsigned long long *)(host + 64);
    f->mask = slots - 1;
}
extern "C" void gf_fifo_free(mpix_dev_fifo *f) {
    cudaFree(f->reserved);
    cudaFreeHost((void *)f->tail);
}
extern "C" void gf_fifo_heads(const mpix_dev_fifo *f, unsigned long long *reserved,
                              unsigned long long *head) {
    must(cudaMemcpy(reserved, f->reserved, 8, cudaMemcpyDeviceToHost), "reading a counter");
    must(cudaMemcpy(head, f->head, 8, cudaMemcpyDeviceToHost), "reading a counter");
}

extern "C" void gf_send(const gf_run *r) {
    if (r->lanes == 1)
        send_kernel<1><<<r->blocks, r->warps * 32>>>(*r);
    else
        send_kernel<32><<<r->blocks, r->warps * 32>>>(*r);
    must(cudaGetLastError(), "launching producers");
}
extern "C" void gf_send_trips(const gf_trip *t) {
    trip_kernel<<<t->blocks, t->warps * 32>>>(*t);
    must(cudaGetLastError(), "launching round trips");
}
extern "C" int gf_busy(void) {
    cudaError_t err = cudaStreamQuery(0);
    if (err == cudaErrorNotReady)
        return 1;
    must(err, "the GPU");
    return 0;
}
extern "C" int gf_sms(void) {
    int n = 0, sms = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
        return 0;
    must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "the device");
    return sms;
}
extern "C" const char *gf_name(void) {
    static cudaDeviceProp prop;
    must(cudaGetDeviceProperties(&prop, 0), "the device");
    return prop.name;
}
