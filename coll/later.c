/* later.c - stream-ordered calls, which host memory does not have, and calls that this version
 * declares but does not have. */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host_ll/ll.h"

static int later(MPIX_Ep_handle handle, const char *call) {
    if (!mpix_live_check(handle, MPIX_LIVE_HANDLE))
        return mpix_boot_raise(NULL, mpix_live_need(handle, MPIX_LIVE_HANDLE, "handle",
                                                    "handle is NULL or freed"));
    return mpix_boot_raise(
        handle->ep->boot,
        mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.memkind",
                  "%s is ordered in a CUDA stream, and this context is in host memory: create it "
                  "with config.memkind = MPIX_EP_CUDA, or call the form without a stream",
                  call));
}

int PMPIX_Ep_route_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                           const MPIX_Ep_counts *counts, void *stream) {
    return mpix_ep_gpu_is(handle)
               ? mpix_ep_gpu_route(handle, routing, counts, NULL, MPIX_EP_GPU_ENQUEUE, stream)
               : later(handle, "MPIX_Ep_route_enqueue");
}
MPIX_WEAK_ALIAS(Ep_route_enqueue);
int PMPIX_Ep_dispatch_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                              const MPIX_Ep_dispatch_out *out, void *stream) {
    return mpix_ep_gpu_is(handle)
               ? mpix_ep_gpu_dispatch(handle, in, out, NULL, MPIX_EP_GPU_ENQUEUE, stream)
               : later(handle, "MPIX_Ep_dispatch_enqueue");
}
MPIX_WEAK_ALIAS(Ep_dispatch_enqueue);
int PMPIX_Ep_combine_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                             const MPIX_Ep_combine_out *out, void *stream) {
    return mpix_ep_gpu_is(handle)
               ? mpix_ep_gpu_combine(handle, in, out, NULL, MPIX_EP_GPU_ENQUEUE, stream)
               : later(handle, "MPIX_Ep_combine_enqueue");
}
MPIX_WEAK_ALIAS(Ep_combine_enqueue);
int PMPIX_Ep_dispatch_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                                    const MPIX_Ep_dispatch_out *out, void *stream) {
    return mpix_ep_gpu_is(handle)
               ? mpix_ep_gpu_dispatch(handle, in, out, NULL, MPIX_EP_GPU_BEGIN, stream)
               : later(handle, "MPIX_Ep_dispatch_begin_enqueue");
}
MPIX_WEAK_ALIAS(Ep_dispatch_begin_enqueue);
int PMPIX_Ep_dispatch_end_enqueue(MPIX_Ep_handle handle, void *stream) {
    return mpix_ep_gpu_is(handle) ? mpix_ep_gpu_end(handle, MPIX_CUDA_DISPATCH, stream)
                                  : later(handle, "MPIX_Ep_dispatch_end_enqueue");
}
MPIX_WEAK_ALIAS(Ep_dispatch_end_enqueue);
int PMPIX_Ep_combine_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                                   const MPIX_Ep_combine_out *out, void *stream) {
    return mpix_ep_gpu_is(handle)
               ? mpix_ep_gpu_combine(handle, in, out, NULL, MPIX_EP_GPU_BEGIN, stream)
               : later(handle, "MPIX_Ep_combine_begin_enqueue");
}
MPIX_WEAK_ALIAS(Ep_combine_begin_enqueue);
int PMPIX_Ep_combine_end_enqueue(MPIX_Ep_handle handle, void *stream) {
    return mpix_ep_gpu_is(handle) ? mpix_ep_gpu_end(handle, MPIX_CUDA_COMBINE, stream)
                                  : later(handle, "MPIX_Ep_combine_end_enqueue");
}
MPIX_WEAK_ALIAS(Ep_combine_end_enqueue);
int PMPIX_Ep_combine_buffer(MPIX_Ep_handle handle, MPIX_Ep_rows *rows) {
    if (mpix_ep_gpu_is(handle)) {
        int dead = mpix_ep_alive(handle->ep);
        return dead ? mpix_boot_raise(handle->ep->boot, dead)
                    : mpix_ep_gpu_combine_buffer(handle, rows);
    }
    if (!mpix_live_check(handle, MPIX_LIVE_HANDLE))
        return mpix_boot_raise(NULL, mpix_live_need(handle, MPIX_LIVE_HANDLE, "handle",
                                                    "handle is NULL or freed"));
    if (!handle->ll)
        return mpix_boot_raise(
            handle->ep->boot,
            mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.mode",
                      "MPIX_Ep_combine_buffer is for config.mode = MPIX_EP_LL: in MPIX_EP_HT use "
                      "memory from MPIX_Ep_alloc, which combine reads in place"));
    int kind = mpix_ep_alive(handle->ep);
    return mpix_boot_raise(handle->ep->boot, kind ? kind : mpix_ep_ll_combine_buffer(handle, rows));
}
MPIX_WEAK_ALIAS(Ep_combine_buffer);

int PMPIX_Ep_set_mask(MPIX_Ep ep, int rank, int alive) {
    (void)rank, (void)alive;
    if (!mpix_live_check(ep, MPIX_LIVE_EP))
        return mpix_boot_raise(NULL, mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed"));
    return mpix_boot_raise(
        ep->boot, mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                            "MPIX_Ep_set_mask: masking is not in this version of mpix-ep (%s)",
                            PACKAGE_VERSION));
}
MPIX_WEAK_ALIAS(Ep_set_mask);
