/*
 * ep_errors.c - every documented error, on all ranks and on one rank alone, and the context that
 * works afterwards.
 *
 *   ep_errors [--group calls|create|memory|objects|handlers|ll|unsupported]
 */
#include "errors.h"

#include <stdlib.h>
#include <string.h>

t_rng e_common, e_own;

int e_expect(const char *file, int line, int code, int kind, const char *arg,
             const char *const texts[]) {
    MPIX_Error error;
    int got = -2, before = t_failures();
    MPIX_INIT(&error);
    if (code == MPI_SUCCESS) {
        t_fail(file, line, "returned MPI_SUCCESS, expected kind %d, argument \"%s\"", kind,
               arg ? arg : "");
        return 0;
    }
    MPIX_Error_kind(code, &got);
    MPIX_Error_last(&error);
    if (got != kind || error.kind != kind || error.code != code)
        t_fail(file, line,
               "kind %d (code %d), MPIX_Error has kind %d, code %d; expected kind %d, argument "
               "\"%s\": %s",
               got, code, error.kind, error.code, kind, arg ? arg : "", error.text);
    if (arg && *arg && strcmp(error.arg, arg) != 0)
        t_fail(file, line, "names the argument \"%s\", expected \"%s\": %s", error.arg, arg,
               error.text);
    if (error.text[0] == 0)
        t_fail(file, line, "the error has no text");
    for (int i = 0; texts[i]; i++)
        if (!strstr(error.text, texts[i]))
            t_fail(file, line, "the text does not say \"%s\": %s", texts[i], error.text);
    if (kind == MPIX_ERRK_ARG && error.rank != -1)
        t_fail(file, line, "blames rank %d, expected -1: %s", error.rank, error.text);
    return t_failures() == before;
}

int e_expect_remote(const char *file, int line, int code, int rank) {
    MPIX_Error error;
    if (!e_expect(file, line, code, MPIX_ERRK_REMOTE, NULL, (const char *const[]){NULL}))
        return 0;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (error.rank == rank && error.host[0])
        return 1;
    t_fail(file, line, "blames rank %d on host \"%s\", expected rank %d: %s", error.rank,
           error.host, rank, error.text);
    return 0;
}

void e_config(MPIX_Ep_config *config, int layout) {
    MPIX_INIT(config);
    config->layout = layout;
    config->max_topk = E_MAX_TOPK;
    config->expert_align = layout == MPIX_EP_EXPERT ? 4 : 0;
    config->num_experts = 2 * t_size > 4 ? 2 * t_size : 4;
    config->max_tokens = E_MAX_TOKENS;
    config->max_row_bytes = E_ROW_BYTES;
    config->timeout_s = 30;
}

int e_create(t_ctx *ctx, int layout, MPI_Info info) {
    memset(ctx, 0, sizeof *ctx);
    e_config(&ctx->config, layout);
    return CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx->config, info, &ctx->ep));
}

void e_destroy(t_ctx *ctx) {
    CHECK_OK(MPIX_Ep_free(&ctx->ep));
    t_plans_free();
}

t_shape e_shape(int dtype, int scale_kind) {
    t_shape s = {.seed = t_rand(&e_common),
                 .hidden = E_HIDDEN,
                 .dtype = dtype,
                 .scale_kind = scale_kind,
                 .flavour = REF_MIXED,
                 .weights = 1,
                 .slot_values = 1};
    return s;
}

t_call *e_route(t_handle *handle) {
    const MPIX_Ep_config *config = &handle->ctx->config;
    int64_t *ids = t_make_ids((int)config->num_experts, config->expert_owner, T_UNIFORM,
                              t_rand(&e_common), E_TOKENS, E_TOPK, &e_own);
    t_call *call = t_call_route(handle, E_TOKENS, E_TOPK, ids, 32, &e_own);
    free(ids);
    return call;
}

int e_usable(t_handle *handle, int route) {
    int before = t_failures();
    t_shape x = e_shape(MPIX_EP_BF16, 0), y = e_shape(MPIX_EP_F16, 0);
    if (route)
        t_call_run(e_route(handle), 1);
    t_call_run(t_call_dispatch(handle, &x, &e_own), t_chance(&e_common, 50));
    t_call_run(t_call_combine(handle, &y, &e_own), t_chance(&e_common, 50));
    return t_failures() == before;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {
        {"calls", e_calls},
        {"create", e_create_all},
        {"memory", e_memory},
        {"objects", e_objects},
        {"handlers", e_handlers},
        {"ll", e_ll},
        {"unsupported", e_unsupported},
    };
    t_init(&argc, &argv, "ep_errors");
    const char *only = t_option_text(argc, argv, "--group", "");
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        if (*only && strcmp(only, groups[g].name) != 0)
            continue;
        e_common.s = 5 + g;
        e_own.s = t_hash2(5 + g, 77u + (uint64_t)t_rank);
        t_where("%s", groups[g].name);
        t_watchdog(120);
        groups[g].run();
        if (t_failed_anywhere())
            break;
    }
    return t_end();
}
