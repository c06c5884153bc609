/*
 * window.h - windows: memory of every rank of an object that its peers may map.
 *
 * On one host a window is anonymous shared memory (memfd, sealed against resizing), passed as a
 * file descriptor: no names that clash or stay behind. Address space is reserved at creation; pages
 * are committed with fallocate, so that a lack of memory is an error and not a SIGBUS. A mapping is
 * checked against a random number that travelled over MPI.
 */
#ifndef MPIX_MEM_WINDOW_H
#define MPIX_MEM_WINDOW_H
#include "base/param.h"
#include "boot/boot.h"

#include <stdatomic.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && sizeof(_Atomic uint64_t) == 8,
               "words of 8 bytes in shared memory: a lock would be of one process");

typedef struct mpix_transport_ops mpix_transport_ops;

typedef struct mpix_win {
    void *base;         /* this rank's memory, page aligned, zeroed; NULL if bytes is 0 */
    size_t bytes;       /* this rank's size as asked for */
    int size;           /* ranks */
    void **peer;        /* [size] where the peer's memory is mapped here; own rank: base; NULL: not
                         * mapped or empty */
    size_t *peer_bytes; /* [size] as the peer asked for */
    const mpix_transport_ops **via; /* [size] transport that reaches each peer */
    /* private */
    int rank;      /* own */
    int fd;        /* of this rank's memory, -1: none, or fully committed and shared, so that it
                    * is not needed */
    int huge;      /* explicit huge pages */
    int by_socket; /* descriptors of this host's peers came by socket, otherwise through /proc */
    int prefault;
    void *map;                   /* header page, then base */
    size_t reserved;             /* bytes mapped there, rounded up to pages, header included */
    void **peer_map;             /* [size] */
    size_t *peer_reserved;       /* [size] */
    struct mpix_win *shown_next; /* claim.c */
} mpix_win;

enum {
    MPIX_WIN_COMMIT = 1 /* commit all of it at once, otherwise the owner calls mpix_win_commit */
};

/* Collective and blocking; ends in agreement. A pair that can't be mapped: UNSUPPORTED, naming
 * the peer and the reason (other host, other memory or pid name space, ...). NO_MEM where
 * memory is short. */
int mpix_win_create(mpix_boot *boot, const mpix_params *params, size_t bytes, int flags,
                    mpix_win **win);
/* Commits [off, off + bytes) of this rank's memory. Local. Idempotent and cheap to repeat for a
 * range inside what is committed from offset 0 up is NOT assumed: callers keep their own high-water
 * marks. NO_MEM. */
int mpix_win_commit(mpix_win *win, size_t off, size_t bytes);
/* Unmaps everything here. Local: peers' mappings keep their memory. NULL is fine. */
void mpix_win_free(mpix_win *win);
/* Unmaps everything in a child of fork, and nothing else: what is on the heap stays.
 * NULL is fine. */
void mpix_win_leave(mpix_win *win);
#endif
