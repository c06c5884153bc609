# tests/faults/fuzz.mk - see tests/faults/local.mk. The fuzzers have a folder of their own.
include tests/fuzz/local.mk
