/*
 * test_chaos.c - unit tests of the transport chaos over shmem, on one rank that is its own peer:
 * what it may disturb it does, what it must keep it keeps. Operations are posted and memory is
 * looked at after each poll.
 */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/shared.h"
#include "check_suite.h"
#include "mpi_check.h"
#include "tests/unit/chaos_fixture.h"

static mpix_boot *boot;
mpix_params params;
mpix_net *net;
mpix_net_mem *mem;
mpix_net_rmem *rmem;
char *from, *to;

void set(const char *name, const char *value) {
    ck_assert_msg(mpix_params_set(&params, name, value) == 0, "%s", mpix_error_tls()->text);
}

void set_seed(int seed) {
    char text[16];

    snprintf(text, sizeof text, "%d", seed);
    set("chaos_seed", text);
}

/* The calls of the set-up; the kind of the first that fails. */
int open_net(void) {
    static const unsigned char want = 1;
    const mpix_net_ops *ops = mpix_net_find(params.transport);
    char blob[512];
    int kind;

    ck_assert_ptr_nonnull(ops);
    kind = ops->open(boot, &params, &want, &net);
    if (kind) {
        net = NULL;
        return kind;
    }
    ck_assert_uint_le(net->ops->address_bytes, sizeof blob);
    ck_assert_uint_le(net->ops->key_bytes, sizeof blob);
    kind = net->ops->address(net, 0, blob);
    if (!kind)
        kind = net->ops->connect(net, 0, blob);
    if (!kind)
        kind = net->ops->mem_reg(net, to, BYTES, &mem);
    if (kind)
        return kind;
    net->ops->mem_key(net, mem, blob);
    return net->ops->rmem_open(net, 0, blob, &rmem);
}

void close_net(void) {
    if (net && rmem)
        net->ops->rmem_close(net, rmem);
    if (net && mem)
        net->ops->mem_dereg(net, mem);
    if (net)
        net->ops->close(net);
    net = NULL;
    mem = NULL;
    rmem = NULL;
}

static void fresh(void) {
    ck_assert_int_eq(mpix_params_read(&params), 0);
    mpix_log_configure(MPIX_LOG_NONE, "");
    set("transport", "chaos:shmem");
    for (int i = 0; i < BYTES; i++)
        from[i] = (char)(1 + i % 100);
    memset(to, 0, BYTES);
}

mpix_net_op write_op(int i, int counted) {
    return (mpix_net_op){.op = MPIX_NET_WRITE,
                         .mem = mem,
                         .local = from + i * LEN,
                         .rmem = rmem,
                         .roff = (uint64_t)i * LEN,
                         .len = LEN,
                         .counter = counted ? i : -1};
}

/* What has landed of write i: 0 nothing, 1 a part, 2 all. */
int landed(int i) {
    int n = 0, wrong = 0;

    for (int b = i * LEN; b < (i + 1) * LEN; b++) { /* one check for all: each is a system call */
        wrong += to[b] != 0 && to[b] != from[b];
        n += to[b] != 0;
    }
    if (wrong)
        ck_abort_msg("%d bytes of write %d are neither old nor new", wrong, i);
    return n == 0 ? 0 : n == LEN ? 2 : 1;
}

static void look(seen *s) {
    for (int i = 0; i < OPS; i++) {
        int state = landed(i), known = 0;
        s->partial |= state == 1;
        for (int k = 0; k < s->norder; k++)
            known |= s->order[k] == i;
        if (state != 2 || known)
            continue;
        for (int j = 0; j < i; j++)
            s->inverted |= landed(j) != 2;
        s->order[s->norder++] = i;
    }
}

void poll_once(seen *s) {
    mpix_net_done done[8];
    mpix_net_arrival arrivals[OPS];
    int n = net->ops->poll(net, done, 8);

    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(done[i].peer, 0);
        for (int k = s->done; k < s->done + done[i].n; k++)
            ck_assert_msg(landed(k) == 2, "write %d was told as complete before it had landed", k);
        s->done += done[i].n;
        if (done[i].kind) {
            s->failed = done[i].kind;
            memcpy(s->text, done[i].text, sizeof s->text);
        }
    }
    look(s);
    n = net->ops->poll_arrivals(net, arrivals, OPS);
    for (int i = 0; i < n; i++) {
        ck_assert_msg(landed((int)arrivals[i].counter) == 2, "arrival %u came before the data",
                      arrivals[i].counter);
        if (s->narrivals)
            s->arrivals_inverted |= (int)arrivals[i].counter < s->arrivals[s->narrivals - 1];
        ck_assert_int_lt(s->narrivals, OPS);
        s->arrivals[s->narrivals++] = (int)arrivals[i].counter;
    }
}

seen run(int counted, int polls) {
    mpix_net_op ops[OPS];
    seen s = {0};
    uint64_t start = mpix_clock_ns();

    for (int i = 0; i < OPS; i++)
        ops[i] = write_op(i, counted);
    ck_assert_int_eq(net->ops->post(net, ops, OPS), OPS);
    look(&s);
    for (int i = 0; i < polls && (s.done < OPS || (counted && s.narrivals < OPS)) && !s.failed;
         i++, s.polls++)
        poll_once(&s);
    s.ns = mpix_clock_ns() - start;
    return s;
}

void whole(const seen *s, int counted) {
    int arrived[OPS] = {0};

    ck_assert_int_eq(s->done, OPS);
    ck_assert_int_eq(s->failed, 0);
    ck_assert_int_eq(s->norder, OPS);
    ck_assert_int_eq(memcmp(to, from, OPS * LEN), 0);
    for (int i = OPS * LEN; i < BYTES; i++)
        if (to[i])
            ck_abort_msg("byte %d was written", i);
    ck_assert_int_eq(s->narrivals, counted ? OPS : 0);
    for (int i = 0; i < s->narrivals; i++)
        ck_assert_int_eq(arrived[s->arrivals[i]]++, 0);
}

/* As many as the capability says, and no more; over itself; not over nothing. */
START_TEST(limits) {
    mpix_net_op ops[300];
    int n = 0;

    ck_assert_ptr_null(mpix_net_find("chaos:"));
    ck_assert_ptr_null(mpix_net_find("chaos:pigeon"));
    ck_assert_ptr_null(mpix_net_find("chaos"));
    ck_assert_ptr_nonnull(strstr(mpix_net_names(1), "chaos:"));
    set("transport", "chaos:chaos:shmem");
    ck_assert_int_eq(open_net(), 0);
    for (int i = 0; i < 300; i++)
        ops[i] = write_op(i % OPS, 0);
    n = net->ops->post(net, ops, 300);
    ck_assert_int_eq(n, net->caps.depth);
    for (int told = 0; told < n;) {
        mpix_net_done done[4];
        int k = net->ops->poll(net, done, 4);
        for (int i = 0; i < k; i++)
            told += done[i].n;
        ck_assert_int_le(told, n);
    }
    for (int i = 0; i < OPS; i++)
        ck_assert_int_eq(landed(i), 2);
}
END_TEST

/* Nothing wakes a sleeper for what is held back: then there is no descriptor to sleep on. */
START_TEST(arms) {
    mpix_net_op op;
    seen s = {0};
    int fd = -2;

    for (int seed = 1; seed <= 10; seed++) {
        set_seed(seed);
        ck_assert_int_eq(open_net(), 0);
        ck_assert_int_eq(net->ops->arm(net, &fd), 0);
        ck_assert_int_ge(fd, 0);
        net->ops->ack(net);
        op = write_op(0, 1);
        ck_assert_int_eq(net->ops->post(net, &op, 1), 1);
        ck_assert_int_eq(net->ops->arm(net, &fd), 0);
        ck_assert_int_eq(fd, -1);
        net->ops->ack(net);
        s = (seen){0};
        for (int i = 0; i < 100 && (s.done < 1 || s.narrivals < 1); i++)
            poll_once(&s);
        ck_assert_int_eq(net->ops->arm(net, &fd), 0);
        ck_assert_int_ge(fd, 0);
        net->ops->ack(net);
        close_net();
    }
}
END_TEST

/* ---- shmem by itself ------------------------------------------------------------------------- */

/* A word for memory that can't be mapped is stored by its owner's poll, which tells of it: somebody
 * may sleep until the word changes. */
START_TEST(shmem_tells_of_words) {
    uint64_t *word = calloc(1, 64);
    mpix_net_mem *own;
    mpix_net_rmem *there;
    mpix_net_arrival arrivals[4];
    mpix_net_op op = {.op = MPIX_NET_WORD, .roff = 8, .value = 77, .counter = -1};
    char blob[512];

    set("transport", "shmem");
    ck_assert_int_eq(open_net(), 0);
    ck_assert_int_eq(net->ops->mem_reg(net, word, 64, &own), 0);
    net->ops->mem_key(net, own, blob);
    ck_assert_int_eq(net->ops->rmem_open(net, 0, blob, &there), 0);
    ck_assert_int_eq(net->ops->poll_arrivals(net, arrivals, 4), 0);
    op.rmem = there;
    ck_assert_int_eq(net->ops->post(net, &op, 1), 1);
    ck_assert_uint_eq(word[1], 0);
    ck_assert_int_eq(net->ops->poll_arrivals(net, arrivals, 4), 1);
    ck_assert_uint_eq(arrivals[0].counter, MPIX_NET_STORED);
    ck_assert_int_eq(arrivals[0].peer, 0);
    ck_assert_uint_eq(word[1], 77);
    ck_assert_int_eq(net->ops->poll_arrivals(net, arrivals, 4), 0);
    op.rmem = rmem; /* which is mapped: nobody has to do anything */
    ck_assert_int_eq(net->ops->post(net, &op, 1), 1);
    ck_assert_int_eq(net->ops->poll_arrivals(net, arrivals, 4), 0);
    net->ops->rmem_close(net, there);
    net->ops->mem_dereg(net, own);
    free(word);
}
END_TEST

/* Lanes that are always busy do not keep the last one's completion back, whatever a poll
 * has room for. */
START_TEST(shmem_polls_fairly) {
    mpix_net_op op;
    mpix_net_done done[4];
    int seen = 0;

    set("transport", "shmem");
    set("lanes", "16");
    ck_assert_int_eq(open_net(), 0);
    op = write_op(0, 0);
    for (op.lane = 0; op.lane < 16; op.lane++)
        ck_assert_int_eq(net->ops->post(net, &op, 1), 1);
    for (int polls = 0; polls < 4; polls++) {
        ck_assert_int_eq(net->ops->poll(net, done, 4), 4);
        for (int i = 0; i < 4; i++) {
            seen |= 1 << done[i].lane;
            ck_assert_int_eq(done[i].n, 1);
            op.lane = done[i].lane;
            ck_assert_int_eq(net->ops->post(net, &op, 1), 1); /* busy again */
        }
    }
    ck_assert_int_eq(seen, 0xffff);
    for (int polls = 0; polls < 4; polls++)
        ck_assert_int_eq(net->ops->poll(net, done, 4), 4);
    ck_assert_int_eq(net->ops->poll(net, done, 4), 0);
}
END_TEST

int main(int argc, char **argv) {
    Suite *suite = suite_create("chaos");
    TCase *all = tcase_create("chaos");
    void *p = NULL;
    int failed;

    check_mpi_init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot) || mpix_mem_shared_alloc(BYTES, &p))
        MPI_Abort(MPI_COMM_WORLD, 1);
    from = malloc(BYTES);
    to = p;
    tcase_add_checked_fixture(all, fresh, close_net);
    tcase_set_timeout(all, 120);
    chaos_order_tests(all);
    chaos_fails_tests(all);
    tcase_add_test(all, limits);
    tcase_add_test(all, arms);
    tcase_add_test(all, shmem_tells_of_words);
    tcase_add_test(all, shmem_polls_fairly);
    suite_add_tcase(suite, all);
    failed = check_suite_run(suite);
    mpix_mem_shared_free(to);
    free(from);
    mpix_boot_free(boot, 0);
    check_leaks();
    MPI_Finalize();
    return failed != 0;
}
