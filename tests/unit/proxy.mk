# Unit tests of src/proxy/ and of the transports null and shmem: with Check on one rank, and a program that needs ranks.
check_PROGRAMS += tests/unit/proxy_mpi
TESTS += tests/unit/proxy_mpi.sh
EXTRA_DIST += tests/unit/proxy_mpi.sh
tests_unit_proxy_mpi_SOURCES = tests/unit/proxy_mpi.c tests/unit/mpi_check.h
tests_unit_proxy_mpi_LDADD = libmpixep_core.la
