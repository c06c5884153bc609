/*
 * call_combine.c - combine, prepared and checked: every element against the sum in the order that
 * the header gives.
 */
#include "call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_ROW = 100, SEED_SCALES, SEED_ROW_WEIGHT, SEED_TOPK_WEIGHT, SEED_SLOT, SEED_BIAS };

static int64_t dense(const t_shape *s) { return s->hidden * (int64_t)ref_size(s->dtype); }

/* The experts' rows, with contents by (rank, row). Padding and gaps are NaN in every type: a sum
 * that reads them shows. */
static void prepare_rows(t_call *call, t_rng *own) {
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    const t_shape *s = &call->shape;
    int64_t n = call->limit, size = (int64_t)ref_size(s->dtype),
            scales = (int64_t)ref_scales(s->scale_kind, s->hidden);
    in->x = (MPIX_Ep_rows){.dtype = s->dtype, .scale_kind = s->scale_kind};
    in->x.stride = t_stride(dense(s), size, own);
    int64_t step = in->x.stride ? in->x.stride : dense(s), scale_step = 0;
    size_t bytes = n ? (size_t)((n - 1) * step + dense(s)) : 0;
    in->x.data = t_call_buf(call, "in.x", bytes, (size_t)size, 1, own);
    memset(in->x.data ? in->x.data : (void *)&step, 0xff, in->x.data ? bytes : 0);
    if (scales) {
        int64_t unit = s->scale_kind == MPIX_EP_SCALES_F32 ? 4 : 1;
        in->x.scale_stride = t_stride(scales, unit, own);
        scale_step = in->x.scale_stride ? in->x.scale_stride : scales;
        in->x.scales = t_call_buf(call, "in.x.scales",
                                  n ? (size_t)((n - 1) * scale_step + scales) : 0, (size_t)unit, 1,
                                  own);
    }
    for (int64_t i = 0; i < n; i++) {
        if (call->plan->rows[t_rank][i].src < 0)
            continue;
        ref_fill(t_row_seed(s->seed, t_rank, i, SEED_ROW), s->dtype, s->hidden, s->flavour,
                 (char *)in->x.data + i * step);
        if (scales)
            ref_fill_scales(t_row_seed(s->seed, t_rank, i, SEED_SCALES), s->scale_kind, s->hidden,
                            (char *)in->x.scales + i * scale_step);
    }
    t_call_input(call, in->x.data);
    t_call_input(call, in->x.scales);
}

static void prepare_weights(t_call *call, t_rng *own) {
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    const ref_plan *plan = call->plan;
    const t_shape *s = &call->shape;
    int compact = plan->layout != MPIX_EP_EXPERT;
    int64_t n = call->limit, choices = plan->ntok[t_rank] * plan->topk;
    if (t_gives_row_weights(s, t_rank)) {
        float *w = t_call_buf(call, "in.row_weights", (size_t)n * 4, 4, 0, own);
        for (int64_t i = 0; i < n; i++)
            w[i] = ref_weight(t_row_seed(s->seed, t_rank, i, SEED_ROW_WEIGHT));
        in->row_weights = t_call_input(call, w);
    }
    if (!compact && call->handle->ctx->config.mode == MPIX_EP_HT && t_chance(own, 50)) {
        float *w = t_call_buf(call, "in.topk_weights", (size_t)choices * 4, 4, 0, own);
        for (int64_t i = 0; i < choices; i++)
            w[i] = ref_weight(t_row_seed(s->seed, t_rank, i, SEED_TOPK_WEIGHT));
        in->topk_weights = t_call_input(call, w);
    }
    if (s->slot_values) {
        int64_t width = compact ? plan->topk : 1;
        float *v = t_call_buf(call, "in.slot_values", (size_t)(n * width) * 4, 4, 0, own);
        for (int64_t i = 0; i < n * width; i++)
            v[i] = ref_weight(t_row_seed(s->seed, t_rank, i, SEED_SLOT));
        static const float none;
        /* on all ranks or none: also where there are no rows */
        in->slot_values = v ? t_call_input(call, v) : &none;
    }
}

static void prepare_bias(t_call *call, t_rng *own) {
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    int64_t n = call->plan->ntok[t_rank], size = (int64_t)ref_size(call->u.combine.ydtype),
            row = call->shape.hidden * size;
    in->num_bias = t_chance(own, 50) ? 0 : (int)t_range(own, 1, 2);
    for (int b = 0; b < in->num_bias; b++) {
        in->bias[b].dtype = call->u.combine.ydtype;
        in->bias[b].stride = t_stride(row, size, own);
        int64_t step = in->bias[b].stride ? in->bias[b].stride : row;
        in->bias[b].data = t_call_buf(call, b ? "in.bias[1]" : "in.bias[0]",
                                      n ? (size_t)((n - 1) * step + row) : 0, (size_t)size, 1, own);
        for (int64_t t = 0; t < n; t++)
            ref_fill(t_row_seed(call->shape.seed, t_rank, t, SEED_BIAS + b), call->u.combine.ydtype,
                     call->shape.hidden,
                     call->shape.flavour == REF_RAW ? REF_MIXED : call->shape.flavour,
                     (char *)in->bias[b].data + t * step);
        t_call_input(call, in->bias[b].data);
    }
}

t_call *t_call_combine(t_handle *handle, const t_shape *shape, t_rng *own) {
    static const int ydtypes[] = {MPIX_EP_F64, MPIX_EP_F32, MPIX_EP_F16, MPIX_EP_BF16};
    t_call *call = t_call_new(handle, T_COMBINE);
    const ref_plan *plan = call->plan;
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    MPIX_Ep_combine_out *out = &call->u.combine.out;
    int64_t n = plan->ntok[t_rank];
    int same = ref_size(shape->dtype) > 1 && t_chance(own, 60);
    call->shape = *shape;
    call->limits = handle->limit;
    call->limit = call->limits[t_rank];
    call->u.combine.ydtype = same ? shape->dtype : ydtypes[t_range(own, 0, 3)];
    MPIX_INIT(in);
    MPIX_INIT(out);
    in->hidden = shape->hidden;
    in->wire = shape->float_sums && shape->dtype != MPIX_EP_F64 ? MPIX_EP_F32
               : t_chance(own, 50)                              ? 0
                                                                : shape->dtype;
    if (handle->ctx->config.mode == MPIX_EP_LL)
        in->wire = shape->wire;
    prepare_rows(call, own);
    prepare_weights(call, own);
    prepare_bias(call, own);
    int64_t size = (int64_t)ref_size(call->u.combine.ydtype), row = shape->hidden * size;
    out->y.dtype = same && t_chance(own, 50) ? 0 : call->u.combine.ydtype;
    out->y.stride = t_stride(row, size, own);
    int64_t step = out->y.stride ? out->y.stride : row;
    out->y.data = t_call_buf(call, "out.y", n ? (size_t)((n - 1) * step + row) : 0, (size_t)size, 1,
                             own);
    if (shape->slot_values && t_chance(own, 80))
        out->slot_values = t_call_buf(call, "out.slot_values", (size_t)(n * plan->topk) * 4, 4, 0,
                                      own);
    if (t_chance(own, 30)) {
        out->wait_ns = t_call_buf(call, "out.wait_ns", (size_t)t_size * 8, 8, 0, own);
        for (int r = 0; r < t_size; r++)
            out->wait_ns[r] = 77 + r;
    }
    return call;
}

/* The terms of one token's sum, in order: ranks ascending, choices ascending, a COMPACT row once.
 * Gives their number. */
static int terms_of(t_call *call, int64_t token, ref_term *terms, char *contents, size_t bytes,
                    size_t pitch) {
    const ref_plan *plan = call->plan;
    const t_shape *s = &call->shape;
    int n = 0;
    for (int r = 0; r < plan->ranks; r++) {
        int64_t last = -1;
        for (int k = 0; k < plan->topk; k++) {
            int64_t e = ref_choice(plan, t_rank, token, k),
                    row = plan->place[token * plan->topk + k];
            if (e < 0 || plan->owner[e] != r || row >= call->limits[r])
                continue;
            if (plan->layout != MPIX_EP_EXPERT && row == last)
                continue;
            last = row;
            ref_term *term = &terms[n];
            char *x = contents + (size_t)n++ * pitch;
            ref_fill(t_row_seed(s->seed, r, row, SEED_ROW), s->dtype, s->hidden, s->flavour, x);
            ref_fill_scales(t_row_seed(s->seed, r, row, SEED_SCALES), s->scale_kind, s->hidden,
                            x + bytes);
            *term = (ref_term){.x = x, .scales = s->scale_kind ? x + bytes : NULL, .group = r};
            if (t_gives_row_weights(s, r))
                term->w[term->nw++] = ref_weight(t_row_seed(s->seed, r, row, SEED_ROW_WEIGHT));
            if (call->u.combine.in.topk_weights)
                term->w[term->nw++] = ref_weight(
                    t_row_seed(s->seed, t_rank, token * plan->topk + k, SEED_TOPK_WEIGHT));
        }
    }
    return n;
}

/* Mode LL: a rank's part of the sum is rounded to the wire's dtype. Replaces the terms by those
 * parts; gives their number. */
static int parts_of(const t_call *call, int nterms, ref_term *terms, int wire, char *parts) {
    const t_shape *s = &call->shape;
    int n = 0;
    for (int i = 0, end; i < nterms; i = end) {
        int group = terms[i].group;
        for (end = i; end < nterms && terms[end].group == group; end++)
            ;
        char *part = parts + (size_t)n * (size_t)s->hidden * 8;
        ref_sum(end - i, terms + i, s->dtype, s->scale_kind, 0, NULL, wire, s->hidden, part);
        terms[n++] = (ref_term){.x = part, .group = group};
    }
    return n;
}

/* Two hops: the other hosts' sums are rounded to the wire's dtype, and added behind the rows of
 * this host, hosts ascending. Own rows are one part in float if their type is another. Replaces the
 * terms; gives their number and *dtype. */
static int host_parts_of(const t_call *call, int nterms, ref_term *terms, int wire, char *parts,
                         int *dtype) {
    const t_shape *s = &call->shape;
    ref_term all[65];
    int n = 0, own = 0, far = 0;
    REQUIRE(nterms <= 64, "more terms than there is room for");
    for (int i = 0; i < nterms; i++) {
        own += t_host_of[terms[i].group] == t_host_of[t_rank];
        all[i] = terms[i];
    }
    far = nterms - own;
    *dtype = s->dtype;
    for (int h = -1; h < t_hosts && far; h++) { /* -1: the own host, which comes first */
        ref_term rows[65];
        int m = 0, mine = h < 0;
        for (int i = 0; i < nterms; i++)
            if (t_host_of[all[i].group] == (mine ? t_host_of[t_rank] : h) &&
                mine == (t_host_of[all[i].group] == t_host_of[t_rank]))
                rows[m++] = all[i];
        if (m == 0)
            continue;
        if (mine && wire == s->dtype) { /* as they are */
            for (int i = 0; i < m; i++)
                terms[n++] = rows[i];
            continue;
        }
        char *part = parts + (size_t)n * (size_t)s->hidden * 8;
        int to = mine ? MPIX_EP_F32 : wire;
        ref_sum(m, rows, s->dtype, s->scale_kind, 0, NULL, to, s->hidden, part);
        *dtype = own && wire != s->dtype ? MPIX_EP_F32 : wire;
        if (to != *dtype) { /* widened, which changes no value */
            ref_term narrow = {.x = part};
            char *wide = parts + (size_t)(65 + n) * (size_t)s->hidden * 8;
            ref_sum(1, &narrow, to, 0, 0, NULL, *dtype, s->hidden, wide);
            part = wide;
        }
        terms[n++] = (ref_term){.x = part, .group = t_size + 1 + h};
    }
    return far ? n : nterms;
}

/* How far a sum that was rounded on the way may be from the same sum in double: half a unit in the
 * last place for each rounding, and float's for each step of float sums. Only for numbers of
 * ordinary size. */
static void check_error(t_call *call, int64_t token, int nterms, const ref_term *terms, int wire) {
    static const int bits[] = {0, 53, 24, 11, 8};
    const t_shape *s = &call->shape;
    const MPIX_Ep_combine_in *in = &call->u.combine.in;
    const MPIX_Ep_rows *y = &call->u.combine.out.y;
    int ydtype = call->u.combine.ydtype;
    int64_t row = s->hidden * (int64_t)ref_size(ydtype);
    const char *got = (const char *)y->data + token * (y->stride ? y->stride : row);
    if (s->flavour != REF_MIXED || s->scale_kind || ydtype == MPIX_EP_F16 || wire == MPIX_EP_F16)
        return;
    for (int64_t c = 0; c < s->hidden; c++) {
        double sum = 0, size = 0;
        for (int i = 0; i < nterms; i++) {
            double x = ref_load(s->dtype, terms[i].x, c) *
                       (terms[i].nw ? (double)terms[i].w[0] : 1) *
                       (terms[i].nw > 1 ? (double)terms[i].w[1] : 1);
            sum += x;
            size += fabs(x);
        }
        for (int b = 0; b < in->num_bias; b++) {
            double x = ref_load(ydtype,
                                (const char *)in->bias[b].data +
                                    token * (in->bias[b].stride ? in->bias[b].stride : row),
                                c);
            sum += x;
            size += fabs(x);
        }
        double off = fabs(ref_load(ydtype, got, c) - sum),
               most = size * (ldexp(1.01, -bits[wire]) + ldexp(1.01, -bits[ydtype]) +
                              (nterms + 4) * ldexp(1, -24)) +
                      1e-37;
        if (isfinite(size) && size < 1e37 &&
            !CHECK(off <= most, "y[%lld][%lld] is %g from the sum in double, at most %g",
                   (long long)token, (long long)c, off, most))
            return;
    }
}

static void check_token(t_call *call, int64_t token, int nterms, const ref_term *terms, int xdtype,
                        int scale_kind, void *expect) {
    const MPIX_Ep_combine_in *in = &call->u.combine.in;
    const MPIX_Ep_rows *y = &call->u.combine.out.y;
    int ydtype = call->u.combine.ydtype;
    int64_t hidden = call->shape.hidden, row = hidden * (int64_t)ref_size(ydtype),
            step = y->stride ? y->stride : row;
    const char *got = (const char *)y->data + token * step;
    const void *bias[2] = {NULL, NULL};
    for (int b = 0; b < in->num_bias; b++)
        bias[b] = (const char *)in->bias[b].data +
                  token * (in->bias[b].stride ? in->bias[b].stride : row);
    ref_sum(nterms, terms, xdtype, scale_kind, in->num_bias, bias, ydtype, hidden, expect);
    for (int64_t i = 0; i < hidden; i++)
        if (!CHECK(ref_same(ydtype, got, expect, i),
                   "y[%lld][%lld] (%s) is %a, expected %a; %d terms, %d bias rows",
                   (long long)token, (long long)i, ref_name(ydtype), ref_load(ydtype, got, i),
                   ref_load(ydtype, expect, i), nterms, in->num_bias))
            break;
    const t_buf *buf = t_call_find(call, y->data);
    size_t end = (size_t)(token * step + row), gap = (size_t)(step - row);
    if (end + gap <= buf->n)
        CHECK(t_untouched(buf, end, gap), "the gap after y[%lld] was written", (long long)token);
}

static void check_slots(t_call *call) {
    const ref_plan *plan = call->plan;
    const float *got = call->u.combine.out.slot_values;
    for (int64_t t = 0; got && t < plan->ntok[t_rank]; t++)
        for (int k = 0; k < plan->topk; k++) {
            int64_t i = t * plan->topk + k, e = ref_choice(plan, t_rank, t, k),
                    row = plan->place[i];
            float expect = 0;
            if (e >= 0 && row < call->limits[plan->owner[e]])
                expect = ref_weight(
                    t_row_seed(call->shape.seed, plan->owner[e],
                               plan->layout != MPIX_EP_EXPERT ? row * plan->topk + k : row,
                               SEED_SLOT));
            CHECK(memcmp(&got[i], &expect, 4) == 0, "slot_values[%lld][%d] %g, expected %g",
                  (long long)t, k, (double)got[i], (double)expect);
        }
}

void t_check_combine(t_call *call) {
    const ref_plan *plan = call->plan;
    const t_shape *s = &call->shape;
    size_t bytes = ((size_t)dense(s) + 7) / 8 * 8,
           pitch = (bytes + ref_scales(s->scale_kind, s->hidden) + 15) / 8 * 8;
    char *contents = malloc(pitch * (size_t)(plan->topk + 1)),
         *expect = malloc((size_t)s->hidden * 8);
    ref_term *terms = malloc((size_t)(plan->topk + 1) * sizeof *terms);
    REQUIRE(contents && expect && terms, "no memory for the terms of a sum");
    int ll = call->handle->ctx->config.mode == MPIX_EP_LL, wire = s->wire ? s->wire
                                                                  : s->dtype > MPIX_EP_BF16
                                                                      ? MPIX_EP_BF16
                                                                      : s->dtype;
    int hops = t_two_hops() && !ll;
    if (hops && call->u.combine.in.wire == MPIX_EP_F32)
        wire = MPIX_EP_F32;
    char *parts = malloc((size_t)s->hidden * 8 * 130);
    REQUIRE(parts, "no memory for the parts of a sum");
    for (int64_t t = 0; t < plan->ntok[t_rank]; t++) {
        int n = terms_of(call, t, terms, contents, bytes, pitch);
        if (ll) {
            check_error(call, t, n, terms, wire);
            n = parts_of(call, n, terms, wire, parts);
        }
        int dtype = ll ? wire : s->dtype;
        if (hops) {
            check_error(call, t, n, terms, wire);
            n = host_parts_of(call, n, terms, wire, parts, &dtype);
        }
        check_token(call, t, n, terms, dtype,
                    ll || dtype != s->dtype ? MPIX_EP_NO_SCALES : s->scale_kind, expect);
    }
    free(parts);
    check_slots(call);
    for (int r = 0; call->u.combine.out.wait_ns && r < t_size; r++)
        CHECK(call->u.combine.out.wait_ns[r] >= 77 + r &&
                  call->u.combine.out.wait_ns[r] < INT64_C(300000000000),
              "wait_ns[%d] %lld", r, (long long)call->u.combine.out.wait_ns[r]);
    free(contents);
    free(expect);
    free(terms);
}
