/* peer.c - MPIX_Ep_get_peer: how a rank is reached, and what was sent it over the network. */
#include "config.h"

#include "coll/ep.h"

#include <stdio.h>
#include <string.h>

static void peer_proxied(mpix_ep *ep, int rank, MPIX_Ep_peer *peer) {
    const mpix_proxy *proxy = ep->remote->proxy;
    const mpix_net_caps *caps = mpix_proxy_caps(proxy);
    uint64_t messages, bytes;
    mpix_proxy_counts(proxy, rank, &messages, &bytes);
    peer->reach = MPIX_EP_REACH_PROXIED;
    peer->lanes = ep->remote->lanes;
    peer->proxy_threads = mpix_proxy_threads(proxy);
    peer->counted = mpix_proxy_counted(proxy);
    peer->mtu = caps->mtu;
    peer->messages = (MPI_Count)messages;
    peer->bytes = (MPI_Count)bytes;
    peer->memory = (MPI_Count)mpix_proxy_memory(proxy, rank);
    snprintf(peer->transport, sizeof peer->transport, "%s", mpix_proxy_net_name(proxy));
    snprintf(peer->device, sizeof peer->device, "%s", caps->device);
    snprintf(peer->address, sizeof peer->address, "%s", caps->address);
    const char *memory = NULL, *apart = mpix_boot_apart(ep->boot, rank);
    if (ep->path->peer)
        ep->path->peer(ep, peer, &memory);
    /* What surprises comes first; another machine does not, nor does what the caller asked for. */
    int apart_by = ep->boot->apart[rank],
        usual = apart_by == MPIX_APART_MACHINE || apart_by == MPIX_APART_SPLIT;
    int used = usual ? 0 : snprintf(peer->why, sizeof peer->why, "%.90s; ", apart);
    snprintf(peer->why + used, sizeof peer->why - (size_t)used, "%s%.110s",
             memory ? "rows through " : "", memory ? memory : caps->why);
}

int PMPIX_Ep_get_peer(MPIX_Ep ep, int rank, MPIX_Ep_peer *peer) {
    if (!mpix_live_check(ep, MPIX_LIVE_EP))
        return mpix_boot_raise(NULL, mpix_live_need(ep, MPIX_LIVE_EP, "ep", "ep is NULL or freed"));
    int kind = 0;
    if (!peer)
        kind = mpix_fail(MPIX_ERRK_ARG, "peer", "peer is NULL");
    else if (peer->struct_size != sizeof *peer)
        kind = mpix_fail(MPIX_ERRK_ARG, "peer.struct_size",
                         "peer.struct_size = %zu, this library knows %zu", peer->struct_size,
                         sizeof *peer);
    else if (rank < 0 || rank >= ep->size)
        kind = mpix_fail(MPIX_ERRK_ARG, "rank", "rank = %d is not in [0, %d)", rank, ep->size);
    if (kind)
        return mpix_boot_raise(ep->boot, kind);
    *peer = (MPIX_Ep_peer){.struct_size = sizeof *peer, .lanes = 1};
    if (mpix_ep_is_remote(ep, rank)) {
        peer_proxied(ep, rank, peer);
    } else {
        peer->reach = rank == ep->rank ? MPIX_EP_REACH_SELF : MPIX_EP_REACH_MAPPED;
        snprintf(peer->transport, sizeof peer->transport, "%s", rank == ep->rank ? "self" : "shm");
        snprintf(peer->why, sizeof peer->why, "%s",
                 rank == ep->rank ? "own memory"
                 : ep->stage->by_socket
                     ? "same host, memory mapped by a descriptor sent through a socket"
                     : "same host, memory mapped through /proc");
    }
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_get_peer);
