/*
 * ucx_move.c - operations of the transport ucx.
 *
 * Complete means flushed: a flush of the endpoint that began after an operation has ended. Flushes
 * begin by themselves, one for all that was posted since the last; a second and third only when a
 * message waits for what the first does not cover.
 */
#include "config.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx.h"

void ucx_break(ucx_peer *peer, ucs_status_t status, const char *what) {
    if (peer->broken != UCS_OK || peer->net->closing)
        return;
    peer->broken = status;
    snprintf(peer->text, sizeof peer->text, "%s: %s", what, ucs_status_string(status));
    peer->net->broken += !peer->bye;
}

/* ---- handing over ---------------------------------------------------------------------------- */

void ucx_sent(void *request, ucs_status_t status, void *arg) {
    if (status != UCS_OK)
        ucx_break(arg, status, "an operation failed");
    ucp_request_free(request);
}

/* What a call of libucp returned: complete, under way (sent is called), or failed. */
void ucx_begun(ucx_peer *peer, ucs_status_ptr_t result, const char *what) {
    if (UCS_PTR_IS_ERR(result))
        ucx_break(peer, UCS_PTR_STATUS(result), what);
}

/*
 * A long write goes from where it lies, behind its header. The kernel copies it with `rep movsb`,
 * which on some processors (an AMD EPYC: 3.5 instead of 55 GB/s) is slow if the target is 1 to 15
 * bytes behind the source, modulo 4096. What is sent into an empty socket begins a page, with some
 * 13 bytes of libucp's. So data at the beginning of a page, as most are, would meet just that, call
 * after call, without our header between; and data just behind such a place would with it: then
 * more is put between.
 */
static size_t issue_pad(const void *from) {
    size_t at = ((uintptr_t)from - sizeof(ucx_header)) % 4096;

    return at < 32 || at >= 4096 - 32 ? UCX_PAD : 0;
}

static void issue_long(ucx_lane *lane, ucx_op *o) {
    static const char pad[UCX_PAD];
    ucx_peer *peer = lane->peer;
    size_t between = issue_pad(o->op.local), n = 0;
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = ucx_sent,
                                 .user_data = peer,
                                 .datatype = ucp_dt_make_iov()};

    o->header.value = sizeof o->header + between;
    o->parts[n++] = (ucp_dt_iov_t){&o->header, sizeof o->header};
    if (between)
        o->parts[n++] = (ucp_dt_iov_t){(void *)(uintptr_t)pad, between};
    o->parts[n++] = (ucp_dt_iov_t){o->op.local, o->op.len};
    ucx_begun(peer, ucp_am_send_nbx(peer->ep, UCX_AM_STORE, NULL, 0, o->parts, n, &param),
              "a message was refused");
}

static void issue_message(ucx_lane *lane, ucx_op *o) {
    ucx_peer *peer = lane->peer;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = ucx_sent,
                                 .user_data = peer};
    int word = o->op.op == MPIX_NET_WORD;

    o->header = (ucx_header){.rank = (uint32_t)peer->net->boot->rank,
                             .seq = lane->seq_out++,
                             .lane = (uint32_t)lane->index,
                             .word = (uint32_t)word,
                             .addr = o->op.rmem->addr + o->op.roff,
                             .value = o->op.value};
    o->state = UCX_ISSUED;
    if (!word && o->op.len > UCX_SHORT)
        issue_long(lane, o);
    else
        ucx_begun(peer,
                  ucp_am_send_nbx(peer->ep, UCX_AM_STORE, &o->header, sizeof o->header,
                                  word ? NULL : o->op.local, word ? 0 : o->op.len, &param),
                  "a message was refused");
}

static void issue(ucx_lane *lane, ucx_op *o) {
    ucx_peer *peer = lane->peer;
    const mpix_net_op *op = &o->op;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = ucx_sent,
                                 .user_data = peer};
    uint64_t there = op->rmem->addr + op->roff;

    o->state = UCX_ISSUED;
    if (op->op == MPIX_NET_READ && op->len > 0 && op->rmem->foreign && peer->tcp) {
        o->state = UCX_READING;
        lane->reading++;
        o->read = (ucx_read){.rank = peer->net->rank,
                             .lane = (uint32_t)lane->index,
                             .number = lane->head - 1,
                             .addr = there,
                             .len = op->len};
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_AM_SEND_FLAG_EAGER;
        ucx_begun(peer,
                  ucp_am_send_nbx(peer->ep, UCX_AM_READ, &o->read, sizeof o->read, NULL, 0, &param),
                  "a read was refused");
    } else if (op->op == MPIX_NET_WRITE && op->len > 0) {
        ucx_begun(peer, ucp_put_nbx(peer->ep, op->local, op->len, there, op->rmem->rkey, &param),
                  "a put was refused");
    } else if (op->op == MPIX_NET_READ && op->len > 0) {
        ucx_begun(peer, ucp_get_nbx(peer->ep, op->local, op->len, there, op->rmem->rkey, &param),
                  "a get was refused");
    } else if (op->op == MPIX_NET_ADD) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE |
                              (op->local ? UCP_OP_ATTR_FIELD_REPLY_BUFFER : 0);
        param.datatype = ucp_dt_make_contig(8);
        param.reply_buffer = op->local;
        ucx_begun(peer,
                  ucp_atomic_op_nbx(peer->ep, UCP_ATOMIC_OP_ADD, &o->op.value, 1, there,
                                    op->rmem->rkey, &param),
                  "an addition was refused");
    }
}

/* Messages whose turn has come. */
static void issue_held(ucx_lane *lane) {
    for (; lane->issued < lane->head; lane->issued++) {
        ucx_op *o = ucx_lane_op(lane, lane->issued);
        if (o->state != UCX_HELD)
            continue;
        if (o->need > lane->flushed)
            break;
        issue_message(lane, o);
    }
}

int ucx_post(mpix_net *base, const mpix_net_op *ops, int count) {
    ucx_net *net = (ucx_net *)base;
    int i;

    for (i = 0; i < count; i++) {
        const mpix_net_op *op = &ops[i];
        ucx_lane *lane = &net->peers[op->peer].lanes[op->lane];
        uint64_t len = op->op == MPIX_NET_WORD || op->op == MPIX_NET_ADD ? 8 : op->len;
        int message = op->op == MPIX_NET_WORD ||
                      (op->op == MPIX_NET_WRITE && op->len > 0 && op->len <= lane->peer->message);
        ucx_op *o;
        if (lane->head - lane->done == UCX_DEPTH)
            break;
        if (len > op->rmem->bytes || op->roff > op->rmem->bytes - len)
            return -ucx_host->fail(MPIX_ERRK_INTERNAL, NULL,
                                   "an operation on [%" PRIu64 ", + %" PRIu64 ") of %" PRIu64
                                   " bytes of rank %d",
                                   op->roff, len, op->rmem->bytes, op->peer);
        o = ucx_lane_op(lane, lane->head++);
        *o = (ucx_op){.op = *op, .state = UCX_HELD, .need = lane->puts};
        if (!message) {
            lane->puts = lane->head;
            if (lane->peer->broken == UCS_OK)
                issue(lane, o);
        }
        if (lane->peer->broken == UCS_OK)
            issue_held(lane);
        if (!lane->active) {
            lane->active = 1;
            net->active[net->nactive++] = lane;
        }
    }
    return i;
}

/* ---- flushes --------------------------------------------------------------------------------- */

static void flush_over(ucx_flush *flush, ucs_status_t status) {
    ucx_lane *lane = flush->lane;
    ucx_net *net = lane->peer->net;

    lane->nflushes--;
    if (status != UCS_OK)
        ucx_break(lane->peer, status, "a flush failed");
    else if (flush->upto > lane->flushed)
        lane->flushed = flush->upto;
    flush->next = net->free_flush;
    net->free_flush = flush;
}

static void flushed(void *request, ucs_status_t status, void *arg) {
    ucp_request_free(request);
    flush_over(arg, status);
}

static void flush_begin(ucx_lane *lane) {
    ucx_net *net = lane->peer->net;
    ucx_flush *flush = net->free_flush;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = flushed,
                                 .user_data = flush};
    ucs_status_ptr_t result;

    net->free_flush = flush->next;
    *flush = (ucx_flush){.lane = lane, .upto = lane->issued};
    lane->covered = lane->issued;
    lane->nflushes++;
    result = ucp_ep_flush_nbx(lane->peer->ep, &param);
    if (!UCS_PTR_IS_PTR(result))
        flush_over(flush, UCS_PTR_STATUS(result));
}

static void lane_step(ucx_lane *lane) {
    do {
        if (lane->peer->broken != UCS_OK)
            return;
        issue_held(lane);
        if (lane->issued == lane->covered)
            return;
        if (lane->nflushes > 0 && (lane->nflushes == UCX_FLUSHES || lane->issued == lane->head))
            return; /* nobody waits for more than the end of the flush under way */
        flush_begin(lane);
    } while (lane->nflushes == 0); /* it was over at once */
}

/* ---- polling --------------------------------------------------------------------------------- */

static int tell_broken(ucx_net *net, mpix_net_done *done, int max) {
    int stored = 0;

    for (int r = 0; r < net->boot->size && net->broken > 0 && stored < max; r++) {
        ucx_peer *peer = &net->peers[r];
        if (peer->broken == UCS_OK || peer->told || peer->bye)
            continue;
        peer->told = 1;
        net->broken--;
        done[stored] = (mpix_net_done){.peer = r,
                                       .kind = peer->broken == UCS_ERR_NO_MEMORY ? MPIX_ERRK_NO_MEM
                                                                                 : MPIX_ERRK_PEER};
        memcpy(done[stored++].text, peer->text, sizeof peer->text);
    }
    return stored;
}

/* A flush covers what libucp does, and not a read whose data come by message of ours. */
static uint64_t complete_upto(const ucx_lane *lane) {
    uint64_t at = lane->done;

    if (!lane->reading)
        return lane->flushed;
    while (at < lane->flushed && ucx_lane_op(lane, at)->state != UCX_READING)
        at++;
    return at;
}

int ucx_poll(mpix_net *base, mpix_net_done *done, int max) {
    ucx_net *net = (ucx_net *)base;
    int stored = 0;

    for (int i = 0; i < UCX_ROUNDS && ucp_worker_progress(net->worker) != 0; i++)
        ;
    for (int i = net->nactive - 1; i >= 0 && stored < max; i--) {
        ucx_lane *lane = net->active[i];
        lane_step(lane);
        uint64_t upto = complete_upto(lane);
        if (upto > lane->done) {
            done[stored++] = (mpix_net_done){.peer = lane->peer->rank,
                                             .lane = lane->index,
                                             .n = (int)(upto - lane->done)};
            lane->done = upto;
        }
        if (lane->done == lane->head) {
            lane->active = 0;
            net->active[i] = net->active[--net->nactive];
        }
    }
    return stored + tell_broken(net, done + stored, max - stored);
}

/* There are no counted writes. Messages were stored by the progress of poll; that some
 * were is told. */
int ucx_poll_arrivals(mpix_net *base, mpix_net_arrival *arrivals, int max) {
    ucx_net *net = (ucx_net *)base;

    if (!net->stored || max == 0)
        return 0;
    net->stored = 0;
    arrivals[0] = (mpix_net_arrival){.peer = net->boot->rank, .counter = MPIX_NET_STORED};
    return 1;
}

/* libucp arms only when nothing is there to be progressed. */
int ucx_arm(mpix_net *base, int *fd) {
    ucx_net *net = (ucx_net *)base;
    ucs_status_t status;

    while ((status = ucp_worker_arm(net->worker)) == UCS_ERR_BUSY)
        (void)ucp_worker_progress(net->worker);
    if (status != UCS_OK)
        return ucx_host->fail(MPIX_ERRK_TRANSPORT, NULL, "libucp can't wait for events: %s",
                              ucs_status_string(status));
    *fd = net->fd;
    return 0;
}

void ucx_ack(mpix_net *base) { (void)base; }
