#!/bin/sh
# mpirun.sh - runs an MPI program for a test.
#
#   mpirun.sh NP PROGRAM [ARG ...]
#
# Starts PROGRAM on NP ranks with the launcher that configure found, or with the environment
# variable MPIEXEC, which may have arguments. If the last word of the launcher begins with "-", NP
# follows it at once ("srun -n"), otherwise "-n NP" does. What only one MPI needs is said in
# environment variables, which the others ignore. The result is the program's; 124 after a time-out
# of MPIX_TEST_TIMEOUT seconds (default 300), 99 (an error of the test's surroundings) if the
# launcher does not start jobs of the right size. MPIX_BUILDDIR names the build tree, default ".".
set -u

die() { echo "mpirun.sh: $*" >&2; exit 99; }

[ $# -ge 2 ] || die "usage: mpirun.sh NP PROGRAM [ARG ...]"
np=$1 program=$2
shift
case $np in *[!0-9]* | '' | 0) die "the number of ranks is '$np', expected a positive number" ;; \
    esac

build=${MPIX_BUILDDIR:-.}
conf_mpiexec=
# shellcheck source=/dev/null
[ ! -r "$build/tests/mpirun.conf" ] || . "$build/tests/mpirun.conf"
launcher=${MPIEXEC:-$conf_mpiexec}
[ -n "$launcher" ] || die "no launcher: set MPIEXEC"
case ${launcher##* } in -*) ;; *) launcher="$launcher -n" ;; esac
limit=${MPIX_TEST_TIMEOUT:-300}

# Open MPI: root, more ranks than cores, and no binding then (two ranks bound to one core would wait
# for each other).
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 \
        PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
if [ "$np" -gt "$(nproc 2>/dev/null || echo 1)" ]; then
    export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none \
        OMPI_MCA_mpi_yield_when_idle=1
    # MPICH has no such setting: see tests/yield.c. The address sanitizer wants to be the first
    # library, which it need not be before this one.
    if [ -e "$build/tests/yield.so" ]; then
        yield=$(cd "$build/tests" && pwd)/yield.so
        set -- env "LD_PRELOAD=$yield${LD_PRELOAD:+:$LD_PRELOAD}" \
            "ASAN_OPTIONS=verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" "$@"
    fi
fi

# $launcher is split on purpose: it may have arguments. The program gets no standard input: a
# launcher in the background would stop on it.
start() { # LIMIT NP PROGRAM [ARG ...]
    start_limit=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 10 "$start_limit" $launcher "$@" </dev/null
}

# Once per build and launcher.
probe=$build/tests/probe_size
if [ -x "$probe" ]; then
    passed=$build/tests/mpirun.probe
    # shellcheck disable=SC3013 # -nt is in every shell that is /bin/sh on Linux
    if [ "$(cat "$passed" 2>/dev/null)" != "$launcher" ] || [ "$probe" -nt "$passed" ]; then
        output=$(start 120 2 "$probe" 2 2>&1)
        code=$?
        if [ $code -ne 0 ]; then
            printf '%s\n' "$output" >&2
            die "'$launcher 2' does not start a job of 2 ranks (exit status $code)." \
                "Is it the launcher of the MPI in use? Set MPIEXEC."
        fi
        printf '%s\n' "$launcher" >"$passed.$$" && mv -f "$passed.$$" "$passed"
    fi
fi

start "$limit" "$np" "$@"
code=$?
[ $code -ne 124 ] || echo "mpirun.sh: $program on $np ranks did not end within $limit s" >&2
exit $code
