/*
 * mem_internal.h - what the files of mem/ and the mapped transports share about windows.
 */
#ifndef MPIX_MEM_INTERNAL_H
#define MPIX_MEM_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "mem/window.h"

/* What is left of the limits that hold for this process's memory: the host's, then the lowest of
 * its control groups. */
enum { MPIX_MEM_LIMITS = 4 };
typedef struct mpix_mem_limit {
    uint64_t id; /* the same in every process that it holds for */
    uint64_t left;
} mpix_mem_limit;
typedef struct mpix_mem_room {
    int32_t n, pad;
    mpix_mem_limit limit[MPIX_MEM_LIMITS];
} mpix_mem_room;

/* What a process is about to commit, and where (claim.c). */
typedef struct mpix_win_claim {
    _Atomic uint64_t granted, wanted; /* bytes */
    _Atomic uint64_t limit[MPIX_MEM_LIMITS];
} mpix_win_claim;

/*
 * The first page of every window, which the owner fills before anybody can know of it. A mapping is
 * right if the random number in it is the one that came over MPI: a recycled pid or descriptor,
 * another pid name space or a confused socket can't have it.
 */
typedef struct mpix_win_header {
    char magic[8];
    uint64_t random[2];
    uint64_t bytes;
    int32_t rank, pad;
    _Alignas(64) mpix_win_claim claim;
} mpix_win_header;

#define MPIX_WIN_MAGIC "MPIXWIN" /* with its terminator: 8 bytes */

/* How a rank's window travels over MPI. */
typedef struct mpix_win_blob {
    uint64_t random[2];
    uint64_t bytes;          /* as asked for; 0: there is no memory */
    uint64_t reserved;       /* length of the mapping */
    uint64_t header;         /* bytes before the base */
    uint64_t dev, ino;       /* of the memory */
    uint64_t pid_ns, net_ns; /* the owner's name spaces, 0: unknown */
    int32_t pid, fd;
    int32_t huge, unable;      /* unable: the owner has failed already */
    int32_t passing;           /* the owner's parameter fd_passing */
    int32_t local_fd;          /* not from the owner: the descriptor that arrived here by
                                * socket, -1: none */
    unsigned char owe, expect; /* not from the owner: descriptors are sent to it, and come from
                                * it, by socket */
    int32_t addr_len;          /* 0: no socket */
    char addr[32];             /* of the owner's socket: the start of sun_path, whose
                                * first byte is zero */
} mpix_win_blob;

/* Describes win for its peers. Local. */
void mpix_win_export(const mpix_win *win, const mpix_params *params, mpix_win_blob *blob);
/* Opens the memory of a process on this host through /proc: a descriptor, or -1 with the reason in
 * why. Logs nothing.
 */
int mpix_win_open_proc(const mpix_win_blob *blob, char *why, size_t len);
/* Maps and checks a peer's memory behind blob->local_fd, which stays the caller's. */
int mpix_win_map_fd(mpix_win *win, const mpix_params *params, int peer, const char *host,
                    const mpix_win_blob *blob);
void mpix_win_unmap_peer(mpix_win *win, int peer);
/* Collective: maps the windows of all peers through the transports in win->via. Ends in agreement.
 * blobs: room for all ranks. */
int mpix_win_connect(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                     mpix_win_blob *blobs);

/* A Unix datagram socket with an address that the system chooses, which is written to blob. */
int mpix_fdpass_open(mpix_win_blob *blob, int *sock);
/* Gives this rank's descriptor to the peers on its host, takes theirs and maps them. Bounded by the
 * parameter timeout. 0 or a kind. */
int mpix_fdpass_exchange(mpix_boot *boot, const mpix_params *params, mpix_win *win,
                         mpix_win_blob *blobs, int sock);

extern char mpix_mem_root[200]; /* tests: before the names of the system's files; empty otherwise */
void mpix_mem_room_read(mpix_mem_room *room);
/* The least of them: bytes that can be committed now without the system running out of memory. */
uint64_t mpix_mem_available(void);

/* The windows of this process in which its claims are told. */
void mpix_claim_show(mpix_win *win);
void mpix_claim_hide(mpix_win *win);
/* Claims bytes that are about to be committed, so that the peers that map win do not count on them;
 * win may be NULL. NO_MEM, naming what: they are not there, or others are about to take them. */
int mpix_claim_take(const mpix_win *win, size_t bytes, const char *what);
void mpix_claim_give(size_t bytes); /* they are committed now, or will not be */
/* Appended to errors about descriptors: how many there may be. */
void mpix_mem_nofile_hint(char *buf, size_t len);
/* Whether err of a call on a memory file means that the system does not let this process
 * make it at all. */
int mpix_mem_refused(int err);
/* That error: TRANSPORT, saying which call was refused and who has to allow it. bytes: how many
 * were to be had. */
int mpix_mem_fail_refused(size_t bytes, int err, const char *call);

#endif
