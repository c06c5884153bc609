/*
 * p2p_mem.c - memory: allocation, registration, and the handles that make it usable for a peer.
 *
 * A registration has a place in a table and a number that is never used again by this rank; both
 * make its id. The number stands in the control window, so that peers who map that can tell a
 * handle whose memory was deregistered before they touch the memory.
 */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu.h"

/* With the lock. */
static int mem_new(mpix_p2p *p2p, void *base, uint64_t bytes, p2p_area *area, int gpu,
                   struct mpix_mem **out) {
    uint32_t place = 0;
    struct mpix_mem *mem;
    int kind = 0;

    for (uint32_t i = 0; i < P2P_MEMS; i++) {
        place = (p2p->mem_next + i) % P2P_MEMS;
        if (!p2p->mem_at[place])
            break;
    }
    if (p2p->mem_at[place])
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "%d registrations are alive, more can't be: deregister some", P2P_MEMS);
    mem = calloc(1, sizeof *mem);
    if (!mem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    *mem = (struct mpix_mem){
        .p2p = p2p, .base = base, .bytes = bytes, .area = area, .gpu = gpu, .rights = MPIX_MEM_ALL};
    if (!area && !gpu)
        mem->rights = mpix_mem_rights(base, bytes);
    mem->plain = !gpu && mem->rights == MPIX_MEM_ALL;
    mem->id = (uint64_t)++p2p->mem_turn << 32 | place;
    if (gpu && !area)
        kind = p2p_gpu_reg(p2p, base, bytes, &mem->range);
    else if (p2p->proxy && bytes > 0)
        kind = mpix_proxy_mem_reg(p2p->proxy, base, bytes, &mem->net);
    if (!kind && mem->net && !area)
        mpix_proxy_mem_foreign(p2p->proxy, mem->net);
    if (kind)
        goto free_mem;
    mpix_live_add(&mem->live, mem, MPIX_LIVE_MEM);
    mem->next = p2p->mems;
    p2p->mems = mem;
    p2p->mem_at[place] = mem;
    p2p->mem_next = place + 1;
    atomic_store_explicit(&p2p->ctl->mem_gen[place], mem->id, memory_order_release);
    *out = mem;
    return 0;

free_mem:
    free(mem->range);
    free(mem);
    return kind;
}

/* An area goes when the last of its users does: our part of it, and handles of peers' parts.
 * With the lock. */
void p2p_area_leave(mpix_p2p *p2p, p2p_area *area) {
    p2p_area **at = &p2p->areas;

    if (!area || --area->users > 0 || p2p->unsafe || (area->gpu && p2p_gpu_area_kept(p2p)))
        return;
    while (*at != area)
        at = &(*at)->next;
    *at = area->next;
    if (area->gpu)
        p2p_gpu_area_free(p2p, area);
    p2p_device_area_free(p2p, area);
    mpix_win_free(area->win);
    free(area);
}

static void mem_end(struct mpix_mem *mem) {
    mpix_p2p *p2p = mem->p2p;
    struct mpix_mem **at = &p2p->mems;
    uint32_t place = (uint32_t)mem->id;

    atomic_store_explicit(&p2p->ctl->mem_gen[place], 0, memory_order_release);
    p2p_live_end(mem);
    while (*at != mem)
        at = &(*at)->next;
    *at = mem->next;
    p2p->mem_at[place] = NULL;
    p2p_device_mem_end(mem);
    if (mem->net)
        mpix_proxy_mem_dereg(p2p->proxy, mem->net);
    if (mem->gpu || p2p->device)
        p2p_gpu_sync(p2p); /* what was enqueued, and kernels that use it */
    p2p_area_leave(p2p, mem->area);
    free(mem->range);
    free(mem);
}

/* Peers that write ordinary memory here by system calls. */
static int quiet_peers(mpix_p2p *p2p) {
    int kind = 0;

    atomic_store_explicit(&p2p->ctl->revoked, 1, memory_order_seq_cst);
    for (int r = 0; p2p->peers && r < p2p->size; r++) {
        const p2p_peer *peer = &p2p->peers[r];
        if (peer->in && !mpix_calls_quiet(&peer->in->calls, peer->pid, peer->pidfd))
            kind = mpix_fail_peer(MPIX_ERRK_TIMEOUT, r, p2p->boot->hostnames[r],
                                  "rank %d (process %ld) was stopped while it wrote memory of this "
                                  "rank, and has not woken: keep registered memory until it has "
                                  "ended, or MPIX_P2p_dereg succeeds",
                                  r, (long)peer->pid);
    }
    return kind;
}

int p2p_quiet(mpix_p2p *p2p) {
    int kind;

    if (p2p->quiet)
        return 0;
    kind = mpix_proxy_end(p2p->proxy);
    if (!kind && p2p->ctl)
        kind = quiet_peers(p2p);
    p2p->quiet = !kind;
    return kind;
}

void p2p_mems_free(mpix_p2p *p2p) {
    while (p2p->rmems)
        p2p_rmem_close(p2p->rmems);
    while (p2p->rmem_pool) {
        struct mpix_rmem *rmem = p2p->rmem_pool;
        p2p->rmem_pool = rmem->next;
        free(rmem);
    }
    while (p2p->mems)
        mem_end(p2p->mems);
}

struct mpix_mem *p2p_mem_find(mpix_p2p *p2p, uint64_t id, uint64_t off, uint64_t len) {
    struct mpix_mem *mem = (uint32_t)id < P2P_MEMS ? p2p->mem_at[(uint32_t)id] : NULL;

    return mem && mem->id == id && len <= mem->bytes && off <= mem->bytes - len ? mem : NULL;
}

static int alloc_info(void *params, const char *key, const char *value) {
    if (strcmp(key, "p2p_memory") != 0)
        return mpix_fail(MPIX_ERRK_ARG, "info",
                         "mpix_ep_%s: MPIX_P2p_alloc knows mpix_ep_p2p_memory only", key);
    return mpix_params_set(params, key, value);
}

/* What kind of memory; all ranks must want the same. Collective, ends in agreement. kind: of the
 * arguments so far. */
static int alloc_agree(mpix_p2p *p2p, MPI_Info info, int kind, int *gpu) {
    mpix_params params = p2p->params;
    uint64_t wanted;

    if (!kind)
        kind = mpix_boot_info_each(info, alloc_info, &params);
    *gpu = params.p2p_memory == MPIX_P2P_MEMORY_CUDA;
    kind = mpix_boot_agree(p2p->boot, kind);
    wanted = *gpu ? 2 : 1;
    if (!kind)
        kind = mpix_boot_or(p2p->boot, &wanted, 1);
    if (!kind && wanted == 3)
        kind = mpix_fail(MPIX_ERRK_ARG, "info",
                         "some ranks want host memory and some GPU memory (mpix_ep_p2p_memory): it "
                         "must be the same");
    return kind;
}

int PMPIX_P2p_alloc(MPIX_P2p p2p, MPI_Count bytes, MPI_Info info, void *baseptr,
                    MPIX_P2p_mem *mem) {
    int kind = p2p_check_object(p2p), made, gpu;
    p2p_area *area = NULL;

    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = p2p_alive(p2p)))
        return p2p_raise(p2p, kind); /* nothing collective with a peer that may be dead */
    if (bytes < 0)
        kind = mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is negative", (long long)bytes);
    else if (!baseptr || !mem)
        kind = mpix_fail(MPIX_ERRK_ARG, baseptr ? "mem" : "baseptr", "%s is NULL",
                         baseptr ? "mem" : "baseptr");
    else if (!(area = calloc(1, sizeof *area)))
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an allocation");
    kind = alloc_agree(p2p, info, kind, &gpu);
    if (!kind && gpu && !p2p->proxy)
        kind = p2p_gpu_area(p2p, (uint64_t)bytes, area);
    else if (!kind)
        kind = mpix_win_create(p2p->boot, &p2p->params, (size_t)bytes, MPIX_WIN_COMMIT, &area->win);
    /* what the network and kernels both reach: host memory. All ranks have a proxy, or none. */
    if (!kind && gpu && p2p->proxy) {
        gpu = 0;
        pthread_mutex_lock(&p2p->lock);
        kind = p2p_device_area(p2p, area);
        pthread_mutex_unlock(&p2p->lock);
        kind = mpix_boot_agree(p2p->boot, kind);
    }
    if (kind) {
        if (area)
            p2p_device_area_free(p2p, area);
        mpix_win_free(area ? area->win : NULL);
        free(area);
        return p2p_raise(p2p, kind);
    }
    pthread_mutex_lock(&p2p->lock);
    area->number = ++p2p->area_number;
    area->users = 2; /* one of them until all ranks have agreed */
    area->next = p2p->areas;
    p2p->areas = area;
    struct mpix_mem *new_mem = NULL;
    void *base = gpu ? area->gpu->mem[p2p->rank].p : area->win->base;
    made = mem_new(p2p, base, (uint64_t)bytes, area, gpu, &new_mem);
    pthread_mutex_unlock(&p2p->lock);
    kind = mpix_boot_agree(p2p->boot, made);
    pthread_mutex_lock(&p2p->lock);
    if (made)
        area->users--;
    if (kind && !made)
        mem_end(new_mem);
    if (!kind) {
        *(void **)baseptr = base;
        *mem = new_mem;
    }
    p2p_area_leave(p2p, area);
    pthread_mutex_unlock(&p2p->lock);
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_alloc);

int PMPIX_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Info info, MPIX_P2p_mem *mem) {
    int kind = p2p_check_object(p2p);

    (void)info;
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if (bytes < 0 || (uint64_t)bytes > UINTPTR_MAX - (uintptr_t)base)
        kind = mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is negative, or wraps around",
                         (long long)bytes);
    else if (!base && bytes > 0)
        kind = mpix_fail(MPIX_ERRK_ARG, "base", "base is NULL with bytes = %lld", (long long)bytes);
    else if (!mem)
        kind = mpix_fail(MPIX_ERRK_ARG, "mem", "mem is NULL");
    else if (!(kind = p2p_alive(p2p))) {
        int gpu = p2p_gpu_pointer(base);
        pthread_mutex_lock(&p2p->lock);
        kind = mem_new(p2p, base, (uint64_t)bytes, NULL, gpu, mem);
        pthread_mutex_unlock(&p2p->lock);
    }
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_reg);

/* Of an object that has failed, what was queued, is with a device, or comes from a peer that wakes
 * names this memory, whatever is counted as busy. */
int PMPIX_P2p_dereg(MPIX_P2p_mem *pmem) {
    int busy, failed, kind = 0;

    if (pmem && mpix_live_leave(*pmem, MPIX_LIVE_MEM)) { /* a child of fork: it is the parent's */
        *pmem = NULL;
        return MPI_SUCCESS;
    }
    if (!pmem || !p2p_live(*pmem, MPIX_LIVE_MEM))
        return mpix_boot_raise(NULL, mpix_fail(MPIX_ERRK_ARG, "mem",
                                               "mem is NULL, or *mem is NULL or deregistered"));
    struct mpix_mem *mem = *pmem;
    mpix_p2p *p2p = mem->p2p;
    pthread_mutex_lock(&p2p->lock);
    busy = atomic_load(&mem->busy);
    failed = p2p->failed;
    if (failed)
        kind = p2p_quiet(p2p);
    if (!kind && (!busy || failed))
        mem_end(mem);
    pthread_mutex_unlock(&p2p->lock);
    if (kind)
        return p2p_raise(p2p, kind);
    if (busy && !failed)
        return p2p_raise(
            p2p,
            mpix_fail(MPIX_ERRK_ARG, "mem",
                      "%d pieces of transfers in flight lie in this memory: complete them first",
                      busy));
    *pmem = NULL;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_dereg);
