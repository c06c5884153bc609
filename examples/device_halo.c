/*
 * device_halo.c - transfers that kernels start: a stencil on a ring of ranks whose halo exchange is
 * inside one persistent kernel, checked against the same computation without any exchange, and a
 * ring all-gather.
 *
 * usage: mpirun -n N device_halo [ROWS [STEPS [BYTES]]]
 *
 * The same program runs whether peers are mapped (GPU memory, stores over NVLink) or reached
 * through the proxy (MPIX_EP_REACH=proxied, or other hosts: host memory, commands). Where several
 * ranks share a GPU, each step needs a turn of it for each of them: a few milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "device_kernels.h"

static int rank, size;

static void ok(int code, const char *what) {
    MPIX_Error error;

    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    fprintf(stderr, "device_halo: rank %d: %s: %s\n", rank, what, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void cuda(cudaError_t err, const char *what) {
    if (err != cudaSuccess) {
        fprintf(stderr, "device_halo: rank %d: %s: %s\n", rank, what, cudaGetErrorString(err));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static double start_value(long row, int column) {
    return (double)((row * 7919 + column * 104729) % 1000) / 1000;
}

/* The whole ring of rows, by one processor. */
static double *serial(int all, int steps) {
    double *u = malloc(2 * (size_t)all * COLUMNS * sizeof *u);

    for (int y = 0; y < all; y++)
        for (int x = 0; x < COLUMNS; x++)
            u[y * COLUMNS + x] = start_value(y, x);
    for (int s = 0; s < steps; s++) {
        double *now = u + (size_t)(s & 1) * (size_t)all * COLUMNS,
               *next = u + (size_t)(~s & 1) * (size_t)all * COLUMNS;
        for (int y = 0; y < all; y++) {
            const double *up = now + (size_t)((y + all - 1) % all) * COLUMNS,
                         *down = now + (size_t)((y + 1) % all) * COLUMNS;
            const double *row = now + (size_t)y * COLUMNS;
            for (int x = 0; x < COLUMNS; x++)
                next[(size_t)y * COLUMNS + (size_t)x] =
                    0.25 * ((up[x] + down[x]) +
                            (row[(x + COLUMNS - 1) % COLUMNS] + row[(x + 1) % COLUMNS]));
        }
    }
    memmove(u, u + (size_t)(steps & 1) * (size_t)all * COLUMNS, (size_t)all * COLUMNS * sizeof *u);
    return u;
}

static void check_kernel(int result, const char *what) {
    if (result) {
        fprintf(stderr, "device_halo: rank %d: %s ended with %d\n", rank, what, result);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int halo(MPIX_Device device, const neighbours *n, int rows, int steps) {
    size_t one = (size_t)(rows + 2) * COLUMNS;
    double *host = calloc(one, sizeof *host), *u = NULL, *want = serial(rows * size, steps);
    int wrong = 0;

    for (int y = 0; y < rows; y++)
        for (int x = 0; x < COLUMNS; x++)
            host[(y + 1) * COLUMNS + x] = start_value((long)rank * rows + y, x);
    cuda(cudaMalloc((void **)&u, 2 * one * sizeof *u), "GPU memory");
    cuda(cudaMemset(u, 0xff, 2 * one * sizeof *u), "GPU memory");
    cuda(cudaMemcpy(u, host, one * sizeof *u, cudaMemcpyHostToDevice), "copying");
    check_kernel(halo_run(device, n, u, rows, steps), "the stencil");
    cuda(cudaMemcpy(host, u + (size_t)(steps & 1) * one, one * sizeof *u, cudaMemcpyDeviceToHost),
         "copying");
    for (int y = 0; y < rows; y++)
        wrong += memcmp(host + (y + 1) * COLUMNS,
                        want + ((size_t)rank * (size_t)rows + (size_t)y) * COLUMNS,
                        COLUMNS * sizeof *host) != 0;
    cudaFree(u);
    free(host);
    free(want);
    return wrong;
}

static unsigned char ring_byte(int owner, int i) {
    return (unsigned char)(owner * 37 + i * 11 + i / 256);
}

static int ring(MPIX_Device device, const neighbours *n, int bytes) {
    unsigned char *host = malloc((size_t)size * (size_t)bytes),
                  *there = (unsigned char *)n->here.ptr + offsetof(window, gathered);
    int wrong = 0;

    memset(host, 0xee, (size_t)size * (size_t)bytes);
    for (int i = 0; i < bytes; i++)
        host[(size_t)rank * (size_t)bytes + (size_t)i] = ring_byte(rank, i);
    cuda(cudaMemcpy(there, host, (size_t)size * (size_t)bytes, cudaMemcpyDefault), "copying");
    MPI_Barrier(MPI_COMM_WORLD); /* everybody's window is ready */
    check_kernel(ring_run(device, n, bytes), "the ring");
    cuda(cudaMemcpy(host, there, (size_t)size * (size_t)bytes, cudaMemcpyDefault), "copying");
    for (int r = 0; r < size; r++)
        for (int i = 0; i < bytes; i++)
            wrong += host[(size_t)r * (size_t)bytes + (size_t)i] != ring_byte(r, i);
    free(host);
    return wrong;
}

int main(int argc, char **argv) {
    int rows = argc > 1 ? atoi(argv[1]) : 16, steps = argc > 2 ? atoi(argv[2]) : 20,
        bytes = argc > 3 ? atoi(argv[3]) : 100000, devices = 0, wrong[2], all[2];
    MPIX_Device device;
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem *windows;
    MPI_Info info;
    neighbours n;
    void *base;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        if (rank == 0)
            printf("device_halo: no GPU can be used here\n");
        MPI_Finalize();
        return 77;
    }
    if (rows < 2 || steps < 1 || bytes < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    cuda(cudaSetDevice(rank % devices), "choosing a device");

    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_p2p_memory", "cuda");
    ok(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p), "MPIX_P2p_create");
    ok(MPIX_P2p_alloc(p2p, (MPI_Count)(sizeof(window) + (size_t)size * (size_t)bytes), info, &base,
                      &mem),
       "MPIX_P2p_alloc");
    windows = malloc((size_t)size * sizeof *windows);
    ok(MPIX_P2p_exchange(mem, windows), "MPIX_P2p_exchange");
    MPIX_INIT(&device);
    MPIX_INIT(&n.here);
    MPIX_INIT(&n.above_at);
    MPIX_INIT(&n.below_at);
    n.above = (rank + size - 1) % size;
    n.below = (rank + 1) % size;
    ok(MPIX_P2p_get_device(p2p, &device), "MPIX_P2p_get_device");
    ok(MPIX_P2p_mem_device(mem, &n.here), "MPIX_P2p_mem_device");
    ok(MPIX_P2p_rmem_device(windows[n.above], &n.above_at), "MPIX_P2p_rmem_device");
    ok(MPIX_P2p_rmem_device(windows[n.below], &n.below_at), "MPIX_P2p_rmem_device");
    MPI_Barrier(MPI_COMM_WORLD);
    wrong[0] = halo(device, &n, rows, steps);
    wrong[1] = ring(device, &n, bytes);
    MPI_Allreduce(wrong, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("device_halo: %d ranks, %d of rank 0's peers proxied: %d steps on %d rows %s; "
               "all-gather of %d bytes %s\n",
               size, device.proxied, steps, rows * size,
               all[0] ? "DIFFER from the serial result" : "equal the serial result bit by bit",
               bytes, all[1] ? "is WRONG" : "is right");
    MPI_Barrier(MPI_COMM_WORLD); /* nobody puts any more */
    for (int r = 0; r < size; r++)
        ok(MPIX_P2p_rmem_free(&windows[r]), "MPIX_P2p_rmem_free");
    ok(MPIX_P2p_dereg(&mem), "MPIX_P2p_dereg");
    ok(MPIX_P2p_free(&p2p), "MPIX_P2p_free");
    MPI_Info_free(&info);
    free(windows);
    MPI_Finalize();
    return all[0] + all[1] != 0;
}
