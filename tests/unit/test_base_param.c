/* test_base_param.c - unit tests of parameters. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "base/status.h"
#include "tests/unit/base_fixture.h"

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

/* A parameter, a value, how it is printed. */
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
/* A parameter, a value that it does not take. */
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

START_TEST(param_values) {
    mpix_params params;

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

TCase *base_param_case(void) {
    TCase *c = tcase_create("params");

    tcase_add_test(c, param_defaults);
    tcase_add_test(c, param_values);
    tcase_add_test(c, param_strings);
    tcase_add_test(c, param_environment);
    return c;
}
