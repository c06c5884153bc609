/*
 * copy.c - the yardstick of dispatch: rows copied with streaming stores by this process alone, no
 * routing, no peers, no waiting.
 */
#include "config.h"

#include "bench/bench.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

const char *bench_copy_name(void) { return "streaming stores"; }

/* Whole cache lines are streamed; what sticks out at either end is copied plainly. */
static void copy_row(unsigned char *dst, const unsigned char *src, size_t n) {
    size_t head = (size_t)(-(uintptr_t)dst & 63);
    if (head > n)
        head = n;
    memcpy(dst, src, head);
    size_t at = head;
    for (; at + 64 <= n; at += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(src + at));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 48));
        _mm_stream_si128((__m128i *)(void *)(dst + at), a);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 16), b);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 32), c);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 48), d);
    }
    memcpy(dst + at, src + at, n - at);
}
#else
const char *bench_copy_name(void) { return "memcpy"; }

static void copy_row(unsigned char *dst, const unsigned char *src, size_t n) {
    memcpy(dst, src, n);
}
#endif

void bench_copy_rows(void *dst, const void *src, size_t row_bytes, long rows, const int32_t *map) {
    for (long i = 0; i < rows; i++)
        copy_row((unsigned char *)dst + (size_t)i * row_bytes,
                 (const unsigned char *)src + (size_t)map[i] * row_bytes, row_bytes);
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
