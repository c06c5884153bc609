/*
 * p2p_op.c - operations in flight: their life, progress, waiting, deaths and time limits.
 *
 * Operations and what they need are kept when they end and used again, so a transfer allocates
 * nothing once its like has been made.
 */
#include "config.h"

#include "base/trace.h"
#include "p2p/p2p_gpu.h"

enum { OP_PAUSE_NS = 100000000 };

static const mpix_xfer_ops op_ops;

static const char *op_name(int type) {
    static const char *const names[] = {"put", "get", "fetch_add", "send", "recv", "advertise"};
    return names[type];
}

static void op_release(p2p_op *op) {
    op->turn++;
    op->next = op->p2p->pool;
    op->p2p->pool = op;
}

/* ---- life ------------------------------------------------------------------------------------ */

static p2p_op *op_make(mpix_p2p *p2p) {
    p2p_op *op;

    if (p2p->nops == p2p->room) {
        uint32_t room = p2p->room ? 2 * p2p->room : 64;
        p2p_op **table = realloc(p2p->table, room * sizeof *table);
        if (!table)
            return NULL;
        p2p->table = table;
        p2p->room = room;
    }
    op = calloc(1, sizeof *op);
    if (!op)
        return NULL;
    op->xfer.ops = &op_ops;
    op->p2p = p2p;
    op->index = p2p->nops;
    p2p->table[p2p->nops++] = op;
    return op;
}

static int op_room(p2p_op *op, int n) {
    p2p_piece *own;

    if (n <= op->room)
        return 1;
    own = realloc(op->own, (size_t)n * sizeof *own);
    if (!own)
        return 0;
    op->own = own;
    op->room = n;
    return 1;
}

/* Pieces of the same memory in a row are counted together: a long vector names the same handles
 * again and again. */
static void op_count(p2p_op *op, int sign) {
    for (int i = 0, run; i < op->held; i += run) {
        const p2p_piece *p = &op->own[i];
        for (run = 1; i + run < op->held && op->own[i + run].mem == p->mem &&
                      op->own[i + run].rmem == p->rmem;)
            run++;
        if (p->mem)
            atomic_fetch_add_explicit(&p->mem->busy, sign * run, memory_order_relaxed);
        if (p->rmem)
            atomic_fetch_add_explicit(&p->rmem->busy, sign * run, memory_order_relaxed);
    }
}

static void op_hold(p2p_op *op, const MPIX_P2p_iov iov[], int n) {
    int remote = op->type == P2P_PUT || op->type == P2P_GET;

    for (int i = 0; i < n; i++)
        op->own[i] = (p2p_piece){iov[i].mem, iov[i].mem->base + iov[i].off,
                                 remote ? iov[i].rmem : NULL, (uint64_t)iov[i].roff,
                                 (uint64_t)iov[i].len};
    op->held = n;
    op->pieces = op->own;
    op->n = n;
    op_count(op, 1);
}

static void op_drop(p2p_op *op) {
    op_count(op, -1);
    op->held = 0;
}

p2p_op *p2p_op_new(mpix_p2p *p2p, int type, int peer, const MPIX_P2p_iov iov[], int n) {
    p2p_op *op;

    pthread_mutex_lock(&p2p->lock);
    op = p2p->pool;
    if (op)
        p2p->pool = op->next;
    else
        op = op_make(p2p);
    if (!op || !op_room(op, n)) {
        if (op) {
            op->next = p2p->pool;
            p2p->pool = op;
        }
        pthread_mutex_unlock(&p2p->lock);
        mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a transfer of %d pieces", n);
        return NULL;
    }
    op->turn++;
    op->type = type;
    op->peer = peer;
    op->kind = 0;
    atomic_store_explicit(&op->done, 0, memory_order_relaxed);
    op->at = op->posting = op->asked = op->notify = op->told = 0;
    op->at_off = op->left = op->total = op->owed = 0;
    op->moved = op->waits = 0;
    op->lanes = 0;
    op->lane = -1;
    op->scratch = -1;
    op->old = NULL;
    op->received = NULL;
    op->match = NULL;
    op->waited_ns = op->tested_ns = 0;
    op->tests = 0;
    op->on_gpu = 0;
    op_hold(op, iov, n);
    op->next = NULL;
    op->prev = p2p->ops_last;
    if (op->prev)
        op->prev->next = op;
    else
        p2p->ops = op;
    p2p->ops_last = op;
    p2p->peers[peer].puts += type == P2P_PUT;
    mpix_trace_begin("p2p", op_name(type), (uint64_t)(uintptr_t)op, peer, -1);
    atomic_fetch_add_explicit(&p2p->pending, 1, memory_order_relaxed);
    return op;
}

p2p_op *p2p_op_add(mpix_p2p *p2p, struct mpix_rmem *rmem, uint64_t roff) {
    p2p_op *op = p2p_op_new(p2p, P2P_ADD, rmem->peer, NULL, 0);

    if (op && !op_room(op, 1)) {
        p2p_op_done(op);
        op_release(op);
        pthread_mutex_unlock(&p2p->lock);
        mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an addition");
        return NULL;
    }
    if (op) {
        op->own[0] = (p2p_piece){NULL, NULL, rmem, roff, 8};
        op->held = op->n = 1;
        op->pieces = op->own;
        atomic_fetch_add_explicit(&rmem->busy, 1, memory_order_relaxed);
    }
    return op;
}

/* What it holds is given back; the caller still has to take notice. */
void p2p_op_done(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_peer *peer = &p2p->peers[op->peer];

    if (atomic_load_explicit(&op->done, memory_order_relaxed))
        return;
    if (op->type == P2P_RECV)
        p2p_recv_leave(op);
    if (op->scratch >= 0) {
        if (op->old && !op->kind)
            *op->old = (int64_t)p2p->scratch[op->scratch];
        p2p->scratch_free |= (uint64_t)1 << op->scratch;
        op->scratch = -1;
    }
    mpix_trace_end("p2p", op_name(op->type), (uint64_t)(uintptr_t)op);
    op_drop(op);
    peer->puts -= op->type == P2P_PUT;
    if (peer->notifier == op)
        peer->notifier = NULL;
    if (op->prev)
        op->prev->next = op->next;
    else
        p2p->ops = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        p2p->ops_last = op->prev;
    op->next = op->prev = NULL;
    atomic_fetch_sub_explicit(&p2p->pending, 1, memory_order_relaxed);
    atomic_store_explicit(&op->done, 1, memory_order_release);
}

void p2p_op_fail(p2p_op *op, int kind) {
    if (!op->kind) {
        op->kind = kind;
        op->error = *mpix_error_tls();
    }
}

/* The id of an answer, which may come after its operation has failed. */
p2p_op *p2p_op_find(mpix_p2p *p2p, uint64_t id) {
    p2p_op *op = (uint32_t)id < p2p->nops ? p2p->table[(uint32_t)id] : NULL;

    return op && op->turn == (uint32_t)(id >> 32) &&
                   !atomic_load_explicit(&op->done, memory_order_relaxed)
               ? op
               : NULL;
}

void p2p_ops_free(mpix_p2p *p2p) {
    p2p_ring_drop(p2p);
    for (uint32_t i = 0; i < p2p->nops; i++) {
        mpix_live_remove(&p2p->table[i]->xfer);
        free(p2p->table[i]->own);
        free(p2p->table[i]->temp);
        free(p2p->table[i]->fin);
        p2p_gpu_op_free(p2p->table[i]);
        free(p2p->table[i]);
    }
    free(p2p->table);
    while (p2p->out_pool) {
        p2p_out *out = p2p->out_pool;
        p2p->out_pool = out->next;
        free(out);
    }
    free(p2p->out_spare);
}

/* ---- failure --------------------------------------------------------------------------------- */

void p2p_fail(mpix_p2p *p2p, int kind) {
    if (!atomic_load_explicit(&p2p->failed, memory_order_relaxed)) {
        p2p->failure = *mpix_error_tls();
        atomic_store_explicit(&p2p->failed, kind, memory_order_release);
        mpix_proxy_abandon(p2p->proxy, kind);
        p2p_ring_tell(p2p);
    }
    p2p_ring_drop(p2p);
    while (p2p->ops) {
        p2p_op *op = p2p->ops;
        /* what is received is received, whether or not its sender could be told */
        if (!op->kind && !op->moved) {
            op->kind = p2p->failed;
            op->error = p2p->failure;
        }
        p2p_op_done(op);
    }
}

/* ---- progress -------------------------------------------------------------------------------- */

int p2p_progress(mpix_p2p *p2p) {
    int did = p2p->proxy && mpix_proxy_step(p2p->proxy), took = 0;

    for (int r = 0; r < p2p->size; r++)
        took |= p2p_ring_read(p2p, r);
    did |= took;
    p2p->idle = did ? 0 : p2p->idle + (p2p->idle < P2P_IDLE);
    if (atomic_load_explicit(&p2p->pending, memory_order_relaxed) == 0) {
        if (took && p2p->proxy)
            mpix_proxy_step(p2p->proxy); /* tails */
        return did;
    }
    for (int r = 0; r < p2p->size; r++)
        if (p2p->peers[r].first)
            did |= p2p_ring_write(p2p, r);
    for (p2p_op *op = p2p->ops, *next; op; op = next) {
        next = op->next;
        p2p_move(op);
    }
    if (p2p->proxy)
        did |= mpix_proxy_step(p2p->proxy); /* what was queued just now goes at once */
    if (p2p->idle == P2P_IDLE)
        p2p_check_peers(p2p);
    return did;
}

/*
 * Time counts while the caller asks: from one test to the next, at most a pause's length. A receive
 * that is posted early and asked about much later has not waited.
 */
static void op_clock(p2p_op *op) {
    static const char *const names[] = {"a put",  "a get",     "a fetch_add",
                                        "a send", "a receive", "an advertisement"};
    uint64_t now = mpix_clock_ns(), delta = op->tested_ns ? now - op->tested_ns : 0;

    op->tested_ns = now;
    op->waited_ns += delta < OP_PAUSE_NS ? delta : OP_PAUSE_NS;
    if (op->waited_ns > op->p2p->limit_ns)
        p2p_fail(op->p2p, p2p_late(op->p2p, op, op->peer, names[op->type]));
}

static int op_test(struct mpix_xfer *xfer) {
    p2p_op *op = (p2p_op *)xfer;

    if (atomic_load_explicit(&op->done, memory_order_acquire))
        return 1;
    pthread_mutex_lock(&op->p2p->lock);
    MPIX_Error *own = mpix_error_divert(&op->p2p->passing);
    p2p_progress(op->p2p);
    if (!atomic_load_explicit(&op->done, memory_order_relaxed) && op->tests++ >= P2P_IDLE)
        op_clock(op);
    mpix_error_divert(own);
    pthread_mutex_unlock(&op->p2p->lock);
    return atomic_load_explicit(&op->done, memory_order_acquire);
}

/*
 * Who writes our window rings our doorbell - the peers that map it, and our proxy. A network does
 * not, nor does anybody turn the proxy for us when the caller does it: then sleeps are timed. With
 * a thread of ours the doorbell is the thread's.
 */
void p2p_wait_start(mpix_p2p *p2p, mpix_wait *wait) {
    int rung = !p2p->threaded && mpix_proxy_rings(p2p->proxy);

    mpix_wait_start(wait, rung ? &p2p->ctl->bell : NULL, p2p->params.spin_us, p2p->oversubscribed);
}

static void op_wait_start(struct mpix_xfer *xfer, mpix_wait *wait) {
    p2p_wait_start(((p2p_op *)xfer)->p2p, wait);
}

static int op_end_locked(p2p_op *op) {
    int kind = op->kind;

    if (kind)
        *mpix_error_tls() = op->error;
    op_release(op);
    return kind;
}

static int op_end(struct mpix_xfer *xfer, mpix_boot **boot) {
    p2p_op *op = (p2p_op *)xfer;
    mpix_p2p *p2p = op->p2p;
    int kind;

    *boot = p2p->boot;
    mpix_live_remove(xfer);
    pthread_mutex_lock(&p2p->lock);
    p2p->users--;
    kind = op_end_locked(op);
    pthread_mutex_unlock(&p2p->lock);
    return kind;
}

static const mpix_xfer_ops op_ops = {op_test, op_wait_start, op_end, NULL};

int p2p_op_give(p2p_op *op, MPIX_Xfer *xfer) {
    mpix_p2p *p2p = op->p2p;
    mpix_boot *boot;
    int kind = 0;

    if (atomic_load_explicit(&op->done, memory_order_relaxed)) {
        kind = op_end_locked(op);
        pthread_mutex_unlock(&p2p->lock);
        if (!kind && xfer)
            *xfer = MPIX_XFER_NULL;
        return kind ? p2p_raise(p2p, kind) : MPI_SUCCESS;
    }
    p2p->users++;
    pthread_mutex_unlock(&p2p->lock);
    if (!xfer)
        return p2p_raise(p2p, mpix_xfer_finish(&op->xfer, &boot));
    mpix_live_add(&op->xfer.live, &op->xfer, MPIX_LIVE_XFER);
    *xfer = &op->xfer;
    return MPI_SUCCESS;
}

int p2p_op_run(p2p_op *op, MPIX_Xfer *xfer) {
    mpix_proxy *proxy = op->p2p->proxy;
    MPIX_Error *own = mpix_error_divert(&op->p2p->passing);

    p2p_move(op);
    if (proxy && mpix_proxy_step(proxy)) /* posts what was queued just now */
        p2p_move(op);
    mpix_error_divert(own);
    return p2p_op_give(op, xfer);
}

void p2p_settle(mpix_p2p *p2p, int peer, mpix_wait *wait, uint64_t start_ns) {
    int settled, kind = 0;

    if (p2p->peers[peer].mapped)
        return;
    do {
        pthread_mutex_lock(&p2p->lock);
        settled = p2p->failed || mpix_proxy_handed(p2p->proxy, peer, 0) >= p2p->peers[peer].owed;
        pthread_mutex_unlock(&p2p->lock);
        if (!settled)
            kind = p2p_wait_turn(p2p, wait, peer, start_ns, "the answer to what was received");
    } while (!settled && !kind);
}

int p2p_wait_turn(mpix_p2p *p2p, mpix_wait *wait, int peer, uint64_t start_ns, const char *what) {
    pthread_mutex_lock(&p2p->lock);
    MPIX_Error *own = mpix_error_divert(&p2p->passing);
    p2p->awaited = peer;
    int did = p2p_progress(p2p);
    int idle = !did && p2p->idle == P2P_IDLE;
    if (idle)
        p2p_check_peers(p2p);
    p2p->awaited = -1;
    if (idle && !p2p->failed && mpix_clock_ns() - start_ns > p2p->limit_ns)
        p2p_fail(p2p, p2p_late(p2p, NULL, peer, what));
    mpix_error_divert(own);
    pthread_mutex_unlock(&p2p->lock);
    if (!did)
        mpix_wait_pause(wait);
    return p2p_alive(p2p);
}
