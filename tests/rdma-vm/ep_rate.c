/*
 * ep_rate.c - times of a few dispatches and combines, for `figures`: short, so that they alternate
 * with other programs.
 *
 *   ep_rate [--tokens N] [--calls N] [--ll 1]
 *
 * Every rank sends every rank N rows of 7168 bf16 elements, cached routing, mode HT and COMPACT or,
 * with --ll 1, mode LL and SLOTS, whose rows are at the same places since all are taken. Prints for
 * each kind, in LL also for a dispatch with the combine behind it, the median over the calls of the
 * slowest rank's time in us. What arrives is checked before and after that.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 7168 };

typedef struct {
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    long tokens;
    int ll;
    MPI_Count received;
    uint16_t *x, *y, *rows;
} rate;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 1 to 1.5 */
static uint16_t element(int rank, long token, long i) {
    return (uint16_t)(0x3f80 +
                      (t_mix((uint64_t)rank << 40 | (uint64_t)token << 16 | (uint64_t)i) & 0x3f));
}

/* One expert per rank, each token chooses all. */
static void set_up(rate *r) {
    MPIX_Ep_config config;
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    size_t row = HIDDEN * sizeof *r->x, n = (size_t)r->tokens;
    int32_t *ids = malloc((n * (size_t)t_size + 1) * sizeof *ids);
    MPIX_INIT(&config);
    config.max_topk = t_size;
    config.num_experts = t_size;
    config.max_tokens = (int)r->tokens;
    config.max_row_bytes = row;
    config.timeout_s = 100;
    if (r->ll) {
        config.mode = MPIX_EP_LL;
        config.layout = MPIX_EP_SLOTS;
    }
    r->x = malloc(n * row);
    r->y = malloc(n * row);
    REQUIRE(ids && r->x && r->y, "no memory");
    CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &r->ep));
    CHECK_OK(MPIX_Ep_alloc(r->ep, (MPI_Count)(n * row) * t_size, MPI_INFO_NULL, &r->rows));
    CHECK_OK(MPIX_Ep_handle_create(r->ep, &r->handle));
    for (size_t i = 0; i < n * (size_t)t_size; i++)
        ids[i] = (int32_t)(i % (size_t)t_size);
    for (long t = 0; t < r->tokens; t++)
        for (long i = 0; i < HIDDEN; i++)
            r->x[t * HIDDEN + i] = element(t_rank, t, i);
    MPIX_INIT(&routing);
    routing.num_tokens = r->tokens;
    routing.topk = t_size;
    routing.ids = ids;
    MPIX_INIT(&counts);
    counts.recv_total = &r->received;
    r->received = r->tokens * t_size; // LL: route is local
    CHECK_OK(MPIX_Ep_route(r->handle, &routing, r->ll ? NULL : &counts));
    CHECK(r->received == r->tokens * t_size, "%lld rows are to come", (long long)r->received);
    free(ids);
}

static void dispatch(rate *r) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x.data = r->x;
    in.x.dtype = MPIX_EP_BF16;
    out.capacity_rows = r->received;
    out.x.data = r->rows;
    CHECK_OK(MPIX_Ep_dispatch(r->handle, &in, &out));
}

static void combine(rate *r) {
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x.data = r->rows;
    in.x.dtype = MPIX_EP_BF16;
    out.y.data = r->y;
    CHECK_OK(MPIX_Ep_combine(r->handle, &in, &out));
}

static void both(rate *r) {
    dispatch(r);
    combine(r);
}

static float value(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rows come by source, in the order of its tokens; the sum of t_size equal rows has an error of
 * half a unit at most. */
static void verify(const rate *r) {
    long wrong = 0, sums = 0;
    for (long t = 0; t < r->tokens; t++)
        for (long i = 0; i < HIDDEN; i++) {
            float sum = (float)t_size * value(element(t_rank, t, i)),
                  got = value(r->y[t * HIDDEN + i]);
            for (int s = 0; s < t_size; s++)
                wrong += r->rows[(s * r->tokens + t) * HIDDEN + i] != element(s, t, i);
            sums += got < sum * (1 - 1.0f / 256) || got > sum * (1 + 1.0f / 256);
        }
    CHECK(wrong == 0, "%ld elements of the rows are wrong", wrong);
    CHECK(sums == 0, "%ld elements of the sums are wrong", sums);
}

static void measure(rate *r, const char *name, void (*call)(rate *), int calls) {
    double *us = malloc((size_t)calls * sizeof *us);
    REQUIRE(us, "no memory");
    for (int i = 0; i < calls; i++) {
        double begin = MPI_Wtime();
        call(r);
        us[i] = 1e6 * (MPI_Wtime() - begin);
    }
    MPI_Allreduce(MPI_IN_PLACE, us, calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(us, (size_t)calls, sizeof *us, by_value);
    if (t_rank == 0)
        printf("%s %.1f\n", name, us[calls / 2]);
    free(us);
}

int main(int argc, char **argv) {
    rate r = {0};
    t_init(&argc, &argv, "ep_rate");
    int calls = (int)t_option(argc, argv, "--calls", 3);
    r.tokens = t_option(argc, argv, "--tokens", 1171);
    r.ll = (int)t_option(argc, argv, "--ll", 0);
    REQUIRE(calls > 0 && r.tokens > 0, "--calls and --tokens are at least 1");
    set_up(&r);
    both(&r);
    verify(&r);
    MPI_Barrier(MPI_COMM_WORLD);
    measure(&r, "dispatch", dispatch, calls);
    MPI_Barrier(MPI_COMM_WORLD);
    measure(&r, "combine", combine, calls);
    if (r.ll) {
        MPI_Barrier(MPI_COMM_WORLD);
        measure(&r, "both", both, calls);
    }
    verify(&r);
    CHECK_OK(MPIX_Ep_free(&r.ep));
    free(r.x);
    free(r.y);
    return t_end();
}
