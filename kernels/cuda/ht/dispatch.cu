/*
 * dispatch.cu - rows straight to their final place: one kernel, and a second one where the caller
 * wants what travels beside the rows.
 *
 * The first block sends READY to everybody before anything waits. Every block waits for all READYs,
 * because it writes to all. Only the last block to finish waits for the peers' rows. So no block
 * waits for something that a block not yet started must do, except for the first block of each
 * peer's kernel, which is started first: launches can't deadlock on missing blocks.
 *
 * Right to write: rows go only to places below `rows` of a READY of this epoch. An offer of epoch e
 * replaces that of e - 2; its writer has completed e - 2, which awaited this rank's word of e - 2,
 * and that was written after all blocks here had read the offer. Records of epoch e are
 * written after READY of e, which the receiver sends, in stream order, after it has unpacked e - 1.
 *
 * Bulk path (sm_90): a warp moves pieces of rows through a ring of shared memory; lane r knows the
 * place at rank r and issues and awaits that rank's bulk store. Vector path: a warp loads a row and
 * stores it to each place.
 */
#include "common/copy.cuh"
#include "common/device.cuh"
#include "common/launch.h"
#include "common/quant.cuh"

/* What a lane knows about the rank of its number, once that rank's READY is here. */
struct target {
    char *x, *scales;
    int64_t stride, scale_stride, rows;
    int32_t flags;
};

__device__ static target target_of(const mpix_cuda_handle &h, const mpix_cuda_offer &o, int lane) {
    target t = {nullptr, nullptr, 0, 0, 0, 0};
    if (lane < h.size) {
        t.x = place_at(h, lane, o.at[MPIX_EP_PLACE_X]);
        t.scales = place_at(h, lane, o.at[MPIX_EP_PLACE_SCALES]);
        t.stride = (int64_t)o.at[MPIX_EP_PLACE_X].stride;
        t.scale_stride = (int64_t)o.at[MPIX_EP_PLACE_SCALES].stride;
        t.rows = o.rows;
        t.flags = o.flags;
    }
    return t;
}

/* The row of token t at rank lane, or -1 (not needed, dropped, no such rank). */
__device__ __forceinline__ int64_t lane_row(const mpix_cuda_handle &h, const target &to, int64_t t,
                                            int lane) {
    int64_t row = lane < h.size ? row_of(h, t, lane) : -1;
    return row < to.rows ? row : -1;
}

/* Rows that become fp8: by whole tokens. */
__device__ static void quant_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                  const target &to) {
    int lane = threadIdx.x % 32;
    for (int64_t t = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; t < c.tokens;
         t += (int64_t)gridDim.x * c.warps) {
        int64_t row = lane_row(h, to, t, lane);
        quant_place place = {row >= 0 ? to.x + row * to.stride : nullptr,
                             row >= 0 ? to.scales + row * to.scale_stride : nullptr};
        quant_row(c.x + t * c.x_stride, c.quant, c.hidden, c.offer.dtype == F8E5M2,
                  c.offer.scale_kind, &place, 1);
    }
}

__device__ static void vector_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                   const target &to) {
    int lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; i < c.tokens * c.pieces;
         i += (int64_t)gridDim.x * c.warps) {
        int64_t t = i / c.pieces, off = i % c.pieces * c.piece, row = lane_row(h, to, t, lane);
        int64_t n = c.row - off < c.piece ? c.row - off : c.piece;
        warp_copy_any(c.x + t * c.x_stride + off, row >= 0 ? to.x + row * to.stride + off : nullptr,
                      n, lane);
    }
}

#if __CUDA_ARCH__ >= 900
/*
 * One warp's share of the rows. Shared memory: the rings, then {row, offset} [warps][stages][size],
 * then bars [warps][stages]; only the lane that wrote a {row, offset} reads it.
 *
 * This rank's own rows need no READY but its own, which its stream's order gives: while the peers'
 * READYs are on their way, the warp fills its whole ring and stores what of it is for this rank.
 * Then the same stages go to the peers, and from there on each stage goes everywhere at once. Each
 * warp's first two tokens are dealt out, the others taken as warps get to them: multiprocessors do
 * not all reach the peer at the same rate. 0: sent; 1: the call fails; 2: time-out, or the context
 * had failed before.
 */
__device__ static int bulk_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                char *smem) {
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, S = c.stages, P = c.pending;
    char *ring = smem + (size_t)w * S * c.piece;
    uint2 *rows = (uint2 *)(smem + (size_t)c.warps * S * c.piece) + (size_t)w * S * h.size;
    uint64_t *bars = (uint64_t *)((uint2 *)(smem + (size_t)c.warps * S * c.piece) +
                                  (size_t)c.warps * S * h.size) +
                     w * S;
    const uint32_t NONE = ~0u;
    uint32_t step = gridDim.x * c.warps, tokens = (uint32_t)c.tokens,
             token = w * gridDim.x + blockIdx.x, after = token + step, ticket = 0;
    uint32_t *taken = &h.state->item[MPIX_CUDA_DISPATCH];
    int piece = 0, loaded = 0, stored = 0, ls = 0, ss = 0, limit = S;
    uint32_t parity = 0;
    /* The numbers behind a token's row are asked for one token ahead, and added up when they are
     * needed; so is the token after it. */
    struct {
        uint32_t map, blk, rel;
    } now = {0, 0, 0}, then = {0, 0, 0};
    auto ask = [&](uint32_t t) {
        if (t < tokens && lane < h.size) {
            then.map = h.bitmap[t];
            then.blk = h.blk[(size_t)(t / MPIX_CUDA_BLOCK_TOKENS) * h.size + lane];
            then.rel = h.rel[(size_t)t * h.size + lane];
        }
    };
    /* All that the start needs is asked for at once. */
    ask(token);
    now = then;
    ask(after);
    int refused = *(volatile int32_t *)h.failed, status = own_status(h, c);
    int64_t base = lane < h.size ? h.state->base[lane] : 0;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (lane == 0)
        ticket = atomicAdd(taken, 1);
    if (lane < S)
        bar_init(&bars[lane], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    __syncwarp();
    if (refused)
        return 2;
    /* Loads as far ahead as stages are free: a stage is free when all lanes' stores
     * have read it. */
    auto fill = [&]() {
        while (token < tokens && loaded - stored < limit) {
            int off = piece * c.piece, n = c.row - off < c.piece ? (int)(c.row - off) : c.piece;
            bool goes = lane < h.size && (now.map >> lane & 1);
            if (lane < h.size)
                rows[ls * h.size + lane] = {goes ? (uint32_t)(base + now.blk + now.rel) : NONE,
                                            (uint32_t)off};
            if (limit < S) {
                pending_wait<4>(P);
                /* all lanes' stores have read the stage; a vote alone orders no memory */
                __syncwarp();
            }
            uint32_t any = __ballot_sync(~0u, goes);
            if (lane == 0) {
                bar_expect(&bars[ls], any ? n : 0);
                if (any)
                    bulk_load(ring + (size_t)ls * c.piece, c.x + token * c.x_stride + off, n,
                              &bars[ls]);
            }
            loaded++;
            ls = ls + 1 == S ? 0 : ls + 1;
            if (++piece == c.pieces) {
                piece = 0;
                token = after;
                now = then;
                after = 2 * step + __shfl_sync(~0u, ticket, 0);
                if (lane == 0 && after < tokens)
                    ticket = atomicAdd(taken, 1);
                ask(after);
            }
        }
    };
    /* Stage s to the lanes' ranks. */
    target to = {nullptr, nullptr, 0, 0, 0, 0};
    auto store = [&](int s, bool mine) {
        if (mine && lane < h.size) {
            uint2 r = rows[s * h.size + lane];
            int off = (int)r.y, n = c.row - off < c.piece ? (int)(c.row - off) : c.piece;
            if (r.x != NONE && (int64_t)r.x < to.rows)
                bulk_store(to.x + (int64_t)r.x * to.stride + off, ring + (size_t)s * c.piece, n);
        }
        bulk_commit();
    };
    fill();
    bool early = false;
    if (status == 0) {
        to = target_of(h, c.offer, lane == h.rank ? lane : MPIX_CUDA_RANKS);
        early = !__any_sync(~0u, ((uint64_t)to.x | (uint64_t)to.stride) % 16) && c.tokens > 0;
    }
    for (int i = 0; i < loaded; i++) {
        bar_wait(&bars[i], 0);
        if (early)
            store(i, lane == h.rank);
    }
    mpix_cuda_offer o;
    int bad = offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr,
                          c.report, &o);
    if (bad) {
        bulk_wait();
        fence_async();
        return bad;
    }
    to = target_of(h, o, lane);
    /* bulk copies need 16-byte places */
    if (__any_sync(~0u, to.rows > 0 && ((uint64_t)to.x | (uint64_t)to.stride) % 16)) {
        bulk_wait();
        fence_async();
        vector_send(h, c, to);
        return 0;
    }
    for (int i = 0; i < loaded; i++)
        store(i, !early || lane != h.rank);
    stored = loaded;
    ss = loaded == S ? 0 : loaded;
    parity = (1u << loaded) - 1;
    limit = S - P;
    while (token < tokens || stored < loaded) {
        fill();
        bar_wait(&bars[ss], parity >> ss & 1);
        parity ^= 1u << ss;
        store(ss, true);
        stored++;
        ss = ss + 1 == S ? 0 : ss + 1;
        __syncwarp();
    }
    bulk_wait();
    fence_async();
    return 0;
}
#endif

/* What goes beside the rows, by threads first .. of each block, one element each: scales, and
 * records (the token's number, then for each choice the local expert at the receiver, then
 * the weights). */
template <typename V>
__device__ static void scales_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                   const target *to, int first) {
    int n = (int)(c.scale_row / sizeof(V)), threads = blockDim.x - first;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x - first; i < c.tokens * n;
         i += (int64_t)gridDim.x * threads) {
        int64_t t = i / n, k = i % n;
        V v = *(const V *)(c.scales + t * c.scale_stride + k * (int64_t)sizeof(V));
        for (int r = 0; r < h.size; r++) {
            int64_t row = row_of(h, t, r);
            if (row >= 0 && row < to[r].rows)
                *(V *)(to[r].scales + row * to[r].scale_stride + k * (int64_t)sizeof(V)) = v;
        }
    }
}

__device__ static void records_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                    const target *to, int first) {
    int n = c.topk > 0 ? c.topk : 1, threads = blockDim.x - first;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x - first; i < c.tokens * n;
         i += (int64_t)gridDim.x * threads) {
        int64_t t = i / n;
        int k = (int)(i % n);
        int32_t id = c.topk > 0 ? h.ids[t * h.max_topk + k] : -1,
                owner = id >= 0 ? h.owner[id] : -1, local = id >= 0 ? h.local[id] : -1;
        for (int r = 0; r < h.size; r++) {
            int64_t row = row_of(h, t, r);
            if (row < 0 || row >= to[r].rows || !(to[r].flags & MPIX_EP_OFFER_RECORDS))
                continue;
            char *rec = h.window[r] + h.records + row * h.record_bytes;
            if (k == 0)
                *(int64_t *)rec = t;
            *mpix_record_int(rec, MPIX_RECORD_GPU, MPIX_RECORD_ROW_LOCAL, h.max_topk,
                             k) = owner == r ? local : -1;
            if (to[r].flags & MPIX_EP_OFFER_WANTS_WEIGHTS)
                *mpix_record_float(rec, MPIX_RECORD_GPU, MPIX_RECORD_ROW_WEIGHT, h.max_topk,
                                   k) = c.weights[t * c.topk + k];
        }
    }
}

/* A barrier of threads first .. of the block. Whether any of them says yes. */
__device__ __forceinline__ bool senders_meet(int first, bool yes) {
    if (first == 0)
        return __syncthreads_or(yes);
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.or.aligned.pred q, "
                 "1, %2, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((int)yes), "r"(blockDim.x - first)
                 : "memory");
    return any;
}

/* By warps first / 32 .. of each block, all of them; to: in shared memory, filled by the first of
 * them. refused: the context had failed. */
__device__ static int scales_records_send(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c,
                                          uint64_t epoch, target *to, int first, bool refused) {
    int lane = threadIdx.x % 32;
    mpix_cuda_offer o;
    int bad = refused ? 2
                      : offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch,
                                    nullptr, c.report, &o);
    target mine = {nullptr, nullptr, 0, 0, 0, 0};
    if (!bad)
        mine = target_of(h, o, lane);
    if (!bad && lane < h.size && (int)threadIdx.x / 32 == first / 32)
        to[lane] = mine;
    if (senders_meet(first, bad == 2)) /* warps can differ in what they saw: then none goes on */
        return 2;
    if (bad)
        return bad;
    bool records = __any_sync(~0u, mine.flags & MPIX_EP_OFFER_RECORDS);
    uint64_t bits = (uint64_t)c.scales | (uint64_t)c.scale_stride | (uint64_t)c.scale_row;
    bits |= mine.rows > 0 ? (uint64_t)mine.scales | (uint64_t)mine.scale_stride : 0;
    if (c.quant) /* scales come with the rows */
        ;
    else if (c.scale_row > 0 && !__any_sync(~0u, bits % 16))
        scales_send<uint4>(h, c, to, first);
    else if (c.scale_row > 0 && !__any_sync(~0u, bits % 4))
        scales_send<uint32_t>(h, c, to, first);
    else if (c.scale_row > 0)
        scales_send<uint8_t>(h, c, to, first);
    if (records)
        records_send(h, c, to, first);
    return 0;
}

template <int BULK>
__global__ void __launch_bounds__(512)
    dispatch_kernel(const __grid_constant__ mpix_cuda_handle h,
                    const __grid_constant__ mpix_cuda_dispatch c) {
    extern __shared__ __align__(128) char smem[];
    __shared__ target to[MPIX_CUDA_RANKS];
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c);
    /* bulk_send looks itself */
    bool refused = (!BULK || (int)threadIdx.x >= c.warps * 32) && call_refused(h, c.report);
    /* READY before anything waits; by a warp that has no rows to move where there is one */
    if (blockIdx.x == 0 && !refused && (int)threadIdx.x / 32 == (BULK ? c.warps : 0)) {
        mpix_cuda_offer mine = c.offer;
        mine.status = status;
        offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
        if (threadIdx.x % 32 == 0 && !c.offer.status && mine.status == MPIX_KIND_ARG)
            report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
        else if (threadIdx.x % 32 == 0 && !c.offer.status && mine.status == MPIX_KIND_TRUNCATE)
            report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
    }
    int bad;
#if __CUDA_ARCH__ >= 900
    if (BULK) { /* some warps drive the rings, the others send what goes beside */
        if ((int)threadIdx.x < c.warps * 32)
            bad = bulk_send(h, c, smem);
        else
            bad = scales_records_send(h, c, epoch, to, c.warps * 32, refused);
    } else
#endif
    {
        bad = scales_records_send(h, c, epoch, to, 0, refused);
        target mine = (int)threadIdx.x % 32 < h.size ? to[threadIdx.x % 32]
                                                     : target{nullptr, nullptr, 0, 0, 0, 0};
        if (!bad && c.quant)
            quant_send(h, c, mine);
        else if (!bad)
            vector_send(h, c, mine);
    }
    if (__syncthreads_or(bad == 2))
        return;
    block_signal(h, offsetof(mpix_cuda_words, rows_here), epoch);
    if (!last_block(h, MPIX_CUDA_DISPATCH))
        return;
    if (c.part == MPIX_CUDA_BEGIN) { /* the rest is dispatch_end_kernel's */
        if (threadIdx.x == 0)
            counters_reset(h, MPIX_CUDA_DISPATCH);
        return;
    }
    if (!blocks_wait(h, offsetof(mpix_cuda_words, rows_here), h.ready, epoch, c.wait_ns, c.report))
        return;
    fence_async();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* The second half of a call that was begun: waits for the peers' rows. One block. */
__global__ void dispatch_end_kernel(const __grid_constant__ mpix_cuda_handle h,
                                    const __grid_constant__ mpix_cuda_dispatch c) {
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (!blocks_wait(h, offsetof(mpix_cuda_words, rows_here), h.ready, epoch, c.wait_ns, c.report))
        return;
    fence_async();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* Records to the caller's arrays; the rows of source s are [first[s], first[s] + recv[s]). */
__global__ void __launch_bounds__(1024)
    unpack_kernel(const __grid_constant__ mpix_cuda_handle h,
                  const __grid_constant__ mpix_cuda_dispatch c) {
    if (*(volatile int32_t *)h.failed || h.state->outcome[MPIX_CUDA_DISPATCH])
        return;
    const mpix_cuda_state *st = h.state;
    int64_t rows = st->recv_total < c.capacity ? st->recv_total : c.capacity;
    if (rows > h.max_rows)
        rows = h.max_rows;
    int width = st->width;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += step) {
        const char *rec = h.window[h.rank] + h.records + i * h.record_bytes;
        if (c.src_token)
            c.src_token[i] = *(const int64_t *)rec;
        int s = 0;
        while (s + 1 < h.size && i >= (int64_t)st->first[s + 1])
            s++;
        if (c.src_rank)
            c.src_rank[i] = s;
    }
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * width; i += step) {
        const char *rec = h.window[h.rank] + h.records + i / width * h.record_bytes;
        const int32_t *local = mpix_record_int_of(rec, MPIX_RECORD_GPU, MPIX_RECORD_ROW_LOCAL,
                                                  h.max_topk, 0);
        const float *weights = mpix_record_float_of(rec, MPIX_RECORD_GPU, MPIX_RECORD_ROW_WEIGHT,
                                                    h.max_topk, 0);
        if (c.local_ids)
            c.local_ids[i] = local[i % width];
        if (c.out_weights)
            c.out_weights[i] = weights[i % width];
    }
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         c.cumulative && e < h.local_experts; e += step)
        c.cumulative[e] += h.recv_expert[e];
}

/* Whether this rank's rows allow bulk copies: 16-byte pieces from 16-byte addresses. */
static bool bulk_fits(const mpix_cuda_device *d, const mpix_cuda_dispatch *c) {
    if (!d->bulk || c->path == MPIX_CUDA_PATH_VECTOR || c->quant)
        return false;
    return ((uint64_t)c->x | (uint64_t)c->x_stride | (uint64_t)c->row) % 16 == 0 &&
           c->tokens * (c->row / 3584 + 1) < (1 << 30);
}

cudaError_t mpix_cuda_unpack_launch(const mpix_cuda_handle *h, const mpix_cuda_dispatch *c, int sms,
                                    cudaStream_t stream) {
    if (!c->local_ids && !c->src_rank && !c->src_token && !c->out_weights && !c->cumulative)
        return cudaSuccess;
    unpack_kernel<<<sms, 1024, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                      mpix_cuda_dispatch *c, cudaStream_t stream) {
    /* to quantise takes more of them than to copy */
    int sms = c->num_sms ? c->num_sms
              : c->quant ? mpix_cuda_half(d, 4 * MPIX_CUDA_SMS)
                         : MPIX_CUDA_SMS;
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms;
    if (c->part == MPIX_CUDA_END) {
        dispatch_end_kernel<<<1, 1024, 0, stream>>>(*h, *c);
    } else if (bulk_fits(d, c)) {
        /* warps: scales, and records, which peers may ask for; the first sends READY */
        enum { BESIDE = 8 };
        size_t room = mpix_cuda_room(d, 180224, MPIX_CUDA_RANKS * sizeof(target) + 512);
        mpix_cuda_rings r = mpix_cuda_rings_of(c->row, 8 * (size_t)h->size + 8, room,
                                               room < 172032 ? room : 172032, false);
        c->pieces = r.pieces;
        c->piece = r.piece;
        c->warps = r.warps;
        c->stages = r.stages;
        c->pending = r.pending;
        cudaError_t err = cudaFuncSetAttribute(dispatch_kernel<1>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)r.smem);
        if (err != cudaSuccess)
            return err;
        dispatch_kernel<1><<<sms, (c->warps + BESIDE) * 32, r.smem, stream>>>(*h, *c);
    } else {
        c->warps = 16;
        c->piece = 4096;
        c->pieces = (int)((c->row + c->piece - 1) / c->piece);
        dispatch_kernel<0><<<sms, c->warps * 32, 0, stream>>>(*h, *c);
    }
    cudaError_t err = cudaGetLastError();
    return err == cudaSuccess && c->part != MPIX_CUDA_BEGIN
               ? mpix_cuda_unpack_launch(h, c, sms, stream)
               : err;
}

cudaError_t mpix_cuda_dispatch_load(int *arch) {
    return mpix_cuda_load(arch, dispatch_kernel<0>, dispatch_kernel<1>, dispatch_end_kernel,
                          unpack_kernel);
}
