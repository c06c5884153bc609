/* clock.h - monotonic time. */
#ifndef MPIX_BASE_CLOCK_H
#define MPIX_BASE_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t mpix_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A time limit in seconds as nanoseconds. Infinity, what is longer than 292 years, and negative,
 * which means none: UINT64_MAX. */
static inline uint64_t mpix_clock_limit(double seconds) {
    return seconds >= 0 && seconds < 9.2e9 ? (uint64_t)(seconds * 1e9) : UINT64_MAX;
}
#endif
