/*
 * plan.h - what a routing means for this rank: where each row of its tokens goes, and which rows it
 * receives. Pure computation on the ids and on everybody's counts; no communication.
 */
#ifndef MPIX_COLL_EP_PLAN_H
#define MPIX_COLL_EP_PLAN_H
#include "mpix_ep.h"

/* Which rank holds which experts. */
typedef struct mpix_ep_placement {
    int ranks, rank;
    int64_t experts;
    int *owner;      /* [experts] */
    int *local;      /* [experts] index among its owner's experts, ascending */
    int64_t *nlocal; /* [ranks] */
    int64_t *mine;   /* [nlocal[rank]] this rank's experts, ascending */
    int layout;      /* MPIX_EP_COMPACT or MPIX_EP_EXPERT */
    int64_t align;
} mpix_ep_placement;

/* One row to write (dispatch) or to read (combine). A token's entries are ordered by
 * rank, then choice. */
typedef struct mpix_ep_entry {
    int32_t rank, choice; /* COMPACT: the first of the token's choices on that rank */
    int64_t row;          /* at that rank; before mpix_ep_plan_finish: counted from
                           * this rank's first */
    int64_t item;         /* place among this rank's rows there, experts ascending: order of
                           * a packed batch */
} mpix_ep_entry;

/* Adjacent received rows of one source (COMPACT) or one expert and source (EXPERT): rows
 * [row, row + n). */
typedef struct mpix_ep_segment {
    int64_t row, n;
    int32_t source, expert; /* expert: local index, -1 in COMPACT */
} mpix_ep_segment;

/* COUNTS of one source as route exchanged them. */
typedef struct mpix_ep_counts_view {
    const uint32_t *rows;    /* [ranks] */
    const uint32_t *tokens;  /* [ranks] */
    const uint32_t *experts; /* [experts] */
} mpix_ep_counts_view;

typedef struct mpix_ep_plan {
    int64_t tokens;
    int topk;       /* of this rank's ids */
    int width;      /* agreed topk of the batch: [rows][width] at receivers */
    int32_t *ids;   /* [tokens][topk], -1: none */
    int64_t *first; /* [tokens + 1] */
    mpix_ep_entry *entries;
    int64_t *send_rows;    /* [ranks] rows for each rank */
    int64_t *send_tokens;  /* [ranks] distinct tokens for each rank */
    int64_t *send_experts; /* [experts] */
    int64_t *send_hosts;   /* [hosts] distinct tokens for each host; only with two hops
                            * (host/forward.h) */
    int two_hops;          /* rows take two hops; the same on all ranks */
    /* after mpix_ep_plan_finish */
    int64_t recv_total;
    int64_t *recv_rank;   /* [ranks] */
    int64_t *recv_tokens; /* [ranks] distinct tokens from each rank */
    int64_t *recv_expert; /* [local experts] */
    int64_t *offset;      /* [local experts + 1]; EXPERT only */
    int64_t *total;       /* [ranks] recv_total of every rank */
    mpix_ep_segment *segments;
    int64_t nsegments;
    /* Scratch of what follows the exchange of counts. It is there before: a rank that got no memory
     * then would fail alone. */
    int64_t *scratch;           /* [experts + ranks], or [ranks][local experts, at least 1]
                                 * if that is more */
    mpix_ep_counts_view *views; /* [ranks] */
    const int64_t **bases;      /* [ranks] */
    void *memory;
} mpix_ep_plan;

/* Of it only what sizes follow from: nlocal, and no tables of experts. */
int mpix_ep_placement_sizes(mpix_ep_placement *placement, const MPIX_Ep_config *config, int ranks);
int mpix_ep_placement_init(mpix_ep_placement *placement, const MPIX_Ep_config *config, int ranks,
                           int rank);
void mpix_ep_placement_free(mpix_ep_placement *placement);

/* Worst-case rows a rank can receive in a batch (config->max_recv_rows or, if 0, what the routing
 * could demand); -1: more than 2^62. */
int64_t mpix_ep_worst_rows(const MPIX_Ep_config *config, const mpix_ep_placement *placement,
                           int rank);

/* Reads and checks the ids and computes this rank's sends. ARG names the id; NO_MEM. */
int mpix_ep_plan_create(const mpix_ep_placement *placement, const MPIX_Ep_routing *routing,
                        int check, mpix_ep_plan **plan);
/* Adds everybody's counts: rows become places, receive side filled. */
void mpix_ep_plan_finish(mpix_ep_plan *plan, const mpix_ep_placement *placement,
                         const mpix_ep_counts_view *from);
/* Places answered: the same in two halves. Receive: from what each source has for this rank (rows
 * and tokens [1], experts [own]); bases: [ranks][n] with n = 1 (COMPACT) or the number of own
 * experts, the first row of each source. Place: base[r]: this rank's first row at rank r, or of
 * each of its experts. */
void mpix_ep_plan_receive(mpix_ep_plan *plan, const mpix_ep_placement *placement,
                          const mpix_ep_counts_view *from, int64_t *bases);
void mpix_ep_plan_place(mpix_ep_plan *plan, const mpix_ep_placement *placement,
                        const int64_t *const base[]);
void mpix_ep_plan_free(mpix_ep_plan *plan);
#endif
