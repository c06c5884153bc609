/*
 * transport.h - ways to reach a peer, one const table each. A transport is chosen per pair of ranks
 * at run time: the first in mpix_transports whose probe accepts the pair.
 *
 * This version has the mapped ones: `self` and `mapped`. Their share of a window is an export blob,
 * exchanged over MPI, and a mapping.
 */
#ifndef MPIX_TRANSPORT_H
#define MPIX_TRANSPORT_H
#include "mem/window.h"

enum { MPIX_REACH_NONE, MPIX_REACH_SELF, MPIX_REACH_MAPPED, MPIX_REACH_PROXIED };

struct mpix_transport_ops {
    const char *name;
    int reach;
    /* Whether this transport can reach peer; if not, why (text). Local. */
    int (*probe)(const mpix_boot *boot, int peer, char *why, size_t len);
    /* Maps the peer's memory described by blob (an mpix_win_blob). Sets
     * win->peer[peer] and friends. */
    int (*win_map)(mpix_boot *boot, const mpix_params *params, mpix_win *win, int peer,
                   const void *blob);
    void (*win_unmap)(mpix_win *win, int peer);
};

extern const mpix_transport_ops mpix_transport_self, mpix_transport_mapped, mpix_transport_proxied;
extern const mpix_transport_ops *const mpix_transports[]; /* NULL at the end */

const char *mpix_reach_name(int reach);
/* The transport for a pair, or NULL with the reasons of all that refused in why. Local. */
const mpix_transport_ops *mpix_transport_choose(const mpix_boot *boot, int peer, char *why,
                                                size_t len);
#endif
