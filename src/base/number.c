/* number.c - reading and writing numbers in the locale C, for the calling thread and for the
 * time of one call. */
#include "config.h"

#include "base/number.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Made once. There is always one: libc has it ready. */
static locale_t number_locale(void) {
    static _Atomic(locale_t) made;
    locale_t locale = atomic_load_explicit(&made, memory_order_acquire), none = (locale_t)0;

    if (locale)
        return locale;
    locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (locale && !atomic_compare_exchange_strong(&made, &none, locale)) {
        freelocale(locale);
        locale = none;
    }
    return locale;
}

locale_t mpix_number_enter(void) {
    locale_t locale = number_locale();

    return locale ? uselocale(locale) : (locale_t)0;
}

void mpix_number_leave(locale_t before) {
    if (before)
        uselocale(before);
}

double mpix_number_read(const char *text, char **end) {
    locale_t before = mpix_number_enter();
    double x = strtod(text, end);

    mpix_number_leave(before);
    return x;
}

int mpix_number_vprint(char *buf, size_t len, const char *fmt, va_list ap) {
    locale_t before = mpix_number_enter();
    int n = vsnprintf(buf, len, fmt, ap);

    mpix_number_leave(before);
    return n;
}

int mpix_number_print(char *buf, size_t len, const char *fmt, ...) {
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = mpix_number_vprint(buf, len, fmt, ap);
    va_end(ap);
    return n;
}
