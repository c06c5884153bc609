/*
 * measure.c - the times. Blocks of ten calls of each kind alternate, and the first three of a block
 * are dropped, so that each kind finds the caches as the others leave them, not as it would like
 * them. A barrier stands before each call, outside the time; a call's time is the maximum over
 * ranks, agreed on when all is over.
 */
#include "config.h"

#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    OP_DISPATCH, /* route, then dispatch */
    OP_BASE_DISPATCH,
    OP_COMBINE,
    OP_BASE_COMBINE,
    OP_TOTAL, /* route, dispatch, combine in a row, no barrier between */
    OP_BASE_TOTAL,
    OP_BARE,
    OP_COPY,
    OP_FANOUT
};
enum { MEASURE_PHASES = 5, MEASURE_OPS = 12 };

typedef struct measure_op {
    int op, buf, phases;
    double *samples[MEASURE_PHASES]; /* the last phase is the whole */
} measure_op;

typedef struct measure {
    const bench *b;
    const bench_plan *plan;
    bench_ours *o;
    bench_base *m;
    unsigned char *copy_src, *copy_dst;
    int32_t *copy_map, *fanout_map;
    int nops, kept;
    measure_op ops[MEASURE_OPS];
} measure;

bench_stats bench_stats_of(const bench *b, double *samples, int n) {
    return bench_stats_take(b->comm, samples, n);
}

static void measure_add(measure *x, int op, int buf, int phases, int samples) {
    measure_op *p = &x->ops[x->nops++];
    p->op = op;
    p->buf = buf;
    p->phases = phases;
    for (int i = 0; i < phases; i++)
        p->samples[i] = bench_alloc(x->b, (size_t)samples * sizeof(double));
}

/* All ranks at once: it is over when the last one is, as a dispatch is. Without the barrier ranks
 * that share a core would each be timed while the others wait for it, and the sum of their rates
 * would be more than the machine has. */
static void measure_copy(measure *x, const unsigned char *src, const int32_t *map) {
    bench_copy_rows(x->copy_dst, src, x->b->row_bytes, x->plan->sent_rows, map);
    MPI_Barrier(x->b->comm);
}

/* One call; t gets its phases. */
static void measure_call(measure *x, const measure_op *op, double *t) {
    const bench *b = x->b;
    double other[BASE_COMBINE_PHASES], t0 = bench_now_us();
    switch (op->op) {
    case OP_DISPATCH:
        bench_ours_route(b, x->o, x->plan, 0);
        t[0] = bench_now_us() - t0;
        bench_ours_dispatch(b, x->o, x->plan, op->buf, 0, NULL);
        t[1] = bench_now_us() - t0 - t[0];
        break;
    case OP_COMBINE: bench_ours_combine(b, x->o, x->plan, op->buf, NULL); break;
    case OP_TOTAL:
        bench_ours_route(b, x->o, x->plan, 0);
        bench_ours_dispatch(b, x->o, x->plan, op->buf, 0, NULL);
        if (b->has_combine)
            bench_ours_combine(b, x->o, x->plan, op->buf, NULL);
        break;
    case OP_BASE_DISPATCH: bench_base_dispatch(b, x->m, x->plan, t); break;
    case OP_BASE_COMBINE: bench_base_combine(b, x->m, x->plan, t); break;
    case OP_BASE_TOTAL:
        bench_base_dispatch(b, x->m, x->plan, t);
        if (b->has_combine)
            bench_base_combine(b, x->m, x->plan, other);
        break;
    case OP_BARE: bench_base_bare(b, x->m); break;
    case OP_COPY: measure_copy(x, x->copy_src, x->copy_map); break;
    case OP_FANOUT: measure_copy(x, x->o->x, x->fanout_map); break;
    }
    t[op->phases - 1] = bench_now_us() - t0;
}

/* The yardstick copies as many rows as this rank's dispatch writes: each from a place of its own,
 * or in the way dispatch does it, each token read once and written as often as it is sent. */
static void measure_copy_setup(measure *x) {
    const bench *b = x->b;
    const bench_plan *plan = x->plan;
    size_t rows = (size_t)plan->sent_rows;
    x->copy_src = bench_alloc(b, rows * b->row_bytes);
    x->copy_dst = bench_alloc(b, rows * b->row_bytes);
    x->copy_map = bench_alloc(b, rows * sizeof(int32_t));
    x->fanout_map = bench_alloc(b, rows * sizeof(int32_t));
    memset(x->copy_src, 1, rows * b->row_bytes);
    int32_t at = 0;
    for (long t = 0; t < plan->n; t++)
        for (int i = 0; i < plan->k; i++) {
            int32_t id = plan->ids[t * plan->k + i];
            int again = id < 0;
            for (int j = 0; j < i && !again && b->opt.layout == MPIX_EP_COMPACT; j++)
                again = plan->ids[t * plan->k + j] >= 0 &&
                        b->expert_owner[plan->ids[t * plan->k + j]] == b->expert_owner[id];
            if (again)
                continue;
            x->copy_map[at] = at;
            x->fanout_map[at++] = (int32_t)t;
        }
}

/* Sides stand next to each other, so that the drifting of a machine meets both. */
static void measure_list(measure *x, int samples) {
    int base = x->m != NULL, sides = x->o->nbuf;
    for (int i = 0; i < sides; i++)
        measure_add(x, OP_DISPATCH, i, 3, samples);
    if (base)
        measure_add(x, OP_BASE_DISPATCH, 0, BASE_DISPATCH_PHASES + 1, samples);
    if (x->b->has_combine) {
        for (int i = 0; i < sides; i++)
            measure_add(x, OP_COMBINE, i, 1, samples);
        if (base)
            measure_add(x, OP_BASE_COMBINE, 0, BASE_COMBINE_PHASES + 1, samples);
        for (int i = 0; i < sides; i++)
            measure_add(x, OP_TOTAL, i, 1, samples);
        if (base)
            measure_add(x, OP_BASE_TOTAL, 0, BASE_DISPATCH_PHASES + 1, samples);
    }
    if (base)
        measure_add(x, OP_BARE, 0, 1, samples);
    measure_add(x, OP_COPY, 0, 1, samples);
    measure_add(x, OP_FANOUT, 0, 1, samples);
}

static void measure_run(measure *x, int blocks) {
    double t[MEASURE_PHASES];
    for (int block = -1; block < blocks; block++) /* block -1: the warm-up */
        for (int k = 0; k < x->nops; k++) {
            measure_op *op = &x->ops[k];
            int calls = block < 0 ? x->b->opt.warmup : BENCH_BLOCK;
            bench_progress(x->b, "%ld tokens: %s %d of %d, kind %d of %d", x->plan->n,
                           block < 0 ? "warm-up" : "block", block + 1, blocks, k + 1, x->nops);
            for (int i = 0; i < calls; i++) {
                MPI_Barrier(x->b->comm);
                measure_call(x, op, t);
                for (int p = 0; block >= 0 && i >= BENCH_DROP && p < op->phases; p++)
                    op->samples[p][block * BENCH_KEEP + i - BENCH_DROP] = t[p];
            }
        }
    bench_progress(x->b, "%s", "");
}

static void measure_collect(measure *x, bench_result *r) {
    for (int k = 0; k < x->nops; k++) {
        measure_op *op = &x->ops[k];
        bench_stats s[MEASURE_PHASES];
        for (int p = 0; p < op->phases; p++) {
            s[p] = bench_stats_of(x->b, op->samples[p], r->samples);
            free(op->samples[p]);
        }
        bench_side *side = &r->side[op->buf];
        bench_stats whole = s[op->phases - 1];
        switch (op->op) {
        case OP_DISPATCH:
            side->route = s[0];
            side->dispatch = s[1];
            side->route_dispatch = whole;
            break;
        case OP_BASE_DISPATCH:
            memcpy(r->base_dispatch, s, sizeof r->base_dispatch);
            r->base_dispatch_all = whole;
            break;
        case OP_COMBINE: side->combine = whole; break;
        case OP_BASE_COMBINE:
            memcpy(r->base_combine, s, sizeof r->base_combine);
            r->base_combine_all = whole;
            break;
        case OP_TOTAL: side->total = whole; break;
        case OP_BASE_TOTAL: r->base_total = whole; break;
        case OP_BARE: r->base_bare = whole; break;
        case OP_COPY: r->copy = whole; break;
        case OP_FANOUT: r->fanout = whole; break;
        }
    }
}

/* Rows of both layouts count once per (token, rank), as they would have to travel; what is written
 * counts as the layout has it. */
void bench_measure_bytes(const bench *b, const bench_plan *plan, bench_result *r) {
    double row = (double)(b->row_bytes + b->scale_bytes);
    double sums[3] = {(double)plan->pairs * row, (double)plan->pairs_remote * row,
                      (double)plan->sent_rows * (double)b->row_bytes};
    MPI_Allreduce(&sums[2], &r->written_max, 1, MPI_DOUBLE, MPI_MAX, b->comm);
    MPI_Allreduce(MPI_IN_PLACE, sums, 3, MPI_DOUBLE, MPI_SUM, b->comm);
    r->bytes = sums[0] / b->size;
    r->wire_bytes = sums[1] / b->size;
    r->written = sums[2];
}

/* Counters of this rank's peers, messages then bytes. */
static void net_read(const bench *b, bench_ours *o, double *counts, int *proxied) {
    for (int r = 0; r < b->size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        bench_check(b, MPIX_Ep_get_peer(o->ep, r, &peer), "MPIX_Ep_get_peer");
        counts[2 * r] = (double)peer.messages;
        counts[2 * r + 1] = (double)peer.bytes;
        *proxied += peer.reach == MPIX_EP_REACH_PROXIED;
    }
}

/* One more call of each kind, between two looks at the counters. A call is complete here when
 * what it sent is. */
static void measure_net(measure *x, bench_result *r) {
    const bench *b = x->b;
    double *before = bench_alloc(b, 2 * (size_t)b->size * sizeof *before),
           *after = bench_alloc(b, 2 * (size_t)b->size * sizeof *after);
    bench_ours_route(b, x->o, x->plan, 0);
    for (int kind = 0; kind < 1 + b->has_combine; kind++) {
        double sums[3] = {0}, most = 0;
        int proxied = 0, ignored = 0;
        net_read(b, x->o, before, &proxied);
        if (kind == 0)
            bench_ours_dispatch(b, x->o, x->plan, 0, 0, NULL);
        else
            bench_ours_combine(b, x->o, x->plan, 0, NULL);
        net_read(b, x->o, after, &ignored);
        sums[0] = proxied;
        for (int p = 0; p < b->size; p++) {
            double messages = after[2 * p] - before[2 * p];
            sums[1] += messages;
            sums[2] += after[2 * p + 1] - before[2 * p + 1];
            most = messages > most ? messages : most;
        }
        MPI_Allreduce(MPI_IN_PLACE, sums, 3, MPI_DOUBLE, MPI_SUM, b->comm);
        MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, b->comm);
        r->net[kind] = (bench_net){.pairs = (long)sums[0],
                                   .messages = sums[0] > 0 ? sums[1] / sums[0] : 0,
                                   .bytes = sums[0] > 0 ? sums[2] / sums[0] : 0,
                                   .most = most};
    }
    free(before);
    free(after);
}

void bench_measure(const bench *b, const bench_plan *plan, bench_ours *o, bench_base *m,
                   bench_result *r) {
    measure x = {.b = b, .plan = plan, .o = o, .m = m};
    int blocks = (b->opt.iterations + BENCH_BLOCK - 1) / BENCH_BLOCK;
    r->tokens = plan->n;
    r->samples = blocks * BENCH_KEEP;
    r->nside = o->nbuf;
    r->has_base = m != NULL;
    bench_measure_bytes(b, plan, r);
    measure_copy_setup(&x);
    measure_list(&x, r->samples);
    /* Every handle needs a routing, and every buffer of the baseline its counts, before a kind is
     * measured by itself.
     */
    bench_ours_route(b, o, plan, 0);
    if (m) {
        double phases[BASE_DISPATCH_PHASES];
        bench_base_dispatch(b, m, plan, phases);
    }
    measure_run(&x, blocks);
    measure_collect(&x, r);
    measure_net(&x, r);
    free(x.copy_src);
    free(x.copy_dst);
    free(x.copy_map);
    free(x.fanout_map);
}
