# mpix_spin.m4 - spin, which checks the models of the protocols in `make check`.
AC_DEFUN([MPIX_CHECK_SPIN], [
AC_CHECK_PROG([SPIN], [spin], [spin])
])
