# mpix_summary.m4 - what configure found, in one place.
AC_DEFUN([MPIX_SUMMARY], [
cat <<EOF

  mpix-ep $PACKAGE_VERSION
    prefix         $prefix
    C compiler     $CC
    C++17          $mpix_sum_CXX
    Fortran        $mpix_sum_FORTRAN
    MPI            $mpix_sum_MPI
    MPI launcher   ${MPIEXEC:-none found: MPI programs can't be started by make check (set MPIEXEC)}
    hwloc          $mpix_sum_HWLOC
    cblas          $mpix_sum_CBLAS
    jansson        $mpix_sum_JANSSON
    Check          $mpix_sum_CHECK
    verbs          $mpix_sum_VERBS
    UCX            $mpix_sum_UCX
    CUDA           $mpix_sum_CUDA
    NCCL           $mpix_sum_NCCL
    cuBLAS         $mpix_sum_CUBLAS
    manual         $mpix_manual
    sanitizers     ${MPIX_SANITIZE:-none}
    warnings       `test "x$enable_werror" = xyes && echo "are errors" || echo "are shown"`

  make, make check, make install
EOF
])
