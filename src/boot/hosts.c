/* hosts.c - virtual hosts. */
#include "config.h"

#include "boot/boot.h"

#include <stdlib.h>

/* Rank by rank: its place among its host's ranks says which part it belongs to; parts are numbered
 * as they appear, so again by their lowest rank. */
int mpix_boot_split_hosts(mpix_boot *boot, int parts) {
    if (parts < 2)
        return 0;
    size_t hosts = (size_t)boot->nhosts;
    int *size = calloc(hosts, sizeof *size), *place = calloc(hosts, sizeof *place);
    int *number = malloc(hosts * (size_t)parts * sizeof *number), kind = 0;
    if (!size || !place || !number) {
        kind = mpix_fail(MPIX_ERRK_NO_MEM, "hosts", "no memory for %zu hosts in %d parts", hosts,
                         parts);
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
