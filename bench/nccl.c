/* nccl.c - NCCL, loaded when it is asked for: from the folder that configure found, or from where
 * the loader looks. */
#include "config.h"

#ifdef HAVE_CUDA
#include "bench/nccl.h"

#ifdef HAVE_NCCL
#include <dlfcn.h>
#include <string.h>

bench_nccl_ops bench_nccl;

static int symbol(const char *name, void *fn) {
    void *p = dlsym(bench_nccl.lib, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

const char *bench_nccl_load(int *version) {
    bench_nccl_ops *n = &bench_nccl;
    n->lib = n->lib ? n->lib : dlopen(MPIX_NCCL_DIR "/lib/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    n->lib = n->lib ? n->lib : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!n->lib)
        return "libnccl.so.2 can't be loaded (is its folder in LD_LIBRARY_PATH?)";
    if (!(symbol("ncclGetUniqueId", &n->get_id) && symbol("ncclCommInitRank", &n->init) &&
          symbol("ncclCommDestroy", &n->destroy) && symbol("ncclGroupStart", &n->start) &&
          symbol("ncclGroupEnd", &n->end) && symbol("ncclSend", &n->send) &&
          symbol("ncclRecv", &n->recv) && symbol("ncclGetVersion", &n->version)))
        return "libnccl.so.2 lacks functions";
    n->version(version);
    return NULL;
}
#else
const char *bench_nccl_load(int *version) {
    *version = 0;
    return "this build has no NCCL (nccl.h was not found when it was configured)";
}
#endif
#endif
