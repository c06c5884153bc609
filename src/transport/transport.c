/*
 * transport.c - the transports in order of preference, and the choice for a pair of ranks.
 */
#include "config.h"

#include "transport/transport.h"

#include <stdio.h>

const mpix_transport_ops *const mpix_transports[] = {&mpix_transport_self, &mpix_transport_mapped,
                                                     &mpix_transport_proxied, NULL};

const char *mpix_reach_name(int reach) {
    switch (reach) {
    case MPIX_REACH_SELF: return "self";
    case MPIX_REACH_MAPPED: return "mapped";
    case MPIX_REACH_PROXIED: return "proxied";
    default: return "none";
    }
}

const mpix_transport_ops *mpix_transport_choose(const mpix_boot *boot, int peer, char *why,
                                                size_t len) {
    size_t used = 0;

    if (len)
        why[0] = '\0';
    for (const mpix_transport_ops *const *ops = mpix_transports; *ops; ops++) {
        char reason[128] = "";
        if ((*ops)->probe(boot, peer, reason, sizeof reason)) {
            if (len)
                why[0] = '\0';
            return *ops;
        }
        if (used < len)
            used += (size_t)snprintf(why + used, len - used, "%s%s: %s", used ? "; " : "",
                                     (*ops)->name, reason);
    }
    return NULL;
}
