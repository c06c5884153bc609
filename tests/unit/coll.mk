# Unit tests of coll/ and of waiting.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_coll
TESTS += tests/unit/test_coll
UNIT_TESTS += tests/unit/test_coll
tests_unit_test_coll_SOURCES = tests/unit/test_coll.c
tests_unit_test_coll_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_coll_LDADD = $(UNIT_LIBS)
endif
