/*
 * collect.c - collectives that end.
 *
 * Each one is nonblocking inside and tested until it is complete, the object has failed elsewhere,
 * a peer's process has ended, or the time limit is over. Then it is given up: MPI has no way to
 * cancel it, so the communicator is used for nothing any more and never freed, and MPI may go on
 * reading and writing the memory that was named to it. That is why collectives work in a room of
 * the communicator's own, which then stays until the process ends, and never in the caller's
 * memory. What is longer than the room's pieces goes in several collectives: no call allocates, so
 * none can fail on one rank alone.
 *
 * A collective that was given up does not say who was missing. So whoever gives up asks all ranks,
 * by messages on the object's own communicator. Ranks that wait in a collective answer, ranks that
 * gave up earlier have asked themselves; who says nothing is missing.
 */
#include "config.h"

#include "base/clock.h"
#include "base/log.h"
#include "boot/boot.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECE_MOST = 4096, /* bytes per rank and collective */
    PIECE_LEAST = 64,
    ROOM_MOST = 1 << 20, /* of all ranks together, unless the pieces would be too small */
    YIELD_NS = 2000000,  /* then a waiter sleeps between two looks */
    SLEEP_NS = 100000,
    DEATHS_NS = 50000000, /* how often deaths are looked for */
    GRACE_NS = 100000000, /* what a process sent before its end may still be on its way; and: how
                           * long answers are awaited */
    TAG_WHO = 7171        /* of messages on an object's own communicator */
};

/* What a failed rank tells of itself. */
typedef struct room_report {
    int kind;
    char host[64], text[sizeof(((MPIX_Error *)0)->text)];
} room_report;

typedef struct room_note {
    uint64_t turn; /* of collectives that the sender has begun */
    int32_t asks, pad;
} room_note;

struct mpix_boot_room {
    mpix_boot_room *next; /* of those that MPI may still use */
    int lowest;
    room_report report;
    room_note ask, answer, got;
    size_t piece;
    uint64_t turn;
    char *send, *recv; /* [size][piece] */
};

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static mpix_boot_room *kept;

mpix_boot_room *mpix_boot_room_new(int size) {
    size_t piece = ROOM_MOST / (size_t)size / 64 * 64;
    mpix_boot_room *room;

    piece = piece < PIECE_LEAST ? PIECE_LEAST : piece > PIECE_MOST ? PIECE_MOST : piece;
    room = calloc(1, sizeof *room + 2 * piece * (size_t)size);
    if (!room)
        return NULL;
    room->piece = piece;
    room->send = (char *)(room + 1);
    room->recv = room->send + piece * (size_t)size;
    return room;
}

static struct {
    mpix_boot_room room;
    char send[PIECE_LEAST];
} spare;
static atomic_flag spare_taken = ATOMIC_FLAG_INIT;

mpix_boot_room *mpix_boot_room_spare(void) {
    if (atomic_flag_test_and_set(&spare_taken))
        return NULL;
    memset(&spare, 0, sizeof spare);
    spare.room.send = spare.send;
    return &spare.room;
}

void mpix_boot_room_free(mpix_boot_room *room, int broken) {
    if (room == &spare.room) {
        if (!broken)
            atomic_flag_clear(&spare_taken);
        return;
    }
    if (!room || !broken) {
        free(room);
        return;
    }
    pthread_mutex_lock(&kept_lock);
    room->next = kept;
    kept = room;
    pthread_mutex_unlock(&kept_lock);
}

/* ---- who is there ---------------------------------------------------------------------------- */

static void who_send(mpix_boot *boot, int rank, room_note *note) {
    MPI_Request request;

    if (MPI_Isend(note, sizeof *note, MPI_BYTE, rank, TAG_WHO, boot->comm, &request) == MPI_SUCCESS)
        MPI_Request_free(&request); /* a few bytes, in memory that stays */
}

/* Takes what others have asked and answered; here[]: who has come as far as this rank, or NULL. */
static void who_take(mpix_boot *boot, unsigned char *here) {
    mpix_boot_room *room = boot->room;
    MPI_Status status;
    int flag = 0;

    while (MPI_Iprobe(MPI_ANY_SOURCE, TAG_WHO, boot->comm, &flag, &status) == MPI_SUCCESS && flag) {
        int rank = status.MPI_SOURCE;
        if (MPI_Recv(&room->got, sizeof room->got, MPI_BYTE, rank, TAG_WHO, boot->comm,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return;
        if (here && room->got.turn >= room->turn)
            here[rank] = 1;
        room->answer = (room_note){room->turn, 0, 0};
        if (room->got.asks)
            who_send(boot, rank, &room->answer);
    }
}

/* The lowest rank that is not here; -1: unknown. */
static int who_is_missing(mpix_boot *boot) {
    mpix_boot_room *room = boot->room;
    uint64_t start = mpix_clock_ns();
    unsigned char *here = boot->own ? calloc((size_t)boot->size, 1) : NULL;
    int missing = -1;

    if (!here)
        return -1;
    here[boot->rank] = 1;
    room->ask = (room_note){room->turn, 1, 0};
    for (int r = 0; r < boot->size; r++)
        if (r != boot->rank)
            who_send(boot, r, &room->ask);
    while (mpix_clock_ns() - start < GRACE_NS) {
        who_take(boot, here);
        if (!memchr(here, 0, (size_t)boot->size))
            break;
        usleep(1000);
    }
    for (int r = boot->size - 1; r >= 0; r--)
        missing = here[r] ? missing : r;
    free(here);
    return missing;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* A rank of this host whose process has ended, -1: none. The descriptors are open for
 * this look only. */
static int wait_dead(const mpix_boot *boot) {
    for (int r = 0; boot->met && r < boot->size; r++)
        if (mpix_boot_gone(boot, r))
            return r;
    return -1;
}

static int wait_broken(mpix_boot *boot, int kind) {
    if (!boot->broken) {
        boot->broken = kind;
        boot->failure = *mpix_error_tls();
        if (boot->look)
            boot->look(boot->object, kind);
    }
    return kind;
}

static int wait_late(mpix_boot *boot, uint64_t limit) {
    int missing = who_is_missing(boot);

    if (missing >= 0)
        return mpix_fail_peer(MPIX_ERRK_TIMEOUT, missing,
                              boot->met ? boot->hostnames[missing] : NULL,
                              "rank %d did not come to a call of all ranks within %g s", missing,
                              (double)limit / 1e9);
    return mpix_fail(MPIX_ERRK_TIMEOUT, NULL,
                     "not all ranks came to a call of all ranks within %g s", (double)limit / 1e9);
}

/* Why a collective that is not complete is given up, 0: it is not. *dead: the rank that was seen to
 * have ended, and since when. */
static int wait_look(mpix_boot *boot, uint64_t start, uint64_t limit, int *dead, uint64_t *since) {
    uint64_t now = mpix_clock_ns();
    int kind = boot->look ? boot->look(boot->object, 0) : 0;

    if (kind)
        return kind;
    if (*dead < 0 && now - *since > DEATHS_NS) {
        *dead = wait_dead(boot);
        *since = now;
    }
    if (*dead >= 0 && now - *since > GRACE_NS)
        return mpix_fail_peer(
            MPIX_ERRK_PEER, *dead, boot->hostnames[*dead],
            "rank %d (pid %d on %s) ended before a call of all ranks was complete", *dead,
            (int)boot->pids[*dead], boot->hostnames[*dead]);
    return now - start > limit ? wait_late(boot, limit) : 0;
}

/* Until the collective is complete. err: what its start returned. */
static int wait_for(mpix_boot *boot, MPI_Request *request, int err, const char *what,
                    uint64_t limit) {
    uint64_t start = mpix_clock_ns(), since = start;
    int done = 0, dead = -1, kind = 0;

    boot->room->turn++;
    for (;;) {
        if (err == MPI_SUCCESS)
            err = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (err != MPI_SUCCESS)
            return wait_broken(boot, mpix_boot_mpi(err, what));
        if (done)
            return 0;
        if (kind) /* it was looked at once more */
            return wait_broken(boot, kind);
        kind = wait_look(boot, start, limit, &dead, &since);
        if (mpix_clock_ns() - start < YIELD_NS) {
            sched_yield();
            continue;
        }
        if (boot->own)
            who_take(boot, NULL);
        struct timespec pause = {0, SLEEP_NS};
        nanosleep(&pause, NULL);
    }
}

/* A collective of a communicator that was given up does not begin. */
static int wait_refused(mpix_boot *boot) {
    if (boot->broken)
        *mpix_error_tls() = boot->failure;
    return boot->broken;
}

/* ---- collectives ----------------------------------------------------------------------------- */

void mpix_boot_limit(mpix_boot *boot, double seconds, int (*look)(void *object, int kind),
                     void *object) {
    boot->limit_ns = mpix_clock_limit(seconds);
    boot->look = look;
    boot->object = object;
}

int mpix_boot_allgather(mpix_boot *boot, const void *send, size_t bytes, void *recv) {
    mpix_boot_room *room = boot->room;
    int kind = wait_refused(boot);
    size_t at = 0;

    while (!kind) {
        size_t n = bytes - at < room->piece ? bytes - at : room->piece;
        MPI_Request request;
        if (n)
            memcpy(room->send, (const char *)send + at, n);
        int err = MPI_Iallgather(room->send, (int)n, MPI_BYTE, room->recv, (int)n, MPI_BYTE,
                                 boot->comm, &request);
        kind = wait_for(boot, &request, err, "MPI_Iallgather", boot->limit_ns);
        for (int r = 0; !kind && n && r < boot->size; r++)
            memcpy((char *)recv + bytes * (size_t)r + at, room->recv + n * (size_t)r, n);
        at += n;
        if (at == bytes)
            break;
    }
    return kind;
}

int mpix_boot_alltoall(mpix_boot *boot, const void *send, size_t bytes, void *recv) {
    mpix_boot_room *room = boot->room;
    int kind = wait_refused(boot);
    size_t at = 0;

    while (!kind) {
        size_t n = bytes - at < room->piece ? bytes - at : room->piece;
        MPI_Request request;
        for (int r = 0; n && r < boot->size; r++)
            memcpy(room->send + n * (size_t)r, (const char *)send + bytes * (size_t)r + at, n);
        int err = MPI_Ialltoall(room->send, (int)n, MPI_BYTE, room->recv, (int)n, MPI_BYTE,
                                boot->comm, &request);
        kind = wait_for(boot, &request, err, "MPI_Ialltoall", boot->limit_ns);
        for (int r = 0; !kind && n && r < boot->size; r++)
            memcpy((char *)recv + bytes * (size_t)r + at, room->recv + n * (size_t)r, n);
        at += n;
        if (at == bytes)
            break;
    }
    return kind;
}

int mpix_boot_barrier_bounded(mpix_boot *boot, double seconds) {
    MPI_Request request;
    int kind = wait_refused(boot);

    if (kind)
        return kind;
    int err = MPI_Ibarrier(boot->comm, &request);
    return wait_for(boot, &request, err, "MPI_Ibarrier", mpix_clock_limit(seconds));
}

int mpix_boot_barrier(mpix_boot *boot) {
    return mpix_boot_barrier_bounded(boot, boot->limit_ns == UINT64_MAX
                                               ? -1
                                               : (double)boot->limit_ns / 1e9);
}

int mpix_boot_bcast(mpix_boot *boot, void *data, size_t bytes) {
    mpix_boot_room *room = boot->room;
    size_t most = room->piece * (size_t)boot->size;
    int kind = wait_refused(boot);

    for (size_t at = 0; at < bytes && !kind; at += most) {
        size_t n = bytes - at < most ? bytes - at : most;
        MPI_Request request;
        memcpy(room->send, (char *)data + at, n);
        int err = MPI_Ibcast(room->send, (int)n, MPI_BYTE, 0, boot->comm, &request);
        kind = wait_for(boot, &request, err, "MPI_Ibcast", boot->limit_ns);
        if (!kind)
            memcpy((char *)data + at, room->send, n);
    }
    return kind;
}

int mpix_boot_or(mpix_boot *boot, uint64_t *words, int n) {
    mpix_boot_room *room = boot->room;
    int most = (int)(room->piece / sizeof *words), kind = wait_refused(boot);

    for (int at = 0; at < n && !kind; at += most) {
        int some = n - at < most ? n - at : most;
        size_t bytes = (size_t)some * sizeof *words;
        MPI_Request request;
        memcpy(room->send, words + at, bytes);
        int err = MPI_Iallreduce(room->send, room->recv, some, MPI_UINT64_T, MPI_BOR, boot->comm,
                                 &request);
        kind = wait_for(boot, &request, err, "MPI_Iallreduce", boot->limit_ns);
        if (!kind)
            memcpy(words + at, room->recv, bytes);
    }
    return kind;
}

/*
 * The usual case, success everywhere, costs one reduction of one word: the lowest rank that failed,
 * or the number of ranks. Only after a failure that rank says what happened. A rank that failed
 * itself keeps its own error: it knows best.
 */
int mpix_boot_agree(mpix_boot *boot, int kind) {
    mpix_boot_room *room = boot->room;
    room_report *report = &room->report;
    MPIX_Error own = *mpix_error_tls();
    MPI_Request request;
    int lowest = kind ? boot->rank : boot->size, failed = wait_refused(boot), err;

    if (!failed) {
        memcpy(room->send, &lowest, sizeof lowest);
        err = MPI_Iallreduce(room->send, &room->lowest, 1, MPI_INT, MPI_MIN, boot->comm, &request);
        failed = wait_for(boot, &request, err, "MPI_Iallreduce", boot->limit_ns);
    }
    if (!failed && room->lowest == boot->size)
        return 0;
    if (!failed) {
        lowest = room->lowest;
        memset(report, 0, sizeof *report);
        if (lowest == boot->rank) {
            report->kind = kind;
            gethostname(report->host, sizeof report->host - 1);
            memcpy(report->text, own.text, sizeof report->text);
        }
        err = MPI_Ibcast(report, (int)sizeof *report, MPI_BYTE, lowest, boot->comm, &request);
        failed = wait_for(boot, &request, err, "MPI_Ibcast", boot->limit_ns);
    }
    if (kind) {
        *mpix_error_tls() = own;
        return kind;
    }
    if (failed)
        return failed;
    return mpix_fail_peer(MPIX_ERRK_REMOTE, lowest, report->host,
                          "rank %d on %s failed with %s: %s", lowest, report->host,
                          mpix_kind_name(report->kind), report->text);
}
