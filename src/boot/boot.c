/*
 * boot.c - creation of the communicator, and what ranks know of each other. Exchange and agreement
 * are in collect.c.
 */
#include "config.h"

#include "boot/boot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/trace.h"
#include "boot/place.h"

int mpix_boot_mpi(int err, const char *what) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int len = 0;

    if (err == MPI_SUCCESS)
        return 0;
    if (MPI_Error_string(err, text, &len) != MPI_SUCCESS)
        snprintf(text, sizeof text, "code %d", err);
    return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "%s failed: %.200s", what, text);
}

int mpix_boot_check(MPI_Comm comm) {
    int flag = 0, errclass = 0, err;

    if (mpix_boot_owner())
        return mpix_fail(MPIX_ERRK_ARG, "comm",
                         "comm belongs to process %ld, which forked this one after MPI_Init: MPI "
                         "can't be used here",
                         (long)mpix_boot_owner());
    MPI_Initialized(&flag);
    if (!flag)
        return mpix_fail(MPIX_ERRK_ARG, "comm", "MPI is not initialized: call MPI_Init first");
    MPI_Finalized(&flag);
    if (flag)
        return mpix_fail(MPIX_ERRK_ARG, "comm", "MPI has been finalized");
    if (comm == MPI_COMM_NULL)
        return mpix_fail(MPIX_ERRK_ARG, "comm", "comm is MPI_COMM_NULL");
    err = MPI_Comm_test_inter(comm, &flag);
    if (err != MPI_SUCCESS) { /* of an MPI that looks; others crash */
        MPI_Error_class(err, &errclass);
        if (errclass == MPI_ERR_COMM)
            return mpix_fail(MPIX_ERRK_ARG, "comm", "comm is no communicator: freed?");
        return mpix_boot_mpi(err, "MPI_Comm_test_inter");
    }
    if (flag)
        return mpix_fail(MPIX_ERRK_ARG, "comm",
                         "comm is an intercommunicator; an intracommunicator is needed");
    return 0;
}

/* The duplicate and the handler, not the rest. Abandoned: nothing collective is called. */
static void boot_leave(mpix_boot *boot, int abandoned) {
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (finalized)
        return;
    if (boot->errhandler != MPI_ERRHANDLER_NULL)
        MPI_Errhandler_free(&boot->errhandler);
    if (boot->own && !abandoned && !boot->broken)
        MPI_Comm_free(&boot->comm);
}

static void boot_release(mpix_boot *boot) {
    free(boot->host_of);
    free(boot->pids);
    free(boot->same_pids);
    free(boot->hostnames);
    free(boot->starts);
    free(boot->apart);
    mpix_boot_room_free(boot->room, boot->broken);
}

/*
 * The own communicator: the same ranks, nothing inherited - no attributes, whose copy functions are
 * the caller's, no hints, no topology - and it returns errors. MPI makes it with a call that waits
 * without limit, so the ranks meet first, on the caller's communicator and within the limit, and
 * agree on what was had so far. They meet twice: a rank that comes after the others have given up
 * may find their first meeting complete, but not the second. What remains is a rank that ends or is
 * stopped right after it has met the others: in MPI_Comm_create, or in MPI_Comm_split_type where
 * not all ranks are on one machine (place.c).
 */
static int boot_duplicate(mpix_boot *boot, MPI_Comm comm, int kind) {
    MPI_Group group;
    MPI_Comm own;

    boot->comm = comm;
    kind = mpix_boot_agree(boot, kind);
    if (!kind)
        kind = mpix_boot_barrier(boot);
    boot->comm = MPI_COMM_NULL;
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_group(comm, &group), "MPI_Comm_group");
    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_create(comm, group, &own), "MPI_Comm_create");
    MPI_Group_free(&group);
    if (kind)
        return kind;
    boot->comm = own;
    boot->own = 1;
    kind = mpix_boot_mpi(MPI_Comm_get_errhandler(comm, &boot->errhandler),
                         "MPI_Comm_get_errhandler");
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_set_errhandler(boot->comm, MPI_ERRORS_RETURN),
                             "MPI_Comm_set_errhandler");
    return kind;
}

int mpix_boot_create(MPI_Comm comm, mpix_boot **out) {
    return mpix_boot_create_within(comm, MPIX_BOOT_SECONDS, out);
}

int mpix_boot_create_within(MPI_Comm comm, double seconds, mpix_boot **out) {
    mpix_boot own = {.comm = MPI_COMM_NULL, .errhandler = MPI_ERRHANDLER_NULL},
              *boot = calloc(1, sizeof *boot);
    mpix_boot_place *place;
    int kind = mpix_boot_check(comm), world_rank;

    if (kind) {
        free(boot);
        return kind;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    mpix_log_set_rank(world_rank);

    /* What may fail on one rank alone comes before the ranks meet, who agree on it. */
    mpix_boot_limit(&own, seconds, NULL, NULL);
    MPI_Comm_rank(comm, &own.rank);
    MPI_Comm_size(comm, &own.size);
    own.room = mpix_boot_room_new(own.size);
    own.host_of = calloc((size_t)own.size, sizeof *own.host_of);
    own.pids = calloc((size_t)own.size, sizeof *own.pids);
    own.same_pids = calloc((size_t)own.size, sizeof *own.same_pids);
    own.hostnames = calloc((size_t)own.size, sizeof *own.hostnames);
    own.starts = calloc((size_t)own.size, sizeof *own.starts);
    own.apart = calloc((size_t)own.size, sizeof *own.apart);
    place = mpix_boot_place_new(own.size);
    if (!boot || !own.room || !own.host_of || !own.pids || !own.same_pids || !own.hostnames ||
        !own.starts || !own.apart || !place)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the description of %d ranks",
                         own.size);
    else
        kind = mpix_boot_codes();
    if (!own.room)
        own.room = mpix_boot_room_spare();
    if (own.room)
        kind = boot_duplicate(&own, comm, kind);
    if (!kind)
        kind = mpix_boot_place_find(&own, place);
    if (kind)
        goto free_boot;
    own.met = 1;
    mpix_boot_place_free(place);
    *boot = own;
    *out = boot;
    return 0;

free_boot:
    mpix_boot_place_free(place);
    /* Where MPI itself failed, nothing collective is tried with it any more. */
    boot_leave(&own, kind == MPIX_ERRK_INTERNAL);
    boot_release(&own);
    free(boot);
    return kind;
}

int mpix_boot_knows_pid(const mpix_boot *boot, int rank) {
    return rank != boot->rank && boot->host_of[rank] == boot->host_of[boot->rank] &&
           boot->same_pids[rank];
}

int mpix_boot_gone(const mpix_boot *boot, int rank) {
    errno = 0;
    int pidfd = mpix_boot_watch_process(boot, rank),
        gone = pidfd < 0 ? errno == ESRCH : mpix_boot_ended(pidfd);

    mpix_boot_unwatch(pidfd);
    return gone;
}

void mpix_boot_free(mpix_boot *boot, int abandoned) {
    if (!boot)
        return;
    mpix_trace_write();
    boot_leave(boot, abandoned);
    boot_release(boot);
    free(boot);
}

/* MPI has no call that duplicates a handler's handle, so it goes through the duplicate: set there,
 * got back as a reference of our own. */
int mpix_boot_set_errhandler(mpix_boot *boot, MPI_Errhandler errhandler) {
    MPI_Errhandler own;
    int err;

    if (errhandler == MPI_ERRHANDLER_NULL)
        return mpix_fail(MPIX_ERRK_ARG, "errhandler", "errhandler is MPI_ERRHANDLER_NULL");
    err = MPI_Comm_set_errhandler(boot->comm, errhandler);
    if (err != MPI_SUCCESS) {
        int kind = mpix_boot_mpi(err, "MPI_Comm_set_errhandler");
        MPI_Comm_set_errhandler(boot->comm, MPI_ERRORS_RETURN);
        return kind;
    }
    err = MPI_Comm_get_errhandler(boot->comm, &own);
    MPI_Comm_set_errhandler(boot->comm, MPI_ERRORS_RETURN);
    if (err != MPI_SUCCESS)
        return mpix_boot_mpi(err, "MPI_Comm_get_errhandler");
    MPI_Errhandler_free(&boot->errhandler);
    boot->errhandler = own;
    return 0;
}
