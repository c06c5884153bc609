/*
 * ep_gpu_bench.c - GPU time of dispatch, combine and of a whole turn, by number of SMs; a tool of
 * its own beside mpix_ep_bench because it needs the CUDA runtime.
 *
 *   mpix_ep_gpu_bench [expert] [tokens hidden topk experts [iterations [sms ...]]]
 *
 * expert: the EXPERT layout, whose default is all SMs (sms 0); combine once with partial sums in
 * the rows' dtype, once in float.
 *
 * Events around each call on each rank's stream; the time of a call is the maximum over ranks, the
 * figure the median over calls. The rows that came are verified after the last call of each line.
 * GB/s count received rows, those of the own rank included.
 *
 * Where peers are reached through the proxy (MPIX_EP_REACH=proxied MPIX_EP_TRANSPORT=shmem on one
 * host) it measures beforehand what bounds them: the link between GPU and host memory, both ways at
 * once, and copies between two memories by as many threads of each rank as its proxy has, in pieces
 * of the parameter chunk_bytes' default: of memory that nobody has touched lately, and of what the
 * GPU has just written, the faster counts. Each line then has what went over the proxy per rank and
 * second, and its part of the slower of the two.
 */
#define _GNU_SOURCE
#include "../tests/gpu/gpu.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef struct bench {
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
    cudaStream_t stream;
} bench;

enum { DISPATCH = 1, COMBINE = 2, ROUTE = 4 };

static float measure(bench *b, int what, int iterations) {
    float *us = malloc((size_t)iterations * 4), *all = malloc((size_t)iterations * 4);
    cudaEvent_t e0, e1;
    CU(cudaEventCreate(&e0));
    CU(cudaEventCreate(&e1));
    for (int i = -5; i < iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        /* A first call lines the GPUs up, so that the measured one does not count how far the
         * hosts are apart. */
        EP(MPIX_Ep_route_enqueue(b->h, &b->r, NULL, b->stream));
        CU(cudaEventRecord(e0, b->stream));
        if (what & ROUTE)
            EP(MPIX_Ep_route_enqueue(b->h, &b->r, NULL, b->stream));
        if (what & DISPATCH)
            EP(MPIX_Ep_dispatch_enqueue(b->h, &b->in, &b->out, b->stream));
        if (what & COMBINE)
            EP(MPIX_Ep_combine_enqueue(b->h, &b->ci, &b->co, b->stream));
        CU(cudaEventRecord(e1, b->stream));
        CU(cudaStreamSynchronize(b->stream));
        if (i >= 0) {
            CU(cudaEventElapsedTime(&us[i], e0, e1));
            us[i] *= 1000;
        }
    }
    MPI_Allreduce(us, all, iterations, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    qsort(all, (size_t)iterations, 4, g_ascending);
    float median = all[iterations / 2];
    free(us), free(all);
    CU(cudaEventDestroy(e0));
    CU(cudaEventDestroy(e1));
    return median;
}

enum { BOUND_BYTES = 64 << 20, BOUND_PIECE = 256 << 10, BOUND_TIMES = 16 };

/* Threads that copy together, this one among them: piece after piece by turns. */
enum { MOST_COPIERS = 8 };
static struct {
    char *to;
    const char *from;
    size_t bytes;
    int n, end;
    pthread_barrier_t gate;
} team;

static void copy_share(int index) {
    for (size_t at = (size_t)index * BOUND_PIECE; at < team.bytes;
         at += (size_t)team.n * BOUND_PIECE)
        memcpy(team.to + at, team.from + at, BOUND_PIECE);
}

static void *copier(void *arg) {
    int index = (int)(intptr_t)arg;
    for (;;) {
        pthread_barrier_wait(&team.gate);
        if (team.end)
            return NULL;
        copy_share(index);
        pthread_barrier_wait(&team.gate);
    }
}

static void copy_together(char *to, const char *from, size_t bytes) {
    team.to = to, team.from = from, team.bytes = bytes;
    pthread_barrier_wait(&team.gate);
    copy_share(0);
    pthread_barrier_wait(&team.gate);
}

/* GB/s each way over the link, and of copies by so many threads of each rank; of the slowest
 * rank, all at once. */
static void bounds(int threads, double *link, double *copy) {
    pthread_t others[MOST_COPIERS];
    team.n = threads < 1 ? 1 : threads > MOST_COPIERS ? MOST_COPIERS : threads;
    team.end = 0;
    pthread_barrier_init(&team.gate, NULL, (unsigned)team.n);
    for (int i = 1; i < team.n; i++)
        if (pthread_create(&others[i], NULL, copier, (void *)(intptr_t)i) != 0)
            MPI_Abort(MPI_COMM_WORLD, 1);
    char *m[2], *d[2];
    cudaStream_t s[2];
    for (int i = 0; i < 2; i++) {
        m[i] = mmap(NULL, BOUND_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (m[i] == MAP_FAILED)
            MPI_Abort(MPI_COMM_WORLD, 1);
        memset(m[i], i + 1, BOUND_BYTES);
        CU(cudaHostRegister(m[i], BOUND_BYTES, cudaHostRegisterDefault));
        CU(cudaMalloc((void **)&d[i], BOUND_BYTES));
        CU(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
    }
    double rate[3] = {0, 0, 0};
    for (int pass = 0; pass < 2; pass++) { /* the first warms up */
        MPI_Barrier(MPI_COMM_WORLD);
        double start = g_now_s();
        for (int i = 0; i < BOUND_TIMES; i++) {
            CU(cudaMemcpyAsync(m[0], d[0], BOUND_BYTES, cudaMemcpyDeviceToHost, s[0]));
            CU(cudaMemcpyAsync(d[1], m[1], BOUND_BYTES, cudaMemcpyHostToDevice, s[1]));
        }
        CU(cudaStreamSynchronize(s[0]));
        CU(cudaStreamSynchronize(s[1]));
        rate[0] = (double)BOUND_BYTES * BOUND_TIMES / (g_now_s() - start) / 1e9;
        MPI_Barrier(MPI_COMM_WORLD);
        start = g_now_s();
        for (int i = 0; i < BOUND_TIMES; i++)
            copy_together(m[1], m[0], BOUND_BYTES);
        rate[1] = (double)BOUND_BYTES * BOUND_TIMES / (g_now_s() - start) / 1e9;
        double hot = 0;
        for (int i = 0; i < 4 * BOUND_TIMES; i++) {
            char *from = m[0] + i % 4 * (BOUND_BYTES / 4), *to = m[1] + i % 4 * (BOUND_BYTES / 4);
            CU(cudaMemcpy(from, d[0], BOUND_BYTES / 4, cudaMemcpyDeviceToHost));
            start = g_now_s();
            copy_together(to, from, BOUND_BYTES / 4);
            hot += g_now_s() - start;
        }
        rate[2] = (double)BOUND_BYTES * BOUND_TIMES / hot / 1e9;
    }
    team.end = 1;
    pthread_barrier_wait(&team.gate);
    for (int i = 1; i < team.n; i++)
        pthread_join(others[i], NULL);
    pthread_barrier_destroy(&team.gate);
    MPI_Allreduce(MPI_IN_PLACE, rate, 3, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    for (int i = 0; i < 2; i++) {
        CU(cudaHostUnregister(m[i]));
        munmap(m[i], BOUND_BYTES);
        CU(cudaFree(d[i]));
        CU(cudaStreamDestroy(s[i]));
    }
    *link = rate[0];
    *copy = rate[1] > rate[2] ? rate[1] : rate[2];
}

/* Rows that come through the proxy; *threads: of this rank's. */
static double proxied_rows(MPIX_Ep ep, int size, const MPI_Count *per_rank, int *threads) {
    double rows = 0;
    for (int r = 0; r < size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        EP(MPIX_Ep_get_peer(ep, r, &peer));
        *threads = peer.proxy_threads > *threads ? peer.proxy_threads : *threads;
        rows += peer.reach == MPIX_EP_REACH_PROXIED ? (double)per_rank[r] : 0;
    }
    return rows;
}

int main(int argc, char **argv) {
    int rank, size, devices = 0;
    int expert = argc > 1 && !strcmp(argv[1], "expert");
    argc -= expert, argv += expert;
    long T = argc > 4 ? atol(argv[1]) : 4096, H = argc > 4 ? atol(argv[2]) : 7168,
         K = argc > 4 ? atol(argv[3]) : 8, E = argc > 4 ? atol(argv[4]) : 256;
    int iterations = argc > 5 ? atoi(argv[5]) : 30;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    struct cudaDeviceProp prop;
    CU(cudaGetDeviceProperties(&prop, rank % devices));
    if (rank == 0)
        printf("# mpix_ep_gpu_bench: %d ranks, %s, %ld tokens, hidden %ld, top-%ld of %ld, median "
               "of %d calls\n"
               "# dtype  sms  dispatch_us  GB/s  combine_us  GB/s  route+dispatch+combine_us  "
               "dispatch+meta_us  verified\n",
               size, prop.name, T, H, K, E, iterations);
    int32_t *ids = malloc((size_t)(T * K) * 4), *one = malloc((size_t)K * 4);
    static const int some[] = {8, 10, 12, 14, 16, 18, 20, 24, 32, 64};
    int sms[32], nsms = 0;
    for (int i = 6; i < argc && nsms < 32; i++)
        sms[nsms++] = atoi(argv[i]);
    if (argc <= 6 && expert)
        sms[nsms++] = 0;
    for (size_t i = 0; argc <= 6 && !expert && i < sizeof some / sizeof *some; i++)
        sms[nsms++] = some[i];
    int bad = 0;
    double link = 0, copy = 0;
    /* bf16; fp8; bf16 that becomes fp8 on the way, whose bytes the tests check */
    for (int mode = 0; mode < 3; mode++) {
        int fp8 = mode > 0, quant = mode == 2;
        size_t xrow = (size_t)H * (mode == 1 ? 1 : 2), row = (size_t)H * (fp8 ? 1 : 2),
               scale = fp8 ? (size_t)(H + 127) / 128 * 4 : 0;
        for (int i = 0; i < nsms; i++) {
            if (quant && sms[i] < 0) /* copy engines move rows as they are */
                continue;
            MPIX_Ep_config c;
            MPIX_Ep ep;
            bench b;
            MPIX_INIT(&c);
            c.memkind = MPIX_EP_CUDA;
            c.max_topk = (int)K;
            c.num_experts = E;
            c.max_tokens = T;
            c.max_row_bytes = 2 * H;
            c.layout = expert ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
            c.num_sms = sms[i];
            c.timeout_s = 20;
            EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
            EP(MPIX_Ep_handle_create(ep, &b.h));
            CU(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
            char *x, *s, *y, *o, *os;
            int32_t *di, *lid;
            float *w, *ow;
            int64_t *st;
            CU(cudaMalloc((void **)&x, (size_t)T * xrow));
            CU(cudaMalloc((void **)&s, (size_t)T * scale + 4));
            CU(cudaMalloc((void **)&y, (size_t)T * (size_t)H * 2));
            CU(cudaMalloc((void **)&di, (size_t)(T * K) * 4));
            CU(cudaMalloc((void **)&w, (size_t)(T * K) * 4));
            CU(cudaMemset(w, 0, (size_t)(T * K) * 4));
            char *hx = malloc((size_t)T * xrow), *hs = malloc((size_t)T * scale + 4);
            for (long t = 0; t < T; t++) {
                g_ids(99, rank, t, (int)K, (int)E, 0, ids + t * K);
                g_row(5, (uint64_t)rank, (uint64_t)t, mode == 1 ? MPIX_EP_F8E4M3 : MPIX_EP_BF16, H,
                      hx + (size_t)t * xrow);
                if (scale)
                    g_row(6, (uint64_t)rank, (uint64_t)t, MPIX_EP_F32, (H + 127) / 128,
                          hs + (size_t)t * scale);
            }
            CU(cudaMemcpy(x, hx, (size_t)T * xrow, cudaMemcpyDefault));
            CU(cudaMemcpy(s, hs, (size_t)T * scale, cudaMemcpyDefault));
            CU(cudaMemcpy(di, ids, (size_t)(T * K) * 4, cudaMemcpyDefault));
            MPIX_INIT(&b.r);
            b.r.num_tokens = T;
            b.r.topk = (int)K;
            b.r.ids = di;
            MPI_Count total = 0, per_rank[64];
            MPIX_Ep_counts counts;
            MPIX_INIT(&counts);
            counts.recv_total = &total;
            counts.recv_per_rank = per_rank;
            EP(MPIX_Ep_route(b.h, &b.r, &counts));
            int threads = 0;
            double far = proxied_rows(ep, size, per_rank, &threads), most = far;
            MPI_Allreduce(&far, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (most > 0 && link == 0) {
                bounds(threads, &link, &copy);
                if (rank == 0)
                    printf("# the link %.1f GB/s each way at once, copies by %d thread%s of each "
                           "rank %.1f GB/s\n",
                           link, threads, threads == 1 ? "" : "s", copy);
            }
            EP(MPIX_Ep_alloc(ep, (MPI_Count)((size_t)total * row), MPI_INFO_NULL, &o));
            EP(MPIX_Ep_alloc(ep, (MPI_Count)((size_t)total * scale + 4), MPI_INFO_NULL, &os));
            CU(cudaMalloc((void **)&lid, (size_t)(total * K) * 4));
            CU(cudaMalloc((void **)&ow, (size_t)(total * K) * 4));
            CU(cudaMalloc((void **)&st, (size_t)total * 8));
            MPIX_INIT(&b.in);
            MPIX_INIT(&b.out);
            MPIX_INIT(&b.ci);
            MPIX_INIT(&b.co);
            b.in.hidden = b.ci.hidden = H;
            b.in.x = (MPIX_Ep_rows){x,
                                    0,
                                    fp8 ? MPIX_EP_F8E4M3 : MPIX_EP_BF16,
                                    fp8 ? MPIX_EP_SCALES_F32 : 0,
                                    fp8 ? s : NULL,
                                    0};
            b.out.capacity_rows = total;
            b.out.x = b.in.x;
            if (quant)
                b.in.x = (MPIX_Ep_rows){x, 0, MPIX_EP_BF16, 0, NULL, 0};
            b.out.x.data = o;
            b.out.x.scales = fp8 ? os : NULL;
            b.ci.x = b.out.x;
            b.co.y.data = y;
            b.co.y.dtype = MPIX_EP_BF16;
            float d = measure(&b, DISPATCH, iterations), m, cb = 0, turn = 0, exact = 0;
            char *got = malloc((size_t)total * row);
            CU(cudaMemcpy(got, o, (size_t)total * row, cudaMemcpyDefault));
            long at = 0;
            int wrong = 0;
            char *want = malloc(row);
            /* what came says where from; the tests hold that against the host's */
            if (expert && !quant) {
                b.out.src_token = (MPI_Count *)st;
                b.out.src_rank = lid;
                EP(MPIX_Ep_dispatch(b.h, &b.in, &b.out));
                int32_t *sr = malloc((size_t)total * 4);
                int64_t *tok = malloc((size_t)total * 8);
                CU(cudaMemcpy(sr, lid, (size_t)total * 4, cudaMemcpyDefault));
                CU(cudaMemcpy(tok, st, (size_t)total * 8, cudaMemcpyDefault));
                for (at = 0; at < total; at += 1 + at % 13) {
                    g_row(5, (uint64_t)sr[at], (uint64_t)tok[at],
                          fp8 ? MPIX_EP_F8E4M3 : MPIX_EP_BF16, H, want);
                    wrong += memcmp(want, got + (size_t)at * row, row) != 0;
                }
                at = total;
                free(sr), free(tok);
                b.out.src_token = NULL, b.out.src_rank = NULL;
            }
            for (int r = 0; r < size && !expert && !quant; r++)
                for (long t = 0; t < T; t++) {
                    int here = 0;
                    g_ids(99, r, t, (int)K, (int)E, 0, one);
                    for (long k = 0; k < K; k++)
                        here |= one[k] / (E / size) == rank;
                    if (here && at % 16 == 0) {
                        g_row(5, (uint64_t)r, (uint64_t)t, fp8 ? MPIX_EP_F8E4M3 : MPIX_EP_BF16, H,
                              want);
                        wrong += at >= total || memcmp(want, got + (size_t)at * row, row) != 0;
                    }
                    at += here;
                }
            wrong += !quant && E % size == 0 && at != total;
            bad += wrong;
            if (!fp8) {
                cb = measure(&b, COMBINE, iterations);
                b.ci.wire = expert ? MPIX_EP_F32 : 0;
                exact = expert ? measure(&b, COMBINE, iterations) : 0;
                b.ci.wire = 0;
                turn = measure(&b, ROUTE | DISPATCH | COMBINE, iterations);
            }
            b.in.topk_weights = w;
            b.out.local_ids = expert ? NULL : lid;
            b.out.topk_weights = ow;
            b.out.src_token = (MPI_Count *)st;
            m = measure(&b, DISPATCH, iterations);
            double bytes = (double)total * (double)(row + scale);
            if (rank == 0) {
                printf("%-6s %4d %9.1f %6.0f %9.1f %6.0f %9.1f %9.1f  %s\n",
                       quant ? "to fp8"
                       : fp8 ? "fp8"
                             : "bf16",
                       sms[i], d, bytes / d / 1e3, cb, cb > 0 ? bytes / cb / 1e3 : 0.0, turn, m,
                       wrong   ? "NO"
                       : quant ? "-"
                               : "yes");
                double slower = link < copy ? link : copy, wire = most * (double)(row + scale);
                if (most > 0)
                    printf("# through the proxy: dispatch %.1f GB/s, %.2f of the slower; combine "
                           "%.1f GB/s, %.2f\n",
                           wire / d / 1e3, wire / d / 1e3 / slower, cb > 0 ? wire / cb / 1e3 : 0.0,
                           cb > 0 ? wire / cb / 1e3 / slower : 0.0);
                if (exact > 0)
                    printf("# combine with partial sums in float: %.1f us\n", exact);
                fflush(stdout);
            }
            EP(MPIX_Ep_free(&ep));
            CU(cudaStreamDestroy(b.stream));
            CU(cudaFree(x));
            CU(cudaFree(s));
            CU(cudaFree(y));
            CU(cudaFree(di));
            CU(cudaFree(w));
            CU(cudaFree(lid));
            CU(cudaFree(ow));
            CU(cudaFree(st));
            free(hx), free(hs), free(got), free(want);
        }
    }
    free(ids), free(one);
    MPI_Finalize();
    return bad != 0;
}
