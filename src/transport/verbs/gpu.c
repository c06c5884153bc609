/*
 * gpu.c - registration of GPU memory, in the order of preference:
 *
 *   dma-buf   the GPU's driver exports the memory, ibv_reg_dmabuf_mr takes it: needs no module beyond both drivers
 *   peermem   ibv_reg_mr of the GPU's address, where a kernel module translates it (nvidia_peermem)
 *   staged    pinned host memory of the same size stands for the window: the peer and the device see only that,
 *             and whoever fills or reads the window copies, or packs there in the first place
 *
 * The way is tried at run time for each window; each refusal is logged with its reason.
 *
 * What is proven. This file is driven by a mocked libibverbs and a mocked GPU module in tests/unit/test_verbs: order,
 * arguments, fallbacks, what is undone. That a real device accepts a real GPU's memory, and in which order its writes
 * become visible to kernels there, needs a machine with both and was not shown here; the form of signals for GPU
 * windows therefore has to be the counted one, with a flush, until it is (doc/architecture.md).
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static const verbs_gpu_ops *gpu_ops;

void verbs_gpu_set(const verbs_gpu_ops *ops) { gpu_ops = ops; }

int verbs_gpu_is(const void *address) { return gpu_ops && gpu_ops->is_gpu(address); }

/* 0, or errno of the step that refused. */
static int gpu_try_dmabuf(verbs_net *net, mpix_net_mem *mem) {
    uint64_t offset = 0;
    int fd = -1, err;

    if (gpu_ops->dmabuf(mem->base, mem->bytes, &fd, &offset) != 0)
        return EOPNOTSUPP;
    err = verbs_reg_pieces(net, mem, mem->base, fd, offset);
    close(fd); /* the registration holds the buffer */
    return err;
}

static int gpu_try_staging(verbs_net *net, mpix_net_mem *mem) {
    void *staging = gpu_ops->pinned_alloc(mem->bytes);
    int err;

    if (!staging)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no %llu bytes of pinned host memory to stand for a GPU window",
                         (unsigned long long)mem->bytes);
    err = verbs_reg_pieces(net, mem, staging, -1, 0);
    if (err) {
        gpu_ops->pinned_free(staging, mem->bytes);
        return verbs_reg_error(net, err, mem->bytes, "pinned host memory for a GPU window");
    }
    mem->staging = staging;
    return 0;
}

int verbs_gpu_reg(verbs_net *net, mpix_net_mem *mem) {
    int dmabuf = gpu_try_dmabuf(net, mem), peermem = EOPNOTSUPP, kind;

    if (dmabuf == 0) {
        mem->how = VERBS_MEM_DMABUF;
        mpix_log(MPIX_LOG_INFO, "verbs: GPU memory of %llu bytes registered as dma-buf",
                 (unsigned long long)mem->bytes);
        return 0;
    }
    mpix_log(MPIX_LOG_INFO, "verbs: GPU memory can't be registered as dma-buf: %s", strerror(dmabuf));
    if (gpu_ops->peermem())
        peermem = verbs_reg_pieces(net, mem, mem->base, -1, 0);
    if (peermem == 0) {
        mem->how = VERBS_MEM_PEERMEM;
        mpix_log(MPIX_LOG_INFO, "verbs: GPU memory of %llu bytes registered through the peer memory module",
                 (unsigned long long)mem->bytes);
        return 0;
    }
    mpix_log(MPIX_LOG_INFO, "verbs: GPU memory can't be registered through a peer memory module: %s",
             strerror(peermem));
    kind = gpu_try_staging(net, mem);
    if (kind)
        return kind;
    mem->how = VERBS_MEM_STAGED;
    mpix_log(
        MPIX_LOG_WARN,
        "verbs: GPU memory of %llu bytes is staged in pinned host memory: neither dma-buf (%s) nor peer memory works",
        (unsigned long long)mem->bytes, strerror(dmabuf));
    return 0;
}

void verbs_gpu_unstage(mpix_net_mem *mem) {
    if (mem->staging)
        gpu_ops->pinned_free(mem->staging, mem->bytes);
    mem->staging = NULL;
}
