# tests/gpu/ - `make check-gpu`: what needs a GPU, wherever one is; a line that says so elsewhere.
# The programs use the CUDA runtime to allocate and copy, nothing of the library's inside.
EXTRA_DIST += \
	tests/gpu/batch.c tests/gpu/batch.h tests/gpu/sides.c tests/gpu/ep_expert.c \
	tests/gpu/ep_gpu.c tests/gpu/ep_ll.c tests/gpu/ep_paths.c tests/gpu/ep_streams.c \
	tests/gpu/ep_streams_lane.c tests/gpu/ep_streams.h tests/gpu/ep_nccl.c \
	tests/gpu/gpu.h tests/gpu/p2p_gpu.c tests/gpu/p2p_device.c \
	tests/gpu/p2p_device_kernels.h tests/gpu/p2p_device_kernels.cu tests/gpu/run.sh \
	tests/gpu/figures
if HAVE_CUDA
GPU_CPPFLAGS = $(AM_CPPFLAGS) -isystem $(CUDA_HOME_USED)/include
GPU_LIBS = \
	libmpixep.la $(MPI_LIBS) -L$(CUDA_HOME_USED)/lib64 -lcudart_static -ldl -lrt \
	-lpthread -lm
# One batch on both sides, for the tests of dispatch and combine.
GPU_BATCH = tests/gpu/batch.c tests/gpu/batch.h tests/gpu/sides.c tests/gpu/gpu.h
EXTRA_PROGRAMS = \
	tests/gpu/ep_expert tests/gpu/ep_gpu tests/gpu/ep_ll tests/gpu/ep_nccl \
	tests/gpu/ep_streams tests/gpu/p2p_device tests/gpu/p2p_gpu tests/gpu/gpu_edges
CLEANFILES += $(EXTRA_PROGRAMS) tests/gpu/p2p_device_kernels.nv.o tests/gpu/gpu_device
tests_gpu_gpu_edges_SOURCES = tests/faults/gpu_edges.c tests/gpu/gpu.h
tests_gpu_gpu_edges_CPPFLAGS = $(GPU_CPPFLAGS) -I$(top_srcdir)/tests/gpu
tests_gpu_gpu_edges_LDADD = $(GPU_LIBS)
tests/gpu/gpu_device: tests/faults/gpu_device.cu include/mpix_device.cuh include/mpix_device.h
	$(AM_V_GEN)$(MKDIR_P) tests/gpu && \
	  $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -I$(top_srcdir)/include \
	  -DMPIX_DEVICE_ONLY -o $@ $(top_srcdir)/tests/faults/gpu_device.cu
tests_gpu_p2p_device_SOURCES = tests/gpu/p2p_device.c tests/gpu/gpu.h tests/gpu/p2p_device_kernels.h
tests_gpu_p2p_device_CPPFLAGS = $(GPU_CPPFLAGS)
tests_gpu_p2p_device_LDADD = tests/gpu/p2p_device_kernels.nv.o $(GPU_LIBS) -lstdc++
tests/gpu/p2p_device_kernels.nv.o: \
	tests/gpu/p2p_device_kernels.cu tests/gpu/p2p_device_kernels.h \
	include/mpix_device.cuh include/mpix_device.h
	$(AM_V_GEN)$(MKDIR_P) tests/gpu && \
	  $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -I$(top_srcdir)/include \
	  -Xcompiler -fPIC -c -o $@ $(top_srcdir)/tests/gpu/p2p_device_kernels.cu
tests_gpu_ep_nccl_SOURCES = tests/gpu/ep_nccl.c tests/gpu/gpu.h
tests_gpu_ep_nccl_CPPFLAGS = $(GPU_CPPFLAGS) $(NCCL_CFLAGS)
tests_gpu_ep_nccl_LDADD = $(GPU_LIBS)
tests_gpu_ep_expert_SOURCES = tests/gpu/ep_expert.c $(GPU_BATCH)
tests_gpu_ep_expert_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_gpu_ep_expert_LDADD = tests/common/libharness.la $(GPU_LIBS)
tests_gpu_ep_gpu_SOURCES = tests/gpu/ep_gpu.c $(GPU_BATCH)
tests_gpu_ep_gpu_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_gpu_ep_gpu_LDADD = tests/common/libharness.la $(GPU_LIBS)
tests_gpu_ep_ll_SOURCES = tests/gpu/ep_ll.c $(GPU_BATCH)
tests_gpu_ep_ll_CPPFLAGS = $(GPU_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir)/tests/common
tests_gpu_ep_ll_LDADD = tests/common/libharness.la $(GPU_LIBS)
tests_gpu_ep_streams_SOURCES = \
	tests/gpu/ep_streams.c tests/gpu/ep_streams_lane.c tests/gpu/ep_streams.h tests/gpu/gpu.h
tests_gpu_ep_streams_CPPFLAGS = $(GPU_CPPFLAGS)
tests_gpu_ep_streams_LDADD = $(GPU_LIBS)
tests_gpu_p2p_gpu_SOURCES = tests/gpu/p2p_gpu.c tests/gpu/gpu.h
tests_gpu_p2p_gpu_CPPFLAGS = $(GPU_CPPFLAGS)
tests_gpu_p2p_gpu_LDADD = $(GPU_LIBS)

check-gpu: \
	bench/internal/mpix_gpu_fifo_bench tests/gpu/gpu_device tests/gpu/gpu_edges \
	tests/gpu/ep_expert tests/gpu/ep_gpu tests/gpu/ep_ll tests/gpu/ep_nccl \
	tests/gpu/ep_streams tests/gpu/p2p_device tests/gpu/p2p_gpu examples/device_halo \
	libmpixep_cuda.so
	@$(AM_TESTS_ENVIRONMENT) sh $(top_srcdir)/tests/gpu/run.sh

# Not a test: what doc/performance.md tells about GPUs, one rank on each.
figures-gpu: all tests/gpu/ep_gpu libmpixep_cuda.so
	@$(AM_TESTS_ENVIRONMENT) $(top_srcdir)/tests/gpu/figures
else
check-gpu figures-gpu:
	@echo "SKIP: $@: this build has no CUDA module (configure found no nvcc)"
endif
.PHONY: check-gpu figures-gpu
