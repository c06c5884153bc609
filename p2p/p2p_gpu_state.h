/*
 * p2p_gpu_state.h - the state of an object's GPU, shared by p2p_gpu.c (device, memory),
 * p2p_gpu_move.c (operations) and p2p_enqueue.c (the caller's stream).
 */
#ifndef MPIX_P2P_P2P_GPU_STATE_H
#define MPIX_P2P_P2P_GPU_STATE_H
#include "p2p/p2p_gpu.h"

enum { GPU_WORDS = 2048 };
enum { GPU_ON_OURS, GPU_ON_CALLERS }; /* which of its words at a peer a GPU writes, by the stream */

/* Memory of a peer opened by CUDA IPC; kept, for large sends come from the same memory
 * again and again. */
typedef struct p2p_ipc {
    struct p2p_ipc *next;
    int peer, users;
    unsigned char handle[64];
    mpix_cuda_mem mem;
} p2p_ipc;

struct p2p_gpu {
    mpix_gpu gpu;
    int chosen; /* the sort of windows has been agreed on */
    void *stream;
    uint64_t *words;    /* pinned: [GPU_WORDS] ends, [GPU_WORDS] old values */
    uint64_t *counters; /* device: [size][slots] */
    struct {
        void *host, *mapped;
    } * peers; /* control windows that the GPU can write */
    mpix_cuda_piece *pieces;
    int room;
    p2p_ipc *ipc;
    uint64_t asked_ns;
};

static inline int p2p_gpu_failed(int kind, const char *what, const char *why) {
    return mpix_fail(kind, NULL, "%s: %s", what, why);
}

/* ---- p2p_gpu_move.c: for the object's lock's holder ------------------------------------------ */
/* Where this GPU writes its notifications for a peer. which: GPU_ON_*. */
int p2p_gpu_word(mpix_p2p *p2p, int rank, int slot, int which, uint64_t **word);
int p2p_gpu_room(p2p_gpu *g, int n); /* for n pieces */
mpix_cuda_piece p2p_gpu_piece(int put, int gpu, char *local, const struct mpix_rmem *rmem,
                              uint64_t roff, uint64_t len);
#endif
