/*
 * boot.c - creation, exchange and agreement over the communicator.
 */
#include "config.h"

#include "boot/boot.h"

#include <limits.h>
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

static int boot_check(MPI_Comm comm) {
    int flag = 0, errclass = 0, err;

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
        return mpix_fail(MPIX_ERRK_ARG, "comm", "comm is an intercommunicator; an intracommunicator is needed");
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
    if (boot->comm != MPI_COMM_NULL && !abandoned)
        MPI_Comm_free(&boot->comm);
}

static void boot_release(mpix_boot *boot) {
    free(boot->host_of);
    free(boot->pids);
    free(boot->same_pids);
    free(boot->hostnames);
    free(boot->starts);
    free(boot->apart);
    free(boot);
}

/* Own duplicate, which returns errors; the handler that it inherited is kept apart. */
static int boot_duplicate(mpix_boot *boot, MPI_Comm comm) {
    int kind = mpix_boot_mpi(MPI_Comm_dup(comm, &boot->comm), "MPI_Comm_dup");

    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_get_errhandler(boot->comm, &boot->errhandler), "MPI_Comm_get_errhandler");
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_set_errhandler(boot->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_rank(boot->comm, &boot->rank), "MPI_Comm_rank");
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_size(boot->comm, &boot->size), "MPI_Comm_size");
    return kind;
}

int mpix_boot_create(MPI_Comm comm, mpix_boot **out) {
    mpix_boot dup = {.comm = MPI_COMM_NULL, .errhandler = MPI_ERRHANDLER_NULL}, *boot;
    mpix_boot_place *place = NULL;
    int kind = boot_check(comm), world_rank;

    if (kind)
        return kind;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    mpix_log_set_rank(world_rank);

    /* With the duplicate ranks agree, so it comes before all that may fail on one rank alone. */
    kind = boot_duplicate(&dup, comm);
    if (kind) {
        boot_leave(&dup, 1);
        return kind;
    }
    boot = calloc(1, sizeof *boot);
    if (boot) {
        *boot = dup;
        boot->host_of = calloc((size_t)boot->size, sizeof *boot->host_of);
        boot->pids = calloc((size_t)boot->size, sizeof *boot->pids);
        boot->same_pids = calloc((size_t)boot->size, sizeof *boot->same_pids);
        boot->hostnames = calloc((size_t)boot->size, sizeof *boot->hostnames);
        boot->starts = calloc((size_t)boot->size, sizeof *boot->starts);
        boot->apart = calloc((size_t)boot->size, sizeof *boot->apart);
        place = mpix_boot_place_new(boot->size);
    }
    if (!boot || !boot->host_of || !boot->pids || !boot->same_pids || !boot->hostnames || !boot->starts || !boot->apart ||
        !place)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the description of %d ranks", dup.size);
    else
        kind = mpix_boot_codes();
    kind = mpix_boot_agree(&dup, kind);
    if (kind && !boot)
        boot_leave(&dup, 0);
    if (kind)
        goto free_boot;

    kind = mpix_boot_place_find(boot, place);
    if (kind)
        goto free_boot;
    mpix_boot_place_free(place);
    *out = boot;
    return 0;

free_boot:
    mpix_boot_place_free(place);
    /* Where MPI itself failed, nothing collective is tried with it any more. */
    mpix_boot_free(boot, kind == MPIX_ERRK_INTERNAL);
    return kind;
}

int mpix_boot_knows_pid(const mpix_boot *boot, int rank) {
    return rank != boot->rank && boot->host_of[rank] == boot->host_of[boot->rank] && boot->same_pids[rank];
}

void mpix_boot_free(mpix_boot *boot, int abandoned) {
    if (!boot)
        return;
    mpix_trace_write();
    boot_leave(boot, abandoned);
    boot_release(boot);
}

/* MPI has no call that duplicates a handler's handle, so it goes through the duplicate: set there, got back as a
 * reference of our own. */
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

int mpix_boot_allgather(mpix_boot *boot, const void *send, size_t bytes, void *recv) {
    if (bytes > INT_MAX)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "an exchange of %zu bytes per rank is more than MPI_Allgather takes",
                         bytes);
    return mpix_boot_mpi(MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, boot->comm),
                         "MPI_Allgather");
}

int mpix_boot_alltoall(mpix_boot *boot, const void *send, size_t bytes, void *recv) {
    if (bytes > INT_MAX)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "an exchange of %zu bytes per pair is more than MPI_Alltoall takes",
                         bytes);
    return mpix_boot_mpi(MPI_Alltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, boot->comm),
                         "MPI_Alltoall");
}

int mpix_boot_barrier(mpix_boot *boot) {
    return mpix_boot_mpi(MPI_Barrier(boot->comm), "MPI_Barrier");
}

int mpix_boot_or(mpix_boot *boot, uint64_t *words, int n) {
    return mpix_boot_mpi(MPI_Allreduce(MPI_IN_PLACE, words, n, MPI_UINT64_T, MPI_BOR, boot->comm), "MPI_Allreduce");
}

/*
 * The usual case, success everywhere, costs one reduction of one word: the lowest rank that failed, or the number of
 * ranks. Only after a failure that rank says what happened. A rank that failed itself keeps its own error: it knows
 * best.
 */
int mpix_boot_agree(mpix_boot *boot, int kind) {
    struct {
        int kind;
        char host[64], text[sizeof(((MPIX_Error *)0)->text)];
    } report = {0};
    int lowest = kind ? boot->rank : boot->size, failed;

    failed = mpix_boot_mpi(MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, boot->comm), "MPI_Allreduce");
    if (failed)
        return kind ? kind : failed;
    if (lowest == boot->size)
        return 0;

    if (lowest == boot->rank) {
        report.kind = kind;
        gethostname(report.host, sizeof report.host - 1);
        memcpy(report.text, mpix_error_tls()->text, sizeof report.text);
    }
    failed = mpix_boot_mpi(MPI_Bcast(&report, (int)sizeof report, MPI_BYTE, lowest, boot->comm), "MPI_Bcast");
    if (kind)
        return kind;
    if (failed)
        return failed;
    return mpix_fail_peer(MPIX_ERRK_REMOTE, lowest, report.host, "rank %d on %s failed with %s: %s", lowest,
                          report.host, mpix_kind_name(report.kind), report.text);
}
