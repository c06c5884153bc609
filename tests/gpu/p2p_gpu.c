/*
 * p2p_gpu.c - MPIX_P2p_* in GPU memory: what arrives, byte by byte, what stays untouched, and
 * what is refused.
 *
 *   p2p_gpu [ROUNDS [STEP]]        every STEP-th size: for compute-sanitizer
 *
 * Contents are hashes of (seed, position); targets are poisoned before each transfer. Ranks are a
 * ring: each writes to the next.
 */
#include "gpu.h"
#include "mpix_p2p.h"

enum { AREA = 24 << 20, PAD = 64, POISON = 0xa5, MAX_PIECES = 3000 };

static int rank, size, failures, next, prev;
static MPIX_P2p p2p;
static MPIX_P2p_mem src_mem, dst_mem, host_mem;
static MPIX_P2p_rmem src_at[64], dst_at[64], host_at[64];
static unsigned char *src, *dst, *host, *down, *want;
static cudaStream_t stream;

static void fill(unsigned char *to, uint64_t seed, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(g_mix(seed + i / 8) >> i % 8 * 8);
}

static size_t differs(const unsigned char *a, const unsigned char *b, size_t n) {
    size_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static void settle(void) {
    CU(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
}

static void setup(void) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_p2p_memory", "cuda");
    EP(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p));
    EP(MPIX_P2p_alloc(p2p, AREA, info, &src, &src_mem));
    EP(MPIX_P2p_alloc(p2p, AREA, info, &dst, &dst_mem));
    EP(MPIX_P2p_alloc(p2p, AREA, MPI_INFO_NULL, &host, &host_mem));
    MPI_Info_free(&info);
    EP(MPIX_P2p_exchange(src_mem, src_at));
    EP(MPIX_P2p_exchange(dst_mem, dst_at));
    EP(MPIX_P2p_exchange(host_mem, host_at));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    down = malloc(AREA);
    want = malloc(AREA);
}

/* ---- one piece of every size ----------------------------------------------------------------- */

enum {
    PUT,
    GET,
    SEND,
    PUT_ENQUEUE,
    GET_ENQUEUE,
    NOTIFY_ENQUEUE,
    FROM_HOST,
    TO_HOST,
    SEND_HOST,
    WAYS
};

static void move(int way, size_t off, size_t roff, size_t n) {
    MPIX_P2p_iov to_next = {src_mem, (MPI_Count)off, dst_at[next], (MPI_Count)roff, (MPI_Count)n};
    MPIX_P2p_iov from_prev = {dst_mem, (MPI_Count)roff, src_at[prev], (MPI_Count)off, (MPI_Count)n};
    MPIX_P2p_iov from_host = {host_mem, (MPI_Count)off, dst_at[next], (MPI_Count)roff,
                              (MPI_Count)n};
    MPIX_P2p_iov to_host = {src_mem, (MPI_Count)off, host_at[next], (MPI_Count)roff, (MPI_Count)n};
    MPIX_Xfer x[2];
    MPI_Count got = -1;
    switch (way) {
    case PUT:
        EP(MPIX_P2p_iput(&to_next, 1, &x[0]));
        EP(MPIX_Xfer_wait(&x[0]));
        EP(MPIX_P2p_flush(p2p, next));
        break;
    case GET: EP(MPIX_P2p_get(&from_prev, 1)); break;
    case SEND:
    case SEND_HOST:
        EP(MPIX_P2p_irecv(
            p2p, prev, &(MPIX_P2p_iov){.mem = dst_mem, .off = (MPI_Count)roff, .len = (MPI_Count)n},
            1, &got, &x[0]));
        EP(MPIX_P2p_isend(p2p, next,
                          &(MPIX_P2p_iov){.mem = way == SEND ? src_mem : host_mem,
                                          .off = (MPI_Count)off,
                                          .len = (MPI_Count)n},
                          1, &x[1]));
        EP(MPIX_Xfer_waitall(2, x, NULL));
        CHECK(got == (MPI_Count)n, "received %lld of %zu", (long long)got, n);
        break;
    case PUT_ENQUEUE: EP(MPIX_P2p_put_enqueue(&to_next, 1, stream)); break;
    case GET_ENQUEUE: EP(MPIX_P2p_get_enqueue(&from_prev, 1, stream)); break;
    case NOTIFY_ENQUEUE: EP(MPIX_P2p_put_notify_enqueue(&to_next, 1, 11, 1, stream)); break;
    case FROM_HOST: EP(MPIX_P2p_put(&from_host, 1)); break;
    case TO_HOST: EP(MPIX_P2p_put(&to_host, 1)); break;
    }
}

static void one_size(int way, size_t n) {
    size_t off = PAD + g_mix(n * 3 + (size_t)way) % 33,
           roff = PAD + g_mix(n * 5 + (size_t)way) % 33;
    uint64_t seed = g_mix(n * 16 + (size_t)way);
    unsigned char *base = way == TO_HOST ? host : dst;
    if (n % 3 == 0) /* alike on both sides: wide words */
        roff = off;
    fill(want, seed ^ g_mix((uint64_t)rank), n);
    if (way == FROM_HOST || way == SEND_HOST)
        memcpy(host + off, want, n);
    else
        CU(cudaMemcpy(src + off, want, n, cudaMemcpyHostToDevice));
    if (way == TO_HOST)
        memset(host + roff - PAD, POISON, n + 2 * PAD);
    else
        CU(cudaMemset(dst + roff - PAD, POISON, n + 2 * PAD));
    settle();
    move(way, off, roff, n);
    settle();
    CU(cudaMemcpy(down, base + roff - PAD, n + 2 * PAD, cudaMemcpyDefault));
    fill(want, seed ^ g_mix((uint64_t)prev), n);
    size_t bad = differs(down + PAD, want, n);
    CHECK(bad == n, "way %d, %zu bytes: byte %zu", way, n, bad);
    for (size_t i = 0; i < PAD; i++)
        CHECK(down[i] == POISON && down[PAD + n + i] == POISON,
              "way %d, %zu bytes: written outside, %zu", way, n, i);
}

static void all_sizes(size_t step) {
    static const size_t sizes[] = {0,
                                   1,
                                   2,
                                   3,
                                   4,
                                   5,
                                   7,
                                   8,
                                   9,
                                   12,
                                   15,
                                   16,
                                   17,
                                   31,
                                   32,
                                   33,
                                   63,
                                   64,
                                   100,
                                   255,
                                   256,
                                   511,
                                   512,
                                   513,
                                   1000,
                                   4095,
                                   4096,
                                   8191,
                                   8192,
                                   8193,
                                   20000,
                                   32767,
                                   32768,
                                   32769,
                                   65536,
                                   100001,
                                   131071,
                                   131072,
                                   131073,
                                   1 << 20,
                                   (4 << 20) + 5};
    for (int way = 0; way < WAYS; way++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += step)
            one_size(way, sizes[i]);
}

/* ---- vectors --------------------------------------------------------------------------------- */

static void vector(int get, int n, size_t longest, uint64_t seed) {
    static MPIX_P2p_iov iov[MAX_PIECES];
    size_t at = 0, rat = 0;
    uint64_t s = g_mix(seed + 77);
    fill(want, seed ^ g_mix((uint64_t)rank), AREA);
    CU(cudaMemcpy(src, want, AREA, cudaMemcpyHostToDevice));
    CU(cudaMemset(dst, POISON, AREA));
    fill(want, seed ^ g_mix((uint64_t)prev), AREA);
    memset(down, POISON, AREA);
    /* the same pieces on all ranks, scattered over both areas without meeting */
    for (int i = 0; i < n; i++) {
        size_t len = (size_t)g_range(&s, 0, (int64_t)longest);
        at += (size_t)g_range(&s, 0, 5);
        rat += (size_t)g_range(&s, 0, 9);
        if (at + len > AREA || rat + len > AREA)
            len = 0;
        size_t o = len ? at : 0, r = len ? rat : 0;
        iov[i] =
            get ? (MPIX_P2p_iov){dst_mem, (MPI_Count)r, src_at[prev], (MPI_Count)o, (MPI_Count)len}
                : (MPIX_P2p_iov){src_mem, (MPI_Count)o, dst_at[next], (MPI_Count)r, (MPI_Count)len};
        memcpy(down + r, want + o, len);
        at += len;
        rat += len;
    }
    memcpy(want, down, AREA);
    settle();
    if (get)
        EP(MPIX_P2p_get(iov, n));
    else
        EP(MPIX_P2p_put_notify(iov, n, 5, 2));
    static uint64_t told;
    told += get ? 0 : 2;
    EP(MPIX_P2p_notify_wait(p2p, prev, 5, told, NULL));
    CU(cudaMemcpy(down, dst, AREA, cudaMemcpyDeviceToHost));
    size_t bad = differs(down, want, AREA);
    CHECK(bad == AREA, "vector of %d pieces up to %zu, get %d: byte %zu", n, longest, get, bad);
    settle();
}

/* ---- notifications --------------------------------------------------------------------------- */

/* The target looks at once: data must be there. Two streams and the processor tell on one slot. */
static void notified(int rounds) {
    enum { N = 4096, WORDS = N / 8 };
    uint64_t sum = 0;
    cudaStream_t second;
    uint64_t *seen = malloc(N);
    CU(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    for (int i = 1; i <= rounds; i++) {
        size_t bytes = i % 3 ? N : 200000; /* fused with the kernel, and behind the copy engine */
        for (int k = 0; k < WORDS; k++)
            seen[k] = (uint64_t)i;
        CU(cudaMemcpy(src, seen, N, cudaMemcpyHostToDevice));
        CU(cudaMemcpy(src + bytes - N, seen, N, cudaMemcpyHostToDevice));
        /* the source is written (cudaMemcpy may return before), and the target has looked at
         * the last round */
        settle();
        MPIX_P2p_iov iov = {src_mem, 0, dst_at[next], 0, (MPI_Count)bytes};
        sum += 2;
        EP(MPIX_P2p_put_notify_enqueue(&iov, 1, 7, 2, i % 2 ? stream : second));
        EP(MPIX_P2p_notify_wait(p2p, prev, 7, sum, NULL));
        CU(cudaMemcpy(seen, dst + bytes - N, N, cudaMemcpyDeviceToHost));
        for (int k = 0; k < WORDS; k++)
            CHECK(seen[k] == (uint64_t)i, "round %d, word %d of %zu bytes: %llu", i, k, bytes,
                  (unsigned long long)seen[k]);
        CU(cudaDeviceSynchronize());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPIX_P2p_iov none = {src_mem, 0, dst_at[next], 0, 0},
                 host_none = {host_mem, 0, host_at[next], 0, 0};
    for (int i = 0; i < 100; i++) {
        EP(MPIX_P2p_put_notify_enqueue(&none, 1, 7, 1, i % 2 ? stream : second));
        EP(MPIX_P2p_put_notify(&host_none, 1, 7, 1));
    }
    uint64_t now = 0;
    EP(MPIX_P2p_notify_wait(p2p, prev, 7, sum + 200, &now));
    CHECK(now == sum + 200, "%llu after %llu", (unsigned long long)now,
          (unsigned long long)(sum + 200));
    settle();
    CU(cudaStreamDestroy(second));
    free(seen);
}

static void graph(void) {
    cudaGraph_t g;
    cudaGraphExec_t exec;
    MPIX_P2p_iov iov[2] = {{src_mem, 3, dst_at[next], 3, 1000},
                           {src_mem, 4096, dst_at[next], 4096, 300000}};
    fill(want, 11 + (uint64_t)rank, AREA);
    CU(cudaMemcpy(src, want, AREA, cudaMemcpyHostToDevice));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EP(MPIX_P2p_put_notify_enqueue(iov, 2, 9, 3, stream));
    CU(cudaStreamEndCapture(stream, &g));
    CU(cudaGraphInstantiate(&exec, g, 0));
    for (int i = 1; i <= 10; i++) {
        CU(cudaMemset(dst, POISON, 400000));
        settle();
        CU(cudaGraphLaunch(exec, stream));
        uint64_t now = 0;
        EP(MPIX_P2p_notify_wait(p2p, prev, 9, (uint64_t)(3 * i), &now));
        CHECK(now == (uint64_t)(3 * i), "graph: %llu in turn %d", (unsigned long long)now, i);
        CU(cudaMemcpy(down, dst, 400000, cudaMemcpyDeviceToHost));
        fill(want, 11 + (uint64_t)prev, AREA);
        CHECK(!memcmp(down + 3, want + 3, 1000) && !memcmp(down + 4096, want + 4096, 300000) &&
                  down[2] == POISON && down[1003] == POISON,
              "graph: data of turn %d", i);
        settle();
    }
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(g));
}

/* ---- additions ------------------------------------------------------------------------------- */

static void additions(int n) {
    int64_t old, sum = 0, here = 0, all = 0;
    CU(cudaMemset(dst, 0, 64));
    settle();
    for (int i = 0; i < n; i++) {
        EP(MPIX_P2p_fetch_add(dst_at[0], 8, 1, &old));
        sum += old;
    }
    MPI_Allreduce(&sum, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    settle();
    int64_t total = (int64_t)n * size;
    if (rank == 0) {
        CU(cudaMemcpy(&here, dst + 8, 8, cudaMemcpyDeviceToHost));
        CHECK(here == total, "added %lld of %lld", (long long)here, (long long)total);
    }
    /* 0, 1, ... each once */
    CHECK(all == total * (total - 1) / 2, "old values sum up to %lld", (long long)all);
    settle();
}

/* ---- the caller's memory --------------------------------------------------------------------- */

static void registered(void) {
    enum { N = 1 << 20 };
    unsigned char *mine, *pooled;
    MPIX_P2p_mem mem, pool_mem, bad;
    MPIX_P2p_rmem at[64];
    MPIX_Xfer x[2];
    CU(cudaMalloc((void **)&mine, 3 * N));
    EP(MPIX_P2p_reg(p2p, mine + 256, 2 * N, MPI_INFO_NULL, &mem));
    EP(MPIX_P2p_exchange(mem, at));
    fill(want, 5 + (uint64_t)rank, N);
    CU(cudaMemcpy(mine + 256, want, N, cudaMemcpyHostToDevice));
    settle();
    EP(MPIX_P2p_put(&(MPIX_P2p_iov){mem, 0, at[next], N, N}, 1));
    settle();
    CU(cudaMemcpy(down, mine + 256 + N, N, cudaMemcpyDeviceToHost));
    fill(want, 5 + (uint64_t)prev, N);
    CHECK(!memcmp(down, want, N), "put to memory of cudaMalloc");
    for (int i = 0; i < 3; i++) { /* a large send opens its memory once */
        CU(cudaMemset(mine + 256 + N, POISON, N));
        settle();
        EP(MPIX_P2p_irecv(p2p, prev, &(MPIX_P2p_iov){.mem = mem, .off = N, .len = N}, 1, NULL,
                          &x[0]));
        EP(MPIX_P2p_isend(p2p, next, &(MPIX_P2p_iov){.mem = mem, .off = 0, .len = N}, 1, &x[1]));
        EP(MPIX_Xfer_waitall(2, x, NULL));
        settle();
        CU(cudaMemcpy(down, mine + 256 + N, N, cudaMemcpyDeviceToHost));
        CHECK(!memcmp(down, want, N), "send of memory of cudaMalloc");
    }
    CHECK(g_kind(MPIX_P2p_reg(p2p, mine + 256, 64 << 20, MPI_INFO_NULL, &bad)) == MPIX_ERRK_ARG,
          "beyond the allocation");
    /* of a pool: as the local side, and not for peers */
    CU(cudaMallocAsync((void **)&pooled, N, stream));
    CU(cudaStreamSynchronize(stream));
    EP(MPIX_P2p_reg(p2p, pooled, N, MPI_INFO_NULL, &pool_mem));
    fill(want, 6 + (uint64_t)rank, N);
    CU(cudaMemcpy(pooled, want, N, cudaMemcpyHostToDevice));
    settle();
    EP(MPIX_P2p_put(&(MPIX_P2p_iov){pool_mem, 0, at[next], N, N}, 1));
    settle();
    CU(cudaMemcpy(down, mine + 256 + N, N, cudaMemcpyDeviceToHost));
    fill(want, 6 + (uint64_t)prev, N);
    CHECK(!memcmp(down, want, N), "put from memory of cudaMallocAsync");
    if (size > 1) {
        MPIX_P2p_rmem none[64];
        CHECK(g_kind(MPIX_P2p_exchange(pool_mem, none)) == MPIX_ERRK_UNSUPPORTED,
              "memory of a pool was exchanged");
        MPIX_Error e;
        MPIX_INIT(&e);
        MPIX_Error_last(&e);
        CHECK(strstr(e.text, "cudaMallocAsync"), "the reason: %s", e.text);
    }
    settle();
    for (int r = 0; r < size; r++)
        EP(MPIX_P2p_rmem_free(&at[r]));
    settle(); /* nobody has it open any more */
    EP(MPIX_P2p_dereg(&pool_mem));
    EP(MPIX_P2p_dereg(&mem));
    settle();
    CU(cudaFreeAsync(pooled, stream));
    CU(cudaStreamSynchronize(stream));
    CU(cudaFree(mine));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(void) {
    MPIX_P2p_mem mem, host_reg;
    MPIX_P2p_rmem at[64], reg_at[64], stale;
    MPI_Info info;
    void *base, *block = malloc(1 << 16);
    MPIX_P2p_iov iov = {src_mem, 0, dst_at[next], AREA - 7, 8};
    CHECK(g_kind(MPIX_P2p_put_enqueue(&iov, 1, stream)) == MPIX_ERRK_ARG,
          "beyond the peer's memory");
    iov = (MPIX_P2p_iov){src_mem, AREA - 3, dst_at[next], 0, 4};
    CHECK(g_kind(MPIX_P2p_get(&iov, 1)) == MPIX_ERRK_ARG, "beyond the own memory");
    iov = (MPIX_P2p_iov){src_mem, 0, dst_at[next], 0, 8};
    CHECK(g_kind(MPIX_P2p_put_notify_enqueue(&iov, 1, 1 << 20, 1, stream)) == MPIX_ERRK_ARG,
          "a slot that is not there");
    EP(MPIX_P2p_reg(p2p, block, 1 << 16, MPI_INFO_NULL, &host_reg));
    EP(MPIX_P2p_exchange(host_reg, reg_at));
    iov = (MPIX_P2p_iov){src_mem, 0, reg_at[next], 0, 8};
    CHECK(size == 1 || g_kind(MPIX_P2p_put(&iov, 1)) == MPIX_ERRK_UNSUPPORTED,
          "to a peer's ordinary memory");
    CHECK(size == 1 || g_kind(MPIX_P2p_put_enqueue(&iov, 1, stream)) == MPIX_ERRK_UNSUPPORTED,
          "to a peer's ordinary memory, on a stream");
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_p2p_memory", size > 1 && rank == 0 ? "host" : "cuda");
    CHECK(size == 1 || g_kind(MPIX_P2p_alloc(p2p, 4096, info, &base, &mem)) == MPIX_ERRK_ARG,
          "kinds that differ");
    MPI_Info_set(info, "mpix_ep_p2p_memory", "cuda");
    EP(MPIX_P2p_alloc(p2p, 4096, info, &base, &mem));
    EP(MPIX_P2p_exchange(mem, at));
    MPI_Info_free(&info);
    settle();
    stale = at[next];
    EP(MPIX_P2p_dereg(&mem));
    settle();
    iov = (MPIX_P2p_iov){src_mem, 0, stale, 0, 8};
    CHECK(g_kind(MPIX_P2p_put_enqueue(&iov, 1, stream)) == MPIX_ERRK_ARG,
          "memory that its owner has given up");
    for (int r = 0; r < size; r++)
        EP(MPIX_P2p_rmem_free(&at[r]));
    iov = (MPIX_P2p_iov){src_mem, 0, stale, 0, 8};
    CHECK(g_kind(MPIX_P2p_put(&iov, 1)) == MPIX_ERRK_ARG, "a stale handle");
    settle();
    for (int r = 0; r < size; r++)
        EP(MPIX_P2p_rmem_free(&reg_at[r]));
    settle();
    EP(MPIX_P2p_dereg(&host_reg));
    free(block);
}

/* Many at once, all kinds between all ranks, no order. */
static void outstanding(void) {
    enum { EACH = 1500, LEN = 1024 };
    static MPIX_Xfer x[EACH];
    fill(want, 21 + (uint64_t)rank, AREA);
    CU(cudaMemcpy(src, want, AREA, cudaMemcpyHostToDevice));
    settle();
    for (int i = 0; i < EACH; i++)
        EP(MPIX_P2p_iput(&(MPIX_P2p_iov){src_mem, i * LEN, dst_at[next], i * LEN, LEN}, 1, &x[i]));
    EP(MPIX_Xfer_waitall(EACH, x, NULL));
    settle();
    CU(cudaMemcpy(down, dst, EACH * LEN, cudaMemcpyDeviceToHost));
    fill(want, 21 + (uint64_t)prev, EACH * LEN);
    CHECK(!memcmp(down, want, EACH * LEN), "%d puts in flight", EACH);
    settle();
}

int main(int argc, char **argv) {
    size_t step = argc > 2 ? (size_t)atoi(argv[2]) : 1;
    int rounds = argc > 1 ? atoi(argv[1]) : 100, devices = 0, all = 0;
    if (argc > 1 && !strcmp(argv[1], "--probe"))
        return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? 0 : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    next = (rank + 1) % size;
    prev = (rank + size - 1) % size;
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    setup();
    all_sizes(step);
    static const struct {
        int n;
        size_t longest;
    } vectors[] = {{1, 40},       {7, 100},     {64, 3000},  {65, 600},
                   {1024, 16384}, {3000, 3000}, {20, 400000}};
    for (size_t i = 0; i<sizeof vectors / sizeof *vectors; i += step> 1 ? 2 : 1)
        for (int get = 0; get < 2; get++)
            vector(get, vectors[i].n, vectors[i].longest, i * 2 + (size_t)get);
    notified(rounds);
    graph();
    additions(rounds);
    registered();
    refused();
    outstanding();
    settle();
    for (int r = 0; r < size; r++) {
        EP(MPIX_P2p_rmem_free(&src_at[r]));
        EP(MPIX_P2p_rmem_free(&dst_at[r]));
        EP(MPIX_P2p_rmem_free(&host_at[r]));
    }
    EP(MPIX_P2p_free(&p2p));
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("p2p_gpu: %d ranks on %d devices: %s\n", size, devices, all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
