/*
 * ep.h - the inside of MPIX_Ep: context, handle, call; what the files of coll/ offer each other.
 *
 * A call is a state machine that the engine steps whenever anybody makes progress on the context:
 * the caller in i..., test and wait, or the progress thread. All calls of a context are stepped in
 * the order in which they were started.
 */
#ifndef MPIX_COLL_EP_H
#define MPIX_COLL_EP_H
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/topo.h"
#include "boot/boot.h"
#include "coll/ctl.h"
#include "coll/host/plan.h"
#include "coll/path.h"
#include "kernels/host/rows.h"
#include "mem/window.h"
#include "proxy/proxy.h"
#include "xfer/xfer.h"

#include <pthread.h>

enum { MPIX_EP_ROUTE, MPIX_EP_DISPATCH, MPIX_EP_COMBINE, MPIX_EP_TYPES };

typedef struct mpix_ep_call mpix_ep_call;
/* A step of a call's state machine; what it returns is below. */
typedef int mpix_ep_step(mpix_ep_call *call, int *banks_open);

/* Memory of MPIX_Ep_alloc; its index in the context's table is the same on all ranks. */
typedef struct mpix_ep_region {
    mpix_win *win; /* NULL: freed, and another allocation may have this place */
    int ended;     /* freed by the caller when the context had failed: kept until the context ends,
                    * for what names it */
    mpix_proxy_mem *mem;    /* with proxied peers: rows are sent from where they lie, and put where
                             * they belong; NULL: not */
    mpix_proxy_rmem **rmem; /* [ranks] proxied peers' parts, NULL: not reached; or NULL */
} mpix_ep_region;

typedef struct mpix_ep_registration {
    void *base;
    size_t bytes;
} mpix_ep_registration;

/* A staging bank: part of the staging window, used by one call at a time. */
typedef struct mpix_ep_bank {
    size_t committed;
    int busy;
} mpix_ep_bank;

struct mpix_ep_handle {
    mpix_live live;
    struct mpix_ep *ep;
    int index;
    mpix_ep_plan *plan;                /* of the last completed route, NULL: none valid */
    uint64_t started[MPIX_EP_TYPES];   /* epochs of the calls started */
    uint64_t signalled[MPIX_EP_TYPES]; /* epochs whose words were written: in order, whatever the
                                        * order of completion */
    int active;                        /* calls in the engine, failed ones included */
    int users;                         /* transfers that the caller holds, complete or not */
    int64_t tokens;                    /* of the last route that was started */
    int topk, routed;                  /* routed: that route's arguments were fine */
    int64_t capacity;                  /* of the last dispatch started since; -1: none */
    struct mpix_ep_gpu_handle *gpu;    /* gpu/gpu.h; NULL in host memory */
    struct mpix_ep_ll_handle *ll;      /* host_ll/ll.h; NULL in mode HT */
    struct mpix_ep_handle *next;
};

typedef struct mpix_ep {
    mpix_live live;
    mpix_boot *boot;
    int rank, size;
    mpix_params params;
    MPIX_Ep_config config; /* in force */
    const mpix_ep_path *path;
    mpix_ep_placement placement;
    mpix_ep_ctl_layout layout;
    mpix_win *ctl, *stage;
    struct mpix_ep_remote *remote;   /* proxied peers, NULL: there are none */
    struct mpix_ep_forward *forward; /* two hops, NULL: never (host/forward.h) */
    int64_t max_rows;                /* this rank can receive in a batch */
    size_t stage_bytes;
    int packs; /* batches for proxied peers are packed by host/remote.c, in the staging window */
    mpix_ep_region *regions;
    int nregions;
    mpix_ep_registration *registrations;
    int nregistrations;
    struct mpix_ep_handle *handles;
    uint64_t *indices_used;                  /* bitmap of max_handles */
    uint64_t (*index_epochs)[MPIX_EP_TYPES]; /* where a reused index goes on counting */
    size_t ctl_committed;
    const mpix_rows_ops *rows;
    size_t stream_bytes; /* calls that write more use streaming stores */
    size_t stream_peers; /* the same for what is written for other ranks' processors */
    int oversubscribed;  /* more ranks than cores: waits do not spin */
    int *pidfds;         /* [size] of ranks of this host, -1: none */
    /* engine */
    pthread_mutex_t lock;       /* calls below, banks, handles' epochs */
    mpix_ep_call *first, *last; /* in flight, in order of start */
    mpix_ep_call *pool;
    mpix_ep_call *spare;  /* for a call that gets no memory: it takes part with an
                          * empty, failed batch */
    int users;            /* transfers that the caller holds, complete or not */
    mpix_ep_call *held;   /* those */
    void **dst;           /* [2 * max_topk + 2] scratch of the engine */
    char *converted;      /* [max_row_bytes] a row and its scales; scratch of the engine, from the
                          * first call on that converts */
    mpix_row_term *terms; /* [max_topk + 1] */
    int failed;           /* kind, 0: fine */
    int unsafe;           /* at the end: a stopped peer may still write windows, which
                                     * then stay mapped */
    MPIX_Error failure;
    MPIX_Error passing;  /* the last error of whoever makes progress, see mpix_error_divert */
    uint64_t checked_ns; /* when deaths were last looked for */
    uint64_t limit_ns;   /* config.timeout_s; UINT64_MAX: none */
    /* progress thread */
    int threaded, stop;
    pthread_t thread;
    pthread_cond_t wake;     /* a call was started, or stop */
    mpix_doorbell done_bell; /* rung by the thread when a call completes */
    struct mpix_ep *next;    /* all contexts of the process; its lock guards visited too */
    uint64_t visited;        /* when another context's wait worked here last, in visits */
    _Atomic int visitors;    /* that hold this pointer now */
    _Atomic int flying;      /* calls in flight, for who has not got the lock */
    struct mpix_ep_gpu *gpu; /* gpu/gpu.h; NULL in host memory */
    struct mpix_ep_ll *ll;   /* host_ll/ll.h; NULL in mode HT */
    struct mpix_ep_ht *ht;   /* NULL but on the path host-ht */
} mpix_ep;

/* Of a context on the path host-ht. */
typedef struct mpix_ep_ht {
    size_t bank_bytes, banks_at;    /* the banks begin there in the staging window */
    mpix_ep_bank *banks;            /* [config.depth] */
    int answered;                   /* route: places are answered (host/route.c) */
    struct mpix_ep_target *targets; /* [ranks] scratch of the engine */
} mpix_ep_ht;

/* One piece of the send buffer. */
typedef struct mpix_ep_chunk {
    int state; /* free, open (being packed), posted */
    int peer, lane;
    uint64_t seq;
} mpix_ep_chunk;

/* A command that the proxy had no room for (host/remote_room.c). */
enum { MPIX_EP_COMMAND_PUT, MPIX_EP_COMMAND_WORD, MPIX_EP_COMMAND_POST };
typedef struct mpix_ep_command {
    int what, peer, lane;
    int lwin, rwin;
    uint64_t loff, roff, len, value;
    uint32_t counter, writes;
    mpix_net_op op; /* POST, with these handles */
    const mpix_proxy_mem *mem;
    const mpix_proxy_rmem *rmem;
    mpix_ep_call *call;
    uint64_t ticket;
} mpix_ep_command;

/* What a context has for proxied peers (host/remote.c). */
typedef struct mpix_ep_remote {
    mpix_proxy *proxy;
    unsigned char *is; /* [ranks] 1: proxied */
    int npeers, lanes;
    char *mirror; /* of the blocks this rank writes in its peers' control windows; laid out
                   * as a control window, by peer */
    char *tx;     /* send buffer: chunks */
    size_t chunk_bytes;
    int nchunks;
    mpix_ep_chunk *chunks;
    mpix_ep_call *packing;  /* the call that owns the chunks */
    mpix_ep_command *later; /* [nlater] of later_room */
    _Atomic int nlater;     /* read without the lock to see whether to pause */
    int later_room, no_mem; /* no_mem: there was none for one more */
    uint64_t later_ns;      /* when one of them was queued last */
    uint64_t tickets;
    unsigned char *full; /* [ranks][MPIX_EP_MAX_LANES] scratch */
    int64_t *cursor;     /* [local experts] scratch */
    int counters_handle; /* counters per handle */
    int ready;           /* all ranks have registered their windows */
    int counter_failed;  /* of the signal that tells that the context has failed */
} mpix_ep_remote;

/* A call's part for one peer. */
typedef struct mpix_ep_remote_call {
    uint64_t rx;         /* its batch for this rank: offset in this call's staging bank */
    int64_t total, next; /* items of the batch for it, and packed so far */
    int direct;          /* dispatch: it puts its rows into the caller's output */
    int chunk;           /* open chunk, -1: none */
    uint32_t flags;      /* combine: of its offer, and its rows; kept, since its next offer may
                          * come while this call still sums */
    int64_t rows;
    uint32_t writes[MPIX_EP_MAX_LANES];
    uint64_t seq[MPIX_EP_MAX_LANES]; /* last command of this call */
    int64_t forward_left;            /* two hops: items that it still sends here
                                      * to be forwarded */
    int64_t forward_done;            /* combine: partial sums sent it */
    int64_t forward_item;            /* combine: partial sums of it used */
    uint64_t forward_place;          /* combine: where it wants them, in its staging window */
    int64_t forward_packed;          /* items packed for it */
    int forward_blocked;             /* the packing waits for its credit */
} mpix_ep_remote_call;

/* How a packed batch is laid out: chunks of per_chunk items; in a chunk of n items first n rows,
 * then n scale rows, then n records. */
typedef struct mpix_ep_geometry {
    size_t row, scales; /* bytes */
    size_t pitch, scale_pitch, record, item;
    int64_t per_chunk;
} mpix_ep_geometry;

/* Where a peer's rows are, as its offer says, in addresses of this process. */
typedef struct mpix_ep_target {
    char *x, *scales, *records, *slots;
    uint64_t x_stride, scale_stride;
    int64_t rows;
} mpix_ep_target;

/* Of a call in mode HT. */
typedef struct mpix_ep_ht_call {
    /* offsets in the staging window, SIZE_MAX: not staged; set when its offer is made */
    size_t x_stage, s_stage, records_stage, slot_stage;
    int remote_peer, remote_segment; /* combine: where packing is */
    int64_t remote_row;
    int two_hops;          /* it takes two hops (host/forward.h) */
    int forward_go;        /* no rank has refused: batches are sent */
    int64_t forward_entry; /* packing: where in token `at` */
} mpix_ep_ht_call;

/* Of a call in mode LL. */
typedef struct mpix_ep_ll_call {
    int64_t rows;              /* of the layout that exist here, others are dropped */
    int heads, limited, width; /* dispatch: heads seen, rows set, choices per token + 1 */
    int streaming;             /* what is written for peers bypasses the caches */
    int pulled;                /* combine: peers that read this rank's rows */
} mpix_ep_ll_call;

struct mpix_ep_call {
    struct mpix_xfer xfer; /* first */
    mpix_ep *ep;
    struct mpix_ep_handle *handle;
    int type, state;
    uint64_t epoch;
    mpix_ep_step *step;
    int kind; /* first error; 0: fine */
    MPIX_Error error;
    _Atomic int done;
    int orphaned;                /* its caller has been told of the error already; nobody waits */
    int bank;                    /* staging bank held, -1: none */
    uint64_t watch_ns;           /* when the caller first waited for it */
    int others;                  /* its last test worked for another context */
    uint64_t wait_ns;            /* when the call began to wait for peers */
    unsigned char *seen;         /* [ranks] */
    mpix_ep_remote_call *remote; /* [ranks], NULL without proxied peers */
    int nseen, waiting;          /* waiting: the current state needs peers that are not in seen */
    int64_t at;                  /* progress inside a pass over tokens */
    int streaming;
    mpix_ep_plan *plan; /* route: the new one */
    void *parts;        /* [ranks] of path->call_bytes: the path's own */
    union {             /* of its path */
        mpix_ep_ht_call ht;
        mpix_ep_ll_call ll;
    };
    union {
        struct {
            MPIX_Ep_counts counts;
        } route;
        struct {
            MPIX_Ep_dispatch_in in;
            MPIX_Ep_dispatch_out out;
        } dispatch;
        struct {
            MPIX_Ep_combine_in in;
            MPIX_Ep_combine_out out;
            int64_t capacity;
        } combine;
    };
    mpix_ep_call *next, *held_next;
};

static inline size_t mpix_ep_up16(size_t n) { return (n + 15) & ~(size_t)15; }

/* config.c */
int mpix_ep_config_check(const MPIX_Ep_config *config, int ranks, MPIX_Ep_config *effective);
/* Whether each of so many ranks of this host has the memory for mpix_ep_placement_init.
 * 0 or NO_MEM. */
int mpix_ep_placement_room(const MPIX_Ep_config *config, int ranks, int sharers);
int mpix_ep_config_compare(mpix_boot *boot, const MPIX_Ep_config *config,
                           const mpix_params *params);

/* check.c: argument checks of calls; all return 0 or ARG (or UNSUPPORTED). */
/* dense bytes of a row, without scales */
size_t mpix_ep_row_bytes(const MPIX_Ep_rows *rows, int64_t hidden);
/* dense bytes of its scales */
size_t mpix_ep_scale_bytes(const MPIX_Ep_rows *rows, int64_t hidden);
int mpix_ep_check_rows(const MPIX_Ep_rows *rows, const char *name, int64_t hidden, int64_t nrows);
int mpix_ep_check_alloc(MPI_Count bytes, MPI_Info info, const void *baseptr);
int mpix_ep_check_routing(mpix_ep *ep, const MPIX_Ep_routing *routing, MPIX_Ep_routing *effective);
int mpix_ep_check_counts(mpix_ep *ep, const MPIX_Ep_counts *counts);
/* The user's structs are copied to in and out once their sizes are known to be right, and defaults
 * are filled in there. */
int mpix_ep_check_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *given,
                           const MPIX_Ep_dispatch_out *wanted, MPIX_Ep_dispatch_in *in,
                           MPIX_Ep_dispatch_out *out);
int mpix_ep_check_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *given,
                          const MPIX_Ep_combine_out *wanted, MPIX_Ep_combine_in *in,
                          MPIX_Ep_combine_out *out);

/* host/region.c */
void mpix_ep_regions_free(mpix_ep *ep);
/* The region of MPIX_Ep_alloc that [p, p + bytes) lies in, or NULL. */
const mpix_ep_region *mpix_ep_region_of(const mpix_ep *ep, const void *p, size_t bytes);
/* Where it lies in memory that peers map. 1: place filled; 0: nowhere. */
int mpix_ep_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, mpix_ep_place *place);
/* A place in the table of regions: makes room for one more, NO_MEM; then the first that is free on
 * all ranks, collective, ends in agreement. */
int mpix_ep_regions_grow(mpix_ep *ep);
int mpix_ep_regions_place(mpix_ep *ep, int *place);
void mpix_ep_regions_set(mpix_ep *ep, int place, const mpix_ep_region *region);
/* Bytes from the first of `rows` rows to the end of the last, SIZE_MAX if that is more than can be,
 * or there are none: numbers may be a peer's. */
size_t mpix_ep_extent(uint64_t rows, uint64_t stride, size_t row);
/* Address here of a place of a peer; checks that bytes from it lie in the peer's
 * window. NULL: they do not. */
void *mpix_ep_resolve(mpix_ep *ep, int peer, const mpix_ep_place *place, size_t bytes);

/* host/engine.c */
int mpix_ep_engine_init(mpix_ep *ep);
void mpix_ep_engine_free(mpix_ep *ep);
/* The start of a call on a live handle: makes one. Returns an MPI code, raised. */
int mpix_ep_call_begin(struct mpix_ep_handle *handle, int type, mpix_ep_step *step,
                       mpix_ep_call **call);
/* Records the calling thread's error as the call's, unless it has one (a REMOTE one gives way
 * to an own one). */
void mpix_ep_call_fail(mpix_ep_call *call, int kind);
const char *mpix_ep_call_name(const mpix_ep_call *call); /* "route", ... */
/* The rest of a public call: hands the call to the engine and, if blocking, waits until it is
 * complete. The caller's own errors (call->kind) make it an empty, failed batch; the nonblocking
 * form returns them at once. Raises, returns a code. */
int mpix_ep_call_submit(mpix_ep_call *call, MPIX_Xfer *xfer, int blocking);
/* Whether the call may start: the earlier calls of its handle that it depends on are complete. */
int mpix_ep_call_ready(mpix_ep_call *call);
void mpix_ep_peers_reset(mpix_ep_call *call);
/* Takes a staging bank of at least bytes, committed. 1: have it; 0: not yet; or the call has failed
 * with NO_MEM (also 1). */
int mpix_ep_bank_take(mpix_ep_call *call, size_t bytes);
void mpix_ep_bank_give(mpix_ep_call *call);
/* Ends all calls of a failed context. Called with the lock held. */
void mpix_ep_fail(mpix_ep *ep, int kind);
/* What collectives look at while they wait (boot.h): progress, failures of peers; kind:
 * fails the context. */
int mpix_ep_look(void *ep, int kind);
/* 0, or the kind of the failure, which becomes this thread's error. */
int mpix_ep_alive(mpix_ep *ep);
int mpix_ep_drain(mpix_ep *ep); /* until nothing is in flight, bounded by the time limit; kind
                                 * of failure or 0 */

/* host/words.c: the control window */
mpix_ep_words *mpix_ep_my_words(mpix_ep_call *call, int peer);   /* written by peer, read here */
mpix_ep_words *mpix_ep_peer_words(mpix_ep_call *call, int peer); /* written here, read by peer */
mpix_ep_offer *mpix_ep_my_offer(mpix_ep_call *call, int peer);
mpix_ep_offer *mpix_ep_peer_offer(mpix_ep_call *call, int peer);
mpix_ep_status *mpix_ep_my_status(mpix_ep_call *call, int peer);
mpix_ep_status *mpix_ep_peer_status(mpix_ep_call *call, int peer);
mpix_ep_counts *mpix_ep_my_counts(mpix_ep_call *call, int peer);
mpix_ep_counts *mpix_ep_peer_counts(mpix_ep_call *call, int peer);
mpix_ep_bases *mpix_ep_my_bases(mpix_ep_call *call, int peer); /* only if places are answered */
mpix_ep_bases *mpix_ep_peer_bases(mpix_ep_call *call, int peer);
/* Publishes a part of the block for peer: bytes at `at`, then the call's epoch in *word. */
void mpix_ep_publish(mpix_ep_call *call, int peer, void *at, size_t bytes, _Atomic uint64_t *word);
mpix_doorbell *mpix_ep_bell(mpix_ep *ep);
enum { MPIX_EP_MAPPED = 1, MPIX_EP_REMOTE = 2, MPIX_EP_ALL = 3 }; /* which peers */
int mpix_ep_is_remote(const mpix_ep *ep, int peer);
/* Writes offer to every rank's place for this call (own included) and publishes it; proxied peers
 * get their own place for X. */
void mpix_ep_offer_send(mpix_ep_call *call, const mpix_ep_offer *offer);
/* Fills ep->targets from the offers; rows that lie nowhere in the peer's window make
 * the call fail. */
void mpix_ep_targets_fill(mpix_ep_call *call, size_t x_bytes, size_t scale_bytes,
                          size_t record_bytes, size_t slot_bytes);
/* Fails the call if an offer's hidden, dtype or scales differ from this rank's; name: of x. */
void mpix_ep_offers_compare(mpix_ep_call *call, int64_t hidden, const MPIX_Ep_rows *x,
                            const char *name, int wire);
/* A place in this call's staging bank. */
mpix_ep_place mpix_ep_stage_place(mpix_ep_call *call, size_t off, size_t stride);
char *mpix_ep_stage_at(mpix_ep_call *call, size_t off);
/* The start of dispatch and combine: waits for the handle's earlier calls and, through make, for a
 * staging bank (0: none yet), then sends the offer that make filled, or a failed one. 1: sent. */
int mpix_ep_offer_start(mpix_ep_call *call, int *banks_open,
                        int (*make)(mpix_ep_call *call, mpix_ep_offer *offer));
/* Notes that a peer's part has come, with its status; a failed one makes the call
 * fail with REMOTE. */
void mpix_ep_peer_seen(mpix_ep_call *call, int peer, int32_t status, int64_t *wait_ns);
/* Notes the offers that have come; 1: all. Failed ones make the call fail with REMOTE. wait_ns:
 * where waiting is counted, or NULL. */
int mpix_ep_offers_seen(mpix_ep_call *call, int64_t *wait_ns);
/* Tells the ranks of `which` that this call's part for them is complete, with the
 * call's own status. */
void mpix_ep_signal(mpix_ep_call *call, int which);
int mpix_ep_signalled(mpix_ep_call *call, int peer); /* all lanes of a peer have reached the call's
                                                      * epoch */
/* Notes the signals of `which` that have come; 1: all. Others do not count. */
int mpix_ep_signals_seen(mpix_ep_call *call, int which, int64_t *wait_ns);

int64_t mpix_ep_mapped_rows(const mpix_ep_call *call);  /* rows this rank receives through mapped
                                                         * peers */
int64_t mpix_ep_combine_rows(const mpix_ep_call *call); /* rows that the last dispatch left in the
                                                         * caller's buffer */

/* What a step returns. */
enum { MPIX_EP_STEP_WAITING, MPIX_EP_STEP_COMPLETE, MPIX_EP_STEP_WORKED };

/* The state machines. *banks_open: no earlier call still has to take its staging bank; cleared by a
 * call that has not. Banks are thus taken in the order of the calls on every rank, and the earliest
 * incomplete call always gets one. */
int mpix_ep_route_step(mpix_ep_call *call, int *banks_open);
void mpix_ep_route_sends_fill(mpix_ep_call *call); /* the outputs of route that this rank knows by
                                                    * itself */
/* Dispatch: what is counted of the rows received. */
void mpix_ep_received_fill(mpix_ep_call *call, const int64_t *recv_rank, const int64_t *recv_expert,
                           const int64_t *offset);
int mpix_ep_converts(const mpix_ep_call *call); /* dispatch: rows change their type on the way */
/* Token t's row and scales as they travel. Where a call does not convert they are the input's. */
void mpix_ep_token_convert(const mpix_ep_call *call, int64_t t, void *row, void *scales);
int mpix_ep_dispatch_step(mpix_ep_call *call, int *banks_open);
int mpix_ep_combine_step(mpix_ep_call *call, int *banks_open);

/* create.c: takes a context down without anything collective. */
void mpix_ep_destroy(mpix_ep *ep, int abandoned);
#endif
