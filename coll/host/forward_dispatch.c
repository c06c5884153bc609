/* forward_dispatch.c - dispatch with two hops: tokens are packed once per host, and written to
 * their rows by the host's forwarder. */
#include "config.h"

#include "coll/host/forward.h"

typedef struct item_shape {
    size_t row, scales, pitch, scale_pitch, bytes;
} item_shape;

static item_shape shape_of(const mpix_ep_call *call) {
    const MPIX_Ep_rows *x = &call->dispatch.out.x;
    item_shape s = {.row = mpix_ep_row_bytes(x, call->dispatch.in.hidden),
                    .scales = mpix_ep_scale_bytes(x, call->dispatch.in.hidden)};
    s.pitch = mpix_ep_up16(s.row);
    s.scale_pitch = mpix_ep_up16(s.scales);
    s.bytes = s.pitch + s.scale_pitch + mpix_ep_forward_record_size(call);
    return s;
}

static void token_pack(mpix_ep_call *call, int64_t t, int host, const void *how, char *to) {
    const item_shape *s = how;
    mpix_ep *ep = call->ep;
    const MPIX_Ep_dispatch_in *in = &call->dispatch.in;
    void *row = to, *scales = to + s->pitch;
    if (mpix_ep_converts(call)) {
        mpix_ep_token_convert(call, t, row, scales);
    } else {
        ep->rows->copy((const char *)in->x.data + t * in->x.stride, s->row, &row, 1, 0);
        if (s->scales)
            ep->rows->copy((const char *)in->x.scales + t * in->x.scale_stride, s->scales, &scales,
                           1, 0);
    }
    mpix_ep_forward_record_write(call, t, host, in->topk_weights, to + s->pitch + s->scale_pitch);
}

int mpix_ep_forward_dispatch_pack(mpix_ep_call *call) {
    item_shape s = shape_of(call);
    return mpix_ep_forward_pack(call, s.bytes, token_pack, &s);
}

static void item_forward(mpix_ep_call *call, const char *item, const item_shape *s) {
    mpix_ep *ep = call->ep;
    int width = call->handle->plan->width, n = 0;
    mpix_ep_forward_record r = mpix_record_forward_read(item + s->pitch + s->scale_pitch, width);
    void **dst = ep->dst, **sdst = ep->dst + ep->config.max_topk + 1;
    for (int k = 0; k < width; k++) {
        if ((uint64_t)(int64_t)r.ids[k] >= (uint64_t)ep->placement.experts ||
            r.rows[k] == MPIX_RECORD_NO_ROW)
            continue;
        int rank = ep->placement.owner[r.ids[k]];
        const mpix_ep_target *to = &ep->ht->targets[rank];
        if (r.rows[k] >= to->rows || !to->x)
            continue; /* dropped */
        dst[n] = to->x + (uint64_t)r.rows[k] * to->x_stride;
        if (s->scales)
            sdst[n] = to->scales + (uint64_t)r.rows[k] * to->scale_stride;
        n++;
        if (to->records)
            mpix_ep_record_write(call, &(mpix_ep_record){r.token, width, r.ids, r.weights}, rank, k,
                                 to->records + (size_t)r.rows[k] * mpix_ep_record_bytes(call));
    }
    if (n == 0)
        return;
    ep->rows->copy(item, s->row, dst, n, call->streaming);
    if (s->scales)
        ep->rows->copy(item + s->pitch, s->scales, sdst, n, 0);
}

int mpix_ep_forward_dispatch_serve(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    size_t moved = 0;
    item_shape s = shape_of(call);
    for (int source = 0; source < ep->size; source++) {
        const mpix_ep_forward_head *head;
        while (call->remote[source].forward_left > 0 &&
               (head = mpix_ep_forward_chunk(call, source))) {
            if (moved > MPIX_EP_FORWARD_PIECE)
                return MPIX_EP_STEP_WORKED;
            if (moved == 0)
                mpix_ep_dispatch_targets(call);
            int n = mpix_ep_forward_items(call, head, s.bytes);
            for (int i = 0; i < n; i++)
                item_forward(call, (const char *)(head + 1) + (size_t)i * s.bytes, &s);
            call->remote[source].forward_left -= n;
            moved += (size_t)n * s.bytes + 1;
            mpix_ep_forward_passed(call, source);
        }
    }
    return moved ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
}
