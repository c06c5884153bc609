/*
 * ucx_mem.c - registered memory of the transport ucx: this rank's, and peers'.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx.h"

static void ranges_reach(ucx_net *net, size_t from) {
    for (size_t i = from; i < net->nmems; i++) {
        const mpix_net_mem *mem = net->mems[i].mem;
        uint64_t end = (uint64_t)(uintptr_t)mem->base + mem->bytes,
                 before = i ? net->mems[i - 1].reach : 0;
        net->mems[i].reach = end > before ? end : before;
    }
}

static int ranges_add(ucx_net *net, const mpix_net_mem *mem) {
    ucx_range *grown = realloc(net->mems, (net->nmems + 1) * sizeof *grown);
    size_t at = net->nmems;

    if (!grown)
        return 0;
    net->mems = grown;
    for (; at > 0 && grown[at - 1].mem->base > mem->base; at--)
        grown[at] = grown[at - 1];
    grown[at].mem = mem;
    net->nmems++;
    ranges_reach(net, at);
    return 1;
}

static void ranges_remove(ucx_net *net, const mpix_net_mem *mem) {
    size_t at = 0;

    while (at < net->nmems && net->mems[at].mem != mem)
        at++;
    if (at == net->nmems)
        return;
    net->nmems--;
    memmove(&net->mems[at], &net->mems[at + 1], (net->nmems - at) * sizeof *net->mems);
    ranges_reach(net, at);
}

void ucx_mem_dereg(mpix_net *base, mpix_net_mem *mem) {
    ucx_net *net = (ucx_net *)base;

    ranges_remove(net, mem);
    if (mem->memh)
        (void)ucp_mem_unmap(net->context, mem->memh);
    free(mem);
}

int ucx_mem_reg(mpix_net *base, void *start, size_t bytes, mpix_net_mem **out) {
    ucx_net *net = (ucx_net *)base;
    ucp_mem_map_params_t want = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                               UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                 .address = start,
                                 .length = bytes};
    mpix_net_mem *mem = calloc(1, sizeof *mem);
    void *packed;
    size_t len = 0;
    ucs_status_t status = UCS_OK;

    if (!mem)
        return ucx_host->fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    mem->base = start;
    mem->bytes = bytes;
    if (!ranges_add(net, mem)) {
        free(mem);
        return ucx_host->fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    }
    if (bytes)
        status = ucp_mem_map(net->context, &want, &mem->memh);
    if (status != UCS_OK)
        mem->memh = NULL;
    if (bytes && status == UCS_OK) { /* that the key fits is seen here, where it can be said */
        status = ucp_rkey_pack(net->context, mem->memh, &packed, &len);
        if (status == UCS_OK)
            ucp_rkey_buffer_release(packed);
    }
    if (status == UCS_OK && len <= sizeof((ucx_key *)0)->packed) {
        *out = mem;
        return 0;
    }
    ucx_mem_dereg(base, mem);
    if (status == UCS_OK)
        return ucx_host->fail(MPIX_ERRK_UNSUPPORTED, NULL,
                              "libucp's key of memory has %zu bytes, at most %zu are possible: "
                              "name fewer transports in UCX_TLS",
                              len, sizeof((ucx_key *)0)->packed);
    return ucx_host->fail(status == UCS_ERR_NO_MEMORY ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT,
                          NULL,
                          "libucp: %zu bytes of memory at %p can't be registered: %s (ulimit -l?)",
                          bytes, start, ucs_status_string(status));
}

/* Without a guard what comes for it is refused. */
void ucx_mem_foreign(mpix_net *base, mpix_net_mem *mem) {
    ucx_net *net = (ucx_net *)base;

    mem->foreign = 1;
    if (!net->guard)
        net->guard = mpix_guard_new();
}

void ucx_mem_key(mpix_net *base, const mpix_net_mem *mem, void *out) {
    ucx_net *net = (ucx_net *)base;
    ucx_key key = {.addr = (uint64_t)(uintptr_t)mem->base,
                   .bytes = mem->bytes,
                   .foreign = (uint32_t)mem->foreign};
    void *packed;
    size_t len;

    if (mem->memh && ucp_rkey_pack(net->context, mem->memh, &packed, &len) == UCS_OK) {
        if (len <= sizeof key.packed) {
            key.len = (uint32_t)len;
            memcpy(key.packed, packed, len);
        }
        ucp_rkey_buffer_release(packed);
    }
    memcpy(out, &key, sizeof key);
}

int ucx_rmem_open(mpix_net *base, int peer, const void *in, mpix_net_rmem **out) {
    ucx_net *net = (ucx_net *)base;
    ucx_key key;
    mpix_net_rmem *rmem = calloc(1, sizeof *rmem);
    ucs_status_t status = UCS_OK;

    if (!rmem)
        return ucx_host->fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a key of rank %d", peer);
    memcpy(&key, in, sizeof key);
    rmem->addr = key.addr;
    rmem->bytes = key.bytes;
    rmem->foreign = (int)key.foreign;
    if (key.bytes)
        status = net->peers[peer].ep && key.len && key.len <= sizeof key.packed
                     ? ucp_ep_rkey_unpack(net->peers[peer].ep, key.packed, &rmem->rkey)
                     : UCS_ERR_INVALID_PARAM;
    if (status == UCS_OK) {
        *out = rmem;
        return 0;
    }
    free(rmem);
    return ucx_host->fail_peer(MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
                               "libucp: the key of memory of rank %d can't be used: %s", peer,
                               ucs_status_string(status));
}

void ucx_rmem_close(mpix_net *base, mpix_net_rmem *rmem) {
    (void)base;
    if (rmem->rkey)
        ucp_rkey_destroy(rmem->rkey);
    free(rmem);
}
