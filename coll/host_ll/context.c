/* context.c - low-latency contexts: sizes of banks, handles, the local route, memory for
 * combine. host_ll/ll.h has the protocol. */
#include "config.h"

#include "coll/host/host.h"
#include "coll/host/remote.h"
#include "coll/host_ll/ll.h"
#include "mem/claim.h"

#include <stdlib.h>

#define MOST ((double)((uint64_t)1 << 46))

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t up4096(size_t n) { return (n + 4095) & ~(size_t)4095; }

size_t mpix_ep_ll_answer_bytes(const MPIX_Ep_config *c, size_t n) {
    return sizeof(mpix_ep_ll_batch) +
           mpix_ep_up64((n + MPIX_EP_LL_BLOCK - 1) / MPIX_EP_LL_BLOCK * 8) +
           mpix_ep_up64(n * (4 + 4 * (size_t)c->max_topk)) +
           mpix_ep_up64(n * mpix_ep_up16((size_t)c->max_row_bytes));
}

void mpix_ep_ll_sizes(const MPIX_Ep_config *c, int ranks, int remote_peers, mpix_ep_ll *ll) {
    size_t tokens = (size_t)c->max_tokens, k = (size_t)c->max_topk, size = (size_t)ranks,
           row = (size_t)c->max_row_bytes, remote = (size_t)remote_peers;
    size_t batch_row = 4 + 8 * k + row + 32; /* rows and scales at a pitch of 16 */
    *ll = (mpix_ep_ll){0};
    if ((double)size * (double)(tokens + 1) * (double)batch_row * (double)(2 * c->depth + 2) >
        MOST) {
        ll->store_bytes = SIZE_MAX;
        return;
    }
    size_t answers = tokens * (k < size ? k : size), sent = tokens * (k < remote ? k : remote),
           head = sizeof(mpix_ep_ll_batch) + 4 * 64;
    ll->region = head + mpix_ep_up64(8 * ((tokens + MPIX_EP_LL_BLOCK - 1) / MPIX_EP_LL_BLOCK)) +
                 mpix_ep_up64(tokens * batch_row);
    ll->bank[0] = up4096(ll->region * size);
    ll->bank[1] = up4096(size * (head + 8) + answers * (8 + 4 + 4 * k + mpix_ep_up16(row)));
    ll->at[1] = ll->bank[0] * (size_t)c->depth;
    ll->store_bytes = ll->at[1] + ll->bank[1] * (size_t)c->depth;
    if (remote > 0) {
        ll->tx_bytes[0] = up4096(remote * head + sent * batch_row);
        ll->tx_bytes[1] = up4096(remote * head + remote * tokens * (4 + 4 * k + mpix_ep_up16(row)));
    }
}

void mpix_ep_ll_ctl_layout(mpix_ep_ctl_layout *l, int ranks, int depth, int max_handles) {
    *l = (mpix_ep_ctl_layout){.handles_at = 4096};
    /* arrived and taken, of both types, per bank */
    l->offers_dispatch = mpix_ep_up64(4 * (size_t)depth * sizeof(uint64_t));
    l->block = l->offers_dispatch + (size_t)depth * sizeof(mpix_ep_ll_offer);
    l->handle = l->block * (size_t)ranks;
    l->total = l->handles_at + l->handle * (size_t)max_handles;
}

/* Control words, the banks of one handle, and with proxied peers what it sends. */
int mpix_ep_ll_window_size(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                           int ranks_per_host, MPI_Count *bytes) {
    mpix_ep_ctl_layout layout;
    mpix_ep_ll ll;
    mpix_ep_ll_sizes(c, ranks, ranks - ranks_per_host, &ll);
    mpix_ep_ll_ctl_layout(&layout, ranks, c->depth, params->max_handles);
    if (ll.store_bytes == SIZE_MAX)
        return mpix_fail(MPIX_ERRK_NO_MEM, "config.max_tokens",
                         "the banks for batches of %lld tokens exceed 2^46 bytes",
                         (long long)c->max_tokens);
    *bytes = (MPI_Count)(layout.total + ll.store_bytes + ll.tx_bytes[0] + ll.tx_bytes[1]);
    return 0;
}

int mpix_ep_ll_layout(mpix_ep *ep, int remote_peers) {
    ep->ll = calloc(1, sizeof *ep->ll);
    if (!ep->ll)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context");
    mpix_ep_ll_sizes(&ep->config, ep->size, remote_peers, ep->ll);
    if (ep->ll->store_bytes == SIZE_MAX ||
        (double)ep->ll->store_bytes * ep->params.max_handles > MOST)
        return mpix_fail(MPIX_ERRK_NO_MEM, "config.max_tokens",
                         "the banks of %d handles for batches of %lld tokens exceed 2^46 bytes",
                         ep->params.max_handles, (long long)ep->config.max_tokens);
    int64_t most = 0;
    for (int r = 0; r < ep->size; r++)
        most = ep->placement.nlocal[r] > most ? ep->placement.nlocal[r] : most;
    most = ep->config.layout != MPIX_EP_EXPERT ? 1
           : most < ep->config.max_topk        ? most
                                               : ep->config.max_topk;
    if ((double)ep->size * (double)ep->config.max_tokens * (double)most >
        (double)ep->path->limits.rows)
        return mpix_fail(MPIX_ERRK_ARG, "config.max_tokens",
                         "config.max_tokens = %lld: %d ranks could send one rank %g rows, whose "
                         "numbers have 31 bits in MPIX_EP_LL",
                         (long long)ep->config.max_tokens, ep->size,
                         (double)ep->size * (double)ep->config.max_tokens * (double)most);
    if (remote_peers > 0 &&
        !(ep->ll->stores = calloc((size_t)ep->params.max_handles, sizeof *ep->ll->stores)))
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d handles",
                         ep->params.max_handles);
    size_t parts = (size_t)(ep->size < ep->config.max_topk ? ep->size : ep->config.max_topk);
    ep->ll->parts = aligned_alloc(64, parts * mpix_ep_up64((size_t)ep->config.max_row_bytes));
    ep->ll->sums = malloc(((size_t)ep->config.max_topk + 1) * sizeof *ep->ll->sums);
    if (!ep->ll->parts || !ep->ll->sums)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %zu rows of %lld bytes", parts,
                         (long long)ep->config.max_row_bytes);
    ep->stage_bytes = ep->ll->store_bytes * (size_t)ep->params.max_handles;
    mpix_ep_ll_ctl_layout(&ep->layout, ep->size, ep->config.depth, ep->params.max_handles);
    return mpix_ep_host_scratch(ep);
}

/* ---- stores of handles with proxied peers ---------------------------------------------------- */

static int store_register(mpix_ep *ep, int index, char *key) {
    mpix_ep_ll *ll = ep->ll;
    mpix_ep_ll_store *s = &ll->stores[index];
    size_t tx = ll->tx_bytes[0] + ll->tx_bytes[1];
    s->rmem = calloc((size_t)ep->size, sizeof *s->rmem);
    s->tx = aligned_alloc(4096, tx);
    if (!s->rmem || !s->tx)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a send buffer of %zu bytes", tx);
    memset(s->tx, 0, tx);
    int kind = mpix_proxy_mem_reg(ep->remote->proxy, s->tx, tx, &s->tx_mem);
    if (!kind)
        kind = mpix_proxy_mem_reg(ep->remote->proxy,
                                  (char *)ep->stage->base + ll->store_bytes * (size_t)index,
                                  ll->store_bytes, &s->mem);
    if (!kind)
        mpix_proxy_mem_key(ep->remote->proxy, s->mem, key);
    return kind;
}

static void store_close(mpix_ep *ep, mpix_ep_ll_store *s) {
    for (int p = 0; s->rmem && p < ep->size; p++)
        if (s->rmem[p])
            mpix_proxy_rmem_close(ep->remote->proxy, s->rmem[p]);
    if (s->mem)
        mpix_proxy_mem_dereg(ep->remote->proxy, s->mem);
    if (s->tx_mem)
        mpix_proxy_mem_dereg(ep->remote->proxy, s->tx_mem);
    free(s->rmem);
    free(s->tx);
    *s = (mpix_ep_ll_store){0};
}

/* Collective, ends in agreement. */
static int slot_open(mpix_ep *ep, int index) {
    mpix_ep_ll *ll = ep->ll;
    size_t end = ll->store_bytes * ((size_t)index + 1),
           grows = end > ll->committed ? end - ll->committed : 0;
    size_t sends = ep->remote && !ll->stores[index].mem ? ll->tx_bytes[0] + ll->tx_bytes[1] : 0;
    int kind = mpix_mem_together(ep->boot, grows + sends, "memory for a handle's batches");
    if (!kind && grows)
        kind = mpix_win_commit(ep->stage, ll->committed, grows);
    if (!kind && end > ll->committed)
        ll->committed = end;
    if (!ep->remote || ll->stores[index].mem) /* the index has been used before, on all ranks */
        return mpix_boot_agree(ep->boot, kind);
    size_t bytes = mpix_proxy_key_bytes(ep->remote->proxy);
    char *keys = malloc(bytes * ((size_t)ep->size + 1)),
         *mine = keys ? keys + bytes * (size_t)ep->size : NULL;
    if (!kind && !keys)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the keys of %d ranks", ep->size);
    if (!kind) {
        memset(mine, 0, bytes);
        kind = store_register(ep, index, mine);
    }
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(ep->boot, mine, bytes, keys);
    for (int p = 0; p < ep->size && !kind; p++)
        if (ep->remote->is[p])
            kind = mpix_proxy_rmem_open(ep->remote->proxy, p, keys + bytes * (size_t)p,
                                        &ll->stores[index].rmem[p]);
    kind = mpix_boot_agree(ep->boot, kind);
    if (kind)
        store_close(ep, &ll->stores[index]);
    free(keys);
    return kind;
}

void mpix_ep_ll_free(mpix_ep *ep) {
    mpix_ep_ll *ll = ep->ll;
    if (ll) {
        for (int s = 0; ll->stores && ep->remote && ep->remote->proxy && s < ep->params.max_handles;
             s++)
            store_close(ep, &ll->stores[s]);
        free(ll->stores);
        free(ll->parts);
        free(ll->sums);
        free(ll);
        ep->ll = NULL;
    }
    mpix_ep_remote_free(ep);
    mpix_ep_host_free(ep);
}

/* ---- handles --------------------------------------------------------------------------------- */

static int handle_local(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    size_t ranks = (size_t)ep->size, nlocal = (size_t)ep->placement.nlocal[ep->rank];
    mpix_ep_ll_handle *h = calloc(1, sizeof *h);
    int64_t *numbers = calloc(5 * ranks + 1 + 2 * nlocal + 1, sizeof *numbers);
    if (!h || !numbers) {
        free(h);
        free(numbers);
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle");
    }
    h->n = numbers;
    h->first = h->n + ranks;
    h->recv_rank = h->first + ranks + 1;
    h->reply = (uint64_t *)(h->recv_rank + ranks);
    h->answer = h->reply + ranks;
    h->offset = (int64_t *)(h->answer + ranks);
    h->recv_expert = h->offset + nlocal + 1;
    handle->ll = h;
    return 0;
}

int mpix_ep_ll_handle_create(struct mpix_ep_handle *handle) {
    int kind = mpix_boot_agree(handle->ep->boot, handle_local(handle));
    if (!kind)
        kind = slot_open(handle->ep, handle->index);
    if (kind)
        mpix_ep_ll_handle_free(handle, 0);
    return kind;
}

/* With the context the buffer goes with its regions. */
void mpix_ep_ll_handle_free(struct mpix_ep_handle *handle, int with_context) {
    mpix_ep *ep = handle->ep;
    mpix_ep_ll_handle *h = handle->ll;
    mpix_ep_plan_free(handle->plan);
    handle->plan = NULL;
    if (!h)
        return;
    if (!with_context && h->buffer) {
        pthread_mutex_lock(&ep->lock);
        mpix_win *win = ep->regions[h->buffer - 1].win;
        ep->regions[h->buffer - 1].win = NULL;
        pthread_mutex_unlock(&ep->lock);
        mpix_win_free(win);
    }
    free(h->n);
    free(h->rows);
    free(h);
    handle->ll = NULL;
}

/* Nothing is exchanged: what the other ranks send comes with their batches. */
static int route_step(mpix_ep_call *call, int *banks_open) {
    struct mpix_ep_handle *handle = call->handle;
    mpix_ep *ep = call->ep;
    uint64_t at = 0;
    (void)banks_open;
    if (!mpix_ep_call_ready(call))
        return MPIX_EP_STEP_WAITING;
    mpix_ep_plan_free(handle->plan);
    handle->plan = NULL;
    handle->ll->valid = 0;
    if (!call->kind)
        mpix_ep_route_sends_fill(call);
    if (call->kind)
        return MPIX_EP_STEP_COMPLETE;
    if (call->route.counts.recv_total) /* SLOTS */
        *call->route.counts.recv_total = (MPI_Count)ep->size * ep->config.max_tokens;
    for (int p = 0; p < ep->size; p++) {
        handle->ll->answer[p] = at;
        at += mpix_ep_ll_answer_bytes(&ep->config, (size_t)call->plan->send_tokens[p]);
    }
    handle->plan = call->plan;
    call->plan = NULL;
    return MPIX_EP_STEP_COMPLETE;
}

/* ---- the calls ------------------------------------------------------------------------------- */

int mpix_ep_ll_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                     const MPIX_Ep_counts *counts, const mpix_ep_form *form) {
    return mpix_ep_host_route(handle, routing, counts, form, route_step);
}

int mpix_ep_ll_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                        const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form) {
    return mpix_ep_host_dispatch(handle, in, out, form, mpix_ep_ll_dispatch_step);
}

int mpix_ep_ll_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                       const MPIX_Ep_combine_out *out, const mpix_ep_form *form) {
    return mpix_ep_host_combine(handle, in, out, form, mpix_ep_ll_combine_step);
}

/* ---- combine's memory ------------------------------------------------------------------------ */

/* Collective, the first time: a region like those of MPIX_Ep_alloc, a part of it for each bank. */
static int buffer_make(struct mpix_ep_handle *handle) {
    mpix_ep *ep = handle->ep;
    mpix_ep_ll_handle *h = handle->ll;
    size_t rows = (size_t)ep->size * (size_t)ep->config.max_tokens * (size_t)ep->config.depth;
    mpix_win *win = NULL;
    int place = 0, kind = mpix_boot_agree(ep->boot, mpix_ep_regions_grow(ep));
    h->buffer_pitch = mpix_ep_up64((size_t)ep->config.max_row_bytes);
    if (!kind)
        kind = mpix_ep_regions_place(ep, &place);
    if (!kind)
        kind = mpix_win_create(ep->boot, &ep->params, rows > 0 ? rows * h->buffer_pitch : 1,
                               MPIX_WIN_COMMIT, &win);
    if (kind)
        return kind;
    mpix_ep_regions_set(ep, place, &(mpix_ep_region){.win = win});
    h->buffer = place + 1;
    return 0;
}

int mpix_ep_ll_combine_buffer(struct mpix_ep_handle *handle, MPIX_Ep_rows *rows) {
    mpix_ep *ep = handle->ep;
    mpix_ep_ll_handle *h = handle->ll;
    uint64_t epoch = handle->started[MPIX_EP_COMBINE] + 1, depth = (uint64_t)ep->config.depth;
    int kind = h->buffer ? 0 : buffer_make(handle);
    if (!kind && !rows)
        kind = mpix_fail(MPIX_ERRK_ARG, "rows", "rows is NULL");
    pthread_mutex_lock(&ep->lock);
    for (mpix_ep_call *c = ep->first; c && !kind; c = c->next)
        if (c->handle == handle && c->type == MPIX_EP_COMBINE && c->epoch + depth <= epoch)
            kind = mpix_fail(MPIX_ERRK_ARG, "handle",
                             "%d combines of the handle are in flight: complete the first of them "
                             "before its rows are "
                             "written anew",
                             (int)depth);
    pthread_mutex_unlock(&ep->lock);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    size_t bank = (size_t)ep->size * (size_t)ep->config.max_tokens * h->buffer_pitch;
    *rows = (MPIX_Ep_rows){.data = (char *)ep->regions[h->buffer - 1].win->base +
                                   bank * (size_t)(epoch % depth),
                           .stride = (MPI_Count)h->buffer_pitch};
    return MPI_SUCCESS;
}
