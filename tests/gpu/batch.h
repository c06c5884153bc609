/*
 * batch.h - one batch in GPU memory and in host memory: arrays and calls on both sides, compared
 * bit by bit with each other, and where rows go with the reference of tests/common.
 *
 * Data and routings are hashes of (seed, rank, token), so every rank knows what every other sends.
 * Outputs are poisoned before every call, on both sides alike, so what must not be touched is
 * compared too.
 */
#ifndef TESTS_GPU_BATCH_H
#define TESTS_GPU_BATCH_H
#include "ref.h"
#include "gpu.h"

/* How calls in GPU memory are made. */
enum { BLOCKING, XFER, ENQUEUE, HALVES, GRAPH, FORMS };
/* Counts that route gives, as bits of shape.counts; TOKEN_IN_RANK is no count. */
enum { RECV_TOTAL, RECV_RANK, RECV_EXPERT, OFFSET, SEND_RANK, SEND_EXPERT, SEND_HOST, COUNTS };
enum { TOKEN_IN_RANK = COUNTS };

/* What a batch is, alike on all ranks. */
typedef struct shape {
    uint64_t seed;
    int mode, layout, experts, topk, holes, align, overflow;
    const int32_t *owner;                            /* of each expert; NULL: contiguous blocks */
    int dtype, scales;                               /* rows as they are sent */
    int odtype, oscales;                             /* as they arrive */
    int zdtype, zscales, ydtype;                     /* as they come back, and their sums */
    int weights, slots, roww, choicew, bias, buffer; /* whether there are any; bias: how many */
    int wire, host_wire;                             /* of combine */
    int inexact;           /* sums are not the host's to the bit: the program looks at them */
    int bits;              /* of an id */
    int form, route_form;  /* of the calls in GPU memory; route has the first three */
    unsigned counts;       /* that route gives; 0: none at all */
    int turns, reps;       /* batches of other rows on one routing; GPU calls of each */
    int odd;               /* rows have infinities, NaNs and tiny numbers among others */
    int gaps;              /* chunks of tokens that go nowhere */
    int64_t hidden, pad;   /* elements of a row, and between rows */
    int64_t most;          /* LL: max_tokens */
    int64_t tokens[64];    /* of each rank */
    int64_t keep, spare;   /* HT: room for keep eighths of the rows and spare more */
    int64_t capacity_rows; /* LL */
} shape;

enum { POISON = 0xA5 };
/* An array on both sides. */
typedef struct both {
    char *host, *dev;
    size_t bytes;
    MPIX_Ep ep; /* that dev is allocated from; NULL: from nothing */
} both;
both both_make(size_t bytes, MPIX_Ep ep); /* poisoned; with a context collective */
void both_up(const both *b);              /* the host's contents to the GPU */
void both_poison(const both *b);
void both_compare(const both *b, const char *what);
void both_free(both *b);

/* One side's calls. */
typedef struct side {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    MPIX_Xfer routing;
    MPIX_Ep_routing r;
    MPIX_Ep_counts c;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
} side;
void side_init(side *s); /* all but ep and h */
void side_route(side *s, int counted, int form, cudaStream_t stream);
void side_routed(side *s); /* waits for it, if it was not waited for */
void side_dispatch(side *s, int form, cudaStream_t stream);
void side_combine(side *s, int form, cudaStream_t stream);

enum { GPU, HOST, SIDES, COUNTS_MOST = 1101 };

typedef struct batch {
    const shape *s;
    side side[SIDES];
    cudaStream_t stream;
    ref_plan *plan;
    uint64_t seed;                     /* of the contents of this turn's rows */
    int compared;                      /* counts of both sides are */
    int64_t rows, capacity;            /* that exist here; that there is room for */
    size_t row, orow, zrow, yrow;      /* bytes of elements */
    size_t stride, ostride, zstride;   /* from row to row */
    size_t srow, osrow, zsrow;         /* bytes of scales */
    size_t cells;                      /* of arrays per row, or per row and choice */
    int64_t sent;                      /* between hosts, by all ranks, in the last GPU call */
    both ids, w, x, xs, in_rank;       /* inputs, and an output of route */
    both ox, os, lid, sr, st, ow, cum; /* dispatch's outputs */
    both z, zs, zw, zv, bias, y, ys;   /* combine's inputs and outputs */
    MPI_Count *counts[SIDES];          /* COUNTS times COUNTS_MOST; the GPU's in pinned memory */
} batch;

/* Makes the inputs, routes on both sides, compares the counts. Collective, as are the others. */
batch *batch_open(const shape *s, const side *gpu, const side *host);
/* Fills rows with new contents, moves them on both sides, compares all outputs. */
void batch_dispatch(batch *b, int turn);
/* The same with rows that experts made. Call it after batch_dispatch of that turn. */
void batch_combine(batch *b, int turn);
void batch_close(batch *b);
/* The id of choice k of this rank's token t, -1: none. */
int64_t batch_id(const batch *b, int64_t t, int k);
/* The row that comes back for a token: key is its expert in EXPERT, else the rank
 * that it was at. */
void batch_back(const batch *b, int64_t key, int src, int64_t token, void *row);

/* ---- what the programs begin and end with ---------------------------------------------------- */
/* MPI, and a GPU for this rank; gives how many there are. Two hops are as the routing says, unless
 * the environment does. */
int batch_program(int *argc, char ***argv, const char *name);
/* Both contexts of a shape, with a handle each; the host's has the same settings but for SMs. */
void batch_contexts(MPIX_Ep_config *c, int sms, side *gpu, side *host);
void batch_contexts_free(side *gpu, side *host);
#endif
