# tests/ - `make check`: unit tests with Check, then MPI tests through tests/mpirun.sh.
#
# A unit test is a program in check_PROGRAMS and TESTS, under `if HAVE_CHECK`, linked with
# $(UNIT_LIBS) and compiled with $(UNIT_CFLAGS); it sees the library's hidden symbols. An MPI test
# in TESTS is a script that calls `$MPIX_MPIRUN NP PROGRAM ARGS...`; the environment has
#   MPIX_MPIRUN    the script tests/mpirun.sh
#   CK_DEFAULT_TIMEOUT  against hangs: Check's own 4 s pass on a machine that others use too
#   MPIX_SRCDIR    the source tree         MPIX_BUILDDIR  the build tree
#   MPIX_SANITIZED  1 in a sanitizer build, else 0
UNIT_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS)
UNIT_LIBS = libmpixep_core.la $(CHECK_LIBS)

LSAN_DEFAULTS = suppressions=$(abs_top_srcdir)/tests/lsan.supp:print_suppressions=0
TSAN_DEFAULTS = \
	suppressions=$(abs_top_srcdir)/tests/tsan.supp:ignore_noninstrumented_modules=1:halt_on_error=1
AM_TESTS_ENVIRONMENT = \
	MPIX_MPIRUN='$(abs_top_srcdir)/tests/mpirun.sh'; export MPIX_MPIRUN; \
	MPIX_SRCDIR='$(abs_top_srcdir)'; export MPIX_SRCDIR; \
	MPIX_BUILDDIR='$(abs_top_builddir)'; export MPIX_BUILDDIR; \
	MPIX_SANITIZED=$(MPIX_SANITIZED); export MPIX_SANITIZED; \
	MPIX_SPIN='$(SPIN)'; export MPIX_SPIN; \
	CK_DEFAULT_TIMEOUT=$${CK_DEFAULT_TIMEOUT:-120}; export CK_DEFAULT_TIMEOUT; \
	LSAN_OPTIONS="$(LSAN_DEFAULTS):$$LSAN_OPTIONS"; export LSAN_OPTIONS; \
	TSAN_OPTIONS="$(TSAN_DEFAULTS):$$TSAN_OPTIONS"; export TSAN_OPTIONS; \
	UBSAN_OPTIONS="print_stacktrace=1:$$UBSAN_OPTIONS"; export UBSAN_OPTIONS;
if SANITIZED
MPIX_SANITIZED = 1
else
MPIX_SANITIZED = 0
endif
if SANITIZED
# A rank that is not bound makes hwloc read the system's list of PCI devices, which grows by one
# realloc per line: the address sanitizer copies each time, which took a second per rank. Of the
# stacks of allocations, what tells who asked is enough.
AM_TESTS_ENVIRONMENT += \
	HWLOC_COMPONENTS="-pci$${HWLOC_COMPONENTS:+,$$HWLOC_COMPONENTS}"; export HWLOC_COMPONENTS; \
	ASAN_OPTIONS="malloc_context_size=8$${ASAN_OPTIONS:+:$$ASAN_OPTIONS}"; export ASAN_OPTIONS;
endif
if SANITIZED_THREADS
# UCX puts a function with a lock of its own in the place of madvise, which libc calls when a thread
# has ended: the thread sanitizer has forgotten the thread by then and crashes in that lock. Open
# MPI loads UCX wherever it is installed.
AM_TESTS_ENVIRONMENT += UCX_MEM_EVENTS=no; export UCX_MEM_EVENTS;
endif

TESTS += \
	tests/api/compare_fails.sh tests/api/pictures.sh tests/api/circles.sh tests/api/doc_paths.sh
EXTRA_DIST += \
	tests/api/circles.py tests/api/circles.sh tests/api/doc_paths.sh \
	tests/api/compare.sh tests/api/compare_fails.sh tests/api/pictures.sh
EXTRA_DIST += \
	tests/mpirun.sh tests/survivors.sh tests/valgrind.sh tests/mpi_leaks.sh \
	tests/lsan.supp tests/tsan.supp tests/api/headers.sh tests/consumer/CMakeLists.txt \
	tests/consumer/check.sh

# Run by tests/mpirun.sh itself.
check_PROGRAMS += tests/probe_size
tests_probe_size_SOURCES = tests/probe_size.c
tests_probe_size_LDADD = $(MPI_LIBS)

# Preloaded by tests/mpirun.sh: a library by itself, never sanitized, whatever kind libtool makes of
# ours.
EXTRA_DIST += tests/yield.c
if MPICH
check_DATA = tests/yield.so
CLEANFILES += tests/yield.so
tests/yield.so: tests/yield.c
	$(AM_V_CC)$(CC) -std=gnu11 -Wall -Wextra -O2 -fPIC -shared -o $@ $(srcdir)/tests/yield.c -ldl
endif

UNIT_TESTS =
include tests/unit/base.mk
include tests/unit/rows.mk
include tests/unit/coll.mk
include tests/unit/p2p.mk
include tests/unit/proxy.mk
include tests/unit/verbs.mk
include tests/mpi/local.mk
include tests/faults/local.mk
include tests/model/local.mk
include tests/rdma-vm/local.mk

if !HAVE_CHECK
check-local:
	@echo "note: Check was not found, so the unit tests were left out"
endif
CLEANFILES += tests/mpirun.probe

# Everything that `make check` builds, without running it.
check-programs: $(check_PROGRAMS) $(check_DATA)

# The unit tests under valgrind. VALGRIND_TESTS: which; VALGRIND_JOBS: how many at a time.
VALGRIND_TESTS = $(UNIT_TESTS)
VALGRIND_JOBS = 1
check-valgrind: $(check_PROGRAMS)
	@$(AM_TESTS_ENVIRONMENT) \
	  $(top_srcdir)/tests/valgrind.sh $(VALGRIND_JOBS) '$(LIBTOOL)' $(VALGRIND_TESTS)
.PHONY: check-programs check-valgrind
