/*
 * errors_handlers.c - through which error handler an error is raised, and MPIX_Error_*.
 */
#include "errors.h"

#include <limits.h>
#include <string.h>

static int calls_a, calls_b, last_code, last_is_world;
static MPI_Comm last_comm;

static void note(MPI_Comm *comm, int *code) {
    int how;
    last_code = *code;
    last_comm = *comm;
    MPI_Comm_compare(*comm, MPI_COMM_WORLD, &how);
    last_is_world = how;
}

static void handler_a(MPI_Comm *comm, int *code, ...) {
    calls_a++;
    note(comm, code);
}

static void handler_b(MPI_Comm *comm, int *code, ...) {
    calls_b++;
    note(comm, code);
}

/* One error on every rank: which of the counters moved, once, and with the code that
 * was returned. */
static void raised(t_ctx *ctx, t_handle *handle, int by_a, int by_b) {
    MPIX_Ep_config config;
    memset(&config, 0, sizeof config);
    calls_a = calls_b = 0;
    last_code = -1;
    int code = MPIX_Ep_get_config(ctx->ep, &config); /* local */
    EXPECT(code, MPIX_ERRK_ARG, "config.struct_size");
    CHECK(calls_a == by_a && calls_b == by_b, "handlers called %d and %d times, expected %d and %d",
          calls_a, calls_b, by_a, by_b);
    if (by_a || by_b) {
        CHECK(last_code == code, "the handler got %d, the call returned %d", last_code, code);
        CHECK(last_comm != MPI_COMM_WORLD && last_is_world == MPI_CONGRUENT,
              "the handler did not get the context's own communicator");
    }
    /* collective: the last rank errs, the others are told at completion */
    t_call *call = e_route(handle);
    if (t_rank == t_size - 1)
        call->u.route.in.num_tokens = -1;
    calls_a = calls_b = 0;
    code = t_call_start(call, 0);
    if (code == MPI_SUCCESS) {
        CHECK(calls_a + calls_b == 0, "a call that succeeded raised an error");
        code = MPIX_Xfer_wait(&call->xfer);
    }
    CHECK(code != MPI_SUCCESS, "a call that has to fail succeeded");
    CHECK(calls_a == by_a && calls_b == by_b, "handlers called %d and %d times, expected %d and %d",
          calls_a, calls_b, by_a, by_b);
    if (by_a || by_b)
        CHECK(last_code == code, "the handler got %d, the wait returned %d", last_code, code);
    t_call_free(call);
    calls_a = calls_b = 0;
    e_usable(handle, 1);
    CHECK(calls_a + calls_b == 0, "calls that succeeded raised errors");
}

static void create_with(MPI_Errhandler inherited, t_ctx *ctx, t_handle *handle) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, inherited);
    memset(ctx, 0, sizeof *ctx);
    e_config(&ctx->config, MPIX_EP_COMPACT);
    REQUIRE(MPIX_Ep_create(comm, &ctx->config, MPI_INFO_NULL, &ctx->ep) == MPI_SUCCESS,
            "no context");
    MPI_Comm_free(&comm); /* the context has its own */
    t_handle_init(handle, ctx);
}

/* A failed create has no object yet: the communicator's handler, if it can be known. */
static void failed_create(MPI_Errhandler a) {
    MPI_Comm comm;
    MPIX_Ep_config config;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, a);
    e_config(&config, MPIX_EP_COMPACT);
    config.max_topk = -1;
    calls_a = 0;
    int code = MPIX_Ep_create(comm, &config, MPI_INFO_NULL, &ep);
    EXPECT(code, MPIX_ERRK_ARG, "config.max_topk", "-1");
    CHECK(calls_a == 1 && last_code == code,
          "a failed create called the communicator's handler %d times", calls_a);
    MPI_Comm_free(&comm);
}

static void no_object(MPI_Errhandler a) {
    MPI_Errhandler before;
    t_where("handlers: errors without an object");
    MPI_Comm_get_errhandler(MPI_COMM_SELF, &before);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, a);
    calls_a = 0;
    MPIX_Ep ep = MPIX_EP_NULL;
    int code = MPIX_Ep_free(&ep);
    CHECK(calls_a == 1 && last_code == code && code != MPI_SUCCESS,
          "freeing nothing called MPI_COMM_SELF's handler %d times", calls_a);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, before);
    if (before != MPI_ERRORS_RETURN && before != MPI_ERRORS_ARE_FATAL)
        MPI_Errhandler_free(&before);
}

static void error_calls(t_ctx *ctx) {
    MPIX_Error error;
    int kind = -9, major = -1, minor = -1, patch = -1, len = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    t_where("handlers: MPIX_Error_*");
    CHECK(MPIX_Error_last(NULL) == MPI_ERR_ARG, "MPIX_Error_last(NULL) is not MPI_ERR_ARG");
    MPIX_INIT(&error);
    error.struct_size = 3;
    CHECK(MPIX_Error_last(&error) == MPI_ERR_ARG, "MPIX_Error_last takes any struct_size");
    CHECK(MPIX_Error_kind(MPI_SUCCESS, NULL) == MPI_ERR_ARG, "MPIX_Error_kind takes NULL");
    CHECK(MPIX_Error_kind(MPI_SUCCESS, &kind) == MPI_SUCCESS && kind == 0,
          "kind of MPI_SUCCESS is %d", kind);
    CHECK(MPIX_Error_kind(MPI_ERR_TAG, &kind) == MPI_SUCCESS && kind == -1,
          "kind of MPI_ERR_TAG is %d", kind);
    CHECK(MPIX_Error_kind(INT_MAX, &kind) == MPI_SUCCESS && kind == -1, "kind of INT_MAX is %d",
          kind);
    CHECK(MPIX_Ep_get_version(&major, &minor, &patch) == MPI_SUCCESS && major >= 0 && minor >= 0 &&
              patch >= 0,
          "version %d.%d.%d", major, minor, patch);
    CHECK(MPIX_Ep_get_version(NULL, NULL, NULL) == MPI_SUCCESS, "get_version insists on outputs");
    int code = MPIX_Ep_get_config(ctx->ep, NULL);
    MPIX_Ep_get_mask(ctx->ep, (int[64]){0}); /* success does not clear the last error */
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(error.code == code && error.kind == MPIX_ERRK_ARG && error.struct_size == sizeof error,
          "the last error was lost: code %d", error.code);
    CHECK(MPI_Error_string(code, text, &len) == MPI_SUCCESS && strstr(text, "config"),
          "MPI_Error_string says \"%s\"", text);
}

void e_handlers(void) {
    t_ctx ctx;
    t_handle handle;
    MPI_Errhandler a, b;
    MPI_Comm_create_errhandler(handler_a, &a);
    MPI_Comm_create_errhandler(handler_b, &b);
    t_where("handlers: a user's handler, inherited");
    create_with(a, &ctx, &handle);
    raised(&ctx, &handle, 1, 0);
    t_where("handlers: replaced by another");
    CHECK_OK(MPIX_Ep_set_errhandler(ctx.ep, b));
    raised(&ctx, &handle, 0, 1);
    t_where("handlers: replaced by MPI_ERRORS_RETURN");
    CHECK_OK(MPIX_Ep_set_errhandler(ctx.ep, MPI_ERRORS_RETURN));
    raised(&ctx, &handle, 0, 0);
    error_calls(&ctx);
    e_destroy(&ctx);
    t_where("handlers: MPI_ERRORS_RETURN, inherited");
    create_with(MPI_ERRORS_RETURN, &ctx, &handle);
    raised(&ctx, &handle, 0, 0);
    CHECK_OK(MPIX_Ep_set_errhandler(ctx.ep, a));
    raised(&ctx, &handle, 1, 0);
    e_destroy(&ctx);
    t_where("handlers: a failed create");
    failed_create(a);
    no_object(a);
    MPI_Errhandler_free(&a);
    MPI_Errhandler_free(&b);
}
