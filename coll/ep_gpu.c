/*
 * ep_gpu.c - contexts in GPU memory: loading the CUDA module, windows, and the state of handles.
 *
 * A window is an allocation of each rank, mapped by all. Shareable allocations travel as descriptors, by the sockets of mem/fdpass.c;
 * where a rank's driver can't make them, all ranks use CUDA IPC, whose memory must outlive its importers: it is kept until the context
 * is freed. Windows of a context that has failed are not freed: a peer that was stopped may wake and write.
 */
#include "config.h"

#include "base/module.h"
#include "coll/ep_gpu.h"
#include "mem/mem_internal.h"
#include "transport/transport.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int mpix_ep_gpu_is(struct mpix_ep_handle *handle) {
    return mpix_live_check(handle, MPIX_LIVE_HANDLE) && handle->ep->gpu;
}

/* ---- the module ------------------------------------------------------------------------------------------------------------ */

static int module_load(mpix_ep *ep, mpix_ep_gpu *gpu) {
    char why[MPIX_CUDA_WHY] = "";
    void *dl = mpix_module_open(ep->params.cuda_module, "libmpixep_cuda.so", why, sizeof why);
    const mpix_cuda_ops *(*get)(void) = dl ? (const mpix_cuda_ops *(*)(void))(uintptr_t)dlsym(dl, MPIX_CUDA_SYMBOL) : NULL;
    if (!get)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.memkind", "MPIX_EP_CUDA: the CUDA module can't be loaded: %s", why);
    gpu->ops = get();
    if (gpu->ops->abi != MPIX_CUDA_ABI)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.memkind", "MPIX_EP_CUDA: the CUDA module has interface %d, %d is needed", gpu->ops->abi,
                         MPIX_CUDA_ABI);
    int kind = gpu->ops->open(ep->config.device, &gpu->device, why);
    return kind ? mpix_fail(kind, kind == MPIX_ERRK_ARG ? "config.device" : "config.memkind", "MPIX_EP_CUDA: %s", why) : 0;
}

/* ---- windows --------------------------------------------------------------------------------------------------------------- */

typedef struct passing {
    mpix_win win; /* first: what mem/fdpass.c knows of it */
    mpix_ep *ep;
    mpix_ep_gpu_window *window;
} passing;

static int import_fd(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer, const void *blob) {
    passing *p = (passing *)win;
    const mpix_win_blob *b = blob;
    const mpix_ep_gpu *gpu = p->ep->gpu;
    char why[MPIX_CUDA_WHY] = "";
    (void)params;
    int kind = gpu->ops->import(&gpu->device, (size_t)b->reserved, 0, b->local_fd, NULL, &p->window->mem[peer], why);
    if (kind)
        return mpix_fail_peer(kind, peer, boot->hostnames[peer], "rank %d can't map the GPU memory of rank %d: %s", boot->rank, peer, why);
    win->peer_map[peer] = p->window->mem[peer].p;
    return 0;
}

static const mpix_transport_ops by_descriptor = {.name = "cuda", .reach = MPIX_REACH_MAPPED, .win_map = import_fd};

static uint64_t net_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/net", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* By sockets. blobs: of all ranks, exchanged here. */
static int pass_descriptors(mpix_ep *ep, mpix_ep_gpu_window *window) {
    mpix_boot *boot = ep->boot;
    int sock = -1, n = ep->size, rank = ep->rank;
    passing p = {.ep = ep, .window = window};
    mpix_win_blob mine = {.bytes = window->bytes[rank], .reserved = window->mem[rank].bytes, .fd = window->mem[rank].fd, .local_fd = -1};
    mine.net_ns = net_namespace();
    mpix_win_blob *blobs = calloc((size_t)n, sizeof *blobs);
    p.win.peer_map = calloc((size_t)n, sizeof *p.win.peer_map);
    p.win.via = calloc((size_t)n, sizeof *p.win.via);
    p.win.fd = window->mem[rank].fd;
    p.win.size = n;
    p.win.rank = rank;
    int kind = blobs && p.win.peer_map && p.win.via ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory to exchange windows");
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
        kind = mpix_boot_agree(boot, mpix_fdpass_exchange(boot, &ep->params, &p.win, blobs, sock));
    if (sock >= 0)
        close(sock);
    free(blobs);
    free(p.win.peer_map);
    free(p.win.via);
    return kind;
}

typedef struct ipc_blob {
    uint64_t bytes, reserved;
    unsigned char handle[64];
} ipc_blob;

static int pass_ipc(mpix_ep *ep, mpix_ep_gpu_window *window) {
    const mpix_ep_gpu *gpu = ep->gpu;
    char why[MPIX_CUDA_WHY] = "";
    ipc_blob mine = {.bytes = window->bytes[ep->rank], .reserved = window->mem[ep->rank].bytes};
    memcpy(mine.handle, window->mem[ep->rank].ipc, sizeof mine.handle);
    ipc_blob *every = malloc((size_t)ep->size * sizeof *every);
    int kind = mpix_boot_agree(ep->boot, every ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory to exchange windows"));
    if (!kind)
        kind = mpix_boot_allgather(ep->boot, &mine, sizeof mine, every);
    for (int r = 0; !kind && r < ep->size; r++) {
        window->bytes[r] = (size_t)every[r].bytes;
        if (r != ep->rank && (kind = gpu->ops->import(&gpu->device, (size_t)every[r].reserved, 1, -1, every[r].handle, &window->mem[r], why)))
            kind = mpix_fail_peer(kind, r, ep->boot->hostnames[r], "rank %d can't map the GPU memory of rank %d: %s", ep->rank, r, why);
    }
    free(every);
    return mpix_boot_agree(ep->boot, kind);
}

int mpix_ep_gpu_window_create(mpix_ep *ep, size_t bytes, mpix_ep_gpu_window *window) {
    const mpix_ep_gpu *gpu = ep->gpu;
    char why[MPIX_CUDA_WHY] = "";
    memset(window, 0, sizeof *window);
    for (int r = 0; r < MPIX_CUDA_RANKS; r++)
        window->mem[r].fd = -1;
    window->used = 1;
    window->bytes[ep->rank] = bytes;
    int kind = gpu->ops->alloc(&gpu->device, bytes, gpu->ipc, &window->mem[ep->rank], why);
    kind = mpix_boot_agree(ep->boot, kind ? mpix_fail(kind, NULL, "%zu bytes of GPU memory can't be had: %s", bytes, why) : 0);
    if (!kind)
        kind = gpu->ipc ? pass_ipc(ep, window) : pass_descriptors(ep, window);
    if (kind) {
        mpix_ep_gpu_window_free(ep, window);
        return kind;
    }
    if (window->mem[ep->rank].fd >= 0) /* everybody has a descriptor of its own */
        close(window->mem[ep->rank].fd);
    window->mem[ep->rank].fd = -1;
    return 0;
}

void mpix_ep_gpu_window_free(mpix_ep *ep, mpix_ep_gpu_window *window) {
    for (int r = 0; r < ep->size && window->used; r++)
        if (window->mem[r].p)
            ep->gpu->ops->free(&ep->gpu->device, &window->mem[r]);
    window->used = 0;
}

/* ---- context --------------------------------------------------------------------------------------------------------------- */

/* All ranks must reach each other; all use the same kind of window. */
static int choose_windows(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    uint64_t ipc = ep->params.gpu_memory == MPIX_GPU_MEMORY_IPC || !gpu->device.vmm;
    int kind = mpix_boot_or(ep->boot, &ipc, 1);
    gpu->ipc = (int)ipc;
    if (!kind && ipc && ep->params.gpu_memory == MPIX_GPU_MEMORY_VMM)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, "gpu_memory", "gpu_memory=vmm, but a rank's driver makes no shareable allocations or asks for ipc");
    return mpix_boot_agree(ep->boot, kind);
}

static int create_local(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    const mpix_ep_placement *p = &ep->placement;
    char why[MPIX_CUDA_WHY] = "";
    size_t experts = (size_t)p->experts, mine = (size_t)p->nlocal[p->rank], n = 2 * experts + mine;
    int32_t *tables = malloc((n + 1) * sizeof *tables);
    gpu->windows = calloc(MPIX_CUDA_WINDOWS, sizeof *gpu->windows);
    if (!tables || !gpu->windows) {
        free(tables);
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context");
    }
    for (size_t e = 0; e < experts; e++) {
        tables[e] = p->owner[e];
        tables[experts + e] = p->local[e];
    }
    for (size_t e = 0; e < mine; e++)
        tables[2 * experts + e] = (int32_t)p->mine[e];
    int kind = gpu->ops->local_alloc(&gpu->device, (n + 1) * sizeof *tables, (void **)&gpu->tables, why);
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, gpu->tables, tables, n * sizeof *tables, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, MPIX_CUDA_WINDOWS * MPIX_CUDA_RANKS * sizeof(void *), (void **)&gpu->bases, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, sizeof(int32_t), (void **)&gpu->failed, why);
    if (!kind)
        kind = gpu->ops->pinned_alloc(MPIX_EP_GPU_REPORTS * sizeof *gpu->reports, (void **)&gpu->reports, why);
    if (!kind)
        kind = gpu->ops->pinned_alloc(sizeof *gpu->alarm, (void **)&gpu->alarm, why);
    if (!kind)
        kind = gpu->ops->stream_create(&gpu->device, &gpu->stream, why);
    free(tables);
    return kind ? mpix_fail(kind, NULL, "a context in GPU memory: %s", why) : 0;
}

static int create_checks(mpix_ep *ep) {
    if (ep->boot->nhosts > 1)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.memkind", "MPIX_EP_CUDA: %d hosts; GPU memory among several hosts is not in this version",
                         ep->boot->nhosts);
    if (ep->size > MPIX_CUDA_RANKS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "comm", "MPIX_EP_CUDA: %d ranks, at most %d in this version", ep->size, MPIX_CUDA_RANKS);
    if (ep->max_rows > INT64_C(0x7fffffff))
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.max_recv_rows", "MPIX_EP_CUDA: a batch of %lld rows, at most 2^31 - 1 in this version",
                         (long long)ep->max_rows);
    return 0;
}

int mpix_ep_gpu_create(mpix_ep *ep) {
    mpix_ep_gpu *gpu = calloc(1, sizeof *gpu);
    int kind = gpu ? create_checks(ep) : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context");
    ep->gpu = gpu;
    if (!kind)
        kind = module_load(ep, gpu);
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = choose_windows(ep);
    if (!kind)
        kind = mpix_boot_agree(ep->boot, create_local(ep));
    if (!kind)
        mpix_log(MPIX_LOG_INFO, "GPU memory on device %d (%s), windows by %s", gpu->device.ordinal, gpu->device.name,
                 gpu->ipc ? "CUDA IPC" : "shareable allocations");
    return kind;
}

void mpix_ep_gpu_free(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    if (!gpu)
        return;
    if (gpu->ops && gpu->stream) {
        gpu->ops->device_sync(&gpu->device);
        for (struct mpix_ep_handle *h = ep->handles; h; h = h->next)
            mpix_ep_gpu_handle_free(h);
        for (int i = 0; i < gpu->nwindows && !ep->failed; i++)
            mpix_ep_gpu_window_free(ep, &gpu->windows[i]);
        gpu->ops->stream_destroy(gpu->stream);
    }
    if (gpu->bases)
        gpu->ops->local_free(&gpu->device, gpu->bases);
    if (gpu->tables)
        gpu->ops->local_free(&gpu->device, gpu->tables);
    if (gpu->failed)
        gpu->ops->local_free(&gpu->device, gpu->failed);
    if (gpu->reports)
        gpu->ops->pinned_free(gpu->reports);
    if (gpu->alarm)
        gpu->ops->pinned_free(gpu->alarm);
    free(gpu->windows);
    free(gpu);
    ep->gpu = NULL;
}

/* ---- handles --------------------------------------------------------------------------------------------------------------- */

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Cuts one allocation into the arrays that kernels use. */
static size_t carve(mpix_ep *ep, mpix_cuda_handle *d, char *at) {
    size_t used = 0, n = (size_t)ep->size, tokens = (size_t)ep->config.max_tokens + 1, e = (size_t)ep->placement.experts;
    size_t blocks = tokens / MPIX_CUDA_BLOCK_TOKENS + 1;
#define CUT(field, count) (d->field = (void *)(at + used), used += up((count) * sizeof *d->field, 256))
    CUT(state, 1);
    CUT(bitmap, tokens);
    CUT(rel, tokens * n);
    CUT(blk, blocks * n);
    CUT(histogram, e + 1);
    CUT(ids, tokens * (size_t)ep->config.max_topk);
    CUT(recv_expert, (size_t)ep->placement.nlocal[ep->rank] + 1);
#undef CUT
    return used;
}

int mpix_ep_gpu_handle_create(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu *gpu = ep->gpu;
    char why[MPIX_CUDA_WHY] = "";
    size_t n = (size_t)ep->size, e = (size_t)ep->placement.experts;
    mpix_ep_gpu_handle *g = calloc(1, sizeof *g);
    int kind = mpix_boot_agree(ep->boot, g ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle"));
    if (kind) {
        free(g);
        return kind;
    }
    mpix_cuda_handle *d = &g->dev;
    handle->gpu = g;
    d->rank = ep->rank;
    d->size = ep->size;
    d->experts = (int32_t)e;
    d->local_experts = (int32_t)ep->placement.nlocal[ep->rank];
    d->max_topk = ep->config.max_topk;
    d->max_tokens = ep->config.max_tokens;
    d->max_rows = ep->max_rows;
    d->drop = ep->config.overflow == MPIX_EP_OVERFLOW_DROP;
    d->rows_limit = d->drop || ep->config.max_recv_rows == 0 ? -1 : ep->config.max_recv_rows;
    d->check = ep->config.check > 0;
    d->timeout_ns = ep->config.timeout_s > 0 ? (uint64_t)(ep->config.timeout_s * 1e9) : UINT64_MAX;
    d->delay_ns = (uint64_t)ep->params.gpu_delay_us * 1000;
    d->ready = sizeof(mpix_cuda_words);
    d->offered = d->ready + 2 * sizeof(mpix_cuda_offer);
    d->counts = d->offered + 2 * sizeof(mpix_cuda_offer);
    d->counts_bytes = up(16 + 4 * (n + e), 64);
    d->block = up(d->counts + 2 * d->counts_bytes, 128);
    d->meta = up(d->block * n, 256);
    d->meta_record = 8 + 8 * (size_t)ep->config.max_topk;
    d->bases = gpu->bases;
    d->failed = gpu->failed;
    d->alarm = gpu->alarm;
    d->owner = gpu->tables;
    d->local = gpu->tables + e;
    d->mine = gpu->tables + 2 * e;
    kind = mpix_ep_gpu_window_create(ep, d->meta + d->meta_record * (size_t)ep->max_rows + 1, &g->window);
    if (!kind) {
        for (int r = 0; r < ep->size; r++)
            d->window[r] = g->window.mem[r].p;
        kind = gpu->ops->local_alloc(&gpu->device, carve(ep, d, NULL), &g->local, why);
        if (!kind)
            kind = gpu->ops->pinned_alloc(sizeof *g->captured + (2 + 2 * n + (size_t)d->local_experts + e) * sizeof(int64_t), &g->results, why);
        if (!kind)
            kind = gpu->ops->event_create(&gpu->device, &g->event, why);
        if (!kind)
            kind = gpu->ops->event_create(&gpu->device, &g->capture_event, why);
        carve(ep, d, g->local);
        g->captured = g->results;
        d->results = (int64_t *)(g->captured + 1);
        kind = mpix_boot_agree(ep->boot, kind ? mpix_fail(kind, NULL, "a handle in GPU memory: %s", why) : 0);
    }
    if (kind)
        mpix_ep_gpu_handle_free(handle);
    return kind;
}

void mpix_ep_gpu_handle_free(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    if (!g)
        return;
    const mpix_cuda_ops *ops = ep->gpu->ops;
    ops->device_sync(&ep->gpu->device); /* kernels end, if only by their time limit */
    if (!ep->failed && ep->gpu->ipc && ep->gpu->nwindows < MPIX_CUDA_WINDOWS) {
        ep->gpu->windows[ep->gpu->nwindows] = g->window; /* exported memory outlives its importers */
        ep->gpu->windows[ep->gpu->nwindows++].used = 2;
    } else if (!ep->failed) {
        mpix_ep_gpu_window_free(ep, &g->window);
    }
    if (g->local)
        ops->local_free(&ep->gpu->device, g->local);
    if (g->results)
        ops->pinned_free(g->results);
    if (g->event)
        ops->event_destroy(g->event);
    if (g->capture_event)
        ops->event_destroy(g->capture_event);
    free(g);
    handle->gpu = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

int mpix_ep_gpu_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, mpix_cuda_place *place) {
    for (int i = 0; i < ep->gpu->nwindows; i++) {
        const mpix_ep_gpu_window *w = &ep->gpu->windows[i];
        const char *base = w->mem[ep->rank].p;
        if (w->used != 1 || (const char *)p < base || (size_t)((const char *)p - base) > w->bytes[ep->rank] ||
            bytes > w->bytes[ep->rank] - (size_t)((const char *)p - base))
            continue;
        *place = (mpix_cuda_place){(uint64_t)((const char *)p - base), stride, i, 0};
        return 1;
    }
    return 0;
}

int mpix_ep_gpu_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr) {
    mpix_ep_gpu *gpu = ep->gpu;
    void *bases[MPIX_CUDA_RANKS] = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = 0, i = gpu->nwindows;
    if (!baseptr)
        kind = mpix_fail(MPIX_ERRK_ARG, "baseptr", "baseptr is NULL");
    else if (bytes < 0 || bytes > (MPI_Count)1 << 46)
        kind = mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is not in [0, 2^46]", (long long)bytes);
    else if (info != MPI_INFO_NULL)
        kind = mpix_fail(MPIX_ERRK_ARG, "info", "info must be MPI_INFO_NULL");
    else if (i == MPIX_CUDA_WINDOWS)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "%d allocations were made in this context, more are not in this version for GPU memory", i);
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = mpix_ep_gpu_window_create(ep, bytes > 0 ? (size_t)bytes : 1, &gpu->windows[i]);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    for (int r = 0; r < ep->size; r++)
        bases[r] = gpu->windows[i].mem[r].p;
    kind = gpu->ops->copy(&gpu->device, gpu->bases + (size_t)i * MPIX_CUDA_RANKS, bases, sizeof bases, why);
    kind = mpix_boot_agree(ep->boot, kind ? mpix_fail(kind, NULL, "%s", why) : 0);
    if (kind) {
        mpix_ep_gpu_window_free(ep, &gpu->windows[i]);
        return mpix_boot_raise(ep->boot, kind);
    }
    gpu->nwindows++;
    *(void **)baseptr = gpu->windows[i].mem[ep->rank].p;
    return MPI_SUCCESS;
}

int mpix_ep_gpu_dealloc(mpix_ep *ep, void *base) {
    mpix_ep_gpu *gpu = ep->gpu;
    for (int i = 0; base && i < gpu->nwindows; i++) {
        if (gpu->windows[i].used != 1 || gpu->windows[i].mem[ep->rank].p != base)
            continue;
        gpu->ops->device_sync(&gpu->device);
        if (gpu->ipc)
            gpu->windows[i].used = 2;
        else if (!ep->failed)
            mpix_ep_gpu_window_free(ep, &gpu->windows[i]);
        memset(gpu->known, 0, sizeof gpu->known);
        return MPI_SUCCESS;
    }
    return mpix_boot_raise(ep->boot, mpix_fail(MPIX_ERRK_ARG, "base", "base = %p did not come from MPIX_Ep_alloc of this context", base));
}
