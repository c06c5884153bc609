# tests/faults/ - what happens at the edges: failed allocations, dead and stopped peers, other environments, forks.
#
# A topic has a makefile of its own here, a program or more, and scripts that `make check` runs.
#   TESTS        every kind of case, in the time that .ci/run has
#   FULL_TESTS   `make check-full`: all cases, minutes
# With sanitizers TESTS has the topics that are about the life of memory; the others wait more than they compute, and are
# in FULL_TESTS there.
# A line `covers: FAULT | PATH, PATH | TEST` in a comment of a test says which cells of doc/faults.md it fills.
FULL_TESTS =
TESTS += tests/faults/table.sh
EXTRA_DIST += tests/faults.sh tests/faults/table.sh tests/faults/uncovered
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
	@all=`echo $(FULL_TESTS)`; if test -n "$$all"; then $(MAKE) $(AM_MAKEFLAGS) check TESTS='$(FULL_TESTS)'; fi
.PHONY: check-full
