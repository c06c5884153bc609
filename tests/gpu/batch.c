/*
 * batch.c - one batch in GPU memory and in host memory.
 */
#include "batch.h"
#include "call.h"

#include <stdlib.h>
#include <string.h>

enum { MORE_ROWS = 3, CHUNK = 128 };

/* ---- calls in GPU memory --------------------------------------------------------------------- */

/* What all ranks have sent to others' hosts so far. Collective. */
static int64_t sent_bytes(MPIX_Ep ep) {
    int64_t bytes = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < t_size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        EP(MPIX_Ep_get_peer(ep, r, &peer));
        bytes += peer.bytes;
    }
    MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return bytes;
}

/* The GPU's call, reps times, and what the last one sent. */
static void gpu_calls(batch *b, void (*call)(side *, int, cudaStream_t)) {
    int counted = t_hosts > 1 && b->s->mode == MPIX_EP_HT;
    int64_t before = 0;
    CU(cudaDeviceSynchronize());
    for (int rep = 0; rep < b->s->reps; rep++) {
        if (counted && rep == b->s->reps - 1)
            before = sent_bytes(b->side[GPU].ep);
        call(&b->side[GPU], b->s->form, b->stream);
    }
    b->sent = counted ? sent_bytes(b->side[GPU].ep) - before : 0;
}

/* ---- contents -------------------------------------------------------------------------------- */

int64_t batch_id(const batch *b, int64_t t, int k) {
    const void *ids = b->ids.host;
    int64_t i = t * b->s->topk + k;
    return b->s->bits == 64 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
}

/* Of ordinary size, and no two alike. */
static float weight_of(int rank, int64_t t, int k) {
    return 0.25f + (float)((rank * 1000 + t) * 8 + k) * 0x1p-17f;
}

/* Scales that are ordinary numbers. */
static void scales_make(int kind, uint64_t seed, uint64_t a, uint64_t b, int64_t hidden, void *to) {
    int64_t n = (hidden + 127) / 128;
    if (kind == MPIX_EP_SCALES_F32)
        g_row(seed, a, b, MPIX_EP_F32, n, to);
    for (int64_t i = 0; kind == MPIX_EP_SCALES_UE8M0 && i < n; i++)
        ((uint8_t *)to)[i] = (uint8_t)(120 + (g_mix(seed ^ a << 40 ^ b << 20 ^ (uint64_t)i) & 7));
}

/* Chunks of tokens that go nowhere, or not to some rank, the first two among them: what the ring of
 * partial sums then holds is older. */
static void gap_make(const shape *s, int64_t t, int32_t *ids) {
    uint64_t chunk = (uint64_t)(t / CHUNK), size = (uint64_t)t_size;
    uint64_t how = g_mix(s->seed ^ (uint64_t)t_rank << 32 ^ chunk);
    if (chunk < 2)
        how = 3 * (((uint64_t)t_rank + 1) % size) + 1 + chunk;
    for (int k = 0; k < s->topk; k++)
        if (ids[k] >= 0 &&
            (how % 3 == 1 || (how % 3 == 2 && s->owner[ids[k]] == (int)(how / 3 % size))))
            ids[k] = -1;
}

/* Groups of zeros, tiny and huge numbers, infinities, NaNs. The row has elements of
 * 2 or 4 bytes. */
static void odd_make(const shape *s, int64_t t, char *row) {
    static const uint16_t odd[] = {0,      0x8000, 0x0001, 0x7f7f, 0xff7f,
                                   0x3f80, 0x0080, 0x7f80, 0x7fc0, 0xff80};
    size_t size = ref_size(s->dtype);
    for (int64_t j = t % 3; t % 7 == 0 && j < s->hidden; j += 1 + t % 50) {
        uint16_t v = odd[(uint64_t)(t / 7 + j / 128) % (t % 21 == 0 ? 10 : 7)];
        memcpy(row + (size_t)j * size + (size == 4 ? 2 : 0), &v, 2);
    }
}

static void choices_make(batch *b) {
    const shape *s = b->s;
    int64_t T = s->tokens[t_rank];
    int K = s->topk;
    for (int64_t t = 0; t < T; t++) {
        int32_t one[16];
        g_ids(s->seed, t_rank, t, K, s->experts, s->holes, one);
        if (s->gaps)
            gap_make(s, t, one);
        for (int k = 0; k < K; k++) {
            if (s->bits == 64)
                ((int64_t *)(void *)b->ids.host)[t * K + k] = one[k];
            else
                ((int32_t *)(void *)b->ids.host)[t * K + k] = one[k];
            ((float *)(void *)b->w.host)[t * K + k] = weight_of(t_rank, t, k);
        }
        g_row(s->seed + 9, (uint64_t)t_rank, (uint64_t)t, s->ydtype, s->hidden,
              b->bias.host + (size_t)t * b->yrow);
    }
    memset(b->cum.host, 0, b->cum.bytes);
    both_up(&b->ids), both_up(&b->w), both_up(&b->bias), both_up(&b->cum);
}

static void rows_make(batch *b) {
    const shape *s = b->s;
    for (int64_t t = 0; t < s->tokens[t_rank]; t++) {
        char *row = b->x.host + (size_t)t * b->stride;
        g_row(b->seed, (uint64_t)t_rank, (uint64_t)t, s->dtype, s->hidden, row);
        if (s->odd)
            odd_make(s, t, row);
        scales_make(s->scales, b->seed + 1, (uint64_t)t_rank, (uint64_t)t, s->hidden,
                    b->xs.host + (size_t)t * b->srow);
    }
    both_up(&b->x), both_up(&b->xs);
}

/* ---- what there is --------------------------------------------------------------------------- */

static void arrays_make(batch *b) {
    const shape *s = b->s;
    MPIX_Ep ep = s->mode == MPIX_EP_LL ? MPIX_EP_NULL : b->side[GPU].ep;
    size_t T = (size_t)s->tokens[t_rank], K = (size_t)s->topk, rows;
    b->ids = both_make(T * K * (size_t)s->bits / 8, NULL);
    b->w = both_make(T * K * 4, NULL);
    b->x = both_make(T * b->stride, NULL);
    b->xs = both_make(T * b->srow, NULL);
    b->bias = both_make(T * b->yrow, NULL);
    b->cum = both_make((size_t)s->experts * 8, NULL);
    b->in_rank = both_make(T * (size_t)t_size, NULL);
    choices_make(b);
    int64_t *ids = malloc(T * K * 8 + 8);
    REQUIRE(ids, "no memory");
    for (size_t i = 0; i < T * K; i++)
        ids[i] = batch_id(b, (int64_t)(i / K), (int)(i % K));
    b->plan = ref_plan_make(s->experts, s->owner, s->layout, s->align, s->most, (int64_t)T, (int)K,
                            ids);
    free(ids);
    int64_t total = b->plan->total[t_rank];
    b->capacity = s->mode == MPIX_EP_LL ? s->capacity_rows : total * s->keep / 8 + s->spare;
    b->rows = total < b->capacity ? total : b->capacity;
    rows = (size_t)b->capacity + MORE_ROWS;
    b->cells = rows * (s->layout == MPIX_EP_EXPERT ? 1 : K);
    b->ox = both_make(rows * b->ostride, ep);
    b->os = both_make(rows * b->osrow, ep);
    b->lid = both_make(b->cells * 4, NULL);
    b->sr = both_make(rows * 4, NULL);
    b->st = both_make(rows * 8, NULL);
    b->ow = both_make(b->cells * 4, NULL);
    b->z = both_make(rows * b->zstride, ep);
    b->zs = both_make(rows * b->zsrow, ep);
    b->zw = both_make(rows * 4, ep);
    b->zv = both_make(b->cells * 4, ep);
    b->y = both_make(T * b->yrow, NULL);
    b->ys = both_make(T * K * 4, NULL);
}

#define AT(array) (i == HOST ? (void *)(array).host : (void *)(array).dev)

static MPI_Count *counts_of(const batch *b, int i, int kind, unsigned wanted) {
    return wanted >> kind & 1 ? b->counts[i] + (size_t)kind * COUNTS_MOST : NULL;
}

static void route(batch *b, int i) {
    const shape *s = b->s;
    side *q = &b->side[i];
    q->r.num_tokens = s->tokens[t_rank];
    q->r.topk = s->topk;
    q->r.idx_bits = s->bits;
    q->r.ids = AT(b->ids);
    q->c.recv_total = counts_of(b, i, RECV_TOTAL, s->counts);
    q->c.recv_per_rank = counts_of(b, i, RECV_RANK, s->counts);
    q->c.recv_per_expert = counts_of(b, i, RECV_EXPERT, s->counts);
    q->c.expert_offset = counts_of(b, i, OFFSET, s->counts);
    q->c.send_per_rank = counts_of(b, i, SEND_RANK, s->counts);
    q->c.send_per_expert = counts_of(b, i, SEND_EXPERT, s->counts);
    q->c.send_per_host = counts_of(b, i, SEND_HOST, s->counts);
    q->c.token_in_rank = s->counts >> TOKEN_IN_RANK & 1 ? AT(b->in_rank) : NULL;
    side_route(q, s->counts != 0, i == HOST ? BLOCKING : s->route_form, b->stream);
}

static void counts_compare(const batch *b) {
    const MPI_Count *gpu = b->counts[GPU], *host = b->counts[HOST];
    for (int i = 0; i < COUNTS * COUNTS_MOST; i++)
        if (!CHECK(gpu[i] == host[i], "counts of kind %d differ at %d: %lld, on the host %lld",
                   i / COUNTS_MOST, i % COUNTS_MOST, (long long)gpu[i], (long long)host[i]))
            break;
}

static void routed(batch *b) {
    if (b->compared)
        return;
    side_routed(&b->side[GPU]);
    counts_compare(b);
    t_check_received(b->plan, &b->side[HOST].c);
    both_compare(&b->in_rank, "token_in_rank");
    b->compared = 1;
}

batch *batch_open(const shape *s, const side *gpu, const side *host) {
    batch *b = calloc(1, sizeof *b);
    size_t hidden = (size_t)s->hidden, pad = (size_t)s->pad, bytes = COUNTS * COUNTS_MOST * 8;
    REQUIRE(b, "no memory");
    b->s = s;
    b->seed = s->seed;
    b->side[GPU] = *gpu;
    b->side[HOST] = *host;
    side_init(&b->side[GPU]);
    side_init(&b->side[HOST]);
    b->row = hidden * ref_size(s->dtype);
    b->orow = hidden * ref_size(s->odtype);
    b->zrow = hidden * ref_size(s->zdtype);
    b->yrow = hidden * ref_size(s->ydtype);
    b->stride = (hidden + pad) * ref_size(s->dtype);
    b->ostride = (hidden + pad) * ref_size(s->odtype);
    b->zstride = (hidden + pad) * ref_size(s->zdtype);
    b->srow = ref_scales(s->scales, s->hidden);
    b->osrow = ref_scales(s->oscales, s->hidden);
    b->zsrow = ref_scales(s->zscales, s->hidden);
    CU(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    if (s->route_form == ENQUEUE) /* which writes to pinned memory only */
        CU(cudaHostAlloc((void **)&b->counts[GPU], bytes, cudaHostAllocDefault));
    else
        b->counts[GPU] = malloc(bytes);
    b->counts[HOST] = malloc(bytes);
    REQUIRE(b->counts[GPU] && b->counts[HOST], "no memory");
    memset(b->counts[GPU], 0, bytes);
    memset(b->counts[HOST], 0, bytes);
    arrays_make(b);
    CU(cudaDeviceSynchronize());
    route(b, HOST);
    route(b, GPU);
    if (s->route_form == BLOCKING)
        routed(b);
    return b;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* LL's dispatch gives counts; pageable ones need a call that is waited for. */
static int counted(const batch *b, int i) {
    return b->s->mode == MPIX_EP_LL && (i == HOST || b->s->form <= XFER);
}

static void dispatch_fill(batch *b, int i) {
    const shape *s = b->s;
    side *q = &b->side[i];
    int ll = s->mode == MPIX_EP_LL;
    q->in.hidden = s->hidden;
    q->in.x = (MPIX_Ep_rows){AT(b->x),  ll ? 0 : (MPI_Count)b->stride, s->dtype,
                             s->scales, s->scales ? AT(b->xs) : NULL,  0};
    q->in.topk_weights = s->weights ? AT(b->w) : NULL;
    q->out.capacity_rows = b->capacity;
    q->out.x = (MPIX_Ep_rows){AT(b->ox),  ll ? 0 : (MPI_Count)b->ostride, s->odtype,
                              s->oscales, s->oscales ? AT(b->os) : NULL,  0};
    q->out.local_ids = s->layout == MPIX_EP_EXPERT ? NULL : AT(b->lid);
    q->out.src_rank = AT(b->sr);
    q->out.src_token = AT(b->st);
    q->out.topk_weights = s->weights ? AT(b->ow) : NULL;
    q->out.cumulative = ll && s->form != GRAPH ? AT(b->cum) : NULL; /* a graph runs thrice */
    if (counted(b, i)) {
        q->out.recv_per_rank = counts_of(b, i, RECV_RANK, ~0u);
        q->out.recv_per_expert = counts_of(b, i, RECV_EXPERT, ~0u);
        q->out.expert_offset = s->layout == MPIX_EP_EXPERT ? counts_of(b, i, OFFSET, ~0u) : NULL;
    }
}

/* A received row, which the GPU has like the host, against the reference. */
static void row_check(const batch *b, int64_t i, char *want) {
    const shape *s = b->s;
    const ref_row *row = &b->plan->rows[t_rank][i];
    const int32_t *src = (void *)b->sr.host, *lid = (void *)b->lid.host;
    const int64_t *token = (void *)b->st.host;
    const float *w = (void *)b->ow.host;
    int K = s->topk, expert = s->layout == MPIX_EP_EXPERT;
    CHECK(src[i] == row->src && token[i] == row->token, "row %lld is token %lld of rank %d",
          (long long)i, (long long)token[i], src[i]);
    if (row->src < 0)
        return;
    g_row(b->seed, (uint64_t)row->src, (uint64_t)row->token, s->dtype, s->hidden, want);
    if (s->dtype == s->odtype && s->scales == s->oscales && !s->odd)
        CHECK(!memcmp(b->ox.host + (size_t)i * b->ostride, want, b->row), "row %lld differs",
              (long long)i);
    for (int k = 0; k < K; k++) {
        int64_t e = ref_choice(b->plan, row->src, row->token, k), at = expert ? i : i * K + k;
        int here = e >= 0 && b->plan->owner[e] == t_rank;
        CHECK(expert || lid[at] == (here ? b->plan->local[e] : -1), "local id %d of row %lld: %d",
              k, (long long)i, lid[at]);
        CHECK(!s->weights || (expert && k != row->choice) ||
                  w[at] == weight_of(row->src, row->token, k),
              "weight %d of row %lld: %g", k, (long long)i, (double)w[at]);
    }
}

void batch_dispatch(batch *b, int turn) {
    const shape *s = b->s;
    both *const outs[] = {&b->ox, &b->os, &b->lid, &b->sr, &b->st, &b->ow};
    static const char *const names[] = {"out.x",    "out.x.scales", "local_ids",
                                        "src_rank", "src_token",    "topk_weights"};
    char *want = malloc(b->row + 16);
    REQUIRE(want, "no memory");
    b->seed = s->seed + 100 * (uint64_t)turn;
    rows_make(b);
    for (int i = 0; i < 6; i++)
        both_poison(outs[i]);
    dispatch_fill(b, GPU);
    dispatch_fill(b, HOST);
    gpu_calls(b, side_dispatch);
    routed(b);
    side_dispatch(&b->side[HOST], BLOCKING, NULL);
    for (int64_t i = 0; i < b->rows; i++) /* what lies between rows is nobody's */
        memset(b->ox.host + (size_t)i * b->ostride + b->orow, POISON, b->ostride - b->orow);
    for (int i = 0; i < 6; i++)
        both_compare(outs[i], names[i]);
    both_compare(&b->cum, "cumulative");
    if (counted(b, HOST)) {
        const MPIX_Ep_dispatch_out *out = &b->side[HOST].out;
        MPIX_Ep_counts c;
        MPIX_INIT(&c);
        c.recv_per_rank = out->recv_per_rank;
        c.recv_per_expert = out->recv_per_expert;
        c.expert_offset = out->expert_offset;
        t_check_received(b->plan, &c);
    }
    if (counted(b, GPU))
        counts_compare(b);
    for (int64_t i = 0; i < b->rows; i++)
        row_check(b, i, want);
    free(want);
}

/* ---- combine --------------------------------------------------------------------------------- */

void batch_back(const batch *b, int64_t key, int src, int64_t token, void *row) {
    g_row(b->seed + 7 + (uint64_t)key, (uint64_t)src, (uint64_t)token, b->s->zdtype, b->s->hidden,
          row);
}

/* The experts' rows. In LL places that hold none have numbers too, which nobody may read. */
static void back_make(batch *b) {
    const shape *s = b->s;
    float *zw = (void *)b->zw.host, *zv = (void *)b->zv.host;
    both_poison(&b->z), both_poison(&b->zs);
    for (int64_t i = 0; i < b->capacity; i++) {
        char *row = b->z.host + (size_t)i * b->zstride, *scales = b->zs.host + (size_t)i * b->zsrow;
        ref_row from = {-1, -1, -1};
        if (i < b->plan->total[t_rank])
            from = b->plan->rows[t_rank][i];
        if (from.src < 0 && s->mode == MPIX_EP_HT)
            continue;
        int64_t key = t_rank;
        if (from.src >= 0 && s->layout == MPIX_EP_EXPERT)
            key = ref_choice(b->plan, from.src, from.token, from.choice);
        if (from.src < 0)
            from.src = t_size, from.token = i;
        batch_back(b, key, from.src, from.token, row);
        scales_make(s->zscales, b->seed + 8, (uint64_t)from.src, (uint64_t)from.token, s->hidden,
                    scales);
    }
    for (int64_t i = 0; i < b->capacity; i++)
        zw[i] = 0.5f + (float)(i % 7);
    for (size_t i = 0; i < b->cells; i++)
        zv[i] = (float)(t_rank * 100000) + (float)i;
    both_up(&b->z), both_up(&b->zs), both_up(&b->zw), both_up(&b->zv);
}

static void combine_fill(batch *b, int i) {
    const shape *s = b->s;
    side *q = &b->side[i];
    q->ci.hidden = s->hidden;
    q->ci.x = (MPIX_Ep_rows){AT(b->z),
                             s->mode == MPIX_EP_LL ? 0 : (MPI_Count)b->zstride,
                             s->zdtype,
                             s->zscales,
                             s->zscales ? AT(b->zs) : NULL,
                             0};
    q->ci.row_weights = s->roww ? AT(b->zw) : NULL;
    q->ci.topk_weights = s->choicew ? AT(b->w) : NULL;
    q->ci.slot_values = s->slots ? AT(b->zv) : NULL;
    q->ci.num_bias = s->bias;
    for (int n = 0; n < s->bias; n++)
        q->ci.bias[n] = (MPIX_Ep_rows){AT(b->bias), 0, s->ydtype, 0, NULL, 0};
    q->ci.wire = i == HOST ? s->host_wire : s->wire;
    q->co.y = (MPIX_Ep_rows){AT(b->y), 0, s->ydtype, 0, NULL, 0};
    q->co.slot_values = s->slots ? AT(b->ys) : NULL;
    if (i == GPU && s->buffer) { /* the rows lie there instead */
        MPIX_Ep_rows buffer = {0};
        int64_t rows = b->capacity < t_size * s->most ? b->capacity : t_size * s->most;
        EP(MPIX_Ep_combine_buffer(q->h, &buffer));
        CU(cudaMemcpy2D(buffer.data, (size_t)buffer.stride, b->z.dev, b->zstride, b->zrow,
                        (size_t)rows, cudaMemcpyDefault));
        q->ci.x.data = buffer.data;
        q->ci.x.stride = buffer.stride;
    }
}

void batch_combine(batch *b, int turn) {
    b->seed = b->s->seed + 100 * (uint64_t)turn;
    back_make(b);
    both_poison(&b->y), both_poison(&b->ys);
    combine_fill(b, GPU);
    combine_fill(b, HOST);
    gpu_calls(b, side_combine);
    side_combine(&b->side[HOST], BLOCKING, NULL);
    if (!b->s->inexact)
        both_compare(&b->y, "out.y");
    both_compare(&b->ys, "out.slot_values");
}

void batch_close(batch *b) {
    both *const all[] = {&b->ids, &b->w,  &b->x,   &b->xs, &b->bias, &b->cum, &b->in_rank,
                         &b->ox,  &b->os, &b->lid, &b->sr, &b->st,   &b->ow,  &b->z,
                         &b->zs,  &b->zw, &b->zv,  &b->y,  &b->ys};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        both_free(all[i]);
    if (b->s->route_form == ENQUEUE)
        CU(cudaFreeHost(b->counts[GPU]));
    else
        free(b->counts[GPU]);
    free(b->counts[HOST]);
    ref_plan_free(b->plan);
    CU(cudaStreamDestroy(b->stream));
    free(b);
}

/* ---- programs -------------------------------------------------------------------------------- */

int batch_program(int *argc, char ***argv, const char *name) {
    int devices = 0;
    setenv("MPIX_EP_TWO_HOPS", "auto", 0); /* or t_init turns them off */
    t_init(argc, argv, name);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(t_rank % devices));
    return devices;
}

void batch_contexts(MPIX_Ep_config *c, int sms, side *gpu, side *host) {
    c->memkind = MPIX_EP_CUDA;
    c->num_sms = sms;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, c, MPI_INFO_NULL, &gpu->ep));
    EP(MPIX_Ep_handle_create(gpu->ep, &gpu->h));
    c->memkind = MPIX_EP_HOST;
    c->num_sms = 0;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, c, MPI_INFO_NULL, &host->ep));
    EP(MPIX_Ep_handle_create(host->ep, &host->h));
}

void batch_contexts_free(side *gpu, side *host) {
    EP(MPIX_Ep_handle_free(&gpu->h));
    EP(MPIX_Ep_free(&gpu->ep));
    EP(MPIX_Ep_free(&host->ep));
}
