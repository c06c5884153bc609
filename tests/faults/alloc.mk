# tests/faults/alloc.mk - see tests/faults/local.mk.
