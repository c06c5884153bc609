/*
 * proxy_internal.h - the state of a proxy, shared by its files: proxy.c (create, free: what
 * concerns all parts), proxy_mem.c (memory of all parts), proxy_part.c (a part: create, free,
 * windows), proxy_queue.c (producers), proxy_loop.c (the turn), proxy_thread.c (thread, sleep,
 * wake), proxy_state.c (failures, counts, dump).
 *
 * Who writes what of a part. Producers: FIFO, descriptors, a lane's `admitted`. The holder of the
 * part's lock, who makes its turn: everything else. What others read of it is atomic (completed,
 * retired, failed, counts), or is written before any other thread can name it (windows, in the
 * collective mpix_proxy_window).
 */
#ifndef MPIX_PROXY_INTERNAL_H
#define MPIX_PROXY_INTERNAL_H
#include <pthread.h>

#include "proxy/desc.h"
#include "proxy/encode.h"

enum {
    PROXY_VERSION = 2, /* of what travels between ranks; ranks with different ones
                        * refuse each other */
    PROXY_TABLE_WINDOW = MPIX_PROXY_WINDOWS - 1,
    PROXY_COUNTERS = 65536, /* counters are below this */
    PROXY_MIN_OP = 64,      /* a signal is one operation */
    PROXY_LANES = 1 << MPIX_CMD_LANE_BITS,
    PROXY_PEERS = 1 << MPIX_CMD_PEER_BITS,
    PROXY_PARTS = 8,
    PROXY_BATCH = 64 /* commands taken, operations posted per lane, completions and arrivals
                      * polled at a time */
};

/* What a counted signal writes into the target's table. The target reads it only after its arrival
 * was reported. */
typedef struct proxy_header {
    uint64_t off : 56, window : 4, lane : 4;
    uint64_t value;
    uint32_t writes, turn; /* writes: of the whole batch, this one included; turn: which signal of
                            * its lane it is */
} proxy_header;

_Static_assert(sizeof(proxy_header) == 24 && MPIX_PROXY_WINDOWS <= 16 && MPIX_CMD_LANE_BITS <= 4,
               "a header's fields");

/* A command that was taken, in its lane's ring until it is complete. */
typedef struct proxy_work {
    mpix_request request;
    uint64_t seq;
    uint32_t total, posted, complete; /* operations */
    uint32_t turn;                    /* counted signal */
} proxy_work;

/*
 * A lane's ring: [done, post) is posted and incomplete (the one at post maybe in part), [post,
 * head) is taken. Operations of a lane complete in the order of posting, so counting is enough to
 * know which command is complete.
 */
typedef struct proxy_lane {
    proxy_work *ring;
    uint64_t head, post, done;
    uint32_t ops; /* operations posted and incomplete */
    uint64_t bytes;
    uint32_t signals;       /* counted ones taken so far */
    uint32_t arrived, held; /* counted signals from this peer: published so far, complete
                             * but not in turn */
    int active;             /* in proxy->active: has something to post */
    _Alignas(64) _Atomic uint64_t admitted; /* commands that producers have been let through with */
    _Atomic uint64_t retired_seen;          /* producers' copy of retired */
    _Alignas(64) _Atomic uint64_t retired;  /* commands that have left the ring */
    _Atomic uint64_t completed;             /* seq of the last of them */
    _Atomic uint64_t posted_seq;            /* seq of the last command whose operations
                                             * are all posted */
} proxy_lane;

typedef struct proxy_tx { /* per counter: the batch that is being taken */
    uint32_t puts;
    uint32_t writes : 31;
    uint32_t header_open : 1; /* the header's place in the mirror is in use */
} proxy_tx;

typedef struct proxy_rx { /* per counter: the batch that is arriving */
    uint32_t count;
    uint8_t header, held; /* held: complete, to be published after earlier signals of its lane */
} proxy_rx;

typedef struct proxy_peer {
    proxy_lane *lanes; /* NULL: not wanted */
    proxy_tx *tx;
    proxy_rx *rx;
    uint32_t place, remote_place; /* this peer's part of our counter table, our part
                                   * of the peer's */
    mpix_net_rmem *rmem[MPIX_PROXY_WINDOWS];
    uint64_t rbytes[MPIX_PROXY_WINDOWS];
    _Atomic int failed; /* kind; error is written before it and never again */
    _Atomic int broken; /* by its net, and not only because the object was abandoned */
    MPIX_Error error;
    size_t memory;                                 /* counted where it is allocated */
    _Alignas(64) _Atomic uint64_t messages, bytes; /* the turn's, in a line of their own */
} proxy_peer;

/* nlanes: the most that a pair of ranks has in this part; peers without one have no lanes here. */
typedef struct proxy_part {
    struct mpix_proxy *whole;
    int index; /* of the whole's parts */
    mpix_boot *boot;
    mpix_net *net;
    mpix_doorbell *bell;
    int size, nlanes, counters, counted, npeers;
    proxy_peer *peers;                                  /* [size] */
    uint64_t max_op, credit_bytes, read_op, read_bytes; /* read_*: of READs */
    uint32_t depth, credit_ops;

    mpix_net_mem *mem[MPIX_PROXY_WINDOWS];
    char *base[MPIX_PROXY_WINDOWS];
    uint64_t bytes[MPIX_PROXY_WINDOWS];
    proxy_header *table; /* [npeers][counters] written by peers, then the mirror of the same size
                            from which headers are sent */
    size_t table_bytes;  /* both */

    mpix_fifo fifo;
    mpix_descs descs;
    struct mpix_gpu_queues *gpu; /* what kernels queue, NULL: none; under the lock */

    /* What the turn writes shares no cache line with what producers read for every command. */
    int threaded, wake_fd, ended; /* ended: nobody turns it any more, and there is no net */
    pthread_t thread;
    uint64_t spin_ns;
    _Atomic int stop;

    _Alignas(64) _Atomic int lock; /* who makes the turn */
    int *active;                   /* [npeers * nlanes] lanes with something to post, as peer *
                                    * nlanes + lane */
    int nactive;
    uint64_t turns, sleeps;
    int publish;           /* something for this rank happened in this turn */
    _Atomic int abandoned; /* kind; the turn finds it, and then latches all peers */
    int latched;           /* it has */

    _Alignas(64) _Atomic int sleeping; /* the thread has announced that it sleeps */
} proxy_part;

/* In a list of all, which the end of the proxy walks. `at`: the pointer to this
 * one, NULL: a window's. */
struct mpix_proxy_mem {
    mpix_net_mem *of[PROXY_PARTS];
    mpix_proxy_mem *next, **at;
};
struct mpix_proxy_rmem {
    mpix_net_rmem *of[PROXY_PARTS]; /* NULL: the part has no lane to the peer */
    mpix_proxy_rmem *next, **at;
};

struct mpix_proxy {
    mpix_boot *boot;
    char net_name[64]; /* as asked for: "chaos:verbs" */
    int size, rank, nlanes, counted, nparts;
    size_t key_bytes; /* of one net */
    mpix_net_caps caps;
    proxy_part *part[PROXY_PARTS];
    mpix_proxy_mem mem[MPIX_PROXY_WINDOWS];
    mpix_proxy_rmem *rmem; /* [size][MPIX_PROXY_WINDOWS] */
    mpix_proxy_mem *mems;
    mpix_proxy_rmem *rmems;
    MPIX_Error failure;  /* of the object, since it is abandoned */
    _Atomic int failing; /* somebody writes failure, or has */
    int ended, end_kind;
    MPIX_Error end_error;
};

/* Of a lane to a peer: its part, and its number there; and back. */
static inline int proxy_part_of(const mpix_proxy *proxy, int peer, int lane) {
    return proxy->nparts == 1 ? 0 : (proxy->rank + peer + lane) % proxy->nparts;
}
static inline int proxy_lane_in_part(const mpix_proxy *proxy, int lane) {
    return proxy->nparts == 1 ? lane : lane / proxy->nparts;
}
static inline int proxy_lane_of(const mpix_proxy *proxy, int part, int peer, int lane_in_part) {
    int first = (part - (proxy->rank + peer) % proxy->nparts + proxy->nparts) % proxy->nparts;

    return first + proxy->nparts * lane_in_part;
}

/* Its side in a part that has lost the peer, NULL: no part has. One part's loss is all parts': none
 * takes commands for the peer any more. */
static inline const proxy_peer *proxy_lost(const mpix_proxy *proxy, int peer) {
    for (int i = 0; i < proxy->nparts; i++)
        if (atomic_load_explicit(&proxy->part[i]->peers[peer].failed, memory_order_acquire))
            return &proxy->part[i]->peers[peer];
    return NULL;
}

static inline proxy_header *proxy_mirror(const proxy_part *part, const proxy_peer *peer,
                                         uint32_t counter) {
    return part->table + ((size_t)part->npeers + peer->place) * (size_t)part->counters + counter;
}

/* A put between windows, in the lane's own terms: lane is the number in the part. */
static inline mpix_net_op proxy_put_op(const proxy_part *part, int peer, int lane, int lwin,
                                       uint64_t loff, int rwin, uint64_t roff, uint64_t len,
                                       uint32_t counter) {
    return (mpix_net_op){.op = MPIX_NET_WRITE,
                         .lane = (uint8_t)lane,
                         .peer = (uint16_t)peer,
                         .counter = part->counted ? (int32_t)counter : -1,
                         .mem = part->mem[lwin],
                         .local = part->base[lwin] + loff,
                         .rmem = part->peers[peer].rmem[rwin],
                         .roff = roff,
                         .len = len};
}

static inline int proxy_try_lock(proxy_part *part) {
    return atomic_load_explicit(&part->lock, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&part->lock, 1, memory_order_acquire) == 0;
}

static inline void proxy_unlock(proxy_part *part) {
    atomic_store_explicit(&part->lock, 0, memory_order_release);
}

/* Alone, with allocation and checks; kind or 0. Then, all together and each ending in agreement:
 * the net, connections, what the nets can do. */
int proxy_part_create(mpix_proxy *whole, int index, const mpix_params *params,
                      const unsigned char *want, int counters, mpix_doorbell *bell);
/* Closes the net. Nothing that lies in memory is freed. 0 or a kind, see mpix_proxy_end. */
int proxy_part_end(proxy_part *part);
void proxy_part_free(proxy_part *part);
int proxy_part_window(proxy_part *part, int window, void *base, size_t bytes);
void proxy_part_window_drop(proxy_part *part, int window);
/* The nets forget it; the handle stays. */
void proxy_mem_drop(mpix_proxy *proxy, mpix_proxy_mem *mem);
void proxy_rmem_drop(mpix_proxy *proxy, mpix_proxy_rmem *rmem);

/* Waits for the holder, who is in a turn that does not block. */
void proxy_lock(proxy_part *part);

/* The turn; the caller holds the lock. 1: something happened. */
int proxy_turn(proxy_part *part);
/* Puts a request, which has been admitted, into its lane. seq: its number among those of its
 * producers, 0: it has none. */
void proxy_queue_request(proxy_part *part, const mpix_request *request, uint64_t seq);
/* Room for n more commands in a lane, from now to their completion. 1: they have it. Any thread. */
int proxy_admit(proxy_part *part, proxy_lane *lane, uint64_t n);
/* gpu_queue.c; the caller holds the lock: takes what kernels have queued; tells them of completion,
 * and of a failure. */
int proxy_gpu_take(proxy_part *part);
void proxy_gpu_done(proxy_part *part, int peer, int lane, uint64_t seq);
void proxy_gpu_failed(proxy_part *part, int peer, int kind);
/* Latches a failure of a peer, once; the rest is abandoned. The caller holds the lock. text: the
 * device's words. */
void proxy_latch(proxy_part *part, int peer, int kind, int lane, const char *text);
/* All peers, for the object has failed. The caller holds the lock. */
void proxy_latch_all(proxy_part *part);

/* After a push: wakes the thread if it has announced that it sleeps. */
void proxy_wake(proxy_part *part);
int proxy_thread_start(proxy_part *part, const mpix_params *params);
void proxy_thread_stop(proxy_part *part);
#endif
