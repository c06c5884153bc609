/*
 * remote_batch.c - what is packed for proxied peers, and how what they packed is used.
 *
 * Dispatch: an item is a token: its row, its scales, and a record of the token's number, the
 * local ids of its choices there (-1: another rank's) and the choices' weights. It travels once
 * per rank in either layout; in EXPERT layout the receiver expands it. Combine: an item is a row
 * of the experts' rank, in the order of its segments, and a record of its weight and slot
 * values. The token's owner sums what it would have read from a mapped peer, so the result is
 * the same to the bit.
 */
#include "config.h"

#include "coll/ep.h"
#include "coll/host/remote.h"
#include "coll/record.h"

#define PIECE_BYTES (4u << 20) /* packed per step */

static size_t record_size(const mpix_ep_call *call) {
    size_t width = (size_t)call->handle->plan->width;
    if (call->type == MPIX_EP_DISPATCH)
        return mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_ROW, width);
    return 4 + 4 * (call->ep->config.layout == MPIX_EP_COMPACT ? width : 1);
}

mpix_ep_geometry mpix_ep_remote_dispatch_geometry(const mpix_ep_call *call) {
    return mpix_ep_remote_geometry(call, &call->dispatch.out.x, call->dispatch.in.hidden,
                                   record_size(call));
}

mpix_ep_geometry mpix_ep_remote_combine_geometry(const mpix_ep_call *call) {
    return mpix_ep_remote_geometry(call, &call->combine.in.x, call->combine.in.hidden,
                                   record_size(call));
}

int64_t mpix_ep_mapped_rows(const mpix_ep_call *call) {
    const mpix_ep *ep = call->ep;
    int64_t rows = 0;
    for (int s = 0; s < ep->size; s++)
        if (s != ep->rank && (call->ht.two_hops || !mpix_ep_is_remote(ep, s)))
            rows += call->handle->plan->recv_rank[s];
    return rows;
}

static void copy1(mpix_ep *ep, void *to, const void *from, size_t bytes) {
    void *dst = to;
    ep->rows->copy(from, bytes, &dst, 1, 0);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/*
 * In COMPACT a source's rows are one after the other in the output. If that is dense and of
 * MPIX_Ep_alloc, the source may put them there, and only what is beside them comes through the
 * bank. The grant is for this call, as among mapped ranks.
 */
void mpix_ep_remote_dispatch_grant(mpix_ep_call *call, const mpix_ep_geometry *g, size_t rows) {
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    int fits = rows > 0 && call->ep->config.layout == MPIX_EP_COMPACT && !g->scales &&
               g->row == g->pitch && (size_t)x->stride == g->pitch;
    const mpix_ep_region *region = fits ? mpix_ep_region_of(call->ep, x->data, rows * g->pitch)
                                        : NULL;
    for (int p = 0; p < call->ep->size && region && region->mem; p++) {
        const mpix_ep_segment *s = &call->handle->plan->segments[p];
        call->remote[p].direct = call->remote[p].rx != UINT64_MAX && s->row < (int64_t)rows;
        call->remote[p].rows = s->n < (int64_t)rows - s->row ? s->n : (int64_t)rows - s->row;
    }
}

mpix_ep_place mpix_ep_remote_dispatch_place(mpix_ep_call *call, int peer) {
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    mpix_ep_place place = {0};
    (void)mpix_ep_find(call->ep,
                       (const char *)x->data + call->handle->plan->segments[peer].row * x->stride,
                       (size_t)call->remote[peer].rows * (size_t)x->stride,
                       (uint64_t)call->remote[peer].rows, &place);
    return place;
}

/* What a peer has granted so, if anything. */
static int rows_go(mpix_ep_call *call, int peer, mpix_ep_remote_rows *own) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_place *place = &mpix_ep_my_offer(call, peer)->place[MPIX_EP_PLACE_ROWS];
    const mpix_ep_region *region = place->set && place->window > 0 && place->window <= ep->nregions
                                       ? &ep->regions[place->window - 1]
                                       : NULL;
    if (!place->set)
        return 0;
    *own = (mpix_ep_remote_rows){.n = (int64_t)place->stride,
                                 .there = region && region->rmem ? region->rmem[peer] : NULL,
                                 .off = place->off};
    if (!own->there)
        mpix_ep_call_fail(call,
                          mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, ep->boot->hostnames[peer],
                                         "rank %d offers rows in window %d, which is not reached",
                                         peer, (int)place->window));
    return own->there != NULL;
}

static void token_pack(mpix_ep_call *call, int64_t t, int peer, const mpix_ep_geometry *g) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const mpix_ep_placement *p = &ep->placement;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    char *row, *scales, *record;
    mpix_ep_remote_item(call, peer, g, &row, &scales, &record);
    if (mpix_ep_converts(call)) {
        mpix_ep_token_convert(call, t, row, scales);
    } else {
        copy1(ep, row, (const char *)in->x.data + t * in->x.stride, g->row);
        if (g->scales)
            copy1(ep, scales, (const char *)in->x.scales + t * in->x.scale_stride, g->scales);
    }
    mpix_record_row_write(record,
                          &(mpix_ep_record){(int32_t)t, plan->topk, plan->ids + t * plan->topk,
                                            in->topk_weights ? in->topk_weights + t * plan->topk
                                                             : NULL},
                          p->owner, p->local, peer);
    mpix_ep_remote_rows rows;
    mpix_ep_remote_packed(call, peer, g, rows_go(call, peer, &rows) ? &rows : NULL);
}

/* The next proxied rank among a token's entries from i on that takes it; i is moved behind
 * it. -1: none. */
static int next_remote(const mpix_ep_call *call, int64_t *i, int64_t end) {
    const mpix_ep_entry *e = call->handle->plan->entries;
    while (*i < end) {
        int rank = e[*i].rank;
        do
            ++*i;
        while (*i < end && e[*i].rank == rank);
        if (mpix_ep_is_remote(call->ep, rank) && call->remote[rank].total > 0)
            return rank;
    }
    return -1;
}

int mpix_ep_remote_dispatch_pack(mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    if (!mpix_ep_remote_begin(call))
        return MPIX_EP_STEP_WAITING;
    mpix_ep_geometry g = mpix_ep_remote_dispatch_geometry(call);
    size_t packed = 0;
    for (; call->at < plan->tokens; call->at++) {
        int64_t t = call->at, i = plan->first[t], end = plan->first[t + 1];
        int peer;
        if (packed > PIECE_BYTES)
            return MPIX_EP_STEP_WORKED;
        /* all or nothing: a token is not packed for some and then waited for */
        while ((peer = next_remote(call, &i, end)) >= 0)
            if (!mpix_ep_remote_room(call, peer))
                return MPIX_EP_STEP_WAITING;
        i = plan->first[t];
        while ((peer = next_remote(call, &i, end)) >= 0) {
            token_pack(call, t, peer, &g);
            packed += g.item;
        }
    }
    mpix_ep_remote_release(call);
    return MPIX_EP_STEP_COMPLETE;
}

/* Rows that a token takes: their places into ep->dst (rows) and behind (scales); notes what
 * goes beside them. */
static int token_rows(mpix_ep_call *call, int source, int64_t item, const void *record,
                      int64_t rows) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    int compact = ep->config.layout == MPIX_EP_COMPACT, n = 0;
    for (int k = 0; k < (compact ? 1 : plan->width); k++) {
        int64_t row;
        if (compact) {
            row = plan->segments[source].row + item;
        } else {
            int32_t local = mpix_record_local(record)[k];
            if (local < 0 || local >= ep->placement.nlocal[ep->rank])
                continue;
            row = plan->segments[(int64_t)local * ep->size + source].row +
                  ep->remote->cursor[local]++;
        }
        if (row >= rows)
            continue; /* dropped */
        ep->dst[n] = (char *)out->x.data + row * out->x.stride;
        ep->dst[ep->config.max_topk + 1 + n] =
            out->x.scales ? (char *)out->x.scales + row * out->x.scale_stride : NULL;
        n++;
        if (out->src_rank)
            out->src_rank[row] = source;
        mpix_record_row_read(record, plan->width, compact ? -1 : k, out, row);
    }
    return n;
}

void mpix_ep_remote_dispatch_take(mpix_ep_call *call, int64_t rows) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    mpix_ep_geometry g = mpix_ep_remote_dispatch_geometry(call);
    for (int s = 0; s < ep->size; s++) {
        if (!mpix_ep_is_remote(ep, s) || call->remote[s].rx == UINT64_MAX)
            continue;
        char *base = mpix_ep_stage_at(call, call->remote[s].rx), *row, *scales, *record;
        memset(ep->remote->cursor, 0,
               (size_t)ep->placement.nlocal[ep->rank] * sizeof *ep->remote->cursor);
        for (int64_t i = 0; i < plan->recv_tokens[s]; i++) {
            mpix_ep_remote_at(&g, base, plan->recv_tokens[s], i, &row, &scales, &record);
            int n = token_rows(call, s, i, record, rows);
            if (n == 0 || call->remote[s].direct)
                continue;
            ep->rows->copy(row, g.row, ep->dst, n, call->streaming);
            if (g.scales)
                ep->rows->copy(scales, g.scales, ep->dst + ep->config.max_topk + 1, n, 0);
        }
    }
}

/* ---- combine --------------------------------------------------------------------------------- */

/*
 * Rows that lie one after the other in memory of MPIX_Ep_alloc are sent from there: in COMPACT a
 * source's rows do, if the buffer is dense. The call is complete when the network has read them, as
 * for chunks. What nobody will read beside them stays here.
 */
static int rows_lie(const mpix_ep_call *call, int peer, int64_t valid, const mpix_ep_geometry *g,
                    mpix_ep_remote_rows *own) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const mpix_ep_segment *s = &call->handle->plan->segments[peer];
    if (call->ep->config.layout != MPIX_EP_COMPACT || g->scales || g->row != g->pitch ||
        (size_t)in->x.stride != g->pitch)
        return 0;
    *own = (mpix_ep_remote_rows){.at = (const char *)in->x.data + s->row * in->x.stride};
    own->n = s->n < valid - s->row ? s->n : valid - s->row;
    own->bare = !in->row_weights && !in->slot_values;
    const mpix_ep_region *region =
        own->n > 0 ? mpix_ep_region_of(call->ep, own->at, (size_t)own->n * g->pitch) : NULL;
    own->mem = region ? region->mem : NULL;
    return own->mem != NULL;
}

static void row_pack(mpix_ep_call *call, int peer, int64_t r, int present,
                     const mpix_ep_geometry *g, const mpix_ep_remote_rows *own) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    size_t slots = ep->config.layout == MPIX_EP_COMPACT ? (size_t)call->handle->plan->width : 1;
    char *row, *scales, *record;
    mpix_ep_remote_item(call, peer, g, &row, &scales, &record);
    if (present) { /* a dropped row keeps its place; its owner leaves it out */
        if (!own)
            copy1(ep, row, (const char *)in->x.data + r * in->x.stride, g->row);
        if (g->scales)
            copy1(ep, scales, (const char *)in->x.scales + r * in->x.scale_stride, g->scales);
        if (in->row_weights)
            memcpy(record, &in->row_weights[r], sizeof(float));
        if (in->slot_values)
            memcpy(record + 4, in->slot_values + (size_t)r * slots, slots * sizeof(float));
    }
    mpix_ep_remote_packed(call, peer, g, own);
}

/* Packs on for one peer; 1: done, 0: no room, or enough for a step. */
static int peer_pack(mpix_ep_call *call, int peer, int64_t valid, const mpix_ep_geometry *g,
                     size_t *packed) {
    const mpix_ep_plan *plan = call->handle->plan;
    mpix_ep_remote_rows rows, *own = rows_lie(call, peer, valid, g, &rows) ? &rows : NULL;
    for (; call->ht.remote_segment < plan->nsegments;
         call->ht.remote_segment++, call->ht.remote_row = 0) {
        const mpix_ep_segment *s = &plan->segments[call->ht.remote_segment];
        for (; s->source == peer && call->ht.remote_row < s->n; call->ht.remote_row++) {
            if (*packed > PIECE_BYTES || !mpix_ep_remote_room(call, peer))
                return 0;
            int64_t r = s->row + call->ht.remote_row;
            row_pack(call, peer, r, r < valid, g, own);
            *packed += own ? g->record : g->item;
        }
    }
    call->ht.remote_segment = 0;
    return 1;
}

int mpix_ep_remote_combine_pack(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    if (!mpix_ep_remote_begin(call))
        return MPIX_EP_STEP_WAITING;
    mpix_ep_geometry g = mpix_ep_remote_combine_geometry(call);
    int64_t valid = mpix_ep_combine_rows(call);
    size_t packed = 0;
    for (; call->ht.remote_peer < ep->size; call->ht.remote_peer++) {
        int peer = (ep->rank + call->ht.remote_peer) %
                   ep->size; /* every rank begins with another */
        if (mpix_ep_is_remote(ep, peer) && call->remote[peer].total > 0 &&
            !peer_pack(call, peer, valid, &g, &packed))
            return packed > PIECE_BYTES ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
    }
    mpix_ep_remote_release(call);
    return MPIX_EP_STEP_COMPLETE;
}
