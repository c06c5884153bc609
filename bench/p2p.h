/* p2p.h - what the parts of mpix_p2p_bench share. */
#ifndef BENCH_P2P_H
#define BENCH_P2P_H
#include "bench/stats.h"
#include "mpix_p2p.h"

#include <stddef.h>

enum { P2P_PUT, P2P_GET, P2P_SEND, P2P_ADD, P2P_NOTIFY, P2P_SEEN, P2P_OPS };
enum { P2P_LATENCY, P2P_BANDWIDTH, P2P_BIDIR, P2P_RATE, P2P_PAIRS, P2P_TESTS };
enum { P2P_OURS, P2P_MPI, P2P_NCCL, P2P_COPY, P2P_SIDES };
enum { P2P_WINDOW = 32 };

typedef struct p2p_bench {
    int rank, size, op, test, iov_n, iterations, validate, blocks, window;
    int cuda, stream;    /* GPU memory; our calls go on a stream */
    int side[P2P_SIDES]; /* 1: this side is measured */
    size_t min_bytes, max_bytes;
    const char *json_path, *plot_path;
    int nccl_version;
    char gpu[64];
    /* ours: [2 * max_bytes], in the first half what is sent, in the second what arrives; pairs:
     * see p2p_pairs.c */
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem *at; /* [size] */
    unsigned char *base;
} p2p_bench;

void p2p_die(const p2p_bench *b, const char *what) __attribute__((noreturn));
void p2p_ok(const p2p_bench *b, int code, const char *call);
#define P2P_OK(call) p2p_ok(b, (call), #call)

/* ---- p2p_sides.c: one block's unit of work of a side: a transfer, or a row of them ----------- */
void p2p_sides_open(p2p_bench *b);
void p2p_sides_close(p2p_bench *b);
void p2p_sides_run(p2p_bench *b, int side, size_t bytes, int window, int active);

/* ---- p2p_pairs.c: all ranks with all others at once ------------------------------------------ */
size_t p2p_pairs_place(const p2p_bench *b, int from); /* where in a rank's memory that comes; from =
                                                       * size: its bytes */
void p2p_pairs_open(p2p_bench *b);
void p2p_pairs_close(p2p_bench *b);
void p2p_pairs_ours(p2p_bench *b, size_t bytes, int window);
void p2p_pairs_mpi(p2p_bench *b, size_t bytes, int window);

/* ---- p2p_cuda.c ------------------------------------------------------------------------------ */
/* Chooses this rank's GPU; NULL, or what is wrong. Collective. */
const char *p2p_cuda_choose(p2p_bench *b);
void p2p_cuda_open(p2p_bench *b);
void p2p_cuda_close(p2p_bench *b);
void *p2p_cuda_stream(void);
void p2p_cuda_sync(const p2p_bench *b);
/* any kinds, blocking */
void p2p_cuda_copy(const p2p_bench *b, void *to, const void *from, size_t bytes);
void p2p_cuda_nccl(p2p_bench *b, size_t bytes, int window, int active);
/* cudaMemcpyPeer from this GPU to the other rank's */
void p2p_cuda_memcpy(p2p_bench *b, size_t bytes, int window);
#endif
