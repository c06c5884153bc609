/*
 * errors_objects.c - NULL and freed objects, calls while transfers are in flight, and faults of
 * the transfer calls.
 */
#include "errors.h"

#include <stdlib.h>
#include <string.h>

/* Every call on a context that is not there; the caller alone gets ARG, so no peer may be
 * waiting for it. */
static void dead_context(MPIX_Ep ep) {
    MPIX_Ep_config config;
    MPIX_Error error;
    MPIX_Ep_handle h = MPIX_EP_HANDLE_NULL;
    void *base = NULL;
    int flag = 0, alive[64];
    MPIX_INIT(&config);
    MPIX_INIT(&error);
    EXPECT(MPIX_Ep_free(&ep), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_get_config(ep, &config), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_set_errhandler(ep, MPI_ERRORS_RETURN), MPIX_ERRK_ARG, "ep");
    int code = MPIX_Ep_get_async_error(ep, &error);
    CHECK(code != MPI_SUCCESS, "get_async_error of a dead context succeeds");
    EXPECT(MPIX_Ep_alloc(ep, 8, MPI_INFO_NULL, &base), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_dealloc(ep, &flag), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_register(ep, &flag, sizeof flag, &flag), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_deregister(ep, &flag), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_get_mask(ep, alive), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_handle_create(ep, &h), MPIX_ERRK_ARG, "ep");
    CHECK(h == MPIX_EP_HANDLE_NULL && base == NULL, "a call on a dead context set an output");
}

static void dead_handle(MPIX_Ep_handle h) {
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in cin;
    MPIX_Ep_combine_out cout;
    MPIX_Xfer xfer = MPIX_XFER_NULL;
    MPIX_INIT(&r);
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    MPIX_INIT(&cin);
    MPIX_INIT(&cout);
    EXPECT(MPIX_Ep_route(h, &r, NULL), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_iroute(h, &r, NULL, &xfer), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_dispatch(h, &in, &out), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_idispatch(h, &in, &out, &xfer), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_combine(h, &cin, &cout), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_icombine(h, &cin, &cout, &xfer), MPIX_ERRK_ARG, "handle");
    EXPECT(MPIX_Ep_handle_free(&h), MPIX_ERRK_ARG, "handle");
    CHECK(xfer == MPIX_XFER_NULL, "a call on a dead handle set its transfer");
}

/* Small local calls of a live context. */
static void local_calls(t_ctx *ctx) {
    MPIX_Ep_config config;
    MPIX_Error error;
    int alive[64];
    t_where("objects: local calls");
    EXPECT(MPIX_Ep_get_config(ctx->ep, NULL), MPIX_ERRK_ARG, "config", "NULL");
    MPIX_INIT(&config);
    config.struct_size--;
    EXPECT(MPIX_Ep_get_config(ctx->ep, &config), MPIX_ERRK_ARG, "config.struct_size");
    EXPECT(MPIX_Ep_get_mask(ctx->ep, NULL), MPIX_ERRK_ARG, "alive", "NULL");
    EXPECT(MPIX_Ep_set_errhandler(ctx->ep, MPI_ERRHANDLER_NULL), MPIX_ERRK_ARG, "errhandler");
    EXPECT(MPIX_Ep_free(NULL), MPIX_ERRK_ARG, "ep");
    EXPECT(MPIX_Ep_handle_free(NULL), MPIX_ERRK_ARG, "handle");
    CHECK_OK(MPIX_Ep_get_mask(ctx->ep, alive));
    for (int r = 0; r < t_size; r++)
        CHECK(alive[r] == 1, "alive[%d] is %d", r, alive[r]);
    MPIX_INIT(&error);
    error.kind = 5;
    CHECK(MPIX_Ep_get_async_error(ctx->ep, &error) == MPI_SUCCESS && error.kind == 0,
          "async error %d in a sound context", error.kind);
    MPIX_INIT(&config);
    CHECK_OK(MPIX_Ep_get_config(ctx->ep, &config));
    CHECK(config.depth == 2 && config.check == 1 && config.expert_align == 1 &&
              config.timeout_s == 30 && config.max_topk == E_MAX_TOPK,
          "get_config: depth %d, check %d, expert_align %d, timeout_s %g", config.depth,
          config.check, config.expert_align, config.timeout_s);
    /* All tokens of all ranks choose as many experts as they may on the rank that has most. */
    int64_t most = (ctx->config.num_experts + t_size - 1) / t_size;
    int64_t each = config.layout == MPIX_EP_EXPERT
                       ? (most < config.max_topk ? most : config.max_topk)
                       : most > 0;
    CHECK(ctx->config.max_recv_rows == 0 &&
              config.max_recv_rows == t_size * config.max_tokens * each,
          "get_config: max_recv_rows %lld of %d ranks x %lld tokens x %lld",
          (long long)config.max_recv_rows, t_size, (long long)config.max_tokens, (long long)each);
}

/* A transfer in flight keeps its handle, its context and its memory; all ranks start it, so nobody
 * waits for a peer here. */
static void in_flight(t_ctx *ctx, t_handle *handle) {
    void *base = NULL;
    t_where("objects: frees while a transfer is in flight");
    CHECK_OK(MPIX_Ep_alloc(ctx->ep, 64, MPI_INFO_NULL, &base));
    t_call *call = e_route(handle);
    if (CHECK_OK(t_call_start(call, 0))) {
        MPIX_Ep_handle h = handle->h;
        MPIX_Ep ep = ctx->ep;
        EXPECT(MPIX_Ep_handle_free(&handle->h), MPIX_ERRK_ARG, "handle", "in flight");
        EXPECT(MPIX_Ep_free(&ctx->ep), MPIX_ERRK_ARG, "ep", "in flight");
        EXPECT(MPIX_Ep_dealloc(ctx->ep, base), MPIX_ERRK_ARG, NULL, "in flight");
        CHECK(handle->h == h && ctx->ep == ep, "a refused free cleared its object");
        CHECK_OK(call->code = MPIX_Xfer_wait(&call->xfer));
        t_call_check(call);
    }
    t_call_free(call);
    e_usable(handle, 1);
    CHECK_OK(MPIX_Ep_dealloc(ctx->ep, base));
}

static void transfers(t_handle *handle) {
    MPIX_Xfer none[2] = {MPIX_XFER_NULL, MPIX_XFER_NULL}, stale;
    int flag = -1, index = -7, codes[2] = {-1, -1};
    t_where("objects: transfers");
    EXPECT(MPIX_Xfer_test(NULL, &flag), MPIX_ERRK_ARG, "xfer", "NULL");
    EXPECT(MPIX_Xfer_test(&none[0], NULL), MPIX_ERRK_ARG, "flag", "NULL");
    EXPECT(MPIX_Xfer_wait(NULL), MPIX_ERRK_ARG, "xfer", "NULL");
    EXPECT(MPIX_Xfer_waitall(-1, none, NULL), MPIX_ERRK_ARG, "n", "-1");
    EXPECT(MPIX_Xfer_waitall(1, NULL, NULL), MPIX_ERRK_ARG, "xfers", "NULL");
    EXPECT(MPIX_Xfer_waitany(-1, none, &index), MPIX_ERRK_ARG, "n", "-1");
    EXPECT(MPIX_Xfer_waitany(1, none, NULL), MPIX_ERRK_ARG, "index", "NULL");
    EXPECT(MPIX_Xfer_testany(1, none, NULL, &flag), MPIX_ERRK_ARG, "index", "NULL");
    EXPECT(MPIX_Xfer_testany(1, none, &index, NULL), MPIX_ERRK_ARG, "flag", "NULL");
    CHECK(flag == -1 && index == -7, "a failed call set an output");
    CHECK_OK(MPIX_Xfer_test(&none[0], &flag));
    CHECK(flag == 1, "MPIX_XFER_NULL does not count as done");
    CHECK_OK(MPIX_Xfer_wait(&none[0]));
    CHECK_OK(MPIX_Xfer_waitall(2, none, codes));
    CHECK(codes[0] == MPI_SUCCESS && codes[1] == MPI_SUCCESS, "codes of no transfers: %d, %d",
          codes[0], codes[1]);
    CHECK_OK(MPIX_Xfer_waitall(0, NULL, NULL));
    CHECK_OK(MPIX_Xfer_waitany(2, none, &index));
    CHECK(index == -1, "waitany of no transfers gives %d", index);
    CHECK_OK(MPIX_Xfer_testany(0, NULL, &index, &flag));
    CHECK(index == -1 && flag == 1, "testany of no transfers gives %d, %d", index, flag);
    t_call *call = e_route(handle);
    CHECK_OK(t_call_start(call, 0));
    stale = call->xfer;
    CHECK_OK(MPIX_Xfer_wait(&call->xfer));
    t_call_check(call);
    t_call_free(call);
    EXPECT(MPIX_Xfer_wait(&stale), MPIX_ERRK_ARG, "xfer", "in flight");
    EXPECT(MPIX_Xfer_test(&stale, &flag), MPIX_ERRK_ARG, "xfer", "in flight");
    EXPECT(MPIX_Xfer_waitall(1, &stale, codes), MPIX_ERRK_ARG, NULL, "in flight");
    stale = (MPIX_Xfer)(void *)&flag;
    EXPECT(MPIX_Xfer_wait(&stale), MPIX_ERRK_ARG, "xfer", "in flight");
    e_usable(handle, 0);
}

/* A nonblocking NULL transfer is an argument that fails: the others learn of it. */
static void null_xfer(t_handle *handle) {
    for (int kind = T_ROUTE; kind <= T_COMBINE; kind++)
        for (int alone = 0; alone <= (t_size > 1); alone++) {
            int victim = alone ? t_size / 2 : t_rank, code;
            t_shape s = e_shape(MPIX_EP_F32, 0);
            s.hidden = 5;
            t_call *call = kind == T_ROUTE      ? e_route(handle)
                           : kind == T_DISPATCH ? t_call_dispatch(handle, &s, &e_own)
                                                : t_call_combine(handle, &s, &e_own);
            t_where("objects: xfer NULL in call %d, rank %d errs", kind, alone ? victim : -1);
            if (victim == t_rank) {
                if (kind == T_ROUTE)
                    code = MPIX_Ep_iroute(handle->h, &call->u.route.in, NULL, NULL);
                else if (kind == T_DISPATCH)
                    code = MPIX_Ep_idispatch(handle->h, &call->u.dispatch.in, &call->u.dispatch.out,
                                             NULL);
                else
                    code = MPIX_Ep_icombine(handle->h, &call->u.combine.in, &call->u.combine.out,
                                            NULL);
                EXPECT(code, MPIX_ERRK_ARG, "xfer", "NULL");
            } else if (CHECK_OK(t_call_start(call, 0))) {
                EXPECT_REMOTE(MPIX_Xfer_wait(&call->xfer), victim);
            }
            t_call_free(call);
            e_usable(handle, kind == T_ROUTE);
        }
}

/* Errors of several transfers: waitall reports each, and returns the first. */
static void several(t_ctx *ctx) {
    t_handle h[3];
    t_call *calls[3];
    MPIX_Xfer xfers[3];
    int codes[3] = {-1, -1, -1}, victim = t_size - 1;
    t_where("objects: waitall with a failure among three");
    for (int i = 0; i < 3; i++) {
        t_handle_init(&h[i], ctx);
        calls[i] = e_route(&h[i]);
        if (i == 1 && t_rank == victim)
            calls[i]->u.route.in.topk = -1;
        int code = t_call_start(calls[i], 0);
        if (i == 1 && t_rank == victim)
            EXPECT(code, MPIX_ERRK_ARG, "routing.topk", "-1");
        else
            CHECK_OK(code);
        xfers[i] = calls[i]->xfer;
    }
    int code = MPIX_Xfer_waitall(3, xfers, codes);
    CHECK(codes[0] == MPI_SUCCESS && codes[2] == MPI_SUCCESS,
          "codes %d, %d of calls that succeeded", codes[0], codes[2]);
    if (t_rank != victim) {
        CHECK(codes[1] == code, "waitall returns %d, the failure is %d", code, codes[1]);
        EXPECT_REMOTE(code, victim);
    } else {
        CHECK_OK(code);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(xfers[i] == MPIX_XFER_NULL, "waitall left transfer %d", i);
        calls[i]->code = i == 1;
        t_call_check(calls[i]);
        t_call_free(calls[i]);
        e_usable(&h[i], i == 1);
        t_handle_done(&h[i], 1);
    }
}

void e_objects(void) {
    t_ctx ctx;
    t_handle handle, second;
    t_where("objects: NULL");
    if (!e_create(&ctx, MPIX_EP_COMPACT, MPI_INFO_NULL))
        return;
    t_handle_init(&handle, &ctx);
    dead_context(MPIX_EP_NULL);
    dead_handle(MPIX_EP_HANDLE_NULL);
    dead_context((MPIX_Ep)(void *)handle.h); /* an object of another kind */
    dead_handle((MPIX_Ep_handle)(void *)ctx.ep);
    e_usable(&handle, 1);
    local_calls(&ctx);
    in_flight(&ctx, &handle);
    transfers(&handle);
    null_xfer(&handle);
    several(&ctx);
    t_where("objects: use after free");
    t_handle_init(&second, &ctx);
    MPIX_Ep_handle freed = second.h, other = handle.h;
    MPIX_Ep gone = ctx.ep;
    t_handle_done(&second, 1);
    dead_handle(freed);
    e_usable(&handle, 1);
    e_destroy(&ctx);
    dead_context(gone);
    dead_handle(other); /* freed with its context */
    if (e_create(&ctx, MPIX_EP_EXPERT, MPI_INFO_NULL)) {
        t_handle_init(&handle, &ctx);
        e_usable(&handle, 1);
        e_destroy(&ctx);
    }
}
