#!/bin/sh
# alloc.sh - runs one test of failed allocations and system calls: the name says what
# and how many ranks.
#
#   alloc.sh PATH/alloc_VARIANT.RANKS.test
#
# covers: failed allocation | ht-mapped, create | tests/faults/alloc_ht.3.test
# covers: failed allocation, windows passed by sockets | create | tests/faults/alloc_ht_socket.3.test
# covers: failed allocation | ht-proxied | tests/faults/alloc_ht_proxied.3.test
# covers: failed allocation | ht-hops | tests/faults/alloc_ht_hops.4.test
# covers: failed allocation | ll-mapped | tests/faults/alloc_ll.3.test
# covers: failed allocation | ll-proxied | tests/faults/alloc_ll_proxied.3.test
# covers: failed allocation | p2p-mapped, create | tests/faults/alloc_p2p.3.test
# covers: failed allocation | p2p-copied | tests/faults/alloc_p2p_copied.3.test
# covers: failed allocation | p2p-proxied | tests/faults/alloc_p2p_proxied.3.test
# covers: system call refused by a filter | ht-mapped, create | tests/faults/alloc_refused.3.test
# covers: system call refused by a filter | p2p-proxied | tests/faults/alloc_refused_p2p_proxied.3.test
# covers: failed system call | p2p-proxied | tests/faults/alloc_system_p2p_proxied.3.test
# covers: failed system call | ht-mapped, create | tests/faults/alloc_system.3.test
# covers: failed system call | ht-proxied | tests/faults/alloc_system_proxied.3.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"

program=alloc_ep
case $name in *_p2p*) program=alloc_p2p ;; esac
set --
# What fails, and whether it stays so, stands first in the name.
case $name in
alloc_system*) set -- --what system ;;
alloc_refused*) set -- --what refused ;;
alloc_sticky*) set -- --sticky 1 ;;
esac
case $name in *_proxied* | *_hops* | *_threads*) export MPIX_EP_TRANSPORT=shmem ;; esac
case $name in
*_hops*) export MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on ;;
*_threads*) export MPIX_EP_REACH=proxied MPIX_EP_PROXY=thread MPIX_EP_SIGNAL=counted \
    MPIX_EP_LANES=2 ;;
*_proxied*) export MPIX_EP_REACH=proxied ;;
*_bases*) export MPIX_EP_COUNTS_RANKS=$((np - 1)) ;;
*_socket*) export MPIX_EP_FD_PASSING=socket ;;
*_copied*) export MPIX_EP_P2P_CMA=no MPIX_EP_P2P_EAGER=1k ;;
*_progress*) export MPIX_EP_PROGRESS=thread ;;
esac
case $name in
*_llexpert*) set -- "$@" --layout ll_expert ;;
*_ll*) set -- "$@" --layout slots ;;
*_expert*) set -- "$@" --layout expert ;;
*_p2p_copied* | *_reg*) set -- "$@" --registered 1 ;;
esac
echo "$name: $*"
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/$program" "$@"
