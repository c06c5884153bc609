# tests/emu/ - `make check-emu`: the CUDA module's kernels compiled for a processor (emu.h), under
# tests of tests/gpu. Needs CUDA's headers, perl, no GPU.
EXTRA_DIST += tests/emu/check tests/emu/emu.cpp tests/emu/emu.h tests/emu/emu_memory.h \
	tests/emu/prepare.pl tests/emu/runtime.cpp
if HAVE_CUDA
emu_plain = tests/emu/combine.emu.o tests/emu/dispatch.emu.o tests/emu/expert_dispatch.emu.o
emu_others = tests/emu/expert_combine.emu.o tests/emu/expert_place.emu.o \
	tests/emu/remote_combine.emu.o tests/emu/remote_dispatch.emu.o \
	tests/emu/remote_expert_combine.emu.o tests/emu/remote_expert_dispatch.emu.o \
	tests/emu/ll_combine.emu.o tests/emu/ll_dispatch.emu.o tests/emu/ll_remote.emu.o \
	tests/emu/ll_route.emu.o tests/emu/route.emu.o
emu_units = $(emu_plain) $(emu_others)
# The first with the code for sm_90: bulk copies.
emu_bulk = tests/emu/combine.bulk.o tests/emu/dispatch.bulk.o tests/emu/expert_dispatch.bulk.o
emu_own = tests/emu/emu.own.o tests/emu/runtime.own.o
if !SANITIZED
EMU_DEFS = -Wl,-z,defs
endif
emu_headers = $(top_srcdir)/tests/emu/emu.h $(top_srcdir)/tests/emu/emu_memory.h
# The same bytes as on a GPU: no fused multiplications and additions. The sources are
# nvcc's to warn of.
EMU_COMPILE = $(CXX) -std=c++17 -O1 -g $(MPIX_SANITIZE) -ffp-contract=off -fPIC -w -Itests/emu/src \
	-I$(top_srcdir)/tests/emu -I$(top_srcdir)/include \
	-isystem $(CUDA_HOME_USED)/include -include $(top_srcdir)/tests/emu/emu.h

tests/emu/src/stamp: tests/emu/prepare.pl $(cuda_units) $(cuda_deps)
	$(AM_V_GEN)rm -rf tests/emu/src && $(MKDIR_P) tests/emu/src && \
	  for f in $(cuda_units) $(cuda_deps); do $(PERL) $(top_srcdir)/tests/emu/prepare.pl \
	  tests/emu/src \
	  $(top_srcdir)/$$f || exit 1; done && touch $@
$(emu_units): tests/emu/src/stamp $(emu_headers)
	$(AM_V_CXX)$(EMU_COMPILE) -x c++ -c -o $@ tests/emu/src/`basename $@ .emu.o`.cu
$(emu_own): tests/emu/src/stamp tests/emu/emu.cpp tests/emu/runtime.cpp $(emu_headers)
	$(AM_V_CXX)$(EMU_COMPILE) -c -o $@ $(top_srcdir)/tests/emu/`basename $@ .own.o`.cpp
$(emu_bulk): tests/emu/src/stamp $(emu_headers)
	$(AM_V_CXX)$(EMU_COMPILE) -DEMU_ARCH=900 -x c++ -c -o $@ tests/emu/src/`basename $@ .bulk.o`.cu
tests/emu/libemu.so: $(emu_units) $(emu_own)
	$(AM_V_CXXLD)$(CXX) -shared $(MPIX_SANITIZE) $(EMU_DEFS) -Wl,-soname,libemu.so -o $@ $(emu_units) \
	  $(emu_own)
tests/emu/bulk/libemu.so: $(emu_units) $(emu_bulk) $(emu_own)
	$(AM_V_CXXLD)$(MKDIR_P) tests/emu/bulk && $(CXX) -shared $(MPIX_SANITIZE) $(EMU_DEFS) \
	  -Wl,-soname,libemu.so -o $@ $(emu_bulk) $(emu_others) $(emu_own)

EXTRA_PROGRAMS += tests/emu/alloc_gpu tests/emu/ep_expert tests/emu/ep_gpu tests/emu/ep_ll \
	tests/emu/ep_paths tests/emu/gpu_edges
# Like tests/faults/alloc_ep, with the calls of the library wrapped.
tests_emu_alloc_gpu_SOURCES = tests/faults/alloc_gpu.c $(ALLOC_COMMON)
tests_emu_alloc_gpu_CPPFLAGS = $(MPI_TEST_CPPFLAGS) $(GPU_CPPFLAGS)
tests_emu_alloc_gpu_LDFLAGS = $(LDFLAGS_OF_INJECTED)
tests_emu_alloc_gpu_LDADD = tests/common/libharness.la libmpixep_core.la $(MPI_LIBS) \
	$(abs_builddir)/tests/emu/libemu.so -lm
EMU_LIBS = libmpixep.la $(MPI_LIBS) $(abs_builddir)/tests/emu/libemu.so -lm
tests_emu_ep_paths_SOURCES = tests/common/cells.c tests/common/cells.h \
	tests/gpu/ep_paths.c $(GPU_BATCH)
tests_emu_ep_paths_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_emu_ep_paths_LDADD = tests/common/libharness.la $(EMU_LIBS)
tests_emu_ep_expert_SOURCES = tests/gpu/ep_expert.c $(GPU_BATCH)
tests_emu_ep_expert_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_emu_ep_expert_LDADD = tests/common/libharness.la $(EMU_LIBS)
tests_emu_gpu_edges_SOURCES = tests/faults/gpu_edges.c tests/gpu/gpu.h
tests_emu_gpu_edges_CPPFLAGS = $(GPU_CPPFLAGS) -I$(top_srcdir)/tests/gpu -DEMULATED
tests_emu_gpu_edges_LDADD = $(EMU_LIBS)
tests/emu/gpu_device: tests/faults/gpu_device.cu tests/emu/src/stamp tests/emu/libemu.so \
	$(emu_headers)
	$(AM_V_CXXLD)$(PERL) $(top_srcdir)/tests/emu/prepare.pl tests/emu/src \
	  $(top_srcdir)/tests/faults/gpu_device.cu && \
	  $(EMU_COMPILE) -DMPIX_DEVICE_ONLY -o $@ -x c++ tests/emu/src/gpu_device.cu -x none \
	  tests/emu/libemu.so
tests_emu_ep_gpu_SOURCES = tests/gpu/ep_gpu.c $(GPU_BATCH)
tests_emu_ep_gpu_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_emu_ep_gpu_LDADD = tests/common/libharness.la $(EMU_LIBS)
tests_emu_ep_ll_SOURCES = tests/gpu/ep_ll.c $(GPU_BATCH)
tests_emu_ep_ll_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_emu_ep_ll_LDADD = tests/common/libharness.la $(EMU_LIBS)
CLEANFILES += $(emu_units) $(emu_bulk) $(emu_own) tests/emu/libemu.so tests/emu/bulk/libemu.so \
	tests/emu/gpu_device tests/emu/src/*

check-emu: libmpixep.la tests/emu/libemu.so tests/emu/bulk/libemu.so
	@$(MAKE) $(AM_MAKEFLAGS) tests/emu/ep_expert tests/emu/ep_gpu tests/emu/ep_ll tests/emu/alloc_gpu \
	  mpix_ep_info tests/emu/ep_paths tests/emu/gpu_edges tests/emu/gpu_device \
	  tests/faults/life_places tests/probe_size
	@$(AM_TESTS_ENVIRONMENT) $(top_srcdir)/tests/emu/check
else
check-emu:
	@echo "SKIP: check-emu: this build has no CUDA module (configure found no nvcc)"
endif
.PHONY: check-emu
