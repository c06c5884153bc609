/* net_pair_figures.c - latency and bandwidth of a network transport alone. */
#include "tests/rdma-vm/net_pair.h"

static int by_value(const void *a, const void *b) {
    return (*(const uint64_t *)a > *(const uint64_t *)b) -
           (*(const uint64_t *)a < *(const uint64_t *)b);
}

/* Half of a round trip of a write of len bytes (0: none) and a word behind it, between ranks 0
 * and 1. Spins, as ib_write_lat does. */
void bench_latency(size_t len, int iterations) {
    uint64_t *times = malloc((size_t)iterations * sizeof *times);
    static uint64_t seq;

    barrier(2);
    for (int i = 0; i < iterations && t.rank < 2; i++) {
        int peer = 1 - t.rank;
        uint64_t start = mpix_clock_ns();
        seq++;
        for (int half = 0; half < 2; half++) {
            if (half == t.rank) {
                mpix_net_op ops[2] = {op_of(MPIX_NET_WRITE, peer, 0, source_offset(peer),
                                            landing_offset(t.rank), len),
                                      op_of(MPIX_NET_WORD, peer, 0, 0, word_offset(t.rank, 5), 8)};
                int skip = len == 0, got;
                ops[1].value = seq;
                while ((got = t.ops->post(t.net, ops + skip, 2 - skip)) < 2 - skip) {
                    if (got < 0)
                        die("post", -got);
                    skip += got;
                    t.posted[peer][0] += got;
                    progress();
                }
                t.posted[peer][0] += got;
            } else {
                while (*word_at(peer, 5) != seq)
                    progress();
            }
        }
        times[i] = mpix_clock_ns() - start;
    }
    if (t.rank == 0) {
        qsort(times, (size_t)iterations, sizeof *times, by_value);
        printf("latency %8zu B + word: median %9.2f us, min %9.2f, p99 %9.2f (half a round trip, "
               "%d)\n",
               len, (double)times[iterations / 2] / 2e3, (double)times[0] / 2e3,
               (double)times[iterations * 99 / 100] / 2e3, iterations);
    }
    free(times);
    drain();
    barrier(2);
}

void bench_bandwidth(size_t len, size_t total, int both) {
    uint64_t start, took;
    int n = (int)(total / len), senders = both ? 2 : 1;

    barrier(2);
    start = mpix_clock_ns();
    if (t.rank < senders) {
        int peer = 1 - t.rank;
        for (int i = 0; i < n; i++) {
            mpix_net_op op = op_of(MPIX_NET_WRITE, peer, i % t.net->caps.lanes, source_offset(peer),
                                   landing_offset(t.rank), len);
            post(&op);
        }
        drain();
    }
    took = mpix_clock_ns() - start;
    barrier(2);
    if (t.rank == 0)
        printf("bandwidth %7zu B %s: %8.2f MiB/s (%d)\n", len, both ? "both ways" : "one way  ",
               (double)len * n * senders / ((double)took / 1e9) / 1048576, n);
}
