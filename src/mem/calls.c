/* calls.c - see calls.h. */
#include "config.h"

#include "mem/calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "boot/boot.h"

enum { CALLS_COUNT_BITS = 16, CALLS_PAUSE_NS = 1000000 };

static _Thread_local uint64_t calls_thread __attribute__((tls_model("initial-exec")));

static uint64_t calls_self(void) {
    if (!calls_thread)
        calls_thread = (uint64_t)syscall(SYS_gettid);
    return calls_thread << CALLS_COUNT_BITS | 1;
}

int mpix_calls_enter(mpix_calls *calls, const mpix_revoked *revoked) {
    atomic_fetch_add_explicit(calls, calls_self(), memory_order_seq_cst);
    if (!atomic_load_explicit(revoked, memory_order_seq_cst))
        return 1;
    mpix_calls_leave(calls);
    return 0;
}

void mpix_calls_leave(mpix_calls *calls) {
    atomic_fetch_sub_explicit(calls, calls_self(), memory_order_release);
}

/* The beginning of a file of /proc; 0: there is none. */
static int calls_read(pid_t pid, const char *thread, const char *name, char *text, size_t room) {
    char path[80];
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/%s", (long)pid, thread, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, room - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Stopped, and on its way out of the call. The state is looked at first: a thread that wakes after
 * it makes no other such call for us. */
static int calls_on_way_out(pid_t pid, const char *thread) {
    char text[512], *name;

    if (!calls_read(pid, thread, "stat", text, sizeof text) || !(name = strrchr(text, ')')) ||
        strncmp(name, ") T", 3) != 0)
        return 0;
    return calls_read(pid, thread, "syscall", text, sizeof text) &&
           strtol(text, NULL, 10) == SYS_process_vm_writev;
}

/* Whether the threads that are inside are all on their way out. */
static int calls_over(uint64_t inside, pid_t pid) {
    char path[40];
    const struct dirent *entry;
    uint64_t seen = 0;
    DIR *threads;

    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    threads = opendir(path);
    if (!threads)
        return 0;
    while ((entry = readdir(threads)))
        if (entry->d_name[0] != '.' && calls_on_way_out(pid, entry->d_name))
            seen += (uint64_t)strtoull(entry->d_name, NULL, 10) << CALLS_COUNT_BITS | 1;
    closedir(threads);
    return seen == inside;
}

int mpix_calls_quiet(const mpix_calls *calls, pid_t pid, int pidfd) {
    uint64_t start = mpix_clock_ns(), inside;

    while ((inside = atomic_load_explicit(calls, memory_order_seq_cst))) {
        const struct timespec pause = {0, CALLS_PAUSE_NS};
        if (mpix_boot_ended(pidfd) || (kill(pid, 0) != 0 && errno == ESRCH) ||
            calls_over(inside, pid))
            return 1;
        if (mpix_clock_ns() - start > MPIX_CALLS_LIMIT_S * UINT64_C(1000000000))
            return 0;
        (void)nanosleep(&pause, NULL);
    }
    return 1;
}
