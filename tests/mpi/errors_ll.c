/*
 * errors_ll.c - faults in the low-latency mode, where no call asks the others before it sends: what
 * every rank learns in the same call, what only the rank that errs does, and that the next call
 * works in any case.
 */
#include "errors.h"

#include <stdlib.h>

static int ll_layout;
static t_ctx ctx;
static t_handle handle;

/* The rank that errs is the last one. */
static int errs(void) { return t_rank == t_size - 1; }

static int create(int layout) {
    t_where("low latency, layout %d", layout);
    ll_layout = layout;
    ctx = (t_ctx){0};
    e_config(&ctx.config, layout);
    ctx.config.mode = MPIX_EP_LL;
    if (!CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ctx.ep)))
        return 0;
    t_handle_init(&handle, &ctx);
    return e_usable(&handle, 1);
}

static t_call *dispatch(void) {
    t_shape s = e_shape(MPIX_EP_BF16, 0);
    return t_call_dispatch(&handle, &s, &e_own);
}

static t_call *combine(void) {
    t_shape s = e_shape(MPIX_EP_BF16, 0);
    return t_call_combine(&handle, &s, &e_own);
}

enum { OTHERS_REMOTE, OTHERS_FINE, OTHERS_SAME };

/* Runs a call that was spoiled on the rank that errs. */
static void run(t_call *call, int kind, const char *arg, int others, int blocking) {
    int code = t_call_start(call, blocking);
    if (!blocking && code == MPI_SUCCESS)
        code = call->code = MPIX_Xfer_wait(&call->xfer);
    if (errs() || others == OTHERS_SAME)
        EXPECT(code, kind, arg);
    else if (others == OTHERS_REMOTE)
        EXPECT_REMOTE(code, t_size - 1);
    else if (CHECK(code == MPI_SUCCESS, "code %d", code))
        t_call_check(call);
    t_call_free(call);
    t_where("low latency, layout %d, after a %s", ll_layout, arg);
    e_usable(&handle, 0);
}

static void dispatch_faults(int blocking) {
    t_call *d = dispatch();
    t_where("low latency: hidden = 0");
    d->u.dispatch.in.hidden = errs() ? 0 : E_HIDDEN;
    run(d, MPIX_ERRK_ARG, "in.hidden", OTHERS_REMOTE, blocking);
    d = dispatch();
    t_where("low latency: hidden differs");
    if (errs() && t_size > 1) { /* strides of a row of its own would have to fit */
        d->u.dispatch.in.hidden = E_HIDDEN - 1;
    }
    if (t_size > 1)
        run(d, MPIX_ERRK_ARG, "in.hidden", OTHERS_SAME, blocking);
    else
        t_call_free(d);
    d = dispatch();
    t_where("low latency: capacity");
    int small = d->plan->total[t_size - 1] > 0;
    if (errs() && small)
        d->u.dispatch.out.capacity_rows = d->plan->total[t_rank] - 1;
    if (small)
        run(d, MPIX_ERRK_TRUNCATE, "out.capacity_rows",
            ll_layout == MPIX_EP_SLOTS ? OTHERS_REMOTE : OTHERS_FINE, blocking);
    else
        t_call_free(d);
}

/* Whoever wants weights and gets a row from the rank that gives none finds it out alone. */
static void weights_missing(void) {
    t_call *d = dispatch();
    static float weights[64 * E_MAX_TOKENS * E_MAX_TOPK];
    int from = 0;
    for (int64_t i = 0; i < d->plan->total[t_rank]; i++)
        from |= d->plan->rows[t_rank][i].src == t_size - 1;
    t_where("low latency: no weights");
    if (errs())
        d->u.dispatch.in.topk_weights = NULL;
    d->u.dispatch.out.topk_weights = errs() ? NULL : weights;
    int code = t_call_start(d, 1);
    if (errs() || !from)
        CHECK_OK(code);
    else
        EXPECT(code, MPIX_ERRK_ARG, "in.topk_weights");
    t_call_free(d);
    e_usable(&handle, 0);
}

static void combine_faults(int blocking) {
    t_call *c = combine();
    int slots = ll_layout == MPIX_EP_SLOTS;
    static const float one[E_MAX_TOKENS * E_MAX_TOPK];
    t_where("low latency: bias");
    if (errs())
        c->u.combine.in.num_bias = 3;
    run(c, MPIX_ERRK_ARG, "in.num_bias", OTHERS_REMOTE, blocking);
    c = combine();
    t_where("low latency: topk_weights");
    if (errs())
        c->u.combine.in.topk_weights = one;
    run(c, slots ? MPIX_ERRK_ARG : MPIX_ERRK_UNSUPPORTED, "in.topk_weights", OTHERS_REMOTE,
        blocking);
    c = combine();
    t_where("low latency: wire");
    if (errs())
        c->u.combine.in.wire = MPIX_EP_F8E4M3;
    run(c, MPIX_ERRK_UNSUPPORTED, "in.wire", OTHERS_REMOTE, blocking);
    c = combine();
    if (errs())
        c->u.combine.in.wire = MPIX_EP_F64; /* 24 * 8 bytes */
    run(c, MPIX_ERRK_ARG, "in.wire", OTHERS_REMOTE, blocking);
    c = combine();
    if (errs())
        c->u.combine.in.wire = MPIX_EP_F16;
    if (t_size > 1)
        run(c, MPIX_ERRK_ARG, "in.wire", OTHERS_SAME, blocking);
    else
        t_call_free(c);
    c = combine();
    t_where("low latency: no rows");
    int rows = 0;
    for (int64_t i = 0; i < c->plan->total[t_size - 1]; i++)
        rows |= c->plan->rows[t_size - 1][i].src >= 0;
    if (errs() && rows)
        c->u.combine.in.x.data = NULL;
    if (rows)
        run(c, MPIX_ERRK_ARG, "in.x.data", OTHERS_REMOTE, blocking);
    else
        t_call_free(c);
}

/* A combine needs a dispatch; a route that was refused leaves no routing. */
static void order_faults(void) {
    t_call *r = e_route(&handle), *c;
    t_where("low latency: combine after route");
    t_call_run(r, 1);
    c = combine();
    EXPECT(t_call_start(c, 1), MPIX_ERRK_ARG, "handle", "dispatch");
    t_call_free(c);
    e_usable(&handle, 0);
    r = e_route(&handle);
    t_where("low latency: counts of route");
    MPI_Count count[64];
    MPIX_Ep_counts counts;
    MPIX_INIT(&counts);
    counts.recv_per_rank = count;
    if (errs())
        EXPECT(MPIX_Ep_route(handle.h, &r->u.route.in, &counts), MPIX_ERRK_UNSUPPORTED,
               "counts.recv_per_rank", "dispatch");
    else
        EXPECT(MPIX_Ep_route(handle.h, NULL, NULL), MPIX_ERRK_ARG, "routing");
    t_call *d = dispatch();
    EXPECT(t_call_start(d, 1), MPIX_ERRK_ARG, "handle", "route");
    t_call_free(d);
    t_call_free(r);
    e_usable(&handle, 1);
}

static void topk_differs(void) {
    int32_t ids[E_TOPK] = {0, 1, 2};
    MPIX_Ep_routing in;
    t_call *d;
    if (t_size == 1)
        return;
    MPIX_INIT(&in);
    in.num_tokens = 1;
    in.topk = errs() ? E_TOPK - 1 : E_TOPK;
    in.ids = ids;
    t_where("low latency: topk differs");
    CHECK_OK(MPIX_Ep_route(handle.h, &in, NULL));
    d = dispatch();
    d->u.dispatch.out.topk_weights = NULL;
    d->u.dispatch.out.local_ids = NULL;
    EXPECT(t_call_start(d, 1), MPIX_ERRK_ARG, "routing.topk");
    t_call_free(d);
    e_usable(&handle, 1);
}

static void buffers(void) {
    MPIX_Ep_rows rows = {0};
    t_where("low latency: combine_buffer");
    if (ll_layout == MPIX_EP_EXPERT) {
        EXPECT(MPIX_Ep_combine_buffer(handle.h, &rows), MPIX_ERRK_UNSUPPORTED, "handle", "EXPERT");
        CHECK(!rows.data, "combine_buffer set its output");
        return;
    }
    EXPECT(MPIX_Ep_combine_buffer(handle.h, NULL), MPIX_ERRK_ARG, "rows", "NULL");
    if (CHECK_OK(MPIX_Ep_combine_buffer(handle.h, &rows)))
        CHECK(rows.data && rows.stride >= E_ROW_BYTES && !rows.dtype,
              "combine_buffer: data %p, stride %lld, dtype %d", rows.data, (long long)rows.stride,
              rows.dtype);
    e_usable(&handle, 0);
}

void e_ll(void) {
    static const int layouts[] = {MPIX_EP_SLOTS, MPIX_EP_EXPERT};
    for (int i = 0; i < 2; i++) {
        if (!create(layouts[i]))
            return;
        for (int blocking = 0; blocking < 2; blocking++) {
            dispatch_faults(blocking);
            combine_faults(blocking);
        }
        weights_missing();
        order_faults();
        topk_differs();
        buffers();
        e_destroy(&ctx);
    }
}
