/*
 * stream.c - how a call in GPU memory starts, on which stream and after what, and how
 * its end is told.
 *
 * Order. Calls of one handle follow each other on the device, whatever their streams: each records
 * an event, and the next one on another stream waits for it. Streams are told apart by their
 * numbers: a handle may be that of a destroyed stream again, and cudaStreamPerThread is another one
 * in each thread. What is captured into a CUDA graph runs later and any number of times, so events
 * of eager calls mean nothing to it and the other way round: within one capture the calls of a
 * handle are put in order by an event of their own, and between graph launches and eager calls the
 * caller's streams give the order. Epochs are counted on the device, so replays and eager calls
 * mix. A call whose arguments fail while its stream is captured adds nothing to the graph: the
 * capture stays as it was.
 *
 * Reports. A kernel that fails writes a report to pinned memory. The transfer's end reads it, and
 * for enqueued calls MPIX_Ep_get_async_error and the next call of the context. Captured calls of a
 * handle share one place, since there is no end to them.
 */
#include "config.h"

#include "coll/gpu/gpu.h"

#include <stdlib.h>

/* ---- what kernels report --------------------------------------------------------------------- */

/* What ranks give differs, or a peer gave nothing. */
static int report_differs(const mpix_cuda_status *s, int p, const char *host) {
    long long a = s->a, b = s->b;
    switch (s->code) {
    case MPIX_CUDA_TOPK:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "routing.topk = %lld on rank %d differs from %lld", a, p, b);
    case MPIX_CUDA_HIDDEN:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "in.hidden = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_DTYPE:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "in.x.dtype = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_SCALES:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "in.x.scale_kind = %lld on rank %d differs from %lld here", a, p, b);
    case MPIX_CUDA_WEIGHTS:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "weights are wanted, but rank %d gave no in.topk_weights", p);
    case MPIX_CUDA_SLOTS:
        return mpix_fail_peer(MPIX_ERRK_ARG, p, host,
                              "out.slot_values is wanted, but rank %d gave no in.slot_values", p);
    case MPIX_CUDA_ANSWERS:
        return mpix_fail_peer(
            MPIX_ERRK_ARG, p, host,
            "rank %d answers %lld tokens of %lld: its last dispatch was another routing's", p, a,
            b);
    default: return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "a kernel reported code %d", s->code);
    }
}

static int report_fail(mpix_ep *ep, const mpix_cuda_status *s) {
    int p = s->peer >= 0 && s->peer < ep->size ? s->peer : ep->rank;
    const char *host = ep->boot->hostnames[p];
    long long a = s->a, b = s->b;
    switch (s->code) {
    case MPIX_CUDA_TIMEOUT:
        if (mpix_boot_ended(ep->pidfds[p]))
            return mpix_fail_peer(MPIX_ERRK_PEER, p, host,
                                  "rank %d (pid %d on %s) ended; the context has failed", p,
                                  (int)ep->boot->pids[p], host);
        return mpix_fail_peer(MPIX_ERRK_TIMEOUT, p, host,
                              "rank %d on %s did not answer within %g s; the context has failed", p,
                              host, ep->config.timeout_s);
    case MPIX_CUDA_FAILED:
        return mpix_fail(MPIX_ERRK_TIMEOUT, NULL, "an earlier call of the context timed out");
    case MPIX_CUDA_REMOTE:
        return mpix_fail_peer(MPIX_ERRK_REMOTE, p, host,
                              "rank %d on %s failed its part of the call", p, host);
    case MPIX_CUDA_BAD_ID:
        return mpix_fail(MPIX_ERRK_ARG, "routing.ids",
                         "routing.ids: token %lld has expert %lld, not in [-1, %lld)", a, b,
                         (long long)ep->config.num_experts);
    case MPIX_CUDA_TWICE:
        return mpix_fail(
            MPIX_ERRK_ARG, "routing.ids",
            "routing.ids: token %lld has expert %lld twice; a token may choose an expert once", a,
            b);
    case MPIX_CUDA_ROWS_LIMIT:
        return mpix_fail(MPIX_ERRK_TRUNCATE, "config.max_recv_rows",
                         "this rank would receive %lld rows, config.max_recv_rows is %lld", a, b);
    case MPIX_CUDA_CAPACITY:
        return mpix_fail(MPIX_ERRK_TRUNCATE, "out.capacity_rows",
                         "this rank has %lld rows by its routing, its array has room for %lld", a,
                         b);
    case MPIX_CUDA_NOT_ROUTED:
        return mpix_fail(MPIX_ERRK_ARG, "handle",
                         "the handle has no routing: its last route failed");
    case MPIX_CUDA_STALE:
        return mpix_fail(MPIX_ERRK_ARG, "handle",
                         "the handle's routing has %lld tokens or another topk; this call was "
                         "captured for one of %lld",
                         a, b);
    case MPIX_CUDA_NO_DISPATCH:
        return mpix_fail(MPIX_ERRK_ARG, "handle",
                         "no dispatch has told this rank what it sends back: in MPIX_EP_LL a "
                         "combine follows a dispatch of the "
                         "same routing (the last one failed, or there was none)");
    case MPIX_CUDA_LOST: {
        MPIX_Error error;
        if (ep->remote && mpix_proxy_failed(ep->remote->proxy, p, &error))
            return mpix_fail_peer(error.kind, p, host, "%.300s; the context has failed",
                                  error.text);
        return mpix_fail_peer(MPIX_ERRK_INTERNAL, p, host,
                              "the proxy has refused a kernel's command for rank %d (kind %lld); "
                              "the context has failed",
                              p, a);
    }
    case MPIX_CUDA_NO_ROWS:
        return mpix_fail(
            MPIX_ERRK_ARG, "in.x.data",
            "in.x.data or scales are NULL, dispatch gave this rank rows of %lld tokens", a);
    default: return report_differs(s, p, host);
    }
}

/* The kind of a report; a time-out or a lost peer fails the context. */
static int report_read(mpix_ep *ep, mpix_cuda_status *s) {
    if (!s->code)
        return 0;
    int kind = report_fail(ep, s);
    if (kind == MPIX_ERRK_TIMEOUT || kind == MPIX_ERRK_PEER || s->code == MPIX_CUDA_LOST) {
        pthread_mutex_lock(&ep->lock);
        mpix_ep_fail(ep, kind);
        pthread_mutex_unlock(&ep->lock);
    }
    return kind;
}

/* The first error of what nobody waits for is kept; the place is free for the next. */
static void report_note(mpix_ep *ep, mpix_cuda_status *s) {
    MPIX_Error before = *mpix_error_tls();
    mpix_cuda_status seen;
    if (!__atomic_load_n(&s->code, __ATOMIC_ACQUIRE))
        return;
    seen = *s;
    s->taken = 0;
    __atomic_store_n(&s->code, 0, __ATOMIC_RELEASE);
    (void)report_read(ep, &seen);
    if (!ep->gpu->async.kind)
        ep->gpu->async = *mpix_error_tls();
    *mpix_error_tls() = before;
}

void mpix_ep_gpu_poll(mpix_ep *ep) {
    mpix_ep_gpu *gpu = ep->gpu;
    if (!*(volatile int32_t *)gpu->alarm) /* usual, and every call comes here */
        return;
    /* before looking: a kernel writes its report first, then this */
    *(volatile int32_t *)gpu->alarm = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int i = 0; i < MPIX_EP_GPU_REPORTS; i++)
        if (gpu->report_states[i] == MPIX_EP_GPU_REPORT_ENQUEUED)
            report_note(ep, &gpu->reports[i]);
    for (struct mpix_ep_handle *h = ep->handles; h; h = h->next)
        if (h->gpu)
            report_note(ep, ((mpix_ep_gpu_handle *)h->gpu)->captured);
}

const MPIX_Error *mpix_ep_gpu_async_error(mpix_ep *ep) {
    mpix_ep_gpu_poll(ep);
    return ep->gpu->async.kind ? &ep->gpu->async : NULL;
}

/* A place for the report of a call: the next one that no transfer holds. NULL: all do. */
static mpix_cuda_status *report_take(mpix_ep_gpu *gpu, int enqueued) {
    for (int tries = 0; tries < MPIX_EP_GPU_REPORTS; tries++) {
        int i = (int)(gpu->next_report++ % MPIX_EP_GPU_REPORTS);
        if (gpu->report_states[i] == MPIX_EP_GPU_REPORT_HELD)
            continue;
        memset(&gpu->reports[i], 0, sizeof gpu->reports[i]);
        gpu->report_states[i] = enqueued ? MPIX_EP_GPU_REPORT_ENQUEUED : MPIX_EP_GPU_REPORT_HELD;
        return &gpu->reports[i];
    }
    return NULL;
}

static void report_give(mpix_ep_gpu *gpu, const mpix_cuda_status *report) {
    gpu->report_states[report - gpu->reports] = MPIX_EP_GPU_REPORT_FREE;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static int gpu_test(struct mpix_xfer *xfer) {
    mpix_ep_gpu_call *call = (mpix_ep_gpu_call *)xfer;
    int done = call->broken
                   ? 1
                   : call->ep->gpu->ops->event_done(&call->ep->gpu->device, call->event, call->why);
    if (done < 0)
        call->broken = 1;
    return done != 0;
}

static void gpu_wait_start(struct mpix_xfer *xfer, mpix_wait *wait) {
    mpix_ep_gpu_call *call = (mpix_ep_gpu_call *)xfer;
    mpix_wait_start(wait, NULL, call->ep->params.spin_us, call->ep->oversubscribed);
}

static void call_drop(mpix_ep *ep, mpix_ep_gpu_call *call) {
    ep->gpu->ops->event_destroy(call->event);
    free(call);
}

/* A call that nobody uses any more. */
static void call_give(mpix_ep *ep, mpix_ep_gpu_call *call) {
    if (!ep->gpu->spare) {
        ep->gpu->spare = call;
        return;
    }
    report_give(ep->gpu, call->report);
    call_drop(ep, call);
}

static int gpu_end(struct mpix_xfer *xfer, mpix_boot **boot) {
    mpix_ep_gpu_call *call = (mpix_ep_gpu_call *)xfer;
    mpix_ep *ep = call->ep;
    int kind = call->broken ? mpix_fail(MPIX_ERRK_TRANSPORT, NULL, "%s", call->why)
                            : report_read(ep, call->report);
    for (int i = 0; i < call->ncopies && !kind; i++)
        for (int64_t j = 0; j < call->copies[i].n; j++)
            call->copies[i].to[j] = call->copies[i].from[j];
    pthread_mutex_lock(&ep->lock);
    ep->users--;
    call->handle->users--;
    pthread_mutex_unlock(&ep->lock);
    mpix_live_remove(call);
    *boot = ep->boot;
    call_give(ep, call);
    return kind;
}

static const mpix_xfer_ops gpu_xfer_ops = {.test = gpu_test,
                                           .wait_start = gpu_wait_start,
                                           .end = gpu_end};

/* ---- start and end of a call ----------------------------------------------------------------- */

/* The caller's stream: of the context's device, in a capture or not. */
static int stream_check(mpix_ep *ep, void *stream, unsigned long long *capture) {
    char why[MPIX_CUDA_WHY] = "";
    int kind = ep->gpu->ops->stream_check(&ep->gpu->device, stream, capture, why);
    /* sizes of copies are the host's, a replay's routing may be another */
    /* sizes of copies are the host's, a replay's routing may be another */
    if (!kind && *capture)
        return mpix_ep_path_need(ep->path, ep->config.layout, MPIX_EP_CAN_CAPTURE, "stream",
                                 "stream is being captured");
    return kind ? mpix_fail(kind, "stream", "%s", why) : 0;
}

/* What blocking and nonblocking calls need to wait. */
static int call_make(mpix_ep *ep, mpix_ep_gpu_call **call) {
    char why[MPIX_CUDA_WHY] = "";
    int kind;
    *call = calloc(1, sizeof **call);
    if (!*call)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a call");
    if ((kind = ep->gpu->ops->event_create(&ep->gpu->device, &(*call)->event, why))) {
        free(*call);
        *call = NULL;
        return mpix_fail(kind, NULL, "%s", why);
    }
    return 0;
}

int mpix_ep_gpu_spare_make(mpix_ep *ep) {
    int kind = call_make(ep, &ep->gpu->spare);
    if (!kind)
        ep->gpu->spare->report = report_take(ep->gpu, 0);
    return kind;
}

void mpix_ep_gpu_spare_free(mpix_ep *ep) {
    if (ep->gpu->spare)
        call_drop(ep, ep->gpu->spare);
    ep->gpu->spare = NULL;
}

/*
 * What a call needs before it is launched. The peers launch theirs whatever happens here, and
 * epochs are counted by kernels, so a rank that has no memory, no event or no report for its call
 * launches a failed one, in the spare call; should that be in flight still, the context fails.
 */
static int call_begin(mpix_ep *ep, const mpix_ep_gpu_handle *g, int waits, int end,
                      mpix_ep_gpu_begun *s) {
    mpix_ep_gpu *gpu = ep->gpu;
    int kind = waits ? call_make(ep, &s->call) : 0;
    if (!kind)
        s->report = s->capture ? g->captured : report_take(gpu, !waits);
    if (s->call)
        s->call->report = s->report;
    if (s->report)
        return 0;
    if (!kind)
        kind = mpix_fail(
            MPIX_ERRK_NO_MEM, NULL,
            "%d transfers of the context are in flight, more are not possible in GPU memory",
            MPIX_EP_GPU_REPORTS);
    if (s->call)
        call_drop(ep, s->call);
    s->call = NULL;
    if (!waits) { /* as captured calls do; the second half of a call goes on as it began */
        s->report = g->captured;
        s->kind = end ? 0 : kind;
        return 0;
    }
    if (!gpu->spare) {
        pthread_mutex_lock(&ep->lock);
        mpix_ep_fail(ep, kind);
        pthread_mutex_unlock(&ep->lock);
        return kind;
    }
    s->call = gpu->spare;
    gpu->spare = NULL;
    s->report = s->call->report;
    *s->call = (mpix_ep_gpu_call){.event = s->call->event, .report = s->report};
    memset(s->report, 0, sizeof *s->report);
    s->kind = kind;
    return 0;
}

/* Between the halves of a call the handle can do nothing else: its epochs and its status are
 * the open call's. */
static int open_check(const mpix_ep_gpu_handle *g, int end, unsigned long long capture) {
    static const char *const names[] = {"route", "dispatch", "combine"};
    if (!end && g->open)
        return mpix_fail(MPIX_ERRK_ARG, "handle",
                         "a %s of the handle was begun and not ended: end it first",
                         names[g->open]);
    if (end && g->open != end)
        return mpix_fail(MPIX_ERRK_ARG, "handle", "no %s of the handle was begun", names[end]);
    if (end && g->open_capture != capture)
        return mpix_fail(MPIX_ERRK_ARG, "stream",
                         "the %s was begun %s: both halves belong in one capture or in none",
                         names[end],
                         g->open_capture ? "in another capture" : "outside of a capture");
    return 0;
}

int mpix_ep_gpu_start(struct mpix_ep_handle *handle, const mpix_ep_form *form, int end,
                      mpix_ep_gpu_begun *s, int *code) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_handle *g = handle->gpu;
    int waits = form->how == MPIX_EP_BLOCKING || form->how == MPIX_EP_NONBLOCKING;
    void *stream = waits ? ep->gpu->stream : form->stream;
    *s = (mpix_ep_gpu_begun){.how = form->how, .xfer = form->xfer, .stream = stream};
    mpix_ep_gpu_poll(ep);
    int kind = mpix_ep_alive(ep);
    if (!kind && !waits)
        kind = stream_check(ep, stream, &s->capture);
    if (!kind)
        s->stream_id = waits ? ep->gpu->stream_id
                             : ep->gpu->ops->stream_id(&ep->gpu->device, stream, s->capture);
    if (!kind)
        kind = open_check(g, end, s->capture);
    if (!kind)
        kind = call_begin(ep, g, waits, end, s);
    *code = mpix_boot_raise(ep->boot, kind);
    /* takes part with an empty, failed batch */
    if (!kind && !s->kind && form->how == MPIX_EP_NONBLOCKING && !form->xfer)
        s->kind = mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    return kind != 0;
}

static int same_stream(uint64_t a, uint64_t b) { return a && a == b; }

int mpix_ep_gpu_order(struct mpix_ep_handle *handle, const mpix_ep_gpu_begun *s, char *why) {
    const mpix_cuda_ops *ops = handle->ep->gpu->ops;
    mpix_ep_gpu_handle *g = handle->gpu;
    int kind = 0;
    if (s->capture) {
        if (g->capture == s->capture && !same_stream(g->capture_stream, s->stream_id))
            kind = ops->stream_wait(&handle->ep->gpu->device, s->stream, g->capture_event, why);
        g->capture = s->capture;
        g->capture_stream = s->stream_id;
    } else {
        if (g->started && !same_stream(g->last_stream, s->stream_id))
            kind = ops->stream_wait(&handle->ep->gpu->device, s->stream, g->event, why);
        g->started = 1;
        g->last_stream = s->stream_id;
    }
    return kind;
}

/* Nothing, or not all, was launched: the peers wait for it, and this rank's next call would be
 * another one's. Nothing of a capture runs yet. */
static void launch_failed(mpix_ep *ep, const mpix_ep_gpu_begun *s, int launch, const char *why) {
    mpix_fail(launch, NULL, "%s%s", why, s->capture ? "" : "; the context has failed");
    if (s->capture)
        return;
    pthread_mutex_lock(&ep->lock);
    mpix_ep_fail(ep, launch);
    pthread_mutex_unlock(&ep->lock);
}

int mpix_ep_gpu_finish(struct mpix_ep_handle *handle, mpix_ep_gpu_begun *s, int kind, int launch,
                       const char *why) {
    mpix_ep *ep = handle->ep;
    const mpix_ep_gpu *gpu = ep->gpu;
    mpix_ep_gpu_handle *g = handle->gpu;
    mpix_ep_gpu_call *call = s->call;
    MPIX_Error error = *mpix_error_tls();
    char text[MPIX_CUDA_WHY] = "";
    if (!launch)
        launch = gpu->ops->event_record(&gpu->device, s->capture ? g->capture_event : g->event,
                                        s->stream, text);
    if (!launch && call)
        launch = gpu->ops->event_record(&gpu->device, call->event, s->stream, text);
    if (launch)
        launch_failed(ep, s, launch, text[0] ? text : why);
    if (launch && !kind) {
        kind = launch;
        error = *mpix_error_tls();
    }
    if (!call || (kind && (s->how == MPIX_EP_NONBLOCKING || launch))) { /* nobody waits for it */
        if (call)
            call_give(ep, call);
        *mpix_error_tls() = error;
        return mpix_boot_raise(ep->boot, kind);
    }
    call->xfer.ops = &gpu_xfer_ops;
    call->ep = ep;
    call->handle = handle;
    mpix_live_add(&call->xfer.live, call, MPIX_LIVE_XFER);
    pthread_mutex_lock(&ep->lock);
    ep->users++;
    handle->users++;
    pthread_mutex_unlock(&ep->lock);
    if (s->how == MPIX_EP_NONBLOCKING) {
        *s->xfer = &call->xfer;
        return MPI_SUCCESS;
    }
    mpix_boot *boot;
    int ended = mpix_xfer_finish(&call->xfer, &boot);
    if (kind)
        *mpix_error_tls() = error;
    return mpix_boot_raise(ep->boot, kind ? kind : ended);
}

/* ---- the second halves ----------------------------------------------------------------------- */

/* what: MPIX_CUDA_DISPATCH or MPIX_CUDA_COMBINE. */
static int end_call(struct mpix_ep_handle *handle, int what, void *stream) {
    const mpix_ep_form form = {.how = MPIX_EP_STREAM, .stream = stream};
    mpix_ep_gpu_begun s;
    int code;
    char why[MPIX_CUDA_WHY] = "";
    if (mpix_ep_gpu_start(handle, &form, what, &s, &code))
        return code;
    const mpix_ep_gpu *gpu = handle->ep->gpu;
    mpix_ep_gpu_handle *g = handle->gpu;
    g->open = 0;
    int launch = mpix_ep_gpu_order(handle, &s, why);
    if (what == MPIX_CUDA_DISPATCH) {
        g->dispatch.part = MPIX_CUDA_END;
        g->dispatch.report = s.report;
        if (!launch)
            launch = gpu->ops->dispatch(&gpu->device, &g->dev, &g->dispatch, stream, why);
    } else {
        g->combine.part = MPIX_CUDA_END;
        g->combine.report = s.report;
        if (!launch)
            launch = gpu->ops->combine(&gpu->device, &g->dev, &g->combine, stream, why);
    }
    return mpix_ep_gpu_finish(handle, &s, 0, launch, why);
}

int mpix_ep_gpu_dispatch_end(struct mpix_ep_handle *handle, void *stream) {
    return end_call(handle, MPIX_CUDA_DISPATCH, stream);
}

int mpix_ep_gpu_combine_end(struct mpix_ep_handle *handle, void *stream) {
    return end_call(handle, MPIX_CUDA_COMBINE, stream);
}
