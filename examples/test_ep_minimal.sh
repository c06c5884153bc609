#!/bin/sh
# test_ep_minimal.sh - the C example at several numbers of ranks. It checks its own result.
set -u
if [ "${MPIX_SANITIZED:-0}" = 1 ]; then
    ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" # MPI's modules leave memory behind and are unloaded: see test_moe_layer.sh
    export ASAN_OPTIONS
fi
for ranks in 1 2 4 7; do
    "$MPIX_MPIRUN" $ranks "$MPIX_BUILDDIR/examples/ep_minimal" ||
        { echo "ep_minimal failed on $ranks ranks (exit status $?)"; exit 1; }
done
