/*
 * net.h - proxied transports: what a network device does for peers whose memory cannot be mapped.
 * One const table each (verbs, shmem, chaos over another, null for benchmarks). Only the proxy
 * (src/proxy/) calls them, one thread at a time per net.
 *
 * Memory is named by windows on both sides: local registered memory (mpix_net_mem) and a peer's
 * (mpix_net_rmem, made of a key that travelled over MPI). Operations to one peer on one lane
 * complete in the order of posting as far as the poster can see (completions are counted, oldest
 * first); what the *target* sees in which order is the capability `ordered`.
 */
#ifndef MPIX_TRANSPORT_NET_H
#define MPIX_TRANSPORT_NET_H
#include "base/param.h"
#include "boot/boot.h"

typedef struct mpix_net mpix_net;           /* an open transport of one object; the transport's own
                                             * struct begins with it */
typedef struct mpix_net_mem mpix_net_mem;   /* registered local memory */
typedef struct mpix_net_rmem mpix_net_rmem; /* a peer's registered memory */

/* As an arrival's counter: words were stored for this rank, by a net whose words go through the
 * target's turn, or some of them. */
#define MPIX_NET_STORED UINT32_MAX

enum { MPIX_NET_WRITE, MPIX_NET_WORD, MPIX_NET_READ, MPIX_NET_ADD };

/* Packed, because every place in the proxy's queues and rings holds one. */
typedef struct mpix_net_op {
    uint8_t op, lane; /* op: MPIX_NET_* */
    uint16_t peer;
    int32_t counter;         /* >= 0: a counted write: the target's poll reports (this rank,
                              * counter); < 0: none */
    const mpix_net_mem *mem; /* WRITE: source, READ: destination, ADD: where the old value
                              * goes; WORD: NULL */
    void *local;             /* address inside mem */
    const mpix_net_rmem *rmem;
    uint64_t roff;  /* offset in rmem; WORD and ADD: multiple of 8 */
    uint64_t len;   /* bytes, at most caps.max_op; 0 is allowed for WRITE (moves
                     * nothing, completes) */
    uint64_t value; /* WORD: written as one 8-byte store; ADD: added atomically */
} mpix_net_op;

typedef struct mpix_net_done {
    int peer, lane, n; /* the n oldest incomplete operations of that lane are complete */
    int kind;          /* 0, or the error kind: the lane is broken, the rest of its operations
                        * will not complete */
    char text[128];    /* with kind: the device's words (completion status, vendor code) */
} mpix_net_done;

typedef struct mpix_net_arrival {
    int peer;
    uint32_t counter;
} mpix_net_arrival;

typedef struct mpix_net_caps {
    int ordered;          /* a WORD is seen by the target after the WRITEs posted before it on
                           * the same lane */
    int counted;          /* counted writes are possible */
    int add_coherent;     /* ADD is atomic also with the additions of the target's processors */
    int posted_lands;     /* what was posted arrives without another call of the poster, unless the
                           * connection fails */
    int target_works;     /* the target's turns take part in operations: its proxy must
                           * run all the time */
    int lanes;            /* per peer, >= 1 */
    int depth;            /* operations that may be incomplete per lane */
    uint32_t max_counter; /* counters are below this */
    uint64_t max_op;      /* bytes of one operation */
    uint64_t read_op, read_bytes; /* READs: better no longer than this, and no more bytes under way
                                   * per lane; 0: no such limits */
    char device[64];              /* "rxe0:1", for people */
    char address[64];             /* "gid[1] 10.9.0.1", for people */
    int mtu;
    char why[128]; /* why ordered or not, and why this device */
} mpix_net_caps;

/* How memory of a GPU can be registered. */
typedef struct mpix_net_gpu {
    int fd;          /* its dma-buf, -1: the GPU's driver exports none; stays the caller's */
    uint64_t off;    /* where the memory begins in it */
    int peermem;     /* the kernel has a module that translates the GPU's addresses
                      * (nvidia_peermem) */
    const char *how; /* out: "dma-buf", "peer memory" */
    char why[224];   /* out: why not */
} mpix_net_gpu;

typedef struct mpix_net_ops {
    const char *name;
    int copies;           /* the processor that posts moves the bytes: more threads move more */
    size_t address_bytes; /* of the blob per pair that connect needs */
    size_t key_bytes;     /* of the blob per window */
    /* Whether open has a chance on this rank, else why not; NULL: always. */
    int (*present)(char *why, size_t len);
    /* Opens devices for talking to the peers for which want[peer] is set. Local. UNSUPPORTED or
     * TRANSPORT name the device and the remedy. */
    int (*open)(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                mpix_net **net);
    /* Gives up what is under way, so that handles of memory which it names can be given back; only
     * that and close follow. NULL: close does it. */
    void (*shut)(mpix_net *net);
    /* Never waits for what a peer does. When it returns no device and no peer reaches memory
     * through this net; else it is a kind, with the error that names the peer. Memory is still
     * there meanwhile, whether it is registered or not. */
    int (*close)(mpix_net *net);
    /* Connection: the blob for each peer is exchanged over MPI, then connect is called with the
     * peer's blob for this rank. Local. */
    int (*address)(mpix_net *net, int peer, void *blob);
    int (*connect)(mpix_net *net, int peer, const void *blob);
    /* Registration of [base, base + bytes); NO_MEM or TRANSPORT with the limit (memlock, device)
     * and the remedy. */
    int (*mem_reg)(mpix_net *net, void *base, size_t bytes, mpix_net_mem **mem);
    /* The same for memory of a GPU; NULL: this transport has no way. Not there is no error:
     * UNSUPPORTED with the reasons in way->why, nothing logged. */
    int (*mem_reg_gpu)(mpix_net *net, void *base, size_t bytes, mpix_net_gpu *way,
                       mpix_net_mem **mem);
    void (*mem_dereg)(mpix_net *net, mpix_net_mem *mem);
    /* The memory is the program's, who may take it away: what this rank's processor moves there for
     * peers has to be checked. NULL: it moves nothing. */
    void (*mem_foreign)(mpix_net *net, mpix_net_mem *mem);
    void (*mem_key)(mpix_net *net, const mpix_net_mem *mem, void *blob);
    int (*rmem_open)(mpix_net *net, int peer, const void *blob, mpix_net_rmem **rmem);
    void (*rmem_close)(mpix_net *net, mpix_net_rmem *rmem);
    /* Posts n operations, in order; returns how many were taken (fewer when a lane is full), or
     * -kind. No allocation. One doorbell per lane and call where the device allows. */
    int (*post)(mpix_net *net, const mpix_net_op *ops, int n);
    /* Completions and arrivals since the last call; never blocks, no allocation. Return how
     * many were stored. */
    int (*poll)(mpix_net *net, mpix_net_done *done, int max);
    int (*poll_arrivals)(mpix_net *net, mpix_net_arrival *arrivals, int max);
    /* For sleeping: arms notification of completions and arrivals; the caller polls once more after
     * arming, then sleeps on *fd (-1: the transport has none, sleep by time). ack after waking. */
    int (*arm)(mpix_net *net, int *fd);
    void (*ack)(mpix_net *net);
} mpix_net_ops;

struct mpix_net {
    const mpix_net_ops *ops;
    mpix_net_caps caps;
};

/* By name, NULL if unknown or not built. "verbs", "shmem" (writes executed by memcpy into windows
 * that this host's ranks map: the proxied protocols without a network), "null" (completes
 * everything, moves nothing), "ucx" (whatever libucp has). "chaos:X" wraps X. */
const mpix_net_ops *mpix_net_find(const char *name);
/* The names that this build has, with those that serve tests only or without. */
const char *mpix_net_names(int tests);
#endif
