/* test_verbs_connect.c - limits of devices; queue pairs and their connection. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/verbs_fixture.h"

/* ---- limits ---------------------------------------------------------------------------------- */

START_TEST(depth_by_limits) {
    int d = mock_add("mlx5_0", 1);
    struct ibv_device_attr *attr = &mock.device[d].attr;
    int expected[] = {64, 32, 16};

    fix.params.lanes = 2; /* 3 peers: 6 queue pairs */
    if (_i == 0)
        attr->max_qp_wr = 100;
    else if (_i == 1)
        attr->max_cqe = 6 * 40;
    else
        attr->max_srq_wr = 6 * 17;
    fix_reopen();
    ck_assert_int_eq(fix.net->caps.depth, expected[_i]);
    ck_assert_int_eq(mock.nqps, 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(mock.qp[i]->init.cap.max_send_wr, (unsigned)expected[_i]);
        ck_assert_uint_eq(mock.qp[i]->init.cap.max_send_sge, 1);
        ck_assert_uint_eq(mock.qp[i]->init.cap.max_inline_data, 64);
        ck_assert_uint_eq(mock.qp[i]->init.cap.max_recv_wr, 0);
    }
    /* Completion queues and the shared receive queue have room for everything that can
     * be under way. */
    ck_assert_int_eq(mock.cq[0]->cq.cqe, 6 * expected[_i]);
    ck_assert_int_eq(mock.cq[1]->cq.cqe, 6 * expected[_i]);
    ck_assert_int_eq(mock.srq[0]->max, 6 * expected[_i]);
    ck_assert_int_eq(mock.srq[0]->posted, 6 * expected[_i]);
}
END_TEST

START_TEST(limits_too_low) {
    int d = mock_add("mlx5_0", 1);
    mock.device[d].attr.max_qp = 2;
    fix_error(fix_open(), MPIX_ERRK_NO_MEM, "mlx5_0:1", "2 queue pairs", "lanes", NULL);
    mock.device[d].attr.max_qp = 100;
    mock.device[d].attr.max_cqe = 3 * 7;
    fix_error(fix_open(), MPIX_ERRK_NO_MEM, "mlx5_0:1", "depth of 7", NULL);
    ck_assert_int_eq(mock.live, 0);
}
END_TEST

START_TEST(no_shared_receive_queue) {
    int d = mock_add("mlx5_0", 1);
    mpix_net_op op;
    mock.device[d].attr.max_srq = 0;
    mock.device[d].attr.max_srq_wr = 0;
    fix_reopen();
    ck_assert_int_eq(fix.net->caps.counted, 0);
    ck_assert_int_eq(mock.nsrqs, 0);
    ck_assert_int_eq(fix.net->caps.depth, 128);
    op = fix_write(1, 0, 0, 0, 8);
    op.counter = 1;
    fix_error(-mpix_net_verbs.post(fix.net, &op, 1), MPIX_ERRK_UNSUPPORTED, "shared receive queue",
              NULL);
    ck_assert_int_eq(mpix_net_verbs.poll_arrivals(fix.net, NULL, 0), 0);
}
END_TEST

START_TEST(inline_is_asked_for_again) {
    mock_add("mlx5_0", 1);
    mock.inline_limit = _i;
    fix_reopen();
    ck_assert_uint_eq(mock.qp[0]->init.cap.max_inline_data, _i >= 64 ? 64 : _i >= 8 ? 8 : 0);
}
END_TEST

START_TEST(object_fails) {
    static const struct {
        const char *call;
        int after, err, kind;
    } cases[] = {{"ibv_alloc_pd", 0, ENOMEM, MPIX_ERRK_NO_MEM},
                 {"ibv_create_comp_channel", 0, EMFILE, MPIX_ERRK_TRANSPORT},
                 {"ibv_create_cq", 0, ENOMEM, MPIX_ERRK_NO_MEM},
                 {"ibv_create_cq", 1, EINVAL, MPIX_ERRK_TRANSPORT},
                 {"ibv_create_srq", 0, ENOMEM, MPIX_ERRK_NO_MEM},
                 {"ibv_reg_mr", 0, ENOMEM, MPIX_ERRK_NO_MEM}};
    mock_add("mlx5_0", 1);
    mock_fail(cases[_i].call, cases[_i].after, cases[_i].err);
    fix_error(fix_open(), cases[_i].kind, "mlx5_0:1", NULL);
    ck_assert_int_eq(mpix_error_tls()->sys_errno, cases[_i].err);
    if (cases[_i].err == ENOMEM)
        fix_error(cases[_i].kind, MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK", NULL);
    ck_assert_int_eq(mock.live, 0);
}
END_TEST

START_TEST(receives_fail_at_open) {
    mock_add("mlx5_0", 1);
    mock.recv_room = 40;
    mock.recv_errno = ENOMEM;
    fix_error(fix_open(), MPIX_ERRK_NO_MEM, "receives", NULL);
    ck_assert_int_eq(mock.live, 0);
}
END_TEST

START_TEST(fork_protection) {
    mock_add("mlx5_0", 1);
    mock.fork = _i ? IBV_FORK_DISABLED : IBV_FORK_UNNEEDED;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_int_eq(mock.fork_calls, _i);
    if (_i)
        ck_assert_int_eq(mock.calls_before_fork, 0);
}
END_TEST

START_TEST(order_by_list_and_parameter) {
    static const struct {
        uint32_t vendor, part;
        int parameter, ordered;
        const char *word;
    } cases[] = {{0x02c9, 4123, MPIX_ORDERED_AUTO, 1, "mlx5"},
                 {0x02c9, 4103, MPIX_ORDERED_AUTO, 1, "mlx4"},
                 {0xffffff, 0, MPIX_ORDERED_AUTO, 1, "rxe"},
                 {0x1d0f, 0xefa1, MPIX_ORDERED_AUTO, 0, "vendor 0x1d0f"},
                 {0x1d0f, 0xefa1, MPIX_ORDERED_YES, 1, "parameter"},
                 {0x02c9, 4123, MPIX_ORDERED_NO, 0, "parameter"}};
    int d = mock_add("dev0", 1);
    mock.device[d].attr.vendor_id = cases[_i].vendor;
    mock.device[d].attr.vendor_part_id = cases[_i].part;
    fix.params.ordered = cases[_i].parameter;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_int_eq(fix.net->caps.ordered, cases[_i].ordered);
    ck_assert_ptr_nonnull(strstr(fix.net->caps.why, cases[_i].word));
}
END_TEST

/* An assumption about a device is said once, and not if the user has decided. Without processes of
 * their own, tests before this one may have heard it. */
START_TEST(order_is_an_assumption) {
    static const char name[] = "test_verbs_order.log";
    const char *fork = getenv("CK_FORK");
    char line[512];
    int said = 0, confirmed = _i == 1, other = _i == 2;
    FILE *f;
    int d = mock_add("dev0", 1);

    unlink(name);
    mpix_log_configure(MPIX_LOG_WARN, name);
    mock.device[d].attr.vendor_id = other ? VERBS_RXE : 0x02c9;
    mock.device[d].attr.vendor_part_id = 4123;
    fix.params.ordered = confirmed ? MPIX_ORDERED_YES : MPIX_ORDERED_AUTO;
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(fix_open(), 0);
        mpix_net_verbs.close(fix.net);
        fix.net = NULL;
    }
    mpix_log_configure(MPIX_LOG_WARN, "");
    f = fopen(name, "r");
    while (f && fgets(line, sizeof line, f))
        said += strstr(line, "dev0") && strstr(line, "mpix_ep_ordered=no");
    if (f)
        fclose(f);
    unlink(name);
    if (fork && strcmp(fork, "no") == 0)
        ck_assert_int_le(said, !confirmed && !other);
    else
        ck_assert_int_eq(said, !confirmed && !other);
}
END_TEST

START_TEST(order_is_what_all_have) {
    mock_add("mlx5_0", 1);
    mock.device[mock_add("efa0", 2)].attr.vendor_id = 0x1d0f;
    fix_devices(_i ? "efa0,mlx5_0" : "mlx5_0,efa0");
    fix.params.lanes = 2;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_int_eq(fix.net->caps.ordered, 0);
    ck_assert_ptr_nonnull(strstr(fix.net->caps.why, "0x1d0f"));
}
END_TEST

/* ---- connecting ------------------------------------------------------------------------------ */

START_TEST(connect_arguments) {
    int d = mock_add("mlx5_0", 1);
    verbs_blob blob;
    const struct ibv_qp_attr *attr;
    const mock_qp *qp;

    mock.device[d].attr.max_qp_rd_atom = 8;
    fix.params.traffic_class = 106;
    fix.params.net_timeout = 10;
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(2, &blob);
    ck_assert_int_eq(mock.nqps, 1);
    fix_blob(2, &blob); /* again: no second queue pair */
    ck_assert_int_eq(mock.nqps, 1);
    blob.device[0].gid.raw[15] = 77;
    blob.lane[0].psn = 4321;
    blob.device[0].max_dest_rd_atomic = 4;
    blob.depth = 32;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 2, &blob), 0);
    qp = mock.qp[0];
    attr = qp->attr;
    ck_assert_int_eq(qp->mask[0],
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    ck_assert_int_eq(attr[0].port_num, 1);
    ck_assert_uint_eq(attr[0].qp_access_flags,
                      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    ck_assert_int_eq(qp->mask[1], IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER);
    ck_assert_int_eq(attr[1].path_mtu, IBV_MTU_4096);
    ck_assert_uint_eq(attr[1].dest_qp_num, 1017);
    ck_assert_uint_eq(attr[1].rq_psn, 4321);
    ck_assert_int_eq(attr[1].max_dest_rd_atomic, 8);
    ck_assert_int_eq(attr[1].ah_attr.is_global, 1);
    ck_assert_int_eq(attr[1].ah_attr.grh.sgid_index, 3);
    ck_assert_int_eq(attr[1].ah_attr.grh.dgid.raw[15], 77);
    ck_assert_int_eq(attr[1].ah_attr.grh.traffic_class, 106);
    ck_assert_int_gt(attr[1].ah_attr.grh.hop_limit, 1); /* or it would never leave the subnet */
    ck_assert_int_eq(qp->mask[2], IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    ck_assert_int_eq(attr[2].timeout, 18); /* 7 attempts of 1.07 s are the longest below 10 s */
    ck_assert_int_eq(attr[2].retry_cnt, 6);
    ck_assert_int_eq(attr[2].rnr_retry, 7);
    ck_assert_int_eq(attr[2].max_rd_atomic, 4);
    ck_assert_uint_eq(attr[2].sq_psn, blob.lane[0].psn == 4321 ? fix.v->lanes[1].psn : 0);
    ck_assert_int_eq(verbs_lane_of(fix.v, 2, 0)->depth, 32);
}
END_TEST

START_TEST(lower_mtu) {
    static const struct {
        enum ibv_mtu own, far;
        int parameter, expected;
    } cases[] = {{IBV_MTU_4096, IBV_MTU_1024, 0, 1024},    {IBV_MTU_1024, IBV_MTU_4096, 0, 1024},
                 {IBV_MTU_4096, IBV_MTU_4096, 2048, 2048}, {IBV_MTU_4096, IBV_MTU_4096, 1500, 1024},
                 {IBV_MTU_4096, IBV_MTU_4096, 100, 256},   {IBV_MTU_2048, IBV_MTU_256, 65536, 256}};
    int d = mock_add("mlx5_0", 1);
    verbs_blob blob;

    mock.device[d].port[1].active_mtu = cases[_i].own;
    fix.params.net_mtu = cases[_i].parameter;
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(1, &blob);
    blob.device[0].mtu = (uint8_t)cases[_i].far;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 1, &blob), 0);
    ck_assert_int_eq(128 << mock.qp[0]->attr[1].path_mtu, cases[_i].expected);
    ck_assert_int_eq(fix.net->caps.mtu, cases[_i].expected);
}
END_TEST

START_TEST(unwanted_peers) {
    verbs_blob blob, zero;
    mock_add("mlx5_0", 1);
    fix.want[2] = 0;
    ck_assert_int_eq(fix_open(), 0);
    memset(&blob, 1, sizeof blob);
    memset(&zero, 0, sizeof zero);
    ck_assert_int_eq(mpix_net_verbs.address(fix.net, 2, &blob), 0);
    ck_assert_mem_eq(&blob, &zero, sizeof blob);
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 2, &blob), 0);
    ck_assert_int_eq(mock.nqps, 0);
    ck_assert_int_eq(mock.cq[0]->cq.cqe, 2 * 128);
}
END_TEST

START_TEST(blobs_that_do_not_fit) {
    verbs_blob blob;
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(1, &blob);
    switch (_i) {
    case 0: blob.magic = 0; break;
    case 1: blob.version++; break;
    case 2: blob.nlanes = 2; break;
    case 3: blob.ndevices = 0; break;
    case 4: blob.device[0].link_layer = IBV_LINK_LAYER_INFINIBAND; break;
    case 5: blob.device[0].flags = 0; break;
    default: break;
    }
    fix_error(mpix_net_verbs.connect(fix.net, 1, &blob), MPIX_ERRK_TRANSPORT, "rank 1", NULL);
    ck_assert_int_eq(mpix_error_tls()->rank, 1);
    ck_assert_str_eq(mpix_error_tls()->host, "host1");
}
END_TEST

START_TEST(peer_without_order_or_count) {
    verbs_blob blob;
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(1, &blob);
    blob.device[0].flags = BLOB_GLOBAL;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 1, &blob), 0);
    ck_assert_int_eq(fix.net->caps.ordered, 0);
    ck_assert_int_eq(fix.net->caps.counted, 0);
    ck_assert_ptr_nonnull(strstr(fix.net->caps.why, "rank 1"));
}
END_TEST

START_TEST(states_fail) {
    static const char *const word[] = {"initialised", "RTR", "RTS"};
    verbs_blob blob;
    int kind;

    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    mock_fail("ibv_modify_qp", _i, _i == 1 ? ETIMEDOUT : EINVAL);
    kind = mpix_net_verbs.address(fix.net, 1, &blob);
    if (_i > 0) {
        ck_assert_int_eq(kind, 0);
        kind = mpix_net_verbs.connect(fix.net, 1, &blob);
    }
    fix_error(kind, MPIX_ERRK_TRANSPORT, "mlx5_0:1", "rank 1", word[_i], NULL);
    if (_i > 0)
        fix_error(kind, MPIX_ERRK_TRANSPORT, "10.0.0.1", "host1", NULL);
}
END_TEST

START_TEST(queue_pair_fails) {
    verbs_blob blob;
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    mock_fail("ibv_create_qp", 0, _i ? ENOMEM : EMFILE);
    fix_error(mpix_net_verbs.address(fix.net, 1, &blob),
              _i ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT, "mlx5_0:1", "rank 1", "net_depth", NULL);
    ck_assert_int_eq(mock.nqps, 0);
}
END_TEST

START_TEST(hash_finds_all) {
    mock_add("mlx5_0", 1);
    fix.params.lanes = 16;
    fix_reopen();
    ck_assert_int_eq(mock.nqps, 48);
    for (int i = 0; i < 48; i++)
        ck_assert_ptr_eq(verbs_hash_find(fix.v, 0, mock.qp[i]->qp.qp_num), &fix.v->lanes[i]);
    ck_assert_ptr_null(verbs_hash_find(fix.v, 0, 5));
}
END_TEST

TCase *verbs_connect_case(void) {
    TCase *c = tcase_create("connect");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_loop_test(c, depth_by_limits, 0, 3);
    tcase_add_test(c, limits_too_low);
    tcase_add_test(c, no_shared_receive_queue);
    tcase_add_loop_test(c, inline_is_asked_for_again, 0, 1);
    tcase_add_loop_test(c, inline_is_asked_for_again, 63, 65);
    tcase_add_loop_test(c, object_fails, 0, 6);
    tcase_add_test(c, receives_fail_at_open);
    tcase_add_loop_test(c, fork_protection, 0, 2);
    tcase_add_loop_test(c, order_by_list_and_parameter, 0, 6);
    tcase_add_loop_test(c, order_is_an_assumption, 0, 3);
    tcase_add_loop_test(c, order_is_what_all_have, 0, 2);
    tcase_add_test(c, connect_arguments);
    tcase_add_loop_test(c, lower_mtu, 0, 6);
    tcase_add_test(c, unwanted_peers);
    tcase_add_loop_test(c, blobs_that_do_not_fit, 0, 6);
    tcase_add_test(c, peer_without_order_or_count);
    tcase_add_loop_test(c, states_fail, 0, 3);
    tcase_add_loop_test(c, queue_pair_fails, 0, 2);
    tcase_add_test(c, hash_finds_all);
    return c;
}
