/* p2p_gpu.h - GPU memory, for the rest of this folder. Calls with the lock unless they
 * say otherwise. */
#ifndef MPIX_P2P_P2P_GPU_H
#define MPIX_P2P_P2P_GPU_H
#include "p2p/p2p.h"

int p2p_gpu_pointer(const void *base); /* 1: memory of a CUDA device. Without the lock. */
/* Collective, ends in agreement, without the lock: the memory of an area. */
int p2p_gpu_area(mpix_p2p *p2p, uint64_t bytes, p2p_area *area);
int p2p_gpu_area_kept(const mpix_p2p *p2p); /* 1: areas are freed with the object only */
void p2p_gpu_area_free(mpix_p2p *p2p, p2p_area *area);
int p2p_gpu_reg(mpix_p2p *p2p, const void *base, uint64_t bytes, mpix_cuda_range **range);
void p2p_gpu_export(const struct mpix_mem *mem, uint64_t off, p2p_blob *blob);
int p2p_gpu_import(mpix_p2p *p2p, struct mpix_rmem *rmem, const p2p_blob *blob, p2p_area *area);
void p2p_gpu_rmem_close(struct mpix_rmem *rmem);
void p2p_gpu_sync(mpix_p2p *p2p); /* all streams of the device */
void p2p_gpu_free(mpix_p2p *p2p);

int p2p_gpu_get(mpix_p2p *p2p);                  /* opens the object's device */
const mpix_gpu *p2p_gpu_of(const mpix_p2p *p2p); /* NULL: not opened */
int p2p_gpu_choose(mpix_p2p *p2p); /* collective, without the lock: what sort of windows */

/* ---- p2p_device.c ---------------------------------------------------------------------------- */
int p2p_device_area(mpix_p2p *p2p, p2p_area *area); /* an allocation in host memory that kernels use
                                                     * by the address that it has here */
void p2p_device_area_free(mpix_p2p *p2p, p2p_area *area);
void p2p_device_mem_end(struct mpix_mem *mem);
void p2p_device_rmem_end(struct mpix_rmem *rmem);
void p2p_device_close(mpix_p2p *p2p); /* before the proxy ends, and after */
void p2p_device_free(mpix_p2p *p2p);

int p2p_gpu_copy(mpix_p2p *p2p, void *to, const void *from, size_t bytes);
int p2p_gpu_submit(p2p_op *op);
int p2p_gpu_add(p2p_op *op);
int p2p_gpu_adds(const p2p_op *op); /* 1: our GPU can do this addition */
int p2p_gpu_add_now(mpix_p2p *p2p, void *at, uint64_t add, uint64_t *old);
int p2p_gpu_done(p2p_op *op);
void p2p_gpu_op_free(p2p_op *op);
#endif
