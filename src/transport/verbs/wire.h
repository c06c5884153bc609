/* wire.h - what the transport verbs exchanges over MPI: the address blob of a pair and the key blob
 * of a window. Same byte order on all hosts. */
#ifndef MPIX_VERBS_WIRE_H
#define MPIX_VERBS_WIRE_H
#include "transport/verbs/verbs.h"

enum {
    BLOB_MAGIC = 0x6d707876,
    BLOB_VERSION = 1,
    BLOB_GLOBAL = 1,
    BLOB_ORDERED = 2,
    BLOB_COUNTED = 4
};

typedef struct blob_device {
    union ibv_gid gid;
    uint16_t lid;
    uint8_t link_layer, flags, max_dest_rd_atomic, mtu, unused[2];
} blob_device;

typedef struct blob_lane {
    uint32_t qpn, psn, device;
} blob_lane;

typedef struct verbs_blob {
    uint32_t magic, version, ndevices, nlanes, depth, unused;
    blob_device device[VERBS_MAX_DEVICES];
    blob_lane lane[VERBS_MAX_LANES];
} verbs_blob;

/* base is an address of the owner; piece i of the window begins at i * piece and has a key for each
 * device of the owner. */
typedef struct verbs_key {
    uint64_t base, bytes, piece;
    uint32_t ndevices, npieces;
    uint32_t rkey[VERBS_MAX_DEVICES][VERBS_MAX_PIECES];
} verbs_key;
#endif
