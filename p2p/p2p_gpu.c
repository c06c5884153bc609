/*
 * p2p_gpu.c - GPU memory: a device for the object, opened when it is first needed; memory and
 * handles; copies and additions on the object's stream or the caller's.
 *
 * What is reached. GPU memory of peers of the same host is mapped (DIRECT), so the caller's GPU
 * moves the data and nobody else takes part: allocations of MPIX_P2p_alloc by what src/gpu/gpu.h
 * does, memory of cudaMalloc by CUDA IPC. Memory of cudaMallocAsync and of cuMemCreate can't be
 * opened by another process unless its maker arranged for it, which the library can't ask for
 * afterwards: it serves as the local side of transfers, and a peer that wants it is told why not.
 * The other side may be mapped host memory.
 *
 * Completion. A transfer on the object's stream ends by a word in pinned memory, which costs less
 * than an event. A broken GPU writes no word, so the stream is asked now and then. Operations
 * beyond GPU_WORDS at once have no word, and end by an event.
 *
 * Notifications. A GPU writes two words for (source, slot), behind those of the host: what goes on
 * the object's stream, whose order is the host's, and what goes on streams of the caller's
 * (kernels/cuda/p2p/p2p.cu). The counter is the sum of all of them. Each is written by one agent,
 * grows, and is stored after the data that it tells of.
 */
#include "config.h"

#include "p2p/p2p_gpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <unistd.h>

enum {
    GPU_WORDS = 2048,
    GPU_ON_OURS = 0,
    GPU_ON_CALLERS = 1,
    GPU_ASK_NS = 5000000,
    CU_MEMORY_TYPE = 2,
    CU_HOST = 1
};

/* Memory of a peer opened by CUDA IPC; kept, for large sends come from the same memory
 * again and again. */
typedef struct p2p_ipc {
    struct p2p_ipc *next;
    int peer, users;
    unsigned char handle[64];
    mpix_cuda_mem mem;
} p2p_ipc;

struct p2p_gpu {
    mpix_gpu gpu;
    int chosen; /* the kind of windows has been agreed on */
    void *stream;
    uint64_t *words;    /* pinned: [GPU_WORDS] ends, [GPU_WORDS] old values */
    uint64_t *counters; /* device: [size][slots] */
    struct {
        void *host, *mapped;
    } * peers; /* control windows that the GPU can write */
    mpix_cuda_piece *pieces;
    int room;
    p2p_ipc *ipc;
    uint64_t asked_ns;
};

/* ---- device ---------------------------------------------------------------------------------- */

static int gpu_failed(int kind, const char *what, const char *why) {
    return mpix_fail(kind, NULL, "%s: %s", what, why);
}

static int gpu_make(mpix_p2p *p2p, p2p_gpu *g, char *why) {
    size_t counters = (size_t)p2p->size * (size_t)p2p->slots * sizeof *g->counters;
    int kind = mpix_gpu_open(&g->gpu, &p2p->params, 0, why);

    if (!kind)
        kind = g->gpu.ops->load(&g->gpu.device, MPIX_CUDA_LOAD_P2P, why);
    if (!kind)
        kind = g->gpu.ops->stream_create(&g->gpu.device, &g->stream, why);
    if (!kind)
        kind = g->gpu.ops->pinned_alloc(2 * GPU_WORDS * sizeof *g->words, (void **)&g->words, why);
    if (!kind)
        kind = g->gpu.ops->local_alloc(&g->gpu.device, counters, (void **)&g->counters, why);
    if (!kind && !(g->peers = calloc((size_t)p2p->size, sizeof *g->peers)))
        kind = MPIX_ERRK_NO_MEM;
    return kind;
}

static void gpu_unmake(mpix_p2p *p2p, p2p_gpu *g) {
    const mpix_cuda_ops *ops = g->gpu.ops;

    for (int r = 0; g->peers && r < p2p->size; r++)
        if (g->peers[r].host)
            ops->host_unregister(&g->gpu.device, g->peers[r].host);
    while (g->ipc) {
        p2p_ipc *ipc = g->ipc;
        g->ipc = ipc->next;
        ops->free(&g->gpu.device, &ipc->mem);
        free(ipc);
    }
    if (g->counters)
        ops->local_free(&g->gpu.device, g->counters);
    if (g->words)
        ops->pinned_free(g->words);
    if (g->stream)
        ops->stream_destroy(g->stream);
    free(g->peers);
    free(g->pieces);
    free(g);
}

/* The object's device, the caller's current one when it is first asked for. With the lock. */
int p2p_gpu_get(mpix_p2p *p2p) {
    char why[MPIX_CUDA_WHY] = "";
    p2p_gpu *g;
    int kind;

    if (p2p->gpu)
        return 0;
    g = calloc(1, sizeof *g);
    kind = g ? gpu_make(p2p, g, why) : MPIX_ERRK_NO_MEM;
    if (kind) {
        if (g)
            gpu_unmake(p2p, g);
        return gpu_failed(kind, "GPU memory can't be used",
                          why[0] ? why : "there is no host memory left");
    }
    p2p->gpu = g;
    mpix_log(MPIX_LOG_INFO, "point-to-point on device %d (%s)", g->gpu.device.ordinal,
             g->gpu.device.name);
    return 0;
}

const mpix_gpu *p2p_gpu_of(const mpix_p2p *p2p) { return p2p->gpu ? &p2p->gpu->gpu : NULL; }

int p2p_gpu_choose(mpix_p2p *p2p) {
    int kind = p2p->gpu->chosen ? 0 : mpix_gpu_choose(&p2p->gpu->gpu, p2p->boot, &p2p->params);

    p2p->gpu->chosen |= !kind;
    return kind;
}

void p2p_gpu_sync(mpix_p2p *p2p) {
    if (p2p->gpu)
        p2p->gpu->gpu.ops->device_sync(&p2p->gpu->gpu.device);
}

void p2p_gpu_free(mpix_p2p *p2p) {
    if (p2p->gpu)
        gpu_unmake(p2p, p2p->gpu);
    p2p->gpu = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Whether an address is memory of a CUDA device. A process that uses CUDA has the driver loaded,
 * and the driver knows; in others nothing is loaded to find out.
 */
int p2p_gpu_pointer(const void *base) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    int (*attributes)(unsigned, int *, void **, unsigned long long) = NULL;
    unsigned type = 0;
    int what = CU_MEMORY_TYPE;
    void *to = &type;

    if (!driver)
        return 0;
    attributes = (int (*)(unsigned, int *, void **, unsigned long long))(
        uintptr_t)dlsym(driver, "cuPointerGetAttributes");
    if (attributes && attributes(1, &what, &to, (unsigned long long)(uintptr_t)base) != 0)
        type = 0; /* for pageable memory it is 0, without an error */
    dlclose(driver);
    return type > CU_HOST;
}

/* Collective, with the arguments checked alike; ends in agreement. Without the lock. */
int p2p_gpu_area(mpix_p2p *p2p, uint64_t bytes, p2p_area *area) {
    int kind = 0;

    if (p2p->size > MPIX_CUDA_RANKS)
        kind = mpix_fail(MPIX_ERRK_UNSUPPORTED, "info",
                         "GPU memory among %d ranks; at most %d in this version", p2p->size,
                         MPIX_CUDA_RANKS);
    else if (!(area->gpu = calloc(1, sizeof *area->gpu)))
        kind = mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for an allocation");
    if (!kind) {
        pthread_mutex_lock(&p2p->lock);
        kind = p2p_gpu_get(p2p);
        pthread_mutex_unlock(&p2p->lock);
    }
    kind = mpix_boot_agree(p2p->boot, kind);
    if (!kind)
        kind = p2p_gpu_choose(p2p);
    if (!kind)
        kind = mpix_gpu_window_create(&p2p->gpu->gpu, p2p->boot, &p2p->params, bytes ? bytes : 1,
                                      area->gpu);
    if (kind) {
        free(area->gpu);
        area->gpu = NULL;
    }
    return kind;
}

/* What CUDA IPC has exported must outlive its importers, and those of peers are not known here:
 * kept until the object ends. */
int p2p_gpu_area_kept(const mpix_p2p *p2p) { return p2p->gpu->gpu.ipc; }

void p2p_gpu_area_free(mpix_p2p *p2p, p2p_area *area) {
    p2p_gpu_sync(p2p); /* copies on the caller's streams */
    if (!(p2p->failed && p2p->gpu->gpu.ipc))
        mpix_gpu_window_free(&p2p->gpu->gpu, p2p->size, area->gpu);
    free(area->gpu);
}

/* The caller's memory. With the lock. */
int p2p_gpu_reg(mpix_p2p *p2p, const void *base, uint64_t bytes, mpix_cuda_range **out) {
    char why[MPIX_CUDA_WHY] = "";
    mpix_cuda_range *range;
    int kind;

    if (p2p->proxy)
        return mpix_fail(MPIX_ERRK_UNSUPPORTED, "base",
                         "base is GPU memory, which is for ranks that map each other; between "
                         "hosts it is not in this version");
    kind = p2p_gpu_get(p2p);
    if (kind)
        return kind;
    range = calloc(1, sizeof *range);
    if (!range)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a registration");
    kind = p2p->gpu->gpu.ops->share(&p2p->gpu->gpu.device, base, (size_t)bytes, range, why);
    if (kind) {
        free(range);
        return mpix_fail(kind, "base", "%s", why);
    }
    *out = range;
    return 0;
}

void p2p_gpu_export(const struct mpix_mem *mem, uint64_t off, p2p_blob *blob) {
    blob->gpu = mem->area                                       ? P2P_GPU_AREA
                : mem->range->share == MPIX_CUDA_SHARE_IPC      ? P2P_GPU_IPC
                : mem->range->share == MPIX_CUDA_SHARE_NOT_POOL ? P2P_GPU_POOL
                                                                : P2P_GPU_VMM;
    memcpy(blob->uuid, mem->p2p->gpu->gpu.device.uuid, sizeof blob->uuid);
    if (mem->range) {
        blob->gpu_off = mem->range->off + off;
        blob->gpu_bytes = mem->range->bytes;
        memcpy(blob->ipc, mem->range->ipc, sizeof blob->ipc);
    }
}

static p2p_ipc *ipc_open(mpix_p2p *p2p, int peer, const p2p_blob *blob, int *kind) {
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    p2p_ipc *ipc = g->ipc;

    while (ipc && !(ipc->peer == peer && memcmp(ipc->handle, blob->ipc, sizeof ipc->handle) == 0))
        ipc = ipc->next;
    if (ipc) {
        ipc->users++;
        return ipc;
    }
    ipc = calloc(1, sizeof *ipc);
    *kind = ipc ? g->gpu.ops->import(&g->gpu.device, (size_t)blob->gpu_bytes, 1, -1, blob->ipc,
                                     &ipc->mem, why)
                : MPIX_ERRK_NO_MEM;
    if (*kind) {
        *kind = mpix_fail_peer(*kind, peer, p2p->boot->hostnames[peer],
                               "rank %d can't map the GPU memory of rank %d: %s", p2p->rank, peer,
                               why);
        free(ipc);
        return NULL;
    }
    ipc->peer = peer;
    ipc->users = 1;
    memcpy(ipc->handle, blob->ipc, sizeof ipc->handle);
    ipc->next = g->ipc;
    g->ipc = ipc;
    return ipc;
}

/* A mapped peer's GPU memory, or ours. area: that of the handle, if it is known here. */
int p2p_gpu_import(mpix_p2p *p2p, struct mpix_rmem *rmem, const p2p_blob *blob, p2p_area *area) {
    int peer = rmem->peer, kind = p2p_gpu_get(p2p);

    if (kind)
        return kind;
    rmem->gpu = 1;
    rmem->reach = P2P_DIRECT;
    rmem->atomics = p2p->gpu->gpu.ops->atomics(&p2p->gpu->gpu.device, blob->uuid);
    if (peer == p2p->rank) {
        rmem->ptr = (char *)(uintptr_t)blob->addr;
    } else if (blob->gpu == P2P_GPU_AREA) {
        if (!area || !area->gpu ||
            area->gpu->bytes[peer] != (blob->base_bytes ? blob->base_bytes : 1))
            return mpix_fail_peer(MPIX_ERRK_ARG, peer, NULL,
                                  "the allocation that rank %d's handle belongs to is freed here, "
                                  "with all its handles",
                                  peer);
        rmem->ptr = (char *)area->gpu->mem[peer].p + blob->mem_off;
        rmem->area = area;
        area->users++;
    } else if (blob->gpu == P2P_GPU_IPC) {
        p2p_ipc *ipc = ipc_open(p2p, peer, blob, &kind);
        if (!ipc)
            return kind;
        rmem->ptr = (char *)ipc->mem.p + blob->gpu_off;
        rmem->ipc = ipc;
    } else {
        return mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, peer, p2p->boot->hostnames[peer],
                              "rank %d registered GPU memory of %s, which other processes can't "
                              "map: use MPIX_P2p_alloc or cudaMalloc",
                              peer,
                              blob->gpu == P2P_GPU_POOL ? "cudaMallocAsync (a memory pool)"
                                                        : "cuMemCreate");
    }
    return 0;
}

/* A handle ends. A mapping that nobody uses is kept after a large receive, as long as its owner
 * keeps the registration. */
void p2p_gpu_rmem_close(struct mpix_rmem *rmem) {
    p2p_gpu *g = rmem->p2p->gpu;
    p2p_ipc **at = g ? &g->ipc : NULL, *ipc = rmem->ipc;

    if (!ipc || --ipc->users > 0 ||
        (rmem->temporary && rmem->gen && atomic_load(rmem->gen) == rmem->id))
        return;
    p2p_gpu_sync(rmem->p2p);
    while (*at != ipc)
        at = &(*at)->next;
    *at = ipc->next;
    g->gpu.ops->free(&g->gpu.device, &ipc->mem);
    free(ipc);
}

/* Blocking copy between any kinds of memory: eager messages and answers, which travel
 * through host memory. */
int p2p_gpu_copy(mpix_p2p *p2p, void *to, const void *from, size_t bytes) {
    char why[MPIX_CUDA_WHY] = "";
    int kind = p2p->gpu->gpu.ops->copy(&p2p->gpu->gpu.device, to, from, bytes, why);

    return kind ? gpu_failed(kind, "a copy to GPU memory", why) : 0;
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Where this GPU writes its notifications for a peer. */
static int gpu_word(mpix_p2p *p2p, int rank, int slot, int which, uint64_t **word) {
    p2p_gpu *g = p2p->gpu;
    p2p_peer *peer = &p2p->peers[rank];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char why[MPIX_CUDA_WHY] = "";

    if (!g->peers[rank].host) {
        size_t bytes = (p2p->ctl_win->bytes + page - 1) / page * page;
        int kind = g->gpu.ops->host_register(&g->gpu.device, peer->ctl, bytes,
                                             &g->peers[rank].mapped, why);
        if (kind)
            return mpix_fail_peer(kind, rank, p2p->boot->hostnames[rank],
                                  "notifications of rank %d by the GPU: %s", rank, why);
        g->peers[rank].host = peer->ctl;
    }
    ptrdiff_t at = (const char *)(p2p_words(p2p, peer->out, slot) + p2p->lanes + which) -
                   (const char *)peer->ctl;
    *word = (uint64_t *)(void *)((char *)g->peers[rank].mapped + at);
    return 0;
}

static int gpu_room(p2p_gpu *g, int n) {
    mpix_cuda_piece *pieces;

    if (n <= g->room)
        return 0;
    pieces = realloc(g->pieces, (size_t)n * sizeof *pieces);
    if (!pieces)
        return mpix_fail(MPIX_ERRK_NO_MEM, NULL, "no memory for a transfer of %d pieces", n);
    g->pieces = pieces;
    g->room = n;
    return 0;
}

static mpix_cuda_piece gpu_piece(int put, int gpu, char *local, const struct mpix_rmem *rmem,
                                 uint64_t roff, uint64_t len) {
    char *there = rmem->ptr + roff;

    return put ? (mpix_cuda_piece){there, local, len, gpu, 0}
               : (mpix_cuda_piece){local, there, len, gpu, 0};
}

/* An operation ends by its word, where it has one and the module can write it; else
 * by its event. */
static uint64_t *gpu_done_word(const p2p_op *op) {
    return op->index < GPU_WORDS ? &op->p2p->gpu->words[op->index] : NULL;
}

static int gpu_event(p2p_op *op, char *why) {
    const mpix_gpu *gpu = &op->p2p->gpu->gpu;
    int kind = op->event ? 0 : gpu->ops->event_create(&gpu->device, &op->event, why);

    op->on_gpu = P2P_ON_EVENT;
    return kind ? kind : gpu->ops->event_record(&gpu->device, op->event, op->p2p->gpu->stream, why);
}

static int gpu_submitted(p2p_op *op, int kind, const uint64_t *done, char *why) {
    if (!kind && done)
        op->on_gpu = P2P_ON_WORD;
    else if (!kind)
        kind = gpu_event(op, why);
    return kind ? gpu_failed(kind, "a transfer in GPU memory", why) : 0;
}

/* Starts the pieces from `at` on that are mapped, and behind the last piece the
 * notification. 0 or a kind. */
int p2p_gpu_submit(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    uint64_t *word = NULL, *done = gpu_done_word(op);
    char why[MPIX_CUDA_WHY] = "";
    int n = 0, notify = 0, kind = gpu_room(g, op->n - op->at);

    for (; !kind && op->at < op->n && op->pieces[op->at].rmem->reach == P2P_DIRECT; op->at++) {
        const p2p_piece *p = &op->pieces[op->at];
        g->pieces[n++] = gpu_piece(op->type == P2P_PUT, p->mem->gpu && p->rmem->gpu, p->local,
                                   p->rmem, p->roff, p->len);
    }
    if (!kind && op->notify && op->at == op->n && !op->asked) {
        kind = gpu_word(p2p, op->peer, op->slot, GPU_ON_OURS, &word);
        notify = 1;
    }
    if (kind)
        return kind;
    _Atomic uint64_t *sent = &p2p->peers[op->peer].sent[op->slot];
    mpix_cuda_tail tail = {.word = word,
                           .value = atomic_load(sent) + op->add,
                           .done = done,
                           .end = op->turn};
    p2p_fence(); /* what the processor copied comes before the GPU's word */
    kind = g->gpu.ops->p2p_move(&g->gpu.device, g->pieces, n, (uint64_t)p2p->params.p2p_gpu_kernel,
                                &tail, g->stream, why);
    if (!kind && notify) {
        atomic_store(sent, tail.value);
        op->notify = 0;
    }
    return gpu_submitted(op, kind, done, why);
}

int p2p_gpu_add(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    const p2p_piece *p = &op->own[0];
    char why[MPIX_CUDA_WHY] = "";
    mpix_cuda_tail tail = {.done = gpu_done_word(op), .end = op->turn};
    int kind = g->gpu.ops->p2p_add(&g->gpu.device, (uint64_t *)(void *)(p->rmem->ptr + p->roff),
                                   op->add, tail.done + GPU_WORDS, &tail, g->stream, why);

    return gpu_submitted(op, kind, tail.done, why);
}

int p2p_gpu_adds(const p2p_op *op) {
    return op->own[0].rmem->gpu && op->own[0].rmem->atomics && op->index < GPU_WORDS - 1;
}

/* 1: the GPU is done with it, or (op->kind) never will be. */
int p2p_gpu_done(p2p_op *op) {
    mpix_p2p *p2p = op->p2p;
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    int done;

    if (op->on_gpu == P2P_ON_WORD) {
        done = atomic_load_explicit((_Atomic uint64_t *)(void *)gpu_done_word(op),
                                    memory_order_acquire) == op->turn;
        if (done && op->type == P2P_ADD && !op->kind)
            *op->old = (int64_t)gpu_done_word(op)[GPU_WORDS];
        uint64_t now = done ? 0 : mpix_clock_ns();
        if (!done && now - g->asked_ns > GPU_ASK_NS) {
            g->asked_ns = now;
            int kind = g->gpu.ops->stream_failed(&g->gpu.device, g->stream, why);
            if (kind) {
                p2p_op_fail(op, gpu_failed(kind, "a transfer in GPU memory", why));
                done = 1;
            }
        }
    } else {
        done = g->gpu.ops->event_done(&g->gpu.device, op->event, why);
        if (done < 0)
            p2p_op_fail(op, gpu_failed(MPIX_ERRK_TRANSPORT, "a transfer in GPU memory", why));
    }
    if (done)
        op->on_gpu = 0;
    return done != 0;
}

void p2p_gpu_op_free(p2p_op *op) {
    if (op->event && op->p2p->gpu)
        op->p2p->gpu->gpu.ops->event_destroy(op->event);
}

/* An addition for a peer whose GPU can't do it itself; blocking, for its answer is awaited. */
int p2p_gpu_add_now(mpix_p2p *p2p, void *at, uint64_t add, uint64_t *old) {
    p2p_gpu *g = p2p->gpu;
    char why[MPIX_CUDA_WHY] = "";
    /* the last operation's place: such an index never adds by word */
    uint64_t *value = &g->words[2 * GPU_WORDS - 1];
    mpix_cuda_tail none = {0};
    int kind = g->gpu.ops->p2p_add(&g->gpu.device, at, add, value, &none, g->stream, why);

    if (!kind)
        kind = g->gpu.ops->copy(&g->gpu.device, old, value, sizeof *old, why);
    return kind ? gpu_failed(kind, "an addition in GPU memory", why) : 0;
}

/* ---- on the caller's stream ------------------------------------------------------------------ */

static int enqueue_check(mpix_p2p *p2p, const MPIX_P2p_iov iov[], int n, void *stream) {
    char why[MPIX_CUDA_WHY] = "";
    unsigned long long capture;
    int kind = p2p_gpu_get(p2p);

    for (int i = 0; i < n && !kind; i++) {
        if (iov[i].rmem->reach != P2P_DIRECT)
            kind = mpix_fail_peer(MPIX_ERRK_UNSUPPORTED, iov[i].rmem->peer, NULL,
                                  "iov[%d].rmem: a stream reaches memory that is mapped here only: "
                                  "of MPIX_P2p_alloc, or of cudaMalloc",
                                  i);
    }
    if (!kind &&
        (kind = p2p->gpu->gpu.ops->stream_check(&p2p->gpu->gpu.device, stream, &capture, why)))
        kind = mpix_fail(kind, "stream", "%s", why);
    return kind;
}

static int enqueue(int put, const MPIX_P2p_iov iov[], int n, int notify, int slot, uint64_t add,
                   void *stream) {
    mpix_p2p *p2p = NULL;
    char why[MPIX_CUDA_WHY] = "";
    uint64_t *word = NULL;
    int peer = -1, kind = p2p_check(iov, n, put ? &p2p_need_put : &p2p_need_get, &p2p, &peer);

    if (!kind && notify)
        kind = p2p_check_slot(p2p, slot);
    if (kind)
        return p2p_raise(p2p, kind);
    pthread_mutex_lock(&p2p->lock);
    kind = enqueue_check(p2p, iov, n, stream);
    if (!kind)
        kind = gpu_room(p2p->gpu, n);
    if (!kind && notify)
        kind = gpu_word(p2p, peer, slot, GPU_ON_CALLERS, &word);
    if (!kind) {
        p2p_gpu *g = p2p->gpu;
        for (int i = 0; i < n; i++)
            g->pieces[i] = gpu_piece(put, iov[i].mem->gpu && iov[i].rmem->gpu,
                                     iov[i].mem->base + iov[i].off, iov[i].rmem,
                                     (uint64_t)iov[i].roff, (uint64_t)iov[i].len);
        uint64_t *counter = notify ? &g->counters[(size_t)peer * (size_t)p2p->slots + (size_t)slot]
                                   : NULL;
        mpix_cuda_tail tail = {.word = word, .value = add, .counter = counter};
        kind = g->gpu.ops->p2p_move(&g->gpu.device, g->pieces, n,
                                    (uint64_t)p2p->params.p2p_gpu_kernel, &tail, stream, why);
        if (kind)
            kind = gpu_failed(kind, "a transfer on a stream", why);
    }
    pthread_mutex_unlock(&p2p->lock);
    return p2p_raise(p2p, kind);
}

int PMPIX_P2p_put_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    return enqueue(1, iov, n, 0, 0, 0, stream);
}
MPIX_WEAK_ALIAS(P2p_put_enqueue);

int PMPIX_P2p_get_enqueue(const MPIX_P2p_iov iov[], int n, void *stream) {
    return enqueue(0, iov, n, 0, 0, 0, stream);
}
MPIX_WEAK_ALIAS(P2p_get_enqueue);

int PMPIX_P2p_put_notify_enqueue(const MPIX_P2p_iov iov[], int n, int slot, uint64_t add,
                                 void *stream) {
    return enqueue(1, iov, n, 1, slot, add, stream);
}
MPIX_WEAK_ALIAS(P2p_put_notify_enqueue);
