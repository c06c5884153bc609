/*
 * ep_complete.c - a call of a context that has returned needs nothing more of this rank: it makes
 * MPI calls only, and the others' part of the same call ends.
 *
 *   ep_complete [--rounds N]
 *
 * Each rank in turn is the one that goes on in MPI, after route, dispatch and combine. How ranks
 * reach each other is the environment's to say.
 */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, HIDDEN = 64, TOPK = 2 };

static MPIX_Ep ep;
static MPIX_Ep_handle handle;
static float *x, *rows, *y;

/* The others are through with this call when rank `first` makes its next. */
static void meet(int first) {
    int through = 1;
    if (t_rank != first)
        MPI_Send(&through, 1, MPI_INT, first, 5, MPI_COMM_WORLD);
    for (int r = 0; t_rank == first && r < t_size; r++)
        if (r != first)
            MPI_Recv(&through, 1, MPI_INT, r, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void make(int mode, int layout) {
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.mode = mode;
    config.layout = layout;
    config.max_topk = TOPK;
    config.num_experts = 2 * t_size;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * 4;
    config.timeout_s = 15;
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep) == MPI_SUCCESS,
            "no context");
    CHECK_OK(MPIX_Ep_handle_create(ep, &handle));
}

static void calls(int round, int mode, int layout, int first) {
    int32_t ids[TOKENS * TOPK];
    MPI_Count room = (MPI_Count)TOKENS * t_size * (layout == MPIX_EP_EXPERT ? TOPK : 1);
    MPIX_Ep_routing routing;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sum;
    float weights[TOKENS * TOPK];
    for (int t = 0; t < TOKENS; t++) { /* one expert of each of two ranks */
        ids[t * TOPK] = 2 * ((t_rank + t + round) % t_size);
        ids[t * TOPK + 1] = 2 * ((t_rank + t + round + 1) % t_size) + 1;
        weights[t * TOPK] = weights[t * TOPK + 1] = 1;
        for (int i = 0; i < HIDDEN; i++)
            x[t * HIDDEN + i] = (float)(1000 * t_rank + t + i + round);
    }
    MPIX_INIT(&routing);
    routing.num_tokens = TOKENS;
    routing.topk = TOPK;
    routing.ids = ids;
    if (!CHECK_OK(MPIX_Ep_route(handle, &routing, NULL)))
        return;
    meet(first);
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = x, .dtype = MPIX_EP_F32};
    out.x.data = rows;
    out.capacity_rows = room;
    if (!CHECK_OK(MPIX_Ep_dispatch(handle, &in, &out)))
        return;
    meet(first);
    MPIX_INIT(&back);
    MPIX_INIT(&sum);
    back.hidden = HIDDEN;
    back.x = (MPIX_Ep_rows){.data = rows, .dtype = MPIX_EP_F32};
    if (layout == MPIX_EP_EXPERT && mode == MPIX_EP_HT)
        back.topk_weights = weights;
    sum.y.data = y;
    if (!CHECK_OK(MPIX_Ep_combine(handle, &back, &sum)))
        return;
    meet(first);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        if (!CHECK(y[i] == 2 * x[i], "sum %d is %g, expected %g", i, (double)y[i],
                   (double)(2 * x[i])))
            return;
}

int main(int argc, char **argv) {
    static const int modes[][2] = {{MPIX_EP_HT, MPIX_EP_COMPACT},
                                   {MPIX_EP_HT, MPIX_EP_EXPERT},
                                   {MPIX_EP_LL, MPIX_EP_SLOTS}};
    t_init(&argc, &argv, "ep_complete");
    long rounds = t_option(argc, argv, "--rounds", 3);
    size_t most = (size_t)t_size * TOKENS * TOPK * HIDDEN * sizeof(float);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    x = malloc(most);
    rows = malloc(most);
    y = malloc(most);
    REQUIRE(x && rows && y && t_size > 1, "no memory, or one rank");
    for (int m = 0; m < 3; m++) {
        make(modes[m][0], modes[m][1]);
        for (int round = 0; round < rounds; round++)
            for (int first = 0; first < t_size && !t_failed_anywhere(); first++) {
                t_watchdog(60);
                t_where("mode %d, layout %d, rank %d goes on in MPI", modes[m][0], modes[m][1],
                        first);
                calls(round, modes[m][0], modes[m][1], first);
            }
        CHECK_OK(MPIX_Ep_free(&ep));
    }
    free(x);
    free(rows);
    free(y);
    return t_end();
}
