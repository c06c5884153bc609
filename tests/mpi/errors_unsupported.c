/*
 * errors_unsupported.c - calls that this version declares and does not have: each says so, touches
 * nothing, and hurts nothing.
 */
#include "errors.h"

#include "mpix_device.h"
#include "mpix_p2p.h"

/* Config values are in errors_create.c, dtypes in errors_calls.c. */
#define NO(call) (t_where("unsupported: " #call), EXPECT((call), MPIX_ERRK_UNSUPPORTED, NULL))

static void enqueued(t_handle *handle) {
    MPIX_Ep_handle h = handle->h;
    t_shape s = e_shape(MPIX_EP_F32, 0);
    s.hidden = 3;
    t_call *r = e_route(handle), *d = t_call_dispatch(handle, &s, &e_own),
           *c = t_call_combine(handle, &s, &e_own);
    MPIX_Ep_rows rows = {0};
    NO(MPIX_Ep_route_enqueue(h, &r->u.route.in, NULL, NULL));
    NO(MPIX_Ep_dispatch_enqueue(h, &d->u.dispatch.in, &d->u.dispatch.out, NULL));
    NO(MPIX_Ep_combine_enqueue(h, &c->u.combine.in, &c->u.combine.out, NULL));
    NO(MPIX_Ep_dispatch_begin_enqueue(h, &d->u.dispatch.in, &d->u.dispatch.out, NULL));
    NO(MPIX_Ep_dispatch_end_enqueue(h, NULL));
    NO(MPIX_Ep_combine_begin_enqueue(h, &c->u.combine.in, &c->u.combine.out, NULL));
    NO(MPIX_Ep_combine_end_enqueue(h, NULL));
    NO(MPIX_Ep_combine_buffer(h, &rows));
    NO(MPIX_Ep_set_mask(handle->ctx->ep, 0, 0));
    CHECK(rows.data == NULL, "combine_buffer set its output");
    t_call_free(r);
    t_call_free(d);
    t_call_free(c);
}

static void p2p(void) {
    MPIX_P2p p = MPIX_P2P_NULL;
    MPIX_P2p_mem mem = NULL;
    MPIX_P2p_rmem rmems[64] = {NULL};
    void *base = NULL;
    MPIX_Device handle;
    if (!CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p)))
        return;
    CHECK_OK(MPIX_P2p_alloc(p, 64, MPI_INFO_NULL, &base, &mem));
    CHECK_OK(MPIX_P2p_exchange(mem, rmems));
    MPIX_P2p_iov iov = {.mem = mem, .rmem = rmems[t_rank], .len = 8};
    NO(MPIX_P2p_put_enqueue(&iov, 1, NULL));
    NO(MPIX_P2p_get_enqueue(&iov, 1, NULL));
    NO(MPIX_P2p_put_notify_enqueue(&iov, 1, 0, 1, NULL));
    MPIX_INIT(&handle);
    NO(MPIX_P2p_get_device(p, &handle));
    CHECK(!handle.state, "a refused call set an output");
    CHECK_OK(MPIX_P2p_free(&p));
}

void e_unsupported(void) {
    t_ctx ctx;
    t_handle handle;
    if (!e_create(&ctx, MPIX_EP_COMPACT, MPI_INFO_NULL))
        return;
    t_handle_init(&handle, &ctx);
    e_usable(&handle, 1);
    enqueued(&handle);
    p2p();
    t_where("unsupported: the context afterwards");
    e_usable(&handle, 1);
    e_destroy(&ctx);
}
