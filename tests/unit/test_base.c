/*
 * test_base.c - unit tests of src/base and of the set of live objects. No MPI is initialized here:
 * everything must work without.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/status.h"
#include "base/topo.h"
#include "boot/boot.h"
#include "mpix_ep.h"
#include "mpix_p2p.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static char log_name[] = "/tmp/mpix-test-XXXXXX";

/* Each test runs in a process of its own, with the log in a file of its own. */
static void start_log(void) {
    int fd = mkstemp(log_name);

    ck_assert_int_ge(fd, 0);
    close(fd);
    mpix_log_configure(MPIX_LOG_WARN, log_name);
}

static void stop_log(void) { unlink(log_name); }

static const char *read_log(void) {
    static char text[8192];
    int fd = open(log_name, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static int count_lines(const char *text) {
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static const mpix_param_desc *find(const char *name) {
    int n;
    const mpix_param_desc *table = mpix_param_table(&n);

    for (int i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    ck_abort_msg("no parameter %s", name);
    return NULL;
}

static const char *printed(const mpix_params *params, const char *name) {
    static char buf[512];

    mpix_params_print(params, find(name), buf, sizeof buf);
    return buf;
}

/* ---- errors and log -------------------------------------------------------------------------- */

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

/* ---- parameters ------------------------------------------------------------------------------ */

START_TEST(param_defaults) {
    mpix_params params;
    int n;
    const mpix_param_desc *table = mpix_param_table(&n);

    clearenv();
    ck_assert_int_eq(mpix_params_read(&params), 0);
    ck_assert_int_ge(n, 12);
    ck_assert_int_eq(params.log_level, MPIX_LOG_WARN);
    ck_assert_str_eq(params.log_file, "");
    ck_assert(params.timeout == 300.0);
    ck_assert_int_eq(params.progress, MPIX_PROGRESS_CALLER);
    ck_assert_int_eq(params.stores, MPIX_STORES_AUTO);
    ck_assert_uint_eq(params.stream_bytes, 0);
    ck_assert_int_eq(params.isa, MPIX_ISA_AUTO);
    ck_assert_int_eq(params.huge_pages, MPIX_HUGE_TRY);
    ck_assert_int_eq(params.fd_passing, MPIX_FD_AUTO);
    ck_assert_int_eq(params.max_handles, 64);
    ck_assert_int_eq(params.spin_us, -1);
    ck_assert_int_eq(params.prefault, 1);
    ck_assert_str_eq(params.transport, "auto");
    ck_assert_int_eq(params.proxy, MPIX_PROXY_AUTO);
    ck_assert_int_eq(params.signal, MPIX_SIGNAL_AUTO);
    ck_assert_int_eq(params.reach, MPIX_REACH_AUTO);
    ck_assert_int_eq(params.lanes, 1);
    ck_assert_uint_eq(params.chunk_bytes, 256 * 1024);
    ck_assert_uint_eq(params.credit_bytes, 16 << 20);
    for (int i = 0; i < n; i++) {
        /* What is printed is what the default says, and it is taken back. */
        ck_assert_str_eq(printed(&params, table[i].name), table[i].dflt);
        ck_assert_int_eq(mpix_params_set(&params, table[i].name, table[i].dflt), 0);
        ck_assert_uint_gt(strlen(table[i].help), 20);
        ck_assert_uint_lt(table[i].offset, sizeof params);
        /* a field of its own, in the order of the table */
        ck_assert(i == 0 || table[i].offset > table[i - 1].offset);
        ck_assert_ptr_eq(find(table[i].name), &table[i]); /* no name twice */
    }
}
END_TEST

START_TEST(param_values) {
    mpix_params params;
    static const char *const good[][3] = {
        {"log_level", "none", "none"},
        {"log_level", "TRACE", "trace"},
        {"timeout", "0.25", "0.25"},
        {"timeout", "1e3", "1000"},
        {"timeout", "1e18", "1e+18"},
        {"timeout", "inf", "inf"},
        {"progress", "thread", "thread"},
        {"stores", "streaming", "streaming"},
        {"caches", "apart", "apart"},
        {"stream_bytes", "7", "7"},
        {"stream_bytes", "3k", "3072"},
        {"stream_bytes", "2M", "2097152"},
        {"stream_bytes", "1g", "1073741824"},
        {"isa", "avx512", "avx512"},
        {"huge_pages", "no", "no"},
        {"fd_passing", "socket", "socket"},
        {"max_handles", "1", "1"},
        {"max_handles", "4096", "4096"},
        {"spin_us", "-1", "-1"},
        {"spin_us", "1000000", "1000000"},
        {"prefault", "no", "no"},
        {"transport", "chaos:verbs", "chaos:verbs"},
        {"proxy", "thread", "thread"},
        {"signal", "counted", "counted"},
        {"reach", "proxied", "proxied"},
        {"lanes", "16", "16"},
    };
    static const char *const bad[][2] = {
        {"log_level", "loud"},
        {"log_level", ""},
        {"log_level", "war"},
        {"log_level", "none|error"},
        {"timeout", "0"},
        {"timeout", "-1"},
        {"timeout", "-inf"},
        {"net_timeout", "inf"},
        {"net_timeout", "1e10"},
        {"timeout", "nan"},
        {"timeout", "5 s"},
        {"timeout", ""},
        {"stream_bytes", "-1"},
        {"stream_bytes", "1kb"},
        {"stream_bytes", "k"},
        {"stream_bytes", "1.5m"},
        {"stream_bytes", ""},
        {"stream_bytes", " 1"},
        {"max_handles", "0"},
        {"max_handles", "4097"},
        {"max_handles", "4x"},
        {"max_handles", ""},
        {"spin_us", "-2"},
        {"spin_us", "1000001"},
        {"spin_us", "99999999999999999999"},
        {"prefault", "1"},
        {"isa", "sse"},
        {"stream_bytes", "99999999999999999999"},
        {"stream_bytes", "18446744073709551615g"},
    };

    clearenv();
    ck_assert_int_eq(mpix_params_read(&params), 0);
    strcpy(params.log_file, log_name);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_int_eq(mpix_params_set(&params, good[i][0], good[i][1]), 0);
        ck_assert_str_eq(printed(&params, good[i][0]), good[i][2]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mpix_params before = params;
        char key[64], quoted[80];

        ck_assert_msg(mpix_params_set(&params, bad[i][0], bad[i][1]) == MPIX_ERRK_ARG,
                      "%s=%s was taken", bad[i][0], bad[i][1]);
        ck_assert_mem_eq(&params, &before, sizeof params);
        snprintf(key, sizeof key, "mpix_ep_%s", bad[i][0]);
        snprintf(quoted, sizeof quoted, "\"%s\"", bad[i][1]);
        ck_assert_str_eq(mpix_error_tls()->arg, key);
        ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, key));
        ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, quoted));
        ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, find(bad[i][0])->values));
    }
    ck_assert_int_eq(mpix_params_set(&params, "stream_byte", "1"), MPIX_ERRK_ARG);
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "mpix_ep_stream_byte"));
}
END_TEST

START_TEST(param_strings) {
    mpix_params params;
    char name[300];

    clearenv();
    ck_assert_int_eq(mpix_params_read(&params), 0);
    mpix_log_configure(MPIX_LOG_NONE, "");
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    ck_assert_int_eq(mpix_params_set(&params, "log_file", name), MPIX_ERRK_ARG);
    ck_assert_str_eq(params.log_file, "");
    /* Takes effect at once: the log is the process's. */
    ck_assert_int_eq(mpix_params_set(&params, "log_file", log_name), 0);
    ck_assert_int_eq(mpix_params_set(&params, "log_level", "info"), 0);
    mpix_log(MPIX_LOG_INFO, "set by a parameter");
    ck_assert_ptr_nonnull(strstr(read_log(), "set by a parameter"));
}
END_TEST

START_TEST(param_environment) {
    mpix_params params, before;

    clearenv();
    setenv("MPIX_EP_TIMEOUT", "12.5", 1);
    setenv("MPIX_EP_STREAM_BYTES", "4m", 1);
    setenv("MPIX_EP_LOG_FILE", log_name, 1);
    setenv("MPIX_EP_TIMEOOT", "1", 1);
    setenv("MPIX_EP_timeout", "2", 1); /* variables are written in capitals */
    setenv("MPIX_EPSILON", "1", 1);    /* not ours */
    ck_assert_int_eq(mpix_params_read(&params), 0);
    ck_assert(params.timeout == 12.5);
    ck_assert_uint_eq(params.stream_bytes, 4 << 20);
    ck_assert_ptr_nonnull(strstr(read_log(), "MPIX_EP_TIMEOOT is not a parameter"));
    ck_assert_ptr_nonnull(strstr(read_log(), "MPIX_EP_timeout is not a parameter"));
    ck_assert_ptr_null(strstr(read_log(), "MPIX_EPSILON"));
    ck_assert_int_eq(count_lines(read_log()), 2);
    ck_assert_int_eq(mpix_params_read(&params), 0);
    ck_assert_int_eq(count_lines(read_log()), 2); /* once per process */

    before = params;
    setenv("MPIX_EP_MAX_HANDLES", "many", 1);
    ck_assert_int_eq(mpix_params_read(&params), MPIX_ERRK_ARG);
    ck_assert_mem_eq(&params, &before, sizeof params);
    ck_assert_str_eq(mpix_error_tls()->arg, "MPIX_EP_MAX_HANDLES");
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "\"many\""));
    ck_assert_ptr_nonnull(strstr(mpix_error_tls()->text, "1..4096"));
}
END_TEST

/* ---- live objects ---------------------------------------------------------------------------- */

START_TEST(live_basic) {
    mpix_live entries[2];
    int a = 0, b = 0;

    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 0);
    mpix_live_remove(&a); /* nothing there */
    mpix_live_add(&entries[0], &a, MPIX_LIVE_EP);
    mpix_live_add(&entries[1], &b, MPIX_LIVE_XFER);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 1);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_HANDLE), 0);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 1);
    ck_assert_int_eq(mpix_live_check(NULL, MPIX_LIVE_EP), 0);
    mpix_live_remove(&a);
    ck_assert_int_eq(mpix_live_check(&a, MPIX_LIVE_EP), 0);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 1);
    mpix_live_remove(&b);
    ck_assert_int_eq(mpix_live_check(&b, MPIX_LIVE_XFER), 0);
}
END_TEST

/* Random additions and removals against a plain array; addresses lie close together, so that
 * buckets are shared. */
START_TEST(live_random) {
    enum { N = 3000 };
    static char objects[16 * N];
    static mpix_live entries[N];
    static int tags[N];
    unsigned seed = 1;

    for (int step = 0; step < 60000; step++) {
        int i = rand_r(&seed) % N, tag = 1 + rand_r(&seed) % 6;
        /* First it grows, then it shrinks. */
        if (rand_r(&seed) % 4 < (step < 30000 ? 3 : 1)) {
            mpix_live_add(&entries[i], objects + 16 * i, tag);
            tags[i] = tag;
        } else {
            mpix_live_remove(objects + 16 * i);
            tags[i] = 0;
        }
        if (step % 500 == 0) {
            int wrong = 0;
            for (int k = 0; k < N; k++)
                for (int t = 1; t <= 6; t++)
                    wrong += mpix_live_check(objects + 16 * k, t) != (tags[k] == t);
            ck_assert_int_eq(wrong, 0);
        }
    }
    for (int k = 0; k < N; k++)
        mpix_live_remove(objects + 16 * k);
}
END_TEST

static void *live_worker(void *arg) {
    char *mine = arg;
    mpix_live entries[50];

    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 50; i++)
            mpix_live_add(&entries[i], mine + 16 * i, MPIX_LIVE_XFER);
        for (int i = 0; i < 50; i++)
            if (!mpix_live_check(mine + 16 * i, MPIX_LIVE_XFER))
                return mine;
        for (int i = 0; i < 50; i++)
            mpix_live_remove(mine + 16 * i);
    }
    return NULL;
}

START_TEST(live_threads) {
    static char objects[4][16 * 50];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, live_worker, objects[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_null(result);
    }
}
END_TEST

/* ---- topology -------------------------------------------------------------------------------- */

START_TEST(topo_sane) {
    const mpix_topo *topo = mpix_topo_get();
    cpu_set_t set;

    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    ck_assert_int_ge(topo->pus, 1);
    ck_assert_int_le(topo->pus, CPU_COUNT(&set));
    ck_assert_int_ge(topo->pus_host, topo->pus);
    ck_assert_int_ge(topo->numa_nodes, 1);
    ck_assert_int_ge(topo->numa_local, -1);
    ck_assert_int_ge(topo->l3_pus, 1);
    if (topo->l2_bytes)
        ck_assert_uint_ge(topo->l2_bytes, 16 << 10);
    if (topo->l3_bytes)
        ck_assert_uint_ge(topo->l3_bytes, topo->l2_bytes);
#ifdef HAVE_HWLOC
    ck_assert_int_eq(strncmp(topo->source, "hwloc ", 6), 0);
#else
    ck_assert_str_eq(topo->source, "sysconf");
#endif
    ck_assert_ptr_eq(mpix_topo_get(), topo);
}
END_TEST

static void *bind_helper(void *arg) {
    int *pus = arg;
    cpu_set_t set;

    pus[1] = mpix_topo_bind_helper(pus[0], pus[4]);
    sched_getaffinity(0, sizeof set, &set);
    pus[2] = CPU_COUNT(&set);
    pus[3] = pus[1] >= 0 && CPU_ISSET(pus[1], &set);
    return NULL;
}

START_TEST(topo_bind) {
    int pus[5] = {sched_getcpu()}, unknown[5] = {-1}, others[5] = {pus[0]}, all;
    pthread_t thread;
    cpu_set_t set;

    sched_getaffinity(0, sizeof set, &set);
    all = CPU_COUNT(&set);
    ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, pus), 0);
    pthread_join(thread, NULL);
    if (all > 1) {
        ck_assert_int_ge(pus[1], 0);
        ck_assert_int_ne(pus[1], pus[0]);
        ck_assert_int_eq(pus[2], 1);
        ck_assert_int_eq(pus[3], 1);
    } else {
        ck_assert_int_eq(pus[1], -1);
    }
    /* each helper another one, until all but the main thread's are used */
    for (others[4] = 1; others[4] < all; others[4]++) {
        ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, others), 0);
        pthread_join(thread, NULL);
        ck_assert_int_ne(others[1], pus[0]);
        ck_assert_int_eq(others[1] == pus[1], others[4] == all - 1);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, bind_helper, unknown), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(unknown[1], -1);
    ck_assert_int_eq(unknown[2], all);
    /* A process with a single PU: nothing to choose from. */
    CPU_ZERO(&set);
    CPU_SET(pus[0], &set);
    ck_assert_int_eq(sched_setaffinity(0, sizeof set, &set), 0);
    ck_assert_int_eq(mpix_topo_bind_helper(pus[0], 0), -1);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("base");
    TCase *errors = tcase_create("errors"), *params = tcase_create("params"),
          *live = tcase_create("live"), *topo = tcase_create("topo");
    TCase *cases[] = {errors, params, live, topo};
    SRunner *runner;
    int failed;

    tcase_add_test(errors, error_text);
    tcase_add_test(errors, error_long);
    tcase_add_test(errors, error_threads);
    tcase_add_test(errors, error_api);
    tcase_add_test(errors, error_before_init);
    tcase_add_test(errors, kind_names);
    tcase_add_test(errors, log_lines);
    tcase_add_test(errors, log_errors);
    tcase_add_test(errors, log_file_names);
    tcase_add_test(errors, clock_moves);
    tcase_add_test(params, param_defaults);
    tcase_add_test(params, param_values);
    tcase_add_test(params, param_strings);
    tcase_add_test(params, param_environment);
    tcase_add_test(live, live_basic);
    tcase_add_test(live, live_random);
    tcase_add_test(live, live_threads);
    tcase_add_test(topo, topo_sane);
    tcase_add_test(topo, topo_bind);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tcase_add_checked_fixture(cases[i], start_log, stop_log);
        suite_add_tcase(suite, cases[i]);
    }
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
