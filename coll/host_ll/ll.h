/*
 * ll.h - the low-latency mode (MPIX_EP_LL): fixed banks, one way.
 *
 * Every rank has, for each handle, `depth` banks for dispatch and as many for combine. A bank
 * has a fixed place for each source, so a rank writes without asking what the others send: the
 * batch says it itself. Bank of a call: its epoch modulo depth. The same bytes, words and epochs
 * serve mapped peers (written in place), proxied ones (one message, one signal) and kernels. Epochs
 * are counted per handle: on a device handles run in any order, and graphs replay.
 *
 *   batch    head | block flags (mapped only) | records | scales | rows: n rows, all areas at
 *            multiples of 64 bytes
 *   record   dispatch: token, local expert of each choice or -1, weights if the head says so;
 *            combine: how many of the token's rows are in the sum, slot values if the head says so
 *
 * Publication. Mapped: head (but its epoch) and records are stored, then head.epoch with release;
 * then rows, and after each block of MPIX_EP_LL_BLOCK rows (a kernel: of one row) that block's flag
 * with release. A flag or a head counts if it holds exactly this epoch's mark.
 *
 * Marks. Where flags and heads lie depends on the numbers of rows, so the place of one may hold
 * anything of an older batch: a record, which begins with small numbers, as epochs are (a handle
 * that was routed anew took a record for a head), or a row. A mark is the epoch times an odd
 * constant, its top bit left out: different for different epochs below 2^63, no small number, and a
 * word of a row by a chance of one in 2^63.
 *
 * Proxied: the batch is one put, and the word `arrived` of the bank in the control window is its
 * signal; no flags. A call that has failed here before it sent anything sends no batch: its error
 * kind is in the top byte of `arrived`, for every peer.
 *
 * Right to write. Nobody grants anything: a bank's place is free for epoch e when its reader has
 * said `taken` >= e - depth. That word lies in the writer's control window, one for each
 * (handle, peer, type, bank), written when the reader has copied or summed what it wanted,
 * whether its own call succeeds or not. With depth >= 1 calls in flight the sender thus never
 * waits in the steady state.
 *
 * Direct. In SLOTS a row's final place is known to its sender. A receiver whose output peers can
 * map offers it (`offer`, in the sender's control window) when its call starts. A sender that sees
 * the offer of this epoch writes the next block there instead of in the bank, and says so in the
 * block's flag; one that does not see it yet does not wait. An offer is used only by the sender's
 * call of the same epoch, and the receiver's call is complete only when all its blocks are here;
 * the slot is written again for e + depth, after the receiver's own call e is complete. In combine,
 * SLOTS rows that are sent as they are and that peers can map are not written at all: the head says
 * where they lie (PULL), and the call is complete when their readers have said `taken`. EXPERT rows
 * that peers can map are not either where there are many: the records then have the numbers of a
 * token's rows and their weights behind the slot values, and the owner makes what the experts' rank
 * would have sent.
 *
 * Why nothing is overwritten before it was read: the batch of e in a place is written after `taken`
 * e - depth was seen, and that word was written after the batch e - depth was read for the last
 * time; so a flag of e - depth can't be confused either. A counter of the counted signals carries
 * one batch at a time for the same reason: `taken` e shows that `arrived` e was seen, and a batch
 * e + depth shows that `taken` e was seen.
 *
 * No deadlock: a call waits for `taken` of an earlier call of its handle, and for batches of its
 * own epoch. Calls are started in the same order on all ranks; take the earliest that is incomplete
 * anywhere: what it waits for comes from calls that are complete, or from the same call elsewhere,
 * which writes its batches without waiting for this rank's.
 *
 * What comes back. A batch of dispatch also says where the answer goes (`reply`, a place in the
 * sender's combine bank), so a token comes back once from each rank, in the order in which it went
 * there, and combine's banks hold max_tokens * min(topk, ranks) rows.
 */
#ifndef MPIX_COLL_EP_LL_H
#define MPIX_COLL_EP_LL_H
#include "coll/ep.h"
#include "coll/record.h"

/* Where the areas of a batch begin, from its head. */
typedef struct mpix_ep_ll_shape {
    size_t record, scales, row; /* bytes of each, scales and rows at this pitch */
    size_t flags_at, records_at, scales_at, rows_at, bytes;
} mpix_ep_ll_shape;

/* A handle's banks with proxied peers: registered when it is first used, kept until the context
 * ends (a device answers until then). */
typedef struct mpix_ep_ll_store {
    mpix_proxy_mem *mem, *tx_mem; /* of its banks, and of what is sent */
    mpix_proxy_rmem **rmem;       /* [ranks] */
    char *tx;                     /* dispatch's batches, then combine's; used by one call of a kind
                                   * after the other */
} mpix_ep_ll_store;

/* Of a context. Sizes are equal on all ranks, except tx. */
typedef struct mpix_ep_ll {
    size_t region;         /* a source's place in a dispatch bank */
    size_t bank[2], at[2]; /* bytes of a bank, and where the first lies in a store; by
                            * dispatch, combine */
    size_t store_bytes;
    size_t tx_bytes[2];
    size_t committed;
    mpix_row_term *sums;      /* [max_topk + 1] terms of the token's owner */
    mpix_ep_ll_store *stores; /* [max_handles], NULL without proxied peers */
    char *parts;              /* combine: sums of a token's rows at each of its ranks, made here
                               * instead of there; a place has mpix_ep_up64(max_row_bytes) */
} mpix_ep_ll;

/* Of a handle: what dispatch has learnt about the routing that is there. */
typedef struct mpix_ep_ll_handle {
    int valid;
    uint64_t *answer; /* [ranks] where each rank's answer goes in this rank's
                       * combine banks */
    int64_t *n;       /* [ranks] tokens from each source */
    uint64_t *reply;  /* [ranks] */
    int64_t *first;   /* [ranks + 1] sums of n */
    int width;
    int32_t *rows; /* EXPERT: [first[ranks]][width] the row of each choice
                    * here, -1: none */
    size_t rows_room;
    int64_t total;                 /* rows of the layout */
    int64_t *offset, *recv_expert; /* [local experts (+ 1)] */
    int64_t *recv_rank;            /* [ranks] rows of the layout */
    int buffer;                    /* region of MPIX_Ep_combine_buffer + 1, 0: none */
    size_t buffer_pitch;
} mpix_ep_ll_handle;

/* Of a call, one per peer. */
typedef struct mpix_ep_ll_part {
    int64_t n, done;     /* rows of the peer's batch (-1: its head is not here), and
                          * dealt with so far */
    int64_t total, sent; /* rows of ours for it, and written so far */
    char *to;            /* where ours goes: the peer's bank, or the send buffer; NULL:
                          * nothing is sent */
    const char *from;    /* the peer's batch */
    mpix_ep_ll_shape out, in;
    char *direct, *direct_scales; /* dispatch: the peer's output, once it is known; from the
                                   * next block on */
    uint64_t direct_stride, direct_scale_stride;
    int64_t direct_rows;
    int direct_block;                     /* this block goes there */
    const char *pulled;                   /* combine: its rows are read where they lie */
    uint32_t pulled_stride, flags, exist; /* exist: rows there */
} mpix_ep_ll_part;

static inline const mpix_ep_ll_head *mpix_ep_ll_head_of(const mpix_ep_ll_part *part) {
    return &((const mpix_ep_ll_batch *)(const void *)part->from)->head;
}

static inline int mpix_ep_ll_is_expert(const mpix_ep_call *call) {
    return call->ep->config.layout == MPIX_EP_EXPERT;
}

/* The i-th record of the peer's batch of dispatch. */
static inline const void *mpix_ep_ll_record_of(const mpix_ep_ll_part *part, int64_t i) {
    return part->from + part->in.records_at + (size_t)i * part->in.record;
}

static inline mpix_ep_ll_part *mpix_ep_ll_parts(const mpix_ep_call *call) { return call->parts; }
static inline size_t mpix_ep_up64(size_t n) { return (n + 63) & ~(size_t)63; }

/* host_ll/context.c: sizes, creation, stores, handles */
/* a batch of n rows of combine at most */
size_t mpix_ep_ll_answer_bytes(const MPIX_Ep_config *config, size_t n);
void mpix_ep_ll_sizes(const MPIX_Ep_config *config, int ranks, int remote_peers, mpix_ep_ll *ll);
void mpix_ep_ll_ctl_layout(mpix_ep_ctl_layout *layout, int ranks, int depth, int max_handles);
/* What the table of paths has. */
int mpix_ep_ll_window_size(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                           int ranks_per_host, MPI_Count *bytes);
int mpix_ep_ll_layout(mpix_ep *ep, int remote_peers);
void mpix_ep_ll_free(mpix_ep *ep);
int mpix_ep_ll_handle_create(struct mpix_ep_handle *handle);
void mpix_ep_ll_handle_free(struct mpix_ep_handle *handle, int with_context);
int mpix_ep_ll_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                     const MPIX_Ep_counts *counts, const mpix_ep_form *form);
int mpix_ep_ll_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                        const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form);
int mpix_ep_ll_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                       const MPIX_Ep_combine_out *out, const mpix_ep_form *form);
int mpix_ep_ll_combine_buffer(struct mpix_ep_handle *handle, MPIX_Ep_rows *rows);

/* host_ll/batch.c: banks, batches, words */
mpix_ep_ll_shape mpix_ep_ll_shape_of(int64_t n, size_t record, size_t scales, size_t row,
                                     int flags);
/* This rank's bank of the call; peer's (mapped). */
char *mpix_ep_ll_bank(const mpix_ep_call *call, int peer);
/* The start of a call: 1 when the places of all peers are free and earlier calls let it go on. */
int mpix_ep_ll_start(mpix_ep_call *call);
/* Writes a batch's head, and publishes it to mapped peers (the records are written). */
void mpix_ep_ll_head_send(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head);
void mpix_ep_ll_offer_send(mpix_ep_call *call, const mpix_ep_ll_offer *offer, int peer);
const mpix_ep_ll_offer *mpix_ep_ll_offer_seen(mpix_ep_call *call, int peer); /* NULL: not yet */
int mpix_ep_ll_streams(const mpix_ep *ep, size_t bytes); /* whether so many bytes for peers bypass
                                                          * the caches */
void mpix_ep_ll_row_sent(mpix_ep_call *call, int peer);  /* one more row is written; publishes full
                                                          * blocks */
void mpix_ep_ll_batches_end(mpix_ep_call *call);         /* all rows are written: doorbells, and the
                                                          * messages for proxied peers */
void mpix_ep_ll_fail_send(mpix_ep_call *call);           /* instead of batches: the call has
                                                          * failed */
/* A peer's head once it is here, NULL before; NULL with *status set if it has failed. */
const mpix_ep_ll_head *mpix_ep_ll_head_seen(mpix_ep_call *call, int peer, int32_t *status);
/* rows of its batch that may be read */
int64_t mpix_ep_ll_rows_seen(const mpix_ep_call *call, int peer);
/* a row that is here lies in the output already */
int mpix_ep_ll_row_direct(const mpix_ep_call *call, int peer, int64_t i);
void mpix_ep_ll_taken(mpix_ep_call *call, int peer); /* its place is free again */
int mpix_ep_ll_peer_took(mpix_ep_call *call, int peer, uint64_t epoch);
/* Differences between this rank's batch and a peer's make the call fail. */
void mpix_ep_ll_compare(mpix_ep_call *call, int peer, const mpix_ep_ll_head *head, int64_t hidden,
                        int dtype, int scale_kind, const char *name);

/* host_ll/learn.c: what batches of a dispatch tell of the routing */
int mpix_ep_ll_heads_take(mpix_ep_call *call); /* notes the heads that have come; 1: all */
void mpix_ep_ll_routing_learn(mpix_ep_call *call);

/* host_ll/dispatch.c, host_ll/combine.c */
int mpix_ep_ll_dispatch_step(mpix_ep_call *call, int *banks_open);
/* Whether all of the peer's batch is here, though other ranks' heads may not be. 0 for other calls,
 * and before this rank has sent its own. */
int mpix_ep_ll_dispatch_here(const mpix_ep_call *call, int peer);
int mpix_ep_ll_combine_step(mpix_ep_call *call, int *banks_open);
#endif
