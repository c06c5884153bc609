/*
 * ep_expert.c - the EXPERT layout in GPU memory, bit by bit against a context in host memory and,
 * where partial sums are rounded, against a sum in double with a bound; with conversion of
 * dispatched rows to fp8 in both layouts.
 *
 *   ep_expert [rounds [first round]]
 */
#include "batch.h"

#include <math.h>

/* The sum of a token in double, and what rounding may add to it. */
typedef struct exact {
    double *sum, *part, *size, *rounded; /* of columns; part: one rank's */
} exact;

/* Adds what the experts of rank r made of token t. */
static void exact_add(const batch *b, int64_t t, int r, exact *e, char *z) {
    const shape *s = b->s;
    const float *w = (const void *)b->w.host;
    memset(e->part, 0, (size_t)s->hidden * 8);
    for (int k = 0; k < s->topk; k++) {
        int64_t id = batch_id(b, t, k);
        if (id < 0 || b->plan->owner[id] != r)
            continue;
        batch_back(b, id, t_rank, t, z);
        for (int64_t j = 0; j < s->hidden; j++) {
            double v = ref_load(s->zdtype, z, j) * (s->choicew ? w[t * s->topk + k] : 1);
            e->part[j] += v;
            e->size[j] += fabs(v);
        }
    }
    for (int64_t j = 0; j < s->hidden; j++) {
        e->sum[j] += e->part[j];
        e->rounded[j] += r == t_rank ? 0 : fabs(e->part[j]);
    }
}

/* Gives 0 when a column is farther from the sum than roundings explain. */
static int exact_holds(const batch *b, int64_t t, const exact *e, const char *row) {
    const shape *s = b->s;
    double unit = s->zdtype == MPIX_EP_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t j = 0; j < s->hidden; j++) {
        double got = ref_load(s->ydtype, row, j);
        double most = unit * (e->rounded[j] + fabs(e->sum[j])) * 1.01 + 0x1p-19 * e->size[j];
        if (!CHECK(fabs(got - e->sum[j]) <= most + 0x1p-24,
                   "token %lld column %lld: %g, in double %g, allowed %g", (long long)t,
                   (long long)j, got, e->sum[j], most))
            return 0;
    }
    return 1;
}

/* Partial sums were rounded once: against a sum in double. */
static void bound_check(const batch *b) {
    const shape *s = b->s;
    size_t columns = (size_t)s->hidden * 8;
    char *got = malloc(b->y.bytes + 16), *z = malloc(columns);
    exact e = {malloc(columns), malloc(columns), malloc(columns), malloc(columns)};
    int holds = 1;
    CU(cudaMemcpy(got, b->y.dev, b->y.bytes, cudaMemcpyDefault));
    for (int64_t t = 0; holds && t < s->tokens[t_rank]; t++) {
        memset(e.sum, 0, columns);
        memset(e.size, 0, columns);
        memset(e.rounded, 0, columns);
        for (int r = 0; r < t_size; r++)
            exact_add(b, t, r, &e, z);
        holds = exact_holds(b, t, &e, got + (size_t)t * b->yrow);
    }
    free(got), free(z), free(e.sum), free(e.part), free(e.size), free(e.rounded);
}

static void run_batch(const shape *s, const side *gpu, const side *host) {
    batch *b = batch_open(s, gpu, host);
    batch_dispatch(b, 0);
    if (s->layout == MPIX_EP_EXPERT && s->zdtype != MPIX_EP_BYTES) {
        batch_combine(b, 0);
        if (s->inexact && !s->roww && !s->bias && s->overflow == MPIX_EP_OVERFLOW_ERROR)
            bound_check(b);
    }
    batch_close(b);
}

/* Too little room and rows that differ: told alike, and the context goes on. */
static void run_errors(MPIX_Ep gpu, MPIX_Ep_handle h) {
    both ids = both_make(4 * 4, NULL), x = both_make(4 * 64, NULL), o = both_make(256 * 64, gpu);
    side s = {.ep = gpu, .h = h};
    side_init(&s);
    CU(cudaMemset(ids.dev, 0, 16));
    s.r.num_tokens = 4;
    s.r.topk = 1;
    s.r.ids = ids.dev;
    EP(MPIX_Ep_route(h, &s.r, NULL));
    s.in.hidden = 32;
    s.in.x = (MPIX_Ep_rows){x.dev, 0, MPIX_EP_BF16, 0, NULL, 0};
    s.out.x.data = o.dev;
    s.out.capacity_rows = 3; /* rank 0 gets 4 * size */
    int kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(kind == (t_rank == 0 ? MPIX_ERRK_TRUNCATE : MPIX_ERRK_REMOTE),
          "too little room on rank 0: kind %d", kind);
    s.out.capacity_rows = 256;
    s.in.hidden = t_rank == t_size - 1 && t_size > 1 ? 16 : 32;
    kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(t_size == 1 || kind == MPIX_ERRK_ARG || kind == MPIX_ERRK_REMOTE,
          "hidden differs: kind %d", kind);
    s.in.hidden = 32;
    EP(MPIX_Ep_dispatch(h, &s.in, &s.out));
    s.ci.hidden = 32;
    s.ci.x = s.in.x;
    s.ci.x.data = o.dev;
    s.co.y.data = x.dev;
    s.co.slot_values = (float *)(void *)ids.dev; /* nobody gives any */
    kind = g_kind(MPIX_Ep_combine(h, &s.ci, &s.co));
    CHECK(kind == MPIX_ERRK_ARG, "slot values that nobody gives: kind %d", kind);
    s.co.slot_values = NULL;
    EP(MPIX_Ep_combine(h, &s.ci, &s.co));
    both_free(&o), both_free(&x), both_free(&ids);
}

/* Rows become fp8 on the way. */
static void shape_convert(shape *s, uint64_t *rng) {
    static const int from[] = {MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_F16, MPIX_EP_F32};
    s->dtype = from[g_range(rng, 0, 3)];
    s->scales = 0;
    s->odtype = g_range(rng, 0, 1) ? MPIX_EP_F8E4M3 : MPIX_EP_F8E5M2;
    s->oscales = (int)g_range(rng, 1, 2);
    if (g_range(rng, 0, 1))
        s->layout = MPIX_EP_COMPACT;
    s->odd = s->dtype != s->odtype;
}

static void shape_make(shape *s, int i) {
    static const int dtypes[] = {MPIX_EP_BF16,   MPIX_EP_BF16,   MPIX_EP_BF16,
                                 MPIX_EP_F32,    MPIX_EP_F16,    MPIX_EP_BYTES,
                                 MPIX_EP_F8E4M3, MPIX_EP_F8E5M2, MPIX_EP_F64};
    uint64_t rng = g_mix((uint64_t)i + 1717);
    *s = (shape){.seed = rng, .mode = MPIX_EP_HT, .layout = MPIX_EP_EXPERT, .turns = 1, .reps = 2};
    s->dtype = s->odtype = s->zdtype = dtypes[i % 9];
    s->experts = (int)g_range(&rng, t_size, i % 4 == 1 ? 200 : 24);
    s->topk = (int)g_range(&rng, 1, s->experts < 8 ? s->experts : 8);
    s->holes = g_range(&rng, 0, 2) ? 0 : 40;
    s->hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300)
                : i % 10 == 9            ? 7168 / 4 * g_range(&rng, 1, 4)
                                         : 8 * g_range(&rng, 1, 200);
    s->scales = s->oscales = s->zscales = is_fp8(s->dtype) ? (int)g_range(&rng, 0, 2) : 0;
    s->ydtype = is_fp8(s->zdtype) || s->zdtype == MPIX_EP_BYTES ? MPIX_EP_BF16
                : g_range(&rng, 0, 3)                           ? s->zdtype
                                                                : MPIX_EP_F32;
    s->pad = g_range(&rng, 0, 1) ? 16 : 0;
    s->weights = (int)g_range(&rng, 0, 1);
    s->slots = (int)g_range(&rng, 0, 1);
    s->roww = g_range(&rng, 0, 2) == 0;
    s->choicew = (int)g_range(&rng, 0, 1);
    s->bias = g_range(&rng, 0, 2) == 0 ? (int)g_range(&rng, 1, 2) : 0;
    int half = s->zdtype == MPIX_EP_BF16 || s->zdtype == MPIX_EP_F16;
    int exact = g_range(&rng, 0, 1) && (half || s->zdtype == MPIX_EP_F32 || is_fp8(s->zdtype));
    s->wire = exact ? MPIX_EP_F32 : 0;
    s->inexact = half && !exact && t_size > 1;
    s->form = (int)g_range(&rng, 0, FORMS - 1);
    s->bits = g_range(&rng, 0, 1) ? 64 : 32;
    s->align = g_range(&rng, 0, 1) ? (int)g_range(&rng, 1, 16) : 1;
    s->overflow = g_range(&rng, 0, 4) == 0 ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
    s->keep = 8;
    if (s->overflow == MPIX_EP_OVERFLOW_DROP)
        s->keep = g_range(&rng, 0, 8);
    else
        s->spare = g_range(&rng, 0, 5);
    for (int r = 0; r < t_size; r++)
        s->tokens[r] = g_range(&rng, 0, 3) == 0 ? 0 : g_range(&rng, 1, i % 5 == 4 ? 700 : 60);
    s->gaps = i % 10 == 4; /* and so many tokens that the ring is used (gpu_partial_bytes = 0) */
    for (int r = 0; s->gaps && r < t_size; r++)
        s->tokens[r] = 700 - s->tokens[r] % 100;
    if (i % 3 == 2)
        shape_convert(s, &rng);
    s->counts = 1 << RECV_TOTAL | 1 << RECV_RANK | 1 << RECV_EXPERT | 1 << SEND_RANK |
                1 << SEND_EXPERT | (s->layout == MPIX_EP_EXPERT) << OFFSET;
}

static void config_make(MPIX_Ep_config *c, const shape *s) {
    int64_t x = (int64_t)ref_size(s->dtype), z = (int64_t)ref_size(s->zdtype);
    MPIX_INIT(c);
    c->expert_owner = s->owner;
    c->layout = s->layout;
    c->expert_align = s->layout == MPIX_EP_EXPERT ? s->align : 1;
    c->overflow = s->overflow;
    c->max_topk = 8;
    c->num_experts = s->experts;
    c->max_tokens = 700;
    c->max_row_bytes = s->hidden * 8 + 1024 < 40000 ? s->hidden * 8 + 1024
                                                    : 40000; /* memory for proxied peers */
    if (s->wire == MPIX_EP_F32 && z < 4)
        z = 4;
    if (s->gaps) /* rows as large as the context may have, for the ring */
        c->max_row_bytes = s->hidden * (x > z ? x : z) + (s->hidden + 127) / 128 * 4;
    c->timeout_s = 60;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 60, first = argc > 2 ? atoi(argv[2]) : 0;
    batch_program(&argc, &argv, "ep_expert");
    for (int i = first; i < first + rounds; i++) {
        MPIX_Ep_config c;
        int32_t owner[300];
        shape s;
        side gpu, host;
        shape_make(&s, i);
        for (int e = 0; e < s.experts; e++) /* every third time not in contiguous blocks */
            owner[e] = i % 3 == 0 && e ? (int)(g_mix(s.seed + (uint64_t)e) % (uint64_t)t_size)
                                       : (int)((int64_t)e * t_size / s.experts);
        s.owner = owner;
        t_watchdog(250);
        t_where("round %d: dtype %d -> %d (scales %d), sums of %d, hidden %lld experts %d topk %d "
                "align %d tokens %lld form %d wire %d overflow %d layout %d",
                i, s.dtype, s.odtype, s.oscales, s.zdtype, (long long)s.hidden, s.experts, s.topk,
                s.align, (long long)s.tokens[t_rank], s.form, s.wire, s.overflow, s.layout);
        config_make(&c, &s);
        batch_contexts(&c, i % 4 == 3 ? 1 + i % 20 : 0, &gpu, &host);
        run_batch(&s, &gpu, &host);
        if (i == 0)
            run_errors(gpu.ep, gpu.h);
        batch_contexts_free(&gpu, &host);
    }
    return t_end();
}
