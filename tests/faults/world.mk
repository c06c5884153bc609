# tests/faults/world.mk - processes that fork, and the host program's world. See tests/faults/local.mk.
check_PROGRAMS += tests/faults/world
tests_faults_world_SOURCES = tests/faults/world.c
tests_faults_world_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_world_LDADD = $(MPI_TEST_LIBS)

WORLD_TESTS = \
	tests/faults/world_handlers.2.test \
	tests/faults/world_descriptors.5.test \
	tests/faults/world_singletons.3.test \
	tests/faults/world_spaces.3.test
TESTS += $(WORLD_TESTS)
FULL_TESTS += $(WORLD_TESTS)
EXTRA_DIST += tests/faults/world.sh
CLEANFILES += $(WORLD_TESTS)

$(WORLD_TESTS): Makefile
	$(AM_V_GEN)$(MKDIR_P) tests/faults && \
	printf '#!/bin/sh\nexec "$(abs_top_srcdir)/tests/faults/world.sh" "$$0"\n' >$@ && chmod +x $@
