/*
 * p2p_device.c - handles for kernels (include/mpix_device.h): the object, local memory,
 * a peer's memory.
 *
 * Counters. Where all ranks map each other they lie in GPU memory, and signals are additions over
 * the link. With proxied peers they lie in host memory for all pairs, in a window that same-host
 * ranks map and the network writes: data and the word that tells of them then are in memory of one
 * kind, and nothing has to be flushed between their arrivals. Mapped peers store their sums there
 * (mpix_dev_count).
 *
 * Memory for kernels in an object with proxied peers is host memory, which CUDA makes accessible:
 * each mapping, our own and those of mapped peers' parts, is registered with CUDA when a handle for
 * kernels needs it, and stays so as long as its area.
 *
 * What a kernel was given must stay valid while it runs: that is the caller's duty, for memory and
 * handles alike, as for copies on streams. A command that comes all the same finds its entry in the
 * tables empty and is refused.
 */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu.h"

#include "mpix_device.h"
#include "proxy/gpu_queue.h"

#include <unistd.h>

enum { DEVICE_ENTRIES = 2048, DEVICE_QUEUES = 4 };

struct p2p_device {
    MPIX_Device handle;
    mpix_win *win;          /* counters in host memory, NULL: in window */
    void **pinned;          /* [size] win's mappings as CUDA knows them */
    mpix_gpu_window window; /* counters in GPU memory */
    mpix_gpu_queues *queues;
    unsigned char (*uuid)[16];  /* [size + 1] the ranks' devices, where all are mapped */
    void *state, *peers, *sums; /* GPU memory */
    unsigned char *used;        /* [MPIX_DEV_REMOTES] */
    uint32_t next;
};

/* ---- host memory for kernels ----------------------------------------------------------------- */

/* The address of a mapping of `bytes` for kernels. */
static int device_register(mpix_p2p *p2p, void *base, size_t bytes, void **mapped) {
    const mpix_gpu *gpu = p2p_gpu_of(p2p);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char why[MPIX_CUDA_WHY] = "";
    int kind = gpu->ops->host_register(&gpu->device, base, (bytes + page - 1) / page * page, mapped,
                                       why);

    return kind ? mpix_fail(kind, NULL, "host memory for kernels: %s", why) : 0;
}

static void device_unregister(mpix_p2p *p2p, void *base) {
    const mpix_gpu *gpu = p2p_gpu_of(p2p);

    gpu->ops->host_unregister(&gpu->device, base);
}

/* A rank's part of an allocation in host memory. With the lock. */
static int area_pin(mpix_p2p *p2p, p2p_area *area, int rank, char **ptr) {
    int kind = p2p_gpu_get(p2p);

    if (!kind && !area->pinned && !(area->pinned = calloc((size_t)p2p->size, sizeof *area->pinned)))
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d ranks", p2p->size);
    if (!kind && !area->pinned[rank])
        kind = device_register(p2p, area->win->peer[rank], area->win->peer_bytes[rank],
                               &area->pinned[rank]);
    if (!kind)
        *ptr = area->pinned[rank];
    return kind;
}

int p2p_device_area(mpix_p2p *p2p, p2p_area *area) {
    char *ptr = NULL;
    int kind = area->win->bytes ? area_pin(p2p, area, p2p->rank, &ptr) : 0;

    if (!kind && ptr && ptr != area->win->base)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, "info",
                         "mpix_ep_p2p_memory=cuda among proxied peers: host memory has another "
                         "address for this GPU; "
                         "use host memory and MPIX_P2p_mem_device");
    return kind;
}

void p2p_device_area_free(mpix_p2p *p2p, p2p_area *area) {
    if (area->pinned)
        p2p_gpu_sync(p2p);
    for (int r = 0; area->pinned && r < p2p->size; r++)
        if (area->pinned[r])
            device_unregister(p2p, area->win->peer[r]);
    free(area->pinned);
    area->pinned = NULL;
}

/* ---- creation -------------------------------------------------------------------------------- */

static int device_new(mpix_p2p *p2p, p2p_device **out) {
    p2p_device *dev;
    int kind;

    pthread_mutex_lock(&p2p->lock);
    kind = p2p_gpu_get(p2p);
    pthread_mutex_unlock(&p2p->lock);
    if (kind)
        return kind;
    if (p2p->proxy && !mpix_proxy_threads(p2p->proxy) && p2p->params.proxy == MPIX_PROXY_CALLER)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "mpix_ep_proxy",
            "mpix_ep_proxy=caller: kernels need a proxy that runs by itself, auto or thread");
    if (p2p->size > MPIX_CUDA_RANKS && !p2p->proxy)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "transfers by kernels among %d mapped ranks; at most %d in this version",
                         p2p->size, MPIX_CUDA_RANKS);
    dev = calloc(1, sizeof *dev);
    if (!dev || !(dev->used = calloc(MPIX_DEV_REMOTES, 1)) ||
        !(dev->pinned = calloc((size_t)p2p->size, sizeof *dev->pinned))) {
        if (dev)
            free(dev->used);
        free(dev);
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a device handle");
    }
    *out = dev;
    return 0;
}

/* All peers are mapped: counters in GPU memory. Collective, ends in agreement. */
static int device_counters_gpu(mpix_p2p *p2p, p2p_device *dev) {
    const mpix_gpu *gpu = p2p_gpu_of(p2p);
    unsigned char(*uuid)[16] = dev->uuid = calloc((size_t)p2p->size + 1, sizeof *uuid);
    int kind = mpix_boot_agree(p2p->boot, uuid ? 0
                                               : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                           "no memory for %d ranks", p2p->size));

    if (!kind) {
        memcpy(uuid[p2p->size], gpu->device.uuid, sizeof *uuid);
        kind = mpix_boot_allgather(p2p->boot, uuid[p2p->size], sizeof *uuid, uuid);
    }
    kind = mpix_boot_agree(p2p->boot, kind);
    if (!kind)
        kind = p2p_gpu_choose(p2p);
    return kind ? kind
                : mpix_gpu_window_create(gpu, p2p->boot, &p2p->params,
                                         (size_t)p2p->size * (size_t)p2p->slots * 8, &dev->window);
}

/* Some are not: host memory, and the queues. Collective, ends in agreement. */
static int device_counters_host(mpix_p2p *p2p, p2p_device *dev) {
    mpix_gpu_queues_config config = {.queues = p2p->size < DEVICE_QUEUES ? p2p->size
                                                                         : DEVICE_QUEUES,
                                     .entries = DEVICE_ENTRIES,
                                     .counters = p2p->slots,
                                     .window = P2P_WIN_DEVICE};
    size_t bytes = (size_t)p2p->size * (size_t)p2p->slots * 8 + 8;
    int kind = mpix_win_create(p2p->boot, &p2p->params, bytes, MPIX_WIN_COMMIT, &dev->win);

    if (kind)
        return kind;
    for (int r = 0; r < p2p->size && !kind; r++)
        if (dev->win->peer[r])
            kind = device_register(p2p, dev->win->peer[r], bytes, &dev->pinned[r]);
    kind = mpix_boot_agree(p2p->boot, kind);
    if (!kind)
        kind = mpix_proxy_window(p2p->proxy, P2P_WIN_DEVICE, dev->win->base, bytes);
    if (kind)
        return kind;
    pthread_mutex_lock(&p2p->lock); /* nobody turns the proxy while it gets a thread */
    kind = mpix_proxy_start_threads(p2p->proxy, &p2p->params);
    pthread_mutex_unlock(&p2p->lock);
    if (!kind)
        kind = mpix_gpu_queues_open(p2p->proxy, p2p_gpu_of(p2p), &config, &dev->queues);
    return mpix_boot_agree(p2p->boot, kind);
}

static char *device_counters(const p2p_device *dev, int r) {
    return dev->win ? dev->pinned[r] : dev->window.mem[r].p;
}

/* Whether kernels add to the counters at a mapped peer; elsewhere they store sums. */
static int device_adds(const mpix_gpu *gpu, const p2p_device *dev, int r) {
    return !dev->win && gpu->ops->atomics(&gpu->device, dev->uuid[r]);
}

/* What kernels see, in GPU memory. */
static int device_describe(mpix_p2p *p2p, p2p_device *dev) {
    const mpix_gpu *gpu = p2p_gpu_of(p2p);
    size_t row = (size_t)p2p->slots * 8, size = (size_t)p2p->size;
    mpix_dev_state state = {.rank = p2p->rank, .size = p2p->size, .slots = p2p->slots};
    mpix_dev_peer *peers = calloc(size, sizeof *peers);
    char why[MPIX_CUDA_WHY] = "no memory";
    int kind = peers ? 0 : MPIX_ERRK_NO_MEM, proxied = 0;

    state.timeout_ns = p2p->limit_ns;
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, sizeof state, &dev->state, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, size * sizeof *peers, &dev->peers, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, size * row, &dev->sums, why);
    for (int r = 0; r < p2p->size && !kind; r++) {
        mpix_dev_peer *p = &peers[r];
        p->in = (unsigned long long *)(void *)(device_counters(dev, p2p->rank) + (size_t)r * row);
        if (device_counters(dev, r)) {
            p->out =
                (unsigned long long *)(void *)(device_counters(dev, r) + (size_t)p2p->rank * row);
            p->sums = device_adds(gpu, dev, r)
                          ? NULL
                          : (unsigned long long *)(void *)((char *)dev->sums + (size_t)r * row);
        } else {
            mpix_gpu_queues_describe_peer(dev->queues, r, 0, p);
            proxied++;
        }
    }
    if (dev->queues)
        mpix_gpu_queues_describe(dev->queues, &state);
    state.peers = dev->peers;
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, dev->peers, peers, size * sizeof *peers, why);
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, dev->state, &state, sizeof state, why);
    free(peers);
    if (kind)
        return mpix_fail(kind, NULL, "a device handle: %s", why);
    dev->handle = (MPIX_Device){.struct_size = sizeof dev->handle,
                                .rank = p2p->rank,
                                .size = p2p->size,
                                .slots = p2p->slots,
                                .proxied = proxied,
                                .state = dev->state};
    return 0;
}

/* While the proxy is there. Kernels have ended. */
void p2p_device_close(mpix_p2p *p2p) {
    p2p_device *dev = p2p->device;

    if (!dev)
        return;
    mpix_gpu_queues_close(dev->queues);
    dev->queues = NULL;
}

/* When it has gone. */
void p2p_device_free(mpix_p2p *p2p) {
    p2p_device *dev = p2p->device;
    const mpix_gpu *gpu = p2p_gpu_of(p2p);
    void *memory[3];

    if (!dev)
        return;
    memcpy(memory, (void *[]){dev->state, dev->peers, dev->sums}, sizeof memory);
    for (int i = 0; i < 3; i++)
        if (memory[i])
            gpu->ops->local_free(&gpu->device, memory[i]);
    for (int r = 0; r < p2p->size; r++)
        if (dev->pinned[r])
            device_unregister(p2p, dev->win->peer[r]);
    mpix_gpu_window_free(gpu, p2p->size, &dev->window);
    mpix_win_free(dev->win);
    free(dev->uuid);
    free(dev->pinned);
    free(dev->used);
    free(dev);
    p2p->device = NULL;
}

/* Collective the first time, ends in agreement. */
static int device_get(mpix_p2p *p2p) {
    p2p_device *dev = NULL;
    int kind;

    if (p2p->device)
        return 0;
    kind = mpix_boot_agree(p2p->boot, device_new(p2p, &dev));
    p2p->device = dev; /* what is made from here on is freed with it */
    if (!kind)
        kind = p2p->proxy ? device_counters_host(p2p, dev) : device_counters_gpu(p2p, dev);
    if (!kind)
        kind = mpix_boot_agree(p2p->boot, device_describe(p2p, dev));
    if (kind && dev) {
        MPIX_Error error = *mpix_error_tls();
        p2p_device_close(p2p);
        if (!dev->win) { /* a window that the proxy has registered goes with the object */
            p2p_device_free(p2p);
        }
        *mpix_error_tls() = error;
    }
    return kind;
}

int PMPIX_P2p_get_device(MPIX_P2p p2p, void *device_handle) {
    MPIX_Device *out = device_handle;
    int kind;

    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    kind = p2p_alive(p2p);
    if (!kind && p2p->device && !p2p->device->handle.struct_size)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "an earlier MPIX_P2p_get_device of this object has failed");
    if (!kind && !p2p->device) {
        int bad = !out || out->struct_size != sizeof *out;
        kind = mpix_boot_agree(
            p2p->boot,
            bad ? mpix_fail(MPIX_ERRK_ARG, "device_handle",
                            "device_handle is NULL, or its struct_size is unknown: use MPIX_INIT")
                : 0);
        if (!kind)
            kind = device_get(p2p);
    }
    if (!kind && (!out || out->struct_size != sizeof *out))
        kind = mpix_fail(MPIX_ERRK_ARG, "device_handle",
                         "device_handle is NULL, or its struct_size is unknown: use MPIX_INIT");
    if (!kind)
        *out = p2p->device->handle;
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_get_device);

/* ---- memory ---------------------------------------------------------------------------------- */

static int device_ready(mpix_p2p *p2p) {
    return p2p->device && p2p->device->handle.struct_size
               ? 0
               : mpix_fail(MPIX_ERRK_ARG, "mem", "MPIX_P2p_get_device comes first");
}

/* Host memory of this rank. With the lock. */
static int device_host(struct mpix_mem *mem, char **ptr) {
    const mpix_gpu *gpu = p2p_gpu_of(mem->p2p);

    if (mem->area && mem->bytes)
        return area_pin(mem->p2p, mem->area, mem->p2p->rank, ptr);
    *ptr = mem->base;
    if (mem->area || gpu->ops->pointer(&gpu->device, mem->base) == MPIX_CUDA_PTR_PINNED)
        return 0;
    return mpix_fail(
        MPIX_ERRK_UNSUPPORTED, "mem",
        "kernels can't reach pageable host memory: use MPIX_P2p_alloc or cudaHostAlloc");
}

int PMPIX_P2p_mem_device(MPIX_P2p_mem mem, MPIX_Device_mem *out) {
    int kind, index = -1;
    char *ptr;

    if (!p2p_live(mem, MPIX_LIVE_MEM))
        return mpix_boot_raise(NULL, mpix_live_need(mem, MPIX_LIVE_MEM, "mem",
                                                    "mem is NULL or deregistered"));
    mpix_p2p *p2p = mem->p2p;
    kind = !out || out->struct_size != sizeof *out
               ? mpix_fail(MPIX_ERRK_ARG, "out",
                           "out is NULL, or its struct_size is unknown: use MPIX_INIT")
               : device_ready(p2p);
    if (kind)
        return p2p_raise(p2p, kind);
    pthread_mutex_lock(&p2p->lock);
    ptr = mem->base;
    if (!mem->gpu)
        kind = device_host(mem, &ptr);
    if (!kind && mem->net && p2p->device->queues) {
        index = (int)(uint32_t)mem->id;
        mpix_gpu_queues_local(p2p->device->queues, index, mem->net, mem->base, mem->bytes);
    }
    pthread_mutex_unlock(&p2p->lock);
    if (!kind)
        *out = (MPIX_Device_mem){.struct_size = sizeof *out,
                                 .ptr = ptr,
                                 .bytes = mem->bytes,
                                 .index = index};
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_mem_device);

void p2p_device_mem_end(struct mpix_mem *mem) {
    p2p_device *dev = mem->p2p->device;

    if (dev && dev->queues && mem->net)
        mpix_gpu_queues_local(dev->queues, (int)(uint32_t)mem->id, NULL, NULL, 0);
}

void p2p_device_rmem_end(struct mpix_rmem *rmem) {
    p2p_device *dev = rmem->p2p->device;

    if (!dev || !rmem->device)
        return;
    if (dev->queues)
        mpix_gpu_queues_remote(dev->queues, rmem->device - 1, 0, NULL, 0, 0, 0);
    dev->used[rmem->device - 1] = 0;
    rmem->device = 0;
}

/* A place in the table of the peers' memory. */
static int device_remote(p2p_device *dev, struct mpix_rmem *rmem, int add) {
    for (uint32_t i = 0; i < MPIX_DEV_REMOTES && !rmem->device; i++) {
        uint32_t at = (dev->next + i) % MPIX_DEV_REMOTES;
        if (!dev->used[at]) {
            dev->used[at] = 1;
            dev->next = at + 1;
            rmem->device = (int)at + 1;
            mpix_gpu_queues_remote(dev->queues, (int)at, rmem->peer, rmem->net, rmem->off,
                                   rmem->bytes, add);
        }
    }
    return rmem->device
               ? 0
               : mpix_fail(
                     MPIX_ERRK_NO_MEM, NULL,
                     "%d handles of proxied peers' memory for kernels are alive, more can't be",
                     MPIX_DEV_REMOTES);
}

/* A mapped peer's host memory, or our own. */
static int device_rmem_host(struct mpix_rmem *rmem, char **ptr) {
    mpix_p2p *p2p = rmem->p2p;
    int kind;

    if (rmem->peer == p2p->rank) {
        struct mpix_mem *mem = p2p_mem_find(p2p, rmem->id, rmem->off, rmem->bytes);
        if (!mem)
            return mpix_fail(MPIX_ERRK_ARG, "rmem", "rmem: this memory was deregistered");
        kind = device_host(mem, ptr);
    } else {
        kind = area_pin(p2p, rmem->area, rmem->peer, ptr);
    }
    if (!kind)
        *ptr += rmem->off;
    return kind;
}

int PMPIX_P2p_rmem_device(MPIX_P2p_rmem rmem, MPIX_Device_rmem *out) {
    MPIX_Device_rmem made = {.struct_size = sizeof made, .index = -1};
    char *ptr = NULL;
    int kind;

    if (!p2p_live(rmem, MPIX_LIVE_RMEM))
        return mpix_boot_raise(NULL, mpix_live_need(rmem, MPIX_LIVE_RMEM, "rmem",
                                                    "rmem is NULL or freed"));
    mpix_p2p *p2p = rmem->p2p;
    kind = !out || out->struct_size != sizeof *out
               ? mpix_fail(MPIX_ERRK_ARG, "out",
                           "out is NULL, or its struct_size is unknown: use MPIX_INIT")
               : device_ready(p2p);
    if (kind)
        return p2p_raise(p2p, kind);
    made.bytes = rmem->bytes;
    made.peer = rmem->peer;
    pthread_mutex_lock(&p2p->lock);
    if (rmem->reach == P2P_NET) {
        made.atomics = rmem->net && rmem->shared && mpix_proxy_caps(p2p->proxy)->add_coherent;
        kind = rmem->net ? device_remote(p2p->device, rmem, made.atomics) : 0;
        made.index = rmem->device - 1;
    } else if (rmem->reach == P2P_DIRECT && rmem->gpu) {
        ptr = rmem->ptr;
        made.atomics = rmem->atomics;
    } else if (rmem->reach == P2P_DIRECT && (rmem->area || rmem->peer == p2p->rank)) {
        kind = device_rmem_host(rmem, &ptr);
    } else {
        kind = mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, rmem->peer, p2p->boot->hostnames[rmem->peer],
                              "kernels can't reach memory that rank %d registered in its own "
                              "address space: use MPIX_P2p_alloc",
                              rmem->peer);
    }
    pthread_mutex_unlock(&p2p->lock);
    made.ptr = ptr;
    if (!kind)
        *out = made;
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_rmem_device);
