/*
 * bench.h - what the parts of mpix_ep_bench share: options, routings ("plans"), contents, the two
 * sides and their results.
 *
 * The benchmark is a user of the library: it includes only mpix_ep.h and MPI. Everything that it
 * expects of the library is computed here from the routing, never asked of the library.
 */
#ifndef BENCH_H
#define BENCH_H

#include "bench/stats.h"
#include "mpix_ep.h"

#include <stdint.h>
#include <stdio.h>

enum { BENCH_EXIT_OK, BENCH_EXIT_FAILED, BENCH_EXIT_USAGE, BENCH_EXIT_ERROR };
enum { BENCH_UNIFORM, BENCH_ZIPF, BENCH_FILE };
enum { BENCH_NO_BASELINE, BENCH_MPI, BENCH_NCCL };
enum { BENCH_SMS = 32 };
enum { BENCH_ALLOC = 1, BENCH_MALLOC = 2, BENCH_BOTH = 3 };
enum { BENCH_BLOCK = 10, BENCH_DROP = 3, BENCH_KEEP = BENCH_BLOCK - BENCH_DROP };

/* ---- options.c ------------------------------------------------------------------------------- */

typedef struct bench_options {
    long tokens_min, tokens_max; /* tokens per rank; sizes are tokens_min, doubled up
                                  * to tokens_max */
    long hidden;
    int topk, topk_given, num_experts;
    int layout, dtype, scale_kind, expert_align; /* ll: layout COMPACT stands for SLOTS, which has
                                                  * its rows at other places */
    int ll;
    int routing;
    double zipf_s;
    uint64_t seed;
    int metadata; /* ids and weights travel with the rows */
    /* two_hops: as the words of the option */
    int baseline, overlap, buffers, progress_thread, two_hops;
    int cuda, nsms, sms[BENCH_SMS]; /* GPU memory; numbers of SMs to go through */
    int bounds;
    int iterations, warmup, validate, full;
    char routing_path[1024], json_path[1024], plot_path[1024];
} bench_options;

enum { BENCH_OPTIONS_OK, BENCH_OPTIONS_BAD, BENCH_OPTIONS_HELP };
/* Parses the command line. BAD: a sentence in err. Writes nothing. */
int bench_options_parse(int argc, char **argv, bench_options *opt, char *err, size_t errlen);
void bench_options_usage(FILE *to);
const char *bench_dtype_name(int dtype);

/* ---- npy.c ----------------------------------------------------------------------------------- */

typedef struct bench_npy {
    int64_t tokens;
    int k;
    int32_t *ids; /* [tokens][k] */
} bench_npy;

/* Reads an array of ids: uint8, int32 or int64, C order, two dimensions. 0, or -1 with a
 * sentence in err. */
int bench_npy_read(const char *path, bench_npy *npy, char *err, size_t errlen);

/* ---- the run --------------------------------------------------------------------------------- */

typedef struct bench {
    MPI_Comm comm, ep_comm; /* of the benchmark; the one that contexts are made on, which
                             * returns errors */
    int rank, size;
    bench_options opt;
    size_t elem, row_bytes;         /* of x: one element, one row without scales */
    size_t scale_elem, scale_bytes; /* one scale, the scales of a row; 0 without */
    int ydtype;                     /* of combine's output */
    size_t y_elem, y_bytes;
    int has_combine;   /* opaque bytes have no sum */
    int *expert_begin; /* [size + 1] first expert of each rank */
    int *expert_owner; /* [num_experts] */
    int hosts;
    bench_npy file;
    char mpi_version[128], cpu_model[128], host[64];
    int cores;
    char gpu[64]; /* GPU memory only */
    int nccl_version, sms;
} bench;

/* Prints on standard error and ends the job: for what can't go wrong short of a defect or
 * lack of memory. */
void bench_die(const bench *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));
/* Ends the job with the library's own words if code is an error. */
void bench_check(const bench *b, int code, const char *call);
/* Memory that both sides use alike: aligned to 2 MB when large and offered for huge pages, cleared.
 * Dies when there is none. */
void *bench_alloc(const bench *b, size_t bytes);
/* True where progress may be shown: rank 0, a terminal. */
void bench_progress(const bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double bench_now_us(void);

/* ---- routing.c ------------------------------------------------------------------------------- */

/* The routing of one batch, of all ranks, and what follows from it for this rank by the definitions
 * in mpix_ep.h. */
typedef struct bench_plan {
    long n; /* tokens per rank */
    int k;
    int32_t *all_ids;   /* [size][n][k] */
    float *all_weights; /* [size][n][k] */
    const int32_t *ids; /* this rank's part of all_ids */
    const float *weights;
    long rows;            /* received here, padding included */
    long pairs;           /* (token, this rank) pairs: rows of COMPACT */
    long unpadded;        /* rows without padding */
    long pairs_remote;    /* pairs from other ranks */
    long sent, sent_rows; /* distinct (token, rank) pairs of this rank's tokens; rows that they
                           * become in the layout */
    int *row_rank;        /* [rows] source, -1 padding */
    long *row_token;      /* [rows] */
    int *row_expert;      /* EXPERT: [rows] global expert, -1 padding */
    long *per_rank, *per_expert, *offset; /* [size], [local experts], [local experts + 1] */
} bench_plan;

/* Collective. round 0 is the batch that is measured; others differ, and some of their choices are
 * -1. exact: weights are 0.5 or 1. */
void bench_plan_make(const bench *b, long n, int round, int exact, bench_plan *plan);
void bench_plan_free(bench_plan *plan);
int bench_local_experts(const bench *b);

/* ---- content.c ------------------------------------------------------------------------------- */

/* Values of combine's input for one dtype: the bits of 256 elements and what they are worth. */
typedef struct bench_values {
    uint64_t bits[256];
    double value[256];
    uint32_t scale_bits[256];
    double scale[256];
} bench_values;

uint64_t bench_mix(uint64_t x);
/* Of a token's row; of an expert's output for it (place: the expert, or in COMPACT
 * layout the rank). */
uint64_t bench_token_seed(const bench *b, int round, int rank, long token);
uint64_t bench_expert_seed(const bench *b, int round, int place, int rank, long token);
/* Fills or checks n bytes that depend on the seed only; the check returns the number
 * of wrong bytes. */
void bench_bytes_fill(void *dst, size_t n, uint64_t seed);
size_t bench_bytes_check(const void *src, size_t n, uint64_t seed);
/* exact: small integers whose weighted sums are exact; otherwise values of all
 * magnitudes in (-1, 1). */
void bench_values_make(const bench *b, int exact, bench_values *v);
void bench_values_row(const bench *b, const bench_values *v, uint64_t seed, void *row,
                      void *scales);
/* sum[c] += w * value, mag[c] += |w * value| over a row of such values. */
void bench_values_add(const bench *b, const bench_values *v, uint64_t seed, double w, double *sum,
                      double *mag);
double bench_decode(int dtype, const void *element);
/* Rounds to the nearest value of dtype, ties to even. */
double bench_round(int dtype, double value);
int bench_precision(int dtype); /* bits of the significand */
size_t bench_dtype_size(int dtype);

/* Contents of dispatch's input and of combine's input in the order of the plan; padding rows get
 * NaN. stride 0: dense.
 */
void bench_fill_tokens(const bench *b, const bench_plan *plan, int round, void *x, void *scales);
void bench_fill_experts(const bench *b, const bench_plan *plan, int round, const bench_values *v,
                        void *x, size_t stride, void *scales, size_t scale_stride);

/* ---- ours.c ---------------------------------------------------------------------------------- */

typedef struct bench_buffers {
    int from_ep;            /* from MPIX_Ep_alloc, otherwise from malloc */
    void *out, *out_scales; /* dispatch's output */
    void *ein, *ein_scales; /* combine's input */
    void *y;
} bench_buffers;

typedef struct bench_ours {
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    long n, capacity;
    int chained; /* combine may add sums that were rounded on other hosts */
    int nbuf;
    bench_buffers buf[2]; /* buf[0] is the one that decides */
    void *x, *x_scales;
    int *local_ids, *src_rank;
    MPI_Count *src_token;
    float *weights;
    MPI_Count recv_total, *recv_per_rank, *recv_per_expert, *expert_offset, *send_per_rank,
        *send_per_expert;
    unsigned char *token_in_rank;
    int64_t *cumulative;
} bench_ours;

/* Collective: whether sums of a context can come rounded from other hosts (two hops). */
int bench_chained(const bench *b, MPIX_Ep ep);
/* Collective. capacity: most rows that any rank receives in any batch of n tokens. progress:
 * "caller", "thread" or NULL. */
void bench_ours_create(const bench *b, long n, long capacity, int buffers, const char *progress,
                       bench_ours *o);
void bench_ours_free(const bench *b, bench_ours *o);
/* all: with every output the library has, as verification wants it; otherwise with what an
 * MoE layer needs. */
void bench_ours_route(const bench *b, bench_ours *o, const bench_plan *plan, int all);
void bench_ours_dispatch(const bench *b, bench_ours *o, const bench_plan *plan, int buf, int all,
                         MPIX_Xfer *xfer);
void bench_ours_combine(const bench *b, bench_ours *o, const bench_plan *plan, int buf,
                        MPIX_Xfer *xfer);
void bench_ours_wait(const bench *b, MPIX_Xfer *xfer, const char *call);

/* ---- baseline_mpi.c, reduce.c ---------------------------------------------------------------- */

enum { BASE_COUNTS, BASE_PACK, BASE_EXCHANGE, BASE_UNPACK, BASE_DISPATCH_PHASES };
enum { BASE_LOCAL_REDUCE, BASE_BACK, BASE_REDUCE, BASE_COMBINE_PHASES };

typedef struct bench_base {
    long n, capacity, send_capacity, recv_capacity;
    size_t record, meta_at, back_record; /* bytes of a packed row, where its metadata begin; of a
                                          * row on the way back */
    int wire;                            /* dtype on the way back */
    MPI_Datatype record_type, back_type;
    int *send_counts, *send_at, *recv_counts, *recv_at;
    int *place; /* [n][size] place in the batch for that rank, or -1 */
    unsigned char *send, *recv, *back_send, *back_recv;
    void *x, *x_scales;     /* the tokens, shared with our side */
    void *out, *out_scales; /* EXPERT: expanded rows; COMPACT: rows lie in recv */
    unsigned char *ein;     /* combine's input, rows with their scales behind them */
    size_t ein_stride;
    int *local_ids;
    float *weights;
    void *y;
    long recv_rows, rows;
    long *per_expert, *offset, *cursor; /* [local experts (+ 1)] */
    int *row_place;                     /* EXPERT: [recv_rows][k] row of out, or -1 */
} bench_base;

void bench_base_create(const bench *b, const bench_ours *o, long n, long capacity,
                       long recv_capacity, bench_base *m);
void bench_base_free(bench_base *m);
/* One call each; phases are in microseconds. */
void bench_base_dispatch(const bench *b, bench_base *m, const bench_plan *plan,
                         double phases[BASE_DISPATCH_PHASES]);
void bench_base_combine(const bench *b, bench_base *m, const bench_plan *plan,
                        double phases[BASE_COMBINE_PHASES]);
void bench_base_bare(const bench *b, bench_base *m); /* MPI_Alltoallv of what is packed */

/* y = rounded sum of w[i] * rows[i] (w NULL: plain), in float, or double for f64. scales NULL or
 * one pointer per row.
 */
void bench_reduce_row(int xdtype, int scale_kind, int ydtype, size_t hidden, int nterms,
                      const void *const rows[], const void *const scales[], const float *w,
                      void *y);

/* ---- copy.c ---------------------------------------------------------------------------------- */

/* Copies rows: row i of dst is row map[i] of src. Streaming stores where the CPU has them. */
void bench_copy_rows(void *dst, const void *src, size_t row_bytes, long rows, const int32_t *map);
const char *bench_copy_name(void);

/* ---- measure.c, overlap.c -------------------------------------------------------------------- */

typedef struct bench_side { /* one kind of buffers of ours */
    bench_stats route, dispatch, route_dispatch, combine, total;
    bench_stats gpu_route, gpu_dispatch, gpu_combine, gpu_total; /* GPU memory only */
    bench_stats gpu_to_fp8, gpu_float_sums;                      /* where they apply */
} bench_side;

typedef struct bench_overlap {
    const char *progress, *op;
    bench_stats call, compute, both;
    double ratio;
} bench_overlap;

/* --overlap in GPU memory: the halves of a call and a matrix product between them. */
enum { BENCH_BEGIN, BENCH_MIDDLE, BENCH_END, BENCH_WHOLE, BENCH_SPANS };
typedef struct bench_halves {
    const char *op;
    bench_stats alone; /* the product */
    bench_stats between[BENCH_SPANS], without[BENCH_SPANS];
} bench_halves;

/* --bounds: what limits proxied peers, GB/s; bytes 0: there are none. */
typedef struct bench_bounds {
    double bytes; /* most that come to a rank through its proxy, in a call */
    double link, copy;
    int threads;
} bench_bounds;

/* --mode ll: one kind of call. */
typedef struct bench_ll_time {
    const char *op;
    bench_stats stats;
    double speedup; /* against MPI, 0: not compared */
} bench_ll_time;
enum { BENCH_LL_TIMES = 32 };

/* What one call sends over the network, counted by the library (MPIX_Ep_get_peer). */
typedef struct bench_net {
    long pairs;             /* proxied ones, of all ranks; 0: everything is mapped */
    double messages, bytes; /* mean over pairs */
    double most;            /* messages of the pair that has most */
} bench_net;

typedef struct bench_result {
    long tokens;
    int samples;
    double bytes, wire_bytes; /* mean over ranks, per call */
    double written_max;       /* most bytes that a rank's dispatch writes */
    double written;           /* of all ranks */
    int nside;
    bench_side side[2];
    int has_base;
    bench_stats base_dispatch[BASE_DISPATCH_PHASES], base_dispatch_all;
    bench_stats base_combine[BASE_COMBINE_PHASES], base_combine_all, base_total, base_bare;
    bench_stats copy, fanout;
    bench_net net[2]; /* of a dispatch, of a combine */
    int noverlap;
    bench_overlap overlap[4];
    int nhalves; /* GPU memory only, from here on */
    bench_halves halves[2];
    bench_bounds bounds;
    int sms, has_gpu_base, has_to_fp8, has_float_sums;
    /* three phases and the whole */
    bench_stats gpu_base_dispatch[4], gpu_base_combine[4], gpu_base_bare;
    int nll;
    bench_ll_time ll[BENCH_LL_TIMES];
    int verified; /* 1 yes, 0 no, -1 not looked at */
    int base_verified;
} bench_result;

void bench_measure(const bench *b, const bench_plan *plan, bench_ours *o, bench_base *m,
                   bench_result *r);
/* samples [n] of this rank; the statistics are of the maximum over ranks. Collective. samples
 * are overwritten. */
bench_stats bench_stats_of(const bench *b, double *samples, int n);
/* Bytes that move and are written, of all ranks. Collective. */
void bench_measure_bytes(const bench *b, const bench_plan *plan, bench_result *r);
void bench_overlap_run(const bench *b, const bench_plan *plan, long capacity, bench_result *r);

/* ---- verify.c -------------------------------------------------------------------------------- */

/* Collective: 1 if all ranks found everything right. The first few faults of each rank are printed
 * on standard error.
 */
int bench_verify_ours(const bench *b, bench_ours *o, const bench_plan *plan, int buf, int round,
                      int exact);
/* The parts, for what was brought from elsewhere; NULL: not delivered. */
int bench_verify_received(const bench *b, const bench_plan *plan, const char *who, const void *x,
                          size_t stride, const void *scales, size_t scale_stride,
                          const int *local_ids, const int *src_rank, const MPI_Count *src_token,
                          const float *weights, int round);
/* Of an exact round whose sums are not rounded on their way (equal) to the bit. */
int bench_verify_sums(const bench *b, const bench_plan *plan, const char *who, const void *y,
                      int round, int exact, int equal, int chained);
int bench_verify_base(const bench *b, bench_base *m, const bench_plan *plan, int round, int exact);

/* ---- ll.c ------------------------------------------------------------------------------------ */

void bench_ll_head(const bench *b);
/* SLOTS: the rows that exist, close together; from slots or into them. */
void bench_ll_squeeze(const bench_plan *plan, void *slots, size_t size, int into, void *dense);
/* A line of the table, kept in r; against: the baseline's median, 0: none. */
void bench_ll_line(const bench *b, long n, const char *name, const bench_stats *s, double against,
                   bench_result *r);
/* One number of tokens with --mode ll: verified, measured, reported. Collective; 1 if
 * everything was right. */
int bench_ll_size(const bench *b, const bench_plan *plans, int rounds, long n, long capacity,
                  long recv_capacity, bench_result *r);

/* ---- cuda.c, cuda_run.c, cuda_ll.c, cuda_base.c, cuda_overlap.c ------------------------------ */

/* NULL, or why this build can't. */
const char *bench_cuda_available(int nccl);
int bench_cuda_default(void); /* baseline */
/* Chooses this rank's GPU and loads NCCL if it is wanted; NULL, or what is wrong. Collective. */
const char *bench_cuda_open(bench *b);
/* Verification and times of one number of tokens in GPU memory. Collective. */
void bench_cuda_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                     long recv_capacity, bench_result *r);
/* The same with --mode ll, reported too; 1 if everything was right. Collective. */
int bench_cuda_ll_size(const bench *b, const bench_plan *plans, int rounds, long capacity,
                       long recv_capacity, bench_result *r);

/* ---- report.c, json.c, curves.c -------------------------------------------------------------- */

void bench_report_head(const bench *b);
void bench_report_result(const bench *b, const bench_result *r);
void bench_report_end(const bench *b, const bench_result *r, int n);
/* 0, or -1 with a sentence in err. bench_json_available: NULL, or why there is none. */
const char *bench_json_available(void);
int bench_json_write(const bench *b, const bench_result *r, int n, char *err, size_t errlen);
/* an SVG file */
void bench_curves_write(const bench *b, const bench_result *r, int n, char *err, size_t errlen);

#endif
