/* ep_streams.h - a handle with its stream and buffers, for the files of ep_streams. */
#ifndef TESTS_EP_STREAMS_H
#define TESTS_EP_STREAMS_H
#include "gpu.h"

enum { TOKENS = 96, TOPK = 4, EXPERTS = 24, HIDDEN = 512 };

extern int rank, size, failures, expert;

/* Rows that a rank receives at most. */
static inline size_t most_rows(void) { return (size_t)TOKENS * (size_t)size * (expert ? TOPK : 1); }

/* A handle with its buffers. Host copies are pinned, so that copies are in stream order. */
typedef struct lane {
    MPIX_Ep_handle h;
    cudaStream_t stream;
    int32_t *ids, *hids, *src, *hsrc;
    int64_t *tok, *htok;
    float *x, *rows, *y, *hx, *hrows, *hy;
    MPI_Count *total;
    uint64_t seed;
    int tokens, hidden, topk;
    MPIX_Ep_routing r;
    MPIX_Ep_counts c;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
} lane;

void lane_make(MPIX_Ep ep, lane *l);
void lane_free(MPIX_Ep ep, lane *l);
/* What a round is: its shape, rows and routing, copied in stream order. */
void lane_shape(lane *l, uint64_t seed);
void lane_fill(lane *l, uint64_t content);
void lane_fetch(lane *l);
void lane_call(lane *l);
/* After a fetch and a synchronization. */
void lane_check(const lane *l, uint64_t content, const char *what);
#endif
