#!/bin/sh
# env_full.sh - every parameter set on one rank only: all words of enums, by environment and info
# key, on the first and the last rank, for every object; mapped, over shmem in both forms of
# signals, with two hops, with several threads of the proxy, and over libucp.
set -u
export MPIX_EP_LOG_LEVEL=none MPIX_TEST_TIMEOUT=900
failed=0
run() { # NP [VARIABLE=VALUE ...]
    np=$1
    shift
    echo "== $np ranks, $*"
    env "$@" "$MPIX_MPIRUN" "$np" "$MPIX_BUILDDIR/tests/faults/env" --all 1 || failed=1
}
run 2
run 3 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem
run 3 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_TWO_HOPS=on
run 3 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted MPIX_EP_PROXY_THREADS=2 \
    MPIX_EP_LANES=3
[ ! -e "$MPIX_BUILDDIR/libmpixep_ucx.so" ] || run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=ucx \
    MPIXEP_UCX_TLS=tcp,self
if [ -e "$MPIX_BUILDDIR/libmpixep_ucx.so" ]; then
    export MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=ucx MPIXEP_UCX_TLS=tcp,self
    "$MPIX_MPIRUN" 3 "$MPIX_BUILDDIR/tests/faults/env" --segments 1 --all 1 || failed=1
    MPIX_EP_TRANSPORT=chaos:ucx MPIX_EP_CHAOS_REORDER=no "$MPIX_MPIRUN" 2 \
        "$MPIX_BUILDDIR/tests/faults/env" --segments 1 --all 1 || failed=1
    MPIXEP_UCX_TLS=all "$MPIX_MPIRUN" 2 "$MPIX_BUILDDIR/tests/faults/env" --segments 1 --all 1 ||
        failed=1
fi
exit $failed
