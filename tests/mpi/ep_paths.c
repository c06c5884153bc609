/*
 * ep_paths.c - one path of host memory, cell by cell: what the table claims works and is right by
 * the reference, what it denies is refused with the path's name.
 *
 *   ep_paths CELLS PATH REACH
 *
 * CELLS is what `mpix_ep_info --paths=cells` prints; REACH the feature that says how ranks reach
 * each other: mapped, proxied, mixed or two-hops, for which the environment is set. tests/paths.sh
 * runs it.
 */
#include "call.h"
#include "cells.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 9, TOPK = 3, HIDDEN = 136, EXPERTS_EACH = 3 };

static t_rng common, own;
static t_ctx ctx;
static t_handle handle;
static const char *layout;

static t_shape shape_of(int dtype) {
    return (t_shape){.seed = t_rand(&common),
                     .hidden = HIDDEN,
                     .dtype = dtype,
                     .flavour = REF_MIXED,
                     .weights = 1,
                     .slot_values = 1};
}

static t_call *route(void) {
    int experts = (int)ctx.config.num_experts;
    int64_t *ids = t_make_ids(experts, NULL, T_UNIFORM, t_rand(&common), TOKENS, TOPK, &own);
    t_call *c = t_call_route(&handle, TOKENS, TOPK, ids, 32, &own);
    free(ids);
    return c;
}

static t_call *call_of(int kind, const t_shape *s) {
    return kind == T_ROUTE      ? route()
           : kind == T_DISPATCH ? t_call_dispatch(&handle, s, &own)
                                : t_call_combine(&handle, s, &own);
}

/* A prepared call whose result is the feature's; a failed one is held against the table. */
static void try_call(const char *feature, t_call *c) {
    t_where("%s: %s", layout, feature);
    if (cells_hold(layout, feature, t_call_start(c, 1)))
        t_call_check(c);
    t_call_free(c);
}

/* The calls that come before it must work whatever the table says. */
static void ready(int kind, const t_shape *s) {
    t_where("%s: calls before", layout);
    t_call_run(route(), 1);
    if (kind == T_COMBINE)
        t_call_run(t_call_dispatch(&handle, s, &own), 1);
}

/* ---- features -------------------------------------------------------------------------------- */

static void try_forms(void) {
    static const char *const features[] = {"nonblocking", "blocking"};
    t_shape s = shape_of(MPIX_EP_F32);
    for (int blocking = 0; blocking < 2; blocking++)
        for (int kind = T_ROUTE; kind <= T_COMBINE; kind++) {
            t_call *c = call_of(kind, &s);
            t_where("%s: %s call of kind %d", layout, features[blocking], kind);
            if (cells_hold(layout, features[blocking], t_call_start(c, blocking)) &&
                (blocking || CHECK_OK(MPIX_Xfer_wait(&c->xfer))))
                t_call_check(c);
            t_call_free(c);
        }
}

static void try_streams(void) {
    t_shape s = shape_of(MPIX_EP_F32);
    MPIX_Ep_handle h = handle.h;
    t_where("%s: calls in a stream", layout);
    ready(T_COMBINE, &s);
    t_call *r = route(), *d = call_of(T_DISPATCH, &s), *c = call_of(T_COMBINE, &s);
    const MPIX_Ep_dispatch_in *in = &d->u.dispatch.in;
    const MPIX_Ep_dispatch_out *out = &d->u.dispatch.out;
    const MPIX_Ep_combine_in *back = &c->u.combine.in;
    const MPIX_Ep_combine_out *sum = &c->u.combine.out;
    cells_hold(layout, "stream", MPIX_Ep_route_enqueue(h, &r->u.route.in, NULL, NULL));
    cells_hold(layout, "stream", MPIX_Ep_dispatch_enqueue(h, in, out, NULL));
    cells_hold(layout, "stream", MPIX_Ep_combine_enqueue(h, back, sum, NULL));
    cells_hold(layout, "halves", MPIX_Ep_dispatch_begin_enqueue(h, in, out, NULL));
    cells_hold(layout, "halves", MPIX_Ep_dispatch_end_enqueue(h, NULL));
    cells_hold(layout, "halves", MPIX_Ep_combine_begin_enqueue(h, back, sum, NULL));
    cells_hold(layout, "halves", MPIX_Ep_combine_end_enqueue(h, NULL));
    t_call_free(r), t_call_free(d), t_call_free(c);
}

static void try_counts(void) {
    static MPI_Count ranks[64], experts[64];
    MPIX_Ep_counts counts;
    t_shape s = shape_of(MPIX_EP_F32);
    t_call *r = route();
    MPIX_INIT(&counts);
    counts.recv_per_rank = ranks;
    counts.recv_per_expert = experts;
    t_where("%s: counts of route", layout);
    if (cells_hold(layout, "route-counts", MPIX_Ep_route(handle.h, &r->u.route.in, &counts)))
        t_check_received(r->plan, &counts);
    t_call_free(r);
    ready(T_DISPATCH, &s);
    t_call *d = call_of(T_DISPATCH, &s);
    d->u.dispatch.out.recv_per_rank = ranks;
    d->u.dispatch.out.recv_per_expert = experts;
    try_call("dispatch-counts", d);
}

static void try_dtypes(void) {
    for (int dtype = MPIX_EP_F64; dtype <= MPIX_EP_BYTES; dtype++)
        for (int scales = 0; scales <= (dtype == MPIX_EP_F8E4M3 || dtype == MPIX_EP_F8E5M2 ? 2 : 0);
             scales++) {
            t_shape s = shape_of(dtype);
            s.scale_kind = scales;
            ready(T_ROUTE, &s);
            try_call("any-dtype", call_of(T_DISPATCH, &s));
            if (dtype != MPIX_EP_BYTES)
                try_call("any-dtype", call_of(T_COMBINE, &s));
        }
}

static void try_conversions(void) {
    static const int narrow[][2] = {{MPIX_EP_F64, MPIX_EP_F32},
                                    {MPIX_EP_F64, MPIX_EP_F16},
                                    {MPIX_EP_F64, MPIX_EP_BF16},
                                    {MPIX_EP_F32, MPIX_EP_F16},
                                    {MPIX_EP_F32, MPIX_EP_BF16}};
    t_shape s;
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        s = shape_of(narrow[i][0]);
        s.to = narrow[i][1];
        ready(T_DISPATCH, &s);
        try_call("narrow", call_of(T_DISPATCH, &s));
    }
    for (int from = MPIX_EP_F32; from <= MPIX_EP_BF16; from++)
        for (int kind = 0; kind < 4; kind++) {
            s = shape_of(from);
            s.to = kind & 1 ? MPIX_EP_F8E5M2 : MPIX_EP_F8E4M3;
            s.to_scale = kind & 2 ? MPIX_EP_SCALES_UE8M0 : MPIX_EP_SCALES_F32;
            ready(T_DISPATCH, &s);
            try_call("quantise", call_of(T_DISPATCH, &s));
        }
}

/* Weights of the token's owner: the reference gives them by chance, where there may be any. */
static void try_owner_weights(void) {
    static const float ones[TOKENS * TOPK];
    t_shape s = shape_of(MPIX_EP_F32);
    int say = cells_say(layout, "owner-weights");
    if (say == CELL_MOOT)
        return;
    ready(T_COMBINE, &s);
    t_call *c = call_of(T_COMBINE, &s);
    while (say == CELL_YES && !c->u.combine.in.topk_weights) {
        t_call_free(c);
        c = call_of(T_COMBINE, &s);
    }
    if (say == CELL_NO)
        c->u.combine.in.topk_weights = ones;
    try_call("owner-weights", c);
}

static void try_wires(void) {
    static const int any[] = {MPIX_EP_F64, MPIX_EP_F16, MPIX_EP_BF16};
    int ll = ctx.config.mode == MPIX_EP_LL;
    t_shape s = shape_of(MPIX_EP_BF16);
    s.wire = ll ? MPIX_EP_F32 : 0;
    s.float_sums = !ll;
    ready(T_COMBINE, &s);
    try_call("wire-f32", call_of(T_COMBINE, &s));
    for (size_t i = 0; i < sizeof any / sizeof *any; i++) {
        s = shape_of(MPIX_EP_F32);
        s.wire = ll ? any[i] : 0;
        ready(T_COMBINE, &s);
        t_call *c = call_of(T_COMBINE, &s);
        c->u.combine.in.wire = any[i];
        try_call("wire-any", c);
    }
}

static void try_buffer(void) {
    MPIX_Ep_rows rows = {0};
    t_shape s = shape_of(MPIX_EP_F32);
    s.buffer = cells_say(layout, "combine-buffer") == CELL_YES;
    ready(T_COMBINE, &s);
    t_where("%s: combine-buffer", layout);
    if (s.buffer)
        try_call("combine-buffer", call_of(T_COMBINE, &s));
    else
        cells_hold(layout, "combine-buffer", MPIX_Ep_combine_buffer(handle.h, &rows));
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void config_make(const char *path, int number) {
    MPIX_Ep_config *c = &ctx.config;
    memset(&ctx, 0, sizeof ctx);
    MPIX_INIT(c);
    c->mode = strstr(path, "-ll") ? MPIX_EP_LL : MPIX_EP_HT;
    c->layout = number;
    c->num_experts = EXPERTS_EACH * t_size;
    c->max_topk = TOPK;
    c->max_tokens = TOKENS;
    c->max_row_bytes = 8 * HIDDEN;
    c->timeout_s = 60;
}

static void try_masking(const char *path, int number) {
    MPIX_Ep ep = NULL;
    config_make(path, number);
    ctx.config.masking = 1;
    t_where("%s: masking", layout);
    if (cells_hold(layout, "masking",
                   MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ep)))
        MPIX_Ep_free(&ep);
}

/* Rows lie in the caller's own memory and, where t_call has an area, in the context's. */
static void try_layout(const char *path, int number, const char *reach) {
    config_make(path, number);
    t_where("%s: a context", layout);
    const char *feature = cells_say(layout, "layout") == CELL_NO  ? "layout"
                          : cells_say(layout, reach) == CELL_MOOT ? "layout"
                                                                  : reach;
    if (!cells_hold(layout, feature,
                    MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ctx.ep)))
        return;
    if (cells_say(layout, "layout") == CELL_NO) {
        MPIX_Ep_free(&ctx.ep);
        return;
    }
    t_handle_init(&handle, &ctx);
    try_forms();
    try_streams();
    try_counts();
    try_dtypes();
    try_conversions();
    try_owner_weights();
    try_wires();
    try_buffer();
    t_handle_done(&handle, 1);
    CHECK(cells_say(layout, "any-output") == CELL_YES && cells_say(layout, "any-input") == CELL_YES,
          "the rows of these calls lie in any memory, which the table denies");
    cells_hold(layout, "masking", MPIX_Ep_set_mask(ctx.ep, 0, 0));
    MPIX_Ep_free(&ctx.ep);
    t_plans_free();
    try_masking(path, number);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"COMPACT", "EXPERT", "SLOTS"};
    t_init(&argc, &argv, "ep_paths");
    REQUIRE(argc == 4, "usage: ep_paths CELLS PATH REACH");
    cells_read(argv[1], argv[2]);
    common.s = t_hash2(21, (uint64_t)t_size);
    own.s = t_hash2(22, (uint64_t)t_rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int l = 0; l < 3; l++) {
        layout = names[l];
        t_watchdog(60);
        try_layout(argv[2], l, argv[3]);
    }
    if (t_rank == 0)
        printf("ep_paths: %s %s: %d cells tried\n", argv[2], argv[3], cells_tried);
    return t_end();
}
