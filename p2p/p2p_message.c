/*
 * p2p_message.c - what the owner of a ring does with a message. ASK: puts, gets and additions on
 * memory that its peers can't reach themselves are executed here, by the owner's progress.
 * Additions use the processor's atomic operations, as those of mapped peers do: every region has
 * one agent, the processors of its host. Atomic operations of a network serve only where they are
 * coherent with these (net.h: add_coherent), which most devices' are not. The price is the owner's
 * progress.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

#include <errno.h>

/*
 * Memory of MPIX_P2p_reg is the caller's, who may have unmapped it, or a file behind it may have
 * been cut short: what is moved there goes through the kernel, and the origin gets the error.
 * Memory of MPIX_P2p_alloc stays as long as the registration.
 */
static int put_safely(mpix_p2p *p2p, const struct mpix_mem *mem, uint64_t off, const char *payload,
                      size_t n) {
    mpix_mem_file file;

    if (mem->area) {
        memcpy(mem->base + off, payload, n);
        return 1;
    }
    if (!(mem->rights & MPIX_MEM_WRITE))
        return 0;
    if (mpix_mem_file_find(payload, n, &file)) /* the ring is one */
        return mpix_guard_write_file(file.fd, file.off, mem->base + off, n) == 0;
    return p2p_guard(p2p) && mpix_guard_write(p2p->guard, mem->base + off, payload, n) == 0;
}

static void take_put(mpix_p2p *p2p, int peer, const p2p_message *message, const char *payload) {
    struct mpix_mem *mem = p2p_mem_find(p2p, message->a, message->b, message->bytes);
    p2p_out *out;

    if (mem && mem->gpu)
        mem = NULL; /* peers reach that themselves */
    if (mem && message->bytes && !put_safely(p2p, mem, message->b, payload, message->bytes))
        mem = NULL;
    if (!message->last && mem)
        return;
    out = p2p_out_answer(p2p, P2P_MSG_ACK, message->id);
    /* of a put whose first part is refused all parts are, and the first refusal counts */
    out->head.status = mem ? 0 : MPIX_ERRK_ARG;
    out->head.tag = (int32_t)message->last;
    p2p_out_add(p2p, peer, out);
}

static void take_get(mpix_p2p *p2p, int peer, const p2p_message *message) {
    struct mpix_mem *mem = p2p_mem_find(p2p, message->a, message->b, message->c);
    p2p_out *out = p2p_out_answer(p2p, P2P_MSG_DATA, message->id);

    if (mem && (mem->gpu || !(mem->rights & MPIX_MEM_READ)))
        mem = NULL;
    out->head.tag = message->tag;
    out->head.status = mem ? 0 : MPIX_ERRK_ARG;
    if (mem) {
        out->mem = mem;
        atomic_fetch_add_explicit(&mem->busy, 1, memory_order_relaxed);
        out->from = mem->base + message->b;
        out->left = message->c;
    }
    p2p_out_add(p2p, peer, out);
}

static void take_add(mpix_p2p *p2p, int peer, const p2p_message *message) {
    struct mpix_mem *mem = p2p_mem_find(p2p, message->a, message->b, 8);
    p2p_out *out = p2p_out_answer(p2p, P2P_MSG_OLD, message->id);

    if (!mem || ((uintptr_t)mem->base + message->b) % 8 || mem->rights != MPIX_MEM_ALL ||
        (!mem->area && !mem->gpu && mpix_guard_writable(mem->base + message->b)))
        out->head.status = MPIX_ERRK_ARG;
    else if (mem->gpu)
        out->head.status = p2p_gpu_add_now(p2p, mem->base + message->b, message->c, &out->head.c);
    else
        out->head.c =
            atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)(mem->base + message->b),
                                      message->c, memory_order_seq_cst);
    p2p_out_add(p2p, peer, out);
}

/* One answer less is awaited. A proxied operation goes on in the turn that has given back the
 * answer's place (p2p_move.c: move_handed). */
static void answered(p2p_op *op) {
    op->left -= op->left > 0;
    if (op->p2p->peers[op->peer].mapped)
        p2p_move(op);
}

/* The owner's answer: its error, or what it sent. */
static void take_answer(mpix_p2p *p2p, int peer, const p2p_message *message, const char *payload) {
    p2p_op *op = p2p_op_find(p2p, message->id);

    if (!op || op->peer != peer)
        return; /* it has failed meanwhile */
    if (message->status)
        p2p_op_fail(
            op, mpix_fail_peer(message->status, peer, p2p->boot->hostnames[peer],
                               "rank %d on %s refused: this memory is deregistered there, or no "
                               "longer mapped as it was registered, or misaligned for an addition",
                               peer, p2p->boot->hostnames[peer]));
    else if (message->type == P2P_MSG_DATA && message->tag >= 0 && message->tag < op->n) {
        const p2p_piece *p = &op->pieces[message->tag];
        uint64_t off = message->b;
        if (off <= p->len && message->bytes <= p->len - off && message->bytes)
            memcpy(p->local + off, payload, message->bytes);
    } else if (message->type == P2P_MSG_OLD && op->old) {
        *op->old = (int64_t)message->c;
    }
    if (message->type == P2P_MSG_ACK && !message->tag)
        return; /* of a part that was refused: more come */
    if (message->last)
        answered(op);
}

/* Whether there is memory for what moves data in memory of the caller's: without it a good peer
 * would be refused. */
static int guard_ready(mpix_p2p *p2p, const p2p_message *message) {
    const struct mpix_mem *mem = p2p_mem_find(p2p, message->a, 0, 0);

    return message->type == P2P_MSG_ADD || !mem || mem->area || mem->gpu || p2p_guard(p2p) ||
           errno != ENOMEM;
}

int p2p_message_take(mpix_p2p *p2p, int peer, const p2p_message *message, const char *payload) {
    switch (message->type) {
    case P2P_MSG_EAGER:
    case P2P_MSG_OFFER:
    case P2P_MSG_ADVERT: return p2p_send_arrived(p2p, peer, message, payload);
    case P2P_MSG_PUT:
    case P2P_MSG_GET:
    case P2P_MSG_ADD:
        if (!p2p_out_ready(p2p) || !guard_ready(p2p, message))
            return 0;
        if (message->type == P2P_MSG_PUT)
            take_put(p2p, peer, message, payload);
        else if (message->type == P2P_MSG_GET)
            take_get(p2p, peer, message);
        else
            take_add(p2p, peer, message);
        return 1;
    case P2P_MSG_ACK:
    case P2P_MSG_DATA:
    case P2P_MSG_OLD: take_answer(p2p, peer, message, payload); return 1;
    case P2P_MSG_FIN: {
        p2p_op *op = p2p_op_find(p2p, message->id);
        if (op && op->peer == peer)
            answered(op);
        return 1;
    }
    case P2P_MSG_NOTIFY:
        if (message->a < (uint64_t)p2p->slots)
            atomic_fetch_add_explicit(p2p_words(p2p, p2p->peers[peer].in, (int)message->a),
                                      message->b, memory_order_release);
        return 1;
    default:
        p2p_fail(p2p, mpix_fail_peer(MPIX_ERRK_INTERNAL, peer, p2p->boot->hostnames[peer],
                                     "rank %d sent a message of type %u", peer, message->type));
        return 1;
    }
}
