/*
 * world_plugin.c - what a plugin does that uses the library: a context is made, used and freed; or
 * one is left to MPI_Finalize.
 */
#include "mpix_ep.h"

int plugin_use(int leave);

__attribute__((visibility("default"))) int plugin_use(int leave) {
    static MPIX_Ep kept; /* not on the stack of code that is gone */
    MPIX_Ep_config config;
    MPIX_Ep_handle handle;
    int size, code;

    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPIX_INIT(&config);
    config.max_topk = 1;
    config.num_experts = size;
    config.max_tokens = 4;
    config.max_row_bytes = 64;
    code = MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &kept);
    if (code == MPI_SUCCESS)
        code = MPIX_Ep_handle_create(kept, &handle);
    if (code == MPI_SUCCESS && !leave)
        code = MPIX_Ep_free(&kept);
    return code;
}
