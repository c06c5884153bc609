/*
 * segment.c - the segments of libucp's TCP: the longest message that goes in one piece, and the
 * longest that a process takes.
 *
 * libucp takes for granted that all processes have the same: what is longer than the receiver's
 * segment aborts the receiver. So each rank tells its own in its address. The values in force, from
 * variables and files, are read where libucp reads them, in libuct.
 *
 * libucp's default of 8 KiB costs a system call each (two namespaces of a host, puts of 1 MiB: 0.9
 * GB/s, with 256 KiB 3.2), so this library's contexts get larger ones, unless the user has chosen
 * some. ucp_config_modify passes a name that libucp does not know on to the transports'
 * configurations: it is TX_SEG_SIZE up to UCX 1.16, which no other transport has, and
 * TCP_TX_SEG_SIZE from 1.17 on. Which one is tried on a configuration that is thrown away.
 */
#include "config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

#include "transport/ucx/ucx.h"

/* Libucp's defaults, as it prints them. */
static const char *const tx_default = "8K", *const rx_default = "64K";

static uint64_t segment_bytes(const char *text) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);

    if (end == text) /* "inf" */
        return UINT32_MAX;
    switch (toupper((unsigned char)*end)) {
    case 'K': n <<= 10; break;
    case 'M': n <<= 20; break;
    case 'G': n <<= 30; break;
    default: break;
    }
    return n < UINT32_MAX ? n : UINT32_MAX;
}

static uint64_t segment_get(uct_iface_config_t *config, const char *name, char *text, size_t len) {
    text[0] = '\0';
    return uct_config_get(config, name, text, len) == UCS_OK ? segment_bytes(text) : 0;
}

/* The name under which this version knows a field; what it sets is there when it is
 * asked for again. */
static const char *segment_enlarge(uct_iface_config_t *config, const char *const names[2]) {
    char text[64];

    for (int i = 0; i < 2; i++)
        if (uct_config_modify(config, names[i], UCX_SEGMENT) == UCS_OK &&
            segment_get(config, names[0], text, sizeof text) == segment_bytes(UCX_SEGMENT))
            return names[i];
    return NULL;
}

static void segments_of(uct_iface_config_t *config, ucx_segments *segments) {
    static const char *const tx[] = {"TX_SEG_SIZE", "TCP_TX_SEG_SIZE"}, *const rx[] = {
                                                                            "RX_SEG_SIZE",
                                                                            "TCP_RX_SEG_SIZE"};
    char tx_text[64], rx_text[64];

    segments->tx = segment_get(config, tx[0], tx_text, sizeof tx_text);
    segments->rx = segment_get(config, rx[0], rx_text, sizeof rx_text);
    if (strcasecmp(tx_text, tx_default) != 0 || strcasecmp(rx_text, rx_default) != 0)
        return;
    segments->tx_key = segment_enlarge(config, tx);
    segments->rx_key = segment_enlarge(config, rx);
}

static int segments_of_component(uct_component_h component, ucx_segments *segments) {
    uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
    uct_md_config_t *md_config;
    uct_iface_config_t *config;
    ucs_status_t status;
    uct_md_h md;

    if (uct_component_query(component, &attr) != UCS_OK || strcmp(attr.name, "tcp") != 0 ||
        uct_md_config_read(component, NULL, NULL, &md_config) != UCS_OK)
        return 0;
    status = uct_md_open(component, "tcp", md_config, &md);
    uct_config_release(md_config);
    if (status != UCS_OK)
        return 0;
    if (uct_md_iface_config_read(md, "tcp", NULL, NULL, &config) == UCS_OK) {
        segments_of(config, segments);
        uct_config_release(config);
    }
    uct_md_close(md);
    return 1;
}

void ucx_segments_read(ucx_segments *segments) {
    uct_component_h *components;
    unsigned n;

    *segments = (ucx_segments){0};
    if (uct_query_components(&components, &n) != UCS_OK)
        return;
    for (unsigned i = 0; i < n && !segments_of_component(components[i], segments); i++)
        ;
    uct_release_component_list(components);
}

ucs_status_t ucx_segments_enlarge(ucx_segments *segments, ucp_config_t *config) {
    ucs_status_t status = ucp_config_modify(config, segments->tx_key, UCX_SEGMENT);

    if (status == UCS_OK)
        status = ucp_config_modify(config, segments->rx_key, UCX_SEGMENT);
    if (status == UCS_OK)
        segments->tx = segments->rx = segment_bytes(UCX_SEGMENT);
    return status;
}
