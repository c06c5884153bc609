/* plan.c - routing of this rank's tokens and layout of the rows it receives. */
#include "config.h"

#include "coll/host/plan.h"
#include "base/status.h"

#include <stdlib.h>

static int placement_no_mem(mpix_ep_placement *p) {
    int64_t experts = p->experts;
    mpix_ep_placement_free(p);
    return mpix_fail(MPIX_ERRK_NO_MEM, "config.num_experts",
                     "no memory for the placement of %lld experts", (long long)experts);
}

int mpix_ep_placement_sizes(mpix_ep_placement *p, const MPIX_Ep_config *config, int ranks) {
    int64_t experts = config->num_experts;
    memset(p, 0, sizeof *p);
    p->ranks = ranks;
    p->experts = experts;
    /* low latency: a row travels once per rank */
    p->layout = config->mode == MPIX_EP_LL ? MPIX_EP_COMPACT : config->layout;
    p->align = config->expert_align > 1 ? config->expert_align : 1;
    p->nlocal = calloc((size_t)ranks, sizeof *p->nlocal);
    if (!p->nlocal)
        return placement_no_mem(p);
    for (int r = 0; r < ranks && !config->expert_owner; r++)
        p->nlocal[r] = experts / ranks + (r < experts % ranks);
    for (int64_t e = 0; e < experts && config->expert_owner; e++)
        p->nlocal[config->expert_owner[e]]++;
    return 0;
}

int mpix_ep_placement_init(mpix_ep_placement *p, const MPIX_Ep_config *config, int ranks,
                           int rank) {
    int64_t experts = config->num_experts;
    int kind = mpix_ep_placement_sizes(p, config, ranks);
    if (kind)
        return kind;
    p->rank = rank;
    p->owner = malloc(((size_t)experts + 1) * sizeof *p->owner);
    p->local = malloc(((size_t)experts + 1) * sizeof *p->local);
    p->mine = malloc(((size_t)p->nlocal[rank] + 1) * sizeof *p->mine);
    if (!p->owner || !p->local || !p->mine)
        return placement_no_mem(p);
    memset(p->nlocal, 0, (size_t)ranks * sizeof *p->nlocal); /* counted again, for p->local */
    int64_t base = experts / ranks, more = experts % ranks;
    for (int64_t e = 0; e < experts; e++) {
        if (config->expert_owner)
            p->owner[e] = config->expert_owner[e];
        else if (e < more * (base + 1))
            p->owner[e] = (int)(e / (base + 1));
        else
            p->owner[e] = (int)(more + (e - more * (base + 1)) / base);
        p->local[e] = (int)p->nlocal[p->owner[e]]++;
    }
    for (int64_t e = 0, n = 0; e < experts; e++)
        if (p->owner[e] == rank)
            p->mine[n++] = e;
    return 0;
}

void mpix_ep_placement_free(mpix_ep_placement *p) {
    free(p->owner);
    free(p->local);
    free(p->nlocal);
    free(p->mine);
    memset(p, 0, sizeof *p);
}

int64_t mpix_ep_worst_rows(const MPIX_Ep_config *config, const mpix_ep_placement *p, int rank) {
    if (config->max_recv_rows > 0)
        return config->max_recv_rows;
    int64_t sent = config->max_tokens * (int64_t)p->ranks; /* < 2^62 */
    if (config->layout == MPIX_EP_COMPACT)
        return p->nlocal[rank] ? sent : 0;
    /* EXPERT: a token has at most min(topk, local experts) rows here, and each expert's block is
     * padded by at most align - 1 rows. */
    int64_t per_token = p->nlocal[rank] < config->max_topk ? p->nlocal[rank] : config->max_topk,
            rows;
    if (__builtin_mul_overflow(sent, per_token, &rows))
        return -1;
    /* experts that can have rows at all */
    int64_t filled = rows < p->nlocal[rank] ? rows : p->nlocal[rank];
    if (__builtin_add_overflow(rows, filled * (p->align - 1), &rows) || rows > (INT64_C(1) << 62))
        return -1;
    return rows;
}

static int64_t id_read(const void *row, int k, int bits) {
    return bits == 64 ? ((const int64_t *)row)[k] : ((const int32_t *)row)[k];
}

/* The error of the k-th choice of token t: its id, out of range or that of a choice before it. */
static int id_refuse(const int32_t *ids, int64_t t, int k, int64_t id, int64_t experts) {
    if (id < -1 || id >= experts)
        return mpix_fail(MPIX_ERRK_ARG, "routing.ids",
                         "routing.ids[%lld][%d] = %lld is neither -1 nor in [0, %lld)",
                         (long long)t, k, (long long)id, (long long)experts);
    int before = 0;
    while (ids[before] != id)
        before++;
    return mpix_fail(
        MPIX_ERRK_ARG, "routing.ids",
        "routing.ids[%lld] has expert %lld twice (choices %d and %d); a token may choose an "
        "expert once",
        (long long)t, (long long)id, before, k);
}

/* The copy, for ids of one size. last: [experts] by its id, the token that had an expert
 * last, plus 1. */
static inline __attribute__((always_inline)) int
ids_copy(mpix_ep_plan *plan, const MPIX_Ep_routing *r, int64_t experts, int64_t *last, int bits) {
    int64_t stride = r->ids_stride ? r->ids_stride : (int64_t)plan->topk * (bits / 8);
    for (int64_t t = 0; t < plan->tokens; t++) {
        int32_t *ids = plan->ids + t * plan->topk;
        const char *row = (const char *)r->ids + t * stride;
        for (int k = 0; k < plan->topk; k++) {
            int64_t id = id_read(row, k, bits);
            if (last && id != -1) {
                if ((uint64_t)id >= (uint64_t)experts || last[id] == t + 1)
                    return id_refuse(ids, t, k, id, experts);
                last[id] = t + 1;
            }
            ids[k] = (int32_t)id;
        }
    }
    return 0;
}

/* Copies the ids and checks them: range, and no expert twice in a token. */
static int plan_ids(mpix_ep_plan *plan, const mpix_ep_placement *p, const MPIX_Ep_routing *r,
                    int check) {
    int64_t *last = check ? memset(plan->scratch, 0, (size_t)p->experts * sizeof *last) : NULL;
    return r->idx_bits == 64 ? ids_copy(plan, r, p->experts, last, 64)
                             : ids_copy(plan, r, p->experts, last, 32);
}

/* Entries of each token, ordered by (rank, choice); rows counted per destination (COMPACT) or per
 * expert (EXPERT). */
static void plan_entries(mpix_ep_plan *plan, const mpix_ep_placement *p) {
    int64_t n = 0;
    for (int64_t t = 0; t < plan->tokens; t++) {
        const int32_t *ids = plan->ids + t * plan->topk;
        mpix_ep_entry *e = plan->entries + n;
        int m = 0;
        plan->first[t] = n;
        for (int k = 0; k < plan->topk; k++) {
            if (ids[k] < 0)
                continue;
            int rank = p->owner[ids[k]], i = m;
            plan->send_experts[ids[k]]++;
            while (i > 0 && e[i - 1].rank > rank)
                i--;
            int again = i > 0 && e[i - 1].rank == rank;
            plan->send_tokens[rank] += !again;
            if (again && p->layout == MPIX_EP_COMPACT)
                continue;
            if (i < m)
                memmove(e + i + 1, e + i, (size_t)(m - i) * sizeof *e);
            e[i].rank = rank;
            e[i].choice = k;
            e[i].row = e[i].item = p->layout == MPIX_EP_COMPACT ? plan->send_rows[rank]
                                                                : plan->send_experts[ids[k]] - 1;
            plan->send_rows[rank]++;
            m++;
        }
        n += m;
    }
    plan->first[plan->tokens] = n;
}

/* EXPERT: a packed batch holds the rows of the destination's experts one after the other. before:
 * [experts + ranks] scratch. */
static void plan_items(mpix_ep_plan *plan, const mpix_ep_placement *p, int64_t *before) {
    int64_t *next = before + p->experts;
    memset(next, 0, (size_t)p->ranks * sizeof *next);
    for (int64_t e = 0; e < p->experts; e++) {
        before[e] = next[p->owner[e]];
        next[p->owner[e]] += plan->send_experts[e];
    }
    for (int64_t t = 0; t < plan->tokens; t++)
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++)
            plan->entries[i].item += before[plan->ids[t * plan->topk + plan->entries[i].choice]];
}

/* Cuts arrays out of one allocation; sizes are rounded up so that every array is aligned. */
static void *cut(char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 15) & ~(size_t)15;
    return p;
}

int mpix_ep_plan_create(const mpix_ep_placement *p, const MPIX_Ep_routing *r, int check,
                        mpix_ep_plan **out) {
    size_t tokens = (size_t)r->num_tokens, choices = tokens * (size_t)r->topk,
           ranks = (size_t)p->ranks;
    size_t experts = (size_t)p->experts, nlocal = (size_t)p->nlocal[p->rank];
    size_t segments = p->layout == MPIX_EP_COMPACT ? ranks : ranks * nlocal;
    size_t answers = ranks * (nlocal > 1 ? nlocal : 1),
           scratch = answers > experts + ranks ? answers : experts + ranks;
    size_t bytes = choices * (sizeof(int32_t) + sizeof(mpix_ep_entry)) + (tokens + 1) * 8 +
                   (6 * ranks + experts + 2 * nlocal + 1) * 8 + segments * sizeof(mpix_ep_segment) +
                   scratch * 8 + ranks * sizeof(mpix_ep_counts_view) + 18 * 16;
    mpix_ep_plan *plan = calloc(1, sizeof *plan);
    char *at = plan ? malloc(bytes) : NULL;
    if (!at) {
        free(plan);
        return mpix_fail(MPIX_ERRK_NO_MEM, "routing.num_tokens",
                         "no memory for a routing of %lld tokens (%zu bytes)",
                         (long long)r->num_tokens, bytes);
    }
    plan->memory = at;
    plan->tokens = r->num_tokens;
    plan->topk = plan->width = r->topk;
    plan->entries = cut(&at, choices * sizeof(mpix_ep_entry));
    plan->ids = cut(&at, choices * sizeof(int32_t));
    plan->first = cut(&at, (tokens + 1) * 8);
    plan->send_rows = cut(&at, ranks * 8);
    plan->send_tokens = cut(&at, ranks * 8);
    plan->recv_rank = cut(&at, ranks * 8);
    plan->recv_tokens = cut(&at, ranks * 8);
    plan->total = cut(&at, ranks * 8);
    plan->scratch = cut(&at, scratch * 8);
    plan->views = cut(&at, ranks * sizeof *plan->views);
    plan->bases = cut(&at, ranks * 8);
    plan->send_experts = cut(&at, experts * 8);
    plan->recv_expert = cut(&at, nlocal * 8);
    plan->offset = cut(&at, (nlocal + 1) * 8);
    plan->segments = cut(&at, segments * sizeof(mpix_ep_segment));
    memset(plan->send_rows, 0, ranks * 8);
    memset(plan->send_tokens, 0, ranks * 8);
    memset(plan->send_experts, 0, experts * 8);
    int kind = plan_ids(plan, p, r, check);
    if (kind) {
        mpix_ep_plan_free(plan);
        return kind;
    }
    plan_entries(plan, p);
    if (p->layout == MPIX_EP_EXPERT)
        plan_items(plan, p, plan->scratch);
    *out = plan;
    return 0;
}

static int64_t align_up(int64_t n, int64_t align) { return (n + align - 1) / align * align; }

/* COMPACT: sources ascending. base[r]: this rank's first row at rank r. */
static void finish_compact(mpix_ep_plan *plan, const mpix_ep_placement *p,
                           const mpix_ep_counts_view *from, int64_t *base) {
    memset(plan->total, 0, (size_t)p->ranks * 8);
    for (int s = 0; s < p->ranks; s++) {
        plan->segments[s] = (mpix_ep_segment){plan->total[p->rank], from[s].rows[p->rank], s, -1};
        plan->recv_rank[s] = from[s].rows[p->rank];
        for (int d = 0; d < p->ranks; d++) {
            if (s == p->rank)
                base[d] = plan->total[d];
            plan->total[d] += from[s].rows[d];
        }
    }
    plan->nsegments = p->ranks;
    int64_t n = plan->first[plan->tokens];
    for (int64_t i = 0; i < n; i++)
        plan->entries[i].row += base[plan->entries[i].rank];
}

/* EXPERT: experts ascending, sources ascending in each, blocks aligned. base[e]: this rank's first
 * row of expert e at its owner. */
static void finish_expert(mpix_ep_plan *plan, const mpix_ep_placement *p,
                          const mpix_ep_counts_view *from, int64_t *base) {
    memset(plan->total, 0, (size_t)p->ranks * 8);
    memset(plan->recv_rank, 0, (size_t)p->ranks * 8);
    plan->nsegments = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        int d = p->owner[e];
        int64_t row = plan->total[d];
        if (d == p->rank)
            plan->offset[p->local[e]] = row;
        for (int s = 0; s < p->ranks; s++) {
            int64_t n = from[s].experts[e];
            if (s == p->rank)
                base[e] = row;
            if (d == p->rank) {
                plan->segments[plan->nsegments++] = (mpix_ep_segment){row, n, s, p->local[e]};
                plan->recv_rank[s] += n;
            }
            row += n;
        }
        plan->total[d] = align_up(row, p->align);
    }
    plan->offset[p->nlocal[p->rank]] = plan->total[p->rank];
    for (int64_t t = 0; t < plan->tokens; t++)
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++)
            plan->entries[i].row += base[plan->ids[t * plan->topk + plan->entries[i].choice]];
}

void mpix_ep_plan_finish(mpix_ep_plan *plan, const mpix_ep_placement *p,
                         const mpix_ep_counts_view *from) {
    for (int64_t i = 0; i < p->nlocal[p->rank]; i++) {
        plan->recv_expert[i] = 0;
        for (int s = 0; s < p->ranks; s++)
            plan->recv_expert[i] += from[s].experts[p->mine[i]];
    }
    for (int s = 0; s < p->ranks; s++)
        plan->recv_tokens[s] = from[s].tokens[p->rank];
    if (p->layout == MPIX_EP_COMPACT)
        finish_compact(plan, p, from, plan->scratch);
    else
        finish_expert(plan, p, from, plan->scratch);
    plan->recv_total = plan->total[p->rank];
}

void mpix_ep_plan_receive(mpix_ep_plan *plan, const mpix_ep_placement *p,
                          const mpix_ep_counts_view *from, int64_t *bases) {
    int64_t nlocal = p->nlocal[p->rank], row = 0;
    plan->nsegments = 0;
    for (int s = 0; s < p->ranks; s++) {
        plan->recv_tokens[s] = from[s].tokens[0];
        plan->recv_rank[s] = from[s].rows[0];
        if (p->layout != MPIX_EP_COMPACT)
            continue;
        bases[s] = row;
        plan->segments[plan->nsegments++] = (mpix_ep_segment){row, from[s].rows[0], s, -1};
        row += from[s].rows[0];
    }
    for (int64_t e = 0; e < nlocal; e++) {
        plan->recv_expert[e] = 0;
        plan->offset[e] = row;
        for (int s = 0; s < p->ranks; s++) {
            int64_t n = from[s].experts[e];
            plan->recv_expert[e] += n;
            if (p->layout == MPIX_EP_COMPACT)
                continue;
            bases[s * nlocal + e] = row;
            plan->segments[plan->nsegments++] = (mpix_ep_segment){row, n, s, (int32_t)e};
            row += n;
        }
        if (p->layout == MPIX_EP_EXPERT)
            row = align_up(row, p->align);
    }
    plan->offset[nlocal] = row;
    plan->recv_total = row;
}

void mpix_ep_plan_place(mpix_ep_plan *plan, const mpix_ep_placement *p,
                        const int64_t *const base[]) {
    for (int64_t t = 0; t < plan->tokens; t++)
        for (int64_t i = plan->first[t]; i < plan->first[t + 1]; i++) {
            mpix_ep_entry *e = &plan->entries[i];
            e->row += base[e->rank][p->layout == MPIX_EP_COMPACT
                                        ? 0
                                        : p->local[plan->ids[t * plan->topk + e->choice]]];
        }
}

void mpix_ep_plan_free(mpix_ep_plan *plan) {
    if (!plan)
        return;
    free(plan->memory);
    free(plan->send_hosts);
    free(plan);
}
