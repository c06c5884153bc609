/*
 * call.c - life of a prepared call, and the routings that the tests draw.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static struct {
    ref_plan *plan;
    int64_t *limits;
} * kept;
static int nkept;

void t_plans_keep(ref_plan *plan, int64_t *limits) {
    kept = realloc(kept, (size_t)(nkept + 1) * sizeof *kept);
    REQUIRE(kept && limits, "no memory");
    kept[nkept].plan = plan;
    kept[nkept++].limits = limits;
}

void t_plans_free(void) {
    while (nkept > 0) {
        ref_plan_free(kept[--nkept].plan);
        free(kept[nkept].limits);
    }
    free(kept);
    kept = NULL;
}

t_call *t_call_new(t_handle *handle, int kind) {
    t_call *call = calloc(1, sizeof *call);
    REQUIRE(call, "no memory for a call");
    call->kind = kind;
    call->handle = handle;
    call->plan = handle->plan;
    call->own_topk = handle->own_topk;
    return call;
}

/* rows: row data, which may lie in the context's or in registered memory. */
void *t_call_buf(t_call *call, const char *name, size_t n, size_t align, int rows, t_rng *own) {
    REQUIRE(call->nbufs < (int)(sizeof call->bufs / sizeof *call->bufs),
            "too many buffers in a call");
    t_buf *buf = &call->bufs[call->nbufs];
    t_ctx *ctx = call->handle->ctx;
    int where = (int)t_range(own, 0, 9);
    call->names[call->nbufs++] = name;
    if (rows && where < 5 && ctx->area.base)
        t_buf_place(buf, &ctx->area, n, align, own);
    else if (rows && where < 7 && ctx->pool.base)
        t_buf_place(buf, &ctx->pool, n, align, own);
    else
        t_buf_new(buf, n, align, own);
    return buf->p;
}

t_buf *t_call_find(t_call *call, const void *p) {
    for (int i = 0; i < call->nbufs; i++)
        if (call->bufs[i].p == p)
            return &call->bufs[i];
    t_die(__FILE__, __LINE__, "a buffer is not of this call");
}

const void *t_call_input(t_call *call, const void *p) {
    if (p)
        t_buf_readonly(t_call_find(call, p), 1);
    return p;
}

int64_t t_stride(int64_t row, int64_t unit, t_rng *own) {
    if (t_chance(own, 50))
        return 0;
    return row + unit * (t_chance(own, 30)   ? 0
                         : t_chance(own, 70) ? t_range(own, 1, 9)
                                             : t_range(own, 1, 300));
}

uint64_t t_row_seed(uint64_t seed, int rank, int64_t row, int what) {
    return t_hash2(t_hash2(t_hash2(seed, (uint64_t)what), (uint64_t)rank), (uint64_t)row);
}

int t_gives_row_weights(const t_shape *shape, int rank) {
    return shape->weights && t_hash2(shape->seed, 1000u + (uint64_t)rank) % 4 != 0;
}

/* The rows of a combine into the handle's own buffer, if it can be had now: with `depth` combines
 * in flight it can't. */
static void rows_to_buffer(t_call *call) {
    MPIX_Ep_combine_in *in = &call->u.combine.in;
    MPIX_Ep_rows rows;
    MPIX_Error error;
    size_t row = (size_t)call->shape.hidden * ref_size(call->shape.dtype),
           step = in->x.stride ? (size_t)in->x.stride : row;
    int code = MPIX_Ep_combine_buffer(call->handle->h, &rows);
    if (code != MPI_SUCCESS) {
        MPIX_INIT(&error);
        MPIX_Error_last(&error);
        CHECK(error.kind == MPIX_ERRK_ARG && strstr(error.text, "in flight"),
              "MPIX_Ep_combine_buffer: %s", error.text);
        return;
    }
    for (int64_t i = 0; i < call->limit; i++)
        memcpy((char *)rows.data + i * rows.stride, (const char *)in->x.data + (size_t)i * step,
               row);
    in->x.data = rows.data;
    in->x.stride = rows.stride;
}

int t_call_start(t_call *call, int blocking) {
    MPIX_Ep_handle h = call->handle->h;
    MPIX_Xfer *xfer = &call->xfer;
    int code = MPI_SUCCESS;
    if (call->kind == T_COMBINE && call->shape.buffer)
        rows_to_buffer(call);
    switch (call->kind) {
    case T_ROUTE: {
        const MPIX_Ep_counts *out = call->u.route.out.struct_size ? &call->u.route.out : NULL;
        code = blocking ? MPIX_Ep_route(h, &call->u.route.in, out)
                        : MPIX_Ep_iroute(h, &call->u.route.in, out, xfer);
        break;
    }
    case T_DISPATCH:
        code = blocking ? MPIX_Ep_dispatch(h, &call->u.dispatch.in, &call->u.dispatch.out)
                        : MPIX_Ep_idispatch(h, &call->u.dispatch.in, &call->u.dispatch.out, xfer);
        break;
    default:
        code = blocking ? MPIX_Ep_combine(h, &call->u.combine.in, &call->u.combine.out)
                        : MPIX_Ep_icombine(h, &call->u.combine.in, &call->u.combine.out, xfer);
    }
    call->code = code;
    call->done = blocking || code != MPI_SUCCESS;
    return code;
}

void t_call_check(t_call *call) {
    int before = t_failures();
    if (call->code != MPI_SUCCESS)
        return;
    if (call->kind == T_ROUTE)
        t_check_route(call);
    else if (call->kind == T_DISPATCH)
        t_check_dispatch(call);
    else
        t_check_combine(call);
    for (int i = 0; i < call->nbufs; i++)
        CHECK_BUF(&call->bufs[i], call->names[i]);
    if (t_failures() > before)
        t_fail(__FILE__, __LINE__,
               "... in a %s of handle %p: layout %s, hidden %lld, %s, scales %d, topk %d, %lld "
               "tokens, %lld rows of %lld",
               call->kind == T_ROUTE      ? "route"
               : call->kind == T_DISPATCH ? "dispatch"
                                          : "combine",
               (void *)call->handle->h,
               call->plan->layout == MPIX_EP_EXPERT  ? "EXPERT"
               : call->plan->layout == MPIX_EP_SLOTS ? "SLOTS"
                                                     : "COMPACT",
               (long long)call->shape.hidden, ref_name(call->shape.dtype), call->shape.scale_kind,
               call->plan->topk, (long long)call->plan->ntok[t_rank], (long long)call->limit,
               (long long)call->plan->total[t_rank]);
}

void t_call_free(t_call *call) {
    for (int i = 0; i < call->nbufs; i++)
        t_buf_free(&call->bufs[i]);
    free(call);
}

int t_call_run(t_call *call, int blocking) {
    int before = t_failures();
    if (CHECK_OK(t_call_start(call, blocking)) && !blocking)
        CHECK_OK(call->code = MPIX_Xfer_wait(&call->xfer));
    t_call_check(call);
    t_call_free(call);
    return t_failures() == before;
}

void t_handle_init(t_handle *handle, t_ctx *ctx) {
    memset(handle, 0, sizeof *handle);
    handle->ctx = ctx;
    CHECK_OK(MPIX_Ep_handle_create(ctx->ep, &handle->h));
}

void t_handle_done(t_handle *handle, int free_it) {
    if (free_it) {
        CHECK_OK(MPIX_Ep_handle_free(&handle->h));
        CHECK(handle->h == MPIX_EP_HANDLE_NULL, "a freed handle is not MPIX_EP_HANDLE_NULL");
    }
}

int64_t *t_make_ids(int experts, const int *owner, int flavour, uint64_t common, int64_t ntok,
                    int topk, t_rng *own) {
    int64_t *ids = malloc((size_t)(ntok * topk + 1) * sizeof *ids);
    int *pool = malloc(((size_t)experts + 1) * sizeof *pool);
    REQUIRE(ids && pool, "no memory for %lld choices", (long long)(ntok * topk));
    int popular = experts ? (int)(common % (uint64_t)experts) : 0;
    for (int64_t t = 0; t < ntok; t++) {
        int left = 0;
        for (int e = 0; e < experts; e++)
            if (flavour != T_ONE_RANK || !owner || owner[e] == owner[popular])
                pool[left++] = e;
        for (int k = 0; k < topk; k++) {
            int64_t *id = &ids[t * topk + k];
            *id = -1;
            if (flavour == T_NONE || left == 0 || (flavour == T_HOLES && t_chance(own, 40)))
                continue;
            int pick = (int)t_range(own, 0, left - 1);
            if (flavour == T_SKEWED) /* the first of what is left are chosen most */
                pick = (int)((int64_t)pick * t_range(own, 0, left - 1) / left);
            *id = pool[pick];
            memmove(&pool[pick], &pool[pick + 1], (size_t)(left - pick - 1) * sizeof *pool);
            left--;
        }
        if (flavour == T_ONE_EXPERT && topk > 0) {
            for (int k = 0; k < topk; k++)
                ids[t * topk + k] = -1;
            ids[t * topk + (int64_t)t_range(own, 0, topk - 1)] = popular;
        }
    }
    free(pool);
    return ids;
}
