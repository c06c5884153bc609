/*
 * boot.h - the only code that calls MPI: ranks, hosts, exchange of memory handles, agreement on
 * status, raising of errors.
 *
 * Internal MPI calls run on a duplicate of the user's communicator that returns errors; the
 * handler inherited from the user's communicator is kept apart and put in place only while an
 * error is raised.
 */
#ifndef MPIX_BOOT_H
#define MPIX_BOOT_H
#include "base/param.h"
#include "base/status.h"
#include <stdatomic.h>
#include <sys/types.h>

typedef struct mpix_boot_room mpix_boot_room;

typedef struct mpix_boot {
    MPI_Comm comm;             /* own duplicate */
    MPI_Errhandler errhandler; /* to raise through; never MPI_ERRHANDLER_NULL */
    int rank, size;
    int nhosts;   /* hosts numbered by their lowest rank */
    int *host_of; /* [size] host of each rank; ranks of one host: those that can open each
                   * other's memory */
    int local_rank, local_size;
    int proxied;              /* set by an object that reaches ranks of other hosts through a proxy:
                               * windows skip them */
    pid_t *pids;              /* [size] pid of each rank; for use, see mpix_boot_knows_pid */
    unsigned char *same_pids; /* [size] 1: the rank counts processes in this rank's name space */
    char (*hostnames)[64];    /* [size] */
    uint64_t *starts;         /* [size] when each rank's process began, 0: unknown */
    unsigned char *apart;     /* [size] MPIX_APART_*: why a rank is of another host */
    int own, met;             /* comm is our own; pids and hostnames are known */
    /* collectives (collect.c) */
    mpix_boot_room *room;
    uint64_t limit_ns;                   /* longest wait in one of them, UINT64_MAX: none */
    int (*look)(void *object, int kind); /* the object's, see mpix_boot_limit */
    void *object;
    int broken;         /* kind: one was given up, so comm is used for nothing any more */
    MPIX_Error failure; /* why */
} mpix_boot;

enum {
    MPIX_APART_NOT,
    MPIX_APART_MACHINE, /* another machine, as far as is known */
    MPIX_APART_SPACES,  /* neither the process nor the socket can be seen from here */
    MPIX_APART_ACCESS,  /* the process can be seen but not opened, and the socket can't be seen */
    MPIX_APART_PROC,    /* neither is where the rank says */
    MPIX_APART_PEER,    /* this rank is not found by that one */
    MPIX_APART_OTHERS,  /* they find each other, but not the same other ranks */
    MPIX_APART_SPLIT    /* virtual hosts */
};

#define MPIX_BOOT_SECONDS 300.0 /* the time limit before there is a better one */
/* 0, or ARG: MPI_COMM_NULL, MPI not initialized or finalized, an intercommunicator (argument
 * "comm"). No communication. */
int mpix_boot_check(MPI_Comm comm);

/* Collective over comm. ARG: MPI_COMM_NULL, MPI not initialized or finalized, an intercommunicator
 * (argument "comm"). Those are found before any communication. */
int mpix_boot_create(MPI_Comm comm, mpix_boot **boot);
/* The same with a time limit; negative: none. */
int mpix_boot_create_within(MPI_Comm comm, double seconds, mpix_boot **boot);
/* Frees the duplicate unless abandoned (a peer is dead: nothing collective is called).
 * NULL is fine. */
void mpix_boot_free(mpix_boot *boot, int abandoned);
/* Whether pids[rank] names that rank's process here: another rank of this host whose process
 * numbers mean the same. */
int mpix_boot_knows_pid(const mpix_boot *boot, int rank);
/* Why a rank is of another host, in words; "" if it is not. */
const char *mpix_boot_apart(const mpix_boot *boot, int rank);
/* A descriptor, close-on-exec, for mpix_boot_ended, shared by all that watch the process; -1
 * where there can't be one: then a death is noticed by time limits alone. errno ESRCH: that
 * process has ended. */
int mpix_boot_watch(const mpix_boot *boot, int rank);
/* Likewise, also if the rank is of another virtual host. */
int mpix_boot_watch_process(const mpix_boot *boot, int rank);
void mpix_boot_unwatch(int pidfd); /* of those two; -1 is fine */
/* Whether the process behind a descriptor of mpix_boot_watch has ended; 0 for -1. */
int mpix_boot_ended(int pidfd);
/* When a process began, in the kernel's ticks, 0: unknown. */
uint64_t mpix_boot_process_start(pid_t pid);
/* The same for one look, without a descriptor of the caller's. */
int mpix_boot_gone(const mpix_boot *boot, int rank);
int mpix_boot_set_errhandler(mpix_boot *boot, MPI_Errhandler errhandler);

/*
 * Collectives. They end when the time limit is over (TIMEOUT), a peer of this host has ended
 * (PEER), or look says that the object has failed elsewhere (its kind). Then boot->broken is
 * set: later ones fail at once with the same error, comm is never freed, and the object must
 * fail on this rank.
 */
/*
 * look(object, 0): called again and again by a waiting collective; 0, or the kind of the object's
 * failure, with the thread's error. look(object, kind): a collective has been given up with this
 * kind and the thread's error; the object fails. NULL: none. seconds < 0: no limit.
 */
void mpix_boot_limit(mpix_boot *boot, double seconds, int (*look)(void *object, int kind),
                     void *object);
/* A failed object tells its peers by a word, never 0: its kind, the rank that it blames and the
 * rank that tells. */
uint64_t mpix_boot_tell(const mpix_boot *boot, int kind, const MPIX_Error *error);
/* What a peer makes of it: a kind, with the thread's error. object: "the context", ... */
int mpix_boot_told(const mpix_boot *boot, uint64_t word, const char *object);
mpix_boot_room *mpix_boot_room_new(int size);               /* NULL: no memory */
mpix_boot_room *mpix_boot_room_spare(void);                 /* to agree on that, and for nothing
                                                             * else; NULL: in use */
void mpix_boot_room_free(mpix_boot_room *room, int broken); /* broken: kept, since MPI may still use
                                                             * it */
/* recv is [size][bytes]. */
int mpix_boot_allgather(mpix_boot *boot, const void *send, size_t bytes, void *recv);
/* send and recv are [size][bytes]: block r of send goes to rank r. */
int mpix_boot_alltoall(mpix_boot *boot, const void *send, size_t bytes, void *recv);
int mpix_boot_barrier(mpix_boot *boot);
/* A barrier with a time limit of its own. */
int mpix_boot_barrier_bounded(mpix_boot *boot, double seconds);
/* Splits every host into up to `parts` virtual ones, of consecutive ranks; parts < 2: nothing.
 * Local; the same on all ranks. */
int mpix_boot_split_hosts(mpix_boot *boot, int parts);
/* bytes at data of rank 0, to all. */
int mpix_boot_bcast(mpix_boot *boot, void *data, size_t bytes);
/* Bitwise OR over ranks of n 64-bit words, in place. */
int mpix_boot_or(mpix_boot *boot, uint64_t *words, int n);
/* Agreement on the status of a stage: kind is this rank's (0: fine). Returns 0 if it is 0
 * everywhere, this rank's own kind if that is not 0, otherwise REMOTE naming the lowest rank that
 * failed, its kind and host. Keeps this rank's own MPIX_Error. */
int mpix_boot_agree(mpix_boot *boot, int kind);

/* Names and values, as text, that must be the same on all ranks of an object. */
enum { MPIX_SAME_BYTES = 8192 };
typedef struct mpix_same {
    char text[MPIX_SAME_BYTES]; /* name, 0, value, 0, name ... */
    size_t used;
    int full; /* something did not fit: a defect, told by mpix_boot_same */
} mpix_same;

void mpix_same_begin(mpix_same *same);
void mpix_same_add(mpix_same *same, const char *name, const char *fmt, ...) MPIX_PRINTF(3, 4);
/* All parameters that the table says must be the same, as "mpix_ep_<name>". */
void mpix_same_add_params(mpix_same *same, const mpix_params *params);
/* Compares with rank 0's. Collective, ends in agreement: 0 on all ranks; or ARG on those that
 * differ from rank 0, which names the first thing that differs, both values and both ranks, and
 * REMOTE with that text on the others. */
int mpix_boot_same(mpix_boot *boot, const mpix_same *mine);

/* Turns a kind into an MPI code, stores it in this thread's MPIX_Error, and raises it through
 * boot's handler (boot
 * NULL: through MPI_COMM_SELF's). kind 0 gives MPI_SUCCESS. Does not call MPI before MPI_Init,
 * after MPI_Finalize, or off the main thread below MPI_THREAD_SERIALIZED: then the code is only
 * returned (MPI_ERR_OTHER if the codes could not be made yet). Classes: one per kind, one code
 * each, made once per process. */
int mpix_boot_raise(mpix_boot *boot, int kind);
/* Likewise through the handler of the caller's communicator, where there is no object yet; through
 * MPI_COMM_SELF's if comm is none. */
int mpix_boot_raise_comm(MPI_Comm comm, int kind);
/* Makes classes and codes; called by create calls. Repeating it is cheap. */
int mpix_boot_codes(void);
/* The code of a kind, stored in this thread's MPIX_Error but not raised, for calls that
 * raise nothing. */
int mpix_boot_code(int kind);
/* The kind of a code: 0 for MPI_SUCCESS, -1 if it is not one of the library's. Calls no MPI. */
int mpix_boot_kind(int code);
/* 0 for MPI_SUCCESS, otherwise INTERNAL with MPI's text for err, the return value of the MPI
 * call named what. */
int mpix_boot_mpi(int err, const char *what);

/* Calls fn(arg, key, value) for every key of info that begins with "mpix_ep_", prefix cut; stops at
 * the first non-zero result and returns it. MPI_INFO_NULL has none. */
int mpix_boot_info_each(MPI_Info info, int (*fn)(void *arg, const char *key, const char *value),
                        void *arg);

/* Objects that are still alive when MPI_Finalize runs are taken down locally through an attribute
 * on MPI_COMM_SELF. fn(object) must call nothing collective. Thread safe. */
int mpix_boot_at_finalize(void *object, void (*fn)(void *object));
void mpix_boot_forget(void *object); /* undoes it */

/* Live objects of the library, to tell a freed handle from a valid one without reading it. tag:
 * what kind of object. */
enum {
    MPIX_LIVE_EP = 1,
    MPIX_LIVE_HANDLE,
    MPIX_LIVE_XFER,
    MPIX_LIVE_P2P,
    MPIX_LIVE_MEM,
    MPIX_LIVE_RMEM
};
/* An object's entry lies in the object, so adding can't fail: it needs no memory. */
typedef struct mpix_live {
    struct mpix_live *next;
    const void *object;
    int tag;
} mpix_live;
void mpix_live_add(mpix_live *entry, const void *object, int tag);
void mpix_live_remove(const void *object);
int mpix_live_check(const void *object, int tag); /* 1: alive and of that kind. Constant time,
                                                   * thread safe. */
/* 0 if it is alive, otherwise ARG: text, of what arg is, or that it belongs to the process that
 * forked this one. */
int mpix_live_need(const void *object, int tag, const char *arg, const char *text);

/* Processes that fork: fork.c. The process that owns the objects, where this one is a child of
 * it; 0: it is none. */
pid_t mpix_boot_owner(void);
/* Whether the object was alive in the parent when this process was forked and has not
 * been freed here. */
int mpix_live_inherited(const void *object, int tag);
/* Frees it here: 1 if it was inherited. Its memory stays. */
int mpix_live_leave(const void *object, int tag);
/* Around a fork; LEFT: in the first child after MPI_Init, where no object is alive any more. */
enum { MPIX_FORK_BEFORE, MPIX_FORK_PARENT, MPIX_FORK_CHILD, MPIX_FORK_LEFT };
void mpix_live_fork(int when);
/* Counts what ends the validity of look-ups that callers keep: an object's end, where they say
 * so, and a fork. */
extern _Atomic uint64_t mpix_live_turn;
#endif
