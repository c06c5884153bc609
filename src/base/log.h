/* log.h - one line per event on standard error or the file of the parameter log_file. */
#ifndef MPIX_BASE_LOG_H
#define MPIX_BASE_LOG_H
#include "base/status.h"

#include <stddef.h>

enum {
    MPIX_LOG_NONE,
    MPIX_LOG_ERROR,
    MPIX_LOG_WARN,
    MPIX_LOG_INFO,
    MPIX_LOG_DEBUG,
    MPIX_LOG_TRACE
};

/* Writes "[mpix host:pid rank] level: text\n" with one write call if level is enabled. Thread
 * safe, keeps errno. */
void mpix_log(int level, const char *fmt, ...) MPIX_PRINTF(2, 3);
int mpix_log_enabled(int level);
/* Level and file; called when parameters are read. file NULL or "": standard error. %p in it
 * becomes the pid, %h the host. */
void mpix_log_configure(int level, const char *file);
/* In a child of fork: another thread may have been writing. */
void mpix_log_fork(void);
void mpix_log_set_rank(int rank); /* of MPI_COMM_WORLD; -1: unknown */
int mpix_log_rank(void);
/* A file's name with %p and %h replaced. */
void mpix_log_expand(char *out, size_t len, const char *file);
#endif
