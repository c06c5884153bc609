/*
 * proxy.h - the proxy: takes commands from FIFOs, posts them to a net within credit, counts
 * completions and arrivals, publishes words.
 *
 * Its loop body, mpix_proxy_step, is run by threads of its own or by whoever makes progress on the
 * object (parameter proxy = thread | caller): the caller posting saves a wake-up. It never calls
 * MPI and never allocates in the loop.
 *
 * Parts. A proxy is as many parts as it has threads (parameter proxy_threads): each has a FIFO, a
 * net and a thread of its own, and nothing in the loop is shared, so parts take no locks from each
 * other. A lane to a peer belongs to one part, part (rank + peer + lane) mod parts, which is the
 * same seen from both ends: a pair's lanes are spread over the parts, and so are the peers of few
 * lanes. Order is promised per lane only, and is the part's. Memory is registered with every part's
 * net, which is why a handle of it is the proxy's and not the net's. So parts take as many times a
 * device's share and the memlock limit's; one net for all would need locks in every transport.
 *
 * Windows. Both sides name memory by a window number (0 .. MPIX_PROXY_WINDOWS - 1) that means the
 * same on all ranks; mpix_proxy_window registers this rank's memory and exchanges keys.
 *
 * Representations. A put of MPIX_P2p_* has four:
 *   1. MPIX_P2p_iov, the caller's piece.
 *   2. p2p_piece (p2p/p2p.h), the operation's copy of it.
 *   3. mpix_net_op (net.h), with the handles of the lane's net. P2P makes it when it queues the
 *      put. The descriptor and the lane's ring hold it. The row that the net gets holds it cut to
 *      the net's longest operation.
 *   4. The device's work request, which the net makes.
 * A put between windows has four as well: the arguments of mpix_proxy_put, a command of 16 bytes
 * (encode.h), the mpix_net_op that the proxy makes of it when it takes it, and the work request. A
 * put that does not fit a command is a mpix_net_op in a descriptor from the start.
 *
 * Signals. A batch is a number of puts to one peer on one lane, then one signal on that lane, which
 * makes the peer see an 8-byte word.
 *   ordered form: the word is a MPIX_NET_WORD on the lane, behind the puts. counted form: every put
 *   carries `counter`; the signal is a counted write of a header {word's window and offset, value,
 *   number of writes, header
 *     included} into the target's counter table. The target's proxy counts arrivals per (peer,
 *     counter) in any order; when the header is there and the count is reached it stores the
 *     word (release), clears the count and rings the object's doorbell. A counter carries one
 *     batch at a time: the caller posts the next one only after it knows that the peer has seen
 *     the word of the last.
 * In both forms the words of a lane are seen in the order in which their signals were queued. In
 * the ordered form the network stores the word and nobody rings the target's doorbell: waiters
 * there sleep by time.
 * Which form: caps.ordered unless the parameter signal = counted.
 */
#ifndef MPIX_PROXY_H
#define MPIX_PROXY_H
#include "base/wait.h"
#include "proxy/fifo.h"
#include "transport/net.h"

enum { MPIX_PROXY_WINDOWS = 8 };

typedef struct mpix_proxy mpix_proxy;
typedef struct mpix_proxy_mem mpix_proxy_mem;   /* registered memory of this rank */
typedef struct mpix_proxy_rmem mpix_proxy_rmem; /* a peer's */

/* Collective over boot, ends in agreement. want[peer]: peers to be reached. bell: rung after
 * the proxy has stored something for this rank, or failed; may be NULL. counters: per peer,
 * < 65536. kernels: 1: kernels will queue commands (gpu_queue.h), so there are threads, and
 * each of them has a lane to each peer. Opens the net named by params->transport, connects,
 * starts threads if so set. */
int mpix_proxy_create(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                      int counters, int kernels, mpix_doorbell *bell, mpix_proxy **proxy);
/* Local: mpix_proxy_end, and what is left. NULL is fine. */
void mpix_proxy_free(mpix_proxy *proxy);
/* The object has failed: nothing that is queued, or will be, is posted any more, for no peer. What
 * peers do is taken in as before. Any thread, never waits. kind and this thread's error: the
 * failure. NULL is fine. */
void mpix_proxy_abandon(mpix_proxy *proxy, int kind);
/* But for the word by which it tells that: as mpix_proxy_signal without puts, with a counter that
 * is used for nothing else. Bounded memory is all that it needs: it does not wait for room behind
 * what was given up. A peer that is lost gets none. */
int mpix_proxy_last_word(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff,
                         uint64_t value, uint32_t counter);
/*
 * Local, bounded: ends the threads, undoes all registrations and closes the nets. Everything that
 * was named to the proxy must still be there, and may be freed afterwards: no thread, no device and
 * no peer reaches it any more. Handles of memory are still to be given back; nothing else can be
 * done. 0, or a kind with the error that names the peer which may still write (mem/calls.h): then
 * memory must stay. Again: the same result. Not beside another call of the proxy. NULL is fine.
 */
int mpix_proxy_end(mpix_proxy *proxy);
const mpix_net_caps *mpix_proxy_caps(const mpix_proxy *proxy);
int mpix_proxy_counted(const mpix_proxy *proxy); /* the signal form in force */

/* Registers [base, base + bytes) of this rank as window `window` and exchanges keys. Collective,
 * ends in agreement. bytes may differ and be 0. */
int mpix_proxy_window(mpix_proxy *proxy, int window, void *base, size_t bytes);

/* Queue a put of len bytes: from (lwin, loff) here to (rwin, roff) at peer. Offsets and len may be
 * any number; multiples of 16 go in a 16-byte command, others through a descriptor. Split by the
 * proxy at caps.max_op. counter: see above, ignored in the ordered form. *seq: number of the
 * command on (peer, lane): complete when mpix_proxy_completed reaches it. 1: queued, 0: no room now
 * (call step or wait, and try again), -kind: the peer has failed. Any thread. */
int mpix_proxy_put(mpix_proxy *proxy, int peer, int lane, int lwin, uint64_t loff, int rwin,
                   uint64_t roff, uint64_t len, uint32_t counter, uint64_t *seq);
/* Queue the signal that ends a batch of `writes` puts: peer sees value in the word at
 * (rwin, roff). */
int mpix_proxy_signal(mpix_proxy *proxy, int peer, int lane, int rwin, uint64_t roff,
                      uint64_t value, uint32_t counter, uint32_t writes, uint64_t *seq);
/*
 * Memory by handle, for what is registered one by one (MPIX_P2p_*) and not as a window of
 * all ranks. Local; the net's turns stay out meanwhile; by one thread at a time. Handles,
 * and the memory, must outlive the commands that name them: of a failed object they live
 * until mpix_proxy_end.
 */
size_t mpix_proxy_key_bytes(const mpix_proxy *proxy);
int mpix_proxy_mem_reg(mpix_proxy *proxy, void *base, size_t bytes, mpix_proxy_mem **mem);
/* It is the program's, see net.h. Before its key is taken. */
void mpix_proxy_mem_foreign(mpix_proxy *proxy, mpix_proxy_mem *mem);
/* The same as mpix_proxy_mem_reg for memory of a GPU, see net.h, over a net that has a way
 * (reaches_gpu); not there: UNSUPPORTED, way->why says why, and nothing is logged. */
int mpix_proxy_reaches_gpu(const mpix_proxy *proxy);
int mpix_proxy_mem_reg_gpu(mpix_proxy *proxy, void *base, size_t bytes, mpix_net_gpu *way,
                           mpix_proxy_mem **mem);
void mpix_proxy_mem_key(mpix_proxy *proxy, const mpix_proxy_mem *mem, void *key);
void mpix_proxy_mem_dereg(mpix_proxy *proxy, mpix_proxy_mem *mem);
int mpix_proxy_rmem_open(mpix_proxy *proxy, int peer, const void *key, mpix_proxy_rmem **rmem);
void mpix_proxy_rmem_close(mpix_proxy *proxy, mpix_proxy_rmem *rmem);
/* The handles behind a window, to name it in mpix_proxy_post. */
const mpix_proxy_mem *mpix_proxy_window_mem(const mpix_proxy *proxy, int window);
const mpix_proxy_rmem *mpix_proxy_window_rmem(const mpix_proxy *proxy, int peer, int window);
/* Queues a WRITE, READ or ADD as net.h describes it, of any length; through a descriptor. op->lane
 * is the proxy's; op->mem and op->rmem are filled in, with the handles that mem and rmem have in
 * the lane's net. op->counter >= 0: a WRITE that belongs to the batch of that counter like a put
 * (ignored in the ordered form); < 0: nobody counts it. Ranges are the caller's business. Result as
 * mpix_proxy_put. */
int mpix_proxy_post(mpix_proxy *proxy, const mpix_net_op *op, const mpix_proxy_mem *mem,
                    const mpix_proxy_rmem *rmem, uint64_t *seq);
/* Commands of (peer, lane) whose local buffers may be reused: all with seq <= this. */
uint64_t mpix_proxy_completed(const mpix_proxy *proxy, int peer, int lane);
/* The same of those that arrive without another turn of the caller: with a thread all that were
 * queued, else what the net has and finishes by itself. */
uint64_t mpix_proxy_handed(const mpix_proxy *proxy, int peer, int lane);
/* Bytes allocated for peer: lanes, counters, its part of the table of headers; and the name of the
 * net as asked for. */
size_t mpix_proxy_memory(const mpix_proxy *proxy, int peer);
const char *mpix_proxy_net_name(const mpix_proxy *proxy);
/* Number of messages posted and bytes written to peer so far, for statistics. */
void mpix_proxy_counts(const mpix_proxy *proxy, int peer, uint64_t *messages, uint64_t *bytes);

/* One turn: take, post, poll, publish. Returns 1 if anything happened. Does nothing when threads do
 * it, or another caller is in it. */
int mpix_proxy_step(mpix_proxy *proxy);
int mpix_proxy_threads(const mpix_proxy *proxy); /* 0: the caller's */
int mpix_proxy_lanes(const mpix_proxy *proxy);   /* to each peer */
/* Local: starts its threads, if nobody but the caller has turned it so far; after a failure the
 * caller does so on, and it may be tried again. Nobody else is in a call of the proxy. */
int mpix_proxy_start_threads(mpix_proxy *proxy, const mpix_params *params);
/* Whether everything that arrives through it rings the doorbell: its thread publishes counted
 * signals, while a network device that writes words by itself rings nobody, nor does a proxy that
 * the caller has to run. NULL, no proxy at all: 1. */
int mpix_proxy_rings(const mpix_proxy *proxy);
/* The latched failure of a peer, by any part: 0, or its kind with *error filled. */
int mpix_proxy_failed(mpix_proxy *proxy, int peer, MPIX_Error *error);
/* Writes the state (queues, credit, counters, sleeping) to the log at level warn; on request and
 * on time-outs. */
void mpix_proxy_dump(mpix_proxy *proxy);
#endif
