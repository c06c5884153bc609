/* emu.cpp - fibers for the threads of a kernel, and the table of functions by which the core calls
 * the module (see emu.h). One stream exists. */
#include "emu.h"

#include "cuda_module.h"
#include "emu_memory.h"
#include "launch.h"

#include <atomic>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FIBERS = 4096, STACK = 256 << 10, VARIABLES = 64, BARRIERS = 16, SHARED = 256 << 10 };
enum { READY, BLOCKED, DONE };

struct barrier {
    int arrived, sum, result, nwaiting, waiting[1024];
};
struct block {
    barrier barriers[BARRIERS];
    void *variables[VARIABLES];
    char *shared;
    size_t used;
};
struct warp {
    int arrived;
    uint64_t given[32], got[32];
};

/* ---- contexts -------------------------------------------------------------------------------- */
/* swapcontext where nothing faster is written, for it asks the system each time */
#ifdef __x86_64__
struct emu_context {
    void *sp;
};
extern "C" void emu_switch(emu_context *from, emu_context *to);
asm(".text\n.type emu_switch, @function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq (%rsi), %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size emu_switch, . - "
    "emu_switch\n");
static void context_make(emu_context *c, char *stack, size_t bytes, void (*run)()) {
    void **top = (void **)(stack + bytes);
    *--top = NULL; /* a function begins 8 bytes off a multiple of 16 */
    *--top = (void *)run;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    c->sp = top;
}
#else
#include <ucontext.h>
struct emu_context {
    ucontext_t u;
};
static void emu_switch(emu_context *from, emu_context *to) { swapcontext(&from->u, &to->u); }
static void context_make(emu_context *c, char *stack, size_t bytes, void (*run)()) {
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = bytes;
    c->u.uc_link = NULL;
    makecontext(&c->u, run, 0);
}
#endif

emu_place emu_here;
static emu_context scheduler, fibers[FIBERS];
static int states[FIBERS], current, alive;
static unsigned block_threads;
static char *stacks;
static warp warps[FIBERS / 32];
static block blocks[FIBERS / 32];
static const std::function<void()> *running;
static int shared_most = SHARED; /* that a block can have: of the device */

uint64_t emu_now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static block &block_here() { return blocks[(unsigned)current / block_threads]; }

/* ---- fibers ---------------------------------------------------------------------------------- */
void emu_yield() {
    int me = current;
    emu_switch(&fibers[me], &scheduler);
}
static void block_until_freed() {
    states[current] = BLOCKED;
    emu_yield();
}
void emu_exchange(uint64_t mine, uint64_t *all) {
    int first = current / 32 * 32;
    warp &w = warps[current / 32];
    w.given[current - first] = mine;
    if (++w.arrived == 32) {
        memcpy(w.got, w.given, sizeof w.got);
        w.arrived = 0;
        for (int i = first; i < first + 32; i++)
            states[i] = READY;
    } else {
        block_until_freed();
    }
    /* nobody writes it before all have: the next exchange needs them */
    memcpy(all, w.got, sizeof w.got);
}
int emu_barrier(int id, int threads, int value, bool waits) {
    barrier &b = block_here().barriers[id];
    b.sum += value;
    if (++b.arrived == threads) {
        b.result = b.sum;
        for (int i = 0; i < b.nwaiting; i++)
            states[b.waiting[i]] = READY;
        b.arrived = b.sum = b.nwaiting = 0;
    } else if (waits) {
        b.waiting[b.nwaiting++] = current;
        block_until_freed();
    }
    return b.result;
}

static void *take(block &b, size_t bytes) {
    void *p = b.shared + b.used;
    b.used += (bytes + 127) / 128 * 128;
    if (b.used > (size_t)shared_most) {
        fprintf(stderr, "emu: a block needs more than %d bytes of shared memory\n", shared_most);
        abort();
    }
    return p;
}
cudaError_t emu_shared_set(int bytes) {
    return bytes <= shared_most ? cudaSuccess : cudaErrorInvalidValue;
}
void emu_bar_patience(uint64_t since) {
    if (emu_now() - since > 60000000000u) {
        fprintf(stderr, "emu: bytes that a barrier counts on do not come\n");
        abort();
    }
}
void emu_bulk_check(const void *a, size_t b, uint32_t bytes) {
    if (((size_t)a | b | bytes) % 16) {
        fprintf(stderr, "emu: a bulk copy of %u bytes between %p and %zx, not multiples of 16\n",
                bytes, a, b);
        abort();
    }
}
void *emu_static(int id, size_t bytes) {
    void **p = &block_here().variables[id % VARIABLES];
    if (!*p)
        *p = take(block_here(), bytes);
    return *p;
}
void *emu_dynamic() { return block_here().shared; }

static void fiber_main() {
    (*running)();
    states[current] = DONE;
    alive--;
    emu_switch(&fibers[current], &scheduler);
}
static void fiber_run(int i, unsigned first_block, dim3 grid) {
    current = i;
    emu_here = {dim3((unsigned)i % block_threads, 0, 0),
                dim3(first_block + (unsigned)i / block_threads, 0, 0), dim3(block_threads), grid};
    emu_switch(&scheduler, &fibers[i]);
}

/* Blocks [first, first + n): what is in shared memory at first is nobody's. */
static void wave_run(unsigned first, unsigned n, dim3 grid, size_t shared) {
    int all = (int)(n * block_threads);
    uint64_t random = emu_now() | 1;
    memset(warps, 0, sizeof warps);
    for (unsigned b = 0; b < n; b++) {
        char *room = blocks[b].shared;
        if (!room)
            room = (char *)mmap(NULL, SHARED, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        if (room == MAP_FAILED) {
            perror("emu: shared memory");
            abort();
        }
        memset(&blocks[b], 0, sizeof blocks[b]);
        blocks[b].shared = room;
        blocks[b].used = (shared + 127) / 128 * 128;
        memset(room, 0xcd, SHARED);
    }
    alive = all;
    for (int i = 0; i < all; i++) {
        context_make(&fibers[i], stacks + (size_t)i * STACK, STACK, fiber_main);
        states[i] = READY;
    }
    for (uint64_t turn = 1; alive > 0; turn++) {
        int ready = 0;
        random = random * 6364136223846793005u + 1442695040888963407u;
        int from = (int)((random >> 33) % (unsigned)(all / 32)) * 32;
        for (int k = 0; k < all; k++) {
            int i = (from + k) % all;
            if (states[i] != READY)
                continue;
            ready++;
            if ((random >> k / 32 % 31 & 7) != 0) /* else this warp pauses */
                fiber_run(i, first, grid);
        }
        if (!ready) {
            fprintf(stderr, "emu: %d threads wait at barriers for ever\n", alive);
            abort();
        }
        if (turn % 64 == 0)
            sched_yield();
    }
}

void emu_launch(unsigned grid, unsigned threads, size_t shared,
                const std::function<void()> &kernel) {
    unsigned most = FIBERS / threads;
    if (!stacks)
        stacks = (char *)mmap(NULL, (size_t)FIBERS * STACK, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        perror("emu: stacks");
        abort();
    }
    running = &kernel;
    block_threads = threads;
    /* later blocks start when earlier ones have ended, as on a small GPU */
    for (unsigned first = 0; first < grid; first += most)
        wave_run(first, grid - first < most ? grid - first : most, dim3(grid), shared);
}

/* ---- the module ------------------------------------------------------------------------------ */
typedef const mpix_cuda_device *device;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* EMU_MAJOR: the device's, whatever the code is for. */
static int m_open(int, mpix_cuda_device *d, char *) {
    memset(d, 0, sizeof *d);
    d->major = number("EMU_MAJOR", 8);
    d->sms = number("EMU_SMS", 3);
    d->smem = shared_most = number("EMU_SMEM", d->major >= 9 ? 227 << 10 : 160 << 10);
    d->vmm = 1;
    d->sms = d->sms > 0 ? d->sms : 1;
    strcpy(d->name, "an emulated GPU");
    pid_t pid = getpid();
    memcpy(d->uuid, &pid, sizeof pid);
    return 0;
}
/* What sources with code for more than one architecture were compiled for. */
static int m_load(mpix_cuda_device *d, int, char *) {
    int arch = INT_MAX;
    mpix_cuda_dispatch_load(&arch);
    mpix_cuda_expert_dispatch_load(&arch);
    mpix_cuda_combine_load(&arch);
    mpix_cuda_decide(d, arch, 13000);
    return 0;
}
static uint64_t m_allocation(device, const void *p) { return emu_memory_number(p); }
static uint64_t m_stream_id(device, void *stream, unsigned long long) {
    return emu_stream_number(stream);
}
static int m_pointer(device, const void *p) { return emu_memory_kind(p); }
static int m_map(mpix_cuda_mem *m, size_t bytes, int fd) {
    m->p = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m->p == MAP_FAILED)
        return m->p = NULL, 1;
    emu_memory_note(m->p, bytes, MPIX_CUDA_PTR_DEVICE);
    return 0;
}
/* CUDA IPC: a handle is a descriptor of this process. Behind the memory stands how many have opened
 * it, for its maker must outlive them. */
struct ipc_handle {
    int pid, fd;
};
static std::atomic<int> *ipc_users(const mpix_cuda_mem *m) {
    return (std::atomic<int> *)((char *)m->p + m->bytes - sizeof(int));
}
static ipc_handle ipc_of(const void *bytes) {
    ipc_handle handle;
    memcpy(&handle, bytes, sizeof handle);
    return handle;
}
static int m_alloc(device, size_t bytes, int ipc, mpix_cuda_mem *m, char *why) {
    const size_t grain = 2 << 20;
    memset(m, 0, sizeof *m);
    m->bytes = (bytes + (ipc ? sizeof(int) : 0) + grain - 1) / grain * grain;
    m->fd = bytes > EMU_MOST ? -1 : memfd_create("emu", 0);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)m->bytes) || m_map(m, m->bytes, m->fd)) {
        snprintf(why, MPIX_CUDA_WHY, "%zu bytes of an emulated GPU's memory can't be had", bytes);
        return MPIX_KIND_NO_MEM;
    }
    if (ipc) {
        ipc_handle handle = {(int)getpid(), m->fd};
        m->is_ipc = 1;
        memcpy(m->ipc, &handle, sizeof handle);
        m->fd = -1; /* else the library would close it */
    }
    return 0;
}
static int m_import(device, size_t bytes, int ipc, int fd, const unsigned char *blob,
                    mpix_cuda_mem *m, char *) {
    char path[64];
    memset(m, 0, sizeof *m);
    m->fd = -1;
    m->imported = 1;
    m->is_ipc = ipc;
    m->bytes = bytes;
    if (!ipc)
        return m_map(m, bytes, fd);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc_of(blob).pid, ipc_of(blob).fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    int bad = fd < 0 || m_map(m, bytes, fd);
    if (fd >= 0)
        close(fd);
    if (!bad)
        ++*ipc_users(m);
    return bad;
}
static void m_free(device, mpix_cuda_mem *m) {
    if (m->p && m->is_ipc && m->imported)
        --*ipc_users(m);
    if (m->p && m->is_ipc && !m->imported) {
        if (*ipc_users(m)) {
            fprintf(stderr, "emulation: memory is freed that %d others have opened\n",
                    ipc_users(m)->load());
            abort();
        }
        close(ipc_of(m->ipc).fd);
    }
    if (m->p) {
        emu_memory_forget(m->p);
        munmap(m->p, m->bytes);
    }
    if (!m->imported && m->fd > 0)
        close(m->fd);
    m->p = NULL;
    m->fd = -1;
}
static int memory(size_t bytes, void **p, int kind, char *why) {
    *p = emu_memory_make(bytes, kind);
    if (!*p) {
        snprintf(why, MPIX_CUDA_WHY, "%zu bytes of an emulated GPU's memory can't be had", bytes);
        return MPIX_KIND_NO_MEM;
    }
    memset(*p, 0, bytes);
    return 0;
}
static int m_local_alloc(device, size_t bytes, void **p, char *why) {
    return memory(bytes, p, MPIX_CUDA_PTR_DEVICE, why);
}
static void m_local_free(device, void *p) { emu_memory_free(p); }
static int m_pinned_alloc(size_t bytes, void **p, char *why) {
    return memory(bytes, p, MPIX_CUDA_PTR_PINNED, why);
}
static void m_pinned_free(void *p) { emu_memory_free(p); }
static int m_copy(device, void *to, const void *from, size_t bytes, char *) {
    memcpy(to, from, bytes);
    return 0;
}
/* A stream is done when a call returns, and so is an event. */
static int m_some(device, void **made, char *) {
    *made = (void *)1;
    return 0;
}
static void m_gone(void *) {}
static int m_stream_check(device, void *, unsigned long long *capture, char *) {
    *capture = emu_capturing();
    return 0;
}
static int m_event_record(device, void *, void *, char *) { return 0; }
static int m_event_done(device, void *, char *) { return 1; }
static int m_event_sync(device, void *, char *) { return 0; }
int emu_stream_waits; /* for tests: how often a stream was made to wait for another one */
static int m_stream_wait(device, void *, void *, char *) { return emu_stream_waits++, 0; }
static void m_device_sync(device) {}
static int m_route(device d, const mpix_cuda_handle *h, const mpix_cuda_route *c, void *, char *) {
    mpix_cuda_route_launch(d, h, c, 0);
    if (h->expert.on)
        mpix_cuda_place_launch(d, h, c, 0);
    return 0;
}
static int m_dispatch(device d, const mpix_cuda_handle *h, mpix_cuda_dispatch *c, void *, char *) {
    return mpix_cuda_launchers_of(h).dispatch(d, h, c, 0) != cudaSuccess;
}
static int m_combine(device d, const mpix_cuda_handle *h, mpix_cuda_combine *c, void *, char *) {
    return mpix_cuda_launchers_of(h).combine(d, h, c, 0) != cudaSuccess;
}
/* Copies by engines are streams' work. */
static int m_copy_engine_create(device, int, void **, char *why) {
    snprintf(why, MPIX_CUDA_WHY, "copy engines are not emulated");
    return MPIX_KIND_UNSUPPORTED;
}
static void m_copy_engine_destroy(device, void *) {}
cudaError_t mpix_cuda_copy_engine_dispatch_launch(const mpix_cuda_device *,
                                                  const mpix_cuda_handle *, mpix_cuda_dispatch *,
                                                  cudaStream_t) {
    return cudaErrorNotSupported;
}
cudaError_t mpix_cuda_copy_engine_combine_launch(const mpix_cuda_device *, const mpix_cuda_handle *,
                                                 mpix_cuda_combine *, cudaStream_t) {
    return cudaErrorNotSupported;
}

static int m_host_register(device, void *p, size_t, void **mapped, char *) {
    *mapped = p;
    return 0;
}
static void m_host_unregister(device, void *) {}

static mpix_cuda_ops ops;
extern "C" const mpix_cuda_ops *mpix_cuda_module(void) {
    ops.abi = MPIX_CUDA_ABI;
    ops.open = m_open;
    ops.load = m_load;
    ops.allocation = m_allocation;
    ops.stream_id = m_stream_id;
    ops.pointer = m_pointer;
    ops.alloc = m_alloc;
    ops.import = m_import;
    ops.free = m_free;
    ops.local_alloc = m_local_alloc;
    ops.local_free = m_local_free;
    ops.pinned_alloc = m_pinned_alloc;
    ops.pinned_free = m_pinned_free;
    ops.copy = m_copy;
    ops.stream_create = ops.event_create = m_some;
    ops.stream_destroy = ops.event_destroy = m_gone;
    ops.stream_check = m_stream_check;
    ops.event_record = m_event_record;
    ops.event_done = m_event_done;
    ops.event_sync = m_event_sync;
    ops.stream_wait = m_stream_wait;
    ops.device_sync = m_device_sync;
    ops.route = m_route;
    ops.dispatch = m_dispatch;
    ops.combine = m_combine;
    ops.copy_engine_create = m_copy_engine_create;
    ops.copy_engine_destroy = m_copy_engine_destroy;
    ops.host_register = m_host_register;
    ops.host_unregister = m_host_unregister;
    return &ops;
}
