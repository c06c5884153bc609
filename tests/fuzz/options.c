/* options.c - the command line of mpix_ep_bench: an argument a line. */
#include "config.h"

#include <getopt.h>

#include "bench/bench.h"
#include "bench/cuda.h"
#include "tests/fuzz/fuzz.h"

/* As a build with everything has them. */
const char *bench_cuda_available(int nccl) { return nccl ? NULL : NULL; }
int bench_cuda_default(void) { return BENCH_NCCL; }
const char *bench_json_available(void) { return NULL; }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { ARGS = 32 };
    char *text = malloc(size + 1), *argv[ARGS + 2] = {"mpix_ep_bench"}, err[1024] = "";
    int argc = 1;
    bench_options opt;
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *at = text; at && argc <= ARGS;) {
        argv[argc++] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
    }
    optind = 0; /* glibc: begin anew */
    int result = bench_options_parse(argc, argv, &opt, err, sizeof err);
    if (result == BENCH_OPTIONS_BAD)
        FUZZ_CHECK(*err, "refused without a word");
    if (result == BENCH_OPTIONS_OK) {
        FUZZ_CHECK(opt.hidden >= 1 && opt.topk >= 0 && opt.num_experts >= 0, "hidden %ld",
                   opt.hidden);
        FUZZ_CHECK(opt.tokens_min >= 0 && opt.tokens_min <= opt.tokens_max, "%ld to %ld",
                   opt.tokens_min, opt.tokens_max);
        FUZZ_CHECK(opt.nsms >= 0 && opt.nsms <= BENCH_SMS, "%d", opt.nsms);
        FUZZ_CHECK(opt.dtype > 0 && bench_dtype_size(opt.dtype) > 0, "dtype %d", opt.dtype);
        FUZZ_CHECK(opt.zipf_s >= 0, "%g", opt.zipf_s);
    }
    free(text);
    return 0;
}
