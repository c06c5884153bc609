/*
 * errors_create.c - faults of create, of info and environment, and of window_size; configurations
 * that differ between ranks.
 */
#include "errors.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    const char *arg, *texts[3];
    int kind;
    void (*spoil)(MPIX_Ep_config *c);
} config_fault;

static int owners[64]; /* all rank 0 */

/* X(name, kind, argument, text, text, statement). Texts: the value and the limit. */
#define CONFIG_FAULTS(X) \
    X(size, ARG, "config.struct_size", "5", NULL, c->struct_size = 5) \
    X(mode, ARG, "config.mode", "7", NULL, c->mode = 7) \
    X(ll_compact, UNSUPPORTED, "config.layout", "host-ll", "COMPACT", \
      (c->mode = MPIX_EP_LL, c->layout = MPIX_EP_COMPACT, c->expert_align = 0)) \
    X(ll_cuda, UNSUPPORTED, "config.num_sms", "gpu-ll", "gpu-copy-engine", \
      (c->mode = MPIX_EP_LL, c->memkind = MPIX_EP_CUDA, c->num_sms = MPIX_EP_SMS_NONE)) \
    X(layout, ARG, "config.layout", "9", NULL, c->layout = 9) \
    X(layout_negative, ARG, "config.layout", "-1", NULL, c->layout = -1) \
    X(layout_slots, UNSUPPORTED, "config.layout", "host-ht", "SLOTS", c->layout = MPIX_EP_SLOTS) \
    X(align_slots, ARG, "config.expert_align", "2", "1", \
      (c->mode = MPIX_EP_LL, c->layout = MPIX_EP_SLOTS, c->expert_align = 2)) \
    X(memkind, ARG, "config.memkind", "4", NULL, c->memkind = 4) \
    X(device, ARG, "config.device", "1", "0", c->device = 1) \
    X(topk_zero, ARG, "config.max_topk", "0", "1", c->max_topk = 0) \
    X(topk_negative, ARG, "config.max_topk", "-6", "1", c->max_topk = -6) \
    X(align_negative, ARG, "config.expert_align", "-1", "0", c->expert_align = -1) \
    X(align_compact, ARG, "config.expert_align", "2", "1", \
      (c->layout = MPIX_EP_COMPACT, c->expert_align = 2)) \
    X(depth_negative, ARG, "config.depth", "-1", "64", c->depth = -1) \
    X(depth_large, ARG, "config.depth", "65", "64", c->depth = 65) \
    X(num_sms, ARG, "config.num_sms", "1", "0", c->num_sms = 1) \
    X(overflow, ARG, "config.overflow", "2", NULL, c->overflow = 2) \
    X(masking, UNSUPPORTED, "config.masking", "host-ht", "no path", c->masking = 1) \
    X(masking_bad, ARG, "config.masking", "3", NULL, c->masking = 3) \
    X(check, ARG, "config.check", "2", "1", c->check = 2) \
    X(pad, ARG, "config.pad", "8", "0", c->pad = 8) \
    X(experts_negative, ARG, "config.num_experts", "-1", "0", c->num_experts = -1) \
    X(experts_large, ARG, "config.num_experts", "2147483648", "2147483647", \
      c->num_experts = INT64_C(1) << 31) \
    X(tokens_negative, ARG, "config.max_tokens", "-4", "0", c->max_tokens = -4) \
    X(tokens_large, ARG, "config.max_tokens", "2147483648", "2147483647", \
      c->max_tokens = INT64_C(1) << 31) \
    X(recv_negative, ARG, "config.max_recv_rows", "-1", "0", c->max_recv_rows = -1) \
    X(row_zero, ARG, "config.max_row_bytes", "0", "1", c->max_row_bytes = 0) \
    X(row_negative, ARG, "config.max_row_bytes", "-9", "1", c->max_row_bytes = -9) \
    X(owner_large, ARG, "config.expert_owner", "[2]", ranks0, \
      (owners[2] = t_size, c->expert_owner = owners)) \
    X(owner_negative, ARG, "config.expert_owner", "-1", ranks0, \
      (owners[0] = -1, c->expert_owner = owners)) \
    X(timeout_nan, ARG, "config.timeout_s", NULL, NULL, c->timeout_s = NAN)

static char ranks0[16];

#define SPOIL(name, kind, arg, t1, t2, statement) \
    static void spoil_##name(MPIX_Ep_config *c) { statement; }
#define ROW(name, kind, arg, t1, t2, statement) \
    {arg, {t1, t2, NULL}, MPIX_ERRK_##kind, spoil_##name},
CONFIG_FAULTS(SPOIL)
static const config_fault faults[] = {CONFIG_FAULTS(ROW)};

static MPI_Comm test_comm;

/* create with this rank's arguments; the expectation of ranks that err, and REMOTE with the lowest
 * of them elsewhere. */
static void refused(const MPIX_Ep_config *config, MPI_Info info, int errs, int lowest, int kind,
                    const char *arg, const char *const texts[]) {
    MPIX_Ep untouched = (MPIX_Ep)&ranks0, ep = untouched;
    int code = MPIX_Ep_create(test_comm, config, info, &ep);
    if (errs)
        e_expect(__FILE__, __LINE__, code, kind, arg, texts);
    else
        EXPECT_REMOTE(code, lowest);
    CHECK(ep == untouched, "a failed create set its output");
}

static void spoiled_configs(void) {
    snprintf(ranks0, sizeof ranks0, "%d)", t_size);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int alone = 0; alone <= (t_size > 1); alone++) {
            MPIX_Ep_config config;
            int victim = alone ? (int)t_range(&e_common, 0, t_size - 1) : t_rank;
            e_config(&config, MPIX_EP_EXPERT);
            config.num_experts = 6;
            for (int e = 0; e < 64; e++)
                owners[e] = 0;
            if (victim == t_rank)
                faults[i].spoil(&config);
            t_where("create: fault %zu of %s, rank %d errs", i, faults[i].arg, alone ? victim : -1);
            MPI_Count bytes = -77;
            if (victim == t_rank) {
                /* Local, and the same check. */
                e_expect(__FILE__, __LINE__, MPIX_Ep_window_size(&config, t_size, 1, &bytes),
                         faults[i].kind, faults[i].arg, faults[i].texts);
                CHECK(bytes == -77, "a failed window_size set its output");
            }
            refused(&config, MPI_INFO_NULL, victim == t_rank, victim, faults[i].kind, faults[i].arg,
                    faults[i].texts);
        }
}

/* GPU memory without its module, which can be had on a machine with GPUs and without: by a name
 * that is no file. */
static void no_cuda_module(void) {
    MPIX_Ep_config config;
    MPI_Info info;
    e_config(&config, MPIX_EP_COMPACT);
    config.memkind = MPIX_EP_CUDA;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_cuda_module", "/nowhere/libmpixep_cuda.so");
    t_where("create: GPU memory without the CUDA module");
    refused(&config, info, 1, 0, MPIX_ERRK_UNSUPPORTED, "config.memkind",
            (const char *const[]){"CUDA", "/nowhere", NULL});
    MPI_Info_free(&info);
}

/* What GPU memory does not have among proxied peers is told before its module is opened. */
static void cuda_proxied(void) {
    static const struct {
        int layout, sms;
        const char *hops, *arg, *texts[4];
    } cases[] = {{MPIX_EP_COMPACT,
                  MPIX_EP_SMS_NONE,
                  "auto",
                  "config.memkind",
                  {"gpu-copy-engine", "kernels pack", "gpu-ht"}},
                 {MPIX_EP_EXPERT,
                  MPIX_EP_SMS_NONE,
                  "off",
                  "config.layout",
                  {"gpu-copy-engine", "gpu-expert", NULL}},
                 {MPIX_EP_EXPERT, 0, "on", "two_hops", {"gpu-expert", "one hop", "gpu-ht"}},
                 {MPIX_EP_EXPERT, 0, "auto", "config.memkind", {"/nowhere", NULL, NULL}}};
    for (size_t i = 0; t_size > 1 && i < sizeof cases / sizeof *cases; i++) {
        MPIX_Ep_config config;
        MPI_Info info;
        e_config(&config, cases[i].layout);
        config.memkind = MPIX_EP_CUDA;
        config.num_sms = cases[i].sms;
        config.max_topk = 8;
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpix_ep_cuda_module", "/nowhere/libmpixep_cuda.so");
        MPI_Info_set(info, "mpix_ep_reach", "proxied");
        MPI_Info_set(info, "mpix_ep_transport", "shmem");
        MPI_Info_set(info, "mpix_ep_two_hops", cases[i].hops);
        t_where("create: GPU memory among proxied peers, case %zu", i);
        refused(&config, info, 1, 0, MPIX_ERRK_UNSUPPORTED, cases[i].arg, cases[i].texts);
        MPI_Info_free(&info);
    }
}

static void pointers(void) {
    for (int alone = 0; alone <= (t_size > 1); alone++) {
        MPIX_Ep_config config;
        MPIX_Ep ep = MPIX_EP_NULL;
        int victim = alone ? t_size - 1 : t_rank;
        e_config(&config, MPIX_EP_COMPACT);
        t_where("create: config NULL, alone %d", alone);
        refused(victim == t_rank ? NULL : &config, MPI_INFO_NULL, victim == t_rank, victim,
                MPIX_ERRK_ARG, "config", (const char *const[]){"NULL", NULL});
        t_where("create: ep NULL, alone %d", alone);
        int code = MPIX_Ep_create(test_comm, &config, MPI_INFO_NULL, victim == t_rank ? NULL : &ep);
        if (victim == t_rank)
            EXPECT(code, MPIX_ERRK_ARG, "ep", "NULL");
        else
            EXPECT_REMOTE(code, victim);
        CHECK(ep == MPIX_EP_NULL, "a failed create set its output");
    }
}

/* Keys that are unknown or do not parse. */
static void infos(void) {
    static const struct {
        const char *key, *value;
    } bad[] = {
        {"mpix_ep_nonsense", "1"},      {"mpix_ep_", "1"},
        {"mpix_ep_progress", "maybe"},  {"mpix_ep_spin_us", "soon"},
        {"mpix_ep_spin_us", "12x"},     {"mpix_ep_timeout", "-4"},
        {"mpix_ep_max_handles", "0"},   {"mpix_ep_max_handles", "99999999999999999999"},
        {"mpix_ep_stream_bytes", "1q"}, {"mpix_ep_isa", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int alone = 0; alone <= (t_size > 1); alone++) {
            MPIX_Ep_config config;
            MPI_Info info;
            int victim = alone ? (int)t_range(&e_common, 0, t_size - 1) : t_rank;
            if (!*bad[i].value && alone)
                continue;
            e_config(&config, MPIX_EP_COMPACT);
            MPI_Info_create(&info);
            MPI_Info_set(info, "mpix_other", "not ours");
            if (victim == t_rank && MPI_Info_set(info, bad[i].key, bad[i].value) != MPI_SUCCESS) {
                MPI_Info_free(&info); /* MPI may refuse an empty value itself */
                continue;
            }
            t_where("create: info %s=%s, alone %d", bad[i].key, bad[i].value, alone);
            refused(&config, info, victim == t_rank, victim, MPIX_ERRK_ARG, bad[i].key,
                    (const char *const[]){bad[i].value, NULL});
            MPI_Info_free(&info);
        }
}

static void environment(void) {
    static const char *const bad[][2] = {{"MPIX_EP_PROGRESS", "maybe"},
                                         {"MPIX_EP_SPIN_US", "1.5.2"},
                                         {"MPIX_EP_HUGE_PAGES", "9"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        MPIX_Ep_config config;
        e_config(&config, MPIX_EP_COMPACT);
        t_where("create: environment %s=%s on the last rank", bad[i][0], bad[i][1]);
        if (t_rank == t_size - 1)
            setenv(bad[i][0], bad[i][1], 1);
        refused(&config, MPI_INFO_NULL, t_rank == t_size - 1, t_size - 1, MPIX_ERRK_ARG, bad[i][0],
                (const char *const[]){bad[i][1], NULL});
        unsetenv(bad[i][0]);
    }
}

/* Valid everywhere, but not the same. Ranks that differ from rank 0 get ARG with the field. */
#define DIFFERENCES(X) \
    X("config.layout", c->layout = MPIX_EP_COMPACT) \
    X("config.max_topk", c->max_topk = 5) \
    X("config.expert_align", c->expert_align = 8) \
    X("config.depth", c->depth = 3) \
    X("config.overflow", c->overflow = MPIX_EP_OVERFLOW_DROP) \
    X("config.check", c->check = -1) \
    X("config.num_experts", c->num_experts = 77) \
    X("config.max_tokens", c->max_tokens = 9) \
    X("config.max_recv_rows", c->max_recv_rows = 1234) \
    X("config.max_row_bytes", c->max_row_bytes = 65) \
    X("config.expert_owner", (other_owners[0] = 1, c->expert_owner = other_owners)) \
    X("config.timeout_s", c->timeout_s = 31)

static int other_owners[256];

static void differ(MPIX_Ep_config *c, int which) {
    int n = 0;
#define APPLY(arg, statement) \
    if (n++ == which) { \
        statement; \
    }
    DIFFERENCES(APPLY)
}

static void differences(void) {
#define NAME(arg, statement) arg,
    static const char *const names[] = {DIFFERENCES(NAME)};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        for (int first = 0; first < 2; first++) {
            MPIX_Ep_config config;
            MPIX_Ep ep = MPIX_EP_NULL;
            MPIX_Error error;
            int odd = first ? 0 : t_size - 1;
            e_config(&config, MPIX_EP_EXPERT);
            config.expert_align = 1;
            config.expert_owner = other_owners;
            for (int e = 0; e < 256; e++)
                other_owners[e] = 0;
            if (t_rank == odd)
                differ(&config, i);
            t_where("create: %s of rank %d differs", names[i], odd);
            int code = MPIX_Ep_create(test_comm, &config, MPI_INFO_NULL, &ep);
            int blamed = first ? t_rank != 0 : t_rank == odd;
            MPIX_INIT(&error);
            MPIX_Error_last(&error);
            if (blamed) {
                CHECK(code != MPI_SUCCESS && error.kind == MPIX_ERRK_ARG,
                      "kind %d, expected ARG: %s", error.kind, error.text);
                CHECK(!strcmp(error.arg, names[i]) && strstr(error.text, names[i]) &&
                          strstr(error.text, "rank 0"),
                      "names \"%s\", expected \"%s\" and rank 0: %s", error.arg, names[i],
                      error.text);
            } else {
                EXPECT_REMOTE(code, first ? 1 : odd);
            }
            CHECK(ep == MPIX_EP_NULL, "a failed create set its output");
        }
}

static void communicators(void) {
    MPIX_Ep_config config;
    MPIX_Ep ep = MPIX_EP_NULL;
    e_config(&config, MPIX_EP_COMPACT);
    t_where("create: MPI_COMM_NULL");
    EXPECT(MPIX_Ep_create(MPI_COMM_NULL, &config, MPI_INFO_NULL, &ep), MPIX_ERRK_ARG, "comm");
    if (t_size > 1) {
        MPI_Comm half, inter;
        int low = t_rank < t_size / 2;
        t_where("create: an intercommunicator");
        MPI_Comm_split(MPI_COMM_WORLD, low, t_rank, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, low ? t_size / 2 : 0, 3, &inter);
        MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN);
        EXPECT(MPIX_Ep_create(inter, &config, MPI_INFO_NULL, &ep), MPIX_ERRK_ARG, "comm",
               "intercommunicator");
        MPI_Comm_free(&inter);
        MPI_Comm_free(&half);
    }
    CHECK(ep == MPIX_EP_NULL, "a failed create set its output");
}

/* High throughput: within the bounds that the documentation states. */
static void window_size_ht(void) {
    MPIX_Ep_config c;
    MPI_Count bytes = 0, more = 0;
    const char *most = getenv("MPIX_EP_COUNTS_RANKS");
    for (int layout = MPIX_EP_COMPACT; layout <= MPIX_EP_EXPERT; layout++)
        /* the bound in the header, with 64 handles */
        for (int ranks = 1; ranks < 70; ranks = ranks * 2 + 1) {
            MPI_Count counts = most && ranks > atoi(most) ? 16 * ((100 + ranks - 1) / ranks)
                                                          : (100 + 2 * ranks) * 8;
            MPI_Count rows = 12345, depth = 2;
            e_config(&c, layout);
            c.num_experts = 100;
            c.max_recv_rows = rows;
            MPI_Count words = 64 * (MPI_Count)ranks * (counts + depth * 520 + 640) + 192 * ranks +
                              4096;
            MPI_Count bound = depth * (rows * (E_ROW_BYTES + 40 + 8 * E_MAX_TOPK) + 8192) + words;
            if (CHECK_OK(MPIX_Ep_window_size(&c, ranks, ranks, &bytes)))
                CHECK(bytes > depth * rows * E_ROW_BYTES && bytes <= bound,
                      "layout %d, %d ranks: %lld bytes, bound %lld", layout, ranks,
                      (long long)bytes, (long long)bound);
            if (ranks == 1)
                continue;
            /* one rank per host: batches of the others, the words' mirror, the send buffer */
            MPI_Count far = ranks - 1, items = far * E_MAX_TOKENS,
                      item = E_ROW_BYTES + 66 + 8 * E_MAX_TOPK;
            if (layout == MPIX_EP_EXPERT && items < E_MAX_TOKENS * E_MAX_TOPK)
                items = E_MAX_TOKENS * E_MAX_TOPK;
            bound += depth * (items * item + 64 * far) + words + (64 << 20);
            if (CHECK_OK(MPIX_Ep_window_size(&c, ranks, 1, &more)))
                CHECK(more > bytes && more <= bound, "layout %d, %d hosts: %lld bytes, bound %lld",
                      layout, ranks, (long long)more, (long long)bound);
        }
}

static void window_size_ll(void) {
    MPIX_Ep_config c;
    MPI_Count bytes = 0, more = 0;
    for (int ranks = 1; ranks < 70; ranks = ranks * 2 + 1) { /* low latency */
        MPI_Count R = ranks, L = E_ROW_BYTES, T = E_MAX_TOKENS, K = E_MAX_TOPK, few = K < R ? K : R,
                  F = R - 1, far = K < F ? K : F;
        e_config(&c, MPIX_EP_EXPERT);
        c.mode = MPIX_EP_LL;
        MPI_Count rows = 2 * (R * T + T * few) * L,
                  bound = 2 * (R * T * (L + 36 + 8 * K) + T * few * (L + 28 + 4 * K) + R * 1024 +
                               8192) +
                          64 * R * (96 * 2 + 64) + 4096;
        if (CHECK_OK(MPIX_Ep_window_size(&c, ranks, ranks, &bytes)))
            CHECK(bytes > rows && bytes <= bound, "LL, %d ranks: %lld bytes, bound %lld", ranks,
                  (long long)bytes, (long long)bound);
        bound += (T * far + F * T) * (L + 36 + 8 * K) + F * 1024 + 8192;
        if (ranks > 1 && CHECK_OK(MPIX_Ep_window_size(&c, ranks, 1, &more)))
            CHECK(more > bytes && more <= bound, "LL, %d hosts: %lld bytes, bound %lld", ranks,
                  (long long)more, (long long)bound);
    }
    e_config(&c, MPIX_EP_EXPERT); /* the size that the mode is made for */
    c.mode = MPIX_EP_LL;
    c.max_topk = 8;
    c.num_experts = 256;
    c.max_tokens = 128;
    c.max_row_bytes = 2 * 7168;
    if (CHECK_OK(MPIX_Ep_window_size(&c, 8, 8, &bytes)))
        CHECK(bytes <= 64000000, "128 tokens of 7168 bf16, 8 ranks: %lld bytes", (long long)bytes);
}

/* Low latency in GPU memory: the goal, and the bound. */
static void window_size_gpu(void) {
    MPIX_Ep_config c;
    MPI_Count bytes = 0;
    for (int layout = MPIX_EP_EXPERT; layout <= MPIX_EP_SLOTS; layout++) {
        e_config(&c, layout);
        c.mode = MPIX_EP_LL, c.memkind = MPIX_EP_CUDA, c.depth = 2, c.expert_align = 0,
        c.max_recv_rows = 0;
        c.max_topk = 8, c.num_experts = 256, c.max_tokens = 128, c.max_row_bytes = 14336;
        MPI_Count bound = 2 * (8 * 128 * (14336 + 60 + 12 * 8) + 128 * 8 * (14336 + 24 + 4 * 8) +
                               8 * (4 * 32 + 256)) +
                          2048 + 64 * 8 * (96 * 2 + 64) + 4096;
        if (CHECK_OK(MPIX_Ep_window_size(&c, 8, 8, &bytes)))
            CHECK(bytes >= 4 * 1024 * 14336 && bytes <= bound && bytes <= 64000000,
                  "low latency, layout %d: %lld bytes, bound %lld", layout, (long long)bytes,
                  (long long)bound);
    }
}

/* Arguments of window_size itself, and that a rank's window grows with what it has to hold. */
static void window_size(void) {
    MPIX_Ep_config c;
    MPI_Count bytes = 0, more = 0;
    t_where("window_size");
    e_config(&c, MPIX_EP_COMPACT);
    EXPECT(MPIX_Ep_window_size(NULL, 2, 1, &bytes), MPIX_ERRK_ARG, "config", "NULL");
    EXPECT(MPIX_Ep_window_size(&c, 0, 1, &bytes), MPIX_ERRK_ARG, "ranks", "0", "1");
    EXPECT(MPIX_Ep_window_size(&c, -3, 1, &bytes), MPIX_ERRK_ARG, "ranks", "-3", "1");
    EXPECT(MPIX_Ep_window_size(&c, 4, 5, &bytes), MPIX_ERRK_ARG, "ranks_per_host", "5", "4");
    EXPECT(MPIX_Ep_window_size(&c, 4, 0, &bytes), MPIX_ERRK_ARG, "ranks_per_host", "0", "1");
    EXPECT(MPIX_Ep_window_size(&c, 4, 2, NULL), MPIX_ERRK_ARG, "bytes", "NULL");
    if (CHECK_OK(MPIX_Ep_window_size(&c, 4, 4, &bytes)))
        CHECK(bytes >= 2 * 4 * E_MAX_TOKENS * E_ROW_BYTES, "window_size %lld is less than its rows",
              (long long)bytes);
    window_size_gpu();
    window_size_ht();
    window_size_ll();
    e_config(&c, MPIX_EP_COMPACT);
    CHECK_OK(MPIX_Ep_window_size(&c, 4, 4, &bytes));
    c.depth = 4;
    if (CHECK_OK(MPIX_Ep_window_size(&c, 4, 4, &more)))
        CHECK(more > bytes, "window_size does not grow with depth: %lld, %lld", (long long)bytes,
              (long long)more);
}

void e_create_all(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &test_comm);
    window_size();
    spoiled_configs();
    no_cuda_module();
    cuda_proxied();
    pointers();
    infos();
    environment();
    if (t_size > 1)
        differences();
    communicators();
    /* After all that, one that works. */
    t_ctx ctx;
    t_handle handle;
    t_where("create: what is valid");
    if (e_create(&ctx, MPIX_EP_EXPERT, MPI_INFO_NULL)) {
        t_handle_init(&handle, &ctx);
        e_usable(&handle, 1);
        e_destroy(&ctx);
    }
    MPI_Comm_free(&test_comm);
}
