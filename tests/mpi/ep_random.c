/*
 * ep_random.c - random shapes, routings, forms and orders of calls against the reference.
 *
 *   ep_random [--iterations N] [--seed S] [--first I] [--budget B] [--mode ht|ll]
 *
 * Everything follows from the seed and the number of ranks; a failure prints both and the
 * iteration, and --first I --iterations 1 repeats it. With --mode ll most contexts are low-latency
 * ones, the others HT beside them. An iteration makes one or two contexts with up to three handles
 * each, prepares a schedule of calls, starts them in the same order on all ranks, waits in an order
 * that each rank draws for itself, and checks every output.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_CTX = 2, MAX_HANDLES = 3, MAX_CALLS = 24 };

typedef struct {
    t_ctx ctx;
    t_handle handles[MAX_HANDLES];
    int nhandles, threads;
    int *owner;
    int buffers;               /* LL, SLOTS: handles have their own memory for combine */
    int64_t budget;            /* elements that a call's rows may have on a rank, roughly */
    int64_t max_hidden;        /* elements of the smallest type */
    int allocated, registered; /* area (also if it is empty), pool */
} world;

static t_rng common, own; /* the same on all ranks; each rank's */
static world worlds[MAX_CTX];
static int nworlds;
static t_call *calls[MAX_CALLS];
static int ncalls;
static long budget;
static int low_latency;

/* ---- contexts -------------------------------------------------------------------------------- */

static int64_t draw_hidden(void) {
    static const int64_t known[] = {1, 2, 3, 7, 64, 127, 128, 129, 256, 1000, 2048, 7168, 16384};
    if (t_chance(&common, 30))
        return known[t_range(&common, 0, (int64_t)(sizeof known / sizeof *known) - 1)];
    int64_t bits = t_chance(&common, 70) ? t_range(&common, 0, 8) : t_range(&common, 0, 14);
    int64_t hidden = t_range(&common, INT64_C(1) << bits, (INT64_C(2) << bits) - 1);
    return hidden > 16384 ? 16384 : hidden;
}

static int *draw_owner(int experts) {
    int how = (int)t_range(&common, 0, 9), *owner;
    if (how < 4)
        return NULL;
    owner = malloc(((size_t)experts + 1) * sizeof *owner);
    REQUIRE(owner, "no memory");
    int first = (int)t_range(&common, 0, t_size - 1), span = (int)t_range(&common, 1, t_size);
    for (int e = 0; e < experts; e++) {
        /* ranks beyond the span hold none */
        owner[e] = (first + (int)t_range(&common, 0, span - 1)) % t_size;
        if (how == 9)
            owner[e] = first;
        if (how == 8)
            owner[e] = t_size - 1 - e % t_size;
    }
    return owner;
}

static void draw_config(world *w) {
    MPIX_Ep_config *c = &w->ctx.config;
    MPIX_INIT(c);
    int how = (int)t_range(&common, 0, 19);
    c->num_experts = how == 0   ? 0
                     : how < 4  ? t_range(&common, 1, t_size)
                     : how < 17 ? t_range(&common, 1, 64)
                                : t_range(&common, 65, 300);
    c->layout = t_chance(&common, 50) ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
    c->expert_align = c->layout == MPIX_EP_COMPACT ? (int)t_range(&common, 0, 1)
                      : t_chance(&common, 40)      ? 0
                                                   : (int)t_range(&common, 1, 17);
    c->max_topk = (int)(t_chance(&common, 65) ? t_range(&common, 1, 8) : t_range(&common, 1, 64));
    c->depth = (int)t_range(&common, 0, 4);
    c->overflow = t_chance(&common, 25) ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
    c->check = t_chance(&common, 20) ? -1 : (int)t_range(&common, 0, 1);
    c->timeout_s = 60;
    w->max_hidden = draw_hidden();
    int64_t most = budget / (w->max_hidden * (c->max_topk < 8 ? c->max_topk : 8)) + 1;
    c->max_tokens = t_chance(&common, 5) ? 0 : t_range(&common, 1, most > 300 ? 300 : most);
    w->budget = budget;
    c->max_row_bytes = 8 * w->max_hidden;
    w->owner = draw_owner((int)c->num_experts);
    c->expert_owner = w->owner;
    if (low_latency && t_chance(&common, 85)) {
        c->mode = MPIX_EP_LL;
        if (c->layout == MPIX_EP_COMPACT)
            c->layout = MPIX_EP_SLOTS;
        w->buffers = c->layout == MPIX_EP_SLOTS && t_chance(&common, 50);
    }
}

static const char *draw_info(world *w, MPI_Info *info) {
    static const char *const stores[] = {"auto", "ordinary", "streaming"};
    static char text[200];
    const char *store = stores[t_range(&own, 0, 2)];
    int portable = t_chance(&own, 30), spin = (int)t_range(&own, -1, 50);
    char value[32];
    w->threads = t_chance(&common, 30);
    MPI_Info_create(info);
    MPI_Info_set(*info, "mpix_ep_progress", w->threads ? "thread" : "caller");
    MPI_Info_set(*info, "mpix_ep_stores", store);
    MPI_Info_set(*info, "mpix_ep_isa", portable ? "portable" : "auto");
    snprintf(value, sizeof value, "%d", spin);
    MPI_Info_set(*info, "mpix_ep_spin_us", value);
    MPI_Info_set(*info, "unrelated", "left alone");
    snprintf(text, sizeof text, "%s stores, isa %s, spin %d, progress %s", store,
             portable ? "portable" : "auto", spin, w->threads ? "thread" : "caller");
    return text;
}

/* max_recv_rows can't be drawn before the routings are known; with exact needs it is part of the
 * overflow tests of ep_errors. */
static int make_world(world *w) {
    MPI_Info info;
    int flag = -1;
    MPIX_Ep_config back;
    memset(w, 0, sizeof *w);
    draw_config(w);
    draw_info(w, &info);
    w->nhandles = (int)t_range(&common, 1, MAX_HANDLES);
    int ok = CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &w->ctx.config, info, &w->ctx.ep));
    MPI_Info_free(&info);
    if (!ok)
        return 0;
    MPIX_INIT(&back);
    CHECK_OK(MPIX_Ep_get_config(w->ctx.ep, &back));
    CHECK(back.max_topk == w->ctx.config.max_topk &&
              back.num_experts == w->ctx.config.num_experts && back.depth >= 1,
          "get_config gives max_topk %d, %lld experts, depth %d", back.max_topk,
          (long long)back.num_experts, back.depth);
    w->ctx.area.bytes = (size_t)t_range(&own, 0, 6) * (size_t)(budget * 8);
    w->allocated = t_chance(&common, 80);
    if (w->allocated)
        CHECK_OK(MPIX_Ep_alloc(w->ctx.ep, (MPI_Count)w->ctx.area.bytes, MPI_INFO_NULL,
                               &w->ctx.area.base));
    for (size_t i = 0; w->ctx.area.base && i < w->ctx.area.bytes; i += 8)
        if (!CHECK(*(uint64_t *)(w->ctx.area.base + i) == 0,
                   "memory from MPIX_Ep_alloc is not zero at %zu", i))
            break;
    if (t_chance(&common, 40)) {
        w->ctx.pool.bytes = (size_t)t_range(&own, 1, 2) * (size_t)(budget * 8);
        w->ctx.pool.base = mmap(NULL, w->ctx.pool.bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(w->ctx.pool.base != MAP_FAILED, "no memory");
        CHECK_OK(
            MPIX_Ep_register(w->ctx.ep, w->ctx.pool.base, (MPI_Count)w->ctx.pool.bytes, &flag));
        CHECK(flag == 0, "registering memory of mmap says direct = %d", flag);
        w->registered = 1;
    }
    for (int h = 0; h < w->nhandles; h++)
        t_handle_init(&w->handles[h], &w->ctx);
    for (int h = 0; h < w->nhandles && w->buffers; h++) { /* the first time it is collective */
        MPIX_Ep_rows rows;
        CHECK_OK(MPIX_Ep_combine_buffer(w->handles[h].h, &rows));
    }
    return 1;
}

static void free_world(world *w) {
    int tidy = t_chance(&common, 60);
    for (int h = 0; h < w->nhandles; h++)
        t_handle_done(&w->handles[h], tidy);
    if (w->registered && tidy)
        CHECK_OK(MPIX_Ep_deregister(w->ctx.ep, w->ctx.pool.base));
    if (w->allocated && tidy)
        CHECK_OK(MPIX_Ep_dealloc(w->ctx.ep, w->ctx.area.base));
    CHECK_OK(MPIX_Ep_free(&w->ctx.ep));
    CHECK(w->ctx.ep == MPIX_EP_NULL, "a freed context is not MPIX_EP_NULL");
    if (w->ctx.pool.base)
        munmap(w->ctx.pool.base, w->ctx.pool.bytes);
    free(w->owner);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void add_route(world *w, t_handle *handle) {
    const MPIX_Ep_config *c = &w->ctx.config;
    int most = c->max_topk < c->num_experts ? c->max_topk : (int)c->num_experts;
    int topk = t_chance(&common, 5) || most == 0 ? 0 : (int)t_range(&common, 1, most);
    int flavour = (int)t_range(&common, 0, T_FLAVOURS - 1), idx_bits = t_chance(&own, 50) ? 64 : 32;
    int64_t cap = w->budget / (w->max_hidden * (topk ? topk : 1)) + 1;
    int64_t most_tokens = cap < c->max_tokens ? cap : c->max_tokens, ntok = most_tokens;
    int who = (int)t_range(&common, 0, 9), alone = (int)t_range(&common, 0, t_size - 1);
    if (who < 6)
        ntok = t_range(&own, 0, most_tokens);
    else if (who == 6)
        ntok = 0; /* nobody has tokens */
    else if (who == 7)
        ntok = t_rank == alone ? most_tokens : 0;
    else if (who == 8)
        ntok = t_rank == alone ? 0 : most_tokens;
    int given = ntok == 0 && t_chance(&own, 50) ? (int)t_range(&own, 0, most) : topk;
    uint64_t seed = t_rand(&common);
    int64_t *ids = t_make_ids((int)c->num_experts, handle->ctx->config.expert_owner, flavour, seed,
                              ntok, topk, &own);
    calls[ncalls++] = t_call_route(handle, ntok, given, ids, idx_bits, &own);
    free(ids);
}

static void draw_shape(world *w, t_shape *s, int combine) {
    static const int scaled[] = {MPIX_EP_NO_SCALES, MPIX_EP_SCALES_F32, MPIX_EP_SCALES_UE8M0};
    memset(s, 0, sizeof *s);
    s->seed = t_rand(&common);
    s->dtype = (int)t_range(&common, MPIX_EP_F64, combine ? MPIX_EP_F8E5M2 : MPIX_EP_BYTES);
    if (s->dtype == MPIX_EP_F8E4M3 || s->dtype == MPIX_EP_F8E5M2)
        s->scale_kind = scaled[t_range(&common, 0, 2)];
    s->hidden = t_chance(&common, 70) ? w->max_hidden : t_range(&common, 1, w->max_hidden);
    if (s->hidden * (int64_t)ref_size(s->dtype) + (int64_t)ref_scales(s->scale_kind, s->hidden) >
        w->ctx.config.max_row_bytes)
        s->scale_kind = MPIX_EP_NO_SCALES;
    s->flavour = combine ? (t_chance(&common, 70)   ? REF_MIXED
                            : t_chance(&common, 70) ? REF_WILD
                                                    : REF_RAW)
                         : REF_RAW;
    s->weights = t_chance(&common, 60);
    s->slot_values = combine && t_chance(&common, 40);
    s->extra_rows = t_chance(&common, 40) ? 9 : 0;
    s->drop_percent = w->ctx.config.overflow == MPIX_EP_OVERFLOW_DROP && t_chance(&common, 60) ? 100
                                                                                               : 0;
}

/* Rows that change their type on the way. NaNs keep their payload where numbers are rounded, which
 * the reference does not say. */
static void draw_conversion(world *w, t_shape *s) {
    static const int narrower[][2] = {{MPIX_EP_F64, MPIX_EP_F32},
                                      {MPIX_EP_F64, MPIX_EP_F16},
                                      {MPIX_EP_F64, MPIX_EP_BF16},
                                      {MPIX_EP_F32, MPIX_EP_F16},
                                      {MPIX_EP_F32, MPIX_EP_BF16}};
    int which = (int)t_range(&common, 0, 9);
    s->scale_kind = MPIX_EP_NO_SCALES;
    s->flavour = REF_MIXED;
    if (which < 5) {
        s->dtype = narrower[which][0];
        s->to = narrower[which][1];
        return;
    }
    s->dtype = (int)t_range(&common, MPIX_EP_F32, MPIX_EP_BF16);
    s->to = which % 2 ? MPIX_EP_F8E4M3 : MPIX_EP_F8E5M2;
    s->to_scale = t_chance(&common, 50) ? MPIX_EP_SCALES_F32 : MPIX_EP_SCALES_UE8M0;
    s->flavour = t_chance(&common, 60) ? REF_MIXED : t_chance(&common, 50) ? REF_WILD : REF_RAW;
    if (s->hidden + (int64_t)ref_scales(s->to_scale, s->hidden) > w->ctx.config.max_row_bytes)
        s->to = s->to_scale = 0;
}

/* Two or three contexts' worth of calls, mixed; each handle's begins with a route. */
static void prepare_calls(void) {
    int want = (int)t_range(&common, 3, MAX_CALLS - 2);
    while (ncalls < want) {
        world *w = &worlds[t_range(&common, 0, nworlds - 1)];
        t_handle *handle = &w->handles[t_range(&common, 0, w->nhandles - 1)];
        t_shape shape;
        if (!handle->plan || t_chance(&common, 20)) {
            add_route(w, handle);
            continue;
        }
        int combine = t_chance(&common, 55), ll = w->ctx.config.mode == MPIX_EP_LL;
        if (ll && !handle->dispatched)
            combine = 0;
        draw_shape(w, &shape, combine);
        shape.float_sums = combine && t_chance(&common, 25);
        if (!combine && t_chance(&common, 30))
            draw_conversion(w, &shape);
        if (ll && combine) {
            shape.wire = t_chance(&common, 60) ? 0
                                               : (int)t_range(&common, MPIX_EP_F64, MPIX_EP_BF16);
            shape.buffer = w->buffers && !shape.scale_kind && t_chance(&common, 60);
        }
        calls[ncalls++] = combine ? t_call_combine(handle, &shape, &own)
                                  : t_call_dispatch(handle, &shape, &own);
        /* the same once more has to give the same bits: both are compared with the reference */
        if (combine && t_chance(&common, 15))
            calls[ncalls++] = t_call_combine(handle, &shape, &own);
    }
}

/* ---- starting and waiting -------------------------------------------------------------------- */

static int pending(MPIX_Xfer *xfers, int *which, int only) {
    int n = 0;
    for (int i = 0; i < ncalls; i++)
        if (calls[i]->xfer != MPIX_XFER_NULL &&
            (only < 0 || calls[i]->handle->ctx == &worlds[only].ctx)) {
            which[n] = i;
            xfers[n++] = calls[i]->xfer;
        }
    return n;
}

static void shuffle(MPIX_Xfer *xfers, int *which, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)t_range(&own, 0, i), k = which[i];
        MPIX_Xfer x = xfers[i];
        xfers[i] = xfers[j];
        which[i] = which[j];
        xfers[j] = x;
        which[j] = k;
    }
}

static void finished(int call, int code, MPIX_Xfer left) {
    calls[call]->code = code;
    calls[call]->done = 1;
    CHECK_OK(code);
    CHECK(left == MPIX_XFER_NULL, "a completed transfer is not MPIX_XFER_NULL");
    calls[call]->xfer = MPIX_XFER_NULL;
}

static void wait_all(MPIX_Xfer *xfers, const int *which, int n) {
    int codes[MAX_CALLS + 1];
    codes[n] = -12345;
    for (int i = 0; i < n; i++)
        codes[i] = -1;
    CHECK_OK(MPIX_Xfer_waitall(n, xfers, codes));
    for (int i = 0; i < n; i++)
        finished(which[i], codes[i], xfers[i]);
    CHECK(codes[n] == -12345, "waitall wrote beyond its codes");
}

static void wait_any(MPIX_Xfer *xfers, const int *which, int n, int blocking) {
    for (int left = n; left > 0;) {
        int index = -2, flag = -1, code;
        if (blocking)
            code = MPIX_Xfer_waitany(n, xfers, &index);
        else {
            code = MPIX_Xfer_testany(n, xfers, &index, &flag);
            if (flag == 0 && code == MPI_SUCCESS)
                continue;
            CHECK(flag == 1, "testany gives flag %d", flag);
        }
        if (!CHECK(index >= 0 && index < n && !calls[which[index]]->done,
                   "index %d of %d is not in flight", index, n))
            return;
        finished(which[index], code, xfers[index]);
        left--;
    }
    int index = -2, flag = -1;
    CHECK_OK(MPIX_Xfer_waitany(n, xfers, &index));
    CHECK(index == -1, "waitany without transfers gives index %d", index);
    CHECK_OK(MPIX_Xfer_testany(n, xfers, &index, &flag));
    CHECK(index == -1 && flag == 1, "testany without transfers gives index %d, flag %d", index,
          flag);
}

static void test_each(MPIX_Xfer *xfers, const int *which, int n) {
    for (int left = n; left > 0;)
        for (int i = 0; i < n; i++) {
            int flag = -1;
            if (xfers[i] == MPIX_XFER_NULL)
                continue;
            int code = MPIX_Xfer_test(&xfers[i], &flag);
            CHECK(flag == 0 || flag == 1, "test gives flag %d", flag);
            if (code == MPI_SUCCESS && flag == 0)
                continue;
            finished(which[i], code, xfers[i]);
            left--;
        }
}

/* One context: any order. Several without threads: a plain wait works on its own context only, so
 * all ranks would have to wait in the same order; calls that take several transfers don't mind. */
static void finish_all(void) {
    MPIX_Xfer xfers[MAX_CALLS];
    int which[MAX_CALLS], n = pending(xfers, which, -1), order = (int)t_range(&own, 0, 4);
    if (order > 0)
        shuffle(xfers, which, n);
    if (order == 1)
        wait_all(xfers, which, n);
    else if (order == 2 || order == 3)
        wait_any(xfers, which, n, order == 2);
    else if (order == 4 && nworlds > 1)
        test_each(xfers, which, n);
    else
        for (int i = 0; i < n; i++) {
            int code = MPIX_Xfer_wait(&xfers[i]);
            finished(which[i], code, xfers[i]);
        }
}

static void run_calls(void) {
    for (int i = 0; i < ncalls; i++) {
        /* A blocking call works on its own context only: with several, all ranks have to be in it,
         * with nothing else in flight. */
        int all_block = t_chance(&common, 20), block = nworlds > 1 ? all_block : t_chance(&own, 30),
            pause = t_chance(&own, 20);
        if (nworlds > 1 && all_block)
            finish_all();
        if (CHECK_OK(t_call_start(calls[i], block)) && !block)
            CHECK(calls[i]->xfer != MPIX_XFER_NULL, "a started transfer is MPIX_XFER_NULL");
        if (pause)
            finish_all();
    }
    finish_all();
}

static void iterate(uint64_t seed, long i) {
    common.s = t_hash2(seed, (uint64_t)i * 2);
    own.s = t_hash2(t_hash2(seed, (uint64_t)i * 2 + 1), (uint64_t)t_rank);
    nworlds = t_chance(&common, 25) ? 2 : 1;
    ncalls = 0;
    memset(calls, 0, sizeof calls);
    int ok = 1;
    for (int w = 0; w < nworlds; w++)
        ok &= make_world(&worlds[w]);
    if (!ok)
        return;
    prepare_calls();
    run_calls();
    for (int c = 0; c < ncalls; c++) {
        t_call_check(calls[c]);
        t_call_free(calls[c]);
    }
    t_plans_free();
    for (int w = 0; w < nworlds; w++)
        free_world(&worlds[w]);
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "ep_random");
    long iterations = t_option(argc, argv, "--iterations", 40),
         first = t_option(argc, argv, "--first", 0);
    uint64_t seed = (uint64_t)t_option(argc, argv, "--seed", 1);
    low_latency = !strcmp(t_option_text(argc, argv, "--mode", "ht"), "ll");
    budget = t_option(argc, argv, "--budget", t_size > 8 ? 3000 : 40000);
    if (t_rank == 0)
        printf("ep_random: seed %llu, iterations %ld to %ld, %d ranks\n", (unsigned long long)seed,
               first, first + iterations - 1, t_size);
    t_where("the reference itself");
    ref_selftest();
    for (long i = first; i < first + iterations; i++) {
        t_where("seed %llu, iteration %ld", (unsigned long long)seed, i);
        t_watchdog(90);
        iterate(seed, i);
        if (t_failed_anywhere())
            break;
    }
    return t_end();
}
