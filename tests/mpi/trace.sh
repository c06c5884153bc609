#!/bin/sh
# trace.sh - the parameter trace: one file per process, JSON, with the calls and the proxy's
# commands; every begin has its end.
set -u

src=${MPIX_SRCDIR:-$(dirname "$0")/../..} build=${MPIX_BUILDDIR:-.}
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
fail() { echo "trace.sh: $*"; exit 1; }

export MPIX_EP_TRACE="$folder/%h.%p.json" MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied \
    MPIX_EP_PROXY=thread
MPIX_BUILDDIR=$build "${MPIX_MPIRUN:-$src/tests/mpirun.sh}" 2 "$build/tests/mpi/ep_random" \
    --iterations 3 || fail "ep_random failed"
unset MPIX_EP_TRACE
set -- "$folder"/*.json
[ $# -eq 2 ] || fail "$# files, one per rank was expected"
for file; do
    for name in route dispatch combine write signal; do
        begun=$(grep -c "\"ph\":\"b\".*\"name\":\"$name\"" "$file") \
            ended=$(grep -c "\"ph\":\"e\".*\"name\":\"$name\"" "$file")
        [ "$begun" -gt 0 ] || fail "$file has no $name"
        [ "$begun" -eq "$ended" ] || fail "$file: $name begins $begun times and ends $ended times"
    done
    grep -q '"name":"process_name"' "$file" || fail "$file does not say whose it is"
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys
times = [e["ts"] for e in json.load(open(sys.argv[1]))["traceEvents"] if "ts" in e]
assert len(times) > 20 and all(t > 0 for t in times)' "$file" ||
            fail "$file is not what a viewer reads"
    fi
done

# Several threads of the proxy: each is named and has commands of its own.
rm -f "$folder"/*
MPIX_EP_TRACE="$folder/%p.json" MPIX_EP_PROXY_THREADS=2 MPIX_EP_LANES=2 MPIX_BUILDDIR=$build \
    "${MPIX_MPIRUN:-$src/tests/mpirun.sh}" 2 "$build/tests/mpi/ep_random" --iterations 3 ||
    fail "ep_random with two threads of the proxy failed"
for file in "$folder"/*.json; do
    for thread in 0 1; do
        tids=$(sed -n "s/.*thread_name.*\"tid\":\([0-9]*\),.*mpixep-proxy$thread\".*/\1/p" "$file")
        [ -n "$tids" ] || fail "$file: thread $thread of the proxy has no name"
        for tid in $tids; do grep -q "\"name\":\"signal\".*\"tid\":$tid," "$file" &&
            continue 2; done
        fail "$file: thread $thread of the proxy has signalled nothing"
    done
done

# A folder that is not there is told of, and harms nobody.
output=$(MPIX_EP_TRACE="$folder/none/x" MPIX_BUILDDIR=$build \
    "${MPIX_MPIRUN:-$src/tests/mpirun.sh}" 1 "$build/tests/mpi/ep_random" --iterations 1 2>&1) ||
    fail "a trace that can't be written made the program fail"
case $output in *"can't be written"*) ;; *) fail "nobody was told: $output" ;; esac
echo "trace.sh: passed"
