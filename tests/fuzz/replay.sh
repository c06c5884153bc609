#!/bin/sh
# replay.sh - in `make check`: the kept inputs of each target, and some thousand mutations of them,
# without libFuzzer.
# covers: windows hold what no peer would write | ht-mapped, ht-proxied, ll-mapped | tests/fuzz/replay.sh
# covers: addresses and keys that no peer would send | create | tests/fuzz/replay.sh
# covers: files, options and parameters of any content | create | tests/fuzz/replay.sh
set -u
runs=2000
[ "${MPIX_SANITIZED:-0}" = 0 ] || runs=500
status=0
for target in $MPIX_FUZZ_TARGETS; do
    program=$MPIX_BUILDDIR/tests/fuzz/$target
    case $target in peer_*) program="$MPIX_MPIRUN 2 $program" ;; esac
    # shellcheck disable=SC2086
    if ! output=$(
        # Contexts that were given up keep their communicators, which are MPI's.
        case $target in peer_*) . "$MPIX_SRCDIR/tests/mpi_leaks.sh" ;; esac
        $program -runs=$runs -seed="${FUZZ_SEED:-1}" "$MPIX_SRCDIR/tests/fuzz/corpus/$target" 2>&1
    ); then
        printf '%s\n' "$output" | tail -n 40
        echo "replay.sh: $target failed"
        status=1
    else
        echo "$target: $output"
    fi
done
exit $status
