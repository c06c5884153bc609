# mpix_mpi.m4 - MPI, without replacing the compiler.
#
# The wrapper compiler is only asked what it would pass on (--showme:compile of Open MPI,
# -compile_info of MPICH, -show of both and of others); without a wrapper, pkg-config is asked;
# without that, the compiler may know MPI by itself (CC=mpicc, Cray's cc). The include folders
# become -isystem: Open MPI's mpi.h does not pass -Wextra.
#
# The launcher belongs to the wrapper: same folder, same suffix (mpicc.mpich - mpiexec.mpich), links
# such as Debian's /etc/alternatives followed first. Another MPI's launcher starts N jobs of size 1,
# and nobody notices; tests/mpirun.sh also probes it.
#
# MPICC=WRAPPER, MPIEXEC=LAUNCHER (may have arguments, such as "srun -n") and --with-mpi=DIR
# override. Sets MPI_CPPFLAGS, MPI_LIBS, MPICC, MPIEXEC.

# MPIX_MPI_FLAGS(COMPILE-TEXT, LINK-TEXT): keeps of a wrapper's flags what finds headers and
# libraries; its optimisation, warning and hardening flags are the packager's business.
AC_DEFUN([MPIX_MPI_FLAGS], [
MPI_CPPFLAGS= MPI_LIBS= mpix_prev=
for mpix_word in $1; do
  AS_CASE([$mpix_prev$mpix_word],
    [-I|-isystem], [mpix_prev=-I; continue],
    [-I/usr/include], [],
    [-I*], [mpix_word=`echo "$mpix_prev$mpix_word" | sed 's/^-I//'`
            AS_CASE([" $MPI_CPPFLAGS "], [*" -isystem $mpix_word "*], [], [MPI_CPPFLAGS="$MPI_CPPFLAGS -isystem $mpix_word"])],
    [-D_FORTIFY_SOURCE*], [],
    [-D*], [MPI_CPPFLAGS="$MPI_CPPFLAGS $mpix_word"])
  mpix_prev=
done
for mpix_word in $2; do
  AS_CASE([$mpix_prev$mpix_word],
    [-L|-l|-Xlinker|-framework], [mpix_prev="$mpix_word "; continue],
    [-L*|-l*|-Xlinker*|-framework*|-Wl,-rpath*|-Wl,/*|-Wl,--enable-new-dtags|-pthread|/*.a|/*.so], [MPI_LIBS="$MPI_LIBS $mpix_prev$mpix_word"])
  mpix_prev=
done
])

# MPIX_MPI_TRY(HOW): whether a program compiles and links with MPI_CPPFLAGS and MPI_LIBS.
AC_DEFUN([MPIX_MPI_TRY], [
mpix_save_CPPFLAGS="$CPPFLAGS" mpix_save_LIBS="$LIBS"
CPPFLAGS="$CPPFLAGS $MPI_CPPFLAGS" LIBS="$MPI_LIBS $LIBS"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>
#if MPI_VERSION < 3
#error "MPI 3 is needed"
#endif]], [[MPI_Count n = 0; int provided; return MPI_Init_thread(0, 0, MPI_THREAD_FUNNELED, &provided) + (int)n;]])],
  [mpix_have_mpi=yes mpix_how="$1"])
CPPFLAGS="$mpix_save_CPPFLAGS" LIBS="$mpix_save_LIBS"
])

# MPIX_MPI_LAUNCHER: MPIEXEC from the wrapper's true name.
AC_DEFUN([MPIX_MPI_LAUNCHER], [
mpix_name="$MPICC" mpix_link="$MPICC"
for mpix_step in 1 2 3 4 5; do
  mpix_next=`readlink "$mpix_link" 2>/dev/null` || break
  AS_CASE([$mpix_next], [/*], [], [mpix_next="`dirname "$mpix_link"`/$mpix_next"])
  mpix_link="$mpix_next"
  AS_CASE([`basename "$mpix_link"`], [mpicc*], [mpix_name="$mpix_link"])
done
mpix_suffix=
AS_CASE([`basename "$mpix_name"`], [mpicc*], [mpix_suffix=`basename "$mpix_name" | sed 's/^mpicc//'`])
for mpix_candidate in `dirname "$mpix_name"` `dirname "$MPICC"`; do
  for mpix_launcher in mpiexec mpirun; do
    if test -z "$MPIEXEC" && test -x "$mpix_candidate/$mpix_launcher$mpix_suffix"; then
      MPIEXEC="$mpix_candidate/$mpix_launcher$mpix_suffix"
    fi
  done
done
])

AC_DEFUN([MPIX_CHECK_MPI], [
AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi=DIR], [use the MPI installed in DIR (its wrapper is DIR/bin/mpicc)])], [], [with_mpi=yes])
AC_ARG_VAR([MPICC], [MPI's wrapper compiler, asked for flags only; default: mpicc])
AC_ARG_VAR([MPIEXEC], [MPI's launcher for tests, may have arguments ("srun -n"); default: the one beside MPICC])
AS_CASE([$with_mpi],
  [no], [AC_MSG_ERROR([mpix-ep stands on MPI and can't be built without it])],
  [yes], [AS_IF([test -n "$MPICC"],
            [mpix_asked="$MPICC"
             AS_CASE([$MPICC], [*/*], [MPIX_MPICC="$MPICC"])
             AC_PATH_PROG([MPIX_MPICC], [$MPICC])
             AS_IF([test -z "$MPIX_MPICC"], [AC_MSG_ERROR([MPICC=$MPICC is not a program])])],
            [AC_PATH_PROG([MPIX_MPICC], [mpicc])])],
  [AC_PATH_PROG([MPIX_MPICC], [mpicc], [], [$with_mpi/bin])
   AS_IF([test -z "$MPIX_MPICC"], [AC_MSG_ERROR([--with-mpi=$with_mpi was given, but $with_mpi/bin/mpicc is not there])])
   mpix_asked="$with_mpi"])
MPICC="$MPIX_MPICC"

AC_MSG_CHECKING([for MPI])
mpix_have_mpi=no mpix_how=
if test -n "$MPICC"; then
  for mpix_style in "--showme:compile --showme:link" "-compile_info -link_info" "-show -show"; do
    mpix_compile=`"$MPICC" ${mpix_style% *} 2>/dev/null` && mpix_linking=`"$MPICC" ${mpix_style#* } 2>/dev/null` || continue
    MPIX_MPI_FLAGS([$mpix_compile], [$mpix_linking])
    test -n "$MPI_LIBS$MPI_CPPFLAGS" || continue
    MPIX_MPI_TRY([$MPICC])
    test $mpix_have_mpi = no || break
  done
fi
if test $mpix_have_mpi = no && test -z "$mpix_asked"; then
  for mpix_module in ompi-c mpich; do
    mpix_compile=`"$PKG_CONFIG" --cflags $mpix_module 2>/dev/null` && mpix_linking=`"$PKG_CONFIG" --libs $mpix_module 2>/dev/null` || continue
    test -n "$mpix_linking" || continue
    MPIX_MPI_FLAGS([$mpix_compile], [$mpix_linking])
    MPIX_MPI_TRY([pkg-config $mpix_module])
    if test $mpix_have_mpi = yes; then
      # No wrapper tells which launcher belongs to it; Debian's names do.
      AS_CASE([$mpix_module], [ompi-c], [mpix_suffix=openmpi], [mpix_suffix=mpich])
      MPICC=
      AS_IF([test -z "$MPIEXEC"], [AC_PATH_PROGS([MPIX_LAUNCHER], [mpiexec.$mpix_suffix mpiexec mpirun])
                                   MPIEXEC="$MPIX_LAUNCHER"])
      break
    fi
  done
fi
if test $mpix_have_mpi = no && test -z "$mpix_asked"; then
  MPI_CPPFLAGS= MPI_LIBS= MPICC=
  MPIX_MPI_TRY([$CC by itself])
fi
if test $mpix_have_mpi = no; then
  AC_MSG_RESULT([no])
  AC_MSG_ERROR([no program could be compiled and linked with MPI${mpix_asked:+ of $mpix_asked}, version 3 or later (see config.log).
Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin. Elsewhere: MPICC=/path/of/mpicc or --with-mpi=DIR.])
fi
AS_IF([test -n "$MPICC" && test -z "$MPIEXEC"], [MPIX_MPI_LAUNCHER])
AS_IF([test -z "$MPIEXEC"], [AC_PATH_PROGS([MPIX_LAUNCHER], [mpiexec mpirun])
                             MPIEXEC="$MPIX_LAUNCHER"])

# Which MPI it is, for the summary and for mpix_ep_info.
mpix_save_CPPFLAGS="$CPPFLAGS"
CPPFLAGS="$CPPFLAGS $MPI_CPPFLAGS"
mpix_mpi_name="MPI"
AC_PREPROC_IFELSE([AC_LANG_SOURCE([[#include <mpi.h>
#if defined OPEN_MPI
mpix_which "Open MPI" OMPI_MAJOR_VERSION.OMPI_MINOR_VERSION.OMPI_RELEASE_VERSION
#elif defined MPICH_VERSION
mpix_which "MPICH" MPICH_VERSION
#endif]])],
  [mpix_mpi_name=`grep -v '^@%:@' conftest.i | tr -d '"' | tr '\n' ' ' | sed -n 's/.*mpix_which *//p' | sed -e 's/ *\. */./g' -e 's/  */ /g' -e 's/ $//'`
   test -n "$mpix_mpi_name" || mpix_mpi_name="MPI"])
CPPFLAGS="$mpix_save_CPPFLAGS"
AC_MSG_RESULT([$mpix_mpi_name, from $mpix_how])
AC_DEFINE_UNQUOTED([MPIX_MPI_NAME], ["$mpix_mpi_name"], [The MPI that the library was built with.])
mpix_sum_MPI="$mpix_mpi_name (from $mpix_how)"
MPI_PC_CFLAGS=`echo "$MPI_CPPFLAGS" | sed 's/-isystem */-I/g'`
AC_SUBST([MPI_CPPFLAGS])
AC_SUBST([MPI_PC_CFLAGS])
AC_SUBST([MPI_LIBS])
AM_CONDITIONAL([MPICH], [expr "x$mpix_mpi_name" : xMPICH >/dev/null])
AM_CONDITIONAL([HAVE_MPIEXEC], [test -n "$MPIEXEC"])
])
