/* pool.c - memory of calls in host memory, and the start of a call. */
#include "config.h"

#include "coll/host/engine.h"

#include <stdlib.h>

/* The call, then [ranks] parts for proxied peers, then [ranks] parts of its path, then
 * [ranks] flags. */
static size_t remote_bytes(const mpix_ep *ep) {
    return ep->remote ? (size_t)ep->size * sizeof(mpix_ep_remote_call) : 0;
}
static size_t path_bytes(const mpix_ep *ep) { return (size_t)ep->size * ep->path->call_bytes; }
mpix_ep_call *mpix_ep_call_alloc(const mpix_ep *ep) {
    return malloc(sizeof(mpix_ep_call) + remote_bytes(ep) + path_bytes(ep) + (size_t)ep->size);
}

/* Memory for a call: one that is free, new memory, or the spare one. NULL: there is
 * not even that. */
static mpix_ep_call *call_take(mpix_ep *ep, int *spare) {
    pthread_mutex_lock(&ep->lock);
    mpix_ep_call *call = ep->pool;
    if (call)
        ep->pool = call->next;
    pthread_mutex_unlock(&ep->lock);
    *spare = 0;
    if (call || (call = mpix_ep_call_alloc(ep)))
        return call;
    pthread_mutex_lock(&ep->lock);
    call = ep->spare;
    ep->spare = NULL;
    pthread_mutex_unlock(&ep->lock);
    *spare = 1;
    return call;
}

/* A call that nobody uses any more. With the lock. */
void mpix_ep_call_give(mpix_ep *ep, mpix_ep_call *call) {
    if (!ep->spare) {
        ep->spare = call;
        return;
    }
    call->next = ep->pool;
    ep->pool = call;
}

/*
 * The peers make this call whatever happens here, so it must count here too: a rank that left it
 * out would answer with the next one, and take the rows of another. Without memory it is made in
 * the spare one, as an empty batch that failed. If that is still in flight, the context fails.
 */
static mpix_ep_call *call_new(struct mpix_ep_handle *handle, int type) {
    static const char text[] = "no memory for a call";
    mpix_ep *ep = handle->ep;
    int spare;
    mpix_ep_call *call = call_take(ep, &spare);
    if (!call) {
        pthread_mutex_lock(&ep->lock);
        mpix_ep_fail(
            ep, mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                          "%s, while another that got none is in flight; the context has failed",
                          text));
        pthread_mutex_unlock(&ep->lock);
        return NULL;
    }
    size_t remote = remote_bytes(ep), parts = path_bytes(ep);
    memset(call, 0, sizeof *call + remote);
    call->remote = remote ? (mpix_ep_remote_call *)(call + 1) : NULL;
    call->parts = parts ? (void *)((char *)(call + 1) + remote) : NULL;
    call->seen = (unsigned char *)(call + 1) + remote + parts;
    for (int p = 0; remote && p < ep->size; p++) {
        call->remote[p].rx = UINT64_MAX;
        call->remote[p].chunk = -1;
    }
    call->ep = ep;
    call->handle = handle;
    call->type = type;
    call->bank = -1;
    if (spare)
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_NO_MEM, NULL, "%s", text));
    return call;
}

int mpix_ep_call_begin(struct mpix_ep_handle *handle, int type, mpix_ep_step *step,
                       mpix_ep_call **call) {
    int kind = mpix_ep_alive(handle->ep);
    if (kind)
        return mpix_boot_raise(handle->ep->boot, kind);
    *call = call_new(handle, type);
    if (!*call)
        return mpix_boot_raise(handle->ep->boot, MPIX_ERRK_NO_MEM);
    (*call)->step = step;
    return MPI_SUCCESS;
}
