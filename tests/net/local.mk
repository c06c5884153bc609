# tests/net/ - `make check-net`: the transport ucx over TCP between hosts that are network
# namespaces. Part of .ci/run, not of `make check`: it needs ip and the right to make namespaces.
EXTRA_DIST += tests/net/check tests/net/enter tests/net/figures tests/net/mpi tests/net/netns

if HAVE_UCX
# CASES: names of cases, as patterns of the shell; empty: all.
check-net: all check-programs
	@MPIX_BUILDDIR='$(abs_top_builddir)'; export MPIX_BUILDDIR; \
	'$(abs_top_srcdir)/tests/net/netns' 3 '$(abs_top_srcdir)/tests/net/check' $(CASES)

# Not a test: what doc/performance.md tells about TCP.
figures-net: all check-programs
	@MPIX_BUILDDIR='$(abs_top_builddir)'; export MPIX_BUILDDIR; \
	'$(abs_top_srcdir)/tests/net/netns' 2 '$(abs_top_srcdir)/tests/net/figures'
else
check-net figures-net:
	@echo "$@: this build has no transport ucx (libucp was not found, or --without-ucx)"; exit 77
endif
.PHONY: check-net figures-net
