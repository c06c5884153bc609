/*
 * call_dispatch.c - dispatch, prepared and checked, bit by bit.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

enum { SEED_ROW, SEED_SCALES, SEED_WEIGHT, SEED_OLD };

/* The array of rows for n rows, with the scales' bytes; strides are drawn. */
static MPIX_Ep_rows new_rows(t_call *call, const char *name, const char *scales_name, int64_t n,
                             int dtype, int scale_kind, t_rng *own) {
    const t_shape *s = &call->shape;
    int64_t size = (int64_t)ref_size(dtype), row = s->hidden * size,
            scales = (int64_t)ref_scales(scale_kind, s->hidden);
    MPIX_Ep_rows rows = {.dtype = dtype, .scale_kind = scale_kind};
    rows.stride = t_stride(row, size, own);
    int64_t step = rows.stride ? rows.stride : row;
    rows.data = t_call_buf(call, name, n ? (size_t)((n - 1) * step + row) : 0, (size_t)size, 1,
                           own);
    if (scales) {
        int64_t unit = scale_kind == MPIX_EP_SCALES_F32 ? 4 : 1;
        rows.scale_stride = t_stride(scales, unit, own);
        step = rows.scale_stride ? rows.scale_stride : scales;
        rows.scales = t_call_buf(call, scales_name, n ? (size_t)((n - 1) * step + scales) : 0,
                                 (size_t)unit, 1, own);
    }
    return rows;
}

static int to_dtype(const t_shape *s) { return s->to ? s->to : s->dtype; }
static int to_scale(const t_shape *s) { return s->to ? s->to_scale : s->scale_kind; }

/* Capacity of a rank: everybody can compute it. */
static int64_t capacity_of(const t_shape *s, int rank, int64_t rows) {
    uint64_t h = t_hash2(s->seed, 5000u + (uint64_t)rank);
    if (s->drop_percent > 0 && h & 1) /* one row less at least */
        return rows > 0
                   ? (rows - 1) * (100 - (int64_t)(h >> 8 & 0xffff) % (s->drop_percent + 1)) / 100
                   : 0;
    return rows + (h & 2 ? (int64_t)(h >> 8 & 0xffff) % (s->extra_rows + 1) : 0);
}

/* Choices per row of local_ids and topk_weights: where nobody has tokens, places that are not taken
 * (SLOTS) have this rank's own number. */
static int64_t width_of(const t_call *call) {
    const ref_plan *plan = call->plan;
    int64_t tokens = 0;
    if (plan->layout == MPIX_EP_EXPERT)
        return 1;
    for (int r = 0; r < plan->ranks; r++)
        tokens += plan->ntok[r];
    return tokens || plan->layout == MPIX_EP_COMPACT ? plan->topk : call->own_topk;
}

static void prepare_input(t_call *call, t_rng *own) {
    MPIX_Ep_dispatch_in *in = &call->u.dispatch.in;
    const ref_plan *plan = call->plan;
    const t_shape *s = &call->shape;
    int64_t ntok = plan->ntok[t_rank], row = s->hidden * (int64_t)ref_size(s->dtype);
    MPIX_INIT(in);
    in->hidden = s->hidden;
    in->x = new_rows(call, "in.x", "in.x.scales", ntok, s->dtype, s->scale_kind, own);
    for (int64_t t = 0; t < ntok; t++) {
        ref_fill(t_row_seed(s->seed, t_rank, t, SEED_ROW), s->dtype, s->hidden, s->flavour,
                 (char *)in->x.data + t * (in->x.stride ? in->x.stride : row));
        if (in->x.scales)
            ref_fill_scales(t_row_seed(s->seed, t_rank, t, SEED_SCALES), s->scale_kind, s->hidden,
                            (char *)in->x.scales +
                                t * (in->x.scale_stride
                                         ? in->x.scale_stride
                                         : (int64_t)ref_scales(s->scale_kind, s->hidden)));
    }
    t_call_input(call, in->x.data);
    t_call_input(call, in->x.scales);
    if (s->weights) {
        float *w = t_call_buf(call, "in.topk_weights", (size_t)(ntok * plan->topk) * 4, 4, 0, own);
        for (int64_t i = 0; i < ntok * plan->topk; i++)
            w[i] = ref_weight(t_row_seed(s->seed, t_rank, i, SEED_WEIGHT));
        in->topk_weights = t_call_input(call, w);
        /* an empty array; without tokens NULL does as well */
        if (!w && (ntok > 0 || t_chance(own, 50))) {
            static const float none;
            in->topk_weights = &none;
        }
    }
}

t_call *t_call_dispatch(t_handle *handle, const t_shape *shape, t_rng *own) {
    t_call *call = t_call_new(handle, T_DISPATCH);
    const ref_plan *plan = call->plan;
    MPIX_Ep_dispatch_out *out = &call->u.dispatch.out;
    int64_t *limits = calloc((size_t)plan->ranks, sizeof *limits);
    t_plans_keep(NULL, limits);
    call->shape = *shape;
    handle->dispatched = 1;
    prepare_input(call, own);
    MPIX_INIT(out);
    for (int r = 0; r < plan->ranks; r++) {
        int64_t most = handle->ctx->config.max_recv_rows, rows = plan->total[r],
                capacity = capacity_of(shape, r, rows);
        limits[r] = capacity < rows ? capacity : rows;
        if (most > 0 && limits[r] > most)
            limits[r] = most;
        if (r == t_rank)
            out->capacity_rows = capacity;
    }
    handle->limit = call->limits = limits;
    call->limit = limits[t_rank];
    int64_t n = out->capacity_rows;
    out->x = new_rows(call, "out.x", "out.x.scales", n, to_dtype(shape), to_scale(shape), own);
    if (t_chance(own, 50) && !shape->to)
        out->x.dtype = 0;
    if (plan->layout != MPIX_EP_EXPERT && t_chance(own, 70))
        out->local_ids = t_call_buf(call, "out.local_ids",
                                    (size_t)(n * width_of(call)) * sizeof(int), sizeof(int), 0,
                                    own);
    if (t_chance(own, 70))
        out->src_rank = t_call_buf(call, "out.src_rank", (size_t)n * sizeof(int), sizeof(int), 0,
                                   own);
    if (t_chance(own, 70))
        out->src_token = t_call_buf(call, "out.src_token", (size_t)n * sizeof(MPI_Count),
                                    sizeof(MPI_Count), 0, own);
    if (shape->weights && t_chance(own, 80))
        out->topk_weights = t_call_buf(call, "out.topk_weights", (size_t)(n * width_of(call)) * 4,
                                       4, 0, own);
    if (t_chance(own, 50)) {
        int nlocal = plan->nlocal[t_rank];
        out->cumulative = t_call_buf(call, "out.cumulative", (size_t)nlocal * 8, 8, 0, own);
        for (int e = 0; e < nlocal; e++)
            out->cumulative[e] = (int64_t)t_row_seed(shape->seed, t_rank, e, SEED_OLD) >> 8;
    }
    if (t_chance(own, 30)) {
        out->wait_ns = t_call_buf(call, "out.wait_ns", (size_t)t_size * 8, 8, 0, own);
        for (int r = 0; r < t_size; r++)
            out->wait_ns[r] = 1000 * r;
    }
    if (handle->ctx->config.mode == MPIX_EP_LL) {
        int nlocal = plan->nlocal[t_rank];
        if (t_chance(own, 60))
            out->recv_per_rank = t_call_buf(call, "out.recv_per_rank",
                                            (size_t)t_size * sizeof(MPI_Count), sizeof(MPI_Count),
                                            0, own);
        if (t_chance(own, 60))
            out->recv_per_expert = t_call_buf(call, "out.recv_per_expert",
                                              (size_t)nlocal * sizeof(MPI_Count), sizeof(MPI_Count),
                                              0, own);
        if (t_chance(own, 60) && plan->layout == MPIX_EP_EXPERT)
            out->expert_offset = t_call_buf(call, "out.expert_offset",
                                            (size_t)(nlocal + 1) * sizeof(MPI_Count),
                                            sizeof(MPI_Count), 0, own);
    }
    return call;
}

/* One received row against what its sender filled in; a padding row is zero. */
static void check_bits(t_call *call, const char *what, const void *base, int64_t stride,
                       size_t bytes, int64_t row, const void *expect) {
    int64_t step = stride ? stride : (int64_t)bytes;
    const unsigned char *got = (const unsigned char *)base + row * step, *want = expect;
    size_t i = 0;
    if (memcmp(got, want, bytes) != 0) {
        while (got[i] == want[i])
            i++;
        t_fail(__FILE__, __LINE__,
               "%s: row %lld (from rank %d, token %lld), byte %zu of %zu is %#x, expected %#x",
               what, (long long)row, call->plan->rows[t_rank][row].src,
               (long long)call->plan->rows[t_rank][row].token, i, bytes, got[i], want[i]);
    }
    const t_buf *buf = t_call_find(call, base);
    size_t end = (size_t)(row * step) + bytes, gap = (size_t)step - bytes;
    if (end + gap <= buf->n)
        CHECK(t_untouched(buf, end, gap), "%s: the gap after row %lld was written", what,
              (long long)row);
}

static void check_rows(t_call *call) {
    const t_shape *s = &call->shape;
    const MPIX_Ep_rows *x = &call->u.dispatch.out.x;
    size_t sent = (size_t)s->hidden * ref_size(s->dtype);
    size_t bytes = (size_t)s->hidden * ref_size(to_dtype(s)),
           scales = ref_scales(to_scale(s), s->hidden);
    unsigned char *expect = calloc(1, sent + bytes + scales + 8), *x_sent = calloc(1, sent + 8),
                  *scale = calloc(1, scales + 8);
    REQUIRE(expect && x_sent && scale, "no memory for a row");
    for (int64_t i = 0; i < call->limit; i++) {
        const ref_row *row = &call->plan->rows[t_rank][i];
        memset(expect, 0, bytes);
        memset(scale, 0, scales);
        if (row->src < 0 && call->plan->layout == MPIX_EP_SLOTS) { /* nobody's place */
            int64_t step = x->stride ? x->stride : (int64_t)bytes;
            CHECK(t_untouched(t_call_find(call, x->data), (size_t)(i * step), bytes),
                  "the place %lld without a row was written", (long long)i);
            continue;
        }
        if (row->src >= 0)
            ref_fill(t_row_seed(s->seed, row->src, row->token, SEED_ROW), s->dtype, s->hidden,
                     s->flavour, s->to ? x_sent : expect);
        if (row->src >= 0 && s->to)
            ref_convert(s->dtype, x_sent, s->hidden, s->to, s->to_scale, expect, scale);
        else if (row->src >= 0 && scales)
            ref_fill_scales(t_row_seed(s->seed, row->src, row->token, SEED_SCALES), s->scale_kind,
                            s->hidden, scale);
        check_bits(call, "out.x", x->data, x->stride, bytes, i, expect);
        if (scales)
            check_bits(call, "out.x.scales", x->scales, x->scale_stride, scales, i, scale);
    }
    free(expect);
    free(x_sent);
    free(scale);
}

static void check_meta(t_call *call) {
    const MPIX_Ep_dispatch_out *out = &call->u.dispatch.out;
    const ref_plan *plan = call->plan;
    const uint64_t seed = call->shape.seed;
    int topk = (int)(plan->layout == MPIX_EP_EXPERT ? plan->topk : width_of(call));
    for (int64_t i = 0; i < call->limit; i++) {
        const ref_row *row = &plan->rows[t_rank][i];
        if (out->src_rank)
            CHECK(out->src_rank[i] == row->src, "src_rank[%lld] %d, expected %d", (long long)i,
                  out->src_rank[i], row->src);
        if (out->src_token)
            CHECK(out->src_token[i] == row->token, "src_token[%lld] %lld, expected %lld",
                  (long long)i, (long long)out->src_token[i], (long long)row->token);
        for (int k = 0; plan->layout != MPIX_EP_EXPERT && k < topk; k++) {
            int64_t e = row->src < 0 ? -1 : ref_choice(plan, row->src, row->token, k);
            int local = e >= 0 && plan->owner[e] == t_rank ? plan->local[e] : -1;
            float w = row->src < 0 ? 0
                                   : ref_weight(t_row_seed(seed, row->src, row->token * topk + k,
                                                           SEED_WEIGHT));
            if (out->local_ids)
                CHECK(out->local_ids[i * topk + k] == local, "local_ids[%lld][%d] %d, expected %d",
                      (long long)i, k, out->local_ids[i * topk + k], local);
            if (out->topk_weights)
                CHECK(memcmp(&out->topk_weights[i * topk + k], &w, 4) == 0,
                      "topk_weights[%lld][%d] %g, expected %g", (long long)i, k,
                      (double)out->topk_weights[i * topk + k], (double)w);
        }
        if (plan->layout == MPIX_EP_EXPERT && out->topk_weights) {
            float w = row->src < 0
                          ? 0
                          : ref_weight(t_row_seed(seed, row->src, row->token * topk + row->choice,
                                                  SEED_WEIGHT));
            CHECK(memcmp(&out->topk_weights[i], &w, 4) == 0, "topk_weights[%lld] %g, expected %g",
                  (long long)i, (double)out->topk_weights[i], (double)w);
        }
    }
}

/* Rows that do not exist, and arrays that grow. */
static void check_rest(t_call *call) {
    const MPIX_Ep_dispatch_out *out = &call->u.dispatch.out;
    const ref_plan *plan = call->plan;
    const t_shape *s = &call->shape;
    int64_t row = s->hidden * (int64_t)ref_size(to_dtype(s)),
            step = out->x.stride ? out->x.stride : row;
    int64_t width = width_of(call), from = call->limit;
    struct {
        const void *p;
        int64_t unit;
        const char *name;
    } tails[] = {
        {out->x.data, step, "out.x"},
        {out->local_ids, width * (int64_t)sizeof(int), "out.local_ids"},
        {out->src_rank, sizeof(int), "out.src_rank"},
        {out->src_token, sizeof(MPI_Count), "out.src_token"},
        {out->topk_weights, width * 4, "out.topk_weights"},
        {out->x.scales,
         out->x.scale_stride ? out->x.scale_stride : (int64_t)ref_scales(to_scale(s), s->hidden),
         "out.x.scales"},
    };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        if (!tails[i].p)
            continue;
        const t_buf *buf = t_call_find(call, tails[i].p);
        size_t begin = (size_t)(from * tails[i].unit);
        if (begin < buf->n)
            CHECK(t_untouched(buf, begin, buf->n - begin),
                  "%s: rows beyond the last (%lld) were written", tails[i].name, (long long)from);
    }
    for (int e = 0; out->cumulative && e < plan->experts; e++) {
        int64_t n = 0, local = plan->local[e];
        if (plan->owner[e] != t_rank)
            continue;
        for (int r = 0; r < plan->ranks; r++)
            for (int64_t i = 0; i < plan->ntok[r] * plan->topk; i++)
                n += plan->ids[r][i] == e;
        n += (int64_t)t_row_seed(s->seed, t_rank, local, SEED_OLD) >> 8;
        CHECK(out->cumulative[local] == n, "cumulative[%d] %lld, expected %lld", (int)local,
              (long long)out->cumulative[local], (long long)n);
    }
    const MPIX_Ep_counts counts = {.recv_per_rank = out->recv_per_rank,
                                   .recv_per_expert = out->recv_per_expert,
                                   .expert_offset = out->expert_offset};
    t_check_received(plan, &counts);
    for (int r = 0; out->wait_ns && r < t_size; r++)
        CHECK(out->wait_ns[r] >= 1000 * r && out->wait_ns[r] < 1000 * r + INT64_C(300000000000),
              "wait_ns[%d] %lld", r, (long long)out->wait_ns[r]);
}

void t_check_dispatch(t_call *call) {
    check_rows(call);
    check_meta(call);
    check_rest(call);
}
