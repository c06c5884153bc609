/*
 * info.c - the library's keys in an MPI_Info.
 */
#include "config.h"

#include "boot/boot.h"

#include <stdlib.h>
#include <string.h>

static int info_get(MPI_Info info, const char *key, char **value) {
    int len = 0, flag = 0, kind;

    *value = NULL;
    kind = mpix_boot_mpi(MPI_Info_get_valuelen(info, key, &len, &flag), "MPI_Info_get_valuelen");
    if (kind || !flag)
        return kind;
    *value = calloc((size_t)len + 1, 1);
    if (!*value)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an info value of %d characters",
                         len);
    kind = mpix_boot_mpi(MPI_Info_get(info, key, len, *value, &flag), "MPI_Info_get");
    if (kind || !flag) {
        free(*value);
        *value = NULL;
    }
    return kind;
}

int mpix_boot_info_each(MPI_Info info, int (*fn)(void *arg, const char *key, const char *value),
                        void *arg) {
    static const char prefix[] = "mpix_ep_";
    int n = 0, kind;

    if (info == MPI_INFO_NULL)
        return 0;
    kind = mpix_boot_mpi(MPI_Info_get_nkeys(info, &n), "MPI_Info_get_nkeys");
    for (int i = 0; i < n && !kind; i++) {
        char key[MPI_MAX_INFO_KEY + 1], *value;

        kind = mpix_boot_mpi(MPI_Info_get_nthkey(info, i, key), "MPI_Info_get_nthkey");
        if (kind || strncmp(key, prefix, sizeof prefix - 1) != 0)
            continue;
        kind = info_get(info, key, &value);
        if (!kind && value)
            kind = fn(arg, key + sizeof prefix - 1, value);
        free(value);
    }
    return kind;
}
