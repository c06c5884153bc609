/*
 * cuda_module.h - what the CUDA module (libmpixep_cuda.so) offers the core: one table of
 * functions, found by dlsym.
 *
 * The module is a library of its own, so that the core links neither libcuda nor libcudart and a
 * build with CUDA runs where there is no GPU. No CUDA type appears here: streams and events are
 * void pointers. Functions return 0 or an error kind (MPIX_ERRK_*) and then describe it in `why`;
 * they log nothing.
 *
 * Memory that ranks share. Each handle has a window in the GPU memory of every rank. For each
 * source s it holds one block that only s writes: words (epochs, each growing, one writer), offers
 * (READY and ROWS, two banks each), counts (two banks); behind the blocks, one record per received
 * row for what travels beside it (token, ids, weights). The rules are those of coll/wire.h; the
 * epochs are counted in device memory. A proxied source writes its block in a window of host
 * memory, from where a warp carries on what has come (mpix_cuda_remote).
 */
#ifndef MPIX_KERNELS_CUDA_MODULE_H
#define MPIX_KERNELS_CUDA_MODULE_H
#include "base/kind.h"
#include "coll/wire.h"

#include <stddef.h>
#include <stdint.h>

enum {
    MPIX_CUDA_ABI = 17,
    MPIX_CUDA_RANKS = 32,        /* ranks of a context at most: one lane of a warp each */
    MPIX_CUDA_ALLOCATIONS = 256, /* allocations of a context at most */
    MPIX_CUDA_WHY = 256,
    MPIX_CUDA_BLOCK_TOKENS = 128, /* tokens per block of the route kernel */
    MPIX_CUDA_CHUNKS = 4096, /* chunks of a context's sources together at most (EXPERT layout) */
    MPIX_CUDA_PIECES = 16,   /* that copy engines may cut a batch into */
    MPIX_CUDA_REMOTE_CHUNKS = 512, /* that a batch for a proxied peer may be cut into */
    MPIX_CUDA_REMOTE_RAILS = 8     /* by which a proxied peer is reached, at most */
};
enum { MPIX_CUDA_ROUTE, MPIX_CUDA_DISPATCH, MPIX_CUDA_COMBINE, MPIX_CUDA_TYPES };
/* What a kernel says about a failure; the core makes the sentence. */
enum {
    MPIX_CUDA_FINE,
    MPIX_CUDA_TIMEOUT,    /* peer */
    MPIX_CUDA_REMOTE,     /* peer, a: its kind */
    MPIX_CUDA_BAD_ID,     /* a: token, b: id */
    MPIX_CUDA_TOPK,       /* peer, a: its, b: ours */
    MPIX_CUDA_ROWS_LIMIT, /* a: rows, b: limit */
    MPIX_CUDA_CAPACITY,   /* a: rows, b: capacity */
    MPIX_CUDA_NOT_ROUTED,
    MPIX_CUDA_HIDDEN,      /* peer, a: its, b: ours */
    MPIX_CUDA_DTYPE,       /* peer, a: its, b: ours */
    MPIX_CUDA_SCALES,      /* peer, a: its, b: ours */
    MPIX_CUDA_WEIGHTS,     /* peer: gave none */
    MPIX_CUDA_SLOTS,       /* peer: gave none */
    MPIX_CUDA_FAILED,      /* an earlier call timed out */
    MPIX_CUDA_STALE,       /* the routing is not the one that the call was made for; a: its tokens,
                            * b: the call's */
    MPIX_CUDA_NO_DISPATCH, /* low latency: nothing has told this rank what it sends back */
    MPIX_CUDA_ANSWERS,     /* low latency: peer, a: tokens that it answers, b: that it was sent */
    MPIX_CUDA_NO_ROWS,     /* low latency: in.x.data is NULL; a: rows that are here */
    MPIX_CUDA_LOST,        /* peer: the proxy can't reach it, a: kind */
    MPIX_CUDA_TWICE        /* a: token, b: id that it has twice */
};
/* A call in one, or its halves (MPIX_Ep_..._begin_enqueue, ..._end_enqueue). */
enum { MPIX_CUDA_WHOLE, MPIX_CUDA_BEGIN, MPIX_CUDA_END };
/* Sums of rows that copy engines brought, piece after piece. */
enum { MPIX_CUDA_STAGED = 1, MPIX_CUDA_STAGED_LAST };
enum { MPIX_CUDA_PATH_AUTO, MPIX_CUDA_PATH_BULK, MPIX_CUDA_PATH_VECTOR };
/* What a context needs: COMPACT with proxied peers is EP | COMPACT | REMOTE, and so on. */
enum {
    MPIX_CUDA_LOAD_EP = 1,
    MPIX_CUDA_LOAD_COMPACT = 2,
    MPIX_CUDA_LOAD_EXPERT = 4,
    MPIX_CUDA_LOAD_LL = 8,
    MPIX_CUDA_LOAD_COPY_ENGINE = 16,
    MPIX_CUDA_LOAD_REMOTE = 32,
    MPIX_CUDA_LOAD_P2P = 64
};
/* Kinds of memory behind a pointer. */
enum {
    MPIX_CUDA_PTR_PAGEABLE,
    MPIX_CUDA_PTR_PINNED,
    MPIX_CUDA_PTR_DEVICE,
    MPIX_CUDA_PTR_OTHER_DEVICE,
    MPIX_CUDA_PTR_MANAGED
};

/* In pinned host memory, one per call; of captured calls, one per handle. code is written last. */
/* taken: a thread of the GPU writes it */
typedef struct mpix_cuda_status {
    int32_t code, kind, peer, taken;
    int64_t a, b;
} mpix_cuda_status;

/* In device memory, one per handle. */
typedef struct mpix_cuda_state {
    uint64_t epoch[MPIX_CUDA_TYPES];
    uint32_t ticket[MPIX_CUDA_TYPES];
    uint32_t item[MPIX_CUDA_TYPES];   /* work taken beyond what each warp begins with */
    uint32_t more[2];                 /* likewise, where a kernel has more than one kind of work */
    uint32_t ended[MPIX_CUDA_TYPES];  /* low latency: blocks, as `ticket` counts those
                                       * that have started */
    int32_t outcome[MPIX_CUDA_TYPES]; /* code of the last call of each type */
    int32_t routed, topk, width;      /* of the last route; routed: it succeeded */
    int32_t err;                      /* lock of status */
    mpix_cuda_status status;          /* of the call that runs */
    int64_t tokens, recv_total;
    uint32_t send[MPIX_CUDA_RANKS], base[MPIX_CUDA_RANKS], recv[MPIX_CUDA_RANKS],
        first[MPIX_CUDA_RANKS];
    /* Two hops (forward.cuh). two_hops: rows take them, alike on all ranks; tokens for each host;
     * tokens of each source for this rank's host. */
    int32_t two_hops, pad0;
    uint32_t hosts[MPIX_CUDA_RANKS], items[MPIX_CUDA_RANKS];
    /* Low latency. recv: rows of each source; base: where each rank's answers begin in this rank's
     * combine banks. */
    uint32_t reply[MPIX_CUDA_RANKS];   /* where this rank's answers begin at each source */
    uint32_t choices[MPIX_CUDA_RANKS]; /* of each rank's experts */
    int64_t limit;                     /* rows of the layout that exist here */
    int32_t learnt;                   /* a dispatch of the routing that is there has told the two */
    uint32_t bank[2];                 /* of the last dispatch and combine: the epoch modulo depth, a
                                       * division that nobody waits for */
    uint64_t waited[MPIX_CUDA_RANKS]; /* by the call that runs, for each rank */
    uint32_t asked; /* EXPERT among proxied peers: tokens whose requests warps have
                     * taken, as `item` */
} mpix_cuda_state;

/*
 * Low latency (ll.cuh has the protocol). A source's block in a window: the words `taken` of both
 * types of call, heads by type and bank, counts of this rank's experts by bank. Behind the blocks,
 * by bank: flags, records and rows of dispatch by (source, place), flags, rows and slot values of
 * combine by answer. All sizes are those of the configuration, so a place needs no batch's shape.
 */
typedef struct mpix_cuda_ll {
    int32_t on, expert, depth, align;
    uint64_t block, counts, counts_bytes; /* of a source's block, and in it */
    /* offsets in a window; bytes: of the window */
    uint64_t flags[2], records, rows, answers, values, bytes;
    uint64_t record, row, answer; /* pitches */
    int64_t most;                 /* answers in a bank */
    uint32_t *sends;              /* device: [experts] this rank's choices of experts of
                                   * the same rank before each */
    uint32_t *claims[2];          /* device, dispatch: [max_tokens], combine:
                                   * [size][max_tokens]: a bit for calls of each parity:
                                   * a row was claimed */
    int32_t *place;               /* device, EXPERT: [size][max_tokens][max_topk] the
                                   * row here of each choice that came, -1: none */
} mpix_cuda_ll;

/*
 * EXPERT layout. A (token, rank) pair has a number at that rank, the row that it would have in
 * COMPACT; by it the rank finds the pair's record (at `records` in its window, written by the
 * source): for each choice its row here or -1, then a weight for each choice (dispatch's), another
 * (combine's), the token's number. A chunk is so many tokens of a source, numbered from its first.
 */
typedef struct mpix_cuda_expert {
    int32_t on, align, chunk, chunks; /* chunk: tokens; chunks: of a source at most */
    int64_t pairs;                    /* that can come here: records */
    uint64_t starts, arrived, freed;  /* offsets in a source's block: uint32[chunks + 1] its pairs
                                       * before each chunk, uint64[chunks] twice */
    uint64_t partial, partial_bytes;  /* combine's partial sums: offset in a window, bytes
                                       * of each source */
    uint64_t values;                  /* combine's slot values: float[tokens][max_topk],
                                       * offset in a window */
    int32_t *row, *first;             /* device: [tokens][max_topk] row at the expert's rank or -1,
                                       * [tokens][size] the lowest at each rank */
    uint8_t *rel;                     /* device: [tokens][max_topk] place among the block's choices
                                       * of the expert */
    uint32_t *blk, *base;             /* device: [blocks][experts], [experts] this rank's first row
                                       * of each expert */
    int64_t *offset;                  /* device: [local_experts + 1] */
    uint32_t *pushed, *used;          /* device: [size][chunks], zero between calls */
} mpix_cuda_expert;
typedef struct mpix_cuda_copy_engine {
    int32_t on, pad;
    uint64_t words, cuts;         /* offsets in a source's block: mpix_cuda_copy_engine_words,
                                   * uint32[2][MPIX_CUDA_PIECES + 1] */
    uint64_t places, place_bytes; /* offset in a window; bytes for each peer: what goes there in
                                   * dispatch, what comes from there in combine */
    uint64_t *signals;            /* device: values of the words that copies carry */
    int64_t *host;                /* pinned: what the host has to know of a routing */
    void *copies;                 /* the module's streams and events */
} mpix_cuda_copy_engine;

/*
 * Proxied peers (remote.cuh has the protocol). window: this rank's, in host memory that the network
 * and the kernels reach: a block for each source, laid out as in the GPU's windows and followed by
 * the words of arrived chunks; a mirror of the block at each peer; then for each peer room for what
 * comes from it, and for what is packed for it.
 */
typedef struct mpix_cuda_remote {
    uint32_t is;        /* a bit for each proxied rank; 0: there are none */
    int32_t lwin, rwin; /* numbers of the window in the queues' tables;
                         * rwin + rank: that rank's */
    int32_t nhosts;
    uint32_t host[MPIX_CUDA_RANKS]; /* the ranks of each host, a bit each */
    /* whose room: of a peer here, of this rank at the peer */
    uint8_t room_index[MPIX_CUDA_RANKS], there[MPIX_CUDA_RANKS];
    char *window;
    uint64_t block, arrived, out, land, pack, room; /* block, room: sizes; arrived: in a block,
                                                     * uint64_t [3][REMOTE_CHUNKS]; the others: in a
                                                     * window */
    uint64_t chunk_bytes;
    const struct mpix_dev_state *queue; /* device */
    uint32_t *packed; /* device: [2][size][REMOTE_CHUNKS] rows of a chunk that are packed,
                       * zero between calls; [1]: of combine's requests */
    uint64_t *here;   /* device: [3][size] chunks that have come, by type */
    uint64_t *last;   /* device: [ways][size] number of this handle's last command */
    /* Two hops (forward.cuh). two_hops: routings may take them; via: by host, the rank there
     * through which this one reaches it, its own: itself. */
    int32_t two_hops, here_host; /* here_host: of this rank */
    int64_t saves;               /* (token, rank) pairs that two hops must save at least, -1: they
                                  * are always taken */
    uint32_t serves;             /* sources that this rank forwards for, a bit each */
    uint8_t host_of[MPIX_CUDA_RANKS], via[MPIX_CUDA_RANKS];
    uint64_t ask, asks;  /* combine's requests: bytes of one, where they are in a room */
    uint32_t *rel, *blk; /* device: [tokens][hosts], [blocks][hosts], as the
                          * handle's are by rank */
    uint64_t batch[2];   /* low latency (ll_remote.cu): bytes of a batch of
                          * dispatch, of combine */
} mpix_cuda_remote;

/* How rows lie in a batch of a proxied peer: row, scales, record, each item from a multiple of 128
 * bytes on. Alike at both ends. */
typedef struct mpix_cuda_remote_batch {
    uint64_t item, scales, record;
    int64_t per_chunk;
} mpix_cuda_remote_batch;

/* A handle as kernels see it; every address is valid in this process. */
typedef struct mpix_cuda_handle {
    int32_t rank, size, experts, local_experts, max_topk, pad;
    int64_t max_tokens, max_rows; /* max_rows: of a batch here; records */
    int64_t rows_limit;           /* config.max_recv_rows if going beyond is an error, else -1 */
    int32_t drop, check;
    uint64_t timeout_ns; /* UINT64_MAX: none */
    uint64_t delay_ns;   /* tests: random pauses up to this, 0: none */
    /* offsets in a window, sizes */
    uint64_t block, ready, offered, counts, counts_bytes, records, record_bytes;
    char *window[MPIX_CUDA_RANKS];
    void **bases;                        /* device: [MPIX_CUDA_ALLOCATIONS][MPIX_CUDA_RANKS]
                                          * allocations of each rank */
    const int32_t *owner, *local, *mine; /* device: [experts], [experts], [local_experts] */
    mpix_cuda_state *state;
    int32_t *failed;                          /* device: the context timed out */
    int32_t *alarm;                           /* pinned: some report has been written */
    uint32_t *bitmap, *rel, *blk, *histogram; /* device: [tokens], [tokens][size], [blocks][size],
                                               * [2 * experts] */
    int32_t *ids;                             /* device: [tokens][max_topk] */
    int64_t *results;                         /* pinned: recv_total, unused, recv_per_rank[size],
                                      send_per_rank[size], recv_per_expert[], send_per_expert[],
                                      expert_offset[], send_per_host[] */
    int64_t *recv_expert;                     /* device: [local_experts] */
    mpix_cuda_expert expert;
    mpix_cuda_copy_engine copy_engine;
    mpix_cuda_ll ll;
    mpix_cuda_remote remote;
} mpix_cuda_handle;

typedef struct mpix_cuda_route {
    int64_t tokens, stride;
    int32_t topk, bits, status, counts; /* counts: the host wants them in results */
    const void *ids;
    mpix_cuda_status *report;
    /* outputs that the device can write; NULL: none */
    int64_t *recv_total, *recv_per_rank, *recv_per_expert, *send_per_rank, *send_per_host,
        *send_per_expert, *expert_offset;
    unsigned char *token_in_rank;
} mpix_cuda_route;

typedef struct mpix_cuda_dispatch {
    const char *x, *scales;
    const float *weights;
    char *out, *out_scales; /* engines: where rows go on this rank */
    int64_t tokens, x_stride, scale_stride, row, scale_row; /* bytes; row: without padding */
    /* quant: 0, or x's dtype: rows become offer's fp8 on their way */
    int32_t topk, num_sms, path, status, part, quant;
    mpix_cuda_offer offer;
    int64_t hidden;
    mpix_cuda_status *report;
    int64_t *wait_ns;
    /* unpacking; NULL: not wanted */
    int32_t *local_ids, *src_rank;
    int64_t *src_token;
    float *out_weights;
    int64_t *cumulative;
    int64_t capacity;
    int32_t pieces, piece, stages, warps, pending, senders; /* filled in by the module */
    /* low latency */
    int64_t out_stride, out_scale_stride;
    int32_t counts, pad; /* the host wants them */
    /* outputs that the device can write; NULL: none */
    int64_t *recv_per_rank, *recv_per_expert, *expert_offset;
    int32_t team[2]; /* filled in by the module: warps that share a row, in the two halves */
    int32_t shares;  /* likewise: blocks that share a received row, each some of its places; 0
                      * or 1: none do */
    int32_t vectors; /* likewise: everything is aligned for 16 bytes at a time */
    int32_t eager;   /* likewise: `taken` is said at the call's end */
    mpix_cuda_remote_batch batch, forward_batch; /* likewise; forward_batch: to a host's
                                                  * forwarder */
} mpix_cuda_dispatch;

typedef struct mpix_cuda_combine {
    const char *x, *scales, *bias[2];
    const float *row_weights, *slot_values, *choice_weights;
    char *y;
    float *out_slots;
    int64_t tokens, x_stride, scale_stride, y_stride, bias_stride[2], hidden;
    int32_t xdtype, ydtype, scale_kind, num_bias, topk, num_sms, path, status, part;
    mpix_cuda_offer offer;
    mpix_cuda_status *report;
    int64_t *wait_ns;
    int32_t pieces, piece, stages, warps, terms; /* filled in by the module */
    int32_t staged;         /* MPIX_CUDA_STAGED...: a piece of the sums, of rows that lie in this
                             * rank's window */
    int64_t row, scale_row; /* bytes; of staged rows */
    int32_t vectors, eager; /* low latency, as in dispatch; offer.dtype is the wire's */
    int32_t round, held;    /* likewise: tokens that a block sums at a time; pieces of their own
                             * part that a warp holds meanwhile */
    int32_t two_hops, wire; /* rows may take two hops (there is room for their sums); dtype
                             * of those sums */
    mpix_cuda_remote_batch batch, forward_batch, ask_batch; /* filled in by the module */
} mpix_cuda_combine;

typedef struct mpix_cuda_device {
    int ordinal, major, minor, sms, smem; /* smem: bytes a block can have */
    int vmm;                              /* allocations with POSIX descriptors can be had */
    int dmabuf;                           /* memory can be exported as dma-buf */
    int bulk, early; /* by the loaded code (0: nothing is loaded): bulk copies; launches before the
                      * kernel in front has ended */
    int rdma_order;  /* kernels that run see writes of network devices
                      * in their order */
    char name[64];
    unsigned char uuid[16];
} mpix_cuda_device;

typedef struct mpix_cuda_mem {
    void *p;
    size_t bytes; /* rounded up */
    int fd;       /* -1: none */
    unsigned char ipc[64];
    int is_ipc, imported;
    uint64_t handle;
} mpix_cuda_mem;

/* ---- MPIX_P2p -------------------------------------------------------------------------------- */

/* What a caller registers: where it lies in its allocation, and how another process
 * can map that. */
typedef struct mpix_cuda_range {
    uint64_t off, bytes;   /* of the memory in its allocation; of the allocation */
    int share;             /* MPIX_CUDA_SHARE_* */
    unsigned char ipc[64]; /* SHARE_IPC */
} mpix_cuda_range;
enum { MPIX_CUDA_SHARE_IPC, MPIX_CUDA_SHARE_NOT_POOL, MPIX_CUDA_SHARE_NOT_VMM };

typedef struct mpix_cuda_piece {
    void *to;
    const void *from;
    uint64_t bytes;
    int32_t kernel, pad; /* kernel: both sides are GPU memory */
} mpix_cuda_piece;

/* What is told when pieces are where they go; NULL: not wanted. */
typedef struct mpix_cuda_tail {
    uint64_t *word, value; /* the target's, in its host memory, for the device: gets value; or,
                            * with a counter, */
    uint64_t *counter;     /* in device memory: its sum, to which value is added then. The top
                            * bit is its lock. */
    uint64_t *done, end;   /* pinned: gets end */
} mpix_cuda_tail;

typedef struct mpix_cuda_ops {
    int abi;
    /* device: ordinal + 1, 0: the current one. */
    int (*open)(int device, mpix_cuda_device *out, char *why);
    /* Kernels of MPIX_CUDA_LOAD_*, before the first launch of any: loading one may wait for kernels
     * that run, and those may wait for it. */
    int (*load)(mpix_cuda_device *device, int what, char *why);
    int (*pointer)(const mpix_cuda_device *device, const void *p); /* MPIX_CUDA_PTR_* */
    /* The number of the allocation that p lies in, another for each in the process's life; 0: none,
     * or it can't be told. */
    uint64_t (*allocation)(const mpix_cuda_device *device, const void *p);
    /* Zeroed memory that another process can map. */
    int (*alloc)(const mpix_cuda_device *device, size_t bytes, int ipc, mpix_cuda_mem *mem,
                 char *why);
    int (*import)(const mpix_cuda_device *device, size_t bytes, int ipc, int fd,
                  const unsigned char *handle, mpix_cuda_mem *mem, char *why);
    void (*free)(const mpix_cuda_device *device, mpix_cuda_mem *mem);
    /* zeroed */
    int (*local_alloc)(const mpix_cuda_device *device, size_t bytes, void **p, char *why);
    void (*local_free)(const mpix_cuda_device *device, void *p);
    int (*pinned_alloc)(size_t bytes, void **p, char *why); /* zeroed */
    void (*pinned_free)(void *p);
    /* any kinds, blocking */
    int (*copy)(const mpix_cuda_device *device, void *to, const void *from, size_t bytes,
                char *why);
    int (*stream_create)(const mpix_cuda_device *device, void **stream, char *why);
    void (*stream_destroy)(void *stream);
    /* capture: the number of the capture that the stream is in, 0: none. */
    int (*stream_check)(const mpix_cuda_device *device, void *stream, unsigned long long *capture,
                        char *why);
    /* A number of its own for each stream of the process's life, while it captures: for each stream
     * of the capture; 0: it can't be told. cudaStreamPerThread is one in each thread. */
    uint64_t (*stream_id)(const mpix_cuda_device *device, void *stream, unsigned long long capture);
    int (*event_create)(const mpix_cuda_device *device, void **event, char *why);
    void (*event_destroy)(void *event);
    int (*event_record)(const mpix_cuda_device *device, void *event, void *stream, char *why);
    /* 1: yes, 0: no, -1: the device failed */
    int (*event_done)(const mpix_cuda_device *device, void *event, char *why);
    int (*stream_wait)(const mpix_cuda_device *device, void *stream, void *event, char *why);
    void (*device_sync)(const mpix_cuda_device *device);
    int (*route)(const mpix_cuda_device *, const mpix_cuda_handle *, const mpix_cuda_route *,
                 void *stream, char *why);
    int (*dispatch)(const mpix_cuda_device *, const mpix_cuda_handle *, mpix_cuda_dispatch *,
                    void *stream, char *why);
    int (*combine)(const mpix_cuda_device *, const mpix_cuda_handle *, mpix_cuda_combine *,
                   void *stream, char *why);
    /* What moves the rows of a handle whose engines are on. split: streams that share each copy. */
    int (*copy_engine_create)(const mpix_cuda_device *device, int split, void **copies, char *why);
    void (*copy_engine_destroy)(const mpix_cuda_device *device, void *copies);
    int (*event_sync)(const mpix_cuda_device *device, void *event, char *why);
    /* MPIX_P2p. ARG (1): [p, p + bytes) runs beyond its allocation, or lies on another device. */
    int (*share)(const mpix_cuda_device *device, const void *p, size_t bytes,
                 mpix_cuda_range *range, char *why);
    /* 1: it adds to that device's memory by itself */
    int (*atomics)(const mpix_cuda_device *device, const unsigned char uuid[16]);
    int (*host_register)(const mpix_cuda_device *device, void *p, size_t bytes, void **mapped,
                         char *why);
    void (*host_unregister)(const mpix_cuda_device *device, void *p);
    /* pieces are overwritten. In a capture only with a counter, or telling nothing. */
    int (*p2p_move)(const mpix_cuda_device *, mpix_cuda_piece *pieces, int n, uint64_t kernel_bytes,
                    const mpix_cuda_tail *, void *stream, char *why);
    int (*p2p_add)(const mpix_cuda_device *, uint64_t *word, uint64_t add, uint64_t *old,
                   const mpix_cuda_tail *, void *stream, char *why);
    /* 0, or the kind of the GPU's failure */
    int (*stream_failed)(const mpix_cuda_device *, void *stream, char *why);
    /* A dma-buf of [p, p + bytes), memory of local_alloc; bytes: a multiple of 2 MB. The
     * caller closes it. */
    int (*dmabuf)(const mpix_cuda_device *device, void *p, size_t bytes, int *fd, char *why);
} mpix_cuda_ops;

#define MPIX_CUDA_SYMBOL "mpix_cuda_module"
#ifdef __cplusplus
extern "C"
#endif
    const mpix_cuda_ops *
    mpix_cuda_module(void);
#endif
