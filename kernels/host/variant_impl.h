/*
 * variant_impl.h - one variant of the row kernels, made of the operations of a vec_*.h that was
 * included before. Included once per variant, by a file that has raised the instruction set for
 * what follows. VARIANT_OPS defines its table.
 */
#include "kernels/host/copy_impl.h"

/* Sixteen elements of any dtype that y and the bias rows may have. */
V_INLINE vf vf_load(int dtype, const char *p) {
    switch (dtype) {
    case MPIX_EP_F64: return vf_from_vd(vd_load_f64(p));
    case MPIX_EP_F32: return vf_load_f32(p);
    case MPIX_EP_F16: return vf_load_f16(p);
    default: return vf_load_bf16(p);
    }
}

V_INLINE vd vd_load(int dtype, const char *p) {
    return dtype == MPIX_EP_F64 ? vd_load_f64(p) : vd_from_vf(vf_load(dtype, p));
}

/* Finished columns, rounded to y's dtype. */
V_INLINE void vf_store(int dtype, char *p, const vf a[], int nv, int nt) {
    switch (dtype) {
    case MPIX_EP_F64:
        MPIX_EACH(nv, VF_VECS, vd_store_f64(p + v * 128, vd_from_vf(a[v]), nt));
        break;
    case MPIX_EP_F32: MPIX_EACH(nv, VF_VECS, vf_store_f32(p + v * 64, a[v], nt)); break;
    case MPIX_EP_F16: MPIX_EACH(nv, VF_VECS, vf_store_f16(p + v * 32, a[v], nt)); break;
    default: MPIX_EACH(nv, VF_VECS, vf_store_bf16(p + v * 32, a[v], nt)); break;
    }
}

V_INLINE void vd_store(int dtype, char *p, const vd a[], int nv, int nt) {
    switch (dtype) {
    case MPIX_EP_F64: MPIX_EACH(nv, VD_VECS, vd_store_f64(p + v * 128, a[v], nt)); break;
    case MPIX_EP_F32: MPIX_EACH(nv, VD_VECS, vf_store_f32(p + v * 64, vf_from_vd(a[v]), nt)); break;
    case MPIX_EP_F16: /* rounded to odd first, so that the second rounding gives what one would */
        MPIX_EACH(nv, VD_VECS, vf_store_f16(p + v * 32, vf_odd_from_vd(a[v]), nt));
        break;
    default: MPIX_EACH(nv, VD_VECS, vf_store_bf16(p + v * 32, vf_odd_from_vd(a[v]), nt)); break;
    }
}

#if V_PAIRS
V_INLINE void vf_store_pairs(char *p, const vf a[], int nv, int nt) {
    MPIX_EACH(nv, VF_VECS, if (v % 2 == 0) vf_store_bf16_pairs(p + v * 32, a[v], a[v | 1], nt));
}
#endif

/* How the terms of a sum hang together. */
enum { SUM_EMPTY, SUM_CHAIN, SUM_GROUPS };

static int sum_shape(const mpix_row_sum *sum) {
    int groups = 1;
    if (sum->nterms <= 0)
        return SUM_EMPTY;
    for (int t = 1; t < sum->nterms; t++) {
        int same = sum->terms[t].group == sum->terms[t - 1].group;
        if (same && groups > 1)
            return SUM_GROUPS;
        groups += !same;
    }
    return SUM_CHAIN;
}

/*
 * How far ahead, in bytes, the reads of a row are announced. Less than a pass is best (measured on
 * Zen 4): rows of many terms often lie at equal places modulo the size of a cache's way, and what
 * is fetched too early throws out what is needed now.
 */
#define SUM_AHEAD 128

#define V(name) vf_##name
#define V_T vf
#define SUM_VECS VF_VECS

#define SUM(name) name##_f32
#define X_DTYPE MPIX_EP_F32
#define X_LOAD(p, v) vf_load_f32((p) + (v)*64)
#define X_SIZE 4
#define X_SCALED 0
#define X_PAIRS 0
#define X_SAME sum_body_f32
#include "kernels/host/sum_impl.h"

#define SUM(name) name##_f16
#define X_DTYPE MPIX_EP_F16
#define X_LOAD(p, v) vf_load_f16((p) + (v)*32)
#define X_SIZE 2
#define X_SCALED 0
#define X_PAIRS 0
#define X_SAME sum_body_f16
#include "kernels/host/sum_impl.h"

#if V_PAIRS
#define SUM(name) name##_bf16_pairs
#define X_DTYPE MPIX_EP_BF16
#define X_LOAD(p, v) vf_load_bf16_pairs(p, v)
#define X_SIZE 2
#define X_SCALED 0
#define X_PAIRS 1
#include "kernels/host/sum_impl.h"
#endif

#define SUM(name) name##_bf16
#define X_DTYPE MPIX_EP_BF16
#define X_LOAD(p, v) vf_load_bf16((p) + (v)*32)
#define X_SIZE 2
#define X_SCALED 0
#define X_PAIRS 0
#if V_PAIRS
#define X_SAME sum_body_bf16_pairs
#else
#define X_SAME sum_body_bf16
#endif
#include "kernels/host/sum_impl.h"

#define SUM(name) name##_f8e4m3
#define X_DTYPE MPIX_EP_F8E4M3
#define X_LOAD(p, v) vf_load_f8e4m3((p) + (v)*16)
#define X_SIZE 1
#define X_SCALED 1
#define X_PAIRS 0
#define X_SAME sum_body_f8e4m3
#include "kernels/host/sum_impl.h"

#define SUM(name) name##_f8e5m2
#define X_DTYPE MPIX_EP_F8E5M2
#define X_LOAD(p, v) vf_load_f8e5m2((p) + (v)*16)
#define X_SIZE 1
#define X_SCALED 1
#define X_PAIRS 0
#define X_SAME sum_body_f8e5m2
#include "kernels/host/sum_impl.h"

#undef V
#undef V_T
#undef SUM_VECS
#define V(name) vd_##name
#define V_T vd
#define SUM_VECS VD_VECS

#define SUM(name) name##_f64
#define X_DTYPE MPIX_EP_F64
#define X_LOAD(p, v) vd_load_f64((p) + (v)*128)
#define X_SIZE 8
#define X_SCALED 0
#define X_PAIRS 0
#define X_SAME sum_body_f64
#include "kernels/host/sum_impl.h"

static void rows_sum(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype, size_t hidden,
                     int streaming) {
    static void (*const by_dtype[])(const mpix_row_sum *, int, int, size_t, int) = {
        [MPIX_EP_F64] = sum_row_f64,       [MPIX_EP_F32] = sum_row_f32,
        [MPIX_EP_F16] = sum_row_f16,       [MPIX_EP_BF16] = sum_row_bf16,
        [MPIX_EP_F8E4M3] = sum_row_f8e4m3, [MPIX_EP_F8E5M2] = sum_row_f8e5m2,
    };
    unsigned mode = mpix_fp_enter();
    by_dtype[xdtype](sum, scale_kind, ydtype, hidden, streaming);
    mpix_fp_leave(mode);
}

#include "kernels/host/quant_impl.h"

#define VARIANT_OPS(variant) \
    const mpix_rows_ops mpix_rows_##variant = { \
        .name = #variant, \
        .copy = rows_copy, \
        .zero = rows_zero, \
        .fence = rows_fence, \
        .sum = rows_sum, \
        .quantize = rows_quantize, \
    }
