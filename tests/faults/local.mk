# tests/faults/ - what happens at the edges: failed allocations, dead and stopped peers, other
# environments, forks.
#
# A topic has a makefile of its own here, a program or more, and scripts that `make check` runs.
#   TESTS        every kind of case, in the time that .ci/run has
#   FULL_TESTS   `make check-full`: all cases, minutes
# With sanitizers TESTS has the topics that are about the life of memory; the others wait more than
# they compute, and are in FULL_TESTS there.
# A line `covers: FAULT | PATH, PATH | TEST` in a comment of a test says which cells of
# doc/faults.md it fills.
# The recipe of a test that a topic's script runs, which it tells by its name: $(FAULT_TEST) TOPIC.
FAULT_TEST = make_test() { $(MKDIR_P) tests/faults && \
	printf '\043!/bin/sh\nexec "$(abs_top_srcdir)/tests/faults/%s.sh" "$$0"\n' "$$2" >"$$1" && \
	chmod +x "$$1"; }; make_test $@
FULL_TESTS =
TESTS += tests/faults/table.sh
EXTRA_DIST += tests/faults.sh tests/faults/prologue.sh tests/faults/table.sh tests/faults/uncovered
include tests/faults/alloc.mk
include tests/faults/blame.mk
include tests/faults/env.mk
include tests/faults/fuzz.mk
include tests/faults/gpu.mk
include tests/faults/life.mk
include tests/faults/p2p.mk
include tests/faults/waits.mk
include tests/faults/world.mk

check-full: $(check_PROGRAMS) $(check_DATA) $(check_LTLIBRARIES)
	@all=`echo $(FULL_TESTS)`; if test -n "$$all"; then $(MAKE) $(AM_MAKEFLAGS) check \
	  TESTS='$(FULL_TESTS)'; fi
.PHONY: check-full
