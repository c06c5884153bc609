/* p2p_create.c - creation and end of an object. Creation is a row of stages, each ending in
 * agreement of all ranks on its status. */
#include "config.h"

#include "p2p/check.h"
#include "p2p/p2p_gpu.h"

#include "base/topo.h"
#include "kernels/host/rows.h"
#include "mem/claim.h"
#include "mem/shared.h"
#include "transport/transport.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- handles that are alive ------------------------------------------------------------------ */

_Thread_local p2p_seen p2p_seen_cache[P2P_SEEN] __attribute__((tls_model("initial-exec")));

int p2p_live_look(const void *object, int tag) {
    p2p_seen *seen = p2p_seen_at(object, tag);
    uint64_t key = p2p_seen_key(tag);

    if (!mpix_live_check(object, tag))
        return 0;
    *seen = (p2p_seen){object, key};
    return 1;
}

void p2p_live_end(const void *object) {
    mpix_live_remove(object);
    atomic_fetch_add_explicit(&mpix_live_turn, 1, memory_order_release);
}

int p2p_alive(mpix_p2p *p2p) {
    int kind = atomic_load_explicit(&p2p->failed, memory_order_acquire);

    if (kind)
        *mpix_error_tls() = p2p->failure; /* written before `failed`, and never again */
    return kind;
}

int p2p_raise(mpix_p2p *p2p, int kind) { return mpix_boot_raise(p2p ? p2p->boot : NULL, kind); }

/* From which length on a copy bypasses the caches: when source and destination of all ranks that
 * share the cache fill it. */
static size_t copy_limit(const mpix_p2p *p2p) {
    const mpix_topo *topo = mpix_topo_get();
    int sharing = topo->l3_bytes && topo->l3_pus < p2p->boot->local_size ? topo->l3_pus
                                                                         : p2p->boot->local_size;
    size_t limit = (topo->l3_bytes ? topo->l3_bytes : (size_t)32 << 20) / 2 /
                   (size_t)(sharing > 0 ? sharing : 1);

    if (!p2p->rows || p2p->params.stores == MPIX_STORES_ORDINARY)
        return SIZE_MAX;
    if (p2p->params.stores == MPIX_STORES_STREAMING)
        return P2P_STREAMED;
    if (p2p->params.stream_bytes)
        limit = p2p->params.stream_bytes;
    return limit > P2P_STREAMED ? limit : P2P_STREAMED;
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* What everybody must know of everybody. */
typedef struct p2p_card {
    uint64_t random[2], token_addr;
} p2p_card;

static int info_set(void *params, const char *key, const char *value) {
    return mpix_params_set(params, key, value);
}

static int create_configure(mpix_p2p *p2p, MPI_Info info, const MPIX_P2p *out) {
    int kind = out ? mpix_params_read(&p2p->params)
                   : mpix_fail(MPIX_ERRK_ARG, "p2p", "p2p is NULL");

    if (!kind)
        kind = mpix_boot_info_each(info, info_set, &p2p->params);
    if (kind)
        return kind;
    p2p->limit_ns = mpix_clock_limit(p2p->params.timeout);
    mpix_boot_limit(p2p->boot, p2p->params.timeout, p2p_look, p2p);
    p2p->slots = p2p->params.p2p_slots;
    p2p->ring = p2p->params.p2p_ring;
    p2p->lanes = p2p->params.lanes;
    p2p->eager = (p2p->params.p2p_eager + 63) / 64 * 64;
    p2p->stride = (sizeof(p2p_message) + p2p->eager + 63) / 64 * 64;
    p2p->block_bytes = sizeof(p2p_block) + p2p_words_bytes(p2p) + (size_t)p2p->ring * p2p->stride;
    p2p->block_bytes = (p2p->block_bytes + 63) / 64 * 64;
    p2p->out_spare = malloc(sizeof *p2p->out_spare);
    p2p->peers = calloc((size_t)p2p->size, sizeof *p2p->peers);
    for (int r = 0; p2p->peers && r < p2p->size; r++)
        p2p->peers[r].pidfd = -1; /* of all, before anything fails: the end closes them */
    if (!p2p->peers || !p2p->out_spare)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an object of %d ranks", p2p->size);
    for (int r = 0; r < p2p->size; r++) {
        p2p->peers[r].sent = calloc((size_t)p2p->slots, sizeof *p2p->peers[r].sent);
        if (!p2p->peers[r].sent)
            return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d notification counters",
                             p2p->slots);
    }
    if (getrandom(p2p->random, sizeof p2p->random, 0) != (ssize_t)sizeof p2p->random)
        return mpix_fail_sys(MPIX_ERRK_TRANSPORT, errno, "getrandom");
    return 0;
}

/* Whether the system lets us at the peer's memory, and whether that is the right process: its
 * random number is where it says. */
static int create_probe_cma(const mpix_p2p *p2p, int r, const p2p_card *card) {
    uint64_t seen[2] = {0};
    struct iovec here = {seen, sizeof seen},
                 there = {(void *)(uintptr_t)card->token_addr, sizeof seen};

    if (!p2p->params.p2p_cma ||
        process_vm_readv(p2p->peers[r].pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof seen)
        return 0;
    return memcmp(seen, card->random, sizeof seen) == 0;
}

static int create_compare(mpix_p2p *p2p) {
    mpix_same same;

    mpix_same_begin(&same);
    mpix_same_add(&same, "the version of the protocol", "%x", (unsigned)P2P_MAGIC);
    mpix_same_add_params(&same, &p2p->params);
    return mpix_boot_same(p2p->boot, &same);
}

static int create_meet(mpix_p2p *p2p) {
    p2p_card card = {.token_addr = (uint64_t)(uintptr_t)p2p->random};
    p2p_card *cards = calloc((size_t)p2p->size, sizeof *cards);
    int kind = mpix_boot_agree(p2p->boot, cards ? 0
                                                : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                            "no memory for %d ranks", p2p->size));

    if (kind)
        goto free_cards;
    memcpy(card.random, p2p->random, sizeof card.random);
    kind = mpix_boot_allgather(p2p->boot, &card, sizeof card, cards);
    for (int r = 0; !kind && r < p2p->size; r++) {
        p2p_peer *peer = &p2p->peers[r];
        memcpy(peer->random, cards[r].random, sizeof peer->random);
        peer->pid = p2p->boot->pids[r];
        if (!mpix_boot_knows_pid(p2p->boot, r))
            continue;
        peer->cma = create_probe_cma(p2p, r, &cards[r]);
        peer->pidfd = mpix_boot_watch(p2p->boot, r);
    }
free_cards:
    free(cards);
    return kind;
}

static int create_proxy(mpix_p2p *p2p) {
    unsigned char *want = calloc((size_t)p2p->size, 1);
    uint64_t far = 0;
    int kind = want ? 0 : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for %d ranks", p2p->size);
    void *mirror = NULL;

    for (int r = 0; want && r < p2p->size; r++) {
        want[r] = p2p->ctl_win->peer[r] == NULL;
        far |= want[r];
    }
    kind = mpix_boot_agree(p2p->boot, kind);
    if (!kind)
        kind = mpix_boot_or(p2p->boot, &far, 1);
    if (!kind && far)
        kind = mpix_proxy_create(p2p->boot, &p2p->params, want, p2p->ring + 3, 0, &p2p->ctl->bell,
                                 &p2p->proxy);
    free(want);
    if (kind || !far)
        return kind;
    p2p->counted = mpix_proxy_counted(p2p->proxy);
    p2p->mirror_bytes = (size_t)p2p->size * p2p->block_bytes + P2P_SCRATCH * 8;
    kind = mpix_mem_together(p2p->boot, p2p->mirror_bytes, "send buffers for proxied peers");
    if (!kind)
        kind = mpix_mem_shared_alloc(p2p->mirror_bytes, &mirror);
    kind = mpix_boot_agree(p2p->boot, kind);
    p2p->mirror = mirror;
    if (kind)
        return kind;
    p2p->scratch = (uint64_t *)(void *)(p2p->mirror + (size_t)p2p->size * p2p->block_bytes);
    p2p->scratch_free = UINT64_MAX;
    kind = mpix_proxy_window(p2p->proxy, P2P_WIN_CTL, p2p->ctl_win->base, p2p->ctl_win->bytes);
    if (!kind)
        kind = mpix_proxy_window(p2p->proxy, P2P_WIN_MIRROR, p2p->mirror, p2p->mirror_bytes);
    return kind;
}

static int create_window(mpix_p2p *p2p) {
    size_t bytes = sizeof(p2p_ctl) + (size_t)p2p->size * p2p->block_bytes;
    int kind = mpix_win_create(p2p->boot, &p2p->params, bytes, MPIX_WIN_COMMIT, &p2p->ctl_win);

    if (kind)
        return kind;
    p2p->ctl = p2p->ctl_win->base;
    kind = create_proxy(p2p);
    if (kind)
        return kind;
    p2p->blob_bytes = sizeof(p2p_blob) + (p2p->proxy ? mpix_proxy_key_bytes(p2p->proxy) : 0);
    if (p2p->blob_bytes > p2p->eager)
        kind = mpix_fail(MPIX_ERRK_ARG, "mpix_ep_p2p_eager",
                         "mpix_ep_p2p_eager=%zu: a handle of memory needs %zu bytes", p2p->eager,
                         p2p->blob_bytes);
    for (int r = 0; r < p2p->size; r++) {
        p2p_peer *peer = &p2p->peers[r];
        size_t mine = sizeof(p2p_ctl) + (size_t)p2p->rank * p2p->block_bytes;
        peer->mapped = p2p->ctl_win->peer[r] != NULL;
        peer->ctl = p2p->ctl_win->peer[r];
        peer->in = (p2p_block *)(void *)((char *)p2p->ctl + sizeof(p2p_ctl) +
                                         (size_t)r * p2p->block_bytes);
        peer->out = peer->mapped
                        ? (p2p_block *)(void *)((char *)peer->ctl + mine)
                        : (p2p_block *)(void *)(p2p->mirror + (size_t)r * p2p->block_bytes);
    }
    return mpix_boot_agree(p2p->boot, kind);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void p2p_destroy(mpix_p2p *p2p, int abandoned) {
    p2p_live_end(p2p);
    p2p_thread_stop(p2p);
    p2p_gpu_sync(p2p);
    p2p->unsafe = p2p_quiet(p2p) != 0; /* before any of what is named below is freed */
    p2p_ops_free(p2p);
    p2p_early_free(p2p);
    p2p_mems_free(p2p); /* needs the proxy */
    p2p_device_close(p2p);
    mpix_proxy_free(p2p->proxy);
    p2p_device_free(p2p);
    mpix_mem_shared_free(p2p->mirror);
    mpix_guard_free(p2p->guard);
    while (p2p->areas) {
        p2p_area *area = p2p->areas;
        p2p->areas = area->next;
        if (area->gpu)
            p2p_gpu_area_free(p2p, area);
        p2p_device_area_free(p2p, area);
        if (!p2p->unsafe)
            mpix_win_free(area->win);
        free(area);
    }
    p2p_gpu_free(p2p);
    if (!p2p->unsafe)
        mpix_win_free(p2p->ctl_win); /* which the GPU may have been writing */
    for (int r = 0; p2p->peers && r < p2p->size; r++) {
        mpix_boot_unwatch(p2p->peers[r].pidfd);
        free(p2p->peers[r].sent);
    }
    free(p2p->peers);
    pthread_mutex_destroy(&p2p->lock);
    mpix_boot_free(p2p->boot, abandoned);
    free(p2p);
}

static void finalize_hook(void *object) {
    mpix_log(MPIX_LOG_WARN, "an object of MPIX_P2p_create was not freed before MPI_Finalize");
    p2p_destroy(object, 1);
}

static int create_stages(mpix_p2p *p2p, MPI_Info info, const MPIX_P2p *out) {
    mpix_boot *boot = p2p->boot;
    int kind = mpix_boot_agree(boot, create_configure(p2p, info, out)), threads;

    if (!kind)
        kind = create_compare(p2p);
    if (!kind)
        kind = mpix_boot_agree(boot, mpix_boot_split_hosts(boot, p2p->params.reach ==
                                                                         MPIX_REACH_FORCE_PROXIED
                                                                     ? boot->size
                                                                     : p2p->params.hosts));
    if (!kind)
        kind = create_meet(p2p);
    boot->proxied = 1; /* peers that can't be mapped are the proxy's */
    if (!kind)
        kind = create_window(p2p);
    if (kind)
        return kind;
    pthread_mutex_lock(&p2p->lock);
    p2p->created = 1;
    pthread_mutex_unlock(&p2p->lock);
    threads = p2p->params.progress == MPIX_PROGRESS_THREAD ? 2 : 1;
    p2p->rows = mpix_rows_get(p2p->params.isa);
    p2p->stream_bytes = copy_limit(p2p);
    p2p->oversubscribed = boot->local_size * threads > mpix_topo_get()->pus_host;
    if (threads == 2)
        kind = p2p_thread_start(p2p);
    mpix_live_add(&p2p->live, p2p, MPIX_LIVE_P2P);
    if (!kind)
        kind = mpix_boot_at_finalize(p2p, finalize_hook);
    return mpix_boot_agree(boot, kind);
}

/* The time limit of the first meeting. What is wrong with parameters is said later, when all
 * ranks hear it. */
static double create_seconds(MPI_Info info) {
    mpix_params params = {.timeout = MPIX_BOOT_SECONDS};

    if (!mpix_params_read(&params))
        (void)mpix_boot_info_each(info, info_set, &params);
    return params.timeout;
}

int PMPIX_P2p_create(MPI_Comm comm, MPI_Info info, MPIX_P2p *out) {
    mpix_boot *boot = NULL;
    int kind = mpix_boot_check(comm), code;
    mpix_p2p *p2p;

    if (!kind)
        kind = mpix_boot_create_within(comm, create_seconds(info), &boot);

    if (kind)
        return mpix_boot_raise_comm(comm, kind);
    p2p = calloc(1, sizeof *p2p);
    kind = mpix_boot_agree(boot, p2p ? 0
                                     : mpix_fail(MPIX_ERRK_NO_MEM, NULL,
                                                 "no memory for an object of MPIX_P2p"));
    if (kind) {
        free(p2p);
        code = mpix_boot_raise(boot, kind);
        mpix_boot_free(boot, 0);
        return code;
    }
    pthread_mutex_init(&p2p->lock, NULL);
    p2p->boot = boot;
    p2p->rank = boot->rank;
    p2p->size = boot->size;
    p2p->awaited = -1;
    kind = create_stages(p2p, info, out);
    if (kind) {
        MPIX_Error error = *mpix_error_tls();
        mpix_boot_forget(p2p);
        code = mpix_boot_raise(boot, kind);
        p2p_destroy(p2p, 0);
        error.code = code;
        *mpix_error_tls() = error;
        return code;
    }
    *out = p2p;
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_create);

/* In a child of fork; see ep_leave. */
static void p2p_leave(mpix_p2p *p2p) {
    if (p2p->proxy || p2p->gpu || pthread_mutex_trylock(&p2p->lock) != 0)
        return;
    for (p2p_area *area = p2p->areas; area; area = area->next)
        mpix_win_leave(area->win);
    mpix_win_leave(p2p->ctl_win);
}

/* The barrier lets peers finish what they do with our memory, and our device answer them. Bounded:
 * a peer may never come. */
int PMPIX_P2p_free(MPIX_P2p *pp2p) {
    int kind = pp2p ? 0 : mpix_fail(MPIX_ERRK_ARG, "p2p", "p2p is NULL"), users, failed;
    mpix_p2p *p2p;

    if (!kind && mpix_live_leave(*pp2p, MPIX_LIVE_P2P)) {
        p2p_leave(*pp2p);
        *pp2p = MPIX_P2P_NULL;
        return MPI_SUCCESS;
    }
    if (!kind)
        kind = mpix_live_need(*pp2p, MPIX_LIVE_P2P, "p2p", "*p2p is NULL or freed");
    if (kind)
        return mpix_boot_raise(NULL, kind);
    p2p = *pp2p;
    pthread_mutex_lock(&p2p->lock);
    users = p2p->users;
    failed = p2p->failed;
    pthread_mutex_unlock(&p2p->lock);
    if (users > 0 && !failed)
        return p2p_raise(p2p, mpix_fail(MPIX_ERRK_ARG, "p2p",
                                        "%d transfers are in flight: complete them first", users));
    if (!failed) {
        failed = mpix_boot_barrier_bounded(p2p->boot,
                                           p2p->params.timeout < 10 ? p2p->params.timeout : 10);
    }
    p2p_gpu_sync(p2p); /* kernels may need the proxy */
    pthread_mutex_lock(&p2p->lock);
    kind = p2p_quiet(p2p);
    pthread_mutex_unlock(&p2p->lock);
    int code = kind ? p2p_raise(p2p, kind) : MPI_SUCCESS;
    mpix_boot_forget(p2p);
    p2p_destroy(p2p, failed != 0);
    *pp2p = MPIX_P2P_NULL;
    return code;
}
MPIX_WEAK_ALIAS(P2p_free);

int PMPIX_P2p_set_errhandler(MPIX_P2p p2p, MPI_Errhandler errhandler) {
    if (!mpix_live_check(p2p, MPIX_LIVE_P2P))
        return mpix_boot_raise(NULL,
                               mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    return p2p_raise(p2p, mpix_boot_set_errhandler(p2p->boot, errhandler));
}
MPIX_WEAK_ALIAS(P2p_set_errhandler);

int PMPIX_P2p_get_async_error(MPIX_P2p p2p, MPIX_Error *error) {
    if (!mpix_live_check(p2p, MPIX_LIVE_P2P))
        return mpix_boot_code(mpix_live_need(p2p, MPIX_LIVE_P2P, "p2p", "p2p is NULL or freed"));
    if (!error || error->struct_size != sizeof *error)
        return mpix_boot_code(
            mpix_fail(MPIX_ERRK_ARG, "error",
                      "error is NULL, or its struct_size is unknown: use MPIX_INIT"));
    if (atomic_load_explicit(&p2p->failed, memory_order_acquire)) {
        *error = p2p->failure;
        error->struct_size = sizeof *error;
    } else {
        MPIX_INIT(error);
        error->rank = -1;
    }
    return MPI_SUCCESS;
}
MPIX_WEAK_ALIAS(P2p_get_async_error);
