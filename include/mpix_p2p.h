/*
 * mpix_p2p.h - one-sided put and get, notifications, messages and atomic add between MPI's ranks.
 *
 * Everything is nonblocking and on registered memory; vectors of pieces are one transfer. The
 * target takes no part in a transfer, except where it is said below.
 *
 * The rules of mpix_xfer.h hold. Collective are create, free, alloc and exchange; everything else
 * is local to the caller or addresses one peer. A completed transfer means: origin buffers
 * reusable, output buffers filled. That a put is visible at the target is told by MPIX_P2p_flush or
 * a notification. Transfers to one peer are not ordered among each other.
 *
 * Complete means complete: what a completed transfer, and a receive, still have to tell the peer
 * gets there although this rank makes no further call of the library. A peer that waits for it
 * needs no part of this rank. What needs the other side's part is named below; the text of a
 * time-out says what would have helped.
 *
 * A nonblocking call whose transfer is complete when it returns sets *xfer to MPIX_XFER_NULL, which
 * every completion call takes as done.
 *
 * How memory is reached, and whose progress that needs
 *   MPIX_P2p_alloc, same host           mapped: copied by the caller within the call; the
 *                                       target takes no part
 *   MPIX_P2p_reg, same host             process_vm_readv/writev by the caller within the call; the
 *                                       target takes no part. Where the system forbids that (or
 *                                       mpix_ep_p2p_cma=no): by messages, which the target executes
 *                                       when it calls the library, or its thread does
 *                                       (mpix_ep_progress=thread)
 *   other hosts                         the network's reads and writes; the target takes no part,
 *                                       except for notifications over a network without order
 *                                       (counted signals): the target's proxy counts, when the
 *                                       target calls the library or by its thread
 *                                       (mpix_ep_proxy=thread)
 *   fetch_add                           allocated memory of the same host: the processor's
 *                                       atomic operation, no part of the target; everything
 *                                       else: a message to the owner, as above. One word may be
 *                                       added to by all these ways at once; adding with plain C
 *                                       atomics is also right.
 *   send, recv, advertise               both sides call the library; a large send completes when
 *                                       the receiver has read it, a short one when it is on its way
 *                                       and the ring (mpix_ep_p2p_ring) had room for it
 *
 * Rights of memory: MPIX_P2p_reg looks at what may be done with the mappings that the memory lies
 * in, and handles carry that. A put or an addition to memory that was read-only then, and a get of
 * memory that could not be read, are MPIX_ERRK_ARG at the origin and change nothing; so are sends
 * and receives of such local memory. After mprotect, register the memory again. Memory that the
 * target unmaps, or whose file is cut short, while it is registered does the target no harm: the
 * origin's transfer fails (MPIX_ERRK_ARG, MPIX_ERRK_TRANSPORT or MPIX_ERRK_PEER); over a network
 * that breaks the connection. A put over a network may have been complete, then the flush fails.
 *
 * Object and peers: a peer's death (MPIX_ERRK_PEER) or silence (MPIX_ERRK_TIMEOUT) is noticed by
 * transfers and waits that need the peer, and then the object has failed: all its transfers end
 * with that error, and so do later calls. It tells its peers, whose transfers with this rank, and
 * whose alloc and exchange, then end with that failure at once. Handles of memory end with their
 * object. A peer of the same host that has deregistered memory is told from its handle
 * (MPIX_ERRK_ARG); over a network, using such a handle may break the connection. After fork the
 * object is the parent's (mpix_xfer.h): the child can only free it.
 *
 * GPU memory (with the CUDA module, between ranks of one host; at most 32 ranks)
 *   MPIX_P2p_alloc with the info key mpix_ep_p2p_memory=cuda: an allocation on the CUDA device that
 *   is current at the object's first call for GPU memory. MPIX_P2p_reg of memory of cudaMalloc:
 *   opened by peers through CUDA IPC; free it after they have freed their handles of it (large
 *   sends keep it open until the object ends, or the next of them after MPIX_P2p_dereg). Memory of
 *   cudaMallocAsync and cuMemCreate can be registered and is the local side of any transfer, but a
 *   peer that imports its handle, and so the receiver of a send of it, gets UNSUPPORTED with the
 *   reason. Managed memory is refused. put, get, put_notify, fetch_add, send and recv take such
 *   memory on either side or both, and pieces of host and GPU memory in one vector. The origin's
 *   GPU moves the data, without the target's part (a receive: the receiver's). Host memory that
 *   meets GPU memory of another rank must be MPIX_P2p_alloc's, or the caller's own. Calls that are
 *   not enqueued run on a stream of the object, which is ordered with the default stream and no
 *   other: what other streams do with the memory must be complete. fetch_add where the GPUs can't
 *   add to each other's memory: a message to the owner, which calls the library. _enqueue calls
 *   follow in the order of `stream`, may be captured into a graph, and end when the stream has
 *   passed them: then the data are there, also for the target, and MPIX_P2p_flush has nothing to do
 *   with them. Notifications of all kinds add up in one counter. Registrations and handles must
 *   live until then; MPIX_P2p_dereg waits for the device. Transfers that kernels start:
 *   mpix_device.h. In an object with peers on other hosts (or mpix_ep_reach=proxied) MPIX_P2p_alloc
 *   with mpix_ep_p2p_memory=cuda gives pinned host memory, with the same address for the processor
 *   and for kernels: what the network, the proxy and kernels all reach. Memory of cudaMalloc can't
 *   be registered in such an object.
 */
#ifndef MPIX_P2P_H
#define MPIX_P2P_H

#include "mpix_xfer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mpix_p2p *MPIX_P2p;       /**< an object on which transfers are made */
typedef struct mpix_mem *MPIX_P2p_mem;   /**< local registered memory */
typedef struct mpix_rmem *MPIX_P2p_rmem; /**< a peer's registered memory */
#define MPIX_P2P_NULL ((MPIX_P2p)0)
#define MPIX_ALL_PEERS (-1) /**< for MPIX_P2p_flush */

/** One piece of a transfer: len bytes at offset off of mem, and at offset roff of rmem. For send,
 * recv and advertise rmem is not used. */
typedef struct {
    MPIX_P2p_mem mem;
    MPI_Count off;
    MPIX_P2p_rmem rmem;
    MPI_Count roff, len;
} MPIX_P2p_iov;

/** Creates an object. Collective over comm, blocking, ends in agreement. Parameters that must be
 * equal on all ranks (`mpix_ep_info --params` marks them) are compared: MPIX_ERRK_ARG on the ranks
 * that differ from rank 0, naming the parameter. @param[in] info keys mpix_ep_*, or
 * MPI_INFO_NULL */
int MPIX_P2p_create(MPI_Comm comm, MPI_Info info, MPIX_P2p *p2p);
/** Frees it, with all memory and handles of it. Collective; returns even if a peer died. Transfers
 * in flight: ARG. TIMEOUT: it is freed, but a stopped peer may still write memory of MPIX_P2p_reg
 * (see MPIX_P2p_dereg): keep that until the peer's process has ended. @param[in,out] p2p
 * MPIX_P2P_NULL on return */
int MPIX_P2p_free(MPIX_P2p *p2p);
/** Sets the error handler. Local. */
int MPIX_P2p_set_errhandler(MPIX_P2p p2p, MPI_Errhandler errhandler);
/** The error that made the object fail, kind = 0 if none. Local, not raised. */
int MPIX_P2p_get_async_error(MPIX_P2p p2p, MPIX_Error *error);

/** Allocates memory that peers reach directly. Collective, blocking. @param[in] info MPI_INFO_NULL,
 * or mpix_ep_p2p_memory=host|cuda, the same on all ranks @param[out] baseptr address of a pointer
 * @param[out] mem its registration */
int MPIX_P2p_alloc(MPIX_P2p p2p, MPI_Count bytes, MPI_Info info, void *baseptr, MPIX_P2p_mem *mem);
/** Registers the caller's memory [base, base + bytes). Local. The caller keeps it until
 * MPIX_P2p_dereg. */
int MPIX_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Info info, MPIX_P2p_mem *mem);
/** Ends a registration, and frees the memory of MPIX_P2p_alloc. Local. To import peers' parts of
 * the same allocation, do so before you end yours. After MPI_SUCCESS the caller may free the
 * memory, also of an object that has failed: no thread, network or peer touches it any more.
 * Transfers in flight on it: ARG, unless the object has failed. TIMEOUT: of an object that has
 * failed, a peer (MPIX_Error.rank) was stopped in the moment in which it wrote this rank's memory;
 * mem stays, keep the memory, and call again when the peer has woken or ended.
 * @param[in,out] mem NULL on return */
int MPIX_P2p_dereg(MPIX_P2p_mem *mem);
/** Writes a handle of [off, off + len) of mem as bytes. Local. @param[in,out] buflen room in buf,
 * then bytes used; buf NULL asks for the size */
int MPIX_P2p_export(MPIX_P2p_mem mem, MPI_Count off, MPI_Count len, void *buf, MPI_Count *buflen);
/** Makes a peer's exported memory usable. Local. @param[in] peer the rank that exported it */
int MPIX_P2p_import(MPIX_P2p p2p, int peer, const void *buf, MPI_Count buflen, MPIX_P2p_rmem *rmem);
/** Local. @param[in,out] rmem NULL on return */
int MPIX_P2p_rmem_free(MPIX_P2p_rmem *rmem);
/** Every rank gives one registration and gets everybody's. Collective, blocking.
 *
 * @param[out] rmems [ranks]
 */
int MPIX_P2p_exchange(MPIX_P2p_mem mem, MPIX_P2p_rmem rmems[]);
/** Tells one peer about n pieces of local memory, over the data path. Local, blocking.
 * @param[in] tag >= 0 */
int MPIX_P2p_advertise(const MPIX_P2p_iov iov[], int n, int peer, int tag);
/** Takes what peer advertised with tag, blocking. More than max pieces: MPIX_ERRK_TRUNCATE, they
 * stay. @param[in] max room in rmems @param[out] n pieces taken */
int MPIX_P2p_get_advert(MPIX_P2p p2p, int peer, int tag, int max, MPIX_P2p_rmem rmems[], int *n);

/** Writes n pieces to one peer's memory. Local. @param[in] iov [n] copied; all rmem of one peer
 * @param[out] xfer done: the origin is reusable */
int MPIX_P2p_iput(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int MPIX_P2p_put(const MPIX_P2p_iov iov[], int n);
/** Reads n pieces of one peer's memory. @param[out] xfer done: the data are here */
int MPIX_P2p_iget(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int MPIX_P2p_get(const MPIX_P2p_iov iov[], int n);
/**
 * As MPIX_P2p_iput, with a notification: the target's counter for (source = this rank, slot) grows
 * by add once the pieces are visible there. The target waits with MPIX_P2p_notify_wait(p2p, source,
 * slot, at_least).
 */
int MPIX_P2p_iput_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add, MPIX_Xfer *xfer);
int MPIX_P2p_put_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add);
/** Whether the counter (peer, slot) has reached at_least. Local. @param[out] now its value, or NULL
 * @param[out] flag 1: reached */
int MPIX_P2p_notify_test(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now,
                         int *flag);
/** Blocks until it has. Counters (mpix_ep_p2p_slots per pair) begin at 0 and only grow; several
 * slots are independent. */
int MPIX_P2p_notify_wait(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now);
/** Atomically adds to the 8-byte aligned int64_t at roff of rmem. @param[out] old its value before;
 * belongs to the library until done */
int MPIX_P2p_ifetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old,
                        MPIX_Xfer *xfer);
int MPIX_P2p_fetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old);
/** Two-sided: sends the pieces as one message; messages of a pair match in order. */
int MPIX_P2p_isend(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int MPIX_P2p_send(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n);
/** Receives one message into the pieces. @param[out] received bytes; set at completion. A longer
 * message: MPIX_ERRK_TRUNCATE, it is dropped */
int MPIX_P2p_irecv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received,
                   MPIX_Xfer *xfer);
int MPIX_P2p_recv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received);
/** Blocks until all completed and pending puts to peer (or MPIX_ALL_PEERS) are visible
 * there. Local. */
int MPIX_P2p_flush(MPIX_P2p p2p, int peer);
/** Stream-ordered forms: stream is a cudaStream_t. Local. Memory that is mapped here only, see
 * above; pageable host memory makes the call block. */
int MPIX_P2p_put_enqueue(const MPIX_P2p_iov iov[], int n, void *stream);
int MPIX_P2p_get_enqueue(const MPIX_P2p_iov iov[], int n, void *stream);
int MPIX_P2p_put_notify_enqueue(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add,
                                void *stream);
/**
 * Handle for kernels: see mpix_device.h. The first call of an object is collective and blocking,
 * and starts the proxy's thread where there are proxied peers; later ones are local.
 *
 * @param[out] device_handle an MPIX_Device, MPIX_INIT before the call
 * @return MPI_SUCCESS, or an error of kind ARG, NO_MEM or UNSUPPORTED (no GPU,
 *   mpix_ep_proxy=caller, GPUs that can't add to each other's memory).
 */
int MPIX_P2p_get_device(MPIX_P2p p2p, void *device_handle);

/* ---- the same calls for tools that interpose ------------------------------------------------- */
int PMPIX_P2p_create(MPI_Comm comm, MPI_Info info, MPIX_P2p *p2p);
int PMPIX_P2p_free(MPIX_P2p *p2p);
int PMPIX_P2p_set_errhandler(MPIX_P2p p2p, MPI_Errhandler errhandler);
int PMPIX_P2p_get_async_error(MPIX_P2p p2p, MPIX_Error *error);
int PMPIX_P2p_alloc(MPIX_P2p p2p, MPI_Count bytes, MPI_Info info, void *baseptr, MPIX_P2p_mem *mem);
int PMPIX_P2p_reg(MPIX_P2p p2p, void *base, MPI_Count bytes, MPI_Info info, MPIX_P2p_mem *mem);
int PMPIX_P2p_dereg(MPIX_P2p_mem *mem);
int PMPIX_P2p_export(MPIX_P2p_mem mem, MPI_Count off, MPI_Count len, void *buf, MPI_Count *buflen);
int PMPIX_P2p_import(MPIX_P2p p2p, int peer, const void *buf, MPI_Count buflen,
                     MPIX_P2p_rmem *rmem);
int PMPIX_P2p_rmem_free(MPIX_P2p_rmem *rmem);
int PMPIX_P2p_exchange(MPIX_P2p_mem mem, MPIX_P2p_rmem rmems[]);
int PMPIX_P2p_advertise(const MPIX_P2p_iov iov[], int n, int peer, int tag);
int PMPIX_P2p_get_advert(MPIX_P2p p2p, int peer, int tag, int max, MPIX_P2p_rmem rmems[], int *n);
int PMPIX_P2p_iput(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int PMPIX_P2p_put(const MPIX_P2p_iov iov[], int n);
int PMPIX_P2p_iget(const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int PMPIX_P2p_get(const MPIX_P2p_iov iov[], int n);
int PMPIX_P2p_iput_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add, MPIX_Xfer *xfer);
int PMPIX_P2p_put_notify(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add);
int PMPIX_P2p_notify_test(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now,
                          int *flag);
int PMPIX_P2p_notify_wait(MPIX_P2p p2p, int peer, int slot, uint64_t at_least, uint64_t *now);
int PMPIX_P2p_ifetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old,
                         MPIX_Xfer *xfer);
int PMPIX_P2p_fetch_add(MPIX_P2p_rmem rmem, MPI_Count roff, int64_t add, int64_t *old);
int PMPIX_P2p_isend(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPIX_Xfer *xfer);
int PMPIX_P2p_send(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n);
int PMPIX_P2p_irecv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received,
                    MPIX_Xfer *xfer);
int PMPIX_P2p_recv(MPIX_P2p p2p, int peer, const MPIX_P2p_iov iov[], int n, MPI_Count *received);
int PMPIX_P2p_flush(MPIX_P2p p2p, int peer);
int PMPIX_P2p_put_enqueue(const MPIX_P2p_iov iov[], int n, void *stream);
int PMPIX_P2p_get_enqueue(const MPIX_P2p_iov iov[], int n, void *stream);
int PMPIX_P2p_put_notify_enqueue(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add,
                                 void *stream);
int PMPIX_P2p_get_device(MPIX_P2p p2p, void *device_handle);

#ifdef __cplusplus
}
#endif
#endif /* MPIX_P2P_H */
