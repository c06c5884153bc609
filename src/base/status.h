/*
 * status.h - how a function of the library fails, and the visibility of public symbols.
 *
 * Functions inside return 0 or an error kind (MPIX_ERRK_*). The function that decides on an error
 * calls one of the mpix_fail functions, which fill the calling thread's MPIX_Error, write one log
 * line and return the kind; everybody else passes the kind on. The public call turns the kind into
 * an MPI code with mpix_boot_raise.
 */
#ifndef MPIX_BASE_STATUS_H
#define MPIX_BASE_STATUS_H

/* The library is compiled with hidden visibility; a declaration's visibility holds for its
 * definition, so what the public headers declare is exported. */
#pragma GCC visibility push(default)
#include "mpix_ep.h"
#include "mpix_device.h"
#include "mpix_p2p.h"
#include "mpix_xfer.h"
#pragma GCC visibility pop

/* Strong PMPIX_name (exported), weak alias MPIX_name. Put after the definition of PMPIX_name. */
#define MPIX_EXPORT __attribute__((visibility("default")))
#define MPIX_WEAK_ALIAS(name) \
    extern __typeof__(PMPIX_##name) MPIX_##name \
        __attribute__((weak, alias("PMPIX_" #name), visibility("default")))

#define MPIX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* What fails is rare: the compiler keeps it out of the way of what does not. */
#define MPIX_COLD __attribute__((cold))

/* All return kind. rank and host of the error: -1 and "". arg: the public name of the
 * argument, NULL: none. */
int mpix_fail(int kind, const char *arg, const char *fmt, ...) MPIX_PRINTF(3, 4) MPIX_COLD;
/* The same with a peer to blame; host may be NULL. */
int mpix_fail_peer(int kind, int rank, const char *host, const char *fmt, ...)
    MPIX_PRINTF(4, 5) MPIX_COLD;
/* The same with the errno of a system call; its text is appended. */
int mpix_fail_sys(int kind, int sys_errno, const char *fmt, ...) MPIX_PRINTF(3, 4) MPIX_COLD;

/* Around a try that may fail without harm: failures of this thread are told in the log as
 * information, and its last error stays as it was. */
typedef struct mpix_try {
    MPIX_Error before;
    int outer;
} mpix_try;
void mpix_try_begin(mpix_try *t);
void mpix_try_end(const mpix_try *t);

/* The calling thread's last error: to save it (a latched error of a transfer) and to restore
 * it. Never NULL. */
MPIX_Error *mpix_error_tls(void);

/*
 * Progress may meet failures that are not the caller's: of other calls and other objects, which
 * keep them for those who ask. While that goes on the thread's last error is another record; the
 * caller's own stays as it was. Returns what was in force, to be put back; NULL: the thread's own.
 */
extern _Thread_local MPIX_Error *mpix_error_diverted __attribute__((tls_model("initial-exec")));
static inline MPIX_Error *mpix_error_divert(MPIX_Error *to) {
    MPIX_Error *was = mpix_error_diverted;
    mpix_error_diverted = to;
    return was;
}

const char *mpix_kind_name(int kind); /* "ARG", ... */

#endif
