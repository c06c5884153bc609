# tests/faults/p2p.mk - see tests/faults/local.mk.
