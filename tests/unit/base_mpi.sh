#!/bin/sh
# base_mpi.sh - the programs of this folder that need ranks, at several sizes; the first
# failure is the result.
set -u

# With the address sanitizer: MPI's libraries have no frame pointers, and what they keep is told by
# who allocated it.
ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
export ASAN_OPTIONS

for np in 1 2 3 5; do
    for program in boot_mpi win_mpi; do
        # Cycles of win_mpi; more ranks than cores are slow in some implementations of MPI.
        cycles=200
        [ "$np" -le 2 ] || cycles=40
        "$MPIX_MPIRUN" "$np" "$MPIX_BUILDDIR/tests/unit/$program" $cycles
        code=$?
        if [ $code -ne 0 ]; then
            echo "$program on $np ranks: exit status $code" >&2
            exit $code
        fi
    done
done
