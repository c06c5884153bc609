/*
 * dispatch.cu - rows straight to their final place: one kernel, and a second one where the caller wants what travels beside the rows.
 *
 * The first block sends READY to everybody before anything waits. Every block waits for all READYs, because it writes to all. Only
 * the last block to finish waits for the peers' rows. So no block waits for something that a block not yet started must do, except
 * for the first block of each peer's kernel, which is started first: launches can't deadlock on missing blocks.
 *
 * Right to write: rows go only to places below `rows` of a READY of this epoch. An offer of epoch e replaces that of e - 2; its writer
 * has completed e - 2, which awaited this rank's word of e - 2, and that was written after all blocks here had read the offer.
 * Records (meta) of epoch e are written after READY of e, which the receiver sends, in stream order, after it has unpacked e - 1.
 *
 * Bulk path (sm_90): a warp moves pieces of rows through a ring of shared memory; lane r knows the place at rank r and issues and
 * awaits that rank's bulk store. Vector path: a warp loads a row and stores it to each place.
 */
#include "device.cuh"
#include "launch.h"

/* n bytes to as many places as lanes have (dst of lane r: rank r, or null), by a warp. V: what src, n and all places are aligned to. */
template <typename V, int DEPTH>
__device__ static void warp_copy(const char *src, char *dst, int64_t n, int lane) {
    uint32_t mask = __ballot_sync(~0u, dst != nullptr);
    for (int64_t i0 = 0; i0 < n; i0 += 32 * DEPTH * (int64_t)sizeof(V)) {
        V v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
            if (i < n)
                v[d] = *(const V *)(src + i);
        }
        for (uint32_t m = mask; m; m &= m - 1) {
            char *to = (char *)__shfl_sync(~0u, (unsigned long long)dst, __ffs(m) - 1);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                int64_t i = i0 + (d * 32 + lane) * (int64_t)sizeof(V);
                if (i < n)
                    *(V *)(to + i) = v[d];
            }
        }
    }
}

__device__ static void warp_copy_any(const char *src, char *dst, int64_t n, int lane) {
    uint64_t bits = (uint64_t)src | (uint64_t)n | (uint64_t)dst;
    for (int d = 16; d; d /= 2)
        bits |= __shfl_xor_sync(~0u, bits, d);
    if (bits % 16 == 0)
        warp_copy<uint4, 8>(src, dst, n, lane);
    else if (bits % 4 == 0)
        warp_copy<uint32_t, 8>(src, dst, n, lane);
    else
        warp_copy<uint8_t, 4>(src, dst, n, lane);
}

/* Where token t goes at rank lane: the row there, or -1 (not needed, dropped, no such rank). */
__device__ __forceinline__ int64_t lane_row(const mpix_cuda_handle &h, const mpix_cuda_offer *offers, int64_t t, int lane) {
    if (lane >= h.size)
        return -1;
    int64_t row = row_of(h, t, lane);
    return row < offers[lane].rows ? row : -1;
}

__device__ static void vector_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const mpix_cuda_offer *offers, char *const *xs) {
    int lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
    for (int64_t i = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; i < c.tokens * c.pieces; i += (int64_t)gridDim.x * nwarps) {
        int64_t t = i / c.pieces, off = i % c.pieces * c.piece, row = lane_row(h, offers, t, lane);
        int64_t n = c.row - off < c.piece ? c.row - off : c.piece;
        char *dst = row >= 0 ? xs[lane] + row * (int64_t)offers[lane].at[MPIX_CUDA_AT_X].stride + off : nullptr;
        warp_copy_any(c.x + t * c.x_stride + off, dst, n, lane);
    }
}

#if __CUDA_ARCH__ >= 900
/* Shared memory: the rings, then places [warps][stages][size], then bars [warps][stages].
 * Only the lane that wrote a place reads it. */
__device__ static void bulk_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const mpix_cuda_offer *offers, char *const *xs, char *smem) {
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, S = c.stages;
    char *ring = smem + (size_t)w * S * c.piece;
    char **places = (char **)(smem + (size_t)c.warps * S * c.piece) + (size_t)w * S * h.size;
    uint64_t *bars = (uint64_t *)((char **)(smem + (size_t)c.warps * S * c.piece) + (size_t)c.warps * S * h.size) + w * S;
    if (lane < S)
        bar_init(&bars[lane], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    __syncwarp();
    /* The first blocks store to peers, the last local_blocks copy this rank's own rows; with none, every block does both. */
    uint32_t local = c.local_blocks, remote = gridDim.x - local, is_local = blockIdx.x >= remote;
    uint32_t blocks = is_local ? local : remote, block = is_local ? blockIdx.x - remote : blockIdx.x;
    uint32_t part = local == 0 ? ~0u : is_local ? 1u << h.rank : ~(1u << h.rank);
    uint32_t pieces = c.pieces, step = blocks * c.warps, total = (uint32_t)(c.tokens * c.pieces);
    uint32_t item = w * blocks + block, next = item;
    int loaded = 0, stored = 0, ls = 0, ss = 0;
    uint32_t parity = 0;
    constexpr int PENDING = 2;
    uint64_t stride = lane < h.size ? offers[lane].at[MPIX_CUDA_AT_X].stride : 0;
    int64_t base = lane < h.size ? h.state->base[lane] : 0, rows = lane < h.size ? offers[lane].rows : 0;
    /* The numbers behind a token's row are asked for one item ahead, and added up when they are needed. */
    uint32_t map = 0, blk = 0, rel = 0;
    auto ask = [&](uint32_t i) {
        if (i < total && lane < h.size) {
            uint32_t t = i / pieces;
            map = h.bitmap[t] & part;
            blk = h.blk[(size_t)(t / MPIX_CUDA_BLOCK_TOKENS) * h.size + lane];
            rel = h.rel[(size_t)t * h.size + lane];
        }
    };
    ask(next);
    while (item < total) {
        /* loads as far ahead as stages are free: a stage is free when all lanes' stores have read it */
        while (next < total && loaded - stored < S - PENDING) {
            uint32_t t = next / pieces;
            int off = (int)(next % pieces) * c.piece, n = c.row - off < c.piece ? (int)(c.row - off) : c.piece;
            int64_t row = base + blk + rel;
            bool goes = lane < h.size && (map >> lane & 1) && row < rows;
            if (lane < h.size)
                places[ls * h.size + lane] = goes ? xs[lane] + row * (int64_t)stride + off : nullptr;
            bulk_wait_read<PENDING>();
            uint32_t any = __ballot_sync(~0u, goes);
            if (lane == 0) {
                bar_expect(&bars[ls], any ? n : 0);
                if (any)
                    bulk_load(ring + (size_t)ls * c.piece, c.x + t * c.x_stride + off, n, &bars[ls]);
            }
            loaded++;
            next += step;
            ls = ls + 1 == S ? 0 : ls + 1;
            ask(next);
        }
        int off = (int)(item % pieces) * c.piece, n = c.row - off < c.piece ? (int)(c.row - off) : c.piece;
        bar_wait(&bars[ss], parity >> ss & 1);
        parity ^= 1u << ss;
        if (lane < h.size) {
            char *to = places[ss * h.size + lane];
            if (to)
                bulk_store(to, ring + (size_t)ss * c.piece, n);
        }
        bulk_commit();
        stored++;
        ss = ss + 1 == S ? 0 : ss + 1;
        item += step;
        __syncwarp();
    }
    bulk_wait();
    fence_async();
}
#endif

/* What goes beside the rows, by threads first .. of each block, one element each: scales, and records (the token's number, then for each
 * choice the local expert at the receiver, then the weights). */
template <typename V>
__device__ static void scales_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const mpix_cuda_offer *offers, char *const *scales, int first) {
    int n = (int)(c.scale_row / sizeof(V)), threads = blockDim.x - first;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x - first; i < c.tokens * n; i += (int64_t)gridDim.x * threads) {
        int64_t t = i / n, k = i % n;
        V v = *(const V *)(c.scales + t * c.scale_stride + k * (int64_t)sizeof(V));
        for (int r = 0; r < h.size; r++) {
            int64_t row = row_of(h, t, r);
            if (row >= 0 && row < offers[r].rows)
                *(V *)(scales[r] + row * (int64_t)offers[r].at[MPIX_CUDA_AT_SCALES].stride + k * (int64_t)sizeof(V)) = v;
        }
    }
}

__device__ static void records_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const mpix_cuda_offer *offers, int first) {
    int n = c.topk > 0 ? c.topk : 1, threads = blockDim.x - first;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x - first; i < c.tokens * n; i += (int64_t)gridDim.x * threads) {
        int64_t t = i / n;
        int k = (int)(i % n);
        int32_t id = c.topk > 0 ? h.ids[t * h.max_topk + k] : -1, owner = id >= 0 ? h.owner[id] : -1, local = id >= 0 ? h.local[id] : -1;
        for (int r = 0; r < h.size; r++) {
            int64_t row = row_of(h, t, r);
            if (row < 0 || row >= offers[r].rows || !(offers[r].flags & MPIX_CUDA_OFFER_META))
                continue;
            char *rec = h.window[r] + h.meta + row * h.meta_record;
            if (k == 0)
                *(int64_t *)rec = t;
            ((int32_t *)(rec + 8))[k] = owner == r ? local : -1;
            if (offers[r].flags & MPIX_CUDA_OFFER_WEIGHTS)
                ((float *)(rec + 8))[h.max_topk + k] = c.weights[t * c.topk + k];
        }
    }
}

__device__ static void beside_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, const mpix_cuda_offer *offers, char *const *scales, int first) {
    int meta = 0;
    uint64_t bits = (uint64_t)c.scales | (uint64_t)c.scale_stride | (uint64_t)c.scale_row;
    for (int r = 0; r < h.size; r++) {
        meta |= offers[r].flags & MPIX_CUDA_OFFER_META;
        bits |= offers[r].rows > 0 ? (uint64_t)scales[r] | offers[r].at[MPIX_CUDA_AT_SCALES].stride : 0;
    }
    if (c.scale_row > 0 && bits % 16 == 0)
        scales_send<uint4>(h, c, offers, scales, first);
    else if (c.scale_row > 0 && bits % 4 == 0)
        scales_send<uint32_t>(h, c, offers, scales, first);
    else if (c.scale_row > 0)
        scales_send<uint8_t>(h, c, offers, scales, first);
    if (meta)
        records_send(h, c, offers, first);
}

template <int BULK>
__global__ void __launch_bounds__(512) dispatch_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ __align__(128) char smem[];
    __shared__ mpix_cuda_offer offers[MPIX_CUDA_RANKS];
    __shared__ char *xs[MPIX_CUDA_RANKS], *scales[MPIX_CUDA_RANKS];
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (blockIdx.x == 0) {
        mpix_cuda_offer mine = c.offer;
        int fault = mine.status ? 0 : routing_fault(h, c.tokens, c.topk);
        if (fault) {
            mine.status = 1;
            if (threadIdx.x == 0)
                report(h, fault, 0, -1, h.state->tokens, c.tokens);
        } else if (!mine.status && h.state->recv_total > c.capacity && !h.drop) {
            mine.status = 2;
            if (threadIdx.x == 0)
                report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
        }
        offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
    }
    if (!wait_all(h, offsetof(mpix_cuda_words, ready), epoch, nullptr, c.report))
        return;
    if (offers_read(h, offers, c.offer, h.ready, epoch)) {
        if ((int)threadIdx.x < h.size) {
            xs[threadIdx.x] = place_at(h, threadIdx.x, offers[threadIdx.x].at[MPIX_CUDA_AT_X]);
            scales[threadIdx.x] = place_at(h, threadIdx.x, offers[threadIdx.x].at[MPIX_CUDA_AT_SCALES]);
        }
        __syncthreads();
#if __CUDA_ARCH__ >= 900
        uint64_t bits = 0; /* bulk copies need 16-byte places, which only the offers tell */
        for (int r = 0; r < h.size; r++)
            bits |= offers[r].rows > 0 ? (uint64_t)xs[r] | offers[r].at[MPIX_CUDA_AT_X].stride : 0;
        if (BULK && bits % 16 == 0) { /* some warps drive the rings, the others send what goes beside */
            if ((int)threadIdx.x < c.warps * 32)
                bulk_send(h, c, offers, xs, smem);
            else
                beside_send(h, c, offers, scales, c.warps * 32);
        } else
#endif
        {
            vector_send(h, c, offers, xs);
            beside_send(h, c, offers, scales, 0);
        }
    }
    if (!last_block(h, MPIX_CUDA_DISPATCH))
        return;
    if ((int)threadIdx.x < h.size)
        word_store(&words_of(h, threadIdx.x, h.rank)->rows_here, epoch);
    if (c.part == MPIX_CUDA_BEGIN) { /* the rest is dispatch_end_kernel's */
        if (threadIdx.x == 0)
            h.state->ticket[MPIX_CUDA_DISPATCH] = 0;
        return;
    }
    if (!wait_all(h, offsetof(mpix_cuda_words, rows_here), epoch, c.wait_ns, c.report))
        return;
    fence_async();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* The second half of a call that was begun: waits for the peers' rows. One block. */
__global__ void dispatch_end_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (!wait_all(h, offsetof(mpix_cuda_words, rows_here), epoch, c.wait_ns, c.report))
        return;
    fence_async();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* Records to the caller's arrays; the rows of source s are [first[s], first[s] + recv[s]). */
__global__ void __launch_bounds__(1024) unpack_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    if (*(volatile int32_t *)h.failed || h.state->outcome[MPIX_CUDA_DISPATCH])
        return;
    const mpix_cuda_state *st = h.state;
    int64_t rows = st->recv_total < c.capacity ? st->recv_total : c.capacity;
    if (rows > h.max_rows)
        rows = h.max_rows;
    int width = st->width;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += step) {
        const char *rec = h.window[h.rank] + h.meta + i * h.meta_record;
        if (c.src_token)
            c.src_token[i] = *(const int64_t *)rec;
        int s = 0;
        while (s + 1 < h.size && i >= (int64_t)st->first[s + 1])
            s++;
        if (c.src_rank)
            c.src_rank[i] = s;
    }
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * width; i += step) {
        const int32_t *rec = (const int32_t *)(h.window[h.rank] + h.meta + i / width * h.meta_record + 8);
        if (c.local_ids)
            c.local_ids[i] = rec[i % width];
        if (c.out_weights)
            c.out_weights[i] = ((const float *)rec)[h.max_topk + i % width];
    }
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c.cumulative && e < h.local_experts; e += step)
        c.cumulative[e] += h.recv_expert[e];
}

/* Whether this rank's rows allow bulk copies: 16-byte pieces from 16-byte addresses. */
static bool bulk_fits(const mpix_cuda_device *d, const mpix_cuda_dispatch *c) {
    if (d->major < 9 || c->path == MPIX_CUDA_PATH_VECTOR)
        return false;
    return ((uint64_t)c->x | (uint64_t)c->x_stride | (uint64_t)c->row) % 16 == 0 && c->tokens * (c->row / 3584 + 1) < (1 << 30);
}

cudaError_t mpix_cuda_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, cudaStream_t stream) {
    int sms = c->num_sms ? c->num_sms : 14;
    if (sms > d->sms)
        sms = d->sms;
    if (c->part == MPIX_CUDA_END) {
        dispatch_end_kernel<<<1, 32, 0, stream>>>(*h, *c);
    } else if (bulk_fits(d, c)) {
        c->warps = 8;
        c->stages = 6;
        c->local_blocks = h->size == 2 && sms >= 24 ? sms / 2 : 0; /* more than 14 that store to the peer at once slow each other down */
        int most = 3584; /* a quarter of a row of 7168 bf16: see doc/performance.md */
        c->pieces = (int)((c->row + most - 1) / most);
        c->piece = (int)(((c->row + c->pieces - 1) / c->pieces + 15) / 16 * 16);
        size_t smem = (size_t)c->warps * c->stages * (c->piece + 8 * (size_t)h->size + 8);
        cudaError_t err = cudaFuncSetAttribute(dispatch_kernel<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        if (err != cudaSuccess)
            return err;
        dispatch_kernel<1><<<sms, c->warps * 32 + 256, smem, stream>>>(*h, *c);
    } else {
        c->warps = 16;
        c->piece = 4096;
        c->pieces = (int)((c->row + c->piece - 1) / c->piece);
        dispatch_kernel<0><<<sms, c->warps * 32, 0, stream>>>(*h, *c);
    }
    cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess && c->part != MPIX_CUDA_BEGIN && (c->local_ids || c->src_rank || c->src_token || c->out_weights || c->cumulative)) {
        unpack_kernel<<<sms, 1024, 0, stream>>>(*h, *c);
        err = cudaGetLastError();
    }
    return err;
}

cudaError_t mpix_cuda_dispatch_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, dispatch_kernel<0>);
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, dispatch_kernel<1>) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, dispatch_end_kernel) : err;
    return err == cudaSuccess ? cudaFuncGetAttributes(&a, unpack_kernel) : err;
}
