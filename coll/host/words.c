/* words.c - the control window: layout, publication and observation. The rules are in wire.h. */
#include "config.h"

#include "coll/host/forward.h"

#include <stdio.h>

static size_t up64(size_t n) { return (n + 63) & ~(size_t)63; }

void mpix_ep_ctl_layout_init(mpix_ep_ctl_layout *l, int ranks, int64_t experts, int depth,
                             int max_handles, int64_t answered) {
    l->offers_dispatch = sizeof(mpix_ep_words);
    l->offers_combine = l->offers_dispatch + (size_t)depth * sizeof(mpix_ep_offer);
    l->status = l->offers_combine + (size_t)depth * sizeof(mpix_ep_offer);
    l->counts = up64(l->status + (size_t)depth * sizeof(mpix_ep_status));
    size_t n = answered < 0 ? 2 * (size_t)ranks + (size_t)experts : 2 + (size_t)answered;
    l->counts_bytes = up64(sizeof(mpix_ep_counts) + n * sizeof(uint32_t));
    l->bases = l->counts + 2 * l->counts_bytes;
    l->bases_bytes = answered < 0 ? 0
                                  : up64(sizeof(mpix_ep_bases) +
                                         (size_t)(answered > 1 ? answered : 1) * sizeof(int64_t));
    l->block = l->bases + l->bases_bytes;
    l->handle = l->block * (size_t)ranks;
    l->handles_at = 4096;
    l->forward = l->handles_at + l->handle * (size_t)max_handles;
    l->total = l->forward + (size_t)ranks * sizeof(mpix_ep_forward_words);
}

int mpix_ep_is_remote(const mpix_ep *ep, int peer) { return ep->remote && ep->remote->is[peer]; }

/* Where the call's handle has its blocks in a control window (or the mirror) at base. */
static char *handle_at(const mpix_ep_call *call, char *base) {
    return base + call->ep->layout.handles_at +
           call->ep->layout.handle * (size_t)call->handle->index;
}

/* The block that peer writes here. */
static char *my_block(const mpix_ep_call *call, int peer) {
    return handle_at(call, call->ep->ctl->base) + call->ep->layout.block * (size_t)peer;
}

/* The block that this rank writes for peer: there, or in the mirror. */
static char *peer_block(const mpix_ep_call *call, int peer) {
    const mpix_ep *ep = call->ep;
    if (mpix_ep_is_remote(ep, peer))
        return handle_at(call, ep->remote->mirror) + ep->layout.block * (size_t)peer;
    return handle_at(call, ep->ctl->peer[peer]) + ep->layout.block * (size_t)ep->rank;
}

mpix_ep_words *mpix_ep_my_words(mpix_ep_call *c, int peer) {
    return (mpix_ep_words *)my_block(c, peer);
}
mpix_ep_words *mpix_ep_peer_words(mpix_ep_call *c, int peer) {
    return (mpix_ep_words *)peer_block(c, peer);
}

static mpix_ep_offer *offer_at(mpix_ep_call *c, char *b) {
    size_t bank = c->epoch % (uint64_t)c->ep->config.depth;
    return (mpix_ep_offer *)(b + (c->type == MPIX_EP_DISPATCH ? c->ep->layout.offers_dispatch
                                                              : c->ep->layout.offers_combine)) +
           bank;
}

mpix_ep_offer *mpix_ep_my_offer(mpix_ep_call *c, int peer) {
    return offer_at(c, my_block(c, peer));
}
mpix_ep_offer *mpix_ep_peer_offer(mpix_ep_call *c, int peer) {
    return offer_at(c, peer_block(c, peer));
}

static mpix_ep_status *status_at(mpix_ep_call *c, char *b) {
    return (mpix_ep_status *)(b + c->ep->layout.status) + c->epoch % (uint64_t)c->ep->config.depth;
}

mpix_ep_status *mpix_ep_my_status(mpix_ep_call *c, int peer) {
    return status_at(c, my_block(c, peer));
}
mpix_ep_status *mpix_ep_peer_status(mpix_ep_call *c, int peer) {
    return status_at(c, peer_block(c, peer));
}

static mpix_ep_counts *counts_at(mpix_ep_call *c, char *b) {
    return (mpix_ep_counts *)(b + c->ep->layout.counts +
                              (c->epoch & 1) * c->ep->layout.counts_bytes);
}

mpix_ep_counts *mpix_ep_my_counts(mpix_ep_call *c, int peer) {
    return counts_at(c, my_block(c, peer));
}
mpix_ep_counts *mpix_ep_peer_counts(mpix_ep_call *c, int peer) {
    return counts_at(c, peer_block(c, peer));
}

mpix_ep_bases *mpix_ep_my_bases(mpix_ep_call *c, int peer) {
    return (mpix_ep_bases *)(my_block(c, peer) + c->ep->layout.bases);
}
mpix_ep_bases *mpix_ep_peer_bases(mpix_ep_call *c, int peer) {
    return (mpix_ep_bases *)(peer_block(c, peer) + c->ep->layout.bases);
}

mpix_doorbell *mpix_ep_bell(mpix_ep *ep) { return &((mpix_ep_head *)ep->ctl->base)->bell; }

void mpix_ep_publish(mpix_ep_call *call, int peer, void *at, size_t bytes, _Atomic uint64_t *word) {
    mpix_ep *ep = call->ep;
    if (mpix_ep_is_remote(ep, peer)) {
        mpix_ep_remote_publish(call, peer, at, bytes, word);
        return;
    }
    atomic_store_explicit(word, call->epoch, memory_order_release);
    if (peer != ep->rank)
        mpix_doorbell_ring(ep->ctl->peer[peer]);
}

void mpix_ep_peers_reset(mpix_ep_call *call) {
    memset(call->seen, 0, (size_t)call->ep->size);
    call->nseen = 0;
    call->waiting = 1;
    call->wait_ns = mpix_clock_ns();
}

void mpix_ep_peer_seen(mpix_ep_call *call, int peer, int32_t status, int64_t *wait_ns) {
    mpix_ep *ep = call->ep;
    call->seen[peer] = 1;
    call->nseen++;
    if (wait_ns)
        wait_ns[peer] += (int64_t)(mpix_clock_ns() - call->wait_ns);
    if (status && peer != ep->rank && !call->kind)
        mpix_ep_call_fail(
            call, mpix_fail_peer(MPIX_ERRK_REMOTE, peer, ep->boot->hostnames[peer],
                                 "rank %d on %s failed its part of %s with an error of kind %s",
                                 peer, ep->boot->hostnames[peer], mpix_ep_call_name(call),
                                 mpix_kind_name(status)));
}

void mpix_ep_offer_send(mpix_ep_call *call, const mpix_ep_offer *offer) {
    mpix_ep *ep = call->ep;
    const size_t head = offsetof(mpix_ep_offer, status), bytes = sizeof *offer - head;
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        mpix_ep_offer *o = mpix_ep_peer_offer(call, peer);
        memcpy((char *)o + head, (const char *)offer + head, bytes);
        if (mpix_ep_is_remote(ep, peer)) {
            memset(o->place, 0, sizeof o->place);
            o->pairs = call->ht.two_hops ? (uint64_t)mpix_ep_forward_pairs(call, peer) : 0;
            if (call->remote[peer].rx != UINT64_MAX)
                o->place[MPIX_EP_PLACE_X] = mpix_ep_stage_place(call, call->remote[peer].rx, 0);
            if (call->remote[peer].direct)
                o->place[MPIX_EP_PLACE_ROWS] = mpix_ep_remote_dispatch_place(call, peer);
        }
        mpix_ep_publish(call, peer, (char *)o + head, bytes, &o->epoch);
    }
}

int mpix_ep_offer_start(mpix_ep_call *call, int *banks_open,
                        int (*make)(mpix_ep_call *call, mpix_ep_offer *offer)) {
    mpix_ep_offer offer = {0};
    if (!mpix_ep_call_ready(call) || (!*banks_open && !call->kind)) {
        *banks_open = 0;
        return 0;
    }
    if (!call->kind && !call->handle->plan)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "handle",
                                          "the handle has no routing: its last route failed"));
    call->ht.x_stage = call->ht.s_stage = call->ht.records_stage = call->ht.slot_stage = SIZE_MAX;
    if (!call->kind && !make(call, &offer)) {
        *banks_open = 0;
        return 0;
    }
    offer.status = call->kind;
    mpix_ep_offer_send(call, &offer);
    mpix_ep_peers_reset(call);
    return 1;
}

int mpix_ep_offers_seen(mpix_ep_call *call, int64_t *wait_ns) {
    for (int peer = 0; peer < call->ep->size; peer++) {
        if (call->seen[peer])
            continue;
        mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        if (atomic_load_explicit(&o->epoch, memory_order_acquire) == call->epoch)
            mpix_ep_peer_seen(call, peer, o->status, wait_ns);
    }
    return call->nseen == call->ep->size;
}

static int in_set(const mpix_ep *ep, int peer, int which) {
    return which & (mpix_ep_is_remote(ep, peer) ? MPIX_EP_REMOTE : MPIX_EP_MAPPED);
}

void mpix_ep_signal(mpix_ep_call *call, int which) {
    mpix_ep *ep = call->ep;
    /* REMOTE: the rank to blame told everybody itself */
    int32_t own = call->kind == MPIX_ERRK_REMOTE ? 0 : call->kind;
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        if (!in_set(ep, peer, which))
            continue;
        mpix_ep_status *status = mpix_ep_peer_status(call, peer);
        mpix_ep_words *words = mpix_ep_peer_words(call, peer);
        int32_t *mine = call->type == MPIX_EP_DISPATCH ? &status->dispatch : &status->combine;
        if (mpix_ep_is_remote(ep, peer)) {
            mpix_ep_remote_signal(call, peer, own);
            continue;
        }
        *mine = own;
        mpix_ep_publish(call, peer, mine, sizeof *mine,
                        call->type == MPIX_EP_DISPATCH ? words->dispatch : words->combine);
    }
}

int mpix_ep_signalled(mpix_ep_call *call, int peer) {
    mpix_ep_words *words = mpix_ep_my_words(call, peer);
    _Atomic uint64_t *lane = call->type == MPIX_EP_DISPATCH ? words->dispatch : words->combine;
    int lanes = mpix_ep_is_remote(call->ep, peer) ? call->ep->remote->lanes : 1;
    for (int l = 0; l < lanes; l++)
        if (atomic_load_explicit(&lane[l], memory_order_acquire) < call->epoch)
            return 0;
    return 1;
}

int mpix_ep_signals_seen(mpix_ep_call *call, int which, int64_t *wait_ns) {
    mpix_ep *ep = call->ep;
    for (int peer = 0; peer < ep->size; peer++) {
        if (call->seen[peer])
            continue;
        if (!in_set(ep, peer, which)) {
            call->seen[peer] = 1;
            call->nseen++;
        } else if (mpix_ep_signalled(call, peer)) {
            const mpix_ep_status *status = mpix_ep_my_status(call, peer);
            mpix_ep_peer_seen(call, peer,
                              call->type == MPIX_EP_DISPATCH ? status->dispatch : status->combine,
                              wait_ns);
        }
    }
    return call->nseen == ep->size;
}

/* ---- offers in use --------------------------------------------------------------------------- */

void mpix_ep_offers_compare(mpix_ep_call *call, int64_t hidden, const MPIX_Ep_rows *x,
                            const char *name, int wire) {
    mpix_ep *ep = call->ep;
    char field[32];
    for (int peer = 0; peer < ep->size; peer++) {
        const mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        const char *arg = NULL;
        if (o->status)
            continue;
        long long here = 0, there = 0;
        if (o->hidden != (uint64_t)hidden) {
            arg = "in.hidden";
            here = hidden;
            there = (long long)o->hidden;
        } else if (o->dtype != x->dtype) {
            snprintf(field, sizeof field, "%s.dtype", name);
            arg = field;
            here = x->dtype;
            there = o->dtype;
        } else if (o->scale_kind != x->scale_kind) {
            snprintf(field, sizeof field, "%s.scale_kind", name);
            arg = field;
            here = x->scale_kind;
            there = o->scale_kind;
        } else if (o->wire != wire) {
            arg = "in.wire";
            here = wire;
            there = o->wire;
        }
        if (!arg)
            continue;
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, arg,
                                          "%s = %lld differs from %lld on rank %d (%s)", arg, here,
                                          there, peer, ep->boot->hostnames[peer]));
        return;
    }
}

static char *target_at(mpix_ep_call *call, int peer, const mpix_ep_place *place, int64_t rows,
                       size_t bytes, int needed) {
    if (rows <= 0 || (!place->set && !needed))
        return NULL;
    char *at = place->set ? mpix_ep_resolve(call->ep, peer, place,
                                            mpix_ep_extent((uint64_t)rows, place->stride, bytes))
                          : NULL;
    if (!at)
        mpix_ep_call_fail(
            call,
            mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, call->ep->boot->hostnames[peer],
                           "rank %d offers %lld rows at %llu in window %d, which has no such place",
                           peer, (long long)rows, (unsigned long long)place->off, place->window));
    return at;
}

void mpix_ep_targets_fill(mpix_ep_call *call, size_t x_bytes, size_t scale_bytes,
                          size_t record_bytes, size_t slot_bytes) {
    for (int peer = 0; peer < call->ep->size; peer++) {
        const mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        mpix_ep_target *t = &call->ep->ht->targets[peer];
        t->rows = o->rows < INT64_MAX ? (int64_t)o->rows : 0;
        t->x = t->scales = t->records = t->slots = NULL;
        if (mpix_ep_is_remote(call->ep, peer)) { /* its rows travel in a packed batch */
            if (call->type == MPIX_EP_COMBINE)
                t->rows = call->remote[peer].rows;
            continue;
        }
        /* One that nobody has rows for, or from, need not say where they would be. */
        int needed = peer != call->ep->rank && call->handle->plan->send_rows[peer] > 0;
        t->x = target_at(call, peer, &o->place[MPIX_EP_PLACE_X], t->rows, x_bytes, needed);
        t->scales = target_at(call, peer, &o->place[MPIX_EP_PLACE_SCALES], t->rows, scale_bytes,
                              needed && scale_bytes > 0);
        t->records = target_at(call, peer, &o->place[MPIX_EP_PLACE_RECORDS], t->rows, record_bytes,
                               0);
        t->slots = target_at(call, peer, &o->place[MPIX_EP_PLACE_SLOTS], t->rows, slot_bytes, 0);
        t->x_stride = o->place[MPIX_EP_PLACE_X].stride;
        t->scale_stride = o->place[MPIX_EP_PLACE_SCALES].stride;
    }
}

mpix_ep_place mpix_ep_stage_place(mpix_ep_call *call, size_t off, size_t stride) {
    return (mpix_ep_place){call->ep->ht->banks_at + (size_t)call->bank * call->ep->ht->bank_bytes +
                               off,
                           stride, 0, 1};
}

char *mpix_ep_stage_at(mpix_ep_call *call, size_t off) {
    return (char *)call->ep->stage->base + call->ep->ht->banks_at +
           (size_t)call->bank * call->ep->ht->bank_bytes + off;
}
