/*
 * desc.h - descriptors: requests that do not fit a command. A fixed table and a list
 * of the free ones.
 *
 * The list is a stack: its top is one 64-bit word, index and a count that every change increases,
 * so that a producer that was stopped between reading the top and replacing it can't put back an
 * old one. The links live in the table, which is never freed while anybody uses it.
 */
#ifndef MPIX_PROXY_DESC_H
#define MPIX_PROXY_DESC_H
#include "proxy/encode.h"

typedef struct mpix_desc {
    mpix_request request;
    _Atomic uint32_t next; /* index + 1 of the next free one, 0: none */
} mpix_desc;

typedef struct mpix_descs {
    mpix_desc *table;
    uint32_t n;
    _Alignas(64) _Atomic uint64_t top; /* count << 32 | index + 1 */
} mpix_descs;

int mpix_descs_init(mpix_descs *descs, uint32_t n);
void mpix_descs_free(mpix_descs *descs);
/* Index of a free descriptor, -1: none. Any number of threads. */
int64_t mpix_descs_get(mpix_descs *descs);
void mpix_descs_put(mpix_descs *descs, uint32_t index);
#endif
