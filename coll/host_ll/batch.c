/* batch.c - low latency: where batches lie, how they and the words about them are published and
 * seen. The rules are in host_ll/ll.h. */
#include "config.h"

#include "coll/host_ll/ll.h"
#include "coll/host/remote.h"

static int is_combine(const mpix_ep_call *call) { return call->type == MPIX_EP_COMBINE; }

static size_t bank_of(const mpix_ep_call *call) {
    return call->epoch % (uint64_t)call->ep->config.depth;
}

/* The call's word in the block `block` of the control window at base: arrived or taken. */
static _Atomic uint64_t *word_at(const mpix_ep_call *call, char *base, int block, int taken) {
    const mpix_ep_ctl_layout *l = &call->ep->layout;
    size_t depth = (size_t)call->ep->config.depth,
           word = ((size_t)taken * 2 + (size_t)is_combine(call)) * depth + bank_of(call);
    return (_Atomic uint64_t *)(void *)(base + l->handles_at +
                                        l->handle * (size_t)call->handle->index +
                                        l->block * (size_t)block) +
           word;
}

static mpix_ep_ll_offer *offer_at(const mpix_ep_call *call, char *base, int block) {
    const mpix_ep_ctl_layout *l = &call->ep->layout;
    return (mpix_ep_ll_offer *)(void *)(base + l->handles_at +
                                        l->handle * (size_t)call->handle->index +
                                        l->block * (size_t)block + l->offers_dispatch) +
           bank_of(call);
}

void mpix_ep_ll_offer_send(mpix_ep_call *call, const mpix_ep_ll_offer *offer, int peer) {
    mpix_ep_ll_offer *to = offer_at(call, call->ep->ctl->peer[peer], call->ep->rank);
    const size_t behind = sizeof to->epoch;
    memcpy((char *)to + behind, (const char *)offer + behind, sizeof *offer - behind);
    atomic_store_explicit(&to->epoch, call->epoch, memory_order_release);
}

const mpix_ep_ll_offer *mpix_ep_ll_offer_seen(mpix_ep_call *call, int peer) {
    const mpix_ep_ll_offer *offer = offer_at(call, call->ep->ctl->base, peer);
    return atomic_load_explicit(&offer->epoch, memory_order_acquire) == call->epoch ? offer : NULL;
}

/* Written by peer, read here. */
static uint64_t my_word(const mpix_ep_call *call, int peer, int taken) {
    return atomic_load_explicit(word_at(call, call->ep->ctl->base, peer, taken),
                                memory_order_acquire);
}

/* The bank's offset in a store, and in the staging window. */
static size_t bank_in_store(const mpix_ep_call *call) {
    const mpix_ep_ll *ll = call->ep->ll;
    int type = is_combine(call);
    return ll->at[type] + ll->bank[type] * bank_of(call);
}

char *mpix_ep_ll_bank(const mpix_ep_call *call, int peer) {
    const mpix_ep *ep = call->ep;
    char *base = peer == ep->rank ? ep->stage->base : ep->stage->peer[peer];
    return base + ep->ll->store_bytes * (size_t)call->handle->index + bank_in_store(call);
}

mpix_ep_ll_shape mpix_ep_ll_shape_of(int64_t n, size_t record, size_t scales, size_t row,
                                     int flags) {
    mpix_ep_ll_shape s = {.record = record,
                          .scales = mpix_ep_up16(scales),
                          .row = row % 64 ? mpix_ep_up16(row) : row};
    size_t rows = (size_t)n;
    s.flags_at = sizeof(mpix_ep_ll_batch);
    s.records_at = s.flags_at +
                   (flags ? mpix_ep_up64((rows + MPIX_EP_LL_BLOCK - 1) / MPIX_EP_LL_BLOCK * 8) : 0);
    s.scales_at = s.records_at + mpix_ep_up64(rows * record);
    s.rows_at = s.scales_at + mpix_ep_up64(rows * s.scales);
    s.bytes = s.rows_at + rows * s.row;
    return s;
}

/* ---- commands to the proxy ------------------------------------------------------------------- */

static int lane_of(const mpix_ep_call *call) {
    return call->handle->index % call->ep->remote->lanes;
}

/* Four counters per bank: batches and taken words of both types. */
static uint32_t counter_of(const mpix_ep_call *call, int taken) {
    int depth = call->ep->config.depth;
    return (uint32_t)(call->handle->index * 4 * depth + (taken * 2 + is_combine(call)) * depth +
                      (int)bank_of(call));
}

static void remote_signal(mpix_ep_call *call, int peer, int taken, uint64_t value,
                          uint32_t writes) {
    mpix_ep *ep = call->ep;
    uint64_t at =
        (uint64_t)((char *)word_at(call, ep->ctl->base, ep->rank, taken) - (char *)ep->ctl->base);
    mpix_ep_remote_word(call, peer, lane_of(call), at, value, counter_of(call, taken), writes);
}

/* One put and one signal, whatever the number of tokens. */
static void remote_send(mpix_ep_call *call, int peer) {
    mpix_ep *ep = call->ep;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    const mpix_ep_ll_store *store = &ep->ll->stores[call->handle->index];
    uint64_t place = is_combine(call) ? call->handle->ll->reply[peer]
                                      : ep->ll->region * (uint64_t)ep->rank;
    mpix_net_op op = {.op = MPIX_NET_WRITE,
                      .peer = (uint16_t)peer,
                      .lane = (uint8_t)lane_of(call),
                      .local = part->to,
                      .roff = bank_in_store(call) + place,
                      .len = part->out.bytes,
                      .counter = (int32_t)counter_of(call, 0)};
    /* otherwise the engine finds the peer's failure */
    if (mpix_ep_remote_post(call, &op, store->tx_mem, store->rmem[peer]))
        remote_signal(call, peer, 0, call->epoch, 1);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Whether the send buffer is free: earlier calls of this type have sent, and what they queued is
 * complete, which needs no peer's part. In the order of the calls, or two ranks could hold each
 * other up with different ones. */
static int tx_free(const mpix_ep_call *call) {
    for (const mpix_ep_call *c = call->ep->first; c != call; c = c->next)
        if (c->handle == call->handle && c->type == call->type &&
            (c->state == 0 || !mpix_ep_remote_flushed(c)))
            return 0;
    return 1;
}

int mpix_ep_ll_start(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    uint64_t depth = (uint64_t)ep->config.depth;
    if (!mpix_ep_call_ready(call) || (ep->remote && !tx_free(call)))
        return 0;
    if (!call->waiting)
        mpix_ep_peers_reset(call);
    for (int p = 0; p < ep->size; p++) {
        if (call->seen[p] || (p != ep->rank && call->epoch > depth &&
                              !mpix_ep_ll_peer_took(call, p, call->epoch - depth)))
            continue;
        call->seen[p] = 1;
        call->nseen++;
    }
    if (call->nseen < ep->size)
        return 0;
    call->waiting = 0;
    return 1;
}

int mpix_ep_ll_peer_took(mpix_ep_call *call, int peer, uint64_t epoch) {
    return my_word(call, peer, 1) >= epoch;
}

void mpix_ep_ll_head_send(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head) {
    mpix_ep_ll_batch *to = (mpix_ep_ll_batch *)(void *)mpix_ep_ll_parts(call)[peer].to;
    to->head = *head;
    atomic_store_explicit(&to->epoch, mpix_ep_ll_mark(call->epoch), memory_order_release);
}

/* What a proxy sends is read here again. */
int mpix_ep_ll_streams(const mpix_ep *ep, size_t bytes) {
    return bytes > (ep->remote ? ep->stream_bytes : ep->stream_peers);
}

void mpix_ep_ll_row_sent(mpix_ep_call *call, int peer) {
    mpix_ep *ep = call->ep;
    mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    part->sent++;
    if (peer == ep->rank || mpix_ep_is_remote(ep, peer) ||
        (part->sent % MPIX_EP_LL_BLOCK && part->sent < part->total))
        return;
    if (call->ll.streaming)
        ep->rows->fence(); /* a release store does not order streaming stores */
    _Atomic uint64_t *flags = (_Atomic uint64_t *)(void *)(part->to + part->out.flags_at);
    atomic_store_explicit(&flags[(part->sent - 1) / MPIX_EP_LL_BLOCK],
                          mpix_ep_ll_mark(call->epoch) |
                              (part->direct_block ? MPIX_EP_LL_DIRECT : 0),
                          memory_order_release);
}

void mpix_ep_ll_batches_end(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    if (ep->remote && call->ll.streaming)
        ep->rows->fence(); /* a device reads it: nothing may linger in write-combining buffers */
    for (int i = 1; i < ep->size; i++) {
        int peer = (ep->rank + i) % ep->size;
        if (mpix_ep_is_remote(ep, peer))
            remote_send(call, peer);
        else
            mpix_doorbell_ring(ep->ctl->peer[peer]);
    }
}

#define STATUS_SHIFT 56
#define EPOCH_MASK ((UINT64_C(1) << STATUS_SHIFT) - 1)

void mpix_ep_ll_fail_send(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    uint64_t value = call->epoch | (uint64_t)call->kind << STATUS_SHIFT;
    for (int p = 0; p < ep->size; p++) {
        mpix_ep_ll_parts(call)[p] = (mpix_ep_ll_part){.n = -1};
        if (p == ep->rank)
            continue;
        if (mpix_ep_is_remote(ep, p)) {
            remote_signal(call, p, 0, value, 0);
            continue;
        }
        atomic_store_explicit(word_at(call, ep->ctl->peer[p], ep->rank, 0), value,
                              memory_order_release);
        mpix_doorbell_ring(ep->ctl->peer[p]);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

const mpix_ep_ll_head *mpix_ep_ll_head_seen(mpix_ep_call *call, int peer, int32_t *status) {
    mpix_ep *ep = call->ep;
    mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    size_t place = is_combine(call) ? (size_t)call->handle->ll->answer[peer]
                                    : ep->ll->region * (size_t)peer;
    const mpix_ep_ll_batch *batch =
        (const mpix_ep_ll_batch *)(const void *)(mpix_ep_ll_bank(call, ep->rank) + place);
    uint64_t arrived = my_word(call, peer, 0);
    *status = 0;
    if (peer == ep->rank) {
        *status = part->to ? 0 : call->kind;
        arrived = part->to ? call->epoch : 0;
    } else if ((arrived & EPOCH_MASK) == call->epoch) {
        *status = (int32_t)(arrived >> STATUS_SHIFT);
    } else if (!mpix_ep_is_remote(ep, peer)) {
        arrived = atomic_load_explicit(&batch->epoch, memory_order_acquire) ==
                          mpix_ep_ll_mark(call->epoch)
                      ? call->epoch
                      : 0;
    }
    if (*status || arrived != call->epoch)
        return NULL;
    part->from = (const char *)batch;
    return &batch->head;
}

int64_t mpix_ep_ll_rows_seen(const mpix_ep_call *call, int peer) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    int64_t block = part->done / MPIX_EP_LL_BLOCK;
    if (part->n <= 0)
        return 0;
    if (peer == ep->rank || mpix_ep_is_remote(ep, peer) || part->pulled)
        return part->n;
    _Atomic uint64_t *flags = (_Atomic uint64_t *)(uintptr_t)(part->from + part->in.flags_at);
    uint64_t mark = mpix_ep_ll_mark(call->epoch);
    while (block * MPIX_EP_LL_BLOCK < part->n &&
           (atomic_load_explicit(&flags[block], memory_order_acquire) & ~MPIX_EP_LL_DIRECT) == mark)
        block++;
    return block * MPIX_EP_LL_BLOCK < part->n ? block * MPIX_EP_LL_BLOCK : part->n;
}

int mpix_ep_ll_row_direct(const mpix_ep_call *call, int peer, int64_t i) {
    const mpix_ep_ll_part *part = &mpix_ep_ll_parts(call)[peer];
    if (peer == call->ep->rank || mpix_ep_is_remote(call->ep, peer))
        return 0;
    _Atomic uint64_t *flags = (_Atomic uint64_t *)(uintptr_t)(part->from + part->in.flags_at);
    return (atomic_load_explicit(&flags[i / MPIX_EP_LL_BLOCK], memory_order_relaxed) &
            MPIX_EP_LL_DIRECT) != 0;
}

void mpix_ep_ll_taken(mpix_ep_call *call, int peer) {
    mpix_ep *ep = call->ep;
    if (peer == ep->rank)
        return;
    if (mpix_ep_is_remote(ep, peer)) {
        remote_signal(call, peer, 1, call->epoch, 0);
        return;
    }
    atomic_store_explicit(word_at(call, ep->ctl->peer[peer], ep->rank, 1), call->epoch,
                          memory_order_release);
    mpix_doorbell_ring(ep->ctl->peer[peer]);
}

void mpix_ep_ll_compare(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head, int64_t hidden,
                        int dtype, int scale_kind, const char *name) {
    const char *const args[] = {"in.hidden", name, "out.x.scale_kind"};
    const int64_t here[] = {hidden, dtype, scale_kind},
                  there[] = {head->hidden, head->dtype, head->scale_kind};
    for (int i = 0; i < 3; i++) {
        if (here[i] == there[i])
            continue;
        mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_ARG, args[i],
                                          "%s = %lld differs from %lld on rank %d (%s)", args[i],
                                          (long long)here[i], (long long)there[i], peer,
                                          call->ep->boot->hostnames[peer]));
        return;
    }
}
