/* stats.h - statistics of times, for all benchmarks: alike in their tables and in their JSON. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H
#include <mpi.h>

#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

typedef struct bench_stats {
    double min, avg, median, p90, p99, max;
} bench_stats;

/* samples [n] of this rank; the statistics are of the maximum over ranks. Collective. samples
 * are overwritten. */
bench_stats bench_stats_take(MPI_Comm comm, double *samples, int n);
/* Speed-up: the baseline's median over ours. */
double bench_speedup(const bench_stats *base, const bench_stats *ours);
#ifdef HAVE_JANSSON
json_t *bench_stats_json(const bench_stats *s);
#endif
#endif
