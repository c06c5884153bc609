/*
 * rows_ref.h - what the tests of the row kernels share: an independent reference, buffers between
 * guard pages, random numbers.
 *
 * The reference decodes and encodes the formats by their definition (sign, exponent, fraction;
 * ldexp), and rounds by counting units in the last place. Nothing here comes from kernels/host/.
 * (An assertion of Check costs a system call: loops over elements test for themselves and abort.)
 */
#ifndef MPIX_TESTS_ROWS_REF_H
#define MPIX_TESTS_ROWS_REF_H
#include <check.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/param.h"
#include "kernels/host/rows.h"
#include "mpix_ep.h"

/* A binary floating-point format. infinities: the largest exponent means infinity and NaN; else
 * only all ones is NaN (e4m3fn). */
typedef struct ref_format {
    int exponent_bits, fraction_bits, infinities;
} ref_format;

const ref_format *ref_format_of(int dtype);
/* The value of a pattern of a dtype, exact; NaN for any NaN. */
double ref_decode(int dtype, uint64_t bits);
int ref_is_nan(int dtype, uint64_t bits);
/* A value rounded to nearest even to a dtype, as a pattern; infinity beyond the
 * range. Not for NaN. */
uint64_t ref_encode(int dtype, double v);
/* Element i of a row as a pattern. */
uint64_t ref_element(const void *row, int dtype, size_t i);
void ref_element_set(void *row, int dtype, size_t i, uint64_t bits);
/* The sum of one column, in float or double, one operation after another, rounded to y's dtype; NaN
 * as the quiet pattern. */
uint64_t ref_sum(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype, size_t c);

/* The variants that this processor has. */
int ref_variants(const mpix_rows_ops *ops[3]);

/* n bytes that begin or end exactly at a page that can't be accessed, or lie at an offset; the
 * bytes around them are watched. */
typedef struct guarded {
    char *p;
    size_t n;
    char *arena;
} guarded;

enum { GUARD_END, GUARD_START };
guarded guarded_new(size_t n, int where, size_t offset); /* GUARD_END: offset bytes before the guard
                                                          * page */
void guarded_check(const guarded *g);                    /* fails the test if something beside the n
                                                          * bytes was written */
void guarded_free(guarded *g);

uint64_t rnd(void);
uint64_t rnd_below(uint64_t n);
void rnd_seed(uint64_t seed);

TCase *rows_copy_tests(void);
TCase *rows_quant_tests(void);
TCase *rows_convert_tests(void);
TCase *rows_sum_tests(void);
#endif
