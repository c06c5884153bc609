/*
 * context.c - contexts in host memory: the sizes of their windows in mode HT, the scratch of both
 * modes, and memory that peers map.
 */
#include "config.h"

#include "coll/host/forward.h"
#include "coll/host/host.h"

#include <stdlib.h>

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Rows and scales are staged at a pitch of 16 bytes; beside each row travel its token's number, ids
 * and weights. SIZE_MAX: too large. */
size_t mpix_ep_bank_size(const MPIX_Ep_config *c, int64_t rows, int remote_peers,
                         int forward_hosts) {
    size_t row = (size_t)c->max_row_bytes + 2 * 16 + 8 + 8 * (size_t)c->max_topk, bytes, remote;
    if (rows < 0 || __builtin_mul_overflow((size_t)rows, row, &bytes) || bytes > (size_t)1 << 46)
        return SIZE_MAX;
    /* Batches of proxied peers: dispatch brings at most every token of each; combine at most one
     * row per token and rank (COMPACT) or per choice (EXPERT). */
    size_t tokens = (size_t)c->max_tokens, items = tokens * (size_t)remote_peers,
           choices = tokens * (size_t)c->max_topk;
    if (remote_peers > 0 && c->layout == MPIX_EP_EXPERT && choices > items)
        items = choices;
    /* If all routings take two hops, only partial sums come here, one per token and host; what is
     * dispatched comes through the rings. */
    if (forward_hosts > 0)
        items = tokens * (size_t)(forward_hosts < c->max_topk ? forward_hosts : c->max_topk);
    if (__builtin_mul_overflow(items, mpix_ep_remote_item_size(c), &remote) || remote > (size_t)1
                                                                                            << 46)
        return SIZE_MAX;
    return (bytes + remote + 64 * (size_t)remote_peers + 4095) / 4096 * 4096 + 4096;
}

/* Most experts of a rank if route answers places (more ranks than counts_ranks), else -1. */
static int64_t answered_of(const mpix_params *params, const mpix_ep_placement *p) {
    int64_t most = 0;
    if (p->ranks <= params->counts_ranks)
        return -1;
    for (int r = 0; r < p->ranks; r++)
        most = p->nlocal[r] > most ? p->nlocal[r] : most;
    return most;
}

/* A bank and the control window of a context without proxied peers. */
int mpix_ep_ht_banks(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                     int ranks_per_host, int tables, MPI_Count *bytes, mpix_ep_ctl_layout *layout) {
    mpix_ep_placement placement;
    size_t most = 0;
    int kind = mpix_ep_placement_sizes(&placement, c, ranks);
    if (kind)
        return kind;
    int64_t answered = tables ? -1 : answered_of(params, &placement);
    int hops = params->two_hops == MPIX_HOPS_ON ? (ranks + ranks_per_host - 1) / ranks_per_host - 1
                                                : 0;
    for (int r = 0; r < ranks && !kind; r++) { /* ranks differ in their number of experts only */
        size_t bank = mpix_ep_bank_size(c, mpix_ep_worst_rows(c, &placement, r),
                                        ranks - ranks_per_host, hops);
        if (bank == SIZE_MAX)
            kind =
                mpix_fail(MPIX_ERRK_NO_MEM, "config.max_recv_rows",
                          "a batch in the worst case exceeds 2^46 bytes: set config.max_recv_rows");
        most = bank > most ? bank : most;
    }
    mpix_ep_placement_free(&placement);
    if (kind)
        return kind;
    mpix_ep_ctl_layout_init(layout, ranks, c->num_experts, c->depth, params->max_handles, answered);
    *bytes = (MPI_Count)(most * (size_t)c->depth + layout->total);
    return 0;
}

int mpix_ep_ht_window_size(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                           int ranks_per_host, MPI_Count *bytes) {
    mpix_ep_ctl_layout layout;
    int nchunks, kind = mpix_ep_ht_banks(c, params, ranks, ranks_per_host, 0, bytes, &layout);
    if (kind || ranks_per_host == ranks)
        return kind;
    /* send buffer and mirror */
    size_t chunk = mpix_ep_remote_chunks(c, params, ranks, &nchunks);
    *bytes += (MPI_Count)(chunk * (size_t)nchunks + layout.total);
    /* Two hops: the rings of the ranks that this one serves, of equal hosts one per other host,
     * and chunks to send their sums. */
    size_t hosts = (size_t)(ranks + ranks_per_host - 1) / (size_t)ranks_per_host - 1;
    if (params->two_hops != MPIX_HOPS_OFF &&
        (ranks_per_host > 1 || params->two_hops == MPIX_HOPS_ON))
        *bytes += (MPI_Count)(chunk * (hosts * (size_t)params->two_hops_chunks + 2 * hosts + 2));
    return 0;
}

/* ---- creation and end ------------------------------------------------------------------------ */

int mpix_ep_host_scratch(mpix_ep *ep) {
    ep->dst = malloc((2 * (size_t)ep->config.max_topk + 2) * sizeof *ep->dst);
    ep->terms = malloc(((size_t)ep->config.max_topk + 1) * sizeof *ep->terms);
    return ep->dst && ep->terms
               ? 0
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context of %d ranks", ep->size);
}

void mpix_ep_host_free(mpix_ep *ep) {
    mpix_ep_regions_free(ep);
    free(ep->dst);
    free(ep->converted);
    free(ep->terms);
}

int mpix_ep_ht_layout(mpix_ep *ep, int proxied_peers) {
    int depth = ep->config.depth;
    ep->ht = calloc(1, sizeof *ep->ht);
    int kind = ep->ht ? mpix_ep_forward_create(ep) /* whose rings come before the banks */
                      : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context");
    if (kind)
        return kind;
    ep->packs = 1;
    int hosts = ep->forward && ep->params.two_hops == MPIX_HOPS_ON ? ep->boot->nhosts - 1 : 0;
    ep->ht->bank_bytes = mpix_ep_bank_size(&ep->config, ep->max_rows, proxied_peers, hosts);
    if (ep->ht->bank_bytes == SIZE_MAX)
        return mpix_fail(MPIX_ERRK_NO_MEM, "config.max_recv_rows",
                         "a batch in the worst case exceeds 2^46 bytes: set config.max_recv_rows");
    ep->stage_bytes = ep->ht->banks_at + ep->ht->bank_bytes * (size_t)depth;
    int64_t answered = answered_of(&ep->params, &ep->placement);
    ep->ht->answered = answered >= 0;
    mpix_ep_ctl_layout_init(&ep->layout, ep->size, ep->config.num_experts, depth,
                            ep->params.max_handles, answered);
    ep->ht->banks = calloc((size_t)depth, sizeof *ep->ht->banks);
    ep->ht->targets = malloc((size_t)ep->size * sizeof *ep->ht->targets);
    if (!ep->ht->banks || !ep->ht->targets)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context of %d ranks", ep->size);
    return mpix_ep_host_scratch(ep);
}

void mpix_ep_ht_free(mpix_ep *ep) {
    mpix_ep_remote_free(ep); /* first: a device may still read the buffers of two hops */
    mpix_ep_forward_free(ep);
    mpix_ep_host_free(ep);
    if (!ep->ht)
        return;
    free(ep->ht->banks);
    free(ep->ht->targets);
    free(ep->ht);
}

void mpix_ep_ht_handle_free(struct mpix_ep_handle *handle, int with_context) {
    (void)with_context;
    mpix_ep_plan_free(handle->plan);
}

/* ---- MPIX_Ep_alloc and MPIX_Ep_dealloc ------------------------------------------------------- */

int mpix_ep_host_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr) {
    int kind = mpix_ep_check_alloc(bytes, info, baseptr);
    kind = mpix_boot_agree(ep->boot, kind ? kind : mpix_ep_regions_grow(ep));
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
    kind = mpix_ep_remote_register(ep, win->base, win->bytes, &region);
    if (kind) {
        mpix_win_free(win);
        return mpix_boot_raise(ep->boot, kind);
    }
    mpix_ep_regions_set(ep, place, &region);
    *(void **)baseptr = win->base;
    return MPI_SUCCESS;
}

int mpix_ep_host_dealloc(mpix_ep *ep, void *base) {
    int i;
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
    mpix_ep_remote_deregister(ep, &region);
    mpix_win_free(region.win);
    return MPI_SUCCESS;
}

int mpix_ep_host_find(mpix_ep *ep, const void *base, size_t bytes) {
    return mpix_ep_region_of(ep, base, bytes) != NULL;
}
