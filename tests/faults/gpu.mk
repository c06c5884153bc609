# tests/faults/gpu.mk - see tests/faults/local.mk.
EXTRA_DIST += tests/faults/gpu_edges.c tests/faults/gpu_device.cu
EXTRA_DIST += tests/faults/gpu_headers.sh
FULL_TESTS += tests/faults/gpu_headers.sh
