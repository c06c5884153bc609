/* combine.h - low-latency combine: what combine.c and combine_begin.c ask of each token. */
#ifndef MPIX_COLL_HOST_LL_COMBINE_H
#define MPIX_COLL_HOST_LL_COMBINE_H
#include "coll/host_ll/ll.h"

/* Row k of a token of source s that lies here; -1: there is none, or it was dropped. SLOTS
 * has one, k = 0. */
static inline int64_t row_at(const mpix_ep_call *call, int s, int64_t i, int k) {
    const mpix_ep_ll_handle *h = call->handle->ll;
    int64_t row = mpix_ep_ll_is_expert(call) ? h->rows[(h->first[s] + i) * h->width + k]
                                             : (int64_t)s * call->ep->config.max_tokens + i;
    return row < call->ll.rows ? row : -1;
}

static inline int rows_per_token(const mpix_ep_call *call) {
    return mpix_ep_ll_is_expert(call) ? call->handle->ll->width : 1;
}

/* Whether a token's only row is what travels. */
static inline int is_plain(const mpix_ep_call *call) {
    const MPIX_Ep_combine_in *in = &call->combine.in;
    return !in->row_weights && in->wire == in->x.dtype;
}

/* combine_begin.c */
void mpix_ep_ll_combine_check(mpix_ep_call *call); /* rows that dispatch gave must be there */
/* Lays the batches out and publishes heads and records. */
void mpix_ep_ll_combine_begin(mpix_ep_call *call);
/* Bytes of a record in a batch whose head has these flags. */
size_t mpix_ep_ll_combine_record(const mpix_ep_call *call, uint32_t flags, size_t width);
#endif
