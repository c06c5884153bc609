/* check_suite.h - runs a suite of Check in a process that uses MPI, which does not
 * survive a fork. */
#ifndef MPIX_TESTS_CHECK_SUITE_H
#define MPIX_TESTS_CHECK_SUITE_H
#include <check.h>

/* How many tests failed. Frees the suite. */
static inline int check_suite_run(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
#endif
