/*
 * rows.h - the host's work on rows, behind one table of functions per instruction set.
 *
 * Arithmetic is exact IEEE: bf16, f16 and fp8 widen exactly; results round to nearest even; NaN
 * stays NaN (quiet), overflow of f16 and bf16 gives infinity; products are rounded before they are
 * added (no fused multiply-add), denormals are kept. Every variant gives bitwise the same results.
 */
#ifndef MPIX_KERNELS_HOST_ROWS_H
#define MPIX_KERNELS_HOST_ROWS_H
#include <stddef.h>
#include <stdint.h>

/* One row that enters a sum. */
typedef struct mpix_row_term {
    const void *x;      /* hidden elements of the sum's dtype */
    const void *scales; /* fp8 with scales: [ceil(hidden / 128)] of scale_kind; else NULL. Value =
                           element * scale, rounded to float */
    float w[2];         /* factors; value * w[0], rounded, then * w[1], rounded; used as
                         * far as nw says */
    int nw;             /* 0, 1 or 2 */
    int group;          /* rank: terms of a group are adjacent and summed first (in order), then
                         * groups in order */
} mpix_row_term;

/* y = round(sum over groups (sum over terms) + bias[0] + bias[1]); the first term starts a sum (no
 * "0 +"). No terms: y = 0, then bias. y may be one of the rows of its own dtype that enter the sum;
 * no other overlap. */
typedef struct mpix_row_sum {
    void *y;
    const void *bias[2]; /* rows of y's dtype, NULL: none */
    int nterms;
    const mpix_row_term *terms;
} mpix_row_sum;

typedef struct mpix_rows_ops {
    const char *name; /* "portable", "avx2", "avx512" */
    /* Copies n bytes from src to each of ndst places (no overlap, any alignment), reading src from
     * memory once. streaming: bypass the caches with non-temporal stores where the destination's
     * alignment allows (edges with ordinary stores). */
    void (*copy)(const void *src, size_t n, void *const dst[], int ndst, int streaming);
    void (*zero)(void *dst, size_t n, int streaming);
    /* Orders streaming stores before later stores (sfence); release stores do not. */
    void (*fence)(void);
    /* One output row. xdtype, ydtype: MPIX_EP_F64 .. MPIX_EP_F8E5M2; y not fp8; F64 x sums in
     * double, everything else in float (a F64 bias is rounded to float first); a F64 y from float
     * sums and a float y from F64 sums are converted with one rounding. Of several NaNs the first
     * in order stays. Runs in the default floating-point mode, whatever the caller's. Any
     * alignment; y streams if it is aligned to its elements. scale_kind: MPIX_EP_NO_SCALES ..
     * MPIX_EP_SCALES_UE8M0. */
    void (*sum)(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype, size_t hidden,
                int streaming);
    /*
     * Quantises a row of F32, F16 or BF16 to F8E4M3 or F8E5M2 with a scale per 128 columns,
     * scale_kind SCALES_F32 or SCALES_UE8M0. For each group, in float, each operation rounded
     * to nearest even:
     *   amax = max(|x|, 2^-110), NaNs left out;  top = 448 (e4m3) or 57344 (e5m2)
     *   F32:   scale = amax / top;  q = round(x * (top / amax))
     *   UE8M0: scale = the smallest power of two that is not below amax / top; q = round(x / scale)
     * round: to nearest even, cut to top. A NaN becomes 0x7f. With an infinity the scale is an
     * infinity (F32) or NaN (UE8M0) and every element of the group ends as NaN when it is
     * multiplied by it. Any alignment. F32's product instead of a division for each element costs
     * one rounding more, at most half a unit in float's last place, which is far below fp8's.
     */
    void (*quantize)(const void *x, int xdtype, void *q, int qdtype, void *scales, int scale_kind,
                     size_t hidden);
} mpix_rows_ops;

/* The table for a MPIX_ISA_* (base/param.h); AUTO: the best this CPU has. NULL: the CPU lacks it,
 * or not built. */
const mpix_rows_ops *mpix_rows_get(int isa);
size_t mpix_dtype_size(int dtype);      /* BYTES: 1; unknown: 0 */
const char *mpix_dtype_name(int dtype); /* "bytes", "f64", ..., "f8e5m2" */
#endif
