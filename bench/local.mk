# bench/ - mpix_ep_bench: the benchmark of MPIX_Ep_*, a user of the installed headers and library
# only.
bin_PROGRAMS += mpix_ep_bench
mpix_ep_bench_SOURCES = \
	bench/bench.h bench/ep_bench.c bench/options.c bench/usage.c bench/npy.c \
	bench/routing.c bench/content.c bench/ours.c bench/baseline_mpi.c bench/reduce.c \
	bench/copy.c bench/measure.c bench/nccl.c bench/nccl.h bench/overlap.c bench/ll.c \
	bench/stats.c bench/stats.h bench/verify.c bench/report.c bench/json.c \
	bench/curves.c bench/plot.c bench/plot.h bench/cuda.c bench/cuda_run.c \
	bench/cuda_ll.c bench/cuda_base.c bench/cuda_bounds.c bench/cuda_overlap.c \
	bench/cuda.h bench/cuda_kernels.h
mpix_ep_bench_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
EXTRA_DIST += bench/cuda_kernels.cu
mpix_ep_bench_LDFLAGS = $(LDFLAGS_OF_TOOLS)
mpix_ep_bench_LDADD = libmpixep.la $(JANSSON_LIBS) $(MPI_LIBS) -lm

# In GPU memory: the baselines' kernels and the CUDA runtime, which is linked statically. NCCL is
# loaded when it is asked for.
CLEANFILES += bench/cuda_kernels.nv.o
if HAVE_CUDA
mpix_ep_bench_CPPFLAGS += -isystem $(CUDA_HOME_USED)/include $(NCCL_CFLAGS)
mpix_ep_bench_LDADD += bench/cuda_kernels.nv.o -L$(CUDA_HOME_USED)/lib64 -lcudart_static \
	-lstdc++ -ldl -lrt -lpthread
# --overlap in GPU memory: cuBLAS is loaded when it is asked for.
if HAVE_CUBLAS
mpix_ep_bench_CPPFLAGS += -DBENCH_CUBLAS -DBENCH_CUDA_LIBS='"$(CUDA_HOME_USED)/lib64"'
endif
bench/cuda_kernels.nv.o: bench/cuda_kernels.cu bench/cuda_kernels.h
	$(AM_V_GEN)$(MKDIR_P) bench && \
	  $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -Xcompiler -fPIC -c -o $@ \
	  $(top_srcdir)/bench/cuda_kernels.cu
endif

# MPIX_P2p_* beside MPI's one-sided calls and memcpy.
bin_PROGRAMS += mpix_p2p_bench
mpix_p2p_bench_SOURCES = \
	bench/nccl.c bench/nccl.h bench/p2p.h bench/p2p_bench.c bench/p2p_cuda.c \
	bench/p2p_pairs.c bench/p2p_sides.c bench/plot.c bench/plot.h bench/stats.c \
	bench/stats.h
mpix_p2p_bench_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
mpix_p2p_bench_LDFLAGS = $(LDFLAGS_OF_TOOLS)
mpix_p2p_bench_LDADD = libmpixep.la $(JANSSON_LIBS) $(MPI_LIBS) -lm
if HAVE_CUDA
mpix_p2p_bench_CPPFLAGS += -isystem $(CUDA_HOME_USED)/include $(NCCL_CFLAGS)
mpix_p2p_bench_LDADD += -L$(CUDA_HOME_USED)/lib64 -lcudart_static -ldl -lrt -lpthread -lm
endif
