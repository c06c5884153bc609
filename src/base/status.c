/*
 * status.c - the calling thread's last error, and the functions that decide on an error.
 */
#include "config.h"

#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/kind.h"
#include "base/log.h"
#include "base/number.h"

#define SAME(kind) _Static_assert((int)MPIX_KIND_##kind == (int)MPIX_ERRK_##kind, #kind)
SAME(ARG);
SAME(TRUNCATE);
SAME(NO_MEM);
SAME(UNSUPPORTED);
SAME(REMOTE);
SAME(PEER);
SAME(TIMEOUT);
SAME(TRANSPORT);
SAME(INTERNAL);

static _Thread_local MPIX_Error status_last = {.struct_size = sizeof(MPIX_Error), .rank = -1};

_Thread_local MPIX_Error *mpix_error_diverted __attribute__((tls_model("initial-exec")));
static _Thread_local int status_trying; /* what fails now is no error */

void mpix_try_begin(mpix_try *t) {
    t->before = *mpix_error_tls();
    t->outer = status_trying;
    status_trying = 1;
}

void mpix_try_end(const mpix_try *t) {
    *mpix_error_tls() = t->before;
    status_trying = t->outer;
}

MPIX_Error *mpix_error_tls(void) {
    return mpix_error_diverted ? mpix_error_diverted : &status_last;
}

const char *mpix_kind_name(int kind) {
    static const char *const names[] = {
        [0] = "SUCCESS",
        [MPIX_ERRK_ARG] = "ARG",
        [MPIX_ERRK_TRUNCATE] = "TRUNCATE",
        [MPIX_ERRK_NO_MEM] = "NO_MEM",
        [MPIX_ERRK_UNSUPPORTED] = "UNSUPPORTED",
        [MPIX_ERRK_REMOTE] = "REMOTE",
        [MPIX_ERRK_PEER] = "PEER",
        [MPIX_ERRK_TIMEOUT] = "TIMEOUT",
        [MPIX_ERRK_TRANSPORT] = "TRANSPORT",
        [MPIX_ERRK_INTERNAL] = "INTERNAL",
    };

    if (kind < 0 || kind >= (int)(sizeof names / sizeof *names))
        return "unknown";
    return names[kind];
}

/* Copies as much of src as fits, always terminated; src may be NULL. */
static void status_copy(char *dst, size_t len, const char *src) {
    size_t n = src ? strnlen(src, len - 1) : 0;

    if (n)
        memmove(dst, src, n);
    memset(dst + n, 0, len - n);
}

/*
 * The text is formatted into a buffer of its own first: an argument may point into the thread's
 * last error (the text of an earlier error that is passed on inside a new one).
 */
static void status_record(int kind, int rank, int sys_errno, const char *host, const char *arg,
                          const char *fmt, va_list ap) MPIX_PRINTF(6, 0);

static void status_record(int kind, int rank, int sys_errno, const char *host, const char *arg,
                          const char *fmt, va_list ap) {
    MPIX_Error *err = mpix_error_tls();
    char text[sizeof err->text];
    size_t used;
    int n, level;

    n = mpix_number_vprint(text, sizeof text, fmt, ap);
    used = n < 0 ? 0 : (size_t)n;
    if (n < 0)
        text[0] = '\0';
    if (sys_errno && used < sizeof text) {
        char buf[96];
        snprintf(text + used, sizeof text - used, ": %s", strerror_r(sys_errno, buf, sizeof buf));
    }
    status_copy(err->host, sizeof err->host, host);
    status_copy(err->arg, sizeof err->arg, arg);
    status_copy(err->text, sizeof err->text, text);
    err->struct_size = sizeof *err;
    err->code = MPI_ERR_OTHER; /* until the public call raises it */
    err->kind = kind;
    err->rank = rank;
    err->sys_errno = sys_errno;

    /* A remote failure was logged by the rank that decided it; it would only repeat itself here on
     * every other rank. */
    level = kind == MPIX_ERRK_REMOTE || status_trying ? MPIX_LOG_INFO : MPIX_LOG_ERROR;
    if (!mpix_log_enabled(level))
        return;
    if (rank >= 0)
        mpix_log(level, "%s: rank %d%s%s%s: %s", mpix_kind_name(kind), rank,
                 err->host[0] ? " (" : "", err->host, err->host[0] ? ")" : "", err->text);
    else if (err->arg[0] && !strstr(err->text, err->arg))
        mpix_log(level, "%s: %s: %s", mpix_kind_name(kind), err->arg, err->text);
    else
        mpix_log(level, "%s: %s", mpix_kind_name(kind), err->text);
}

int mpix_fail(int kind, const char *arg, const char *fmt, ...) {
    int saved = errno;
    va_list ap;

    va_start(ap, fmt);
    status_record(kind, -1, 0, NULL, arg, fmt, ap);
    va_end(ap);
    errno = saved;
    return kind;
}

int mpix_fail_peer(int kind, int rank, const char *host, const char *fmt, ...) {
    int saved = errno;
    va_list ap;

    va_start(ap, fmt);
    status_record(kind, rank, 0, host, NULL, fmt, ap);
    va_end(ap);
    errno = saved;
    return kind;
}

int mpix_fail_sys(int kind, int sys_errno, const char *fmt, ...) {
    int saved = errno;
    va_list ap;

    va_start(ap, fmt);
    status_record(kind, -1, sys_errno, NULL, NULL, fmt, ap);
    va_end(ap);
    errno = saved;
    return kind;
}
