/* test_verbs_mem.c - registration, its limits and errors; keys; GPU memory by every way. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/unit/verbs_fixture.h"

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static int own_mrs; /* of the transport itself, made by open */

static void open_devices(int n, uint64_t max_mr_size) {
    for (int i = 0; i < n; i++) {
        mock_add(i ? "mlx5_1" : "mlx5_0", i + 1);
        mock.device[i].attr.max_mr_size = max_mr_size;
    }
    snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "%s",
             n > 1 ? "mlx5_0,mlx5_1" : "");
    fix.params.lanes = n;
    ck_assert_int_eq(fix_open(), 0);
    own_mrs = mock.nmrs;
}

START_TEST(one_piece) {
    open_devices(1, UINT64_MAX);
    /* any address, any length */
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory + 5, 1001, &fix.mem), 0);
    ck_assert_int_eq(mock.nmrs, own_mrs + 1);
    ck_assert_ptr_eq(mock.mr[own_mrs].mr.addr, fix.memory + 5);
    ck_assert_uint_eq(mock.mr[own_mrs].mr.length, 1001);
    ck_assert_int_eq(mock.mr[own_mrs].access, ACCESS | IBV_ACCESS_REMOTE_ATOMIC);
}
END_TEST

START_TEST(no_atomics) {
    mock_add("x", 1);
    mock.device[0].attr.atomic_cap = IBV_ATOMIC_NONE;
    ck_assert_int_eq(fix_open(), 0);
    own_mrs = mock.nmrs;
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory, 4096, &fix.mem), 0);
    ck_assert_int_eq(mock.mr[own_mrs].access, ACCESS);
}
END_TEST

START_TEST(empty_window) {
    verbs_key key;
    open_devices(1, UINT64_MAX);
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, NULL, 0, &fix.mem), 0);
    ck_assert_int_eq(mock.nmrs, own_mrs);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
}
END_TEST

START_TEST(pieces_of_two_devices) {
    verbs_key key;
    open_devices(2, 20000); /* pieces of 16384 */
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory, 40000, &fix.mem), 0);
    ck_assert_int_eq(mock.nmrs, own_mrs + 6);
    for (int i = 0; i < 6; i++) {
        const mock_mr *mr = &mock.mr[own_mrs + i];
        ck_assert_ptr_eq(mr->mr.addr, fix.memory + i % 3 * 16384);
        ck_assert_uint_eq(mr->mr.length, i % 3 == 2 ? 40000 - 2 * 16384 : 16384);
        ck_assert_ptr_eq(mr->mr.pd, fix.v->devices[i / 3].pd);
    }
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    ck_assert_uint_eq(key.base, (uintptr_t)fix.memory);
    ck_assert_uint_eq(key.bytes, 40000);
    ck_assert_uint_eq(key.piece, 16384);
    ck_assert_uint_eq(key.ndevices, 2);
    ck_assert_uint_eq(key.npieces, 3);
    for (int i = 0; i < 6; i++)
        ck_assert_uint_eq(key.rkey[i / 3][i % 3], mock.mr[own_mrs + i].mr.rkey);
    ck_assert_uint_eq(fix.net->caps.max_op, 16384);
}
END_TEST

START_TEST(too_many_pieces) {
    open_devices(1, 8192);
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 17 * 8192, &fix.mem), MPIX_ERRK_NO_MEM,
              "mlx5_0:1", "8192 bytes at once", "139264 bytes", NULL);
    ck_assert_int_eq(mock.nmrs, own_mrs);
}
END_TEST

/* The third of six registrations is refused: the first two are undone. */
START_TEST(refused) {
    static const struct {
        int err, kind;
        const char *word;
    } cases[] = {{ENOMEM, MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK"},
                 {EAGAIN, MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK"},
                 {EPERM, MPIX_ERRK_NO_MEM, "may not lock"},
                 {EFAULT, MPIX_ERRK_TRANSPORT, "may write"},
                 {EINVAL, MPIX_ERRK_TRANSPORT, "refuses"},
                 {EOPNOTSUPP, MPIX_ERRK_TRANSPORT, "refuses"}};
    int live;

    open_devices(2, 20000);
    live = mock.live;
    mock_fail("ibv_reg_mr", 2, cases[_i].err);
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 40000, &fix.mem), cases[_i].kind,
              "mlx5_0:1", "40000 bytes", cases[_i].word, NULL);
    ck_assert_int_eq(mpix_error_tls()->sys_errno, cases[_i].err);
    ck_assert_int_eq(mock.nmrs, own_mrs + 2);
    ck_assert_int_eq(mock.live, live);
}
END_TEST

START_TEST(memlock_is_named) {
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 64 * 1024;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < limit.rlim_cur)
        limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    open_devices(1, UINT64_MAX);
    mock_fail("ibv_reg_mr", 0, ENOMEM);
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 4096, &fix.mem), MPIX_ERRK_NO_MEM,
              "RLIMIT_MEMLOCK is 64 KiB", "ulimit -l", NULL);
}
END_TEST

START_TEST(damaged_keys) {
    verbs_key key;
    open_devices(1, UINT64_MAX);
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory, 4096, &fix.mem), 0);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    switch (_i) {
    case 0: key.ndevices = 5; break;
    case 1: key.npieces = 17; break;
    case 2: key.piece = 0; break;
    default: key.npieces = 0; break;
    }
    fix_error(mpix_net_verbs.rmem_open(fix.net, 3, &key, &fix.rmem[3]), MPIX_ERRK_TRANSPORT,
              "rank 3", "damaged", NULL);
    ck_assert_ptr_null(fix.rmem[3]);
}
END_TEST

START_TEST(peer_with_shorter_pieces) {
    verbs_key key = {.base = 4096, .bytes = 1 << 20, .piece = 65536, .ndevices = 1, .npieces = 16};
    open_devices(1, UINT64_MAX);
    fix_error(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), MPIX_ERRK_UNSUPPORTED,
              "rank 1", "65536", "net_depth", NULL);
}
END_TEST

/* ---- GPU memory, of a GPU of cardboard ------------------------------------------------------- */

static mpix_net_gpu way;

static int gpu_reg(int dmabuf, int peermem) {
    way = (mpix_net_gpu){.fd = dmabuf ? 77 : -1, .off = 8192, .peermem = peermem};
    return mpix_net_verbs.mem_reg_gpu(fix.net, fix.memory + 4096, 32768, &way, &fix.mem);
}

START_TEST(gpu_by_dmabuf) {
    open_devices(2, 20000);
    ck_assert_int_eq(gpu_reg(1, 1), 0);
    ck_assert_str_eq(way.how, "dma-buf");
    ck_assert_int_eq(mock.nmrs, own_mrs + 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(mock.mr[own_mrs + i].fd, 77);
        ck_assert_uint_eq(mock.mr[own_mrs + i].offset, 8192u + (unsigned)(i % 2) * 16384);
        ck_assert_uint_eq(mock.mr[own_mrs + i].iova,
                          (uintptr_t)(fix.memory + 4096 + i % 2 * 16384));
        ck_assert_int_eq(mock.mr[own_mrs + i].access, ACCESS | IBV_ACCESS_REMOTE_ATOMIC);
    }
}
END_TEST

/* No dma-buf from the GPU, or one that the device refuses: then the peer memory module. */
START_TEST(gpu_by_peermem) {
    open_devices(1, UINT64_MAX);
    mock_fail("ibv_reg_dmabuf_mr", 0, EOPNOTSUPP);
    ck_assert_int_eq(gpu_reg(_i, 1), 0);
    ck_assert_str_eq(way.how, "peer memory");
    ck_assert_int_eq(mock.nmrs, own_mrs + 1);
    ck_assert_ptr_eq(mock.mr[own_mrs].mr.addr, fix.memory + 4096);
}
END_TEST

/* Neither: that is no error here, the caller takes other memory. Nothing stays registered. */
START_TEST(gpu_not_at_all) {
    static const struct {
        int dmabuf, peermem;
        const char *first, *second;
    } cases[] = {{0, 0, "not exported", "no module"},
                 {1, 0, "Cannot allocate", "no module"},
                 {0, 1, "not exported", "Bad address"},
                 {1, 1, "Cannot allocate", "Bad address"}};
    int live;

    open_devices(2, UINT64_MAX);
    live = mock.live;
    mock_fail("ibv_reg_dmabuf_mr", 1, ENOMEM); /* the second device refuses */
    mock_fail("ibv_reg_mr", 0, EFAULT);
    ck_assert_int_eq(gpu_reg(cases[_i].dmabuf, cases[_i].peermem), MPIX_ERRK_UNSUPPORTED);
    ck_assert_ptr_null(way.how);
    ck_assert_ptr_nonnull(strstr(way.why, cases[_i].first));
    ck_assert_ptr_nonnull(strstr(way.why, cases[_i].second));
    ck_assert_int_eq(mock.live, live);
}
END_TEST

/* Small writes of memory that the processor can't read are not copied into requests. */
START_TEST(gpu_is_not_read) {
    verbs_key key;
    mpix_net_op op;

    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_connect();
    ck_assert_int_eq(gpu_reg(1, 0), 0);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
    op = (mpix_net_op){.op = MPIX_NET_WRITE,
                       .peer = 1,
                       .mem = fix.mem,
                       .local = fix.memory + 4096,
                       .rmem = fix.rmem[1],
                       .len = 16,
                       .counter = -1};
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags & IBV_SEND_INLINE, 0);
}
END_TEST

TCase *verbs_mem_case(void) {
    TCase *c = tcase_create("mem");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_test(c, one_piece);
    tcase_add_test(c, no_atomics);
    tcase_add_test(c, empty_window);
    tcase_add_test(c, pieces_of_two_devices);
    tcase_add_test(c, too_many_pieces);
    tcase_add_loop_test(c, refused, 0, 6);
    tcase_add_test(c, memlock_is_named);
    tcase_add_loop_test(c, damaged_keys, 0, 4);
    tcase_add_test(c, peer_with_shorter_pieces);
    tcase_add_test(c, gpu_by_dmabuf);
    tcase_add_loop_test(c, gpu_by_peermem, 0, 2);
    tcase_add_loop_test(c, gpu_not_at_all, 0, 4);
    tcase_add_test(c, gpu_is_not_read);
    return c;
}
