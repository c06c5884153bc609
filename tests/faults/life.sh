#!/bin/sh
# life.sh - memory after a failure: each kind of object, transport and fault once;
# life_all.sh has them all.
#
# covers: memory given back after a time-out | ht-proxied, p2p-proxied | tests/faults/life.sh
# covers: memory given back, peer killed | ll-proxied, p2p-mapped | tests/faults/life.sh
# covers: memory given back, stopped peer wakes | p2p-copied, p2p-proxied, ht-proxied | tests/faults/life.sh
# covers: memory given back after a failure, every object and transport | ht-mapped, ht-proxied, ll-mapped, ll-proxied, p2p-mapped, p2p-copied, p2p-proxied | tests/faults/life_all.sh
# covers: allocations come and go | ht-mapped | tests/faults/life.sh
set -u
LIFE_JOBS=5
# shellcheck source=tests/faults/life_run.sh
. "$MPIX_SRCDIR/tests/faults/life_run.sh"
life chaos:shmem stall-here ep
life chaos:shmem stall-here p2p-reg
life mapped stopped p2p-reg
life chaos:ucx stall-there ep
life shmem killed ep-ll
life ucx stopped p2p-free
life mapped killed p2p-alloc
life chaos:shmem stall-here p2p-rmem
life chaos:shmem stall-here p2p-free
life shmem stopped ep-register
"$MPIX_MPIRUN" 2 "$life_build/tests/faults/life_places" || touch "$life_out/failed"
life_end
