/* trace.c - the ring of events, and the file. */
#include "config.h"

#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { TRACE_EVENTS = 1 << 16, /* 4.5 MiB */ TRACE_THREADS = 256 };

/* number: of the event, counted from 1, and stored last: one that is being written is not read. */
typedef struct trace_event {
    _Atomic uint64_t number;
    uint64_t ns, id;
    int64_t peer, bytes;
    const char *category, *name;
    int32_t tid;
    char phase;
} trace_event;

_Atomic int mpix_trace_on;
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER; /* of the file */
static char trace_path[1024];
static trace_event *trace_ring;
static _Atomic uint64_t trace_next;
/* under the lock; of more, the latest */
static struct {
    int32_t tid;
    char name[16];
} trace_threads[TRACE_THREADS];
static unsigned trace_nthreads;

void mpix_trace_configure(const char *file) {
    if (!file[0])
        return;
    pthread_mutex_lock(&trace_lock);
    if (!trace_ring) {
        trace_ring = calloc(TRACE_EVENTS, sizeof *trace_ring);
        mpix_log_expand(trace_path, sizeof trace_path, file);
        if (!trace_ring)
            mpix_log(MPIX_LOG_WARN, "no memory for a trace of %d events: nothing is traced",
                     TRACE_EVENTS);
        atomic_store(&mpix_trace_on, trace_ring != NULL);
    }
    pthread_mutex_unlock(&trace_lock);
}

void mpix_trace_fork(void) {
    atomic_store(&mpix_trace_on, 0);
    pthread_mutex_init(&trace_lock, NULL);
}

static int32_t trace_tid(void) {
    static _Thread_local int32_t tid;

    if (tid == 0)
        tid = (int32_t)syscall(SYS_gettid);
    return tid;
}

void mpix_trace_thread(const char *name) {
    if (!atomic_load_explicit(&mpix_trace_on, memory_order_relaxed))
        return;
    pthread_mutex_lock(&trace_lock);
    trace_threads[trace_nthreads % TRACE_THREADS].tid = trace_tid();
    snprintf(trace_threads[trace_nthreads++ % TRACE_THREADS].name, sizeof trace_threads->name, "%s",
             name);
    pthread_mutex_unlock(&trace_lock);
}

void mpix_trace_event(char phase, const char *category, const char *name, uint64_t id, int64_t peer,
                      int64_t bytes) {
    uint64_t number = atomic_fetch_add_explicit(&trace_next, 1, memory_order_relaxed);
    trace_event *event = &trace_ring[number % TRACE_EVENTS];

    atomic_store_explicit(&event->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    event->ns = mpix_clock_ns();
    event->id = id;
    event->peer = peer;
    event->bytes = bytes;
    event->category = category;
    event->name = name;
    event->tid = trace_tid();
    event->phase = phase;
    atomic_store_explicit(&event->number, number + 1, memory_order_release);
}

static void trace_print(FILE *out, const trace_event *event) {
    fprintf(out,
            ",\n{\"ph\":\"%c\",\"cat\":\"%s\",\"name\":\"%s\",\"id\":\"%" PRIx64
            "\",\"pid\":%ld,\"tid\":%d,\"ts\":%" PRIu64 ".%03u",
            event->phase, event->category, event->name, event->id, (long)getpid(), (int)event->tid,
            event->ns / 1000, (unsigned)(event->ns % 1000));
    if (event->peer >= 0 && event->bytes >= 0)
        fprintf(out, ",\"args\":{\"peer\":%" PRId64 ",\"bytes\":%" PRId64 "}", event->peer,
                event->bytes);
    else if (event->peer >= 0)
        fprintf(out, ",\"args\":{\"peer\":%" PRId64 "}", event->peer);
    fputc('}', out);
}

void mpix_trace_write(void) {
    uint64_t end, at;
    char host[64] = "";
    FILE *out;
    int failed;

    if (!atomic_load_explicit(&mpix_trace_on, memory_order_relaxed))
        return;
    gethostname(host, sizeof host - 1);
    pthread_mutex_lock(&trace_lock);
    out = fopen(trace_path, "we");
    if (!out) {
        char buf[96];
        mpix_log(MPIX_LOG_WARN, "trace %s can't be written: %s", trace_path,
                 strerror_r(errno, buf, sizeof buf));
        goto unlock;
    }
    end = atomic_load_explicit(&trace_next, memory_order_acquire);
    at = end > TRACE_EVENTS ? end - TRACE_EVENTS : 0;
    fprintf(out,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"events\":%" PRIu64
            ",\"forgotten\":%" PRIu64 "},\"traceEvents\":[\n",
            end, at);
    fprintf(out,
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%ld,\"args\":{\"name\":\"rank %d on "
            "%s\"}}",
            (long)getpid(), mpix_log_rank(), host);
    for (unsigned i = 0; i < trace_nthreads && i < TRACE_THREADS; i++)
        fprintf(out,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%ld,\"tid\":%d,\"args\":{"
                "\"name\":\"%s\"}}",
                (long)getpid(), (int)trace_threads[i].tid, trace_threads[i].name);
    for (; at < end; at++) {
        const trace_event *event = &trace_ring[at % TRACE_EVENTS];
        if (atomic_load_explicit(&event->number, memory_order_acquire) != at + 1)
            continue; /* being written, or written over */
        trace_event copy = *event;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&event->number, memory_order_relaxed) != at + 1)
            continue; /* written over meanwhile: what was copied is of both */
        trace_print(out, &copy);
    }
    fputs("\n]}\n", out);
    failed = ferror(out);
    failed |= fclose(out) != 0;
    if (failed)
        mpix_log(MPIX_LOG_WARN, "trace %s could not be written in full", trace_path);
unlock:
    pthread_mutex_unlock(&trace_lock);
}
