/*
 * alloc_p2p.c - the n-th allocation or system call that the library makes in a call of MPIX_P2p_*
 * fails on one rank. Options: alloc.h.
 *
 * Collective calls: NO_MEM there, REMOTE elsewhere. Others: NO_MEM on that rank, whose peers notice
 * nothing; the same call works the next time, and what arrives is right. What a rank does for its
 * peers' calls never fails: what there is no memory for waits.
 */
#include "alloc.h"
#include "harness.h"
#include "mpix_p2p.h"

#include <stdlib.h>
#include <string.h>

enum {
    CREATE,
    ALLOC,
    REG,
    EXCHANGE,
    IMPORT,
    PUT,
    IPUT,
    GET,
    NOTIFY,
    ADD,
    SEND,
    SEND_LARGE,
    RECV,
    RECV_LARGE,
    ADVERTISE,
    GET_ADVERT,
    TARGET,
    EARLY,
    STEPS
};
static const char *const names[STEPS] = {"create",     "alloc",      "reg",       "exchange",
                                         "import",     "put",        "iput",      "get",
                                         "put_notify", "fetch_add",  "send",      "send_large",
                                         "recv",       "recv_large", "advertise", "get_advert",
                                         "target",     "early"};
enum { BYTES = 400000, PIECES = 24, PIECE = 500, LARGE = 90000, ROOM = 4096 };

static MPIX_P2p p2p;
static int next, prev, registered;
static unsigned char *base, own_memory[BYTES];
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at[64];
static uint64_t told, noted; /* notifications from prev that have been waited for, in
                              * slots 1 and 2 */

static void fill(unsigned char *to, uint64_t seed, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(t_mix(seed + i / 8) >> i % 8 * 8);
}

static void right(const unsigned char *p, uint64_t seed, size_t n, const char *what) {
    size_t i = 0;
    while (i < n && p[i] == (unsigned char)(t_mix(seed + i / 8) >> i % 8 * 8))
        i++;
    CHECK(i == n, "%s: byte %zu of %zu is wrong", what, i, n);
}

/* A barrier in which this rank does what its peers ask for. */
static void meet(void) {
    MPI_Request request;
    int met = 0, flag;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!met) {
        CHECK_OK(MPIX_P2p_notify_test(p2p, t_rank, 0, UINT64_MAX, NULL, &flag));
        MPI_Test(&request, &met, MPI_STATUS_IGNORE);
    }
}

/* A word for the previous rank, and the next one's; meanwhile as in meet. */
static int flag_from_next(int mine) {
    MPI_Request requests[2];
    /* MPICH's MPI_STATUSES_IGNORE is an address that gcc takes for a wrong one */
    MPI_Status statuses[2];
    int theirs = 0, met = 0, flag;
    MPI_Irecv(&theirs, 1, MPI_INT, next, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&mine, 1, MPI_INT, prev, 1, MPI_COMM_WORLD, &requests[1]);
    while (!met) {
        CHECK_OK(MPIX_P2p_notify_test(p2p, t_rank, 0, UINT64_MAX, NULL, &flag));
        MPI_Testall(2, requests, &met, statuses);
    }
    return theirs;
}

/* The next rank is told, and the previous one waited for. */
static void pass(void) {
    CHECK_OK(MPIX_P2p_flush(p2p, next));
    CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){mem, 0, at[next], 0, 0}, 1, 1, 1));
    CHECK_OK(MPIX_P2p_notify_wait(p2p, prev, 1, ++told, NULL));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int memory(void) {
    int step = registered ? REG : ALLOC;
    void *p = NULL;
    arm(step);
    int code = registered ? MPIX_P2p_reg(p2p, p = own_memory, BYTES, MPI_INFO_NULL, &mem)
                          : MPIX_P2p_alloc(p2p, BYTES, MPI_INFO_NULL, &p, &mem);
    disarm(step);
    if (registered ? !done(step, code) : !agree(step, code))
        CHECK_OK(registered ? MPIX_P2p_reg(p2p, p = own_memory, BYTES, MPI_INFO_NULL, &mem)
                            : MPIX_P2p_alloc(p2p, BYTES, MPI_INFO_NULL, &p, &mem));
    base = p;
    arm(EXCHANGE);
    code = MPIX_P2p_exchange(mem, at);
    disarm(EXCHANGE);
    if (!agree(EXCHANGE, code))
        CHECK_OK(MPIX_P2p_exchange(mem, at));
    return base && mem && at[next];
}

static void import(void) {
    char mine[ROOM], theirs[ROOM];
    MPI_Count n = ROOM;
    MPIX_P2p_rmem rmem = NULL;
    CHECK_OK(MPIX_P2p_export(mem, 0, 100, mine, &n));
    MPI_Sendrecv(mine, ROOM, MPI_BYTE, prev, 0, theirs, ROOM, MPI_BYTE, next, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    arm(IMPORT);
    int code = MPIX_P2p_import(p2p, next, theirs, n, &rmem);
    disarm(IMPORT);
    if (!done(IMPORT, code))
        CHECK_OK(MPIX_P2p_import(p2p, next, theirs, n, &rmem));
    if (rmem)
        CHECK_OK(MPIX_P2p_rmem_free(&rmem));
    meet();
}

/* ---- puts, gets, additions ------------------------------------------------------------------- */

/* PIECES pieces, in the first half of our memory and in the second half of the peer's. */
static void pieces(MPIX_P2p_iov *iov, int peer) {
    for (int i = 0; i < PIECES; i++)
        iov[i] = (MPIX_P2p_iov){mem, i * 2 * PIECE, at[peer], BYTES / 2 + i * 3 * PIECE, PIECE};
}

static void put(int step) {
    MPIX_P2p_iov iov[PIECES];
    MPIX_Xfer xfer = MPIX_XFER_NULL, before = MPIX_XFER_NULL;
    pieces(iov, next);
    for (int i = 0; i < PIECES; i++)
        fill(base + iov[i].off, (uint64_t)(step * 1000 + t_rank * 100 + i), PIECE);
    memset(base + BYTES / 2, 0, BYTES / 2);
    meet();
    if (step == IPUT) /* another operation is in flight, if this way needs one */
        CHECK_OK(MPIX_P2p_iput(iov, 1, &before));
    for (int tries = 0, good = 0; !good && tries < 2; tries++) {
        if (tries == 0)
            arm(step);
        int code = step == NOTIFY ? MPIX_P2p_put_notify(iov, PIECES, 2, 5)
                   : step == IPUT ? MPIX_P2p_iput(iov, PIECES, &xfer)
                                  : MPIX_P2p_put(iov, PIECES);
        if (step == IPUT && code == MPI_SUCCESS)
            code = MPIX_Xfer_wait(&xfer);
        if (tries == 0)
            disarm(step);
        good = tries ? CHECK_OK(code) : done(step, code);
    }
    CHECK_OK(MPIX_Xfer_wait(&before));
    if (step == NOTIFY) {
        uint64_t now = 0;
        CHECK_OK(MPIX_P2p_notify_wait(p2p, prev, 2, noted += 5, &now));
        CHECK(now == noted, "notified of %llu, expected %llu", (unsigned long long)now,
              (unsigned long long)noted);
    }
    pass();
    for (int i = 0; i < PIECES; i++)
        right(base + iov[i].roff, (uint64_t)(step * 1000 + prev * 100 + i), PIECE, names[step]);
    meet();
}

static void get(void) {
    MPIX_P2p_iov iov[PIECES];
    pieces(iov, next);
    for (int i = 0; i < PIECES; i++)
        fill(base + iov[i].roff, (uint64_t)(t_rank * 100 + i), PIECE);
    meet();
    arm(GET);
    int code = MPIX_P2p_get(iov, PIECES);
    disarm(GET);
    if (!done(GET, code))
        CHECK_OK(MPIX_P2p_get(iov, PIECES));
    for (int i = 0; i < PIECES; i++)
        right(base + iov[i].off, (uint64_t)(next * 100 + i), PIECE, "get");
    meet();
}

static void add(void) {
    int64_t old = -1, *word = (int64_t *)(void *)(base + 64);
    *word = 7;
    meet();
    arm(ADD);
    int code = MPIX_P2p_fetch_add(at[next], 64, 3, &old);
    disarm(ADD);
    if (!done(ADD, code))
        CHECK_OK(MPIX_P2p_fetch_add(at[next], 64, 3, &old));
    CHECK(old == 7, "fetch_add gave %lld, expected 7", (long long)old);
    meet();
    CHECK(*word == 10, "the word is %lld, expected 10", (long long)*word);
    meet();
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A message begins with its number. A receive that fails may have taken it, so then
 * another is sent. */
static void send_and_receive(int step, int64_t n) {
    MPIX_P2p_iov from = {mem, 0, NULL, 0, n}, to = {mem, BYTES / 2, NULL, 0, n};
    int receives = step == RECV || step == RECV_LARGE, again = 0, again_for_next;
    MPIX_Xfer xfer = MPIX_XFER_NULL, second = MPIX_XFER_NULL;
    MPI_Count got = 0;
    memset(base + BYTES / 2, 0, (size_t)n);
    fill(base, (uint64_t)(step * 100 + t_rank), (size_t)n);
    base[0] = 1;
    if (!receives)
        arm(step);
    int code = MPIX_P2p_isend(p2p, next, &from, 1, &xfer);
    if (!receives) {
        disarm(step);
        if (!done(step, code))
            CHECK_OK(MPIX_P2p_isend(p2p, next, &from, 1, &xfer));
    } else {
        CHECK(code == MPI_SUCCESS, "isend failed");
        arm(step);
    }
    code = MPIX_P2p_recv(p2p, prev, &to, 1, &got);
    if (receives)
        disarm(step);
    if (!done(receives ? step : -1, code))
        again = 1;
    again_for_next = flag_from_next(again);
    if (again_for_next) { /* from elsewhere: the first may not have been read yet */
        memcpy(base + BYTES / 4 * 3, base, (size_t)n);
        base[BYTES / 4 * 3] = 2;
        from.off = BYTES / 4 * 3;
        CHECK_OK(MPIX_P2p_isend(p2p, next, &from, 1, &second));
    }
    for (int got_one = 0; again && (!got_one || base[BYTES / 2] != 2); got_one = 1)
        if (!CHECK_OK(MPIX_P2p_recv(p2p, prev, &to, 1, &got)))
            break;
    CHECK_OK(MPIX_Xfer_wait(&xfer));
    CHECK_OK(MPIX_Xfer_wait(&second));
    CHECK(got == n, "%lld bytes were received, expected %lld", (long long)got, (long long)n);
    base[BYTES / 2] = (unsigned char)t_mix((uint64_t)(step * 100 + prev));
    right(base + BYTES / 2, (uint64_t)(step * 100 + prev), (size_t)n, names[step]);
    meet();
}

static void advertise(int step) {
    MPIX_P2p_iov iov[3];
    MPIX_P2p_rmem got[3] = {NULL, NULL, NULL};
    int n = 0, code;
    for (int i = 0; i < 3; i++)
        iov[i] = (MPIX_P2p_iov){mem, 1000 * i, NULL, 0, 1000};
    arm(step == ADVERTISE ? ADVERTISE : -2);
    code = MPIX_P2p_advertise(iov, 3, next, 4);
    disarm(step == ADVERTISE ? ADVERTISE : -2);
    if (!done(ADVERTISE, code))
        CHECK_OK(MPIX_P2p_advertise(iov, 3, next, 4));
    arm(step == GET_ADVERT ? GET_ADVERT : -2);
    code = MPIX_P2p_get_advert(p2p, prev, 4, 3, got, &n);
    disarm(step == GET_ADVERT ? GET_ADVERT : -2);
    if (!done(GET_ADVERT, code))
        CHECK_OK(MPIX_P2p_get_advert(p2p, prev, 4, 3, got, &n));
    CHECK(n == 3, "%d pieces were advertised, expected 3", n);
    for (int i = 0; i < n; i++)
        CHECK_OK(MPIX_P2p_rmem_free(&got[i]));
    meet();
}

/* ---- what is done for peers ------------------------------------------------------------------ */

static void target(void) {
    MPIX_P2p_iov iov[PIECES];
    MPIX_Xfer xfers[3] = {MPIX_XFER_NULL, MPIX_XFER_NULL, MPIX_XFER_NULL};
    int64_t old = -1;
    pieces(iov, next);
    for (int i = 0; i < PIECES; i++)
        fill(base + iov[i].off, (uint64_t)(t_rank * 100 + i), PIECE);
    *(int64_t *)(void *)(base + BYTES - 64) = 5;
    meet();
    CHECK_OK(MPIX_P2p_iput(iov, PIECES, &xfers[0]));
    MPIX_P2p_iov back = {mem, BYTES - 4000, at[next], 0, PIECE};
    CHECK_OK(MPIX_P2p_iget(&back, 1, &xfers[1]));
    CHECK_OK(MPIX_P2p_ifetch_add(at[next], BYTES - 64, 2, &old, &xfers[2]));
    arm(TARGET);
    meet();
    disarm(TARGET);
    CHECK_OK(MPIX_Xfer_waitall(3, xfers, NULL));
    CHECK(old == 5, "fetch_add gave %lld, expected 5", (long long)old);
    right(base + BYTES - 4000, (uint64_t)(next * 100), PIECE, "get");
    pass();
    for (int i = 0; i < PIECES; i++)
        right(base + iov[i].roff, (uint64_t)(prev * 100 + i), PIECE, "put");
    meet();
}

/* Messages come that nobody has asked for. */
static void early(void) {
    MPIX_P2p_iov small = {mem, 0, NULL, 0, 100}, large = {mem, 0, NULL, 0, LARGE},
                 to = {mem, BYTES / 2, NULL, 0, LARGE};
    MPIX_Xfer xfers[3];
    MPI_Count got;
    fill(base, (uint64_t)(t_rank * 100), LARGE);
    meet();
    CHECK_OK(MPIX_P2p_isend(p2p, next, &small, 1, &xfers[0]));
    CHECK_OK(MPIX_P2p_isend(p2p, next, &large, 1, &xfers[1]));
    CHECK_OK(MPIX_P2p_isend(p2p, next, &small, 1, &xfers[2]));
    arm(EARLY);
    for (int i = 0; i < 20; i++)
        meet();
    disarm(EARLY);
    for (int i = 0; i < 3; i++) {
        MPI_Count n = i == 1 ? LARGE : 100;
        CHECK_OK(MPIX_P2p_recv(p2p, prev, &to, 1, &got));
        CHECK(got == n, "message %d has %lld bytes, expected %lld", i, (long long)got,
              (long long)n);
        right(base + BYTES / 2, (uint64_t)(prev * 100), (size_t)n, "an early message");
    }
    CHECK_OK(MPIX_Xfer_waitall(3, xfers, NULL));
    meet();
}

/* One step's calls. */
static void step(int s) {
    switch (s) {
    case IMPORT: import(); return;
    case PUT:
    case IPUT:
    case NOTIFY: put(s); return;
    case GET: get(); return;
    case ADD: add(); return;
    case SEND:
    case RECV: send_and_receive(s, 100); return;
    case SEND_LARGE:
    case RECV_LARGE: send_and_receive(s, LARGE); return;
    case ADVERTISE:
    case GET_ADVERT: advertise(s); return;
    case TARGET: target(); return;
    case EARLY: early(); return;
    default: return;
    }
}

static void life(void) {
    told = noted = 0;
    p2p = NULL;
    arm(CREATE);
    int code = MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p);
    disarm(CREATE);
    if (!agree(CREATE, code))
        return;
    REQUIRE(memory(), "no memory to work with");
    if (at_step >= 0)
        step(at_step); /* on a fresh object, where nothing of it is kept for another use */
    for (int s = 0, now = at_step; s < STEPS; s++) {
        at_step = -1;
        if (s != now && (now < 0 || s == PUT || s == GET || s == SEND_LARGE))
            step(s);
        at_step = now;
    }
    for (int r = 0; r < t_size; r++)
        CHECK_OK(MPIX_P2p_rmem_free(&at[r]));
    meet();
    CHECK_OK(MPIX_P2p_dereg(&mem));
    CHECK_OK(MPIX_P2p_free(&p2p));
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "alloc_p2p");
    next = (t_rank + 1) % t_size;
    prev = (t_rank + t_size - 1) % t_size;
    registered = (int)t_option(argc, argv, "--registered", 0);
    alloc_run(argc, argv, life, STEPS, names);
    return t_end();
}
