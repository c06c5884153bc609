/* forward_combine.c - combine with two hops: forwarders sum the rows of their host's ranks for each
 * token, the token's owner adds those sums. */
#include "config.h"

#include "coll/host/forward.h"

#include <stdlib.h>

int mpix_ep_forward_wire(const mpix_ep_call *call) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    int fp8 = in->x.dtype == MPIX_EP_F8E4M3 || in->x.dtype == MPIX_EP_F8E5M2;
    return fp8 && in->wire != MPIX_EP_F32 ? MPIX_EP_BF16 : in->wire ? in->wire : in->x.dtype;
}

static size_t wire_bytes(const mpix_ep_call *call) {
    return mpix_dtype_size(mpix_ep_forward_wire(call)) * (size_t)call->combine.in.hidden;
}

size_t mpix_ep_forward_sum_size(const mpix_ep_call *call, int slots) {
    return mpix_ep_up16(wire_bytes(call)) +
           (slots ? mpix_ep_up16(4 * (size_t)call->handle->plan->width) : 0);
}

size_t mpix_ep_forward_sum_regions(mpix_ep_call *call, size_t stage) {
    size_t bytes = mpix_ep_forward_sum_size(call, call->combine.out.slot_values != NULL);
    for (int p = 0; p < call->ep->size; p++) {
        int64_t n = mpix_ep_is_remote(call->ep, p) ? mpix_ep_forward_pairs(call, p) : 0;
        call->remote[p].rx = UINT64_MAX;
        if (n == 0)
            continue;
        stage = (stage + 63) & ~(size_t)63;
        call->remote[p].rx = stage;
        stage += (size_t)n * bytes;
    }
    return stage;
}

/* ---- the owner asks -------------------------------------------------------------------------- */

static void ask_write(mpix_ep_call *call, int64_t t, int host, const void *how, char *to) {
    (void)how;
    mpix_ep_forward_record_write(call, t, host, call->combine.in.topk_weights, to);
}

int mpix_ep_forward_combine_pack(mpix_ep_call *call) {
    return mpix_ep_forward_pack(call, mpix_ep_forward_record_size(call), ask_write, NULL);
}

/* ---- the forwarder sums ---------------------------------------------------------------------- */

/* The item's choices that have a row, by rank, then by choice; into forward->order. */
static int choices_order(const mpix_ep_call *call, const mpix_ep_forward_record *r) {
    const int *owner = call->ep->placement.owner;
    int *order = call->ep->forward->order, n = 0;
    for (int k = 0; k < call->handle->plan->width; k++) {
        if ((uint64_t)(int64_t)r->ids[k] >= (uint64_t)call->ep->placement.experts ||
            r->rows[k] == MPIX_RECORD_NO_ROW)
            continue;
        int i = n++;
        for (; i > 0 && owner[r->ids[order[i - 1]]] > owner[r->ids[k]]; i--)
            order[i] = order[i - 1];
        order[i] = k;
    }
    return n;
}

static void slots_gather(const mpix_ep_call *call, const mpix_ep_forward_record *r, int n,
                         float *to) {
    const mpix_ep *ep = call->ep;
    int width = call->handle->plan->width, compact = ep->config.layout == MPIX_EP_COMPACT;
    memset(to, 0, (size_t)width * sizeof *to);
    for (int i = 0; i < n; i++) {
        int k = ep->forward->order[i], rank = ep->placement.owner[r->ids[k]];
        const mpix_ep_target *from = &ep->ht->targets[rank];
        if (r->rows[k] >= from->rows || !from->slots)
            continue;
        const float *values =
            (const float *)(const void *)(from->slots +
                                          (size_t)r->rows[k] * mpix_ep_slot_bytes(call));
        if (!compact)
            to[k] = values[0];
        for (int j = 0; compact && j < width; j++)
            if (r->ids[j] >= 0 && ep->placement.owner[r->ids[j]] == rank)
                to[j] = values[j];
    }
}

static void item_sum(mpix_ep_call *call, const char *item, int weighted, int slots, char *to) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    mpix_ep_forward_record r = mpix_record_forward_read(item, call->handle->plan->width);
    mpix_row_sum sum = {.y = to, .terms = ep->terms};
    int n = choices_order(call, &r);
    for (int i = 0; i < n; i++) {
        int k = ep->forward->order[i], rank = ep->placement.owner[r.ids[k]];
        const mpix_ep_target *from = &ep->ht->targets[rank];
        if (r.rows[k] >= from->rows || !from->x)
            continue; /* dropped */
        mpix_row_term *term = &ep->terms[sum.nterms++];
        *term = (mpix_row_term){.x = from->x + (uint64_t)r.rows[k] * from->x_stride, .group = rank};
        term->scales = from->scales ? from->scales + (uint64_t)r.rows[k] * from->scale_stride
                                    : NULL;
        if (from->records)
            term->w[term->nw++] = ((const float *)(const void *)from->records)[r.rows[k]];
        if (weighted)
            term->w[term->nw++] = r.weights[k];
    }
    ep->rows->sum(&sum, in->x.dtype, in->x.scale_kind, mpix_ep_forward_wire(call),
                  (size_t)in->hidden, 0);
    if (slots)
        slots_gather(call, &r, n, (float *)(void *)(to + mpix_ep_up16(wire_bytes(call))));
}

/* A chunk for partial sums that is free, -1: none. */
static int out_room(const mpix_ep *ep) {
    const mpix_ep_forward *forward = ep->forward;
    for (int c = 0; c < forward->nout; c++)
        if (forward->outs[c].state == MPIX_EP_CHUNK_FREE ||
            mpix_proxy_completed(ep->remote->proxy, forward->outs[c].peer, forward->outs[c].lane) >=
                forward->outs[c].seq)
            return c;
    return -1;
}

/* Sums of the chunk's items from forward->at on, as many as fit an outgoing chunk.
 * Gives its bytes. */
static size_t chunk_sum(mpix_ep_call *call, int source, const mpix_ep_forward_head *head, int out) {
    mpix_ep *ep = call->ep;
    mpix_ep_forward *forward = ep->forward;
    mpix_ep_remote_call *f = &call->remote[source];
    int slots = (f->flags & MPIX_EP_OFFER_WANTS_SLOTS) != 0,
        lane = (int)(f->forward_done % ep->remote->lanes);
    size_t bytes = mpix_ep_forward_sum_size(call, slots),
           record = mpix_ep_forward_record_size(call);
    int64_t n = (int64_t)(ep->remote->chunk_bytes / bytes),
            left = mpix_ep_forward_items(call, head, record) - forward->at[source];
    char *to = forward->out + (size_t)out * ep->remote->chunk_bytes;
    n = n < left ? n : left;
    for (int64_t i = 0; i < n; i++)
        item_sum(call, (const char *)(head + 1) + (size_t)(forward->at[source] + i) * record,
                 head->weighted, slots, to + (size_t)i * bytes);
    ep->rows->fence();
    forward->outs[out].state = MPIX_EP_CHUNK_FREE;
    if (mpix_ep_remote_put(call, source, lane, MPIX_EP_WINDOW_FORWARD,
                           (uint64_t)out * ep->remote->chunk_bytes, MPIX_EP_WINDOW_STAGE,
                           f->forward_place + (uint64_t)f->forward_done * bytes,
                           (uint64_t)n * bytes, mpix_ep_remote_counter(call, lane))) {
        f->writes[lane]++;
        forward->outs[out] = (mpix_ep_chunk){MPIX_EP_CHUNK_POSTED, source, lane, f->seq[lane]};
    }
    forward->at[source] += n;
    f->forward_done += n;
    f->forward_left -= n;
    return (size_t)n * bytes;
}

int mpix_ep_forward_combine_serve(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    size_t moved = 0;
    for (int i = 0; i < ep->size; i++) {
        int source = (ep->rank + i) % ep->size, out;
        const mpix_ep_forward_head *head;
        while (call->remote[source].forward_left > 0 &&
               (head = mpix_ep_forward_chunk(call, source))) {
            if ((out = out_room(ep)) < 0 || moved > MPIX_EP_FORWARD_PIECE)
                return moved ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
            if (moved == 0)
                mpix_ep_combine_targets(call);
            moved += chunk_sum(call, source, head, out);
            if (ep->forward->at[source] ==
                mpix_ep_forward_items(call, head, mpix_ep_forward_record_size(call)))
                mpix_ep_forward_passed(call, source);
        }
    }
    return moved ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
}

/* ---- the owner adds -------------------------------------------------------------------------- */

/* Terms of this rank's own host, as the plan has them. */
static int own_terms(mpix_ep_call *call, int64_t t, mpix_row_term *terms) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    int n = 0;
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        const mpix_ep_target *from = &ep->ht->targets[e->rank];
        if (mpix_ep_is_remote(ep, e->rank) || e->row >= from->rows)
            continue;
        mpix_row_term *term = &terms[n++];
        *term = (mpix_row_term){.x = from->x + (uint64_t)e->row * from->x_stride, .group = e->rank};
        term->scales = from->scales ? from->scales + (uint64_t)e->row * from->scale_stride : NULL;
        if (from->records)
            term->w[term->nw++] = ((const float *)(const void *)from->records)[e->row];
        if (in->topk_weights)
            term->w[term->nw++] = in->topk_weights[t * plan->topk + e->choice];
    }
    return n;
}

/* Whether any of the token's rows on the host exists; if all were dropped its sum
 * does not count. */
static int any_row(const mpix_ep_call *call, int64_t t, int host) {
    const mpix_ep_plan *plan = call->handle->plan;
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        if (call->ep->boot->host_of[e->rank] == host &&
            e->row < call->ep->ht->targets[e->rank].rows)
            return 1;
    }
    return 0;
}

static void slots_take(const mpix_ep_call *call, int64_t t, int host, const float *values) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    float *to = call->combine.out.slot_values + t * plan->topk;
    const int32_t *ids = plan->ids + t * plan->topk;
    for (int k = 0; k < plan->topk; k++)
        if (ids[k] >= 0 && ep->boot->host_of[ep->placement.owner[ids[k]]] == host)
            to[k] = values[k];
}

/* The other hosts' sums of a token, hosts ascending, behind the n terms that are there. Slot values
 * are taken on the way. */
static int host_terms(mpix_ep_call *call, int64_t t, mpix_row_term *terms, int n) {
    mpix_ep *ep = call->ep;
    int slots = call->combine.out.slot_values != NULL, begin = n;
    size_t bytes = mpix_ep_forward_sum_size(call, slots);
    int64_t i = call->handle->plan->first[t];
    for (int host; (host = mpix_ep_forward_next(call, t, &i)) >= 0; i++) {
        mpix_ep_remote_call *f = &call->remote[ep->forward->forwarder[host]];
        const char *at = mpix_ep_stage_at(call, f->rx) + (size_t)f->forward_item++ * bytes;
        if (slots)
            slots_take(call, t, host,
                       (const float *)(const void *)(at + mpix_ep_up16(wire_bytes(call))));
        if (!any_row(call, t, host))
            continue;
        int j = n++;
        for (; j > begin && terms[j - 1].group > ep->size + host; j--)
            terms[j] = terms[j - 1];
        terms[j] = (mpix_row_term){.x = at, .group = ep->size + host};
    }
    return n;
}

static const void *bias_row(const MPIX_Ep_combine_in *in, int i, int64_t t) {
    return i < in->num_bias ? (const char *)in->bias[i].data + t * in->bias[i].stride : NULL;
}

/* Own rows of another type than the sums': all become float, which holds each of them exactly. */
static void widen(mpix_ep_call *call, int nown, int nterms, int wire) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    char *rows = ep->forward->rows;
    mpix_row_sum own = {.y = rows, .nterms = nown, .terms = ep->terms};
    ep->rows->sum(&own, in->x.dtype, in->x.scale_kind, MPIX_EP_F32, (size_t)in->hidden, 0);
    ep->terms[0] = (mpix_row_term){.x = rows};
    for (int i = nown, n = 1; i < nterms; i++, n++) {
        mpix_row_term term = {.x = ep->terms[i].x};
        mpix_row_sum one = {.y = rows + (size_t)n * ep->forward->row_bytes,
                            .nterms = 1,
                            .terms = &term};
        if (wire != MPIX_EP_F32) {
            ep->rows->sum(&one, wire, MPIX_EP_NO_SCALES, MPIX_EP_F32, (size_t)in->hidden, 0);
            term.x = one.y;
        }
        ep->terms[n] = (mpix_row_term){.x = term.x, .group = n};
    }
}

void mpix_ep_forward_token_sum(mpix_ep_call *call, int64_t t) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const MPIX_Ep_combine_out *out = &call->combine.out;
    int wire = mpix_ep_forward_wire(call), dtype = in->x.dtype, scales = in->x.scale_kind;
    mpix_row_sum sum = {.y = (char *)out->y.data + t * out->y.stride,
                        .bias = {bias_row(in, 0, t), bias_row(in, 1, t)},
                        .terms = ep->terms};
    int own = own_terms(call, t, ep->terms);
    sum.nterms = host_terms(call, t, ep->terms, own);
    if (own == 0 && sum.nterms > 0) {
        dtype = wire;
        scales = MPIX_EP_NO_SCALES;
    } else if (sum.nterms > own && wire != dtype) {
        widen(call, own, sum.nterms, wire);
        sum.nterms += 1 - own;
        dtype = MPIX_EP_F32;
        scales = MPIX_EP_NO_SCALES;
    }
    ep->rows->sum(&sum, dtype, scales, out->y.dtype, (size_t)in->hidden, call->streaming);
}

int mpix_ep_forward_scratch(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_forward *forward = ep->forward;
    if (mpix_ep_forward_wire(call) == call->combine.in.x.dtype)
        return 0;
    pthread_mutex_lock(&ep->lock);
    if (!forward->rows) {
        forward->row_bytes = mpix_ep_up16(sizeof(float) * (size_t)ep->config.max_row_bytes);
        forward->rows = malloc(((size_t)ep->config.max_topk + 1) * forward->row_bytes);
    }
    int kind = forward->rows
                   ? 0
                   : mpix_fail(MPIX_ERRK_NO_MEM, "in.wire", "no memory for partial sums of %d rows",
                               ep->config.max_topk);
    pthread_mutex_unlock(&ep->lock);
    return kind;
}
