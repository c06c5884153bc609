/*
 * fuzz.h - what the targets share. A target is libFuzzer's function, in a program by itself: `make
 * check-fuzz` builds it with clang's libFuzzer, `make check` with replay.c, which runs the inputs
 * that are kept and mutations of them.
 */
#ifndef MPIX_TESTS_FUZZ_H
#define MPIX_TESTS_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Makes what is needed once; both runners call it before the first input. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
#ifdef __cplusplus
}
#endif

/* A property that must hold whatever the input. */
#define FUZZ_CHECK(condition, ...) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
            abort(); \
        } \
    } while (0)

/* The input as a row of numbers; zeros behind its end. */
typedef struct fuzz_bytes {
    const uint8_t *data;
    size_t left;
} fuzz_bytes;

static inline uint8_t fuzz_u8(fuzz_bytes *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}
/* In [lo, hi]; hi - lo below 256. */
static inline int fuzz_range(fuzz_bytes *in, int lo, int hi) {
    return lo + fuzz_u8(in) % (hi - lo + 1);
}
static inline void fuzz_fill(fuzz_bytes *in, void *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = fuzz_u8(in);
}
#endif
