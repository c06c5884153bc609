/*
 * p2p_copy.c - transfers that are over when the call returns: mapped memory, and other processes'
 * memory by system call.
 *
 * Visibility. memcpy may use streaming stores for long copies, which a release store does not
 * order: a long copy is followed by a fence (P2P_STREAMED), and a notification or message is
 * preceded by one. A system call that wrote the peer's memory is over when it returns.
 */
#include "config.h"

#include "p2p/p2p.h"

#include <errno.h>
#include <sys/uio.h>

#include "kernels/host/rows.h"

enum { COPY_BATCH = 64 }; /* pieces of one system call */

/* What does not stay in the cache is not fetched into it before it is overwritten: a third of the
 * memory's traffic less. */
void p2p_copy_bytes(const mpix_p2p *p2p, void *to, const void *from, size_t n) {
    size_t apart = to > from ? (size_t)((char *)to - (const char *)from)
                             : (size_t)((const char *)from - (char *)to);

    if (n < p2p->stream_bytes || apart < n)
        memmove(to, from, n);
    else
        p2p->rows->copy(from, n, &to, 1, 1);
    if (n >= P2P_STREAMED)
        p2p_fence();
}

static int copy_revoked(const mpix_p2p *p2p, int peer) {
    return mpix_fail_peer(MPIX_ERRK_ARG, peer, p2p->boot->hostnames[peer],
                          "rank %d has taken its memory back: its object has failed or ended",
                          peer);
}

static ssize_t copy_write(p2p_peer *peer, const struct iovec *here, const struct iovec *there,
                          unsigned n) {
    ssize_t moved = process_vm_writev(peer->pid, here, n, there, n, 0);

    mpix_calls_leave(&peer->out->calls); /* leaves errno alone */
    return moved;
}

/* rest: bytes of the pieces from at on that one call moves; it may move less than asked for. What
 * was read while the owner took its memory back need not be what was there. */
static int copy_call(mpix_p2p *p2p, int put, int peer, struct iovec *here, struct iovec *there,
                     int n) {
    p2p_peer *to = &p2p->peers[peer];
    int i = 0;

    while (i < n) {
        unsigned left_n = (unsigned)(n - i);
        if (put && !mpix_calls_enter(&to->out->calls, &to->ctl->revoked))
            return copy_revoked(p2p, peer);
        ssize_t moved = put ? copy_write(to, here + i, there + i, left_n)
                            : process_vm_readv(to->pid, here + i, left_n, there + i, left_n, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0) {
            if (moved < 0 && errno == ESRCH)
                return mpix_fail_peer(MPIX_ERRK_PEER, peer, p2p->boot->hostnames[peer],
                                      "the process of rank %d has ended", peer);
            int err = moved < 0 ? errno : EFAULT, kind;
            kind = mpix_fail_sys(
                MPIX_ERRK_TRANSPORT, err,
                "memory of rank %d at %p can't be accessed; is it still mapped there?", peer,
                there[i].iov_base);
            mpix_error_tls()->rank = peer;
            return kind;
        }
        for (size_t left = (size_t)moved; left > 0 && i < n;) {
            size_t part = left < here[i].iov_len ? left : here[i].iov_len;
            here[i].iov_base = (char *)here[i].iov_base + part;
            there[i].iov_base = (char *)there[i].iov_base + part;
            here[i].iov_len -= part;
            there[i].iov_len -= part;
            left -= part;
            i += here[i].iov_len == 0;
        }
    }
    atomic_thread_fence(memory_order_acquire); /* behind the reads */
    return !put && atomic_load_explicit(&to->ctl->revoked, memory_order_relaxed)
               ? copy_revoked(p2p, peer)
               : 0;
}

/* Pieces from *at on that are CMA, up to a batch. */
static int copy_cma(mpix_p2p *p2p, int put, const p2p_piece *pieces, int n, int *at) {
    struct iovec here[COPY_BATCH], there[COPY_BATCH];
    int count = 0, peer = pieces[*at].rmem->peer;

    for (; *at < n && count < COPY_BATCH && pieces[*at].rmem->reach == P2P_CMA; (*at)++) {
        const p2p_piece *p = &pieces[*at];
        if (p->len == 0)
            continue;
        here[count] = (struct iovec){p->local, p->len};
        there[count++] = (struct iovec){(void *)(uintptr_t)(p->rmem->addr + p->roff), p->len};
    }
    return count ? copy_call(p2p, put, peer, here, there, count) : 0;
}

int p2p_copy(mpix_p2p *p2p, int put, const p2p_piece *pieces, int n, int *at) {
    int kind = 0;

    while (*at < n && !kind) {
        const p2p_piece *p = &pieces[*at];
        if (p->rmem->reach == P2P_CMA) {
            kind = copy_cma(p2p, put, pieces, n, at);
            continue;
        }
        if (p->rmem->reach != P2P_DIRECT || p->rmem->gpu || (p->mem && p->mem->gpu))
            break;
        if (p->len && put)
            p2p_copy_bytes(p2p, p->rmem->ptr + p->roff, p->local, p->len);
        else if (p->len)
            p2p_copy_bytes(p2p, p->local, p->rmem->ptr + p->roff, p->len);
        (*at)++;
    }
    return kind;
}

/* A caller's pieces from *at on, up to a batch, by system call. */
static int copy_iov_cma(mpix_p2p *p2p, int put, const MPIX_P2p_iov iov[], int n, int *at) {
    p2p_piece pieces[COPY_BATCH];
    int count = 0, moved = 0;

    for (; *at < n && count < COPY_BATCH && iov[*at].rmem->reach == P2P_CMA; (*at)++)
        pieces[count++] = (p2p_piece){.local = iov[*at].mem->base + iov[*at].off,
                                      .rmem = iov[*at].rmem,
                                      .roff = (uint64_t)iov[*at].roff,
                                      .len = (uint64_t)iov[*at].len};
    return p2p_copy(p2p, put, pieces, count, &moved);
}

/* The same for a caller's pieces, all of which are DIRECT or CMA. */
int p2p_copy_iov(mpix_p2p *p2p, int put, const MPIX_P2p_iov iov[], int n) {
    int kind = 0;

    for (int i = 0; i < n && !kind;) {
        const MPIX_P2p_iov *v = &iov[i];
        if (v->rmem->reach == P2P_CMA) {
            kind = copy_iov_cma(p2p, put, iov, n, &i);
            continue;
        }
        char *here = v->mem->base + v->off, *there = v->rmem->ptr + v->roff;
        if (v->len)
            p2p_copy_bytes(p2p, put ? there : here, put ? here : there, (size_t)v->len);
        i++;
    }
    return kind;
}
