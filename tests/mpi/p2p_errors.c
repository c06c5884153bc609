/* p2p_errors.c - every wrong argument is told by its name, nothing is written, and the object
 * stays usable. */
#include "harness.h"
#include "mpix_p2p.h"

#include <stdlib.h>
#include <string.h>

static MPIX_P2p p2p;
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at[64];
static char *base;
static int mapped; /* peers are */

static void expect(int line, int code, int kind, const char *arg, const char *text) {
    MPIX_Error error;
    int k = 0;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    MPIX_Error_kind(code, &k);
    if (!CHECK(code != MPI_SUCCESS && k == kind && error.kind == kind,
               "line %d: code %d, kind %d, expected kind %d: %s", line, code, k, kind, error.text))
        return;
    CHECK(!arg || strcmp(error.arg, arg) == 0, "line %d: argument \"%s\", expected \"%s\": %s",
          line, error.arg, arg, error.text);
    CHECK(!text || strstr(error.text, text), "line %d: \"%s\" is not in: %s", line, text,
          error.text);
}
#define EXPECT(call, kind, arg, text) expect(__LINE__, (call), MPIX_ERRK_##kind, arg, text)

/* The object works: a put to ourselves arrives. */
static void usable(void) {
    base[8] = 7;
    base[9] = 0;
    CHECK_OK(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 8, at[t_rank], 9, 1}, 1));
    CHECK_OK(MPIX_P2p_flush(p2p, t_rank));
    CHECK(base[9] == 7, "a put after an error");
}

static void pieces(void) {
    MPIX_Xfer x = MPIX_XFER_NULL;
    MPIX_P2p_iov v = {mem, 0, at[t_rank], 0, 8};
    t_where("pieces");
#define BAD(field, value, arg) \
    do { \
        MPIX_P2p_iov w = v; \
        w.field = value; \
        EXPECT(MPIX_P2p_put(&w, 1), ARG, arg, NULL); \
        EXPECT(MPIX_P2p_iget(&w, 1, &x), ARG, arg, NULL); \
        EXPECT(MPIX_P2p_iput_notify(&w, 1, 0, 1, &x), ARG, arg, NULL); \
    } while (0)
    BAD(mem, NULL, "iov.mem");
    BAD(rmem, NULL, "iov.rmem");
    BAD(off, -1, "iov.off");
    BAD(off, 4089, "iov.off");
    BAD(roff, -1, "iov.roff");
    BAD(roff, 4089, "iov.roff");
    BAD(len, -1, "iov.len");
    BAD(len, 4097, "iov.off");
    BAD(off, INT64_MAX, "iov.off");
    BAD(roff, INT64_MAX, "iov.roff");
    BAD(mem, (MPIX_P2p_mem)p2p, "iov.mem"); /* of another kind */
    BAD(rmem, (MPIX_P2p_rmem)mem, "iov.rmem");
    EXPECT(MPIX_P2p_put(NULL, 1), ARG, "iov", NULL);
    EXPECT(MPIX_P2p_put(&v, 0), ARG, "n", NULL);
    EXPECT(MPIX_P2p_put(&v, -1), ARG, "n", NULL);
    EXPECT(MPIX_P2p_iput(&v, 1, NULL), ARG, "xfer", NULL);
    EXPECT(MPIX_P2p_put_notify(&v, 1, -1, 1), ARG, "slot", NULL);
    EXPECT(MPIX_P2p_put_notify(&v, 1, 64, 1), ARG, "slot", "mpix_ep_p2p_slots");
    if (t_size > 1) {
        MPIX_P2p_iov two[2] = {{mem, 0, at[0], 0, 8}, {mem, 0, at[1], 0, 8}};
        EXPECT(MPIX_P2p_put(two, 2), ARG, "iov.rmem", "one peer");
    }
    CHECK(x == MPIX_XFER_NULL, "a refused call set xfer");
    usable();
}

static void objects(void) {
    int64_t old = 5;
    uint64_t now = 5;
    MPI_Count n = 1;
    int flag = 5, count = 5;
    char buf[4096] = {0};
    MPIX_P2p_rmem rmem = NULL;
    MPIX_P2p none = NULL;
    MPIX_Error error = {0};
    t_where("objects");
    EXPECT(MPIX_P2p_create(MPI_COMM_NULL, MPI_INFO_NULL, &none), ARG, "comm", NULL);
    EXPECT(MPIX_P2p_free(&none), ARG, "p2p", NULL);
    EXPECT(MPIX_P2p_free(NULL), ARG, "p2p", NULL);
    EXPECT(MPIX_P2p_flush(NULL, 0), ARG, "p2p", NULL);
    EXPECT(MPIX_P2p_flush(p2p, -2), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_flush(p2p, t_size), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_get_async_error(p2p, &error), ARG, "error", NULL);
    EXPECT(MPIX_P2p_notify_test(p2p, t_size, 0, 1, &now, &flag), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_notify_test(p2p, 0, 64, 1, &now, &flag), ARG, "slot", NULL);
    EXPECT(MPIX_P2p_notify_test(p2p, 0, 0, 1, &now, NULL), ARG, "flag", NULL);
    EXPECT(MPIX_P2p_notify_wait(p2p, -1, 0, 1, &now), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_fetch_add(at[t_rank], 4, 1, &old), ARG, "roff", NULL);
    EXPECT(MPIX_P2p_fetch_add(at[t_rank], 4096, 1, &old), ARG, "roff", NULL);
    EXPECT(MPIX_P2p_fetch_add(at[t_rank], 8, 1, NULL), ARG, "old", NULL);
    EXPECT(MPIX_P2p_fetch_add(NULL, 8, 1, &old), ARG, "rmem", NULL);
    EXPECT(MPIX_P2p_send(p2p, t_size, NULL, 0), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_irecv(p2p, 0, NULL, 0, NULL, NULL), ARG, "xfer", NULL);
    EXPECT(MPIX_P2p_reg(p2p, NULL, 8, MPI_INFO_NULL, &mem), ARG, "base", NULL);
    EXPECT(MPIX_P2p_reg(p2p, buf, -8, MPI_INFO_NULL, &mem), ARG, "bytes", NULL);
    EXPECT(MPIX_P2p_alloc(p2p, -1, MPI_INFO_NULL, &buf, &mem), ARG, "bytes", NULL);
    EXPECT(MPIX_P2p_export(mem, 4000, 97, NULL, &n), ARG, "len", NULL);
    EXPECT(MPIX_P2p_export(mem, 0, 1, buf, &n), ARG, "buflen", NULL);
    EXPECT(MPIX_P2p_import(p2p, 0, buf, sizeof buf, &rmem), ARG, "buf", NULL);
    EXPECT(MPIX_P2p_import(p2p, 0, buf, 3, &rmem), ARG, "buflen", NULL);
    EXPECT(MPIX_P2p_import(p2p, t_size, buf, sizeof buf, &rmem), ARG, "peer", NULL);
    EXPECT(MPIX_P2p_advertise(NULL, 0, 0, 0), ARG, "n", NULL);
    EXPECT(MPIX_P2p_advertise(&(MPIX_P2p_iov){.mem = mem, .len = 1}, 1, 0, -1), ARG, "tag", NULL);
    EXPECT(MPIX_P2p_get_advert(p2p, 0, 0, -1, &rmem, &count), ARG, "max", NULL);
    if (t_size > 1) { /* the wrong peer */
        n = sizeof buf;
        CHECK_OK(MPIX_P2p_export(mem, 0, 8, buf, &n));
        EXPECT(MPIX_P2p_import(p2p, (t_rank + 1) % t_size, buf, n, &rmem), ARG, "buf",
               "exported by rank");
        if (n > 8) {
            buf[60] ^= 0x55; /* damaged: another length or place */
            CHECK(MPIX_P2p_import(p2p, t_rank, buf, n, &rmem) != MPI_SUCCESS || rmem, "import");
            if (rmem)
                CHECK_OK(MPIX_P2p_rmem_free(&rmem));
        }
    }
    CHECK(old == 5 && now == 5 && flag == 5 && count == 5 && !rmem, "a refused call set an output");
    usable();
}

static void stale(void) {
    char *one = calloc(64, 1);
    MPIX_P2p_mem m = NULL, dead;
    MPIX_P2p_rmem r[64], gone;
    int peer = (t_rank + 1) % t_size;
    int64_t old;
    MPI_Count n = 0;
    t_where("stale handles");
    CHECK_OK(MPIX_P2p_reg(p2p, one, 64, MPI_INFO_NULL, &m));
    CHECK_OK(MPIX_P2p_exchange(m, r));
    dead = m;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_OK(MPIX_P2p_dereg(&m));
    EXPECT(MPIX_P2p_dereg(&m), ARG, "mem", NULL);
    EXPECT(MPIX_P2p_export(dead, 0, 1, NULL, &n), ARG, "mem", NULL);
    EXPECT(MPIX_P2p_put(&(MPIX_P2p_iov){dead, 0, at[peer], 0, 8}, 1), ARG, "iov.mem", NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    /* a network tells nobody in advance; the owner's answer to an addition would
     * need its progress */
    if (mapped)
        EXPECT(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, r[peer], 0, 8}, 1), ARG, NULL, "deregistered");
    if (mapped)
        EXPECT(MPIX_P2p_fetch_add(r[peer], 0, 1, &old), ARG, NULL, "deregistered");
    gone = r[peer];
    CHECK_OK(MPIX_P2p_rmem_free(&r[peer]));
    EXPECT(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, gone, 0, 8}, 1), ARG, "iov.rmem", NULL);
    EXPECT(MPIX_P2p_rmem_free(&r[peer]), ARG, "rmem", NULL);
    usable();
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < t_size; i++)
        if (r[i])
            CHECK_OK(MPIX_P2p_rmem_free(&r[i]));
    free(one);
}

/* Work in flight: a receive that nothing has matched, then what does not fit it. */
static void in_flight(void) {
    char *one = calloc(1 << 16, 1);
    MPIX_P2p_mem m = NULL;
    MPIX_Xfer x = MPIX_XFER_NULL, copy;
    MPI_Count received = -1;
    t_where("work in flight");
    CHECK_OK(MPIX_P2p_reg(p2p, one, 1 << 16, MPI_INFO_NULL, &m));
    for (int large = 0; large < 2; large++) {
        CHECK_OK(MPIX_P2p_irecv(p2p, t_rank, &(MPIX_P2p_iov){.mem = m, .off = 100, .len = 50}, 1,
                                &received, &x));
        EXPECT(MPIX_P2p_dereg(&m), ARG, "mem", "in flight");
        EXPECT(MPIX_P2p_free(&p2p), ARG, "p2p", "in flight");
        MPIX_Xfer y = MPIX_XFER_NULL;
        CHECK_OK(MPIX_P2p_isend(p2p, t_rank,
                                &(MPIX_P2p_iov){.mem = m, .off = 200, .len = large ? 60000 : 51}, 1,
                                &y));
        copy = x;
        EXPECT(MPIX_Xfer_wait(&x), TRUNCATE, NULL, "does not fit");
        CHECK(x == MPIX_XFER_NULL && received == -1, "a truncated receive");
        EXPECT(MPIX_Xfer_wait(&copy), ARG, "xfer", NULL);
        CHECK_OK(MPIX_Xfer_wait(&y));
    }
    /* A large send that nobody has received yet, then from where a peer reads. */
    int next = (t_rank + 1) % t_size, prev = (t_rank + t_size - 1) % t_size;
    CHECK_OK(MPIX_P2p_isend(p2p, next, &(MPIX_P2p_iov){.mem = m, .len = 60000}, 1, &x));
    EXPECT(MPIX_P2p_dereg(&m), ARG, "mem", "in flight");
    MPI_Barrier(MPI_COMM_WORLD);
    char *two = malloc(60000);
    MPIX_P2p_mem to = NULL;
    CHECK_OK(MPIX_P2p_reg(p2p, two, 60000, MPI_INFO_NULL, &to));
    CHECK_OK(
        MPIX_P2p_irecv(p2p, prev, &(MPIX_P2p_iov){.mem = to, .len = 60000}, 1, &received, &copy));
    MPIX_Xfer both[2] = {x, copy};
    CHECK_OK(MPIX_Xfer_waitall(2, both, NULL));
    CHECK(received == 60000, "received %lld", (long long)received);
    CHECK_OK(MPIX_P2p_dereg(&to));
    CHECK_OK(MPIX_P2p_dereg(&m));
    usable();
    free(one), free(two);
}

/* Over a net a long put goes in pieces within its credit, and by the caller's proxy it goes on in
 * calls only: its memory is in use until then. */
static void put_in_flight(void) {
    enum { LONG = 24 << 20 };
    char *window = NULL, *from = malloc(LONG);
    MPIX_P2p_mem m = NULL, w = NULL;
    MPIX_P2p_rmem there[64];
    MPIX_Xfer x = MPIX_XFER_NULL;
    int next = (t_rank + 1) % t_size, prev = (t_rank + t_size - 1) % t_size;
    t_where("a put in flight");
    CHECK_OK(MPIX_P2p_alloc(p2p, LONG, MPI_INFO_NULL, &window, &w));
    CHECK_OK(MPIX_P2p_exchange(w, there));
    CHECK_OK(MPIX_P2p_reg(p2p, from, LONG, MPI_INFO_NULL, &m));
    memset(from, 1 + t_rank, LONG);
    memset(window, 99, LONG);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_OK(MPIX_P2p_iput(&(MPIX_P2p_iov){m, 0, there[next], 0, LONG}, 1, &x));
    EXPECT(MPIX_P2p_dereg(&m), ARG, "mem", "in flight");
    CHECK(m != NULL, "a refused deregistration keeps the handle");
    CHECK_OK(MPIX_Xfer_wait(&x));
    CHECK_OK(MPIX_P2p_flush(p2p, next));
    MPI_Barrier(MPI_COMM_WORLD);
    size_t wrong = 0;
    for (size_t i = 0; i < LONG; i++)
        wrong += window[i] != 1 + prev;
    CHECK(wrong == 0, "%zu bytes are wrong", wrong);
    CHECK_OK(MPIX_P2p_dereg(&m));
    for (int r = 0; r < t_size; r++)
        CHECK_OK(MPIX_P2p_rmem_free(&there[r]));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_OK(MPIX_P2p_dereg(&w));
    free(from);
}

static int handled;
static void handler(MPI_Comm *comm, int *code, ...) {
    (void)comm, (void)code;
    handled++;
}

int main(int argc, char **argv) {
    MPI_Errhandler h;
    MPI_Info info;
    MPIX_P2p other = NULL;
    t_init(&argc, &argv, "p2p_errors");
    t_watchdog(60);
    mapped = !getenv("MPIX_EP_REACH");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_p2p_slots", "none");
    EXPECT(MPIX_P2p_create(MPI_COMM_WORLD, info, &other), ARG, NULL, "p2p_slots");
    if (t_size > 1) {
        MPI_Info_set(info, "mpix_ep_p2p_slots", t_rank ? "8" : "9");
        if (t_rank) /* all compare with rank 0, which hears of it */
            EXPECT(MPIX_P2p_create(MPI_COMM_WORLD, info, &other), ARG, NULL, "p2p_slots");
        else
            EXPECT(MPIX_P2p_create(MPI_COMM_WORLD, info, &other), REMOTE, NULL, "p2p_slots");
        MPI_Info_set(info, "mpix_ep_p2p_slots", t_rank ? "8" : "none");
        if (t_rank)
            EXPECT(MPIX_P2p_create(MPI_COMM_WORLD, info, &other), REMOTE, NULL, "rank 0");
        else
            EXPECT(MPIX_P2p_create(MPI_COMM_WORLD, info, &other), ARG, NULL, NULL);
    }
    MPI_Info_free(&info);
    REQUIRE(CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p)), "no object");
    CHECK_OK(MPIX_P2p_alloc(p2p, 4096, MPI_INFO_NULL, &base, &mem));
    CHECK_OK(MPIX_P2p_exchange(mem, at));
    pieces();
    objects();
    stale();
    in_flight();
    if (!mapped)
        put_in_flight();
    t_where("handler");
    MPI_Comm_create_errhandler(handler, &h);
    CHECK_OK(MPIX_P2p_set_errhandler(p2p, h));
    MPI_Errhandler_free(&h);
    EXPECT(MPIX_P2p_flush(p2p, -2), ARG, "peer", NULL);
    CHECK(handled == 1, "the handler was called %d times", handled);
    MPI_Barrier(MPI_COMM_WORLD);
    MPIX_P2p freed = p2p;
    CHECK_OK(MPIX_P2p_free(&p2p));
    EXPECT(MPIX_P2p_flush(freed, 0), ARG, "p2p", NULL);
    /* handles end with their object */
    EXPECT(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at[0], 0, 0}, 1), ARG, "iov.mem", NULL);
    return t_end();
}
