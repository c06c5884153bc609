/*
 * p2p_target.c - the target of a transfer lives: memory that it registered and that is read-only,
 * unreadable, unmapped by now, or a file cut short by now, makes an error at the origin and
 * nothing at the target.
 *
 *   p2p_target
 *
 * Rank 0 is the origin, rank 1 the target, which only makes progress. How they reach each other is
 * the environment's to say.
 */
#include "harness.h"
#include "mpix_p2p.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 65536, GOOD = 4096 };
enum { READ_ONLY, UNREADABLE, UNMAPPED, CUT, KINDS };
enum { PUT, NOTIFY, GET, ADD, OPS };

static const char *const kind_names[] = {"read-only", "not accessible", "unmapped", "cut short"};
static const char *const op_names[] = {"put", "put_notify", "get", "fetch_add"};

static MPIX_P2p p2p;
static MPIX_P2p_mem bad, good;
static MPIX_P2p_rmem at_bad[2], at_good[2];
static char *memory, *fine;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void make(int kind) {
    char name[] = "/tmp/mpix-p2p-target-XXXXXX";
    int fd = kind == CUT ? mkstemp(name) : -1;
    MPI_Info info;
    if (kind == CUT)
        REQUIRE(fd >= 0 && unlink(name) == 0 && ftruncate(fd, BYTES) == 0, "no file");
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                  kind == CUT ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    REQUIRE(memory != MAP_FAILED && (fine = calloc(1, GOOD)) != NULL, "no memory");
    memset(memory, 7, BYTES);
    if (kind == READ_ONLY || kind == UNREADABLE)
        REQUIRE(mprotect(memory, BYTES, kind == READ_ONLY ? PROT_READ : PROT_NONE) == 0,
                "mprotect");
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", "2");
    REQUIRE(MPIX_P2p_create(MPI_COMM_WORLD, info, &p2p) == MPI_SUCCESS, "no object");
    MPI_Info_free(&info);
    REQUIRE(MPIX_P2p_reg(p2p, memory, BYTES, MPI_INFO_NULL, &bad) == MPI_SUCCESS,
            "%s memory can't be registered", kind_names[kind]);
    CHECK_OK(MPIX_P2p_reg(p2p, fine, GOOD, MPI_INFO_NULL, &good));
    CHECK_OK(MPIX_P2p_exchange(bad, at_bad));
    CHECK_OK(MPIX_P2p_exchange(good, at_good));
    if (t_rank == 1 && kind == UNMAPPED)
        /* so that nobody else gets the place */
        REQUIRE(mmap(memory, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                    memory,
                "mmap");
    if (t_rank == 1 && kind == CUT)
        REQUIRE(ftruncate(fd, 0) == 0, "ftruncate");
    if (fd >= 0)
        close(fd);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Whatever it is, until it is complete for good: over a network a put's end is not its arrival. */
static int run(int op, MPIX_P2p_rmem *at, MPI_Count roff) {
    MPIX_P2p_iov v = {.mem = good, .rmem = at[1], .roff = roff, .len = GOOD};
    int64_t old;
    int code = op == PUT      ? MPIX_P2p_put(&v, 1)
               : op == NOTIFY ? MPIX_P2p_put_notify(&v, 1, 0, 1)
               : op == GET    ? MPIX_P2p_get(&v, 1)
                              : MPIX_P2p_fetch_add(at[1], roff, 1, &old);
    return code == MPI_SUCCESS ? MPIX_P2p_flush(p2p, 1) : code;
}

static void origin(int kind, int op) {
    int allowed = kind == READ_ONLY && op == GET;
    MPIX_Error error;
    int code = run(op, at_bad, 8192);
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (allowed)
        CHECK(code == MPI_SUCCESS && fine[0] == 7, "code %d, %d: %s", code, fine[0], error.text);
    else
        CHECK(code != MPI_SUCCESS && error.rank == 1 && error.kind != MPIX_ERRK_TIMEOUT &&
                  error.kind != MPIX_ERRK_INTERNAL,
              "code %d, kind %d, rank %d: %s", code, error.kind, error.rank, error.text);
    if (kind != READ_ONLY && kind != UNREADABLE)
        return; /* over a network the connection is lost */
    CHECK(allowed || (error.kind == MPIX_ERRK_ARG && strstr(error.text, "register it again")),
          "kind %d: %s", error.kind, error.text);
    if (CHECK_OK(run(PUT, at_good, 0))) /* a refused call changes nothing */
        CHECK_OK(run(GET, at_good, 0));
}

/* Progress until the origin has seen enough. The object may have failed, which is the
 * origin's to judge. */
static void target(void) {
    MPI_Request request;
    int over, done = 0;
    double begin = now();
    MPI_Irecv(&over, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, &request);
    while (!done && CHECK(now() - begin < 40, "the origin does not end")) {
        int flag;
        MPIX_P2p_notify_test(p2p, 0, 3, 1, NULL, &flag);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

static void one(int kind, int op) {
    int over = 1;
    t_watchdog(60);
    t_where("%s of memory that is %s", op_names[op], kind_names[kind]);
    make(kind);
    if (t_rank == 1)
        target();
    if (t_rank == 0) {
        origin(kind, op);
        MPI_Send(&over, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
    }
    CHECK_OK(MPIX_P2p_free(&p2p));
    munmap(memory, BYTES);
    free(fine);
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "p2p_target");
    REQUIRE(t_size == 2, "%d ranks, 2 are needed", t_size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    long only_kind = t_option(argc, argv, "--kind", -1), only_op = t_option(argc, argv, "--op", -1);
    for (int kind = 0; kind < KINDS; kind++)
        for (int op = 0; op < OPS && !t_failed_anywhere(); op++)
            if ((only_kind < 0 || kind == only_kind) && (only_op < 0 || op == only_op))
                one(kind, op);
    return t_end();
}
