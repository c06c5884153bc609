# examples/ - programs to copy from, built and checked with the library but not installed; and the
# data they run on.
noinst_PROGRAMS += examples/ep_minimal
examples_ep_minimal_SOURCES = examples/ep_minimal.c
examples_ep_minimal_LDADD = libmpixep.la $(MPI_LIBS)

noinst_PROGRAMS += examples/halo
examples_halo_SOURCES = examples/halo.c
examples_halo_LDADD = libmpixep.la $(MPI_LIBS)

if HAVE_CXX
noinst_PROGRAMS += examples/ep_minimal_cxx
examples_ep_minimal_cxx_SOURCES = examples/ep_minimal_cxx.cpp
examples_ep_minimal_cxx_LDADD = libmpixep.la $(MPI_LIBS)
if HAVE_CBLAS
noinst_PROGRAMS += examples/moe_layer
examples_moe_layer_SOURCES = examples/moe_layer.cpp examples/moe_layer.hpp examples/moe_router.hpp \
	examples/moe_experts.hpp examples/moe_data.hpp \
	examples/moe_exchange.hpp examples/moe_reference.hpp examples/npy.hpp
examples_moe_layer_CPPFLAGS = $(AM_CPPFLAGS) $(CBLAS_CFLAGS)
examples_moe_layer_LDADD = libmpixep.la $(CBLAS_LIBS) $(MPI_LIBS)

# --memory cuda: kernels and the CUDA runtime, which is linked statically; cuBLAS is loaded when
# it is asked for.
if HAVE_CUBLAS
examples_moe_layer_CPPFLAGS += -DMOE_CUDA -DMOE_CUDA_LIBS='"$(CUDA_HOME_USED)/lib64"' -isystem \
	$(CUDA_HOME_USED)/include
examples_moe_layer_LDADD += examples/moe_kernels.nv.o -L$(CUDA_HOME_USED)/lib64 -lcudart_static \
	-ldl -lrt -lpthread
examples/moe_kernels.nv.o: examples/moe_kernels.cu examples/moe_kernels.hpp
	$(AM_V_GEN)$(MKDIR_P) examples && $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -Xcompiler \
	  -fPIC -c -o $@ $(top_srcdir)/examples/moe_kernels.cu
endif
endif
endif

# Transfers that kernels start.
EXTRA_DIST += examples/device_halo.c examples/device_kernels.cu examples/device_kernels.h
CLEANFILES += examples/device_kernels.nv.o
if HAVE_CUDA
noinst_PROGRAMS += examples/device_halo
examples_device_halo_SOURCES = examples/device_halo.c examples/device_kernels.h
examples_device_halo_CPPFLAGS = $(AM_CPPFLAGS) -isystem $(CUDA_HOME_USED)/include
examples_device_halo_LDADD = examples/device_kernels.nv.o libmpixep.la $(MPI_LIBS) \
	-L$(CUDA_HOME_USED)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
examples/device_kernels.nv.o: examples/device_kernels.cu examples/device_kernels.h \
	include/mpix_device.cuh include/mpix_device.h
	$(AM_V_GEN)$(MKDIR_P) examples && $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) \
	  -I$(top_srcdir)/include -Xcompiler -fPIC -c -o $@ $(top_srcdir)/examples/device_kernels.cu
endif

if HAVE_MPIEXEC
TESTS += examples/test_ep_minimal.sh examples/test_halo.sh
if HAVE_CXX
TESTS += examples/test_cxx.sh
if HAVE_CBLAS
TESTS += examples/test_moe_layer.sh examples/test_moe_layer_bad.sh
endif
endif
endif
CLEANFILES += examples/moe_kernels.nv.o
EXTRA_DIST += examples/moe_cuda.hpp examples/moe_cublas.hpp examples/moe_kernels.hpp \
	examples/moe_kernels.cu
EXTRA_DIST += examples/ep_minimal_cxx.cpp examples/test_cxx.sh examples/test_halo.sh \
	examples/test_ep_minimal.sh examples/test_moe_layer.sh examples/test_moe_layer_bad.sh

# Real choices of experts, for mpix_ep_bench --routing: of use to an installed benchmark too.
routingdir = $(pkgdatadir)/routing
dist_routing_DATA = data/routing/layer0_topk.npy data/routing/layer1_topk.npy \
	data/routing/layer2_topk.npy

EXTRA_DIST += data/README.md data/moe_layer/router.npy data/moe_layer/topk_idx.npy \
	data/moe_layer/topk_weights.npy \
	data/moe_layer/w_down_bf16.npy data/moe_layer/w_gate_bf16.npy data/moe_layer/w_up_bf16.npy \
	data/moe_layer/x_bf16.npy \
	data/moe_layer/y.npy
