/* hosts.c - virtual hosts, and the bounded barrier at the end of an object with proxied peers. */
#include "config.h"

#include "base/clock.h"
#include "boot/boot.h"

#include <sched.h>
#include <stdlib.h>

/* Rank by rank: its place among its host's ranks says which part it belongs to; parts are numbered as they appear, so again by their
 * lowest rank. */
int mpix_boot_split_hosts(mpix_boot *boot, int parts) {
    if (parts < 2)
        return 0;
    size_t hosts = (size_t)boot->nhosts;
    int *size = calloc(hosts, sizeof *size), *place = calloc(hosts, sizeof *place);
    int *number = malloc(hosts * (size_t)parts * sizeof *number), kind = 0;
    if (!size || !place || !number) {
        kind = mpix_fail(MPIX_ERRK_NO_MEM, "hosts", "no memory for %zu hosts in %d parts", hosts, parts);
        goto free_all;
    }
    for (size_t i = 0; i < hosts * (size_t)parts; i++)
        number[i] = -1;
    for (int r = 0; r < boot->size; r++)
        size[boot->host_of[r]]++;
    boot->nhosts = 0;
    for (int r = 0; r < boot->size; r++) {
        int host = boot->host_of[r], n = size[host] < parts ? size[host] : parts;
        int part = (int)((long long)place[host]++ * n / size[host]);
        int *id = &number[(size_t)host * (size_t)parts + (size_t)part];
        if (*id < 0)
            *id = boot->nhosts++;
        boot->host_of[r] = *id;
    }
    boot->local_size = boot->local_rank = 0;
    for (int r = 0; r < boot->size; r++) {
        if (boot->host_of[r] != boot->host_of[boot->rank]) {
            if (boot->apart[r] == MPIX_APART_NOT)
                boot->apart[r] = MPIX_APART_SPLIT;
            continue;
        }
        boot->local_rank += r < boot->rank;
        boot->local_size++;
    }
free_all:
    free(size);
    free(place);
    free(number);
    return kind;
}

int mpix_boot_barrier_bounded(mpix_boot *boot, double seconds) {
    MPI_Request request;
    uint64_t start = mpix_clock_ns();
    int done = 0;
    if (MPI_Ibarrier(boot->comm, &request) != MPI_SUCCESS)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "MPI_Ibarrier failed");
    while (!done) {
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return mpix_fail(MPIX_ERRK_INTERNAL, NULL, "MPI_Test of a barrier failed");
        if (!done && (double)(mpix_clock_ns() - start) > seconds * 1e9)
            return mpix_fail(MPIX_ERRK_TIMEOUT, NULL, "the ranks did not meet within %g s at the end of an object", seconds);
        if (!done && boot->turn)
            boot->turn(boot->turn_arg);
        if (!done)
            sched_yield();
    }
    return 0;
}
