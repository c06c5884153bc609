/*
 * proxied.c - stands in the list of transports for peers that the proxy reaches: there is nothing
 * to map. Which network carries them is the proxy's matter (transport/net.h).
 */
#include "config.h"

#include <stdio.h>

#include "transport/transport.h"

static int proxied_probe(const mpix_boot *boot, int peer, char *why, size_t len) {
    (void)peer;
    if (boot->proxied)
        return 1;
    snprintf(why, len, "this object reaches no ranks of other hosts");
    return 0;
}

static int proxied_win_map(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer,
                           const void *blob) {
    (void)boot, (void)params, (void)win, (void)peer, (void)blob;
    return 0;
}

static void proxied_win_unmap(mpix_win *win, int peer) { (void)win, (void)peer; }

const mpix_transport_ops mpix_transport_proxied = {
    .name = "proxy",
    .reach = MPIX_REACH_PROXIED,
    .probe = proxied_probe,
    .win_map = proxied_win_map,
    .win_unmap = proxied_win_unmap,
};
