/*
 * ll_dispatch.cu - low-latency dispatch: one kernel, or its halves. The protocol is in ll.cuh.
 *
 * Sending: a team of warps takes a token, reads (or quantises) it once and stores it to the place
 * that it has at each of its ranks, with its record: token, local expert of each choice, in EXPERT
 * the choice's place among the source's choices of that expert, weights. In SLOTS the rank's own
 * rows go to the output at once, since their places are known and free.
 *
 * Receiving: the heads tell how many rows come from each source, and in EXPERT how many for each
 * expert, so every block computes by itself where rows begin, while the rows are on their way; then
 * teams copy the rows as they come.
 */
#include "ll_rows.cuh"

/* ---- receiving ------------------------------------------------------------------------------- */
/* Row i of source s, which has come, by a team. EXPERT: of the places that it goes to those whose
 * turn it is: each c.shares-th from `share` on. */
template <class F>
__device__ static void row_take(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                const received &in, const rows_map &map, const ll_team &team, int s,
                                int64_t i, int share, int bank) {
    int lane = threadIdx.x % 32, K = h.max_topk, width = (int)in.heads[s].width;
    int64_t place = ll_place(h, s, i, bank), row = -1, slot = s * h.max_tokens + i;
    bool lies = !F::expert(h) && s == h.rank; /* there already */
    const char *x = ll_row(h, h.rank, place);
    const int32_t *rec = ll_record(h, h.rank, place);
    ll_pieces p;
    if (F::vectors && !lies) /* asked for together with the record that says where they go */
        ll_load<true>(p, x, c.row, team, 0, false);
    if (F::expert(h)) {
        int local = lane < width ? __ldcg(&rec[mpix_record_word(MPIX_RECORD_LL_LOCAL, K, lane)])
                                 : -1,
            before = lane < width ? __ldcg(&rec[mpix_record_word(MPIX_RECORD_LL_BEFORE, K, lane)])
                                  : 0;
        if (local >= 0)
            row = first_row(h, map, s, local) + (uint32_t)before;
        if (team.part == 0 && share == 0 && lane < width)
            h.ll.place[slot * K + lane] = (int32_t)row;
    } else if (lane == 0) {
        row = slot;
    }
    bool there = row >= 0 && row < c.offer.rows;
    if (F::expert(h) && c.shares > 1) {
        uint32_t before = __popc(__ballot_sync(~0u, there) & ((1u << lane) - 1));
        there = there && before % c.shares == share;
    }
    if (F::vectors && !lies) {
        uint32_t mask = __ballot_sync(~0u, there);
        for (int round = 0; round < ll_rounds(team, c.row); round++) {
            if (round)
                ll_load<true>(p, x, c.row, team, round * LL_FLIGHT, false);
            for (uint32_t m = mask; m; m &= m - 1)
                ll_store(p, c.out + __shfl_sync(~0u, row, __ffs(m) - 1) * c.out_stride, c.row, team,
                         round * LL_FLIGHT);
        }
    } else if (!lies) {
        int64_t n, at = ll_part(team, c.row, &n);
        if (n > 0)
            bytes_send(x + at, there ? c.out + row * c.out_stride + at : nullptr, n);
    }
    if (team.part < team.warps - 1)
        return;
    if (c.scale_row && !lies)
        bytes_send(x + ll_up16(c.row), there ? c.out_scales + row * c.out_scale_stride : nullptr,
                   c.scale_row);
    if (there) {
        if (c.src_rank)
            c.src_rank[row] = s;
        if (c.src_token)
            c.src_token[row] = __ldcg(&rec[0]);
        if (F::expert(h) && c.out_weights)
            c.out_weights[row] =
                __int_as_float(__ldcg(&rec[mpix_record_word(MPIX_RECORD_LL_WEIGHT, K, lane)]));
    }
    for (int k = lane; !F::expert(h) && slot < c.offer.rows && k < width; k += 32) {
        if (c.local_ids)
            c.local_ids[slot * in.width + k] =
                __ldcg(&rec[mpix_record_word(MPIX_RECORD_LL_LOCAL, K, k)]);
        if (c.out_weights)
            c.out_weights[slot * in.width + k] =
                __int_as_float(__ldcg(&rec[mpix_record_word(MPIX_RECORD_LL_WEIGHT, K, k)]));
    }
}

/* Places that have no row: rows [row, end), by a warp. */
template <class F>
__device__ static void empties_fill(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    int width, int64_t row, int64_t end) {
    int lane = threadIdx.x % 32;
    if (end > c.offer.rows)
        end = c.offer.rows;
    for (; row < end; row++) {
        if (lane == 0 && c.src_rank)
            c.src_rank[row] = -1;
        if (lane == 0 && c.src_token)
            c.src_token[row] = -1;
        for (int k = lane; k < (F::expert(h) ? 1 : width); k += 32) {
            if (c.local_ids)
                c.local_ids[row * width + k] = -1;
            if (c.out_weights)
                c.out_weights[row * (F::expert(h) ? 1 : width) + k] = 0;
        }
        if (!F::expert(h))
            continue;
        char *to = c.out + row * c.out_stride, *scales = c.out_scales + row * c.out_scale_stride;
        bool wide = ((uint64_t)to | (uint64_t)c.row) % 16 == 0;
        for (int64_t i = lane * 16; wide && i < c.row; i += 512)
            *(uint4 *)(to + i) = {0, 0, 0, 0};
        for (int64_t i = lane; !wide && i < c.row; i += 32)
            to[i] = 0;
        for (int64_t i = lane; i < c.scale_row; i += 32)
            scales[i] = 0;
    }
}

/* By the clerk: what is wrong with the batches, the same on all blocks. 0: nothing. */
__device__ static int batches_judge(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    bool tells, received *in) {
    int r = threadIdx.x % 32,
        bad = ll_judge(h, tells, in->heads, c.hidden, c.offer.dtype, c.offer.scale_kind);
    if (bad)
        return bad;
    bool tokens = r < h.size && (in->heads[r].flags & MPIX_EP_LL_TOKENS);
    uint32_t mask = __ballot_sync(~0u, tokens);
    int width = mask ? (int)in->heads[__ffs(mask) - 1].width : c.topk;
    if (tokens && (int)in->heads[r].width != width)
        bad = 1, ll_report(tells, h, MPIX_CUDA_TOPK, 0, r, in->heads[r].width, width);
    else if (r < h.size && c.out_weights && in->heads[r].rows > 0 &&
             !(in->heads[r].flags & MPIX_EP_LL_WEIGHTS))
        bad = 1, ll_report(tells, h, MPIX_CUDA_WEIGHTS, 0, r, 0, 0);
    if (r == 0) {
        in->width = width;
        in->total = h.size * h.max_tokens;
    }
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* By the clerk, while the workers send. 0: all heads are here and fine; 1: the call
 * fails; 2: time-out. */
template <class F>
__device__ static int heads_receive(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    bool tells, uint64_t epoch, int bank, received *in,
                                    const rows_map &map) {
    if (!ll_heads(h, 0, epoch, bank, c.report, c.wait_ns && blockIdx.x == 0, in->heads))
        return 2;
    int bad = batches_judge(h, c, tells, in);
    __syncwarp();
    if (bad || !F::expert(h))
        return bad;
    if (!counts_take(h, epoch, bank, c.report, *in, map))
        return 2;
    rows_assign(h, map, in);
    if ((in->total > c.offer.rows && !h.drop) || in->total > 0x7fffffff) {
        if (threadIdx.x % 32 == 0)
            ll_report(tells, h, in->total > c.capacity ? MPIX_CUDA_CAPACITY : MPIX_CUDA_ROWS_LIMIT,
                      0, -1, in->total, c.offer.rows);
        return 1;
    }
    return 0;
}

/* Which rows a team receives: the first, of all sources' one after the other, and each step-th from
 * there on; of them which share of the places. */
struct taking {
    ll_team team;
    int64_t first, step;
    int share;
};
template <class F>
__device__ __forceinline__ taking taking_of(const mpix_cuda_handle &h,
                                            const mpix_cuda_dispatch &c) {
    ll_team team = ll_team_of(c.team[1]);
    int shares = F::expert(h) ? c.shares : 1, share = shares > 1 ? blockIdx.x % shares : 0;
    int64_t blocks = shares > 1 ? gridDim.x / shares : gridDim.x,
            block = shares > 1 ? blockIdx.x / shares : blockIdx.x;
    return {team, ll_idle(team) || block >= blocks ? INT64_MAX : team.number * blocks + block,
            blocks * team.teams, share};
}
/* By the workers of all blocks. False: time-out. */
template <class F>
__device__ static bool rows_receive(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    uint64_t epoch, int bank, const received &in,
                                    const rows_map &map, const taking &t) {
    int lane = threadIdx.x % 32;
    int64_t u = t.first, first = 0;
    uint64_t got, start = c.wait_ns ? now_ns() : 0;
    for (int j = 0; j < h.size; j++) { /* own rows first */
        int s = (h.rank + j) % h.size;
        int64_t n = in.heads[s].rows;
        for (; u < first + n; u += t.step) {
            if (!ll_await(h,
                          lane == 0 ? ll_flag(h, h.rank, ll_place(h, s, u - first, bank)) : nullptr,
                          epoch, s, c.report, &got))
                return false;
            if (c.wait_ns && lane == 0 && s != h.rank)
                atomicMax((unsigned long long *)&h.state->waited[s], now_ns() - start);
            row_take<F>(h, c, in, map, t.team, s, u - first, t.share, bank);
        }
        first += n;
    }
    /* Meanwhile nobody needs these. */
    int64_t warp = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x,
            warps = (int64_t)gridDim.x * LL_WARPS;
    if (F::expert(h) && h.ll.align > 1)
        for (int64_t e = warp; e < h.local_experts; e += warps) {
            empties_fill<F>(h, c, 1, first_row(h, map, h.size, (int)e),
                            first_row(h, map, 0, (int)e + 1));
        }
    else if (!F::expert(h) && (c.src_rank || c.src_token || c.local_ids || c.out_weights))
        for (int64_t p = warp; p < h.size * h.max_tokens; p += warps)
            if (p % h.max_tokens >= (int64_t)in.heads[p / h.max_tokens].rows)
                empties_fill<F>(h, c, in.width, p, p + 1);
    return true;
}

/* A word that may not have come yet (SLOTS); e may be behind the last one. */
__device__ static uint32_t before_await(const mpix_cuda_handle &h, const received &in, int s, int e,
                                        uint64_t epoch, int bank, mpix_cuda_status *to) {
    if (e == h.local_experts)
        return in.heads[s].exist;
    const uint64_t *p = ll_counts(h, h.rank, s, bank) + e;
    uint64_t start = now_ns(), v;
    while (!ll_is(v = ll_look(p), epoch))
        if (now_ns() - start > h.timeout_ns || *(volatile int32_t *)h.failed) {
            status_write(h, to, {MPIX_CUDA_TIMEOUT, 0, s, 0, 0, 0});
            *(volatile int32_t *)h.failed = 1;
            return 0;
        }
    return (uint32_t)v;
}

/* By the first block's clerk, while the workers receive: what this rank has learnt of the routing,
 * and the counts. */
template <class F>
__device__ static void routing_learn(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                     const received &in, const rows_map &map, uint64_t epoch,
                                     int bank) {
    mpix_cuda_state *st = h.state;
    int n = h.local_experts, lane = threadIdx.x % 32;
    int64_t *counts = h.results + 2, *experts = counts + 2 * h.size,
            *offsets = experts + n + h.experts;
    if (lane < h.size) {
        st->recv[lane] = in.heads[lane].rows;
        st->reply[lane] = (uint32_t)in.heads[lane].reply;
    }
    if (lane == 0) {
        st->width = in.width;
        st->recv_total = in.total;
        st->limit = in.total < c.offer.rows ? in.total : c.offer.rows;
        st->learnt = 1;
    }
    if (!c.counts && !c.cumulative)
        return;
    if (lane < h.size && c.counts) {
        uint32_t rows = F::expert(h) ? in.heads[lane].exist : in.heads[lane].rows;
        counts[lane] = rows;
        if (c.recv_per_rank)
            c.recv_per_rank[lane] = rows;
    }
    for (int e = lane; e < n; e += 32) {
        int64_t all = 0;
        for (int s = 0; s < h.size; s++)
            all += before_await(h, in, s, e + 1, epoch, bank, c.report) -
                   before_await(h, in, s, e, epoch, bank, c.report);
        if (c.counts)
            experts[e] = all;
        if (c.recv_per_expert)
            c.recv_per_expert[e] = all;
        if (c.cumulative)
            c.cumulative[e] += all;
    }
    for (int e = lane; F::expert(h) && c.counts && e <= n; e += 32) {
        offsets[e] = first_row(h, map, 0, e);
        if (c.expert_offset)
            c.expert_offset[e] = offsets[e];
    }
    __threadfence_system();
}

template <class F>
__global__ void __launch_bounds__(LL_THREADS, 1)
    ll_dispatch_kernel(const __grid_constant__ mpix_cuda_handle h,
                       const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ uint32_t shared[]; /* EXPERT: rows_map */
    __shared__ received in;
    __shared__ ll_shared s;
    __shared__ uint32_t stolen[LL_WARPS];
    rows_map map = rows_map_of(h, shared);
    int warp = threadIdx.x / 32;
    bool sends = c.part != MPIX_CUDA_END, receives = c.part != MPIX_CUDA_BEGIN,
         head = blockIdx.x == 0 && sends;
    ll_team team = ll_team_of(c.team[0]);
    outgoing o;
    batches heads;
    int fault = 0;
    int64_t tokens = 0;
    grid_wait();
    if (warp == LL_CLERK) {
        int routed = h.state->routed, topk = h.state->topk;
        tokens = h.state->tokens;
        ll_asked asked = ll_ask(h, 0, sends);
        fault = c.status || !sends                     ? 0
                : !routed                              ? MPIX_CUDA_NOT_ROUTED
                : tokens != c.tokens || topk != c.topk ? MPIX_CUDA_STALE
                                                       : 0;
        ll_open(h, 0, asked, c.report, &s);
        if (threadIdx.x % 32 == 0)
            s.status = c.status ? c.status : fault ? MPIX_KIND_ARG : 0;
    } else if (warp == LL_FLAGGER) {
        if (sends)
            ll_claim_round(h.ll.claims[0], (uint32_t)c.tokens, team.teams, 0, 3, &s);
    } else if (sends) {
        if (ll_owned(team.number, team.teams, 0) < c.tokens)
            token_load<F>(h, c, team, ll_owned(team.number, team.teams, 0), o);
        if (head)
            heads = batches_ask(h);
    }
    __syncthreads();
    if (!s.go)
        return;
    uint64_t epoch = s.epoch;
    if (warp == LL_CLERK) {
        bool last = ll_is_last(ll_started(h, MPIX_CUDA_DISPATCH));
        if (head)
            ll_say_taken<F>(h, 0, epoch);
        if (fault && threadIdx.x % 32 == 0)
            ll_report(last, h, fault, 0, -1, tokens, c.tokens);
        int how = receives ? heads_receive<F>(h, c, last, epoch, s.bank, &in, map) : 0;
        if (threadIdx.x % 32 == 0)
            s.bad = how;
        __syncwarp();
        ll_arrive(LL_BAR_HEADS, LL_WORKERS + 32);
        if (last && how < 2)
            ll_count(h, 0, receives, s, c.report);
        if (last && sends)
            ll_claims_clear(h.ll.claims[0], h.max_tokens, epoch);
        if (receives && how == 0 && blockIdx.x == 0)
            routing_learn<F>(h, c, in, map, epoch, s.bank);
    } else if (warp == LL_FLAGGER) {
        if (sends && !s.status)
            flags_send<F>(h, c, epoch, &s);
    } else {
        if (head)
            heads_send<F>(h, c, s.status, epoch, s.bank, heads);
        if (sends && !s.status)
            tokens_send<F>(h, c, team, o, &s, stolen);
        taking takes = taking_of<F>(h, c);
        ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
        if (receives && s.bad == 0 && !rows_receive<F>(h, c, epoch, s.bank, in, map, takes))
            s.bad = 2;
    }
    if (!c.eager)
        return;
    __syncthreads();
    if (receives && s.bad < 2 && threadIdx.x < 32 && ll_last(h, MPIX_CUDA_DISPATCH))
        ll_end<F>(h, 0, epoch, c.wait_ns);
}

/* Whether rows can be moved 16 bytes at a time; places in windows are aligned. */
static int vectors_of(const mpix_cuda_dispatch *c) {
    uint64_t bits = (uint64_t)c->row;
    if (c->tokens > 0)
        bits |= (uint64_t)c->x | (uint64_t)c->x_stride;
    if (c->offer.rows > 0)
        bits |= (uint64_t)c->out | (uint64_t)c->out_stride;
    return bits % 16 == 0 && (!c->quant || c->quant == BF16 || c->quant == F16);
}

typedef void (*kernel)(mpix_cuda_handle, mpix_cuda_dispatch);
/* By whether rows are quantised; then: anything, SLOTS and EXPERT 16 bytes at a time, anything with
 * peers that are reached through the proxy. */
enum { FORM_ANY, FORM_SLOTS, FORM_EXPERT, FORM_REMOTE, FORMS };
static const kernel forms[2][FORMS] = {{ll_dispatch_kernel<ll_form<false, false, false>>,
                                        ll_dispatch_kernel<ll_form<false, true, false>>,
                                        ll_dispatch_kernel<ll_form<false, true, true>>,
                                        ll_dispatch_kernel<ll_form<false, false, false, true>>},
                                       {ll_dispatch_kernel<ll_form<true, false, false>>,
                                        ll_dispatch_kernel<ll_form<true, true, false>>,
                                        ll_dispatch_kernel<ll_form<true, true, true>>,
                                        ll_dispatch_kernel<ll_form<true, false, false, true>>}};

cudaError_t mpix_cuda_ll_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                         mpix_cuda_dispatch *c, cudaStream_t stream) {
    c->eager = h->ll.depth == 1 || c->wait_ns != NULL;
    int blocks = ll_blocks(d, c->num_sms), ranks = h->size < h->max_topk ? h->size : h->max_topk;
    size_t smem = h->ll.expert ? 4 * ((size_t)h->local_experts + 1) * ((size_t)h->size + 1) : 0;
    c->team[0] = ll_team_size(blocks > 1 ? blocks - 1 : 1, c->tokens);
    c->team[1] = ll_team_size(blocks, c->tokens * ranks);
    /* blocks for each row of a small batch */
    c->shares = blocks / (c->tokens * ranks > 0 ? c->tokens * ranks : 1);
    c->shares = c->shares > c->topk ? c->topk : c->shares;
    c->vectors = vectors_of(c);
    int form = h->remote.is   ? FORM_REMOTE
               : !c->vectors  ? FORM_ANY
               : h->ll.expert ? FORM_EXPERT
                              : FORM_SLOTS;
    return mpix_cuda_launch_early(d, forms[c->quant != 0][form], blocks, LL_THREADS, smem, stream,
                                  *h, *c);
}

cudaError_t mpix_cuda_ll_dispatch_load(int *arch) {
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 2 * FORMS && err == cudaSuccess; i++)
        err = mpix_cuda_load(arch, forms[i / FORMS][i % FORMS]);
    return err;
}
