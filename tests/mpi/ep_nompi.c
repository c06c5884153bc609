/*
 * ep_nompi.c - route, dispatch, combine and transfers make no MPI call; and every call of the library can be interposed.
 *
 * This program defines the MPI functions itself and passes them on to PMPI: what the library calls, it calls here.
 */
#include "call.h"
#include "mpix_p2p.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int counted;          /* MPI calls since the last look, by any thread */
static const char *_Atomic last_name;
static _Atomic int route_calls, xfer_calls;

#define W(name, params, args)                    \
    int MPI_##name params                        \
    {                                            \
        atomic_fetch_add(&counted, 1);           \
        atomic_store(&last_name, "MPI_" #name);  \
        return PMPI_##name args;                 \
    }
typedef MPI_Datatype D;
typedef MPI_Comm C;
typedef MPI_Request R;
typedef MPI_Status S;
typedef MPI_Aint A;

/* Everything that moves data, makes progress or could stand for them, and what a careless library calls on the way. */
W(Send, (const void *b, int n, D d, int to, int tag, C c), (b, n, d, to, tag, c))
W(Ssend, (const void *b, int n, D d, int to, int tag, C c), (b, n, d, to, tag, c))
W(Recv, (void *b, int n, D d, int from, int tag, C c, S *s), (b, n, d, from, tag, c, s))
W(Isend, (const void *b, int n, D d, int to, int tag, C c, R *r), (b, n, d, to, tag, c, r))
W(Issend, (const void *b, int n, D d, int to, int tag, C c, R *r), (b, n, d, to, tag, c, r))
W(Irecv, (void *b, int n, D d, int from, int tag, C c, R *r), (b, n, d, from, tag, c, r))
W(Sendrecv, (const void *b, int n, D d, int to, int t, void *q, int m, D e, int f, int u, C c, S *s), (b, n, d, to, t, q, m, e, f, u, c, s))
W(Probe, (int from, int tag, C c, S *s), (from, tag, c, s))
W(Iprobe, (int from, int tag, C c, int *f, S *s), (from, tag, c, f, s))
W(Improbe, (int from, int tag, C c, int *f, MPI_Message *m, S *s), (from, tag, c, f, m, s))
W(Mprobe, (int from, int tag, C c, MPI_Message *m, S *s), (from, tag, c, m, s))
W(Wait, (R *r, S *s), (r, s))
W(Waitall, (int n, R r[], S s[]), (n, r, s))
W(Waitany, (int n, R r[], int *i, S *s), (n, r, i, s))
W(Waitsome, (int n, R r[], int *m, int i[], S s[]), (n, r, m, i, s))
W(Test, (R *r, int *f, S *s), (r, f, s))
W(Testall, (int n, R r[], int *f, S s[]), (n, r, f, s))
W(Testany, (int n, R r[], int *i, int *f, S *s), (n, r, i, f, s))
W(Testsome, (int n, R r[], int *m, int i[], S s[]), (n, r, m, i, s))
W(Start, (R *r), (r))
W(Request_free, (R *r), (r))
W(Cancel, (R *r), (r))
W(Barrier, (C c), (c))
W(Ibarrier, (C c, R *r), (c, r))
W(Bcast, (void *b, int n, D d, int root, C c), (b, n, d, root, c))
W(Gather, (const void *b, int n, D d, void *q, int m, D e, int root, C c), (b, n, d, q, m, e, root, c))
W(Scatter, (const void *b, int n, D d, void *q, int m, D e, int root, C c), (b, n, d, q, m, e, root, c))
W(Allgather, (const void *b, int n, D d, void *q, int m, D e, C c), (b, n, d, q, m, e, c))
W(Allgatherv, (const void *b, int n, D d, void *q, const int m[], const int o[], D e, C c), (b, n, d, q, m, o, e, c))
W(Iallgather, (const void *b, int n, D d, void *q, int m, D e, C c, R *r), (b, n, d, q, m, e, c, r))
W(Alltoall, (const void *b, int n, D d, void *q, int m, D e, C c), (b, n, d, q, m, e, c))
W(Alltoallv, (const void *b, const int n[], const int o[], D d, void *q, const int m[], const int p[], D e, C c),
  (b, n, o, d, q, m, p, e, c))
W(Ialltoall, (const void *b, int n, D d, void *q, int m, D e, C c, R *r), (b, n, d, q, m, e, c, r))
W(Reduce, (const void *b, void *q, int n, D d, MPI_Op o, int root, C c), (b, q, n, d, o, root, c))
W(Allreduce, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Iallreduce, (const void *b, void *q, int n, D d, MPI_Op o, C c, R *r), (b, q, n, d, o, c, r))
W(Scan, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Exscan, (const void *b, void *q, int n, D d, MPI_Op o, C c), (b, q, n, d, o, c))
W(Comm_rank, (C c, int *r), (c, r))
W(Comm_size, (C c, int *n), (c, n))
W(Comm_dup, (C c, C *d), (c, d))
W(Comm_split, (C c, int color, int key, C *d), (c, color, key, d))
W(Comm_split_type, (C c, int type, int key, MPI_Info i, C *d), (c, type, key, i, d))
W(Comm_free, (C *c), (c))
W(Comm_compare, (C c, C d, int *r), (c, d, r))
W(Comm_test_inter, (C c, int *f), (c, f))
W(Comm_group, (C c, MPI_Group *g), (c, g))
W(Comm_get_attr, (C c, int k, void *v, int *f), (c, k, v, f))
W(Comm_set_attr, (C c, int k, void *v), (c, k, v))
W(Comm_set_errhandler, (C c, MPI_Errhandler e), (c, e))
W(Comm_get_errhandler, (C c, MPI_Errhandler *e), (c, e))
W(Comm_call_errhandler, (C c, int code), (c, code))
W(Group_translate_ranks, (MPI_Group g, int n, const int a[], MPI_Group h, int b[]), (g, n, a, h, b))
W(Win_create, (void *b, A n, int u, MPI_Info i, C c, MPI_Win *w), (b, n, u, i, c, w))
W(Win_allocate, (A n, int u, MPI_Info i, C c, void *b, MPI_Win *w), (n, u, i, c, b, w))
W(Win_allocate_shared, (A n, int u, MPI_Info i, C c, void *b, MPI_Win *w), (n, u, i, c, b, w))
W(Win_shared_query, (MPI_Win w, int r, A *n, int *u, void *b), (w, r, n, u, b))
W(Win_free, (MPI_Win *w), (w))
W(Win_fence, (int a, MPI_Win w), (a, w))
W(Win_lock, (int t, int r, int a, MPI_Win w), (t, r, a, w))
W(Win_unlock, (int r, MPI_Win w), (r, w))
W(Win_lock_all, (int a, MPI_Win w), (a, w))
W(Win_flush, (int r, MPI_Win w), (r, w))
W(Win_flush_all, (MPI_Win w), (w))
W(Win_flush_local, (int r, MPI_Win w), (r, w))
W(Win_sync, (MPI_Win w), (w))
W(Put, (const void *b, int n, D d, int r, A o, int m, D e, MPI_Win w), (b, n, d, r, o, m, e, w))
W(Get, (void *b, int n, D d, int r, A o, int m, D e, MPI_Win w), (b, n, d, r, o, m, e, w))
W(Accumulate, (const void *b, int n, D d, int r, A o, int m, D e, MPI_Op p, MPI_Win w), (b, n, d, r, o, m, e, p, w))
W(Fetch_and_op, (const void *b, void *q, D d, int r, A o, MPI_Op p, MPI_Win w), (b, q, d, r, o, p, w))
W(Compare_and_swap, (const void *b, const void *x, void *q, D d, int r, A o, MPI_Win w), (b, x, q, d, r, o, w))
W(Pack, (const void *b, int n, D d, void *q, int m, int *p, C c), (b, n, d, q, m, p, c))
W(Type_size, (D d, int *n), (d, n))
W(Get_count, (const S *s, D d, int *n), (s, d, n))
W(Initialized, (int *f), (f))
W(Finalized, (int *f), (f))
W(Query_thread, (int *l), (l))
W(Is_thread_main, (int *f), (f))
W(Alloc_mem, (A n, MPI_Info i, void *b), (n, i, b))
W(Free_mem, (void *b), (b))
W(Info_get, (MPI_Info i, const char *k, int n, char *v, int *f), (i, k, n, v, f))
W(Info_get_nkeys, (MPI_Info i, int *n), (i, n))
W(Get_processor_name, (char *n, int *l), (n, l))
W(Error_class, (int c, int *e), (c, e))
W(Error_string, (int c, char *s, int *l), (c, s, l))
W(Add_error_string, (int c, const char *s), (c, s))

double MPI_Wtime(void)
{
    atomic_fetch_add(&counted, 1);
    atomic_store(&last_name, "MPI_Wtime");
    return PMPI_Wtime();
}

/* The library's own calls, as a tool takes their place. */
int MPIX_Ep_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing, const MPIX_Ep_counts *counts)
{
    route_calls++;
    return PMPIX_Ep_route(handle, routing, counts);
}

int MPIX_Xfer_wait(MPIX_Xfer *xfer)
{
    xfer_calls++;
    return PMPIX_Xfer_wait(xfer);
}

typedef void (*function)(void);
#define BOTH(name) {"MPIX_" #name, (function)MPIX_##name, (function)PMPIX_##name},
static const struct { const char *name; function weak, strong; } both[] = {
    BOTH(Error_last) BOTH(Error_kind) BOTH(Ep_get_version) BOTH(Xfer_test) BOTH(Xfer_waitall) BOTH(Xfer_waitany) BOTH(Xfer_testany)
    BOTH(Ep_window_size) BOTH(Ep_create) BOTH(Ep_free) BOTH(Ep_get_config) BOTH(Ep_set_errhandler) BOTH(Ep_get_async_error) BOTH(Ep_alloc)
    BOTH(Ep_dealloc) BOTH(Ep_register) BOTH(Ep_deregister) BOTH(Ep_get_mask) BOTH(Ep_set_mask) BOTH(Ep_handle_create) BOTH(Ep_handle_free)
    BOTH(Ep_iroute) BOTH(Ep_idispatch) BOTH(Ep_dispatch) BOTH(Ep_icombine) BOTH(Ep_combine) BOTH(Ep_route_enqueue) BOTH(Ep_dispatch_enqueue)
    BOTH(Ep_combine_enqueue) BOTH(Ep_dispatch_begin_enqueue) BOTH(Ep_dispatch_end_enqueue) BOTH(Ep_combine_begin_enqueue)
    BOTH(Ep_combine_end_enqueue) BOTH(Ep_combine_buffer) BOTH(P2p_create) BOTH(P2p_free) BOTH(P2p_set_errhandler) BOTH(P2p_get_async_error)
    BOTH(P2p_alloc) BOTH(P2p_reg) BOTH(P2p_dereg) BOTH(P2p_export) BOTH(P2p_import) BOTH(P2p_rmem_free) BOTH(P2p_exchange)
    BOTH(P2p_advertise) BOTH(P2p_get_advert) BOTH(P2p_iput) BOTH(P2p_put) BOTH(P2p_iget) BOTH(P2p_get) BOTH(P2p_iput_notify)
    BOTH(P2p_put_notify) BOTH(P2p_notify_test) BOTH(P2p_notify_wait) BOTH(P2p_ifetch_add) BOTH(P2p_fetch_add) BOTH(P2p_isend) BOTH(P2p_send)
    BOTH(P2p_irecv) BOTH(P2p_recv) BOTH(P2p_flush) BOTH(P2p_put_enqueue) BOTH(P2p_get_enqueue) BOTH(P2p_put_notify_enqueue)
    BOTH(P2p_get_device)
};

static t_rng common, own;

/* Starts and completes prepared calls in one of several ways, and looks at the counter between. */
static void quiet(t_call **calls, int n, int form)
{
    MPIX_Xfer xfers[4];
    int codes[4], index, flag = 0, ok = 1;
    atomic_store(&counted, 0);
    if (form == 0) {
        for (int i = 0; i < n; i++)
            ok &= t_call_start(calls[i], 1) == MPI_SUCCESS;
    } else {
        for (int i = 0; i < n; i++) {
            ok &= t_call_start(calls[i], 0) == MPI_SUCCESS;
            xfers[i] = calls[i]->xfer;
        }
        for (int i = 0; i < n && form == 1; i++)
            ok &= MPIX_Xfer_wait(&xfers[i]) == MPI_SUCCESS;
        if (form == 2)
            ok &= MPIX_Xfer_waitall(n, xfers, codes) == MPI_SUCCESS;
        for (int left = n; form == 3 && left > 0; left--)
            ok &= MPIX_Xfer_waitany(n, xfers, &index) == MPI_SUCCESS;
        for (int left = n; form == 4 && left > 0;) {
            ok &= MPIX_Xfer_testany(n, xfers, &index, &flag) == MPI_SUCCESS;
            left -= flag;
        }
        for (int i = 0; form == 5 && i < n; i++)
            while (xfers[i] != MPIX_XFER_NULL)
                ok &= MPIX_Xfer_test(&xfers[i], &flag) == MPI_SUCCESS;
    }
    int seen = atomic_load(&counted);
    CHECK(seen == 0, "%d MPI calls in %d calls, form %d; the last was %s", seen, n, form, atomic_load(&last_name));
    CHECK(ok, "a call failed");
    for (int i = 0; i < n; i++) {
        t_call_check(calls[i]);
        t_call_free(calls[i]);
    }
}

static void one_context(int layout, const char *progress)
{
    t_ctx ctx;
    t_handle h[2];
    MPI_Info info;
    memset(&ctx, 0, sizeof ctx);
    MPIX_INIT(&ctx.config);
    ctx.config.layout = layout;
    ctx.config.max_topk = 4;
    ctx.config.num_experts = 2 * t_size + 1;
    ctx.config.max_tokens = 30;
    ctx.config.max_row_bytes = 600;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_progress", progress);
    atomic_store(&counted, 0);
    if (!CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, info, &ctx.ep)))
        return;
    CHECK(atomic_load(&counted) > 5, "creation was seen to make %d MPI calls: the counter does not work", atomic_load(&counted));
    MPI_Info_free(&info);
    ctx.area.bytes = 1 << 18;
    CHECK_OK(MPIX_Ep_alloc(ctx.ep, (MPI_Count)ctx.area.bytes, MPI_INFO_NULL, &ctx.area.base));
    for (int i = 0; i < 2; i++)
        t_handle_init(&h[i], &ctx);
    for (int round = 0; round < 12; round++) {
        t_call *calls[2][3];
        ctx.area.used = 0;
        t_where("layout %d, progress %s, round %d", layout, progress, round);
        for (int i = 0; i < 2; i++) {
            t_shape s = {.seed = t_rand(&common), .hidden = 70, .dtype = i ? MPIX_EP_F32 : MPIX_EP_BF16, .weights = 1, .slot_values = i,
                         .flavour = REF_MIXED};
            int64_t ntok = t_range(&own, 0, 30);
            int64_t *ids = t_make_ids((int)ctx.config.num_experts, NULL, T_HOLES, s.seed, ntok, 3, &own);
            calls[i][0] = t_call_route(&h[i], ntok, 3, ids, 32, &own);
            calls[i][1] = t_call_dispatch(&h[i], &s, &own);
            calls[i][2] = t_call_combine(&h[i], &s, &own);
            free(ids);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        quiet(calls[0], 3, round % 6);
        quiet(calls[1], 3, (round + 1) % 6);
    }
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    t_plans_free();
}

int main(int argc, char **argv)
{
    t_init(&argc, &argv, "ep_nompi");
    common.s = 3;
    own.s = 4 + (uint64_t)t_rank;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        CHECK(both[i].weak && both[i].weak == both[i].strong, "%s is not an alias of P%s", both[i].name, both[i].name);
    CHECK((function)MPIX_Ep_route != (function)PMPIX_Ep_route, "MPIX_Ep_route was not interposed");
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++) {
        one_context(layout, "caller");
        one_context(layout, "thread");
    }
    CHECK(route_calls > 0 && xfer_calls > 0, "the interposed calls were called %d and %d times", route_calls, xfer_calls);
    return t_end();
}
