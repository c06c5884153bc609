# mpix_nccl.m4 - headers of NCCL and NVTX for mpix_ep_bench. NCCL's library is loaded when its
# baseline is asked for, from DIR/lib of --with-nccl=DIR or where the system has it, so that the
# benchmark runs where there is none. Without the CUDA module nothing is looked for.
AC_DEFUN([MPIX_CHECK_NCCL], [
AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [use nccl, installed in DIR; default: if found (for the benchmark's baseline)])],
            [], [with_nccl=check])
mpix_have=no mpix_sum_NCCL="no (not found: no baseline nccl of the benchmark)"
NCCL_CFLAGS= mpix_nccl_dir=
AS_IF([test $mpix_cuda = no], [mpix_sum_NCCL="no (needs CUDA)"],
      [test "x$with_nccl" = xno], [mpix_sum_NCCL="no (turned off: no baseline nccl of the benchmark)"],
  [mpix_save_CPPFLAGS="$CPPFLAGS"
   CPPFLAGS="$mpix_save_CPPFLAGS -I$CUDA_HOME_USED/include"
   AC_CHECK_HEADERS([nvtx3/nvToolsExt.h])
   AS_CASE([$with_nccl], [yes|check], [mpix_nccl_dir="$CUDA_HOME_USED"],
           [mpix_nccl_dir="$with_nccl" NCCL_CFLAGS="-I$with_nccl/include" CPPFLAGS="$mpix_save_CPPFLAGS -I$with_nccl/include -I$CUDA_HOME_USED/include"])
   AC_MSG_CHECKING([for nccl.h])
   AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>]], [[ncclUniqueId id; ncclComm_t comm = 0; return sizeof id + (comm != 0);]])], [mpix_have=yes])
   CPPFLAGS="$mpix_save_CPPFLAGS"
   AC_MSG_RESULT([$mpix_have])
   AS_IF([test $mpix_have = yes], [mpix_sum_NCCL="yes (headers; the library is loaded at run time)"
          AC_DEFINE([HAVE_NCCL], [1], [Whether the benchmark has the baseline nccl.])])])
AS_IF([test $mpix_have = no], [AS_CASE([$with_nccl], [no|check], [], [AC_MSG_ERROR([--with-nccl=$with_nccl was given, but there is no usable nccl.h: $mpix_sum_NCCL])])])
AC_DEFINE_UNQUOTED([MPIX_NCCL_DIR], ["$mpix_nccl_dir"], [Where NCCL is, beside where the system looks.])
AC_SUBST([NCCL_CFLAGS])
])
