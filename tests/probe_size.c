/*
 * probe_size.c - checks that the launcher starts one job of the size it was told. The launcher
 * of another MPI starts N jobs of size 1 instead, and every test would pass without having
 * tested anything.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int size, rank, expected = argc > 1 ? atoi(argv[1]) : 2;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (size != expected)
        fprintf(stderr, "probe_size: rank %d is in a job of size %d, not %d\n", rank, size,
                expected);
    MPI_Finalize();
    return size == expected ? 0 : 1;
}
