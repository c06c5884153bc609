/*
 * remote_room.c - commands for which the proxy had no room when they were made.
 *
 * A step never waits: whoever makes progress holds the context's lock, and may be another context's
 * thread. So what can't be queued is kept here, and the steps that follow queue it, in order on
 * each lane, before anything new. A full lane does not hold up the others. Until then a command has
 * a number that no completion reaches, its ticket; it stands wherever the command's number is kept
 * (the call's part for the peer, the chunk), so the call is not complete and the chunk not free.
 * When the command is queued its number takes the ticket's place. To everybody but the lock's
 * holder this is the FIFO of the proxy being longer.
 *
 * How many there can be. Of a batch no more than two for each chunk; of a call
 * otherwise a few per peer.
 */
#include "config.h"

#include "coll/host/forward.h"

#include <stdlib.h>

#define TICKET (UINT64_C(1) << 63)

int mpix_ep_remote_later(mpix_ep_call *call, const mpix_ep_command *command) {
    mpix_ep_remote *remote = call->ep->remote;
    if (remote->nlater == remote->later_room) {
        int room = remote->later_room ? 2 * remote->later_room : 32;
        mpix_ep_command *later = realloc(remote->later, (size_t)room * sizeof *later);
        if (!later) {
            /* found where deaths are looked for: a step can't fail the context */
            remote->no_mem = 1;
            return 0;
        }
        remote->later = later;
        remote->later_room = room;
    }
    if (remote->nlater == 0)
        remote->later_ns = mpix_clock_ns();
    mpix_ep_command *c = &remote->later[remote->nlater];
    *c = *command;
    c->call = call;
    c->ticket = TICKET | ++remote->tickets;
    call->remote[c->peer].seq[c->lane] = c->ticket;
    atomic_store_explicit(&remote->nlater, remote->nlater + 1, memory_order_relaxed);
    return 1;
}

static int later_queue(mpix_proxy *proxy, const mpix_ep_command *c, uint64_t *seq) {
    switch (c->what) {
    case MPIX_EP_COMMAND_PUT:
        return mpix_proxy_put(proxy, c->peer, c->lane, c->lwin, c->loff, c->rwin, c->roff, c->len,
                              c->counter, seq);
    case MPIX_EP_COMMAND_WORD:
        return mpix_proxy_signal(proxy, c->peer, c->lane, MPIX_EP_WINDOW_CTL, c->roff, c->value,
                                 c->counter, c->writes, seq);
    default: return mpix_proxy_post(proxy, &c->op, c->mem, c->rmem, seq);
    }
}

static void chunks_number(mpix_ep_chunk *chunks, int n, uint64_t ticket, uint64_t seq) {
    for (int i = 0; i < n; i++)
        if (chunks[i].seq == ticket)
            chunks[i].seq = seq;
}

/* seq 0: the peer has failed and takes nothing; the engine finds that. */
static void later_number(mpix_ep *ep, const mpix_ep_command *c, uint64_t seq) {
    uint64_t *last = &c->call->remote[c->peer].seq[c->lane];
    if (*last == c->ticket)
        *last = seq;
    chunks_number(ep->remote->chunks, ep->remote->nchunks, c->ticket, seq);
    if (ep->forward)
        chunks_number(ep->forward->outs, ep->forward->nout, c->ticket, seq);
}

int mpix_ep_remote_catch_up(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    int left = 0, did = 0;
    memset(remote->full, 0, (size_t)ep->size * MPIX_EP_MAX_LANES);
    for (int i = 0; i < remote->nlater; i++) {
        const mpix_ep_command *c = &remote->later[i];
        unsigned char *full = &remote->full[c->peer * MPIX_EP_MAX_LANES + c->lane];
        uint64_t seq = 0;
        int queued = *full ? 0 : later_queue(remote->proxy, c, &seq);
        if (queued != 0) {
            later_number(ep, c, queued > 0 ? seq : 0);
            did = 1;
            continue;
        }
        *full = 1;
        if (left != i)
            remote->later[left] = *c;
        left++;
    }
    atomic_store_explicit(&remote->nlater, left, memory_order_relaxed);
    if (did)
        remote->later_ns = mpix_clock_ns();
    return did;
}

int mpix_ep_remote_stuck(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote->proxy)
        return 0;
    if (remote->no_mem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "no memory for commands to proxied ranks; the context has failed");
    if (remote->nlater == 0 || mpix_clock_ns() - remote->later_ns <= ep->limit_ns)
        return 0;
    int peer = remote->later[0].peer;
    mpix_proxy_dump(remote->proxy);
    return mpix_fail_peer(
        MPIX_ERRK_TIMEOUT, peer, ep->boot->hostnames[peer],
        "nothing could be sent to rank %d on %s within %g s; the context has failed", peer,
        ep->boot->hostnames[peer], ep->config.timeout_s);
}
