/*
 * net_shmem.h - the state of the transport shmem, shared by its two files.
 *
 * Each rank owns a file of shared memory (memfd) with a page for itself and one ring per peer, into
 * which only that peer puts messages: arrivals of counted writes, and words and additions for
 * memory that the peer can't map. Peers open it through /proc, and map it.
 */
#ifndef MPIX_TRANSPORT_NET_SHMEM_H
#define MPIX_TRANSPORT_NET_SHMEM_H
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "mem/calls.h"
#include "transport/net.h"

enum {
    SHMEM_RING = 256,          /* messages on their way from one rank to another */
    SHMEM_DEPTH = 1024,        /* operations that may be posted and not polled, per lane */
    SHMEM_DEATHS_NS = 10000000 /* between two looks at whether the peers' processes live */
};

enum { SHMEM_ARRIVAL = 1, SHMEM_WORD };

typedef struct shmem_message {
    uint32_t what, counter;
    uint64_t addr, value; /* WORD: where in the owner's address space */
} shmem_message;

/* One writer, one reader. Both run free and are compared; the difference is never more
 * than SHMEM_RING. */
typedef struct shmem_ring {
    _Alignas(64) _Atomic uint64_t head; /* the peer's */
    mpix_calls calls;                   /* the peer's, into the owner's memory */
    _Alignas(64) _Atomic uint64_t tail; /* the owner's */
    _Alignas(64) shmem_message message[SHMEM_RING];
} shmem_ring;

/* The first page. token: a random number, by which a peer knows that it has got hold of the
 * right process. */
typedef struct shmem_page {
    uint64_t token[2];
    mpix_revoked revoked; /* the owner takes its memory back: no system calls into it any more */
    _Alignas(64) _Atomic uint32_t sleeping; /* the owner has armed its socket */
} shmem_page;

typedef struct shmem_address {
    uint64_t token[2], token_addr;
    uint64_t dev, ino, reserved, ring_off;
    int32_t pid, fd;
    int32_t sock_len;
    char sock[32]; /* start of sun_path */
    int32_t pad;
} shmem_address;

typedef struct shmem_key {
    uint64_t addr, bytes;
    uint64_t dev, ino, off, reserved;
    int32_t pid, fd; /* fd: -1: ordinary memory */
} shmem_key;

typedef struct shmem_peer {
    int wanted, index; /* index among the wanted ones */
    int connected, dead, dead_told;
    pid_t pid;
    int pidfd; /* -1: none */
    void *map; /* of the peer's file */
    size_t reserved;
    shmem_page *page;
    shmem_ring *out, *in; /* out: in the peer's file; in: in ours */
    int wake;             /* something was put in out during this post */
    struct sockaddr_un sock;
    socklen_t sock_len;
    uint32_t *pending; /* [lanes] */
} shmem_peer;

typedef struct shmem_net {
    mpix_net net;
    int size, rank, nwanted;
    shmem_peer *peers; /* [size] */
    int *wanted;       /* [nwanted] ranks */
    uint32_t *pending; /* all lanes of all peers */
    void *map;         /* our file */
    size_t reserved;
    shmem_page *page;
    int sock;
    struct sockaddr_un sock_addr;
    socklen_t sock_len;
    uint64_t deaths_ns;
    struct pollfd *fds;       /* [nwanted] scratch */
    int dirty, next_ring;     /* dirty: operations posted and not polled */
    int next_peer, next_lane; /* where polling goes on; next_peer counts wanted ones */
    int stored;               /* words of peers were stored since it was told */
    mpix_net_mem *mems;       /* list */
    const mpix_boot *boot;    /* lives longer */
    char (*hostnames)[64];    /* its */
} shmem_net;

struct mpix_net_mem {
    mpix_net_mem *next;
    char *base;
    uint64_t bytes;
};

struct mpix_net_rmem {
    char *map;    /* NULL: by system call */
    void *mapped; /* what to unmap */
    size_t reserved;
    uint64_t addr, bytes;
    pid_t pid;
};

int shmem_post(mpix_net *net, const mpix_net_op *ops, int n);
int shmem_poll(mpix_net *net, mpix_net_done *done, int max);
int shmem_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max);
int shmem_arm(mpix_net *net, int *fd);
void shmem_ack(mpix_net *net);
#endif
