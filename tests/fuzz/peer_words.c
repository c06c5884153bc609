/*
 * peer_words.c - what a peer writes into this rank's windows: counts, places, offers, words,
 * status, the rows beside them and whole batches, of all modes and layouts, mapped and through the
 * proxy. Nothing of it may be trusted with memory.
 *
 * Two ranks. Rank 1 takes part in creating contexts and does nothing else; rank 0 writes into its
 * own windows what rank 1 would have written, right but for the bytes of the input, and steps its
 * call until it ends or nothing happens any more.
 */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host_ll/ll.h"
#include "tests/fuzz/fuzz.h"

enum {
    TOKENS = 20,
    TOPK = 3,
    EXPERTS = 6,
    HIDDEN = 24,
    ROW = HIDDEN * 4,
    SHAPES = 6,
    STEPS = 60,
    QUIT = 99
};

typedef struct shape {
    int mode, layout;
    const char *reach;
} shape;
static const shape shapes[SHAPES] = {{MPIX_EP_HT, MPIX_EP_COMPACT, "auto"},
                                     {MPIX_EP_HT, MPIX_EP_EXPERT, "auto"},
                                     {MPIX_EP_HT, MPIX_EP_COMPACT, "proxied"},
                                     {MPIX_EP_HT, MPIX_EP_EXPERT, "proxied"},
                                     {MPIX_EP_LL, MPIX_EP_SLOTS, "auto"},
                                     {MPIX_EP_LL, MPIX_EP_EXPERT, "auto"}};
static struct {
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
} made[SHAPES];

static void create(int which) {
    MPIX_Ep_config c;
    MPI_Info info;
    MPIX_INIT(&c);
    c.mode = shapes[which].mode;
    c.layout = shapes[which].layout;
    c.max_topk = TOPK;
    c.num_experts = EXPERTS;
    c.max_tokens = TOKENS;
    c.max_row_bytes = ROW;
    c.timeout_s = 600;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_reach", shapes[which].reach);
    MPI_Info_set(info, "mpix_ep_transport", "shmem");
    MPI_Info_set(info, "mpix_ep_signal", "ordered");
    MPI_Info_set(info, "mpix_ep_log_level", "none");
    if (MPIX_Ep_create(MPI_COMM_WORLD, &c, info, &made[which].ep) ||
        MPIX_Ep_handle_create(made[which].ep, &made[which].handle)) {
        fprintf(stderr, "peer_words: no context: %s\n", mpix_error_tls()->text);
        abort();
    }
    MPI_Info_free(&info);
}

/* A context that has failed here is given up by both: each by itself, since they are not in
 * step any more. */
static void drop(int which) {
    if (!made[which].ep)
        return;
    pthread_mutex_lock(&made[which].ep->lock);
    mpix_fail(MPIX_ERRK_INTERNAL, NULL, "given up by the test");
    mpix_ep_fail(made[which].ep, MPIX_ERRK_INTERNAL);
    pthread_mutex_unlock(&made[which].ep->lock);
    MPIX_Ep_free(&made[which].ep);
    memset(&made[which], 0, sizeof made[which]);
}

static void servant(void) {
    for (int which;;) {
        MPI_Recv(&which, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (which == QUIT)
            break;
        drop(which);
        create(which);
    }
    for (int which = 0; which < SHAPES; which++)
        drop(which);
    MPI_Finalize();
    exit(0);
}

static void quit(void) {
    int which = QUIT;
    MPI_Send(&which, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    for (which = 0; which < SHAPES; which++)
        drop(which);
    MPI_Finalize();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    int rank, size;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (size != 2) {
        fprintf(stderr, "peer_words: two ranks are needed\n");
        return 1;
    }
    if (rank == 1)
        servant();
    atexit(quit);
    return 0;
}

static void renew(int which) {
    drop(which);
    MPI_Send(&which, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    create(which);
}

/* ---- what rank 1 would write ----------------------------------------------------------------- */

/* XORs some of the bytes, mostly few. */
static void change(fuzz_bytes *in, void *at, size_t bytes) {
    int n = fuzz_range(in, 0, 7);
    for (n = n > 4 ? 0 : n; n > 0 && bytes > 0; n--) {
        size_t i = (size_t)fuzz_u8(in) | (size_t)fuzz_u8(in) << 8;
        ((uint8_t *)at)[i % bytes] ^= fuzz_u8(in);
    }
}

static void forge_counts(fuzz_bytes *in, mpix_ep_call *call) {
    mpix_ep_counts *c = mpix_ep_my_counts(call, 1);
    const mpix_ep *ep = call->ep;
    memset(c, 0, ep->layout.counts_bytes);
    c->tokens = fuzz_range(in, 0, TOKENS);
    c->topk = TOPK;
    for (int r = 0; r < 2; r++)
        c->n[r] = c->n[2 + r] = (uint32_t)fuzz_range(in, 0, TOKENS);
    for (int e = 0; e < EXPERTS; e++)
        c->n[4 + e] = (uint32_t)fuzz_range(in, 0, TOKENS);
    change(in, c, ep->layout.counts_bytes);
    atomic_store(&mpix_ep_my_words(call, 1)->route, call->epoch);
}

static void forge_offer(fuzz_bytes *in, mpix_ep_call *call, int wire) {
    mpix_ep_offer *o = mpix_ep_my_offer(call, 1), right = {0};
    const size_t head = offsetof(mpix_ep_offer, status);
    right.dtype = MPIX_EP_F32;
    right.hidden = HIDDEN;
    right.rows = (uint64_t)fuzz_range(in, 0, TOKENS * TOPK * 2);
    right.wire = wire;
    right.flags = fuzz_u8(in) & 127;
    for (int i = 0; i < MPIX_EP_PLACES; i++)
        right.place[i] =
            (mpix_ep_place){call->ep->ht->banks_at + (uint64_t)fuzz_range(in, 0, 64) * 16, ROW, 0,
                            (uint32_t)fuzz_range(in, 0, 3) > 0};
    change(in, (char *)&right + head, sizeof right - head);
    memcpy((char *)o + head, (char *)&right + head, sizeof right - head);
    atomic_store(&o->epoch, call->epoch);
}

/* All that peers write into staging memory while a call is under way. */
static void forge_stage(fuzz_bytes *in, mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    if (call->bank < 0 || ep->ll)
        return;
    char *at = mpix_ep_stage_at(call, 0);
    size_t bytes = ep->ht->banks[call->bank].committed;
    uint32_t small = fuzz_u8(in) % 8;
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        memcpy(at + i, &small, 4);
    for (int n = fuzz_range(in, 0, 64); n > 0; n--)
        change(in, at, bytes);
}

static void forge_end(fuzz_bytes *in, mpix_ep_call *call) {
    mpix_ep_words *words = mpix_ep_my_words(call, 1);
    mpix_ep_status *status = mpix_ep_my_status(call, 1);
    int dispatch = call->type == MPIX_EP_DISPATCH;
    int32_t kind = fuzz_range(in, 0, 15) ? 0 : fuzz_u8(in);
    *(dispatch ? &status->dispatch : &status->combine) = kind;
    for (int l = 0; l < MPIX_EP_MAX_LANES; l++)
        atomic_store(dispatch ? &words->dispatch[l] : &words->combine[l], call->epoch);
}

/* Low latency: the whole batch, at its place in this rank's bank. */
static void forge_batch(fuzz_bytes *in, mpix_ep_call *call) {
    mpix_ep *ep = call->ep;
    int combine = call->type == MPIX_EP_COMBINE;
    size_t place = combine ? (size_t)call->handle->ll->answer[1] : ep->ll->region;
    size_t room = combine ? mpix_ep_ll_answer_bytes(&ep->config,
                                                    (size_t)call->handle->plan->send_tokens[1])
                          : ep->ll->region;
    char *at = mpix_ep_ll_bank(call, 0) + place;
    uint32_t small = fuzz_u8(in) % 4;
    for (size_t i = 0; i + 4 <= room; i += 4)
        memcpy(at + i, &small, 4);
    mpix_ep_ll_head head = {.flags = fuzz_u8(in) & 15,
                            .width = TOPK,
                            .dtype = MPIX_EP_F32,
                            .hidden = HIDDEN,
                            .stride = ROW};
    head.rows = combine ? (uint32_t)call->handle->plan->send_tokens[1]
                        : (uint32_t)fuzz_range(in, 0, TOKENS);
    head.exist = (uint32_t)fuzz_range(in, 0, TOKENS);
    head.reply = fuzz_u8(in) * 64u;
    mpix_ep_ll_batch *batch = (mpix_ep_ll_batch *)(void *)at;
    const size_t behind = offsetof(mpix_ep_ll_batch, head);
    batch->head = head;
    /* flags of all blocks, wherever they are by then */
    uint64_t mark = mpix_ep_ll_mark(call->epoch);
    for (size_t i = sizeof *batch; i + 8 <= room && i < sizeof *batch + 64; i += 8)
        memcpy(at + i, &mark, 8);
    for (int n = fuzz_range(in, 0, 32); n > 0; n--)
        change(in, at + behind, room - behind);
    atomic_store(&batch->epoch, mark);
}

static void forge_ll_offer(fuzz_bytes *in, mpix_ep_call *call) {
    const mpix_ep_ctl_layout *l = &call->ep->layout;
    mpix_ep_ll_offer *o = (mpix_ep_ll_offer *)(void *)((char *)call->ep->ctl->base + l->handles_at +
                                                       l->handle * (size_t)call->handle->index +
                                                       l->block + l->offers_dispatch) +
                          call->epoch % (uint64_t)call->ep->config.depth;
    const size_t behind = sizeof o->epoch;
    mpix_ep_ll_offer right = {.rows = fuzz_u8(in), .x = fuzz_u8(in) * 16u, .x_stride = ROW};
    change(in, (char *)&right + behind, sizeof right - behind);
    memcpy((char *)o + behind, (char *)&right + behind, sizeof right - behind);
    atomic_store(&o->epoch, call->epoch);
}

/* ---- rank 0's calls -------------------------------------------------------------------------- */

/* 1: it ended; 0: it goes nowhere. code: its result. */
static int steps(MPIX_Xfer *xfer, int *code) {
    int flag = 0;
    for (int i = 0; i < STEPS && !flag; i++)
        *code = MPIX_Xfer_test(xfer, &flag);
    return flag;
}

static int route(fuzz_bytes *in, int which, const int32_t *ids, int ntok, int *code) {
    MPIX_Ep_handle h = made[which].handle;
    MPIX_Ep_routing r;
    MPIX_Xfer xfer;
    MPIX_INIT(&r);
    r.num_tokens = ntok;
    r.topk = TOPK;
    r.ids = ids;
    MPI_Count total = 0;
    MPIX_Ep_counts counts;
    MPIX_INIT(&counts);
    if (shapes[which].mode == MPIX_EP_HT)
        counts.recv_total = &total;
    *code = MPIX_Ep_iroute(h, &r, &counts, &xfer);
    if (*code)
        return 1;
    if (shapes[which].mode == MPIX_EP_HT && xfer != MPIX_XFER_NULL)
        forge_counts(in, (mpix_ep_call *)xfer);
    return steps(&xfer, code);
}

static int dispatch(fuzz_bytes *in, int which, const float *x, int rows, float *out_x, int *beside,
                    int *code) {
    MPIX_Ep_dispatch_in i;
    MPIX_Ep_dispatch_out o;
    MPIX_Xfer xfer;
    static const float weights[TOKENS * TOPK];
    int expert = shapes[which].layout == MPIX_EP_EXPERT;
    MPIX_INIT(&i);
    MPIX_INIT(&o);
    i.hidden = HIDDEN;
    i.x.data = (void *)(uintptr_t)x;
    i.x.dtype = MPIX_EP_F32;
    i.topk_weights = weights;
    o.capacity_rows = rows;
    o.x.data = out_x;
    if (beside) { /* src_rank, local_ids, topk_weights: in blocks of exactly their sizes */
        o.src_rank = beside;
        o.topk_weights = (float *)(void *)(beside + rows);
        o.local_ids = expert ? NULL : beside + rows + rows * TOPK;
    }
    *code = MPIX_Ep_idispatch(made[which].handle, &i, &o, &xfer);
    if (*code)
        return 1;
    if (xfer == MPIX_XFER_NULL)
        return 1;
    mpix_ep_call *call = (mpix_ep_call *)xfer;
    if (shapes[which].mode == MPIX_EP_LL) {
        forge_ll_offer(in, call);
        forge_batch(in, call);
        return steps(&xfer, code);
    }
    forge_offer(in, call, 0);
    int flag = 0;
    for (int n = 0; n < STEPS / 2 && !flag; n++)
        *code = MPIX_Xfer_test(&xfer, &flag);
    if (flag)
        return 1;
    forge_stage(in, call);
    forge_end(in, call);
    return steps(&xfer, code);
}

static int combine(fuzz_bytes *in, int which, const float *rows_at, float *y, float *values,
                   int *code) {
    MPIX_Ep_combine_in i;
    MPIX_Ep_combine_out o;
    MPIX_Xfer xfer;
    MPIX_INIT(&i);
    MPIX_INIT(&o);
    i.hidden = HIDDEN;
    i.x.data = (void *)(uintptr_t)rows_at;
    i.x.dtype = MPIX_EP_F32;
    o.y.data = y;
    o.slot_values = values;
    *code = MPIX_Ep_icombine(made[which].handle, &i, &o, &xfer);
    if (*code || xfer == MPIX_XFER_NULL)
        return 1;
    mpix_ep_call *call = (mpix_ep_call *)xfer;
    if (shapes[which].mode == MPIX_EP_LL) {
        for (int n = 0, flag = 0; n < 3 && !flag; n++) {
            *code = MPIX_Xfer_test(&xfer, &flag);
            if (flag)
                return 1;
        }
        if (call->handle->ll->valid && call->handle->plan)
            forge_batch(in, call);
        return steps(&xfer, code);
    }
    forge_offer(in, call, 0);
    for (int n = 0, flag = 0; n < STEPS / 2; n++) {
        *code = MPIX_Xfer_test(&xfer, &flag);
        if (flag)
            return 1;
    }
    forge_stage(in, call);
    forge_end(in, call);
    return steps(&xfer, code);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    int which = fuzz_range(&in, 0, SHAPES - 1), code = 0, rows;
    static uint64_t used[SHAPES];
    int32_t ids[TOKENS * TOPK];
    if (!made[which].ep || ++used[which] % 4096 == 0)
        renew(which);
    int ntok = fuzz_range(&in, 0, TOKENS);
    for (int t = 0; t < ntok; t++)
        for (int k = 0, first = fuzz_u8(&in); k < TOPK; k++)
            ids[t * TOPK + k] = first % 7 == 0 && k == 1 ? -1 : (first + k) % EXPERTS;
    rows = shapes[which].layout == MPIX_EP_SLOTS ? 2 * TOKENS : fuzz_range(&in, 0, 200);
    int want = fuzz_range(&in, 0, 1);
    float *x = calloc(TOKENS, ROW), *out = malloc((size_t)rows * ROW + 1),
          *y = malloc((size_t)ntok * ROW + 1);
    float *values = want ? malloc((size_t)ntok * TOPK * 4 + 1) : NULL;
    int *beside = want ? malloc((size_t)rows * 4 * (1 + 2 * TOPK) + 1) : NULL;
    if (!x || !out || !y)
        abort();
    memset(out, 0, (size_t)rows * ROW);
    int ended = route(&in, which, ids, ntok, &code);
    for (int n = 0; ended && !code && n < 2; n++) {
        ended = dispatch(&in, which, x, rows, out, beside, &code);
        if (ended && !code)
            ended = combine(&in, which, out, y, values, &code);
    }
    /* One that goes nowhere is in the way of the next; one that has failed with its object, too. */
    if (!ended || mpix_ep_alive(made[which].ep))
        renew(which);
    free(x);
    free(out);
    free(y);
    free(values);
    free(beside);
    return 0;
}
