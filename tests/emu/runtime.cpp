/*
 * runtime.cpp - what tests call of CUDA's runtime, for an emulated GPU (emu.h): whatever is asked
 * of a stream is done when the call returns, or noted while it is captured.
 */
#include "cuda_module.h"
#include "emu_memory.h"

#include <cuda_runtime_api.h>
#include <functional>
#include <map>
#include <stdlib.h>
#include <string.h>
#include <vector>

typedef std::vector<std::function<void()>> actions;

struct memory {
    size_t bytes;
    int kind;
    unsigned long long number;
};
static std::map<const char *, memory> &known() {
    static std::map<const char *, memory> all;
    return all;
}
static unsigned long long numbers;
static actions *captured;
static unsigned long long captures;

/* ---- memory ---------------------------------------------------------------------------------- */
void emu_memory_note(void *p, size_t bytes, int kind) {
    known()[(const char *)p] = {bytes, kind, ++numbers};
}
void emu_memory_forget(void *p) { known().erase((const char *)p); }
void *emu_memory_make(size_t bytes, int kind) {
    void *p = NULL;
    /* to the byte, for sanitizers */
    if (bytes > EMU_MOST || posix_memalign(&p, 256, bytes ? bytes : 1))
        return NULL;
    emu_memory_note(p, bytes, kind);
    return p;
}
void emu_memory_free(void *p) {
    emu_memory_forget(p);
    free(p);
}
static memory memory_of(const void *p) {
    auto next = known().upper_bound((const char *)p);
    if (next == known().begin() ||
        (size_t)((const char *)p - (--next)->first) >= next->second.bytes)
        return {0, MPIX_CUDA_PTR_PAGEABLE, 0};
    return next->second;
}
int emu_memory_kind(const void *p) { return memory_of(p).kind; }
unsigned long long emu_memory_number(const void *p) { return memory_of(p).number; }

/* ---- streams: handles come again, numbers do not --------------------------------------------- */
static unsigned long long streams[16];
unsigned long long emu_stream_number(const void *stream) {
    static thread_local unsigned long long mine;
    if (stream == (const void *)cudaStreamPerThread)
        return mine ? mine : mine = ++numbers;
    for (auto &s : streams)
        if (stream == &s)
            return s;
    return ~0ull; /* the default stream, and the module's own */
}
unsigned long long emu_capturing() { return captured ? captures : 0; }
void emu_do(const std::function<void()> &what) {
    if (captured)
        captured->push_back(what);
    else
        what();
}

static cudaError_t make(void **p, size_t bytes, int kind) {
    *p = emu_memory_make(bytes, kind);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int *d) { return *d = 0, cudaSuccess; }
cudaError_t cudaMalloc(void **p, size_t bytes) { return make(p, bytes, MPIX_CUDA_PTR_DEVICE); }
cudaError_t cudaFree(void *p) { return emu_memory_free(p), cudaSuccess; }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    return make(p, bytes, MPIX_CUDA_PTR_PINNED);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { return make(p, bytes, MPIX_CUDA_PTR_PINNED); }
cudaError_t cudaFreeHost(void *p) { return emu_memory_free(p), cudaSuccess; }
cudaError_t cudaMemset(void *p, int v, size_t bytes) { return memset(p, v, bytes), cudaSuccess; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind) {
    return memcpy(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t bytes, cudaStream_t) {
    emu_do([=] { memset(p, v, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t) {
    emu_do([=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind) {
    for (size_t i = 0; i < height; i++)
        memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) {
    for (auto &slot : streams)
        if (!slot) {
            slot = ++numbers;
            *s = (cudaStream_t)&slot;
            return cudaSuccess;
        }
    return cudaErrorMemoryAllocation;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return *(unsigned long long *)s = 0, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : "an error of the emulated runtime";
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode) {
    captured = new actions;
    captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
    *graph = (cudaGraph_t)captured;
    captured = NULL;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *n) {
    return *n = ((actions *)graph)->size(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    *exec = (cudaGraphExec_t) new actions(*(actions *)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    for (auto &what : *(actions *)exec)
        what();
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return delete (actions *)exec, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete (actions *)graph, cudaSuccess; }
}
