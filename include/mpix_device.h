/*
 * mpix_device.h - transfers that GPU kernels start themselves: handles for mpix_device.cuh,
 * made on the host.
 *
 * MPIX_P2p_get_device gives a kernel the object: its peers, their counters, and for peers that are
 * not mapped the queue of commands to this rank's proxy. MPIX_P2p_mem_device and
 * MPIX_P2p_rmem_device give it memory. All three are plain structs to be passed to kernels by
 * value; what they point to belongs to the library. The functions for kernels are in
 * mpix_device.cuh.
 *
 * How a kernel reaches a peer
 *   mapped    the peer's memory has an address here: loads and stores, GPU memory over NVLink or
 *             PCIe, host memory over PCIe
 *   proxied   the kernel writes a command of 16 bytes into pinned host memory; this rank's proxy
 *             thread moves the data with the network (mpix_ep_transport). It can do that with
 *             memory that both it and the kernel can use: host memory of MPIX_P2p_alloc, which
 *             kernels read and write over PCIe. In an object with proxied peers MPIX_P2p_alloc
 *             with mpix_ep_p2p_memory=cuda gives such memory, so one program serves both. (GPU
 *             memory that a network device reads and writes by itself is not in this version: no
 *             machine here had one.)
 *
 * Counters. For each ordered pair of ranks there are mpix_ep_p2p_slots counters of their own for
 * kernels, beside those of MPIX_P2p_notify_wait: they begin at 0 and only grow, below 2^63.
 *
 * A .cu file that has no business with MPI defines MPIX_DEVICE_ONLY before including this
 * header or mpix_device.cuh: then only the structs and the kernels' functions are declared, and
 * mpi.h is not needed.
 */
#ifndef MPIX_DEVICE_H
#define MPIX_DEVICE_H
#include <stddef.h>
#include <stdint.h>
#ifndef MPIX_DEVICE_ONLY
#include "mpix_p2p.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** What the functions for kernels return: 0, or one of these, whose values are those
 * of MPIX_ERRK_*. */
enum {
    MPIX_DEVICE_OK = 0,
    MPIX_DEVICE_ARG = 1,         /**< beyond the memory, a slot or a peer that does not exist, an
                                  * address that is not aligned */
    MPIX_DEVICE_UNSUPPORTED = 4, /**< that peer can't be reached from or to that memory: see
                                  * MPIX_Device_mem and MPIX_Device_rmem */
    MPIX_DEVICE_PEER = 6,        /**< the peer is lost */
    MPIX_DEVICE_TIMEOUT = 7      /**< no room in the queue, or no answer, within the
                                  * object's timeout_s */
};

/** An object of MPIX_P2p as kernels see it. To be initialised with MPIX_INIT. Valid until the
 * object is freed. */
typedef struct MPIX_Device {
    size_t struct_size;
    int rank, size;                     /**< of the communicator */
    int slots;                          /**< counters per pair: 0 to slots - 1 */
    int proxied;                        /**< how many of the peers are reached through the proxy */
    const struct mpix_dev_state *state; /**< the library's, in GPU memory */
} MPIX_Device;

/** Memory of this rank. */
typedef struct MPIX_Device_mem {
    size_t struct_size;
    void *ptr; /**< its address in kernels of this rank */
    uint64_t bytes;
    int index; /**< -1: proxied peers can't be sent from it, see MPIX_P2p_mem_device */
    int reserved;
} MPIX_Device_mem;

/** Memory of a peer. */
typedef struct MPIX_Device_rmem {
    size_t struct_size;
    void *ptr; /**< its address in kernels of this rank, NULL: the peer is proxied */
    uint64_t bytes;
    int peer;
    int index;   /**< the library's */
    int atomics; /**< 1: mpix_atomic_add can be used on it. Of a GPU that this process does not
                  * see the driver's libnvidia-ml.so.1 must know */
    int reserved;
} MPIX_Device_rmem;

#ifndef MPIX_DEVICE_ONLY
/* MPIX_P2p_get_device is declared in mpix_p2p.h. */

/**
 * The handle of local memory for kernels. Local.
 *
 * Host memory of MPIX_P2p_alloc serves for all peers. GPU memory, and host memory of MPIX_P2p_reg
 * that is pinned (cudaHostAlloc), serve as the source for mapped peers; pinned memory also for
 * proxied ones. Pageable memory is refused.
 *
 * @param[in]  mem  of an object for which MPIX_P2p_get_device was called
 * @param[out] out  MPIX_INIT before the call. Valid until mem is deregistered
 * @return MPI_SUCCESS, or an error of kind ARG (handles, no device handle yet) or UNSUPPORTED (kind
 *   of memory; its text says which).
 */
int MPIX_P2p_mem_device(MPIX_P2p_mem mem, MPIX_Device_mem *out);

/**
 * The handle of a peer's memory for kernels. Local.
 *
 * @param[in]  rmem  of an object for which MPIX_P2p_get_device was called. Of a mapped peer: memory
 *                   of MPIX_P2p_alloc, or of cudaMalloc; of a proxied peer: any host memory
 * @param[out] out   MPIX_INIT before the call. Valid until rmem is freed: kernels that use it, and
 *   what they started, must be complete by then
 * @return MPI_SUCCESS, or an error of kind ARG, NO_MEM (65536 handles of an object's proxied peers
 *   at most) or UNSUPPORTED.
 */
int MPIX_P2p_rmem_device(MPIX_P2p_rmem rmem, MPIX_Device_rmem *out);

int PMPIX_P2p_mem_device(MPIX_P2p_mem mem, MPIX_Device_mem *out);
int PMPIX_P2p_rmem_device(MPIX_P2p_rmem rmem, MPIX_Device_rmem *out);
#endif

/* ---- private to the library: what mpix_device.cuh works on, and the form of commands --------- */

/*
 * A queue of commands to the proxy. Slots are two words, as in the library's own queues: the top
 * bit of each is set in even laps of the ring and clear in odd ones, so that a slot is valid when
 * both words have come, in whatever order. What does not fit a command stands in the descriptor
 * with the slot's number.
 */
typedef struct mpix_dev_fifo {
    unsigned long long *reserved, *head, *seen; /* GPU memory: places that producers were let into;
                                                 * given out; a copy of tail */
    unsigned long long *looking;                /* GPU memory: 1: somebody fetches the tail */
    unsigned long long *slots, *descs;          /* pinned host memory: [slots][2], [slots][4] */
    const unsigned long long *tail;             /* pinned host memory: taken by the proxy */
    unsigned long long mask;                    /* slots - 1 */
} mpix_dev_fifo;

typedef struct mpix_dev_peer {
    int proxied, fifo;
    unsigned long long *out;        /* mapped: this rank's counters there, [slots] */
    unsigned long long *sums;       /* mapped, counters that can't be added to from here: their
                                     * values, in GPU memory; the top bit is a lock */
    const unsigned long long *in;   /* the peer's counters here, [slots] */
    unsigned long long *last;       /* proxied, GPU memory: number of the last
                                     * command for the peer */
    const unsigned long long *done; /* proxied, pinned: commands for the peer up to this
                                     * number are complete */
    unsigned long long *done_seen, *looking; /* proxied, GPU memory: a copy of it; 1:
                                              * somebody fetches it */
    const unsigned long long *error;         /* pinned: why the peer can't be reached, 0:
                                              * nothing is known */
} mpix_dev_peer;

enum { MPIX_DEV_FIFOS = 8 };

typedef struct mpix_dev_state {
    int rank, size, slots, nfifos;
    unsigned long long timeout_ns;
    mpix_dev_fifo fifo[MPIX_DEV_FIFOS];
    mpix_dev_peer *peers; /* [ways][size], GPU memory */
    int ways;             /* to a proxied peer, each with a queue and an order of its own; put,
                           * signal and flush use the first */
} mpix_dev_state;

/*
 * Word 0: operation 3 bits, memory of the peer (PUT, ADD) or the peer 16, own memory 12, bytes
 * or slot 32. Word 1: of PUT, own offset 31 bits and the peer's 32, in units of 16 bytes; of
 * SIGNAL what to add. With a descriptor: own offset, the peer's, bytes, what to add. WORD: in
 * word 0 behind the peer's memory 44 bits of offset there in units of 8 bytes, in word 1 what
 * the word is to be.
 */
enum {
    MPIX_DEV_CMD_PUT = 1,
    MPIX_DEV_CMD_SIGNAL,
    MPIX_DEV_CMD_PUT_DESC,
    MPIX_DEV_CMD_ADD_DESC,
    MPIX_DEV_CMD_FLUSH,
    MPIX_DEV_CMD_WORD
};
enum {
    MPIX_DEV_REMOTES = 65536,
    MPIX_DEV_LOCALS = 4096,
    MPIX_DEV_UNIT = 16,
    MPIX_DEV_DESC_WORDS = 4
};

#ifdef __cplusplus
}
#endif
#endif
