# mpix_jansson.m4 - jansson: the benchmark's JSON files.
AC_DEFUN([MPIX_CHECK_JANSSON], [
MPIX_DEPENDENCY([JANSSON], [jansson], [jansson], [-ljansson], [[#include <jansson.h>]],
                [[json_t *o = json_object(); return o == NULL;]], [JSON output of the benchmark])
])
