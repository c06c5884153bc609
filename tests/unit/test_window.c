/*
 * test_window.c - unit tests of src/mem and src/transport on one rank, and of the passing of
 * descriptors between threads that play ranks. MPI is initialized once, as a job of one rank; the
 * tests share the process.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "check_suite.h"
#include "mpi_check.h"
#include "tests/unit/window_fixture.h"
#include "transport/transport.h"

mpix_boot *boot;
mpix_params params;

static void fresh_params(void) {
    ck_assert_int_eq(mpix_params_read(&params), 0);
    mpix_log_configure(MPIX_LOG_NONE, "");
}

/* 4 KB pages of [p, p + bytes) that are in memory. */
static size_t resident(void *p, size_t bytes) {
    size_t pages = (bytes + 4095) / 4096, n = 0;
    unsigned char *vec = malloc(pages);

    ck_assert_int_eq(mincore(p, bytes, vec), 0);
    for (size_t i = 0; i < pages; i++)
        n += vec[i] & 1;
    free(vec);
    return n;
}

mpix_win *create(size_t bytes, int flags) {
    mpix_win *win = NULL;
    int kind = mpix_win_create(boot, &params, bytes, flags, &win);

    ck_assert_msg(kind == 0, "%zu bytes: %s", bytes, mpix_error_tls()->text);
    return win;
}

/* ---- own memory ------------------------------------------------------------------------------ */

START_TEST(window_commit) {
    const size_t bytes = 8 << 20;
    mpix_win *win = create(bytes, 0);
    size_t wrong = 0;

    ck_assert_uint_eq(resident(win->base, bytes), 0); /* address space only */
    ck_assert_int_eq(mpix_win_commit(win, 0, 1 << 20), 0);
    ck_assert_uint_eq(resident(win->base, bytes), 256);
    ck_assert_int_eq(mpix_win_commit(win, 1 << 20, 1), 0); /* a byte costs its page */
    ck_assert_uint_eq(resident(win->base, bytes), 257);
    memset(win->base, 7, 1 << 20);
    ck_assert_int_eq(mpix_win_commit(win, 0, bytes), 0); /* again: contents stay */
    ck_assert_uint_eq(resident(win->base, bytes), 2048);
    for (size_t i = 0; i < bytes; i++)
        wrong += ((unsigned char *)win->base)[i] != (i < 1 << 20 ? 7 : 0);
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq(mpix_win_commit(win, bytes, 0), 0);
    ck_assert_int_eq(mpix_win_commit(win, bytes, 1), MPIX_ERRK_INTERNAL);
    ck_assert_int_eq(mpix_win_commit(win, 1, bytes), MPIX_ERRK_INTERNAL);
    ck_assert_int_eq(mpix_win_commit(win, SIZE_MAX, 2), MPIX_ERRK_INTERNAL);
    mpix_win_free(win);
}
END_TEST

START_TEST(window_options) {
    for (int prefault = 0; prefault <= 1; prefault++)
        for (int huge = MPIX_HUGE_NO; huge <= MPIX_HUGE_TRY; huge++) {
            const size_t bytes = (12 << 20) + 100;
            mpix_win *win;
            size_t wrong = 0;
            params.prefault = prefault;
            params.huge_pages = huge;
            win = create(bytes, MPIX_WIN_COMMIT);
            ck_assert(win->huge == 0 || huge == MPIX_HUGE_TRY);
            if (prefault)
                ck_assert_uint_eq(resident(win->base, bytes), (bytes + 4095) / 4096);
            for (size_t i = 0; i < bytes; i += 509)
                wrong += ((char *)win->base)[i] != 0;
            ck_assert_uint_eq(wrong, 0);
            memset(win->base, 1, bytes);
            ck_assert_int_eq(win->fd, -1); /* nothing is left to commit */
            mpix_win_free(win);
        }
    mpix_win_free(NULL);
}
END_TEST

START_TEST(window_no_memory) {
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 60};
    struct rlimit old, low;
    mpix_win *win = NULL;
    uint64_t available;
    void *space;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char number[32];
        ck_assert_int_eq(mpix_win_create(boot, &params, sizes[i], 0, &win), MPIX_ERRK_NO_MEM);
        ck_assert_ptr_null(win);
        snprintf(number, sizeof number, "%zu", sizes[i]);
        ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, number));
    }
    /* More than the host has can be reserved but not committed; asking for it does not take the
     * rest of the memory away first. */
    available = mpix_mem_available();
    ck_assert_uint_gt(available, 1 << 20);
    ck_assert_int_eq(mpix_win_create(boot, &params, 4 * available, MPIX_WIN_COMMIT, &win),
                     MPIX_ERRK_NO_MEM);
    ck_assert_uint_gt(mpix_mem_available(), available / 2);
    space = mmap(NULL, 4 * available + (1 << 20), PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space != MAP_FAILED) { /* valgrind has less address space than that */
        munmap(space, 4 * available + (1 << 20));
        win = create(4 * available, 0);
        ck_assert_int_eq(mpix_win_commit(win, 0, 4 * available), MPIX_ERRK_NO_MEM);
        /* the window is as usable as before */
        ck_assert_int_eq(mpix_win_commit(win, 4096, 8192), 0);
        ((char *)win->base)[4096] = 1;
        mpix_win_free(win);
    }

    /* Address space. A sanitizer's own is gigantic: it can't live below a limit. */
#if !defined(__SANITIZE_ADDRESS__)
    getrlimit(RLIMIT_AS, &old);
    low = old;
    low.rlim_cur = (rlim_t)8 << 30;
    setrlimit(RLIMIT_AS, &low);
    win = NULL;
    ck_assert_int_eq(mpix_win_create(boot, &params, (size_t)16 << 30, 0, &win), MPIX_ERRK_NO_MEM);
    setrlimit(RLIMIT_AS, &old);
    ck_assert_int_eq(mpix_error_tls()->sys_errno, ENOMEM);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "17179869184"));
#endif
    /* The limit of file sizes must be an error and not a signal. */
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &low);
    ck_assert_int_eq(mpix_win_create(boot, &params, 2 << 20, MPIX_WIN_COMMIT, &win),
                     MPIX_ERRK_NO_MEM);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "RLIMIT_FSIZE"));
    /* Descriptors. */
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &low);
    ck_assert_int_eq(mpix_win_create(boot, &params, 4096, MPIX_WIN_COMMIT, &win), MPIX_ERRK_NO_MEM);
    setrlimit(RLIMIT_NOFILE, &old);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "RLIMIT_NOFILE"));
}
END_TEST

/* The memory can't be resized by anybody who gets the descriptor, and does not survive exec. */
START_TEST(window_sealed) {
    mpix_win *win = create(10000, 0);

    ck_assert_int_eq(fcntl(win->fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ck_assert_int_ne(ftruncate(win->fd, 0), 0);
    ck_assert_int_ne(ftruncate(win->fd, 1 << 20), 0);
    ck_assert_int_ne(fcntl(win->fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    ck_assert_int_eq(fcntl(win->fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    mpix_win_free(win);
}
END_TEST

START_TEST(window_blob) {
    mpix_win *win = create(10000, 0), *other = create(1, 0), *none = create(0, 0);
    mpix_win_blob blob, second, empty;
    const mpix_win_header *header = win->map;
    struct stat st;

    mpix_win_export(win, &params, &blob);
    ck_assert_int_eq(fstat(win->fd, &st), 0);
    ck_assert_uint_eq(blob.bytes, 10000);
    ck_assert_uint_eq(blob.reserved, win->reserved);
    ck_assert_uint_ge(blob.reserved, blob.header + blob.bytes);
    ck_assert_uint_eq((uint64_t)st.st_size, blob.reserved);
    ck_assert_uint_eq(blob.header, (uint64_t)sysconf(_SC_PAGESIZE));
    ck_assert_uint_eq(blob.ino, (uint64_t)st.st_ino);
    ck_assert_int_eq(blob.pid, getpid());
    ck_assert_int_eq(blob.fd, win->fd);
    ck_assert_int_eq(blob.local_fd, -1);
    ck_assert_int_eq(blob.addr_len, 0);
    ck_assert_uint_ne(blob.pid_ns, 0);
    ck_assert_mem_eq(header->random, blob.random, sizeof blob.random);
    ck_assert(blob.random[0] || blob.random[1]);

    mpix_win_export(other, &params, &second);
    ck_assert_mem_ne(second.random, blob.random, sizeof blob.random);
    mpix_win_export(none, &params, &empty);
    ck_assert_uint_eq(empty.bytes, 0);
    ck_assert_int_eq(empty.fd, -1);
    mpix_win_free(win);
    mpix_win_free(other);
    mpix_win_free(none);
}
END_TEST

/* ---- a peer's memory ------------------------------------------------------------------------- */

int fds(void) {
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

START_TEST(peer_proc) {
    mpix_win *win = create(10000, 0), *other = create(10000, 0);
    int before = fds(), fd;
    mpix_win_blob blob, wrong;
    char why[200] = "";

    mpix_win_export(win, &params, &blob);
    fd = mpix_win_open_proc(&blob, why, sizeof why);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
    wrong = blob;
    wrong.ino++;
    ck_assert_int_eq(mpix_win_open_proc(&wrong, why, sizeof why), -1);
    ck_assert_ptr_nonnull(strstr(why, "not the peer's memory"));
    wrong = blob;
    wrong.fd = other->fd; /* memory, but another one */
    ck_assert_int_eq(mpix_win_open_proc(&wrong, why, sizeof why), -1);
    wrong = blob;
    wrong.fd = 1023;
    ck_assert_int_eq(mpix_win_open_proc(&wrong, why, sizeof why), -1);
    ck_assert_ptr_nonnull(strstr(why, "No such file"));
    wrong = blob;
    wrong.pid = 0x7ffffff0;
    ck_assert_int_eq(mpix_win_open_proc(&wrong, why, sizeof why), -1);
    ck_assert_int_eq(fds(), before);
    mpix_win_free(win);
    mpix_win_free(other);
}
END_TEST

/* A window that takes the part of another rank's, with this process's own memory behind it. */
static void as_peer(mpix_win *win, mpix_win *fake, void **slots, size_t *lengths) {
    memset(fake, 0, sizeof *fake);
    fake->size = 1;
    fake->rank = -1;
    fake->fd = win->fd;
    fake->peer = slots;
    fake->peer_map = slots + 1;
    fake->peer_reserved = lengths;
}

START_TEST(peer_map) {
    mpix_win *win = create(10000, 0), *other = create(10000, 0), fake;
    mpix_win_blob blob, wrong;
    void *slots[2] = {NULL, NULL};
    size_t lengths[1] = {0};
    int unsealed;

    as_peer(win, &fake, slots, lengths);
    mpix_win_export(win, &params, &blob);
    blob.local_fd = win->fd;
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &blob), 0);
    ck_assert_ptr_nonnull(fake.peer[0]);
    ck_assert_ptr_ne(fake.peer[0], win->base);
    ck_assert_int_eq(mpix_win_commit(win, 0, 10000), 0);
    ((char *)fake.peer[0])[9999] = 42;
    ck_assert_int_eq(((char *)win->base)[9999], 42);
    mpix_win_unmap_peer(&fake, 0);
    ck_assert_ptr_null(fake.peer[0]);

    wrong = blob;
    wrong.local_fd = other->fd; /* right in everything but the random number */
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &wrong), MPIX_ERRK_TRANSPORT);
    ck_assert_str_eq(mpix_error_tls()->host, "here");
    wrong = blob;
    wrong.bytes++;
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &wrong), MPIX_ERRK_TRANSPORT);
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &blob), 0);
    mpix_win_unmap_peer(&fake, 0);
    wrong = blob;
    wrong.reserved += 4096; /* longer than the memory is */
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &wrong), MPIX_ERRK_TRANSPORT);
    unsealed = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(unsealed, (off_t)blob.reserved), 0);
    wrong = blob;
    wrong.local_fd = unsealed;
    ck_assert_int_eq(mpix_win_map_fd(&fake, &params, 0, "here", &wrong), MPIX_ERRK_TRANSPORT);
    close(unsealed);
    ck_assert_ptr_null(fake.peer_map[0]);
    mpix_win_free(win);
    mpix_win_free(other);
}
END_TEST

/* ---- transports ------------------------------------------------------------------------------ */

START_TEST(transport_choice) {
    int hosts[3] = {0, 0, 1};
    char names[3][64] = {"a", "a", "b"}, why[200];
    mpix_boot three = {.rank = 1, .size = 3, .nhosts = 2, .host_of = hosts, .hostnames = names};

    ck_assert_ptr_eq(mpix_transport_choose(&three, 1, why, sizeof why), &mpix_transport_self);
    ck_assert_str_eq(why, "");
    ck_assert_ptr_eq(mpix_transport_choose(&three, 0, why, sizeof why), &mpix_transport_mapped);
    ck_assert_ptr_null(mpix_transport_choose(&three, 2, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "self: another rank"));
    ck_assert_ptr_nonnull(strstr(why, "shm: they are on different hosts"));
    ck_assert_ptr_null(mpix_transport_choose(&three, 2, why, 10));
    ck_assert_uint_eq(strlen(why), 9);
    ck_assert_str_eq(mpix_reach_name(mpix_transport_mapped.reach), "mapped");
    ck_assert_str_eq(mpix_reach_name(mpix_transport_self.reach), "self");
    ck_assert_str_eq(mpix_reach_name(MPIX_REACH_NONE), "none");
}
END_TEST

int main(int argc, char **argv) {
    Suite *suite = suite_create("window");
    TCase *own = tcase_create("own"), *peer = tcase_create("peer"), *sockets = window_socket_case(),
          *other = tcase_create("other");
    TCase *cases[] = {own, peer, sockets, other};
    int failed;

    check_mpi_init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot))
        MPI_Abort(MPI_COMM_WORLD, 1);
    tcase_add_test(own, window_commit);
    tcase_add_test(own, window_options);
    tcase_add_test(own, window_no_memory);
    tcase_add_test(own, window_sealed);
    tcase_add_test(own, window_blob);
    tcase_add_test(peer, peer_proc);
    tcase_add_test(peer, peer_map);
    tcase_add_test(other, transport_choice);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tcase_add_checked_fixture(cases[i], fresh_params, NULL);
        suite_add_tcase(suite, cases[i]);
    }
    failed = check_suite_run(suite);
    mpix_boot_free(boot, 0);
    check_leaks();
    MPI_Finalize();
    return failed != 0;
}
