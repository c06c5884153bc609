/* rows.c - chooses the variant of the row kernels, and what is known about dtypes. */
#include "config.h"

#include "base/param.h"
#include "kernels/host/isa.h"
#include "mpix_ep.h"

#if MPIX_ROWS_X86
#include <cpuid.h>

/* __builtin_cpu_supports also asks whether the system saves the wide registers. Not every
 * compiler's knows F16C. */
static int rows_have_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int rows_have_avx512(void) {
    return rows_have_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

const mpix_rows_ops *mpix_rows_get(int isa) {
#if MPIX_ROWS_X86
    if ((isa == MPIX_ISA_AVX512 || isa == MPIX_ISA_AUTO) && rows_have_avx512())
        return &mpix_rows_avx512;
    if ((isa == MPIX_ISA_AVX2 || isa == MPIX_ISA_AUTO) && rows_have_avx2())
        return &mpix_rows_avx2;
#endif
    return isa == MPIX_ISA_PORTABLE || isa == MPIX_ISA_AUTO ? &mpix_rows_portable : NULL;
}

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [MPIX_EP_BYTES] = {1, "bytes"},   [MPIX_EP_F64] = {8, "f64"},
    [MPIX_EP_F32] = {4, "f32"},       [MPIX_EP_F16] = {2, "f16"},
    [MPIX_EP_BF16] = {2, "bf16"},     [MPIX_EP_F8E4M3] = {1, "f8e4m3"},
    [MPIX_EP_F8E5M2] = {1, "f8e5m2"},
};

static int dtype_known(int dtype) {
    return dtype > 0 && dtype < (int)(sizeof dtypes / sizeof *dtypes);
}

size_t mpix_dtype_size(int dtype) { return dtype_known(dtype) ? dtypes[dtype].size : 0; }

const char *mpix_dtype_name(int dtype) {
    return dtype_known(dtype) ? dtypes[dtype].name : "unknown";
}
