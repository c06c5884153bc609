/*
 * fork.c - processes that fork.
 *
 * A child has copies of the library's objects, but neither their threads nor a place in the job:
 * MPI may not be called, windows are the parent's to write, and a barrier would be the parent's
 * next one. So objects are the parent's only. In the child they are gone from the set of live ones,
 * which every call looks at first; a call on one says whose it is, and freeing one lets go of what
 * is mapped and succeeds. The child's copies of what is on the heap stay until it ends.
 *
 * The set of live objects is locked around a fork, so that the child's copy is whole. Locks of the
 * log and the trace that another thread held are made anew in the child.
 */
#include "config.h"

#include "boot/boot.h"

#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "base/trace.h"

static pid_t fork_owner; /* in a child: the process whose objects these are */
static pid_t fork_pid;   /* who forks now */
static int fork_mpi;     /* whether it has initialized MPI, so that its children can't */

static void fork_before(void) {
    int flag = 1;

    if (!fork_owner)
        MPI_Initialized(&flag); /* which any thread may ask at any time, but not a child */
    mpix_live_fork(MPIX_FORK_BEFORE);
    fork_mpi = flag;
    fork_pid = getpid();
}

static void fork_parent(void) { mpix_live_fork(MPIX_FORK_PARENT); }

static void fork_child(void) {
    if (fork_mpi && !fork_owner)
        fork_owner = fork_pid;
    mpix_log_fork();
    mpix_trace_fork();
    mpix_live_fork(fork_owner == fork_pid ? MPIX_FORK_LEFT : MPIX_FORK_CHILD);
}

/* When the library is loaded: before anybody can fork with an object of it. */
static void fork_watch(void) __attribute__((constructor));
static void fork_watch(void) { (void)pthread_atfork(fork_before, fork_parent, fork_child); }

pid_t mpix_boot_owner(void) { return fork_owner; }
