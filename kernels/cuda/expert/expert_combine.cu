/*
 * expert_combine.cu - combine in the EXPERT layout: each rank sums a token's rows that lie with it,
 * the token's rank adds those sums. One kernel.
 *
 * PUSHERS of each block's warps push: they sum the rows of a pair and store the partial sum in the
 * window of the token's rank, in the order of chunks (tokens of the source, then sources). The
 * others finish: they take this rank's tokens in order, wait for the chunk of each rank that the
 * token has rows at, sum the rows that lie here themselves, and write y. Who has nothing more to
 * push finishes too.
 *
 * Right to write. Partial sums go to the window of a rank after its ROWS of this epoch, which it
 * sends in the order of its stream after it has read those of the last. Where a batch does not fit
 * (gpu_partial_bytes) the room is a ring of chunks: chunk c is written when what lies at its place
 * has been used up (`freed`): the last of c - slots, c - 2 slots ... that the pusher has tokens of.
 * Chunks that it has none of are never pushed, used up or told of. No deadlock: let c be the lowest
 * chunk of any rank's tokens that is not finished. Pushes are taken in the order of chunks, so
 * whoever pushes to c, or waits before that, waits for a chunk below c only, and those are
 * finished; tokens are taken in order, so all up to chunk c are taken or done, and wait for pushes
 * of chunks up to c only. Every block has warps of both kinds, so they run whenever it does.
 * Weights of choices are written into the pairs' records before anything waits.
 *
 * Words. arrived[slot] and freed[slot] hold epoch << 24 | chunk + 1: one writer each, growing. The
 * warp that completes a chunk, by a counter in device memory, releases the word; the fence and the
 * addition of each warp before it order that warp's stores.
 *
 * Partial sums travel in float (double for F64) if a rank asks for it or x is fp8, and then the
 * result is that of the host path, bit by bit; otherwise they are rounded to x's dtype once. The
 * sum of the rows at the token's own rank is never rounded.
 */
#include "expert_sum.cuh"
#include "common/launch.h"

/* ---- finishing ------------------------------------------------------------------------------- */
/* False: time-out. values: where slot values go, null: not wanted. */
template <class SUM>
__device__ static bool finish_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  const common &g, uint64_t epoch, float *values) {
    const mpix_cuda_expert &x = h.expert;
    int lane = threadIdx.x % 32;
    uint32_t units = (uint32_t)(c.tokens * c.pieces), *taken = &h.state->more[0], unit = 0;
    bool ring = x.chunks > g.slots;
    int64_t mine = g.offers[h.rank].rows, theirs = lane < h.size ? g.offers[lane].rows : 0;
    token_part then = {-1, -1, -1, 1.0f};
    if (lane == 0)
        unit = atomicAdd(taken, 1);
    uint32_t next = __shfl_sync(~0u, unit, 0);
    if (next < units)
        then = token_ask(h, c, next / c.pieces);
    for (;;) {
        uint32_t now = next;
        token_part p = then;
        if (now >= units)
            return true;
        if (lane == 0)
            unit = atomicAdd(taken, 1);
        int64_t t = now / c.pieces;
        int chunk = (int)(t / x.chunk), piece = (int)(now % c.pieces);
        float choice = c.choice_weights && lane < c.topk ? c.choice_weights[t * c.topk + lane]
                                                         : 1.0f;
        rows_of terms = rows_make(c, mine, p.owner == h.rank ? p.row : -1, choice,
                                  c.choice_weights != nullptr);
        bool there = lane < h.size && p.first >= 0 && p.first < theirs;
        if (!chunk_arrived(h, c, g, epoch, chunk, there))
            return false;
        next = __shfl_sync(~0u, unit, 0);
        if (next < units)
            then = token_ask(h, c, next / c.pieces);
        uint32_t ranks = __ballot_sync(~0u, there);
        const char *partial = there && lane != h.rank ? partial_at(h, g, h.rank, lane, t) : nullptr;
        int64_t off = (int64_t)piece * c.piece,
                n = c.hidden - off < c.piece ? c.hidden - off : c.piece;
        SUM::finish(h, c, g, terms, ranks, partial, t, off, n);
        if (values && piece == 0 && lane < c.topk)
            values[t * c.topk + lane] = slot_value(h, c, g, t, p.row, p.owner);
        if (ring)
            chunk_used(h, c, g, epoch, chunk, p.first);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */
/* This rank's weights of choices into the records of the pairs at their ranks. */
__device__ static void choices_send(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    uint64_t epoch) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.tokens * c.topk;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = i / c.topk;
        for (uint32_t m = h.bitmap[t] & ~(1u << h.rank); m; m &= m - 1) {
            int r = __ffs(m) - 1;
            record_of(h, r, row_of(h, t, r)).returned[i % c.topk] = c.choice_weights[i];
        }
    }
    __syncthreads();
    block_signal(h, offsetof(mpix_cuda_words, read_done), epoch);
}

/* Waits for the weights of all sources that send any. False in all threads: time-out. */
__device__ static bool choices_wait(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                    const common &g, uint64_t epoch) {
    int bad = 0;
    for (int s = threadIdx.x / 32; s < h.size; s += blockDim.x / 32)
        for (int i = threadIdx.x % 32;
             s != h.rank && (g.offers[s].flags & MPIX_EP_OFFER_CHOICES) && i < g.offers[s].blocks;
             i += 32)
            bad |= !word_wait(h, &words_of(h, h.rank, s)->read_done[i], epoch, s, c.report);
    return !__syncthreads_or(bad);
}

template <class SUM>
__global__ void __launch_bounds__(THREADS)
    expert_combine_kernel(const __grid_constant__ mpix_cuda_handle h,
                          const __grid_constant__ mpix_cuda_combine c) {
    __shared__ common g;
    __shared__ pair_order order;
    extern __shared__ __align__(128) char smem[]; /* the order */
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    int64_t rows = h.state->recv_total;
    int fault = routing_fault(h, c.tokens, c.topk);
    if (block_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && threadIdx.x < 32 && c.part != MPIX_CUDA_END)
        rows_offer_send(h, c, rows, fault, epoch);
    if (c.part == MPIX_CUDA_BEGIN)
        return;
    if (c.choice_weights && !c.offer.status && !fault)
        choices_send(h, c, epoch);
    if (threadIdx.x < 32) {
        mpix_cuda_offer o;
        int bad = offers_wait(h, c.offer, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch,
                              blockIdx.x == 0 ? c.wait_ns : nullptr, c.report, &o);
        g.offers[threadIdx.x] = o;
        __syncwarp();
        if (threadIdx.x == 0) {
            g.bad = bad;
            form_choose(h, c, g);
        }
    }
    __syncthreads();
    if (g.bad == 2)
        return;
    bool fine = true;
    if (g.bad == 0) {
        float *values = c.out_slots;
        /* the sums go on: peers' pushes wait for them to be used */
        for (int r = 0; r < h.size; r++)
            if (c.out_slots && g.offers[r].rows > 0 &&
                !(g.offers[r].flags & MPIX_EP_OFFER_HAS_SLOTS)) {
                values = nullptr;
                if (threadIdx.x == 0)
                    report(h, MPIX_CUDA_SLOTS, 0, r, 0, 0);
            }
        if (!choices_wait(h, c, g, epoch))
            return;
        order_fill(h, order, smem);
        if (threadIdx.x / 32 < PUSHERS)
            fine = push_all<SUM>(h, c, g, order, epoch);
        if (fine)
            fine = finish_all<SUM>(h, c, g, epoch, values);
    }
    if (__syncthreads_or(!fine))
        return;
    if (last_block(h, MPIX_CUDA_COMBINE) && threadIdx.x == 0)
        call_end(h, MPIX_CUDA_COMBINE, epoch, c.report);
}

/* ---- launches -------------------------------------------------------------------------------- */
template <class SUM>
static cudaError_t launch(int sms, const mpix_cuda_handle *h, const mpix_cuda_combine *c,
                          cudaStream_t stream) {
    expert_combine_kernel<SUM><<<sms, THREADS, order_bytes(h), stream>>>(*h, *c);
    return cudaGetLastError();
}

cudaError_t mpix_cuda_expert_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                            mpix_cuda_combine *c, cudaStream_t stream) {
    /* Sums here are a matter of local memory, but among peers all blocks wait for them. */
    int sms = mpix_cuda_blocks(d, c->num_sms > 0 ? c->num_sms
                                  : h->size > 1  ? mpix_cuda_half(d, d->sms)
                                                 : d->sms);
    c->offer.blocks = sms;
    if (c->part == MPIX_CUDA_BEGIN)
        sms = 1;
    /* Pieces of a row are the units of work: a chunk is complete when all pieces of
     * its pairs are. */
    c->piece = PIECE;
    c->pieces = (int)((c->hidden + c->piece - 1) / c->piece);
    return sum_choose(c, [&](auto sum) { return launch<decltype(sum)>(sms, h, c, stream); });
}

cudaError_t mpix_cuda_expert_combine_load(int *arch) {
    return sum_each(
        [=](auto sum) { return mpix_cuda_load(arch, expert_combine_kernel<decltype(sum)>); });
}
