/*
 * mapped.c - the transport between ranks of one host: the peer's memory is mapped, and written and
 * read with plain stores and loads.
 */
#include "config.h"

#include <stdio.h>

#include "mem/mem_internal.h"
#include "transport/transport.h"

/* Ranks of one host have found each other (boot/place.c). That the system lets this pair map memory
 * shows when a window is mapped. */
static int mapped_probe(const mpix_boot *boot, int peer, char *why, size_t len) {
    if (boot->host_of[peer] == boot->host_of[boot->rank])
        return 1;
    const char *apart = mpix_boot_apart(boot, peer);
    snprintf(why, len, "they are on different hosts%s%s", apart[0] ? ": " : "", apart);
    return 0;
}

static int mapped_win_map(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer,
                          const void *blob) {
    const mpix_win_blob *b = blob;

    if (b->bytes == 0)
        return 0; /* nothing to map: peer[] stays NULL */
    return mpix_win_map_fd(win, params, peer, boot->hostnames[peer], b);
}

static void mapped_win_unmap(mpix_win *win, int peer) { mpix_win_unmap_peer(win, peer); }

const mpix_transport_ops mpix_transport_mapped = {
    .name = "shm", /* the name in MPIX_Ep_peer */
    .reach = MPIX_REACH_MAPPED,
    .probe = mapped_probe,
    .win_map = mapped_win_map,
    .win_unmap = mapped_win_unmap,
};
