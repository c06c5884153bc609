#!/bin/sh
# proxy_mpi.sh - the proxy between ranks, at several sizes, then with a rank that is killed; the
# first failure is the result.
set -u

# With the address sanitizer: MPI's libraries have no frame pointers, and what they keep is told by
# who allocated it.
ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
export ASAN_OPTIONS
build=$MPIX_BUILDDIR
program=$build/tests/unit/proxy_mpi

for np in 1 2 3 5; do
    "$MPIX_MPIRUN" "$np" "$program"
    code=$?
    if [ $code -ne 0 ]; then
        echo "proxy_mpi on $np ranks: exit status $code" >&2
        exit $code
    fi
done

# Over a network that disturbs: in any order (counted signals), and with a lane's order
# kept (both forms).
for seed in 1 2 3; do
    for reorder in yes no; do
        MPIX_EP_CHAOS_SEED=$seed MPIX_EP_CHAOS_REORDER=$reorder \
            MPIX_EP_CHAOS_DELAY_US=$((seed / 2 * 50)) \
            "$MPIX_MPIRUN" $((seed % 2 + 2)) "$program" chaos:shmem 12
        code=$?
        if [ $code -ne 0 ]; then
            echo "proxy_mpi over chaos, seed $seed, reorder $reorder: exit status $code" >&2
            exit $code
        fi
    done
done

# A rank dies.
for progress in caller thread threads; do
    "$MPIX_SRCDIR/tests/survivors.sh" 3 "$program" --case killed --progress $progress || exit
done
