/*
 * route.cu - routing on the device: one kernel.
 *
 * Each block takes MPIX_CUDA_BLOCK_TOKENS tokens: ids to a bitmap of ranks, and for each rank the
 * token's place among the block's. The last block to finish adds the blocks up, gives every rank
 * this rank's counts, waits for theirs and computes where this rank's rows begin at each rank. Only
 * that block waits, so blocks that have not started yet are never needed by one that does. Nobody
 * else's output is written.
 *
 * Counts of epoch e replace those of e - 2 in the window of a peer: this rank has completed e - 1,
 * for which that peer's counts of e - 1 were seen, and the peer sends those only after it completed
 * e - 2. A proxied peer's counts are copied from where they arrive to where a mapped one would have
 * written them (remote.cuh).
 */
#include "expert/expert_route.cuh"
#include "remote/remote.cuh"
#include "common/launch.h"
#include "ll/ll_route.cuh"

enum { COUNTED_HERE = 1024 }; /* so many experts are counted in shared memory first */

/* An expert that the token has already: a choice before the k-th, all of which have been copied. */
__device__ static void twice_check(const mpix_cuda_handle &h, int64_t t, int k, int64_t id) {
    for (int j = 0; j < k && id >= 0; j++)
        if (h.ids[t * h.max_topk + j] == id)
            report(h, MPIX_CUDA_TWICE, 0, -1, t, id);
}

/* The ids of one token: copied, checked, counted in `histogram` (null: experts_rank
 * counts them). */
__device__ static uint32_t token_read(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                      int64_t t, uint32_t *histogram) {
    uint32_t map = 0;
    const char *at = (const char *)c.ids + t * c.stride;
    for (int k0 = 0; k0 < c.topk; k0 += 8) { /* eight at a time, so that their loads overlap */
        int64_t id[8];
        int32_t owner[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            id[k] = k0 + k >= c.topk ? -1
                    : c.bits == 64   ? ((const int64_t *)at)[k0 + k]
                                     : ((const int32_t *)at)[k0 + k];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            /* never an index, whether the caller wants to hear of it or not */
            if (id[k] < -1 || id[k] >= h.experts) {
                if (h.check)
                    report(h, MPIX_CUDA_BAD_ID, 0, -1, t, id[k]);
                id[k] = -1;
            }
            owner[k] = id[k] >= 0 ? h.owner[id[k]] : -1;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (k0 + k < c.topk)
                h.ids[t * h.max_topk + k0 + k] = (int32_t)id[k];
            if (owner[k] >= 0) {
                map |= 1u << owner[k];
                if (histogram)
                    atomicAdd(&histogram[id[k]], 1u);
            }
        }
        for (int k = k0; h.check && k < k0 + 8 && k < c.topk; k++)
            twice_check(h, t, k, h.ids[t * h.max_topk + k]);
    }
    h.bitmap[t] = map;
    for (int r = 0; c.token_in_rank && r < h.size; r++)
        c.token_in_rank[t * h.size + r] = map >> r & 1;
    return map;
}

/* For each of n ranks (masks: null) or sets of ranks: a token's place among those of its block that
 * go there, and how many those are. warps: of the block, shared, free. */
__device__ static void places_count(uint32_t map, const uint32_t *masks, int n, int64_t t,
                                    int64_t tokens, uint32_t (*warps)[MPIX_CUDA_RANKS],
                                    uint32_t *rel, uint32_t *blk) {
    int lane = threadIdx.x % 32, w = threadIdx.x / 32;
    for (int r = 0; r < n; r++) {
        uint32_t mask = __ballot_sync(~0u, map & (masks ? masks[r] : 1u << r));
        if (lane == 0)
            warps[w][r] = __popc(mask);
    }
    __syncthreads();
    for (int r = 0; r < n; r++) {
        uint32_t mask = __ballot_sync(~0u, map & (masks ? masks[r] : 1u << r)), before = 0;
        for (int i = 0; i < w; i++)
            before += warps[i][r];
        if (t < tokens)
            rel[t * n + r] = before + __popc(mask & ((1u << lane) - 1));
        if (threadIdx.x == THREADS - 1)
            blk[blockIdx.x * n + r] = before + __popc(mask);
    }
}

/* Sums over blocks of n columns, by the last block: warp w takes columns w, w + WARPS ... */
__device__ static void blocks_scan(uint32_t *blk, int n, int nblocks, uint32_t *send,
                                   uint32_t *keep) {
    int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < n; r += WARPS) {
        uint32_t sum = 0;
        for (int b0 = 0; b0 < nblocks; b0 += 32) {
            uint32_t here = b0 + lane < nblocks ? __ldcg(&blk[(b0 + lane) * n + r]) : 0,
                     s = lanes_sum(here, lane);
            if (b0 + lane < nblocks)
                blk[(b0 + lane) * n + r] = sum + s - here;
            sum += __shfl_sync(~0u, s, 31);
        }
        if (lane == 0)
            send[r] = keep[r] = sum;
    }
    __syncthreads();
}

/* Where this rank writes its counts for p. */
__device__ __forceinline__ uint32_t *counts_out(const mpix_cuda_handle &h, int p, uint64_t epoch) {
    return remote_is(h, p) ? (uint32_t *)(h.remote.window + remote_out(h, p) + h.counts +
                                          (epoch & 1) * h.counts_bytes)
                           : counts_at(h, p, h.rank, epoch);
}
__device__ static void counts_send(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                   const uint32_t *send, uint64_t epoch) {
    const int head = sizeof(mpix_cuda_counts) / 4;
    int status = h.state->err ? MPIX_KIND_ARG : c.status, to = threadIdx.x;
    if (to < h.size)
        *(mpix_cuda_counts *)counts_out(h, to, epoch) = {status, c.topk, c.tokens};
    for (int i = threadIdx.x; i < h.size * h.size; i += THREADS)
        counts_out(h, i / h.size, epoch)[head + i % h.size] = send[i % h.size];
    for (int i = threadIdx.x; i < h.experts; i += THREADS) {
        uint32_t n = __ldcg(&h.histogram[i]);
        for (int p = 0; p < h.size; p++)
            counts_out(h, p, epoch)[head + h.size + i] = n;
    }
    for (int p = 0; h.remote.two_hops && p < h.size; p++)
        if ((int)threadIdx.x < h.remote.nhosts)
            counts_out(h, p, epoch)[head + h.size + h.experts + threadIdx.x] =
                h.state->hosts[threadIdx.x];
    __syncthreads(); /* a release behind it covers what the whole block wrote */
    if (remote_is(h, to))
        remote_publish(h, to, h.counts + (epoch & 1) * h.counts_bytes, h.counts_bytes,
                       offsetof(mpix_cuda_words, route), epoch, c.report);
    else if (to < h.size)
        word_store(&words_of(h, to, h.rank)->route, epoch);
    for (int i = threadIdx.x; i < h.experts; i += THREADS) {
        int64_t n = (int64_t)__ldcg(&h.histogram[i]);
        if (c.send_per_expert)
            c.send_per_expert[i] = n;
        if (c.counts)
            h.results[2 + 2 * h.size + h.local_experts + i] = n;
        h.histogram[i] = 0; /* for the next route */
    }
}

/* Waits for everybody's counts. 0: they are here; else the context has failed. */
__device__ static int counts_wait(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                  uint64_t epoch) {
    int from = threadIdx.x;
    bool fine = true;
    if (remote_is(h, from))
        fine = remote_word_wait(h,
                                (const uint64_t *)(remote_in(h, from) +
                                                   offsetof(mpix_cuda_words, route)),
                                epoch, from, c.report);
    else if (from < h.size)
        fine = word_wait(h, &words_of(h, h.rank, from)->route, epoch, from, c.report);
    if (__syncthreads_or(!fine))
        return 1;
    for (int s = 0; s < h.size; s++) {
        const volatile uint32_t *n =
            (const volatile uint32_t *)(remote_in(h, s) + h.counts + (epoch & 1) * h.counts_bytes);
        for (int i = threadIdx.x; remote_is(h, s) && i < (int)(h.counts_bytes / 4); i += THREADS)
            counts_at(h, h.rank, s, epoch)[i] = n[i];
    }
    __syncthreads();
    return 0;
}

/* Two hops or one, alike on all ranks, since all have all counts; as in host memory
 * (coll/host/forward.c). rows: [source][to]. By the whole block. */
__device__ static void hops_choose(const mpix_cuda_handle &h,
                                   const uint32_t (*rows)[MPIX_CUDA_RANKS], uint64_t epoch) {
    __shared__ unsigned long long flat, forwarded;
    int s = threadIdx.x;
    if (!h.remote.two_hops)
        return;
    if (s == 0)
        flat = forwarded = 0;
    __syncthreads();
    if (s < h.size) {
        const volatile uint32_t *hosts = counts_at(h, h.rank, s, epoch) +
                                         sizeof(mpix_cuda_counts) / 4 + h.size + h.experts;
        uint64_t all = 0, once = 0;
        for (int r = 0; r < h.size; r++)
            all += h.remote.host_of[r] != h.remote.host_of[s] ? rows[s][r] : 0;
        for (int i = 0; i < h.remote.nhosts; i++)
            once += i != h.remote.host_of[s] ? hosts[i] : 0;
        h.state->items[s] = hosts[h.remote.here_host];
        atomicAdd(&flat, all);
        atomicAdd(&forwarded, once);
    }
    __syncthreads();
    if (s == 0)
        h.state->two_hops = h.remote.saves < 0 || (forwarded + forwarded / 4 < flat &&
                                                   (int64_t)(flat - forwarded) >= h.remote.saves);
}

/* By the first warp, a lane for each rank: what the ranks have for each other. rows:
 * [source][to]. */
__device__ static void peers_use(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                 const uint32_t (*rows)[MPIX_CUDA_RANKS], uint64_t epoch) {
    mpix_cuda_state *st = h.state;
    int r = threadIdx.x;
    bool is = r < h.size;
    mpix_cuda_counts head = {};
    uint32_t come = 0, base = 0, all = 0;
    if (is) {
        const uint32_t *n = counts_at(h, h.rank, r, epoch);
        head = {(int32_t)__ldcg(n), (int32_t)__ldcg(n + 1), __ldcg((const int64_t *)(n + 2))};
        come = rows[r][h.rank];
        for (int s = 0; s < h.size; s++) { /* where mine begin there, and whether all fit */
            base += s < h.rank ? rows[s][r] : 0;
            all += rows[s][r];
        }
    }
    uint32_t some = __ballot_sync(~0u, is && head.tokens > 0);
    int width = some ? __shfl_sync(~0u, head.topk, __ffs(some) - 1) : c.topk;
    uint32_t first = lanes_sum(come, r);
    if (is && head.status && r != h.rank)
        report(h, MPIX_CUDA_REMOTE, 0, r, head.status, 0);
    if (is && head.tokens > 0 && head.topk != width)
        report(h, MPIX_CUDA_TOPK, 0, r, head.topk, width);
    if (is) {
        if (!h.expert.on)
            limit_check(h, r, all);
        st->recv[r] = come;
        st->first[r] = first - come;
        st->base[r] = base;
    }
    uint32_t total = __shfl_sync(~0u, first, 31);
    __syncwarp();
    if (r)
        return;
    if (!h.expert.on)
        st->recv_total = total;
    st->width = width;
    st->topk = c.topk;
    st->tokens = c.tokens;
    st->routed = !st->err && !c.status;
    if (c.counts)
        h.results[0] = st->recv_total;
    if (c.recv_total)
        *c.recv_total = st->recv_total;
}

/* All counts are here: what they mean for this rank. */
__device__ static void counts_use(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                  const uint32_t *send, uint64_t epoch) {
    __shared__ uint32_t rows[MPIX_CUDA_RANKS][MPIX_CUDA_RANKS]; /* [source][to] */
    for (int i = threadIdx.x; i < h.size * h.size; i += THREADS)
        rows[i / h.size][i % h.size] = __ldcg(counts_at(h, h.rank, i / h.size, epoch) +
                                              sizeof(mpix_cuda_counts) / 4 + i % h.size);
    __syncthreads();
    if (h.expert.on)
        experts_use(h, c, epoch);
    hops_choose(h, rows, epoch);
    if (threadIdx.x < 32)
        peers_use(h, c, rows, epoch);
    for (int r = threadIdx.x / 32; r < h.size; r += WARPS) {
        int64_t came = h.expert.on ? experts_from(h, epoch, r) : rows[r][h.rank];
        if (threadIdx.x % 32)
            continue;
        if (c.counts) {
            h.results[2 + r] = came;
            h.results[2 + h.size + r] = send[r];
        }
        if (c.recv_per_rank)
            c.recv_per_rank[r] = came;
        if (c.send_per_rank)
            c.send_per_rank[r] = send[r];
    }
    for (int e = threadIdx.x; e < h.local_experts; e += THREADS) {
        int64_t sum = choices_count(h, epoch, h.mine[e]).all;
        h.recv_expert[e] = sum;
        if (c.counts)
            h.results[2 + 2 * h.size + e] = sum;
        if (c.recv_per_expert)
            c.recv_per_expert[e] = sum;
    }
}

/* Low latency, by the last block: ranks exchange nothing; what this rank sends, and where it
 * wants its answers. */
__device__ static void ll_finish(const mpix_cuda_handle &h, const mpix_cuda_route &c,
                                 const uint32_t *send) {
    for (int r = threadIdx.x / 32; r < h.size; r += WARPS)
        ll_sends_count(
            h, r, [&](int e) { return h.owner[e]; },
            [&](int e) { return __ldcg(&h.histogram[e]); });
    __syncthreads();
    for (int e = threadIdx.x; e < h.experts; e += THREADS) {
        uint32_t n = __ldcg(&h.histogram[e]);
        h.histogram[e] = 0; /* for the next route */
        if (c.counts)
            h.results[2 + 2 * h.size + h.local_experts + e] = n;
        if (c.send_per_expert)
            c.send_per_expert[e] = n;
    }
    if (threadIdx.x < 32)
        ll_routed(h, c, (int)threadIdx.x < h.size ? send[threadIdx.x] : 0, h.state->err);
}

__global__ void __launch_bounds__(THREADS) route_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                        const __grid_constant__ mpix_cuda_route c) {
    __shared__ uint32_t warps[WARPS][MPIX_CUDA_RANKS], send[MPIX_CUDA_RANKS];
    __shared__ uint32_t counted[COUNTED_HERE];
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_ROUTE] + 1;
    int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    bool ranked = h.expert.on || h.ll.expert, here = !ranked && h.experts <= COUNTED_HERE;
    for (int e = threadIdx.x; here && e < h.experts; e += THREADS)
        counted[e] = 0;
    __syncthreads();
    uint32_t map = t < c.tokens ? token_read(h, c, t,
                                             ranked ? nullptr
                                             : here ? counted
                                                    : h.histogram)
                                : 0;
    places_count(map, nullptr, h.size, t, c.tokens, warps, h.rel, h.blk);
    for (int e = threadIdx.x; here && e < h.experts; e += THREADS)
        if (counted[e])
            atomicAdd(&h.histogram[e], counted[e]);
    if (h.remote.two_hops) {
        __syncthreads();
        places_count(map, h.remote.host, h.remote.nhosts, t, c.tokens, warps, h.remote.rel,
                     h.remote.blk);
    }
    if (ranked)
        experts_rank(h, c, t);
    for (int i = 0; c.send_per_host && i < h.remote.nhosts; i++) {
        int n = __syncthreads_count((map & h.remote.host[i]) != 0);
        if (threadIdx.x == 0)
            atomicAdd((unsigned int *)&h.histogram[h.experts + i], n);
    }
    if (!last_block(h, MPIX_CUDA_ROUTE))
        return;
    if ((int)threadIdx.x < h.remote.nhosts && c.send_per_host) {
        c.send_per_host[threadIdx.x] = (int64_t)__ldcg(&h.histogram[h.experts + threadIdx.x]);
        h.histogram[h.experts + threadIdx.x] = 0; /* for the next route */
    }
    if (threadIdx.x == 0)
        h.state->routed = 0;
    if (h.remote.two_hops)
        blocks_scan(h.remote.blk, h.remote.nhosts, gridDim.x, send, h.state->hosts);
    blocks_scan(h.blk, h.size, gridDim.x, send, h.state->send);
    if (ranked)
        experts_scan(h, gridDim.x);
    if (h.ll.on) {
        ll_finish(h, c, send);
        /* who reads what is written here, a kernel behind this one or the host,
         * waits for its end */
        __syncthreads();
        if (threadIdx.x == 0)
            call_end(h, MPIX_CUDA_ROUTE, epoch, c.report);
        return;
    }
    /* the mirror is free */
    bool settled = !remote_is(h, threadIdx.x) || remote_settled(h, threadIdx.x, c.report);
    if (__syncthreads_or(!settled))
        return;
    counts_send(h, c, send, epoch);
    delay(h, 1);
    if (!counts_wait(h, c, epoch))
        counts_use(h, c, send, epoch);
    __syncthreads(); /* likewise */
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_ROUTE, epoch, c.report);
}

cudaError_t mpix_cuda_route_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                   const mpix_cuda_route *c, cudaStream_t stream) {
    if (h->ll.on && mpix_cuda_ll_route_fits(h, c))
        return mpix_cuda_ll_route_launch(d, h, c, stream);
    unsigned blocks = (unsigned)((c->tokens + THREADS - 1) / THREADS);
    route_kernel<<<blocks ? blocks : 1, THREADS, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_route_load(int *arch) { return mpix_cuda_load(arch, route_kernel); }
