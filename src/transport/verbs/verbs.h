/*
 * verbs.h - inside of the transport `verbs`: RC queue pairs of libibverbs behind the table of
 * transport/net.h.
 *
 *   device.c  which devices, ports and addresses
 *   gid.c     which GID of a port, and the texts about it
 *   verbs.c   open, close, limits, the ops table
 *   qp.c      queue pairs: address blob, states
 *   mem.c     registration and keys
 *   gpu.c     registration of GPU memory
 *   post.c    operations to work requests
 *   poll.c    completions, arrivals
 *   event.c   asynchronous events, sleeping
 *   order.c   which devices keep the order of writes
 *
 * Lanes. Lane l of every peer uses device l modulo the number of devices. A lane is one queue pair.
 * Work requests are numbered per lane; the few that are signalled carry in wr_id the lane's index,
 * the number of the operation they end and their own number, so that one completion says how many
 * operations and places of the send queue are done: RC completes in order.
 */
#ifndef MPIX_TRANSPORT_VERBS_H
#define MPIX_TRANSPORT_VERBS_H
#include <infiniband/verbs.h>

#include "transport/net.h"

enum {
    VERBS_MAX_DEVICES = 4,
    VERBS_MAX_LANES = 16,
    VERBS_MAX_PIECES = 16,  /* of a registration, where a device limits the size of one */
    VERBS_INLINE = 64,      /* bytes of inline data asked for: a word, a header of a
                             * counted batch */
    VERBS_BATCH = 128,      /* work requests built before the doorbells are rung */
    VERBS_POLL = 32,        /* completions taken at once */
    VERBS_REPEATS = 6,      /* of what is not acknowledged: 7 is the most, but rxe takes
                             * it for infinity */
    VERBS_RDMA_ATOMIC = 16, /* READs and atomics in flight per queue pair, at most */
    VERBS_RXE = 0xffffff,   /* the vendor that soft-RoCE gives as its own. It answers a READ as
                                 fast as it can, into an ordinary network that drops what its queues
                                 (1000 packets) can't hold; a READ of 4 MiB between two virtual
                                 hosts ended as a lost connection. So READs are cut and few: */
    VERBS_RXE_READ = 262144,
    VERBS_LOOK_PERIOD = 64,  /* polls between two looks at the clock */
    VERBS_LOOK_NS = 10000000 /* between two looks for asynchronous events and silent peers */
};

/* wr_id: 20 bits of lane index, 22 of operation number, 22 of work request number. Differences are
 * far below 2^22: depths are at most 2^14. */
enum {
    VERBS_SEQ_BITS = 22,
    VERBS_SEQ_MASK = (1 << VERBS_SEQ_BITS) - 1,
    VERBS_MAX_LANES_TOTAL = 1 << 20
};

/* A port that could be used, with its address. The context is open. */
typedef struct verbs_port {
    struct ibv_context *context;
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    union ibv_gid gid;
    int port, gid_index; /* -1: no GID is used (InfiniBand) */
    int gid_class;       /* lower is better, see gid.c */
    int numa;            /* node of the device, -1: unknown */
    double gbps;
    char name[48];    /* "rxe0:1" */
    char address[64]; /* "gid[1] 10.9.0.1" */
    char network[48]; /* "10.9.0.0/24": ports with the same text reach each other */
} verbs_port;

typedef struct verbs_device {
    verbs_port port;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq; /* NULL: no counted arrivals */
    int lanes;           /* queue pairs on this device */
    int max_inline;      /* of the last queue pair made */
    int atomics;
    int recv_missing;    /* receives that could not be posted yet */
    int failed;          /* its lanes are broken */
    uint64_t down_since; /* ns; the port reported an error and has not come back, 0: it is up */
    uint64_t *scratch;   /* words to be written where the device has no inline data: [lane of
                          * the net][depth] */
    struct ibv_mr *scratch_mr;
} verbs_device;

typedef struct verbs_lane {
    struct ibv_qp *qp;
    int peer, lane, device, remote_device;
    int connected;
    int depth; /* the lower of both ends' */
    uint32_t psn;
    uint32_t op_seq, op_done;        /* operations taken and known to be complete */
    uint32_t wr_seq, wr_done;        /* work requests built and known to be complete */
    uint32_t unsignalled;            /* since the last signalled one */
    uint32_t probe_seq;              /* wr_seq at the last round of probes */
    struct ibv_send_wr *head, *tail; /* built, not handed to the device */
    int queued;                      /* 1: it is in the net's list of lanes with such
                                      * work requests */
    int kind;                        /* 0, or the error that broke it */
    int told;                        /* the error was reported by poll */
    char text[128];
} verbs_lane;

typedef struct verbs_hash_slot {
    uint32_t qpn;
    int lane; /* index + 1, 0: empty */
} verbs_hash_slot;

typedef struct verbs_net {
    mpix_net net;
    mpix_boot *boot;
    int ndevices, nlanes, depth, signal_every, mtu; /* nlanes: per peer; depth: power of two; mtu:
                                                     * an enum ibv_mtu */
    int gid_index, retry_exponent, traffic_class, service_level;
    uint64_t retry_ns;
    verbs_device devices[VERBS_MAX_DEVICES];
    int npeers;                               /* wanted */
    int *place_of;                            /* [boot->size] number of the peer among the
                                               * wanted ones, -1 */
    verbs_lane *lanes;                        /* [npeers][nlanes] */
    verbs_hash_slot *hash[VERBS_MAX_DEVICES]; /* queue pair number to lane; arrivals name no
                                               * peer otherwise */
    uint32_t hash_mask;
    int broken; /* lanes whose error was not reported yet */
    int epoll_fd;
    unsigned polls;
    uint64_t looked_ns, probed_ns; /* see verbs_look */
    int next_device;               /* arrivals: where the last call stopped */
    /* Work requests of one call of post; they outlive it only when the device refuses some. */
    struct ibv_send_wr wr[VERBS_BATCH];
    struct ibv_sge sge[VERBS_BATCH];
    uint64_t word[VERBS_BATCH];
    int nwr;
    verbs_lane *queued[VERBS_BATCH];
    int nqueued;
    struct ibv_recv_wr recv[VERBS_POLL];
} verbs_net;

/* How a registration of GPU memory was made; HOST for host memory. */
enum { VERBS_MEM_HOST, VERBS_MEM_DMABUF, VERBS_MEM_PEERMEM };

struct mpix_net_mem {
    void *base;            /* the caller's */
    uint64_t bytes, piece; /* piece i begins at i * piece */
    int npieces, how;
    struct ibv_mr *mr[VERBS_MAX_DEVICES][VERBS_MAX_PIECES];
};

struct mpix_net_rmem {
    int peer;
    uint64_t base, bytes, piece;
    uint32_t rkey[VERBS_MAX_DEVICES][VERBS_MAX_PIECES];
};

/* device.c: fills net->devices[].port with the chosen ports, contexts open, and net->ndevices,
 * caps.device, address, why. */
int verbs_devices_choose(verbs_net *net, const mpix_params *params, const unsigned char *want);

/* gid.c. Index of the best GID of an Ethernet port, or params' own. 0, or -1 with the
 * reason in why. */
int verbs_gid_choose(verbs_port *port, int forced, char *why, size_t len);
void verbs_gid_text(const union ibv_gid *gid, char *buf, size_t len);
void verbs_gid_network(const union ibv_gid *gid, char *buf, size_t len); /* of an Ethernet port */

/* order.c. Whether a device is known to make writes of one queue pair visible in order;
 * why is filled. */
int verbs_order_known(const struct ibv_device_attr *attr, char *why, size_t len);
/* Says so once per process if the order of this device is an assumption that its firmware
 * can make untrue. */
void verbs_order_warn(const struct ibv_device_attr *attr, const char *device);

/* qp.c */
int verbs_mtu_bytes(enum ibv_mtu mtu);
enum ibv_mtu verbs_mtu_floor(int bytes); /* the largest that is not larger */
int verbs_address(mpix_net *base, int peer, void *blob);
int verbs_connect(mpix_net *base, int peer, const void *blob);
void verbs_hash_add(verbs_net *net, int device, uint32_t qpn, int lane);
verbs_lane *verbs_hash_find(verbs_net *net, int device, uint32_t qpn);

/* mem.c */
int verbs_mem_reg(mpix_net *base, void *address, size_t bytes, mpix_net_mem **mem);
/* not registered yet */
int verbs_mem_new(const verbs_net *net, void *address, size_t bytes, mpix_net_mem **mem);
void verbs_mem_dereg(mpix_net *base, mpix_net_mem *mem);
void verbs_mem_key(mpix_net *base, const mpix_net_mem *mem, void *blob);
int verbs_rmem_open(mpix_net *base, int peer, const void *blob, mpix_net_rmem **rmem);
void verbs_rmem_close(mpix_net *base, mpix_net_rmem *rmem);
uint64_t verbs_piece(const verbs_net *net, uint64_t bytes); /* longest single registration of all
                                                             * devices, or bytes */
int verbs_access(const verbs_device *device);
int verbs_reg_pieces(verbs_net *net, mpix_net_mem *mem, void *base, int dmabuf_fd,
                     uint64_t dmabuf_offset); /* 0 or errno; undoes what it did */
int verbs_reg_error(const verbs_net *net, int err, uint64_t bytes, const char *what);
void verbs_memlock_text(char *buf, size_t len); /* the limit, and how it is raised */

/* gpu.c */
int verbs_mem_reg_gpu(mpix_net *base, void *address, size_t bytes, mpix_net_gpu *way,
                      mpix_net_mem **mem);

/* post.c */
int verbs_post(mpix_net *base, const mpix_net_op *ops, int n);
void verbs_flush(verbs_net *net); /* hands the device what it refused before */
void verbs_probe(verbs_net *net); /* asks peers from whom nothing was wanted for long */

/* poll.c */
int verbs_poll(mpix_net *base, mpix_net_done *done, int max);
int verbs_poll_arrivals(mpix_net *base, mpix_net_arrival *arrivals, int max);
int verbs_recv_fill(verbs_net *net, verbs_device *device, int n); /* posts n receives; errno */
void verbs_lane_break(verbs_net *net, verbs_lane *lane, int kind, const char *fmt, ...)
    MPIX_PRINTF(4, 5);

/* event.c */
int verbs_events_open(verbs_net *net);
void verbs_events(verbs_net *net); /* never blocks */
void verbs_look(verbs_net *net);   /* events and probes, if it is time */
void verbs_device_break(verbs_net *net, int device, const char *why);
int verbs_arm(mpix_net *base, int *fd);
void verbs_ack(mpix_net *base);

static inline verbs_lane *verbs_lane_of(verbs_net *net, int peer, int lane) {
    return &net->lanes[net->place_of[peer] * net->nlanes + lane];
}

extern const mpix_net_ops mpix_net_verbs;
#endif
