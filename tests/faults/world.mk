# tests/faults/world.mk - see tests/faults/local.mk.
