/*
 * avail.c - how much memory can be had.
 *
 * Linux rarely refuses shared memory: a fallocate that is too large ends with the out-of-memory
 * killer, not with an error. So a commit asks first what the host and the process's control groups
 * have left. This is an estimate, and other programs allocate at the same time; it turns the usual
 * mistake, a window that can't fit, into an error. What ranks of one machine are about to take
 * together is added up in claim.c; for that each limit has a number, the same in all processes
 * that it holds for.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "mem/mem_internal.h"

#define NO_LIMIT ((int64_t)1 << 60) /* version 1 says "none" by a number near 2^63 */

char mpix_mem_root[200];

/* Where a file of the system is; tests put a tree of their own before it. 0: the
 * name is too long. */
static int avail_path(char *path, size_t len, const char *dir, const char *name) {
    return snprintf(path, len, "%s%s%s", mpix_mem_root, dir, name) < (int)len;
}

static FILE *avail_open(const char *dir, const char *name) {
    char path[768];

    return avail_path(path, sizeof path, dir, name) ? fopen(path, "re") : NULL;
}

/* The number after key in a file of lines "key number"; -1 if it is not there. */
static int64_t avail_keyed(const char *dir, const char *name, const char *key) {
    FILE *file = avail_open(dir, name);
    char line[256];
    int64_t value = -1;
    size_t n = strlen(key);

    if (!file)
        return -1;
    while (value < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0)
            value = (int64_t)strtoll(line + n, NULL, 10);
    fclose(file);
    return value;
}

/* A file that holds one number; -1 if there is none, or it says "max". */
static int64_t avail_number(const char *dir, const char *name) {
    FILE *file = avail_open(dir, name);
    long long value = -1;

    if (!file)
        return -1;
    if (fscanf(file, "%lld", &value) != 1 || value > NO_LIMIT)
        value = -1;
    fclose(file);
    return value;
}

/* What lies between a limit and a use; -1: no limit. */
static int64_t avail_left(const char *dir, const char *limit_name, const char *use_name) {
    int64_t limit = avail_number(dir, limit_name), use = avail_number(dir, use_name);

    if (limit < 0 || use < 0)
        return -1;
    return limit > use ? limit - use : 0;
}

static int64_t avail_min(int64_t a, int64_t b) { return a < b ? a : b; }

/*
 * What one group has left: its limit less its use, and the pages of files that are not in use.
 * Where the group may swap, its other pages can make room as well, as far as there is swap for
 * it. -1: no limit.
 */
static int64_t avail_group_v2(const char *dir, int64_t swap) {
    int64_t left = avail_left(dir, "/memory.max", "/memory.current"),
            out = avail_left(dir, "/memory.swap.max", "/memory.swap.current"),
            inactive = avail_keyed(dir, "/memory.stat", "inactive_file ");

    if (left < 0)
        return -1;
    return left + (inactive > 0 ? inactive : 0) + (out >= 0 ? avail_min(out, swap) : swap);
}

/* Version 1 has a limit of memory and one of memory and swap together. */
static int64_t avail_group_v1(const char *dir, int64_t swap) {
    int64_t left = avail_left(dir, "/memory.limit_in_bytes", "/memory.usage_in_bytes"),
            both = avail_left(dir, "/memory.memsw.limit_in_bytes", "/memory.memsw.usage_in_bytes"),
            inactive = avail_keyed(dir, "/memory.stat", "total_inactive_file ");

    if (left < 0)
        return -1;
    if (avail_number(dir, "/memory.swappiness") != 0)
        left += swap;
    return (both >= 0 ? avail_min(both, left) : left) + (inactive > 0 ? inactive : 0);
}

/* Keeps the lowest limits, where there are many; the host's is the first and stays. */
static void room_add(mpix_mem_room *room, uint64_t id, int64_t left) {
    int at = room->n;

    if (room->n < MPIX_MEM_LIMITS)
        room->n++;
    else
        for (int i = at = 1; i < MPIX_MEM_LIMITS; i++)
            if (room->limit[i].left > room->limit[at].left)
                at = i;
    if (at == room->n - 1 || (uint64_t)left < room->limit[at].left)
        room->limit[at] = (mpix_mem_limit){id, (uint64_t)left};
}

/* A number that processes in other name spaces find too: a group may have other names there, but is
 * the same file. */
static uint64_t avail_group_id(const char *dir) {
    char path[768];
    struct stat st;

    if (!avail_path(path, sizeof path, dir, "") || stat(path, &st) != 0)
        return 0;
    return (uint64_t)st.st_ino * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)st.st_dev;
}

/* The group at root/path and its ancestors. */
static void avail_groups(mpix_mem_room *room, const char *root, char *path, int version,
                         int64_t swap) {
    for (;;) {
        char dir[512], *slash;
        int64_t left = -1;

        if (snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") == 0 ? "" : path) <
            (int)sizeof dir)
            left = version == 1 ? avail_group_v1(dir, swap) : avail_group_v2(dir, swap);
        if (left >= 0)
            room_add(room, avail_group_id(dir), left);
        slash = strrchr(path, '/');
        if (!slash || path[0] == '\0')
            return;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are "number:controllers:path"; version 2 has no controllers. */
static void avail_cgroup(mpix_mem_room *room, int64_t swap) {
    FILE *file = avail_open("", "/proc/self/cgroup");
    char line[512];

    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (controllers[1] == '\0')
            avail_groups(room, "/sys/fs/cgroup", path, 2, swap);
        else if (strstr(controllers + 1, "memory"))
            avail_groups(room, "/sys/fs/cgroup/memory", path, 1, swap);
    }
    fclose(file);
}

/* The number of this boot of this machine, 1 if the system does not say. */
static uint64_t avail_host_id(void) {
    FILE *file = avail_open("", "/proc/sys/kernel/random/boot_id");
    uint64_t id = 1;

    for (int c; file && (c = fgetc(file)) != EOF;)
        id = (id ^ (uint64_t)c) * UINT64_C(0x100000001b3);
    if (file)
        fclose(file);
    return id;
}

void mpix_mem_room_read(mpix_mem_room *room) {
    int64_t free_kb = avail_keyed("", "/proc/meminfo", "MemAvailable:"),
            swap_kb = avail_keyed("", "/proc/meminfo", "SwapFree:"),
            swap = swap_kb > 0 ? swap_kb * 1024 : 0;

    *room = (mpix_mem_room){.n = 1};
    room->limit[0] = (mpix_mem_limit){avail_host_id(),
                                      free_kb < 0 ? INT64_MAX : (uint64_t)(free_kb * 1024 + swap)};
    avail_cgroup(room, swap);
}

uint64_t mpix_mem_available(void) {
    mpix_mem_room room;
    uint64_t least = UINT64_MAX;

    mpix_mem_room_read(&room);
    for (int i = 0; i < room.n; i++)
        if (room.limit[i].left < least)
            least = room.limit[i].left;
    return least;
}

void mpix_mem_nofile_hint(char *buf, size_t len) {
    struct rlimit limit = {0, 0};

    getrlimit(RLIMIT_NOFILE, &limit);
    snprintf(buf, len,
             "the limit of open files (RLIMIT_NOFILE) is %" PRIu64 "; raise it with ulimit -n",
             (uint64_t)limit.rlim_cur);
}

int mpix_mem_refused(int err) {
    return err == ENOSYS || err == EPERM || err == EACCES || err == EOPNOTSUPP;
}

/* Memory is not what is missing, so the error is not NO_MEM: less of it would be refused too. */
int mpix_mem_fail_refused(size_t bytes, int err, const char *call) {
    return mpix_fail_sys(
        MPIX_ERRK_TRANSPORT, err,
        "the system refuses %s (%zu bytes of shared memory): the container's filter of calls "
        "(seccomp) must allow "
        "memfd_create, ftruncate, fcntl, fallocate; Docker: --security-opt seccomp=FILE",
        call, bytes);
}
