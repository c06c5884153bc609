/*
 * net_null.c - the transport that completes everything and moves nothing: what the rest costs, for
 * benchmarks and unit tests.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/net.h"

typedef struct null_net {
    mpix_net net;
    int size;
    uint32_t *pending; /* [size][lanes] */
    int *dirty;        /* lanes with pending ones */
    int ndirty;
    int fd; /* never written */
} null_net;

struct mpix_net_mem {
    void *base;
};

struct mpix_net_rmem {
    int peer;
};

static int null_close(mpix_net *net) {
    null_net *n = (null_net *)net;

    if (n->fd >= 0)
        close(n->fd);
    free(n->pending);
    free(n->dirty);
    free(n);
    return 0;
}

extern const mpix_net_ops mpix_net_null;

static int null_open(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                     mpix_net **net) {
    size_t lanes = (size_t)boot->size * (size_t)params->lanes;
    null_net *n = calloc(1, sizeof *n);

    (void)want; /* any peer is as good as another */
    if (n) {
        n->pending = calloc(lanes, sizeof *n->pending);
        n->dirty = calloc(lanes, sizeof *n->dirty);
    }
    if (!n || !n->pending || !n->dirty) {
        if (n) {
            n->fd = -1;
            null_close(&n->net);
        }
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the transport null");
    }
    n->size = boot->size;
    n->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->fd < 0) {
        int err = errno;
        null_close(&n->net);
        return mpix_fail_sys(MPIX_ERRK_NO_MEM, err, "eventfd of the transport null");
    }
    n->net.ops = &mpix_net_null;
    n->net.caps = (mpix_net_caps){.ordered = 1,
                                  .posted_lands = 1,
                                  .counted = 1,
                                  .lanes = params->lanes,
                                  .depth = 1 << 20,
                                  .max_counter = 1u << 31,
                                  .max_op = (uint64_t)1 << 30,
                                  .device = "none",
                                  .address = "none",
                                  .why = "nothing is moved"};
    *net = &n->net;
    return 0;
}

static int null_address(mpix_net *net, int peer, void *blob) {
    (void)net, (void)peer;
    *(char *)blob = 0;
    return 0;
}

static int null_connect(mpix_net *net, int peer, const void *blob) {
    (void)net, (void)peer, (void)blob;
    return 0;
}

static int null_mem_reg(mpix_net *net, void *base, size_t bytes, mpix_net_mem **mem) {
    (void)net, (void)bytes;
    *mem = malloc(sizeof **mem);
    if (!*mem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    (*mem)->base = base;
    return 0;
}

static void null_mem_dereg(mpix_net *net, mpix_net_mem *mem) {
    (void)net;
    free(mem);
}

static void null_mem_key(mpix_net *net, const mpix_net_mem *mem, void *blob) {
    (void)net, (void)mem;
    *(char *)blob = 0;
}

static int null_rmem_open(mpix_net *net, int peer, const void *blob, mpix_net_rmem **rmem) {
    (void)net, (void)blob;
    *rmem = malloc(sizeof **rmem);
    if (!*rmem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a key");
    (*rmem)->peer = peer;
    return 0;
}

static void null_rmem_close(mpix_net *net, mpix_net_rmem *rmem) {
    (void)net;
    free(rmem);
}

static int null_post(mpix_net *net, const mpix_net_op *ops, int count) {
    null_net *n = (null_net *)net;

    for (int i = 0; i < count; i++) {
        int lane = ops[i].peer * net->caps.lanes + ops[i].lane;
        if (n->pending[lane] == (uint32_t)net->caps.depth)
            return i;
        if (n->pending[lane]++ == 0)
            n->dirty[n->ndirty++] = lane;
    }
    return count;
}

static int null_poll(mpix_net *net, mpix_net_done *done, int max) {
    null_net *n = (null_net *)net;
    int stored = 0;

    for (; stored < max && n->ndirty > 0; stored++) {
        int lane = n->dirty[--n->ndirty];
        done[stored].peer = lane / net->caps.lanes;
        done[stored].lane = lane % net->caps.lanes;
        done[stored].n = (int)n->pending[lane];
        done[stored].kind = 0;
        n->pending[lane] = 0;
    }
    return stored;
}

static int null_poll_arrivals(mpix_net *net, mpix_net_arrival *arrivals, int max) {
    (void)net, (void)arrivals, (void)max;
    return 0;
}

/* What was posted is complete at the next poll, and nothing ever arrives: a sleep is ended by
 * commands only, and may be long. */
static int null_arm(mpix_net *net, int *fd) {
    *fd = ((null_net *)net)->fd;
    return 0;
}

static void null_ack(mpix_net *net) { (void)net; }

const mpix_net_ops mpix_net_null = {
    .name = "null",
    .address_bytes = 1,
    .key_bytes = 1,
    .open = null_open,
    .close = null_close,
    .address = null_address,
    .connect = null_connect,
    .mem_reg = null_mem_reg,
    .mem_dereg = null_mem_dereg,
    .mem_key = null_mem_key,
    .rmem_open = null_rmem_open,
    .rmem_close = null_rmem_close,
    .post = null_post,
    .poll = null_poll,
    .poll_arrivals = null_poll_arrivals,
    .arm = null_arm,
    .ack = null_ack,
};
