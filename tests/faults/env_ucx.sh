#!/bin/sh
# env_ucx.sh - over libucp: segments of TCP that are not the same on all ranks, and several threads
# that create contexts at once.
# covers: settings of libucp differ between ranks | ht-proxied, ll-proxied, p2p-proxied | tests/faults/env_ucx.sh
# covers: threads create objects at once | create | tests/faults/env_ucx.sh
set -u
if [ ! -e "$MPIX_BUILDDIR/libmpixep_ucx.so" ]; then
    echo "left out: libmpixep_ucx.so was not built"
    exit 77
fi
export MPIX_EP_LOG_LEVEL=none MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=ucx MPIXEP_UCX_TLS=tcp,self \
    MPIX_TEST_TIMEOUT=200
"$MPIX_MPIRUN" 2 "$MPIX_BUILDDIR/tests/faults/env" --segments 1 || exit
"$MPIX_MPIRUN" 2 "$MPIX_BUILDDIR/tests/faults/env" --threads 3
