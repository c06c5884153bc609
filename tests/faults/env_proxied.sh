#!/bin/sh
# env_proxied.sh - every parameter set on one rank only, among mapped and proxied peers, over a
# transport that disturbs. Sanitizers are slow: a case of three.
# covers: settings differ between ranks | create, ht-proxied, ht-hops, ll-proxied, p2p-proxied | tests/faults/env_proxied.sh
set -eu
export MPIX_EP_LOG_LEVEL=none MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=chaos:shmem
[ "${MPIX_SANITIZED:-0}" = 0 ] || set -- --every 3
MPIX_TEST_TIMEOUT=200 exec "$MPIX_MPIRUN" 3 "$MPIX_BUILDDIR/tests/faults/env" "$@"
