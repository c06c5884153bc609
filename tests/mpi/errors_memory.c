/*
 * errors_memory.c - faults of alloc, dealloc, register, deregister and handle_create, and
 * what these promise.
 */
#include "errors.h"

#include <stdlib.h>

/* Expect on the victim (-1: everywhere), REMOTE elsewhere. */
#define ON(victim, code, kind, arg, ...) \
    do { \
        int code_ = (code); \
        if ((victim) < 0 || (victim) == t_rank) \
            EXPECT(code_, kind, arg __VA_OPT__(, ) __VA_ARGS__); \
        else \
            EXPECT_REMOTE(code_, victim); \
    } while (0)
#define BAD(victim, bad, good) ((victim) < 0 || (victim) == t_rank ? (bad) : (good))

static void allocs(t_ctx *ctx, int victim) {
    void *base = &base, *untouched = base;
    int flag = -5;
    t_where("memory: alloc, rank %d errs", victim);
    ON(victim, MPIX_Ep_alloc(ctx->ep, BAD(victim, -1, 64), MPI_INFO_NULL, &base), MPIX_ERRK_ARG,
       "bytes", "-1", "0");
    ON(victim, MPIX_Ep_alloc(ctx->ep, 64, MPI_INFO_NULL, BAD(victim, NULL, &base)), MPIX_ERRK_ARG,
       "baseptr", "NULL");
    /* More than there is: an error and no signal, at once or when it is touched. */
    ON(victim, MPIX_Ep_alloc(ctx->ep, BAD(victim, INT64_C(1) << 45, 64), MPI_INFO_NULL, &base),
       MPIX_ERRK_NO_MEM, NULL);
    CHECK(base == untouched, "a failed alloc set its output");
    t_where("memory: register, rank %d errs", victim);
    ON(victim, MPIX_Ep_register(ctx->ep, &base, BAD(victim, -2, 8), &flag), MPIX_ERRK_ARG, "bytes",
       "-2");
    ON(victim, MPIX_Ep_register(ctx->ep, BAD(victim, NULL, (void *)&base), 8, &flag), MPIX_ERRK_ARG,
       "base", "NULL", "8");
    ON(victim, MPIX_Ep_register(ctx->ep, &base, 8, BAD(victim, NULL, &flag)), MPIX_ERRK_ARG,
       "direct", "NULL");
    CHECK(flag == -5, "a failed register set its output");
    t_where("memory: handle_create, rank %d errs", victim);
    MPIX_Ep_handle h = MPIX_EP_HANDLE_NULL;
    ON(victim, MPIX_Ep_handle_create(ctx->ep, BAD(victim, NULL, &h)), MPIX_ERRK_ARG, "handle",
       "NULL");
    CHECK(h == MPIX_EP_HANDLE_NULL, "a failed handle_create set its output");
}

static void promises(t_ctx *ctx, t_handle *handle) {
    unsigned char *base = NULL, *second = NULL, *none = NULL;
    int flag = -1;
    MPI_Count bytes = 4096 * (t_rank + 1) - 5; /* may differ */
    t_where("memory: alloc and register");
    CHECK_OK(MPIX_Ep_alloc(ctx->ep, bytes, MPI_INFO_NULL, &base));
    if (!base)
        return;
    CHECK((uintptr_t)base % 4096 == 0, "memory is not page aligned: %p", (void *)base);
    for (MPI_Count i = 0; i < bytes; i++)
        if (!CHECK(base[i] == 0, "memory is not zeroed"))
            break;
    CHECK_OK(MPIX_Ep_alloc(ctx->ep, t_rank == 0 ? 0 : 16, MPI_INFO_NULL, &none));
    CHECK(none != NULL && none != base, "an allocation of %d bytes is at %p, which is not its own",
          t_rank == 0 ? 0 : 16, (void *)none);
    CHECK_OK(MPIX_Ep_alloc(ctx->ep, 64, MPI_INFO_NULL, &second));
    CHECK_OK(MPIX_Ep_register(ctx->ep, base + 16, 100, &flag));
    CHECK(flag == 1, "inside memory from MPIX_Ep_alloc direct is %d", flag);
    CHECK_OK(MPIX_Ep_deregister(ctx->ep, base + 16));
    CHECK_OK(MPIX_Ep_register(ctx->ep, t_rank == 0 ? NULL : (void *)&flag,
                              t_rank == 0 ? 0 : sizeof flag, &flag));
    CHECK(t_rank == 0 || flag == 0, "the stack is direct");
    if (t_rank == 0)
        CHECK_OK(MPIX_Ep_deregister(ctx->ep, NULL));
    else
        CHECK_OK(MPIX_Ep_deregister(ctx->ep, &flag));
    t_where("memory: dealloc and deregister of what is not there");
    EXPECT(MPIX_Ep_dealloc(ctx->ep, base + 8), MPIX_ERRK_ARG, "base");
    EXPECT(MPIX_Ep_dealloc(ctx->ep, &flag), MPIX_ERRK_ARG, "base");
    EXPECT(MPIX_Ep_dealloc(ctx->ep, NULL), MPIX_ERRK_ARG, "base");
    EXPECT(MPIX_Ep_deregister(ctx->ep, base), MPIX_ERRK_ARG, "base");
    e_usable(handle, 1);
    CHECK_OK(MPIX_Ep_dealloc(ctx->ep, none)); /* 0 bytes on rank 0 */
    CHECK_OK(MPIX_Ep_dealloc(ctx->ep, base));
    EXPECT(MPIX_Ep_dealloc(ctx->ep, base), MPIX_ERRK_ARG, "base");
    e_usable(handle, 1);
    CHECK_OK(MPIX_Ep_dealloc(ctx->ep, second));
}

/* As many handles as the parameter says, and again after one is freed; a handle's slot is used
 * again many times. */
static void handles(void) {
    t_ctx ctx;
    t_handle h[3];
    MPI_Info info;
    MPIX_Ep_handle extra = MPIX_EP_HANDLE_NULL;
    t_where("memory: max_handles");
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_max_handles", "3");
    int ok = e_create(&ctx, MPIX_EP_COMPACT, info);
    MPI_Info_free(&info);
    if (!ok)
        return;
    for (int i = 0; i < 3; i++)
        t_handle_init(&h[i], &ctx);
    EXPECT(MPIX_Ep_handle_create(ctx.ep, &extra), MPIX_ERRK_NO_MEM, NULL, "3", "max_handles");
    CHECK(extra == MPIX_EP_HANDLE_NULL, "a failed handle_create set its output");
    for (int i = 0; i < 3; i++)
        e_usable(&h[i], 1);
    for (int round = 0; round < 20; round++) {
        int i = (int)t_range(&e_common, 0, 2);
        t_handle_done(&h[i], 1);
        t_handle_init(&h[i], &ctx);
        e_usable(&h[i], 1);
        e_usable(&h[(i + 1) % 3], 0);
    }
    e_destroy(&ctx);
}

void e_memory(void) {
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++) {
        t_ctx ctx;
        t_handle handle;
        if (!e_create(&ctx, layout, MPI_INFO_NULL))
            return;
        t_handle_init(&handle, &ctx);
        for (int victim = -1; victim < t_size; victim++) {
            allocs(&ctx, victim);
            e_usable(&handle, 1);
        }
        promises(&ctx, &handle);
        e_destroy(&ctx);
    }
    handles();
}
