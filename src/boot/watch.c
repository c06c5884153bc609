/*
 * watch.c - descriptors by which the end of a peer's process is noticed: one per process and peer,
 * however many objects watch it.
 *
 * A process is known by its number and the time of its start, for numbers are used again.
 */
#include "config.h"

#include "boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct watch_entry {
    uint64_t start;
    pid_t pid;
    int fd, users; /* users 0: the place is free */
} watch_entry;

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static watch_entry *watch_table;
static int watch_places, watch_live;

/* /proc may be that of another name space of processes, where the number is somebody else's: then
 * nothing is known. */
uint64_t mpix_boot_process_start(pid_t pid) {
    char path[64], text[1024], self[32];
    unsigned long long start = 0;
    int fd;
    ssize_t n = readlink("/proc/self", self, sizeof self - 1);

    self[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof path, "%d", (int)getpid());
    if (strcmp(self, path) != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    /* The name is in parentheses and may hold any character. Behind it come the state and 18
     * numbers, then the start. */
    const char *at = strrchr(text, ')');
    for (int field = 0; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, "%llu", &start) == 1 ? start : 0;
}

#ifdef SYS_pidfd_open
/* The place of that process, or a free one: -1 where there is no memory for more.
 * Under the lock. */
static int watch_find(pid_t pid, uint64_t start) {
    int unused = -1;

    for (int i = 0; i < watch_places; i++) {
        if (watch_table[i].users && watch_table[i].pid == pid && watch_table[i].start == start)
            return i;
        if (!watch_table[i].users && unused < 0)
            unused = i;
    }
    if (unused >= 0)
        return unused;
    int places = watch_places ? 2 * watch_places : 16;
    watch_entry *table = realloc(watch_table, (size_t)places * sizeof *table);
    if (!table)
        return -1;
    memset(table + watch_places, 0, (size_t)(places - watch_places) * sizeof *table);
    unused = watch_places;
    watch_table = table;
    watch_places = places;
    return unused;
}

/* A new descriptor, close-on-exec by itself. That of a process that has got the number meanwhile
 * is not wanted. */
static int watch_open(pid_t pid, uint64_t start) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t now = fd >= 0 && start ? mpix_boot_process_start(pid) : 0;

    if (now && now != start) {
        close(fd);
        errno = ESRCH;
        return -1;
    }
    return fd;
}

static int watch_process(pid_t pid, uint64_t start) {
    int fd = -1, at;

    pthread_mutex_lock(&watch_lock);
    at = watch_find(pid, start);
    if (at < 0) {
        errno = ENOMEM;
    } else if (watch_table[at].users) {
        watch_table[at].users++;
        fd = watch_table[at].fd;
    } else {
        fd = watch_open(pid, start);
        if (fd >= 0) {
            watch_table[at] = (watch_entry){start, pid, fd, 1};
            watch_live++;
        }
    }
    pthread_mutex_unlock(&watch_lock);
    return fd;
}
#endif

int mpix_boot_watch_process(const mpix_boot *boot, int rank) {
#ifdef SYS_pidfd_open
    if (rank != boot->rank && boot->same_pids[rank])
        return watch_process(boot->pids[rank], boot->starts[rank]);
#else
    (void)boot, (void)rank;
#endif
    return -1;
}

int mpix_boot_watch(const mpix_boot *boot, int rank) {
    return mpix_boot_knows_pid(boot, rank) ? mpix_boot_watch_process(boot, rank) : -1;
}

void mpix_boot_unwatch(int pidfd) {
    if (pidfd < 0)
        return;
    pthread_mutex_lock(&watch_lock);
    for (int i = 0; i < watch_places; i++) {
        if (watch_table[i].users && watch_table[i].fd == pidfd && --watch_table[i].users == 0) {
            close(pidfd);
            watch_live--;
            break;
        }
    }
    if (watch_live == 0) { /* nothing is left behind when all objects are freed */
        free(watch_table);
        watch_table = NULL;
        watch_places = 0;
    }
    pthread_mutex_unlock(&watch_lock);
}

int mpix_boot_ended(int pidfd) {
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    return pidfd >= 0 && poll(&p, 1, 0) == 1;
}
