/* window_fixture.h - what the files of test_window share: a job of one rank. */
#ifndef MPIX_TESTS_WINDOW_FIXTURE_H
#define MPIX_TESTS_WINDOW_FIXTURE_H
#include <check.h>

#include "mem/mem_internal.h"

extern mpix_boot *boot;
extern mpix_params params;

mpix_win *create(size_t bytes, int flags);
int fds(void); /* descriptors that are open */

TCase *window_socket_case(void);
#endif
