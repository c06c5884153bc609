#!/bin/sh
# test_fortran.sh - the Fortran example at several numbers of ranks. It checks its own result.
set -u
. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
for ranks in 1 3; do
    output=$("$MPIX_MPIRUN" $ranks "$MPIX_BUILDDIR/examples/ep_minimal_fortran" 2>&1) &&
        printf '%s\n' "$output" | grep 'ranks: ok' ||
        { printf '%s\n' "$output"; echo "ep_minimal_fortran failed on $ranks ranks"; exit 1; }
done
