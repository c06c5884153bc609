/*
 * kind.h - kinds of errors for sources that do not see MPI, as kernels and the CUDA module:
 * MPIX_ERRK_* of mpix_xfer.h under names of their own. status.c asserts that they are the same.
 */
#ifndef MPIX_BASE_KIND_H
#define MPIX_BASE_KIND_H

enum {
    MPIX_KIND_ARG = 1,
    MPIX_KIND_TRUNCATE,
    MPIX_KIND_NO_MEM,
    MPIX_KIND_UNSUPPORTED,
    MPIX_KIND_REMOTE,
    MPIX_KIND_PEER,
    MPIX_KIND_TIMEOUT,
    MPIX_KIND_TRANSPORT,
    MPIX_KIND_INTERNAL
};
#endif
