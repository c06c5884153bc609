/*
 * gpu_queue.h - commands from a GPU's kernels to a proxy: queues whose head is in GPU memory and
 * whose entries, descriptors and tail are in pinned host memory. The producers' side is
 * include/mpix_device.cuh; the form of commands is in include/mpix_device.h.
 *
 * All commands for a peer go by one way, a queue and a lane, so a signal comes after everything
 * that was queued for the peer before it, and "complete up to number n" is one word per peer. With
 * `spread` a peer has a rail through each thread of the proxy: for who queues a put and the word
 * behind it by one rail, and does not care in which order such pairs of different rails arrive
 * (dispatch and combine). Several queues exist for several peers, and so that a peer that takes
 * nothing holds up only the peers that share its queue: a kernel's command is taken only when its
 * lane has room, for its producer can't be refused any more.
 *
 * Memory is named by numbers in two tables, which the proxy looks up and checks: a kernel can make
 * it move nothing but registered memory.
 *
 * Counters. A signal's word at the peer is stored whole; what it is to be is summed up here, where
 * the signals of a queue are taken in order. Over a net without order a signal is a READ from the
 * peer when all before it is complete, and the word when that has come back: what has been read
 * back over the same connection tells that the writes are in memory. So is a flush over any net. A
 * word that is stored at a place (dispatch and combine, kernels/cuda/remote/remote.cuh) reads that
 * place itself, so that what was written to a GPU is in that GPU's memory.
 */
#ifndef MPIX_PROXY_GPU_QUEUE_H
#define MPIX_PROXY_GPU_QUEUE_H
#include "gpu/gpu.h"
#include "mpix_device.h"
#include "proxy/proxy.h"

typedef struct mpix_gpu_queues mpix_gpu_queues;

typedef struct mpix_gpu_queues_config {
    int queues, entries; /* entries: power of two, >= 64; at most MPIX_DEV_FIFOS queues; each thread
                          * has one at least */
    int spread;          /* 1: as many rails to each peer as the proxy has threads
                          * (mpix_proxy_create: kernels), 0: one */
    int counters;        /* words of each peer */
    int window;          /* the proxy's window in which they lie: uint64_t [ranks][counters], then 8
                          * bytes that READs may overwrite */
} mpix_gpu_queues_config;

/* Local. The proxy has threads, and the window is registered. At most one of a proxy. */
int mpix_gpu_queues_open(mpix_proxy *proxy, const mpix_gpu *gpu,
                         const mpix_gpu_queues_config *config, mpix_gpu_queues **queues);
/* Local. Kernels that use them have ended; commands that are left are forgotten. NULL is fine. */
void mpix_gpu_queues_close(mpix_gpu_queues *queues);
/* Local. 1: all commands that mpix_dev_note has noted are complete, or their peers have failed.
 * Kernels that use the queues have ended. */
int mpix_gpu_queues_settled(const mpix_gpu_queues *queues);
/* For the device: the queues, and the part of a proxied peer that concerns them. */
void mpix_gpu_queues_describe(const mpix_gpu_queues *queues, mpix_dev_state *state);
int mpix_gpu_queues_rails(const mpix_gpu_queues *queues);
void mpix_gpu_queues_describe_peer(const mpix_gpu_queues *queues, int peer, int rail,
                                   mpix_dev_peer *out);
/* Entries of the tables. mem or rmem NULL: nothing any more. off: of the range in rmem. add: 1: ADD
 * may be used on it. */
void mpix_gpu_queues_local(mpix_gpu_queues *queues, int index, const mpix_proxy_mem *mem,
                           void *base, uint64_t bytes);
void mpix_gpu_queues_remote(mpix_gpu_queues *queues, int index, int peer,
                            const mpix_proxy_rmem *rmem, uint64_t off, uint64_t bytes, int add);
/* The entry is memory of a GPU: words there wait for what was put before even over a net that keeps
 * order, for that is an assumption about host memory. */
void mpix_gpu_queues_remote_gpu(mpix_gpu_queues *queues, int index);
#endif
