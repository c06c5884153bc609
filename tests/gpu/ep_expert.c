/*
 * ep_expert.c - the EXPERT layout in GPU memory, bit by bit against a context in host memory and, where partial sums are rounded, against
 * a sum in double with a bound; with conversion of dispatched rows to fp8 in both layouts.
 *
 *   ep_expert [rounds [first round]]
 *
 * Data and routings come from hashes of (seed, rank, token), the experts' outputs from (seed, expert, rank, token), so every rank knows
 * what every other has. Outputs are poisoned; what lies behind the rows must keep its poison.
 */
#include "gpu.h"

#include <math.h>

static int rank, size, failures;

enum { BLOCKING, XFER, ENQUEUE, HALVES, GRAPH, HOWS };

typedef struct shape {
    uint64_t seed;
    int experts, topk, holes, dtype, scales, odtype, oscales, zdtype, zscales, ydtype, weights, slots, roww, choicew, bias, exact, how, bits, align, drop, compact, gaps;
    int64_t hidden, tokens[64], pad, cap;
} shape;

static size_t esize(int dtype) { return dtype == MPIX_EP_F64 ? 8 : dtype == MPIX_EP_F32 ? 4 : dtype == MPIX_EP_F16 || dtype == MPIX_EP_BF16 ? 2 : 1; }
static size_t ssize(int scales, int64_t hidden) { return scales ? (size_t)(hidden + 127) / 128 * (scales == MPIX_EP_SCALES_F32 ? 4 : 1) : 0; }

static void *dev(MPIX_Ep ep, size_t n) { /* collective */
    void *p;
    EP(MPIX_Ep_alloc(ep, (MPI_Count)n + 64, MPI_INFO_NULL, &p));
    CU(cudaMemset(p, 0xA5, n + 64));
    return p;
}
static void *cu(const void *from, size_t n) { /* from NULL: poison */
    void *p;
    CU(cudaMalloc(&p, n + 16));
    CU(cudaMemset(p, 0xA5, n + 16));
    if (from)
        CU(cudaMemcpy(p, from, n, cudaMemcpyDefault));
    return p;
}
static void *poison(size_t n) {
    void *p = malloc(n + 64);
    memset(p, 0xA5, n + 64);
    return p;
}
static void same(const char *what, const void *host, const void *gpu, size_t n) {
    char *g = malloc(n + 1);
    CU(cudaMemcpy(g, gpu, n, cudaMemcpyDefault));
    if (memcmp(host, g, n)) {
        size_t i = 0;
        while (g[i] == ((const char *)host)[i])
            i++;
        CHECK(0, "%s: byte %zu of %zu is %02x, on the host %02x", what, i, n, (unsigned char)g[i], ((const unsigned char *)host)[i]);
    }
    free(g);
}

static double value(int dtype, const void *row, int64_t j) {
    uint32_t u;
    float f;
    switch (dtype) {
    case MPIX_EP_F64: return ((const double *)row)[j];
    case MPIX_EP_F32: return ((const float *)row)[j];
    case MPIX_EP_BF16:
        u = (uint32_t)((const uint16_t *)row)[j] << 16;
        memcpy(&f, &u, 4);
        return f;
    default: {
        int h = ((const uint16_t *)row)[j], e = h >> 10 & 31, m = h & 1023;
        double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return h & 0x8000 ? -v : v;
    }
    }
}

/* Scales that are ordinary numbers. */
static void scales_make(int kind, uint64_t seed, uint64_t a, uint64_t b, int64_t hidden, void *to) {
    if (kind == MPIX_EP_SCALES_F32)
        g_row(seed, a, b, MPIX_EP_F32, (hidden + 127) / 128, to);
    for (int64_t i = 0; kind == MPIX_EP_SCALES_UE8M0 && i < (hidden + 127) / 128; i++)
        ((uint8_t *)to)[i] = (uint8_t)(120 + (g_mix(seed ^ a << 40 ^ b << 20 ^ (uint64_t)i) & 7));
}

/* One side's calls. */
typedef struct side {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    MPIX_Ep_counts c;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
} side;

static void side_init(side *s) {
    MPIX_INIT(&s->r);
    MPIX_INIT(&s->c);
    MPIX_INIT(&s->in);
    MPIX_INIT(&s->out);
    MPIX_INIT(&s->ci);
    MPIX_INIT(&s->co);
}

enum { DISPATCH = 1, COMBINE = 2 };
static void calls(side *s, int what, int how, cudaStream_t stream) {
    MPIX_Xfer xfer;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    if (how == BLOCKING) {
        if (what & DISPATCH)
            EP(MPIX_Ep_dispatch(s->h, &s->in, &s->out));
        if (what & COMBINE)
            EP(MPIX_Ep_combine(s->h, &s->ci, &s->co));
        return;
    }
    if (how == XFER) {
        if (what & DISPATCH)
            EP(MPIX_Ep_idispatch(s->h, &s->in, &s->out, &xfer));
        else
            EP(MPIX_Ep_icombine(s->h, &s->ci, &s->co, &xfer));
        EP(MPIX_Xfer_wait(&xfer));
        return;
    }
    if (how == GRAPH)
        CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (how == HALVES && what == DISPATCH) {
        EP(MPIX_Ep_dispatch_begin_enqueue(s->h, &s->in, &s->out, stream));
        EP(MPIX_Ep_dispatch_end_enqueue(s->h, stream));
    } else if (how == HALVES) {
        EP(MPIX_Ep_combine_begin_enqueue(s->h, &s->ci, &s->co, stream));
        EP(MPIX_Ep_combine_end_enqueue(s->h, stream));
    } else if (what == DISPATCH) {
        EP(MPIX_Ep_dispatch_enqueue(s->h, &s->in, &s->out, stream));
    } else {
        EP(MPIX_Ep_combine_enqueue(s->h, &s->ci, &s->co, stream));
    }
    if (how == GRAPH) {
        CU(cudaStreamEndCapture(stream, &graph));
        CU(cudaGraphInstantiate(&exec, graph, 0));
        for (int i = 0; i < 3; i++)
            CU(cudaGraphLaunch(exec, stream));
    }
    CU(cudaStreamSynchronize(stream));
    if (how == GRAPH) {
        CU(cudaGraphExecDestroy(exec));
        CU(cudaGraphDestroy(graph));
    }
    MPIX_Error e;
    MPIX_INIT(&e);
    EP(MPIX_Ep_get_async_error(s->ep, &e));
    CHECK(e.kind == 0, "an enqueued call failed: %s", e.text);
}

/* Partial sums were rounded once: against a sum in double. */
static void bound_check(const shape *s, const int32_t *owner, const int32_t *ids, const float *w, const char *y) {
    int64_t H = s->hidden;
    size_t yrow = (size_t)H * esize(s->ydtype);
    char *g = malloc((size_t)s->tokens[rank] * yrow + 16), *z = malloc((size_t)H * 8);
    double *sum = malloc((size_t)H * 8), *part = malloc((size_t)H * 8), *mag = malloc((size_t)H * 8), *rounded = malloc((size_t)H * 8);
    double unit = s->zdtype == MPIX_EP_BF16 ? 0x1p-8 : 0x1p-11;
    CU(cudaMemcpy(g, y, (size_t)s->tokens[rank] * yrow, cudaMemcpyDefault));
    for (int64_t t = 0; t < s->tokens[rank]; t++) {
        for (int64_t j = 0; j < H; j++)
            sum[j] = mag[j] = rounded[j] = 0;
        for (int r = 0; r < size; r++) {
            memset(part, 0, (size_t)H * 8);
            for (int k = 0; k < s->topk; k++) {
                int32_t id = ids[t * s->topk + k];
                if (id < 0 || owner[id] != r)
                    continue;
                g_row(s->seed + 7 + (uint64_t)id, (uint64_t)rank, (uint64_t)t, s->zdtype, H, z);
                for (int64_t j = 0; j < H; j++) {
                    double v = value(s->zdtype, z, j) * (s->choicew ? w[t * s->topk + k] : 1);
                    part[j] += v;
                    mag[j] += fabs(v);
                }
            }
            for (int64_t j = 0; j < H; j++) {
                sum[j] += part[j];
                rounded[j] += r == rank ? 0 : fabs(part[j]);
            }
        }
        for (int64_t j = 0; j < H; j++) {
            double got = value(s->ydtype, g + (size_t)t * yrow, j), most = unit * (rounded[j] + fabs(sum[j])) * 1.01 + 0x1p-19 * mag[j] + 0x1p-24;
            if (!(fabs(got - sum[j]) <= most)) {
                CHECK(0, "token %lld column %lld: %g, in double %g, allowed %g", (long long)t, (long long)j, got, sum[j], most);
                j = H, t = s->tokens[rank];
            }
        }
    }
    free(g), free(z), free(sum), free(part), free(mag), free(rounded);
}

/* Chunks of tokens (128) that go nowhere, or not to some rank, the first two among them: what the ring of partial sums then holds is older. */
static void gap_make(const shape *s, const int32_t *owner, int64_t t, int32_t *ids) {
    uint64_t chunk = (uint64_t)(t / 128), how = chunk < 2 ? 3 * (uint64_t)((rank + 1) % size) + 1 + chunk : g_mix(s->seed ^ (uint64_t)rank << 32 ^ chunk);
    for (int k = 0; k < s->topk && s->gaps; k++)
        if (ids[k] >= 0 && (how % 3 == 1 || (how % 3 == 2 && owner[ids[k]] == (int)(how / 3 % (uint64_t)size))))
            ids[k] = -1;
}

static void run_shape(MPIX_Ep gpu, MPIX_Ep_handle hg, MPIX_Ep host, MPIX_Ep_handle hh, const shape *s, const int32_t *owner) {
    int64_t T = s->tokens[rank], H = s->hidden;
    int K = s->topk, le = 0, layout_expert = !s->compact;
    for (int e = 0; e < s->experts; e++)
        le += owner[e] == rank;
    size_t row = (size_t)H * esize(s->dtype), stride = row + (size_t)s->pad * esize(s->dtype), srow = ssize(s->scales, H);
    side g = {.ep = gpu, .h = hg}, h = {.ep = host, .h = hh};
    side_init(&g);
    side_init(&h);
    /* inputs */
    char *x = poison((size_t)T * stride), *sc = poison((size_t)T * srow);
    int32_t *ids = malloc((size_t)T * (size_t)K * 4 + 4);
    void *idv = malloc((size_t)T * (size_t)K * 8 + 8);
    float *w = malloc((size_t)T * (size_t)K * 4 + 4);
    for (int64_t t = 0; t < T; t++) {
        g_row(s->seed, (uint64_t)rank, (uint64_t)t, s->dtype, H, x + (size_t)t * stride);
        if (s->dtype != s->odtype && t % 7 == 0) /* groups of zeros, tiny and huge numbers, infinities, NaNs */
            for (int64_t j = t % 3; j < H; j += 1 + t % 50) {
                static const uint16_t odd[] = {0, 0x8000, 0x0001, 0x7f7f, 0xff7f, 0x3f80, 0x0080, 0x7f80, 0x7fc0, 0xff80};
                uint16_t v = odd[(uint64_t)(t / 7 + j / 128) % (t % 21 == 0 ? 10 : 7)];
                memcpy(x + (size_t)t * stride + (size_t)j * esize(s->dtype) + (esize(s->dtype) == 4 ? 2 : 0), &v, 2);
            }
        scales_make(s->scales, s->seed + 1, (uint64_t)rank, (uint64_t)t, H, sc + (size_t)t * srow);
        g_ids(s->seed, rank, t, K, s->experts, s->holes, ids + t * K);
        gap_make(s, owner, t, ids + t * K);
        for (int k = 0; k < K; k++) {
            if (s->bits == 64)
                ((int64_t *)idv)[t * K + k] = ids[t * K + k];
            else
                ((int32_t *)idv)[t * K + k] = ids[t * K + k];
            w[t * K + k] = 0.25f + (float)((t * 7 + k * 3 + rank) % 11) / 7;
        }
    }
    char *dx = cu(x, (size_t)T * stride), *dsc = cu(sc, (size_t)T * srow);
    void *did = cu(idv, (size_t)T * (size_t)K * (size_t)s->bits / 8);
    float *dw = cu(w, (size_t)T * (size_t)K * 4);
    cudaStream_t stream;
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    /* route, on both sides */
    MPI_Count counts[2][6][300];
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < 2; i++) {
        side *q = i ? &h : &g;
        q->r.num_tokens = T;
        q->r.topk = K;
        q->r.idx_bits = s->bits;
        q->r.ids = i ? idv : did;
        q->c.recv_total = counts[i][0];
        q->c.recv_per_rank = counts[i][1];
        q->c.recv_per_expert = counts[i][2];
        q->c.expert_offset = layout_expert ? counts[i][3] : NULL;
        q->c.send_per_rank = counts[i][4];
        q->c.send_per_expert = counts[i][5];
        EP(MPIX_Ep_route(q->h, &q->r, &q->c));
    }
    CHECK(!memcmp(counts[0], counts[1], sizeof counts[0]), "counts differ from the host's: %lld and %lld rows", (long long)counts[0][0][0],
          (long long)counts[1][0][0]);
    int64_t total = counts[1][0][0], cap = s->drop ? total * s->cap / 8 : total + s->cap, rows = total < cap ? total : cap;
    /* dispatch */
    size_t orow = (size_t)H * esize(s->odtype), ostride = orow + (size_t)s->pad * esize(s->odtype), osrow = ssize(s->oscales, H);
    size_t nw = layout_expert ? 1 : (size_t)K;
    char *ox = dev(gpu, (size_t)cap * ostride), *osc = dev(gpu, (size_t)cap * osrow), *hx = poison((size_t)cap * ostride), *hsc = poison((size_t)cap * osrow);
    int32_t *osr = cu(NULL, (size_t)cap * 4), *hsr = poison((size_t)cap * 4);
    int64_t *ost = cu(NULL, (size_t)cap * 8), *hst = poison((size_t)cap * 8);
    float *ow = cu(NULL, (size_t)cap * nw * 4), *hw = poison((size_t)cap * nw * 4);
    for (int i = 0; i < 2; i++) {
        side *q = i ? &h : &g;
        q->in.hidden = H;
        q->in.x = (MPIX_Ep_rows){i ? x : dx, (MPI_Count)stride, s->dtype, s->scales, !s->scales ? NULL : i ? sc : dsc, 0};
        q->in.topk_weights = s->weights ? i ? w : dw : NULL;
        q->out.capacity_rows = cap;
        q->out.x = (MPIX_Ep_rows){i ? hx : ox, (MPI_Count)ostride, s->odtype, s->oscales, !s->oscales ? NULL : i ? hsc : osc, 0};
        q->out.src_rank = i ? hsr : osr;
        q->out.src_token = (MPI_Count *)(i ? hst : ost);
        q->out.topk_weights = s->weights ? i ? hw : ow : NULL;
    }
    CU(cudaDeviceSynchronize());
    for (int rep = 0; rep < 2; rep++)
        calls(&g, DISPATCH, s->how, stream);
    calls(&h, DISPATCH, BLOCKING, NULL);
    for (int64_t i = 0; i < rows; i++) /* what lies between rows is nobody's */
        memset(hx + (size_t)i * ostride + orow, 0xA5, ostride - orow);
    same("rows", hx, ox, (size_t)cap * ostride);
    if (s->oscales)
        same("scales", hsc, osc, (size_t)cap * osrow);
    same("source ranks", hsr, osr, (size_t)cap * 4);
    same("source tokens", hst, ost, (size_t)cap * 8);
    if (s->weights)
        same("weights", hw, ow, (size_t)cap * nw * 4);
    /* combine: what the experts made, told by (expert, source, token); in COMPACT by the rank */
    if (layout_expert && s->zdtype != MPIX_EP_BYTES) {
        size_t zrow = (size_t)H * esize(s->zdtype), zstride = zrow + (size_t)s->pad * esize(s->zdtype), zsrow = ssize(s->zscales, H), yrow = (size_t)H * esize(s->ydtype);
        char *z = poison((size_t)cap * zstride), *zs = poison((size_t)cap * zsrow), *bias = poison((size_t)T * yrow);
        float *zw = poison((size_t)cap * 4), *zv = poison((size_t)cap * 4);
        int e = 0, id = -1;
        for (int64_t i = 0; i < rows; i++) {
            while (e < le && i >= counts[1][3][e]) { /* the next expert of this rank that has rows from here */
                id++;
                while (owner[id] != rank)
                    id++;
                e++;
            }
            if (hsr[i] >= 0) {
                g_row(s->seed + 7 + (uint64_t)id, (uint64_t)hsr[i], (uint64_t)hst[i], s->zdtype, H, z + (size_t)i * zstride);
                scales_make(s->zscales, s->seed + 8, (uint64_t)hsr[i], (uint64_t)hst[i], H, zs + (size_t)i * zsrow);
            }
            zw[i] = 0.5f + (float)(i % 7);
            zv[i] = (float)(rank * 100000 + i);
        }
        for (int64_t t = 0; t < T; t++)
            g_row(s->seed + 9, (uint64_t)rank, (uint64_t)t, s->ydtype, H, bias + (size_t)t * yrow);
        char *dz = dev(gpu, (size_t)cap * zstride), *dzs = dev(gpu, (size_t)cap * zsrow), *dbias = cu(bias, (size_t)T * yrow);
        CU(cudaMemcpy(dz, z, (size_t)cap * zstride, cudaMemcpyDefault));
        CU(cudaMemcpy(dzs, zs, (size_t)cap * zsrow, cudaMemcpyDefault));
        float *dzw = cu(zw, (size_t)cap * 4), *dzv = cu(zv, (size_t)cap * 4);
        char *y = cu(NULL, (size_t)T * yrow), *hy = poison((size_t)T * yrow);
        float *ys = cu(NULL, (size_t)T * (size_t)K * 4), *hys = poison((size_t)T * (size_t)K * 4);
        for (int i = 0; i < 2; i++) {
            side *q = i ? &h : &g;
            q->ci.hidden = H;
            q->ci.x = (MPIX_Ep_rows){i ? z : dz, (MPI_Count)zstride, s->zdtype, s->zscales, !s->zscales ? NULL : i ? zs : dzs, 0};
            q->ci.row_weights = s->roww ? i ? zw : dzw : NULL;
            q->ci.topk_weights = s->choicew ? i ? w : dw : NULL;
            q->ci.slot_values = s->slots ? i ? zv : dzv : NULL;
            q->ci.num_bias = s->bias;
            for (int b = 0; b < s->bias; b++)
                q->ci.bias[b] = (MPIX_Ep_rows){i ? bias : dbias, 0, s->ydtype, 0, NULL, 0};
            q->ci.wire = i ? 0 : s->exact ? MPIX_EP_F32 : 0;
            q->co.y = (MPIX_Ep_rows){i ? hy : y, 0, s->ydtype, 0, NULL, 0};
            q->co.slot_values = s->slots ? i ? hys : ys : NULL;
        }
        CU(cudaDeviceSynchronize());
        for (int rep = 0; rep < 2; rep++)
            calls(&g, COMBINE, s->how, stream);
        calls(&h, COMBINE, BLOCKING, NULL);
        if (s->exact || (s->zdtype != MPIX_EP_BF16 && s->zdtype != MPIX_EP_F16) || size == 1)
            same("sums", hy, y, (size_t)T * yrow);
        else if (!s->roww && !s->bias && !s->drop)
            bound_check(s, owner, ids, w, y);
        if (s->slots)
            same("slot values", hys, ys, (size_t)T * (size_t)K * 4);
        EP(MPIX_Ep_dealloc(gpu, dz));
        EP(MPIX_Ep_dealloc(gpu, dzs));
        CU(cudaFree(dzw)); CU(cudaFree(dzv)); CU(cudaFree(y)); CU(cudaFree(ys)); CU(cudaFree(dbias));
        free(z), free(zs), free(zw), free(zv), free(hy), free(hys), free(bias);
    }
    EP(MPIX_Ep_dealloc(gpu, ox));
    EP(MPIX_Ep_dealloc(gpu, osc));
    CU(cudaFree(dx)); CU(cudaFree(dsc)); CU(cudaFree(did)); CU(cudaFree(dw)); CU(cudaFree(osr)); CU(cudaFree(ost)); CU(cudaFree(ow));
    CU(cudaStreamDestroy(stream));
    free(x), free(sc), free(ids), free(idv), free(w), free(hx), free(hsc), free(hsr), free(hst), free(hw);
}

/* Too little room and rows that differ: told alike, and the context goes on. */
static void run_errors(MPIX_Ep gpu, MPIX_Ep_handle h) {
    int32_t zero[4] = {0};
    int32_t *ids = cu(zero, sizeof zero);
    char *x = cu(NULL, 4 * 64), *o = dev(gpu, 256 * 64);
    side s = {.ep = gpu, .h = h};
    side_init(&s);
    s.r.num_tokens = 4;
    s.r.topk = 1;
    s.r.ids = ids;
    EP(MPIX_Ep_route(h, &s.r, NULL));
    s.in.hidden = 32;
    s.in.x = (MPIX_Ep_rows){x, 0, MPIX_EP_BF16, 0, NULL, 0};
    s.out.x.data = o;
    s.out.capacity_rows = 3; /* rank 0 gets 4 * size */
    int kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(kind == (rank == 0 ? MPIX_ERRK_TRUNCATE : MPIX_ERRK_REMOTE), "too little room on rank 0: kind %d", kind);
    s.out.capacity_rows = 256;
    s.in.hidden = rank == size - 1 && size > 1 ? 16 : 32;
    kind = g_kind(MPIX_Ep_dispatch(h, &s.in, &s.out));
    CHECK(size == 1 || kind == MPIX_ERRK_ARG || kind == MPIX_ERRK_REMOTE, "hidden differs: kind %d", kind);
    s.in.hidden = 32;
    EP(MPIX_Ep_dispatch(h, &s.in, &s.out));
    s.ci.hidden = 32;
    s.ci.x = s.in.x;
    s.ci.x.data = o;
    s.co.y.data = x;
    s.co.slot_values = (float *)ids; /* nobody gives any */
    kind = g_kind(MPIX_Ep_combine(h, &s.ci, &s.co));
    CHECK(kind == MPIX_ERRK_ARG, "slot values that nobody gives: kind %d", kind);
    s.co.slot_values = NULL;
    EP(MPIX_Ep_combine(h, &s.ci, &s.co));
    EP(MPIX_Ep_dealloc(gpu, o));
    CU(cudaFree(ids)); CU(cudaFree(x));
}

static void shape_make(shape *s, int i) {
    static const int dtypes[] = {MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_F32, MPIX_EP_F16, MPIX_EP_BYTES, MPIX_EP_F8E4M3, MPIX_EP_F8E5M2, MPIX_EP_F64};
    uint64_t rng = g_mix((uint64_t)i + 1717);
    s->seed = rng;
    s->dtype = s->odtype = s->zdtype = dtypes[i % 9];
    s->experts = (int)g_range(&rng, size, i % 4 == 1 ? 200 : 24);
    s->topk = (int)g_range(&rng, 1, s->experts < 8 ? s->experts : 8);
    s->holes = g_range(&rng, 0, 2) ? 0 : 40;
    s->hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300) : i % 10 == 9 ? 7168 / 4 * g_range(&rng, 1, 4) : 8 * g_range(&rng, 1, 200);
    s->scales = s->oscales = s->zscales = is_fp8(s->dtype) ? (int)g_range(&rng, 0, 2) : 0;
    s->ydtype = is_fp8(s->zdtype) || s->zdtype == MPIX_EP_BYTES ? MPIX_EP_BF16 : g_range(&rng, 0, 3) ? s->zdtype : MPIX_EP_F32;
    s->pad = g_range(&rng, 0, 1) ? 16 : 0;
    s->weights = (int)g_range(&rng, 0, 1);
    s->slots = (int)g_range(&rng, 0, 1);
    s->roww = g_range(&rng, 0, 2) == 0;
    s->choicew = (int)g_range(&rng, 0, 1);
    s->bias = g_range(&rng, 0, 2) == 0 ? (int)g_range(&rng, 1, 2) : 0;
    s->exact = g_range(&rng, 0, 1) && (s->zdtype == MPIX_EP_BF16 || s->zdtype == MPIX_EP_F16 || s->zdtype == MPIX_EP_F32 || is_fp8(s->zdtype));
    s->how = (int)g_range(&rng, 0, HOWS - 1);
    s->bits = g_range(&rng, 0, 1) ? 64 : 32;
    s->align = g_range(&rng, 0, 1) ? (int)g_range(&rng, 1, 16) : 1;
    s->drop = g_range(&rng, 0, 4) == 0;
    s->cap = s->drop ? g_range(&rng, 0, 8) : g_range(&rng, 0, 5);
    for (int r = 0; r < size; r++)
        s->tokens[r] = g_range(&rng, 0, 3) == 0 ? 0 : g_range(&rng, 1, i % 5 == 4 ? 700 : 60);
    s->gaps = i % 10 == 4; /* and then so many tokens, and rows so large as the context may have, that the ring is used (gpu_partial_bytes = 0) */
    for (int r = 0; s->gaps && r < size; r++)
        s->tokens[r] = 700 - s->tokens[r] % 100;
    if (i % 3 == 2) { /* rows become fp8 on the way */
        static const int from[] = {MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_F16, MPIX_EP_F32};
        s->dtype = from[g_range(&rng, 0, 3)];
        s->scales = 0;
        s->odtype = g_range(&rng, 0, 1) ? MPIX_EP_F8E4M3 : MPIX_EP_F8E5M2;
        s->oscales = (int)g_range(&rng, 1, 2);
        s->compact = (int)g_range(&rng, 0, 1);
    }
}

int main(int argc, char **argv) {
    int devices = 0, rounds = argc > 1 ? atoi(argv[1]) : 60, first = argc > 2 ? atoi(argv[2]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    for (int i = first; i < first + rounds; i++) {
        shape s;
        memset(&s, 0, sizeof s);
        shape_make(&s, i);
        int32_t owner[300];
        MPIX_Ep_config c;
        side g, h;
        MPIX_INIT(&c);
        for (int e = 0; e < s.experts; e++) /* every third time not in contiguous blocks */
            owner[e] = i % 3 == 0 && e ? (int)(g_mix(s.seed + (uint64_t)e) % (uint64_t)size) : (int)((int64_t)e * size / s.experts);
        c.expert_owner = owner;
        c.layout = s.compact ? MPIX_EP_COMPACT : MPIX_EP_EXPERT;
        c.expert_align = s.compact ? 1 : s.align;
        c.overflow = s.drop ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
        c.max_topk = 8;
        c.num_experts = s.experts;
        c.max_tokens = 700;
        c.max_row_bytes = s.hidden * 8 + 1024 < 40000 ? s.hidden * 8 + 1024 : 40000; /* memory for proxied peers goes by it */
        if (s.gaps)
            c.max_row_bytes = s.hidden * (int64_t)(esize(s.dtype) > esize(s.zdtype) ? esize(s.dtype) : s.exact && esize(s.zdtype) < 4 ? 4 : esize(s.zdtype)) +
                              (s.hidden + 127) / 128 * 4;
        c.timeout_s = 60;
        c.memkind = MPIX_EP_CUDA;
        c.num_sms = i % 4 == 3 ? 1 + i % 20 : 0;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &g.ep));
        EP(MPIX_Ep_handle_create(g.ep, &g.h));
        c.memkind = MPIX_EP_HOST;
        c.num_sms = 0;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &h.ep));
        EP(MPIX_Ep_handle_create(h.ep, &h.h));
        int before = failures;
        run_shape(g.ep, g.h, h.ep, h.h, &s, owner);
        if (failures > before)
            fprintf(stderr, "rank %d: in round %d: dtype %d -> %d (scales %d), sums of %d, hidden %lld experts %d topk %d align %d tokens %lld how %d exact %d drop %d compact %d\n",
                    rank, i, s.dtype, s.odtype, s.oscales, s.zdtype, (long long)s.hidden, s.experts, s.topk, s.align, (long long)s.tokens[rank], s.how, s.exact,
                    s.drop, s.compact);
        if (i == 0)
            run_errors(g.ep, g.h);
        EP(MPIX_Ep_free(&g.ep));
        EP(MPIX_Ep_free(&h.ep));
    }
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ep_expert: %d ranks on %d GPUs, %d rounds: %s\n", size, devices, rounds, all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
