/* cuda.h - GPU memory for mpix_ep_bench: the CUDA runtime and NCCL behind functions that end the
 * job on an error. */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H
#include "bench/bench.h"
#include "bench/cuda_kernels.h"

typedef struct cuda_base {
    int nccl; /* otherwise MPI, staged through host memory */
    void *comm;
    int64_t record, scale_at, meta_at, ein_stride, send_rows, recv_rows;
    char *send, *recv, *back_recv, *ein, *y, *host_send, *host_recv;
    int32_t *place, *counts, *owner, *local_ids;
    float *weights;
    int32_t *host_counts; /* pinned: [ranks] */
    int send_counts[BENCH_CUDA_RANKS], recv_counts[BENCH_CUDA_RANKS];
    int64_t send_at[BENCH_CUDA_RANKS], recv_at[BENCH_CUDA_RANKS];
} cuda_base;

typedef struct cuda_run {
    const bench *b;
    const bench_plan *plan; /* in use */
    int ll;                 /* the mode; the layout COMPACT stands for SLOTS then */
    int chained;            /* sums can come rounded, from other hosts */
    long n, capacity;       /* capacity: rows that out has room for */
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    void *stream, *event[4];
    int32_t *ids, *local_ids, *src_rank;
    float *weights, *out_weights;
    char *x, *x_scales, *out, *out_scales, *ein, *ein_scales, *y;
    MPI_Count *src_token;
    int has_base;
    cuda_base base;
} cuda_run;

/* ---- cuda_run.c ------------------------------------------------------------------------------ */
enum { CUDA_ON_STREAM, CUDA_BLOCKING, CUDA_BEGIN }; /* BEGIN: the first half, on the stream */
enum {
    CUDA_LEAN,
    CUDA_ALL,
    CUDA_TO_FP8
}; /* outputs: what a layer needs; all; that, and rows
    * become fp8 with float scales on their way */
void cuda_run_create(cuda_run *x);
void cuda_run_free(cuda_run *x);
void cuda_ours_route(cuda_run *x, int how);
void cuda_ours_dispatch(cuda_run *x, int how, int what);
void cuda_ours_combine(cuda_run *x, int how, int wire); /* wire: MPIX_EP_F32 or 0 */
void cuda_ours_end(cuda_run *x, int combine);           /* the second half */
/* Contents of a round, of the baseline too if there is one; then what is delivered. */
void cuda_fill(cuda_run *x, int round, int exact);
int cuda_verify_ours(cuda_run *x, int round, int exact);
int cuda_verify_base(cuda_run *x, int round, int exact);

/* ---- cuda_base.c ----------------------------------------------------------------------------- */
void cuda_base_create(cuda_run *x, long recv_capacity);
void cuda_base_free(cuda_run *x);
void cuda_base_counts(cuda_run *x);
/* On the stream; events 1 and 2 stand between the phases. Staged MPI waits for the
 * host in between. */
void cuda_base_dispatch(cuda_run *x);
void cuda_base_combine(cuda_run *x);
void cuda_base_bare(cuda_run *x); /* all-to-all-v of packed rows, those of the own rank too */

/* ---- cuda_bounds.c, cuda_overlap.c ----------------------------------------------------------- */
void cuda_bounds(cuda_run *x, bench_bounds *out);
void cuda_overlap(cuda_run *x, bench_result *r);
const char *cuda_overlap_lacks(void); /* NULL, or why this build can't */

/* ---- cuda.c ---------------------------------------------------------------------------------- */
void cuda_check(const bench *b, int err, const char *call);
double cuda_elapsed(cuda_run *x, int from, int to); /* between two events, us */
#define CUDA(call) cuda_check(x->b, (int)(call), #call)
#endif
