#!/bin/sh
# world.sh - runs one test of forks and of the host program's world: the name says case and ranks.
#
#   world.sh PATH/world_CASE.RANKS.test
#
# covers: comm's error handler | create | tests/faults/world_handlers.2.test
# covers: descriptors of many contexts | create | tests/faults/world_descriptors.5.test
# covers: MPI gives no shared communicator | create ht-mapped | tests/faults/world_singletons.3.test
# covers: containers of one machine | create ht-proxied | tests/faults/world_spaces.3.test
set -u

name=$(basename "$1" .test)
np=${name##*.}
name=${name%.*}
build=${MPIX_BUILDDIR:-.}
MPIX_SRCDIR=${MPIX_SRCDIR:-$(dirname "$0")/../..}
MPIX_BUILDDIR=$build
run=${MPIX_MPIRUN:-$MPIX_SRCDIR/tests/mpirun.sh}
export MPIX_SRCDIR MPIX_BUILDDIR MPIX_TEST_TIMEOUT=120
[ "${MPIX_SANITIZED:-0}" = 0 ] || export ASAN_OPTIONS="fast_unwind_on_malloc=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

case $name in
world_handlers) export MPIX_EP_LOG_LEVEL=none ;; # every one of them is wanted
world_descriptors | world_singletons) ;;
world_spaces) export MPIX_EP_TRANSPORT=null ;; # it is made and told, no row moves
*)
    echo "world.sh: no test is called $name" >&2
    exit 99
    ;;
esac
exec "$run" "$np" "$build/tests/faults/world" --case "${name#world_}"
