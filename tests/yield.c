// yield.c - for tests with MPICH and more ranks than cores: a waiting rank gives its core away.
//
// MPICH over UCX polls without end while it waits, and a rank that others wait for gets a core only
// when the system's clock takes it from one that waits: on 2 cores a barrier of 8 ranks takes 34 ms
// instead of 0.04. (Open MPI has mpi_yield_when_idle for this, MPICH's MPIR_CVAR_POLLS_BEFORE_YIELD
// does nothing with this device.) tests/mpirun.sh preloads this, with MPICH only: polls of UCX that
// found nothing to do yield. The library's own transport ucx, whose threads poll too, is found by
// it as well and loses nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>

typedef unsigned (*Poll)(void *worker);

static Poll poll_find(void) {
    void *found = dlsym(RTLD_NEXT, "ucp_worker_progress");
    if (!found) { // an MPI without UCX, and a transport that opened it for itself
        void *library = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
        found = library ? dlsym(library, "ucp_worker_progress") : NULL;
    }
    if (!found)
        abort();
    return (Poll)found;
}

unsigned ucp_worker_progress(void *worker);
unsigned ucp_worker_progress(void *worker) {
    static _Atomic(Poll) poll;
    Poll known = poll;
    if (!known)
        poll = known = poll_find();
    unsigned done = known(worker);
    if (!done)
        sched_yield();
    return done;
}
