/* stats.c - statistics of times. */
#include "config.h"

#include "bench/stats.h"

#include <stdlib.h>

static int stats_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest sample that at least the fraction q of all do not exceed. */
static double stats_quantile(const double *sorted, int n, double q) {
    int i = (int)(q * n + 0.999999) - 1;
    return sorted[i < 0 ? 0 : i >= n ? n - 1 : i];
}

bench_stats bench_stats_take(MPI_Comm comm, double *samples, int n) {
    bench_stats s = {0};
    if (n == 0)
        return s;
    MPI_Allreduce(MPI_IN_PLACE, samples, n, MPI_DOUBLE, MPI_MAX, comm);
    qsort(samples, (size_t)n, sizeof *samples, stats_compare);
    for (int i = 0; i < n; i++)
        s.avg += samples[i] / n;
    s.min = samples[0];
    s.max = samples[n - 1];
    s.median = n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
    s.p90 = stats_quantile(samples, n, 0.9);
    s.p99 = stats_quantile(samples, n, 0.99);
    return s;
}

double bench_speedup(const bench_stats *base, const bench_stats *ours) {
    return ours->median > 0 ? base->median / ours->median : 0;
}

#ifdef HAVE_JANSSON
json_t *bench_stats_json(const bench_stats *s) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "min", s->min, "avg", s->avg, "median",
                     s->median, "p90", s->p90, "p99", s->p99, "max", s->max);
}
#endif
