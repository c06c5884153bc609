/*
 * cuda_base.c - the same work without the library, as a competent user would write it in GPU
 * memory: a kernel finds each token's places, the counts go to the host and by MPI to the peers; a
 * kernel packs rows with their ids and weights behind them, one pass over the tokens, the own
 * rank's straight to where they are received; one grouped exchange by NCCL, or by MPI_Alltoallv
 * through pinned host memory; a kernel spreads what travelled beside the rows. On the way back rows
 * go where they lie, and a kernel sums.
 */
#include "config.h"

#ifdef HAVE_CUDA
#include "bench/cuda.h"
#include "bench/nccl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_NCCL
static void check_nccl(const bench *b, ncclResult_t err, const char *call) {
    if (err != ncclSuccess)
        bench_die(b, "%s: NCCL error %d", call, (int)err);
}
#define NCCL(call) check_nccl(x->b, call, #call)

static void nccl_open(cuda_run *x) {
    ncclUniqueId id;
    ncclComm_t comm;
    if (x->b->rank == 0)
        NCCL(bench_nccl.get_id(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, x->b->comm);
    NCCL(bench_nccl.init(&comm, x->b->size, id, x->b->rank));
    x->base.comm = comm;
}
static void nccl_close(cuda_run *x) { NCCL(bench_nccl.destroy(x->base.comm)); }

static void nccl_exchange(cuda_run *x, const char *send, const int *ns, const int64_t *sat,
                          char *recv, const int *nr, const int64_t *rat, int64_t record, int self) {
    NCCL(bench_nccl.start());
    for (int i = 0; i < x->b->size; i++) {
        int to = (x->b->rank + i) % x->b->size, from = (x->b->rank - i + x->b->size) % x->b->size;
        if (ns[to] > 0 && (self || i))
            NCCL(bench_nccl.send(send + sat[to] * record, (size_t)(ns[to] * record), ncclChar, to,
                                 x->base.comm, x->stream));
        if (nr[from] > 0 && (self || i))
            NCCL(bench_nccl.recv(recv + rat[from] * record, (size_t)(nr[from] * record), ncclChar,
                                 from, x->base.comm, x->stream));
    }
    NCCL(bench_nccl.end());
}
#else
static void nccl_open(cuda_run *x) { (void)x; }
static void nccl_close(cuda_run *x) { (void)x; }
static void nccl_exchange(cuda_run *x, const char *send, const int *ns, const int64_t *sat,
                          char *recv, const int *nr, const int64_t *rat, int64_t record, int self) {
    (void)send, (void)ns, (void)sat, (void)recv, (void)nr, (void)rat, (void)record, (void)self;
    bench_die(x->b, "no NCCL");
}
#endif

/* Down, across, up; what stays on the rank stays on its GPU. */
static void staged_exchange(cuda_run *x, const char *send, const int *ns, const int64_t *sat,
                            char *recv, const int *nr, const int64_t *rat, int64_t record,
                            int self) {
    int sc[BENCH_CUDA_RANKS], rc[BENCH_CUDA_RANKS], sd[BENCH_CUDA_RANKS], rd[BENCH_CUDA_RANKS],
        me = x->b->rank, size = x->b->size;
    MPI_Datatype type;
    MPI_Type_contiguous((int)record, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    for (int r = 0; r < size; r++) {
        sc[r] = r == me ? 0 : ns[r], rc[r] = r == me ? 0 : nr[r];
        sd[r] = (int)sat[r], rd[r] = (int)rat[r];
        if (sc[r])
            CUDA(cudaMemcpyAsync(x->base.host_send + sat[r] * record, send + sat[r] * record,
                                 (size_t)(sc[r] * record), cudaMemcpyDeviceToHost, x->stream));
    }
    if (self && ns[me])
        CUDA(cudaMemcpyAsync(recv + rat[me] * record, send + sat[me] * record,
                             (size_t)(ns[me] * record), cudaMemcpyDeviceToDevice, x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    MPI_Alltoallv(x->base.host_send, sc, sd, type, x->base.host_recv, rc, rd, type, x->b->comm);
    for (int r = 0; r < size; r++)
        if (rc[r])
            CUDA(cudaMemcpyAsync(recv + rat[r] * record, x->base.host_recv + rat[r] * record,
                                 (size_t)(rc[r] * record), cudaMemcpyHostToDevice, x->stream));
    MPI_Type_free(&type);
}

static void exchange(cuda_run *x, const char *send, const int *ns, const int64_t *sat, char *recv,
                     const int *nr, const int64_t *rat, int64_t record, int self) {
    (x->base.nccl ? nccl_exchange : staged_exchange)(x, send, ns, sat, recv, nr, rat, record, self);
}

static int64_t up16(int64_t n) { return (n + 15) / 16 * 16; }

static void *device(cuda_run *x, int64_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, (size_t)bytes + 64));
    CUDA(cudaMemset(p, 0x5a, (size_t)bytes + 64));
    return p;
}
static void *pinned(cuda_run *x, int64_t bytes) {
    void *p;
    CUDA(cudaHostAlloc(&p, (size_t)bytes + 64, cudaHostAllocDefault));
    return p;
}

void cuda_base_create(cuda_run *x, long recv_capacity) {
    const bench *b = x->b;
    cuda_base *m = &x->base;
    int64_t k = b->opt.topk, row = (int64_t)b->row_bytes, scales = (int64_t)b->scale_bytes;
    int each = b->size < b->opt.topk ? b->size : b->opt.topk;
    m->nccl = b->opt.baseline == BENCH_NCCL;
    m->scale_at = scales ? up16(row) : row;
    m->meta_at = up16(m->scale_at + scales);
    m->record = b->opt.metadata ? up16(m->meta_at + 8 * k) : scales ? m->meta_at : row;
    m->ein_stride = scales ? m->meta_at : row;
    m->send_rows = (int64_t)x->n * each;
    m->recv_rows = recv_capacity;
    m->send = device(x, m->send_rows * m->record);
    m->recv = device(x, m->recv_rows * m->record);
    m->place = device(x, (int64_t)x->n * b->size * 4);
    m->counts = device(x, BENCH_CUDA_RANKS * 4);
    m->owner = device(x, (int64_t)b->opt.num_experts * 4);
    CUDA(cudaMemcpy(m->owner, b->expert_owner, (size_t)b->opt.num_experts * 4,
                    cudaMemcpyHostToDevice));
    m->local_ids = device(x, m->recv_rows * k * 4);
    m->weights = device(x, m->recv_rows * k * 4);
    m->host_counts = pinned(x, BENCH_CUDA_RANKS * 4);
    int64_t most = m->record > m->ein_stride ? m->record : m->ein_stride,
            rows = m->send_rows > m->recv_rows ? m->send_rows : m->recv_rows;
    if (!m->nccl) {
        m->host_send = pinned(x, rows * most);
        m->host_recv = pinned(x, rows * most);
    }
    if (b->has_combine) {
        m->ein = device(x, m->recv_rows * m->ein_stride);
        m->back_recv = device(x, m->send_rows * m->ein_stride);
        m->y = device(x, (int64_t)x->n * (int64_t)b->y_bytes);
    }
    if (m->nccl)
        nccl_open(x);
}

void cuda_base_free(cuda_run *x) {
    cuda_base *m = &x->base;
    if (m->nccl)
        nccl_close(x);
    void *const all[] = {m->send,      m->recv,    m->place, m->counts,    m->owner,
                         m->local_ids, m->weights, m->ein,   m->back_recv, m->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CUDA(cudaFree(all[i]));
    CUDA(cudaFreeHost(m->host_counts));
    CUDA(cudaFreeHost(m->host_send));
    CUDA(cudaFreeHost(m->host_recv));
}

void cuda_base_counts(cuda_run *x) {
    cuda_base *m = &x->base;
    int size = x->b->size;
    CUDA(bench_cuda_count(x->ids, m->owner, x->n, x->b->opt.topk, size, m->place, m->counts,
                          x->stream));
    CUDA(cudaMemcpyAsync(m->host_counts, m->counts, (size_t)size * 4, cudaMemcpyDeviceToHost,
                         x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    memcpy(m->send_counts, m->host_counts, (size_t)size * 4);
    MPI_Alltoall(m->send_counts, 1, MPI_INT, m->recv_counts, 1, MPI_INT, x->b->comm);
    for (int r = 1; r < size; r++) {
        m->send_at[r] = m->send_at[r - 1] + m->send_counts[r - 1];
        m->recv_at[r] = m->recv_at[r - 1] + m->recv_counts[r - 1];
    }
}

void cuda_base_dispatch(cuda_run *x) {
    const bench *b = x->b;
    cuda_base *m = &x->base;
    int last = b->size - 1;
    int64_t k = b->opt.topk, rows = m->recv_at[last] + m->recv_counts[last];
    bench_pack p = {.x = x->x,
                    .scales = b->scale_bytes ? x->x_scales : NULL,
                    .ids = b->opt.metadata ? (const char *)x->ids : NULL,
                    .weights = b->opt.metadata ? (const char *)x->weights : NULL,
                    .place = m->place,
                    .n = x->n,
                    .row = (int64_t)b->row_bytes,
                    .scale_row = (int64_t)b->scale_bytes,
                    .meta = 4 * k,
                    .record = m->record,
                    .scale_at = m->scale_at,
                    .meta_at = m->meta_at,
                    .size = b->size};
    for (int r = 0; r < b->size; r++)
        p.to[r] = r == b->rank ? m->recv + m->recv_at[r] * m->record
                               : m->send + m->send_at[r] * m->record;
    CUDA(bench_cuda_pack(&p, x->stream));
    CUDA(cudaEventRecord(x->event[1], x->stream));
    exchange(x, m->send, m->send_counts, m->send_at, m->recv, m->recv_counts, m->recv_at, m->record,
             0);
    CUDA(cudaEventRecord(x->event[2], x->stream));
    if (b->opt.metadata && rows > 0 && k > 0) {
        bench_unpack u = {m->recv,
                          rows,
                          m->record,
                          m->meta_at,
                          (int)k,
                          b->expert_begin[b->rank],
                          bench_local_experts(b),
                          m->local_ids,
                          m->weights};
        CUDA(bench_cuda_unpack(&u, x->stream));
    }
}

void cuda_base_combine(cuda_run *x) {
    const bench *b = x->b;
    cuda_base *m = &x->base;
    CUDA(cudaEventRecord(x->event[1], x->stream));
    exchange(x, m->ein, m->recv_counts, m->recv_at, m->back_recv, m->send_counts, m->send_at,
             m->ein_stride, 0);
    CUDA(cudaEventRecord(x->event[2], x->stream));
    bench_sum s = {.place = m->place,
                   .y = m->y,
                   .n = x->n,
                   .hidden = b->opt.hidden,
                   .stride = m->ein_stride,
                   .scale_at = m->scale_at,
                   .size = b->size,
                   .dtype = b->opt.dtype,
                   .ydtype = b->ydtype,
                   .scale_kind = b->opt.scale_kind};
    for (int r = 0; r < b->size; r++)
        s.from[r] = r == b->rank ? m->ein + m->recv_at[r] * m->ein_stride
                                 : m->back_recv + m->send_at[r] * m->ein_stride;
    CUDA(bench_cuda_sum(&s, x->stream));
}

void cuda_base_bare(cuda_run *x) {
    cuda_base *m = &x->base;
    exchange(x, m->send, m->send_counts, m->send_at, m->recv, m->recv_counts, m->recv_at, m->record,
             1);
}
#endif
