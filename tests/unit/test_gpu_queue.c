/*
 * test_gpu_queue.c - the proxy's side of kernels' commands, without a GPU: its memory is the
 * processor's, and what a kernel would store is stored here. One rank, its own peer, over shmem in
 * both forms of signals and with chaos on top. (The kernels' side is checked by make check-gpu.)
 */
#include "config.h"

#include <sched.h>
#include <stdlib.h>

#include "mem/shared.h"
#include "mpi_check.h"
#include "proxy/gpu_queue.h"
#include "proxy/proxy_internal.h"

enum { BYTES = 1 << 16, SLOTS = 64, COUNTERS = 8, ROUNDS = 400, PIECE = 40, STRIDE = 128 };
enum { WIN_COUNTERS, WIN_FROM, WIN_TO };

static mpix_boot *boot;
static mpix_proxy *proxy;
static mpix_gpu_queues *queues;
static mpix_dev_state state;
static mpix_dev_peer peer;
static uint64_t *counters, head;
static unsigned char *from, *to;

/* ---- a GPU that is none ---------------------------------------------------------------------- */

static int mock_pinned_alloc(size_t bytes, void **p, char *why) {
    (void)why;
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (*p)
        memset(*p, 0, bytes);
    return *p ? 0 : MPIX_ERRK_NO_MEM;
}
static void mock_pinned_free(void *p) { free(p); }
static int mock_local_alloc(const mpix_cuda_device *device, size_t bytes, void **p, char *why) {
    (void)device;
    return mock_pinned_alloc(bytes, p, why);
}
static void mock_local_free(const mpix_cuda_device *device, void *p) {
    (void)device;
    free(p);
}
static int mock_copy(const mpix_cuda_device *device, void *dst, const void *src, size_t bytes,
                     char *why) {
    (void)device, (void)why;
    memcpy(dst, src, bytes);
    return 0;
}
static const mpix_cuda_ops mock_ops = {.pinned_alloc = mock_pinned_alloc,
                                       .pinned_free = mock_pinned_free,
                                       .local_alloc = mock_local_alloc,
                                       .local_free = mock_local_free,
                                       .copy = mock_copy};
static const mpix_gpu gpu = {.ops = &mock_ops};

/* ---- a producer ------------------------------------------------------------------------------ */

static uint64_t load(const unsigned long long *p) {
    return atomic_load((const _Atomic uint64_t *)(const void *)p);
}

static uint64_t word0(int op, unsigned remote, unsigned local, uint64_t bytes) {
    return (uint64_t)op | (uint64_t)remote << 3 | (uint64_t)local << 19 | bytes << 31;
}

/* 0: no room. */
static int push(uint64_t w0, uint64_t w1, uint64_t loff, uint64_t roff, uint64_t len,
                uint64_t value) {
    const mpix_dev_fifo *f = &state.fifo[0];
    uint64_t slot = head & f->mask, valid = (uint64_t)1 << 63,
             parity = head & (f->mask + 1) ? 0 : valid;
    const uint64_t desc[] = {loff, roff, len, value};

    if (head - load(f->tail) > f->mask)
        return 0;
    memcpy(f->descs + 4 * slot, desc, sizeof desc);
    /* The halves in either order. */
    for (int i = 0; i < 2; i++) {
        int half = (i ^ (int)head) & 1;
        atomic_store((_Atomic uint64_t *)(void *)&f->slots[2 * slot + (unsigned)half],
                     ((half ? w1 : w0) & ~valid) | parity);
    }
    head++;
    return 1;
}

static void turn(void) { mpix_proxy_step(proxy); }

static void push_on(uint64_t w0, uint64_t w1, uint64_t loff, uint64_t roff, uint64_t len,
                    uint64_t value) {
    for (int i = 0; i < 1000000 && !push(w0, w1, loff, roff, len, value); i++)
        turn();
}

static int wait_for(const unsigned long long *word, uint64_t at_least) {
    for (int i = 0; i < 1000000 && load(word) < at_least; i++)
        turn();
    return load(word) >= at_least;
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* caller: the test turns the proxy; else it has THREADS threads, and a way to the peer
 * through each. */
static int open_queues(const char *transport, const char *form, const char *depth,
                       const char *fail_at, int caller) {
    static const unsigned char want = 1;
    const mpix_gpu_queues_config config = {.queues = 1,
                                           .entries = SLOTS,
                                           .spread = !caller,
                                           .counters = COUNTERS,
                                           .window = WIN_COUNTERS};
    mpix_params params;
    int kind = mpix_params_read(&params);

    kind = kind ? kind : mpix_params_set(&params, "transport", transport);
    kind = kind ? kind : mpix_params_set(&params, "signal", form);
    kind = kind     ? kind
           : caller ? mpix_params_set(&params, "proxy", "caller")
                    : mpix_params_set(&params, "proxy_threads", "3");
    kind = kind ? kind : mpix_params_set(&params, "proxy_depth", depth);
    kind = kind ? kind : mpix_params_set(&params, "chaos_fail_at", fail_at);
    memset(counters, 0, BYTES);
    memset(to, 0xa5, BYTES);
    for (int i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 7 + i / 256);
    kind = kind ? kind : mpix_proxy_create(boot, &params, &want, 4, !caller, NULL, &proxy);
    kind = kind ? kind : mpix_proxy_window(proxy, WIN_COUNTERS, counters, BYTES);
    kind = kind ? kind : mpix_proxy_window(proxy, WIN_FROM, from, BYTES);
    kind = kind ? kind : mpix_proxy_window(proxy, WIN_TO, to, BYTES);
    kind = kind ? kind : mpix_gpu_queues_open(proxy, &gpu, &config, &queues);
    CHECK(kind == 0, "%s %s: %s", transport, form, kind ? mpix_error_tls()->text : "");
    if (kind)
        return 0;
    mpix_gpu_queues_local(queues, 0, mpix_proxy_window_mem(proxy, WIN_FROM), from, BYTES);
    mpix_gpu_queues_remote(queues, 5, 0, mpix_proxy_window_rmem(proxy, 0, WIN_TO), 0, BYTES, 1);
    mpix_gpu_queues_describe(queues, &state);
    return 1;
}

static int open_all(const char *transport, const char *form, const char *depth,
                    const char *fail_at) {
    head = 0;
    if (!open_queues(transport, form, depth, fail_at, 1))
        return 0;
    mpix_gpu_queues_describe_peer(queues, 0, 0, &peer);
    return 1;
}

static void close_all(void) {
    mpix_gpu_queues_close(queues);
    queues = NULL;
    mpix_proxy_free(proxy);
    proxy = NULL;
}

/* ---- what is moved --------------------------------------------------------------------------- */

static uint64_t put_at(int k) { return (uint64_t)k * STRIDE + (k % 3 ? (uint64_t)k % 13 : 0); }

/* What round k put is there. */
static int landed(int k) { return memcmp(to + put_at(k), from + put_at(k), PIECE) == 0; }

/* The counter never tells of a put that has not landed, and never goes back. */
static void look(int *told) {
    uint64_t now = load((unsigned long long *)(void *)&counters[3]);

    CHECK(now >= (uint64_t)*told && now <= ROUNDS, "the counter went from %d to %llu", *told,
          (unsigned long long)now);
    for (; *told < (int)now && *told < ROUNDS; ++*told)
        CHECK(landed(*told), "signal %d came before its data", *told);
}

static void moves(const char *transport, const char *form) {
    int told = 0;

    if (!open_all(transport, form, "8", "0"))
        return;
    for (int k = 0; k < ROUNDS; k++) {
        uint64_t at = put_at(k);
        if (at % 16)
            push_on(word0(MPIX_DEV_CMD_PUT_DESC, 5, 0, 0), 0, at, at, PIECE, 0);
        else
            push_on(word0(MPIX_DEV_CMD_PUT, 5, 0, PIECE), at / 16 | (at / 16) << 31, 99, 99, 99,
                    99);
        push_on(word0(MPIX_DEV_CMD_SIGNAL, 0, 0, 3), 1, 0, 0, 0, 0);
        look(&told);
    }
    for (int i = 0; i < 1000000 && told < ROUNDS; i++) {
        turn();
        look(&told);
    }
    CHECK(told == ROUNDS, "%s %s: %d of %d signals", transport, form, told, ROUNDS);
    CHECK(to[put_at(ROUNDS - 1) + PIECE] == 0xa5, "%s %s: written outside", transport, form);
    /* Additions, and a flush that covers them. */
    memset(to, 0, 64);
    for (int k = 0; k < 50; k++)
        push_on(word0(MPIX_DEV_CMD_ADD_DESC, 5, 0, 0), 0, 0, 8, 8, 3);
    push_on(word0(MPIX_DEV_CMD_FLUSH, 0, 0, 0), 0, 0, 0, 0, 0);
    CHECK(wait_for(peer.done, head), "%s %s: the flush does not end", transport, form);
    CHECK(((uint64_t *)(void *)to)[1] == 150, "%s %s: added up to %llu", transport, form,
          (unsigned long long)((uint64_t *)(void *)to)[1]);
    CHECK(!load(peer.error) && load(peer.done) == head && load(state.fifo[0].tail) == head,
          "%s %s: the end", transport, form);
    close_all();
}

/* Pieces that each have a word of their own, which is never there before its data. */
static void words(const char *transport, const char *form, int in_gpu) {
    const uint64_t at = BYTES - ROUNDS * sizeof(uint64_t);
    uint64_t *word = (uint64_t *)(void *)(to + at);
    int told = 0;

    if (!open_all(transport, form, "8", "0"))
        return;
    memset(word, 0, ROUNDS * sizeof *word);
    if (in_gpu)
        mpix_gpu_queues_remote_gpu(queues, 5);
    uint64_t before, after, bytes;
    mpix_proxy_counts(proxy, 0, &before, &bytes);
    for (int k = 0; k < ROUNDS; k++) {
        uint64_t from_at = put_at(k) / 16;
        push_on(word0(MPIX_DEV_CMD_PUT, 5, 0, PIECE), from_at | from_at << 31, 0, 0, 0, 0);
        push_on((uint64_t)MPIX_DEV_CMD_WORD | 5 << 3 | (at / 8 + (uint64_t)k) << 19,
                (uint64_t)k + 7, 0, 0, 0, 0);
        *(uint64_t *)(void *)peer.last = head;
    }
    CHECK(load(peer.done) == head || !mpix_gpu_queues_settled(queues), "%s %s: settled too early",
          transport, form);
    for (int i = 0; i < 1000000 && told < ROUNDS; i++) {
        turn();
        for (; told < ROUNDS && load((unsigned long long *)(void *)&word[told]); told++) {
            uint64_t off = put_at(told) / 16 * 16;
            CHECK(word[told] == (uint64_t)told + 7, "%s %s: word %d is %llu", transport, form, told,
                  (unsigned long long)word[told]);
            CHECK(memcmp(to + off, from + off, PIECE) == 0, "%s %s: word %d came before its data",
                  transport, form, told);
        }
    }
    CHECK(told == ROUNDS && wait_for(peer.done, head), "%s %s: %d of %d words", transport, form,
          told, ROUNDS);
    CHECK(mpix_gpu_queues_settled(queues) && !load(peer.error), "%s %s: the end", transport, form);
    mpix_proxy_counts(proxy, 0, &after, &bytes);
    /* before each word, that what is before it is there */
    int reads = in_gpu || mpix_proxy_counted(proxy);
    CHECK(after - before == (uint64_t)(2 + reads) * ROUNDS, "%s %s: %llu messages", transport, form,
          (unsigned long long)(after - before));
    close_all();
}

/* ---- several threads ------------------------------------------------------------------------- */

enum { THREADS = 3 };

static uint64_t heads[MPIX_DEV_FIFOS];

/* Into the queue of a way, which has a number of its own. */
static void push_way(const mpix_dev_peer *way, uint64_t w0, uint64_t w1) {
    const mpix_dev_fifo *f = &state.fifo[way->fifo];
    uint64_t *at = &heads[way->fifo], slot = *at & f->mask, valid = (uint64_t)1 << 63,
             parity = *at & (f->mask + 1) ? 0 : valid;

    for (int i = 0; i < 10000000 && *at - load(f->tail) > f->mask; i++)
        sched_yield();
    atomic_store((_Atomic uint64_t *)(void *)&f->slots[2 * slot + 1], (w1 & ~valid) | parity);
    atomic_store((_Atomic uint64_t *)(void *)&f->slots[2 * slot], (w0 & ~valid) | parity);
    *(_Atomic uint64_t *)(void *)way->last = ++*at;
}

static int open_ways(const char *transport, const char *form, const char *fail_at,
                     mpix_dev_peer *ways) {
    memset(heads, 0, sizeof heads);
    if (!open_queues(transport, form, "8", fail_at, 0))
        return 0;
    CHECK(mpix_proxy_threads(proxy) == THREADS && mpix_proxy_lanes(proxy) == THREADS &&
              mpix_gpu_queues_rails(queues) == THREADS,
          "%d threads, %d lanes, %d ways", mpix_proxy_threads(proxy), mpix_proxy_lanes(proxy),
          mpix_gpu_queues_rails(queues));
    for (int w = 0; w < THREADS; w++)
        mpix_gpu_queues_describe_peer(queues, 0, w, &ways[w]);
    return 1;
}

/* Pieces by turns through all threads, each with its word. */
static void spread(const char *transport, const char *form) {
    const uint64_t at = BYTES - ROUNDS * sizeof(uint64_t);
    unsigned long long *word = (unsigned long long *)(void *)(to + at);
    mpix_dev_peer ways[THREADS];
    int told[THREADS] = {0}, all = 0;

    if (!open_ways(transport, form, "0", ways))
        return;
    CHECK(ways[0].fifo != ways[1].fifo && ways[1].fifo != ways[2].fifo &&
              ways[0].fifo != ways[2].fifo,
          "ways share a queue");
    CHECK(ways[0].error == ways[2].error && ways[0].done != ways[1].done,
          "one word of errors, and a number for each way");
    for (int k = 0; k < ROUNDS; k++)
        atomic_store((_Atomic uint64_t *)(void *)&word[k], 0);
    for (int k = 0; k < ROUNDS; k++) {
        uint64_t off = put_at(k) / 16;
        push_way(&ways[k % THREADS], word0(MPIX_DEV_CMD_PUT, 5, 0, PIECE), off | off << 31);
        push_way(&ways[k % THREADS],
                 (uint64_t)MPIX_DEV_CMD_WORD | 5 << 3 | (at / 8 + (uint64_t)k) << 19,
                 (uint64_t)k + 7);
    }
    for (int i = 0; i < 10000000 && all < ROUNDS; i++) {
        int before = all;
        for (int w = 0; w < THREADS; w++) /* in order by each way */
            for (int k; (k = told[w] * THREADS + w) < ROUNDS && load(&word[k]); told[w]++, all++) {
                uint64_t off = put_at(k) / 16 * 16;
                CHECK(load(&word[k]) == (uint64_t)k + 7 && memcmp(to + off, from + off, PIECE) == 0,
                      "%s %s: word %d came before its data", transport, form, k);
            }
        if (all == before)
            sched_yield();
    }
    CHECK(all == ROUNDS, "%s %s: %d of %d words", transport, form, all, ROUNDS);
    for (int i = 0; i < 10000000 && !mpix_gpu_queues_settled(queues); i++)
        sched_yield();
    CHECK(mpix_gpu_queues_settled(queues) && !load(ways[0].error), "%s %s: the end", transport,
          form);
    for (int w = 0; w < THREADS; w++)
        CHECK(load(ways[w].done) == heads[ways[w].fifo], "%s %s: way %d: %llu complete of %llu",
              transport, form, w, (unsigned long long)load(ways[w].done),
              (unsigned long long)heads[ways[w].fifo]);
    close_all();
}

/* The net of one thread fails: kernels are told whichever way they use, and all
 * queues are emptied. */
static void spread_failure(void) {
    mpix_dev_peer ways[THREADS];
    int left = 1;

    if (!open_ways("chaos:shmem", "auto", "20", ways))
        return;
    for (int k = 0; k < 100; k++)
        push_way(&ways[1], word0(MPIX_DEV_CMD_PUT, 5, 0, 64), 0);
    push_way(&ways[2], word0(MPIX_DEV_CMD_PUT, 5, 0, 64), 0);
    for (int i = 0; i < 10000000 && left; i++) {
        left = !load(ways[0].error);
        for (int w = 1; w < THREADS; w++)
            left |= load(state.fifo[ways[w].fifo].tail) < heads[ways[w].fifo];
        if (left)
            sched_yield();
    }
    CHECK(!left && load(ways[2].error) == (uint64_t)mpix_proxy_failed(proxy, 0, NULL),
          "error word %llu, left %d", (unsigned long long)load(ways[2].error), left);
    CHECK(load(ways[1].done) < 100, "what was lost counts as complete");
    close_all();
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(const char *what, uint64_t w0, uint64_t w1, uint64_t loff, uint64_t roff,
                    uint64_t len) {
    if (!open_all("shmem", "auto", "8", "0"))
        return;
    push_on(w0, w1, loff, roff, len, 1);
    push_on(word0(MPIX_DEV_CMD_SIGNAL, 0, 0, 1), 1, 0, 0, 0, 0); /* others go on */
    CHECK(wait_for((unsigned long long *)(void *)&counters[1], 1),
          "%s: what comes after it is held up", what);
    CHECK(load(peer.error) == MPIX_ERRK_ARG, "%s: error word %llu", what,
          (unsigned long long)load(peer.error));
    for (int i = 0; i < BYTES; i++)
        CHECK(to[i] == 0xa5, "%s: something was written", what);
    close_all();
}

static void refusals(void) {
    refused("no operation", word0(7, 0, 0, 0), 0, 0, 0, 0);
    refused("memory of no peer", word0(MPIX_DEV_CMD_PUT, 6, 0, 16), 0, 0, 0, 0);
    refused("no local memory", word0(MPIX_DEV_CMD_PUT, 5, 1, 16), 0, 0, 0, 0);
    refused("beyond the peer's memory", word0(MPIX_DEV_CMD_PUT, 5, 0, 32),
            (uint64_t)(BYTES / 16 - 1) << 31, 0, 0, 0);
    refused("beyond local memory", word0(MPIX_DEV_CMD_PUT_DESC, 5, 0, 0), 0, BYTES - 7, 0, 8);
    refused("an offset that wraps around", word0(MPIX_DEV_CMD_PUT_DESC, 5, 0, 0), 0, 0,
            UINT64_MAX - 7, 16);
    refused("an addition that is not aligned", word0(MPIX_DEV_CMD_ADD_DESC, 5, 0, 0), 0, 0, 4, 8);
    refused("a counter that does not exist", word0(MPIX_DEV_CMD_SIGNAL, 0, 0, COUNTERS), 1, 0, 0,
            0);
    refused("a word beyond the peer's memory",
            (uint64_t)MPIX_DEV_CMD_WORD | 5 << 3 | (uint64_t)(BYTES / 8) << 19, 1, 0, 0, 0);
    refused("a word in no peer's memory", (uint64_t)MPIX_DEV_CMD_WORD | 6 << 3, 1, 0, 0, 0);
    refused("a peer that does not exist", word0(MPIX_DEV_CMD_FLUSH, 1, 0, 0), 0, 0, 0, 0);
    if (!open_all("shmem", "auto", "8", "0"))
        return;
    mpix_gpu_queues_local(queues, 0, NULL, NULL, 0);
    push_on(word0(MPIX_DEV_CMD_PUT, 5, 0, 16), 0, 0, 0, 0, 0);
    for (int i = 0; i < 100; i++)
        turn();
    CHECK(load(peer.error) == MPIX_ERRK_ARG && to[0] == 0xa5, "memory that was given up");
    close_all();
}

/* The network fails: kernels are told, and their queue is emptied all the same. */
static void failure(void) {
    if (!open_all("chaos:shmem", "auto", "8", "20"))
        return;
    for (int k = 0; k < 200; k++)
        push_on(word0(MPIX_DEV_CMD_PUT, 5, 0, 64), 0, 0, 0, 0, 0);
    for (int i = 0; i < 100000 && load(state.fifo[0].tail) < head; i++)
        turn();
    CHECK(head == 200 && load(state.fifo[0].tail) == head, "%llu of 200 commands were taken",
          (unsigned long long)load(state.fifo[0].tail));
    CHECK(load(peer.error) != 0 && load(peer.error) == (uint64_t)mpix_proxy_failed(proxy, 0, NULL),
          "error word %llu", (unsigned long long)load(peer.error));
    CHECK(load(peer.done) < head, "what was lost counts as complete");
    close_all();
}

int main(int argc, char **argv) {
    int failed;

    check_mpi_init(&argc, &argv);
    if (mpix_boot_create(MPI_COMM_WORLD, &boot) != 0)
        return 1;
    void *memory[3] = {NULL};
    for (int i = 0; i < 3; i++)
        if (mpix_mem_shared_alloc(BYTES, &memory[i]) != 0)
            return 1;
    counters = memory[0];
    from = memory[1];
    to = memory[2];
    moves("shmem", "auto");
    moves("shmem", "counted");
    moves("chaos:shmem", "auto");
    words("shmem", "auto", 0);
    words("shmem", "auto", 1);
    words("shmem", "counted", 0);
    words("chaos:shmem", "auto", 0);
    spread("shmem", "auto");
    spread("shmem", "counted");
    spread("chaos:shmem", "auto");
    refusals();
    failure();
    spread_failure();
    mpix_boot_free(boot, 0);
    for (int i = 0; i < 3; i++)
        mpix_mem_shared_free(memory[i]);
    failed = check_report("test_gpu_queue");
    check_leaks();
    MPI_Finalize();
    return failed;
}
