# bench/ - mpix_ep_bench: the benchmark of MPIX_Ep_*, a user of the installed headers and library only.
bin_PROGRAMS += mpix_ep_bench
mpix_ep_bench_SOURCES = bench/bench.h bench/ep_bench.c bench/options.c bench/npy.c bench/routing.c bench/content.c bench/ours.c \
    bench/baseline_mpi.c bench/reduce.c bench/copy.c bench/measure.c bench/overlap.c bench/verify.c bench/report.c bench/json.c
mpix_ep_bench_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
mpix_ep_bench_LDADD = libmpixep.la $(JANSSON_LIBS) $(MPI_LIBS) -lm

# What a command of the proxy costs. It looks inside the library, so it is not installed.
noinst_PROGRAMS += bench/mpix_fifo_bench
bench_mpix_fifo_bench_SOURCES = bench/fifo_bench.c
bench_mpix_fifo_bench_LDADD = libmpixep_core.la $(MPI_LIBS)

# MPIX_P2p_* beside MPI's one-sided calls and memcpy.
bin_PROGRAMS += mpix_p2p_bench
mpix_p2p_bench_SOURCES = bench/p2p_bench.c
mpix_p2p_bench_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
mpix_p2p_bench_LDADD = libmpixep.la $(JANSSON_LIBS) $(MPI_LIBS)
