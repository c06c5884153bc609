/*
 * ep_minimal.c - the smallest complete program: route, dispatch, experts, combine, and a
 * check of the result.
 *
 *     mpicc ep_minimal.c -lmpixep && mpirun -n 4 ./a.out
 *
 * Two experts per rank; each of a rank's tokens chooses two experts, weighted 0.75, 0.25. Expert e
 * multiplies by e + 1.
 */
#include <mpix_ep.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 100, HIDDEN = 64, TOPK = 2, LOCAL = 2 };

/* ends the program with the library's account of the error */
static void check(int code, const char *call) {
    MPIX_Error error;
    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error), MPIX_Error_last(&error);
    fprintf(stderr, "%s: %s\n", call, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CHECK(call) check(call, #call)
int main(int argc, char **argv) {
    int rank, size, wrong = 0, all_wrong = 0, ids[TOKENS][TOPK];
    static float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], weights[TOKENS][TOPK];
    MPI_Init(&argc, &argv);
    /* inherited by contexts: for check() */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int t = 0; t < TOKENS; t++) {
        ids[t][0] = (rank + 3 * t) % (LOCAL * size);
        ids[t][1] = (ids[t][0] + 1) % (LOCAL * size);
        weights[t][0] = 0.75f, weights[t][1] = 0.25f;
        for (int i = 0; i < HIDDEN; i++)
            x[t][i] = (float)(t + i);
    }

    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.layout = MPIX_EP_EXPERT, config.max_topk = TOPK, config.num_experts = LOCAL * size;
    config.max_tokens = TOKENS, config.max_row_bytes = sizeof x[0];
    CHECK(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep));
    CHECK(MPIX_Ep_handle_create(ep, &handle));
    MPI_Count rows, offset[LOCAL + 1]; /* of each expert's first row */
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPIX_INIT(&routing), routing.num_tokens = TOKENS, routing.topk = TOPK, routing.ids = ids;
    MPIX_INIT(&counts), counts.recv_total = &rows, counts.expert_offset = offset;
    CHECK(MPIX_Ep_route(handle, &routing, &counts));

    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    float *received; /* peers write into it and read from it directly */
    CHECK(MPIX_Ep_alloc(ep, rows * (MPI_Count)sizeof x[0], MPI_INFO_NULL, &received));
    MPIX_INIT(&in), in.hidden = HIDDEN, in.x.data = x, in.x.dtype = MPIX_EP_F32;
    MPIX_INIT(&out), out.capacity_rows = rows, out.x.data = received;
    CHECK(MPIX_Ep_dispatch(handle, &in, &out));

    for (int e = 0; e < LOCAL; e++) /* the experts */
        for (MPI_Count i = offset[e] * HIDDEN; i < offset[e + 1] * HIDDEN; i++)
            received[i] *= (float)(rank * LOCAL + e + 1);
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sum;
    MPIX_INIT(&back), back.hidden = HIDDEN, back.x = out.x, back.x.dtype = MPIX_EP_F32,
                      back.topk_weights = weights[0];
    MPIX_INIT(&sum), sum.y.data = y;
    CHECK(MPIX_Ep_combine(handle, &back, &sum));

    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < HIDDEN; i++) /* quarters of small integers: exact in float */
            wrong += y[t][i] != 0.75f * (float)(ids[t][0] + 1) * x[t][i] +
                                    0.25f * (float)(ids[t][1] + 1) * x[t][i];
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, %d tokens each: %s\n", size, TOKENS, all_wrong ? "WRONG" : "ok");
    CHECK(MPIX_Ep_free(&ep)); /* the handle and the memory too */
    MPI_Finalize();
    return all_wrong != 0;
}
