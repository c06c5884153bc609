# shellcheck shell=sh
# prologue.sh - read by the scripts here that run one test, which is $1: PATH/NAME.RANKS.test.
#
# It sets name, np and build, and what tests/mpirun.sh wants to know where `make check` has not.
name=$(basename "$1" .test)
np=${name##*.}
name=${name%.*}
build=${MPIX_BUILDDIR:-.}
MPIX_SRCDIR=${MPIX_SRCDIR:-$(dirname "$0")/../..}
MPIX_BUILDDIR=$build
MPIX_MPIRUN=${MPIX_MPIRUN:-$MPIX_SRCDIR/tests/mpirun.sh}
export MPIX_SRCDIR MPIX_BUILDDIR MPIX_MPIRUN
# MPI's leaks are told by the library that allocates, which has no frame pointers.
[ "${MPIX_SANITIZED:-0}" = 0 ] || export \
    ASAN_OPTIONS="fast_unwind_on_malloc=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
