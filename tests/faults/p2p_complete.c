/*
 * p2p_complete.c - what was reported as complete arrives without another call of this rank.
 *
 *   p2p_complete [--rounds N] [--case all|remedy]
 *
 * all: rank 1 does one operation after the other to its end, and after each waits in MPI, in
 * nothing else, until rank 0 has seen what it should: an operation that leaves work behind makes
 * rank 0 wait for its time limit. How ranks reach each other is the environment's to say. remedy:
 * rank 1 stays in MPI while rank 0 needs its help; the time-out says what would have helped.
 */
#include "harness.h"
#include "mpix_p2p.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 90000, AREA = 1 << 18, RING = 4 };

static MPIX_P2p p2p;
static MPIX_P2p_mem mem, own; /* of MPIX_P2p_alloc, of MPIX_P2p_reg */
static MPIX_P2p_rmem at[2], at_own[2];
static char *base, *buffer;
static uint64_t told[2]; /* notifications so far, to and from */

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Rank 1 is in MPI until rank 0 is through. */
static void meet(void) {
    int through = 1;
    if (t_rank == 0)
        MPI_Send(&through, 1, MPI_INT, 1, 7, MPI_COMM_WORLD);
    else
        MPI_Recv(&through, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void make(const char *timeout) {
    char ring[16];
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", timeout);
    snprintf(ring, sizeof ring, "%d", RING);
    MPI_Info_set(info, "mpix_ep_p2p_ring", ring);
    REQUIRE(MPIX_P2p_create(MPI_COMM_WORLD, info, &p2p) == MPI_SUCCESS, "no object");
    MPI_Info_free(&info);
    REQUIRE((buffer = malloc(AREA)) != NULL, "no memory");
    CHECK_OK(MPIX_P2p_reg(p2p, buffer, AREA, MPI_INFO_NULL, &own));
    CHECK_OK(MPIX_P2p_alloc(p2p, AREA, MPI_INFO_NULL, &base, &mem));
    memset(base, 0, AREA);
    memset(buffer, 0, AREA);
    CHECK_OK(MPIX_P2p_exchange(mem, at));
    CHECK_OK(MPIX_P2p_exchange(own, at_own));
}

static MPIX_P2p_iov piece(MPI_Count len) { return (MPIX_P2p_iov){.mem = own, .len = len}; }

static void received(const char *from, MPI_Count got, MPI_Count len, int value) {
    CHECK(got == len && from[0] == (char)value && from[len - 1] == (char)value,
          "%lld of %lld bytes, %d and %d for %d", (long long)got, (long long)len, from[0],
          from[len - 1], value);
}

/* ---- one operation each: what rank 1 does, and what rank 0 sees of it ------------------------ */

static void send_short(int round) {
    MPIX_P2p_iov v = piece(1000);
    MPI_Count got = 0;
    MPIX_Xfer x = MPIX_XFER_NULL;
    memset(buffer, t_rank ? round : 0, 1000);
    if (t_rank == 0 && CHECK_OK(MPIX_P2p_recv(p2p, 1, &v, 1, &got)))
        received(buffer, got, 1000, round);
    if (t_rank == 1 && round % 2)
        CHECK_OK(MPIX_P2p_send(p2p, 0, &v, 1));
    if (t_rank == 1 && round % 2 == 0 && CHECK_OK(MPIX_P2p_isend(p2p, 0, &v, 1, &x)) && x)
        CHECK_OK(MPIX_Xfer_wait(&x));
}

static void send_large(int round) {
    MPIX_P2p_iov v = piece(LARGE);
    MPI_Count got = 0;
    memset(buffer, t_rank ? round : 0, LARGE);
    if (t_rank == 0 && CHECK_OK(MPIX_P2p_recv(p2p, 1, &v, 1, &got)))
        received(buffer, got, LARGE, round);
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_send(p2p, 0, &v, 1));
}

/* The sender of a large message waits for its receiver's word. */
static void recv_large(int round) {
    MPIX_P2p_iov v = piece(LARGE);
    MPI_Count got = 0;
    memset(buffer, t_rank ? 0 : round, LARGE);
    if (t_rank == 0)
        CHECK_OK(MPIX_P2p_send(p2p, 1, &v, 1));
    if (t_rank == 1 && CHECK_OK(MPIX_P2p_recv(p2p, 0, &v, 1, &got)))
        received(buffer, got, LARGE, round);
}

/* A receive that fails: its sender is told all the same. */
static void recv_truncated(int round) {
    MPIX_P2p_iov v = piece(LARGE), small = piece(100);
    MPI_Count got = 0;
    (void)round;
    if (t_rank == 0)
        CHECK_OK(MPIX_P2p_send(p2p, 1, &v, 1));
    if (t_rank == 1)
        CHECK(MPIX_P2p_recv(p2p, 0, &small, 1, &got) != MPI_SUCCESS, "%d bytes fit into 100",
              LARGE);
}

static void advertise(int round) {
    MPIX_P2p_iov v = piece(64);
    MPIX_P2p_rmem rmem;
    int n = 0;
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_advertise(&v, 1, 0, round));
    if (t_rank == 0 && CHECK_OK(MPIX_P2p_get_advert(p2p, 1, round, 1, &rmem, &n)) &&
        CHECK(n == 1, "%d pieces", n))
        CHECK_OK(MPIX_P2p_rmem_free(&rmem));
}

static void put_notify(int round) {
    memset(buffer, t_rank ? round : 0, 5000);
    told[t_rank]++;
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){own, 0, at[0], 0, 5000}, 1, 0, 1));
    if (t_rank == 0 && CHECK_OK(MPIX_P2p_notify_wait(p2p, 1, 0, told[0], NULL)))
        received(base, 5000, 5000, round);
}

/* Without a notification: the data are looked at where they arrive. */
static void put_flush(int round) {
    double begin = now();
    memset(buffer, t_rank ? round : 0, 8192);
    if (t_rank == 1) {
        CHECK_OK(MPIX_P2p_put(&(MPIX_P2p_iov){own, 0, at[0], 16384, 8192}, 1));
        CHECK_OK(MPIX_P2p_flush(p2p, 0));
    }
    int here = t_rank != 0;
    while (!here && now() - begin < 20) { /* in any order */
        usleep(100);
        here = 1;
        for (int i = 0; i < 8192 && here; i++)
            here = ((volatile char *)base)[16384 + i] == (char)round;
    }
    CHECK(here, "the data did not arrive");
}

static void get(int round) {
    memset(buffer, t_rank ? 0 : round, 8192);
    memset(base + 32768, t_rank ? 0 : round, 8192);
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == 1 && CHECK_OK(MPIX_P2p_get(&(MPIX_P2p_iov){own, 0, at[0], 32768, 8192}, 1)))
        received(buffer, 8192, 8192, round);
}

static void add(int round) {
    double begin = now();
    int64_t old = 0;
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_fetch_add(at[0], 65536, 1, &old));
    while (t_rank == 0 && *(volatile int64_t *)(void *)&base[65536] != round && now() - begin < 20)
        usleep(100);
    CHECK(t_rank == 1 || *(int64_t *)(void *)&base[65536] == round, "the sum is %lld",
          (long long)*(int64_t *)(void *)&base[65536]);
}

/* What rank 1 has taken makes room for others, though it is in MPI. Room is told of half a
 * ring at a time. */
static void room_of_sends(int round) {
    MPIX_P2p_iov v = piece(100);
    MPI_Count got = 0;
    memset(buffer, round, 100);
    for (int i = 0; i < RING; i++)
        if (t_rank == 0)
            CHECK_OK(MPIX_P2p_send(p2p, 1, &v, 1));
        else if (CHECK_OK(MPIX_P2p_recv(p2p, 0, &v, 1, &got)))
            received(buffer, got, 100, round);
    for (int i = 0; t_rank == 0 && i < RING / 2; i++)
        CHECK_OK(MPIX_P2p_send(p2p, 1, &v, 1));
    meet();
    for (int i = 0; t_rank == 1 && i < RING / 2; i++)
        CHECK_OK(MPIX_P2p_recv(p2p, 0, &v, 1, &got));
}

static void room_of_notifications(int round) {
    static uint64_t n;
    (void)round;
    for (int i = 0; t_rank == 0 && i < RING; i++)
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){own, 0, at[1], 0, 8}, 1, 1, 1));
    n += RING;
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_notify_wait(p2p, 0, 1, n, NULL));
    for (int i = 0; t_rank == 0 && i < RING / 2; i++)
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){own, 0, at[1], 0, 8}, 1, 1, 1));
    meet();
    n += RING / 2;
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_notify_wait(p2p, 0, 1, n, NULL));
}

static const struct {
    const char *name;
    void (*run)(int round);
} operations[] = {
    {"a short send", send_short},
    {"a large send", send_large},
    {"a large receive", recv_large},
    {"a receive that fails", recv_truncated},
    {"an advertisement", advertise},
    {"put_notify", put_notify},
    {"put and flush", put_flush},
    {"get", get},
    {"fetch_add", add},
    {"room for sends", room_of_sends},
    {"room for notifications", room_of_notifications},
};

/* Rank 1 is in MPIX_P2p_free, the last of its calls: what rank 0 does meanwhile with its memory,
 * and has still to receive, ends. */
static void last_call(void) {
    MPIX_P2p_iov v = piece(1000);
    MPI_Count got = 0;
    t_where("MPIX_P2p_free");
    memset(buffer, t_rank, AREA);
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == 1)
        CHECK_OK(MPIX_P2p_send(p2p, 0, &v, 1));
    if (t_rank == 0) {
        usleep(300000);
        if (CHECK_OK(MPIX_P2p_get(&(MPIX_P2p_iov){own, 5000, at_own[1], 5000, LARGE}, 1)))
            received(buffer + 5000, LARGE, LARGE, 1);
        CHECK_OK(MPIX_P2p_put(&(MPIX_P2p_iov){own, 0, at_own[1], 1000, LARGE}, 1));
        if (CHECK_OK(MPIX_P2p_recv(p2p, 1, &v, 1, &got)))
            received(buffer, got, 1000, 1);
    }
    CHECK_OK(MPIX_P2p_free(&p2p));
}

static void all(int rounds) {
    make("15");
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (int round = 1; round <= rounds && !t_failed_anywhere(); round++) {
            t_watchdog(60);
            t_where("%s, round %d", operations[i].name, round);
            operations[i].run(round);
            meet();
        }
    if (!t_failed_anywhere())
        last_call();
}

/* Registered memory of a rank in MPI, which the system or a parameter keeps the others from: the
 * error says what helps. */
static void remedy(void) {
    MPIX_Error error;
    make("1");
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == 0) {
        int code = MPIX_P2p_put(&(MPIX_P2p_iov){own, 0, at_own[1], 0, 8}, 1);
        MPIX_INIT(&error);
        MPIX_Error_last(&error);
        CHECK(code != MPI_SUCCESS && error.kind == MPIX_ERRK_TIMEOUT && error.rank == 1 &&
                  strstr(error.text, "mpix_ep_progress=thread") &&
                  strstr(error.text, "mpix_ep_p2p_cma"),
              "code %d, kind %d, rank %d: %s", code, error.kind, error.rank, error.text);
    }
    meet();
    CHECK_OK(MPIX_P2p_free(&p2p)); /* a second at most: rank 0's has failed */
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "p2p_complete");
    REQUIRE(t_size == 2, "%d ranks, 2 are needed", t_size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    t_watchdog(60);
    if (strcmp(t_option_text(argc, argv, "--case", "all"), "remedy") == 0)
        remedy();
    else
        all((int)t_option(argc, argv, "--rounds", 6));
    return t_end();
}
