/*
 * p2p_send.c - send and receive, and advertisements.
 *
 * A message of at most p2p_eager bytes travels in the ring. A longer one is offered: the ring
 * carries handles of its pieces, the receiver reads them by the best way there is, straight into
 * its own pieces, and says FIN. Messages of a pair are taken from the ring in order, and matched
 * with receives in order; what nobody has asked for yet waits in a list.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

#include <inttypes.h>

enum { RECV_LOOKS = 100 };

/* ---- what is early --------------------------------------------------------------------------- */

static p2p_early *early_new(mpix_p2p *p2p, const p2p_message *message) {
    p2p_early *early = p2p->early_pool;

    if (early)
        p2p->early_pool = early->next;
    else
        early = calloc(1, sizeof *early);
    if (!early)
        return NULL;
    early->next = NULL;
    early->advert = message->kind == P2P_MSG_ADVERT;
    early->tag = message->tag;
    early->id = message->kind == P2P_MSG_OFFER ? message->id : 0;
    early->expected = (int)message->b;
    early->bytes = message->a;
    early->whole = early->n = 0;
    return early;
}

static int early_room(p2p_early *early, size_t bytes) {
    char *data;

    if (bytes <= early->room)
        return 1;
    data = realloc(early->data, bytes);
    if (!data)
        return 0;
    early->data = data;
    early->room = bytes;
    return 1;
}

static void early_release(mpix_p2p *p2p, p2p_early *early) {
    early->next = p2p->early_pool;
    p2p->early_pool = early;
}

static void early_delete(p2p_early *early) {
    while (early) {
        p2p_early *next = early->next;
        free(early->data);
        free(early);
        early = next;
    }
}

void p2p_early_free(mpix_p2p *p2p) {
    for (int r = 0; p2p->peers && r < p2p->size; r++) {
        early_delete(p2p->peers[r].early_first);
        if (p2p->peers[r].partial)
            early_delete(p2p->peers[r].partial);
    }
    early_delete(p2p->early_pool);
}

/* The first of its kind, taken out of the list. */
static p2p_early *early_take(p2p_peer *peer, int advert, int tag) {
    p2p_early *before = NULL, *early = peer->early_first;

    while (early && !(early->advert == advert && (!advert || early->tag == tag))) {
        before = early;
        early = early->next;
    }
    if (!early)
        return NULL;
    if (before)
        before->next = early->next;
    else
        peer->early_first = early->next;
    if (peer->early_last == early)
        peer->early_last = before;
    return early;
}

/* It stays the first, for another try. */
static void early_put_back(p2p_peer *peer, p2p_early *early) {
    early->next = peer->early_first;
    peer->early_first = early;
    if (!peer->early_last)
        peer->early_last = early;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The last of those that wait for a message of this peer. */
static void recv_list(p2p_op *op) {
    p2p_peer *peer = &op->p2p->peers[op->peer];

    if (peer->recv_last)
        peer->recv_last->match = op;
    else
        peer->recv_first = op;
    peer->recv_last = op;
    op->waits = 1;
}

/* It has its message, or fails. A long message takes its time to come: the next one is for the
 * next receive. */
static void recv_unlist(p2p_op *op) {
    p2p_peer *peer = &op->p2p->peers[op->peer];
    p2p_op **at = &peer->recv_first, *before = NULL;

    if (!op->waits)
        return;
    for (; *at != op; at = &(*at)->match)
        before = *at;
    *at = op->match;
    if (peer->recv_last == op)
        peer->recv_last = before;
    op->match = NULL;
    op->waits = 0;
}

static int recv_fits(p2p_op *op, uint64_t bytes) {
    uint64_t room = 0;

    for (int i = 0; i < op->n; i++)
        room += op->pieces[i].len;
    if (bytes <= room)
        return 1;
    p2p_op_fail(op, mpix_fail_peer(MPIX_ERRK_TRUNCATE, op->peer, NULL,
                                   "a message of %" PRIu64
                                   " bytes from rank %d does not fit a receive of %" PRIu64,
                                   bytes, op->peer, room));
    return 0;
}

static void recv_eager(p2p_op *op, const char *data, uint64_t bytes) {
    if (recv_fits(op, bytes)) {
        uint64_t at = 0;
        for (int i = 0; i < op->n && at < bytes; i++) {
            uint64_t part = bytes - at < op->pieces[i].len ? bytes - at : op->pieces[i].len;
            int kind = part && op->pieces[i].mem->gpu
                           ? p2p_gpu_copy(op->p2p, op->pieces[i].local, data + at, part)
                           : 0;
            if (kind)
                p2p_op_fail(op, kind);
            else if (part && !op->pieces[i].mem->gpu)
                memcpy(op->pieces[i].local, data + at, part);
            at += part;
        }
        op->total = bytes;
    }
    p2p_recv_moved(op);
}

static int recv_piece(p2p_op *op, int n, p2p_piece piece) {
    if (n == op->temp_room) {
        int room = n ? 2 * n : 16;
        p2p_piece *temp = realloc(op->temp, (size_t)room * sizeof *temp);
        if (!temp)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a message of %d pieces", room);
        op->temp = temp;
        op->temp_room = room;
    }
    op->temp[n] = piece;
    op->temp[n].mem = op->own[0].mem; /* any, until the right one is put in */
    return 0;
}

/* Reads an offered message: its pieces and ours are cut to pieces that lie in one of each. */
static void recv_offer(p2p_op *op, const p2p_early *early) {
    mpix_p2p *p2p = op->p2p;
    int mine = 0, kind = 0, n = 0;
    uint64_t mine_off = 0;

    op->offer_id = early->id;
    if (!recv_fits(op, early->bytes)) {
        p2p_recv_moved(op);
        return;
    }
    op->total = early->bytes;
    for (int i = 0; i < early->n && !kind; i++) {
        const char *buf = early->data + (size_t)i * p2p->blob_bytes;
        struct mpix_rmem *rmem;
        p2p_blob blob;
        memcpy(&blob, buf, sizeof blob);
        if (blob.bytes == 0)
            continue;
        kind = p2p_import(p2p, op->peer, buf, p2p->blob_bytes, 1, &rmem);
        if (!kind && !(blob.rights & MPIX_MEM_READ)) {
            p2p_rmem_close(rmem);
            kind = mpix_fail_peer(MPIX_ERRK_ARG, op->peer, NULL,
                                  "rank %d sent from memory that it has not mapped, or can't read",
                                  op->peer);
        }
        for (uint64_t off = 0; !kind && off < rmem->bytes;) {
            uint64_t room = op->own[mine].len - mine_off,
                     part = rmem->bytes - off < room ? rmem->bytes - off : room;
            if (part == 0) {
                mine++;
                mine_off = 0;
                continue;
            }
            kind = recv_piece(op, n,
                              (p2p_piece){NULL, op->own[mine].local + mine_off, rmem, off, part});
            if (kind && (n == 0 || op->temp[n - 1].rmem != rmem))
                p2p_rmem_close(rmem); /* no piece names it yet */
            if (kind)
                break;
            op->temp[n++].mem = op->own[mine].mem;
            mine_off += part;
            off += part;
        }
    }
    op->pieces = op->temp;
    op->n = n;
    op->at = 0;
    if (kind) {
        p2p_op_fail(op, kind);
        p2p_recv_moved(op);
        return;
    }
    p2p_move(op);
}

/* Handles of the sender's memory are given back, and no message comes for it any more. */
void p2p_recv_leave(p2p_op *op) {
    recv_unlist(op);
    if (op->pieces == op->temp && op->temp)
        for (int i = 0; i < op->n; i++)
            if (i + 1 == op->n || op->temp[i + 1].rmem != op->temp[i].rmem)
                p2p_rmem_close(op->temp[i].rmem);
    op->pieces = op->own;
    op->at = op->n = op->held;
}

/*
 * A receive has its message, or has failed: the sender of an offer may go on. To a mapped peer that
 * is said at once, if the ring has room. Elsewhere the end waits for the turn that has given back
 * the message's place, see move_handed.
 */
void p2p_recv_moved(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    uint64_t id = op->offer_id;
    p2p_out *fin = op->fin;

    p2p_recv_leave(op);
    op->moved = 1;
    op->offer_id = 0;
    if (!op->kind && op->received)
        *op->received = (MPI_Count)op->total;
    if (id) {
        fin->head.kind = P2P_MSG_FIN;
        fin->head.id = id;
        fin->op = op;
        op->fin = NULL;
        op->left = 1;
        p2p_out_add(p2p, op->peer, fin); /* ends it, if it goes at once */
        return;
    }
    if (p2p->peers[op->peer].mapped)
        p2p_op_done(op);
}

static void recv_deliver(mpix_p2p *p2p, p2p_op *op, p2p_early *early) {
    recv_unlist(op);
    if (early->id)
        recv_offer(op, early);
    else
        recv_eager(op, early->data, early->bytes);
    early_release(p2p, early);
}

static int starved(int rank) {
    return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                     "no memory for a message of rank %d; it waits for another try", rank);
}

/* 0: no memory to keep it; it stays in the ring. A receive that it is for fails, and
 * can be repeated. */
int p2p_send_arrived(mpix_p2p *p2p, int rank, const p2p_message *message, const char *payload) {
    p2p_peer *peer = &p2p->peers[rank];
    p2p_op *op = peer->recv_first;
    p2p_early *early = peer->partial;
    int eager = message->kind == P2P_MSG_EAGER;
    size_t had;

    peer->starved = 0;
    if (eager && op) { /* the ordinary case: straight to its place */
        recv_eager(op, payload, message->bytes);
        return 1;
    }
    if (!early)
        early = early_new(p2p, message);
    had = early ? (size_t)early->n * p2p->blob_bytes : 0;
    if (!early || !early_room(early, had + message->bytes)) {
        if (early && early != peer->partial)
            early_release(p2p, early);
        peer->starved = 1;
        if (op && message->kind == P2P_MSG_OFFER) {
            p2p_op_fail(op, starved(rank));
            p2p_op_done(op);
        }
        return 0;
    }
    if (message->bytes)
        memcpy(early->data + had, payload, message->bytes);
    if (eager)
        early->bytes = message->bytes;
    else
        early->n += (int)(message->bytes / p2p->blob_bytes);
    peer->partial = message->last ? NULL : early;
    if (!message->last)
        return 1;
    if (!early->advert && op) {
        recv_deliver(p2p, op, early);
        return 1;
    }
    if (peer->early_last)
        peer->early_last->next = early;
    else
        peer->early_first = early;
    peer->early_last = early;
    return 1;
}

/* ---- calls ----------------------------------------------------------------------------------- */

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
        *place = (p2p_message){.kind = P2P_MSG_EAGER,
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
    out->head.kind = op->total <= p2p->eager && !gpu ? P2P_MSG_EAGER : P2P_MSG_OFFER;
    out->head.a = op->total;
    out->head.b = (uint64_t)n;
    out->blobs = out->head.kind == P2P_MSG_OFFER;
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
    if (!message || message->kind != P2P_MSG_EAGER || message->bytes > room)
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
    p2p_early *early = p->recv_first ? NULL : early_take(p, 0, 0);
    if (early) {
        recv_deliver(p2p, op, early);
        p2p_move(op);
    } else {
        recv_list(op);
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
    p2p_early *early = early_take(peer, 1, tag);
    int made = 0;

    if (!early)
        return 0;
    if (early->n > max) {
        *kind = mpix_fail_peer(MPIX_ERRK_TRUNCATE, rank, NULL,
                               "rank %d advertised %d pieces with tag %d, there is room for %d",
                               rank, early->n, tag, max);
        early_put_back(peer, early);
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
        early_put_back(peer, early);
    else
        early_release(p2p, early);
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
            kind = starved(peer);
    }
    if (taken && !kind)
        p2p_settle(p2p, peer, &wait, start);
    mpix_wait_end(&wait);
    return p2p_raise(p2p, kind);
}
MPIX_WEAK_ALIAS(P2p_get_advert);
