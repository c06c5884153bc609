#!/bin/sh
# waits.sh - set-up calls whose peer does not take part end in time; the name says how, over what,
# and which calls.
#
#   waits.sh PATH/waits_PEER[_far][_CALL].RANKS.test
#
# covers: set-up call, peer's object has failed | ht-mapped, ll-mapped, p2p-mapped | tests/faults/waits_failed.3.test
# covers: set-up call, peer's object has failed | ht-proxied, ll-proxied, p2p-proxied | tests/faults/waits_failed_far.3.test
# covers: set-up call, peer never comes | create, ht-mapped, p2p-mapped | tests/faults/waits_absent_some.3.test
# covers: set-up call, peer never comes | ll-mapped | tests/faults/waits_absent.3.test
# covers: set-up call, peer never comes | ht-proxied, ll-proxied, p2p-proxied | tests/faults/waits_absent_far.3.test
# covers: set-up call, peer is in another call | ht-mapped, p2p-mapped | tests/faults/waits_elsewhere_some.3.test
# covers: set-up call, peer is in another call | ll-mapped | tests/faults/waits_elsewhere.3.test
# covers: set-up call, peer is in another call | ht-proxied, ll-proxied, p2p-proxied | tests/faults/waits_elsewhere_far.3.test
# covers: set-up call, peer is killed | create | tests/faults/waits_killed_ep_create.3.test
# covers: set-up call, peer is killed | ht-mapped | tests/faults/waits_killed_alloc.3.test
# covers: set-up call, peer is killed | ll-mapped | tests/faults/waits_killed_combine_buffer.3.test
# covers: set-up call, peer is killed | p2p-mapped | tests/faults/waits_killed_p2p_alloc.3.test
# covers: free, peer is killed | p2p-mapped | tests/faults/waits_freed_p2p_alloc.3.test
# covers: free, peer is killed | p2p-proxied | tests/faults/waits_freed_far_p2p_alloc.3.test
# covers: free, peer is killed | ht-proxied | tests/faults/waits_freed_far_alloc.3.test
# covers: infinite and huge time limits | ht-mapped, p2p-mapped, create | tests/faults/waits_limits.2.test
# covers: infinite and huge time limits | ht-proxied, p2p-proxied | tests/faults/waits_limits_far.2.test
# covers: another context's failure in MPIX_Error_last | ht-mapped | tests/faults/waits_last.2.test
# covers: another context's network stands still | ht-proxied, ll-proxied | tests/faults/waits_apart.2.test
set -u

# shellcheck source=tests/faults/prologue.sh
. "$(dirname "$0")/prologue.sh"
export MPIX_EP_LOG_LEVEL=none

case $name in
waits_apart) exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/waits_apart" --proxy caller ;;
waits_apart_thread) exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/waits_apart" --proxy thread ;;
esac
call=${name#waits_}
peer=${call%%_*}
call=${call#"$peer"}
case $call in _far*) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied ;; esac
call=${call#_far}
call=${call#_}
[ "$call" != some ] || call=ep_create,handle_create,p2p_alloc
set -- --peer "$peer" --call "$call"
case $peer in
killed | freed) exec "$MPIX_SRCDIR/tests/survivors.sh" "$np" "$build/tests/faults/waits" "$@" ;;
esac
exec "$MPIX_MPIRUN" "$np" "$build/tests/faults/waits" "$@"
