/* handle.c - handles, and the small calls about a context. */
#include "config.h"

#include "coll/ep.h"

#include <stdlib.h>

/* An index that is free on all ranks: handle_free waits for nobody, so ranks may
 * differ for a while. */
static int index_choose(mpix_ep *ep, int *index) {
    int n = ep->params.max_handles, words = (n + 63) / 64;
    uint64_t *used = malloc((size_t)words * sizeof *used);
    int kind = mpix_boot_agree(ep->boot,
                               used ? 0
                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle"));
    if (!kind) {
        memcpy(used, ep->indices_used, (size_t)words * sizeof *used);
        kind = mpix_boot_or(ep->boot, used, words);
    }
    for (*index = 0; !kind && *index < n && (used[*index / 64] >> (*index % 64) & 1); ++*index)
        ;
    free(used);
    if (!kind && *index == n)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, "max_handles",
                         "all %d handles of the context are in use (parameter max_handles)", n);
    return kind;
}

static int index_commit(mpix_ep *ep, int index) {
    size_t end = ep->layout.handles_at + ep->layout.handle * ((size_t)index + 1);
    if (end <= ep->ctl_committed)
        return 0;
    int kind = mpix_win_commit(ep->ctl, ep->ctl_committed, end - ep->ctl_committed);
    if (!kind)
        ep->ctl_committed = end;
    return kind;
}

int PMPIX_Ep_handle_create(MPIX_Ep ep, MPIX_Ep_handle *handle) {
    int index = 0;
    int kind = mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = mpix_ep_alive(ep)))
        return mpix_boot_raise(ep->boot, kind);
    kind = mpix_boot_agree(ep->boot,
                           handle ? 0 : mpix_fail(MPIX_ERRK_ARG, "handle", "handle is NULL"));
    if (!kind)
        kind = index_choose(ep, &index);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    struct mpix_ep_handle *h = calloc(1, sizeof *h);
    kind = h ? index_commit(ep, index)
             : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle");
    if (h) {
        h->ep = ep;
        h->index = index;
        h->capacity = -1;
    }
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind && ep->path->handle_create)
        kind = ep->path->handle_create(h);
    if (kind) {
        free(h);
        return mpix_boot_raise(ep->boot, kind);
    }
    /* A reused index goes on counting: its words only grow. */
    memcpy(h->started, ep->index_epochs[index], sizeof h->started);
    memcpy(h->signalled, ep->index_epochs[index], sizeof h->signalled);
    ep->indices_used[index / 64] |= UINT64_C(1) << (index % 64);
    h->next = ep->handles;
    ep->handles = h;
    mpix_live_add(&h->live, h, MPIX_LIVE_HANDLE);
    *handle = h;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_handle_create);

int PMPIX_Ep_handle_free(MPIX_Ep_handle *handle) {
    int kind = handle ? 0 : mpix_fail(MPIX_ERRK_ARG, "handle", "handle is NULL");
    /* a child of fork: it is the parent's */
    if (!kind && mpix_live_leave(*handle, MPIX_LIVE_HANDLE)) {
        *handle = MPIX_EP_HANDLE_NULL;
        return MPI_SUCCESS;
    }
    if (!kind)
        kind = mpix_live_need(*handle, MPIX_LIVE_HANDLE, "handle", "*handle is NULL or freed");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    struct mpix_ep_handle *h = *handle;
    mpix_ep *ep = h->ep;
    pthread_mutex_lock(&ep->lock);
    int held = ep->failed ? 0 : h->users;
    for (mpix_ep_call *c = ep->failed ? ep->held : NULL; c; c = c->held_next)
        if (c->handle == h)
            c->handle = NULL; /* complete, with the failure; its caller may still ask */
    int active = h->active != 0;
    pthread_mutex_unlock(&ep->lock);
    if (held)
        return mpix_boot_raise(
            ep->boot,
            mpix_fail(MPIX_ERRK_ARG, "handle",
                      "%d transfers of the handle are in flight: complete them first", held));
    if (active)
        /* its failed batches; after a time-out the context has failed and nothing is left */
        mpix_ep_drain(ep);
    memcpy(ep->index_epochs[h->index], h->started, sizeof h->started);
    ep->indices_used[h->index / 64] &= ~(UINT64_C(1) << (h->index % 64));
    for (struct mpix_ep_handle **at = &ep->handles; *at; at = &(*at)->next) {
        if (*at == h) {
            *at = h->next;
            break;
        }
    }
    mpix_live_remove(h);
    if (ep->path->handle_free)
        ep->path->handle_free(h, 0);
    free(h);
    *handle = MPIX_EP_HANDLE_NULL;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_handle_free);

/* ---- about a context ------------------------------------------------------------------------- */

static int ep_check(MPIX_Ep ep, const void *out, const char *arg) {
    if (!mpix_live_check(ep, MPIX_LIVE_EP))
        return mpix_boot_raise(NULL, mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed"));
    return out ? MPI_SUCCESS
               : mpix_boot_raise(ep->boot, mpix_fail(MPIX_ERRK_ARG, arg, "%s is NULL", arg));
}

/* What the rank with the most can receive in a batch: equal on all ranks, as all of a
 * configuration. */
static MPI_Count most_rows(const mpix_ep *ep) {
    if (ep->config.layout == MPIX_EP_SLOTS)
        return (MPI_Count)ep->size * ep->config.max_tokens;
    int64_t most = 0;
    for (int r = 0; r < ep->size; r++) {
        int64_t rows = mpix_ep_worst_rows(&ep->config, &ep->placement, r);
        most = rows > most ? rows : most;
    }
    return (MPI_Count)most;
}

int PMPIX_Ep_get_config(MPIX_Ep ep, MPIX_Ep_config *config) {
    int code = ep_check(ep, config, "config");
    if (code != MPI_SUCCESS)
        return code;
    if (config->struct_size != sizeof *config)
        return mpix_boot_raise(ep->boot,
                               mpix_fail(MPIX_ERRK_ARG, "config.struct_size",
                                         "config.struct_size = %zu, this library knows %zu",
                                         config->struct_size, sizeof *config));
    *config = ep->config;
    config->max_recv_rows = most_rows(ep);
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_get_config);

int PMPIX_Ep_set_errhandler(MPIX_Ep ep, MPI_Errhandler errhandler) {
    int code = ep_check(ep, ep, "ep");
    if (code != MPI_SUCCESS)
        return code;
    int kind = errhandler == MPI_ERRHANDLER_NULL
                   ? mpix_fail(MPIX_ERRK_ARG, "errhandler", "errhandler is MPI_ERRHANDLER_NULL")
                   : mpix_boot_set_errhandler(ep->boot, errhandler);
    return mpix_boot_raise(ep->boot, kind);
}
MPIX_WEAK_ALIAS(Ep_set_errhandler);

int PMPIX_Ep_get_async_error(MPIX_Ep ep, MPIX_Error *error) {
    int code = ep_check(ep, error, "error");
    if (code != MPI_SUCCESS)
        return code;
    if (error->struct_size != sizeof *error)
        return mpix_boot_raise(ep->boot,
                               mpix_fail(MPIX_ERRK_ARG, "error.struct_size",
                                         "error.struct_size = %zu, this library knows %zu",
                                         error->struct_size, sizeof *error));
    const MPIX_Error *first = ep->path->async_error ? ep->path->async_error(ep) : NULL;
    pthread_mutex_lock(&ep->lock);
    if (ep->failed) {
        *error = ep->failure;
    } else if (first) {
        *error = *first;
    } else {
        memset(error, 0, sizeof *error);
        error->rank = -1;
    }
    pthread_mutex_unlock(&ep->lock);
    error->struct_size = sizeof *error;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_get_async_error);

int PMPIX_Ep_get_mask(MPIX_Ep ep, int alive[]) {
    int code = ep_check(ep, alive, "alive");
    if (code != MPI_SUCCESS)
        return code;
    for (int r = 0; r < ep->size; r++)
        alive[r] = 1;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_get_mask);
