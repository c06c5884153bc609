# mpix_check.m4 - Check: the unit tests.
AC_DEFUN([MPIX_CHECK_CHECK], [
MPIX_DEPENDENCY([CHECK], [check], [check], [-lcheck "-lcheck_pic -pthread -lrt -lm -lsubunit" "-lcheck -pthread -lrt -lm"],
                [[#include <check.h>]], [[return srunner_create(suite_create("x")) == NULL;]], [unit tests])
])
