/*
 * proxy_part.c - a part of a proxy: creation in agreed stages, windows, the end.
 *
 * Creation: what this rank can do alone (memory, queues); the net is opened; addresses are
 * exchanged and connected; what the nets can do decides the form of signals; the counter table is
 * registered. Every stage ends in agreement, so either all ranks have the part or none, and the
 * error names the rank that failed.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "mem/shared.h"

/* What this rank's net can do. */
typedef struct proxy_offer {
    int32_t lanes, ordered, counted;
    uint32_t max_counter;
    char why[128];
} proxy_offer;

static uint32_t proxy_pow2(uint32_t n) {
    uint32_t p = 1;

    while (p < n)
        p <<= 1;
    return p;
}

/* ---- alone ----------------------------------------------------------------------------------- */

/* With fewer lanes than others to this peer, the last one has no ring and is never named. */
static int proxy_new_peer(proxy_part *part, int rank, proxy_peer *peer) {
    size_t lanes_bytes = (size_t)part->nlanes * sizeof *peer->lanes;

    peer->lanes = aligned_alloc(_Alignof(proxy_lane), lanes_bytes);
    if (!peer->lanes)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the %d lanes of a proxied peer",
                         part->nlanes);
    memset(peer->lanes, 0, lanes_bytes);
    peer->memory += lanes_bytes;
    for (int i = 0;
         i < part->nlanes && proxy_lane_of(part->whole, part->index, rank, i) < part->whole->nlanes;
         i++) {
        peer->lanes[i].ring = calloc(part->depth, sizeof *peer->lanes[i].ring);
        if (!peer->lanes[i].ring)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                             "no memory for %u commands of a lane (mpix_ep_proxy_depth)",
                             part->depth);
        peer->memory += part->depth * sizeof *peer->lanes[i].ring;
    }
    return 0;
}

static int proxy_new_peers(proxy_part *part, const unsigned char *want) {
    int kind = 0;

    part->peers = aligned_alloc(_Alignof(proxy_peer), (size_t)part->size * sizeof *part->peers);
    if (!part->peers)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy of %d ranks", part->size);
    memset(part->peers, 0, (size_t)part->size * sizeof *part->peers);
    for (int r = 0; r < part->size && !kind; r++) {
        if (!want[r])
            continue;
        part->peers[r].place = (uint32_t)part->npeers++;
        kind = proxy_new_peer(part, r, &part->peers[r]);
    }
    if (kind)
        return kind;
    part->active = calloc((size_t)part->npeers * (size_t)part->nlanes + 1, sizeof *part->active);
    return part->active ? 0
                        : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the list of %d peers",
                                    part->npeers);
}

static int proxy_new(mpix_proxy *whole, int index, const mpix_params *params,
                     const unsigned char *want, int counters, mpix_doorbell *bell) {
    proxy_part *part = aligned_alloc(_Alignof(proxy_part), sizeof *part);
    int kind;

    if (!part)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy");
    memset(part, 0, sizeof *part);
    whole->part[index] = part;
    part->whole = whole;
    part->index = index;
    part->boot = whole->boot;
    part->bell = bell;
    part->size = whole->size;
    part->nlanes = params->lanes;
    part->counters = counters;
    part->wake_fd = -1;
    part->depth = proxy_pow2((uint32_t)params->proxy_depth);
    kind = proxy_new_peers(part, want);
    if (!kind)
        kind = mpix_fifo_init(&part->fifo, proxy_pow2((uint32_t)params->fifo_slots));
    if (!kind)
        kind = mpix_descs_init(&part->descs, (uint32_t)params->proxy_descs);
    return kind;
}

/* ---- together -------------------------------------------------------------------------------- */

static int proxy_open(proxy_part *part, const mpix_params *params, const unsigned char *want) {
    const mpix_net_ops *ops = mpix_net_find(part->whole->net_name);

    if (!ops)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "mpix_ep_transport",
            "transport %s is not known, or not in this build; mpix_ep_transport takes %s",
            part->whole->net_name, mpix_net_names(1));
    return ops->open(part->boot, params, want, &part->net);
}

/* The signal form: the cautious one if any rank's net does not keep order. */
static int proxy_form(proxy_part *part, const mpix_params *params, const proxy_offer *offers) {
    const mpix_boot *boot = part->boot;
    int unordered = -1, uncounted = -1;

    for (int r = 0; r < part->size; r++) {
        const proxy_offer *offer = &offers[r];
        if (offer->lanes < part->nlanes)
            return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, r, boot->hostnames[r],
                                  "%s on rank %d has at most %d lanes, mpix_ep_lanes=%d",
                                  part->whole->net_name, r, offer->lanes, params->lanes);
        if (!offer->ordered)
            unordered = r;
        if (!offer->counted || (uint64_t)offer->max_counter < 2 * (uint64_t)part->counters)
            uncounted = r;
    }
    part->counted = params->signal == MPIX_SIGNAL_COUNTED ||
                    (params->signal == MPIX_SIGNAL_AUTO && unordered >= 0);
    if (!part->counted && unordered >= 0)
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, unordered, boot->hostnames[unordered],
                              "mpix_ep_signal=ordered, but %s on rank %d does not keep order: %s; "
                              "auto or counted would work",
                              part->whole->net_name, unordered, offers[unordered].why);
    if (part->counted && uncounted >= 0)
        return mpix_fail_peer(
            MPIX_ERRK_UNSUPPORTED, uncounted, boot->hostnames[uncounted],
            "counted signals of %s on rank %d have %u counters, %d are needed; %s",
            part->whole->net_name, uncounted,
            offers[uncounted].counted ? offers[uncounted].max_counter : 0, 2 * part->counters,
            params->signal == MPIX_SIGNAL_COUNTED ? "mpix_ep_signal=counted asks for them"
                                                  : "the network does not keep order");
    return 0;
}

static void proxy_limits(proxy_part *part, const mpix_params *params) {
    const mpix_net_caps *caps = &part->net->caps;

    part->max_op = params->max_op && params->max_op < caps->max_op ? params->max_op : caps->max_op;
    part->credit_ops = params->credit_ops && params->credit_ops < caps->depth
                           ? (uint32_t)params->credit_ops
                           : (uint32_t)caps->depth;
    part->credit_bytes = params->credit_bytes ? params->credit_bytes : UINT64_MAX / 4;
    part->read_op = caps->read_op && caps->read_op < part->max_op ? caps->read_op : part->max_op;
    part->read_bytes = caps->read_bytes && caps->read_bytes < part->credit_bytes
                           ? caps->read_bytes
                           : part->credit_bytes;
}

/* Blobs of all peers; each begins with the place that the peer has in our counter table. */
static int proxy_connect(proxy_part *part) {
    const mpix_net_ops *ops = part->net->ops;
    size_t bytes = sizeof(uint32_t) * 2 + ops->address_bytes, all = bytes * (size_t)part->size;
    char *send = calloc(1, all), *recv = calloc(1, all);
    int kind = 0, failed;

    if (!send || !recv)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the addresses of %d ranks",
                         part->size);
    for (int r = 0; r < part->size && !kind; r++)
        if (part->peers[r].lanes) {
            memcpy(send + bytes * (size_t)r, &part->peers[r].place, sizeof(uint32_t));
            kind = ops->address(part->net, r, send + bytes * (size_t)r + 2 * sizeof(uint32_t));
        }
    kind = mpix_boot_agree(part->boot, kind);
    if (kind)
        goto free_blobs;
    failed = mpix_boot_alltoall(part->boot, send, bytes, recv);
    if (failed) {
        kind = failed;
        goto free_blobs;
    }
    for (int r = 0; r < part->size && !kind; r++)
        if (part->peers[r].lanes) {
            memcpy(&part->peers[r].remote_place, recv + bytes * (size_t)r, sizeof(uint32_t));
            kind = ops->connect(part->net, r, recv + bytes * (size_t)r + 2 * sizeof(uint32_t));
        }
    kind = mpix_boot_agree(part->boot, kind);
free_blobs:
    free(send);
    free(recv);
    return kind;
}

/* For the counted form: counters, and the table with its mirror, registered as a
 * window of its own. */
static int proxy_table(proxy_part *part) {
    size_t n = (size_t)part->npeers * (size_t)part->counters;
    void *table = NULL;
    int kind = 0, failed;

    if (!part->counted)
        return 0;
    for (int r = 0; r < part->size && !kind; r++) {
        proxy_peer *peer = &part->peers[r];
        if (!peer->lanes)
            continue;
        peer->tx = calloc((size_t)part->counters + 1, sizeof *peer->tx);
        peer->rx = calloc((size_t)part->counters + 1, sizeof *peer->rx);
        if (!peer->tx || !peer->rx)
            kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d counters of a proxied peer",
                             part->counters);
        peer->memory += ((size_t)part->counters + 1) * (sizeof *peer->tx + sizeof *peer->rx) +
                        2 * (size_t)part->counters * sizeof *part->table;
    }
    part->table_bytes = 2 * n * sizeof *part->table;
    if (!kind && n > 0)
        kind = mpix_mem_shared_alloc(part->table_bytes, &table);
    part->table = table;
    /* agrees; kind is agreed on below */
    failed = proxy_part_window(part, PROXY_TABLE_WINDOW, table, table ? part->table_bytes : 0);
    return mpix_boot_agree(part->boot, kind ? kind : failed);
}

/* After the connection, for what a peer's device can do counts too. */
static int proxy_agree_form(proxy_part *part, const mpix_params *params) {
    const mpix_net_caps *caps = &part->net->caps;
    proxy_offer offer = {.lanes = caps->lanes,
                         .ordered = caps->ordered,
                         .counted = caps->counted,
                         .max_counter = caps->max_counter};
    proxy_offer *offers = calloc((size_t)part->size, sizeof *offers);
    int kind = offers ? 0
                      : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                  "no memory for the capabilities of %d ranks", part->size);

    kind = mpix_boot_agree(part->boot, kind);
    if (kind)
        goto free_offers;
    snprintf(offer.why, sizeof offer.why, "%s", caps->why);
    kind = mpix_boot_allgather(part->boot, &offer, sizeof offer, offers);
    if (!kind)
        kind = mpix_boot_agree(part->boot, proxy_form(part, params, offers));
free_offers:
    free(offers);
    return kind;
}

int proxy_part_create(mpix_proxy *whole, int index, const mpix_params *params,
                      const unsigned char *want, int counters, mpix_doorbell *bell) {
    int kind = mpix_boot_agree(whole->boot, proxy_new(whole, index, params, want, counters, bell));
    proxy_part *part = whole->part[index];

    if (!kind)
        kind = mpix_boot_agree(whole->boot, proxy_open(part, params, want));
    if (!kind)
        kind = proxy_connect(part);
    if (!kind)
        kind = proxy_agree_form(part, params);
    if (kind)
        return kind;
    proxy_limits(part, params);
    return proxy_table(part);
}

/* ---- windows --------------------------------------------------------------------------------- */

void proxy_part_window_drop(proxy_part *part, int window) {
    const mpix_net_ops *ops = part->net->ops;

    for (int r = 0; r < part->size; r++) {
        if (part->peers[r].rmem[window])
            ops->rmem_close(part->net, part->peers[r].rmem[window]);
        part->peers[r].rmem[window] = NULL;
        part->peers[r].rbytes[window] = 0;
    }
    if (part->mem[window])
        ops->mem_dereg(part->net, part->mem[window]);
    part->mem[window] = NULL;
    part->base[window] = NULL;
    part->bytes[window] = 0;
}

/* Registers this rank's part and describes it in blob: the size, then the net's key. */
static int proxy_window_register(proxy_part *part, int window, void *base, size_t bytes,
                                 char *blob) {
    const mpix_net_ops *ops = part->net->ops;
    uint64_t size = bytes;
    int kind;

    if (window < 0 || window >= MPIX_PROXY_WINDOWS)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "window %d of %d", window, MPIX_PROXY_WINDOWS);
    if (bytes > (size_t)PTRDIFF_MAX)
        return mpix_fail(MPIX_ERRK_ARG, "bytes",
                         "a window of %zu bytes is larger than the address space", bytes);
    if (bytes == 0)
        return 0;
    kind = ops->mem_reg(part->net, base, bytes, &part->mem[window]);
    if (kind)
        return kind;
    part->base[window] = base;
    part->bytes[window] = bytes;
    memcpy(blob, &size, sizeof size);
    ops->mem_key(part->net, part->mem[window], blob + sizeof size);
    return 0;
}

static int proxy_window_open(proxy_part *part, int window, const char *blobs, size_t blob_bytes) {
    const mpix_net_ops *ops = part->net->ops;
    int kind = 0;

    for (int r = 0; r < part->size && !kind; r++) {
        const char *blob = blobs + blob_bytes * (size_t)r;
        uint64_t size;
        memcpy(&size, blob, sizeof size);
        if (!part->peers[r].lanes || size == 0)
            continue;
        kind = ops->rmem_open(part->net, r, blob + sizeof size, &part->peers[r].rmem[window]);
        if (!kind)
            part->peers[r].rbytes[window] = size;
    }
    return kind;
}

/*
 * The thread's turns stay out while the net registers and the tables change; commands that name the
 * window come after it, and arrivals that name it are sent only after the agreement.
 */
int proxy_part_window(proxy_part *part, int window, void *base, size_t bytes) {
    size_t blob_bytes = sizeof(uint64_t) + part->net->ops->key_bytes;
    char *blobs = calloc((size_t)part->size + 1, blob_bytes);
    int kind = blobs ? 0
                     : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the keys of %d ranks",
                                 part->size);

    if (!kind) {
        proxy_lock(part);
        if (window >= 0 && window < MPIX_PROXY_WINDOWS)
            proxy_part_window_drop(part, window);
        kind = proxy_window_register(part, window, base, bytes,
                                     blobs + blob_bytes * (size_t)part->size);
        proxy_unlock(part);
    }
    kind = mpix_boot_agree(part->boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(part->boot, blobs + blob_bytes * (size_t)part->size, blob_bytes,
                                   blobs);
    if (!kind) {
        proxy_lock(part);
        kind = proxy_window_open(part, window, blobs, blob_bytes);
        proxy_unlock(part);
        kind = mpix_boot_agree(part->boot, kind);
    }
    if (kind && window >= 0 && window < MPIX_PROXY_WINDOWS) {
        proxy_lock(part);
        proxy_part_window_drop(part, window);
        proxy_unlock(part);
    }
    free(blobs);
    return kind;
}

/* ---- the end --------------------------------------------------------------------------------- */

int proxy_part_end(proxy_part *part) {
    int kind = 0;

    proxy_lock(part);
    if (atomic_load_explicit(&part->abandoned, memory_order_relaxed) && !part->latched)
        proxy_latch_all(part); /* kernels that wait are told */
    if (part->net) {
        for (int w = 0; w < MPIX_PROXY_WINDOWS; w++)
            proxy_part_window_drop(part, w);
        kind = part->net->ops->close(part->net);
    }
    part->net = NULL;
    part->ended = 1;
    proxy_unlock(part);
    return kind;
}

/* It has ended. */
void proxy_part_free(proxy_part *part) {
    if (!part)
        return;
    if (!part->whole->end_kind) /* else a peer may still write it */
        mpix_mem_shared_free(part->table);
    for (int r = 0; part->peers && r < part->size; r++) {
        proxy_peer *peer = &part->peers[r];
        for (int i = 0; peer->lanes && i < part->nlanes; i++)
            free(peer->lanes[i].ring);
        free(peer->lanes);
        free(peer->tx);
        free(peer->rx);
    }
    free(part->peers);
    free(part->active);
    mpix_descs_free(&part->descs);
    mpix_fifo_free(&part->fifo);
    free(part);
}
