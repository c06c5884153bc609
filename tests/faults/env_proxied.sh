#!/bin/sh
# env_proxied.sh - every parameter set on one rank only, among mapped and proxied peers, over a transport that disturbs.
# covers: settings differ between ranks | create, ht-proxied, ht-hops, ll-proxied, p2p-proxied | tests/faults/env_proxied.sh
set -eu
export MPIX_EP_LOG_LEVEL=none MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=chaos:shmem
MPIX_TEST_TIMEOUT=200 exec "$MPIX_MPIRUN" 3 "$MPIX_BUILDDIR/tests/faults/env"
