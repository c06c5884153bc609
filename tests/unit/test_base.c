/*
 * test_base.c - unit tests of src/base and of the set of live objects. No MPI is initialized here:
 * everything must work without.
 */
#include "config.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/base_fixture.h"

char log_name[] = "/tmp/mpix-test-XXXXXX";

/* Each test runs in a process of its own, with the log in a file of its own. */
static void start_log(void) {
    int fd = mkstemp(log_name);

    ck_assert_int_ge(fd, 0);
    close(fd);
    mpix_log_configure(MPIX_LOG_WARN, log_name);
}

static void stop_log(void) { unlink(log_name); }

const char *read_log(void) {
    static char text[8192];
    int fd = open(log_name, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

int count_lines(const char *text) {
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

int main(void) {
    Suite *suite = suite_create("base");
    TCase *cases[] = {base_status_case(), base_param_case(), base_live_case(), base_topo_case()};
    SRunner *runner;
    int failed;

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
