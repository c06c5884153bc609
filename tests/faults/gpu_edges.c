/*
 * gpu_edges.c - contexts in GPU memory where batches are odd: rings with empty chunks, rows of
 * awkward sizes, experts that a token has twice, streams and memory whose addresses come again.
 *
 *   gpu_edges CASE ... ring, rows, twice, twice_ll; on an emulated GPU (EMULATED)
 *   also streams, memory
 *
 * Each case says what it found; the result is 0 if all of them passed.
 */
#include "gpu.h"

#include <pthread.h>
#include <string.h>

static int rank, size, failures;

typedef struct ep {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    MPIX_Ep_counts counts;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
} ep;

static void ep_make(ep *e, MPIX_Ep_config *c) {
    MPIX_INIT(&e->r);
    MPIX_INIT(&e->counts);
    MPIX_INIT(&e->in);
    MPIX_INIT(&e->out);
    MPIX_INIT(&e->ci);
    MPIX_INIT(&e->co);
    c->memkind = MPIX_EP_CUDA;
    c->timeout_s = c->timeout_s > 0 ? c->timeout_s : 20;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, c, MPI_INFO_NULL, &e->ep));
    EP(MPIX_Ep_handle_create(e->ep, &e->h));
}
static void *gpu(const void *from, size_t bytes) {
    void *p;
    CU(cudaMalloc(&p, bytes + 16));
    if (from)
        CU(cudaMemcpy(p, from, bytes, cudaMemcpyDefault));
    else
        CU(cudaMemset(p, 0xa5, bytes + 16));
    return p;
}
static void *shared(ep *e, size_t bytes) { /* collective */
    void *p;
    EP(MPIX_Ep_alloc(e->ep, (MPI_Count)bytes + 16, MPI_INFO_NULL, &p));
    CU(cudaMemset(p, 0xa5, bytes));
    return p;
}
static void route(ep *e, const int32_t *ids, int64_t tokens, int topk) {
    e->r.num_tokens = tokens;
    e->r.topk = topk;
    e->r.idx_bits = 32;
    e->r.ids = gpu(ids, (size_t)tokens * (size_t)topk * 4);
    EP(MPIX_Ep_route(e->h, &e->r, &e->counts));
}

/* bf16 1, 2 ... */
static uint16_t small(int n) {
    float f = (float)n;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}
static float number(uint16_t v) {
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ---- EXPERT's combine, partial sums in a ring of chunks -------------------------------------- */

enum { H = 64, CHUNK = 128 };

/* The tokens of one chunk of a rank go nowhere, or not to the peers. The others' come back as they
 * went: a token has one expert. */
static void ring(int hole, int chunks, int nowhere) {
    int64_t tokens = (int64_t)CHUNK * chunks;
    int experts = 2 * size;
    ep e;
    MPIX_Ep_config c;
    int32_t *ids = malloc((size_t)tokens * 4);
    uint16_t *x = malloc((size_t)tokens * H * 2), *y = malloc((size_t)tokens * H * 2);
    MPIX_INIT(&c);
    c.layout = MPIX_EP_EXPERT;
    c.max_topk = 1;
    c.num_experts = experts;
    c.max_tokens = tokens;
    c.max_row_bytes = H * 2; /* with gpu_partial_bytes = 0: four chunks in the ring */
    ep_make(&e, &c);
    for (int64_t t = 0; t < tokens; t++) {
        ids[t] = t / CHUNK == hole ? nowhere ? -1 : 2 * rank : (int)(t % experts);
        for (int j = 0; j < H; j++)
            x[t * H + j] = small((int)(t % 100) + 1 + rank);
    }
    route(&e, ids, tokens, 1);
    e.in.hidden = e.ci.hidden = H;
    e.in.x = (MPIX_Ep_rows){gpu(x, (size_t)tokens * H * 2), 0, MPIX_EP_BF16, 0, NULL, 0};
    e.out.x.data = shared(&e, (size_t)tokens * (size_t)size * H * 2);
    e.out.capacity_rows = tokens * size;
    EP(MPIX_Ep_dispatch(e.h, &e.in, &e.out));
    e.ci.x = (MPIX_Ep_rows){e.out.x.data, 0, MPIX_EP_BF16, 0, NULL, 0};
    e.co.y = (MPIX_Ep_rows){gpu(NULL, (size_t)tokens * H * 2), 0, MPIX_EP_BF16, 0, NULL, 0};
    for (int again = 0; again < 2; again++) {
        int kind = g_kind(MPIX_Ep_combine(e.h, &e.ci, &e.co));
        CHECK(kind <= 0, "ring: hole in chunk %d of %d (%s): kind %d", hole, chunks,
              nowhere ? "ids -1" : "own experts", kind);
        if (kind > 0) /* the context has failed */
            return;
    }
    CU(cudaMemcpy(y, e.co.y.data, (size_t)tokens * H * 2, cudaMemcpyDefault));
    for (int64_t t = 0; t < tokens; t++)
        for (int j = 0; j < H; j++)
            if (y[t * H + j] != (ids[t] < 0 ? 0 : x[t * H + j])) {
                CHECK(0, "ring: token %lld, channel %d is %g", (long long)t, j,
                      (double)number(y[t * H + j]));
                j = H, t = tokens;
            }
    CU(cudaFree((void *)(uintptr_t)e.r.ids));
    CU(cudaFree((void *)(uintptr_t)e.in.x.data));
    CU(cudaFree(e.co.y.data));
    EP(MPIX_Ep_free(&e.ep));
    free(ids), free(x), free(y);
}
static void case_ring(void) {
    static const int holes[][3] = {{0, 8, 1}, {0, 8, 0}, {99, 8, 1},
                                   {0, 4, 1}, {7, 8, 1}, {5, 13, 1}};
    for (unsigned i = 0; i < sizeof holes / sizeof *holes; i++)
        ring(holes[i][0], holes[i][1], holes[i][2]);
}

/* ---- rows whose sizes leave few of them in a block's shared memory --------------------------- */

static void rows(int layout, int64_t bytes, int64_t tokens) {
    int experts = size;
    ep e;
    MPIX_Ep_config c;
    size_t all = (size_t)tokens * (size_t)bytes;
    int32_t *ids = malloc((size_t)tokens * 4);
    uint16_t *x = malloc(all), *y = malloc(all);
    MPIX_INIT(&c);
    c.layout = layout;
    c.max_topk = 1;
    c.num_experts = experts;
    c.max_tokens = tokens;
    c.max_row_bytes = bytes;
    ep_make(&e, &c);
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = (int)((t + rank) % experts);
    for (size_t i = 0; i < all / 2; i++)
        x[i] = small((int)(i % 97) + 1 + rank);
    route(&e, ids, tokens, 1);
    e.in.hidden = e.ci.hidden = bytes / 2;
    e.in.x = (MPIX_Ep_rows){gpu(x, all), 0, MPIX_EP_BF16, 0, NULL, 0};
    e.out.capacity_rows = tokens * size;
    e.out.x.data = shared(&e, (size_t)e.out.capacity_rows * (size_t)bytes);
    EP(MPIX_Ep_dispatch(e.h, &e.in, &e.out));
    e.ci.x = (MPIX_Ep_rows){e.out.x.data, 0, MPIX_EP_BF16, 0, NULL, 0};
    e.co.y = (MPIX_Ep_rows){gpu(NULL, all), 0, MPIX_EP_BF16, 0, NULL, 0};
    EP(MPIX_Ep_combine(e.h, &e.ci, &e.co));
    CU(cudaMemcpy(y, e.co.y.data, all, cudaMemcpyDefault));
    CHECK(!memcmp(x, y, all), "rows of %lld bytes, layout %d: not what was sent", (long long)bytes,
          layout);
    CU(cudaFree((void *)(uintptr_t)e.r.ids));
    CU(cudaFree((void *)(uintptr_t)e.in.x.data));
    CU(cudaFree(e.co.y.data));
    EP(MPIX_Ep_free(&e.ep));
    free(ids), free(x), free(y);
}
static void case_rows(void) {
    static const int64_t sizes[] = {16,   512,  4096,  6912,  7104, 7152,
                                    7168, 8192, 14336, 14352, 28672};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        /* more rows than the rings of a few blocks hold */
        for (int expert = 0; expert < 2; expert++)
            rows(expert ? MPIX_EP_EXPERT : MPIX_EP_COMPACT, sizes[i], 200);
}

/* ---- a token that has an expert twice -------------------------------------------------------- */

enum { TWICE_K = 3 };

/* Each third token has its first expert twice. */
static void twice_fill(int32_t *ids, uint16_t *x, int64_t tokens, int experts, int check) {
    for (int64_t t = 0; t < tokens; t++) {
        ids[t * TWICE_K] = (int)(t % experts);
        ids[t * TWICE_K + 1] = (int)((t + 1) % experts);
        ids[t * TWICE_K + 2] = t % 3 == 0 && (!check || rank == 0) ? ids[t * TWICE_K]
                               : t % 3 == 1                        ? -1
                                                                   : (int)((t + 2) % experts);
        for (int j = 0; j < H; j++)
            x[t * H + j] = small((int)(t % 30) + 1 + rank);
    }
}

/* Where ids are not checked, both choices have one row: all rows are written, and the sum has that
 * row for each. */
static void twice(int mode, int64_t tokens, int check) {
    enum { K = TWICE_K };
    int experts = 4 * size, ll = mode == MPIX_EP_LL;
    ep e;
    MPIX_Ep_config c;
    int32_t *ids = malloc((size_t)tokens * K * 4);
    uint16_t *x = malloc((size_t)tokens * H * 2), *y = malloc((size_t)tokens * H * 2);
    MPIX_INIT(&c);
    c.mode = mode;
    c.layout = MPIX_EP_EXPERT;
    c.max_topk = K;
    c.num_experts = experts;
    c.max_tokens = tokens;
    c.max_row_bytes = H * 2;
    c.check = check ? 1 : -1;
    ep_make(&e, &c);
    twice_fill(ids, x, tokens, experts, check);
    e.r.num_tokens = tokens;
    e.r.topk = K;
    e.r.idx_bits = 32;
    e.r.ids = gpu(ids, (size_t)tokens * K * 4);
    MPI_Count total = -1;
    e.counts.recv_total = ll ? NULL : &total;
    int kind = g_kind(MPIX_Ep_route(e.h, &e.r, ll ? NULL : &e.counts)),
        want = rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE;
    if (check) {
        CHECK(kind == (ll && rank ? 0 : want), "twice: ids are checked: kind %d", kind);
        CU(cudaFree((void *)(uintptr_t)e.r.ids));
        EP(MPIX_Ep_free(&e.ep));
        free(ids), free(x), free(y);
        return;
    }
    CHECK(kind == 0, "twice: kind %d of route", kind);
    int64_t capacity = tokens * K * size + 64;
    int32_t *from = malloc((size_t)capacity * 4);
    e.in.hidden = e.ci.hidden = H;
    e.in.x = (MPIX_Ep_rows){gpu(x, (size_t)tokens * H * 2), 0, MPIX_EP_BF16, 0, NULL, 0};
    e.out.capacity_rows = capacity;
    e.out.x.data = shared(&e, (size_t)capacity * H * 2);
    e.out.src_rank = gpu(NULL, (size_t)capacity * 4);
    MPI_Count offsets[64];
    if (ll) {
        e.out.expert_offset = offsets;
    }
    kind = g_kind(MPIX_Ep_dispatch(e.h, &e.in, &e.out));
    CHECK(kind == 0, "twice: kind %d of dispatch", kind);
    if (ll)
        total = offsets[4];
    uint16_t *o = malloc((size_t)capacity * H * 2);
    CU(cudaMemcpy(from, e.out.src_rank, (size_t)capacity * 4, cudaMemcpyDefault));
    CU(cudaMemcpy(o, e.out.x.data, (size_t)capacity * H * 2, cudaMemcpyDefault));
    for (int64_t i = 0; i < total; i++)
        CHECK(from[i] >= 0 && from[i] < size && o[i * H] != 0xa5a5,
              "twice: row %lld of %lld was not written (%d, %x)", (long long)i, (long long)total,
              (int)from[i], o[i * H]);
    e.ci.x = (MPIX_Ep_rows){e.out.x.data, 0, MPIX_EP_BF16, 0, NULL, 0};
    e.co.y = (MPIX_Ep_rows){gpu(NULL, (size_t)tokens * H * 2), 0, MPIX_EP_BF16, 0, NULL, 0};
    kind = g_kind(MPIX_Ep_combine(e.h, &e.ci, &e.co));
    CHECK(kind == 0, "twice: kind %d of combine", kind);
    CU(cudaMemcpy(y, e.co.y.data, (size_t)tokens * H * 2, cudaMemcpyDefault));
    for (int64_t t = 0; t < tokens && kind == 0; t++) {
        int choices = 2 + (ids[t * K + 2] >= 0);
        CHECK(number(y[t * H]) == (float)choices * number(x[t * H]),
              "twice: token %lld: sum %g of %d rows of %g", (long long)t, (double)number(y[t * H]),
              choices, (double)number(x[t * H]));
    }
    CU(cudaFree((void *)(uintptr_t)e.r.ids));
    CU(cudaFree((void *)(uintptr_t)e.in.x.data));
    CU(cudaFree(e.out.src_rank));
    CU(cudaFree(e.co.y.data));
    EP(MPIX_Ep_free(&e.ep));
    free(ids), free(x), free(y), free(from), free(o);
}
static void case_twice(int mode) {
    twice(mode, 40, 0);
    /* low latency: what one block does not route */
    twice(mode, mode == MPIX_EP_LL ? 1500 : 300, 0);
    twice(mode, 40, 1);
    twice(mode, mode == MPIX_EP_LL ? 1500 : 300, 1);
}

#ifdef EMULATED
/* ---- streams that look alike ----------------------------------------------------------------- */

extern int emu_stream_waits;

static void *enqueue(void *arg) {
    ep *e = arg;
    EP(MPIX_Ep_route_enqueue(e->h, &e->r, NULL, cudaStreamPerThread));
    return NULL;
}
static void case_streams(void) {
    int32_t ids[4] = {0};
    ep e;
    MPIX_Ep_config c;
    pthread_t thread;
    cudaStream_t a, b;
    MPIX_INIT(&c);
    c.max_topk = 1;
    c.num_experts = 1;
    c.max_tokens = 4;
    c.max_row_bytes = 16;
    ep_make(&e, &c);
    route(&e, ids, 4, 1);
    enqueue(&e);
    int before = emu_stream_waits;
    enqueue(&e);
    CHECK(emu_stream_waits == before, "streams: a call waits for its own stream");
    /* one thread at a time: its cudaStreamPerThread is another stream */
    pthread_create(&thread, NULL, enqueue, &e);
    pthread_join(thread, NULL);
    CHECK(
        emu_stream_waits == before + 1,
        "streams: a call on another thread's cudaStreamPerThread does not wait for the one before");
    CU(cudaStreamCreate(&a));
    EP(MPIX_Ep_route_enqueue(e.h, &e.r, NULL, a));
    CU(cudaStreamDestroy(a));
    CU(cudaStreamCreate(&b));
    CHECK(a == b, "streams: the emulation gives another address");
    before = emu_stream_waits;
    EP(MPIX_Ep_route_enqueue(e.h, &e.r, NULL, b));
    CHECK(emu_stream_waits == before + 1, "streams: a call on a new stream does not wait for one "
                                          "on a destroyed stream of the same address");
    CU(cudaStreamDestroy(b));
    EP(MPIX_Ep_free(&e.ep));
}

/* ---- memory of the GPU that is something else later ------------------------------------------ */

static void case_memory(void) {
    enum { BYTES = 64 << 20 }; /* always from the system, so the address comes again */
    int32_t *ids;
    ep e;
    MPIX_Ep_config c;
    void *later;
    MPIX_INIT(&c);
    c.max_topk = 1;
    c.num_experts = 1;
    c.max_tokens = 4;
    c.max_row_bytes = 16;
    ep_make(&e, &c);
    CU(cudaMalloc((void **)&ids, BYTES));
    CU(cudaMemset(ids, 0, 64));
    e.r.num_tokens = 4;
    e.r.topk = 1;
    e.r.idx_bits = 32;
    e.r.ids = ids;
    EP(MPIX_Ep_route_enqueue(e.h, &e.r, NULL, NULL));
    CU(cudaFree(ids));
    CU(cudaHostAlloc(&later, BYTES, 0));
#ifdef __SANITIZE_ADDRESS__ /* keeps freed memory for long */
    if (later != (void *)ids) {
        EP(MPIX_Ep_free(&e.ep));
        return;
    }
#endif
    CHECK(later == (void *)ids, "memory: the address did not come again");
    int kind = g_kind(MPIX_Ep_route_enqueue(e.h, &e.r, NULL, NULL));
    CHECK(kind == MPIX_ERRK_ARG, "memory: ids lie in host memory now: kind %d", kind);
    EP(MPIX_Ep_free(&e.ep));
}
#endif

int main(int argc, char **argv) {
    int devices = 0, all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    for (int i = 1; i < argc; i++) {
        int before = failures;
        if (!strcmp(argv[i], "ring"))
            case_ring();
        else if (!strcmp(argv[i], "rows"))
            case_rows();
        else if (!strcmp(argv[i], "twice"))
            case_twice(MPIX_EP_HT);
        else if (!strcmp(argv[i], "twice_ll"))
            case_twice(MPIX_EP_LL);
#ifdef EMULATED
        else if (!strcmp(argv[i], "streams"))
            case_streams();
        else if (!strcmp(argv[i], "memory"))
            case_memory();
#endif
        else
            CHECK(0, "no case %s", argv[i]);
        MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0)
            printf("gpu_edges: %d ranks: %s: %s\n", size, argv[i], all ? "FAILED" : "passed");
        if (failures > before)
            break;
    }
    fflush(stdout);
    if (all) /* contexts may have failed */
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
