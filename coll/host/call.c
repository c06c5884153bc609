/*
 * call.c - route, dispatch and combine of a context in host memory: the checks of their arguments,
 * and the start. Both modes have them, with steps of their own (host_ll/context.c).
 */
#include "config.h"

#include "coll/host/forward.h"
#include "coll/host/host.h"

#include <stdlib.h>

/* The start of each: a call, and what is wrong before its arguments are looked at. */
static int start(struct mpix_ep_handle *handle, int type, mpix_ep_step *step,
                 const mpix_ep_form *form, mpix_ep_call **call) {
    int code = mpix_ep_call_begin(handle, type, step, call);
    if (code == MPI_SUCCESS && !(*call)->kind && form->how == MPIX_EP_NONBLOCKING && !form->xfer)
        mpix_ep_call_fail(*call, mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL"));
    return code;
}

static int submit(mpix_ep_call *call, int kind, const mpix_ep_form *form) {
    if (kind)
        mpix_ep_call_fail(call, kind);
    return mpix_ep_call_submit(call, form->xfer, form->how == MPIX_EP_BLOCKING);
}

int mpix_ep_host_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                       const MPIX_Ep_counts *counts, const mpix_ep_form *form, mpix_ep_step *step) {
    mpix_ep_call *call;
    int code = start(handle, MPIX_EP_ROUTE, step, form, &call);
    if (code != MPI_SUCCESS)
        return code;
    mpix_ep *ep = handle->ep;
    MPIX_Ep_routing r;
    int kind = call->kind;
    if (!kind)
        kind = mpix_ep_check_routing(ep, routing, &r);
    if (!kind)
        kind = mpix_ep_check_counts(ep, counts);
    if (!kind)
        kind = mpix_ep_plan_create(&ep->placement, &r, ep->config.check >= 0, &call->plan);
    if (!kind && ep->forward)
        kind = mpix_ep_forward_plan(call);
    if (!kind && counts)
        call->route.counts = *counts;
    handle->routed = !kind;
    handle->tokens = kind ? 0 : r.num_tokens;
    handle->topk = kind ? 0 : r.topk;
    handle->capacity = -1;
    return submit(call, kind, form);
}

static int scratch_make(mpix_ep *ep) {
    pthread_mutex_lock(&ep->lock);
    if (!ep->converted)
        ep->converted = malloc((size_t)ep->config.max_row_bytes);
    int kind = ep->converted ? 0
                             : mpix_fail(MPIX_ERRK_NO_MEM, "out.x.dtype",
                                         "no memory for a row of config.max_row_bytes = %lld bytes",
                                         (long long)ep->config.max_row_bytes);
    pthread_mutex_unlock(&ep->lock);
    return kind;
}

int mpix_ep_host_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                          const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form,
                          mpix_ep_step *step) {
    mpix_ep_call *call;
    int code = start(handle, MPIX_EP_DISPATCH, step, form, &call);
    if (code != MPI_SUCCESS)
        return code;
    int kind = call->kind;
    if (!kind)
        kind = mpix_ep_check_dispatch(handle, in, out, &call->dispatch.in, &call->dispatch.out);
    if (!kind && mpix_ep_converts(call))
        kind = scratch_make(call->ep);
    if (!kind)
        handle->capacity = out->capacity_rows;
    return submit(call, kind, form);
}

int mpix_ep_host_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                         const MPIX_Ep_combine_out *out, const mpix_ep_form *form,
                         mpix_ep_step *step) {
    mpix_ep_call *call;
    int code = start(handle, MPIX_EP_COMBINE, step, form, &call);
    if (code != MPI_SUCCESS)
        return code;
    int kind = call->kind;
    if (!kind)
        kind = mpix_ep_check_combine(handle, in, out, &call->combine.in, &call->combine.out);
    if (!kind && handle->ep->forward)
        kind = mpix_ep_forward_scratch(call);
    call->combine.capacity = handle->capacity;
    return submit(call, kind, form);
}

/* ---- mode HT --------------------------------------------------------------------------------- */

int mpix_ep_ht_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                     const MPIX_Ep_counts *counts, const mpix_ep_form *form) {
    return mpix_ep_host_route(handle, routing, counts, form, mpix_ep_route_step);
}

int mpix_ep_ht_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                        const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form) {
    return mpix_ep_host_dispatch(handle, in, out, form, mpix_ep_dispatch_step);
}

int mpix_ep_ht_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                       const MPIX_Ep_combine_out *out, const mpix_ep_form *form) {
    return mpix_ep_host_combine(handle, in, out, form, mpix_ep_combine_step);
}
