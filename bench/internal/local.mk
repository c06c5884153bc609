# bench/internal/ - for developers: what single layers of the library cost. They look inside it, so
# none is installed.
noinst_PROGRAMS += bench/internal/rows_bench bench/internal/mpix_fifo_bench

# How fast the kernels of kernels/host move memory.
bench_internal_rows_bench_SOURCES = bench/internal/rows_bench.c
bench_internal_rows_bench_LDADD = libmpixep_core.la

# What a command of the proxy costs.
bench_internal_mpix_fifo_bench_SOURCES = bench/internal/fifo_bench.c
bench_internal_mpix_fifo_bench_LDADD = libmpixep_core.la $(MPI_LIBS)

# The same for commands of a GPU's kernels; -c checks the queue (make check-gpu).
EXTRA_DIST += \
	bench/internal/gpu_fifo_kernels.cu bench/internal/gpu_fifo.h bench/internal/gpu_fifo_bench.c \
	bench/internal/gpu_fifo_consumers.c bench/internal/gpu_fifo_consumers.h
CLEANFILES += bench/internal/gpu_fifo_kernels.nv.o
if HAVE_CUDA
noinst_PROGRAMS += bench/internal/mpix_gpu_fifo_bench
bench_internal_mpix_gpu_fifo_bench_SOURCES = \
	bench/internal/gpu_fifo_bench.c bench/internal/gpu_fifo_consumers.c \
	bench/internal/gpu_fifo_consumers.h bench/internal/gpu_fifo.h
bench_internal_mpix_gpu_fifo_bench_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
bench_internal_mpix_gpu_fifo_bench_LDADD = \
	bench/internal/gpu_fifo_kernels.nv.o libmpixep_core.la $(MPI_LIBS) \
	-L$(CUDA_HOME_USED)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
bench/internal/gpu_fifo_kernels.nv.o: bench/internal/gpu_fifo_kernels.cu bench/internal/gpu_fifo.h \
  include/mpix_device.cuh include/mpix_device.h
	$(AM_V_GEN)$(MKDIR_P) bench/internal && \
	  $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -I$(top_srcdir)/include \
	  -Xcompiler -fPIC -c -o $@ $(top_srcdir)/bench/internal/gpu_fifo_kernels.cu
endif
