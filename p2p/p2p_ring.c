/*
 * p2p_ring.c - rings of messages, one per ordered pair of ranks, in the reader's window.
 *
 * The writer stores a message in place (position mod ring), then the head, with release; it writes
 * position p only while p - tail < ring, so nothing is overwritten that has not been taken. The
 * tail lies in the writer's window and is stored by the reader, when at least half a ring has been
 * taken: a writer that finds no room has all but half a ring's messages still unread or just told,
 * so more tails come.
 *
 * Proxied. The message is made in the mirror, a place for each place of the ring, put, and the head
 * is the signal of that batch. The place in the mirror is free again with the tail. A batch of the
 * counted form needs a counter that no earlier batch occupies: message p uses counter p mod ring,
 * whose last batch was taken by the reader, since p - tail < ring. Tails are signals without puts;
 * they use two counters in turn: when tail k + 1 is sent, the reader has taken messages that the
 * writer could only send after it had seen tail k - 1, for before it the room ended earlier.
 *
 * put_notify in the counted form is a message too, and its pieces are puts of the message's batch:
 * the head is published when data and message have arrived, in whatever order they did.
 */
#include "config.h"

#include "p2p/p2p.h"

/* ---- queue ----------------------------------------------------------------------------------- */

static p2p_out *out_take(mpix_p2p *p2p) {
    p2p_out *out = p2p->out_pool;

    if (!out)
        return malloc(sizeof *out);
    p2p->out_pool = out->next;
    return out;
}

static p2p_out *out_init(p2p_out *out, uint32_t type, uint64_t id) {
    memset(out, 0, sizeof *out);
    out->head.type = type;
    out->head.id = id;
    return out;
}

p2p_out *p2p_out_new(mpix_p2p *p2p, uint32_t type, uint64_t id) {
    p2p_out *out = out_take(p2p);

    if (!out) {
        mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a message");
        return NULL;
    }
    return out_init(out, type, id);
}

/*
 * A peer waits for the answer, so what it takes is there before its message is taken from the ring:
 * memory, or the spare node. A message for which there is neither stays in the ring, until an
 * answer has been written and its node is free again.
 */
int p2p_out_ready(mpix_p2p *p2p) {
    p2p_out *out = p2p->out_pool ? NULL : out_take(p2p);

    if (out) {
        out->next = NULL;
        p2p->out_pool = out;
    }
    return p2p->out_pool || p2p->out_spare;
}

p2p_out *p2p_out_answer(mpix_p2p *p2p, uint32_t type, uint64_t id) {
    p2p_out *out = p2p->out_pool ? out_take(p2p) : p2p->out_spare;

    if (out == p2p->out_spare)
        p2p->out_spare = NULL;
    return out_init(out, type, id);
}

static void out_free(mpix_p2p *p2p, p2p_out *out) {
    if (out->mem)
        atomic_fetch_sub_explicit(&out->mem->busy, 1, memory_order_relaxed);
    out->next = p2p->out_spare ? p2p->out_pool : NULL;
    if (p2p->out_spare)
        p2p->out_pool = out;
    else
        p2p->out_spare = out;
    atomic_fetch_sub_explicit(&p2p->pending, 1, memory_order_relaxed);
}

void p2p_out_add(mpix_p2p *p2p, int rank, p2p_out *out) {
    p2p_peer *peer = &p2p->peers[rank];

    out->next = NULL;
    if (peer->last)
        peer->last->next = out;
    else
        peer->first = out;
    peer->last = out;
    atomic_fetch_add_explicit(&p2p->pending, 1, memory_order_relaxed);
    if (peer->first == out)
        p2p_ring_write(p2p, rank);
}

static uint64_t ctl_offset(const mpix_p2p *p2p, const p2p_peer *peer, const void *at) {
    return sizeof(p2p_ctl) + (uint64_t)p2p->rank * p2p->block_bytes +
           (uint64_t)((const char *)at - (const char *)peer->out);
}

/* A proxied peer learns by a signal, if its lane still moves; its counter is used for
 * nothing else. */
void p2p_ring_tell(mpix_p2p *p2p) {
    uint64_t word = p2p->heard ? p2p->heard : mpix_boot_tell(p2p->boot, p2p->failed, &p2p->failure);

    for (int r = 0; p2p->peers && r < p2p->size; r++) {
        p2p_peer *peer = &p2p->peers[r];
        if (r == p2p->rank || !peer->out)
            continue;
        if (peer->mapped) {
            atomic_store_explicit(&peer->out->failed, word, memory_order_release);
            p2p_ring_bell(peer);
        } else {
            (void)mpix_proxy_last_word(p2p->proxy, r, 0, P2P_WIN_CTL,
                                       ctl_offset(p2p, peer, &peer->out->failed), word,
                                       (uint32_t)p2p->ring + 2);
        }
    }
    if (p2p->proxy)
        mpix_proxy_step(p2p->proxy);
}

void p2p_ring_drop(mpix_p2p *p2p) {
    for (int r = 0; p2p->peers && r < p2p->size; r++) {
        p2p_peer *peer = &p2p->peers[r];
        while (peer->first) {
            p2p_out *out = peer->first;
            peer->first = out->next;
            out_free(p2p, out);
        }
        peer->last = NULL;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What a peer gets from memory of MPIX_P2p_reg goes through the kernel, see p2p_message.c. */
static int write_safely(mpix_p2p *p2p, const p2p_out *out, char *to, size_t bytes) {
    if (!out->mem || out->mem->area) {
        memcpy(to, out->from + out->at_off, bytes);
        return 1;
    }
    return p2p_guard(p2p) && mpix_guard_read(p2p->guard, to, out->from + out->at_off, bytes) == 0;
}

/* The payload of the next message of out; last: nothing is left after it. */
static uint32_t write_payload(mpix_p2p *p2p, p2p_out *out, p2p_message *head, char *to) {
    uint32_t bytes = 0;

    head->last = 1;
    if (out->blobs) { /* handles of the operation's pieces */
        for (; out->at < out->op->n && bytes + p2p->blob_bytes <= p2p->eager; out->at++) {
            const p2p_piece *p = &out->op->pieces[out->at];
            p2p_export(p->mem, (uint64_t)(p->local - p->mem->base), p->len, to + bytes);
            bytes += (uint32_t)p2p->blob_bytes;
        }
        head->last = out->at == out->op->n;
    } else if (out->head.type == P2P_MSG_EAGER) {
        for (int i = 0; i < out->op->n; i++) {
            if (out->op->pieces[i].len)
                memcpy(to + bytes, out->op->pieces[i].local, out->op->pieces[i].len);
            bytes += (uint32_t)out->op->pieces[i].len;
        }
    } else if (out->left > 0) {
        bytes = (uint32_t)(out->left < p2p->eager ? out->left : p2p->eager);
        if (!write_safely(p2p, out, to, bytes)) { /* the answer is the error, and the last one */
            head->status = MPIX_ERRK_ARG;
            out->left = 0;
            return 0;
        }
        head->b += out->at_off;
        out->at_off += bytes;
        out->left -= bytes;
        head->last = out->left == 0;
    }
    return bytes;
}

static void write_make(mpix_p2p *p2p, p2p_peer *peer, p2p_out *out) {
    p2p_message *place = p2p_place(p2p, peer->out, peer->written), head = out->head;

    head.bytes = write_payload(p2p, out, &head, (char *)(place + 1));
    *place = head;
    out->stage = 1;
}

/* The pieces of a counted put_notify, as puts of the message's batch. 1: all are queued. */
static int write_pieces(mpix_p2p *p2p, p2p_peer *peer, p2p_out *out, uint32_t counter) {
    p2p_op *op = out->op;

    for (; op->at < op->n; op->at++) {
        const p2p_piece *p = &op->pieces[op->at];
        mpix_net_op net_op = {.op = MPIX_NET_WRITE,
                              .peer = (uint16_t)op->peer,
                              .local = p->local,
                              .roff = p->rmem->off + p->roff,
                              .len = p->len,
                              .counter = (int32_t)counter};
        uint64_t seq;
        if (p->len == 0)
            continue;
        if (mpix_proxy_post(p2p->proxy, &net_op, p->mem->net, p->rmem->net, &seq) <= 0)
            return 0; /* no room, or a failure that check_peers finds */
        out->puts++;
        peer->dirty |= 1;
    }
    return 1;
}

/* 1: the message is on its way. */
static int write_proxied(mpix_p2p *p2p, int rank, p2p_out *out) {
    p2p_peer *peer = &p2p->peers[rank];
    uint32_t counter = (uint32_t)(peer->written % (uint64_t)p2p->ring);
    const p2p_message *place = p2p_place(p2p, peer->out, peer->written);
    uint64_t seq;

    if (out->stage == 1) {
        if (out->head.type == P2P_MSG_NOTIFY && !write_pieces(p2p, peer, out, counter))
            return 0;
        out->stage = 2;
    }
    if (out->stage == 2) {
        if (mpix_proxy_put(p2p->proxy, rank, 0, P2P_WIN_MIRROR,
                           (uint64_t)((const char *)place - p2p->mirror), P2P_WIN_CTL,
                           ctl_offset(p2p, peer, place), sizeof *place + place->bytes, counter,
                           &seq) <= 0)
            return 0;
        out->stage = 3;
    }
    if (mpix_proxy_signal(p2p->proxy, rank, 0, P2P_WIN_CTL, ctl_offset(p2p, peer, &peer->out->head),
                          peer->written + 1, counter, (uint32_t)out->puts + 1, &seq) <= 0)
        return 0;
    peer->owed = seq;
    if (out->head.type == P2P_MSG_NOTIFY) {
        out->op->lanes |= 1;
        out->op->seq[0] = seq;
    }
    return 1;
}

/* A node is done with. What waited only for being written is complete when the message is on its
 * way for good. */
static void write_finished(mpix_p2p *p2p, p2p_peer *peer, p2p_out *out) {
    p2p_op *op = out->head.type == P2P_MSG_OFFER ? NULL : out->op;

    peer->first = out->next;
    if (!peer->first)
        peer->last = NULL;
    if (op) {
        op->left--;
        op->notify = 0;
    }
    out_free(p2p, out);
    if (op)
        p2p_move(op);
}

int p2p_ring_write(mpix_p2p *p2p, int rank) {
    p2p_peer *peer = &p2p->peers[rank];
    int wrote = 0;

    while (peer->first) {
        p2p_out *out = peer->first;
        if (out->stage == 0) {
            if (peer->written - atomic_load_explicit(&peer->in->tail, memory_order_acquire) >=
                (uint64_t)p2p->ring)
                break;
            write_make(p2p, peer, out);
        }
        int last = (int)p2p_place(p2p, peer->out, peer->written)->last;
        if (peer->mapped) {
            p2p_fence();
            atomic_store_explicit(&peer->out->head, peer->written + 1, memory_order_release);
        } else if (!write_proxied(p2p, rank, out)) {
            break;
        }
        peer->written++;
        wrote = 1;
        out->stage = out->puts = 0;
        if (last)
            write_finished(p2p, peer, out);
    }
    if (wrote)
        p2p_ring_bell(peer);
    return wrote;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void read_tell(mpix_p2p *p2p, int rank) {
    p2p_peer *peer = &p2p->peers[rank];
    uint64_t seq;

    if (peer->taken - peer->told < (uint64_t)p2p->ring / 2)
        return;
    if (peer->mapped) {
        atomic_store_explicit(&peer->out->tail, peer->taken, memory_order_release);
        peer->told = peer->taken;
        p2p_ring_bell(peer);
        return;
    }
    if (mpix_proxy_signal(p2p->proxy, rank, 0, P2P_WIN_CTL, ctl_offset(p2p, peer, &peer->out->tail),
                          peer->taken, (uint32_t)p2p->ring + (uint32_t)(peer->tails & 1), 0,
                          &seq) > 0) {
        peer->owed = seq;
        peer->tails++;
        peer->told = peer->taken;
    }
}

const p2p_message *p2p_ring_next(mpix_p2p *p2p, int rank) {
    p2p_peer *peer = &p2p->peers[rank];

    return atomic_load_explicit(&peer->in->head, memory_order_acquire) != peer->taken
               ? p2p_place(p2p, peer->in, peer->taken)
               : NULL;
}

void p2p_ring_took(mpix_p2p *p2p, int rank) {
    p2p->peers[rank].taken++;
    read_tell(p2p, rank);
}

/* At most a ring's length at a time. */
int p2p_ring_read(mpix_p2p *p2p, int rank) {
    p2p_peer *peer = &p2p->peers[rank];
    uint64_t head = atomic_load_explicit(&peer->in->head, memory_order_acquire);
    int did = 0;

    for (; peer->taken != head && !p2p->failed; peer->taken++) {
        const p2p_message *message = p2p_place(p2p, peer->in, peer->taken);
        if (!p2p_message_take(p2p, rank, message, (const char *)(message + 1)))
            break;
        did = 1;
    }
    if (peer->taken != peer->told)
        read_tell(p2p, rank);
    return did;
}
