/*
 * cuda_bounds.c - --bounds: what limits peers that are reached through the proxy: the link between
 * GPU and host memory, both ways at once, and copies between two memories by as many threads of
 * each rank as its proxy has, in pieces of the parameter chunk_bytes' default. Memory that nobody
 * has touched lately and what the GPU has just written are both copied; the faster counts.
 */
#include "config.h"

#include "bench/bench.h"

#ifdef HAVE_CUDA
#include "bench/cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 64 << 20, PIECE = 256 << 10, TIMES = 16, PARTS = 4, MOST_COPIERS = 8 };

/* Threads that copy together, this one among them: piece after piece by turns. */
static struct {
    char *to;
    const char *from;
    size_t bytes;
    int n, end;
    pthread_barrier_t gate;
    pthread_t others[MOST_COPIERS];
} team;

static void copy_share(int index) {
    for (size_t at = (size_t)index * PIECE; at < team.bytes; at += (size_t)team.n * PIECE)
        memcpy(team.to + at, team.from + at, PIECE);
}

static void *copier(void *arg) {
    for (;;) {
        pthread_barrier_wait(&team.gate);
        if (team.end)
            return NULL;
        copy_share((int)(intptr_t)arg);
        pthread_barrier_wait(&team.gate);
    }
}

static void copy_together(char *to, const char *from, size_t bytes) {
    team.to = to, team.from = from, team.bytes = bytes;
    pthread_barrier_wait(&team.gate);
    copy_share(0);
    pthread_barrier_wait(&team.gate);
}

static void team_start(const bench *b, int threads) {
    team.n = threads < 1 ? 1 : threads > MOST_COPIERS ? MOST_COPIERS : threads;
    team.end = 0;
    pthread_barrier_init(&team.gate, NULL, (unsigned)team.n);
    for (int i = 1; i < team.n; i++)
        if (pthread_create(&team.others[i], NULL, copier, (void *)(intptr_t)i) != 0)
            bench_die(b, "--bounds: a thread can't be started");
}

static void team_end(void) {
    team.end = 1;
    pthread_barrier_wait(&team.gate);
    for (int i = 1; i < team.n; i++)
        pthread_join(team.others[i], NULL);
    pthread_barrier_destroy(&team.gate);
}

/* Two memories of each kind, and a stream for each way. */
typedef struct places {
    char *host[2], *gpu[2];
    cudaStream_t stream[2];
} places;

static void places_make(cuda_run *x, places *p) {
    for (int i = 0; i < 2; i++) {
        void *gpu,
            *host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (host == MAP_FAILED)
            bench_die(x->b, "--bounds: no memory");
        memset(host, i + 1, BYTES);
        CUDA(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
        CUDA(cudaMalloc(&gpu, BYTES));
        CUDA(cudaStreamCreateWithFlags(&p->stream[i], cudaStreamNonBlocking));
        p->host[i] = host;
        p->gpu[i] = gpu;
    }
}

static void places_free(cuda_run *x, places *p) {
    for (int i = 0; i < 2; i++) {
        CUDA(cudaHostUnregister(p->host[i]));
        munmap(p->host[i], BYTES);
        CUDA(cudaFree(p->gpu[i]));
        CUDA(cudaStreamDestroy(p->stream[i]));
    }
}

static double rate_since(double start_us) {
    return (double)BYTES * TIMES / (bench_now_us() - start_us) / 1e3;
}

/* GB/s each way. */
static double link_rate(cuda_run *x, const places *p) {
    MPI_Barrier(x->b->comm);
    double start = bench_now_us();
    for (int i = 0; i < TIMES; i++) {
        CUDA(cudaMemcpyAsync(p->host[0], p->gpu[0], BYTES, cudaMemcpyDeviceToHost, p->stream[0]));
        CUDA(cudaMemcpyAsync(p->gpu[1], p->host[1], BYTES, cudaMemcpyHostToDevice, p->stream[1]));
    }
    CUDA(cudaStreamSynchronize(p->stream[0]));
    CUDA(cudaStreamSynchronize(p->stream[1]));
    return rate_since(start);
}

static double cold_rate(cuda_run *x, const places *p) {
    MPI_Barrier(x->b->comm);
    double start = bench_now_us();
    for (int i = 0; i < TIMES; i++)
        copy_together(p->host[1], p->host[0], BYTES);
    return rate_since(start);
}

static double written_rate(cuda_run *x, const places *p) {
    const size_t part = BYTES / PARTS;
    double us = 0;
    for (size_t i = 0; i < PARTS * TIMES; i++) {
        char *from = p->host[0] + i % PARTS * part, *to = p->host[1] + i % PARTS * part;
        CUDA(cudaMemcpy(from, p->gpu[0], part, cudaMemcpyDeviceToHost));
        double start = bench_now_us();
        copy_together(to, from, part);
        us += bench_now_us() - start;
    }
    return (double)BYTES * TIMES / us / 1e3;
}

/* Rows of the plan that come through the proxy; *threads: of this rank's. */
static double proxied_rows(cuda_run *x, int *threads) {
    double rows = 0;
    *threads = 0;
    for (int r = 0; r < x->b->size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        bench_check(x->b, MPIX_Ep_get_peer(x->ep, r, &peer), "MPIX_Ep_get_peer");
        if (peer.reach != MPIX_EP_REACH_PROXIED)
            continue;
        rows += (double)x->plan->per_rank[r];
        *threads = peer.proxy_threads > *threads ? peer.proxy_threads : *threads;
    }
    return rows;
}

void cuda_bounds(cuda_run *x, bench_bounds *out) {
    double rates[3] = {0}, rows = proxied_rows(x, &out->threads);
    places p;
    MPI_Allreduce(MPI_IN_PLACE, &rows, 1, MPI_DOUBLE, MPI_MAX, x->b->comm);
    out->bytes = rows * (double)(x->b->row_bytes + x->b->scale_bytes);
    if (rows == 0)
        return;
    bench_progress(x->b, "%s", "bounds of proxied peers");
    places_make(x, &p);
    team_start(x->b, out->threads);
    for (int pass = 0; pass < 2; pass++) { /* the first warms up */
        rates[0] = link_rate(x, &p);
        rates[1] = cold_rate(x, &p);
        rates[2] = written_rate(x, &p);
    }
    team_end();
    places_free(x, &p);
    MPI_Allreduce(MPI_IN_PLACE, rates, 3, MPI_DOUBLE, MPI_MIN, x->b->comm);
    out->link = rates[0];
    out->copy = rates[1] > rates[2] ? rates[1] : rates[2];
    bench_progress(x->b, "%s", "");
}

#endif
