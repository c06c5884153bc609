# tests/faults/env.mk - see tests/faults/local.mk.
