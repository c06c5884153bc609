/*
 * ll_dispatch.cu - low-latency dispatch: one kernel, or its halves. The protocol is in ll.cuh.
 *
 * Sending: a team of warps takes a token, reads (or quantises) it once and stores it to the place that it has at each of its ranks, with its
 * record: token, local expert of each choice, in EXPERT the choice's place among the source's choices of that expert, weights.
 * In SLOTS the rank's own rows go to the output at once, since their places are known and free.
 *
 * Receiving: the heads tell how many rows come from each source, and in EXPERT how many for each expert, so every block computes by itself where
 * rows begin, while the rows are on their way; then teams copy the rows as they come.
 */
#include "copy.cuh"
#include "ll.cuh"
#include "launch.h"
#include "quant.cuh"

/* ---- sending ---- */
/* By the first block: what comes, to everybody. False: time-out. */
__device__ static bool heads_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, int status, uint64_t epoch) {
    int bank = (int)(epoch % h.ll.depth), r = threadIdx.x;
    bool ok = true;
    if (threadIdx.x < 32)
        ok = ll_room(h, r < h.size, 0, epoch, c.report);
    if (__syncthreads_or(!ok))
        return false;
    for (int e = threadIdx.x; e < h.experts && !status; e += blockDim.x)
        ll_counts(h, h.owner[e], h.rank, bank)[h.local[e]] = h.ll.sends[e];
    if (r < h.size) {
        mpix_cuda_ll_head mine = {};
        mine.status = status;
        mine.flags = (c.weights ? MPIX_CUDA_LL_WEIGHTS : 0) | (c.tokens > 0 ? MPIX_CUDA_LL_TOKENS : 0);
        mine.rows = status ? 0 : h.state->send[r];
        mine.width = c.topk;
        mine.dtype = c.offer.dtype;
        mine.scale_kind = c.offer.scale_kind;
        mine.hidden = c.hidden;
        mine.at = h.state->base[r];
        uint64_t *to = (uint64_t *)ll_head(h, r, h.rank, 0, bank);
        for (unsigned i = 1; i < sizeof mine / 8; i++)
            to[i] = ((uint64_t *)&mine)[i];
    }
    __syncthreads();
    if (r < h.size) {
        delay(h, 2 + r);
        word_store(&ll_head(h, r, h.rank, 0, bank)->epoch, epoch);
    }
    return true;
}

/* What travels beside token t, by a warp; lane r has its place at rank r. */
__device__ static void record_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, int64_t t, uint32_t mask, int64_t place) {
    int lane = threadIdx.x % 32, K = h.max_topk;
    for (int k0 = 0; k0 < c.topk || k0 == 0; k0 += 32) {
        int k = k0 + lane, id = k < c.topk ? h.ids[t * K + k] : -1, owner = id >= 0 ? h.owner[id] : -1, local = id >= 0 ? h.local[id] : -1;
        int before = id >= 0 && h.ll.expert ? (int)(h.expert.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.experts + id] + h.expert.rel[t * K + k]) : 0;
        float weight = c.weights && k < c.topk ? c.weights[t * c.topk + k] : 0.0f;
        for (uint32_t m = mask; m; m &= m - 1) {
            int r = __ffs(m) - 1;
            int32_t *rec = ll_record(h, r, __shfl_sync(~0u, place, r));
            if (k == 0)
                rec[0] = (int32_t)t;
            if (k >= c.topk)
                continue;
            rec[1 + k] = owner == r ? local : -1;
            if (h.ll.expert)
                rec[1 + K + k] = before;
            if (c.weights)
                rec[1 + 2 * K + k] = __float_as_int(weight);
        }
        __syncwarp();
    }
}

/* Tokens by tickets. False: time-out. */
__device__ static bool tokens_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, uint64_t epoch, uint32_t next, uint32_t *shared, int *failed) {
    ll_team team = ll_team_of(c.team[0]);
    int lane = threadIdx.x % 32, bank = (int)(epoch % h.ll.depth);
    bool asks = team.part == 0 && lane == 0, ok = true;
    uint32_t *taken = &h.state->item[MPIX_CUDA_DISPATCH], t;
    while ((t = ll_ticket(team, next, shared)) < (uint32_t)c.tokens) {
        if (asks)
            next = atomicAdd(taken, 1);
        bool goes = lane < h.size && (h.bitmap[t] >> lane & 1);
        int64_t i = lane < h.size ? ll_place_of(h, t, lane) : 0, place = ll_place(h, h.rank, i, bank);
        uint32_t mask = __ballot_sync(~0u, goes);
        ok = ok && ll_room(h, goes, 0, epoch, c.report);
        if (ok && mask) {
            quant_place to = {nullptr, nullptr};
            if (goes) {
                to.row = ll_row(h, lane, place);
                to.scales = to.row + ll_up16(c.row);
            }
            if (goes && lane == h.rank && !h.ll.expert) {
                int64_t row = h.rank * h.max_tokens + i;
                to.row = row < c.offer.rows ? c.out + row * c.out_stride : nullptr;
                to.scales = row < c.offer.rows ? c.out_scales + row * c.out_scale_stride : nullptr;
            }
            const char *x = c.x + t * c.x_stride;
            if (c.quant) {
                quant_row(x, c.quant, c.hidden, c.offer.dtype == F8E5M2, c.offer.scale_kind, &to, 1, team.part, team.warps);
            } else {
                int64_t n, at = ll_part(team, c.row, &n);
                if (n > 0)
                    warp_copy_any(x + at, to.row ? to.row + at : nullptr, n, lane);
                if (c.scale_row && team.part == team.warps - 1)
                    warp_copy_any(c.scales + t * c.scale_stride, to.row ? to.scales : nullptr, c.scale_row, lane);
            }
            if (team.part == team.warps / 2)
                record_send(h, c, t, mask, place);
        } else if (!ok) {
            *failed = 1;
        }
        ll_meet(team); /* the release below covers the whole team's stores */
        if (team.part == 0 && goes && !*(volatile int *)failed) {
            delay(h, 20 + lane);
            word_store(ll_flag(h, lane, place), epoch);
        }
        __syncwarp();
    }
    return ok;
}

/* ---- receiving ---- */
struct received {
    mpix_cuda_ll_head heads[MPIX_CUDA_RANKS];
    uint32_t sums[LL_WARPS];
    int64_t total; /* rows of the layout */
    int width, bad;
};

/* EXPERT. base: [sources][local experts] the first row of each source's choices of an expert, offset: [local experts + 1]. By the whole block. */
__device__ static void rows_assign(const mpix_cuda_handle &h, int bank, uint32_t *base, uint32_t *offset, received *in) {
    int n = h.local_experts, lane = threadIdx.x % 32, w = threadIdx.x / 32;
    for (int i = threadIdx.x; i < h.size * n; i += blockDim.x)
        base[i] = *(const volatile uint32_t *)&ll_counts(h, h.rank, i / n, bank)[i % n];
    __syncthreads();
    int64_t before = 0;
    for (int e0 = 0; e0 < n; e0 += LL_THREADS) {
        int e = e0 + threadIdx.x;
        uint32_t all = 0;
        for (int s = 0; e < n && s < h.size; s++)
            all += base[s * n + e];
        uint32_t mine = (all + h.ll.align - 1) / h.ll.align * h.ll.align, sum = mine, others = 0, row = 0;
        for (int d = 1; d < 32; d *= 2) {
            uint32_t up = __shfl_up_sync(~0u, sum, d);
            sum += lane >= d ? up : 0;
        }
        if (lane == 31)
            in->sums[w] = sum;
        __syncthreads();
        for (int i = 0; i < w; i++)
            others += in->sums[i];
        row = (uint32_t)before + others + sum - mine;
        if (e < n)
            offset[e] = row;
        for (int s = 0; e < n && s < h.size; s++) {
            uint32_t count = base[s * n + e];
            base[s * n + e] = row;
            row += count;
        }
        for (int i = 0; i < LL_WARPS; i++)
            before += in->sums[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        offset[n] = (uint32_t)before;
        in->total = before;
    }
    __syncthreads();
}

/* One row that has come, by a team. */
__device__ static void row_take(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const received &in, const uint32_t *base, const ll_team &team,
                                int s, int64_t i, int bank) {
    int lane = threadIdx.x % 32, K = h.max_topk, width = (int)in.heads[s].width;
    int64_t place = ll_place(h, s, i, bank), row = -1;
    const int32_t *rec = ll_record(h, h.rank, place);
    if (h.ll.expert) {
        int local = lane < width ? __ldcg(&rec[1 + lane]) : -1;
        if (local >= 0)
            row = base[s * h.local_experts + local] + (uint32_t)__ldcg(&rec[1 + K + lane]);
        if (team.part == 0 && lane < width)
            h.ll.place[(s * h.max_tokens + i) * K + lane] = (int32_t)row;
    } else if (lane == 0) {
        row = s * h.max_tokens + i;
    }
    bool there = row >= 0 && row < c.offer.rows;
    if (team.part == 0 && there) {
        if (c.src_rank)
            c.src_rank[row] = s;
        if (c.src_token)
            c.src_token[row] = __ldcg(&rec[0]);
        if (h.ll.expert && c.out_weights)
            c.out_weights[row] = __int_as_float(__ldcg(&rec[1 + 2 * K + lane]));
    }
    int64_t slot = s * h.max_tokens + i;
    if (team.part == team.warps - 1 && !h.ll.expert && slot < c.offer.rows)
        for (int k = lane; k < width; k += 32) {
            if (c.local_ids)
                c.local_ids[slot * in.width + k] = __ldcg(&rec[1 + k]);
            if (c.out_weights)
                c.out_weights[slot * in.width + k] = __int_as_float(__ldcg(&rec[1 + 2 * K + k]));
        }
    if (!h.ll.expert && s == h.rank)
        return; /* lies there already */
    const char *x = ll_row(h, h.rank, place);
    int64_t n, at = ll_part(team, c.row, &n);
    if (n > 0)
        warp_copy_any(x + at, there ? c.out + row * c.out_stride + at : nullptr, n, lane);
    if (c.scale_row && team.part == team.warps / 2)
        warp_copy_any(x + ll_up16(c.row), there ? c.out_scales + row * c.out_scale_stride : nullptr, c.scale_row, lane);
}

/* Places that have no row: rows [row, end), by a warp. */
__device__ static void empties_fill(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, int width, int64_t row, int64_t end) {
    int lane = threadIdx.x % 32;
    if (end > c.offer.rows)
        end = c.offer.rows;
    for (; row < end; row++) {
        if (lane == 0 && c.src_rank)
            c.src_rank[row] = -1;
        if (lane == 0 && c.src_token)
            c.src_token[row] = -1;
        for (int k = lane; k < (h.ll.expert ? 1 : width); k += 32) {
            if (c.local_ids)
                c.local_ids[row * width + k] = -1;
            if (c.out_weights)
                c.out_weights[row * (h.ll.expert ? 1 : width) + k] = 0;
        }
        if (!h.ll.expert)
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

/* By the first warp: what is wrong with the batches, the same on all blocks. 0: nothing. */
__device__ static int batches_judge(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, received *in) {
    int r = threadIdx.x % 32, bad = ll_judge(h, in->heads, c.hidden, c.offer.dtype, c.offer.scale_kind);
    if (bad)
        return bad;
    bool tokens = r < h.size && (in->heads[r].flags & MPIX_CUDA_LL_TOKENS);
    uint32_t mask = __ballot_sync(~0u, tokens);
    int width = mask ? (int)in->heads[__ffs(mask) - 1].width : c.topk;
    if (tokens && (int)in->heads[r].width != width)
        bad = 1, report(h, MPIX_CUDA_TOPK, 0, r, in->heads[r].width, width);
    else if (r < h.size && c.out_weights && in->heads[r].rows > 0 && !(in->heads[r].flags & MPIX_CUDA_LL_WEIGHTS))
        bad = 1, report(h, MPIX_CUDA_WEIGHTS, 0, r, 0, 0);
    if (r == 0) {
        in->width = width;
        in->total = h.size * h.max_tokens;
    }
    return __any_sync(~0u, bad) ? 1 : 0;
}

/* By all blocks. 0: received; 1: the call fails; 2: time-out. */
__device__ static int rows_receive(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, uint64_t epoch, received *in, uint32_t *base, uint32_t *offset) {
    int lane = threadIdx.x % 32, bank = (int)(epoch % h.ll.depth), bad = 0;
    if (threadIdx.x < 32) {
        int how = ll_heads(h, 0, epoch, c.report, c.wait_ns && blockIdx.x == 0, in->heads) ? 0 : 2;
        __syncwarp();
        how = how ? how : batches_judge(h, c, in);
        if (lane == 0)
            in->bad = how;
    }
    __syncthreads();
    if (in->bad)
        return in->bad;
    if (h.ll.expert) {
        rows_assign(h, bank, base, offset, in);
        if ((in->total > c.offer.rows && !h.drop) || in->total > 0x7fffffff) {
            if (threadIdx.x == 0 && blockIdx.x == 0)
                report(h, in->total > c.capacity ? MPIX_CUDA_CAPACITY : MPIX_CUDA_ROWS_LIMIT, 0, -1, in->total, c.offer.rows);
            return 1;
        }
    }
    ll_team team = ll_team_of(c.team[1]);
    int64_t step = (int64_t)gridDim.x * (LL_WARPS / team.warps), u = (int64_t)team.number * gridDim.x + blockIdx.x, first = 0;
    uint64_t got, start = c.wait_ns ? now_ns() : 0;
    for (int j = 0; j < h.size && !bad; j++) { /* own rows first */
        int s = (h.rank + j) % h.size;
        int64_t n = in->heads[s].rows;
        for (; u < first + n && !bad; u += step) {
            if (!ll_await(h, lane == 0 ? ll_flag(h, h.rank, ll_place(h, s, u - first, bank)) : nullptr, epoch, s, c.report, &got)) {
                bad = 2;
                continue;
            }
            if (c.wait_ns && lane == 0 && s != h.rank)
                atomicMax((unsigned long long *)&h.state->waited[s], now_ns() - start);
            row_take(h, c, *in, base, team, s, u - first, bank);
        }
        first += n;
    }
    /* Meanwhile nobody needs these. */
    int64_t warp = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x, warps = (int64_t)gridDim.x * LL_WARPS;
    if (h.ll.expert)
        for (int64_t e = warp; e < h.local_experts; e += warps) {
            uint32_t last = base[(h.size - 1) * h.local_experts + e] + *(const volatile uint32_t *)&ll_counts(h, h.rank, h.size - 1, bank)[e];
            empties_fill(h, c, 1, last, offset[e + 1]);
        }
    else if (c.src_rank || c.src_token || c.local_ids || c.out_weights)
        for (int64_t p = warp; p < h.size * h.max_tokens; p += warps)
            if (p % h.max_tokens >= (int64_t)in->heads[p / h.max_tokens].rows)
                empties_fill(h, c, in->width, p, p + 1);
    return bad;
}

/* By the last block, if the call was well: what this rank has learnt of the routing, and the counts. */
__device__ static void routing_learn(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const received &in, const uint32_t *offset, int bank) {
    mpix_cuda_state *st = h.state;
    int n = h.local_experts;
    int64_t *counts = h.results + 2, *experts = counts + 2 * h.size, *offsets = experts + n + h.experts;
    int lane = threadIdx.x % 32;
    for (int s = threadIdx.x; s < h.size; s += blockDim.x) {
        st->recv[s] = in.heads[s].rows;
        st->reply[s] = (uint32_t)in.heads[s].at;
    }
    if (threadIdx.x == 0) {
        st->width = in.width;
        st->recv_total = in.total;
        st->limit = in.total < c.offer.rows ? in.total : c.offer.rows;
        st->learnt = 1;
    }
    if (!c.counts && !c.cumulative)
        return;
    for (int s = threadIdx.x / 32; s < h.size && c.counts; s += LL_WARPS) {
        uint32_t rows = 0;
        for (int e = lane; e < n; e += 32)
            rows += *(const volatile uint32_t *)&ll_counts(h, h.rank, s, bank)[e];
        for (int d = 16; d; d /= 2)
            rows += __shfl_xor_sync(~0u, rows, d);
        rows = h.ll.expert ? rows : in.heads[s].rows;
        if (lane == 0)
            counts[s] = rows;
        if (lane == 0 && c.recv_per_rank)
            c.recv_per_rank[s] = rows;
    }
    for (int e = threadIdx.x; e < n; e += blockDim.x) {
        int64_t all = 0;
        for (int s = 0; s < h.size; s++)
            all += *(const volatile uint32_t *)&ll_counts(h, h.rank, s, bank)[e];
        if (c.counts)
            experts[e] = all;
        if (c.recv_per_expert)
            c.recv_per_expert[e] = all;
        if (c.cumulative)
            c.cumulative[e] += all;
    }
    for (int e = threadIdx.x; h.ll.expert && c.counts && e <= n; e += blockDim.x) {
        offsets[e] = offset[e];
        if (c.expert_offset)
            c.expert_offset[e] = offset[e];
    }
    __threadfence_system();
}

__global__ void __launch_bounds__(LL_THREADS) ll_dispatch_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ uint32_t base[]; /* EXPERT: [size][local experts], [local experts + 1] */
    __shared__ received in;
    __shared__ uint32_t tickets[LL_WARPS];
    __shared__ int failed;
    /* All that the start needs is asked for at once. */
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int fault = routing_fault(h, c.tokens, c.topk);
    uint32_t next = c.part != MPIX_CUDA_END && threadIdx.x % (32 * c.team[0]) == 0 ? atomicAdd(&h.state->item[MPIX_CUDA_DISPATCH], 1) : 0;
    if (call_refused(h, c.report))
        return;
    if (threadIdx.x == 0)
        failed = 0;
    __syncthreads();
    if (c.part != MPIX_CUDA_END) {
        fault = c.status ? 0 : fault;
        int status = c.status ? c.status : fault ? 1 : 0;
        bool ok = true;
        if (blockIdx.x == 0) {
            if (fault && threadIdx.x == 0)
                report(h, fault, 0, -1, h.state->tokens, c.tokens);
            ok = heads_send(h, c, status, epoch);
        }
        if (ok && !status)
            ok = tokens_send(h, c, epoch, next, tickets, &failed);
        if (__syncthreads_or(!ok))
            return;
    }
    if (c.part == MPIX_CUDA_BEGIN) { /* the rest is the second half's */
        if (last_block(h, MPIX_CUDA_DISPATCH) && threadIdx.x == 0)
            counters_reset(h, MPIX_CUDA_DISPATCH);
        return;
    }
    uint32_t *offset = base + h.size * h.local_experts;
    int bad = rows_receive(h, c, epoch, &in, base, offset);
    if (__syncthreads_or(bad == 2) || !last_block(h, MPIX_CUDA_DISPATCH))
        return;
    if (bad == 0)
        routing_learn(h, c, in, offset, (int)(epoch % h.ll.depth));
    __syncthreads();
    ll_end(h, 0, epoch, c.wait_ns);
    __syncthreads();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

cudaError_t mpix_cuda_ll_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, cudaStream_t stream) {
    int blocks = ll_blocks(d, c->num_sms), ranks = h->size < h->max_topk ? h->size : h->max_topk;
    size_t smem = h->ll.expert ? 4 * ((size_t)h->size * (size_t)h->local_experts + (size_t)h->local_experts + 1) : 0;
    c->team[0] = ll_team_size(blocks, c->tokens);
    c->team[1] = ll_team_size(blocks, c->tokens * ranks);
    ll_dispatch_kernel<<<blocks, LL_THREADS, smem, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_ll_dispatch_load(void) {
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, ll_dispatch_kernel);
}
