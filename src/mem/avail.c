/*
 * avail.c - how much memory can be had.
 *
 * Linux rarely refuses shared memory: a fallocate that is too large ends with the out-of-memory killer, not with an
 * error. So a commit asks first what the host and the process's control groups have left. This is an estimate, and
 * others allocate at the same time; it turns the usual mistake, a window that can't fit, into an error.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "mem/mem_internal.h"

/* The number after key in a file of lines "key number"; -1 if it is not there. */
static int64_t avail_keyed(const char *path, const char *key) {
    FILE *file = fopen(path, "re");
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
    char path[512];
    long long value = -1;
    FILE *file;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return -1;
    file = fopen(path, "re");
    if (!file)
        return -1;
    if (fscanf(file, "%lld", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

/* What one group has left: its limit less its use, where pages of files that are not in use count as free. -1: no
 * limit. */
static int64_t avail_group(const char *dir, const char *limit_name, const char *use_name, const char *inactive_key) {
    int64_t limit = avail_number(dir, limit_name), use = avail_number(dir, use_name), inactive, left;
    char stat[512];

    if (limit < 0 || use < 0)
        return -1;
    if (snprintf(stat, sizeof stat, "%s/memory.stat", dir) >= (int)sizeof stat)
        return -1;
    inactive = avail_keyed(stat, inactive_key);
    left = limit - use + (inactive > 0 ? inactive : 0);
    return left > 0 ? left : 0;
}

/* The least that the group at root/path and its ancestors have left; -1: no limit. */
static int64_t avail_groups(const char *root, char *path, const char *limit, const char *use, const char *inactive) {
    int64_t least = -1;

    for (;;) {
        char dir[512], *slash;
        int64_t left = -1;

        if (snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") == 0 ? "" : path) < (int)sizeof dir)
            left = avail_group(dir, limit, use, inactive);
        if (left >= 0 && (least < 0 || left < least))
            least = left;
        slash = strrchr(path, '/');
        if (!slash || path[0] == '\0')
            return least;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are "number:controllers:path"; version 2 has no controllers. */
static int64_t avail_cgroup(void) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[512];
    int64_t least = -1;

    if (!file)
        return -1;
    while (fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        int64_t left = -1;

        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (controllers[1] == '\0')
            left = avail_groups("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file ");
        else if (strstr(controllers + 1, "memory"))
            left = avail_groups("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file ");
        if (left >= 0 && (least < 0 || left < least))
            least = left;
    }
    fclose(file);
    return least;
}

uint64_t mpix_mem_available(void) {
    int64_t free_kb = avail_keyed("/proc/meminfo", "MemAvailable:"),
            swap_kb = avail_keyed("/proc/meminfo", "SwapFree:");
    int64_t group = avail_cgroup();
    uint64_t host = free_kb < 0 ? UINT64_MAX : ((uint64_t)free_kb + (uint64_t)(swap_kb > 0 ? swap_kb : 0)) * 1024;

    return group >= 0 && (uint64_t)group < host ? (uint64_t)group : host;
}

void mpix_mem_nofile_hint(char *buf, size_t len) {
    struct rlimit limit = {0, 0};

    getrlimit(RLIMIT_NOFILE, &limit);
    snprintf(buf, len, "the limit of open files (RLIMIT_NOFILE) is %" PRIu64 "; raise it with ulimit -n",
             (uint64_t)limit.rlim_cur);
}
