#!/bin/sh
# run.sh - runs one MPI test: the name says program, variant and ranks, this script says with
# what it is called.
#
#   run.sh PATH/PROGRAM[_VARIANT].RANKS.test
set -u

name=$(basename "$1" .test)
np=${name##*.}
name=${name%.*}
build=${MPIX_BUILDDIR:-.}
MPIX_SRCDIR=${MPIX_SRCDIR:-$(dirname "$0")/../..}
MPIX_BUILDDIR=$build
MPIX_MPIRUN=${MPIX_MPIRUN:-$MPIX_SRCDIR/tests/mpirun.sh}
export MPIX_SRCDIR MPIX_BUILDDIR MPIX_MPIRUN

# More with more ranks than cores takes longer; sanitizers slow everything down.
case $np in 1 | 2) scale=100 ;; 3 | 4) scale=60 ;; 5 | 8) scale=30 ;; *) scale=4 ;; esac
if [ "${MPIX_SANITIZED:-0}" != 0 ]; then
    if [ "$np" -gt 5 ]; then
        echo "left out: $np ranks of a sanitizer build on few cores take minutes;" \
            "without sanitizers they run"
        exit 77
    fi
    scale=$(((scale + 3) / 4))
    # MPI's leaks are told by the library that allocates, which has no frame pointers.
    export ASAN_OPTIONS="fast_unwind_on_malloc=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
fi

ucx() { # over TCP on this host; a build without libucp has nothing to test
    if [ ! -e "$build/libmpixep_ucx.so" ]; then
        echo "left out: libmpixep_ucx.so was not built"
        exit 77
    fi
    # Of the library's libucp only. Debian's MPICH has one too: over TCP, one rank in MPI_Finalize
    # could wait for others that no longer listened.
    export MPIX_EP_TRANSPORT=ucx MPIX_EP_REACH=proxied MPIXEP_UCX_TLS=tcp,self
}

# covers: a wrong argument on one rank | create, ht-mapped, ll-mapped | tests/mpi/ep_errors.5.test
# covers: a wrong argument on one rank | ht-proxied | tests/mpi/ep_errors_far.2.test
# covers: a wrong argument on one rank | p2p-mapped, p2p-copied | tests/mpi/p2p_errors.3.test
# covers: a wrong argument on one rank | p2p-proxied | tests/mpi/p2p_errors_proxied.2.test
# covers: a network operation fails, or stands still | ht-proxied | tests/mpi/ep_faults_injected.3.test
# covers: a network operation fails, or stands still | ll-proxied | tests/mpi/ep_faults_ll_injected.2.test
# covers: killed peer is named | ht-hops | tests/mpi/ep_faults_killed_hops.4.test
# covers: killed peer is named | ll-mapped | tests/mpi/ep_faults_ll_killed.3.test
# covers: killed peer is named | p2p-mapped, p2p-copied | tests/mpi/p2p_faults_killed_reg.3.test
# covers: a network that reorders, delays and cuts | ht-proxied | tests/mpi/ep_random_chaos.5.test
# covers: a network that reorders, delays and cuts | ht-hops | tests/mpi/ep_random_hopschaos.5.test
# covers: a network that reorders, delays and cuts | ll-proxied | tests/mpi/ep_random_ll_chaos.3.test
# covers: a network that reorders, delays and cuts | p2p-proxied | tests/mpi/p2p_data_chaos.4.test
# covers: a network that reorders, delays and cuts | gpu-expert, gpu-ll, gpu-proxied | check-gpu
program=$name
deadly=0
set --
case $name in
ep_random) set -- --iterations $((scale * 7 / 10 + 2)) ;;
ep_random_ll) # low latency, HT contexts beside
    program=ep_random
    set -- --mode ll --iterations $((scale * 15 / 100 + 2)) --seed $np
    ;;
ep_random_ll_pull) # EXPERT rows are read by their tokens' owners wherever that can be
    program=ep_random
    export MPIX_EP_LL_PULL_BYTES=0
    set -- --mode ll --iterations $((scale * 3 / 2 + 2)) --seed $((np + 20))
    ;;
ep_stress_ll) # low latency
    program=ep_stress
    set -- --mode ll --rounds $((scale * 10))
    ;;
ep_random_ll_*) # over proxied peers
    export MPIX_EP_TRANSPORT=shmem
    case $name in
    *_mixed) export MPIX_EP_HOSTS=2 ;;
    *_counted) export MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted MPIX_EP_LANES=2 ;;
    *_chaos) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_LANES=2 \
        MPIX_EP_CHAOS_SEED=$np ;;
    *_ucx) ucx ;;
    *)
        echo "run.sh: no test is called $name" >&2
        exit 99
        ;;
    esac
    program=ep_random
    set -- --mode ll --iterations $((scale * 15 / 100 + 2)) --seed 12
    ;;
ep_random_* | ep_stress_*) # over proxied peers, with no network: the proxy copies
    export MPIX_EP_TRANSPORT=shmem
    case $name in
    *_ordered) export MPIX_EP_REACH=proxied ;;
    *_counted) export MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted MPIX_EP_LANES=3 \
        MPIX_EP_CHUNK_BYTES=1k ;;
    *_mixed) export MPIX_EP_HOSTS=2 ;;
    *_thread) export MPIX_EP_HOSTS=2 MPIX_EP_SIGNAL=counted MPIX_EP_PROXY=thread ;;
    # several threads of the proxy: lanes of a peer in different ones, then peers
    *_threads) export MPIX_EP_REACH=proxied MPIX_EP_PROXY_THREADS=2 \
        MPIX_EP_LANES=$((np < 3 ? 3 : 1)) MPIX_EP_CHUNK_BYTES=4k ;;
    *_hopsthreads) export MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_SIGNAL=counted \
        MPIX_EP_PROXY_THREADS=3 MPIX_EP_LANES=2 ;;
    *_chaosthreads)
        export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=2 MPIX_EP_PROXY_THREADS=3 \
            MPIX_EP_LANES=3 MPIX_EP_CHUNK_BYTES=1k
        export MPIX_EP_CHAOS_SEED=4$np MPIX_EP_CHAOS_DELAY_US=100
        ;;
    # two hops: two and three virtual hosts of unequal sizes; a ring of one chunk; over a
    # network that disturbs
    *_hops) export MPIX_EP_HOSTS=$((np < 5 ? 2 : 3)) MPIX_EP_TWO_HOPS=on ;;
    *_hopschunk)
        export MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TWO_HOPS_CHUNKS=1 \
            MPIX_EP_CHUNK_BYTES=1k MPIX_EP_SIGNAL=counted MPIX_EP_LANES=2
        ;;
    *_hopschaos)
        export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=3 MPIX_EP_TWO_HOPS=on \
            MPIX_EP_TWO_HOPS_CHUNKS=1 MPIX_EP_CHUNK_BYTES=1k
        export MPIX_EP_CHAOS_SEED=3$np
        ;;
    # counts for oneself only, and answers
    *_bases) export MPIX_EP_COUNTS_RANKS=$((np - 1)) ;;
    *_baseshops) export MPIX_EP_COUNTS_RANKS=2 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on \
        MPIX_EP_SIGNAL=counted MPIX_EP_LANES=2 ;;
    *_hopsthread)
        export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on \
            MPIX_EP_TWO_HOPS_CHUNKS=3 MPIX_EP_PROXY=thread
        export MPIX_EP_CHAOS_DELAY_US=100
        ;;
    # over libucp, TCP on one host
    *_ucx) ucx ;;
    # over a network that disturbs; each number of ranks has another seed
    *_chaos) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_LANES=2 \
        MPIX_EP_CHUNK_BYTES=1k MPIX_EP_CHAOS_SEED=$np ;;
    *_chaosordered)
        export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_LANES=2 \
            MPIX_EP_CHUNK_BYTES=1k MPIX_EP_CHAOS_SEED=1$np
        export MPIX_EP_CHAOS_REORDER=no MPIX_EP_SIGNAL=ordered
        ;;
    *_chaosthread)
        export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=2 MPIX_EP_PROXY=thread \
            MPIX_EP_CHAOS_SEED=2$np MPIX_EP_CHAOS_DELAY_US=100
        ;;
    *)
        echo "run.sh: no test is called $name" >&2
        exit 99
        ;;
    esac
    program=${name%_*}
    case $program in
    ep_random) set -- --iterations $((scale / 2 + 2)) --seed 11 ;;
    *)
        # Few would not tell a leak from the allocator's mappings.
        set -- --rounds $((scale * 6)) --contexts 40
        # libucp's allocations go on for 60 contexts before a sanitizer's allocator uses its
        # mappings again, those of two hops for 40
        case $name in
        ep_stress_ucx) set -- --rounds $((scale * 2)) --contexts 200 ;;
        ep_stress_hops*) set -- --rounds $((scale * 6)) --contexts 120 ;;
        esac
        ;;
    esac
    ;;
ep_traffic_ordered)
    export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=ordered
    program=ep_traffic
    ;;
ep_traffic_counted)
    export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted
    program=ep_traffic
    ;;
ep_traffic_lanes)
    export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted MPIX_EP_LANES=3 \
        MPIX_EP_CHUNK_BYTES=64k
    program=ep_traffic
    set -- --lanes 3 --chunk 65536
    ;;
ep_traffic_threads)
    export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted MPIX_EP_LANES=3 \
        MPIX_EP_PROXY_THREADS=2 MPIX_EP_CHUNK_BYTES=64k
    program=ep_traffic
    set -- --lanes 3 --chunk 65536 --threads 2
    ;;
ep_files | ep_nompi) ;;
ep_hops)
    export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2
    [ "$np" -lt 8 ] || set -- --layers 2
    ;;
ep_errors) export MPIX_EP_LOG_LEVEL=none ;; # every one of them is wanted
ep_errors_far)
    export MPIX_EP_LOG_LEVEL=none MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem MPIX_EP_COUNTS_RANKS=0
    program=ep_errors
    ;;
ep_stress) set -- --rounds $((scale * 30)) --contexts $((scale / 3 + 8)) ;;
p2p_data | p2p_data_*) # all ways to reach a peer
    program=p2p_data
    big=$((np == 2 && scale == 100))
    step=$((np * np * 100 / scale / 2))
    case $name in
    p2p_data) ;;
    *_ask) export MPIX_EP_P2P_CMA=no MPIX_EP_P2P_EAGER=1k ;;
    *_progress) export MPIX_EP_PROGRESS=thread ;;
    *_ordered) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_LANES=3 ;;
    *_counted) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_SIGNAL=counted \
        MPIX_EP_LANES=2 MPIX_EP_P2P_RING=8 ;;
    *_mixed) export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2 MPIX_EP_PROXY=thread ;;
    *_threads) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied MPIX_EP_PROXY_THREADS=3 \
        MPIX_EP_LANES=$((np < 3 ? 3 : 1)) ;;
    *_chaos) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_HOSTS=2 ;;
    *_ucx)
        ucx
        step=$((step * 5)) big=0 # what they take is the time of switching between four threads
        ;;
    *)
        echo "run.sh: no test is called $name" >&2
        exit 99
        ;;
    esac
    [ "$name" = p2p_data ] || step=$((step * 8))
    set -- --step $((step < 1 ? 1 : step)) --rounds $((scale / 10 + 2)) --big $big
    ;;
p2p_errors | p2p_errors_proxied)
    export MPIX_EP_LOG_LEVEL=none
    program=p2p_errors
    [ "$name" = p2p_errors ] || export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied
    ;;
p2p_faults_*)
    export MPIX_EP_LOG_LEVEL=none
    program=p2p_faults
    variant=${name#p2p_faults_}
    case $variant in
    *_reg) set -- --case "${variant%_reg}" --mem reg ;;
    *_proxied) export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied; set -- --case \
        "${variant%_proxied}" ;;
    *_threads)
        export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_PROXY_THREADS=2 MPIX_EP_LANES=2
        set -- --case "${variant%_threads}"
        ;;
    *) set -- --case "$variant" ;;
    esac
    case $variant in killed*) deadly=1 ;; esac
    ;;
ep_faults_*)
    export MPIX_EP_LOG_LEVEL=none
    program=ep_faults
    variant=${name#ep_faults_}
    mode=ht
    case $variant in ll_*) mode=ll variant=${variant#ll_} ;; esac
    case $variant in
    *_ucx)
        ucx
        variant=${variant%_ucx}
        set -- --case "$variant" --progress caller
        ;;
    *_hops)
        variant=${variant%_hops}
        export MPIX_EP_TRANSPORT=shmem MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TWO_HOPS_CHUNKS=1
        set -- --case "$variant" --progress caller
        ;;
    *_thread) set -- --case "${variant%_thread}" --progress thread ;;
    *_threads) # of the proxy
        variant=${variant%_threads}
        export MPIX_EP_TRANSPORT=shmem MPIX_EP_REACH=proxied MPIX_EP_PROXY_THREADS=3 MPIX_EP_LANES=3
        set -- --case "$variant" --progress caller
        ;;
    *) set -- --case "$variant" --progress caller ;;
    esac
    set -- "$@" --mode $mode
    case $variant in
    killed* | gone*) deadly=1 ;;
    injected*) export MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_REACH=proxied ;;
    esac
    ;;
*)
    echo "run.sh: no test is called $name" >&2
    exit 99
    ;;
esac

if [ $deadly = 0 ]; then
    exec "$MPIX_MPIRUN" "$np" "$build/tests/mpi/$program" "$@"
fi

exec "$MPIX_SRCDIR/tests/survivors.sh" "$np" "$build/tests/mpi/$program" "$@"
