/*
 * npy.c - reads a routing file in NumPy's format: uint8, int32 or int64, C order,
 * [tokens][choices]. A file is not trusted: its header is parsed as the Python literal it is, and
 * its size must be what the header says.
 */
#include "config.h"

#include "bench/bench.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct npy_head {
    char descr[16];
    int fortran; /* -1: not seen */
    int ndim;    /* -1: not seen */
    int64_t shape[8];
} npy_head;

static int npy_bad(char *err, size_t errlen, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int npy_bad(char *err, size_t errlen, const char *path, const char *fmt, ...) {
    int used = snprintf(err, errlen, "routing file %s: ", path);
    va_list ap;
    va_start(ap, fmt);
    if (used >= 0 && (size_t)used < errlen)
        vsnprintf(err + used, errlen - (size_t)used, fmt, ap);
    va_end(ap);
    return -1;
}

static const char *npy_skip(const char *p) {
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* A quoted string without escapes. NULL if there is none or it does not fit. */
static const char *npy_string(const char *p, char *out, size_t len) {
    char quote = *p;
    if (quote != '\'' && quote != '"')
        return NULL;
    const char *end = strchr(p + 1, quote);
    if (!end || (size_t)(end - p - 1) >= len || memchr(p + 1, '\\', (size_t)(end - p - 1)))
        return NULL;
    memcpy(out, p + 1, (size_t)(end - p - 1));
    out[end - p - 1] = '\0';
    return end + 1;
}

/* A tuple of non-negative integers. */
static const char *npy_tuple(const char *p, npy_head *head) {
    int n = 0;
    if (*p++ != '(')
        return NULL;
    for (;;) {
        p = npy_skip(p);
        if (*p == ')')
            break;
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (!isdigit((unsigned char)*p) || errno || n == 8)
            return NULL;
        head->shape[n++] = v;
        p = end + (*end == 'L'); /* Python 2 wrote 10L */
        p = npy_skip(p);
        if (*p == ',')
            p++;
        else if (*p != ')')
            return NULL;
    }
    head->ndim = n;
    return p + 1;
}

static const char *npy_value(const char *p, const char *key, npy_head *head) {
    if (!strcmp(key, "descr"))
        return npy_string(p, head->descr, sizeof head->descr);
    if (!strcmp(key, "shape"))
        return npy_tuple(p, head);
    if (strcmp(key, "fortran_order"))
        return NULL;
    if (!strncmp(p, "False", 5)) {
        head->fortran = 0;
        return p + 5;
    }
    if (!strncmp(p, "True", 4)) {
        head->fortran = 1;
        return p + 4;
    }
    return NULL;
}

/* text: the header's dictionary, terminated by a zero. 0 or -1. */
static int npy_parse(const char *text, npy_head *head) {
    char key[32];
    memset(head, 0, sizeof *head);
    head->fortran = head->ndim = -1;
    const char *p = npy_skip(text);
    if (*p++ != '{')
        return -1;
    for (;;) {
        p = npy_skip(p);
        if (*p == '}')
            break;
        p = npy_string(p, key, sizeof key);
        if (!p)
            return -1;
        p = npy_skip(p);
        if (*p++ != ':')
            return -1;
        p = npy_value(npy_skip(p), key, head);
        if (!p)
            return -1;
        p = npy_skip(p);
        if (*p == ',')
            p++;
        else if (*p != '}')
            return -1;
    }
    return *npy_skip(p + 1) || !*head->descr || head->fortran < 0 || head->ndim < 0 ? -1 : 0;
}

/* Reads magic, version and dictionary. */
static int npy_read_head(FILE *f, const char *path, npy_head *head, char *err, size_t errlen) {
    unsigned char magic[8], len[4] = {0};
    if (fread(magic, 1, 8, f) != 8 || memcmp(magic, "\x93NUMPY", 6))
        return npy_bad(err, errlen, path, "it is not a NumPy file (wrong magic)");
    if (magic[6] < 1 || magic[6] > 3)
        return npy_bad(err, errlen, path, "format version %d.%d; versions 1 to 3 are read",
                       magic[6], magic[7]);
    size_t lenlen = magic[6] == 1 ? 2 : 4;
    if (fread(len, 1, lenlen, f) != lenlen)
        return npy_bad(err, errlen, path, "it ends inside the header");
    uint32_t n = len[0] | (uint32_t)len[1] << 8 | (uint32_t)len[2] << 16 | (uint32_t)len[3] << 24;
    if (n > 65536)
        return npy_bad(err, errlen, path, "its header claims %u bytes; at most 65536 are sensible",
                       (unsigned)n);
    char *text = malloc((size_t)n + 1);
    if (!text)
        return npy_bad(err, errlen, path, "no memory for its header");
    int rc = 0;
    if (fread(text, 1, n, f) != n) {
        rc = npy_bad(err, errlen, path, "it ends inside the header");
    } else {
        text[n] = '\0';
        if (strlen(text) != n || npy_parse(text, head))
            rc = npy_bad(err, errlen, path, "its header is malformed");
    }
    free(text);
    return rc;
}

/* Little-endian two's complement, whatever the machine. */
static int64_t npy_element(const unsigned char *p, size_t size) {
    uint64_t v = 0;
    for (size_t i = 0; i < size; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return size == 1 ? (int64_t)v : size == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v;
}

/* Checks the dictionary against what a routing is. Returns the element's size, 0 with err set. */
static size_t npy_judge(const npy_head *head, const char *path, char *err, size_t errlen) {
    size_t size = !strcmp(head->descr, "|u1") || !strcmp(head->descr, "u1") ? 1
                  : !strcmp(head->descr, "<i4")                             ? 4
                  : !strcmp(head->descr, "<i8")                             ? 8
                                                                            : 0;
    if (!size)
        npy_bad(err, errlen, path,
                "its dtype is '%s'; it must be uint8, int32 or int64, little-endian", head->descr);
    else if (head->fortran)
        size = 0, npy_bad(err, errlen, path, "it is in Fortran order; it must be in C order");
    else if (head->ndim != 2)
        size = 0, npy_bad(err, errlen, path, "it has %d dimensions; it must be [tokens][choices]",
                          head->ndim);
    else if (head->shape[1] < 1 || head->shape[1] > 4096)
        size = 0,
        npy_bad(err, errlen, path, "it has %lld choices per token; 1 to 4096 are possible",
                (long long)head->shape[1]);
    else if (head->shape[0] > INT_MAX / 4 / head->shape[1])
        size = 0, npy_bad(err, errlen, path, "it has %lld tokens, more than can be read",
                          (long long)head->shape[0]);
    return size;
}

static int npy_read_body(FILE *f, const char *path, const npy_head *head, size_t size,
                         bench_npy *npy, char *err, size_t errlen) {
    size_t count = (size_t)head->shape[0] * (size_t)head->shape[1];
    unsigned char *raw = malloc(count * size + 1);
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    int rc = -1;
    if (!raw || !ids) {
        npy_bad(err, errlen, path, "no memory for %zu ids", count);
        goto free_both;
    }
    /* One byte more is asked for, to see that there is none. */
    size_t got = fread(raw, 1, count * size + 1, f);
    if (got != count * size) {
        npy_bad(err, errlen, path, "its header announces %zu bytes of ids, but it has %s",
                count * size, got < count * size ? "fewer" : "more");
        goto free_both;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t v = npy_element(raw + i * size, size);
        if (v < -1 || v > INT_MAX) {
            npy_bad(err, errlen, path,
                    "token %zu, choice %zu is %lld; ids are at least -1 (no choice) and below 2^31",
                    i / (size_t)head->shape[1], i % (size_t)head->shape[1], (long long)v);
            goto free_both;
        }
        ids[i] = (int32_t)v;
    }
    npy->tokens = head->shape[0];
    npy->k = (int)head->shape[1];
    npy->ids = ids;
    ids = NULL;
    rc = 0;
free_both:
    free(ids);
    free(raw);
    return rc;
}

int bench_npy_read(const char *path, bench_npy *npy, char *err, size_t errlen) {
    npy_head head;
    int rc = -1;
    FILE *f = fopen(path, "rb");
    if (!f)
        return npy_bad(err, errlen, path, "%s", strerror(errno));
    if (!npy_read_head(f, path, &head, err, errlen)) {
        size_t size = npy_judge(&head, path, err, errlen);
        if (size)
            rc = npy_read_body(f, path, &head, size, npy, err, errlen);
    }
    fclose(f);
    return rc;
}
