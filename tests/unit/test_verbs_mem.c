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
    snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "%s", n > 1 ? "mlx5_0,mlx5_1" : "");
    fix.params.lanes = n;
    ck_assert_int_eq(fix_open(), 0);
    own_mrs = mock.nmrs;
}

START_TEST(one_piece) {
    open_devices(1, UINT64_MAX);
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory + 5, 1001, &fix.mem), 0); /* any address, any length */
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
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 17 * 8192, &fix.mem), MPIX_ERRK_NO_MEM, "mlx5_0:1",
              "8192 bytes at once", "139264 bytes", NULL);
    ck_assert_int_eq(mock.nmrs, own_mrs);
}
END_TEST

/* The third of six registrations is refused: the first two are undone. */
START_TEST(refused) {
    static const struct {
        int err, kind;
        const char *word;
    } cases[] = {{ENOMEM, MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK"}, {EAGAIN, MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK"},
                 {EPERM, MPIX_ERRK_NO_MEM, "may not lock"},    {EFAULT, MPIX_ERRK_TRANSPORT, "may write"},
                 {EINVAL, MPIX_ERRK_TRANSPORT, "refuses"},     {EOPNOTSUPP, MPIX_ERRK_TRANSPORT, "refuses"}};
    int live;

    open_devices(2, 20000);
    live = mock.live;
    mock_fail("ibv_reg_mr", 2, cases[_i].err);
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 40000, &fix.mem), cases[_i].kind, "mlx5_0:1", "40000 bytes",
              cases[_i].word, NULL);
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
    fix_error(mpix_net_verbs.mem_reg(fix.net, fix.memory, 4096, &fix.mem), MPIX_ERRK_NO_MEM, "RLIMIT_MEMLOCK is 64 KiB",
              "ulimit -l", NULL);
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
    fix_error(mpix_net_verbs.rmem_open(fix.net, 3, &key, &fix.rmem[3]), MPIX_ERRK_TRANSPORT, "rank 3", "damaged", NULL);
    ck_assert_ptr_null(fix.rmem[3]);
}
END_TEST

START_TEST(peer_with_shorter_pieces) {
    verbs_key key = {.base = 4096, .bytes = 1 << 20, .piece = 65536, .ndevices = 1, .npieces = 16};
    open_devices(1, UINT64_MAX);
    fix_error(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), MPIX_ERRK_UNSUPPORTED, "rank 1", "65536",
              "net_depth", NULL);
}
END_TEST

/* ---- GPU memory, of a GPU of cardboard -------------------------------------------------------------------------- */

static struct {
    int dmabuf, peermem, pinned; /* what works */
    int fd;                      /* the last one given out */
    int dmabufs, peermems, allocs, frees;
} gpu;

static int gpu_is(const void *address) {
    return (const unsigned char *)address >= fix.memory &&
           (const unsigned char *)address < fix.memory + sizeof fix.memory;
}
static int gpu_peermem(void) {
    gpu.peermems++;
    return gpu.peermem;
}
static int gpu_dmabuf(const void *base, size_t bytes, int *fd, uint64_t *offset) {
    ck_assert_ptr_eq(base, fix.memory + 4096);
    ck_assert_uint_eq(bytes, 32768);
    gpu.dmabufs++;
    if (!gpu.dmabuf)
        return -1;
    gpu.fd = open("/dev/null", O_RDONLY);
    ck_assert_int_ge(gpu.fd, 0);
    *fd = gpu.fd;
    *offset = 8192;
    return 0;
}
static void *gpu_alloc(size_t bytes) {
    gpu.allocs++;
    return gpu.pinned ? malloc(bytes) : NULL;
}
static void gpu_free(void *p, size_t bytes) {
    ck_assert_uint_eq(bytes, 32768);
    gpu.frees++;
    free(p);
}
static const verbs_gpu_ops gpu_table = {gpu_is, gpu_dmabuf, gpu_peermem, gpu_alloc, gpu_free};

static int gpu_reg(void) {
    verbs_gpu_set(&gpu_table);
    return mpix_net_verbs.mem_reg(fix.net, fix.memory + 4096, 32768, &fix.mem);
}

START_TEST(gpu_by_dmabuf) {
    open_devices(2, 20000);
    gpu.dmabuf = gpu.peermem = gpu.pinned = 1;
    ck_assert_int_eq(gpu_reg(), 0);
    ck_assert_int_eq(fix.mem->how, VERBS_MEM_DMABUF);
    ck_assert_int_eq(mock.nmrs, own_mrs + 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(mock.mr[own_mrs + i].fd, gpu.fd);
        ck_assert_uint_eq(mock.mr[own_mrs + i].offset, 8192u + (unsigned)(i % 2) * 16384);
        ck_assert_uint_eq(mock.mr[own_mrs + i].iova, (uintptr_t)(fix.memory + 4096 + i % 2 * 16384));
        ck_assert_int_eq(mock.mr[own_mrs + i].access, ACCESS | IBV_ACCESS_REMOTE_ATOMIC);
    }
    ck_assert_int_eq(fcntl(gpu.fd, F_GETFD), -1); /* closed */
    ck_assert_int_eq(gpu.peermems + gpu.allocs, 0);
}
END_TEST

/* No dma-buf from the GPU, or one that the device refuses: then the peer memory module. */
START_TEST(gpu_by_peermem) {
    open_devices(1, UINT64_MAX);
    gpu.dmabuf = _i;
    gpu.peermem = gpu.pinned = 1;
    mock_fail("ibv_reg_dmabuf_mr", 0, EOPNOTSUPP);
    ck_assert_int_eq(gpu_reg(), 0);
    ck_assert_int_eq(fix.mem->how, VERBS_MEM_PEERMEM);
    ck_assert_int_eq(gpu.dmabufs, 1);
    ck_assert_int_eq(mock.nmrs, own_mrs + 1);
    ck_assert_ptr_eq(mock.mr[own_mrs].mr.addr, fix.memory + 4096);
    if (_i)
        ck_assert_int_eq(fcntl(gpu.fd, F_GETFD), -1);
    ck_assert_int_eq(gpu.allocs, 0);
}
END_TEST

/* Neither: pinned host memory stands for the window, here and for the peer. Small writes may then be read by the
 * processor. */
START_TEST(gpu_staged) {
    verbs_key key;
    mpix_net_op op;

    fix.params.lanes = 1;
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_connect();
    own_mrs = mock.nmrs;
    gpu.peermem = _i; /* 1: there is a module, but not for this memory */
    gpu.pinned = 1;
    if (_i)
        mock_fail_once("ibv_reg_mr", EFAULT);
    ck_assert_int_eq(gpu_reg(), 0);
    ck_assert_int_eq(fix.mem->how, VERBS_MEM_STAGED);
    ck_assert_ptr_eq(mock.mr[own_mrs].mr.addr, fix.mem->staging);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    ck_assert_uint_eq(key.base, (uintptr_t)fix.mem->staging);
    ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
    op = (mpix_net_op){.kind = MPIX_NET_WRITE,
                       .peer = 1,
                       .mem = fix.mem,
                       .local = fix.memory + 4096 + 100,
                       .rmem = fix.rmem[1],
                       .roff = 50,
                       .len = 1000,
                       .counter = -1};
    ck_assert_int_eq(mpix_net_verbs.post(fix.net, &op, 1), 1);
    ck_assert_uint_eq(mock.wr[0].sge.addr, (uintptr_t)fix.mem->staging + 100);
    mpix_net_verbs.mem_dereg(fix.net, fix.mem);
    fix.mem = NULL;
    ck_assert_int_eq(gpu.frees, 1);
}
END_TEST

START_TEST(gpu_staging_refused) {
    open_devices(1, UINT64_MAX);
    gpu.pinned = 1;
    mock_fail("ibv_reg_mr", 0, ENOMEM);
    fix_error(gpu_reg(), MPIX_ERRK_NO_MEM, "pinned host memory", "RLIMIT_MEMLOCK", NULL);
    ck_assert_int_eq(gpu.frees, 1);
    ck_assert_int_eq(mock.nmrs, own_mrs);
}
END_TEST

START_TEST(gpu_not_at_all) {
    int live;
    open_devices(1, UINT64_MAX);
    live = mock.live;
    fix_error(gpu_reg(), MPIX_ERRK_NO_MEM, "pinned host memory", NULL);
    ck_assert_int_eq(mock.live, live);
    ck_assert_int_eq(gpu.dmabufs, 1);
    ck_assert_int_eq(gpu.peermems, 1);
    ck_assert_int_eq(gpu.allocs, 1);
}
END_TEST

/* Small writes of memory that the processor can't read are not copied into requests. */
START_TEST(gpu_is_not_read) {
    verbs_key key;
    mpix_net_op op;

    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_connect();
    gpu.dmabuf = 1;
    ck_assert_int_eq(gpu_reg(), 0);
    mpix_net_verbs.mem_key(fix.net, fix.mem, &key);
    ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
    op = (mpix_net_op){.kind = MPIX_NET_WRITE,
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
    tcase_add_loop_test(c, gpu_staged, 0, 2);
    tcase_add_test(c, gpu_staging_refused);
    tcase_add_test(c, gpu_not_at_all);
    tcase_add_test(c, gpu_is_not_read);
    return c;
}
