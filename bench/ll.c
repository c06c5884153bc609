/*
 * ll.c - --mode ll: the low-latency mode beside HT, MPI and a bare copy with a
 * flag, all in one run.
 *
 * Blocks of ten calls of each kind alternate as in measure.c. A kind is a whole call or a pair of
 * calls; of the library's calls also the first half: what the nonblocking form takes until it
 * returns: until this rank has sent, and taken what was there by then.
 *
 * Before each call, outside its time, every rank writes its inputs anew and reads its outputs, as a
 * layer does: otherwise lines that nobody touches between calls stay in the cache of whoever wrote
 * or read them last, and the kinds that move rows by one copy would seem to move them by none.
 */
#include "config.h"

#include "bench/bench.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    LL_ROUTE,
    LL_DISPATCH,
    LL_BOTH,
    LL_ROUTED,
    LL_COMBINE,
    LL_ALL,
    HT_DISPATCH,
    HT_COMBINE,
    HT_BOTH,
    MPI_DISPATCH,
    MPI_COMBINE,
    MPI_BOTH,
    COPY_FLAG,
    KINDS
};

static const char *const kind_names[] = {"ll route",
                                         "ll dispatch",
                                         "ll dispatch + combine",
                                         "ll route + dispatch",
                                         "ll combine",
                                         "ll route + dispatch + combine",
                                         "ht route + dispatch",
                                         "ht combine",
                                         "ht route + dispatch + combine",
                                         "mpi dispatch",
                                         "mpi combine",
                                         "mpi dispatch + combine",
                                         "copies with flags, there and back"};
/* What MPI does for the same: its dispatch begins with the routing, too. */
static int against(int kind) {
    return kind >= LL_ROUTED && kind <= HT_BOTH ? MPI_DISPATCH + (kind - LL_ROUTED) % 3 : -1;
}

/* Two areas of a rank that its neighbour writes: rows and a flag each. */
typedef struct ll_wire {
    MPI_Win win;
    size_t bytes; /* of the rows that this rank sends */
    unsigned char *mine, *next, *prev;
    uint64_t round;
} ll_wire;

typedef struct ll {
    const bench *b;
    const bench_plan *plan;
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    long rows;                                     /* of the layout, at most */
    void *out, *out_scales, *ein, *ein_scales, *y; /* from MPIX_Ep_alloc, as ht's, but y */
    int *local_ids, *src_rank;
    MPI_Count *src_token;
    float *weights;
    bench_ours *o;
    bench_base *m;
    ll_wire wire;
    double *samples[KINDS], *sent[2]; /* sent: the first halves of LL_DISPATCH and LL_COMBINE */
} ll;

static int is_slots(const ll *l) { return l->b->opt.layout == MPIX_EP_COMPACT; }

static void *ll_alloc(ll *l, size_t bytes) {
    void *p;
    bench_check(l->b, MPIX_Ep_alloc(l->ep, (MPI_Count)bytes, MPI_INFO_NULL, &p), "MPIX_Ep_alloc");
    return p;
}

static void ll_create(ll *l, long n, long capacity) {
    const bench *b = l->b;
    MPIX_Ep_config config;
    size_t wire = 2 * (size_t)b->opt.hidden, row = b->row_bytes + b->scale_bytes,
           k = (size_t)b->opt.topk;
    MPIX_INIT(&config);
    config.mode = MPIX_EP_LL;
    config.layout = is_slots(l) ? MPIX_EP_SLOTS : MPIX_EP_EXPERT;
    config.max_topk = b->opt.topk ? b->opt.topk : 1;
    config.expert_align = is_slots(l) ? 0 : b->opt.expert_align;
    config.num_experts = b->opt.num_experts;
    config.max_tokens = n;
    config.max_row_bytes = (MPI_Count)(row > wire ? row : wire); /* fp8 rows come back as bf16 */
    bench_check(b, MPIX_Ep_create(b->ep_comm, &config, MPI_INFO_NULL, &l->ep), "MPIX_Ep_create");
    bench_check(b, MPIX_Ep_handle_create(l->ep, &l->handle), "MPIX_Ep_handle_create");
    l->rows = is_slots(l) ? n * b->size : capacity;
    size_t room = (size_t)l->rows + 1;
    l->out = ll_alloc(l, room * b->row_bytes);
    l->out_scales = ll_alloc(l, room * b->scale_bytes);
    l->ein = ll_alloc(l, room * b->row_bytes);
    l->ein_scales = ll_alloc(l, room * b->scale_bytes);
    l->y = bench_alloc(b, ((size_t)n + 1) * b->y_bytes);
    l->local_ids = bench_alloc(b, room * (k + 1) * sizeof(int));
    l->src_rank = bench_alloc(b, room * sizeof(int));
    l->src_token = bench_alloc(b, room * sizeof(MPI_Count));
    l->weights = bench_alloc(b, room * (k + 1) * sizeof(float));
}

static void ll_free(ll *l) {
    bench_check(l->b, MPIX_Ep_handle_free(&l->handle), "MPIX_Ep_handle_free");
    bench_check(l->b, MPIX_Ep_free(&l->ep), "MPIX_Ep_free");
    void *const all[] = {l->y, l->local_ids, l->src_rank, l->src_token, l->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void ll_route(ll *l, const bench_plan *plan) {
    MPIX_Ep_routing routing;
    MPIX_INIT(&routing);
    routing.num_tokens = plan->n;
    routing.topk = plan->k;
    routing.ids = plan->n && plan->k ? plan->ids : NULL;
    bench_check(l->b, MPIX_Ep_route(l->handle, &routing, NULL), "MPIX_Ep_route");
}

/* all: with every output. Gives the time until the rows were sent. */
static double ll_dispatch(ll *l, const bench_plan *plan, int all) {
    const bench *b = l->b;
    double t0 = bench_now_us();
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Xfer xfer;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){.data = l->o->x,
                          .dtype = b->opt.dtype,
                          .scale_kind = b->opt.scale_kind,
                          .scales = b->scale_bytes ? l->o->x_scales : NULL};
    in.topk_weights = b->opt.metadata ? plan->weights : NULL;
    out.capacity_rows = l->rows;
    out.x = (MPIX_Ep_rows){.data = l->out,
                           .dtype = b->opt.dtype,
                           .scale_kind = b->opt.scale_kind,
                           .scales = b->scale_bytes ? l->out_scales : NULL};
    if (b->opt.metadata) {
        out.topk_weights = l->weights;
        out.local_ids = is_slots(l) ? l->local_ids : NULL;
    }
    if (all) {
        out.src_rank = l->src_rank;
        out.src_token = l->src_token;
    }
    bench_check(b, MPIX_Ep_idispatch(l->handle, &in, &out, &xfer), "MPIX_Ep_idispatch");
    double sent = bench_now_us() - t0;
    bench_ours_wait(b, &xfer, "MPIX_Ep_idispatch");
    return sent;
}

static double ll_combine(ll *l) {
    const bench *b = l->b;
    double t0 = bench_now_us();
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_Xfer xfer;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x = (MPIX_Ep_rows){.data = l->ein,
                          .dtype = b->opt.dtype,
                          .scale_kind = b->opt.scale_kind,
                          .scales = b->scale_bytes ? l->ein_scales : NULL};
    if (!is_slots(l) && b->opt.metadata)
        in.row_weights = l->weights; /* as dispatch brought them */
    out.y = (MPIX_Ep_rows){.data = l->y, .dtype = b->ydtype};
    bench_check(b, MPIX_Ep_icombine(l->handle, &in, &out, &xfer), "MPIX_Ep_icombine");
    double sent = bench_now_us() - t0;
    bench_ours_wait(b, &xfer, "MPIX_Ep_icombine");
    return sent;
}

/* ---- verification ---------------------------------------------------------------------------- */

void bench_ll_squeeze(const bench_plan *plan, void *slots, size_t size, int into, void *dense) {
    long place = 0;
    for (long i = 0; i < plan->rows; i++) {
        place = i && plan->row_rank[i] == plan->row_rank[i - 1] ? place + 1 : 0;
        unsigned char *at = (unsigned char *)slots +
                            (size_t)(plan->row_rank[i] * plan->n + place) * size,
                      *row = (unsigned char *)dense + (size_t)i * size;
        memcpy(into ? at : row, into ? row : at, size);
    }
}

static void ll_fill(ll *l, const bench_plan *plan, int round, const bench_values *v) {
    const bench *b = l->b;
    if (!is_slots(l)) {
        bench_fill_experts(b, plan, round, v, l->ein, 0, l->ein_scales, 0);
        return;
    }
    void *x = bench_alloc(b, ((size_t)plan->rows + 1) * b->row_bytes),
         *s = bench_alloc(b, ((size_t)plan->rows + 1) * b->scale_bytes);
    bench_fill_experts(b, plan, round, v, x, 0, s, 0);
    bench_ll_squeeze(plan, l->ein, b->row_bytes, 1, x);
    bench_ll_squeeze(plan, l->ein_scales, b->scale_bytes, 1, s);
    free(x);
    free(s);
}

static int ll_verify(ll *l, const bench_plan *plan, int round, int exact) {
    const bench *b = l->b;
    bench_values values;
    size_t k = (size_t)plan->k;
    bench_values_make(b, exact, &values);
    bench_fill_tokens(b, plan, round, l->o->x, l->o->x_scales);
    ll_fill(l, plan, round, &values);
    memset(l->out, 0xa5, (size_t)l->rows * b->row_bytes);
    memset(l->y, 0xa5, (size_t)plan->n * b->y_bytes);
    ll_route(l, plan);
    ll_dispatch(l, plan, 1);
    if (is_slots(l)) { /* in place: a row never moves up */
        bench_ll_squeeze(plan, l->out, b->row_bytes, 0, l->out);
        bench_ll_squeeze(plan, l->out_scales, b->scale_bytes, 0, l->out_scales);
        bench_ll_squeeze(plan, l->local_ids, k * sizeof(int), 0, l->local_ids);
        bench_ll_squeeze(plan, l->src_rank, sizeof(int), 0, l->src_rank);
        bench_ll_squeeze(plan, l->src_token, sizeof(MPI_Count), 0, l->src_token);
        bench_ll_squeeze(plan, l->weights, k * sizeof(float), 0, l->weights);
    }
    int good = bench_verify_received(b, plan, "ll", l->out, b->row_bytes,
                                     b->scale_bytes ? l->out_scales : NULL, b->scale_bytes,
                                     is_slots(l) && b->opt.metadata ? l->local_ids : NULL,
                                     l->src_rank, l->src_token, b->opt.metadata ? l->weights : NULL,
                                     round);
    ll_combine(l);
    /* The sums of a rank are rounded on their way, which only exact ones do not show. */
    if (exact)
        good &= bench_verify_sums(b, plan, "ll", l->y, round, 1, 1, 0);
    return good;
}

/* ---- the bare copy --------------------------------------------------------------------------- */

/* Areas in memory that MPI shares: [2] of flag and rows, written by the ranks before and behind. */
static int wire_open(ll *l) {
    const bench *b = l->b;
    ll_wire *w = &l->wire;
    MPI_Aint mine = (MPI_Aint)((l->plan->sent - (l->plan->pairs - l->plan->pairs_remote)) *
                               (long)b->row_bytes),
             most, size;
    int unit, next = (b->rank + 1) % b->size, prev = (b->rank + b->size - 1) % b->size;
    MPI_Allreduce(&mine, &most, 1, MPI_AINT, MPI_MAX, b->comm);
    if (b->hosts > 1 || b->size < 2)
        return 0;
    w->bytes = (size_t)most;
    MPI_Aint area = 64 + (most + 63) / 64 * 64;
    MPI_Win_allocate_shared(2 * area, 1, MPI_INFO_NULL, b->comm, &w->mine, &w->win);
    MPI_Win_shared_query(w->win, next, &size, &unit, &w->next);
    MPI_Win_shared_query(w->win, prev, &size, &unit, &w->prev);
    memset(w->mine, 0, (size_t)(2 * area));
    MPI_Barrier(b->comm);
    return 1;
}

static void wire_await(unsigned char *area, uint64_t round) {
    long spins = 0;
    while (atomic_load_explicit((_Atomic uint64_t *)(void *)area, memory_order_acquire) < round)
        if (++spins % 1000 == 0)
            sched_yield();
}

static void wire_put(unsigned char *area, const void *from, size_t bytes, uint64_t round) {
    memcpy(area + 64, from, bytes);
    atomic_store_explicit((_Atomic uint64_t *)(void *)area, round, memory_order_release);
}

/* This rank's rows to the next rank, which sends them back. */
static void wire_round(ll *l) {
    ll_wire *w = &l->wire;
    size_t area = 64 + (w->bytes + 63) / 64 * 64;
    w->round++;
    wire_put(w->next, l->o->x, w->bytes, w->round);
    wire_await(w->mine, w->round);
    wire_put(w->prev + area, w->mine + 64, w->bytes, w->round);
    wire_await(w->mine + area, w->round);
}

/* ---- times ----------------------------------------------------------------------------------- */

static void ll_call(ll *l, int kind, double sent[2]) {
    double phases[BASE_DISPATCH_PHASES];
    switch (kind) {
    case LL_ROUTE: ll_route(l, l->plan); break;
    case LL_DISPATCH: sent[0] = ll_dispatch(l, l->plan, 0); break;
    case LL_COMBINE: sent[1] = ll_combine(l); break;
    case LL_ROUTED:
        ll_route(l, l->plan);
        ll_dispatch(l, l->plan, 0);
        break;
    case LL_ALL: ll_route(l, l->plan); /* FALLTHROUGH */
    case LL_BOTH:
        ll_dispatch(l, l->plan, 0);
        ll_combine(l);
        break;
    case HT_DISPATCH:
    case HT_BOTH:
        bench_ours_route(l->b, l->o, l->plan, 0);
        bench_ours_dispatch(l->b, l->o, l->plan, 0, 0, NULL);
        if (kind == HT_BOTH)
            bench_ours_combine(l->b, l->o, l->plan, 0, NULL);
        break;
    case HT_COMBINE: bench_ours_combine(l->b, l->o, l->plan, 0, NULL); break;
    case MPI_DISPATCH: bench_base_dispatch(l->b, l->m, l->plan, phases); break;
    case MPI_COMBINE: bench_base_combine(l->b, l->m, l->plan, phases); break;
    case MPI_BOTH:
        bench_base_dispatch(l->b, l->m, l->plan, phases);
        bench_base_combine(l->b, l->m, l->plan, phases);
        break;
    default: wire_round(l);
    }
}

static void touch(void *memory, size_t bytes, int write) {
    volatile unsigned char *p = memory;
    unsigned char sum = 0;
    for (size_t i = 0; i < bytes; i += 64) {
        sum ^= p[i];
        if (write)
            p[i] = p[i];
    }
    static volatile unsigned char sink;
    sink = sum;
    (void)sink;
}

/* What a layer does between calls: reads what the last call of this kind gave, writes what
 * the next takes. */
static void ll_freshen(ll *l, int kind) {
    const bench *b = l->b;
    size_t tokens = (size_t)l->plan->n, rows = (size_t)l->plan->rows * b->row_bytes,
           area = 64 + (l->wire.bytes + 63) / 64 * 64;
    touch(l->o->x, tokens * b->row_bytes, 1);
    if (kind < HT_DISPATCH) {
        touch(l->out, (size_t)l->rows * b->row_bytes, 0);
        touch(l->ein, (size_t)l->rows * b->row_bytes, 1);
        touch(l->y, tokens * b->y_bytes, 0);
    } else if (kind <= HT_BOTH) {
        touch(l->o->buf[0].out, rows, 0);
        touch(l->o->buf[0].ein, rows, 1);
        touch(l->o->buf[0].y, tokens * b->y_bytes, 0);
    } else if (kind <= MPI_BOTH) {
        touch(l->m->out ? l->m->out : l->m->recv, rows, 0);
        touch(l->m->ein, (size_t)l->plan->rows * l->m->ein_stride, 1);
        touch(l->m->y, tokens * b->y_bytes, 0);
    } else {
        touch(l->wire.mine + area, l->wire.bytes, 0);
    }
}

static void ll_measure(ll *l, int blocks, const int *wanted) {
    const bench *b = l->b;
    for (int block = -1; block < blocks; block++) /* block -1: the warm-up */
        for (int kind = 0; kind < KINDS; kind++) {
            int calls = !wanted[kind] ? 0 : block < 0 ? b->opt.warmup : BENCH_BLOCK;
            for (int i = 0; i < calls; i++) {
                double sent[2] = {0, 0};
                ll_freshen(l, kind);
                MPI_Barrier(b->comm);
                double t0 = bench_now_us();
                ll_call(l, kind, sent);
                double t = bench_now_us() - t0;
                if (block < 0 || i < BENCH_DROP)
                    continue;
                int at = block * BENCH_KEEP + i - BENCH_DROP;
                l->samples[kind][at] = t;
                if (kind == LL_DISPATCH || kind == LL_COMBINE)
                    l->sent[kind == LL_COMBINE][at] = sent[kind == LL_COMBINE];
            }
        }
}

void bench_ll_line(const bench *b, long n, const char *name, const bench_stats *s, double against,
                   bench_result *r) {
    r->ll[r->nll++] = (bench_ll_time){name, *s, against > 0 ? against / s->median : 0};
    if (b->rank)
        return;
    printf("%-8ld %-36s %11.2f %11.2f %11.2f", n, name, s->min, s->median, s->p99);
    if (against > 0)
        printf(" %8.2fx", against / s->median);
    printf("\n");
}

static void ll_report(ll *l, long n, int samples, const int *wanted, bench_result *r) {
    const bench *b = l->b;
    bench_stats s[KINDS] = {0}, sent[2];
    for (int k = 0; k < KINDS; k++)
        if (wanted[k])
            s[k] = bench_stats_of(b, l->samples[k], samples);
    for (int i = 0; i < 2; i++)
        sent[i] = bench_stats_of(b, l->sent[i], samples);
    for (int k = 0; k < KINDS; k++) {
        if (!wanted[k])
            continue;
        bench_ll_line(b, n, kind_names[k], &s[k],
                      against(k) >= 0 && wanted[against(k)] ? s[against(k)].median : 0, r);
        if (k == LL_DISPATCH || k == LL_COMBINE)
            bench_ll_line(b, n,
                          k == LL_DISPATCH ? "  ll dispatch until sent" : "  ll combine until sent",
                          &sent[k == LL_COMBINE], 0, r);
    }
    if (b->rank == 0 && wanted[COPY_FLAG] && s[COPY_FLAG].median > 0)
        printf("# %ld tokens: both calls of LL take %.2f of the copies with flags\n", n,
               s[LL_BOTH].median / s[COPY_FLAG].median);
    fflush(stdout);
}

void bench_ll_head(const bench *b) {
    if (b->opt.validate)
        printf("# Verified against the routing: every row, and sums that are exact in float\n");
    printf("# Last column: %s's median over this one's\n#\n# %-6s %-36s %11s %11s %11s %9s\n",
           b->opt.baseline == BENCH_NCCL ? "NCCL" : "MPI", "Tokens", "Op", "Min", "Median", "P99",
           "Speedup");
    fflush(stdout);
}

int bench_ll_size(const bench *b, const bench_plan *plans, int rounds, long n, long capacity,
                  long recv_capacity, bench_result *r) {
    int blocks = (b->opt.iterations + BENCH_BLOCK - 1) / BENCH_BLOCK, samples = blocks * BENCH_KEEP,
        good = 1, wanted[KINDS];
    bench_ours o;
    bench_base base;
    bench_values values;
    ll l = {.b = b, .plan = &plans[0], .o = &o, .m = b->opt.baseline == BENCH_MPI ? &base : NULL};
    bench_ours_create(b, n, capacity, BENCH_ALLOC, NULL, &o);
    if (l.m)
        bench_base_create(b, &o, n, capacity, recv_capacity, l.m);
    ll_create(&l, n, capacity);
    for (int i = rounds - 1; b->opt.validate && i >= 0; i--) {
        good &= ll_verify(&l, &plans[i], i, i % 2 == 0);
        good &= bench_verify_ours(b, &o, &plans[i], 0, i, i % 2 == 0);
        if (l.m)
            good &= bench_verify_base(b, l.m, &plans[i], i, i % 2 == 0);
    }
    bench_fill_tokens(b, l.plan, 0, o.x, o.x_scales);
    bench_values_make(b, 0, &values);
    ll_fill(&l, l.plan, 0, &values);
    bench_fill_experts(b, l.plan, 0, &values, o.buf[0].ein, 0, o.buf[0].ein_scales, 0);
    if (l.m)
        bench_fill_experts(b, l.plan, 0, &values, l.m->ein, l.m->ein_stride,
                           l.m->ein + b->row_bytes, l.m->ein_stride);
    int wire = wire_open(&l);
    for (int k = 0; k < KINDS; k++) {
        wanted[k] = k < MPI_DISPATCH || (k < COPY_FLAG ? l.m != NULL : wire);
        l.samples[k] = bench_alloc(b, (size_t)samples * sizeof(double));
    }
    for (int i = 0; i < 2; i++)
        l.sent[i] = bench_alloc(b, (size_t)samples * sizeof(double));
    ll_route(&l, l.plan);
    ll_dispatch(&l, l.plan, 0);
    bench_ours_route(b, &o, l.plan, 0);
    if (l.m) {
        double phases[BASE_DISPATCH_PHASES];
        bench_base_dispatch(b, l.m, l.plan, phases);
    }
    ll_measure(&l, blocks, wanted);
    *r = (bench_result){.tokens = n, .samples = samples};
    ll_report(&l, n, samples, wanted, r);
    if (b->opt.validate) /* once more, after everything that happened */
        good &= ll_verify(&l, &plans[0], 0, 1);
    r->verified = b->opt.validate ? good : -1;
    if (!good && b->rank == 0)
        printf("# %ld tokens: VERIFICATION FAILED\n", n);
    for (int k = 0; k < KINDS; k++)
        free(l.samples[k]);
    free(l.sent[0]);
    free(l.sent[1]);
    if (wire)
        MPI_Win_free(&l.wire.win);
    ll_free(&l);
    if (l.m)
        bench_base_free(l.m);
    bench_ours_free(b, &o);
    return good;
}
