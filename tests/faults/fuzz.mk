# tests/faults/fuzz.mk - see tests/faults/local.mk.
