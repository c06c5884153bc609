/* proxy_state.c - failures of peers, statistics, and the dump of the state. */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

/*
 * The error is written before `failed` is stored with release and never again, so whoever loads `failed` with acquire
 * reads it whole. What is queued for the peer is forgotten; what is with the device may still be read by it, so windows
 * outlive the failure until the net is closed.
 */
void proxy_latch(mpix_proxy *proxy, int rank, int kind, int lane, const char *text) {
    proxy_peer *peer = &proxy->peers[rank];

    if (!peer->lanes || atomic_load_explicit(&peer->failed, memory_order_relaxed))
        return;
    mpix_fail_peer(kind, rank, proxy->boot->hostnames[rank], "rank %d on %s is lost over %s (%s, lane %d): %s", rank,
                   proxy->boot->hostnames[rank], proxy->net_name, proxy->net->caps.device, lane, text);
    peer->error = *mpix_error_tls();
    atomic_store_explicit(&peer->failed, kind, memory_order_release);
    for (int i = 0; i < proxy->nlanes; i++)
        peer->lanes[i].post = peer->lanes[i].head;
    proxy_gpu_failed(proxy, rank, kind);
    proxy->publish = 1;
}

int mpix_proxy_failed(mpix_proxy *proxy, int peer, MPIX_Error *error) {
    int kind = atomic_load_explicit(&proxy->peers[peer].failed, memory_order_acquire);

    if (kind && error)
        *error = proxy->peers[peer].error;
    return kind;
}

void mpix_proxy_counts(const mpix_proxy *proxy, int peer, uint64_t *messages, uint64_t *bytes) {
    *messages = atomic_load_explicit(&proxy->peers[peer].messages, memory_order_relaxed);
    *bytes = atomic_load_explicit(&proxy->peers[peer].bytes, memory_order_relaxed);
}

size_t mpix_proxy_memory(const mpix_proxy *proxy, int peer) {
    return proxy->peers[peer].memory;
}

const char *mpix_proxy_net_name(const mpix_proxy *proxy) {
    return proxy->net_name;
}

const mpix_net_caps *mpix_proxy_caps(const mpix_proxy *proxy) {
    return &proxy->net->caps;
}

int mpix_proxy_counted(const mpix_proxy *proxy) {
    return proxy->counted;
}

int mpix_proxy_threaded(const mpix_proxy *proxy) {
    return proxy->threaded;
}

int mpix_proxy_rings(const mpix_proxy *proxy) {
    return !proxy || (proxy->threaded && (proxy->counted || proxy->net->caps.target_works));
}

static int state_lane_idle(const proxy_lane *lane) {
    return lane->done == lane->head && atomic_load_explicit(&lane->admitted, memory_order_relaxed) ==
                                           atomic_load_explicit(&lane->retired, memory_order_relaxed);
}

static void state_dump_peer(const mpix_proxy *proxy, int rank) {
    const proxy_peer *peer = &proxy->peers[rank];
    int failed = atomic_load_explicit(&peer->failed, memory_order_acquire);

    if (failed)
        mpix_log(MPIX_LOG_WARN, "proxy: rank %d has failed: %s", rank, peer->error.text);
    for (int i = 0; i < proxy->nlanes; i++) {
        const proxy_lane *l = &peer->lanes[i];
        if (!state_lane_idle(l))
            mpix_log(MPIX_LOG_WARN,
                     "proxy: rank %d lane %d: commands %" PRIu64 " admitted %" PRIu64 " taken %" PRIu64
                     " posted %" PRIu64 " complete, number %" PRIu64 "; in flight %u of %u operations, %" PRIu64
                     " of %" PRIu64 " bytes",
                     rank, i, atomic_load_explicit(&l->admitted, memory_order_relaxed), l->head, l->post, l->done,
                     atomic_load_explicit(&l->completed, memory_order_relaxed), l->ops, proxy->credit_ops, l->bytes,
                     proxy->credit_bytes);
    }
    for (int c = 0; proxy->counted && c < proxy->counters; c++) {
        const proxy_rx *rx = &peer->rx[c];
        const proxy_header *header = proxy->table + (size_t)peer->slot * (size_t)proxy->counters + (size_t)c;
        if (rx->count)
            mpix_log(MPIX_LOG_WARN, "proxy: from rank %d counter %d: %u writes have arrived, %s%u are awaited%s", rank,
                     c, rx->count, rx->header ? "" : "the header has not; at least ",
                     rx->header ? header->writes : rx->count + 1,
                     rx->held ? "; an earlier signal of the lane is missing" : "");
    }
}

/* A turn does not block, so the lock is had soon; if its holder was stopped in one, the state is shown as it is. */
void mpix_proxy_dump(mpix_proxy *proxy) {
    uint64_t head, tail, start = mpix_clock_ns();
    int locked = 0;

    while (!locked && mpix_clock_ns() - start < 100000000u)
        locked = proxy_try_lock(proxy);
    head = atomic_load_explicit(&proxy->fifo.head, memory_order_relaxed);
    tail = atomic_load_explicit(&proxy->fifo.tail, memory_order_relaxed);
    mpix_log(MPIX_LOG_WARN,
             "proxy: %s %s, %s signals, %d lanes to %d peers, run by %s%s%s; queue %" PRIu64 " of %" PRIu64 ", %" PRIu64
             " commands, %" PRIu64 " turns, %" PRIu64 " sleeps, %d lanes have work",
             proxy->net_name, proxy->net->caps.device, proxy->counted ? "counted" : "ordered", proxy->nlanes,
             proxy->npeers, proxy->threaded ? "a thread" : "the caller",
             atomic_load_explicit(&proxy->sleeping, memory_order_relaxed) ? ", which sleeps" : "",
             locked ? "" : ", in a turn now", head - tail, proxy->fifo.mask + 1, tail, proxy->turns, proxy->sleeps,
             proxy->nactive);
    for (int r = 0; r < proxy->size; r++)
        if (proxy->peers[r].lanes)
            state_dump_peer(proxy, r);
    if (locked)
        proxy_unlock(proxy);
}
