/*
 * errors_calls.c - faults of route, dispatch and combine: each on all ranks and on one alone,
 * blocking and not, in both layouts.
 *
 * A fault is a statement that spoils a well prepared call on the rank that errs. It gets its own
 * error; the other ranks get REMOTE naming it; a verified route, dispatch and combine follow.
 */
#include "errors.h"

#include <stdlib.h>
#include <string.h>

/* LATE: found only when the counts or the peers are known, so a nonblocking call may return the
 * error at completion. */
enum { IN_COMPACT = 1, IN_EXPERT = 2, FP8 = 4, ONE_RANK = 8, ALL_RANKS = 16, LATE = 32 };

typedef struct {
    const char *name, *arg, *texts[3];
    int call, kind, flags;
    void (*spoil)(t_call *call);
} fault;

/* X(name, flags, kind, argument, text, text, statement). Texts: the value and the limit. */
#define ROUTE_FAULTS(X) \
    X(r_size, 0, ARG, "routing.struct_size", "0", NULL, r->struct_size = 0) \
    X(r_tokens_negative, 0, ARG, "routing.num_tokens", "-1", "8", r->num_tokens = -1) \
    X(r_tokens_many, 0, ARG, "routing.num_tokens", "9", "8", r->num_tokens = E_MAX_TOKENS + 1) \
    X(r_topk_negative, 0, ARG, "routing.topk", "-3", NULL, r->topk = -3) \
    X(r_topk_many, 0, ARG, "routing.topk", "64", "63", r->topk = E_MAX_TOPK + 1) \
    X(r_topk_experts, 0, ARG, "routing.topk", experts1, experts0, \
      r->topk = (int)c->handle->ctx->config.num_experts + 1) \
    X(r_idx_bits, 0, ARG, "routing.idx_bits", "16", "64", r->idx_bits = 16) \
    X(r_ids_null, 0, ARG, "routing.ids", "NULL", NULL, r->ids = NULL) \
    X(r_ids_misaligned, 0, ARG, "routing.ids", "4", NULL, r->ids = (const char *)r->ids + 2) \
    X(r_stride_negative, 0, ARG, "routing.ids_stride", "-4", NULL, r->ids_stride = -4) \
    X(r_stride_odd, 0, ARG, "routing.ids_stride", "14", "4", r->ids_stride = 14) \
    X(r_stride_small, 0, ARG, "routing.ids_stride", "8", "12", r->ids_stride = 8) \
    X(r_id_large, 0, ARG, "routing.ids", experts0, NULL, \
      put_id(c, 3, (int)c->handle->ctx->config.num_experts)) \
    X(r_id_negative, 0, ARG, "routing.ids", "-2", experts0, put_id(c, 1, -2)) \
    X(r_id_huge, 0, ARG, "routing.ids", "1099511627776", experts0, wide_id(c)) \
    X(r_id_twice, 0, ARG, "routing.ids", "1", NULL, (put_id(c, 3, 1), put_id(c, 5, 1))) \
    X(r_null, 0, ARG, "routing", "NULL", NULL, null_in = 1) \
    X(r_counts_size, 0, ARG, "counts.struct_size", "3", NULL, need_counts(c)->struct_size = 3) \
    X(r_counts_offset, IN_COMPACT, ARG, "counts.expert_offset", NULL, NULL, \
      need_counts(c)->expert_offset = &some_count) \
    X(r_counts_misaligned, 0, ARG, "counts.recv_total", NULL, NULL, \
      need_counts(c)->recv_total = (MPI_Count *)((char *)&some_count + 1))

#define DISPATCH_FAULTS(X) \
    X(d_size, 0, ARG, "in.struct_size", NULL, NULL, d->struct_size = 1) \
    X(d_null, 0, ARG, "in", "NULL", NULL, null_in = 1) \
    X(d_null_out, 0, ARG, "out", "NULL", NULL, null_out = 1) \
    X(d_hidden_zero, 0, ARG, "in.hidden", "0", "1", d->hidden = 0) \
    X(d_hidden_negative, 0, ARG, "in.hidden", "-5", "1", d->hidden = -5) \
    X(d_hidden_large, 0, ARG, "in.hidden", "33", "64", d->hidden = 33) \
    X(d_hidden_huge, 0, ARG, "in.hidden", "9223372036854775807", "64", d->hidden = INT64_MAX) \
    X(d_dtype_none, 0, ARG, "in.x.dtype", "not set", NULL, d->x.dtype = 0) \
    X(d_dtype, 0, ARG, "in.x.dtype", "99", NULL, d->x.dtype = 99) \
    X(d_dtype_negative, 0, ARG, "in.x.dtype", "-1", NULL, d->x.dtype = -1) \
    X(d_scale_kind, FP8, ARG, "in.x.scale_kind", "9", NULL, d->x.scale_kind = 9) \
    X(d_scales_dtype, 0, ARG, "in.x.scale_kind", NULL, NULL, d->x.scale_kind = MPIX_EP_SCALES_F32) \
    X(d_scales_null, FP8, ARG, "in.x.scales", "NULL", NULL, d->x.scales = NULL) \
    X(d_scales_misaligned, FP8, ARG, "in.x.scales", "4", NULL, \
      d->x.scales = (char *)d->x.scales + 1) \
    X(d_scale_stride, FP8, ARG, "in.x.scale_stride", "6", "4", d->x.scale_stride = 6) \
    X(d_data_null, 0, ARG, "in.x.data", "NULL", NULL, d->x.data = NULL) \
    X(d_data_misaligned, 0, ARG, "in.x.data", "2", NULL, d->x.data = (char *)d->x.data + 1) \
    X(d_stride_odd, 0, ARG, "in.x.stride", "49", "2", d->x.stride = 49) \
    X(d_stride_small, 0, ARG, "in.x.stride", "46", "48", d->x.stride = 46) \
    X(d_stride_negative, 0, ARG, "in.x.stride", "-48", NULL, d->x.stride = -48) \
    X(d_weights_misaligned, 0, ARG, "in.topk_weights", "4", NULL, \
      d->topk_weights = (const float *)((const char *)d->topk_weights + 1)) \
    X(d_weights_missing, ONE_RANK | LATE, ARG, "in.topk_weights", NULL, NULL, \
      d->topk_weights = NULL) \
    X(d_out_size, 0, ARG, "out.struct_size", NULL, NULL, o->struct_size = 0) \
    X(d_capacity_negative, 0, ARG, "out.capacity_rows", "-2", NULL, o->capacity_rows = -2) \
    X(d_capacity_small, LATE, TRUNCATE, "out.capacity_rows", rows1, rows0, \
      o->capacity_rows = c->plan->total[t_rank] - 1) \
    X(d_capacity_zero, LATE, TRUNCATE, "out.capacity_rows", "0", rows0, o->capacity_rows = 0) \
    X(d_out_null, 0, ARG, "out.x.data", "NULL", NULL, o->x.data = NULL) \
    X(d_out_misaligned, 0, ARG, "out.x.data", "2", NULL, o->x.data = (char *)o->x.data + 1) \
    X(d_out_stride, 0, ARG, "out.x.stride", "51", "2", o->x.stride = 51) \
    X(d_out_stride_small, 0, ARG, "out.x.stride", "2", "48", o->x.stride = 2) \
    X(d_out_dtype, 0, UNSUPPORTED, "out.x.dtype", NULL, NULL, o->x.dtype = MPIX_EP_F64) \
    X(d_out_fp8_plain, 0, UNSUPPORTED, "out.x.dtype", NULL, NULL, o->x.dtype = MPIX_EP_F8E4M3) \
    X(d_out_dtype_bad, 0, ARG, "out.x.dtype", "77", NULL, o->x.dtype = 77) \
    X(d_out_scales_null, FP8, ARG, "out.x.scales", "NULL", NULL, o->x.scales = NULL) \
    X(d_local_ids, IN_EXPERT, ARG, "out.local_ids", NULL, NULL, o->local_ids = &some_int) \
    X(d_src_rank, 0, ARG, "out.src_rank", "4", NULL, o->src_rank = (int *)((char *)&some_int + 1)) \
    X(d_src_token, 0, ARG, "out.src_token", "8", NULL, \
      o->src_token = (MPI_Count *)((char *)&some_count + 4)) \
    X(d_cumulative, 0, ARG, "out.cumulative", "8", NULL, \
      o->cumulative = (int64_t *)((char *)&some_count + 4)) \
    X(d_wait_ns, 0, ARG, "out.wait_ns", "8", NULL, \
      o->wait_ns = (int64_t *)((char *)&some_count + 4))

#define COMBINE_FAULTS(X) \
    X(c_size, 0, ARG, "in.struct_size", NULL, NULL, m->struct_size = 9) \
    X(c_out_size, 0, ARG, "out.struct_size", NULL, NULL, p->struct_size = 9) \
    X(c_null, 0, ARG, "in", "NULL", NULL, null_in = 1) \
    X(c_null_out, 0, ARG, "out", "NULL", NULL, null_out = 1) \
    X(c_hidden, 0, ARG, "in.hidden", "0", "1", m->hidden = 0) \
    X(c_hidden_large, 0, ARG, "in.hidden", "33", "64", m->hidden = 33) \
    X(c_bytes, 0, ARG, "in.x.dtype", NULL, NULL, m->x.dtype = MPIX_EP_BYTES) \
    X(c_dtype_none, 0, ARG, "in.x.dtype", "not set", NULL, m->x.dtype = 0) \
    X(c_dtype, 0, ARG, "in.x.dtype", "44", NULL, m->x.dtype = 44) \
    X(c_data_null, LATE, ARG, "in.x.data", "NULL", NULL, m->x.data = NULL) \
    X(c_data_misaligned, 0, ARG, "in.x.data", "2", NULL, m->x.data = (char *)m->x.data + 1) \
    X(c_stride, 0, ARG, "in.x.stride", "47", NULL, m->x.stride = 47) \
    X(c_scales, FP8 | LATE, ARG, "in.x.scales", "NULL", NULL, m->x.scales = NULL) \
    X(c_row_weights, 0, ARG, "in.row_weights", "4", NULL, \
      m->row_weights = (const float *)((const char *)&some_int + 1)) \
    X(c_topk_weights, IN_COMPACT, ARG, "in.topk_weights", NULL, NULL, \
      m->topk_weights = &some_float) \
    X(c_slots_out, ALL_RANKS | LATE, ARG, "out.slot_values", NULL, NULL, \
      (m->slot_values = NULL, p->slot_values = &some_float)) \
    X(c_slots_misaligned, 0, ARG, "in.slot_values", "4", NULL, \
      m->slot_values = (const float *)((const char *)&some_int + 1)) \
    X(c_bias_many, 0, ARG, "in.num_bias", "3", "2", m->num_bias = 3) \
    X(c_bias_negative, 0, ARG, "in.num_bias", "-1", "2", m->num_bias = -1) \
    X(c_bias_dtype, 0, ARG, "in.bias[1].dtype", NULL, NULL, \
      (two_biases(c), m->bias[1].dtype = other(p->y.dtype ? p->y.dtype : m->x.dtype))) \
    X(c_bias_null, 0, ARG, "in.bias[0].data", "NULL", NULL, \
      (two_biases(c), m->bias[0].data = NULL)) \
    X(c_bias_stride, 0, ARG, "in.bias[1].stride", "1", NULL, \
      (two_biases(c), m->bias[1].stride = 1)) \
    X(c_wire, 0, UNSUPPORTED, "in.wire", NULL, NULL, m->wire = MPIX_EP_F16) \
    X(c_wire_bad, 0, ARG, "in.wire", "123", NULL, m->wire = 123) \
    X(c_y_dtype, 0, ARG, "out.y.dtype", NULL, NULL, p->y.dtype = MPIX_EP_F8E5M2) \
    X(c_y_dtype_bad, 0, ARG, "out.y.dtype", "8", NULL, p->y.dtype = 8) \
    X(c_y_fp8, FP8, ARG, "out.y.dtype", NULL, NULL, (m->num_bias = 0, p->y.dtype = 0)) \
    X(c_y_null, 0, ARG, "out.y.data", "NULL", NULL, p->y.data = NULL) \
    X(c_y_misaligned, 0, ARG, "out.y.data", NULL, NULL, p->y.data = (char *)p->y.data + 1) \
    X(c_y_stride, 0, ARG, "out.y.stride", "4", NULL, p->y.stride = 4) \
    X(c_y_scales, 0, ARG, "out.y.scale_kind", NULL, NULL, p->y.scale_kind = MPIX_EP_SCALES_F32) \
    X(c_wait_ns, 0, ARG, "out.wait_ns", "8", NULL, \
      p->wait_ns = (int64_t *)((char *)&some_count + 4))

static _Alignas(16) MPI_Count some_counts[2];
static _Alignas(16) int some_ints[4];
static _Alignas(16) float some_floats[256];
#define some_count some_counts[0]
#define some_int some_ints[0]
#define some_float some_floats[0]

static int null_in, null_out;
/* number of experts, one more; rows of this rank, one less */
static char experts0[24], experts1[24], rows0[24], rows1[24];

static void put_id(t_call *call, int at, int id) {
    MPIX_Ep_routing *r = &call->u.route.in;
    t_buf_readonly(t_call_find(call, r->ids), 0);
    int64_t stride = r->ids_stride ? r->ids_stride : E_TOPK * 4;
    memcpy((char *)r->ids + at / E_TOPK * stride + at % E_TOPK * 4, &id, 4);
}

static void wide_id(t_call *call) {
    static int64_t ids[E_TOKENS * E_TOPK];
    for (int i = 0; i < E_TOKENS * E_TOPK; i++)
        ids[i] = -1;
    ids[7] = INT64_C(1) << 40; /* 0 if somebody looks at 32 bits only */
    call->u.route.in.ids = ids;
    call->u.route.in.idx_bits = 64;
    call->u.route.in.ids_stride = 0;
}

static MPIX_Ep_counts *need_counts(t_call *call) {
    if (!call->u.route.out.struct_size)
        MPIX_INIT(&call->u.route.out);
    return &call->u.route.out;
}

static void two_biases(t_call *call) {
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    in->num_bias = 2;
    for (int b = 0; b < 2; b++) {
        in->bias[b].data = some_floats;
        in->bias[b].stride = 0;
        in->bias[b].dtype = call->u.combine.ydtype;
    }
}

static int other(int dtype) { return dtype == MPIX_EP_F32 ? MPIX_EP_BF16 : MPIX_EP_F32; }

#define SPOIL_ROUTE(name, flags, kind, arg, t1, t2, statement) \
    static void name(t_call *c) { \
        MPIX_Ep_routing *r = &c->u.route.in; \
        (void)r; \
        statement; \
    }
#define SPOIL_DISPATCH(name, flags, kind, arg, t1, t2, statement) \
    static void name(t_call *c) { \
        MPIX_Ep_dispatch_in *d = &c->u.dispatch.in; \
        MPIX_Ep_dispatch_out *o = &c->u.dispatch.out; \
        (void)d; \
        (void)o; \
        statement; \
    }
#define SPOIL_COMBINE(name, flags, kind, arg, t1, t2, statement) \
    static void name(t_call *c) { \
        MPIX_Ep_combine_in *m = &c->u.combine.in; \
        MPIX_Ep_combine_out *p = &c->u.combine.out; \
        (void)m; \
        (void)p; \
        statement; \
    }
ROUTE_FAULTS(SPOIL_ROUTE)
DISPATCH_FAULTS(SPOIL_DISPATCH)
COMBINE_FAULTS(SPOIL_COMBINE)

#define ROUTE_ROW(name, flags, kind, arg, t1, t2, statement) \
    {#name, arg, {t1, t2, NULL}, T_ROUTE, MPIX_ERRK_##kind, flags, name},
#define DISPATCH_ROW(name, flags, kind, arg, t1, t2, statement) \
    {#name, arg, {t1, t2, NULL}, T_DISPATCH, MPIX_ERRK_##kind, flags, name},
#define COMBINE_ROW(name, flags, kind, arg, t1, t2, statement) \
    {#name, arg, {t1, t2, NULL}, T_COMBINE, MPIX_ERRK_##kind, flags, name},
static const fault faults[] = {ROUTE_FAULTS(ROUTE_ROW) DISPATCH_FAULTS(DISPATCH_ROW)
                                   COMBINE_FAULTS(COMBINE_ROW)};

static int start(t_call *call, int blocking) {
    MPIX_Ep_handle h = call->handle->h;
    if (!null_in && !null_out)
        return t_call_start(call, blocking);
    switch (call->kind) {
    case T_ROUTE:
        return blocking ? MPIX_Ep_route(h, NULL, NULL) : MPIX_Ep_iroute(h, NULL, NULL, &call->xfer);
    case T_DISPATCH: {
        const MPIX_Ep_dispatch_in *in = null_in ? NULL : &call->u.dispatch.in;
        const MPIX_Ep_dispatch_out *out = null_out ? NULL : &call->u.dispatch.out;
        return blocking ? MPIX_Ep_dispatch(h, in, out) : MPIX_Ep_idispatch(h, in, out, &call->xfer);
    }
    default: {
        const MPIX_Ep_combine_in *in = null_in ? NULL : &call->u.combine.in;
        const MPIX_Ep_combine_out *out = null_out ? NULL : &call->u.combine.out;
        return blocking ? MPIX_Ep_combine(h, in, out) : MPIX_Ep_icombine(h, in, out, &call->xfer);
    }
    }
}

/* victim -1: all ranks err. */
static void one_fault(const fault *f, t_handle *handle, int victim, int blocking) {
    int dtype = f->flags & FP8 ? MPIX_EP_F8E4M3 : MPIX_EP_BF16,
        errs = victim < 0 || victim == t_rank;
    t_shape shape = e_shape(dtype, f->flags & FP8 ? MPIX_EP_SCALES_F32 : 0);
    t_call *call;
    if (f->call == T_ROUTE)
        call = e_route(handle);
    else if (f->call == T_DISPATCH)
        call = t_call_dispatch(handle, &shape, &e_own);
    else
        call = t_call_combine(handle, &shape, &e_own);
    null_in = null_out = 0;
    snprintf(experts0, sizeof experts0, "%lld", (long long)handle->ctx->config.num_experts);
    snprintf(experts1, sizeof experts1, "%lld", (long long)handle->ctx->config.num_experts + 1);
    snprintf(rows0, sizeof rows0, "%lld", (long long)call->plan->total[t_rank]);
    snprintf(rows1, sizeof rows1, "%lld", (long long)call->plan->total[t_rank] - 1);
    /* All ranks have the buffers of the call's shape; make them ordinary enough for the
     * statements above. */
    if (f->call == T_ROUTE)
        call->u.route.in.idx_bits = 32;
    if (f->call == T_DISPATCH && !call->u.dispatch.out.topk_weights && f->flags & ONE_RANK &&
        victim != t_rank)
        call->u.dispatch.out.topk_weights = /* the others want what the victim does not give */
            t_call_buf(call, "out.topk_weights",
                       (size_t)(call->plan->total[t_rank] * call->plan->topk) * 4, 4, 0, &e_own);
    if (errs)
        f->spoil(call);
    call->xfer = MPIX_XFER_NULL;
    int code = start(call, blocking);
    if (errs) {
        if (!blocking && f->flags & LATE && code == MPI_SUCCESS)
            code = MPIX_Xfer_wait(&call->xfer);
        e_expect(__FILE__, __LINE__, code, f->kind, f->arg, f->texts);
        if (!blocking)
            CHECK(call->xfer == MPIX_XFER_NULL, "a refused call set its transfer");
    } else if (blocking) {
        EXPECT_REMOTE(code, victim);
    } else if (CHECK_OK(code)) {
        EXPECT_REMOTE(MPIX_Xfer_wait(&call->xfer), victim);
        CHECK(call->xfer == MPIX_XFER_NULL, "a failed transfer is not MPIX_XFER_NULL");
    }
    for (int i = 0; i < call->nbufs; i++)
        CHECK_BUF(&call->bufs[i], call->names[i]);
    t_call_free(call);
    if (f->call == T_ROUTE && blocking) { /* after a failed route there is no routing */
        t_shape any = e_shape(MPIX_EP_BF16, 0);
        t_call *after = t_call_dispatch(handle, &any, &e_own);
        EXPECT(t_call_start(after, 1), MPIX_ERRK_ARG, "handle", "rout");
        t_call_free(after);
    }
    e_usable(handle, f->call == T_ROUTE);
}

/* Faults that are no single rank's: found when ranks compare. At least one rank names the argument;
 * the others err too. */
static void disagreement(t_handle *handle, const char *what, const char *arg, t_call *call) {
    MPIX_Error error;
    int code = t_call_start(call, 1), named = 0, any = 0;
    t_where("calls: %s differs between ranks", what);
    MPIX_INIT(&error);
    if (CHECK(code != MPI_SUCCESS, "%s differs between ranks, but the call succeeded", what)) {
        MPIX_Error_last(&error);
        named = error.kind == MPIX_ERRK_ARG && strcmp(error.arg, arg) == 0;
        CHECK(named || error.kind == MPIX_ERRK_REMOTE,
              "kind %d, argument \"%s\", expected ARG \"%s\" or REMOTE: %s", error.kind, error.arg,
              arg, error.text);
    }
    MPI_Allreduce(&named, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(any, "no rank names \"%s\"", arg);
    t_call_free(call);
    e_usable(handle, 1);
}

static void differences(t_handle *handle) {
    int odd = t_rank == t_size - 1;
    t_shape s = e_shape(MPIX_EP_BF16, 0), other_hidden = s, other_dtype = s,
            c = e_shape(MPIX_EP_F32, 0);
    c.hidden = 8;
    t_shape c_hidden = c, c_dtype = c;
    other_hidden.hidden = 23;
    other_dtype.dtype = MPIX_EP_F16;
    c_hidden.hidden = 7;
    c_dtype.dtype = MPIX_EP_F64;
    e_usable(handle, 1);
    disagreement(handle, "in.hidden of dispatch", "in.hidden",
                 t_call_dispatch(handle, odd ? &other_hidden : &s, &e_own));
    disagreement(handle, "in.x.dtype of dispatch", "in.x.dtype",
                 t_call_dispatch(handle, odd ? &other_dtype : &s, &e_own));
    disagreement(handle, "in.hidden of combine", "in.hidden",
                 t_call_combine(handle, odd ? &c_hidden : &c, &e_own));
    disagreement(handle, "in.x.dtype of combine", "in.x.dtype",
                 t_call_combine(handle, odd ? &c_dtype : &c, &e_own));
    t_call *slots = t_call_combine(handle, &c, &e_own);
    if (odd)
        slots->u.combine.in.slot_values = slots->u.combine.out.slot_values = NULL;
    else if (!slots->u.combine.out.slot_values)
        slots->u.combine.out.slot_values = some_floats;
    disagreement(handle, "in.slot_values", "out.slot_values", slots);
    t_call *route = e_route(handle);
    if (odd) {
        route->u.route.in.ids_stride = route->u.route.in.ids_stride ? route->u.route.in.ids_stride
                                                                    : E_TOPK * 4;
        route->u.route.in.topk = E_TOPK - 1;
    }
    disagreement(handle, "routing.topk", "routing.topk", route);
}

/* recv_total beyond max_recv_rows: TRUNCATE where it happens, REMOTE elsewhere. */
static void too_many_rows(int layout) {
    t_ctx ctx;
    t_handle handle;
    memset(&ctx, 0, sizeof ctx);
    e_config(&ctx.config, layout);
    ctx.config.expert_align = 0;
    ctx.config.max_recv_rows = (MPI_Count)E_MAX_TOKENS * t_size - 1;
    if (!CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ctx.ep)))
        return;
    t_handle_init(&handle, &ctx);
    for (int round = 0; round < 4; round++) {
        int64_t ids[E_MAX_TOKENS];
        /* the last rank holds it */
        int expert = (int)ctx.config.num_experts - 1, blocking = round & 1, mine;
        char rows[24], limit[24];
        for (int t = 0; t < E_MAX_TOKENS; t++)
            ids[t] = expert;
        t_where("calls: more rows than max_recv_rows, layout %d, round %d", layout, round);
        t_call *call = t_call_route(&handle, E_MAX_TOKENS, 1, ids, 32, &e_own);
        mine = call->plan->owner[expert] == t_rank;
        snprintf(rows, sizeof rows, "%d", E_MAX_TOKENS * t_size);
        snprintf(limit, sizeof limit, "%d", E_MAX_TOKENS * t_size - 1);
        int code = t_call_start(call, blocking);
        if (!blocking && CHECK_OK(code))
            code = MPIX_Xfer_wait(&call->xfer);
        if (mine)
            EXPECT(code, MPIX_ERRK_TRUNCATE, NULL, rows, limit);
        else
            EXPECT_REMOTE(code, call->plan->owner[expert]);
        t_call_free(call);
        if (t_rank == 0)
            ids[0] = -1; /* one token less: it fits */
        t_call_run(t_call_route(&handle, E_MAX_TOKENS, 1, ids, 32, &e_own), blocking);
        e_usable(&handle, 0);
    }
    e_destroy(&ctx);
}

void e_calls(void) {
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++) {
        t_ctx ctx;
        t_handle handle, fresh;
        if (!e_create(&ctx, layout, MPI_INFO_NULL))
            return;
        t_handle_init(&handle, &ctx);
        t_handle_init(&fresh, &ctx);
        e_usable(&handle, 1);
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            const fault *f = &faults[i];
            if (f->flags & (layout == MPIX_EP_EXPERT ? IN_COMPACT : IN_EXPERT))
                continue;
            for (int form = 0; form < 4; form++) {
                int blocking = form & 1,
                    victim = form & 2 ? (int)t_range(&e_common, 0, t_size - 1) : -1;
                if ((f->flags & ONE_RANK && (victim < 0 || t_size == 1)) ||
                    (f->flags & ALL_RANKS && victim >= 0))
                    continue;
                t_where("calls: %s, %s, %s, rank %d errs", f->name,
                        layout == MPIX_EP_EXPERT ? "EXPERT" : "COMPACT",
                        blocking ? "blocking" : "nonblocking", victim);
                t_watchdog(60);
                one_fault(f, &handle, victim, blocking);
                if (t_failed_anywhere() > 5)
                    return;
            }
        }
        t_where("calls: no routing");
        fresh.plan = handle.plan;
        fresh.limit = handle.limit;
        t_shape s = e_shape(MPIX_EP_F32, 0);
        s.hidden = 4;
        t_call *d = t_call_dispatch(&fresh, &s, &e_own), *c = t_call_combine(&fresh, &s, &e_own);
        EXPECT(t_call_start(d, 1), MPIX_ERRK_ARG, "handle", "rout");
        EXPECT(t_call_start(c, 0), MPIX_ERRK_ARG, "handle", "rout");
        t_call_free(d);
        t_call_free(c);
        e_usable(&fresh, 1);
        if (t_size > 1)
            differences(&handle);
        e_destroy(&ctx);
        too_many_rows(layout);
    }
}
