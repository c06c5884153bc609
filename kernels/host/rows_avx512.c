/* rows_avx512.c - the AVX-512 variant of the row kernels. */
#include "config.h"

#include "kernels/host/isa.h"

#if MPIX_ROWS_X86
#include "kernels/host/scalar.h"
#include "mpix_ep.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,f16c")
#endif

#include "kernels/host/vec_avx512.h"

#include "kernels/host/variant_impl.h"

VARIANT_OPS(avx512);

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
