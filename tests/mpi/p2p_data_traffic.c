/* p2p_data_traffic.c - random traffic of MPIX_P2p_*, and a transfer of more than 4 GiB. */
#include "p2p_data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Every rank owns a part of everybody's region and keeps a copy of what must be in it. A round
 * writes random, disjoint pieces there by random means; then owners hash their regions and
 * writers their copies.
 */
void traffic(int rounds, int regs) {
    size_t part = 1 << 16;
    region r, own;
    unsigned char *copy = calloc((size_t)t_size, part), *back = NULL;
    t_where("random traffic, %s", regs ? "registered" : "allocated");
    region_new(&r, part * (size_t)t_size, regs);
    region_new(&own, 2 * part, !regs);
    back = own.base + part;
    memset(r.base, 0, part * (size_t)t_size);
    meet();
    for (int round = 0; round < rounds; round++) {
        t_watchdog(200);
        fill(own.base, t_rand(&rng), part);
        no_mpi_from_here();
        for (int k = 0; k < t_size; k++) {
            int peer = (t_rank + k) % t_size, n = 0, pending = 0;
            size_t at = 0;
            MPIX_P2p_iov iov[16];
            MPIX_Xfer x[64];
            while (pending < 60) {
                at += (size_t)t_range(&rng, 0, 3000);
                size_t len = (size_t)t_range(&rng, 0, t_chance(&rng, 10) ? 20000 : 700);
                if (at + len > part)
                    break;
                size_t from = (size_t)t_range(&rng, 0, (int64_t)(part - len));
                memcpy(copy + (size_t)peer * part + at, own.base + from, len);
                iov[n++] = (MPIX_P2p_iov){own.mem, (MPI_Count)from, r.at[peer],
                                          (MPI_Count)((size_t)t_rank * part + at), (MPI_Count)len};
                at += len;
                if (n == 16 || t_chance(&rng, 30)) {
                    CHECK_OK(MPIX_P2p_iput(iov, n, &x[pending++]));
                    n = 0;
                }
            }
            if (n)
                CHECK_OK(MPIX_P2p_put(iov, n));
            CHECK_OK(MPIX_Xfer_waitall(pending, x, NULL));
            if (t_chance(&rng, 50)) {
                CHECK_OK(MPIX_P2p_flush(p2p, peer));
                CHECK_OK(MPIX_P2p_get(&(MPIX_P2p_iov){own.mem, (MPI_Count)part, r.at[peer],
                                                      (MPI_Count)((size_t)t_rank * part),
                                                      (MPI_Count)part},
                                      1));
                CHECK(memcmp(back, copy + (size_t)peer * part, part) == 0,
                      "round %d: what is read from rank %d is not what was written", round, peer);
            }
        }
        CHECK_OK(MPIX_P2p_flush(p2p, MPIX_ALL_PEERS));
        no_mpi("random traffic");
        meet();
        uint64_t mine[MAX_RANKS] = {0}, theirs[MAX_RANKS] = {0};
        for (int p = 0; p < t_size; p++)
            for (size_t i = 0; i < part; i++)
                mine[p] = mine[p] * 0x100000001b3u ^ copy[(size_t)p * part + i];
        MPI_Alltoall(mine, 1, MPI_UINT64_T, theirs, 1, MPI_UINT64_T, MPI_COMM_WORLD);
        for (int p = 0; p < t_size; p++) {
            uint64_t hash = 0;
            for (size_t i = 0; i < part; i++)
                hash = hash * 0x100000001b3u ^ r.base[(size_t)p * part + i];
            CHECK(hash == theirs[p], "round %d: the part that rank %d writes has another hash",
                  round, p);
        }
        meet();
    }
    region_end(&own);
    region_end(&r);
    free(copy);
}

/* Beyond 4 GiB: offsets and lengths, in memory of which little is touched where that can be. */
void big(void) {
    const size_t bytes = ((size_t)4 << 30) + 4096 + 17;
    if (t_size > 2 || sysconf(_SC_AVPHYS_PAGES) < (long)(bytes / 4096 * 3)) {
        if (t_rank == 0)
            printf("left out: memory for a transfer of more than 4 GiB\n");
        return;
    }
    t_where("more than 4 GiB");
    t_watchdog(200);
    MPIX_P2p_mem mem = NULL;
    MPIX_P2p_rmem at[2] = {NULL};
    unsigned char *base = calloc(bytes, 1);
    int last = t_size - 1; /* one side has it, the other reads it */
    REQUIRE(base, "no memory");
    if (t_rank == last) {
        base[0] = 1;
        base[(size_t)1 << 32] = 2;
        base[bytes - 1] = 3;
    }
    CHECK_OK(MPIX_P2p_reg(p2p, base, (MPI_Count)bytes, MPI_INFO_NULL, &mem));
    CHECK_OK(MPIX_P2p_exchange(mem, at));
    if (t_rank == 0 && t_size == 2) {
        CHECK_OK(MPIX_P2p_get(&(MPIX_P2p_iov){mem, 0, at[1], 0, (MPI_Count)bytes}, 1));
        CHECK(base[0] == 1 && base[(size_t)1 << 32] == 2 && base[bytes - 1] == 3, "%d %d %d",
              base[0], base[(size_t)1 << 32], base[bytes - 1]);
        base[bytes - 2] = 9;
        CHECK_OK(
            MPIX_P2p_put(&(MPIX_P2p_iov){mem, (MPI_Count)bytes - 2, at[1], (MPI_Count)bytes - 3, 1},
                         1));
        CHECK_OK(MPIX_P2p_flush(p2p, 1));
    }
    meet();
    if (t_rank == 1)
        CHECK(base[bytes - 3] == 9, "a put beyond 4 GiB is not there");
    meet();
    CHECK_OK(MPIX_P2p_rmem_free(&at[0]));
    CHECK_OK(MPIX_P2p_dereg(&mem));
    free(base);
}
