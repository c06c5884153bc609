/* forward.c - two hops: who forwards for whom, rings, credit, and the choice between one hop and
 * two. The argument is in host/forward.h. */
#include "config.h"

#include "coll/host/forward.h"

#include <stdlib.h>

/* of the chunks for partial sums, unless single rows are larger */
#define OUT_LIMIT ((size_t)64 << 20)

/* ---- who forwards for whom ------------------------------------------------------------------- */

typedef struct hosts {
    int *place;  /* [ranks] among the ranks of its host */
    int *size;   /* [hosts] */
    int *first;  /* [hosts] into members */
    int *member; /* [ranks] host by host, ranks ascending */
} hosts;

static void hosts_free(hosts *h) {
    free(h->place);
    free(h->size);
    free(h->first);
    free(h->member);
}

static int hosts_make(const mpix_boot *boot, hosts *h) {
    *h = (hosts){calloc((size_t)boot->size, sizeof(int)), calloc((size_t)boot->nhosts, sizeof(int)),
                 calloc((size_t)boot->nhosts, sizeof(int)),
                 calloc((size_t)boot->size, sizeof(int))};
    if (!h->place || !h->size || !h->first || !h->member)
        return 0;
    for (int r = 0; r < boot->size; r++)
        h->place[r] = h->size[boot->host_of[r]]++;
    for (int i = 1; i < boot->nhosts; i++)
        h->first[i] = h->first[i - 1] + h->size[i - 1];
    for (int r = 0; r < boot->size; r++)
        h->member[h->first[boot->host_of[r]] + h->place[r]] = r;
    return 1;
}

static int forwarder_of(const hosts *h, int rank, int host) {
    return h->member[h->first[host] + h->place[rank] % h->size[host]];
}

/* The same without tables. */
int mpix_ep_forwarder(const mpix_boot *boot, int rank, int host) {
    int place = 0, n = 0, r = 0;
    for (int p = 0; p < boot->size; p++) {
        place += p < rank && boot->host_of[p] == boot->host_of[rank];
        n += boot->host_of[p] == host;
    }
    for (place %= n; boot->host_of[r] != host || place-- > 0; r++)
        ;
    return r;
}

/* Rings lie at the beginning of the forwarder's staging window, sources ascending. */
static void forward_pairs_find(mpix_ep *ep, const hosts *h, size_t ring_bytes) {
    mpix_ep_forward *forward = ep->forward;
    const int *host_of = ep->boot->host_of;
    for (int i = 0; i < ep->boot->nhosts; i++) {
        forward->forwarder[i] = i == host_of[ep->rank] ? -1 : forwarder_of(h, ep->rank, i);
        forward->ring[i] = 0;
        for (int r = 0; r < ep->rank && forward->forwarder[i] >= 0; r++)
            if (host_of[r] != i && forwarder_of(h, r, i) == forward->forwarder[i])
                forward->ring[i] += ring_bytes;
    }
    for (int r = 0; r < ep->size; r++) {
        forward->serves[r] = -1;
        if (host_of[r] != host_of[ep->rank] && forwarder_of(h, r, host_of[ep->rank]) == ep->rank)
            forward->serves[r] = forward->nsources++;
    }
}

static int forward_alloc(mpix_ep *ep, mpix_ep_forward *forward, size_t chunk) {
    size_t ranks = (size_t)ep->size, nhosts = (size_t)ep->boot->nhosts;
    forward->chunks = ep->params.two_hops_chunks;
    forward->forwarder = malloc(nhosts * sizeof *forward->forwarder);
    forward->ring = malloc(nhosts * sizeof *forward->ring);
    forward->serves = malloc(ranks * sizeof *forward->serves);
    forward->sent = calloc(ranks, sizeof *forward->sent);
    forward->taken = calloc(ranks, sizeof *forward->taken);
    forward->at = calloc(ranks, sizeof *forward->at);
    forward->order = malloc(((size_t)ep->config.max_topk + 1) * sizeof *forward->order);
    hosts h = {0};
    int kind = 0;
    if (!forward->forwarder || !forward->ring || !forward->serves || !forward->sent ||
        !forward->taken || !forward->at || !forward->order || !hosts_make(ep->boot, &h))
        kind = mpix_fail(MPIX_ERRK_NO_MEM, "two_hops", "no memory for two hops between %d ranks",
                         ep->size);
    else
        forward_pairs_find(ep, &h, chunk * (size_t)forward->chunks);
    hosts_free(&h);
    if (kind)
        return kind;
    forward->nout = 2 * forward->nsources + 2;
    if ((size_t)forward->nout > OUT_LIMIT / chunk)
        forward->nout = OUT_LIMIT / chunk > 2 ? (int)(OUT_LIMIT / chunk) : 2;
    forward->out_bytes = (chunk * (size_t)forward->nout + 4095) / 4096 * 4096;
    forward->outs = calloc((size_t)forward->nout, sizeof *forward->outs);
    return forward->outs ? 0
                         : mpix_fail(MPIX_ERRK_NO_MEM, "two_hops",
                                     "no memory for %d chunks of partial sums", forward->nout);
}

int mpix_ep_forward_out(mpix_ep *ep) {
    mpix_ep_forward *forward = ep->forward;
    if (!forward)
        return 0;
    forward->out = aligned_alloc(4096, forward->out_bytes);
    if (!forward->out)
        return mpix_fail(MPIX_ERRK_NO_MEM, "two_hops", "no memory for partial sums (%zu bytes)",
                         forward->out_bytes);
    memset(forward->out, 0, forward->out_bytes);
    return 0;
}

int mpix_ep_forward_create(mpix_ep *ep) {
    const mpix_boot *boot = ep->boot;
    int shared = 0, unused;
    for (int r = 1; r < boot->size && !shared; r++) /* hosts are numbered by their lowest rank */
        for (int q = 0; q < r && !shared; q++)
            shared = boot->host_of[q] == boot->host_of[r];
    if (boot->nhosts < 2 || ep->params.two_hops == MPIX_HOPS_OFF ||
        (ep->params.two_hops == MPIX_HOPS_AUTO && !shared) || ep->config.memkind == MPIX_EP_CUDA)
        return 0;
    ep->forward = calloc(1, sizeof *ep->forward);
    if (!ep->forward)
        return mpix_fail(MPIX_ERRK_NO_MEM, "two_hops", "no memory for two hops");
    size_t chunk = mpix_ep_remote_chunks(&ep->config, &ep->params, ep->size, &unused);
    int kind = forward_alloc(ep, ep->forward, chunk);
    if (!kind)
        ep->ht->banks_at =
            (chunk * (size_t)ep->forward->chunks * (size_t)ep->forward->nsources + 4095) / 4096 *
            4096;
    return kind;
}

void mpix_ep_forward_free(mpix_ep *ep) {
    mpix_ep_forward *forward = ep->forward;
    if (!forward)
        return;
    free(forward->forwarder);
    free(forward->ring);
    free(forward->serves);
    free(forward->sent);
    free(forward->taken);
    free(forward->at);
    free(forward->order);
    free(forward->out);
    free(forward->outs);
    free(forward->rows);
    free(forward);
    ep->forward = NULL;
}

/* ---- route: one hop or two ------------------------------------------------------------------- */

int mpix_ep_forward_next(const mpix_ep_call *call, int64_t t, int64_t *i) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->type == MPIX_EP_ROUTE ? call->plan : call->handle->plan;
    const int *host_of = ep->boot->host_of;
    for (; *i < plan->first[t + 1]; ++*i) {
        int host = host_of[plan->entries[*i].rank], met = host == host_of[ep->rank];
        for (int64_t j = plan->first[t]; j < *i && !met; j++)
            met = host_of[plan->entries[j].rank] == host;
        if (!met)
            return host;
    }
    return -1;
}

int mpix_ep_forward_plan(mpix_ep_call *call) {
    mpix_ep_plan *plan = call->plan;
    plan->send_hosts = calloc((size_t)call->ep->boot->nhosts, sizeof *plan->send_hosts);
    if (!plan->send_hosts)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory to count for %d hosts",
                         call->ep->boot->nhosts);
    for (int64_t t = 0; t < plan->tokens; t++)
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
            int host = mpix_ep_forward_next(call, t, &i);
            if (host < 0)
                break;
            plan->send_hosts[host]++;
        }
    return 0;
}

/* The same on all ranks, from counts that all have. Two hops cost a latency and the forwarders'
 * work, so they have to save a fifth of what crosses the network, and not too little. */
void mpix_ep_forward_choose(mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    mpix_ep_plan *plan = call->plan;
    uint64_t flat = 0, forwarded = 0;
    for (int r = 0; r < ep->size; r++)
        if (plan->total[r] >= MPIX_RECORD_NO_ROW) {
            if (ep->params.two_hops == MPIX_HOPS_ON)
                mpix_ep_call_fail(call, mpix_fail(MPIX_ERRK_UNSUPPORTED, "two_hops",
                                                  "rank %d would receive %lld rows: two hops carry "
                                                  "numbers of rows below 2^32",
                                                  r, (long long)plan->total[r]));
            return;
        }
    if (ep->params.two_hops == MPIX_HOPS_ON) {
        plan->two_hops = 1;
        return;
    }
    for (int s = 0; s < ep->size; s++) {
        const mpix_ep_counts *c = mpix_ep_my_counts(call, s);
        flat += (uint64_t)c->flat;
        forwarded += (uint64_t)c->forwarded;
    }
    plan->two_hops = forwarded + forwarded / 4 < flat &&
                     (double)(flat - forwarded) * (double)ep->config.max_row_bytes >=
                         (double)ep->params.two_hops_bytes * ep->size;
}

int64_t mpix_ep_forward_pairs(const mpix_ep_call *call, int peer) {
    int host = call->ep->boot->host_of[peer];
    return call->ep->forward->forwarder[host] == peer ? call->handle->plan->send_hosts[host] : 0;
}

/* ---- rings ----------------------------------------------------------------------------------- */

static mpix_ep_forward_words *my_words(const mpix_ep *ep, int peer) {
    return (mpix_ep_forward_words *)(void *)((char *)ep->ctl->base + ep->layout.forward) + peer;
}

/* Where the words that this rank writes are in a peer's control window. */
static uint64_t words_offset(const mpix_ep *ep, size_t field) {
    return ep->layout.forward + (uint64_t)ep->rank * sizeof(mpix_ep_forward_words) + field;
}

static uint32_t counter(const mpix_ep *ep, uint64_t i) {
    return (uint32_t)(ep->remote->counters_handle * ep->params.max_handles) + (uint32_t)i;
}

static char *chunk_at(const mpix_ep *ep, int source) {
    const mpix_ep_forward *forward = ep->forward;
    uint64_t n = (uint64_t)forward->serves[source] * (uint64_t)forward->chunks +
                 forward->taken[source] % (uint64_t)forward->chunks;
    return (char *)ep->stage->base + n * ep->remote->chunk_bytes;
}

const mpix_ep_forward_head *mpix_ep_forward_chunk(mpix_ep_call *call, int source) {
    mpix_ep *ep = call->ep;
    const mpix_ep_forward *forward = ep->forward;
    uint64_t taken = forward->taken[source];
    if (atomic_load_explicit(&my_words(ep, source)->arrived[taken % (uint64_t)forward->chunks],
                             memory_order_acquire) <= taken)
        return NULL;
    const mpix_ep_forward_head *head = (const void *)chunk_at(ep, source);
    return head->index == call->handle->index && head->type == call->type &&
                   head->epoch == call->epoch
               ? head
               : NULL;
}

int mpix_ep_forward_items(const mpix_ep_call *call, const mpix_ep_forward_head *head,
                          size_t bytes) {
    int64_t room = (int64_t)((call->ep->remote->chunk_bytes - sizeof *head) / bytes);
    return head->n < 0 ? 0 : head->n < room ? head->n : (int)room;
}

void mpix_ep_forward_passed(mpix_ep_call *call, int source) {
    mpix_ep *ep = call->ep;
    mpix_ep_forward *forward = ep->forward;
    uint64_t part = ((uint64_t)forward->chunks + 1) / 2, taken = ++forward->taken[source];
    forward->at[source] = 0;
    if (taken % part == 0)
        mpix_ep_remote_word(call, source, 0,
                            words_offset(ep, offsetof(mpix_ep_forward_words, credit)), taken,
                            counter(ep, MPIX_EP_MAX_FORWARD_CHUNKS + taken / part % 2), 0);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* The place of the next item for a forwarder, NULL: no room now. */
static char *item_place(mpix_ep_call *call, int peer, size_t bytes) {
    mpix_ep *ep = call->ep;
    mpix_ep_remote_call *f = &call->remote[peer];
    if (f->chunk < 0) {
        uint64_t credit = atomic_load_explicit(&my_words(ep, peer)->credit, memory_order_acquire);
        f->forward_blocked = ep->forward->sent[peer] - credit >= (uint64_t)ep->forward->chunks;
        if (f->forward_blocked || !mpix_ep_remote_room(call, peer))
            return NULL;
        f->next = 0;
    }
    return ep->remote->tx + (size_t)f->chunk * ep->remote->chunk_bytes + MPIX_EP_FORWARD_HEADER +
           (size_t)f->next * bytes;
}

/* The item is there: it is counted, and the chunk posted if it is full, or last. */
static void item_packed(mpix_ep_call *call, int peer, size_t bytes, int last) {
    mpix_ep *ep = call->ep;
    mpix_ep_remote *remote = ep->remote;
    mpix_ep_forward *forward = ep->forward;
    mpix_ep_remote_call *f = &call->remote[peer];
    size_t used = MPIX_EP_FORWARD_HEADER + (size_t)++f->next * bytes;
    if (!last && used + bytes <= remote->chunk_bytes)
        return;
    uint64_t entry = forward->sent[peer] % (uint64_t)forward->chunks,
             from = (uint64_t)f->chunk * remote->chunk_bytes;
    int lane = (int)(entry % (uint64_t)remote->lanes);
    mpix_ep_forward_head *head = (void *)(remote->tx + from);
    *head = (mpix_ep_forward_head){.epoch = call->epoch,
                                   .index = call->handle->index,
                                   .type = call->type,
                                   .n = (int32_t)f->next,
                                   .weighted = call->type == MPIX_EP_COMBINE &&
                                               call->combine.in.topk_weights};
    ep->rows->fence(); /* a device reads the chunk */
    mpix_ep_chunk *chunk = &remote->chunks[f->chunk];
    chunk->state = MPIX_EP_CHUNK_FREE;
    if (mpix_ep_remote_put(call, peer, lane, MPIX_EP_WINDOW_TX, from, MPIX_EP_WINDOW_STAGE,
                           forward->ring[ep->boot->host_of[peer]] + entry * remote->chunk_bytes,
                           used, counter(ep, entry))) {
        *chunk = (mpix_ep_chunk){MPIX_EP_CHUNK_POSTED, peer, lane, f->seq[lane]};
        forward->sent[peer]++;
        mpix_ep_remote_word(call, peer, lane,
                            words_offset(ep, offsetof(mpix_ep_forward_words, arrived)) + entry * 8,
                            forward->sent[peer], counter(ep, entry), 1);
    }
    f->chunk = -1;
}

int mpix_ep_forward_pack(mpix_ep_call *call, size_t bytes, mpix_ep_forward_write *write,
                         const void *how) {
    const mpix_ep_plan *plan = call->handle->plan;
    if (!call->ht.forward_go || call->kind)
        return MPIX_EP_STEP_COMPLETE;
    if (!mpix_ep_remote_begin(call))
        return MPIX_EP_STEP_WAITING;
    size_t packed = 0;
    for (; call->at < plan->tokens; call->at++, call->ht.forward_entry = 0) {
        int64_t t = call->at, i = plan->first[t] + call->ht.forward_entry;
        for (int host; (host = mpix_ep_forward_next(call, t, &i)) >= 0; i++) {
            int peer = call->ep->forward->forwarder[host];
            call->ht.forward_entry = i - plan->first[t];
            char *to = packed > MPIX_EP_FORWARD_PIECE ? NULL : item_place(call, peer, bytes);
            if (!to)
                return packed ? MPIX_EP_STEP_WORKED : MPIX_EP_STEP_WAITING;
            write(call, t, host, how, to);
            item_packed(call, peer, bytes,
                        ++call->remote[peer].forward_packed == plan->send_hosts[host]);
            packed += bytes;
        }
    }
    mpix_ep_remote_release(call);
    return MPIX_EP_STEP_COMPLETE;
}

size_t mpix_ep_forward_record_size(const mpix_ep_call *call) {
    return mpix_ep_up16(mpix_record_bytes(MPIX_RECORD_HOST, MPIX_RECORD_FORWARD,
                                          (size_t)call->handle->plan->width));
}

void mpix_ep_forward_record_write(const mpix_ep_call *call, int64_t t, int host,
                                  const float *weights, char *to) {
    const mpix_ep *ep = call->ep;
    const mpix_ep_plan *plan = call->handle->plan;
    const int32_t *ids = plan->ids + t * plan->topk;
    int topk = plan->topk;
    int32_t *there = mpix_record_int(to, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_ID, topk, 0),
            *rows = mpix_record_int(to, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_ROW, topk, 0);
    float *w = mpix_record_float(to, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_WEIGHT, topk, 0);
    *(int32_t *)(void *)to = (int32_t)t;
    for (int k = 0; k < topk; k++) {
        there[k] = ids[k] >= 0 && ep->boot->host_of[ep->placement.owner[ids[k]]] == host ? ids[k]
                                                                                         : -1;
        rows[k] = (int32_t)MPIX_RECORD_NO_ROW;
    }
    for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
        const mpix_ep_entry *e = &plan->entries[i];
        if (ep->boot->host_of[e->rank] == host)
            rows[e->choice] = (int32_t)(uint32_t)e->row;
    }
    if (weights)
        memcpy(w, weights + t * topk, (size_t)topk * sizeof *weights);
    else
        memset(w, 0, (size_t)topk * sizeof *weights);
}

/* ---- calls ----------------------------------------------------------------------------------- */

void mpix_ep_forward_begin(mpix_ep_call *call, int go) {
    mpix_ep *ep = call->ep;
    call->ht.forward_go = go;
    for (int s = 0; s < ep->size; s++) {
        mpix_ep_remote_call *f = &call->remote[s];
        const mpix_ep_offer *o = mpix_ep_my_offer(call, s);
        f->forward_left = go && ep->forward->serves[s] >= 0 ? (int64_t)o->pairs : 0;
        f->forward_done = f->forward_item = f->forward_packed = 0;
        f->forward_place = o->place[MPIX_EP_PLACE_X].off;
        f->forward_blocked = 0;
    }
    call->at = call->ht.forward_entry = 0;
}

/* A source that failed after all offers were here sends nothing, and says so. */
static int gave_up(mpix_ep_call *call, int source) {
    const mpix_ep_status *status = mpix_ep_my_status(call, source);
    return mpix_ep_signalled(call, source) &&
           (call->type == MPIX_EP_DISPATCH ? status->dispatch : status->combine);
}

int mpix_ep_forward_served(mpix_ep_call *call) {
    int left = 0;
    for (int s = 0; s < call->ep->size; s++) {
        if (call->remote[s].forward_left > 0 && gave_up(call, s))
            call->remote[s].forward_left = 0;
        left |= call->remote[s].forward_left > 0;
    }
    return !left;
}

void mpix_ep_forward_mark(mpix_ep_call *call) {
    for (int p = 0; p < call->ep->size; p++)
        call->seen[p] = call->remote[p].forward_left == 0 && !call->remote[p].forward_blocked;
    call->waiting = 1;
}

int mpix_ep_forward_mine(const mpix_ep_call *call, int source) {
    return call->ep->forward->serves[source] >= 0;
}
