/*
 * api.c - the public calls of a handle, in every form: a live handle, then its context's path.
 */
#include "config.h"

#include "coll/ep.h"

/* 1: the handle is none, and *code is to be returned. */
static int dead(const struct mpix_ep_handle *handle, int *code) {
    if (mpix_live_check(handle, MPIX_LIVE_HANDLE))
        return 0;
    *code = mpix_boot_raise(NULL, mpix_live_need(handle, MPIX_LIVE_HANDLE, "handle",
                                                 "handle is NULL or freed"));
    return 1;
}

/* The same of a form that not every path has. */
static int barred(const struct mpix_ep_handle *handle, mpix_ep_feature form, int *code) {
    if (dead(handle, code))
        return 1;
    const mpix_ep *ep = handle->ep;
    int kind = mpix_ep_path_need(ep->path, ep->config.layout, form, "config.memkind", NULL);
    *code = kind ? mpix_boot_raise(ep->boot, kind) : MPI_SUCCESS;
    return kind != 0;
}

/* ---- route ----------------------------------------------------------------------------------- */

int PMPIX_Ep_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                   const MPIX_Ep_counts *counts) {
    const mpix_ep_form form = {.how = MPIX_EP_BLOCKING};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->route(handle, routing, counts, &form);
}
MPIX_WEAK_ALIAS(Ep_route);

int PMPIX_Ep_iroute(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                    const MPIX_Ep_counts *counts, MPIX_Xfer *xfer) {
    const mpix_ep_form form = {.how = MPIX_EP_NONBLOCKING, .xfer = xfer};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->route(handle, routing, counts, &form);
}
MPIX_WEAK_ALIAS(Ep_iroute);

int PMPIX_Ep_route_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                           const MPIX_Ep_counts *counts, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_STREAM, .stream = stream};
    int code;
    return barred(handle, MPIX_EP_CAN_STREAM, &code)
               ? code
               : handle->ep->path->route(handle, routing, counts, &form);
}
MPIX_WEAK_ALIAS(Ep_route_enqueue);

/* ---- dispatch -------------------------------------------------------------------------------- */

int PMPIX_Ep_dispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                      const MPIX_Ep_dispatch_out *out) {
    const mpix_ep_form form = {.how = MPIX_EP_BLOCKING};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->dispatch(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_dispatch);

int PMPIX_Ep_idispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                       const MPIX_Ep_dispatch_out *out, MPIX_Xfer *xfer) {
    const mpix_ep_form form = {.how = MPIX_EP_NONBLOCKING, .xfer = xfer};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->dispatch(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_idispatch);

int PMPIX_Ep_dispatch_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                              const MPIX_Ep_dispatch_out *out, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_STREAM, .stream = stream};
    int code;
    return barred(handle, MPIX_EP_CAN_STREAM, &code)
               ? code
               : handle->ep->path->dispatch(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_dispatch_enqueue);

int PMPIX_Ep_dispatch_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                                    const MPIX_Ep_dispatch_out *out, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_BEGIN, .stream = stream};
    int code;
    return barred(handle, MPIX_EP_CAN_HALVES, &code)
               ? code
               : handle->ep->path->dispatch(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_dispatch_begin_enqueue);

int PMPIX_Ep_dispatch_end_enqueue(MPIX_Ep_handle handle, void *stream) {
    int code;
    return barred(handle, MPIX_EP_CAN_HALVES, &code)
               ? code
               : handle->ep->path->dispatch_end(handle, stream);
}
MPIX_WEAK_ALIAS(Ep_dispatch_end_enqueue);

/* ---- combine --------------------------------------------------------------------------------- */

int PMPIX_Ep_combine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                     const MPIX_Ep_combine_out *out) {
    const mpix_ep_form form = {.how = MPIX_EP_BLOCKING};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->combine(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_combine);

int PMPIX_Ep_icombine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                      const MPIX_Ep_combine_out *out, MPIX_Xfer *xfer) {
    const mpix_ep_form form = {.how = MPIX_EP_NONBLOCKING, .xfer = xfer};
    int code;
    return dead(handle, &code) ? code : handle->ep->path->combine(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_icombine);

int PMPIX_Ep_combine_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                             const MPIX_Ep_combine_out *out, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_STREAM, .stream = stream};
    int code;
    return barred(handle, MPIX_EP_CAN_STREAM, &code)
               ? code
               : handle->ep->path->combine(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_combine_enqueue);

int PMPIX_Ep_combine_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                                   const MPIX_Ep_combine_out *out, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_BEGIN, .stream = stream};
    int code;
    return barred(handle, MPIX_EP_CAN_HALVES, &code)
               ? code
               : handle->ep->path->combine(handle, in, out, &form);
}
MPIX_WEAK_ALIAS(Ep_combine_begin_enqueue);

int PMPIX_Ep_combine_end_enqueue(MPIX_Ep_handle handle, void *stream) {
    int code;
    return barred(handle, MPIX_EP_CAN_HALVES, &code)
               ? code
               : handle->ep->path->combine_end(handle, stream);
}
MPIX_WEAK_ALIAS(Ep_combine_end_enqueue);

int PMPIX_Ep_combine_buffer(MPIX_Ep_handle handle, MPIX_Ep_rows *rows) {
    int code;
    if (dead(handle, &code))
        return code;
    mpix_ep *ep = handle->ep;
    int ll = ep->config.mode == MPIX_EP_LL, kind = mpix_ep_alive(ep);
    if (!kind)
        kind = mpix_ep_path_need(ep->path, ep->config.layout, MPIX_EP_CAN_COMBINE_BUFFER,
                                 ll ? "handle" : "config.mode",
                                 ll ? "combine copies no row there, from any memory"
                                    : "combine reads memory from MPIX_Ep_alloc in place");
    return kind ? mpix_boot_raise(ep->boot, kind) : ep->path->combine_buffer(handle, rows);
}
MPIX_WEAK_ALIAS(Ep_combine_buffer);

/* ---- masking --------------------------------------------------------------------------------- */

int PMPIX_Ep_set_mask(MPIX_Ep ep, int rank, int alive) {
    (void)rank, (void)alive;
    if (!mpix_live_check(ep, MPIX_LIVE_EP))
        return mpix_boot_raise(NULL, mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed"));
    return mpix_boot_raise(ep->boot, mpix_ep_path_need(ep->path, ep->config.layout,
                                                       MPIX_EP_CAN_MASKING, NULL, NULL));
}
MPIX_WEAK_ALIAS(Ep_set_mask);
