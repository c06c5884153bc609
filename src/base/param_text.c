/*
 * param_text.c - values of parameters from text and to text. The type in the parameter's row of the
 * table decides how.
 */
#include "config.h"

#include "base/param.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

/* Index of word among "a|b|c", -1 if it is none of them. */
static int param_enum_index(const char *values, const char *word) {
    size_t len = strlen(word);
    int index = 0;

    for (const char *p = values;; index++) {
        const char *end = strchr(p, '|');
        size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n == len && mpix_same_word(p, word, n))
            return index;
        if (!end)
            return -1;
        p = end + 1;
    }
}

static int param_parse_bytes(const char *value, size_t *out) {
    unsigned long long n;
    unsigned shift = 0;
    char *end;

    if (!isdigit((unsigned char)value[0]))
        return -1;
    errno = 0;
    n = strtoull(value, &end, 10);
    if (errno)
        return -1;
    switch (mpix_upper((unsigned char)*end)) {
    case 'K':
        shift = 10;
        end++;
        break;
    case 'M':
        shift = 20;
        end++;
        break;
    case 'G':
        shift = 30;
        end++;
        break;
    default: break;
    }
    if (*end || n > (SIZE_MAX >> shift))
        return -1;
    *out = (size_t)n << shift;
    return 0;
}

static int param_parse_int(const mpix_param_desc *desc, const char *value, int *out) {
    long n, lo = INT_MIN, hi = INT_MAX;
    char *end;

    sscanf(desc->values, "%ld..%ld", &lo, &hi);
    errno = 0;
    n = strtol(value, &end, 10);
    if (errno || end == value || *end || n < lo || n > hi)
        return -1;
    *out = (int)n;
    return 0;
}

static int param_parse_seconds(const mpix_param_desc *desc, const char *value, double *out) {
    double x;
    char *end;

    errno = 0;
    x = mpix_number_read(value, &end);
    if (errno || end == value || *end || !(x > 0) || (x > 1e9 && !strstr(desc->values, "inf")))
        return -1;
    *out = x;
    return 0;
}

int mpix_param_parse(mpix_params *params, const mpix_param_desc *desc, const char *value) {
    char *field = (char *)params + desc->offset;

    if (strcmp(desc->type, "enum") == 0) {
        int index = param_enum_index(desc->values, value);
        if (index < 0)
            return -1;
        *(int *)field = index;
        return 0;
    }
    if (strcmp(desc->type, "int") == 0)
        return param_parse_int(desc, value, (int *)field);
    if (strcmp(desc->type, "seconds") == 0)
        return param_parse_seconds(desc, value, (double *)field);
    if (strcmp(desc->type, "bytes") == 0)
        return param_parse_bytes(value, (size_t *)field);
    if (strlen(value) >= MPIX_PARAM_STRING)
        return -1;
    strcpy(field, value);
    return 0;
}

void mpix_params_print(const mpix_params *params, const mpix_param_desc *desc, char *buf,
                       size_t len) {
    const char *field = (const char *)params + desc->offset;

    if (strcmp(desc->type, "enum") == 0) {
        const char *p = desc->values;
        size_t n;
        for (int i = *(const int *)field; i > 0 && p; i--)
            p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL;
        n = p ? strcspn(p, "|") : 0;
        snprintf(buf, len, "%.*s", (int)n, p ? p : "");
    } else if (strcmp(desc->type, "int") == 0) {
        snprintf(buf, len, "%d", *(const int *)field);
    } else if (strcmp(desc->type, "seconds") == 0) {
        (void)mpix_number_print(buf, len, "%.15g", *(const double *)field);
    } else if (strcmp(desc->type, "bytes") == 0) {
        snprintf(buf, len, "%zu", *(const size_t *)field);
    } else {
        snprintf(buf, len, "%s", field);
    }
}
