/* test_base_status.c - unit tests of errors, of the log and of the clock. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "boot/boot.h"
#include "mpix_ep.h"
#include "mpix_p2p.h"
#include "tests/unit/base_fixture.h"

START_TEST(error_text) {
    MPIX_Error *err = mpix_error_tls();

    ck_assert_int_eq(mpix_fail(MPIX_ERRK_ARG, "routing.topk", "topk is %d, at most %d", 9, 8),
                     MPIX_ERRK_ARG);
    ck_assert_int_eq(err->kind, MPIX_ERRK_ARG);
    ck_assert_str_eq(err->arg, "routing.topk");
    ck_assert_str_eq(err->text, "topk is 9, at most 8");
    ck_assert_str_eq(err->host, "");
    ck_assert_int_eq(err->rank, -1);
    ck_assert_int_eq(err->sys_errno, 0);

    ck_assert_int_eq(mpix_fail_peer(MPIX_ERRK_TIMEOUT, 7, "node3", "no answer"), MPIX_ERRK_TIMEOUT);
    ck_assert_int_eq(err->rank, 7);
    ck_assert_str_eq(err->host, "node3");
    ck_assert_str_eq(err->arg, "");
    ck_assert_int_eq(mpix_fail_peer(MPIX_ERRK_PEER, 8, NULL, "dead"), MPIX_ERRK_PEER);
    ck_assert_str_eq(err->host, "");

    errno = 5;
    ck_assert_int_eq(mpix_fail_sys(MPIX_ERRK_TRANSPORT, ENOSPC, "write of %d bytes", 3),
                     MPIX_ERRK_TRANSPORT);
    ck_assert_int_eq(err->sys_errno, ENOSPC);
    ck_assert_int_eq(err->rank, -1);
    ck_assert_str_eq(err->text, "write of 3 bytes: No space left on device");
    ck_assert_int_eq(errno, 5);
}
END_TEST

START_TEST(error_long) {
    MPIX_Error *err = mpix_error_tls();
    char text[1000], arg[100];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    memset(arg, 'a', sizeof arg);
    arg[sizeof arg - 1] = '\0';
    mpix_fail(MPIX_ERRK_ARG, arg, "%s", text);
    ck_assert_uint_eq(strlen(err->text), sizeof err->text - 1);
    ck_assert_uint_eq(strlen(err->arg), sizeof err->arg - 1);
    /* An error that quotes the one before. */
    mpix_fail(MPIX_ERRK_ARG, err->arg, "before: %s", err->text);
    ck_assert_int_eq(strncmp(err->text, "before: xxx", 11), 0);
    mpix_fail_sys(MPIX_ERRK_NO_MEM, ENOMEM, "%s", text);
    ck_assert_uint_eq(strlen(err->text), sizeof err->text - 1);
}
END_TEST

static void *other_thread(void *arg) {
    (void)arg;
    ck_assert_int_eq(mpix_error_tls()->kind, 0);
    ck_assert_int_eq(mpix_error_tls()->rank, -1);
    mpix_fail(MPIX_ERRK_INTERNAL, NULL, "elsewhere");
    return NULL;
}

START_TEST(error_threads) {
    pthread_t thread;

    mpix_fail(MPIX_ERRK_ARG, "here", "here");
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_str_eq(mpix_error_tls()->text, "here");
}
END_TEST

START_TEST(error_api) {
    MPIX_Error err;
    int kind = 99, major = -1, minor = -1, patch = -1;
    char version[64];

    MPIX_INIT(&err);
    err.kind = 42;
    ck_assert_int_eq(MPIX_Error_last(&err), MPI_SUCCESS);
    ck_assert_int_eq(err.kind, 0);
    ck_assert_int_eq(err.rank, -1);
    ck_assert_uint_eq(err.struct_size, sizeof err);
    mpix_fail(MPIX_ERRK_ARG, "x", "text");
    ck_assert_int_eq(MPIX_Error_last(&err), MPI_SUCCESS);
    ck_assert_int_eq(err.kind, MPIX_ERRK_ARG);
    ck_assert_str_eq(err.text, "text");
    err.struct_size = 8;
    ck_assert_int_eq(MPIX_Error_last(&err), MPI_ERR_ARG);
    ck_assert_int_eq(MPIX_Error_last(NULL), MPI_ERR_ARG);

    ck_assert_int_eq(MPIX_Error_kind(MPI_SUCCESS, &kind), MPI_SUCCESS);
    ck_assert_int_eq(kind, 0);
    ck_assert_int_eq(MPIX_Error_kind(MPI_ERR_COMM, &kind), MPI_SUCCESS);
    ck_assert_int_eq(kind, -1);
    ck_assert_int_eq(MPIX_Error_kind(MPI_ERR_COMM, NULL), MPI_ERR_ARG);

    ck_assert_int_eq(MPIX_Ep_get_version(&major, &minor, &patch), MPI_SUCCESS);
    snprintf(version, sizeof version, "%d.%d.%d", major, minor, patch);
    ck_assert_int_eq(strncmp(version, PACKAGE_VERSION, strlen(version)), 0);
    ck_assert_int_eq(MPIX_Ep_get_version(NULL, NULL, NULL), MPI_SUCCESS);
}
END_TEST

/* Before MPI_Init a call returns its error without calling MPI. */
START_TEST(error_before_init) {
    MPIX_P2p p2p = (MPIX_P2p)&p2p;

    ck_assert_int_ne(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p), MPI_SUCCESS);
    ck_assert_ptr_eq(p2p, &p2p);
    ck_assert_int_eq(mpix_error_tls()->kind, MPIX_ERRK_ARG);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "MPI_Init"));
    ck_assert_int_ne(PMPIX_P2p_put(NULL, 0), MPI_SUCCESS);
    ck_assert_str_eq(mpix_error_tls()->arg, "n");
    ck_assert_int_ne(MPIX_P2p_get_async_error(NULL, NULL), MPI_SUCCESS);
    ck_assert_str_eq(mpix_error_tls()->arg, "p2p");
    ck_assert_int_eq(mpix_boot_raise(NULL, 0), MPI_SUCCESS);
}
END_TEST

START_TEST(kind_names) {
    ck_assert_str_eq(mpix_kind_name(0), "SUCCESS");
    ck_assert_str_eq(mpix_kind_name(MPIX_ERRK_NO_MEM), "NO_MEM");
    ck_assert_str_eq(mpix_kind_name(MPIX_ERRK_INTERNAL), "INTERNAL");
    ck_assert_str_eq(mpix_kind_name(-1), "unknown");
    ck_assert_str_eq(mpix_kind_name(MPIX_ERRK_INTERNAL + 1), "unknown");
}
END_TEST

START_TEST(log_lines) {
    char expect[256], host[64] = "", longest[3000];

    gethostname(host, sizeof host - 1);
    errno = 7;
    mpix_log(MPIX_LOG_WARN, "seen %d", 1);
    ck_assert_int_eq(errno, 7);
    mpix_log(MPIX_LOG_INFO, "not seen");
    mpix_log_set_rank(3);
    mpix_log(MPIX_LOG_ERROR, "bad");
    snprintf(expect, sizeof expect, "[mpix %s:%ld -] warning: seen 1\n[mpix %s:%ld 3] error: bad\n",
             host, (long)getpid(), host, (long)getpid());
    ck_assert_str_eq(read_log(), expect);
    ck_assert(!mpix_log_enabled(MPIX_LOG_INFO));

    mpix_log_configure(MPIX_LOG_TRACE, log_name);
    mpix_log(MPIX_LOG_TRACE, "fine");
    ck_assert_ptr_nonnull(strstr(read_log(), "trace: fine\n"));
    memset(longest, 'y', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    mpix_log(MPIX_LOG_WARN, "%s", longest);
    ck_assert_int_eq(count_lines(read_log()), 4);

    mpix_log_configure(MPIX_LOG_NONE, log_name);
    mpix_log(MPIX_LOG_ERROR, "silent");
    ck_assert_int_eq(count_lines(read_log()), 4);
}
END_TEST

/* An error is one line; one that another rank has logged already is none. */
START_TEST(log_errors) {
    mpix_fail(MPIX_ERRK_ARG, "hidden", "hidden is 0");
    ck_assert_ptr_nonnull(strstr(read_log(), "error: ARG: hidden is 0\n"));
    mpix_fail(MPIX_ERRK_ARG, "in.x", "NULL");
    ck_assert_ptr_nonnull(strstr(read_log(), "error: ARG: in.x: NULL\n"));
    mpix_fail_peer(MPIX_ERRK_TIMEOUT, 3, "node1", "no answer");
    ck_assert_ptr_nonnull(strstr(read_log(), "error: TIMEOUT: rank 3 (node1): no answer\n"));
    mpix_fail_peer(MPIX_ERRK_REMOTE, 3, "node1", "rank 3 failed");
    ck_assert_int_eq(count_lines(read_log()), 3);
}
END_TEST

START_TEST(log_file_names) {
    char pattern[128], expect[128], host[64] = "";

    gethostname(host, sizeof host - 1);
    snprintf(pattern, sizeof pattern, "%s.%%h.%%p", log_name);
    snprintf(expect, sizeof expect, "%s.%s.%ld", log_name, host, (long)getpid());
    mpix_log_configure(MPIX_LOG_WARN, pattern);
    mpix_log(MPIX_LOG_WARN, "there");
    ck_assert_int_eq(access(expect, R_OK), 0);
    unlink(expect);
    /* A file that can't be opened: the log stays where it was, and says so. */
    mpix_log_configure(MPIX_LOG_WARN, log_name);
    mpix_log_configure(MPIX_LOG_WARN, "/nonexistent/x");
    ck_assert_ptr_nonnull(strstr(read_log(), "/nonexistent/x"));
}
END_TEST

START_TEST(clock_moves) {
    uint64_t a = mpix_clock_ns(), b;

    usleep(2000);
    b = mpix_clock_ns();
    ck_assert_uint_ge(b - a, 2000000);
    ck_assert_uint_lt(b - a, 10000000000u);
}
END_TEST

TCase *base_status_case(void) {
    TCase *c = tcase_create("errors");

    tcase_add_test(c, error_text);
    tcase_add_test(c, error_long);
    tcase_add_test(c, error_threads);
    tcase_add_test(c, error_api);
    tcase_add_test(c, error_before_init);
    tcase_add_test(c, kind_names);
    tcase_add_test(c, log_lines);
    tcase_add_test(c, log_errors);
    tcase_add_test(c, log_file_names);
    tcase_add_test(c, clock_moves);
    return c;
}
