/*
 * ep_stress.c - thousands of small calls, many in flight; then contexts made and freed many times
 * without leaving anything behind.
 *
 *   ep_stress [--rounds N] [--contexts N] [--seed S] [--mode ht|ll]
 *       ll: low latency; many small calls only
 *
 * Contents are hashes of (call, rank, token, word) and every word is compared; the routings of
 * a handle are the reference's, but buffers are kept, so that the calls follow each other as
 * fast as they can.
 */
#include "call.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HANDLES = 4, TOKENS = 24, TOPK = 4, WORDS = 40, FLIGHT = 8 };

static t_rng common, own;
static int low_latency;

typedef struct {
    MPIX_Ep_handle h;
    t_handle as; /* what the reference's route works on */
    int64_t ids[TOKENS * TOPK];
    int64_t ntok;
    int dispatched; /* since the route: a combine of low latency needs it */
} lane;

/* One call in flight: a dispatch of 64-bit words, or a combine of whole numbers, whose
 * sums are exact. */
typedef struct {
    lane *lane;
    ref_plan *plan;
    int combine, words;
    uint64_t seed;
    MPIX_Xfer xfer;
    uint64_t *x, *out;       /* dispatch: rows of words; combine: of doubles */
    size_t x_rows, out_rows; /* room */
    int *src;
    MPI_Count *token;
} slot;

static uint64_t word(uint64_t seed, int rank, int64_t row, int w) {
    return t_hash2(seed + (uint64_t)w, (uint64_t)rank << 40 | (uint64_t)row);
}

static double number(uint64_t seed, int rank, int64_t row, int w) {
    return (double)(int64_t)(word(seed, rank, row, w) % 20011) - 10005;
}

static int start(slot *s, int blocking) {
    const ref_plan *plan = s->plan;
    int64_t mine = plan->ntok[t_rank], rows = plan->total[t_rank];
    if (!s->combine) {
        MPIX_Ep_dispatch_in in;
        MPIX_Ep_dispatch_out out;
        MPIX_INIT(&in);
        MPIX_INIT(&out);
        for (int64_t t = 0; t < mine; t++)
            for (int w = 0; w < s->words; w++)
                s->x[t * s->words + w] = word(s->seed, t_rank, t, w);
        in.hidden = s->words;
        in.x = (MPIX_Ep_rows){.data = s->x, .dtype = MPIX_EP_F64};
        out.x.data = s->out;
        out.capacity_rows = rows;
        out.src_rank = s->src;
        out.src_token = s->token;
        memset(s->out, 0xee, (size_t)rows * (size_t)s->words * 8);
        return blocking ? MPIX_Ep_dispatch(s->lane->h, &in, &out)
                        : MPIX_Ep_idispatch(s->lane->h, &in, &out, &s->xfer);
    }
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    for (int64_t r = 0; r < rows; r++)
        for (int w = 0; w < s->words; w++)
            ((double *)s->x)[r * s->words + w] = number(s->seed, t_rank, r, w);
    in.hidden = s->words;
    in.x = (MPIX_Ep_rows){.data = s->x, .dtype = MPIX_EP_F64};
    out.y.data = s->out;
    memset(s->out, 0xee, (size_t)mine * (size_t)s->words * 8);
    return blocking ? MPIX_Ep_combine(s->lane->h, &in, &out)
                    : MPIX_Ep_icombine(s->lane->h, &in, &out, &s->xfer);
}

static void check_dispatch(const slot *s) {
    const ref_row *rows = s->plan->rows[t_rank];
    for (int64_t r = 0; r < s->plan->total[t_rank]; r++) {
        if (!CHECK(s->src[r] == rows[r].src && s->token[r] == rows[r].token,
                   "row %lld is (%d, %lld), expected (%d, %lld)", (long long)r, s->src[r],
                   (long long)s->token[r], rows[r].src, (long long)rows[r].token))
            return;
        for (int w = 0; w < s->words; w++) {
            /* Padding is zero; a place of SLOTS that no token has taken is not touched. */
            uint64_t none = s->plan->layout == MPIX_EP_SLOTS ? UINT64_C(0xeeeeeeeeeeeeeeee) : 0;
            uint64_t expect = rows[r].src < 0 ? none : word(s->seed, rows[r].src, rows[r].token, w);
            if (!CHECK(
                    s->out[r * s->words + w] == expect,
                    "row %lld (from rank %d, token %lld), word %d of %d is %#llx, expected %#llx",
                    (long long)r, rows[r].src, (long long)rows[r].token, w, s->words,
                    (unsigned long long)s->out[r * s->words + w], (unsigned long long)expect))
                return;
        }
    }
}

static void check_combine(const slot *s) {
    const ref_plan *plan = s->plan;
    for (int64_t t = 0; t < plan->ntok[t_rank]; t++)
        for (int w = 0; w < s->words; w++) {
            double expect = 0, got = ((double *)s->out)[t * s->words + w];
            for (int k = 0; k < plan->topk; k++) {
                int64_t e = ref_choice(plan, t_rank, t, k), row = plan->place[t * plan->topk + k];
                int again = 0;
                for (int j = 0; e >= 0 && j < k; j++) {
                    int64_t f = ref_choice(plan, t_rank, t, j);
                    again |= f >= 0 && plan->owner[f] == plan->owner[e] &&
                             plan->place[t * plan->topk + j] == row;
                }
                if (e >= 0 && !again) /* a COMPACT row counts once */
                    expect += number(s->seed, plan->owner[e], row, w);
            }
            if (!CHECK(got == expect, "y[%lld][%d] is %g, expected %g", (long long)t, w, got,
                       expect))
                return;
        }
}

static void finish(slot *s, int code) {
    if (CHECK_OK(code)) {
        if (s->combine)
            check_combine(s);
        else
            check_dispatch(s);
    }
    s->plan = NULL;
}

static void finish_all(slot *slots) {
    MPIX_Xfer xfers[FLIGHT];
    int which[FLIGHT], n = 0, index;
    for (int i = 0; i < FLIGHT; i++)
        if (slots[i].plan) {
            which[n] = i;
            xfers[n++] = slots[i].xfer;
        }
    for (int left = n; left > 0; left--) {
        int code = MPIX_Xfer_waitany(n, xfers, &index);
        if (!CHECK(index >= 0 && index < n, "waitany gives %d of %d", index, n))
            return;
        finish(&slots[which[index]], code);
    }
}

static void reroute(lane *l) {
    l->ntok = t_range(&own, 0, TOKENS);
    int64_t *ids = t_make_ids((int)l->as.ctx->config.num_experts, NULL,
                              (int)t_range(&common, 0, T_FLAVOURS - 1), t_rand(&common), l->ntok,
                              TOPK, &own);
    t_call_run(t_call_route(&l->as, l->ntok, TOPK, ids, 32, &own), t_chance(&own, 50));
    free(ids);
    l->dispatched = 0;
}

static int make_context(t_ctx *ctx, int layout, const char *progress, const char *stores) {
    MPI_Info info;
    memset(ctx, 0, sizeof *ctx);
    MPIX_INIT(&ctx->config);
    ctx->config.mode = low_latency ? MPIX_EP_LL : MPIX_EP_HT;
    ctx->config.layout = layout;
    ctx->config.expert_align = layout == MPIX_EP_EXPERT ? 2 : 1;
    ctx->config.max_topk = TOPK;
    ctx->config.num_experts = 3 * t_size + 1;
    ctx->config.max_tokens = TOKENS;
    ctx->config.max_row_bytes = 8 * WORDS;
    ctx->config.depth = (int)t_range(&common, 1, 4);
    ctx->config.timeout_s = 60;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_progress", progress);
    MPI_Info_set(info, "mpix_ep_stores", stores);
    int ok = CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx->config, info, &ctx->ep));
    MPI_Info_free(&info);
    return ok;
}

static void many_calls(int layout, const char *progress, const char *stores, long rounds) {
    t_ctx ctx;
    lane lanes[HANDLES];
    slot slots[FLIGHT];
    size_t most = (size_t)t_size * TOKENS * TOPK + 2 * 3 * (size_t)t_size + 2;
    char *direct = NULL;
    if (!make_context(&ctx, layout, progress, stores))
        return;
    /* Half of the outputs and combine's rows lie where peers reach them. */
    CHECK_OK(
        MPIX_Ep_alloc(ctx.ep, (MPI_Count)(FLIGHT * 2 * most * WORDS * 8), MPI_INFO_NULL, &direct));
    memset(slots, 0, sizeof slots);
    for (int i = 0; i < FLIGHT; i++) {
        slots[i].x = i & 1 ? malloc(most * WORDS * 8)
                           : (void *)(direct + (size_t)i * 2 * most * WORDS * 8);
        slots[i].out = i & 2 ? malloc(most * WORDS * 8)
                             : (void *)(direct + ((size_t)i * 2 + 1) * most * WORDS * 8);
        slots[i].src = malloc(most * sizeof(int));
        slots[i].token = malloc(most * sizeof(MPI_Count));
    }
    for (int i = 0; i < HANDLES; i++) {
        t_handle_init(&lanes[i].as, &ctx);
        lanes[i].h = lanes[i].as.h;
        reroute(&lanes[i]);
    }
    for (long round = 0; round < rounds; round++) {
        lane *l = &lanes[t_range(&common, 0, HANDLES - 1)];
        slot *s = &slots[round % FLIGHT];
        t_where("layout %d, progress %s, %s stores, round %ld", layout, progress, stores, round);
        if (s->plan)
            finish_all(slots);
        if (round % 97 == 96) {
            finish_all(slots);
            reroute(l);
            t_watchdog(90);
            if (t_failed_anywhere())
                break;
        }
        s->lane = l;
        s->plan = l->as.plan;
        s->combine = t_chance(&common, 50) && (!low_latency || l->dispatched);
        l->dispatched |= !s->combine;
        s->words = (int)t_range(&common, 1, WORDS);
        s->seed = t_rand(&common);
        int blocking = t_chance(&own, 20);
        int code = start(s, blocking);
        if (blocking || code != MPI_SUCCESS)
            finish(s, code);
    }
    finish_all(slots);
    for (int i = 0; i < FLIGHT; i++) {
        if (i & 1)
            free(slots[i].x);
        if (i & 2)
            free(slots[i].out);
        free(slots[i].src);
        free(slots[i].token);
    }
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    t_plans_free();
}

/* The last bytes of a row, looked at as soon as the call returns: a signal that overtakes streaming
 * stores shows here first. */
static void fresh_rows(long rounds) {
    enum { LONG = 2048 };
    t_ctx ctx;
    t_handle h;
    uint64_t *x = malloc(LONG * 8), *out = NULL;
    int64_t id = (t_rank + 1) % t_size;
    MPI_Info info;
    t_where("fresh rows");
    memset(&ctx, 0, sizeof ctx);
    MPIX_INIT(&ctx.config);
    ctx.config.max_topk = 1;
    ctx.config.num_experts = t_size;
    ctx.config.max_tokens = 1;
    ctx.config.max_row_bytes = LONG * 8;
    ctx.config.timeout_s = 60;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_stores", "streaming");
    /* the reader is awake when the signal comes: only then it can be too early */
    if (t_size <= sysconf(_SC_NPROCESSORS_ONLN))
        MPI_Info_set(info, "mpix_ep_spin_us", "1000");
    else
        rounds /= 10;
    if (!CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, info, &ctx.ep)))
        return;
    MPI_Info_free(&info);
    CHECK_OK(MPIX_Ep_alloc(ctx.ep, LONG * 8, MPI_INFO_NULL, &out));
    t_handle_init(&h, &ctx);
    t_call_run(t_call_route(&h, 1, 1, &id, 32, &own), 1);
    for (long round = 1; round <= rounds; round++) {
        MPIX_Ep_dispatch_in in;
        MPIX_Ep_dispatch_out to;
        int words = (int)t_range(&common, 1, LONG);
        MPIX_INIT(&in);
        MPIX_INIT(&to);
        for (int w = 0; w < words; w++)
            x[w] = (uint64_t)round << 20 | (uint64_t)w;
        in.hidden = words;
        in.x = (MPIX_Ep_rows){.data = x, .dtype = MPIX_EP_F64};
        to.x.data = out;
        to.capacity_rows = 1;
        int code = MPIX_Ep_dispatch(h.h, &in, &to);
        int w = words - 1;
        while (w >= 0 && *(volatile uint64_t *)&out[w] == ((uint64_t)round << 20 | (uint64_t)w))
            w--;
        CHECK(code == MPI_SUCCESS && w < 0, "round %ld: code %d, word %d of %d is old", round, code,
              w, words);
        if (code != MPI_SUCCESS)
            break;
    }
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    t_plans_free();
    free(x);
}

static void many_contexts(long contexts) {
    enum { WARM = 4 };
    int fds = 0, maps = 0, during = 0;
    for (long i = 0; i < contexts; i++) {
        t_ctx ctx;
        t_handle h;
        void *base;
        t_where("context %ld of %ld", i, contexts);
        t_watchdog(60);
        if (!make_context(&ctx, i % 2 ? MPIX_EP_EXPERT : MPIX_EP_COMPACT,
                          i % 3 ? "caller" : "thread", "auto"))
            return;
        CHECK_OK(MPIX_Ep_alloc(ctx.ep, 100000, MPI_INFO_NULL, &base));
        t_handle_init(&h, &ctx);
        int64_t ids[TOPK] = {0, 1, 2, -1};
        t_shape s = {.seed = t_rand(&common),
                     .hidden = 9,
                     .dtype = MPIX_EP_F32,
                     .flavour = REF_MIXED};
        t_call_run(t_call_route(&h, 1, TOPK, ids, 32, &own), 1);
        t_call_run(t_call_dispatch(&h, &s, &own), 1);
        t_call_run(t_call_combine(&h, &s, &own), 1);
        during += t_mappings("memfd:");
        CHECK_OK(MPIX_Ep_free(&ctx.ep));
        t_plans_free();
        int shared = t_mappings("memfd:"); /* what windows are made of */
        CHECK(shared == 0, "%d mappings of shared memory are left after free", shared);
        if (i == WARM) {
            fds = t_open_files();
            maps = t_mappings("");
        }
    }
    CHECK(during > 0, "no window was seen in /proc/self/maps: the test looks for the wrong thing");
    CHECK(t_open_files() == fds, "%d descriptors, %d after the first contexts", t_open_files(),
          fds);
    int now = t_mappings("");
/* whose allocator maps more and more */
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
    now = maps;
#endif
    CHECK(now - maps < (contexts - WARM) / 2, "%d mappings, %d after the first contexts", now,
          maps);
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "ep_stress");
    long rounds = t_option(argc, argv, "--rounds", 1500),
         contexts = t_option(argc, argv, "--contexts", 30);
    uint64_t seed = (uint64_t)t_option(argc, argv, "--seed", 1);
    common.s = t_hash2(seed, 1);
    own.s = t_hash2(t_hash2(seed, 2), (uint64_t)t_rank);
    low_latency = !strcmp(t_option_text(argc, argv, "--mode", "ht"), "ll");
    if (low_latency) {
        many_calls(MPIX_EP_SLOTS, "caller", "auto", rounds);
        many_calls(MPIX_EP_SLOTS, "thread", "streaming", rounds / 4);
        many_calls(MPIX_EP_EXPERT, "caller", "streaming", rounds);
        return t_end();
    }
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++) {
        many_calls(layout, "caller", "ordinary", rounds);
        /* whose order is the library's business */
        many_calls(layout, "caller", "streaming", rounds);
        many_calls(layout, "thread", "streaming", rounds / 4);
    }
    fresh_rows(rounds * 3);
    many_contexts(contexts);
    return t_end();
}
