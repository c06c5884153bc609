# mpix_fortran.m4 - a Fortran compiler with which MPI's module mpi_f08 can be used, for
# the module mpix_ep.
#
# Default: built if found. --with-fortran: an error if not. --without-fortran: not looked for. The
# wrapper mpifort beside MPICC, with the same suffix, is asked for its flags; the compiler stays
# your own (FC=). A module file is readable by the compiler that wrote it only, so MPI's decides
# which compilers will do.
AC_DEFUN([MPIX_CHECK_FORTRAN], [
AC_ARG_WITH([fortran], [AS_HELP_STRING([--without-fortran], [leave the Fortran module out; default: built if mpi_f08 works])], [], [with_fortran=check])
mpix_have_fortran=no
mpix_sum_FORTRAN="no (no Fortran compiler with mpi_f08: no module mpix_ep)"
MPI_FCFLAGS= MPI_FCLIBS=
AS_IF([test "x$with_fortran" = xno], [mpix_sum_FORTRAN="no (turned off: no module mpix_ep)"],
  [test -n "$FC"],
  [AC_MSG_CHECKING([for mpi_f08 with $FC])
   mpix_save_CPPFLAGS="$MPI_CPPFLAGS" mpix_save_MPI_LIBS="$MPI_LIBS" mpix_mpifort=
   AS_IF([test -n "$MPICC"], [mpix_mpifort=`dirname "$MPICC"`/`basename "$MPICC" | sed 's/^mpicc/mpifort/'`])
   for mpix_style in "--showme:compile --showme:link" "-compile_info -link_info" "-show -show"; do
     mpix_compile=`"$mpix_mpifort" ${mpix_style% *} 2>/dev/null` && mpix_linking=`"$mpix_mpifort" ${mpix_style#* } 2>/dev/null` || continue
     MPIX_MPI_FLAGS([$mpix_compile], [$mpix_linking])
     test -n "$MPI_LIBS" || continue
     break
   done
   MPI_FCFLAGS=`echo "$MPI_CPPFLAGS" | sed 's/-isystem */-I/g'` MPI_FCLIBS="$MPI_LIBS"
   MPI_CPPFLAGS="$mpix_save_CPPFLAGS" MPI_LIBS="$mpix_save_MPI_LIBS"
   AC_LANG_PUSH([Fortran])
   AC_FC_SRCEXT([f90])
   mpix_save_FCFLAGS="$FCFLAGS" mpix_save_LIBS="$LIBS"
   FCFLAGS="$FCFLAGS $MPI_FCFLAGS" LIBS="$MPI_FCLIBS $LIBS"
   AC_LINK_IFELSE([AC_LANG_SOURCE([[program conftest
    use mpi_f08
    use, intrinsic :: iso_c_binding
    type(MPI_Comm) :: comm
    integer(MPI_COUNT_KIND) :: n = 0
    comm = MPI_COMM_WORLD
    call MPI_Init()
    if (comm%MPI_VAL == n) call MPI_Finalize()
end program]])], [mpix_have_fortran=yes mpix_sum_FORTRAN="yes ($FC)"])
   FCFLAGS="$mpix_save_FCFLAGS" LIBS="$mpix_save_LIBS"
   AC_LANG_POP([Fortran])
   AC_MSG_RESULT([$mpix_have_fortran])])
AS_IF([test $mpix_have_fortran = no], [AS_CASE([$with_fortran], [no|check], [],
      [AC_MSG_ERROR([--with-fortran was given, but no program could be compiled with MPI's module mpi_f08 (see config.log)])])])
MPIX_FCFLAGS=
AS_IF([test $mpix_have_fortran = yes],
  [AC_LANG_PUSH([Fortran])
   mpix_save_FCFLAGS="$FCFLAGS"
   # gfortran asks whether MPI_COUNT_KIND is a C kind; tests/api/fortran_sizes.f90 answers.
   for mpix_flag in -std=f2018 -Wall -Wextra -Wno-c-binding-type; do
     FCFLAGS="$mpix_save_FCFLAGS $MPIX_FCFLAGS $mpix_flag"
     AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [MPIX_FCFLAGS="$MPIX_FCFLAGS $mpix_flag"])
   done
   FCFLAGS="$mpix_save_FCFLAGS"
   AC_LANG_POP([Fortran])
   AS_IF([test "x$enable_werror" = xyes], [MPIX_FCFLAGS="$MPIX_FCFLAGS -Werror"])])
AC_SUBST([MPI_FCFLAGS])
AC_SUBST([MPI_FCLIBS])
AC_SUBST([MPIX_FCFLAGS])
AS_IF([test $mpix_have_fortran = yes], [AC_DEFINE([HAVE_FORTRAN], [1], [Whether the Fortran module is built.])])
AM_CONDITIONAL([HAVE_FORTRAN], [test $mpix_have_fortran = yes])
])
