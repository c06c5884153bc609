/*
 * mock_verbs.h - a libibverbs of cardboard: it is linked instead of the real one, has the devices
 * that a test gives it, writes down what it is asked for, and fails where it is told to.
 */
#ifndef MPIX_TESTS_MOCK_VERBS_H
#define MPIX_TESTS_MOCK_VERBS_H
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <sys/socket.h>

enum {
    MOCK_DEVICES = 6,
    MOCK_PORTS = 2,
    MOCK_GIDS = 6,
    MOCK_MRS = 128,
    MOCK_QPS = 64,
    MOCK_WRS = 4096,
    MOCK_WCS = 4096,
    MOCK_EVENTS = 16
};

typedef struct mock_device {
    struct ibv_device ibv; /* name, ibdev_path, transport_type */
    struct ibv_device_attr attr;
    struct ibv_port_attr port[MOCK_PORTS + 1];
    struct ibv_gid_entry gid[MOCK_GIDS];
    int ngids;
} mock_device;

typedef struct mock_mr {
    struct ibv_mr mr; /* first */
    int live, access, fd;
    uint64_t offset, iova;
} mock_mr;

typedef struct mock_qp {
    struct ibv_qp qp; /* first */
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr[3]; /* of INIT, RTR, RTS */
    int mask[3], changes, live;
    int posted, finished; /* indices into wr, of this queue pair: numbers of requests */
} mock_qp;

typedef struct mock_wr {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    unsigned char data[64]; /* inline data, as it was at the time of posting */
    mock_qp *qp;
    int index; /* number on its queue pair */
} mock_wr;

typedef struct mock_cq {
    struct ibv_cq cq; /* first */
    struct ibv_wc wc[MOCK_WCS];
    int head, tail, notify, events, acked;
} mock_cq;

typedef struct mock_srq {
    struct ibv_srq srq; /* first */
    int posted, max, batches, longest;
} mock_srq;

extern struct mock {
    mock_device device[MOCK_DEVICES];
    int ndevices;
    int live;     /* objects that were made and not destroyed */
    int contexts; /* of them, open devices */
    enum ibv_fork_status fork;
    int fork_calls, calls_before_fork;
    mock_mr mr[MOCK_MRS];
    int nmrs;
    mock_qp *qp[MOCK_QPS];
    int nqps;
    mock_wr wr[MOCK_WRS];
    int nwrs, doorbells;
    mock_cq *cq[16]; /* in order of creation: send, receive, send, receive ... */
    int ncqs;
    mock_srq *srq[8];
    int nsrqs;
    struct ibv_async_event event[MOCK_EVENTS];
    int event_device[MOCK_EVENTS];
    int nevents, acked_events;
    int post_room; /* requests that are still accepted before post_errno, -1: no limit */
    int post_errno;
    int recv_room, recv_errno;
    int inline_limit;      /* queue pairs with more inline data are refused */
    char fail_name[8][40]; /* calls that fail: name, after how many, with which errno */
    int fail_after[8], fail_errno[8], fail_times[8], nfails;
    struct sockaddr_storage if_address[4], if_mask[4];
    struct ifaddrs ifs[4]; /* what getifaddrs answers */
    int nifs;
    int poll_breaks; /* ibv_poll_cq returns -1 */
} mock;

void mock_reset(void);
/* An active port of a RoCE device with one routable v2 GID 10.0.0.<number>, limits of a good NIC
 * (mlx5). Returns its index. */
int mock_add(const char *name, int number);
void mock_gid(int device, int port, int index, enum ibv_gid_type type, const char *address);
/* A network interface with an IPv4 address and its netmask. */
void mock_interface(const char *address, const char *mask);
/* The call named fails with errno err, after it has succeeded `after` times. */
void mock_fail(const char *name, int after, int err);
void mock_fail_once(const char *name, int err); /* the next call only */
/* The next n requests of a queue pair complete. */
void mock_finish(mock_qp *qp, int n);
/* The next request of a queue pair fails, those after it are flushed. */
void mock_break(mock_qp *qp, enum ibv_wc_status status, uint32_t vendor);
/* A counted write arrives. */
void mock_arrive(mock_qp *qp, uint32_t counter, enum ibv_wc_status status);
void mock_event(int device, enum ibv_event_type type, int port, struct ibv_qp *qp);
int mock_cq_entries(const mock_cq *cq);
#endif
