/*
 * errors.h - parts of ep_errors: what an error must look like, and the groups of faults.
 */
#ifndef TESTS_ERRORS_H
#define TESTS_ERRORS_H

#include "call.h"

/* A code of the library: its kind, the argument it names ("" or NULL: any), texts that the sentence
 * must hold (NULL: none). */
#define EXPECT(code, kind, arg, ...) \
    e_expect(__FILE__, __LINE__, (code), (kind), (arg), \
             (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
int e_expect(const char *file, int line, int code, int kind, const char *arg,
             const char *const texts[]);
/* The same for the other ranks: REMOTE, naming the lowest rank that failed. */
#define EXPECT_REMOTE(code, rank) e_expect_remote(__FILE__, __LINE__, (code), (rank))
int e_expect_remote(const char *file, int line, int code, int rank);

/* A context for the faults: both layouts, two experts a rank. overflow: MPIX_EP_OVERFLOW_*. info
 * may be MPI_INFO_NULL. */
enum {
    E_TOPK = 3,
    E_TOKENS = 5,
    E_MAX_TOKENS = 8,
    E_MAX_TOPK = 63,
    E_HIDDEN = 24,
    E_ROW_BYTES = 64
};
void e_config(MPIX_Ep_config *config, int layout);
int e_create(t_ctx *ctx, int layout, MPI_Info info);
void e_destroy(t_ctx *ctx);
/* A verified route (if route is 1), dispatch and combine: the proof that a context is usable. */
int e_usable(t_handle *handle, int route);
t_call *e_route(t_handle *handle);
t_shape e_shape(int dtype, int scale_kind);

extern t_rng e_common, e_own;

void e_calls(void);       /* faults of route, dispatch, combine */
void e_create_all(void);  /* faults of create, window_size, info, environment */
void e_memory(void);      /* alloc, register, handles and their limits */
void e_objects(void);     /* NULL and freed objects, transfers in flight, transfers' own faults */
void e_handlers(void);    /* error handlers, MPIX_Error_* */
void e_ll(void);          /* the low-latency mode */
void e_unsupported(void); /* what this version does not have */
#endif
