/*
 * errors_unsupported.c - calls that this version declares and does not have: each says so, touches nothing, and hurts nothing.
 */
#include "errors.h"

#include "mpix_p2p.h"

/* Config values are in errors_create.c, dtypes in errors_calls.c. */
#define NO(call) (t_where("unsupported: " #call), EXPECT((call), MPIX_ERRK_UNSUPPORTED, NULL))

static void enqueued(t_handle *handle)
{
    MPIX_Ep_handle h = handle->h;
    t_shape s = e_shape(MPIX_EP_F32, 0);
    s.hidden = 3;
    t_call *r = e_route(handle), *d = t_call_dispatch(handle, &s, &e_own), *c = t_call_combine(handle, &s, &e_own);
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

static void p2p(void)
{
    MPIX_P2p p = MPIX_P2P_NULL;
    MPIX_P2p_mem mem = NULL;
    MPIX_P2p_rmem rmem = NULL, rmems[64] = {NULL};
    MPIX_P2p_iov iov = {0};
    MPIX_Xfer xfer = MPIX_XFER_NULL;
    MPIX_Error error;
    MPI_Count n = 0;
    uint64_t now = 0;
    int64_t old = 0;
    int flag = 0, count = 0;
    void *base = NULL;
    MPIX_INIT(&error);
    NO(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p));
    NO(MPIX_P2p_free(&p));
    NO(MPIX_P2p_set_errhandler(p, MPI_ERRORS_RETURN));
    NO(MPIX_P2p_get_async_error(p, &error));
    NO(MPIX_P2p_alloc(p, 64, MPI_INFO_NULL, &base, &mem));
    NO(MPIX_P2p_reg(p, &flag, sizeof flag, MPI_INFO_NULL, &mem));
    NO(MPIX_P2p_dereg(&mem));
    NO(MPIX_P2p_export(mem, 0, 0, NULL, &n));
    NO(MPIX_P2p_import(p, 0, &flag, sizeof flag, &rmem));
    NO(MPIX_P2p_rmem_free(&rmem));
    NO(MPIX_P2p_exchange(mem, rmems));
    NO(MPIX_P2p_advertise(&iov, 1, 0, 0));
    NO(MPIX_P2p_get_advert(p, 0, 0, 1, rmems, &count));
    NO(MPIX_P2p_iput(&iov, 1, &xfer));
    NO(MPIX_P2p_put(&iov, 1));
    NO(MPIX_P2p_iget(&iov, 1, &xfer));
    NO(MPIX_P2p_get(&iov, 1));
    NO(MPIX_P2p_iput_notify(&iov, 1, 0, 1, &xfer));
    NO(MPIX_P2p_put_notify(&iov, 1, 0, 1));
    NO(MPIX_P2p_notify_test(p, 0, 0, 1, &now, &flag));
    NO(MPIX_P2p_notify_wait(p, 0, 0, 1, &now));
    NO(MPIX_P2p_ifetch_add(rmem, 0, 1, &old, &xfer));
    NO(MPIX_P2p_fetch_add(rmem, 0, 1, &old));
    NO(MPIX_P2p_isend(p, 0, &iov, 1, &xfer));
    NO(MPIX_P2p_send(p, 0, &iov, 1));
    NO(MPIX_P2p_irecv(p, 0, &iov, 1, &n, &xfer));
    NO(MPIX_P2p_recv(p, 0, &iov, 1, &n));
    NO(MPIX_P2p_flush(p, MPIX_ALL_PEERS));
    NO(MPIX_P2p_put_enqueue(&iov, 1, NULL));
    NO(MPIX_P2p_get_enqueue(&iov, 1, NULL));
    NO(MPIX_P2p_put_notify_enqueue(&iov, 1, 0, 1, NULL));
    NO(MPIX_P2p_get_device(p, &flag));
    CHECK(!p && !mem && !rmem && !xfer && !base && !count && !n && !now && !old && !flag, "a refused call set an output");
}

void e_unsupported(void)
{
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
