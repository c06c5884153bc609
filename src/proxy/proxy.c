/*
 * proxy.c - what concerns all parts of a proxy: how many there are, creation, windows, memory by
 * handle, the end.
 *
 * Creation: configurations are compared and the number of parts is agreed on; then each part is
 * made (proxy_part.c); then the threads start. Every stage ends in agreement, so either all ranks
 * have a proxy or none, and the error names the rank that failed.
 *
 * How many parts. mpix_ep_proxy_threads, if it is given. Else more than one only where the
 * transport moves bytes with the processor that posts (a network device does that by itself,
 * and each part would register all memory with it again), where threads run the proxy, and
 * where each rank has cores for them: the least that any rank allows. In no case more than
 * there are lanes to peers.
 */
#include "config.h"

#include "proxy/proxy_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/topo.h"

enum { CORES_PER_THREAD = 2 }; /* of a rank's share; the others are the program's */

/* What all ranks know of each other before a net is opened. */
typedef struct proxy_card {
    int32_t cores;      /* threads that this rank's cores allow */
    int32_t ways;       /* lanes to all wanted peers together */
    int32_t far;        /* a wanted peer is on another host: decides what `auto` means */
    int32_t verbs, ucx; /* present on this rank */
} proxy_card;

/* ---- how many -------------------------------------------------------------------------------- */

/* The limits of the encoding. */
static int proxy_check(const mpix_boot *boot, const mpix_params *params, int counters,
                       int kernels) {
    if (boot->size > PROXY_PEERS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "%d ranks: a command of the proxy names at most %d", boot->size,
                         PROXY_PEERS);
    if (params->lanes < 1 || params->lanes > PROXY_LANES)
        return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_lanes",
                         "mpix_ep_lanes=%d: a command of the proxy names 1 to %d", params->lanes,
                         PROXY_LANES);
    if (counters < 0 || counters >= PROXY_COUNTERS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, NULL,
                         "%d counters per peer: a command of the proxy names fewer than %d; fewer "
                         "handles, lanes or a "
                         "lower depth need fewer",
                         counters, PROXY_COUNTERS);
    if (params->max_op && params->max_op < PROXY_MIN_OP)
        return mpix_fail(MPIX_ERRK_ARG, "mpix_ep_max_op",
                         "mpix_ep_max_op=%zu: an operation is at least %d bytes, or 0",
                         params->max_op, PROXY_MIN_OP);
    if (params->proxy == MPIX_PROXY_CALLER && (kernels || params->proxy_threads > 1))
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_proxy",
                         "mpix_ep_proxy=caller: %s, auto or thread",
                         kernels ? "kernels need a proxy that runs by itself"
                                 : "mpix_ep_proxy_threads > 1 needs threads");
    return 0; /* a rank may want itself: tests and benchmarks on one rank do */
}

/* How many threads this rank has cores for, if threads run its proxy at all: that need not be so
 * on all ranks. */
static int proxy_cores(const mpix_boot *boot, const mpix_params *params, int kernels) {
    const mpix_topo *topo = mpix_topo_get();
    int share = topo->pus < topo->pus_host
                    ? topo->pus
                    : topo->pus_host / (boot->local_size > 0 ? boot->local_size : 1);
    int n = share / CORES_PER_THREAD;

    if (!kernels && params->proxy != MPIX_PROXY_THREAD)
        return 1;
    return n < 1 ? 1 : n > PROXY_PARTS ? PROXY_PARTS : n;
}

/* The transport that does the work: chaos:X disturbs X. */
static int proxy_copies(const char *name) {
    const char *last = strrchr(name, ':');
    const mpix_net_ops *ops = mpix_net_find(last ? last + 1 : name);

    return ops && ops->copies;
}

/* Alike on all ranks. */
static void proxy_parts(mpix_proxy *proxy, const mpix_params *params, int kernels,
                        const proxy_card *cards) {
    int cores = PROXY_PARTS, ways = 1, n;

    for (int r = 0; r < proxy->size; r++) {
        cores = cards[r].cores < cores ? cards[r].cores : cores;
        ways = cards[r].ways > ways ? cards[r].ways : ways;
    }
    n = params->proxy_threads > 0       ? params->proxy_threads
        : proxy_copies(proxy->net_name) ? cores
                                        : 1;
    proxy->nparts = kernels || n < ways ? n : ways; /* kernels get a lane from each part */
    if (kernels && proxy->nlanes < proxy->nparts)
        proxy->nlanes = proxy->nparts;
}

/* ---- creation -------------------------------------------------------------------------------- */

static int proxy_present(const char *name) {
    const mpix_net_ops *ops = mpix_net_find(name);
    char why[256] = "this build has none";
    int present = ops && (!ops->present || ops->present(why, sizeof why));

    if (!present)
        mpix_log(MPIX_LOG_INFO, "proxy: no transport %s: %s", name, why);
    return present;
}

/* The name of the transport: `auto` depends on what all ranks have. */
static void proxy_name(mpix_proxy *proxy, const mpix_params *params, const proxy_card *cards) {
    int far = 0, verbs = 1, ucx = 1;

    for (int r = 0; r < proxy->size; r++) {
        far |= cards[r].far;
        verbs &= cards[r].verbs;
        ucx &= cards[r].ucx;
    }
    snprintf(proxy->net_name, sizeof proxy->net_name, "%.63s",
             strcmp(params->transport, "auto") != 0 ? params->transport
             : far                                  ? (verbs || !ucx ? "verbs" : "ucx")
                                                    : "shmem");
}

static int proxy_compare(mpix_proxy *proxy, const mpix_params *params, int counters, int kernels) {
    mpix_same same;

    mpix_same_begin(&same);
    mpix_same_add(&same, "the version of the proxy's protocol", "%d", PROXY_VERSION);
    mpix_same_add(&same, "whether kernels use the proxy", "%d", kernels);
    mpix_same_add(&same, "the number of counters", "%d", counters);
    mpix_same_add_params(&same, params);
    return mpix_boot_same(proxy->boot, &same);
}

/* Compares configurations, finds the transport and the number of parts. */
static int proxy_agree(mpix_proxy *proxy, const mpix_params *params, const unsigned char *want,
                       int counters, int kernels) {
    proxy_card card = {.cores = proxy_cores(proxy->boot, params, kernels)};
    proxy_card *cards = calloc((size_t)proxy->size, sizeof *cards);
    int kind = cards ? 0
                     : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                 "no memory for the configurations of %d ranks", proxy->size);

    kind = mpix_boot_agree(proxy->boot, kind);
    if (!kind)
        kind = proxy_compare(proxy, params, counters, kernels);
    if (kind)
        goto free_cards;
    if (strcmp(params->transport, "auto") == 0) {
        card.verbs = proxy_present("verbs");
        card.ucx = proxy_present("ucx");
    }
    for (int r = 0; r < proxy->size; r++) {
        card.far |= want[r] && strcmp(proxy->boot->hostnames[r],
                                      proxy->boot->hostnames[proxy->boot->rank]) != 0;
        card.ways += want[r] ? params->lanes : 0;
    }
    kind = mpix_boot_allgather(proxy->boot, &card, sizeof card, cards);
    if (kind)
        goto free_cards;
    proxy_name(proxy, params, cards);
    proxy_parts(proxy, params, kernels, cards);
free_cards:
    free(cards);
    return kind;
}

/* Devices in another order for each part, so that the first lanes of all parts do not share one. */
static void proxy_turn_devices(char *list, int by) {
    for (; by > 0; by--) {
        char first[MPIX_PARAM_STRING], *comma = strchr(list, ',');
        if (!comma)
            return;
        *comma = '\0';
        snprintf(first, sizeof first, "%s", list);
        memmove(list, comma + 1, strlen(comma + 1) + 1);
        size_t len = strlen(list);
        snprintf(list + len, MPIX_PARAM_STRING - len, ",%s", first);
    }
}

/* What a part is made with: the peers that have a lane in it, and as many lanes as the
 * first of them. */
static int proxy_make_part(mpix_proxy *proxy, int index, const mpix_params *params,
                           const unsigned char *want, unsigned char *here, int counters,
                           mpix_doorbell *bell) {
    mpix_params own = *params;
    int kind;

    own.lanes = (proxy->nlanes + proxy->nparts - 1) / proxy->nparts;
    if (proxy->nparts > 1) {
        own.chaos_seed = (int)(((unsigned)params->chaos_seed + (unsigned)index * 7919u) &
                               0x7fffffffu);
        proxy_turn_devices(own.net_devices, index);
    }
    for (int r = 0; r < proxy->size; r++)
        here[r] = want[r] && proxy_lane_of(proxy, index, r, 0) < proxy->nlanes;
    kind = proxy_part_create(proxy, index, &own, here, counters, bell);
    if (!kind && proxy->part[index]->counted != proxy->part[0]->counted)
        kind = mpix_fail(MPIX_ERRK_TRANSPORT, NULL,
                         "%s keeps order for some threads of the proxy and not for others; "
                         "mpix_ep_signal says which form is to be used",
                         proxy->net_name);
    return kind;
}

static int proxy_make_parts(mpix_proxy *proxy, const mpix_params *params, const unsigned char *want,
                            int counters, mpix_doorbell *bell) {
    unsigned char *here = malloc((size_t)proxy->size);
    int kind = mpix_boot_agree(proxy->boot,
                               here ? 0
                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy"));

    for (int i = 0; i < proxy->nparts && !kind; i++)
        kind = proxy_make_part(proxy, i, params, want, here, counters, bell);
    free(here);
    return kind;
}

/* Who runs the proxy: kernels need threads, and who asks for several wants them. A net
 * whose targets work needs a thread: a rank that computes, or waits in MPI, would hold its
 * peers up for ever. */
static int proxy_start(mpix_proxy *proxy, const mpix_params *params, int kernels) {
    int works = proxy->caps.target_works, kind = 0;

    if (works && params->proxy == MPIX_PROXY_CALLER)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "mpix_ep_proxy",
                         "mpix_ep_proxy=caller: over %s the target of an operation takes part in "
                         "it, which needs auto or thread",
                         proxy->net_name);
    if (works || kernels || params->proxy_threads > 1 || params->proxy == MPIX_PROXY_THREAD)
        kind = mpix_proxy_start_threads(proxy, params);
    return kind;
}

static int proxy_new(mpix_boot *boot, const mpix_params *params, int counters, int kernels,
                     mpix_proxy **out) {
    int kind = proxy_check(boot, params, counters, kernels);
    mpix_proxy *proxy = kind ? NULL : calloc(1, sizeof *proxy);

    if (kind)
        return kind;
    *out = proxy;
    if (proxy)
        proxy->rmem = calloc((size_t)boot->size * MPIX_PROXY_WINDOWS, sizeof *proxy->rmem);
    if (!proxy || !proxy->rmem)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a proxy of %d ranks", boot->size);
    proxy->boot = boot;
    proxy->size = boot->size;
    proxy->rank = boot->rank;
    proxy->nlanes = params->lanes;
    return 0;
}

int mpix_proxy_create(mpix_boot *boot, const mpix_params *params, const unsigned char *want,
                      int counters, int kernels, mpix_doorbell *bell, mpix_proxy **out) {
    mpix_proxy *proxy = NULL;
    int kind = mpix_boot_agree(boot, proxy_new(boot, params, counters, kernels, &proxy));

    if (!kind)
        kind = proxy_agree(proxy, params, want, counters, kernels);
    if (!kind)
        kind = proxy_make_parts(proxy, params, want, counters, bell);
    if (kind)
        goto free_proxy;
    proxy->counted = proxy->part[0]->counted;
    proxy->key_bytes = proxy->part[0]->net->ops->key_bytes;
    proxy->caps = proxy->part[0]->net->caps;
    proxy->caps.lanes = proxy->nparts > 1 ? proxy->nlanes : proxy->caps.lanes;
    kind = mpix_boot_agree(boot, proxy_start(proxy, params, kernels));
    if (kind)
        goto free_proxy;
    mpix_log(MPIX_LOG_INFO,
             "proxy: %d threads for peers over %s %s %s, %s signals, %d lanes, at most %u "
             "operations and %llu bytes in flight per lane",
             mpix_proxy_threads(proxy), proxy->net_name, proxy->caps.device, proxy->caps.address,
             proxy->counted ? "counted" : "ordered", proxy->nlanes, proxy->part[0]->credit_ops,
             (unsigned long long)proxy->part[0]->credit_bytes);
    *out = proxy;
    return 0;

free_proxy:
    mpix_proxy_free(proxy);
    return kind;
}

/* ---- threads, the end ------------------------------------------------------------------------ */

static void proxy_stop(mpix_proxy *proxy) {
    for (int i = 0; i < PROXY_PARTS && proxy->part[i]; i++)
        proxy_thread_stop(proxy->part[i]);
}

int mpix_proxy_start_threads(mpix_proxy *proxy, const mpix_params *params) {
    int kind = 0;

    for (int i = 0; i < proxy->nparts && !kind; i++)
        if (!proxy->part[i]->threaded)
            kind = proxy_thread_start(proxy->part[i], params);
    if (kind)
        proxy_stop(proxy);
    return kind;
}

/* The connections, then the handles that were used over them, then the nets. */
int mpix_proxy_end(mpix_proxy *proxy) {
    if (!proxy)
        return 0;
    if (proxy->ended) {
        if (proxy->end_kind)
            *mpix_error_tls() = proxy->end_error;
        return proxy->end_kind;
    }
    proxy_stop(proxy);
    for (int i = 0; i < PROXY_PARTS && proxy->part[i]; i++)
        if (proxy->part[i]->net && proxy->part[i]->net->ops->shut)
            proxy->part[i]->net->ops->shut(proxy->part[i]->net);
    for (mpix_proxy_rmem *rmem = proxy->rmems; rmem; rmem = rmem->next)
        proxy_rmem_drop(proxy, rmem);
    for (mpix_proxy_mem *mem = proxy->mems; mem; mem = mem->next)
        proxy_mem_drop(proxy, mem);
    for (int i = 0; i < PROXY_PARTS && proxy->part[i]; i++) {
        int kind = proxy_part_end(proxy->part[i]);
        proxy->end_kind = kind ? kind : proxy->end_kind;
    }
    if (proxy->end_kind)
        proxy->end_error = *mpix_error_tls();
    proxy->ended = 1;
    return proxy->end_kind;
}

void mpix_proxy_free(mpix_proxy *proxy) {
    if (!proxy)
        return;
    (void)mpix_proxy_end(proxy);
    for (int i = 0; i < PROXY_PARTS; i++)
        proxy_part_free(proxy->part[i]);
    free(proxy->rmem);
    free(proxy);
}
