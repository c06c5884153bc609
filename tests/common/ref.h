/*
 * ref.h - the reference that the tests compare with, written from the definitions in mpix_ep.h:
 * brute force over everybody's choices, and exact arithmetic one element at a time.
 */
#ifndef TESTS_REF_H
#define TESTS_REF_H

#include "harness.h"

/* ---- where rows go --------------------------------------------------------------------------- */
typedef struct {
    int src;       /* rank that sent it, -1: padding, or a place that is not taken (SLOTS) */
    int choice;    /* EXPERT: which choice of the token, otherwise -1 */
    int64_t token; /* its index there, -1: padding */
} ref_row;

/* A routing of all ranks. */
typedef struct {
    int ranks, experts, layout, align;
    int64_t slots; /* SLOTS: places of each source */
    int topk;      /* of the ranks that have tokens; the width of COMPACT's per-choice arrays */
    int *owner, *local; /* [experts] rank that holds it, its number there */
    int *nlocal;        /* [ranks] experts held */
    int64_t *ntok;      /* [ranks] */
    int64_t **ids;      /* [ranks] -> [ntok][topk] */
    int64_t *total;     /* [ranks] rows, padding included */
    ref_row **rows;     /* [ranks] -> [total] */
    int64_t **offset;   /* [ranks] -> [nlocal + 1] first row of each expert (EXPERT) */
    int64_t *place; /* [own ntok][topk] row of each own choice on the rank that holds its expert,
                     * -1: no choice */
} ref_plan;

/* Collective over MPI_COMM_WORLD. owner NULL: the contiguous blocks of the header. ids:
 * [ntok][topk] of this rank. */
ref_plan *ref_plan_make(int experts, const int *owner, int layout, int align, int64_t slots,
                        int64_t ntok, int topk, const int64_t *ids);
void ref_plan_free(ref_plan *plan);
/* The choice's expert if that choice goes to this rank, else -1. */
int64_t ref_choice(const ref_plan *plan, int rank, int64_t token, int choice);

/* ---- rows ------------------------------------------------------------------------------------ */
size_t ref_size(int dtype); /* bytes of an element */
const char *ref_name(int dtype);
size_t ref_scales(int scale_kind, int64_t hidden); /* bytes of a row's scales */
/* Contents by a seed. RAW: any bits. MIXED: finite numbers whose sums depend on the order. WILD:
 * also infinities, NaN, zeros, and the smallest and largest numbers. */
enum { REF_RAW, REF_MIXED, REF_WILD };
void ref_fill(uint64_t seed, int dtype, int64_t hidden, int flavour, void *row);
void ref_fill_scales(uint64_t seed, int scale_kind, int64_t hidden, void *scales);
float ref_weight(uint64_t seed);

/* ---- numbers --------------------------------------------------------------------------------- */
double ref_load(int dtype, const void *row, int64_t i); /* exact; F64 to BF16 and fp8 */
/* one rounding to nearest even; F64, F32, F16, BF16 */
void ref_store(int dtype, void *row, int64_t i, double value);
int ref_same(int dtype, const void *a, const void *b, int64_t i); /* same bits, or both NaN */

/* A row as dispatch converts it: rounded once, or quantised to fp8 with scales as
 * mpix_ep.h defines it. */
void ref_convert(int dtype, const void *x, int64_t hidden, int to, int to_scale, void *y,
                 void *scales);

/* One row that enters a sum, and its factors in order. */
typedef struct {
    const void *x, *scales;
    int nw;
    float w[2];
    int group; /* rank it comes from; equal ones adjacent */
} ref_term;

/* y = groups in order (terms in order) + bias rows, as MPIX_Ep_combine_in says. bias rows
 * have y's dtype. */
void ref_sum(int nterms, const ref_term *terms, int xdtype, int scale_kind, int nbias,
             const void *const bias[], int ydtype, int64_t hidden, void *y);

/* Checks of the above that need no library, reported as failures. */
void ref_selftest(void);

#endif
