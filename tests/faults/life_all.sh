#!/bin/sh
# life_all.sh - memory after a failure: every object x transport x fault.
set -u
# shellcheck source=tests/faults/life_run.sh
. "$MPIX_SRCDIR/tests/faults/life_run.sh"
for object in ep ep-ll ep-register p2p-alloc p2p-reg p2p-rmem p2p-free; do
    for transport in mapped mapped-ask shmem ucx; do
        case $transport-$object in mapped-ask-ep*) continue ;; esac
        for fault in stopped killed; do
            life $transport $fault $object
        done
    done
    for at in 8 20 27; do
        for fault in stall-here stall-there; do
            life chaos:shmem $fault $object --stall-at $at
            life chaos:ucx $fault $object --stall-at $at
        done
    done
    MPIX_EP_PROXY_THREADS=2 MPIX_EP_LANES=2 life chaos:shmem stall-here $object
done
life_end
