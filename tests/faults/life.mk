# tests/faults/life.mk - see tests/faults/local.mk.
