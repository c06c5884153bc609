/*
 * number.h - numbers and words that mean the same in every locale: the host program
 * may have set any.
 *
 * In a locale with a decimal comma strtod stops at the point and printf writes a comma; in Turkish
 * the capital of i is another letter.
 */
#ifndef MPIX_BASE_NUMBER_H
#define MPIX_BASE_NUMBER_H
#include "base/status.h"

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

/* strtod, vsnprintf and snprintf in the locale C. */
double mpix_number_read(const char *text, char **end);
int mpix_number_vprint(char *buf, size_t len, const char *fmt, va_list ap) MPIX_PRINTF(3, 0);
int mpix_number_print(char *buf, size_t len, const char *fmt, ...) MPIX_PRINTF(3, 4);

/* The locale C for the calling thread, until it is given what this returned. */
locale_t mpix_number_enter(void);
void mpix_number_leave(locale_t before);

/* ASCII letters only. */
static inline int mpix_upper(int c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; }

/* Whether n characters are the same but for their case. */
static inline int mpix_same_word(const char *a, const char *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (mpix_upper((unsigned char)a[i]) != mpix_upper((unsigned char)b[i]))
            return 0;
    return 1;
}
#endif
