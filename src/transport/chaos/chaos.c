/* chaos.c - the transport chaos: opening it over another, memory, which is the other's, and
 * failures on creation. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/chaos/chaos.h"

extern const mpix_net_ops mpix_net_chaos;

static void chaos_shut(mpix_net *net) {
    chaos_net *c = (chaos_net *)net;

    if (c->inner->ops->shut)
        c->inner->ops->shut(c->inner);
}

static int chaos_close(mpix_net *net) {
    chaos_net *c = (chaos_net *)net;
    int kind = c->inner ? c->inner->ops->close(c->inner) : 0;

    for (int i = 0; c->lanes && i < c->size * c->params.lanes; i++) {
        free(c->lanes[i].ring);
        free(c->lanes[i].flight);
    }
    free(c->lanes);
    free(c);
    return kind;
}

/* What the inner net can do, less what chaos takes away. Again after each connection, which
 * may lower it. */
static void chaos_caps(chaos_net *c) {
    mpix_net_caps *caps = &c->net.caps;

    *caps = c->inner->caps;
    caps->posted_lands = 0; /* polls let go of what is held back */
    if (caps->depth > CHAOS_DEPTH)
        caps->depth = CHAOS_DEPTH;
    if (c->reorder) {
        caps->ordered = 0;
        snprintf(caps->why, sizeof caps->why,
                 "chaos_reorder=yes lets writes of a lane land in any order");
    }
}

/* A failure that was asked for, of one of the calls that set the net up. */
static int chaos_refuses(const chaos_net *c, int call, const char *what) {
    if (!c->chosen || c->params.chaos_fail_call != call)
        return 0;
    return mpix_fail(MPIX_ERRK_TRANSPORT, NULL,
                     "chaos: %s fails, as the parameter chaos_fail_call asks", what);
}

static int chaos_lanes(chaos_net *c, const unsigned char *want) {
    c->lanes = calloc((size_t)c->size * (size_t)c->params.lanes, sizeof *c->lanes);
    if (!c->lanes)
        return -1;
    for (int i = 0; i < c->size * c->params.lanes; i++) {
        chaos_lane *lane = &c->lanes[i];
        if (!want[i / c->params.lanes])
            continue;
        lane->ring = calloc(CHAOS_DEPTH, sizeof *lane->ring);
        lane->flight = calloc(CHAOS_FLIGHT, sizeof *lane->flight);
        if (!lane->ring || !lane->flight)
            return -1;
    }
    return 0;
}

static int chaos_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                      mpix_net **net) {
    const char *colon = strchr(params->transport, ':');
    const mpix_net_ops *inner = colon ? mpix_net_find(colon + 1) : NULL;
    chaos_net *c;
    int kind;

    if (!inner)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "mpix_ep_transport",
            "transport %s: chaos stands over another, \"chaos:NAME\"; this build has %s",
            params->transport, mpix_net_names(1));
    if (params->chaos_stall_thread && params->chaos_stall_at && !params->chaos_stall_ms)
        return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_chaos_stall_ms",
                         "mpix_ep_chaos_stall_thread=yes needs mpix_ep_chaos_stall_ms > 0: a "
                         "thread that sleeps for good can't be ended");
    c = calloc(1, sizeof *c);
    if (!c)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the transport chaos");
    c->size = boot->size;
    c->rank = boot->rank;
    c->params = *params;
    snprintf(c->params.transport, sizeof c->params.transport, "%s", colon + 1);
    c->seed = (uint64_t)params->chaos_seed;
    c->reorder = params->chaos_reorder;
    c->pieces = params->chaos_pieces;
    c->delay_ns = (uint64_t)params->chaos_delay_us * 1000u;
    c->chosen = params->chaos_rank < 0 || params->chaos_rank == boot->rank;
    kind = chaos_lanes(c, want)
               ? mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the lanes of the transport chaos")
               : chaos_refuses(c, MPIX_CHAOS_OPEN, "open");
    if (!kind)
        kind = inner->open(boot, &c->params, want, &c->inner);
    if (kind) {
        (void)chaos_close(&c->net);
        return kind;
    }
    c->ops = mpix_net_chaos;
    c->ops.address_bytes = inner->address_bytes;
    c->ops.key_bytes = inner->key_bytes;
    c->net.ops = &c->ops;
    chaos_caps(c);
    *net = &c->net;
    return 0;
}

static int chaos_address(mpix_net *net, int peer, void *blob) {
    chaos_net *c = (chaos_net *)net;
    int kind = chaos_refuses(c, MPIX_CHAOS_ADDRESS, "address");

    return kind ? kind : c->inner->ops->address(c->inner, peer, blob);
}

static int chaos_connect(mpix_net *net, int peer, const void *blob) {
    chaos_net *c = (chaos_net *)net;
    int kind = chaos_refuses(c, MPIX_CHAOS_CONNECT, "connect");

    if (!kind)
        kind = c->inner->ops->connect(c->inner, peer, blob);
    if (!kind)
        chaos_caps(c);
    return kind;
}

static int chaos_mem_reg(mpix_net *net, void *base, size_t bytes, mpix_net_mem **mem) {
    chaos_net *c = (chaos_net *)net;
    int kind = chaos_refuses(c, MPIX_CHAOS_REGISTER, "mem_reg");

    return kind ? kind : c->inner->ops->mem_reg(c->inner, base, bytes, mem);
}

static void chaos_mem_dereg(mpix_net *net, mpix_net_mem *mem) {
    chaos_net *c = (chaos_net *)net;

    c->inner->ops->mem_dereg(c->inner, mem);
}

static void chaos_mem_foreign(mpix_net *net, mpix_net_mem *mem) {
    chaos_net *c = (chaos_net *)net;

    if (c->inner->ops->mem_foreign)
        c->inner->ops->mem_foreign(c->inner, mem);
}

static void chaos_mem_key(mpix_net *net, const mpix_net_mem *mem, void *blob) {
    chaos_net *c = (chaos_net *)net;

    c->inner->ops->mem_key(c->inner, mem, blob);
}

static int chaos_rmem_open(mpix_net *net, int peer, const void *blob, mpix_net_rmem **rmem) {
    chaos_net *c = (chaos_net *)net;
    int kind = chaos_refuses(c, MPIX_CHAOS_KEY, "rmem_open");

    return kind ? kind : c->inner->ops->rmem_open(c->inner, peer, blob, rmem);
}

static void chaos_rmem_close(mpix_net *net, mpix_net_rmem *rmem) {
    chaos_net *c = (chaos_net *)net;

    c->inner->ops->rmem_close(c->inner, rmem);
}

/* The sizes of blobs are the inner net's: open fills them in a copy. */
const mpix_net_ops mpix_net_chaos = {
    .name = "chaos",
    .open = chaos_open,
    .shut = chaos_shut,
    .close = chaos_close,
    .address = chaos_address,
    .connect = chaos_connect,
    .mem_reg = chaos_mem_reg,
    .mem_dereg = chaos_mem_dereg,
    .mem_foreign = chaos_mem_foreign,
    .mem_key = chaos_mem_key,
    .rmem_open = chaos_rmem_open,
    .rmem_close = chaos_rmem_close,
    .post = chaos_post,
    .poll = chaos_poll,
    .poll_arrivals = chaos_poll_arrivals,
    .arm = chaos_arm,
    .ack = chaos_ack,
};
