/*
 * gpu_device.cu - mpix_device.cuh by itself: what a whole scope gets to know of a failure, and
 * counters that are added to by stores. Also compiled for a processor (tests/emu). Needs no MPI;
 * the peers' words are this program's.
 */
#include <cuda_runtime.h>

#include "mpix_device.cuh"

#include <stdio.h>

static int failures;

#define CHECK(cond, ...) \
    do { \
        if (!(cond) && ++failures <= 20) { \
            fprintf(stderr, "gpu_device: line %d: ", __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
        } \
    } while (0)
#define CU(call) \
    do { \
        cudaError_t err_ = (call); \
        if (err_ != cudaSuccess) { \
            fprintf(stderr, "gpu_device: line %d: %s: %s\n", __LINE__, #call, \
                    cudaGetErrorString(err_)); \
            return 1; \
        } \
    } while (0)

enum { THREADS = 96, BLOCKS = 3, TURNS = 5, SLOTS = 2 };

/* What every thread of a block gets from calls that fail, and from one that does not.
 * out: [4][THREADS] */
template <mpix_scope S>
__global__ void codes_kernel(const MPIX_Device late, const MPIX_Device lost, int *out) {
    int t = threadIdx.x;
    out[t] = mpix_wait<S>(late, 0, 0, 1000);
    out[THREADS + t] = mpix_wait<S>(lost, 0, 0, 1000);
    out[2 * THREADS + t] = mpix_wait<S>(late, 0, 0, 1);
    out[3 * THREADS + t] = mpix_wait<S>(late, 7, 0, 1);
}

/* All add to one counter. */
__global__ void count_kernel(const MPIX_Device d) {
    for (int i = 0; i < TURNS; i++)
        mpix_signal<MPIX_THREAD>(d, 0, 1, 3);
}

struct words {
    unsigned long long in[SLOTS], out[SLOTS], sums[SLOTS], error;
};

template <mpix_scope S>
static int codes(const MPIX_Device &late, const MPIX_Device &lost, const char *scope) {
    static const int right[4] = {MPIX_DEVICE_TIMEOUT, MPIX_DEVICE_PEER, MPIX_DEVICE_OK,
                                 MPIX_DEVICE_ARG};
    int got[4 * THREADS], *out;
    CU(cudaMalloc((void **)&out, sizeof got));
    CU(cudaMemset(out, 0xff, sizeof got));
    codes_kernel<S><<<1, THREADS, 0, 0>>>(late, lost, out);
    CU(cudaDeviceSynchronize());
    CU(cudaMemcpy(got, out, sizeof got, cudaMemcpyDefault));
    for (int i = 0; i < 4 * THREADS; i++)
        CHECK(got[i] == right[i / THREADS], "%s: thread %d got %d, not %d", scope, i % THREADS,
              got[i], right[i / THREADS]);
    CU(cudaFree(out));
    return 0;
}

/* A device handle with this rank as its only peer. */
static int device_make(unsigned long long error, int stores, MPIX_Device *d, words **w) {
    words mine = {{1, 0}, {0, 0}, {0, 0}, error};
    mpix_dev_peer peer = {}, *peers;
    mpix_dev_state state = {}, *made;
    CU(cudaMalloc((void **)w, sizeof mine));
    CU(cudaMemcpy(*w, &mine, sizeof mine, cudaMemcpyDefault));
    peer.in = (*w)->in;
    peer.out = (*w)->out;
    peer.sums = stores ? (*w)->sums : nullptr;
    peer.error = &(*w)->error;
    CU(cudaMalloc((void **)&peers, sizeof peer));
    CU(cudaMemcpy(peers, &peer, sizeof peer, cudaMemcpyDefault));
    state.size = 1;
    state.slots = SLOTS;
    state.timeout_ns = 20000000;
    state.peers = peers;
    CU(cudaMalloc((void **)&made, sizeof state));
    CU(cudaMemcpy(made, &state, sizeof state, cudaMemcpyDefault));
    *d = MPIX_Device();
    d->struct_size = sizeof *d;
    d->size = 1;
    d->slots = SLOTS;
    d->state = made;
    return 0;
}

int main() {
    MPIX_Device late, lost, adds;
    words *w, *unused, end;
    if (device_make(0, 0, &late, &unused) || device_make(MPIX_DEVICE_PEER, 0, &lost, &unused))
        return 1;
    if (codes<MPIX_THREAD>(late, lost, "MPIX_THREAD") ||
        codes<MPIX_WARP>(late, lost, "MPIX_WARP") || codes<MPIX_BLOCK>(late, lost, "MPIX_BLOCK"))
        return 1;
    for (int stores = 0; stores < 2; stores++) {
        if (device_make(0, stores, &adds, &w))
            return 1;
        count_kernel<<<BLOCKS, THREADS, 0, 0>>>(adds);
        count_kernel<<<BLOCKS, THREADS, 0, 0>>>(adds); /* goes on where the first has ended */
        CU(cudaDeviceSynchronize());
        CU(cudaMemcpy(&end, w, sizeof end, cudaMemcpyDefault));
        CHECK(end.out[1] == 2ull * BLOCKS * THREADS * TURNS * 3 && end.out[0] == 0,
              "counter by %s: %llu", stores ? "stores" : "additions", end.out[1]);
    }
    printf("gpu_device: %s\n", failures ? "FAILED" : "passed");
    return failures != 0;
}
