/*
 * chaos.h - the state of the transport chaos, shared by its two files: chaos.c opens it over
 * another transport and hands memory through; chaos_move.c holds operations back and lets them go.
 *
 * What it may do is what a network may do that keeps net.h's contract and nothing more:
 *   - an operation reads its source at any time until it is reported as complete (here: late, when
 *     it is let go), so a buffer that is reused too early shows;
 *   - a write lands in pieces, in any order, at any time between post and completion; a counted
 *     write's arrival is told after all of it has landed (its last piece carries the counter and
 *     goes when the others are complete);
 *   - with reorder=yes operations of a lane land in any order, and then the net says that it is
 *     not ordered; without, those of one lane land in the order of posting and those of
 *     different lanes in any;
 *   - completions are told in the order of posting, arrivals in any order, both late;
 *   - an operation fails: what was posted before it completes, of itself a part may have landed,
 *     what comes after it on the lane never does.
 *
 * All choices are a hash of the seed, this rank, the lane and the operation's number on it, so they
 * do not depend on time; with chaos_delay_us=0 what is held back is held for a number of polls, and
 * the order is the same in each run that posts and polls alike.
 */
#ifndef MPIX_TRANSPORT_CHAOS_H
#define MPIX_TRANSPORT_CHAOS_H
#include "transport/net.h"

enum {
    CHAOS_DEPTH = 128,   /* operations that may be incomplete per lane */
    CHAOS_PIECES = 8,    /* of a write, at most */
    CHAOS_TURNS = 4,     /* polls for which something is held back, at most */
    CHAOS_FLIGHT = 1024, /* pieces of a lane that the inner net has; CHAOS_DEPTH * CHAOS_PIECES */
    CHAOS_ARRIVALS = 256 /* held back */
};

typedef struct chaos_op {
    mpix_net_op op;
    uint64_t cut[CHAOS_PIECES + 1]; /* piece i is [cut[i], cut[i + 1]) of the write */
    uint64_t hash, number;          /* number: of all operations of the net */
    uint64_t ready_poll, ready_ns;  /* not let go before */
    uint64_t told_poll, told_ns;    /* not reported before, once complete */
    uint8_t pieces, posted, complete;
    uint8_t order[CHAOS_PIECES]; /* in which the pieces go */
    uint8_t doomed;
} chaos_op;

/* Which piece of which operation the inner net has; it reports them oldest first. */
typedef struct chaos_lane {
    chaos_op *ring; /* [CHAOS_DEPTH]: [done, head) are incomplete for the caller */
    uint64_t head, done;
    uint64_t open;    /* operations before it are with the inner net in full */
    uint32_t *flight; /* [CHAOS_FLIGHT]: operation's number in the ring */
    uint64_t flight_head, flight_tail;
    int broken, told; /* broken: the kind of the failure that ended the lane */
    char text[128];
} chaos_lane;

typedef struct chaos_arrival {
    mpix_net_arrival arrival;
    uint64_t ready_poll, ready_ns;
} chaos_arrival;

typedef struct chaos_net {
    mpix_net net;
    mpix_net_ops ops; /* chaos's, with the inner net's sizes of blobs */
    mpix_net *inner;
    mpix_params params; /* with the inner transport's name */
    int size, rank;
    int reorder, pieces, chosen; /* chosen: this rank is one that fails and stalls */
    uint64_t seed, delay_ns;
    chaos_lane *lanes; /* [size][lanes] */
    int held;          /* operations that the caller has posted and not got back */
    chaos_arrival arrivals[CHAOS_ARRIVALS];
    int narrivals;
    uint64_t nops, narrived, polls, now; /* operations and arrivals so far */
    int armed;                           /* the caller is about to sleep: what is complete
                                          * is told at once */
    uint64_t stall_end;                  /* 0: no stall, UINT64_MAX: for good */
} chaos_net;

int chaos_post(mpix_net *net, const mpix_net_op *ops, int n);
int chaos_poll(mpix_net *net, mpix_net_done *done, int max);
int chaos_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max);
int chaos_arm(mpix_net *net, int *fd);
void chaos_ack(mpix_net *net);
#endif
