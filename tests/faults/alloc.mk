# tests/faults/alloc.mk - the n-th allocation or system call that the library makes fails.
#
# The programs are linked with the library's objects, so that the linker can wrap what those call
# (tests/faults/inject.h).
LDFLAGS_OF_INJECTED = $(AM_LDFLAGS) \
	-Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc -Wl,--wrap=aligned_alloc \
	-Wl,--wrap=posix_memalign -Wl,--wrap=strdup -Wl,--wrap=open_memstream -Wl,--wrap=free \
	-Wl,--wrap=mmap -Wl,--wrap=memfd_create -Wl,--wrap=ftruncate -Wl,--wrap=fallocate \
	-Wl,--wrap=socket -Wl,--wrap=eventfd -Wl,--wrap=open -Wl,--wrap=fopen \
	-Wl,--wrap=dlopen -Wl,--wrap=pthread_create

check_PROGRAMS += tests/faults/alloc_ep tests/faults/alloc_p2p
ALLOC_COMMON = tests/faults/alloc.c tests/faults/alloc.h tests/faults/inject.c tests/faults/inject.h
tests_faults_alloc_ep_SOURCES = tests/faults/alloc_ep.c $(ALLOC_COMMON)
tests_faults_alloc_ep_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_alloc_ep_LDFLAGS = $(LDFLAGS_OF_INJECTED)
tests_faults_alloc_ep_LDADD = tests/common/libharness.la libmpixep_core.la $(MPI_LIBS)
tests_faults_alloc_p2p_SOURCES = tests/faults/alloc_p2p.c $(ALLOC_COMMON)
tests_faults_alloc_p2p_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_alloc_p2p_LDFLAGS = $(LDFLAGS_OF_INJECTED)
tests_faults_alloc_p2p_LDADD = tests/common/libharness.la libmpixep_core.la $(MPI_LIBS)

# tests/emu/local.mk builds it.
EXTRA_DIST += tests/faults/alloc_gpu.c

# What it is called with is in tests/faults/alloc.sh.
ALLOC_TESTS = \
	tests/faults/alloc_ht.3.test \
	tests/faults/alloc_ht_socket.3.test \
	tests/faults/alloc_ht_proxied.3.test \
	tests/faults/alloc_ht_hops.4.test \
	tests/faults/alloc_ll.3.test \
	tests/faults/alloc_ll_proxied.3.test \
	tests/faults/alloc_p2p.3.test \
	tests/faults/alloc_p2p_copied.3.test \
	tests/faults/alloc_p2p_proxied.3.test \
	tests/faults/alloc_system_p2p_proxied.3.test \
	tests/faults/alloc_system.3.test \
	tests/faults/alloc_refused.3.test \
	tests/faults/alloc_refused_p2p_proxied.3.test
ALLOC_FULL_TESTS = \
	tests/faults/alloc_system_proxied.3.test \
	tests/faults/alloc_ht_expert_progress.3.test \
	tests/faults/alloc_ht_expert_threads.3.test \
	tests/faults/alloc_ht_expert_bases.3.test \
	tests/faults/alloc_llexpert.3.test \
	tests/faults/alloc_llexpert_proxied.3.test \
	tests/faults/alloc_p2p_reg.3.test \
	tests/faults/alloc_p2p_progress_reg.3.test \
	tests/faults/alloc_p2p_threads_reg.3.test \
	tests/faults/alloc_p2p_proxied.4.test \
	tests/faults/alloc_sticky_p2p.3.test \
	tests/faults/alloc_sticky_p2p_copied.3.test \
	tests/faults/alloc_sticky_p2p_proxied.3.test \
	tests/faults/alloc_sticky_p2p_threads_reg.3.test \
	tests/faults/alloc_sticky_ht.3.test \
	tests/faults/alloc_sticky_ht_expert_progress.3.test \
	tests/faults/alloc_sticky_ht_proxied.3.test \
	tests/faults/alloc_sticky_ht_expert_threads.3.test \
	tests/faults/alloc_sticky_ht_hops.4.test \
	tests/faults/alloc_sticky_ll.3.test \
	tests/faults/alloc_sticky_llexpert.3.test \
	tests/faults/alloc_sticky_llexpert_proxied.3.test \
	tests/faults/alloc_system_socket.3.test \
	tests/faults/alloc_system_p2p.3.test \
	tests/faults/alloc_system_p2p_copied.3.test \
	tests/faults/alloc_system_p2p_threads_reg.3.test \
	tests/faults/alloc_system_expert_bases.3.test \
	tests/faults/alloc_system_expert_progress.3.test \
	tests/faults/alloc_system_hops.4.test \
	tests/faults/alloc_system_ht_expert_threads.3.test \
	tests/faults/alloc_system_llexpert.3.test \
	tests/faults/alloc_system_ll_proxied.3.test
TESTS += $(ALLOC_TESTS)
FULL_TESTS += $(ALLOC_TESTS) $(ALLOC_FULL_TESTS)
EXTRA_DIST += tests/faults/alloc.sh
CLEANFILES += $(ALLOC_TESTS) $(ALLOC_FULL_TESTS)

$(ALLOC_TESTS) $(ALLOC_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) alloc
