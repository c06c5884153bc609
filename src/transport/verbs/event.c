/*
 * event.c - asynchronous events of devices, and sleeping until a completion, an arrival
 * or such an event.
 *
 * All descriptors are nonblocking and hang on one epoll descriptor, which is what the
 * proxy sleeps on.
 *
 * A port that goes down may come back: until net_timeout has passed since then only the device's
 * own repetitions are at work, afterwards its lanes are broken, also those that have nothing under
 * way and would never notice.
 *
 * A connection that sends nothing does not notice the end of its peer either, and a rank that only
 * waits sends nothing. So every half net_timeout a lane on which nothing was sent since the last
 * time writes nothing (post.c): the peer's device acknowledges it as long as the peer's process
 * lives, stopped or not. Together with the device's repetitions an end is known after two
 * net_timeouts at most, whatever the caller's own limit.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

static int watch(verbs_net *net, int d, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)d};
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno,
                             "%s: its event descriptor %d can't be watched",
                             net->devices[d].port.name, fd);
    return 0;
}

int verbs_events_open(verbs_net *net) {
    int kind = 0;

    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (net->epoll_fd < 0)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "no epoll descriptor for the events of %s",
                             net->net.caps.device);
    for (int d = 0; d < net->ndevices && !kind; d++) {
        kind = watch(net, d, net->devices[d].channel->fd);
        if (!kind)
            kind = watch(net, d, net->devices[d].port.context->async_fd);
    }
    return kind;
}

void verbs_device_break(verbs_net *net, int d, const char *why) {
    if (net->devices[d].failed)
        return;
    for (int i = 0; i < net->npeers * net->nlanes; i++)
        if (net->lanes[i].device == d)
            verbs_lane_break(net, &net->lanes[i], MPIX_ERRK_TRANSPORT, "%s: %s",
                             net->devices[d].port.name, why);
    net->devices[d].failed = 1;
}

static void event_port(verbs_net *net, int d, const struct ibv_async_event *event) {
    verbs_device *device = &net->devices[d];

    if (event->element.port_num != device->port.port)
        return;
    if (event->event_type == IBV_EVENT_PORT_ERR) {
        device->down_since = mpix_clock_ns();
        mpix_log(MPIX_LOG_WARN,
                 "verbs: %s is down; its connections break unless it is back in %.3g s (parameter "
                 "net_timeout)",
                 device->port.name, (double)net->retry_ns / 1e9);
    } else {
        device->down_since = 0;
        mpix_log(MPIX_LOG_WARN, "verbs: %s is up again", device->port.name);
    }
}

static void event_take(verbs_net *net, int d, const struct ibv_async_event *event) {
    const char *text = ibv_event_type_str(event->event_type), *name = net->devices[d].port.name;
    verbs_lane *lane;

    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE: event_port(net, d, event); break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        lane = event->element.qp->qp_context;
        verbs_lane_break(net, lane, MPIX_ERRK_PEER, "%s: %s", name, text);
        break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL: verbs_device_break(net, d, text); break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_SRQ_LIMIT_REACHED: mpix_log(MPIX_LOG_DEBUG, "verbs: %s: %s", name, text); break;
    /* Addresses changed and the like: connections live on, or break. */
    default: mpix_log(MPIX_LOG_WARN, "verbs: %s: %s", name, text); break;
    }
}

void verbs_events(verbs_net *net) {
    for (int d = 0; d < net->ndevices; d++) {
        verbs_device *device = &net->devices[d];
        struct ibv_async_event event;

        while (!device->failed && ibv_get_async_event(device->port.context, &event) == 0) {
            event_take(net, d, &event);
            ibv_ack_async_event(&event);
        }
        if (device->down_since && !device->failed &&
            mpix_clock_ns() - device->down_since > net->retry_ns)
            verbs_device_break(
                net, d, "port is down and did not come back in time (parameter net_timeout)");
    }
}

void verbs_look(verbs_net *net) {
    uint64_t now = mpix_clock_ns();

    if (now - net->looked_ns < VERBS_LOOK_NS)
        return;
    net->looked_ns = now;
    verbs_events(net);
    if (now - net->probed_ns < net->retry_ns / 2)
        return;
    net->probed_ns = now;
    verbs_probe(net);
}

/* ---- sleeping -------------------------------------------------------------------------------- */

int verbs_arm(mpix_net *base, int *fd) {
    verbs_net *net = (verbs_net *)base;

    verbs_events(net);
    verbs_look(net);
    for (int d = 0; d < net->ndevices; d++) {
        int err = 0;

        if (!net->devices[d].failed && !(err = ibv_req_notify_cq(net->devices[d].send_cq, 0)))
            err = ibv_req_notify_cq(net->devices[d].recv_cq, 0);
        if (err)
            return mpix_fail_sys(MPIX_ERRK_TRANSPORT, err,
                                 "%s: notification of completions was refused",
                                 net->devices[d].port.name);
    }
    *fd = net->epoll_fd;
    return 0;
}

/* Takes what woke the caller, so that the descriptor is quiet again. */
void verbs_ack(mpix_net *base) {
    verbs_net *net = (verbs_net *)base;

    for (int d = 0; d < net->ndevices; d++) {
        struct ibv_cq *cq;
        void *context;

        while (ibv_get_cq_event(net->devices[d].channel, &cq, &context) == 0)
            ibv_ack_cq_events(cq, 1);
    }
    verbs_events(net);
}
