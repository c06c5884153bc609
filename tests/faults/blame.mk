# tests/faults/blame.mk - see tests/faults/local.mk.
BLAME_TESTS = \
	tests/faults/blame_mapped_absent.5.test \
	tests/faults/blame_mapped_killed.5.test \
	tests/faults/blame_proxied_absent.5.test \
	tests/faults/blame_hops_midway.5.test \
	tests/faults/blame_proxied_killed.5.test \
	tests/faults/blame_p2p_mapped_killed.5.test
BLAME_FULL_TESTS = $(BLAME_TESTS) \
	tests/faults/blame_mapped_absent.3.test \
	tests/faults/blame_mapped_stopped.5.test \
	tests/faults/blame_mapped_midway.5.test \
	tests/faults/blame_mapped_ended.5.test \
	tests/faults/blame_proxied_stopped.5.test \
	tests/faults/blame_proxied_midway.5.test \
	tests/faults/blame_proxied_ended.5.test \
	tests/faults/blame_hosts_absent.7.test \
	tests/faults/blame_hosts_stopped.7.test \
	tests/faults/blame_hosts_midway.7.test \
	tests/faults/blame_hosts_killed.7.test \
	tests/faults/blame_hosts_ended.7.test \
	tests/faults/blame_hops_absent.7.test \
	tests/faults/blame_hops_stopped.7.test \
	tests/faults/blame_hops_midway.7.test \
	tests/faults/blame_hops_killed.7.test \
	tests/faults/blame_hops_ended.7.test \
	tests/faults/blame_hops3_stopped.9.test \
	tests/faults/blame_hops3_midway.9.test \
	tests/faults/blame_hops3_ended.9.test \
	tests/faults/blame_thread_stopped.5.test \
	tests/faults/blame_thread_killed.5.test \
	tests/faults/blame_p2p_mapped_absent.5.test \
	tests/faults/blame_p2p_mapped_stopped.5.test \
	tests/faults/blame_p2p_copied_absent.5.test \
	tests/faults/blame_p2p_copied_stopped.5.test \
	tests/faults/blame_p2p_copied_killed.5.test \
	tests/faults/blame_p2p_proxied_absent.5.test \
	tests/faults/blame_p2p_proxied_stopped.5.test \
	tests/faults/blame_p2p_proxied_killed.5.test

if !SANITIZED
TESTS += $(BLAME_TESTS)
endif
FULL_TESTS += $(BLAME_FULL_TESTS)
EXTRA_DIST += tests/faults/blame.sh
CLEANFILES += $(BLAME_FULL_TESTS)

$(BLAME_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) blame

check_PROGRAMS += tests/faults/blame
tests_faults_blame_SOURCES = tests/faults/blame.c tests/faults/blame.h
tests_faults_blame_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_blame_LDADD = $(MPI_TEST_LIBS)
check_PROGRAMS += tests/faults/blame_p2p
tests_faults_blame_p2p_SOURCES = tests/faults/blame_p2p.c tests/faults/blame.h
tests_faults_blame_p2p_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_blame_p2p_LDADD = $(MPI_TEST_LIBS)

ROOM_TESTS = \
	tests/faults/room_asks.2.test \
	tests/faults/room_asks_proxied.2.test \
	tests/faults/room_claims.2.test \
	tests/faults/room_limits.2.test
ROOM_FULL_TESTS = $(ROOM_TESTS) \
	tests/faults/room_asks.3.test \
	tests/faults/room_claims.3.test \
	tests/faults/room_limits_proxied.2.test

if !SANITIZED
TESTS += $(ROOM_TESTS)
endif
FULL_TESTS += $(ROOM_FULL_TESTS)
EXTRA_DIST += tests/faults/room.sh
CLEANFILES += $(ROOM_FULL_TESTS)

$(ROOM_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) room

# It sees the library's hidden symbols.
check_PROGRAMS += tests/faults/room
tests_faults_room_SOURCES = tests/faults/room.c
tests_faults_room_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_room_LDADD = tests/common/libharness.la libmpixep_core.la
