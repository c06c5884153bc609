/*
 * trace.h - what happened when, for people: a file in the format of Chrome's trace viewer
 * (chrome://tracing, Perfetto).
 *
 * Events are kept in a ring in memory; the file is written when an object is freed, whole, with the
 * last TRACE_EVENTS events of the process. A begin and its end share category, name and id, and may
 * overlap with others. Times are CLOCK_MONOTONIC, so that files of one host's ranks can be shown
 * together. While no file is asked for, an event is a load and a branch.
 */
#ifndef MPIX_BASE_TRACE_H
#define MPIX_BASE_TRACE_H
#include <stdatomic.h>
#include <stdint.h>

extern _Atomic int mpix_trace_on;

/* Called when parameters are read; file: "": nothing changes. %p in it becomes the pid, %h the
 * host. Of the process: the first file counts. */
void mpix_trace_configure(const char *file);
void mpix_trace_event(char phase, const char *category, const char *name, uint64_t id, int64_t peer,
                      int64_t bytes);
/* Names the calling thread, once; threads that are named while no file is asked for
 * are not shown. */
void mpix_trace_thread(const char *name);
/* Writes the file, if there is one. */
void mpix_trace_write(void);

/* In a child of fork, whose events are nobody's: traces no more. */
void mpix_trace_fork(void);

/* Strings must live for ever. peer, bytes: -1: none. */
static inline void mpix_trace_begin(const char *category, const char *name, uint64_t id,
                                    int64_t peer, int64_t bytes) {
    if (atomic_load_explicit(&mpix_trace_on, memory_order_relaxed))
        mpix_trace_event('b', category, name, id, peer, bytes);
}
static inline void mpix_trace_end(const char *category, const char *name, uint64_t id) {
    if (atomic_load_explicit(&mpix_trace_on, memory_order_relaxed))
        mpix_trace_event('e', category, name, id, -1, -1);
}
#endif
