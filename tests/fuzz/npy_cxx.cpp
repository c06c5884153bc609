/* npy_cxx.cpp - arrays as the example reads them. */
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "examples/npy.hpp"

static int file = -1;
static char path[64];

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    file = memfd_create("npy", 0);
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return file < 0;
}

template <class T> static void read_all() {
    try {
        npy::File(path).all<T>();
    } catch (const std::runtime_error &) { // refused, with a sentence
    }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (ftruncate(file, 0) || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
        abort();
    read_all<float>();
    read_all<std::int32_t>();
    read_all<std::uint16_t>();
    return 0;
}
