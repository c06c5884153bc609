/*
 * p2p_data.c - MPIX_P2p_*: what arrives, against a reference of the test's own.
 *
 *   p2p_data [--step N] [--rounds N] [--big 0|1] [--seed N]
 *
 * Contents are a hash of (seed, position); the receiving side computes what must be there, and what
 * must be untouched. No transfer may call MPI: the program counts.
 */
#include "count_mpi.h"
#include "p2p_data.h"

#include <stdlib.h>
#include <string.h>

MPIX_P2p p2p;
t_rng rng;
static int next_rank, prev_rank;

void fill(unsigned char *to, uint64_t seed, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(t_mix(seed + i / 8) >> i % 8 * 8);
}

static size_t wrong(const unsigned char *p, uint64_t seed, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != (unsigned char)(t_mix(seed + i / 8) >> i % 8 * 8))
            return i;
    return n;
}

static size_t not_byte(const unsigned char *p, unsigned char byte, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte)
            return i;
    return n;
}

void region_new(region *r, size_t bytes, int registered) {
    r->registered = registered;
    if (registered) {
        r->base = malloc(bytes ? bytes : 1);
        REQUIRE(r->base, "no memory");
        CHECK_OK(MPIX_P2p_reg(p2p, r->base, (MPI_Count)bytes, MPI_INFO_NULL, &r->mem));
    } else {
        CHECK_OK(MPIX_P2p_alloc(p2p, (MPI_Count)bytes, MPI_INFO_NULL, &r->base, &r->mem));
    }
    REQUIRE(r->mem, "no region");
    CHECK_OK(MPIX_P2p_exchange(r->mem, r->at));
}

/* A barrier in which this rank still does what its peers ask for: additions, and accesses that the
 * system does not let them do. */
void meet(void) {
    MPI_Request request;
    int done = 0, flag;
    PMPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!done) {
        CHECK_OK(MPIX_P2p_notify_test(p2p, t_rank, 0, UINT64_MAX, NULL, &flag));
        PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
}

void region_end(region *r) {
    meet();
    for (int i = 0; i < t_size; i++)
        CHECK_OK(MPIX_P2p_rmem_free(&r->at[i]));
    CHECK_OK(MPIX_P2p_dereg(&r->mem));
    CHECK(!r->mem, "dereg left its handle");
    if (r->registered)
        free(r->base);
}

void no_mpi_from_here(void) { atomic_store(&counted, 0); }

void no_mpi(const char *what) {
    CHECK(atomic_load(&counted) == 0, "%s: %d MPI calls, the last is %s", what,
          atomic_load(&counted), atomic_load(&last_name));
    atomic_store(&counted, 0);
}

/* ---- every size ------------------------------------------------------------------------------ */

static uint64_t told[5]; /* notifications sent to the next rank, per slot: the sums */

/* One transfer of n bytes around the ring of ranks, at odd places on both sides. */
static void one_size(region *from, region *to, size_t n, int how) {
    uint64_t seed = t_hash2(n * 7 + (size_t)how, (uint64_t)t_rank),
             theirs = t_hash2(n * 7 + (size_t)how, (uint64_t)prev_rank);
    size_t off = PAD + t_mix(n + (size_t)how) % 64, roff = PAD + t_mix(n + 99) % 64;
    MPI_Count received = -1;
    MPIX_Xfer xfer;
    fill(from->base + off, seed, n);
    memset(to->base + roff - PAD, 0xa5, n + 2 * PAD);
    /* "my places are ready": to both neighbours, for a get reads the next rank's source */
    CHECK_OK(
        MPIX_P2p_put_notify(&(MPIX_P2p_iov){from->mem, 0, from->at[prev_rank], 0, 0}, 1, 1, 1));
    CHECK_OK(
        MPIX_P2p_put_notify(&(MPIX_P2p_iov){from->mem, 0, from->at[next_rank], 0, 0}, 1, 3, 1));
    told[1]++;
    CHECK_OK(MPIX_P2p_notify_wait(p2p, next_rank, 1, told[1], NULL));
    CHECK_OK(MPIX_P2p_notify_wait(p2p, prev_rank, 3, told[1], NULL));
    MPIX_P2p_iov iov = {from->mem, (MPI_Count)off, to->at[next_rank], (MPI_Count)roff,
                        (MPI_Count)n};
    switch (how) {
    case 0:
        told[0] += 3;
        CHECK_OK(MPIX_P2p_put_notify(&iov, 1, 0, 3));
        CHECK_OK(MPIX_P2p_notify_wait(p2p, prev_rank, 0, told[0], NULL));
        break;
    case 1: {
        /* the source's place is the same at all ranks */
        size_t at = PAD + t_mix(n + (size_t)how) % 64;
        CHECK_OK(MPIX_P2p_iget(&(MPIX_P2p_iov){to->mem, (MPI_Count)roff, from->at[prev_rank],
                                               (MPI_Count)at, (MPI_Count)n},
                               1, &xfer));
        CHECK_OK(MPIX_Xfer_wait(&xfer));
        break;
    }
    default: {
        MPIX_Xfer two[2];
        MPIX_P2p_iov in[2] = {{.mem = to->mem, .off = (MPI_Count)roff, .len = (MPI_Count)(n / 3)},
                              {.mem = to->mem,
                               .off = (MPI_Count)(roff + n / 3),
                               .len = (MPI_Count)(n - n / 3)}};
        CHECK_OK(MPIX_P2p_irecv(p2p, prev_rank, in, 2, &received, &two[0]));
        CHECK_OK(MPIX_P2p_isend(p2p, next_rank, &iov, 1, &two[1]));
        CHECK_OK(MPIX_Xfer_waitall(2, two, NULL));
        CHECK(received == (MPI_Count)n, "received %lld of %zu", (long long)received, n);
    }
    }
    size_t bad = wrong(to->base + roff, theirs, n);
    CHECK(bad == n, "%zu bytes, way %d: byte %zu is wrong", n, how, bad);
    CHECK(not_byte(to->base + roff - PAD, 0xa5, PAD) == PAD &&
              not_byte(to->base + roff + n, 0xa5, PAD) == PAD,
          "%zu bytes, way %d: written outside", n, how);
    /* "taken": the next round may overwrite */
    CHECK_OK(
        MPIX_P2p_put_notify(&(MPIX_P2p_iov){from->mem, 0, from->at[prev_rank], 0, 0}, 1, 2, 1));
    CHECK_OK(
        MPIX_P2p_put_notify(&(MPIX_P2p_iov){from->mem, 0, from->at[next_rank], 0, 0}, 1, 2, 1));
    told[2] += next_rank == prev_rank ? 2 : 1;
    CHECK_OK(MPIX_P2p_notify_wait(p2p, prev_rank, 2, told[2], NULL));
    CHECK_OK(MPIX_P2p_notify_wait(p2p, next_rank, 2, told[2], NULL));
}

static void all_sizes(size_t step) {
    for (int regs = 0; regs < 2; regs++) {
        region from, to;
        t_where("sizes, %s memory", regs ? "registered" : "allocated");
        region_new(&from, AREA + 4096, regs);
        region_new(&to, AREA + 4096, regs);
        meet();
        atomic_store(&counted, 0);
        for (int how = 0; how < 3; how++) {
            t_watchdog(200);
            for (size_t n = 0; n <= 8192; n += 1 + t_mix(n) % (2 * step - 1) * (step > 1))
                one_size(&from, &to, n, how);
            for (size_t p = 4096; p <= AREA; p *= 2)
                for (int d = -1; d <= 1; d++)
                    one_size(&from, &to, p + (size_t)d, how);
        }
        no_mpi("transfers of all sizes");
        region_end(&from);
        region_end(&to);
    }
}

/* ---- vectors, outstanding -------------------------------------------------------------------- */

static void many(int n) {
    region r[2];
    MPIX_Xfer *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
    int64_t *old = calloc((size_t)n, sizeof *old), sum = 0;
    MPIX_P2p_iov *iov = calloc((size_t)n, sizeof *iov);
    REQUIRE(x && y && old && iov, "no memory");
    t_where("%d outstanding", n);
    t_watchdog(200);
    for (int regs = 0; regs < 2; regs++) {
        region_new(&r[regs], (size_t)n * 96 + 64, regs);
        memset(r[regs].base, 0, (size_t)n * 96 + 64);
    }
    for (int regs = 0; regs < 2; regs++) {
        region *to = &r[regs], *from = &r[!regs];
        fill(from->base, (uint64_t)t_rank, (size_t)n * 24);
        meet();
        atomic_store(&counted, 0);
        for (int i = 0; i < n; i++) /* receives of the second half, puts into the third quarter */
            CHECK_OK(
                MPIX_P2p_irecv(p2p, prev_rank,
                               &(MPIX_P2p_iov){.mem = to->mem, .off = n * 48 + i * 24, .len = 24},
                               1, NULL, &y[i]));
        for (int i = 0; i < n; i++) {
            iov[i] = (MPIX_P2p_iov){from->mem, i * 24, to->at[next_rank], n * 24 + i * 24, 24};
            CHECK_OK(i % 2 ? MPIX_P2p_iput(&iov[i], 1, &x[i])
                           : MPIX_P2p_isend(p2p, next_rank, &iov[i], 1, &x[i]));
        }
        CHECK_OK(MPIX_Xfer_waitall(n, x, NULL));
        for (int i = 1; i < n; i += 2)
            CHECK_OK(MPIX_P2p_isend(p2p, next_rank, &iov[i], 1, &x[i]));
        CHECK_OK(MPIX_Xfer_waitall(n, x, NULL));
        CHECK_OK(MPIX_Xfer_waitall(n, y, NULL));
        for (int i = 0; i < n; i++) /* even ones as one vector */
            iov[i].len = i % 2 ? 0 : 24;
        CHECK_OK(MPIX_P2p_put_notify(iov, n, 0, 1));
        told[0]++;
        CHECK_OK(MPIX_P2p_flush(p2p, MPIX_ALL_PEERS));
        CHECK_OK(MPIX_P2p_notify_wait(p2p, prev_rank, 0, told[0], NULL));
        for (int i = 0; i < n; i++)
            CHECK_OK(MPIX_P2p_ifetch_add(to->at[next_rank], n * 96, i, &old[i], &x[i]));
        CHECK_OK(MPIX_Xfer_waitall(n, x, NULL));
        no_mpi("outstanding transfers");
        meet();
        meet();
        size_t bad = wrong(to->base + (size_t)n * 24, (uint64_t)prev_rank, (size_t)n * 24);
        CHECK(bad == (size_t)n * 24, "puts: byte %zu is wrong", bad);
        /* Even messages came first, then the odd ones. */
        int half = (n + 1) / 2;
        for (int i = 0; i < n; i++) {
            unsigned char want[24];
            int k = i < half ? 2 * i : 2 * (i - half) + 1;
            for (int b = 0; b < 24; b++) {
                size_t at = (size_t)k * 24 + (size_t)b;
                want[b] = (unsigned char)(t_mix((uint64_t)prev_rank + at / 8) >> at % 8 * 8);
            }
            if (!CHECK(memcmp(to->base + (size_t)n * 48 + (size_t)i * 24, want, 24) == 0,
                       "message %d is wrong", i))
                break;
        }
        sum = *(int64_t *)(void *)(to->base + (size_t)n * 96);
        CHECK(sum == (int64_t)n * (n - 1) / 2, "sum %lld", (long long)sum);
        /* nobody else adds: old values are sums in some order, all below the total */
        for (int i = 0; i < n; i++)
            CHECK(old[i] >= 0 && old[i] <= sum, "old value %lld", (long long)old[i]);
    }
    region_end(&r[1]);
    region_end(&r[0]);
    free(x), free(y), free(old), free(iov);
}

/*
 * Short and long messages in every order, with receives posted before and after they come. A long
 * message is read while the next ones arrive: each must go to its own receive.
 */
static void messages(int n, int regs) {
    enum { PLACE = 70000 };
    region from, to;
    MPIX_Xfer *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
    MPI_Count *got = calloc((size_t)n, sizeof *got);
    size_t *len = calloc((size_t)n, sizeof *len);
    REQUIRE(x && y && got && len, "no memory");
    t_where("messages of mixed lengths, %s", regs ? "registered" : "allocated");
    t_watchdog(200);
    region_new(&from, (size_t)n * PLACE, regs);
    region_new(&to, (size_t)n * PLACE, regs);
    /* of the receives, every one, or every second, is there before any message */
    for (int first = 0; first < 2; first++) {
        for (int i = 0; i < n; i++) {
            uint64_t r = t_hash2((uint64_t)i, (uint64_t)first + 77);
            len[i] = r % 3 == 0 ? 20000 + r / 3 % 50000 : r / 3 % 300;
            fill(from.base + (size_t)i * PLACE, t_hash2((uint64_t)i, (uint64_t)t_rank), len[i]);
            got[i] = -1;
        }
        memset(to.base, 0x5a, (size_t)n * PLACE);
        atomic_store(&counted, 0);
        for (int i = 0; i < n / (1 + first); i++)
            CHECK_OK(MPIX_P2p_irecv(
                p2p, prev_rank,
                &(MPIX_P2p_iov){.mem = to.mem, .off = (MPI_Count)i * PLACE, .len = PLACE}, 1,
                &got[i], &y[i]));
        meet();
        for (int i = 0; i < n; i++)
            CHECK_OK(MPIX_P2p_isend(p2p, next_rank,
                                    &(MPIX_P2p_iov){.mem = from.mem,
                                                    .off = (MPI_Count)i * PLACE,
                                                    .len = (MPI_Count)len[i]},
                                    1, &x[i]));
        for (int i = n / (1 + first); i < n; i++)
            CHECK_OK(MPIX_P2p_irecv(
                p2p, prev_rank,
                &(MPIX_P2p_iov){.mem = to.mem, .off = (MPI_Count)i * PLACE, .len = PLACE}, 1,
                &got[i], &y[i]));
        CHECK_OK(MPIX_Xfer_waitall(n, y, NULL));
        CHECK_OK(MPIX_Xfer_waitall(n, x, NULL));
        no_mpi("messages of mixed lengths");
        for (int i = 0; i < n; i++) {
            const unsigned char *place = to.base + (size_t)i * PLACE;
            CHECK(got[i] == (MPI_Count)len[i], "message %d has %lld bytes, expected %zu", i,
                  (long long)got[i], len[i]);
            CHECK(wrong(place, t_hash2((uint64_t)i, (uint64_t)prev_rank), len[i]) == len[i],
                  "message %d of %zu bytes is wrong", i, len[i]);
            CHECK(not_byte(place + len[i], 0x5a, PLACE - len[i]) == PLACE - len[i],
                  "message %d: written behind its %zu bytes", i, len[i]);
        }
        meet();
    }
    region_end(&to);
    region_end(&from);
    free(x), free(y), free(got), free(len);
}

/* All ranks add to one word: every old value is seen once. */
static void contended(int n) {
    for (int regs = 0; regs < 2; regs++) {
        region r;
        int64_t *old = calloc((size_t)n, sizeof *old),
                *all = calloc((size_t)(n * t_size), sizeof *all);
        char *seen = calloc((size_t)(n * t_size), 1);
        t_where("contended additions, %d", regs);
        t_watchdog(200);
        region_new(&r, 64, regs);
        memset(r.base, 0, 64);
        meet();
        for (int i = 0; i < n; i++)
            CHECK_OK(MPIX_P2p_fetch_add(r.at[0], 8, 1, &old[i]));
        meet();
        CHECK(t_rank != 0 || ((int64_t *)(void *)r.base)[1] == (int64_t)n * t_size,
              "additions are lost");
        MPI_Gather(old, n, MPI_INT64_T, all, n, MPI_INT64_T, 0, MPI_COMM_WORLD);
        for (int i = 0; t_rank == 0 && i < n * t_size; i++)
            if (CHECK(all[i] >= 0 && all[i] < n * t_size && !seen[all[i]],
                      "old value %lld twice, or out of range", (long long)all[i]))
                seen[all[i]] = 1;
        region_end(&r);
        free(old), free(all), free(seen);
    }
}

/* ---- many regions, advertised ---------------------------------------------------------------- */

static void regions(int n) {
    MPIX_P2p_mem *mem = calloc((size_t)n, sizeof *mem);
    MPIX_P2p_rmem *at = calloc((size_t)n, sizeof *at);
    MPIX_P2p_iov *iov = calloc((size_t)n, sizeof *iov);
    unsigned char *base = malloc((size_t)n * 16), *src = malloc((size_t)n * 16);
    MPIX_P2p_mem from;
    int got = 0;
    t_where("%d regions", n);
    t_watchdog(200);
    memset(base, 1, (size_t)n * 16);
    fill(src, (uint64_t)t_rank, (size_t)n * 16);
    CHECK_OK(MPIX_P2p_reg(p2p, src, n * 16, MPI_INFO_NULL, &from));
    for (int i = 0; i < n; i++) {
        CHECK_OK(MPIX_P2p_reg(p2p, base + i * 16, 16, MPI_INFO_NULL, &mem[i]));
        iov[i] = (MPIX_P2p_iov){.mem = mem[i], .off = 3, .len = 8};
    }
    meet();
    atomic_store(&counted, 0);
    /* Two ranks advertise to each other; all at once would need the ring's room. */
    if (t_rank % 2 == 0 || t_size % 2)
        CHECK_OK(MPIX_P2p_advertise(iov, 3, next_rank, 9));
    CHECK_OK(MPIX_P2p_advertise(iov, t_size == 1 || n < 100 ? n : 100, next_rank, 5));
    CHECK_OK(MPIX_P2p_get_advert(p2p, prev_rank, 5, n, at, &got));
    CHECK(got == (t_size == 1 || n < 100 ? n : 100), "%d pieces", got);
    for (int i = 0; i < got; i++)
        iov[i] = (MPIX_P2p_iov){from, i * 16, at[i], 0, 8};
    CHECK_OK(MPIX_P2p_put_notify(iov, got, 4, 1)); /* against the ring's direction */
    told[4]++;
    CHECK_OK(MPIX_P2p_notify_wait(p2p, next_rank, 4, told[4], NULL));
    no_mpi("advertisements");
    for (int i = 0; i < n; i++) {
        unsigned char want[16];
        memset(want, 1, 16);
        for (int b = 0; b < 8 && i < got; b++)
            want[3 + b] = (unsigned char)(t_mix((uint64_t)next_rank + (size_t)i * 2) >> b * 8);
        if (!CHECK(memcmp(base + i * 16, want, 16) == 0, "region %d is wrong", i))
            break;
    }
    meet();
    for (int i = 0; i < got; i++)
        CHECK_OK(MPIX_P2p_rmem_free(&at[i]));
    for (int i = 0; i < n; i++)
        CHECK_OK(MPIX_P2p_dereg(&mem[i]));
    CHECK_OK(MPIX_P2p_dereg(&from));
    /* the notice with tag 9 is still there, and its memory is gone */
    if (t_rank % 2 == 0 || t_size % 2) {
        MPIX_P2p_rmem gone[3];
        if (prev_rank % 2 == 0 || t_size % 2)
            CHECK_OK(MPIX_P2p_get_advert(p2p, prev_rank, 9, 3, gone, &got));
    } else {
        MPIX_P2p_rmem gone[3];
        CHECK_OK(MPIX_P2p_get_advert(p2p, prev_rank, 9, 3, gone, &got));
    }
    free(mem), free(at), free(iov), free(base), free(src);
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "p2p_data");
    size_t step = (size_t)t_option(argc, argv, "--step", 1);
    int rounds = (int)t_option(argc, argv, "--rounds", 20);
    rng.s = t_hash2((uint64_t)t_option(argc, argv, "--seed", 1), (uint64_t)t_rank);
    next_rank = (t_rank + 1) % t_size;
    prev_rank = (t_rank + t_size - 1) % t_size;
    REQUIRE(CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p)), "no object");
    all_sizes(step);
    many(4000 / (int)step + 60);
    for (int regs = 0; regs < 2; regs++)
        messages(120, regs);
    contended(200);
    regions(step < 1000 ? 1000 : 100); /* registering takes its time with a device */
    traffic(rounds, 0);
    traffic(rounds, 1);
    if (t_option(argc, argv, "--big", 0))
        big();
    meet();
    CHECK_OK(MPIX_P2p_free(&p2p));
    CHECK(p2p == MPIX_P2P_NULL, "a freed object is not MPIX_P2P_NULL");
    return t_end();
}
