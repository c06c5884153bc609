/*
 * ep_streams_lane.c - rows of a round of ep_streams, and their check. They hold small integers that
 * follow from (round, rank, token), and the experts give back what they got, so a token's sum is
 * its row times the number of ranks (EXPERT: of experts) that it went to, exactly.
 */
#include "ep_streams.h"

static void *dev(size_t n) {
    void *p;
    CU(cudaMalloc(&p, n));
    return p;
}
static void *pin(size_t n) {
    void *p;
    CU(cudaHostAlloc(&p, n, cudaHostAllocDefault));
    memset(p, 0, n);
    return p;
}

void lane_make(MPIX_Ep ep, lane *l) {
    size_t rows = most_rows(), row = HIDDEN * sizeof(float);
    memset(l, 0, sizeof *l);
    EP(MPIX_Ep_handle_create(ep, &l->h));
    EP(MPIX_Ep_alloc(ep, (MPI_Count)(rows * row), MPI_INFO_NULL, &l->rows));
    CU(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    l->ids = dev(TOKENS * TOPK * 4), l->hids = pin(TOKENS * TOPK * 4);
    l->src = dev(rows * 4), l->hsrc = pin(rows * 4);
    l->tok = dev(rows * 8), l->htok = pin(rows * 8);
    l->x = dev(TOKENS * row), l->hx = pin(TOKENS * row);
    l->y = dev(TOKENS * row), l->hy = pin(TOKENS * row);
    l->hrows = pin(rows * row);
    l->total = pin(8);
}

void lane_free(MPIX_Ep ep, lane *l) {
    CU(cudaStreamSynchronize(l->stream));
    EP(MPIX_Ep_dealloc(ep, l->rows));
    EP(MPIX_Ep_handle_free(&l->h));
    CU(cudaStreamDestroy(l->stream));
    CU(cudaFree(l->ids));
    CU(cudaFree(l->src));
    CU(cudaFree(l->tok));
    CU(cudaFree(l->x));
    CU(cudaFree(l->y));
    CU(cudaFreeHost(l->hids));
    CU(cudaFreeHost(l->hsrc));
    CU(cudaFreeHost(l->htok));
    CU(cudaFreeHost(l->hx));
    CU(cudaFreeHost(l->hy));
    CU(cudaFreeHost(l->hrows));
    CU(cudaFreeHost(l->total));
}

static int tokens_of(uint64_t seed, int r) {
    return (int)(g_mix(seed ^ (uint64_t)r * 7919) % (TOKENS + 1));
}
static float value_of(uint64_t seed, int r, int64_t t, int j) {
    return (
        float)((int)(g_mix(seed + (uint64_t)r * 131071 + (uint64_t)t * 31 + (uint64_t)j * 8191) %
                     199) -
               99);
}

/* What a round is: its shape, rows and routing, copied in stream order. */
void lane_shape(lane *l, uint64_t seed) {
    uint64_t s = g_mix(seed);
    l->seed = seed;
    l->tokens = tokens_of(seed, rank);
    l->hidden = (int)g_range(&s, 0, 2) ? (int)g_range(&s, 1, HIDDEN / 8) * 8
                                       : (int)g_range(&s, 1, HIDDEN);
    l->topk = (int)g_range(&s, 1, TOPK);
    MPIX_INIT(&l->r);
    MPIX_INIT(&l->c);
    MPIX_INIT(&l->in);
    MPIX_INIT(&l->out);
    MPIX_INIT(&l->ci);
    MPIX_INIT(&l->co);
    l->r.num_tokens = l->tokens;
    l->r.topk = l->topk;
    l->r.ids = l->ids;
    l->c.recv_total = l->total;
    l->in.hidden = l->ci.hidden = l->hidden;
    l->in.x = (MPIX_Ep_rows){l->x, 0, MPIX_EP_F32, 0, NULL, 0};
    l->out.capacity_rows = (MPI_Count)most_rows();
    l->out.x = (MPIX_Ep_rows){l->rows, 0, MPIX_EP_F32, 0, NULL, 0};
    l->out.src_rank = l->src;
    l->out.src_token = (MPI_Count *)l->tok;
    l->ci.x = l->out.x;
    l->co.y = (MPIX_Ep_rows){l->y, 0, MPIX_EP_F32, 0, NULL, 0};
}
void lane_fill(lane *l, uint64_t content) {
    for (int t = 0; t < l->tokens; t++) {
        g_ids(l->seed, rank, t, l->topk, EXPERTS, 15, l->hids + t * l->topk);
        for (int j = 0; j < l->hidden; j++)
            l->hx[t * l->hidden + j] = value_of(content, rank, t, j);
    }
    CU(cudaMemcpyAsync(l->ids, l->hids, TOKENS * TOPK * 4, cudaMemcpyHostToDevice, l->stream));
    CU(cudaMemcpyAsync(l->x, l->hx, TOKENS * HIDDEN * 4, cudaMemcpyHostToDevice, l->stream));
    CU(cudaMemsetAsync(l->y, 0xA5, TOKENS * HIDDEN * 4, l->stream));
    CU(cudaMemsetAsync(l->rows, 0xA5, most_rows() * HIDDEN * 4, l->stream));
}
void lane_fetch(lane *l) {
    size_t rows = most_rows();
    CU(cudaMemcpyAsync(l->hrows, l->rows, rows * HIDDEN * 4, cudaMemcpyDeviceToHost, l->stream));
    CU(cudaMemcpyAsync(l->hsrc, l->src, rows * 4, cudaMemcpyDeviceToHost, l->stream));
    CU(cudaMemcpyAsync(l->htok, l->tok, rows * 8, cudaMemcpyDeviceToHost, l->stream));
    CU(cudaMemcpyAsync(l->hy, l->y, TOKENS * HIDDEN * 4, cudaMemcpyDeviceToHost, l->stream));
}
void lane_call(lane *l) {
    EP(MPIX_Ep_route_enqueue(l->h, &l->r, &l->c, l->stream));
    EP(MPIX_Ep_dispatch_enqueue(l->h, &l->in, &l->out, l->stream));
    EP(MPIX_Ep_combine_enqueue(l->h, &l->ci, &l->co, l->stream));
}

/* How many rows of a token with these choices the experts from first on, n of them, get. */
static int goes(const int32_t *ids, int topk, int first, int n) {
    int rows = 0;
    for (int k = 0; k < topk; k++)
        rows += ids[k] >= first && ids[k] < first + n;
    return expert ? rows : rows > 0;
}
static int64_t check_rows(const lane *l, uint64_t content, const char *what, int first, int n,
                          int64_t at) {
    int32_t ids[TOPK];
    for (int s = 0; s < size; s++)
        for (int t = 0; t < tokens_of(l->seed, s); t++) {
            g_ids(l->seed, s, t, l->topk, EXPERTS, 15, ids);
            if (!goes(ids, l->topk, first, n))
                continue;
            int wrong = l->hsrc[at] != s || l->htok[at] != t;
            for (int j = 0; j < l->hidden; j++)
                wrong += l->hrows[at * l->hidden + j] != value_of(content, s, t, j);
            CHECK(!wrong, "%s: row %lld (rank %d, token %d) is wrong in %d places", what,
                  (long long)at, s, t, wrong);
            at++;
        }
    return at;
}
/* After a fetch and a synchronization. */
void lane_check(const lane *l, uint64_t content, const char *what) {
    int local = EXPERTS / size, before = failures;
    int64_t at = 0;
    if (!expert)
        at = check_rows(l, content, what, rank * local, local, at);
    for (int e = 0; expert && e < local; e++)
        at = check_rows(l, content, what, rank * local + e, 1, at);
    CHECK(*l->total == at, "%s: recv_total %lld, expected %lld", what, (long long)*l->total,
          (long long)at);
    for (int t = 0; t < l->tokens; t++) {
        int n = 0, wrong = 0;
        for (int q = 0; q < size; q++)
            n += goes(l->hids + t * l->topk, l->topk, q * local, local);
        for (int j = 0; j < l->hidden; j++)
            wrong += l->hy[t * l->hidden + j] != (float)n * value_of(content, rank, t, j);
        CHECK(!wrong, "%s: sum of token %d is wrong in %d places", what, t, wrong);
    }
    if (failures > before)
        fprintf(stderr, "rank %d: %s: seed %llu, %d tokens, hidden %d, topk %d\n", rank, what,
                (unsigned long long)l->seed, l->tokens, l->hidden, l->topk);
}
