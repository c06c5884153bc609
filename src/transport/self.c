/*
 * self.c - the transport of a rank to itself: its own memory.
 */
#include "config.h"

#include <stdio.h>

#include "transport/transport.h"

static int self_probe(const mpix_boot *boot, int peer, char *why, size_t len) {
    if (peer == boot->rank)
        return 1;
    snprintf(why, len, "another rank");
    return 0;
}

static int self_win_map(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer,
                        const void *blob) {
    (void)boot;
    (void)params;
    (void)blob;
    win->peer[peer] = win->base;
    return 0;
}

/* The memory itself goes with the window. */
static void self_win_unmap(mpix_win *win, int peer) { win->peer[peer] = NULL; }

const mpix_transport_ops mpix_transport_self = {
    .name = "self",
    .reach = MPIX_REACH_SELF,
    .probe = self_probe,
    .win_map = self_win_map,
    .win_unmap = self_win_unmap,
};
