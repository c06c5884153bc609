#!/bin/sh
# The halo exchange equals the serial run, mapped and proxied.
set -eu
. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
"$MPIX_MPIRUN" 1 "$MPIX_BUILDDIR/examples/halo"
"$MPIX_MPIRUN" 3 "$MPIX_BUILDDIR/examples/halo" 61 47 200
MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2 "$MPIX_MPIRUN" 4 "$MPIX_BUILDDIR/examples/halo" 17 9 50
