/*
 * ll_combine.cu - low-latency combine: one kernel, or its halves. The protocol is in ll.cuh, what is computed in coll/ep_ll_combine.c.
 *
 * Sending: a team of warps takes a token that came, sums its rows here (choices ascending, weighted), rounds to the wire's dtype and stores that to
 * the place of the answer in the owner's bank. SLOTS rows that need neither, in memory that peers map, are not even stored: the head says where they
 * lie, and the kernel ends when their readers have said `taken`. Receiving: teams take the rank's tokens in order, wait for the answers of
 * the ranks that each went to, and add them, ranks ascending, then the biases.
 */
#include "copy.cuh"
#include "elem.cuh"
#include "ll.cuh"
#include "launch.h"

/* A sum of the rows that lanes hold, in the order of the lanes. */
struct ll_sum {
    const char *x, *scales; /* of the lane */
    float w;
    bool there, weighted, vectors; /* vectors: one dtype, 16-byte addresses, no scales */
    int xdtype, scale_kind, ydtype, num_bias;
    char *y;
    const char *bias[2];
    int64_t hidden;
};

template <typename T> __device__ __forceinline__ void sum_any(const ll_sum &a, const ll_team &team) {
    int lane = threadIdx.x % 32;
    uint32_t mask = __ballot_sync(~0u, a.there);
    for (int64_t j0 = team.part * 32; j0 < a.hidden; j0 += team.warps * 32) {
        int64_t j = j0 + lane;
        T sum = 0;
        bool first = true;
        for (uint32_t m = mask; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, r);
            const char *s = (const char *)__shfl_sync(~0u, (unsigned long long)a.scales, r);
            float w = __shfl_sync(~0u, a.w, r);
            if (j >= a.hidden)
                continue;
            T v;
            if (sizeof(T) == 8) {
                v = (T)elem_up64(x, a.xdtype, j);
                if (a.weighted)
                    v = (T)__dmul_rn((double)v, (double)w);
            } else {
                float f = elem_up(x, a.xdtype, j);
                if (a.scale_kind)
                    f = __fmul_rn(f, scale_up(s, a.scale_kind, j));
                if (a.weighted)
                    f = __fmul_rn(f, w);
                v = (T)f;
            }
            sum = first ? v : sizeof(T) == 8 ? (T)__dadd_rn((double)sum, (double)v) : (T)__fadd_rn((float)sum, (float)v);
            first = false;
        }
        for (int b = 0; b < a.num_bias && j < a.hidden; b++) {
            if (sizeof(T) == 8)
                sum = (T)__dadd_rn((double)sum, elem_up64(a.bias[b], a.ydtype, j));
            else
                sum = (T)__fadd_rn((float)sum, a.ydtype == F64 ? (float)((const double *)a.bias[b])[j] : elem_up(a.bias[b], a.ydtype, j));
        }
        if (j < a.hidden)
            elem_down<T>(a.y, a.ydtype, j, sum);
    }
}

/* Two columns of vectors of four rows in flight. */
template <int X> __device__ __forceinline__ void sum_vectors(const ll_sum &a, const ll_team &team) {
    enum { U = 2, NT = 4 };
    int lane = threadIdx.x % 32;
    int64_t n = a.hidden * (16 / vec<X>::N);
    uint32_t mask = __ballot_sync(~0u, a.there);
    for (int64_t i0 = team.part * 512 + lane * 16; i0 - lane * 16 < n; i0 += team.warps * 512 * U) {
        float sum[U][vec<X>::N];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int k = 0; k < vec<X>::N; k++)
                sum[u][k] = 0;
        bool first = true;
        for (uint32_t m = mask; m;) {
            uint4 v[NT][U];
            float w[NT];
            uint32_t before = m;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                if (!m)
                    continue;
                int r = __ffs(m) - 1;
                m &= m - 1;
                const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, r);
                w[j] = __shfl_sync(~0u, a.w, r);
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (i0 + u * team.warps * 512 < n)
                        v[j][u] = __ldcg((const uint4 *)(x + i0 + u * team.warps * 512));
            }
#pragma unroll
            for (int j = 0; j < NT; j++) {
                if (j >= __popc(before))
                    continue;
#pragma unroll
                for (int u = 0; u < U; u++) {
                    float f[vec<X>::N];
                    vec<X>::up(v[j][u], f);
#pragma unroll
                    for (int k = 0; k < vec<X>::N; k++) {
                        float p = a.weighted ? __fmul_rn(f[k], w[j]) : f[k];
                        sum[u][k] = first ? p : __fadd_rn(sum[u][k], p);
                    }
                }
                first = false;
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t i = i0 + u * team.warps * 512;
            if (i >= n)
                continue;
            for (int b = 0; b < a.num_bias; b++) {
                float f[vec<X>::N];
                vec<X>::up(*(const uint4 *)(a.bias[b] + i), f);
#pragma unroll
                for (int k = 0; k < vec<X>::N; k++)
                    sum[u][k] = __fadd_rn(sum[u][k], f[k]);
            }
            *(uint4 *)(a.y + i) = down_fast<X>(sum[u]);
        }
    }
}

template <int X> __device__ __forceinline__ void sum_rows(const ll_sum &a, const ll_team &team) {
    uint64_t bits = (uint64_t)(a.there ? a.x : nullptr) | (uint64_t)a.y | (uint64_t)a.bias[0] | (uint64_t)a.bias[1];
    if (a.vectors && !__any_sync(~0u, bits % 16))
        sum_vectors<X>(a, team);
    else if (a.xdtype == F64)
        sum_any<double>(a, team);
    else
        sum_any<float>(a, team);
}

/* ---- sending ---- */
struct sending {
    uint32_t first[MPIX_CUDA_RANKS + 1]; /* pairs before those of each source, in the order in which they are sent */
    int plain, pulled;                   /* rows travel as they are; mapped peers read them */
};

__device__ __forceinline__ bool is_plain(const mpix_cuda_combine &c) { return !c.row_weights && c.offer.dtype == c.xdtype; }
__device__ __forceinline__ bool is_pulled(const mpix_cuda_handle &h, const mpix_cuda_combine &c) {
    return !h.ll.expert && is_plain(c) && !c.slot_values && c.offer.at[MPIX_CUDA_AT_X].window >= 0 && h.state->limit <= c.offer.rows;
}
/* Peers first, this rank last. */
__device__ __forceinline__ int source_at(const mpix_cuda_handle &h, int j) { return (h.rank + 1 + j) % h.size; }

/* By the first block. False: time-out. */
__device__ static bool heads_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int status, uint64_t epoch) {
    int bank = (int)(epoch % h.ll.depth), r = threadIdx.x;
    bool ok = true;
    if (threadIdx.x < 32)
        ok = ll_room(h, r < h.size, 1, epoch, c.report);
    if (__syncthreads_or(!ok))
        return false;
    if (r < h.size) {
        mpix_cuda_ll_head mine = {};
        mine.status = status;
        mine.flags = c.slot_values ? MPIX_CUDA_LL_SLOTS : 0;
        mine.rows = status ? 0 : h.state->recv[r];
        mine.dtype = c.offer.dtype;
        mine.hidden = c.hidden;
        if (is_pulled(h, c) && r != h.rank) {
            const mpix_cuda_place &at = c.offer.at[MPIX_CUDA_AT_X];
            int64_t begin = r * h.max_tokens, left = h.state->limit - begin;
            mine.flags |= MPIX_CUDA_LL_PULL;
            mine.window = at.window;
            mine.at = at.off + (uint64_t)begin * at.stride;
            mine.stride = at.stride;
            mine.exist = left < 0 ? 0 : left < (int64_t)mine.rows ? (uint32_t)left : mine.rows;
        }
        uint64_t *to = (uint64_t *)ll_head(h, r, h.rank, 1, bank);
        for (unsigned i = 1; i < sizeof mine / 8; i++)
            to[i] = ((uint64_t *)&mine)[i];
        delay(h, 2 + r);
        word_store(&((mpix_cuda_ll_head *)to)->epoch, epoch);
    }
    return true;
}

/* A token that came from source s as its i-th, by a team. Whether it has rows here. */
template <int X>
__device__ static bool answer_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const ll_team &team, int s, int64_t i, int64_t answer) {
    int lane = threadIdx.x % 32, K = h.max_topk, width = h.state->width;
    int64_t row = -1, slot = s * h.max_tokens + i;
    if (h.ll.expert && lane < width)
        row = h.ll.place[slot * K + lane];
    else if (!h.ll.expert && lane == 0)
        row = slot;
    if (row >= h.state->limit)
        row = -1;
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
    if (!mask || (s == h.rank && !h.ll.expert && is_plain(c)))
        return mask != 0; /* nothing, or what is read where it lies */
    a.y = ll_answer_row(h, s, answer);
    if (is_plain(c) && __popc(mask) == 1) {
        const char *x = (const char *)__shfl_sync(~0u, (unsigned long long)a.x, __ffs(mask) - 1);
        int64_t n, at = ll_part(team, c.row, &n);
        if (n > 0)
            warp_copy_any(x + at, lane == 0 ? a.y + at : nullptr, n, lane);
        return true;
    }
    a.weighted = c.row_weights != nullptr;
    a.xdtype = c.xdtype;
    a.scale_kind = c.scale_kind;
    a.ydtype = c.offer.dtype;
    a.hidden = c.hidden;
    a.vectors = c.xdtype == X && c.offer.dtype == X && c.row % 16 == 0;
    sum_rows<X>(a, team);
    return true;
}

template <int X>
__device__ static bool answers_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch, const sending &out, uint32_t next, uint32_t *shared, int *failed) {
    ll_team team = ll_team_of(c.team[0]);
    int lane = threadIdx.x % 32, bank = (int)(epoch % h.ll.depth);
    bool asks = team.part == 0 && lane == 0, ok = true;
    uint32_t *taken = &h.state->item[MPIX_CUDA_COMBINE], u;
    while ((u = ll_ticket(team, next, shared)) < out.first[h.size]) {
        if (asks)
            next = atomicAdd(taken, 1);
        int j = 0;
        while (u >= out.first[j + 1])
            j++;
        int s = source_at(h, j);
        int64_t i = u - out.first[j], answer = ll_answer(h, (int64_t)h.state->reply[s] + i, bank);
        bool there = false;
        ok = ok && ll_room(h, lane == s, 1, epoch, c.report);
        if (ok)
            there = answer_send<X>(h, c, team, s, i, answer);
        else
            *failed = 1;
        ll_meet(team);
        if (asks && !*(volatile int *)failed) {
            delay(h, 20 + s);
            word_store(ll_answer_flag(h, s, answer), epoch | (there ? 0 : LL_EMPTY));
        }
        __syncwarp();
    }
    return ok;
}

/* By the first warp. 0: the call can be made. */
__device__ static int own_fault(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int64_t *rows) {
    int r = threadIdx.x % 32, fault = routing_fault(h, c.tokens, c.topk);
    int64_t n = r < h.size ? h.state->recv[r] : 0;
    for (int d = 16; d; d /= 2)
        n += __shfl_xor_sync(~0u, n, d);
    *rows = n;
    return fault ? fault : !h.state->learnt ? MPIX_CUDA_NO_DISPATCH : n > 0 && h.state->limit > 0 && (!c.x || (c.scale_kind && !c.scales)) ? MPIX_CUDA_NO_ROWS : 0;
}

/* ---- receiving ---- */
/* By the first warp. */
__device__ static int answers_judge(const mpix_cuda_handle &h, const mpix_cuda_combine &c, const mpix_cuda_ll_head *heads) {
    int r = threadIdx.x % 32, bad = ll_judge(h, heads, c.hidden, c.offer.dtype, 0);
    if (bad)
        return bad;
    if (r < h.size && heads[r].rows != h.state->send[r])
        bad = 1, report(h, MPIX_CUDA_ANSWERS, 0, r, heads[r].rows, h.state->send[r]);
    else if (r < h.size && c.out_slots && heads[r].rows > 0 && !(heads[r].flags & MPIX_CUDA_LL_SLOTS))
        bad = 1, report(h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
    return __any_sync(~0u, bad) ? 1 : 0;
}

template <int X>
__device__ static int tokens_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch, const mpix_cuda_ll_head *heads) {
    ll_team team = ll_team_of(c.team[1]);
    int lane = threadIdx.x % 32, bank = (int)(epoch % h.ll.depth), bad = 0;
    uint64_t got, start = c.wait_ns ? now_ns() : 0;
    bool mine = lane == h.rank && !h.ll.expert && is_plain(c), pulled = lane < h.size && (heads[lane].flags & MPIX_CUDA_LL_PULL);
    const char *pull = pulled ? (const char *)h.bases[heads[lane].window * MPIX_CUDA_RANKS + lane] + heads[lane].at : nullptr;
    int64_t base = lane < h.size ? h.state->base[lane] : 0;
    for (int64_t t = (int64_t)team.number * gridDim.x + blockIdx.x; t < c.tokens && !bad; t += (int64_t)gridDim.x * (LL_WARPS / team.warps)) {
        bool goes = lane < h.size && (h.bitmap[t] >> lane & 1);
        int64_t i = lane < h.size ? ll_place_of(h, t, lane) : 0, answer = ll_answer(h, base + i, bank);
        if (!ll_await(h, goes && !pulled ? ll_answer_flag(h, h.rank, answer) : nullptr, epoch, lane, c.report, &got)) {
            bad = 2;
            continue;
        }
        if (c.wait_ns && goes && lane != h.rank && team.part == 0)
            atomicMax((unsigned long long *)&h.state->waited[lane], now_ns() - start);
        ll_sum a = {};
        a.there = goes && (pulled ? i < (int64_t)heads[lane].exist : !(got & LL_EMPTY));
        a.x = pulled ? pull + i * (int64_t)heads[lane].stride : mine ? c.x + (h.rank * h.max_tokens + i) * c.x_stride : ll_answer_row(h, h.rank, answer);
        a.w = 1.0f;
        a.xdtype = c.offer.dtype;
        a.ydtype = c.ydtype;
        a.num_bias = c.num_bias;
        for (int b = 0; b < c.num_bias; b++)
            a.bias[b] = c.bias[b] + t * c.bias_stride[b];
        a.y = c.y + t * c.y_stride;
        a.hidden = c.hidden;
        a.vectors = c.offer.dtype == X && c.ydtype == X && c.row % 16 == 0;
        sum_rows<X>(a, team);
        uint32_t there = __ballot_sync(~0u, a.there);
        for (int k0 = 0; c.out_slots && team.part == 0 && k0 < c.topk; k0 += 32) {
            int k = k0 + lane, id = k < c.topk ? h.ids[t * h.max_topk + k] : -1, r = id >= 0 ? h.owner[id] : 0;
            int64_t at = __shfl_sync(~0u, answer, r);
            if (k < c.topk)
                c.out_slots[t * c.topk + k] = id >= 0 && (there >> r & 1) ? __ldcg(ll_answer_values(h, h.rank, at) + k) : 0.0f;
        }
    }
    return bad;
}

/* By the last block, when its rows have readers: until they have read. False: time-out. */
__device__ static bool readers_wait(const mpix_cuda_handle &h, const mpix_cuda_combine &c, uint64_t epoch) {
    int r = threadIdx.x;
    bool ok = true;
    if (r < h.size && r != h.rank && h.state->recv[r] > 0)
        ok = word_wait(h, ll_taken(h, h.rank, r, 1), epoch, r, c.report);
    return !__syncthreads_or(!ok);
}

template <int X>
__global__ void __launch_bounds__(LL_THREADS) ll_combine_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c) {
    __shared__ mpix_cuda_ll_head heads[MPIX_CUDA_RANKS];
    __shared__ sending out;
    __shared__ uint32_t tickets[LL_WARPS];
    __shared__ int failed, verdict, fault;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    uint32_t next = c.part != MPIX_CUDA_END && threadIdx.x % (32 * c.team[0]) == 0 ? atomicAdd(&h.state->item[MPIX_CUDA_COMBINE], 1) : 0;
    if (call_refused(h, c.report))
        return;
    if (c.part != MPIX_CUDA_END) {
        if (threadIdx.x < 32) {
            int64_t rows;
            int wrong = c.status ? 0 : own_fault(h, c, &rows);
            if (threadIdx.x == 0) {
                failed = 0;
                fault = wrong;
                if (wrong && blockIdx.x == 0)
                    report(h, wrong, 0, -1, wrong == MPIX_CUDA_NO_ROWS ? rows : h.state->tokens, c.tokens);
            }
            int lane = threadIdx.x;
            uint32_t n = lane >= h.size || (is_pulled(h, c) && source_at(h, lane) != h.rank) ? 0 : h.state->recv[source_at(h, lane)];
            for (int d = 1; d < 32; d *= 2) {
                uint32_t before = __shfl_up_sync(~0u, n, d);
                n += lane >= d ? before : 0;
            }
            out.first[lane + 1] = n;
            if (lane == 0)
                out.first[0] = 0;
        }
        __syncthreads();
        int status = c.status ? c.status : fault ? 1 : 0;
        bool ok = true;
        if (blockIdx.x == 0)
            ok = heads_send(h, c, status, epoch);
        if (ok && !status)
            ok = answers_send<X>(h, c, epoch, out, next, tickets, &failed);
        if (__syncthreads_or(!ok))
            return;
    }
    if (c.part == MPIX_CUDA_BEGIN) {
        if (last_block(h, MPIX_CUDA_COMBINE) && threadIdx.x == 0)
            counters_reset(h, MPIX_CUDA_COMBINE);
        return;
    }
    if (threadIdx.x < 32) {
        int how = ll_heads(h, 1, epoch, c.report, c.wait_ns && blockIdx.x == 0, heads) ? 0 : 2;
        __syncwarp();
        how = how ? how : answers_judge(h, c, heads);
        if (threadIdx.x == 0)
            verdict = how;
    }
    __syncthreads();
    int bad = verdict;
    if (bad == 0)
        bad = tokens_sum<X>(h, c, epoch, heads);
    if (__syncthreads_or(bad == 2) || !last_block(h, MPIX_CUDA_COMBINE))
        return;
    ll_end(h, 1, epoch, c.wait_ns);
    if (!c.status && is_pulled(h, c) && h.state->learnt && !readers_wait(h, c, epoch))
        return;
    __syncthreads();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

cudaError_t mpix_cuda_ll_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream) {
    int blocks = ll_blocks(d, c->num_sms), ranks = h->size < h->max_topk ? h->size : h->max_topk;
    c->team[0] = ll_team_size(blocks, c->tokens * ranks);
    c->team[1] = ll_team_size(blocks, c->tokens);
    if (c->offer.dtype == F32)
        ll_combine_kernel<F32><<<blocks, LL_THREADS, 0, stream>>>(*h, *c);
    else if (c->offer.dtype == F16)
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
