# Unit tests of kernels/host/.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_rows
TESTS += tests/unit/test_rows
UNIT_TESTS += tests/unit/test_rows
tests_unit_test_rows_SOURCES = tests/unit/rows_ref.h tests/unit/rows_ref.c tests/unit/test_rows.c \
    tests/unit/test_rows_convert.c tests/unit/test_rows_copy.c tests/unit/test_rows_quant.c \
    tests/unit/test_rows_sum.c
tests_unit_test_rows_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_rows_LDADD = $(UNIT_LIBS) -lm
endif
