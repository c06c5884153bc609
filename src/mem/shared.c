/* shared.c - the list of memory that is a file, and a local allocation of it. The list is short: a
 * few windows per object. */
#include "config.h"

#include "mem/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/mem_internal.h"

enum { SHARED_CHECKED = 1 << 20 }; /* less is not asked for */

typedef struct shared_node {
    struct shared_node *next;
    char *map;
    size_t reserved;
    int fd, own; /* own: by mpix_mem_shared_alloc */
} shared_node;

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static shared_node *shared_list;

static int shared_add(void *map, size_t reserved, int fd, int own) {
    shared_node *node = malloc(sizeof *node);

    if (!node)
        return -1;
    *node = (shared_node){.map = map, .reserved = reserved, .fd = fd, .own = own};
    pthread_mutex_lock(&shared_lock);
    node->next = shared_list;
    shared_list = node;
    pthread_mutex_unlock(&shared_lock);
    return 0;
}

/* Takes the node of this mapping out, NULL if there is none. */
static shared_node *shared_take(const void *map) {
    shared_node **at, *node;

    pthread_mutex_lock(&shared_lock);
    for (at = &shared_list; *at && (*at)->map != map; at = &(*at)->next)
        ;
    node = *at;
    if (node)
        *at = node->next;
    pthread_mutex_unlock(&shared_lock);
    return node;
}

void mpix_mem_file_add(void *map, size_t reserved, int fd) {
    if (shared_add(map, reserved, fd, 0) != 0)
        mpix_log(MPIX_LOG_INFO, "no memory to note a window of %zu bytes", reserved);
}

void mpix_mem_file_remove(const void *map) { free(shared_take(map)); }

int mpix_mem_file_find(const void *base, size_t bytes, mpix_mem_file *file) {
    const char *p = base;
    int found = 0;

    pthread_mutex_lock(&shared_lock);
    for (const shared_node *n = shared_list; n && !found; n = n->next)
        if (p >= n->map && bytes <= n->reserved && (size_t)(p - n->map) <= n->reserved - bytes) {
            *file = (mpix_mem_file){n->fd, (uint64_t)(p - n->map), n->reserved};
            found = 1;
        }
    pthread_mutex_unlock(&shared_lock);
    return found;
}

static int shared_failed(int fd, size_t bytes, int err, const char *what) {
    char hint[128] = "";

    if (err == EMFILE || err == ENFILE)
        mpix_mem_nofile_hint(hint, sizeof hint);
    if (fd >= 0)
        close(fd);
    if (mpix_mem_refused(err))
        return mpix_mem_fail_refused(bytes, err, what);
    return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "%zu bytes of shared memory can't be had (%s)%s%s",
                         bytes, what, hint[0] ? ", " : "", hint);
}

static int shared_make(size_t bytes, size_t reserved, void **base) {
    int fd = memfd_create("mpix-ep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *map;

    if (fd < 0)
        return shared_failed(fd, bytes, errno, "memfd_create");
    if (ftruncate(fd, (off_t)reserved) != 0)
        return shared_failed(fd, bytes, errno, "ftruncate");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return shared_failed(fd, bytes, errno, "F_ADD_SEALS");
    while (fallocate(fd, 0, 0, (off_t)reserved) != 0)
        if (errno != EINTR)
            return shared_failed(fd, bytes, errno, "fallocate");
    map = mmap(NULL, reserved, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return shared_failed(fd, bytes, errno, "mmap");
    if (shared_add(map, reserved, fd, 1) != 0) {
        munmap(map, reserved);
        return shared_failed(fd, bytes, ENOMEM, "malloc");
    }
    *base = map;
    return 0;
}

int mpix_mem_shared_alloc(size_t bytes, void **base) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), reserved = (bytes + page - 1) / page * page;
    int claims = bytes >= SHARED_CHECKED,
        kind = claims ? mpix_claim_take(NULL, reserved, "shared memory") : 0;

    if (kind)
        return kind;
    kind = shared_make(bytes, reserved, base);
    if (claims)
        mpix_claim_give(reserved);
    return kind;
}

void mpix_mem_shared_free(void *base) {
    shared_node *node = base ? shared_take(base) : NULL;

    if (!node)
        return;
    munmap(node->map, node->reserved);
    close(node->fd);
    free(node);
}
