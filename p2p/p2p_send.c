/*
 * p2p_send.c - the calls of send, receive and advertisements. What arrives is p2p_recv.c's.
 */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu.h"

enum { RECV_LOOKS = 100 };

static int call_check(MPIX_P2p p2p, int peer, const p2p_need *need, const MPIX_P2p_iov iov[],
                      int n) {
    int kind = p2p_check_peer(p2p, peer);

    return kind ? kind : p2p_check(iov, n, need, &p2p, NULL);
}

/* There is no memory for the message. */
static int call_unsent(p2p_op *op, MPIX_Xfer *xfer) {
    p2p_op_fail(op, MPIX_ERRK_NO_MEM);
    p2p_op_done(op);
    return p2p_op_give(op, xfer);
}

/* A short message to a mapped peer whose ring has room, with nothing queued before it: written at
 * once, without an operation. */
static int send_quick(mpix_p2p *p2p, int rank, const MPIX_P2p_iov iov[], int n) {
    p2p_peer *peer = &p2p->peers[rank];
    uint64_t total = 0;
    int did = 0;

    if (!peer->mapped)
        return 0;
    for (int i = 0; i < n; i++) {
        if (iov[i].mem->gpu || (uint64_t)iov[i].len > p2p->eager - total)
            return 0;
        total += (uint64_t)iov[i].len;
    }
    pthread_mutex_lock(&p2p->lock);
    if (!p2p->failed && !peer->first &&
        peer->written - atomic_load_explicit(&peer->in->tail, memory_order_acquire) <
            (uint64_t)p2p->ring) {
        p2p_message *place = p2p_place(p2p, peer->out, peer->written);
        char *to = (char *)(place + 1);
        for (int i = 0; i < n; to += iov[i++].len)
            if (iov[i].len)
                memcpy(to, iov[i].mem->base + iov[i].off, (size_t)iov[i].len);
        *place = (p2p_message){.type = P2P_MSG_EAGER,
                               .bytes = (uint32_t)total,
                               .a = total,
                               .b = (uint64_t)n,
                               .last = 1};
        p2p_fence();
        atomic_store_explicit(&peer->out->head, ++peer->written, memory_order_release);
        did = 1;
    }
    pthread_mutex_unlock(&p2p->lock);
    if (did)
        p2p_ring_bell(peer);
    return did;
}

/* The tail of a call that has queued a message: it goes now, and then the operation is over if
 * nothing more is needed. */
static int send_run(p2p_op *op, MPIX_Xfer *xfer) {
    mpix_p2p *p2p = op->p2p;
    MPIX_Error *own = mpix_error_divert(&p2p->passing);

    if (!p2p->peers[op->peer].mapped && mpix_proxy_step(p2p->proxy))
        p2p_move(op);
    mpix_error_divert(own);
    return p2p_op_give(op, xfer);
}

static int call_send(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer,
                     int blocking) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    int kind = blocking || xfer ? call_check(p2p, peer, &p2p_need_send, iov, n)
                                : mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    if (kind)
        return p2p_raise(p2p, kind);
    if (send_quick(p2p, peer, iov, n)) {
        if (xfer)
            *xfer = MPIX_XFER_NULL;
        return MPI_SUCCESS;
    }
    p2p_op *op = p2p_op_new(p2p, P2P_SEND, peer, iov, n);
    if (!op)
        return p2p_raise(p2p, MPIX_ERRK_NO_MEM);
    p2p_out *out = p2p_out_new(p2p, 0, p2p_op_id(op));
    if (!out)
        return call_unsent(op, xfer);
    int gpu = 0; /* what lies in GPU memory is read there, whatever its length */
    for (int i = 0; i < n; i++) {
        op->total += op->own[i].len;
        gpu |= op->own[i].len > 0 && op->own[i].mem->gpu;
    }
    out->op = op;
    out->head.type = op->total <= p2p->eager && !gpu ? P2P_MSG_EAGER : P2P_MSG_OFFER;
    out->head.a = op->total;
    out->head.b = (uint64_t)n;
    out->blobs = out->head.type == P2P_MSG_OFFER;
    op->at = n;
    op->left = 1; /* until it is written, or received */
    p2p_out_add(p2p, peer, out);
    return send_run(op, xfer);
}

int PMPIX_P2p_isend(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer) {
    return call_send(p2p, peer, iov, n, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_isend);

int PMPIX_P2p_send(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n) {
    return call_send(p2p, peer, iov, n, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_send);

/* Takes the next message of a mapped peer if it is a short one that fits and nobody else waits for
 * it. With the lock. */
static int recv_take(mpix_p2p *p2p, int rank, const MPIX_P2p_iov iov[], int n,
                     MPI_Count *received) {
    p2p_peer *peer = &p2p->peers[rank];
    const p2p_message *message = peer->recv_first || peer->early_first || peer->partial ||
                                         p2p->failed
                                     ? NULL
                                     : p2p_ring_next(p2p, rank);
    uint64_t room = 0, at = 0;

    for (int i = 0; i < n; i++) {
        if (iov[i].mem->gpu)
            return 0;
        room += (uint64_t)iov[i].len;
    }
    if (!message || message->type != P2P_MSG_EAGER || message->bytes > room)
        return 0;
    for (int i = 0; i < n && at < message->bytes; i++) {
        uint64_t part = message->bytes - at < (uint64_t)iov[i].len ? message->bytes - at
                                                                   : (uint64_t)iov[i].len;
        if (part)
            memcpy(iov[i].mem->base + iov[i].off, (const char *)(message + 1) + at, part);
        at += part;
    }
    if (received)
        *received = (MPI_Count)message->bytes;
    p2p_ring_took(p2p, rank);
    return 1;
}

/* The same for a blocking receive, which looks for a moment: a message that comes soon needs
 * no operation. */
static int recv_quick(mpix_p2p *p2p, int rank, const MPIX_P2p_iov iov[], int n,
                      MPI_Count *received) {
    p2p_peer *peer = &p2p->peers[rank];
    uint64_t taken;
    int did;

    if (!peer->mapped || p2p->threaded || p2p->oversubscribed)
        return 0;
    pthread_mutex_lock(&p2p->lock);
    taken = peer->taken;
    did = recv_take(p2p, rank, iov, n, received);
    pthread_mutex_unlock(&p2p->lock);
    if (did)
        return 1;
    for (int i = 0;
         i < RECV_LOOKS && atomic_load_explicit(&peer->in->head, memory_order_relaxed) == taken;
         i++)
        mpix_cpu_relax();
    pthread_mutex_lock(&p2p->lock);
    did = recv_take(p2p, rank, iov, n, received);
    pthread_mutex_unlock(&p2p->lock);
    return did;
}

static int call_recv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received,
                     MPIX_Xfer *xfer, int blocking) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    int kind = blocking || xfer ? call_check(p2p, peer, &p2p_need_recv, iov, n)
                                : mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    if (kind)
        return p2p_raise(p2p, kind);
    if (blocking && recv_quick(p2p, peer, iov, n, received))
        return MPI_SUCCESS;
    p2p_op *op = p2p_op_new(p2p, P2P_RECV, peer, iov, n);
    if (!op)
        return p2p_raise(p2p, MPIX_ERRK_NO_MEM);
    op->received = received;
    op->offer_id = 0;
    if (!op->fin && !(op->fin = p2p_out_new(p2p, 0, 0)))
        return call_unsent(op, xfer);
    p2p_peer *p = &p2p->peers[peer];
    p2p_early *early = p->recv_first ? NULL : p2p_early_take(p, 0, 0);
    if (early) {
        p2p_recv_deliver(p2p, op, early);
        p2p_move(op);
    } else {
        p2p_recv_list(op);
        MPIX_Error *own = mpix_error_divert(&p2p->passing);
        p2p_ring_read(p2p, peer); /* it may be there */
        p2p_move(op);
        mpix_error_divert(own);
    }
    return p2p_op_give(op, xfer);
}

int PMPIX_P2p_irecv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received,
                    MPIX_Xfer *xfer) {
    return call_recv(p2p, peer, iov, n, received, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_irecv);

int PMPIX_P2p_recv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received) {
    return call_recv(p2p, peer, iov, n, received, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_recv);

int PMPIX_P2p_advertise(const MPIX_P2p_iov iov[], int n, int peer, int tag) {
    mpix_p2p *p2p = NULL;
    int kind = p2p_check(iov, n, &p2p_need_name, &p2p, NULL);

    if (!kind)
        kind = p2p_check_peer(p2p, peer);
    if (!kind && tag < 0)
        kind = mpix_fail(MPIX_ERRK_ARG, "tag", "tag = %d is negative", tag);
    if (kind)
        return p2p_raise(p2p, kind);
    p2p_op *op = p2p_op_new(p2p, P2P_TOLD, peer, iov, n);
    if (!op)
        return p2p_raise(p2p, MPIX_ERRK_NO_MEM);
    p2p_out *out = p2p_out_new(p2p, P2P_MSG_ADVERT, 0);
    if (!out)
        return call_unsent(op, NULL);
    out->op = op;
    out->blobs = 1;
    out->head.tag = tag;
    out->head.b = (uint64_t)n;
    op->at = n;
    op->left = 1;
    p2p_out_add(p2p, peer, out);
    return send_run(op, NULL);
}
MPIX_WEAK_ALIAS(P2p_advertise);

/* Takes an advertisement that fits; one that does not stays. 1: taken. */
static int advert_take(mpix_p2p *p2p, int rank, int tag, int max, MPIX_P2p_rmem rmems[], int *n,
                       int *kind) {
    p2p_peer *peer = &p2p->peers[rank];
    p2p_early *early = p2p_early_take(peer, 1, tag);
    int made = 0;

    if (!early)
        return 0;
    if (early->n > max) {
        *kind = mpix_fail_peer(MPIX_ERRK_TRUNCATE, rank, NULL,
                               "rank %d advertised %d pieces with tag %d, there is room for %d",
                               rank, early->n, tag, max);
        p2p_early_put_back(peer, early);
        return 1;
    }
    for (; made < early->n && !*kind; made++)
        *kind = p2p_import(p2p, rank, early->data + (size_t)made * p2p->blob_bytes, p2p->blob_bytes,
                           0, &rmems[made]);
    if (*kind)
        for (int i = 0; i < made - 1; i++)
            p2p_rmem_close(rmems[i]);
    else
        *n = early->n;
    if (*kind == MPIX_ERRK_NO_MEM)
        p2p_early_put_back(peer, early);
    else
        p2p_early_release(p2p, early);
    return 1;
}

int PMPIX_P2p_get_advert(MPIX_P2p p2p, int peer, int tag, int max, MPIX_P2p_rmem rmems[], int *n) {
    uint64_t start = mpix_clock_ns();
    int kind, taken = 0;
    mpix_wait wait;

    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    kind = call_check(p2p, peer, &p2p_need_name, NULL, 0);
    if (!kind && (max < 0 || (max > 0 && !rmems) || !n))
        kind = mpix_fail(MPIX_ERRK_ARG,
                         max < 0 ? "max"
                         : n     ? "rmems"
                                 : "n",
                         "max = %d, rmems = %p, n = %p", max, (void *)rmems, (void *)n);
    if (kind)
        return p2p_raise(p2p, kind);
    p2p_wait_start(p2p, &wait);
    for (;;) {
        pthread_mutex_lock(&p2p->lock);
        taken = advert_take(p2p, peer, tag, max, rmems, n, &kind);
        pthread_mutex_unlock(&p2p->lock);
        if (taken || kind)
            break;
        kind = p2p_wait_turn(p2p, &wait, peer, start, "an advertisement");
        if (!kind && p2p->peers[peer].starved && p2p_ring_next(p2p, peer))
            kind = p2p_starved(peer);
    }
    if (taken && !kind)
        p2p_settle(p2p, peer, &wait, start);
    mpix_wait_end(&wait);
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_get_advert);
