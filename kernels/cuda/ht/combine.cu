/*
 * combine.cu - each token's owner reads the experts' rows where they lie and sums them: one kernel.
 *
 * The first block tells everybody where this rank's rows lie (ROWS) before anything waits; every
 * block waits for all ROWS, because it reads from all. The last block to finish says READ-DONE and
 * waits for everybody's, so the kernel ends when nobody reads this rank's rows any more; no other
 * block waits for it. ROWS of epoch e replaces that of e - 2 as in dispatch.
 *
 * Sums are those of kernels/host: float (double for F64 rows), ranks ascending, the first row
 * starts the sum, products rounded before they are added, then the biases. In COMPACT a rank has
 * one row per token, so a rank's partial sum is its row.
 *
 * Bulk path (sm_90): a warp gets the pieces of all ranks' rows of a token into a stage of shared
 * memory, one stage ahead. Vector path (sm_80): the same with asynchronous loads of 16 bytes.
 * Anything else (fp8, F64, other dtypes, odd addresses) goes element by element.
 */
#include "common/device.cuh"
#include "copy_engine/copy_engine.cuh"
#include "common/launch.h"
#include "common/sums.cuh"

struct sources {
    char *x[MPIX_CUDA_RANKS], *scales[MPIX_CUDA_RANKS], *w[MPIX_CUDA_RANKS],
        *slots[MPIX_CUDA_RANKS];
};

__device__ static lane_term term_of(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    const mpix_cuda_offer *offers, const sources &src, int64_t t,
                                    int lane) {
    lane_term term = {nullptr, nullptr, 1.0f, false};
    if (lane >= h.size)
        return term;
    int64_t row = row_of(h, t, lane);
    if (row < 0 || row >= offers[lane].rows)
        return term;
    const mpix_cuda_offer &o = offers[lane];
    term.x = src.x[lane] + row * (int64_t)o.at[MPIX_EP_PLACE_X].stride;
    if (src.scales[lane])
        term.scales = src.scales[lane] + row * (int64_t)o.at[MPIX_EP_PLACE_SCALES].stride;
    if (src.w[lane])
        term.w = ((const float *)src.w[lane])[row];
    term.there = true;
    return term;
}

__device__ __forceinline__ void async_load(void *to, const char *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}
/* Closes a group of loads, an empty one too. */
__device__ __forceinline__ void async_close() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All groups but the last are here. */
__device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

/* Pieces of a token's rows in a stage of the ring. Each lane loads what it reads itself, so none
 * waits for another. */
struct vector_stage {
    uint32_t mask;
    int64_t token;
    int off, n;
    float w;
};

template <int X>
__device__ __noinline__ void vector_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                        const mpix_cuda_offer *offers, const sources &src,
                                        uint32_t weighted, char *smem) {
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, row = (int)c.hidden * (16 / vec<X>::N),
        piece = 0, s = 0;
    size_t stage = (size_t)c.piece * c.terms;
    char *ring = smem + (size_t)w * 2 * stage;
    /* Tokens are dealt out as in bulk_sum. */
    uint32_t step = gridDim.x * c.warps, tokens = (uint32_t)c.tokens,
             token = w * gridDim.x + blockIdx.x, after = token + step, ticket = 0;
    uint32_t *taken = &h.state->item[MPIX_CUDA_COMBINE];
    lane_term now = {nullptr, nullptr, 1.0f, false}, then = now;
    if (token >= tokens)
        return;
    now = term_of(h, c, offers, src, token, lane);
    if (after < tokens)
        then = term_of(h, c, offers, src, after, lane);
    if (lane == 0)
        ticket = atomicAdd(taken, 1);
    auto load = [&](char *to) {
        vector_stage v = {__ballot_sync(~0u, now.there), token, piece * c.piece, 0, now.w};
        v.n = row - v.off < c.piece ? row - v.off : c.piece;
        for (uint32_t m = v.mask; m; m &= m - 1, to += c.piece) {
            const char *x =
                (const char *)__shfl_sync(~0u, (unsigned long long)now.x, __ffs(m) - 1) + v.off;
            for (int i = lane * 16; i < v.n; i += 512)
                async_load(to + i, x + i);
        }
        async_close();
        if (++piece == c.pieces) {
            piece = 0;
            token = after;
            now = then;
            after = 2 * step + __shfl_sync(~0u, ticket, 0);
            if (after < tokens) {
                if (lane == 0)
                    ticket = atomicAdd(taken, 1);
                then = term_of(h, c, offers, src, after, lane);
            }
        }
        return v;
    };
    vector_stage v = load(ring);
    for (bool more = true; more; s ^= 1) {
        vector_stage next = v;
        more = token < tokens;
        if (more)
            next = load(ring + (s ^ 1) * stage);
        else
            async_close();
        async_wait();
        piece_sum<X>(c, v.mask,
                     ring + s * stage + (size_t)__popc(v.mask & ((1u << lane) - 1)) * c.piece, v.w,
                     weighted, v.token, v.off, v.n, lane);
        v = next;
    }
}

template <int X>
__device__ __noinline__ void f8_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    const mpix_cuda_offer *offers, const sources &src,
                                    uint32_t weighted) {
    int lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
    for (int64_t t = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; t < c.tokens;
         t += (int64_t)gridDim.x * nwarps)
        f8_token_sum<X>(c, term_of(h, c, offers, src, t, lane), weighted, t, lane);
}

#if __CUDA_ARCH__ >= 900
/* What a stage of the ring holds: pieces of a token's rows, of the ranks in mask. */
struct stage_of {
    uint32_t mask, token, off;
};

template <int X>
__device__ static void bulk_sum(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                const mpix_cuda_offer *offers, const sources &src,
                                uint32_t weighted, char *smem) {
    int lane = threadIdx.x % 32, w = threadIdx.x / 32, S = c.stages,
        row_bytes = (int)c.hidden * (16 / vec<X>::N);
    size_t stage = (size_t)c.piece * c.terms;
    char *ring = smem + (size_t)w * S * stage;
    uint64_t *bars = (uint64_t *)(smem + (size_t)c.warps * S * stage) + w * S;
    uint64_t *all_bars = (uint64_t *)(smem + (size_t)c.warps * S * stage);
    stage_of *held = (stage_of *)(all_bars + c.warps * S) + w * S;
    float *weights = (float *)((stage_of *)(all_bars + c.warps * S) + c.warps * S) +
                     (size_t)w * S * h.size;
    if (lane < S)
        bar_init(&bars[lane], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    __syncwarp();
    /* Each warp's first two tokens are dealt out, the others taken as warps get to them;
     * see dispatch.cu. */
    uint32_t step = gridDim.x * c.warps, tokens = (uint32_t)c.tokens,
             token = w * gridDim.x + blockIdx.x, after = token + step, ticket = 0;
    uint32_t *taken = &h.state->item[MPIX_CUDA_COMBINE];
    int piece = 0, ls = 0, ss = 0, ahead = 0;
    uint32_t parity = 0;
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
    ask(token);
    now = then;
    ask(after);
    if (lane == 0)
        ticket = atomicAdd(taken, 1);
    int64_t base = lane < h.size ? h.state->base[lane] : 0,
            rows = lane < h.size ? offers[lane].rows : 0;
    int64_t stride = lane < h.size ? (int64_t)offers[lane].at[MPIX_EP_PLACE_X].stride : 0;
    while (token < tokens || ahead > 0) {
        while (token < tokens && ahead < S) {
            int off = piece * c.piece, n = row_bytes - off < c.piece ? row_bytes - off : c.piece;
            int64_t row = base + now.blk + now.rel;
            bool there = lane < h.size && (now.map >> lane & 1) && row < rows;
            uint32_t mask = __ballot_sync(~0u, there);
            if (lane == 0) {
                held[ls] = {mask, token, (uint32_t)off};
                bar_expect(&bars[ls], (uint32_t)n * __popc(mask));
            }
            __syncwarp(); /* also: all lanes have read what was in this stage */
            if (there) {
                bulk_load(ring + ls * stage + (size_t)__popc(mask & ((1u << lane) - 1)) * c.piece,
                          src.x[lane] + row * stride + off, n, &bars[ls]);
                if (weighted >> lane & 1)
                    weights[ls * h.size + lane] = ((const float *)src.w[lane])[row];
            }
            ahead++;
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
        bar_wait(&bars[ss], parity >> ss & 1);
        parity ^= 1u << ss;
        stage_of what = held[ss];
        int64_t t = what.token;
        int off = (int)what.off, n = row_bytes - off < c.piece ? row_bytes - off : c.piece;
        uint32_t mask = what.mask;
        const char *mine = ring + ss * stage + (size_t)__popc(mask & ((1u << lane) - 1)) * c.piece;
        float my_w = weighted >> lane & 1 && mask >> lane & 1 ? weights[ss * h.size + lane] : 1.0f;
        piece_sum<X>(c, mask, mine, my_w, weighted, t, off, n, lane);
        __syncwarp();
        ahead--;
        ss = ss + 1 == S ? 0 : ss + 1;
    }
}
#endif

/* The values that the experts' ranks set for each choice. */
__device__ static void slots_fetch(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                   const mpix_cuda_offer *offers, const sources &src) {
    int width = h.state->width;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.tokens * c.topk;
         i += step) {
        int64_t t = i / c.topk;
        int k = (int)(i % c.topk), id = h.ids[t * h.max_topk + k];
        float v = 0;
        if (id >= 0) {
            int r = h.owner[id];
            int64_t row = row_of(h, t, r);
            if (row >= 0 && row < offers[r].rows)
                v = *(const volatile float *)(src.slots[r] + (row * width + k) * 4);
        }
        c.out_slots[i] = v;
    }
}

/* Rows of rank r that copy engines brought into this rank's window, numbered as they are there. */
__device__ static void staged_source(const mpix_cuda_handle &h, const mpix_cuda_combine &c, int r,
                                     mpix_cuda_offer *o, sources *src) {
    int64_t base = h.state->base[r];
    staged at = staged_of(h.state->send[r], c.row, c.scale_row);
    char *rows = place_of(h, h.rank, r);
    src->x[r] = rows - base * c.row;
    src->scales[r] = c.scale_row ? rows + at.scales - base * c.scale_row : nullptr;
    src->w[r] = o->at[MPIX_EP_PLACE_WEIGHTS].window < 0 ? nullptr : rows + at.records - base * 4;
    src->slots[r] = o->at[MPIX_EP_PLACE_SLOTS].window < 0
                        ? nullptr
                        : rows + at.slots - base * 4 * h.state->width;
    o->at[MPIX_EP_PLACE_X].stride = (uint64_t)c.row;
    o->at[MPIX_EP_PLACE_SCALES].stride = (uint64_t)c.scale_row;
}

/* By the last block of a piece. The last piece tells the peers that their places are free, and
 * looks whether one has pushed without that. */
__device__ static void staged_end(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  uint64_t epoch) {
    int r = threadIdx.x;
    if (c.staged == MPIX_CUDA_STAGED_LAST && r < h.size && r != h.rank) {
        if (word_load(&copy_engine_words(h, h.rank, r)->revoked) >= epoch)
            report(h, MPIX_CUDA_REMOTE, 0, r, 0, 0);
        delay(h, 52 + r);
        word_store(&copy_engine_words(h, r, h.rank)->summed, epoch);
    }
    __syncthreads();
    if (r == 0 && c.staged == MPIX_CUDA_STAGED_LAST)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
    else if (r == 0)
        counters_reset(h, MPIX_CUDA_COMBINE);
}

enum { ANY, VECTOR, BULK, F8 };

template <int HOW, int X>
__global__ void __launch_bounds__(HOW == BULK ? 480 : 512)
    combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                   const __grid_constant__ mpix_cuda_combine c) {
    extern __shared__ __align__(128) char smem[];
    __shared__ mpix_cuda_offer offers[MPIX_CUDA_RANKS];
    __shared__ sources src;
    __shared__ int fine;
    /* All that the start needs is asked for at once. */
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t rows = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk);
    if (block_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && threadIdx.x < 32 && c.part != MPIX_CUDA_END)
        rows_offer_send(h, c, rows, fault, epoch);
    if (c.part == MPIX_CUDA_BEGIN) /* the peers may read; this rank reads in the second half */
        return;
    if (threadIdx.x < 32) {
        mpix_cuda_offer o;
        int bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch,
                              blockIdx.x == 0 ? c.wait_ns : nullptr, c.report, &o);
        offers[threadIdx.x] = o;
        if (threadIdx.x == 0)
            fine = bad;
    }
    __syncthreads();
    if (fine == 2)
        return;
    if (fine == 0) {
        int bad = 0;
        if ((int)threadIdx.x < h.size) {
            int r = threadIdx.x;
            src.x[r] = place_at(h, r, offers[r].at[MPIX_EP_PLACE_X]);
            src.scales[r] = place_at(h, r, offers[r].at[MPIX_EP_PLACE_SCALES]);
            src.w[r] = place_at(h, r, offers[r].at[MPIX_EP_PLACE_WEIGHTS]);
            src.slots[r] = place_at(h, r, offers[r].at[MPIX_EP_PLACE_SLOTS]);
            if (r == h.rank)
                src.x[r] = (char *)c.x, src.scales[r] = (char *)c.scales,
                src.w[r] = (char *)c.row_weights, src.slots[r] = (char *)c.slot_values;
            else if (c.staged)
                staged_source(h, c, r, &offers[r], &src);
            if (c.out_slots && offers[r].rows > 0 && !src.slots[r])
                bad = 1, report(h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
        }
        if (!__syncthreads_or(bad)) {
            uint32_t weighted = 0;
            uint64_t bits = 0;
            for (int r = 0; r < h.size; r++) {
                weighted |= (uint32_t)(src.w[r] != nullptr) << r;
                bits |= offers[r].rows > 0
                            ? (uint64_t)src.x[r] | offers[r].at[MPIX_EP_PLACE_X].stride
                            : 0;
            }
            fence_async(); /* what was acquired may be read by bulk loads */
            if (HOW == ANY || bits % 16) {
                int lane = threadIdx.x % 32, nwarps = blockDim.x / 32;
                for (int64_t t = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; t < c.tokens;
                     t += (int64_t)gridDim.x * nwarps) {
                    lane_term term = term_of(h, c, offers, src, t, lane);
                    if (c.xdtype == F64)
                        token_sum_any<double>(c, term, weighted, t, lane);
                    else
                        token_sum_any<float>(c, term, weighted, t, lane);
                }
            }
#if __CUDA_ARCH__ >= 900
            else if (HOW == BULK)
                bulk_sum<X>(h, c, offers, src, weighted, smem);
#endif
            else if (HOW == F8)
                f8_sum<X>(h, c, offers, src, weighted);
            else
                vector_sum<X>(h, c, offers, src, weighted, smem);
            if (c.out_slots)
                slots_fetch(h, c, offers, src);
        }
    }
    __syncthreads();
    if (!c.staged)
        block_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
    if (!last_block(h, MPIX_CUDA_COMBINE))
        return;
    if (c.staged) {
        staged_end(h, c, epoch);
        return;
    }
    if (!blocks_wait(h, offsetof(mpix_cuda_words, read_done), h.offered, epoch, nullptr, c.report))
        return;
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

/* Shared memory that the kernel has anyhow, a little more. */
enum {
    COMBINE_STATIC = MPIX_CUDA_RANKS * (int)sizeof(mpix_cuda_offer) + (int)sizeof(sources) + 512
};

template <int X>
static cudaError_t launch_f8(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c,
                             cudaStream_t stream) {
    combine_kernel<F8, X><<<sms, 512, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

template <int X>
static cudaError_t launch_typed(int bulk, int sms, size_t smem, const mpix_cuda_handle *h,
                                const mpix_cuda_combine *c, cudaStream_t stream) {
    void (*kernel)(mpix_cuda_handle, mpix_cuda_combine) = bulk ? combine_kernel<BULK, X>
                                                               : combine_kernel<VECTOR, X>;
    cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)smem);
    if (err != cudaSuccess)
        return err;
    kernel<<<sms, c->warps * 32, smem, stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                     mpix_cuda_combine *c, cudaStream_t stream) {
    int rows_f8 = c->xdtype == F8E4M3 || c->xdtype == F8E5M2, size = c->xdtype == F32 ? 4 : 2;
    int bulk = d->bulk && c->path != MPIX_CUDA_PATH_VECTOR;
    /* fp8 rows are a matter of arithmetic, not of the link; asynchronous loads need a few more
     * than bulk loads. */
    int sms = c->num_sms ? c->num_sms
              : rows_f8  ? mpix_cuda_half(d, 4 * MPIX_CUDA_SMS)
              : bulk     ? MPIX_CUDA_SMS
                         : MPIX_CUDA_VECTOR_SMS;
    sms = mpix_cuda_blocks(d, sms);
    c->offer.blocks = sms; /* of the kernel that reads */
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    uint64_t bits = mpix_cuda_combine_bits(c, c->hidden * size);
    int fast = (c->xdtype == F32 || c->xdtype == F16 || c->xdtype == BF16) &&
               c->ydtype == c->xdtype && bits % 16 == 0 &&
               c->tokens * (c->hidden * size / 256 + 1) < 1 << 30;
    if (rows_f8 && c->hidden % 16 == 0 && bits % 16 == 0 &&
        (c->ydtype == F32 || c->ydtype == F16 || c->ydtype == BF16)) {
        c->warps = 16;
        return c->ydtype == F32   ? launch_f8<F32>(sms, h, c, stream)
               : c->ydtype == F16 ? launch_f8<F16>(sms, h, c, stream)
                                  : launch_f8<BF16>(sms, h, c, stream);
    }
    if (!fast) {
        c->warps = 16;
        combine_kernel<ANY, BF16><<<sms, 512, 0, stream>>>(*h, *c);
        return cudaGetLastError();
    }
    int row = (int)c->hidden * size;
    size_t smem = 0;
    c->terms = h->size < h->max_topk ? h->size : h->max_topk;
    if (bulk) {
        c->warps = 15;
        c->stages = 2;
        size_t extra = 8 + 12 + 4 * (size_t)h->size, rings = (size_t)c->warps * c->stages;
        size_t room = mpix_cuda_room(d, 214 * 1024, COMBINE_STATIC + rings * extra);
        int most = (int)(room / (rings * c->terms)) / 16 * 16;
        if (most > 3584)
            most = 3584;
        c->pieces = (row + most - 1) / most;
        c->piece = ((row + c->pieces - 1) / c->pieces + 15) / 16 * 16;
        smem = rings * ((size_t)c->piece * c->terms + extra);
    } else {
        c->warps = 16;
        /* the rest: what the kernel has besides */
        int most = (int)((d->smem - 13 * 1024) / ((size_t)c->warps * 2 * c->terms));
        most = most >= 512 ? most / 512 * 512 : most / 16 * 16;
        c->pieces = (row + most - 1) / most;
        c->piece = most;
        smem = (size_t)c->warps * 2 * c->piece * c->terms;
    }
    return c->xdtype == F32   ? launch_typed<F32>(bulk, sms, smem, h, c, stream)
           : c->xdtype == F16 ? launch_typed<F16>(bulk, sms, smem, h, c, stream)
                              : launch_typed<BF16>(bulk, sms, smem, h, c, stream);
}

cudaError_t mpix_cuda_combine_load(int *arch) {
    return mpix_cuda_load(arch, combine_kernel<ANY, BF16>, combine_kernel<VECTOR, F32>,
                          combine_kernel<F8, F32>, combine_kernel<BULK, F32>,
                          combine_kernel<VECTOR, F16>, combine_kernel<F8, F16>,
                          combine_kernel<BULK, F16>, combine_kernel<VECTOR, BF16>,
                          combine_kernel<F8, BF16>, combine_kernel<BULK, BF16>);
}
