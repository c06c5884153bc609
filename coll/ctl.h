/*
 * ctl.h - a control window: its head, and where its parts lie. The structs in it and the rules by
 * which they are published are in wire.h.
 */
#ifndef MPIX_COLL_EP_CTL_H
#define MPIX_COLL_EP_CTL_H
#include "base/wait.h"
#include "coll/wire.h"

/* The beginning of a control window. */
typedef struct mpix_ep_head {
    mpix_doorbell bell;
    _Alignas(64) _Atomic uint64_t failed; /* 0, or what the first peer that failed has told
                                           * (boot.h); written by any peer */
} mpix_ep_head;

/* Sizes and offsets, equal on all ranks. */
typedef struct mpix_ep_ctl_layout {
    size_t offers_dispatch, offers_combine, status, counts, counts_bytes, bases, bases_bytes, block,
        handle, handles_at, forward, total;
} mpix_ep_ctl_layout;

/* answered: most experts of a rank if places are answered, -1: they are not. */
void mpix_ep_ctl_layout_init(mpix_ep_ctl_layout *layout, int ranks, int64_t experts, int depth,
                             int max_handles, int64_t answered);
#endif
