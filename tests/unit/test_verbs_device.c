/* test_verbs_device.c - choice of devices, ports and addresses. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/topo.h"
#include "tests/unit/verbs_fixture.h"

/* ---- devices and ports ----------------------------------------------------------------------- */

START_TEST(no_device) {
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no RDMA device", "rdma link add", NULL);
    mock_fail("ibv_get_device_list", 0, ENOSYS);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "no RDMA device", "Function not implemented",
              NULL);
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
    fix_devices("mlx5_0");
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
    fix_devices("mlx4_0:1");
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx4_0 can't be used", NULL);
}
END_TEST

START_TEST(open_and_query_fail) {
    mock_add("mlx5_0", 1);
    mock_fail("ibv_open_device", 0, EACCES);
    fix_error(fix_open(), MPIX_ERRK_UNSUPPORTED, "mlx5_0:1", "Permission denied", "/dev/infiniband",
              NULL);
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
    /* slower: not one of those that are alike */
    mock.device[mock_add("mlx5_1", 2)].port[1].active_speed = 1;
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
    ck_assert_str_eq(fix.v->devices[0].port.network, _i < 2   ? "10.0.0.0/24"
                                                     : _i < 4 ? "10.0.0.0/16"
                                                              : "routed IPv4");
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
        snprintf(mock.device[d].ibv.ibdev_path, sizeof mock.device[d].ibv.ibdev_path, "%s/%d",
                 folder, i);
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
        ck_assert_str_eq(fix.net->caps.device, numa >= 0 ? "mlx5_1:1"
                                               : local   ? "mlx5_1:1"
                                                         : "mlx5_0:1");
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
    fix_devices("mlx5_10,mlx5_0:1");
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
    fix_devices(cases[_i].list);
    fix_error(fix_open(), cases[_i].kind, cases[_i].word, NULL);
    ck_assert_str_eq(mpix_error_tls()->arg, "mpix_ep_net_devices");
    ck_assert_int_eq(mock.live, 0);
}
END_TEST

/* ---- addresses ------------------------------------------------------------------------------- */

static void only_gids(int d, const char *const *gids, const enum ibv_gid_type *types, int n) {
    mock.device[d].ngids = 0;
    for (int i = 0; i < n; i++)
        mock_gid(d, 1, i, types[i], gids[i]);
}

START_TEST(gid_preference) {
    static const char *const gids[] = {"fe80::1", "fe80::1", "169.254.3.4", "2001:db8::5",
                                       "10.2.0.1"};
    static const enum ibv_gid_type types[] = {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2,
                                              IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V2,
                                              IBV_GID_TYPE_ROCE_V2};
    static const char *const expected[] = {"gid[0] fe80::1 RoCEv1", "gid[1] fe80::1",
                                           "gid[1] fe80::1", "gid[3] 2001:db8::5",
                                           "gid[4] 10.2.0.1"};
    int d = mock_add("mlx5_0", 1);

    only_gids(d, gids, types, _i + 1);
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, expected[_i]);
}
END_TEST

/* A queue pair names a GID by eight bits. */
START_TEST(gid_beyond_a_byte) {
    int d = mock_add("mlx5_0", 1);
    mock.device[d].ngids = 0;
    mock_gid(d, 1, 300, IBV_GID_TYPE_ROCE_V2, "10.0.0.1");
    mock_gid(d, 1, 255, IBV_GID_TYPE_ROCE_V2, "2001:db8::5");
    ck_assert_int_eq(fix_open(), 0);
    ck_assert_str_eq(fix.net->caps.address, "gid[255] 2001:db8::5");
    ck_assert_int_eq(mpix_params_set(&fix.params, "gid_index", "255"), 0);
    ck_assert_int_eq(mpix_params_set(&fix.params, "gid_index", "256"), MPIX_ERRK_ARG);
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

TCase *verbs_device_case(void) {
    TCase *c = tcase_create("device");
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
    tcase_add_test(c, gid_beyond_a_byte);
    tcase_add_test(c, gid_of_other_port_or_none);
    tcase_add_test(c, gid_forced);
    tcase_add_test(c, routable_address_beats_speed);
    tcase_add_test(c, infiniband_uses_lids);
    return c;
}
