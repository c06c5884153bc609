/* test_rows.c - unit tests of the row kernels (kernels/host/). */
#include "config.h"

#include <stdlib.h>

#include "rows_ref.h"

int main(void) {
    Suite *suite = suite_create("rows");
    suite_add_tcase(suite, rows_copy_tests());
    suite_add_tcase(suite, rows_convert_tests());
    suite_add_tcase(suite, rows_quant_tests());
    suite_add_tcase(suite, rows_sum_tests());
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
