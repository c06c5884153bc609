/*
 * poll.c - completions of this rank's operations, and arrivals of peers' counted writes.
 *
 * The two have queues of their own, so that a flood of one kind never holds up the other. A receive
 * is posted again as soon as its completion was taken, in batches: as long as this rank polls, the
 * shared receive queue has as many receives as peers can have counted writes under way (verbs.c
 * says what happens while it does not).
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

void verbs_lane_break(verbs_net *net, verbs_lane *lane, int kind, const char *fmt, ...) {
    va_list args;

    if (lane->kind) /* the first error is the cause, what follows its consequence */
        return;
    va_start(args, fmt);
    vsnprintf(lane->text, sizeof lane->text, fmt, args);
    va_end(args);
    lane->kind = kind;
    net->broken++;
    /* Whoever polls is told, and decides what it means. */
    mpix_log(MPIX_LOG_INFO, "verbs: lane %d to rank %d on %s is broken: %s", lane->lane, lane->peer,
             net->boot->hostnames[lane->peer], lane->text);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* Whether the peer or the way to it is to blame, or this rank's device. */
static int kind_of(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_WR_FLUSH_ERR: return MPIX_ERRK_PEER;
    default: return MPIX_ERRK_TRANSPORT;
    }
}

static void break_by_completion(verbs_net *net, verbs_lane *lane, const struct ibv_wc *wc) {
    const verbs_device *device = &net->devices[lane->device];

    verbs_lane_break(net, lane, kind_of(wc->status), "%s: %s (status %d, vendor 0x%x)%s%s",
                     device->port.name, ibv_wc_status_str(wc->status), (int)wc->status,
                     wc->vendor_err, device->down_since ? "; port is down" : "",
                     wc->status == IBV_WC_RETRY_EXC_ERR ? "; peer or network gone?" : "");
}

/* Adds n completed operations of lane to done[stored - 1] or a new one. Returns the
 * number stored. */
static int tell(mpix_net_done *done, int stored, const verbs_lane *lane, int n) {
    mpix_net_done *last = &done[stored - 1];

    if (n == 0)
        return stored;
    if (stored && last->peer == lane->peer && last->lane == lane->lane && !last->kind) {
        last->n += n;
        return stored;
    }
    done[stored] = (mpix_net_done){.peer = lane->peer, .lane = lane->lane, .n = n};
    return stored + 1;
}

static int complete(verbs_net *net, const struct ibv_wc *wc, mpix_net_done *done, int stored) {
    verbs_lane *lane = &net->lanes[wc->wr_id >> (2 * VERBS_SEQ_BITS)];
    uint32_t op = (uint32_t)(wc->wr_id >> VERBS_SEQ_BITS) & VERBS_SEQ_MASK;
    uint32_t wr = (uint32_t)wc->wr_id & VERBS_SEQ_MASK, n;

    if (lane->told)
        return stored;
    /* all before it are complete, itself and the rest never will be */
    if (wc->status != IBV_WC_SUCCESS) {
        op -= ((op - lane->op_done) & VERBS_SEQ_MASK) != 0; /* a probe is no operation */
        wr--;
    }
    n = (op - lane->op_done) & VERBS_SEQ_MASK;
    if (!lane->kind) {
        lane->op_done += n;
        lane->wr_done += (wr - lane->wr_done) & VERBS_SEQ_MASK;
        stored = tell(done, stored, lane, (int)n);
    }
    if (wc->status != IBV_WC_SUCCESS)
        break_by_completion(net, lane, wc);
    return stored;
}

static int tell_broken(verbs_net *net, mpix_net_done *done, int stored, int max) {
    for (int i = 0; i < net->npeers * net->nlanes && net->broken && stored < max; i++) {
        verbs_lane *lane = &net->lanes[i];
        if (!lane->kind || lane->told)
            continue;
        lane->told = 1;
        net->broken--;
        done[stored] = (mpix_net_done){.peer = lane->peer, .lane = lane->lane, .kind = lane->kind};
        snprintf(done[stored].text, sizeof done[stored].text, "%s", lane->text);
        stored++;
    }
    return stored;
}

int verbs_poll(mpix_net *base, mpix_net_done *done, int max) {
    verbs_net *net = (verbs_net *)base;
    int stored = 0;

    if (net->nqueued)
        verbs_flush(net);
    for (int d = 0; d < net->ndevices; d++) {
        for (;;) {
            struct ibv_wc wc[VERBS_POLL];
            int want = max - stored < VERBS_POLL ? max - stored : VERBS_POLL;
            int n = want > 0 && !net->devices[d].failed
                        ? ibv_poll_cq(net->devices[d].send_cq, want, wc)
                        : 0;

            for (int i = 0; i < n; i++)
                stored = complete(net, &wc[i], done, stored);
            if (n < 0)
                verbs_device_break(net, d, "its send completion queue can't be read");
            if (n < want || n <= 0)
                break;
        }
    }
    if (++net->polls % VERBS_LOOK_PERIOD == 0)
        verbs_look(net);
    return net->broken ? tell_broken(net, done, stored, max) : stored;
}

/* ---- arrivals -------------------------------------------------------------------------------- */

int verbs_recv_fill(verbs_net *net, verbs_device *device, int n) {
    device->recv_missing += n;
    while (device->recv_missing > 0) {
        int count = device->recv_missing < VERBS_POLL ? device->recv_missing : VERBS_POLL,
            posted = count, err;
        struct ibv_recv_wr *bad = NULL;

        for (int i = 0; i < count; i++)
            net->recv[i] = (struct ibv_recv_wr){.wr_id = 0,
                                                .next = i + 1 < count ? &net->recv[i + 1] : NULL};
        err = ibv_post_srq_recv(device->srq, net->recv, &bad);
        if (err)
            posted = bad ? (int)(bad - net->recv) : 0;
        device->recv_missing -= posted;
        if (err)
            return err;
    }
    return 0;
}

static int arrive(verbs_net *net, int d, const struct ibv_wc *wc, mpix_net_arrival *arrivals,
                  int stored) {
    verbs_lane *lane = verbs_hash_find(net, d, wc->qp_num);

    if (!lane) {
        mpix_log(MPIX_LOG_WARN, "verbs: %s: an arrival for queue pair %u, which is not known",
                 net->devices[d].port.name, wc->qp_num);
        return stored;
    }
    if (wc->status != IBV_WC_SUCCESS) {
        break_by_completion(net, lane, wc);
        return stored;
    }
    arrivals[stored] = (mpix_net_arrival){.peer = lane->peer, .counter = ntohl(wc->imm_data)};
    return stored + 1;
}

int verbs_poll_arrivals(mpix_net *base, mpix_net_arrival *arrivals, int max) {
    verbs_net *net = (verbs_net *)base;
    int stored = 0;

    /* Beginning where the last call ended keeps a busy device from starving the others. */
    for (int k = 0; k < net->ndevices && stored < max; k++) {
        int d = net->next_device = (net->next_device + 1) % net->ndevices;
        verbs_device *device = &net->devices[d];

        while (device->srq && !device->failed) {
            struct ibv_wc wc[VERBS_POLL];
            int want = max - stored < VERBS_POLL ? max - stored : VERBS_POLL;
            int n = want > 0 ? ibv_poll_cq(device->recv_cq, want, wc) : 0, err;

            if (n < 0) {
                verbs_device_break(net, d, "its receive completion queue can't be read");
                break;
            }
            for (int i = 0; i < n; i++)
                stored = arrive(net, d, &wc[i], arrivals, stored);
            err = n > 0 || device->recv_missing ? verbs_recv_fill(net, device, n) : 0;
            /* A lack of memory is tried again by the next call; peers wait meanwhile. */
            if (err && err != ENOMEM && err != EAGAIN)
                verbs_device_break(net, d, "receives can't be posted");
            if (n < want || n == 0)
                break;
        }
    }
    return stored;
}
