/*
 * raise.c - error classes and codes, and raising through MPI's error handlers.
 *
 * MPI implementations have few classes and codes to give away (MPICH: 126 and 8189), and strings
 * belong to codes; a code added to a predefined class gets garbage for a text there. So there is
 * one class per kind with one code each, made once per process. The particulars of an error are in
 * MPIX_Error; the code's string is renewed with them before it is raised, so that a fatal handler
 * prints what happened and not only which kind it was.
 */
#include "config.h"

#include "boot/boot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RAISE_KINDS = MPIX_ERRK_INTERNAL };

static const char *const raise_texts[RAISE_KINDS + 1] = {
    [MPIX_ERRK_ARG] = "an argument is wrong",
    [MPIX_ERRK_TRUNCATE] = "rows or bytes do not fit",
    [MPIX_ERRK_NO_MEM] = "memory or another resource could not be had",
    [MPIX_ERRK_UNSUPPORTED] = "not supported by this build, machine or version",
    [MPIX_ERRK_REMOTE] = "another rank failed",
    [MPIX_ERRK_PEER] = "a peer died or its connection broke",
    [MPIX_ERRK_TIMEOUT] = "a peer did not answer in time",
    [MPIX_ERRK_TRANSPORT] = "a device or the system refused",
    [MPIX_ERRK_INTERNAL] = "MPI failed, or a defect of the library",
};

/* making of codes, renewal of their strings */
static pthread_mutex_t raise_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int raise_ready; /* set after the codes */
static int raise_codes[RAISE_KINDS + 1];

/* Whether this thread may call MPI now. The four inquiries below may be made by any
 * thread at any time. */
static int raise_may_call(void) {
    int flag = 0, level = MPI_THREAD_SINGLE, main_thread = 0;

    if (mpix_boot_owner())
        return 0; /* MPI is the parent's */
    MPI_Initialized(&flag);
    if (!flag)
        return 0;
    MPI_Finalized(&flag);
    if (flag)
        return 0;
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_SERIALIZED)
        return 1;
    MPI_Is_thread_main(&main_thread);
    return main_thread;
}

/* The string of a code, at most as long as MPI takes. */
static void raise_describe(int kind, const MPIX_Error *err) {
    char text[MPI_MAX_ERROR_STRING];
    size_t n = (size_t)snprintf(text, sizeof text, "mpix-ep %s: %s", mpix_kind_name(kind),
                                raise_texts[kind]);

    if (err && n < sizeof text &&
        snprintf(text + n, sizeof text - n, "%s%s: %s", err->arg[0] ? ": " : "", err->arg,
                 err->text) < 0)
        text[n] = '\0';
    MPI_Add_error_string(raise_codes[kind], text);
}

int mpix_boot_codes(void) {
    int kind = 0;

    if (atomic_load_explicit(&raise_ready, memory_order_acquire))
        return 0;
    if (!raise_may_call())
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                         "error codes can't be made now: MPI may not be called");
    pthread_mutex_lock(&raise_lock);
    for (int k = 1; k <= RAISE_KINDS && !kind && !raise_ready; k++) {
        int errclass;
        kind = mpix_boot_mpi(MPI_Add_error_class(&errclass), "MPI_Add_error_class");
        if (!kind)
            kind = mpix_boot_mpi(MPI_Add_error_string(errclass, raise_texts[k]),
                                 "MPI_Add_error_string");
        if (!kind)
            kind = mpix_boot_mpi(MPI_Add_error_code(errclass, &raise_codes[k]),
                                 "MPI_Add_error_code");
        if (!kind)
            raise_describe(k, NULL);
    }
    if (!kind)
        atomic_store_explicit(&raise_ready, 1, memory_order_release);
    pthread_mutex_unlock(&raise_lock);
    return kind;
}

int mpix_boot_code(int kind) {
    MPIX_Error saved = *mpix_error_tls();
    int code = MPI_ERR_OTHER;

    if (kind == 0)
        return MPI_SUCCESS;
    /* the failure to make codes is not what the caller wants to hear about */
    if (!atomic_load_explicit(&raise_ready, memory_order_acquire) && raise_may_call() &&
        mpix_boot_codes())
        *mpix_error_tls() = saved;
    if (atomic_load_explicit(&raise_ready, memory_order_acquire) && kind > 0 && kind <= RAISE_KINDS)
        code = raise_codes[kind];
    mpix_error_tls()->code = code;
    return code;
}

int mpix_boot_kind(int code) {
    if (code == MPI_SUCCESS)
        return 0;
    if (atomic_load_explicit(&raise_ready, memory_order_acquire))
        for (int k = 1; k <= RAISE_KINDS; k++)
            if (raise_codes[k] == code)
                return k;
    return -1;
}

/* The code of a kind; 1: it is to be raised, and says what happened. */
static int raise_prepare(int kind, int *code) {
    *code = mpix_boot_code(kind);
    if (*code == MPI_SUCCESS || !raise_may_call())
        return 0;
    if (mpix_boot_kind(*code) == kind) {
        pthread_mutex_lock(&raise_lock);
        raise_describe(kind, mpix_error_tls());
        pthread_mutex_unlock(&raise_lock);
    }
    return 1;
}

int mpix_boot_raise_comm(MPI_Comm comm, int kind) {
    MPIX_Error error = *mpix_error_tls();
    int code, flag;

    if (!raise_prepare(kind, &code))
        return code;
    error.code = code;
    if (comm == MPI_COMM_NULL || MPI_Comm_test_inter(comm, &flag) != MPI_SUCCESS)
        comm = MPI_COMM_SELF;
    MPI_Comm_call_errhandler(comm, code);
    *mpix_error_tls() = error; /* a handler may have called the library */
    return code;
}

/*
 * The object's communicator returns errors, because internal MPI calls run on it; the user's
 * handler is put in place for the one call that raises. A handler may leave by longjmp or an
 * exception: then the communicator keeps the user's handler until the next raise, and an internal
 * MPI error would reach it, which is what it is for.
 */
int mpix_boot_raise(mpix_boot *boot, int kind) {
    int code, raises = raise_prepare(kind, &code);

    if (!raises)
        return code;
    if (!boot) {
        MPI_Comm_call_errhandler(MPI_COMM_SELF, code);
        return code;
    }
    MPI_Comm_set_errhandler(boot->comm, boot->errhandler);
    MPI_Comm_call_errhandler(boot->comm, code);
    MPI_Comm_set_errhandler(boot->comm, MPI_ERRORS_RETURN);
    return code;
}
