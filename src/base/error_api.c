/*
 * error_api.c - MPIX_Error_last, MPIX_Error_kind, MPIX_Ep_get_version: calls that belong to no
 * object, work at any time, and raise nothing.
 */
#include "config.h"

#include <stdio.h>

#include "base/status.h"
#include "boot/boot.h"
#include "mpix_ep.h"

MPIX_EXPORT int PMPIX_Error_last(MPIX_Error *error) {
    if (!error || error->struct_size != sizeof *error)
        return MPI_ERR_ARG;
    *error = *mpix_error_tls();
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Error_last);

MPIX_EXPORT int PMPIX_Error_kind(int code, int *kind) {
    if (!kind)
        return MPI_ERR_ARG;
    *kind = mpix_boot_kind(code);
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Error_kind);

MPIX_EXPORT int PMPIX_Ep_get_version(int *major, int *minor, int *patch) {
    int version[3] = {0, 0, 0};

    /* "0.1.0"; a suffix such as "-dev" is left out. */
    if (sscanf(PACKAGE_VERSION, "%d.%d.%d", &version[0], &version[1], &version[2]) < 1)
        return MPI_ERR_OTHER;
    if (major)
        *major = version[0];
    if (minor)
        *minor = version[1];
    if (patch)
        *patch = version[2];
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_get_version);
