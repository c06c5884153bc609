/*
 * ep_ll.c - the low-latency mode in GPU memory: bitwise against the same calls in host memory; in
 * graphs, in halves, beside HT, under stress, and beside a rank that does not come or dies.
 *
 *   ep_ll [all|shapes|stress|ordered|killed [rounds [iterations of stress]]]
 *
 * ordered: for compute-sanitizer, under which kernels do not run beside each other.
 */
#include "batch.h"

#include <signal.h>
#include <unistd.h>

/* LARGE: tokens of a batch that the kernel for small ones may not take; EXPERTS_MOST: likewise.
 * TURNS: more than depth, so that banks are used again. */
enum { MOST = 48, LARGE = 700, TOPK = 8, ROW = 4096, EXPERTS_MOST = 1100, TURNS = 4 };

/* One routing, several dispatches and combines, in both memories. */
static void run_batch(const shape *s, const side *gpu, const side *host) {
    batch *b = batch_open(s, gpu, host);
    for (int turn = 0; turn < s->turns; turn++) {
        batch_dispatch(b, turn);
        if (s->odtype != MPIX_EP_BYTES)
            batch_combine(b, turn);
    }
    batch_close(b);
}

static void shape_dtypes(shape *s, uint64_t *rng) {
    s->scales = is_fp8(s->dtype) ? (int)g_range(rng, 0, 2) : 0;
    s->oscales = s->zscales = s->scales;
    if (s->scales && g_range(rng, 0, 2)) { /* quantised on the way */
        s->dtype = g_range(rng, 0, 2) ? MPIX_EP_BF16 : MPIX_EP_F32;
        s->scales = 0;
    }
    if (s->scales == MPIX_EP_SCALES_UE8M0)
        s->scales = s->oscales = s->zscales = MPIX_EP_SCALES_F32;
    int narrow = is_fp8(s->odtype) || g_range(rng, 0, 3) == 0 || s->odtype == MPIX_EP_BYTES;
    s->ydtype = narrow ? MPIX_EP_BF16 : s->odtype;
    s->wire = g_range(rng, 0, 2) ? 0 : g_range(rng, 0, 1) ? MPIX_EP_F32 : MPIX_EP_BF16;
    s->host_wire = s->wire;
}

/* The i-th shape; *sms and *depth: of its contexts. */
static void shape_make(shape *s, int i, int *sms, int *depth) {
    static const int dtypes[] = {MPIX_EP_BF16,   MPIX_EP_F8E4M3, MPIX_EP_F32,
                                 MPIX_EP_BF16,   MPIX_EP_F8E4M3, MPIX_EP_F16,
                                 MPIX_EP_F8E5M2, MPIX_EP_F64,    MPIX_EP_BYTES};
    uint64_t rng = g_mix((uint64_t)i + 311);
    *s = (shape){.seed = rng, .mode = MPIX_EP_LL, .reps = 1};
    s->layout = i % 2 ? MPIX_EP_EXPERT : MPIX_EP_SLOTS;
    s->dtype = s->odtype = s->zdtype = dtypes[i % 9];
    s->most = i % 5 == 3 ? LARGE : MOST;
    s->turns = s->most > MOST ? 2 : TURNS; /* large batches are slow in tests/emu */
    s->experts = (int)g_range(&rng, t_size, s->most > MOST ? EXPERTS_MOST : 64);
    s->topk = (int)g_range(&rng, 1, s->experts < TOPK ? s->experts : TOPK);
    s->holes = g_range(&rng, 0, 2) ? 0 : 40;
    s->align = g_range(&rng, 0, 1) ? 1 : 8;
    int drop = g_range(&rng, 0, 3) == 0;
    s->overflow = drop ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
    s->hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300)
                : i % 7 == 6             ? ROW
                                         : 16 * g_range(&rng, 1, 100);
    if (s->most > MOST)
        s->hidden = s->hidden % 64 + 1;
    shape_dtypes(s, &rng);
    s->weights = (int)g_range(&rng, 0, 1);
    s->slots = g_range(&rng, 0, 2) == 0;
    s->roww = (int)g_range(&rng, 0, 1);
    s->bias = (int)g_range(&rng, 0, 2);
    s->form = (int)g_range(&rng, 0, HALVES);
    s->bits = g_range(&rng, 0, 1) ? 64 : 32;
    *sms = g_range(&rng, 0, 1) ? 0 : (int)g_range(&rng, 1, 40);
    *depth = 1 + (i + 1) % 3;
    s->buffer = s->layout == MPIX_EP_SLOTS && !s->oscales && g_range(&rng, 0, 1);
    for (int r = 0; r < t_size; r++)
        s->tokens[r] = g_range(&rng, 0, 4) == 0 ? 0 : g_range(&rng, 1, s->most);
    s->capacity_rows = s->layout == MPIX_EP_SLOTS ? t_size * s->most
                                                  : t_size * s->most * s->topk + 8 * s->experts;
    if (drop)
        s->capacity_rows = g_range(&rng, 1, s->capacity_rows / 3);
}

/* What depends on the seed: a quarter of the routes give no counts, a third take the kernel for
 * large batches. */
static void shape_seed(shape *s, uint64_t seed) {
    s->seed = seed;
    s->counts = 1 << SEND_RANK | 1 << SEND_EXPERT | 1 << TOKEN_IN_RANK;
    if (seed % 3 == 0)
        s->counts |= 1 << SEND_HOST;
    if (seed % 4 == 0)
        s->counts = 0;
}

static void config_make(MPIX_Ep_config *c, const shape *s, int depth) {
    MPIX_INIT(c);
    c->mode = MPIX_EP_LL;
    c->layout = s->layout;
    c->max_topk = TOPK;
    c->num_experts = s->experts;
    c->expert_align = s->layout == MPIX_EP_EXPERT ? s->align : 0;
    c->overflow = s->overflow;
    c->max_tokens = s->most;
    c->max_row_bytes = s->most > MOST ? 64 * 8 : ROW * 8;
    c->depth = depth;
    c->timeout_s = 60;
}

static void run_shapes(int rounds) {
    for (int i = 0; i < rounds; i++) {
        MPIX_Ep_config c;
        shape s;
        side gpu, host;
        int sms, depth;
        shape_make(&s, i, &sms, &depth);
        shape_seed(&s, s.seed);
        t_watchdog(250);
        t_where("round %d: layout %d dtype %d -> %d scales %d y %d wire %d hidden %lld experts %d "
                "topk %d tokens %lld form %d rows %lld buffer %d sms %d depth %d",
                i, s.layout, s.dtype, s.odtype, s.oscales, s.ydtype, s.wire, (long long)s.hidden,
                s.experts, s.topk, (long long)s.tokens[t_rank], s.form, (long long)s.capacity_rows,
                s.buffer, sms, depth);
        config_make(&c, &s, depth);
        batch_contexts(&c, sms, &gpu, &host);
        run_batch(&s, &gpu, &host);
        if (i % 2 == 0 || i % 5 == 0) { /* a handle in the place of one that has made calls */
            EP(MPIX_Ep_handle_free(&gpu.h));
            EP(MPIX_Ep_handle_create(gpu.ep, &gpu.h));
            shape_seed(&s, s.seed + 1);
            run_batch(&s, &gpu, &host);
        }
        batch_contexts_free(&gpu, &host);
    }
}

/* ---- graphs, errors, stress: integers, whose sums are exact ---------------------------------- */

enum { HIDDEN = 256, EXPERTS = 24, KK = 4 };

typedef struct lane {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    cudaStream_t stream;
    int32_t *ids, *hids;
    float *x, *rows, *y, *hx, *hy;
    int ll, tokens;
    uint64_t seed;
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
} lane;

static void lane_make(MPIX_Ep ep, lane *l, int ll, int expert) {
    size_t rows = (size_t)(MOST * t_size * (expert ? KK : 1)), row = HIDDEN * sizeof(float);
    memset(l, 0, sizeof *l);
    l->ep = ep;
    l->ll = ll;
    EP(MPIX_Ep_handle_create(ep, &l->h));
    EP(MPIX_Ep_alloc(ep, (MPI_Count)(rows * row), MPI_INFO_NULL, &l->rows));
    CU(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    CU(cudaMalloc((void **)&l->ids, MOST * KK * 4));
    CU(cudaMalloc((void **)&l->x, MOST * row));
    CU(cudaMalloc((void **)&l->y, MOST * row));
    CU(cudaHostAlloc((void **)&l->hids, MOST * KK * 4, 0));
    CU(cudaHostAlloc((void **)&l->hx, MOST * row, 0));
    CU(cudaHostAlloc((void **)&l->hy, MOST * row, 0));
    MPIX_INIT(&l->r);
    MPIX_INIT(&l->in);
    MPIX_INIT(&l->out);
    MPIX_INIT(&l->ci);
    MPIX_INIT(&l->co);
    l->r.topk = KK;
    l->r.ids = l->ids;
    l->in.hidden = l->ci.hidden = HIDDEN;
    l->in.x = (MPIX_Ep_rows){l->x, 0, MPIX_EP_F32, 0, NULL, 0};
    l->out.capacity_rows = (MPI_Count)rows;
    l->out.x = l->ci.x = (MPIX_Ep_rows){l->rows, 0, MPIX_EP_F32, 0, NULL, 0};
    l->co.y = (MPIX_Ep_rows){l->y, 0, MPIX_EP_F32, 0, NULL, 0};
}
static void lane_free(lane *l) {
    CU(cudaStreamSynchronize(l->stream));
    EP(MPIX_Ep_dealloc(l->ep, l->rows));
    EP(MPIX_Ep_handle_free(&l->h));
    CU(cudaFree(l->ids));
    CU(cudaFree(l->x));
    CU(cudaFree(l->y));
    CU(cudaFreeHost(l->hids));
    CU(cudaFreeHost(l->hx));
    CU(cudaFreeHost(l->hy));
    CU(cudaStreamDestroy(l->stream));
}
static float value_of(uint64_t content, int64_t t, int j) {
    return (float)((int)(g_mix(content + (uint64_t)t_rank * 131071 + (uint64_t)t * 31 +
                               (uint64_t)j * 8191) %
                         199) -
                   99);
}
static void lane_fill(lane *l, uint64_t seed, uint64_t content) {
    l->seed = seed;
    l->tokens = (int)(g_mix(seed ^ (uint64_t)t_rank * 7919) % (MOST + 1));
    l->r.num_tokens = l->tokens;
    for (int t = 0; t < l->tokens; t++) {
        g_ids(seed, t_rank, t, KK, EXPERTS, 15, l->hids + t * KK);
        for (int j = 0; j < HIDDEN; j++)
            l->hx[t * HIDDEN + j] = value_of(content, t, j);
    }
    CU(cudaMemcpyAsync(l->ids, l->hids, MOST * KK * 4, cudaMemcpyHostToDevice, l->stream));
    CU(cudaMemcpyAsync(l->x, l->hx, MOST * HIDDEN * 4, cudaMemcpyHostToDevice, l->stream));
    CU(cudaMemsetAsync(l->y, 0xA5, MOST * HIDDEN * 4, l->stream));
    CU(cudaMemsetAsync(l->rows, 0xA5, (size_t)l->out.capacity_rows * HIDDEN * 4, l->stream));
}
static void lane_call(lane *l, int halves) {
    EP(MPIX_Ep_route_enqueue(l->h, &l->r, NULL, l->stream));
    for (int i = 0; i < 2; i++) /* of each, so that banks differ */
        if (halves) {
            EP(MPIX_Ep_dispatch_begin_enqueue(l->h, &l->in, &l->out, l->stream));
            EP(MPIX_Ep_dispatch_end_enqueue(l->h, l->stream));
            EP(MPIX_Ep_combine_begin_enqueue(l->h, &l->ci, &l->co, l->stream));
            EP(MPIX_Ep_combine_end_enqueue(l->h, l->stream));
        } else {
            EP(MPIX_Ep_dispatch_enqueue(l->h, &l->in, &l->out, l->stream));
            EP(MPIX_Ep_combine_enqueue(l->h, &l->ci, &l->co, l->stream));
        }
}
/* After a synchronization: each token's row comes back times its ranks (SLOTS, COMPACT) or its
 * choices (EXPERT). */
static void lane_check(lane *l, uint64_t content, const char *what) {
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    EP(MPIX_Ep_get_config(l->ep, &c));
    for (int t = 0; t < l->tokens; t++) {
        int n = 0, wrong = 0;
        for (int q = 0; q < t_size; q++) {
            int there = 0;
            for (int k = 0; k < KK; k++)
                there += l->hids[t * KK + k] >= 0 && l->hids[t * KK + k] / (EXPERTS / t_size) == q;
            n += c.layout == MPIX_EP_EXPERT ? there : there > 0;
        }
        for (int j = 0; j < HIDDEN; j++)
            wrong += l->hy[t * HIDDEN + j] != (float)n * value_of(content, t, j);
        CHECK(!wrong, "%s: sum of token %d is wrong in %d places (seed %llu)", what, t, wrong,
              (unsigned long long)l->seed);
    }
}
static void lane_turn(lane *l, uint64_t content, int halves, const char *what) {
    lane_fill(l, l->seed, content);
    lane_call(l, halves);
    CU(cudaMemcpyAsync(l->hy, l->y, MOST * HIDDEN * 4, cudaMemcpyDeviceToHost, l->stream));
    CU(cudaStreamSynchronize(l->stream));
    lane_check(l, content, what);
}
static int async_kind(MPIX_Ep ep) {
    MPIX_Error e;
    MPIX_INIT(&e);
    EP(MPIX_Ep_get_async_error(ep, &e));
    return e.kind;
}

static void run_graph(lane *l) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    l->seed = 42;
    lane_turn(l, 1, 0, "eager");
    CU(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeGlobal));
    lane_call(l, 0);
    lane_call(l, 1);
    CU(cudaStreamEndCapture(l->stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t i = 0; i < 9; i++) {
        if (i % 3 == 1) {
            lane_turn(l, 100 + i, 1, "eager between replays");
            continue;
        }
        lane_fill(l, 42, 100 + i);
        CU(cudaGraphLaunch(exec, l->stream));
        CU(cudaMemcpyAsync(l->hy, l->y, MOST * HIDDEN * 4, cudaMemcpyDeviceToHost, l->stream));
        CU(cudaStreamSynchronize(l->stream));
        lane_check(l, 100 + i, "replay");
    }
    CHECK(async_kind(l->ep) == 0, "an asynchronous error");
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
}

/* Told with their kind, on all ranks where that can be; the next call works. */
static void run_errors(lane *l) {
    l->seed = 9;
    lane_turn(l, 3, 0, "before errors");
    EP(MPIX_Ep_route(l->h, &l->r, NULL));
    int kind = g_kind(MPIX_Ep_combine(l->h, &l->ci, &l->co));
    CHECK(kind == MPIX_ERRK_ARG, "a combine without a dispatch: kind %d", kind);
    void *host = malloc(MOST * HIDDEN * 4);
    MPIX_Ep_dispatch_out out = l->out;
    if (t_rank == 0)
        out.x.data = host;
    kind = g_kind(MPIX_Ep_dispatch(l->h, &l->in, &out));
    CHECK(kind == (t_rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE),
          "output in host memory on rank 0: kind %d", kind);
    MPIX_Ep_dispatch_in in = l->in;
    in.hidden = t_rank == t_size - 1 ? HIDDEN / 2 : HIDDEN;
    kind = g_kind(MPIX_Ep_dispatch(l->h, &in, &l->out));
    CHECK(kind == (t_size > 1 ? MPIX_ERRK_ARG : 0), "hidden differs: kind %d", kind);
    free(host);
    lane_turn(l, 4, 0, "after errors");
}

/* Random routings; handles of both modes on streams of their own; ranks start them in
 * different orders. */
static void run_stress(lane *l, int n, int iterations, int ordered) {
    for (int i = 0; i < iterations; i++) {
        uint64_t seed = g_mix((uint64_t)i + 77);
        for (int k = 0; k < n; k++) {
            lane *one = &l[ordered ? k : (k + t_rank + i) % n];
            lane_fill(one, seed + (uint64_t)(one - l), seed + 5 + (uint64_t)(one - l));
            lane_call(one, i % 3 == 2);
            CU(cudaMemcpyAsync(one->hy, one->y, MOST * HIDDEN * 4, cudaMemcpyDeviceToHost,
                               one->stream));
            if (ordered)
                CU(cudaStreamSynchronize(one->stream));
        }
        for (int k = 0; k < n; k++) {
            CU(cudaStreamSynchronize(l[k].stream));
            lane_check(&l[k], seed + 5 + (uint64_t)k, "stress");
            CHECK(async_kind(l[k].ep) == 0, "an asynchronous error in iteration %d", i);
        }
        if (t_failures())
            return;
    }
}

static void lanes_open(MPIX_Ep ep[3], lane l[3], double timeout_s, int sms) {
    for (int i = 0; i < 3; i++) { /* SLOTS, EXPERT, HT */
        MPIX_Ep_config c;
        MPIX_INIT(&c);
        c.mode = i < 2 ? MPIX_EP_LL : MPIX_EP_HT;
        c.layout = i == 0 ? MPIX_EP_SLOTS : i == 1 ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
        c.memkind = MPIX_EP_CUDA;
        c.num_sms = sms;
        c.max_topk = KK;
        c.num_experts = EXPERTS;
        c.max_tokens = MOST;
        c.max_row_bytes = HIDDEN * 4;
        c.timeout_s = timeout_s;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep[i]));
        lane_make(ep[i], &l[i], i < 2, i == 1);
    }
}

/* A rank that does not come, or ends: an error within the time limit, a stream that can be used, a
 * context that can be freed. */
static void run_absent(int killed) {
    MPIX_Ep ep[3];
    lane l[3];
    lanes_open(ep, l, 1.0, 8);
    for (int i = 0; i < 2; i++) {
        l[i].seed = 5;
        lane_turn(&l[i], 6, 0, "before the end of a rank");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == t_size - 1) {
        if (killed)
            raise(SIGKILL);
    } else {
        for (int i = 0; i < 2; i++) {
            int kind = g_kind(MPIX_Ep_dispatch(l[i].h, &l[i].in, &l[i].out));
            CHECK(kind == MPIX_ERRK_TIMEOUT || (killed && kind == MPIX_ERRK_PEER),
                  "dispatch without the last rank: kind %d", kind);
            CHECK(g_kind(MPIX_Ep_combine(l[i].h, &l[i].ci, &l[i].co)) > 0,
                  "a call of a failed context");
            CU(cudaMemsetAsync(l[i].x, 0, 64, l[i].stream));
            CU(cudaStreamSynchronize(l[i].stream));
        }
    }
    if (killed) {
        printf("ep_ll: rank %d: %s\n", t_rank, t_failures() ? "FAILED" : "passed");
        fflush(stdout);
        _exit(t_failures() != 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++)
        MPIX_Ep_free(&ep[i]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    int rounds = argc > 2 ? atoi(argv[2]) : 36, iterations = argc > 3 ? atoi(argv[3]) : 200;
    int all = !strcmp(what, "all"), ordered = !strcmp(what, "ordered");
    int devices = batch_program(&argc, &argv, "ep_ll");
    if (!strcmp(what, "killed"))
        run_absent(1);
    if (all || ordered || !strcmp(what, "shapes"))
        run_shapes(rounds);
    if (all || ordered || !strcmp(what, "stress")) {
        MPIX_Ep ep[3];
        lane l[3];
        t_watchdog(0); /* of stress the caller knows how long it takes */
        t_where("graphs, errors, stress");
        lanes_open(ep, l, 20, devices < t_size ? 8 : 0);
        for (int i = 0; i < 2 && !ordered; i++) {
            run_graph(&l[i]);
            run_errors(&l[i]);
        }
        run_stress(l, 3, iterations, ordered);
        for (int i = 0; i < 3; i++) {
            lane_free(&l[i]);
            EP(MPIX_Ep_free(&ep[i]));
        }
    }
    t_where("a rank that does not come");
    if (all && t_size > 1)
        run_absent(0);
    return t_end();
}
