#!/bin/sh
# survivors.sh - runs an MPI program in which one rank dies: the others must live on and pass.
#
#   survivors.sh NP PROGRAM [ARG ...]
#
# The launcher must let the others live; its exit status and, with Hydra, what it passes on of
# their output say nothing. So ranks write into a file, and each survivor's verdict is counted
# there. The result is 0 if NP - 1 ranks have passed, or as many as are left where
# MPIX_SURVIVORS_DEAD ranks die.
set -u

np=$1
live=$((np - ${MPIX_SURVIVORS_DEAD:-1}))
shift
build=${MPIX_BUILDDIR:-.}
out=$(mktemp) || exit 99
trap 'rm -f "$out"' EXIT
# Open MPI over TCP, because its shared memory segments would stay behind.
export OMPI_MCA_orte_enable_recovery=1 PRTE_MCA_state_base_recoverable=1 \
    PRTE_MCA_state_base_continuous=1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo \
    OMPI_MCA_pml=ob1
conf_mpiexec=
# shellcheck source=/dev/null
[ ! -r "$build/tests/mpirun.conf" ] || . "$build/tests/mpirun.conf"
launcher=${MPIEXEC:-$conf_mpiexec}
# shellcheck disable=SC2086
case $($launcher --version 2>&1) in *HYDRA*) export MPIEXEC="$launcher -disable-auto-cleanup -n" \
    ;; esac

# Hydra tells its children of the death by SIGUSR1, which ends a program that has not asked for it,
# and ends them soon after. So its children are shells, and the ranks theirs.
MPIX_SURVIVORS_OUT=$out
export MPIX_SURVIVORS_OUT
# shellcheck disable=SC2016 # the inner shell expands it
"$MPIX_MPIRUN" "$np" sh -c 'trap "" USR1; "$@" >>"$MPIX_SURVIVORS_OUT" 2>&1' sh "$@"
count() { passed=$(grep -c 'passed, 0 failures' "$out"); }
count
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do # a launcher may end before them
    [ "$passed" -lt $live ] || break
    sleep 0.5
    count
done
cat "$out"
if [ "$passed" -ne $live ]; then
    echo "survivors.sh: $passed of $live survivors passed"
    exit 1
fi
