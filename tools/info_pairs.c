/*
 * info_pairs.c - how each rank reaches each other rank: what a small context says, and if none can
 * be made, what comes of mapping a small window.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu/gpu.h"
#include "tools/info.h"
#include "transport/transport.h"

enum {
    PAIRS_WIDE = 40, /* ranks up to which a matrix is printed; beyond, only what is not as usual */
    PAIRS_GPU_TEXT = 320
};

/* What a rank knows of its way to another. */
typedef struct pairs_cell {
    char via[24], why[360];
    int reach;
} pairs_cell;

void info_print_pairs(const char *heading, int size,
                      const char *(*word)(const void *cells, int from, int to, int size),
                      const void *cells) {
    printf("%s\n", heading);
    if (size > PAIRS_WIDE) {
        printf("  (%d ranks: too wide to print)\n", size);
        return;
    }
    int width = 6;
    for (int i = 0; i < size * size; i++) {
        int len = (int)strlen(word(cells, i / size, i % size, size));
        width = len > width ? len : width;
    }
    printf("  from\\to");
    for (int to = 0; to < size; to++)
        printf(" %*d", width, to);
    printf("\n");
    for (int from = 0; from < size; from++) {
        printf("  %7d", from);
        for (int to = 0; to < size; to++)
            printf(" %*s", width, word(cells, from, to, size));
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
            snprintf(cell->why, sizeof cell->why,
                     "same host; not tried to the end, because another pair failed");
        }
    }
}

/* Who executes commands for proxied peers. */
static const char *pairs_threads(int n, char *text, size_t len) {
    snprintf(text, len, "%d threads", n);
    return n == 0 ? "the caller" : n == 1 ? "a thread" : text;
}

/* The row as a context of these ranks has it, under the parameters in force. */
static int pairs_fill_context(const mpix_boot *boot, pairs_cell *row) {
    MPIX_Ep_config config;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Ep_peer peer;
    int code;

    MPIX_INIT(&config);
    config.num_experts = 1;
    config.max_topk = 1;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    code = MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep);
    if (code != MPI_SUCCESS)
        return code;
    for (int r = 0; r < boot->size; r++) {
        pairs_cell *cell = &row[r];
        MPIX_INIT(&peer);
        if (MPIX_Ep_get_peer(ep, r, &peer) != MPI_SUCCESS)
            continue;
        char mtu[16], threads[24];
        snprintf(mtu, sizeof mtu, "%d", peer.mtu);
        cell->reach = peer.reach;
        snprintf(cell->via, sizeof cell->via, "%.23s", peer.transport);
        if (peer.reach == MPIX_EP_REACH_PROXIED)
            snprintf(cell->why, sizeof cell->why,
                     "device %.60s, %.60s, MTU %s, %d lane%s, %s signals, run by %s; %s",
                     peer.device, peer.address, peer.mtu ? mtu : "none", peer.lanes,
                     peer.lanes == 1 ? "" : "s", peer.counted ? "counted" : "ordered",
                     pairs_threads(peer.proxy_threads, threads, sizeof threads), peer.why);
        else
            snprintf(cell->why, sizeof cell->why, "%s", peer.why);
    }
    MPIX_Ep_free(&ep);
    return MPI_SUCCESS;
}

/* Contexts in GPU memory: which memory the network moves proxied peers' rows through is decided
 * with the first handle. text: of this rank. */
static void pairs_fill_gpu(const mpix_boot *boot, const mpix_params *params, char *text,
                           size_t len) {
    char why[MPIX_CUDA_WHY] = "", threads[24];
    MPIX_Ep_config config;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Ep_handle handle = MPIX_EP_HANDLE_NULL;
    MPIX_Ep_peer peer;
    mpix_gpu gpu;
    int none = mpix_gpu_open(&gpu, params, 0, why) != 0, any = none;

    MPI_Allreduce(MPI_IN_PLACE, &any, 1, MPI_INT, MPI_MAX, boot->comm);
    snprintf(text, len, "%.200s", none ? why : "other ranks can use no GPU");
    if (any)
        return;
    MPIX_INIT(&config);
    config.memkind = MPIX_EP_CUDA;
    config.num_experts = 1;
    config.max_topk = 1;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    if (MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep) != MPI_SUCCESS ||
        MPIX_Ep_handle_create(ep, &handle) != MPI_SUCCESS) {
        snprintf(text, len, "no context: %.200s", mpix_error_tls()->text);
    } else {
        snprintf(text, len, "%s, no proxied peers", gpu.device.name);
        for (int r = boot->size - 1; r >= 0; r--) {
            MPIX_INIT(&peer);
            if (MPIX_Ep_get_peer(ep, r, &peer) == MPI_SUCCESS &&
                peer.reach == MPIX_EP_REACH_PROXIED)
                snprintf(text, len, "%.60s, proxied peers: %.127s; run by %s", gpu.device.name,
                         peer.why, pairs_threads(peer.proxy_threads, threads, sizeof threads));
        }
    }
    if (handle != MPIX_EP_HANDLE_NULL)
        MPIX_Ep_handle_free(&handle);
    if (ep != MPIX_EP_NULL)
        MPIX_Ep_free(&ep);
}

/* Each text once. */
static void pairs_print_gpu(const char (*texts)[PAIRS_GPU_TEXT], int size) {
    printf("in GPU memory\n");
    for (int r = 0; r < size; r++) {
        int same = 0, first = 1;
        for (int q = 0; q < size; q++) {
            first &= q >= r || strcmp(texts[q], texts[r]) != 0;
            same += strcmp(texts[q], texts[r]) == 0;
        }
        if (first)
            printf("  %s (%d rank%s, the first %d)\n", texts[r], same, same == 1 ? "" : "s", r);
    }
}

static void pairs_print(const mpix_boot *boot, const pairs_cell *cells, int mapping) {
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
    info_print_pairs(mapping ? "pairs of ranks: transport (no context could be made: mapping alone)"
                             : "pairs of ranks: transport",
                     boot->size, pairs_word, cells);
    /* Each reason once, with the first pair it holds for. */
    printf("reasons\n");
    for (size_t i = 0; i < n; i++) {
        size_t pairs = 0, j;
        for (j = 0; j < i && (strcmp(cells[j].why, cells[i].why) != 0 ||
                              strcmp(cells[j].via, cells[i].via) != 0);
             j++)
            ;
        if (j < i)
            continue;
        for (j = i; j < n; j++)
            pairs += strcmp(cells[j].why, cells[i].why) == 0 &&
                     strcmp(cells[j].via, cells[i].via) == 0;
        printf("  %-6s %-8s %s (%zu pair%s, the first %d to %d)\n", cells[i].via,
               mpix_reach_name(cells[i].reach), cells[i].why, pairs, pairs == 1 ? "" : "s",
               (int)(i / (size_t)boot->size), (int)(i % (size_t)boot->size));
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
    char gpu[PAIRS_GPU_TEXT] = "", (*gpus)[PAIRS_GPU_TEXT] = NULL;
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
    if (boot->rank == 0) {
        all = calloc(size * size, sizeof *all);
        gpus = calloc(size, sizeof *gpus);
    }
    kind = row && ((all && gpus) || boot->rank != 0)
               ? 0
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a table of %zu ranks", size);
    if (mpix_boot_agree(boot, kind)) {
        info_error("matrix");
        goto free_all;
    }
    if (pairs_fill_context(boot, row) != MPI_SUCCESS) {
        const MPIX_Error *err = mpix_error_tls();
        if (err->kind != MPIX_ERRK_REMOTE)
            fprintf(stderr, "mpix_ep_info: rank %d: no context: %s\n", boot->rank, err->text);
        kind = mpix_win_create(boot, params, 4096, MPIX_WIN_COMMIT, &win);
        pairs_fill(boot, win, kind, row);
        kind = 1;
    }
    MPI_Gather(row, (int)(size * sizeof *row), MPI_BYTE, all, (int)(size * sizeof *row), MPI_BYTE,
               0, boot->comm);
    if (!kind)
        pairs_fill_gpu(boot, params, gpu, sizeof gpu);
    MPI_Gather(gpu, sizeof gpu, MPI_BYTE, gpus, sizeof gpu, MPI_BYTE, 0, boot->comm);
    if (boot->rank == 0) {
        pairs_print(boot, all, kind != 0);
        if (!kind)
            pairs_print_gpu((const char(*)[PAIRS_GPU_TEXT])gpus, boot->size);
    }
    fflush(stdout);
    status = kind != 0;
    mpix_win_free(win);
free_all:
    free(row);
    free(all);
    free(gpus);
    mpix_boot_free(boot, 0);
    return status;
}
