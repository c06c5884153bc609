# Unit tests of src/proxy/ and of the transports null, shmem and chaos: with Check on one rank, and
# a program that needs ranks.
if HAVE_CHECK
check_PROGRAMS += tests/unit/test_chaos tests/unit/test_fifo tests/unit/test_proxy
TESTS += tests/unit/test_chaos tests/unit/test_fifo tests/unit/test_proxy
UNIT_TESTS += tests/unit/test_chaos tests/unit/test_fifo tests/unit/test_proxy
tests_unit_test_chaos_SOURCES = \
	tests/unit/test_chaos.c tests/unit/test_chaos_fails.c tests/unit/test_chaos_order.c \
	tests/unit/chaos_fixture.h tests/unit/check_suite.h tests/unit/mpi_check.h
tests_unit_test_chaos_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_chaos_LDADD = $(UNIT_LIBS)
tests_unit_test_fifo_SOURCES = tests/unit/test_fifo.c
tests_unit_test_fifo_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_fifo_LDADD = $(UNIT_LIBS)
tests_unit_test_proxy_SOURCES = \
	tests/unit/test_proxy.c tests/unit/test_proxy_counted.c tests/unit/test_proxy_credit.c \
	tests/unit/test_proxy_lost.c tests/unit/test_proxy_thread.c tests/unit/proxy_fixture.h \
	tests/unit/check_suite.h tests/unit/mpi_check.h
tests_unit_test_proxy_CFLAGS = $(UNIT_CFLAGS)
tests_unit_test_proxy_LDADD = $(UNIT_LIBS)
endif

# Without Check: what kernels queue, with a GPU that is none.
check_PROGRAMS += tests/unit/test_gpu_queue
TESTS += tests/unit/test_gpu_queue
tests_unit_test_gpu_queue_SOURCES = tests/unit/test_gpu_queue.c tests/unit/mpi_check.h
tests_unit_test_gpu_queue_LDADD = libmpixep_core.la $(MPI_LIBS)

check_PROGRAMS += tests/unit/proxy_mpi
TESTS += tests/unit/proxy_mpi.sh
EXTRA_DIST += tests/unit/proxy_mpi.sh
tests_unit_proxy_mpi_SOURCES = \
	tests/unit/proxy_mpi.c tests/unit/proxy_mpi_streams.c tests/unit/proxy_mpi.h tests/unit/mpi_check.h
tests_unit_proxy_mpi_LDADD = libmpixep_core.la
