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

enum { MPIX_CMD_NONE, MPIX_CMD_PUT, MPIX_CMD_DESC = 3 };

/* Of the fields that have limits elsewhere: peers and lanes at creation, the rest decides
 * whether a put fits. */
enum { MPIX_CMD_LANE_BITS = 4, MPIX_CMD_PEER_BITS = 16, MPIX_CMD_LEN_BITS = 18 };
enum { MPIX_CMD_LOFF_BITS = 31, MPIX_CMD_ROFF_BITS = 32, MPIX_CMD_UNIT = 16 };

_Static_assert(3 + 4 + 16 + 3 + 3 + 16 + MPIX_CMD_LEN_BITS == 63, "half 0 has 63 bits");
_Static_assert(MPIX_CMD_LOFF_BITS + MPIX_CMD_ROFF_BITS == 63, "half 1 has 63 bits");
_Static_assert(MPIX_PROXY_WINDOWS <= 8, "a window has a number of 3 bits");

/* 1: *cmd holds the whole put; 0: it needs a descriptor. */
static inline int mpix_cmd_put(int peer, int lane, int lwin, uint64_t loff, int rwin, uint64_t roff,
                               uint64_t len, uint32_t counter, mpix_cmd *cmd) {
    const uint64_t unit = MPIX_CMD_UNIT, lunits = loff / unit, runits = roff / unit,
                   units = len / unit;

    if (((loff | roff | len) & (unit - 1)) != 0 || lunits >> MPIX_CMD_LOFF_BITS ||
        runits >> MPIX_CMD_ROFF_BITS || units >> MPIX_CMD_LEN_BITS)
        return 0;
    cmd->half[0] = (uint64_t)MPIX_CMD_PUT | (uint64_t)lane << 3 | (uint64_t)peer << 7 |
                   (uint64_t)lwin << 23 | (uint64_t)rwin << 26 |
                   (uint64_t)(counter & 0xffff) << 29 | units << 45;
    cmd->half[1] = lunits | runits << MPIX_CMD_LOFF_BITS;
    return 1;
}

static inline void mpix_cmd_desc(int peer, int lane, uint32_t index, mpix_cmd *cmd) {
    cmd->half[0] = (uint64_t)MPIX_CMD_DESC | (uint64_t)lane << 3 | (uint64_t)peer << 7;
    cmd->half[1] = index;
}

/* Of both. */
static inline int mpix_cmd_op(const mpix_cmd *cmd) { return (int)(cmd->half[0] & 7); }
static inline int mpix_cmd_lane(const mpix_cmd *cmd) { return (int)(cmd->half[0] >> 3 & 15); }
static inline int mpix_cmd_peer(const mpix_cmd *cmd) { return (int)(cmd->half[0] >> 7 & 0xffff); }

/* Of a DESC. */
static inline uint32_t mpix_cmd_index(const mpix_cmd *cmd) { return (uint32_t)cmd->half[1]; }

/* Of a PUT. */
static inline int mpix_cmd_lwin(const mpix_cmd *cmd) { return (int)(cmd->half[0] >> 23 & 7); }
static inline int mpix_cmd_rwin(const mpix_cmd *cmd) { return (int)(cmd->half[0] >> 26 & 7); }
static inline uint32_t mpix_cmd_counter(const mpix_cmd *cmd) {
    return (uint32_t)(cmd->half[0] >> 29 & 0xffff);
}
static inline uint64_t mpix_cmd_len(const mpix_cmd *cmd) {
    return (cmd->half[0] >> 45) * MPIX_CMD_UNIT;
}
static inline uint64_t mpix_cmd_loff(const mpix_cmd *cmd) {
    return (cmd->half[1] & (((uint64_t)1 << MPIX_CMD_LOFF_BITS) - 1)) * MPIX_CMD_UNIT;
}
static inline uint64_t mpix_cmd_roff(const mpix_cmd *cmd) {
    return (cmd->half[1] >> MPIX_CMD_LOFF_BITS) * MPIX_CMD_UNIT;
}
#endif
