/*
 * halo.c - a small solver (Jacobi steps for the heat equation on a plane) whose ranks exchange the
 * edges of their parts with MPIX_P2p_put_notify, checked against a serial run: results must be
 * equal to the bit.
 *
 *   mpirun -n N halo [rows columns steps]
 *
 * Every rank has consecutive rows, with a row of its neighbour's above and below, twice: steps
 * read one copy and write the other. After a step the new edge rows are put straight into the
 * neighbours' copies, each with a notification. One step later the neighbour has read the row
 * before it, since its own notification of that step has come: so nothing is overwritten that
 * is still needed.
 */
#include <mpi.h>
#include <mpix_p2p.h>

#include <stdio.h>
#include <stdlib.h>

static void step(const double *old, double *new, int rows, int cols) {
    for (int r = 1; r <= rows; r++)
        for (int c = 1; c < cols - 1; c++)
            new[r * cols + c] = 0.25 * (old[(r - 1) * cols + c] + old[(r + 1) * cols + c] +
                                        old[r * cols + c - 1] + old[r * cols + c + 1]);
}

static double start(int row, int col) {
    return row == 0 ? 100.0 : col == 0 ? 1.0 / (row + 1) : 0.0;
}

static void check(int code, const char *what) {
    MPIX_Error error;

    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    fprintf(stderr, "halo: %s: %s\n", what, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    int rank, size, rows = argc > 1 ? atoi(argv[1]) : 61, cols = argc > 2 ? atoi(argv[2]) : 47,
                    steps = argc > 3 ? atoi(argv[3]) : 200;
    int wrong = 0;
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    double *field;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rows - 2 < size || cols < 3 || steps < 0) {
        fprintf(stderr, "halo: every rank needs a row between the first and the last\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int first = 1 + (int)((long)(rows - 2) * rank / size),
        mine = 1 + (int)((long)(rows - 2) * (rank + 1) / size) - first;
    int most = (rows - 2 + size - 1) / size + 2; /* rows of every rank's copies */
    MPI_Count row = (MPI_Count)cols * (MPI_Count)sizeof(double), copy = most * row;
    MPIX_P2p_rmem *at = malloc((size_t)size * sizeof *at);

    check(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p), "create");
    check(MPIX_P2p_alloc(p2p, 2 * copy, MPI_INFO_NULL, &field, &mem), "alloc");
    check(MPIX_P2p_exchange(mem, at), "exchange");
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < mine + 2; r++)
            for (int c = 0; c < cols; c++)
                field[(k * most + r) * cols + c] = start(first - 1 + r, c);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody's edge arrives before the copies are filled */

    int up = rank - 1, down = rank + 1 < size ? rank + 1 : -1;
    int up_rows = up < 0 ? 0 : first - 1 - (int)((long)(rows - 2) * up / size);
    for (int s = 0; s < steps; s++) {
        int to = (s + 1) % 2;
        step(field + s % 2 * most * cols, field + to * most * cols, mine, cols);
        MPIX_P2p_iov first_row = {mem, to * copy + row, up < 0 ? NULL : at[up],
                                  to * copy + (up_rows + 1) * row, row};
        MPIX_P2p_iov last_row = {mem, to * copy + mine * row, down < 0 ? NULL : at[down], to * copy,
                                 row};
        if (up >= 0)
            check(MPIX_P2p_put_notify(&first_row, 1, 0, 1), "put up");
        if (down >= 0)
            check(MPIX_P2p_put_notify(&last_row, 1, 0, 1), "put down");
        if (up >= 0)
            check(MPIX_P2p_notify_wait(p2p, up, 0, (uint64_t)s + 1, NULL),
                  "wait for the rank above");
        if (down >= 0)
            check(MPIX_P2p_notify_wait(p2p, down, 0, (uint64_t)s + 1, NULL),
                  "wait for the rank below");
    }

    /* The same alone. */
    double *whole = malloc(2 * (size_t)(rows * cols) * sizeof *whole);
    if (!whole || !at)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < 2 * rows * cols; i++)
        whole[i] = start(i / cols % rows, i % cols);
    for (int s = 0; s < steps; s++)
        step(whole + s % 2 * rows * cols, whole + (s + 1) % 2 * rows * cols, rows - 2, cols);
    for (int r = 1; r <= mine; r++)
        wrong += memcmp(field + (steps % 2 * most + r) * cols,
                        whole + (steps % 2 * rows + first - 1 + r) * cols, (size_t)row) != 0;
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("halo: %d x %d, %d steps, %d ranks: %d rows differ from the serial run\n", rows,
               cols, steps, size, wrong);
    free(whole);
    check(MPIX_P2p_free(&p2p), "free");
    free(at);
    MPI_Finalize();
    return wrong != 0;
}
