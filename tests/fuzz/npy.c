/* npy.c - routing files as the benchmark reads them. */
#include "config.h"

#include <sys/mman.h>
#include <unistd.h>

#include "bench/bench.h"
#include "tests/fuzz/fuzz.h"

static int file = -1;
static char path[64];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    file = memfd_create("npy", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return file < 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bench_npy npy = {0};
    char err[512] = "";
    if (ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size)
        abort();
    if (bench_npy_read(path, &npy, err, sizeof err)) {
        FUZZ_CHECK(*err, "refused without a word");
        return 0;
    }
    FUZZ_CHECK(npy.tokens >= 0 && npy.k >= 0, "%lld tokens of %d", (long long)npy.tokens, npy.k);
    uint64_t sum = 0; /* a sanitizer sees whether all of them are there */
    for (int64_t i = 0; i < npy.tokens * npy.k; i++)
        sum += (uint32_t)npy.ids[i];
    FUZZ_CHECK(size > (uint64_t)(npy.tokens * npy.k), "%llu ids of a file of %zu bytes",
               (unsigned long long)sum, size);
    free(npy.ids);
    return 0;
}
