/*
 * encode.h - what is in a command of 16 bytes.
 *
 *   half 0, 63 bits   op 3, lane 4, peer 16, local window 3, remote window 3, counter 16, length 18
 *   half 1, 63 bits   PUT: local offset 31, remote offset 32; DESC: the index of a descriptor
 *
 * Lengths and offsets are in units of 16 bytes.
 *
 * A put whose offsets and length are multiples of 16 within these limits (4 MiB - 16, 32 GiB - 16,
 * 64 GiB - 16) goes as PUT; everything else, and every signal, goes as DESC: peer and lane stand in
 * the command, the rest in the descriptor.
 */
#ifndef MPIX_PROXY_ENCODE_H
#define MPIX_PROXY_ENCODE_H
#include "proxy/fifo.h"
#include "proxy/proxy.h"

/* From WRITE on they name memory by the net's handles; they are in descriptors only, the last one
 * in commands of kernels (gpu_queue.h). */
enum {
    MPIX_CMD_NONE,
    MPIX_CMD_PUT,
    MPIX_CMD_SIGNAL,
    MPIX_CMD_DESC,
    MPIX_CMD_WRITE,
    MPIX_CMD_READ,
    MPIX_CMD_ADD,
    MPIX_CMD_WORD
};
#define MPIX_CMD_UNCOUNTED UINT32_MAX /* counter of a WRITE whose arrival nobody counts */

/* Of the fields that have limits elsewhere: peers and lanes at creation, the rest decides
 * whether a put fits. */
enum { MPIX_CMD_LANE_BITS = 4, MPIX_CMD_PEER_BITS = 16, MPIX_CMD_LEN_BITS = 18 };
enum { MPIX_CMD_LOFF_BITS = 31, MPIX_CMD_ROFF_BITS = 32, MPIX_CMD_UNIT = 16 };

_Static_assert(3 + 4 + 16 + 3 + 3 + 16 + MPIX_CMD_LEN_BITS == 63, "half 0 has 63 bits");
_Static_assert(MPIX_CMD_LOFF_BITS + MPIX_CMD_ROFF_BITS == 63, "half 1 has 63 bits");
_Static_assert(MPIX_PROXY_WINDOWS <= 8, "a window has a number of 3 bits");

/* A command in full: what a descriptor holds and what a command is decoded to. */
typedef struct mpix_request {
    uint64_t loff, roff, len; /* signal: loff is the value */
    uint32_t counter;
    uint32_t writes; /* signal */
    uint16_t peer;
    uint8_t op, lane, lwin, rwin;
    uint8_t fence;           /* posted when all of its lane before it is complete */
    uint8_t gpu : 1;         /* a kernel's */
    uint8_t last : 1;        /* of an abandoned object: mpix_proxy_last_word */
    const mpix_net_mem *mem; /* WRITE, READ, ADD: loff is the local address then */
    const mpix_net_rmem *rmem;
    uint64_t value; /* ADD, WORD */
} mpix_request;

/* 1: *cmd holds the whole request; 0: it needs a descriptor. */
static inline int mpix_cmd_encode(const mpix_request *r, mpix_cmd *cmd) {
    const uint64_t unit = MPIX_CMD_UNIT, loff = r->loff / unit, roff = r->roff / unit,
                   len = r->len / unit;

    if (r->op != MPIX_CMD_PUT || ((r->loff | r->roff | r->len) & (unit - 1)) != 0 ||
        loff >> MPIX_CMD_LOFF_BITS || roff >> MPIX_CMD_ROFF_BITS || len >> MPIX_CMD_LEN_BITS)
        return 0;
    cmd->half[0] = (uint64_t)MPIX_CMD_PUT | (uint64_t)r->lane << 3 | (uint64_t)r->peer << 7 |
                   (uint64_t)r->lwin << 23 | (uint64_t)r->rwin << 26 |
                   (uint64_t)(r->counter & 0xffff) << 29 | len << 45;
    cmd->half[1] = loff | roff << MPIX_CMD_LOFF_BITS;
    return 1;
}

static inline void mpix_cmd_encode_desc(int peer, int lane, uint32_t index, mpix_cmd *cmd) {
    cmd->half[0] = (uint64_t)MPIX_CMD_DESC | (uint64_t)lane << 3 | (uint64_t)peer << 7;
    cmd->half[1] = index;
}

static inline int mpix_cmd_op(const mpix_cmd *cmd) { return (int)(cmd->half[0] & 7); }

static inline uint32_t mpix_cmd_desc(const mpix_cmd *cmd) { return (uint32_t)cmd->half[1]; }

/* Of a PUT. What a command does not hold is zero. */
static inline void mpix_cmd_decode(const mpix_cmd *cmd, mpix_request *r) {
    uint64_t h = cmd->half[0];

    *r = (mpix_request){.op = (uint8_t)(h & 7),
                        .lane = (uint8_t)(h >> 3 & 15),
                        .peer = (uint16_t)(h >> 7 & 0xffff),
                        .lwin = (uint8_t)(h >> 23 & 7),
                        .rwin = (uint8_t)(h >> 26 & 7),
                        .counter = (uint32_t)(h >> 29 & 0xffff),
                        .len = (h >> 45) * MPIX_CMD_UNIT,
                        .loff = (cmd->half[1] & (((uint64_t)1 << MPIX_CMD_LOFF_BITS) - 1)) *
                                MPIX_CMD_UNIT,
                        .roff = (cmd->half[1] >> MPIX_CMD_LOFF_BITS) * MPIX_CMD_UNIT};
}
#endif
