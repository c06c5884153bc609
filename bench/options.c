/*
 * options.c - the command line of mpix_ep_bench. Nothing is accepted and ignored: what this version
 * does not have is refused by name.
 */
#include "config.h"

#include "bench/bench.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_TOKENS = 256,
    OPT_HIDDEN,
    OPT_TOPK,
    OPT_EXPERTS,
    OPT_MODE,
    OPT_MEMORY,
    OPT_DTYPE,
    OPT_SCALES,
    OPT_LAYOUT,
    OPT_ALIGN,
    OPT_ROUTING,
    OPT_SEED,
    OPT_METADATA,
    OPT_BASELINE,
    OPT_OVERLAP,
    OPT_BUFFERS,
    OPT_JSON,
    OPT_PLOT,
    OPT_THREAD,
    OPT_HOPS,
    OPT_SMS,
    OPT_BOUNDS
};

static const struct option bench_long_options[] = {
    {"num-tokens", required_argument, NULL, OPT_TOKENS},
    {"hidden", required_argument, NULL, OPT_HIDDEN},
    {"num-topk", required_argument, NULL, OPT_TOPK},
    {"num-experts", required_argument, NULL, OPT_EXPERTS},
    {"mode", required_argument, NULL, OPT_MODE},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"dtype", required_argument, NULL, OPT_DTYPE},
    {"scales", required_argument, NULL, OPT_SCALES},
    {"layout", required_argument, NULL, OPT_LAYOUT},
    {"expert-align", required_argument, NULL, OPT_ALIGN},
    {"routing", required_argument, NULL, OPT_ROUTING},
    {"seed", required_argument, NULL, OPT_SEED},
    {"metadata", required_argument, NULL, OPT_METADATA},
    {"baseline", required_argument, NULL, OPT_BASELINE},
    {"overlap", no_argument, NULL, OPT_OVERLAP},
    {"bounds", no_argument, NULL, OPT_BOUNDS},
    {"buffers", required_argument, NULL, OPT_BUFFERS},
    {"json", required_argument, NULL, OPT_JSON},
    {"plot", required_argument, NULL, OPT_PLOT},
    {"progress-thread", no_argument, NULL, OPT_THREAD},
    {"two-hops", required_argument, NULL, OPT_HOPS},
    {"num-sms", required_argument, NULL, OPT_SMS},
    {"iterations", required_argument, NULL, 'i'},
    {"warmup", required_argument, NULL, 'x'},
    {"message-size", required_argument, NULL, 'm'},
    {"validation", required_argument, NULL, 'c'},
    {"full", no_argument, NULL, 'f'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct bench_word {
    const char *word;
    int value;
} bench_word;

static const bench_word bench_dtypes[] = {
    {"bytes", MPIX_EP_BYTES},   {"f64", MPIX_EP_F64},
    {"f32", MPIX_EP_F32},       {"f16", MPIX_EP_F16},
    {"bf16", MPIX_EP_BF16},     {"f8e4m3", MPIX_EP_F8E4M3},
    {"f8e5m2", MPIX_EP_F8E5M2}, {NULL, 0},
};
static const bench_word bench_scales[] = {
    {"none", MPIX_EP_NO_SCALES},
    {"f32", MPIX_EP_SCALES_F32},
    {"ue8m0", MPIX_EP_SCALES_UE8M0},
    {NULL, 0},
};
static const bench_word bench_layouts[] = {{"compact", MPIX_EP_COMPACT},
                                           {"expert", MPIX_EP_EXPERT},
                                           {"slots", MPIX_EP_SLOTS},
                                           {NULL, 0}};
static const bench_word bench_buffer_kinds[] = {
    {"alloc", BENCH_ALLOC},
    {"malloc", BENCH_MALLOC},
    {"both", BENCH_BOTH},
    {NULL, 0},
};
static const bench_word bench_hops[] = {{"auto", 0}, {"on", 1}, {"off", 2}, {NULL, 0}};
static const bench_word bench_on_off[] = {{"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}, {NULL, 0}};

const char *bench_dtype_name(int dtype) {
    for (const bench_word *w = bench_dtypes; w->word; w++)
        if (w->value == dtype)
            return w->word;
    return "?";
}

static int bench_bad(char *err, size_t errlen, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int bench_bad(char *err, size_t errlen, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, errlen, fmt, ap);
    va_end(ap);
    return BENCH_OPTIONS_BAD;
}

static int bench_number(const char *text, long min, long max, long *value) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < min || v > max)
        return -1;
    *value = v;
    return 0;
}

static int bench_parse_int(const char *name, const char *text, long min, long max, int *value,
                           char *err, size_t errlen) {
    long v;
    if (bench_number(text, min, max, &v))
        return bench_bad(err, errlen, "%s is '%s'; it must be a whole number from %ld to %ld", name,
                         text, min, max);
    *value = (int)v;
    return BENCH_OPTIONS_OK;
}

static int bench_parse_word(const char *name, const char *text, const bench_word *words, int *value,
                            char *err, size_t errlen) {
    char list[128] = "";
    for (const bench_word *w = words; w->word; w++) {
        if (!strcmp(w->word, text)) {
            *value = w->value;
            return BENCH_OPTIONS_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", w->word);
    }
    return bench_bad(err, errlen, "%s is '%s'; it must be one of: %s", name, text, list);
}

static int bench_parse_path(const char *name, const char *text, char *path, size_t len, char *err,
                            size_t errlen) {
    if (!*text || strlen(text) >= len)
        return bench_bad(err, errlen, "%s needs a path of 1 to %zu characters", name, len - 1);
    strcpy(path, text);
    return BENCH_OPTIONS_OK;
}

static int bench_parse_routing(const char *text, bench_options *opt, char *err, size_t errlen) {
    size_t len = strlen(text);
    if (!strcmp(text, "uniform")) {
        opt->routing = BENCH_UNIFORM;
        return BENCH_OPTIONS_OK;
    }
    if (!strncmp(text, "zipf:", 5)) {
        char *end;
        errno = 0;
        opt->zipf_s = strtod(text + 5, &end);
        if (errno || end == text + 5 || *end || !(opt->zipf_s >= 0 && opt->zipf_s <= 100))
            return bench_bad(
                err, errlen,
                "--routing is '%s'; the exponent of zipf:S must be a number from 0 to 100", text);
        opt->routing = BENCH_ZIPF;
        return BENCH_OPTIONS_OK;
    }
    if (len > 4 && !strcmp(text + len - 4, ".npy")) {
        opt->routing = BENCH_FILE;
        return bench_parse_path("--routing", text, opt->routing_path, sizeof opt->routing_path, err,
                                errlen);
    }
    return bench_bad(
        err, errlen,
        "--routing is '%s'; it must be uniform, zipf:S or a file whose name ends in .npy", text);
}

/* [MIN:]MAX */
static int bench_parse_range(const char *text, bench_options *opt, char *err, size_t errlen) {
    char copy[64];
    const char *max = text;
    long lo = 1, hi;
    if (strlen(text) < sizeof copy) {
        strcpy(copy, text);
        char *colon = strchr(copy, ':');
        if (colon) {
            *colon = '\0';
            max = colon + 1;
        }
        if (!(colon && bench_number(copy, 0, INT_MAX, &lo)) &&
            !bench_number(max, 0, INT_MAX, &hi) && (lo <= hi || !colon)) {
            opt->tokens_min = lo < hi ? lo : hi;
            opt->tokens_max = hi;
            return BENCH_OPTIONS_OK;
        }
    }
    return bench_bad(err, errlen,
                     "-m is '%s'; it must be MAX or MIN:MAX with 0 <= MIN <= MAX <= %d tokens",
                     text, INT_MAX);
}

static int bench_parse_seed(const char *text, uint64_t *seed, char *err, size_t errlen) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *end || strchr(text, '-'))
        return bench_bad(err, errlen,
                         "--seed is '%s'; it must be a whole number from 0 to 2^64 - 1", text);
    *seed = v;
    return BENCH_OPTIONS_OK;
}

/* N[,N...] */
static int bench_parse_sms(const char *text, bench_options *opt, char *err, size_t errlen) {
    char *end;
    opt->nsms = 0;
    for (const char *at = text; opt->nsms < BENCH_SMS; at = end + 1) {
        errno = 0;
        long v = strtol(at, &end, 10);
        if (errno || end == at || v < -1 || v > 1024 || (*end && *end != ','))
            break;
        opt->sms[opt->nsms++] = (int)v;
        if (!*end)
            return BENCH_OPTIONS_OK;
    }
    return bench_bad(err, errlen,
                     "--num-sms is '%s'; it must be up to %d whole numbers separated by commas",
                     text, BENCH_SMS);
}

/* Where a word of the command line depends on what this build has, or on this version. */
static int bench_parse_feature(int c, const char *text, bench_options *opt, char *err,
                               size_t errlen) {
    switch (c) {
    case OPT_MODE:
        opt->ll = !strcmp(text, "ll");
        if (opt->ll || !strcmp(text, "ht"))
            return BENCH_OPTIONS_OK;
        return bench_bad(err, errlen, "--mode is '%s'; it must be ht or ll", text);
    case OPT_MEMORY:
        opt->cuda = 0;
        if (!strcmp(text, "host"))
            return BENCH_OPTIONS_OK;
        opt->cuda = !strcmp(text, "cuda");
        if (opt->cuda)
            return bench_cuda_available(0)
                       ? bench_bad(err, errlen, "--memory cuda: %s", bench_cuda_available(0))
                       : BENCH_OPTIONS_OK;
        return bench_bad(err, errlen, "--memory is '%s'; it must be host or cuda", text);
    case OPT_BASELINE:
        opt->baseline = !strcmp(text, "mpi")    ? BENCH_MPI
                        : !strcmp(text, "nccl") ? BENCH_NCCL
                                                : BENCH_NO_BASELINE;
        if (opt->baseline != BENCH_NO_BASELINE || !strcmp(text, "none"))
            return BENCH_OPTIONS_OK;
        return bench_bad(err, errlen, "--baseline is '%s'; it must be nccl, mpi or none", text);
    default: return bench_parse_sms(text, opt, err, errlen);
    }
}

static int bench_parse_one(int c, const char *arg, bench_options *opt, long *tokens, char *err,
                           size_t errlen) {
    long v;
    switch (c) {
    case OPT_TOKENS:
        if (bench_number(arg, 0, INT_MAX, tokens))
            return bench_bad(err, errlen,
                             "--num-tokens is '%s'; it must be a whole number from 0 to %d", arg,
                             INT_MAX);
        return BENCH_OPTIONS_OK;
    case OPT_HIDDEN:
        if (bench_number(arg, 1, 1 << 27, &v))
            return bench_bad(err, errlen,
                             "--hidden is '%s'; it must be a whole number from 1 to %d", arg,
                             1 << 27);
        opt->hidden = v;
        return BENCH_OPTIONS_OK;
    case OPT_TOPK:
        opt->topk_given = 1;
        return bench_parse_int("--num-topk", arg, 0, 4096, &opt->topk, err, errlen);
    case OPT_EXPERTS:
        return bench_parse_int("--num-experts", arg, 0, 1 << 20, &opt->num_experts, err, errlen);
    case OPT_DTYPE: return bench_parse_word("--dtype", arg, bench_dtypes, &opt->dtype, err, errlen);
    case OPT_SCALES:
        return bench_parse_word("--scales", arg, bench_scales, &opt->scale_kind, err, errlen);
    case OPT_LAYOUT:
        return bench_parse_word("--layout", arg, bench_layouts, &opt->layout, err, errlen);
    case OPT_ALIGN:
        return bench_parse_int("--expert-align", arg, 1, 1 << 20, &opt->expert_align, err, errlen);
    case OPT_ROUTING: return bench_parse_routing(arg, opt, err, errlen);
    case OPT_SEED: return bench_parse_seed(arg, &opt->seed, err, errlen);
    case OPT_METADATA:
        return bench_parse_word("--metadata", arg, bench_on_off, &opt->metadata, err, errlen);
    case OPT_OVERLAP: opt->overlap = 1; return BENCH_OPTIONS_OK;
    case OPT_BOUNDS: opt->bounds = 1; return BENCH_OPTIONS_OK;
    case OPT_BUFFERS:
        return bench_parse_word("--buffers", arg, bench_buffer_kinds, &opt->buffers, err, errlen);
    case OPT_PLOT:
        return bench_parse_path("--plot", arg, opt->plot_path, sizeof opt->plot_path, err, errlen);
    case OPT_JSON:
        return bench_parse_path("--json", arg, opt->json_path, sizeof opt->json_path, err, errlen);
    case OPT_THREAD: opt->progress_thread = 1; return BENCH_OPTIONS_OK;
    case OPT_HOPS:
        return bench_parse_word("--two-hops", arg, bench_hops, &opt->two_hops, err, errlen);
    case 'i': return bench_parse_int("-i", arg, 1, 1000000, &opt->iterations, err, errlen);
    case 'x': return bench_parse_int("-x", arg, 0, 1000000, &opt->warmup, err, errlen);
    case 'm': return bench_parse_range(arg, opt, err, errlen);
    case 'c': return bench_parse_word("-c", arg, bench_on_off, &opt->validate, err, errlen);
    case 'f': opt->full = 1; return BENCH_OPTIONS_OK;
    default: return bench_parse_feature(c, arg, opt, err, errlen);
    }
}

/* What --mode ll has not. */
static int bench_settle_ll(bench_options *opt, char *err, size_t errlen) {
    if (!opt->ll)
        return opt->layout == MPIX_EP_SLOTS
                   ? bench_bad(err, errlen, "--layout slots is for --mode ll")
                   : BENCH_OPTIONS_OK;
    if (opt->layout == MPIX_EP_COMPACT)
        return bench_bad(err, errlen, "--mode ll has --layout slots and expert");
    if (opt->dtype == MPIX_EP_BYTES)
        return bench_bad(err, errlen, "--mode ll times combine, which --dtype bytes has not");
    if (opt->overlap || opt->progress_thread || opt->full || *opt->plot_path ||
        opt->buffers != BENCH_ALLOC)
        return bench_bad(
            err, errlen,
            "--overlap, --progress-thread, --full, --plot and --buffers are for --mode ht");
    if (opt->cuda && opt->baseline == BENCH_MPI)
        return bench_bad(err, errlen,
                         "--mode ll --memory cuda gives GPU times, which --baseline mpi has not; "
                         "use nccl or none");
    if (opt->layout == MPIX_EP_SLOTS)
        opt->layout = MPIX_EP_COMPACT;
    return BENCH_OPTIONS_OK;
}

/* What can only be judged when all options are known. -1 stands for "not given". */
static int bench_options_settle(bench_options *opt, long tokens, char *err, size_t errlen) {
    int fp8 = opt->dtype == MPIX_EP_F8E4M3 || opt->dtype == MPIX_EP_F8E5M2;
    if (tokens >= 0 && opt->tokens_max >= 0)
        return bench_bad(err, errlen, "--num-tokens and -m exclude each other");
    if (opt->layout < 0)
        opt->layout = opt->ll ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    int settled = bench_settle_ll(opt, err, errlen);
    if (settled != BENCH_OPTIONS_OK)
        return settled;
    if (opt->tokens_max < 0)
        opt->tokens_min = opt->tokens_max = tokens >= 0 ? tokens : 1024;
    if (opt->scale_kind > MPIX_EP_NO_SCALES && !fp8)
        return bench_bad(err, errlen, "--scales is for the dtypes f8e4m3 and f8e5m2, not for %s",
                         bench_dtype_name(opt->dtype));
    if (opt->scale_kind < 0)
        opt->scale_kind = fp8 ? MPIX_EP_SCALES_F32 : MPIX_EP_NO_SCALES;
    if (opt->expert_align != 1 && opt->layout != MPIX_EP_EXPERT)
        return bench_bad(err, errlen, "--expert-align is for --layout expert");
    if (!opt->topk_given)
        opt->topk = 8;
    if (opt->routing != BENCH_FILE && opt->topk > opt->num_experts)
        return bench_bad(err, errlen,
                         "--num-topk %d needs as many experts, but --num-experts is %d", opt->topk,
                         opt->num_experts);
    if (opt->baseline < 0)
        opt->baseline = !opt->cuda ? BENCH_MPI
                        : opt->layout == MPIX_EP_EXPERT ||
                                (opt->ll && bench_cuda_default() != BENCH_NCCL)
                            ? BENCH_NO_BASELINE
                            : bench_cuda_default();
    if (!opt->cuda && opt->baseline == BENCH_NCCL)
        return bench_bad(err, errlen, "--baseline nccl is for --memory cuda");
    if (!opt->cuda && opt->nsms)
        return bench_bad(err, errlen, "--num-sms is for --memory cuda");
    if (opt->cuda && (opt->progress_thread || opt->buffers != BENCH_ALLOC))
        return bench_bad(err, errlen, "--progress-thread and --buffers are for --memory host");
    if (opt->bounds && (!opt->cuda || opt->ll))
        return bench_bad(err, errlen, "--bounds is for --memory cuda in --mode ht");
    if (opt->cuda && opt->layout == MPIX_EP_EXPERT && opt->baseline != BENCH_NO_BASELINE)
        return bench_bad(
            err, errlen,
            "the baselines of --memory cuda have --layout compact only; use --baseline none");
    if (opt->baseline == BENCH_NCCL && bench_cuda_available(1))
        return bench_bad(err, errlen, "--baseline nccl: %s", bench_cuda_available(1));
    const char *why = *opt->json_path ? bench_json_available() : NULL;
    if (why)
        return bench_bad(err, errlen, "--json: %s", why);
    return BENCH_OPTIONS_OK;
}

int bench_options_parse(int argc, char **argv, bench_options *opt, char *err, size_t errlen) {
    long tokens = -1;
    memset(opt, 0, sizeof *opt); /* padding too: ranks compare their options byte by byte */
    opt->tokens_min = opt->tokens_max = -1;
    opt->hidden = 7168;
    opt->num_experts = 256;
    opt->layout = -1;
    opt->dtype = MPIX_EP_BF16;
    opt->scale_kind = -1;
    opt->expert_align = 1;
    opt->seed = 1;
    opt->metadata = 1;
    opt->baseline = -1;
    opt->buffers = BENCH_ALLOC;
    opt->iterations = 50;
    opt->warmup = 5;
    opt->validate = 1;
    opterr = 0;
    for (;;) {
        int c = getopt_long(argc, argv, ":i:x:m:c:fh", bench_long_options, NULL);
        if (c == -1)
            break;
        if (c == 'h')
            return BENCH_OPTIONS_HELP;
        if (c == '?' && optopt > 0 && optopt < 256)
            return bench_bad(err, errlen,
                             "'-%c' is not an option of mpix_ep_bench; --help lists them", optopt);
        if (c == '?' && optopt)
            return bench_bad(err, errlen, "'%s': this option takes no value", argv[optind - 1]);
        if (c == '?')
            return bench_bad(err, errlen,
                             "'%s' is not an option of mpix_ep_bench; --help lists them",
                             argv[optind - 1]);
        if (c == ':')
            return bench_bad(err, errlen, "'%s' needs a value", argv[optind - 1]);
        int rc = bench_parse_one(c, optarg, opt, &tokens, err, errlen);
        if (rc != BENCH_OPTIONS_OK)
            return rc;
    }
    if (optind < argc)
        return bench_bad(err, errlen, "'%s' is not an option of mpix_ep_bench; --help lists them",
                         argv[optind]);
    return bench_options_settle(opt, tokens, err, errlen);
}
