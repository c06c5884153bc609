/* inject.c - the wrapped functions. See inject.h. */
#include "inject.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

static _Atomic int armed, stays;
static _Atomic long left, failures;
static const char *_Atomic first;

void inject_arm(int what, long n, int sticky) {
    first = NULL;
    failures = 0;
    stays = sticky;
    left = n;
    armed = n > 0 ? what : 0;
}

long inject_disarm(void) {
    armed = 0;
    return failures;
}

const char *inject_failed(void) { return first ? first : ""; }

static int fails(int what, const char *name, int err) {
    const char *none = NULL;
    if (!(armed & what))
        return 0;
    long now = --left;
    if (now > 0 || (now < 0 && !stays))
        return 0;
    failures++;
    atomic_compare_exchange_strong(&first, &none, name);
    errno = err;
    return 1;
}

/* ---- memory ---------------------------------------------------------------------------------- */
/* What is allocated stands in a table, for libc's own blocks (open_memstream, getline) are freed by
 * free() as well. */

enum { PLACES = 1 << 20 };
static void *table[PLACES];
static long blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t home(const void *p) {
    return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 44) % PLACES;
}

static void *note(void *p) {
    pthread_mutex_lock(&lock);
    if (p && blocks < PLACES / 2) {
        size_t i = home(p);
        while (table[i])
            i = (i + 1) % PLACES;
        table[i] = p;
        blocks++;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static void forget(const void *p) {
    pthread_mutex_lock(&lock);
    size_t i = home(p);
    while (table[i] && table[i] != p)
        i = (i + 1) % PLACES;
    if (p && table[i]) {
        blocks--;
        table[i] = NULL;
        for (size_t j = (i + 1) % PLACES; table[j]; j = (j + 1) % PLACES) { /* closes the gap */
            size_t h = home(table[j]);
            if ((j - h) % PLACES >= (j - i) % PLACES) {
                table[i] = table[j];
                table[j] = NULL;
                i = j;
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

long inject_blocks(void) {
    pthread_mutex_lock(&lock);
    long n = blocks;
    pthread_mutex_unlock(&lock);
    return n;
}

#define WRAPS(type, name, args) \
    type __real_##name args; \
    type __wrap_##name args; \
    type __wrap_##name args

WRAPS(void *, malloc, (size_t n)) {
    return fails(INJECT_MEMORY, "malloc", ENOMEM) ? NULL : note(__real_malloc(n));
}

WRAPS(void *, calloc, (size_t n, size_t size)) {
    return fails(INJECT_MEMORY, "calloc", ENOMEM) ? NULL : note(__real_calloc(n, size));
}

WRAPS(void *, aligned_alloc, (size_t align, size_t n)) {
    return fails(INJECT_MEMORY, "aligned_alloc", ENOMEM) ? NULL
                                                         : note(__real_aligned_alloc(align, n));
}

WRAPS(int, posix_memalign, (void **p, size_t align, size_t n)) {
    if (fails(INJECT_MEMORY, "posix_memalign", ENOMEM))
        return ENOMEM;
    int err = __real_posix_memalign(p, align, n);
    if (!err)
        note(*p);
    return err;
}

WRAPS(void *, realloc, (void *old, size_t n)) {
    if (fails(INJECT_MEMORY, "realloc", ENOMEM))
        return NULL;
    forget(old);
    return note(__real_realloc(old, n));
}

WRAPS(char *, strdup, (const char *s)) {
    return fails(INJECT_MEMORY, "strdup", ENOMEM) ? NULL : note(__real_strdup(s));
}

WRAPS(FILE *, open_memstream, (char **text, size_t *n)) {
    return fails(INJECT_MEMORY, "open_memstream", ENOMEM) ? NULL : __real_open_memstream(text, n);
}

WRAPS(void, free, (void *p)) {
    forget(p);
    __real_free(p);
}

/* ---- the system ------------------------------------------------------------------------------ */

WRAPS(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t off)) {
    return fails(INJECT_SYSTEM, "mmap", ENOMEM) ? MAP_FAILED
                                                : __real_mmap(at, n, prot, flags, fd, off);
}

WRAPS(int, memfd_create, (const char *name, unsigned flags)) {
    return fails(INJECT_SYSTEM, "memfd_create", EMFILE) ||
                   fails(INJECT_REFUSED, "memfd_create", EPERM)
               ? -1
               : __real_memfd_create(name, flags);
}

WRAPS(int, ftruncate, (int fd, off_t n)) {
    return fails(INJECT_SYSTEM, "ftruncate", EFBIG) || fails(INJECT_REFUSED, "ftruncate", EPERM)
               ? -1
               : __real_ftruncate(fd, n);
}

WRAPS(int, fallocate, (int fd, int mode, off_t off, off_t n)) {
    return fails(INJECT_SYSTEM, "fallocate", ENOSPC) || fails(INJECT_REFUSED, "fallocate", EPERM)
               ? -1
               : __real_fallocate(fd, mode, off, n);
}

WRAPS(int, socket, (int domain, int type, int protocol)) {
    return fails(INJECT_SYSTEM, "socket", EMFILE) ? -1 : __real_socket(domain, type, protocol);
}

WRAPS(int, eventfd, (unsigned n, int flags)) {
    return fails(INJECT_SYSTEM, "eventfd", EMFILE) ? -1 : __real_eventfd(n, flags);
}

WRAPS(FILE *, fopen, (const char *path, const char *mode)) {
    return fails(INJECT_SYSTEM, "fopen", EMFILE) ? NULL : __real_fopen(path, mode);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    return fails(INJECT_SYSTEM, "open", EMFILE) ? -1 : __real_open(path, flags, mode);
}

WRAPS(void *, dlopen, (const char *path, int flags)) {
    return fails(INJECT_SYSTEM, "dlopen", ENOMEM) ? NULL : __real_dlopen(path, flags);
}

WRAPS(int, pthread_create,
      (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)) {
    return fails(INJECT_SYSTEM, "pthread_create", EAGAIN)
               ? EAGAIN
               : __real_pthread_create(thread, attr, start, arg);
}
