/*
 * post.c - operations become work requests, chained per lane, one doorbell per lane and call.
 *
 * An operation is one work request, or several where it crosses the edge of a piece of a
 * registration on either side. Only few are signalled: the last one of each chain, since its
 * completion must be seen, and one in every quarter of the send queue. RC completes in order, so a
 * signalled request tells of all before it.
 *
 * A device may refuse requests although its send queue has room (ENOMEM, EAGAIN). Those stay in the
 * net's array, in their chains, and are tried again by the next post or poll; until they are gone
 * nothing new is taken. That is only done while the lane has requests in flight: a refusal with
 * none in flight will not end, and is an error.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/log.h"

static uint64_t wr_id_of(const verbs_net *net, const verbs_lane *lane) {
    return (uint64_t)(lane - net->lanes) << (2 * VERBS_SEQ_BITS) |
           (uint64_t)(lane->op_seq & VERBS_SEQ_MASK) << VERBS_SEQ_BITS |
           (lane->wr_seq & VERBS_SEQ_MASK);
}

/* ---- doorbells ------------------------------------------------------------------------------- */

/* 1: the chain is gone (handed over, or dropped with the lane); 0: some of it remains. */
static int lane_ring(verbs_net *net, verbs_lane *lane) {
    struct ibv_send_wr *bad = NULL;
    uint32_t in_flight;
    int err;

    if (lane->kind) {
        lane->head = lane->tail = NULL;
        return 1;
    }
    lane->tail->send_flags |= IBV_SEND_SIGNALED;
    lane->unsignalled = 0;
    err = ibv_post_send(lane->qp, lane->head, &bad);
    if (err == 0) {
        lane->head = lane->tail = NULL;
        return 1;
    }
    if (bad)
        lane->head = bad;
    in_flight = (uint32_t)((lane->head->wr_id & VERBS_SEQ_MASK) - 1 - lane->wr_done) &
                VERBS_SEQ_MASK;
    if ((err == ENOMEM || err == EAGAIN) && in_flight > 0)
        return 0;
    verbs_lane_break(net, lane, MPIX_ERRK_TRANSPORT, "%s: post to rank %d was refused: %s",
                     net->devices[lane->device].port.name, lane->peer, strerror(err));
    lane->head = lane->tail = NULL;
    return 1;
}

void verbs_flush(verbs_net *net) {
    int left = 0;

    for (int i = 0; i < net->nqueued; i++) {
        verbs_lane *lane = net->queued[i];
        if (lane_ring(net, lane))
            lane->queued = 0;
        else
            net->queued[left++] = lane;
    }
    net->nqueued = left;
    if (left == 0)
        net->nwr = 0;
    else
        /* such a device: what it refused for now goes with a later call, so only
         * completions tell */
        net->net.caps.posted_lands = 0;
}

/* ---- building -------------------------------------------------------------------------------- */

/* Bytes from both offsets to the next edge of a piece, at most left. */
static uint64_t step_of(const mpix_net_op *op, uint64_t loff, uint64_t roff, uint64_t left) {
    uint64_t to_edge;

    if (op->mem && op->mem->npieces > 1 &&
        (to_edge = op->mem->piece - loff % op->mem->piece) < left)
        left = to_edge;
    if (op->rmem->bytes > op->rmem->piece &&
        (to_edge = op->rmem->piece - roff % op->rmem->piece) < left)
        left = to_edge;
    return left;
}

static int wrs_of(const mpix_net_op *op, uint64_t loff) {
    uint64_t done = 0;
    int n = 0;

    do {
        done += step_of(op, loff + done, op->roff + done, op->len - done);
        n++;
    } while (done < op->len);
    return n;
}

static struct ibv_send_wr *wr_new(verbs_net *net, verbs_lane *lane) {
    struct ibv_send_wr *wr = &net->wr[net->nwr];
    struct ibv_sge *sge = &net->sge[net->nwr++];

    lane->wr_seq++;
    memset(wr, 0, sizeof *wr);
    memset(sge, 0, sizeof *sge);
    wr->wr_id = wr_id_of(net, lane);
    wr->sg_list = sge;
    wr->num_sge = 1;
    if (lane->tail)
        lane->tail->next = wr;
    else
        lane->head = wr;
    lane->tail = wr;
    if (!lane->queued) {
        lane->queued = 1;
        net->queued[net->nqueued++] = lane;
    }
    return wr;
}

static void wr_local(const verbs_lane *lane, struct ibv_send_wr *wr, const mpix_net_mem *mem,
                     uint64_t loff, uint64_t len) {
    wr->sg_list->addr = (uintptr_t)mem->base + loff;
    wr->sg_list->length = (uint32_t)len;
    wr->sg_list->lkey = mem->mr[lane->device][loff / mem->piece]->lkey;
}

static uint32_t rkey_of(const verbs_lane *lane, const mpix_net_rmem *rmem, uint64_t roff) {
    return rmem
        ->rkey[lane->remote_device][rmem->piece && roff < rmem->bytes ? roff / rmem->piece : 0];
}

static void build_moves(verbs_net *net, verbs_lane *lane, const mpix_net_op *op, uint64_t loff) {
    const verbs_device *device = &net->devices[lane->device];
    struct ibv_send_wr *wr;
    uint64_t done = 0;

    do {
        uint64_t len = step_of(op, loff + done, op->roff + done, op->len - done);

        wr = wr_new(net, lane);
        wr->opcode = op->op == MPIX_NET_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        wr->wr.rdma.remote_addr = op->rmem->base + op->roff + done;
        wr->wr.rdma.rkey = rkey_of(lane, op->rmem, op->roff + done);
        if (len == 0)
            wr->num_sge = 0;
        else
            wr_local(lane, wr, op->mem, loff + done, len);
        /* What is small goes with the request: the device need not fetch it. GPU memory can't be
         * read from here. */
        if (op->op == MPIX_NET_WRITE && len > 0 && len <= (uint64_t)device->max_inline &&
            op->mem->how == VERBS_MEM_HOST)
            wr->send_flags |= IBV_SEND_INLINE;
        done += len;
    } while (done < op->len);
    if (op->counter >= 0) { /* the last one: when it arrives, the others have */
        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr->imm_data = htonl((uint32_t)op->counter);
    }
}

static void build_word(verbs_net *net, verbs_lane *lane, const mpix_net_op *op) {
    verbs_device *device = &net->devices[lane->device];
    struct ibv_send_wr *wr = wr_new(net, lane);
    uint64_t *word = &net->word[wr - net->wr];

    /* a place is free again when its request is complete */
    if (device->max_inline < (int)sizeof *word) {
        word = &device->scratch[(size_t)(lane - net->lanes) * (size_t)net->depth +
                                (lane->wr_seq & (uint32_t)(net->depth - 1))];
        wr->sg_list->lkey = device->scratch_mr->lkey;
    } else {
        wr->send_flags |= IBV_SEND_INLINE;
    }
    *word = op->value;
    wr->sg_list->addr = (uintptr_t)word;
    wr->sg_list->length = sizeof *word;
    wr->opcode = op->counter >= 0 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    wr->imm_data = op->counter >= 0 ? htonl((uint32_t)op->counter) : 0;
    wr->wr.rdma.remote_addr = op->rmem->base + op->roff;
    wr->wr.rdma.rkey = rkey_of(lane, op->rmem, op->roff);
}

static void build_add(verbs_net *net, verbs_lane *lane, const mpix_net_op *op, uint64_t loff) {
    struct ibv_send_wr *wr = wr_new(net, lane);

    wr_local(lane, wr, op->mem, loff, sizeof(uint64_t));
    wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr->wr.atomic.remote_addr = op->rmem->base + op->roff;
    wr->wr.atomic.rkey = rkey_of(lane, op->rmem, op->roff);
    wr->wr.atomic.compare_add = op->value;
}

/*
 * A write of no bytes needs no key and touches no memory, but is acknowledged. One lane per device
 * tells about a peer. It is a request and no operation: its completion says nothing to the caller
 * unless it fails (poll.c). With nothing else under way there is room for it.
 */
void verbs_probe(verbs_net *net) {
    for (int i = 0; i < net->npeers * net->nlanes && net->nqueued == 0; i++) {
        verbs_lane *lane = &net->lanes[i];
        int silent = lane->wr_seq == lane->probe_seq && lane->wr_done == lane->wr_seq;

        if (lane->lane >= net->ndevices || !lane->connected || lane->kind)
            continue;
        if (silent) {
            struct ibv_send_wr *wr = wr_new(net, lane);
            wr->opcode = IBV_WR_RDMA_WRITE;
            wr->num_sge = 0;
            verbs_flush(net);
        }
        lane->probe_seq = lane->wr_seq;
    }
}

/* Mistakes of the caller are found here, as the device would only break the connection. */
static int check(const verbs_net *net, const verbs_lane *lane, const mpix_net_op *op,
                 uint64_t loff) {
    int word = op->op == MPIX_NET_WORD || op->op == MPIX_NET_ADD;
    uint64_t len = word ? sizeof(uint64_t) : op->len;

    if (!lane->connected || op->roff > op->rmem->bytes || len > op->rmem->bytes - op->roff ||
        (word && op->roff % 8) || (!word && op->len > net->net.caps.max_op) ||
        (op->op != MPIX_NET_WORD && len && (loff > op->mem->bytes || len > op->mem->bytes - loff)))
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                         "verbs: operation %d of %llu bytes at offset %llu to rank %d is outside "
                         "of its memory or limits",
                         op->op, (unsigned long long)len, (unsigned long long)op->roff, op->peer);
    if (op->op == MPIX_NET_ADD && !net->devices[lane->device].atomics)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL, "%s has no atomic operations",
                         net->devices[lane->device].port.name);
    if (op->counter >= 0 && !net->net.caps.counted)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, NULL,
            "%s: counted writes need a shared receive queue, which it or rank %d has not",
            net->devices[lane->device].port.name, op->peer);
    return 0;
}

enum { BUILT, LANE_FULL, BATCH_FULL };

/* BUILT, LANE_FULL, BATCH_FULL, or -kind. */
static int build(verbs_net *net, const mpix_net_op *op) {
    verbs_lane *lane = verbs_lane_of(net, op->peer, op->lane);
    uint64_t loff = op->mem ? (uint64_t)((char *)op->local - (char *)op->mem->base) : 0;
    int word = op->op == MPIX_NET_WORD || op->op == MPIX_NET_ADD, kind, n;

    if (lane->kind)
        return -mpix_fail_peer(lane->kind, op->peer, net->boot->hostnames[op->peer], "%s",
                               lane->text);
    if ((kind = check(net, lane, op, loff)))
        return -kind;
    n = word ? 1 : wrs_of(op, loff);
    if ((uint32_t)n > (uint32_t)lane->depth - (lane->wr_seq - lane->wr_done))
        return LANE_FULL;
    if (n > VERBS_BATCH - net->nwr)
        return BATCH_FULL;
    lane->op_seq++;
    if (op->op == MPIX_NET_WORD)
        build_word(net, lane, op);
    else if (op->op == MPIX_NET_ADD)
        build_add(net, lane, op, loff);
    else
        build_moves(net, lane, op, loff);
    lane->unsignalled += (uint32_t)n;
    if (lane->unsignalled >= (uint32_t)net->signal_every) {
        lane->tail->send_flags |= IBV_SEND_SIGNALED;
        lane->unsignalled = 0;
    }
    return BUILT;
}

int verbs_post(mpix_net *base, const mpix_net_op *ops, int n) {
    verbs_net *net = (verbs_net *)base;
    int taken = 0, result = BUILT;

    if (net->nqueued) {
        verbs_flush(net);
        if (net->nqueued)
            return 0;
    }
    while (taken < n) {
        result = build(net, &ops[taken]);
        if (result == BUILT) {
            taken++;
            continue;
        }
        if (result != BATCH_FULL || net->nwr == 0)
            break;
        verbs_flush(net);
        if (net->nqueued)
            break;
    }
    verbs_flush(net);
    return result < 0 && taken == 0 ? result : taken;
}
