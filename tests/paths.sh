#!/bin/sh
# paths.sh - the table of paths (mpix_ep_info --paths) is true: what it claims runs and is right by
# the reference, what it denies is refused with the path's name, and it claims neither more nor less
# than tests/paths.known, which a change of what is supported changes too.
#
#   paths.sh [host|gpu]
#
# Paths of GPU memory run on the emulated GPU, where `make check-emu` has built it; copy engines are
# not emulated, so of gpu-copy-engine only what is refused at creation is tried.
set -u
if [ "${MPIX_SANITIZED:-0}" = 1 ] && [ "${1:-all}" = all ]; then
    echo "left out: with sanitizers the random tests run the same calls, without them this does"
    exit 77
fi
which=${1:-all} failed=0
cells=$MPIX_BUILDDIR/tests/paths.cells
"$MPIX_BUILDDIR/mpix_ep_info" --paths=cells >"$cells" || exit 1
export MPIX_EP_LOG_LEVEL=none # refusals are wanted

grep ' yes$' "$cells" | sed 's/ yes$//' | diff "$MPIX_SRCDIR/tests/paths.known" - || {
    echo "paths.sh: the table (>) claims more or less than tests/paths.known (<)"
    failed=1
}

reach() { # PATH PROGRAM: with ranks that reach each other in each way
    for how in mapped proxied mixed two-hops; do
        # shellcheck disable=SC2086 # several words
        case $how in
        mapped) np=2 set= ;;
        proxied) np=2 set="MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem" ;;
        mixed) np=3 set="MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem MPIX_EP_TWO_HOPS=off" ;;
        two-hops) np=4 set="MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem MPIX_EP_TWO_HOPS=on" ;;
        esac
        # shellcheck disable=SC2086
        if ! env $set "$MPIX_MPIRUN" $np "$2" "$cells" "$1" $how; then
            echo "paths.sh: $1 $how: FAIL"
            failed=1
        fi
    done
}

if [ "$which" != gpu ]; then
    for path in host-ht host-ll; do
        reach $path "$MPIX_BUILDDIR/tests/mpi/ep_paths"
    done
fi
if [ "$which" = host ] || [ ! -x "$MPIX_BUILDDIR/tests/emu/ep_paths" ]; then
    echo "paths.sh: not run: gpu-ht, gpu-expert, gpu-copy-engine, gpu-ll:" \
        "make check-emu does, on an emulated GPU"
else
    LD_LIBRARY_PATH=$MPIX_BUILDDIR/tests/emu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    MPIX_EP_CUDA_MODULE=$MPIX_BUILDDIR/tests/emu/libemu.so
    export LD_LIBRARY_PATH MPIX_EP_CUDA_MODULE
    for path in gpu-ht gpu-expert gpu-copy-engine gpu-ll; do
        reach $path "$MPIX_BUILDDIR/tests/emu/ep_paths"
    done
fi
exit $failed
