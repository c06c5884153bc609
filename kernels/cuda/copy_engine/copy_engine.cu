/*
 * copy_engine.cu - dispatch and combine whose rows are moved by copy engines: no multiprocessor is
 * held while they travel.
 *
 * Copies have their addresses and sizes from the host, which knows the routing's counts (the call
 * waits for them if need be) but no peer's buffers. So:
 *
 * Dispatch pulls. A kernel packs rows by destination into this rank's window and puts its own rows
 * where they belong; copy engines of the receivers fetch them, straight to their final place.
 * Nobody writes another rank's memory. The packing is cut into pieces: each is told to the peers
 * when it is complete, and a warp on a stream of its own waits for theirs, piece after piece,
 * before each is fetched. The packing itself waits for nothing of the same call, so no order of
 * ranks can deadlock. If a wait fails, the copies run all the same: they write only this rank's
 * output, of a call that has failed. A place is packed again only when its receiver has said
 * PULLED, which a copy behind the others carries.
 *
 * Combine pushes. Rows for a source lie together in COMPACT, so copy engines push them as they lie
 * into the source's window; a copy behind each piece carries the word PUSHED. The source sums piece
 * after piece. A place is pushed to again only when its owner has said SUMMED. Copies can't be
 * called back: if that wait ends without success, the pusher writes REVOKED first, and an owner
 * that finds it after its sums does not believe them: every byte that a late copy may have changed
 * was copied after REVOKED was there.
 *
 * One place serves both ways between two ranks: what owner packs for peer, which peer pulls, and
 * what peer pushes back to owner. All calls of a handle follow each other on every rank, so only
 * the other rank's call before or behind could still be, or already be, at that place:
 *   The owner packs when all that the peer pushed in the last combine is here. A sum that went well
 *   has waited for that; where the combine failed its part, the peer's READY of this call says so,
 *   since it stands behind those copies in the peer's order. The peer pushes when the owner has
 *   packed all of the last dispatch, which a pull that went well has waited for; where that
 *   dispatch failed its part, the owner's ROWS of this call say so.
 * READY and ROWS are sent before anything waits, so neither wait can close a circle.
 *
 * The values of words that copies carry are epochs, which are counted on the device: a kernel puts
 * them where the copies take them.
 */
#include "common/copy.cuh"
#include "copy_engine.cuh"
#include "common/launch.h"

#include <new>

/* Of h.copy_engine.signals: values of words; PUSHED + i: with i + 1 pieces. DONE + i: what is
 * packed of piece i, zero between calls. */
enum { SIGNAL_PULLED, SIGNAL_PUSHED, SIGNAL_DONE = 16 };
enum {
    HOST_ROUTED,
    HOST_WIDTH,
    HOST_TOTAL,
    HOST_CUTS
};                     /* of h.copy_engine.host; CUTS: [size][PIECES +
                        * 1] rows from each source before a
                        * piece */
enum { CHUNK = 4096 }; /* bytes of a row that a warp packs at a time */

/* Pieces that are moved one by one, in sixteenths of the tokens. What comes before the first copy
 * of dispatch and after the last of combine hides behind nothing, so those are small; more pieces
 * cost more than they hide. */
enum { DPIECES = 4, CPIECES = 3, PACK_BLOCKS = 64 };
static const int dispatch_cuts[] = {0, 1, 4, 9, 16}, combine_cuts[] = {0, 10, 14, 16};

enum { TYPE_F64 = 1, TYPE_F32, TYPE_F16, TYPE_BF16, SCALES_FLOAT = 1 }; /* as in mpix_ep.h */

/* ---- counts ---------------------------------------------------------------------------------- */

/* After route: how many rows of each piece come from whom, told to the host. One block. */
__global__ void cuts_kernel(const __grid_constant__ mpix_cuda_handle h,
                            const __grid_constant__ mpix_cuda_route c) {
    if (block_refused(h, c.report))
        return;
    const mpix_cuda_state *st = h.state;
    const int cuts = MPIX_CUDA_PIECES + 1;
    uint64_t epoch = st->epoch[MPIX_CUDA_ROUTE];
    for (int i = threadIdx.x; i < h.size * cuts; i += blockDim.x) {
        int r = i / cuts, k = i % cuts;
        int64_t first = piece_token(c.tokens, k);
        uint32_t rows = !st->routed        ? 0
                        : first < c.tokens ? h.blk[first / MPIX_CUDA_BLOCK_TOKENS * h.size + r]
                                           : st->send[r];
        ((uint32_t *)(block_of(h, r, h.rank) + h.copy_engine.cuts))[(epoch & 1) * cuts + k] = rows;
    }
    __syncthreads();
    int bad = 0;
    if ((int)threadIdx.x < h.size) {
        word_store(&copy_engine_words(h, threadIdx.x, h.rank)->cuts, epoch);
        delay(h, 3);
        bad = !word_wait(h, &copy_engine_words(h, h.rank, threadIdx.x)->cuts, epoch, threadIdx.x,
                         c.report);
    }
    bad = __syncthreads_or(bad);
    for (int i = threadIdx.x; i < h.size * cuts && !bad; i += blockDim.x)
        h.copy_engine.host[HOST_CUTS + i] =
            ((const volatile uint32_t *)(block_of(h, h.rank, i / cuts) +
                                         h.copy_engine.cuts))[(epoch & 1) * cuts + i % cuts];
    if (threadIdx.x == 0) {
        h.copy_engine.host[HOST_WIDTH] = st->width;
        h.copy_engine.host[HOST_TOTAL] = st->recv_total;
        h.copy_engine.host[HOST_ROUTED] = !bad && st->routed;
    }
}

cudaError_t mpix_cuda_copy_engine_route_launch(const mpix_cuda_handle *h, const mpix_cuda_route *c,
                                               cudaStream_t stream) {
    cuts_kernel<<<1, 256, 0, stream>>>(*h, *c);
    return cudaGetLastError();
}

/* ---- dispatch -------------------------------------------------------------------------------- */

struct pack_plan {
    int64_t first[DPIECES + 1];
};

/* All peers have packed a piece, or some rank failed its part. One warp. */
__global__ void packed_wait_kernel(const __grid_constant__ mpix_cuda_handle h,
                                   const __grid_constant__ mpix_cuda_dispatch c, int piece) {
    int peer = threadIdx.x;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1, start = now_ns();
    /* here, since the copy that takes it waits for this kernel, not for the one that packs */
    if (peer == 0)
        h.copy_engine.signals[SIGNAL_PULLED] = epoch;
    if (call_refused(h, c.report) || own_status(h, c) || peer >= h.size || peer == h.rank)
        return;
    if (word_wait(h, &words_of(h, h.rank, peer)->ready, epoch, peer, c.report) &&
        *(const volatile int32_t *)&offer_of(h, h.rank, peer, h.ready, epoch)->status == 0)
        word_wait(h, &copy_engine_words(h, h.rank, peer)->packed[piece], epoch, peer, c.report);
    if (c.wait_ns)
        c.wait_ns[peer] += (int64_t)(now_ns() - start);
}

/* So many rows of a piece are packed by this warp; who counts the last tells the peers. */
__device__ static void piece_count(const mpix_cuda_handle &h, uint64_t epoch, int piece, int64_t n,
                                   int64_t all) {
    int lane = threadIdx.x % 32;
    unsigned long long before = 0;
    __syncwarp();
    if (lane == 0 && n > 0) {
        __threadfence();
        before = atomicAdd((unsigned long long *)&h.copy_engine.signals[SIGNAL_DONE + piece],
                           (unsigned long long)n) +
                 n;
        __threadfence();
    }
    if ((int64_t)__shfl_sync(~0u, before, 0) != all || n == 0)
        return;
    __syncwarp();
    if (lane == 0)
        h.copy_engine.signals[SIGNAL_DONE + piece] = 0;
    if (lane < h.size && lane != h.rank) {
        delay(h, 52 + lane);
        word_store(&copy_engine_words(h, lane, h.rank)->packed[piece], epoch);
    }
}

/* The first warp sends READY, which carries what ranks compare; all pack, in the order of the
 * tokens. Half a multiprocessor's registers stay free for the warp that waits. */
__global__ void __launch_bounds__(512, 2) pack_kernel(const __grid_constant__ mpix_cuda_handle h,
                                                      const __grid_constant__ mpix_cuda_dispatch c,
                                                      const __grid_constant__ pack_plan plan) {
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    int status = own_status(h, c), lane = threadIdx.x % 32, warp = threadIdx.x / 32, fine = 1;
    bool peer = lane < h.size && lane != h.rank;
    if (block_refused(h, c.report))
        return;
    if (blockIdx.x == 0 && warp == 0) {
        mpix_cuda_offer mine = c.offer;
        mine.status = status;
        offer_send(h, mine, h.ready, offsetof(mpix_cuda_words, ready), epoch);
        if (lane == 0) {
            if (!c.offer.status && status == MPIX_KIND_ARG)
                report(h, routing_fault(h, c.tokens, c.topk), 0, -1, h.state->tokens, c.tokens);
            else if (!c.offer.status && status == MPIX_KIND_TRUNCATE)
                report(h, MPIX_CUDA_CAPACITY, 0, -1, h.state->recv_total, c.capacity);
        }
        if (status && peer) /* fetches nothing */
            word_store(&copy_engine_words(h, lane, h.rank)->pulled, epoch);
        for (int k = 0; k < DPIECES && !status && peer; k++)
            if (plan.first[k] == plan.first[k + 1]) /* nobody packs it */
                word_store(&copy_engine_words(h, lane, h.rank)->packed[k], epoch);
    }
    if (status)
        return;
    delay(h, 4);
    if (peer) /* has fetched the last batch, and pushes no more */
        fine = word_wait(h, &copy_engine_words(h, h.rank, lane)->pulled, epoch - 1, lane,
                         c.report) &&
               (word_load(&copy_engine_words(h, h.rank, lane)->pushed) >=
                    pieces_word(h.state->epoch[MPIX_CUDA_COMBINE], CPIECES) ||
                word_wait(h, &words_of(h, h.rank, lane)->ready, epoch, lane, c.report));
    if (!__all_sync(~0u, fine))
        return;
    int chunks = (int)((c.row + CHUNK - 1) / CHUNK), piece = 0;
    int64_t base = lane == h.rank ? h.state->base[lane] : 0;
    char *rows = nullptr, *scales = nullptr, *records = nullptr;
    int64_t stride = c.row, scale_stride = c.scale_row, most = INT64_MAX, done = 0;
    if (peer) {
        staged s = staged_of(h.state->send[lane], c.row, c.scale_row);
        rows = place_of(h, h.rank, lane);
        scales = rows + s.scales;
        records = rows + s.records;
    } else if (lane == h.rank) {
        rows = c.out;
        scales = c.out_scales;
        records = h.window[lane] + h.records;
        stride = (int64_t)c.offer.at[MPIX_EP_PLACE_X].stride;
        scale_stride = (int64_t)c.offer.at[MPIX_EP_PLACE_SCALES].stride;
        most = c.offer.rows;
    }
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32),
            mine = (int64_t)warp * gridDim.x + blockIdx.x;
    for (int64_t i = mine; i < c.tokens * chunks; i += warps) {
        int64_t t = i / chunks, off = i % chunks * CHUNK,
                n = c.row - off < CHUNK ? c.row - off : CHUNK;
        while (t >= plan.first[piece + 1]) {
            piece_count(h, epoch, piece, done,
                        (plan.first[piece + 1] - plan.first[piece]) * chunks);
            done = 0;
            piece++;
        }
        int64_t row = -1;
        if (lane < h.size && (h.bitmap[t] >> lane & 1))
            row = base + h.blk[t / MPIX_CUDA_BLOCK_TOKENS * h.size + lane] +
                  h.rel[t * h.size + lane];
        if (row >= most)
            row = -1;
        warp_copy_any(c.x + t * c.x_stride + off, row >= 0 ? rows + row * stride + off : nullptr, n,
                      lane);
        done++;
        if (off > 0)
            continue;
        if (c.scale_row > 0)
            warp_copy_any(c.scales + t * c.scale_stride,
                          row >= 0 ? scales + row * scale_stride : nullptr, c.scale_row, lane);
        record_pack(h, c, t, row >= 0 ? records + row * h.record_bytes : nullptr, lane);
    }
    piece_count(h, epoch, piece, done, (plan.first[piece + 1] - plan.first[piece]) * chunks);
}

/* All is here, or some rank failed its part. One warp. */
__global__ void pull_end_kernel(const __grid_constant__ mpix_cuda_handle h,
                                const __grid_constant__ mpix_cuda_dispatch c) {
    mpix_cuda_offer o;
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_DISPATCH] + 1;
    if (offers_wait(h, c.offer, h.ready, offsetof(mpix_cuda_words, ready), epoch, nullptr, c.report,
                    &o) == 2)
        return;
    __syncwarp();
    if (threadIdx.x == 0)
        call_end(h, MPIX_CUDA_DISPATCH, epoch, c.report);
}

/* ---- combine --------------------------------------------------------------------------------- */

/* The owner no longer packs at the place that this rank pushes to; false: time-out. */
__device__ static bool packed_all(const mpix_cuda_handle &h, const mpix_cuda_combine &c,
                                  uint64_t epoch, int owner) {
    bool all = true;
    for (int k = 0; k < DPIECES; k++)
        all = word_load(&copy_engine_words(h, h.rank, owner)->packed[k]) >=
                  h.state->epoch[MPIX_CUDA_DISPATCH] &&
              all;
    return all || word_wait(h, &words_of(h, h.rank, owner)->rows_offered, epoch, owner, c.report);
}

/* Before anything is pushed: ROWS, which carries what ranks compare, and the owners have done with
 * the places. One warp. */
__global__ void push_gate_kernel(const __grid_constant__ mpix_cuda_handle h,
                                 const __grid_constant__ mpix_cuda_combine c) {
    int lane = threadIdx.x, fault = routing_fault(h, c.tokens, c.topk);
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1;
    bool refused = __any_sync(~0u, call_refused(h, c.report));
    if (lane < CPIECES)
        h.copy_engine.signals[SIGNAL_PUSHED + lane] = pieces_word(epoch, lane + 1);
    if (!refused) {
        rows_offer_send(h, c, h.state->recv_total, fault, epoch);
        delay(h, 4);
    }
    bool late =
        lane < h.size && lane != h.rank &&
        (refused ||
         !word_wait(h, &copy_engine_words(h, h.rank, lane)->summed, epoch - 1, lane, c.report) ||
         !packed_all(h, c, epoch, lane));
    if (__any_sync(~0u, late) && lane < h.size)
        word_store(&copy_engine_words(h, lane, h.rank)->revoked, epoch);
}

/* So many pieces are here from all peers, or some rank failed its part. One warp. */
__global__ void pushed_wait_kernel(const __grid_constant__ mpix_cuda_handle h,
                                   const __grid_constant__ mpix_cuda_combine c, int pieces) {
    int lane = threadIdx.x, status = 0, fine = 1;
    if (block_refused(h, c.report))
        return;
    uint64_t epoch = h.state->epoch[MPIX_CUDA_COMBINE] + 1, start = now_ns();
    if (lane < h.size &&
        (fine = word_wait(h, &words_of(h, h.rank, lane)->rows_offered, epoch, lane, c.report)))
        status = *(const volatile int32_t *)&offer_of(h, h.rank, lane, h.offered, epoch)->status;
    if (__any_sync(~0u, status || !fine))
        return;
    if (lane < h.size && lane != h.rank) {
        word_wait(h, &copy_engine_words(h, h.rank, lane)->pushed, pieces_word(epoch, pieces), lane,
                  c.report);
        if (c.wait_ns)
            c.wait_ns[lane] += (int64_t)(now_ns() - start);
    }
}

/* ---- the host's part ------------------------------------------------------------------------- */

enum { STREAMS = 4 };
struct copy_engines {
    int split;                           /* streams that share each copy */
    cudaStream_t stream[STREAMS], watch; /* watch: kernels that wait for the peers' pieces */
    /* done: rows are there; left: and words */
    cudaEvent_t start, piece[DPIECES], done[STREAMS], left[STREAMS], word;
};

cudaError_t mpix_cuda_copy_engine_create(int split, void **out) {
    copy_engines *e = new (std::nothrow) copy_engines();
    int least, most;
    if (!e)
        return cudaErrorMemoryAllocation;
    e->split = split < 1 ? 1 : split > STREAMS ? STREAMS : split;
    *out = e;
    cudaError_t err = cudaDeviceGetStreamPriorityRange(&least, &most);
    err = err == cudaSuccess ? cudaStreamCreateWithPriority(&e->watch, cudaStreamNonBlocking, most)
                             : err;
    err = err == cudaSuccess ? cudaEventCreateWithFlags(&e->word, cudaEventDisableTiming) : err;
    for (int i = 0; i < STREAMS && err == cudaSuccess; i++) {
        err = cudaStreamCreateWithPriority(&e->stream[i], cudaStreamNonBlocking, most);
        err = err == cudaSuccess ? cudaEventCreateWithFlags(&e->done[i], cudaEventDisableTiming)
                                 : err;
        err = err == cudaSuccess ? cudaEventCreateWithFlags(&e->left[i], cudaEventDisableTiming)
                                 : err;
    }
    for (int i = 0; i < DPIECES && err == cudaSuccess; i++)
        err = cudaEventCreateWithFlags(&e->piece[i], cudaEventDisableTiming);
    err = err == cudaSuccess ? cudaEventCreateWithFlags(&e->start, cudaEventDisableTiming) : err;
    if (err != cudaSuccess)
        mpix_cuda_copy_engine_destroy(e);
    return err;
}

void mpix_cuda_copy_engine_destroy(void *copy_engine) {
    copy_engines *e = (copy_engines *)copy_engine;
    for (int i = 0; i < STREAMS; i++) {
        if (e->stream[i])
            cudaStreamDestroy(e->stream[i]);
        if (e->done[i])
            cudaEventDestroy(e->done[i]);
        if (e->left[i])
            cudaEventDestroy(e->left[i]);
    }
    for (int i = 0; i < DPIECES; i++)
        if (e->piece[i])
            cudaEventDestroy(e->piece[i]);
    if (e->start)
        cudaEventDestroy(e->start);
    if (e->watch)
        cudaStreamDestroy(e->watch);
    if (e->word)
        cudaEventDestroy(e->word);
    delete e;
}

/* Collects the first error of a row of calls; after one, nothing more is done. */
struct row_of_calls {
    copy_engines *e;
    cudaError_t err;
    int used; /* streams */
    void note(cudaError_t got) { err = err == cudaSuccess ? got : err; }
    bool fine() const { return err == cudaSuccess; }

    /* n rows of row bytes by stream s, dense where both are. */
    void rows(int s, char *to, int64_t to_stride, const char *from, int64_t from_stride,
              int64_t row, int64_t n) {
        if (!fine() || n <= 0 || row <= 0)
            return;
        if (to_stride == row && from_stride == row)
            note(cudaMemcpyAsync(to, from, (size_t)(n * row), cudaMemcpyDefault, e->stream[s]));
        else
            note(cudaMemcpy2DAsync(to, (size_t)to_stride, from, (size_t)from_stride, (size_t)row,
                                   (size_t)n, cudaMemcpyDefault, e->stream[s]));
    }
    /* The same, shared by the streams that serve a peer. */
    void shared(int peer, char *to, int64_t to_stride, const char *from, int64_t from_stride,
                int64_t row, int64_t n) {
        for (int i = 0; i < e->split; i++) {
            int64_t a = n * i / e->split, b = n * (i + 1) / e->split;
            rows((peer * e->split + i) % STREAMS, to + a * to_stride, to_stride,
                 from + a * from_stride, from_stride, row, b - a);
        }
    }
    /* A word behind all that serves a peer so far. */
    void word(int peer, void *to, const void *from) {
        int s = peer * e->split % STREAMS;
        for (int i = 1; i < e->split && fine(); i++) {
            int o = (s + i) % STREAMS;
            note(cudaEventRecord(e->word, e->stream[o]));
            note(cudaStreamWaitEvent(e->stream[s], e->word, 0));
        }
        if (fine())
            note(cudaMemcpyAsync(to, from, sizeof(uint64_t), cudaMemcpyDefault, e->stream[s]));
    }
    /* Copies from here on wait until all peers have packed the piece. */
    void watch(const mpix_cuda_handle *h, const mpix_cuda_dispatch *c, int piece) {
        packed_wait_kernel<<<1, 32, 0, e->watch>>>(*h, *c, piece);
        note(cudaGetLastError());
        note(cudaEventRecord(e->piece[piece], e->watch));
        for (int i = 0; i < used && fine(); i++)
            note(cudaStreamWaitEvent(e->stream[i], e->piece[piece], 0));
    }
    /* Copies from here on follow what is in a stream now; and the other way round. */
    void follow(cudaStream_t stream) {
        note(cudaEventRecord(e->start, stream));
        for (int i = 0; i < used && fine(); i++)
            note(cudaStreamWaitEvent(e->stream[i], e->start, 0));
    }
    void rows_end() {
        for (int i = 0; i < used && fine(); i++)
            note(cudaEventRecord(e->done[i], e->stream[i]));
    }
    void join(cudaStream_t stream) {
        for (int i = 0; i < used && fine(); i++)
            note(cudaStreamWaitEvent(stream, e->done[i], 0));
    }
    /* The last words of a call may still be on their way when it is over: before their values
     * change, they have left. */
    void words_await(cudaStream_t stream) {
        for (int i = 0; i < used && fine(); i++)
            note(cudaStreamWaitEvent(stream, e->left[i], 0));
    }
    void words_end() {
        for (int i = 0; i < used && fine(); i++)
            note(cudaEventRecord(e->left[i], e->stream[i]));
    }
};

static row_of_calls calls_of(const mpix_cuda_handle *h) {
    copy_engines *e = (copy_engines *)h->copy_engine.copies;
    int used = e->split * (h->size - 1);
    return {e, cudaSuccess, used < STREAMS ? used : STREAMS};
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* What a source's rows are here, cut off where there is no room. */
struct arrivals {
    const int64_t *cuts;
    int64_t first, n, room;
    arrivals(const mpix_cuda_handle *h, int source, int64_t most) {
        first = 0;
        for (int s = 0; s < source; s++)
            first += h->copy_engine.host[HOST_CUTS + s * (MPIX_CUDA_PIECES + 1) + MPIX_CUDA_PIECES];
        cuts = h->copy_engine.host + HOST_CUTS + source * (MPIX_CUDA_PIECES + 1);
        n = cuts[MPIX_CUDA_PIECES];
        room = most > first ? least(most - first, n) : 0;
    }
    int64_t before(int piece) const { return least(cuts[piece], room); }
};

static char *word_at(const mpix_cuda_handle *h, int owner, size_t word) {
    return h->window[owner] + h->block * h->rank + h->copy_engine.words + word;
}

static void dispatch_begin(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                           mpix_cuda_dispatch *c, cudaStream_t stream, row_of_calls *w) {
    int pull = !c->status && h->copy_engine.host[HOST_ROUTED];
    pack_plan plan;
    for (int k = 0; k <= DPIECES; k++)
        plan.first[k] = piece_token(c->tokens, dispatch_cuts[k]);
    w->words_await(stream);
    w->follow(stream);
    w->note(cudaStreamWaitEvent(w->e->watch, w->e->start, 0));
    pack_kernel<<<(d->sms < PACK_BLOCKS ? d->sms : PACK_BLOCKS), 512, 0, stream>>>(*h, *c, plan);
    w->note(cudaGetLastError());
    for (int k = 0; k < DPIECES && w->fine() && pull && h->size > 1; k++) {
        w->watch(h, c, k);
        for (int i = 1; i < h->size && pull; i++) { /* not all from the same rank at once */
            int s = (h->rank + i) % h->size;
            arrivals a(h, s, c->offer.rows);
            int64_t from = a.before(dispatch_cuts[k]), n = a.before(dispatch_cuts[k + 1]) - from,
                    stride = (int64_t)c->offer.at[MPIX_EP_PLACE_X].stride;
            w->shared(i - 1, c->out + (a.first + from) * stride, stride,
                      place_of(*h, s, h->rank) + from * c->row, c->row, c->row, n);
        }
    }
    for (int i = 1; i < h->size && pull; i++) {
        int s = (h->rank + i) % h->size;
        arrivals a(h, s, c->offer.rows);
        staged at = staged_of(a.n, c->row, c->scale_row);
        int64_t stride = (int64_t)c->offer.at[MPIX_EP_PLACE_SCALES].stride,
                record = (int64_t)h->record_bytes;
        const char *from = place_of(*h, s, h->rank);
        if (c->scale_row > 0)
            w->shared(i - 1, c->out_scales + a.first * stride, stride, from + at.scales,
                      c->scale_row, c->scale_row, a.room);
        if (c->offer.flags & MPIX_CUDA_OFFER_RECORDS)
            w->shared(i - 1, h->window[h->rank] + h->records + a.first * record, record,
                      from + at.records, record, record, a.room);
    }
    w->rows_end();
    for (int i = 1; i < h->size && pull; i++)
        w->word(i - 1,
                word_at(h, (h->rank + i) % h->size, offsetof(mpix_cuda_copy_engine_words, pulled)),
                &h->copy_engine.signals[SIGNAL_PULLED]);
    w->words_end();
}

cudaError_t mpix_cuda_copy_engine_dispatch_launch(const mpix_cuda_device *d,
                                                  const mpix_cuda_handle *h, mpix_cuda_dispatch *c,
                                                  cudaStream_t stream) {
    row_of_calls w = calls_of(h);
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

static void combine_begin(const mpix_cuda_handle *h, mpix_cuda_combine *c, cudaStream_t stream,
                          row_of_calls *w) {
    w->words_await(stream);
    push_gate_kernel<<<1, 32, 0, stream>>>(*h, *c);
    w->note(cudaGetLastError());
    w->follow(stream);
    w->rows_end(); /* if nothing follows */
    if (c->status || !h->copy_engine.host[HOST_ROUTED])
        return;
    int64_t row = c->row, scale_row = c->scale_row, slot = 4 * h->copy_engine.host[HOST_WIDTH],
            most = least(c->offer.rows, h->copy_engine.host[HOST_TOTAL]);
    for (int k = 0; k < CPIECES; k++) {
        for (int i = 1; i < h->size; i++) {
            int s = (h->rank + i) % h->size;
            arrivals a(h, s, most);
            staged at = staged_of(a.n, row, scale_row);
            char *to = place_of(*h, s, h->rank);
            int64_t from = a.before(combine_cuts[k]), n = a.before(combine_cuts[k + 1]) - from;
            if (k == 0 && scale_row > 0)
                w->shared(i - 1, to + at.scales, scale_row, c->scales + a.first * c->scale_stride,
                          c->scale_stride, scale_row, a.room);
            if (k == 0 && c->row_weights)
                w->shared(i - 1, to + at.records, 4, (const char *)(c->row_weights + a.first), 4, 4,
                          a.room);
            if (k == 0 && c->slot_values)
                w->shared(i - 1, to + at.slots, slot, (const char *)c->slot_values + a.first * slot,
                          slot, slot, a.room);
            w->shared(i - 1, to + from * row, row, c->x + (a.first + from) * c->x_stride,
                      c->x_stride, row, n);
            w->word(i - 1, word_at(h, s, offsetof(mpix_cuda_copy_engine_words, pushed)),
                    &h->copy_engine.signals[SIGNAL_PUSHED + k]);
        }
    }
    w->rows_end();
    w->words_end();
}

/* The sums of the tokens of one piece: the kernels of combine.cu, on the part of every array that
 * is about them. */
static cudaError_t piece_sum_launch(const mpix_cuda_device *d, const mpix_cuda_handle *h,
                                    const mpix_cuda_combine *c, int k, cudaStream_t stream) {
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
    sum.staged = k == CPIECES - 1 ? MPIX_CUDA_STAGED_LAST : MPIX_CUDA_STAGED;
    sum.num_sms = d->sms;
    return mpix_cuda_combine_launch(d, &part, &sum, stream);
}

cudaError_t mpix_cuda_copy_engine_combine_launch(const mpix_cuda_device *d,
                                                 const mpix_cuda_handle *h, mpix_cuda_combine *c,
                                                 cudaStream_t stream) {
    int64_t groups = (c->hidden + 127) / 128;
    c->row = c->hidden * (c->xdtype == TYPE_F64                             ? 8
                          : c->xdtype == TYPE_F32                           ? 4
                          : c->xdtype == TYPE_F16 || c->xdtype == TYPE_BF16 ? 2
                                                                            : 1);
    c->scale_row = c->scale_kind == SCALES_FLOAT ? 4 * groups : c->scale_kind ? groups : 0;
    row_of_calls w = calls_of(h);
    if (c->part != MPIX_CUDA_END)
        combine_begin(h, c, stream, &w);
    if (c->part == MPIX_CUDA_BEGIN)
        return w.err;
    for (int k = 0; k < CPIECES && w.fine(); k++) {
        pushed_wait_kernel<<<1, 32, 0, stream>>>(*h, *c, k + 1);
        w.note(cudaGetLastError());
        if (w.fine())
            w.note(piece_sum_launch(d, h, c, k, stream));
    }
    w.join(stream); /* in.x is the caller's again */
    return w.err;
}

cudaError_t mpix_cuda_copy_engine_load(int *arch) {
    return mpix_cuda_load(arch, cuts_kernel, pack_kernel, packed_wait_kernel, pull_end_kernel,
                          push_gate_kernel, pushed_wait_kernel);
}
