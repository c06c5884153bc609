/*
 * gpu.h - contexts in GPU memory (MPIX_EP_CUDA): what the rest of coll/ calls. The work is done by
 * the CUDA module (src/gpu/cuda_module.h), which is loaded when the first such context is created.
 */
#ifndef MPIX_COLL_EP_GPU_H
#define MPIX_COLL_EP_GPU_H
#include "coll/ep.h"
#include "coll/record.h"
#include "gpu/gpu.h"

typedef mpix_gpu_window mpix_ep_gpu_window;

enum { MPIX_EP_GPU_REPORTS = 4096, MPIX_EP_GPU_KNOWN = 128 };
/* Places of reports: free, of an enqueued call (whose place may be taken over), of a transfer. */
enum { MPIX_EP_GPU_REPORT_FREE, MPIX_EP_GPU_REPORT_ENQUEUED, MPIX_EP_GPU_REPORT_HELD };

typedef struct mpix_ep_gpu_remote mpix_ep_gpu_remote;

typedef struct mpix_ep_gpu {
    const mpix_cuda_ops *ops;
    mpix_cuda_device device;
    int ipc;      /* CUDA IPC instead of shareable allocations */
    void *stream; /* of blocking and i... calls */
    uint64_t stream_id;
    mpix_ep_gpu_window *windows; /* [MPIX_CUDA_ALLOCATIONS] MPIX_Ep_alloc; used: 0 free, 1, 2: freed
                                  * by the caller after a failure */
    int nwindows;                /* those behind were never used */
    mpix_ep_gpu_window *kept;    /* CUDA IPC: given back here, and not known to be on all ranks */
    int nkept, room, alive;      /* alive: windows of allocations and handles; each finds room when
                                  * it is given back */
    uint64_t serial;             /* of the last window; the same on all ranks */
    void **bases;                /* device */
    int32_t *alarm;              /* pinned: some report has been written */
    int32_t *tables, *failed;    /* device: owner, local, mine */
    mpix_cuda_status *reports;   /* pinned, a ring */
    int64_t next_report;
    unsigned char report_states[MPIX_EP_GPU_REPORTS];
    struct mpix_ep_gpu_call *spare; /* with its event and its report: for a call that gets none */
    /* pointers found to be memory of this device */
    struct {
        const void *p;
        uint64_t allocation;
    } known[MPIX_EP_GPU_KNOWN];
    MPIX_Error async;                  /* first error of an enqueued call */
    struct mpix_ep_gpu_remote *remote; /* gpu/remote.c; NULL: all peers are mapped */
} mpix_ep_gpu;

typedef struct mpix_ep_gpu_handle {
    mpix_ep_gpu_window window;
    mpix_cuda_handle dev;
    void *local, *results;
    int counted; /* copy engines: the host knows the counts of the last route */
    void *event; /* the last eager call of the handle, and the number of the stream
                  * where it went */
    uint64_t last_stream;
    int started;
    unsigned long long capture; /* the last captured call: its capture, 0: none */
    void *capture_event;
    uint64_t capture_stream;
    mpix_cuda_status *captured; /* pinned: the report of captured calls */
    void *buffer;               /* low latency: of MPIX_Ep_combine_buffer, NULL: none */
    int open;                   /* MPIX_CUDA_DISPATCH or COMBINE: begun and not ended */
    unsigned long long open_capture;
    mpix_cuda_dispatch dispatch; /* of the open call */
    mpix_cuda_combine combine;
} mpix_ep_gpu_handle;

typedef struct mpix_ep_gpu_copy { /* an output in pageable memory, filled at the end */
    MPI_Count *to;
    const int64_t *from;
    int64_t n;
} mpix_ep_gpu_copy;

typedef struct mpix_ep_gpu_call { /* a blocking or nonblocking call, while it is waited for */
    struct mpix_xfer xfer;        /* first */
    mpix_ep *ep;
    struct mpix_ep_handle *handle;
    void *event;
    mpix_cuda_status *report;
    mpix_ep_gpu_copy copies[7];
    int ncopies, broken;
    char why[MPIX_CUDA_WHY];
} mpix_ep_gpu_call;

typedef struct mpix_ep_gpu_begun { /* a call between its start and its launch */
    int how, kind;                 /* kind: an error of the caller's that is known already */
    void *stream;
    uint64_t stream_id;         /* 0: it can't be told apart from others */
    unsigned long long capture; /* the stream is in this capture, 0: in none */
    mpix_ep_gpu_call *call;     /* NULL: nobody waits */
    MPIX_Xfer *xfer;
    mpix_cuda_status *report;
} mpix_ep_gpu_begun;

/* What the table of paths has. ht_window_size: of the paths of mode HT. */
int mpix_ep_gpu_ht_window_size(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                               int ranks_per_host, MPI_Count *bytes);
int mpix_ep_gpu_ll_window_size(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                               int ranks_per_host, MPI_Count *bytes);
int mpix_ep_gpu_layout(mpix_ep *ep, int proxied_peers);
int mpix_ep_gpu_create(mpix_ep *ep);
/* With CUDA IPC nobody maps what a peer is about to free. */
int mpix_ep_gpu_part(mpix_ep *ep);
void mpix_ep_gpu_stop(mpix_ep *ep);
void mpix_ep_gpu_free(mpix_ep *ep);
const MPIX_Error *mpix_ep_gpu_async_error(mpix_ep *ep);
void mpix_ep_gpu_peer(const mpix_ep *ep, MPIX_Ep_peer *peer, const char **memory);
int mpix_ep_gpu_handle_create(struct mpix_ep_handle *handle);
void mpix_ep_gpu_handle_free(struct mpix_ep_handle *handle, int with_context);
int mpix_ep_gpu_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr);
int mpix_ep_gpu_dealloc(mpix_ep *ep, void *base);
int mpix_ep_gpu_reaches(mpix_ep *ep, const void *base, size_t bytes);
int mpix_ep_gpu_route(struct mpix_ep_handle *handle, const MPIX_Ep_routing *routing,
                      const MPIX_Ep_counts *counts, const mpix_ep_form *form);
int mpix_ep_gpu_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                         const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form);
int mpix_ep_gpu_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                        const MPIX_Ep_combine_out *out, const mpix_ep_form *form);
int mpix_ep_gpu_ll_dispatch(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                            const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form);
int mpix_ep_gpu_ll_combine(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                           const MPIX_Ep_combine_out *out, const mpix_ep_form *form);
int mpix_ep_gpu_dispatch_end(struct mpix_ep_handle *handle, void *stream);
int mpix_ep_gpu_combine_end(struct mpix_ep_handle *handle, void *stream);
int mpix_ep_gpu_ll_combine_buffer(struct mpix_ep_handle *handle, MPIX_Ep_rows *rows);

/* Limits in the table: words of shared memory for the rows that begin at each expert (LL, EXPERT);
 * bytes of a handle's window for proxied peers. */
enum { MPIX_EP_GPU_LL_SHARED_WORDS = 11000 };
#define MPIX_EP_GPU_WINDOW_MOST (UINT64_C(1) << 35)

/* Rows by copy engines (gpu/copy_engine.c). Geometry: what that adds to a source's block; then to a
 * window of so many bytes, whose new size it returns. Counts: waits until the host knows the
 * routing's; a kind. */
void mpix_ep_gpu_copy_engine_block(mpix_cuda_handle *d);
size_t mpix_ep_gpu_copy_engine_window(mpix_ep *ep, mpix_cuda_handle *d, size_t bytes);
int mpix_ep_gpu_copy_engine_create(mpix_ep *ep, mpix_cuda_handle *d, char *why);
void mpix_ep_gpu_copy_engine_free(mpix_ep *ep, mpix_cuda_handle *d);
int mpix_ep_gpu_copy_engine_counts(struct mpix_ep_handle *handle);

/* What an item between proxied peers holds in the EXPERT layout, in rows of max_row_bytes: partial
 * sums in float. */
enum { MPIX_EP_GPU_REMOTE_PARTIAL = 2 };
/* What the EXPERT layout adds to a source's block of so many bytes: its chunks and where they are
 * told of. The block's bytes then. */
size_t mpix_ep_gpu_expert_block(size_t block, int64_t tokens, int ranks, mpix_cuda_expert *x);
/* Proxied peers (gpu/remote.c); nothing where there are none. create, handle: collective, end in
 * agreement; handle: d->block is final, and hosts are filled in anyhow. begin, end: of a handle's
 * counting at its index. settle: waits, with a bound, until the proxy has moved what finished
 * kernels have queued. bytes: of a handle's window. */
int mpix_ep_gpu_remote_create(mpix_ep *ep);
void mpix_ep_gpu_remote_free(mpix_ep *ep);
void mpix_ep_gpu_remote_settle(mpix_ep *ep);
int mpix_ep_gpu_remote_handle(struct mpix_ep_handle *handle, mpix_cuda_handle *d);
int mpix_ep_gpu_remote_begin(struct mpix_ep_handle *handle, const mpix_cuda_handle *d, char *why);
void mpix_ep_gpu_remote_end(struct mpix_ep_handle *handle, const mpix_cuda_handle *d);
size_t mpix_ep_gpu_remote_bytes(const MPIX_Ep_config *config, const mpix_params *params,
                                const mpix_cuda_ll *ll, int ranks, int ranks_per_host);

/* Low latency (gpu/ll.c). geometry: sizes and places of a handle's window, equal on all ranks;
 * UNSUPPORTED or NO_MEM. */
int mpix_ep_gpu_ll_geometry(const MPIX_Ep_config *config, const mpix_ep_placement *placement,
                            mpix_cuda_ll *ll);
/* a code, raised */
/* gpu/call.c: memory that this context's device may use; an output of counts, which the kernel
 * writes (*direct) or the call's end copies. */
int mpix_ep_gpu_check(mpix_ep *ep, const void *p, const char *arg);
int mpix_ep_gpu_count_output(mpix_ep *ep, MPI_Count *to, const int64_t *from, int64_t n,
                             const char *arg, mpix_ep_gpu_call *call, int64_t **direct);

int mpix_ep_gpu_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride,
                     mpix_ep_place *place);
int mpix_ep_gpu_window_create(mpix_ep *ep, size_t bytes, mpix_ep_gpu_window *window);
/* Windows that are given back later, when nothing may fail. */
int mpix_ep_gpu_keep_room(mpix_ep_gpu *gpu);
void mpix_ep_gpu_window_made(mpix_ep_gpu *gpu, mpix_ep_gpu_window *window);
void mpix_ep_gpu_window_back(mpix_ep *ep, mpix_ep_gpu_window *window);
int mpix_ep_gpu_windows_collect(mpix_ep *ep);
void mpix_ep_gpu_window_free(mpix_ep *ep, mpix_ep_gpu_window *window);

/* gpu/call.c: dispatch and combine whose arguments for the module are filled by fill. */
typedef int mpix_ep_gpu_dispatch_fill(struct mpix_ep_handle *handle, MPIX_Ep_dispatch_in *in,
                                      MPIX_Ep_dispatch_out *out, mpix_cuda_dispatch *c,
                                      mpix_ep_gpu_call *call);
typedef int mpix_ep_gpu_combine_fill(struct mpix_ep_handle *handle, MPIX_Ep_combine_in *in,
                                     MPIX_Ep_combine_out *out, mpix_cuda_combine *c);
int mpix_ep_gpu_dispatch_by(struct mpix_ep_handle *handle, const MPIX_Ep_dispatch_in *in,
                            const MPIX_Ep_dispatch_out *out, const mpix_ep_form *form,
                            mpix_ep_gpu_dispatch_fill *fill);
int mpix_ep_gpu_combine_by(struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                           const MPIX_Ep_combine_out *out, const mpix_ep_form *form,
                           mpix_ep_gpu_combine_fill *fill);
/* What combine's kernels take of the arguments as they are, in both modes. */
void mpix_ep_gpu_combine_set(const struct mpix_ep_handle *handle, const MPIX_Ep_combine_in *in,
                             const MPIX_Ep_combine_out *out, mpix_cuda_combine *c);

/* The frame of every call (gpu/stream.c): start, checks of arguments (if they fail in a capture,
 * the call ends there), order, launch, finish. start: 0, or 1 and the code to return; end: the call
 * that this one ends, 0: none. order: kind, why on error. finish: the code to return; kind: the
 * caller's own error, launch: order's or the launch's. */
int mpix_ep_gpu_start(struct mpix_ep_handle *handle, const mpix_ep_form *form, int end,
                      mpix_ep_gpu_begun *s, int *code);
int mpix_ep_gpu_order(struct mpix_ep_handle *handle, const mpix_ep_gpu_begun *s, char *why);
int mpix_ep_gpu_finish(struct mpix_ep_handle *handle, mpix_ep_gpu_begun *s, int kind, int launch,
                       const char *why);
/* The context's spare call. */
int mpix_ep_gpu_spare_make(mpix_ep *ep);
void mpix_ep_gpu_spare_free(mpix_ep *ep);
/* Looks at what enqueued calls have reported. */
void mpix_ep_gpu_poll(mpix_ep *ep);
#endif
