/*
 * proxy_queue.c - the producers' side: puts and signals are checked, admitted to their lane, and
 * queued. Any number of threads.
 *
 * Admission. A lane's ring in the proxy holds `depth` commands from the time they are taken to the
 * time they are complete. A producer enters only while fewer than that are between its admission
 * and their completion, so the proxy can always take what is in the FIFO: a lane without credit, or
 * a peer that does not answer, never holds up the commands for others behind it.
 *
 * Numbers. A command's number is its position in the FIFO of its lane's part, plus one. Positions
 * are the order in which commands are taken, and a lane completes in that order; so "all of this
 * lane up to number n" means the same to all producers, with no counter that would have to be
 * increased together with the push.
 */
#include "config.h"

#include <inttypes.h>

#include "proxy/proxy_internal.h"

/*
 * admitted counts before retired is compared, so two producers can't take the last place both. A
 * copy of retired that is too low refuses too early, and then the real one is read. Acquire: what
 * the retired command occupied is free for us.
 */
int proxy_admit(proxy_part *part, proxy_lane *lane, uint64_t n) {
    uint64_t admitted = atomic_load_explicit(&lane->admitted, memory_order_relaxed);

    do {
        uint64_t retired = atomic_load_explicit(&lane->retired_seen, memory_order_acquire);
        if ((int64_t)(admitted + n - retired) > (int64_t)part->depth) {
            retired = atomic_load_explicit(&lane->retired, memory_order_acquire);
            atomic_store_explicit(&lane->retired_seen, retired, memory_order_release);
            if ((int64_t)(admitted + n - retired) > (int64_t)part->depth)
                return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&lane->admitted, &admitted, admitted + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    return 1;
}

/* Queues the command of who was admitted to the lane. 0: the FIFO is full. */
static int queue_push(proxy_part *part, mpix_cmd cmd, uint64_t *seq) {
    uint64_t position;

    if (!mpix_fifo_push_at(&part->fifo, cmd, &position))
        return 0;
    *seq = position + 1;
    proxy_wake(part);
    return 1;
}

static void queue_leave(proxy_lane *lane) {
    atomic_fetch_sub_explicit(&lane->admitted, 1, memory_order_relaxed);
}

/* A request as a descriptor, which is filled in between. last: admitted whatever the lane
 * holds. -1: no room. */
static int64_t queue_desc_take(proxy_part *part, int peer, int lane, int last) {
    proxy_lane *l = &part->peers[peer].lanes[lane];
    int64_t desc;

    if (!last && !proxy_admit(part, l, 1))
        return -1;
    desc = mpix_descs_get(&part->descs);
    if (desc < 0 && !last)
        queue_leave(l);
    return desc;
}

static int queue_desc_push(proxy_part *part, int64_t desc, uint64_t *seq) {
    const mpix_request *r = &part->descs.table[desc].request;
    proxy_lane *lane = &part->peers[r->net.peer].lanes[r->net.lane];
    int last = r->last;
    mpix_cmd cmd;

    mpix_cmd_desc(r->net.peer, r->net.lane, (uint32_t)desc, &cmd);
    if (queue_push(part, cmd, seq))
        return 1;
    mpix_descs_put(&part->descs, (uint32_t)desc);
    if (!last)
        queue_leave(lane);
    return 0;
}

static int queue_refuse(const char *what, int peer, int lane, int win, uint64_t off, uint64_t len,
                        uint64_t limit) {
    return -mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                      "%s: rank %d lane %d window %d: [%" PRIu64 ", + %" PRIu64 ") of %" PRIu64
                      " bytes",
                      what, peer, lane, win, off, len, limit);
}

/* The kind with which commands for a lost peer are refused, 0: it is not lost. */
static int queue_failed(const mpix_proxy *proxy, int peer) {
    const proxy_peer *lost = proxy_lost(proxy, peer);

    if (!lost)
        return 0;
    *mpix_error_tls() = lost->error;
    return lost->failed;
}

/* 0, or -kind: a range that does not exist (a defect of the library), or the peer's failure. *out:
 * the lane's part. */
static int queue_check(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff, uint64_t len,
                       uint32_t counter, int last, proxy_part **out) {
    proxy_part *part = lane < 0 || peer < 0 ? proxy->part[0]
                                            : proxy->part[proxy_part_of(proxy, peer, lane)];
    const proxy_peer *p;

    *out = part;
    if (peer < 0 || peer >= proxy->size ||
        (lane >= 0 && lane < proxy->nlanes && !part->peers[peer].lanes))
        return -mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                          "a command for rank %d, which the proxy does not reach", peer);
    p = &part->peers[peer];
    if (lane < 0 || lane >= proxy->nlanes || rwin < 0 || rwin >= MPIX_PROXY_WINDOWS ||
        !p->rmem[rwin] || len > p->rbytes[rwin] || roff > p->rbytes[rwin] - len)
        return queue_refuse("remote side of a command", peer, lane, rwin, roff, len,
                            rwin >= 0 && rwin < MPIX_PROXY_WINDOWS ? p->rbytes[rwin] : 0);
    if (part->counted && counter >= (uint32_t)part->counters)
        return -mpix_fail(MPIX_ERRK_INTERNAL, NULL, "counter %u of %d", counter, part->counters);
    return last && !atomic_load_explicit(&p->broken, memory_order_relaxed)
               ? 0
               : -queue_failed(proxy, peer);
}

int mpix_proxy_put(mpix_proxy *proxy, int peer, int lane, int lwin, uint64_t loff, int rwin,
                   uint64_t roff, uint64_t len, uint32_t counter, uint64_t *seq) {
    proxy_part *part;
    int kind = queue_check(proxy, peer, lane, rwin, roff, len, counter, 0, &part), in_part;
    proxy_lane *l;
    int64_t desc;
    mpix_cmd cmd;

    if (kind)
        return kind;
    if (lwin < 0 || lwin >= MPIX_PROXY_WINDOWS || !part->mem[lwin] || len > part->bytes[lwin] ||
        loff > part->bytes[lwin] - len)
        return queue_refuse("local side of a put", peer, lane, lwin, loff, len,
                            lwin >= 0 && lwin < MPIX_PROXY_WINDOWS ? part->bytes[lwin] : 0);
    in_part = proxy_lane_in_part(proxy, lane);
    l = &part->peers[peer].lanes[in_part];
    if (mpix_cmd_put(peer, in_part, lwin, loff, rwin, roff, len, counter, &cmd)) {
        if (!proxy_admit(part, l, 1))
            return 0;
        if (!queue_push(part, cmd, seq)) {
            queue_leave(l);
            return 0;
        }
        return 1;
    }
    desc = queue_desc_take(part, peer, in_part, 0);
    if (desc < 0)
        return 0;
    part->descs.table[desc].request = (mpix_request){
        .net = proxy_put_op(part, peer, in_part, lwin, loff, rwin, roff, len, counter)};
    return queue_desc_push(part, desc, seq);
}

/* last: whether the object was abandoned does not matter. */
static int queue_signal(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff,
                        uint64_t value, uint32_t counter, uint32_t writes, int last,
                        uint64_t *seq) {
    proxy_part *part;
    int kind = queue_check(proxy, peer, lane, rwin, roff, 8, counter, last, &part), in_part;
    int64_t desc;

    if (kind)
        return kind;
    if (roff % 8)
        return queue_refuse("a signal's word must be aligned", peer, lane, rwin, roff, 8,
                            part->peers[peer].rbytes[rwin]);
    in_part = proxy_lane_in_part(proxy, lane);
    desc = queue_desc_take(part, peer, in_part, last);
    if (desc < 0)
        return 0;
    part->descs.table[desc].request =
        (mpix_request){.net = {.op = MPIX_NET_WORD,
                               .peer = (uint16_t)peer,
                               .lane = (uint8_t)in_part,
                               .rmem = part->peers[peer].rmem[rwin],
                               .roff = roff,
                               .len = part->counted ? sizeof(proxy_header) : 8,
                               .value = value,
                               .counter = part->counted ? (int32_t)counter : -1},
                       .writes = writes,
                       .window = (uint8_t)rwin,
                       .last = (uint8_t)last};
    return queue_desc_push(part, desc, seq);
}

int mpix_proxy_signal(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff,
                      uint64_t value, uint32_t counter, uint32_t writes, uint64_t *seq) {
    return queue_signal(proxy, peer, lane, rwin, roff, value, counter, writes, 0, seq);
}

int mpix_proxy_last_word(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff,
                         uint64_t value, uint32_t counter) {
    uint64_t seq;

    return queue_signal(proxy, peer, lane, rwin, roff, value, counter, 0, 1, &seq);
}

int mpix_proxy_post(mpix_proxy *proxy, const mpix_net_op *op, const mpix_proxy_mem *mem,
                    const mpix_proxy_rmem *rmem, uint64_t *seq) {
    int index = proxy_part_of(proxy, op->peer, op->lane), failed = queue_failed(proxy, op->peer),
        lane = proxy_lane_in_part(proxy, op->lane);
    proxy_part *part = proxy->part[index];
    mpix_request *r;
    int64_t desc;

    if (failed)
        return -failed;
    desc = queue_desc_take(part, op->peer, lane, 0);
    if (desc < 0)
        return 0;
    r = &part->descs.table[desc].request;
    *r = (mpix_request){.net = *op};
    r->net.lane = (uint8_t)lane;
    r->net.mem = mem ? mem->of[index] : NULL;
    r->net.rmem = rmem->of[index];
    if (!part->counted || op->op != MPIX_NET_WRITE)
        r->net.counter = -1;
    return queue_desc_push(part, desc, seq);
}

uint64_t mpix_proxy_handed(const mpix_proxy *proxy, int peer, int lane) {
    const proxy_part *part = proxy->part[proxy_part_of(proxy, peer, lane)];
    const proxy_lane *l = &part->peers[peer].lanes[proxy_lane_in_part(proxy, lane)];

    if (part->threaded)
        return UINT64_MAX;
    return atomic_load_explicit(part->net->caps.posted_lands ? &l->posted_seq : &l->completed,
                                memory_order_acquire);
}

uint64_t mpix_proxy_completed(const mpix_proxy *proxy, int peer, int lane) {
    const proxy_part *part = proxy->part[proxy_part_of(proxy, peer, lane)];

    return atomic_load_explicit(&part->peers[peer].lanes[proxy_lane_in_part(proxy, lane)].completed,
                                memory_order_acquire);
}
