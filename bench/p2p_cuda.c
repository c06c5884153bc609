/*
 * p2p_cuda.c - GPU memory for mpix_p2p_bench: devices, contents, and the baselines. cudaMemcpyPeer
 * copies within this process, from this rank's GPU to memory of its own on the other's, for no
 * pointer of another process may be given to it.
 */
#include "config.h"

#include "bench/p2p.h"

#ifdef HAVE_CUDA
#include "bench/nccl.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

static struct {
    int own, other; /* devices; alike where there is only one */
    cudaStream_t stream;
    void *from, *to;   /* memcpy */
    void *send, *recv; /* NCCL */
#ifdef HAVE_NCCL
    ncclComm_t comm;
#endif
} g;

static void check(const p2p_bench *b, cudaError_t err, const char *call) {
    char text[256];

    if (err == cudaSuccess)
        return;
    snprintf(text, sizeof text, "%s: %s", call, cudaGetErrorString(err));
    p2p_die(b, text);
}
#define CUDA(call) check(b, (call), #call)

const char *p2p_cuda_choose(p2p_bench *b) {
    struct cudaDeviceProp prop;
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
        return "--memory cuda: no CUDA device can be used here";
    g.own = b->rank % n;
    g.other = b->size == 2 ? (1 - b->rank) % n : g.own;
    CUDA(cudaSetDevice(g.own));
    CUDA(cudaGetDeviceProperties(&prop, g.own));
    snprintf(b->gpu, sizeof b->gpu, "%.63s", prop.name);
    if (!b->side[P2P_NCCL])
        return NULL;
    if (n < b->size)
        return "NCCL does not let ranks share a GPU; use -b memcpy or none";
    return bench_nccl_load(&b->nccl_version);
}

static void *device(const p2p_bench *b, int ordinal, size_t bytes) {
    void *p;

    CUDA(cudaSetDevice(ordinal));
    CUDA(cudaMalloc(&p, bytes));
    CUDA(cudaMemset(p, 0x33, bytes));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(g.own));
    return p;
}

#ifdef HAVE_NCCL
static void check_nccl(const p2p_bench *b, ncclResult_t err, const char *call) {
    if (err != ncclSuccess)
        p2p_die(b, call);
}
#define NCCL(call) check_nccl(b, (call), #call)

static void nccl_open(p2p_bench *b) {
    ncclUniqueId id;

    g.send = device(b, g.own, b->max_bytes);
    g.recv = device(b, g.own, b->test == P2P_PAIRS ? (size_t)b->size * b->max_bytes : b->max_bytes);
    if (b->rank == 0)
        NCCL(bench_nccl.get_id(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    NCCL(bench_nccl.init(&g.comm, b->size, id, b->rank));
}

void p2p_cuda_nccl(p2p_bench *b, size_t bytes, int window, int active) {
    int peer = 1 - b->rank;

    if (b->test == P2P_PAIRS) {
        for (int k = 0; k < window; k++) {
            NCCL(bench_nccl.start());
            for (int i = 1; i < b->size; i++) {
                int to = (b->rank + i) % b->size, from = (b->rank + b->size - i) % b->size;
                NCCL(bench_nccl.send(g.send, bytes, ncclChar, to, g.comm, g.stream));
                NCCL(bench_nccl.recv((char *)g.recv + (size_t)from * b->max_bytes, bytes, ncclChar,
                                     from, g.comm, g.stream));
            }
            NCCL(bench_nccl.end());
        }
        CUDA(cudaStreamSynchronize(g.stream));
        return;
    }
    /* there and back, the host sees each arrival */
    if (b->test == P2P_LATENCY && (b->op == P2P_SEND || b->op == P2P_NOTIFY)) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == b->rank)
                NCCL(bench_nccl.send(g.send, bytes, ncclChar, peer, g.comm, g.stream));
            else
                NCCL(bench_nccl.recv(g.recv, bytes, ncclChar, peer, g.comm, g.stream));
            CUDA(cudaStreamSynchronize(g.stream));
        }
        return;
    }
    for (int i = 0; i < window; i++) {
        NCCL(bench_nccl.start());
        if (active)
            NCCL(bench_nccl.send(g.send, bytes, ncclChar, peer, g.comm, g.stream));
        if (b->test == P2P_BIDIR || b->rank == 1)
            NCCL(bench_nccl.recv(g.recv, bytes, ncclChar, peer, g.comm, g.stream));
        NCCL(bench_nccl.end());
    }
    CUDA(cudaStreamSynchronize(g.stream));
}
#else
static void nccl_open(p2p_bench *b) { p2p_die(b, "no NCCL"); }
void p2p_cuda_nccl(p2p_bench *b, size_t bytes, int window, int active) {
    (void)bytes, (void)window, (void)active, nccl_open(b);
}
#endif

void p2p_cuda_open(p2p_bench *b) {
    CUDA(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    CUDA(cudaMemset(b->base, 1,
                    b->test == P2P_PAIRS ? p2p_pairs_place(b, b->size) : 2 * b->max_bytes));
    CUDA(cudaDeviceSynchronize());
    if (b->side[P2P_COPY]) {
        g.from = device(b, g.own, b->max_bytes);
        g.to = device(b, g.other, b->max_bytes);
        if (g.own != g.other) {
            CUDA(cudaSetDevice(g.own));
            cudaError_t err = cudaDeviceEnablePeerAccess(g.other, 0);
            if (err != cudaErrorPeerAccessAlreadyEnabled)
                CUDA(err);
        }
    }
    if (b->side[P2P_NCCL])
        nccl_open(b);
}

void p2p_cuda_close(p2p_bench *b) {
#ifdef HAVE_NCCL
    if (b->side[P2P_NCCL])
        NCCL(bench_nccl.destroy(g.comm));
#endif
    CUDA(cudaFree(g.send));
    CUDA(cudaFree(g.recv));
    CUDA(cudaFree(g.from));
    CUDA(cudaFree(g.to));
    CUDA(cudaStreamDestroy(g.stream));
}

void *p2p_cuda_stream(void) { return g.stream; }

void p2p_cuda_sync(const p2p_bench *b) { CUDA(cudaStreamSynchronize(g.stream)); }

void p2p_cuda_copy(const p2p_bench *b, void *to, const void *from, size_t bytes) {
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    CUDA(cudaDeviceSynchronize());
}

void p2p_cuda_memcpy(p2p_bench *b, size_t bytes, int window) {
    for (int i = 0; i < window; i++)
        CUDA(cudaMemcpyPeerAsync(g.to, g.other, g.from, g.own, bytes, g.stream));
    CUDA(cudaStreamSynchronize(g.stream));
}

#else

const char *p2p_cuda_choose(p2p_bench *b) {
    (void)b;
    return "--memory cuda: this build has no GPU memory (nvcc was not found when it was "
           "configured)";
}
void p2p_cuda_open(p2p_bench *b) { (void)b; }
void p2p_cuda_close(p2p_bench *b) { (void)b; }
void *p2p_cuda_stream(void) { return NULL; }
void p2p_cuda_sync(const p2p_bench *b) { (void)b; }
void p2p_cuda_copy(const p2p_bench *b, void *to, const void *from, size_t bytes) {
    (void)b, (void)to, (void)from, (void)bytes;
}
void p2p_cuda_nccl(p2p_bench *b, size_t bytes, int window, int active) {
    (void)b, (void)bytes, (void)window, (void)active;
}
void p2p_cuda_memcpy(p2p_bench *b, size_t bytes, int window) { (void)b, (void)bytes, (void)window; }
#endif
