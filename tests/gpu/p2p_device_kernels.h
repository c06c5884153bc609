/* p2p_device_kernels.h - the kernels of p2p_device.c. */
#ifndef TESTS_GPU_P2P_DEVICE_KERNELS_H
#define TESTS_GPU_P2P_DEVICE_KERNELS_H
#include "mpix_device.h"
#ifdef __cplusplus
extern "C" {
#endif
enum { D_THREAD, D_WARP, D_BLOCK, D_SCOPES };
/* All start a kernel and wait for it; 0, a result of mpix_device.cuh, or 100 + CUDA's error. */
int d_put(int scope, MPIX_Device d, MPIX_Device_rmem to, uint64_t roff, MPIX_Device_mem from,
          uint64_t off, uint64_t len, int peer, int source, int slot, uint64_t turn);
/* blocks * 256 threads put `each` numbers of 8 bytes one by one, each with a signal, and add 3 to
 * the word behind them; the sum of all results is 0 if all were. Then everything is flushed, and
 * `bar` signalled. */
int d_many(MPIX_Device d, MPIX_Device_rmem to, MPIX_Device_mem from, int blocks, int each, int add,
           int source, int slot, uint64_t signals, int bar, uint64_t turn);
int d_wait(MPIX_Device d, int peer, int slot, uint64_t at_least);
int d_signal(MPIX_Device d, int peer, int slot, uint64_t add);
int d_flush(MPIX_Device d, int peer);
int d_add(MPIX_Device d, MPIX_Device_rmem to, uint64_t roff, int64_t value);
#ifdef __cplusplus
}
#endif
#endif
