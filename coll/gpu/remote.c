/*
 * remote.c - contexts in GPU memory some of whose peers are reached through the proxy: the queues
 * from kernels to the proxy, and for each handle a window in host memory that kernels, the network
 * and the proxy reach. The protocol is in kernels/cuda/remote/remote.cuh.
 *
 * A window belongs to a handle's index and stays registered until the context ends: a peer that has
 * not heard of a handle's end may still write words into it. An index that is used again goes on
 * counting its epochs, since those words only grow.
 *
 * Memory. A window lies in GPU memory where the network's device can reach that by itself: if the
 * transport registers it as a dma-buf, or through a peer memory module, and the GPU lets kernels
 * that run see such writes in order. Else it is pinned host memory, which kernels write and read
 * directly. Each rank chooses for itself, and tells the others with its key, for words in GPU
 * memory are sent behind a READ (gpu_queue.h). Kernels know no difference.
 *
 * What a window needs: a block per rank twice (as in the GPU's window, and its mirrors), and for
 * each proxied peer room for a batch twice (what comes from there, what is packed for there), of
 * max_tokens items each, and with two hops for as many of combine's requests. If all routings take
 * two hops (two_hops=on), only for peers of which one forwards for the other. In the EXPERT layout,
 * which takes one hop, there are requests too, and an item may be a partial sum in float of rows of
 * two bytes, so it has room for twice max_row_bytes. In low latency there is room for a batch of
 * each type, and of what comes for each bank (kernels/cuda/ll/ll_remote.cu).
 */
#include "config.h"

#include "coll/gpu/gpu.h"
#include "coll/host/forward.h"
#include "coll/host/host.h"
#include "mem/shared.h"
#include "mpix_device.h"
#include "proxy/gpu_queue.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert((int)MPIX_CUDA_REMOTE_RAILS >= (int)MPIX_DEV_FIFOS, "each rail has a queue");

enum { REMOTE_QUEUES = 4, REMOTE_ENTRIES = 2048, GPU_GRAIN = 2 << 20 };

typedef struct remote_store {
    void *base, *mapped; /* NULL: not made; as kernels see it */
    size_t bytes;
    int gpu;         /* it is GPU memory */
    uint32_t theirs; /* ranks whose window is, a bit each */
    mpix_proxy_mem *mem;
    mpix_proxy_rmem **rmem; /* [size] */
    uint64_t epochs[MPIX_CUDA_TYPES];
} remote_store;

struct mpix_ep_gpu_remote {
    mpix_gpu gpu;
    mpix_gpu_queues *queues;
    void *state, *peers;  /* GPU memory: what kernels see of the queues */
    remote_store *stores; /* [max_handles] */
    char memory[200];     /* which memory the first window is, and why; for people */
};

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* ---- context --------------------------------------------------------------------------------- */

static int create_local(mpix_ep *ep, mpix_ep_gpu_remote *remote) {
    const mpix_params *params = &ep->params;
    const mpix_gpu *gpu = &remote->gpu;
    mpix_gpu_queues_config config = {.queues = ep->size < REMOTE_QUEUES ? ep->size : REMOTE_QUEUES,
                                     .entries = REMOTE_ENTRIES,
                                     .counters = 1,
                                     .window = MPIX_EP_WINDOW_STAGE,
                                     .spread = 1};
    mpix_dev_state state = {.rank = ep->rank, .size = ep->size, .slots = 1};
    char why[MPIX_CUDA_WHY] = "no memory";
    if ((size_t)ep->size * (size_t)params->max_handles > MPIX_DEV_REMOTES)
        return mpix_fail(
            MPIX_ERRK_UNSUPPORTED, "max_handles",
            "max_handles = %d with %d ranks, at most %d together among proxied peers of GPU memory",
            params->max_handles, ep->size, MPIX_DEV_REMOTES);
    if (params->max_handles > MPIX_DEV_LOCALS)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "max_handles",
                         "max_handles = %d, at most %d among proxied peers of GPU memory",
                         params->max_handles, MPIX_DEV_LOCALS);
    int kind = mpix_gpu_queues_open(ep->remote->proxy, gpu, &config, &remote->queues);
    if (kind)
        return kind;
    int rails = mpix_gpu_queues_rails(remote->queues);
    size_t npeers = (size_t)(rails * ep->size);
    mpix_dev_peer *peers = calloc(npeers, sizeof *peers);
    kind = peers ? 0 : MPIX_ERRK_NO_MEM;
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, sizeof state, &remote->state, why);
    if (!kind)
        kind = gpu->ops->local_alloc(&gpu->device, npeers * sizeof *peers, &remote->peers, why);
    for (int r = 0; r < ep->size && !kind; r++)
        for (int rail = 0; rail < rails && ep->remote->is[r]; rail++)
            mpix_gpu_queues_describe_peer(remote->queues, r, rail, &peers[rail * ep->size + r]);
    mpix_gpu_queues_describe(remote->queues, &state);
    state.peers = remote->peers;
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, remote->peers, peers, npeers * sizeof *peers, why);
    if (!kind)
        kind = gpu->ops->copy(&gpu->device, remote->state, &state, sizeof state, why);
    free(peers);
    return kind ? mpix_fail(kind, NULL, "the queues of a GPU: %s", why) : 0;
}

int mpix_ep_gpu_remote_create(mpix_ep *ep) {
    if (!ep->remote)
        return 0;
    mpix_ep_gpu_remote *remote = calloc(1, sizeof *remote);
    remote_store *stores = calloc((size_t)ep->params.max_handles, sizeof *stores);
    int kind = remote && stores ? 0
                                : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for proxied peers");
    if (remote) {
        *remote = (mpix_ep_gpu_remote){.gpu = {ep->gpu->ops, ep->gpu->device, ep->gpu->ipc},
                                       .stores = stores};
        ep->gpu->remote = remote;
    } else {
        free(stores);
    }
    if (!kind) /* READs behind which words wait look at this window */
        kind = mpix_boot_agree(ep->boot, mpix_win_commit(ep->stage, 0, ep->stage_bytes));
    else
        kind = mpix_boot_agree(ep->boot, kind);
    if (!kind)
        kind = mpix_proxy_window(ep->remote->proxy, MPIX_EP_WINDOW_STAGE, ep->stage->base,
                                 ep->stage_bytes);
    return kind ? kind : mpix_boot_agree(ep->boot, create_local(ep, remote));
}

static void store_free(mpix_ep *ep, remote_store *store) {
    mpix_proxy *proxy = ep->remote->proxy;
    for (int r = 0; store->rmem && r < ep->size; r++)
        if (store->rmem[r])
            mpix_proxy_rmem_close(proxy, store->rmem[r]);
    if (store->mem)
        mpix_proxy_mem_dereg(proxy, store->mem);
    if (store->gpu && store->base)
        ep->gpu->ops->local_free(&ep->gpu->device, store->base);
    else if (store->mapped)
        ep->gpu->ops->host_unregister(&ep->gpu->device, store->base);
    if (!store->gpu && !ep->unsafe)
        mpix_mem_shared_free(store->base);
    free(store->rmem);
    *store = (remote_store){0};
}

void mpix_ep_gpu_remote_free(mpix_ep *ep) {
    mpix_ep_gpu_remote *remote = ep->gpu->remote;
    if (!remote)
        return;
    ep->unsafe |= mpix_proxy_end(ep->remote->proxy) != 0; /* then windows may go */
    mpix_gpu_queues_close(remote->queues);
    for (int i = 0; remote->stores && i < ep->params.max_handles; i++)
        store_free(ep, &remote->stores[i]);
    if (remote->state)
        remote->gpu.ops->local_free(&remote->gpu.device, remote->state);
    if (remote->peers)
        remote->gpu.ops->local_free(&remote->gpu.device, remote->peers);
    free(remote->stores);
    free(remote);
    ep->gpu->remote = NULL;
}

#define SETTLE_NS UINT64_C(10000000000)
void mpix_ep_gpu_remote_settle(mpix_ep *ep) {
    mpix_ep_gpu_remote *remote = ep->gpu->remote;
    uint64_t limit = ep->limit_ns < SETTLE_NS ? ep->limit_ns : SETTLE_NS;
    if (!remote || !remote->queues)
        return;
    ep->gpu->ops->device_sync(&ep->gpu->device);
    uint64_t start = mpix_clock_ns();
    while (!mpix_gpu_queues_settled(remote->queues) && mpix_clock_ns() - start < limit)
        sched_yield();
}

/* ---- handles --------------------------------------------------------------------------------- */

/* Whether batches go between two ranks; room for them is in both windows. */
static int has_room(const mpix_ep *ep, int r, int p) {
    const int *host_of = ep->boot->host_of;
    if (host_of[p] == host_of[r])
        return 0;
    return ep->config.mode == MPIX_EP_LL || ep->params.two_hops != MPIX_HOPS_ON ||
           mpix_ep_forwarder(ep->boot, r, host_of[p]) == p ||
           mpix_ep_forwarder(ep->boot, p, host_of[r]) == r;
}

/* How many of the ranks below `below` have room in r's window: the number of a peer's. */
static uint8_t room_of(const mpix_ep *ep, int r, int below) {
    uint8_t n = 0;
    for (int p = 0; p < below; p++)
        n = (uint8_t)(n + has_room(ep, r, p));
    return n;
}

/* Two hops: who forwards for whom, and what they must save. */
static void remote_hops(const mpix_ep *ep, mpix_cuda_remote *f) {
    const int *host_of = ep->boot->host_of;
    double least = (double)ep->params.two_hops_bytes * ep->size / (double)ep->config.max_row_bytes;
    int shared = 0;
    for (int h = 0; h < f->nhosts; h++)
        shared |= (f->host[h] & (f->host[h] - 1)) != 0;
    f->two_hops = ep->config.mode != MPIX_EP_LL && ep->config.layout != MPIX_EP_EXPERT &&
                  (ep->params.two_hops == MPIX_HOPS_ON ||
                   (ep->params.two_hops == MPIX_HOPS_AUTO && shared));
    f->saves = ep->params.two_hops == MPIX_HOPS_ON
                   ? -1
                   : (int64_t)least + ((double)(int64_t)least < least);
    f->here_host = host_of[ep->rank];
    for (int h = 0; h < f->nhosts; h++)
        f->via[h] = (uint8_t)(h == f->here_host ? ep->rank
                                                : mpix_ep_forwarder(ep->boot, ep->rank, h));
    for (int r = 0; r < ep->size; r++) {
        f->host_of[r] = (uint8_t)host_of[r];
        if (ep->remote->is[r] && mpix_ep_forwarder(ep->boot, r, f->here_host) == ep->rank)
            f->serves |= UINT32_C(1) << r;
    }
}

/* Low latency: bytes of a batch, and the rooms. */
static void remote_rooms_ll(const MPIX_Ep_config *c, const mpix_cuda_ll *ll, mpix_cuda_remote *f) {
    size_t tokens = (size_t)c->max_tokens;
    f->batch[0] = up(MPIX_CUDA_LL_HEAD + ll->counts_bytes + tokens * (ll->row + 16 + ll->record),
                     128);
    f->batch[1] =
        up(MPIX_CUDA_LL_HEAD + tokens * (ll->answer + 16 + up(4 * (size_t)c->max_topk, 16)), 128);
    f->room = (size_t)c->depth * (f->batch[0] + f->batch[1]);
}

/* Of a window with room for so many peers. */
static size_t remote_bytes(const mpix_cuda_remote *f, size_t npeers) {
    return f->land + npeers * (f->room + (f->batch[1] ? f->batch[0] + f->batch[1] : f->room));
}

/* Sizes and places in a window, where blocks and what comes are alike on all ranks. block: bytes of
 * a rank's block in the GPU's window; ll: in low latency. The window's bytes. */
static size_t remote_layout(const MPIX_Ep_config *c, size_t ranks, size_t npeers, size_t block,
                            int two_hops, const mpix_cuda_ll *ll, mpix_cuda_remote *f) {
    int expert = !ll && c->layout == MPIX_EP_EXPERT;
    size_t topk = (size_t)c->max_topk,
           row = (size_t)c->max_row_bytes * (expert ? MPIX_EP_GPU_REMOTE_PARTIAL : 1);
    size_t item =
        up(row + 32 +
               up(mpix_record_bytes(MPIX_RECORD_GPU,
                                    two_hops ? MPIX_RECORD_FORWARD : MPIX_RECORD_ROW, topk),
                  16),
           128);
    f->arrived = block;
    f->block = up(f->arrived + 3 * MPIX_CUDA_REMOTE_CHUNKS * sizeof(uint64_t), 128);
    f->ask = up(mpix_record_bytes(MPIX_RECORD_GPU, MPIX_RECORD_PAIR, topk), 16);
    /* in a room, so that land and room are alike on all ranks */
    f->asks = up((size_t)c->max_tokens * item + 1, 4096);
    f->room = f->asks + (two_hops || expert ? up((size_t)c->max_tokens * f->ask + 1, 4096) : 0);
    if (ll)
        remote_rooms_ll(c, ll, f);
    f->out = up(f->block * ranks, 4096);
    f->land = up(f->out + f->block * ranks, 4096);
    f->pack = f->land + npeers * f->room;
    return remote_bytes(f, npeers);
}

/* The same with who is where. */
static size_t remote_geometry(const mpix_ep *ep, mpix_cuda_handle *d) {
    mpix_cuda_remote *f = &d->remote;
    for (int r = 0; r < ep->size; r++) {
        f->is |= (uint32_t)(ep->remote->is[r] != 0) << r;
        f->room_index[r] = room_of(ep, ep->rank, r);
        f->there[r] = room_of(ep, r, ep->rank);
    }
    remote_hops(ep, f);
    return remote_layout(&ep->config, (size_t)ep->size, room_of(ep, ep->rank, ep->size), d->block,
                         f->two_hops, d->ll.on ? &d->ll : NULL, f);
}

size_t mpix_ep_gpu_remote_bytes(const MPIX_Ep_config *c, const mpix_params *params,
                                const mpix_cuda_ll *ll, int ranks, int ranks_per_host) {
    mpix_cuda_remote f = {0};
    size_t hosts = (size_t)(ranks + ranks_per_host - 1) / (size_t)ranks_per_host,
           peers = (size_t)(ranks - ranks_per_host);
    size_t block = up(sizeof(mpix_cuda_words) + 4 * sizeof(mpix_cuda_offer) +
                          2 * up(16 + 4 * ((size_t)ranks + (size_t)c->num_experts + hosts), 64),
                      128);
    int two_hops = c->layout != MPIX_EP_EXPERT &&
                   (params->two_hops == MPIX_HOPS_ON ||
                    (params->two_hops == MPIX_HOPS_AUTO && ranks_per_host > 1));
    mpix_cuda_expert x;
    if (!ll && c->layout == MPIX_EP_EXPERT)
        block = mpix_ep_gpu_expert_block(block, c->max_tokens, ranks, &x);
    /* of equal hosts a rank exchanges batches with one rank of each other host */
    return remote_layout(c, (size_t)ranks,
                         params->two_hops == MPIX_HOPS_ON && !ll ? hosts - 1 : peers, block,
                         two_hops && !ll, ll, &f);
}

int mpix_ep_gpu_ht_window_size(const MPIX_Ep_config *c, const mpix_params *params, int ranks,
                               int ranks_per_host, MPI_Count *bytes) {
    mpix_ep_ctl_layout layout;
    int kind = mpix_ep_ht_banks(c, params, ranks, ranks_per_host, 1, bytes, &layout);
    if (!kind && ranks_per_host < ranks)
        *bytes += (MPI_Count)mpix_ep_gpu_remote_bytes(c, params, NULL, ranks, ranks_per_host);
    return kind;
}

/* The window in GPU memory. 0, or a kind with the reason in why, and nothing is left. */
static int store_gpu(mpix_ep *ep, remote_store *store, size_t bytes, char *why) {
    const mpix_ep_gpu *gpu = ep->gpu;
    mpix_net_gpu way = {.fd = -1,
                        .peermem = access("/sys/module/nvidia_peermem", F_OK) == 0 ||
                                   access("/sys/module/nv_peer_mem", F_OK) == 0};
    void *base = NULL;
    char text[MPIX_CUDA_WHY] = "";
    bytes = up(bytes, GPU_GRAIN);
    if (!mpix_proxy_reaches_gpu(ep->remote->proxy)) {
        snprintf(why, MPIX_CUDA_WHY, "the transport %.60s registers no memory of GPUs",
                 mpix_proxy_net_name(ep->remote->proxy));
        return MPIX_ERRK_UNSUPPORTED;
    }
    if (!gpu->device.rdma_order) {
        snprintf(why, MPIX_CUDA_WHY,
                 "kernels of %s need not see a network device's writes in order", gpu->device.name);
        return MPIX_ERRK_UNSUPPORTED;
    }
    int kind = gpu->ops->local_alloc(&gpu->device, bytes, &base, why);
    if (kind)
        return kind;
    if (gpu->device.dmabuf && gpu->ops->dmabuf(&gpu->device, base, bytes, &way.fd, text))
        way.fd = -1;
    kind = mpix_proxy_mem_reg_gpu(ep->remote->proxy, base, bytes, &way, &store->mem);
    if (way.fd >= 0) /* the registration holds the buffer */
        close(way.fd);
    if (kind) {
        snprintf(why, MPIX_CUDA_WHY, "%.200s", way.why);
        gpu->ops->local_free(&gpu->device, base);
        return kind;
    }
    store->base = store->mapped = base;
    store->bytes = bytes;
    store->gpu = 1;
    snprintf(ep->gpu->remote->memory, sizeof ep->gpu->remote->memory, "GPU memory, as %s", way.how);
    return 0;
}

/* What can be done alone. The proxy is not turned by anybody but its thread, which
 * registration keeps out. */
static int store_local(mpix_ep *ep, remote_store *store, size_t bytes) {
    const mpix_ep_gpu *gpu = ep->gpu;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char why[MPIX_CUDA_WHY] = "";
    if ((uint64_t)bytes >= ep->path->limits.window)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.max_tokens",
                         "path %s: %zu bytes of a handle for proxied peers, it supports less than "
                         "%llu",
                         ep->path->name, bytes, (unsigned long long)ep->path->limits.window);
    store->rmem = calloc((size_t)ep->size, sizeof *store->rmem);
    if (store->rmem && ep->params.gpu_net_memory != MPIX_GPU_NET_HOST) {
        int none = store_gpu(ep, store, bytes, why);
        if (!none)
            return 0;
        if (ep->params.gpu_net_memory == MPIX_GPU_NET_GPU)
            return mpix_fail(MPIX_ERRK_UNSUPPORTED, "gpu_net_memory", "gpu_net_memory=gpu: %s",
                             why);
        mpix_log(MPIX_LOG_INFO, "rows of proxied peers go through pinned host memory: %s", why);
    }
    snprintf(ep->gpu->remote->memory, sizeof ep->gpu->remote->memory, "pinned host memory%s%.140s",
             why[0] ? ": " : "", why);
    int kind = store->rmem ? mpix_mem_shared_alloc(bytes, &store->base)
                           : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle");
    if (kind)
        return kind;
    store->bytes = bytes;
    kind = gpu->ops->host_register(&gpu->device, store->base, up(bytes, page), &store->mapped, why);
    if (kind)
        return mpix_fail(kind, NULL, "host memory for proxied peers (%zu bytes): %s", bytes, why);
    return mpix_proxy_mem_reg(ep->remote->proxy, store->base, bytes, &store->mem);
}

/* Registers a store's window and exchanges keys. Collective, ends in agreement. */
static int store_make(mpix_ep *ep, remote_store *store, size_t bytes) {
    mpix_proxy *proxy = ep->remote->proxy;
    size_t key = mpix_proxy_key_bytes(proxy) + 1; /* the last byte: it is GPU memory */
    char *keys = calloc((size_t)ep->size + 1, key);
    int kind = keys ? store_local(ep, store, bytes)
                    : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle");
    kind = mpix_boot_agree(ep->boot, kind);
    if (!kind) {
        mpix_proxy_mem_key(proxy, store->mem, keys + (size_t)ep->size * key);
        keys[((size_t)ep->size + 1) * key - 1] = (char)store->gpu;
        kind = mpix_boot_allgather(ep->boot, keys + (size_t)ep->size * key, key, keys);
    }
    int own = 0;
    for (int r = 0; r < ep->size && !kind && !own; r++)
        if (ep->remote->is[r])
            own = mpix_proxy_rmem_open(proxy, r, keys + (size_t)r * key, &store->rmem[r]);
    for (int r = 0; r < ep->size && !kind; r++)
        store->theirs |= (uint32_t)(keys[((size_t)r + 1) * key - 1] != 0) << r;
    kind = kind ? kind : mpix_boot_agree(ep->boot, own);
    free(keys);
    return kind;
}

/* The epochs with which an index goes on: the highest of all ranks, since a rank whose last call
 * failed may have counted less. Collective. */
static int index_epochs(mpix_ep *ep, remote_store *store) {
    uint64_t(*all)[MPIX_CUDA_TYPES] = calloc((size_t)ep->size, sizeof *all);
    int kind = mpix_boot_agree(ep->boot,
                               all ? 0
                                   : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a handle"));
    if (!kind)
        kind = mpix_boot_allgather(ep->boot, store->epochs, sizeof store->epochs, all);
    for (int r = 0; r < ep->size && !kind; r++)
        for (int k = 0; k < MPIX_CUDA_TYPES; k++)
            store->epochs[k] = all[r][k] > store->epochs[k] ? all[r][k] : store->epochs[k];
    free(all);
    return kind;
}

int mpix_ep_gpu_remote_handle(struct mpix_ep_handle *handle, mpix_cuda_handle *d) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu_remote *remote = ep->gpu->remote;
    mpix_cuda_remote *f = &d->remote;
    f->nhosts = ep->boot->nhosts;
    for (int r = 0; r < ep->size; r++)
        f->host[ep->boot->host_of[r]] |= UINT32_C(1) << r;
    if (!remote)
        return 0;
    remote_store *store = &remote->stores[handle->index];
    size_t bytes = remote_geometry(ep, d);
    /* one command each; alike on all ranks */
    if (f->batch[0] > UINT32_MAX || f->batch[1] > UINT32_MAX)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "config.max_tokens",
                         "MPIX_EP_LL in GPU memory among proxied peers: a batch of %lld tokens may "
                         "have %llu bytes, 2^32 - 1 can be had in this version",
                         (long long)ep->config.max_tokens,
                         (unsigned long long)(f->batch[0] > f->batch[1] ? f->batch[0]
                                                                        : f->batch[1]));
    int kind = store->base ? 0 : store_make(ep, store, bytes);
    if (kind)
        store_free(ep, store);
    else
        kind = index_epochs(ep, store);
    if (kind)
        return kind;
    f->lwin = handle->index;
    f->rwin = handle->index * ep->size;
    f->window = store->mapped;
    f->chunk_bytes = ep->params.chunk_bytes;
    f->queue = remote->state;
    mpix_gpu_queues_local(remote->queues, f->lwin, store->mem, store->base, store->bytes);
    for (int r = 0; r < ep->size; r++)
        if (ep->remote->is[r]) {
            mpix_gpu_queues_remote(remote->queues, f->rwin + r, r, store->rmem[r], 0,
                                   remote_bytes(f, room_of(ep, r, ep->size)), 0);
            if (store->theirs >> r & 1)
                mpix_gpu_queues_remote_gpu(remote->queues, f->rwin + r);
        }
    return 0;
}

/* The device's state is there: it goes on counting where the index's last handle ended. In low
 * latency all that mapped peers have sent was taken then. */
int mpix_ep_gpu_remote_begin(struct mpix_ep_handle *handle, const mpix_cuda_handle *d, char *why) {
    mpix_ep *ep = handle->ep;
    mpix_ep_gpu *gpu = ep->gpu;
    if (!gpu->remote)
        return 0;
    const uint64_t *epochs = gpu->remote->stores[handle->index].epochs;
    int kind = gpu->ops->copy(&gpu->device, d->state->epoch, epochs, sizeof d->state->epoch, why);
    if (kind || !d->ll.on)
        return kind;
    const uint64_t taken[2] = {epochs[MPIX_CUDA_DISPATCH], epochs[MPIX_CUDA_COMBINE]},
                   depth = (uint64_t)d->ll.depth;
    const uint32_t bank[2] = {(uint32_t)(taken[0] % depth), (uint32_t)(taken[1] % depth)};
    kind = gpu->ops->copy(&gpu->device, d->state->bank, bank, sizeof bank, why);
    for (int r = 0; r < ep->size && !kind; r++)
        kind = gpu->ops->copy(&gpu->device, d->window[ep->rank] + d->ll.block * (uint64_t)r, taken,
                              sizeof taken, why);
    return kind;
}

void mpix_ep_gpu_remote_end(struct mpix_ep_handle *handle, const mpix_cuda_handle *d) {
    mpix_ep_gpu *gpu = handle->ep->gpu;
    char why[MPIX_CUDA_WHY] = "";
    if (!gpu->remote || !d->state)
        return;
    mpix_ep_gpu_remote_settle(handle->ep); /* the index's next handle packs where this one has */
    (void)gpu->ops->copy(&gpu->device, gpu->remote->stores[handle->index].epochs, d->state->epoch,
                         sizeof d->state->epoch, why);
}

/* Ways are lanes of the network here, which kernels choose. */
void mpix_ep_gpu_peer(const mpix_ep *ep, MPIX_Ep_peer *peer, const char **memory) {
    peer->lanes = mpix_proxy_lanes(ep->remote->proxy);
    *memory = ep->gpu->remote && ep->gpu->remote->memory[0] ? ep->gpu->remote->memory : NULL;
}
