/* module.h - what the files of the CUDA module's host part share. */
#ifndef MPIX_GPU_MODULE_H
#define MPIX_GPU_MODULE_H
#include "common/launch.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

/* No symbols of the module: what dlopen finds is its table. */
#pragma GCC visibility push(hidden)

/* The driver's functions, got through the runtime: the module does not link libcuda. */
struct mpix_cuda_driver {
    CUresult (*get_granularity)(size_t *, const CUmemAllocationProp *,
                                CUmemAllocationGranularity_flags);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*export_handle)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                              unsigned long long);
    CUresult (*import_handle)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*batch_ops)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);
    CUresult (*address_range)(CUdeviceptr *, size_t *, CUdeviceptr);
    CUresult (*pointer_attribute)(void *, CUpointer_attribute, CUdeviceptr);
    CUresult (*range_handle)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
};
extern mpix_cuda_driver drv;

static inline int fail(int kind, char *why, const char *what, cudaError_t err) {
    cudaGetLastError();
    snprintf(why, MPIX_CUDA_WHY, "%s: %s", what, cudaGetErrorString(err));
    return kind;
}
static inline int fail_drv(int kind, char *why, const char *what, CUresult err) {
    snprintf(why, MPIX_CUDA_WHY, "%s: error %d of the CUDA driver%s", what, (int)err,
             err == CUDA_ERROR_OUT_OF_MEMORY ? " (out of memory)" : "");
    return err == CUDA_ERROR_OUT_OF_MEMORY ? MPIX_KIND_NO_MEM : kind;
}

/* The caller's current device is the caller's: put back when this goes out of scope. And another
 * stream of the calling thread may be in a capture that calls like cudaEventQuery would break: none
 * of ours belong to it. */
struct on_device {
    int was = -1;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    explicit on_device(int ordinal) {
        cudaThreadExchangeStreamCaptureMode(&mode);
        if (cudaGetDevice(&was) == cudaSuccess && was != ordinal)
            cudaSetDevice(ordinal);
        else
            was = -1;
    }
    ~on_device() {
        cudaThreadExchangeStreamCaptureMode(&mode);
        if (was >= 0)
            cudaSetDevice(was);
    }
};

/* module_memory.cu */
int m_pointer(const mpix_cuda_device *d, const void *p);
uint64_t m_allocation(const mpix_cuda_device *, const void *p);
void m_free(const mpix_cuda_device *d, mpix_cuda_mem *mem);
int m_alloc(const mpix_cuda_device *d, size_t bytes, int ipc, mpix_cuda_mem *mem, char *why);
int m_import(const mpix_cuda_device *d, size_t bytes, int ipc, int fd, const unsigned char *blob,
             mpix_cuda_mem *mem, char *why);
int m_local_alloc(const mpix_cuda_device *d, size_t bytes, void **p, char *why);
void m_local_free(const mpix_cuda_device *d, void *p);
int m_pinned_alloc(size_t bytes, void **p, char *why);
void m_pinned_free(void *p);
int m_copy(const mpix_cuda_device *d, void *to, const void *from, size_t bytes, char *why);
int m_host_register(const mpix_cuda_device *d, void *p, size_t bytes, void **mapped, char *why);
void m_host_unregister(const mpix_cuda_device *d, void *p);
int m_dmabuf(const mpix_cuda_device *d, void *p, size_t bytes, int *fd, char *why);

/* module_share.cu */
int m_share(const mpix_cuda_device *d, const void *p, size_t bytes, mpix_cuda_range *range,
            char *why);
int m_atomics(const mpix_cuda_device *d, const unsigned char uuid[16]);

/* module_stream.cu */
int m_stream_create(const mpix_cuda_device *d, void **stream, char *why);
void m_stream_destroy(void *stream);
int m_stream_check(const mpix_cuda_device *d, void *stream, unsigned long long *capture, char *why);
uint64_t m_stream_id(const mpix_cuda_device *d, void *stream, unsigned long long capture);
int m_event_create(const mpix_cuda_device *d, void **event, char *why);
void m_event_destroy(void *event);
int m_event_record(const mpix_cuda_device *d, void *event, void *stream, char *why);
int m_event_done(const mpix_cuda_device *d, void *event, char *why);
int m_stream_wait(const mpix_cuda_device *d, void *stream, void *event, char *why);
void m_device_sync(const mpix_cuda_device *d);
int m_event_sync(const mpix_cuda_device *d, void *event, char *why);
int m_stream_failed(const mpix_cuda_device *d, void *stream, char *why);

#pragma GCC visibility pop
#endif
