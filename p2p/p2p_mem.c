/*
 * p2p_mem.c - memory: allocation, registration, and the handles that make it usable for a peer.
 *
 * A registration has a place in a table and a number that is never used again by this rank; both
 * make its id. The number stands in the control window, so that peers who map that can tell a
 * handle whose memory was deregistered before they touch the memory.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- registrations --------------------------------------------------------------------------- */

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
static void area_leave(mpix_p2p *p2p, p2p_area *area) {
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
    area_leave(p2p, mem->area);
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

static int mem_check_object(MPIX_P2p p2p) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed");
    return 0;
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
    int kind = mem_check_object(p2p), made, gpu;
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
    area_leave(p2p, area);
    pthread_mutex_unlock(&p2p->lock);
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_alloc);

int PMPIX_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Info info, MPIX_P2p_mem *mem) {
    int kind = mem_check_object(p2p);

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

/* ---- handles --------------------------------------------------------------------------------- */

void p2p_export(struct mpix_mem *mem, uint64_t off, uint64_t len, void *buf) {
    mpix_p2p *p2p = mem->p2p;
    p2p_blob blob = {.magic = P2P_MAGIC,
                     .rank = p2p->rank,
                     .id = mem->id,
                     .area = mem->area ? mem->area->number : 0,
                     .addr = (uint64_t)(uintptr_t)mem->base + off,
                     .mem_off = off,
                     .bytes = len,
                     .base_bytes = mem->bytes,
                     .rights = mem->rights};

    memcpy(blob.random, p2p->random, sizeof blob.random);
    if (mem->gpu)
        p2p_gpu_export(mem, off, &blob);
    memset(buf, 0, p2p->blob_bytes);
    memcpy(buf, &blob, sizeof blob);
    if (mem->net)
        mpix_proxy_mem_key(p2p->proxy, mem->net, (char *)buf + sizeof blob);
}

int PMPIX_P2p_export(MPIX_P2p_mem mem, MPI_Count off, MPI_Count len, void *buf, MPI_Count *buflen) {
    int kind = 0;

    if (!p2p_live(mem, MPIX_LIVE_MEM))
        return mpix_boot_raise(NULL, mpix_live_need(mem, MPIX_LIVE_MEM, "mem",
                                                    "mem is NULL or deregistered"));
    mpix_p2p *p2p = mem->p2p;
    if (!buflen)
        kind = mpix_fail(MPIX_ERRK_ARG, "buflen", "buflen is NULL");
    else if (off < 0 || len < 0 || (uint64_t)len > mem->bytes ||
             (uint64_t)off > mem->bytes - (uint64_t)len)
        kind = mpix_fail(MPIX_ERRK_ARG, off < 0 ? "off" : "len",
                         "[%lld, + %lld) is not inside the %" PRIu64 " bytes of mem",
                         (long long)off, (long long)len, mem->bytes);
    else if (buf && *buflen < (MPI_Count)p2p->blob_bytes)
        kind = mpix_fail(MPIX_ERRK_ARG, "buflen", "*buflen = %lld, a handle needs %zu bytes",
                         (long long)*buflen, p2p->blob_bytes);
    if (kind)
        return p2p_raise(p2p, kind);
    if (buf)
        p2p_export(mem, (uint64_t)off, (uint64_t)len, buf);
    *buflen = (MPI_Count)p2p->blob_bytes;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_export);

static int import_check(mpix_p2p *p2p, int peer, const p2p_blob *blob) {
    const p2p_peer *p = &p2p->peers[peer];

    if (blob->magic != P2P_MAGIC)
        return mpix_fail(MPIX_ERRK_ARG, "buf",
                         "buf holds no handle of this version of the library");
    if (memcmp(blob->random, p->random, sizeof p->random) != 0)
        return mpix_fail(MPIX_ERRK_ARG, "buf",
                         "buf was exported by rank %d of an object, and not by rank %d of this one",
                         blob->rank, peer);
    if (blob->bytes > blob->base_bytes || blob->mem_off > blob->base_bytes - blob->bytes ||
        (uint32_t)blob->id >= P2P_MEMS)
        return mpix_fail(MPIX_ERRK_ARG, "buf", "buf is damaged");
    return 0;
}

static p2p_area *import_area(mpix_p2p *p2p, uint64_t number) {
    p2p_area *area = number ? p2p->areas : NULL;

    while (area && area->number != number)
        area = area->next;
    return area;
}

/* The best way to that memory. */
static int import_reach(mpix_p2p *p2p, struct mpix_rmem *rmem, const p2p_blob *blob,
                        const char *key) {
    p2p_peer *peer = &p2p->peers[rmem->peer];

    if (!peer->mapped) {
        rmem->reach = P2P_NET;
        return blob->base_bytes ? mpix_proxy_rmem_open(p2p->proxy, rmem->peer, key, &rmem->net) : 0;
    }
    rmem->gen = &peer->ctl->mem_gen[(uint32_t)blob->id];
    rmem->reach = P2P_DIRECT;
    if (blob->gpu)
        return p2p_gpu_import(p2p, rmem, blob, import_area(p2p, blob->area));
    if (rmem->peer == p2p->rank) {
        rmem->ptr = (char *)(uintptr_t)blob->addr;
        return 0;
    }
    p2p_area *area = import_area(p2p, blob->area);
    if (area && area->win && area->win->peer[rmem->peer] &&
        area->win->peer_bytes[rmem->peer] == blob->base_bytes) {
        rmem->ptr = (char *)area->win->peer[rmem->peer] + blob->mem_off;
        rmem->area = area;
        area->users++;
        return 0;
    }
    rmem->reach = peer->cma ? P2P_CMA : P2P_ASK;
    return 0;
}

int p2p_import(mpix_p2p *p2p, int peer, const void *buf, uint64_t buflen, int temporary,
               struct mpix_rmem **out) {
    struct mpix_rmem *rmem = NULL;
    p2p_blob blob;
    int kind;

    if (buflen < p2p->blob_bytes)
        return mpix_fail(MPIX_ERRK_ARG, "buflen", "a handle has %zu bytes, not %" PRIu64,
                         p2p->blob_bytes, buflen);
    memcpy(&blob, buf, sizeof blob);
    kind = import_check(p2p, peer, &blob);
    if (kind)
        return kind;
    rmem = p2p->rmem_pool; /* of earlier transfers */
    if (rmem)
        p2p->rmem_pool = rmem->next;
    else
        rmem = malloc(sizeof *rmem);
    if (!rmem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle");
    *rmem = (struct mpix_rmem){.p2p = p2p,
                               .peer = peer,
                               .addr = blob.addr,
                               .bytes = blob.bytes,
                               .id = blob.id,
                               .off = blob.mem_off,
                               .shared = blob.area != 0,
                               .temporary = temporary,
                               .rights = blob.rights};
    kind = import_reach(p2p, rmem, &blob, (const char *)buf + sizeof blob);
    rmem->plain = rmem->reach == P2P_DIRECT && !rmem->gpu && rmem->rights == MPIX_MEM_ALL;
    if (!kind && !temporary)
        mpix_live_add(&rmem->live, rmem, MPIX_LIVE_RMEM);
    rmem->next = p2p->rmems;
    if (rmem->next)
        rmem->next->prev = rmem;
    p2p->rmems = rmem;
    if (kind) {
        p2p_rmem_close(rmem);
        return kind;
    }
    *out = rmem;
    return 0;
}

void p2p_rmem_close(struct mpix_rmem *rmem) {
    mpix_p2p *p2p = rmem->p2p;

    if (!rmem->temporary)
        p2p_live_end(rmem);
    if (rmem->prev)
        rmem->prev->next = rmem->next;
    else
        p2p->rmems = rmem->next;
    if (rmem->next)
        rmem->next->prev = rmem->prev;
    p2p_device_rmem_end(rmem);
    if (rmem->net)
        mpix_proxy_rmem_close(p2p->proxy, rmem->net);
    if (rmem->gpu)
        p2p_gpu_rmem_close(rmem);
    area_leave(p2p, rmem->area);
    rmem->next = p2p->rmem_pool;
    p2p->rmem_pool = rmem;
}

int PMPIX_P2p_import(MPIX_P2p p2p, int peer, const void *buf, MPI_Count buflen,
                     MPIX_P2p_rmem *rmem) {
    int kind = mem_check_object(p2p);

    if (kind)
        return mpix_boot_raise(NULL, kind);
    kind = p2p_check_peer(p2p, peer);
    if (!kind && (!buf || buflen < 0 || !rmem))
        kind = mpix_fail(MPIX_ERRK_ARG,
                         !rmem  ? "rmem"
                         : !buf ? "buf"
                                : "buflen",
                         "buf or rmem is NULL, or buflen negative");
    if (!kind && !(kind = p2p_alive(p2p))) {
        pthread_mutex_lock(&p2p->lock);
        kind = p2p_import(p2p, peer, buf, (uint64_t)buflen, 0, rmem);
        pthread_mutex_unlock(&p2p->lock);
    }
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_import);

int PMPIX_P2p_rmem_free(MPIX_P2p_rmem *prmem) {
    /* a child of fork: it is the parent's */
    if (prmem && mpix_live_leave(*prmem, MPIX_LIVE_RMEM)) {
        *prmem = NULL;
        return MPI_SUCCESS;
    }
    if (!prmem || !p2p_live(*prmem, MPIX_LIVE_RMEM))
        return mpix_boot_raise(NULL, mpix_fail(MPIX_ERRK_ARG, "rmem",
                                               "rmem is NULL, or *rmem is NULL or freed"));
    mpix_p2p *p2p = (*prmem)->p2p;
    pthread_mutex_lock(&p2p->lock);
    int busy = p2p->failed ? 0 : atomic_load(&(*prmem)->busy);
    if (p2p->failed)
        /* commands name the handle; no memory of ours is given back */
        (void)mpix_proxy_end(p2p->proxy);
    if (!busy)
        p2p_rmem_close(*prmem);
    pthread_mutex_unlock(&p2p->lock);
    if (busy)
        return p2p_raise(
            p2p, mpix_fail(MPIX_ERRK_ARG, "rmem",
                           "%d pieces of transfers in flight use this handle: complete them first",
                           busy));
    *prmem = NULL;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_rmem_free);

int PMPIX_P2p_exchange(MPIX_P2p_mem mem, MPIX_P2p_rmem rmems[]) {
    if (!p2p_live(mem, MPIX_LIVE_MEM))
        return mpix_boot_raise(NULL, mpix_live_need(mem, MPIX_LIVE_MEM, "mem",
                                                    "mem is NULL or deregistered"));
    mpix_p2p *p2p = mem->p2p;
    size_t bytes = p2p->blob_bytes, n = (size_t)p2p->size;
    int kind = p2p_alive(p2p), r = 0;

    if (kind)
        return p2p_raise(p2p, kind);
    char *blobs = calloc(n + 1, bytes);
    if (!rmems)
        kind = mpix_fail(MPIX_ERRK_ARG, "rmems", "rmems is NULL");
    else if (!blobs)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the handles of %d ranks",
                         p2p->size);
    struct mpix_rmem **made = blobs ? calloc(n, sizeof *made) : NULL;
    if (!kind && !made)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the handles of %d ranks",
                         p2p->size);
    kind = mpix_boot_agree(p2p->boot, kind);
    if (kind)
        goto free_blobs;
    p2p_export(mem, 0, mem->bytes, blobs + bytes * n);
    kind = mpix_boot_allgather(p2p->boot, blobs + bytes * n, bytes, blobs);
    pthread_mutex_lock(&p2p->lock);
    for (; !kind && r < p2p->size; r++)
        kind = p2p_import(p2p, r, blobs + bytes * (size_t)r, bytes, 0, &made[r]);
    pthread_mutex_unlock(&p2p->lock);
    kind = mpix_boot_agree(p2p->boot, kind);
    pthread_mutex_lock(&p2p->lock);
    for (r = 0; r < p2p->size; r++) {
        if (kind && made[r])
            p2p_rmem_close(made[r]);
        else if (!kind)
            rmems[r] = made[r];
    }
    pthread_mutex_unlock(&p2p->lock);
free_blobs:
    free(made);
    free(blobs);
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_exchange);

/* ---- pieces ---------------------------------------------------------------------------------- */

static int check_range(MPI_Count off, MPI_Count len, uint64_t bytes, int i, const char *field) {
    if (off >= 0 && len >= 0 && (uint64_t)len <= bytes && (uint64_t)off <= bytes - (uint64_t)len)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, len < 0 ? "iov.len" : field,
                     "iov[%d]: [%lld, + %lld) is not inside %" PRIu64 " bytes", i, (long long)off,
                     (long long)len, bytes);
}

/* Of a piece whose memory, or the peer's, is not alive. */
static MPIX_COLD int need_piece(const void *object, int tag, int i) {
    char text[64];
    int local = tag == MPIX_LIVE_MEM;

    snprintf(text, sizeof text, "iov[%d].%s", i,
             local ? "mem is NULL or deregistered" : "rmem is NULL or freed");
    return mpix_live_need(object, tag, local ? "iov.mem" : "iov.rmem", text);
}

const p2p_need p2p_need_send = {MPIX_MEM_READ, 0}, p2p_need_recv = {MPIX_MEM_WRITE, 0},
               p2p_need_put = {MPIX_MEM_READ, MPIX_MEM_WRITE},
               p2p_need_get = {MPIX_MEM_WRITE, MPIX_MEM_READ}, p2p_need_name = {0, 0};

/* rank < 0: this rank's. */
static MPIX_COLD int fail_rights(int rights, int need, int i, int rank) {
    char whose[32];

    snprintf(whose, sizeof whose, rank < 0 ? "this rank" : "rank %d", rank);
    return mpix_fail_peer(
        MPIX_ERRK_ARG, rank, NULL,
        "iov[%d].%s: %s registered memory that %s; map it so and register it again", i,
        rank < 0 ? "mem" : "rmem", whose,
        !rights                           ? "was not mapped, or not accessible"
        : need & ~rights & MPIX_MEM_WRITE ? "was read-only"
                                          : "can't be read");
}

static int check_remote(const MPIX_P2p_iov *v, int i, const struct mpix_rmem *first,
                        const struct mpix_mem *mem) {
    const struct mpix_rmem *rmem = v->rmem;

    if (i > 0 && rmem == v[-1].rmem) /* looked at already */
        return check_range(v->roff, v->len, rmem->bytes, i, "iov.roff");
    if (rmem != first && !p2p_live(rmem, MPIX_LIVE_RMEM))
        return need_piece(rmem, MPIX_LIVE_RMEM, i);
    if (rmem->p2p != mem->p2p)
        return mpix_fail(MPIX_ERRK_ARG, "iov.rmem",
                         "iov[%d]: mem and rmem belong to different objects", i);
    if (rmem->peer != first->peer)
        return mpix_fail(
            MPIX_ERRK_ARG, "iov.rmem",
            "iov[%d] names memory of rank %d, iov[0] of rank %d: one transfer has one peer", i,
            rmem->peer, first->peer);
    if (rmem->gen && atomic_load_explicit(rmem->gen, memory_order_acquire) != rmem->id)
        return mpix_fail_peer(MPIX_ERRK_ARG, rmem->peer, NULL,
                              "iov[%d].rmem: rank %d has deregistered this memory", i, rmem->peer);
    return check_range(v->roff, v->len, rmem->bytes, i, "iov.roff");
}

int p2p_check_peer(const mpix_p2p *p2p, int peer) {
    return peer >= 0 && peer < p2p->size
               ? 0
               : mpix_fail(MPIX_ERRK_ARG, "peer", "peer = %d is not in [0, %d)", peer, p2p->size);
}

int p2p_check(const MPIX_P2p_iov iov[], int n, const p2p_need *need, mpix_p2p **out, int *peer) {
    mpix_p2p *p2p = *out; /* NULL: that of the first piece */
    int kind, rmems = need->remote != 0;

    if (n < 0 || (n > 0 && !iov))
        return mpix_fail(MPIX_ERRK_ARG, n < 0 ? "n" : "iov", "n = %d, iov = %p", n,
                         (const void *)iov);
    if (n == 0 && !p2p)
        return mpix_fail(MPIX_ERRK_ARG, "n", "n = 0: the pieces say what peer is meant");
    for (int i = 0; i < n; i++) {
        const MPIX_P2p_iov *v = &iov[i];
        if ((i == 0 || v->mem != v[-1].mem) && !p2p_live(v->mem, MPIX_LIVE_MEM))
            return need_piece(v->mem, MPIX_LIVE_MEM, i);
        p2p = p2p ? p2p : v->mem->p2p;
        *out = p2p; /* to raise through */
        if (i == 0 && (kind = p2p_alive(p2p)))
            return kind; /* before a peer's part is looked at: it may have ended with its object */
        if (v->mem->p2p != p2p)
            return mpix_fail(MPIX_ERRK_ARG, "iov.mem", "iov[%d].mem belongs to another object", i);
        kind = check_range(v->off, v->len, v->mem->bytes, i, "iov.off");
        if (!kind && rmems && i == 0 && !p2p_live(v->rmem, MPIX_LIVE_RMEM))
            kind = need_piece(v->rmem, MPIX_LIVE_RMEM, i);
        if (!kind && rmems)
            kind = check_remote(v, i, iov[0].rmem, v->mem);
        if (!kind && v->len && need->local & ~v->mem->rights)
            kind = fail_rights(v->mem->rights, need->local, i, -1);
        if (!kind && rmems && v->len && need->remote & ~v->rmem->rights)
            kind = fail_rights(v->rmem->rights, need->remote, i, v->rmem->peer);
        if (kind)
            return kind;
    }
    if (rmems)
        *peer = iov[0].rmem->peer;
    return p2p_alive(p2p);
}
