/*
 * qp.c - queue pairs: made for a peer when its address blob is asked for, connected
 * with the peer's.
 *
 * The blob has what the other end needs to send to each lane: queue pair number, first packet
 * number, and the address of the device; and what both ends have to agree on: MTU, depth and reads
 * in flight become the lower of both, the number of lanes must be the same.
 */
#include "config.h"

#include "transport/verbs/verbs.h"
#include "transport/verbs/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

int verbs_mtu_bytes(enum ibv_mtu mtu) {
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

enum ibv_mtu verbs_mtu_floor(int bytes) {
    int mtu = IBV_MTU_4096;
    while (mtu > IBV_MTU_256 && 128 << mtu > bytes)
        mtu--;
    return (enum ibv_mtu)mtu;
}

/* ---- queue pair number to lane --------------------------------------------------------------- */

static uint32_t hash_of(uint32_t qpn) { return qpn * 2654435761u >> 8; }

void verbs_hash_add(verbs_net *net, int device, uint32_t qpn, int lane) {
    uint32_t i = hash_of(qpn) & net->hash_mask;

    while (net->hash[device][i].lane)
        i = (i + 1) & net->hash_mask;
    net->hash[device][i].qpn = qpn;
    net->hash[device][i].lane = lane + 1;
}

verbs_lane *verbs_hash_find(verbs_net *net, int device, uint32_t qpn) {
    uint32_t i = hash_of(qpn) & net->hash_mask;

    for (; net->hash[device][i].lane; i = (i + 1) & net->hash_mask)
        if (net->hash[device][i].qpn == qpn)
            return &net->lanes[net->hash[device][i].lane - 1];
    return NULL; /* the table has twice as many places as lanes, so an empty one ends the search */
}

/* ---- making ---------------------------------------------------------------------------------- */

static int qp_create(verbs_net *net, verbs_lane *lane) {
    verbs_device *device = &net->devices[lane->device];
    struct ibv_qp_init_attr attr = {
        .qp_context = lane,
        .send_cq = device->send_cq,
        .recv_cq = device->recv_cq,
        .srq = device->srq,
        .cap = {.max_send_wr = (uint32_t)net->depth,
                .max_send_sge = 1,
                .max_recv_sge = device->srq ? 0 : 1,
                .max_inline_data = VERBS_INLINE},
        .qp_type = IBV_QPT_RC,
    };
    int err;

    /* Inline data is a help, not a need: what the device refuses is asked for again with less. */
    for (;;) {
        errno = 0;
        lane->qp = ibv_create_qp(device->pd, &attr);
        err = lane->qp ? 0 : errno;
        if (lane->qp || attr.cap.max_inline_data == 0 || (err != EINVAL && err != ENOMEM))
            break;
        attr.cap.max_inline_data = attr.cap.max_inline_data > 8 ? 8 : 0;
        attr.cap.max_send_wr = (uint32_t)net->depth;
    }
    if (!lane->qp) {
        char limit[128];
        verbs_memlock_text(limit, sizeof limit);
        return mpix_fail_sys(err == ENOMEM ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT, err,
                             "%s: queue pair of %d requests for rank %d was refused (parameters "
                             "net_depth, lanes; %s)",
                             device->port.name, net->depth, lane->peer,
                             err == ENOMEM ? limit : "device limit");
    }
    device->max_inline = (int)attr.cap.max_inline_data;
    lane->depth = net->depth;
    return 0;
}

static int qp_init(verbs_net *net, verbs_lane *lane) {
    verbs_device *device = &net->devices[lane->device];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = 0,
        .port_num = (uint8_t)device->port.port,
        .qp_access_flags = (unsigned)verbs_access(device) & ~(unsigned)IBV_ACCESS_LOCAL_WRITE,
    };
    int err = ibv_modify_qp(lane->qp, &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    if (err)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, err,
                             "%s: queue pair for rank %d can't be initialised", device->port.name,
                             lane->peer);
    return 0;
}

static int rd_atomic(int limit) {
    return limit < 0 ? 0 : limit < VERBS_RDMA_ATOMIC ? limit : VERBS_RDMA_ATOMIC;
}

/* Queue pairs of a peer are made once, however often its blob is asked for. */
int verbs_address(mpix_net *base, int peer, void *out) {
    verbs_net *net = (verbs_net *)base;
    verbs_blob blob;

    memset(&blob, 0, sizeof blob);
    if (net->place_of[peer] < 0) {
        memcpy(out, &blob, sizeof blob);
        return 0;
    }
    blob.magic = BLOB_MAGIC;
    blob.version = BLOB_VERSION;
    blob.ndevices = (uint32_t)net->ndevices;
    blob.nlanes = (uint32_t)net->nlanes;
    blob.depth = (uint32_t)net->depth;
    for (int d = 0; d < net->ndevices; d++) {
        const verbs_port *port = &net->devices[d].port;
        blob.device[d] =
            (blob_device){.gid = port->gid,
                          .lid = port->port_attr.lid,
                          .link_layer = port->port_attr.link_layer,
                          .flags = (uint8_t)((port->gid_index >= 0 ? BLOB_GLOBAL : 0) |
                                             (net->net.caps.ordered ? BLOB_ORDERED : 0) |
                                             (net->net.caps.counted ? BLOB_COUNTED : 0)),
                          .max_dest_rd_atomic = (uint8_t)rd_atomic(port->attr.max_qp_rd_atom),
                          .mtu = (uint8_t)(verbs_mtu_bytes(port->port_attr.active_mtu) <
                                                   verbs_mtu_bytes((enum ibv_mtu)net->mtu)
                                               ? port->port_attr.active_mtu
                                               : (enum ibv_mtu)net->mtu)};
    }
    for (int l = 0; l < net->nlanes; l++) {
        verbs_lane *lane = verbs_lane_of(net, peer, l);
        if (!lane->qp) {
            int kind = qp_create(net, lane);
            if (kind)
                return kind;
            verbs_hash_add(net, lane->device, lane->qp->qp_num, (int)(lane - net->lanes));
            kind = qp_init(net, lane);
            if (kind)
                return kind;
            /* Packets of an earlier connection with this number must not look like ours. */
            lane->psn = (uint32_t)(mpix_clock_ns() >> 8 ^ (uint64_t)getpid() << 12 ^
                                   lane->qp->qp_num) &
                        0xffffff;
        }
        blob.lane[l] = (blob_lane){.qpn = lane->qp->qp_num,
                                   .psn = lane->psn,
                                   .device = (uint32_t)lane->device};
    }
    memcpy(out, &blob, sizeof blob);
    return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int connect_fail(const verbs_net *net, const verbs_lane *lane, int err, const char *state,
                        const blob_device *remote) {
    const verbs_device *device = &net->devices[lane->device];
    char text[64] = "";

    if (remote->flags & BLOB_GLOBAL)
        verbs_gid_text(&remote->gid, text, sizeof text);
    else
        snprintf(text, sizeof text, "lid %u", remote->lid);
    (void)
        mpix_fail_sys(MPIX_ERRK_TRANSPORT, err,
                      "%s (%s) can't be connected to rank %d on %s at %s, state %s (network route? "
                      "parameters net_devices, gid_index)",
                      device->port.name, device->port.address, lane->peer,
                      net->boot->hostnames[lane->peer], text, state);
    return MPIX_ERRK_TRANSPORT;
}

static int lane_connect(verbs_net *net, verbs_lane *lane, const verbs_blob *blob) {
    verbs_device *device = &net->devices[lane->device];
    const blob_lane *far = &blob->lane[lane->lane];
    const blob_device *remote = &blob->device[far->device];
    int own_mtu = verbs_mtu_bytes(device->port.port_attr.active_mtu),
        mtu = verbs_mtu_bytes((enum ibv_mtu)remote->mtu);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int err;

    mtu = mtu < own_mtu ? mtu : own_mtu;
    mtu = mtu < verbs_mtu_bytes((enum ibv_mtu)net->mtu) ? mtu
                                                        : verbs_mtu_bytes((enum ibv_mtu)net->mtu);
    attr.path_mtu = verbs_mtu_floor(mtu);
    attr.dest_qp_num = far->qpn;
    attr.rq_psn = far->psn;
    attr.max_dest_rd_atomic = (uint8_t)rd_atomic(device->port.attr.max_qp_rd_atom);
    attr.min_rnr_timer = 1; /* 10 us: receives are posted again in bulk and soon */
    attr.ah_attr.dlid = remote->lid;
    attr.ah_attr.sl = (uint8_t)net->service_level;
    attr.ah_attr.port_num = (uint8_t)device->port.port;
    if (device->port.gid_index >= 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh = (struct ibv_global_route){.dgid = remote->gid,
                                                     .sgid_index = (uint8_t)device->port.gid_index,
                                                     .hop_limit = 64,
                                                     .traffic_class = (uint8_t)net->traffic_class};
    }
    err = ibv_modify_qp(lane->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (err)
        return connect_fail(net, lane, err, "RTR", remote);

    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = (uint8_t)net->retry_exponent;
    attr.retry_cnt = VERBS_REPEATS;
    /* without end: a peer that is slow to post receives is not dead, and the layers above
     * watch the time */
    attr.rnr_retry = 7;
    attr.sq_psn = lane->psn;
    attr.max_rd_atomic = (uint8_t)rd_atomic(device->port.attr.max_qp_init_rd_atom);
    if (attr.max_rd_atomic > remote->max_dest_rd_atomic)
        attr.max_rd_atomic = remote->max_dest_rd_atomic;
    err = ibv_modify_qp(lane->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (err)
        return connect_fail(net, lane, err, "RTS", remote);

    lane->remote_device = (int)far->device;
    if ((uint32_t)lane->depth > blob->depth)
        lane->depth = (int)blob->depth; /* the peer's receive queue holds no more of ours */
    lane->connected = 1;
    if (mtu < net->net.caps.mtu)
        net->net.caps.mtu = mtu;
    if (!(remote->flags & BLOB_COUNTED))
        net->net.caps.counted = 0;
    if (!(remote->flags & BLOB_ORDERED) && net->net.caps.ordered) {
        net->net.caps.ordered = 0;
        snprintf(net->net.caps.why, sizeof net->net.caps.why,
                 "not ordered: rank %d says so of its device", lane->peer);
    }
    return 0;
}

int verbs_connect(mpix_net *base, int peer, const void *in) {
    verbs_net *net = (verbs_net *)base;
    verbs_blob blob;

    if (net->place_of[peer] < 0)
        return 0;
    memcpy(&blob, in, sizeof blob);
    if (blob.magic != BLOB_MAGIC || blob.version != BLOB_VERSION)
        return mpix_fail_peer(
            MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
            "rank %d speaks another version of the transport verbs, or does not want this rank",
            peer);
    if ((int)blob.nlanes != net->nlanes || blob.ndevices < 1 || blob.ndevices > VERBS_MAX_DEVICES)
        return mpix_fail_peer(
            MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
            "%d lanes here, %u at rank %d: the parameter lanes must be the same on all ranks",
            net->nlanes, blob.nlanes, peer);
    for (int l = 0; l < net->nlanes; l++)
        if (blob.lane[l].device >= blob.ndevices)
            return mpix_fail_peer(
                MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
                "rank %d says that lane %d is of its device %u, and that it has %u", peer, l,
                blob.lane[l].device, blob.ndevices);
    for (int l = 0; l < net->nlanes; l++) {
        verbs_lane *lane = verbs_lane_of(net, peer, l);
        const verbs_device *device = &net->devices[lane->device];
        const blob_device *remote = &blob.device[blob.lane[l].device];
        int kind;

        if (remote->link_layer != device->port.port_attr.link_layer ||
            !!(remote->flags & BLOB_GLOBAL) != (device->port.gid_index >= 0))
            return mpix_fail_peer(
                MPIX_ERRK_TRANSPORT, peer, net->boot->hostnames[peer],
                "lane %d: %s and the device of rank %d are not of one network "
                "(InfiniBand or Ethernet, with or without GID; parameter net_devices)",
                l, device->port.name, peer);
        kind = lane_connect(net, lane, &blob);
        if (kind)
            return kind;
        mpix_log(MPIX_LOG_INFO,
                 "verbs: rank %d lane %d: %s qp %u to qp %u, MTU %d, depth %d, inline %d", peer, l,
                 device->port.name, lane->qp->qp_num, blob.lane[l].qpn, net->net.caps.mtu,
                 lane->depth, device->max_inline);
    }
    return 0;
}
