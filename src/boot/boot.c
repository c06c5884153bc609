/*
 * boot.c - creation, exchange and agreement over the communicator.
 */
#include "config.h"

#include "boot/boot.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/trace.h"

/* What every rank tells every rank at creation. */
typedef struct boot_card {
    int leader; /* lowest rank of its host */
    int pid;
    uint64_t pid_ns; /* its name space of process numbers, 0: unknown */
    char host[64];
} boot_card;

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

/* The rank in boot->comm of the lowest rank of local; no communication. */
static int boot_find_leader(mpix_boot *boot, MPI_Comm local, int *leader) {
    MPI_Group here, all;
    int zero = 0, kind;

    kind = mpix_boot_mpi(MPI_Comm_group(local, &here), "MPI_Comm_group");
    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_group(boot->comm, &all), "MPI_Comm_group");
    if (!kind) {
        kind = mpix_boot_mpi(MPI_Group_translate_ranks(here, 1, &zero, all, leader), "MPI_Group_translate_ranks");
        MPI_Group_free(&all);
    }
    MPI_Group_free(&here);
    return kind;
}

/* The ranks that MPI says can share memory; their lowest rank stands for the host. */
static int boot_find_host(mpix_boot *boot, boot_card *card) {
    MPI_Comm local;
    int kind = mpix_boot_mpi(MPI_Comm_split_type(boot->comm, MPI_COMM_TYPE_SHARED, boot->rank, MPI_INFO_NULL, &local),
                             "MPI_Comm_split_type");

    if (kind)
        return kind;
    kind = mpix_boot_mpi(MPI_Comm_rank(local, &boot->local_rank), "MPI_Comm_rank");
    if (!kind)
        kind = mpix_boot_mpi(MPI_Comm_size(local, &boot->local_size), "MPI_Comm_size");
    if (!kind)
        kind = boot_find_leader(boot, local, &card->leader);
    MPI_Comm_free(&local);
    return kind;
}

/* Hosts are numbered by their lowest rank, which is the leader, so a leader meets a new number and the others find it
 * there. */
static void boot_number_hosts(mpix_boot *boot, const boot_card *cards) {
    for (int r = 0; r < boot->size; r++) {
        int leader = cards[r].leader;
        boot->host_of[r] = leader == r ? boot->nhosts++ : boot->host_of[leader];
        boot->pids[r] = cards[r].pid;
        boot->same_pids[r] = cards[r].pid_ns != 0 && cards[r].pid_ns == cards[boot->rank].pid_ns;
        memcpy(boot->hostnames[r], cards[r].host, sizeof cards[r].host);
    }
}

int mpix_boot_create(MPI_Comm comm, mpix_boot **out) {
    mpix_boot dup = {.comm = MPI_COMM_NULL, .errhandler = MPI_ERRHANDLER_NULL}, *boot;
    boot_card card = {0}, *cards = NULL;
    struct stat st;
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
        cards = calloc((size_t)boot->size, sizeof *cards);
    }
    if (!boot || !boot->host_of || !boot->pids || !boot->same_pids || !boot->hostnames || !cards)
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the description of %d ranks", dup.size);
    else
        kind = mpix_boot_codes();
    kind = mpix_boot_agree(&dup, kind);
    if (kind && !boot)
        boot_leave(&dup, 0);
    if (kind)
        goto free_boot;

    kind = boot_find_host(boot, &card);
    if (kind)
        goto free_boot;
    card.pid = (int)getpid();
    card.pid_ns = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    gethostname(card.host, sizeof card.host - 1);
    kind = mpix_boot_allgather(boot, &card, sizeof card, cards);
    if (kind)
        goto free_boot;
    boot_number_hosts(boot, cards);
    free(cards);
    *out = boot;
    return 0;

free_boot:
    free(cards);
    /* Where MPI itself failed, nothing collective is tried with it any more. */
    mpix_boot_free(boot, kind == MPIX_ERRK_INTERNAL);
    return kind;
}

int mpix_boot_knows_pid(const mpix_boot *boot, int rank) {
    return rank != boot->rank && boot->host_of[rank] == boot->host_of[boot->rank] && boot->same_pids[rank];
}

int mpix_boot_watch(const mpix_boot *boot, int rank) {
#ifdef SYS_pidfd_open
    if (mpix_boot_knows_pid(boot, rank))
        return (int)syscall(SYS_pidfd_open, boot->pids[rank], 0); /* close-on-exec by itself */
#else
    (void)boot, (void)rank;
#endif
    return -1;
}

int mpix_boot_ended(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    return pidfd >= 0 && poll(&p, 1, 0) == 1;
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
