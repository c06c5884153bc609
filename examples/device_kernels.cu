/* device_kernels.cu - an iteration and a ring all-gather that exchange data with other ranks
 * without leaving the kernel. */
#define MPIX_DEVICE_ONLY
#include "device_kernels.h"

#include "mpix_device.cuh"

#include <cuda_runtime.h>

/* Counters of a pair: one for what comes from above, one from below, for with two ranks both
 * neighbours are the same; one for the ring. */
enum { FROM_ABOVE, FROM_BELOW, RING };

static __device__ const double *row_of(const double *u, int rows, int step, int row) {
    return u + ((size_t)(step & 1) * (rows + 2) + row) * COLUMNS;
}

/*
 * One block. In each step it sends its first and last row, waits for those of its neighbours, and
 * computes the next values. Two places for rows are enough: a neighbour sends the rows of step
 * s + 2 only after it has got ours of s + 1, which we send when we have used those of step s. By
 * the same counter we know that our own rows of step s have arrived before we write those of step
 * s + 2 in their place.
 */
__global__ void __launch_bounds__(COLUMNS)
    halo_kernel(MPIX_Device d, neighbours n, double *u, int rows, int steps, int *result) {
    window *w = (window *)n.here.ptr;
    int x = threadIdx.x, left = (x + COLUMNS - 1) % COLUMNS, right = (x + 1) % COLUMNS, bad = 0;
    for (int s = 0; s < steps && !bad; s++) {
        int b = s & 1;
        const double *now = row_of(u, rows, s, 0);
        double *next = (double *)row_of(u, rows, s + 1, 0);
        w->send[b][0][x] = now[1 * COLUMNS + x];
        w->send[b][1][x] = now[rows * COLUMNS + x];
        bad = mpix_put_signal<MPIX_BLOCK>(d, n.above_at,
                                          offsetof(window, recv) + sizeof w->recv[0] * b +
                                              sizeof w->recv[0][0],
                                          n.here, offsetof(window, send) + sizeof w->send[0] * b,
                                          sizeof w->send[0][0], FROM_BELOW, 1);
        if (!bad)
            bad = mpix_put_signal<MPIX_BLOCK>(d, n.below_at,
                                              offsetof(window, recv) + sizeof w->recv[0] * b,
                                              n.here,
                                              offsetof(window, send) + sizeof w->send[0] * b +
                                                  sizeof w->send[0][0],
                                              sizeof w->send[0][0], FROM_ABOVE, 1);
        if (!bad)
            bad = mpix_wait<MPIX_BLOCK>(d, n.above, FROM_ABOVE, s + 1);
        if (!bad)
            bad = mpix_wait<MPIX_BLOCK>(d, n.below, FROM_BELOW, s + 1);
        for (int y = 1; y <= rows && !bad; y++) {
            double up = y > 1 ? now[(y - 1) * COLUMNS + x] : w->recv[b][0][x],
                   down = y < rows ? now[(y + 1) * COLUMNS + x] : w->recv[b][1][x];
            next[y * COLUMNS + x] =
                0.25 * ((up + down) + (now[y * COLUMNS + left] + now[y * COLUMNS + right]));
        }
        __syncthreads();
    }
    if (x == 0)
        *result = bad;
}

/* Each rank passes on what came from the rank above: after size - 1 steps everybody
 * has everything. */
__global__ void ring_kernel(MPIX_Device d, neighbours n, int bytes, int *result) {
    int bad = 0;
    for (int s = 0; s < d.size - 1 && !bad; s++) {
        uint64_t at = offsetof(window, gathered) +
                      (uint64_t)((d.rank + d.size - s) % d.size) * bytes;
        bad = mpix_put_signal<MPIX_BLOCK>(d, n.below_at, at, n.here, at, bytes, RING, 1);
        if (!bad)
            bad = mpix_wait<MPIX_BLOCK>(d, n.above, RING, s + 1);
    }
    if (threadIdx.x == 0)
        *result = bad;
}

template <typename F> static int run(F launch) {
    int *result = nullptr, bad = 0;
    cudaError_t err = cudaMallocManaged(&result, sizeof *result);
    if (err == cudaSuccess) {
        launch(result);
        err = cudaGetLastError();
    }
    if (err == cudaSuccess)
        err = cudaDeviceSynchronize();
    if (err == cudaSuccess)
        bad = *result;
    cudaFree(result);
    return err == cudaSuccess ? bad : 100 + (int)err;
}

extern "C" int halo_run(MPIX_Device device, const neighbours *n, double *u, int rows, int steps) {
    return run(
        [=](int *result) { halo_kernel<<<1, COLUMNS>>>(device, *n, u, rows, steps, result); });
}
extern "C" int ring_run(MPIX_Device device, const neighbours *n, int bytes) {
    return run([=](int *result) { ring_kernel<<<1, 512>>>(device, *n, bytes, result); });
}
