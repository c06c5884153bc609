# mpix_compiler.m4 - the compilers and their flags.
# MPIX_FLAG_IF(VARIABLE, FLAG): adds a flag that the compiler takes.
AC_DEFUN([MPIX_FLAG_IF], [
AC_MSG_CHECKING([whether the compiler takes $2])
mpix_save="$CFLAGS"
CFLAGS="$CFLAGS -Werror $2"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[]], [[]])], [AC_MSG_RESULT([yes])
$1="$$1 $2"], [AC_MSG_RESULT([no])])
CFLAGS="$mpix_save"
])

AC_DEFUN([MPIX_COMPILER], [
AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [turn warnings into errors])], [], [enable_werror=no])

MPIX_CFLAGS= MPIX_CXXFLAGS=
MPIX_FLAG_IF([MPIX_CFLAGS], [-std=gnu11])
MPIX_FLAG_IF([MPIX_CFLAGS], [-pthread])
MPIX_FLAG_IF([MPIX_CFLAGS], [-Wall])
MPIX_FLAG_IF([MPIX_CFLAGS], [-Wextra])
MPIX_FLAG_IF([MPIX_CFLAGS], [-fvisibility=hidden])
# The sums are defined with every product rounded; a compiler may otherwise contract a multiply and
# an add into one.
MPIX_FLAG_IF([MPIX_CFLAGS], [-ffp-contract=off])
AS_IF([test "x$enable_werror" = xyes], [MPIX_CFLAGS="$MPIX_CFLAGS -Werror"])

# The C++ example needs C++17; without a compiler for it the example is left out.
AC_MSG_CHECKING([for C++17])
mpix_have_cxx=no
mpix_sum_CXX="no (no C++17 compiler: no moe_layer example)"
AC_LANG_PUSH([C++])
mpix_save="$CXXFLAGS"
for mpix_std in "" -std=gnu++17 -std=c++17; do
  CXXFLAGS="$mpix_save $mpix_std"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <optional>
#include <vector>
#if __cplusplus < 201703L
#error "older than C++17"
#endif]], [[std::optional<std::vector<int>> v; if (auto n = v ? v->size() : 0; n) return 1;]])],
    [mpix_have_cxx=yes MPIX_CXXFLAGS="$mpix_std"; break])
done
CXXFLAGS="$mpix_save"
AC_LANG_POP([C++])
AC_MSG_RESULT([$mpix_have_cxx${MPIX_CXXFLAGS:+ with $MPIX_CXXFLAGS}])
AS_IF([test $mpix_have_cxx = yes],
  [mpix_sum_CXX="yes ($CXX)"
   MPIX_CXXFLAGS="$MPIX_CXXFLAGS -pthread -Wall -Wextra"
   AS_IF([test "x$enable_werror" = xyes], [MPIX_CXXFLAGS="$MPIX_CXXFLAGS -Werror"])])
AM_CONDITIONAL([HAVE_CXX], [test $mpix_have_cxx = yes])

AC_MSG_CHECKING([whether the linker takes a version script])
mpix_save="$LDFLAGS"
printf 'V { global: main; local: *; };\n' >conftest.map
LDFLAGS="$LDFLAGS -shared -Wl,--version-script=conftest.map"
CFLAGS_save="$CFLAGS"
CFLAGS="$CFLAGS -fPIC"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])], [mpix_have_map=yes], [mpix_have_map=no])
CFLAGS="$CFLAGS_save"
LDFLAGS="$mpix_save"
rm -f conftest.map
AC_MSG_RESULT([$mpix_have_map])
AM_CONDITIONAL([HAVE_VERSION_SCRIPT], [test $mpix_have_map = yes])
AC_SUBST([MPIX_CFLAGS])
AC_SUBST([MPIX_CXXFLAGS])
])
