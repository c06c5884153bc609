# Unit tests of p2p/, on one rank.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_p2p
TESTS += tests/unit/test_p2p
# Not in UNIT_TESTS: Open MPI's initialization does not come to an end under valgrind. The address sanitizer sees it.
tests_unit_test_p2p_SOURCES = tests/unit/test_p2p.c tests/unit/check_suite.h tests/unit/mpi_check.h
tests_unit_test_p2p_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_p2p_LDADD = $(UNIT_LIBS)
endif
