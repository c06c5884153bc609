/*
 * ucx.h - the state of the transport ucx, shared by its files: ucx.c opens and connects, ucx_mem.c
 * registers, ucx_move.c posts and polls, ucx_arrive.c takes in messages.
 *
 * libucp (UCX 1.12 or later) carries puts and gets over whatever it finds between two processes:
 * RDMA devices, TCP, shared memory. It does not say in which order a target sees them, so a word
 * goes only when a flush of the endpoint has shown that the writes before it are there; and it goes
 * as an active message, which the target's turn stores. Short writes go the same way, in order with
 * the words, and need no flush; so do all writes to peers that only TCP reaches, where libucp would
 * copy puts into messages of its own (it sends ours from where they lie) and wait for answers. Over
 * TCP the target's processor takes part in puts, gets and flushes too: each rank's proxy must run
 * all the time (caps.target_works).
 *
 * Messages of one fragment arrive in the order of sending. Each carries a number, and one that is
 * out of turn breaks the connection. A peer's end is told by libucp's endpoint: TCP resets, and its
 * keep-alive has half of net_timeout. A peer that closes says so first, so that its reset is no
 * failure.
 */
#ifndef MPIX_TRANSPORT_UCX_H
#define MPIX_TRANSPORT_UCX_H
#include <ucp/api/ucp.h>

#include "base/log.h"
#include "mem/guard.h"
#include "transport/ucx/module.h"

enum {
    UCX_DEPTH = 256,          /* operations that may be incomplete per lane; a power of two */
    UCX_SHORT = 512,          /* longest write that travels as a message: one fragment over every
                               * transport of libucp */
    UCX_LONG = 256 << 10,     /* the same to peers that only TCP reaches, if segments
                               * are long enough */
    UCX_SEGMENT_LEAST = 4096, /* of TCP: libucp's message with a worker's address fits */
    UCX_SHM_LEAST = 1 << 20,  /* free in /dev/shm: with less an error names it */
    UCX_HEADS = 1024,         /* of a segment: for libucp's headers, ours and UCX_PAD */
    UCX_PAD = 64,             /* ucx_move.c */
    UCX_FLUSHES = 8,          /* under way per lane */
    UCX_ROUNDS = 16,          /* of progress in a poll, at most */
    UCX_CLOSE_NS = 50000000   /* for the messages that announce the end; nobody is waited for */
};

#define UCX_SEGMENT "260k" /* UCX_LONG and heads */

/* ids of active messages */
enum { UCX_AM_STORE = 7, UCX_AM_BYE, UCX_AM_REFUSED, UCX_AM_READ, UCX_AM_DATA };

/* What a message is: a word, or a write. seq: of all messages on this lane, in order. Of a long
 * write it is the beginning of the data. */
typedef struct ucx_header {
    uint32_t rank, seq;
    uint32_t lane, word;  /* word: value is stored, else the data are copied */
    uint64_t addr, value; /* long write: bytes before what is written */
} ucx_header;

/* A read of memory that its owner may have unmapped, to a peer that only TCP reaches; and its
 * answer, for the same operation: bytes from `off` on, or a failure. */
typedef struct ucx_read {
    uint32_t rank, lane;
    uint64_t number, addr, len, off;
    uint32_t failed, pad;
} ucx_read;

enum { UCX_HELD = 1, UCX_ISSUED, UCX_READING };

typedef struct ucx_op {
    mpix_net_op op;
    ucx_header header;     /* of a message: libucp may read it until the message is complete */
    ucx_read read;         /* the same of a read; off: bytes that are here */
    ucp_dt_iov_t parts[3]; /* of a long write */
    int state;
    uint64_t need; /* a message goes when the lane's operations before this number are flushed */
} ucx_op;

/*
 * Numbers of operations: [done, head) are posted and not reported; those below `flushed` are
 * complete, those below `issued` are with libucp without a gap (others beyond a held message may be
 * too). `puts`: after the last one that is no message.
 */
typedef struct ucx_lane {
    ucx_op *ring; /* [UCX_DEPTH] */
    struct ucx_peer *peer;
    int index, active;
    uint64_t head, done, flushed, issued, puts, covered; /* covered: by flushes that have begun */
    uint32_t seq_out, seq_in;
    int nflushes; /* under way */
    int reading;  /* operations that await data by message */
} ucx_lane;

typedef struct ucx_peer {
    struct ucx_net *net;
    int rank;
    ucp_ep_h ep;
    uint64_t message;    /* longest write that travels as a message */
    int tcp;             /* it is reached by TCP alone */
    ucx_lane *lanes;     /* NULL: not wanted */
    ucs_status_t broken; /* UCS_OK: not */
    int told, bye;       /* bye: it has closed its side, and what breaks now is no failure */
    char text[96];
} ucx_peer;

/* A flush under way: which operations are complete with it. */
typedef struct ucx_flush {
    ucx_lane *lane;
    uint64_t upto;
    struct ucx_flush *next; /* in the list of free ones */
} ucx_flush;

/* Registered memory, by its beginning. It may overlap: reach is the end of what reaches furthest
 * among this one and those before. */
typedef struct ucx_range {
    const mpix_net_mem *mem;
    uint64_t reach;
} ucx_range;

/* Bytes of a TCP segment that this process sends and takes, 0: not known. The keys are
 * ucp_config_modify's; NULL: the user has chosen, or the version does not know them. */
typedef struct ucx_segments {
    uint64_t tx, rx;
    const char *tx_key, *rx_key;
} ucx_segments;

typedef struct ucx_net {
    mpix_net net;
    const mpix_boot *boot;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    ucx_peer *peers;   /* [size] */
    ucx_lane **active; /* lanes with operations that are not complete */
    int nlanes, nactive, fd;
    ucx_segments segments;
    int enlarged;      /* those of TCP are ours */
    int closing, open; /* open: requests of the end under way */
    uint32_t rank;
    int broken; /* peers that broke and were not told of */
    int stored; /* messages were taken in since it was told */
    ucx_flush *flushes, *free_flush;
    ucx_range *mems; /* [nmems] */
    size_t nmems;
    mpix_guard *guard; /* NULL: no memory of the program's is registered */
} ucx_net;

struct mpix_net_mem {
    char *base;
    uint64_t bytes;
    ucp_mem_h memh; /* NULL: of no bytes */
    int foreign;
};

struct mpix_net_rmem {
    ucp_rkey_h rkey;
    uint64_t addr, bytes;
    int foreign;
};

typedef struct ucx_key {
    uint64_t addr, bytes;
    uint32_t len, foreign;
    unsigned char packed[MPIX_UCX_KEY_BYTES - 24];
} ucx_key;

typedef struct ucx_blob {
    uint32_t len, tx, rx; /* tx, rx: ucx_segments */
    unsigned char address[MPIX_UCX_ADDRESS_BYTES - 12];
} ucx_blob;

extern const mpix_ucx_host *ucx_host;

void ucx_segments_read(ucx_segments *segments);
ucs_status_t ucx_segments_enlarge(ucx_segments *segments, ucp_config_t *config);
int ucx_post(mpix_net *net, const mpix_net_op *ops, int n);
int ucx_poll(mpix_net *net, mpix_net_done *done, int max);
int ucx_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max);
int ucx_arm(mpix_net *net, int *fd);
void ucx_ack(mpix_net *net);
void ucx_break(ucx_peer *peer, ucs_status_t status, const char *what);
/* ---- ucx_move.c: of a request to libucp ------------------------------------------------------ */
void ucx_sent(void *request, ucs_status_t status, void *arg); /* its end; arg: the peer */
void ucx_begun(ucx_peer *peer, ucs_status_ptr_t result, const char *what);
static inline ucx_op *ucx_lane_op(const ucx_lane *lane, uint64_t number) {
    return &lane->ring[number % UCX_DEPTH];
}
/* ---- ucx.c ----------------------------------------------------------------------------------- */
int ucx_failed(int kind, ucs_status_t status, const char *what);
/* ---- ucx_mem.c ------------------------------------------------------------------------------- */
void ucx_mem_dereg(mpix_net *base, mpix_net_mem *mem);
int ucx_mem_reg(mpix_net *base, void *start, size_t bytes, mpix_net_mem **out);
void ucx_mem_foreign(mpix_net *base, mpix_net_mem *mem);
void ucx_mem_key(mpix_net *base, const mpix_net_mem *mem, void *out);
int ucx_rmem_open(mpix_net *base, int peer, const void *in, mpix_net_rmem **out);
void ucx_rmem_close(mpix_net *base, mpix_net_rmem *rmem);
/* ---- ucx_arrive.c ---------------------------------------------------------------------------- */
ucs_status_t ucx_store(void *arg, const void *header, size_t header_length, void *data,
                       size_t length, const ucp_am_recv_param_t *param);
/* What came by UCX_AM_REFUSED, UCX_AM_READ and UCX_AM_DATA. */
ucs_status_t ucx_refused(void *arg, const void *header, size_t header_length, void *data,
                         size_t length, const ucp_am_recv_param_t *param);
ucs_status_t ucx_asked(void *arg, const void *header, size_t header_length, void *data,
                       size_t length, const ucp_am_recv_param_t *param);
ucs_status_t ucx_data(void *arg, const void *header, size_t header_length, void *data,
                      size_t length, const ucp_am_recv_param_t *param);
#endif
