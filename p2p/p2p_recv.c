/*
 * p2p_recv.c - receiving: messages of send, and advertisements, that arrive.
 *
 * A message of at most p2p_eager bytes travels in the ring. A longer one is offered: the ring
 * carries handles of its pieces, the receiver reads them by the best way there is, straight into
 * its own pieces, and says FIN. Messages of a pair are taken from the ring in order, and matched
 * with receives in order; what nobody has asked for yet waits in a list.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

#include <inttypes.h>

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
    early->advert = message->type == P2P_MSG_ADVERT;
    early->tag = message->tag;
    early->id = message->type == P2P_MSG_OFFER ? message->id : 0;
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

void p2p_early_release(mpix_p2p *p2p, p2p_early *early) {
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

/* The first of its type, taken out of the list. */
p2p_early *p2p_early_take(p2p_peer *peer, int advert, int tag) {
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
void p2p_early_put_back(p2p_peer *peer, p2p_early *early) {
    early->next = peer->early_first;
    peer->early_first = early;
    if (!peer->early_last)
        peer->early_last = early;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* The last of those that wait for a message of this peer. */
void p2p_recv_list(p2p_op *op) {
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
        fin->head.type = P2P_MSG_FIN;
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

void p2p_recv_deliver(mpix_p2p *p2p, p2p_op *op, p2p_early *early) {
    recv_unlist(op);
    if (early->id)
        recv_offer(op, early);
    else
        recv_eager(op, early->data, early->bytes);
    p2p_early_release(p2p, early);
}

int p2p_starved(int rank) {
    return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                     "no memory for a message of rank %d; it waits for another try", rank);
}

/* 0: no memory to keep it; it stays in the ring. A receive that it is for fails, and
 * can be repeated. */
int p2p_send_arrived(mpix_p2p *p2p, int rank, const p2p_message *message, const char *payload) {
    p2p_peer *peer = &p2p->peers[rank];
    p2p_op *op = peer->recv_first;
    p2p_early *early = peer->partial;
    int eager = message->type == P2P_MSG_EAGER;
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
            p2p_early_release(p2p, early);
        peer->starved = 1;
        if (op && message->type == P2P_MSG_OFFER) {
            p2p_op_fail(op, p2p_starved(rank));
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
        p2p_recv_deliver(p2p, op, early);
        return 1;
    }
    if (peer->early_last)
        peer->early_last->next = early;
    else
        peer->early_first = early;
    peer->early_last = early;
    return 1;
}
