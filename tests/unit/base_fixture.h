/* base_fixture.h - what the files of test_base share: a log in a file of its own. */
#ifndef MPIX_TESTS_BASE_FIXTURE_H
#define MPIX_TESTS_BASE_FIXTURE_H
#include <check.h>

extern char log_name[];

const char *read_log(void);
int count_lines(const char *text);

TCase *base_status_case(void);
TCase *base_param_case(void);
TCase *base_live_case(void);
TCase *base_topo_case(void);
#endif
