# Unit tests of the transport verbs, with mock_verbs.c in the place of libibverbs.
if HAVE_VERBS
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_verbs
TESTS += tests/unit/test_verbs
UNIT_TESTS += tests/unit/test_verbs
tests_unit_test_verbs_SOURCES = \
	tests/unit/mock_verbs.c \
	tests/unit/mock_verbs.h \
	tests/unit/mock_verbs_data.c \
	tests/unit/mock_verbs_internal.h \
	tests/unit/test_verbs.c \
	tests/unit/test_verbs_connect.c \
	tests/unit/test_verbs_device.c \
	tests/unit/test_verbs_event.c \
	tests/unit/test_verbs_mem.c \
	tests/unit/test_verbs_poll.c \
	tests/unit/test_verbs_post.c \
	tests/unit/verbs_fixture.h
tests_unit_test_verbs_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_verbs_LDADD = $(UNIT_LIBS)
endif
endif
