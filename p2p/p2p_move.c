/*
 * p2p_move.c - the pieces of an operation, one after the other, each by the way its memory is
 * reached; then the notification.
 *
 * Lanes. A proxied piece of P2P_CUT or more is cut over all lanes; smaller ones of an operation
 * stay on one lane, where the proxy posts a row of them with one doorbell, and completion is
 * counted once per lane.
 *
 * Notification, proxied, ordered form: every (slot, lane) has a word at the target, and a
 * notification is the new sum in the words of all lanes, queued behind the data of each; the
 * counter is the lowest of the words. So no lane's word tells of another lane's data. Words must
 * only grow, so the signals of one operation are all queued before those of the next
 * (peer->notifier). Counted form: pieces and notification go as one batch with a message of the
 * ring, see p2p_ring.c.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

enum { P2P_CUT = 65536, P2P_CUT_UNIT = 4096 };

int p2p_scratch_take(mpix_p2p *p2p) {
    int i = p2p->scratch_free ? __builtin_ctzll(p2p->scratch_free) : -1;

    if (i >= 0)
        p2p->scratch_free &= p2p->scratch_free - 1;
    return i;
}

static void move_failed(p2p_op *op, int kind) {
    p2p_op_fail(op, kind);
    op->at = op->n; /* what was posted is waited for; the rest is left */
    op->notify = 0;
    if (kind == MPIX_ERRK_PEER)
        p2p_fail(op->p2p, kind);
}

/* One command of a proxied piece. 1: queued; 0: no room now. */
static int move_post(p2p_op *op, const mpix_net_op *net_op, const mpix_proxy_mem *mem,
                     const mpix_proxy_rmem *rmem) {
    uint64_t seq;
    int did = mpix_proxy_post(op->p2p->proxy, net_op, mem, rmem, &seq);

    if (did < 0) {
        move_failed(op, -did);
        return 0;
    }
    if (did > 0) {
        op->lanes |= 1u << net_op->lane;
        op->seq[net_op->lane] = seq;
    }
    return did;
}

static int move_net(p2p_op *op, const p2p_piece *p) {
    mpix_p2p *p2p = op->p2p;
    p2p_peer *peer = &p2p->peers[op->peer];
    uint64_t part = p->len;

    if (op->lane < 0)
        op->lane = peer->next_lane++ % p2p->lanes;
    if (p2p->lanes > 1 && p->len >= P2P_CUT)
        part = (p->len / (uint64_t)p2p->lanes + P2P_CUT_UNIT) / P2P_CUT_UNIT * P2P_CUT_UNIT;
    while (op->at_off < p->len) {
        uint64_t len = p->len - op->at_off < part ? p->len - op->at_off : part;
        int lane = (op->lane + (int)(op->at_off / part)) % p2p->lanes;
        mpix_net_op net_op = {.op = op->type == P2P_PUT ? MPIX_NET_WRITE : MPIX_NET_READ,
                              .peer = (uint16_t)op->peer,
                              .lane = (uint8_t)lane,
                              .local = p->local + op->at_off,
                              .roff = p->rmem->off + p->roff + op->at_off,
                              .len = len,
                              .counter = -1};
        if (!move_post(op, &net_op, p->mem->net, p->rmem->net))
            return 0;
        if (op->type == P2P_PUT)
            peer->dirty |= 1u << lane;
        op->at_off += len;
    }
    return 1;
}

static int move_ask(p2p_op *op, const p2p_piece *p) {
    mpix_p2p *p2p = op->p2p;
    p2p_out *out;

    if (p->len == 0)
        return 1;
    out = p2p_out_new(p2p, op->type == P2P_PUT ? P2P_MSG_PUT : P2P_MSG_GET, p2p_op_id(op));
    if (!out) {
        move_failed(op, MPIX_ERRK_NO_MEM);
        return 0;
    }
    out->head.a = p->rmem->id;
    out->head.b = p->rmem->off + p->roff;
    out->head.c = p->len;
    out->head.tag = op->at;
    if (op->type == P2P_PUT) {
        out->from = p->local;
        out->left = p->len;
    }
    op->left++;
    op->asked = 1;
    p2p_out_add(p2p, op->peer, out);
    return 1;
}

static int move_add(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_piece *p = &op->own[0];

    if (p2p_gpu_adds(op)) {
        int kind = p2p_gpu_add(op);
        if (kind)
            move_failed(op, kind);
        return !kind;
    }
    if (p->rmem->reach == P2P_NET && p->rmem->shared && mpix_proxy_caps(p2p->proxy)->add_coherent &&
        (op->scratch >= 0 || (op->scratch = p2p_scratch_take(p2p)) >= 0)) {
        mpix_net_op net_op = {.op = MPIX_NET_ADD,
                              .peer = (uint16_t)op->peer,
                              .local = &p2p->scratch[op->scratch],
                              .roff = p->rmem->off + p->roff,
                              .len = 8,
                              .value = op->add,
                              .counter = -1};
        return move_post(op, &net_op, mpix_proxy_window_mem(p2p->proxy, P2P_WIN_MIRROR),
                         p->rmem->net);
    }
    p2p_out *out = p2p_out_new(p2p, P2P_MSG_ADD, p2p_op_id(op));
    if (!out) {
        move_failed(op, MPIX_ERRK_NO_MEM);
        return 0;
    }
    out->head.a = p->rmem->id;
    out->head.b = p->rmem->off + p->roff;
    out->head.c = op->add;
    op->left++;
    p2p_out_add(p2p, op->peer, out);
    return 1;
}

/* ---- notification ---------------------------------------------------------------------------- */

/* Proxied, the pieces go with it. */
static int notify_message(p2p_op *op) {
    p2p_out *out = p2p_out_new(op->p2p, P2P_MSG_NOTIFY, p2p_op_id(op));

    if (!out) {
        move_failed(op, MPIX_ERRK_NO_MEM);
        return 0;
    }
    out->head.a = (uint64_t)op->slot;
    out->head.b = op->add;
    out->op = op;
    op->left++; /* until it is written */
    p2p_out_add(op->p2p, op->peer, out);
    return 1;
}

static uint64_t notify_offset(const mpix_p2p *p2p, const p2p_peer *peer, int slot, int lane) {
    const char *word = (const char *)(p2p_words(p2p, peer->out, slot) + lane);

    return sizeof(p2p_ctl) + (uint64_t)p2p->rank * p2p->block_bytes +
           (uint64_t)(word - (const char *)peer->out);
}

static void notify_signal(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_peer *peer = &p2p->peers[op->peer];

    if (peer->notifier && peer->notifier != op)
        return;
    if (!peer->notifier) {
        peer->notifier = op;
        op->value = atomic_load(&peer->sent[op->slot]) + op->add;
        atomic_store(&peer->sent[op->slot], op->value);
    }
    for (; op->told < p2p->lanes; op->told++) {
        uint64_t seq;
        int did = mpix_proxy_signal(p2p->proxy, op->peer, op->told, P2P_WIN_CTL,
                                    notify_offset(p2p, peer, op->slot, op->told), op->value, 0, 0,
                                    &seq);
        if (did < 0)
            move_failed(op, -did);
        if (did <= 0)
            return;
        op->lanes |= 1u << op->told;
        op->seq[op->told] = seq;
    }
    peer->notifier = NULL;
    op->notify = 0;
}

static void move_notify(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_peer *peer = &p2p->peers[op->peer];

    if (!peer->mapped) {
        notify_signal(op);
        return;
    }
    if (op->on_gpu && !p2p_gpu_done(op))
        return;      /* the processor tells only of what is complete */
    if (op->asked) { /* behind the data, in the ring */
        if (notify_message(op))
            op->notify = 0;
        return;
    }
    p2p_fence();
    atomic_fetch_add_explicit(p2p_words(p2p, peer->out, op->slot), op->add, memory_order_release);
    p2p_ring_bell(peer);
    op->notify = 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int move_piece(p2p_op *op) {
    const p2p_piece *p = &op->pieces[op->at];
    int kind, did;

    if (p->rmem->gpu || p->mem->gpu) {
        kind = p->rmem->reach == P2P_DIRECT
                   ? p2p_gpu_submit(op)
                   : mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, op->peer, NULL,
                                    "between GPU memory and host memory of MPIX_P2p_reg of rank "
                                    "%d; MPIX_P2p_alloc's can be reached",
                                    op->peer);
        if (kind)
            move_failed(op, kind);
        return !kind;
    }
    if (p->rmem->reach == P2P_DIRECT || p->rmem->reach == P2P_CMA) {
        kind = p2p_copy(op->p2p, op->type == P2P_PUT, op->pieces, op->n, &op->at);
        if (kind)
            move_failed(op, kind);
        return !kind;
    }
    did = p->rmem->reach == P2P_NET ? move_net(op, p) : move_ask(op, p);
    if (did) {
        op->at++;
        op->at_off = 0;
    }
    return did;
}

/*
 * Complete means that this rank need not be here for the rest: what the ring has queued until
 * now - the operation's own messages, and the tails of what it took - is with the network, or a
 * thread brings it there.
 */
static int move_handed(p2p_op *op) {
    const p2p_peer *peer = &op->p2p->peers[op->peer];

    if (op->type < P2P_ADD || peer->mapped || (op->type == P2P_RECV && !op->moved))
        return 1;
    if (!op->owed)
        op->owed = peer->owed;
    return mpix_proxy_handed(op->p2p->proxy, op->peer, 0) >= op->owed;
}

static int move_complete(p2p_op *op) {
    if (op->at < op->n || op->left > 0 || (op->notify && !op->kind))
        return 0;
    if (op->on_gpu && !p2p_gpu_done(op))
        return 0;
    for (int l = 0; l < P2P_LANES && op->lanes >> l; l++)
        if ((op->lanes >> l & 1) && mpix_proxy_completed(op->p2p->proxy, op->peer, l) < op->seq[l])
            return 0;
    return move_handed(op);
}

void p2p_move(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;

    if (op->posting || atomic_load_explicit(&op->done, memory_order_relaxed))
        return;
    op->posting = 1;
    if (op->type == P2P_ADD) {
        if (op->at < op->n && move_add(op))
            op->at = op->n;
    } else if (op->type == P2P_PUT && op->notify && p2p->counted && !p2p->peers[op->peer].mapped) {
        if (op->at == 0 && op->told == 0 && notify_message(op))
            op->told = 1; /* the ring's writer moves `at` */
    } else if (op->type == P2P_PUT || op->type == P2P_GET ||
               (op->type == P2P_RECV && !op->moved && op->pieces == op->temp && op->pieces)) {
        while (op->at < op->n && move_piece(op))
            ;
        if (op->at == op->n && op->notify)
            move_notify(op);
    } else if (op->type == P2P_RECV && !op->moved) {
        op->posting = 0;
        return; /* it awaits its message */
    }
    op->posting = 0;
    if (atomic_load_explicit(&op->done, memory_order_relaxed) || !move_complete(op))
        return;
    if (op->type == P2P_RECV && !op->moved)
        p2p_recv_moved(op);
    else
        p2p_op_done(op);
}
