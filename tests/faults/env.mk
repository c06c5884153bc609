# tests/faults/env.mk - ranks whose settings differ, and edges of single transports; see
# tests/faults/local.mk.
ENV_TESTS = tests/faults/env_sources.sh tests/faults/env_mapped.sh tests/faults/env_proxied.sh \
	tests/faults/env_ucx.sh
if !SANITIZED
TESTS += $(ENV_TESTS)
endif
FULL_TESTS += $(ENV_TESTS) tests/faults/env_full.sh
EXTRA_DIST += $(ENV_TESTS) tests/faults/env_full.sh

# Looks at the table of parameters, inside the library.
check_PROGRAMS += tests/faults/env
tests_faults_env_SOURCES = tests/faults/env.c tests/faults/env_values.h
tests_faults_env_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_env_LDADD = tests/common/libharness.la libmpixep_core.la $(MPI_LIBS)

TESTS += tests/faults/edges.sh
EXTRA_DIST += tests/faults/edges.sh
check_PROGRAMS += tests/faults/edges
tests_faults_edges_SOURCES = tests/faults/edges.c
tests_faults_edges_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_edges_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=mpix_proxy_mem_reg
tests_faults_edges_LDADD = tests/common/libharness.la libmpixep_core.la $(MPI_LIBS)
