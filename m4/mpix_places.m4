# mpix_places.m4 - where installed files are from each other: an installation that is moved as a
# whole finds its own. Sets MPIX_LIB_FROM_BIN (libdir as seen from bindir, or nothing if one of them
# is not absolute), MPIX_RPATH_BIN and MPIX_RPATH_LIB.
AC_DEFUN([MPIX_PLACES], [
AC_MSG_CHECKING([the way from programs to libraries])
mpix_save_prefix="$prefix" mpix_save_exec_prefix="$exec_prefix"
test "x$prefix" != xNONE || prefix="$ac_default_prefix"
test "x$exec_prefix" != xNONE || exec_prefix="$prefix"
eval "mpix_from=\"$bindir\"" && eval "mpix_from=\"$mpix_from\""
eval "mpix_to=\"$libdir\"" && eval "mpix_to=\"$mpix_to\""
prefix="$mpix_save_prefix" exec_prefix="$mpix_save_exec_prefix"
MPIX_LIB_FROM_BIN=
case "$mpix_from$mpix_to" in
*/../* | */./* | *//*) ;; # such paths have no way that can be told from their names
/*)
  mpix_up=
  while :; do
    case "$mpix_to/" in "$mpix_from"/*) break ;; esac
    mpix_up="../$mpix_up"
    mpix_from=`dirname "$mpix_from"`
    test "x$mpix_from" != x/ || break
  done
  test "x$mpix_from" != x/ || mpix_from=
  MPIX_LIB_FROM_BIN="$mpix_up`echo "x$mpix_to" | cut -c @S|@(expr "x$mpix_from/" : '.*' + 1)-`"
  MPIX_LIB_FROM_BIN="${MPIX_LIB_FROM_BIN:-.}"
  ;;
esac
AC_MSG_RESULT([${MPIX_LIB_FROM_BIN:-unknown}])
AC_DEFINE_UNQUOTED([MPIX_LIB_FROM_BIN], ["$MPIX_LIB_FROM_BIN"], [The folder of libraries as seen from that of programs; may be empty.])
# Read by make, by a shell, and by the loader, which knows @S|@ORIGIN.
MPIX_RPATH_LIB="-Wl,-rpath,'\@S|@\@S|@ORIGIN'"
MPIX_RPATH_BIN=
test -z "$MPIX_LIB_FROM_BIN" || MPIX_RPATH_BIN="-Wl,-rpath,'\@S|@\@S|@ORIGIN/$MPIX_LIB_FROM_BIN'"
AC_SUBST([MPIX_RPATH_BIN])
AC_SUBST([MPIX_RPATH_LIB])
])
