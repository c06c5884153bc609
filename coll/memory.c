/* memory.c - memory that peers reach: MPIX_Ep_alloc and MPIX_Ep_register. */
#include "config.h"

#include "coll/ep.h"

#include <stdlib.h>

static int ep_valid(MPIX_Ep ep) {
    return mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed");
}

int PMPIX_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Info info, void *baseptr) {
    int kind = ep_valid(ep);
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = mpix_ep_alive(ep)))
        return mpix_boot_raise(ep->boot, kind);
    return ep->path->alloc(ep, bytes, info, baseptr);
}
MPIX_WEAK_ALIAS(Ep_alloc);

static int in_flight(mpix_ep *ep, const char *what) {
    pthread_mutex_lock(&ep->lock);
    int users = ep->failed ? 0 : ep->users;
    pthread_mutex_unlock(&ep->lock);
    if (users == 0)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, what,
                     "%d transfers of the context are in flight: complete them first", users);
}

int PMPIX_Ep_dealloc(MPIX_Ep ep, void *base) {
    if (mpix_boot_owner())
        /* a child of fork: it is the parent's, or went with the child's context */
        return MPI_SUCCESS;
    int kind = ep_valid(ep);
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = in_flight(ep, "ep")))
        return mpix_boot_raise(ep->boot, kind);
    return ep->path->dealloc(ep, base);
}
MPIX_WEAK_ALIAS(Ep_dealloc);

static int register_check(mpix_ep *ep, void *base, MPI_Count bytes, const int *direct) {
    if (!direct)
        return mpix_fail(MPIX_ERRK_ARG, "direct", "direct is NULL");
    if (bytes < 0)
        return mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is negative", (long long)bytes);
    if (!base && bytes > 0)
        return mpix_fail(MPIX_ERRK_ARG, "base", "base is NULL with bytes = %lld", (long long)bytes);
    for (int i = 0; base && i < ep->nregistrations; i++)
        if (ep->registrations[i].base == base)
            return mpix_fail(MPIX_ERRK_ARG, "base", "base = %p is registered already (%zu bytes)",
                             base, ep->registrations[i].bytes);
    mpix_ep_registration *r = realloc(ep->registrations,
                                      ((size_t)ep->nregistrations + 1) * sizeof *r);
    if (!r)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for one more registration");
    ep->registrations = r;
    return 0;
}

int PMPIX_Ep_register(MPIX_Ep ep, void *base, MPI_Count bytes, int *direct) {
    int kind = ep_valid(ep);
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = mpix_ep_alive(ep)))
        return mpix_boot_raise(ep->boot, kind);
    kind = mpix_boot_agree(ep->boot, register_check(ep, base, bytes, direct));
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    if (base)
        ep->registrations[ep->nregistrations++] = (mpix_ep_registration){base, (size_t)bytes};
    *direct = ep->path->find(ep, base, (size_t)bytes);
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_register);

int PMPIX_Ep_deregister(MPIX_Ep ep, void *base) {
    if (mpix_boot_owner())
        /* a child of fork: it is the parent's, or went with the child's context */
        return MPI_SUCCESS;
    int kind = ep_valid(ep), i;
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if (!base)
        return MPI_SUCCESS;
    if ((kind = in_flight(ep, "ep")))
        return mpix_boot_raise(ep->boot, kind);
    for (i = 0; i < ep->nregistrations; i++)
        if (ep->registrations[i].base == base)
            break;
    if (i == ep->nregistrations)
        return mpix_boot_raise(ep->boot, mpix_fail(MPIX_ERRK_ARG, "base",
                                                   "base = %p is not registered", base));
    ep->registrations[i] = ep->registrations[--ep->nregistrations];
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_deregister);
