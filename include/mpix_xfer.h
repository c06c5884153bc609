/*
 * mpix_xfer.h - what MPIX_Ep_* (mpix_ep.h) and MPIX_P2p_* (mpix_p2p.h) share: errors and transfers.
 *
 * Rules for every call of the library
 *
 *  - A call returns MPI_SUCCESS or a code of one of the library's error classes, after
 *    raising that code through the error handler of its object. An object inherits the
 *    handler of the communicator it was created on; MPIX_*_set_errhandler changes it. An
 *    error that belongs to no object (a NULL or freed one) is raised on MPI_COMM_SELF, as MPI
 *    4 does. With MPI_ERRORS_ARE_FATAL, MPI's default, raising aborts, as MPI says; the
 *    library itself never aborts. Off the main thread under MPI_THREAD_FUNNELED the code is
 *    returned without calling MPI.
 *  - The particulars of the last error of the calling thread (who, what, which limit, what to do)
 *    are in MPIX_Error_last. Failures of other calls and objects, which progress may meet
 *    meanwhile, leave them as they were.
 *  - Every wait ends. A call that needs all ranks (create, alloc, register, handle_create, the
 *    first combine_buffer, exchange) ends with MPIX_ERRK_TIMEOUT when a rank does not come within
 *    the object's time limit, with MPIX_ERRK_PEER when the process of a rank of this host has
 *    ended, and with the failure of a peer's object as soon as that is told. The object has then
 *    failed on this rank too. After a create that ended so, use comm for no other collective: one
 *    of comm's was not completed. MPI itself waits without limit in the microseconds in which it
 *    makes a communicator.
 *  - Configuration and argument structs begin with struct_size: initialise with MPIX_INIT,
 *    which clears the struct and sets it. Zero is every field's default. Structs are copied at
 *    the call; what they point to belongs to the library until completion. Strides are in
 *    bytes, 0 means dense.
 *  - Outputs are set on success only, unless a call says otherwise.
 *  - Objects belong to the process that made them. A child of fork may exit, exec or go on with
 *    work of its own; a call on an inherited object, or one that would make an object, returns
 *    MPIX_ERRK_ARG there at once. Calls that free succeed in the child: they let go of its mappings
 *    and touch nothing of the parent's. The child's copies of memory from MPIX_Ep_alloc and
 *    MPIX_P2p_alloc are the same memory as the parent's until they are freed.
 *  - A create call that fails is raised on the communicator it was given, if that is one.
 *  - Every call may be interposed: MPIX_X is a weak alias of PMPIX_X.
 *
 * MPI is used for bootstrap and for exchanging memory handles only: create, alloc, register,
 * handle_create and free may call MPI; transfers, route, dispatch and combine make no MPI call
 * unless they raise an error.
 */
#ifndef MPIX_XFER_H
#define MPIX_XFER_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Clears the struct that p points to and sets its struct_size. */
#define MPIX_INIT(p) (memset((p), 0, sizeof *(p)), (void)((p)->struct_size = sizeof *(p)))

/* ---- errors ---------------------------------------------------------------------------------- */

/** Error kinds: constants, unlike MPI's error classes, which are numbers of the run. */
enum {
    MPIX_ERRK_ARG = 1,     /**< an argument is wrong; MPIX_Error.arg names it, .text its value
                            * and the limit */
    MPIX_ERRK_TRUNCATE,    /**< rows or bytes do not fit the output or the creation limit; nothing
                            * was written past it */
    MPIX_ERRK_NO_MEM,      /**< memory, descriptors or device resources could not be had */
    MPIX_ERRK_UNSUPPORTED, /**< valid, but not in this build, on this machine or in this version;
                            * .text says which */
    MPIX_ERRK_REMOTE,      /**< another rank failed this collective call; .rank names it; the
                            * object stays usable */
    MPIX_ERRK_PEER,        /**< a peer died or its connection broke; .rank names it; the
                            * object is failed */
    MPIX_ERRK_TIMEOUT,     /**< a peer did not answer within timeout_s; .rank names it; the
                            * object is failed */
    MPIX_ERRK_TRANSPORT,   /**< a device or the system refused; .sys_errno and .text say what */
    MPIX_ERRK_INTERNAL     /**< MPI failed, or a defect of the library */
};

/** The particulars of an error. */
typedef struct {
    size_t struct_size;
    int code;       /**< what the call returned */
    int kind;       /**< MPIX_ERRK_*; 0: no error */
    int rank;       /**< the rank of the object's communicator that is to blame, -1: none or the
                     * caller itself */
    int sys_errno;  /**< errno of the system call that failed, 0: none */
    char host[64];  /**< host of that rank, "" if unknown */
    char arg[32];   /**< the argument or field that is wrong, such as "routing.topk", "" if none */
    char text[256]; /**< one sentence: what happened, the value, the limit, the remedy */
} MPIX_Error;

/**
 * The last error that a call of the library returned to the calling thread. Local, never blocks;
 * works before MPI_Init and after MPI_Finalize. Success does not clear it.
 *
 * @param[out] error  filled; error->struct_size must be set (MPIX_INIT). kind = 0: no error so far.
 * @return MPI_SUCCESS, or MPI_ERR_ARG if error is NULL or its struct_size is unknown (not raised).
 */
int MPIX_Error_last(MPIX_Error *error);

/**
 * The kind of an error code that a call of the library returned. Local, never blocks.
 *
 * @param[in]  code  any code; MPI_SUCCESS gives 0
 * @param[out] kind  MPIX_ERRK_*, or 0 for MPI_SUCCESS, or -1 for a code that is not the library's
 * @return MPI_SUCCESS, or MPI_ERR_ARG if kind is NULL (not raised).
 */
int MPIX_Error_kind(int code, int *kind);

/**
 * The library's version, which may differ from that of the headers. Local, never blocks.
 * @param[out] major, minor, patch  NULL where not wanted
 */
int MPIX_Ep_get_version(int *major, int *minor, int *patch);

/* ---- transfers ------------------------------------------------------------------------------- */

/** A nonblocking operation in flight, of either API. Owned by the library; set to MPIX_XFER_NULL
 * when it is done. */
typedef struct mpix_xfer *MPIX_Xfer;
#define MPIX_XFER_NULL ((MPIX_Xfer)0)

/**
 * All of these are local. A completed transfer means: its origin buffers may be reused and its
 * output buffers are filled. Test and wait progress all transfers of the object, in the order in
 * which they were started, so you may wait for them in any order. A transfer that fails is done
 * too: the call returns its error, raised through the object's handler, and the handle becomes
 * MPIX_XFER_NULL. A wait ends at the latest after the object's timeout_s with MPIX_ERRK_TIMEOUT.
 * MPIX_XFER_NULL counts as done.
 */

/**
 * Tells whether a transfer is done. Never blocks.
 * @param[in,out] xfer  tested; MPIX_XFER_NULL on return if done
 * @param[out]    flag  1: done, 0: not yet
 * @return MPI_SUCCESS, the transfer's error, or an error of kind ARG (NULL pointer, a handle that
 *   is not in flight).
 */
int MPIX_Xfer_test(MPIX_Xfer *xfer, int *flag);

/**
 * Blocks until *xfer is done.
 *
 * @param[in,out] xfer  MPIX_XFER_NULL on return.
 * @return as MPIX_Xfer_test.
 */
int MPIX_Xfer_wait(MPIX_Xfer *xfer);

/**
 * Blocks until all are done, also when some fail.
 * @param[in]     n      number of transfers, >= 0
 * @param[in,out] xfers  [n], all MPIX_XFER_NULL on return
 * @param[out]    codes  [n] error code of each, or NULL; filled in any case
 * @return MPI_SUCCESS, or the error of the first (lowest index) that failed.
 */
int MPIX_Xfer_waitall(int n, MPIX_Xfer xfers[], int codes[]);

/**
 * Blocks until one is done.
 * @param[out] index  which one; -1 if all were MPIX_XFER_NULL. Set also when that transfer failed.
 * @return the error of that transfer.
 */
int MPIX_Xfer_waitany(int n, MPIX_Xfer xfers[], int *index);

/** As MPIX_Xfer_waitany without blocking. @param[out] flag  1: one is done, or all were
 *                                                           MPIX_XFER_NULL; 0: none yet. */
int MPIX_Xfer_testany(int n, MPIX_Xfer xfers[], int *index, int *flag);

/* ---- the same calls for tools that interpose ------------------------------------------------- */
int PMPIX_Error_last(MPIX_Error *error);
int PMPIX_Error_kind(int code, int *kind);
int PMPIX_Ep_get_version(int *major, int *minor, int *patch);
int PMPIX_Xfer_test(MPIX_Xfer *xfer, int *flag);
int PMPIX_Xfer_wait(MPIX_Xfer *xfer);
int PMPIX_Xfer_waitall(int n, MPIX_Xfer xfers[], int codes[]);
int PMPIX_Xfer_waitany(int n, MPIX_Xfer xfers[], int *index);
int PMPIX_Xfer_testany(int n, MPIX_Xfer xfers[], int *index, int *flag);

#ifdef __cplusplus
}
#endif
#endif /* MPIX_XFER_H */
