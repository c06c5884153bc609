/* test_verbs_setup.c - choice of devices, ports and addresses; limits; connecting. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/topo.h"
#include "tests/unit/verbs_fixture.h"

static void devices(const char *list) { snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "%s", list); }

/* ---- devices and ports ------------------------------------------------------------------------------------------ */

START_TEST(no_device) {
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no RDMA device", "rdma link add", NULL);
    mock_fail("ibv_get_device_list", 0, ENOSYS);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no RDMA device", "Function not implemented", NULL);
}
END_TEST

START_TEST(one_device) {
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_0:1");
    ck_assert_str_eq(fix.net->caps.address, "gid[3] 10.0.0.1");
    ck_assert_int_eq(fix.net->caps.mtu, 4096);
    ck_assert_int_eq(fix.net->caps.lanes, 1);
    ck_assert_int_eq(fix.net->caps.depth, 128);
    ck_assert_int_eq(fix.net->caps.counted, 1);
    ck_assert_int_eq(fix.net->caps.ordered, 1);
    ck_assert_uint_eq(fix.net->caps.max_op, 1u << 30);
    ck_assert_int_eq(mock.contexts, 1);
}
END_TEST

START_TEST(port_down) {
    int d = mock_add("mlx5_0", 1);
    mock.device[d].port[1].state = IBV_PORT_DOWN;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no usable port", "mlx5_0:1", "PORT_DOWN", NULL);
    ck_assert_int_eq(mock.live, 0);
    devices("mlx5_0");
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx5_0 can't be used", "PORT_DOWN", NULL);
}
END_TEST

START_TEST(second_port) {
    int d = mock_add("mlx4_0", 1);
    mock.device[d].attr.phys_port_cnt = 2;
    mock.device[d].port[1].state = IBV_PORT_DOWN;
    mock_gid(d, 2, 0, IBV_GID_TYPE_ROCE_V2, "10.1.0.1");
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx4_0:2");
    ck_assert_str_eq(fix.net->caps.address, "gid[0] 10.1.0.1");
    mpix_net_verbs.close(fix.net);
    fix.net = NULL;
    devices("mlx4_0:1");
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx4_0 can't be used", NULL);
}
END_TEST

START_TEST(open_and_query_fail) {
    mock_add("mlx5_0", 1);
    mock_fail("ibv_open_device", 0, EACCES);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx5_0:1", "Permission denied", "/dev/infiniband", NULL);
    mock.nfails = 0;
    mock_fail("ibv_query_device", 0, EIO);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "attributes", "Input/output error", NULL);
    mock.nfails = 0;
    mock_fail("ibv_query_port", 0, EIO);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "queried", NULL);
}
END_TEST

START_TEST(iwarp_is_passed_over) {
    int d = mock_add("irdma0", 1);
    mock.device[d].ibv.transport_type = IBV_TRANSPORT_IWARP;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "irdma0", "iWARP", NULL);
    mock_add("mlx5_0", 2);
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_0:1");
}
END_TEST

START_TEST(fastest_wins) {
    mock_add("mlx5_0", 1);
    mock.device[mock_add("mlx5_1", 2)].port[1].active_speed = 64;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_1:1");
}
END_TEST

START_TEST(ranks_are_dealt_out) {
    static const char *const expected[] = {"mlx5_0:1", "mlx5_2:1", "mlx5_0:1"};
    mock_add("mlx5_0", 1);
    mock.device[mock_add("mlx5_1", 2)].port[1].active_speed = 1; /* slower: not one of those that are alike */
    mock_add("mlx5_2", 3);
    fix.boot.local_rank = _i;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, expected[_i]);
}
END_TEST

START_TEST(ranks_of_a_host_that_talk) {
    mock_add("mlx5_0", 1);
    mock_add("mlx5_1", 2);
    fix.boot.local_rank = 1;
    strcpy(fix.hostnames[3], _i ? "host0" : "host3");
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, _i ? "mlx5_0:1" : "mlx5_1:1");
}
END_TEST

/* Ranks that were dealt out over networks that don't reach each other could not be connected. */
START_TEST(one_network_for_all) {
    mock_add("mlx5_0", 1);
    mock.device[mock_add("mlx5_1", 2)].ngids = 0;
    mock_gid(1, 1, 3, IBV_GID_TYPE_ROCE_V2, "10.0.9.2");
    if (_i >= 2) {
        mock_interface("10.0.9.2", _i < 4 ? "255.255.0.0" : "255.255.255.254");
        mock_interface("10.0.0.1", _i < 4 ? "255.255.0.0" : "255.255.255.254");
    }
    fix.boot.local_rank = _i % 2;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, _i >= 2 && _i % 2 ? "mlx5_1:1" : "mlx5_0:1");
    ck_assert_str_eq(fix.v->devices[0].port.network, _i < 2 ? "10.0.0.0/24" : _i < 4 ? "10.0.0.0/16" : "routed IPv4");
}
END_TEST

START_TEST(nearest_of_equal_ones) {
    char folder[] = "/tmp/test_verbs.XXXXXX", path[128];
    int numa = mpix_topo_get()->numa_local;
    FILE *file;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        int d = mock_add(i ? "mlx5_1" : "mlx5_0", i + 1);
        snprintf(path, sizeof path, "%s/%d", folder, i);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        snprintf(mock.device[d].ibv.ibdev_path, sizeof mock.device[d].ibv.ibdev_path, "%s/%d", folder, i);
        snprintf(path, sizeof path, "%s/%d/device", folder, i);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        snprintf(path, sizeof path, "%s/%d/device/numa_node", folder, i);
        ck_assert_ptr_nonnull(file = fopen(path, "w"));
        fprintf(file, "%d\n", i ? numa : numa + 7);
        fclose(file);
    }
    for (int local = 0; local < 2; local++) {
        fix.boot.local_rank = local;
        ck_assert_int_eq(fix_open(), 0);
        /* Without knowledge of one's own place both are as near. */
        ck_assert_str_eq(fix.net->caps.device, numa >= 0 ? "mlx5_1:1" : local ? "mlx5_1:1" : "mlx5_0:1");
        mpix_net_verbs.close(fix.net);
        fix.net = NULL;
    }
    for (int i = 0; i < 2; i++) {
        static const char *const parts[] = {"device/numa_node", "device", ""};
        for (int k = 0; k < 3; k++) {
            snprintf(path, sizeof path, "%s/%d/%s", folder, i, parts[k]);
            ck_assert_int_eq(remove(path), 0);
        }
    }
    rmdir(folder);
}
END_TEST

START_TEST(named_devices) {
    mock_add("mlx5_0", 1);
    mock_add("mlx5_1", 2);
    mock_add("mlx5_10", 3);
    fix.params.lanes = 4;
    devices("mlx5_10,mlx5_0:1");
    fix.boot.local_rank = 1;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_10:1,mlx5_0:1");
    ck_assert_str_eq(fix.net->caps.address, "gid[3] 10.0.0.3, gid[3] 10.0.0.1");
    fix_connect();
    for (int l = 0; l < 4; l++) {
        verbs_lane *lane = verbs_lane_of(fix.v, 2, l);
        ck_assert_int_eq(lane->device, l % 2);
        ck_assert_ptr_eq(lane->qp->pd, fix.v->devices[l % 2].pd);
    }
    mpix_net_verbs.close(fix.net);
    fix.net = NULL;
    fix.params.lanes = 1; /* the second has nothing to carry */
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_10:1");
    ck_assert_int_eq(mock.contexts, 1);
}
END_TEST

START_TEST(names_that_are_wrong) {
    static const struct {
        const char *list;
        int kind;
        const char *word;
    } cases[] = {{"mlx5_7", MPIX_ERRK_UNSUPPORTED, "devices of this host: mlx5_0"},
                 {",mlx5_0", MPIX_ERRK_ARG, "empty"},
                 {"mlx5_0,", MPIX_ERRK_ARG, "empty"},
                 {"mlx5_0:0", MPIX_ERRK_ARG, "port"},
                 {"mlx5_0:x", MPIX_ERRK_ARG, "port"},
                 {"mlx5_0:", MPIX_ERRK_ARG, "port"},
                 {"mlx5_0:1x", MPIX_ERRK_ARG, "port"},
                 {"a,b,c,d,e", MPIX_ERRK_ARG, "too many"},
                 {"mlx5_0:2", MPIX_ERRK_UNSUPPORTED, "mlx5_0"}};
    mock_add("mlx5_0", 1);
    devices(cases[_i].list);
    fix_error(fix_open(), cases[_i].kind, cases[_i].word, NULL);
    ck_assert_str_eq(mpix_error_tls()->arg, "mpix_ep_net_devices");
    ck_assert_int_eq(mock.live, 0);
}
END_TEST

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static void only_gids(int d, const char *const *gids, const enum ibv_gid_type *types, int n) {
    mock.device[d].ngids = 0;
    for (int i = 0; i < n; i++)
        mock_gid(d, 1, i, types[i], gids[i]);
}

START_TEST(gid_preference) {
    static const char *const gids[] = {"fe80::1", "fe80::1", "169.254.3.4", "2001:db8::5", "10.2.0.1"};
    static const enum ibv_gid_type types[] = {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V2,
                                              IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V2};
    static const char *const expected[] = {"gid[0] fe80::1 RoCEv1", "gid[1] fe80::1", "gid[1] fe80::1",
                                           "gid[3] 2001:db8::5", "gid[4] 10.2.0.1"};
    int d = mock_add("mlx5_0", 1);

    only_gids(d, gids, types, _i + 1);
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, expected[_i]);
}
END_TEST

START_TEST(gid_of_other_port_or_none) {
    int d = mock_add("mlx5_0", 1);
    mock.device[d].ngids = 0;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx5_0:1", "no usable GID", NULL);
    mock_gid(d, 2, 0, IBV_GID_TYPE_ROCE_V2, "10.0.0.1");
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no usable GID", NULL);
    mock_gid(d, 1, 0, IBV_GID_TYPE_IB, "10.0.0.1"); /* not a RoCE address */
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no usable GID", NULL);
    mock.device[d].port[1].gid_tbl_len = 0;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "GID table is empty", NULL);
    mock.device[d].port[1].gid_tbl_len = 6;
    mock_fail("ibv_query_gid_table", 0, EIO);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "GID table can't be read", NULL);
}
END_TEST

START_TEST(gid_forced) {
    int d = mock_add("mlx5_0", 1);
    mock_gid(d, 1, 5, IBV_GID_TYPE_ROCE_V1, "fe80::9");
    fix.params.gid_index = 5;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, "gid[5] fe80::9 RoCEv1");
    mpix_net_verbs.close(fix.net);
    fix.net = NULL;
    fix.params.gid_index = 4;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no GID 4", "gid_index", NULL);
}
END_TEST

START_TEST(routable_address_beats_speed) {
    static const char *const local[] = {"fe80::1"};
    static const enum ibv_gid_type v2[] = {IBV_GID_TYPE_ROCE_V2};
    int d = mock_add("mlx5_0", 1);
    mock.device[d].port[1].active_speed = 128;
    only_gids(d, local, v2, 1);
    mock_add("mlx5_1", 2);
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.device, "mlx5_1:1");
}
END_TEST

START_TEST(infiniband_uses_lids) {
    int d = mock_add("mlx5_0", 1);
    verbs_blob blob;
    const struct ibv_qp_attr *rtr;

    mock.device[d].port[1].link_layer = IBV_LINK_LAYER_INFINIBAND;
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no LID", "subnet manager", NULL);
    mock.device[d].port[1].lid = 21;
    fix.params.service_level = 3;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, "lid 21");
    fix_blob(1, &blob);
    blob.device[0].lid = 99;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 1, &blob), 0);
    rtr = &mock.qp[0]->attr[1];
    ck_assert_int_eq(rtr->ah_attr.is_global, 0);
    ck_assert_int_eq(rtr->ah_attr.dlid, 99);
    ck_assert_int_eq(rtr->ah_attr.sl, 3);
    mpix_net_verbs.close(fix.net);
    fix.net = NULL;
    mock.device[d].port[1].flags = IBV_QPF_GRH_REQUIRED;
    mock_gid(d, 1, 0, IBV_GID_TYPE_IB, "fe80::77");
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, "gid[0] fe80::77");
}
END_TEST

/* ---- limits ----------------------------------------------------------------------------------------------------- */

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
    /* Completion queues and the shared receive queue have room for everything that can be under way. */
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
    fix_error(-mpix_net_verbs.post(fix.net, &op, 1), MPIX_ERRK_UNSUPPORTED, "shared receive queue", NULL);
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
    } cases[] = {
        {"ibv_alloc_pd", 0, ENOMEM, MPIX_ERRK_NO_MEM},   {"ibv_create_comp_channel", 0, EMFILE, MPIX_ERRK_TRANSPORT},
        {"ibv_create_cq", 0, ENOMEM, MPIX_ERRK_NO_MEM},  {"ibv_create_cq", 1, EINVAL, MPIX_ERRK_TRANSPORT},
        {"ibv_create_srq", 0, ENOMEM, MPIX_ERRK_NO_MEM}, {"ibv_reg_mr", 0, ENOMEM, MPIX_ERRK_NO_MEM}};
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
    } cases[] = {
        {0x02c9, 4123, MPIX_ORDERED_AUTO, 1, "mlx5"},       {0x02c9, 4103, MPIX_ORDERED_AUTO, 1, "mlx4"},
        {0xffffff, 0, MPIX_ORDERED_AUTO, 1, "rxe"},         {0x1d0f, 0xefa1, MPIX_ORDERED_AUTO, 0, "vendor 0x1d0f"},
        {0x1d0f, 0xefa1, MPIX_ORDERED_YES, 1, "parameter"}, {0x02c9, 4123, MPIX_ORDERED_NO, 0, "parameter"}};
    int d = mock_add("dev0", 1);
    mock.device[d].attr.vendor_id = cases[_i].vendor;
    mock.device[d].attr.vendor_part_id = cases[_i].part;
    fix.params.ordered = cases[_i].parameter;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_int_eq(fix.net->caps.ordered, cases[_i].ordered);
    ck_assert_ptr_nonnull(strstr(fix.net->caps.why, cases[_i].word));
}
END_TEST

START_TEST(order_is_what_all_have) {
    mock_add("mlx5_0", 1);
    mock.device[mock_add("efa0", 2)].attr.vendor_id = 0x1d0f;
    devices(_i ? "efa0,mlx5_0" : "mlx5_0,efa0");
    fix.params.lanes = 2;
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_int_eq(fix.net->caps.ordered, 0);
    ck_assert_ptr_nonnull(strstr(fix.net->caps.why, "0x1d0f"));
}
END_TEST

/* ---- connecting ------------------------------------------------------------------------------------------------- */

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
    ck_assert_int_eq(qp->mask[0], IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    ck_assert_int_eq(attr[0].port_num, 1);
    ck_assert_uint_eq(attr[0].qp_access_flags,
                      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    ck_assert_int_eq(qp->mask[1], IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    ck_assert_int_eq(attr[1].path_mtu, IBV_MTU_4096);
    ck_assert_uint_eq(attr[1].dest_qp_num, 1017);
    ck_assert_uint_eq(attr[1].rq_psn, 4321);
    ck_assert_int_eq(attr[1].max_dest_rd_atomic, 8);
    ck_assert_int_eq(attr[1].ah_attr.is_global, 1);
    ck_assert_int_eq(attr[1].ah_attr.grh.sgid_index, 3);
    ck_assert_int_eq(attr[1].ah_attr.grh.dgid.raw[15], 77);
    ck_assert_int_eq(attr[1].ah_attr.grh.traffic_class, 106);
    ck_assert_int_gt(attr[1].ah_attr.grh.hop_limit, 1); /* or it would never leave the subnet */
    ck_assert_int_eq(qp->mask[2], IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
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
    fix_error(mpix_net_verbs.address(fix.net, 1, &blob), _i ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT, "mlx5_0:1",
              "rank 1", "net_depth", NULL);
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

TCase *verbs_setup_case(void) {
    TCase *c = tcase_create("setup");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_test(c, no_device);
    tcase_add_test(c, one_device);
    tcase_add_test(c, port_down);
    tcase_add_test(c, second_port);
    tcase_add_test(c, open_and_query_fail);
    tcase_add_test(c, iwarp_is_passed_over);
    tcase_add_test(c, fastest_wins);
    tcase_add_loop_test(c, ranks_are_dealt_out, 0, 3);
    tcase_add_loop_test(c, ranks_of_a_host_that_talk, 0, 2);
    tcase_add_loop_test(c, one_network_for_all, 0, 6);
    tcase_add_test(c, nearest_of_equal_ones);
    tcase_add_test(c, named_devices);
    tcase_add_loop_test(c, names_that_are_wrong, 0, 9);
    tcase_add_loop_test(c, gid_preference, 0, 5);
    tcase_add_test(c, gid_of_other_port_or_none);
    tcase_add_test(c, gid_forced);
    tcase_add_test(c, routable_address_beats_speed);
    tcase_add_test(c, infiniband_uses_lids);
    tcase_add_loop_test(c, depth_by_limits, 0, 3);
    tcase_add_test(c, limits_too_low);
    tcase_add_test(c, no_shared_receive_queue);
    tcase_add_loop_test(c, inline_is_asked_for_again, 0, 1);
    tcase_add_loop_test(c, inline_is_asked_for_again, 63, 65);
    tcase_add_loop_test(c, object_fails, 0, 6);
    tcase_add_test(c, receives_fail_at_open);
    tcase_add_loop_test(c, fork_protection, 0, 2);
    tcase_add_loop_test(c, order_by_list_and_parameter, 0, 6);
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
