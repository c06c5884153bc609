#!/bin/sh
# test_ep_minimal.sh - the C example at several numbers of ranks. It checks its own result.
set -u
. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
for ranks in 1 2 4 7; do
    "$MPIX_MPIRUN" $ranks "$MPIX_BUILDDIR/examples/ep_minimal" ||
        { echo "ep_minimal failed on $ranks ranks (exit status $?)"; exit 1; }
done
