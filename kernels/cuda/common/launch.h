/* launch.h - the kernels' launchers, inside the CUDA module. */
#ifndef MPIX_KERNELS_CUDA_LAUNCH_H
#define MPIX_KERNELS_CUDA_LAUNCH_H
#include "gpu/cuda_module.h"

#include <cuda_runtime.h>

#include <limits.h>

/* Loads kernels on the current device. *arch: lowered to the virtual architecture (as 90) that a
 * kernel's code was compiled for, which says what device code it has: PTX of an older one runs on
 * every newer device. */
template <class K> static inline cudaError_t mpix_cuda_load(int *arch, K kernel) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, kernel);
    if (err == cudaSuccess && a.ptxVersion < *arch)
        *arch = a.ptxVersion;
    return err;
}
template <class K, class... M>
static inline cudaError_t mpix_cuda_load(int *arch, K kernel, M... more) {
    cudaError_t err = mpix_cuda_load(arch, kernel);
    return err == cudaSuccess ? mpix_cuda_load(arch, more...) : err;
}

/* What kernels of an architecture and the driver can do on a device; bulk copies, and launches that
 * overlap, in graphs too. The one place that decides. */
static inline void mpix_cuda_decide(mpix_cuda_device *d, int arch, int driver) {
    d->bulk = arch != INT_MAX && arch >= 90;
    d->early = d->bulk && driver >= 12030;
}

/* Shared memory that a block can have for rings, of `most` that it wants; extra: what its
 * kernel has anyhow. */
static inline size_t mpix_cuda_room(const mpix_cuda_device *d, size_t most, size_t extra) {
    size_t all = (size_t)d->smem > extra ? (size_t)d->smem - extra : 0;
    return all < most ? all : most;
}

/* How rows go through rings of shared memory, one of each warp. Whole rows, in few warps, are best
 * where they are large; small ones need more in flight (doc/performance.md). What a block can have
 * is less on some devices: then pieces are smaller, at least three of them in a ring. */
struct mpix_cuda_rings {
    int pieces, piece, warps, stages, pending;
    size_t smem;
};
/* row: bytes, a multiple of 16; extra: bytes of a stage besides its piece; few, many: room that
 * few warps and many want; deep: few may have more than three stages. */
static inline mpix_cuda_rings mpix_cuda_rings_of(int64_t row, size_t extra, size_t few, size_t many,
                                                 bool deep) {
    const int FEW = 4, MANY = 8, LEAST = 3, MOST = 24, LARGE = 7168;
    mpix_cuda_rings r;
    int most = (int)(few / (FEW * LEAST) - extra) / 16 * 16;
    most = most > 2 * LARGE ? 2 * LARGE : most;
    r.pieces = (int)((row + most - 1) / most);
    r.piece = (int)(((row + r.pieces - 1) / r.pieces + 15) / 16 * 16);
    size_t stage = r.piece + extra;
    r.warps = r.piece >= LARGE || many / (MANY * stage) < (size_t)LEAST ? FEW : MANY;
    r.stages = r.warps == MANY ? (int)(many / (MANY * stage))
               : deep          ? (int)(few / (FEW * stage))
                               : LEAST;
    if (r.stages > MOST)
        r.stages = MOST;
    r.pending = r.warps == MANY && !deep ? 2 : r.stages > 4 ? 2 : 1;
    r.smem = r.warps * r.stages * stage;
    return r;
}

/* Multiprocessors that dispatch and combine use unless config.num_sms says otherwise: see
 * doc/performance.md. */
enum {
    MPIX_CUDA_SMS = 15,
    MPIX_CUDA_VECTOR_SMS = 20
}; /* VECTOR: combine where there are no bulk
    * loads */
/* Low latency, EXPERT's combine, and EXPERT among proxied peers: blocks that fill a multiprocessor
 * each and wait for the peers. So few that calls of two handles, which ranks may start in different
 * orders, can wait at once, and others find room. most: that are of use. */
enum { MPIX_CUDA_LL_SMS = 60, MPIX_CUDA_REMOTE_EXPERT_SMS = 60, MPIX_CUDA_OTHERS_SMS = 12 };
static inline int mpix_cuda_half(const mpix_cuda_device *d, int most) {
    int half = (d->sms - MPIX_CUDA_OTHERS_SMS) / 2;
    half = half < 1 ? 1 : half;
    return half < most ? half : most;
}

/* So many blocks that signal peers, of a wish. */
static inline int mpix_cuda_blocks(const mpix_cuda_device *d, int wish) {
    int most = d->sms < MPIX_CUDA_BLOCK_WORDS ? d->sms : MPIX_CUDA_BLOCK_WORDS;
    return wish < most ? wish : most;
}

/* Launches a kernel that begins with grid_wait(). Where the device can, its blocks are there when
 * the kernel in front of it has said grid_next(), or has ended. */
template <class... P, class... A>
static inline cudaError_t mpix_cuda_launch_early(const mpix_cuda_device *d, void (*kernel)(P...),
                                                 int blocks, int threads, size_t smem,
                                                 cudaStream_t stream, const A &...args) {
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = d->early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Combine: the low bits of all addresses and strides that a sum with rows of row bytes touches:
 * whether it can be made 16 bytes at a time. */
static inline uint64_t mpix_cuda_combine_bits(const mpix_cuda_combine *c, int64_t row) {
    uint64_t bits = (uint64_t)c->x | (uint64_t)c->x_stride | (uint64_t)c->y |
                    (uint64_t)c->y_stride | (uint64_t)row;
    for (int b = 0; b < c->num_bias; b++)
        bits |= (uint64_t)c->bias[b] | (uint64_t)c->bias_stride[b];
    return bits;
}

/* Load the kernels of a source (mpix_cuda_load). */
cudaError_t mpix_cuda_route_load(int *arch);
cudaError_t mpix_cuda_dispatch_load(int *arch);
cudaError_t mpix_cuda_combine_load(int *arch);
cudaError_t mpix_cuda_place_load(int *arch);
cudaError_t mpix_cuda_expert_dispatch_load(int *arch);
cudaError_t mpix_cuda_expert_combine_load(int *arch);
cudaError_t mpix_cuda_route_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                   const mpix_cuda_route *c, cudaStream_t stream);
cudaError_t mpix_cuda_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                      mpix_cuda_dispatch *c, cudaStream_t stream);
cudaError_t mpix_cuda_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                     mpix_cuda_combine *c, cudaStream_t stream);
/* EXPERT layout; place follows route. */
cudaError_t mpix_cuda_place_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                   const mpix_cuda_route *c, cudaStream_t stream);
cudaError_t mpix_cuda_expert_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                             mpix_cuda_dispatch *c, cudaStream_t stream);
/* Its second kernel, on so many multiprocessors. */
cudaError_t mpix_cuda_expand_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                    mpix_cuda_dispatch *c, int sms, cudaStream_t stream);
cudaError_t mpix_cuda_expert_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                            mpix_cuda_combine *c, cudaStream_t stream);
/* Rows by copy engines (copy_engine.cu); route follows the route kernel. */
cudaError_t mpix_cuda_copy_engine_load(int *arch);
cudaError_t mpix_cuda_copy_engine_create(int split, void **copies);
void mpix_cuda_copy_engine_destroy(void *copies);
cudaError_t mpix_cuda_copy_engine_route_launch(const mpix_cuda_handle *h, const mpix_cuda_route *c,
                                               cudaStream_t stream);
cudaError_t mpix_cuda_copy_engine_dispatch_launch(const mpix_cuda_device *d,
                                                  const mpix_cuda_handle *h, mpix_cuda_dispatch *c,
                                                  cudaStream_t stream);
cudaError_t mpix_cuda_copy_engine_combine_launch(const mpix_cuda_device *d,
                                                 const mpix_cuda_handle *h, mpix_cuda_combine *c,
                                                 cudaStream_t stream);
/* Some peers are reached through the proxy. */
cudaError_t mpix_cuda_remote_dispatch_load(int *arch);
cudaError_t mpix_cuda_remote_combine_load(int *arch);
cudaError_t mpix_cuda_remote_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                             mpix_cuda_dispatch *c, cudaStream_t stream);
cudaError_t mpix_cuda_remote_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                            mpix_cuda_combine *c, cudaStream_t stream);
cudaError_t mpix_cuda_remote_expert_dispatch_load(int *arch);
cudaError_t mpix_cuda_remote_expert_combine_load(int *arch);
cudaError_t mpix_cuda_remote_expert_dispatch_launch(const mpix_cuda_device *d,
                                                    const mpix_cuda_handle *h,
                                                    mpix_cuda_dispatch *c, cudaStream_t stream);
cudaError_t mpix_cuda_remote_expert_combine_launch(const mpix_cuda_device *d,
                                                   const mpix_cuda_handle *h, mpix_cuda_combine *c,
                                                   cudaStream_t stream);
/* Low latency. fits: ll_route serves the batch, route otherwise. */
int mpix_cuda_ll_route_fits(const mpix_cuda_handle *h, const mpix_cuda_route *c);
cudaError_t mpix_cuda_ll_route_load(int *arch);
cudaError_t mpix_cuda_ll_route_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                      const mpix_cuda_route *c, cudaStream_t stream);
cudaError_t mpix_cuda_ll_dispatch_load(int *arch);
cudaError_t mpix_cuda_ll_combine_load(int *arch);
cudaError_t mpix_cuda_ll_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                         mpix_cuda_dispatch *c, cudaStream_t stream);
cudaError_t mpix_cuda_ll_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                        mpix_cuda_combine *c, cudaStream_t stream);
/* Around them where some peers are reached through the proxy. */
cudaError_t mpix_cuda_ll_remote_load(int *arch);
cudaError_t mpix_cuda_ll_remote_dispatch_launch(const mpix_cuda_device *d,
                                                const mpix_cuda_handle *h, mpix_cuda_dispatch *c,
                                                cudaStream_t stream);
cudaError_t mpix_cuda_ll_remote_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                               mpix_cuda_combine *c, cudaStream_t stream);
/* Records to the caller's arrays, if any of them is wanted. */
cudaError_t mpix_cuda_unpack_launch(const mpix_cuda_handle *h, const mpix_cuda_dispatch *c, int sms,
                                    cudaStream_t stream);
cudaError_t mpix_cuda_p2p_load(int *arch);
cudaError_t mpix_cuda_p2p_move(mpix_cuda_piece *pieces, int n, uint64_t kernel_bytes,
                               const mpix_cuda_tail *tail, cudaStream_t stream);
cudaError_t mpix_cuda_p2p_tail(const mpix_cuda_tail *tail, cudaStream_t stream); /* by a kernel */
cudaError_t mpix_cuda_p2p_add(uint64_t *word, uint64_t add, uint64_t *old,
                              const mpix_cuda_tail *tail, cudaStream_t stream);

/* Whose launchers a handle's calls are. */
typedef struct mpix_cuda_launchers {
    cudaError_t (*dispatch)(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                            mpix_cuda_dispatch *c, cudaStream_t stream);
    cudaError_t (*combine)(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                           mpix_cuda_combine *c, cudaStream_t stream);
} mpix_cuda_launchers;
static inline mpix_cuda_launchers mpix_cuda_launchers_of(const mpix_cuda_handle *h) {
    if (h->ll.on && h->remote.is)
        return {mpix_cuda_ll_remote_dispatch_launch, mpix_cuda_ll_remote_combine_launch};
    if (h->ll.on)
        return {mpix_cuda_ll_dispatch_launch, mpix_cuda_ll_combine_launch};
    if (h->expert.on && h->remote.is)
        return {mpix_cuda_remote_expert_dispatch_launch, mpix_cuda_remote_expert_combine_launch};
    if (h->expert.on)
        return {mpix_cuda_expert_dispatch_launch, mpix_cuda_expert_combine_launch};
    if (h->copy_engine.on)
        return {mpix_cuda_copy_engine_dispatch_launch, mpix_cuda_copy_engine_combine_launch};
    if (h->remote.is)
        return {mpix_cuda_remote_dispatch_launch, mpix_cuda_remote_combine_launch};
    return {mpix_cuda_dispatch_launch, mpix_cuda_combine_launch};
}
#endif
