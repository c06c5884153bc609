/* create.c - creation and end of a context. Creation is a row of stages, each ending in agreement
 * of all ranks on its status. */
#include "config.h"

#include "coll/ep.h"
#include "coll/host/remote.h"

#include <math.h>
#include <stdlib.h>

static int info_set(void *params, const char *key, const char *value) {
    return mpix_params_set(params, key, value);
}

/* Parameters and configuration of this rank: environment, then info, then configuration. */
static int create_configure(mpix_ep *ep, const MPIX_Ep_config *config, MPI_Info info,
                            MPIX_Ep *out) {
    if (!out)
        return mpix_fail(MPIX_ERRK_ARG, "ep", "ep is NULL");
    int kind = mpix_params_read(&ep->params);
    if (!kind)
        kind = mpix_boot_info_each(info, info_set, &ep->params);
    if (!kind)
        kind = mpix_ep_config_check(config, ep->size, &ep->config);
    if (kind)
        return kind;
    if (ep->config.timeout_s != 0) /* waits of what knows parameters only */
        ep->params.timeout = ep->config.timeout_s < 0 ? INFINITY : ep->config.timeout_s;
    ep->path = mpix_ep_path_of(&ep->config);
    ep->limit_ns = mpix_clock_limit(ep->params.timeout);
    mpix_boot_limit(ep->boot, ep->params.timeout, mpix_ep_look, ep);
    kind = mpix_ep_placement_room(&ep->config, ep->size, ep->boot->local_size);
    if (!kind)
        kind = mpix_ep_placement_init(&ep->placement, &ep->config, ep->size, ep->rank);
    if (kind)
        return kind;
    if (ep->config.expert_owner)
        ep->config.expert_owner = ep->placement.owner;
    ep->rows = mpix_rows_get(ep->params.isa);
    if (!ep->rows)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "isa",
            "the parameter isa asks for instructions that this processor or build has not got");
    return 0;
}

enum { STREAM_APART = 1024 };
/* how long ranks wait for each other at the end of a context */
#define MEET_NS UINT64_C(10000000000)

/* From how many bytes written per call the rows should bypass the caches: when what all ranks of
 * the host write together does not stay in the shared cache anyway. Measured in
 * doc/performance.md. */
static size_t stream_limit(const mpix_ep *ep) {
    const mpix_topo *topo = mpix_topo_get();
    if (ep->params.stores == MPIX_STORES_ORDINARY)
        return SIZE_MAX;
    if (ep->params.stores == MPIX_STORES_STREAMING)
        return 0;
    if (ep->params.stream_bytes > 0)
        return ep->params.stream_bytes;
    size_t cache = topo->l3_bytes   ? topo->l3_bytes
                   : topo->l2_bytes ? topo->l2_bytes
                                    : (size_t)8 << 20;
    int sharing = topo->l3_bytes && topo->l3_pus < ep->boot->local_size ? topo->l3_pus
                                                                        : ep->boot->local_size;
    return cache / 2 / (size_t)(sharing > 0 ? sharing : 1);
}

/*
 * What is written for another rank's processor. With a cache in common it is there that the row
 * should be, as for this rank's own data. Without, a line that the other one read last has to be
 * fetched and taken away before it can be written, which costs more than to write past the caches,
 * even for a single row (doc/performance.md). Collective.
 */
static int stream_peers(mpix_ep *ep) {
    mpix_boot *boot = ep->boot;
    int mine = mpix_topo_get()->l3_index, apart = 0;
    int *all = malloc((size_t)ep->size * sizeof *all);
    int kind = mpix_boot_agree(boot,
                               all ? 0
                                   : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                               "no memory for a context of %d ranks", ep->size));
    if (!kind)
        kind = mpix_boot_allgather(boot, &mine, sizeof mine, all);
    for (int r = 0; r < ep->size && !kind; r++)
        apart |= r != ep->rank && boot->host_of[r] == boot->host_of[ep->rank] &&
                 (all[r] != mine || mine == -2);
    free(all);
    if (ep->params.caches != MPIX_CACHES_AUTO)
        apart = ep->params.caches == MPIX_CACHES_APART;
    ep->stream_peers = ep->stream_bytes;
    if (apart && ep->params.stores == MPIX_STORES_AUTO && ep->params.stream_bytes == 0)
        ep->stream_peers = STREAM_APART;
    return kind;
}

static int create_local(mpix_ep *ep) {
    size_t words = ((size_t)ep->params.max_handles + 63) / 64;
    int remote_peers = 0;
    for (int r = 0; r < ep->size; r++)
        remote_peers += ep->boot->host_of[r] != ep->boot->host_of[ep->rank];
    ep->max_rows = mpix_ep_worst_rows(&ep->config, &ep->placement, ep->rank);
    int kind = ep->path->layout(ep, remote_peers);
    if (kind)
        return kind;
    ep->indices_used = calloc(words, sizeof *ep->indices_used);
    ep->index_epochs = calloc((size_t)ep->params.max_handles, sizeof *ep->index_epochs);
    ep->pidfds = malloc((size_t)ep->size * sizeof *ep->pidfds);
    for (int i = 0; ep->pidfds && i < ep->size; i++)
        ep->pidfds[i] = mpix_boot_watch(ep->boot, i);
    if (!ep->indices_used || !ep->index_epochs || !ep->pidfds)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context of %d ranks", ep->size);
    ep->stream_bytes = stream_limit(ep);
    int threads = ep->params.progress == MPIX_PROGRESS_THREAD ? 2 : 1;
    ep->oversubscribed = ep->boot->local_size * threads > mpix_topo_get()->pus_host;
    return 0;
}

static void finalize_hook(void *object) {
    mpix_log(MPIX_LOG_WARN, "a context was not freed before MPI_Finalize");
    mpix_ep_destroy(object, 1);
}

void mpix_ep_destroy(mpix_ep *ep, int abandoned) {
    const mpix_ep_path *path = ep->path; /* NULL: there is no more than the configuration yet */
    mpix_live_remove(ep);
    if (path && path->stop)
        path->stop(ep);
    mpix_ep_engine_free(ep);
    /* From here on nothing that is queued, posted, or under way to us touches memory; before, all
     * of it must be there. */
    ep->unsafe |= mpix_proxy_end(ep->remote ? ep->remote->proxy : NULL) != 0;
    while (ep->handles) {
        struct mpix_ep_handle *h = ep->handles;
        ep->handles = h->next;
        mpix_live_remove(h);
        if (path->handle_free)
            path->handle_free(h, 1);
        free(h);
    }
    if (path)
        path->free(ep);
    free(ep->registrations);
    if (!ep->unsafe) {
        mpix_win_free(ep->stage);
        mpix_win_free(ep->ctl);
    }
    for (int i = 0; ep->pidfds && i < ep->size; i++)
        mpix_boot_unwatch(ep->pidfds[i]);
    free(ep->pidfds);
    free(ep->indices_used);
    free(ep->index_epochs);
    mpix_ep_placement_free(&ep->placement);
    mpix_boot_free(ep->boot, abandoned);
    free(ep);
}

static int create_stages(mpix_ep *ep, const MPIX_Ep_config *config, MPI_Info info, MPIX_Ep *out) {
    mpix_boot *boot = ep->boot;
    int kind = mpix_boot_agree(boot, create_configure(ep, config, info, out));
    if (!kind)
        kind = mpix_ep_config_compare(boot, &ep->config, &ep->params);
    /* after the comparison, which tells the field from the parameter */
    if (ep->config.timeout_s == 0)
        ep->config.timeout_s = ep->params.timeout;
    if (!kind)
        kind = mpix_boot_agree(boot, mpix_boot_split_hosts(boot, ep->params.reach ==
                                                                         MPIX_REACH_FORCE_PROXIED
                                                                     ? boot->size
                                                                     : ep->params.hosts));
    if (!kind)
        kind = mpix_boot_agree(boot, create_local(ep));
    if (!kind)
        kind = stream_peers(ep);
    boot->proxied = 1; /* peers that can't be mapped are the proxy's */
    if (!kind)
        kind = mpix_win_create(boot, &ep->params, ep->stage_bytes, 0, &ep->stage);
    mpix_win *ctl = NULL;
    if (!kind)
        kind = mpix_win_create(boot, &ep->params, ep->layout.total, 0, &ctl);
    if (!kind)
        kind = mpix_boot_agree(boot, mpix_win_commit(ctl, 0, ep->layout.handles_at));
    if (kind) {
        mpix_win_free(ctl);
        return kind;
    }
    ep->ctl = ctl;
    ep->ctl_committed = ep->layout.handles_at;
    kind = mpix_ep_remote_create(ep);
    if (!kind)
        kind = mpix_ep_remote_windows(ep);
    if (!kind)
        kind = mpix_boot_agree(boot, mpix_ep_engine_init(ep));
    if (kind)
        return kind;
    if (ep->path->create && (kind = ep->path->create(ep)))
        return kind;
    mpix_live_add(&ep->live, ep, MPIX_LIVE_EP);
    return mpix_boot_agree(boot, mpix_boot_at_finalize(ep, finalize_hook));
}

/* The time limit of the first meeting. What is wrong with configuration or parameters is said
 * later, when all ranks hear it. */
static double create_seconds(const MPIX_Ep_config *config, MPI_Info info) {
    mpix_params params = {.timeout = MPIX_BOOT_SECONDS};
    if (config && config->struct_size == sizeof *config && config->timeout_s != 0 &&
        !isnan(config->timeout_s))
        return config->timeout_s;
    if (!mpix_params_read(&params))
        (void)mpix_boot_info_each(info, info_set, &params);
    return params.timeout;
}

int PMPIX_Ep_create(MPI_Comm comm, const MPIX_Ep_config *config, MPI_Info info, MPIX_Ep *out) {
    mpix_boot *boot = NULL;
    int kind = mpix_boot_check(comm);
    if (!kind)
        kind = mpix_boot_create_within(comm, create_seconds(config, info), &boot);
    if (kind)
        return mpix_boot_raise_comm(comm, kind);
    mpix_ep *ep = calloc(1, sizeof *ep);
    kind = mpix_boot_agree(boot, ep ? mpix_boot_codes()
                                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a context"));
    if (kind) {
        free(ep);
        int code = mpix_boot_raise(boot, kind);
        mpix_boot_free(boot, 0);
        return code;
    }
    pthread_mutex_init(&ep->lock, NULL);
    pthread_cond_init(&ep->wake, NULL);
    ep->boot = boot;
    ep->rank = boot->rank;
    ep->size = boot->size;
    kind = create_stages(ep, config, info, out);
    if (kind) {
        MPIX_Error error = *mpix_error_tls();
        mpix_boot_forget(ep);
        int code = mpix_boot_raise(boot, kind);
        mpix_ep_destroy(ep, 0);
        error.code = code;
        *mpix_error_tls() = error;
        return code;
    }
    mpix_log(
        MPIX_LOG_INFO,
        "context of %d ranks on the path %s: %lld experts, staging %zu bytes reserved, control "
        "%zu bytes, %s rows, streaming from %zu bytes, %zu for peers",
        ep->size, ep->path->name, (long long)ep->config.num_experts, ep->stage_bytes,
        ep->layout.total, ep->rows->name, ep->stream_bytes, ep->stream_peers);
    *out = ep;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_create);

/*
 * In a child of fork. Of what a network or a GPU knows nothing is mapped here, and something
 * else may have got the addresses. A thread of the parent that held the lock may have been
 * changing the table.
 */
static void ep_leave(mpix_ep *ep) {
    if (ep->remote || ep->path->memkind != MPIX_EP_HOST || pthread_mutex_trylock(&ep->lock) != 0)
        return;
    for (int i = 0; i < ep->nregions; i++)
        mpix_win_leave(ep->regions[i].win);
    mpix_win_leave(ep->stage);
    mpix_win_leave(ep->ctl);
}

int PMPIX_Ep_free(MPIX_Ep *pep) {
    int kind = pep ? 0 : mpix_fail(MPIX_ERRK_ARG, "ep", "ep is NULL");
    if (!kind && mpix_live_leave(*pep, MPIX_LIVE_EP)) {
        ep_leave(*pep);
        *pep = MPIX_EP_NULL;
        return MPI_SUCCESS;
    }
    if (!kind)
        kind = mpix_live_need(*pep, MPIX_LIVE_EP, "ep", "*ep is NULL or freed");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    mpix_ep *ep = *pep;
    pthread_mutex_lock(&ep->lock);
    int users = ep->users, failed = ep->failed;
    pthread_mutex_unlock(&ep->lock);
    if (users > 0 && !failed)
        return mpix_boot_raise(ep->boot,
                               mpix_fail(MPIX_ERRK_ARG, "ep",
                                         "%d transfers are in flight: complete them first", users));
    failed = mpix_ep_drain(ep); /* failed batches of this rank that peers still have to learn of */
    /* A device must go on answering until the peers' last writes are acknowledged. Bounded: a peer
     * may never come. */
    if (!failed && ep->path->part && (failed = ep->path->part(ep)))
        ep->failed = failed; /* windows stay */
    if (!failed && ep->remote)
        failed = mpix_boot_barrier_bounded(ep->boot, ep->limit_ns < MEET_NS
                                                         ? (double)ep->limit_ns / 1e9
                                                         : MEET_NS / 1e9);
    mpix_boot_forget(ep);
    mpix_ep_destroy(ep, failed != 0);
    *pep = MPIX_EP_NULL;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(Ep_free);
