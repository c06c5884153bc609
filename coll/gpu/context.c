/*
 * context.c - contexts in GPU memory and their windows (src/gpu/gpu.h).
 *
 * With CUDA IPC memory must outlive its importers. What a rank gives back it keeps, until a later
 * collective call finds that all ranks have given the same back: then all unmap it, and when all
 * have, each frees its own. Windows of a context that has failed are not freed: a peer that was
 * stopped may wake and write.
 */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host/remote.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the module and windows ------------------------------------------------------------------ */

static mpix_gpu gpu_of(const mpix_ep *ep) {
    return (mpix_gpu){ep->gpu->ops, ep->gpu->device, ep->gpu->ipc};
}

static int module_load(mpix_ep *ep, mpix_ep_gpu *gpu) {
    char why[MPIX_CUDA_WHY] = "";
    mpix_gpu opened = {0};
    int kind = mpix_gpu_open(&opened, &ep->params, ep->config.device, why);
    if (kind)
        return mpix_fail(kind, kind == MPIX_ERRK_ARG ? "config.device" : "config.memkind",
                         "MPIX_EP_CUDA: %s", why);
    gpu->ops = opened.ops;
    gpu->device = opened.device;
    return 0;
}

int mpix_ep_gpu_window_create(mpix_ep *ep, size_t bytes, mpix_ep_gpu_window *window) {
    mpix_gpu gpu = gpu_of(ep);
    return mpix_gpu_window_create(&gpu, ep->boot, &ep->params, bytes, window);
}

void mpix_ep_gpu_window_free(mpix_ep *ep, mpix_ep_gpu_window *window) {
    mpix_gpu gpu = gpu_of(ep);
    mpix_gpu_window_free(&gpu, ep->size, window);
}

/* Room for a window that is given back later, when nothing may fail. */
int mpix_ep_gpu_keep_room(mpix_ep_gpu *gpu) {
    int need = gpu->nkept + gpu->alive + 1;
    mpix_ep_gpu_window *kept = !gpu->ipc || need <= gpu->room
                                   ? gpu->kept
                                   : realloc(gpu->kept, (size_t)need * sizeof *kept);
    if (gpu->ipc && !kept)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for one more window");
    gpu->kept = kept;
    gpu->room = need > gpu->room ? need : gpu->room;
    return 0;
}

void mpix_ep_gpu_window_made(mpix_ep_gpu *gpu, mpix_ep_gpu_window *window) {
    window->serial = ++gpu->serial;
    gpu->alive++;
}

/* Of a context that has not failed. */
void mpix_ep_gpu_window_back(mpix_ep *ep, mpix_ep_gpu_window *window) {
    mpix_ep_gpu *gpu = ep->gpu;
    gpu->alive--;
    if (!gpu->ipc) {
        mpix_ep_gpu_window_free(ep, window);
        return;
    }
    gpu->kept[gpu->nkept++] = *window;
    window->used = 0;
}

/* Collective, ends in agreement: frees what all ranks have given back, if that is the same on all;
 * if not, another time. */
int mpix_ep_gpu_windows_collect(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    mpix_gpu device = gpu_of(ep);
    uint64_t mine = 0;
    if (!gpu->ipc)
        return 0;
    for (int i = 0; i < gpu->nkept; i++)
        mine += (gpu->kept[i].serial + 1) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t all[2] = {mine, ~mine}; /* ranks that differ have a bit in both */
    int kind = mpix_boot_or(ep->boot, all, 2);
    if (kind || all[0] != mine || all[1] != ~mine || mine == 0)
        return kind;
    gpu->ops->device_sync(&gpu->device);
    for (int i = 0; i < gpu->nkept; i++)
        mpix_gpu_window_close(&device, ep->size, ep->rank, &gpu->kept[i]);
    kind = mpix_boot_agree(ep->boot, 0);
    for (int i = 0; i < gpu->nkept && !kind; i++)
        mpix_ep_gpu_window_free(ep, &gpu->kept[i]);
    gpu->nkept = kind ? gpu->nkept : 0;
    return kind;
}

int mpix_ep_gpu_part(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    mpix_ep_gpu_remote_settle(ep);
    if (!gpu->ipc)
        return 0;
    mpix_gpu device = gpu_of(ep);
    gpu->ops->device_sync(&gpu->device);
    for (int i = 0; i < gpu->nkept; i++)
        mpix_gpu_window_close(&device, ep->size, ep->rank, &gpu->kept[i]);
    for (int i = 0; i < gpu->nwindows; i++)
        mpix_gpu_window_close(&device, ep->size, ep->rank, &gpu->windows[i]);
    for (struct mpix_ep_handle *h = ep->handles; h; h = h->next)
        if (h->gpu)
            mpix_gpu_window_close(&device, ep->size, ep->rank, &h->gpu->window);
    return mpix_boot_barrier_bounded(ep->boot, ep->config.timeout_s > 0 && ep->config.timeout_s < 10
                                                   ? ep->config.timeout_s
                                                   : 10);
}

/* ---- context --------------------------------------------------------------------------------- */

static int choose_windows(mpix_ep *ep) {
    mpix_gpu gpu = gpu_of(ep);
    int kind = mpix_gpu_choose(&gpu, ep->boot, &ep->params);
    ep->gpu->ipc = gpu.ipc;
    return kind;
}

static int create_local(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    const mpix_ep_placement *p = &ep->placement;
    char why[MPIX_CUDA_WHY] = "";
    size_t experts = (size_t)p->experts, mine = (size_t)p->nlocal[p->rank], n = 2 * experts + mine;
    int32_t *tables = malloc((n + 1) * sizeof *tables);
    gpu->windows = calloc(MPIX_CUDA_ALLOCATIONS, sizeof *gpu->windows);
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
    int kind = gpu->ops->local_alloc(&gpu->device, (n + 1) * sizeof *tables, (void **)&gpu->tables,
                                     why);
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, gpu->tables, tables, n * sizeof *tables, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device,
                                     MPIX_CUDA_ALLOCATIONS * MPIX_CUDA_RANKS * sizeof(void *),
                                     (void **)&gpu->bases, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, sizeof(int32_t), (void **)&gpu->failed, why);
    if (!kind)
        kind = gpu->ops->pinned_alloc(MPIX_EP_GPU_REPORTS * sizeof *gpu->reports,
                                      (void **)&gpu->reports, why);
    if (!kind)
        kind = gpu->ops->pinned_alloc(sizeof *gpu->alarm, (void **)&gpu->alarm, why);
    if (!kind)
        kind = gpu->ops->stream_create(&gpu->device, &gpu->stream, why);
    if (!kind)
        gpu->stream_id = gpu->ops->stream_id(&gpu->device, gpu->stream, 0);
    free(tables);
    return kind ? mpix_fail(kind, NULL, "a context in GPU memory: %s", why)
                : mpix_ep_gpu_spare_make(ep);
}

/* The kernels that the configuration needs. */
static int kernels_load(mpix_ep *ep) {
    const MPIX_Ep_config *c = &ep->config;
    char why[MPIX_CUDA_WHY] = "";
    int what = MPIX_CUDA_LOAD_EP | (ep->gpu->remote ? MPIX_CUDA_LOAD_REMOTE : 0);
    if (c->mode == MPIX_EP_LL)
        what |= MPIX_CUDA_LOAD_LL;
    else
        what |= c->layout == MPIX_EP_EXPERT ? MPIX_CUDA_LOAD_EXPERT : MPIX_CUDA_LOAD_COMPACT;
    if (c->num_sms == MPIX_EP_SMS_NONE)
        what |= MPIX_CUDA_LOAD_COPY_ENGINE;
    int kind = ep->gpu->ops->load(&ep->gpu->device, what, why);
    return kind ? mpix_fail(kind, "config.memkind", "MPIX_EP_CUDA: %s", why) : 0;
}

/* What the path asks of the ranks and their hosts, and its limits. */
static int create_checks(mpix_ep *ep) {
    const mpix_ep_path *path = ep->path;
    const mpix_ep_limits *most = &path->limits;
    const MPIX_Ep_config *c = &ep->config;
    int kind = 0, hosts = ep->boot->nhosts, expert = c->layout == MPIX_EP_EXPERT;
    if (hosts > 1)
        kind = mpix_ep_path_need(path, c->layout, MPIX_EP_CAN_PROXIED, "config.memkind",
                                 "kernels pack what goes to proxied peers");
    if (!kind && hosts > 1 && ep->params.two_hops == MPIX_HOPS_ON)
        kind = mpix_ep_path_need(path, c->layout, MPIX_EP_CAN_TWO_HOPS, "two_hops",
                                 "it takes one hop, as two_hops=auto or off ask for");
    if (kind)
        return kind;
    if (ep->size > most->ranks)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "comm", "path %s: %d ranks, it supports at most %d",
                         path->name, ep->size, most->ranks);
    if (expert && c->max_topk > most->expert_topk)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "config.max_topk",
            "path %s: config.max_topk = %d, it supports at most %d in the EXPERT layout",
            path->name, c->max_topk, most->expert_topk);
    if (expert && c->max_tokens * ep->size > most->rows)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.max_tokens",
                         "path %s: %lld tokens of all ranks, it supports at most %lld", path->name,
                         (long long)c->max_tokens * ep->size, (long long)most->rows);
    if (c->mode == MPIX_EP_LL) {
        mpix_cuda_ll ll;
        return mpix_ep_gpu_ll_geometry(c, &ep->placement, &ll);
    }
    if (ep->max_rows > most->rows)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.max_recv_rows",
                         "path %s: a batch of %lld rows, it supports at most %lld", path->name,
                         (long long)ep->max_rows, (long long)most->rows);
    return 0;
}

/* All is in the handles' windows; peers tell of a failure in the head of the control window. */
int mpix_ep_gpu_layout(mpix_ep *ep, int proxied_peers) {
    (void)proxied_peers;
    ep->stage_bytes = 4096;
    ep->layout = (mpix_ep_ctl_layout){.handles_at = 4096, .total = 4096};
    return 0;
}

int mpix_ep_gpu_create(mpix_ep *ep) {
    mpix_ep_gpu *gpu = calloc(1, sizeof *gpu);
    int kind = gpu ? create_checks(ep)
                   : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context");
    ep->gpu = gpu;
    if (!kind)
        kind = module_load(ep, gpu);
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = choose_windows(ep);
    if (!kind)
        kind = mpix_boot_agree(ep->boot, create_local(ep));
    if (!kind)
        kind = mpix_ep_gpu_remote_create(ep);
    if (!kind)
        kind = mpix_boot_agree(ep->boot, kernels_load(ep));
    if (!kind)
        mpix_log(MPIX_LOG_INFO, "GPU memory on device %d (%s), windows by %s", gpu->device.ordinal,
                 gpu->device.name, gpu->ipc ? "CUDA IPC" : "shareable allocations");
    return kind;
}

void mpix_ep_gpu_free(mpix_ep *ep) { mpix_ep_remote_free(ep); }

void mpix_ep_gpu_stop(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    if (!gpu)
        return;
    if (gpu->ops && gpu->stream) {
        gpu->ops->device_sync(&gpu->device);
        for (struct mpix_ep_handle *h = ep->handles; h; h = h->next)
            mpix_ep_gpu_handle_free(h, 1);
        for (int i = 0; i < gpu->nwindows && !ep->failed; i++)
            mpix_ep_gpu_window_free(ep, &gpu->windows[i]);
        for (int i = 0; i < gpu->nkept && !ep->failed; i++)
            mpix_ep_gpu_window_free(ep, &gpu->kept[i]);
        gpu->ops->stream_destroy(gpu->stream);
        mpix_ep_gpu_spare_free(ep);
        mpix_ep_gpu_remote_free(ep);
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
    free(gpu->kept);
    free(gpu);
    ep->gpu = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int mpix_ep_gpu_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride,
                     mpix_ep_place *place) {
    for (int i = 0; i < ep->gpu->nwindows; i++) {
        const mpix_ep_gpu_window *w = &ep->gpu->windows[i];
        const char *base = w->mem[ep->rank].p;
        if (w->used != 1 || (const char *)p < base ||
            (size_t)((const char *)p - base) > w->bytes[ep->rank] ||
            bytes > w->bytes[ep->rank] - (size_t)((const char *)p - base))
            continue;
        *place = (mpix_ep_place){(uint64_t)((const char *)p - base), stride, i, 0};
        return 1;
    }
    return 0;
}

int mpix_ep_gpu_reaches(mpix_ep *ep, const void *base, size_t bytes) {
    mpix_ep_place at;
    return mpix_ep_gpu_find(ep, base, bytes, 0, &at);
}

/* A number that all ranks have free. Collective, ends in agreement. */
static int window_choose(mpix_ep *ep, int *number) {
    uint64_t used[MPIX_CUDA_ALLOCATIONS / 64] = {0};
    for (int i = 0; i < MPIX_CUDA_ALLOCATIONS; i++)
        used[i / 64] |= (uint64_t)(ep->gpu->windows[i].used != 0) << (i % 64);
    int kind = mpix_boot_or(ep->boot, used, MPIX_CUDA_ALLOCATIONS / 64);
    for (*number = 0;
         !kind && *number < MPIX_CUDA_ALLOCATIONS && (used[*number / 64] >> (*number % 64) & 1);
         ++*number)
        ;
    if (!kind && *number == MPIX_CUDA_ALLOCATIONS)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "%d allocations of this context are alive, more can't be in this version "
                         "for GPU memory: free some",
                         *number);
    return kind;
}

int mpix_ep_gpu_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr) {
    mpix_ep_gpu *gpu = ep->gpu;
    void *bases[MPIX_CUDA_RANKS] = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = mpix_ep_check_alloc(bytes, info, baseptr), i = 0;
    kind = mpix_boot_agree(ep->boot, kind ? kind : mpix_ep_gpu_keep_room(gpu));
    if (!kind)
        kind = mpix_ep_gpu_windows_collect(ep);
    if (!kind)
        kind = window_choose(ep, &i);
    if (!kind)
        kind = mpix_ep_gpu_window_create(ep, bytes > 0 ? (size_t)bytes : 1, &gpu->windows[i]);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    mpix_ep_gpu_window_made(gpu, &gpu->windows[i]);
    for (int r = 0; r < ep->size; r++)
        bases[r] = gpu->windows[i].mem[r].p;
    kind = gpu->ops->copy(&gpu->device, gpu->bases + (size_t)i * MPIX_CUDA_RANKS, bases,
                          sizeof bases, why);
    kind = mpix_boot_agree(ep->boot, kind ? mpix_fail(kind, NULL, "%s", why) : 0);
    if (kind) {
        mpix_ep_gpu_window_back(ep, &gpu->windows[i]);
        return mpix_boot_raise(ep->boot, kind);
    }
    gpu->nwindows = i < gpu->nwindows ? gpu->nwindows : i + 1;
    *(void **)baseptr = gpu->windows[i].mem[ep->rank].p;
    return MPI_SUCCESS;
}

int mpix_ep_gpu_dealloc(mpix_ep *ep, void *base) {
    mpix_ep_gpu *gpu = ep->gpu;
    for (int i = 0; base && i < gpu->nwindows; i++) {
        if (gpu->windows[i].used != 1 || gpu->windows[i].mem[ep->rank].p != base)
            continue;
        gpu->ops->device_sync(&gpu->device);
        if (ep->failed)
            gpu->windows[i].used = 2;
        else
            mpix_ep_gpu_window_back(ep, &gpu->windows[i]);
        memset(gpu->known, 0, sizeof gpu->known);
        return MPI_SUCCESS;
    }
    return mpix_boot_raise(ep->boot,
                           mpix_fail(MPIX_ERRK_ARG, "base",
                                     "base = %p did not come from MPIX_Ep_alloc of this context",
                                     base));
}
