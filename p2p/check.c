/*
 * check.c - checks of what callers give: pieces, peers, notification slots, objects.
 */
#include "config.h"

#include "p2p/check.h"

#include <inttypes.h>
#include <stdio.h>

int p2p_check_object(MPIX_P2p p2p) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed");
    return 0;
}

int p2p_check_slot(const mpix_p2p *p2p, int slot) {
    return slot >= 0 && slot < p2p->slots
               ? 0
               : mpix_fail(MPIX_ERRK_ARG, "slot", "slot = %d is not in [0, %d) (mpix_ep_p2p_slots)",
                           slot, p2p->slots);
}

static int check_range(MPI_Count off, MPI_Count len, uint64_t bytes, int i, const char *field) {
    if (off >= 0 && len >= 0 && (uint64_t)len <= bytes && (uint64_t)off <= bytes - (uint64_t)len)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, len < 0 ? "iov.len" : field,
                     "iov[%d]: [%lld, + %lld) is not inside %" PRIu64 " bytes", i, (long long)off,
                     (long long)len, bytes);
}

/* Of a piece whose memory, or the peer's, is not alive. */
static MPIX_COLD int need_piece(const void *object, int tag, int i) {
    char text[64];
    int local = tag == MPIX_LIVE_MEM;

    snprintf(text, sizeof text, "iov[%d].%s", i,
             local ? "mem is NULL or deregistered" : "rmem is NULL or freed");
    return mpix_live_need(object, tag, local ? "iov.mem" : "iov.rmem", text);
}

const p2p_need p2p_need_send = {MPIX_MEM_READ, 0}, p2p_need_recv = {MPIX_MEM_WRITE, 0},
               p2p_need_put = {MPIX_MEM_READ, MPIX_MEM_WRITE},
               p2p_need_get = {MPIX_MEM_WRITE, MPIX_MEM_READ}, p2p_need_name = {0, 0};

/* rank < 0: this rank's. */
static MPIX_COLD int fail_rights(int rights, int need, int i, int rank) {
    char whose[32];

    snprintf(whose, sizeof whose, rank < 0 ? "this rank" : "rank %d", rank);
    return mpix_fail_peer(
        MPIX_ERRK_ARG, rank, NULL,
        "iov[%d].%s: %s registered memory that %s; map it so and register it again", i,
        rank < 0 ? "mem" : "rmem", whose,
        !rights                           ? "was not mapped, or not accessible"
        : need & ~rights & MPIX_MEM_WRITE ? "was read-only"
                                          : "can't be read");
}

static int check_remote(const MPIX_P2p_iov *v, int i, const struct mpix_rmem *first,
                        const struct mpix_mem *mem) {
    const struct mpix_rmem *rmem = v->rmem;

    if (i > 0 && rmem == v[-1].rmem) /* looked at already */
        return check_range(v->roff, v->len, rmem->bytes, i, "iov.roff");
    if (rmem != first && !p2p_live(rmem, MPIX_LIVE_RMEM))
        return need_piece(rmem, MPIX_LIVE_RMEM, i);
    if (rmem->p2p != mem->p2p)
        return mpix_fail(MPIX_ERRK_ARG, "iov.rmem",
                         "iov[%d]: mem and rmem belong to different objects", i);
    if (rmem->peer != first->peer)
        return mpix_fail(
            MPIX_ERRK_ARG, "iov.rmem",
            "iov[%d] names memory of rank %d, iov[0] of rank %d: one transfer has one peer", i,
            rmem->peer, first->peer);
    if (rmem->gen && atomic_load_explicit(rmem->gen, memory_order_acquire) != rmem->id)
        return mpix_fail_peer(MPIX_ERRK_ARG, rmem->peer, NULL,
                              "iov[%d].rmem: rank %d has deregistered this memory", i, rmem->peer);
    return check_range(v->roff, v->len, rmem->bytes, i, "iov.roff");
}

int p2p_check_peer(const mpix_p2p *p2p, int peer) {
    return peer >= 0 && peer < p2p->size
               ? 0
               : mpix_fail(MPIX_ERRK_ARG, "peer", "peer = %d is not in [0, %d)", peer, p2p->size);
}

int p2p_check(const MPIX_P2p_iov iov[], int n, const p2p_need *need, mpix_p2p **out, int *peer) {
    mpix_p2p *p2p = *out; /* NULL: that of the first piece */
    int kind, rmems = need->remote != 0;

    if (n < 0 || (n > 0 && !iov))
        return mpix_fail(MPIX_ERRK_ARG, n < 0 ? "n" : "iov", "n = %d, iov = %p", n,
                         (const void *)iov);
    if (n == 0 && !p2p)
        return mpix_fail(MPIX_ERRK_ARG, "n", "n = 0: the pieces say what peer is meant");
    for (int i = 0; i < n; i++) {
        const MPIX_P2p_iov *v = &iov[i];
        if ((i == 0 || v->mem != v[-1].mem) && !p2p_live(v->mem, MPIX_LIVE_MEM))
            return need_piece(v->mem, MPIX_LIVE_MEM, i);
        p2p = p2p ? p2p : v->mem->p2p;
        *out = p2p; /* to raise through */
        if (i == 0 && (kind = p2p_alive(p2p)))
            return kind; /* before a peer's part is looked at: it may have ended with its object */
        if (v->mem->p2p != p2p)
            return mpix_fail(MPIX_ERRK_ARG, "iov.mem", "iov[%d].mem belongs to another object", i);
        kind = check_range(v->off, v->len, v->mem->bytes, i, "iov.off");
        if (!kind && rmems && i == 0 && !p2p_live(v->rmem, MPIX_LIVE_RMEM))
            kind = need_piece(v->rmem, MPIX_LIVE_RMEM, i);
        if (!kind && rmems)
            kind = check_remote(v, i, iov[0].rmem, v->mem);
        if (!kind && v->len && need->local & ~v->mem->rights)
            kind = fail_rights(v->mem->rights, need->local, i, -1);
        if (!kind && rmems && v->len && need->remote & ~v->rmem->rights)
            kind = fail_rights(v->rmem->rights, need->remote, i, v->rmem->peer);
        if (kind)
            return kind;
    }
    if (rmems)
        *peer = iov[0].rmem->peer;
    return p2p_alive(p2p);
}
