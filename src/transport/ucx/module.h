/*
 * module.h - what the library and its module libmpixep_ucx.so know of each other. The transport is
 * a module because libucp brings a good deal with it (threads, handlers of signals, hooks of the
 * allocator), which a program that needs no network should not get.
 */
#ifndef MPIX_TRANSPORT_UCX_MODULE_H
#define MPIX_TRANSPORT_UCX_MODULE_H
#include "transport/net.h"

enum {
    MPIX_UCX_ABI = 2,
    MPIX_UCX_ADDRESS_BYTES = 1536, /* of a worker; one with a dozen interfaces takes about 500 */
    MPIX_UCX_KEY_BYTES = 320       /* of a window: a key of libucp with 8 bytes or so per
                                    * memory domain */
};

/* The library's functions that the module calls; the library is linked with hidden names. */
typedef struct mpix_ucx_host {
    int abi;
    size_t boot_bytes, params_bytes, op_bytes; /* of structs: a module of another build refuses */
    int (*fail)(int kind, const char *arg, const char *fmt, ...) MPIX_PRINTF(3, 4);
    int (*fail_peer)(int kind, int rank, const char *host, const char *fmt, ...) MPIX_PRINTF(4, 5);
    void (*log)(int level, const char *fmt, ...) MPIX_PRINTF(2, 3);
} mpix_ucx_host;

#define MPIX_UCX_SYMBOL "mpix_ucx_module"
/* The module's only name. NULL: it was built with another version of the library. */
typedef const mpix_net_ops *mpix_ucx_module_fn(const mpix_ucx_host *host);
#endif
