/*
 * forward.h - two hops: between hosts a row travels once per host, to a rank there that passes it
 * on to its neighbours.
 *
 * Rank s reaches host h through one rank of h, its *forwarder*: the one whose place among h's ranks
 * is s's place among its own host's ranks, modulo their number. Any numbers of ranks per host will
 * do. s is a *source* of its forwarders.
 *
 * Dispatch. s packs each token once per host, with its choices, weights and the rows that they take
 * at their ranks. The forwarder writes those rows where s itself would if it could map the host's
 * ranks: same places, same bytes. A rank's word to its neighbours says that its own rows *and*
 * those that it forwards are there.
 * Combine. s sends each forwarder which rows of each token it wants summed, and its weights. The
 * forwarder sums them (float, double for F64; ranks ascending, choices ascending) from where the
 * experts' ranks offer them, rounds to the wire's dtype, and puts the sums into the place that s
 * has offered it. s adds: its own host's rows, then the other hosts' sums, hosts ascending.
 *
 * Rings and credit. Both come through one ring per (source, forwarder) in the forwarder's staging
 * window, `chunks` chunks long, used by all calls of the context in the order in which s packs
 * them. A chunk has a head that names its call, a word that says which chunk is there, and is given
 * back by credit: a word in s's control window that counts chunks passed on. Credit is given for
 * half a ring at a time (G = (chunks + 1) / 2).
 *
 * Nobody waits in a circle. A chunk of call c at the head of its ring is passed on by c's step at
 * the forwarder, as soon as that has seen all offers of c: there it needs no other call, no credit,
 * none of the chunks in which it packs itself, and not its turn among the words of its handle. s
 * packed it after it had seen all offers of c, so those have been sent, and the forwarder sees
 * them. (Forwarding only in a call's turn among the calls of its handle would deadlock: s packs
 * h1:1, h1:2, h2:1 and s' packs h2:1, h2:2, h1:1; then h1:2 waits for h1:1, that for a chunk of s'
 * behind h2:2, which waits for h2:1, for a chunk of s behind h1:2.) Partial sums are packed in
 * buffers of their own, which wait for completions alone. So every ring moves, every packing call
 * gets its credit, and a forwarder is done when each source's items are here. tests/model/hops.pml
 * has this, and mutants that lack it.
 *
 * Counters of the counted form, per pair and for the whole context: one per chunk of the ring, free
 * again with its credit; two for credit, in turn. Credit number j is posted when G * j chunks were
 * passed on. The last of them was sent with credit for at least G * j - chunks >= G * (j - 2), so
 * the source has seen credit j - 2, and its counter is free.
 *
 * A rank whose call fails once all offers are here (forward_go) sends nothing but goes on passing
 * on; its word, with its status, tells its forwarders that nothing comes. If an offer was refused,
 * or rows differ between ranks, all ranks know that by themselves and nobody sends.
 */
#ifndef MPIX_COLL_EP_FORWARD_H
#define MPIX_COLL_EP_FORWARD_H
#include "coll/host/remote.h"
#include "coll/record.h"

/* Counters of a handle, before those of offers and batches: two banks of counts, and the places
 * that are answered to them. */
static inline int mpix_ep_remote_route_counters(const mpix_ep *ep) {
    return ep->ht->answered ? 3 : 2;
}

enum { MPIX_EP_FORWARD_COUNTERS = MPIX_EP_MAX_FORWARD_CHUNKS + 2 };

enum { MPIX_EP_FORWARD_HEADER = sizeof(mpix_ep_forward_head) };

typedef struct mpix_ep_forward {
    int chunks;     /* of a ring */
    int *forwarder; /* [hosts] through which this rank reaches the host; -1: its own */
    int *serves;    /* [ranks] number of its ring here, -1: this rank does not
                     * forward for it */
    int nsources;
    uint64_t *ring;  /* [hosts] this rank's ring in the forwarder's staging window */
    uint64_t *sent;  /* [ranks] chunks sent to it */
    uint64_t *taken; /* [ranks] chunks passed on for it */
    int64_t *at;     /* [ranks] items of the next chunk passed on */
    int suspect;     /* of the last look, + 1 */
    uint64_t told;   /* what peers were told last */
    char *out;       /* partial sums on their way */
    size_t out_bytes;
    int nout;
    mpix_ep_chunk *outs; /* [nout] */
    char *rows;          /* [max_topk + 1] rows of partial sums that are not in the wire's dtype */
    size_t row_bytes;
    int *order; /* [max_topk + 1] */
} mpix_ep_forward;

int mpix_ep_forward_create(mpix_ep *ep); /* local; nothing where two hops are never taken */
int mpix_ep_forward_out(mpix_ep *ep);    /* its large memory; local, NO_MEM */
void mpix_ep_forward_free(mpix_ep *ep);
int mpix_ep_forward_plan(mpix_ep_call *call);    /* route, before counts are sent: tokens for
                                                  * each host. NO_MEM */
void mpix_ep_forward_choose(mpix_ep_call *call); /* route, when all counts are here: one hop or
                                                  * two */
/* items of this call for that forwarder */
int64_t mpix_ep_forward_pairs(const mpix_ep_call *call, int peer);
/* All offers are here and checked: what the sources send. go: no rank has refused. */
void mpix_ep_forward_begin(mpix_ep_call *call, int go);
int mpix_ep_forward_served(mpix_ep_call *call); /* 1: all that sources send has been passed on */
void mpix_ep_forward_mark(mpix_ep_call *call);  /* notes which peers the call waits for, for time
                                                 * limits and deaths */
/* host/forward_blame.c: the rank that a call waits for, in the end; missing: those that it waits
 * for itself. -1: nobody can be named. */
int mpix_ep_forward_blame(const mpix_ep_call *call,
                          int (*missing)(const mpix_ep_call *call, int peer));
/* Tells peers whom the first waiting call waits for, once that has lasted from one
 * look to the next. */
void mpix_ep_forward_tell(mpix_ep *ep, int (*missing)(const mpix_ep_call *call, int peer));
/* The rank of a host through which another host's rank reaches it. */
int mpix_ep_forwarder(const mpix_boot *boot, int rank, int host);
/* Whether this rank forwards what source sends to this host. */
int mpix_ep_forward_mine(const mpix_ep_call *call, int source);

/* The call's next chunk from source, NULL: not here. */
const mpix_ep_forward_head *mpix_ep_forward_chunk(mpix_ep_call *call, int source);
/* Items of the chunk, of `bytes` each; what a peer says is bounded by the chunk. */
int mpix_ep_forward_items(const mpix_ep_call *call, const mpix_ep_forward_head *head, size_t bytes);
void mpix_ep_forward_passed(mpix_ep_call *call, int source); /* the chunk is done: credit */

#define MPIX_EP_FORWARD_PIECE (4u << 20) /* bytes that a step packs, passes on or sums */

/* Packs what each token has for other hosts' forwarders, items of bytes each, as far as there is
 * room; write fills one (how: the caller's own). Returns what steps return. */
typedef void mpix_ep_forward_write(mpix_ep_call *call, int64_t t, int host, const void *how,
                                   char *to);
int mpix_ep_forward_pack(mpix_ep_call *call, size_t bytes, mpix_ep_forward_write *write,
                         const void *how);
/* The next host among token t's entries from *i on that is not this rank's and was not met before;
 * *i is left at its first entry. -1: none. */
int mpix_ep_forward_next(const mpix_ep_call *call, int64_t t, int64_t *i);
size_t mpix_ep_forward_record_size(const mpix_ep_call *call);
void mpix_ep_forward_record_write(const mpix_ep_call *call, int64_t t, int host,
                                  const float *weights, char *to);

/* host/forward_dispatch.c; what steps return */
int mpix_ep_forward_dispatch_pack(mpix_ep_call *call);
int mpix_ep_forward_dispatch_serve(mpix_ep_call *call);
/* host/forward_combine.c */
int mpix_ep_forward_wire(const mpix_ep_call *call); /* dtype of partial sums */
/* of a partial sum, with slot values or not */
size_t mpix_ep_forward_sum_size(const mpix_ep_call *call, int slots);
size_t mpix_ep_forward_sum_regions(mpix_ep_call *call, size_t stage);
int mpix_ep_forward_combine_pack(mpix_ep_call *call);
int mpix_ep_forward_combine_serve(mpix_ep_call *call);
int mpix_ep_forward_scratch(mpix_ep_call *call); /* at the start of the public call; NO_MEM */
void mpix_ep_forward_token_sum(mpix_ep_call *call, int64_t t);

/* host/dispatch.c and host/combine.c: where the ranks of this host have their rows */
void mpix_ep_dispatch_targets(mpix_ep_call *call);
void mpix_ep_combine_targets(mpix_ep_call *call);
size_t mpix_ep_record_bytes(const mpix_ep_call *call);
/* Writes it in the form of the layout. */
void mpix_ep_record_write(const mpix_ep_call *call, const mpix_ep_record *record, int rank,
                          int choice, char *to);
size_t mpix_ep_slot_bytes(const mpix_ep_call *call);
#endif
