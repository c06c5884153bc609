/*
 * ref_plan.c - the reference for where rows go: a walk over everybody's choices in the order that
 * the header gives.
 */
#include "ref.h"

#include <stdlib.h>

static void *take(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    REQUIRE(p, "the reference is out of memory (%zu times %zu bytes)", n, size);
    return p;
}

static void place_experts(ref_plan *plan, const int *owner) {
    for (int r = 0, e = 0; !owner && r < plan->ranks; r++) {
        int held = plan->experts / plan->ranks + (r < plan->experts % plan->ranks);
        while (held--)
            plan->owner[e++] = r;
    }
    for (int e = 0; e < plan->experts; e++) {
        if (owner)
            plan->owner[e] = owner[e];
        plan->local[e] = plan->nlocal[plan->owner[e]]++;
    }
}

static void gather_ids(ref_plan *plan, int64_t ntok, int topk, const int64_t *ids) {
    int *counts = take((size_t)plan->ranks, sizeof *counts),
        *displs = take((size_t)plan->ranks, sizeof *displs);
    int mine = (int)(ntok * topk), used = ntok ? topk : 0;
    MPI_Allgather(&ntok, 1, MPI_INT64_T, plan->ntok, 1, MPI_INT64_T, MPI_COMM_WORLD);
    MPI_Allreduce(&used, &plan->topk, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    int sum = 0;
    for (int r = 0; r < plan->ranks; r++) {
        counts[r] = (int)(plan->ntok[r] * plan->topk);
        displs[r] = sum;
        sum += counts[r];
    }
    int64_t *all = take((size_t)sum, sizeof *all);
    MPI_Allgatherv(ids, mine, MPI_INT64_T, all, counts, displs, MPI_INT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < plan->ranks; r++)
        plan->ids[r] = all + displs[r]; /* ids[0] owns them all: displs[0] is 0 */
    free(counts);
    free(displs);
}

int64_t ref_choice(const ref_plan *plan, int rank, int64_t token, int choice) {
    return plan->ids[rank][token * plan->topk + choice];
}

static void add_row(ref_plan *plan, int rank, int64_t *room, int src, int64_t token, int choice) {
    if (plan->total[rank] == *room) {
        *room = *room * 2 + 16;
        plan->rows[rank] = realloc(plan->rows[rank], (size_t)*room * sizeof **plan->rows);
        REQUIRE(plan->rows[rank], "the reference is out of memory");
    }
    plan->rows[rank][plan->total[rank]++] = (ref_row){src, choice, token};
}

static void note_place(ref_plan *plan, int src, int64_t token, int choice, int64_t row) {
    if (src == t_rank)
        plan->place[token * plan->topk + choice] = row;
}

/* COMPACT: a token once, whatever the number of its experts here. SLOTS: the same, each source
 * beginning at its own place. */
static void rows_compact(ref_plan *plan, int rank) {
    int64_t room = 0;
    for (int src = 0; src < plan->ranks; src++) {
        for (int64_t token = 0; token < plan->ntok[src]; token++) {
            int hit = 0;
            for (int k = 0; k < plan->topk; k++) {
                int64_t e = ref_choice(plan, src, token, k);
                if (e < 0 || plan->owner[e] != rank)
                    continue;
                if (!hit++)
                    add_row(plan, rank, &room, src, token, -1);
                note_place(plan, src, token, k, plan->total[rank] - 1);
            }
        }
        while (plan->layout == MPIX_EP_SLOTS && plan->total[rank] < (src + 1) * plan->slots)
            add_row(plan, rank, &room, -1, -1, -1);
    }
}

/* EXPERT: expert by expert. Each begins at a multiple of align, and what the alignment leaves
 * free is padding. */
static void rows_expert(ref_plan *plan, int rank) {
    int64_t room = 0;
    for (int e = 0; e < plan->experts; e++) {
        if (plan->owner[e] != rank)
            continue;
        plan->offset[rank][plan->local[e]] = plan->total[rank];
        for (int src = 0; src < plan->ranks; src++)
            for (int64_t token = 0; token < plan->ntok[src]; token++)
                for (int k = 0; k < plan->topk; k++)
                    if (ref_choice(plan, src, token, k) == e) {
                        add_row(plan, rank, &room, src, token, k);
                        note_place(plan, src, token, k, plan->total[rank] - 1);
                    }
        while (plan->total[rank] % plan->align)
            add_row(plan, rank, &room, -1, -1, -1);
    }
    plan->offset[rank][plan->nlocal[rank]] = plan->total[rank];
}

ref_plan *ref_plan_make(int experts, const int *owner, int layout, int align, int64_t slots,
                        int64_t ntok, int topk, const int64_t *ids) {
    ref_plan *plan = take(1, sizeof *plan);
    size_t ranks = (size_t)t_size;
    plan->ranks = t_size;
    plan->experts = experts;
    plan->layout = layout;
    plan->align = align > 0 ? align : 1;
    plan->slots = slots;
    plan->owner = take((size_t)experts, sizeof *plan->owner);
    plan->local = take((size_t)experts, sizeof *plan->local);
    plan->nlocal = take(ranks, sizeof *plan->nlocal);
    plan->ntok = take(ranks, sizeof *plan->ntok);
    plan->ids = take(ranks, sizeof *plan->ids);
    plan->total = take(ranks, sizeof *plan->total);
    plan->rows = take(ranks, sizeof *plan->rows);
    plan->offset = take(ranks, sizeof *plan->offset);
    place_experts(plan, owner);
    gather_ids(plan, ntok, topk, ids);
    plan->place = take((size_t)(ntok * plan->topk), sizeof *plan->place);
    for (int64_t i = 0; i < ntok * plan->topk; i++)
        plan->place[i] = -1;
    for (int r = 0; r < plan->ranks; r++) {
        plan->offset[r] = take((size_t)plan->nlocal[r] + 1, sizeof **plan->offset);
        if (layout == MPIX_EP_EXPERT)
            rows_expert(plan, r);
        else
            rows_compact(plan, r);
    }
    return plan;
}

void ref_plan_free(ref_plan *plan) {
    if (!plan)
        return;
    for (int r = 0; r < plan->ranks; r++) {
        free(plan->rows[r]);
        free(plan->offset[r]);
    }
    free(plan->ids[0]);
    free(plan->owner);
    free(plan->local);
    free(plan->nlocal);
    free(plan->ntok);
    free(plan->ids);
    free(plan->total);
    free(plan->rows);
    free(plan->offset);
    free(plan->place);
    free(plan);
}
