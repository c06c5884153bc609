/*
 * path.h - the table of paths. A path is one way of carrying out route, dispatch and combine: which
 * memory the rows lie in, which mode, and what moves them.
 *
 * A context has one path, chosen from its configuration when it is created (mpix_ep_path_of). The
 * public calls go through the path's functions, and nothing outside of a path's folder asks which
 * path it is. What a path supports stands here too, layout by layout. `mpix_ep_info --paths`,
 * README and the manual print it; tests/paths.sh runs what it claims, and what it denies.
 *
 * What a path does not support is MPIX_ERRK_UNSUPPORTED, with the path's name and the nearest one
 * that does (mpix_ep_path_refuse).
 */
#ifndef MPIX_COLL_PATH_H
#define MPIX_COLL_PATH_H
#include "base/status.h"

#include <stdint.h>

struct mpix_ep;
struct mpix_ep_handle;
struct mpix_ep_call;
struct mpix_params;

enum { MPIX_EP_LAYOUTS = MPIX_EP_SLOTS + 1 };

/* What a path may support in a layout, by number. mpix_ep_features says each in words. */
typedef enum mpix_ep_feature {
    MPIX_EP_CAN_MAPPED,          /* all peers mapped */
    MPIX_EP_CAN_PROXIED,         /* all peers proxied */
    MPIX_EP_CAN_MIXED,           /* some of each */
    MPIX_EP_CAN_TWO_HOPS,        /* parameter two_hops */
    MPIX_EP_CAN_COPY_ENGINES,    /* config.num_sms = MPIX_EP_SMS_NONE */
    MPIX_EP_CAN_BLOCKING,        /* forms of the calls: without a last argument */
    MPIX_EP_CAN_NONBLOCKING,     /* i... */
    MPIX_EP_CAN_STREAM,          /* ..._enqueue */
    MPIX_EP_CAN_HALVES,          /* ..._begin_enqueue, ..._end_enqueue */
    MPIX_EP_CAN_CAPTURE,         /* in a CUDA graph */
    MPIX_EP_CAN_ROUTE_COUNTS,    /* route tells what is received */
    MPIX_EP_CAN_DISPATCH_COUNTS, /* dispatch does */
    MPIX_EP_CAN_ANY_DTYPE,       /* rows of all dtypes; in combine all but BYTES */
    MPIX_EP_CAN_NARROW,          /* dispatch rounds to a narrower dtype */
    MPIX_EP_CAN_QUANTISE,        /* dispatch makes rows fp8 with scales */
    MPIX_EP_CAN_ANY_OUTPUT,      /* dispatch's rows need no memory from MPIX_Ep_alloc */
    MPIX_EP_CAN_ANY_INPUT,       /* nor do combine's */
    MPIX_EP_CAN_OWNER_WEIGHTS,   /* combine's in.topk_weights */
    MPIX_EP_CAN_WIRE_F32,        /* combine's in.wire = F32 for rows of another dtype but F64 */
    MPIX_EP_CAN_WIRE_ANY,        /* any of F64, F32, F16, BF16 */
    MPIX_EP_CAN_COMBINE_BUFFER,  /* MPIX_Ep_combine_buffer */
    MPIX_EP_CAN_MASKING,         /* config.masking, MPIX_Ep_set_mask */
    MPIX_EP_FEATURES
} mpix_ep_feature;

typedef struct mpix_ep_feature_text {
    const char *name; /* as tests/paths.sh and --paths=cells have it */
    const char *what; /* what is asked for, in the matrix and in errors */
} mpix_ep_feature_text;
extern const mpix_ep_feature_text mpix_ep_features[MPIX_EP_FEATURES];

/* Numbers that a path has limits for; 0: none of its own. */
typedef struct mpix_ep_limits {
    int ranks;
    int expert_topk;       /* config.max_topk in the EXPERT layout */
    int64_t rows;          /* that a rank may receive in a batch */
    int64_t expert_places; /* EXPERT: (experts of a rank + 1) * (ranks + 1) */
    uint64_t window;       /* bytes of host memory for proxied peers, per handle: below this */
} mpix_ep_limits;

/* The form of a call. */
typedef struct mpix_ep_form {
    enum { MPIX_EP_BLOCKING, MPIX_EP_NONBLOCKING, MPIX_EP_STREAM, MPIX_EP_BEGIN } how;
    MPIX_Xfer *xfer; /* NONBLOCKING */
    void *stream;    /* STREAM, BEGIN: a cudaStream_t */
} mpix_ep_form;

/*
 * Functions that a path has nothing to do in are NULL, but for those marked *. "Raises": returns an
 * MPI code; others return an error kind, 0 for none.
 */
typedef struct mpix_ep_path {
    const char *name;
    const char *what;                        /* one sentence */
    int number;                              /* in mpix_ep_paths */
    int memkind, mode, copy_engine, layouts; /* configurations that choose it; layouts: bits */
    uint32_t can[MPIX_EP_LAYOUTS];           /* bits by mpix_ep_feature; 0: not this layout */
    uint32_t moot[MPIX_EP_LAYOUTS];          /* bits of what can't be asked for there */
    mpix_ep_limits limits;

    /* *Window memory at most, see MPIX_Ep_window_size. */
    int (*window_size)(const MPIX_Ep_config *config, const struct mpix_params *params, int ranks,
                       int ranks_per_host, MPI_Count *bytes);

    /* A context, in the order of its life. *layout: local; sizes of its windows, its own state. */
    int (*layout)(struct mpix_ep *ep, int proxied_peers);
    int (*create)(
        struct mpix_ep *ep); /* collective, ends in agreement; windows and proxy are there */
    int (*part)(struct mpix_ep *ep);  /* collective, bounded; before windows go */
    void (*stop)(struct mpix_ep *ep); /* local; calls end, the proxy is still there */
    void (*free)(struct mpix_ep *ep); /* *local; the proxy does nothing more */
    const MPIX_Error *(*async_error)(struct mpix_ep *ep); /* first of a call in a stream, or NULL */
    /* About proxied peers, if that is not the same for all paths: ways, and where
     * rows go through. */
    void (*peer)(const struct mpix_ep *ep, MPIX_Ep_peer *peer, const char **memory);

    /* Handles. create: collective, ends in agreement. with_context: the context ends. */
    int (*handle_create)(struct mpix_ep_handle *handle);
    void (*handle_free)(struct mpix_ep_handle *handle, int with_context);

    /* *Memory. alloc: collective, raises; dealloc: raises. find: peers reach it directly. */
    int (*alloc)(struct mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr);
    int (*dealloc)(struct mpix_ep *ep, void *base);
    int (*find)(struct mpix_ep *ep, const void *base, size_t bytes);

    /* *The calls; the handle is live. Raise. end: the second half, of a dispatch or a combine. */
    int (*route)(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                 const MPIX_Ep_counts *counts, const mpix_ep_form *form);
    int (*dispatch)(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                    const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form);
    int (*combine)(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                   const MPIX_Ep_combine_out *out, const mpix_ep_form *form);
    int (*dispatch_end)(struct mpix_ep_handle *handle, void *stream);
    int (*combine_end)(struct mpix_ep_handle *handle, void *stream);
    int (*combine_buffer)(struct mpix_ep_handle *handle, MPIX_Ep_rows *rows);

    /* Host memory, for the engine: bytes that a call has for each rank; whether a peer's part is
     * here though the call has not come to it. */
    size_t call_bytes;
    int (*part_here)(const struct mpix_ep_call *call, int peer);
} mpix_ep_path;

/* path.c. The table ends with an entry without a name. */
extern const mpix_ep_path mpix_ep_paths[];
/* The path of a configuration whose enumerations are in range. */
const mpix_ep_path *mpix_ep_path_of(const MPIX_Ep_config *config);

/* refuse.c */
static inline int mpix_ep_path_can(const mpix_ep_path *path, int layout, mpix_ep_feature feature) {
    return path->can[layout] >> feature & 1;
}
/* UNSUPPORTED: the path has not got the feature, or (MPIX_EP_FEATURES) the layout. arg: the
 * argument that asks for it; why: a clause more, or NULL. */
int mpix_ep_path_refuse(const mpix_ep_path *path, int layout, mpix_ep_feature feature,
                        const char *arg, const char *why);
/* 0 if the path has the feature in this layout, or nobody can ask for it there, else what refuse
 * returns. */
static inline int mpix_ep_path_need(const mpix_ep_path *path, int layout, mpix_ep_feature feature,
                                    const char *arg, const char *why) {
    return (path->can[layout] | path->moot[layout]) >> feature & 1
               ? 0
               : mpix_ep_path_refuse(path, layout, feature, arg, why);
}
const char *mpix_ep_layout_name(int layout);
#endif
