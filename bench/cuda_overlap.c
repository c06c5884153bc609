/*
 * cuda_overlap.c - --overlap in GPU memory: the halves of a call and a matrix product between them:
 * how long each takes, and what the product loses. On one stream begin, a bf16 product (cuBLAS,
 * 4096 x 4096 x 4096), end; times by events. The product alone and the halves alone are timed in
 * the same loop, in turn.
 */
#include "config.h"

#include "bench/bench.h"

#if defined(HAVE_CUDA) && defined(BENCH_CUBLAS)
#include "bench/cuda.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4096, UNTIMED = 3 };

static struct {
    cublasHandle_t handle;
    cublasStatus_t (*create)(cublasHandle_t *);
    cublasStatus_t (*destroy)(cublasHandle_t);
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
    void *m[3];
} blas;

static void find(const bench *b, void *lib, const char *name, void *function) {
    void *p = dlsym(lib, name);
    if (!p)
        bench_die(b, "--overlap: cuBLAS lacks %s", name);
    memcpy(function, &p, sizeof p);
}

static void blas_load(const bench *b) {
    char name[64], path[512];
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    snprintf(path, sizeof path, "%s/%s", BENCH_CUDA_LIBS, name);
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        bench_die(b, "--overlap: %s can't be loaded", name);
    find(b, lib, "cublasCreate_v2", &blas.create);
    find(b, lib, "cublasDestroy_v2", &blas.destroy);
    find(b, lib, "cublasSetStream_v2", &blas.set_stream);
    find(b, lib, "cublasGemmEx", &blas.gemm);
}

static void blas_open(cuda_run *x) {
    uint16_t *values = bench_alloc(x->b, (size_t)N * N * sizeof *values);
    if (!blas.gemm)
        blas_load(x->b);
    if (blas.create(&blas.handle) || blas.set_stream(blas.handle, x->stream))
        bench_die(x->b, "--overlap: cuBLAS can't be used");
    for (size_t i = 0; i < (size_t)N * N; i++) { /* bf16 from 1/16 to 2, of both signs */
        uint64_t bits = bench_mix(i);
        values[i] = (uint16_t)((bits & 0x807f) | (123 + (bits >> 16) % 5) << 7);
    }
    for (int i = 0; i < 3; i++) {
        CUDA(cudaMalloc(&blas.m[i], (size_t)N * N * sizeof *values));
        CUDA(cudaMemcpy(blas.m[i], values, (size_t)N * N * sizeof *values, cudaMemcpyHostToDevice));
    }
    free(values);
}

static void blas_close(cuda_run *x) {
    blas.destroy(blas.handle);
    for (int i = 0; i < 3; i++)
        CUDA(cudaFree(blas.m[i]));
}

static void product(cuda_run *x) {
    static const float one = 1.0f, zero = 0.0f;
    if (blas.gemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, blas.m[0], CUDA_R_16BF, N,
                  blas.m[1], CUDA_R_16BF, N, &zero, blas.m[2], CUDA_R_16BF, N, CUBLAS_COMPUTE_32F,
                  CUBLAS_GEMM_DEFAULT))
        bench_die(x->b, "--overlap: cublasGemmEx failed");
}

enum { ALONE, BETWEEN, WITHOUT, HOWS }; /* the product alone; begin, product, end; begin and end */
enum { SPANS = BENCH_SPANS };

/* One call in halves; us: from event to event, and from the first to the last. */
static void halves(cuda_run *x, int combine, int how, double us[SPANS]) {
    MPI_Barrier(x->b->comm);
    cuda_ours_route(x, CUDA_BLOCKING);
    /* Lines the GPUs up, and lets the host know the counts. */
    cuda_ours_dispatch(x, CUDA_ON_STREAM, CUDA_LEAN);
    CUDA(cudaEventRecord(x->event[0], x->stream));
    if (how != ALONE && combine)
        cuda_ours_combine(x, CUDA_BEGIN, 0);
    else if (how != ALONE)
        cuda_ours_dispatch(x, CUDA_BEGIN, CUDA_LEAN);
    CUDA(cudaEventRecord(x->event[1], x->stream));
    if (how != WITHOUT)
        product(x);
    CUDA(cudaEventRecord(x->event[2], x->stream));
    if (how != ALONE)
        cuda_ours_end(x, combine);
    CUDA(cudaEventRecord(x->event[3], x->stream));
    CUDA(cudaStreamSynchronize(x->stream));
    for (int s = 0; s < 3; s++)
        us[s] = cuda_elapsed(x, s, s + 1);
    us[BENCH_WHOLE] = cuda_elapsed(x, 0, 3);
}

void cuda_overlap(cuda_run *x, bench_result *r) {
    const int n = x->b->opt.iterations, combines = x->b->has_combine;
    double *all = bench_alloc(x->b, (size_t)(HOWS * SPANS * n) * sizeof *all), us[SPANS];
    blas_open(x);
    for (int combine = 0; combine <= combines; combine++) {
        bench_halves *out = &r->halves[r->nhalves++];
        bench_stats *const to[HOWS] = {&out->alone, out->between, out->without};
        out->op = combine ? "combine" : "dispatch";
        bench_progress(x->b, "%ld tokens: overlap of %s", x->n, out->op);
        for (int i = -UNTIMED; i < n; i++)
            for (int how = 0; how < HOWS; how++) {
                halves(x, combine, how, us);
                for (int s = 0; s < SPANS && i >= 0; s++)
                    all[(how * SPANS + s) * n + i] = us[s];
            }
        for (int how = 0; how < HOWS; how++)
            for (int s = 0; s < SPANS; s++)
                if (how != ALONE)
                    to[how][s] = bench_stats_of(x->b, all + (how * SPANS + s) * n, n);
                else if (s == BENCH_MIDDLE)
                    out->alone = bench_stats_of(x->b, all + s * n, n);
    }
    bench_progress(x->b, "%s", "");
    blas_close(x);
    free(all);
}

const char *cuda_overlap_lacks(void) { return NULL; }

#elif defined(HAVE_CUDA)
#include "bench/cuda.h"

const char *cuda_overlap_lacks(void) {
    return "--overlap: this build has no cuBLAS (cublas_v2.h was not found when it was configured)";
}
void cuda_overlap(cuda_run *x, bench_result *r) {
    (void)r;
    bench_die(x->b, "%s", cuda_overlap_lacks());
}
#endif
