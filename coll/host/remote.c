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

/* ---- commands -------------------------------------------------------------------------------- */

/* Counters of the counted form: one batch at a time each; wire.h says why a handle's bank is free,
 * and with it its counter. */
static uint32_t counter_publish(const mpix_ep_call *call, int bases) {
    const mpix_ep *ep = call->ep;
    int depth = ep->config.depth, base = call->handle->index * ep->remote->counters_handle;
    if (call->type == MPIX_EP_ROUTE)
        return (uint32_t)(base + (bases ? 2 : (int)(call->epoch & 1)));
    return (uint32_t)(base + mpix_ep_remote_route_counters(ep) +
                      (call->type == MPIX_EP_COMBINE) * depth +
                      (int)(call->epoch % (uint64_t)depth));
}

uint32_t mpix_ep_remote_counter(const mpix_ep_call *call, int lane) {
    const mpix_ep *ep = call->ep;
    int depth = ep->config.depth, base = call->handle->index * ep->remote->counters_handle +
                                         mpix_ep_remote_route_counters(ep) + 2 * depth;
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
