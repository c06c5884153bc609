/* watch.c - peers that end, connections that fail, and time limits. */
#include "config.h"

#include "coll/host/engine.h"
#include "coll/host/forward.h"

#define CHECK_NS 5000000u /* how often deaths are looked for */

/*
 * Whether the call waits for this peer's part. Own rows may wait for the others' (low latency),
 * never the other way round; nor is a peer missing whose batch is here, but not dealt with before
 * the others' heads are here too.
 */
static int missing(const mpix_ep_call *call, int peer) {
    return call->waiting && peer != call->ep->rank && !call->seen[peer] &&
           !(call->ep->path->part_here && call->ep->path->part_here(call, peer));
}

/* A proxied peer whose connection has failed, or to which nothing can be queued: everybody's
 * calls need it. */
static void check_remote(mpix_ep *ep) {
    MPIX_Error error;
    int stuck = ep->remote && ep->first ? mpix_ep_remote_stuck(ep) : 0;
    if (stuck) {
        mpix_ep_fail(ep, stuck);
        return;
    }
    for (int peer = 0; ep->remote && ep->first && peer < ep->size; peer++) {
        if (!ep->remote->is[peer])
            continue;
        int kind = mpix_proxy_failed(ep->remote->proxy, peer, &error);
        if (!kind)
            continue;
        mpix_ep_progress_all(ep); /* what came before the failure counts */
        if (!ep->first)
            return;
        *mpix_error_tls() = error;
        mpix_ep_fail(ep, kind);
        return;
    }
}

/* A peer's context has failed. What came before the failure counts. */
static void check_told(mpix_ep *ep) {
    int kind = ep->first ? mpix_ep_told(ep) : 0;
    if (!kind)
        return;
    MPIX_Error error = *mpix_error_tls();
    mpix_ep_progress_all(ep);
    *mpix_error_tls() = error;
    if (ep->first)
        mpix_ep_fail(ep, kind);
}

/* A peer that a call waits for and whose process has ended. What it published before its end
 * is taken first. */
void mpix_ep_check_deaths(mpix_ep *ep) {
    uint64_t now = mpix_clock_ns();
    if (now - ep->checked_ns < CHECK_NS)
        return;
    ep->checked_ns = now;
    check_told(ep);
    check_remote(ep);
    if (ep->forward)
        mpix_ep_forward_tell(ep, missing);
    for (int peer = 0; peer < ep->size; peer++) {
        int needed = 0;
        for (mpix_ep_call *c = ep->first; c && !needed; c = c->next)
            needed = missing(c, peer);
        if (!needed || !mpix_boot_ended(ep->pidfds[peer]))
            continue;
        mpix_ep_progress_all(ep);
        for (mpix_ep_call *c = ep->first; c; c = c->next) {
            if (!missing(c, peer))
                continue;
            mpix_ep_fail(ep,
                         mpix_fail_peer(MPIX_ERRK_PEER, peer, ep->boot->hostnames[peer],
                                        "rank %d (pid %d on %s) ended before its part of %s number "
                                        "%llu; the context has failed",
                                        peer, (int)ep->boot->pids[peer], ep->boot->hostnames[peer],
                                        mpix_ep_call_name(c), (unsigned long long)c->epoch));
            return;
        }
    }
}

/* The rank that a call waits for, -1: none. */
static int blamed(const mpix_ep_call *call) {
    if (call->ep->forward)
        return mpix_ep_forward_blame(call, missing);
    for (int peer = 0; peer < call->ep->size; peer++)
        if (missing(call, peer))
            return peer;
    return -1;
}

void mpix_ep_time_out(mpix_ep *ep) {
    if (ep->remote)
        mpix_proxy_dump(ep->remote->proxy);
    for (mpix_ep_call *c = ep->first; c; c = c->next) {
        int peer = blamed(c);
        if (peer < 0)
            continue;
        mpix_ep_fail(ep, mpix_fail_peer(MPIX_ERRK_TIMEOUT, peer, ep->boot->hostnames[peer],
                                        "rank %d on %s did not do its part of %s number %llu "
                                        "within %g s; the context has failed",
                                        peer, ep->boot->hostnames[peer], mpix_ep_call_name(c),
                                        (unsigned long long)c->epoch, ep->config.timeout_s));
        return;
    }
    /* Everybody's part is here, but the network has not done this rank's. */
    for (mpix_ep_call *c = ep->first; c && ep->remote; c = c->next) {
        for (int peer = 0; peer < ep->size; peer++) {
            if (!mpix_ep_remote_owed(c, peer))
                continue;
            mpix_ep_fail(ep, mpix_fail_peer(MPIX_ERRK_TIMEOUT, peer, ep->boot->hostnames[peer],
                                            "what was sent to rank %d on %s for %s number %llu was "
                                            "not delivered within %g s; the context has failed",
                                            peer, ep->boot->hostnames[peer], mpix_ep_call_name(c),
                                            (unsigned long long)c->epoch, ep->config.timeout_s));
            return;
        }
    }
    mpix_ep_fail(ep, mpix_fail(MPIX_ERRK_TIMEOUT, NULL,
                               "no progress within %g s; the context has failed",
                               ep->config.timeout_s));
}
