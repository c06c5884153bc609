/* launch.h - the kernels' launchers, inside the CUDA module. */
#ifndef MPIX_KERNELS_CUDA_LAUNCH_H
#define MPIX_KERNELS_CUDA_LAUNCH_H
#include "cuda_module.h"

#include <cuda_runtime.h>

/* Loads all kernels on the current device. */
cudaError_t mpix_cuda_route_load(void);
cudaError_t mpix_cuda_dispatch_load(void);
cudaError_t mpix_cuda_combine_load(void);
#ifdef MPIX_TUNE
#include <stdlib.h>
static inline int tune(const char *name, int v) { return getenv(name) ? atoi(getenv(name)) : v; }
#define TUNE(name, v) tune("T_" name, v)
#else
#define TUNE(name, v) (v)
#endif

cudaError_t mpix_cuda_route_launch(const mpix_cuda_handle *h, const mpix_cuda_route *c, cudaStream_t stream);
cudaError_t mpix_cuda_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, cudaStream_t stream);
cudaError_t mpix_cuda_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream);
#endif
