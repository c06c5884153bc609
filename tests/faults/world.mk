# tests/faults/world.mk - processes that fork, and the host program's world. See
# tests/faults/local.mk.
check_PROGRAMS += tests/faults/world
tests_faults_world_SOURCES = tests/faults/world.c
tests_faults_world_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_world_LDADD = $(MPI_TEST_LIBS)

check_PROGRAMS += tests/faults/forks
tests_faults_forks_SOURCES = tests/faults/forks.c
tests_faults_forks_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_forks_LDADD = $(MPI_TEST_LIBS)

if HAVE_CXX
check_PROGRAMS += tests/faults/world_cpp
tests_faults_world_cpp_SOURCES = tests/faults/world_cpp.cpp
tests_faults_world_cpp_LDADD = libmpixep.la $(MPI_LIBS) -lpthread
endif

# A plugin with the shared library, and one that the library is a part of.
check_PROGRAMS += tests/faults/world_host
tests_faults_world_host_SOURCES = tests/faults/world_host.c
tests_faults_world_host_LDADD = $(MPI_LIBS) -ldl
check_LTLIBRARIES += tests/faults/world_plugin.la tests/faults/world_plugin_whole.la
tests_faults_world_plugin_la_SOURCES = tests/faults/world_plugin.c
tests_faults_world_plugin_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -rpath \
	$(abs_top_builddir)/tests/faults
tests_faults_world_plugin_la_LIBADD = libmpixep.la $(MPI_LIBS)
tests_faults_world_plugin_whole_la_SOURCES = tests/faults/world_plugin.c
tests_faults_world_plugin_whole_la_LDFLAGS = $(tests_faults_world_plugin_la_LDFLAGS)
tests_faults_world_plugin_whole_la_LIBADD = libmpixep_core.la $(MPI_LIBS)

WORLD_TESTS = \
	tests/faults/world_locale.2.test \
	tests/faults/world_plugin.2.test \
	tests/faults/world_signals.2.test \
	tests/faults/world_cpp.2.test \
	tests/faults/world_fork_calls.3.test \
	tests/faults/world_fork_free_threads.2.test \
	tests/faults/world_fork_exit.2.test \
	tests/faults/world_fork_work_progress.2.test \
	tests/faults/world_handlers.2.test \
	tests/faults/world_descriptors.5.test \
	tests/faults/world_singletons.3.test \
	tests/faults/world_spaces.3.test
WORLD_FULL_TESTS = \
	tests/faults/world_fork_calls_proxied.2.test \
	tests/faults/world_fork_exec.2.test \
	tests/faults/world_fork_calls_ll.2.test \
	tests/faults/world_fork_free_ll_threads.2.test \
	tests/faults/world_fork_work_ll.2.test \
	tests/faults/world_fork_free.2.test \
	tests/faults/world_fork_free_ucx.2.test \
	tests/faults/world_fork_exit_ucx.2.test \
	tests/faults/world_fork_exit_threads.2.test \
	tests/faults/world_fork_work.3.test \
	tests/faults/world_fork_work_proxied.2.test \
	tests/faults/world_fork_work_threads.2.test
if !SANITIZED
TESTS += $(WORLD_TESTS)
endif
FULL_TESTS += $(WORLD_TESTS) $(WORLD_FULL_TESTS)
EXTRA_DIST += tests/faults/world.sh
CLEANFILES += $(WORLD_TESTS) $(WORLD_FULL_TESTS)

$(WORLD_TESTS) $(WORLD_FULL_TESTS): Makefile
	$(AM_V_GEN)$(FAULT_TEST) world
