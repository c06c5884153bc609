/*
 * call_route.c - route, prepared and checked.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static void *wanted(t_call *call, const char *name, int64_t n, size_t size, t_rng *own) {
    void *p = t_call_buf(call, name, (size_t)n * size, size, 0, own);
    return t_chance(own, 80) ? p : NULL;
}

static void prepare_ids(t_call *call, int64_t ntok, int topk, const int64_t *ids, int idx_bits,
                        t_rng *own) {
    MPIX_Ep_routing *in = &call->u.route.in;
    int64_t size = idx_bits == 64 ? 8 : 4, stride = t_stride(topk * size, size, own),
            step = stride ? stride : topk * size;
    size_t bytes = ntok && topk ? (size_t)((ntok - 1) * step + topk * size) : 0;
    MPIX_INIT(in);
    in->num_tokens = ntok;
    in->topk = topk;
    in->idx_bits = idx_bits == 64 ? 64 : t_chance(own, 50) ? 32 : 0;
    in->ids_stride = stride;
    char *to = t_call_buf(call, "routing.ids", bytes, (size_t)size, 0, own);
    for (int64_t t = 0; t < ntok; t++)
        for (int k = 0; k < topk; k++) {
            int32_t narrow = (int32_t)ids[t * topk + k];
            memcpy(to + t * step + k * size,
                   idx_bits == 64 ? (const void *)&ids[t * topk + k] : &narrow, (size_t)size);
        }
    in->ids = t_call_input(call, to);
}

t_call *t_call_route(t_handle *handle, int64_t ntok, int topk, const int64_t *ids, int idx_bits,
                     t_rng *own) {
    const MPIX_Ep_config *config = &handle->ctx->config;
    ref_plan *plan = ref_plan_make((int)config->num_experts, config->expert_owner, config->layout,
                                   config->expert_align, config->max_tokens, ntok, topk, ids);
    handle->plan = plan;
    handle->own_topk = topk;
    handle->dispatched = 0;
    handle->limit = calloc((size_t)plan->ranks, sizeof *handle->limit);
    t_plans_keep(plan, handle->limit);
    for (int r = 0; r < plan->ranks; r++) {
        handle->limit[r] = plan->total[r];
        if (config->max_recv_rows > 0 && plan->total[r] > config->max_recv_rows)
            handle->limit[r] = config->max_recv_rows;
    }
    t_call *call = t_call_new(handle, T_ROUTE);
    call->limits = handle->limit;
    call->limit = handle->limit[t_rank];
    prepare_ids(call, ntok, topk, ids, idx_bits, own);
    MPIX_Ep_counts *out = &call->u.route.out;
    if (t_chance(own, 10))
        return call; /* counts NULL */
    /* as many hosts as there can be: only those that exist are written */
    int nlocal = plan->nlocal[t_rank], hosts = t_size;
    MPIX_INIT(out);
    if (config->mode == MPIX_EP_HT || plan->layout == MPIX_EP_SLOTS)
        out->recv_total = wanted(call, "counts.recv_total", 1, sizeof(MPI_Count), own);
    if (config->mode == MPIX_EP_HT)
        out->recv_per_rank = wanted(call, "counts.recv_per_rank", t_size, sizeof(MPI_Count), own);
    if (config->mode == MPIX_EP_HT)
        out->recv_per_expert = wanted(call, "counts.recv_per_expert", nlocal, sizeof(MPI_Count),
                                      own);
    out->send_per_rank = wanted(call, "counts.send_per_rank", t_size, sizeof(MPI_Count), own);
    out->send_per_host = wanted(call, "counts.send_per_host", hosts, sizeof(MPI_Count), own);
    out->send_per_expert = wanted(call, "counts.send_per_expert", plan->experts, sizeof(MPI_Count),
                                  own);
    out->token_in_rank = wanted(call, "counts.token_in_rank", ntok * t_size, 1, own);
    if (plan->layout == MPIX_EP_EXPERT && config->mode == MPIX_EP_HT)
        out->expert_offset = wanted(call, "counts.expert_offset", nlocal + 1, sizeof(MPI_Count),
                                    own);
    return call;
}

static int goes_to(const ref_plan *plan, int64_t token, int rank) {
    for (int k = 0; k < plan->topk; k++) {
        int64_t e = ref_choice(plan, t_rank, token, k);
        if (e >= 0 && plan->owner[e] == rank)
            return 1;
    }
    return 0;
}

void t_check_received(const ref_plan *plan, const MPIX_Ep_counts *out) {
    const ref_row *rows = plan->rows[t_rank];
    if (out->recv_total)
        CHECK(*out->recv_total == plan->total[t_rank], "recv_total %lld, expected %lld",
              (long long)*out->recv_total, (long long)plan->total[t_rank]);
    for (int r = 0; out->recv_per_rank && r < plan->ranks; r++) {
        int64_t n = 0;
        for (int64_t i = 0; i < plan->total[t_rank]; i++)
            n += rows[i].src == r;
        CHECK(out->recv_per_rank[r] == n, "recv_per_rank[%d] %lld, expected %lld", r,
              (long long)out->recv_per_rank[r], (long long)n);
    }
    for (int e = 0; e < plan->experts; e++) {
        int64_t n = 0, local = plan->local[e];
        if (plan->owner[e] != t_rank || !out->recv_per_expert)
            continue;
        for (int r = 0; r < plan->ranks; r++)
            for (int64_t i = 0; i < plan->ntok[r] * plan->topk; i++)
                n += plan->ids[r][i] == e;
        CHECK(out->recv_per_expert[local] == n, "recv_per_expert[%d] %lld, expected %lld",
              (int)local, (long long)out->recv_per_expert[local], (long long)n);
    }
    for (int e = 0; out->expert_offset && e <= plan->nlocal[t_rank]; e++)
        CHECK(out->expert_offset[e] == plan->offset[t_rank][e],
              "expert_offset[%d] %lld, expected %lld", e, (long long)out->expert_offset[e],
              (long long)plan->offset[t_rank][e]);
}

static void check_hosts(const t_call *call, const ref_plan *plan, const MPI_Count *got) {
    for (int h = 0; h < t_hosts; h++) {
        int64_t n = 0;
        for (int64_t t = 0; t < plan->ntok[t_rank]; t++) {
            int there = 0;
            for (int r = 0; r < plan->ranks; r++)
                there |= t_host_of[r] == h && goes_to(plan, t, r);
            n += there;
        }
        CHECK(got[h] == n, "send_per_host[%d] %lld, expected %lld", h, (long long)got[h],
              (long long)n);
    }
    CHECK(t_untouched(t_call_find((t_call *)call, got), (size_t)t_hosts * sizeof(MPI_Count),
                      (size_t)(t_size - t_hosts) * sizeof(MPI_Count)),
          "send_per_host was written beyond the %d hosts", t_hosts);
}

static void check_sent(t_call *call, const ref_plan *plan, const MPIX_Ep_counts *out) {
    for (int r = 0; r < plan->ranks; r++) {
        int64_t n = 0;
        for (int64_t t = 0; t < plan->ntok[t_rank]; t++) {
            int hit = goes_to(plan, t, r);
            n += hit;
            if (out->token_in_rank)
                CHECK(out->token_in_rank[t * plan->ranks + r] == hit,
                      "token_in_rank[%lld][%d] %d, expected %d", (long long)t, r,
                      out->token_in_rank[t * plan->ranks + r], hit);
        }
        if (out->send_per_rank)
            CHECK(out->send_per_rank[r] == n, "send_per_rank[%d] %lld, expected %lld", r,
                  (long long)out->send_per_rank[r], (long long)n);
    }
    for (int e = 0; out->send_per_expert && e < plan->experts; e++) {
        int64_t n = 0;
        for (int64_t i = 0; i < plan->ntok[t_rank] * plan->topk; i++)
            n += plan->ids[t_rank][i] == e;
        CHECK(out->send_per_expert[e] == n, "send_per_expert[%d] %lld, expected %lld", e,
              (long long)out->send_per_expert[e], (long long)n);
    }
    if (out->send_per_host)
        check_hosts(call, plan, out->send_per_host);
}

void t_check_route(t_call *call) {
    if (!call->u.route.out.struct_size)
        return;
    t_check_received(call->plan, &call->u.route.out);
    check_sent(call, call->plan, &call->u.route.out);
}
