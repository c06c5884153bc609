/* scalar.h - the sum of columns one by one: what defines a sum, and what every variant falls back
 * to where a result is NaN. */
#ifndef MPIX_KERNELS_HOST_SCALAR_H
#define MPIX_KERNELS_HOST_SCALAR_H
#include "kernels/host/rows.h"

/*
 * Computes columns [from, to) of the sum, arguments as in mpix_rows_ops.sum. An addition or product
 * of two NaNs gives the first one. Vector code can't promise that, since compilers exchange the
 * operands of a sum as they please; so a variant that finds a NaN in its results calls this
 * function, and all variants agree bit by bit.
 */
void mpix_rows_sum_columns(const mpix_row_sum *sum, int xdtype, int scale_kind, int ydtype,
                           size_t from, size_t to);
#endif
