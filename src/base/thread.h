/* thread.h - the library's own threads: all begin alike. */
#ifndef MPIX_BASE_THREAD_H
#define MPIX_BASE_THREAD_H
#include <pthread.h>

/*
 * Starts a thread that takes no signal, for the program's are for its own threads, and that
 * tools and the trace know by name (at most 15 characters). what: for the error, "the progress
 * thread". 0 or NO_MEM.
 */
int mpix_thread_start(pthread_t *thread, const char *name, const char *what, void *(*main)(void *),
                      void *arg);
#endif
