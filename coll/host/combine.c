/*
 * combine.c - combine between mapped ranks: each token's owner reads the experts' rows where they
 * lie and sums them.
 *
 * START   copies to the staging bank what peers cannot map (rows of other sources, weights, slot
 *         values) and tells every token owner where the rows lie (ROWS).
 * READY   waits for everybody's ROWS; differences between ranks are found before
 *         anything is computed.
 * SUM     one pass over this rank's tokens, in pieces. The order of a sum is fixed by the plan:
 *         ranks ascending, choices ascending. Before it, rows for proxied token owners are packed
 *         and posted, and their rows for this rank are awaited (host/remote.c): between proxied
 *         ranks the experts' side pushes what the owner would have read, so the sums are the same.
 * SIGNAL  READ-DONE to every mapped rank: its rows are not needed any more.
 * WAIT    for every mapped rank's READ-DONE: nobody overwrites rows that are being read.
 */
#include "config.h"

#include "coll/host/forward.h"

#include <stdlib.h>

enum {
    COMBINE_START,
    COMBINE_READY,
    COMBINE_TURN,
    COMBINE_PACK,
    COMBINE_ARRIVE,
    COMBINE_SUM,
    COMBINE_WAIT
};

#define PIECE_BYTES (4u << 20) /* read per step */

size_t mpix_ep_slot_bytes(const mpix_ep_call *call) {
    return call->ep->config.layout == MPIX_EP_COMPACT
               ? sizeof(float) * (size_t)call->handle->plan->width
               : sizeof(float);
}

/* Rows that the last dispatch left in the caller's buffer. */
int64_t mpix_ep_combine_rows(const mpix_ep_call *call) {
    const mpix_ep *ep = call->ep;
    int64_t rows = call->handle->plan->recv_total;
    if (ep->config.overflow == MPIX_EP_OVERFLOW_DROP) {
        if (call->combine.capacity >= 0 && call->combine.capacity < rows)
            rows = call->combine.capacity;
        if (ep->config.max_recv_rows > 0 && ep->config.max_recv_rows < rows)
            rows = ep->config.max_recv_rows;
    }
    return rows;
}

static int rows_check(mpix_ep_call *call, int64_t rows) {
    const MPIX_Ep_rows *x = &call->combine.in.x;
    if (rows > 0 && !x->data)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "in.x.data",
                                          "in.x.data is NULL, dispatch gave this rank %lld rows",
                                          (long long)rows));
    else if (rows > 0 && x->scale_kind && !x->scales)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "in.x.scales",
                                          "in.x.scales is NULL, dispatch gave this rank %lld rows",
                                          (long long)rows));
    return !call->kind;
}

/* Two hops, if the routing takes them; a row of partial sums needs its room. With two_hops=auto one
 * hop is taken if they do not fit. */
static int hops_check(mpix_ep_call *call) {
    const mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    int fits = ep->forward && (int64_t)mpix_dtype_size(mpix_ep_forward_wire(call)) <=
                                  ep->config.max_row_bytes / in->hidden;
    call->ht.two_hops = call->handle->plan->two_hops && fits;
    if (call->handle->plan->two_hops && !fits && ep->params.two_hops == MPIX_HOPS_ON)
        mpix_ep_call_fail(call,
                          mpix_fail(MPIX_ERRK_ARG, "in.wire",
                                    "two_hops=on: a row of %lld elements of %s, in which partial "
                                    "sums travel, exceeds config.max_row_bytes = %lld",
                                    (long long)in->hidden,
                                    mpix_dtype_name(mpix_ep_forward_wire(call)),
                                    (long long)ep->config.max_row_bytes));
    return !call->kind;
}

/* Copies the rows of other sources into the bank. */
static void stage_rows(mpix_ep_call *call, size_t stage, const char *from, int64_t stride,
                       size_t bytes, size_t pitch, int64_t rows) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    int streaming = (size_t)rows * bytes > ep->stream_peers;
    char *to = mpix_ep_stage_at(call, stage);
    for (int64_t i = 0; i < plan->nsegments; i++) {
        const mpix_ep_segment *s = &plan->segments[i];
        for (int64_t r = s->row;
             s->source != ep->rank && (call->ht.two_hops || !mpix_ep_is_remote(ep, s->source)) &&
             r < s->row + s->n && r < rows;
             r++) {
            void *dst = to + (size_t)r * pitch;
            ep->rows->copy(from + r * stride, bytes, &dst, 1, streaming);
        }
    }
    ep->rows->fence();
}

/* Stages what is not mapped and fills the offer. 0: no bank yet. */
static int offer_make(mpix_ep_call *call, mpix_ep_offer *offer) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const mpix_ep_plan *plan = call->handle->plan;
    size_t row = mpix_ep_row_bytes(&in->x, in->hidden),
           scales = mpix_ep_scale_bytes(&in->x, in->hidden), stage = 0;
    int64_t rows = mpix_ep_combine_rows(call);
    size_t n = (size_t)rows;
    if (!rows_check(call, rows) || !hops_check(call))
        return 1;
    *offer = (mpix_ep_offer){.dtype = in->x.dtype,
                             .scale_kind = in->x.scale_kind,
                             .hidden = (uint64_t)in->hidden,
                             .rows = n};
    offer->wire = call->ht.two_hops ? mpix_ep_forward_wire(call) : 0;
    offer->flags = (call->combine.out.slot_values ? MPIX_EP_OFFER_WANTS_SLOTS : 0u) |
                   (in->row_weights ? MPIX_EP_OFFER_HAS_WEIGHTS : 0u) |
                   (in->slot_values ? MPIX_EP_OFFER_HAS_SLOTS : 0u);
    mpix_ep_place *place = offer->place;
    size_t row_pitch = row % 64 ? mpix_ep_up16(row) : row, scale_pitch = mpix_ep_up16(scales),
           slot = mpix_ep_slot_bytes(call);
    int others = n > 0 && mpix_ep_mapped_rows(call) > 0;
    if (others && !mpix_ep_find(ep, in->x.data, (n - 1) * (size_t)in->x.stride + row,
                                (uint64_t)in->x.stride, &place[MPIX_EP_PLACE_X])) {
        call->ht.x_stage = stage;
        stage += n * row_pitch;
    }
    if (others && scales &&
        !mpix_ep_find(ep, in->x.scales, (n - 1) * (size_t)in->x.scale_stride + scales,
                      (uint64_t)in->x.scale_stride, &place[MPIX_EP_PLACE_SCALES])) {
        call->ht.s_stage = stage;
        stage += n * scale_pitch;
    }
    if (others && in->row_weights &&
        !mpix_ep_find(ep, in->row_weights, n * sizeof(float), sizeof(float),
                      &place[MPIX_EP_PLACE_RECORDS])) {
        call->ht.records_stage = stage = mpix_ep_up16(stage);
        stage += n * sizeof(float);
    }
    if (others && in->slot_values &&
        !mpix_ep_find(ep, in->slot_values, n * slot, slot, &place[MPIX_EP_PLACE_SLOTS])) {
        call->ht.slot_stage = stage = mpix_ep_up16(stage);
        stage += n * slot;
    }
    if (call->ht.two_hops) {
        stage = mpix_ep_forward_sum_regions(call, stage);
    } else if (ep->remote) {
        mpix_ep_geometry g = mpix_ep_remote_combine_geometry(call);
        stage = mpix_ep_remote_regions(call, &g, plan->send_rows, stage);
    }
    if (stage > 0 && !mpix_ep_bank_take(call, stage))
        return 0;
    if (call->kind)
        return 1;
    if (call->ht.x_stage != SIZE_MAX) {
        place[MPIX_EP_PLACE_X] = mpix_ep_stage_place(call, call->ht.x_stage, row_pitch);
        stage_rows(call, call->ht.x_stage, in->x.data, in->x.stride, row, row_pitch, rows);
    }
    if (call->ht.s_stage != SIZE_MAX) {
        place[MPIX_EP_PLACE_SCALES] = mpix_ep_stage_place(call, call->ht.s_stage, scale_pitch);
        stage_rows(call, call->ht.s_stage, in->x.scales, in->x.scale_stride, scales, scale_pitch,
                   rows);
    }
    if (call->ht.records_stage != SIZE_MAX) {
        place[MPIX_EP_PLACE_RECORDS] = mpix_ep_stage_place(call, call->ht.records_stage,
                                                           sizeof(float));
        memcpy(mpix_ep_stage_at(call, call->ht.records_stage), in->row_weights, n * sizeof(float));
    }
    if (call->ht.slot_stage != SIZE_MAX) {
        place[MPIX_EP_PLACE_SLOTS] = mpix_ep_stage_place(call, call->ht.slot_stage, slot);
        memcpy(mpix_ep_stage_at(call, call->ht.slot_stage), in->slot_values, n * slot);
    }
    return 1;
}

static void combine_check(mpix_ep_call *call) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    mpix_ep *ep = call->ep;
    if (!call->kind || call->kind == MPIX_ERRK_REMOTE)
        mpix_ep_offers_compare(call, in->hidden, &in->x, "in.x",
                               call->ht.two_hops ? mpix_ep_forward_wire(call) : 0);
    int go = !call->kind;
    for (int peer = 0; peer < ep->size; peer++) {
        const mpix_ep_offer *o = mpix_ep_my_offer(call, peer);
        if (mpix_ep_is_remote(ep, peer)) {
            call->remote[peer].flags = o->flags;
            call->remote[peer].rows = (int64_t)o->rows;
        }
        if (!call->kind && o->rows > 0 && call->combine.out.slot_values &&
            !(o->flags & MPIX_EP_OFFER_HAS_SLOTS))
            mpix_ep_call_fail(
                call,
                mpix_fail(MPIX_ERRK_ARG, "out.slot_values",
                          "out.slot_values is wanted, but rank %d gave no in.slot_values", peer));
    }
    if (call->ht.two_hops)
        mpix_ep_forward_begin(call, go);
}

/* Own rows are read where the caller has them. */
void mpix_ep_combine_targets(mpix_ep_call *call) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    mpix_ep_targets_fill(call, mpix_ep_row_bytes(&in->x, in->hidden),
                         mpix_ep_scale_bytes(&in->x, in->hidden), sizeof(float),
                         mpix_ep_slot_bytes(call));
    mpix_ep_target *self = &call->ep->ht->targets[call->ep->rank];
    self->x = in->x.data;
    self->x_stride = (uint64_t)in->x.stride;
    self->scales = in->x.scales;
    self->scale_stride = (uint64_t)in->x.scale_stride;
    self->records = (char *)in->row_weights;
    self->slots = (char *)in->slot_values;
}

static const void *bias_row(const MPIX_Ep_combine_in *in, int i, int64_t t) {
    return i < in->num_bias ? (const char *)in->bias[i].data + t * in->bias[i].stride : NULL;
}

/* The places of an entry's item in the batch that a proxied rank sent. */
static void remote_places(mpix_ep_call *call, const mpix_ep_entry *e, char **row, char **scales,
                          char **record) {
    mpix_ep_geometry g = mpix_ep_remote_combine_geometry(call);
    char *base = mpix_ep_stage_at(call, call->remote[e->rank].rx);
    mpix_ep_remote_at(&g, base, call->handle->plan->send_rows[e->rank], e->item, row, scales,
                      record);
}

static void remote_term(mpix_ep_call *call, const mpix_ep_entry *e, mpix_row_term *term) {
    char *row, *scales, *record;
    remote_places(call, e, &row, &scales, &record);
    term->x = row;
    term->scales = call->combine.in.x.scale_kind ? scales : NULL;
    if (call->remote[e->rank].flags & MPIX_EP_OFFER_HAS_WEIGHTS)
        memcpy(&term->w[term->nw++], record, sizeof(float));
}

static void token_sum(mpix_ep_call *call, int64_t t) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const MPIX_Ep_combine_out *out = &call->combine.out;
    const mpix_ep_target *targets = ep->ht->targets;
    mpix_row_sum sum = {.y = (char *)out->y.data + t * out->y.stride,
                        .bias = {bias_row(in, 0, t), bias_row(in, 1, t)},
                        .terms = ep->terms};
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        const mpix_ep_target *from = &targets[e->rank];
        mpix_row_term *term = &ep->terms[sum.nterms];
        if (e->row >= from->rows)
            continue; /* dropped */
        sum.nterms++;
        term->group = e->rank;
        term->nw = 0;
        if (mpix_ep_is_remote(ep, e->rank)) {
            remote_term(call, e, term);
        } else {
            term->x = from->x + (uint64_t)e->row * from->x_stride;
            term->scales = from->scales ? from->scales + (uint64_t)e->row * from->scale_stride
                                        : NULL;
            if (from->records)
                term->w[term->nw++] = ((const float *)from->records)[e->row];
        }
        if (in->topk_weights)
            term->w[term->nw++] = in->topk_weights[t * plan->topk + e->choice];
    }
    ep->rows->sum(&sum, in->x.dtype, in->x.scale_kind, out->y.dtype, (size_t)in->hidden,
                  call->streaming);
}

/* The values that the experts' ranks set for each choice of the token. */
static void token_slots(mpix_ep_call *call, int64_t t) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    int compact = ep->config.layout == MPIX_EP_COMPACT;
    float *to = call->combine.out.slot_values + t * plan->topk;
    memset(to, 0, (size_t)plan->topk * sizeof *to);
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        const mpix_ep_target *from = &ep->ht->targets[e->rank];
        if (e->row >= from->rows || (call->ht.two_hops && mpix_ep_is_remote(ep, e->rank)))
            continue; /* dropped, or with the host's sum */
        const float *values;
        if (mpix_ep_is_remote(ep, e->rank)) {
            char *row, *scales, *record;
            remote_places(call, e, &row, &scales, &record);
            values = (const float *)record + 1;
        } else {
            values = (const float *)(from->slots + (size_t)e->row * mpix_ep_slot_bytes(call));
        }
        if (!compact)
            to[e->choice] = values[0];
        for (int k = 0; compact && k < plan->topk; k++) {
            int32_t id = plan->ids[t * plan->topk + k];
            if (id >= 0 && ep->placement.owner[id] == e->rank)
                to[k] = values[k];
        }
    }
}

/* One piece of the pass; 1: all tokens are summed. */
static int combine_sum(mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const MPIX_Ep_combine_out *out = &call->combine.out;
    size_t row = mpix_ep_row_bytes(&in->x, in->hidden), y = mpix_ep_row_bytes(&out->y, in->hidden);
    mpix_ep_combine_targets(call);
    if (call->kind)
        return 1;
    call->streaming = (size_t)plan->tokens * y > call->ep->stream_bytes;
    int64_t t = call->at, end = t + (int64_t)(PIECE_BYTES / (row + 1)) / 2 + 16;
    for (; t < plan->tokens && t < end; t++) {
        if (call->ht.two_hops && out->slot_values)
            token_slots(call, t);
        if (call->ht.two_hops) {
            mpix_ep_forward_token_sum(call, t);
            continue;
        }
        token_sum(call, t);
        if (out->slot_values)
            token_slots(call, t);
    }
    call->at = t;
    return t == plan->tokens;
}

int mpix_ep_combine_step(mpix_ep_call *call, int *banks_open) {
    struct mpix_ep_handle *handle = call->handle;
    int did = MPIX_EP_STEP_WAITING;
    switch (call->state) {
    case COMBINE_START:
        if (!mpix_ep_offer_start(call, banks_open, offer_make))
            return MPIX_EP_STEP_WAITING;
        call->state = COMBINE_READY;
        /* fall through */
    case COMBINE_READY:
        if (!mpix_ep_offers_seen(call, call->kind ? NULL : call->combine.out.wait_ns))
            return MPIX_EP_STEP_WAITING;
        call->waiting = 0;
        combine_check(call);
        call->state = COMBINE_TURN;
        /* fall through */
    case COMBINE_TURN:
        if (call->ht.two_hops)
            did = mpix_ep_forward_combine_serve(call);
        if (handle->signalled[MPIX_EP_COMBINE] + 1 != call->epoch)
            return did;
        call->state = COMBINE_PACK;
        /* fall through */
    case COMBINE_PACK:
        if (call->ht.two_hops) {
            int served = mpix_ep_forward_combine_serve(call);
            did = mpix_ep_forward_combine_pack(call);
            if (did != MPIX_EP_STEP_COMPLETE || !mpix_ep_forward_served(call)) {
                mpix_ep_forward_mark(call);
                return served == MPIX_EP_STEP_WORKED || did == MPIX_EP_STEP_COMPLETE ? served : did;
            }
            call->at = 0;
        } else if (call->ep->remote && !call->kind) {
            did = mpix_ep_remote_combine_pack(call);
            if (did != MPIX_EP_STEP_COMPLETE)
                return did;
        }
        mpix_ep_signal(call, MPIX_EP_REMOTE);
        mpix_ep_peers_reset(call);
        call->state = COMBINE_ARRIVE;
        /* fall through */
    case COMBINE_ARRIVE:
        if (!mpix_ep_signals_seen(call, MPIX_EP_REMOTE,
                                  call->kind ? NULL : call->combine.out.wait_ns))
            return MPIX_EP_STEP_WAITING;
        call->waiting = 0;
        call->state = COMBINE_SUM;
        /* fall through */
    case COMBINE_SUM:
        if (!call->kind && !combine_sum(call))
            return MPIX_EP_STEP_WORKED;
        if (call->streaming)
            call->ep->rows->fence(); /* the caller may be another thread */
        mpix_ep_signal(call, MPIX_EP_MAPPED);
        handle->signalled[MPIX_EP_COMBINE] = call->epoch;
        mpix_ep_peers_reset(call);
        call->state = COMBINE_WAIT;
        /* fall through */
    default:
        return mpix_ep_signals_seen(call, MPIX_EP_MAPPED, NULL) ? MPIX_EP_STEP_COMPLETE
                                                                : MPIX_EP_STEP_WAITING;
    }
}
