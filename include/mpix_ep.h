/*
 * mpix_ep.h - expert-parallel dispatch and combine on an MPI communicator.
 *
 * In a mixture-of-experts layer every token (a row of `hidden` values) chooses `topk` of
 * `num_experts` experts, and each expert lives on one rank. *Dispatch* sends each token once to
 * every rank that holds one of its experts. *Combine* brings the experts' outputs back and sums
 * them for each token.
 *
 *     MPIX_Ep         context: sized once, collective
 *     MPIX_Ep_handle  a routing (who needs which token), reusable: route once, dispatch and
 *                     combine many times
 *     route -> dispatch -> (the caller's experts compute) -> combine
 *
 * The rules of mpix_xfer.h hold. Further:
 *
 *  - Collective, and started in the same order on all ranks of the context: create, free,
 *    handle_create, alloc, register, route, dispatch, combine (nonblocking forms too).
 *  - All ranks also make dealloc, deregister and handle_free in the same order. These calls do not
 *    wait for one another.
 *  - If one rank passes a wrong argument, nobody hangs. That rank returns its own error, all others
 *    MPIX_ERRK_REMOTE with its number, and the next call works. The outputs of a call that failed
 *    on any rank are undefined on all. A nonblocking call returns its own error at once and sets no
 *    transfer; REMOTE is told at completion. The peers learn of the error by the caller's later
 *    calls on the same context, or by the progress thread. With a NULL or freed object the caller
 *    alone gets MPIX_ERRK_ARG, and its peers time out.
 *  - One thread at a time per context. Several contexts and handles may be in flight at once.
 *  - After fork a context is the parent's (mpix_xfer.h): the child can only free it.
 *  - Every i... call has a blocking form without the last argument, and an ..._enqueue form with
 *    `void *stream` (a cudaStream_t) instead for GPU memory.
 *  - Configuration beats info, info beats environment, environment beats default. The info keys and
 *    environment variables are listed by `mpix_ep_info --params`. An info key that starts with
 *    mpix_ep_ and is unknown or does not parse is MPIX_ERRK_ARG.
 *
 * `mpix_ep_info --paths` and mpix-ep(7) show what each way of carrying out these calls supports.
 * All else returns MPIX_ERRK_UNSUPPORTED.
 *
 * Sources. Dispatch with one copy of a token per rank, handles, COMPACT and EXPERT follow DeepEP
 * and NCCL EP. doc/architecture.md describes the algorithms.
 */
#ifndef MPIX_EP_H
#define MPIX_EP_H

#include "mpix_xfer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mpix_ep *MPIX_Ep;
typedef struct mpix_ep_handle *MPIX_Ep_handle;
#define MPIX_EP_NULL ((MPIX_Ep)0)
#define MPIX_EP_HANDLE_NULL ((MPIX_Ep_handle)0)

/**
 * Mode: HT for large batches (high throughput), LL for decode-sized ones (low latency).
 *
 * LL: each handle has fixed banks for `depth` dispatches and `depth` combines in flight. So ranks
 * exchange no counts and grant nothing. A row travels once per rank, with its choices, as soon as
 * dispatch is called. What differs from HT:
 *  - route is local. Dispatch tells what this rank receives (out.recv_per_rank, recv_per_expert,
 *    expert_offset).
 *  - A combine needs a dispatch of the same routing before it on the handle.
 *  - Combine sums a token's rows on the experts' rank, with row_weights, and rounds that to the
 *    wire's dtype (MPIX_Ep_combine_in).
 *  - The layouts are SLOTS and EXPERT. overflow, expert_align, max_recv_rows, num_bias, slot_values
 *    and conversion in dispatch mean what they mean in HT.
 *  - Some errors show only when rows arrive: TRUNCATE in the EXPERT layout, and weights that a
 *    peer did not give. They are errors on that rank alone. The others' calls succeed;
 *    they learn of it when its next call fails.
 *  - Both halves of a call in host memory: MPIX_Ep_idispatch or icombine sends, the wait receives;
 *    in between no thread is held. In GPU memory: ..._begin_enqueue and ..._end_enqueue; in between
 *    no multiprocessor is held.
 *  - In GPU memory a handle's calls follow each other on the device. A call that waits holds
 *    its multiprocessors (config.num_sms). If ranks start calls of different handles in different
 *    orders, all of them must find room for a block. MPIX_Ep_combine_buffer always gives the same
 *    memory.
 */
enum { MPIX_EP_HT, MPIX_EP_LL };

/**
 * Layout of the received rows.
 * COMPACT: one row per (token, this rank); sources ascending, tokens ascending.
 * EXPERT:  one row per (token, local expert); experts ascending, in each sources ascending, tokens
 *          ascending. Each expert's rows begin at a multiple of expert_align rows. The rows in
 *          between are zero.
 * SLOTS:   (LL only) one row per (token, this rank) at a fixed place, no counts needed. The i-th
 *          token that rank s sends here, in the order of its tokens, is row s * max_tokens + i.
 *          capacity_rows is at least ranks * max_tokens. Places that no token has taken have
 *          src_rank, src_token and local_ids -1 and weights 0; their row is not touched.
 */
enum { MPIX_EP_COMPACT, MPIX_EP_EXPERT, MPIX_EP_SLOTS };

/**
 * Memory kind of all row buffers, ids and outputs of a context (counts of route may be in
 * host memory too).
 *
 * MPIX_EP_CUDA: creating and freeing contexts and handles, MPIX_Ep_alloc and MPIX_Ep_dealloc wait
 * for all kernels of the device, of other contexts too. So all ranks must make these calls and
 * enqueued calls of other contexts in the same order. Otherwise ranks wait for each other.
 */
enum { MPIX_EP_HOST, MPIX_EP_CUDA };

/**
 * config.num_sms: copy engines move the rows. COMPACT only. Kernels only pack rows before dispatch
 * and sum them in combine, for a short time each and with all multiprocessors. Once all ranks have
 * packed, no kernel runs between the halves of a call (..._begin_enqueue, ..._end_enqueue).
 *
 * Copies need their sizes from the host. So the first dispatch or combine after a route waits for
 * that route, also when it is enqueued. All ranks must therefore make these calls in the same order
 * on the host too. Calls can't be captured (MPIX_ERRK_UNSUPPORTED). Each handle takes GPU memory
 * for a batch to each other rank and one from each.
 */
enum { MPIX_EP_SMS_NONE = -1 };

/**
 * Element types of rows. 0 is none: an input whose dtype was forgotten is MPIX_ERRK_ARG.
 * F8E4M3 is the "fn" variant (no infinities). BYTES: opaque, hidden counts bytes.
 */
enum {
    MPIX_EP_F64 = 1,
    MPIX_EP_F32,
    MPIX_EP_F16,
    MPIX_EP_BF16,
    MPIX_EP_F8E4M3,
    MPIX_EP_F8E5M2,
    MPIX_EP_BYTES
};

/** Scales of fp8 rows, one per 128 channels, ceil(hidden / 128) per row: 4-byte floats, or 1-byte
 * powers of two (exponent + 127). */
enum { MPIX_EP_NO_SCALES, MPIX_EP_SCALES_F32, MPIX_EP_SCALES_UE8M0 };

/** What happens to rows beyond a capacity: the call fails with MPIX_ERRK_TRUNCATE, or they are
 * dropped (and count as zero). */
enum { MPIX_EP_OVERFLOW_ERROR, MPIX_EP_OVERFLOW_DROP };

/** An array of rows in the caller's memory. */
typedef struct {
    void *data;             /**< first row; aligned to the element size; may be NULL if
                             * there are no rows */
    MPI_Count stride;       /**< bytes from row to row, a multiple of the element size, >=
                             * hidden * element size; 0: dense */
    int dtype;              /**< MPIX_EP_F64 ...; required in an input; in an output 0
                             * means the input's */
    int scale_kind;         /**< MPIX_EP_NO_SCALES ...; scales only with an fp8 dtype */
    void *scales;           /**< first row's scales; NULL without scales */
    MPI_Count scale_stride; /**< bytes from one row's scales to the next's; 0: dense */
} MPIX_Ep_rows;

/**
 * Configuration of a context. All fields but expert_owner's address and device must be equal on all
 * ranks.
 *
 * Defaults of num_sms. "half" is (all - 12) / 2 of the device's multiprocessors. Kernels whose
 * blocks all wait for peers take no more. So calls of two handles can wait at once, in whatever
 * order ranks start them. A program that gives more must start calls of different handles in the
 * same order on all ranks.
 *
 *     layout                  call                              default
 *     COMPACT                 dispatch, combine                 15, the fewest that were fastest
 *     COMPACT                 combine without bulk copies       20
 *     COMPACT                 dispatch to fp8, combine of fp8   60, at most half
 *     EXPERT                  dispatch                          all; to fp8 half
 *     EXPERT                  combine                           half
 *     EXPERT, proxied peers   dispatch, combine                 60, at most half
 *     LL, any                 dispatch, combine                 60, at most half
 */
typedef struct {
    size_t struct_size;
    int mode;         /**< MPIX_EP_HT or MPIX_EP_LL */
    int layout;       /**< HT: MPIX_EP_COMPACT or MPIX_EP_EXPERT; LL: MPIX_EP_SLOTS or
                       * MPIX_EP_EXPERT */
    int memkind;      /**< MPIX_EP_HOST or MPIX_EP_CUDA */
    int device;       /**< CUDA device ordinal + 1; 0: the current one. Must be 0
                       * with MPIX_EP_HOST */
    int max_topk;     /**< most choices per token, >= 1; a limit only: it may exceed num_experts,
                       * routing.topk may not */
    int expert_align; /**< EXPERT layout: rows to which each expert's block is aligned; 0: 1. Must
                       * be 0 or 1 otherwise */
    int depth;        /**< how many calls may be in flight before a further one waits. HT: batches
                       * of the context that need staging buffers, and calls of a type per handle.
                       * LL: dispatches, and separately combines, per handle. 0: 2; at most 64 */
    int num_sms;      /**< multiprocessors that a dispatch or combine takes at most; 0: the default,
                       * see above. MPIX_EP_SMS_NONE: copy engines move the rows. Must be 0 with
                       * MPIX_EP_HOST. Ranks may differ in it, but not in MPIX_EP_SMS_NONE */
    int overflow;     /**< MPIX_EP_OVERFLOW_ERROR or MPIX_EP_OVERFLOW_DROP */
    int masking;      /**< 1: go on without dead ranks (UNSUPPORTED in this version) */
    int check;        /**< of ids in route (range, and that a token has no expert twice): 1
                         yes, -1 no, 0: yes in host memory. Unchecked bad ids are undefined
                         behaviour in host memory. In GPU memory ids out of range count as -1.
                         There, choices of one expert by one token share a row. The token's sum
                         has that row for each of them */
    int pad;          /**< must be 0 */
    MPI_Count num_experts;   /**< experts of all ranks together, >= 0, < 2^31 */
    MPI_Count max_tokens;    /**< most tokens a rank sends in a batch, >= 0, < 2^31 */
    MPI_Count max_recv_rows; /**< most rows a rank receives in a batch, padding
                              * included; 0: worst case */
    MPI_Count max_row_bytes; /**< most bytes of a row that travels: hidden * element
                              * size + its scales, >= 1 */
    const int *expert_owner; /**< [num_experts] rank that holds each expert; a rank's experts are
                                numbered ascending. NULL: contiguous blocks, the first num_experts %
                                ranks ranks holding one more. Copied. */
    double timeout_s; /**< longest wait for a peer in seconds, also in creation; 0: the parameter's
                       * default, 300; negative or infinite: no limit */
} MPIX_Ep_config;

/** The choices of this rank's tokens. Read until route completes. */
typedef struct {
    size_t struct_size;
    MPI_Count num_tokens; /**< 0 .. max_tokens */
    int topk;             /**< choices per token, 0 .. min(max_topk, num_experts). Equal on all
                           * ranks that have tokens; a rank without tokens may give any */
    int idx_bits;         /**< 32 or 64; 0: 32 */
    const void *ids;      /**< [num_tokens][topk] int32_t or int64_t: expert in [0, num_experts) or
                             -1 (no choice); no expert twice in a token; NULL if there are none */
    MPI_Count ids_stride; /**< bytes from token to token, a multiple of the id's size; 0: dense */
} MPIX_Ep_routing;

/** Outputs of route, filled at completion; NULL where not wanted. Rows count as the
 * layout counts them. */
typedef struct {
    size_t struct_size;
    MPI_Count *recv_total;      /**< rows that dispatch will give this rank, padding included: the
                                 * capacity needed */
    MPI_Count *recv_per_rank;   /**< [ranks] rows from each rank, padding not included */
    MPI_Count *recv_per_expert; /**< [local experts] (token, choice) pairs for each local expert,
                                 * padding not included */
    MPI_Count *expert_offset;   /**< [local experts + 1] EXPERT: first row of each expert, then
                                 * recv_total. COMPACT: MPIX_ERRK_ARG */
    MPI_Count *send_per_rank;   /**< [ranks] distinct tokens sent to each rank */
    MPI_Count *send_per_host;   /**< [hosts] distinct tokens needed on each host; hosts numbered by
                                 * their lowest rank */
    MPI_Count *send_per_expert; /**< [num_experts] this rank's choices of each expert */
    unsigned char *token_in_rank; /**< [num_tokens][ranks] 1 if the token goes to
                                   * the rank, else 0 */
} MPIX_Ep_counts;

/**
 * Input of dispatch. Read until completion. If the output's dtype is fp8 with scales and the
 * input's is not, the sending rank quantises each row once, in groups of 128 channels. It computes
 * in float and rounds every operation to nearest even:
 *
 *   amax = max(|x|, 2^-110), NaNs left out;  top = 448 (F8E4M3) or 57344 (F8E5M2)
 *   SCALES_F32:   scale = amax / top;  q = round(x * (top / amax))
 *   SCALES_UE8M0: scale = the smallest power of two not below amax / top;  q = round(x / scale)
 *
 * round: to nearest even, cut to top. A NaN becomes 0x7f. With an infinity in a group the scale is
 * an infinity (F32) or NaN (UE8M0). Then every element of the group times the scale is NaN.
 * max_row_bytes counts the row that travels.
 */
typedef struct {
    size_t struct_size;
    MPI_Count hidden;          /**< elements per row, >= 1, equal on all ranks */
    MPIX_Ep_rows x;            /**< [num_tokens of the routing] rows; dtype and scale_kind of what
                                * travels (out.x) equal on all ranks */
    const float *topk_weights; /**< [num_tokens][topk] dense; sent with the rows, for
                                * out.topk_weights; NULL: none. If any rank sets
                                * out.topk_weights, every rank with tokens must give them */
} MPIX_Ep_dispatch_in;

/** Output of dispatch. Written until completion. Rows beyond recv_total are not touched. */
typedef struct {
    size_t struct_size;
    MPI_Count capacity_rows; /**< rows that every array below has room for */
    MPIX_Ep_rows x;          /**< received rows; dtype 0, the input's, or a narrower one. The sender
                                converts rows to a narrower one before they travel. F64 may become
                                F32, F16 or BF16; F32 may become F16 or BF16, to nearest even. F32,
                                F16 and BF16 may become fp8 with scales (MPIX_Ep_dispatch_in). Equal
                                on all ranks, also on one that receives nothing */
    int *local_ids;          /**< COMPACT, SLOTS: [rows][topk] local expert of each choice or -1
                              * (another rank's, or no choice). topk is what the ranks with tokens
                              * gave to route. If none has tokens it is what this rank gave. EXPERT:
                              * must be NULL (the row's place says it). NULL: not wanted */
    int *src_rank;           /**< [rows] rank that sent the row, -1 for padding; NULL: not wanted */
    MPI_Count *src_token;    /**< [rows] the token's index there, -1 for
                              * padding; NULL: not wanted */
    float *topk_weights;     /**< COMPACT, SLOTS: [rows][topk]; EXPERT: [rows] the weight of that
                              * choice, 0 for padding; NULL: not wanted */
    int64_t *cumulative;     /**< [local experts] recv_per_expert is added to
                              * it; NULL: not wanted */
    int64_t *wait_ns;        /**< [ranks] nanoseconds this call waited for each rank's rows,
                              * added; NULL: not wanted */
    MPI_Count *recv_per_rank;   /**< [ranks] rows from each rank, padding not included; NULL: not
                                 * wanted. These three as route's, host memory */
    MPI_Count *recv_per_expert; /**< [local experts] (token, choice) pairs for each local
                                 * expert; NULL: not wanted */
    MPI_Count *expert_offset;   /**< EXPERT: [local experts + 1] first row of each expert, then the
                                 * rows, padding included; NULL: not wanted */
} MPIX_Ep_dispatch_out;

/**
 * Input of combine. Read until completion. For token t of rank s, with the rows of a
 * token's choices k:
 *
 *   y[t] = sum over ranks r ascending of
 *            ( sum over t's rows on r, choices ascending, of  w * x[row] )
 *          + bias[0][t] + bias[1][t]
 *
 * where w = (row_weights ? row_weights[row] : 1) * (topk_weights ? topk_weights[t][k] : 1), applied
 * one factor after the other. Sums and products are in float (double for F64), products rounded
 * before they are added. Dropped rows are left out. A token without rows gives zero. The result is
 * bitwise repeatable for equal routing and shape.
 *
 * Two hops (several hosts with several ranks each, GPU memory: COMPACT; parameter two_hops). A
 * rank of another host sums that host's rows, choices and ranks as above, and rounds to the wire's
 * dtype. That is x's, BF16 of fp8 rows, and F32 if all ranks set wire = MPIX_EP_F32. The token's
 * owner adds one such sum per host behind the rows of its own host, hosts ascending:
 *
 *   y[t] = (sum over own host's ranks)
 *          + wire(sum over the ranks of host h) + wire(sum over the ranks of host h') ... + bias
 *
 * So y differs from the sum without two hops by at most u * (sum over other hosts of |host's sum|),
 * apart from the order of float additions. Here u is 2^-8 (BF16), 2^-11 (F16) or 0 (F32, F64, and
 * any dtype where a host's rows are one row without weights). What dispatch delivers is the same
 * to the bit.
 *
 * EXPERT in GPU memory: the inner sums are made where the rows lie, and travel.
 *  - They travel in float (double for F64) if x is F32, F64 or fp8, or if any rank sets wire =
 *    MPIX_EP_F32. Then the result is bitwise that of a context in host memory.
 *  - Else (wire = 0 or x's dtype) they are rounded once to x's dtype, except those of the token's
 *    own rank. Then y differs from the exact sum by at most
 *    u * (sum over other ranks of |inner sum| + |y|), apart from the rounding of float. Here u is
 *    2^-8 (BF16) or 2^-11 (F16).
 *
 * LL: the sum over a token's rows on one rank is rounded to in.wire there, and the token's
 * owner adds those:
 *
 *   y[t] = sum over ranks r ascending of
 *            wire( sum over t's rows on r, choices ascending, of  row_weights[row] * x[row] )
 *          + bias[0][t] + bias[1][t]
 *
 * That is the same to the bit whether a rank is the owner itself, mapped or proxied. Each rounding
 * adds at most half a unit in the last place of wire.
 */
typedef struct {
    size_t struct_size;
    MPI_Count hidden;          /**< elements per row, >= 1, equal on all ranks */
    MPIX_Ep_rows x;            /**< rows in the layout that dispatch produced; any dtype but BYTES,
                                * equal on all ranks */
    const float *row_weights;  /**< [rows] applied by the experts' rank; NULL: none */
    const float *topk_weights; /**< [num_tokens][topk] applied by the token's owner; HT, EXPERT
                                  layout only (COMPACT and SLOTS rows are sums already:
                                  MPIX_ERRK_ARG; LL: UNSUPPORTED, use row_weights); NULL: none */
    const float *slot_values;  /**< a float per received row (COMPACT, SLOTS: [rows][topk]) that
                                * combine carries to out.slot_values[t][k] of the token's owner,
                                * e.g. the gradient of a choice's weight. Give it on every rank
                                * that has rows, or on none; NULL: none */
    int num_bias;              /**< 0 .. 2 */
    MPIX_Ep_rows bias[2];      /**< [num_tokens] rows each, dtype as y's, added last */
    int wire;                  /**< dtype on the wire. HT: 0 or x's dtype; EXPERT in GPU memory and
                                  all host memory also MPIX_EP_F32, see above. LL: F64, F32, F16,
                                  BF16; 0: x's, of fp8 rows BF16; equal on all ranks, a row of it at
                                  most max_row_bytes */
} MPIX_Ep_combine_in;

/** Output of combine. Written until completion. */
typedef struct {
    size_t struct_size;
    MPIX_Ep_rows y;     /**< [num_tokens] rows; dtype 0: x's (not for fp8); F64, F32, F16 or
                         * BF16; no scales */
    float *slot_values; /**< [num_tokens][topk], 0 where there is no choice or the row was
                           dropped; NULL: not wanted. Needs in.slot_values on every rank that has
                           rows of these tokens */
    int64_t *wait_ns;   /**< [ranks] nanoseconds this call waited for each rank,
                         * added; NULL: not wanted */
} MPIX_Ep_combine_out;

/* ---- context --------------------------------------------------------------------------------- */

/**
 * Bytes of window memory that a rank of such a context reserves at most, beyond what the caller
 * allocates or registers. Local, no communication, works before MPI_Init. Reserved memory is
 * committed when first needed.
 *
 *  - HT: `depth` staging banks of max_recv_rows rows each, and control words of max_handles
 *    handles.
 *  - LL: the banks of one handle, which are committed when it is created, and control words. Each
 *    further handle takes as much again.
 *  - With ranks of other hosts: room for their batches and a send buffer too, all of it committed,
 *    since a device pins it.
 *
 * doc/guide.md has the formulas.
 *
 * @param[in]  config          as for MPIX_Ep_create
 * @param[in]  ranks           size of the communicator, >= 1
 * @param[in]  ranks_per_host  ranks that can map each other, 1 .. ranks; the others are proxied
 * @param[out] bytes           the bound
 * @return MPI_SUCCESS, ARG, UNSUPPORTED, NO_MEM.
 */
int MPIX_Ep_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host,
                        MPI_Count *bytes);

/**
 * Creates a context. Collective over comm, blocking. Ends in agreement: either all ranks succeed or
 * all return an error.
 *
 * @param[in]  comm    intracommunicator; duplicated, its error handler is inherited
 * @param[in]  config  equal on all ranks (a difference is MPIX_ERRK_ARG on the ranks that differ
 *   from rank 0, naming the field)
 * @param[in]  info    keys mpix_ep_*, or MPI_INFO_NULL. Parameters that must be equal on all ranks
 *                     (`mpix_ep_info --params` marks them), from info or the environment, are
 *                     compared as config is
 * @param[out] ep      the context; untouched on error
 * @return MPI_SUCCESS, ARG, UNSUPPORTED, NO_MEM, REMOTE, TRANSPORT, INTERNAL.
 */
int MPIX_Ep_create(MPI_Comm comm, const MPIX_Ep_config *config, MPI_Info info, MPIX_Ep *ep);

/**
 * Frees a context, its handles and the memory that MPIX_Ep_alloc gave. Collective; returns even
 * if a peer died or stopped. Transfers still in flight: MPIX_ERRK_ARG and nothing is freed,
 * unless the context has failed; then they end. A context that is never freed is taken down,
 * locally, in MPI_Finalize.
 * @param[in,out] ep  MPIX_EP_NULL on return
 */
int MPIX_Ep_free(MPIX_Ep *ep);

/**
 * The configuration in force, defaults filled in. Local, never blocks. max_recv_rows is the most
 * rows that any rank can receive in a batch: the capacity that always suffices.
 * @param[out] config  struct_size set; expert_owner points into the context
 */
int MPIX_Ep_get_config(MPIX_Ep ep, MPIX_Ep_config *config);

/** Sets the error handler (a communicator error handler). Local. The handler is called with the
 * context's own communicator. */
int MPIX_Ep_set_errhandler(MPIX_Ep ep, MPI_Errhandler errhandler);

/** The error that made the context fail, kind = 0 if it has not. Local, never blocks, not raised.
 * @param[out] error struct_size set. */
int MPIX_Ep_get_async_error(MPIX_Ep ep, MPIX_Error *error);

/** How this rank reaches another, and what it has sent it over the network so far. */
enum { MPIX_EP_REACH_SELF = 1, MPIX_EP_REACH_MAPPED, MPIX_EP_REACH_PROXIED };
typedef struct MPIX_Ep_peer {
    size_t struct_size; /**< set by MPIX_INIT */
    int reach;          /**< MPIX_EP_REACH_* */
    int lanes;          /**< in-order ways; 1 unless proxied */
    int counted;        /**< proxied: 1: signals are counted writes, 0: words behind the data */
    int mtu;            /**< of the network, 0: it has none */
    int proxy_threads;  /**< proxied: threads of this rank that execute commands for proxied
                         * peers, 0: callers of the library do */
    MPI_Count messages; /**< proxied: operations posted (writes, signals) since the
                         * context was made */
    MPI_Count bytes;    /**< proxied: bytes of those, signals included */
    MPI_Count memory;   /**< proxied: bytes that the proxy has allocated for this peer
                         * beyond windows */
    char transport[64]; /**< "self", "shm", or the network: "verbs", "chaos:shmem" */
    char device[64], address[64]; /**< proxied: of this rank, e.g. "mlx5_0:1", "gid[3] 10.0.0.1" */
    char why[128];                /**< in words */
} MPIX_Ep_peer;

/**
 * About a rank of the context. Local.
 *
 * @param[in] rank  0 .. size - 1
 * @param[out] peer  struct_size set.
 */
int MPIX_Ep_get_peer(MPIX_Ep ep, int rank, MPIX_Ep_peer *peer);

/* ---- memory ---------------------------------------------------------------------------------- */

/**
 * Allocates memory that peers reach directly: rows in it are written and read in place, anything
 * else is copied once more. Collective, blocking, ends in agreement. Page aligned, zeroed. With
 * ranks of other hosts it is registered with the network, hence pinned, if the network takes it. In
 * HT, COMPACT rows then go to and from it without a copy on this side. These rows must lie one
 * after the other, and each must be a multiple of 16 bytes.
 * @param[in]  bytes    0 .. 2^46; may differ between ranks
 * @param[in]  info     MPI_INFO_NULL; reserved
 * @param[out] baseptr  address of a pointer; with bytes = 0 a distinct address that only
 *   MPIX_Ep_dealloc takes
 * @return MPI_SUCCESS, ARG, NO_MEM, TRANSPORT, REMOTE.
 */
int MPIX_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Info info, void *baseptr);

/**
 * Frees memory from MPIX_Ep_alloc. By all ranks in the same order; waits for nobody: a
 * peer's mapping keeps the memory until the peer frees it. Transfers in flight:
 * MPIX_ERRK_ARG. A context that has failed keeps the memory until MPIX_Ep_free, since the network
 * may still use it.
 * @param[in] base  what MPIX_Ep_alloc gave
 */
int MPIX_Ep_dealloc(MPIX_Ep ep, void *base);

/**
 * Registers the caller's memory. Collective, blocking. Inside memory from MPIX_Ep_alloc *direct
 * is 1. Other host memory can't be mapped by peers: *direct is 0, and its rows are copied once
 * more, as they are without registration.
 * @param[in]  base    start; NULL only with bytes = 0
 * @param[in]  bytes   >= 0; may differ between ranks
 * @param[out] direct  1: peers reach it directly, 0: they can't
 */
int MPIX_Ep_register(MPIX_Ep ep, void *base, MPI_Count bytes, int *direct);

/**
 * Undoes MPIX_Ep_register. By all ranks in the same order; waits for nobody.
 *
 * @param[in] base  as registered
 */
int MPIX_Ep_deregister(MPIX_Ep ep, void *base);

/** Which ranks take part. Local. @param[out] alive [ranks] 1 or 0; all 1
 * without masking. */
int MPIX_Ep_get_mask(MPIX_Ep ep, int alive[]);

/** Masks or unmasks a rank. UNSUPPORTED in this version. */
int MPIX_Ep_set_mask(MPIX_Ep ep, int rank, int alive);

/* ---- handles and calls ----------------------------------------------------------------------- */

/**
 * Creates a handle: the place of one routing. Collective, blocking, ends in agreement.
 * @param[out] handle  belongs to the context; freed by MPIX_Ep_handle_free or with the context
 * @return MPI_SUCCESS, ARG, NO_MEM (more than the parameter max_handles), REMOTE.
 */
int MPIX_Ep_handle_create(MPIX_Ep ep, MPIX_Ep_handle *handle);

/** Frees a handle. By all ranks in the same order; waits for nobody. Transfers in flight on it:
 * MPIX_ERRK_ARG, unless the context has failed. */
int MPIX_Ep_handle_free(MPIX_Ep_handle *handle);

/**
 * Sets the handle's routing: exchanges the counts and computes where each row goes. Collective.
 * Waits for earlier calls of the handle. Afterwards the handle serves any number of dispatches and
 * combines; a new route replaces the routing.
 *
 * @param[in]  routing  this rank's choices
 * @param[out] counts   outputs, or NULL
 * @param[out] xfer     the transfer
 * @return MPI_SUCCESS; ARG; TRUNCATE (recv_total exceeds max_recv_rows and overflow is an error),
 *         on others REMOTE. After an error the handle has no routing.
 */
int MPIX_Ep_iroute(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                   const MPIX_Ep_counts *counts, MPIX_Xfer *xfer);
int MPIX_Ep_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                  const MPIX_Ep_counts *counts);

/**
 * Sends each token's row to the ranks that hold its experts. Collective. With cached
 * routing any number of times per route; may be started before an earlier route of the same
 * handle has completed.
 *
 * @param[in]  in    rows of this rank's tokens
 * @param[out] out   rows received, in the context's layout
 * @param[out] xfer  the transfer
 * @return MPI_SUCCESS; ARG (no routing, bad buffers, hidden or dtype that differ between ranks);
 *         TRUNCATE (recv_total exceeds capacity_rows and overflow is an error); REMOTE.
 */
int MPIX_Ep_idispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                      const MPIX_Ep_dispatch_out *out, MPIX_Xfer *xfer);
int MPIX_Ep_dispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                     const MPIX_Ep_dispatch_out *out);

/**
 * Brings the rows of the experts' ranks back and sums them for each token (formula at
 * MPIX_Ep_combine_in). Collective.
 * @param[in]  in    rows of the experts' outputs, as many as dispatch gave
 * @param[out] out   rows of this rank's tokens
 * @param[out] xfer  the transfer; when it completes, peers have finished reading in.x
 */
int MPIX_Ep_icombine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                     const MPIX_Ep_combine_out *out, MPIX_Xfer *xfer);
int MPIX_Ep_combine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                    const MPIX_Ep_combine_out *out);

/** Stream-ordered forms for GPU memory: stream is a cudaStream_t of the context's device. Nothing
 * waits for the host. What fails on the
 *  device is told by MPIX_Ep_get_async_error; a time-out fails the context, the stream stays
 *  usable. UNSUPPORTED in host memory.
 *
 *  CUDA graphs. A stream that is being captured takes any number of these calls. All ranks must
 *  replay what they have captured in the same order. Replays may be mixed with eager calls. The
 *  caller's streams must order the replays and eager calls of a handle, as the library can't see a
 *  launch of a graph. A call whose arguments fail while its stream is captured (pageable counts,
 *  say) returns its error and adds nothing to the graph. The capture goes on, and the peers are not
 *  told. A replay whose routing has been replaced by one of another size fails with ARG on
 *  this rank and REMOTE on the others. Both halves of a call belong in one capture or in none. */
int MPIX_Ep_route_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                          const MPIX_Ep_counts *counts, void *stream);
int MPIX_Ep_dispatch_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                             const MPIX_Ep_dispatch_out *out, void *stream);
int MPIX_Ep_combine_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                            const MPIX_Ep_combine_out *out, void *stream);

/** Both halves of a call apart. Between them no SM is held.
 *  Begin of dispatch sends this rank's rows and returns the SMs; end waits for the peers' rows.
 *  Begin of combine lets the peers read in.x; end reads theirs and sums. Until end the handle takes
 *  no other call (MPIX_ERRK_ARG, on this rank alone). Until then the caller touches no buffer of
 *  the call. After a begin that fails there is nothing to end. */
int MPIX_Ep_dispatch_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                                   const MPIX_Ep_dispatch_out *out, void *stream);
int MPIX_Ep_dispatch_end_enqueue(MPIX_Ep_handle handle, void *stream);
int MPIX_Ep_combine_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                                  const MPIX_Ep_combine_out *out, void *stream);
int MPIX_Ep_combine_end_enqueue(MPIX_Ep_handle handle, void *stream);

/**
 * Rows into which experts may write their output so that combine copies nothing: mapped peers read
 * them there. In GPU memory combine's kernel stores them to their owners from there, as from any
 * memory: that takes half as many trips between GPUs. With row_weights, scales or another wire
 * dtype the rows are copied all the same.
 *
 * LL, SLOTS layout only. EXPERT is UNSUPPORTED, as combine writes a token's sum to its owner
 * without a copy from any memory. HT is UNSUPPORTED: use memory from MPIX_Ep_alloc, which combine
 * reads in place.
 *
 * The first call on a handle is collective and allocates depth * ranks * max_tokens rows. Later
 * ones are local. Call it for each combine: the memory is that of the handle's next one, which
 * takes it as in.x with this stride.
 * @param[out] rows  data and stride; dtype and the rest are 0, the caller sets them
 */
int MPIX_Ep_combine_buffer(MPIX_Ep_handle handle, MPIX_Ep_rows *rows);

/* ---- the same calls for tools that interpose ------------------------------------------------- */
int PMPIX_Ep_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host,
                         MPI_Count *bytes);
int PMPIX_Ep_create(MPI_Comm comm, const MPIX_Ep_config *config, MPI_Info info, MPIX_Ep *ep);
int PMPIX_Ep_free(MPIX_Ep *ep);
int PMPIX_Ep_get_config(MPIX_Ep ep, MPIX_Ep_config *config);
int PMPIX_Ep_set_errhandler(MPIX_Ep ep, MPI_Errhandler errhandler);
int PMPIX_Ep_get_async_error(MPIX_Ep ep, MPIX_Error *error);
int PMPIX_Ep_get_peer(MPIX_Ep ep, int rank, MPIX_Ep_peer *peer);
int PMPIX_Ep_alloc(MPIX_Ep ep, MPI_Count bytes, MPI_Info info, void *baseptr);
int PMPIX_Ep_dealloc(MPIX_Ep ep, void *base);
int PMPIX_Ep_register(MPIX_Ep ep, void *base, MPI_Count bytes, int *direct);
int PMPIX_Ep_deregister(MPIX_Ep ep, void *base);
int PMPIX_Ep_get_mask(MPIX_Ep ep, int alive[]);
int PMPIX_Ep_set_mask(MPIX_Ep ep, int rank, int alive);
int PMPIX_Ep_handle_create(MPIX_Ep ep, MPIX_Ep_handle *handle);
int PMPIX_Ep_handle_free(MPIX_Ep_handle *handle);
int PMPIX_Ep_iroute(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                    const MPIX_Ep_counts *counts, MPIX_Xfer *xfer);
int PMPIX_Ep_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                   const MPIX_Ep_counts *counts);
int PMPIX_Ep_idispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                       const MPIX_Ep_dispatch_out *out, MPIX_Xfer *xfer);
int PMPIX_Ep_dispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                      const MPIX_Ep_dispatch_out *out);
int PMPIX_Ep_icombine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                      const MPIX_Ep_combine_out *out, MPIX_Xfer *xfer);
int PMPIX_Ep_combine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                     const MPIX_Ep_combine_out *out);
int PMPIX_Ep_route_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                           const MPIX_Ep_counts *counts, void *stream);
int PMPIX_Ep_dispatch_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                              const MPIX_Ep_dispatch_out *out, void *stream);
int PMPIX_Ep_combine_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                             const MPIX_Ep_combine_out *out, void *stream);
int PMPIX_Ep_dispatch_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in,
                                    const MPIX_Ep_dispatch_out *out, void *stream);
int PMPIX_Ep_dispatch_end_enqueue(MPIX_Ep_handle handle, void *stream);
int PMPIX_Ep_combine_begin_enqueue(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in,
                                   const MPIX_Ep_combine_out *out, void *stream);
int PMPIX_Ep_combine_end_enqueue(MPIX_Ep_handle handle, void *stream);
int PMPIX_Ep_combine_buffer(MPIX_Ep_handle handle, MPIX_Ep_rows *rows);

#ifdef __cplusplus
}
#endif
#endif /* MPIX_EP_H */
