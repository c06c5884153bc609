/* net_pair.h - what the files of net_pair share: windows between all ranks. */
#ifndef TESTS_NET_PAIR_H
#define TESTS_NET_PAIR_H
#include "config.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "tests/unit/mpi_check.h"
#include "transport/net.h"

enum { MAX_RANKS = 16, OPS = 64, COUNTED = 40 };

/* A window: words for each peer, then a source area, then a landing area for each peer. */
extern struct net_pair {
    mpix_boot *boot;
    mpix_params params;
    mpix_net *net;
    const mpix_net_ops *ops;
    mpix_net_mem *mem;
    mpix_net_rmem *rmem[MAX_RANKS];
    int rank, size, rounds;
    size_t max, window;
    unsigned char *base;
    long posted[MAX_RANKS][16], done[MAX_RANKS][16];
    long arrived[MAX_RANKS][COUNTED];
} t;

static inline size_t word_offset(int from, int which) {
    return ((size_t)from * 16 + (size_t)which) * 8;
}
static inline size_t source_offset(int to) { return 64 * 1024 + (size_t)to * t.max; }
static inline size_t landing_offset(int from) {
    return 64 * 1024 + (size_t)(t.size + from) * t.max;
}

int die(const char *what, int kind);
int progress(void);
void post(const mpix_net_op *op);
mpix_net_op op_of(int what, int peer, int lane, size_t loff, size_t roff, size_t len);
void drain(void);
void barrier(int which);
volatile uint64_t *word_at(int from, int which);

#define UNTIL(cond) \
    for (uint64_t until_ = mpix_clock_ns() + 60000000000u; !(cond);) { \
        if (!progress()) \
            sched_yield(); \
        if (mpix_clock_ns() > until_) { \
            fprintf(stderr, "rank %d: %s:%d: %s did not come true\n", t.rank, __FILE__, __LINE__, \
                    #cond); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    }

/* Figures. */
void bench_latency(size_t len, int iterations);
void bench_bandwidth(size_t len, size_t total, int both);
#endif
