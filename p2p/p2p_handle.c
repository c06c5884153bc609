/*
 * p2p_handle.c - handles: what is exported of a registration, and what makes it usable for a peer.
 */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu.h"

#include <inttypes.h>

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
    p2p_area_leave(p2p, rmem->area);
    rmem->next = p2p->rmem_pool;
    p2p->rmem_pool = rmem;
}

int PMPIX_P2p_import(MPIX_P2p p2p, int peer, const void *buf, MPI_Count buflen,
                     MPIX_P2p_rmem *rmem) {
    int kind = p2p_check_object(p2p);

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
