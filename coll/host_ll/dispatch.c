/*
 * dispatch.c - low-latency dispatch: rows go to the fixed banks of their ranks at once, and from
 * there to the caller's output.
 *
 * START    waits until the places of this epoch's bank are free at all ranks, which they are in
 *          the steady state.
 * SEND     heads and records of all batches first, so that receivers know early what comes;
 *          then one pass over the tokens, each read (or converted) once. SLOTS: own rows go to
 *          the output in this pass. The batches for proxied ranks are packed in it and leave as
 *          one message each.
 * RECEIVE  SLOTS: each source's rows are copied as they come. EXPERT: as soon as all heads are
 *          here, since a row's place depends on what all sources send. A source whose rows are
 *          copied is told so.
 *
 * Communication is one way, so what a rank finds only when batches arrive - a difference between
 * ranks, weights that are missing, a capacity that is too small for EXPERT - can't reach its peers
 * in the same call: a difference is seen by all, the rest is an error on that rank only.
 */
#include "config.h"

#include "coll/host_ll/ll.h"

enum { LL_START, LL_SEND, LL_RECEIVE };

#define PIECE_BYTES (4u << 20) /* written per step */

/* ---- sending --------------------------------------------------------------------------------- */

/* Rows of the layout that this call takes; those beyond are an error or dropped. */
static void rows_limit(mpix_ep_call *call, int64_t total) {
    const MPIX_Ep_config *c = &call->ep->config;
    int64_t capacity = call->dispatch.out.capacity_rows;
    int bounded = c->max_recv_rows > 0 && c->max_recv_rows < capacity;
    int64_t limit = bounded ? c->max_recv_rows : capacity;
    if (total > limit && c->overflow == MPIX_EP_OVERFLOW_ERROR) {
        const char *arg = bounded ? "config.max_recv_rows" : "out.capacity_rows";
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_TRUNCATE, arg,
                                          "this rank receives %lld rows, %s is %lld",
                                          (long long)total, arg, (long long)limit));
    }
    call->ll.rows = total < limit ? total : limit;
}

static void record_write(const mpix_ep_call *call, int64_t t, const mpix_ep_entry *e) {
    const mpix_ep_plan *plan = call->handle->plan;
    const mpix_ep_placement *p = &call->ep->placement;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[e->rank];
    const float *weights = call->dispatch.in.topk_weights;
    mpix_record_row_write(part->to + part->out.records_at + (size_t)e->row * part->out.record,
                          &(mpix_ep_record){(int32_t)t, plan->topk, plan->ids + t * plan->topk,
                                            weights ? weights + t * plan->topk : NULL},
                          p->owner, p->local, e->rank);
}

/* Lays the batches out and publishes heads and records. */
static void batches_begin(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    size_t row = mpix_ep_row_bytes(x, in->hidden), scales = mpix_ep_scale_bytes(x, in->hidden),
           tx = 0;
    size_t record = mpix_record_bytes(MPIX_RECORD_HOST, in->topk_weights ? MPIX_RECORD_ROW : 1,
                                      (size_t)plan->topk);
    for (int p = 0; p < ep->size; p++) {
        mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[p];
        int remote = mpix_ep_is_remote(ep, p);
        *part = (mpix_ep_ll_part){.n = -1, .total = plan->send_tokens[p]};
        part->out = mpix_ep_ll_shape_of(part->total, record, scales, row, !remote);
        part->to = remote ? ep->ll->stores[call->handle->index].tx + tx
                          : mpix_ep_ll_bank(call, p) + ep->ll->region * (size_t)ep->rank;
        tx += remote ? mpix_ep_up64(part->out.bytes) : 0;
    }
    for (int64_t t = 0; t < plan->tokens; t++)
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++)
            record_write(call, t, &plan->entries[i]);
    mpix_ep_ll_head head = {.width = (uint32_t)plan->topk,
                            .dtype = x->dtype,
                            .scale_kind = x->scale_kind,
                            .hidden = in->hidden,
                            .flags = (in->topk_weights ? MPIX_EP_LL_WEIGHTS : 0u) |
                                     (plan->tokens ? MPIX_EP_LL_TOKENS : 0u)};
    for (int i = 1; i <= ep->size; i++) {
        int p = (ep->rank + i) % ep->size;
        head.rows = (uint32_t)mpix_ep_ll_parts(call)[p].total;
        head.reply = call->handle->ll->answer[p];
        mpix_ep_ll_head_send(call, p, &head);
    }
    call->at = 0;
    call->ll.streaming = mpix_ep_ll_streams(ep, (size_t)plan->first[plan->tokens] * row);
    call->streaming = (size_t)plan->first[plan->tokens] * row > ep->stream_bytes;
}

/* Lets mapped peers write into the output, if they can. */
static void offers_send(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    size_t row = mpix_ep_row_bytes(x, call->dispatch.in.hidden),
           scales = mpix_ep_scale_bytes(x, call->dispatch.in.hidden), n = (size_t)call->ll.rows;
    mpix_ep_place px, ps = {0};
    if (mpix_ep_ll_is_expert(call) || n == 0 ||
        !mpix_ep_find(ep, x->data, (n - 1) * (size_t)x->stride + row, (uint64_t)x->stride, &px) ||
        (scales && !mpix_ep_find(ep, x->scales, (n - 1) * (size_t)x->scale_stride + scales,
                                 (uint64_t)x->scale_stride, &ps)))
        return;
    for (int p = 0; p < ep->size; p++) {
        int64_t first = (int64_t)p * ep->config.max_tokens, left = call->ll.rows - first;
        if (p == ep->rank || mpix_ep_is_remote(ep, p) || left <= 0)
            continue;
        const mpix_ep_ll_offer offer = {.rows = (uint64_t)left,
                                        .x = px.off + (uint64_t)first * px.stride,
                                        .x_stride = px.stride,
                                        .x_window = px.window,
                                        .scales = ps.off + (uint64_t)first * ps.stride,
                                        .scale_stride = ps.stride,
                                        .scale_window = ps.window};
        mpix_ep_ll_offer_send(call, &offer, p);
    }
}

/* At the start of a block: whether the peer's output is known by now. What does not
 * resolve is not used. */
static void direct_look(mpix_ep_call *call, int peer) {
    mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    const mpix_ep_ll_offer *offer = part->direct ? NULL : mpix_ep_ll_offer_seen(call, peer);
    if (offer) {
        const MPIX_Ep_rows *x = &call->dispatch.out.x;
        uint64_t most = (uint64_t)part->total < offer->rows ? (uint64_t)part->total : offer->rows;
        const mpix_ep_place px = {offer->x, offer->x_stride, offer->x_window, 1},
                            ps = {offer->scales, offer->scale_stride, offer->scale_window, 1};
        size_t row = mpix_ep_row_bytes(x, call->dispatch.in.hidden),
               scales = mpix_ep_scale_bytes(x, call->dispatch.in.hidden);
        char *to = row <= offer->x_stride
                       ? mpix_ep_resolve(call->ep, peer, &px,
                                         mpix_ep_extent(most, offer->x_stride, row))
                       : NULL;
        char *s = scales && to ? mpix_ep_resolve(call->ep, peer, &ps,
                                                 mpix_ep_extent(most, offer->scale_stride, scales))
                               : NULL;
        if (to && (s || !scales)) {
            part->direct = to;
            part->direct_scales = s;
            part->direct_stride = offer->x_stride;
            part->direct_scale_stride = offer->scale_stride;
            part->direct_rows = (int64_t)most;
        }
    }
    part->direct_block = part->direct != NULL;
}

static void token_send(mpix_ep_call *call, int64_t t, size_t row, size_t scales) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_rows *out = &call->dispatch.out.x;
    void **dst = ep->dst, **sdst = ep->dst + ep->config.max_topk + 1, *own = NULL,
         *own_scales = NULL;
    int n = 0, converts = mpix_ep_converts(call), slots = !mpix_ep_ll_is_expert(call);
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[e->rank];
        if (e->rank == ep->rank && slots) { /* its place in the output is known */
            int64_t to = ep->rank * ep->config.max_tokens + e->row;
            own = to < call->ll.rows ? (char *)out->data + to * out->stride : NULL;
            own_scales = own && scales ? (char *)out->scales + to * out->scale_stride : NULL;
            continue;
        }
        if (e->rank == ep->rank && !converts)
            continue; /* is read where the caller has it */
        if (slots && e->rank != ep->rank && e->row % MPIX_EP_LL_BLOCK == 0 &&
            !mpix_ep_is_remote(ep, e->rank))
            direct_look(call, e->rank);
        if (part->direct_block) {
            dst[n] = part->direct + (uint64_t)e->row * part->direct_stride;
            sdst[n] = part->direct_scales
                          ? part->direct_scales + (uint64_t)e->row * part->direct_scale_stride
                          : NULL;
            n += e->row < part->direct_rows; /* otherwise dropped */
            continue;
        }
        dst[n] = part->to + part->out.rows_at + (size_t)e->row * part->out.row;
        sdst[n++] = part->to + part->out.scales_at + (size_t)e->row * part->out.scales;
    }
    if (own && converts) {
        dst[n] = own;
        sdst[n++] = own_scales;
        own = NULL;
    }
    const char *x = (const char *)in->x.data + t * in->x.stride,
               *s = scales && in->x.scales ? (const char *)in->x.scales + t * in->x.scale_stride
                                           : NULL;
    if (converts && n == 1) {
        mpix_ep_token_convert(call, t, dst[0], sdst[0]);
        n = 0;
    } else if (converts && n > 1) { /* once, whatever the number of destinations */
        x = ep->converted;
        s = ep->converted + row;
        mpix_ep_token_convert(call, t, ep->converted, ep->converted + row);
    }
    if (n > 0)
        ep->rows->copy(x, row, dst, n, call->ll.streaming);
    if (n > 0 && scales)
        ep->rows->copy(s, scales, sdst, n, 0);
    if (own) /* while it is in the cache */
        ep->rows->copy(x, row, &own, 1, call->streaming);
    if (own && scales)
        ep->rows->copy(s, scales, &own_scales, 1, 0);
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++)
        mpix_ep_ll_row_sent(call, plan->entries[i].rank);
}

/* One piece of the pass; 1: all tokens are sent. */
static int tokens_send(mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    size_t row = mpix_ep_row_bytes(x, call->dispatch.in.hidden),
           scales = mpix_ep_scale_bytes(x, call->dispatch.in.hidden);
    int64_t t = call->at, end = plan->first[t] + (int64_t)(PIECE_BYTES / (row + 1)) + 16;
    for (; t < plan->tokens && plan->first[t] < end; t++)
        token_send(call, t, row, scales);
    call->at = t;
    return t == plan->tokens;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void row_take(mpix_ep_call *call, int s, int64_t i, size_t row_bytes, size_t scale_bytes) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    const mpix_ep_ll_handle *h = call->handle->ll;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
    const void *record = mpix_ep_ll_record_of(part, i);
    int width = (int)mpix_ep_ll_head_of(part)->width,
        own = s == ep->rank && !mpix_ep_converts(call), n = 0;
    const char *x = own ? (const char *)in->x.data + mpix_record_token(record) * in->x.stride
                        : part->from + part->in.rows_at + (size_t)i * part->in.row;
    const char *scales = !own ? part->from + part->in.scales_at + (size_t)i * part->in.scales
                         : in->x.scales ? (const char *)in->x.scales +
                                              mpix_record_token(record) * in->x.scale_stride
                                        : NULL;
    const int32_t *rows = mpix_ep_ll_is_expert(call) ? h->rows + (h->first[s] + i) * width : NULL;
    for (int k = 0; k < (rows ? width : 1); k++) {
        int64_t row = rows ? rows[k] : (int64_t)s * ep->config.max_tokens + i;
        if (row < 0 || row >= call->ll.rows)
            continue;
        ep->dst[n] = (char *)out->x.data + row * out->x.stride;
        ep->dst[ep->config.max_topk + 1 + n++] =
            out->x.scales ? (char *)out->x.scales + row * out->x.scale_stride : NULL;
        if (out->src_rank)
            out->src_rank[row] = s;
        mpix_record_row_read(record, width, rows ? k : -1, out, row);
    }
    if (n == 0 || (!rows && s == ep->rank) || mpix_ep_ll_row_direct(call, s, i)) /* it lies there */
        return;
    ep->rows->copy(x, row_bytes, ep->dst, n, call->streaming);
    if (scale_bytes)
        ep->rows->copy(scales, scale_bytes, ep->dst + ep->config.max_topk + 1, n, 0);
}

/* Copies what has come of one source; whether it did anything. */
static int source_take(mpix_ep_call *call, int s) {
    mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
    size_t row = mpix_ep_row_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    size_t scales = mpix_ep_scale_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    int64_t end = mpix_ep_ll_rows_seen(call, s), before = part->done,
            piece = call->kind ? INT64_MAX - before : (int64_t)(PIECE_BYTES / (row + 1)) + 16;
    end = end < before + piece ? end : before + piece;
    for (int64_t i = before; i < end && !call->kind; i++)
        row_take(call, s, i, row, scales);
    part->done = end > before ? end : before;
    /* records are read once more when all heads are here */
    if (part->done < part->n || (!call->kind && !call->handle->ll->valid))
        return part->done > before;
    mpix_ep_ll_taken(call, s);
    mpix_ep_peer_seen(call, s, 0, call->kind ? NULL : call->dispatch.out.wait_ns);
    return 1;
}

/* Places that have no row: between the sources in SLOTS, between the experts in EXPERT, where the
 * rows are zero. */
static void empties_fill(mpix_ep_call *call, int64_t row, int64_t end, int zero) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    size_t bytes = mpix_ep_row_bytes(&out->x, call->dispatch.in.hidden),
           scales = mpix_ep_scale_bytes(&out->x, call->dispatch.in.hidden);
    size_t width = mpix_ep_ll_is_expert(call) ? 1 : (size_t)call->handle->ll->width;
    end = end < call->ll.rows ? end : call->ll.rows;
    for (; row < end; row++) {
        if (zero)
            ep->rows->zero((char *)out->x.data + row * out->x.stride, bytes, call->streaming);
        if (zero && scales)
            ep->rows->zero((char *)out->x.scales + row * out->x.scale_stride, scales, 0);
        if (out->src_rank)
            out->src_rank[row] = -1;
        if (out->src_token)
            out->src_token[row] = -1;
        if (out->local_ids)
            memset(out->local_ids + (size_t)row * width, 0xff, width * sizeof(int));
        if (out->topk_weights)
            memset(out->topk_weights + (size_t)row * width, 0, width * sizeof(float));
    }
}

static void dispatch_finish(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    const mpix_ep_ll_handle *h = call->handle->ll;
    int64_t nlocal = ep->placement.nlocal[ep->rank];
    for (int s = 0; !mpix_ep_ll_is_expert(call) && s < ep->size; s++)
        empties_fill(call, (int64_t)s * ep->config.max_tokens + h->n[s],
                     ((int64_t)s + 1) * ep->config.max_tokens, 0);
    for (int64_t e = 0; mpix_ep_ll_is_expert(call) && e < nlocal; e++)
        empties_fill(call, h->offset[e] + h->recv_expert[e], h->offset[e + 1], 1);
    mpix_ep_received_fill(call, h->recv_rank, h->recv_expert, h->offset);
    if (call->streaming)
        ep->rows->fence(); /* the caller may be another thread */
}

static int receive(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_ll_handle *h = call->handle->ll;
    int all = mpix_ep_ll_heads_take(call), worked = 0;
    if (all && !call->kind && !h->valid)
        mpix_ep_ll_routing_learn(call);
    if (all && !call->kind && mpix_ep_ll_is_expert(call) && !call->ll.limited) {
        rows_limit(call, h->total);
        call->ll.limited = 1;
        /* A row is written once for each of its experts here. */
        call->streaming = (size_t)call->ll.rows *
                              mpix_ep_row_bytes(&call->dispatch.out.x, call->dispatch.in.hidden) >
                          ep->stream_bytes;
    }
    for (int i = 0; i < ep->size; i++) { /* own rows first */
        int s = (ep->rank + i) % ep->size;
        if (!call->seen[s] && mpix_ep_ll_parts(call)[s].n >= 0 &&
            (all || call->kind || !mpix_ep_ll_is_expert(call)))
            worked |= source_take(call, s);
    }
    if (call->nseen < ep->size)
        return worked ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
    if (!call->kind)
        dispatch_finish(call);
    return MPIX_EP_STEP_COMPLETE;
}

int mpix_ep_ll_dispatch_here(const mpix_ep_call *call, int peer) {
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    if (call->step != mpix_ep_ll_dispatch_step || call->state != LL_RECEIVE)
        return 0;
    return part->n >= 0 && mpix_ep_ll_rows_seen(call, peer) >= part->n;
}

int mpix_ep_ll_dispatch_step(mpix_ep_call *call, int *banks_open) {
    mpix_ep *ep = call->ep;
    (void)banks_open;
    switch (call->state) {
    case LL_START:
        if (!mpix_ep_ll_start(call))
            return MPIX_EP_STEP_WAITING;
        if (!call->kind && !call->handle->plan)
            mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "handle",
                                              "the handle has no routing: its last route failed"));
        if (!call->kind && !mpix_ep_ll_is_expert(call))
            rows_limit(call, (int64_t)ep->size * ep->config.max_tokens);
        if (call->kind) {
            mpix_ep_ll_fail_send(call);
        } else {
            offers_send(call);
            batches_begin(call);
        }
        call->state = LL_SEND;
        /* fall through */
    case LL_SEND:
        if (!call->kind && !tokens_send(call))
            return MPIX_EP_STEP_WORKED;
        if (!call->kind)
            mpix_ep_ll_batches_end(call);
        mpix_ep_peers_reset(call);
        call->state = LL_RECEIVE;
        /* fall through */
    default: return receive(call);
    }
}
