# fortran/ - the module mpix_ep in a library of its own, since the core needs no Fortran.
EXTRA_DIST += fortran/mpix_ep.f90 fortran/mpix_ep_f.c examples/ep_minimal_fortran.f90 \
	examples/test_fortran.sh tests/api/fortran_sizes.f90
if HAVE_FORTRAN
lib_LTLIBRARIES += libmpixep_fortran.la
libmpixep_fortran_la_SOURCES = fortran/mpix_ep.f90 fortran/mpix_ep_f.c
libmpixep_fortran_la_FCFLAGS = $(MPIX_FCFLAGS) $(MPIX_SANITIZE) $(MPI_FCFLAGS) -J fortran
libmpixep_fortran_la_LDFLAGS = $(AM_LDFLAGS) $(MPIX_RPATH_LIB) -version-info \
	$(LIBMPIXEP_VERSION_INFO) -no-undefined
libmpixep_fortran_la_LIBADD = libmpixep.la $(MPI_FCLIBS)
nodist_include_HEADERS = fortran/mpix_ep.mod
fortran/mpix_ep.mod: fortran/libmpixep_fortran_la-mpix_ep.lo
nodist_pkgconfig_DATA += mpix-ep-fortran.pc
CLEANFILES += fortran/mpix_ep.mod

noinst_PROGRAMS += examples/ep_minimal_fortran
examples_ep_minimal_fortran_SOURCES = examples/ep_minimal_fortran.f90
examples_ep_minimal_fortran_FCFLAGS = $(MPIX_FCFLAGS) $(MPIX_SANITIZE) $(MPI_FCFLAGS) -I fortran
examples_ep_minimal_fortran_LDADD = libmpixep_fortran.la libmpixep.la $(MPI_FCLIBS)
examples/ep_minimal_fortran-ep_minimal_fortran.$(OBJEXT): fortran/mpix_ep.mod

check_PROGRAMS += tests/api/fortran_sizes
tests_api_fortran_sizes_SOURCES = tests/api/fortran_sizes.f90
tests_api_fortran_sizes_FCFLAGS = $(MPIX_FCFLAGS) $(MPIX_SANITIZE) $(MPI_FCFLAGS) -I fortran
tests_api_fortran_sizes_LDADD = libmpixep_fortran.la libmpixep.la $(MPI_FCLIBS)
tests/api/fortran_sizes-fortran_sizes.$(OBJEXT): fortran/mpix_ep.mod
TESTS += tests/api/fortran_sizes
if HAVE_MPIEXEC
TESTS += examples/test_fortran.sh
endif
endif
