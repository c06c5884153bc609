/*
 * p2p_faults.c - peers that compute, stop, die or fork: what is promised about progress holds,
 * errors name the peer in time, and free returns.
 *
 *   p2p_faults --case computing|fork|stopped|killed|forgotten [--mem alloc|reg]
 *
 * The victim is the last rank. In `killed` survivors leave by _exit; tests/mpi/run.sh
 * counts their verdicts.
 */
#include "harness.h"
#include "mpix_p2p.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

static MPIX_P2p p2p;
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at[64];
static char *base;
static int victim;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void make(int registered, const char *timeout) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", timeout);
    REQUIRE(MPIX_P2p_create(MPI_COMM_WORLD, info, &p2p) == MPI_SUCCESS, "no object");
    MPI_Info_free(&info);
    if (registered) {
        REQUIRE((base = malloc(2 * BYTES)) != NULL, "no memory");
        CHECK_OK(MPIX_P2p_reg(p2p, base, 2 * BYTES, MPI_INFO_NULL, &mem));
    } else {
        CHECK_OK(MPIX_P2p_alloc(p2p, 2 * BYTES, MPI_INFO_NULL, &base, &mem));
    }
    memset(base, t_rank + 1, 2 * BYTES);
    CHECK_OK(MPIX_P2p_exchange(mem, at));
}

static void blames(int code, int kind, const char *what) {
    MPIX_Error error;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(code != MPI_SUCCESS && error.kind == kind && error.rank == victim && error.host[0],
          "%s: code %d, kind %d (expected %d), rank %d (expected %d): %s", what, code, error.kind,
          kind, error.rank, victim, error.text);
}

/* The victim looks at its memory with plain loads, and calls nothing. What is one-sided
 * completes meanwhile. */
static void computing(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == victim) {
        double begin = now();
        while (*(volatile char *)&base[BYTES - 1] != 77 && now() - begin < 20)
            ;
        CHECK(base[BYTES - 1] == 77, "the put did not arrive while the target computed");
    } else if (t_rank == 0) {
        memset(base, 77, BYTES);
        CHECK_OK(MPIX_P2p_get(&(MPIX_P2p_iov){mem, BYTES, at[victim], 0, BYTES}, 1));
        CHECK(base[BYTES] == victim + 1 && base[2 * BYTES - 1] == victim + 1, "got %d",
              base[BYTES]);
        CHECK_OK(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at[victim], 0, BYTES - 1}, 1));
        CHECK_OK(MPIX_P2p_flush(p2p, victim));
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){mem, 0, at[victim], BYTES - 1, 1}, 1, 0, 1));
    }
    if (t_rank == victim)
        CHECK_OK(MPIX_P2p_notify_wait(p2p, 0, 0, 1, NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_OK(MPIX_P2p_free(&p2p));
}

/* A child that does nothing of ours, and its end, leave the parent's transfers alone. */
static void forked(int registered) {
    pid_t child = fork();
    if (child == 0) {
        if (registered) /* its own copy of the page */
            memset(base, 0x11, BYTES);
        usleep(200000);
        _exit(0);
    }
    for (int i = 0; i < 200; i++) {
        int peer = (t_rank + 1) % t_size, from = (t_rank + t_size - 1) % t_size;
        base[0] = (char)i;
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){mem, 0, at[peer], BYTES, 1}, 1, 0, 1));
        CHECK_OK(MPIX_P2p_notify_wait(p2p, from, 0, (uint64_t)i + 1, NULL));
        CHECK(base[BYTES] == (char)i, "round %d: %d", i, base[BYTES]);
        CHECK_OK(MPIX_P2p_put_notify(&(MPIX_P2p_iov){mem, 0, at[from], 0, 0}, 1, 1, 1));
        CHECK_OK(MPIX_P2p_notify_wait(p2p, peer, 1, (uint64_t)i + 1, NULL));
        if (i == 100)
            waitpid(child, NULL, 0);
    }
    CHECK_OK(MPIX_P2p_free(&p2p));
}

/* What must fail, by whom, and what works on: nothing does, the object has failed. */
static void survive(int kind) {
    MPIX_Error error;
    MPIX_Xfer x[2];
    MPI_Count n;
    double begin = now();
    CHECK_OK(MPIX_P2p_irecv(p2p, victim, &(MPIX_P2p_iov){.mem = mem, .len = 100}, 1, &n, &x[0]));
    CHECK_OK(MPIX_P2p_isend(p2p, victim, &(MPIX_P2p_iov){.mem = mem, .len = BYTES}, 1, &x[1]));
    blames(MPIX_P2p_notify_wait(p2p, victim, 0, 1, NULL), kind, "a wait for a notification");
    CHECK(now() - begin < 4, "the wait took %.2f s", now() - begin);
    blames(MPIX_Xfer_wait(&x[0]), kind, "a receive");
    blames(MPIX_Xfer_wait(&x[1]), kind, "a large send");
    CHECK(!x[0] && !x[1], "transfers are left");
    blames(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at[0], 0, 1}, 1), kind,
           "a put on the failed object");
    MPIX_INIT(&error);
    CHECK(MPIX_P2p_get_async_error(p2p, &error) == MPI_SUCCESS && error.kind == kind &&
              error.rank == victim,
          "async error: kind %d, rank %d", error.kind, error.rank);
    CHECK_OK(MPIX_P2p_dereg(&mem));
    begin = now();
    CHECK_OK(MPIX_P2p_free(&p2p));
    CHECK(now() - begin < 3, "free took %.2f s", now() - begin);
}

/* In mid-transfer: rank 0 moves data to and from the victim until it fails, or for as long as the
 * memory works without its owner. */
static void busy(double seconds) {
    double begin = now();
    while (t_rank == 0 && now() - begin < seconds) {
        if (MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at[victim], 0, BYTES}, 1) != MPI_SUCCESS ||
            MPIX_P2p_get(&(MPIX_P2p_iov){mem, 0, at[victim], 0, BYTES}, 1) != MPI_SUCCESS)
            return;
    }
}

static void stopped(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == victim) {
        pid_t me = getpid(), child = fork();
        if (child == 0) {
            usleep(3500000);
            kill(me, SIGCONT);
            _exit(0);
        }
        kill(me, SIGSTOP);
        waitpid(child, NULL, 0);
        CHECK_OK(MPIX_P2p_free(&p2p)); /* the others do not come: bounded */
        return;
    }
    usleep(50000);
    busy(0.2);
    survive(MPIX_ERRK_TIMEOUT);
}

static void killed(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == victim) {
        usleep(150000);
        kill(getpid(), SIGKILL);
    }
    busy(0.4);
    if (t_rank == 0) {
        MPIX_Error error;
        MPIX_INIT(&error);
        MPIX_P2p_get_async_error(p2p, &error);
        if (error.kind) { /* it was in a call */
            CHECK(error.kind == MPIX_ERRK_PEER && error.rank == victim, "kind %d, rank %d: %s",
                  error.kind, error.rank, error.text);
            blames(MPIX_P2p_flush(p2p, victim), MPIX_ERRK_PEER, "a flush on the failed object");
            CHECK_OK(MPIX_P2p_free(&p2p));
            t_leave();
        }
    }
    usleep(400000);
    survive(MPIX_ERRK_PEER);
    t_leave();
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "p2p_faults");
    const char *what = t_option_text(argc, argv, "--case", "computing");
    int registered = strcmp(t_option_text(argc, argv, "--mem", "alloc"), "reg") == 0;
    victim = t_size - 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    t_watchdog(60);
    t_where("%s", what);
    make(registered, strcmp(what, "stopped") == 0 ? "1" : "20");
    if (strcmp(what, "computing") == 0)
        computing();
    else if (strcmp(what, "fork") == 0)
        forked(registered);
    else if (strcmp(what, "stopped") == 0)
        stopped();
    else if (strcmp(what, "killed") == 0)
        killed();
    else if (strcmp(what, "forgotten") == 0)
        MPI_Barrier(MPI_COMM_WORLD); /* MPI_Finalize takes it down */
    else
        REQUIRE(0, "--case %s", what);
    return t_end();
}
