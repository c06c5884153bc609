/*
 * engine.c - the engine: calls in flight, progress by the caller or a thread, waiting, and the end
 * of a context that has failed.
 *
 * Waits of one context never depend on the order in which the caller waits: every test and wait
 * steps all calls of the context, and those of the process's other contexts when it has to pause.
 */
#include "config.h"

#include "base/thread.h"
#include "base/trace.h"
#include "coll/host/engine.h"
#include "coll/host/remote.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static mpix_ep *all; /* contexts of the process */
static uint64_t visits;

/* ---- calls ----------------------------------------------------------------------------------- */

/* Removes a complete call from the list; prev is the one before it. */
static void call_complete(mpix_ep *ep, mpix_ep_call *call, mpix_ep_call *prev) {
    if (prev)
        prev->next = call->next;
    else
        ep->first = call->next;
    if (ep->last == call)
        ep->last = prev;
    mpix_trace_end("ep", mpix_ep_call_name(call), (uint64_t)(uintptr_t)call);
    atomic_fetch_sub_explicit(&ep->flying, 1, memory_order_relaxed);
    call->handle->active--;
    mpix_ep_remote_release(call);
    mpix_ep_bank_give(call);
    if (call->type == MPIX_EP_ROUTE)
        mpix_ep_plan_free(call->plan); /* NULL unless it failed */
    call->plan = NULL;
    if (call->orphaned) {
        mpix_ep_call_give(ep, call);
    } else {
        atomic_store_explicit(&call->done, 1, memory_order_release);
        if (ep->threaded)
            mpix_doorbell_ring(&ep->done_bell);
    }
}

/* Peers learn of a failure at once, late ones when they come. The first who tells is heard. */
static void tell(mpix_ep *ep) {
    uint64_t heard = ep->ctl ? atomic_load_explicit(&((mpix_ep_head *)ep->ctl->base)->failed,
                                                    memory_order_acquire)
                             : 0;
    /* passed on as it was told */
    uint64_t word = heard ? heard : mpix_boot_tell(ep->boot, ep->failed, &ep->failure);
    for (int peer = 0; ep->ctl && peer < ep->size; peer++) {
        mpix_ep_head *head = ep->ctl->peer[peer];
        uint64_t none = 0;
        if (peer == ep->rank || !head)
            continue;
        atomic_compare_exchange_strong(&head->failed, &none, word);
        mpix_doorbell_ring(&head->bell);
    }
    mpix_ep_remote_tell(ep, word);
}

/* The kind of a failure that a peer has told of, with the thread's error; 0: none has. */
int mpix_ep_told(mpix_ep *ep) {
    uint64_t word = ep->ctl ? atomic_load_explicit(&((mpix_ep_head *)ep->ctl->base)->failed,
                                                   memory_order_acquire)
                            : 0;
    return word ? mpix_boot_told(ep->boot, word, "the context") : 0;
}

void mpix_ep_fail(mpix_ep *ep, int kind) {
    if (!ep->failed) {
        ep->failed = kind;
        ep->failure = *mpix_error_tls();
        mpix_proxy_abandon(ep->remote ? ep->remote->proxy : NULL, kind);
        tell(ep);
    }
    if (ep->remote)
        ep->remote->nlater = 0; /* of calls that end now */
    while (ep->first) {
        mpix_ep_call *call = ep->first;
        if (!call->kind || call->kind == MPIX_ERRK_REMOTE) {
            call->kind = ep->failed;
            call->error = ep->failure;
        }
        call_complete(ep, call, NULL);
    }
}

int mpix_ep_alive(mpix_ep *ep) {
    pthread_mutex_lock(&ep->lock);
    int kind = ep->failed;
    if (kind)
        *mpix_error_tls() = ep->failure;
    pthread_mutex_unlock(&ep->lock);
    return kind;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* A call whose part is done, but not the commands that it queued for proxied peers. */
static int flush_step(mpix_ep_call *call, int *banks_open) {
    (void)banks_open;
    return mpix_ep_remote_flushed(call) ? MPIX_EP_STEP_COMPLETE : MPIX_EP_STEP_WAITING;
}

/* Steps every call once; whether work was done that should go on at once. With the lock held. */
static int progress(mpix_ep *ep) {
    int banks_open = 1, worked = ep->remote && ep->remote->nlater ? mpix_ep_remote_catch_up(ep) : 0;
    mpix_ep_call *prev = NULL, *next;
    for (mpix_ep_call *call = ep->first; call; call = next) {
        int did = call->step(call, &banks_open);
        if (did == MPIX_EP_STEP_COMPLETE && ep->remote && !mpix_ep_remote_flushed(call)) {
            call->waiting = 0;
            call->step = flush_step;
            did = MPIX_EP_STEP_WAITING;
        }
        next = call->next;
        if (did == MPIX_EP_STEP_COMPLETE) {
            call_complete(ep, call, prev);
            worked = 1;
        } else {
            prev = call;
            worked |= did == MPIX_EP_STEP_WORKED;
        }
    }
    /* What the steps queued goes out now: after the start of a nonblocking call the caller may not
     * come back for long. What arrives makes another round. */
    if (ep->remote)
        worked |= mpix_proxy_step(ep->remote->proxy);
    return worked;
}

void mpix_ep_progress_all(mpix_ep *ep) {
    while (ep->first && progress(ep))
        ;
}

/*
 * Other contexts of the process: their peers may be what ours wait for. Nobody is held up by them:
 * all_lock is held to look at the list and never to work, a context that another thread works on is
 * passed over, and a visit is one step of each call, at most some 4 MiB. Who looks least recently
 * visited goes first, so all get their turn. A thread takes another context's lock by trylock and
 * without its own, so locks form no circle. A visited context can't be freed
 * (mpix_ep_engine_free).
 */
static mpix_ep *other_take(const mpix_ep *self, int *busy) {
    mpix_ep *chosen = NULL;
    *busy = 0;
    if (pthread_mutex_trylock(&all_lock) != 0) {
        *busy = 1; /* unknown */
        return NULL;
    }
    for (mpix_ep *ep = all; ep; ep = ep->next) {
        if (ep == self || ep->threaded ||
            atomic_load_explicit(&ep->flying, memory_order_relaxed) == 0)
            continue;
        ++*busy;
        if (!chosen || ep->visited < chosen->visited)
            chosen = ep;
    }
    if (chosen) {
        chosen->visited = ++visits;
        atomic_fetch_add_explicit(&chosen->visitors, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&all_lock);
    return chosen;
}

/* 1: something was done, and more may be to be done at once. *busy: others have calls in flight. */
static int progress_others(const mpix_ep *self, int *busy) {
    mpix_ep *ep = other_take(self, busy);
    int worked = 0;
    if (!ep)
        return 0;
    if (pthread_mutex_trylock(&ep->lock) == 0) {
        MPIX_Error *own = mpix_error_divert(&ep->passing);
        worked = ep->first && progress(ep);
        mpix_error_divert(own);
        pthread_mutex_unlock(&ep->lock);
    }
    atomic_fetch_sub_explicit(&ep->visitors, 1, memory_order_release);
    return worked;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static int ep_test(struct mpix_xfer *xfer) {
    mpix_ep_call *call = (mpix_ep_call *)xfer;
    mpix_ep *ep = call->ep;
    if (atomic_load_explicit(&call->done, memory_order_acquire))
        return 1;
    int busy;
    pthread_mutex_lock(&ep->lock);
    MPIX_Error *own = mpix_error_divert(&ep->passing);
    if (!ep->threaded)
        mpix_ep_progress_all(ep);
    if (!call->done) {
        uint64_t now = mpix_clock_ns();
        if (!call->watch_ns)
            call->watch_ns = now;
        mpix_ep_check_deaths(ep);
        if (!call->done && now - call->watch_ns > ep->limit_ns)
            mpix_ep_time_out(ep);
    }
    int done = call->done;
    mpix_error_divert(own);
    pthread_mutex_unlock(&ep->lock);
    call->others = !done && progress_others(ep, &busy);
    return done;
}

/* Commands wait for room in the proxy, which rings nobody when it has made some: its thread
 * gets the core. */
static int crammed(const mpix_ep *ep) {
    int is = ep->remote && atomic_load_explicit(&ep->remote->nlater, memory_order_relaxed) > 0;
    if (is)
        sched_yield();
    return is;
}

static int ep_busy(struct mpix_xfer *xfer) {
    const mpix_ep_call *call = (const mpix_ep_call *)xfer;
    return call->others || crammed(call->ep);
}

/* Whether everything that this context waits for rings its doorbell: a network device that writes
 * words by itself does not, and a proxy that the caller runs needs to be run. */
static int rings(const mpix_ep *ep) { return !ep->remote || mpix_proxy_rings(ep->remote->proxy); }

static void ep_wait_start(struct mpix_xfer *xfer, mpix_wait *wait) {
    mpix_ep *ep = ((mpix_ep_call *)xfer)->ep;
    mpix_doorbell *bell = ep->threaded ? &ep->done_bell : mpix_ep_bell(ep);
    int busy;
    progress_others(ep, &busy);
    if (busy) /* their doorbells ring elsewhere */
        bell = NULL;
    if (!ep->threaded && !rings(ep))
        bell = NULL;
    mpix_wait_start(wait, bell, ep->params.spin_us, ep->oversubscribed);
}

static int ep_end(struct mpix_xfer *xfer, mpix_boot **boot) {
    mpix_ep_call *call = (mpix_ep_call *)xfer;
    mpix_ep *ep = call->ep;
    int kind = call->kind;
    if (kind)
        *mpix_error_tls() = call->error;
    *boot = ep->boot;
    mpix_live_remove(xfer);
    pthread_mutex_lock(&ep->lock);
    ep->users--;
    if (call->handle)
        call->handle->users--;
    for (mpix_ep_call **at = &ep->held; *at; at = &(*at)->held_next) {
        if (*at == call) {
            *at = call->held_next;
            break;
        }
    }
    mpix_ep_call_give(ep, call);
    pthread_mutex_unlock(&ep->lock);
    return kind;
}

static const mpix_xfer_ops ep_xfer_ops = {
    .test = ep_test,
    .wait_start = ep_wait_start,
    .end = ep_end,
    .busy = ep_busy,
};

int mpix_ep_call_submit(mpix_ep_call *call, MPIX_Xfer *xfer, int blocking) {
    mpix_ep *ep = call->ep;
    struct mpix_ep_handle *handle = call->handle;
    int kind = call->kind;
    MPIX_Error error = call->error;
    call->xfer.ops = &ep_xfer_ops;
    call->orphaned = kind && !blocking;
    if (!call->orphaned)
        mpix_live_add(&call->xfer.live, call, MPIX_LIVE_XFER);
    pthread_mutex_lock(&ep->lock);
    call->epoch = ++handle->started[call->type];
    mpix_trace_begin("ep", mpix_ep_call_name(call), (uint64_t)(uintptr_t)call, -1, -1);
    handle->active++;
    if (!call->orphaned) {
        ep->users++;
        handle->users++;
        call->held_next = ep->held;
        ep->held = call;
    }
    if (ep->last)
        ep->last->next = call;
    else
        ep->first = call;
    ep->last = call;
    atomic_fetch_add_explicit(&ep->flying, 1, memory_order_relaxed);
    MPIX_Error *own = mpix_error_divert(&ep->passing);
    if (ep->failed)
        mpix_ep_fail(ep, ep->failed);
    else if (!ep->threaded)
        mpix_ep_progress_all(ep);
    mpix_error_divert(own);
    pthread_mutex_unlock(&ep->lock);
    if (ep->threaded) {
        pthread_cond_signal(&ep->wake);
        mpix_doorbell_ring(mpix_ep_bell(ep));
    }
    if (!blocking && kind) {
        *mpix_error_tls() = error;
        return mpix_boot_raise(ep->boot, kind);
    }
    if (!blocking) {
        *xfer = &call->xfer;
        return MPI_SUCCESS;
    }
    mpix_boot *boot;
    kind = mpix_xfer_finish(&call->xfer, &boot);
    return mpix_boot_raise(boot, kind);
}

int mpix_ep_drain(mpix_ep *ep) {
    mpix_wait wait;
    uint64_t start = mpix_clock_ns();
    mpix_wait_start(&wait, mpix_ep_bell(ep), ep->params.spin_us, ep->oversubscribed);
    wait.bell = NULL; /* the progress thread may be asleep on it */
    pthread_mutex_lock(&ep->lock);
    for (;;) {
        MPIX_Error *own = mpix_error_divert(&ep->passing);
        int busy;
        if (!ep->threaded)
            mpix_ep_progress_all(ep);
        mpix_ep_check_deaths(ep);
        if (ep->first && mpix_clock_ns() - start > ep->limit_ns)
            mpix_ep_time_out(ep);
        mpix_error_divert(own);
        if (!ep->first)
            break;
        pthread_mutex_unlock(&ep->lock);
        if (!progress_others(ep, &busy) && !crammed(ep))
            mpix_wait_pause(&wait);
        pthread_mutex_lock(&ep->lock);
    }
    int kind = ep->failed;
    pthread_mutex_unlock(&ep->lock);
    return kind;
}

/* Peers may have to end calls with this rank before they come to the collective. */
int mpix_ep_look(void *object, int kind) {
    mpix_ep *ep = object;
    pthread_mutex_lock(&ep->lock);
    if (kind) { /* with the thread's error */
        mpix_ep_fail(ep, kind);
    } else {
        MPIX_Error *own = mpix_error_divert(&ep->passing);
        if (!ep->failed && (kind = mpix_ep_told(ep)))
            mpix_ep_fail(ep, kind);
        else if (!ep->failed && !ep->threaded && (ep->first || (ep->remote && ep->remote->proxy)))
            progress(ep);
        mpix_error_divert(own);
    }
    if ((kind = ep->failed))
        *mpix_error_tls() = ep->failure;
    pthread_mutex_unlock(&ep->lock);
    return kind;
}

/* ---- the progress thread --------------------------------------------------------------------- */

static void *thread_main(void *arg) {
    mpix_ep *ep = arg;
    mpix_wait wait;
    mpix_topo_bind_helper(-1, 0);
    pthread_mutex_lock(&ep->lock);
    mpix_wait_start(&wait, rings(ep) ? mpix_ep_bell(ep) : NULL, ep->params.spin_us,
                    ep->oversubscribed);
    while (!ep->stop) {
        if (!ep->first) {
            pthread_cond_wait(&ep->wake, &ep->lock);
            mpix_wait_start(&wait, rings(ep) ? mpix_ep_bell(ep) : NULL, ep->params.spin_us,
                            ep->oversubscribed);
            continue;
        }
        if (progress(ep)) {
            mpix_wait_end(&wait);
            mpix_wait_start(&wait, rings(ep) ? mpix_ep_bell(ep) : NULL, ep->params.spin_us,
                            ep->oversubscribed);
            continue;
        }
        mpix_ep_check_deaths(ep);
        pthread_mutex_unlock(&ep->lock);
        if (!crammed(ep))
            mpix_wait_pause(&wait);
        pthread_mutex_lock(&ep->lock);
    }
    mpix_wait_end(&wait);
    pthread_mutex_unlock(&ep->lock);
    return NULL;
}

int mpix_ep_engine_init(mpix_ep *ep) {
    ep->spare = mpix_ep_call_alloc(ep);
    if (!ep->spare)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a call");
    if (ep->params.progress == MPIX_PROGRESS_THREAD) {
        int kind = mpix_thread_start(&ep->thread, "mpixep-progress",
                                     "the progress thread (parameter progress = thread)",
                                     thread_main, ep);
        if (kind)
            return kind;
        ep->threaded = 1;
    }
    pthread_mutex_lock(&all_lock);
    ep->next = all;
    all = ep;
    pthread_mutex_unlock(&all_lock);
    return 0;
}

void mpix_ep_engine_free(mpix_ep *ep) {
    pthread_mutex_lock(&all_lock);
    mpix_ep **at = &all;
    while (*at && *at != ep)
        at = &(*at)->next;
    if (*at)
        *at = ep->next;
    pthread_mutex_unlock(&all_lock);
    while (atomic_load_explicit(&ep->visitors, memory_order_acquire) > 0) /* the rest of one step */
        sched_yield();
    if (ep->threaded) {
        pthread_mutex_lock(&ep->lock);
        ep->stop = 1;
        pthread_mutex_unlock(&ep->lock);
        pthread_cond_signal(&ep->wake);
        mpix_doorbell_ring(mpix_ep_bell(ep));
        pthread_join(ep->thread, NULL);
    }
    /* a failed context may be freed with transfers in the caller's hands: they are not
     * valid any more */
    while (ep->held) {
        mpix_ep_call *call = ep->held;
        ep->held = call->held_next;
        mpix_live_remove(call);
        free(call);
    }
    while (ep->pool) {
        mpix_ep_call *call = ep->pool;
        ep->pool = call->next;
        free(call);
    }
    free(ep->spare);
    pthread_cond_destroy(&ep->wake);
    pthread_mutex_destroy(&ep->lock);
}
