/*
 * wire.h - what lies in windows or travels between ranks, for C and for CUDA, and the rules by
 * which the words of control windows are published.
 *
 * Both sides include this header, so it has types and constants alone. Words are atomic in C;
 * kernels read and write them by instructions of their own (common/device.cuh). Sizes and offsets
 * are asserted, since two compilers lay the same structs out.
 *
 * The two kinds of memory differ where their protocols do. A processor finds an offer's epoch in
 * the offer itself, so that one release store publishes it; a kernel's offer is a line of 128 bytes
 * that one thread writes, and its epoch is among the words of the block. A processor has a word for
 * each in-order lane of the network, a kernel one for each of its blocks.
 *
 * Every rank has a control window: a head (a doorbell, and a word in which any peer tells that
 * its context has failed), then for each handle and each peer one block, which only that
 * peer writes. A handle's calls of one type are counted alike on all ranks; the count is the
 * epoch. A block holds
 *
 *   words    the epoch through which something of this peer is complete, one 64-bit word per type
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
#ifndef MPIX_COLL_WIRE_H
#define MPIX_COLL_WIRE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define MPIX_WIRE_WORD uint64_t
#define MPIX_WIRE_LINE alignas(64)
#define MPIX_WIRE_ASSERT(what) static_assert(what, #what)
#else
#define MPIX_WIRE_WORD _Atomic uint64_t
#define MPIX_WIRE_LINE _Alignas(64)
#define MPIX_WIRE_ASSERT(what) _Static_assert(what, #what)
#endif
#define MPIX_WIRE_SIZE(type, bytes) MPIX_WIRE_ASSERT(sizeof(type) == (bytes))
#define MPIX_WIRE_AT(type, field, at) MPIX_WIRE_ASSERT(offsetof(type, field) == (at))

/* ---- limits that layouts depend on ----------------------------------------------------------- */

enum {
    MPIX_EP_MAX_LANES = 16,
    MPIX_EP_MAX_FORWARD_CHUNKS = 16,
    MPIX_CUDA_BLOCK_WORDS = 192 /* blocks of a kernel that signal a peer at most, each by a word of
                                 * its own */
};

/* ---- places ---------------------------------------------------------------------------------- */

/* A place in a window of the rank that wrote it. Host memory: window 0 is the staging window, i + 1
 * the i-th allocation of the context. GPU memory: i is the i-th allocation. */
typedef struct mpix_ep_place {
    uint64_t off, stride;
    int32_t window; /* GPU memory: -1: there is none */
    int32_t set;    /* host memory: 0: there is none */
} mpix_ep_place;
MPIX_WIRE_SIZE(mpix_ep_place, 24);
MPIX_WIRE_AT(mpix_ep_place, window, 16);

enum {
    MPIX_EP_PLACE_X,
    MPIX_EP_PLACE_SCALES,
    MPIX_EP_PLACE_RECORDS, /* dispatch, host memory: what travels beside rows */
    MPIX_EP_PLACE_SLOTS,   /* combine: slot values */
    MPIX_EP_PLACES,
    MPIX_EP_PLACE_WEIGHTS = MPIX_EP_PLACE_RECORDS, /* combine: the rows' weights */
    /* dispatch, of a proxied peer, whose X is a batch in the staging window: its rows go here,
     * `stride` of them */
    MPIX_EP_PLACE_ROWS = MPIX_EP_PLACE_RECORDS
};

/* ---- offers ---------------------------------------------------------------------------------- */

/* flags */
enum {
    MPIX_EP_OFFER_RECORDS = 1,       /* dispatch, GPU memory: records are wanted */
    MPIX_EP_OFFER_WANTS_WEIGHTS = 2, /* dispatch */
    MPIX_EP_OFFER_HAS_WEIGHTS = 4,   /* dispatch, GPU memory: of choices; combine, host memory:
                                      * of rows */
    MPIX_EP_OFFER_HAS_SLOTS = 8,     /* combine: slot values */
    MPIX_EP_OFFER_EXACT = 16,        /* combine, GPU memory, EXPERT: partial sums in float */
    MPIX_EP_OFFER_CHOICES = 32,      /* combine, GPU memory, EXPERT: weights of choices come */
    MPIX_EP_OFFER_WANTS_SLOTS = 64   /* combine, host memory */
};

typedef struct mpix_ep_offer {
    MPIX_WIRE_LINE MPIX_WIRE_WORD epoch;
    int32_t status; /* error kind of the writer: its batch is empty */
    uint32_t flags;
    int32_t dtype, scale_kind;
    uint64_t hidden;
    uint64_t rows;     /* places [0, rows) exist; others are dropped */
    uint64_t pairs;    /* two hops: items that the writer will send the reader to forward */
    int32_t wire, pad; /* two hops, combine: dtype of partial sums; 0: none travel */
    mpix_ep_place place[MPIX_EP_PLACES];
} mpix_ep_offer;
MPIX_WIRE_SIZE(mpix_ep_offer, 192);
MPIX_WIRE_AT(mpix_ep_offer, hidden, 24);
MPIX_WIRE_AT(mpix_ep_offer, place, 56);

typedef struct mpix_cuda_offer {
    int32_t status, flags;
    int16_t dtype, scale_kind;
    int32_t blocks; /* of the call's kernel that signal */
    int64_t hidden, rows;
    mpix_ep_place at[MPIX_EP_PLACES];
} mpix_cuda_offer;
MPIX_WIRE_SIZE(mpix_cuda_offer, 128);
MPIX_WIRE_AT(mpix_cuda_offer, hidden, 16);
MPIX_WIRE_AT(mpix_cuda_offer, at, 32);

/* ---- words of a block ------------------------------------------------------------------------ */

typedef struct mpix_ep_words {
    MPIX_WIRE_LINE MPIX_WIRE_WORD route;
    MPIX_WIRE_WORD bases;
    MPIX_WIRE_WORD dispatch[MPIX_EP_MAX_LANES], combine[MPIX_EP_MAX_LANES];
} mpix_ep_words;
MPIX_WIRE_SIZE(mpix_ep_words, 320);
MPIX_WIRE_AT(mpix_ep_words, dispatch, 16);

typedef struct mpix_cuda_words {
    uint64_t route, ready, rows_offered, pad[5];
    /* by block of the source's kernel */
    uint64_t rows_here[MPIX_CUDA_BLOCK_WORDS], read_done[MPIX_CUDA_BLOCK_WORDS];
} mpix_cuda_words;
MPIX_WIRE_SIZE(mpix_cuda_words, 64 + 16 * MPIX_CUDA_BLOCK_WORDS);
MPIX_WIRE_AT(mpix_cuda_words, rows_here, 64);

/* Words between ranks whose rows are moved by copy engines; see copy_engine.cu. */
typedef struct mpix_cuda_copy_engine_words {
    uint64_t cuts, pulled, pushed, summed, revoked, pad[3], packed[8];
} mpix_cuda_copy_engine_words;
MPIX_WIRE_SIZE(mpix_cuda_copy_engine_words, 128);
MPIX_WIRE_AT(mpix_cuda_copy_engine_words, packed, 64);

typedef struct mpix_ep_status {
    int32_t dispatch, combine;
} mpix_ep_status;
MPIX_WIRE_SIZE(mpix_ep_status, 8);

/* ---- route ----------------------------------------------------------------------------------- */

typedef struct mpix_ep_counts {
    int32_t status, topk;
    int64_t tokens;
    int64_t flat, forwarded; /* two hops: this rank's (token, rank) and (token, host) pairs
                              * between hosts */
    /* Behind it uint32_t: with places answered (host/route.c) rows and tokens for the reader,
     * choices of each of its experts; otherwise [ranks] rows for each rank, [ranks] tokens for each
     * rank, [experts] choices of each expert. */
#ifndef __cplusplus
    uint32_t n[];
#endif
} mpix_ep_counts;
MPIX_WIRE_SIZE(mpix_ep_counts, 32);

/* GPU memory. Behind it uint32_t: [ranks] tokens for each rank, [experts] choices of each expert,
 * and with two hops [hosts] tokens for each host. */
typedef struct mpix_cuda_counts {
    int32_t status, topk;
    int64_t tokens;
} mpix_cuda_counts;
MPIX_WIRE_SIZE(mpix_cuda_counts, 16);

/* The answer: where the reader's rows go at the writer. */
typedef struct mpix_ep_bases {
    int64_t total; /* rows that the writer receives from all */
    int32_t status, pad;
    /* Behind it int64_t: COMPACT: [1] the first row; EXPERT: [experts of the writer] the first row
     * of each. */
#ifndef __cplusplus
    int64_t base[];
#endif
} mpix_ep_bases;
MPIX_WIRE_SIZE(mpix_ep_bases, 16);

/* ---- two hops -------------------------------------------------------------------------------- */

/* Of each peer, for the whole context (host/forward.h). */
typedef struct mpix_ep_forward_words {
    /* by chunk of the ring: number of the chunk there + 1 */
    MPIX_WIRE_LINE MPIX_WIRE_WORD arrived[MPIX_EP_MAX_FORWARD_CHUNKS];
    /* chunks of this rank that the peer has forwarded */
    MPIX_WIRE_WORD credit;
    /* whom the peer waits for, and in which call (host/forward_blame.c) */
    MPIX_WIRE_WORD stuck;
} mpix_ep_forward_words;
MPIX_WIRE_SIZE(mpix_ep_forward_words, 192);
MPIX_WIRE_AT(mpix_ep_forward_words, credit, 128);

/* At the head of a chunk: the call that it belongs to, and its items. */
typedef struct mpix_ep_forward_head {
    uint64_t epoch;
    int32_t index, type;
    int32_t n, weighted; /* combine: the source applies weights */
    char pad[8];
} mpix_ep_forward_head;
MPIX_WIRE_SIZE(mpix_ep_forward_head, 32);

/* ---- low latency (host_ll/ll.h has the protocol) --------------------------------------------- */

enum { MPIX_EP_LL_BLOCK = 16 }; /* rows per flag in host memory */
/* flags of heads */
enum { MPIX_EP_LL_WEIGHTS = 1, MPIX_EP_LL_SLOTS = 2, MPIX_EP_LL_PULL = 4, MPIX_EP_LL_TOKENS = 8 };

/* What a batch says of itself. reply: dispatch: where its answer goes in the sender's combine bank;
 * bytes in host memory, in GPU memory the number of the first row. */
typedef struct mpix_ep_ll_head {
    int32_t status; /* GPU memory; in host memory a failed call sends no batch */
    uint32_t flags;
    uint32_t rows, width; /* rows: in this batch; width: choices of a token */
    int32_t dtype, scale_kind;
    int64_t hidden;
    uint64_t reply;  /* PULL: where the first row is in its window */
    int32_t window;  /* PULL: as mpix_ep_place has it; the rows are not in this batch */
    uint32_t stride; /* PULL */
    int32_t pad;
    uint32_t exist; /* PULL: the first rows, which exist; others were dropped (EXPERT: all that
                     * there are). GPU memory, dispatch: choices of the receiver's experts */
} mpix_ep_ll_head;
MPIX_WIRE_SIZE(mpix_ep_ll_head, 56);
MPIX_WIRE_AT(mpix_ep_ll_head, hidden, 24);
MPIX_WIRE_AT(mpix_ep_ll_head, reply, 32);
MPIX_WIRE_AT(mpix_ep_ll_head, exist, 52);

/* Host memory: where a batch begins. */
typedef struct mpix_ep_ll_batch {
    MPIX_WIRE_LINE MPIX_WIRE_WORD epoch; /* a mark */
    mpix_ep_ll_head head;
} mpix_ep_ll_batch;
MPIX_WIRE_SIZE(mpix_ep_ll_batch, 64);
MPIX_WIRE_AT(mpix_ep_ll_batch, head, 8);
/* GPU memory: bytes of a head in a window, where each four bytes of it have the epoch beside. */
enum { MPIX_CUDA_LL_HEAD = 128 };

/* A flag or an epoch as it lies in a bank. */
#define MPIX_EP_LL_DIRECT (UINT64_C(1) << 63)
static inline uint64_t mpix_ep_ll_mark(uint64_t epoch) {
    return (epoch * UINT64_C(0x9e3779b97f4a7c15)) & ~MPIX_EP_LL_DIRECT;
}

/* Where a receiver's output begins for one source; a flag with MPIX_EP_LL_DIRECT tells that its
 * block lies there. */
typedef struct mpix_ep_ll_offer {
    MPIX_WIRE_LINE MPIX_WIRE_WORD epoch;
    uint64_t rows;                              /* that exist there, others are dropped */
    uint64_t x, x_stride, scales, scale_stride; /* offsets */
    uint32_t x_window, scale_window;
} mpix_ep_ll_offer;
MPIX_WIRE_SIZE(mpix_ep_ll_offer, 64);
#endif
