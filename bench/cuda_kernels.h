/* cuda_kernels.h - the kernels of mpix_ep_bench's baselines in GPU memory. Streams are
 * cudaStream_t; results are cudaError_t. */
#ifndef BENCH_CUDA_KERNELS_H
#define BENCH_CUDA_KERNELS_H
#include <stdint.h>

enum { BENCH_CUDA_RANKS = 32 };

typedef struct bench_pack {
    const char *x, *scales, *ids, *weights; /* NULL: not sent */
    char *to[BENCH_CUDA_RANKS];             /* where this rank's batch for each rank begins */
    const int32_t *place;                   /* [n][size] */
    /* bytes: row, its scales, ids of a token; places in a record */
    int64_t n, row, scale_row, meta, record, scale_at, meta_at;
    int size;
} bench_pack;

typedef struct bench_unpack {
    const char *recv;
    int64_t rows, record, meta_at;
    int k, first, local; /* this rank's experts */
    int32_t *local_ids;
    float *weights;
} bench_unpack;

typedef struct bench_sum {
    const char *from[BENCH_CUDA_RANKS]; /* rows of each rank for this one's tokens, in the
                                         * order of place */
    const int32_t *place;
    char *y;
    int64_t n, hidden, stride, scale_at; /* bytes from row to row; where a row's scales begin */
    int size, dtype, ydtype, scale_kind;
} bench_sum;

#ifdef __cplusplus
extern "C" {
#endif
/* Places of tokens in the batch for each rank, tokens ascending, and their numbers. */
int bench_cuda_count(const int32_t *ids, const int32_t *owner, int64_t n, int k, int size,
                     int32_t *place, int32_t *counts, void *stream);
int bench_cuda_pack(const bench_pack *p, void *stream);
int bench_cuda_unpack(const bench_unpack *u, void *stream);
int bench_cuda_sum(const bench_sum *s, void *stream);
#ifdef __cplusplus
}
#endif
#endif
