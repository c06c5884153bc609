/*
 * verbs.c - the transport's table, opening and closing: protection domain, completion queues,
 * shared receive queue, and the limits of the devices.
 *
 * Depth. A lane has `depth` places in its send queue; the send completion queue of a device has
 * room for all places of all its lanes, since after an error each of them completes. The shared
 * receive queue holds as many receives, one for each counted write that peers may have under way,
 * and its completion queue as many completions, so neither can overflow. The receive queue can run
 * dry for a while: a sender's place is free when this device has acknowledged the write, a receive
 * is there again when this rank's proxy has polled. A rank that computes, with proxy=caller, lets
 * its peers' further counted writes be refused (RNR) and repeated every 10 us, without end: late,
 * but nothing is lost. A proxy's thread avoids that. Where the device's limits are lower the depth
 * is lowered for all lanes alike.
 */
#include "config.h"

#include "transport/verbs/verbs.h"
#include "transport/verbs/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { DEPTH_MIN = 8 };

/* Before any other call of libibverbs. The kernel may not need it; a failure only matters to
 * programs that fork. */
static void fork_safe(void) {
    enum ibv_fork_status status = ibv_is_fork_initialized();
    int err = status == IBV_FORK_DISABLED ? ibv_fork_init() : 0;

    if (err)
        mpix_log(MPIX_LOG_INFO, "verbs: no protection of registered memory at fork: %s",
                 strerror(err));
}

/* ---- limits ---------------------------------------------------------------------------------- */

static int lower(int *value, long limit, const char *device, const char *what) {
    if (limit < *value) {
        mpix_log(MPIX_LOG_INFO, "verbs: %s: %s allows a depth of %ld operations per lane, not %d",
                 device, what, limit, *value);
        *value = (int)(limit > 0 ? limit : 0);
    }
    return *value;
}

static int limits(verbs_net *net, const mpix_params *params) {
    const char *name = "";

    net->depth = params->net_depth;
    for (int d = 0; d < net->ndevices; d++) {
        verbs_device *device = &net->devices[d];
        const struct ibv_device_attr *attr = &device->port.attr;

        name = device->port.name;
        for (int l = d; l < net->nlanes; l += net->ndevices)
            device->lanes += net->npeers;
        if (device->lanes == 0)
            device->lanes = 1; /* nobody to talk to: memory can be registered all the same */
        if (device->lanes > attr->max_qp)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                             "%s has %d queue pairs, %d peers with %d lanes need more: lower the "
                             "parameter lanes",
                             name, attr->max_qp, net->npeers, net->nlanes);
        device->atomics = attr->atomic_cap != IBV_ATOMIC_NONE;
        lower(&net->depth, attr->max_qp_wr, name, "max_qp_wr");
        lower(&net->depth, attr->max_cqe / device->lanes, name, "max_cqe");
        if (attr->max_srq > 0)
            lower(&net->depth, attr->max_srq_wr / device->lanes, name, "max_srq_wr");
    }
    if (net->depth < DEPTH_MIN)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                         "%s: its limits leave a depth of %d operations for each of %d peers and "
                         "%d lanes, %d are needed: "
                         "lower lanes",
                         name, net->depth, net->npeers, net->nlanes, DEPTH_MIN);
    /* places of the ring of words are numbered by the low bits of a sequence that wraps */
    while (net->depth & (net->depth - 1))
        net->depth &= net->depth - 1;
    net->signal_every = net->depth / 4;
    return 0;
}

static void set_caps(verbs_net *net, const mpix_params *params) {
    mpix_net_caps *caps = &net->net.caps;
    char order[128] = "", device[41];

    snprintf(device, sizeof device, "%.40s", caps->why);
    caps->lanes = net->nlanes;
    caps->depth = net->depth;
    caps->counted = 1;
    caps->posted_lands = 1;
    caps->max_counter = UINT32_MAX;
    caps->max_op = UINT64_MAX;
    caps->ordered = 1;
    caps->mtu = verbs_mtu_bytes((enum ibv_mtu)net->mtu);
    for (int d = net->ndevices - 1; d >= 0; d--) {
        const verbs_port *port = &net->devices[d].port;
        uint64_t most = port->port_attr.max_msg_sz ? port->port_attr.max_msg_sz : 1u << 30;

        most = most < verbs_piece(net, most) ? most : verbs_piece(net, most);
        if (most < caps->max_op)
            caps->max_op = most;
        if (!net->devices[d].srq)
            caps->counted = 0;
        if (verbs_mtu_bytes(port->port_attr.active_mtu) < caps->mtu)
            caps->mtu = verbs_mtu_bytes(port->port_attr.active_mtu);
        if (caps->ordered || d == 0) { /* the first device that is not known says why */
            char text[128];
            int known = verbs_order_known(&port->attr, text, sizeof text);
            if (!known || caps->ordered)
                memcpy(order, text, sizeof order);
            caps->ordered &= known;
        }
    }
    for (int d = 0; d < net->ndevices; d++)
        if (net->devices[d].port.attr.vendor_id == VERBS_RXE) {
            caps->read_op = VERBS_RXE_READ;
            caps->read_bytes = 4 * VERBS_RXE_READ;
        }
    if (caps->max_op > 1u << 30)
        caps->max_op = 1u << 30; /* more gains nothing, and keeps others waiting */
    if (params->ordered != MPIX_ORDERED_AUTO) {
        caps->ordered = params->ordered == MPIX_ORDERED_YES;
        snprintf(order, sizeof order, "%sordered: parameter", caps->ordered ? "" : "not ");
    }
    /* One rank of a host says it, where ordered signals follow from it. */
    for (int d = 0; d < net->ndevices && caps->ordered && params->ordered == MPIX_ORDERED_AUTO; d++)
        if (params->signal != MPIX_SIGNAL_COUNTED && net->boot->local_rank == 0)
            verbs_order_warn(&net->devices[d].port.attr, net->devices[d].port.name);
    snprintf(caps->why, sizeof caps->why, "%s; %.80s", device, order);
    mpix_log(MPIX_LOG_INFO, "verbs: %d peers, %d lanes, depth %d, counted %s, %s", net->npeers,
             net->nlanes, net->depth, caps->counted ? "yes" : "no (no SRQ)", order);
}

/* ---- open and close -------------------------------------------------------------------------- */

static int device_fail(const verbs_device *device, int err, const char *what, int size) {
    char limit[128];

    verbs_memlock_text(limit, sizeof limit);
    return mpix_fail_sys(err == ENOMEM ? MPIX_ERRK_NO_MEM : MPIX_ERRK_TRANSPORT, err,
                         "%s: %s (size %d) can't be made%s%s", device->port.name, what, size,
                         err == ENOMEM ? "; " : "", err == ENOMEM ? limit : "");
}

static int device_open(verbs_net *net, verbs_device *device) {
    int size = device->lanes * net->depth, words = (net->npeers * net->nlanes + 1) * net->depth,
        err;
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = (uint32_t)size, .max_sge = 1}};

    errno = 0;
    if (!(device->pd = ibv_alloc_pd(device->port.context)))
        return device_fail(device, errno, "a protection domain", 1);
    if (!(device->channel = ibv_create_comp_channel(device->port.context)))
        return device_fail(device, errno, "a completion channel", 1);
    if (!(device->send_cq = ibv_create_cq(device->port.context, size, device, device->channel, 0)))
        return device_fail(device, errno, "a send completion queue", size);
    if (!(device->recv_cq = ibv_create_cq(device->port.context, size, device, device->channel, 0)))
        return device_fail(device, errno, "a receive completion queue", size);
    if (device->port.attr.max_srq > 0) {
        if (!(device->srq = ibv_create_srq(device->pd, &srq)))
            return device_fail(device, errno, "a shared receive queue", size);
        if ((err = verbs_recv_fill(net, device, size)))
            return device_fail(device, err, "receives in the shared receive queue", size);
    }
    device->scratch = calloc((size_t)words, sizeof *device->scratch);
    if (!device->scratch)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d words", words);
    if (!(device->scratch_mr = ibv_reg_mr(device->pd, device->scratch,
                                          (size_t)words * sizeof *device->scratch,
                                          IBV_ACCESS_LOCAL_WRITE)))
        return verbs_reg_error(net, errno, (uint64_t)words * sizeof *device->scratch,
                               "a ring of words");
    return 0;
}

static int lanes_init(verbs_net *net, const unsigned char *want) {
    size_t places = 4;

    net->place_of = malloc((size_t)net->boot->size * sizeof *net->place_of);
    net->lanes = calloc((size_t)net->npeers * (size_t)net->nlanes + 1, sizeof *net->lanes);
    if (!net->place_of || !net->lanes)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d lanes to each of %d peers",
                         net->nlanes, net->npeers);
    while (places < 2 * (size_t)net->npeers * (size_t)net->nlanes)
        places *= 2;
    net->hash_mask = (uint32_t)places - 1;
    for (int d = 0; d < net->ndevices; d++)
        if (!(net->hash[d] = calloc(places, sizeof **net->hash)))
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a table of %zu queue pairs",
                             places);
    for (int peer = 0, place = 0; peer < net->boot->size; peer++) {
        net->place_of[peer] = want[peer] ? place++ : -1;
        for (int l = 0; want[peer] && l < net->nlanes; l++) {
            verbs_lane *lane = verbs_lane_of(net, peer, l);
            lane->peer = peer;
            lane->lane = l;
            lane->device = l % net->ndevices;
        }
    }
    return 0;
}

/* Nothing here waits: a peer sees its connection break when it next sends. */
static int verbs_close(mpix_net *base) {
    verbs_net *net = (verbs_net *)base;

    if (!net)
        return 0;
    for (int i = 0; net->lanes && i < net->npeers * net->nlanes; i++)
        if (net->lanes[i].qp)
            ibv_destroy_qp(net->lanes[i].qp);
    for (int d = 0; d < net->ndevices; d++) {
        verbs_device *device = &net->devices[d];
        int err = 0;

        err |= device->srq ? ibv_destroy_srq(device->srq) : 0;
        /* all events were acknowledged when they were taken: this does not wait */
        err |= device->send_cq ? ibv_destroy_cq(device->send_cq) : 0;
        err |= device->recv_cq ? ibv_destroy_cq(device->recv_cq) : 0;
        err |= device->channel ? ibv_destroy_comp_channel(device->channel) : 0;
        err |= device->scratch_mr ? ibv_dereg_mr(device->scratch_mr) : 0;
        err |= device->pd ? ibv_dealloc_pd(device->pd) : 0;
        err |= ibv_close_device(device->port.context);
        if (err)
            mpix_log(MPIX_LOG_WARN,
                     "verbs: %s was not closed in order (%s): memory is still registered with it?",
                     device->port.name, strerror(err));
        free(device->scratch);
        free(net->hash[d]);
    }
    if (net->epoll_fd >= 0)
        close(net->epoll_fd);
    free(net->lanes);
    free(net->place_of);
    free(net);
    return 0;
}

static void set_options(verbs_net *net, const mpix_params *params) {
    /* an attempt lasts 4.096 us * 2^exponent */
    double each = params->net_timeout / (1 + VERBS_REPEATS) / 4.096e-6;

    net->nlanes = params->lanes;
    net->mtu = params->net_mtu ? verbs_mtu_floor(params->net_mtu) : IBV_MTU_4096;
    net->gid_index = params->gid_index;
    net->traffic_class = params->traffic_class;
    net->service_level = params->service_level;
    net->retry_exponent = 1; /* 0 would mean for ever */
    while (net->retry_exponent < 31 && (double)(2ull << net->retry_exponent) <= each)
        net->retry_exponent++;
    net->retry_ns = (uint64_t)(params->net_timeout * 1e9);
}

/* A device, whatever state it is in: open says what is wrong with it. */
static int verbs_present(char *why, size_t len) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);

    if (list)
        ibv_free_device_list(list);
    if (!list || n == 0)
        snprintf(why, len, "this host has no RDMA device");
    return list && n > 0;
}

static int verbs_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                      mpix_net **out) {
    verbs_net *net = calloc(1, sizeof *net);
    int kind;

    if (!net)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the transport verbs");
    net->net.ops = &mpix_net_verbs;
    net->boot = boot;
    net->epoll_fd = -1;
    net->probed_ns = mpix_clock_ns();
    for (int peer = 0; peer < boot->size; peer++)
        net->npeers += want[peer] != 0;
    set_options(net, params);
    if ((long)net->npeers * net->nlanes > VERBS_MAX_LANES_TOTAL) {
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "%d peers with %d lanes: at most %d lanes in all", net->npeers,
                         net->nlanes, VERBS_MAX_LANES_TOTAL);
        goto undo;
    }
    fork_safe();
    if ((kind = verbs_devices_choose(net, params, want)))
        goto undo;
    if ((kind = limits(net, params)) || (kind = lanes_init(net, want)))
        goto undo;
    for (int d = 0; d < net->ndevices; d++)
        if ((kind = device_open(net, &net->devices[d])))
            goto undo;
    if ((kind = verbs_events_open(net)))
        goto undo;
    set_caps(net, params);
    *out = &net->net;
    return 0;

undo:
    (void)verbs_close(&net->net);
    return kind;
}

const mpix_net_ops mpix_net_verbs = {
    .name = "verbs",
    .address_bytes = sizeof(verbs_blob),
    .key_bytes = sizeof(verbs_key),
    .present = verbs_present,
    .open = verbs_open,
    .close = verbs_close,
    .address = verbs_address,
    .connect = verbs_connect,
    .mem_reg = verbs_mem_reg,
    .mem_reg_gpu = verbs_mem_reg_gpu,
    .mem_dereg = verbs_mem_dereg,
    .mem_key = verbs_mem_key,
    .rmem_open = verbs_rmem_open,
    .rmem_close = verbs_rmem_close,
    .post = verbs_post,
    .poll = verbs_poll,
    .poll_arrivals = verbs_poll_arrivals,
    .arm = verbs_arm,
    .ack = verbs_ack,
};
