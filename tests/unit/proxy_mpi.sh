#!/bin/sh
# proxy_mpi.sh - the proxy between ranks, at several sizes, then with a rank that is killed; the first failure is the result.
set -u

# With the address sanitizer: MPI's libraries have no frame pointers, and what they keep is told by who allocated it.
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

# Over a network that disturbs: in any order (counted signals), and with a lane's order kept (both forms).
for seed in 1 2 3; do
    for reorder in yes no; do
        MPIX_EP_CHAOS_SEED=$seed MPIX_EP_CHAOS_REORDER=$reorder MPIX_EP_CHAOS_DELAY_US=$((seed / 2 * 50)) \
            "$MPIX_MPIRUN" $((seed % 2 + 2)) "$program" chaos:shmem 12
        code=$?
        if [ $code -ne 0 ]; then
            echo "proxy_mpi over chaos, seed $seed, reorder $reorder: exit status $code" >&2
            exit $code
        fi
    done
done

# A rank dies: the launcher must let the others live, and its exit status says nothing; every other rank's verdict does. Open MPI over
# TCP, because its shared memory segments would stay behind.
export OMPI_MCA_orte_enable_recovery=1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1
conf_mpiexec=
# shellcheck source=/dev/null
[ ! -r "$build/tests/mpirun.conf" ] || . "$build/tests/mpirun.conf"
launcher=${MPIEXEC:-$conf_mpiexec}
# shellcheck disable=SC2086
case $($launcher --version 2>&1) in *HYDRA*) export MPIEXEC="$launcher -disable-auto-cleanup -n" ;; esac
for progress in caller thread; do
    output=$("$MPIX_MPIRUN" 3 "$program" --case killed --progress $progress 2>&1)
    passed=$(printf '%s\n' "$output" | grep -c 'passed, 0 failures')
    if [ "$passed" -ne 2 ]; then
        printf '%s\n' "$output" >&2
        echo "proxy_mpi, a rank killed, proxy=$progress: $passed of 2 survivors passed" >&2
        exit 1
    fi
done
