/*
 * blame.h - many objects in one job, each with one victim at another place among its ranks.
 *
 * The job has R survivors less one and R victims, for objects of R ranks: object k's ranks are the
 * survivors and victim k, which is its rank k. So all places are tried at once, and one victim's
 * silence, or end, is no other object's. The victims make the objects, take part in what comes
 * before, and from then on do nothing, or are stopped or killed by the first survivor.
 */
#ifndef TESTS_FAULTS_BLAME_H
#define TESTS_FAULTS_BLAME_H
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PLACES = 8 };

typedef struct {
    int places;                /* ranks of an object, and victims */
    int victim;                /* this rank's place, -1: a survivor */
    int first;                 /* the survivor that stops and kills */
    MPI_Comm comm[MAX_PLACES]; /* MPI_COMM_NULL where this rank is not in it */
    MPI_Comm survivors;
    pid_t pid[MAX_PLACES]; /* of the victims */
} cast;

static inline double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static inline void cast_make(cast *c) {
    int me = (int)getpid(), all[2 * MAX_PLACES];
    c->places = (t_size + 1) / 2;
    REQUIRE(t_size % 2 && c->places >= 2 && c->places <= MAX_PLACES,
            "%d ranks: an odd number, 3 to %d", t_size, 2 * MAX_PLACES - 1);
    c->victim = t_rank < c->places ? t_rank : -1;
    c->first = t_rank == c->places;
    MPI_Allgather(&me, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    for (int k = 0; k < c->places; k++) {
        int in = c->victim < 0 || c->victim == k,
            key = c->victim < 0 ? 2 * (t_rank - c->places) + 1 : 2 * k;
        c->pid[k] = all[k];
        MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, key, &c->comm[k]);
        if (in)
            MPI_Comm_set_errhandler(c->comm[k], MPI_ERRORS_RETURN);
    }
    MPI_Comm_split(MPI_COMM_WORLD, c->victim < 0 ? 0 : MPI_UNDEFINED, t_rank, &c->survivors);
}

static inline void cast_free(cast *c) {
    for (int k = 0; k < c->places; k++)
        if (c->comm[k] != MPI_COMM_NULL)
            MPI_Comm_free(&c->comm[k]);
    if (c->survivors != MPI_COMM_NULL)
        MPI_Comm_free(&c->survivors);
}

/* To all victims, by the first survivor. */
static inline void cast_signal(const cast *c, int sig) {
    for (int k = 0; c->first && k < c->places; k++)
        kill(c->pid[k], sig);
}

/* A barrier that leaves the processors to others. */
static inline void wait_for_all(void) {
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done;
         MPI_Test(&request, &done, MPI_STATUS_IGNORE))
        usleep(5000);
}

static inline int can_watch(void) {
#ifdef SYS_pidfd_open
    int fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
#else
    return 0;
#endif
}
#endif
