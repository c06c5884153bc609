/*
 * host_ll/context.c - the low-latency mode in GPU memory: bitwise against the same calls in host memory; in graphs, in halves, beside HT, under stress,
 * and beside a rank that does not come or dies.
 *
 *   ep_ll [all|shapes|stress|ordered|killed [rounds [iterations of stress]]]
 *
 * ordered: for compute-sanitizer, under which kernels do not run beside each other. Data and routings are hashes of (seed, rank, token). Outputs
 * are poisoned before every call, on both sides alike, so that what must not be touched is compared too.
 */
#include "gpu.h"

#include <signal.h>
#include <unistd.h>

/* LARGE: tokens of a batch that the kernel for small ones may not take; EXPERTS_MOST: likewise. TURNS: more than depth, so that banks are used again. */
enum { MOST = 48, LARGE = 700, TOPK = 8, ROW = 4096, EXPERTS_MOST = 1100, TURNS = 4 };

static int rank, size, devices, failures;

typedef struct shape {
    uint64_t seed;
    int layout, experts, topk, holes, align, drop, indtype, dtype, scales, ydtype, wire, weights, slots, roww, bias, how, buffer, bits, capacity_cut, sms, depth;
    int64_t hidden, most, tokens[64], rows;
    size_t xrow, row, srow, yrow; /* bytes */
} shape;

static int bytes_of(int dtype) { return dtype == MPIX_EP_F64 ? 8 : dtype == MPIX_EP_F32 ? 4 : dtype == MPIX_EP_BF16 || dtype == MPIX_EP_F16 ? 2 : 1; }

/* An array on both sides. */
typedef struct both { char *host, *dev; size_t bytes; } both;
static both both_make(size_t bytes) {
    both b = {malloc(bytes + 64), NULL, bytes};
    CU(cudaMalloc((void **)&b.dev, bytes + 64));
    memset(b.host, 0xA5, bytes + 64);
    CU(cudaMemset(b.dev, 0xA5, bytes + 64));
    return b;
}
static void both_up(const both *b) { CU(cudaMemcpy(b->dev, b->host, b->bytes, cudaMemcpyDefault)); }
static void both_poison(const both *b) {
    memset(b->host, 0xA5, b->bytes);
    CU(cudaMemset(b->dev, 0xA5, b->bytes));
}
static void both_compare(const both *b, const char *what) {
    char *got = malloc(b->bytes + 16);
    CU(cudaMemcpy(got, b->dev, b->bytes, cudaMemcpyDefault));
    size_t i = 0;
    while (i < b->bytes && got[i] == b->host[i])
        i++;
    CHECK(i == b->bytes, "%s differs from the host's at byte %zu of %zu: %02x, expected %02x", what, i, b->bytes, (unsigned char)got[i], (unsigned char)b->host[i]);
    free(got);
}
static void both_free(both *b) {
    free(b->host);
    CU(cudaFree(b->dev));
}

static void wait_call(int code, MPIX_Xfer *xfer) {
    EP(code);
    EP(MPIX_Xfer_wait(xfer));
}

static void gpu_dispatch(const shape *s, MPIX_Ep_handle h, const MPIX_Ep_dispatch_in *in, const MPIX_Ep_dispatch_out *out, cudaStream_t stream) {
    MPIX_Xfer xfer;
    if (s->how == 0)
        EP(MPIX_Ep_dispatch(h, in, out));
    else if (s->how == 1)
        wait_call(MPIX_Ep_idispatch(h, in, out, &xfer), &xfer);
    else if (s->how == 2)
        EP(MPIX_Ep_dispatch_enqueue(h, in, out, stream));
    else {
        EP(MPIX_Ep_dispatch_begin_enqueue(h, in, out, stream));
        EP(MPIX_Ep_dispatch_end_enqueue(h, stream));
    }
    CU(cudaStreamSynchronize(stream));
}
static void gpu_combine(const shape *s, MPIX_Ep_handle h, const MPIX_Ep_combine_in *in, const MPIX_Ep_combine_out *out, cudaStream_t stream) {
    MPIX_Xfer xfer;
    if (s->how == 0)
        EP(MPIX_Ep_combine(h, in, out));
    else if (s->how == 1)
        wait_call(MPIX_Ep_icombine(h, in, out, &xfer), &xfer);
    else if (s->how == 2)
        EP(MPIX_Ep_combine_enqueue(h, in, out, stream));
    else {
        EP(MPIX_Ep_combine_begin_enqueue(h, in, out, stream));
        EP(MPIX_Ep_combine_end_enqueue(h, stream));
    }
    CU(cudaStreamSynchronize(stream));
}

/* One routing, several dispatches and combines, in both memories. */
static void run_shape(MPIX_Ep_handle hg, MPIX_Ep_handle hh, const shape *s) {
    int64_t T = s->tokens[rank], K = s->topk, cap = s->rows;
    int expert = s->layout == MPIX_EP_EXPERT, local = s->experts / size + (rank < s->experts % size);
    size_t cells = (size_t)cap * (size_t)(expert ? 1 : K);
    both ids = both_make((size_t)(T * K * s->bits / 8)), x = both_make((size_t)T * s->xrow), xs = both_make((size_t)T * s->srow), w = both_make((size_t)(T * K * 4));
    both ox = both_make((size_t)cap * s->row), os = both_make((size_t)cap * s->srow), lid = both_make(cells * 4), sr = both_make((size_t)cap * 4),
         st = both_make((size_t)cap * 8), ow = both_make(cells * 4), cum = both_make((size_t)local * 8);
    both z = both_make((size_t)cap * s->row), zs = both_make((size_t)cap * s->srow), zw = both_make((size_t)cap * 4), zv = both_make(cells * 4);
    both y = both_make((size_t)T * s->yrow), ys = both_make((size_t)(T * K * 4)), bias = both_make((size_t)T * s->yrow);
    MPI_Count per_rank[2][64], per_expert[2][EXPERTS_MOST], offset[2][EXPERTS_MOST + 1], sends[2][3][EXPERTS_MOST];
    both in_rank = both_make((size_t)(T * size));
    cudaStream_t stream;
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int64_t t = 0; t < T; t++) {
        int32_t one[TOPK];
        g_ids(s->seed, rank, t, (int)K, s->experts, s->holes, one);
        for (int64_t k = 0; k < K; k++) {
            if (s->bits == 64)
                ((int64_t *)(void *)ids.host)[t * K + k] = one[k];
            else
                ((int32_t *)(void *)ids.host)[t * K + k] = one[k];
            ((float *)(void *)w.host)[t * K + k] = (float)(rank * 1000 + t) + 0.125f * (float)k;
        }
        g_row(s->seed + 3, (uint64_t)rank, (uint64_t)t, s->ydtype, s->hidden, bias.host + (size_t)t * s->yrow);
    }
    memset(cum.host, 0, cum.bytes);
    both_up(&ids), both_up(&w), both_up(&bias), both_up(&cum);
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = T;
    r.topk = (int)K;
    r.idx_bits = s->bits;
    both_poison(&in_rank);
    memset(sends, 0xA5, sizeof sends);
    for (int side = 0; side < 2; side++) { /* GPU, host */
        MPIX_Ep_counts counts;
        MPIX_INIT(&counts);
        counts.send_per_rank = sends[side][0];
        counts.send_per_expert = sends[side][1];
        if (s->seed % 3 == 0) /* which takes the kernel for large batches */
            counts.send_per_host = sends[side][2];
        counts.token_in_rank = (void *)(side ? in_rank.host : in_rank.dev);
        r.ids = side ? ids.host : ids.dev;
        EP(MPIX_Ep_route(side ? hh : hg, &r, s->seed % 4 ? &counts : NULL));
    }
    CHECK(!memcmp(sends[0], sends[1], sizeof sends[0]), "send_per_rank, send_per_expert or send_per_host differs");
    both_compare(&in_rank, "token_in_rank");
    both_free(&in_rank);
    for (int turn = 0; turn < (s->most > MOST ? 2 : TURNS); turn++) { /* large batches are slow in tests/emu */
        uint64_t seed = s->seed + 100 * (uint64_t)turn;
        for (int64_t t = 0; t < T; t++) {
            g_row(seed, (uint64_t)rank, (uint64_t)t, s->indtype, s->hidden, x.host + (size_t)t * s->xrow);
            if (s->srow && s->indtype == s->dtype)
                g_row(seed + 1, (uint64_t)rank, (uint64_t)t, MPIX_EP_F32, (int64_t)s->srow / 4, xs.host + (size_t)t * s->srow);
        }
        both_up(&x), both_up(&xs);
        both *const outs[] = {&ox, &os, &lid, &sr, &st, &ow};
        for (size_t i = 0; i < sizeof outs / sizeof *outs; i++)
            both_poison(outs[i]);
        MPIX_Ep_dispatch_in in;
        MPIX_Ep_dispatch_out out;
        for (int side = 0; side < 2; side++) { /* GPU, host */
#define AT(b) (side ? (void *)(b).host : (void *)(b).dev)
            MPIX_INIT(&in);
            MPIX_INIT(&out);
            int given = s->indtype == s->dtype ? s->scales : 0;
            in.hidden = s->hidden;
            in.x = (MPIX_Ep_rows){AT(x), 0, s->indtype, given, given ? AT(xs) : NULL, 0};
            in.topk_weights = s->weights ? AT(w) : NULL;
            out.capacity_rows = cap;
            out.x = (MPIX_Ep_rows){AT(ox), 0, s->dtype, s->scales, s->scales ? AT(os) : NULL, 0};
            out.local_ids = expert ? NULL : AT(lid);
            out.src_rank = AT(sr);
            out.src_token = AT(st);
            out.topk_weights = s->weights ? AT(ow) : NULL;
            out.cumulative = AT(cum);
            if (side || s->how < 2) { /* pageable counts need a call that is waited for */
                out.recv_per_rank = per_rank[side];
                out.recv_per_expert = per_expert[side];
                out.expert_offset = expert ? offset[side] : NULL;
            }
            CU(cudaDeviceSynchronize());
            if (side)
                EP(MPIX_Ep_dispatch(hh, &in, &out));
            else
                gpu_dispatch(s, hg, &in, &out, stream);
        }
        both_compare(&ox, "out.x"), both_compare(&os, "out.x.scales"), both_compare(&lid, "local_ids"), both_compare(&sr, "src_rank");
        both_compare(&st, "src_token"), both_compare(&ow, "topk_weights"), both_compare(&cum, "cumulative");
        if (s->how < 2) {
            CHECK(!memcmp(per_rank[0], per_rank[1], (size_t)size * sizeof per_rank[0][0]), "recv_per_rank differs");
            CHECK(!memcmp(per_expert[0], per_expert[1], (size_t)local * sizeof per_expert[0][0]), "recv_per_expert differs");
            CHECK(!expert || !memcmp(offset[0], offset[1], (size_t)(local + 1) * sizeof offset[0][0]), "expert_offset differs");
        }
        if (s->dtype == MPIX_EP_BYTES)
            continue;
        for (int64_t i = 0; i < cap; i++) {
            g_row(seed + 7, (uint64_t)rank, (uint64_t)i, s->dtype, s->hidden, z.host + (size_t)i * s->row);
            if (s->scales == MPIX_EP_SCALES_F32)
                g_row(seed + 8, (uint64_t)rank, (uint64_t)i, MPIX_EP_F32, (int64_t)s->srow / 4, zs.host + (size_t)i * s->srow);
            for (size_t j = 0; s->scales == MPIX_EP_SCALES_UE8M0 && j < s->srow; j++)
                zs.host[(size_t)i * s->srow + j] = (char)(120 + (i + (int64_t)j) % 9);
            ((float *)(void *)zw.host)[i] = 0.5f + (float)(i % 7);
        }
        for (size_t i = 0; i < cells; i++)
            ((float *)(void *)zv.host)[i] = (float)(rank * 100000) + (float)i;
        both_up(&z), both_up(&zs), both_up(&zw), both_up(&zv), both_poison(&y), both_poison(&ys);
        MPIX_Ep_rows buffer = {0};
        if (s->buffer) {
            EP(MPIX_Ep_combine_buffer(hg, &buffer));
            CU(cudaMemcpy2D(buffer.data, (size_t)buffer.stride, z.dev, s->row, s->row, (size_t)(cap < size * s->most ? cap : size * s->most),
                            cudaMemcpyDefault));
        }
        MPIX_Ep_combine_in ci;
        MPIX_Ep_combine_out co;
        for (int side = 0; side < 2; side++) {
            MPIX_INIT(&ci);
            MPIX_INIT(&co);
            ci.hidden = s->hidden;
            ci.x = (MPIX_Ep_rows){AT(z), 0, s->dtype, s->scales, s->scales ? AT(zs) : NULL, 0};
            if (!side && s->buffer)
                ci.x.data = buffer.data, ci.x.stride = buffer.stride;
            ci.row_weights = s->roww ? AT(zw) : NULL;
            ci.slot_values = s->slots ? AT(zv) : NULL;
            ci.wire = s->wire;
            ci.num_bias = s->bias;
            for (int b = 0; b < s->bias; b++)
                ci.bias[b] = (MPIX_Ep_rows){AT(bias), 0, s->ydtype, 0, NULL, 0};
            co.y = (MPIX_Ep_rows){AT(y), 0, s->ydtype, 0, NULL, 0};
            co.slot_values = s->slots ? AT(ys) : NULL;
            CU(cudaDeviceSynchronize());
            if (side)
                EP(MPIX_Ep_combine(hh, &ci, &co));
            else
                gpu_combine(s, hg, &ci, &co, stream);
        }
        both_compare(&y, "out.y"), both_compare(&ys, "out.slot_values");
    }
    both *const all[] = {&ids, &x, &xs, &w, &ox, &os, &lid, &sr, &st, &ow, &cum, &z, &zs, &zw, &zv, &y, &ys, &bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        both_free(all[i]);
    CU(cudaStreamDestroy(stream));
}

static void config_fill(MPIX_Ep_config *c, const shape *s, int cuda) {
    MPIX_INIT(c);
    c->mode = MPIX_EP_LL;
    c->layout = s->layout;
    c->memkind = cuda ? MPIX_EP_CUDA : MPIX_EP_HOST;
    c->num_sms = cuda ? s->sms : 0;
    c->max_topk = TOPK;
    c->num_experts = s->experts;
    c->expert_align = s->layout == MPIX_EP_EXPERT ? s->align : 0;
    c->overflow = s->drop ? MPIX_EP_OVERFLOW_DROP : MPIX_EP_OVERFLOW_ERROR;
    c->max_tokens = s->most;
    c->max_row_bytes = s->most > MOST ? 64 * 8 : ROW * 8;
    c->depth = s->depth;
    c->timeout_s = 60;
}

static void run_shapes(int rounds) {
    static const int dtypes[] = {MPIX_EP_BF16, MPIX_EP_F8E4M3, MPIX_EP_F32, MPIX_EP_BF16, MPIX_EP_F8E4M3, MPIX_EP_F16, MPIX_EP_F8E5M2, MPIX_EP_F64, MPIX_EP_BYTES};
    for (int i = 0; i < rounds; i++) {
        uint64_t rng = g_mix((uint64_t)i + 311);
        shape s = {.seed = rng, .layout = i % 2 ? MPIX_EP_EXPERT : MPIX_EP_SLOTS};
        s.dtype = s.indtype = dtypes[i % 9];
        s.most = i % 5 == 3 ? LARGE : MOST;
        s.experts = (int)g_range(&rng, size, s.most > MOST ? EXPERTS_MOST : 64);
        s.topk = (int)g_range(&rng, 1, s.experts < TOPK ? s.experts : TOPK);
        s.holes = g_range(&rng, 0, 2) ? 0 : 40;
        s.align = g_range(&rng, 0, 1) ? 1 : 8;
        s.drop = g_range(&rng, 0, 3) == 0;
        s.hidden = g_range(&rng, 0, 2) == 0 ? g_range(&rng, 1, 300) : i % 7 == 6 ? ROW : 16 * g_range(&rng, 1, 100);
        if (s.most > MOST)
            s.hidden = s.hidden % 64 + 1;
        s.scales = is_fp8(s.dtype) ? (int)g_range(&rng, 0, 2) : 0;
        if (s.scales && g_range(&rng, 0, 2))
            s.indtype = g_range(&rng, 0, 2) ? MPIX_EP_BF16 : MPIX_EP_F32; /* quantised on the way */
        if (s.scales == MPIX_EP_SCALES_UE8M0 && s.indtype == s.dtype)
            s.scales = MPIX_EP_SCALES_F32;
        s.ydtype = is_fp8(s.dtype) || g_range(&rng, 0, 3) == 0 ? MPIX_EP_BF16 : s.dtype == MPIX_EP_BYTES ? MPIX_EP_BF16 : s.dtype;
        s.wire = g_range(&rng, 0, 2) ? 0 : g_range(&rng, 0, 1) ? MPIX_EP_F32 : MPIX_EP_BF16;
        s.weights = (int)g_range(&rng, 0, 1);
        s.slots = g_range(&rng, 0, 2) == 0;
        s.roww = (int)g_range(&rng, 0, 1);
        s.bias = (int)g_range(&rng, 0, 2);
        s.how = (int)g_range(&rng, 0, 3);
        s.bits = g_range(&rng, 0, 1) ? 64 : 32;
        s.sms = g_range(&rng, 0, 1) ? 0 : (int)g_range(&rng, 1, 40);
        s.depth = 1 + (i + 1) % 3;
        s.buffer = s.layout == MPIX_EP_SLOTS && !s.scales && g_range(&rng, 0, 1);
        s.xrow = (size_t)s.hidden * (size_t)bytes_of(s.indtype);
        s.row = (size_t)s.hidden * (size_t)bytes_of(s.dtype);
        s.srow = !s.scales ? 0 : (size_t)((s.hidden + 127) / 128) * (s.scales == MPIX_EP_SCALES_F32 ? 4 : 1);
        if (s.scales == MPIX_EP_SCALES_UE8M0)
            s.srow = (size_t)((s.hidden + 127) / 128);
        s.yrow = (size_t)s.hidden * (size_t)bytes_of(s.ydtype);
        for (int r = 0; r < size; r++)
            s.tokens[r] = g_range(&rng, 0, 4) == 0 ? 0 : g_range(&rng, 1, s.most);
        s.rows = s.layout == MPIX_EP_SLOTS ? size * s.most : size * s.most * s.topk + 8 * s.experts;
        if (s.drop)
            s.rows = g_range(&rng, 1, s.rows / 3);
        MPIX_Ep gpu, host;
        MPIX_Ep_handle hg, hh;
        MPIX_Ep_config c;
        config_fill(&c, &s, 1);
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &gpu));
        EP(MPIX_Ep_handle_create(gpu, &hg));
        config_fill(&c, &s, 0);
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &host));
        EP(MPIX_Ep_handle_create(host, &hh));
        int before = failures;
        run_shape(hg, hh, &s);
        if (i % 2 == 0 || i % 5 == 0) { /* a handle in the place of one that has made calls */
            EP(MPIX_Ep_handle_free(&hg));
            EP(MPIX_Ep_handle_create(gpu, &hg));
            s.seed++;
            run_shape(hg, hh, &s);
        }
        if (failures > before)
            fprintf(stderr, "rank %d: round %d: layout %d dtype %d -> %d scales %d y %d wire %d hidden %lld experts %d topk %d tokens %lld how %d drop %d rows "
                    "%lld buffer %d roww %d slots %d bias %d align %d sms %d depth %d\n", rank, i, s.layout, s.indtype, s.dtype, s.scales, s.ydtype, s.wire,
                    (long long)s.hidden, s.experts, s.topk, (long long)s.tokens[rank], s.how, s.drop, (long long)s.rows, s.buffer, s.roww, s.slots, s.bias,
                    s.align, s.sms, s.depth);
        EP(MPIX_Ep_handle_free(&hg));
        EP(MPIX_Ep_free(&gpu));
        EP(MPIX_Ep_free(&host));
    }
}

/* ---- graphs, errors, stress: integers, whose sums are exact --------------------------------------------------------------------- */

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
    size_t rows = (size_t)(MOST * size * (expert ? KK : 1)), row = HIDDEN * sizeof(float);
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
    MPIX_INIT(&l->r); MPIX_INIT(&l->in); MPIX_INIT(&l->out); MPIX_INIT(&l->ci); MPIX_INIT(&l->co);
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
    CU(cudaFree(l->ids)); CU(cudaFree(l->x)); CU(cudaFree(l->y));
    CU(cudaFreeHost(l->hids)); CU(cudaFreeHost(l->hx)); CU(cudaFreeHost(l->hy));
    CU(cudaStreamDestroy(l->stream));
}
static float value_of(uint64_t content, int64_t t, int j) { return (float)((int)(g_mix(content + (uint64_t)rank * 131071 + (uint64_t)t * 31 + (uint64_t)j * 8191) % 199) - 99); }
static void lane_fill(lane *l, uint64_t seed, uint64_t content) {
    l->seed = seed;
    l->tokens = (int)(g_mix(seed ^ (uint64_t)rank * 7919) % (MOST + 1));
    l->r.num_tokens = l->tokens;
    for (int t = 0; t < l->tokens; t++) {
        g_ids(seed, rank, t, KK, EXPERTS, 15, l->hids + t * KK);
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
/* After a synchronization: each token's row comes back times its ranks (SLOTS, COMPACT) or its choices (EXPERT). */
static void lane_check(lane *l, uint64_t content, const char *what) {
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    EP(MPIX_Ep_get_config(l->ep, &c));
    for (int t = 0; t < l->tokens; t++) {
        int n = 0, wrong = 0;
        for (int q = 0; q < size; q++) {
            int there = 0;
            for (int k = 0; k < KK; k++)
                there += l->hids[t * KK + k] >= 0 && l->hids[t * KK + k] / (EXPERTS / size) == q;
            n += c.layout == MPIX_EP_EXPERT ? there : there > 0;
        }
        for (int j = 0; j < HIDDEN; j++)
            wrong += l->hy[t * HIDDEN + j] != (float)n * value_of(content, t, j);
        CHECK(!wrong, "%s: sum of token %d is wrong in %d places (seed %llu)", what, t, wrong, (unsigned long long)l->seed);
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
    if (rank == 0)
        out.x.data = host;
    kind = g_kind(MPIX_Ep_dispatch(l->h, &l->in, &out));
    CHECK(kind == (rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE), "output in host memory on rank 0: kind %d", kind);
    MPIX_Ep_dispatch_in in = l->in;
    in.hidden = rank == size - 1 ? HIDDEN / 2 : HIDDEN;
    kind = g_kind(MPIX_Ep_dispatch(l->h, &in, &l->out));
    CHECK(kind == (size > 1 ? MPIX_ERRK_ARG : 0), "hidden differs: kind %d", kind);
    free(host);
    lane_turn(l, 4, 0, "after errors");
}

/* Random routings; handles of both modes on streams of their own; ranks start them in different orders. */
static void run_stress(lane *l, int n, int iterations, int ordered) {
    for (int i = 0; i < iterations; i++) {
        uint64_t seed = g_mix((uint64_t)i + 77);
        for (int k = 0; k < n; k++) {
            lane *one = &l[ordered ? k : (k + rank + i) % n];
            lane_fill(one, seed + (uint64_t)(one - l), seed + 5 + (uint64_t)(one - l));
            lane_call(one, i % 3 == 2);
            CU(cudaMemcpyAsync(one->hy, one->y, MOST * HIDDEN * 4, cudaMemcpyDeviceToHost, one->stream));
            if (ordered)
                CU(cudaStreamSynchronize(one->stream));
        }
        for (int k = 0; k < n; k++) {
            CU(cudaStreamSynchronize(l[k].stream));
            lane_check(&l[k], seed + 5 + (uint64_t)k, "stress");
            CHECK(async_kind(l[k].ep) == 0, "an asynchronous error in iteration %d", i);
        }
        if (failures)
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

/* A rank that does not come, or ends: an error within the time limit, a stream that can be used, a context that can be freed. */
static void run_absent(int killed) {
    MPIX_Ep ep[3];
    lane l[3];
    lanes_open(ep, l, 1.0, 8);
    for (int i = 0; i < 2; i++) {
        l[i].seed = 5;
        lane_turn(&l[i], 6, 0, "before the end of a rank");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) {
        if (killed)
            raise(SIGKILL);
    } else {
        for (int i = 0; i < 2; i++) {
            int kind = g_kind(MPIX_Ep_dispatch(l[i].h, &l[i].in, &l[i].out));
            CHECK(kind == MPIX_ERRK_TIMEOUT || (killed && kind == MPIX_ERRK_PEER), "dispatch without the last rank: kind %d", kind);
            CHECK(g_kind(MPIX_Ep_combine(l[i].h, &l[i].ci, &l[i].co)) > 0, "a call of a failed context");
            CU(cudaMemsetAsync(l[i].x, 0, 64, l[i].stream));
            CU(cudaStreamSynchronize(l[i].stream));
        }
    }
    if (killed) {
        printf("ep_ll: rank %d: %s\n", rank, failures ? "FAILED" : "passed");
        fflush(stdout);
        _exit(failures != 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++)
        MPIX_Ep_free(&ep[i]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    int rounds = argc > 2 ? atoi(argv[2]) : 36, iterations = argc > 3 ? atoi(argv[3]) : 200, all = !strcmp(what, "all"), ordered = !strcmp(what, "ordered");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    if (!strcmp(what, "killed"))
        run_absent(1);
    if (all || ordered || !strcmp(what, "shapes"))
        run_shapes(rounds);
    if (all || ordered || !strcmp(what, "stress")) {
        MPIX_Ep ep[3];
        lane l[3];
        lanes_open(ep, l, 20, devices < size ? 8 : 0);
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
    if (all && size > 1)
        run_absent(0);
    int sum = 0;
    MPI_Allreduce(&failures, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ep_ll: %d ranks on %d GPUs, %s, %d rounds, %d iterations: %s\n", size, devices, what, rounds, iterations, sum ? "FAILED" : "passed");
    MPI_Finalize();
    return sum != 0;
}
