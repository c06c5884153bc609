/*
 * gpu_queue.c - commands from kernels: the queues' memory, the tables, and taking. What is said in
 * gpu_queue.h is argued there; the producers' side of the ring beside mpix_dev_claim in
 * include/mpix_device.cuh.
 *
 * Taking. Commands are looked at (mpix_fifo_peek), queued in their lanes, and only then given back
 * with the tail, since descriptors stand in memory that the producers reuse with the entry. A
 * lane's admission is taken here for the kernel. Who takes holds the lock of the queue's part, and
 * tables change under the locks of all parts; a peer's sums are touched by one part, the one that
 * has way 0 to it.
 *
 * A command that names what does not exist is not the peer's failure, but nothing after it can be
 * trusted: the word that kernels watch beside the peer's gets ARG, and the log says what it was.
 */
#include "config.h"

#include "proxy/gpu_queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proxy/proxy_internal.h"

typedef struct gpu_local {
    const mpix_proxy_mem *mem;
    char *base;
    uint64_t bytes;
} gpu_local;

typedef struct gpu_remote {
    const mpix_proxy_rmem *rmem;
    uint64_t off, bytes;
    int peer, add, gpu;
} gpu_remote;

struct mpix_gpu_queues {
    mpix_proxy *proxy;
    const mpix_gpu *gpu;
    mpix_gpu_queues_config config;
    mpix_fifo *fifo[MPIX_DEV_FIFOS]; /* pinned; head is not used */
    uint64_t *descs[MPIX_DEV_FIFOS]; /* pinned */
    int each, nqueues, rails;        /* queues of a part, of all */
    uint64_t *heads;                 /* GPU memory: [queues][HEADS * HEAD_WORDS], then
                                      * [ways][size][PEER_WORDS] */
    _Atomic uint64_t *words;         /* pinned: done[ways][size], error[size] */
    uint64_t *sums;                  /* [size][counters] */
    gpu_local local[MPIX_DEV_LOCALS];
    gpu_remote *remote; /* [MPIX_DEV_REMOTES] */
};

/* each counter has a cache line */
enum { HEADS = 4, PEER_HEADS = 3, HEAD_WORDS = 16, PEER_WORDS = PEER_HEADS * HEAD_WORDS };

_Static_assert(MPIX_ERRK_ARG == (int)MPIX_DEVICE_ARG && MPIX_ERRK_PEER == (int)MPIX_DEVICE_PEER &&
                   MPIX_ERRK_TIMEOUT == (int)MPIX_DEVICE_TIMEOUT &&
                   MPIX_ERRK_UNSUPPORTED == (int)MPIX_DEVICE_UNSUPPORTED,
               "kernels return kinds");
_Static_assert(sizeof(uint64_t) == sizeof(unsigned long long), "words of the device");

/* Ways to a peer are its last lanes, the last one first: a single way leaves the first lane to the
 * host's commands. */
static int queue_lane(const mpix_gpu_queues *q, int rail) { return q->proxy->nlanes - 1 - rail; }

/* The way that a part has to a peer, -1: none. With as many ways as parts there is one in each. */
static int queue_rail(const mpix_gpu_queues *q, const proxy_part *part, int peer) {
    for (int rail = 0; rail < q->rails; rail++)
        if (proxy_part_of(q->proxy, peer, queue_lane(q, rail)) == part->index)
            return rail;
    return -1;
}

static uint64_t *peer_heads(const mpix_gpu_queues *q, int peer, int rail) {
    return q->heads + (size_t)q->nqueues * HEADS * HEAD_WORDS +
           (size_t)(rail * q->proxy->size + peer) * PEER_WORDS;
}

static _Atomic uint64_t *done_word(const mpix_gpu_queues *q, int peer, int rail) {
    return &q->words[rail * q->proxy->size + peer];
}
static _Atomic uint64_t *error_word(const mpix_gpu_queues *q, int peer) {
    return &q->words[q->rails * q->proxy->size + peer];
}

static void queues_lock(mpix_gpu_queues *q) {
    for (int i = 0; i < q->proxy->nparts; i++)
        proxy_lock(q->proxy->part[i]);
}

static void queues_unlock(mpix_gpu_queues *q) {
    for (int i = 0; i < q->proxy->nparts; i++)
        proxy_unlock(q->proxy->part[i]);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int queues_alloc(mpix_gpu_queues *q, char *why) {
    const mpix_cuda_ops *ops = q->gpu->ops;
    size_t entries = (size_t)q->config.entries, size = (size_t)q->proxy->size,
           rails = (size_t)q->rails;
    int kind = 0;

    for (int i = 0; i < q->nqueues && !kind; i++) {
        size_t at = (sizeof **q->fifo + 63) / 64 * 64;
        kind = ops->pinned_alloc(at + entries * sizeof(mpix_fifo_entry), (void **)&q->fifo[i], why);
        if (!kind)
            kind = ops->pinned_alloc(entries * MPIX_DEV_DESC_WORDS * sizeof **q->descs,
                                     (void **)&q->descs[i], why);
        if (!kind)
            mpix_fifo_place(q->fifo[i], (mpix_fifo_entry *)(void *)((char *)q->fifo[i] + at),
                            entries);
    }
    if (!kind)
        kind = ops->pinned_alloc((rails + 1) * size * sizeof *q->words, (void **)&q->words, why);
    if (!kind)
        kind =
            ops->local_alloc(&q->gpu->device,
                             ((size_t)q->nqueues * HEADS * HEAD_WORDS + rails * size * PEER_WORDS) *
                                 sizeof *q->heads,
                             (void **)&q->heads, why);
    return kind;
}

int mpix_gpu_queues_open(mpix_proxy *proxy, const mpix_gpu *gpu,
                         const mpix_gpu_queues_config *config, mpix_gpu_queues **out) {
    char why[MPIX_CUDA_WHY] = "";
    mpix_gpu_queues *q = calloc(1, sizeof *q);
    int kind;

    if (!q)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the queues of a GPU");
    q->proxy = proxy;
    q->gpu = gpu;
    q->config = *config;
    q->rails = config->spread ? proxy->nparts : 1;
    q->each = (config->queues + proxy->nparts - 1) / proxy->nparts;
    if (q->each * proxy->nparts > MPIX_DEV_FIFOS)
        q->each = MPIX_DEV_FIFOS / proxy->nparts;
    q->nqueues = q->each * proxy->nparts;
    q->sums = calloc((size_t)proxy->size * (size_t)config->counters, sizeof *q->sums);
    q->remote = calloc(MPIX_DEV_REMOTES, sizeof *q->remote);
    kind = q->sums && q->remote
               ? queues_alloc(q, why)
               : mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for the queues of a GPU");
    if (kind) {
        if (why[0])
            kind = mpix_fail(kind, NULL, "the queues of a GPU: %s", why);
        mpix_gpu_queues_close(q);
        return kind;
    }
    queues_lock(q);
    for (int i = 0; i < proxy->nparts; i++)
        proxy->part[i]->gpu = q;
    queues_unlock(q);
    *out = q;
    return 0;
}

void mpix_gpu_queues_close(mpix_gpu_queues *q) {
    const mpix_cuda_ops *ops;

    if (!q)
        return;
    ops = q->gpu->ops;
    queues_lock(q);
    for (int i = 0; i < q->proxy->nparts; i++)
        if (q->proxy->part[i]->gpu == q)
            q->proxy->part[i]->gpu = NULL;
    queues_unlock(q);
    for (int i = 0; i < q->nqueues; i++) {
        if (q->fifo[i])
            ops->pinned_free(q->fifo[i]);
        if (q->descs[i])
            ops->pinned_free(q->descs[i]);
    }
    if (q->words)
        ops->pinned_free((void *)q->words);
    if (q->heads)
        ops->local_free(&q->gpu->device, q->heads);
    free(q->remote);
    free(q->sums);
    free(q);
}

/* ---- for the device -------------------------------------------------------------------------- */

static unsigned long long *queue_word(uint64_t *p) { return (unsigned long long *)(void *)p; }

void mpix_gpu_queues_describe(const mpix_gpu_queues *q, mpix_dev_state *state) {
    state->nfifos = q->nqueues;
    state->ways = q->rails;
    for (int i = 0; i < q->nqueues; i++) {
        uint64_t *heads = q->heads + (size_t)i * HEADS * HEAD_WORDS;
        state->fifo[i] =
            (mpix_dev_fifo){.reserved = queue_word(heads),
                            .head = queue_word(heads + HEAD_WORDS),
                            .seen = queue_word(heads + 2 * HEAD_WORDS),
                            .looking = queue_word(heads + 3 * HEAD_WORDS),
                            .slots = queue_word((uint64_t *)(void *)q->fifo[i]->entries),
                            .descs = queue_word(q->descs[i]),
                            .tail = queue_word((uint64_t *)(void *)&q->fifo[i]->tail),
                            .mask = q->fifo[i]->mask};
    }
}

int mpix_gpu_queues_rails(const mpix_gpu_queues *q) { return q->rails; }

void mpix_gpu_queues_describe_peer(const mpix_gpu_queues *q, int peer, int rail,
                                   mpix_dev_peer *out) {
    const mpix_proxy *proxy = q->proxy;
    uint64_t *heads = peer_heads(q, peer, rail);

    out->proxied = 1;
    out->fifo = proxy_part_of(proxy, peer, queue_lane(q, rail)) * q->each +
                peer / proxy->nparts % q->each;
    out->last = queue_word(heads);
    out->done_seen = queue_word(heads + HEAD_WORDS);
    out->looking = queue_word(heads + 2 * HEAD_WORDS);
    out->done = queue_word((uint64_t *)(void *)done_word(q, peer, rail));
    out->error = queue_word((uint64_t *)(void *)error_word(q, peer));
}

void mpix_gpu_queues_local(mpix_gpu_queues *q, int index, const mpix_proxy_mem *mem, void *base,
                           uint64_t bytes) {
    queues_lock(q);
    q->local[index] = (gpu_local){mem, base, bytes};
    queues_unlock(q);
}

void mpix_gpu_queues_remote(mpix_gpu_queues *q, int index, int peer, const mpix_proxy_rmem *rmem,
                            uint64_t off, uint64_t bytes, int add) {
    queues_lock(q);
    q->remote[index] =
        (gpu_remote){.rmem = rmem, .off = off, .bytes = bytes, .peer = peer, .add = add};
    queues_unlock(q);
}

void mpix_gpu_queues_remote_gpu(mpix_gpu_queues *q, int index) {
    queues_lock(q);
    q->remote[index].gpu = 1;
    queues_unlock(q);
}

int mpix_gpu_queues_settled(const mpix_gpu_queues *q) {
    char why[MPIX_CUDA_WHY] = "";

    for (int r = 0; r < q->proxy->size; r++) {
        if (!q->proxy->part[proxy_part_of(q->proxy, r, queue_lane(q, 0))]->peers[r].lanes ||
            mpix_proxy_failed(q->proxy, r, NULL))
            continue;
        for (int rail = 0; rail < q->rails; rail++) {
            uint64_t number = 0;
            if (q->gpu->ops->copy(&q->gpu->device, &number, peer_heads(q, r, rail), sizeof number,
                                  why) == 0 &&
                atomic_load_explicit(done_word(q, r, rail), memory_order_acquire) < number)
                return 0;
        }
    }
    return 1;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* The first one counts; parts may find a failure at once. */
static void queue_error(mpix_gpu_queues *q, int peer, int kind) {
    uint64_t none = 0;

    atomic_compare_exchange_strong_explicit(error_word(q, peer), &none, (uint64_t)kind,
                                            memory_order_release, memory_order_relaxed);
}

void proxy_gpu_failed(proxy_part *part, int peer, int kind) {
    if (part->gpu)
        queue_error(part->gpu, peer, kind);
}

/* Commands for a peer by one way complete in the order of their numbers: one queue, one lane.
 * Release: the source's memory is free again. */
void proxy_gpu_done(proxy_part *part, int peer, int lane, uint64_t seq) {
    mpix_gpu_queues *q = part->gpu;

    if (q && seq)
        atomic_store_explicit(done_word(q, peer,
                                        queue_lane(q, 0) -
                                            proxy_lane_of(part->whole, part->index, peer, lane)),
                              seq, memory_order_release);
}

/* What a command is made of: up to two requests. 0: it names what does not exist; *peer is whose
 * word tells, -1: nobody's. */
static int queue_put(const mpix_gpu_queues *q, const proxy_part *part, uint64_t word0,
                     uint64_t loff, uint64_t roff, uint64_t len, mpix_request *r) {
    const gpu_local *l = &q->local[word0 >> 19 & (MPIX_DEV_LOCALS - 1)];
    const gpu_remote *to = &q->remote[word0 >> 3 & (MPIX_DEV_REMOTES - 1)];

    if (!l->mem || !to->rmem || !to->rmem->of[part->index] || len > l->bytes ||
        loff > l->bytes - len || len > to->bytes || roff > to->bytes - len)
        return 0;
    r->net = (mpix_net_op){.op = MPIX_NET_WRITE,
                           .peer = (uint16_t)to->peer,
                           .local = l->base + loff,
                           .roff = to->off + roff,
                           .len = len,
                           .counter = -1,
                           .mem = l->mem->of[part->index],
                           .rmem = to->rmem->of[part->index]};
    return 1;
}

static int queue_add(const mpix_gpu_queues *q, const proxy_part *part, uint64_t word0,
                     const uint64_t *desc, mpix_request *r) {
    const gpu_remote *to = &q->remote[word0 >> 3 & (MPIX_DEV_REMOTES - 1)];
    uint64_t at = (uint64_t)part->size * (uint64_t)q->config.counters * sizeof(uint64_t);

    if (!to->rmem || !to->rmem->of[part->index] || !to->add || to->bytes < 8 ||
        desc[1] > to->bytes - 8 || (to->off + desc[1]) % 8)
        return 0;
    /* the old value, which nobody asks for */
    r->net = (mpix_net_op){.op = MPIX_NET_ADD,
                           .peer = (uint16_t)to->peer,
                           .local = part->base[q->config.window] + at,
                           .roff = to->off + desc[1],
                           .len = 8,
                           .counter = -1,
                           .mem = part->mem[q->config.window],
                           .rmem = to->rmem->of[part->index],
                           .value = desc[3]};
    return 1;
}

/* A word or a READ of one of this rank's counters in the peer's window. */
static void queue_word_request(const mpix_gpu_queues *q, const proxy_part *part, int peer, int op,
                               int counter, mpix_request *r) {
    uint64_t words = (uint64_t)q->config.counters,
             at = (uint64_t)part->size * words * sizeof(uint64_t);

    r->net = (mpix_net_op){.op = (uint8_t)op,
                           .peer = (uint16_t)peer,
                           .roff = ((uint64_t)part->boot->rank * words + (uint64_t)counter) *
                                   sizeof(uint64_t),
                           .len = 8,
                           .counter = -1,
                           .rmem = part->peers[peer].rmem[q->config.window]};
    if (op == MPIX_NET_READ) {
        r->net.mem = part->mem[q->config.window];
        r->net.local = part->base[q->config.window] + at;
    }
}

/* A word behind all that was put to the peer before. Returns how many requests. */
static int queue_store(const mpix_gpu_queues *q, const proxy_part *part, uint64_t word0,
                       uint64_t value, mpix_request r[2]) {
    const gpu_remote *to = &q->remote[word0 >> 3 & (MPIX_DEV_REMOTES - 1)];
    uint64_t off = (word0 >> 19) * sizeof(uint64_t);
    int n = part->counted || to->gpu;

    if (!to->rmem || !to->rmem->of[part->index] || to->bytes < sizeof(uint64_t) ||
        off > to->bytes - sizeof(uint64_t) || (to->off + off) % sizeof(uint64_t))
        return 0;
    if (n) {
        queue_word_request(q, part, to->peer, MPIX_NET_READ, 0, &r[0]);
        r[0].net.rmem = to->rmem->of[part->index];
        r[0].net.roff = to->off + off;
        r[0].fence = 1;
    }
    r[n].net = (mpix_net_op){.op = MPIX_NET_WORD,
                             .peer = (uint16_t)to->peer,
                             .roff = to->off + off,
                             .len = sizeof(uint64_t),
                             .counter = -1,
                             .rmem = to->rmem->of[part->index],
                             .value = value};
    r[n].fence = n > 0;
    return n + 1;
}

/* Returns how many requests, 0: the command is wrong. The sum of a signal is added to when the
 * command is admitted. */
static int queue_decode(mpix_gpu_queues *q, const proxy_part *part, const mpix_cmd *cmd,
                        const uint64_t *desc, mpix_request r[2]) {
    uint64_t word0 = cmd->half[0], word1 = cmd->half[1];
    int op = (int)(word0 & 7), peer = (int)(word0 >> 3 & 0xffff);
    uint64_t counter = word0 >> 31;

    switch (op) {
    case MPIX_DEV_CMD_PUT:
        return queue_put(q, part, word0, (word1 & 0x7fffffff) * MPIX_DEV_UNIT,
                         (word1 >> 31) * MPIX_DEV_UNIT, word0 >> 31, &r[0]);
    case MPIX_DEV_CMD_PUT_DESC: return queue_put(q, part, word0, desc[0], desc[1], desc[2], &r[0]);
    case MPIX_DEV_CMD_ADD_DESC: return queue_add(q, part, word0, desc, &r[0]);
    case MPIX_DEV_CMD_WORD: return queue_store(q, part, word0, word1, r);
    case MPIX_DEV_CMD_FLUSH:
    case MPIX_DEV_CMD_SIGNAL: break;
    default: return 0;
    }
    if (peer >= part->size || !part->peers[peer].lanes ||
        !part->peers[peer].rmem[q->config.window] || counter >= (uint64_t)q->config.counters)
        return 0;
    queue_word_request(q, part, peer, MPIX_NET_READ, 0, &r[0]);
    r[0].fence = 1;
    if (op == MPIX_DEV_CMD_FLUSH)
        return 1;
    int ordered = !part->counted, n = ordered ? 0 : 1;
    queue_word_request(q, part, peer, MPIX_NET_WORD, (int)counter, &r[n]);
    r[n].fence = !ordered;
    r[n].net.value = q->sums[(size_t)peer * (size_t)q->config.counters + counter] + word1;
    return n + 1;
}

static void queue_refuse(mpix_gpu_queues *q, const mpix_cmd *cmd) {
    const gpu_remote *to = &q->remote[cmd->half[0] >> 3 & (MPIX_DEV_REMOTES - 1)];
    int op = (int)(cmd->half[0] & 7), named = (int)(cmd->half[0] >> 3 & 0xffff);

    mpix_log(MPIX_LOG_ERROR,
             "proxy: a command of a kernel names memory, a peer or a range that does not exist "
             "(words %016" PRIx64 " %016" PRIx64 ")",
             cmd->half[0], cmd->half[1]);
    if (op == MPIX_DEV_CMD_SIGNAL || op == MPIX_DEV_CMD_FLUSH)
        named = named < q->proxy->size ? named : -1;
    else
        named = to->rmem ? to->peer : -1;
    for (int r = 0; r < q->proxy->size; r++)
        if (r == named || named < 0)
            queue_error(q, r, MPIX_ERRK_ARG);
}

/* One command. 0: its lane has no room now. */
static int queue_take(mpix_gpu_queues *q, proxy_part *part, const mpix_cmd *cmd,
                      const uint64_t *desc, uint64_t number) {
    mpix_request r[2] = {0};
    int n = queue_decode(q, part, cmd, desc, r);

    int peer = r[0].net.peer, rail = n > 0 ? queue_rail(q, part, peer) : -1;
    if (rail < 0) {
        queue_refuse(q, cmd);
        return 1;
    }
    int number_of_lane = proxy_lane_in_part(q->proxy, queue_lane(q, rail));
    proxy_lane *lane = &part->peers[peer].lanes[number_of_lane];
    if (!atomic_load_explicit(&part->peers[peer].failed, memory_order_relaxed) &&
        !proxy_admit(part, lane, (uint64_t)n))
        return 0;
    for (int i = 0; i < n; i++) {
        r[i].net.lane = (uint8_t)number_of_lane;
        r[i].gpu = 1;
        if (r[i].net.op == MPIX_NET_WORD && (cmd->half[0] & 7) == MPIX_DEV_CMD_SIGNAL)
            q->sums[(size_t)peer * (size_t)q->config.counters + (cmd->half[0] >> 31)] =
                r[i].net.value;
        proxy_queue_request(part, &r[i], i == n - 1 ? number : 0);
    }
    return 1;
}

static int queue_turn(mpix_gpu_queues *q, proxy_part *part, int f) {
    mpix_fifo *fifo = q->fifo[f];
    uint64_t position = atomic_load_explicit(&fifo->tail, memory_order_relaxed);
    mpix_cmd cmds[PROXY_BATCH];
    int n = mpix_fifo_peek(fifo, cmds, PROXY_BATCH), i = 0;

    while (i < n &&
           queue_take(q, part, &cmds[i],
                      q->descs[f] + MPIX_DEV_DESC_WORDS * ((position + (uint64_t)i) & fifo->mask),
                      position + (uint64_t)i + 1))
        i++;
    if (i > 0)
        mpix_fifo_advance(fifo, i);
    return i;
}

int proxy_gpu_take(proxy_part *part) {
    mpix_gpu_queues *q = part->gpu;
    int taken = 0;

    for (int f = part->index * q->each; f < (part->index + 1) * q->each; f++)
        taken += queue_turn(q, part, f);
    return taken;
}
