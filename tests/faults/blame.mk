# tests/faults/blame.mk - see tests/faults/local.mk.
