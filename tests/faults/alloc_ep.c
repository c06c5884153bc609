/*
 * alloc_ep.c - the n-th allocation or system call that the library makes in a call fails on one
 * rank, n = 1, 2, ... until none is left.
 *
 *   alloc_ep [--what memory|system] [--layout compact|expert|slots|ll_expert] [--step
 *   NAME] [--sticky 0|1]
 *
 * The rank to which it happens gets NO_MEM (or of a system call: TRANSPORT, UNSUPPORTED), all
 * others REMOTE naming it, or nobody notices. What is made after it is right, compared with a
 * reference; in the end nothing is left: memory, descriptors, mappings.
 */
#include "alloc.h"
#include "call.h"
#include "inject.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CREATE,
    HANDLE,
    ALLOC,
    REGISTER,
    BUFFER,
    ROUTE,
    IROUTE,
    DISPATCH,
    IDISPATCH,
    COMBINE,
    ICOMBINE,
    STEPS
};
static const char *const step_names[STEPS] = {"create",   "handle_create",  "alloc",
                                              "register", "combine_buffer", "route",
                                              "iroute",   "dispatch",       "idispatch",
                                              "combine",  "icombine"};

static t_rng common = {.s = 20}, own;
static int layout, low_latency;
static double limit;

/* In low latency an error that is found when batches come can't reach the others. */
static void agree_call(int step, int code) { agree_alone(step, code, low_latency); }

/* ---- a context's life ------------------------------------------------------------------------ */

static int make(t_ctx *ctx) {
    memset(ctx, 0, sizeof *ctx);
    MPIX_INIT(&ctx->config);
    ctx->config.mode = low_latency ? MPIX_EP_LL : MPIX_EP_HT;
    ctx->config.layout = layout;
    ctx->config.max_topk = 3;
    ctx->config.num_experts = 2 * t_size + 1;
    ctx->config.max_tokens = 20;
    ctx->config.max_row_bytes = 400;
    ctx->config.timeout_s = limit;
    arm(CREATE);
    int code = MPIX_Ep_create(MPI_COMM_WORLD, &ctx->config, MPI_INFO_NULL, &ctx->ep);
    disarm(CREATE);
    return agree(CREATE, code);
}

static t_call *prepare(t_handle *handle, int kind) {
    t_shape s = {.seed = t_rand(&common),
                 .hidden = 90,
                 .dtype = MPIX_EP_F32,
                 .flavour = REF_MIXED,
                 .weights = 1};
    if (kind == T_DISPATCH) { /* rows that change their type need scratch */
        s.to = MPIX_EP_F16;
        return t_call_dispatch(handle, &s, &own);
    }
    if (kind == T_COMBINE) {
        s.dtype = MPIX_EP_BF16;
        s.float_sums = !low_latency;
        return t_call_combine(handle, &s, &own);
    }
    int64_t *ids = t_make_ids((int)handle->ctx->config.num_experts, NULL, T_UNIFORM, s.seed, 20, 3,
                              &own);
    t_call *call = t_call_route(handle, 20, 3, ids, 32, &own);
    free(ids);
    return call;
}

static void well(t_handle *handle, int kind) { t_call_run(prepare(handle, kind), 1); }

static void all_well(t_handle *handle) {
    for (int kind = T_ROUTE; kind <= T_COMBINE; kind++)
        t_call_run(prepare(handle, kind), kind & 1);
}

/* One call with the failure in it, blocking or not; its code. */
static void run_blocking(t_handle *handle, int step, int kind) {
    t_call *call = prepare(handle, kind);
    arm(step);
    int code = t_call_start(call, 1);
    disarm(step);
    agree_call(step, code);
    t_call_check(call);
    t_call_free(call);
}

/*
 * Three in a row, the failure in the second: the others must hold their own rows. The rank that it
 * fails on has no transfer to wait for: its later calls of the context bring the failed batch to
 * its peers, so it must make one before it goes on in MPI. The others do not come to the second
 * before that rank may have completed the first.
 */
static void run_nonblocking(t_handle *handle, int step, int kind) {
    t_call *call[3];
    int n = kind == T_ROUTE ? 1 : 3, bad = kind == T_ROUTE ? 0 : 1,
        late = step == at_step && t_rank != victim;
    for (int i = 0; i < n; i++)
        call[i] = prepare(handle, kind);
    for (int i = 0; i < n; i++) {
        if (i == bad)
            arm(step);
        t_call_start(call[i], 0);
        if (i == bad)
            disarm(step);
        if (i < bad && late && call[i]->code == MPI_SUCCESS)
            call[i]->code = MPIX_Xfer_wait(&call[i]->xfer);
        if (i < bad && late)
            usleep(2000);
    }
    for (int i = 0; i < n; i++) {
        if (call[i]->code == MPI_SUCCESS)
            call[i]->code = MPIX_Xfer_wait(&call[i]->xfer);
        if (i != bad)
            CHECK(call[i]->code == MPI_SUCCESS, "call %d of %s, beside one that failed, has failed",
                  i, step_names[step]);
        t_call_check(call[i]);
    }
    int code = call[bad]->code;
    for (int i = 0; i < n; i++)
        t_call_free(call[i]);
    if (step == at_step)
        well(handle, kind); /* the same once more */
    agree_call(step, code);
}

static void run_calls(t_handle *handle) {
    static const int kinds[] = {T_ROUTE, T_DISPATCH, T_COMBINE};
    for (int k = 0; k < 3; k++) {
        int step = ROUTE + 2 * k;
        run_blocking(handle, step, kinds[k]);
        if (step == at_step)
            well(handle, kinds[k]); /* the same once more */
        run_nonblocking(handle, step + 1, kinds[k]);
    }
    all_well(handle);
}

static int make_handle(t_ctx *ctx, t_handle *handle) {
    memset(handle, 0, sizeof *handle);
    handle->ctx = ctx;
    arm(HANDLE);
    int code = MPIX_Ep_handle_create(ctx->ep, &handle->h);
    disarm(HANDLE);
    return agree(HANDLE, code);
}

static int make_area(t_ctx *ctx) {
    ctx->area.bytes = 1 << 18;
    arm(ALLOC);
    int code = MPIX_Ep_alloc(ctx->ep, (MPI_Count)ctx->area.bytes, MPI_INFO_NULL, &ctx->area.base);
    disarm(ALLOC);
    if (code != MPI_SUCCESS)
        ctx->area = (t_area){0};
    return agree(ALLOC, code);
}

static char pool[4096];

static int make_registration(t_ctx *ctx) {
    int direct;
    arm(REGISTER);
    int code = MPIX_Ep_register(ctx->ep, pool, sizeof pool, &direct);
    disarm(REGISTER);
    return agree(REGISTER, code);
}

static int make_buffer(t_handle *handle) {
    MPIX_Ep_rows rows;
    arm(BUFFER);
    int code = MPIX_Ep_combine_buffer(handle->h, &rows);
    disarm(BUFFER);
    return agree(BUFFER, code);
}

static void life(void) {
    t_ctx ctx;
    t_handle handle, other;
    if (!make(&ctx))
        return;
    if (!make_handle(&ctx, &handle)) /* a refused call changes nothing: the same once more */
        REQUIRE(CHECK_OK(MPIX_Ep_handle_create(ctx.ep, &handle.h)), "no handle");
    t_handle_init(&other, &ctx);
    if (!make_area(&ctx)) {
        ctx.area.bytes = 1 << 18;
        CHECK_OK(MPIX_Ep_alloc(ctx.ep, (MPI_Count)ctx.area.bytes, MPI_INFO_NULL, &ctx.area.base));
    }
    if (!make_registration(&ctx)) {
        int direct;
        CHECK_OK(MPIX_Ep_register(ctx.ep, pool, sizeof pool, &direct));
    }
    if (layout == MPIX_EP_SLOTS && !make_buffer(&handle)) {
        MPIX_Ep_rows rows;
        CHECK_OK(MPIX_Ep_combine_buffer(handle.h, &rows));
    }
    run_calls(&handle);
    all_well(&other);
    CHECK_OK(MPIX_Ep_deregister(ctx.ep, pool));
    t_handle_done(&handle, 1);
    CHECK_OK(MPIX_Ep_dealloc(ctx.ep, ctx.area.base));
    CHECK_OK(MPIX_Ep_free(&ctx.ep)); /* with a handle */
    t_plans_free();
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "alloc_ep");
    const char *form = t_option_text(argc, argv, "--layout", "compact");
    limit = (double)t_option(argc, argv, "--limit", 60);
    low_latency = !strcmp(form, "slots") || !strcmp(form, "ll_expert");
    layout = !strcmp(form, "slots")     ? MPIX_EP_SLOTS
             : !strcmp(form, "compact") ? MPIX_EP_COMPACT
                                        : MPIX_EP_EXPERT;
    own.s = 100u + (unsigned)t_rank;
    alloc_run(argc, argv, life, STEPS, step_names);
    return t_end();
}
