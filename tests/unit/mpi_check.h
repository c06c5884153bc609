/* mpi_check.h - checks of the MPI programs in this folder: a failure is printed and counted, and
 * the job fails in the end. */
#ifndef MPIX_TESTS_MPI_CHECK_H
#define MPIX_TESTS_MPI_CHECK_H
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

/*
 * The search for leaks. MPI keeps memory to the end of the process, and unloads modules, whose
 * memory can't be told by their names any more: so what MPI_Init allocates is not looked at, and
 * the search is made before MPI_Finalize, in the place of the one at exit.
 */
static inline void check_mpi_init(int *argc, char ***argv) {
#ifdef __SANITIZE_ADDRESS__
    __lsan_disable();
#endif
    MPI_Init(argc, argv);
#ifdef __SANITIZE_ADDRESS__
    __lsan_enable();
#endif
}

static inline void check_leaks(void) {
#ifdef __SANITIZE_ADDRESS__
    __lsan_do_leak_check();
#endif
}

/* One of the program, whatever its files. */
__attribute__((weak)) int check_failures;
__attribute__((unused)) static long check_count;

#define CHECK(cond, ...) \
    do { \
        check_count++; \
        if (!(cond) && check_failures++ < 20) { \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
        } \
    } while (0)

/* What this process has open: descriptors (the one that counts them included), and mappings of
 * window memory. */
__attribute__((unused)) static int check_open_files(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

__attribute__((unused)) static int check_windows(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (file && fgets(line, sizeof line, file))
        n += strstr(line, "/memfd:mpix-ep") != NULL;
    if (file)
        fclose(file);
    return n;
}

/* The exit status of every rank: 1 if a check failed on any. */
__attribute__((unused)) static int check_report(const char *name) {
    long sum[2] = {check_failures, check_count};
    int rank, size;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: %d ranks, %ld checks, %ld failed\n", name, size, sum[1], sum[0]);
    return sum[0] != 0;
}
#endif
