/*
 * mem.c - registration of memory, with every device that the lanes use, and the keys that let
 * peers address it.
 *
 * A device may limit the length of one registration (max_mr_size): longer memory is registered in
 * pieces of equal length, the same for all devices, and operations are cut at their edges (post.c).
 * Relaxed ordering is never asked for, since the order of writes may carry a signal.
 *
 * Fork. With ibv_fork_init (or a kernel that copies registered pages at fork, when it is not
 * needed) a child does not take the parent's pages away from the device.
 */
#include "config.h"

#include "transport/verbs/verbs.h"
#include "transport/verbs/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"

int verbs_access(const verbs_device *device) {
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    return device->atomics ? access | IBV_ACCESS_REMOTE_ATOMIC : access;
}

void verbs_memlock_text(char *buf, size_t len) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        snprintf(buf, len,
                 "RLIMIT_MEMLOCK is unlimited, so memory or a table of the device ran out");
    else
        snprintf(
            buf, len,
            "RLIMIT_MEMLOCK is %llu KiB: raise it, `ulimit -l unlimited` or memlock in limits.conf",
            (unsigned long long)limit.rlim_cur / 1024);
}

int verbs_reg_error(const verbs_net *net, int err, uint64_t bytes, const char *what) {
    char limit[128];

    verbs_memlock_text(limit, sizeof limit);
    if (err == ENOMEM || err == EAGAIN)
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "%s can't register %s of %llu bytes: %s",
                             net->net.caps.device, what, (unsigned long long)bytes, limit);
    if (err == EPERM)
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "%s may not lock %s of %llu bytes: %s",
                             net->net.caps.device, what, (unsigned long long)bytes, limit);
    if (err == EFAULT)
        return mpix_fail_sys(
            MPIX_ERRK_TRANSPORT, err,
            "%s can't register %s of %llu bytes: it is not memory that this process may write",
            net->net.caps.device, what, (unsigned long long)bytes);
    return mpix_fail_sys(MPIX_ERRK_TRANSPORT, err, "%s refuses to register %s of %llu bytes",
                         net->net.caps.device, what, (unsigned long long)bytes);
}

/* Pieces begin at multiples of 4 KiB, so that no aligned word lies across an edge. */
uint64_t verbs_piece(const verbs_net *net, uint64_t bytes) {
    uint64_t piece = bytes;

    for (int d = 0; d < net->ndevices; d++) {
        uint64_t most = net->devices[d].port.attr.max_mr_size;
        if (most && most < piece)
            piece = most >= 4096 ? most & ~(uint64_t)4095 : most & ~(uint64_t)7;
    }
    return piece;
}

static void pieces_dereg(mpix_net_mem *mem) {
    for (int d = 0; d < VERBS_MAX_DEVICES; d++) {
        for (int i = 0; i < VERBS_MAX_PIECES; i++) {
            int err = mem->mr[d][i] ? ibv_dereg_mr(mem->mr[d][i]) : 0;
            if (err)
                mpix_log(MPIX_LOG_WARN, "verbs: a registration could not be undone: %s",
                         strerror(err));
            mem->mr[d][i] = NULL;
        }
    }
}

int verbs_reg_pieces(verbs_net *net, mpix_net_mem *mem, void *base, int dmabuf_fd,
                     uint64_t dmabuf_offset) {
    for (int d = 0; d < net->ndevices; d++) {
        for (int i = 0; i < mem->npieces; i++) {
            uint64_t offset = (uint64_t)i * mem->piece;
            uint64_t len = mem->bytes - offset < mem->piece ? mem->bytes - offset : mem->piece;
            char *start = (char *)base + offset;
            int access = verbs_access(&net->devices[d]), err;

            errno = 0;
            if (dmabuf_fd >= 0)
                mem->mr[d][i] = ibv_reg_dmabuf_mr(net->devices[d].pd, dmabuf_offset + offset, len,
                                                  (uintptr_t)start, dmabuf_fd, access);
            else
                mem->mr[d][i] = ibv_reg_mr(net->devices[d].pd, start, len, access);
            if (!mem->mr[d][i]) {
                err = errno ? errno : EIO;
                pieces_dereg(mem);
                return err;
            }
        }
    }
    return 0;
}

int verbs_mem_new(const verbs_net *net, void *address, size_t bytes, mpix_net_mem **out) {
    mpix_net_mem *mem = calloc(1, sizeof *mem);
    uint64_t pieces;
    int kind;

    if (!mem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the description of a registration");
    mem->base = address;
    mem->bytes = bytes;
    mem->piece = verbs_piece(net, bytes);
    pieces = bytes ? mem->piece ? (bytes + mem->piece - 1) / mem->piece : UINT64_MAX : 0;
    if (pieces > VERBS_MAX_PIECES) {
        kind =
            mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                      "%s registers at most %llu bytes at once; %zu bytes would take more than %d "
                      "registrations: use smaller windows",
                      net->net.caps.device, (unsigned long long)mem->piece, bytes,
                      VERBS_MAX_PIECES);
        free(mem);
        return kind;
    }
    mem->npieces = (int)pieces;
    *out = mem;
    return 0;
}

int verbs_mem_reg(mpix_net *base, void *address, size_t bytes, mpix_net_mem **out) {
    verbs_net *net = (verbs_net *)base;
    mpix_net_mem *mem = NULL;
    int kind = verbs_mem_new(net, address, bytes, &mem), err;

    if (kind)
        return kind;
    err = verbs_reg_pieces(net, mem, address, -1, 0);
    if (err) {
        free(mem);
        return verbs_reg_error(net, err, bytes, "memory");
    }
    if (mem->npieces > 1)
        mpix_log(MPIX_LOG_INFO,
                 "verbs: %zu bytes registered in %d pieces, the device takes %llu at once", bytes,
                 mem->npieces, (unsigned long long)mem->piece);
    *out = mem;
    return 0;
}

void verbs_mem_dereg(mpix_net *base, mpix_net_mem *mem) {
    (void)base;
    if (!mem)
        return;
    pieces_dereg(mem);
    free(mem);
}

void verbs_mem_key(mpix_net *base, const mpix_net_mem *mem, void *blob) {
    const verbs_net *net = (const verbs_net *)base;
    verbs_key key;

    memset(&key, 0, sizeof key);
    key.base = (uintptr_t)mem->base;
    key.bytes = mem->bytes;
    key.piece = mem->piece;
    key.ndevices = (uint32_t)net->ndevices;
    key.npieces = (uint32_t)mem->npieces;
    for (int d = 0; d < net->ndevices; d++)
        for (int i = 0; i < mem->npieces; i++)
            key.rkey[d][i] = mem->mr[d][i]->rkey;
    memcpy(blob, &key, sizeof key);
}

int verbs_rmem_open(mpix_net *base, int peer, const void *blob, mpix_net_rmem **out) {
    verbs_net *net = (verbs_net *)base;
    mpix_net_rmem *rmem;
    verbs_key key;

    memcpy(&key, blob, sizeof key);
    if (key.ndevices > VERBS_MAX_DEVICES || key.npieces > VERBS_MAX_PIECES ||
        (key.bytes && (key.piece == 0 || (key.bytes - 1) / key.piece >= key.npieces)) ||
        key.base + key.bytes < key.base)
        return mpix_fail_peer(MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
                              "the key of a window of rank %d is damaged", peer);
    /* An operation cut at the peer's pieces must fit in a send queue. */
    if (key.bytes > key.piece && base->caps.max_op / key.piece + 3 > (uint64_t)net->depth / 2)
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, net->boot->hostnames[peer],
                              "rank %d registers in pieces of %llu bytes, too short for operations "
                              "of %llu bytes: set net_depth higher",
                              peer, (unsigned long long)key.piece,
                              (unsigned long long)base->caps.max_op);
    rmem = malloc(sizeof *rmem);
    if (!rmem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the keys of rank %d", peer);
    rmem->peer = peer;
    rmem->base = key.base;
    rmem->bytes = key.bytes;
    rmem->piece = key.piece;
    memcpy(rmem->rkey, key.rkey, sizeof rmem->rkey);
    *out = rmem;
    return 0;
}

void verbs_rmem_close(mpix_net *base, mpix_net_rmem *rmem) {
    (void)base;
    free(rmem);
}
