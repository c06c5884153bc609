/*
 * ll_combine.cu - low-latency combine: one kernel, or its halves. The protocol is in ll.cuh, what
 * is computed in coll/host_ll/combine.c.
 *
 * Sending: the sums of the rows here (choices ascending, weighted) of each token that came from a
 * peer, rounded to the wire's dtype, go to the place of the answer in the owner's bank, from
 * whatever memory the rows lie in: to read them in place would take the owner a round trip over the
 * link, and this rank another one to learn that it has. Receiving: the workers take the rank's
 * tokens in order, make this rank's own part of the sum, rounded like the others', and add it and
 * the answers of the other ranks that the token went to, ranks ascending, then the biases.
 */
#include "ll_answers.cuh"

/* ---- receiving ------------------------------------------------------------------------------- */
/* By the clerk. */
__device__ static int answers_judge(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    bool tells, const mpix_ep_ll_head *heads) {
    int r = threadIdx.x % 32, bad = ll_judge(h, tells, heads, c.hidden, c.offer.dtype, 0);
    if (bad)
        return bad;
    if (r < h.size && heads[r].rows != h.state->send[r])
        bad = 1, ll_report(tells, h, MPIX_CUDA_ANSWERS, 0, r, heads[r].rows, h.state->send[r]);
    else if (r < h.size && c.out_slots && heads[r].rows > 0 && !(heads[r].flags & MPIX_EP_LL_SLOTS))
        bad = 1, ll_report(tells, h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* Of a token of this rank; of lane r: the answer of rank r. */
struct incoming {
    bool goes;
    int64_t i, row; /* row: of the lane, here; -1: none */
};
/* The tokens of a block, dealt out from the last one on, as the first ones send; the first of a
 * round is number `first` of them. */
__device__ __forceinline__ int64_t token_of(int64_t number) {
    return number * gridDim.x + (gridDim.x - 1 - blockIdx.x);
}
__device__ __forceinline__ int64_t tokens_here(const mpix_cuda_combine &c) {
    int64_t left = c.tokens - token_of(0);
    return left > 0 ? (left + gridDim.x - 1) / gridDim.x : 0;
}
/* Two loads, one after the other; before it is known what there is. */
template <class F>
__device__ __forceinline__ void token_ask(const mpix_cuda_handle &h, int64_t t, incoming &o) {
    int lane = threadIdx.x % 32;
    o.goes = lane < h.size && (h.bitmap[t] >> lane & 1);
    o.i = lane < h.size ? ll_place_of(h, t, lane) : 0;
    o.row = rows_ask<F>(h, h.rank, __shfl_sync(~0u, o.i, h.rank));
}
template <class F>
__device__ __forceinline__ int64_t token_row(const mpix_cuda_handle &h, const known &k,
                                             const incoming &o) {
    int64_t i = __shfl_sync(~0u, o.i, h.rank);
    return __any_sync(~0u, o.goes && (int)(threadIdx.x % 32) == h.rank)
               ? row_here<F>(h, k, h.rank, i, o.row)
               : -1;
}

/* By a warp, whose lanes have an answer each of a rank, or none. False: time-out.
 * there: it is a row. */
__device__ __forceinline__ bool answers_await(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                              bool peer, int rank, int64_t answer, uint64_t epoch,
                                              uint64_t start, bool *there) {
    uint64_t got;
    if (!ll_await(h, peer ? ll_answer_flag(h, h.rank, answer) : nullptr, epoch, rank, c.report,
                  &got))
        return false;
    if (c.wait_ns && peer)
        atomicMax((unsigned long long *)&h.state->waited[rank], now_ns() - start);
    *there = peer && !(got & LL_EMPTY);
    return true;
}

/* Anything that is not for vectors: the own part goes through the own bank. False: time-out. */
template <class F>
__device__ static __noinline__ bool token_sum_any(const mpix_cuda_handle &h,
                                                  const mpix_cuda_combine &c, const known &k,
                                                  int64_t t, ll_shared *s, uint64_t start) {
    int lane = threadIdx.x % 32;
    incoming o;
    token_ask<F>(h, t, o);
    int64_t row = token_row<F>(h, k, o),
            number = ll_answer(h, (int64_t)k.base[lane] + o.i, s->bank);
    bool plain = !F::expert(h) && is_plain(c), there = false, mine = __any_sync(~0u, row >= 0);
    if (__any_sync(~0u, o.goes && lane == h.rank)) {
        answer own = own_answer(h, __shfl_sync(~0u, number, h.rank));
        if (plain)
            own.row = nullptr;
        answer_make<F>(h, c, k, row, own);
    }
    ll_meet();
    bool ok = answers_await(h, c, o.goes && lane != h.rank, lane, number, s->epoch, start, &there);
    elem_terms a = {};
    a.there = lane == h.rank ? mine : there;
    a.x = lane == h.rank && plain ? c.x + (h.rank * h.max_tokens + o.i) * c.x_stride
                                  : ll_answer_row(h, h.rank, number);
    a.w = 1.0f;
    a.xdtype = c.offer.dtype;
    a.ydtype = c.ydtype;
    a.num_bias = c.num_bias;
    for (int b = 0; b < c.num_bias; b++)
        a.bias[b] = c.bias[b] + t * c.bias_stride[b];
    a.y = c.y + t * c.y_stride;
    a.hidden = c.hidden;
    if (ok)
        rows_sum(a);
    uint32_t all = __ballot_sync(~0u, a.there);
    for (int k0 = 0; ok && c.out_slots && threadIdx.x < 32 && k0 < c.topk; k0 += 32) {
        int j = k0 + lane, id = j < c.topk ? h.ids[t * h.max_topk + j] : -1,
            r = id >= 0 ? h.owner[id] : 0;
        int64_t at = __shfl_sync(~0u, number, r);
        if (j < c.topk)
            c.out_slots[t * c.topk + j] = id >= 0 && (all >> r & 1)
                                              ? __ldcg(ll_answer_values(h, h.rank, at) + j)
                                              : 0.0f;
    }
    if (!ok)
        /* of the next token only behind the barrier in its middle, so all have read this one's */
        s->late = 1;
    ll_meet(); /* before the own part of the next token, too */
    return !s->late;
}

/* By the flagger: the answers of the block's tokens from `first` on, m of them, and what is to be
 * added. False: time-out. */
__device__ static bool answers_watch(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                     const known &k, const lists *own, finals *f, int64_t first,
                                     int m, const ll_shared *s, uint64_t start) {
    int lane = threadIdx.x % 32, each = 32 / h.size, r = lane % h.size, bank = s->bank;
    uint32_t below = (1u << lane) - 1, group = (h.size == 32 ? ~0u : (1u << h.size) - 1)
                                               << lane / h.size * h.size;
    for (int j0 = 0; j0 < m; j0 += each) {
        int j = j0 + lane / h.size;
        bool on = lane < each * h.size && j < m, there = false;
        int64_t t = on ? token_of(first + j) : 0;
        bool goes = on && (h.bitmap[t] >> r & 1);
        int64_t answer = goes ? ll_answer(h, (int64_t)k.base[r] + ll_place_of(h, t, r), bank) : 0;
        if (!answers_await(h, c, goes && r != h.rank, r, answer, s->epoch, start, &there))
            return false;
        if (r == h.rank)
            there = goes && own->count[j] > 0;
        uint32_t mine = __ballot_sync(~0u, there) & group;
        int n = __popc(mine);
        if (there)
            f->at[j][__popc(mine & below)] = r == h.rank ? FINAL_OWN
                                                         : ll_answer_row(h, h.rank, answer);
        if (on && r == 0) {
            if (n == 0)
                f->at[j][n++] = FINAL_NONE;
            for (int b = 0; b < c.num_bias; b++)
                f->at[j][n++] = c.bias[b] + t * c.bias_stride[b];
            f->count[j] = n;
        }
    }
    __syncwarp();
    return true;
}
__device__ __forceinline__ int round_of(const mpix_cuda_combine &c, int64_t first) {
    int64_t left = tokens_here(c) - first;
    return (int)(left < c.round ? left : c.round);
}
/* By the flagger, for tokens_sum. */
template <class F>
__device__ static void tokens_watch(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    ll_shared *s, const known &k, const lists *own, finals *f) {
    uint64_t start = c.wait_ns ? now_ns() : 0;
    ll_sync(LL_BAR_VERDICT, 64);
    if (s->bad || !F::vectors)
        return;
    for (int64_t first = 0; first < tokens_here(c); first += c.round) {
        ll_sync(LL_BAR_LISTS, LL_WORKERS + 32);
        bool ok = answers_watch(h, c, k, own, f, first, round_of(c, first), s, start);
        if (!ok && threadIdx.x % 32 == 0)
            s->late = 1;
        __syncwarp();
        ll_sync(LL_BAR_THERE, LL_WORKERS + 32);
        if (!ok)
            return;
    }
}
/* By the workers. */
template <int X, class F>
__device__ __forceinline__ void tokens_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                           ll_shared *s, const known &k, incoming &o, lists *own,
                                           const finals *f, uint32_t room) {
    int warp = threadIdx.x / 32;
    uint32_t held = room + DEEP * SLOT;
    if (!F::vectors || s->status) {
        uint64_t start = c.wait_ns ? now_ns() : 0;
        ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
        /* with a status of its own bad is set */
        for (int64_t i = 0; !F::vectors && s->bad == 0 && i < tokens_here(c); i++)
            if (!token_sum_any<F>(h, c, k, token_of(i), s, start))
                break;
        return;
    }
    if (tokens_here(c) == 0)
        ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
    for (int64_t first = 0; first < tokens_here(c); first += c.round) {
        int m = round_of(c, first);
        if (first && warp < m)
            token_ask<F>(h, token_of(first + warp), o);
        list_make(own, warp, warp < m ? token_row<F>(h, k, o) : -1, nullptr);
        ll_meet();
        ll_arrive(LL_BAR_LISTS, LL_WORKERS + 32);
        parts_sum<X>(parts_of(c), own, (1u << m) - 1, room, held); /* needs no verdict */
        if (first == 0)
            ll_sync(LL_BAR_HEADS, LL_WORKERS + 32);
        if (s->bad)
            return;
        ll_sync(LL_BAR_THERE, LL_WORKERS + 32);
        if (s->late)
            return;
        outputs y = {c.y + token_of(first) * c.y_stride, c.y_stride * gridDim.x, c.row,
                     (int)((c.row + LL_PIECE - 1) / LL_PIECE)};
        finals_sum<X>(y, f, m, room, held);
    }
}

template <int X, class F>
__global__ void __launch_bounds__(LL_THREADS, 1)
    ll_combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                      const __grid_constant__ mpix_cuda_combine c) {
    extern __shared__ __align__(16) char rooms[];
    __shared__ mpix_ep_ll_head heads[MPIX_CUDA_RANKS];
    __shared__ ll_shared s;
    __shared__ known k;
    __shared__ lists l;
    __shared__ finals f;
    int warp = threadIdx.x / 32;
    bool sends = c.part != MPIX_CUDA_END, receives = c.part != MPIX_CUDA_BEGIN,
         head = blockIdx.x == 0 && sends;
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
            s.status = c.status ? c.status : fault ? MPIX_KIND_ARG : 0;
    } else if (warp == LL_FLAGGER) {
        if (sends)
            ll_claim_round(h.ll.claims[1], rows_most(h), 0, 3, &s);
    } else {
        uint32_t u = sends ? ll_owned(0, warp) : ~0u;
        if (u < rows_most(h))
            asked = rows_ask<F>(h, source_of(h, u), place_of(h, u));
        if (receives && F::vectors && warp < round_of(c, 0))
            token_ask<F>(h, token_of(warp), o);
    }
    __syncthreads();
    if (!s.go)
        return;
    uint64_t epoch = s.epoch;
    if (warp == LL_CLERK) {
        uint32_t before = ll_started(h, MPIX_CUDA_COMBINE);
        if (head)
            ll_say_taken<F>(h, 1, epoch);
        if (fault && ll_is_last(before) && threadIdx.x % 32 == 0)
            ll_report(true, h, fault, 0, -1, told, c.tokens);
        int how = !receives || ll_heads(h, 1, epoch, s.bank, c.report, c.wait_ns && blockIdx.x == 0,
                                        heads)
                      ? 0
                      : 2;
        bool last = ll_is_last(before);
        how = how || !receives ? how : answers_judge(h, c, last, heads);
        if (receives) {
            if (threadIdx.x % 32 == 0)
                s.bad = how;
            __syncwarp();
            ll_arrive(LL_BAR_HEADS, LL_WORKERS + 32);
            ll_arrive(LL_BAR_VERDICT, 64);
        }
        if (last && how < 2)
            ll_count(h, 1, receives, s, c.report);
        if (last && sends)
            ll_claims_clear(h.ll.claims[1], rows_most(h), epoch);
    } else if (warp == LL_FLAGGER) {
        if (sends && !s.status)
            flags_send<F>(h, c, epoch, &s, k);
        if (receives)
            tokens_watch<F>(h, c, &s, k, &l, &f);
    } else {
        uint32_t room = room_of(rooms, c.held);
        if (head)
            heads_send<F>(h, c, s, k);
        if (sends && !s.status)
            answers_send<X, F>(h, c, asked, &s, k, &l, room);
        if (receives)
            tokens_sum<X, F>(h, c, &s, k, o, &l, &f, room);
    }
    if (!c.eager)
        return;
    __syncthreads();
    if (receives && s.bad < 2 && !s.late && threadIdx.x < 32 && ll_last(h, MPIX_CUDA_COMBINE))
        ll_end<F>(h, 1, epoch, c.wait_ns);
}

/* Whether rows can be summed 16 bytes at a time; places in windows are aligned. */
static int vectors_of(const mpix_cuda_combine *c) {
    uint64_t bits = (uint64_t)c->row | (uint64_t)c->x | (uint64_t)c->x_stride;
    if (c->tokens > 0)
        bits |= (uint64_t)c->y | (uint64_t)c->y_stride;
    for (int b = 0; b < c->num_bias && c->tokens > 0; b++)
        bits |= (uint64_t)c->bias[b] | (uint64_t)c->bias_stride[b];
    int x = c->xdtype;
    return bits % 16 == 0 && x == c->offer.dtype && x == c->ydtype &&
           (x == F32 || x == F16 || x == BF16) && !c->slot_values && !c->out_slots;
}

/* Shared memory that a block can have besides what the kernel has. */
static size_t room_most(const mpix_cuda_device *d) {
    return (size_t)d->smem - sizeof(lists) - sizeof(finals) - 4096;
}

typedef void (*kernel)(mpix_cuda_handle, mpix_cuda_combine);
/* By whether some peers are reached through the proxy, layout and dtype; then what
 * sums anything. */
#define FORMS(remote) \
    { \
        {ll_combine_kernel<F32, ll_form<false, true, false, remote>>, \
         ll_combine_kernel<F16, ll_form<false, true, false, remote>>, \
         ll_combine_kernel<BF16, ll_form<false, true, false, remote>>}, \
        { \
            ll_combine_kernel<F32, ll_form<false, true, true, remote>>, \
                ll_combine_kernel<F16, ll_form<false, true, true, remote>>, \
                ll_combine_kernel<BF16, ll_form<false, true, true, remote>> \
        } \
    }
static const kernel forms[2][2][3] = {FORMS(false), FORMS(true)};
static const kernel general[2] = {ll_combine_kernel<F32, ll_form<false, false, false>>,
                                  ll_combine_kernel<F32, ll_form<false, false, false, true>>};

cudaError_t mpix_cuda_ll_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                        mpix_cuda_combine *c, cudaStream_t stream) {
    int64_t cols = (c->row + LL_PIECE - 1) / LL_PIECE;
    int dtype = c->offer.dtype, fits = 0;
    c->eager = h->ll.depth == 1 || c->wait_ns != NULL;
    /* four pieces of a warp, where a block can have so much */
    for (int held = 4; held > 0 && !fits; held--) {
        int64_t round = cols > 0 ? held * LL_WARPS / cols : LL_ROUND;
        c->round = (int)(round < 1 ? 1 : round > LL_ROUND ? LL_ROUND : round);
        c->held = (int)((c->round * cols + LL_WARPS - 1) / LL_WARPS);
        fits = room_bytes(c->held) <= room_most(d);
    }
    c->vectors = fits && vectors_of(c);
    size_t room = c->vectors ? room_bytes(c->held) : 0;
    c->held = c->vectors ? c->held : 0;
    int blocks = ll_blocks(d, c->num_sms);
    kernel form = c->vectors ? forms[h->remote.is != 0][h->ll.expert != 0][dtype == F32   ? 0
                                                                           : dtype == F16 ? 1
                                                                                          : 2]
                             : general[h->remote.is != 0];
    cudaError_t err = cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)room);
    if (err == cudaSuccess)
        form<<<blocks, LL_THREADS, room, stream>>>(*h, *c);
    return err == cudaSuccess ? cudaGetLastError() : err;
}

cudaError_t mpix_cuda_ll_combine_load(int *arch) {
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 14 && err == cudaSuccess; i++)
        err = mpix_cuda_load(arch, i < 12 ? forms[i / 6][i / 3 % 2][i % 3] : general[i - 12]);
    return err;
}
