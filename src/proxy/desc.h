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
#include "transport/net.h"

/*
 * What the proxy is asked to do: an operation of the lane's net, of any length, and what the net
 * does not see of it. From here on it stays in this form: descriptors hold requests, and so do
 * the lanes' rings.
 *
 * A WORD with a counter is a counted signal: the word of value at offset net.roff of `window`. It
 * becomes the write of a header when it is posted.
 */
typedef struct mpix_request {
    mpix_net_op net;
    uint32_t writes;   /* counted signal: puts of its batch; once it is taken, operations of the
                        * batch, the header's included */
    uint8_t window;    /* counted signal */
    uint8_t fence : 1; /* posted when all of its lane before it is complete */
    uint8_t gpu : 1;   /* a kernel's */
    uint8_t last : 1;  /* of an abandoned object: mpix_proxy_last_word */
} mpix_request;

_Static_assert(sizeof(void *) != 8 || sizeof(mpix_request) == 64, "a request fills a cache line");

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
