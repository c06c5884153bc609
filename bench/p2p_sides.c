/*
 * p2p_sides.c - what mpix_p2p_bench measures: our transfers, MPI's (MPI_Put, MPI_Get,
 * MPI_Fetch_and_op and a flush; MPI_Send), NCCL's send and receive, memcpy.
 */
#include "config.h"

#include "bench/p2p.h"

#include <stdlib.h>
#include <string.h>

static MPIX_P2p_iov *iov, *iov_in;
static MPIX_Xfer xfers[2 * P2P_WINDOW];
static unsigned char *win_base, *win_local, *copy_from, *copy_to;
static MPI_Win win;
static int64_t olds[P2P_WINDOW];
static uint64_t notified;
static unsigned char stamp;
static size_t made_for; /* bytes that iov describes */

/* In the origin's first half lies what is sent, in the second what arrives. */
static void ours(p2p_bench *b, size_t bytes, int window, int active) {
    size_t max_bytes = b->max_bytes;
    int rank = b->rank, op = b->op, test = b->test, iov_n = b->iov_n;
    MPIX_P2p p2p = b->p2p;
    MPIX_P2p_mem mem = b->mem;
    MPIX_P2p_rmem *at = b->at;
    size_t piece = bytes / (size_t)iov_n;

    for (int i = 0; i < iov_n && bytes != made_for; i++) {
        size_t len = i + 1 < iov_n ? piece : bytes - piece * (size_t)(iov_n - 1),
               off = (size_t)i * piece;
        iov[i] = (MPIX_P2p_iov){mem, (MPI_Count)off, at[1 - rank], (MPI_Count)(max_bytes + off),
                                (MPI_Count)len};
        if (op == P2P_GET)
            iov[i] = (MPIX_P2p_iov){mem, (MPI_Count)(max_bytes + off), at[1 - rank], (MPI_Count)off,
                                    (MPI_Count)len};
        iov_in[i] =
            (MPIX_P2p_iov){.mem = mem, .off = (MPI_Count)(max_bytes + off), .len = (MPI_Count)len};
    }
    made_for = bytes;
    if (op == P2P_SEND) {
        int n = 0;
        if (test == P2P_LATENCY) { /* there and back */
            if (rank == 0)
                P2P_OK(MPIX_P2p_send(p2p, 1, iov, iov_n));
            P2P_OK(MPIX_P2p_recv(p2p, 1 - rank, iov_in, iov_n, NULL));
            if (rank == 1)
                P2P_OK(MPIX_P2p_send(p2p, 0, iov, iov_n));
            return;
        }
        for (int i = 0; i < window; i++) {
            if (rank == 1 || test == P2P_BIDIR)
                P2P_OK(MPIX_P2p_irecv(p2p, 1 - rank, iov_in, iov_n, NULL, &xfers[n++]));
            if (active)
                P2P_OK(MPIX_P2p_isend(p2p, 1 - rank, iov, iov_n, &xfers[n++]));
        }
        P2P_OK(MPIX_Xfer_waitall(n, xfers, NULL));
        return;
    }
    /* there and back, as ib_write_lat does it: the last byte is another one each time */
    if (op == P2P_SEEN) {
        volatile unsigned char *last = b->base + max_bytes + bytes - 1;
        stamp = (unsigned char)(stamp % 255 + 1);
        for (int turn = 0; turn < 2; turn++) {
            if (turn == rank) {
                b->base[bytes - 1] = stamp;
                P2P_OK(MPIX_P2p_put(iov, iov_n));
            } else {
                while (*last != stamp)
                    ;
            }
        }
        return;
    }
    if (op == P2P_NOTIFY) { /* there and back; the other rank's host sees the word */
        for (int turn = 0; turn < 2; turn++) {
            if (turn == rank) {
                if (b->stream)
                    P2P_OK(MPIX_P2p_put_notify_enqueue(iov, iov_n, 0, 1, p2p_cuda_stream()));
                else
                    P2P_OK(MPIX_P2p_put_notify(iov, iov_n, 0, 1));
            } else {
                P2P_OK(MPIX_P2p_notify_wait(p2p, 1 - rank, 0, ++notified, NULL));
            }
        }
        return;
    }
    if (!active)
        return;
    if (b->stream) {
        for (int i = 0; i < window; i++)
            P2P_OK(op == P2P_PUT ? MPIX_P2p_put_enqueue(iov, iov_n, p2p_cuda_stream())
                                 : MPIX_P2p_get_enqueue(iov, iov_n, p2p_cuda_stream()));
        p2p_cuda_sync(b);
        return;
    }
    for (int i = 0; i < window; i++) {
        if (op == P2P_PUT)
            P2P_OK(MPIX_P2p_iput(iov, iov_n, &xfers[i]));
        else if (op == P2P_GET)
            P2P_OK(MPIX_P2p_iget(iov, iov_n, &xfers[i]));
        else
            P2P_OK(MPIX_P2p_ifetch_add(at[1 - rank], (MPI_Count)max_bytes, 1, &olds[i], &xfers[i]));
    }
    P2P_OK(MPIX_Xfer_waitall(window, xfers, NULL));
    if (op == P2P_PUT)
        P2P_OK(MPIX_P2p_flush(p2p, 1 - rank));
}

static void theirs(p2p_bench *b, size_t bytes, int window, int active) {
    size_t max_bytes = b->max_bytes;
    int rank = b->rank, op = b->op, test = b->test, iov_n = b->iov_n;
    static MPI_Request requests[2 * P2P_WINDOW];
    /* gcc takes MPICH's MPI_STATUSES_IGNORE for an address */
    static MPI_Status statuses[2 * P2P_WINDOW];
    int peer = 1 - rank, n = (int)bytes, k = 0;

    if (op == P2P_SEND || op >= P2P_NOTIFY) {
        if (test == P2P_LATENCY) {
            if (rank == 0)
                MPI_Send(win_local, n, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(win_base, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send(win_local, n, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
            return;
        }
        for (int i = 0; i < window; i++) {
            if (rank == 1 || test == P2P_BIDIR)
                MPI_Irecv(win_base, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[k++]);
            if (active)
                MPI_Isend(win_local, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[k++]);
        }
        MPI_Waitall(k, requests, statuses);
        return;
    }
    if (!active)
        return;
    for (int i = 0; i < window; i++) {
        for (int v = 0; v < iov_n; v++) { /* a vector is a row of calls and one flush */
            size_t piece = bytes / (size_t)iov_n, off = (size_t)v * piece,
                   len = v + 1 < iov_n ? piece : bytes - off;
            static const int64_t one = 1;
            if (op == P2P_PUT)
                MPI_Put(win_local + off, (int)len, MPI_BYTE, peer, (MPI_Aint)(max_bytes + off),
                        (int)len, MPI_BYTE, win);
            else if (op == P2P_GET)
                MPI_Get(win_base + max_bytes + off, (int)len, MPI_BYTE, peer, (MPI_Aint)off,
                        (int)len, MPI_BYTE, win);
            else
                MPI_Fetch_and_op(&one, &olds[i], MPI_INT64_T, peer, (MPI_Aint)max_bytes, MPI_SUM,
                                 win);
        }
    }
    MPI_Win_flush(peer, win);
}

void p2p_sides_run(p2p_bench *b, int side, size_t bytes, int window, int active) {
    if (b->test == P2P_PAIRS && side == P2P_OURS)
        p2p_pairs_ours(b, bytes, window);
    else if (b->test == P2P_PAIRS && side == P2P_MPI)
        p2p_pairs_mpi(b, bytes, window);
    else if (side == P2P_OURS)
        ours(b, bytes, window, active);
    else if (side == P2P_MPI)
        theirs(b, bytes, window, active);
    else if (side == P2P_NCCL)
        p2p_cuda_nccl(b, bytes, window, active);
    else if (active && b->cuda)
        p2p_cuda_memcpy(b, bytes, window);
    else if (active)
        for (int i = 0; i < window; i++)
            memcpy(copy_to, copy_from, bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *get_memory(const p2p_bench *b, size_t bytes) {
    void *p = NULL;

    if (posix_memalign(&p, 4096, bytes))
        p2p_die(b, "there is no memory");
    else
        memset(p, 0, bytes);
    return p;
}

void p2p_sides_open(p2p_bench *b) {
    int pairs = b->test == P2P_PAIRS;
    size_t bytes = pairs ? p2p_pairs_place(b, b->size) : 2 * b->max_bytes;
    MPI_Info info = MPI_INFO_NULL;

    P2P_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &b->p2p));
    if (b->cuda) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpix_ep_p2p_memory", "cuda");
    }
    P2P_OK(MPIX_P2p_alloc(b->p2p, (MPI_Count)bytes, info, &b->base, &b->mem));
    if (b->cuda)
        MPI_Info_free(&info);
    b->at = calloc((size_t)b->size, sizeof *b->at);
    if (!b->at)
        p2p_die(b, "there is no memory");
    P2P_OK(MPIX_P2p_exchange(b->mem, b->at));
    iov = calloc((size_t)b->iov_n, sizeof *iov);
    iov_in = calloc((size_t)b->iov_n, sizeof *iov_in);
    if (!iov || !iov_in)
        p2p_die(b, "there is no memory");
    if (!b->cuda)
        memset(b->base, 0, bytes); /* no stamp: one that is there already lets a rank overtake */
    if (pairs) {
        p2p_pairs_open(b);
        return;
    }
    if (b->side[P2P_MPI]) {
        MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win_base, &win);
        memset(win_base, 1, bytes);
        MPI_Win_lock_all(0, win);
        win_local = get_memory(b, b->max_bytes);
    }
    if (b->side[P2P_COPY] && !b->cuda) {
        copy_from = get_memory(b, b->max_bytes);
        copy_to = get_memory(b, b->max_bytes);
    }
}

void p2p_sides_close(p2p_bench *b) {
    if (b->test == P2P_PAIRS) {
        p2p_pairs_close(b);
    } else if (b->side[P2P_MPI]) {
        MPI_Win_unlock_all(win);
        MPI_Win_free(&win);
    }
    free(win_local), free(copy_from), free(copy_to), free(iov), free(iov_in), free(b->at);
    P2P_OK(MPIX_P2p_free(&b->p2p));
}
