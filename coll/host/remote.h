/* remote.h - proxied peers of a context: the functions of remote.c, remote_batch.c, remote_create.c
 * and remote_room.c. */
#ifndef MPIX_COLL_HOST_REMOTE_H
#define MPIX_COLL_HOST_REMOTE_H
#include "coll/ep.h"

int mpix_ep_remote_create(mpix_ep *ep);  /* collective, ends in agreement; nothing without
                                          * proxied peers */
int mpix_ep_remote_windows(mpix_ep *ep); /* collective: registers the windows */
void mpix_ep_remote_free(mpix_ep *ep);
mpix_ep_geometry mpix_ep_remote_geometry(const mpix_ep_call *call, const MPIX_Ep_rows *x,
                                         int64_t hidden, size_t record);
size_t mpix_ep_remote_item_size(const MPIX_Ep_config *config); /* at most */
/* size and number */
size_t mpix_ep_remote_chunks(const MPIX_Ep_config *config, const mpix_params *params, int ranks,
                             int *nchunks);
/* Windows of the proxy, and what a chunk is used for. */
enum {
    MPIX_EP_WINDOW_CTL,
    MPIX_EP_WINDOW_MIRROR,
    MPIX_EP_WINDOW_STAGE,
    MPIX_EP_WINDOW_TX,
    MPIX_EP_WINDOW_FORWARD
};
enum { MPIX_EP_CHUNK_FREE, MPIX_EP_CHUNK_OPEN, MPIX_EP_CHUNK_POSTED };
/* Queues a put; 1: queued. A peer that has failed takes nothing; the engine finds its failure. */
int mpix_ep_remote_put(mpix_ep_call *call, int peer, int lane, int lwin, uint64_t loff, int rwin,
                       uint64_t roff, uint64_t len, uint32_t counter);
/* Queues the signal behind `writes` puts: value, in the word at roff of the peer's
 * control window. */
void mpix_ep_remote_word(mpix_ep_call *call, int peer, int lane, uint64_t roff, uint64_t value,
                         uint32_t counter, uint32_t writes);
/* the same for memory that is no window */
int mpix_ep_remote_post(mpix_ep_call *call, const mpix_net_op *op, const mpix_proxy_mem *mem,
                        const mpix_proxy_rmem *rmem);
uint32_t mpix_ep_remote_counter(const mpix_ep_call *call, int lane); /* of the call's batch */
void mpix_ep_remote_publish(mpix_ep_call *call, int peer, void *at, size_t bytes,
                            _Atomic uint64_t *word);
void mpix_ep_remote_signal(mpix_ep_call *call, int peer, int32_t status);
void mpix_ep_remote_tell(mpix_ep *ep, uint64_t word); /* the failure of this rank's context, to all
                                                       * proxied peers that can still be reached */
int mpix_ep_remote_owed(const mpix_ep_call *call, int peer); /* commands of the call for this peer
                                                              * are not complete */
int mpix_ep_remote_flushed(const mpix_ep_call *call); /* all commands of the call are complete */
void mpix_ep_remote_release(mpix_ep_call *call);      /* gives chunks back */
/* host/remote_room.c. Keeps a command that the proxy had no room for, or that must not overtake
 * one; 1: kept. */
int mpix_ep_remote_later(mpix_ep_call *call, const mpix_ep_command *command);
int mpix_ep_remote_catch_up(mpix_ep *ep); /* queues what was kept, as far as there is
                                           * room; 1: something */
int mpix_ep_remote_stuck(mpix_ep *ep);    /* 0, or why what was kept can't be queued: a kind */
/* Room for one more item for peer; 0: no chunk is free. */
int mpix_ep_remote_room(mpix_ep_call *call, int peer);
/* The places of the next item in the open chunk. */
void mpix_ep_remote_item(mpix_ep_call *call, int peer, const mpix_ep_geometry *g, char **row,
                         char **scales, char **record);
/*
 * Rows that are not with the rest of their batch, n of them. Combine: rows are sent from `at`, of
 * the registration `mem`; `bare` means that no chunk travels. Dispatch (`there` is set): rows
 * travel in chunks, and are put at offset `off` of the peer's memory `there`.
 */
typedef struct mpix_ep_remote_rows {
    int64_t n;
    const mpix_proxy_mem *mem;
    const char *at;
    int bare;
    const mpix_proxy_rmem *there;
    uint64_t off;
} mpix_ep_remote_rows;
/* Counts the item as packed; posts the chunk when it is full. */
void mpix_ep_remote_packed(mpix_ep_call *call, int peer, const mpix_ep_geometry *g,
                           const mpix_ep_remote_rows *own);
/* which sources put their rows into the output */
void mpix_ep_remote_dispatch_grant(mpix_ep_call *call, const mpix_ep_geometry *g, size_t rows);
/* and where */
mpix_ep_place mpix_ep_remote_dispatch_place(mpix_ep_call *call, int peer);
/* Memory of this context, to send from and for proxied peers to write to. Collective, ends in
 * agreement; nothing where there are none. */
int mpix_ep_remote_register(mpix_ep *ep, void *base, size_t bytes, mpix_ep_region *region);
void mpix_ep_remote_deregister(mpix_ep *ep, mpix_ep_region *region);
int mpix_ep_remote_begin(mpix_ep_call *call); /* takes the chunks for this call; 0: another
                                               * call has them */
/* The places of item i of a received batch of total items at base. */
void mpix_ep_remote_at(const mpix_ep_geometry *g, char *base, int64_t total, int64_t i, char **row,
                       char **scales, char **record);
int mpix_ep_remote_dispatch_pack(mpix_ep_call *call); /* 1: all packed */
/* expands what proxied peers sent */
void mpix_ep_remote_dispatch_take(mpix_ep_call *call, int64_t rows);
int mpix_ep_remote_combine_pack(mpix_ep_call *call);
mpix_ep_geometry mpix_ep_remote_dispatch_geometry(const mpix_ep_call *call);
mpix_ep_geometry mpix_ep_remote_combine_geometry(const mpix_ep_call *call);

/* Regions of a staging bank for the batches of proxied peers, totals[peer] items each, from offset
 * stage on; returns the end. */
size_t mpix_ep_remote_regions(mpix_ep_call *call, const mpix_ep_geometry *g, const int64_t *totals,
                              size_t stage);
#endif
