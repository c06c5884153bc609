/*
 * record.h - what travels beside a row: the token's number and, for each of its choices, what the
 * receiver has to know. One description of every form, for C and for CUDA.
 *
 * A record is a head, the token's number in 4 or 8 bytes, and behind it arrays of 4 bytes for each
 * choice. In host memory the head has 4 bytes, and arrays are as wide as the routing. In GPU memory
 * arrays have max_topk elements, so that a place needs no routing; the head has 8 bytes, as the
 * output's numbers of tokens do, but 4 in LL.
 *
 *   form      head  arrays                                 where
 *   row       4, 8  local expert at the receiver or -1,    COMPACT, mapped and proxied; in host
 *                   weight                                 memory LL, and EXPERT proxied
 *   choice    4     the row's weight (one element)         EXPERT, mapped, in host memory
 *   forward   4, 8  expert or -1, its row or NONE, weight  two hops, to the forwarder; combine's
 *                                                          requests to it
 *   pair      8     row at the receiver or -1, weight      EXPERT proxied, in GPU memory; combine's
 *                                                          requests
 *   ll        4     local expert or -1, this rank's        LL in GPU memory
 *                   choices of it before, weight
 *   expert    0     row or -1, dispatch's weight,          EXPERT in GPU memory: what a rank
 *                   combine's weight; then the token       knows of a pair that came
 *
 * A weight is there if the receiver wants weights; who reads it knows. Combine has two forms more,
 * in host memory alone: a packed row's weight and slot values (host/remote_batch.c), and LL's
 * answers, whose head is the number of rows in the sum (host_ll/combine.c).
 */
#ifndef MPIX_COLL_RECORD_H
#define MPIX_COLL_RECORD_H
#include <stddef.h>
#include <stdint.h>

enum { MPIX_RECORD_HOST = 4, MPIX_RECORD_GPU = 8 }; /* bytes of heads */

/* Arrays of each form, by number. */
enum { MPIX_RECORD_ROW_LOCAL, MPIX_RECORD_ROW_WEIGHT, MPIX_RECORD_ROW };
enum {
    MPIX_RECORD_FORWARD_ID,
    MPIX_RECORD_FORWARD_ROW,
    MPIX_RECORD_FORWARD_WEIGHT,
    MPIX_RECORD_FORWARD
};
enum { MPIX_RECORD_PAIR_ROW, MPIX_RECORD_PAIR_WEIGHT, MPIX_RECORD_PAIR };
enum { MPIX_RECORD_LL_LOCAL, MPIX_RECORD_LL_BEFORE, MPIX_RECORD_LL_WEIGHT, MPIX_RECORD_LL };
enum {
    MPIX_RECORD_EXPERT_ROW,
    MPIX_RECORD_EXPERT_WEIGHT,
    MPIX_RECORD_EXPERT_RETURNED,
    MPIX_RECORD_EXPERT_TOKEN /* one element, behind the arrays */
};
#define MPIX_RECORD_NO_ROW UINT32_MAX /* forward: none, or another choice's */

#ifdef __CUDACC__ /* kernels: machine code as of the same arithmetic by hand */
#define MPIX_RECORD_FN __host__ __device__ __forceinline__
#else
#define MPIX_RECORD_FN static inline
#endif

/* Bytes of a record of so many arrays. */
MPIX_RECORD_FN size_t mpix_record_bytes(size_t head, int arrays, size_t width) {
    return head + 4 * (size_t)arrays * width;
}
/* Element k of an array. */
MPIX_RECORD_FN int32_t *mpix_record_int(void *at, size_t head, int array, int width, int k) {
    return (int32_t *)(void *)((char *)at + head) + (array * width + k);
}
MPIX_RECORD_FN float *mpix_record_float(void *at, size_t head, int array, int width, int k) {
    return (float *)(void *)((char *)at + head) + (array * width + k);
}
MPIX_RECORD_FN const int32_t *mpix_record_int_of(const void *at, size_t head, int array, int width,
                                                 int k) {
    return (const int32_t *)(const void *)((const char *)at + head) + (array * width + k);
}
MPIX_RECORD_FN const float *mpix_record_float_of(const void *at, size_t head, int array, int width,
                                                 int k) {
    return (const float *)(const void *)((const char *)at + head) + (array * width + k);
}
/* The same as the number of a word of the record, where the head is one word. */
MPIX_RECORD_FN int mpix_record_word(int array, int width, int k) { return 1 + array * width + k; }

#ifndef __cplusplus
#include "mpix_ep.h"

#include <string.h>

/* ---- host memory ----------------------------------------------------------------------------- */

/* What a record is made of. */
typedef struct mpix_ep_record {
    int32_t token;
    int width;
    const int32_t *ids;   /* [width] experts, -1: none */
    const float *weights; /* [width], or NULL */
} mpix_ep_record;

/* Form row, for rank; owner, local: of each expert. */
static inline void mpix_record_row_write(void *to, const mpix_ep_record *r, const int *owner,
                                         const int *local, int rank) {
    int32_t *here = mpix_record_int(to, MPIX_RECORD_HOST, MPIX_RECORD_ROW_LOCAL, r->width, 0);
    *(int32_t *)to = r->token;
    for (int k = 0; k < r->width; k++)
        here[k] = r->ids[k] >= 0 && owner[r->ids[k]] == rank ? local[r->ids[k]] : -1;
    if (r->weights)
        memcpy(mpix_record_float(to, MPIX_RECORD_HOST, MPIX_RECORD_ROW_WEIGHT, r->width, 0),
               r->weights, (size_t)r->width * sizeof(float));
}

/* Form choice. */
static inline void mpix_record_choice_write(void *to, const mpix_ep_record *r, int choice) {
    float w = r->weights ? r->weights[choice] : 0;
    *(int32_t *)to = r->token;
    memcpy((char *)to + MPIX_RECORD_HOST, &w, sizeof w);
}

static inline int32_t mpix_record_token(const void *from) { return *(const int32_t *)from; }
static inline const int32_t *mpix_record_local(const void *from) {
    return mpix_record_int_of(from, MPIX_RECORD_HOST, MPIX_RECORD_ROW_LOCAL, 0, 0);
}

/* What the output wants to know of the row that a record of form row came with; choice: the one
 * whose weight is the row's, -1: the row is of all of them. */
static inline void mpix_record_row_read(const void *from, int width, int choice,
                                        const MPIX_Ep_dispatch_out *out, int64_t row) {
    size_t w = (size_t)width;
    const float *weights = mpix_record_float_of(from, MPIX_RECORD_HOST, MPIX_RECORD_ROW_WEIGHT,
                                                width, 0);
    if (out->src_token)
        out->src_token[row] = mpix_record_token(from);
    if (out->local_ids)
        memcpy(out->local_ids + (size_t)row * w, mpix_record_local(from), w * sizeof(int));
    if (!out->topk_weights)
        return;
    if (choice < 0)
        memcpy(out->topk_weights + (size_t)row * w, weights, w * sizeof(float));
    else
        out->topk_weights[row] = weights[choice];
}

/* The same of form choice. */
static inline void mpix_record_choice_read(const void *from, const MPIX_Ep_dispatch_out *out,
                                           int64_t row) {
    if (out->src_token)
        out->src_token[row] = mpix_record_token(from);
    if (out->topk_weights)
        memcpy(&out->topk_weights[row], (const char *)from + MPIX_RECORD_HOST, sizeof(float));
}

/* Form forward, as it lies there. */
typedef struct mpix_ep_forward_record {
    const int32_t *ids;
    const uint32_t *rows;
    const float *weights;
    int32_t token;
} mpix_ep_forward_record;

static inline mpix_ep_forward_record mpix_record_forward_read(const void *from, int width) {
    return (mpix_ep_forward_record){
        mpix_record_int_of(from, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_ID, width, 0),
        (const uint32_t *)mpix_record_int_of(from, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_ROW, width,
                                             0),
        mpix_record_float_of(from, MPIX_RECORD_HOST, MPIX_RECORD_FORWARD_WEIGHT, width, 0),
        mpix_record_token(from)};
}
#endif
#endif
