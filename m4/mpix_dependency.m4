# mpix_dependency.m4 - the one way in which an optional dependency is looked for.
#
# MPIX_DEPENDENCY(NAME, OPTION, MODULES, LIBRARIES, PROLOGUE, BODY, WHAT)
#
#   NAME       upper case; sets NAME_CFLAGS, NAME_LIBS, HAVE_NAME (config.h and Makefile.am)
#              and mpix_sum_NAME
#   OPTION     as in --with-OPTION[=DIR]
#   MODULES    pkg-config modules to try, in order, separated by blanks
#   LIBRARIES  linker flags to try after those, as shell words: -lfoo "-lfoo -lbar"
#   PROLOGUE, BODY  a program that must compile and link
#   WHAT       what is left out without it, for the summary
#
# Default: used if found. --with-OPTION: an error if it is not found. --with-OPTION=DIR: looked for
# in DIR alone. --without-OPTION: not looked for. Only a program that links counts as found.
AC_DEFUN([MPIX_DEPENDENCY], [
AC_ARG_WITH([$2], [AS_HELP_STRING([--with-$2@<:@=DIR@:>@], [use $2, installed in DIR; default: if found (for $7)])],
            [], [with_$2=check])
mpix_have=no
mpix_sum_$1="no (not found: no $7)"
$1_CFLAGS= $1_LIBS=
AS_CASE([$with_$2],
  [no], [mpix_sum_$1="no (turned off: no $7)"],
  [AC_MSG_CHECKING([for $2])
   mpix_save_CPPFLAGS="$CPPFLAGS" mpix_save_LIBS="$LIBS"
   mpix_dir= mpix_how=
   AS_CASE([$with_$2], [yes|check], [], [mpix_dir="$with_$2"])
   # An installation in DIR brings its own pkg-config files; the system's must not answer for it.
   for mpix_module in $3; do
     if test -n "$mpix_dir"; then
       mpix_pc() { PKG_CONFIG_LIBDIR="$mpix_dir/lib/pkgconfig:$mpix_dir/lib64/pkgconfig" PKG_CONFIG_PATH= "$PKG_CONFIG" "$[]@" 2>/dev/null; }
     else
       mpix_pc() { "$PKG_CONFIG" "$[]@" 2>/dev/null; }
     fi
     mpix_version=`mpix_pc --modversion $mpix_module` || continue
     test -n "$mpix_version" || continue
     mpix_cflags=`mpix_pc --cflags $mpix_module` mpix_libs=`mpix_pc --libs $mpix_module`
     if test -n "$mpix_dir"; then
       mpix_libs="$mpix_libs -Wl,-rpath,`mpix_pc --variable=libdir $mpix_module`"
     fi
     CPPFLAGS="$mpix_save_CPPFLAGS $mpix_cflags" LIBS="$mpix_libs $mpix_save_LIBS"
     AC_LINK_IFELSE([AC_LANG_PROGRAM([$5], [$6])], [mpix_have=yes mpix_how="$mpix_module $mpix_version"; break])
   done
   if test $mpix_have = no; then
     for mpix_candidate in $4; do
       mpix_cflags= mpix_libs="$mpix_candidate"
       if test -n "$mpix_dir"; then
         mpix_cflags="-I$mpix_dir/include"
         if test -d "$mpix_dir/lib64" && test ! -d "$mpix_dir/lib"; then mpix_libdir="$mpix_dir/lib64"; else mpix_libdir="$mpix_dir/lib"; fi
         # Without the headers there, the compiler would quietly take the system's.
         test -d "$mpix_dir/include" && test -d "$mpix_libdir" || continue
         mpix_libs="-L$mpix_libdir -Wl,-rpath,$mpix_libdir $mpix_candidate"
       fi
       CPPFLAGS="$mpix_save_CPPFLAGS $mpix_cflags" LIBS="$mpix_libs $mpix_save_LIBS"
       AC_LINK_IFELSE([AC_LANG_PROGRAM([$5], [$6])], [mpix_have=yes mpix_how="$mpix_candidate"; break])
     done
   fi
   CPPFLAGS="$mpix_save_CPPFLAGS" LIBS="$mpix_save_LIBS"
   if test $mpix_have = yes; then
     $1_CFLAGS="$mpix_cflags" $1_LIBS="$mpix_libs" mpix_sum_$1="yes ($mpix_how)"
     AC_DEFINE([HAVE_$1], [1], [Whether $2 is used.])
     AC_MSG_RESULT([$mpix_sum_$1])
   else
     AC_MSG_RESULT([no])
     AS_IF([test "x$with_$2" != xcheck],
           [AC_MSG_ERROR([--with-$2=$with_$2 was given, but no program could be linked with $2 (see config.log)])])
   fi])
AC_SUBST([$1_CFLAGS])
AC_SUBST([$1_LIBS])
AM_CONDITIONAL([HAVE_$1], [test $mpix_have = yes])
])
