#!/bin/sh
# run.sh - the GPU tests on 1 to 4 ranks, both paths, both kinds of windows; several ranks share a
# GPU where there are fewer.
#
# MPIX_GPU_STRESS: iterations of the stress test with pauses in kernels (default 300; 10000
# for the long form).
#
# compute-sanitizer: `mpirun -n 2 compute-sanitizer --tool memcheck|racecheck .../ep_streams ordered
# 3` (the program itself, below .libs) is clean, with synccheck too; for the bulk path's mbarriers
# it needs --num-cuda-barriers 65536. `ep_ll ordered 4 2` likewise.
# covers: killed peer is named | gpu-ht, gpu-ll, gpu-proxied | check-gpu
# covers: a network operation fails, or stands still | gpu-proxied | check-gpu
set -e
stress=${MPIX_GPU_STRESS-300}
if ! ./tests/gpu/ep_gpu --probe; then
    echo "SKIP: check-gpu: no GPU can be used here"
    exit 0
fi
run() { # RANKS [VARIABLE=VALUE ...] PROGRAM [ARG ...]
    np=$1
    shift
    echo "check-gpu: $np ranks: $*"
    while case $1 in *=*) true ;; *) false ;; esac; do
        export "${1?}"
        names="$names ${1%%=*}"
        shift
    done
    timeout 600 "$MPIX_MPIRUN" "$np" "./tests/gpu/$@"
    for name in $names; do unset "$name"; done
    names=
}
names=
# shellcheck disable=SC2086
{
    run 1 ep_gpu ${MPIX_GPU_ARGS-}
    run 2 ep_gpu ${MPIX_GPU_ARGS-}
    run 2 MPIX_EP_GPU_PATH=vector ep_gpu ${MPIX_GPU_ARGS-}
    run 2 MPIX_EP_GPU_MEMORY=ipc ep_gpu ${MPIX_GPU_ARGS-}
    run 4 ep_gpu ${MPIX_GPU_ARGS-}
}
echo "check-gpu: the queue of kernels' commands"
timeout 300 ./bench/internal/mpix_gpu_fifo_bench -c
run 1 ep_expert
run 2 ep_expert
run 2 MPIX_EP_GPU_PATH=vector ep_expert
run 2 MPIX_EP_GPU_DELAY_US=20 MPIX_EP_GPU_PARTIAL_BYTES=0 ep_expert
run 4 ep_expert
run 2 MPIX_EP_GPU_PARTIAL_BYTES=0 gpu_edges ring
run 2 gpu_edges rows twice twice_ll
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=off MPIX_EP_TRANSPORT=shmem MPIX_EP_GPU_PARTIAL_BYTES=0 \
    gpu_edges ring
echo "check-gpu: what kernels of mpix_device.cuh report, and counters by stores"
timeout 60 ./tests/gpu/gpu_device
run 1 ep_gpu 20 none
run 2 ep_gpu 40 none
run 4 ep_gpu 20 none
run 1 ep_ll
run 2 ep_ll
run 2 MPIX_EP_GPU_MEMORY=ipc ep_ll shapes 12
run 2 MPIX_EP_GPU_DELAY_US=20 ep_ll stress 0 "$stress"
run 4 ep_ll all 18 20
for transport in shmem chaos:shmem; do
    run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=$transport ep_gpu 20
    run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=off MPIX_EP_TRANSPORT=$transport ep_gpu 10
    run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=$transport ep_gpu 10
    run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=$transport ep_ll all 12 50
    run 4 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=$transport ep_ll all 8 10
done
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted MPIX_EP_PROXY_THREADS=2 \
    MPIX_EP_GPU_DELAY_US=20 ep_ll all 8 20
run 6 MPIX_EP_HOSTS=3 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem ep_ll shapes 4
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted \
    MPIX_EP_CHUNK_BYTES=1024 ep_gpu 10
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_GPU_MEMORY=ipc ep_gpu 5
echo "check-gpu: mpix_ep_info says which memory the network uses"
MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem timeout 60 "$MPIX_MPIRUN" 2 ./mpix_ep_info --matrix |
    grep "proxied peers: rows through pinned host memory: .*run by"
# Threads of the proxy: one, several, more than peers.
for threads in 1 3; do
    run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_PROXY_THREADS=$threads \
        MPIX_EP_CHUNK_BYTES=4096 ep_gpu 10
done
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=off MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_PROXY_THREADS=4 \
    MPIX_EP_CHUNK_BYTES=4096 ep_gpu 10
# two hops: as the routing says; chunks of one item or two; hosts of unequal sizes, three of them,
# of one rank each
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS_BYTES=0 MPIX_EP_TRANSPORT=shmem ep_gpu 10
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted \
    MPIX_EP_CHUNK_BYTES=1024 ep_gpu 10
run 5 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem ep_gpu 5
run 6 MPIX_EP_HOSTS=3 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=chaos:shmem ep_gpu 5
run 2 MPIX_EP_REACH=proxied MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem ep_gpu 5
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem MPIX_EP_PROXY_THREADS=2 \
    MPIX_EP_CHUNK_BYTES=4096 ep_gpu 5
run 1 p2p_gpu
run 2 p2p_gpu
run 2 MPIX_EP_GPU_MEMORY=ipc p2p_gpu
run 2 MPIX_EP_P2P_GPU_KERNEL=0 p2p_gpu
run 4 p2p_gpu
# EXPERT among proxied peers: sums are compared with host memory's, which must take one hop too
for transport in shmem chaos:shmem; do
    run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=$transport ep_expert 12
    run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=off MPIX_EP_TRANSPORT=$transport ep_expert 8
done
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted \
    MPIX_EP_CHUNK_BYTES=1024 ep_expert 6
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_PROXY_THREADS=3 \
    MPIX_EP_CHUNK_BYTES=4096 ep_expert 6
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=off MPIX_EP_TRANSPORT=shmem MPIX_EP_GPU_PARTIAL_BYTES=0 \
    MPIX_EP_GPU_DELAY_US=20 ep_expert 6 3
export MPIX_EP_TIMEOUT=60
# One visible GPU for each rank, as launchers set it.
if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ]; then
    echo "check-gpu: 2 ranks: one visible GPU each: p2p_device, ep_gpu"
    # shellcheck disable=SC2016 # of the rank's shell
    device='${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}'
    for program in "p2p_device" "ep_gpu 10"; do
        timeout 600 "$MPIX_MPIRUN" 2 sh -c "CUDA_VISIBLE_DEVICES=$device exec ./tests/gpu/$program"
    done
fi
run 1 p2p_device
run 2 p2p_device
run 1 MPIX_EP_REACH=proxied p2p_device
for transport in shmem chaos:shmem; do
    run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=$transport p2p_device
    run 4 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=$transport p2p_device
done
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_SIGNAL=counted p2p_device 2
run 4 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_PROXY_THREADS=3 p2p_device 2
run 2 ../../examples/device_halo
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem ../../examples/device_halo
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem ../../examples/device_halo 4 10
unset MPIX_EP_TIMEOUT
run 1 ep_streams
run 2 ep_streams
run 2 MPIX_EP_GPU_PATH=vector ep_streams
run 4 ep_streams all 20
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem ep_streams
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem ep_streams all 20
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem ep_streams all 20
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TWO_HOPS=on MPIX_EP_TRANSPORT=shmem MPIX_EP_GPU_DELAY_US=20 \
    ep_streams stress 20
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_GPU_DELAY_US=20 ep_streams stress \
    "$stress"
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem MPIX_EP_PROXY_THREADS=3 \
    MPIX_EP_CHUNK_BYTES=4096 ep_streams stress "$stress"
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_PROXY_THREADS=1 ep_streams stalled
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_PROXY_THREADS=2 \
    MPIX_EP_CHUNK_BYTES=4096 ep_streams stalled
run 2 ep_streams all 200 expert
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem ep_streams all 50 expert
run 4 MPIX_EP_HOSTS=2 MPIX_EP_TRANSPORT=shmem ep_streams all 20 expert
run 2 MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=chaos:shmem MPIX_EP_PROXY_THREADS=2 \
    MPIX_EP_CHUNK_BYTES=4096 ep_streams stalled 0 expert
run 4 ep_streams all 20 expert
# covers: two handles with the default of multiprocessors | gpu-ht, gpu-expert | check-gpu
run 2 ep_streams stress "$stress" expert 0
run 2 MPIX_EP_GPU_DELAY_US=20 ep_streams stress "$stress" expert 0
run 2 ep_streams stress "$stress" compact 0
run 2 ep_streams all 200 none
run 4 ep_streams all 20 none
run 2 MPIX_EP_GPU_DELAY_US=20 ep_streams stress "$stress" none
[ ! -x tests/gpu/ep_nccl ] || run 2 ep_nccl
run 2 MPIX_EP_GPU_DELAY_US=20 ep_streams stress "$stress"
run 4 MPIX_EP_GPU_DELAY_US=20 ep_streams stress 20
run 2 MPIX_EP_GPU_DELAY_US=20 ep_streams stress "$stress" expert
# The example on its data, if it is built and has cuBLAS.
if [ -x examples/moe_layer ] && ! ./examples/moe_layer --help | grep -q "not in this build"; then
    for layer in "1 f32" "2 f32" "2 bf16" "4 f32"; do
        # shellcheck disable=SC2086 # two words
        set -- $layer
        echo "check-gpu: $1 ranks: moe_layer --memory cuda, $2"
        timeout 600 "$MPIX_MPIRUN" "$1" examples/moe_layer --data "$MPIX_SRCDIR/data/moe_layer" \
            --memory cuda --dtype "$2" --backward --repeat 2
    done
    for layout in slots expert; do
        echo "check-gpu: 2 ranks: moe_layer --memory cuda --mode ll, $layout"
        timeout 600 "$MPIX_MPIRUN" 2 examples/moe_layer --data "$MPIX_SRCDIR/data/moe_layer" \
            --memory cuda --mode ll --layout $layout --backward --repeat 2
        echo "check-gpu: 2 ranks, proxied: moe_layer --memory cuda --mode ll, $layout"
        MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem timeout 600 "$MPIX_MPIRUN" 2 \
            examples/moe_layer --data "$MPIX_SRCDIR/data/moe_layer" --memory cuda --mode ll \
            --layout $layout --repeat 2
    done
fi
# The launcher must let the other live (see tests/mpi/run.sh); its exit status says nothing, what
# the rank that is left says counts.
for program in ep_streams ep_ll proxied ll_proxied hops; do
    reach=auto np=2 hosts=0 hops=auto
    echo "check-gpu: $program killed"
    [ $program != proxied ] || { program=ep_streams; reach=proxied; }
    [ $program != ll_proxied ] || { program=ep_ll; reach=proxied; }
    [ $program != hops ] || { program=ep_streams; np=4; hosts=2; hops=on; }
    MPIX_EP_REACH=$reach MPIX_EP_HOSTS=$hosts MPIX_EP_TWO_HOPS=$hops MPIX_EP_TRANSPORT=shmem \
        OMPI_MCA_orte_enable_recovery=1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo \
        OMPI_MCA_pml=ob1 \
        timeout 120 "$MPIX_MPIRUN" $np "./tests/gpu/$program" killed 2>&1 |
        tee tests/gpu/killed.log | grep "$program:" || true
    [ "$(grep -c "rank [0-9]*: passed" tests/gpu/killed.log)" = $((np - 1)) ] ||
        { cat tests/gpu/killed.log; exit 1; }
    rm -f tests/gpu/killed.log
done
echo "check-gpu: passed"
