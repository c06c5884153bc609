/*
 * guard.c - poisoned buffers, between guard pages or in memory of somebody else.
 */
#include "harness.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

unsigned char t_poison(ptrdiff_t off) {
    return (unsigned char)(0x5b + (uint64_t)off * 0x9d + ((uint64_t)off >> 8) * 0x35);
}

static void poison(t_buf *buf) {
    for (unsigned char *q = buf->lo; q < buf->hi; q++)
        *q = t_poison(q - buf->p);
}

void t_buf_new(t_buf *buf, size_t n, size_t align, t_rng *rng) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (n + page - 1) / page * page;
    int at_end = t_chance(rng, 60), null = t_chance(rng, 50);
    memset(buf, 0, sizeof *buf);
    buf->n = n;
    if (n == 0 && null)
        return;
    buf->map_len = room + 2 * page;
    buf->map = mmap(NULL, buf->map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(buf->map != MAP_FAILED, "no memory for a buffer of %zu bytes", n);
    REQUIRE(mprotect(buf->map, page, PROT_NONE) == 0 &&
                mprotect(buf->map + page + room, page, PROT_NONE) == 0,
            "guard pages can't be protected");
    buf->lo = buf->map + page;
    buf->hi = buf->lo + room;
    buf->p = at_end ? buf->hi - n : buf->lo;
    REQUIRE((uintptr_t)buf->p % align == 0, "a buffer of %zu bytes can't be aligned to %zu", n,
            align);
    poison(buf);
}

void t_buf_place(t_buf *buf, t_area *area, size_t n, size_t align, t_rng *rng) {
    size_t before = (size_t)t_range(rng, 1, 64), after = (size_t)t_range(rng, 1, 64);
    if (!area || n == 0 || area->bytes < area->used || area->bytes - area->used < n + T_SLACK) {
        t_buf_new(buf, n, align, rng);
        return;
    }
    memset(buf, 0, sizeof *buf);
    buf->n = n;
    buf->lo = area->base + area->used;
    buf->p = buf->lo + before;
    while ((uintptr_t)buf->p % align)
        buf->p++;
    buf->hi = buf->p + n + after;
    area->used = (size_t)(buf->hi - area->base);
    poison(buf);
}

void t_buf_readonly(t_buf *buf, int on) {
    if (!buf->map || buf->hi == buf->lo)
        return;
    REQUIRE(mprotect(buf->lo, (size_t)(buf->hi - buf->lo),
                     on ? PROT_READ : PROT_READ | PROT_WRITE) == 0,
            "a buffer can't be protected");
}

int t_untouched(const t_buf *buf, size_t off, size_t n) {
    for (size_t i = off; i < off + n; i++)
        if (buf->p[i] != t_poison((ptrdiff_t)i))
            return 0;
    return 1;
}

void t_buf_check(const char *file, int line, const t_buf *buf, const char *what) {
    for (const unsigned char *q = buf->lo; q < buf->hi; q++) {
        if (q == buf->p)
            q += buf->n;
        if (q < buf->hi && *q != t_poison(q - buf->p)) {
            t_fail(file, line, "%s: byte %td outside of its %zu bytes was written", what,
                   q - buf->p, buf->n);
            return;
        }
    }
}

void t_buf_free(t_buf *buf) {
    if (buf->map)
        munmap(buf->map, buf->map_len);
    memset(buf, 0, sizeof *buf);
}
