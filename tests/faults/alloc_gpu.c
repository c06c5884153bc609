/*
 * alloc_gpu.c - as alloc_ep, for a context in GPU memory: the n-th allocation that the library
 * makes in a call fails on one rank. Options: alloc.h.
 *
 * Runs on the emulated GPU of check-emu. Every batch has its own number in all its rows, so rows of
 * another call are seen.
 */
#include "alloc.h"
#include "harness.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

enum { CREATE, HANDLE, ALLOC, ROUTE, DISPATCH, IDISPATCH, COMBINE, STEPS };
static const char *const names[STEPS + 1] = {"create",  "handle_create",   "alloc",
                                             "route",   "dispatch",        "idispatch",
                                             "combine", "another dispatch"};
enum { TOKENS = 16, HIDDEN = 64, CALLS = 3 };

static float number; /* of the last batch */

static MPIX_Ep ep;
static MPIX_Ep_handle handle;
static float *rows[CALLS], *out[CALLS], *y; /* GPU memory; out is reached by peers */
static MPI_Count received;

static void *gpu(size_t bytes) {
    void *p = NULL;
    REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess, "no GPU memory");
    return p;
}

static void set(float *to, float value, size_t n) {
    float *host = malloc(n * sizeof *host);
    REQUIRE(host, "no memory");
    for (size_t i = 0; i < n; i++)
        host[i] = value;
    REQUIRE(cudaMemcpy(to, host, n * sizeof *host, cudaMemcpyDefault) == cudaSuccess, "no copy");
    free(host);
}

static void right(const float *from, float value, size_t n, const char *what) {
    float *host = malloc(n * sizeof *host + 1);
    size_t i = 0;
    REQUIRE(host && cudaMemcpy(host, from, n * sizeof *host, cudaMemcpyDefault) == cudaSuccess,
            "no copy");
    while (i < n && host[i] == value)
        i++;
    CHECK(i == n, "%s: element %zu of %zu is %g, expected %g", what, i, n,
          i < n ? (double)host[i] : 0, (double)value);
    free(host);
}

static int make(void) {
    MPIX_Ep_config config;
    MPIX_INIT(&config);
    config.memkind = MPIX_EP_CUDA;
    config.max_topk = 1;
    config.num_experts = t_size;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * 4;
    config.timeout_s = 60;
    arm(CREATE);
    int code = MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep);
    disarm(CREATE);
    return agree(CREATE, code);
}

static void route(int step) {
    MPIX_Ep_routing r;
    MPIX_Ep_counts counts;
    int32_t ids[TOKENS];
    void *there = gpu(sizeof ids);
    for (int t = 0; t < TOKENS; t++)
        ids[t] = t % t_size;
    REQUIRE(cudaMemcpy(there, ids, sizeof ids, cudaMemcpyDefault) == cudaSuccess, "no copy");
    MPIX_INIT(&r);
    MPIX_INIT(&counts);
    r.num_tokens = TOKENS;
    r.topk = 1;
    r.idx_bits = 32;
    r.ids = there;
    counts.recv_total = &received;
    arm(step);
    int code = MPIX_Ep_route(handle, &r, &counts);
    disarm(step);
    if (!agree(step, code))
        CHECK_OK(MPIX_Ep_route(handle, &r, &counts));
    cudaFree(there);
}

static int start(int i, MPIX_Xfer *xfer) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out to;
    MPIX_INIT(&in);
    MPIX_INIT(&to);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = rows[i], .dtype = MPIX_EP_F32};
    to.x.data = out[i];
    to.capacity_rows = TOKENS * t_size;
    return xfer ? MPIX_Ep_idispatch(handle, &in, &to, xfer) : MPIX_Ep_dispatch(handle, &in, &to);
}

/* Before it is armed: the test's own memory would fail too. */
static void fill(int i) { set(rows[i], number += 1, TOKENS * HIDDEN); }

static void dispatch(int step) {
    fill(0);
    arm(step);
    int code = start(0, NULL);
    disarm(step);
    if (!agree(step, code))
        CHECK_OK(start(0, NULL));
    right(out[0], number, (size_t)received * HIDDEN, "dispatch");
}

/* Three, the failure in the second. */
static void three(void) {
    MPIX_Xfer xfers[CALLS] = {MPIX_XFER_NULL, MPIX_XFER_NULL, MPIX_XFER_NULL};
    int codes[CALLS];
    for (int i = 0; i < CALLS; i++)
        fill(i);
    for (int i = 0; i < CALLS; i++) {
        if (i == 1)
            arm(IDISPATCH);
        codes[i] = start(i, &xfers[i]);
        if (i == 1)
            disarm(IDISPATCH);
        if (codes[i] == MPI_SUCCESS)
            codes[i] = MPIX_Xfer_wait(&xfers[i]);
        if (i == 1)
            agree(IDISPATCH, codes[i]);
        else
            CHECK(codes[i] == MPI_SUCCESS, "call %d beside one that failed has failed", i);
    }
    for (int i = 0; i < CALLS; i++)
        if (codes[i] == MPI_SUCCESS)
            right(out[i], number - (float)(CALLS - 1 - i), (size_t)received * HIDDEN, "idispatch");
}

static void combine(int step) {
    MPIX_Ep_combine_in in;
    MPIX_Ep_combine_out to;
    MPIX_INIT(&in);
    MPIX_INIT(&to);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = out[0], .dtype = MPIX_EP_F32};
    to.y = (MPIX_Ep_rows){.data = y, .dtype = MPIX_EP_F32};
    set(out[0], number += 1, (size_t)received * HIDDEN);
    arm(step);
    int code = MPIX_Ep_combine(handle, &in, &to);
    disarm(step);
    if (!agree(step, code))
        CHECK_OK(MPIX_Ep_combine(handle, &in, &to));
    right(y, number, TOKENS * HIDDEN, "combine");
}

static void life(void) {
    size_t bytes = (size_t)TOKENS * (size_t)t_size * HIDDEN * 4;
    if (!make())
        return;
    arm(HANDLE);
    int code = MPIX_Ep_handle_create(ep, &handle);
    disarm(HANDLE);
    if (!agree(HANDLE, code))
        REQUIRE(CHECK_OK(MPIX_Ep_handle_create(ep, &handle)), "no handle");
    for (int i = 0; i < CALLS; i++) {
        if (i == 0)
            arm(ALLOC);
        code = MPIX_Ep_alloc(ep, (MPI_Count)bytes, MPI_INFO_NULL, &out[i]);
        if (i == 0)
            disarm(ALLOC);
        if (!(i ? CHECK_OK(code) : agree(ALLOC, code)))
            REQUIRE(CHECK_OK(MPIX_Ep_alloc(ep, (MPI_Count)bytes, MPI_INFO_NULL, &out[i])),
                    "no memory");
        rows[i] = gpu(TOKENS * HIDDEN * 4);
    }
    y = gpu(TOKENS * HIDDEN * 4);
    for (int round = 0; round < 2; round++) {
        route(ROUTE);
        dispatch(DISPATCH);
        three();
        dispatch(STEPS);
        combine(COMBINE);
    }
    for (int i = 0; i < CALLS; i++) {
        CHECK_OK(MPIX_Ep_dealloc(ep, out[i]));
        cudaFree(rows[i]);
    }
    cudaFree(y);
    CHECK_OK(MPIX_Ep_handle_free(&handle));
    CHECK_OK(MPIX_Ep_free(&ep));
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "alloc_gpu");
    alloc_run(argc, argv, life, STEPS, names);
    return t_end();
}
