# cuda.m4 - nvcc for the CUDA module, a library of its own that is loaded when a context
# asks for GPU memory.
#
# Default: built if nvcc is found (in PATH, $CUDA_HOME or /usr/local/cuda) and makes a shared
# library. --with-cuda: an error if not. --with-cuda=DIR: DIR/bin/nvcc alone. --with-cuda-arch=LIST:
# compute capabilities, such as "80 90" (sm_80 and commas are taken too); the last one also as PTX.
# Default: what nvcc knows of 80, 100, 120 and 90: code of one serves all of its generation (10.x,
# 12.x), and the PTX of 90 every other device from there on, whose driver compiles it at the first
# use. Each of them takes nvcc as long again: one is enough for a build for the machine at hand.
AC_DEFUN([MPIX_CHECK_CUDA], [
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build the CUDA module with DIR/bin/nvcc; default: if found (for GPU memory)])],
            [], [with_cuda=check])
AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST], [compute capabilities to compile for, and PTX of the last; default: what nvcc knows of "80 100 120 90"])],
            [], [with_cuda_arch=])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags for the CUDA compiler, default -O3])
: ${NVCCFLAGS=-O3}
mpix_cuda=no
mpix_sum_CUDA="no (nvcc was not found: no GPU memory)"
AS_CASE([$with_cuda],
  [no], [mpix_sum_CUDA="no (turned off: no GPU memory)"],
  [AS_CASE([$with_cuda],
     [yes|check], [test -n "$NVCC" || AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin])],
     [NVCC="$with_cuda/bin/nvcc"])
   if test -z "$with_cuda_arch"; then
     with_cuda_arch=90
     mpix_archs=`"$NVCC" --list-gpu-arch 2>/dev/null | tr '\n' ' '`
     for mpix_arch in 120 100 80; do
       AS_CASE([" $mpix_archs"], [*" compute_$mpix_arch "*], [with_cuda_arch="$mpix_arch $with_cuda_arch"])
     done
   fi
   NVCC_GENCODE= mpix_arch_last=
   for mpix_arch in `echo "$with_cuda_arch" | tr "," " " | sed "s/sm_//g"`; do
     NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$mpix_arch,code=sm_$mpix_arch" mpix_arch_last=$mpix_arch
   done
   NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$mpix_arch_last,code=compute_$mpix_arch_last"
   if test -n "$NVCC"; then
     AC_MSG_CHECKING([whether $NVCC makes a shared library for $with_cuda_arch])
     mkdir -p conftest.dir
     echo '#include <cuda.h>' >conftest.dir/a.cu
     echo '__global__ void k(int *p) { *p = 1; } extern "C" int f(int *p) { k<<<1, 1>>>(p); return (int)cudaGetLastError(); }' >>conftest.dir/a.cu
     AS_IF(["$NVCC" -std=c++17 $NVCC_GENCODE -Xcompiler -fPIC -shared -o conftest.dir/a.so conftest.dir/a.cu >&AS_MESSAGE_LOG_FD 2>&1],
           [mpix_cuda=yes mpix_sum_CUDA="yes ($NVCC, $with_cuda_arch)"],
           [mpix_sum_CUDA="no ($NVCC does not work, see config.log: no GPU memory)"])
     rm -rf conftest.dir
     AC_MSG_RESULT([$mpix_cuda])
   fi
   AS_IF([test $mpix_cuda = no && test "x$with_cuda" != xcheck],
         [AC_MSG_ERROR([--with-cuda=$with_cuda was given, but the CUDA module can't be built: $mpix_sum_CUDA])])])
AC_DEFINE_UNQUOTED([MPIX_CUDA_ARCHS], ["$with_cuda_arch"], [Compute capabilities that the CUDA module has code for.])
AS_IF([test $mpix_cuda = yes], [AC_DEFINE([HAVE_CUDA], [1], [Whether the CUDA module is built.])])
AC_SUBST([NVCC])
AC_SUBST([NVCCFLAGS])
AC_SUBST([NVCC_GENCODE])
CUDA_HOME_USED=`dirname "$NVCC" 2>/dev/null`/..
AC_SUBST([CUDA_HOME_USED])
AM_CONDITIONAL([HAVE_CUDA], [test $mpix_cuda = yes])
AC_SEARCH_LIBS([dlopen], [dl])
])
