#!/usr/bin/env bash
# run.sh - `make check-fuzz`: every target under clang's libFuzzer, with the address and undefined
# behaviour sanitizers, for FUZZ_SECONDS each (default 60), from the kept inputs. What it finds is
# added to them by hand (tests/fuzz/corpus).
#
#   run.sh SOURCE-TREE BUILD-TREE TARGET ...
set -u
src=$1 build=$2
shift 2
seconds=${FUZZ_SECONDS:-60}
command -v clang >/dev/null || { echo \
    "check-fuzz: clang is not there (Debian: clang, libclang-rt-14-dev)"; exit 1; }
tree=$build/fuzz
mkdir -p "$tree" || exit 1
log=$tree/fuzz-build.log
if ! { [ -e "$tree/Makefile" ] || (cd "$tree" && "$src/configure" CC=clang CXX=clang++ \
    --disable-shared --without-cuda --enable-fuzz \
    --enable-asan --enable-ubsan CFLAGS="-g -O1" CXXFLAGS="-g -O1"); } >"$log" 2>&1 ||
    ! make -C "$tree" -j"$(nproc)" "${@/#/tests/fuzz/}" >>"$log" 2>&1; then
    tail -n 40 "$log"
    echo "check-fuzz: the build failed, see $log"
    exit 1
fi
failed=0
for target; do
    found=$tree/found/$target
    mkdir -p "$found"
    program=("$tree/tests/fuzz/$target")
    case $target in peer_*) program=("$src/tests/mpirun.sh" 2 "${program[@]}") ;; esac
    if ASAN_OPTIONS=detect_leaks=0 MPIX_BUILDDIR=$tree MPIX_TEST_TIMEOUT=$((seconds * 3 + 120)) \
        LSAN_OPTIONS=suppressions=$src/tests/lsan.supp:print_suppressions=0 \
        timeout $((seconds * 3 + 120)) "${program[@]}" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=4096 -max_len=4096 \
        -artifact_prefix="$found/crash-" -detect_leaks=0 -print_final_stats=1 "$found" \
        "$src/tests/fuzz/corpus/$target" >"$tree/$target.log" 2>&1; then
        echo "check-fuzz: $target: pass," \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$tree/$target.log") inputs" \
            "in $seconds s"
    else
        grep -E 'ERROR|SUMMARY|FUZZ|\.c:|crash-' "$tree/$target.log" | head -n 20
        echo "check-fuzz: $target: FAIL, see $tree/$target.log and $found"
        failed=1
    fi
done
exit $failed
