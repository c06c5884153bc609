/*
 * verify.c - checks what both sides deliver against the definitions in mpix_ep.h. Nothing of the
 * library is used for it: the plan gives the order of rows, and contents follow from (round, rank,
 * token). Outputs are poisoned before each call.
 *
 * Combine is checked twice: with small integers and weights of 1/2 and 1, where every order of
 * summation gives the same exact sum, so the result must be that sum rounded to y's dtype; and
 * with arbitrary values against sums in double with a bound: n products and n sums in float, each
 * with a relative error of at most 2^-24 of the sum of magnitudes (and one more for a scale),
 * then one rounding.
 */
#include "config.h"

#include "bench/bench.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { VERIFY_POISON = 0xa5, VERIFY_SHOWN = 5 };

typedef struct verify {
    const bench *b;
    const char *who;
    long faults;
} verify;

static void verify_fault(verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void verify_fault(verify *v, const char *fmt, ...) {
    char text[256];
    va_list ap;
    if (++v->faults > VERIFY_SHOWN)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "mpix_ep_bench: rank %d: %s: %s\n", v->b->rank, v->who, text);
}

static int verify_agree(verify *v) {
    long faults;
    if (v->faults > VERIFY_SHOWN)
        fprintf(stderr, "mpix_ep_bench: rank %d: %s: %ld faults in all\n", v->b->rank, v->who,
                v->faults);
    MPI_Allreduce(&v->faults, &faults, 1, MPI_LONG, MPI_SUM, v->b->comm);
    return faults == 0;
}

static int verify_is(const void *p, int byte, size_t n) {
    const unsigned char *c = p;
    return n == 0 || (c[0] == byte && !memcmp(c, c + 1, n - 1));
}

static void verify_poison(void *p, size_t n) {
    if (n)
        memset(p, VERIFY_POISON, n);
}

/* What a side delivered, in one form for both. NULL: not delivered. */
typedef struct verify_rows {
    const unsigned char *x, *scales;
    size_t stride, scale_stride;
    const int *local_ids, *src_rank;
    const MPI_Count *src_token;
    const float *weights;
} verify_rows;

static void verify_row_metadata(verify *v, const bench_plan *plan, const verify_rows *got, long i) {
    const bench *b = v->b;
    int k = plan->k, first = b->expert_begin[b->rank], local = bench_local_experts(b),
        s = plan->row_rank[i];
    long t = plan->row_token[i];
    size_t at = ((size_t)(s < 0 ? 0 : s) * (size_t)plan->n + (size_t)(t < 0 ? 0 : t)) * (size_t)k;
    if (got->src_rank && got->src_rank[i] != s)
        verify_fault(v, "row %ld: src_rank is %d, expected %d", i, got->src_rank[i], s);
    if (got->src_token && got->src_token[i] != t)
        verify_fault(v, "row %ld: src_token is %lld, expected %ld", i, (long long)got->src_token[i],
                     t);
    if (b->opt.layout == MPIX_EP_EXPERT) {
        float want = 0;
        for (int j = 0; s >= 0 && j < k; j++)
            if (plan->all_ids[at + (size_t)j] == plan->row_expert[i])
                want = plan->all_weights[at + (size_t)j];
        if (got->weights && memcmp(&got->weights[i], &want, sizeof want))
            verify_fault(v, "row %ld: weight is %.9g, expected %.9g", i, (double)got->weights[i],
                         (double)want);
        return;
    }
    for (int j = 0; j < k; j++) {
        int id = plan->all_ids[at + (size_t)j],
            want = id >= first && id < first + local ? id - first : -1;
        size_t here = (size_t)i * (size_t)k + (size_t)j;
        if (got->local_ids && got->local_ids[here] != want)
            verify_fault(v, "row %ld, choice %d: local id is %d, expected %d", i, j,
                         got->local_ids[here], want);
        if (got->weights &&
            memcmp(&got->weights[here], &plan->all_weights[at + (size_t)j], sizeof(float)))
            verify_fault(v, "row %ld, choice %d: weight is %.9g, expected %.9g", i, j,
                         (double)got->weights[here], (double)plan->all_weights[at + (size_t)j]);
    }
}

static void verify_dispatch(verify *v, const bench_plan *plan, const verify_rows *got, int round) {
    const bench *b = v->b;
    for (long i = 0; i < plan->rows; i++) {
        const unsigned char *row = got->x + (size_t)i * got->stride;
        const unsigned char *scales = b->scale_bytes ? got->scales + (size_t)i * got->scale_stride
                                                     : NULL;
        int s = plan->row_rank[i];
        size_t wrong;
        if (s < 0) {
            wrong = !verify_is(row, 0, b->row_bytes) +
                    (scales ? !verify_is(scales, 0, b->scale_bytes) : 0);
        } else {
            uint64_t seed = bench_token_seed(b, round, s, plan->row_token[i]);
            wrong = bench_bytes_check(row, b->row_bytes, seed);
            if (scales)
                wrong += bench_bytes_check(scales, b->scale_bytes, ~seed);
        }
        if (wrong)
            verify_fault(v, "row %ld (%s rank %d, token %ld): %zu wrong bytes", i,
                         s < 0 ? "padding," : "of", s, plan->row_token[i], wrong);
        verify_row_metadata(v, plan, got, i);
    }
}

/* How far y may be from the sum: see the head of the file. chained: partial sums were rounded to
 * the wire's dtype on the way. */
static double verify_bound(const bench *b, int terms, double sum, double mag, int chained) {
    double u = b->opt.dtype == MPIX_EP_F64 ? 0x1p-52 : 0x1p-24;
    double bound = (2 * terms + 2) * u * mag * 1.01 +
                   ldexp(fabs(sum), -bench_precision(b->ydtype)) * 1.01;
    if (chained)
        bound += ldexp(mag, -bench_precision(b->ydtype)) * 1.01;
    /* Below the normal numbers of y's dtype the rounding error is absolute. */
    return bound + (b->ydtype == MPIX_EP_F16 ? 0x1p-25 * (1 + chained * terms) : FLT_MIN);
}

/* The sum of token t in double; returns the number of rows that enter it. */
static int verify_sum(const bench *b, const bench_plan *plan, const bench_values *values, int round,
                      long t, double *sum, double *mag) {
    int terms = 0, k = plan->k, expert = b->opt.layout == MPIX_EP_EXPERT;
    memset(sum, 0, (size_t)b->opt.hidden * sizeof *sum);
    memset(mag, 0, (size_t)b->opt.hidden * sizeof *mag);
    for (int j = 0; j < k; j++) {
        int id = plan->ids[t * k + j], again = 0;
        if (id < 0)
            continue;
        int owner = b->expert_owner[id];
        for (int i = 0; i < j; i++)
            again |= plan->ids[t * k + i] >= 0 && b->expert_owner[plan->ids[t * k + i]] == owner;
        if (!expert && again) /* COMPACT: one row for all choices on a rank */
            continue;
        double w = expert && b->opt.metadata ? (double)plan->weights[t * k + j] : 1.0;
        bench_values_add(b, values, bench_expert_seed(b, round, expert ? id : owner, b->rank, t), w,
                         sum, mag);
        terms++;
    }
    return terms;
}

static void verify_combine(verify *v, const bench_plan *plan, const bench_values *values,
                           const void *y, int round, int exact, int chained) {
    const bench *b = v->b;
    double *sum = calloc((size_t)b->opt.hidden * 2, sizeof *sum), *mag = sum + b->opt.hidden;
    if (!sum)
        bench_die(b, "no memory to verify a token");
    for (long t = 0; t < plan->n; t++) {
        int terms = verify_sum(b, plan, values, round, t, sum, mag);
        const unsigned char *row = (const unsigned char *)y + (size_t)t * b->y_bytes;
        for (long c = 0; c < b->opt.hidden; c++) {
            double got = bench_decode(b->ydtype, row + (size_t)c * b->y_elem);
            if (got == sum[c])
                continue;
            /* Not only must it be near: written so that a NaN is a fault. */
            if (exact ? got == bench_round(b->ydtype, sum[c])
                      : fabs(got - sum[c]) <= verify_bound(b, terms, sum[c], mag[c], chained))
                continue;
            verify_fault(v, "combine: token %ld, column %ld (%d rows): %.9g, expected %.9g", t, c,
                         terms, got, sum[c]);
        }
    }
    free(sum);
}

static void verify_counts(verify *v, const bench_ours *o, const bench_plan *plan) {
    const bench *b = v->b;
    int local = bench_local_experts(b);
    long *send_rank = calloc((size_t)b->size + 1, sizeof(long)),
         *send_expert = calloc((size_t)b->opt.num_experts + 1, sizeof(long));
    unsigned char *in_rank = calloc((size_t)b->size + 1, 1);
    if (!send_rank || !send_expert || !in_rank)
        bench_die(b, "no memory to verify counts");
    if (o->recv_total != plan->rows)
        verify_fault(v, "recv_total is %lld, expected %ld", (long long)o->recv_total, plan->rows);
    for (int r = 0; r < b->size; r++)
        if (o->recv_per_rank[r] != plan->per_rank[r])
            verify_fault(v, "recv_per_rank[%d] is %lld, expected %ld", r,
                         (long long)o->recv_per_rank[r], plan->per_rank[r]);
    for (int e = 0; e < local; e++) {
        if (o->recv_per_expert[e] != plan->per_expert[e])
            verify_fault(v, "recv_per_expert[%d] is %lld, expected %ld", e,
                         (long long)o->recv_per_expert[e], plan->per_expert[e]);
        if (o->cumulative[e] != plan->per_expert[e] + 3)
            verify_fault(v, "cumulative[%d] is %lld, expected %ld", e, (long long)o->cumulative[e],
                         plan->per_expert[e] + 3);
    }
    for (int e = 0; b->opt.layout == MPIX_EP_EXPERT && e <= local; e++)
        if (o->expert_offset[e] != plan->offset[e])
            verify_fault(v, "expert_offset[%d] is %lld, expected %ld", e,
                         (long long)o->expert_offset[e], plan->offset[e]);
    for (long t = 0; t < plan->n; t++) {
        memset(in_rank, 0, (size_t)b->size);
        for (int j = 0; j < plan->k; j++)
            if (plan->ids[t * plan->k + j] >= 0) {
                send_expert[plan->ids[t * plan->k + j]]++;
                in_rank[b->expert_owner[plan->ids[t * plan->k + j]]] = 1;
            }
        if (memcmp(in_rank, o->token_in_rank + t * b->size, (size_t)b->size))
            verify_fault(v, "token_in_rank of token %ld is wrong", t);
        for (int r = 0; r < b->size; r++)
            send_rank[r] += in_rank[r];
    }
    for (int r = 0; r < b->size; r++)
        if (o->send_per_rank[r] != send_rank[r])
            verify_fault(v, "send_per_rank[%d] is %lld, expected %ld", r,
                         (long long)o->send_per_rank[r], send_rank[r]);
    for (int e = 0; e < b->opt.num_experts; e++)
        if (o->send_per_expert[e] != send_expert[e])
            verify_fault(v, "send_per_expert[%d] is %lld, expected %ld", e,
                         (long long)o->send_per_expert[e], send_expert[e]);
    free(in_rank);
    free(send_expert);
    free(send_rank);
}

static void verify_poison_ours(const bench *b, bench_ours *o, bench_buffers *buf) {
    size_t room = (size_t)o->capacity + 1, k = (size_t)b->opt.topk,
           local = (size_t)bench_local_experts(b), size = (size_t)b->size;
    verify_poison(buf->out, room * b->row_bytes);
    verify_poison(buf->out_scales, room * b->scale_bytes);
    if (b->has_combine)
        verify_poison(buf->y, ((size_t)o->n + 1) * b->y_bytes);
    verify_poison(o->local_ids, room * k * sizeof(int));
    verify_poison(o->src_rank, room * sizeof(int));
    verify_poison(o->src_token, room * sizeof(MPI_Count));
    verify_poison(o->weights, room * k * sizeof(float));
    verify_poison(&o->recv_total, sizeof o->recv_total);
    verify_poison(o->recv_per_rank, size * sizeof(MPI_Count));
    verify_poison(o->send_per_rank, size * sizeof(MPI_Count));
    verify_poison(o->recv_per_expert, local * sizeof(MPI_Count));
    verify_poison(o->expert_offset, (local + 1) * sizeof(MPI_Count));
    verify_poison(o->send_per_expert, (size_t)b->opt.num_experts * sizeof(MPI_Count));
    verify_poison(o->token_in_rank, (size_t)o->n * size);
    for (size_t e = 0; e < local; e++)
        o->cumulative[e] = 3;
}

int bench_verify_ours(const bench *b, bench_ours *o, const bench_plan *plan, int which, int round,
                      int exact) {
    bench_buffers *buf = &o->buf[which];
    verify v = {b, buf->from_ep ? "MPIX_Ep, memory of MPIX_Ep_alloc" : "MPIX_Ep, malloc'd memory",
                0};
    size_t guard = (size_t)(o->capacity + 1 - plan->rows);
    bench_fill_tokens(b, plan, round, o->x, o->x_scales);
    verify_poison_ours(b, o, buf);
    bench_ours_route(b, o, plan, 1);
    bench_ours_dispatch(b, o, plan, which, 1, NULL);
    verify_rows got = {buf->out, buf->out_scales, b->row_bytes, b->scale_bytes,
                       NULL,     o->src_rank,     o->src_token, NULL};
    if (b->opt.metadata) {
        got.local_ids = b->opt.layout == MPIX_EP_COMPACT ? o->local_ids : NULL;
        got.weights = o->weights;
    }
    verify_counts(&v, o, plan);
    verify_dispatch(&v, plan, &got, round);
    if (!verify_is((unsigned char *)buf->out + (size_t)plan->rows * b->row_bytes, VERIFY_POISON,
                   guard * b->row_bytes) ||
        (b->scale_bytes &&
         !verify_is((unsigned char *)buf->out_scales + (size_t)plan->rows * b->scale_bytes,
                    VERIFY_POISON, guard * b->scale_bytes)))
        verify_fault(&v, "dispatch wrote beyond recv_total");
    if (b->has_combine) {
        bench_values values;
        bench_values_make(b, exact, &values);
        bench_fill_experts(b, plan, round, &values, buf->ein, 0, buf->ein_scales, 0);
        bench_ours_combine(b, o, plan, which, NULL);
        verify_combine(&v, plan, &values, buf->y, round, exact && !o->chained, o->chained);
        if (!verify_is((unsigned char *)buf->y + (size_t)plan->n * b->y_bytes, VERIFY_POISON,
                       b->y_bytes))
            verify_fault(&v, "combine wrote beyond the last token");
    }
    return verify_agree(&v);
}

/* The baseline's partial sums on the experts' rank are rounded to the wire's dtype, so that only
 * the bound can be asked of it. */
int bench_verify_base(const bench *b, bench_base *m, const bench_plan *plan, int round, int exact) {
    verify v = {b, "MPI baseline", 0};
    int expert = b->opt.layout == MPIX_EP_EXPERT;
    double phases[BASE_DISPATCH_PHASES]; /* enough for either */
    bench_fill_tokens(b, plan, round, m->x, m->x_scales);
    verify_poison(m->recv, (size_t)m->recv_capacity * m->record);
    if (expert) {
        verify_poison(m->out, (size_t)m->capacity * b->row_bytes);
        verify_poison(m->out_scales, (size_t)m->capacity * b->scale_bytes);
    }
    bench_base_dispatch(b, m, plan, phases);
    if (m->rows != plan->rows)
        verify_fault(&v, "%ld rows, expected %ld", m->rows, plan->rows);
    verify_rows got = {expert ? m->out : m->recv,
                       expert ? m->out_scales : m->recv + b->row_bytes,
                       expert ? b->row_bytes : m->record,
                       expert ? b->scale_bytes : m->record,
                       NULL,
                       NULL,
                       NULL,
                       b->opt.metadata ? m->weights : NULL};
    if (b->opt.metadata && !expert)
        got.local_ids = m->local_ids;
    if (!v.faults)
        verify_dispatch(&v, plan, &got, round);
    if (b->has_combine) {
        bench_values values;
        bench_values_make(b, exact, &values);
        bench_fill_experts(b, plan, round, &values, m->ein, m->ein_stride, m->ein + b->row_bytes,
                           m->ein_stride);
        verify_poison(m->y, (size_t)plan->n * b->y_bytes);
        bench_base_combine(b, m, plan, phases);
        verify_combine(&v, plan, &values, m->y, round, exact && !expert, expert);
    }
    return verify_agree(&v);
}

int bench_verify_received(const bench *b, const bench_plan *plan, const char *who, const void *x,
                          size_t stride, const void *scales, size_t scale_stride,
                          const int *local_ids, const int *src_rank, const MPI_Count *src_token,
                          const float *weights, int round) {
    verify v = {b, who, 0};
    verify_rows got = {x, scales, stride, scale_stride, local_ids, src_rank, src_token, weights};
    verify_dispatch(&v, plan, &got, round);
    return verify_agree(&v);
}

int bench_verify_sums(const bench *b, const bench_plan *plan, const char *who, const void *y,
                      int round, int exact, int equal, int chained) {
    verify v = {b, who, 0};
    bench_values values;
    bench_values_make(b, exact, &values);
    verify_combine(&v, plan, &values, y, round, exact && equal, chained);
    return verify_agree(&v);
}
