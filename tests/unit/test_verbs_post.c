/* test_verbs_post.c - operations to work requests, doorbells, signalling, credit. */
#include "config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "tests/unit/verbs_fixture.h"

static int is_signalled(int i) { return (mock.wr[i].wr.send_flags & IBV_SEND_SIGNALED) != 0; }

/* ---- work requests --------------------------------------------------------------------------- */

START_TEST(write_arguments) {
    mpix_net_op op;
    fix_open_one();
    op = fix_write(2, 0, 100, 333, 5000);
    ck_assert_int_eq(fix_post(&op, 1), 1);
    ck_assert_int_eq(mock.nwrs, 1);
    ck_assert_ptr_eq(mock.wr[0].qp, fix_qp(2, 0));
    ck_assert_int_eq(mock.wr[0].wr.opcode, IBV_WR_RDMA_WRITE);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags, IBV_SEND_SIGNALED);
    ck_assert_uint_eq(mock.wr[0].wr.wr.rdma.remote_addr, (uintptr_t)fix.memory + 333);
    ck_assert_uint_eq(mock.wr[0].wr.wr.rdma.rkey, fix.mem->mr[0][0]->rkey);
    ck_assert_uint_eq(mock.wr[0].sge.addr, (uintptr_t)fix.memory + 100);
    ck_assert_uint_eq(mock.wr[0].sge.length, 5000);
    ck_assert_uint_eq(mock.wr[0].sge.lkey, fix.mem->mr[0][0]->lkey);
}
END_TEST

START_TEST(small_writes_are_inline) {
    mpix_net_op ops[3];
    fix_open_one();
    for (int i = 0; i < 64; i++)
        fix.memory[i] = (unsigned char)(i + 1);
    ops[0] = fix_write(1, 0, 0, 0, 64);
    ops[1] = fix_write(1, 0, 0, 0, 65);
    ops[2] = fix_write(1, 0, 0, 0, 0);
    ck_assert_int_eq(fix_post(ops, 3), 3);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags, IBV_SEND_INLINE);
    ck_assert_mem_eq(mock.wr[0].data, fix.memory, 64);
    ck_assert_uint_eq(mock.wr[1].wr.send_flags, 0);
    ck_assert_int_eq(mock.wr[2].wr.num_sge, 0);
    ck_assert_uint_eq(mock.wr[2].wr.send_flags, IBV_SEND_SIGNALED);
    ck_assert_int_eq(mock.doorbells, 1);
}
END_TEST

START_TEST(counted_write) {
    mpix_net_op op;
    fix_open_one();
    op = fix_write(1, 0, 0, 0, _i ? 0 : 100);
    op.counter = 65000;
    ck_assert_int_eq(fix_post(&op, 1), 1);
    ck_assert_int_eq(mock.wr[0].wr.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
    ck_assert_uint_eq(ntohl(mock.wr[0].wr.imm_data), 65000);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags & IBV_SEND_SOLICITED, 0);
}
END_TEST

START_TEST(word_inline) {
    mpix_net_op op;
    uint64_t value;
    fix_open_one();
    op = fix_word(3, 0, 512, 0x0123456789abcdefu);
    ck_assert_int_eq(fix_post(&op, 1), 1);
    ck_assert_int_eq(mock.wr[0].wr.opcode, IBV_WR_RDMA_WRITE);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
    ck_assert_uint_eq(mock.wr[0].sge.length, 8);
    memcpy(&value, mock.wr[0].data, 8);
    ck_assert_uint_eq(value, 0x0123456789abcdefu);
    ck_assert_uint_eq(mock.wr[0].wr.wr.rdma.remote_addr, (uintptr_t)fix.memory + 512);
}
END_TEST

/* Without inline data words lie in a ring; a slot is used again only when its
 * request is complete. */
START_TEST(word_from_the_ring) {
    mpix_net_op op;
    const uint64_t *slot[128];
    mock.inline_limit = 0;
    fix.params.net_depth = 16;
    fix_open_one();
    for (int k = 0; k < 100; k++) {
        op = fix_word(1 + k % 2, 0, 8, 1000u + (unsigned)k);
        while (fix_post(&op, 1) == 0) {
            mock_finish(fix_qp(1 + k % 2, 0), 1);
            ck_assert_int_eq(fix_poll(), 1);
        }
        slot[k] = (const uint64_t *)(uintptr_t)mock.wr[k].sge.addr;
        ck_assert_uint_eq(mock.wr[k].wr.send_flags & IBV_SEND_INLINE, 0);
        ck_assert_uint_eq(mock.wr[k].sge.lkey, fix.v->devices[0].scratch_mr->lkey);
        ck_assert(slot[k] >= fix.v->devices[0].scratch);
        ck_assert_uint_le((size_t)((const char *)(slot[k] + 1) -
                                   (const char *)fix.v->devices[0].scratch),
                          fix.v->devices[0].scratch_mr->length);
        for (int j = 0; j <= k; j++) /* what is under way still has its value */
            if (mock.wr[j].index >= mock.wr[j].qp->finished)
                ck_assert_uint_eq(*slot[j], 1000u + (unsigned)j);
    }
}
END_TEST

START_TEST(read_and_add) {
    mpix_net_op ops[2];
    fix_open_one();
    ops[0] = fix_write(1, 0, 64, 128, 5);
    ops[0].op = MPIX_NET_READ;
    ops[1] = fix_write(1, 0, 4096, 256, 8);
    ops[1].op = MPIX_NET_ADD;
    ops[1].value = 77;
    ck_assert_int_eq(fix_post(ops, 2), 2);
    ck_assert_int_eq(mock.wr[0].wr.opcode, IBV_WR_RDMA_READ);
    ck_assert_uint_eq(mock.wr[0].wr.send_flags, 0); /* inline is for what leaves */
    ck_assert_uint_eq(mock.wr[0].sge.addr, (uintptr_t)fix.memory + 64);
    ck_assert_uint_eq(mock.wr[0].wr.wr.rdma.remote_addr, (uintptr_t)fix.memory + 128);
    ck_assert_int_eq(mock.wr[1].wr.opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
    ck_assert_uint_eq(mock.wr[1].wr.wr.atomic.compare_add, 77);
    ck_assert_uint_eq(mock.wr[1].wr.wr.atomic.remote_addr, (uintptr_t)fix.memory + 256);
    ck_assert_uint_eq(mock.wr[1].wr.wr.atomic.rkey, fix.mem->mr[0][0]->rkey);
    ck_assert_uint_eq(mock.wr[1].sge.addr, (uintptr_t)fix.memory + 4096);
    ck_assert_uint_eq(mock.wr[1].sge.length, 8);
}
END_TEST

START_TEST(mistakes_of_the_caller) {
    mpix_net_op op;
    fix_open_one();
    op = fix_write(1, 0, 0, 0, 16);
    switch (_i) {
    case 0: op.roff = sizeof fix.memory - 15; break;
    case 1: op.roff = UINT64_MAX - 7; break;
    case 2: op.local = fix.memory + sizeof fix.memory - 15; break;
    case 3: op.local = (void *)((uintptr_t)fix.memory - 1); break;
    case 4: op = fix_word(1, 0, 4, 1); break;
    case 5: op = fix_word(1, 0, sizeof fix.memory, 1); break;
    case 6: op.op = MPIX_NET_ADD, op.roff = 3; break;
    default: op.len = (1u << 30) + 1; break;
    }
    fix_error(-fix_post(&op, 1), MPIX_ERRK_INTERNAL, "rank 1", NULL);
    ck_assert_int_eq(mock.doorbells, 0);
    op = fix_write(1, 0, 0, 0, 16);
    ck_assert_int_eq(fix_post(&op, 1), 1);
}
END_TEST

START_TEST(add_without_atomics) {
    mpix_net_op op;
    mock_add("x", 1);
    mock.device[0].attr.atomic_cap = IBV_ATOMIC_NONE;
    fix_reopen();
    op = fix_write(1, 0, 0, 0, 8);
    op.op = MPIX_NET_ADD;
    fix_error(-fix_post(&op, 1), MPIX_ERRK_UNSUPPORTED, "x:1", "atomic", NULL);
}
END_TEST

/* Lanes go over the devices in turn, on both sides; each has the keys of its own device here and of
 * the peer's there.
 */
START_TEST(keys_of_lanes) {
    mpix_net_op op;
    verbs_blob blob;
    mock_add("mlx5_0", 1);
    mock_add("mlx5_1", 2);
    snprintf(fix.params.net_devices, sizeof fix.params.net_devices, "mlx5_0,mlx5_1");
    fix.params.lanes = 3;
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(1, &blob);
    blob.ndevices = 3; /* the peer has one more */
    blob.device[2] = blob.device[0];
    for (int l = 0; l < 3; l++)
        blob.lane[l].device = (uint32_t)l;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 1, &blob), 0);
    {
        verbs_key key = {.base = 0x10000,
                         .bytes = 4096,
                         .piece = 4096,
                         .ndevices = 3,
                         .npieces = 1,
                         .rkey = {{11}, {22}, {33}}};
        ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
    }
    ck_assert_int_eq(mpix_net_verbs.mem_reg(fix.net, fix.memory, sizeof fix.memory, &fix.mem), 0);
    for (int l = 0; l < 3; l++) {
        op = fix_write(1, l, 0, 0, 100);
        ck_assert_int_eq(fix_post(&op, 1), 1);
        ck_assert_uint_eq(mock.wr[l].wr.wr.rdma.rkey, 11u * (unsigned)(l + 1));
        ck_assert_uint_eq(mock.wr[l].sge.lkey, fix.mem->mr[l % 2][0]->lkey);
    }
}
END_TEST

/* Pieces of 16384 bytes on both sides: requests end at the edges of either, and are
 * one operation. */
START_TEST(cut_at_pieces) {
    static const struct {
        uint64_t loff, roff, len;
        int n;
        uint64_t lens[4];
    } cases[] = {{0, 0, 16384, 1, {16384}},
                 {100, 200, 16384, 3, {16184, 100, 100}},
                 {16383, 16383, 2, 2, {1, 1}},
                 {16000, 0, 1000, 2, {384, 616}},
                 {5, 16380, 8, 2, {4, 4}}};
    mpix_net_op op;
    uint64_t at = 0;

    mock_add("mlx5_0", 1);
    mock.device[0].attr.max_mr_size = 16384;
    fix_reopen();
    op = fix_write(1, 0, cases[_i].loff, cases[_i].roff, cases[_i].len);
    op.counter = 5;
    ck_assert_int_eq(fix_post(&op, 1), 1);
    ck_assert_int_eq(mock.nwrs, cases[_i].n);
    ck_assert_int_eq(mock.doorbells, 1);
    for (int i = 0; i < cases[_i].n; i++) {
        int last = i == cases[_i].n - 1;
        const mock_wr *wr = &mock.wr[i];
        ck_assert_uint_eq(wr->sge.length, cases[_i].lens[i]);
        ck_assert_uint_eq(wr->sge.addr, (uintptr_t)fix.memory + cases[_i].loff + at);
        ck_assert_uint_eq(wr->sge.lkey, fix.mem->mr[0][(cases[_i].loff + at) / 16384]->lkey);
        ck_assert_uint_eq(wr->wr.wr.rdma.remote_addr, (uintptr_t)fix.memory + cases[_i].roff + at);
        ck_assert_uint_eq(wr->wr.wr.rdma.rkey, fix.mem->mr[0][(cases[_i].roff + at) / 16384]->rkey);
        /* counted once */
        ck_assert_int_eq(wr->wr.opcode, last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
        ck_assert_int_eq(is_signalled(i), last);
        at += cases[_i].lens[i];
    }
    mock_finish(fix_qp(1, 0), cases[_i].n);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 1);
}
END_TEST

/* ---- doorbells and signalling ---------------------------------------------------------------- */

START_TEST(one_doorbell_per_lane) {
    mpix_net_op ops[12];
    fix.params.lanes = 2;
    fix_open_one();
    for (int i = 0; i < 12; i++)
        ops[i] = fix_word(1 + i % 3, i / 6, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, 12), 12);
    ck_assert_int_eq(mock.doorbells, 6);
    ck_assert_int_eq(mock.nwrs, 12);
    for (int p = 1; p < FIX_RANKS; p++)
        for (int l = 0; l < 2; l++)
            ck_assert_int_eq(fix_qp(p, l)->posted, 2);
    for (int i = 0; i < 12; i++)
        ck_assert_int_eq(is_signalled(i), mock.wr[i].index == 1); /* the second of each lane */
}
END_TEST

START_TEST(few_are_signalled) {
    mpix_net_op ops[100];
    int signalled = 0;
    fix_open_one(); /* depth 128: every 32nd, and the last */
    for (int i = 0; i < 100; i++)
        ops[i] = fix_word(1, 0, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, 100), 100);
    ck_assert_int_eq(mock.doorbells, 1);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(is_signalled(i), i % 32 == 31 || i == 99);
        signalled += is_signalled(i);
    }
    ck_assert_int_eq(signalled, 4);
    mock_finish(fix_qp(1, 0), 63);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 32);
    mock_finish(fix_qp(1, 0), 37);
    ck_assert_int_eq(fix_poll(), 1); /* two completions of one lane, told as one */
    ck_assert_int_eq(fix_done[0].n, 68);
    ck_assert_int_eq(fix_done[0].peer, 1);
    ck_assert_int_eq(fix_done[0].kind, 0);
}
END_TEST

/* More than the array of requests holds: rung in between, all in order. */
START_TEST(long_calls) {
    enum { N = 300 };
    static mpix_net_op ops[N];
    fix.params.net_depth = 512;
    fix_open_one();
    for (int i = 0; i < N; i++)
        ops[i] = fix_word(1, 0, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, N), N);
    ck_assert_int_eq(mock.doorbells, 3);
    for (int i = 0; i < N; i++) {
        uint64_t value;
        memcpy(&value, mock.wr[i].data, 8);
        ck_assert_uint_eq(value, (uint64_t)i);
    }
    mock_finish(fix_qp(1, 0), N);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, N);
}
END_TEST

START_TEST(full_lane) {
    mpix_net_op ops[20];
    fix.params.net_depth = 16;
    fix_open_one();
    for (int i = 0; i < 20; i++)
        ops[i] = fix_word(i == 19 ? 2 : 1, 0, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, 20), 16);
    ck_assert_int_eq(fix_post(ops + 16, 4), 0); /* in order: also the one to another peer waits */
    ck_assert_int_eq(fix_post(ops + 19, 1), 1);
    mock_finish(fix_qp(1, 0), 3);
    ck_assert_int_eq(fix_poll(), 0); /* the third is not a signalled one */
    mock_finish(fix_qp(1, 0), 1);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 4);
    ck_assert_int_eq(fix_post(ops + 16, 3), 3);
    mock_finish(fix_qp(1, 0), 15);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(fix_done[0].n, 15);
}
END_TEST

/* Numbers in wr_id wrap; nothing may depend on them beyond their difference. */
START_TEST(sequence_wraps) {
    mpix_net_op op;
    int completed = 0;
    verbs_lane *lane;
    fix_open_one();
    lane = verbs_lane_of(fix.v, 1, 0);
    lane->op_seq = lane->op_done = lane->wr_seq = lane->wr_done = UINT32_MAX - 150;
    for (int k = 0; k < 400; k++) {
        op = fix_word(1, 0, 8, (uint64_t)k);
        while (fix_post(&op, 1) == 0) {
            mock_finish(fix_qp(1, 0), 50);
            ck_assert_int_eq(fix_poll(), 1);
            completed += fix_done[0].n;
        }
    }
    mock_finish(fix_qp(1, 0), 400 - completed);
    ck_assert_int_eq(fix_poll(), 1);
    ck_assert_int_eq(completed + fix_done[0].n, 400);
}
END_TEST

/* The peer's receive queue was made for 8 of this lane's operations. */
START_TEST(peers_credit_is_kept) {
    mpix_net_op ops[20];
    verbs_blob blob;
    verbs_key key = {.base = 4096, .bytes = 4096, .piece = 4096, .ndevices = 1, .npieces = 1};
    mock_add("mlx5_0", 1);
    ck_assert_int_eq(fix_open(), 0);
    fix_blob(1, &blob);
    blob.depth = 8;
    ck_assert_int_eq(mpix_net_verbs.connect(fix.net, 1, &blob), 0);
    ck_assert_int_eq(mpix_net_verbs.rmem_open(fix.net, 1, &key, &fix.rmem[1]), 0);
    for (int i = 0; i < 20; i++)
        ops[i] = fix_word(1, 0, 8, (uint64_t)i);
    ck_assert_int_eq(fix_post(ops, 20), 8);
}
END_TEST

TCase *verbs_post_case(void) {
    TCase *c = tcase_create("post");
    tcase_add_checked_fixture(c, fix_setup, fix_teardown);
    tcase_add_test(c, write_arguments);
    tcase_add_test(c, small_writes_are_inline);
    tcase_add_loop_test(c, counted_write, 0, 2);
    tcase_add_test(c, word_inline);
    tcase_add_test(c, word_from_the_ring);
    tcase_add_test(c, read_and_add);
    tcase_add_loop_test(c, mistakes_of_the_caller, 0, 8);
    tcase_add_test(c, add_without_atomics);
    tcase_add_test(c, keys_of_lanes);
    tcase_add_loop_test(c, cut_at_pieces, 0, 5);
    tcase_add_test(c, one_doorbell_per_lane);
    tcase_add_test(c, few_are_signalled);
    tcase_add_test(c, long_calls);
    tcase_add_test(c, full_lane);
    tcase_add_test(c, sequence_wraps);
    tcase_add_test(c, peers_credit_is_kept);
    return c;
}
