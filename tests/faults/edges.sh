#!/bin/sh
# edges.sh - structs, counts and devices at their limits, among proxied peers.
# covers: structs of an older version | ht-mapped, ll-mapped | tests/faults/edges.sh
# covers: the network takes no more memory | ht-proxied | tests/faults/edges.sh
# covers: counts beyond 32 bits | ht-mapped, ll-mapped | tests/faults/edges.sh
set -eu
MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_TEST_TIMEOUT=200 exec "$MPIX_MPIRUN" 2 \
    "$MPIX_BUILDDIR/tests/faults/edges"
