/*
 * call.c - route, dispatch and combine of a context in GPU memory: the checks of their
 * arguments, and the launch.
 *
 * A call is one or two kernels on a stream: the caller's (..._enqueue, where nothing waits for the
 * host) or the context's (see gpu/stream.c). A rank whose arguments fail launches the same kernel
 * with a status, so its peers learn of it.
 */
#include "config.h"

#include "coll/gpu/gpu.h"

#include <stdio.h>

/* ---- pointers -------------------------------------------------------------------------------- */

/* What is known of a pointer counts as long as its allocation is there: the caller may have freed
 * it, and anything may lie there now. */
static int memory_of(mpix_ep *ep, const void *p) {
    mpix_ep_gpu *gpu = ep->gpu;
    uint64_t allocation = gpu->ops->allocation(&gpu->device, p);
    size_t i = ((uintptr_t)p >> 4 ^ (uintptr_t)p >> 15) % MPIX_EP_GPU_KNOWN;
    if (allocation && gpu->known[i].p == p && gpu->known[i].allocation == allocation)
        return MPIX_CUDA_PTR_DEVICE;
    int where = gpu->ops->pointer(&gpu->device, p);
    if (where == MPIX_CUDA_PTR_DEVICE) {
        gpu->known[i].p = p;
        gpu->known[i].allocation = allocation;
    }
    return where;
}

/* Memory that this context's device may use; NULL is fine. */
int mpix_ep_gpu_check(mpix_ep *ep, const void *p, const char *arg) {
    int where = p ? memory_of(ep, p) : MPIX_CUDA_PTR_DEVICE;
    if (where == MPIX_CUDA_PTR_DEVICE || where == MPIX_CUDA_PTR_MANAGED)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, arg,
                     "%s = %p is %s, the context needs memory of CUDA device %d", arg, p,
                     where == MPIX_CUDA_PTR_OTHER_DEVICE ? "memory of another CUDA device"
                                                         : "host memory",
                     ep->gpu->device.ordinal);
}

/* Rows that peers reach: they must lie in memory of MPIX_Ep_alloc. */
static int place_rows(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, const char *arg,
                      mpix_ep_feature which, mpix_ep_place *place) {
    if (!p || bytes == 0 || mpix_ep_gpu_find(ep, p, bytes, stride, place))
        return 0;
    char why[120];
    snprintf(why, sizeof why, "%s = %p: %zu bytes there are not in memory from MPIX_Ep_alloc", arg,
             p, bytes);
    return mpix_ep_path_refuse(ep->path, ep->config.layout, which, arg, why);
}

/* ---- route ----------------------------------------------------------------------------------- */

/* An output of counts: written by the kernel where the device can, otherwise copied at the end. */
int mpix_ep_gpu_count_output(mpix_ep *ep, MPI_Count *to, const int64_t *from, int64_t n,
                             const char *arg, mpix_ep_gpu_call *call, int64_t **direct) {
    *direct = NULL;
    if (!to)
        return 0;
    int where = memory_of(ep, to);
    if (where == MPIX_CUDA_PTR_OTHER_DEVICE)
        return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %p is memory of another CUDA device", arg,
                         (void *)to);
    if (where != MPIX_CUDA_PTR_PAGEABLE) {
        *direct = (int64_t *)to;
        return 0;
    }
    if (!call)
        return mpix_fail(
            MPIX_ERRK_ARG, arg,
            "%s = %p is pageable host memory: an enqueued call needs pinned or GPU memory", arg,
            (void *)to);
    call->copies[call->ncopies++] = (mpix_ep_gpu_copy){to, from, n};
    return 0;
}

static int route_outputs(mpix_ep *ep, const MPIX_Ep_counts *o, mpix_cuda_route *c,
                         const mpix_ep_gpu_handle *g, mpix_ep_gpu_call *call) {
    const int64_t *r = g->dev.results;
    int64_t n = ep->size, le = g->dev.local_experts,
            hosts = 2 + 2 * n + le + ep->placement.experts + le + 1;
    int kind;
    if ((kind = mpix_ep_gpu_count_output(ep, o->recv_total, r, 1, "counts.recv_total", call,
                                         &c->recv_total)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->recv_per_rank, r + 2, n, "counts.recv_per_rank",
                                         call, &c->recv_per_rank)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->send_per_rank, r + 2 + n, n, "counts.send_per_rank",
                                         call, &c->send_per_rank)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->recv_per_expert, r + 2 + 2 * n, le,
                                         "counts.recv_per_expert", call, &c->recv_per_expert)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->send_per_expert, r + 2 + 2 * n + le,
                                         ep->placement.experts, "counts.send_per_expert", call,
                                         &c->send_per_expert)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->expert_offset,
                                         r + 2 + 2 * n + le + ep->placement.experts, le + 1,
                                         "counts.expert_offset", call, &c->expert_offset)) ||
        (kind = mpix_ep_gpu_count_output(ep, o->send_per_host, r + hosts, ep->boot->nhosts,
                                         "counts.send_per_host", call, &c->send_per_host)))
        return kind;
    if (o->send_per_host && !c->send_per_host)
        c->send_per_host = g->dev.results + hosts; /* counted only if somebody wants it */
    c->token_in_rank = o->token_in_rank;
    if (o->token_in_rank && memory_of(ep, o->token_in_rank) == MPIX_CUDA_PTR_PAGEABLE)
        return mpix_fail(
            MPIX_ERRK_ARG, "counts.token_in_rank",
            "counts.token_in_rank = %p is pageable host memory, pinned or GPU memory is needed",
            (void *)o->token_in_rank);
    return 0;
}

int mpix_ep_gpu_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                      const MPIX_Ep_counts *counts, const mpix_ep_form *form) {
    mpix_ep_gpu_begun s;
    int code;
    if (mpix_ep_gpu_start(handle, form, 0, &s, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    MPIX_Ep_routing r;
    mpix_cuda_route c = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = s.kind;
    if (!kind)
        kind = mpix_ep_check_routing(ep, routing, &r);
    if (!kind)
        kind = mpix_ep_gpu_check(ep, r.num_tokens > 0 ? r.ids : NULL, "routing.ids");
    if (!kind)
        kind = mpix_ep_check_counts(ep, counts);
    if (!kind && counts)
        kind = route_outputs(ep, counts, &c, g, s.call);
    if (kind && s.capture)
        return mpix_boot_raise(ep->boot, kind);
    if (kind) {
        c = (mpix_cuda_route){.status = kind};
        if (s.call)
            s.call->ncopies = 0;
    } else {
        c.tokens = r.num_tokens;
        c.topk = r.topk;
        c.bits = r.idx_bits;
        c.stride = r.ids_stride ? r.ids_stride : (int64_t)r.topk * r.idx_bits / 8;
        c.ids = r.ids;
        c.counts = s.call && s.call->ncopies > 0;
    }
    c.report = s.report;
    handle->routed = !kind;
    g->counted = 0;
    handle->tokens = c.tokens;
    handle->topk = c.topk;
    handle->capacity = -1;
    int launch = mpix_ep_gpu_order(handle, &s, why);
    if (!launch)
        launch = ep->gpu->ops->route(&ep->gpu->device, &g->dev, &c, s.stream, why);
    return mpix_ep_gpu_finish(handle, &s, kind, launch, why);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static int dispatch_fill(struct mpix_ep_handle *handle, MPIX_Ep_dispatch_in *in,
                         MPIX_Ep_dispatch_out *out, mpix_cuda_dispatch *c, mpix_ep_gpu_call *call) {
    mpix_ep *ep = handle->ep;
    int kind;
    (void)call;
    /* What travels is out's: in's rows, or what they become. */
    size_t row = mpix_ep_row_bytes(&out->x, in->hidden),
           scale = mpix_ep_scale_bytes(&out->x, in->hidden), n = (size_t)out->capacity_rows;
    int64_t tokens = handle->tokens;
    *c = (mpix_cuda_dispatch){.x = in->x.data,
                              .scales = in->x.scales,
                              .weights = in->topk_weights,
                              .tokens = tokens,
                              .x_stride = in->x.stride,
                              .scale_stride = in->x.scale_stride,
                              .row = (int64_t)row,
                              .scale_row = (int64_t)scale,
                              .topk = handle->topk,
                              .num_sms = ep->config.num_sms,
                              .path = ep->params.gpu_path,
                              .hidden = in->hidden,
                              .quant = in->x.dtype != out->x.dtype ? in->x.dtype : 0,
                              .local_ids = out->local_ids,
                              .src_rank = out->src_rank,
                              .src_token = (int64_t *)out->src_token,
                              .out_weights = out->topk_weights,
                              .cumulative = out->cumulative,
                              .wait_ns = out->wait_ns,
                              .capacity = out->capacity_rows,
                              .out = out->x.data,
                              .out_scales = out->x.scales};
    c->offer = (mpix_cuda_offer){.dtype = out->x.dtype,
                                 .scale_kind = out->x.scale_kind,
                                 .hidden = in->hidden,
                                 .rows = out->capacity_rows};
    if (c->offer.rows > ep->max_rows)
        c->offer.rows = ep->max_rows;
    c->offer.flags = (out->local_ids || out->src_token || out->topk_weights ? MPIX_EP_OFFER_RECORDS
                                                                            : 0) |
                     (out->topk_weights ? MPIX_EP_OFFER_WANTS_WEIGHTS : 0) |
                     (in->topk_weights || tokens == 0 ? MPIX_EP_OFFER_HAS_WEIGHTS : 0);
    for (int i = 0; i < MPIX_EP_PLACES; i++)
        c->offer.at[i].window = -1;
    if (n > 0) {
        if ((kind = place_rows(ep, out->x.data, (n - 1) * (size_t)out->x.stride + row,
                               (uint64_t)out->x.stride, "out.x.data", MPIX_EP_CAN_ANY_OUTPUT,
                               &c->offer.at[MPIX_EP_PLACE_X])) ||
            (scale &&
             (kind = place_rows(ep, out->x.scales, (n - 1) * (size_t)out->x.scale_stride + scale,
                                (uint64_t)out->x.scale_stride, "out.x.scales",
                                MPIX_EP_CAN_ANY_OUTPUT, &c->offer.at[MPIX_EP_PLACE_SCALES]))))
            return kind;
    }
    if ((tokens > 0 && ((kind = mpix_ep_gpu_check(ep, in->x.data, "in.x.data")) ||
                        (kind = mpix_ep_gpu_check(ep, in->x.scales, "in.x.scales")) ||
                        (kind = mpix_ep_gpu_check(ep, in->topk_weights, "in.topk_weights")))) ||
        (kind = mpix_ep_gpu_check(ep, out->local_ids, "out.local_ids")) ||
        (kind = mpix_ep_gpu_check(ep, out->src_rank, "out.src_rank")) ||
        (kind = mpix_ep_gpu_check(ep, out->src_token, "out.src_token")) ||
        (kind = mpix_ep_gpu_check(ep, out->topk_weights, "out.topk_weights")) ||
        (kind = mpix_ep_gpu_check(ep, out->cumulative, "out.cumulative")) ||
        (kind = mpix_ep_gpu_check(ep, out->wait_ns, "out.wait_ns")))
        return kind;
    return 0;
}

int mpix_ep_gpu_dispatch_by(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                            const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form,
                            mpix_ep_gpu_dispatch_fill *fill) {
    mpix_ep_gpu_begun s;
    int code;
    if (mpix_ep_gpu_start(handle, form, 0, &s, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_cuda_dispatch c = {0};
    MPIX_Ep_dispatch_in i;
    MPIX_Ep_dispatch_out o;
    char why[MPIX_CUDA_WHY] = "";
    int kind = s.kind;
    if (!kind)
        kind = mpix_ep_check_dispatch(handle, in, out, &i, &o);
    if (!kind)
        kind = fill(handle, &i, &o, &c, s.call);
    if (!kind)
        kind = mpix_ep_gpu_copy_engine_counts(handle);
    if (kind && s.capture)
        return mpix_boot_raise(ep->boot, kind);
    if (kind) {
        c = (mpix_cuda_dispatch){.status = kind, .offer.status = kind, .row = 16};
        if (s.call)
            s.call->ncopies = 0;
    } else
        handle->capacity = out->capacity_rows;
    c.part = form->how == MPIX_EP_BEGIN && !kind ? MPIX_CUDA_BEGIN : MPIX_CUDA_WHOLE;
    c.report = s.report;
    int launch = mpix_ep_gpu_order(handle, &s, why);
    if (!launch)
        launch = ep->gpu->ops->dispatch(&ep->gpu->device, &g->dev, &c, s.stream, why);
    if (!launch && c.part == MPIX_CUDA_BEGIN) {
        g->dispatch = c;
        g->open = MPIX_CUDA_DISPATCH;
        g->open_capture = s.capture;
    }
    return mpix_ep_gpu_finish(handle, &s, kind, launch, why);
}

int mpix_ep_gpu_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                         const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form) {
    return mpix_ep_gpu_dispatch_by(handle, in, out, form, dispatch_fill);
}

/* ---- combine --------------------------------------------------------------------------------- */

/* Rows that fit from x to the end of its allocation. */
static int64_t rows_behind(mpix_ep *ep, const MPIX_Ep_rows *x, int64_t hidden) {
    mpix_ep_place place;
    size_t row = mpix_ep_row_bytes(x, hidden);
    if (ep->size == 1 || !mpix_ep_gpu_find(ep, x->data, row, 0, &place))
        return ep->max_rows;
    size_t room = ep->gpu->windows[place.window].bytes[ep->rank] - (size_t)place.off - row;
    return (int64_t)(room / (size_t)x->stride) + 1;
}

/* Two hops, where the routing takes them: the sums of other hosts' rows travel in a dtype of their
 * own, which needs its room. With two_hops=auto one hop is taken if they do not fit. */
static int combine_hops(const mpix_ep *ep, const MPIX_Ep_combine_in *in, mpix_cuda_combine *c) {
    int fp8 = in->x.dtype == MPIX_EP_F8E4M3 || in->x.dtype == MPIX_EP_F8E5M2;
    c->wire = fp8 ? MPIX_EP_BF16 : in->x.dtype;
    c->two_hops = (int64_t)mpix_dtype_size(c->wire) <= ep->config.max_row_bytes / in->hidden;
    if (ep->gpu->remote && ep->params.two_hops == MPIX_HOPS_ON && !c->two_hops)
        return mpix_fail(MPIX_ERRK_ARG, "in.hidden",
                         "two_hops=on: a row of %lld elements of %s, in which partial sums travel, "
                         "exceeds config.max_row_bytes = %lld",
                         (long long)in->hidden, mpix_dtype_name(c->wire),
                         (long long)ep->config.max_row_bytes);
    return 0;
}

/* The biases; and the GPU can reach what the call reads and writes. */
static int combine_check(mpix_ep *ep, const MPIX_Ep_combine_in *in, const MPIX_Ep_combine_out *out,
                         int64_t rows, mpix_cuda_combine *c) {
    int64_t tokens = c->tokens;
    int kind;
    for (int b = 0; b < in->num_bias; b++) {
        c->bias[b] = in->bias[b].data;
        c->bias_stride[b] = in->bias[b].stride;
        if (tokens > 0 && (kind = mpix_ep_gpu_check(ep, in->bias[b].data,
                                                    b ? "in.bias[1].data" : "in.bias[0].data")))
            return kind;
    }
    if ((rows > 0 && ((kind = mpix_ep_gpu_check(ep, in->x.data, "in.x.data")) ||
                      (kind = mpix_ep_gpu_check(ep, in->x.scales, "in.x.scales")) ||
                      (kind = mpix_ep_gpu_check(ep, in->row_weights, "in.row_weights")) ||
                      (kind = mpix_ep_gpu_check(ep, in->slot_values, "in.slot_values")))) ||
        (tokens > 0 && (kind = mpix_ep_gpu_check(ep, out->y.data, "out.y.data"))) ||
        (kind = mpix_ep_gpu_check(ep, out->slot_values, "out.slot_values")) ||
        (kind = mpix_ep_gpu_check(ep, out->wait_ns, "out.wait_ns")))
        return kind;
    return 0;
}

/* How many rows there are is known on the device only; the capacity of the last dispatch bounds
 * them, or the memory behind x. */
static int64_t combine_rows(const struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in) {
    mpix_ep *ep = handle->ep;
    int64_t rows = handle->capacity >= 0 ? handle->capacity : rows_behind(ep, &in->x, in->hidden);
    if (rows > ep->max_rows)
        rows = ep->max_rows;
    return in->x.data ? rows : 0;
}

void mpix_ep_gpu_combine_set(const struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                             const MPIX_Ep_combine_out *out, mpix_cuda_combine *c) {
    *c = (mpix_cuda_combine){.x = in->x.data,
                             .scales = in->x.scales,
                             .row_weights = in->row_weights,
                             .slot_values = in->slot_values,
                             .y = out->y.data,
                             .out_slots = out->slot_values,
                             .tokens = handle->tokens,
                             .x_stride = in->x.stride,
                             .scale_stride = in->x.scale_stride,
                             .y_stride = out->y.stride,
                             .hidden = in->hidden,
                             .xdtype = in->x.dtype,
                             .ydtype = out->y.dtype,
                             .scale_kind = in->x.scale_kind,
                             .num_bias = in->num_bias,
                             .topk = handle->topk,
                             .num_sms = handle->ep->config.num_sms,
                             .wait_ns = out->wait_ns};
}

static int combine_fill(struct mpix_ep_handle *handle, MPIX_Ep_combine_in *in,
                        MPIX_Ep_combine_out *out, mpix_cuda_combine *c) {
    mpix_ep *ep = handle->ep;
    int kind, alone = ep->size == 1, expert = ep->config.layout == MPIX_EP_EXPERT;
    int64_t rows = combine_rows(handle, in), tokens = handle->tokens;
    size_t row = mpix_ep_row_bytes(&in->x, in->hidden),
           scale = mpix_ep_scale_bytes(&in->x, in->hidden), n = (size_t)rows;
    mpix_ep_gpu_combine_set(handle, in, out, c);
    c->path = ep->params.gpu_path;
    if ((kind = combine_hops(ep, in, c)))
        return kind;
    c->offer = (mpix_cuda_offer){.dtype = in->x.dtype,
                                 .scale_kind = in->x.scale_kind,
                                 .hidden = in->hidden,
                                 .rows = rows};
    for (int i = 0; i < MPIX_EP_PLACES; i++)
        c->offer.at[i].window = -1;
    /* read from there too where no peer does */
    c->offer.at[MPIX_EP_PLACE_X].stride = (uint64_t)in->x.stride;
    c->offer.at[MPIX_EP_PLACE_SCALES].stride = (uint64_t)in->x.scale_stride;
    /* the agreed width is known on the device only */
    size_t slot = sizeof(float) * (size_t)(handle->topk > 0 ? handle->topk : 1);
    int fp8 = in->x.dtype == MPIX_EP_F8E4M3 || in->x.dtype == MPIX_EP_F8E5M2;
    if (expert && ep->gpu->remote && fp8 &&
        in->hidden > ep->config.max_row_bytes * MPIX_EP_GPU_REMOTE_PARTIAL / 4)
        return mpix_fail(MPIX_ERRK_ARG, "in.hidden",
                         "in.hidden = %lld: partial sums of fp8 rows travel to proxied peers in "
                         "float, at most %d * config.max_row_bytes = %lld bytes a row",
                         (long long)in->hidden, MPIX_EP_GPU_REMOTE_PARTIAL,
                         (long long)ep->config.max_row_bytes * MPIX_EP_GPU_REMOTE_PARTIAL);
    /* the rows' rank sums them, so they may lie anywhere; partial sums in float where
     * wire asks for it */
    if (expert) {
        c->choice_weights = in->topk_weights;
        c->offer.flags =
            (in->wire == MPIX_EP_F32 && in->x.dtype != MPIX_EP_F32 ? MPIX_EP_OFFER_EXACT : 0) |
            (in->topk_weights && tokens > 0 ? MPIX_EP_OFFER_CHOICES : 0) |
            (in->slot_values ? MPIX_EP_OFFER_HAS_SLOTS : 0);
        if (tokens == 0)
            c->choice_weights = NULL;
        if ((kind = mpix_ep_gpu_check(ep, c->choice_weights, "in.topk_weights")))
            return kind;
    } else if (n > 0 && !alone &&
               ((kind = place_rows(ep, in->x.data, (n - 1) * (size_t)in->x.stride + row,
                                   (uint64_t)in->x.stride, "in.x.data", MPIX_EP_CAN_ANY_INPUT,
                                   &c->offer.at[MPIX_EP_PLACE_X])) ||
                (scale &&
                 (kind = place_rows(ep, in->x.scales, (n - 1) * (size_t)in->x.scale_stride + scale,
                                    (uint64_t)in->x.scale_stride, "in.x.scales",
                                    MPIX_EP_CAN_ANY_INPUT, &c->offer.at[MPIX_EP_PLACE_SCALES]))) ||
                (kind = place_rows(ep, in->row_weights, n * sizeof(float), sizeof(float),
                                   "in.row_weights", MPIX_EP_CAN_ANY_INPUT,
                                   &c->offer.at[MPIX_EP_PLACE_WEIGHTS])) ||
                (kind = place_rows(ep, in->slot_values, n * slot, slot, "in.slot_values",
                                   MPIX_EP_CAN_ANY_INPUT, &c->offer.at[MPIX_EP_PLACE_SLOTS]))))
        return kind;
    return combine_check(ep, in, out, rows, c);
}

int mpix_ep_gpu_combine_by(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                           const MPIX_Ep_combine_out *out, const mpix_ep_form *form,
                           mpix_ep_gpu_combine_fill *fill) {
    mpix_ep_gpu_begun s;
    int code;
    if (mpix_ep_gpu_start(handle, form, 0, &s, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_cuda_combine c = {0};
    MPIX_Ep_combine_in i;
    MPIX_Ep_combine_out o;
    char why[MPIX_CUDA_WHY] = "";
    int kind = s.kind;
    if (!kind)
        kind = mpix_ep_check_combine(handle, in, out, &i, &o);
    if (!kind)
        kind = fill(handle, &i, &o, &c);
    if (!kind)
        kind = mpix_ep_gpu_copy_engine_counts(handle);
    if (kind && s.capture)
        return mpix_boot_raise(ep->boot, kind);
    if (kind)
        c = (mpix_cuda_combine){.status = kind,
                                .offer.status = kind,
                                .hidden = 8,
                                .xdtype = MPIX_EP_BF16,
                                .ydtype = MPIX_EP_BF16};
    c.part = form->how == MPIX_EP_BEGIN && !kind ? MPIX_CUDA_BEGIN : MPIX_CUDA_WHOLE;
    c.report = s.report;
    int launch = mpix_ep_gpu_order(handle, &s, why);
    if (!launch)
        launch = ep->gpu->ops->combine(&ep->gpu->device, &g->dev, &c, s.stream, why);
    if (!launch && c.part == MPIX_CUDA_BEGIN) {
        g->combine = c;
        g->open = MPIX_CUDA_COMBINE;
        g->open_capture = s.capture;
    }
    return mpix_ep_gpu_finish(handle, &s, kind, launch, why);
}

int mpix_ep_gpu_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                        const MPIX_Ep_combine_out *out, const mpix_ep_form *form) {
    return mpix_ep_gpu_combine_by(handle, in, out, form, combine_fill);
}
