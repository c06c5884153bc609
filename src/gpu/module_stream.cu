/* module_stream.cu - streams and events. */
#include "gpu/module.h"

int m_stream_create(const mpix_cuda_device *d, void **stream, char *why) {
    on_device guard(d->ordinal);
    /* ordered with the default stream, where callers fill buffers */
    cudaError_t err = cudaStreamCreate((cudaStream_t *)stream);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "a CUDA stream", err);
}
void m_stream_destroy(void *stream) { cudaStreamDestroy((cudaStream_t)stream); }
int m_stream_check(const mpix_cuda_device *d, void *stream, unsigned long long *capture,
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
uint64_t m_stream_id(const mpix_cuda_device *d, void *stream, unsigned long long capture) {
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
int m_event_create(const mpix_cuda_device *d, void **event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_NO_MEM, why, "a CUDA event", err);
}
void m_event_destroy(void *event) { cudaEventDestroy((cudaEvent_t)event); }
int m_event_record(const mpix_cuda_device *d, void *event, void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "recording a CUDA event", err);
}
int m_event_done(const mpix_cuda_device *d, void *event, char *why) {
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
int m_stream_wait(const mpix_cuda_device *d, void *stream, void *event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "waiting for a CUDA event", err);
}
void m_device_sync(const mpix_cuda_device *d) {
    on_device guard(d->ordinal);
    cudaDeviceSynchronize();
    cudaGetLastError();
}
int m_event_sync(const mpix_cuda_device *d, void *event, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaEventSynchronize((cudaEvent_t)event);
    return err == cudaSuccess ? 0 : fail(MPIX_KIND_TRANSPORT, why, "the GPU failed", err);
}
int m_stream_failed(const mpix_cuda_device *d, void *stream, char *why) {
    on_device guard(d->ordinal);
    cudaError_t err = cudaStreamQuery((cudaStream_t)stream);
    if (err == cudaSuccess || err == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    return fail(MPIX_KIND_TRANSPORT, why, "the GPU failed", err);
}
