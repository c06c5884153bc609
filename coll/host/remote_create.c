/*
 * remote_create.c - proxied peers of a context: sizes of chunks and buffers, the proxy, registered
 * memory. remote.c says what goes through them.
 */
#include "config.h"

#include "coll/host/forward.h"
#include "mem/claim.h"

#include <stdlib.h>

#define TX_LIMIT ((size_t)64 << 20) /* of the whole send buffer, unless single rows are larger */
enum { FEW_CHUNKS = 16 };

size_t mpix_ep_remote_item_size(const MPIX_Ep_config *c) {
    return mpix_ep_up16((size_t)c->max_row_bytes + 32) +
           mpix_ep_up16(mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_ROW, (size_t)c->max_topk));
}

/* The same on all ranks: the layout of a batch depends on the chunk's size. */
size_t mpix_ep_remote_chunks(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                             int *nchunks) {
    size_t item = mpix_ep_remote_item_size(c), bytes = mpix_ep_up16(params->chunk_bytes);
    *nchunks = 2 * ranks + 2;
    /* with two hops a record has the rows too */
    item += MPIX_EP_FORWARD_HEADER + mpix_ep_up16(4 * (size_t)c->max_topk);
    /* one piece: the largest batch for one rank, as far as the limit below allows */
    if (params->chunk_bytes == 0) {
        size_t items = (size_t)c->max_tokens *
                       (c->layout == MPIX_EP_EXPERT ? (size_t)c->max_topk : 1);
        if (__builtin_mul_overflow(items, item, &bytes) || bytes > TX_LIMIT)
            bytes = TX_LIMIT;
        bytes = mpix_ep_up16(bytes);
    }
    /* few peers: packing goes on while the network takes what was packed */
    if (*nchunks < FEW_CHUNKS && (bytes > item ? bytes : item) <= TX_LIMIT / FEW_CHUNKS)
        *nchunks = FEW_CHUNKS;
    if (bytes > TX_LIMIT / (size_t)*nchunks)
        bytes = TX_LIMIT / (size_t)*nchunks / 16 * 16;
    return bytes > item ? bytes : item;
}

static int remote_alloc_bare(mpix_ep *ep, mpix_ep_remote *remote) {
    remote->lanes = ep->params.lanes;
    remote->counters_handle = 4 * ep->config.depth;
    if ((int64_t)remote->counters_handle * ep->params.max_handles + 1 >= 65536)
        return mpix_fail(MPIX_ERRK_ARG, "max_handles",
                         "max_handles = %d with depth %d needs more than 65535 counters",
                         ep->params.max_handles, ep->config.depth);
    remote->is = calloc((size_t)ep->size, 1);
    remote->full = calloc((size_t)ep->size, MPIX_EP_MAX_LANES);
    return remote->is && remote->full
               ? 0
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for proxied peers");
}

static size_t up4096(size_t n) { return (n + 4095) / 4096 * 4096; }

static int remote_alloc(mpix_ep *ep, mpix_ep_remote *remote) {
    remote->lanes = ep->params.lanes;
    remote->counters_handle = mpix_ep_remote_route_counters(ep) + 2 * ep->config.depth +
                              2 * ep->config.depth * remote->lanes;
    if ((int64_t)remote->counters_handle * ep->params.max_handles + MPIX_EP_FORWARD_COUNTERS + 1 >=
        65536)
        return mpix_fail(
            MPIX_ERRK_ARG, "max_handles",
            "max_handles = %d with depth %d and %d lanes needs more than 65535 counters",
            ep->params.max_handles, ep->config.depth, remote->lanes);
    remote->is = calloc((size_t)ep->size, 1);
    remote->full = calloc((size_t)ep->size, MPIX_EP_MAX_LANES);
    remote->chunks = calloc((size_t)remote->nchunks, sizeof *remote->chunks);
    remote->cursor = calloc((size_t)ep->placement.nlocal[ep->rank] + 1, sizeof *remote->cursor);
    remote->mirror = aligned_alloc(4096, up4096(ep->layout.total));
    remote->tx = aligned_alloc(4096, up4096(remote->chunk_bytes * (size_t)remote->nchunks));
    if (!remote->is || !remote->full || !remote->chunks || !remote->cursor || !remote->mirror ||
        !remote->tx)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "no memory for the send buffer of proxied peers (%d chunks of %zu bytes)",
                         remote->nchunks, remote->chunk_bytes);
    memset(remote->mirror, 0, ep->layout.total);
    memset(remote->tx, 0, remote->chunk_bytes * (size_t)remote->nchunks);
    return mpix_ep_forward_out(ep);
}

int mpix_ep_remote_create(mpix_ep *ep) {
    if (ep->boot->nhosts < 2)
        return 0;
    ep->remote = calloc(1, sizeof *ep->remote);
    int kind = mpix_boot_agree(ep->boot, ep->remote ? 0
                                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                                "no memory for proxied peers"));
    if (kind)
        return kind;
    if (ep->packs) {
        ep->remote->chunk_bytes = mpix_ep_remote_chunks(&ep->config, &ep->params, ep->size,
                                                        &ep->remote->nchunks);
        kind = mpix_mem_together(ep->boot,
                                 up4096(ep->layout.total) +
                                     up4096(ep->remote->chunk_bytes * (size_t)ep->remote->nchunks) +
                                     (ep->forward ? ep->forward->out_bytes : 0),
                                 "send buffers for proxied peers");
    }
    if (!kind)
        kind = ep->packs ? remote_alloc(ep, ep->remote) : remote_alloc_bare(ep, ep->remote);
    for (int r = 0; r < ep->size && !kind; r++) {
        ep->remote->is[r] = ep->boot->host_of[r] != ep->boot->host_of[ep->rank];
        ep->remote->npeers += ep->remote->is[r];
    }
    return mpix_boot_agree(ep->boot, kind);
}

int mpix_ep_remote_windows(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote)
        return 0;
    /* What a device reads and writes is pinned, hence committed. */
    size_t stage = ep->stage_bytes;
    int packs = ep->packs,
        kind = mpix_mem_together(ep->boot, (packs ? stage : 0) + ep->layout.total, "window memory");
    if (!kind && packs)
        kind = mpix_win_commit(ep->stage, 0, stage);
    for (int b = 0; !kind && packs && b < ep->config.depth; b++)
        ep->ht->banks[b].committed = ep->ht->bank_bytes;
    if (!kind)
        kind = mpix_win_commit(ep->ctl, 0, ep->layout.total);
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind) {
        ep->ctl_committed = ep->layout.total;
        remote->counter_failed = remote->counters_handle * ep->params.max_handles +
                                 (ep->forward ? MPIX_EP_FORWARD_COUNTERS : 0);
        kind = mpix_proxy_create(ep->boot, &ep->params, remote->is, remote->counter_failed + 1,
                                 ep->config.memkind != MPIX_EP_HOST, ep->ctl->base, &remote->proxy);
    }
    if (!kind && mpix_proxy_caps(remote->proxy)->lanes < remote->lanes)
        remote->lanes = mpix_proxy_caps(remote->proxy)->lanes;
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_CTL, ep->ctl->base,
                                 ep->layout.total);
    remote->ready = !kind;
    if (!packs)
        return kind;
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_MIRROR, remote->mirror,
                                 ep->layout.total);
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_STAGE, ep->stage->base, stage);
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_TX, remote->tx,
                                 remote->chunk_bytes * (size_t)remote->nchunks);
    if (!kind && ep->forward)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_FORWARD, ep->forward->out,
                                 remote->chunk_bytes * (size_t)ep->forward->nout);
    return kind;
}

void mpix_ep_remote_deregister(mpix_ep *ep, mpix_ep_region *region) {
    for (int r = 0; region->rmem && r < ep->size; r++)
        if (region->rmem[r])
            mpix_proxy_rmem_close(ep->remote->proxy, region->rmem[r]);
    free(region->rmem);
    if (region->mem)
        mpix_proxy_mem_dereg(ep->remote->proxy, region->mem);
    region->mem = NULL;
    region->rmem = NULL;
}

/* A device that takes no more memory is no error: rows are packed then. 1: it took it. */
static int remote_try(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem) {
    mpix_try t;
    mpix_try_begin(&t);
    int kind = mpix_proxy_mem_reg(proxy, base, bytes, mem);
    mpix_try_end(&t);
    if (kind)
        mpix_log(MPIX_LOG_INFO,
                 "%zu bytes at %p are not registered with the network: rows in them are packed",
                 bytes, base);
    return !kind;
}

int mpix_ep_remote_register(mpix_ep *ep, void *base, size_t bytes, mpix_ep_region *region) {
    if (!ep->remote || !ep->packs)
        return 0;
    mpix_proxy *proxy = ep->remote->proxy;
    size_t key = mpix_proxy_key_bytes(proxy), blob = 1 + key;
    char *blobs = calloc((size_t)ep->size + 1, blob),
         *mine = blobs ? blobs + blob * (size_t)ep->size : NULL;
    region->rmem = calloc((size_t)ep->size, sizeof(*region->rmem));
    int kind = blobs && region->rmem ? 0
                                     : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                 "no memory for the keys of %d ranks", ep->size);
    if (!kind && remote_try(proxy, base, bytes, &region->mem)) {
        mine[0] = 1;
        mpix_proxy_mem_key(proxy, region->mem, mine + 1);
    }
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(ep->boot, mine, blob, blobs);
    for (int r = 0; r < ep->size && !kind; r++)
        if (ep->remote->is[r] && blobs[blob * (size_t)r])
            kind = mpix_proxy_rmem_open(proxy, r, blobs + blob * (size_t)r + 1, &region->rmem[r]);
    free(blobs);
    kind = mpix_boot_agree(ep->boot, kind);
    if (kind)
        mpix_ep_remote_deregister(ep, region);
    return kind;
}

void mpix_ep_remote_free(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote)
        return;
    for (int i = 0; i < ep->nregions; i++)
        mpix_ep_remote_deregister(ep, &ep->regions[i]);
    mpix_proxy_free(remote->proxy); /* first: a device may still read the buffers below */
    free(remote->is);
    free(remote->full);
    free(remote->later);
    free(remote->chunks);
    free(remote->cursor);
    free(remote->mirror);
    free(remote->tx);
    free(remote);
    ep->remote = NULL;
}
