# tests/faults/p2p.mk - complete means complete, and the target is safe. See tests/faults/local.mk.
P2P_FAULT_TESTS = \
	tests/faults/p2p_complete_mapped_caller.2.test \
	tests/faults/p2p_complete_counted_caller.2.test \
	tests/faults/p2p_complete_chaos_caller.2.test \
	tests/faults/p2p_remedy.2.test \
	tests/faults/ep_complete_hops_caller.3.test \
	tests/faults/p2p_target_copied_caller.2.test
P2P_FAULT_FULL_TESTS = $(P2P_FAULT_TESTS) \
	tests/faults/p2p_target_ucx_thread.2.test \
	tests/faults/p2p_complete_mapped_progress.2.test \
	tests/faults/p2p_complete_copied_caller.2.test \
	tests/faults/p2p_complete_copied_progress.2.test \
	tests/faults/p2p_complete_ordered_caller.2.test \
	tests/faults/p2p_complete_ordered_thread.2.test \
	tests/faults/p2p_complete_counted_thread.2.test \
	tests/faults/p2p_complete_chaos_thread.2.test \
	tests/faults/p2p_complete_chaosordered_caller.2.test \
	tests/faults/p2p_complete_ucx_thread.2.test \
	tests/faults/p2p_target_mapped_caller.2.test \
	tests/faults/ep_complete_mapped_caller.3.test \
	tests/faults/ep_complete_ordered_caller.3.test \
	tests/faults/ep_complete_counted_caller.3.test \
	tests/faults/ep_complete_chaos_caller.3.test \
	tests/faults/ep_complete_chaos_thread.3.test \
	tests/faults/ep_complete_ucx_thread.3.test \
	tests/faults/p2p_target_copied_progress.2.test \
	tests/faults/p2p_target_ordered_caller.2.test

TESTS += $(P2P_FAULT_TESTS)
FULL_TESTS += $(P2P_FAULT_FULL_TESTS)
EXTRA_DIST += tests/faults/p2p.sh
CLEANFILES += $(P2P_FAULT_FULL_TESTS)

$(P2P_FAULT_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) p2p

check_PROGRAMS += tests/faults/p2p_complete
tests_faults_p2p_complete_SOURCES = tests/faults/p2p_complete.c
tests_faults_p2p_complete_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_p2p_complete_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/faults/p2p_target
tests_faults_p2p_target_SOURCES = tests/faults/p2p_target.c
tests_faults_p2p_target_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_p2p_target_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/faults/ep_complete
tests_faults_ep_complete_SOURCES = tests/faults/ep_complete.c
tests_faults_ep_complete_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_ep_complete_LDADD = $(MPI_TEST_LIBS)
