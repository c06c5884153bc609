/* ep_faults_injected.c - ep_faults over the transport chaos: operations that fail and stall. */
#include "ep_faults.h"

#include <string.h>

enum { INJECTED_CALLS = 10 };

/* An error that blames some other rank by number and host. kind 0: any of those that a
 * lost peer gives. */
static void blames_somebody(int kind, const char *what) {
    MPIX_Error error;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(kind ? error.kind == kind
               : error.kind == MPIX_ERRK_TRANSPORT || error.kind == MPIX_ERRK_TIMEOUT ||
                     error.kind == MPIX_ERRK_PEER,
          "%s: kind %d: %s", what, error.kind, error.text);
    CHECK(error.rank >= 0 && error.rank < t_size && error.rank != t_rank && error.host[0],
          "%s: blames rank %d on \"%s\": %s", what, error.rank, error.host, error.text);
}

/*
 * Calls one after the other until one fails, as it must on every rank: on the rank where the
 * operation failed at once, by the time limit on those that wait for it. kind: of the error on the
 * victim; 0: ask not, for it is all ranks' operations that fail.
 */
static void inject(const char *keys, int kind) {
    t_ctx ctx;
    t_handle handle;
    t_call *calls[INJECTED_CALLS];
    int fds = t_open_files(), failed = 0;
    t_where("%s", keys);
    t_watchdog(60);
    extra = keys;
    make(&ctx, &handle, 0.5);
    calls[0] = prepare(&handle, T_ROUTE);
    for (int i = 1; i < INJECTED_CALLS; i++)
        calls[i] = prepare(&handle, i & 1 ? T_DISPATCH : T_COMBINE);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    for (int i = 0; i < INJECTED_CALLS && !failed; i++) {
        int code = t_call_start(calls[i], i & 2);
        if (code == MPI_SUCCESS && !(i & 2))
            code = calls[i]->code = MPIX_Xfer_wait(&calls[i]->xfer);
        if (code == MPI_SUCCESS) {
            t_call_check(calls[i]); /* what ends well is right */
            continue;
        }
        failed = 1;
        blames_somebody(t_rank == victim ? kind : 0, "the call that failed");
        CHECK(now() - begin < 0.5 + 3, "it failed after %.2f s", now() - begin);
    }
    for (int i = 0; i < INJECTED_CALLS; i++)
        for (int b = 0; b < calls[i]->nbufs; b++)
            CHECK_BUF(&calls[i]->bufs[b], calls[i]->names[b]);
    CHECK(failed, "no call failed");
    MPIX_Error error;
    MPIX_INIT(&error);
    CHECK(MPIX_Ep_get_async_error(ctx.ep, &error) == MPI_SUCCESS && error.kind != 0,
          "async error: kind %d", error.kind);
    begin = now();
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    CHECK(now() - begin < 3, "free took %.2f s", now() - begin);
    for (int i = 0; i < INJECTED_CALLS; i++)
        t_call_free(calls[i]);
    t_plans_free();
    extra = "";
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(t_mappings("memfd:mpix-ep") == 0, "%d mappings of windows are left",
          t_mappings("memfd:mpix-ep"));
    /* MPI opens some for the first messages */
    CHECK(t_open_files() <= fds + 2, "%d descriptors, %d before", t_open_files(), fds);
}

static void refused(const char *keys, int kind, int others, const char *text) {
    t_ctx ctx;
    MPIX_Error error;
    int fds = t_open_files();
    t_where("%s", keys);
    extra = keys;
    int code = try_make(&ctx, 20);
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (CHECK(code != MPI_SUCCESS, "a context was made")) {
        CHECK(error.kind == (t_rank == victim ? kind : others), "kind %d: %s", error.kind,
              error.text);
        CHECK(t_rank != victim || strstr(error.text, text), "no \"%s\" in \"%s\"", text,
              error.text);
        CHECK(others != MPIX_ERRK_REMOTE || t_rank == victim || error.rank == victim,
              "blames %d: %s", error.rank, error.text);
        CHECK(ctx.ep == MPIX_EP_NULL, "an output was set");
    } else {
        CHECK_OK(MPIX_Ep_free(&ctx.ep));
    }
    extra = "";
    CHECK(t_open_files() <= fds + 2, "%d descriptors, %d before", t_open_files(), fds);
    CHECK(t_mappings("memfd:mpix-ep") == 0, "%d mappings of windows are left",
          t_mappings("memfd:mpix-ep"));
}

static void well(const char *keys) {
    t_ctx ctx;
    t_handle handle;
    t_where("%s", keys);
    extra = keys;
    make(&ctx, &handle, 20);
    all_well(&handle);
    all_well(&handle);
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    t_plans_free();
    extra = "";
}

void injected(void) {
    static const char *const calls[] = {"open", "address", "connect", "register", "key"};
    char keys[200];
    /* 1 3 7 15: in the route's, the offer's and the batch's operations */
    for (int at = 1; at <= 20; at = at * 2 + 1) {
        snprintf(keys, sizeof keys, "chaos_fail_at=%d chaos_seed=%d chaos_rank=%d", at, at, victim);
        inject(keys, MPIX_ERRK_TRANSPORT);
    }
    for (int at = 2; at <= 20; at *= 3) {
        snprintf(keys, sizeof keys,
                 "chaos_fail_at=%d chaos_reorder=no signal=ordered chaos_seed=%d chaos_rank=%d", at,
                 at, victim);
        inject(keys, MPIX_ERRK_TRANSPORT);
    }
    inject("chaos_fail_ppm=200000", 0);
    snprintf(keys, sizeof keys, "chaos_stall_at=9 chaos_rank=%d", victim);
    inject(keys, MPIX_ERRK_TIMEOUT);
    well("chaos_stall_at=9 chaos_stall_ms=300"); /* a stall that ends is none */
    snprintf(
        keys, sizeof keys,
        "chaos_stall_at=5 chaos_stall_thread=yes chaos_stall_ms=2000 proxy=thread chaos_rank=%d",
        victim);
    inject(keys, MPIX_ERRK_TIMEOUT); /* the victim's proxy does not run for longer than the limit */
    well("chaos_stall_at=5 chaos_stall_thread=yes chaos_stall_ms=300 proxy=thread");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(keys, sizeof keys, "chaos_fail_call=%s chaos_rank=%d", calls[i], victim);
        refused(keys, MPIX_ERRK_TRANSPORT, MPIX_ERRK_REMOTE, "chaos_fail_call");
    }
    /* does not keep order */
    refused("signal=ordered", MPIX_ERRK_UNSUPPORTED, MPIX_ERRK_UNSUPPORTED, "chaos_reorder");
    well("signal=auto");
    well("signal=ordered chaos_reorder=no");
}
