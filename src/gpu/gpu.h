/*
 * gpu.h - GPU memory for both APIs: loading the CUDA module (src/gpu/cuda_module.h), and windows in
 * GPU memory, an allocation of each rank that all ranks of the host map.
 */
#ifndef MPIX_MEM_GPU_H
#define MPIX_MEM_GPU_H
#include "base/param.h"
#include "boot/boot.h"
#include "gpu/cuda_module.h"

typedef struct mpix_gpu {
    const mpix_cuda_ops *ops;
    mpix_cuda_device device;
    int ipc; /* CUDA IPC instead of shareable allocations */
} mpix_gpu;

typedef struct mpix_gpu_window {
    mpix_cuda_mem mem[MPIX_CUDA_RANKS]; /* own and, mapped here, those of the peers of this host */
    size_t bytes[MPIX_CUDA_RANKS];      /* as asked for */
    int used;
    uint64_t serial; /* the caller's */
} mpix_gpu_window;

/* Local. Loads the module and opens a device: ordinal + 1, 0: the current one. 0, or a kind with
 * the reason in why. */
int mpix_gpu_open(mpix_gpu *gpu, const mpix_params *params, int device, char *why);
/* Collective, ends in agreement: all ranks use the same sort of window. */
int mpix_gpu_choose(mpix_gpu *gpu, mpix_boot *boot, const mpix_params *params);
/* Collective, ends in agreement. At most MPIX_CUDA_RANKS ranks; those of a host map
 * each other's. */
int mpix_gpu_window_create(const mpix_gpu *gpu, mpix_boot *boot, const mpix_params *params,
                           size_t bytes, mpix_gpu_window *window);
/* Local. What was exported by CUDA IPC must outlive its importers: the caller sees to that. */
void mpix_gpu_window_free(const mpix_gpu *gpu, int size, mpix_gpu_window *window);
/* The first half of it: the peers' parts are unmapped here. */
void mpix_gpu_window_close(const mpix_gpu *gpu, int size, int rank, mpix_gpu_window *window);
#endif
