/*
 * ep_nompi.c - route, dispatch, combine and transfers make no MPI call; and every call of the
 * library can be interposed.
 *
 * This program defines the MPI functions itself, see count_mpi.h.
 */
#include "call.h"
#include "count_mpi.h"
#include "mpix_p2p.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int route_calls, xfer_calls;

/* The library's own calls, as a tool takes their place. */
int MPIX_Ep_route(MPIX_Ep_handle handle, const MPIX_Ep_routing *routing,
                  const MPIX_Ep_counts *counts) {
    route_calls++;
    return PMPIX_Ep_route(handle, routing, counts);
}

int MPIX_Xfer_wait(MPIX_Xfer *xfer) {
    xfer_calls++;
    return PMPIX_Xfer_wait(xfer);
}

typedef void (*function)(void);
#define BOTH(name) {"MPIX_" #name, (function)MPIX_##name, (function)PMPIX_##name},
static const struct {
    const char *name;
    function weak, strong;
} both[] = {
    BOTH(Error_last) BOTH(Error_kind) BOTH(Ep_get_version) BOTH(Xfer_test) BOTH(Xfer_waitall) BOTH(
        Xfer_waitany) BOTH(Xfer_testany) BOTH(Ep_window_size) BOTH(Ep_create) BOTH(Ep_free)
        BOTH(Ep_get_config) BOTH(Ep_set_errhandler) BOTH(Ep_get_async_error) BOTH(Ep_alloc) BOTH(
            Ep_dealloc) BOTH(Ep_register) BOTH(Ep_deregister) BOTH(Ep_get_mask) BOTH(Ep_set_mask)
            BOTH(Ep_handle_create) BOTH(Ep_handle_free) BOTH(Ep_iroute) BOTH(Ep_idispatch)
                BOTH(Ep_dispatch) BOTH(Ep_icombine) BOTH(Ep_combine) BOTH(Ep_route_enqueue) BOTH(
                    Ep_dispatch_enqueue) BOTH(Ep_combine_enqueue) BOTH(Ep_dispatch_begin_enqueue)
                    BOTH(Ep_dispatch_end_enqueue) BOTH(Ep_combine_begin_enqueue)
                        BOTH(Ep_combine_end_enqueue) BOTH(Ep_combine_buffer) BOTH(P2p_create)
                            BOTH(P2p_free) BOTH(P2p_set_errhandler) BOTH(P2p_get_async_error)
                                BOTH(P2p_alloc) BOTH(P2p_reg) BOTH(P2p_dereg) BOTH(P2p_export)
                                    BOTH(P2p_import) BOTH(P2p_rmem_free) BOTH(P2p_exchange)
                                        BOTH(P2p_advertise) BOTH(P2p_get_advert) BOTH(P2p_iput)
                                            BOTH(P2p_put) BOTH(P2p_iget) BOTH(P2p_get)
                                                BOTH(P2p_iput_notify) BOTH(P2p_put_notify)
                                                    BOTH(P2p_notify_test) BOTH(P2p_notify_wait)
                                                        BOTH(P2p_ifetch_add) BOTH(P2p_fetch_add)
                                                            BOTH(P2p_isend) BOTH(P2p_send)
                                                                BOTH(P2p_irecv) BOTH(P2p_recv) BOTH(
                                                                    P2p_flush) BOTH(P2p_put_enqueue)
                                                                    BOTH(P2p_get_enqueue)
                                                                        BOTH(P2p_put_notify_enqueue)
                                                                            BOTH(P2p_get_device)};

static t_rng common, own;

/* Starts and completes prepared calls in one of several ways, and looks at the counter between. */
static void quiet(t_call **calls, int n, int form) {
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
    CHECK(seen == 0, "%d MPI calls in %d calls, form %d; the last was %s", seen, n, form,
          atomic_load(&last_name));
    CHECK(ok, "a call failed");
    for (int i = 0; i < n; i++) {
        t_call_check(calls[i]);
        t_call_free(calls[i]);
    }
}

static void one_context(int layout, const char *progress) {
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
    CHECK(atomic_load(&counted) > 5,
          "creation was seen to make %d MPI calls: the counter does not work",
          atomic_load(&counted));
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
            t_shape s = {.seed = t_rand(&common),
                         .hidden = 70,
                         .dtype = i ? MPIX_EP_F32 : MPIX_EP_BF16,
                         .weights = 1,
                         .slot_values = i,
                         .flavour = REF_MIXED};
            int64_t ntok = t_range(&own, 0, 30);
            int64_t *ids = t_make_ids((int)ctx.config.num_experts, NULL, T_HOLES, s.seed, ntok, 3,
                                      &own);
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

int main(int argc, char **argv) {
    t_init(&argc, &argv, "ep_nompi");
    common.s = 3;
    own.s = 4 + (uint64_t)t_rank;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        CHECK(both[i].weak && both[i].weak == both[i].strong, "%s is not an alias of P%s",
              both[i].name, both[i].name);
    CHECK((function)MPIX_Ep_route != (function)PMPIX_Ep_route, "MPIX_Ep_route was not interposed");
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++) {
        one_context(layout, "caller");
        one_context(layout, "thread");
    }
    CHECK(route_calls > 0 && xfer_calls > 0, "the interposed calls were called %d and %d times",
          route_calls, xfer_calls);
    return t_end();
}
