# Unit tests of p2p/, on one rank.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_p2p
TESTS += tests/unit/test_p2p
UNIT_TESTS += tests/unit/test_p2p
tests_unit_test_p2p_SOURCES = tests/unit/test_p2p.c tests/unit/check_suite.h tests/unit/mpi_check.h
tests_unit_test_p2p_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_p2p_LDADD = $(UNIT_LIBS)
endif
