/*
 * routing.c - who needs which token. Choices are drawn, or taken from a file; every rank
 * knows everybody's, and works out what it must receive straight from the definitions of the
 * layouts in mpix_ep.h.
 */
#include "config.h"

#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct routing_rng {
    uint64_t state;
} routing_rng;

static uint64_t routing_next(routing_rng *rng) {
    rng->state += 0x9e3779b97f4a7c15u;
    return bench_mix(rng->state);
}

static double routing_unit(routing_rng *rng) {
    return ((double)(routing_next(rng) >> 11) + 0.5) * 0x1p-53;
}

static void *routing_array(const bench *b, size_t count, size_t size) {
    void *p = calloc(count + 1, size);
    if (!p)
        bench_die(b, "no memory for a routing (%zu bytes)", count * size);
    return p;
}

/* k distinct experts of n: the front of a permutation that goes on being shuffled, which stays
 * uniform whatever it was before. */
static void routing_uniform(const bench *b, routing_rng *rng, long n, int k, int32_t *ids) {
    int experts = b->opt.num_experts;
    int32_t *perm = routing_array(b, (size_t)experts, sizeof *perm);
    for (int e = 0; e < experts; e++)
        perm[e] = e;
    for (long t = 0; t < n; t++)
        for (int i = 0; i < k; i++) {
            int j = i + (int)(routing_next(rng) % (uint64_t)(experts - i));
            int32_t id = perm[j];
            perm[j] = perm[i];
            perm[i] = ids[t * k + i] = id;
        }
    free(perm);
}

/*
 * Successive draws without replacement, the expert of popularity p with probability proportional to
 * (p + 1)^-S, are the k smallest of log(-log(u)) + S log(p + 1). Which expert is how popular is
 * drawn once for all ranks, so that no rank is favoured by its number.
 */
static void routing_zipf(const bench *b, routing_rng *rng, long n, int k, int32_t *ids) {
    int experts = b->opt.num_experts;
    double *shift = routing_array(b, (size_t)experts, sizeof *shift);
    double *best = routing_array(b, (size_t)k + 1, sizeof *best);
    int *perm = routing_array(b, (size_t)experts, sizeof *perm);
    routing_rng common = {bench_mix(b->opt.seed ^ 0x5a49u)};
    for (int e = 0; e < experts; e++) {
        int j = (int)(routing_next(&common) % (uint64_t)(e + 1));
        perm[e] = perm[j];
        perm[j] = e;
    }
    for (int e = 0; e < experts; e++)
        shift[perm[e]] = b->opt.zipf_s * log(e + 1.0);
    for (long t = 0; t < n; t++) {
        int32_t *out = ids + t * k;
        int have = 0;
        for (int e = 0; e < experts; e++) {
            double key = log(-log(routing_unit(rng))) + shift[e];
            int i = have < k ? have++ : k;
            if (i == k && (k == 0 || key >= best[k - 1]))
                continue;
            for (i -= i == k; i > 0 && best[i - 1] > key; i--) {
                best[i] = best[i - 1];
                out[i] = out[i - 1];
            }
            best[i] = key;
            out[i] = e;
        }
    }
    free(perm);
    free(best);
    free(shift);
}

/* Rank r takes n tokens from r * n on; other rounds go on from there and start anew at the
 * end of the file. */
static void routing_file(const bench *b, int round, long n, int k, int32_t *ids) {
    for (long t = 0; t < n; t++) {
        int64_t at = ((int64_t)round * b->size + b->rank) * n + t;
        memcpy(ids + t * k, b->file.ids + at % b->file.tokens * k, (size_t)k * sizeof *ids);
    }
}

int bench_local_experts(const bench *b) {
    return b->expert_begin[b->rank + 1] - b->expert_begin[b->rank];
}

static void routing_choose(const bench *b, int round, int exact, bench_plan *p, int32_t *ids,
                           float *weights) {
    routing_rng rng = {
        bench_mix(bench_mix(b->opt.seed + 17) ^ (uint64_t)b->rank << 32 ^ (uint64_t)round)};
    size_t count = (size_t)p->n * (size_t)p->k;
    if (b->opt.routing == BENCH_FILE && p->n)
        routing_file(b, round, p->n, p->k, ids);
    else if (b->opt.routing == BENCH_ZIPF)
        routing_zipf(b, &rng, p->n, p->k, ids);
    else if (p->n)
        routing_uniform(b, &rng, p->n, p->k, ids);
    for (size_t i = 0; i < count; i++) {
        if (round && routing_next(&rng) % 16 == 0)
            ids[i] = -1;
        weights[i] = exact ? (routing_next(&rng) % 2 ? 1.0f : 0.5f) : (float)routing_unit(&rng);
    }
}

/* First walk over everybody's choices: counts. */
static void routing_count(const bench *b, bench_plan *p) {
    int first = b->expert_begin[b->rank], local = bench_local_experts(b),
        align = b->opt.expert_align;
    for (int s = 0; s < b->size; s++)
        for (long t = 0; t < p->n; t++) {
            const int32_t *ids = p->all_ids + ((size_t)s * (size_t)p->n + (size_t)t) * (size_t)p->k;
            int here = 0;
            for (int i = 0; i < p->k; i++)
                if (ids[i] >= first && ids[i] < first + local) {
                    p->per_expert[ids[i] - first]++;
                    here++;
                }
            p->pairs += here > 0;
            p->pairs_remote += here > 0 && s != b->rank;
            p->per_rank[s] += b->opt.layout == MPIX_EP_EXPERT ? here : here > 0;
        }
    if (b->opt.layout == MPIX_EP_EXPERT) {
        for (int e = 0; e < local; e++) {
            p->unpadded += p->per_expert[e];
            p->offset[e + 1] = p->offset[e] + (p->per_expert[e] + align - 1) / align * align;
        }
        p->rows = p->offset[local];
    } else {
        p->unpadded = p->rows = p->pairs;
    }
}

/* Second walk: the place of each row. */
static void routing_place(const bench *b, bench_plan *p) {
    int first = b->expert_begin[b->rank], local = bench_local_experts(b),
        compact = b->opt.layout == MPIX_EP_COMPACT;
    long *next = routing_array(b, (size_t)local + 1, sizeof *next);
    memcpy(next, p->offset, (size_t)local * sizeof *next);
    long at = 0;
    for (long i = 0; i < p->rows; i++)
        p->row_rank[i] = p->row_expert[i] = -1, p->row_token[i] = -1;
    for (int s = 0; s < b->size; s++)
        for (long t = 0; t < p->n; t++) {
            const int32_t *ids = p->all_ids + ((size_t)s * (size_t)p->n + (size_t)t) * (size_t)p->k;
            int here = 0;
            for (int i = 0; i < p->k; i++) {
                if (ids[i] < first || ids[i] >= first + local || (compact && here))
                    continue;
                long row = compact ? at++ : next[ids[i] - first]++;
                p->row_rank[row] = s;
                p->row_token[row] = t;
                p->row_expert[row] = ids[i];
                here = 1;
            }
        }
    free(next);
}

static void routing_count_sent(const bench *b, bench_plan *p) {
    unsigned char *seen = routing_array(b, (size_t)b->size, 1);
    for (long t = 0; t < p->n; t++) {
        memset(seen, 0, (size_t)b->size);
        for (int i = 0; i < p->k; i++) {
            int32_t id = p->ids[t * p->k + i];
            if (id < 0)
                continue;
            p->sent += !seen[b->expert_owner[id]];
            p->sent_rows += b->opt.layout == MPIX_EP_EXPERT || !seen[b->expert_owner[id]];
            seen[b->expert_owner[id]] = 1;
        }
    }
    free(seen);
}

void bench_plan_make(const bench *b, long n, int round, int exact, bench_plan *p) {
    memset(p, 0, sizeof *p);
    p->n = n;
    p->k = b->opt.topk;
    size_t mine = (size_t)n * (size_t)p->k, all = mine * (size_t)b->size,
           at = mine * (size_t)b->rank;
    p->all_ids = routing_array(b, all, sizeof *p->all_ids);
    p->all_weights = routing_array(b, all, sizeof *p->all_weights);
    p->ids = p->all_ids + at;
    p->weights = p->all_weights + at;
    routing_choose(b, round, exact, p, p->all_ids + at, p->all_weights + at);
    if (p->k) { /* a token's choices as the unit, so that counts stay small */
        MPI_Datatype unit;
        MPI_Type_contiguous(p->k * 4, MPI_BYTE, &unit);
        MPI_Type_commit(&unit);
        MPI_Allgather(MPI_IN_PLACE, 0, unit, p->all_ids, (int)n, unit, b->comm);
        MPI_Allgather(MPI_IN_PLACE, 0, unit, p->all_weights, (int)n, unit, b->comm);
        MPI_Type_free(&unit);
    }
    int local = bench_local_experts(b);
    p->per_rank = routing_array(b, (size_t)b->size, sizeof(long));
    p->per_expert = routing_array(b, (size_t)local, sizeof(long));
    p->offset = routing_array(b, (size_t)local + 1, sizeof(long));
    routing_count(b, p);
    p->row_rank = routing_array(b, (size_t)p->rows, sizeof *p->row_rank);
    p->row_token = routing_array(b, (size_t)p->rows, sizeof *p->row_token);
    p->row_expert = routing_array(b, (size_t)p->rows, sizeof *p->row_expert);
    routing_place(b, p);
    routing_count_sent(b, p);
}

void bench_plan_free(bench_plan *p) {
    free(p->all_ids);
    free(p->all_weights);
    free(p->per_rank);
    free(p->per_expert);
    free(p->offset);
    free(p->row_rank);
    free(p->row_token);
    free(p->row_expert);
    memset(p, 0, sizeof *p);
}
