# Unit tests of src/ and p2p/: with Check on one rank, and two programs that need ranks.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_base tests/unit/test_window
TESTS += tests/unit/test_base tests/unit/test_window
UNIT_TESTS += tests/unit/test_base tests/unit/test_window
tests_unit_test_base_SOURCES = \
	tests/unit/test_base.c tests/unit/test_base_live.c tests/unit/test_base_param.c \
	tests/unit/test_base_status.c tests/unit/test_base_topo.c tests/unit/base_fixture.h
tests_unit_test_base_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_base_LDADD = $(UNIT_LIBS)
tests_unit_test_window_SOURCES = \
	tests/unit/test_window.c tests/unit/test_window_socket.c tests/unit/window_fixture.h \
	tests/unit/check_suite.h tests/unit/mpi_check.h
tests_unit_test_window_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_window_LDADD = $(UNIT_LIBS)
endif

check_PROGRAMS += tests/unit/boot_mpi tests/unit/win_mpi
TESTS += tests/unit/base_mpi.sh
EXTRA_DIST += tests/unit/base_mpi.sh
tests_unit_boot_mpi_SOURCES = tests/unit/boot_mpi.c tests/unit/mpi_check.h
tests_unit_boot_mpi_LDADD = libmpixep_core.la
tests_unit_win_mpi_SOURCES = tests/unit/win_mpi.c tests/unit/mpi_check.h
tests_unit_win_mpi_LDADD = libmpixep_core.la
