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
#include "copy_engine_kernels.cuh"

#include <new>

/* Where pieces end, in sixteenths of the tokens. */
static const int dispatch_cuts[] = {0, 1, 4, 9, 16}, combine_cuts[] = {0, 10, 14, 16};

enum { TYPE_F64 = 1, TYPE_F32, TYPE_F16, TYPE_BF16, SCALES_FLOAT = 1 }; /* as in mpix_ep.h */

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

cudaError_t mpix_cuda_copy_engine_route_launch(const mpix_cuda_handle *h, const mpix_cuda_route *c,
                                               cudaStream_t stream) {
    cuts_kernel<<<1, 256, 0, stream>>>(*h, *c);
    return cudaGetLastError();
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
        if (c->offer.flags & MPIX_EP_OFFER_RECORDS)
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
