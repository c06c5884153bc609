# tests/faults/waits.mk - see tests/faults/local.mk.
