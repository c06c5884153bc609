/*
 * copy_impl.h - copies and zeros of rows, written in the operations of a vec_*.h; included
 * once per variant.
 *
 * A row that goes to several destinations is cut into blocks that stay in the first-level cache: a
 * block comes from memory for the first destination and from the cache for the others. Blocks of a
 * destination begin at its own cache line boundaries, so that between the two ends of a row only
 * whole lines are written, one line after another: that is what write-combining buffers want.
 */
#include <string.h>

enum { COPY_LINE = 64, COPY_BLOCK = 4096, COPY_UNROLL = 8 };

/* Whole vectors: n is a multiple of VB_BYTES, dst aligned to it. */
MPIX_ALWAYS_INLINE void copy_stream_vectors(char *dst, const char *src, size_t n) {
    size_t i = 0;
    for (; i + COPY_UNROLL * VB_BYTES <= n; i += COPY_UNROLL * VB_BYTES) {
        vb r[COPY_UNROLL];
        MPIX_EACH(COPY_UNROLL, 8, r[v] = vb_load(src + i + v * VB_BYTES));
        MPIX_EACH(COPY_UNROLL, 8, vb_stream(dst + i + v * VB_BYTES, r[v]));
    }
    for (; i < n; i += VB_BYTES)
        vb_stream(dst + i, vb_load(src + i));
}

/* One piece for one destination: ordinary stores up to its first line boundary and from
 * its last one on. */
MPIX_ALWAYS_INLINE void copy_stream_piece(char *dst, const char *src, size_t n) {
    size_t head = -(uintptr_t)dst % COPY_LINE;
    if (head > 0) {
        head = head < n ? head : n;
        memcpy(dst, src, head);
    }
    size_t body = (n - head) / VB_BYTES * VB_BYTES;
    copy_stream_vectors(dst + head, src + head, body);
    if (head + body < n)
        memcpy(dst + head + body, src + head + body, n - head - body);
}

/* Where the source's block at offset b begins for this destination: at b, or at the line
 * boundary before it. */
MPIX_ALWAYS_INLINE size_t copy_block_start(const char *dst, size_t b) {
    return b == 0 ? 0 : b - ((uintptr_t)dst + b) % COPY_LINE;
}

static void rows_copy(const void *src, size_t n, void *const dst[], int ndst, int streaming) {
    for (size_t b = 0; b < n; b += COPY_BLOCK) {
        int last = n - b <= COPY_BLOCK;
        for (int d = 0; d < ndst; d++) {
            char *to = dst[d];
            if (streaming) {
                size_t from = copy_block_start(to, b),
                       end = last ? n : copy_block_start(to, b + COPY_BLOCK);
                copy_stream_piece(to + from, (const char *)src + from, end - from);
            } else {
                memcpy(to + b, (const char *)src + b, last ? n - b : COPY_BLOCK);
            }
        }
    }
}

static void rows_zero(void *dst, size_t n, int streaming) {
    char *to = dst;
    size_t head = -(uintptr_t)dst % COPY_LINE;
    if (!streaming || n < head + COPY_LINE) {
        if (n > 0)
            memset(dst, 0, n);
        return;
    }
    size_t end = n - ((uintptr_t)dst + n) % COPY_LINE;
    memset(to, 0, head);
    for (size_t i = head; i < end; i += VB_BYTES)
        vb_stream(to + i, vb_zero());
    memset(to + end, 0, n - end);
}

static void rows_fence(void) { v_fence(); }
