/*
 * forward_blame.c - two hops: whom a rank waits for in the end.
 *
 * A rank that waits for its neighbour's word may wait for that neighbour, or for a source whose
 * rows the neighbour forwards; a rank that waits for another host's word may wait for its sender,
 * or for the forwarder that gives the sender no credit. Seen from there it is the same. The ranks
 * between know better, so whoever waits for a while tells all peers in which call, and for whom:
 * for a source whose chunks do not come or a forwarder without credit by its own knowledge,
 * otherwise by what it was told. A rank that is stopped tells nothing. So a peer that says that it
 * waits is excused, and the blame goes to the one that it names, and on from there.
 *
 * This is about errors only: what is told may be old by then, and is no signal. A proxied peer gets
 * it by a plain write that nobody counts.
 */
#include "config.h"

#include "coll/host/forward.h"

static uint64_t call_key(const mpix_ep_call *call) {
    uint64_t key = call->epoch * 4 + (uint64_t)call->type + ((uint64_t)call->handle->index << 40);
    return (key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 << 32;
}

/* Whom the peer waits for in this call, -1: it does not say. */
static int waits_for(const mpix_ep_call *call, int peer) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_forward_words *words =
        (const mpix_ep_forward_words *)(const void *)((const char *)ep->ctl->base +
                                                      ep->layout.forward) +
        peer;
    uint64_t stuck = atomic_load_explicit(&words->stuck, memory_order_acquire),
             whom = stuck & UINT32_MAX;
    if (stuck >> 32 << 32 != call_key(call) || whom == 0 || whom > (uint64_t)ep->size)
        return -1;
    return (int)whom - 1;
}

/* Where the words of ranks that wait lead from here; -1: to this rank, or nowhere. */
static int end_of(const mpix_ep_call *call, int peer) {
    for (int steps = 0; steps < call->ep->size; steps++) {
        int next = waits_for(call, peer);
        if (next < 0)
            return peer;
        if (next == call->ep->rank)
            return -1;
        peer = next;
    }
    return -1;
}

int mpix_ep_forward_blame(const mpix_ep_call *call,
                          int (*missing)(const mpix_ep_call *call, int peer)) {
    int first = -1, told = -1;
    for (int p = 0; p < call->ep->size; p++) {
        if (!missing(call, p))
            continue;
        int end = end_of(call, p);
        if (end == p)
            return p;
        first = first < 0 ? p : first;
        told = told < 0 ? end : told;
    }
    return told < 0 ? first : told;
}

static void tell(mpix_ep *ep, uint64_t word) {
    for (int i = 1; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        uint64_t at = ep->layout.forward + offsetof(mpix_ep_forward_words, stuck),
                 there = at + (uint64_t)ep->rank * sizeof(mpix_ep_forward_words);
        if (!mpix_ep_is_remote(ep, peer)) {
            atomic_store_explicit((_Atomic uint64_t *)(void *)((char *)ep->ctl->peer[peer] + there),
                                  word, memory_order_release);
            continue;
        }
        /* From the mirror, where nothing else lies. Without room in the queue this peer is
         * told nothing. */
        mpix_proxy *proxy = ep->remote->proxy;
        char *from = ep->remote->mirror + at + (uint64_t)peer * sizeof(mpix_ep_forward_words);
        uint64_t seq;
        memcpy(from, &word, sizeof word);
        mpix_net_op op = {.op = MPIX_NET_WRITE,
                          .peer = (uint16_t)peer,
                          .local = from,
                          .roff = there,
                          .len = sizeof word,
                          .counter = -1};
        (void)mpix_proxy_post(proxy, &op, mpix_proxy_window_mem(proxy, MPIX_EP_WINDOW_MIRROR),
                              mpix_proxy_window_rmem(proxy, peer, MPIX_EP_WINDOW_CTL), &seq);
    }
}

void mpix_ep_forward_tell(mpix_ep *ep, int (*missing)(const mpix_ep_call *call, int peer)) {
    mpix_ep_forward *forward = ep->forward;
    int suspect = -1;
    uint64_t word = 0;
    for (const mpix_ep_call *c = ep->first; c && suspect < 0; c = c->next)
        if ((suspect = mpix_ep_forward_blame(c, missing)) >= 0)
            word = call_key(c) | (uint64_t)(suspect + 1);
    if (word && suspect + 1 == forward->suspect && word != forward->told) {
        forward->told = word;
        tell(ep, word);
    }
    forward->suspect = suspect + 1;
}
