/* rows_portable.c - the variant of the row kernels for any processor. */
#include "config.h"

#include "kernels/host/isa.h"
#include "kernels/host/scalar.h"
#include "mpix_ep.h"

#include "kernels/host/vec_portable.h"

#include "kernels/host/variant_impl.h"

VARIANT_OPS(portable);
