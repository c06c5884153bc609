# mpix_sanitizers.m4 - --enable-asan, --enable-ubsan and --enable-tsan (alone); the first finding
# ends the program. --enable-fuzz: the targets of tests/fuzz with clang's libFuzzer (`make
# check-fuzz` does it).
AC_DEFUN([MPIX_SANITIZERS], [
AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan], [build with the address sanitizer])], [], [enable_asan=no])
AC_ARG_ENABLE([ubsan], [AS_HELP_STRING([--enable-ubsan], [build with the undefined behaviour sanitizer])], [], [enable_ubsan=no])
AC_ARG_ENABLE([tsan], [AS_HELP_STRING([--enable-tsan], [build with the thread sanitizer; not with the address sanitizer])], [], [enable_tsan=no])
AC_ARG_ENABLE([fuzz], [AS_HELP_STRING([--enable-fuzz], [build the targets of tests/fuzz with libFuzzer (clang)])], [], [enable_fuzz=no])
MPIX_SANITIZE=
AS_IF([test "x$enable_fuzz" = xyes], [MPIX_SANITIZE="$MPIX_SANITIZE -fsanitize=fuzzer-no-link"])
AM_CONDITIONAL([FUZZING], [test "x$enable_fuzz" = xyes])
AS_IF([test "x$enable_asan" = xyes], [MPIX_SANITIZE="$MPIX_SANITIZE -fsanitize=address"])
AS_IF([test "x$enable_ubsan" = xyes], [MPIX_SANITIZE="$MPIX_SANITIZE -fsanitize=undefined -fno-sanitize-recover=undefined"])
AS_IF([test "x$enable_tsan" = xyes], [MPIX_SANITIZE="$MPIX_SANITIZE -fsanitize=thread"
  MPIX_FLAG_IF([MPIX_SANITIZE], [-Wno-tsan])]) # gcc says that it does not follow fences
AS_IF([test -n "$MPIX_SANITIZE"],
  [MPIX_SANITIZE="$MPIX_SANITIZE -fno-omit-frame-pointer"
   AC_MSG_CHECKING([whether programs link with$MPIX_SANITIZE])
   mpix_save="$CFLAGS"
   CFLAGS="$CFLAGS $MPIX_SANITIZE"
   AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])], [AC_MSG_RESULT([yes])],
     [AC_MSG_RESULT([no])
      AC_MSG_ERROR([a sanitizer was asked for, but the compiler can't link with$MPIX_SANITIZE])])
   CFLAGS="$mpix_save"])
AC_SUBST([MPIX_SANITIZE])
AM_CONDITIONAL([SANITIZED], [test -n "$MPIX_SANITIZE"])
AM_CONDITIONAL([SANITIZED_THREADS], [test "x$enable_tsan" = xyes])
])
