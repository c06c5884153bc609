/*
 * ep_files.c - the choices of a real router: data/routing/layer{0,1,2}_topk.npy, uint8
 * [65536][8], 64 experts.
 *
 *   ep_files [--dir DIR] [--tokens N]
 *
 * Each rank takes its own stretch of the text. Without --dir the files are those of the source
 * tree (MPIX_SRCDIR).
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 64, TOPK = 8, HIDDEN = 64, FILE_TOKENS = 65536 };

static t_rng common, own;

/* The choices of this rank: ntok tokens from the file's place first on. */
static int64_t *load(const char *dir, int layer, int64_t first, int64_t ntok) {
    char path[4096], header[128];
    snprintf(path, sizeof path, "%s/layer%d_topk.npy", dir, layer);
    FILE *file = fopen(path, "rb");
    REQUIRE(file, "%s can't be opened", path);
    REQUIRE(fread(header, 1, sizeof header, file) == sizeof header, "%s is too short", path);
    size_t length = 10u + (unsigned char)header[8] + 256u * (unsigned char)header[9];
    header[sizeof header - 1] = 0;
    REQUIRE(memcmp(header, "\x93NUMPY\x01", 7) == 0 && strstr(header + 10, "|u1") &&
                strstr(header + 10, "(65536, 8)"),
            "%s is not a uint8 [65536][8] of version 1", path);
    unsigned char *bytes = malloc((size_t)(ntok * TOPK));
    int64_t *ids = malloc((size_t)(ntok * TOPK) * sizeof *ids);
    REQUIRE(bytes && ids, "no memory");
    REQUIRE(fseek(file, (long)length + (long)(first * TOPK), SEEK_SET) == 0 &&
                fread(bytes, TOPK, (size_t)ntok, file) == (size_t)ntok,
            "%s ends early", path);
    fclose(file);
    for (int64_t i = 0; i < ntok * TOPK; i++)
        ids[i] = bytes[i];
    free(bytes);
    return ids;
}

static void one_layer(t_ctx *ctx, const char *dir, int layer, int64_t ntok, int dtype) {
    t_handle handle;
    int64_t *ids = load(dir, layer, ntok * t_rank % (FILE_TOKENS - ntok + 1), ntok);
    t_handle_init(&handle, ctx);
    t_call_run(t_call_route(&handle, ntok, TOPK, ids, t_chance(&own, 50) ? 32 : 64, &own), 1);
    for (int again = 0; again < 2; again++) { /* the routing serves forward and backward */
        t_shape s = {.seed = t_rand(&common),
                     .hidden = HIDDEN,
                     .dtype = dtype,
                     .flavour = REF_MIXED,
                     .weights = 1,
                     .slot_values = again};
        t_call_run(t_call_dispatch(&handle, &s, &own), !again);
        t_call_run(t_call_combine(&handle, &s, &own), again);
    }
    t_handle_done(&handle, 1);
    free(ids);
}

int main(int argc, char **argv) {
    char fallback[4096];
    t_init(&argc, &argv, "ep_files");
    snprintf(fallback, sizeof fallback, "%s/data/routing",
             getenv("MPIX_SRCDIR") ? getenv("MPIX_SRCDIR") : ".");
    const char *dir = t_option_text(argc, argv, "--dir", fallback);
    int64_t ntok = t_option(argc, argv, "--tokens", 2048);
    common.s = 11;
    own.s = t_hash2(12, (uint64_t)t_rank);
    for (int layer = 0; layer < 3 && !t_failed_anywhere(); layer++) {
        t_ctx ctx;
        memset(&ctx, 0, sizeof ctx);
        MPIX_INIT(&ctx.config);
        ctx.config.layout = layer == 1 ? MPIX_EP_COMPACT : MPIX_EP_EXPERT;
        ctx.config.expert_align = layer == 2 ? 128 : 1;
        ctx.config.num_experts = EXPERTS;
        ctx.config.max_topk = TOPK;
        ctx.config.max_tokens = ntok;
        ctx.config.max_row_bytes = HIDDEN * 4;
        t_where("layer %d", layer);
        t_watchdog(200);
        if (!CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ctx.ep)))
            break;
        ctx.area.bytes = (size_t)ntok * TOPK * HIDDEN * 8;
        CHECK_OK(MPIX_Ep_alloc(ctx.ep, (MPI_Count)ctx.area.bytes, MPI_INFO_NULL, &ctx.area.base));
        one_layer(&ctx, dir, layer, ntok, layer == 0 ? MPIX_EP_F32 : MPIX_EP_BF16);
        t_plans_free();
        CHECK_OK(MPIX_Ep_free(&ctx.ep));
    }
    return t_end();
}
