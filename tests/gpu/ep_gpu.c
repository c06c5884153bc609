/*
 * ep_gpu.c - the COMPACT layout in GPU memory, bit by bit against a context in host memory, with
 * sums of this program's own.
 *
 *   ep_gpu [rounds [none]]       none: rows by copy engines
 *
 * Where ranks are split into hosts and two hops are forced (or off), the bytes that go between
 * hosts are those of the (token, host) pairs (or of the (token, rank) pairs).
 */
#include "batch.h"

static int hops = -1; /* two hops: off, on, -1: as the routing says */

/* How many (token, host) or (token, rank) pairs between hosts the routing has. */
static int64_t pairs_between(const ref_plan *plan) {
    int64_t n = 0;
    for (int r = 0; r < t_size; r++)
        for (int64_t t = 0; t < plan->ntok[r]; t++)
            for (int to = 0; to < (hops ? t_hosts : t_size); to++) {
                int hit = 0;
                for (int k = 0; k < plan->topk; k++) {
                    int64_t e = ref_choice(plan, r, t, k);
                    int owner = e < 0 ? r : plan->owner[e], host = t_host_of[owner];
                    hit |= host != t_host_of[r] && (hops ? host : owner) == to;
                }
                n += hit;
            }
    return n;
}

/* As many items as pairs; for each at most a word of 8 bytes and a READ behind which it goes, and
 * for each pair of ranks an offer with its word. */
static void check_bytes(const batch *b, const char *what, int64_t item) {
    int64_t n = pairs_between(b->plan), most = n * (item + 32) + (int64_t)t_size * t_size * 256;
    CHECK(b->sent >= n * item && b->sent <= most,
          "%s: %lld bytes went between hosts for %lld items of %lld", what, (long long)b->sent,
          (long long)n, (long long)item);
}
static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static void check_dispatch_bytes(const batch *b) {
    int64_t row = up((int64_t)b->row, 16), scales = up((int64_t)b->srow, 16);
    if (t_hosts > 1 && hops >= 0)
        check_bytes(b, "dispatch", up(row + scales + 8 + (hops ? 12 : 8) * 8, 128));
}

/* Two hops: a request of 80 bytes and a sum, of fp8 rows in bf16, without scales. */
static void check_combine_bytes(const batch *b) {
    int64_t row = up((int64_t)b->row, 16), scales = up((int64_t)b->srow, 16);
    int64_t part = up((int64_t)b->row * (is_fp8(b->s->dtype) ? 2 : 1), 16);
    if (t_hosts == 1 || hops < 0)
        return;
    if (hops)
        check_bytes(b, "combine", up(part + 4 * 8, 128) + 80);
    else if (b->s->overflow == MPIX_EP_OVERFLOW_ERROR)
        check_bytes(b, "combine", up(row + scales + 4 + 4 * 8, 128));
}

/* The rows of a token that were at ranks of a host, or of any (-1), as terms; gives
 * their number. */
static int terms_of(const batch *b, int64_t t, int host, ref_term *terms, char *rows) {
    int n = 0;
    for (int r = 0; r < t_size; r++) {
        int there = 0;
        for (int k = 0; k < b->s->topk; k++) {
            int64_t e = batch_id(b, t, k);
            there |= e >= 0 && b->plan->owner[e] == r;
        }
        if (!there || (host >= 0 && t_host_of[r] != host))
            continue;
        batch_back(b, r, t_rank, t, rows + (size_t)n * b->zrow);
        terms[n] = (ref_term){.x = rows + (size_t)n * b->zrow, .group = r};
        n++;
    }
    return n;
}

/* Rank by rank; with two hops those of the own host, then the sums of other hosts, rounded. */
static void check_sums(const batch *b) {
    const shape *s = b->s;
    int own = hops ? t_host_of[t_rank] : -1;
    char *got = malloc((size_t)s->tokens[t_rank] * b->yrow + 16), *want = malloc(b->yrow + 16);
    char *rows = malloc(b->zrow * 16 + 16), *parts = malloc(b->zrow * (size_t)t_hosts + 16);
    CU(cudaMemcpy(got, b->y.dev, b->y.bytes, cudaMemcpyDefault));
    for (int64_t t = 0; t < s->tokens[t_rank]; t++) {
        ref_term terms[64], part[64];
        int n = terms_of(b, t, own, terms, rows);
        char *more = rows + (size_t)n * b->zrow;
        for (int h = 0; h < t_hosts && hops; h++) {
            char *sum = parts + (size_t)h * b->zrow;
            int m = h == own ? 0 : terms_of(b, t, h, part, more);
            ref_sum(m, part, s->zdtype, 0, 0, NULL, s->zdtype, s->hidden, sum);
            if (m)
                terms[n++] = (ref_term){.x = sum, .group = t_size + h};
        }
        ref_sum(n, terms, s->zdtype, 0, 0, NULL, s->ydtype, s->hidden, want);
        for (int64_t j = 0; j < s->hidden; j++)
            if (!CHECK(ref_same(s->ydtype, got + (size_t)t * b->yrow, want, j),
                       "token %lld element %lld: %g, expected %g", (long long)t, (long long)j,
                       ref_load(s->ydtype, got + (size_t)t * b->yrow, j),
                       ref_load(s->ydtype, want, j)))
                break;
    }
    free(got), free(want), free(rows), free(parts);
}

static void run_batch(const shape *s, const side *gpu, const side *host) {
    batch *b = batch_open(s, gpu, host);
    batch_dispatch(b, 0);
    check_dispatch_bytes(b);
    if (s->dtype != MPIX_EP_BYTES) {
        batch_combine(b, 0);
        check_combine_bytes(b);
        if (s->zdtype == MPIX_EP_BF16 && s->ydtype == MPIX_EP_BF16 && !s->roww && hops >= 0 &&
            s->overflow == MPIX_EP_OVERFLOW_ERROR)
            check_sums(b);
    }
    batch_close(b);
}

static void *cu(size_t n, int fill) {
    void *p;
    CU(cudaMalloc(&p, n + 16));
    CU(cudaMemset(p, fill, n + 16));
    return p;
}

/* Errors: told with their kind, on all ranks, and the context goes on. */
static void run_errors(MPIX_Ep gpu, MPIX_Ep_handle h) {
    int last = t_rank == t_size - 1;
    int32_t host_ids[8] = {0}, *ids = cu(64 * 4, 0);
    both o = both_make(64 * 64, gpu);
    char *x = cu(4 * 64, 3);
    void *plain = cu(64 * 64, 0), *much;
    side s = {.ep = gpu, .h = h};
    side_init(&s);
    s.r.num_tokens = 4;
    s.r.topk = 1;
    s.r.ids = t_rank == 0 ? host_ids : ids;
    int kind = g_kind(MPIX_Ep_route(h, &s.r, NULL));
    CHECK(kind == (t_rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE),
          "ids in host memory on rank 0: kind %d", kind);
    s.r.ids = ids; /* all to expert 0 */
    EP(MPIX_Ep_route(h, &s.r, NULL));
    s.in.hidden = 32;
    s.in.x = (MPIX_Ep_rows){x, 0, MPIX_EP_BF16, 0, NULL, 0};
    s.out.x.data = o.dev;
    s.out.capacity_rows = 1; /* rank 0 gets 4 * size */
    kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(kind == (t_rank == 0 ? MPIX_ERRK_TRUNCATE : MPIX_ERRK_REMOTE),
          "too little room on rank 0: kind %d", kind);
    s.out.capacity_rows = 64;
    s.out.x.data = last ? plain : o.dev;
    kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(kind == (last ? MPIX_ERRK_UNSUPPORTED : MPIX_ERRK_REMOTE),
          "output outside MPIX_Ep_alloc: kind %d", kind);
    s.out.x.data = o.dev;
    s.in.hidden = last && t_size > 1 ? 16 : 32;
    kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(t_size == 1 || kind == MPIX_ERRK_ARG || kind == MPIX_ERRK_REMOTE,
          "hidden differs: kind %d", kind);
    s.in.hidden = 32;
    EP(MPIX_Ep_dispatch(h, &s.in, &s.out));
    kind = g_kind(MPIX_Ep_alloc(gpu, (MPI_Count)1 << 45, MPI_INFO_NULL, &much));
    CHECK(kind == MPIX_ERRK_NO_MEM || kind == MPIX_ERRK_REMOTE, "32 TB of GPU memory: kind %d",
          kind);
    EP(MPIX_Ep_dispatch(h, &s.in, &s.out)); /* and the context goes on */
    both_free(&o);
    CU(cudaFree(ids));
    CU(cudaFree(x));
    CU(cudaFree(plain));
}

/* A rank that does not take part: the others time out, their streams stay usable. */
static void run_timeout(const MPIX_Ep_config *like) {
    MPIX_Ep_config c = *like;
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    c.timeout_s = 0.5;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    EP(MPIX_Ep_handle_create(ep, &h));
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    int kind = t_rank == 0 ? MPIX_ERRK_TIMEOUT : g_kind(MPIX_Ep_route(h, &r, NULL));
    CHECK(kind == MPIX_ERRK_TIMEOUT, "route without rank 0: kind %d", kind);
    CU(cudaDeviceSynchronize());
    CU(cudaFree(cu(1 << 20, 1)));
    MPI_Barrier(MPI_COMM_WORLD);
    MPIX_Ep_free(&ep);
}

/* The i-th shape, and in *sms how many its GPU context gets. */
static void shape_make(shape *s, int i, int none, int *sms) {
    static const int dtypes[] = {MPIX_EP_BF16,   MPIX_EP_BF16,   MPIX_EP_BF16,
                                 MPIX_EP_F32,    MPIX_EP_F16,    MPIX_EP_BYTES,
                                 MPIX_EP_F8E4M3, MPIX_EP_F8E5M2, MPIX_EP_F64};
    uint64_t rng = g_mix((uint64_t)i + 17);
    *s = (shape){.seed = rng, .mode = MPIX_EP_HT, .layout = MPIX_EP_COMPACT, .turns = 1, .reps = 2};
    s->dtype = s->odtype = s->zdtype = dtypes[i % 9];
    s->experts = (int)g_range(&rng, t_size, 64);
    s->topk = (int)g_range(&rng, 1, s->experts < 8 ? s->experts : 8);
    s->holes = g_range(&rng, 0, 2) ? 0 : 40;
    s->hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300)
                : i % 10 == 9            ? 7168 / 4 * g_range(&rng, 1, 2)
                                         : 8 * g_range(&rng, 1, 200);
    s->scales = s->oscales = s->zscales = is_fp8(s->dtype) ? (int)g_range(&rng, 0, 1) : 0;
    s->ydtype = is_fp8(s->dtype) ? MPIX_EP_BF16 : g_range(&rng, 0, 3) ? s->dtype : MPIX_EP_F32;
    s->pad = g_range(&rng, 0, 1) ? 16 : 0;
    s->weights = (int)g_range(&rng, 0, 1);
    s->slots = (int)g_range(&rng, 0, 1);
    s->roww = (int)g_range(&rng, 0, 1);
    s->form = s->route_form = (int)g_range(&rng, 0, 2);
    s->bits = g_range(&rng, 0, 1) ? 64 : 32;
    int drop = i > 0 && !none && g_range(&rng, 0, 3) == 0;
    s->overflow = drop ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
    s->keep = drop ? 4 : 8;
    s->spare = drop ? 0 : 3;
    s->counts = s->route_form == ENQUEUE ? 1 << RECV_TOTAL : 1 << RECV_TOTAL | 1 << RECV_RANK;
    for (int r = 0; r < t_size; r++)
        s->tokens[r] = g_range(&rng, 0, 3) == 0 ? 0 : g_range(&rng, 1, i % 5 == 4 ? 700 : 60);
    *sms = none ? MPIX_EP_SMS_NONE : (int)g_range(&rng, 0, 5) * 5;
}

static void find_hops(void) {
    const char *two = getenv("MPIX_EP_TWO_HOPS");
    if (t_hosts == 1 || !strcmp(two, "off"))
        hops = 0;
    else if (!strcmp(two, "on"))
        hops = 1;
}

int main(int argc, char **argv) {
    int devices = 0;
    if (argc > 1 && !strcmp(argv[1], "--probe"))
        return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
    int rounds = argc > 1 ? atoi(argv[1]) : 40, none = argc > 2 && !strcmp(argv[2], "none");
    batch_program(&argc, &argv, "ep_gpu");
    find_hops();
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.max_topk = 8;
    c.max_tokens = 700;
    c.max_row_bytes = 40000;
    c.timeout_s = 60;
    for (int i = 0; i < rounds; i++) {
        shape s;
        side gpu, host;
        int sms;
        shape_make(&s, i, none, &sms);
        t_watchdog(250);
        t_where("round %d: dtype %d hidden %lld experts %d topk %d tokens %lld form %d overflow %d",
                i, s.dtype, (long long)s.hidden, s.experts, s.topk, (long long)s.tokens[t_rank],
                s.form, s.overflow);
        c.num_experts = s.experts;
        c.overflow = s.overflow;
        batch_contexts(&c, sms, &gpu, &host);
        run_batch(&s, &gpu, &host);
        if (i == 0)
            run_errors(gpu.ep, gpu.h);
        batch_contexts_free(&gpu, &host);
    }
    c.memkind = MPIX_EP_CUDA;
    c.overflow = MPIX_EP_OVERFLOW_ERROR;
    c.num_sms = none ? MPIX_EP_SMS_NONE : 0;
    t_where("a rank that does not take part");
    if (t_size > 1)
        run_timeout(&c);
    return t_end();
}
