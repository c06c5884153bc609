/* module_share.cu - what a P2P object asks of memory that a caller gives: how peers can map it, and
 * whether they can add to it. */
#include "gpu/module.h"

#include <dlfcn.h>
#include <pthread.h>

int m_share(const mpix_cuda_device *d, const void *p, size_t bytes, mpix_cuda_range *range,
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

int m_atomics(const mpix_cuda_device *d, const unsigned char uuid[16]) {
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
