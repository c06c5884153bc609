/* config.c - checking of a configuration, the size of windows, and agreement that all ranks
 * gave the same. */
#include "config.h"

#include "coll/ep.h"
#include "mem/claim.h"

#include <math.h>
#include <stdlib.h>

#define MAX_RANKS (1 << 24)
#define MAX_COUNT INT64_C(0x7fffffff)

static int check_enum(int value, int last, const char *arg) {
    if (value >= 0 && value <= last)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %d is not in [0, %d]", arg, value, last);
}

static int check_range(int64_t value, int64_t low, int64_t high, const char *arg) {
    if (value >= low && value <= high)
        return 0;
    return mpix_fail(MPIX_ERRK_ARG, arg, "%s = %lld is not in [%lld, %lld]", arg, (long long)value,
                     (long long)low, (long long)high);
}

/* What the configuration's path supports. */
static int check_path(const MPIX_Ep_config *c) {
    const mpix_ep_path *path = mpix_ep_path_of(c);
    if (!path->can[c->layout])
        return mpix_ep_path_refuse(path, c->layout, MPIX_EP_FEATURES, "config.layout", NULL);
    if (c->memkind == MPIX_EP_CUDA && c->num_sms == MPIX_EP_SMS_NONE) {
        int kind = mpix_ep_path_need(path, c->layout, MPIX_EP_CAN_COPY_ENGINES, "config.num_sms",
                                     NULL);
        if (kind)
            return kind;
    }
    return c->masking
               ? mpix_ep_path_need(path, c->layout, MPIX_EP_CAN_MASKING, "config.masking", NULL)
               : 0;
}

int mpix_ep_config_check(const MPIX_Ep_config *config, int ranks, MPIX_Ep_config *c) {
    int kind;
    if (!config)
        return mpix_fail(MPIX_ERRK_ARG, "config", "config is NULL");
    if (config->struct_size != sizeof *config)
        return mpix_fail(MPIX_ERRK_ARG, "config.struct_size",
                         "config.struct_size = %zu, this library knows %zu: initialise with "
                         "MPIX_INIT and use matching headers",
                         config->struct_size, sizeof *config);
    *c = *config;
    if ((kind = check_enum(c->mode, MPIX_EP_LL, "config.mode")) ||
        (kind = check_enum(c->layout, MPIX_EP_SLOTS, "config.layout")) ||
        (kind = check_enum(c->memkind, MPIX_EP_CUDA, "config.memkind")) ||
        (kind = check_enum(c->overflow, MPIX_EP_OVERFLOW_DROP, "config.overflow")) ||
        (kind = check_enum(c->masking, 1, "config.masking")) ||
        (kind = check_range(c->check, -1, 1, "config.check")) ||
        (kind = check_range(c->pad, 0, 0, "config.pad")) || (kind = check_path(c)))
        return kind;
    /* In host memory there is no device and no multiprocessor to choose. */
    if ((kind = check_range(c->device, 0, c->memkind == MPIX_EP_CUDA ? 1 << 16 : 0,
                            "config.device")) ||
        (kind = check_range(c->num_sms, c->memkind == MPIX_EP_CUDA ? MPIX_EP_SMS_NONE : 0,
                            c->memkind == MPIX_EP_CUDA ? 1 << 16 : 0, "config.num_sms")) ||
        (kind = check_range(c->num_experts, 0, MAX_COUNT, "config.num_experts")) ||
        (kind = check_range(c->max_topk, 1, MAX_COUNT / 64, "config.max_topk")) ||
        (kind = check_range(c->depth, 0, 64, "config.depth")) ||
        (kind = check_range(c->expert_align, 0, c->layout == MPIX_EP_EXPERT ? MAX_COUNT : 1,
                            "config.expert_align")) ||
        (kind = check_range(c->max_tokens, 0, MAX_COUNT, "config.max_tokens")) ||
        (kind = check_range(c->max_recv_rows, 0, INT64_C(1) << 48, "config.max_recv_rows")) ||
        (kind = check_range(c->max_row_bytes, 1, INT64_C(1) << 40, "config.max_row_bytes")))
        return kind;
    if (isnan(c->timeout_s))
        return mpix_fail(MPIX_ERRK_ARG, "config.timeout_s", "config.timeout_s is not a number");
    for (int64_t e = 0; c->expert_owner && e < c->num_experts; e++)
        if (c->expert_owner[e] < 0 || c->expert_owner[e] >= ranks)
            return mpix_fail(MPIX_ERRK_ARG, "config.expert_owner",
                             "config.expert_owner[%lld] = %d is not a rank in [0, %d)",
                             (long long)e, c->expert_owner[e], ranks);
    if (c->depth == 0)
        c->depth = 2;
    if (c->expert_align == 0)
        c->expert_align = 1;
    if (c->check == 0)
        c->check = c->memkind == MPIX_EP_CUDA ? -1 : 1;
    return 0;
}

int mpix_ep_placement_room(const MPIX_Ep_config *config, int ranks, int sharers) {
    const mpix_ep_placement *p;
    size_t each = sizeof *p->owner + sizeof *p->local;
    size_t most = config->expert_owner ? sizeof *p->mine : sizeof *p->mine / (size_t)ranks + 1;
    return mpix_mem_share((size_t)config->num_experts * (each + most), sharers,
                          "config.num_experts", config->num_experts);
}

int PMPIX_Ep_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host,
                         MPI_Count *bytes) {
    MPIX_Ep_config c;
    mpix_params params;
    MPI_Count size = 0;
    int kind = check_range(ranks, 1, MAX_RANKS, "ranks");
    if (!kind)
        kind = check_range(ranks_per_host, 1, ranks, "ranks_per_host");
    if (!kind && !bytes)
        kind = mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes is NULL");
    if (!kind)
        kind = mpix_ep_config_check(config, ranks, &c);
    if (!kind)
        kind = mpix_params_read(&params);
    if (!kind)
        kind = mpix_ep_path_of(&c)->window_size(&c, &params, ranks, ranks_per_host, &size);
    if (!kind)
        *bytes = size;
    return mpix_boot_raise(NULL, kind);
}
MPIX_WEAK_ALIAS(Ep_window_size);

/* ---- equality of all ranks ------------------------------------------------------------------- */

static int64_t hash_owner(const MPIX_Ep_config *c) {
    uint64_t h = 1469598103934665603u; /* FNV-1a over the ranks */
    for (int64_t e = 0; c->expert_owner && e < c->num_experts; e++)
        h = (h ^ (uint64_t)(uint32_t)c->expert_owner[e]) * 1099511628211u;
    return (int64_t)(h >> 1);
}

int mpix_ep_config_compare(mpix_boot *boot, const MPIX_Ep_config *c, const mpix_params *params) {
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {{"config.mode", c->mode},
                  {"config.layout", c->layout},
                  {"config.memkind", c->memkind},
                  {"config.max_topk", c->max_topk},
                  {"config.expert_align", c->expert_align},
                  {"config.depth", c->depth},
                  {"config.overflow", c->overflow},
                  {"config.masking", c->masking},
                  {"config.check", c->check},
                  {"config.num_experts", c->num_experts},
                  {"config.max_tokens", c->max_tokens},
                  {"config.max_recv_rows", c->max_recv_rows},
                  {"config.max_row_bytes", c->max_row_bytes},
                  /* that it is MPIX_EP_SMS_NONE */
                  {"config.num_sms", c->num_sms < 0 ? c->num_sms : 0}};
    mpix_same same;
    mpix_same_begin(&same);
    mpix_same_add(&same, "the library's version", "%s", PACKAGE_VERSION);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        mpix_same_add(&same, fields[i].name, "%lld", (long long)fields[i].value);
    mpix_same_add(&same, "config.expert_owner", "%s%llx", c->expert_owner ? "hash " : "NULL ",
                  (unsigned long long)hash_owner(c));
    mpix_same_add(&same, "config.timeout_s", "%.15g", c->timeout_s);
    mpix_same_add_params(&same, params);
    return mpix_boot_same(boot, &same);
}
