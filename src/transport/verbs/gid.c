/*
 * gid.c - which GID of an Ethernet port is used, and how it is written for people.
 *
 * RoCE v2 packets are UDP over IP, so a v2 GID works wherever its IP address does; v1 never leaves
 * the Ethernet segment. A link-local address (169.254/16, fe80::/10) is not routed either, and two
 * hosts' link-local networks need not be one. IPv4 comes before IPv6 as that is what such networks
 * are configured with.
 */
#include "config.h"

#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GID_V2_IPV4, GID_V2_IPV6, GID_V2_LOCAL, GID_V1, GID_UNUSABLE };

static int gid_is_ipv4(const union ibv_gid *gid) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

static int gid_is_zero(const union ibv_gid *gid) {
    static const union ibv_gid zero;
    return memcmp(gid, &zero, sizeof zero) == 0;
}

static int gid_is_local(const union ibv_gid *gid) {
    if (gid_is_ipv4(gid))
        return (gid->raw[12] == 169 && gid->raw[13] == 254) || gid->raw[12] == 127;
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static int gid_class(const struct ibv_gid_entry *entry) {
    if (gid_is_zero(&entry->gid))
        return GID_UNUSABLE;
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
        return GID_V1;
    if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
        return GID_UNUSABLE;
    if (gid_is_local(&entry->gid))
        return GID_V2_LOCAL;
    return gid_is_ipv4(&entry->gid) ? GID_V2_IPV4 : GID_V2_IPV6;
}

void verbs_gid_text(const union ibv_gid *gid, char *buf, size_t len) {
    if (gid_is_ipv4(gid))
        inet_ntop(AF_INET, gid->raw + 12, buf, (socklen_t)len);
    else
        inet_ntop(AF_INET6, gid->raw, buf, (socklen_t)len);
}

/* Ones at the beginning of the netmask of the interface that has this address, or -1. */
static int gid_prefix(const struct ifaddrs *list, int family, const void *address, size_t bytes) {
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        size_t at = family == AF_INET ? offsetof(struct sockaddr_in, sin_addr)
                                      : offsetof(struct sockaddr_in6, sin6_addr);
        const uint8_t *mask;
        int ones = 0;

        if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != family ||
            memcmp((const char *)i->ifa_addr + at, address, bytes) != 0)
            continue;
        mask = (const uint8_t *)i->ifa_netmask + at;
        while (ones < (int)bytes * 8 && (mask[ones / 8] & (0x80 >> ones % 8)))
            ones++;
        return ones;
    }
    return -1;
}

/*
 * The network of an address, as text. Networks with room for two hosts at most are links to a
 * router, as in routed fabrics with a network per cable: what hangs on such links reaches each
 * other by routing, or nothing would reach anything, so all of these are one network here.
 */
void verbs_gid_network(const union ibv_gid *gid, char *buf, size_t len) {
    int v4 = gid_is_ipv4(gid), bits = v4 ? 32 : 128, prefix;
    size_t first = v4 ? 12 : 0, bytes = v4 ? 4 : 16, used;
    union ibv_gid network = *gid;
    struct ifaddrs *list = NULL;

    prefix = getifaddrs(&list) == 0
                 ? gid_prefix(list, v4 ? AF_INET : AF_INET6, gid->raw + first, bytes)
                 : -1;
    if (list)
        freeifaddrs(list);
    if (prefix < 0)
        prefix = v4 ? 24 : 64; /* the usual */
    if (prefix >= bits - 2) {
        snprintf(buf, len, "routed IPv%d", v4 ? 4 : 6);
        return;
    }
    for (int i = prefix; i < bits; i++)
        network.raw[first + (size_t)i / 8] &= (uint8_t) ~(0x80 >> i % 8);
    verbs_gid_text(&network, buf, len);
    used = strlen(buf);
    snprintf(buf + used, len - used, "/%d", prefix);
}

static void gid_take(verbs_port *port, const struct ibv_gid_entry *entry, int class) {
    char text[INET6_ADDRSTRLEN];

    port->gid = entry->gid;
    port->gid_index = (int)entry->gid_index;
    port->gid_class = class;
    verbs_gid_text(&entry->gid, text, sizeof text);
    snprintf(port->address, sizeof port->address, "gid[%d] %s%s", port->gid_index, text,
             class == GID_V1 ? " RoCEv1" : "");
}

/* The one that the parameter names, whatever it is, as long as it is there. */
static int gid_forced(verbs_port *port, int index, char *why, size_t len) {
    struct ibv_gid_entry entry;
    int err;

    memset(&entry, 0, sizeof entry);
    err = ibv_query_gid_ex(port->context, (uint32_t)port->port, (uint32_t)index, &entry, 0);
    if (err || gid_is_zero(&entry.gid)) {
        snprintf(why, len, "it has no GID %d (parameter gid_index)", index);
        return -1;
    }
    entry.gid_index = (uint32_t)index;
    gid_take(port, &entry, gid_class(&entry));
    return 0;
}

int verbs_gid_choose(verbs_port *port, int forced, char *why, size_t len) {
    int best = GID_UNUSABLE;
    size_t room = 0;
    ssize_t n;
    struct ibv_gid_entry *table;

    if (forced >= 0)
        return gid_forced(port, forced, why, len);
    for (int p = 1; p <= port->attr.phys_port_cnt; p++) {
        struct ibv_port_attr attr; /* the table is the device's, all its ports in one */
        if (ibv_query_port(port->context, (uint8_t)p, &attr) == 0)
            room += (size_t)attr.gid_tbl_len;
    }
    table = room ? calloc(room, sizeof *table) : NULL;
    if (!table) {
        snprintf(why, len, "its GID table is empty");
        return -1;
    }
    n = ibv_query_gid_table(port->context, table, room, 0);
    if (n < 0)
        snprintf(why, len, "its GID table can't be read: %s", strerror((int)-n));
    for (ssize_t i = 0; i < n; i++) {
        int class = gid_class(&table[i]);
        /* what a queue pair can name */
        if ((int)table[i].port_num == port->port && class < best &&
            table[i].gid_index <= UINT8_MAX) {
            best = class;
            gid_take(port, &table[i], class);
        }
    }
    free(table);
    if (best == GID_UNUSABLE && n >= 0)
        snprintf(why, len,
                 "it has no usable GID: has its network interface an IP address and is it up?");
    return best == GID_UNUSABLE ? -1 : 0;
}
