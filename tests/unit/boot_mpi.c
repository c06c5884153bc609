/*
 * boot_mpi.c - bootstrap between ranks: hosts, agreement, info keys, error classes and handlers,
 * what happens in MPI_Finalize.
 */
#include "config.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "boot/boot.h"
#include "mpi_check.h"
#include "mpix_p2p.h"

static int world_rank, world_size;

/* Communicators and references to handlers that this process holds: the library must give back
 * what it takes. */
static int held_comms, held_handlers;

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *newcomm) {
    held_comms++;
    return PMPI_Comm_dup(comm, newcomm);
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *newcomm) {
    held_comms++;
    return PMPI_Comm_create(comm, group, newcomm);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *newcomm) {
    held_comms++;
    return PMPI_Comm_split_type(comm, type, key, info, newcomm);
}

int MPI_Comm_free(MPI_Comm *comm) {
    held_comms--;
    return PMPI_Comm_free(comm);
}

int MPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler *errhandler) {
    held_handlers++;
    return PMPI_Comm_get_errhandler(comm, errhandler);
}

int MPI_Errhandler_free(MPI_Errhandler *errhandler) {
    held_handlers--;
    return PMPI_Errhandler_free(errhandler);
}

/* ---- handlers -------------------------------------------------------------------------------- */

static struct { int calls, code, which, size; } seen;

static void note(MPI_Comm *comm, int *code, int which) {
    seen.calls++;
    seen.code = *code;
    seen.which = which;
    MPI_Comm_size(*comm, &seen.size);
}

static void handler_one(MPI_Comm *comm, int *code, ...) { note(comm, code, 1); }

static void handler_two(MPI_Comm *comm, int *code, ...) { note(comm, code, 2); }

static void create_handler(MPI_Comm_errhandler_function *fn, MPI_Errhandler *handler) {
    MPI_Comm_create_errhandler(fn, handler);
    held_handlers++;
}

static void test_raise(void) {
    MPI_Errhandler one, two;
    MPI_Comm comm;
    mpix_boot *boot = NULL;
    char text[MPI_MAX_ERROR_STRING + 1];
    int code, kind, errclass, classes[MPIX_ERRK_INTERNAL + 1], len;

    create_handler(handler_one, &one);
    create_handler(handler_two, &two);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, one);
    CHECK(mpix_boot_create(comm, &boot) == 0, "%s", mpix_error_tls()->text);

    for (int k = 1; k <= MPIX_ERRK_INTERNAL; k++) {
        MPIX_Error err;
        memset(&seen, 0, sizeof seen);
        code = mpix_boot_raise(boot, mpix_fail(k, "some.arg", "value %d", k));
        CHECK(seen.calls == 1 && seen.which == 1 && seen.code == code && seen.size == world_size,
              "kind %d: %d calls of %d", k, seen.calls, seen.which);
        MPIX_Error_kind(code, &kind);
        CHECK(kind == k, "code %d has kind %d, not %d", code, kind, k);
        MPIX_INIT(&err);
        MPIX_Error_last(&err);
        CHECK(err.code == code && err.kind == k, "code %d kind %d", err.code, err.kind);
        MPI_Error_class(code, &errclass);
        classes[k] = errclass;
        CHECK(errclass > MPI_ERR_LASTCODE || errclass != code, "class %d of code %d", errclass,
              code);
        for (int j = 1; j < k; j++)
            CHECK(classes[j] != errclass, "kinds %d and %d share class %d", j, k, errclass);
        MPI_Error_string(code, text, &len);
        CHECK(strstr(text, mpix_kind_name(k)) && strstr(text, "some.arg") && strstr(text, "value "),
              "text of %d: %s", k, text);
        CHECK(mpix_boot_raise(boot, k) == code, "another code for the same kind");
    }
    CHECK(mpix_boot_raise(boot, 0) == MPI_SUCCESS, "success");

    /* The handler is inherited once; a later change on the user's communicator is the user's. */
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    memset(&seen, 0, sizeof seen);
    mpix_boot_raise(boot, MPIX_ERRK_ARG);
    CHECK(seen.calls == 1 && seen.which == 1, "%d calls of %d", seen.calls, seen.which);
    /* The library's own handle stays when the user frees his. */
    CHECK(mpix_boot_set_errhandler(boot, two) == 0, "%s", mpix_error_tls()->text);
    MPI_Errhandler_free(&two);
    MPI_Errhandler_free(&one);
    memset(&seen, 0, sizeof seen);
    mpix_boot_raise(boot, MPIX_ERRK_ARG);
    CHECK(seen.calls == 1 && seen.which == 2, "%d calls of %d", seen.calls, seen.which);
    CHECK(mpix_boot_set_errhandler(boot, MPI_ERRHANDLER_NULL) == MPIX_ERRK_ARG,
          "a null handler was taken");
    CHECK(mpix_boot_set_errhandler(boot, MPI_ERRORS_RETURN) == 0, "%s", mpix_error_tls()->text);
    memset(&seen, 0, sizeof seen);
    mpix_boot_raise(boot, MPIX_ERRK_ARG);
    CHECK(seen.calls == 0, "%d calls", seen.calls);
    /* Internal calls see no handler of the user's. */
    CHECK(mpix_boot_barrier(boot) == 0, "%s", mpix_error_tls()->text);
    mpix_boot_free(boot, 0);
    MPI_Comm_free(&comm);
}

/* An error of no object goes to MPI_COMM_SELF, through a public call. */
static void test_raise_self(void) {
    MPI_Errhandler one;
    MPIX_P2p p2p = MPIX_P2P_NULL;
    int code, kind;

    create_handler(handler_one, &one);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, one);
    memset(&seen, 0, sizeof seen);
    code = MPIX_P2p_free(&p2p);
    MPIX_Error_kind(code, &kind);
    CHECK(kind == MPIX_ERRK_ARG && seen.calls == 1 && seen.size == 1, "kind %d, %d calls", kind,
          seen.calls);
    memset(&seen, 0, sizeof seen);
    code = MPIX_P2p_get_async_error(p2p, NULL);
    MPIX_Error_kind(code, &kind);
    CHECK(kind == MPIX_ERRK_ARG && seen.calls == 0, "kind %d, %d calls", kind, seen.calls);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&one);
}

static void *raise_elsewhere(void *arg) {
    memset(&seen, 0, sizeof seen);
    *(int *)arg = mpix_boot_raise(NULL, mpix_fail(MPIX_ERRK_ARG, "x", "in a thread"));
    return NULL;
}

/* Off the main thread, the code is returned and MPI is not called unless MPI allows it. */
static void test_raise_thread(void) {
    int provided, code = MPI_SUCCESS, kind;
    MPI_Errhandler one;
    pthread_t thread;

    MPI_Query_thread(&provided);
    create_handler(handler_one, &one);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, one);
    if (pthread_create(&thread, NULL, raise_elsewhere, &code) == 0)
        pthread_join(thread, NULL);
    MPIX_Error_kind(code, &kind);
    CHECK(kind == MPIX_ERRK_ARG, "kind %d", kind);
    CHECK(seen.calls == (provided >= MPI_THREAD_SERIALIZED), "%d calls with thread level %d",
          seen.calls, provided);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&one);
}

/* ---- the communicator ------------------------------------------------------------------------ */

static void test_create(void) {
    mpix_boot *boot = NULL;
    MPI_Comm reversed, inter, half;
    char host[64] = "";

    CHECK(mpix_boot_create(MPI_COMM_NULL, &boot) == MPIX_ERRK_ARG &&
              strcmp(mpix_error_tls()->arg, "comm") == 0,
          "%s", mpix_error_tls()->text);
    if (world_size > 1) {
        int color = world_rank % 2;
        MPI_Comm_split(MPI_COMM_WORLD, color, world_rank, &half);
        held_comms += 2;
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, color ? 0 : 1, 5, &inter);
        CHECK(mpix_boot_create(inter, &boot) == MPIX_ERRK_ARG &&
                  strstr(mpix_error_tls()->text, "intercommunicator"),
              "%s", mpix_error_tls()->text);
        MPI_Comm_free(&inter);
        MPI_Comm_free(&half);
    }
    CHECK(boot == NULL, "an object in spite of an error");

    /* Other ranks than the world's. */
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
    held_comms++;
    CHECK(mpix_boot_create(reversed, &boot) == 0, "%s", mpix_error_tls()->text);
    CHECK(boot->rank == world_size - 1 - world_rank && boot->size == world_size, "rank %d of %d",
          boot->rank, boot->size);
    CHECK(boot->nhosts == 1 && boot->local_size == world_size && boot->local_rank == boot->rank,
          "%d hosts", boot->nhosts);
    gethostname(host, sizeof host - 1);
    for (int r = 0; r < boot->size; r++)
        CHECK(boot->host_of[r] == 0 && strcmp(boot->hostnames[r], host) == 0, "rank %d on %s", r,
              boot->hostnames[r]);
    CHECK(boot->pids[boot->rank] == getpid(), "pid %d", (int)boot->pids[boot->rank]);
    mpix_boot_free(boot, 0);
    MPI_Comm_free(&reversed);
    mpix_boot_free(NULL, 0);
}

static void test_collectives(mpix_boot *boot) {
    int *all = calloc((size_t)boot->size, sizeof *all), mine = 100 + boot->rank;
    uint64_t words[3] = {(uint64_t)1 << boot->rank, 0, (uint64_t)1 << 63};

    CHECK(mpix_boot_allgather(boot, &mine, sizeof mine, all) == 0, "%s", mpix_error_tls()->text);
    for (int r = 0; r < boot->size; r++)
        CHECK(all[r] == 100 + r, "rank %d sent %d", r, all[r]);
    CHECK(mpix_boot_or(boot, words, 3) == 0, "%s", mpix_error_tls()->text);
    CHECK(words[0] == ((uint64_t)1 << boot->size) - 1 && words[1] == 0 &&
              words[2] == (uint64_t)1 << 63,
          "words %llx %llx %llx", (unsigned long long)words[0], (unsigned long long)words[1],
          (unsigned long long)words[2]);
    free(all);
}

/* A set of ranks fails: each keeps its own error, the others hear of the lowest. */
static void test_agree(mpix_boot *boot) {
    CHECK(mpix_boot_agree(boot, 0) == 0, "%s", mpix_error_tls()->text);
    for (int first = 0; first < boot->size; first++) {
        int fails = boot->rank >= first && (boot->rank - first) % 2 == 0;
        int kind = fails
                       ? mpix_fail(MPIX_ERRK_TRUNCATE, "rows", "%d rows on rank %d", 17, boot->rank)
                       : 0;
        char expect[64];

        kind = mpix_boot_agree(boot, kind);
        snprintf(expect, sizeof expect, "17 rows on rank %d", fails ? boot->rank : first);
        CHECK(kind == (fails ? MPIX_ERRK_TRUNCATE : MPIX_ERRK_REMOTE), "%s", mpix_kind_name(kind));
        CHECK(mpix_error_tls()->kind == kind, "%s", mpix_kind_name(mpix_error_tls()->kind));
        CHECK(mpix_error_tls()->rank == (fails ? -1 : first), "blames %d, not %d",
              mpix_error_tls()->rank, first);
        CHECK(strstr(mpix_error_tls()->text, expect), "%s", mpix_error_tls()->text);
        CHECK(fails || strstr(mpix_error_tls()->text, "TRUNCATE"), "%s", mpix_error_tls()->text);
    }
}

/* ---- info ------------------------------------------------------------------------------------ */

static int count_key(void *arg, const char *key, const char *value) {
    int *n = arg;

    if (strcmp(key, "timeout") == 0 && strcmp(value, "5") == 0)
        n[0]++;
    else if (strcmp(key, "stop") == 0)
        return 77;
    else
        n[1]++;
    return 0;
}

static int set_key(void *arg, const char *key, const char *value) {
    return mpix_params_set(arg, key, value);
}

static void test_info(void) {
    int n[2] = {0, 0};
    mpix_params params;
    MPI_Info info;

    CHECK(mpix_boot_info_each(MPI_INFO_NULL, count_key, n) == 0 && n[0] + n[1] == 0,
          "keys in MPI_INFO_NULL");
    MPI_Info_create(&info);
    MPI_Info_set(info, "other_key", "1");
    MPI_Info_set(info, "mpix_ep_timeout", "5");
    MPI_Info_set(info, "mpix_ep", "not a key of ours");
    CHECK(mpix_boot_info_each(info, count_key, n) == 0 && n[0] == 1 && n[1] == 0, "%d %d", n[0],
          n[1]);
    CHECK(mpix_params_read(&params) == 0, "%s", mpix_error_tls()->text);
    CHECK(mpix_boot_info_each(info, set_key, &params) == 0 && params.timeout == 5.0, "timeout %g",
          params.timeout);
    MPI_Info_set(info, "mpix_ep_stop", "now");
    MPI_Info_set(info, "mpix_ep_max_handles", "-3");
    CHECK(mpix_boot_info_each(info, count_key, n) == 77, "the function's result is not passed on");
    MPI_Info_delete(info, "mpix_ep_stop");
    mpix_log_configure(MPIX_LOG_NONE, "");
    CHECK(mpix_boot_info_each(info, set_key, &params) == MPIX_ERRK_ARG, "a bad value was taken");
    CHECK(strstr(mpix_error_tls()->text, "mpix_ep_max_handles") &&
              strstr(mpix_error_tls()->text, "-3"),
          "%s", mpix_error_tls()->text);
    MPI_Info_free(&info);
}

/* ---- the end --------------------------------------------------------------------------------- */

static int final_order[3], final_calls, final_working;

static void final_fn(void *object) {
    int flag = 0, size = 0;

    final_order[final_calls++ % 3] = *(int *)object;
    MPI_Finalized(&flag);
    MPI_Comm_size(MPI_COMM_SELF, &size);
    final_working += !flag && size == 1;
    mpix_boot_forget(object); /* as a free function does; it is forgotten already */
}

int main(int argc, char **argv) {
    static int objects[4] = {1, 2, 3, 4};
    mpix_boot *boot = NULL, *forgotten = NULL;
    int failed, code, kind;

    mpix_log_configure(MPIX_LOG_NONE, ""); /* errors are expected */
    CHECK(mpix_boot_create(MPI_COMM_WORLD, &boot) == MPIX_ERRK_ARG &&
              strstr(mpix_error_tls()->text, "MPI_Init"),
          "%s", mpix_error_tls()->text);
    check_mpi_init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);

    test_raise_self(); /* first: the codes are made by an error */
    test_raise();
    test_raise_thread();
    test_create();
    CHECK(mpix_boot_create(MPI_COMM_WORLD, &boot) == 0, "%s", mpix_error_tls()->text);
    test_collectives(boot);
    test_agree(boot);
    test_info();
    CHECK(mpix_boot_create(MPI_COMM_WORLD, &forgotten) == 0, "%s", mpix_error_tls()->text);
    for (int i = 0; i < 4; i++)
        CHECK(mpix_boot_at_finalize(&objects[i], final_fn) == 0, "%s", mpix_error_tls()->text);
    mpix_boot_forget(&objects[1]);
    mpix_boot_forget(&world_rank); /* never known */
    failed = check_report("boot_mpi");
    mpix_boot_free(boot, 0);
    mpix_boot_free(forgotten, 1); /* locally, as after a death */
    CHECK(held_comms == 1, "%d communicators are left, not just the abandoned one", held_comms);
    CHECK(held_handlers == 0, "%d references to handlers are left", held_handlers);
    check_leaks();
    MPI_Finalize();

    CHECK(final_calls == 3 && final_working == 3, "%d objects were taken down, %d while MPI worked",
          final_calls, final_working);
    CHECK(final_order[0] == 4 && final_order[1] == 3 && final_order[2] == 1, "order %d %d %d",
          final_order[0], final_order[1], final_order[2]);
    /* After the end an error is still returned and described. */
    CHECK(mpix_boot_create(MPI_COMM_WORLD, &boot) == MPIX_ERRK_ARG &&
              strstr(mpix_error_tls()->text, "finalized"),
          "%s", mpix_error_tls()->text);
    code = MPIX_P2p_free(NULL);
    MPIX_Error_kind(code, &kind);
    CHECK(kind == MPIX_ERRK_ARG, "kind %d", kind);
    return failed || check_failures;
}
