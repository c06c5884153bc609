# tests/faults/waits.mk - no wait without a limit. See tests/faults/local.mk.
WAITS_TESTS = \
	tests/faults/waits_failed.3.test \
	tests/faults/waits_absent_some.3.test \
	tests/faults/waits_elsewhere_some.3.test \
	tests/faults/waits_killed_alloc.3.test \
	tests/faults/waits_freed_p2p_alloc.3.test \
	tests/faults/waits_limits.2.test \
	tests/faults/waits_last.2.test \
	tests/faults/waits_apart.2.test
WAITS_FULL_TESTS = $(WAITS_TESTS) \
	tests/faults/waits_failed_far.3.test \
	tests/faults/waits_failed.8.test \
	tests/faults/waits_absent.3.test \
	tests/faults/waits_absent_far.3.test \
	tests/faults/waits_absent.2.test \
	tests/faults/waits_elsewhere.3.test \
	tests/faults/waits_elsewhere_far.3.test \
	tests/faults/waits_killed_ep_create.3.test \
	tests/faults/waits_killed_handle_create.3.test \
	tests/faults/waits_killed_register.3.test \
	tests/faults/waits_killed_combine_buffer.3.test \
	tests/faults/waits_killed_p2p_create.3.test \
	tests/faults/waits_killed_p2p_alloc.3.test \
	tests/faults/waits_killed_p2p_exchange.3.test \
	tests/faults/waits_freed_far_p2p_alloc.3.test \
	tests/faults/waits_freed_far_alloc.3.test \
	tests/faults/waits_limits_far.2.test \
	tests/faults/waits_apart_thread.2.test

if !SANITIZED
TESTS += $(WAITS_TESTS)
endif
FULL_TESTS += $(WAITS_FULL_TESTS)
EXTRA_DIST += tests/faults/waits.sh
CLEANFILES += $(WAITS_FULL_TESTS)

$(WAITS_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) waits

check_PROGRAMS += tests/faults/waits
tests_faults_waits_SOURCES = tests/faults/waits.c
tests_faults_waits_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_waits_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/faults/waits_apart
tests_faults_waits_apart_SOURCES = tests/faults/waits_apart.c
tests_faults_waits_apart_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_waits_apart_LDADD = $(MPI_TEST_LIBS)
