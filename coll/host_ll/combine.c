/*
 * combine.c - low-latency combine: the experts' rank sums what a token has there and writes it to
 * the token's owner, who sums over the ranks.
 *
 * START  waits until the places of this epoch's bank are free, and for the dispatch that told this
 *        rank what it has.
 * SEND   for each source, in the order in which its tokens came: the sum of the token's rows
 *        (choices ascending, weighted with row_weights), rounded to the wire's dtype, straight into
 *        the owner's bank. So a token returns once per rank. A single row that needs no weight and
 *        no rounding is copied. SLOTS rows that need neither, in MPIX_Ep_combine_buffer or memory
 *        from MPIX_Ep_alloc, are not even copied: the owner reads them there. EXPERT rows there
 *        that need no rounding are read by the owner too, if they are many (ll_pull_bytes): then
 *        what counts is how often a row crosses the caches, and its sum would do so twice more.
 * SUM    tokens in order, each as soon as its ranks' parts are here: ranks ascending, then the
 *        biases, rounded once. A part that nobody has sent, of this rank's own rows or of EXPERT
 *        rows that are read, is made first, in memory that stays in the cache.
 * READ   only if peers read this rank's buffer: until they have.
 *
 * The result is y = round(sum over ranks ascending of wire(sum over choices ascending of w *
 * x) + bias), bitwise the same for mapped, proxied and own rows, whatever was copied, pushed
 * or read in place.
 */
#include "config.h"

#include "coll/host_ll/combine.h"

enum { LL_START, LL_SEND, LL_SUM, LL_READ };

#define PIECE_BYTES (4u << 20) /* written or read per step */

/* Fills ep->terms with the token's rows here; returns how many. */
static int terms_fill(const mpix_ep_call *call, int s, int64_t i) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    int n = 0, most = rows_per_token(call);
    for (int k = 0; k < most; k++) {
        int64_t row = row_at(call, s, i, k);
        if (row < 0)
            continue;
        mpix_row_term *term = &call->ep->terms[n++];
        *term = (mpix_row_term){.x = (const char *)in->x.data + row * in->x.stride, .group = 0};
        term->scales = in->x.scale_kind ? (const char *)in->x.scales + row * in->x.scale_stride
                                        : NULL;
        if (in->row_weights)
            term->w[term->nw++] = in->row_weights[row];
    }
    return n;
}

/* Rows that dispatch left here, as in host/combine.c. */
static void rows_limit(mpix_ep_call *call) {
    const MPIX_Ep_config *c = &call->ep->config;
    call->ll.rows = call->handle->ll->total;
    if (c->overflow != MPIX_EP_OVERFLOW_DROP)
        return;
    if (call->combine.capacity >= 0 && call->combine.capacity < call->ll.rows)
        call->ll.rows = call->combine.capacity;
    if (c->max_recv_rows > 0 && c->max_recv_rows < call->ll.rows)
        call->ll.rows = c->max_recv_rows;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A token's sum here. Own rows stay where they are. */
static void row_send(mpix_ep_call *call, int s, int64_t i) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
    int n = s == ep->rank ? 0 : terms_fill(call, s, i);
    void *dst = part->to + part->out.rows_at + (size_t)i * part->out.row;
    mpix_row_sum sum = {.y = dst, .nterms = n, .terms = ep->terms};
    if (n == 0)
        return;
    if (is_plain(call) && n == 1)
        ep->rows->copy(ep->terms[0].x, mpix_ep_row_bytes(&in->x, in->hidden), &dst, 1,
                       call->ll.streaming);
    else
        ep->rows->sum(&sum, in->x.dtype, in->x.scale_kind, in->wire, (size_t)in->hidden,
                      call->ll.streaming);
}

/* One piece; 1: all is sent. */
static int rows_send(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    size_t row = mpix_ep_row_bytes(&call->combine.in.x, call->combine.in.hidden);
    int64_t left = (int64_t)(PIECE_BYTES / (row + 1)) / (rows_per_token(call) + 1) + 16;
    /* own rows last */
    for (; call->ht.remote_peer <= ep->size; call->ht.remote_peer++, call->ht.remote_row = 0) {
        int s = (ep->rank + call->ht.remote_peer) % ep->size;
        const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
        if (part->total > 0 && part->out.row == 0)
            continue; /* the peer reads them */
        for (; call->ht.remote_row < part->total; call->ht.remote_row++) {
            if (left-- == 0)
                return 0;
            row_send(call, s, call->ht.remote_row);
            mpix_ep_ll_row_sent(call, s);
        }
        if (s != ep->rank && !mpix_ep_is_remote(ep, s))
            mpix_doorbell_ring(ep->ctl->peer[s]);
    }
    return 1;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void head_check(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head) {
    mpix_ep *ep = call->ep;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    if (!call->kind || call->kind == MPIX_ERRK_REMOTE)
        mpix_ep_ll_compare(call, peer, head, in->hidden, in->wire, MPIX_EP_NO_SCALES, "in.wire");
    if (!call->kind && call->combine.out.slot_values && head->rows > 0 &&
        !(head->flags & MPIX_EP_LL_SLOTS))
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "out.slot_values",
                                          "out.slot_values is wanted, but rank %d gave no "
                                          "in.slot_values",
                                          peer));
    if (call->kind || !(head->flags & MPIX_EP_LL_PULL) || head->exist == 0)
        return;
    const mpix_ep_place place = {head->reply, head->stride, head->window, 1};
    part->pulled_stride = head->stride;
    part->exist = head->exist;
    part->pulled = mpix_ep_resolve(ep, peer, &place,
                                   mpix_ep_extent(head->exist, head->stride,
                                                  mpix_dtype_size(in->wire) * (size_t)in->hidden));
    if (!part->pulled)
        mpix_ep_call_fail(call, mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, ep->boot->hostnames[peer],
                                               "rank %d offers %u rows at %llu in window %d, "
                                               "which has no such place",
                                               peer, head->rows, (unsigned long long)head->reply,
                                               head->window));
}

/* Notes heads and rows that have come; 1: all. */
static int answers_take(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    for (int p = 0; p < ep->size; p++) {
        mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[p];
        if (call->seen[p])
            continue;
        if (part->n < 0) {
            int32_t status;
            const mpix_ep_ll_head *head = mpix_ep_ll_head_seen(call, p, &status);
            if (status)
                mpix_ep_peer_seen(call, p, status, NULL);
            if (!head)
                continue;
            size_t record = mpix_ep_ll_combine_record(call, head->flags, head->width);
            part->n = head->rows;
            part->flags = head->flags;
            part->in =
                mpix_ep_ll_shape_of(part->n, record, 0,
                                    head->flags & MPIX_EP_LL_PULL
                                        ? 0
                                        : mpix_dtype_size(head->dtype) * (size_t)head->hidden,
                                    !mpix_ep_is_remote(ep, p));
            size_t room = mpix_ep_ll_answer_bytes(&ep->config,
                                                  (size_t)call->handle->plan->send_tokens[p]);
            if ((int64_t)head->rows != call->handle->plan->send_tokens[p] ||
                part->in.bytes > room ||
                (part->flags & (MPIX_EP_LL_SLOTS | MPIX_EP_LL_PULL) && head->rows > 0 &&
                 (int)head->width != call->handle->plan->topk)) {
                mpix_ep_call_fail(call,
                                  mpix_fail(MPIX_ERRK_ARG, "handle",
                                            "rank %d answers %u tokens of %lld with %u choices of "
                                            "%d: its last dispatch was another routing's",
                                            p, head->rows,
                                            (long long)call->handle->plan->send_tokens[p],
                                            head->width, call->handle->plan->topk));
                part->n = 0; /* nothing of it is read */
                part->flags = 0;
            } else if (p != ep->rank)
                head_check(call, p, head);
        }
        part->done = part->flags & MPIX_EP_LL_PULL ? part->n : mpix_ep_ll_rows_seen(call, p);
        if (part->done == part->n)
            mpix_ep_peer_seen(call, p, 0, call->kind ? NULL : call->combine.out.wait_ns);
    }
    return call->nseen == ep->size;
}

static const int32_t *record_of(const mpix_ep_call *call, const mpix_ep_entry *e) {
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[e->rank];
    return (const int32_t *)(const void *)(part->from + part->in.records_at +
                                           (size_t)e->row * part->in.record);
}

/* Fills ep->terms with a token's rows at a rank where they are read; returns how many. */
static int terms_pull(mpix_ep_call *call, const mpix_ep_entry *e) {
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[e->rank];
    int n = 0, width = call->handle->plan->topk;
    const int32_t *rows = record_of(call, e) + 1 + (part->flags & MPIX_EP_LL_SLOTS ? width : 0);
    for (int k = 0; k < width; k++) {
        if (rows[k] < 0)
            continue;
        if ((uint32_t)rows[k] >= part->exist) {
            mpix_ep_call_fail(call, mpix_fail_peer(MPIX_ERRK_INTERNAL, e->rank,
                                                   call->ep->boot->hostnames[e->rank],
                                                   "rank %d names row %d of %u", e->rank, rows[k],
                                                   part->exist));
            return 0;
        }
        mpix_row_term *term = &call->ep->terms[n++];
        *term = (mpix_row_term){.x = part->pulled + (size_t)rows[k] * part->pulled_stride,
                                .group = 0};
        if (part->flags & MPIX_EP_LL_WEIGHTS)
            memcpy(&term->w[term->nw++], rows + width + k, sizeof(float));
    }
    return n;
}

/* What a rank has for a token; i: the rank's number among the token's. A part that nobody has sent
 * is made here, alike but for the place. */
static const void *answer_of(mpix_ep_call *call, const mpix_ep_entry *e, int64_t i) {
    mpix_ep *ep = call->ep;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[e->rank];
    const MPIX_Ep_combine_in *in = &call->combine.in;
    int own = e->rank == ep->rank;
    if (!own && part->pulled && !mpix_ep_ll_is_expert(call))
        return part->pulled + (size_t)e->row * part->pulled_stride;
    if (!own && !part->pulled)
        return part->from + part->in.rows_at + (size_t)e->row * part->in.row;
    mpix_row_sum sum = {.y = ep->ll->parts +
                             (size_t)i * mpix_ep_up64((size_t)ep->config.max_row_bytes),
                        .nterms = own ? terms_fill(call, e->rank, e->row) : terms_pull(call, e),
                        .terms = ep->terms};
    if (sum.nterms == 1 && ep->terms[0].nw == 0 && in->wire == in->x.dtype)
        return ep->terms[0].x;
    ep->rows->sum(&sum, in->x.dtype, own ? in->x.scale_kind : MPIX_EP_NO_SCALES, in->wire,
                  (size_t)in->hidden, 0);
    return sum.y;
}

static void token_slots(mpix_ep_call *call, int64_t t) {
    const mpix_ep_plan *plan = call->handle->plan;
    float *to = call->combine.out.slot_values + t * plan->topk;
    memset(to, 0, (size_t)plan->topk * sizeof *to);
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const int32_t *record = record_of(call, &plan->entries[i]);
        for (int k = 0; record[0] > 0 && k < plan->topk; k++) {
            int32_t id = plan->ids[t * plan->topk + k];
            if (id >= 0 && call->ep->placement.owner[id] == plan->entries[i].rank)
                memcpy(&to[k], record + 1 + k, sizeof(float));
        }
    }
}

static void token_sum(mpix_ep_call *call, int64_t t) {
    mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    const MPIX_Ep_combine_out *out = &call->combine.out;
    mpix_row_sum sum = {.y = (char *)out->y.data + t * out->y.stride, .terms = ep->ll->sums};
    for (int i = 0; i < in->num_bias; i++)
        sum.bias[i] = (const char *)in->bias[i].data + t * in->bias[i].stride;
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        if (record_of(call, e)[0] > 0) /* otherwise all its rows there were dropped */
            ep->ll->sums[sum.nterms++] =
                (mpix_row_term){.x = answer_of(call, e, i - plan->first[t]), .group = e->rank};
    }
    ep->rows->sum(&sum, in->wire, MPIX_EP_NO_SCALES, out->y.dtype, (size_t)in->hidden,
                  call->streaming);
}

/* Whether all parts of a token are here. */
static int token_ready(const mpix_ep_call *call, int64_t t) {
    const mpix_ep_plan *plan = call->handle->plan;
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[plan->entries[i].rank];
        if (part->n < 0 || part->done <= plan->entries[i].row)
            return 0;
    }
    return 1;
}

static int tokens_sum(mpix_ep_call *call) {
    const mpix_ep_plan *plan = call->handle->plan;
    size_t y = mpix_ep_row_bytes(&call->combine.out.y, call->combine.in.hidden);
    int64_t before = call->at, end = before + (int64_t)(PIECE_BYTES / (y + 1)) / 2 + 16;
    for (; call->at < plan->tokens && call->at < end && token_ready(call, call->at); call->at++) {
        token_sum(call, call->at);
        if (call->combine.out.slot_values)
            token_slots(call, call->at);
    }
    return call->at > before;
}

static int receive(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    int all = answers_take(call), worked = 0;
    if (!call->kind)
        worked = tokens_sum(call);
    if (!all || (!call->kind && call->at < call->handle->plan->tokens))
        return worked ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
    if (call->streaming)
        ep->rows->fence(); /* the caller may be another thread */
    for (int p = 0; p < ep->size; p++)
        mpix_ep_ll_taken(call, p);
    return MPIX_EP_STEP_COMPLETE;
}

/* The peers that read this rank's buffer; those that fail say so as well. */
static int readers_done(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    for (int p = 0; p < ep->size; p++) {
        if (call->seen[p] || (p != ep->rank && !mpix_ep_is_remote(ep, p) &&
                              !mpix_ep_ll_peer_took(call, p, call->epoch)))
            continue;
        call->seen[p] = 1;
        call->nseen++;
    }
    return call->nseen == ep->size;
}

/* The rows of a dispatch of this routing that is still on its way are awaited. */
static int learnt(mpix_ep_call *call) {
    const struct mpix_ep_handle *handle = call->handle;
    if (call->kind || handle->ll->valid)
        return 1;
    for (mpix_ep_call *c = call->ep->first; c != call; c = c->next)
        if (c->handle == handle && c->type == MPIX_EP_DISPATCH)
            return 0;
    mpix_ep_call_fail(
        call,
        mpix_fail(
            MPIX_ERRK_ARG, "handle",
            "no dispatch has told this rank what it sends back: in MPIX_EP_LL a combine follows a "
            "dispatch of the same routing (the last one failed, or there was none)"));
    return 1;
}

int mpix_ep_ll_combine_step(mpix_ep_call *call, int *banks_open) {
    (void)banks_open;
    switch (call->state) {
    case LL_START:
        if (!mpix_ep_ll_start(call) || !learnt(call))
            return MPIX_EP_STEP_WAITING;
        if (!call->kind)
            rows_limit(call);
        if (!call->kind)
            mpix_ep_ll_combine_check(call);
        if (call->kind)
            mpix_ep_ll_fail_send(call);
        else
            mpix_ep_ll_combine_begin(call);
        call->at = 0;
        call->state = LL_SEND;
        /* fall through */
    case LL_SEND:
        if (!call->kind && !rows_send(call))
            return MPIX_EP_STEP_WORKED;
        if (!call->kind)
            mpix_ep_ll_batches_end(call);
        mpix_ep_peers_reset(call);
        call->streaming = !call->kind &&
                          (size_t)call->handle->plan->tokens *
                                  mpix_ep_row_bytes(&call->combine.out.y, call->combine.in.hidden) >
                              call->ep->stream_bytes;
        call->state = LL_SUM;
        /* fall through */
    case LL_SUM: {
        int did = receive(call);
        if (did != MPIX_EP_STEP_COMPLETE || !call->ll.pulled)
            return did;
        mpix_ep_peers_reset(call);
        call->state = LL_READ;
    }
        /* fall through */
    default: return readers_done(call) ? MPIX_EP_STEP_COMPLETE : MPIX_EP_STEP_WAITING;
    }
}
