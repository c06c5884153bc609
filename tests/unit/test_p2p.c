/*
 * test_p2p.c - unit tests of p2p/ on one rank, which is its own peer: stale handles, ranges, wrong
 * peers, the table of registrations, the ring, vectors, counters. MPI is initialized once, as a job
 * of one rank; each test has an object of its own.
 */
#include "config.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_suite.h"
#include "mpi_check.h"
#include "p2p/p2p.h"

enum { BYTES = 1 << 20, HALF = BYTES / 2 };

static MPIX_P2p p2p;
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at;
static unsigned char *base;

static void set_up(void) {
    mpix_log_configure(MPIX_LOG_NONE, "");
    ck_assert_int_eq(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p), MPI_SUCCESS);
    mpix_log_configure(MPIX_LOG_NONE, "");
    ck_assert_int_eq(MPIX_P2p_set_errhandler(p2p, MPI_ERRORS_RETURN), MPI_SUCCESS);
    ck_assert_int_eq(MPIX_P2p_alloc(p2p, BYTES, MPI_INFO_NULL, &base, &mem), MPI_SUCCESS);
    ck_assert_int_eq(MPIX_P2p_exchange(mem, &at), MPI_SUCCESS);
    for (size_t i = 0; i < BYTES; i++)
        base[i] = (unsigned char)(i * 2654435761u >> 11);
}

static void tear_down(void) {
    if (p2p)
        ck_assert_int_eq(MPIX_P2p_free(&p2p), MPI_SUCCESS);
}

static int kind_of(int code) {
    int kind = -1;
    MPIX_Error_kind(code, &kind);
    return kind;
}
/* An error of that kind that names that argument. */
static void refused(int line, int code, int kind, const char *arg) {
    MPIX_Error error;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    ck_assert_msg(kind_of(code) == kind, "line %d: kind %d: %s", line, kind_of(code), error.text);
    ck_assert_msg(!arg || strcmp(error.arg, arg) == 0, "line %d: names \"%s\", not \"%s\"", line,
                  error.arg, arg);
}
#define REFUSED(call, arg) refused(__LINE__, (call), MPIX_ERRK_ARG, (arg))

static MPIX_P2p_iov piece(size_t off, size_t roff, size_t len) {
    return (MPIX_P2p_iov){mem, (MPI_Count)off, at, (MPI_Count)roff, (MPI_Count)len};
}

/* ---- handles --------------------------------------------------------------------------------- */

START_TEST(stale_handles) {
    MPIX_P2p_mem other, old_mem;
    MPIX_P2p_rmem there, old_there;
    MPIX_P2p old = p2p;
    MPI_Count bytes = 0;
    static char memory[64];

    ck_assert_int_eq(MPIX_P2p_reg(p2p, memory, sizeof memory, MPI_INFO_NULL, &other), MPI_SUCCESS);
    ck_assert_int_eq(MPIX_P2p_exchange(other, &there), MPI_SUCCESS);
    old_mem = other;
    old_there = there;
    ck_assert_int_eq(MPIX_P2p_dereg(&other), MPI_SUCCESS);
    ck_assert_ptr_null(other);
    REFUSED(MPIX_P2p_dereg(&old_mem), "mem");
    REFUSED(MPIX_P2p_dereg(&other), "mem");
    REFUSED(MPIX_P2p_export(old_mem, 0, 1, NULL, &bytes), "mem");
    MPIX_P2p_iov iov = {old_mem, 0, at, 0, 8};
    REFUSED(MPIX_P2p_put(&iov, 1), "iov.mem");
    REFUSED(MPIX_P2p_send(p2p, 0, &iov, 1), "iov.mem");
    iov = (MPIX_P2p_iov){mem, 0, there, 0, 8}; /* its owner has deregistered it */
    REFUSED(MPIX_P2p_put(&iov, 1), NULL);
    REFUSED(MPIX_P2p_get(&iov, 1), NULL);
    int64_t was;
    REFUSED(MPIX_P2p_fetch_add(there, 0, 1, &was), NULL);
    ck_assert_int_eq(MPIX_P2p_rmem_free(&there), MPI_SUCCESS);
    REFUSED(MPIX_P2p_rmem_free(&old_there), "rmem");
    iov = (MPIX_P2p_iov){mem, 0, old_there, 0, 8};
    REFUSED(MPIX_P2p_put(&iov, 1), "iov.rmem");
    REFUSED(MPIX_P2p_fetch_add(old_there, 0, 1, &was), "rmem");
    ck_assert_int_eq(MPIX_P2p_free(&p2p), MPI_SUCCESS);
    ck_assert_ptr_null(p2p);
    REFUSED(MPIX_P2p_flush(old, 0), "p2p");
    /* ended with the object */
    REFUSED(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at, 0, 8}, 1), "iov.mem");
    REFUSED(MPIX_P2p_free(&old), "p2p");
}
END_TEST

START_TEST(in_flight) { /* what a transfer uses can't go */
    MPIX_P2p_iov iov = piece(0, 0, 8);
    MPIX_Xfer xfer;
    MPIX_P2p_mem same = mem;

    ck_assert_int_eq(MPIX_P2p_irecv(p2p, 0, &iov, 1, NULL, &xfer), MPI_SUCCESS);
    ck_assert_ptr_nonnull(xfer);
    REFUSED(MPIX_P2p_dereg(&mem), "mem");
    ck_assert_ptr_eq(mem, same);
    REFUSED(MPIX_P2p_free(&p2p), "p2p");
    iov = piece(64, 0, 8);
    ck_assert_int_eq(MPIX_P2p_send(p2p, 0, &iov, 1), MPI_SUCCESS);
    ck_assert_int_eq(MPIX_Xfer_wait(&xfer), MPI_SUCCESS);
    ck_assert_mem_eq(base, base + 64, 8);
    ck_assert_int_eq(MPIX_P2p_dereg(&mem), MPI_SUCCESS);
}
END_TEST

/* ---- ranges and peers ------------------------------------------------------------------------ */

START_TEST(ranges) {
    static const struct {
        MPI_Count off, roff, len;
        const char *arg;
    } bad[] = {{-1, 0, 1, "iov.off"},         {0, -1, 1, "iov.roff"},
               {0, 0, -1, "iov.len"},         {BYTES, 0, 1, "iov.off"},
               {BYTES - 7, 0, 8, "iov.off"},  {0, BYTES - 7, 8, "iov.roff"},
               {0, BYTES + 1, 0, "iov.roff"}, {INT64_MAX, 0, INT64_MAX, "iov.off"},
               {1, 0, INT64_MAX, "iov.off"},  {0, INT64_MAX, 1, "iov.roff"},
               {0, 0, BYTES + 1, "iov.off"}};
    int64_t was;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        MPIX_P2p_iov iov[3] = {piece(0, HALF, 8),
                               piece(8, HALF + 8, 8),
                               {mem, bad[i].off, at, bad[i].roff, bad[i].len}};
        unsigned char before[16];
        memcpy(before, base + HALF, 16);
        REFUSED(MPIX_P2p_put(iov + 2, 1), bad[i].arg);
        REFUSED(MPIX_P2p_get(iov + 2, 1), bad[i].arg);
        /* in the middle of a vector, and nothing is moved */
        REFUSED(MPIX_P2p_put(iov, 3), bad[i].arg);
        REFUSED(MPIX_P2p_put_notify(iov, 3, 0, 1), bad[i].arg);
        ck_assert_mem_eq(base + HALF, before, 16);
    }
    /* nothing, at the end */
    ck_assert_int_eq(MPIX_P2p_put(&(MPIX_P2p_iov){mem, BYTES, at, BYTES, 0}, 1), MPI_SUCCESS);
    REFUSED(MPIX_P2p_fetch_add(at, 4, 1, &was), "roff");
    REFUSED(MPIX_P2p_fetch_add(at, BYTES, 1, &was), "roff");
    REFUSED(MPIX_P2p_fetch_add(at, -8, 1, &was), "roff");
    MPIX_P2p_iov one = piece(0, HALF, 8);
    REFUSED(MPIX_P2p_put_notify(&one, 1, p2p->slots, 1), "slot");
    REFUSED(MPIX_P2p_put_notify(&one, 1, -1, 1), "slot");
    REFUSED(MPIX_P2p_put(&one, 0), "n");
    REFUSED(MPIX_P2p_put(&one, -1), "n");
    REFUSED(MPIX_P2p_put(NULL, 1), "iov");
    REFUSED(MPIX_P2p_iput(&one, 1, NULL), "xfer");
}
END_TEST

START_TEST(wrong_peer) {
    char blob[512], wrong[512];
    MPI_Count n = sizeof blob;
    MPIX_P2p_rmem there;
    MPIX_P2p other;
    MPIX_P2p_iov iov = piece(0, 0, 8);

    ck_assert_int_eq(MPIX_P2p_export(mem, 16, 64, blob, &n), MPI_SUCCESS);
    REFUSED(MPIX_P2p_import(p2p, 1, blob, n, &there), "peer");
    REFUSED(MPIX_P2p_import(p2p, -1, blob, n, &there), "peer");
    REFUSED(MPIX_P2p_import(p2p, 0, blob, n - 1, &there), "buflen");
    REFUSED(MPIX_P2p_import(p2p, 0, NULL, n, &there), "buf");
    memcpy(wrong, blob, sizeof blob);
    wrong[0] ^= 1; /* another version */
    REFUSED(MPIX_P2p_import(p2p, 0, wrong, n, &there), "buf");
    memcpy(wrong, blob, sizeof blob);
    ((p2p_blob *)(void *)wrong)->mem_off = BYTES - 63; /* beyond the registration */
    REFUSED(MPIX_P2p_import(p2p, 0, wrong, n, &there), "buf");
    memcpy(wrong, blob, sizeof blob);
    ((p2p_blob *)(void *)wrong)->id = P2P_MEMS; /* no such place */
    REFUSED(MPIX_P2p_import(p2p, 0, wrong, n, &there), "buf");
    ck_assert_int_eq(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &other), MPI_SUCCESS);
    mpix_log_configure(MPIX_LOG_NONE, "");
    MPIX_P2p_set_errhandler(other, MPI_ERRORS_RETURN);
    REFUSED(MPIX_P2p_import(other, 0, blob, n, &there), "buf"); /* exported by another object */
    REFUSED(MPIX_P2p_send(other, 0, &iov, 1), "iov.mem");
    ck_assert_int_eq(MPIX_P2p_free(&other), MPI_SUCCESS);
    REFUSED(MPIX_P2p_send(p2p, 1, &iov, 1), "peer");
    REFUSED(MPIX_P2p_recv(p2p, -1, &iov, 1, NULL), "peer");
    REFUSED(MPIX_P2p_flush(p2p, 1), "peer");
    ck_assert_int_eq(MPIX_P2p_import(p2p, 0, blob, n, &there), MPI_SUCCESS);
    /* the range of the handle counts, not the registration's */
    iov = (MPIX_P2p_iov){mem, 0, there, 57, 8};
    REFUSED(MPIX_P2p_put(&iov, 1), "iov.roff");
    iov.roff = 56;
    ck_assert_int_eq(MPIX_P2p_put(&iov, 1), MPI_SUCCESS);
    ck_assert_mem_eq(base + 16 + 56, base, 8);
}
END_TEST

/* ---- the table ------------------------------------------------------------------------------- */

START_TEST(table) {
    static char memory[P2P_MEMS];
    static MPIX_P2p_mem mems[P2P_MEMS];
    MPIX_P2p_mem more;
    int n = P2P_MEMS - 1; /* one place is the fixture's */

    for (int i = 0; i < n; i++)
        ck_assert_int_eq(MPIX_P2p_reg(p2p, memory + i, 1, MPI_INFO_NULL, &mems[i]), MPI_SUCCESS);
    refused(__LINE__, MPIX_P2p_reg(p2p, memory, 1, MPI_INFO_NULL, &more), MPIX_ERRK_NO_MEM, NULL);
    uint64_t id = mems[100]->id;
    ck_assert_ptr_eq(p2p_mem_find(p2p, id, 0, 1), mems[100]);
    ck_assert_ptr_null(p2p_mem_find(p2p, id, 1, 1));
    ck_assert_ptr_null(p2p_mem_find(p2p, id, UINT64_MAX, 2));
    ck_assert_ptr_null(p2p_mem_find(p2p, id + ((uint64_t)1 << 32), 0, 1));
    ck_assert_int_eq(MPIX_P2p_dereg(&mems[100]), MPI_SUCCESS);
    ck_assert_ptr_null(p2p_mem_find(p2p, id, 0, 1));
    ck_assert_uint_eq(p2p->ctl->mem_gen[(uint32_t)id], 0);
    /* the place is used again, the number is not */
    ck_assert_int_eq(MPIX_P2p_reg(p2p, memory, 1, MPI_INFO_NULL, &mems[100]), MPI_SUCCESS);
    ck_assert_uint_eq((uint32_t)mems[100]->id, (uint32_t)id);
    ck_assert_uint_ne(mems[100]->id, id);
    ck_assert_uint_eq(p2p->ctl->mem_gen[(uint32_t)id], mems[100]->id);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(MPIX_P2p_dereg(&mems[i]), MPI_SUCCESS);
}
END_TEST

/* ---- the ring -------------------------------------------------------------------------------- */

START_TEST(ring) {
    p2p_peer *self = &p2p->peers[0];
    uint64_t ring = (uint64_t)p2p->ring, written = 0;
    int n = 3 * p2p->ring;
    MPIX_Xfer xfers[64];

    ck_assert_int_le(n, 64);
    /* More than it holds: the rest waits, and the tail says how far the reader is, by halves. */
    for (int i = 0; i < n; i++) {
        MPIX_P2p_iov iov = piece((size_t)i * 8, 0, (size_t)i % 9);
        ck_assert_int_eq(MPIX_P2p_isend(p2p, 0, &iov, 1, &xfers[i]), MPI_SUCCESS);
        ck_assert_uint_le(self->written - self->in->tail, ring);
        ck_assert_int_eq(xfers[i] == MPIX_XFER_NULL, (uint64_t)i < ring);
    }
    ck_assert_uint_eq(self->written, ring);
    ck_assert_uint_eq(self->in->head, ring);
    for (int i = 0; i < n; i++) {
        MPIX_P2p_iov iov = piece(HALF, 0, 8);
        MPI_Count got = -1;
        memset(base + HALF, 0xa5, 16);
        ck_assert_int_eq(MPIX_P2p_recv(p2p, 0, &iov, 1, &got), MPI_SUCCESS);
        ck_assert_int_eq(got, i % 9);
        ck_assert_mem_eq(base + HALF, base + i * 8, (size_t)got);
        ck_assert_uint_eq(base[HALF + got], 0xa5);
        ck_assert_uint_lt(self->taken - self->told, ring);
        ck_assert_uint_eq(self->in->tail, self->told);
        ck_assert_uint_ge(self->written, written);
        written = self->written;
    }
    ck_assert_int_eq(MPIX_Xfer_waitall(n, xfers, NULL), MPI_SUCCESS);
    ck_assert_uint_eq(self->written, (uint64_t)n);
    ck_assert_uint_eq(self->taken, (uint64_t)n);
    ck_assert_int_eq(atomic_load(&p2p->pending), 0);
}
END_TEST

/* Short and long, early and awaited, in every order: messages match in the order in which
 * they were sent. */
START_TEST(messages) {
    enum { N = 40 };
    MPIX_Xfer xfers[2 * N];
    size_t len[N];
    MPI_Count got[N];
    int k = 0;

    for (int i = 0; i < N; i++)
        len[i] = i % 5 == 3 ? p2p->eager + (size_t)i : (size_t)i * 50;
    for (int i = 0; i < N; i++) { /* of five receives two are there before their message */
        MPIX_P2p_iov in = piece(HALF + (size_t)i * 9000, 0, 9000),
                     out = piece((size_t)i * 9000, 0, len[i]);
        got[i] = -1;
        if (i % 5 < 2)
            ck_assert_int_eq(MPIX_P2p_irecv(p2p, 0, &in, 1, &got[i], &xfers[k++]), MPI_SUCCESS);
        ck_assert_int_eq(MPIX_P2p_isend(p2p, 0, &out, 1, &xfers[k++]), MPI_SUCCESS);
        if (i % 5 >= 2)
            ck_assert_int_eq(MPIX_P2p_irecv(p2p, 0, &in, 1, &got[i], &xfers[k++]), MPI_SUCCESS);
    }
    ck_assert_int_eq(MPIX_Xfer_waitall(k, xfers, NULL), MPI_SUCCESS);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(got[i], (int)len[i]);
        ck_assert_mem_eq(base + HALF + i * 9000, base + i * 9000, len[i]);
    }
    /* One that is too long is dropped, and the next one comes. */
    for (int big = 0; big < 2; big++) {
        size_t n = big ? 2 * p2p->eager : 100;
        MPIX_P2p_iov out[2] = {piece(0, 0, n), piece(5, 0, 7)}, in = piece(HALF, 0, 50);
        MPI_Count bytes = -1;
        ck_assert_int_eq(MPIX_P2p_isend(p2p, 0, &out[0], 1, &xfers[0]), MPI_SUCCESS);
        ck_assert_int_eq(MPIX_P2p_isend(p2p, 0, &out[1], 1, &xfers[1]), MPI_SUCCESS);
        memset(base + HALF, 0x5a, 200);
        refused(__LINE__, MPIX_P2p_recv(p2p, 0, &in, 1, &bytes), MPIX_ERRK_TRUNCATE, NULL);
        ck_assert_uint_eq(base[HALF + 50], 0x5a);
        ck_assert_int_eq(MPIX_P2p_recv(p2p, 0, &in, 1, &bytes), MPI_SUCCESS);
        ck_assert_int_eq(bytes, 7);
        ck_assert_mem_eq(base + HALF, base + 5, 7);
        ck_assert_int_eq(MPIX_Xfer_waitall(2, xfers, NULL), MPI_SUCCESS);
    }
}
END_TEST

/* ---- vectors --------------------------------------------------------------------------------- */

/* Cut at random on both sides; gaps stay untouched. */
static void vector(int n, unsigned seed, int how) {
    MPIX_P2p_iov *iov = calloc((size_t)n, sizeof *iov), *in = calloc((size_t)n + 1, sizeof *in);
    unsigned char *want = malloc(HALF);
    size_t off = 0, roff = 0, total = 0, taken = 0;
    int m = 0;

    memset(base + HALF, 0xee, HALF);
    memset(want, 0xee, HALF);
    for (int i = 0; i < n; i++) {
        size_t len = (seed = seed * 1664525u + 1013904223u) >> 20 & 0x1ff;
        off += seed >> 8 & 7;
        roff += how < 2 ? seed >> 12 & 15 : 0;
        iov[i] = how == 1 ? piece(HALF + roff, off, len) : piece(off, HALF + roff, len);
        memcpy(want + roff, base + off, len);
        off += len;
        roff += len;
        total += len;
    }
    ck_assert_uint_lt(roff, HALF);
    if (how == 0) {
        ck_assert_int_eq(MPIX_P2p_put(iov, n), MPI_SUCCESS);
    } else if (how == 1) {
        ck_assert_int_eq(MPIX_P2p_get(iov, n), MPI_SUCCESS);
    } else { /* the receiver's cuts are others */
        MPIX_Xfer xfer;
        for (; taken < total; m++) {
            size_t len = m == n ? total - taken
                                : (seed = seed * 1664525u + 1013904223u) >> 18 & 0x3ff;
            len = len < total - taken ? len : total - taken;
            in[m] = piece(HALF + taken, 0, len);
            taken += len;
        }
        MPI_Count got = -1;
        ck_assert_int_eq(MPIX_P2p_isend(p2p, 0, iov, n, &xfer), MPI_SUCCESS);
        ck_assert_int_eq(MPIX_P2p_recv(p2p, 0, in, m, &got), MPI_SUCCESS);
        ck_assert_int_eq(MPIX_Xfer_wait(&xfer), MPI_SUCCESS);
        ck_assert_uint_eq((uint64_t)got, total);
    }
    size_t wrong = 0; /* an assertion per byte would write one to Check's pipe for each */
    while (wrong < HALF && base[HALF + wrong] == want[wrong])
        wrong++;
    ck_assert_msg(wrong == HALF, "%d pieces, way %d: byte %zu", n, how, wrong);
    free(want);
    free(in);
    free(iov);
    ck_assert_int_eq(atomic_load(&mem->busy), 0);
    ck_assert_int_eq(atomic_load(&at->busy), 0);
}

START_TEST(vectors) {
    static const int sizes[] = {1, 2, 3, 63, 64, 65, 200, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < 3; how++)
            vector(sizes[i], (unsigned)(i * 3) + (unsigned)how, how);
}
END_TEST

/* ---- notifications --------------------------------------------------------------------------- */

/* The counter is the sum of what the processor has told and what the source's GPU has, which writes
 * words of its own. */
START_TEST(counters) {
    _Atomic uint64_t *words = p2p_words(p2p, p2p->peers[0].in, 3);
    MPIX_P2p_iov iov = piece(0, HALF, 8);
    uint64_t now = 0;
    int flag;

    for (int i = 1; i <= 5; i++)
        ck_assert_int_eq(MPIX_P2p_put_notify(&iov, 1, 3, 10), MPI_SUCCESS);
    ck_assert_int_eq(MPIX_P2p_notify_wait(p2p, 0, 3, 50, &now), MPI_SUCCESS);
    ck_assert_uint_eq(now, 50);
    words[p2p->lanes] = 7;
    words[p2p->lanes + 1] = 1000;
    ck_assert_int_eq(MPIX_P2p_notify_test(p2p, 0, 3, 1057, &now, &flag), MPI_SUCCESS);
    ck_assert_int_eq(flag, 1);
    ck_assert_uint_eq(now, 1057);
    ck_assert_int_eq(MPIX_P2p_notify_test(p2p, 0, 3, 1058, &now, &flag), MPI_SUCCESS);
    ck_assert_int_eq(flag, 0);
    for (int slot = 0; slot < p2p->slots; slot++) /* its neighbours are untouched */
        if (slot != 3) {
            ck_assert_int_eq(MPIX_P2p_notify_test(p2p, 0, slot, 1, &now, &flag), MPI_SUCCESS);
            ck_assert_int_eq(flag, 0);
        }
    ck_assert((char *)(p2p_words(p2p, p2p->peers[0].in, p2p->slots - 1) + p2p->lanes +
                       P2P_GPU_WORDS) <= (char *)p2p_place(p2p, p2p->peers[0].in, 0));
}
END_TEST

int main(int argc, char **argv) {
    Suite *suite = suite_create("p2p");
    TCase *tcase = tcase_create("all");
    int failed;

    check_mpi_init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, stale_handles);
    tcase_add_test(tcase, in_flight);
    tcase_add_test(tcase, ranges);
    tcase_add_test(tcase, wrong_peer);
    tcase_add_test(tcase, table);
    tcase_add_test(tcase, ring);
    tcase_add_test(tcase, messages);
    tcase_add_test(tcase, vectors);
    tcase_add_test(tcase, counters);
    suite_add_tcase(suite, tcase);
    failed = check_suite_run(suite);
    check_leaks();
    MPI_Finalize();
    return failed != 0;
}
