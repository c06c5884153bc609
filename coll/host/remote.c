/*
 * remote.c - proxied peers of a context: control words through a mirror, packed batches in chunks,
 * their completion.
 *
 * What goes to a proxied peer in a call is one batch: its items (a token's row once per rank in
 * dispatch; the experts' rows in combine), packed contiguously in chunks and put into a region of
 * the staging bank that the peer granted in its offer, then one signal per lane. A chunk is posted
 * as soon as it is packed, so the network works while the next is packed. Messages per peer and
 * call: ceil(payload / chunk) puts and a signal per lane, and for the offer a put and a signal; one
 * more if the status is not what it was.
 *
 * The chunks belong to one call at a time (`packing`), the earliest that asks: it waits for nothing
 * but completions of posted chunks, which need no peer's part, so it always gets on; several calls
 * holding half-packed chunks could wait for each other for ever.
 *
 * A call is complete only when its commands are: then its buffers, its mirror blocks and its
 * counters may be reused, and the peer has got what it waits for even if this process makes
 * no further call.
 */
#include "config.h"

#include "coll/host/forward.h"
#include "mem/claim.h"

#include <stdlib.h>

#define TX_LIMIT ((size_t)64 << 20) /* of the whole send buffer, unless single rows are larger */
enum { FEW_CHUNKS = 16 };

size_t mpix_ep_remote_item_size(const MPIX_Ep_config *c) {
    return mpix_ep_up16((size_t)c->max_row_bytes + 32) +
           mpix_ep_up16(mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_ROW, (size_t)c->max_topk));
}

/* ---- creation -------------------------------------------------------------------------------- */

/* The same on all ranks: the layout of a batch depends on the chunk's size. */
size_t mpix_ep_remote_chunks(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                             int *nchunks) {
    size_t item = mpix_ep_remote_item_size(c), bytes = mpix_ep_up16(params->chunk_bytes);
    *nchunks = 2 * ranks + 2;
    /* with two hops a record has the rows too */
    item += MPIX_EP_FORWARD_HEADER + mpix_ep_up16(4 * (size_t)c->max_topk);
    /* one piece: the largest batch for one rank, as far as the limit below allows */
    if (params->chunk_bytes == 0) {
        size_t items = (size_t)c->max_tokens *
                       (c->layout == MPIX_EP_EXPERT ? (size_t)c->max_topk : 1);
        if (__builtin_mul_overflow(items, item, &bytes) || bytes > TX_LIMIT)
            bytes = TX_LIMIT;
        bytes = mpix_ep_up16(bytes);
    }
    /* few peers: packing goes on while the network takes what was packed */
    if (*nchunks < FEW_CHUNKS && (bytes > item ? bytes : item) <= TX_LIMIT / FEW_CHUNKS)
        *nchunks = FEW_CHUNKS;
    if (bytes > TX_LIMIT / (size_t)*nchunks)
        bytes = TX_LIMIT / (size_t)*nchunks / 16 * 16;
    return bytes > item ? bytes : item;
}

static int remote_alloc_bare(mpix_ep *ep, mpix_ep_remote *remote) {
    remote->lanes = ep->params.lanes;
    remote->counters_handle = 4 * ep->config.depth;
    if ((int64_t)remote->counters_handle * ep->params.max_handles + 1 >= 65536)
        return mpix_fail(MPIX_ERRK_ARG, "max_handles",
                         "max_handles = %d with depth %d needs more than 65535 counters",
                         ep->params.max_handles, ep->config.depth);
    remote->is = calloc((size_t)ep->size, 1);
    remote->full = calloc((size_t)ep->size, MPIX_EP_MAX_LANES);
    return remote->is && remote->full
               ? 0
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for proxied peers");
}

/* Of a handle, before those of offers and batches: two banks of counts, and the places that
 * are answered to them. */
static int route_counters(const mpix_ep *ep) { return ep->answered ? 3 : 2; }

static size_t up4096(size_t n) { return (n + 4095) / 4096 * 4096; }

static int remote_alloc(mpix_ep *ep, mpix_ep_remote *remote) {
    remote->lanes = ep->params.lanes;
    remote->counters_handle = route_counters(ep) + 2 * ep->config.depth +
                              2 * ep->config.depth * remote->lanes;
    if ((int64_t)remote->counters_handle * ep->params.max_handles + MPIX_EP_FORWARD_COUNTERS + 1 >=
        65536)
        return mpix_fail(
            MPIX_ERRK_ARG, "max_handles",
            "max_handles = %d with depth %d and %d lanes needs more than 65535 counters",
            ep->params.max_handles, ep->config.depth, remote->lanes);
    remote->is = calloc((size_t)ep->size, 1);
    remote->full = calloc((size_t)ep->size, MPIX_EP_MAX_LANES);
    remote->chunks = calloc((size_t)remote->nchunks, sizeof *remote->chunks);
    remote->cursor = calloc((size_t)ep->placement.nlocal[ep->rank] + 1, sizeof *remote->cursor);
    remote->mirror = aligned_alloc(4096, up4096(ep->layout.total));
    remote->tx = aligned_alloc(4096, up4096(remote->chunk_bytes * (size_t)remote->nchunks));
    if (!remote->is || !remote->full || !remote->chunks || !remote->cursor || !remote->mirror ||
        !remote->tx)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "no memory for the send buffer of proxied peers (%d chunks of %zu bytes)",
                         remote->nchunks, remote->chunk_bytes);
    memset(remote->mirror, 0, ep->layout.total);
    memset(remote->tx, 0, remote->chunk_bytes * (size_t)remote->nchunks);
    return mpix_ep_forward_out(ep);
}

int mpix_ep_remote_create(mpix_ep *ep) {
    if (ep->boot->nhosts < 2)
        return 0;
    ep->remote = calloc(1, sizeof *ep->remote);
    int kind = mpix_boot_agree(ep->boot, ep->remote ? 0
                                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                                "no memory for proxied peers"));
    if (kind)
        return kind;
    if (ep->packs) {
        ep->remote->chunk_bytes = mpix_ep_remote_chunks(&ep->config, &ep->params, ep->size,
                                                        &ep->remote->nchunks);
        kind = mpix_mem_together(ep->boot,
                                 up4096(ep->layout.total) +
                                     up4096(ep->remote->chunk_bytes * (size_t)ep->remote->nchunks) +
                                     (ep->forward ? ep->forward->out_bytes : 0),
                                 "send buffers for proxied peers");
    }
    if (!kind)
        kind = ep->packs ? remote_alloc(ep, ep->remote) : remote_alloc_bare(ep, ep->remote);
    for (int r = 0; r < ep->size && !kind; r++) {
        ep->remote->is[r] = ep->boot->host_of[r] != ep->boot->host_of[ep->rank];
        ep->remote->npeers += ep->remote->is[r];
    }
    return mpix_boot_agree(ep->boot, kind);
}

int mpix_ep_remote_windows(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote)
        return 0;
    /* What a device reads and writes is pinned, hence committed. */
    size_t stage = ep->banks_at + ep->bank_bytes * (size_t)ep->config.depth;
    int packs = ep->packs,
        kind = mpix_mem_together(ep->boot, (packs ? stage : 0) + ep->layout.total, "window memory");
    if (!kind && packs)
        kind = mpix_win_commit(ep->stage, 0, stage);
    for (int b = 0; !kind && packs && b < ep->config.depth; b++)
        ep->banks[b].committed = ep->bank_bytes;
    if (!kind)
        kind = mpix_win_commit(ep->ctl, 0, ep->layout.total);
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind) {
        ep->ctl_committed = ep->layout.total;
        remote->counter_failed = remote->counters_handle * ep->params.max_handles +
                                 (ep->forward ? MPIX_EP_FORWARD_COUNTERS : 0);
        kind = mpix_proxy_create(ep->boot, &ep->params, remote->is, remote->counter_failed + 1,
                                 ep->config.memkind != MPIX_EP_HOST, ep->ctl->base, &remote->proxy);
    }
    if (!kind && mpix_proxy_caps(remote->proxy)->lanes < remote->lanes)
        remote->lanes = mpix_proxy_caps(remote->proxy)->lanes;
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_CTL, ep->ctl->base,
                                 ep->layout.total);
    remote->ready = !kind;
    if (!packs)
        return kind;
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_MIRROR, remote->mirror,
                                 ep->layout.total);
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_STAGE, ep->stage->base, stage);
    if (!kind)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_TX, remote->tx,
                                 remote->chunk_bytes * (size_t)remote->nchunks);
    if (!kind && ep->forward)
        kind = mpix_proxy_window(remote->proxy, MPIX_EP_WINDOW_FORWARD, ep->forward->out,
                                 remote->chunk_bytes * (size_t)ep->forward->nout);
    return kind;
}

void mpix_ep_remote_deregister(mpix_ep *ep, mpix_ep_region *region) {
    for (int r = 0; region->rmem && r < ep->size; r++)
        if (region->rmem[r])
            mpix_proxy_rmem_close(ep->remote->proxy, region->rmem[r]);
    free(region->rmem);
    if (region->mem)
        mpix_proxy_mem_dereg(ep->remote->proxy, region->mem);
    region->mem = NULL;
    region->rmem = NULL;
}

/* A device that takes no more memory is no error: rows are packed then. 1: it took it. */
static int remote_try(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem) {
    mpix_try t;
    mpix_try_begin(&t);
    int kind = mpix_proxy_mem_reg(proxy, base, bytes, mem);
    mpix_try_end(&t);
    if (kind)
        mpix_log(MPIX_LOG_INFO,
                 "%zu bytes at %p are not registered with the network: rows in them are packed",
                 bytes, base);
    return !kind;
}

int mpix_ep_remote_register(mpix_ep *ep, void *base, size_t bytes, mpix_ep_region *region) {
    if (!ep->remote || !ep->packs)
        return 0;
    mpix_proxy *proxy = ep->remote->proxy;
    size_t key = mpix_proxy_key_bytes(proxy), blob = 1 + key;
    char *blobs = calloc((size_t)ep->size + 1, blob),
         *mine = blobs ? blobs + blob * (size_t)ep->size : NULL;
    region->rmem = calloc((size_t)ep->size, sizeof(*region->rmem));
    int kind = blobs && region->rmem ? 0
                                     : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                 "no memory for the keys of %d ranks", ep->size);
    if (!kind && remote_try(proxy, base, bytes, &region->mem)) {
        mine[0] = 1;
        mpix_proxy_mem_key(proxy, region->mem, mine + 1);
    }
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = mpix_boot_allgather(ep->boot, mine, blob, blobs);
    for (int r = 0; r < ep->size && !kind; r++)
        if (ep->remote->is[r] && blobs[blob * (size_t)r])
            kind = mpix_proxy_rmem_open(proxy, r, blobs + blob * (size_t)r + 1, &region->rmem[r]);
    free(blobs);
    kind = mpix_boot_agree(ep->boot, kind);
    if (kind)
        mpix_ep_remote_deregister(ep, region);
    return kind;
}

void mpix_ep_remote_free(mpix_ep *ep) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote)
        return;
    for (int i = 0; i < ep->nregions; i++)
        mpix_ep_remote_deregister(ep, &ep->regions[i]);
    mpix_proxy_free(remote->proxy); /* first: a device may still read the buffers below */
    free(remote->is);
    free(remote->full);
    free(remote->later);
    free(remote->chunks);
    free(remote->cursor);
    free(remote->mirror);
    free(remote->tx);
    free(remote);
    ep->remote = NULL;
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Counters of the counted form: one batch at a time each; wire.h says why a handle's bank is free,
 * and with it its counter. */
static uint32_t counter_publish(const mpix_ep_call *call, int bases) {
    const mpix_ep *ep = call->ep;
    int depth = ep->config.depth, base = call->handle->index * ep->remote->counters_handle;
    if (call->type == MPIX_EP_ROUTE)
        return (uint32_t)(base + (bases ? 2 : (int)(call->epoch & 1)));
    return (uint32_t)(base + route_counters(ep) + (call->type == MPIX_EP_COMBINE) * depth +
                      (int)(call->epoch % (uint64_t)depth));
}

uint32_t mpix_ep_remote_counter(const mpix_ep_call *call, int lane) {
    const mpix_ep *ep = call->ep;
    int depth = ep->config.depth,
        base = call->handle->index * ep->remote->counters_handle + route_counters(ep) + 2 * depth;
    int bank = (call->type == MPIX_EP_COMBINE) * depth + (int)(call->epoch % (uint64_t)depth);
    return (uint32_t)(base + bank * ep->remote->lanes + lane);
}

/* Queues a put; 1: queued, or kept until there is room. A peer that has failed takes nothing; the
 * engine finds its failure. */
int mpix_ep_remote_put(mpix_ep_call *call, int peer, int lane, int lwin, uint64_t loff, int rwin,
                       uint64_t roff, uint64_t len, uint32_t counter) {
    mpix_ep_remote *remote = call->ep->remote;
    uint64_t seq;
    int did = remote->nlater ? 0
                             : mpix_proxy_put(remote->proxy, peer, lane, lwin, loff, rwin, roff,
                                              len, counter, &seq);
    if (did == 0)
        return mpix_ep_remote_later(call, &(mpix_ep_command){.what = MPIX_EP_COMMAND_PUT,
                                                             .peer = peer,
                                                             .lane = lane,
                                                             .lwin = lwin,
                                                             .loff = loff,
                                                             .rwin = rwin,
                                                             .roff = roff,
                                                             .len = len,
                                                             .counter = counter});
    if (did > 0)
        call->remote[peer].seq[lane] = seq;
    return did > 0;
}

/* The same between memory that is no window. */
int mpix_ep_remote_post(mpix_ep_call *call, const mpix_net_op *op, const mpix_proxy_mem *mem,
                        const mpix_proxy_rmem *rmem) {
    mpix_ep_remote *remote = call->ep->remote;
    uint64_t seq;
    int did = remote->nlater ? 0 : mpix_proxy_post(remote->proxy, op, mem, rmem, &seq);
    if (did == 0)
        return mpix_ep_remote_later(call, &(mpix_ep_command){.what = MPIX_EP_COMMAND_POST,
                                                             .peer = op->peer,
                                                             .lane = op->lane,
                                                             .op = *op,
                                                             .mem = mem,
                                                             .rmem = rmem});
    if (did > 0)
        call->remote[op->peer].seq[op->lane] = seq;
    return did > 0;
}

static int remote_write(mpix_ep_call *call, int peer, int lane, const mpix_proxy_mem *mem,
                        const void *from, const mpix_proxy_rmem *rmem, uint64_t to, uint64_t len,
                        uint32_t counter) {
    mpix_net_op op = {.op = MPIX_NET_WRITE,
                      .peer = (uint16_t)peer,
                      .lane = (uint8_t)lane,
                      .local = (void *)(uintptr_t)from,
                      .roff = to,
                      .len = len,
                      .counter = (int32_t)counter};
    return mpix_ep_remote_post(call, &op, mem, rmem);
}

void mpix_ep_remote_word(mpix_ep_call *call, int peer, int lane, uint64_t roff, uint64_t value,
                         uint32_t counter, uint32_t writes) {
    mpix_ep_remote *remote = call->ep->remote;
    uint64_t seq;
    int did = remote->nlater ? 0
                             : mpix_proxy_signal(remote->proxy, peer, lane, MPIX_EP_WINDOW_CTL,
                                                 roff, value, counter, writes, &seq);
    if (did == 0)
        mpix_ep_remote_later(call, &(mpix_ep_command){.what = MPIX_EP_COMMAND_WORD,
                                                      .peer = peer,
                                                      .lane = lane,
                                                      .roff = roff,
                                                      .value = value,
                                                      .counter = counter,
                                                      .writes = writes});
    if (did > 0)
        call->remote[peer].seq[lane] = seq;
}

/* An address in the mirror's block for peer, as an offset in the peer's control window. */
static uint64_t remote_offset(const mpix_ep_call *call, int peer, const void *at) {
    const mpix_ep *ep = call->ep;
    uint64_t off = (uint64_t)((const char *)at - ep->remote->mirror);
    return off - ep->layout.block * (uint64_t)peer + ep->layout.block * (uint64_t)ep->rank;
}

void mpix_ep_remote_publish(mpix_ep_call *call, int peer, void *at, size_t bytes,
                            _Atomic uint64_t *word) {
    uint32_t counter = counter_publish(call, word == &mpix_ep_peer_words(call, peer)->bases);
    if (mpix_ep_remote_put(call, peer, 0, MPIX_EP_WINDOW_MIRROR,
                           (uint64_t)((char *)at - call->ep->remote->mirror), MPIX_EP_WINDOW_CTL,
                           remote_offset(call, peer, at), bytes, counter))
        mpix_ep_remote_word(call, peer, 0, remote_offset(call, peer, word), call->epoch, counter,
                            1);
}

void mpix_ep_remote_signal(mpix_ep_call *call, int peer, int32_t status) {
    mpix_ep_remote *remote = call->ep->remote;
    mpix_ep_words *words = mpix_ep_peer_words(call, peer);
    mpix_ep_status *there = mpix_ep_peer_status(call, peer);
    int32_t *mine = call->type == MPIX_EP_DISPATCH ? &there->dispatch : &there->combine;
    /* The peer's status holds what was last put there, which is what the mirror holds: it travels
     * only when it changes. */
    int changed = *mine != status;
    *mine = status;
    if (changed && !mpix_ep_remote_put(call, peer, 0, MPIX_EP_WINDOW_MIRROR,
                                       (uint64_t)((char *)mine - remote->mirror),
                                       MPIX_EP_WINDOW_CTL, remote_offset(call, peer, mine),
                                       sizeof *mine, mpix_ep_remote_counter(call, 0)))
        return;
    call->remote[peer].writes[0] += (uint32_t)changed;
    for (int l = 0; l < remote->lanes; l++) {
        void *word = call->type == MPIX_EP_DISPATCH ? &words->dispatch[l] : &words->combine[l];
        mpix_ep_remote_word(call, peer, l, remote_offset(call, peer, word), call->epoch,
                            mpix_ep_remote_counter(call, l), call->remote[peer].writes[l]);
    }
}

/* The only thing that is still sent; a peer that takes nothing any more learns by
 * its time limit. */
void mpix_ep_remote_tell(mpix_ep *ep, uint64_t word) {
    mpix_ep_remote *remote = ep->remote;
    if (!remote || !remote->ready)
        return;
    for (int peer = 0; peer < ep->size; peer++)
        if (remote->is[peer])
            (void)mpix_proxy_last_word(remote->proxy, peer, 0, MPIX_EP_WINDOW_CTL,
                                       offsetof(mpix_ep_head, failed), word,
                                       (uint32_t)remote->counter_failed);
    mpix_proxy_step(remote->proxy);
}

int mpix_ep_remote_owed(const mpix_ep_call *call, int peer) {
    const mpix_ep_remote *remote = call->ep->remote;
    for (int l = 0; remote->is[peer] && l < remote->lanes; l++)
        if (mpix_proxy_completed(remote->proxy, peer, l) < call->remote[peer].seq[l])
            return 1;
    return 0;
}

int mpix_ep_remote_flushed(const mpix_ep_call *call) {
    for (int p = 0; p < call->ep->size; p++)
        if (mpix_ep_remote_owed(call, p))
            return 0;
    return 1;
}

/* ---- batches --------------------------------------------------------------------------------- */

mpix_ep_geometry mpix_ep_remote_geometry(const mpix_ep_call *call, const MPIX_Ep_rows *x,
                                         int64_t hidden, size_t record) {
    mpix_ep_geometry g = {.row = mpix_ep_row_bytes(x, hidden),
                          .scales = mpix_ep_scale_bytes(x, hidden)};
    g.pitch = mpix_ep_up16(g.row);
    g.scale_pitch = mpix_ep_up16(g.scales);
    g.record = mpix_ep_up16(record);
    g.item = g.pitch + g.scale_pitch + g.record;
    g.per_chunk = (int64_t)(call->ep->remote->chunk_bytes / g.item);
    return g;
}

void mpix_ep_remote_at(const mpix_ep_geometry *g, char *base, int64_t total, int64_t i, char **row,
                       char **scales, char **record) {
    int64_t chunk = i / g->per_chunk, in = i % g->per_chunk, n = total - chunk * g->per_chunk;
    n = n < g->per_chunk ? n : g->per_chunk;
    base += (size_t)(chunk * g->per_chunk) * g->item;
    *row = base + (size_t)in * g->pitch;
    *scales = base + (size_t)n * g->pitch + (size_t)in * g->scale_pitch;
    *record = base + (size_t)n * (g->pitch + g->scale_pitch) + (size_t)in * g->record;
}

size_t mpix_ep_remote_regions(mpix_ep_call *call, const mpix_ep_geometry *g, const int64_t *totals,
                              size_t stage) {
    const mpix_ep *ep = call->ep;
    for (int p = 0; p < ep->size; p++) {
        call->remote[p].rx = UINT64_MAX;
        if (!ep->remote->is[p] || totals[p] == 0)
            continue;
        stage = (stage + 63) & ~(size_t)63;
        call->remote[p].rx = stage;
        stage += (size_t)totals[p] * g->item;
    }
    return stage;
}

int mpix_ep_remote_begin(mpix_ep_call *call) {
    mpix_ep_remote *remote = call->ep->remote;
    if (remote->packing == call)
        return 1;
    if (remote->packing)
        return 0;
    remote->packing = call;
    for (int p = 0; p < call->ep->size; p++) {
        const mpix_ep_plan *plan = call->handle->plan;
        mpix_ep_remote_call *f = &call->remote[p];
        int granted = remote->is[p] && mpix_ep_my_offer(call, p)->place[MPIX_EP_PLACE_X].set;
        f->total = !granted                         ? 0
                   : call->type == MPIX_EP_DISPATCH ? plan->send_tokens[p]
                                                    : plan->recv_rank[p];
        f->next = 0;
        f->chunk = -1;
    }
    return 1;
}

void mpix_ep_remote_release(mpix_ep_call *call) {
    mpix_ep_remote *remote = call->ep->remote;
    if (!remote || remote->packing != call)
        return;
    for (int c = 0; c < remote->nchunks; c++)
        if (remote->chunks[c].state == MPIX_EP_CHUNK_OPEN)
            remote->chunks[c].state = MPIX_EP_CHUNK_FREE; /* of a call that failed half-way */
    remote->packing = NULL;
}

int mpix_ep_remote_room(mpix_ep_call *call, int peer) {
    mpix_ep_remote *remote = call->ep->remote;
    mpix_ep_remote_call *f = &call->remote[peer];
    if (f->chunk >= 0)
        return 1;
    for (int c = 0; c < remote->nchunks; c++) {
        mpix_ep_chunk *chunk = &remote->chunks[c];
        if (chunk->state == MPIX_EP_CHUNK_OPEN ||
            (chunk->state == MPIX_EP_CHUNK_POSTED &&
             mpix_proxy_completed(remote->proxy, chunk->peer, chunk->lane) < chunk->seq))
            continue;
        chunk->state = MPIX_EP_CHUNK_OPEN;
        f->chunk = c;
        return 1;
    }
    return 0;
}

void mpix_ep_remote_item(mpix_ep_call *call, int peer, const mpix_ep_geometry *g, char **row,
                         char **scales, char **record) {
    mpix_ep_remote *remote = call->ep->remote;
    const mpix_ep_remote_call *f = &call->remote[peer];
    int64_t first = f->next / g->per_chunk * g->per_chunk, n = f->total - first;
    /* a chunk on its own is a batch of at most per_chunk items */
    mpix_ep_remote_at(g, remote->tx + (size_t)f->chunk * remote->chunk_bytes,
                      n < g->per_chunk ? n : g->per_chunk, f->next - first, row, scales, record);
}

void mpix_ep_remote_packed(mpix_ep_call *call, int peer, const mpix_ep_geometry *g,
                           const mpix_ep_remote_rows *own) {
    mpix_ep_remote *remote = call->ep->remote;
    mpix_ep_remote_call *f = &call->remote[peer];
    int64_t first = f->next / g->per_chunk * g->per_chunk;
    f->next++;
    if (f->next < f->total && f->next % g->per_chunk)
        return;
    mpix_ep_chunk *chunk = &remote->chunks[f->chunk];
    uint64_t to = mpix_ep_my_offer(call, peer)->place[MPIX_EP_PLACE_X].off +
                  (uint64_t)first * g->item,
             n = (uint64_t)(f->next - first);
    uint64_t rows = own ? n * g->pitch : 0; /* bytes that are not in the chunk */
    int lane = (int)(first / g->per_chunk % remote->lanes), sent = 1;
    uint32_t counter = mpix_ep_remote_counter(call, lane);
    /* a device reads the chunk: nothing may linger in write-combining buffers */
    call->ep->rows->fence();
    chunk->state = MPIX_EP_CHUNK_FREE;
    if (own && own->n > first) {
        uint64_t left = (uint64_t)(own->n - first), at = (uint64_t)first * g->pitch,
                 bytes = (left < n ? left : n) * g->pitch;
        if (own->there)
            sent = remote_write(call, peer, lane,
                                mpix_proxy_window_mem(remote->proxy, MPIX_EP_WINDOW_TX),
                                remote->tx + (uint64_t)f->chunk * remote->chunk_bytes, own->there,
                                own->off + at, bytes, counter);
        else
            sent = remote_write(call, peer, lane, own->mem, own->at + at,
                                mpix_proxy_window_rmem(remote->proxy, peer, MPIX_EP_WINDOW_STAGE),
                                to, bytes, counter);
        f->writes[lane] += (uint32_t)sent;
    }
    if (sent && !(own && own->bare) &&
        mpix_ep_remote_put(call, peer, lane, MPIX_EP_WINDOW_TX,
                           (uint64_t)f->chunk * remote->chunk_bytes + rows, MPIX_EP_WINDOW_STAGE,
                           to + rows, n * g->item - rows, counter)) {
        f->writes[lane]++;
        *chunk = (mpix_ep_chunk){MPIX_EP_CHUNK_POSTED, peer, lane, f->seq[lane]};
    }
    f->chunk = -1;
}
