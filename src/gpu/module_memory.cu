/* module_memory.cu - GPU memory: windows that other processes can map, memory of this process
 * alone, host memory that the GPU reaches. */
#include "gpu/module.h"

#include <unistd.h>

int m_pointer(const mpix_cuda_device *d, const void *p) {
    cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
        cudaGetLastError();
        return MPIX_CUDA_PTR_PAGEABLE;
    }
    switch (a.type) {
    case cudaMemoryTypeHost: return MPIX_CUDA_PTR_PINNED;
    case cudaMemoryTypeManaged: return MPIX_CUDA_PTR_MANAGED;
    case cudaMemoryTypeDevice:
        return a.device == d->ordinal ? MPIX_CUDA_PTR_DEVICE : MPIX_CUDA_PTR_OTHER_DEVICE;
    default: return MPIX_CUDA_PTR_PAGEABLE;
    }
}

uint64_t m_allocation(const mpix_cuda_device *, const void *p) {
    unsigned long long id = 0;
    if (!drv.pointer_attribute ||
        drv.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)p) != CUDA_SUCCESS)
        return 0;
    return id;
}

/* Maps a VMM handle for use by this rank's device. */
static CUresult vmm_map(const mpix_cuda_device *d, CUmemGenericAllocationHandle handle,
                        size_t bytes, void **p) {
    CUdeviceptr at = 0;
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = d->ordinal;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult err = drv.reserve(&at, bytes, 0, 0, 0);
    if (err != CUDA_SUCCESS)
        return err;
    if ((err = drv.map(at, bytes, 0, handle, 0)) != CUDA_SUCCESS)
        goto unreserve;
    if ((err = drv.access(at, bytes, &access, 1)) != CUDA_SUCCESS)
        goto unmap;
    *p = (void *)at;
    return CUDA_SUCCESS;
unmap:
    drv.unmap(at, bytes);
unreserve:
    drv.unreserve(at, bytes);
    return err;
}

void m_free(const mpix_cuda_device *d, mpix_cuda_mem *mem) {
    on_device guard(d->ordinal);
    if (mem->fd >= 0)
        close(mem->fd);
    if (mem->p && mem->is_ipc) {
        if (mem->imported)
            cudaIpcCloseMemHandle(mem->p);
        else
            cudaFree(mem->p);
    } else if (mem->p) {
        drv.unmap((CUdeviceptr)mem->p, mem->bytes);
        drv.unreserve((CUdeviceptr)mem->p, mem->bytes);
        drv.release(mem->handle);
    }
    mem->p = nullptr;
    mem->fd = -1;
}

int m_alloc(const mpix_cuda_device *d, size_t bytes, int ipc, mpix_cuda_mem *mem, char *why) {
    on_device guard(d->ordinal);
    memset(mem, 0, sizeof *mem);
    mem->fd = -1;
    mem->is_ipc = ipc;
    if (ipc) {
        cudaIpcMemHandle_t handle;
        /* no other allocation in the same exported piece */
        mem->bytes = (bytes + 0x1fffff) & ~(size_t)0x1fffff;
        cudaError_t err = cudaMalloc(&mem->p, mem->bytes);
        if (err == cudaSuccess && (err = cudaIpcGetMemHandle(&handle, mem->p)) == cudaSuccess)
            err = cudaMemset(mem->p, 0, mem->bytes);
        if (err != cudaSuccess) {
            m_free(d, mem);
            return fail(err == cudaErrorMemoryAllocation ? MPIX_KIND_NO_MEM : MPIX_KIND_UNSUPPORTED,
                        why, "GPU memory for CUDA IPC", err);
        }
        memcpy(mem->ipc, &handle, sizeof mem->ipc);
    } else {
        CUmemAllocationProp prop = {};
        CUmemGenericAllocationHandle handle;
        size_t grain = 0;
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = d->ordinal;
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUresult err = drv.get_granularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        if (err != CUDA_SUCCESS)
            return fail_drv(MPIX_KIND_UNSUPPORTED, why, "the granularity of GPU memory", err);
        mem->bytes = (bytes + grain - 1) / grain * grain;
        if ((err = drv.create(&handle, mem->bytes, &prop, 0)) != CUDA_SUCCESS)
            return fail_drv(MPIX_KIND_TRANSPORT, why, "GPU memory with a shareable handle", err);
        mem->handle = handle;
        if ((err = vmm_map(d, handle, mem->bytes, &mem->p)) != CUDA_SUCCESS) {
            drv.release(handle);
            return fail_drv(MPIX_KIND_TRANSPORT, why, "mapping GPU memory", err);
        }
        if ((err = drv.export_handle(&mem->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     0)) != CUDA_SUCCESS) {
            mem->fd = -1;
            m_free(d, mem);
            return fail_drv(MPIX_KIND_TRANSPORT, why, "a descriptor of GPU memory", err);
        }
        cudaError_t set = cudaMemset(mem->p, 0, mem->bytes);
        if (set != cudaSuccess) {
            m_free(d, mem);
            return fail(MPIX_KIND_TRANSPORT, why, "clearing GPU memory", set);
        }
    }
    cudaError_t err = cudaDeviceSynchronize();
    if (err != cudaSuccess) {
        m_free(d, mem);
        return fail(MPIX_KIND_TRANSPORT, why, "clearing GPU memory", err);
    }
    return 0;
}

int m_import(const mpix_cuda_device *d, size_t bytes, int ipc, int fd, const unsigned char *blob,
             mpix_cuda_mem *mem, char *why) {
    on_device guard(d->ordinal);
    memset(mem, 0, sizeof *mem);
    mem->fd = -1;
    mem->is_ipc = ipc;
    mem->imported = 1;
    mem->bytes = bytes;
    if (ipc) {
        cudaIpcMemHandle_t handle;
        memcpy(&handle, blob, sizeof handle);
        cudaError_t err = cudaIpcOpenMemHandle(&mem->p, handle, cudaIpcMemLazyEnablePeerAccess);
        return err == cudaSuccess ? 0 : fail(MPIX_KIND_UNSUPPORTED, why, "CUDA IPC", err);
    }
    CUmemGenericAllocationHandle handle;
    CUresult err = drv.import_handle(&handle, (void *)(intptr_t)fd,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (err != CUDA_SUCCESS)
        return fail_drv(MPIX_KIND_UNSUPPORTED, why, "importing a peer's GPU memory", err);
    mem->handle = handle;
    if ((err = vmm_map(d, handle, bytes, &mem->p)) != CUDA_SUCCESS) {
        drv.release(handle);
        return fail_drv(MPIX_KIND_UNSUPPORTED, why, "mapping a peer's GPU memory", err);
    }
    return 0;
}

int m_local_alloc(const mpix_cuda_device *d, size_t bytes, void **p, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaMalloc(p, bytes ? bytes : 1);
    if (err == cudaSuccess && (err = cudaMemset(*p, 0, bytes ? bytes : 1)) == cudaSuccess)
        err = cudaDeviceSynchronize();
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "GPU memory", err);
}
void m_local_free(const mpix_cuda_device *d, void *p) {
    on_device guard(d->ordinal);
    cudaFree(p);
}
int m_pinned_alloc(size_t bytes, void **p, char *why) {
    cudaError_t err = cudaHostAlloc(p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (err != cudaSuccess)
        return fail(MPIX_KIND_NO_MEM, why, "pinned host memory", err);
    memset(*p, 0, bytes);
    return 0;
}
void m_pinned_free(void *p) { cudaFreeHost(p); }
int m_copy(const mpix_cuda_device *d, void *to, const void *from, size_t bytes, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "copying to the GPU", err);
}

int m_host_register(const mpix_cuda_device *d, void *p, size_t bytes, void **mapped, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (err != cudaSuccess)
        return fail(MPIX_KIND_UNSUPPORTED, why,
                    "a peer's host memory can't be made accessible to the GPU", err);
    if ((err = cudaHostGetDevicePointer(mapped, p, 0)) != cudaSuccess) {
        cudaHostUnregister(p);
        return fail(MPIX_KIND_UNSUPPORTED, why, "a peer's host memory has no address for the GPU",
                    err);
    }
    return 0;
}
void m_host_unregister(const mpix_cuda_device *d, void *p) {
    on_device guard(d->ordinal);
    cudaHostUnregister(p);
    cudaGetLastError();
}

int m_dmabuf(const mpix_cuda_device *d, void *p, size_t bytes, int *fd, char *why) {
    on_device guard(d->ordinal);
    CUresult err = drv.range_handle ? drv.range_handle(fd, (CUdeviceptr)p, bytes,
                                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)
                                    : CUDA_ERROR_NOT_SUPPORTED;
    return err == CUDA_SUCCESS
               ? 0
               : fail_drv(MPIX_KIND_UNSUPPORTED, why, "a dma-buf of GPU memory", err);
}
