#!/bin/sh
# alloc.sh - runs one test of failed allocations and system calls: the name says what and how many ranks.
#
#   alloc.sh PATH/alloc_VARIANT.RANKS.test
#
# covers: failed allocation | ht-mapped, create | tests/faults/alloc_ht.3.test
# covers: failed allocation | ht-proxied | tests/faults/alloc_ht_proxied.2.test
# covers: failed allocation | ht-hops | tests/faults/alloc_ht_hops.4.test
# covers: failed allocation | ll-mapped | tests/faults/alloc_ll.2.test
# covers: failed allocation | ll-proxied | tests/faults/alloc_ll_proxied.2.test
# covers: failed system call | ht-mapped, create | tests/faults/alloc_system.3.test
# covers: failed system call | ht-proxied | tests/faults/alloc_system_proxied.2.test
set -u

name=$(basename "$1" .test)
np=${name##*.}
name=${name%.*}
build=${MPIX_BUILDDIR:-.}
MPIX_SRCDIR=${MPIX_SRCDIR:-$(dirname "$0")/../..}
MPIX_MPIRUN=${MPIX_MPIRUN:-$MPIX_SRCDIR/tests/mpirun.sh}
MPIX_BUILDDIR=$build
export MPIX_BUILDDIR
# MPI's leaks are told by the library that allocates, which has no frame pointers.
[ "${MPIX_SANITIZED:-0}" = 0 ] || export ASAN_OPTIONS="fast_unwind_on_malloc=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

program=alloc_ep
set --
# What fails, and whether it stays so, stands first in the name.
case $name in
alloc_system*) set -- --what system ;;
alloc_sticky*) set -- --sticky 1 ;;
esac
case $name in *_proxied* | *_hops* | *_threads*) export MPIX_EP_TRANSPORT=shmem ;; esac
case $name in
*_hops*) export MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on ;;
*_threads*) export MPIX_EP_REACH=proxied MPIX_EP_PROXY=thread ;;
*_proxied*) export MPIX_EP_REACH=proxied ;;
*_bases*) export MPIX_EP_COUNTS_RANKS=$((np - 1)) ;;
*_progress*) set -- "$@" --progress thread ;;
esac
case $name in
*_llexpert*) set -- "$@" --layout ll_expert ;;
*_ll*) set -- "$@" --layout slots ;;
*_expert*) set -- "$@" --layout expert ;;
esac
echo "$name: $*"
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/$program" "$@"
