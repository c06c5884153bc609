/*
 * baseline_mpi.c - the same work by MPI_Alltoallv, as a competent user would write it: buffers are
 * made once, a token is packed once for each rank that needs it, its ids and weights lie behind the
 * row so that one exchange carries both, and a row is one element of an MPI datatype, so that
 * counts do not overflow. COMPACT rows then lie where they arrived; EXPERT rows are expanded from
 * there. On the way back COMPACT rows are exchanged where they lie and summed; EXPERT rows are
 * summed per token on the experts' rank first.
 */
#include "config.h"

#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

static size_t base_align(size_t n) { return (n + 15) / 16 * 16; }

static MPI_Datatype base_type(const bench *b, size_t bytes) {
    MPI_Datatype type;
    if (bytes > INT32_MAX)
        bench_die(b, "a row of %zu bytes is too long for MPI_Alltoallv", bytes);
    MPI_Type_contiguous((int)bytes, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
}

static void *base_array(const bench *b, size_t count, size_t size) {
    void *p = calloc(count + 1, size);
    if (!p)
        bench_die(b, "no memory for the baseline (%zu bytes)", count * size);
    return p;
}

void bench_base_create(const bench *b, const bench_ours *o, long n, long capacity,
                       long recv_capacity, bench_base *m) {
    size_t size = (size_t)b->size, k = (size_t)b->opt.topk, local = (size_t)bench_local_experts(b);
    int expert = b->opt.layout == MPIX_EP_EXPERT, fp8 = b->elem == 1;
    memset(m, 0, sizeof *m);
    m->n = n;
    m->capacity = capacity;
    m->recv_capacity = recv_capacity;
    m->send_capacity = n * (b->size < b->opt.topk ? b->size : b->opt.topk);
    /* Expanding needs the ids, even if nobody asked for metadata. */
    m->meta_at = (b->row_bytes + b->scale_bytes + 3) / 4 * 4;
    size_t meta = (b->opt.metadata ? 8 : expert ? 4 : 0) * k;
    m->record = meta || b->scale_bytes ? base_align(m->meta_at + meta) : b->row_bytes;
    m->wire = expert && fp8 ? MPIX_EP_BF16 : b->opt.dtype;
    m->ein_stride = b->scale_bytes ? base_align(b->row_bytes + b->scale_bytes) : b->row_bytes;
    m->back_record = expert ? (size_t)b->opt.hidden * bench_dtype_size(m->wire) : m->ein_stride;
    m->record_type = base_type(b, m->record);
    m->back_type = base_type(b, m->back_record);
    m->send_counts = base_array(b, size * 4, sizeof(int));
    m->send_at = m->send_counts + size;
    m->recv_counts = m->send_at + size;
    m->recv_at = m->recv_counts + size;
    m->place = base_array(b, (size_t)n * size, sizeof(int));
    m->send = bench_alloc(b, (size_t)m->send_capacity * m->record);
    m->recv = bench_alloc(b, (size_t)recv_capacity * m->record);
    m->x = o->x;
    m->x_scales = o->x_scales;
    m->local_ids = base_array(b, (size_t)recv_capacity * k, sizeof(int));
    m->weights = base_array(b, (size_t)(expert ? capacity : recv_capacity * (long)k),
                            sizeof(float));
    if (expert) {
        m->out = bench_alloc(b, (size_t)capacity * b->row_bytes);
        m->out_scales = bench_alloc(b, (size_t)capacity * b->scale_bytes);
        m->row_place = base_array(b, (size_t)recv_capacity * k, sizeof(int));
        m->per_expert = base_array(b, local, sizeof(long));
        m->offset = base_array(b, local + 1, sizeof(long));
        m->cursor = base_array(b, local, sizeof(long));
    }
    if (!b->has_combine)
        return;
    m->ein = bench_alloc(b, (size_t)capacity * m->ein_stride);
    m->back_send = expert ? bench_alloc(b, (size_t)recv_capacity * m->back_record) : m->ein;
    m->back_recv = bench_alloc(b, (size_t)m->send_capacity * m->back_record);
    m->y = bench_alloc(b, (size_t)n * b->y_bytes);
}

void bench_base_free(bench_base *m) {
    if (m->record_type) {
        MPI_Type_free(&m->record_type);
        MPI_Type_free(&m->back_type);
    }
    free(m->send_counts);
    free(m->place);
    free(m->send);
    free(m->recv);
    free(m->out);
    free(m->out_scales);
    if (m->back_send != m->ein)
        free(m->back_send);
    free(m->ein);
    free(m->back_recv);
    free(m->local_ids);
    free(m->weights);
    free(m->row_place);
    free(m->per_expert);
    free(m->offset);
    free(m->cursor);
    free(m->y);
    memset(m, 0, sizeof *m);
}

/* Which tokens go to which ranks, and how many come from each. */
static void base_counts(const bench *b, bench_base *m, const bench_plan *plan) {
    int size = b->size, k = plan->k;
    const int *owner = b->expert_owner;
    memset(m->send_counts, 0, (size_t)size * sizeof(int));
    memset(m->place, 0xff, (size_t)m->n * (size_t)size * sizeof(int));
    for (long t = 0; t < m->n; t++) {
        int *place = m->place + t * size;
        for (int i = 0; i < k; i++) {
            int32_t id = plan->ids[t * k + i];
            if (id >= 0 && place[owner[id]] < 0)
                place[owner[id]] = m->send_counts[owner[id]]++;
        }
    }
    MPI_Alltoall(m->send_counts, 1, MPI_INT, m->recv_counts, 1, MPI_INT, b->comm);
    int sent = 0, received = 0;
    for (int r = 0; r < size; r++) {
        m->send_at[r] = sent;
        m->recv_at[r] = received;
        sent += m->send_counts[r];
        received += m->recv_counts[r];
    }
    m->recv_rows = received;
}

static void base_pack(const bench *b, bench_base *m, const bench_plan *plan) {
    size_t meta = (size_t)plan->k * 4;
    int carry_ids = b->opt.metadata || b->opt.layout == MPIX_EP_EXPERT;
    for (long t = 0; t < m->n; t++) {
        const unsigned char *x = (const unsigned char *)m->x + (size_t)t * b->row_bytes;
        for (int r = 0; r < b->size; r++) {
            int place = m->place[t * b->size + r];
            if (place < 0)
                continue;
            unsigned char *to = m->send + (size_t)(m->send_at[r] + place) * m->record;
            memcpy(to, x, b->row_bytes);
            if (b->scale_bytes)
                memcpy(to + b->row_bytes, (unsigned char *)m->x_scales + (size_t)t * b->scale_bytes,
                       b->scale_bytes);
            if (carry_ids)
                memcpy(to + m->meta_at, plan->ids + t * plan->k, meta);
            if (b->opt.metadata)
                memcpy(to + m->meta_at + meta, plan->weights + t * plan->k, meta);
        }
    }
}

/* The ids behind row i, as local experts or -1, go to local_ids. */
static int *base_local_ids(const bench *b, bench_base *m, const bench_plan *plan, long i) {
    int first = b->expert_begin[b->rank], local = bench_local_experts(b), k = plan->k;
    int *out = m->local_ids + i * k;
    memcpy(out, m->recv + (size_t)i * m->record + m->meta_at, (size_t)k * sizeof(int));
    for (int j = 0; j < k; j++)
        out[j] = out[j] >= first && out[j] < first + local ? out[j] - first : -1;
    return out;
}

static void base_unpack_compact(const bench *b, bench_base *m, const bench_plan *plan) {
    size_t k = (size_t)plan->k;
    m->rows = m->recv_rows;
    if (!b->opt.metadata)
        return;
    for (long i = 0; i < m->recv_rows; i++) {
        base_local_ids(b, m, plan, i);
        memcpy(m->weights + (size_t)i * k, m->recv + (size_t)i * m->record + m->meta_at + k * 4,
               k * 4);
    }
}

static void base_zero(const bench *b, bench_base *m, long from, long to) {
    if (from >= to)
        return;
    memset((unsigned char *)m->out + (size_t)from * b->row_bytes, 0,
           (size_t)(to - from) * b->row_bytes);
    if (b->scale_bytes)
        memset((unsigned char *)m->out_scales + (size_t)from * b->scale_bytes, 0,
               (size_t)(to - from) * b->scale_bytes);
    memset(m->weights + from, 0, (size_t)(to - from) * sizeof(float));
}

static void base_unpack_expert(const bench *b, bench_base *m, const bench_plan *plan) {
    int local = bench_local_experts(b), k = plan->k, align = b->opt.expert_align;
    memset(m->per_expert, 0, (size_t)local * sizeof(long));
    for (long i = 0; i < m->recv_rows; i++) {
        const int *ids = base_local_ids(b, m, plan, i);
        for (int j = 0; j < k; j++)
            if (ids[j] >= 0)
                m->per_expert[ids[j]]++;
    }
    for (int e = 0; e < local; e++) {
        m->cursor[e] = m->offset[e];
        m->offset[e + 1] = m->offset[e] + (m->per_expert[e] + align - 1) / align * align;
        base_zero(b, m, m->offset[e] + m->per_expert[e], m->offset[e + 1]);
    }
    m->rows = m->offset[local];
    for (long i = 0; i < m->recv_rows; i++) {
        const unsigned char *from = m->recv + (size_t)i * m->record;
        for (int j = 0; j < k; j++) {
            int e = m->local_ids[i * k + j];
            m->row_place[i * k + j] = -1;
            if (e < 0)
                continue;
            long row = m->cursor[e]++;
            m->row_place[i * k + j] = (int)row;
            memcpy((unsigned char *)m->out + (size_t)row * b->row_bytes, from, b->row_bytes);
            if (b->scale_bytes)
                memcpy((unsigned char *)m->out_scales + (size_t)row * b->scale_bytes,
                       from + b->row_bytes, b->scale_bytes);
            if (b->opt.metadata)
                memcpy(m->weights + row, from + m->meta_at + (size_t)(k + j) * 4, sizeof(float));
        }
    }
}

void bench_base_bare(const bench *b, bench_base *m) {
    MPI_Alltoallv(m->send, m->send_counts, m->send_at, m->record_type, m->recv, m->recv_counts,
                  m->recv_at, m->record_type, b->comm);
}

void bench_base_dispatch(const bench *b, bench_base *m, const bench_plan *plan,
                         double phases[BASE_DISPATCH_PHASES]) {
    double t0 = bench_now_us();
    base_counts(b, m, plan);
    double t1 = bench_now_us();
    base_pack(b, m, plan);
    double t2 = bench_now_us();
    bench_base_bare(b, m);
    double t3 = bench_now_us();
    if (b->opt.layout == MPIX_EP_EXPERT)
        base_unpack_expert(b, m, plan);
    else
        base_unpack_compact(b, m, plan);
    phases[BASE_UNPACK] = bench_now_us() - t3;
    phases[BASE_EXCHANGE] = t3 - t2;
    phases[BASE_PACK] = t2 - t1;
    phases[BASE_COUNTS] = t1 - t0;
}

/* EXPERT: one row per token goes back, the weighted sum of its rows here. */
static void base_local_reduce(const bench *b, bench_base *m, const bench_plan *plan,
                              const void **rows, const void **scales, float *w) {
    int k = plan->k;
    for (long i = 0; i < m->recv_rows; i++) {
        int n = 0;
        for (int j = 0; j < k; j++) {
            int row = m->row_place[i * k + j];
            if (row < 0)
                continue;
            rows[n] = m->ein + (size_t)row * m->ein_stride;
            scales[n] = (const unsigned char *)rows[n] + b->row_bytes;
            w[n++] = m->weights[row];
        }
        bench_reduce_row(b->opt.dtype, b->opt.scale_kind, m->wire, (size_t)b->opt.hidden, n, rows,
                         scales, b->opt.metadata ? w : NULL,
                         m->back_send + (size_t)i * m->back_record);
    }
}

static void base_reduce(const bench *b, bench_base *m, const void **rows, const void **scales) {
    int scale_kind = b->opt.layout == MPIX_EP_EXPERT ? MPIX_EP_NO_SCALES : b->opt.scale_kind;
    for (long t = 0; t < m->n; t++) {
        int n = 0;
        for (int r = 0; r < b->size; r++) {
            int place = m->place[t * b->size + r];
            if (place < 0)
                continue;
            rows[n] = m->back_recv + (size_t)(m->send_at[r] + place) * m->back_record;
            scales[n] = (const unsigned char *)rows[n] + b->row_bytes;
            n++;
        }
        bench_reduce_row(m->wire, scale_kind, b->ydtype, (size_t)b->opt.hidden, n, rows, scales,
                         NULL, (unsigned char *)m->y + (size_t)t * b->y_bytes);
    }
}

void bench_base_combine(const bench *b, bench_base *m, const bench_plan *plan,
                        double phases[BASE_COMBINE_PHASES]) {
    size_t terms = (size_t)(b->size > plan->k ? b->size : plan->k) + 1;
    const void *rows[terms], *scales[terms]; /* a few thousand pointers at most */
    float w[terms];
    double t0 = bench_now_us();
    if (b->opt.layout == MPIX_EP_EXPERT)
        base_local_reduce(b, m, plan, rows, scales, w);
    double t1 = bench_now_us();
    MPI_Alltoallv(m->back_send, m->recv_counts, m->recv_at, m->back_type, m->back_recv,
                  m->send_counts, m->send_at, m->back_type, b->comm);
    double t2 = bench_now_us();
    base_reduce(b, m, rows, scales);
    phases[BASE_REDUCE] = bench_now_us() - t2;
    phases[BASE_BACK] = t2 - t1;
    phases[BASE_LOCAL_REDUCE] = t1 - t0;
}
