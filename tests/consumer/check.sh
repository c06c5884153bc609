#!/bin/sh
# check.sh - an installed copy, as its users meet it: the README's program and the examples by
# pkg-config, a CMake project, the manual.
#
#   check.sh PREFIX SOURCE-TREE LAUNCHER      in an empty folder. PREFIX may have been moved.
#                                             CC, CXX, FC: the compilers
set -eu
prefix=$1 src=$2 launcher=$3
work=$PWD
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
say() { echo "consumer: $*"; }
run() { timeout 120 $launcher -n 3 "$@" </dev/null; }

# pkg-config is told nothing but where the files are: --define-prefix takes the prefix from there.
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name mpix-ep.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
pc() { pkg-config --define-prefix "$@"; }
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$src/README.md" >c_program.c
# shellcheck disable=SC2046
${CC:-cc} -Wall -Wextra -Werror -o c_program c_program.c $(pc --cflags --libs mpix-ep) \
    -Wl,-rpath,"$libdir"
run ./c_program | grep became | sort >c_program.out
sed -n 's/^    \(rank [0-9]: [0-9]* became [0-9]*\).*/\1/p' "$src/README.md" | sort >c_program.want
[ "$(wc -l <c_program.want)" -eq 3 ]
diff c_program.want c_program.out
say "the README's program by pkg-config prints what README says: pass"
if [ -n "${CXX-c++}" ]; then
    # shellcheck disable=SC2046
    ${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -o cxx_program "$src/examples/ep_minimal_cxx.cpp" \
        $(pc --cflags --libs mpix-ep) -Wl,-rpath,"$libdir"
    run ./cxx_program | grep 'ranks: ok'
fi
if [ -f "$PKG_CONFIG_PATH/mpix-ep-fortran.pc" ]; then
    # shellcheck disable=SC2046
    ${FC:-gfortran} -o fortran_program "$src/examples/ep_minimal_fortran.f90" \
        $(pc --cflags --libs mpix-ep-fortran) -Wl,-rpath,"$libdir"
    run ./fortran_program | grep 'ranks: ok'
fi
for header in mpix_ep.h mpix_p2p.h mpix_xfer.h mpix_ep.hpp mpix_p2p.hpp mpix_xfer.hpp; do
    [ -f "$prefix/include/$header" ]
done
if command -v cmake >/dev/null; then
    mkdir project
    cp "$src/tests/consumer/CMakeLists.txt" c_program.c "$src/examples/ep_minimal_cxx.cpp" project/
    cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$prefix" \
        -DMPIX_EXAMPLES="$work/project" >cmake.log 2>&1 &&
        cmake --build project/build >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
    run project/build/c_program | grep -c became | grep -qx 3
    run project/build/cxx_program | grep 'ranks: ok'
    # A version that is not there is refused.
    sed 's/mpix-ep 0.1 /mpix-ep 9.9 /' "$src/tests/consumer/CMakeLists.txt" >project/CMakeLists.txt
    if cmake -S project -B project/other -DCMAKE_PREFIX_PATH="$prefix" \
        -DMPIX_EXAMPLES="$work/project" >/dev/null 2>&1; then
        say "CMake takes version 9.9"
        exit 1
    fi
    say "the CMake project: pass"
elif [ -n "${CI:-}" ]; then
    say "cmake is not there"
    exit 1
fi
if [ -d "$prefix/share/man" ]; then
    pages=$(find "$prefix/share/man" -name 'MPIX_*.3' ! -name MPIX_INIT.3 | wc -l)
    [ "$pages" -eq "$(sed -n 's/^@calls//p' "$src"/doc/man/*.md | wc -w)" ] || {
        say "$pages pages of calls"
        exit 1
    }
    say "a manual page for every call: pass"
fi
# The tools find the library, called by name from anywhere, and the module of ucx, though
# mpix_ep_info has the library inside.
(
    unset LD_LIBRARY_PATH
    PATH=$prefix/bin:$PATH
    cd /
    timeout 120 $launcher -n 2 mpix_ep_bench --num-tokens 64 --hidden 64 --num-experts 8 \
        --num-topk 2 -i 2 --baseline none </dev/null >"$work/bench.out" 2>&1 ||
        { cat "$work/bench.out"; exit 1; }
    timeout 120 $launcher -n 2 mpix_p2p_bench -m 8:64 -i 10 </dev/null >"$work/p2p.out" 2>&1 ||
        { cat "$work/p2p.out"; exit 1; }
    if [ -f "$libdir/libmpixep_ucx.so" ]; then
        export MPIX_EP_TRANSPORT=ucx MPIX_EP_HOSTS=2
        timeout 120 $launcher -n 2 mpix_ep_info --matrix </dev/null >"$work/info.out" 2>&1 ||
            { cat "$work/info.out"; exit 1; }
        grep -q 'ucx .*proxied' "$work/info.out" || { cat "$work/info.out"; exit 1; }
    fi
) || { say "the tools don't run from $prefix"; exit 1; }
say "the tools from $prefix: pass"
# The CUDA module is found beside the library, wherever that is: what is missing on this machine is
# a GPU or a driver, not the file.
module=$libdir/libmpixep_cuda.so
if [ -f "$module" ]; then
    cat >module.c <<'END'
#include <mpix_ep.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPIX_Ep_config config;
    MPIX_Error error;
    MPIX_Ep ep;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPIX_INIT(&config), MPIX_INIT(&error);
    config.memkind = MPIX_EP_CUDA, config.max_topk = 1, config.num_experts = 1;
    config.max_tokens = 1, config.max_row_bytes = 4;
    if (MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep) != MPI_SUCCESS)
        MPIX_Error_last(&error);
    printf("module: %s\n", error.text);
    MPI_Finalize();
    return 0;
}
END
    # shellcheck disable=SC2046
    ${CC:-cc} -o module module.c $(pc --cflags --libs mpix-ep) -Wl,-rpath,"$libdir"
    there=$(timeout 60 $launcher -n 1 ./module 2>/dev/null | grep '^module:')
    mv "$module" "$module.away"
    gone=$(timeout 60 $launcher -n 1 ./module 2>/dev/null | grep '^module:')
    mv "$module.away" "$module"
    echo "with the module:    $there"
    echo "without the module: $gone"
    case $there in *libmpixep_cuda*) say "the module was not found"; exit 1 ;; esac
    case $gone in *libmpixep_cuda*) ;; *) say "nobody missed the module"; exit 1 ;; esac
    say "the CUDA module beside the library: pass"
fi
