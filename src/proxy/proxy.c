/*
 * proxy.c - creation in agreed stages, windows, and the end.
 *
 * Creation: what this rank can do alone (memory, queues); configurations are compared and the net is opened; addresses
 * are exchanged and connected; what the nets can do decides the form of signals; the counter table is registered; the
 * thread starts. Every stage ends in agreement, so either all ranks have a proxy or none, and the error names the rank
 * that failed.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "mem/shared.h"

/* What must be alike on all ranks, before a net is opened. */
typedef struct proxy_card {
    char transport[64];
    int32_t version, counters, lanes, signal;
    int32_t far;         /* a wanted peer is on another host: decides what `auto` means */
    int32_t verbs, ucx;  /* present on this rank */
} proxy_card;

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

/* ---- alone ------------------------------------------------------------------------------------------------------- */

static int proxy_new_peer(mpix_proxy *proxy, proxy_peer *peer) {
    size_t lanes_bytes = (size_t)proxy->nlanes * sizeof *peer->lanes;

    peer->lanes = aligned_alloc(_Alignof(proxy_lane), lanes_bytes);
    if (!peer->lanes)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the %d lanes of a proxied peer", proxy->nlanes);
    memset(peer->lanes, 0, lanes_bytes);
    peer->memory += lanes_bytes;
    for (int i = 0; i < proxy->nlanes; i++) {
        peer->lanes[i].ring = calloc(proxy->depth, sizeof *peer->lanes[i].ring);
        if (!peer->lanes[i].ring)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %u commands of a lane (mpix_ep_proxy_depth)",
                             proxy->depth);
        peer->memory += proxy->depth * sizeof *peer->lanes[i].ring;
    }
    return 0;
}

static int proxy_new_peers(mpix_proxy *proxy, const unsigned char *want) {
    int kind = 0;

    proxy->peers = aligned_alloc(_Alignof(proxy_peer), (size_t)proxy->size * sizeof *proxy->peers);
    if (!proxy->peers)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy of %d ranks", proxy->size);
    memset(proxy->peers, 0, (size_t)proxy->size * sizeof *proxy->peers);
    for (int r = 0; r < proxy->size && !kind; r++) {
        if (!want[r])
            continue;
        proxy->peers[r].slot = (uint32_t)proxy->npeers++;
        kind = proxy_new_peer(proxy, &proxy->peers[r]);
    }
    if (kind)
        return kind;
    proxy->active = calloc((size_t)proxy->npeers * (size_t)proxy->nlanes + 1, sizeof *proxy->active);
    return proxy->active ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the list of %d peers", proxy->npeers);
}

/* The limits of the encoding. */
static int proxy_check(const mpix_boot *boot, const mpix_params *params, int counters) {
    if (boot->size > PROXY_PEERS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL, "%d ranks: a command of the proxy names at most %d", boot->size,
                         PROXY_PEERS);
    if (params->lanes < 1 || params->lanes > PROXY_LANES)
        return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_lanes", "mpix_ep_lanes=%d: a command of the proxy names 1 to %d",
                         params->lanes, PROXY_LANES);
    if (counters < 0 || counters >= PROXY_COUNTERS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "%d counters per peer: a command of the proxy names fewer than %d; fewer handles, lanes or a "
                         "lower depth need fewer",
                         counters, PROXY_COUNTERS);
    if (params->max_op && params->max_op < PROXY_MIN_OP)
        return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_max_op", "mpix_ep_max_op=%zu: an operation is at least %d bytes, or 0",
                         params->max_op, PROXY_MIN_OP);
    return 0; /* a rank may want itself: tests and benchmarks on one rank do */
}

static int proxy_new(mpix_boot *boot, const mpix_params *params, const unsigned char *want, int counters,
                     mpix_doorbell *bell, mpix_proxy **out) {
    mpix_proxy *proxy;
    int kind = proxy_check(boot, params, counters);

    if (kind)
        return kind;
    proxy = aligned_alloc(_Alignof(mpix_proxy), sizeof *proxy);
    if (!proxy)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy");
    memset(proxy, 0, sizeof *proxy);
    *out = proxy;
    proxy->boot = boot;
    proxy->bell = bell;
    proxy->size = boot->size;
    proxy->nlanes = params->lanes;
    proxy->counters = counters;
    proxy->wake_fd = -1;
    proxy->depth = proxy_pow2((uint32_t)params->proxy_depth);
    kind = proxy_new_peers(proxy, want);
    if (!kind)
        kind = mpix_fifo_init(&proxy->fifo, proxy_pow2((uint32_t)params->fifo_slots));
    if (!kind)
        kind = mpix_descs_init(&proxy->descs, (uint32_t)params->proxy_descs);
    return kind;
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static int proxy_differs(const mpix_boot *boot, int rank, const char *what, long mine, long theirs) {
    return mpix_fail_peer(MPIX_ERRK_ARG, rank, boot->hostnames[rank],
                          "%s is %ld on rank %d and %ld on rank %d: it must be the same", what, mine, boot->rank,
                          theirs, rank);
}

/* Compares configurations and finds the name of the transport. */
static int proxy_compare(mpix_proxy *proxy, const mpix_params *params, const proxy_card *mine,
                         const proxy_card *cards) {
    const mpix_boot *boot = proxy->boot;
    int far = 0, verbs = 1, ucx = 1;

    for (int r = 0; r < proxy->size; r++) {
        const proxy_card *card = &cards[r];
        far |= card->far;
        verbs &= card->verbs;
        ucx &= card->ucx;
        if (card->version != mine->version)
            return proxy_differs(boot, r, "the version of the proxy's protocol", mine->version, card->version);
        if (card->lanes != mine->lanes)
            return proxy_differs(boot, r, "mpix_ep_lanes", mine->lanes, card->lanes);
        if (card->signal != mine->signal)
            return proxy_differs(boot, r, "mpix_ep_signal", mine->signal, card->signal);
        if (card->counters != mine->counters)
            return proxy_differs(boot, r, "the number of counters", mine->counters, card->counters);
        if (strcmp(card->transport, mine->transport) != 0)
            return mpix_fail_peer(MPIX_ERRK_ARG, r, boot->hostnames[r],
                                  "mpix_ep_transport is %s on rank %d and %s on rank %d: it must be the same",
                                  mine->transport, boot->rank, card->transport, r);
    }
    snprintf(proxy->net_name, sizeof proxy->net_name, "%.63s",
             strcmp(params->transport, "auto") != 0 ? params->transport
             : far                                  ? (verbs || !ucx ? "verbs" : "ucx")
                                                    : "shmem");
    return 0;
}

static int proxy_open(mpix_proxy *proxy, const mpix_params *params, const unsigned char *want) {
    const mpix_net_ops *ops = mpix_net_find(proxy->net_name);

    if (!ops)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_transport",
                         "transport %s is not known, or not in this build; mpix_ep_transport takes %s", proxy->net_name,
                         mpix_net_names());
    return ops->open(proxy->boot, params, want, &proxy->net);
}

/* The signal form: the cautious one if any rank's net does not keep order. */
static int proxy_form(mpix_proxy *proxy, const mpix_params *params, const proxy_offer *offers) {
    const mpix_boot *boot = proxy->boot;
    int unordered = -1, uncounted = -1;

    for (int r = 0; r < proxy->size; r++) {
        const proxy_offer *offer = &offers[r];
        if (offer->lanes < proxy->nlanes)
            return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, r, boot->hostnames[r],
                                  "%s on rank %d has at most %d lanes, mpix_ep_lanes=%d", proxy->net_name, r,
                                  offer->lanes, params->lanes);
        if (!offer->ordered)
            unordered = r;
        if (!offer->counted || (uint64_t)offer->max_counter < 2 * (uint64_t)proxy->counters)
            uncounted = r;
    }
    proxy->counted = params->signal == MPIX_SIGNAL_COUNTED || (params->signal == MPIX_SIGNAL_AUTO && unordered >= 0);
    if (!proxy->counted && unordered >= 0)
        return mpix_fail_peer(
            MPIX_ERRK_UNSUPPORTED, unordered, boot->hostnames[unordered],
            "mpix_ep_signal=ordered, but %s on rank %d does not keep order: %s; auto or counted would work",
            proxy->net_name, unordered, offers[unordered].why);
    if (proxy->counted && uncounted >= 0)
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, uncounted, boot->hostnames[uncounted],
                              "counted signals of %s on rank %d have %u counters, %d are needed; %s", proxy->net_name,
                              uncounted, offers[uncounted].counted ? offers[uncounted].max_counter : 0,
                              2 * proxy->counters,
                              params->signal == MPIX_SIGNAL_COUNTED ? "mpix_ep_signal=counted asks for them"
                                                                    : "the network does not keep order");
    return 0;
}

static void proxy_limits(mpix_proxy *proxy, const mpix_params *params) {
    const mpix_net_caps *caps = &proxy->net->caps;

    proxy->max_op = params->max_op && params->max_op < caps->max_op ? params->max_op : caps->max_op;
    proxy->credit_ops =
        params->credit_ops && params->credit_ops < caps->depth ? (uint32_t)params->credit_ops : (uint32_t)caps->depth;
    proxy->credit_bytes = params->credit_bytes ? params->credit_bytes : UINT64_MAX / 4;
    proxy->read_op = caps->read_op && caps->read_op < proxy->max_op ? caps->read_op : proxy->max_op;
    proxy->read_bytes = caps->read_bytes && caps->read_bytes < proxy->credit_bytes ? caps->read_bytes : proxy->credit_bytes;
}

/* Blobs of all peers; each begins with the place that the peer has in our counter table. */
static int proxy_connect(mpix_proxy *proxy) {
    const mpix_net_ops *ops = proxy->net->ops;
    size_t bytes = sizeof(uint32_t) * 2 + ops->address_bytes, all = bytes * (size_t)proxy->size;
    char *send = calloc(1, all), *recv = calloc(1, all);
    int kind = 0, failed;

    if (!send || !recv)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the addresses of %d ranks", proxy->size);
    for (int r = 0; r < proxy->size && !kind; r++)
        if (proxy->peers[r].lanes) {
            memcpy(send + bytes * (size_t)r, &proxy->peers[r].slot, sizeof(uint32_t));
            kind = ops->address(proxy->net, r, send + bytes * (size_t)r + 2 * sizeof(uint32_t));
        }
    kind = mpix_boot_agree(proxy->boot, kind);
    if (kind)
        goto free_blobs;
    failed = mpix_boot_alltoall(proxy->boot, send, bytes, recv);
    if (failed) {
        kind = failed;
        goto free_blobs;
    }
    for (int r = 0; r < proxy->size && !kind; r++)
        if (proxy->peers[r].lanes) {
            memcpy(&proxy->peers[r].remote_slot, recv + bytes * (size_t)r, sizeof(uint32_t));
            kind = ops->connect(proxy->net, r, recv + bytes * (size_t)r + 2 * sizeof(uint32_t));
        }
    kind = mpix_boot_agree(proxy->boot, kind);
free_blobs:
    free(send);
    free(recv);
    return kind;
}

/* For the counted form: counters, and the table with its mirror, registered as a window of its own. */
static int proxy_table(mpix_proxy *proxy) {
    size_t n = (size_t)proxy->npeers * (size_t)proxy->counters;
    void *table = NULL;
    int kind = 0, failed;

    if (!proxy->counted)
        return 0;
    for (int r = 0; r < proxy->size && !kind; r++) {
        proxy_peer *peer = &proxy->peers[r];
        if (!peer->lanes)
            continue;
        peer->tx = calloc((size_t)proxy->counters + 1, sizeof *peer->tx);
        peer->rx = calloc((size_t)proxy->counters + 1, sizeof *peer->rx);
        if (!peer->tx || !peer->rx)
            kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d counters of a proxied peer", proxy->counters);
        peer->memory += ((size_t)proxy->counters + 1) * (sizeof *peer->tx + sizeof *peer->rx) +
                        2 * (size_t)proxy->counters * sizeof *proxy->table;
    }
    proxy->table_bytes = 2 * n * sizeof *proxy->table;
    if (!kind && n > 0)
        kind = mpix_mem_shared_alloc(proxy->table_bytes, &table);
    proxy->table = table;
    failed = mpix_proxy_window(proxy, PROXY_TABLE_WINDOW, table, table ? proxy->table_bytes : 0); /* agrees; kind is
                                                                                                     agreed on below */
    return mpix_boot_agree(proxy->boot, kind ? kind : failed);
}

static int proxy_present(const char *name) {
    const mpix_net_ops *ops = mpix_net_find(name);
    char why[256] = "this build has none";
    int present = ops && (!ops->present || ops->present(why, sizeof why));

    if (!present)
        mpix_log(MPIX_LOG_INFO, "proxy: no transport %s: %s", name, why);
    return present;
}

/* Who runs the proxy. A net whose targets work needs a thread: a rank that computes, or waits in MPI, would hold its peers up for ever. */
static int proxy_start(mpix_proxy *proxy, const mpix_params *params) {
    int works = proxy->net->caps.target_works;

    if (works && params->proxy == MPIX_PROXY_CALLER)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_proxy",
                         "mpix_ep_proxy=caller: over %s the target of an operation takes part in it, which needs auto or thread", proxy->net_name);
    return works || params->proxy == MPIX_PROXY_THREAD ? proxy_thread_start(proxy, params) : 0;
}

/* Compares configurations and opens the net. */
static int proxy_agree_open(mpix_proxy *proxy, const mpix_params *params, const unsigned char *want) {
    proxy_card card = {
        .version = PROXY_VERSION, .counters = proxy->counters, .lanes = params->lanes, .signal = params->signal};
    proxy_card *cards = calloc((size_t)proxy->size, sizeof *cards);
    int kind =
        cards ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the configurations of %d ranks", proxy->size);

    kind = mpix_boot_agree(proxy->boot, kind);
    if (kind)
        goto free_cards;
    if (strcmp(params->transport, "auto") == 0) {
        card.verbs = proxy_present("verbs");
        card.ucx = proxy_present("ucx");
    }
    snprintf(card.transport, sizeof card.transport, "%.63s", params->transport);
    for (int r = 0; r < proxy->size; r++)
        card.far |= want[r] && strcmp(proxy->boot->hostnames[r], proxy->boot->hostnames[proxy->boot->rank]) != 0;
    kind = mpix_boot_allgather(proxy->boot, &card, sizeof card, cards);
    if (kind)
        goto free_cards;
    kind = proxy_compare(proxy, params, &card, cards);
    if (!kind)
        kind = proxy_open(proxy, params, want);
    kind = mpix_boot_agree(proxy->boot, kind);
free_cards:
    free(cards);
    return kind;
}

/* After the connection, for what a peer's device can do counts too. */
static int proxy_agree_form(mpix_proxy *proxy, const mpix_params *params) {
    const mpix_net_caps *caps = &proxy->net->caps;
    proxy_offer offer = {
        .lanes = caps->lanes, .ordered = caps->ordered, .counted = caps->counted, .max_counter = caps->max_counter};
    proxy_offer *offers = calloc((size_t)proxy->size, sizeof *offers);
    int kind =
        offers ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the capabilities of %d ranks", proxy->size);

    kind = mpix_boot_agree(proxy->boot, kind);
    if (kind)
        goto free_offers;
    snprintf(offer.why, sizeof offer.why, "%s", caps->why);
    kind = mpix_boot_allgather(proxy->boot, &offer, sizeof offer, offers);
    if (!kind)
        kind = mpix_boot_agree(proxy->boot, proxy_form(proxy, params, offers));
free_offers:
    free(offers);
    return kind;
}

int mpix_proxy_create(mpix_boot *boot, const mpix_params *params, const unsigned char *want, int counters,
                      mpix_doorbell *bell, mpix_proxy **out) {
    mpix_proxy *proxy = NULL;
    int kind = mpix_boot_agree(boot, proxy_new(boot, params, want, counters, bell, &proxy));

    if (!kind)
        kind = proxy_agree_open(proxy, params, want);
    if (!kind)
        kind = proxy_connect(proxy);
    if (!kind)
        kind = proxy_agree_form(proxy, params);
    if (kind)
        goto free_proxy;
    proxy_limits(proxy, params);
    kind = proxy_table(proxy);
    if (!kind)
        kind = mpix_boot_agree(boot, proxy_start(proxy, params));
    if (kind)
        goto free_proxy;
    mpix_log(
        MPIX_LOG_INFO,
        "proxy: %d peers over %s %s %s, %s signals, %d lanes, at most %u operations and %llu bytes in flight per lane",
        proxy->npeers, proxy->net_name, proxy->net->caps.device, proxy->net->caps.address,
        proxy->counted ? "counted" : "ordered", proxy->nlanes, proxy->credit_ops,
        (unsigned long long)proxy->credit_bytes);
    *out = proxy;
    return 0;

free_proxy:
    mpix_proxy_free(proxy);
    return kind;
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static void proxy_window_drop(mpix_proxy *proxy, int window) {
    const mpix_net_ops *ops = proxy->net->ops;

    for (int r = 0; r < proxy->size; r++) {
        if (proxy->peers[r].rmem[window])
            ops->rmem_close(proxy->net, proxy->peers[r].rmem[window]);
        proxy->peers[r].rmem[window] = NULL;
        proxy->peers[r].rbytes[window] = 0;
    }
    if (proxy->mem[window])
        ops->mem_dereg(proxy->net, proxy->mem[window]);
    proxy->mem[window] = NULL;
    proxy->base[window] = NULL;
    proxy->bytes[window] = 0;
}

/* Registers this rank's part and describes it in blob: the size, then the net's key. */
static int proxy_window_register(mpix_proxy *proxy, int window, void *base, size_t bytes, char *blob) {
    const mpix_net_ops *ops = proxy->net->ops;
    uint64_t size = bytes;
    int kind;

    if (window < 0 || window >= MPIX_PROXY_WINDOWS)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "window %d of %d", window, MPIX_PROXY_WINDOWS);
    if (bytes > (size_t)PTRDIFF_MAX)
        return mpix_fail(MPIX_ERRK_ARG, "bytes", "a window of %zu bytes is larger than the address space", bytes);
    if (bytes == 0)
        return 0;
    kind = ops->mem_reg(proxy->net, base, bytes, &proxy->mem[window]);
    if (kind)
        return kind;
    proxy->base[window] = base;
    proxy->bytes[window] = bytes;
    memcpy(blob, &size, sizeof size);
    ops->mem_key(proxy->net, proxy->mem[window], blob + sizeof size);
    return 0;
}

static int proxy_window_open(mpix_proxy *proxy, int window, const char *blobs, size_t blob_bytes) {
    const mpix_net_ops *ops = proxy->net->ops;
    int kind = 0;

    for (int r = 0; r < proxy->size && !kind; r++) {
        const char *blob = blobs + blob_bytes * (size_t)r;
        uint64_t size;
        memcpy(&size, blob, sizeof size);
        if (!proxy->peers[r].lanes || size == 0)
            continue;
        kind = ops->rmem_open(proxy->net, r, blob + sizeof size, &proxy->peers[r].rmem[window]);
        if (!kind)
            proxy->peers[r].rbytes[window] = size;
    }
    return kind;
}

/*
 * The thread's turns stay out while the net registers and the tables change; commands that name the window come after
 * it, and arrivals that name it are sent only after the agreement.
 */
int mpix_proxy_window(mpix_proxy *proxy, int window, void *base, size_t bytes) {
    size_t blob_bytes = sizeof(uint64_t) + proxy->net->ops->key_bytes;
    char *blobs = calloc((size_t)proxy->size + 1, blob_bytes);
    int kind = blobs ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the keys of %d ranks", proxy->size);

    if (!kind) {
        proxy_lock(proxy);
        if (window >= 0 && window < MPIX_PROXY_WINDOWS)
            proxy_window_drop(proxy, window);
        kind = proxy_window_register(proxy, window, base, bytes, blobs + blob_bytes * (size_t)proxy->size);
        proxy_unlock(proxy);
    }
    kind = mpix_boot_agree(proxy->boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(proxy->boot, blobs + blob_bytes * (size_t)proxy->size, blob_bytes, blobs);
    if (!kind) {
        proxy_lock(proxy);
        kind = proxy_window_open(proxy, window, blobs, blob_bytes);
        proxy_unlock(proxy);
        kind = mpix_boot_agree(proxy->boot, kind);
    }
    if (kind && window >= 0 && window < MPIX_PROXY_WINDOWS) {
        proxy_lock(proxy);
        proxy_window_drop(proxy, window);
        proxy_unlock(proxy);
    }
    free(blobs);
    return kind;
}

/* ---- memory by handle ------------------------------------------------------------------------------------------------- */

size_t mpix_proxy_key_bytes(const mpix_proxy *proxy) {
    return proxy->net->ops->key_bytes;
}

int mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_net_mem **mem) {
    int kind;

    proxy_lock(proxy);
    kind = proxy->net->ops->mem_reg(proxy->net, base, bytes, mem);
    proxy_unlock(proxy);
    return kind;
}

int mpix_proxy_reaches_gpu(const mpix_proxy *proxy) {
    return proxy->net->ops->mem_reg_gpu != NULL;
}

int mpix_proxy_mem_reg_gpu(mpix_proxy *proxy, void *base, size_t bytes, mpix_net_gpu *way, mpix_net_mem **mem) {
    int kind;

    proxy_lock(proxy);
    kind = proxy->net->ops->mem_reg_gpu(proxy->net, base, bytes, way, mem);
    proxy_unlock(proxy);
    return kind;
}

void mpix_proxy_mem_key(mpix_proxy *proxy, const mpix_net_mem *mem, void *key) {
    proxy_lock(proxy);
    proxy->net->ops->mem_key(proxy->net, mem, key);
    proxy_unlock(proxy);
}

void mpix_proxy_mem_dereg(mpix_proxy *proxy, mpix_net_mem *mem) {
    proxy_lock(proxy);
    proxy->net->ops->mem_dereg(proxy->net, mem);
    proxy_unlock(proxy);
}

int mpix_proxy_rmem_open(mpix_proxy *proxy, int peer, const void *key, mpix_net_rmem **rmem) {
    int kind;

    proxy_lock(proxy);
    kind = proxy->net->ops->rmem_open(proxy->net, peer, key, rmem);
    proxy_unlock(proxy);
    return kind;
}

void mpix_proxy_rmem_close(mpix_proxy *proxy, mpix_net_rmem *rmem) {
    proxy_lock(proxy);
    proxy->net->ops->rmem_close(proxy->net, rmem);
    proxy_unlock(proxy);
}

const mpix_net_mem *mpix_proxy_window_mem(const mpix_proxy *proxy, int window) {
    return proxy->mem[window];
}

const mpix_net_rmem *mpix_proxy_window_rmem(const mpix_proxy *proxy, int peer, int window) {
    return proxy->peers[peer].rmem[window];
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void mpix_proxy_stop(mpix_proxy *proxy) { proxy_thread_stop(proxy); }

void mpix_proxy_free(mpix_proxy *proxy) {
    if (!proxy)
        return;
    proxy_thread_stop(proxy);
    if (proxy->net) {
        for (int w = 0; w < MPIX_PROXY_WINDOWS; w++)
            proxy_window_drop(proxy, w);
        proxy->net->ops->close(proxy->net);
    }
    mpix_mem_shared_free(proxy->table);
    for (int r = 0; proxy->peers && r < proxy->size; r++) {
        proxy_peer *peer = &proxy->peers[r];
        for (int i = 0; peer->lanes && i < proxy->nlanes; i++)
            free(peer->lanes[i].ring);
        free(peer->lanes);
        free(peer->tx);
        free(peer->rx);
    }
    free(proxy->peers);
    free(proxy->active);
    mpix_descs_free(&proxy->descs);
    mpix_fifo_free(&proxy->fifo);
    free(proxy);
}
