# tests/faults/life.mk - memory after a failure: what was given back is touched by nobody any more.
check_PROGRAMS += tests/faults/life
tests_faults_life_SOURCES = tests/faults/life.c
tests_faults_life_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_faults_life_LDADD = $(MPI_TEST_LIBS)
check_PROGRAMS += tests/faults/life_places
tests_faults_life_places_SOURCES = tests/faults/life_places.c
tests_faults_life_places_LDADD = libmpixep_core.la $(MPI_LIBS)
TESTS += tests/faults/life.sh
FULL_TESTS += tests/faults/life_all.sh
EXTRA_DIST += tests/faults/life.sh tests/faults/life_all.sh tests/faults/life_run.sh
