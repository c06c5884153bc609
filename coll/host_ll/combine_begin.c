/*
 * combine_begin.c - low-latency combine: its batches begin. Heads and records say what comes, and
 * which rows peers read where they lie.
 */
#include "config.h"

#include "coll/host_ll/combine.h"

void mpix_ep_ll_combine_check(mpix_ep_call *call) {
    const MPIX_Ep_rows *x = &call->combine.in.x;
    long long rows = 0;
    if (x->data && (x->scales || !x->scale_kind))
        return;
    for (int s = 0; s < call->ep->size; s++)
        for (int64_t i = 0; i < call->handle->ll->n[s]; i++)
            for (int k = 0; k < rows_per_token(call); k++)
                rows += row_at(call, s, i, k) >= 0;
    if (rows > 0 && !x->data)
        mpix_ep_call_fail(call,
                          mpix_fail(MPIX_ERRK_ARG, "in.x.data",
                                    "in.x.data is NULL, dispatch gave this rank %lld rows", rows));
    else if (rows > 0 && x->scale_kind && !x->scales)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, "in.x.scales",
                                          "in.x.scales is NULL, dispatch gave this rank %lld rows",
                                          rows));
}

/* Whether peers may read in.x where it is: rows as they travel, in memory that they map (the
 * handle's own buffer, or from MPIX_Ep_alloc). */
static int pull_place(mpix_ep_call *call, mpix_ep_place *place) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    size_t rows = (size_t)call->ll.rows;
    if (rows == 0 || in->wire != in->x.dtype || in->x.scale_kind || in->x.stride > UINT32_MAX)
        return 0;
    /* own ones that were dropped count, too */
    int64_t others = call->ll.rows - call->handle->ll->recv_rank[call->ep->rank];
    size_t bytes = others > 0 ? (size_t)others * mpix_ep_row_bytes(&in->x, in->hidden) : 0;
    if (mpix_ep_ll_is_expert(call) ? bytes <= call->ep->params.ll_pull_bytes : !is_plain(call))
        return 0;
    /* Numbers and weights of its rows stand where a token's sum would. */
    if (mpix_ep_ll_is_expert(call) &&
        4 * (size_t)call->handle->ll->width * (in->row_weights ? 2 : 1) >
            mpix_ep_up16((size_t)call->ep->config.max_row_bytes))
        return 0;
    return mpix_ep_find(call->ep, in->x.data,
                        (rows - 1) * (size_t)in->x.stride + mpix_ep_row_bytes(&in->x, in->hidden),
                        (uint64_t)in->x.stride, place);
}

static void record_write(mpix_ep_call *call, int s, int64_t i) {
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
    const mpix_ep_ll_handle *h = call->handle->ll;
    const float *values = call->combine.in.slot_values;
    int32_t *record =
                (int32_t *)(void *)(part->to + part->out.records_at + (size_t)i * part->out.record),
            present = 0;
    int most = rows_per_token(call);
    for (int k = 0; k < most; k++) {
        int64_t row = row_at(call, s, i, k);
        present += row >= 0;
        if (!values)
            continue;
        if (!mpix_ep_ll_is_expert(call) && row >= 0)
            memcpy(record + 1, values + row * h->width, (size_t)h->width * sizeof(float));
        else if (mpix_ep_ll_is_expert(call))
            ((float *)record)[1 + k] = row >= 0 ? values[row] : 0;
    }
    record[0] = present;
    if (!mpix_ep_ll_is_expert(call) || part->out.row)
        return;
    record += 1 + (values ? h->width : 0); /* the owner reads the rows */
    for (int k = 0; k < most; k++) {
        int64_t row = row_at(call, s, i, k);
        record[k] = (int32_t)row;
        if (call->combine.in.row_weights && row >= 0)
            ((float *)record)[most + k] = call->combine.in.row_weights[row];
    }
}

size_t mpix_ep_ll_combine_record(const mpix_ep_call *call, uint32_t flags, size_t width) {
    size_t pulled = mpix_ep_ll_is_expert(call) && flags & MPIX_EP_LL_PULL
                        ? width * (flags & MPIX_EP_LL_WEIGHTS ? 2 : 1)
                        : 0;
    return 4 * (1 + (flags & MPIX_EP_LL_SLOTS ? width : 0) + pulled);
}

void mpix_ep_ll_combine_begin(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    const mpix_ep_ll_handle *h = call->handle->ll;
    const MPIX_Ep_combine_in *in = &call->combine.in;
    mpix_ep_place place = {0};
    int pull = pull_place(call, &place);
    size_t row = mpix_dtype_size(in->wire) * (size_t)in->hidden, tx = ep->ll->tx_bytes[0];
    uint32_t flags = in->slot_values ? MPIX_EP_LL_SLOTS : 0,
             pulls = flags | MPIX_EP_LL_PULL |
                     (mpix_ep_ll_is_expert(call) && in->row_weights ? MPIX_EP_LL_WEIGHTS : 0);
    for (int s = 0; s < ep->size; s++) {
        mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[s];
        int remote = mpix_ep_is_remote(ep, s), pulled = pull && !remote && s != ep->rank;
        *part = (mpix_ep_ll_part){.n = -1, .total = h->n[s]};
        part->out = mpix_ep_ll_shape_of(part->total,
                                        mpix_ep_ll_combine_record(call, pulled ? pulls : flags,
                                                                  (size_t)h->width),
                                        0, pulled ? 0 : row, !remote);
        part->to = remote ? ep->ll->stores[call->handle->index].tx + tx
                          : mpix_ep_ll_bank(call, s) + h->reply[s];
        tx += remote ? mpix_ep_up64(part->out.bytes) : 0;
        call->ll.pulled += pulled && part->total > 0;
        for (int64_t i = 0; i < part->total; i++)
            record_write(call, s, i);
    }
    for (int i = 1; i <= ep->size; i++) {
        int s = (ep->rank + i) % ep->size;
        mpix_ep_ll_head head = {.width = (uint32_t)h->width,
                                .flags = flags,
                                .rows = (uint32_t)mpix_ep_ll_parts(call)[s].total,
                                .dtype = in->wire,
                                .hidden = in->hidden};
        if (pull && s != ep->rank && !mpix_ep_is_remote(ep, s)) {
            int64_t first = mpix_ep_ll_is_expert(call) ? 0 : (int64_t)s * ep->config.max_tokens,
                    exist = call->ll.rows - first;
            head.flags = pulls;
            head.window = place.window;
            head.exist = (uint32_t)(exist < 0 ? 0
                                    : mpix_ep_ll_is_expert(call) ||
                                            exist < mpix_ep_ll_parts(call)[s].total
                                        ? exist
                                        : mpix_ep_ll_parts(call)[s].total);
            head.stride = (uint32_t)place.stride;
            head.reply = place.off + place.stride * (uint64_t)first;
        }
        mpix_ep_ll_head_send(call, s, &head);
    }
    call->ht.remote_peer = 1;
    call->ht.remote_row = 0;
    call->ll.streaming = mpix_ep_ll_streams(ep, (size_t)h->first[ep->size] * row);
}
