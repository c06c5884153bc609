/*
 * guard.c - checked copies.
 *
 * The kernel moves the bytes between the memory and a file in memory (memfd), and returns EFAULT
 * where the processor would raise SIGSEGV or
 * SIGBUS: nothing between a look at the memory and the copy can go wrong. process_vm_writev on the
 * own process would do the same, but costs two to three times as much, and is forbidden just where
 * this is needed most: in containers where ranks can't reach each other by it.
 */
#include "config.h"

#include "mem/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_BYTES = 65536 };

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

struct mpix_guard {
    int fd;
    char *map;
};

mpix_guard *mpix_guard_new(void) {
    mpix_guard *guard = malloc(sizeof *guard);
    int err = ENOMEM;

    if (!guard)
        return NULL;
    guard->map = MAP_FAILED;
    guard->fd = memfd_create("mpix-ep-guard", MFD_CLOEXEC);
    if (guard->fd >= 0 && ftruncate(guard->fd, GUARD_BYTES) == 0)
        guard->map = mmap(NULL, GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, guard->fd, 0);
    if (guard->map != MAP_FAILED)
        return guard;
    err = errno;
    if (guard->fd >= 0)
        close(guard->fd);
    free(guard);
    errno = err;
    return NULL;
}

void mpix_guard_free(mpix_guard *guard) {
    if (!guard)
        return;
    munmap(guard->map, GUARD_BYTES);
    close(guard->fd);
    free(guard);
}

int mpix_guard_write_file(int fd, size_t off, void *to, size_t n) {
    char *at = to;

    while (n > 0) {
        ssize_t moved = pread(fd, at, n, (off_t)off);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return EFAULT;
        at += moved;
        off += (size_t)moved;
        n -= (size_t)moved;
    }
    return 0;
}

int mpix_guard_write(mpix_guard *guard, void *to, const void *from, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t part = n - at < GUARD_BYTES ? n - at : GUARD_BYTES;
        memcpy(guard->map, (const char *)from + at, part);
        if (mpix_guard_write_file(guard->fd, 0, (char *)to + at, part))
            return EFAULT;
        at += part;
    }
    return 0;
}

int mpix_guard_read(mpix_guard *guard, void *to, const void *from, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t part = n - at < GUARD_BYTES ? n - at : GUARD_BYTES;
        ssize_t moved = pwrite(guard->fd, (const char *)from + at, part, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return EFAULT;
        memcpy((char *)to + at, guard->map, (size_t)moved);
        at += (size_t)moved;
    }
    return 0;
}

/* The page is made ready for a store, which none is made; a kernel that does not know the advice
 * refuses it for any page. */
int mpix_guard_writable(const void *word) {
    static char known;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)word / page * page,
              mine = (uintptr_t)&known / page * page;

    if (madvise((void *)at, page, MADV_POPULATE_WRITE) == 0 ||
        madvise((void *)mine, page, MADV_POPULATE_WRITE) != 0)
        return 0;
    return EFAULT;
}

/* ---- rights ---------------------------------------------------------------------------------- */

/* One line of /proc/self/maps, "from-to rwxp ...". *at: how far the range is mapped with
 * *rights. 1: the rest of it may follow. */
static int rights_line(const char *line, uint64_t *at, uint64_t end, int *rights) {
    char *rest;
    uint64_t from = strtoull(line, &rest, 16),
             to = *rest == '-' ? strtoull(rest + 1, &rest, 16) : 0;

    if (to <= *at)
        return 1;
    if (from > *at || rest[0] != ' ')
        return 0;
    *rights &= (rest[1] == 'r' ? MPIX_MEM_READ : 0) | (rest[2] == 'w' ? MPIX_MEM_WRITE : 0);
    *at = to;
    return to < end;
}

int mpix_mem_rights(const void *base, size_t bytes) {
    uint64_t at = (uint64_t)(uintptr_t)base, end = at + bytes;
    int rights = MPIX_MEM_ALL, more = bytes > 0,
        fd = more ? open("/proc/self/maps", O_RDONLY | O_CLOEXEC) : -1;
    char text[8192];
    size_t have = 0;
    ssize_t got;

    if (fd < 0)
        return rights;
    while (more && (got = read(fd, text + have, sizeof text - 1 - have)) > 0) {
        char *line = text, *stop;
        have += (size_t)got;
        text[have] = '\0';
        for (; more && (stop = strchr(line, '\n')); line = stop + 1)
            more = rights_line(line, &at, end, &rights);
        have = (size_t)(text + have - line);
        memmove(text, line, have);
        if (have == sizeof text - 1)
            have = 0; /* a name that long; what follows is read as a line, and has no range */
    }
    close(fd);
    return at >= end ? rights : 0;
}
