/*
 * p2p_enqueue.c - puts and gets on a stream of the caller's. Nothing is in flight afterwards as far
 * as the object knows: the stream is the caller's to wait for.
 */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu_state.h"

static int enqueue_check(mpix_p2p *p2p, const MPIX_P2p_iov iov[], int n, void *stream) {
    char why[MPIX_CUDA_WHY] = "";
    unsigned long long capture;
    int kind = p2p_gpu_get(p2p);

    for (int i = 0; i < n && !kind; i++) {
        if (iov[i].rmem->reach != P2P_DIRECT)
            kind = mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, iov[i].rmem->peer, NULL,
                                  "iov[%d].rmem: a stream reaches memory that is mapped here only: "
                                  "of MPIX_P2p_alloc, or of cudaMalloc",
                                  i);
    }
    if (!kind &&
        (kind = p2p->gpu->gpu.ops->stream_check(&p2p->gpu->gpu.device, stream, &capture, why)))
        kind = mpix_fail(kind, "stream", "%s", why);
    return kind;
}

static int enqueue(int put, const MPIX_P2p_iov iov[], int n, int notify, int slot, uint64_t add,
                   void *stream) {
    mpix_p2p *p2p = NULL;
    char why[MPIX_CUDA_WHY] = "";
    uint64_t *word = NULL;
    int peer = -1, kind = p2p_check(iov, n, put ? &p2p_need_put : &p2p_need_get, &p2p, &peer);

    if (!kind && notify)
        kind = p2p_check_slot(p2p, slot);
    if (kind)
        return p2p_raise(p2p, kind);
    pthread_mutex_lock(&p2p->lock);
    kind = enqueue_check(p2p, iov, n, stream);
    if (!kind)
        kind = p2p_gpu_room(p2p->gpu, n);
    if (!kind && notify)
        kind = p2p_gpu_word(p2p, peer, slot, GPU_ON_CALLERS, &word);
    if (!kind) {
        p2p_gpu *g = p2p->gpu;
        for (int i = 0; i < n; i++)
            g->pieces[i] = p2p_gpu_piece(put, iov[i].mem->gpu && iov[i].rmem->gpu,
                                         iov[i].mem->base + iov[i].off, iov[i].rmem,
                                         (uint64_t)iov[i].roff, (uint64_t)iov[i].len);
        uint64_t *counter = notify ? &g->counters[(size_t)peer * (size_t)p2p->slots + (size_t)slot]
                                   : NULL;
        mpix_cuda_tail tail = {.word = word, .value = add, .counter = counter};
        kind = g->gpu.ops->p2p_move(&g->gpu.device, g->pieces, n,
                                    (uint64_t)p2p->params.p2p_gpu_kernel, &tail, stream, why);
        if (kind)
            kind = p2p_gpu_failed(kind, "a transfer on a stream", why);
    }
    pthread_mutex_unlock(&p2p->lock);
    return p2p_raise(p2p, kind);
}

int PMPIX_P2p_put_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    return enqueue(1, iov, n, 0, 0, 0, stream);
}
MPIX_WEAK_ALIAS(P2p_put_enqueue);

int PMPIX_P2p_get_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    return enqueue(0, iov, n, 0, 0, 0, stream);
}
MPIX_WEAK_ALIAS(P2p_get_enqueue);

int PMPIX_P2p_put_notify_enqueue(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add,
                                 void *stream) {
    return enqueue(1, iov, n, 1, slot, add, stream);
}
MPIX_WEAK_ALIAS(P2p_put_notify_enqueue);
