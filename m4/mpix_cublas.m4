# mpix_cublas.m4 - headers of cuBLAS for the moe_layer example in GPU memory and for mpix_ep_bench's
# --overlap there. The library is loaded when it is asked for, from the CUDA toolkit's folder or where
# the system has it, so that both run where there is no GPU.
AC_DEFUN([MPIX_CHECK_CUBLAS], [
mpix_have_cublas=no
AS_IF([test $mpix_cuda = no], [mpix_sum_CUBLAS="no (needs CUDA)"],
  [mpix_sum_CUBLAS="no (no usable cublas_v2.h: moe_layer without --memory cuda, mpix_ep_bench without --overlap there)"
   mpix_save_CPPFLAGS="$CPPFLAGS"
   CPPFLAGS="$mpix_save_CPPFLAGS -I$CUDA_HOME_USED/include"
   AC_MSG_CHECKING([for cublas_v2.h])
   AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <cublas_v2.h>]], [[cublasHandle_t handle = 0; return handle != 0;]])], [mpix_have_cublas=yes])
   CPPFLAGS="$mpix_save_CPPFLAGS"
   AC_MSG_RESULT([$mpix_have_cublas])
   AS_IF([test $mpix_have_cublas = yes], [mpix_sum_CUBLAS="yes (headers; the library is loaded at run time)"])])
AM_CONDITIONAL([HAVE_CUBLAS], [test $mpix_have_cublas = yes])
])
