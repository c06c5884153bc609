/*
 * life_places.c - allocations and handles come and go: their numbers are used again, memory is
 * freed, and dispatch delivers to what has an old number. Then one rank comes late to a call: the
 * others free what they have, and what it still does touches nothing of theirs.
 *
 *   life_places [host|cuda]    two ranks; cuda: with an emulated GPU
 *                              (MPIX_EP_CUDA_MODULE=tests/emu/libemu.so), whose CUDA IPC aborts if
 *                              memory is freed that others map
 */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "mpix_ep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 300, TOKENS = 8, HIDDEN = 4, BATCH = TOKENS * HIDDEN };

static int rank, failures, cuda;

#define CHECK(cond, ...) \
    ((cond) ? (void)0 \
            : (failures++, fprintf(stderr, "life_places [%d] line %d: ", rank, __LINE__), \
               fprintf(stderr, __VA_ARGS__), (void)fputc('\n', stderr)))

static void ok(int code, const char *what) {
    MPIX_Error error;
    MPIX_INIT(&error);
    if (code == MPI_SUCCESS)
        return;
    MPIX_Error_last(&error);
    CHECK(0, "%s: %s", what, error.text);
}

static MPIX_Ep make(double timeout) {
    MPIX_Ep_config c;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_INIT(&c);
    c.memkind = cuda ? MPIX_EP_CUDA : MPIX_EP_HOST;
    c.max_topk = 1;
    c.num_experts = 2;
    c.max_tokens = TOKENS;
    c.max_row_bytes = 4 * HIDDEN;
    c.timeout_s = timeout;
    ok(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep), "create");
    if (!ep)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return ep;
}

static int move(MPIX_Ep_handle h, float *x, float *out) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out to;
    MPIX_INIT(&in);
    MPIX_INIT(&to);
    in.hidden = HIDDEN;
    in.x = (MPIX_Ep_rows){.data = x, .dtype = MPIX_EP_F32};
    to.capacity_rows = TOKENS;
    to.x.data = out;
    return MPIX_Ep_dispatch(h, &in, &to);
}

/* All tokens go to the other rank. */
static void route(MPIX_Ep_handle h, int *ids) {
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    for (int t = 0; t < TOKENS; t++)
        ids[t] = 1 - rank;
    r.num_tokens = TOKENS;
    r.topk = 1;
    r.ids = ids;
    ok(MPIX_Ep_route(h, &r, NULL), "route");
}

/* x is rank + round + place. */
static void batch(MPIX_Ep_handle h, float *x, float *out, int round) {
    for (int i = 0; i < BATCH; i++)
        x[i] = (float)(1000 * rank + round + i);
    ok(move(h, x, out), "dispatch");
    for (int i = 0; i < BATCH; i++)
        if (out[i] != (float)(1000 * (1 - rank) + round + i)) {
            CHECK(0, "round %d: element %d is %g", round, i, (double)out[i]);
            return;
        }
}

/* Memory for ids: a call of a GPU wants it there. */
static void turns(void) {
    MPIX_Ep ep = make(30);
    MPIX_Ep_handle h, other;
    int *ids;
    float *old = NULL, *x;
    ok(MPIX_Ep_alloc(ep, TOKENS * sizeof *ids, MPI_INFO_NULL, &ids), "alloc");
    ok(MPIX_Ep_handle_create(ep, &h), "handle_create");
    route(h, ids);
    for (int i = 0; i < ROUNDS; i++) {
        ok(MPIX_Ep_alloc(ep, 2 * BATCH * sizeof *x, MPI_INFO_NULL, &x), "alloc");
        if (failures)
            break;
        if (i % 50 == 0)
            batch(h, x, x + BATCH, i);
        if (i % 3 == 0 && old) {
            ok(MPIX_Ep_dealloc(ep, old), "dealloc");
            old = NULL;
        }
        if (i % 3 == 1)
            old = x;
        else
            ok(MPIX_Ep_dealloc(ep, x), "dealloc");
        if (i % 4 == 0) {
            ok(MPIX_Ep_handle_create(ep, &other), "handle_create");
            ok(MPIX_Ep_handle_free(&other), "handle_free");
        }
    }
    int places = cuda ? ep->gpu->nwindows : ep->nregions, kept = cuda ? ep->gpu->nkept : 0;
    CHECK(places <= 4, "%d places for 3 allocations that are alive at once", places);
    CHECK(kept <= 4, "%d windows are kept", kept);
    ok(MPIX_Ep_handle_free(&h), "handle_free");
    ok(MPIX_Ep_free(&ep), "free");
}

static void late(void) {
    MPIX_Ep ep = make(1);
    MPIX_Ep_handle h;
    float *x;
    int *ids;
    ok(MPIX_Ep_alloc(ep, TOKENS * sizeof *ids, MPI_INFO_NULL, &ids), "alloc");
    ok(MPIX_Ep_alloc(ep, 2 * BATCH * sizeof *x, MPI_INFO_NULL, &x), "alloc");
    ok(MPIX_Ep_handle_create(ep, &h), "handle_create");
    route(h, ids);
    batch(h, x, x + BATCH, 1);
    if (rank == 1)
        sleep(2);
    int code = move(h, x, x + BATCH);
    CHECK(rank == 1 || code != MPI_SUCCESS, "nothing failed");
    ok(MPIX_Ep_dealloc(ep, x), "dealloc after the failure");
    CHECK(MPIX_Ep_dealloc(ep, x) != MPI_SUCCESS, "memory was freed twice");
    ok(MPIX_Ep_handle_free(&h), "handle_free");
    if (rank == 0) {
        ok(MPIX_Ep_free(&ep), "free");
        sleep(2);
    } else {
        ok(MPIX_Ep_free(&ep), "free");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    if (size != 2)
        return 99;
    alarm(120);
    turns();
    late();
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("life_places: %s, %d failures\n", failures ? "FAILED" : "passed", failures);
    MPI_Finalize();
    return failures != 0;
}
