#!/bin/sh
# info.sh - mpix_ep_info under the launcher: the matrix of mapped and proxied pairs, its reasons,
# and the self-test over both.
set -u

. "$MPIX_SRCDIR/tests/mpi_leaks.sh"
info=$MPIX_BUILDDIR/mpix_ep_info
fail() {
    echo "info.sh: $1" >&2
    printf '%s\n' "$output" >&2
    exit 1
}
wants() { printf '%s\n' "$output" | grep -q -- "$1" || fail "no line with \"$1\""; }

output=$("$MPIX_MPIRUN" 2 "$info" --matrix 2>&1) || fail "the matrix of mapped ranks failed"
wants '^  shm  *mapped '
wants '^in GPU memory'
wants '^  .* (2 ranks, the first 0)'
export MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_LANES=2
output=$("$MPIX_MPIRUN" 3 "$info" --matrix --selftest 2>&1) ||
    fail "matrix and self-test over proxied ranks failed"
wants '^  shm  *mapped '
proxied='^  chaos:shmem proxied .*device .*MTU none, 2 lanes, counted signals'
wants "$proxied, run by the caller; chaos_reorder"
wants '^self-test: .*: pass'
output=$(MPIX_EP_PROXY_THREADS=2 "$MPIX_MPIRUN" 3 "$info" --matrix --selftest 2>&1) ||
    fail "matrix and self-test with two threads failed"
wants '^  chaos:shmem proxied .*counted signals, run by 2 threads; '
wants '^self-test: .*: pass'
# A network that fails: the exit status and the message say so.
output=$(MPIX_EP_CHAOS_FAIL_PPM=1000000 MPIX_EP_TIMEOUT=1 MPIX_EP_LOG_LEVEL=none "$MPIX_MPIRUN" 2 \
    "$info" --selftest 2>&1) &&
    fail "the self-test passed over a network that fails"
wants ' ERROR'
wants 'chaos: operation'
output=$(MPIX_EP_CHAOS_FAIL_CALL=connect "$MPIX_MPIRUN" 2 "$info" --matrix 2>&1) &&
    fail "the matrix is fine without a network"
wants 'chaos_fail_call'
# Sizes of every mode and layout, and what was built in.
output=$("$info" --window-size --mode ll --max-tokens 128 2>&1) ||
    fail "no window size of low latency"
wants 'mode ll, layout slots, host memory'
output=$("$info" --window-size --mode ll --layout expert --memory cuda --max-tokens 128 2>&1) ||
    fail "no window size of low latency on GPUs"
wants 'mode ll, layout expert, cuda memory'
output=$("$info" --window-size --layout slots 2>&1) && fail "mode ht has no layout slots"
output=$("$info" --build 2>&1) || fail "--build failed"
wants '^  GPU memory '
wants '^  Fortran module '
wants '^  configured with '
printf '%s\n' "$output" | grep -q 'network transports.*chaos' &&
    fail "a transport of tests is shown as a network"
# Parameters of tests are listed on demand only.
output=$("$info" --params 2>&1) || fail "--params failed"
wants '^transport = '
printf '%s\n' "$output" | grep -q '^chaos_' && fail "--params lists parameters of tests"
output=$("$info" --params --all 2>&1) || fail "--params --all failed"
wants '^chaos_seed = '
"$info" --all >/dev/null 2>&1
[ $? -eq 2 ] || fail "--all without --params is not refused"
exit 0
