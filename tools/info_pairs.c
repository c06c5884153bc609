/*
 * info_pairs.c - how each rank reaches each other rank, found out by mapping a small window.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tools/info.h"
#include "transport/transport.h"

enum { PAIRS_WIDE = 40 /* ranks up to which a matrix is printed; beyond, only what is not as usual */ };

/* What a rank knows of its way to another. */
typedef struct pairs_cell {
    char via[16], why[160];
    int reach;
} pairs_cell;

void info_print_pairs(const char *heading, int size, const char *(*word)(const void *cells, int from, int to, int size),
                      const void *cells) {
    printf("%s\n", heading);
    if (size > PAIRS_WIDE) {
        printf("  (%d ranks: too wide to print)\n", size);
        return;
    }
    printf("  from\\to");
    for (int to = 0; to < size; to++)
        printf(" %6d", to);
    printf("\n");
    for (int from = 0; from < size; from++) {
        printf("  %7d", from);
        for (int to = 0; to < size; to++)
            printf(" %6s", word(cells, from, to, size));
        printf("\n");
    }
}

static const char *pairs_word(const void *cells, int from, int to, int size) {
    return ((const pairs_cell *)cells)[(size_t)from * (size_t)size + (size_t)to].via;
}

/* This rank's row: the choice for each peer, and what came of mapping its memory. */
static void pairs_fill(const mpix_boot *boot, const mpix_win *win, int kind, pairs_cell *row) {
    const MPIX_Error *err = mpix_error_tls();

    for (int r = 0; r < boot->size; r++) {
        pairs_cell *cell = &row[r];
        const mpix_transport_ops *ops = mpix_transport_choose(boot, r, cell->why, sizeof cell->why);

        snprintf(cell->via, sizeof cell->via, "%s", ops ? ops->name : "-");
        cell->reach = ops ? ops->reach : MPIX_REACH_NONE;
        if (ops == &mpix_transport_self)
            snprintf(cell->why, sizeof cell->why, "own memory");
        else if (ops && win)
            snprintf(cell->why, sizeof cell->why, "same host, memory mapped %s",
                     win->by_socket ? "by a descriptor sent through a socket" : "through /proc");
        else if (ops && kind && kind != MPIX_ERRK_REMOTE && err->rank == r) {
            snprintf(cell->via, sizeof cell->via, "-");
            snprintf(cell->why, sizeof cell->why, "%.159s", err->text);
            cell->reach = MPIX_REACH_NONE;
        } else if (ops) {
            snprintf(cell->why, sizeof cell->why, "same host; not tried to the end, because another pair failed");
        }
    }
}

static void pairs_print(const mpix_boot *boot, const pairs_cell *cells) {
    size_t n = (size_t)boot->size * (size_t)boot->size;
    int printed = 0;

    printf("hosts\n");
    for (int h = 0; h < boot->nhosts; h++) {
        int first = 1;
        for (int r = 0; r < boot->size; r++) {
            if (boot->host_of[r] != h)
                continue;
            if (first)
                printf("  %-20s rank", boot->hostnames[r]);
            printf(" %d", r);
            first = 0;
        }
        printf("\n");
    }
    info_print_pairs("pairs of ranks: transport", boot->size, pairs_word, cells);
    /* Each reason once, with the first pair it holds for. */
    printf("reasons\n");
    for (size_t i = 0; i < n; i++) {
        size_t pairs = 0, j;
        for (j = 0; j < i && (strcmp(cells[j].why, cells[i].why) != 0 || strcmp(cells[j].via, cells[i].via) != 0); j++)
            ;
        if (j < i)
            continue;
        for (j = i; j < n; j++)
            pairs += strcmp(cells[j].why, cells[i].why) == 0 && strcmp(cells[j].via, cells[i].via) == 0;
        printf("  %-6s %-8s %s (%zu pair%s, the first %d to %d)\n", cells[i].via, mpix_reach_name(cells[i].reach),
               cells[i].why, pairs, pairs == 1 ? "" : "s", (int)(i / (size_t)boot->size),
               (int)(i % (size_t)boot->size));
        if (++printed == 20) {
            printf("  ...\n");
            break;
        }
    }
}

int info_matrix(const mpix_params *params) {
    mpix_boot *boot = NULL;
    mpix_win *win = NULL;
    pairs_cell *row = NULL, *all = NULL;
    int kind, status = 1;
    size_t size;

    mpix_log_configure(MPIX_LOG_NONE, ""); /* what fails is in the table */
    kind = mpix_boot_create(MPI_COMM_WORLD, &boot);
    if (kind) {
        info_error("communicator");
        return 1;
    }
    size = (size_t)boot->size;
    row = calloc(size, sizeof *row);
    if (boot->rank == 0)
        all = calloc(size * size, sizeof *all);
    kind = row && (all || boot->rank != 0)
               ? 0
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a table of %zu ranks", size);
    if (mpix_boot_agree(boot, kind)) {
        info_error("matrix");
        goto free_all;
    }
    kind = mpix_win_create(boot, params, 4096, MPIX_WIN_COMMIT, &win);
    pairs_fill(boot, win, kind, row);
    MPI_Gather(row, (int)(size * sizeof *row), MPI_BYTE, all, (int)(size * sizeof *row), MPI_BYTE, 0, boot->comm);
    if (boot->rank == 0)
        pairs_print(boot, all);
    fflush(stdout);
    status = kind != 0;
    mpix_win_free(win);
free_all:
    free(row);
    free(all);
    mpix_boot_free(boot, 0);
    return status;
}
