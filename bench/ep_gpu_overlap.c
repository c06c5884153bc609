/*
 * ep_gpu_overlap.c - the halves of a call and a matrix product between them: how long each takes,
 * and what the product loses.
 *
 *   mpix_ep_gpu_overlap [tokens hidden topk experts [iterations [sms ...]]]
 *       sms -1: MPIX_EP_SMS_NONE
 *
 * On one stream: begin, a bf16 matrix product (cuBLAS, 4096 x 4096 x 4096), end; times by events,
 * the maximum over ranks, medians. The product alone is timed in the same loop, in turn. Rows and
 * sums are checked at the end.
 */
#include "../tests/gpu/gpu.h"

#ifdef OVERLAP_CUBLAS
#include <cublas_v2.h>
#include <dlfcn.h>

enum { N = 4096 };

static struct {
    cublasHandle_t handle;
    cublasStatus_t (*create)(cublasHandle_t *);
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
    char *a, *b, *c;
} blas;

static void find(void *lib, const char *name, void *function) {
    void *p = dlsym(lib, name);
    if (!p) {
        fprintf(stderr, "cuBLAS lacks %s\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memcpy(function, &p, sizeof p);
}

static void blas_open(cudaStream_t stream) {
    char name[64];
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", OVERLAP_CUDA_LIBS, name);
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!lib) {
        fprintf(stderr, "%s can't be loaded\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    find(lib, "cublasCreate_v2", &blas.create);
    find(lib, "cublasSetStream_v2", &blas.set_stream);
    find(lib, "cublasGemmEx", &blas.gemm);
    if (blas.create(&blas.handle) || blas.set_stream(blas.handle, stream)) {
        fprintf(stderr, "cuBLAS can't be used\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    uint16_t *h = malloc((size_t)N * N * 2);
    for (int i = 0; i < N; i++)
        g_row(11, 1, (uint64_t)i, MPIX_EP_BF16, N, h + (size_t)i * N);
    CU(cudaMalloc((void **)&blas.a, (size_t)N * N * 2));
    CU(cudaMalloc((void **)&blas.b, (size_t)N * N * 2));
    CU(cudaMalloc((void **)&blas.c, (size_t)N * N * 2));
    CU(cudaMemcpy(blas.a, h, (size_t)N * N * 2, cudaMemcpyDefault));
    CU(cudaMemcpy(blas.b, h, (size_t)N * N * 2, cudaMemcpyDefault));
    free(h);
}

static void product(void) {
    static const float one = 1.0f, zero = 0.0f;
    if (blas.gemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, blas.a, CUDA_R_16BF, N,
                  blas.b, CUDA_R_16BF, N, &zero, blas.c, CUDA_R_16BF, N, CUBLAS_COMPUTE_32F,
                  CUBLAS_GEMM_DEFAULT)) {
        fprintf(stderr, "cublasGemmEx failed\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static float median(float *v, int n) {
    float *all = malloc((size_t)n * 4), m;
    MPI_Allreduce(v, all, n, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    qsort(all, (size_t)n, 4, g_ascending);
    m = all[n / 2];
    free(all);
    return m;
}

enum { ALONE, BETWEEN, WITHOUT, HOWS }; /* the product alone; begin, product, end; begin and end */
enum { BEGIN, PRODUCT, END, WHOLE, SPANS };

typedef struct work {
    MPIX_Ep_handle h;
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
    cudaStream_t stream;
} work;

static void measure(work *w, int combine, int iterations, float result[HOWS][SPANS]) {
    float *us[HOWS][SPANS];
    cudaEvent_t e[4];
    for (int i = 0; i < 4; i++)
        CU(cudaEventCreate(&e[i]));
    for (int i = 0; i < HOWS * SPANS; i++)
        us[i / SPANS][i % SPANS] = calloc((size_t)iterations, 4);
    for (int i = -3; i < iterations; i++)
        for (int how = 0; how < HOWS; how++) {
            MPI_Barrier(MPI_COMM_WORLD);
            EP(MPIX_Ep_route(w->h, &w->r, NULL));
            /* lines the GPUs up, and lets the host know the counts */
            EP(MPIX_Ep_dispatch_enqueue(w->h, &w->in, &w->out, w->stream));
            CU(cudaEventRecord(e[0], w->stream));
            if (how != ALONE && combine)
                EP(MPIX_Ep_combine_begin_enqueue(w->h, &w->ci, &w->co, w->stream));
            else if (how != ALONE)
                EP(MPIX_Ep_dispatch_begin_enqueue(w->h, &w->in, &w->out, w->stream));
            CU(cudaEventRecord(e[1], w->stream));
            if (how != WITHOUT)
                product();
            CU(cudaEventRecord(e[2], w->stream));
            if (how != ALONE && combine)
                EP(MPIX_Ep_combine_end_enqueue(w->h, w->stream));
            else if (how != ALONE)
                EP(MPIX_Ep_dispatch_end_enqueue(w->h, w->stream));
            CU(cudaEventRecord(e[3], w->stream));
            CU(cudaStreamSynchronize(w->stream));
            for (int s = 0; s < SPANS && i >= 0; s++) {
                CU(cudaEventElapsedTime(&us[how][s][i], e[s == WHOLE ? 0 : s],
                                        e[s == WHOLE ? 3 : s + 1]));
                us[how][s][i] *= 1000;
            }
        }
    for (int i = 0; i < HOWS * SPANS; i++) {
        result[i / SPANS][i % SPANS] = median(us[i / SPANS][i % SPANS], iterations);
        free(us[i / SPANS][i % SPANS]);
    }
    for (int i = 0; i < 4; i++)
        CU(cudaEventDestroy(e[i]));
}

int main(int argc, char **argv) {
    int rank, size, devices = 0, bad = 0;
    long T = argc > 4 ? atol(argv[1]) : 4096, H = argc > 4 ? atol(argv[2]) : 7168,
         K = argc > 4 ? atol(argv[3]) : 8, E = argc > 4 ? atol(argv[4]) : 256;
    int iterations = argc > 5 ? atoi(argv[5]) : 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    work w;
    CU(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    blas_open(w.stream);
    if (rank == 0)
        printf("# mpix_ep_gpu_overlap: %d ranks, %ld tokens, hidden %ld bf16, top-%ld of %ld, "
               "product %d^3, medians of %d, us\n"
               "# what sms | product alone | with a product between: begin product end, slower by "
               "%% | without: begin end whole\n",
               size, T, H, K, E, (int)N, iterations);
    for (int i = 6; i < (argc > 6 ? argc : 8); i++) {
        int sms = argc > 6 ? atoi(argv[i]) : i == 6 ? MPIX_EP_SMS_NONE : 0;
        MPIX_Ep_config c;
        MPIX_Ep ep;
        MPIX_INIT(&c);
        c.memkind = MPIX_EP_CUDA;
        c.max_topk = (int)K;
        c.num_experts = E;
        c.max_tokens = T;
        c.max_row_bytes = 2 * H;
        c.num_sms = sms;
        c.timeout_s = 20;
        EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
        EP(MPIX_Ep_handle_create(ep, &w.h));
        char *x, *y, *o, *hx = malloc((size_t)(T * H) * 2), *hy = malloc((size_t)(T * H) * 2);
        int32_t *ids = malloc((size_t)(T * K) * 4), *di;
        for (long t = 0; t < T; t++) {
            g_ids(99, rank, t, (int)K, (int)E, 0, ids + t * K);
            g_row(5, (uint64_t)rank, (uint64_t)t, MPIX_EP_BF16, H, hx + t * H * 2);
        }
        CU(cudaMalloc((void **)&x, (size_t)(T * H) * 2));
        CU(cudaMalloc((void **)&y, (size_t)(T * H) * 2));
        CU(cudaMalloc((void **)&di, (size_t)(T * K) * 4));
        CU(cudaMemcpy(x, hx, (size_t)(T * H) * 2, cudaMemcpyDefault));
        CU(cudaMemcpy(di, ids, (size_t)(T * K) * 4, cudaMemcpyDefault));
        MPIX_INIT(&w.r);
        MPIX_INIT(&w.in);
        MPIX_INIT(&w.out);
        MPIX_INIT(&w.ci);
        MPIX_INIT(&w.co);
        w.r.num_tokens = T, w.r.topk = (int)K, w.r.ids = di;
        MPI_Count total = 0;
        MPIX_Ep_counts counts;
        MPIX_INIT(&counts);
        counts.recv_total = &total;
        EP(MPIX_Ep_route(w.h, &w.r, &counts));
        EP(MPIX_Ep_alloc(ep, total * H * 2, MPI_INFO_NULL, &o));
        w.in.hidden = w.ci.hidden = H;
        w.in.x = (MPIX_Ep_rows){x, 0, MPIX_EP_BF16, 0, NULL, 0};
        w.out.capacity_rows = total;
        w.out.x = w.ci.x = (MPIX_Ep_rows){o, 0, MPIX_EP_BF16, 0, NULL, 0};
        w.co.y.data = y;
        for (int combine = 0; combine < 2; combine++) {
            float t[HOWS][SPANS];
            CU(cudaMemset(combine ? y : o, 0xA5, (size_t)(combine ? T : total) * (size_t)H * 2));
            measure(&w, combine, iterations, t);
            if (rank == 0)
                printf("%-8s %3d | %7.1f | %7.1f %7.1f %7.1f %6.1f%% | %7.1f %7.1f %7.1f\n",
                       combine ? "combine" : "dispatch", sms, t[ALONE][PRODUCT], t[BETWEEN][BEGIN],
                       t[BETWEEN][PRODUCT], t[BETWEEN][END],
                       100 * (t[BETWEEN][PRODUCT] / t[ALONE][PRODUCT] - 1), t[WITHOUT][BEGIN],
                       t[WITHOUT][END], t[WITHOUT][WHOLE]);
        }
        /* Experts gave back what they got: a token's sum is its row times the ranks that it went
         * to, a small number, rounded once. */
        CU(cudaMemcpy(hy, y, (size_t)(T * H) * 2, cudaMemcpyDefault));
        long wrong = 0;
        for (long t = 0; t < T; t++) {
            int n = 0, seen[64] = {0};
            for (long k = 0; k < K; k++) {
                long owner = ids[t * K + k] / (E / size);
                n += !seen[owner];
                seen[owner] = 1;
            }
            /* powers of two are exact */
            for (long j = t * H; j < (t + 1) * H && (n & (n - 1)) == 0; j++) {
                uint32_t a = (uint32_t)((uint16_t *)hx)[j] << 16,
                         b = (uint32_t)((uint16_t *)hy)[j] << 16;
                float fa, fb;
                memcpy(&fa, &a, 4), memcpy(&fb, &b, 4);
                wrong += fb != (float)n * fa;
            }
        }
        if (wrong)
            fprintf(stderr, "rank %d, %d SMs: %ld elements of sums are wrong\n", rank, sms, wrong);
        bad |= wrong != 0;
        EP(MPIX_Ep_free(&ep));
        CU(cudaFree(x));
        CU(cudaFree(y));
        CU(cudaFree(di));
        free(hx), free(hy), free(ids);
    }
    MPI_Finalize();
    return bad;
}
#else
int main(void) {
    puts("mpix_ep_gpu_overlap: this build has no cuBLAS (cublas_v2.h was not found when it was "
         "configured)");
    return 77;
}
#endif
