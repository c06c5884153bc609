/*
 * ep_gpu.h - contexts in GPU memory (MPIX_EP_CUDA): what the rest of coll/ calls. The work is done by the CUDA module
 * (kernels/cuda/cuda_module.h), which is loaded when the first such context is created.
 */
#ifndef MPIX_COLL_EP_GPU_H
#define MPIX_COLL_EP_GPU_H
#include "coll/ep.h"
#include "kernels/cuda/cuda_module.h"

typedef struct mpix_ep_gpu_window {
    mpix_cuda_mem mem[MPIX_CUDA_RANKS]; /* own and the peers', mapped here */
    size_t bytes[MPIX_CUDA_RANKS];      /* as asked for */
    int used;
} mpix_ep_gpu_window;

enum { MPIX_EP_GPU_REPORTS = 1024, MPIX_EP_GPU_KNOWN = 128 };

typedef struct mpix_ep_gpu {
    const mpix_cuda_ops *ops;
    mpix_cuda_device device;
    int ipc;                      /* CUDA IPC instead of shareable allocations */
    void *stream;                 /* of blocking and i... calls */
    mpix_ep_gpu_window *windows;  /* MPIX_Ep_alloc */
    int nwindows;
    void **bases;                 /* device */
    int32_t *tables, *failed;     /* device: owner, local, mine */
    mpix_cuda_status *reports;    /* pinned, a ring */
    int64_t next_report;
    unsigned char enqueued[MPIX_EP_GPU_REPORTS]; /* nobody waits for this report */
    const void *known[MPIX_EP_GPU_KNOWN]; /* pointers found to be memory of this device */
    MPIX_Error async;             /* first error of an enqueued call */
} mpix_ep_gpu;

typedef struct mpix_ep_gpu_handle {
    mpix_ep_gpu_window window;
    mpix_cuda_handle dev;
    void *local, *results;
    void *event, *last_stream;    /* the last call of the handle, and where it went */
    int started;
} mpix_ep_gpu_handle;

/* Whether a live handle belongs to a context in GPU memory. */
int mpix_ep_gpu_is(struct mpix_ep_handle *handle);

/* Collective, end in agreement. */
int mpix_ep_gpu_create(mpix_ep *ep);
int mpix_ep_gpu_handle_create(struct mpix_ep_handle *handle);
/* Local. */
void mpix_ep_gpu_free(mpix_ep *ep);
void mpix_ep_gpu_handle_free(struct mpix_ep_handle *handle);

/* MPIX_Ep_alloc and dealloc after the first checks; return codes, raised. */
int mpix_ep_gpu_alloc(mpix_ep *ep, MPI_Count bytes, MPI_Info info, void *baseptr);
int mpix_ep_gpu_dealloc(mpix_ep *ep, void *base);
int mpix_ep_gpu_find(mpix_ep *ep, const void *p, size_t bytes, uint64_t stride, mpix_cuda_place *place);
int mpix_ep_gpu_window_create(mpix_ep *ep, size_t bytes, mpix_ep_gpu_window *window);
void mpix_ep_gpu_window_free(mpix_ep *ep, mpix_ep_gpu_window *window);

/* The calls. how: blocking, nonblocking (xfer), or on a stream. Return codes, raised. */
enum { MPIX_EP_GPU_BLOCKING, MPIX_EP_GPU_XFER, MPIX_EP_GPU_ENQUEUE };
int mpix_ep_gpu_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing, const MPIX_Ep_counts *counts, MPIX_Xfer *xfer, int how, void *stream);
int mpix_ep_gpu_dispatch(MPIX_Ep_handle handle, const MPIX_Ep_dispatch_in *in, const MPIX_Ep_dispatch_out *out, MPIX_Xfer *xfer, int how,
                         void *stream);
int mpix_ep_gpu_combine(MPIX_Ep_handle handle, const MPIX_Ep_combine_in *in, const MPIX_Ep_combine_out *out, MPIX_Xfer *xfer, int how,
                        void *stream);
/* Looks at what enqueued calls have reported. */
void mpix_ep_gpu_poll(mpix_ep *ep);
#endif
