/*
 * info_selftest.c - sends checked rows over every pair of ranks and back, through the
 * public API alone.
 *
 * Each rank holds one expert and sends TOKENS rows to every rank. A row's values are made of who
 * sends it, which token it is, and the channel, so a row that comes from elsewhere, or old, or
 * shifted, is seen. The experts answer with the row plus a number of their own; the sums that
 * combine brings back are checked against what they must be. Values are small integers: float
 * arithmetic is exact.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/info.h"

enum { TOKENS = 3, HIDDEN = 517 /* odd, so rows are not aligned to vectors */ };

enum { CELL_SENT_WRONG = 1, CELL_RETURNED_WRONG = 2, CELL_FAILED = 4 };

typedef struct selftest {
    int rank, size, topk, layout, direct;
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    MPI_Count rows; /* received */
    int *ids;       /* [size * TOKENS][topk] */
    float *x, *y;   /* [size * TOKENS][HIDDEN] */
    float *recv;    /* [rows][HIDDEN] */
    int *src_rank;
    MPI_Count *src_token;
    unsigned char *cells; /* [size] of the pair with each rank: what was wrong */
} selftest;

static float selftest_value(int src, long long token, int channel) {
    return (float)((src * 31 + (int)token * 7 + channel) % 4099);
}

/* Token t's first choice is the expert of rank t % size, so that each pair carries TOKENS rows even
 * with one choice. */
static void selftest_fill(selftest *st) {
    for (int t = 0; t < st->size * TOKENS; t++) {
        for (int k = 0; k < st->topk; k++)
            st->ids[t * st->topk + k] = (t + k) % st->size;
        for (int c = 0; c < HIDDEN; c++)
            st->x[(size_t)t * HIDDEN + (size_t)c] = selftest_value(st->rank, t, c);
    }
}

static int selftest_route(selftest *st) {
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;

    MPIX_INIT(&routing);
    routing.num_tokens = (MPI_Count)st->size * TOKENS;
    routing.topk = st->topk;
    routing.ids = st->ids;
    MPIX_INIT(&counts);
    counts.recv_total = &st->rows;
    return MPIX_Ep_route(st->handle, &routing, &counts);
}

static int selftest_dispatch(selftest *st) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;

    MPIX_INIT(&in);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = st->x, .dtype = MPIX_EP_F32};
    MPIX_INIT(&out);
    out.capacity_rows = st->rows;
    out.x = (MPIX_Ep_rows){.data = st->recv, .dtype = MPIX_EP_F32};
    out.src_rank = st->src_rank;
    out.src_token = st->src_token;
    return MPIX_Ep_dispatch(st->handle, &in, &out);
}

/* Every row must be the one its source has under that token; every source must have sent
 * topk * TOKENS different ones.
 */
static void selftest_check_received(selftest *st) {
    MPI_Count expected = (MPI_Count)st->topk * TOKENS;

    for (int r = 0; r < st->size; r++) {
        MPI_Count count = 0;
        long long last = -1;
        for (MPI_Count i = 0; i < st->rows; i++) {
            const float *row = st->recv + (size_t)i * HIDDEN;
            int wrong = 0;
            if (st->src_rank[i] != r)
                continue;
            count++;
            wrong = (long long)st->src_token[i] <= last; /* tokens of a source ascend */
            last = (long long)st->src_token[i];
            for (int c = 0; c < HIDDEN; c++)
                wrong |= row[c] != selftest_value(r, last, c);
            if (wrong)
                st->cells[r] |= CELL_SENT_WRONG;
        }
        if (count != expected)
            st->cells[r] |= CELL_SENT_WRONG;
    }
}

static int selftest_combine(selftest *st) {
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;

    for (MPI_Count i = 0; i < st->rows; i++)
        for (int c = 0; c < HIDDEN; c++)
            /* this rank's expert */
            st->recv[(size_t)i * HIDDEN + (size_t)c] += (float)(1 + st->rank);
    MPIX_INIT(&in);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = st->recv, .dtype = MPIX_EP_F32};
    MPIX_INIT(&out);
    out.y = (MPIX_Ep_rows){.data = st->y, .dtype = MPIX_EP_F32};
    return MPIX_Ep_combine(st->handle, &in, &out);
}

static void selftest_check_returned(selftest *st) {
    for (int t = 0; t < st->size * TOKENS; t++) {
        const float *row = st->y + (size_t)t * HIDDEN;
        int wrong = 0, added = 0;
        for (int k = 0; k < st->topk; k++)
            added += 1 + (t + k) % st->size;
        for (int c = 0; c < HIDDEN; c++)
            wrong |= row[c] != (float)st->topk * selftest_value(st->rank, t, c) + (float)added;
        for (int k = 0; wrong && k < st->topk; k++)
            st->cells[(t + k) % st->size] |= CELL_RETURNED_WRONG;
    }
}

static void selftest_release(selftest *st) {
    if (st->handle)
        MPIX_Ep_handle_free(&st->handle);
    if (st->ep && st->direct)
        MPIX_Ep_dealloc(st->ep, st->recv);
    else
        free(st->recv);
    if (st->ep)
        MPIX_Ep_free(&st->ep);
    free(st->ids);
    free(st->x);
    free(st->y);
    free(st->src_rank);
    free(st->src_token);
}

/* Memory of one configuration; the received rows in the library's memory or in the caller's. */
static int selftest_prepare(selftest *st) {
    MPIX_Ep_config config;
    size_t tokens = (size_t)st->size * TOKENS, rows = (size_t)st->topk * tokens;
    int code;

    st->ids = calloc(tokens * (size_t)st->topk, sizeof *st->ids);
    st->x = calloc(tokens * HIDDEN, sizeof *st->x);
    st->y = calloc(tokens * HIDDEN, sizeof *st->y);
    st->src_rank = calloc(rows, sizeof *st->src_rank);
    st->src_token = calloc(rows, sizeof *st->src_token);
    if (!st->ids || !st->x || !st->y || !st->src_rank || !st->src_token) {
        fprintf(stderr, "mpix_ep_info: rank %d has no memory for the self-test\n", st->rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPIX_INIT(&config);
    config.layout = st->layout;
    config.max_topk = st->topk;
    config.num_experts = st->size;
    config.max_tokens = (MPI_Count)tokens;
    config.max_recv_rows = (MPI_Count)rows;
    config.max_row_bytes = HIDDEN * (MPI_Count)sizeof(float);
    code = MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &st->ep);
    if (code == MPI_SUCCESS && st->direct) {
        code = MPIX_Ep_alloc(st->ep, (MPI_Count)(rows * HIDDEN * sizeof(float)), MPI_INFO_NULL,
                             &st->recv);
    } else if (code == MPI_SUCCESS) {
        st->recv = calloc(rows * HIDDEN, sizeof *st->recv);
        if (!st->recv)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return code == MPI_SUCCESS ? MPIX_Ep_handle_create(st->ep, &st->handle) : code;
}

/* One configuration, twice, so that the second run meets what the first left behind. Marks what was
 * wrong in cells. */
static void selftest_run(selftest *st) {
    const char *step = "create";
    int code = selftest_prepare(st);

    for (int round = 0; round < 2 && code == MPI_SUCCESS; round++) {
        selftest_fill(st);
        step = "route";
        code = selftest_route(st);
        if (code == MPI_SUCCESS && st->rows != (MPI_Count)st->topk * TOKENS * st->size) {
            fprintf(stderr, "mpix_ep_info: rank %d: route gives %lld rows\n", st->rank,
                    (long long)st->rows);
            memset(st->cells, CELL_FAILED, (size_t)st->size);
            st->rows = 0;
        }
        if (code == MPI_SUCCESS) {
            step = "dispatch";
            memset(st->recv, 0xff,
                   (size_t)st->topk * TOKENS * (size_t)st->size * HIDDEN * sizeof(float));
            code = selftest_dispatch(st);
        }
        if (code == MPI_SUCCESS) {
            selftest_check_received(st);
            step = "combine";
            memset(st->y, 0xff, (size_t)st->size * TOKENS * HIDDEN * sizeof(float));
            code = selftest_combine(st);
        }
        if (code == MPI_SUCCESS)
            selftest_check_returned(st);
    }
    if (code != MPI_SUCCESS) {
        info_error(step);
        memset(st->cells, CELL_FAILED, (size_t)st->size);
    }
    selftest_release(st);
}

static const char *selftest_word(const void *cells, int from, int to, int size) {
    const unsigned char *all = cells;
    /* What went from `from` to `to` is known at `to`; what came back is known at `from`. */
    int sent = all[(size_t)to * (size_t)size + (size_t)from],
        back = all[(size_t)from * (size_t)size + (size_t)to];

    if ((sent | back) & CELL_FAILED)
        return "ERROR";
    if (sent & CELL_SENT_WRONG)
        return "SENT";
    return back & CELL_RETURNED_WRONG ? "BACK" : "pass";
}

int info_selftest(void) {
    int rank, size, failed = 0, runs = 0;
    unsigned char *cells, *all = NULL;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    cells = calloc((size_t)size, 1);
    all = calloc((size_t)size * (size_t)size, 1);
    if (!cells || !all)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++)
        for (int direct = 1; direct >= 0; direct--)
            for (int topk = 1; topk <= 3 && topk <= size; topk += 2) {
                selftest st = {.rank = rank,
                               .size = size,
                               .topk = topk,
                               .layout = layout,
                               .direct = direct,
                               .cells = cells};
                selftest_run(&st);
                runs++;
            }
    MPI_Allgather(cells, size, MPI_BYTE, all, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < size * size; i++)
        failed += strcmp(selftest_word(all, i / size, i % size, size), "pass") != 0;
    if (rank == 0) {
        info_print_pairs("self-test: rows from each rank to each rank (SENT: arrived wrong, BACK: "
                         "came back wrong, "
                         "ERROR: a call failed)",
                         size, selftest_word, all);
        printf("self-test: %d configurations, %d of %d pairs failed: %s\n", runs, failed,
               size * size, failed ? "FAIL" : "pass");
    }
    fflush(stdout);
    free(cells);
    free(all);
    return failed != 0;
}
