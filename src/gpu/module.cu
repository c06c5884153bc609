/* module.cu - the module's table: devices, memory that other processes can map, streams and
 * events, launches. */
#include "common/launch.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The driver's functions, got through the runtime: the module does not link libcuda. */
static struct {
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
} drv;

/* As the driver had it in CUDA 12.0: before 12.5 the toolkit's own version is all that can be asked
 * for, which is not older. */
static int symbol(const char *name, void *fn) {
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t err = cudaGetDriverEntryPointByVersion(name, (void **)fn, 12000, cudaEnableDefault,
                                                       &found);
#else
    cudaError_t err = cudaGetDriverEntryPoint(name, (void **)fn, cudaEnableDefault, &found);
#endif
    if (err != cudaSuccess)
        cudaGetLastError();
    return err == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

static int fail(int kind, char *why, const char *what, cudaError_t err) {
    cudaGetLastError();
    snprintf(why, MPIX_CUDA_WHY, "%s: %s", what, cudaGetErrorString(err));
    return kind;
}
static int fail_drv(int kind, char *why, const char *what, CUresult err) {
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

/* What is loaded if all of `needs` is wanted. Where a device has no code of its own the driver
 * compiles it now: seconds for each. It is done at creation, because CUDA loads a kernel at its
 * first launch and waits there for kernels that run, which may wait for a peer whose kernel waits
 * for the one to be loaded. */
static const struct {
    int needs;
    cudaError_t (*load)(int *arch);
} loads[] = {
    {MPIX_CUDA_LOAD_EP, mpix_cuda_route_load},
    {MPIX_CUDA_LOAD_COMPACT, mpix_cuda_dispatch_load},
    {MPIX_CUDA_LOAD_COMPACT, mpix_cuda_combine_load},
    {MPIX_CUDA_LOAD_EXPERT, mpix_cuda_place_load},
    {MPIX_CUDA_LOAD_EXPERT, mpix_cuda_expert_dispatch_load},
    {MPIX_CUDA_LOAD_EXPERT, mpix_cuda_expert_combine_load},
    {MPIX_CUDA_LOAD_COPY_ENGINE, mpix_cuda_copy_engine_load},
    {MPIX_CUDA_LOAD_LL, mpix_cuda_ll_route_load},
    {MPIX_CUDA_LOAD_LL, mpix_cuda_ll_dispatch_load},
    {MPIX_CUDA_LOAD_LL, mpix_cuda_ll_combine_load},
    {MPIX_CUDA_LOAD_LL | MPIX_CUDA_LOAD_REMOTE, mpix_cuda_ll_remote_load},
    {MPIX_CUDA_LOAD_COMPACT | MPIX_CUDA_LOAD_REMOTE, mpix_cuda_remote_dispatch_load},
    {MPIX_CUDA_LOAD_COMPACT | MPIX_CUDA_LOAD_REMOTE, mpix_cuda_remote_combine_load},
    {MPIX_CUDA_LOAD_EXPERT | MPIX_CUDA_LOAD_REMOTE, mpix_cuda_remote_expert_dispatch_load},
    {MPIX_CUDA_LOAD_EXPERT | MPIX_CUDA_LOAD_REMOTE, mpix_cuda_remote_expert_combine_load},
    {MPIX_CUDA_LOAD_P2P, mpix_cuda_p2p_load},
};

static int m_load(mpix_cuda_device *d, int what, char *why) {
    on_device guard(d->ordinal);
    int arch = INT_MAX, driver = 0;
    cudaError_t err = cudaSuccess;
    for (size_t i = 0; i < sizeof loads / sizeof *loads && err == cudaSuccess; i++)
        if ((what & loads[i].needs) == loads[i].needs)
            err = loads[i].load(&arch);
    if (err != cudaSuccess)
        return fail(MPIX_KIND_UNSUPPORTED, why, "the kernels can't be loaded", err);
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    mpix_cuda_decide(d, arch, driver);
    return 0;
}

static int m_open(int device, mpix_cuda_device *out, char *why) {
    int n = 0, current = 0;
    cudaError_t err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess || n == 0)
        return fail(MPIX_KIND_UNSUPPORTED, why, "no CUDA device can be used",
                    err == cudaSuccess ? cudaErrorNoDevice : err);
    if (device > n) {
        snprintf(why, MPIX_CUDA_WHY, "config.device = %d, there are %d CUDA devices", device, n);
        return MPIX_KIND_ARG;
    }
    if ((err = cudaGetDevice(&current)) != cudaSuccess)
        return fail(MPIX_KIND_UNSUPPORTED, why, "the current CUDA device can't be told", err);
    memset(out, 0, sizeof *out);
    out->ordinal = device ? device - 1 : current;
    on_device guard(out->ordinal);
    cudaDeviceProp prop;
    if ((err = cudaFree(0)) != cudaSuccess ||
        (err = cudaGetDeviceProperties(&prop, out->ordinal)) != cudaSuccess)
        return fail(MPIX_KIND_UNSUPPORTED, why, "the CUDA device can't be used", err);
    if (prop.major < 8) {
        snprintf(why, MPIX_CUDA_WHY,
                 "device %d (%.63s) has compute capability %d.%d, 8.0 is needed", out->ordinal,
                 prop.name, prop.major, prop.minor);
        return MPIX_KIND_UNSUPPORTED;
    }
    out->major = prop.major;
    out->minor = prop.minor;
    out->sms = prop.multiProcessorCount;
    out->smem = (int)prop.sharedMemPerBlockOptin;
    snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    memcpy(out->uuid, &prop.uuid, sizeof out->uuid);
    int vmm = 0, fds = 0;
    if (symbol("cuMemGetAllocationGranularity", &drv.get_granularity) &&
        symbol("cuMemCreate", &drv.create) && symbol("cuMemRelease", &drv.release) &&
        symbol("cuMemAddressReserve", &drv.reserve) && symbol("cuMemAddressFree", &drv.unreserve) &&
        symbol("cuMemMap", &drv.map) && symbol("cuMemUnmap", &drv.unmap) &&
        symbol("cuMemSetAccess", &drv.access) &&
        symbol("cuMemExportToShareableHandle", &drv.export_handle) &&
        symbol("cuMemImportFromShareableHandle", &drv.import_handle) &&
        symbol("cuDeviceGetAttribute", &drv.attribute)) {
        drv.attribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, out->ordinal);
        drv.attribute(&fds, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                      out->ordinal);
    }
    if (!symbol("cuStreamBatchMemOp", &drv.batch_ops))
        drv.batch_ops = nullptr;
    int exports = 0, order = 0;
    if (drv.attribute && symbol("cuMemGetHandleForAddressRange", &drv.range_handle))
        drv.attribute(&exports, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, out->ordinal);
    if (drv.attribute)
        drv.attribute(&order, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, out->ordinal);
    out->dmabuf = exports;
    out->rdma_order = order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    symbol("cuMemGetAddressRange", &drv.address_range);
    symbol("cuPointerGetAttribute", &drv.pointer_attribute);
    out->vmm = vmm && fds;
    return 0;
}

static int m_pointer(const mpix_cuda_device *d, const void *p) {
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

static uint64_t m_allocation(const mpix_cuda_device *, const void *p) {
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

static void m_free(const mpix_cuda_device *d, mpix_cuda_mem *mem) {
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

static int m_alloc(const mpix_cuda_device *d, size_t bytes, int ipc, mpix_cuda_mem *mem,
                   char *why) {
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

static int m_import(const mpix_cuda_device *d, size_t bytes, int ipc, int fd,
                    const unsigned char *blob, mpix_cuda_mem *mem, char *why) {
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

static int m_local_alloc(const mpix_cuda_device *d, size_t bytes, void **p, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaMalloc(p, bytes ? bytes : 1);
    if (err == cudaSuccess && (err = cudaMemset(*p, 0, bytes ? bytes : 1)) == cudaSuccess)
        err = cudaDeviceSynchronize();
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "GPU memory", err);
}
static void m_local_free(const mpix_cuda_device *d, void *p) {
    on_device guard(d->ordinal);
    cudaFree(p);
}
static int m_pinned_alloc(size_t bytes, void **p, char *why) {
    cudaError_t err = cudaHostAlloc(p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (err != cudaSuccess)
        return fail(MPIX_KIND_NO_MEM, why, "pinned host memory", err);
    memset(*p, 0, bytes);
    return 0;
}
static void m_pinned_free(void *p) { cudaFreeHost(p); }
static int m_copy(const mpix_cuda_device *d, void *to, const void *from, size_t bytes, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "copying to the GPU", err);
}
static int m_stream_create(const mpix_cuda_device *d, void **stream, char *why) {
    on_device guard(d->ordinal);
    /* ordered with the default stream, where callers fill buffers */
    cudaError_t err = cudaStreamCreate((cudaStream_t *)stream);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "a CUDA stream", err);
}
static void m_stream_destroy(void *stream) { cudaStreamDestroy((cudaStream_t)stream); }
static int m_stream_check(const mpix_cuda_device *d, void *stream, unsigned long long *capture,
                          char *why) {
    on_device guard(d->ordinal);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    cudaError_t err = cudaStreamGetCaptureInfo((cudaStream_t)stream, &status, &id);
    if (err != cudaSuccess)
        return fail(MPIX_KIND_ARG, why, "stream can't be used", err);
    if (status == cudaStreamCaptureStatusInvalidated) {
        snprintf(why, MPIX_CUDA_WHY, "the capture that stream is in has been invalidated");
        return MPIX_KIND_ARG;
    }
    *capture = status == cudaStreamCaptureStatusNone ? 0 : id + 1;
    int device = d->ordinal;
#if CUDART_VERSION >= 12080
    /* Not allowed in a capture; a driver older than the toolkit does not have it, and then the
     * launch is the check. */
    if (stream && !*capture && cudaStreamGetDevice((cudaStream_t)stream, &device) != cudaSuccess) {
        cudaGetLastError();
        device = d->ordinal;
    }
#endif
    if (device != d->ordinal) {
        snprintf(why, MPIX_CUDA_WHY, "stream belongs to CUDA device %d, the context to device %d",
                 device, d->ordinal);
        return MPIX_KIND_ARG;
    }
    return 0;
}
static uint64_t m_stream_id(const mpix_cuda_device *d, void *stream, unsigned long long capture) {
    /* To ask for the number of a stream that captures ends its capture. There the handle serves: it
     * names one stream until the capture ends, but for the one that each thread has its own of. */
    if (capture)
        return stream == (void *)cudaStreamPerThread ? 0 : (uint64_t)(uintptr_t)stream + 1;
    on_device guard(d->ordinal);
    unsigned long long id = 0;
    if (cudaStreamGetId((cudaStream_t)stream, &id) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return id + 1;
}
static int m_event_create(const mpix_cuda_device *d, void **event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "a CUDA event", err);
}
static void m_event_destroy(void *event) { cudaEventDestroy((cudaEvent_t)event); }
static int m_event_record(const mpix_cuda_device *d, void *event, void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "recording a CUDA event", err);
}
static int m_event_done(const mpix_cuda_device *d, void *event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventQuery((cudaEvent_t)event);
    if (err == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    if (err == cudaSuccess)
        return 1;
    fail(MPIX_KIND_TRANSPORT, why, "the GPU failed", err);
    return -1;
}
static int m_stream_wait(const mpix_cuda_device *d, void *stream, void *event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "waiting for a CUDA event", err);
}
static void m_device_sync(const mpix_cuda_device *d) {
    on_device guard(d->ordinal);
    cudaDeviceSynchronize();
    cudaGetLastError();
}
static int launched(cudaError_t err, char *why, const char *what) {
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, what, err);
}
static int m_route(const mpix_cuda_device *d, const mpix_cuda_handle *h, const mpix_cuda_route *c,
                   void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = mpix_cuda_route_launch(d, h, c, (cudaStream_t)stream);
    if (err == cudaSuccess && h->expert.on)
        err = mpix_cuda_place_launch(d, h, c, (cudaStream_t)stream);
    if (err == cudaSuccess && h->copy_engine.on)
        err = mpix_cuda_copy_engine_route_launch(h, c, (cudaStream_t)stream);
    return launched(err, why, "launching route");
}
static int m_dispatch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c,
                      void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = mpix_cuda_launchers_of(h).dispatch(d, h, c, (cudaStream_t)stream);
    return launched(err, why, "launching dispatch");
}
static int m_combine(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c,
                     void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = mpix_cuda_launchers_of(h).combine(d, h, c, (cudaStream_t)stream);
    return launched(err, why, "launching combine");
}
static int m_copy_engine_create(const mpix_cuda_device *d, int split, void **copies, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = mpix_cuda_copy_engine_create(split, copies);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "streams for copies", err);
}
static void m_copy_engine_destroy(const mpix_cuda_device *d, void *copies) {
    on_device guard(d->ordinal);
    mpix_cuda_copy_engine_destroy(copies);
}
static int m_event_sync(const mpix_cuda_device *d, void *event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventSynchronize((cudaEvent_t)event);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "the GPU failed", err);
}

/* ---- MPIX_P2p -------------------------------------------------------------------------------- */

static int m_share(const mpix_cuda_device *d, const void *p, size_t bytes, mpix_cuda_range *range,
                   char *why) {
    on_device guard(d->ordinal);
    CUdeviceptr base = 0;
    size_t whole = 0;
    int ipc = 0;
    memset(range, 0, sizeof *range);
    if (m_pointer(d, p) != MPIX_CUDA_PTR_DEVICE) {
        snprintf(why, MPIX_CUDA_WHY,
                 "%p is memory of another CUDA device than %d, the one of this object, or managed "
                 "memory",
                 p, d->ordinal);
        return MPIX_KIND_ARG;
    }
    if (!drv.address_range || !drv.pointer_attribute ||
        drv.address_range(&base, &whole, (CUdeviceptr)p) != CUDA_SUCCESS) {
        snprintf(why, MPIX_CUDA_WHY, "the driver does not know the allocation of %p", p);
        return MPIX_KIND_UNSUPPORTED;
    }
    range->off = (uint64_t)((CUdeviceptr)p - base);
    range->bytes = whole;
    if (bytes > whole - range->off) {
        snprintf(why, MPIX_CUDA_WHY,
                 "%zu bytes from %p on run beyond the allocation, of which %zu are left", bytes, p,
                 whole - (size_t)range->off);
        return MPIX_KIND_ARG;
    }
    if (drv.pointer_attribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                              (CUdeviceptr)p) == CUDA_SUCCESS &&
        ipc) {
        cudaIpcMemHandle_t handle;
        if (cudaIpcGetMemHandle(&handle, (void *)base) == cudaSuccess) {
            memcpy(range->ipc, &handle, sizeof range->ipc);
            range->share = MPIX_CUDA_SHARE_IPC;
            return 0;
        }
        cudaGetLastError();
    }
    CUmemoryPool pool = nullptr;
    range->share = drv.pointer_attribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                         (CUdeviceptr)p) == CUDA_SUCCESS &&
                           pool
                       ? MPIX_CUDA_SHARE_NOT_POOL
                       : MPIX_CUDA_SHARE_NOT_VMM;
    return 0;
}

/* Of a device that this process does not see, as where each rank has one visible GPU: the
 * driver's management library knows all of the machine's. It is not needed otherwise, so it is
 * looked for when it is asked. (To try an addition is no way: one that fails is fatal for the
 * process's context.) */
static int atomics_ask(const unsigned char mine[16], const unsigned char other[16]) {
    enum { ATOMICS = 3 }; /* NVML_P2P_CAPS_INDEX_ATOMICS; status 0 is NVML_P2P_STATUS_OK */
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *at[2] = {nullptr, nullptr};
    const unsigned char *const uuids[2] = {mine, other};
    char text[2][48];
    int status = -1;
    if (!lib)
        return 0;
    int (*init)(void) = (int (*)(void))dlsym(lib, "nvmlInit_v2"),
        (*end)(void) = (int (*)(void))dlsym(lib, "nvmlShutdown");
    int (*find)(const char *,
                void **) = (int (*)(const char *, void **))dlsym(lib, "nvmlDeviceGetHandleByUUID");
    int (*ask)(void *, void *, int,
               int *) = (int (*)(void *, void *, int, int *))dlsym(lib, "nvmlDeviceGetP2PStatus");
    for (int i = 0; i < 2; i++) {
        int n = snprintf(text[i], sizeof text[i], "GPU-");
        for (int b = 0; b < 16; b++)
            n += snprintf(text[i] + n, sizeof text[i] - (size_t)n, "%s%02x",
                          b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", uuids[i][b]);
    }
    if (init && end && find && ask && init() == 0) {
        if (find(text[0], &at[0]) == 0 && find(text[1], &at[1]) == 0 &&
            ask(at[0], at[1], ATOMICS, &status) != 0)
            status = -1;
        end();
    }
    dlclose(lib);
    return status == 0;
}

/* Kept, since each import of a peer's memory asks, and the library takes long to start. */
static int atomics_unseen(const unsigned char mine[16], const unsigned char other[16]) {
    static struct {
        unsigned char mine[16], other[16];
        int answer;
    } known[MPIX_CUDA_RANKS];
    static int nknown;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int i = 0, answer;
    pthread_mutex_lock(&lock);
    while (i < nknown && (memcmp(known[i].mine, mine, 16) || memcmp(known[i].other, other, 16)))
        i++;
    answer = i < nknown ? known[i].answer : atomics_ask(mine, other);
    if (i == nknown && nknown < MPIX_CUDA_RANKS) {
        memcpy(known[i].mine, mine, 16);
        memcpy(known[i].other, other, 16);
        known[nknown++].answer = answer;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

static int m_atomics(const mpix_cuda_device *d, const unsigned char uuid[16]) {
    int n = 0, native = 0, seen = 0;
    if (memcmp(uuid, d->uuid, sizeof d->uuid) == 0)
        return 1;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    for (int i = 0; i < n; i++) {
        cudaDeviceProp prop;
        if (cudaGetDeviceProperties(&prop, i) == cudaSuccess && memcmp(&prop.uuid, uuid, 16) == 0) {
            seen = 1;
            cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, d->ordinal, i);
        }
    }
    cudaGetLastError();
    return seen ? native : atomics_unseen(d->uuid, uuid);
}

static int m_host_register(const mpix_cuda_device *d, void *p, size_t bytes, void **mapped,
                           char *why) {
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
static void m_host_unregister(const mpix_cuda_device *d, void *p) {
    on_device guard(d->ordinal);
    cudaHostUnregister(p);
    cudaGetLastError();
}
/* The stream itself writes words, in order and with a barrier before each; a kernel where the
 * driver can't. */
static int stream_write(const mpix_cuda_tail *tail, void *stream, char *why) {
    CUstreamBatchMemOpParams op[2] = {};
    unsigned n = 0;
    uint64_t *const at[2] = {tail->word, tail->done}, values[2] = {tail->value, tail->end};
    for (int i = 0; i < 2; i++)
        if (at[i]) {
            op[n].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
            op[n].writeValue.address = (CUdeviceptr)at[i];
            op[n++].writeValue.value64 = values[i];
        }
    if (n == 0)
        return 0;
    if (drv.batch_ops) {
        CUresult err = drv.batch_ops((CUstream)stream, n, op, 0);
        if (err != CUDA_ERROR_NOT_SUPPORTED)
            return err == CUDA_SUCCESS
                       ? 0
                       : fail_drv(MPIX_KIND_TRANSPORT, why, "a word written by a stream", err);
        drv.batch_ops = nullptr;
    }
    return launched(mpix_cuda_p2p_tail(tail, (cudaStream_t)stream), why, "telling of a copy");
}
static int m_p2p_move(const mpix_cuda_device *d, mpix_cuda_piece *pieces, int n,
                      uint64_t kernel_bytes, const mpix_cuda_tail *tail, void *stream, char *why) {
    on_device guard(d->ordinal);
    int kind = launched(mpix_cuda_p2p_move(pieces, n, kernel_bytes, tail, (cudaStream_t)stream),
                        why, "copying between GPUs");
    return kind || tail->counter ? kind : stream_write(tail, stream, why);
}
static int m_p2p_add(const mpix_cuda_device *d, uint64_t *word, uint64_t add, uint64_t *old,
                     const mpix_cuda_tail *tail, void *stream, char *why) {
    on_device guard(d->ordinal);
    return launched(mpix_cuda_p2p_add(word, add, old, tail, (cudaStream_t)stream), why,
                    "launching an addition");
}
static int m_stream_failed(const mpix_cuda_device *d, void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaStreamQuery((cudaStream_t)stream);
    if (err == cudaSuccess || err == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    return fail(MPIX_KIND_TRANSPORT, why, "the GPU failed", err);
}

static int m_dmabuf(const mpix_cuda_device *d, void *p, size_t bytes, int *fd, char *why) {
    on_device guard(d->ordinal);
    CUresult err = drv.range_handle ? drv.range_handle(fd, (CUdeviceptr)p, bytes,
                                                       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)
                                    : CUDA_ERROR_NOT_SUPPORTED;
    return err == CUDA_SUCCESS
               ? 0
               : fail_drv(MPIX_KIND_UNSUPPORTED, why, "a dma-buf of GPU memory", err);
}

static const mpix_cuda_ops ops = {
    MPIX_CUDA_ABI,
    m_open,
    m_load,
    m_pointer,
    m_allocation,
    m_alloc,
    m_import,
    m_free,
    m_local_alloc,
    m_local_free,
    m_pinned_alloc,
    m_pinned_free,
    m_copy,
    m_stream_create,
    m_stream_destroy,
    m_stream_check,
    m_stream_id,
    m_event_create,
    m_event_destroy,
    m_event_record,
    m_event_done,
    m_stream_wait,
    m_device_sync,
    m_route,
    m_dispatch,
    m_combine,
    m_copy_engine_create,
    m_copy_engine_destroy,
    m_event_sync,
    m_share,
    m_atomics,
    m_host_register,
    m_host_unregister,
    m_p2p_move,
    m_p2p_add,
    m_stream_failed,
    m_dmabuf,
};

extern "C" const mpix_cuda_ops *mpix_cuda_module(void) { return &ops; }
