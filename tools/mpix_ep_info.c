/*
 * mpix_ep_info.c - tells about the library and the machine: options and the order of the parts.
 */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "kernels/host/rows.h"
#include "tools/info.h"

static const char info_usage[] =
    "usage: mpix_ep_info [PART ...]\n"
    "\n"
    "Without options: version, build and machine; under mpirun with several ranks also how they "
    "reach each other.\n"
    "\n"
    "  --version        the library's version\n"
    "  --build          compiler, MPI and options the library was built with\n"
    "  --machine        processor, instruction sets, memory and its limits\n"
    "  --params         every parameter: environment variable, info key, values, default, value in "
    "force, meaning\n"
    "      --all               with those that serve tests of the library only\n"
    "  --paths[=HOW]    the ways of carrying out route, dispatch and combine, what each supports. "
    "HOW: text (default), summary or matrix (markdown), cells (a line each)\n"
    "  --matrix         under mpirun: how each rank reaches each other rank, and why not\n"
    "  --selftest       under mpirun: sends checked rows over every pair of ranks and back; exit "
    "status 1 if anything "
    "is wrong\n"
    "  --window-size    window memory per rank of a context of the shape given by\n"
    "      --ranks N           ranks (default 8)\n"
    "      --ranks-per-host N  default: all on one host\n"
    "      --num-experts N     experts of all ranks together (default 256)\n"
    "      --max-tokens N      most tokens a rank sends in a batch (default 4096)\n"
    "      --hidden N          elements of a row (default 7168)\n"
    "      --topk N            most choices per token (default 8)\n"
    "      --dtype T           bytes, f64, f32, f16, bf16, f8e4m3, f8e5m2 (default bf16)\n"
    "      --mode M            ht or ll (default ht)\n"
    "      --layout L          ht: compact or expert (default compact); ll: slots or expert "
    "(default slots)\n"
    "      --memory M          host or cuda (default host)\n"
    "      --expert-align N    rows each expert's block is aligned to (default 1)\n"
    "      --max-recv-rows N   most rows a rank receives (default 0: worst case)\n"
    "      --depth N           batches in flight (default 2)\n"
    "  --help\n"
    "\n"
    "Exit status: 0, 1 if something failed, 2 for wrong options.\n";

enum {
    OPT_VERSION = 256,
    OPT_BUILD,
    OPT_MACHINE,
    OPT_PARAMS,
    OPT_ALL,
    OPT_PATHS,
    OPT_MATRIX,
    OPT_SELFTEST,
    OPT_WINDOW_SIZE,
    OPT_RANKS,
    OPT_RANKS_PER_HOST,
    OPT_NUM_EXPERTS,
    OPT_MAX_TOKENS,
    OPT_HIDDEN,
    OPT_TOPK,
    OPT_DTYPE,
    OPT_MODE,
    OPT_LAYOUT,
    OPT_MEMORY,
    OPT_EXPERT_ALIGN,
    OPT_MAX_RECV_ROWS,
    OPT_DEPTH,
    OPT_HELP
};

static const struct option info_options[] = {
    {"version", no_argument, NULL, OPT_VERSION},
    {"build", no_argument, NULL, OPT_BUILD},
    {"machine", no_argument, NULL, OPT_MACHINE},
    {"params", no_argument, NULL, OPT_PARAMS},
    {"all", no_argument, NULL, OPT_ALL},
    {"paths", optional_argument, NULL, OPT_PATHS},
    {"matrix", no_argument, NULL, OPT_MATRIX},
    {"selftest", no_argument, NULL, OPT_SELFTEST},
    {"window-size", no_argument, NULL, OPT_WINDOW_SIZE},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"ranks-per-host", required_argument, NULL, OPT_RANKS_PER_HOST},
    {"num-experts", required_argument, NULL, OPT_NUM_EXPERTS},
    {"max-tokens", required_argument, NULL, OPT_MAX_TOKENS},
    {"hidden", required_argument, NULL, OPT_HIDDEN},
    {"topk", required_argument, NULL, OPT_TOPK},
    {"dtype", required_argument, NULL, OPT_DTYPE},
    {"mode", required_argument, NULL, OPT_MODE},
    {"layout", required_argument, NULL, OPT_LAYOUT},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"expert-align", required_argument, NULL, OPT_EXPERT_ALIGN},
    {"max-recv-rows", required_argument, NULL, OPT_MAX_RECV_ROWS},
    {"depth", required_argument, NULL, OPT_DEPTH},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

typedef struct info_request {
    int version, build, machine, params, all_params, matrix, selftest, window_size;
    const char *paths; /* how, NULL: not */
    int shape;         /* an option that only --window-size takes was given */
    int ranks, ranks_per_host, dtype;
    long long hidden;
    int has_layout;
    MPIX_Ep_config config;
} info_request;

/* A number within limits; anything else ends the program. */
static long long info_number(const char *name, const char *text, long long lo, long long hi) {
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < lo || n > hi) {
        fprintf(stderr, "mpix_ep_info: --%s %s: expected a number from %lld to %lld\n", name, text,
                lo, hi);
        exit(2);
    }
    return n;
}

static int info_word(const char *name, const char *text, const char *const words[], int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], text) == 0)
            return i;
    fprintf(stderr, "mpix_ep_info: --%s %s: expected one of", name, text);
    for (int i = 0; i < n; i++)
        fprintf(stderr, " %s", words[i]);
    fputc('\n', stderr);
    exit(2);
}

static void info_shape_option(info_request *req, int opt, const char *name, const char *text) {
    static const char *const layouts[] = {"compact", "expert", "slots"},
                             *const modes[] = {"ht", "ll"}, *const memories[] = {"host", "cuda"};
    const char *dtypes[MPIX_EP_BYTES];

    req->shape = 1;
    switch (opt) {
    case OPT_RANKS: req->ranks = (int)info_number(name, text, 1, 1 << 20); break;
    case OPT_RANKS_PER_HOST: req->ranks_per_host = (int)info_number(name, text, 1, 1 << 20); break;
    case OPT_NUM_EXPERTS:
        req->config.num_experts = (MPI_Count)info_number(name, text, 0, INT_MAX);
        break;
    case OPT_MAX_TOKENS:
        req->config.max_tokens = (MPI_Count)info_number(name, text, 0, INT_MAX);
        break;
    case OPT_HIDDEN: req->hidden = info_number(name, text, 1, 1LL << 40); break;
    case OPT_TOPK: req->config.max_topk = (int)info_number(name, text, 1, INT_MAX); break;
    case OPT_MODE:
        req->config.mode = info_word(name, text, modes, 2) ? MPIX_EP_LL : MPIX_EP_HT;
        break;
    case OPT_LAYOUT:
        req->config.layout = MPIX_EP_COMPACT + info_word(name, text, layouts, 3);
        req->has_layout = 1;
        break;
    case OPT_MEMORY:
        req->config.memkind = info_word(name, text, memories, 2) ? MPIX_EP_CUDA : MPIX_EP_HOST;
        break;
    case OPT_EXPERT_ALIGN:
        req->config.expert_align = (int)info_number(name, text, 0, INT_MAX);
        break;
    case OPT_MAX_RECV_ROWS:
        req->config.max_recv_rows = (MPI_Count)info_number(name, text, 0, 1LL << 46);
        break;
    case OPT_DEPTH: req->config.depth = (int)info_number(name, text, 0, INT_MAX); break;
    default:
        for (int i = 0; i < MPIX_EP_BYTES; i++)
            dtypes[i] = mpix_dtype_name(MPIX_EP_F64 + i);
        req->dtype = MPIX_EP_F64 + info_word(name, text, dtypes, MPIX_EP_BYTES);
    }
}

static void info_parse(info_request *req, int argc, char **argv) {
    int opt, index = 0;

    while ((opt = getopt_long(argc, argv, "", info_options, &index)) != -1) {
        switch (opt) {
        case OPT_VERSION: req->version = 1; break;
        case OPT_BUILD: req->build = 1; break;
        case OPT_MACHINE: req->machine = 1; break;
        case OPT_PARAMS: req->params = 1; break;
        case OPT_ALL: req->all_params = 1; break;
        case OPT_PATHS: req->paths = optarg ? optarg : "text"; break;
        case OPT_MATRIX: req->matrix = 1; break;
        case OPT_SELFTEST: req->selftest = 1; break;
        case OPT_WINDOW_SIZE: req->window_size = 1; break;
        case OPT_HELP: fputs(info_usage, stdout); exit(0);
        case '?': fputs(info_usage, stderr); exit(2);
        default: info_shape_option(req, opt, info_options[index].name, optarg);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "mpix_ep_info: %s: not an option\n%s", argv[optind], info_usage);
        exit(2);
    }
    if (req->config.mode == MPIX_EP_LL && !req->has_layout)
        req->config.layout = MPIX_EP_SLOTS;
    if (req->shape && !req->window_size) {
        fputs("mpix_ep_info: the options of a shape need --window-size\n", stderr);
        exit(2);
    }
    if (req->all_params && !req->params) {
        fputs("mpix_ep_info: --all needs --params\n", stderr);
        exit(2);
    }
}

/* Errors are logged where they are decided; what the log did not say is said here. */
void info_error(const char *what) {
    MPIX_Error err;
    int named;

    MPIX_INIT(&err);
    MPIX_Error_last(&err);
    if (err.kind != MPIX_ERRK_REMOTE && mpix_log_enabled(MPIX_LOG_ERROR))
        return;
    named = err.arg[0] && !strstr(err.text, err.arg);
    fprintf(stderr, "mpix_ep_info: %s: %s: %s%s%s\n", what, mpix_kind_name(err.kind),
            named ? err.arg : "", named ? ": " : "", err.text);
}

static void info_print_version(void) {
    int major, minor, patch;

    MPIX_Ep_get_version(&major, &minor, &patch);
    printf("mpix-ep %d.%d.%d\n", major, minor, patch);
}

/* What needs no ranks is printed once, by rank 0. */
static int info_print_local(info_request *req, const mpix_params *params) {
    int status = 0;

    if (req->version)
        info_print_version();
    if (req->build)
        info_build();
    if (req->machine)
        info_machine(params);
    if (req->params)
        info_params(params, req->all_params);
    if (req->paths)
        status = info_paths(req->paths);
    if (req->window_size) {
        req->config.max_row_bytes =
            (MPI_Count)((unsigned long long)req->hidden * mpix_dtype_size(req->dtype));
        status |= info_window_size(&req->config, req->ranks,
                                   req->ranks_per_host ? req->ranks_per_host : req->ranks);
    }
    return status;
}

int main(int argc, char **argv) {
    info_request req = {.ranks = 8, .hidden = 7168, .dtype = MPIX_EP_BF16};
    int rank = 0, size = 1, mpi, all, status = 0;
    mpix_params params;

    MPIX_INIT(&req.config);
    req.config.num_experts = 256;
    req.config.max_tokens = 4096;
    req.config.max_topk = 8;
    info_parse(&req, argc, argv);
    all = !(req.version || req.build || req.machine || req.params || req.paths || req.matrix ||
            req.selftest || req.window_size);
    if (all)
        req.version = req.build = req.machine = 1;
    if (mpix_params_read(&params)) {
        info_error("environment");
        return 1;
    }

    /* The other parts work where MPI can't be started. */
    mpi = all || req.matrix || req.selftest;
    if (mpi) {
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    if (rank == 0)
        status = info_print_local(&req, &params);
    fflush(stdout);
    if (req.matrix || (all && size > 1))
        status |= info_matrix(&params);
    if (req.selftest)
        status |= info_selftest();
    if (mpi)
        MPI_Finalize();
    return status;
}
