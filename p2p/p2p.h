/*
 * p2p.h - the state of an object of MPIX_P2p_*, shared by the files of this folder.
 *
 * How a peer's memory is reached is decided when its handle is imported, and stands in the handle:
 *
 *   DIRECT  the memory is mapped here (or is our own): loads, stores and the processor's atomic
 *           operations, within the call
 *   CMA     another process's ordinary memory on this host:
 *           process_vm_readv/writev, within the call
 *   NET     a rank that the proxy reaches: READ and WRITE by the network device, without
 *           the target's part (GPU memory of this host's peers is DIRECT too, moved by
 *           our GPU: p2p_gpu.c)
 *   ASK     what is left (the system forbids CMA; additions to memory that is not DIRECT):
 *           messages, executed by the owner's progress
 *
 * Every ordered pair of ranks has a ring of messages in the receiver's window, for send/recv,
 * advertisements and ASK. The writer stores a message and then the ring's head; the reader gives
 * the tail back in the writer's window. Between mapped ranks these are plain stores, elsewhere puts
 * and signals of the proxy (p2p_ring.c).
 *
 * Locks. `lock` guards everything but what says otherwise. Transfers over DIRECT take no lock: they
 * touch the caller's memory, the peer's, and words that are changed atomically.
 */
#ifndef MPIX_P2P_P2P_H
#define MPIX_P2P_P2P_H
#include "base/clock.h"
#include "base/log.h"
#include "mem/calls.h"
#include "gpu/gpu.h"
#include "mem/guard.h"
#include "mem/shared.h"
#include "mem/window.h"
#include "proxy/proxy.h"
#include "xfer/xfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    P2P_MAGIC = 0x50325033, /* of exported handles; the last digit is their version */
    P2P_MEMS = 4096,        /* registrations of a rank that are alive at once */
    P2P_LANES = 16,
    P2P_STREAMED = 16384, /* no memcpy streams fewer bytes */
    P2P_IDLE = 64,        /* turns without success before clocks and deaths are looked at */
    P2P_SCRATCH = 64,     /* words for old values and for reads that flush, one unit of
                           * each in flight */
    P2P_GPU_WORDS = 2,  /* behind the lanes' words of a slot: those that the source's GPU writes */
    P2P_WIN_CTL = 0,    /* windows of the proxy */
    P2P_WIN_DEVICE = 2, /* counters for kernels */
    P2P_WIN_MIRROR = 1  /* what is sent to the peers' control windows, and scratch words */
};

enum { P2P_DIRECT, P2P_CMA, P2P_NET, P2P_ASK };

/* ---- the control window ---------------------------------------------------------------------- */

typedef struct p2p_message {
    uint32_t type, bytes; /* of the payload, which follows */
    uint64_t id;          /* of the sender's operation, or what an answer repeats */
    uint64_t a, b, c;
    int32_t tag, status; /* status: an error kind */
    uint32_t last, pad;
} p2p_message;

enum {
    P2P_MSG_EAGER = 1, /* a whole message of send */
    P2P_MSG_OFFER,     /* a large one: a = its bytes, b = pieces in all; payload: blobs of its
                        * pieces; repeated until all are told */
    P2P_MSG_FIN,       /* id's send is complete */
    P2P_MSG_ADVERT,    /* tag, b = pieces in all; payload: blobs; repeated until all are told */
    P2P_MSG_PUT,       /* a = memory, b = offset; payload: data; last: answer ACK */
    P2P_MSG_ACK,
    P2P_MSG_GET,   /* a = memory, b = offset, c = bytes, tag = which piece */
    P2P_MSG_DATA,  /* tag = which piece, b = offset in it */
    P2P_MSG_ADD,   /* a = memory, b = offset, c = what to add */
    P2P_MSG_OLD,   /* c = old value */
    P2P_MSG_NOTIFY /* a = slot, b = what to add */
};

/* What a source writes in our window; its address is the same in all windows, for sizes
 * are agreed on. */
typedef struct p2p_block {
    _Alignas(64) _Atomic uint64_t head; /* messages that the source has written into our ring */
    _Alignas(64) _Atomic uint64_t tail; /* messages of ours that the source has taken
                                         * from its ring */
    _Atomic uint64_t failed;            /* 0, or how the source's object has failed
                                         * (boot.h); written once */
    _Alignas(64) mpix_calls calls;      /* the source's system calls that write our memory */
    _Alignas(64) unsigned char rest[];  /* words[slots][lanes + P2P_GPU_WORDS], then
                                         * ring[ring][stride] */
} p2p_block;

typedef struct p2p_ctl {
    mpix_doorbell bell;
    /* the object has failed, or ends: no system calls into this process any more */
    _Alignas(64) mpix_revoked revoked;
    /* number of the registration in this place, 0: none */
    _Alignas(64) _Atomic uint64_t mem_gen[P2P_MEMS];
} p2p_ctl;

/* ---- memory ---------------------------------------------------------------------------------- */

/* An allocation of all ranks: mapped everywhere on the host while our part of it, or a handle of a
 * peer's part, is in use. */
typedef struct p2p_area {
    struct p2p_area *next;
    mpix_win *win; /* NULL: gpu */
    mpix_gpu_window *gpu;
    void **pinned;   /* win: [size] mappings that kernels use, as CUDA knows them; NULL: none */
    uint64_t number; /* counts alike on all ranks */
    int users;
} p2p_area;

/* What every short transfer reads comes first, here and in mpix_rmem: it shares a
 * cache line or two. */
struct mpix_mem {
    mpix_live live;
    struct mpix_p2p *p2p;
    char *base;
    uint64_t bytes;
    int plain;              /* host memory with all rights */
    int gpu;                /* memory of the object's CUDA device */
    int rights;             /* MPIX_MEM_*: of the caller's memory, what could be done with all of it
                             * when it was registered */
    uint64_t id;            /* place in the table, and a number that no other registration of
                             * this rank has */
    p2p_area *area;         /* NULL: the caller's memory */
    mpix_cuda_range *range; /* of the caller's GPU memory: how peers get at it */
    mpix_proxy_mem *net;
    _Atomic int busy; /* pieces of transfers in flight */
    struct mpix_mem *next;
};

struct mpix_rmem {
    mpix_live live;
    struct mpix_p2p *p2p;
    char *ptr;                   /* DIRECT */
    uint64_t bytes, id;          /* the range: length; the owner's registration */
    const _Atomic uint64_t *gen; /* where the owner's registration can be looked
                                  * at, NULL: it can't */
    int plain;                   /* mapped host memory with all rights */
    int peer, reach, rights;
    int gpu, atomics;    /* GPU memory; our GPU can add to it */
    struct p2p_ipc *ipc; /* the mapping that ptr lies in, if it is one of CUDA IPC */
    uint64_t addr;       /* CMA: of the range in the owner's address space */
    uint64_t off;        /* of the range in the owner's registration */
    p2p_area *area;      /* kept mapped */
    mpix_proxy_rmem *net;
    _Atomic int busy;
    int device;    /* 1 + its number in the table for kernels */
    int shared;    /* allocated by the library */
    int temporary; /* of one transfer: not the caller's */
    struct mpix_rmem *next, *prev;
};

/* An exported handle: this, then the net's key. */
typedef struct p2p_blob {
    uint32_t magic;
    int32_t rank;
    uint64_t random[2]; /* of the exporter's object */
    uint64_t id, area;  /* area 0: registered */
    uint64_t addr, mem_off, bytes, base_bytes;
    int32_t gpu, rights;
    unsigned char uuid[16], ipc[64]; /* GPU memory: of the device; the allocation */
    uint64_t gpu_off, gpu_bytes;     /* in the allocation; of the allocation */
} p2p_blob;

/* GPU memory of p2p_blob: of an area; opened by CUDA IPC; can't be opened. */
enum { P2P_GPU_NOT, P2P_GPU_AREA, P2P_GPU_IPC, P2P_GPU_POOL, P2P_GPU_VMM };

/* ---- operations ------------------------------------------------------------------------------ */

enum { P2P_PUT, P2P_GET, P2P_ADD, P2P_SEND, P2P_RECV, P2P_TOLD /* an advertisement */ };

/* A piece of the caller's, kept until the operation is complete. Over the proxy it becomes a
 * mpix_net_op (proxy.h: Representations), elsewhere a copy, a system call or a message. */
typedef struct p2p_piece {
    struct mpix_mem *mem; /* NULL: not counted in mem->busy (library memory) */
    char *local;
    struct mpix_rmem *rmem;
    uint64_t roff, len;
} p2p_piece;

typedef struct p2p_op {
    struct mpix_xfer xfer;
    struct mpix_p2p *p2p;
    struct p2p_op *next, *prev, *match; /* of all in flight; match: receives of a peer */
    uint32_t index, turn;               /* the id that messages carry */
    int type, peer, kind;
    _Atomic int done;
    MPIX_Error error;
    p2p_piece *own; /* the caller's; held: so many of them are counted as busy */
    int room, held;
    p2p_piece *pieces; /* those that are moved: own, or temp */
    int n;
    /* progress of the pieces */
    int at, posting;
    uint64_t at_off;
    uint64_t left; /* answers awaited, and messages of its own that are still
                    * to be written */
    uint64_t owed; /* proxied: what the ring has queued for it, see peer->owed; 0: not
                    * looked at so far */
    int waits;     /* a receive: it is in its peer's list, for no message
                    * is its own yet */
    int moved;     /* a receive: its data are here */
    int asked;     /* pieces went by message */
    int lane;
    uint32_t lanes; /* those used */
    uint64_t seq[P2P_LANES];
    /* put_notify */
    int notify, slot, told; /* told: lanes that have had their signal */
    uint64_t add, value;
    /* fetch_add */
    int64_t *old;
    int scratch; /* -1: none */
    /* send, recv */
    uint64_t total, offer_id;
    MPI_Count *received;
    uint64_t waited_ns, tested_ns;
    int tests;       /* without a look at the clock */
    p2p_piece *temp; /* both sides of a large receive */
    int temp_room;
    struct p2p_out *fin; /* a receive's, for the sender of a large message: there before the
                          * receive begins */
    int on_gpu;          /* the GPU works on it: what tells of the end */
    void *event;
} p2p_op;

enum { P2P_ON_WORD = 1, P2P_ON_EVENT };

/* Something to be written into a peer's ring: one message, or a row of them with data or blobs. */
typedef struct p2p_out {
    struct p2p_out *next;
    p2p_message head;
    p2p_op *op;           /* whose pieces are sent; NULL for answers */
    struct mpix_mem *mem; /* DATA: what is read; busy meanwhile */
    const char *from;
    uint64_t left, at_off; /* bytes still to be sent */
    int at, blobs;         /* piece; blobs: the payload is handles of the pieces */
    int stage;             /* proxied: parts of the current message that are queued */
    int puts;
} p2p_out;

/* What has arrived and nobody has asked for yet: a message of send, or an advertisement. */
typedef struct p2p_early {
    struct p2p_early *next;
    int advert, tag, whole, expected, n;
    uint64_t id, bytes;
    char *data; /* eager: the message; else blobs */
    size_t room;
} p2p_early;

typedef struct p2p_peer {
    int mapped; /* its window is */
    int cma;    /* the system lets us at its memory */
    uint64_t random[2];
    p2p_ctl *ctl;                  /* mapped: its window */
    p2p_block *out;                /* mapped: our block in it; else in the mirror */
    p2p_block *in;                 /* its block in our window */
    uint64_t written, taken, told; /* messages; told: tail given back */
    uint64_t tails;                /* tail signals so far */
    uint64_t owed;                 /* proxied: number of the last command on lane 0 that the peer
                                    * needs: a message, a tail */
    _Atomic uint64_t *sent; /* [slots] sum of the notifications for it: proxied, or by our GPU
                             * on our stream */
    p2p_out *first, *last;
    p2p_op *recv_first, *recv_last;
    p2p_early *early_first, *early_last, *partial;
    uint32_t dirty;   /* lanes with writes since the last flush */
    int puts;         /* in flight */
    p2p_op *notifier; /* proxied: whose signals are being queued; one at a time, for
                       * words only grow */
    int next_lane;
    int starved; /* its next message waits in the ring for memory */
    int pidfd;
    pid_t pid;
} p2p_peer;

struct mpix_p2p {
    mpix_live live;
    mpix_boot *boot;
    mpix_params params;
    int rank, size, slots, ring, lanes, oversubscribed;
    size_t eager, stride, block_bytes, blob_bytes;
    size_t stream_bytes; /* copies of so many bytes bypass the caches */
    const struct mpix_rows_ops *rows;
    mpix_win *ctl_win;
    p2p_ctl *ctl;
    char *mirror; /* blocks of proxied peers, then scratch */
    size_t mirror_bytes;
    uint64_t *scratch;
    uint64_t scratch_free; /* bits */
    p2p_peer *peers;
    mpix_proxy *proxy; /* NULL: all peers are mapped */
    mpix_guard *guard; /* for answers from memory that is the caller's; NULL: none so far */
    int counted;
    uint64_t random[2];

    pthread_mutex_t lock;
    p2p_op *ops, *ops_last, *pool; /* in flight, oldest first; free */
    p2p_op **table;                /* by index */
    uint32_t nops, room;
    p2p_out *out_pool, *out_spare; /* spare: for an answer, when there is no memory */
    p2p_early *early_pool;
    int users;           /* transfers that the caller holds */
    int created;         /* all of it is there: progress can be made */
    _Atomic int pending; /* operations in flight, and messages to be written */
    _Atomic int failed;
    MPIX_Error failure;
    int quiet;          /* nobody reaches this process's memory through the object any more */
    int unsafe;         /* at the end: a stopped peer may, so windows stay mapped */
    MPIX_Error passing; /* the last error of whoever makes progress, see mpix_error_divert */
    uint64_t checked_ns;
    uint64_t limit_ns; /* params.timeout; UINT64_MAX: none */
    uint64_t heard;    /* what the first peer that failed has told; passed on as it is */
    int idle;          /* turns in a row in which nothing happened */
    int awaited;       /* peer whose notification or flush somebody waits for, -1: none */

    struct mpix_mem *mems, *mem_at[P2P_MEMS];
    uint32_t mem_turn, mem_next;
    struct mpix_rmem *rmems, *rmem_pool;
    p2p_area *areas;
    uint64_t area_number;
    struct p2p_gpu *gpu;       /* NULL: not used so far */
    struct p2p_device *device; /* handles for kernels, NULL: none so far */

    int threaded;
    pthread_t thread;
    _Atomic int stop;
};

typedef struct mpix_p2p mpix_p2p;
typedef struct p2p_gpu p2p_gpu;
typedef struct p2p_device p2p_device;

/* Between writing a peer's memory and telling of it: copies may have used stores that no
 * release orders. */
static inline void p2p_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
    atomic_thread_fence(memory_order_release);
}

static inline size_t p2p_words_bytes(const mpix_p2p *p2p) {
    return ((size_t)p2p->slots * ((size_t)p2p->lanes + P2P_GPU_WORDS) * 8 + 63) / 64 * 64;
}

/* The words of a slot, one per lane, and the GPU's. Of a mapped peer the processor writes the
 * first, and its GPU those behind the last. */
static inline _Atomic uint64_t *p2p_words(const mpix_p2p *p2p, p2p_block *block, int slot) {
    return (_Atomic uint64_t *)(void *)(block->rest +
                                        (size_t)slot * ((size_t)p2p->lanes + P2P_GPU_WORDS) * 8);
}

static inline p2p_message *p2p_place(const mpix_p2p *p2p, p2p_block *block, uint64_t position) {
    return (p2p_message *)(void *)(block->rest + p2p_words_bytes(p2p) +
                                   (size_t)(position % (uint64_t)p2p->ring) * p2p->stride);
}

/* ---- p2p_create.c ---------------------------------------------------------------------------- */
int p2p_alive(mpix_p2p *p2p); /* 0 or the kind of the failure, with the particulars */
int p2p_raise(mpix_p2p *p2p, int kind);
/* ---- p2p_mem.c ------------------------------------------------------------------------------- */
/* The owner's side of ASK: the memory that a message names, or NULL. */
struct mpix_mem *p2p_mem_find(mpix_p2p *p2p, uint64_t id, uint64_t off, uint64_t len);
void p2p_mems_free(mpix_p2p *p2p);
/*
 * Local, bounded; with the lock, of an object that has failed or ends, while all memory is there:
 * when it returns 0 no thread of ours, no device and no peer touches memory of this process for the
 * object any more; what peers have mapped they may write, where they have it. Else a kind: a peer
 * was stopped, and may go on.
 */
int p2p_quiet(mpix_p2p *p2p);
/* A user of the area less; the last one frees it. With the lock. */
void p2p_area_leave(mpix_p2p *p2p, p2p_area *area);

/* ---- p2p_handle.c ---------------------------------------------------------------------------- */
int p2p_import(mpix_p2p *p2p, int peer, const void *buf, uint64_t buflen, int temporary,
               struct mpix_rmem **rmem);
void p2p_rmem_close(struct mpix_rmem *rmem);
void p2p_export(struct mpix_mem *mem, uint64_t off, uint64_t len, void *buf);

/* ---- p2p_copy.c ------------------------------------------------------------------------------ */
/* Moves pieces that need no operation, from *at on, until one does: DIRECT and CMA. 0 or a kind. */
int p2p_copy(mpix_p2p *p2p, int put, const p2p_piece *pieces, int n, int *at);
/* Between mapped memories. A long copy that a fence must follow before anybody is told of it. */
void p2p_copy_bytes(const mpix_p2p *p2p, void *to, const void *from, size_t n);
int p2p_copy_iov(mpix_p2p *p2p, int put, const MPIX_P2p_iov iov[], int n);

/* ---- p2p_op.c -------------------------------------------------------------------------------- */
/* Takes the lock, which p2p_op_give takes off. NULL: no memory, and no lock. The pieces are
 * copied and held. */
p2p_op *p2p_op_new(mpix_p2p *p2p, int type, int peer, const MPIX_P2p_iov iov[], int n);
/* The same for an addition, whose piece has no local side. */
p2p_op *p2p_op_add(mpix_p2p *p2p, struct mpix_rmem *rmem, uint64_t roff);
/* The tail of a call that moves pieces: posts what it can and gives the operation to the caller,
 * as p2p_op_give. */
int p2p_op_run(p2p_op *op, MPIX_Xfer *xfer);
void p2p_op_fail(p2p_op *op, int kind); /* with the thread's error */
void p2p_op_done(p2p_op *op);
p2p_op *p2p_op_find(mpix_p2p *p2p, uint64_t id);
static inline uint64_t p2p_op_id(const p2p_op *op) { return (uint64_t)op->turn << 32 | op->index; }
/* Gives a started operation to the caller: as a transfer, or (xfer NULL) waits for it. Takes the
 * lock off. Raises. */
int p2p_op_give(p2p_op *op, MPIX_Xfer *xfer);
int p2p_progress(mpix_p2p *p2p); /* with the lock; 1: something happened */
void p2p_fail(mpix_p2p *p2p, int kind);
void p2p_wait_start(mpix_p2p *p2p, mpix_wait *wait);
/* Ends a call that took messages of a peer: waits until what the rings have queued for it, tails,
 * gets there without another call. Without the lock. What the call has got stays got if that fails;
 * the object has failed then. */
void p2p_settle(mpix_p2p *p2p, int peer, mpix_wait *wait, uint64_t start_ns);
void p2p_ops_free(mpix_p2p *p2p);
/* Progress within a wait for peer that began at start_ns; fails the object when that is too long. 0
 * or a kind. Without the lock. */
int p2p_wait_turn(mpix_p2p *p2p, mpix_wait *wait, int peer, uint64_t start_ns, const char *what);

/* ---- p2p_watch.c ----------------------------------------------------------------------------- */
/* What collectives look at while they wait (boot.h): progress, failures of peers; kind:
 * fails the object. */
int p2p_look(void *p2p, int kind);
void p2p_check_peers(mpix_p2p *p2p); /* deaths of those that are waited for */
/* A time limit is over: the error. op: what waited, NULL: the call itself. */
int p2p_late(mpix_p2p *p2p, const p2p_op *op, int peer, const char *what);

/* ---- p2p_move.c: the pieces of an operation -------------------------------------------------- */
void p2p_move(p2p_op *op);           /* posts what can be posted, and finishes the operation when
                                      * all is complete */
int p2p_scratch_take(mpix_p2p *p2p); /* -1: none is free */

/* ---- p2p_ring.c ------------------------------------------------------------------------------ */
p2p_out *p2p_out_new(mpix_p2p *p2p, uint32_t type, uint64_t id); /* NULL: NO_MEM */
int p2p_out_ready(mpix_p2p *p2p); /* whether the next p2p_out_answer has memory */
p2p_out *p2p_out_answer(mpix_p2p *p2p, uint32_t type, uint64_t id);
void p2p_out_add(mpix_p2p *p2p, int peer, p2p_out *out);
int p2p_ring_write(mpix_p2p *p2p, int peer); /* what is queued, as far as there is room */
int p2p_ring_read(mpix_p2p *p2p, int peer);
const p2p_message *p2p_ring_next(mpix_p2p *p2p, int rank); /* the next message that has arrived, or
                                                            * NULL */
void p2p_ring_took(mpix_p2p *p2p, int rank);               /* it has been dealt with */
void p2p_ring_tell(mpix_p2p *p2p); /* all peers, that this object has failed */
void p2p_ring_drop(mpix_p2p *p2p); /* what is queued, for all peers */
static inline void p2p_ring_bell(const p2p_peer *peer) {
    if (peer->ctl)
        mpix_doorbell_ring(&peer->ctl->bell);
}

/* ---- p2p_message.c --------------------------------------------------------------------------- */
/* With the lock. Made when it is first needed; NULL: the system gives none. */
static inline mpix_guard *p2p_guard(mpix_p2p *p2p) {
    if (!p2p->guard)
        p2p->guard = mpix_guard_new();
    return p2p->guard;
}
/* 0: there is no memory for it now, and it stays in the ring. */
int p2p_message_take(mpix_p2p *p2p, int peer, const p2p_message *message, const char *payload);

/* ---- p2p_recv.c ------------------------------------------------------------------------------ */
int p2p_send_arrived(mpix_p2p *p2p, int peer, const p2p_message *message, const char *payload);
void p2p_recv_moved(p2p_op *op); /* its message is in place, or it has failed: the sender of a
                                  * large one is told */
void p2p_recv_leave(p2p_op *op); /* nothing is received any more */
void p2p_recv_list(p2p_op *op);  /* behind the peer's other receives */
void p2p_recv_deliver(mpix_p2p *p2p, p2p_op *op, p2p_early *early);
int p2p_starved(int rank); /* the error of a message for which there is no memory */
/* The first message, or the first advertisement of tag, NULL: none. It is put back, or released. */
p2p_early *p2p_early_take(p2p_peer *peer, int advert, int tag);
void p2p_early_put_back(p2p_peer *peer, p2p_early *early);
void p2p_early_release(mpix_p2p *p2p, p2p_early *early);
void p2p_early_free(mpix_p2p *p2p);

/* ---- p2p_thread.c ---------------------------------------------------------------------------- */
int p2p_thread_start(mpix_p2p *p2p);
void p2p_thread_stop(mpix_p2p *p2p);
#endif
