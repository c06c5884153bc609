/*
 * region.c - allocations of a context in host memory: the table in which offers name them, and the
 * search for a row's place.
 */
#include "config.h"

#include "coll/host/host.h"

#include <stdlib.h>

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
                             (int32_t)(region - ep->regions) + 1, 1};
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
                          : place->window > 0 && place->window <= ep->nregions
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

void mpix_ep_regions_free(mpix_ep *ep) {
    for (int i = 0; i < ep->nregions && !ep->unsafe; i++)
        mpix_win_free(ep->regions[i].win);
    free(ep->regions);
}
