# tests/faults/gpu.mk - see tests/faults/local.mk.
