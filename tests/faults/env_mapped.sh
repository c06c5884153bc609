#!/bin/sh
# env_mapped.sh - every parameter set on one rank only, where ranks map each other's memory.
# Sanitizers are slow: a case of three.
# covers: settings differ between ranks | create, ht-mapped, ll-mapped, p2p-mapped | tests/faults/env_mapped.sh
set -eu
[ "${MPIX_SANITIZED:-0}" = 0 ] || set -- --every 3
MPIX_EP_LOG_LEVEL=none MPIX_TEST_TIMEOUT=200 exec "$MPIX_MPIRUN" 2 \
    "$MPIX_BUILDDIR/tests/faults/env" "$@"
