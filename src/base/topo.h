/* topo.h - what the machine looks like to this process (hwloc; sysconf where it is
 * not built in). */
#ifndef MPIX_BASE_TOPO_H
#define MPIX_BASE_TOPO_H
#include <stddef.h>

typedef struct mpix_topo {
    int pus;      /* processing units this process may run on */
    int pus_host; /* processing units of the host that are online */
    int numa_nodes;
    int numa_local;     /* NUMA node (the system's number) of this process's binding, -1:
                         * several or unknown */
    size_t l2_bytes;    /* per core, 0: unknown */
    size_t l3_bytes;    /* last level shared cache this process's first PU belongs to, 0: unknown */
    int l3_pus;         /* PUs that share it, 1 if unknown */
    int l3_index;       /* which of the host's it is; -1: unknown, -2: this process may run on
                         * PUs of several */
    const char *source; /* "hwloc API 2.8.0" or "sysconf" */
} mpix_topo;

/* Looked up once per process, thread safe. */
const mpix_topo *mpix_topo_get(void);
/* Binds the calling thread, helper number which of the main thread's, to a PU of the process's
 * set other than main_pu when there are at least two and main_pu is known (not -1); helpers that
 * are more than the PUs share them. Returns the PU's OS index or -1 if it was left unbound.
 * Never an error. */
int mpix_topo_bind_helper(int main_pu, int which);
#endif
