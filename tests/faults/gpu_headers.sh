#!/bin/sh
# gpu_headers.sh - the CUDA module's host code with the headers of CUDA 12.0 to 13, which come from
# PyPI (some 25 MB) and stay in tests/faults/cuda of the build tree: what an older toolkit lacks
# must have a way around it. Of sources with kernels, which nvcc alone compiles, the calls of the
# runtime are looked up. The result is 77 (left out) where the packages can't be had.
#
# covers: a toolkit that lacks newer calls | create | tests/faults/gpu_headers.sh
set -u
src=${MPIX_SRCDIR:-.}
keep=${MPIX_BUILDDIR:-.}/tests/faults/cuda
mkdir -p "$keep" || exit 99
keep=$(cd "$keep" && pwd)
failed=0 compiled=0

# get PACKAGE VERSION: the folder with its headers, on stdout.
get() {
    to=$keep/$1-$2
    if [ ! -e "$to/complete" ]; then
        rm -rf "$to" && mkdir -p "$to" &&
            python3 -m pip download -q --no-deps -d "$to" "$1==$2" >&2 &&
            (cd "$to" && python3 -m zipfile -e ./*.whl . && rm -f ./*.whl) &&
            touch "$to/complete" || return 1
    fi
    find "$to" -type d -name include ! -path '*/nvvm/*' | head -1
}
skip() {
    echo "left out: $1"
    exit 77
}
python3 -m pip --version >/dev/null 2>&1 || skip "there is no pip"
crt12=$(get nvidia-cuda-nvcc-cu12 12.0.140) && crt13=$(get nvidia-cuda-crt 13.0.88) ||
    skip "PyPI can't be reached"

calls=$(cat "$src"/kernels/cuda/*/*.cuh "$src"/kernels/cuda/common/launch.h \
    "$src"/kernels/cuda/*/*.cu | grep -o '\bcuda[A-Z][A-Za-z0-9]*(' | tr -d '(' | sort -u)
[ -n "$calls" ] || exit 99
for version in 12.0.146 12.4.127 12.6.77 12.8.90 12.9.79 13.0.96; do
    case $version in
    12*) package=nvidia-cuda-runtime-cu12 crt=$crt12 ;;
    *) package=nvidia-cuda-runtime crt=$crt13 ;;
    esac
    headers=$(get $package $version) || skip "$package $version can't be had"
    compiled=$((compiled + 1))
    for unit in "$src"/src/gpu/module*.cu; do
        if ! ${CXX:-g++} -std=c++17 -fsyntax-only -Wall -Wextra -Werror -x c++ "-I$src/include" \
            "-I$src/kernels/cuda" "-I$src/src" "-I$src" -isystem "$headers" -isystem "$crt" \
            "$unit" >"$keep/log" 2>&1; then
            echo "CUDA $version: ${unit##*/} FAILED"
            grep error "$keep/log" | head -5
            failed=$((failed + 1))
        fi
    done
    for call in $calls; do
        if ! grep -qw "$call" "$headers"/cuda_runtime*.h; then
            echo "CUDA $version: there is no $call"
            failed=$((failed + 1))
        fi
    done
done
echo "gpu_headers: $compiled versions, $(echo $calls | wc -w) calls looked up, $failed failures"
[ $failed = 0 ]
