/*
 * log.c - the log: one line, one write call.
 *
 * The level and the file belong to the process, not to an object: a parameter that sets them for
 * one context sets them for all.
 */
#include "config.h"

#include "base/log.h"
#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/param.h"

static _Atomic int log_level = MPIX_LOG_WARN;
static _Atomic int log_rank = -1;
static _Atomic int log_configured;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

/* Guards the descriptor, so that a line is never written to one that was just closed. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = STDERR_FILENO;
static char log_path[1024];

void mpix_log_expand(char *out, size_t len, const char *file) {
    char host[64] = "";
    size_t used = 0;

    gethostname(host, sizeof host - 1);
    out[0] = '\0';
    for (const char *p = file; *p && used + 1 < len; p++) {
        int n;
        if (p[0] == '%' && p[1] == 'p') {
            n = snprintf(out + used, len - used, "%ld", (long)getpid());
            p++;
        } else if (p[0] == '%' && p[1] == 'h') {
            n = snprintf(out + used, len - used, "%s", host);
            p++;
        } else {
            n = snprintf(out + used, len - used, "%c", *p);
        }
        used += (size_t)n;
    }
}

void mpix_log_configure(int level, const char *file) {
    char path[sizeof log_path] = "";
    int failed = 0;

    if (file && *file)
        mpix_log_expand(path, sizeof path, file);

    pthread_mutex_lock(&log_lock);
    if (strcmp(path, log_path) != 0) {
        int fd = STDERR_FILENO;
        if (path[0]) {
            fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
            failed = fd < 0 ? errno : 0;
        }
        if (!failed) {
            if (log_fd != STDERR_FILENO)
                close(log_fd);
            log_fd = fd;
            memcpy(log_path, path, sizeof path);
        }
    }
    pthread_mutex_unlock(&log_lock);

    atomic_store(&log_level, level);
    atomic_store(&log_configured, 1);
    if (failed) {
        char buf[96];
        mpix_log(MPIX_LOG_WARN,
                 "log_file %s can't be opened (%s); the log goes where it went before", path,
                 strerror_r(failed, buf, sizeof buf));
    }
}

void mpix_log_fork(void) { pthread_mutex_init(&log_lock, NULL); }

void mpix_log_set_rank(int rank) { atomic_store(&log_rank, rank); }

int mpix_log_rank(void) { return atomic_load(&log_rank); }

/* An event before the first object was created: the environment's wish counts already. */
static void log_first_use(void) {
    int level;
    char file[sizeof(((mpix_params *)0)->log_file)];

    if (atomic_load(&log_configured))
        return;
    mpix_params_peek_log(&level, file, sizeof file);
    mpix_log_configure(level, file);
}

int mpix_log_enabled(int level) {
    if (!atomic_load_explicit(&log_configured, memory_order_relaxed))
        pthread_once(&log_once, log_first_use);
    return level > MPIX_LOG_NONE && level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void mpix_log(int level, const char *fmt, ...) {
    static const char *const names[] = {"", "error", "warning", "info", "debug", "trace"};
    char line[1024], host[64] = "", rank[16] = "-";
    int saved = errno, n;
    size_t used;
    va_list ap;

    /* Not through mpix_log_enabled where configure itself reports a failure: it has set
     * log_configured by then. */
    if (!mpix_log_enabled(level))
        return;
    gethostname(host, sizeof host - 1);
    if (atomic_load(&log_rank) >= 0)
        snprintf(rank, sizeof rank, "%d", atomic_load(&log_rank));
    n = snprintf(line, sizeof line, "[mpix %s:%ld %s] %s: ", host, (long)getpid(), rank,
                 level <= MPIX_LOG_TRACE ? names[level] : "trace");
    used = n < 0 ? 0 : (size_t)n;

    va_start(ap, fmt);
    n = mpix_number_vprint(line + used, sizeof line - used - 1, fmt, ap);
    va_end(ap);
    if (n > 0)
        used += (size_t)n < sizeof line - used - 1 ? (size_t)n : sizeof line - used - 2;
    line[used++] = '\n';

    pthread_mutex_lock(&log_lock);
    while (write(log_fd, line, used) < 0 && errno == EINTR)
        ;
    pthread_mutex_unlock(&log_lock);
    errno = saved;
}
