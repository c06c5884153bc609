/*
 * p2p_gpu.c - GPU memory: a device for the object, opened when it is first needed; memory and
 * handles.
 *
 * What is reached. GPU memory of peers of the same host is mapped (DIRECT), so the caller's GPU
 * moves the data and nobody else takes part: allocations of MPIX_P2p_alloc by what src/gpu/gpu.h
 * does, memory of cudaMalloc by CUDA IPC. Memory of cudaMallocAsync and of cuMemCreate can't be
 * opened by another process unless its maker arranged for it, which the library can't ask for
 * afterwards: it serves as the local side of transfers, and a peer that wants it is told why not.
 * The other side may be mapped host memory.
 */
#include "config.h"

#include "p2p/p2p_gpu_state.h"

#include <dlfcn.h>

enum { CU_MEMORY_TYPE = 2, CU_HOST = 1 };

/* ---- device ---------------------------------------------------------------------------------- */

static int gpu_make(mpix_p2p *p2p, p2p_gpu *g, char *why) {
    size_t counters = (size_t)p2p->size * (size_t)p2p->slots * sizeof *g->counters;
    int kind = mpix_gpu_open(&g->gpu, &p2p->params, 0, why);

    if (!kind)
        kind = g->gpu.ops->load(&g->gpu.device, MPIX_CUDA_LOAD_P2P, why);
    if (!kind)
        kind = g->gpu.ops->stream_create(&g->gpu.device, &g->stream, why);
    if (!kind)
        kind = g->gpu.ops->pinned_alloc(2 * GPU_WORDS * sizeof *g->words, (void **)&g->words, why);
    if (!kind)
        kind = g->gpu.ops->local_alloc(&g->gpu.device, counters, (void **)&g->counters, why);
    if (!kind && !(g->peers = calloc((size_t)p2p->size, sizeof *g->peers)))
        kind = MPIX_ERRK_NO_MEM;
    return kind;
}

static void gpu_unmake(mpix_p2p *p2p, p2p_gpu *g) {
    const mpix_cuda_ops *ops = g->gpu.ops;

    for (int r = 0; g->peers && r < p2p->size; r++)
        if (g->peers[r].host)
            ops->host_unregister(&g->gpu.device, g->peers[r].host);
    while (g->ipc) {
        p2p_ipc *ipc = g->ipc;
        g->ipc = ipc->next;
        ops->free(&g->gpu.device, &ipc->mem);
        free(ipc);
    }
    if (g->counters)
        ops->local_free(&g->gpu.device, g->counters);
    if (g->words)
        ops->pinned_free(g->words);
    if (g->stream)
        ops->stream_destroy(g->stream);
    free(g->peers);
    free(g->pieces);
    free(g);
}

/* The object's device, the caller's current one when it is first asked for. With the lock. */
int p2p_gpu_get(mpix_p2p *p2p) {
    char why[MPIX_CUDA_WHY] = "";
    p2p_gpu *g;
    int kind;

    if (p2p->gpu)
        return 0;
    g = calloc(1, sizeof *g);
    kind = g ? gpu_make(p2p, g, why) : MPIX_ERRK_NO_MEM;
    if (kind) {
        if (g)
            gpu_unmake(p2p, g);
        return p2p_gpu_failed(kind, "GPU memory can't be used",
                              why[0] ? why : "there is no host memory left");
    }
    p2p->gpu = g;
    mpix_log(MPIX_LOG_INFO, "point-to-point on device %d (%s)", g->gpu.device.ordinal,
             g->gpu.device.name);
    return 0;
}

const mpix_gpu *p2p_gpu_of(const mpix_p2p *p2p) { return p2p->gpu ? &p2p->gpu->gpu : NULL; }

int p2p_gpu_choose(mpix_p2p *p2p) {
    int kind = p2p->gpu->chosen ? 0 : mpix_gpu_choose(&p2p->gpu->gpu, p2p->boot, &p2p->params);

    p2p->gpu->chosen |= !kind;
    return kind;
}

void p2p_gpu_sync(mpix_p2p *p2p) {
    if (p2p->gpu)
        p2p->gpu->gpu.ops->device_sync(&p2p->gpu->gpu.device);
}

void p2p_gpu_free(mpix_p2p *p2p) {
    if (p2p->gpu)
        gpu_unmake(p2p, p2p->gpu);
    p2p->gpu = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Whether an address is memory of a CUDA device. A process that uses CUDA has the driver loaded,
 * and the driver knows; in others nothing is loaded to find out.
 */
int p2p_gpu_pointer(const void *base) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    int (*attributes)(unsigned, int *, void **, unsigned long long) = NULL;
    unsigned type = 0;
    int what = CU_MEMORY_TYPE;
    void *to = &type;

    if (!driver)
        return 0;
    attributes = (int (*)(unsigned, int *, void **, unsigned long long))(
        uintptr_t)dlsym(driver, "cuPointerGetAttributes");
    if (attributes && attributes(1, &what, &to, (unsigned long long)(uintptr_t)base) != 0)
        type = 0; /* for pageable memory it is 0, without an error */
    dlclose(driver);
    return type > CU_HOST;
}

/* Collective, with the arguments checked alike; ends in agreement. Without the lock. */
int p2p_gpu_area(mpix_p2p *p2p, uint64_t bytes, p2p_area *area) {
    int kind = 0;

    if (p2p->size > MPIX_CUDA_RANKS)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, "info",
                         "GPU memory among %d ranks; at most %d in this version", p2p->size,
                         MPIX_CUDA_RANKS);
    else if (!(area->gpu = calloc(1, sizeof *area->gpu)))
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an allocation");
    if (!kind) {
        pthread_mutex_lock(&p2p->lock);
        kind = p2p_gpu_get(p2p);
        pthread_mutex_unlock(&p2p->lock);
    }
    kind = mpix_boot_agree(p2p->boot, kind);
    if (!kind)
        kind = p2p_gpu_choose(p2p);
    if (!kind)
        kind = mpix_gpu_window_create(&p2p->gpu->gpu, p2p->boot, &p2p->params, bytes ? bytes : 1,
                                      area->gpu);
    if (kind) {
        free(area->gpu);
        area->gpu = NULL;
    }
    return kind;
}

/* What CUDA IPC has exported must outlive its importers, and those of peers are not known here:
 * kept until the object ends. */
int p2p_gpu_area_kept(const mpix_p2p *p2p) { return p2p->gpu->gpu.ipc; }

void p2p_gpu_area_free(mpix_p2p *p2p, p2p_area *area) {
    p2p_gpu_sync(p2p); /* copies on the caller's streams */
    if (!(p2p->failed && p2p->gpu->gpu.ipc))
        mpix_gpu_window_free(&p2p->gpu->gpu, p2p->size, area->gpu);
    free(area->gpu);
}

/* The caller's memory. With the lock. */
int p2p_gpu_reg(mpix_p2p *p2p, const void *base, uint64_t bytes, mpix_cuda_range **out) {
    char why[MPIX_CUDA_WHY] = "";
    mpix_cuda_range *range;
    int kind;

    if (p2p->proxy)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "base",
                         "base is GPU memory, which is for ranks that map each other; between "
                         "hosts it is not in this version");
    kind = p2p_gpu_get(p2p);
    if (kind)
        return kind;
    range = calloc(1, sizeof *range);
    if (!range)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    kind = p2p->gpu->gpu.ops->share(&p2p->gpu->gpu.device, base, (size_t)bytes, range, why);
    if (kind) {
        free(range);
        return mpix_fail(kind, "base", "%s", why);
    }
    *out = range;
    return 0;
}

void p2p_gpu_export(const struct mpix_mem *mem, uint64_t off, p2p_blob *blob) {
    blob->gpu = mem->area                                       ? P2P_GPU_AREA
                : mem->range->share == MPIX_CUDA_SHARE_IPC      ? P2P_GPU_IPC
                : mem->range->share == MPIX_CUDA_SHARE_NOT_POOL ? P2P_GPU_POOL
                                                                : P2P_GPU_VMM;
    memcpy(blob->uuid, mem->p2p->gpu->gpu.device.uuid, sizeof blob->uuid);
    if (mem->range) {
        blob->gpu_off = mem->range->off + off;
        blob->gpu_bytes = mem->range->bytes;
        memcpy(blob->ipc, mem->range->ipc, sizeof blob->ipc);
    }
}

static p2p_ipc *ipc_open(mpix_p2p *p2p, int peer, const p2p_blob *blob, int *kind) {
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    p2p_ipc *ipc = g->ipc;

    while (ipc && !(ipc->peer == peer && memcmp(ipc->handle, blob->ipc, sizeof ipc->handle) == 0))
        ipc = ipc->next;
    if (ipc) {
        ipc->users++;
        return ipc;
    }
    ipc = calloc(1, sizeof *ipc);
    *kind = ipc ? g->gpu.ops->import(&g->gpu.device, (size_t)blob->gpu_bytes, 1, -1, blob->ipc,
                                     &ipc->mem, why)
                : MPIX_ERRK_NO_MEM;
    if (*kind) {
        *kind = mpix_fail_peer(*kind, peer, p2p->boot->hostnames[peer],
                               "rank %d can't map the GPU memory of rank %d: %s", p2p->rank, peer,
                               why);
        free(ipc);
        return NULL;
    }
    ipc->peer = peer;
    ipc->users = 1;
    memcpy(ipc->handle, blob->ipc, sizeof ipc->handle);
    ipc->next = g->ipc;
    g->ipc = ipc;
    return ipc;
}

/* A mapped peer's GPU memory, or ours. area: that of the handle, if it is known here. */
int p2p_gpu_import(mpix_p2p *p2p, struct mpix_rmem *rmem, const p2p_blob *blob, p2p_area *area) {
    int peer = rmem->peer, kind = p2p_gpu_get(p2p);

    if (kind)
        return kind;
    rmem->gpu = 1;
    rmem->reach = P2P_DIRECT;
    rmem->atomics = p2p->gpu->gpu.ops->atomics(&p2p->gpu->gpu.device, blob->uuid);
    if (peer == p2p->rank) {
        rmem->ptr = (char *)(uintptr_t)blob->addr;
    } else if (blob->gpu == P2P_GPU_AREA) {
        if (!area || !area->gpu ||
            area->gpu->bytes[peer] != (blob->base_bytes ? blob->base_bytes : 1))
            return mpix_fail_peer(MPIX_ERRK_ARG, peer, NULL,
                                  "the allocation that rank %d's handle belongs to is freed here, "
                                  "with all its handles",
                                  peer);
        rmem->ptr = (char *)area->gpu->mem[peer].p + blob->mem_off;
        rmem->area = area;
        area->users++;
    } else if (blob->gpu == P2P_GPU_IPC) {
        p2p_ipc *ipc = ipc_open(p2p, peer, blob, &kind);
        if (!ipc)
            return kind;
        rmem->ptr = (char *)ipc->mem.p + blob->gpu_off;
        rmem->ipc = ipc;
    } else {
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, p2p->boot->hostnames[peer],
                              "rank %d registered GPU memory of %s, which other processes can't "
                              "map: use MPIX_P2p_alloc or cudaMalloc",
                              peer,
                              blob->gpu == P2P_GPU_POOL ? "cudaMallocAsync (a memory pool)"
                                                        : "cuMemCreate");
    }
    return 0;
}

/* A handle ends. A mapping that nobody uses is kept after a large receive, as long as its owner
 * keeps the registration. */
void p2p_gpu_rmem_close(struct mpix_rmem *rmem) {
    p2p_gpu *g = rmem->p2p->gpu;
    p2p_ipc **at = g ? &g->ipc : NULL, *ipc = rmem->ipc;

    if (!ipc || --ipc->users > 0 ||
        (rmem->temporary && rmem->gen && atomic_load(rmem->gen) == rmem->id))
        return;
    p2p_gpu_sync(rmem->p2p);
    while (*at != ipc)
        at = &(*at)->next;
    *at = ipc->next;
    g->gpu.ops->free(&g->gpu.device, &ipc->mem);
    free(ipc);
}

/* Blocking copy between any memories: eager messages and answers, which travel
 * through host memory. */
int p2p_gpu_copy(mpix_p2p *p2p, void *to, const void *from, size_t bytes) {
    char why[MPIX_CUDA_WHY] = "";
    int kind = p2p->gpu->gpu.ops->copy(&p2p->gpu->gpu.device, to, from, bytes, why);

    return kind ? p2p_gpu_failed(kind, "a copy to GPU memory", why) : 0;
}
