/*
 * gpu/context.c - contexts in GPU memory against a reference of this program's own and, bitwise, against a context in host memory.
 *
 * Data and routings come from hashes of (seed, rank, token), so every rank knows what every other sends. Outputs are poisoned; what
 * lies behind the received rows must keep its poison. Where ranks are split into hosts and two hops are forced (or off), the bytes that go between hosts
 * are those of the (token, host) pairs (or of the (token, rank) pairs).
 */
#include "gpu.h"

static int rank, size, failures;
static int hosts = 1, host_of[64], hops = -1; /* hosts as the environment splits them; two hops: off, on, -1: as the routing says */

typedef struct shape {
    uint64_t seed;
    int experts, topk, holes, dtype, scales, ydtype, weights, slots, roww, how, bits, drop;
    int64_t hidden, tokens[64], es, row, srow, pad; /* bytes; pad: added to strides */
} shape;

static int owner_of(const shape *s, int e) {
    int q = s->experts / size, r = s->experts % size;
    return e < (q + 1) * r ? e / (q + 1) : q ? r + (e - (q + 1) * r) / q : 0;
}
static int first_of(const shape *s, int r) {
    int q = s->experts / size, m = s->experts % size;
    return r * q + (r < m ? r : m);
}

static void *dev(MPIX_Ep ep, size_t n) { /* collective */
    void *p;
    EP(MPIX_Ep_alloc(ep, (MPI_Count)n + 64, MPI_INFO_NULL, &p));
    CU(cudaMemset(p, 0xA5, n + 64));
    return p;
}
static void *cu(size_t n, int fill) {
    void *p;
    CU(cudaMalloc(&p, n + 16));
    CU(cudaMemset(p, fill, n + 16));
    return p;
}
static void *down(const void *p, size_t n) {
    void *h = malloc(n + 16);
    CU(cudaMemcpy(h, p, n, cudaMemcpyDefault));
    return h;
}

static float bf16f(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t fbf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void wait_call(int code, MPIX_Xfer *xfer) {
    EP(code);
    EP(MPIX_Xfer_wait(xfer));
}

/* Ranks of one host, split as the parameters say. */
static void find_hosts(void) {
    const char *reach = getenv("MPIX_EP_REACH"), *text = getenv("MPIX_EP_HOSTS"), *two = getenv("MPIX_EP_TWO_HOPS");
    hosts = reach && !strcmp(reach, "proxied") ? size : text && atoi(text) > 1 ? atoi(text) < size ? atoi(text) : size : 1;
    for (int r = 0; r < size; r++)
        host_of[r] = r * hosts / size;
    hops = hosts == 1 || (two && !strcmp(two, "off")) ? 0 : two && !strcmp(two, "on") ? 1 : -1;
}

/* What all ranks have sent to others' hosts, and how many (token, host) or (token, rank) pairs between hosts the routing has. Collective. */
static int64_t sent_bytes(MPIX_Ep ep) {
    int64_t bytes = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        EP(MPIX_Ep_get_peer(ep, r, &peer));
        bytes += peer.bytes;
    }
    MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return bytes;
}
static int64_t pairs_between(const shape *s) {
    int64_t n = 0;
    int32_t ids[16];
    for (int r = 0; r < size; r++)
        for (int64_t t = 0; t < s->tokens[r]; t++) {
            g_ids(s->seed, r, t, s->topk, s->experts, s->holes, ids);
            for (int to = 0; to < (hops ? hosts : size); to++) {
                int hit = 0;
                for (int k = 0; k < s->topk; k++)
                    hit |= ids[k] >= 0 && host_of[owner_of(s, ids[k])] != host_of[r] && (hops ? host_of[owner_of(s, ids[k])] : owner_of(s, ids[k])) == to;
                n += hit;
            }
        }
    return n;
}
/* n items of so many bytes; for each at most a word of 8 bytes and a READ behind which it goes, and for each pair of ranks an offer with its word. */
static void check_bytes(const char *what, int64_t got, int64_t n, int64_t item) {
    CHECK(got >= n * item && got <= n * (item + 32) + (int64_t)size * size * 256, "%s: %lld bytes went between hosts for %lld items of %lld", what, (long long)got,
          (long long)n, (long long)item);
}
static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* One routing, two dispatches and two combines in a GPU context; the same in a host context. */
static void run_shape(MPIX_Ep gpu, MPIX_Ep_handle hg, MPIX_Ep_handle hh, const shape *s) {
    int64_t T = s->tokens[rank], total = 0, most = 0;
    int K = s->topk;
    for (int r = 0; r < size; r++)
        most += s->tokens[r];
    size_t stride = (size_t)(s->row + s->pad), sstride = (size_t)s->srow;
    int ysize = s->ydtype == MPIX_EP_F64 ? 8 : s->ydtype == MPIX_EP_F32 ? 4 : 2;
    size_t yrow = (size_t)s->hidden * (size_t)ysize;
    /* reference of what comes here */
    int32_t *src_rank = malloc(((size_t)most + 1) * 4), *ids = malloc(((size_t)K + 1) * 4);
    int64_t *src_tok = malloc(((size_t)most + 1) * 8);
    int32_t *lids = malloc(((size_t)most * (size_t)K + 1) * 4);
    float *ws = malloc(((size_t)most * (size_t)K + 1) * 4);
    for (int r = 0; r < size; r++)
        for (int64_t t = 0; t < s->tokens[r]; t++) {
            int mine = 0;
            g_ids(s->seed, r, t, K, s->experts, s->holes, ids);
            for (int k = 0; k < K; k++) {
                int here = ids[k] >= 0 && owner_of(s, ids[k]) == rank;
                mine |= here;
                lids[total * K + k] = here ? ids[k] - first_of(s, rank) : -1;
                ws[total * K + k] = (float)(r * 1000 + t) + 0.125f * (float)k;
            }
            if (mine) {
                src_rank[total] = r;
                src_tok[total++] = t;
            }
        }
    int64_t cap = total + 3, kept = s->drop ? total / 2 : total; /* rows that there is room for */
    /* inputs */
    char *x = calloc((size_t)T * stride + 16, 1), *sc = calloc((size_t)T * sstride + 16, 1);
    void *idv = malloc((size_t)T * (size_t)K * 8 + 16);
    float *w = malloc((size_t)T * (size_t)K * 4 + 16);
    for (int64_t t = 0; t < T; t++) {
        g_row(s->seed, (uint64_t)rank, (uint64_t)t, s->dtype, s->hidden, x + (size_t)t * stride);
        if (s->srow)
            g_row(s->seed + 1, (uint64_t)rank, (uint64_t)t, MPIX_EP_F32, s->srow / 4, sc + (size_t)t * sstride);
        g_ids(s->seed, rank, t, K, s->experts, s->holes, ids);
        for (int k = 0; k < K; k++) {
            if (s->bits == 64)
                ((int64_t *)idv)[t * K + k] = ids[k];
            else
                ((int32_t *)idv)[t * K + k] = ids[k];
            w[t * K + k] = (float)(rank * 1000 + t) + 0.125f * (float)k;
        }
    }
    char *dx = cu((size_t)T * stride, 1), *dsc = cu((size_t)T * sstride, 1);
    void *did = cu((size_t)T * (size_t)K * 8, 1), *dw = cu((size_t)T * (size_t)K * 4, 1);
    CU(cudaMemcpy(dx, x, (size_t)T * stride, cudaMemcpyDefault));
    CU(cudaMemcpy(dsc, sc, (size_t)T * sstride, cudaMemcpyDefault));
    CU(cudaMemcpy(did, idv, (size_t)T * (size_t)K * (size_t)s->bits / 8, cudaMemcpyDefault));
    CU(cudaMemcpy(dw, w, (size_t)T * (size_t)K * 4, cudaMemcpyDefault));
    char *ox = dev(gpu, (size_t)cap * stride), *osc = dev(gpu, (size_t)cap * sstride + 4);
    int32_t *olid = cu((size_t)cap * (size_t)K * 4, 0xA5), *osr = cu((size_t)cap * 4, 0xA5);
    int64_t *ost = cu((size_t)cap * 8, 0xA5);
    float *ow = cu((size_t)cap * (size_t)K * 4, 0xA5);
    cudaStream_t stream;
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(cudaDeviceSynchronize());

    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = T;
    r.topk = K;
    r.idx_bits = s->bits;
    r.ids = did;
    MPI_Count recv_total = -1, per_rank[64], hper_rank[64], hrecv_total = -1, *pinned;
    CU(cudaHostAlloc((void **)&pinned, 8, cudaHostAllocDefault));
    MPIX_Ep_counts c;
    MPIX_INIT(&c);
    c.recv_total = s->how == 2 ? pinned : &recv_total;
    c.recv_per_rank = s->how == 2 ? NULL : per_rank;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = s->hidden;
    in.x = (MPIX_Ep_rows){dx, (MPI_Count)stride, s->dtype, s->scales, s->scales ? dsc : NULL, 0};
    in.topk_weights = s->weights ? dw : NULL;
    out.capacity_rows = s->drop ? kept : cap;
    out.x = (MPIX_Ep_rows){ox, (MPI_Count)stride, s->dtype, s->scales, s->scales ? osc : NULL, 0};
    out.local_ids = olid;
    out.src_rank = osr;
    out.src_token = (MPI_Count *)ost;
    out.topk_weights = s->weights ? ow : NULL;
    int64_t before = 0, between = pairs_between(s);
    for (int rep = 0; rep < 2; rep++) {
        MPIX_Xfer xfer;
        if (rep == 1)
            before = sent_bytes(gpu);
        if (s->how == 0) {
            if (rep == 0)
                EP(MPIX_Ep_route(hg, &r, &c));
            EP(MPIX_Ep_dispatch(hg, &in, &out));
        } else if (s->how == 1) {
            MPIX_Xfer first = MPIX_XFER_NULL;
            if (rep == 0)
                EP(MPIX_Ep_iroute(hg, &r, &c, &first));
            wait_call(MPIX_Ep_idispatch(hg, &in, &out, &xfer), &xfer);
            EP(MPIX_Xfer_wait(&first));
        } else {
            if (rep == 0)
                EP(MPIX_Ep_route_enqueue(hg, &r, &c, stream));
            EP(MPIX_Ep_dispatch_enqueue(hg, &in, &out, stream));
            CU(cudaStreamSynchronize(stream));
            recv_total = *pinned;
        }
    }
    if (hosts > 1 && hops >= 0)
        check_bytes("dispatch", sent_bytes(gpu) - before, between, up(up(s->row, 16) + up(s->srow, 16) + 8 + (hops ? 12 : 8) * 8, 128));
    CHECK(recv_total == total, "recv_total %lld, expected %lld", (long long)recv_total, (long long)total);
    char *gx = down(ox, (size_t)cap * stride), *gs = down(osc, (size_t)cap * sstride), *row = malloc(stride + 16);
    int32_t *gl = down(olid, (size_t)cap * (size_t)K * 4), *gr = down(osr, (size_t)cap * 4);
    int64_t *gt = down(ost, (size_t)cap * 8);
    float *gw = down(ow, (size_t)cap * (size_t)K * 4);
    for (int64_t i = 0; i < kept; i++) {
        g_row(s->seed, (uint64_t)src_rank[i], (uint64_t)src_tok[i], s->dtype, s->hidden, row);
        CHECK(!memcmp(gx + (size_t)i * stride, row, (size_t)s->row), "row %lld differs", (long long)i);
        if (s->srow) {
            g_row(s->seed + 1, (uint64_t)src_rank[i], (uint64_t)src_tok[i], MPIX_EP_F32, s->srow / 4, row);
            CHECK(!memcmp(gs + (size_t)i * sstride, row, (size_t)s->srow), "scales of row %lld differ", (long long)i);
        }
        CHECK(gr[i] == src_rank[i] && gt[i] == src_tok[i], "source of row %lld: %d, %lld", (long long)i, gr[i], (long long)gt[i]);
        CHECK(!memcmp(gl + i * K, lids + i * K, (size_t)K * 4), "local ids of row %lld", (long long)i);
        CHECK(!s->weights || !memcmp(gw + i * K, ws + i * K, (size_t)K * 4), "weights of row %lld", (long long)i);
    }
    for (int64_t j = kept * (int64_t)stride; j < cap * (int64_t)stride; j++)
        if ((unsigned char)gx[j] != 0xA5) {
            CHECK(0, "written behind the rows, byte %lld", (long long)j);
            break;
        }
    /* combine: the experts' rows are new data; the same in host memory */
    if (s->dtype != MPIX_EP_BYTES) {
        char *z = malloc((size_t)cap * stride + 16), *zs = malloc((size_t)cap * sstride + 16);
        float *zw = malloc((size_t)cap * 4 + 16), *zv = malloc((size_t)cap * (size_t)K * 4 + 16);
        for (int64_t i = 0; i < kept; i++) {
            g_row(s->seed + 7 + (uint64_t)rank, (uint64_t)src_rank[i], (uint64_t)src_tok[i], s->dtype, s->hidden, z + (size_t)i * stride);
            if (s->srow)
                g_row(s->seed + 8, (uint64_t)src_rank[i], (uint64_t)src_tok[i], MPIX_EP_F32, s->srow / 4, zs + (size_t)i * sstride);
            zw[i] = 0.5f + (float)(i % 7);
            for (int k = 0; k < K; k++)
                zv[i * K + k] = (float)(rank * 100000 + i * 16 + k);
        }
        float *dzw = dev(gpu, (size_t)cap * 4), *dzv = dev(gpu, (size_t)cap * (size_t)K * 4);
        CU(cudaMemcpy(ox, z, (size_t)kept * stride, cudaMemcpyDefault));
        CU(cudaMemcpy(osc, zs, (size_t)kept * sstride, cudaMemcpyDefault));
        CU(cudaMemcpy(dzw, zw, (size_t)kept * 4, cudaMemcpyDefault));
        CU(cudaMemcpy(dzv, zv, (size_t)kept * (size_t)K * 4, cudaMemcpyDefault));
        char *y = cu((size_t)T * yrow, 0xA5), *hy = malloc((size_t)T * yrow + 16);
        float *ys = cu((size_t)T * (size_t)K * 4, 0xA5), *hys = malloc((size_t)T * (size_t)K * 4 + 16);
        CU(cudaDeviceSynchronize());
        MPIX_Ep_combine_in ci;
        MPIX_Ep_combine_out co;
        MPIX_INIT(&ci);
        MPIX_INIT(&co);
        ci.hidden = s->hidden;
        ci.x = out.x;
        ci.row_weights = s->roww ? dzw : NULL;
        ci.slot_values = s->slots ? dzv : NULL;
        co.y.data = y;
        co.y.dtype = s->ydtype;
        co.slot_values = s->slots ? ys : NULL;
        for (int rep = 0; rep < 2; rep++) {
            MPIX_Xfer xfer;
            if (rep == 1)
                before = sent_bytes(gpu);
            if (s->how == 0)
                EP(MPIX_Ep_combine(hg, &ci, &co));
            else if (s->how == 1)
                wait_call(MPIX_Ep_icombine(hg, &ci, &co, &xfer), &xfer);
            else {
                EP(MPIX_Ep_combine_enqueue(hg, &ci, &co, stream));
                CU(cudaStreamSynchronize(stream));
            }
        }
        if (hosts > 1 && (hops == 1 || (hops == 0 && !s->drop))) { /* two hops: a request of 80 bytes and a sum, of fp8 rows in bf16, without scales */
            int64_t part = up(s->row * (is_fp8(s->dtype) ? 2 : 1), 16);
            check_bytes("combine", sent_bytes(gpu) - before, between, hops ? up(part + 4 * 8, 128) + 80 : up(up(s->row, 16) + up(s->srow, 16) + 4 + 4 * 8, 128));
        }
        char *gy = down(y, (size_t)T * yrow);
        float *gys = down(ys, (size_t)T * (size_t)K * 4);
        r.ids = idv;
        c.recv_total = &hrecv_total;
        c.recv_per_rank = hper_rank;
        EP(MPIX_Ep_route(hh, &r, &c));
        CHECK(hrecv_total == total && (s->how == 2 || !memcmp(per_rank, hper_rank, (size_t)size * sizeof *per_rank)), "counts differ from the host's");
        in.x.data = x, in.x.scales = s->scales ? sc : NULL, in.topk_weights = NULL;
        char *hx = malloc((size_t)cap * stride + 16), *hs = malloc((size_t)cap * sstride + 16);
        out.x.data = hx, out.x.scales = s->scales ? hs : NULL;
        out.local_ids = NULL, out.src_rank = NULL, out.src_token = NULL, out.topk_weights = NULL;
        EP(MPIX_Ep_dispatch(hh, &in, &out));
        for (int64_t i = 0; i < kept; i++)
            CHECK(!memcmp(hx + (size_t)i * stride, gx + (size_t)i * stride, (size_t)s->row), "row %lld differs from the host's", (long long)i);
        ci.x.data = z, ci.x.scales = s->scales ? zs : NULL;
        ci.row_weights = s->roww ? zw : NULL, ci.slot_values = s->slots ? zv : NULL;
        co.y.data = hy, co.slot_values = s->slots ? hys : NULL;
        EP(MPIX_Ep_combine(hh, &ci, &co));
        for (int64_t t = 0; t < T; t++)
            CHECK(!memcmp(hy + (size_t)t * yrow, gy + (size_t)t * yrow, yrow), "sum of token %lld differs from the host's", (long long)t);
        CHECK(!s->slots || !memcmp(hys, gys, (size_t)T * (size_t)K * 4), "slot values differ from the host's");
        for (int64_t t = 0; t < T && s->dtype == MPIX_EP_BF16 && s->ydtype == MPIX_EP_BF16 && !s->roww && !s->drop && hops >= 0; t++) { /* and the program's own sum */
            uint16_t *part = malloc((size_t)s->row + 16);
            float *sum = calloc((size_t)s->hidden, 4), *at_host = calloc((size_t)s->hidden, 4);
            int n = 0;
            g_ids(s->seed, rank, t, K, s->experts, s->holes, ids);
            for (int h = -1; h < (hops ? hosts : 0); h++) { /* -1: rank by rank, with two hops those of the own host; then sums of other hosts, rounded */
                int m = 0;
                for (int q = 0; q < size; q++) {
                    int there = 0;
                    for (int k = 0; k < K; k++)
                        there |= ids[k] >= 0 && owner_of(s, ids[k]) == q;
                    if (!there || (hops && (h < 0) != (host_of[q] == host_of[rank])) || (h >= 0 && host_of[q] != h))
                        continue;
                    g_row(s->seed + 7 + (uint64_t)q, (uint64_t)rank, (uint64_t)t, s->dtype, s->hidden, part);
                    for (int64_t j = 0; j < s->hidden; j++)
                        at_host[j] = m ? at_host[j] + bf16f(part[j]) : bf16f(part[j]);
                    m++;
                }
                for (int64_t j = 0; j < s->hidden && m; j++) {
                    float v = h < 0 ? at_host[j] : bf16f(fbf16(at_host[j]));
                    sum[j] = n ? sum[j] + v : v;
                }
                n += m;
            }
            for (int64_t j = 0; j < s->hidden; j++)
                if (fbf16(sum[j]) != ((uint16_t *)(gy + (size_t)t * yrow))[j]) {
                    CHECK(0, "token %lld element %lld: %g, expected %g", (long long)t, (long long)j, bf16f(((uint16_t *)(gy + (size_t)t * yrow))[j]), sum[j]);
                    break;
                }
            free(part), free(sum), free(at_host);
        }
        EP(MPIX_Ep_dealloc(gpu, dzw));
        EP(MPIX_Ep_dealloc(gpu, dzv));
        CU(cudaFree(y)); CU(cudaFree(ys));
        free(z), free(zs), free(zw), free(zv), free(hy), free(hys), free(gy), free(gys), free(hx), free(hs);
    }
    EP(MPIX_Ep_dealloc(gpu, ox));
    EP(MPIX_Ep_dealloc(gpu, osc));
    CU(cudaFree(dx)); CU(cudaFree(dsc)); CU(cudaFree(did)); CU(cudaFree(dw)); CU(cudaFree(olid)); CU(cudaFree(osr)); CU(cudaFree(ost)); CU(cudaFree(ow));
    CU(cudaFreeHost(pinned));
    CU(cudaStreamDestroy(stream));
    free(src_rank), free(src_tok), free(lids), free(ws), free(ids), free(x), free(sc), free(idv), free(w), free(gx), free(gs), free(gl), free(gr), free(gt),
        free(gw), free(row);
}

/* Errors: told with their kind, on all ranks, and the context goes on. */
static void run_errors(MPIX_Ep gpu, MPIX_Ep_handle h) {
    int32_t host_ids[8] = {0}, *ids = cu(64 * 4, 0);
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = 4;
    r.topk = 1;
    r.ids = rank == 0 ? host_ids : ids;
    int kind = g_kind(MPIX_Ep_route(h, &r, NULL));
    CHECK(kind == (rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE), "ids in host memory on rank 0: kind %d", kind);
    r.ids = ids; /* all to expert 0 */
    EP(MPIX_Ep_route(h, &r, NULL));
    char *x = cu(4 * 64, 3), *o = dev(gpu, 64 * 64);
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = 32;
    in.x = (MPIX_Ep_rows){x, 0, MPIX_EP_BF16, 0, NULL, 0};
    out.x.data = o;
    out.capacity_rows = 1; /* rank 0 gets 4 * size */
    kind = g_kind(MPIX_Ep_dispatch(h, &in, &out));
    CHECK(kind == (rank == 0 ? MPIX_ERRK_TRUNCATE : MPIX_ERRK_REMOTE), "too little room on rank 0: kind %d", kind);
    out.capacity_rows = 64;
    void *plain = cu(64 * 64, 0);
    out.x.data = rank == size - 1 ? plain : o;
    kind = g_kind(MPIX_Ep_dispatch(h, &in, &out));
    CHECK(kind == (rank == size - 1 ? MPIX_ERRK_UNSUPPORTED : MPIX_ERRK_REMOTE), "output outside MPIX_Ep_alloc: kind %d", kind);
    out.x.data = o;
    in.hidden = rank == size - 1 && size > 1 ? 16 : 32;
    kind = g_kind(MPIX_Ep_dispatch(h, &in, &out));
    CHECK(size == 1 || kind == MPIX_ERRK_ARG || kind == MPIX_ERRK_REMOTE, "hidden differs: kind %d", kind);
    in.hidden = 32;
    EP(MPIX_Ep_dispatch(h, &in, &out));
    void *much;
    kind = g_kind(MPIX_Ep_alloc(gpu, (MPI_Count)1 << 45, MPI_INFO_NULL, &much));
    CHECK(kind == MPIX_ERRK_NO_MEM || kind == MPIX_ERRK_REMOTE, "32 TB of GPU memory: kind %d", kind);
    EP(MPIX_Ep_dispatch(h, &in, &out)); /* and the context goes on */
    EP(MPIX_Ep_dealloc(gpu, o));
    CU(cudaFree(ids)); CU(cudaFree(x)); CU(cudaFree(plain));
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
    int kind = rank == 0 ? MPIX_ERRK_TIMEOUT : g_kind(MPIX_Ep_route(h, &r, NULL));
    CHECK(kind == MPIX_ERRK_TIMEOUT, "route without rank 0: kind %d", kind);
    CU(cudaDeviceSynchronize());
    void *p = cu(1 << 20, 1);
    CU(cudaFree(p));
    MPI_Barrier(MPI_COMM_WORLD);
    MPIX_Ep_free(&ep);
}

int main(int argc, char **argv) {
    int devices = 0;
    int ok = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (argc > 1 && !strcmp(argv[1], "--probe"))
        return !ok;
    int rounds = argc > 1 ? atoi(argv[1]) : 40, none = argc > 2 && !strcmp(argv[2], "none"); /* rows by copy engines */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaSetDevice(rank % devices));
    find_hosts();
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.max_topk = 8;
    c.num_experts = 0;
    c.max_tokens = 700;
    c.max_row_bytes = 40000;
    c.timeout_s = 60;
    for (int i = 0; i < rounds; i++) {
        uint64_t rng = g_mix((uint64_t)i + 17);
        shape s = {.seed = rng};
        static const int dtypes[] = {MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_BF16, MPIX_EP_F32, MPIX_EP_F16, MPIX_EP_BYTES, MPIX_EP_F8E4M3, MPIX_EP_F8E5M2, MPIX_EP_F64};
        s.dtype = dtypes[i % 9];
        s.experts = (int)g_range(&rng, size, 64);
        s.topk = (int)g_range(&rng, 1, s.experts < 8 ? s.experts : 8);
        s.holes = g_range(&rng, 0, 2) ? 0 : 40;
        s.hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300) : i % 10 == 9 ? 7168 / 4 * g_range(&rng, 1, 2) : 8 * g_range(&rng, 1, 200);
        s.es = s.dtype == MPIX_EP_F64 ? 8 : s.dtype == MPIX_EP_F32 ? 4 : s.dtype == MPIX_EP_BF16 || s.dtype == MPIX_EP_F16 ? 2 : 1;
        s.scales = is_fp8(s.dtype) ? (int)g_range(&rng, 0, 1) : 0;
        s.ydtype = is_fp8(s.dtype) ? MPIX_EP_BF16 : g_range(&rng, 0, 3) ? s.dtype : MPIX_EP_F32;
        s.row = s.hidden * s.es;
        s.srow = s.scales ? (s.hidden + 127) / 128 * 4 : 0;
        s.pad = g_range(&rng, 0, 1) ? 16 * s.es : 0;
        s.weights = (int)g_range(&rng, 0, 1);
        s.slots = (int)g_range(&rng, 0, 1);
        s.roww = (int)g_range(&rng, 0, 1);
        s.how = (int)g_range(&rng, 0, 2);
        s.bits = g_range(&rng, 0, 1) ? 64 : 32;
        s.drop = i > 0 && !none && g_range(&rng, 0, 3) == 0;
        for (int r = 0; r < size; r++)
            s.tokens[r] = g_range(&rng, 0, 3) == 0 ? 0 : g_range(&rng, 1, i % 5 == 4 ? 700 : 60);
        MPIX_Ep gpu, host;
        MPIX_Ep_handle hg, hh;
        c.num_experts = s.experts;
        c.overflow = s.drop ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
        c.memkind = MPIX_EP_CUDA;
        c.num_sms = none ? MPIX_EP_SMS_NONE : (int)g_range(&rng, 0, 5) * 5;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &gpu));
        EP(MPIX_Ep_handle_create(gpu, &hg));
        c.memkind = MPIX_EP_HOST;
        c.num_sms = 0;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &host));
        EP(MPIX_Ep_handle_create(host, &hh));
        int before = failures;
        run_shape(gpu, hg, hh, &s);
        if (failures > before)
            fprintf(stderr, "rank %d: in round %d: dtype %d hidden %lld experts %d topk %d tokens %lld how %d drop %d\n", rank, i, s.dtype, (long long)s.hidden,
                    s.experts, s.topk, (long long)s.tokens[rank], s.how, s.drop);
        if (i == 0)
            run_errors(gpu, hg);
        EP(MPIX_Ep_handle_free(&hg));
        EP(MPIX_Ep_free(&gpu));
        EP(MPIX_Ep_free(&host));
    }
    c.memkind = MPIX_EP_CUDA;
    c.overflow = MPIX_EP_OVERFLOW_ERROR;
    c.num_sms = none ? MPIX_EP_SMS_NONE : 0;
    if (size > 1)
        run_timeout(&c);
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ep_gpu: %d ranks on %d GPUs, %d rounds%s: %s\n", size, devices, rounds, none ? " by copy engines" : "", all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
