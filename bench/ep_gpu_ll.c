/*
 * ep_gpu_ll.c - GPU time of low-latency calls: dispatch, combine and both, SLOTS and EXPERT, each in a stream and in a CUDA graph, beside HT.
 *
 *   mpix_ep_gpu_ll [tokens hidden topk experts [iterations [sms]]]
 *
 * stream: events around one call, which a call before it has lined up between the ranks; min, median and p99 of the maximum over ranks. It
 * contains what the events cost. graph: a graph of 20 calls, each call's mean share of it; the median over replays of the maximum over ranks.
 * dispatch reads bf16 and, in the lines "to fp8", gives fp8 with float scales; combine is bf16. What is computed is held against host memory by
 * tests/gpu/ep_ll; here one dispatch per line is looked at, whether each row that came is its token's.
 */
#include "../tests/gpu/gpu.h"

enum { IN_GRAPH = 20 };
enum { DISPATCH = 1, COMBINE = 2, ROUTE = 4 };

static int rank, size;

typedef struct side {
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
    cudaStream_t stream;
    char *x, *y, *o, *os;
    int32_t *ids, *src;
    int64_t *tok;
    long rows;
} side;

static void call(side *s, int what) {
    if (what & ROUTE)
        EP(MPIX_Ep_route_enqueue(s->h, &s->r, NULL, s->stream));
    if (what & DISPATCH)
        EP(MPIX_Ep_dispatch_enqueue(s->h, &s->in, &s->out, s->stream));
    if (what & COMBINE)
        EP(MPIX_Ep_combine_enqueue(s->h, &s->ci, &s->co, s->stream));
}

static float median(float *us, int n, float *low, float *high) {
    float *all = malloc((size_t)n * 4);
    MPI_Allreduce(us, all, n, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    qsort(all, (size_t)n, 4, g_ascending);
    float m = all[n / 2];
    *low = all[0];
    *high = all[(n * 99 + 99) / 100 - 1];
    free(all);
    return m;
}

static float time_one(side *s, cudaGraphExec_t exec, int what) {
    cudaEvent_t e0, e1;
    float us;
    CU(cudaEventCreate(&e0));
    CU(cudaEventCreate(&e1));
    call(s, what & ~ROUTE ? what & ~ROUTE : what); /* lines the GPUs up */
    CU(cudaEventRecord(e0, s->stream));
    if (exec)
        CU(cudaGraphLaunch(exec, s->stream));
    else
        call(s, what);
    CU(cudaEventRecord(e1, s->stream));
    CU(cudaStreamSynchronize(s->stream));
    CU(cudaEventElapsedTime(&us, e0, e1));
    CU(cudaEventDestroy(e0));
    CU(cudaEventDestroy(e1));
    return us * 1000;
}

static void measure(side *s, const char *name, long tokens, int what, int iterations, const char *note) {
    float *us = malloc((size_t)iterations * 4), low, high, low2, high2;
    for (int i = -5; i < iterations; i++) {
        float t = time_one(s, NULL, what);
        if (i >= 0)
            us[i] = t;
    }
    float m = median(us, iterations, &low, &high);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CU(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < IN_GRAPH; i++)
        call(s, what);
    CU(cudaStreamEndCapture(s->stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    int n = iterations / 4 + 3;
    for (int i = -2; i < n; i++) {
        float t = time_one(s, exec, what) / IN_GRAPH;
        if (i >= 0)
            us[i < iterations ? i : 0] = t;
    }
    float g = median(us, n < iterations ? n : iterations, &low2, &high2);
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    if (rank == 0)
        printf("%-22s %5ld %-20s %9.1f %9.1f %9.1f %9.1f  %s\n", name, tokens, note, low, m, high, g, "");
    fflush(stdout);
    free(us);
}

/* A sample of the rows that came. */
static int verify(side *s, long hidden) {
    size_t row = (size_t)hidden * 2;
    int32_t *src = malloc((size_t)s->rows * 4);
    int64_t *tok = malloc((size_t)s->rows * 8);
    char *want = malloc(row), *got = malloc(row);
    int wrong = 0, seen = 0;
    MPIX_Ep_dispatch_out out = s->out;
    out.src_rank = s->src;
    out.src_token = (MPI_Count *)s->tok;
    EP(MPIX_Ep_dispatch(s->h, &s->in, &out));
    CU(cudaMemcpy(src, s->src, (size_t)s->rows * 4, cudaMemcpyDefault));
    CU(cudaMemcpy(tok, s->tok, (size_t)s->rows * 8, cudaMemcpyDefault));
    for (long i = 0; i < s->rows; i += 1 + i % 5) {
        if (src[i] < 0 || src[i] >= size)
            continue;
        g_row(5, (uint64_t)src[i], (uint64_t)tok[i], MPIX_EP_BF16, hidden, want);
        CU(cudaMemcpy(got, s->o + (size_t)i * row, row, cudaMemcpyDefault));
        wrong += memcmp(got, want, row) != 0;
        seen++;
    }
    free(src), free(tok), free(want), free(got);
    return wrong || !seen;
}

static int run(int ll, int expert, long T, long H, int K, int E, int iterations, int sms) {
    side s = {0};
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.mode = ll ? MPIX_EP_LL : MPIX_EP_HT;
    c.layout = expert ? MPIX_EP_EXPERT : ll ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    c.memkind = MPIX_EP_CUDA;
    c.max_topk = K;
    c.num_experts = E;
    c.max_tokens = T;
    c.max_row_bytes = 2 * H;
    c.num_sms = ll ? sms : 0;
    c.timeout_s = 20;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &s.ep));
    EP(MPIX_Ep_handle_create(s.ep, &s.h));
    CU(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    s.rows = T * size * (expert ? K : 1);
    CU(cudaMalloc((void **)&s.x, (size_t)(T * H) * 2));
    CU(cudaMalloc((void **)&s.y, (size_t)(T * H) * 2));
    CU(cudaMalloc((void **)&s.ids, (size_t)T * (size_t)K * 4));
    CU(cudaMalloc((void **)&s.src, (size_t)s.rows * 4));
    CU(cudaMalloc((void **)&s.tok, (size_t)s.rows * 8));
    EP(MPIX_Ep_alloc(s.ep, s.rows * H * 2, MPI_INFO_NULL, &s.o));
    EP(MPIX_Ep_alloc(s.ep, s.rows * ((H + 127) / 128) * 4, MPI_INFO_NULL, &s.os));
    char *hx = malloc((size_t)(T * H) * 2);
    int32_t *ids = malloc((size_t)T * (size_t)K * 4);
    for (long t = 0; t < T; t++) {
        g_ids(99, rank, t, K, E, 0, ids + t * K);
        g_row(5, (uint64_t)rank, (uint64_t)t, MPIX_EP_BF16, H, hx + (size_t)(t * H) * 2);
    }
    CU(cudaMemcpy(s.x, hx, (size_t)(T * H) * 2, cudaMemcpyDefault));
    CU(cudaMemcpy(s.ids, ids, (size_t)T * (size_t)K * 4, cudaMemcpyDefault));
    CU(cudaMemset(s.src, 0xff, (size_t)s.rows * 4));
    MPIX_INIT(&s.r); MPIX_INIT(&s.in); MPIX_INIT(&s.out); MPIX_INIT(&s.ci); MPIX_INIT(&s.co);
    s.r.num_tokens = T;
    s.r.topk = K;
    s.r.ids = s.ids;
    s.in.hidden = s.ci.hidden = H;
    s.in.x = (MPIX_Ep_rows){s.x, 0, MPIX_EP_BF16, 0, NULL, 0};
    s.out.capacity_rows = s.rows;
    s.out.x = s.ci.x = (MPIX_Ep_rows){s.o, 0, MPIX_EP_BF16, 0, NULL, 0};
    s.co.y = (MPIX_Ep_rows){s.y, 0, MPIX_EP_BF16, 0, NULL, 0};
    EP(MPIX_Ep_route(s.h, &s.r, NULL));
    int bad = verify(&s, H);
    MPI_Barrier(MPI_COMM_WORLD);
    const char *layout = expert ? "EXPERT" : ll ? "SLOTS" : "COMPACT";
    char name[64], note[64];
    snprintf(name, sizeof name, "%s %s%s", ll ? "ll" : "ht", layout, bad ? " WRONG" : "");
    int more = ll ? 0 : ROUTE;
    snprintf(note, sizeof note, "%sdispatch", ll ? "" : "route + ");
    measure(&s, name, T, more | DISPATCH, iterations, note);
    measure(&s, name, T, COMBINE, iterations, "combine");
    measure(&s, name, T, more | DISPATCH | COMBINE, iterations, "both");
    if (ll || expert) {
        s.out.x = (MPIX_Ep_rows){s.o, 0, MPIX_EP_F8E4M3, MPIX_EP_SCALES_F32, s.os, 0};
        measure(&s, name, T, more | DISPATCH, iterations, "dispatch to fp8");
    }
    EP(MPIX_Ep_free(&s.ep));
    CU(cudaStreamDestroy(s.stream));
    CU(cudaFree(s.x)); CU(cudaFree(s.y)); CU(cudaFree(s.ids)); CU(cudaFree(s.src)); CU(cudaFree(s.tok));
    free(hx), free(ids);
    return bad;
}

int main(int argc, char **argv) {
    int devices = 0, bad = 0;
    long only = argc > 4 ? atol(argv[1]) : 0, H = argc > 4 ? atol(argv[2]) : 7168;
    int K = argc > 4 ? atoi(argv[3]) : 8, E = argc > 4 ? atoi(argv[4]) : 256, iterations = argc > 5 ? atoi(argv[5]) : 200, sms = argc > 6 ? atoi(argv[6]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    struct cudaDeviceProp prop;
    CU(cudaGetDeviceProperties(&prop, rank % devices));
    if (rank == 0)
        printf("# mpix_ep_gpu_ll: %d ranks on %d GPUs (%s), hidden %ld, top-%d of %d, %d calls, sms %d\n# %-20s %5s %-20s %9s %9s %9s %9s\n", size, devices,
               prop.name, H, K, E, iterations, sms, "mode", "tokens", "call", "min us", "median", "p99", "in a graph");
    static const long sizes[] = {1, 8, 32, 128, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!only || only == sizes[i] || i == 0)
            for (int how = 0; how < 4; how++) { /* SLOTS, EXPERT, HT COMPACT, HT EXPERT */
                long T = only ? only : sizes[i];
                if ((only && i > 0) || (how > 1 && sms))
                    continue;
                bad |= run(how < 2, how % 2, T, H, K, E, iterations, sms);
            }
    MPI_Finalize();
    return bad;
}
