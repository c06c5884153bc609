/* test_verbs_poll.c - requests that the device refuses; completions; arrivals. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/verbs_fixture.h"

/* ---- refusals -------------------------------------------------------------------------------- */

/* The device takes 5 of 10 requests to peer 1 and all to peer 2; the rest is kept, and nothing new
 * is taken until it is gone. */
START_TEST(refused_for_now) {
    mpix_net_op ops[10], other;
    fix_open_one();
    other = fix_word(2, 0, 8, 99);
    ck_assert_int_eq(fix_post(&other, 1), 1);
    for (int i = 0; i < 10; i++)
        ops[i] = fix_word(1, 0, 8, (uint64_t)i);
    mock.post_room = 5;
    mock.post_errno = _i ? EAGAIN : ENOMEM;
    ck_assert_int_eq(fix_post(ops, 10), 10);
    ck_assert_int_eq(mock.nwrs, 6);
    ck_assert_int_eq(fix_post(&other, 1), 0);
    ck_assert_int_eq(mpix_net_verbs.poll(fix.net, fix_done, 64), 0);
    ck_assert_int_eq(mock.nwrs, 6);
    mock.post_room = -1;
    ck_assert_int_eq(fix_poll(), 0); /* poll tries as well */
    ck_assert_int_eq(mock.nwrs, 11);
    for (int i = 0; i < 10; i++) {
        uint64_t value;
        memcpy(&value, mock.wr[1 + i].data, 8);
        ck_assert_uint_eq(value, (uint64_t)i);
    }
    ck_assert_int_eq(fix_post(&other, 1), 1);
    mock_finish(fix_qp(1, 0), 10);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 10);
}
END_TEST

/* With nothing under way a refusal has no reason to end. */
START_TEST(refused_for_good) {
    mpix_net_op op, other;
    fix_open_one();
    op = fix_word(1, 0, 8, 1);
    other = fix_word(2, 0, 8, 1);
    mock.post_room = 0;
    mock.post_errno = _i ? EINVAL : ENOMEM;
    ck_assert_int_eq(fix_post(&op, 1), 1);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].peer, 1);
    ck_assert_int_eq(fix_done[0].n, 0);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_TRANSPORT);
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, strerror(mock.post_errno)));
    ck_assert_ptr_nonnull(strstr(fix_done[0].text, "mlx5_0:1"));
    mock.post_room = -1;
    fix_error(-fix_post(&op, 1), MPIX_ERRK_TRANSPORT, "refused", NULL);
    ck_assert_int_eq(mpix_error_tls()->rank, 1);
    ck_assert_int_eq(fix_post(&other, 1), 1); /* others live on */
    ck_assert_int_eq(fix_poll(), 0);
}
END_TEST

/* ---- completions ----------------------------------------------------------------------------- */

START_TEST(completion_errors) {
    static const struct {
        enum ibv_wc_status status;
        int kind;
    } cases[] = {
        {IBV_WC_RETRY_EXC_ERR, MPIX_ERRK_PEER},      {IBV_WC_RNR_RETRY_EXC_ERR, MPIX_ERRK_PEER},
        {IBV_WC_REM_ACCESS_ERR, MPIX_ERRK_PEER},     {IBV_WC_REM_OP_ERR, MPIX_ERRK_PEER},
        {IBV_WC_REM_INV_REQ_ERR, MPIX_ERRK_PEER},    {IBV_WC_WR_FLUSH_ERR, MPIX_ERRK_PEER},
        {IBV_WC_LOC_PROT_ERR, MPIX_ERRK_TRANSPORT},  {IBV_WC_LOC_LEN_ERR, MPIX_ERRK_TRANSPORT},
        {IBV_WC_LOC_QP_OP_ERR, MPIX_ERRK_TRANSPORT}, {IBV_WC_FATAL_ERR, MPIX_ERRK_TRANSPORT},
        {IBV_WC_GENERAL_ERR, MPIX_ERRK_TRANSPORT}};
    mpix_net_op ops[10];
    fix_open_one();
    for (int i = 0; i < 10; i++)
        ops[i] = fix_word(3, 0, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, 10), 10);
    mock_finish(fix_qp(3, 0), 4); /* complete, though not signalled */
    mock_break(fix_qp(3, 0), cases[_i].status, 0x81);
    ck_assert_int_eq(fix_poll(), 2);
    ck_assert_int_eq(fix_done[0].n, 4);
    ck_assert_int_eq(fix_done[0].kind, 0);
    ck_assert_int_eq(fix_done[1].n, 0);
    ck_assert_int_eq(fix_done[1].peer, 3);
    ck_assert_int_eq(fix_done[1].kind, cases[_i].kind);
    ck_assert_ptr_nonnull(strstr(fix_done[1].text, ibv_wc_status_str(cases[_i].status)));
    ck_assert_ptr_nonnull(strstr(fix_done[1].text, "vendor 0x81"));
    ck_assert_ptr_nonnull(strstr(fix_done[1].text, "mlx5_0:1"));
    ck_assert_int_eq(fix_poll(), 0);
    fix_error(-fix_post(ops, 1), cases[_i].kind, NULL);
    ck_assert_str_eq(mpix_error_tls()->host, "host3");
}
END_TEST

START_TEST(little_room_for_completions) {
    mpix_net_op op;
    int n = 0, broken = 0;
    fix_open_one();
    for (int p = 1; p < FIX_RANKS; p++) {
        op = fix_word(p, 0, 8, 1);
        ck_assert_int_eq(fix_post(&op, 1), 1);
        if (p < 3)
            mock_finish(fix_qp(p, 0), 1);
        else
            mock_break(fix_qp(p, 0), IBV_WC_RETRY_EXC_ERR, 0);
    }
    ck_assert_int_eq(mpix_net_verbs.poll(fix.net, fix_done, 0), 0);
    for (int k = 0; k < 10; k++) {
        int got = mpix_net_verbs.poll(fix.net, fix_done, 1);
        ck_assert_int_le(got, 1);
        n += got ? fix_done[0].n : 0;
        broken += got && fix_done[0].kind == MPIX_ERRK_PEER;
    }
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(broken, 1);
}
END_TEST

START_TEST(more_completions_than_one_turn) {
    mpix_net_op op;
    int n = 0;
    fix_open_one();
    for (int k = 0; k < 100; k++) { /* one by one, so each is signalled */
        op = fix_word(1 + k % 2, 0, 8, 1);
        ck_assert_int_eq(fix_post(&op, 1), 1);
        mock_finish(fix_qp(1 + k % 2, 0), 1);
    }
    for (int got; (got = fix_poll()) > 0;)
        for (int i = 0; i < got; i++)
            n += fix_done[i].n;
    ck_assert_int_eq(n, 100);
}
END_TEST

/* ---- arrivals -------------------------------------------------------------------------------- */

START_TEST(arrivals_of_peers) {
    mpix_net_arrival arrivals[64];
    int full, n = 0, batches;
    fix.params.lanes = 2;
    fix_open_one();
    full = mock.srq[0]->posted;
    ck_assert_int_eq(full, 6 * 128);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 64), 0);
    for (int k = 0; k < 300; k++)
        mock_arrive(fix_qp(1 + k % 3, k % 2), (uint32_t)k, IBV_WC_SUCCESS);
    batches = mock.srq[0]->batches;
    while (n < 300) {
        int got = mpix_net_verbs.poll_arrivals(fix.net, arrivals, 64);
        ck_assert_int_gt(got, 0);
        for (int i = 0; i < got; i++, n++) {
            ck_assert_uint_eq(arrivals[i].counter, (uint32_t)n);
            ck_assert_int_eq(arrivals[i].peer, 1 + n % 3);
        }
        ck_assert_int_eq(mock.srq[0]->posted, full - mock_cq_entries(mock.cq[1]));
    }
    ck_assert_int_eq(mock.srq[0]->posted, full);
    ck_assert_int_le(mock.srq[0]->batches - batches, 300 / 32 + 5);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 64), 0);
}
END_TEST

START_TEST(arrivals_with_little_room) {
    mpix_net_arrival arrivals[3];
    fix_open_one();
    for (uint32_t k = 0; k < 10; k++)
        mock_arrive(fix_qp(1, 0), k, IBV_WC_SUCCESS);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 0), 0);
    for (uint32_t k = 0; k < 9; k += 3) {
        ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 3), 3);
        ck_assert_uint_eq(arrivals[2].counter, k + 2);
    }
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 3), 1);
}
END_TEST

/* Receives that can't be posted now are made up for later. */
START_TEST(receives_refused) {
    mpix_net_arrival arrivals[64];
    int full;
    fix_open_one();
    full = mock.srq[0]->posted;
    for (uint32_t k = 0; k < 20; k++)
        mock_arrive(fix_qp(1, 0), k, IBV_WC_SUCCESS);
    mock.recv_room = 7;
    mock.recv_errno = _i ? EINVAL : ENOMEM;
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 64), 20);
    ck_assert_int_eq(mock.srq[0]->posted, full - 13);
    mock.recv_room = -1;
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 64), 0);
    ck_assert_int_eq(mock.srq[0]->posted, _i ? full - 13 : full);
    ck_assert_int_eq(fix_poll(), _i ? 3 : 0); /* EINVAL: all lanes of the device are broken */
    for (int k = 0; _i && k < 3; k++)
        ck_assert_int_eq(fix_done[k].kind, MPIX_ERRK_TRANSPORT);
}
END_TEST

START_TEST(arrival_errors) {
    mpix_net_arrival arrivals[8];
    fix_open_one();
    mock_arrive(fix_qp(2, 0), 1, IBV_WC_SUCCESS);
    mock_arrive(fix_qp(2, 0), 2, IBV_WC_WR_FLUSH_ERR);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, arrivals, 8), 1);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].peer, 2);
    ck_assert_int_eq(fix_done[0].kind, MPIX_ERRK_PEER);
}
END_TEST

TCase *verbs_poll_case(void) {
    TCase *c = tcase_create("poll");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_loop_test(c, refused_for_now, 0, 2);
    tcase_add_loop_test(c, refused_for_good, 0, 2);
    tcase_add_loop_test(c, completion_errors, 0, 11);
    tcase_add_test(c, little_room_for_completions);
    tcase_add_test(c, more_completions_than_one_turn);
    tcase_add_test(c, arrivals_of_peers);
    tcase_add_test(c, arrivals_with_little_room);
    tcase_add_loop_test(c, receives_refused, 0, 2);
    tcase_add_test(c, arrival_errors);
    return c;
}
