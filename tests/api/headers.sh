#!/bin/sh
# headers.sh - each public header compiles alone, without warnings: C's as C11 and as C++17, the C++
# header as C++17 and C++20.
#
#   headers.sh INCLUDE-DIR [MPI-FLAG ...]    CC and CXX: the compilers
set -u
include=$1
shift
failed=0
try() { # COMPILER LANGUAGE STANDARD HEADER MPI-FLAG ...
    compiler=$1 language=$2 standard=$3 header=$4
    shift 4
    printf '#include <%s>\nint main(void) { return 0; }\n' "$header" |
        $compiler -x "$language" -std="$standard" -Wall -Wextra -Wpedantic -Wshadow -Werror \
            -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX \
            -I"$include" "$@" -fsyntax-only - && return
    echo "$header does not compile alone as $standard with $compiler"
    failed=$((failed + 1))
}
for header in "$include"/*.h; do
    header=${header##*/}
    try "${CC:-cc}" c c11 "$header" "$@"
    try "${CXX:-c++}" c++ c++17 "$header" "$@"
done
for header in "$include"/*.hpp; do
    header=${header##*/}
    try "${CXX:-c++}" c++ c++17 "$header" "$@"
    try "${CXX:-c++}" c++ c++20 "$header" "$@"
done
[ $failed = 0 ]
