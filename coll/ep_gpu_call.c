/*
 * ep_gpu_call.c - route, dispatch and combine of a context in GPU memory: checks, launch, and what the kernels reported.
 *
 * A call is one or two kernels on a stream: the caller's (..._enqueue, where nothing waits for the host) or the context's. Calls of one
 * handle follow each other on the device, whatever their streams. A rank whose arguments fail launches the same kernel with a status,
 * so its peers learn of it. A kernel that fails writes a report to pinned memory: the transfer's end reads it, and for enqueued calls
 * MPIX_Ep_get_async_error and the next call of the context.
 */
#include "config.h"

#include "coll/ep_gpu.h"

#include <poll.h>
#include <stdlib.h>

typedef struct gpu_copy { /* an output in pageable memory, filled at the end */
    MPI_Count *to;
    const int64_t *from;
    int64_t n;
} gpu_copy;

typedef struct gpu_call {
    struct mpix_xfer xfer; /* first */
    mpix_ep *ep;
    struct mpix_ep_handle *handle;
    void *event;
    mpix_cuda_status *report;
    gpu_copy copies[6];
    int ncopies, broken;
    char why[MPIX_CUDA_WHY];
} gpu_call;

/* ---- what kernels report --------------------------------------------------------------------------------------------------- */

static int peer_ended(const mpix_ep *ep, int peer) {
    struct pollfd p = {.fd = ep->pidfds[peer], .events = POLLIN};
    return peer >= 0 && p.fd >= 0 && poll(&p, 1, 0) == 1;
}

static int report_fail(mpix_ep *ep, const mpix_cuda_status *s) {
    int p = s->peer >= 0 && s->peer < ep->size ? s->peer : ep->rank;
    const char *host = ep->boot->hostnames[p];
    long long a = s->a, b = s->b;
    switch (s->code) {
    case MPIX_CUDA_TIMEOUT:
        if (peer_ended(ep, p))
            return mpix_fail_peer(MPIX_ERRK_PEER, p, host, "rank %d (pid %d on %s) ended; the context has failed", p, (int)ep->boot->pids[p], host);
        return mpix_fail_peer(MPIX_ERRK_TIMEOUT, p, host, "rank %d on %s did not answer within %g s; the context has failed", p, host,
                              ep->config.timeout_s);
    case MPIX_CUDA_FAILED: return mpix_fail(MPIX_ERRK_TIMEOUT, NULL, "an earlier call of the context timed out");
    case MPIX_CUDA_REMOTE: return mpix_fail_peer(MPIX_ERRK_REMOTE, p, host, "rank %d on %s failed its part of the call", p, host);
    case MPIX_CUDA_BAD_ID:
        return mpix_fail(MPIX_ERRK_ARG, "routing.ids", "routing.ids: token %lld has expert %lld, not in [-1, %lld)", a, b, (long long)ep->config.num_experts);
    case MPIX_CUDA_TOPK: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "routing.topk = %lld on rank %d differs from %lld", a, p, b);
    case MPIX_CUDA_ROWS_LIMIT:
        return mpix_fail(MPIX_ERRK_TRUNCATE, "config.max_recv_rows", "this rank would receive %lld rows, config.max_recv_rows is %lld", a, b);
    case MPIX_CUDA_CAPACITY:
        return mpix_fail(MPIX_ERRK_TRUNCATE, "out.capacity_rows", "this rank has %lld rows by its routing, its array has room for %lld", a, b);
    case MPIX_CUDA_NOT_ROUTED: return mpix_fail(MPIX_ERRK_ARG, "handle", "the handle has no routing: its last route failed");
    case MPIX_CUDA_HIDDEN: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "in.hidden = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_DTYPE: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "in.x.dtype = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_SCALES: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "in.x.scale_kind = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_WEIGHTS: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "weights are wanted, but rank %d gave no in.topk_weights", p);
    case MPIX_CUDA_SLOTS: return mpix_fail_peer(MPIX_ERRK_ARG, p, host, "out.slot_values is wanted, but rank %d gave no in.slot_values", p);
    default: return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "a kernel reported code %d", s->code);
    }
}

/* The kind of a report; a time-out fails the context. */
static int report_read(mpix_ep *ep, mpix_cuda_status *s) {
    if (!s->code)
        return 0;
    int kind = report_fail(ep, s);
    if (kind == MPIX_ERRK_TIMEOUT || kind == MPIX_ERRK_PEER) {
        pthread_mutex_lock(&ep->lock);
        mpix_ep_fail(ep, kind);
        pthread_mutex_unlock(&ep->lock);
    }
    return kind;
}

void mpix_ep_gpu_poll(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    for (int i = 0; i < MPIX_EP_GPU_REPORTS; i++) {
        if (!gpu->enqueued[i] || !*(volatile int32_t *)&gpu->reports[i].code)
            continue;
        MPIX_Error before = *mpix_error_tls();
        gpu->enqueued[i] = 0;
        (void)report_read(ep, &gpu->reports[i]);
        if (!gpu->async.kind)
            gpu->async = *mpix_error_tls();
        *mpix_error_tls() = before;
    }
}

/* ---- transfers ------------------------------------------------------------------------------------------------------------- */

static int gpu_test(struct mpix_xfer *xfer) {
    gpu_call *call = (gpu_call *)xfer;
    int done = call->broken ? 1 : call->ep->gpu->ops->event_done(call->event, call->why);
    if (done < 0)
        call->broken = 1;
    return done != 0;
}

static void gpu_wait_start(struct mpix_xfer *xfer, mpix_wait *wait) {
    gpu_call *call = (gpu_call *)xfer;
    mpix_wait_start(wait, NULL, call->ep->params.spin_us, call->ep->crowded);
}

static int gpu_end(struct mpix_xfer *xfer, mpix_boot **boot) {
    gpu_call *call = (gpu_call *)xfer;
    mpix_ep *ep = call->ep;
    int kind = call->broken ? mpix_fail(MPIX_ERRK_TRANSPORT, NULL, "%s", call->why) : report_read(ep, call->report);
    for (int i = 0; i < call->ncopies && !kind; i++)
        for (int64_t j = 0; j < call->copies[i].n; j++)
            call->copies[i].to[j] = call->copies[i].from[j];
    pthread_mutex_lock(&ep->lock);
    ep->users--;
    call->handle->users--;
    pthread_mutex_unlock(&ep->lock);
    mpix_live_remove(call);
    ep->gpu->ops->event_destroy(call->event);
    *boot = ep->boot;
    free(call);
    return kind;
}

static const mpix_xfer_ops gpu_xfer_ops = {.test = gpu_test, .wait_start = gpu_wait_start, .end = gpu_end};

/* ---- pointers -------------------------------------------------------------------------------------------------------------- */

static int pointer_kind(mpix_ep *ep, const void *p) {
    mpix_ep_gpu *gpu = ep->gpu;
    const void **slot = &gpu->known[((uintptr_t)p >> 4 ^ (uintptr_t)p >> 15) % MPIX_EP_GPU_KNOWN];
    if (*slot == p)
        return MPIX_CUDA_PTR_DEVICE;
    int kind = gpu->ops->pointer(&gpu->device, p);
    if (kind == MPIX_CUDA_PTR_DEVICE)
        *slot = p;
    return kind;
}

/* Memory that this context's device may use; NULL is fine. */
static int check_device(mpix_ep *ep, const void *p, const char *arg) {
    int kind = p ? pointer_kind(ep, p) : MPIX_CUDA_PTR_DEVICE;
    if (kind == MPIX_CUDA_PTR_DEVICE || kind == MPIX_CUDA_PTR_MANAGED)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %p is %s, the context needs memory of CUDA device %d", arg, p,
                     kind == MPIX_CUDA_PTR_OTHER_DEVICE ? "memory of another CUDA device" : "host memory", ep->gpu->device.ordinal);
}

/* Rows that peers reach: they must lie in memory of MPIX_Ep_alloc. */
static int place_rows(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, const char *arg, mpix_cuda_place *place) {
    if (!p || bytes == 0 || mpix_ep_gpu_find(ep, p, bytes, stride, place))
        return 0;
    return mpix_fail(MPIX_ERRK_UNSUPPORTED, arg, "%s = %p: %zu bytes there are not in memory from MPIX_Ep_alloc; other GPU memory is not in "
                     "this version", arg, p, bytes);
}

/* ---- starting and submitting ----------------------------------------------------------------------------------------------- */

static int gpu_alive(MPIX_Ep_handle handle) {
    mpix_ep_gpu_poll(handle->ep);
    return mpix_ep_alive(handle->ep);
}

static mpix_cuda_status *report_take(mpix_ep_gpu *gpu, int enqueued) {
    int i = (int)(gpu->next_report++ % MPIX_EP_GPU_REPORTS);
    memset(&gpu->reports[i], 0, sizeof gpu->reports[i]);
    gpu->enqueued[i] = (unsigned char)enqueued;
    return &gpu->reports[i];
}

/* Before a launch: the stream is one of this device, and the handle's earlier calls come first. */
static int stream_prepare(struct mpix_ep_handle *handle, void *stream, char *why) {
    const mpix_ep_gpu *gpu = handle->ep->gpu;
    mpix_ep_gpu_handle *g = handle->gpu;
    int kind = 0;
    if (g->started && g->last_stream != stream)
        kind = gpu->ops->stream_wait(stream, g->event, why);
    g->last_stream = stream;
    g->started = 1;
    return kind;
}

static int check_stream(mpix_ep *ep, void *stream) {
    char why[MPIX_CUDA_WHY] = "";
    int capturing = 0, kind = ep->gpu->ops->stream_check(&ep->gpu->device, stream, &capturing, why);
    if (kind)
        return mpix_fail(kind, "stream", "%s", why);
    return capturing ? mpix_fail(MPIX_ERRK_UNSUPPORTED, "stream", "the stream is being captured: CUDA graphs are not in this version") : 0;
}

/* After the launch: kind is the caller's own error, if any. call: for how != ENQUEUE. */
static int finish(struct mpix_ep_handle *handle, gpu_call *call, mpix_cuda_status *report, int kind, int launch, const char *why, MPIX_Xfer *xfer,
                  int how, void *stream) {
    mpix_ep *ep = handle->ep;
    const mpix_ep_gpu *gpu = ep->gpu;
    MPIX_Error error = *mpix_error_tls();
    char text[MPIX_CUDA_WHY] = "";
    if (!launch)
        launch = gpu->ops->event_record(&gpu->device, ((mpix_ep_gpu_handle *)handle->gpu)->event, stream, text);
    if (!launch && call)
        launch = gpu->ops->event_record(&gpu->device, call->event, stream, text);
    if (launch && !kind) {
        kind = mpix_fail(launch, NULL, "%s", text[0] ? text : why);
        error = *mpix_error_tls();
    }
    if (!call || (kind && (how == MPIX_EP_GPU_XFER || launch))) { /* nobody waits for it */
        if (call) {
            gpu->ops->event_destroy(call->event);
            free(call);
        }
        *mpix_error_tls() = error;
        return mpix_boot_raise(ep->boot, kind);
    }
    call->xfer.ops = &gpu_xfer_ops;
    call->ep = ep;
    call->handle = handle;
    call->report = report;
    int no_mem = mpix_live_add(call, MPIX_LIVE_XFER);
    pthread_mutex_lock(&ep->lock);
    ep->users++;
    handle->users++;
    pthread_mutex_unlock(&ep->lock);
    if (how == MPIX_EP_GPU_XFER && !no_mem) {
        *xfer = &call->xfer;
        return MPI_SUCCESS;
    }
    mpix_boot *boot;
    int ended = mpix_xfer_finish(&call->xfer, &boot);
    if (kind)
        *mpix_error_tls() = error;
    return mpix_boot_raise(ep->boot, kind ? kind : no_mem ? no_mem : ended);
}

/* The part all calls share before their checks. 0: go on. */
static int begin(MPIX_Ep_handle handle, MPIX_Xfer *xfer, int how, void **stream, gpu_call **call, int *code) {
    mpix_ep *ep = handle->ep;
    char why[MPIX_CUDA_WHY] = "";
    int kind = gpu_alive(handle);
    *call = NULL;
    if (how != MPIX_EP_GPU_ENQUEUE)
        *stream = ep->gpu->stream;
    else if (!kind)
        kind = check_stream(ep, *stream);
    if (!kind && how != MPIX_EP_GPU_ENQUEUE) {
        *call = calloc(1, sizeof **call);
        if (!*call)
            kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a call");
        else if ((kind = ep->gpu->ops->event_create(&ep->gpu->device, &(*call)->event, why))) {
            free(*call);
            kind = mpix_fail(kind, NULL, "%s", why);
        }
    }
    if (kind) {
        *code = mpix_boot_raise(ep->boot, kind);
        return 1;
    }
    *code = MPI_SUCCESS;
    if (how == MPIX_EP_GPU_XFER && !xfer)
        (void)mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL"); /* the caller goes on with an empty, failed batch */
    return 0;
}

/* ---- route ----------------------------------------------------------------------------------------------------------------- */

/* An output of counts: written by the kernel where the device can, otherwise copied at the end. */
static int count_output(mpix_ep *ep, MPI_Count *to, const int64_t *from, int64_t n, const char *arg, int how, gpu_call *call, int64_t **direct) {
    *direct = NULL;
    if (!to)
        return 0;
    int where = pointer_kind(ep, to);
    if (where == MPIX_CUDA_PTR_OTHER_DEVICE)
        return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %p is memory of another CUDA device", arg, (void *)to);
    if (where != MPIX_CUDA_PTR_PAGEABLE) {
        *direct = (int64_t *)to;
        return 0;
    }
    if (how == MPIX_EP_GPU_ENQUEUE)
        return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %p is pageable host memory: an enqueued call needs pinned or GPU memory", arg, (void *)to);
    call->copies[call->ncopies++] = (gpu_copy){to, from, n};
    return 0;
}

static int route_outputs(mpix_ep *ep, const MPIX_Ep_counts *o, mpix_cuda_route *c, const mpix_ep_gpu_handle *g, int how, gpu_call *call) {
    const int64_t *r = g->results;
    int64_t n = ep->size, le = g->dev.local_experts;
    int kind;
    if ((kind = count_output(ep, o->recv_total, r, 1, "counts.recv_total", how, call, &c->recv_total)) ||
        (kind = count_output(ep, o->recv_per_rank, r + 2, n, "counts.recv_per_rank", how, call, &c->recv_per_rank)) ||
        (kind = count_output(ep, o->send_per_rank, r + 2 + n, n, "counts.send_per_rank", how, call, &c->send_per_rank)) ||
        (kind = count_output(ep, o->recv_per_expert, r + 2 + 2 * n, le, "counts.recv_per_expert", how, call, &c->recv_per_expert)) ||
        (kind = count_output(ep, o->send_per_expert, r + 2 + 2 * n + le, ep->placement.experts, "counts.send_per_expert", how, call,
                             &c->send_per_expert)) ||
        (kind = count_output(ep, o->send_per_host, r + 1, 1, "counts.send_per_host", how, call, &c->send_per_host)))
        return kind;
    if (o->send_per_host && !c->send_per_host)
        c->send_per_host = g->dev.results + 1; /* counted only if somebody wants it */
    c->token_in_rank = o->token_in_rank;
    if (o->token_in_rank && pointer_kind(ep, o->token_in_rank) == MPIX_CUDA_PTR_PAGEABLE)
        return mpix_fail(MPIX_ERRK_ARG, "counts.token_in_rank", "counts.token_in_rank = %p is pageable host memory, pinned or GPU memory is needed",
                         (void *)o->token_in_rank);
    return 0;
}

int mpix_ep_gpu_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing, const MPIX_Ep_counts *counts, MPIX_Xfer *xfer, int how, void *stream) {
    gpu_call *call;
    int code;
    if (begin(handle, xfer, how, &stream, &call, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    MPIX_Ep_routing r;
    mpix_cuda_route c = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = how == MPIX_EP_GPU_XFER && !xfer ? MPIX_ERRK_ARG : 0;
    if (!kind)
        kind = mpix_ep_check_routing(ep, routing, &r);
    if (!kind)
        kind = check_device(ep, r.num_tokens > 0 ? r.ids : NULL, "routing.ids");
    if (!kind)
        kind = mpix_ep_check_counts(ep, counts);
    if (!kind && counts)
        kind = route_outputs(ep, counts, &c, g, how, call);
    if (kind) {
        c = (mpix_cuda_route){.status = kind};
        if (call)
            call->ncopies = 0;
    } else {
        c.tokens = r.num_tokens;
        c.topk = r.topk;
        c.bits = r.idx_bits;
        c.stride = r.ids_stride ? r.ids_stride : (int64_t)r.topk * r.idx_bits / 8;
        c.ids = r.ids;
    }
    MPIX_Error error = *mpix_error_tls();
    c.report = report_take(ep->gpu, how == MPIX_EP_GPU_ENQUEUE);
    handle->routed = !kind;
    handle->tokens = c.tokens;
    handle->topk = c.topk;
    handle->capacity = -1;
    int launch = stream_prepare(handle, stream, why);
    if (!launch)
        launch = ep->gpu->ops->route(&ep->gpu->device, &g->dev, &c, stream, why);
    *mpix_error_tls() = error;
    return finish(handle, call, c.report, kind, launch, why, xfer, how, stream);
}

/* ---- dispatch -------------------------------------------------------------------------------------------------------------- */

static int dispatch_fill(struct mpix_ep_handle *handle, MPIX_Ep_dispatch_in *in, MPIX_Ep_dispatch_out *out, mpix_cuda_dispatch *c) {
    mpix_ep *ep = handle->ep;
    int kind = mpix_ep_check_dispatch(handle, in, out);
    if (kind)
        return kind;
    size_t row = mpix_ep_row_bytes(&in->x, in->hidden), scale = mpix_ep_scale_bytes(&in->x, in->hidden), n = (size_t)out->capacity_rows;
    int64_t tokens = handle->tokens;
    *c = (mpix_cuda_dispatch){.x = in->x.data, .scales = in->x.scales, .weights = in->topk_weights, .tokens = tokens, .x_stride = in->x.stride,
        .scale_stride = in->x.scale_stride, .row = (int64_t)row, .scale_row = (int64_t)scale, .topk = handle->topk,
        .num_sms = ep->config.num_sms, .path = ep->params.gpu_path, .local_ids = out->local_ids, .src_rank = out->src_rank,
        .src_token = (int64_t *)out->src_token, .out_weights = out->topk_weights, .cumulative = out->cumulative, .wait_ns = out->wait_ns,
        .capacity = out->capacity_rows};
    c->offer = (mpix_cuda_offer){.dtype = in->x.dtype, .scale_kind = in->x.scale_kind, .hidden = in->hidden, .rows = out->capacity_rows};
    if (c->offer.rows > ep->max_rows)
        c->offer.rows = ep->max_rows;
    c->offer.flags = (out->local_ids || out->src_token || out->topk_weights ? MPIX_CUDA_OFFER_META : 0) |
                     (out->topk_weights ? MPIX_CUDA_OFFER_WEIGHTS : 0) | (in->topk_weights || tokens == 0 ? MPIX_CUDA_OFFER_GIVES : 0);
    for (int i = 0; i < MPIX_CUDA_PLACES; i++)
        c->offer.at[i].window = -1;
    if (n > 0) {
        if ((kind = place_rows(ep, out->x.data, (n - 1) * (size_t)out->x.stride + row, (uint64_t)out->x.stride, "out.x.data",
                               &c->offer.at[MPIX_CUDA_AT_X])) ||
            (scale && (kind = place_rows(ep, out->x.scales, (n - 1) * (size_t)out->x.scale_stride + scale, (uint64_t)out->x.scale_stride,
                                         "out.x.scales", &c->offer.at[MPIX_CUDA_AT_SCALES]))))
            return kind;
    }
    if ((tokens > 0 && ((kind = check_device(ep, in->x.data, "in.x.data")) || (kind = check_device(ep, in->x.scales, "in.x.scales")) ||
                        (kind = check_device(ep, in->topk_weights, "in.topk_weights")))) ||
        (kind = check_device(ep, out->local_ids, "out.local_ids")) || (kind = check_device(ep, out->src_rank, "out.src_rank")) ||
        (kind = check_device(ep, out->src_token, "out.src_token")) || (kind = check_device(ep, out->topk_weights, "out.topk_weights")) ||
        (kind = check_device(ep, out->cumulative, "out.cumulative")) || (kind = check_device(ep, out->wait_ns, "out.wait_ns")))
        return kind;
    return 0;
}

int mpix_ep_gpu_dispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in, const MPIX_Ep_dispatch_out *out, MPIX_Xfer *xfer, int how, void *stream) {
    gpu_call *call;
    int code;
    if (begin(handle, xfer, how, &stream, &call, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_cuda_dispatch c = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = how == MPIX_EP_GPU_XFER && !xfer ? MPIX_ERRK_ARG : 0;
    if (!kind && (!in || !out))
        kind = mpix_fail(MPIX_ERRK_ARG, in ? "out" : "in", "%s is NULL", in ? "out" : "in");
    if (!kind) {
        MPIX_Ep_dispatch_in i = *in;
        MPIX_Ep_dispatch_out o = *out;
        kind = dispatch_fill(handle, &i, &o, &c);
    }
    if (kind)
        c = (mpix_cuda_dispatch){.status = kind, .offer.status = kind, .row = 16};
    else
        handle->capacity = out->capacity_rows;
    MPIX_Error error = *mpix_error_tls();
    c.report = report_take(ep->gpu, how == MPIX_EP_GPU_ENQUEUE);
    int launch = stream_prepare(handle, stream, why);
    if (!launch)
        launch = ep->gpu->ops->dispatch(&ep->gpu->device, &g->dev, &c, stream, why);
    *mpix_error_tls() = error;
    return finish(handle, call, c.report, kind, launch, why, xfer, how, stream);
}

/* ---- combine --------------------------------------------------------------------------------------------------------------- */

/* Rows that fit from x to the end of its allocation. */
static int64_t rows_behind(mpix_ep *ep, const MPIX_Ep_rows *x, int64_t hidden) {
    mpix_cuda_place place;
    size_t row = mpix_ep_row_bytes(x, hidden);
    if (ep->size == 1 || !mpix_ep_gpu_find(ep, x->data, row, 0, &place))
        return ep->max_rows;
    size_t room = ep->gpu->windows[place.window].bytes[ep->rank] - (size_t)place.off - row;
    return (int64_t)(room / (size_t)x->stride) + 1;
}

static int combine_fill(struct mpix_ep_handle *handle, MPIX_Ep_combine_in *in, MPIX_Ep_combine_out *out, mpix_cuda_combine *c) {
    mpix_ep *ep = handle->ep;
    int kind = mpix_ep_check_combine(handle, in, out), alone = ep->size == 1;
    if (kind)
        return kind;
    /* How many rows there are is known on the device only; the capacity of the last dispatch bounds them, or the memory behind x. */
    int64_t rows = handle->capacity >= 0 ? handle->capacity : rows_behind(ep, &in->x, in->hidden), tokens = handle->tokens;
    if (rows > ep->max_rows)
        rows = ep->max_rows;
    if (!in->x.data)
        rows = 0;
    size_t row = mpix_ep_row_bytes(&in->x, in->hidden), scale = mpix_ep_scale_bytes(&in->x, in->hidden), n = (size_t)rows;
    *c = (mpix_cuda_combine){.x = in->x.data, .scales = in->x.scales, .row_weights = in->row_weights, .slot_values = in->slot_values,
        .y = out->y.data, .out_slots = out->slot_values, .tokens = tokens, .x_stride = in->x.stride, .scale_stride = in->x.scale_stride,
        .y_stride = out->y.stride, .hidden = in->hidden, .xdtype = in->x.dtype, .ydtype = out->y.dtype, .scale_kind = in->x.scale_kind,
        .num_bias = in->num_bias, .topk = handle->topk, .num_sms = ep->config.num_sms, .path = ep->params.gpu_path, .wait_ns = out->wait_ns};
    c->offer = (mpix_cuda_offer){.dtype = in->x.dtype, .scale_kind = in->x.scale_kind, .hidden = in->hidden, .rows = rows};
    for (int i = 0; i < MPIX_CUDA_PLACES; i++)
        c->offer.at[i].window = -1;
    c->offer.at[MPIX_CUDA_AT_X].stride = (uint64_t)in->x.stride; /* read from there too where no peer does */
    c->offer.at[MPIX_CUDA_AT_SCALES].stride = (uint64_t)in->x.scale_stride;
    size_t slot = sizeof(float) * (size_t)(handle->topk > 0 ? handle->topk : 1); /* the agreed width is known on the device only */
    if (n > 0 && !alone &&
        ((kind = place_rows(ep, in->x.data, (n - 1) * (size_t)in->x.stride + row, (uint64_t)in->x.stride, "in.x.data", &c->offer.at[MPIX_CUDA_AT_X])) ||
         (scale && (kind = place_rows(ep, in->x.scales, (n - 1) * (size_t)in->x.scale_stride + scale, (uint64_t)in->x.scale_stride, "in.x.scales",
                                      &c->offer.at[MPIX_CUDA_AT_SCALES]))) ||
         (kind = place_rows(ep, in->row_weights, n * sizeof(float), sizeof(float), "in.row_weights", &c->offer.at[MPIX_CUDA_AT_WEIGHTS])) ||
         (kind = place_rows(ep, in->slot_values, n * slot, slot, "in.slot_values", &c->offer.at[MPIX_CUDA_AT_SLOTS]))))
        return kind;
    for (int b = 0; b < in->num_bias; b++) {
        c->bias[b] = in->bias[b].data;
        c->bias_stride[b] = in->bias[b].stride;
        if (tokens > 0 && (kind = check_device(ep, in->bias[b].data, b ? "in.bias[1].data" : "in.bias[0].data")))
            return kind;
    }
    if ((rows > 0 && ((kind = check_device(ep, in->x.data, "in.x.data")) || (kind = check_device(ep, in->x.scales, "in.x.scales")) ||
                      (kind = check_device(ep, in->row_weights, "in.row_weights")) || (kind = check_device(ep, in->slot_values, "in.slot_values")))) ||
        (tokens > 0 && (kind = check_device(ep, out->y.data, "out.y.data"))) || (kind = check_device(ep, out->slot_values, "out.slot_values")) ||
        (kind = check_device(ep, out->wait_ns, "out.wait_ns")))
        return kind;
    return 0;
}

int mpix_ep_gpu_combine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in, const MPIX_Ep_combine_out *out, MPIX_Xfer *xfer, int how, void *stream) {
    gpu_call *call;
    int code;
    if (begin(handle, xfer, how, &stream, &call, &code))
        return code;
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_cuda_combine c = {0};
    char why[MPIX_CUDA_WHY] = "";
    int kind = how == MPIX_EP_GPU_XFER && !xfer ? MPIX_ERRK_ARG : 0;
    if (!kind && (!in || !out))
        kind = mpix_fail(MPIX_ERRK_ARG, in ? "out" : "in", "%s is NULL", in ? "out" : "in");
    if (!kind) {
        MPIX_Ep_combine_in i = *in;
        MPIX_Ep_combine_out o = *out;
        kind = combine_fill(handle, &i, &o, &c);
    }
    if (kind)
        c = (mpix_cuda_combine){.status = kind, .offer.status = kind, .hidden = 8, .xdtype = MPIX_EP_BF16, .ydtype = MPIX_EP_BF16};
    MPIX_Error error = *mpix_error_tls();
    c.report = report_take(ep->gpu, how == MPIX_EP_GPU_ENQUEUE);
    int launch = stream_prepare(handle, stream, why);
    if (!launch)
        launch = ep->gpu->ops->combine(&ep->gpu->device, &g->dev, &c, stream, why);
    *mpix_error_tls() = error;
    return finish(handle, call, c.report, kind, launch, why, xfer, how, stream);
}
