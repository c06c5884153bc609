/*
 * same.c - comparison of what must be the same on all ranks of an object: its configuration, and
 * the parameters whose row in the table says so.
 *
 * Values travel as text, in a message whose size never changes, so that ranks with other
 * parameters, or another version of the library, are told what differs and are not left in an MPI
 * call of another length.
 */
#include "config.h"

#include "boot/boot.h"
#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SAME_SHOWN = 48
}; /* characters of a value in an error, where text and remedy
    * need room too */

void mpix_same_begin(mpix_same *same) { memset(same, 0, sizeof *same); }

void mpix_same_add(mpix_same *same, const char *name, const char *fmt, ...) {
    size_t len = strlen(name) + 1, room = sizeof same->text - same->used;
    va_list ap;
    int n;

    if (same->full || len >= room) {
        same->full = 1;
        return;
    }
    memcpy(same->text + same->used, name, len);
    va_start(ap, fmt);
    n = mpix_number_vprint(same->text + same->used + len, room - len, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room - len)
        same->full = 1;
    else
        same->used += len + (size_t)n + 1;
}

void mpix_same_add_params(mpix_same *same, const mpix_params *params) {
    int n;
    const mpix_param_desc *table = mpix_param_table(&n);

    for (int i = 0; i < n; i++) {
        char name[64], value[MPIX_PARAM_STRING];
        if (!(table[i].flags & MPIX_PARAM_SAME))
            continue;
        snprintf(name, sizeof name, "mpix_ep_%s", table[i].name);
        mpix_params_print(params, &table[i], value, sizeof value);
        mpix_same_add(same, name, "%s", value);
    }
}

/* The next name and value at *at, 0 at the end. The text may be another rank's: nothing beyond
 * its end is read. */
static int same_next(const char *text, size_t *at, const char **name, const char **value) {
    const char *end = text + MPIX_SAME_BYTES;

    *name = text + *at;
    if (*name >= end || !**name)
        return 0;
    *value = memchr(*name, '\0', (size_t)(end - *name));
    if (!*value || ++*value >= end || !memchr(*value, '\0', (size_t)(end - *value)))
        return 0;
    *at = (size_t)(*value - text) + strlen(*value) + 1;
    return 1;
}

static const char *same_find(const char *text, const char *wanted) {
    const char *name, *value;
    size_t at = 0;

    while (same_next(text, &at, &name, &value))
        if (strcmp(name, wanted) == 0)
            return value;
    return NULL;
}

static int same_differs(const mpix_boot *boot, const char *name, const char *mine,
                        const char *first) {
    static const char prefix[] = "mpix_ep_";
    size_t len = sizeof prefix - 1;
    char remedy[96] = "";
    int kind;

    if (strncmp(name, prefix, len) == 0) {
        size_t n = (size_t)snprintf(remedy, sizeof remedy,
                                    " (info key, or MPIX_EP_%s, which a launcher may not pass on)",
                                    name + len);
        for (char *c = strstr(remedy, "MPIX_EP_"); c && c < remedy + n && *c != ','; c++)
            *c = (char)mpix_upper((unsigned char)*c);
    }
    kind = mpix_fail_peer(
        MPIX_ERRK_ARG, 0, boot->hostnames[0],
        "%s is \"%.*s\" on rank %d and \"%.*s\" on rank 0: it must be the same on all ranks%s",
        name, SAME_SHOWN, mine ? mine : "(none)", boot->rank, SAME_SHOWN, first ? first : "(none)",
        remedy);
    snprintf(mpix_error_tls()->arg, sizeof mpix_error_tls()->arg, "%s", name);
    return kind;
}

static int same_compare(const mpix_boot *boot, const mpix_same *mine, const char *first) {
    const char *name, *value, *other;
    size_t at = 0;

    if (mine->full)
        return mpix_fail(MPIX_ERRK_INTERNAL, NULL,
                         "what all ranks must have the same takes more than %d bytes",
                         MPIX_SAME_BYTES);
    while (same_next(mine->text, &at, &name, &value)) {
        other = same_find(first, name);
        if (!other || strcmp(value, other) != 0)
            return same_differs(boot, name, value, other);
    }
    at = 0;
    while (same_next(first, &at, &name, &value)) /* rank 0's library may know more */
        if (!same_find(mine->text, name))
            return same_differs(boot, name, NULL, value);
    return 0;
}

int mpix_boot_same(mpix_boot *boot, const mpix_same *mine) {
    char first[MPIX_SAME_BYTES];
    int kind;

    memcpy(first, mine->text, sizeof first);
    kind = mpix_boot_bcast(boot, first, sizeof first);
    if (!kind)
        kind = same_compare(boot, mine, first);
    return mpix_boot_agree(boot, kind);
}
