/* mock_verbs.c - see mock_verbs.h. */
#include "config.h"

#include "tests/unit/mock_verbs_internal.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

struct mock mock;

void mock_reset(void) {
    memset(&mock, 0, sizeof mock);
    mock.post_room = mock.recv_room = -1;
    mock.inline_limit = 512;
    mock.fork = IBV_FORK_UNNEEDED;
}

void mock_gid(int device, int port, int index, enum ibv_gid_type type, const char *address) {
    mock_device *d = &mock.device[device];
    struct ibv_gid_entry *entry = &d->gid[d->ngids++];
    struct in_addr v4;

    memset(entry, 0, sizeof *entry);
    if (inet_pton(AF_INET, address, &v4) == 1) {
        entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
        memcpy(entry->gid.raw + 12, &v4, 4);
    } else {
        ck_assert_int_eq(inet_pton(AF_INET6, address, entry->gid.raw), 1);
    }
    entry->gid_index = (uint32_t)index;
    entry->port_num = (uint32_t)port;
    entry->gid_type = type;
}

int mock_add(const char *name, int number) {
    mock_device *d = &mock.device[mock.ndevices];
    char address[32];

    snprintf(d->ibv.name, sizeof d->ibv.name, "%s", name);
    snprintf(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, "/nonexistent/%.40s", name);
    d->ibv.transport_type = IBV_TRANSPORT_IB;
    d->attr = (struct ibv_device_attr){.vendor_id = 0x02c9,
                                       .vendor_part_id = 4123,
                                       .phys_port_cnt = 1,
                                       .max_mr_size = UINT64_MAX,
                                       .max_qp = 1000,
                                       .max_qp_wr = 32768,
                                       .max_cqe = 4194303,
                                       .max_srq = 1000,
                                       .max_srq_wr = 32767,
                                       .max_sge = 30,
                                       .max_qp_rd_atom = 16,
                                       .max_qp_init_rd_atom = 16,
                                       .atomic_cap = IBV_ATOMIC_HCA};
    for (int p = 1; p <= MOCK_PORTS; p++)
        d->port[p] = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
                                            .active_mtu = IBV_MTU_4096,
                                            .max_mtu = IBV_MTU_4096,
                                            .gid_tbl_len = MOCK_GIDS,
                                            .max_msg_sz = 1u << 31,
                                            .link_layer = IBV_LINK_LAYER_ETHERNET,
                                            .active_width = 2,
                                            .active_speed = 32};
    snprintf(address, sizeof address, "10.0.0.%d", number);
    mock_gid(mock.ndevices, 1, 3, IBV_GID_TYPE_ROCE_V2, address);
    return mock.ndevices++;
}

void mock_fail(const char *name, int after, int err) {
    snprintf(mock.fail_name[mock.nfails], sizeof mock.fail_name[0], "%s", name);
    mock.fail_after[mock.nfails] = after;
    mock.fail_times[mock.nfails] = 1 << 30;
    mock.fail_errno[mock.nfails++] = err;
}

void mock_fail_once(const char *name, int err) {
    mock_fail(name, 0, err);
    mock.fail_times[mock.nfails - 1] = 1;
}

/* errno if the call is to fail now. */
int mock_fails(const char *name) {
    if (!mock.fork_calls)
        mock.calls_before_fork++;
    for (int i = 0; i < mock.nfails; i++)
        if (strcmp(mock.fail_name[i], name) == 0 && mock.fail_after[i]-- <= 0 &&
            mock.fail_times[i]-- > 0)
            return errno = mock.fail_errno[i];
    return 0;
}

/* ---- devices --------------------------------------------------------------------------------- */

enum ibv_fork_status ibv_is_fork_initialized(void) { return mock.fork; }

int ibv_fork_init(void) {
    mock.fork_calls++;
    return mock.calls_before_fork ? EINVAL : 0;
}

struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list;

    if (mock_fails("ibv_get_device_list"))
        return NULL;
    list = calloc((size_t)mock.ndevices + 1, sizeof *list);
    for (int i = 0; i < mock.ndevices; i++)
        list[i] = &mock.device[i].ibv;
    *n = mock.ndevices;
    mock.live++;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) {
    mock.live--;
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    mock_context *context;
    int fd[2];

    if (mock_fails("ibv_open_device"))
        return NULL;
    context = calloc(1, sizeof *context);
    ck_assert_int_eq(pipe(fd), 0);
    context->device = (int)((mock_device *)device - mock.device);
    context->context.device = device;
    context->context.async_fd = fd[0];
    context->async_write = fd[1];
    context->context.ops.poll_cq = mock_poll_cq;
    context->context.ops.req_notify_cq = mock_req_notify;
    context->context.ops.post_srq_recv = mock_post_srq_recv;
    context->context.ops.post_send = mock_post_send;
    mock.live++;
    mock.contexts++;
    return &context->context;
}

int ibv_close_device(struct ibv_context *context) {
    close(context->async_fd);
    close(((mock_context *)context)->async_write);
    free(context);
    mock.live--;
    mock.contexts--;
    return 0;
}

static mock_device *device_of(struct ibv_context *context) {
    return &mock.device[((mock_context *)context)->device];
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    int err = mock_fails("ibv_query_device");
    *attr = device_of(context)->attr;
    return err;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    int err = mock_fails("ibv_query_port");
    ck_assert(port >= 1 && port <= device_of(context)->attr.phys_port_cnt);
    memcpy(attr, &device_of(context)->port[port], sizeof(struct ibv_port_attr));
    return err;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
    const mock_device *d = device_of(context);
    int err = mock_fails("ibv_query_gid_ex");

    ck_assert_uint_eq(flags, 0);
    for (int i = 0; i < d->ngids && !err; i++) {
        if (d->gid[i].gid_index == index && d->gid[i].port_num == port) {
            memcpy(entry, &d->gid[i], size);
            return 0;
        }
    }
    return err ? err : ENODATA;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t size) {
    const mock_device *d = device_of(context);
    int err = mock_fails("ibv_query_gid_table");

    ck_assert_uint_eq(flags, 0);
    ck_assert_uint_eq(size, sizeof *entries);
    ck_assert(max >= (size_t)d->ngids);
    memcpy(entries, d->gid, (size_t)d->ngids * sizeof *entries);
    return err ? -err : d->ngids;
}

const char *ibv_port_state_str(enum ibv_port_state state) {
    return state == IBV_PORT_DOWN ? "PORT_DOWN" : "PORT_OTHER";
}
const char *ibv_event_type_str(enum ibv_event_type type) {
    return type == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error" : "some event";
}
const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "some status";
}

void mock_interface(const char *address, const char *mask) {
    struct sockaddr_in *a = (struct sockaddr_in *)&mock.if_address[mock.nifs],
                       *m = (struct sockaddr_in *)&mock.if_mask[mock.nifs];

    a->sin_family = m->sin_family = AF_INET;
    ck_assert_int_eq(inet_pton(AF_INET, address, &a->sin_addr), 1);
    ck_assert_int_eq(inet_pton(AF_INET, mask, &m->sin_addr), 1);
    mock.ifs[mock.nifs] = (struct ifaddrs){.ifa_addr = (struct sockaddr *)a,
                                           .ifa_netmask = (struct sockaddr *)m};
    if (mock.nifs)
        mock.ifs[mock.nifs - 1].ifa_next = &mock.ifs[mock.nifs];
    mock.nifs++;
}

int getifaddrs(struct ifaddrs **list) {
    *list = mock.nifs ? mock.ifs : NULL;
    return 0;
}

void freeifaddrs(struct ifaddrs *list) { ck_assert_ptr_eq(list, mock.ifs); }

/* ---- objects --------------------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = mock_fails("ibv_alloc_pd") ? NULL : calloc(1, sizeof *pd);
    if (pd) {
        pd->context = context;
        mock.live++;
    }
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    for (int i = 0; i < mock.nmrs; i++)
        if (mock.mr[i].live && mock.mr[i].mr.pd == pd)
            return EBUSY;
    free(pd);
    mock.live--;
    return 0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *address, size_t len, int access, int fd,
                          uint64_t offset, uint64_t iova) {
    mock_mr *mr = &mock.mr[mock.nmrs];

    ck_assert_int_lt(mock.nmrs, MOCK_MRS);
    ck_assert_ptr_nonnull(pd);
    ck_assert_uint_gt(len, 0);
    ck_assert_uint_le(len, device_of(pd->context)->attr.max_mr_size);
    ck_assert_msg(!((unsigned)access & IBV_ACCESS_RELAXED_ORDERING),
                  "relaxed ordering was asked for");
    *mr = (mock_mr){.mr = {.context = pd->context,
                           .pd = pd,
                           .addr = address,
                           .length = len,
                           .lkey = 0x1000u + (uint32_t)mock.nmrs,
                           .rkey = 0x2000u + (uint32_t)mock.nmrs},
                    .live = 1,
                    .access = access,
                    .fd = fd,
                    .offset = offset,
                    .iova = iova};
    mock.nmrs++;
    mock.live++;
    return &mr->mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t len, int access) {
    return mock_fails("ibv_reg_mr") ? NULL
                                    : reg(pd, address, len, access, -1, 0, (uintptr_t)address);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t len, uint64_t iova,
                                unsigned access) {
    return mock_fails("ibv_reg_mr") ? NULL : reg(pd, address, len, (int)access, -1, 0, iova);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                 int fd, int access) {
    return mock_fails("ibv_reg_dmabuf_mr") ? NULL : reg(pd, NULL, len, access, fd, offset, iova);
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    ck_assert(((mock_mr *)mr)->live);
    ((mock_mr *)mr)->live = 0;
    mock.live--;
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    mock_channel *channel;
    int fd[2];

    if (mock_fails("ibv_create_comp_channel"))
        return NULL;
    channel = calloc(1, sizeof *channel);
    ck_assert_int_eq(pipe(fd), 0);
    channel->channel = (struct ibv_comp_channel){.context = context, .fd = fd[0]};
    channel->write = fd[1];
    mock.live++;
    return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    close(((mock_channel *)channel)->write);
    free(channel);
    mock.live--;
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector) {
    mock_cq *cq;

    ck_assert_int_eq(vector, 0);
    ck_assert_int_gt(cqe, 0);
    ck_assert_int_le(cqe, device_of(context)->attr.max_cqe);
    if (mock_fails("ibv_create_cq"))
        return NULL;
    cq = calloc(1, sizeof *cq);
    cq->cq = (struct ibv_cq){.context = context,
                             .channel = channel,
                             .cq_context = cq_context,
                             .cqe = cqe};
    mock.cq[mock.ncqs++] = cq;
    mock.live++;
    return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    ck_assert_msg(((mock_cq *)cq)->events == ((mock_cq *)cq)->acked,
                  "ibv_destroy_cq would wait for events to be acknowledged");
    free(cq);
    mock.live--;
    return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    mock_srq *srq;

    ck_assert_uint_gt(attr->attr.max_wr, 0);
    ck_assert_uint_le(attr->attr.max_wr, (unsigned)device_of(pd->context)->attr.max_srq_wr);
    if (mock_fails("ibv_create_srq"))
        return NULL;
    srq = calloc(1, sizeof *srq);
    srq->srq = (struct ibv_srq){.context = pd->context, .pd = pd};
    srq->max = (int)attr->attr.max_wr;
    mock.srq[mock.nsrqs++] = srq;
    mock.live++;
    return &srq->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq) {
    free(srq);
    mock.live--;
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    mock_qp *qp;

    if (mock_fails("ibv_create_qp"))
        return NULL;
    if ((int)attr->cap.max_inline_data > mock.inline_limit) {
        errno = EINVAL;
        return NULL;
    }
    ck_assert_int_eq(attr->qp_type, IBV_QPT_RC);
    ck_assert_int_eq(attr->sq_sig_all, 0);
    ck_assert_int_le((int)attr->cap.max_send_wr, device_of(pd->context)->attr.max_qp_wr);
    qp = calloc(1, sizeof *qp);
    qp->init = *attr;
    qp->live = 1;
    qp->qp = (struct ibv_qp){.context = pd->context,
                             .qp_context = attr->qp_context,
                             .pd = pd,
                             .send_cq = attr->send_cq,
                             .recv_cq = attr->recv_cq,
                             .srq = attr->srq,
                             .qp_num = 17u + 8u * (uint32_t)mock.nqps,
                             .qp_type = IBV_QPT_RC};
    mock.qp[mock.nqps++] = qp;
    mock.live++;
    return &qp->qp;
}

/* Kept to be looked at. */
int ibv_destroy_qp(struct ibv_qp *qp) {
    ((mock_qp *)qp)->live = 0;
    mock.live--;
    return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    mock_qp *q = (mock_qp *)qp;
    static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
    int err = mock_fails("ibv_modify_qp");

    if (err)
        return err;
    ck_assert_int_lt(q->changes, 3);
    ck_assert_int_eq(attr->qp_state, states[q->changes]);
    q->attr[q->changes] = *attr;
    q->mask[q->changes++] = mask;
    return 0;
}
