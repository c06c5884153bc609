#!/bin/sh
# run.sh - the GPU tests on 1 to 4 ranks, both paths, both kinds of windows; several ranks share a GPU where there are fewer.
set -e
t=./tests/gpu/ep_gpu
if ! "$t" --probe; then
    echo "SKIP: check-gpu: no GPU can be used here"
    exit 0
fi
run() {
    np=$1
    shift
    echo "check-gpu: $np ranks $*"
    env "$@" timeout 300 "$MPIX_MPIRUN" "$np" "$t" ${MPIX_GPU_ARGS-}
}
run 1
run 2
run 2 MPIX_EP_GPU_PATH=vector
run 2 MPIX_EP_GPU_MEMORY=ipc
run 4
echo "check-gpu: passed"
