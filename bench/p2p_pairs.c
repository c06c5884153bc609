/*
 * p2p_pairs.c - mpix_p2p_bench -t pairs: every rank moves to, or from, every other rank at once,
 * ours and MPI's. Behind what a rank sends there is a place for each rank: from rank r come the
 * bytes at (1 + r) * max_bytes.
 */
#include "config.h"

#include "bench/p2p.h"

#include <stdlib.h>
#include <string.h>

static MPIX_Xfer *xfers;
static unsigned char *win_base;
static MPI_Win win;

size_t p2p_pairs_place(const p2p_bench *b, int from) { return (size_t)(1 + from) * b->max_bytes; }

void p2p_pairs_open(p2p_bench *b) {
    xfers = calloc((size_t)b->size * P2P_WINDOW, sizeof *xfers);
    if (!xfers)
        p2p_die(b, "there is no memory");
    if (!b->side[P2P_MPI])
        return;
    MPI_Win_allocate((MPI_Aint)p2p_pairs_place(b, b->size), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &win_base, &win);
    memset(win_base, 1, p2p_pairs_place(b, b->size));
    MPI_Win_lock_all(0, win);
}

void p2p_pairs_close(p2p_bench *b) {
    if (b->side[P2P_MPI]) {
        MPI_Win_unlock_all(win);
        MPI_Win_free(&win);
    }
    free(xfers);
}

/* Each rank begins with the one behind it, so that not all go to the same one first. */
static int peer_of(const p2p_bench *b, int i) { return (b->rank + i) % b->size; }

void p2p_pairs_ours(p2p_bench *b, size_t bytes, int window) {
    int n = 0;

    for (int k = 0; k < window; k++)
        for (int i = 1; i < b->size; i++) {
            int r = peer_of(b, i), put = b->op == P2P_PUT;
            MPIX_P2p_iov v = {b->mem, put ? 0 : (MPI_Count)p2p_pairs_place(b, r), b->at[r],
                              put ? (MPI_Count)p2p_pairs_place(b, b->rank) : 0, (MPI_Count)bytes};
            if (b->stream)
                P2P_OK(put ? MPIX_P2p_put_enqueue(&v, 1, p2p_cuda_stream())
                           : MPIX_P2p_get_enqueue(&v, 1, p2p_cuda_stream()));
            else
                P2P_OK(put ? MPIX_P2p_iput(&v, 1, &xfers[n++]) : MPIX_P2p_iget(&v, 1, &xfers[n++]));
        }
    if (b->stream) {
        p2p_cuda_sync(b);
        return;
    }
    P2P_OK(MPIX_Xfer_waitall(n, xfers, NULL));
    for (int i = 1; i < b->size && b->op == P2P_PUT; i++)
        P2P_OK(MPIX_P2p_flush(b->p2p, peer_of(b, i)));
}

void p2p_pairs_mpi(p2p_bench *b, size_t bytes, int window) {
    int n = (int)bytes;

    for (int k = 0; k < window; k++)
        for (int i = 1; i < b->size; i++) {
            int r = peer_of(b, i);
            if (b->op == P2P_PUT)
                MPI_Put(win_base, n, MPI_BYTE, r, (MPI_Aint)p2p_pairs_place(b, b->rank), n,
                        MPI_BYTE, win);
            else
                MPI_Get(win_base + p2p_pairs_place(b, r), n, MPI_BYTE, r, 0, n, MPI_BYTE, win);
        }
    MPI_Win_flush_all(win);
}
