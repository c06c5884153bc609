/* test_verbs_event.c - asynchronous events, sleeping, broken devices, closing. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/verbs_fixture.h"

static void open_two(void) {
    mock_add("mlx5_0", 1);
    mock_add("mlx5_1", 2);
    snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "mlx5_0,mlx5_1");
    fix.params.lanes = 2;
    fix_reopen();
}

/* Events are found by arming, and by polls, after a while. */
static void look(int by_polling) {
    int fd;
    if (by_polling) {
        for (int i = 0; i < VERBS_LOOK_PERIOD - 1; i++)
            ck_assert_int_eq(fix_poll(), 0);
    } else {
        ck_assert_int_eq(mpix_net_verbs.arm(fix.net, &fd), 0);
    }
}

START_TEST(device_events) {
    static const enum ibv_event_type types[] = {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR,
                                                IBV_EVENT_SRQ_ERR};
    mpix_net_op op;
    open_two();
    mock_event(1, types[_i], 0, NULL);
    look(_i == 1);
    ck_assert_int_eq(fix_poll(), 3); /* lane 1 of each peer is on the second device */
    for (int k = 0; k < 3; k++) {
        ck_assert_int_eq(fix_done[k].peer, k + 1);
        ck_assert_int_eq(fix_done[k].lane, 1);
        ck_assert_int_eq(fix_done[k].kind, MPIX_ERRK_TRANSPORT);
        ck_assert_ptr_nonnull(strstr(fix_done[k].text, "mlx5_1:1"));
        ck_assert_ptr_nonnull(strstr(fix_done[k].text, ibv_event_type_str(types[_i])));
    }
    ck_assert_int_eq(fix_poll(), 0);
    ck_assert_int_eq(mock.acked_events, 1);
    op = fix_word(1, 0, 8, 1);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    op.lane = 1;
    fix_error(-mpix_net_verbs.post(fix.net, &op, 1), MPIX_ERRK_TRANSPORT, "mlx5_1:1", NULL);
}
END_TEST

START_TEST(queue_pair_events) {
    static const enum ibv_event_type types[] = {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                                IBV_EVENT_QP_ACCESS_ERR};
    open_two();
    mock_event(0, types[_i], 0, &fix_qp(2, 0)->qp);
    look(0);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].peer, 2);
    ck_assert_int_eq(fix_done[0].lane, 0);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_PEER);
}
END_TEST

START_TEST(harmless_events) {
    static const enum ibv_event_type types[] = {IBV_EVENT_COMM_EST, IBV_EVENT_SRQ_LIMIT_REACHED,
                                                IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
                                                IBV_EVENT_CLIENT_REREGISTER};
    open_two();
    mock_event(0, types[_i], 0, NULL);
    look(0);
    ck_assert_int_eq(fix_poll(), 0);
    ck_assert_int_eq(mock.acked_events, 1);
}
END_TEST

/* How much longer times must be that have to outlast some steps: under valgrind, on a machine that
 * others use too. */
static unsigned slowness(void) { return getenv("CK_TIMEOUT_MULTIPLIER") ? 10 : 2; }

/* A port that is back in time breaks nothing, one that stays away breaks its lanes. Events of a
 * port that is not used are nobody's. */
START_TEST(port_down) {
    fix.params.net_timeout = 0.05 * slowness();
    open_two();
    mock_event(0, IBV_EVENT_PORT_ERR, 2, NULL);
    mock_event(0, IBV_EVENT_PORT_ERR, 1, NULL);
    look(0);
    ck_assert_int_eq(fix_poll(), 0);
    if (_i)
        mock_event(0, IBV_EVENT_PORT_ACTIVE, 1, NULL);
    look(0);
    usleep(60000 * slowness());
    look(0);
    if (_i) {
        ck_assert_int_eq(fix_poll(), 0);
        return;
    }
    ck_assert_int_eq(fix_poll(), 3);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_TRANSPORT);
    ck_assert_int_eq(fix_done[0].lane, 0);
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, "mlx5_0:1: port is down"));
}
END_TEST

/* A lane on which nothing is sent asks, once per half net_timeout, whether the peer is there; that
 * is no operation. If it is not, the lane is broken. */
START_TEST(silent_peers) {
    mpix_net_op op;
    int before, fd;
    /* half of it must outlast the steps up to "not yet" */
    fix.params.net_timeout = 0.3 * slowness();
    open_two();
    op = fix_word(1, 0, 8, 1);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    mock_finish(fix_qp(1, 0), 1);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 1);
    before = mock.nwrs;
    look(0);
    ck_assert_int_eq(mock.nwrs, before); /* not yet */
    usleep(160000 * slowness());
    look(0);
    /* three peers on two devices; lane 0 of peer 1 has sent something */
    ck_assert_int_eq(mock.nwrs, before + 5);
    for (int i = before; i < mock.nwrs; i++) {
        ck_assert(mock.wr[i].qp != fix_qp(1, 0));
        ck_assert_int_eq((int)mock.wr[i].wr.opcode, IBV_WR_RDMA_WRITE);
        ck_assert_int_eq(mock.wr[i].wr.num_sge, 0);
        ck_assert_uint_ne(mock.wr[i].wr.send_flags & IBV_SEND_SIGNALED, 0);
    }
    usleep(160000 * slowness());
    ck_assert_int_eq(mpix_net_verbs.arm(fix.net, &fd), 0);
    ck_assert_int_eq(mock.nwrs, before + 6); /* the others have one under way, which is enough */
    for (int p = 1; p <= 3; p++)
        for (int l = 0; l < 2; l++)
            if (p != 2 || l != 1)
                mock_finish(fix_qp(p, l), 1);
    ck_assert_int_eq(fix_poll(), 0);
    op = fix_word(2, 1, 8, 1);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    mock_break(fix_qp(2, 1), IBV_WC_RETRY_EXC_ERR, 0);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].peer, 2);
    ck_assert_int_eq(fix_done[0].lane, 1);
    ck_assert_int_eq(fix_done[0].n, 0);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_PEER);
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, "peer or network gone"));
    usleep(160000 * slowness());
    before = mock.nwrs;
    look(0);
    ck_assert_int_eq(mock.nwrs, before + 5); /* what is broken is not asked again */
}
END_TEST

START_TEST(port_down_in_completion) {
    mpix_net_op op;
    open_two();
    mock_event(0, IBV_EVENT_PORT_ERR, 1, NULL);
    look(0);
    op = fix_word(1, 0, 8, 1);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    mock_break(fix_qp(1, 0), IBV_WC_RETRY_EXC_ERR, 0);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, "port is down"));
}
END_TEST

START_TEST(queues_can_not_be_read) {
    mpix_net_arrival arrivals[4];
    open_two();
    mock.poll_breaks = 1;
    if (_i)
        ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 4), 0);
    ck_assert_int_eq(fix_poll(), 6);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_TRANSPORT);
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, "completion queue"));
    ck_assert_int_eq(fix_poll(), 0);
}
END_TEST

START_TEST(descriptors_do_not_block) {
    open_two();
    for (int d = 0; d < 2; d++) {
        ck_assert_int_ne(fcntl(fix.v->devices[d].channel->fd, F_GETFL) & O_NONBLOCK, 0);
        ck_assert_int_ne(fcntl(fix.v->devices[d].port.context->async_fd, F_GETFL) & O_NONBLOCK, 0);
    }
}
END_TEST

static int readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Whatever comes on whichever device makes the one descriptor readable, until it is acknowledged;
 * without arming nothing does. */
START_TEST(sleeping) {
    mpix_net_op op;
    mpix_net_arrival arrivals[4];
    int fd = -1, lane = _i / 2;
    open_two();
    op = fix_word(1, lane, 8, 1);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    ck_assert_int_eq(mpix_net_verbs.arm(fix.net, &fd), 0);
    ck_assert_int_ge(fd, 0);
    ck_assert(!readable(fd));
    if (_i % 2)
        mock_arrive(fix_qp(2, lane), 4, IBV_WC_SUCCESS);
    else
        mock_finish(fix_qp(1, lane), 1);
    ck_assert(readable(fd));
    mpix_net_verbs.ack(fix.net);
    ck_assert(!readable(fd));
    if (_i % 2)
        ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 4), 1);
    else
        ck_assert_int_eq(fix_poll(), 1);
    mock_arrive(fix_qp(2, lane), 4, IBV_WC_SUCCESS);
    mpix_net_verbs.arm(fix.net, &fd);
    ck_assert(!readable(fd) || _i % 2 == 0);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 4),
                     1); /* so the caller looks once more after arming */
}
END_TEST

START_TEST(arming_is_refused) {
    int fd;
    open_two();
    mock_fail("ibv_req_notify_cq", _i, EIO);
    fix_error(mpix_net_verbs.arm(fix.net, &fd), MPIX_ERRK_TRANSPORT,
              _i < 2 ? "mlx5_0:1" : "mlx5_1:1", "notification", NULL);
}
END_TEST

/* Events that were never taken do not make closing wait (the mock asserts that all taken ones were
 * acknowledged). */
START_TEST(close_with_everything_open) {
    mpix_net_op op;
    int fd;
    open_two();
    op = fix_write(1, 0, 0, 0, 4096);
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    ck_assert_int_eq(mpix_net_verbs.arm(fix.net, &fd), 0);
    mock_finish(fix_qp(1, 0), 1);
    mock_event(0, IBV_EVENT_DEVICE_FATAL, 0, NULL);
}
END_TEST

TCase *verbs_event_case(void) {
    TCase *c = tcase_create("event");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_loop_test(c, device_events, 0, 3);
    tcase_add_loop_test(c, queue_pair_events, 0, 3);
    tcase_add_loop_test(c, harmless_events, 0, 5);
    tcase_add_loop_test(c, port_down, 0, 2);
    tcase_add_test(c, silent_peers);
    tcase_add_test(c, port_down_in_completion);
    tcase_add_loop_test(c, queues_can_not_be_read, 0, 2);
    tcase_add_test(c, descriptors_do_not_block);
    tcase_add_loop_test(c, sleeping, 0, 4);
    tcase_add_loop_test(c, arming_is_refused, 0, 4);
    tcase_add_test(c, close_with_everything_open);
    return c;
}
