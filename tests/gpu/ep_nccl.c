/*
 * ep_nccl.c - NCCL's collectives beside ours, on another stream, in the same order on all ranks:
 * both end, and both are right.
 *
 *   ep_nccl [iterations]
 *
 * Each rank enqueues a turn (route, dispatch, combine) on one stream and an all-reduce on the
 * other, all without waiting; whichever comes first takes its multiprocessors first, on each rank
 * as it happens. NCCL is loaded when it is there; without it, or where ranks share a GPU, which
 * NCCL refuses, the program says so and is not a failure.
 */
#include "config.h"

#include "gpu.h"

#ifdef HAVE_NCCL
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

enum { TOKENS = 1024, HIDDEN = 2048, TOPK = 4, EXPERTS = 16, FLOATS = 1 << 22 };

static int rank, size, failures;

static struct {
    ncclResult_t (*get_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
} nccl;
#define NCCL(call) \
    do { \
        ncclResult_t err_ = (call); \
        if (err_ != ncclSuccess) { \
            fprintf(stderr, "%s:%d: %s: NCCL error %d\n", __FILE__, __LINE__, #call, (int)err_); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static int find(void *lib, const char *name, void *function) {
    void *p = dlsym(lib, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

static int nccl_load(void) {
    void *lib = dlopen(MPIX_NCCL_DIR "/lib/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    lib = lib ? lib : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return lib && find(lib, "ncclGetUniqueId", &nccl.get_id) &&
           find(lib, "ncclCommInitRank", &nccl.init) &&
           find(lib, "ncclCommDestroy", &nccl.destroy) && find(lib, "ncclAllReduce", &nccl.reduce);
}

/* A token's sum is its row times the ranks that it went to; NCCL's is known as well. */
static void check_sums(const int32_t *ids, const float *x, float *y, const float *dy,
                       const float *dsum, int sms, int i) {
    float *got = malloc(FLOATS * 4);
    CU(cudaMemcpy(y, dy, TOKENS * HIDDEN * 4, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(got, dsum, FLOATS * 4, cudaMemcpyDeviceToHost));
    int wrong = 0, wrong_sums = 0;
    for (int t = 0; t < TOKENS; t++) {
        int n = 0, seen[64] = {0};
        for (int k = 0; k < TOPK; k++) {
            int owner = ids[t * TOPK + k] / (EXPERTS / size);
            n += !seen[owner];
            seen[owner] = 1;
        }
        for (int j = 0; j < HIDDEN; j++)
            wrong += y[t * HIDDEN + j] != (float)n * x[t * HIDDEN + j];
    }
    for (int j = 0; j < FLOATS; j++)
        wrong_sums += got[j] != (float)(size * size * (size * (j % 127) + size * (size - 1) / 2));
    CHECK(!wrong && !wrong_sums, "%d SMs, iteration %d: %d sums of ours and %d of NCCL's are wrong",
          sms, i, wrong, wrong_sums);
    free(got);
}

static MPIX_Ep context(int sms) {
    MPIX_Ep_config c;
    MPIX_Ep ep;
    MPIX_INIT(&c);
    c.memkind = MPIX_EP_CUDA;
    c.max_topk = TOPK;
    c.num_experts = EXPERTS;
    c.max_tokens = TOKENS;
    c.max_row_bytes = HIDDEN * 4;
    c.num_sms = sms;
    c.timeout_s = 30;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    return ep;
}

/* sms: of our context. */
static void run(ncclComm_t comm, int sms, int iterations) {
    MPIX_Ep ep = context(sms);
    MPIX_Ep_handle h;
    cudaStream_t ours, theirs;
    EP(MPIX_Ep_handle_create(ep, &h));
    CU(cudaStreamCreateWithFlags(&ours, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking));
    int32_t *ids = malloc(TOKENS * TOPK * 4), *dids;
    float *x = malloc(TOKENS * HIDDEN * 4), *y = malloc(TOKENS * HIDDEN * 4),
          *sum = malloc(FLOATS * 4), *dx, *dy, *dsum, *rows;
    for (int t = 0; t < TOKENS; t++) {
        g_ids(3, rank, t, TOPK, EXPERTS, 0, ids + t * TOPK);
        for (int j = 0; j < HIDDEN; j++)
            x[t * HIDDEN + j] = (float)((rank * 31 + t * 7 + j) % 101);
    }
    for (int i = 0; i < FLOATS; i++)
        sum[i] = (float)(i % 127 + rank);
    CU(cudaMalloc((void **)&dids, TOKENS * TOPK * 4));
    CU(cudaMalloc((void **)&dx, TOKENS * HIDDEN * 4));
    CU(cudaMalloc((void **)&dy, TOKENS * HIDDEN * 4));
    CU(cudaMalloc((void **)&dsum, FLOATS * 4));
    EP(MPIX_Ep_alloc(ep, (MPI_Count)size * TOKENS * HIDDEN * 4, MPI_INFO_NULL, &rows));
    CU(cudaMemcpy(dids, ids, TOKENS * TOPK * 4, cudaMemcpyHostToDevice));
    CU(cudaMemcpy(dx, x, TOKENS * HIDDEN * 4, cudaMemcpyHostToDevice));
    MPIX_Ep_routing r;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
    MPIX_INIT(&r);
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    MPIX_INIT(&ci);
    MPIX_INIT(&co);
    r.num_tokens = TOKENS, r.topk = TOPK, r.ids = dids;
    in.hidden = ci.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){dx, 0, MPIX_EP_F32, 0, NULL, 0};
    out.x = ci.x = (MPIX_Ep_rows){rows, 0, MPIX_EP_F32, 0, NULL, 0};
    out.capacity_rows = (MPI_Count)size * TOKENS;
    co.y.data = dy;
    for (int i = 0; i < iterations; i++) {
        if (i % 16 == 0) {
            CU(cudaMemcpy(dsum, sum, FLOATS * 4, cudaMemcpyHostToDevice));
            CU(cudaMemset(dy, 0xA5, TOKENS * HIDDEN * 4));
            CU(cudaDeviceSynchronize());
        }
        if (rank == i % size && i % 3 == 0)
            usleep(200); /* ranks come apart */
        if (i % 16 < 2)  /* sums of sums soon overflow float's integers */
            NCCL(nccl.reduce(dsum, dsum, FLOATS, ncclFloat, ncclSum, comm, theirs));
        EP(MPIX_Ep_route_enqueue(h, &r, NULL, ours));
        EP(MPIX_Ep_dispatch_enqueue(h, &in, &out, ours));
        if (i % 16 == 2)
            NCCL(nccl.reduce(dsum, dsum, FLOATS, ncclFloat, ncclSum, comm, theirs));
        EP(MPIX_Ep_combine_enqueue(h, &ci, &co, ours));
        if (i % 16 != 15)
            continue;
        CU(cudaStreamSynchronize(ours));
        CU(cudaStreamSynchronize(theirs));
        check_sums(ids, x, y, dy, dsum, sms, i);
    }
    MPIX_Error e;
    MPIX_INIT(&e);
    EP(MPIX_Ep_get_async_error(ep, &e));
    CHECK(e.kind == 0, "%d SMs: asynchronous error: %s", sms, e.text);
    EP(MPIX_Ep_free(&ep));
    CU(cudaStreamDestroy(ours));
    CU(cudaStreamDestroy(theirs));
    CU(cudaFree(dids));
    CU(cudaFree(dx));
    CU(cudaFree(dy));
    CU(cudaFree(dsum));
    free(ids), free(x), free(y), free(sum);
}

int main(int argc, char **argv) {
    int devices = 0, iterations = argc > 1 ? atoi(argv[1]) : 96, all = 0;
    ncclUniqueId id;
    ncclComm_t comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    if (!nccl_load() || devices < size || EXPERTS % size) {
        if (rank == 0)
            printf("ep_nccl: SKIP: %s\n",
                   devices < size ? "ranks share a GPU" : "libnccl.so.2 can't be loaded");
        MPI_Finalize();
        return 0;
    }
    CU(cudaSetDevice(rank));
    if (rank == 0)
        NCCL(nccl.get_id(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    NCCL(nccl.init(&comm, size, id, rank));
    static const int sms[] = {0, 64, MPIX_EP_SMS_NONE};
    for (int i = 0; i < 3; i++)
        run(comm, sms[i], iterations);
    NCCL(nccl.destroy(comm));
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ep_nccl: %d ranks on %d GPUs, %d iterations for each number of SMs: %s\n", size,
               devices, iterations, all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
#else
int main(void) {
    puts("ep_nccl: SKIP: this build has no NCCL (nccl.h was not found when it was configured)");
    return 0;
}
#endif
