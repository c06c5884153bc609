/* memory.c - memory that peers reach: MPIX_Ep_alloc, MPIX_Ep_register, and the search for
 * a row's place. */
#include "config.h"

#include "coll/gpu/gpu.h"

#include <stdlib.h>

static int ep_valid(MPIX_Ep ep) {
    return mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed");
}

const mpix_ep_region *mpix_ep_region_of(const mpix_ep *ep, const void *p, size_t bytes) {
    for (int i = 0; i < ep->nregions; i++) {
        const mpix_win *win = ep->regions[i].ended ? NULL : ep->regions[i].win;
        if (!win || !win->base || (const char *)p < (const char *)win->base)
            continue;
        size_t off = (size_t)((const char *)p - (const char *)win->base);
        if (off <= win->bytes && bytes <= win->bytes - off)
            return &ep->regions[i];
    }
    return NULL;
}

int mpix_ep_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, mpix_ep_place *place) {
    const mpix_ep_region *region = mpix_ep_region_of(ep, p, bytes);
    if (!region)
        return 0;
    *place = (mpix_ep_place){(uint64_t)((const char *)p - (const char *)region->win->base), stride,
                             (uint32_t)(region - ep->regions) + 1, 1};
    return 1;
}

size_t mpix_ep_extent(uint64_t rows, uint64_t stride, size_t row) {
    size_t bytes;
    if (rows == 0 || __builtin_mul_overflow(rows - 1, stride, &bytes) ||
        __builtin_add_overflow(bytes, row, &bytes))
        return SIZE_MAX;
    return bytes;
}

void *mpix_ep_resolve(mpix_ep *ep, int peer, const mpix_ep_place *place, size_t bytes) {
    const mpix_win *win = place->window == 0 ? ep->stage
                          : place->window <= (uint32_t)ep->nregions
                              ? ep->regions[place->window - 1].win
                              : NULL;
    if (!win || !win->peer[peer] || place->off > win->peer_bytes[peer] ||
        bytes > win->peer_bytes[peer] - place->off)
        return NULL;
    return (char *)win->peer[peer] + place->off;
}

/* Local checks, agreed on by all ranks. */
int mpix_ep_regions_grow(mpix_ep *ep) {
    pthread_mutex_lock(&ep->lock); /* the progress thread searches the table */
    mpix_ep_region *regions = realloc(ep->regions, ((size_t)ep->nregions + 1) * sizeof *regions);
    ep->regions = regions ? regions : ep->regions;
    pthread_mutex_unlock(&ep->lock);
    return regions ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for one more allocation");
}

/*
 * Offers name a region by its place, so it must be the same on all ranks, while dealloc and
 * handle_free wait for nobody: a place is used again when all ranks have given it up. No call of a
 * rank that did so is in flight, and so no offer that names the place is looked at any more. The
 * table is equally long everywhere, for it grows in agreement.
 */
int mpix_ep_regions_place(mpix_ep *ep, int *place) {
    int words = ep->nregions / 64 + 1; /* at least one bit is free: the new place's */
    uint64_t *used = calloc((size_t)words, sizeof *used);
    int kind = mpix_boot_agree(ep->boot,
                               used ? 0
                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                "no memory to choose an allocation's place"));
    for (int i = 0; !kind && i < ep->nregions; i++)
        used[i / 64] |= (uint64_t)(ep->regions[i].win != NULL) << (i % 64);
    if (!kind)
        kind = mpix_boot_or(ep->boot, used, words);
    for (*place = 0; !kind && (used[*place / 64] >> (*place % 64) & 1); ++*place)
        ;
    free(used);
    return kind;
}

void mpix_ep_regions_set(mpix_ep *ep, int place, const mpix_ep_region *region) {
    pthread_mutex_lock(&ep->lock);
    ep->regions[place] = *region;
    if (place == ep->nregions)
        ep->nregions++;
    pthread_mutex_unlock(&ep->lock);
}

static int alloc_check(mpix_ep *ep, MPI_Count bytes, MPI_Info info, const void *baseptr) {
    if (!baseptr)
        return mpix_fail(MPIX_ERRK_ARG, "baseptr", "baseptr is NULL");
    if (bytes < 0 || bytes > (MPI_Count)1 << 46)
        return mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes = %lld is not in [0, 2^46]",
                         (long long)bytes);
    if (info != MPI_INFO_NULL)
        return mpix_fail(MPIX_ERRK_ARG, "info", "info must be MPI_INFO_NULL");
    return mpix_ep_regions_grow(ep);
}

int PMPIX_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Info info, void *baseptr) {
    int kind = ep_valid(ep);
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = mpix_ep_alive(ep)))
        return mpix_boot_raise(ep->boot, kind);
    if (ep->gpu)
        return mpix_ep_gpu_alloc(ep, bytes, info, baseptr);
    kind = mpix_boot_agree(ep->boot, alloc_check(ep, bytes, info, baseptr));
    mpix_win *win = NULL;
    int place = 0;
    if (!kind)
        kind = mpix_ep_regions_place(ep, &place);
    /* At least one byte, so that every rank has an address by which it names the allocation. */
    if (!kind)
        kind = mpix_win_create(ep->boot, &ep->params, bytes > 0 ? (size_t)bytes : 1,
                               MPIX_WIN_COMMIT, &win);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    mpix_ep_region region = {.win = win};
    kind = mpix_ep_far_register(ep, win->base, win->bytes, &region);
    if (kind) {
        mpix_win_free(win);
        return mpix_boot_raise(ep->boot, kind);
    }
    mpix_ep_regions_set(ep, place, &region);
    *(void **)baseptr = win->base;
    return MPI_SUCCESS;
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
    int kind = ep_valid(ep), i;
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = in_flight(ep, "ep")))
        return mpix_boot_raise(ep->boot, kind);
    if (ep->gpu)
        return mpix_ep_gpu_dealloc(ep, base);
    for (i = 0; i < ep->nregions; i++)
        if (ep->regions[i].win && !ep->regions[i].ended && ep->regions[i].win->base == base)
            break;
    if (i == ep->nregions || !base)
        return mpix_boot_raise(
            ep->boot, mpix_fail(MPIX_ERRK_ARG, "base",
                                "base = %p did not come from MPIX_Ep_alloc of this context", base));
    mpix_ep_drain(ep); /* failed batches do not touch it, but nothing may search the table */
    pthread_mutex_lock(&ep->lock);
    mpix_ep_region region = ep->regions[i];
    /* Of a context that has failed nobody knows what the proxy, its devices, or a peer that wakes
     * are about: the memory stays until those have ended. */
    if (ep->failed)
        ep->regions[i].ended = 1;
    else
        ep->regions[i] = (mpix_ep_region){0};
    int failed = ep->failed;
    pthread_mutex_unlock(&ep->lock);
    if (failed)
        return MPI_SUCCESS;
    mpix_ep_far_deregister(ep, &region);
    mpix_win_free(region.win);
    return MPI_SUCCESS;
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
    mpix_ep_place place;
    if (kind)
        return mpix_boot_raise(NULL, kind);
    if ((kind = mpix_ep_alive(ep)))
        return mpix_boot_raise(ep->boot, kind);
    kind = mpix_boot_agree(ep->boot, register_check(ep, base, bytes, direct));
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    if (base)
        ep->registrations[ep->nregistrations++] = (mpix_ep_registration){base, (size_t)bytes};
    mpix_cuda_place at;
    *direct = ep->gpu ? mpix_ep_gpu_find(ep, base, (size_t)bytes, 0, &at)
                      : mpix_ep_find(ep, base, (size_t)bytes, 0, &place);
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

void mpix_ep_memory_free(mpix_ep *ep) {
    for (int i = 0; i < ep->nregions && !ep->unsafe; i++)
        mpix_win_free(ep->regions[i].win);
    free(ep->regions);
    free(ep->registrations);
}
