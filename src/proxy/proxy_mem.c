/*
 * proxy_mem.c - memory of a proxy, which every part has registered with its net: windows, and
 * memory by handle.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <stdlib.h>
#include <string.h>

int mpix_proxy_window(mpix_proxy *proxy, int window, void *base, size_t bytes) {
    int kind = 0, made = 0;

    for (; made < proxy->nparts && !kind; made++)
        kind = proxy_part_window(proxy->part[made], window, base, bytes);
    for (int i = 0; kind && i < made - 1; i++) { /* the last one has cleaned up behind itself */
        proxy_lock(proxy->part[i]);
        proxy_part_window_drop(proxy->part[i], window);
        proxy_unlock(proxy->part[i]);
    }
    for (int i = 0; window >= 0 && window < MPIX_PROXY_WINDOWS && i < proxy->nparts; i++) {
        proxy->mem[window].of[i] = proxy->part[i]->mem[window];
        for (int r = 0; r < proxy->size; r++)
            proxy->rmem[r * MPIX_PROXY_WINDOWS + window].of[i] =
                proxy->part[i]->peers[r].rmem[window];
    }
    return kind;
}

const mpix_proxy_mem *mpix_proxy_window_mem(const mpix_proxy *proxy, int window) {
    return &proxy->mem[window];
}

const mpix_proxy_rmem *mpix_proxy_window_rmem(const mpix_proxy *proxy, int peer, int window) {
    return &proxy->rmem[peer * MPIX_PROXY_WINDOWS + window];
}

size_t mpix_proxy_key_bytes(const mpix_proxy *proxy) {
    return proxy->key_bytes * (size_t)proxy->nparts;
}

/* With every part's net, or with none. way NULL: memory of the host. */
static int proxy_register(mpix_proxy *proxy, void *base, size_t bytes, mpix_net_gpu *way,
                          mpix_proxy_mem **out) {
    mpix_proxy_mem *mem = calloc(1, sizeof *mem);
    int kind = mem ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");

    for (int i = 0; i < proxy->nparts && !kind; i++) {
        proxy_part *part = proxy->part[i];
        proxy_lock(part);
        if (part->ended)
            kind = mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                             "a registration with a proxy that has ended");
        else
            kind = way ? part->net->ops->mem_reg_gpu(part->net, base, bytes, way, &mem->of[i])
                       : part->net->ops->mem_reg(part->net, base, bytes, &mem->of[i]);
        proxy_unlock(part);
    }
    if (kind) {
        if (mem)
            mpix_proxy_mem_dereg(proxy, mem);
        return kind;
    }
    mem->next = proxy->mems;
    mem->at = &proxy->mems;
    if (mem->next)
        mem->next->at = &mem->next;
    proxy->mems = mem;
    *out = mem;
    return 0;
}

int mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem) {
    return proxy_register(proxy, base, bytes, NULL, mem);
}

void mpix_proxy_mem_foreign(mpix_proxy *proxy, mpix_proxy_mem *mem) {
    for (int i = 0; i < proxy->nparts; i++) {
        proxy_part *part = proxy->part[i];
        if (!part->net->ops->mem_foreign)
            continue;
        proxy_lock(part);
        part->net->ops->mem_foreign(part->net, mem->of[i]);
        proxy_unlock(part);
    }
}

int mpix_proxy_reaches_gpu(const mpix_proxy *proxy) {
    return proxy->part[0]->net->ops->mem_reg_gpu != NULL;
}

int mpix_proxy_mem_reg_gpu(mpix_proxy *proxy, void *base, size_t bytes, mpix_net_gpu *way,
                           mpix_proxy_mem **mem) {
    return proxy_register(proxy, base, bytes, way, mem);
}

void mpix_proxy_mem_key(mpix_proxy *proxy, const mpix_proxy_mem *mem, void *key) {
    for (int i = 0; i < proxy->nparts; i++) {
        proxy_part *part = proxy->part[i];
        char *to = (char *)key + (size_t)i * proxy->key_bytes;
        proxy_lock(part);
        if (mem->of[i])
            part->net->ops->mem_key(part->net, mem->of[i], to);
        else
            memset(to, 0, proxy->key_bytes); /* of a failed object: nobody can use it */
        proxy_unlock(part);
    }
}

void proxy_mem_drop(mpix_proxy *proxy, mpix_proxy_mem *mem) {
    for (int i = 0; i < proxy->nparts; i++)
        if (mem->of[i]) {
            proxy_lock(proxy->part[i]);
            proxy->part[i]->net->ops->mem_dereg(proxy->part[i]->net, mem->of[i]);
            mem->of[i] = NULL;
            proxy_unlock(proxy->part[i]);
        }
}

void mpix_proxy_mem_dereg(mpix_proxy *proxy, mpix_proxy_mem *mem) {
    proxy_mem_drop(proxy, mem);
    if (mem->at)
        *mem->at = mem->next;
    if (mem->next)
        mem->next->at = mem->at;
    free(mem);
}

int mpix_proxy_rmem_open(mpix_proxy *proxy, int peer, const void *key, mpix_proxy_rmem **out) {
    mpix_proxy_rmem *rmem = calloc(1, sizeof *rmem);
    int kind = rmem ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a peer's memory");

    for (int i = 0; i < proxy->nparts && !kind; i++) {
        proxy_part *part = proxy->part[i];
        if (!part->peers[peer].lanes)
            continue;
        proxy_lock(part);
        if (part->ended)
            kind = mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                             "a peer's memory with a proxy that has ended");
        else
            kind = part->net->ops->rmem_open(part->net, peer,
                                             (const char *)key + (size_t)i * proxy->key_bytes,
                                             &rmem->of[i]);
        proxy_unlock(part);
    }
    if (kind) {
        if (rmem)
            mpix_proxy_rmem_close(proxy, rmem);
        return kind;
    }
    rmem->next = proxy->rmems;
    rmem->at = &proxy->rmems;
    if (rmem->next)
        rmem->next->at = &rmem->next;
    proxy->rmems = rmem;
    *out = rmem;
    return 0;
}

void proxy_rmem_drop(mpix_proxy *proxy, mpix_proxy_rmem *rmem) {
    for (int i = 0; i < proxy->nparts; i++)
        if (rmem->of[i]) {
            proxy_lock(proxy->part[i]);
            proxy->part[i]->net->ops->rmem_close(proxy->part[i]->net, rmem->of[i]);
            rmem->of[i] = NULL;
            proxy_unlock(proxy->part[i]);
        }
}

void mpix_proxy_rmem_close(mpix_proxy *proxy, mpix_proxy_rmem *rmem) {
    proxy_rmem_drop(proxy, rmem);
    if (rmem->at)
        *rmem->at = rmem->next;
    if (rmem->next)
        rmem->next->at = rmem->at;
    free(rmem);
}
