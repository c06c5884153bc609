/*
 * gpu.c - the CUDA module, and windows in GPU memory. Shareable allocations travel as descriptors,
 * by the sockets of fdpass.c; where a rank's driver can't make them, all ranks use CUDA IPC.
 */
#include "config.h"

#include "gpu/gpu.h"

#include "base/module.h"
#include "mem/mem_internal.h"
#include "transport/transport.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int mpix_gpu_open(mpix_gpu *gpu, const mpix_params *params, int device, char *why) {
    char reason[MPIX_CUDA_WHY] = "";
    void *dl = mpix_module_open(params->cuda_module, "libmpixep_cuda.so", reason, sizeof reason);
    const mpix_cuda_ops *(*get)(void) =
        dl ? (const mpix_cuda_ops *(*)(void))(uintptr_t)dlsym(dl, MPIX_CUDA_SYMBOL) : NULL;
    if (!get) {
        snprintf(why, MPIX_CUDA_WHY, "the CUDA module can't be loaded: %.200s", reason);
        return MPIX_ERRK_UNSUPPORTED;
    }
    const mpix_cuda_ops *ops = get();
    if (ops->abi != MPIX_CUDA_ABI) {
        snprintf(why, MPIX_CUDA_WHY, "the CUDA module has interface %d, %d is needed", ops->abi,
                 MPIX_CUDA_ABI);
        return MPIX_ERRK_UNSUPPORTED;
    }
    int kind = ops->open(device, &gpu->device, why);
    if (!kind)
        gpu->ops = ops;
    return kind;
}

int mpix_gpu_choose(mpix_gpu *gpu, mpix_boot *boot, const mpix_params *params) {
    uint64_t ipc = params->gpu_memory == MPIX_GPU_MEMORY_IPC || !gpu->device.vmm;
    int kind = mpix_boot_or(boot, &ipc, 1);
    gpu->ipc = (int)ipc;
    if (!kind && ipc && params->gpu_memory == MPIX_GPU_MEMORY_VMM)
        kind = mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "gpu_memory",
            "gpu_memory=vmm, but a rank's driver makes no shareable allocations or asks for ipc");
    return mpix_boot_agree(boot, kind);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

typedef struct passing {
    mpix_win win; /* first: what fdpass.c knows of it */
    const mpix_gpu *gpu;
    mpix_gpu_window *window;
} passing;

static int import_fd(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer,
                     const void *blob) {
    passing *p = (passing *)win;
    const mpix_win_blob *b = blob;
    char why[MPIX_CUDA_WHY] = "";
    (void)params;
    int kind = p->gpu->ops->import(&p->gpu->device, (size_t)b->reserved, 0, b->local_fd, NULL,
                                   &p->window->mem[peer], why);
    if (kind)
        return mpix_fail_peer(kind, peer, boot->hostnames[peer],
                              "rank %d can't map the GPU memory of rank %d: %s", boot->rank, peer,
                              why);
    win->peer_map[peer] = p->window->mem[peer].p;
    return 0;
}

static const mpix_transport_ops by_descriptor = {.name = "cuda",
                                                 .reach = MPIX_REACH_MAPPED,
                                                 .win_map = import_fd};

static uint64_t net_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/net", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* By sockets. */
static int pass_descriptors(const mpix_gpu *gpu, mpix_boot *boot, const mpix_params *params,
                            mpix_gpu_window *window) {
    int sock = -1, n = boot->size, rank = boot->rank;
    passing p = {.gpu = gpu, .window = window};
    mpix_win_blob mine = {.bytes = window->bytes[rank],
                          .reserved = window->mem[rank].bytes,
                          .fd = window->mem[rank].fd,
                          .local_fd = -1};
    mine.net_ns = net_namespace();
    mpix_win_blob *blobs = calloc((size_t)n, sizeof *blobs);
    p.win.peer_map = calloc((size_t)n, sizeof *p.win.peer_map);
    p.win.via = calloc((size_t)n, sizeof *p.win.via);
    p.win.fd = window->mem[rank].fd;
    p.win.size = n;
    p.win.rank = rank;
    int kind = blobs && p.win.peer_map && p.win.via
                   ? 0
                   : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory to exchange windows");
    if (!kind && getrandom(mine.random, sizeof mine.random, 0) != (ssize_t)sizeof mine.random)
        kind = mpix_fail(MPIX_ERRK_TRANSPORT, NULL, "no random number for a window can be had");
    if (!kind)
        kind = mpix_fdpass_open(&mine, &sock);
    kind = mpix_boot_agree(boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(boot, &mine, sizeof mine, blobs);
    for (int r = 0; !kind && r < n; r++) {
        p.win.via[r] = &by_descriptor;
        blobs[r].local_fd = -1;
        window->bytes[r] = (size_t)blobs[r].bytes;
    }
    if (!kind)
        kind = mpix_boot_agree(boot, mpix_fdpass_exchange(boot, params, &p.win, blobs, sock));
    if (sock >= 0)
        close(sock);
    free(blobs);
    free(p.win.peer_map);
    free(p.win.via);
    return kind;
}

/* ---- CUDA IPC -------------------------------------------------------------------------------- */

typedef struct ipc_blob {
    uint64_t bytes, reserved;
    unsigned char handle[64];
} ipc_blob;

static int pass_ipc(const mpix_gpu *gpu, mpix_boot *boot, mpix_gpu_window *window) {
    char why[MPIX_CUDA_WHY] = "";
    ipc_blob mine = {.bytes = window->bytes[boot->rank], .reserved = window->mem[boot->rank].bytes};
    memcpy(mine.handle, window->mem[boot->rank].ipc, sizeof mine.handle);
    ipc_blob *every = malloc((size_t)boot->size * sizeof *every);
    int kind = mpix_boot_agree(boot, every ? 0
                                           : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                       "no memory to exchange windows"));
    if (!kind)
        kind = mpix_boot_allgather(boot, &mine, sizeof mine, every);
    for (int r = 0; !kind && r < boot->size; r++) {
        window->bytes[r] = (size_t)every[r].bytes;
        if (r != boot->rank && boot->host_of[r] == boot->host_of[boot->rank] &&
            (kind = gpu->ops->import(&gpu->device, (size_t)every[r].reserved, 1, -1,
                                     every[r].handle, &window->mem[r], why)))
            kind = mpix_fail_peer(kind, r, boot->hostnames[r],
                                  "rank %d can't map the GPU memory of rank %d: %s", boot->rank, r,
                                  why);
    }
    free(every);
    return mpix_boot_agree(boot, kind);
}

/* ---- windows --------------------------------------------------------------------------------- */

int mpix_gpu_window_create(const mpix_gpu *gpu, mpix_boot *boot, const mpix_params *params,
                           size_t bytes, mpix_gpu_window *window) {
    mpix_cuda_mem *own = &window->mem[boot->rank];
    char why[MPIX_CUDA_WHY] = "";
    memset(window, 0, sizeof *window);
    for (int r = 0; r < MPIX_CUDA_RANKS; r++)
        window->mem[r].fd = -1;
    window->used = 1;
    window->bytes[boot->rank] = bytes;
    int kind = gpu->ops->alloc(&gpu->device, bytes, gpu->ipc, own, why);
    kind = mpix_boot_agree(boot,
                           kind ? mpix_fail(kind, NULL, "%zu bytes of GPU memory can't be had: %s",
                                            bytes, why)
                                : 0);
    if (!kind)
        kind = gpu->ipc ? pass_ipc(gpu, boot, window) : pass_descriptors(gpu, boot, params, window);
    if (kind) {
        mpix_gpu_window_free(gpu, boot->size, window);
        return kind;
    }
    if (own->fd >= 0) /* everybody has a descriptor of its own */
        close(own->fd);
    own->fd = -1;
    return 0;
}

void mpix_gpu_window_close(const mpix_gpu *gpu, int size, int rank, mpix_gpu_window *window) {
    for (int r = 0; r < size && window->used; r++)
        if (r != rank && window->mem[r].p) {
            gpu->ops->free(&gpu->device, &window->mem[r]);
            window->mem[r].p = NULL;
        }
}

void mpix_gpu_window_free(const mpix_gpu *gpu, int size, mpix_gpu_window *window) {
    for (int r = 0; r < size && window->used; r++)
        if (window->mem[r].p)
            gpu->ops->free(&gpu->device, &window->mem[r]);
    window->used = 0;
}
