/*
 * p2p_unsupported.c - MPIX_P2p_*: declared and exported so that programs can be written and linked against them;
 * point-to-point comes in a later version, and until then every call says so.
 *
 * There is no object yet whose error handler could be used, so errors are raised on MPI_COMM_SELF.
 */
#include "config.h"

#include "boot/boot.h"
#include "mpix_p2p.h"

static int p2p_refuse(const char *name) {
    return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL, "MPIX_P2p_%s: point-to-point comes in a later version of the library",
                     name);
}

/* The calls differ in nothing but their names and arguments. */
#define P2P_UNSUPPORTED(name, ...)                                                                                     \
    MPIX_EXPORT int PMPIX_P2p_##name(__VA_ARGS__) {                                                                    \
        return mpix_boot_raise(NULL, p2p_refuse(#name));                                                               \
    }                                                                                                                  \
    MPIX_WEAK_ALIAS(P2p_##name)

#pragma GCC diagnostic ignored "-Wunused-parameter"

P2P_UNSUPPORTED(create, MPI_Comm comm, MPI_Info info, MPIX_P2p *p2p);
P2P_UNSUPPORTED(free, MPIX_P2p *p2p);
P2P_UNSUPPORTED(set_errhandler, MPIX_P2p p2p, MPI_Errhandler errhandler);
/* Not raised, as its declaration says. */
MPIX_EXPORT int PMPIX_P2p_get_async_error(MPIX_P2p p2p, MPIX_Error *error) {
    return mpix_boot_code(p2p_refuse("get_async_error"));
}
MPIX_WEAK_ALIAS(P2p_get_async_error);

P2P_UNSUPPORTED(alloc, MPIX_P2p p2p, MPI_Count bytes, MPI_Info info, void *baseptr, MPIX_P2p_mem *mem);
P2P_UNSUPPORTED(reg, MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Info info, MPIX_P2p_mem *mem);
P2P_UNSUPPORTED(dereg, MPIX_P2p_mem *mem);
P2P_UNSUPPORTED(export, MPIX_P2p_mem mem, MPI_Count off, MPI_Count len, void *buf, MPI_Count *buflen);
P2P_UNSUPPORTED(import, MPIX_P2p p2p, int peer, const void *buf, MPI_Count buflen, MPIX_P2p_rmem *rmem);
P2P_UNSUPPORTED(rmem_free, MPIX_P2p_rmem *rmem);
P2P_UNSUPPORTED(exchange, MPIX_P2p_mem mem, MPIX_P2p_rmem rmems[]);
P2P_UNSUPPORTED(advertise, const MPIX_P2p_iov iov[], int n, int peer, int tag);
P2P_UNSUPPORTED(get_advert, MPIX_P2p p2p, int peer, int tag, int max, MPIX_P2p_rmem rmems[], int *n);
P2P_UNSUPPORTED(iput, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(put, const MPIX_P2p_iov iov[], int n);
P2P_UNSUPPORTED(iget, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(get, const MPIX_P2p_iov iov[], int n);
P2P_UNSUPPORTED(iput_notify, const MPIX_P2p_iov iov[], int n, int slot, uint64_t add, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(put_notify, const MPIX_P2p_iov iov[], int n, int slot, uint64_t add);
P2P_UNSUPPORTED(notify_test, MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now, int *flag);
P2P_UNSUPPORTED(notify_wait, MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now);
P2P_UNSUPPORTED(ifetch_add, MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(fetch_add, MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old);
P2P_UNSUPPORTED(isend, MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(send, MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n);
P2P_UNSUPPORTED(irecv, MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received, MPIX_Xfer *xfer);
P2P_UNSUPPORTED(recv, MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received);
P2P_UNSUPPORTED(flush, MPIX_P2p p2p, int peer);
P2P_UNSUPPORTED(put_enqueue, const MPIX_P2p_iov iov[], int n, void *stream);
P2P_UNSUPPORTED(get_enqueue, const MPIX_P2p_iov iov[], int n, void *stream);
P2P_UNSUPPORTED(put_notify_enqueue, const MPIX_P2p_iov iov[], int n, int slot, uint64_t add, void *stream);
P2P_UNSUPPORTED(get_device, MPIX_P2p p2p, void *device_handle);
