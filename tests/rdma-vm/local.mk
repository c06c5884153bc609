# tests/rdma-vm/ - `make check-rdma`: the transport verbs, and EP over it, between virtual hosts
# with soft-RoCE devices. Not part of `make check`: it takes minutes, and packages that rdma-vm
# --packages names.
EXTRA_DIST += \
	tests/rdma-vm/check \
	tests/rdma-vm/figures \
	tests/rdma-vm/guest-init \
	tests/rdma-vm/guest-mpi \
	tests/rdma-vm/guest-node \
	tests/rdma-vm/guest-remote \
	tests/rdma-vm/rdma-vm

check_PROGRAMS += tests/rdma-vm/net_pair tests/rdma-vm/ep_rate tests/rdma-vm/ep_refused
tests_rdma_vm_net_pair_SOURCES = \
	tests/rdma-vm/net_pair.c tests/rdma-vm/net_pair_figures.c tests/rdma-vm/net_pair.h
tests_rdma_vm_net_pair_LDADD = libmpixep_core.la
tests_rdma_vm_ep_rate_SOURCES = tests/rdma-vm/ep_rate.c
tests_rdma_vm_ep_rate_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_rdma_vm_ep_rate_LDADD = $(MPI_TEST_LIBS)
tests_rdma_vm_ep_refused_SOURCES = tests/rdma-vm/ep_refused.c
tests_rdma_vm_ep_refused_CPPFLAGS = $(MPI_TEST_CPPFLAGS)
tests_rdma_vm_ep_refused_LDADD = $(MPI_TEST_LIBS)

if HAVE_VERBS
# CASES: names of cases, as patterns of the shell; empty: all.
check-rdma: all check-programs
	@MPIX_BUILDDIR='$(abs_top_builddir)'; export MPIX_BUILDDIR; \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 3 -t $${MPIX_RDMA_LIMIT:-900} -o rdma-vm.out -- \
	    '$(abs_top_srcdir)/tests/rdma-vm/check' $(CASES)

# Not a test: what doc/performance.md tells about virtual hosts.
figures-rdma: all check-programs
	@MPIX_BUILDDIR='$(abs_top_builddir)'; export MPIX_BUILDDIR; \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 2 -t 600 -- '$(abs_top_srcdir)/tests/rdma-vm/figures' rate && \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 1 -c 2 -t 300 -- '$(abs_top_srcdir)/tests/rdma-vm/figures' \
	latency && \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 1 -c 2 -t 300 -- '$(abs_top_srcdir)/tests/rdma-vm/figures' ll \
	&& \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 2 -t 600 -- '$(abs_top_srcdir)/tests/rdma-vm/figures' p2p_rate \
	&& \
	$(srcdir)/tests/rdma-vm/rdma-vm -n 1 -c 2 -t 300 -- '$(abs_top_srcdir)/tests/rdma-vm/figures' \
	p2p_latency
else
check-rdma figures-rdma:
	@echo "$@: this build has no transport verbs (libibverbs was not found, or --without-verbs)"; \
	exit 77
endif
clean-local: clean-rdma
clean-rdma:
	rm -rf rdma-vm.out
.PHONY: check-rdma clean-rdma figures-rdma
