/*
 * p2p_rma.c - put, get, notifications, fetch_add and flush. What lies in mapped memory, or is
 * reached by a system call, is done within the call and needs no operation; the rest becomes one.
 */
#include "config.h"

#include "p2p/check.h"

/* 1: all pieces can be moved at once. */
static int rma_at_once(const MPIX_P2p_iov iov[], int n) {
    for (int i = 0; i < n; i++)
        if ((iov[i].rmem->reach != P2P_DIRECT && iov[i].rmem->reach != P2P_CMA) ||
            iov[i].rmem->gpu || iov[i].mem->gpu)
            return 0;
    return 1;
}

static int rma_copy(mpix_p2p *p2p, int put, const MPIX_P2p_iov iov[], int n) {
    int kind = p2p_copy_iov(p2p, put, iov, n);

    if (kind == MPIX_ERRK_PEER) {
        pthread_mutex_lock(&p2p->lock);
        p2p_fail(p2p, kind);
        pthread_mutex_unlock(&p2p->lock);
    }
    return kind;
}

static int rma_later(mpix_p2p *p2p, int type, int peer, const MPIX_P2p_iov iov[], int n, int notify,
                     int slot, uint64_t add, MPIX_Xfer *xfer) {
    p2p_op *op = p2p_op_new(p2p, type, peer, iov, n);
    if (!op)
        return p2p_raise(p2p, MPIX_ERRK_NO_MEM);
    op->notify = notify;
    op->slot = slot;
    op->add = add;
    return p2p_op_run(op, xfer);
}

/* GPU memory and memory that is not mapped here do not meet. */
static int rma_check_gpu(const MPIX_P2p_iov iov[], int n) {
    for (int i = 0; i < n; i++)
        if (iov[i].mem->gpu && iov[i].rmem->reach != P2P_DIRECT)
            return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, iov[i].rmem->peer, NULL,
                                  "iov[%d]: between GPU memory and host memory of MPIX_P2p_reg of "
                                  "another rank; MPIX_P2p_alloc's can be reached",
                                  i);
    return 0;
}

/*
 * The least that a call can be, which costs less than its checks: one piece between mapped host
 * memory and ours. 1: it is done. 0: the long way does it, or finds out what is wrong. Handles that
 * this thread has not seen since the last end go the long way, so a short copy calls nothing.
 */
static inline int rma_quick(int put, const MPIX_P2p_iov *v) {
    const struct mpix_mem *mem = v->mem;
    const struct mpix_rmem *rmem = v->rmem;

    if (!p2p_live_seen(mem, MPIX_LIVE_MEM) || !p2p_live_seen(rmem, MPIX_LIVE_RMEM))
        return 0;
    if (mem->p2p != rmem->p2p || !rmem->plain || !mem->plain)
        return 0;
    if (v->len < 0 || v->off < 0 || v->roff < 0 || (uint64_t)v->len > mem->bytes ||
        (uint64_t)v->off > mem->bytes - (uint64_t)v->len || (uint64_t)v->len > rmem->bytes ||
        (uint64_t)v->roff > rmem->bytes - (uint64_t)v->len)
        return 0;
    if (atomic_load_explicit(&mem->p2p->failed, memory_order_acquire) ||
        (rmem->gen && atomic_load_explicit(rmem->gen, memory_order_acquire) != rmem->id))
        return 0;
    char *here = mem->base + v->off, *there = rmem->ptr + v->roff, *to = put ? there : here;
    const char *from = put ? here : there;
    if (v->len == 8)
        memcpy(to, from, 8);
    else if (v->len)
        p2p_copy_bytes(mem->p2p, to, from, (size_t)v->len);
    return 1;
}

static int rma_call(int type, const MPIX_P2p_iov iov[], int n, int notify, int slot, uint64_t add,
                    MPIX_Xfer *xfer, int blocking) {
    mpix_p2p *p2p = NULL;
    int peer = -1, kind;

    kind = p2p_check(iov, n, type == P2P_PUT ? &p2p_need_put : &p2p_need_get, &p2p, &peer);
    if (!kind && !blocking && !xfer)
        kind = mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    if (!kind && notify)
        kind = p2p_check_slot(p2p, slot);
    if (!kind)
        kind = rma_check_gpu(iov, n);
    if (kind)
        return p2p_raise(p2p, kind);
    if (!rma_at_once(iov, n))
        return rma_later(p2p, type, peer, iov, n, notify, slot, add, xfer);
    kind = rma_copy(p2p, type == P2P_PUT, iov, n);
    if (kind)
        return p2p_raise(p2p, kind);
    if (notify) {
        /* Only this rank adds to its words at the peer, but several threads may. */
        p2p_peer *p = &p2p->peers[peer];
        p2p_fence();
        atomic_fetch_add_explicit(p2p_words(p2p, p->out, slot), add, memory_order_release);
        p2p_ring_bell(p);
    }
    if (xfer)
        *xfer = MPIX_XFER_NULL;
    return MPI_SUCCESS;
}

int PMPIX_P2p_iput(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer) {
    if (n == 1 && iov && xfer && rma_quick(1, iov)) {
        *xfer = MPIX_XFER_NULL;
        return MPI_SUCCESS;
    }
    return rma_call(P2P_PUT, iov, n, 0, 0, 0, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_iput);

int PMPIX_P2p_put(const MPIX_P2p_iov iov[], int n) {
    if (n == 1 && iov && rma_quick(1, iov))
        return MPI_SUCCESS;
    return rma_call(P2P_PUT, iov, n, 0, 0, 0, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_put);

int PMPIX_P2p_iget(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer) {
    if (n == 1 && iov && xfer && rma_quick(0, iov)) {
        *xfer = MPIX_XFER_NULL;
        return MPI_SUCCESS;
    }
    return rma_call(P2P_GET, iov, n, 0, 0, 0, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_iget);

int PMPIX_P2p_get(const MPIX_P2p_iov iov[], int n) {
    if (n == 1 && iov && rma_quick(0, iov))
        return MPI_SUCCESS;
    return rma_call(P2P_GET, iov, n, 0, 0, 0, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_get);

int PMPIX_P2p_iput_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add,
                          MPIX_Xfer *xfer) {
    return rma_call(P2P_PUT, iov, n, 1, slot, add, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_iput_notify);

int PMPIX_P2p_put_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add) {
    return rma_call(P2P_PUT, iov, n, 1, slot, add, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_put_notify);

/* ---- notifications --------------------------------------------------------------------------- */

static int notify_check(MPIX_P2p p2p, int peer, int slot) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed");
    int kind = p2p_check_peer(p2p, peer);
    return kind ? kind : p2p_check_slot(p2p, slot);
}

/* Acquire: who sees the sum sees the data. */
static uint64_t notify_value(mpix_p2p *p2p, int peer, int slot) {
    const p2p_peer *p = &p2p->peers[peer];
    _Atomic uint64_t *words = p2p_words(p2p, p->in, slot);
    uint64_t value = atomic_load_explicit(words, memory_order_acquire);

    if (p->mapped) /* and what its GPU has told */
        for (int w = 0; w < P2P_GPU_WORDS; w++)
            value += atomic_load_explicit(words + p2p->lanes + w, memory_order_acquire);
    else if (!p2p->counted)
        for (int l = 1; l < p2p->lanes; l++) {
            uint64_t other = atomic_load_explicit(words + l, memory_order_acquire);
            value = other < value ? other : value;
        }
    return value;
}

int PMPIX_P2p_notify_test(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now,
                          int *flag) {
    int kind = notify_check(p2p, peer, slot);

    if (!kind && !flag)
        kind = mpix_fail(MPIX_ERRK_ARG, "flag", "flag is NULL");
    if (kind)
        return p2p_raise(mpix_live_check(p2p, MPIX_LIVE_P2P) ? p2p : NULL, kind);
    uint64_t value = notify_value(p2p, peer, slot);
    if (value < at_least) {
        pthread_mutex_lock(&p2p->lock);
        MPIX_Error *own = mpix_error_divert(&p2p->passing);
        p2p->awaited = peer;
        p2p_progress(p2p);
        p2p_check_peers(p2p);
        p2p->awaited = -1;
        mpix_error_divert(own);
        pthread_mutex_unlock(&p2p->lock);
        value = notify_value(p2p, peer, slot);
    }
    if (value < at_least && (kind = p2p_alive(p2p)))
        return p2p_raise(p2p, kind);
    if (now)
        *now = value;
    *flag = value >= at_least;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_notify_test);

int PMPIX_P2p_notify_wait(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now) {
    int kind = notify_check(p2p, peer, slot);

    if (kind)
        return p2p_raise(mpix_live_check(p2p, MPIX_LIVE_P2P) ? p2p : NULL, kind);
    uint64_t value = notify_value(p2p, peer, slot);
    if (value < at_least) {
        uint64_t start = mpix_clock_ns();
        mpix_wait wait;
        p2p_wait_start(p2p, &wait);
        do
            kind = p2p_wait_turn(p2p, &wait, peer, start, "a notification");
        while ((value = notify_value(p2p, peer, slot)) < at_least && !kind);
        p2p_settle(p2p, peer, &wait, start);
        mpix_wait_end(&wait);
        if (value < at_least)
            return p2p_raise(p2p, kind);
    }
    if (now)
        *now = value;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_notify_wait);

/* ---- fetch_add ------------------------------------------------------------------------------- */

static int add_call(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old, MPIX_Xfer *xfer,
                    int blocking) {
    int kind = 0;

    if (!p2p_live(rmem, MPIX_LIVE_RMEM))
        return mpix_boot_raise(NULL, mpix_live_need(rmem, MPIX_LIVE_RMEM, "rmem",
                                                    "rmem is NULL or freed"));
    mpix_p2p *p2p = rmem->p2p;
    if (roff < 0 || rmem->bytes < 8 || (uint64_t)roff > rmem->bytes - 8 ||
        (rmem->addr + (uint64_t)roff) % 8)
        kind = mpix_fail(MPIX_ERRK_ARG, "roff",
                         "roff = %lld: an aligned word of 8 bytes inside %llu bytes is needed",
                         (long long)roff, (unsigned long long)rmem->bytes);
    else if (rmem->rights != MPIX_MEM_ALL)
        kind = mpix_fail_peer(MPIX_ERRK_ARG, rmem->peer, NULL,
                              "rmem: rank %d registered memory that was not readable and writable; "
                              "map it so and register it again",
                              rmem->peer);
    else if (!old)
        kind = mpix_fail(MPIX_ERRK_ARG, "old", "old is NULL");
    else if (!blocking && !xfer)
        kind = mpix_fail(MPIX_ERRK_ARG, "xfer", "xfer is NULL");
    else if (rmem->gen && atomic_load_explicit(rmem->gen, memory_order_acquire) != rmem->id)
        kind = mpix_fail_peer(MPIX_ERRK_ARG, rmem->peer, NULL,
                              "rmem: rank %d has deregistered this memory", rmem->peer);
    else
        kind = p2p_alive(p2p);
    if (kind)
        return p2p_raise(p2p, kind);
    if (rmem->reach == P2P_DIRECT && !rmem->gpu) {
        *old = (int64_t)atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)(rmem->ptr + roff),
                                                  (uint64_t)add, memory_order_seq_cst);
        if (xfer)
            *xfer = MPIX_XFER_NULL;
        return MPI_SUCCESS;
    }
    p2p_op *op = p2p_op_add(p2p, rmem, (uint64_t)roff);
    if (!op)
        return p2p_raise(p2p, MPIX_ERRK_NO_MEM);
    op->add = (uint64_t)add;
    op->old = old;
    return p2p_op_run(op, xfer);
}

int PMPIX_P2p_ifetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old,
                         MPIX_Xfer *xfer) {
    return add_call(rmem, roff, add, old, xfer, 0);
}
MPIX_WEAK_ALIAS(P2p_ifetch_add);

int PMPIX_P2p_fetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old) {
    return add_call(rmem, roff, add, old, NULL, 1);
}
MPIX_WEAK_ALIAS(P2p_fetch_add);

/* ---- flush ----------------------------------------------------------------------------------- */

/*
 * Puts to mapped memory and by system call are over; a fence makes streaming stores visible. Puts
 * by message are acknowledged by the owner. A network's completion says that the data have reached
 * the peer's device; a READ on the same lane, of a word of the peer's control window, can't pass
 * them there, so what has been read back tells that they are in memory.
 */
static int flush_read(mpix_p2p *p2p, int peer, int lane, int scratch, uint64_t *seq) {
    mpix_net_op op = {.op = MPIX_NET_READ,
                      .peer = (uint16_t)peer,
                      .lane = (uint8_t)lane,
                      .local = &p2p->scratch[scratch],
                      .len = 8,
                      .counter = -1};

    return mpix_proxy_post(p2p->proxy, &op, mpix_proxy_window_mem(p2p->proxy, P2P_WIN_MIRROR),
                           mpix_proxy_window_rmem(p2p->proxy, peer, P2P_WIN_CTL), seq);
}

/* One peer, proxied, all its puts complete. Called again and again; 1: flushed. *stage: lanes that
 * have been read. With the lock. */
typedef struct flush_state {
    uint32_t lanes, posted;
    int scratch;
    uint64_t seq[P2P_LANES];
} flush_state;

static int flush_step(mpix_p2p *p2p, int r, flush_state *f) {
    p2p_peer *peer = &p2p->peers[r];

    if (peer->puts > 0)
        return 0;
    if (!f->lanes && !(f->lanes = peer->dirty))
        return 1;
    if (f->scratch < 0 && (f->scratch = p2p_scratch_take(p2p)) < 0)
        return 0;
    peer->dirty = 0;
    for (int l = 0; l < p2p->lanes; l++)
        if ((f->lanes & ~f->posted) >> l & 1) {
            if (flush_read(p2p, r, l, f->scratch, &f->seq[l]) <= 0)
                return 0;
            f->posted |= 1u << l;
        }
    mpix_proxy_step(p2p->proxy);
    for (int l = 0; l < p2p->lanes; l++)
        if ((f->lanes >> l & 1) && mpix_proxy_completed(p2p->proxy, r, l) < f->seq[l])
            return 0;
    return 1;
}

static int flush_peer(mpix_p2p *p2p, int peer) {
    uint64_t start = mpix_clock_ns();
    flush_state f = {.scratch = -1};
    int kind = 0, done;
    mpix_wait wait;

    p2p_wait_start(p2p, &wait);
    for (;;) {
        pthread_mutex_lock(&p2p->lock);
        done = p2p->peers[peer].mapped ? p2p->peers[peer].puts == 0 : flush_step(p2p, peer, &f);
        pthread_mutex_unlock(&p2p->lock);
        if (done || kind)
            break;
        kind = p2p_wait_turn(p2p, &wait, peer, start, "a flush");
    }
    mpix_wait_end(&wait);
    pthread_mutex_lock(&p2p->lock);
    if (f.scratch >= 0 && done)
        p2p->scratch_free |= (uint64_t)1 << f.scratch; /* else a read may still write it */
    if (!done)
        p2p->peers[peer].dirty |= f.lanes;
    pthread_mutex_unlock(&p2p->lock);
    return done ? 0 : kind;
}

int PMPIX_P2p_flush(MPIX_P2p p2p, int peer) {
    if (!p2p_live(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    int kind = p2p_alive(p2p);
    if (!kind && peer != MPIX_ALL_PEERS && (peer < 0 || peer >= p2p->size))
        kind = mpix_fail(MPIX_ERRK_ARG, "peer", "peer = %d is not in [0, %d), nor MPIX_ALL_PEERS",
                         peer, p2p->size);
    if (kind)
        return p2p_raise(p2p, kind);
    atomic_thread_fence(memory_order_release); /* long copies have fenced themselves */
    if (!p2p->proxy && atomic_load_explicit(&p2p->pending, memory_order_acquire) == 0)
        return MPI_SUCCESS;
    for (int r = peer < 0 ? 0 : peer; r < (peer < 0 ? p2p->size : peer + 1) && !kind; r++)
        kind = flush_peer(p2p, r);
    return kind ? p2p_raise(p2p, kind) : MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_flush);
