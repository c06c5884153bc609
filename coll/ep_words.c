/* ep_words.c - the control window: layout, publication and observation. The rules are in ep_ctl.h. */
#include "config.h"

#include "coll/ep.h"

static size_t up64(size_t n) { return (n + 63) & ~(size_t)63; }

void mpix_ep_ctl_layout_init(mpix_ep_ctl_layout *l, int ranks, int64_t experts, int depth, int max_handles) {
    l->offers_dispatch = sizeof(mpix_ep_words);
    l->offers_combine = l->offers_dispatch + (size_t)depth * sizeof(mpix_ep_offer);
    l->status = l->offers_combine + (size_t)depth * sizeof(mpix_ep_offer);
    l->counts = up64(l->status + (size_t)depth * sizeof(mpix_ep_status));
    l->counts_bytes = up64(sizeof(mpix_ep_counts) + ((size_t)ranks + (size_t)experts) * sizeof(uint32_t));
    l->block = l->counts + 2 * l->counts_bytes;
    l->slot = l->block * (size_t)ranks;
    l->slots_at = 4096;
    l->total = l->slots_at + l->slot * (size_t)max_handles;
}

/* The block that `writer` writes in `owner`'s window for the call's handle. */
static char *block(mpix_ep_call *call, int owner, int writer) {
    mpix_ep *ep = call->ep;
    char *base = ep->ctl->peer[owner];
    return base + ep->layout.slots_at + ep->layout.slot * (size_t)call->handle->slot + ep->layout.block * (size_t)writer;
}

mpix_ep_words *mpix_ep_my_words(mpix_ep_call *c, int peer) { return (mpix_ep_words *)block(c, c->ep->rank, peer); }
mpix_ep_words *mpix_ep_peer_words(mpix_ep_call *c, int peer) { return (mpix_ep_words *)block(c, peer, c->ep->rank); }

static mpix_ep_offer *offer_at(mpix_ep_call *c, char *b) {
    size_t bank = c->epoch % (uint64_t)c->ep->config.depth;
    return (mpix_ep_offer *)(b + (c->type == MPIX_EP_DISPATCH ? c->ep->layout.offers_dispatch : c->ep->layout.offers_combine)) + bank;
}

mpix_ep_offer *mpix_ep_my_offer(mpix_ep_call *c, int peer) { return offer_at(c, block(c, c->ep->rank, peer)); }
mpix_ep_offer *mpix_ep_peer_offer(mpix_ep_call *c, int peer) { return offer_at(c, block(c, peer, c->ep->rank)); }

static mpix_ep_status *status_at(mpix_ep_call *c, char *b) {
    return (mpix_ep_status *)(b + c->ep->layout.status) + c->epoch % (uint64_t)c->ep->config.depth;
}

mpix_ep_status *mpix_ep_my_status(mpix_ep_call *c, int peer) { return status_at(c, block(c, c->ep->rank, peer)); }
mpix_ep_status *mpix_ep_peer_status(mpix_ep_call *c, int peer) { return status_at(c, block(c, peer, c->ep->rank)); }

static mpix_ep_counts *counts_at(mpix_ep_call *c, char *b) {
    return (mpix_ep_counts *)(b + c->ep->layout.counts + (c->epoch & 1) * c->ep->layout.counts_bytes);
}

mpix_ep_counts *mpix_ep_my_counts(mpix_ep_call *c, int peer) { return counts_at(c, block(c, c->ep->rank, peer)); }
mpix_ep_counts *mpix_ep_peer_counts(mpix_ep_call *c, int peer) { return counts_at(c, block(c, peer, c->ep->rank)); }

mpix_doorbell *mpix_ep_bell(mpix_ep *ep) { return ep->ctl->peer[ep->rank]; }

void mpix_ep_ring(mpix_ep *ep, int peer) { mpix_doorbell_ring(ep->ctl->peer[peer]); }

void mpix_ep_peers_reset(mpix_ep_call *call) {
    memset(call->seen, 0, (size_t)call->ep->size);
    call->nseen = 0;
    call->waiting = 1;
    call->wait_ns = mpix_clock_ns();
}

static void peer_seen(mpix_ep_call *call, int peer, int32_t status, int64_t *wait_ns) {
    static const char *const names[] = {"route", "dispatch", "combine"};
    mpix_ep *ep = call->ep;
    call->seen[peer] = 1;
    call->nseen++;
    if (wait_ns)
        wait_ns[peer] += (int64_t)(mpix_clock_ns() - call->wait_ns);
    if (status && peer != ep->rank && !call->kind)
        mpix_ep_call_fail(call, mpix_fail_peer(MPIX_ERRK_REMOTE, peer, ep->boot->hostnames[peer],
                                               "rank %d on %s failed its part of %s with an error of kind %s", peer,
                                               ep->boot->hostnames[peer], names[call->type], mpix_kind_name(status)));
}

void mpix_ep_offer_send(mpix_ep_call *call, const mpix_ep_offer *offer) {
    mpix_ep *ep = call->ep;
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        mpix_ep_offer *o = mpix_ep_peer_offer(call, peer);
        memcpy((char *)o + offsetof(mpix_ep_offer, status), (const char *)offer + offsetof(mpix_ep_offer, status),
               sizeof *o - offsetof(mpix_ep_offer, status));
        atomic_store_explicit(&o->epoch, call->epoch, memory_order_release);
        if (peer != ep->rank)
            mpix_ep_ring(ep, peer);
    }
}

int mpix_ep_offers_seen(mpix_ep_call *call, int64_t *wait_ns) {
    for (int peer = 0; peer < call->ep->size; peer++) {
        if (call->seen[peer])
            continue;
        mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        if (atomic_load_explicit(&o->epoch, memory_order_acquire) == call->epoch)
            peer_seen(call, peer, o->status, wait_ns);
    }
    return call->nseen == call->ep->size;
}

void mpix_ep_signal(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    int32_t own = call->kind == MPIX_ERRK_REMOTE ? 0 : call->kind; /* REMOTE: the rank to blame told everybody itself */
    for (int i = 0; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        mpix_ep_status *status = mpix_ep_peer_status(call, peer);
        mpix_ep_words *words = mpix_ep_peer_words(call, peer);
        if (call->type == MPIX_EP_DISPATCH) {
            status->dispatch = own;
            atomic_store_explicit(&words->dispatch, call->epoch, memory_order_release);
        } else {
            status->combine = own;
            atomic_store_explicit(&words->combine, call->epoch, memory_order_release);
        }
        if (peer != ep->rank)
            mpix_ep_ring(ep, peer);
    }
}

int mpix_ep_signals_seen(mpix_ep_call *call, int64_t *wait_ns) {
    int dispatch = call->type == MPIX_EP_DISPATCH;
    for (int peer = 0; peer < call->ep->size; peer++) {
        if (call->seen[peer])
            continue;
        mpix_ep_words *words = mpix_ep_my_words(call, peer);
        uint64_t epoch = atomic_load_explicit(dispatch ? &words->dispatch : &words->combine, memory_order_acquire);
        if (epoch >= call->epoch) {
            mpix_ep_status *status = mpix_ep_my_status(call, peer);
            peer_seen(call, peer, dispatch ? status->dispatch : status->combine, wait_ns);
        }
    }
    return call->nseen == call->ep->size;
}

/* ---- offers in use ------------------------------------------------------------------------------------------------------ */

void mpix_ep_offers_compare(mpix_ep_call *call, int64_t hidden, const MPIX_Ep_rows *x) {
    mpix_ep *ep = call->ep;
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
            arg = "in.x.dtype";
            here = x->dtype;
            there = o->dtype;
        } else if (o->scale_kind != x->scale_kind) {
            arg = "in.x.scale_kind";
            here = x->scale_kind;
            there = o->scale_kind;
        }
        if (!arg)
            continue;
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, arg, "%s = %lld differs from %lld on rank %d (%s)", arg, here, there, peer,
                                          ep->boot->hostnames[peer]));
        return;
    }
}

static char *target_at(mpix_ep_call *call, int peer, const mpix_ep_place *place, int64_t rows, size_t bytes) {
    if (!place->set || rows <= 0)
        return NULL;
    char *at = mpix_ep_resolve(call->ep, peer, place, (size_t)(rows - 1) * place->stride + bytes);
    if (!at)
        mpix_ep_call_fail(call, mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, call->ep->boot->hostnames[peer],
                                               "rank %d offers %lld rows at %llu in window %u, which has no such place", peer, (long long)rows,
                                               (unsigned long long)place->off, place->window));
    return at;
}

void mpix_ep_targets_fill(mpix_ep_call *call, size_t x_bytes, size_t scale_bytes, size_t meta_bytes, size_t slot_bytes) {
    for (int peer = 0; peer < call->ep->size; peer++) {
        const mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        mpix_ep_target *t = &call->ep->targets[peer];
        t->rows = (int64_t)o->rows;
        t->x = target_at(call, peer, &o->place[MPIX_EP_PLACE_X], t->rows, x_bytes);
        t->scales = target_at(call, peer, &o->place[MPIX_EP_PLACE_SCALES], t->rows, scale_bytes);
        t->meta = target_at(call, peer, &o->place[MPIX_EP_PLACE_META], t->rows, meta_bytes);
        t->slots = target_at(call, peer, &o->place[MPIX_EP_PLACE_SLOTS], t->rows, slot_bytes);
        t->x_stride = o->place[MPIX_EP_PLACE_X].stride;
        t->scale_stride = o->place[MPIX_EP_PLACE_SCALES].stride;
    }
}

mpix_ep_place mpix_ep_stage_place(mpix_ep_call *call, size_t off, size_t stride) {
    return (mpix_ep_place){(size_t)call->bank * call->ep->bank_bytes + off, stride, 0, 1};
}

char *mpix_ep_stage_at(mpix_ep_call *call, size_t off) {
    return (char *)call->ep->stage->base + (size_t)call->bank * call->ep->bank_bytes + off;
}
