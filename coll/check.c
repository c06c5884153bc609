/* check.c - checks of the arguments of route, dispatch and combine. Each error names the field, its
 * value and the limit. */
#include "config.h"

#include "coll/ep.h"

#include <stdio.h>

size_t mpix_ep_row_bytes(const MPIX_Ep_rows *rows, int64_t hidden) {
    return mpix_dtype_size(rows->dtype) * (size_t)hidden;
}

size_t mpix_ep_scale_bytes(const MPIX_Ep_rows *rows, int64_t hidden) {
    size_t n = ((size_t)hidden + 127) / 128;
    return rows->scale_kind == MPIX_EP_SCALES_F32     ? 4 * n
           : rows->scale_kind == MPIX_EP_SCALES_UE8M0 ? n
                                                      : 0;
}

/* An error about field `field` of rows `name`. */
#define BAD(field, ...) \
    (snprintf(arg, sizeof arg, "%s.%s", name, field), mpix_fail(MPIX_ERRK_ARG, arg, __VA_ARGS__))

static int is_fp8(int dtype) { return dtype == MPIX_EP_F8E4M3 || dtype == MPIX_EP_F8E5M2; }

/* What the context's path may have or not. */
static int need(const mpix_ep *ep, mpix_ep_feature feature, const char *arg, const char *why) {
    return mpix_ep_path_need(ep->path, ep->config.layout, feature, arg, why);
}

static int check_dtype(const MPIX_Ep_rows *rows, const char *name) {
    char arg[32];
    if (rows->dtype == 0)
        return BAD("dtype", "%s.dtype is not set: give one of MPIX_EP_F64 .. MPIX_EP_BYTES", name);
    if (mpix_dtype_size(rows->dtype) == 0)
        return BAD("dtype", "%s.dtype = %d is not one of MPIX_EP_F64 (%d) .. MPIX_EP_BYTES (%d)",
                   name, rows->dtype, MPIX_EP_F64, MPIX_EP_BYTES);
    if (rows->scale_kind < MPIX_EP_NO_SCALES || rows->scale_kind > MPIX_EP_SCALES_UE8M0)
        return BAD("scale_kind", "%s.scale_kind = %d is not in [0, %d]", name, rows->scale_kind,
                   MPIX_EP_SCALES_UE8M0);
    if (rows->scale_kind && !is_fp8(rows->dtype))
        return BAD("scale_kind", "%s.scale_kind = %d needs an fp8 dtype, %s.dtype is %s", name,
                   rows->scale_kind, name, mpix_dtype_name(rows->dtype));
    if (rows->scales && !rows->scale_kind)
        return BAD("scales", "%s.scales is given, but %s.scale_kind is MPIX_EP_NO_SCALES", name,
                   name);
    return 0;
}

/* Strides and alignment; a NULL pointer is the caller's matter unless nrows > 0. */
int mpix_ep_check_rows(const MPIX_Ep_rows *rows, const char *name, int64_t hidden, int64_t nrows) {
    char arg[32];
    int kind = check_dtype(rows, name);
    if (kind)
        return kind;
    int64_t size = (int64_t)mpix_dtype_size(rows->dtype), row = size * hidden;
    int64_t ssize = rows->scale_kind == MPIX_EP_SCALES_F32 ? 4 : 1,
            scales = (int64_t)mpix_ep_scale_bytes(rows, hidden);
    if (nrows > 0 && !rows->data)
        return BAD("data", "%s.data is NULL with %lld rows", name, (long long)nrows);
    if ((uintptr_t)rows->data % (uintptr_t)size)
        return BAD("data", "%s.data = %p is not aligned to %lld bytes, the size of %s", name,
                   rows->data, (long long)size, mpix_dtype_name(rows->dtype));
    if (rows->stride && (rows->stride < row || rows->stride % size))
        return BAD("stride",
                   "%s.stride = %lld must be 0 or a multiple of %lld and at least %lld bytes", name,
                   (long long)rows->stride, (long long)size, (long long)row);
    if (rows->scale_kind && nrows > 0 && !rows->scales)
        return BAD("scales", "%s.scales is NULL with %lld rows and scale_kind %d", name,
                   (long long)nrows, rows->scale_kind);
    if ((uintptr_t)rows->scales % (uintptr_t)ssize)
        return BAD("scales", "%s.scales = %p is not aligned to %lld bytes", name, rows->scales,
                   (long long)ssize);
    if (rows->scale_kind && rows->scale_stride &&
        (rows->scale_stride < scales || rows->scale_stride % ssize))
        return BAD("scale_stride",
                   "%s.scale_stride = %lld must be 0 or a multiple of %lld and at least %lld bytes",
                   name, (long long)rows->scale_stride, (long long)ssize, (long long)scales);
    if (!rows->scale_kind && rows->scale_stride)
        return BAD("scale_stride", "%s.scale_stride = %lld without scales", name,
                   (long long)rows->scale_stride);
    return 0;
}

static void make_dense(MPIX_Ep_rows *rows, int64_t hidden) {
    if (!rows->stride)
        rows->stride = (MPI_Count)mpix_ep_row_bytes(rows, hidden);
    if (!rows->scale_stride)
        rows->scale_stride = (MPI_Count)mpix_ep_scale_bytes(rows, hidden);
}

static int check_size(size_t given, size_t known, const char *arg) {
    if (given == known)
        return 0;
    return mpix_fail(
        MPIX_ERRK_ARG, arg,
        "%s = %zu, this library knows %zu: initialise with MPIX_INIT and use matching headers", arg,
        given, known);
}

/* The user's two structs, before anything else of them is read: shorter ones of another version may
 * end a page. Both begin with their size. */
static int check_structs(const void *in, size_t in_size, const void *out, size_t out_size) {
    if (!in || !out)
        return mpix_fail(MPIX_ERRK_ARG, in ? "out" : "in", "%s is NULL", in ? "out" : "in");
    int kind = check_size(*(const size_t *)in, in_size, "in.struct_size");
    return kind ? kind : check_size(*(const size_t *)out, out_size, "out.struct_size");
}

static int check_aligned(const void *p, size_t align, const char *arg) {
    if ((uintptr_t)p % align == 0)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %p is not aligned to %zu bytes", arg, p, align);
}

/* hidden, and that a row that travels (x: its dtype) fits what the context was made for. */
static int check_hidden(const mpix_ep *ep, int64_t hidden, const MPIX_Ep_rows *x) {
    int64_t limit = ep->config.max_row_bytes;
    if (hidden < 1)
        return mpix_fail(MPIX_ERRK_ARG, "in.hidden", "in.hidden = %lld must be at least 1",
                         (long long)hidden);
    if (hidden > limit / (int64_t)mpix_dtype_size(x->dtype) ||
        (int64_t)(mpix_ep_row_bytes(x, hidden) + mpix_ep_scale_bytes(x, hidden)) > limit)
        return mpix_fail(
            MPIX_ERRK_ARG, "in.hidden",
            "in.hidden = %lld: a row of %s with its scales exceeds config.max_row_bytes = %lld",
            (long long)hidden, mpix_dtype_name(x->dtype), (long long)limit);
    return 0;
}

int mpix_ep_check_alloc(MPI_Count bytes, MPI_Info info, const void *baseptr) {
    if (!baseptr)
        return mpix_fail(MPIX_ERRK_ARG, "baseptr", "baseptr is NULL");
    if (bytes < 0 || bytes > (MPI_Count)1 << 46)
        return mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is not in [0, 2^46]",
                         (long long)bytes);
    return info == MPI_INFO_NULL ? 0
                                 : mpix_fail(MPIX_ERRK_ARG, "info", "info must be MPI_INFO_NULL");
}

int mpix_ep_check_routing(mpix_ep *ep, const MPIX_Ep_routing *routing, MPIX_Ep_routing *r) {
    if (!routing)
        return mpix_fail(MPIX_ERRK_ARG, "routing", "routing is NULL");
    int kind = check_size(routing->struct_size, sizeof *routing, "routing.struct_size");
    if (kind)
        return kind;
    *r = *routing;
    if (r->idx_bits == 0)
        r->idx_bits = 32;
    if (r->idx_bits != 32 && r->idx_bits != 64)
        return mpix_fail(MPIX_ERRK_ARG, "routing.idx_bits",
                         "routing.idx_bits = %d must be 0, 32 or 64", r->idx_bits);
    if (r->num_tokens < 0 || r->num_tokens > ep->config.max_tokens)
        return mpix_fail(MPIX_ERRK_ARG, "routing.num_tokens",
                         "routing.num_tokens = %lld is not in [0, %lld] (config.max_tokens)",
                         (long long)r->num_tokens, (long long)ep->config.max_tokens);
    if (r->topk < 0 || r->topk > ep->config.max_topk)
        return mpix_fail(MPIX_ERRK_ARG, "routing.topk",
                         "routing.topk = %d is not in [0, %d] (config.max_topk)", r->topk,
                         ep->config.max_topk);
    if (r->topk > ep->config.num_experts)
        return mpix_fail(MPIX_ERRK_ARG, "routing.topk",
                         "routing.topk = %d exceeds config.num_experts = %lld", r->topk,
                         (long long)ep->config.num_experts);
    if (r->num_tokens * r->topk > (int64_t)UINT32_MAX) /* counts between ranks have 32 bits */
        return mpix_fail(MPIX_ERRK_ARG, "routing.num_tokens",
                         "routing.num_tokens = %lld with routing.topk = %d: at most %lld choices "
                         "are possible, route "
                         "in several batches",
                         (long long)r->num_tokens, r->topk, (long long)UINT32_MAX);
    int64_t size = r->idx_bits / 8, dense = size * r->topk;
    if (r->num_tokens > 0 && r->topk > 0 && !r->ids)
        return mpix_fail(MPIX_ERRK_ARG, "routing.ids", "routing.ids is NULL with %lld tokens",
                         (long long)r->num_tokens);
    if ((kind = check_aligned(r->ids, (size_t)size, "routing.ids")))
        return kind;
    if (r->ids_stride && (r->ids_stride < dense || r->ids_stride % size))
        return mpix_fail(
            MPIX_ERRK_ARG, "routing.ids_stride",
            "routing.ids_stride = %lld must be 0 or a multiple of %lld and at least %lld bytes",
            (long long)r->ids_stride, (long long)size, (long long)dense);
    return 0;
}

int mpix_ep_check_counts(mpix_ep *ep, const MPIX_Ep_counts *c) {
    static const char *const names[] = {"counts.recv_total",      "counts.recv_per_rank",
                                        "counts.recv_per_expert", "counts.expert_offset",
                                        "counts.send_per_rank",   "counts.send_per_host",
                                        "counts.send_per_expert"};
    if (!c)
        return 0;
    int kind = check_size(c->struct_size, sizeof *c, "counts.struct_size");
    const void *const p[] = {c->recv_total,     c->recv_per_rank, c->recv_per_expert,
                             c->expert_offset,  c->send_per_rank, c->send_per_host,
                             c->send_per_expert};
    for (size_t i = 0; i < sizeof p / sizeof *p && !kind; i++)
        kind = check_aligned(p[i], _Alignof(MPI_Count), names[i]);
    if (!kind && c->expert_offset && ep->config.layout != MPIX_EP_EXPERT)
        kind = mpix_fail(MPIX_ERRK_ARG, "counts.expert_offset",
                         "counts.expert_offset is for the EXPERT layout; the context's is %s",
                         ep->config.layout == MPIX_EP_SLOTS ? "SLOTS" : "COMPACT");
    /* In SLOTS the total is the same for every routing. */
    for (size_t i = ep->config.layout == MPIX_EP_SLOTS; i < 4 && !kind; i++)
        if (p[i])
            kind = need(ep, MPIX_EP_CAN_ROUTE_COUNTS, names[i],
                        "ranks exchange no counts in route; dispatch tells them "
                        "(out.recv_per_rank, out.recv_per_expert, out.expert_offset)");
    return kind;
}

/* A call on a handle whose last route was refused cannot work; one whose route failed elsewhere is
 * found when it starts. */
static int check_routed(const struct mpix_ep_handle *handle) {
    if (handle->routed)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, "handle",
                     "the handle has no routing: call MPIX_Ep_route first (the last one failed, or "
                     "there was none)");
}

/* Whether dispatch makes out's rows of in's: to a narrower type of numbers, to fp8 with scales. */
static int check_conversion(const mpix_ep *ep, const MPIX_Ep_rows *in, const MPIX_Ep_rows *out) {
    int from = in->dtype, to = out->dtype;
    if (from == to && in->scale_kind == out->scale_kind)
        return 0;
    int numbers = from >= MPIX_EP_F64 && from <= MPIX_EP_BF16;
    int narrower = numbers && to > MPIX_EP_F64 && to <= MPIX_EP_BF16 &&
                   mpix_dtype_size(to) < mpix_dtype_size(from);
    int quantised = numbers && from != MPIX_EP_F64 && is_fp8(to) && out->scale_kind;
    if (!narrower && !quantised)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "out.x.dtype",
            "out.x (%s, scale_kind %d) can't be made of in.x (%s, scale_kind %d): dispatch rounds "
            "F64 to F32, F16, BF16, F32 to F16, BF16, and quantises F32, F16, BF16 to fp8 with "
            "scales",
            mpix_dtype_name(to), out->scale_kind, mpix_dtype_name(from), in->scale_kind);
    return need(ep, quantised ? MPIX_EP_CAN_QUANTISE : MPIX_EP_CAN_NARROW, "out.x.dtype", NULL);
}

int mpix_ep_check_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *given,
                           const MPIX_Ep_dispatch_out *wanted, MPIX_Ep_dispatch_in *in,
                           MPIX_Ep_dispatch_out *out) {
    mpix_ep *ep = handle->ep;
    int kind = check_structs(given, sizeof *in, wanted, sizeof *out);
    if (kind)
        return kind;
    *in = *given;
    *out = *wanted;
    if ((kind = check_routed(handle)) || (kind = check_dtype(&in->x, "in.x")))
        return kind;
    if (out->x.dtype == 0)
        out->x.dtype = in->x.dtype;
    if (out->x.scale_kind == 0 && out->x.dtype == in->x.dtype)
        out->x.scale_kind = in->x.scale_kind;
    if ((kind = check_dtype(&out->x, "out.x")) || (kind = check_conversion(ep, &in->x, &out->x)) ||
        (kind = check_hidden(ep, in->hidden, &out->x)) ||
        (kind = mpix_ep_check_rows(&in->x, "in.x", in->hidden, handle->tokens)))
        return kind;
    if (out->capacity_rows < 0)
        return mpix_fail(MPIX_ERRK_ARG, "out.capacity_rows", "out.capacity_rows = %lld is negative",
                         (long long)out->capacity_rows);
    if ((kind = mpix_ep_check_rows(&out->x, "out.x", in->hidden, out->capacity_rows)))
        return kind;
    if (out->local_ids && ep->config.layout == MPIX_EP_EXPERT)
        return mpix_fail(
            MPIX_ERRK_ARG, "out.local_ids",
            "out.local_ids must be NULL in the EXPERT layout: a row's place tells its expert");
    if ((kind = check_aligned(in->topk_weights, 4, "in.topk_weights")) ||
        (kind = check_aligned(out->topk_weights, 4, "out.topk_weights")) ||
        (kind = check_aligned(out->local_ids, 4, "out.local_ids")) ||
        (kind = check_aligned(out->src_rank, 4, "out.src_rank")) ||
        (kind = check_aligned(out->src_token, _Alignof(MPI_Count), "out.src_token")) ||
        (kind = check_aligned(out->cumulative, 8, "out.cumulative")) ||
        (kind = check_aligned(out->wait_ns, 8, "out.wait_ns")) ||
        (kind = check_aligned(out->recv_per_rank, _Alignof(MPI_Count), "out.recv_per_rank")) ||
        (kind = check_aligned(out->recv_per_expert, _Alignof(MPI_Count), "out.recv_per_expert")) ||
        (kind = check_aligned(out->expert_offset, _Alignof(MPI_Count), "out.expert_offset")))
        return kind;
    if (out->expert_offset && ep->config.layout != MPIX_EP_EXPERT)
        return mpix_fail(MPIX_ERRK_ARG, "out.expert_offset",
                         "out.expert_offset is for the EXPERT layout");
    if ((out->recv_per_rank || out->recv_per_expert || out->expert_offset) &&
        (kind = need(ep, MPIX_EP_CAN_DISPATCH_COUNTS, "out.recv_per_rank", "route tells them")))
        return kind;
    make_dense(&in->x, in->hidden);
    make_dense(&out->x, in->hidden);
    return 0;
}

/* In LL the experts' rank sums, so there is a dtype on the way back. */
static int check_wire_ll(const mpix_ep *ep, MPIX_Ep_combine_in *in) {
    int fp8 = is_fp8(in->x.dtype);
    if (in->wire == 0)
        in->wire = fp8 ? MPIX_EP_BF16 : in->x.dtype;
    if (mpix_dtype_size(in->wire) == 0)
        return mpix_fail(MPIX_ERRK_ARG, "in.wire", "in.wire = %d is not a dtype", in->wire);
    if (in->wire < MPIX_EP_F64 || in->wire > MPIX_EP_BF16)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "in.wire",
                         "in.wire = %s: sums travel as F64, F32, F16 or BF16",
                         mpix_dtype_name(in->wire));
    if ((int64_t)mpix_dtype_size(in->wire) > ep->config.max_row_bytes / in->hidden)
        return mpix_fail(MPIX_ERRK_ARG, "in.wire",
                         "in.wire = %s: a row of %lld exceeds config.max_row_bytes = %lld",
                         mpix_dtype_name(in->wire), (long long)in->hidden,
                         (long long)ep->config.max_row_bytes);
    return 0;
}

/* In HT rows travel as they are, and sums of a rank's rows where that rank makes them. */
static int check_wire(const mpix_ep *ep, MPIX_Ep_combine_in *in) {
    if (ep->config.mode == MPIX_EP_LL)
        return check_wire_ll(ep, in);
    if (in->wire == 0 || in->wire == in->x.dtype)
        return 0;
    if (mpix_dtype_size(in->wire) == 0)
        return mpix_fail(MPIX_ERRK_ARG, "in.wire", "in.wire = %d is not a dtype", in->wire);
    int narrower = in->wire == MPIX_EP_F32 && in->x.dtype != MPIX_EP_F64;
    return need(ep, narrower ? MPIX_EP_CAN_WIRE_F32 : MPIX_EP_CAN_WIRE_ANY, "in.wire", NULL);
}

static int check_sum_dtypes(const mpix_ep *ep, MPIX_Ep_combine_in *in, MPIX_Ep_combine_out *out) {
    if (in->x.dtype == MPIX_EP_BYTES)
        return mpix_fail(MPIX_ERRK_ARG, "in.x.dtype",
                         "in.x.dtype = MPIX_EP_BYTES cannot be summed");
    if (out->y.dtype == 0)
        out->y.dtype = in->x.dtype;
    if (out->y.dtype < MPIX_EP_F64 || out->y.dtype > MPIX_EP_BF16)
        return mpix_fail(
            MPIX_ERRK_ARG, "out.y.dtype",
            "out.y.dtype = %d must be F64, F32, F16 or BF16 (0 means in.x's, which is %s)",
            out->y.dtype, mpix_dtype_name(in->x.dtype));
    return check_wire(ep, in);
}

static int check_bias(MPIX_Ep_combine_in *in, const MPIX_Ep_combine_out *out, int64_t tokens) {
    static const char *const names[] = {"in.bias[0]", "in.bias[1]"};
    if (in->num_bias < 0 || in->num_bias > 2)
        return mpix_fail(MPIX_ERRK_ARG, "in.num_bias", "in.num_bias = %d is not in [0, 2]",
                         in->num_bias);
    for (int i = 0; i < in->num_bias; i++) {
        int kind = mpix_ep_check_rows(&in->bias[i], names[i], in->hidden, tokens);
        if (kind)
            return kind;
        const char *name = names[i];
        char arg[32];
        if (in->bias[i].dtype != out->y.dtype)
            return BAD("dtype", "%s.dtype is %s, out.y's is %s", name,
                       mpix_dtype_name(in->bias[i].dtype), mpix_dtype_name(out->y.dtype));
        make_dense(&in->bias[i], in->hidden);
    }
    return 0;
}

int mpix_ep_check_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *given,
                          const MPIX_Ep_combine_out *wanted, MPIX_Ep_combine_in *in,
                          MPIX_Ep_combine_out *out) {
    mpix_ep *ep = handle->ep;
    int kind = check_structs(given, sizeof *in, wanted, sizeof *out);
    if (kind)
        return kind;
    *in = *given;
    *out = *wanted;
    if ((kind = check_routed(handle)) || (kind = check_dtype(&in->x, "in.x")) ||
        (kind = check_hidden(ep, in->hidden, &in->x)) ||
        (kind = mpix_ep_check_rows(&in->x, "in.x", in->hidden, 0)) ||
        (kind = check_sum_dtypes(ep, in, out)))
        return kind;
    if (out->y.scale_kind || out->y.scales)
        return mpix_fail(MPIX_ERRK_ARG, "out.y.scale_kind",
                         "out.y takes no scales (scale_kind = %d)", out->y.scale_kind);
    if ((kind = mpix_ep_check_rows(&out->y, "out.y", in->hidden, handle->tokens)) ||
        (kind = check_bias(in, out, handle->tokens)))
        return kind;
    if (in->topk_weights && ep->config.layout != MPIX_EP_EXPERT)
        return mpix_fail(
            MPIX_ERRK_ARG, "in.topk_weights",
            "in.topk_weights cannot be applied in the %s layout: a row is the sum over a "
            "token's experts on that rank already; weight it there (row_weights, or in the "
            "experts)",
            ep->config.layout == MPIX_EP_SLOTS ? "SLOTS" : "COMPACT");
    if (in->topk_weights &&
        (kind = need(ep, MPIX_EP_CAN_OWNER_WEIGHTS, "in.topk_weights",
                     "the experts' rank sums a token's rows; give in.row_weights there what "
                     "dispatch brought in out.topk_weights")))
        return kind;
    if (ep->config.mode == MPIX_EP_LL && handle->capacity < 0)
        return mpix_fail(MPIX_ERRK_ARG, "handle",
                         "no dispatch has been started since the handle's route: in the mode "
                         "MPIX_EP_LL a combine follows one");
    if ((kind = check_aligned(in->row_weights, 4, "in.row_weights")) ||
        (kind = check_aligned(in->topk_weights, 4, "in.topk_weights")) ||
        (kind = check_aligned(in->slot_values, 4, "in.slot_values")) ||
        (kind = check_aligned(out->slot_values, 4, "out.slot_values")) ||
        (kind = check_aligned(out->wait_ns, 8, "out.wait_ns")))
        return kind;
    make_dense(&in->x, in->hidden);
    make_dense(&out->y, in->hidden);
    return 0;
}
