/* mock_verbs_data.c - requests, completions and events of mock_verbs.h. */
#include "config.h"

#include "tests/unit/mock_verbs_internal.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static int wr_accept(mock_qp *qp, const struct ibv_send_wr *wr) {
    mock_wr *record = &mock.wr[mock.nwrs];

    if (mock.post_room == 0)
        return mock.post_errno;
    if (mock.post_room > 0)
        mock.post_room--;
    ck_assert_int_eq(qp->changes, 3);
    ck_assert_int_lt(mock.nwrs, MOCK_WRS);
    ck_assert_msg(qp->posted - qp->finished < (int)qp->init.cap.max_send_wr,
                  "more requests than the send queue holds");
    ck_assert_int_le(wr->num_sge, 1);
    *record = (mock_wr){.wr = *wr, .qp = qp, .index = qp->posted++};
    if (wr->num_sge)
        record->sge = wr->sg_list[0];
    if (wr->send_flags & IBV_SEND_INLINE) {
        ck_assert_uint_le(record->sge.length, qp->init.cap.max_inline_data);
        /* NOLINT: an address */
        memcpy(record->data, (void *)(uintptr_t)record->sge.addr, record->sge.length);
    }
    mock.nwrs++;
    return 0;
}

int mock_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    mock.doorbells++;
    for (; wr; wr = wr->next) {
        int err = wr_accept((mock_qp *)qp, wr);
        if (err) {
            *bad = wr;
            return err;
        }
    }
    return 0;
}

int mock_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    mock_srq *s = (mock_srq *)srq;
    int n = 0;

    s->batches++;
    for (; wr; wr = wr->next, n++) {
        if (mock.recv_room == 0) {
            *bad = wr;
            return mock.recv_errno;
        }
        if (mock.recv_room > 0)
            mock.recv_room--;
        ck_assert_int_eq(wr->num_sge, 0);
        ck_assert_msg(s->posted < s->max, "more receives than the shared receive queue holds");
        s->posted++;
    }
    s->longest = n > s->longest ? n : s->longest;
    return 0;
}

static void wc_push(mock_cq *cq, const struct ibv_wc *wc) {
    ck_assert_int_lt(cq->tail, MOCK_WCS);
    ck_assert_msg(cq->tail - cq->head < cq->cq.cqe, "the completion queue overflows");
    cq->wc[cq->tail++] = *wc;
    if (cq->notify) {
        cq->notify = 0;
        ck_assert_int_eq(write(((mock_channel *)cq->cq.channel)->write, &cq, sizeof cq), sizeof cq);
    }
}

int mock_cq_entries(const mock_cq *cq) { return cq->tail - cq->head; }

static mock_wr *wr_find(const mock_qp *qp, int index) {
    for (int i = 0; i < mock.nwrs; i++)
        if (mock.wr[i].qp == qp && mock.wr[i].index == index)
            return &mock.wr[i];
    ck_abort_msg("there is no request %d", index);
    return NULL;
}

void mock_finish(mock_qp *qp, int n) {
    for (; n > 0; n--) {
        mock_wr *record = wr_find(qp, qp->finished++);
        struct ibv_wc wc = {.wr_id = record->wr.wr_id,
                            .status = IBV_WC_SUCCESS,
                            .qp_num = qp->qp.qp_num};
        if (record->wr.send_flags & IBV_SEND_SIGNALED)
            wc_push((mock_cq *)qp->qp.send_cq, &wc);
    }
}

void mock_break(mock_qp *qp, enum ibv_wc_status status, uint32_t vendor) {
    for (; qp->finished < qp->posted; qp->finished++, status = IBV_WC_WR_FLUSH_ERR, vendor = 0xf9) {
        struct ibv_wc wc = {.wr_id = wr_find(qp, qp->finished)->wr.wr_id,
                            .status = status,
                            .vendor_err = vendor,
                            .qp_num = qp->qp.qp_num};
        wc_push((mock_cq *)qp->qp.send_cq, &wc);
    }
}

void mock_arrive(mock_qp *qp, uint32_t counter, enum ibv_wc_status status) {
    struct ibv_wc wc = {.status = status,
                        .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                        .qp_num = qp->qp.qp_num,
                        .wc_flags = IBV_WC_WITH_IMM,
                        .imm_data = htonl(counter)};
    ck_assert_int_gt(((mock_srq *)qp->qp.srq)->posted--, 0);
    wc_push((mock_cq *)qp->qp.recv_cq, &wc);
}

int mock_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
    mock_cq *c = (mock_cq *)cq;
    int got = 0;

    if (mock.poll_breaks)
        return -1;
    ck_assert_int_gt(n, 0);
    while (got < n && c->head < c->tail)
        wc[got++] = c->wc[c->head++];
    return got;
}

/* ---- events ---------------------------------------------------------------------------------- */

int mock_req_notify(struct ibv_cq *cq, int solicited) {
    ck_assert_int_eq(solicited, 0);
    ((mock_cq *)cq)->notify = 1;
    return mock_fails("ibv_req_notify_cq");
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    mock_cq *got;

    if (read(channel->fd, &got, sizeof got) != sizeof got)
        return -1;
    got->events++;
    *cq = &got->cq;
    *cq_context = got->cq.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { ((mock_cq *)cq)->acked += (int)n; }

void mock_event(int device, enum ibv_event_type type, int port, struct ibv_qp *qp) {
    struct ibv_async_event *event = &mock.event[mock.nevents];

    event->event_type = type;
    if (qp)
        event->element.qp = qp;
    else
        event->element.port_num = port;
    mock.event_device[mock.nevents++] = device;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    for (int i = 0; i < mock.nevents; i++) {
        if (mock.event_device[i] == ((mock_context *)context)->device) {
            *event = mock.event[i];
            mock.event_device[i] = -1;
            return 0;
        }
    }
    errno = EAGAIN;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) {
    (void)event;
    mock.acked_events++;
}
