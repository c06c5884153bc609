# tests/model/ - Promela models of the protocols, checked with spin, each with mutants
# that must be caught.
TESTS += tests/model/run.sh
EXTRA_DIST += tests/model/run.sh tests/model/fifo.pml tests/model/ll.pml tests/model/hops.pml \
	tests/model/ready.pml tests/model/ring.pml tests/model/release.pml tests/model/signal.pml
