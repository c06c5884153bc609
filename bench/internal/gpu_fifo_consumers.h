/* gpu_fifo_consumers.h - threads that only take what kernels queue. */
#ifndef MPIX_BENCH_GPU_FIFO_CONSUMERS_H
#define MPIX_BENCH_GPU_FIFO_CONSUMERS_H
#include <pthread.h>

#include "bench/internal/gpu_fifo.h"
#include "proxy/gpu_queue.h"
#include "proxy/proxy_internal.h"

typedef struct consumer {
    pthread_t thread;
    mpix_fifo fifo[GF_FIFOS]; /* the host's side: tail is copied to where the GPU reads it */
    mpix_dev_fifo *dev[GF_FIFOS];
    _Atomic uint64_t *done[GF_FIFOS]; /* gets the tail, for round trips; NULL: nothing */
    int nfifos;
    uint64_t taken, wrong;
    uint64_t *expect;              /* [warps] the next command of each, NULL: not checked */
    _Atomic uint64_t *flag, *echo; /* bare round trips: [nflags][8] */
    int nflags;
    _Atomic int *stop, *stall;
} consumer;

extern consumer consumers[GF_FIFOS];
extern _Atomic int stall; /* they take nothing */

void relax(void);
/* nfifos queues shared out to so many threads; flags: round trips without a queue. */
void consumers_start(mpix_dev_fifo *fifos, int nfifos, int threads, _Atomic uint64_t *done,
                     uint64_t *expect, const gf_trip *flags);
uint64_t consumers_taken(int threads);
void consumers_end(int threads);
#endif
