/*
 * ctl.h - the words that ranks of a context write into each other's control window, and the rules
 * by which they are published.
 *
 * Every rank has a control window: a head (a doorbell, and a word in which any peer tells that
 * its context has failed), then for each handle and each peer one block, which only that
 * peer writes. A handle's calls of one kind are counted alike on all ranks; the count is the
 * epoch. A block holds
 *
 *   words    the epoch through which something of this peer is complete, one 64-bit word per kind
 *            and lane: route (its counts are here), dispatch (its rows are here), combine (mapped
 *            peer: it has read its rows, READ-DONE; proxied peer: its rows are here). One writer,
 *            only growing. A mapped peer has one lane.
 *   offers   per bank (epoch modulo depth): dispatch - READY, the peer grants this rank the
 *            right to write its output; combine - ROWS, the peer says where the experts' rows
 *            lie for this rank to read; between proxied peers it grants a place for them
 *            instead, as READY does.
 *   status   per bank, dispatch and combine: an error kind, written before the word.
 *   counts   two of them (epoch modulo 2): what route exchanges.
 *   bases    what a destination answers to them, if places are answered (host/route.c); one, with a
 *            word of its own.
 *
 * Publication to a mapped peer is: plain stores, then a release store of the epoch, then the
 * doorbell; a reader loads the epoch with acquire first. Streaming stores are not ordered by a
 * release store, so rows->fence() comes before the word. For a proxied peer the block is written in
 * a mirror here and put, and the word is signalled by the proxy (proxy.h). Mirror and counters are
 * free again when the peer has answered to what they carried, which the argument below shows for
 * the banks; a call is complete here only when its puts are.
 *
 * Why no bank is overwritten before it was read. An offer of epoch e replaces that of e - depth,
 * and is written only after the writer's own call e - depth is complete; the reader's word for
 * e - depth, which that completion awaited, is written after the offer was read. (Combine between
 * proxied ranks: the word tells of rows that were sent, and the reader goes on to sum the other's;
 * so it keeps what it needs of the offer before it writes the word.) A status of epoch e is written
 * only after the offer of epoch e by the same peer was seen, hence after the peer completed
 * e - depth, which read the status of e - depth. Counts of epoch e replace those of e - 2: a
 * handle's routes run one at a time, so the writer has completed e - 1, for which every peer's
 * counts of e - 1 were seen, and a peer writes those only after it has completed e - 2. Bases of
 * epoch e are written when the reader's counts of e are here, which it sent when it had completed
 * e - 1, so had read those.
 */
#ifndef MPIX_COLL_EP_CTL_H
#define MPIX_COLL_EP_CTL_H
#include "base/wait.h"
#include <stddef.h>
#include <stdint.h>

/* The beginning of a control window. */
typedef struct mpix_ep_head {
    mpix_doorbell bell;
    _Alignas(64) _Atomic uint64_t failed; /* 0, or what the first peer that failed has told
                                           * (boot.h); written by any peer */
} mpix_ep_head;

/* A place in a window of the rank that wrote it: window 0 is the staging window, i + 1 the i-th
 * allocation of the context. */
typedef struct mpix_ep_place {
    uint64_t off, stride;
    uint32_t window;
    uint32_t set; /* 0: there is none */
} mpix_ep_place;

enum {
    MPIX_EP_PLACE_X,
    MPIX_EP_PLACE_SCALES,
    MPIX_EP_PLACE_RECORDS,
    MPIX_EP_PLACE_SLOTS,
    MPIX_EP_PLACES,
    MPIX_EP_PLACE_ROWS = MPIX_EP_PLACE_RECORDS
}; /* of a proxied peer, whose X is a batch in
    * the staging window: its rows go here,
    * `stride` of them */
/* flags of offers */
enum {
    MPIX_EP_WANTS_WEIGHTS = 1,
    MPIX_EP_HAS_ROW_WEIGHTS = 2,
    MPIX_EP_HAS_SLOTS = 4,
    MPIX_EP_WANTS_SLOTS = 8
};
enum { MPIX_EP_MAX_LANES = 16 };

typedef struct mpix_ep_offer {
    _Alignas(64) _Atomic uint64_t epoch;
    int32_t status; /* error kind of the writer: its batch is empty */
    uint32_t flags;
    int32_t dtype, scale_kind;
    uint64_t hidden;
    uint64_t rows;     /* places [0, rows) exist; others are dropped */
    uint64_t pairs;    /* two hops: items that the writer will send the reader to forward */
    int32_t wire, pad; /* two hops, combine: dtype of partial sums; 0: none travel */
    mpix_ep_place place[MPIX_EP_PLACES]; /* RECORDS in ROWS: the rows' weights */
} mpix_ep_offer;

typedef struct mpix_ep_words {
    _Alignas(64) _Atomic uint64_t route;
    _Atomic uint64_t bases;
    _Atomic uint64_t dispatch[MPIX_EP_MAX_LANES], combine[MPIX_EP_MAX_LANES];
} mpix_ep_words;

typedef struct mpix_ep_status {
    int32_t dispatch, combine;
} mpix_ep_status;

typedef struct mpix_ep_counts {
    int32_t status, topk;
    int64_t tokens;
    int64_t flat, forwarded; /* two hops: this rank's (token, rank) and (token, host) pairs
                              * between hosts */
    /* With places answered (host/route.c): rows and tokens for the reader, choices of each of its
     * experts. Otherwise: */
    uint32_t n[]; /* [ranks] rows for each rank, [ranks] tokens for each rank, [experts] choices
                   * of each expert */
} mpix_ep_counts;

/* The answer: where the reader's rows go at the writer. */
typedef struct mpix_ep_bases {
    int64_t total; /* rows that the writer receives from all */
    int32_t status, pad;
    int64_t base[]; /* COMPACT: [1] the first row; EXPERT: [experts of the writer] the
                     * first row of each */
} mpix_ep_bases;

/* Sizes and offsets, equal on all ranks. */
typedef struct mpix_ep_ctl_layout {
    size_t offers_dispatch, offers_combine, status, counts, counts_bytes, bases, bases_bytes, block,
        handle, handles_at, forward, total;
} mpix_ep_ctl_layout;

/* Two hops: of each peer, for the whole context (host/forward.h). */
enum { MPIX_EP_MAX_FORWARD_CHUNKS = 16 };
typedef struct mpix_ep_forward_words {
    /* by chunk of the ring: number of the chunk there + 1 */
    _Alignas(64) _Atomic uint64_t arrived[MPIX_EP_MAX_FORWARD_CHUNKS];
    /* chunks of this rank that the peer has forwarded */
    _Atomic uint64_t credit;
    /* whom the peer waits for, and in which call (host/forward_blame.c) */
    _Atomic uint64_t stuck;
} mpix_ep_forward_words;

/* answered: most experts of a rank if places are answered, -1: they are not. */
void mpix_ep_ctl_layout_init(mpix_ep_ctl_layout *layout, int ranks, int64_t experts, int depth,
                             int max_handles, int64_t answered);
#endif
