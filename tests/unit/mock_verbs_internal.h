/* mock_verbs_internal.h - what the files of mock_verbs share. */
#ifndef MPIX_TESTS_MOCK_VERBS_INTERNAL_H
#define MPIX_TESTS_MOCK_VERBS_INTERNAL_H
#include "tests/unit/mock_verbs.h"

typedef struct mock_context {
    struct ibv_context context; /* first */
    int device, async_write;
} mock_context;

typedef struct mock_channel {
    struct ibv_comp_channel channel; /* first */
    int write;
} mock_channel;

/* errno if the call is to fail now. */
int mock_fails(const char *name);

int mock_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int mock_req_notify(struct ibv_cq *cq, int solicited);
int mock_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int mock_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
#endif
