/*
 * engines.cu - dispatch and combine whose rows are moved by copy engines: no multiprocessor is held while they travel.
 *
 * Copies have their addresses and sizes from the host, which knows the routing's counts (the call waits for them if need be) but no
 * peer's buffers. So:
 *
 * Dispatch pulls. Kernels pack rows by destination into this rank's window and put its own rows where they belong; copy engines of the
 * receivers fetch them, straight to their final place. Nobody writes another rank's memory. The packing is cut into pieces: each kernel
 * packs one, says so, and ends when all peers have packed theirs, and then that piece is fetched while the next is packed. When kernel k
 * of a rank waits, it has said k; so no order of ranks can deadlock. A place is packed again only when its receiver has said PULLED,
 * which a copy behind the others carries.
 *
 * Combine pushes. Rows for a source lie together in COMPACT, so copy engines push them as they lie into the source's window; a copy
 * behind each piece carries the word PUSHED. The source sums piece after piece. A place is pushed to again only when its owner has said
 * SUMMED. Copies can't be called back: if that wait ends without success, the pusher writes REVOKED first, and an owner that finds it
 * after its sums does not believe them: every byte that a late copy may have changed was copied after REVOKED was there.
 *
 * The values of words that copies carry are epochs, which are counted on the device: a kernel puts them where the copies take them.
 */
#include "copy.cuh"
#include "engines.cuh"
#include "launch.h"

#include <new>

enum { SIGNAL_PULLED, SIGNAL_PUSHED }; /* of h.engines.signals; PUSHED + i: with i + 1 pieces */
enum { HOST_ROUTED, HOST_WIDTH, HOST_TOTAL, HOST_CUTS }; /* of h.engines.host; CUTS: [size][PIECES + 1] rows from each source before a piece */
enum { CHUNK = 4096 }; /* bytes of a row that a warp packs at a time */

/* Pieces that are moved one by one, in eighths of the tokens. The first kernel of dispatch and the last sum of combine hide behind
 * nothing, so those are small. */
static const int dispatch_cuts[] = {0, 1, 3, 5, 8}, combine_cuts[] = {0, 3, 6, 7, 8};
enum { NPIECES = 4 };

enum { TYPE_F64 = 1, TYPE_F32, TYPE_F16, TYPE_BF16, SCALES_FLOAT = 1 }; /* as in mpix_ep.h */

/* ---- counts ---------------------------------------------------------------------------------------------------------------- */

/* After route: how many rows of each piece come from whom, told to the host. One block. */
__global__ void cuts_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_route c) {
    if (call_refused(h, c.report))
        return;
    const mpix_cuda_state *st = h.state;
    const int cuts = MPIX_CUDA_PIECES + 1;
    uint64_t epoch = st->epoch[MPIX_CUDA_ROUTE];
    for (int i = threadIdx.x; i < h.size * cuts; i += blockDim.x) {
        int r = i / cuts, k = i % cuts;
        int64_t first = piece_token(c.tokens, k);
        uint32_t rows = !st->routed ? 0 : first < c.tokens ? h.blk[first / MPIX_CUDA_BLOCK_TOKENS * h.size + r] : st->send[r];
        ((uint32_t *)(block_of(h, r, h.rank) + h.engines.cuts))[(epoch & 1) * cuts + k] = rows;
    }
    __syncthreads();
    int bad = 0;
    if ((int)threadIdx.x < h.size) {
        word_store(&engine_words(h, threadIdx.x, h.rank)->cuts, epoch);
        delay(h, 3);
        bad = !word_wait(h, &engine_words(h, h.rank, threadIdx.x)->cuts, epoch, threadIdx.x, c.report);
    }
    bad = __syncthreads_or(bad);
    for (int i = threadIdx.x; i < h.size * cuts && !bad; i += blockDim.x)
        h.engines.host[HOST_CUTS + i] = ((const volatile uint32_t *)(block_of(h, h.rank, i / cuts) + h.engines.cuts))[(epoch & 1) * cuts + i % cuts];
    if (threadIdx.x == 0) {
        h.engines.host[HOST_WIDTH] = st->width;
        h.engines.host[HOST_TOTAL] = st->recv_total;
        h.engines.host[HOST_ROUTED] = !bad && st->routed;
    }
}

cudaError_t mpix_cuda_engines_route_launch(const mpix_cuda_handle *h, const mpix_cuda_route *c, cudaStream_t stream) {
    cuts_kernel<<<1, 256, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

/* ---- dispatch -------------------------------------------------------------------------------------------------------------- */

/* Before the first piece: READY, which carries what ranks compare, and the peers have fetched the last batch. One block. */
__global__ void pack_gate_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    mpix_cuda_offer mine = c.offer;
    int lane = threadIdx.x;
    mine.status = own_status(h, c);
    if (lane == 0) {
        h.engines.signals[SIGNAL_PULLED] = epoch;
        if (!c.offer.status && mine.status == 1)
            report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
        else if (!c.offer.status && mine.status == 2)
            report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
    }
    offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
    if (lane < h.size && lane != h.rank) {
        if (mine.status) /* fetches nothing */
            word_store(&engine_words(h, lane, h.rank)->pulled, epoch);
        delay(h, 4);
        word_wait(h, &engine_words(h, h.rank, lane)->pulled, epoch - 1, lane, c.report);
    }
}

/* What goes beside the row of token t: lane r has its row at rank r, or -1, and where its record goes. */
__device__ static void record_pack(const mpix_cuda_handle &h, const mpix_cuda_dispatch &c, int64_t t, char *rec, int lane) {
    for (int r = 0; r < h.size; r++) {
        char *to = (char *)__shfl_sync(~0u, (unsigned long long)rec, r);
        if (!to)
            continue;
        if (lane == 0)
            *(int64_t *)to = t;
        for (int k = lane; k < c.topk; k += 32) {
            int32_t id = h.ids[t * h.max_topk + k];
            ((int32_t *)(to + 8))[k] = id >= 0 && h.owner[id] == r ? h.local[id] : -1;
            if (c.weights)
                ((float *)(to + 8))[h.max_topk + k] = c.weights[t * c.topk + k];
        }
    }
}

__global__ void __launch_bounds__(512) pack_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c, int64_t first,
                                                   int64_t end, int index) {
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c), lane = threadIdx.x % 32;
    int chunks = (int)((c.row + CHUNK - 1) / CHUNK);
    int64_t base = lane == h.rank ? h.state->base[lane] : 0;
    char *rows = nullptr, *scales = nullptr, *records = nullptr;
    int64_t stride = c.row, scale_stride = c.scale_row, most = INT64_MAX;
    if (lane < h.size && lane != h.rank) {
        staged s = staged_of(h.state->send[lane], c.row, c.scale_row);
        rows = pack_at(h, h.rank, lane);
        scales = rows + s.scales;
        records = rows + s.beside;
    } else if (lane == h.rank) {
        rows = c.out;
        scales = c.out_scales;
        records = h.window[lane] + h.meta;
        stride = (int64_t)c.offer.at[MPIX_CUDA_AT_X].stride;
        scale_stride = (int64_t)c.offer.at[MPIX_CUDA_AT_SCALES].stride;
        most = c.offer.rows;
    }
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t i = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x; !status && i < (end - first) * chunks; i += warps) {
        int64_t t = first + i / chunks, off = i % chunks * CHUNK, n = c.row - off < CHUNK ? c.row - off : CHUNK;
        int64_t row = -1;
        if (lane < h.size && (h.bitmap[t] >> lane & 1))
            row = base + h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + lane] + h.rel[t * h.size + lane];
        if (row >= most)
            row = -1;
        warp_copy_any(c.x + t * c.x_stride + off, row >= 0 ? rows + row * stride + off : nullptr, n, lane);
        if (off > 0)
            continue;
        if (c.scale_row > 0)
            warp_copy_any(c.scales + t * c.scale_stride, row >= 0 ? scales + row * scale_stride : nullptr, c.scale_row, lane);
        record_pack(h, c, t, row >= 0 ? records + row * h.meta_record : nullptr, lane);
    }
    if (!last_block(h, MPIX_CUDA_DISPATCH))
        return;
    if (threadIdx.x == 0)
        counters_reset(h, MPIX_CUDA_DISPATCH);
    if (status || (int)threadIdx.x >= h.size || (int)threadIdx.x == h.rank)
        return;
    int peer = threadIdx.x;
    delay(h, 52 + peer);
    word_store(&engine_words(h, peer, h.rank)->packed, pieces_word(epoch, index + 1));
    uint64_t start = now_ns();
    if (word_wait(h, &words_of(h, h.rank, peer)->ready, epoch, peer, c.report) &&
        *(const volatile int32_t *)&offer_of(h, h.rank, peer, h.ready, epoch)->status == 0)
        word_wait(h, &engine_words(h, h.rank, peer)->packed, pieces_word(epoch, index + 1), peer, c.report);
    if (c.wait_ns)
        c.wait_ns[peer] += (int64_t)(now_ns() - start);
}

/* All is here, or some rank failed its part. One warp. */
__global__ void pull_end_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_dispatch c) {
    mpix_cuda_offer o;
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr, c.report, &o) == 2)
        return;
    __syncwarp();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* ---- combine --------------------------------------------------------------------------------------------------------------- */

/* Before anything is pushed: ROWS, which carries what ranks compare, and the owners have summed the last batch. One warp. */
__global__ void push_gate_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c) {
    int lane = threadIdx.x, fault = routing_fault(h, c.tokens, c.topk);
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    bool refused = call_refused(h, c.report);
    if (lane < NPIECES)
        h.engines.signals[SIGNAL_PUSHED + lane] = pieces_word(epoch, lane + 1);
    if (!refused) {
        mpix_cuda_offer mine = c.offer;
        int64_t rows = h.state->recv_total;
        if (!mine.status && fault) {
            mine.status = 1;
            if (lane == 0)
                report(h, fault, 0, -1, h.state->tokens, c.tokens);
        } else if (!mine.status && mine.rows < rows && !h.drop) {
            mine.status = 2;
            if (lane == 0)
                report(h, MPIX_CUDA_CAPACITY, 0, -1, rows, mine.rows);
        }
        if (mine.rows > rows)
            mine.rows = rows;
        offer_send(h, mine, h.offered, offsetof(mpix_cuda_words, rows_offered), epoch);
        delay(h, 4);
    }
    bool late = lane < h.size && lane != h.rank && (refused || !word_wait(h, &engine_words(h, h.rank, lane)->summed, epoch - 1, lane, c.report));
    if (__any_sync(~0u, late) && lane < h.size)
        word_store(&engine_words(h, lane, h.rank)->revoked, epoch);
}

/* So many pieces are here from all peers, or some rank failed its part. One warp. */
__global__ void pushed_wait_kernel(const __grid_constant__ mpix_cuda_handle h, const __grid_constant__ mpix_cuda_combine c, int pieces) {
    int lane = threadIdx.x, status = 0, fine = 1;
    if (call_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1, start = now_ns();
    if (lane < h.size && (fine = word_wait(h, &words_of(h, h.rank, lane)->rows_offered, epoch, lane, c.report)))
        status = *(const volatile int32_t *)&offer_of(h, h.rank, lane, h.offered, epoch)->status;
    if (__any_sync(~0u, status || !fine))
        return;
    if (lane < h.size && lane != h.rank) {
        word_wait(h, &engine_words(h, h.rank, lane)->pushed, pieces_word(epoch, pieces), lane, c.report);
        if (c.wait_ns)
            c.wait_ns[lane] += (int64_t)(now_ns() - start);
    }
}

/* ---- the host's part ------------------------------------------------------------------------------------------------------- */

enum { STREAMS = 4 };
struct copy_engines {
    int split; /* streams that share each copy */
    cudaStream_t stream[STREAMS];
    cudaEvent_t piece[NPIECES], done[STREAMS];
};

cudaError_t mpix_cuda_engines_create(int split, void **out) {
    copy_engines *e = new (std::nothrow) copy_engines();
    int least, most;
    if (!e)
        return cudaErrorMemoryAllocation;
    e->split = split < 1 ? 1 : split > STREAMS ? STREAMS : split;
    *out = e;
    cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &most);
    for (int i = 0; i < STREAMS && err == cudaSuccess; i++) {
        err = cudaStreamCreateWithPriority(&e->stream[i], cudaStreamNonBlocking, most);
        err = err == cudaSuccess ? cudaEventCreateWithFlags(&e->done[i], cudaEventDisableTiming) : err;
    }
    for (int i = 0; i < NPIECES && err == cudaSuccess; i++)
        err = cudaEventCreateWithFlags(&e->piece[i], cudaEventDisableTiming);
    if (err != cudaSuccess)
        mpix_cuda_engines_destroy(e);
    return err;
}

void mpix_cuda_engines_destroy(void *engines) {
    copy_engines *e = (copy_engines *)engines;
    for (int i = 0; i < STREAMS; i++) {
        if (e->stream[i])
            cudaStreamDestroy(e->stream[i]);
        if (e->done[i])
            cudaEventDestroy(e->done[i]);
    }
    for (int i = 0; i < NPIECES; i++)
        if (e->piece[i])
            cudaEventDestroy(e->piece[i]);
    delete e;
}

/* Collects the first error of a row of calls; after one, nothing more is done. */
struct row_of_calls {
    copy_engines *e;
    cudaError_t err;
    void note(cudaError_t got) { err = err == cudaSuccess ? got : err; }
    bool fine() const { return err == cudaSuccess; }

    /* n rows of row bytes by stream s, dense where both are. */
    void rows(int s, char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t row, int64_t n) {
        if (!fine() || n <= 0 || row <= 0)
            return;
        if (to_stride == row && from_stride == row)
            note(cudaMemcpyAsync(to, from, (size_t)(n * row), cudaMemcpyDefault, e->stream[s]));
        else
            note(cudaMemcpy2DAsync(to, (size_t)to_stride, from, (size_t)from_stride, (size_t)row, (size_t)n, cudaMemcpyDefault, e->stream[s]));
    }
    /* The same, shared by the streams that serve a peer. */
    void shared(int peer, char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t row, int64_t n) {
        for (int i = 0; i < e->split; i++) {
            int64_t a = n * i / e->split, b = n * (i + 1) / e->split;
            rows((peer * e->split + i) % STREAMS, to + a * to_stride, to_stride, from + a * from_stride, from_stride, row, b - a);
        }
    }
    /* A word behind all that serves a peer so far. */
    void word(int peer, void *to, const void *from) {
        int s = peer * e->split % STREAMS;
        for (int i = 1; i < e->split && fine(); i++) {
            int o = (s + i) % STREAMS;
            note(cudaEventRecord(e->done[o], e->stream[o]));
            note(cudaStreamWaitEvent(e->stream[s], e->done[o], 0));
        }
        if (fine())
            note(cudaMemcpyAsync(to, from, sizeof(uint64_t), cudaMemcpyDefault, e->stream[s]));
    }
    /* All copies from here on follow what is in a stream now; and the other way round. */
    void follow(cudaStream_t stream, int piece) {
        note(cudaEventRecord(e->piece[piece], stream));
        for (int i = 0; i < STREAMS && fine(); i++)
            note(cudaStreamWaitEvent(e->stream[i], e->piece[piece], 0));
    }
    void join(cudaStream_t stream) {
        for (int i = 0; i < STREAMS && fine(); i++) {
            note(cudaEventRecord(e->done[i], e->stream[i]));
            note(cudaStreamWaitEvent(stream, e->done[i], 0));
        }
    }
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What a source's rows are here, cut off where there is no room. */
struct arrivals {
    const int64_t *cuts;
    int64_t first, n, room;
    arrivals(const mpix_cuda_handle *h, int source, int64_t most) {
        first = 0;
        for (int s = 0; s < source; s++)
            first += h->engines.host[HOST_CUTS + s * (MPIX_CUDA_PIECES + 1) + MPIX_CUDA_PIECES];
        cuts = h->engines.host + HOST_CUTS + source * (MPIX_CUDA_PIECES + 1);
        n = cuts[MPIX_CUDA_PIECES];
        room = most > first ? least(most - first, n) : 0;
    }
    int64_t before(int piece) const { return least(cuts[piece], room); }
};

static char *word_at(const mpix_cuda_handle *h, int owner, size_t word) {
    return h->window[owner] + h->block * h->rank + h->engines.words + word;
}

static void dispatch_begin(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, cudaStream_t stream, row_of_calls *w) {
    int blocks = 2 * d->sms, pull = !c->status && h->engines.host[HOST_ROUTED];
    pack_gate_kernel<<<1, 32, 0, stream>>>(*h, *c);
    w->note(cudaGetLastError());
    for (int k = 0; k < NPIECES && w->fine(); k++) {
        pack_kernel<<<blocks, 512, 0, stream>>>(*h, *c, piece_token(c->tokens, dispatch_cuts[k]), piece_token(c->tokens, dispatch_cuts[k + 1]), k);
        w->note(cudaGetLastError());
        w->follow(stream, k);
        for (int i = 1; i < h->size && pull; i++) { /* not all from the same rank at once */
            int s = (h->rank + i) % h->size;
            arrivals a(h, s, c->offer.rows);
            int64_t from = a.before(dispatch_cuts[k]), n = a.before(dispatch_cuts[k + 1]) - from, stride = (int64_t)c->offer.at[MPIX_CUDA_AT_X].stride;
            w->shared(i - 1, c->out + (a.first + from) * stride, stride, pack_at(*h, s, h->rank) + from * c->row, c->row, c->row, n);
        }
    }
    for (int i = 1; i < h->size && pull; i++) {
        int s = (h->rank + i) % h->size;
        arrivals a(h, s, c->offer.rows);
        staged at = staged_of(a.n, c->row, c->scale_row);
        int64_t stride = (int64_t)c->offer.at[MPIX_CUDA_AT_SCALES].stride, record = (int64_t)h->meta_record;
        const char *from = pack_at(*h, s, h->rank);
        if (c->scale_row > 0)
            w->shared(i - 1, c->out_scales + a.first * stride, stride, from + at.scales, c->scale_row, c->scale_row, a.room);
        if (c->offer.flags & MPIX_CUDA_OFFER_META)
            w->shared(i - 1, h->window[h->rank] + h->meta + a.first * record, record, from + at.beside, record, record, a.room);
        w->word(i - 1, word_at(h, s, offsetof(mpix_cuda_engine_words, pulled)), &h->engines.signals[SIGNAL_PULLED]);
    }
}

cudaError_t mpix_cuda_engines_dispatch_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, cudaStream_t stream) {
    row_of_calls w = {(copy_engines *)h->engines.copies, cudaSuccess};
    if (c->part != MPIX_CUDA_END)
        dispatch_begin(d, h, c, stream, &w);
    if (c->part != MPIX_CUDA_BEGIN && w.fine()) {
        w.join(stream);
        pull_end_kernel<<<1, 32, 0, stream>>>(*h, *c);
        w.note(cudaGetLastError());
        if (w.fine())
            w.note(mpix_cuda_unpack_launch(h, c, d->sms, stream));
    }
    return w.err;
}

static void combine_begin(const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream, row_of_calls *w) {
    push_gate_kernel<<<1, 32, 0, stream>>>(*h, *c);
    w->note(cudaGetLastError());
    w->follow(stream, 0);
    if (c->status || !h->engines.host[HOST_ROUTED])
        return;
    int64_t row = c->row, scale_row = c->scale_row, slot = 4 * h->engines.host[HOST_WIDTH], most = least(c->offer.rows, h->engines.host[HOST_TOTAL]);
    for (int k = 0; k < NPIECES; k++) {
        for (int i = 1; i < h->size; i++) {
            int s = (h->rank + i) % h->size;
            arrivals a(h, s, most);
            staged at = staged_of(a.n, row, scale_row);
            char *to = push_at(*h, s, h->rank);
            int64_t from = a.before(combine_cuts[k]), n = a.before(combine_cuts[k + 1]) - from;
            if (k == 0 && scale_row > 0)
                w->shared(i - 1, to + at.scales, scale_row, c->scales + a.first * c->scale_stride, c->scale_stride, scale_row, a.room);
            if (k == 0 && c->row_weights)
                w->shared(i - 1, to + at.beside, 4, (const char *)(c->row_weights + a.first), 4, 4, a.room);
            if (k == 0 && c->slot_values)
                w->shared(i - 1, to + at.slots, slot, (const char *)c->slot_values + a.first * slot, slot, slot, a.room);
            w->shared(i - 1, to + from * row, row, c->x + (a.first + from) * c->x_stride, c->x_stride, row, n);
            w->word(i - 1, word_at(h, s, offsetof(mpix_cuda_engine_words, pushed)), &h->engines.signals[SIGNAL_PUSHED + k]);
        }
    }
}

/* The sums of the tokens of one piece: the kernels of combine.cu, on the part of every array that is about them. */
static cudaError_t piece_sum_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, const mpix_cuda_combine *c, int k, cudaStream_t stream) {
    mpix_cuda_handle part = *h;
    mpix_cuda_combine sum = *c;
    int64_t first = piece_token(c->tokens, combine_cuts[k]);
    part.bitmap += first;
    part.rel += first * h->size;
    part.blk += first / MPIX_CUDA_BLOCK_TOKENS * h->size;
    part.ids += first * h->max_topk;
    sum.tokens = piece_token(c->tokens, combine_cuts[k + 1]) - first;
    sum.y += first * c->y_stride;
    for (int b = 0; b < c->num_bias; b++)
        sum.bias[b] += first * c->bias_stride[b];
    sum.out_slots = c->out_slots ? c->out_slots + first * c->topk : nullptr;
    sum.wait_ns = nullptr;
    sum.part = MPIX_CUDA_END;
    sum.staged = k == NPIECES - 1 ? MPIX_CUDA_STAGED_LAST : MPIX_CUDA_STAGED;
    sum.num_sms = d->sms;
    sum.path = MPIX_CUDA_PATH_VECTOR;
    return mpix_cuda_combine_launch(d, &part, &sum, stream);
}

cudaError_t mpix_cuda_engines_combine_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream) {
    int64_t groups = (c->hidden + 127) / 128;
    c->row = c->hidden * (c->xdtype == TYPE_F64 ? 8 : c->xdtype == TYPE_F32 ? 4 : c->xdtype == TYPE_F16 || c->xdtype == TYPE_BF16 ? 2 : 1);
    c->scale_row = c->scale_kind == SCALES_FLOAT ? 4 * groups : c->scale_kind ? groups : 0;
    row_of_calls w = {(copy_engines *)h->engines.copies, cudaSuccess};
    if (c->part != MPIX_CUDA_END)
        combine_begin(h, c, stream, &w);
    if (c->part == MPIX_CUDA_BEGIN)
        return w.err;
    for (int k = 0; k < NPIECES && w.fine(); k++) {
        pushed_wait_kernel<<<1, 32, 0, stream>>>(*h, *c, k + 1);
        w.note(cudaGetLastError());
        if (w.fine())
            w.note(piece_sum_launch(d, h, c, k, stream));
    }
    w.join(stream); /* in.x is the caller's again */
    return w.err;
}

cudaError_t mpix_cuda_engines_load(void) {
    cudaFuncAttributes a;
    cudaError_t err = cudaFuncGetAttributes(&a, cuts_kernel);
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, pack_gate_kernel) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, pack_kernel) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, pull_end_kernel) : err;
    err = err == cudaSuccess ? cudaFuncGetAttributes(&a, push_gate_kernel) : err;
    return err == cudaSuccess ? cudaFuncGetAttributes(&a, pushed_wait_kernel) : err;
}
