/* module.cu - the module's table: devices, loading, launches. */
#include "gpu/module.h"

mpix_cuda_driver drv;

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
