#!/bin/sh
# base_mpi.sh - the programs of this folder that need ranks, at several sizes; the first failure is the result.
set -u

for np in 1 2 3 5; do
    for program in boot_mpi win_mpi; do
        "$MPIX_MPIRUN" "$np" "$MPIX_BUILDDIR/tests/unit/$program"
        code=$?
        if [ $code -ne 0 ]; then
            echo "$program on $np ranks: exit status $code" >&2
            exit $code
        fi
    done
done
