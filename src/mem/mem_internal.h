/*
 * mem_internal.h - what the files of mem/ and the mapped transports share about windows.
 */
#ifndef MPIX_MEM_INTERNAL_H
#define MPIX_MEM_INTERNAL_H

#include <stdint.h>

#include "mem/window.h"

/*
 * The first page of every window, which the owner fills before anybody can know of it. A mapping is right if the random
 * number in it is the one that came over MPI: a recycled pid or descriptor, another pid name space or a confused socket
 * can't have it.
 */
typedef struct mpix_win_header {
    char magic[8];
    uint64_t random[2];
    uint64_t bytes;
    int32_t rank, pad;
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
    int32_t huge, unable; /* unable: the owner has failed already */
    int32_t passing;      /* the owner's parameter fd_passing */
    int32_t local_fd;     /* not from the owner: the descriptor that arrived here by socket, -1: none */
    int32_t addr_len;     /* 0: no socket */
    char addr[32];        /* of the owner's socket: the start of sun_path, whose first byte is zero */
} mpix_win_blob;

/* Describes win for its peers. Local. */
void mpix_win_export(const mpix_win *win, const mpix_params *params, mpix_win_blob *blob);
/* Opens the memory of a process on this host through /proc: a descriptor, or -1 with the reason in why. Logs nothing.
 */
int mpix_win_open_proc(const mpix_win_blob *blob, char *why, size_t len);
/* Maps and checks a peer's memory behind blob->local_fd, which stays the caller's. */
int mpix_win_map_fd(mpix_win *win, const mpix_params *params, int peer, const char *host, const mpix_win_blob *blob);
void mpix_win_unmap_peer(mpix_win *win, int peer);
/* Collective: maps the windows of all peers through the transports in win->via. Ends in agreement. blobs: room for all
 * ranks. */
int mpix_win_connect(mpix_boot *boot, const mpix_params *params, mpix_win *win, mpix_win_blob *blobs);

/* A Unix datagram socket with an address that the system chooses, which is written to blob. */
int mpix_fdpass_open(mpix_win_blob *blob, int *sock);
/* Gives this rank's descriptor to the peers on its host, takes theirs and maps them. Bounded by the parameter timeout.
 * 0 or a kind. */
int mpix_fdpass_exchange(mpix_boot *boot, const mpix_params *params, mpix_win *win, mpix_win_blob *blobs, int sock);

/* Bytes that can be committed now without the system running out of memory, the control groups of this process
 * included. */
uint64_t mpix_mem_available(void);
/* Appended to errors about descriptors: how many there may be. */
void mpix_mem_nofile_hint(char *buf, size_t len);

#endif
