/*
 * route.c - ids and counts of route, against a reference written from the layouts' definitions in
 * mpix_ep.h: all ranks of a small job in one process, without MPI.
 */
#include "config.h"

#include "base/param.h"
#include "coll/host/plan.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 5, EXPERTS = 24, TOKENS = 12, TOPK = 5, ROWS = RANKS * TOKENS * TOPK + EXPERTS * 8 };

typedef struct job {
    int ranks, experts, topk, align, layout, bits, given; /* given: owners, not blocks */
    int owner[EXPERTS], local[EXPERTS], nlocal[RANKS];
    int ntok[RANKS];
    int64_t ids[RANKS][TOKENS][TOPK];
    int bad[RANKS];               /* a rank's ids are to be refused */
    int row[RANKS][TOKENS][TOPK]; /* of each choice at its rank, -1: none */
    int total[RANKS], offset[RANKS][EXPERTS + 1];
    int src[RANKS][ROWS], expert[RANKS][ROWS]; /* of each row, -1: padding */
} job;

static void job_read(fuzz_bytes *in, job *j) {
    memset(j, 0, sizeof *j);
    j->ranks = fuzz_range(in, 1, RANKS);
    j->experts = fuzz_range(in, 0, EXPERTS);
    j->topk = fuzz_range(in, 0, TOPK);
    j->layout = fuzz_range(in, 0, 1) ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
    j->align = j->layout == MPIX_EP_EXPERT ? fuzz_range(in, 1, 8) : 1;
    j->bits = fuzz_range(in, 0, 1) ? 64 : 32;
    j->given = fuzz_range(in, 0, 1);
    for (int e = 0, r = 0, left = 0; e < j->experts; e++) {
        while (!j->given && left == 0) { /* contiguous blocks, the first ranks holding one more */
            left = j->experts / j->ranks + (r < j->experts % j->ranks);
            r++;
        }
        left--;
        j->owner[e] = j->given ? fuzz_range(in, 0, j->ranks - 1) : r - 1;
        j->local[e] = j->nlocal[j->owner[e]]++;
    }
    for (int s = 0; s < j->ranks; s++) {
        j->ntok[s] = fuzz_range(in, 0, TOKENS);
        for (int t = 0; t < j->ntok[s]; t++)
            for (int k = 0; k < j->topk; k++) {
                int draw = fuzz_u8(in); /* mostly good ones */
                int64_t id = draw < 16 || j->experts == 0 ? -1 : draw % j->experts;
                if (draw == 255)
                    id = (int64_t)(int8_t)fuzz_u8(in) * (j->bits == 64 ? 1 << 30 : 1);
                j->ids[s][t][k] = id;
                j->bad[s] |= id < -1 || id >= j->experts;
                for (int q = 0; q < k; q++)
                    j->bad[s] |= id >= 0 && j->ids[s][t][q] == id;
            }
    }
}

static int here(const job *j, int rank, int64_t id) { return id >= 0 && j->owner[id] == rank; }

static void place_compact(job *j, int rank) {
    for (int s = 0; s < j->ranks; s++)
        for (int t = 0; t < j->ntok[s]; t++) {
            int any = 0;
            for (int k = 0; k < j->topk; k++)
                if (here(j, rank, j->ids[s][t][k])) {
                    j->row[s][t][k] = j->total[rank];
                    any = 1;
                }
            if (any) {
                j->src[rank][j->total[rank]] = s;
                j->expert[rank][j->total[rank]++] = -1;
            }
        }
}

static void place_expert(job *j, int rank) {
    int at = 0, n = 0;
    for (int e = 0; e < j->experts; e++) {
        if (j->owner[e] != rank)
            continue;
        while (at % j->align)
            j->src[rank][at++] = -1;
        j->offset[rank][n++] = at;
        for (int s = 0; s < j->ranks; s++)
            for (int t = 0; t < j->ntok[s]; t++)
                for (int k = 0; k < j->topk; k++)
                    if (j->ids[s][t][k] == e) {
                        j->row[s][t][k] = at;
                        j->src[rank][at] = s;
                        j->expert[rank][at++] = j->local[e];
                    }
    }
    while (at % j->align)
        j->src[rank][at++] = -1;
    j->offset[rank][n] = j->total[rank] = at;
}

static mpix_ep_plan *plan_of(const job *j, int rank, mpix_ep_placement *placement) {
    int32_t narrow[TOKENS][TOPK];
    int64_t wide[TOKENS][TOPK];
    for (int t = 0; t < j->ntok[rank]; t++)
        for (int k = 0; k < j->topk; k++) {
            narrow[t][k] = (int32_t)j->ids[rank][t][k];
            wide[t][k] = j->ids[rank][t][k];
        }
    MPIX_Ep_routing routing;
    mpix_ep_plan *plan = NULL;
    MPIX_INIT(&routing);
    routing.num_tokens = j->ntok[rank];
    routing.topk = j->topk;
    routing.idx_bits = j->bits;
    routing.ids = j->bits == 64 ? (const void *)wide : narrow;
    routing.ids_stride = j->bits / 8 * TOPK;
    int kind = mpix_ep_plan_create(placement, &routing, 1, &plan);
    FUZZ_CHECK((kind != 0) == j->bad[rank], "rank %d: kind %d, bad %d", rank, kind, j->bad[rank]);
    return kind ? NULL : plan;
}

/* What this rank's plan says of the rows that it sends. */
static void check_sent(const job *j, int rank, const mpix_ep_plan *plan) {
    for (int t = 0; t < j->ntok[rank]; t++) {
        int64_t at = plan->first[t];
        for (int r = 0; r < j->ranks; r++) {
            int seen = 0;
            for (int k = 0; k < j->topk; k++) {
                if (!here(j, r, j->ids[rank][t][k]) || (j->layout == MPIX_EP_COMPACT && seen))
                    continue;
                seen = 1;
                FUZZ_CHECK(at < plan->first[t + 1], "rank %d token %d has too few entries", rank,
                           t);
                const mpix_ep_entry *entry = &plan->entries[at++];
                FUZZ_CHECK(
                    entry->rank == r && entry->choice == k && entry->row == j->row[rank][t][k],
                    "rank %d token %d choice %d: rank %d choice %d row %lld, expected %d, %d", rank,
                    t, k, entry->rank, entry->choice, (long long)entry->row, r, j->row[rank][t][k]);
            }
        }
        FUZZ_CHECK(at == plan->first[t + 1], "rank %d token %d has too many entries", rank, t);
    }
}

static void check_received(const job *j, int rank, const mpix_ep_plan *plan) {
    int src[ROWS], expert[ROWS];
    FUZZ_CHECK(plan->recv_total == j->total[rank], "%lld rows, expected %d",
               (long long)plan->recv_total, j->total[rank]);
    for (int r = 0; r < j->ranks; r++)
        FUZZ_CHECK(plan->total[r] == j->total[r], "rank %d: %lld rows, expected %d", r,
                   (long long)plan->total[r], j->total[r]);
    for (int e = 0; j->layout == MPIX_EP_EXPERT && e <= j->nlocal[rank]; e++)
        FUZZ_CHECK(plan->offset[e] == j->offset[rank][e], "expert %d at %lld", e,
                   (long long)plan->offset[e]);
    for (int i = 0; i < j->total[rank]; i++)
        src[i] = expert[i] = -1;
    for (int64_t g = 0; g < plan->nsegments; g++) {
        const mpix_ep_segment *s = &plan->segments[g];
        for (int64_t i = s->row; i < s->row + s->n; i++) {
            FUZZ_CHECK(i >= 0 && i < j->total[rank] && src[i] < 0, "row %lld is outside or twice",
                       (long long)i);
            src[i] = s->source;
            expert[i] = s->expert;
        }
    }
    for (int i = 0; i < j->total[rank]; i++)
        FUZZ_CHECK(src[i] == j->src[rank][i] && (src[i] < 0 || expert[i] == j->expert[rank][i]),
                   "row %d comes from %d, expected %d", i, src[i], j->src[rank][i]);
}

typedef struct counts {
    uint32_t rows[RANKS], tokens[RANKS], experts[EXPERTS + 1];
} counts;

static void counts_of(const job *j, const mpix_ep_plan *plan, counts *c) {
    for (int r = 0; r < j->ranks; r++) {
        c->rows[r] = (uint32_t)plan->send_rows[r];
        c->tokens[r] = (uint32_t)plan->send_tokens[r];
    }
    for (int e = 0; e < j->experts; e++)
        c->experts[e] = (uint32_t)plan->send_experts[e];
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    mpix_params params;
    (void)argc, (void)argv;
    return mpix_params_read(&params) || mpix_params_set(&params, "log_level", "none");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static job j;
    static counts from[RANKS];
    fuzz_bytes in = {data, size};
    mpix_ep_placement placement[RANKS];
    mpix_ep_plan *plan[RANKS] = {NULL};
    mpix_ep_counts_view view[RANKS];
    MPIX_Ep_config config;
    int good = 1;
    job_read(&in, &j);
    MPIX_INIT(&config);
    config.layout = j.layout;
    config.num_experts = j.experts;
    config.max_tokens = TOKENS;
    config.max_topk = TOPK;
    config.expert_align = j.align;
    config.expert_owner = j.given ? j.owner : NULL;
    memset(from, 0, sizeof from);
    for (int r = 0; r < j.ranks; r++) {
        FUZZ_CHECK(mpix_ep_placement_init(&placement[r], &config, j.ranks, r) == 0,
                   "placement of rank %d", r);
        plan[r] = plan_of(&j, r, &placement[r]);
        good &= plan[r] != NULL;
        if (plan[r])
            counts_of(&j, plan[r], &from[r]);
        view[r] = (mpix_ep_counts_view){from[r].rows, from[r].tokens, from[r].experts};
    }
    for (int r = 0; r < j.ranks && good; r++)
        j.layout == MPIX_EP_EXPERT ? place_expert(&j, r) : place_compact(&j, r);
    for (int r = 0; r < j.ranks && good; r++) {
        mpix_ep_plan_finish(plan[r], &placement[r], view);
        check_sent(&j, r, plan[r]);
        check_received(&j, r, plan[r]);
    }
    /* A defective peer's counts: any numbers; the result means nothing, but nothing is
     * written past. */
    if (!good && plan[0]) {
        for (int r = 1; r < j.ranks; r++)
            fuzz_fill(&in, &from[r], sizeof from[r]);
        mpix_ep_plan_finish(plan[0], &placement[0], view);
    }
    for (int r = 0; r < j.ranks; r++) {
        if (plan[r])
            mpix_ep_plan_free(plan[r]);
        mpix_ep_placement_free(&placement[r]);
    }
    return 0;
}
