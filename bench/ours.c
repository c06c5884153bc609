/*
 * ours.c - the library's side: a context and its buffers, and the three calls.
 */
#include "config.h"

#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

static void *ours_array(const bench *b, size_t count, size_t size) {
    void *p = calloc(count + 1, size);
    if (!p)
        bench_die(b, "no memory for outputs (%zu bytes)", count * size);
    return p;
}

/* Memory of the kind that buf stands for. Collective for memory of the context. */
static void *ours_memory(const bench *b, bench_ours *o, const bench_buffers *buf, size_t bytes) {
    void *p = NULL;
    if (!buf->from_ep)
        return bench_alloc(b, bytes);
    bench_check(b, MPIX_Ep_alloc(o->ep, (MPI_Count)bytes, MPI_INFO_NULL, &p), "MPIX_Ep_alloc");
    return p;
}

static void ours_memory_free(const bench *b, bench_ours *o, const bench_buffers *buf, void *p) {
    if (buf->from_ep)
        bench_check(b, MPIX_Ep_dealloc(o->ep, p), "MPIX_Ep_dealloc");
    else
        free(p);
}

/* With two hops sums come rounded from other hosts. In the mode auto that depends on the routing;
 * where hosts have one rank each it can't be. */
int bench_chained(const bench *b, MPIX_Ep ep) {
    int seen[2] = {0, b->opt.two_hops == 1}; /* proxied peers; two hops are possible */
    for (int r = 0; r < b->size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        bench_check(b, MPIX_Ep_get_peer(ep, r, &peer), "MPIX_Ep_get_peer");
        seen[0] |= peer.reach == MPIX_EP_REACH_PROXIED;
        seen[1] |= peer.reach == MPIX_EP_REACH_MAPPED;
    }
    MPI_Allreduce(MPI_IN_PLACE, seen, 2, MPI_INT, MPI_LOR, b->comm);
    return seen[0] && seen[1] && b->opt.two_hops != 2;
}

static void ours_context(const bench *b, long n, long capacity, const char *progress,
                         bench_ours *o) {
    MPIX_Ep_config config;
    MPI_Info info = MPI_INFO_NULL;
    MPIX_INIT(&config);
    config.mode = MPIX_EP_HT;
    config.layout = b->opt.layout;
    config.memkind = MPIX_EP_HOST;
    config.max_topk = b->opt.topk ? b->opt.topk : 1;
    config.expert_align = b->opt.layout == MPIX_EP_EXPERT ? b->opt.expert_align : 0;
    config.num_experts = b->opt.num_experts;
    config.max_tokens = n;
    /* 0, no rows at all, stands for the worst case, which is as small */
    config.max_recv_rows = capacity;
    config.max_row_bytes = (MPI_Count)(b->row_bytes + b->scale_bytes);
    MPI_Info_create(&info);
    if (progress)
        MPI_Info_set(info, "mpix_ep_progress", progress);
    if (b->opt.two_hops)
        MPI_Info_set(info, "mpix_ep_two_hops", b->opt.two_hops == 1 ? "on" : "off");
    bench_check(b, MPIX_Ep_create(b->ep_comm, &config, info, &o->ep), "MPIX_Ep_create");
    MPI_Info_free(&info);
    o->chained = bench_chained(b, o->ep);
    bench_check(b, MPIX_Ep_handle_create(o->ep, &o->handle), "MPIX_Ep_handle_create");
}

void bench_ours_create(const bench *b, long n, long capacity, int buffers, const char *progress,
                       bench_ours *o) {
    size_t size = (size_t)b->size, local = (size_t)bench_local_experts(b), k = (size_t)b->opt.topk;
    size_t room = (size_t)capacity + 1; /* a row of guard bytes behind */
    memset(o, 0, sizeof *o);
    o->n = n;
    o->capacity = capacity;
    ours_context(b, n, capacity, progress, o);
    o->nbuf = buffers == BENCH_BOTH ? 2 : 1;
    for (int i = 0; i < o->nbuf; i++) {
        bench_buffers *buf = &o->buf[i];
        buf->from_ep = buffers == BENCH_MALLOC ? 0 : i == 0;
        buf->out = ours_memory(b, o, buf, room * b->row_bytes);
        buf->out_scales = ours_memory(b, o, buf, room * b->scale_bytes);
        if (b->has_combine) {
            buf->ein = ours_memory(b, o, buf, room * b->row_bytes);
            buf->ein_scales = ours_memory(b, o, buf, room * b->scale_bytes);
            buf->y = ours_memory(b, o, buf, ((size_t)n + 1) * b->y_bytes);
        }
    }
    o->x = bench_alloc(b, (size_t)n * b->row_bytes);
    o->x_scales = bench_alloc(b, (size_t)n * b->scale_bytes);
    o->local_ids = ours_array(b, room * k, sizeof(int));
    o->src_rank = ours_array(b, room, sizeof(int));
    o->src_token = ours_array(b, room, sizeof(MPI_Count));
    o->weights = ours_array(b, room * (k ? k : 1), sizeof(float));
    o->recv_per_rank = ours_array(b, size, sizeof(MPI_Count));
    o->send_per_rank = ours_array(b, size, sizeof(MPI_Count));
    o->recv_per_expert = ours_array(b, local, sizeof(MPI_Count));
    o->expert_offset = ours_array(b, local + 1, sizeof(MPI_Count));
    o->send_per_expert = ours_array(b, (size_t)b->opt.num_experts, sizeof(MPI_Count));
    o->token_in_rank = ours_array(b, (size_t)n * size, 1);
    o->cumulative = ours_array(b, local, sizeof(int64_t));
}

void bench_ours_free(const bench *b, bench_ours *o) {
    for (int i = 0; i < o->nbuf; i++) {
        bench_buffers *buf = &o->buf[i];
        ours_memory_free(b, o, buf, buf->out);
        ours_memory_free(b, o, buf, buf->out_scales);
        if (b->has_combine) {
            ours_memory_free(b, o, buf, buf->ein);
            ours_memory_free(b, o, buf, buf->ein_scales);
            ours_memory_free(b, o, buf, buf->y);
        }
    }
    bench_check(b, MPIX_Ep_handle_free(&o->handle), "MPIX_Ep_handle_free");
    bench_check(b, MPIX_Ep_free(&o->ep), "MPIX_Ep_free");
    free(o->x);
    free(o->x_scales);
    free(o->local_ids);
    free(o->src_rank);
    free(o->src_token);
    free(o->weights);
    free(o->recv_per_rank);
    free(o->send_per_rank);
    free(o->recv_per_expert);
    free(o->expert_offset);
    free(o->send_per_expert);
    free(o->token_in_rank);
    free(o->cumulative);
    memset(o, 0, sizeof *o);
}

void bench_ours_route(const bench *b, bench_ours *o, const bench_plan *plan, int all) {
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = plan->n;
    routing.topk = plan->k;
    routing.idx_bits = 32;
    routing.ids = plan->n && plan->k ? plan->ids : NULL;
    counts.recv_total = &o->recv_total;
    counts.recv_per_rank = o->recv_per_rank;
    counts.recv_per_expert = o->recv_per_expert;
    if (b->opt.layout == MPIX_EP_EXPERT)
        counts.expert_offset = o->expert_offset;
    if (all) {
        counts.send_per_rank = o->send_per_rank;
        counts.send_per_expert = o->send_per_expert;
        counts.token_in_rank = o->token_in_rank;
    }
    bench_check(b, MPIX_Ep_route(o->handle, &routing, &counts), "MPIX_Ep_route");
}

void bench_ours_wait(const bench *b, MPIX_Xfer *xfer, const char *call) {
    bench_check(b, MPIX_Xfer_wait(xfer), call);
}

/* xfer NULL: the blocking call. */
void bench_ours_dispatch(const bench *b, bench_ours *o, const bench_plan *plan, int buf, int all,
                         MPIX_Xfer *xfer) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x.data = o->x;
    in.x.dtype = b->opt.dtype;
    in.x.scale_kind = b->opt.scale_kind;
    in.x.scales = b->scale_bytes ? o->x_scales : NULL;
    in.topk_weights = b->opt.metadata ? plan->weights : NULL;
    out.capacity_rows = plan->rows;
    out.x.data = o->buf[buf].out;
    out.x.dtype = b->opt.dtype;
    out.x.scale_kind = b->opt.scale_kind;
    out.x.scales = b->scale_bytes ? o->buf[buf].out_scales : NULL;
    if (b->opt.metadata) {
        out.topk_weights = o->weights;
        out.local_ids = b->opt.layout == MPIX_EP_COMPACT ? o->local_ids : NULL;
    }
    if (all) {
        out.src_rank = o->src_rank;
        out.src_token = o->src_token;
        out.cumulative = o->cumulative;
    }
    int code = xfer ? MPIX_Ep_idispatch(o->handle, &in, &out, xfer)
                    : MPIX_Ep_dispatch(o->handle, &in, &out);
    bench_check(b, code, xfer ? "MPIX_Ep_idispatch" : "MPIX_Ep_dispatch");
}

void bench_ours_combine(const bench *b, bench_ours *o, const bench_plan *plan, int buf,
                        MPIX_Xfer *xfer) {
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = b->opt.hidden;
    in.x.data = o->buf[buf].ein;
    in.x.dtype = b->opt.dtype;
    in.x.scale_kind = b->opt.scale_kind;
    in.x.scales = b->scale_bytes ? o->buf[buf].ein_scales : NULL;
    if (b->opt.layout == MPIX_EP_EXPERT && b->opt.metadata)
        in.topk_weights = plan->weights;
    out.y.data = o->buf[buf].y;
    out.y.dtype = b->ydtype;
    int code = xfer ? MPIX_Ep_icombine(o->handle, &in, &out, xfer)
                    : MPIX_Ep_combine(o->handle, &in, &out);
    bench_check(b, code, xfer ? "MPIX_Ep_icombine" : "MPIX_Ep_combine");
}
