#!/bin/sh
# blame.sh - who is named when a rank is absent, stopped or killed: each fault, mode, layout, reach,
# phase, and each rank as the victim.
#
#   blame.sh PATH/blame_REACH_FAULT.RANKS.test
#
# covers: absent peer is named | ht-mapped, ll-mapped | tests/faults/blame_mapped_absent.5.test
# covers: absent peer is named | ht-proxied, ll-proxied | tests/faults/blame_proxied_absent.5.test
# covers: absent peer is named | ht-hops | tests/faults/blame_hops_absent.7.test
# covers: absent peer is named | p2p-mapped | tests/faults/blame_p2p_mapped_absent.5.test
# covers: absent peer is named | p2p-copied | tests/faults/blame_p2p_copied_absent.5.test
# covers: absent peer is named | p2p-proxied | tests/faults/blame_p2p_proxied_absent.5.test
# covers: stopped peer is named | ht-mapped, ll-mapped | tests/faults/blame_mapped_stopped.5.test
# covers: stopped peer is named | ht-proxied, ll-proxied | tests/faults/blame_proxied_stopped.5.test
# covers: stopped peer is named | ht-hops | tests/faults/blame_hops_stopped.7.test
# covers: stopped peer is named | p2p-mapped | tests/faults/blame_p2p_mapped_stopped.5.test
# covers: stopped peer is named | p2p-copied | tests/faults/blame_p2p_copied_stopped.5.test
# covers: stopped peer is named | p2p-proxied | tests/faults/blame_p2p_proxied_stopped.5.test
# covers: killed peer is named | ht-mapped, ll-mapped | tests/faults/blame_mapped_killed.5.test
# covers: killed peer is named | ht-proxied, ll-proxied | tests/faults/blame_proxied_killed.5.test
# covers: killed peer is named | ht-hops | tests/faults/blame_hops_killed.7.test
# covers: killed peer is named | p2p-mapped | tests/faults/blame_p2p_mapped_killed.5.test
# covers: killed peer is named | p2p-copied | tests/faults/blame_p2p_copied_killed.5.test
# covers: killed peer is named | p2p-proxied | tests/faults/blame_p2p_proxied_killed.5.test
# covers: peer stopped in mid-call is named | ht-mapped, ll-mapped | tests/faults/blame_mapped_midway.5.test
# covers: peer stopped in mid-call is named | ht-proxied, ll-proxied | tests/faults/blame_proxied_midway.5.test
# covers: peer stopped in mid-call is named | ht-hops | tests/faults/blame_hops_midway.5.test
# covers: peer killed in mid-call is named | ht-mapped, ll-mapped | tests/faults/blame_mapped_ended.5.test
# covers: peer killed in mid-call is named | ht-proxied, ll-proxied | tests/faults/blame_proxied_ended.5.test
# covers: peer killed in mid-call is named | ht-hops | tests/faults/blame_hops_ended.7.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"
export MPIX_EP_LOG_LEVEL=none

fault=${name##*_}
reach=${name%_*}
program=blame memory=alloc
case $reach in blame_p2p_*) program=blame_p2p ;; esac
case $reach in
*_mapped) ;;
*_copied) memory=reg ;;
*_proxied) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied ;;
*_hosts) export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2 ;;
*_hops) export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on \
    MPIX_EP_TWO_HOPS_CHUNKS=1 MPIX_EP_CHUNK_BYTES=1k ;;
*_hops3) export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=3 MPIX_EP_TWO_HOPS=on \
    MPIX_EP_TWO_HOPS_CHUNKS=1 MPIX_EP_CHUNK_BYTES=1k MPIX_EP_SIGNAL=counted ;;
*_thread) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_PROXY=thread \
    MPIX_EP_PROGRESS=thread ;;
*)
    echo "blame.sh: no test is called $name" >&2
    exit 99
    ;;
esac
case $fault in
killed | ended)
    MPIX_SURVIVORS_DEAD=$(((np + 1) / 2))
    export MPIX_SURVIVORS_DEAD
    exec "$MPIX_SRCDIR/tests/survivors.sh" "$np" "$build/tests/faults/$program" --faults "$fault" \
        --mem $memory
    ;;
esac
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/$program" --faults "$fault" --mem $memory
