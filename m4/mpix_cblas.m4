# mpix_cblas.m4 - a BLAS with the C interface, for the example's experts: OpenBLAS, then a separate
# cblas, then the reference BLAS.
AC_DEFUN([MPIX_CHECK_CBLAS], [
MPIX_DEPENDENCY([CBLAS], [cblas], [openblas cblas blas blas-netlib], [-lopenblas "-lcblas -lblas" -lcblas -lblas],
                [[#include <cblas.h>]],
                [[float a = 1, b = 2, c = 0; cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1);
                  return c != 2;]], [the moe_layer example])
if test "x$mpix_have" = xyes; then
  # OpenBLAS starts threads of its own, which a program with a rank per core must be
  # able to turn off.
  mpix_save_LIBS="$LIBS"
  LIBS="$CBLAS_LIBS $LIBS"
  AC_CHECK_FUNCS([openblas_set_num_threads])
  LIBS="$mpix_save_LIBS"
fi
])
