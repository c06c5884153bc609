# kernels/ - the work on rows. Each variant raises the instruction set for its own functions, so
# none needs flags of its own.
libmpixep_core_la_SOURCES += \
	kernels/host/convert.h \
	kernels/host/copy_impl.h \
	kernels/host/isa.h \
	kernels/host/quant_impl.h \
	kernels/host/rows.c \
	kernels/host/rows.h \
	kernels/host/rows_avx2.c \
	kernels/host/rows_avx512.c \
	kernels/host/rows_portable.c \
	kernels/host/scalar.c \
	kernels/host/scalar.h \
	kernels/host/sum_impl.h \
	kernels/host/variant_impl.h \
	kernels/host/vec_avx2.h \
	kernels/host/vec_avx512.h \
	kernels/host/vec_portable.h
