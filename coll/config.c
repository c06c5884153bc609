/* config.c - checking of a configuration, the size of windows, and agreement that all ranks
 * gave the same. */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host_ll/ll.h"

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

static int unsupported(const char *arg, const char *what) {
    return mpix_fail(MPIX_ERRK_UNSUPPORTED, arg, "%s: %s is not in this version of mpix-ep (%s)",
                     arg, what, PACKAGE_VERSION);
}

static int check_later(const MPIX_Ep_config *c) {
    if (c->mode == MPIX_EP_LL && c->num_sms == MPIX_EP_SMS_NONE)
        return unsupported("config.num_sms", "MPIX_EP_SMS_NONE with the mode MPIX_EP_LL");
    if (c->mode == MPIX_EP_LL && c->layout == MPIX_EP_COMPACT)
        return unsupported("config.layout", "MPIX_EP_COMPACT with the mode MPIX_EP_LL, which has "
                                            "MPIX_EP_SLOTS and MPIX_EP_EXPERT,");
    if (c->mode == MPIX_EP_HT && c->layout == MPIX_EP_SLOTS)
        return unsupported("config.layout", "MPIX_EP_SLOTS with the mode MPIX_EP_HT");
    if (c->masking)
        return unsupported("config.masking", "masking of dead ranks");
    return 0;
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
        (kind = check_range(c->pad, 0, 0, "config.pad")) || (kind = check_later(c)))
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

/* Rows and scales are staged at a pitch of 16 bytes; beside each row travel its token's number, ids
 * and weights. SIZE_MAX: too large. */
size_t mpix_ep_bank_size(const MPIX_Ep_config *c, int64_t rows, int far_peers, int hop_hosts) {
    size_t row = (size_t)c->max_row_bytes + 2 * 16 + 8 + 8 * (size_t)c->max_topk, bytes, far;
    if (rows < 0 || __builtin_mul_overflow((size_t)rows, row, &bytes) || bytes > (size_t)1 << 46)
        return SIZE_MAX;
    /* Batches of proxied peers: dispatch brings at most every token of each; combine at most one
     * row per token and rank (COMPACT) or per choice (EXPERT). */
    size_t tokens = (size_t)c->max_tokens, items = tokens * (size_t)far_peers,
           choices = tokens * (size_t)c->max_topk;
    if (far_peers > 0 && c->layout == MPIX_EP_EXPERT && choices > items)
        items = choices;
    /* If all routings take two hops, only partial sums come here, one per token and host; what is
     * dispatched comes through the rings. */
    if (hop_hosts > 0)
        items = tokens * (size_t)(hop_hosts < c->max_topk ? hop_hosts : c->max_topk);
    if (__builtin_mul_overflow(items, mpix_ep_far_item_size(c), &far) || far > (size_t)1 << 46)
        return SIZE_MAX;
    return (bytes + far + 64 * (size_t)far_peers + 4095) / 4096 * 4096 + 4096;
}

int64_t mpix_ep_config_answered(const MPIX_Ep_config *c, const mpix_params *params,
                                const mpix_ep_placement *p) {
    int64_t most = 0;
    if (c->mode == MPIX_EP_LL || c->memkind == MPIX_EP_CUDA || p->ranks <= params->counts_ranks)
        return -1;
    for (int r = 0; r < p->ranks; r++)
        most = p->nlocal[r] > most ? p->nlocal[r] : most;
    return most;
}

/* Control words, the banks of one handle, and with proxied peers what it sends. */
static int window_size_ll(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                          int far_peers, MPI_Count *bytes) {
    mpix_ep_ctl_layout layout;
    mpix_ep_ll ll;
    mpix_ep_ll_sizes(c, ranks, far_peers, &ll);
    mpix_ep_ll_ctl_layout(&layout, ranks, c->depth, params->max_handles);
    if (ll.slot_bytes == SIZE_MAX)
        return mpix_fail(MPIX_ERRK_NO_MEM, "config.max_tokens",
                         "the banks for batches of %lld tokens exceed 2^46 bytes",
                         (long long)c->max_tokens);
    *bytes = (MPI_Count)(layout.total + ll.slot_bytes + ll.tx_bytes[0] + ll.tx_bytes[1]);
    return 0;
}

/* The same in GPU memory, where control words and banks are one window per handle. */
static int window_size_gpu(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                           int ranks_per_host, MPI_Count *bytes) {
    mpix_ep_placement placement;
    mpix_ep_ctl_layout layout;
    mpix_cuda_ll ll;
    int kind = mpix_ep_placement_init(&placement, c, ranks, 0);
    if (kind)
        return kind;
    mpix_ep_ll_ctl_layout(&layout, ranks, c->depth, params->max_handles);
    kind = mpix_ep_gpu_ll_geometry(c, &placement, &ll);
    mpix_ep_placement_free(&placement);
    if (!kind)
        *bytes = (MPI_Count)(layout.total + ll.bytes +
                             (ranks_per_host < ranks
                                  ? mpix_ep_gpu_far_bytes(c, params, &ll, ranks, ranks_per_host)
                                  : 0));
    return kind;
}

int PMPIX_Ep_window_size(const MPIX_Ep_config *config, int ranks, int ranks_per_host,
                         MPI_Count *bytes) {
    MPIX_Ep_config c;
    mpix_params params;
    mpix_ep_placement placement;
    mpix_ep_ctl_layout layout;
    int kind = check_range(ranks, 1, MAX_RANKS, "ranks");
    if (!kind)
        kind = check_range(ranks_per_host, 1, ranks, "ranks_per_host");
    if (!kind && !bytes)
        kind = mpix_fail(MPIX_ERRK_ARG, "bytes", "bytes is NULL");
    if (!kind)
        kind = mpix_ep_config_check(config, ranks, &c);
    if (!kind)
        kind = mpix_params_read(&params);
    if (!kind && c.mode == MPIX_EP_LL && c.memkind == MPIX_EP_CUDA)
        return mpix_boot_raise(NULL, window_size_gpu(&c, &params, ranks, ranks_per_host, bytes));
    if (!kind && c.mode == MPIX_EP_LL)
        return mpix_boot_raise(NULL,
                               window_size_ll(&c, &params, ranks, ranks - ranks_per_host, bytes));
    if (kind)
        return mpix_boot_raise(NULL, kind);
    size_t most = 0;
    int64_t answered = -1;
    /* ranks differ in their number of experts only; the first and last are extremes */
    for (int r = 0; r < ranks && !kind; r++) {
        if (!c.expert_owner && r > 0 && r < ranks - 1)
            continue;
        kind = mpix_ep_placement_init(&placement, &c, ranks, r);
        if (kind)
            break;
        size_t bank = mpix_ep_bank_size(&c, mpix_ep_worst_rows(&c, &placement, r),
                                        ranks - ranks_per_host,
                                        params.two_hops == MPIX_HOPS_ON
                                            ? (ranks + ranks_per_host - 1) / ranks_per_host - 1
                                            : 0);
        if (r == 0)
            answered = mpix_ep_config_answered(&c, &params, &placement);
        mpix_ep_placement_free(&placement);
        if (bank == SIZE_MAX)
            kind =
                mpix_fail(MPIX_ERRK_NO_MEM, "config.max_recv_rows",
                          "a batch in the worst case exceeds 2^46 bytes: set config.max_recv_rows");
        most = bank > most ? bank : most;
    }
    if (kind)
        return mpix_boot_raise(NULL, kind);
    mpix_ep_ctl_layout_init(&layout, ranks, c.num_experts, c.depth, params.max_handles, answered);
    *bytes = (MPI_Count)(most * (size_t)c.depth + layout.total);
    if (ranks_per_host < ranks && c.memkind == MPIX_EP_CUDA) {
        *bytes += (MPI_Count)mpix_ep_gpu_far_bytes(&c, &params, NULL, ranks, ranks_per_host);
    } else if (ranks_per_host < ranks) { /* send buffer and mirror */
        int nchunks;
        size_t chunk = mpix_ep_far_chunks(&c, &params, ranks, &nchunks);
        *bytes += (MPI_Count)(chunk * (size_t)nchunks + layout.total);
        /* Two hops: the rings of the ranks that this one serves, of equal hosts one per other host,
         * and chunks to send their sums. */
        size_t hosts = (size_t)(ranks + ranks_per_host - 1) / (size_t)ranks_per_host - 1;
        if (params.two_hops != MPIX_HOPS_OFF &&
            (ranks_per_host > 1 || params.two_hops == MPIX_HOPS_ON))
            *bytes += (MPI_Count)(chunk * (hosts * (size_t)params.two_hops_chunks + 2 * hosts + 2));
    }
    return MPI_SUCCESS;
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
