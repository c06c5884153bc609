# tests/mpi/ - programs that use the public interface only, and a reference of their own, over 1 to
# 33 ranks.
#
# A test is PROGRAM.RANKS.test or PROGRAM_VARIANT.RANKS.test: add it to MPI_TESTS; what it is called
# with is in tests/mpi/run.sh. Those that wait for a time limit (ep_faults and p2p_faults: stopped,
# absent, injected) stand far from each other, so that with `make -j2 check` there is mostly another
# beside them that computes.
MPI_TESTS = \
	tests/mpi/ep_random.1.test \
	tests/mpi/ep_random.2.test \
	tests/mpi/ep_random.3.test \
	tests/mpi/ep_random.4.test \
	tests/mpi/ep_random.5.test \
	tests/mpi/ep_faults_stopped_hops.4.test \
	tests/mpi/ep_random.8.test \
	tests/mpi/ep_random.33.test \
	tests/mpi/ep_random_ll.2.test \
	tests/mpi/ep_stress_ll.3.test \
	tests/mpi/ep_random_ll.5.test \
	tests/mpi/ep_random_ll_mixed.4.test \
	tests/mpi/ep_random_ll_pull.2.test \
	tests/mpi/ep_random_ll_pull.5.test \
	tests/mpi/ep_random_ll_counted.2.test \
	tests/mpi/ep_random_ll_chaos.3.test \
	tests/mpi/ep_faults_stopped_ucx.3.test \
	tests/mpi/ep_random_ll_ucx.2.test \
	tests/mpi/ep_random_ll_ucx.3.test \
	tests/mpi/ep_files.1.test \
	tests/mpi/ep_files.3.test \
	tests/mpi/ep_faults_stopped_threads.3.test \
	tests/mpi/ep_files.4.test \
	tests/mpi/ep_files.8.test \
	tests/mpi/ep_errors.1.test \
	tests/mpi/ep_errors.2.test \
	tests/mpi/ep_faults_injected.2.test \
	tests/mpi/ep_errors.5.test \
	tests/mpi/ep_errors_far.2.test \
	tests/mpi/ep_nompi.1.test \
	tests/mpi/ep_nompi.3.test \
	tests/mpi/ep_stress.1.test \
	tests/mpi/ep_stress.2.test \
	tests/mpi/ep_stress.3.test \
	tests/mpi/ep_stress.5.test \
	tests/mpi/ep_stress.33.test \
	tests/mpi/ep_faults_injected.3.test \
	tests/mpi/ep_random_ordered.2.test \
	tests/mpi/ep_random_ordered.5.test \
	tests/mpi/ep_random_counted.3.test \
	tests/mpi/ep_random_mixed.4.test \
	tests/mpi/ep_random_mixed.5.test \
	tests/mpi/ep_random_thread.4.test \
	tests/mpi/ep_stress_ordered.2.test \
	tests/mpi/ep_stress_thread.4.test \
	tests/mpi/ep_faults_injected_thread.3.test \
	tests/mpi/ep_random_chaos.2.test \
	tests/mpi/ep_random_chaos.3.test \
	tests/mpi/ep_random_chaos.5.test \
	tests/mpi/ep_random_chaosordered.2.test \
	tests/mpi/ep_random_chaosordered.4.test \
	tests/mpi/ep_random_chaosthread.4.test \
	tests/mpi/ep_random_threads.2.test \
	tests/mpi/ep_random_threads.4.test \
	tests/mpi/ep_random_chaosthreads.3.test \
	tests/mpi/ep_stress_chaos.3.test \
	tests/mpi/ep_stress_chaosordered.2.test \
	tests/mpi/ep_faults_absent.2.test \
	tests/mpi/ep_stress_chaosthread.4.test \
	tests/mpi/ep_stress_threads.2.test \
	tests/mpi/ep_random_hops.3.test \
	tests/mpi/ep_random_hops.4.test \
	tests/mpi/ep_random_hops.5.test \
	tests/mpi/ep_random_hops.8.test \
	tests/mpi/ep_random_hopschunk.4.test \
	tests/mpi/ep_random_hopschaos.5.test \
	tests/mpi/ep_random_hopsthread.4.test \
	tests/mpi/ep_random_hopsthreads.4.test \
	tests/mpi/ep_random_bases.3.test \
	tests/mpi/ep_faults_stopped.3.test \
	tests/mpi/ep_random_baseshops.4.test \
	tests/mpi/ep_stress_hops.5.test \
	tests/mpi/ep_stress_hopschunk.4.test \
	tests/mpi/ep_stress_hopschaos.3.test \
	tests/mpi/ep_hops.4.test \
	tests/mpi/ep_hops.8.test \
	tests/mpi/ep_faults_killed_hops.4.test \
	tests/mpi/ep_faults_killed_threads.3.test \
	tests/mpi/ep_random_ucx.2.test \
	tests/mpi/ep_faults_stopped_thread.3.test \
	tests/mpi/ep_random_ucx.3.test \
	tests/mpi/ep_stress_ucx.2.test \
	tests/mpi/ep_faults_killed_ucx.3.test \
	tests/mpi/ep_traffic_ordered.2.test \
	tests/mpi/ep_traffic_counted.2.test \
	tests/mpi/ep_traffic_lanes.3.test \
	tests/mpi/ep_traffic_threads.2.test \
	tests/mpi/ep_faults_injected_threads.3.test \
	tests/mpi/ep_faults_late.3.test \
	tests/mpi/ep_faults_killed.4.test \
	tests/mpi/ep_faults_ll_stopped.2.test \
	tests/mpi/ep_faults_killed_thread.2.test \
	tests/mpi/ep_faults_gone.3.test \
	tests/mpi/ep_faults_forgotten.3.test \
	tests/mpi/ep_faults_forgotten_thread.2.test \
	tests/mpi/ep_faults_ll_killed.3.test \
	tests/mpi/p2p_data.1.test \
	tests/mpi/p2p_data.2.test \
	tests/mpi/p2p_data.3.test \
	tests/mpi/p2p_data.8.test \
	tests/mpi/ep_faults_ll_injected.2.test \
	tests/mpi/p2p_data_ask.2.test \
	tests/mpi/p2p_data_progress.2.test \
	tests/mpi/p2p_data_ordered.2.test \
	tests/mpi/p2p_data_counted.2.test \
	tests/mpi/p2p_data_mixed.4.test \
	tests/mpi/p2p_data_chaos.2.test \
	tests/mpi/p2p_data_threads.2.test \
	tests/mpi/p2p_data_threads.3.test \
	tests/mpi/p2p_data_chaos.4.test \
	tests/mpi/p2p_data_ucx.2.test \
	tests/mpi/p2p_faults_stopped.3.test \
	tests/mpi/p2p_errors.1.test \
	tests/mpi/p2p_errors.3.test \
	tests/mpi/p2p_errors_proxied.2.test \
	tests/mpi/p2p_faults_killed_threads.3.test \
	tests/mpi/p2p_faults_computing.2.test \
	tests/mpi/p2p_faults_computing_reg.2.test \
	tests/mpi/p2p_faults_computing_proxied.2.test \
	tests/mpi/p2p_faults_fork_reg.2.test \
	tests/mpi/p2p_faults_fork.3.test \
	tests/mpi/p2p_faults_computing_threads.2.test \
	tests/mpi/p2p_faults_stopped_proxied.2.test \
	tests/mpi/p2p_faults_killed.3.test \
	tests/mpi/p2p_faults_killed_reg.3.test \
	tests/mpi/p2p_faults_killed_proxied.3.test \
	tests/mpi/p2p_faults_forgotten.2.test

TESTS += $(MPI_TESTS) tests/paths.sh tests/mpi/info.sh tests/mpi/plot.sh tests/mpi/trace.sh
EXTRA_DIST += \
	tests/paths.known tests/paths.sh tests/mpi/run.sh tests/mpi/info.sh tests/mpi/plot.sh \
	tests/mpi/trace.sh
CLEANFILES += $(MPI_TESTS) tests/paths.cells

$(MPI_TESTS): Makefile
	$(AM_V_GEN)$(MKDIR_P) tests/mpi && \
	printf '#!/bin/sh\nexec "$(abs_top_srcdir)/tests/mpi/run.sh" "$$0"\n' >$@ && chmod +x $@

# The reference adds and multiplies as it is written: no fused multiply-add.
check_LTLIBRARIES = tests/common/libharness.la
tests_common_libharness_la_SOURCES = \
	tests/common/call.c \
	tests/common/call.h \
	tests/common/call_combine.c \
	tests/common/call_dispatch.c \
	tests/common/call_route.c \
	tests/common/guard.c \
	tests/common/harness.c \
	tests/common/harness.h \
	tests/common/ref.h \
	tests/common/ref_num.c \
	tests/common/ref_plan.c
tests_common_libharness_la_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
tests_common_libharness_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off

MPI_TEST_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
MPI_TEST_LIBS = tests/common/libharness.la libmpixep.la $(MPI_LIBS)

check_PROGRAMS += tests/mpi/p2p_data
tests_mpi_p2p_data_SOURCES = \
	tests/mpi/p2p_data.c tests/mpi/p2p_data_traffic.c tests/mpi/p2p_data.h tests/mpi/count_mpi.h
tests_mpi_p2p_data_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_p2p_data_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/mpi/p2p_errors
tests_mpi_p2p_errors_SOURCES = tests/mpi/p2p_errors.c
tests_mpi_p2p_errors_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_p2p_errors_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/mpi/p2p_faults
tests_mpi_p2p_faults_SOURCES = tests/mpi/p2p_faults.c
tests_mpi_p2p_faults_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_p2p_faults_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += \
	tests/mpi/ep_errors tests/mpi/ep_faults tests/mpi/ep_files tests/mpi/ep_hops \
	tests/mpi/ep_nompi tests/mpi/ep_paths tests/mpi/ep_random tests/mpi/ep_stress \
	tests/mpi/ep_traffic

tests_mpi_ep_paths_SOURCES = tests/common/cells.c tests/common/cells.h tests/mpi/ep_paths.c
tests_mpi_ep_paths_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_paths_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_errors_SOURCES = \
	tests/mpi/ep_errors.c \
	tests/mpi/errors.h \
	tests/mpi/errors_calls.c \
	tests/mpi/errors_create.c \
	tests/mpi/errors_handlers.c \
	tests/mpi/errors_ll.c \
	tests/mpi/errors_memory.c \
	tests/mpi/errors_objects.c \
	tests/mpi/errors_unsupported.c
tests_mpi_ep_errors_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_errors_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_faults_SOURCES = \
	tests/mpi/ep_faults.c tests/mpi/ep_faults_injected.c tests/mpi/ep_faults.h
tests_mpi_ep_faults_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_faults_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_files_SOURCES = tests/mpi/ep_files.c
tests_mpi_ep_files_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_files_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_hops_SOURCES = tests/mpi/ep_hops.c
tests_mpi_ep_hops_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_hops_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_nompi_SOURCES = tests/mpi/ep_nompi.c tests/mpi/count_mpi.h
tests_mpi_ep_nompi_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_nompi_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_random_SOURCES = tests/mpi/ep_random.c
tests_mpi_ep_random_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_random_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_stress_SOURCES = tests/mpi/ep_stress.c
tests_mpi_ep_stress_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_stress_LDADD = $(MPI_TEST_LIBS)
tests_mpi_ep_traffic_SOURCES = tests/mpi/ep_traffic.c
tests_mpi_ep_traffic_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_mpi_ep_traffic_LDADD = $(MPI_TEST_LIBS)
