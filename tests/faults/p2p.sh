#!/bin/sh
# p2p.sh - complete means complete, and the target is safe: the name says what, how ranks reach each
# other, and who runs the proxy.
#
#   p2p.sh PATH/PROGRAM_REACH_PROXY.RANKS.test, PATH/p2p_remedy.RANKS.test
#
# covers: complete, then MPI only | p2p-mapped | tests/faults/p2p_complete_mapped_caller.2.test
# covers: complete, then MPI only | p2p-copied | tests/faults/p2p_complete_copied_caller.2.test
# covers: complete, then MPI only | p2p-proxied | tests/faults/p2p_complete_chaos_caller.2.test
# covers: a target that calls nothing | p2p-copied | tests/faults/p2p_remedy.2.test
# covers: memory of the target is not as registered | p2p-mapped | tests/faults/p2p_target_mapped_caller.2.test
# covers: memory of the target is not as registered | p2p-copied | tests/faults/p2p_target_copied_caller.2.test
# covers: memory of the target is not as registered | p2p-proxied | tests/faults/p2p_target_ucx_thread.2.test
# covers: complete, then MPI only | ht-mapped, ll-mapped | tests/faults/ep_complete_mapped_caller.3.test
# covers: complete, then MPI only | ht-proxied, ll-proxied | tests/faults/ep_complete_chaos_caller.3.test
# covers: complete, then MPI only | ht-hops | tests/faults/ep_complete_hops_caller.3.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"
export MPIX_EP_LOG_LEVEL=none

case $name in
p2p_remedy)
    export MPIX_EP_P2P_CMA=no
    exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/p2p_complete" --case remedy
    ;;
esac

who=${name##*_}
reach=${name%_*}
program=${reach%_*}
reach=${reach##*_}
case $who in
caller | thread) export MPIX_EP_PROXY="$who" ;;
progress) export MPIX_EP_PROGRESS=thread ;;
esac
case $reach in
mapped) ;;
copied) export MPIX_EP_P2P_CMA=no ;;
ordered) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_LANES=2 ;;
counted) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted ;;
chaos) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_CHAOS_DELAY_US=1000 ;;
chaosordered)
    export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_CHAOS_DELAY_US=1000
    export MPIX_EP_CHAOS_REORDER=no MPIX_EP_SIGNAL=ordered
    ;;
hops)
    export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on \
        MPIX_EP_TWO_HOPS_CHUNKS=1 MPIX_EP_CHUNK_BYTES=1k
    export MPIX_EP_CHAOS_DELAY_US=1000
    ;;
ucx) # over TCP on this host; a build without libucp has nothing to test
    if [ ! -e "$build/libmpixep_ucx.so" ]; then
        echo "left out: libmpixep_ucx.so was not built"
        exit 77
    fi
    export MPIX_EP_TRANSPORT=ucx MPIX_EP_REACH=proxied MPIXEP_UCX_TLS=tcp,self
    ;;
*)
    echo "p2p.sh: no test is called $name" >&2
    exit 99
    ;;
esac
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/$program"
