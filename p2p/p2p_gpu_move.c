/*
 * p2p_gpu_move.c - operations in GPU memory: copies and additions on the object's stream.
 *
 * Completion. A transfer on the object's stream ends by a word in pinned memory, which costs less
 * than an event. A broken GPU writes no word, so the stream is asked now and then. Operations
 * beyond GPU_WORDS at once have no word, and end by an event.
 *
 * Notifications. A GPU writes two words for (source, slot), behind those of the host: what goes on
 * the object's stream, whose order is the host's, and what goes on streams of the caller's
 * (kernels/cuda/p2p/p2p.cu). The counter is the sum of all of them. Each is written by one agent,
 * grows, and is stored after the data that it tells of.
 */
#include "config.h"

#include "p2p/p2p_gpu_state.h"

#include <unistd.h>

enum { GPU_ASK_NS = 5000000 };

/* Where this GPU writes its notifications for a peer. */
int p2p_gpu_word(mpix_p2p *p2p, int rank, int slot, int which, uint64_t **word) {
    p2p_gpu *g = p2p->gpu;
    p2p_peer *peer = &p2p->peers[rank];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char why[MPIX_CUDA_WHY] = "";

    if (!g->peers[rank].host) {
        size_t bytes = (p2p->ctl_win->bytes + page - 1) / page * page;
        int kind = g->gpu.ops->host_register(&g->gpu.device, peer->ctl, bytes,
                                             &g->peers[rank].mapped, why);
        if (kind)
            return mpix_fail_peer(kind, rank, p2p->boot->hostnames[rank],
                                  "notifications of rank %d by the GPU: %s", rank, why);
        g->peers[rank].host = peer->ctl;
    }
    ptrdiff_t at = (const char *)(p2p_words(p2p, peer->out, slot) + p2p->lanes + which) -
                   (const char *)peer->ctl;
    *word = (uint64_t *)(void *)((char *)g->peers[rank].mapped + at);
    return 0;
}

int p2p_gpu_room(p2p_gpu *g, int n) {
    mpix_cuda_piece *pieces;

    if (n <= g->room)
        return 0;
    pieces = realloc(g->pieces, (size_t)n * sizeof *pieces);
    if (!pieces)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a transfer of %d pieces", n);
    g->pieces = pieces;
    g->room = n;
    return 0;
}

mpix_cuda_piece p2p_gpu_piece(int put, int gpu, char *local, const struct mpix_rmem *rmem,
                              uint64_t roff, uint64_t len) {
    char *there = rmem->ptr + roff;

    return put ? (mpix_cuda_piece){there, local, len, gpu, 0}
               : (mpix_cuda_piece){local, there, len, gpu, 0};
}

/* An operation ends by its word, where it has one and the module can write it; else
 * by its event. */
static uint64_t *gpu_done_word(const p2p_op *op) {
    return op->index < GPU_WORDS ? &op->p2p->gpu->words[op->index] : NULL;
}

static int gpu_event(p2p_op *op, char *why) {
    const mpix_gpu *gpu = &op->p2p->gpu->gpu;
    int kind = op->event ? 0 : gpu->ops->event_create(&gpu->device, &op->event, why);

    op->on_gpu = P2P_ON_EVENT;
    return kind ? kind : gpu->ops->event_record(&gpu->device, op->event, op->p2p->gpu->stream, why);
}

static int gpu_submitted(p2p_op *op, int kind, const uint64_t *done, char *why) {
    if (!kind && done)
        op->on_gpu = P2P_ON_WORD;
    else if (!kind)
        kind = gpu_event(op, why);
    return kind ? p2p_gpu_failed(kind, "a transfer in GPU memory", why) : 0;
}

/* Starts the pieces from `at` on that are mapped, and behind the last piece the
 * notification. 0 or a kind. */
int p2p_gpu_submit(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    uint64_t *word = NULL, *done = gpu_done_word(op);
    char why[MPIX_CUDA_WHY] = "";
    int n = 0, notify = 0, kind = p2p_gpu_room(g, op->n - op->at);

    for (; !kind && op->at < op->n && op->pieces[op->at].rmem->reach == P2P_DIRECT; op->at++) {
        const p2p_piece *p = &op->pieces[op->at];
        g->pieces[n++] = p2p_gpu_piece(op->type == P2P_PUT, p->mem->gpu && p->rmem->gpu, p->local,
                                       p->rmem, p->roff, p->len);
    }
    if (!kind && op->notify && op->at == op->n && !op->asked) {
        kind = p2p_gpu_word(p2p, op->peer, op->slot, GPU_ON_OURS, &word);
        notify = 1;
    }
    if (kind)
        return kind;
    _Atomic uint64_t *sent = &p2p->peers[op->peer].sent[op->slot];
    mpix_cuda_tail tail = {.word = word,
                           .value = atomic_load(sent) + op->add,
                           .done = done,
                           .end = op->turn};
    p2p_fence(); /* what the processor copied comes before the GPU's word */
    kind = g->gpu.ops->p2p_move(&g->gpu.device, g->pieces, n, (uint64_t)p2p->params.p2p_gpu_kernel,
                                &tail, g->stream, why);
    if (!kind && notify) {
        atomic_store(sent, tail.value);
        op->notify = 0;
    }
    return gpu_submitted(op, kind, done, why);
}

int p2p_gpu_add(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    const p2p_piece *p = &op->own[0];
    char why[MPIX_CUDA_WHY] = "";
    mpix_cuda_tail tail = {.done = gpu_done_word(op), .end = op->turn};
    int kind = g->gpu.ops->p2p_add(&g->gpu.device, (uint64_t *)(void *)(p->rmem->ptr + p->roff),
                                   op->add, tail.done + GPU_WORDS, &tail, g->stream, why);

    return gpu_submitted(op, kind, tail.done, why);
}

int p2p_gpu_adds(const p2p_op *op) {
    return op->own[0].rmem->gpu && op->own[0].rmem->atomics && op->index < GPU_WORDS - 1;
}

/* 1: the GPU is done with it, or (op->kind) never will be. */
int p2p_gpu_done(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    int done;

    if (op->on_gpu == P2P_ON_WORD) {
        done = atomic_load_explicit((_Atomic uint64_t *)(void *)gpu_done_word(op),
                                    memory_order_acquire) == op->turn;
        if (done && op->type == P2P_ADD && !op->kind)
            *op->old = (int64_t)gpu_done_word(op)[GPU_WORDS];
        uint64_t now = done ? 0 : mpix_clock_ns();
        if (!done && now - g->asked_ns > GPU_ASK_NS) {
            g->asked_ns = now;
            int kind = g->gpu.ops->stream_failed(&g->gpu.device, g->stream, why);
            if (kind) {
                p2p_op_fail(op, p2p_gpu_failed(kind, "a transfer in GPU memory", why));
                done = 1;
            }
        }
    } else {
        done = g->gpu.ops->event_done(&g->gpu.device, op->event, why);
        if (done < 0)
            p2p_op_fail(op, p2p_gpu_failed(MPIX_ERRK_TRANSPORT, "a transfer in GPU memory", why));
    }
    if (done)
        op->on_gpu = 0;
    return done != 0;
}

void p2p_gpu_op_free(p2p_op *op) {
    if (op->event && op->p2p->gpu)
        op->p2p->gpu->gpu.ops->event_destroy(op->event);
}

/* An addition for a peer whose GPU can't do it itself; blocking, for its answer is awaited. */
int p2p_gpu_add_now(mpix_p2p *p2p, void *at, uint64_t add, uint64_t *old) {
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    /* the last operation's place: such an index never adds by word */
    uint64_t *value = &g->words[2 * GPU_WORDS - 1];
    mpix_cuda_tail none = {0};
    int kind = g->gpu.ops->p2p_add(&g->gpu.device, at, add, value, &none, g->stream, why);

    if (!kind)
        kind = g->gpu.ops->copy(&g->gpu.device, old, value, sizeof *old, why);
    return kind ? p2p_gpu_failed(kind, "an addition in GPU memory", why) : 0;
}
