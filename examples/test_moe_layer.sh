#!/bin/sh
# test_moe_layer.sh - the C++ example on its data, forward and backward: both layouts, both dtypes,
# several numbers of ranks, among them one that divides neither tokens nor experts, and fewer tokens
# than ranks. The program judges itself by its exit status.
set -u

. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
tokens=
if [ "${MPIX_SANITIZED:-0}" = 1 ]; then tokens="--tokens 100"; fi # a part of the data must do

run() { # RANKS [OPTION ...]
    ranks=$1
    shift
    echo "== $ranks ranks: $*"
    "$MPIX_MPIRUN" "$ranks" "$MPIX_BUILDDIR/examples/moe_layer" --data \
        "$MPIX_SRCDIR/data/moe_layer" --repeat 2 "$@" ||
        { echo "FAILED with exit status $?"; exit 1; }
}

for ranks in 1 2 4 7; do
    for dtype in f32 bf16; do
        for layout in compact expert; do
            # shellcheck disable=SC2086 # two words or none
            run $ranks --dtype $dtype --layout $layout --backward $tokens
        done
    done
done
for layout in slots expert; do # low latency
    # shellcheck disable=SC2086
    run 4 --mode ll --layout $layout --backward $tokens
    run 3 --mode ll --layout $layout --dtype bf16 --tokens 40
done
for layout in compact expert; do
    run 7 --tokens 5 --layout $layout --backward # two ranks have no token, some experts no row
    run 4 --tokens 1 --layout $layout --backward --dtype bf16
done
