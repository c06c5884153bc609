/*
 * device.c - which devices and ports a rank uses.
 *
 * A port can be used when it is active, of an InfiniBand or Ethernet link, has an address (a LID
 * or a GID) and its device speaks the InfiniBand protocol (iWARP connects by other means). Without
 * the parameter net_devices the rank takes one port: of the best kind of address (routable first),
 * then the fastest. All ranks have to reach each other, so among ports that are alike in this only
 * those on the network of the first are candidates; of these a rank takes one on its own NUMA
 * node, and ranks of a host are dealt out over what is still alike. With net_devices it takes
 * those it names, in that order.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/topo.h"

typedef struct device_name {
    char name[40];
    int port; /* 0: any */
} device_name;

typedef struct device_search {
    verbs_port *ports; /* usable */
    int n, room;
    char present[96];  /* names of all devices */
    char refused[160]; /* why ports can't be used, the first few */
} device_search;

static void text_append(char *buf, size_t len, const char *separator, const char *text) {
    size_t n = strlen(buf);
    snprintf(buf + n, len - n, "%s%s", n ? separator : "", text);
}

/* ---- the parameter net_devices --------------------------------------------------------------- */

static int names_refuse(const char *list, const char *what) {
    return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_net_devices",
                     "net_devices=\"%.80s\": %s; takes up to %d names like mlx5_0 or mlx5_0:1, "
                     "separated by commas",
                     list, what, VERBS_MAX_DEVICES);
}

static int names_parse(const char *list, device_name *names, int *n) {
    const char *p = list;

    for (*n = 0; *p; (*n)++) {
        size_t len = strcspn(p, ","), stem = strcspn(p, ",:");
        char *end;
        long port = 0;

        if (*n == VERBS_MAX_DEVICES)
            return names_refuse(list, "too many devices");
        if (stem == 0 || stem >= sizeof names[0].name)
            return names_refuse(list, "a name is empty or too long");
        if (stem < len) {
            port = strtol(p + stem + 1, &end, 10);
            if (end != p + len || end == p + stem + 1 || port < 1 || port > 255)
                return names_refuse(list, "a port is no number of 1 to 255");
        }
        memcpy(names[*n].name, p, stem);
        names[*n].name[stem] = 0;
        names[*n].port = (int)port;
        p += len;
        if (*p == ',' && !*++p)
            return names_refuse(list, "a name is empty or too long");
    }
    return 0;
}

static int names_want(const device_name *names, int n, const char *name, int port) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i].name, name) == 0 && (!port || !names[i].port || names[i].port == port))
            return 1;
    return n == 0;
}

/* ---- what there is --------------------------------------------------------------------------- */

static double port_gbps(const struct ibv_port_attr *attr) {
    static const struct {
        int code;
        double value;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}},
      speeds[] = {{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
    double width = 1, speed = 2.5;

    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].code == attr->active_width)
            width = widths[i].value;
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (speeds[i].code == attr->active_speed)
            speed = speeds[i].value;
    return width * speed;
}

static int device_numa(const struct ibv_device *device) {
    char path[IBV_SYSFS_PATH_MAX + 32];
    int node = -1;
    FILE *file;

    snprintf(path, sizeof path, "%s/device/numa_node", device->ibdev_path);
    file = fopen(path, "r");
    if (!file)
        return -1;
    if (fscanf(file, "%d", &node) != 1)
        node = -1;
    fclose(file);
    return node;
}

/* Fills port from its attributes; -1 and the reason if it can't be used. */
static int port_look(verbs_port *port, int gid_index, char *why, size_t len) {
    int err = ibv_query_port(port->context, (uint8_t)port->port, &port->port_attr);
    struct ibv_gid_entry entry;

    port->gid_index = -1;
    if (err) {
        snprintf(why, len, "it can't be queried: %s", strerror(err));
        return -1;
    }
    if (port->port_attr.state != IBV_PORT_ACTIVE) {
        snprintf(why, len, "its state is %s", ibv_port_state_str(port->port_attr.state));
        return -1;
    }
    port->gbps = port_gbps(&port->port_attr);
    if (port->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
        if (verbs_gid_choose(port, gid_index, why, len))
            return -1;
        verbs_gid_network(&port->gid, port->network, sizeof port->network);
        return 0;
    }
    if (port->port_attr.link_layer != IBV_LINK_LAYER_INFINIBAND &&
        port->port_attr.link_layer != IBV_LINK_LAYER_UNSPECIFIED) {
        snprintf(why, len, "its link layer is neither InfiniBand nor Ethernet");
        return -1;
    }
    memset(&entry, 0, sizeof entry);
    if (ibv_query_gid_ex(port->context, (uint32_t)port->port, 0, &entry, 0) == 0)
        snprintf(port->network, sizeof port->network, "IB subnet %016llx",
                 (unsigned long long)be64toh(entry.gid.global.subnet_prefix));
    /* a global header, as between subnets */
    if (gid_index >= 0 || (port->port_attr.flags & IBV_QPF_GRH_REQUIRED)) {
        if (verbs_gid_choose(port, gid_index < 0 ? 0 : gid_index, why, len))
            return -1;
        port->gid_class = 0;
        return 0;
    }
    if (port->port_attr.lid == 0) {
        snprintf(why, len, "it has no LID: is a subnet manager running?");
        return -1;
    }
    snprintf(port->address, sizeof port->address, "lid %u", port->port_attr.lid);
    return 0;
}

static int search_add(device_search *search, const verbs_port *port) {
    if (search->n == search->room) {
        int room = search->room ? 2 * search->room : 8;
        verbs_port *ports = realloc(search->ports, (size_t)room * sizeof *ports);
        if (!ports)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a list of %d RDMA ports", room);
        search->ports = ports;
        search->room = room;
    }
    search->ports[search->n++] = *port;
    return 0;
}

static void search_refuse(device_search *search, const char *name, const char *why) {
    char line[192];
    snprintf(line, sizeof line, "%s: %s", name, why);
    mpix_log(MPIX_LOG_INFO, "verbs: %s is not used: %s", name, why);
    text_append(search->refused, sizeof search->refused, "; ", line);
}

/* Each usable port gets a context of its own, so that one port is closed without
 * regard to another. */
static int search_device(device_search *search, struct ibv_device *device, const device_name *names,
                         int nnames, int gid_index) {
    int kind = 0, ports = 1;

    if (device->transport_type != IBV_TRANSPORT_IB) {
        search_refuse(
            search, ibv_get_device_name(device),
            "its protocol is not InfiniBand's (iWARP and others have no such connections)");
        return 0;
    }
    for (int p = 1; p <= ports && !kind; p++) {
        verbs_port port = {.port = p, .numa = device_numa(device)};
        char why[128] = "";
        int err;

        snprintf(port.name, sizeof port.name, "%.36s:%d", ibv_get_device_name(device), p);
        if (!names_want(names, nnames, ibv_get_device_name(device), p) && p > 1)
            continue;
        errno = 0;
        port.context = ibv_open_device(device);
        if (!port.context) {
            err = errno;
            snprintf(why, sizeof why, "it can't be opened: %s%s",
                     err ? strerror(err) : "unknown reason",
                     err == EACCES || err == EPERM ? " (access to /dev/infiniband)" : "");
            search_refuse(search, port.name, why);
            break;
        }
        err = ibv_query_device(port.context, &port.attr);
        if (err) {
            snprintf(why, sizeof why, "its attributes can't be read: %s", strerror(err));
            search_refuse(search, port.name, why);
            ibv_close_device(port.context);
            break;
        }
        ports = port.attr.phys_port_cnt;
        if (!names_want(names, nnames, ibv_get_device_name(device), p)) {
            ibv_close_device(port.context);
            continue;
        }
        if (port_look(&port, gid_index, why, sizeof why)) {
            search_refuse(search, port.name, why);
            ibv_close_device(port.context);
            continue;
        }
        mpix_log(MPIX_LOG_DEBUG, "verbs: %s can be used: %s, %.0f Gbit/s, NUMA node %d", port.name,
                 port.address, port.gbps, port.numa);
        kind = search_add(search, &port);
        if (kind)
            ibv_close_device(port.context);
    }
    return kind;
}

static int search_all(device_search *search, const device_name *names, int nnames, int gid_index) {
    int n = 0, kind = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    int err = list ? 0 : errno;

    for (int i = 0; i < n && list && !kind; i++) {
        text_append(search->present, sizeof search->present, ", ", ibv_get_device_name(list[i]));
        if (names_want(names, nnames, ibv_get_device_name(list[i]), 0))
            kind = search_device(search, list[i], names, nnames, gid_index);
    }
    if (list)
        ibv_free_device_list(list);
    if (!kind && n == 0)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, NULL,
            "transport verbs: no RDMA device on this host%s%s; load its driver, or add soft-RoCE: "
            "`rdma link add rxe0 type rxe netdev eth0`",
            err ? ": " : "", err ? strerror(err) : "");
    return kind;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static int port_beats(const verbs_port *a, const verbs_port *b) {
    return a->gid_class != b->gid_class ? a->gid_class < b->gid_class : a->gbps > b->gbps;
}

static void take(verbs_net *net, device_search *search, int index) {
    net->devices[net->ndevices++].port = search->ports[index];
    search->ports[index].context = NULL; /* not to be closed */
}

/* From one address of a host to another of the same host packets take a way inside it that devices
 * do not know; so ranks that talk to each other over the network within a host (on request: usually
 * they map their memory) stay on one device. */
static int spread_of(const verbs_net *net, const unsigned char *want) {
    const mpix_boot *boot = net->boot;

    for (int p = 0; p < boot->size; p++)
        if (want[p] && strcmp(boot->hostnames[p], boot->hostnames[boot->rank]) == 0)
            return 0;
    return boot->local_rank;
}

static void choose_best(verbs_net *net, device_search *search, const unsigned char *want) {
    int numa = mpix_topo_get()->numa_local, first = 0, alike = 0, near = 0, elsewhere = 0, pick;
    /* 1: alike and on the network of the first, 2: on this rank's node as well */
    char *group = calloc((size_t)search->n, 1);

    for (int i = 1; i < search->n; i++)
        if (port_beats(&search->ports[i], &search->ports[first]))
            first = i;
    for (int i = 0; i < search->n && group; i++) {
        const verbs_port *port = &search->ports[i];
        if (port_beats(&search->ports[first], port))
            continue;
        if (strcmp(port->network, search->ports[first].network) != 0) {
            elsewhere++;
            continue;
        }
        group[i] = numa >= 0 && port->numa == numa ? 2 : 1;
        alike++;
        near += group[i] == 2;
    }
    pick = alike ? spread_of(net, want) % (near ? near : alike) : 0;
    for (int i = 0; i < search->n && group && net->ndevices == 0; i++)
        if (group[i] && (!near || group[i] == 2) && pick-- == 0)
            take(net, search, i);
    if (net->ndevices == 0)
        take(net, search, first); /* no memory for the finer points */
    free(group);
    if (elsewhere)
        mpix_log(MPIX_LOG_INFO,
                 "verbs: %d ports as good as %s are on other networks than %s: to use them give "
                 "net_devices",
                 elsewhere, net->devices[0].port.name, net->devices[0].port.network);
    snprintf(net->net.caps.why, sizeof net->net.caps.why, "best of %d usable, %d alike", search->n,
             near ? near : alike);
}

static int choose_named(verbs_net *net, device_search *search, const device_name *names,
                        int nnames) {
    for (int k = 0; k < nnames; k++) {
        int found = -1;
        for (int i = 0; i < search->n && found < 0; i++) {
            const verbs_port *port = &search->ports[i];
            size_t len = strlen(names[k].name);
            if (port->context && strncmp(port->name, names[k].name, len) == 0 &&
                port->name[len] == ':' && (!names[k].port || names[k].port == port->port))
                found = i;
        }
        if (found < 0)
            return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_net_devices",
                             "net_devices: %s can't be used (%s); devices of this host: %s",
                             names[k].name,
                             search->refused[0] ? search->refused : "it is not there",
                             search->present);
        if (net->ndevices == net->nlanes) {
            mpix_log(
                MPIX_LOG_WARN,
                "verbs: net_devices names %d devices, but there are only %d lanes: %s is not used",
                nnames, net->nlanes, search->ports[found].name);
            break;
        }
        take(net, search, found);
    }
    snprintf(net->net.caps.why, sizeof net->net.caps.why, "named by net_devices");
    return 0;
}

int verbs_devices_choose(verbs_net *net, const mpix_params *params, const unsigned char *want) {
    device_name names[VERBS_MAX_DEVICES];
    device_search search = {0};
    int nnames = 0, kind = names_parse(params->net_devices, names, &nnames);

    if (!kind)
        kind = search_all(&search, names, nnames, params->gid_index);
    if (!kind && nnames)
        kind = choose_named(net, &search, names, nnames);
    else if (!kind && search.n)
        choose_best(net, &search, want);
    else if (!kind)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL, "transport verbs: no usable port (%s)",
                         search.refused);
    for (int i = 0; i < search.n; i++)
        if (search.ports[i].context)
            ibv_close_device(search.ports[i].context);
    free(search.ports);
    for (int d = 0; d < net->ndevices && !kind; d++) {
        const verbs_port *port = &net->devices[d].port;
        text_append(net->net.caps.device, sizeof net->net.caps.device, ",", port->name);
        text_append(net->net.caps.address, sizeof net->net.caps.address, ", ", port->address);
        mpix_log(MPIX_LOG_INFO,
                 "verbs: uses %s, %s, network %s, %.0f Gbit/s, MTU %d, NUMA node %d (%s)",
                 port->name, port->address, port->network[0] ? port->network : "unknown",
                 port->gbps, verbs_mtu_bytes(port->port_attr.active_mtu), port->numa,
                 net->net.caps.why);
    }
    return kind;
}
