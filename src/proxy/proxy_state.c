/* proxy_state.c - failures of peers, statistics, and the dump of the state. */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

/*
 * The error is written before `failed` is stored with release and never again, so whoever loads
 * `failed` with acquire reads it whole. What is queued for the peer is forgotten; what is with the
 * device may still be read by it, so windows outlive the failure until the net is closed.
 */
void proxy_latch(proxy_part *part, int rank, int kind, int lane, const char *text) {
    proxy_peer *peer = &part->peers[rank];

    if (!peer->lanes || atomic_load_explicit(&peer->failed, memory_order_relaxed))
        return;
    mpix_fail_peer(kind, rank, part->boot->hostnames[rank],
                   "rank %d on %s is lost over %s (%s, lane %d): %s", rank,
                   part->boot->hostnames[rank], part->whole->net_name, part->net->caps.device,
                   proxy_lane_of(part->whole, part->index, rank, lane), text);
    peer->error = *mpix_error_tls();
    atomic_store_explicit(&peer->broken, 1, memory_order_relaxed);
    atomic_store_explicit(&peer->failed, kind, memory_order_release);
    for (int i = 0; i < part->nlanes; i++)
        peer->lanes[i].post = peer->lanes[i].head;
    proxy_gpu_failed(part, rank, kind);
    part->publish = 1;
}

/*
 * As above, without a word to the log: the object's failure has been told. What is with the device
 * is not counted any more, so that the lanes have room for the last word.
 */
void proxy_latch_all(proxy_part *part) {
    int kind = atomic_load_explicit(&part->abandoned, memory_order_acquire);

    part->latched = 1;
    for (int r = 0; r < part->size; r++) {
        proxy_peer *peer = &part->peers[r];
        if (!peer->lanes || atomic_load_explicit(&peer->failed, memory_order_relaxed))
            continue;
        peer->error = part->whole->failure;
        atomic_store_explicit(&peer->failed, kind, memory_order_release);
        for (int i = 0; i < part->nlanes; i++) {
            proxy_lane *lane = &peer->lanes[i];
            lane->post = lane->done = lane->head;
            lane->ops = 0;
            lane->bytes = 0;
        }
        proxy_gpu_failed(part, r, kind);
    }
    part->publish = 1;
}

/* Without the parts' locks, since a turn may not get on: whoever turns a part next finds the order,
 * and before that nothing is posted. */
void mpix_proxy_abandon(mpix_proxy *proxy, int kind) {
    if (!proxy || atomic_exchange_explicit(&proxy->failing, 1, memory_order_acquire))
        return;
    proxy->failure = *mpix_error_tls();
    for (int i = 0; i < proxy->nparts; i++) {
        atomic_store_explicit(&proxy->part[i]->abandoned, kind, memory_order_release);
        proxy_wake(proxy->part[i]);
    }
}

int mpix_proxy_failed(mpix_proxy *proxy, int peer, MPIX_Error *error) {
    const proxy_peer *lost = proxy_lost(proxy, peer);

    if (lost && error)
        *error = lost->error;
    return lost ? lost->failed : 0;
}

void mpix_proxy_counts(const mpix_proxy *proxy, int peer, uint64_t *messages, uint64_t *bytes) {
    *messages = *bytes = 0;
    for (int i = 0; i < proxy->nparts; i++) {
        *messages += atomic_load_explicit(&proxy->part[i]->peers[peer].messages,
                                          memory_order_relaxed);
        *bytes += atomic_load_explicit(&proxy->part[i]->peers[peer].bytes, memory_order_relaxed);
    }
}

size_t mpix_proxy_memory(const mpix_proxy *proxy, int peer) {
    size_t all = 0;

    for (int i = 0; i < proxy->nparts; i++)
        all += proxy->part[i]->peers[peer].memory;
    return all;
}

const char *mpix_proxy_net_name(const mpix_proxy *proxy) { return proxy->net_name; }

const mpix_net_caps *mpix_proxy_caps(const mpix_proxy *proxy) { return &proxy->caps; }

int mpix_proxy_counted(const mpix_proxy *proxy) { return proxy->counted; }

int mpix_proxy_lanes(const mpix_proxy *proxy) { return proxy->nlanes; }

int mpix_proxy_threads(const mpix_proxy *proxy) {
    return proxy->part[0]->threaded ? proxy->nparts : 0;
}

int mpix_proxy_rings(const mpix_proxy *proxy) {
    return !proxy || (proxy->part[0]->threaded && (proxy->counted || proxy->caps.target_works));
}

static int state_lane_idle(const proxy_lane *lane) {
    return lane->done == lane->head &&
           atomic_load_explicit(&lane->admitted, memory_order_relaxed) ==
               atomic_load_explicit(&lane->retired, memory_order_relaxed);
}

static void state_dump_peer(const proxy_part *part, int rank) {
    const proxy_peer *peer = &part->peers[rank];
    int failed = atomic_load_explicit(&peer->failed, memory_order_acquire);

    if (failed)
        mpix_log(MPIX_LOG_WARN, "proxy: rank %d has failed: %s", rank, peer->error.text);
    for (int i = 0; i < part->nlanes; i++) {
        const proxy_lane *l = &peer->lanes[i];
        if (!state_lane_idle(l))
            mpix_log(MPIX_LOG_WARN,
                     "proxy: rank %d lane %d: commands %" PRIu64 " admitted %" PRIu64
                     " taken %" PRIu64 " posted %" PRIu64 " complete, number %" PRIu64
                     "; in flight %u of %u operations, %" PRIu64 " of %" PRIu64 " bytes",
                     rank, proxy_lane_of(part->whole, part->index, rank, i),
                     atomic_load_explicit(&l->admitted, memory_order_relaxed), l->head, l->post,
                     l->done, atomic_load_explicit(&l->completed, memory_order_relaxed), l->ops,
                     part->credit_ops, l->bytes, part->credit_bytes);
    }
    for (int c = 0; part->counted && c < part->counters; c++) {
        const proxy_rx *rx = &peer->rx[c];
        const proxy_header *header = part->table + (size_t)peer->place * (size_t)part->counters +
                                     (size_t)c;
        if (rx->count)
            mpix_log(MPIX_LOG_WARN,
                     "proxy: from rank %d counter %d: %u writes have arrived, %s%u are awaited%s",
                     rank, c, rx->count, rx->header ? "" : "the header has not; at least ",
                     rx->header ? header->writes : rx->count + 1,
                     rx->held ? "; an earlier signal of the lane is missing" : "");
    }
}

/* A turn does not block, so the lock is had soon. If its holder does not get on, only what is
 * atomic is shown. */
static void state_dump_part(proxy_part *part) {
    uint64_t head, tail, start = mpix_clock_ns();
    int locked = 0;
    char several[32] = "";

    if (part->whole->nparts > 1)
        snprintf(several, sizeof several, ", %d of %d", part->index + 1, part->whole->nparts);
    while (!locked && !part->ended && mpix_clock_ns() - start < 100000000u)
        locked = proxy_try_lock(part);
    if (part->ended)
        return;
    head = atomic_load_explicit(&part->fifo.head, memory_order_relaxed);
    tail = atomic_load_explicit(&part->fifo.tail, memory_order_relaxed);
    if (!locked) {
        mpix_log(MPIX_LOG_WARN,
                 "proxy: %s, %s%s does not get on: in one turn for 0.1 s or more; queue %" PRIu64
                 " of %" PRIu64 ", %" PRIu64 " commands",
                 part->whole->net_name, part->threaded ? "the thread" : "a caller", several,
                 head - tail, part->fifo.mask + 1, tail);
        return;
    }
    mpix_log(MPIX_LOG_WARN,
             "proxy: %s %s, %s signals, %d lanes to %d peers, run by %s%s%s; queue %" PRIu64
             " of %" PRIu64 ", %" PRIu64 " commands, %" PRIu64 " turns, %" PRIu64
             " sleeps, %d lanes have work",
             part->whole->net_name, part->net->caps.device, part->counted ? "counted" : "ordered",
             part->nlanes, part->npeers, part->threaded ? "a thread" : "the caller", several,
             atomic_load_explicit(&part->sleeping, memory_order_relaxed) ? ", which sleeps" : "",
             head - tail, part->fifo.mask + 1, tail, part->turns, part->sleeps, part->nactive);
    for (int r = 0; r < part->size; r++)
        if (part->peers[r].lanes)
            state_dump_peer(part, r);
    proxy_unlock(part);
}

void mpix_proxy_dump(mpix_proxy *proxy) {
    for (int i = 0; i < proxy->nparts; i++)
        state_dump_part(proxy->part[i]);
}
