/*
 * p2p_watch.c - deaths, failures and time limits of peers, while somebody waits for them.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

enum { WATCH_NS = 5000000 };

/* Whether the peer's object has failed: then it does no part of anything any more. */
static int peer_told(mpix_p2p *p2p, int r) {
    const p2p_block *in = p2p->peers[r].in;
    uint64_t word = in ? atomic_load_explicit(&in->failed, memory_order_acquire) : 0;

    p2p->heard = p2p->heard ? p2p->heard : word;
    return word ? mpix_boot_told(p2p->boot, word, "the object") : 0;
}

int p2p_look(void *object, int kind) {
    mpix_p2p *p2p = object;

    pthread_mutex_lock(&p2p->lock);
    if (kind) { /* with the thread's error */
        p2p_fail(p2p, kind);
    } else {
        MPIX_Error *own = mpix_error_divert(&p2p->passing);
        for (int r = 0; !kind && !p2p->failed && p2p->peers && r < p2p->size; r++)
            kind = peer_told(p2p, r);
        if (kind)
            p2p_fail(p2p, kind);
        else if (p2p->created && !p2p->threaded && !p2p->failed)
            p2p_progress(p2p); /* peers may await answers of ours before they come */
        mpix_error_divert(own);
    }
    if ((kind = p2p->failed))
        *mpix_error_tls() = p2p->failure;
    pthread_mutex_unlock(&p2p->lock);
    return kind;
}

/* Whether its process has ended, its object has failed, or its connection is broken; then the
 * object fails, after what it still sent was taken. */
static int peer_lost(mpix_p2p *p2p, int r) {
    p2p_peer *peer = &p2p->peers[r];
    MPIX_Error error;
    int kind;

    if ((kind = peer_told(p2p, r)))
        return kind;
    if (!peer->mapped && (kind = mpix_proxy_failed(p2p->proxy, r, &error))) {
        *mpix_error_tls() = error;
        return kind;
    }
    return mpix_boot_ended(peer->pidfd) ? MPIX_ERRK_PEER : 0;
}

static int peer_needed(const mpix_p2p *p2p, int r) {
    for (const p2p_op *op = p2p->ops; op; op = op->next)
        if (op->peer == r)
            return 1;
    return p2p->peers[r].first != NULL;
}

void p2p_check_peers(mpix_p2p *p2p) {
    uint64_t now = mpix_clock_ns();
    int kind, waited = p2p->awaited;

    if (now - p2p->checked_ns < WATCH_NS || p2p->failed)
        return;
    p2p->checked_ns = now;
    for (int r = 0; r < p2p->size; r++) {
        if (r == p2p->rank || !(r == waited || peer_needed(p2p, r)) || !(kind = peer_lost(p2p, r)))
            continue;
        MPIX_Error error = *mpix_error_tls();
        while (p2p_ring_read(p2p, r))
            ;
        for (p2p_op *op = p2p->ops, *next; op; op = next) {
            next = op->next;
            p2p_move(op);
        }
        if (r != waited && !peer_needed(p2p, r))
            continue;
        *mpix_error_tls() = error;
        if (kind == MPIX_ERRK_PEER && !peer_told(p2p, r) && p2p->peers[r].mapped)
            mpix_fail_peer(kind, r, p2p->boot->hostnames[r],
                           "the process of rank %d on %s has ended; the object has failed", r,
                           p2p->boot->hostnames[r]);
        p2p_fail(p2p, kind);
        return;
    }
}

/* What would have helped where an operation needs the peer's part. */
static const char *late_remedy(const mpix_p2p *p2p, const p2p_op *op) {
    const p2p_peer *peer = &p2p->peers[op->peer];

    if (op->type == P2P_SEND && !peer->first)
        return ": no receive took it";
    if (op->type == P2P_SEND || op->type == P2P_TOLD)
        return ": it took no messages; its calls of the object do, or mpix_ep_progress=thread "
               "there";
    if ((op->type == P2P_PUT || op->type == P2P_GET) && op->asked)
        return ": it takes messages for this memory (mpix_ep_p2p_cma=no, or the system forbids "
               "more) in calls only; mpix_ep_progress=thread there helps";
    if (op->type == P2P_ADD && op->left)
        return ": it makes additions to this memory in calls of the object only; "
               "mpix_ep_progress=thread there helps";
    return "";
}

int p2p_late(mpix_p2p *p2p, const p2p_op *op, int peer, const char *what) {
    if (p2p->proxy)
        mpix_proxy_dump(p2p->proxy);
    return mpix_fail_peer(
        MPIX_ERRK_TIMEOUT, peer, p2p->boot->hostnames[peer],
        "%s with rank %d on %s was not complete within %g s; the object has failed%s", what, peer,
        p2p->boot->hostnames[peer], p2p->params.timeout, op ? late_remedy(p2p, op) : "");
}
