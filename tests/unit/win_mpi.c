/*
 * win_mpi.c - windows between ranks: sizes, contents in both directions, ways of passing
 * descriptors, failures, leaks.
 *
 * usage: win_mpi [cycles]; run by root, the part without rights to look into a peer's
 * /proc is tested too.
 */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "mem/window.h"
#include "mpi_check.h"
#include "transport/transport.h"

static mpix_boot *boot;
static mpix_params params;

static unsigned char byte_of(int writer, int owner, size_t at) {
    return (unsigned char)(1 + writer * 37 + owner * 11 + (int)(at % 251));
}

enum { EVEN, UNEVEN, SOME_EMPTY, ALL_EMPTY, SIZE_KINDS };

static size_t size_of(int kind, int rank) {
    switch (kind) {
    case EVEN: return 64 * 1024;
    case UNEVEN: return 1 + (size_t)rank * 5003;
    case SOME_EMPTY: return rank % 2 ? 0 : 4096;
    default: return 0;
    }
}

/* Each owner fills its memory; everybody reads it; then every rank r writes the bytes at r,
 * r + size, ... of everybody's memory. */
static void check_contents(const mpix_win *win, int kind) {
    unsigned char *own = win->base;
    int size = boot->size, rank = boot->rank;

    for (size_t i = 0; i < win->bytes; i++)
        CHECK(own[i] == 0, "rank %d byte %zu is %u, not zero", rank, i, own[i]);
    for (size_t i = 0; i < win->bytes; i++)
        own[i] = byte_of(rank, rank, i);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        const unsigned char *p = win->peer[r];
        size_t bad = 0;
        CHECK(win->peer_bytes[r] == size_of(kind, r), "rank %d: %zu bytes", r, win->peer_bytes[r]);
        CHECK((p != NULL) == (size_of(kind, r) > 0), "rank %d: mapped %p", r, (const void *)p);
        for (size_t i = 0; p && i < win->peer_bytes[r]; i++)
            bad += p[i] != byte_of(r, r, i);
        CHECK(bad == 0, "rank %d reads %zu wrong bytes of rank %d", rank, bad, r);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (size_t i = (size_t)rank; i < win->peer_bytes[r]; i += (size_t)size)
            ((unsigned char *)win->peer[r])[i] = byte_of(rank + 100, r, i);
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < win->bytes; i++)
        CHECK(own[i] == byte_of((int)(i % (size_t)size) + 100, rank, i),
              "rank %d byte %zu was not written by its writer", rank, i);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void test_sizes(int passing, int flags) {
    for (int kind = 0; kind < SIZE_KINDS; kind++) {
        size_t bytes = size_of(kind, boot->rank);
        int fds = check_open_files(), maps = check_windows(), status;
        mpix_win *win = NULL;

        params.fd_passing = passing;
        status = mpix_win_create(boot, &params, bytes, flags, &win);
        CHECK(status == 0 && win, "sizes %d, passing %d, flags %d: %s", kind, passing, flags,
              mpix_error_tls()->text);
        if (status)
            continue;
        CHECK(win->by_socket == (passing == MPIX_FD_SOCKET), "by socket: %d with passing %d",
              win->by_socket, passing);
        CHECK(win->bytes == bytes && win->size == boot->size, "%zu bytes, %d ranks", win->bytes,
              win->size);
        CHECK((win->base == NULL) == (bytes == 0), "base %p", win->base);
        CHECK((uintptr_t)win->base % (uintptr_t)sysconf(_SC_PAGESIZE) == 0,
              "base %p is not page aligned", win->base);
        CHECK(win->peer[boot->rank] == win->base, "own peer %p, base %p", win->peer[boot->rank],
              win->base);
        for (int r = 0; r < boot->size; r++)
            CHECK(win->via[r] == (r == boot->rank ? &mpix_transport_self : &mpix_transport_mapped),
                  "rank %d via %s", r, win->via[r]->name);
        if (!(flags & MPIX_WIN_COMMIT) && bytes) {
            CHECK(mpix_win_commit(win, 0, bytes / 2) == 0, "%s", mpix_error_tls()->text);
            CHECK(mpix_win_commit(win, bytes / 2, bytes - bytes / 2) == 0, "%s",
                  mpix_error_tls()->text);
        }
        /* Only a window that may have to commit more keeps a descriptor, its own. */
        CHECK(check_open_files() == fds + (!(flags & MPIX_WIN_COMMIT) && bytes > 0),
              "%d descriptors, %d before", check_open_files(), fds);
        check_contents(win, kind);
        mpix_win_free(win);
        CHECK(check_open_files() == fds, "%d descriptors, %d before", check_open_files(), fds);
        CHECK(check_windows() == maps, "%d mappings, %d before", check_windows(), maps);
    }
}

/* Ranks whose environments differ: one that wants sockets decides for its host. */
static void test_mixed_passing(void) {
    mpix_win *win = NULL;
    int status;

    params.fd_passing = boot->rank == boot->size - 1 ? MPIX_FD_SOCKET
                        : boot->rank == 0            ? MPIX_FD_PROC
                                                     : MPIX_FD_AUTO;
    status = mpix_win_create(boot, &params, size_of(UNEVEN, boot->rank), MPIX_WIN_COMMIT, &win);
    CHECK(status == 0, "%s", mpix_error_tls()->text);
    if (!status)
        check_contents(win, UNEVEN);
    mpix_win_free(win);
    params.fd_passing = MPIX_FD_AUTO;
}

/* A rank whose window can't be had: its own error there, REMOTE naming it elsewhere, and the next
 * window works. */
static void test_no_memory(int passing) {
    int culprit = boot->size / 2, fds = check_open_files(), status;
    mpix_win *win = NULL;

    params.fd_passing = passing;
    status = mpix_win_create(boot, &params, boot->rank == culprit ? (size_t)1 << 60 : 4096,
                             MPIX_WIN_COMMIT, &win);
    CHECK(win == NULL, "a window in spite of an error");
    if (boot->rank == culprit) {
        CHECK(status == MPIX_ERRK_NO_MEM, "%s", mpix_kind_name(status));
        CHECK(strstr(mpix_error_tls()->text, "1152921504606846976"), "no size in: %s",
              mpix_error_tls()->text);
    } else {
        CHECK(status == MPIX_ERRK_REMOTE, "%s", mpix_kind_name(status));
        CHECK(mpix_error_tls()->rank == culprit, "blames rank %d", mpix_error_tls()->rank);
        CHECK(strstr(mpix_error_tls()->text, "NO_MEM"), "no kind in: %s", mpix_error_tls()->text);
        CHECK(strcmp(mpix_error_tls()->host, boot->hostnames[culprit]) == 0, "host %s",
              mpix_error_tls()->host);
    }
    CHECK(check_open_files() == fds, "%d descriptors, %d before", check_open_files(), fds);
    CHECK(mpix_win_create(boot, &params, 4096, MPIX_WIN_COMMIT, &win) == 0, "%s",
          mpix_error_tls()->text);
    mpix_win_free(win);
}

/* No descriptor is left on one rank, for its own memory (spare 0) or for its peers'
 * (spare 1, 2). */
static void test_no_descriptors(int passing, int spare) {
    int culprit = boot->size - 1, status, next = dup(0);
    mpix_win *win = NULL;
    struct rlimit old, low;

    close(next); /* the lowest free number */
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)(next + spare);
    params.fd_passing = passing;
    if (boot->rank == culprit)
        setrlimit(RLIMIT_NOFILE, &low);
    status = mpix_win_create(boot, &params, 4096, MPIX_WIN_COMMIT, &win);
    setrlimit(RLIMIT_NOFILE, &old);
    if (boot->rank == culprit) {
        CHECK(status == MPIX_ERRK_NO_MEM, "passing %d, spare %d: %s: %s", passing, spare,
              mpix_kind_name(status), mpix_error_tls()->text);
        CHECK(strstr(mpix_error_tls()->text, "RLIMIT_NOFILE"), "no remedy in: %s",
              mpix_error_tls()->text);
    } else {
        CHECK(status == MPIX_ERRK_REMOTE && mpix_error_tls()->rank == culprit, "%s, rank %d: %s",
              mpix_kind_name(status), mpix_error_tls()->rank, mpix_error_tls()->text);
    }
    if (!status)
        mpix_win_free(win);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Ranks that MPI puts on different hosts: each rank names the first it can't reach, its
 * host and why. */
static void test_other_host(void) {
    mpix_win *win = NULL;
    int last = boot->size - 1, status, other = boot->rank == last ? 0 : last;

    boot->nhosts = 2;
    boot->host_of[last] = 1;
    strcpy(boot->hostnames[last], "elsewhere");
    status = mpix_win_create(boot, &params, 4096, MPIX_WIN_COMMIT, &win);
    CHECK(status == MPIX_ERRK_UNSUPPORTED && win == NULL, "%s", mpix_kind_name(status));
    CHECK(mpix_error_tls()->rank == other, "blames rank %d", mpix_error_tls()->rank);
    CHECK(strcmp(mpix_error_tls()->host, boot->hostnames[other]) == 0, "host %s",
          mpix_error_tls()->host);
    CHECK(strstr(mpix_error_tls()->text, "elsewhere") &&
              strstr(mpix_error_tls()->text, "different hosts"),
          "%s", mpix_error_tls()->text);
    boot->nhosts = 1;
    boot->host_of[last] = 0;
    strcpy(boot->hostnames[last], boot->hostnames[0]);
}

static void test_cycles(int cycles) {
    int fds = check_open_files(), maps = check_windows();

    for (int i = 0; i < cycles; i++) {
        mpix_win *win = NULL;
        params.fd_passing = i % 2 ? MPIX_FD_SOCKET : MPIX_FD_PROC;
        CHECK(mpix_win_create(boot, &params, 8192, i % 3 ? MPIX_WIN_COMMIT : 0, &win) == 0, "%s",
              mpix_error_tls()->text);
        mpix_win_free(win);
    }
    CHECK(check_open_files() == fds, "%d descriptors, %d before", check_open_files(), fds);
    CHECK(check_windows() == maps, "%d mappings, %d before", check_windows(), maps);
}

/*
 * Without root's rights, and after a change of user, a process may not be looked at through /proc:
 * auto finds the other way. The change is undone, since MPI has files to remove.
 */
static void test_no_rights(void) {
    mpix_win *win = NULL;
    int status;

    if (geteuid() != 0 || seteuid(65534) != 0)
        return;
    params.fd_passing = MPIX_FD_AUTO;
    status = mpix_win_create(boot, &params, size_of(UNEVEN, boot->rank), MPIX_WIN_COMMIT, &win);
    CHECK(status == 0, "%s", mpix_error_tls()->text);
    if (!status) {
        check_contents(win, UNEVEN);
        CHECK(win->by_socket == (boot->size > 1), "by socket: %d", win->by_socket);
    }
    mpix_win_free(win);
    win = NULL;
    params.fd_passing = MPIX_FD_PROC;
    status = mpix_win_create(boot, &params, 4096, MPIX_WIN_COMMIT, &win);
    if (boot->size > 1) {
        CHECK(status == MPIX_ERRK_UNSUPPORTED && mpix_error_tls()->rank >= 0, "%s: %s",
              mpix_kind_name(status), mpix_error_tls()->text);
        CHECK(strstr(mpix_error_tls()->text, "/proc/"), "no path in: %s", mpix_error_tls()->text);
    } else {
        CHECK(status == 0, "%s", mpix_error_tls()->text);
    }
    mpix_win_free(win);
    CHECK(seteuid(0) == 0, "%s", strerror(errno));
}

int main(int argc, char **argv) {
    int cycles = argc > 1 ? atoi(argv[1]) : 200, failed;

    check_mpi_init(&argc, &argv);
    if (mpix_params_read(&params) || mpix_boot_create(MPI_COMM_WORLD, &boot)) {
        fprintf(stderr, "set-up: %s\n", mpix_error_tls()->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    mpix_log_configure(MPIX_LOG_NONE, ""); /* errors are expected */
    for (int passing = MPIX_FD_AUTO; passing <= MPIX_FD_SOCKET; passing++)
        for (int flags = 0; flags <= MPIX_WIN_COMMIT; flags += MPIX_WIN_COMMIT)
            test_sizes(passing, flags);
    test_mixed_passing();
    test_no_memory(MPIX_FD_AUTO);
    test_no_memory(MPIX_FD_SOCKET);
    test_no_descriptors(MPIX_FD_AUTO, 0);
    if (boot->size > 1) {
        test_no_descriptors(MPIX_FD_AUTO, 1);
        test_no_descriptors(MPIX_FD_AUTO, 2);
        test_no_descriptors(MPIX_FD_SOCKET, 1);
        test_no_descriptors(MPIX_FD_SOCKET, 2);
    }
    if (boot->size > 1)
        test_other_host();
    test_cycles(cycles);
    test_no_rights();
    failed = check_report("win_mpi");
    mpix_boot_free(boot, 0);
    check_leaks();
    MPI_Finalize();
    return failed;
}
