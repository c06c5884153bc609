#!/bin/sh
# plot.sh - the benchmarks' SVG files: whole, with as many curves or bars as there are kinds, and
# numbers that are numbers.
set -u
. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
fail() { echo "plot.sh: $1"; cat "$work"/*.svg; exit 1; }
drawn() { # FILE ELEMENT NUMBER TEXT: so many of an element, and a text that must be there
    tail -n 1 "$1" | grep -qx '</svg>' || fail "$1 is not whole"
    [ "$(grep -c "<$2 " "$1")" -eq "$3" ] || fail "$1: expected $3 of $2"
    grep -q -- "$4" "$1" || fail "$1: \"$4\" is not there"
    if grep -qiE '(nan|inf)[^a-z]' "$1"; then fail "$1 has numbers that are none"; fi
}
ep="$MPIX_BUILDDIR/mpix_ep_bench --hidden 64 --num-experts 8 --num-topk 2 --dtype f32 -i 4 -x 1"
# shellcheck disable=SC2086
"$MPIX_MPIRUN" 2 $ep -m 8:64 --plot "$work/curves.svg" >"$work/out" 2>&1 ||
    { cat "$work/out"; exit 1; }
drawn "$work/curves.svg" polyline 4 'combine by MPI'
[ "$(grep -c '<circle ' "$work/curves.svg")" -eq 16 ] ||
    fail "expected 4 points on each of 4 curves"
# shellcheck disable=SC2086
"$MPIX_MPIRUN" 2 $ep --num-tokens 32 --baseline none --plot "$work/bars.svg" >"$work/out" 2>&1 ||
    { cat "$work/out"; exit 1; }
drawn "$work/bars.svg" 'rect x="190"' 2 'route + dispatch'
# shellcheck disable=SC2086
if "$MPIX_MPIRUN" 2 $ep --num-tokens 32 --plot "$work/none/x.svg" >"$work/out" 2>&1; then fail \
    "a file that can't be written was taken"; fi
grep -q -- '--plot .*x.svg: No such file' "$work/out" || { cat "$work/out"; exit 1; }
"$MPIX_MPIRUN" 2 "$MPIX_BUILDDIR/mpix_p2p_bench" -m 8:64 -i 10 --plot "$work/p2p.svg" >"$work/out" \
    2>&1 || { cat "$work/out"; exit 1; }
drawn "$work/p2p.svg" polyline 3 'MPIX_P2p'
"$MPIX_MPIRUN" 3 "$MPIX_BUILDDIR/mpix_p2p_bench" -t pairs -m 8:64 -i 10 --plot "$work/pairs.svg" \
    >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
drawn "$work/pairs.svg" polyline 2 '3 ranks'
[ -z "${MPIX_KEEP_PLOTS:-}" ] || cp "$work"/*.svg "$MPIX_KEEP_PLOTS"
