/*
 * call.h - calls of the library made ready with random buffers, started in any form, and compared
 * with the reference afterwards.
 *
 * A call is prepared on all ranks together (the reference gathers the choices over MPI), then
 * started, completed, checked, freed. What every rank must know of every other (contents of rows,
 * capacities, who gives weights) comes from the shape's seed; what is a rank's own business
 * (strides, where buffers lie, which outputs it wants) from its own generator.
 */
#ifndef TESTS_CALL_H
#define TESTS_CALL_H

#include "ref.h"

typedef struct {
    MPIX_Ep ep;
    MPIX_Ep_config config;
    t_area area; /* from MPIX_Ep_alloc; base NULL: none */
    t_area pool; /* the caller's own, registered; base NULL: none */
} t_ctx;

typedef struct {
    t_ctx *ctx;
    MPIX_Ep_handle h;
    /* As of the last call that was prepared on it: */
    ref_plan *plan;
    int64_t *limit; /* [ranks] rows that exist there, the others were dropped */
    int own_topk;   /* this rank's routing.topk: differs from the plan's only without tokens */
    int dispatched; /* since that route */
} t_handle;

/* What is equal on all ranks in a dispatch or combine. */
typedef struct {
    uint64_t seed;
    int64_t hidden;
    int dtype, scale_kind, flavour;
    int to, to_scale; /* dispatch: the rows' dtype and scale_kind when they arrive;
                       * to 0: as sent */
    int weights;      /* dispatch: topk_weights travel. combine: some ranks give row_weights */
    int slot_values;  /* combine */
    int extra_rows;   /* dispatch: capacity up to so many rows above what is needed */
    int wire;         /* combine in mode LL: 0 or the dtype on the wire */
    int float_sums;   /* combine in mode HT: wire is F32, which matters with two hops */
    int buffer;       /* combine in mode LL, SLOTS: the rows go through MPIX_Ep_combine_buffer */
    int drop_percent; /* dispatch: capacity up to so many percent below it
                       * (MPIX_EP_OVERFLOW_DROP) */
} t_shape;

enum { T_ROUTE, T_DISPATCH, T_COMBINE };

typedef struct {
    int kind;
    t_handle *handle;
    ref_plan *plan; /* shared with the handle and other calls */
    int own_topk;
    int64_t limit;   /* rows that exist here */
    int64_t *limits; /* [ranks] */
    t_shape shape;
    union {
        struct {
            MPIX_Ep_routing in;
            MPIX_Ep_counts out;
        } route;
        struct {
            MPIX_Ep_dispatch_in in;
            MPIX_Ep_dispatch_out out;
        } dispatch;
        struct {
            MPIX_Ep_combine_in in;
            MPIX_Ep_combine_out out;
            int ydtype;
        } combine;
    } u;
    MPIX_Xfer xfer;
    int code, done;
    t_buf bufs[24];
    const char *names[24];
    int nbufs;
} t_call;

/* ids: [ntok][topk]; without tokens topk is only what is given to the library. A topk that differs
 * on a rank with tokens is not made. */
t_call *t_call_route(t_handle *handle, int64_t ntok, int topk, const int64_t *ids, int idx_bits,
                     t_rng *own);
t_call *t_call_dispatch(t_handle *handle, const t_shape *shape, t_rng *own);
t_call *t_call_combine(t_handle *handle, const t_shape *shape, t_rng *own);
/* The blocking form, or the nonblocking one; the code is returned and kept. */
int t_call_start(t_call *call, int blocking);
void t_call_check(t_call *call);
void t_call_free(t_call *call);
/* Routings of the reference outlive the calls that use them: this frees those that are there, when
 * no call is left. */
void t_plans_free(void);
/* Start, wait, check, free; 1 if all was well. */
int t_call_run(t_call *call, int blocking);

/* A routing of one rank by a seed: [ntok][topk], no expert twice. */
enum { T_UNIFORM, T_SKEWED, T_ONE_EXPERT, T_ONE_RANK, T_NONE, T_HOLES, T_FLAVOURS };
int64_t *t_make_ids(int experts, const int *owner, int flavour, uint64_t common, int64_t ntok,
                    int topk, t_rng *own);

/* Handles; collective. */
void t_handle_init(t_handle *handle, t_ctx *ctx);
void t_handle_done(t_handle *handle, int free_it);

/* For the parts of a call. */
void t_plans_keep(ref_plan *plan, int64_t *limits);
t_call *t_call_new(t_handle *handle, int kind);
void *t_call_buf(t_call *call, const char *name, size_t n, size_t align, int rows, t_rng *own);
t_buf *t_call_find(t_call *call, const void *p);
const void *t_call_input(t_call *call, const void *p); /* from here on writing to it faults */
void t_check_route(t_call *call);
void t_check_received(const ref_plan *plan, const MPIX_Ep_counts *out);
void t_check_dispatch(t_call *call);
void t_check_combine(t_call *call);
int64_t t_stride(int64_t row, int64_t unit, t_rng *own); /* 0 or row + k units */
uint64_t t_row_seed(uint64_t seed, int rank, int64_t row, int what);
int t_gives_row_weights(const t_shape *shape, int rank);

#endif
