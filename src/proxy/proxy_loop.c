/*
 * proxy_loop.c - one turn of the proxy: take, post, poll, publish. It never blocks, never allocates
 * and never calls MPI.
 *
 * - take: commands go from the FIFO into their lanes' rings; there is room by the admission in
 *   proxy_queue.c. Here, in the order of the FIFO, operations are counted for the header of a
 *   counted batch: a batch is on one lane, so its signal is taken after its puts.
 * - post: every lane with work posts while it has credit, operations (the device's queue) and
 *   bytes. One operation larger than the byte credit goes when the lane is empty. Lanes take
 *   turns at being first.
 * - poll: the net says how many of a lane's oldest operations are complete; the ring says which
 *   commands those are.
 * - arrivals: a counted write is reported after its data can be read. A data write of counter c
 *   arrives as c, a header as counters + c, so the header's memory is read only after its own
 *   arrival was reported, in whatever order the network delivers.
 *
 * The counted batch is complete when its header is there and the count has reached header.writes,
 * which counts the header itself. Count and header flag are cleared before the word is stored with
 * release, and the source reuses a counter only after it knows that the word was seen: so no
 * arrival of the next batch can be counted to this one. Signals of a lane are published in the
 * order in which they were queued, as the ordered form does by itself: a word may name the epoch
 * through which all is there, and two batches with counters of their own may be complete in either
 * order. A batch that is complete too early is held; its header stays in the table.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/trace.h"
#include "proxy/proxy_internal.h"

static const char *loop_name(int op) {
    switch (op) {
    case MPIX_NET_WORD: return "signal";
    case MPIX_NET_READ: return "read";
    case MPIX_NET_ADD: return "add";
    default: return "write";
    }
}

/* Numbers are those of one part's queue. */
static uint64_t loop_trace_id(const proxy_part *part, uint64_t seq) {
    return seq | (uint64_t)part->index << 56;
}

/* A counted signal: the net gets the write of its header. */
static int loop_is_header(const mpix_request *r) {
    return r->net.op == MPIX_NET_WORD && r->net.counter >= 0;
}

/* ---- take ------------------------------------------------------------------------------------ */

static void loop_activate(proxy_part *part, int peer, int lane) {
    proxy_lane *l = &part->peers[peer].lanes[lane];

    if (!l->active) {
        l->active = 1;
        part->active[part->nactive++] = peer * part->nlanes + lane;
    }
}

/* Counts for the header; a signal whose number of puts is not what was queued is a defect that
 * would lose or never complete a batch. */
static int loop_count(proxy_part *part, proxy_peer *peer, proxy_work *work) {
    mpix_request *r = &work->request;
    proxy_tx *tx;

    if (r->net.counter < 0)
        return 0;
    tx = &peer->tx[r->net.counter];
    if (r->net.op == MPIX_NET_WRITE) {
        tx->puts++;
        tx->writes += work->total;
        return 0;
    }
    if (r->writes != tx->puts) {
        char text[128];
        snprintf(text, sizeof text, "a signal that ends %u puts follows %u (counter %d)", r->writes,
                 tx->puts, r->net.counter);
        proxy_latch(part, r->net.peer, MPIX_ERRK_INTERNAL, r->net.lane, text);
        return -1;
    }
    r->writes = tx->writes + 1;
    work->turn = peer->lanes[r->net.lane].signals++;
    tx->puts = tx->writes = 0;
    return 0;
}

/* Length of the operations that a command is cut into. */
static uint64_t loop_op_bytes(const proxy_part *part, const mpix_request *request) {
    return request->net.op == MPIX_NET_READ ? part->read_op : part->max_op;
}

/* A command of a failed peer is dropped: it was told to nobody as complete, and nobody
 * will post it. */
void proxy_queue_request(proxy_part *part, const mpix_request *request, uint64_t seq) {
    proxy_peer *peer = &part->peers[request->net.peer];
    proxy_lane *lane = &peer->lanes[request->net.lane];
    proxy_work *work = &lane->ring[lane->head & (part->depth - 1)];
    uint64_t op_bytes = loop_op_bytes(part, request), len = request->net.len;

    if (request->last && !part->latched) /* the order was given before it, and is seen with it */
        proxy_latch_all(part);
    if (atomic_load_explicit(&peer->failed, memory_order_relaxed) &&
        (!request->last || atomic_load_explicit(&peer->broken, memory_order_relaxed)))
        return;
    work->request = *request;
    work->seq = seq;
    work->posted = work->complete = 0;
    work->total = len <= op_bytes ? 1 : (uint32_t)((len - 1) / op_bytes + 1);
    if (part->counted && loop_count(part, peer, work))
        return;
    lane->head++;
    mpix_trace_begin("proxy", loop_name(request->net.op), loop_trace_id(part, seq),
                     request->net.peer, (int64_t)len);
    loop_activate(part, request->net.peer, request->net.lane);
}

static int loop_take(proxy_part *part) {
    uint64_t position = atomic_load_explicit(&part->fifo.tail, memory_order_relaxed);
    mpix_cmd cmds[PROXY_BATCH];
    int n = mpix_fifo_take(&part->fifo, cmds, PROXY_BATCH);

    for (int i = 0; i < n; i++) {
        if (mpix_cmd_op(&cmds[i]) == MPIX_CMD_DESC) {
            uint32_t index = mpix_cmd_index(&cmds[i]);
            proxy_queue_request(part, &part->descs.table[index].request,
                                position + (uint64_t)i + 1);
            mpix_descs_put(&part->descs, index);
        } else {
            const mpix_cmd *c = &cmds[i];
            mpix_request request = {.net = proxy_put_op(part, mpix_cmd_peer(c), mpix_cmd_lane(c),
                                                        mpix_cmd_lwin(c), mpix_cmd_loff(c),
                                                        mpix_cmd_rwin(c), mpix_cmd_roff(c),
                                                        mpix_cmd_len(c), mpix_cmd_counter(c))};
            proxy_queue_request(part, &request, position + (uint64_t)i + 1);
        }
    }
    return n;
}

/* ---- post ------------------------------------------------------------------------------------ */

/* Length of operation i of a command. */
static uint64_t loop_op_len(const proxy_part *part, const proxy_work *work, uint32_t i) {
    uint64_t most = loop_op_bytes(part, &work->request), at = (uint64_t)i * most;

    return work->request.net.len - at < most ? work->request.net.len - at : most;
}

/* The word's place in our part of the peer's table; the mirror entry was filled before. */
static void loop_header_op(proxy_part *part, proxy_peer *peer, const proxy_work *work,
                           mpix_net_op *op) {
    const mpix_request *r = &work->request;
    uint32_t counter = (uint32_t)r->net.counter;
    proxy_header *header = proxy_mirror(part, peer, counter);

    header->off = r->net.roff;
    header->value = r->net.value;
    header->window = r->window;
    header->writes = r->writes;
    header->lane = r->net.lane;
    header->turn = work->turn;
    op->op = MPIX_NET_WRITE;
    op->mem = part->mem[PROXY_TABLE_WINDOW];
    op->local = header;
    op->rmem = peer->rmem[PROXY_TABLE_WINDOW];
    op->roff = ((uint64_t)peer->remote_place * (uint64_t)part->counters + counter) * sizeof *header;
    op->len = sizeof *header;
    op->counter = part->counters + r->net.counter;
}

/* Operation i of a command, which is the command's own where it is the only one. */
static void loop_make_op(proxy_part *part, proxy_peer *peer, const proxy_work *work, uint32_t i,
                         mpix_net_op *op) {
    *op = work->request.net;
    if (work->total > 1) {
        uint64_t at = (uint64_t)i * loop_op_bytes(part, &work->request);
        op->local = (char *)op->local + at;
        op->roff += at;
        op->len = loop_op_len(part, work, i);
    } else if (loop_is_header(&work->request)) {
        loop_header_op(part, peer, work, op);
    }
}

/*
 * The operations that may go now, in order. A header waits until the last one from the same place
 * of the mirror is complete: its data must not change while the network may send them (again).
 */
static int loop_gather(proxy_part *part, proxy_peer *peer, proxy_lane *lane, mpix_net_op *ops) {
    uint64_t bytes = lane->bytes;
    int n = 0;

    for (uint64_t at = lane->post; at < lane->head && n < PROXY_BATCH; at++) {
        const proxy_work *work = &lane->ring[at & (part->depth - 1)];
        const mpix_request *r = &work->request;
        int header = loop_is_header(r);
        uint64_t credit = r->net.op == MPIX_NET_READ ? part->read_bytes : part->credit_bytes;
        for (uint32_t i = work->posted; i < work->total && n < PROXY_BATCH; i++) {
            uint64_t len = loop_op_len(part, work, i);
            if (r->fence && lane->ops + (uint32_t)n > 0)
                return n;
            if (lane->ops + (uint32_t)n >= part->credit_ops ||
                (bytes > 0 && bytes + len > credit) ||
                (header && peer->tx[r->net.counter].header_open))
                return n;
            loop_make_op(part, peer, work, i, &ops[n++]);
            bytes += len;
            if (header)
                peer->tx[r->net.counter].header_open = 1;
        }
    }
    return n;
}

/* The first n gathered operations were posted; headers among the rest give their places back. */
static void loop_account(proxy_part *part, proxy_peer *peer, proxy_lane *lane,
                         const mpix_net_op *ops, int gathered, int n) {
    uint64_t bytes = 0, seq = 0;

    for (int i = 0; i < n; i++) {
        proxy_work *work = &lane->ring[lane->post & (part->depth - 1)];
        uint64_t len = loop_op_len(part, work, work->posted);
        lane->bytes += len;
        bytes += len;
        if (++work->posted == work->total) {
            seq = work->seq;
            lane->post++;
        }
    }
    if (seq)
        atomic_store_explicit(&lane->posted_seq, seq, memory_order_release);
    lane->ops += (uint32_t)n;
    for (int i = n; i < gathered; i++)
        if (ops[i].counter >= part->counters)
            peer->tx[ops[i].counter - part->counters].header_open = 0;
    /* One writer: a load and a store are enough. */
    atomic_store_explicit(&peer->messages,
                          atomic_load_explicit(&peer->messages, memory_order_relaxed) + (uint64_t)n,
                          memory_order_relaxed);
    atomic_store_explicit(&peer->bytes,
                          atomic_load_explicit(&peer->bytes, memory_order_relaxed) + bytes,
                          memory_order_relaxed);
}

static int loop_post_lane(proxy_part *part, int peer_rank, int lane_index) {
    proxy_peer *peer = &part->peers[peer_rank];
    proxy_lane *lane = &peer->lanes[lane_index];
    mpix_net_op ops[PROXY_BATCH];
    int n = loop_gather(part, peer, lane, ops), posted;

    if (n == 0)
        return 0;
    posted = part->net->ops->post(part->net, ops, n);
    if (posted < 0) {
        proxy_latch(part, peer_rank, -posted, lane_index, mpix_error_tls()->text);
        lane->post = lane->head; /* also of a peer that was latched before: a last word */
        return 1;
    }
    loop_account(part, peer, lane, ops, n, posted);
    return posted > 0;
}

static int loop_post(proxy_part *part) {
    int happened = 0, n = part->nactive, first = n ? (int)(part->turns % (unsigned)n) : 0;

    for (int i = 0; i < n; i++) {
        int index = part->active[(first + i) % n];
        happened |= loop_post_lane(part, index / part->nlanes, index % part->nlanes);
    }
    for (int i = n - 1; i >= 0; i--) { /* lanes without work leave */
        int index = part->active[i];
        proxy_lane *lane = &part->peers[index / part->nlanes].lanes[index % part->nlanes];
        if (lane->post == lane->head) {
            lane->active = 0;
            part->active[i] = part->active[--part->nactive];
        }
    }
    return happened;
}

/* ---- poll ------------------------------------------------------------------------------------ */

static void loop_complete(proxy_part *part, const mpix_net_done *done) {
    proxy_peer *peer = &part->peers[done->peer];
    proxy_lane *lane = &peer->lanes[done->lane];
    uint64_t seq = 0, gpu_seq = 0, first = lane->done;

    if (atomic_load_explicit(&peer->failed, memory_order_relaxed))
        return;
    if ((uint32_t)done->n > lane->ops) {
        proxy_latch(part, done->peer, MPIX_ERRK_INTERNAL, done->lane,
                    "more completions than operations");
        return;
    }
    for (int i = 0; i < done->n; i++) {
        proxy_work *work = &lane->ring[lane->done & (part->depth - 1)];
        lane->bytes -= loop_op_len(part, work, work->complete);
        if (++work->complete < work->total)
            continue;
        if (loop_is_header(&work->request))
            peer->tx[work->request.net.counter].header_open = 0;
        if (work->request.gpu)
            gpu_seq = work->seq ? work->seq : gpu_seq;
        else
            seq = work->seq;
        mpix_trace_end("proxy", loop_name(work->request.net.op), loop_trace_id(part, work->seq));
        lane->done++;
    }
    lane->ops -= (uint32_t)done->n;
    if (lane->done == first)
        return;
    /* Release: whoever sees the number may reuse the buffers, and whoever sees the place in the
     * ring may be admitted to it. */
    if (seq)
        atomic_store_explicit(&lane->completed, seq, memory_order_release);
    if (gpu_seq)
        proxy_gpu_done(part, done->peer, done->lane, gpu_seq);
    atomic_store_explicit(&lane->retired, lane->done, memory_order_release);
    part->publish = 1;
}

static int loop_poll(proxy_part *part) {
    mpix_net_done done[PROXY_BATCH];
    int n = part->net->ops->poll(part->net, done, PROXY_BATCH);

    for (int i = 0; i < n; i++) {
        if (done[i].n > 0)
            loop_complete(part, &done[i]);
        if (done[i].kind)
            proxy_latch(part, done[i].peer, done[i].kind, done[i].lane, done[i].text);
    }
    return n > 0;
}

static proxy_header *loop_header(const proxy_part *part, const proxy_peer *peer, uint32_t counter) {
    return part->table + (size_t)peer->place * (size_t)part->counters + counter;
}

static int loop_header_valid(proxy_part *part, int rank, uint32_t counter,
                             const proxy_header *header) {
    char text[128];

    if ((int)header->lane < part->nlanes && header->window < MPIX_PROXY_WINDOWS &&
        header->off % 8 == 0 && part->bytes[header->window] >= 8 &&
        header->off <= part->bytes[header->window] - 8)
        return 1;
    snprintf(text, sizeof text,
             "a signal names the word at %" PRIu64 " of window %u on lane %u (counter %u)",
             (uint64_t)header->off, (unsigned)header->window, (unsigned)header->lane, counter);
    proxy_latch(part, rank, MPIX_ERRK_INTERNAL, 0, text);
    return 0;
}

static void loop_publish(proxy_part *part, proxy_peer *peer, uint32_t counter) {
    const proxy_header header = *loop_header(part, peer, counter);
    proxy_rx *rx = &peer->rx[counter];

    rx->count = 0;
    rx->header = rx->held = 0;
    peer->lanes[header.lane].arrived++;
    /* From here on the source may use the counter, and its place in the table, again. */
    atomic_store_explicit((_Atomic uint64_t *)(void *)(part->base[header.window] + header.off),
                          header.value, memory_order_release);
    part->publish = 1;
}

/* Those that waited for the one that was just published. Networks that keep order hold nothing. */
static void loop_publish_held(proxy_part *part, proxy_peer *peer, uint32_t lane) {
    int again = peer->lanes[lane].held > 0;

    while (again) {
        again = 0;
        for (uint32_t c = 0; c < (uint32_t)part->counters && peer->lanes[lane].held > 0; c++) {
            const proxy_header *header = loop_header(part, peer, c);
            if (peer->rx[c].held && header->lane == lane &&
                header->turn == peer->lanes[lane].arrived) {
                peer->lanes[lane].held--;
                loop_publish(part, peer, c);
                again = 1;
            }
        }
    }
}

static void loop_arrive(proxy_part *part, const mpix_net_arrival *arrival) {
    proxy_peer *peer = &part->peers[arrival->peer];
    uint32_t counters = (uint32_t)part->counters,
             counter = arrival->counter < counters ? arrival->counter : arrival->counter - counters;
    const proxy_header *header;
    proxy_rx *rx;

    if (arrival->counter == MPIX_NET_STORED) {
        part->publish = 1;
        return;
    }
    if (!peer->rx || counter >= counters) {
        proxy_latch(part, arrival->peer, MPIX_ERRK_INTERNAL, 0,
                    "a write arrived with a counter that does not exist");
        return;
    }
    rx = &peer->rx[counter];
    rx->count++;
    if (arrival->counter >= counters)
        rx->header = 1;
    header = loop_header(part, peer, counter);
    if (!rx->header || rx->count < header->writes)
        return;
    if (rx->held || rx->count > header->writes) {
        proxy_latch(part, arrival->peer, MPIX_ERRK_INTERNAL, 0,
                    "more writes arrived for a counter than its batch has");
        return;
    }
    if (!loop_header_valid(part, arrival->peer, counter, header))
        return;
    if (header->turn != peer->lanes[header->lane].arrived) {
        rx->held = 1;
        peer->lanes[header->lane].held++;
        return;
    }
    uint32_t lane = header->lane; /* the header belongs to the source again once it is published */
    loop_publish(part, peer, counter);
    loop_publish_held(part, peer, lane);
}

static int loop_arrivals(proxy_part *part) {
    mpix_net_arrival arrivals[PROXY_BATCH];
    int n = part->net->ops->poll_arrivals(part->net, arrivals, PROXY_BATCH);

    for (int i = 0; i < n; i++)
        loop_arrive(part, &arrivals[i]);
    return n > 0;
}

int proxy_turn(proxy_part *part) {
    int happened;

    part->publish = 0;
    part->turns++;
    if (atomic_load_explicit(&part->abandoned, memory_order_relaxed) && !part->latched)
        proxy_latch_all(part);
    happened = loop_take(part) > 0;
    if (part->gpu)
        happened |= proxy_gpu_take(part) > 0;
    if (part->nactive)
        happened |= loop_post(part);
    happened |= loop_poll(part);
    happened |= loop_arrivals(part);
    if (part->publish && part->bell)
        mpix_doorbell_ring(part->bell);
    return happened;
}

int mpix_proxy_step(mpix_proxy *proxy) {
    int happened = 0;

    for (int i = 0; i < proxy->nparts; i++) {
        proxy_part *part = proxy->part[i];
        if (part->threaded || part->ended || !proxy_try_lock(part))
            continue;
        happened |= proxy_turn(part);
        proxy_unlock(part);
    }
    return happened;
}
