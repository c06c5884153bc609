/*
 * ll_combine.cu - low-latency combine: one kernel, or its halves. The protocol is in ll.cuh, what is computed in coll/ep_ll_combine.c.
 *
 * Sending: a team of warps takes a token that came from a peer, sums its rows here (choices ascending, weighted), rounds to the wire's dtype and
 * stores that to the place of the answer in the owner's bank. SLOTS rows that need neither, in memory that peers map, are not even stored: the head
 * says where they lie, and the kernel ends when their readers have said `taken`. Receiving: teams take the rank's tokens in order, make this rank's
 * own part of the sum, rounded like the others', wait for the answers of the other ranks that the token went to, and add them, ranks ascending,
 * then the biases.
 */
#include "copy.cuh"
#include "launch.h"
#include "ll_sum.cuh"

/* ---- what the clerk finds out for the workers ---- */
struct known {
    uint32_t recv[MPIX_CUDA_RANKS], reply[MPIX_CUDA_RANKS], base[MPIX_CUDA_RANKS];
    int64_t limit;
    int width, pulled; /* pulled: mapped peers read the rows where they lie */
};

__device__ __forceinline__ bool is_plain(const mpix_cuda_combine &c) { return !c.row_weights && c.offer.dtype == c.xdtype; }
/* By the clerk. What this rank knows of the routing; then 0: the call can be made. */
struct routing { uint32_t recv, reply, base; int routed, topk, learnt, width; int64_t tokens, limit; };
__device__ __forceinline__ routing routing_ask(const mpix_cuda_handle &h) {
    const mpix_cuda_state *st = h.state;
    int r = threadIdx.x % 32;
    routing a = {0, 0, 0, st->routed, st->topk, st->learnt, st->width, st->tokens, st->limit};
    if (r < h.size)
        a.recv = st->recv[r], a.reply = st->reply[r], a.base = st->base[r];
    return a;
}
__device__ static int own_fault(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const routing &a, known *k, int64_t *rows) {
    int r = threadIdx.x % 32;
    int64_t n = a.recv;
    k->recv[r] = a.recv;
    k->reply[r] = a.reply;
    k->base[r] = a.base;
    if (r == 0) {
        k->limit = a.limit;
        k->width = a.width;
        k->pulled = !h.ll.expert && is_plain(c) && !c.slot_values && c.offer.at[MPIX_CUDA_AT_X].window >= 0 && a.limit <= c.offer.rows;
    }
    for (int d = 16; d; d /= 2)
        n += __shfl_xor_sync(~0u, n, d);
    *rows = n;
    return !a.routed ? MPIX_CUDA_NOT_ROUTED : a.tokens != c.tokens || a.topk != c.topk ? MPIX_CUDA_STALE : !a.learnt ? MPIX_CUDA_NO_DISPATCH :
           n > 0 && a.limit > 0 && (!c.x || (c.scale_kind && !c.scales)) ? MPIX_CUDA_NO_ROWS : 0;
}

/* ---- sending ---- */
/* Rows to send are numbered by (peer, place among those that came from it), peers in turn from the next rank on. */
__device__ __forceinline__ uint32_t rows_most(const mpix_cuda_handle &h) { return (uint32_t)((h.size - 1) * h.max_tokens); }
__device__ __forceinline__ int source_of(const mpix_cuda_handle &h, uint32_t u) { return (h.rank + 1 + (int)(u / (uint32_t)h.max_tokens)) % h.size; }
__device__ __forceinline__ int64_t place_of(const mpix_cuda_handle &h, uint32_t u) { return u % (uint32_t)h.max_tokens; }

/* By the first block's workers. Rows that peers will read were written by what came before on the stream, which the fence covers. */
__device__ static void heads_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int status, uint64_t epoch, const known &k) {
    int r = threadIdx.x;
    if (r >= h.size)
        return;
    mpix_cuda_ll_head mine = {};
    mine.status = status;
    mine.flags = c.slot_values ? MPIX_CUDA_LL_SLOTS : 0;
    mine.rows = status ? 0 : k.recv[r];
    mine.dtype = c.offer.dtype;
    mine.hidden = c.hidden;
    if (k.pulled && r != h.rank) {
        const mpix_cuda_place &at = c.offer.at[MPIX_CUDA_AT_X];
        int64_t begin = r * h.max_tokens, left = k.limit - begin;
        mine.flags |= MPIX_CUDA_LL_PULL;
        mine.window = at.window;
        mine.at = at.off + (uint64_t)begin * at.stride;
        mine.stride = at.stride;
        mine.exist = left < 0 ? 0 : left < (int64_t)mine.rows ? (uint32_t)left : mine.rows;
        __threadfence_system();
    }
    ll_head_put(h, r, 1, epoch, mine);
}

/* EXPERT: the row of each choice of a token, by lane; before it is known how many choices there are. */
__device__ __forceinline__ int64_t rows_ask(const mpix_cuda_handle &h, int s, int64_t i) {
    int lane = threadIdx.x % 32;
    return h.ll.expert && lane < h.max_topk ? h.ll.place[(s * h.max_tokens + i) * h.max_topk + lane] : -1;
}
/* The row of the lane, of a token that came from source s as its i-th; -1: none. */
__device__ __forceinline__ int64_t row_here(const mpix_cuda_handle &h, const known &k, int s, int64_t i, int64_t asked) {
    int lane = threadIdx.x % 32;
    int64_t row = h.ll.expert ? lane < k.width ? asked : -1 : lane == 0 ? s * h.max_tokens + i : -1;
    return row < k.limit ? row : -1;
}

/* Anything that is not for vectors. A token that came from source s as its i-th, by a team: to where the answer goes, or not if it is plain. */
__device__ static __noinline__ void answer_make(const mpix_cuda_handle &h, const mpix_cuda_combine &c, ll_team team, const known &known,
                                                int s, int64_t row,
                                                int64_t answer, bool to_answer) {
    int lane = threadIdx.x % 32, width = known.width;
    ll_sum a = {};
    a.there = row >= 0;
    if (a.there) {
        a.x = c.x + row * c.x_stride;
        a.scales = c.scales + row * c.scale_stride;
        a.w = c.row_weights ? c.row_weights[row] : 1.0f;
    }
    uint32_t mask = __ballot_sync(~0u, a.there);
    if (c.slot_values && mask && team.part == team.warps / 2) {
        float *to = ll_answer_values(h, s, answer);
        int64_t first = __shfl_sync(~0u, row, 0);
        for (int k = lane; k < width; k += 32)
            to[k] = h.ll.expert ? row >= 0 ? c.slot_values[row] : 0.0f : c.slot_values[first * width + k];
    }
    if (!mask || !to_answer)
        return;
    a.y = ll_answer_row(h, s, answer);
    if (is_plain(c) && __popc(mask) == 1) {
        const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, __ffs(mask) - 1);
        int64_t n, at = ll_part(team, c.row, &n);
        if (n > 0)
            warp_copy_any(x + at, lane == 0 ? a.y + at : nullptr, n, lane);
        return;
    }
    a.weighted = c.row_weights != nullptr;
    a.xdtype = c.xdtype;
    a.scale_kind = c.scale_kind;
    a.ydtype = c.offer.dtype;
    a.hidden = c.hidden;
    sum_rows(a, team);
}

/* A team's. Whether the token has rows here. */
template <int X>
__device__ __forceinline__ bool answer_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const ll_team &team, const known &k,
                                            int s, int64_t row, int64_t answer) {
    uint32_t mask = __ballot_sync(~0u, row >= 0);
    if (!c.vectors) {
        answer_make(h, c, team, k, s, row, answer, true);
        return mask != 0;
    }
    const char *x = c.x + row * c.x_stride;
    float w = c.row_weights && row >= 0 ? c.row_weights[row] : 1.0f;
    char *y = ll_answer_row(h, s, answer);
    for (int64_t at = 0; mask && at < c.row; at += round_bytes(team)) {
        uint4 v[COLUMNS];
        part_sum<X>(x, w, c.row_weights != nullptr, mask, team, at, c.row, v);
#pragma unroll
        for (int u = 0; u < COLUMNS; u++)
            if (column(team, at, u) < c.row)
                *(uint4 *)(y + column(team, at, u)) = v[u];
    }
    return mask != 0;
}

__device__ __forceinline__ int64_t answer_of(const mpix_cuda_handle &h, const known &k, int source, int64_t i, uint64_t epoch) {
    return ll_answer(h, (int64_t)k.reply[source] + i, (int)(epoch % h.ll.depth));
}

/* What is left over of other blocks', by a team. */
template <int X>
__device__ static __noinline__ void answers_steal(const mpix_cuda_handle &h, const mpix_cuda_combine &c, ll_team team, uint64_t epoch,
                                                  const known &k, uint32_t *shared) {
    uint32_t u = 0, n = rows_most(h);
    auto exists = [&](uint32_t u) { return place_of(h, u) < k.recv[source_of(h, u)]; };
    while ((u = ll_steal(team, h.ll.claims[1], n, u, epoch, shared, exists)) < n) {
        int from = source_of(h, u);
        int64_t i = place_of(h, u), answer = answer_of(h, k, from, i, epoch);
        bool there = answer_send<X>(h, c, team, k, from, row_here(h, k, from, i, rows_ask(h, from, i)), answer);
        ll_meet(team); /* the release covers the whole team's stores */
        if (team.part == 0 && threadIdx.x % 32 == 0)
            word_store(ll_answer_flag(h, from, answer), epoch | (there ? 0 : LL_EMPTY));
        __syncwarp();
    }
}

/* By the workers. asked: for the team's first row. */
template <int X>
__device__ __forceinline__ void answers_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const ll_team &team, int64_t asked,
                                             ll_shared *s, const known &k,
                                             uint32_t *shared) {
    uint64_t epoch = s->epoch;
    uint32_t n = rows_most(h);
    auto exists = [&](uint32_t u) { return place_of(h, u) < k.recv[source_of(h, u)]; };
    for (uint32_t round = 0; ll_owned(0, 1, round * team.teams) < n; round++) {
        uint32_t u = ll_owned(team.number, team.teams, round);
        bool there = false;
        if (round) {
            asked = u < n ? rows_ask(h, source_of(h, u), place_of(h, u)) : -1;
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        if (u < n && exists(u) && s->got[round & 1][team.number]) {
            int from = source_of(h, u);
            int64_t i = place_of(h, u);
            there = answer_send<X>(h, c, team, k, from, row_here(h, k, from, i, asked), answer_of(h, k, from, i, epoch));
        }
        if (team.part == 0 && threadIdx.x % 32 == 0 && !ll_idle(team))
            s->there[round & 1][team.number] = there;
        if (ll_owned(0, 1, (round + 1) * team.teams) < n)
            ll_sync(LL_BAR_SENT, LL_WORKERS + 32); /* before the flagger claims more */
        else
            ll_arrive(LL_BAR_SENT, LL_WORKERS + 32);
    }
    if (ll_left(h.ll.claims[1], n, epoch, exists) && !ll_idle(team))
        answers_steal<X>(h, c, team, epoch, k, shared);
}

/* By the flagger, of the same rounds. The first round's rows are claimed. */
__device__ static void flags_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch, ll_shared *s, const known &k) {
    int lane = threadIdx.x % 32, teams = LL_WARPS / c.team[0];
    uint32_t n = rows_most(h);
    for (uint32_t round = 0; ll_owned(0, 1, round * teams) < n; round++) {
        if (round) {
            ll_claim_round(h.ll.claims[1], n, teams, round, epoch, s);
            ll_sync(LL_BAR_ROUND, LL_WORKERS + 32);
        }
        uint32_t u = ll_owned(lane, teams, round);
        int from = u < n ? source_of(h, u) : 0;
        int64_t i = u < n ? place_of(h, u) : 0;
        bool mine = u < n && i < k.recv[from] && s->got[round & 1][lane];
        __syncwarp();
        ll_sync(LL_BAR_SENT, LL_WORKERS + 32);
        __threadfence_system(); /* covers what all workers have stored before that barrier */
        if (mine) {
            delay(h, 20 + from);
            ll_put(ll_answer_flag(h, from, answer_of(h, k, from, i, epoch)), epoch | (s->there[round & 1][lane] ? 0 : LL_EMPTY));
        }
        __syncwarp();
    }
}

/* ---- receiving ---- */
/* By the clerk. */
__device__ static int answers_judge(const mpix_cuda_handle &h, const mpix_cuda_combine &c, bool tells, const mpix_cuda_ll_head *heads) {
    int r = threadIdx.x % 32, bad = ll_judge(h, tells, heads, c.hidden, c.offer.dtype, 0);
    if (bad)
        return bad;
    if (r < h.size && heads[r].rows != h.state->send[r])
        bad = 1, ll_report(tells, h, MPIX_CUDA_ANSWERS, 0, r, heads[r].rows, h.state->send[r]);
    else if (r < h.size && c.out_slots && heads[r].rows > 0 && !(heads[r].flags & MPIX_CUDA_LL_SLOTS))
        bad = 1, ll_report(tells, h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* Of a token of this rank; of lane r: the answer of rank r. */
struct incoming {
    bool goes;
    int64_t i, answer, row; /* row: of the lane, here; -1: none */
};
/* Two loads, one after the other; before it is known what there is. */
__device__ __forceinline__ void token_ask(const mpix_cuda_handle &h, int64_t t, incoming &o) {
    int lane = threadIdx.x % 32;
    o.goes = lane < h.size && (h.bitmap[t] >> lane & 1);
    o.i = lane < h.size ? ll_place_of(h, t, lane) : 0;
    o.row = rows_ask(h, h.rank, __shfl_sync(~0u, o.i, h.rank));
}
__device__ __forceinline__ void token_know(const mpix_cuda_handle &h, const known &k, int bank, incoming &o) {
    int lane = threadIdx.x % 32;
    o.answer = ll_answer(h, (int64_t)k.base[lane] + o.i, bank);
    bool own = __any_sync(~0u, o.goes && lane == h.rank);
    int64_t i = __shfl_sync(~0u, o.i, h.rank), row = row_here(h, k, h.rank, i, o.row);
    o.row = own ? row : -1;
}
/* The first token of a team that receives. */
__device__ __forceinline__ int64_t token_first(const mpix_cuda_combine &c, const ll_team &team) {
    return ll_idle(team) ? c.tokens : (int64_t)team.number * gridDim.x + blockIdx.x;
}

/* Of lane r: how the answers of rank r are had. */
struct answers {
    const char *pull; /* not NULL: they are read in place */
    int64_t stride;
    uint32_t exist;
};
__device__ __forceinline__ answers answers_of(const mpix_cuda_handle &h, const mpix_cuda_ll_head *heads) {
    int lane = threadIdx.x % 32;
    if (lane >= h.size || !(heads[lane].flags & MPIX_CUDA_LL_PULL))
        return {nullptr, 0, 0};
    return {(const char *)h.bases[heads[lane].window * MPIX_CUDA_RANKS + lane] + heads[lane].at, (int64_t)heads[lane].stride, heads[lane].exist};
}
__device__ __forceinline__ const char *answer_at(const mpix_cuda_handle &h, const answers &a, const incoming &o) {
    return a.pull ? a.pull + o.i * a.stride : ll_answer_row(h, h.rank, o.answer);
}

/* Waits for the answers of peers. False: time-out. there: of the lane's peer. */
__device__ __forceinline__ bool answers_await(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const ll_team &team,
                                              const incoming &o, const answers &a,
                                              uint64_t epoch, uint64_t start, bool *there) {
    int lane = threadIdx.x % 32;
    uint64_t got;
    bool peer = o.goes && lane != h.rank;
    if (!ll_await(h, peer && !a.pull ? ll_answer_flag(h, h.rank, o.answer) : nullptr, epoch, lane, c.report, &got))
        return false;
    if (c.wait_ns && peer && team.part == 0)
        atomicMax((unsigned long long *)&h.state->waited[lane], now_ns() - start);
    *there = peer && (a.pull ? o.i < (int64_t)a.exist : !(got & LL_EMPTY));
    return true;
}

/* Anything that is not for vectors: the own part goes through the own bank. False: time-out. */
__device__ static __noinline__ bool token_sum_any(const mpix_cuda_handle &h, const mpix_cuda_combine &c, ll_team team, const known &k, incoming o,
                                                  answers from, int64_t t, uint64_t epoch, uint64_t start) {
    int lane = threadIdx.x % 32;
    bool plain = !h.ll.expert && is_plain(c), there = false, own = __any_sync(~0u, o.goes && lane == h.rank), mine = own && __any_sync(~0u, o.row >= 0);
    if (own)
        answer_make(h, c, team, k, h.rank, o.row, __shfl_sync(~0u, o.answer, h.rank), !plain);
    ll_meet(team);
    if (!answers_await(h, c, team, o, from, epoch, start, &there))
        return false;
    ll_sum a = {};
    a.there = lane == h.rank ? mine : there;
    a.x = lane == h.rank && plain ? c.x + (h.rank * h.max_tokens + o.i) * c.x_stride : answer_at(h, from, o);
    a.w = 1.0f;
    a.xdtype = c.offer.dtype;
    a.ydtype = c.ydtype;
    a.num_bias = c.num_bias;
    for (int b = 0; b < c.num_bias; b++)
        a.bias[b] = c.bias[b] + t * c.bias_stride[b];
    a.y = c.y + t * c.y_stride;
    a.hidden = c.hidden;
    sum_rows(a, team);
    uint32_t all = __ballot_sync(~0u, a.there);
    for (int k0 = 0; c.out_slots && team.part == 0 && k0 < c.topk; k0 += 32) {
        int j = k0 + lane, id = j < c.topk ? h.ids[t * h.max_topk + j] : -1, r = id >= 0 ? h.owner[id] : 0;
        int64_t at = __shfl_sync(~0u, o.answer, r);
        if (j < c.topk)
            c.out_slots[t * c.topk + j] = id >= 0 && (all >> r & 1) ? __ldcg(ll_answer_values(h, h.rank, at) + j) : 0.0f;
    }
    ll_meet(team); /* before the own part of the next token */
    return true;
}

/* One round of columns of a token: mine, this rank's part, if mask has its bit, and the answers of the others in mask, ranks ascending, biases. */
template <int X>
__device__ __forceinline__ void round_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const ll_team &team, const char *x, uint32_t mask,
                                          const uint4 (&mine)[COLUMNS], int64_t t, int64_t at) {
    columns<X> sum = {};
    bool first = true;
    for (uint32_t m = mask; m;) {
        uint4 v[ANSWERS][COLUMNS];
        int left = __popc(m);
#pragma unroll
        for (int j = 0; j < ANSWERS; j++) {
            if (j >= left)
                continue;
            int r = __ffs(m) - 1;
            m &= m - 1;
            if (r != h.rank) {
                columns_load(v[j], (const char *)__shfl_sync(~0u, (unsigned long long)x, r), team, at, c.row);
                continue;
            }
#pragma unroll
            for (int u = 0; u < COLUMNS; u++)
                v[j][u] = mine[u];
        }
#pragma unroll
        for (int j = 0; j < ANSWERS; j++)
            if (j < left)
                columns_add<X>(sum, v[j], false, 1.0f, first && j == 0);
        first = false;
    }
    for (int b = 0; b < c.num_bias; b++) {
        uint4 v[COLUMNS];
        columns_load(v, c.bias[b] + t * c.bias_stride[b], team, at, c.row);
        columns_add<X>(sum, v, false, 1.0f, false); /* to a sum of nothing, which is 0, too */
    }
#pragma unroll
    for (int u = 0; u < COLUMNS; u++)
        if (column(team, at, u) < c.row)
            *(uint4 *)(c.y + t * c.y_stride + column(team, at, u)) = down_fast<X>(sum.f[u]);
}

/* By the workers. False: the call fails, or a time-out. */
template <int X>
__device__ __forceinline__ bool tokens_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c, ll_shared *s,
                                           const mpix_cuda_ll_head *heads, const known &k, incoming &o) {
    ll_team team = ll_team_of(c.team[1]);
    uint64_t epoch = s->epoch, start = c.wait_ns ? now_ns() : 0;
    int lane = threadIdx.x % 32, bank = (int)(epoch % h.ll.depth);
    int64_t t = token_first(c, team);
    answers from = {};
    uint4 mine[COLUMNS] = {};
    /* The first token's own part needs no verdict. */
    uint32_t own = 0;
    const char *x = nullptr;
    float w = 1.0f;
    for (bool begun = false; t < c.tokens || !begun; t += (int64_t)gridDim.x * team.teams) {
        bool some = t < c.tokens && s->status == 0;
        if (some) {
            if (begun)
                token_ask(h, t, o);
            token_know(h, k, bank, o);
            if (c.vectors) {
                own = __ballot_sync(~0u, o.row >= 0);
                x = c.x + o.row * c.x_stride;
                w = c.row_weights && o.row >= 0 ? c.row_weights[o.row] : 1.0f;
                if (own)
                    part_sum<X>(x, w, c.row_weights != nullptr, own, team, 0, c.row, mine);
            }
        }
        if (!begun) {
            begun = true;
            ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
            if (s->bad)
                return false;
            from = answers_of(h, heads);
        }
        if (!some)
            continue;
        if (!c.vectors) {
            if (!token_sum_any(h, c, team, k, o, from, t, epoch, start))
                return false;
            continue;
        }
        bool there = false;
        if (!answers_await(h, c, team, o, from, epoch, start, &there))
            return false;
        uint32_t mask = __ballot_sync(~0u, lane == h.rank ? own != 0 : there);
        const char *answer = answer_at(h, from, o);
        for (int64_t at = 0; at < c.row; at += round_bytes(team)) {
            if (at && own)
                part_sum<X>(x, w, c.row_weights != nullptr, own, team, at, c.row, mine);
            round_sum<X>(h, c, team, answer, mask, mine, t, at);
        }
    }
    return true;
}

/* By the last block's first warp, when its rows have readers: until they have read. False: time-out. */
__device__ static bool readers_wait(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch, const known &k) {
    int r = threadIdx.x;
    bool ok = true;
    if (r < h.size && r != h.rank && k.recv[r] > 0)
        ok = word_wait(h, ll_taken(h, h.rank, r, 1), epoch, r, c.report);
    return __all_sync(~0u, ok);
}

template <int X>
__global__ void __launch_bounds__(LL_THREADS) ll_combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                            const __grid_constant__ mpix_cuda_combine c) {
    __shared__ mpix_cuda_ll_head heads[MPIX_CUDA_RANKS];
    __shared__ ll_shared s;
    __shared__ known k;
    __shared__ uint32_t stolen[LL_WARPS];
    int warp = threadIdx.x / 32;
    bool sends = c.part != MPIX_CUDA_END, receives = c.part != MPIX_CUDA_BEGIN, head = blockIdx.x == 0 && sends;
    ll_team team = ll_team_of(c.team[0]);
    incoming o = {};
    int64_t asked = -1, told = 0;
    int fault = 0;
    if (warp == LL_CLERK) {
        routing at = routing_ask(h);
        ll_asked asks = ll_ask(h, 1, sends);
        int64_t rows;
        fault = own_fault(h, c, at, &k, &rows);
        fault = c.status || !sends ? 0 : fault;
        told = fault == MPIX_CUDA_NO_ROWS ? rows : at.tokens;
        ll_open(h, 1, asks, c.report, &s);
        if (threadIdx.x % 32 == 0)
            s.status = c.status ? c.status : fault ? 1 : 0;
    } else if (warp == LL_FLAGGER) {
        ll_flagger_open(h, 1, sends, h.ll.claims[1], rows_most(h), team.teams, &s);
    } else {
        ll_team other = ll_team_of(c.team[1]);
        uint32_t u = sends ? ll_owned(team.number, team.teams, 0) : ~0u;
        if (u < rows_most(h))
            asked = rows_ask(h, source_of(h, u), place_of(h, u));
        if (receives && token_first(c, other) < c.tokens)
            token_ask(h, token_first(c, other), o);
    }
    __syncthreads();
    if (!s.go)
        return;
    uint64_t epoch = s.epoch;
    if (warp == LL_CLERK) {
        bool last = ll_started(h, MPIX_CUDA_COMBINE);
        if (head)
            ll_say_taken(h, 1, epoch);
        if (fault && threadIdx.x % 32 == 0)
            ll_report(last, h, fault, 0, -1, told, c.tokens);
        int how = !receives || ll_heads(h, 1, epoch, c.report, c.wait_ns && blockIdx.x == 0, heads) ? 0 : 2;
        how = how || !receives ? how : answers_judge(h, c, last, heads);
        if (how == 0 && receives && __any_sync(~0u, threadIdx.x % 32 < h.size && (heads[threadIdx.x % 32].flags & MPIX_CUDA_LL_PULL)))
            __threadfence_system(); /* before the rows are read */
        if (threadIdx.x % 32 == 0)
            s.bad = how;
        __syncwarp();
        ll_arrive(LL_BAR_HEADS, LL_WORKERS + 32);
        if (last && how < 2)
            ll_count(h, MPIX_CUDA_COMBINE, receives, epoch, c.report);
    } else if (warp == LL_FLAGGER) {
        if (sends && !s.status && !k.pulled)
            flags_send(h, c, epoch, &s, k);
    } else {
        if (head)
            heads_send(h, c, s.status, epoch, k);
        if (sends && !s.status && !k.pulled)
            answers_send<X>(h, c, team, asked, &s, k, stolen);
        if (!receives)
            ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
        else if (!tokens_sum<X>(h, c, &s, heads, k, o) && s.bad == 0)
            s.bad = 2;
    }
    __syncthreads();
    bool eager = c.eager || (!c.status && k.pulled);
    for (int r = 0; r < h.size && receives && s.bad == 0; r++)
        eager = eager || (heads[r].flags & MPIX_CUDA_LL_PULL);
    if (!eager || !receives || s.bad == 2 || threadIdx.x >= 32 || !ll_last(h, MPIX_CUDA_COMBINE))
        return;
    ll_end(h, 1, epoch, c.wait_ns);
    if (!c.status && !s.status && k.pulled)
        readers_wait(h, c, epoch, k);
}

/* Whether rows can be summed 16 bytes at a time; places in windows are aligned. */
static int vectors_of(const mpix_cuda_combine *c) {
    uint64_t bits = (uint64_t)c->row | (uint64_t)c->x | (uint64_t)c->x_stride;
    if (c->tokens > 0)
        bits |= (uint64_t)c->y | (uint64_t)c->y_stride;
    for (int b = 0; b < c->num_bias && c->tokens > 0; b++)
        bits |= (uint64_t)c->bias[b] | (uint64_t)c->bias_stride[b];
    int x = c->xdtype;
    return bits % 16 == 0 && x == c->offer.dtype && x == c->ydtype && (x == F32 || x == F16 || x == BF16) && !c->slot_values && !c->out_slots;
}

cudaError_t mpix_cuda_ll_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream) {
    c->eager = h->ll.depth == 1 || c->wait_ns != NULL;
    int blocks = ll_blocks(d, c->num_sms), ranks = h->size < h->max_topk ? h->size : h->max_topk;
    c->team[0] = ll_team_size(blocks > 1 ? blocks - 1 : 1, c->tokens * (ranks > 1 ? ranks - 1 : 1));
    c->team[1] = ll_team_size(blocks, c->tokens);
    c->vectors = vectors_of(c);
    int dtype = c->offer.dtype;
    if (dtype == F32)
        ll_combine_kernel<F32><<<blocks, LL_THREADS, 0, stream>>>(*h, *c);
    else if (dtype == F16)
        ll_combine_kernel<F16><<<blocks, LL_THREADS, 0, stream>>>(*h, *c);
    else
        ll_combine_kernel<BF16><<<blocks, LL_THREADS, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_ll_combine_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, ll_combine_kernel<F32>);
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, ll_combine_kernel<F16>) : err;
    return err == cudaSuccess ? cudaFuncGetAttributes(&a, ll_combine_kernel<BF16>) : err;
}
