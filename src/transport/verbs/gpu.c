/*
 * gpu.c - registration of GPU memory, in the order of preference:
 *
 *   dma-buf      the GPU's driver exports the memory, ibv_reg_dmabuf_mr takes it: needs no module
 *                beyond both drivers
 *   peer memory  ibv_reg_mr of the GPU's address, where a kernel module translates it
 *                (nvidia_peermem)
 *
 * Where neither works the caller takes pinned host memory, which kernels write and read directly.
 * So a refusal is no error here.
 *
 * What is proven. This file is driven by a mocked libibverbs in tests/unit/test_verbs_mem: order,
 * arguments, fallback, what is undone. That a real device accepts a real GPU's memory, and in which
 * order its writes become visible to kernels there, needs a machine with both and was not shown
 * here (doc/verified.md).
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

int verbs_mem_reg_gpu(mpix_net *base, void *address, size_t bytes, mpix_net_gpu *way,
                      mpix_net_mem **out) {
    verbs_net *net = (verbs_net *)base;
    mpix_net_mem *mem = NULL;
    int kind = verbs_mem_new(net, address, bytes, &mem), dmabuf = 0, peermem = 0;

    if (kind)
        return kind;
    way->how = NULL;
    if (way->fd >= 0) {
        dmabuf = verbs_reg_pieces(net, mem, address, way->fd, way->off);
        mem->how = VERBS_MEM_DMABUF;
        way->how = dmabuf ? NULL : "dma-buf";
    }
    if (!way->how && way->peermem) {
        peermem = verbs_reg_pieces(net, mem, address, -1, 0);
        mem->how = VERBS_MEM_PEERMEM;
        way->how = peermem ? NULL : "peer memory";
    }
    if (way->how) {
        mpix_log(MPIX_LOG_INFO, "verbs: GPU memory of %zu bytes registered as %s", bytes, way->how);
        *out = mem;
        return 0;
    }
    free(mem);
    snprintf(way->why, sizeof way->why,
             "%.40s registers no memory of this GPU: dma-buf %.40s, peer memory %.40s",
             net->net.caps.device, way->fd < 0 ? "is not exported" : strerror(dmabuf),
             way->peermem ? strerror(peermem) : "has no module");
    return MPIX_ERRK_UNSUPPORTED;
}
