/*
 * dispatch.c - dispatch between mapped ranks: every row is read once and written straight to
 * its final places.
 *
 * START   when the handle's routing is there: decides how many rows fit, takes a staging bank if
 *         the output is not mapped by peers or if ids, weights or token numbers are wanted, and
 *         grants every source the right to write (READY).
 * READY   waits for every destination's grant. Only then is anything written: an error of this
 *         rank (or a difference between ranks) is thus known before the first signal, so every
 *         rank learns of it.
 * SEND    one pass over the tokens; in pieces, so that other calls of the context go on as well.
 *         Before it, rows for proxied peers are packed and posted (host/remote.c), so that the
 *         network works meanwhile.
 * SIGNAL  fence, then one word per destination. Words of a handle's dispatches are written in the
 *         order of their epochs.
 * WAIT    for every source's word; then copies what was staged, and fills what this
 *         rank knows itself.
 */
#include "config.h"

#include "coll/host/forward.h"

#include <stdlib.h>

enum {
    DISPATCH_START,
    DISPATCH_READY,
    DISPATCH_TURN,
    DISPATCH_PACK,
    DISPATCH_SEND,
    DISPATCH_SERVE,
    DISPATCH_WAIT
};

#define PIECE_BYTES (4u << 20) /* written per step */

size_t mpix_ep_record_bytes(const mpix_ep_call *call) {
    size_t width = (size_t)call->handle->plan->width;
    return call->ep->config.layout == MPIX_EP_COMPACT
               ? (mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_ROW, width) + 7) & ~(size_t)7
               : mpix_record_bytes(MPIX_RECORD_HOST, 1, 1);
}

static int wants_records(const MPIX_Ep_dispatch_out *out) {
    return out->local_ids || out->src_token || out->topk_weights;
}

/* Rows that this rank takes: what it receives, cut to what fits. With overflow = error what does
 * not fit is an error. */
static int64_t rows_taken(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    int64_t total = call->handle->plan->recv_total, capacity = call->dispatch.out.capacity_rows;
    if (ep->config.overflow == MPIX_EP_OVERFLOW_ERROR && total > capacity)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_TRUNCATE, "out.capacity_rows",
                                          "this rank receives %lld rows, out.capacity_rows is %lld",
                                          (long long)total, (long long)capacity));
    if (ep->config.max_recv_rows > 0 && capacity > ep->config.max_recv_rows)
        capacity = ep->config.max_recv_rows;
    return total < capacity ? total : capacity;
}

/* Lays out the staging bank and fills the offer. 0: no bank yet. */
static int offer_make(mpix_ep_call *call, mpix_ep_offer *offer) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    size_t row = mpix_ep_row_bytes(&out->x, in->hidden),
           scales = mpix_ep_scale_bytes(&out->x, in->hidden), record = mpix_ep_record_bytes(call);
    call->ht.two_hops = call->handle->plan->two_hops;
    int64_t rows = rows_taken(call);
    size_t n = (size_t)rows, stage = 0;
    if (call->kind)
        return 1;
    *offer = (mpix_ep_offer){.dtype = out->x.dtype,
                             .scale_kind = out->x.scale_kind,
                             .hidden = (uint64_t)in->hidden,
                             .rows = n};
    offer->flags = out->topk_weights ? MPIX_EP_OFFER_WANTS_WEIGHTS : 0;
    if (n == 0)
        return 1;
    mpix_ep_place *x = &offer->place[MPIX_EP_PLACE_X], *s = &offer->place[MPIX_EP_PLACE_SCALES];
    size_t row_pitch = row % 64 ? mpix_ep_up16(row) : row, scale_pitch = mpix_ep_up16(scales);
    int others = mpix_ep_mapped_rows(call) > 0;
    if (!mpix_ep_find(ep, out->x.data, (n - 1) * (size_t)out->x.stride + row,
                      (uint64_t)out->x.stride, x) &&
        others) {
        call->ht.x_stage = stage;
        stage += n * row_pitch;
    }
    if (scales &&
        !mpix_ep_find(ep, out->x.scales, (n - 1) * (size_t)out->x.scale_stride + scales,
                      (uint64_t)out->x.scale_stride, s) &&
        others) {
        call->ht.s_stage = stage;
        stage += n * scale_pitch;
    }
    if (wants_records(out)) {
        call->ht.records_stage = stage = mpix_ep_up16(stage);
        stage += n * record;
    }
    if (ep->remote && !call->ht.two_hops) {
        mpix_ep_geometry g = mpix_ep_remote_dispatch_geometry(call);
        stage = mpix_ep_remote_regions(call, &g, call->handle->plan->recv_tokens, stage);
        mpix_ep_remote_dispatch_grant(call, &g, n);
    }
    if (stage > 0 && !mpix_ep_bank_take(call, stage))
        return 0;
    if (call->kind)
        return 1;
    if (call->ht.x_stage != SIZE_MAX)
        *x = mpix_ep_stage_place(call, call->ht.x_stage, row_pitch);
    if (call->ht.s_stage != SIZE_MAX)
        *s = mpix_ep_stage_place(call, call->ht.s_stage, scale_pitch);
    if (call->ht.records_stage != SIZE_MAX)
        offer->place[MPIX_EP_PLACE_RECORDS] = mpix_ep_stage_place(call, call->ht.records_stage,
                                                                  record);
    return 1;
}

static int streams(const mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    return (size_t)plan->first[plan->tokens] *
               mpix_ep_row_bytes(&call->dispatch.out.x, call->dispatch.in.hidden) >
           call->ep->stream_peers;
}

/* All grants are here: what can still go wrong on this rank. */
static void dispatch_check(mpix_ep_call *call) {
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    mpix_ep *ep = call->ep;
    if (!call->kind || call->kind == MPIX_ERRK_REMOTE)
        mpix_ep_offers_compare(call, in->hidden, &call->dispatch.out.x,
                               mpix_ep_converts(call) ? "out.x" : "in.x", 0);
    int go = !call->kind;
    for (int peer = 0; peer < ep->size && !call->kind; peer++)
        if ((mpix_ep_my_offer(call, peer)->flags & MPIX_EP_OFFER_WANTS_WEIGHTS) &&
            !in->topk_weights && call->handle->plan->tokens * call->handle->plan->topk > 0)
            mpix_ep_call_fail(
                call,
                mpix_fail(
                    MPIX_ERRK_ARG, "in.topk_weights",
                    "in.topk_weights is NULL, but rank %d asks for weights (out.topk_weights)",
                    peer));
    if (call->ht.two_hops) {
        call->streaming = streams(call);
        mpix_ep_forward_begin(call, go);
    }
}

/* Own rows need no mapping: they go to the caller's buffer even where peers' rows are staged. */
void mpix_ep_dispatch_targets(mpix_ep_call *call) {
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    mpix_ep_targets_fill(call, mpix_ep_row_bytes(&out->x, in->hidden),
                         mpix_ep_scale_bytes(&out->x, in->hidden), mpix_ep_record_bytes(call), 0);
    mpix_ep_target *self = &call->ep->ht->targets[call->ep->rank];
    self->x = out->x.data;
    self->x_stride = (uint64_t)out->x.stride;
    self->scales = out->x.scales;
    self->scale_stride = (uint64_t)out->x.scale_stride;
}

void mpix_ep_record_write(const mpix_ep_call *call, const mpix_ep_record *record, int rank,
                          int choice, char *to) {
    const mpix_ep_placement *p = &call->ep->placement;
    if (call->ep->config.layout == MPIX_EP_EXPERT)
        mpix_record_choice_write(to, record, choice);
    else
        mpix_record_row_write(to, record, p->owner, p->local, rank);
}

/* Whether rows change their type on the way. */
int mpix_ep_converts(const mpix_ep_call *call) {
    const MPIX_Ep_rows *in = &call->dispatch.in.x, *out = &call->dispatch.out.x;
    return in->dtype != out->dtype || in->scale_kind != out->scale_kind;
}

/* A sum of one term rounds as a conversion does. */
void mpix_ep_token_convert(const mpix_ep_call *call, int64_t t, void *row, void *scales) {
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_rows *out = &call->dispatch.out.x;
    const mpix_rows_ops *rows = call->ep->rows;
    const char *x = (const char *)in->x.data + t * in->x.stride;
    if (out->scale_kind) {
        rows->quantize(x, in->x.dtype, row, out->dtype, scales, out->scale_kind,
                       (size_t)in->hidden);
        return;
    }
    mpix_row_term term = {.x = x};
    mpix_row_sum sum = {.y = row, .nterms = 1, .terms = &term};
    rows->sum(&sum, in->x.dtype, MPIX_EP_NO_SCALES, out->dtype, (size_t)in->hidden, 0);
}

static void token_send(mpix_ep_call *call, int64_t t, size_t row, size_t scales) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    void **dst = ep->dst, **sdst = ep->dst + ep->config.max_topk + 1;
    const mpix_ep_record record = {(int32_t)t, plan->topk, plan->ids + t * plan->topk,
                                   in->topk_weights ? in->topk_weights + t * plan->topk : NULL};
    const mpix_ep_target *targets = ep->ht->targets;
    int n = 0;
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        const mpix_ep_target *to = &targets[e->rank];
        if (e->row >= to->rows || mpix_ep_is_remote(ep, e->rank))
            continue; /* dropped, or sent in a packed batch */
        dst[n] = to->x + (uint64_t)e->row * to->x_stride;
        if (scales)
            sdst[n] = to->scales + (uint64_t)e->row * to->scale_stride;
        n++;
        if (to->records)
            mpix_ep_record_write(call, &record, e->rank, e->choice,
                                 to->records + (size_t)e->row * mpix_ep_record_bytes(call));
    }
    if (n == 0)
        return;
    const char *x = (const char *)in->x.data + t * in->x.stride,
               *s = scales && in->x.scales ? (const char *)in->x.scales + t * in->x.scale_stride
                                           : NULL;
    if (mpix_ep_converts(call)) { /* once, whatever the number of destinations */
        x = ep->converted;
        s = ep->converted + row;
        mpix_ep_token_convert(call, t, ep->converted, ep->converted + row);
    }
    ep->rows->copy(x, row, dst, n, call->streaming);
    if (scales)
        ep->rows->copy(s, scales, sdst, n, 0);
}

/* One piece of the pass; 1: all tokens are sent. */
static int dispatch_send(mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    size_t row = mpix_ep_row_bytes(&out->x, in->hidden),
           scales = mpix_ep_scale_bytes(&out->x, in->hidden);
    int64_t entries = (int64_t)(PIECE_BYTES / (row + 1)) + 16;
    mpix_ep_dispatch_targets(call);
    if (call->kind)
        return 1;
    call->streaming = streams(call);
    int64_t t = call->at;
    for (int64_t end = plan->first[t] + entries; t < plan->tokens && plan->first[t] < end; t++)
        token_send(call, t, row, scales);
    call->at = t;
    return t == plan->tokens;
}

/* ---- the receiving side ---------------------------------------------------------------------- */

static void rows_copy(mpix_ep *ep, char *to, size_t to_stride, const char *from, size_t from_stride,
                      size_t bytes, int64_t n, int streaming) {
    if (to_stride == bytes && from_stride == bytes) {
        void *dst = to;
        ep->rows->copy(from, bytes * (size_t)n, &dst, 1, streaming);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        void *dst = to + (size_t)i * to_stride;
        ep->rows->copy(from + (size_t)i * from_stride, bytes, &dst, 1, streaming);
    }
}

static void records_read(mpix_ep_call *call, int64_t row, int64_t n, const char *from) {
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    size_t bytes = mpix_ep_record_bytes(call);
    int width = call->handle->plan->width, expert = call->ep->config.layout == MPIX_EP_EXPERT;
    for (int64_t i = row; i < row + n; i++) {
        if (expert)
            mpix_record_choice_read(from + (size_t)i * bytes, out, i);
        else
            mpix_record_row_read(from + (size_t)i * bytes, width, -1, out, i);
    }
}

static void segment_take(mpix_ep_call *call, const mpix_ep_segment *seg, int64_t rows) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    const mpix_ep_offer *own = mpix_ep_my_offer(call, ep->rank);
    size_t bytes = mpix_ep_row_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    size_t scales = mpix_ep_scale_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    int64_t row = seg->row, n = seg->n < rows - row ? seg->n : rows - row;
    if (n <= 0)
        return;
    /* What this rank forwarded to itself went to the caller's buffer at once. */
    int staged = seg->source != ep->rank &&
                 !(call->ht.two_hops && mpix_ep_forward_mine(call, seg->source));
    if (staged && call->ht.x_stage != SIZE_MAX) {
        size_t pitch = own->place[MPIX_EP_PLACE_X].stride;
        rows_copy(ep, (char *)out->x.data + row * out->x.stride, (size_t)out->x.stride,
                  mpix_ep_stage_at(call, call->ht.x_stage) + (size_t)row * pitch, pitch, bytes, n,
                  call->streaming);
    }
    if (staged && call->ht.s_stage != SIZE_MAX) {
        size_t pitch = own->place[MPIX_EP_PLACE_SCALES].stride;
        rows_copy(ep, (char *)out->x.scales + row * out->x.scale_stride,
                  (size_t)out->x.scale_stride,
                  mpix_ep_stage_at(call, call->ht.s_stage) + (size_t)row * pitch, pitch, scales, n,
                  0);
    }
    for (int64_t i = row; out->src_rank && i < row + n; i++)
        out->src_rank[i] = seg->source;
    if (call->ht.records_stage != SIZE_MAX)
        records_read(call, row, n, mpix_ep_stage_at(call, call->ht.records_stage));
}

static void padding_fill(mpix_ep_call *call, int64_t row, int64_t end) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    size_t bytes = mpix_ep_row_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    size_t scales = mpix_ep_scale_bytes(&call->dispatch.out.x, call->dispatch.in.hidden);
    for (; row < end; row++) {
        ep->rows->zero((char *)out->x.data + row * out->x.stride, bytes, call->streaming);
        if (scales)
            ep->rows->zero((char *)out->x.scales + row * out->x.scale_stride, scales, 0);
        if (out->src_rank)
            out->src_rank[row] = -1;
        if (out->src_token)
            out->src_token[row] = -1;
        if (out->topk_weights)
            out->topk_weights[row] = 0;
    }
}

void mpix_ep_received_fill(mpix_ep_call *call, const int64_t *recv_rank, const int64_t *recv_expert,
                           const int64_t *offset) {
    const mpix_ep_placement *p = &call->ep->placement;
    const MPIX_Ep_dispatch_out *out = &call->dispatch.out;
    int64_t nlocal = p->nlocal[p->rank];
    for (int64_t e = 0; out->cumulative && e < nlocal; e++)
        out->cumulative[e] += recv_expert[e];
    for (int r = 0; out->recv_per_rank && r < p->ranks; r++)
        out->recv_per_rank[r] = recv_rank[r];
    for (int64_t e = 0; out->recv_per_expert && e < nlocal; e++)
        out->recv_per_expert[e] = recv_expert[e];
    for (int64_t e = 0; out->expert_offset && e <= nlocal; e++)
        out->expert_offset[e] = offset[e];
}

static void dispatch_finish(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    int64_t rows = (int64_t)mpix_ep_my_offer(call, ep->rank)->rows,
            nlocal = ep->placement.nlocal[ep->rank];
    for (int64_t i = 0; i < plan->nsegments; i++)
        if (call->ht.two_hops || !mpix_ep_is_remote(ep, plan->segments[i].source))
            segment_take(call, &plan->segments[i], rows);
    if (ep->remote && !call->ht.two_hops)
        mpix_ep_remote_dispatch_take(call, rows);
    for (int64_t e = 0; ep->config.layout == MPIX_EP_EXPERT && e < nlocal; e++) {
        int64_t end = plan->offset[e + 1] < rows ? plan->offset[e + 1] : rows;
        padding_fill(call, plan->offset[e] + plan->recv_expert[e], end);
    }
    mpix_ep_received_fill(call, plan->recv_rank, plan->recv_expert, plan->offset);
    if (call->streaming)
        ep->rows->fence(); /* the caller may be another thread */
}

int mpix_ep_dispatch_step(mpix_ep_call *call, int *banks_open) {
    struct mpix_ep_handle *handle = call->handle;
    int did = MPIX_EP_STEP_WAITING;
    switch (call->state) {
    case DISPATCH_START:
        if (!mpix_ep_offer_start(call, banks_open, offer_make))
            return MPIX_EP_STEP_WAITING;
        call->state = DISPATCH_READY;
        /* fall through */
    case DISPATCH_READY:
        if (!mpix_ep_offers_seen(call, NULL))
            return MPIX_EP_STEP_WAITING;
        call->waiting = 0;
        dispatch_check(call);
        call->state = DISPATCH_TURN;
        /* fall through */
    case DISPATCH_TURN:
        if (call->ht.two_hops)
            did = mpix_ep_forward_dispatch_serve(call);
        if (handle->signalled[MPIX_EP_DISPATCH] + 1 != call->epoch)
            return did;
        call->state = DISPATCH_PACK;
        /* fall through */
    case DISPATCH_PACK:
        if (call->ht.two_hops) {
            int served = mpix_ep_forward_dispatch_serve(call);
            did = mpix_ep_forward_dispatch_pack(call);
            if (did != MPIX_EP_STEP_COMPLETE) {
                mpix_ep_forward_mark(call);
                return served == MPIX_EP_STEP_WORKED ? served : did;
            }
        } else if (call->ep->remote && !call->kind) {
            did = mpix_ep_remote_dispatch_pack(call);
            if (did != MPIX_EP_STEP_COMPLETE)
                return did;
        }
        mpix_ep_signal(call, MPIX_EP_REMOTE);
        call->at = 0;
        call->state = DISPATCH_SEND;
        /* fall through */
    case DISPATCH_SEND:
        if (!call->kind && !dispatch_send(call)) {
            if (call->ht.two_hops)
                mpix_ep_forward_dispatch_serve(call);
            return MPIX_EP_STEP_WORKED;
        }
        call->state = DISPATCH_SERVE;
        /* fall through */
    case DISPATCH_SERVE:
        if (call->ht.two_hops) {
            did = mpix_ep_forward_dispatch_serve(call);
            if (!mpix_ep_forward_served(call)) {
                mpix_ep_forward_mark(call);
                return did;
            }
        }
        call->ep->rows->fence();
        mpix_ep_signal(call, MPIX_EP_MAPPED);
        handle->signalled[MPIX_EP_DISPATCH] = call->epoch;
        mpix_ep_peers_reset(call);
        call->state = DISPATCH_WAIT;
        /* fall through */
    default:
        if (!mpix_ep_signals_seen(call, MPIX_EP_ALL,
                                  call->kind ? NULL : call->dispatch.out.wait_ns))
            return MPIX_EP_STEP_WAITING;
        if (!call->kind)
            dispatch_finish(call);
        return MPIX_EP_STEP_COMPLETE;
    }
}
