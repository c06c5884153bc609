/*
 * p2p_device.c - transfers that kernels start (mpix_device.cuh): what arrives byte by byte, what
 * stays untouched, counters, additions, flush, wrong arguments, and waits that end.
 *
 *   p2p_device [STEP]        every STEP-th size: for compute-sanitizer
 *
 * Ranks are a ring: each writes to the next. How they reach each other is up to the environment:
 * mapped, or MPIX_EP_REACH=proxied, or some of them (MPIX_EP_HOSTS=2). No kernel waits for one of
 * another rank that has not been started: ranks may share a GPU.
 */
#include "gpu.h"
#include "mpix_device.h"

#include <string.h>
#include <unistd.h>

#include "p2p_device_kernels.h"

enum { AREA = 4 << 20, PAD = 64, POISON = 0xa5 };

static int rank, size, failures, next, prev;
static MPIX_P2p p2p;
static MPIX_P2p_mem src_mem, dst_mem;
static MPIX_P2p_rmem src_at[64], dst_at[64];
static MPIX_Device device;
static MPIX_Device_mem src;
static MPIX_Device_rmem dst;
static unsigned char *src_base, *dst_base, *down, *want;

static void settle(void) {
    CU(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
}

static void fill(unsigned char *to, uint64_t seed, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(g_mix(seed + i / 8) >> i % 8 * 8);
}

static void setup(void) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_p2p_memory", "cuda");
    EP(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p));
    EP(MPIX_P2p_alloc(p2p, AREA, info, &src_base, &src_mem));
    EP(MPIX_P2p_alloc(p2p, AREA, info, &dst_base, &dst_mem));
    MPI_Info_free(&info);
    EP(MPIX_P2p_exchange(src_mem, src_at));
    EP(MPIX_P2p_exchange(dst_mem, dst_at));
    MPIX_INIT(&src);
    CHECK(g_kind(MPIX_P2p_mem_device(src_mem, &src)) == MPIX_ERRK_ARG,
          "a handle of memory before that of the object");
    MPIX_INIT(&device);
    MPIX_INIT(&dst);
    EP(MPIX_P2p_get_device(p2p, &device));
    CHECK(device.rank == rank && device.size == size && device.slots == 64,
          "the handle: rank %d of %d, %d slots", device.rank, device.size, device.slots);
    EP(MPIX_P2p_mem_device(src_mem, &src));
    EP(MPIX_P2p_rmem_device(dst_at[next], &dst));
    if (rank == 0)
        printf("p2p_device: %d ranks, %d of rank 0's peers proxied, the next one is %s\n", size,
               device.proxied, dst.ptr ? "mapped" : "proxied");
    down = malloc(AREA);
    want = malloc(AREA);
}

/* ---- sizes and scopes ------------------------------------------------------------------------ */

static void one_size(int scope, size_t n, int slot, uint64_t turn) {
    size_t off = PAD + g_mix(n * 3 + (size_t)scope) % 33,
           roff = PAD + g_mix(n * 5 + (size_t)scope) % 33;
    uint64_t seed = g_mix(n * 16 + (size_t)scope);
    if (n % 3 == 0) /* alike on both sides, and such that no descriptor is needed */
        off = roff = PAD + n % 5 * 16;
    fill(want, seed ^ g_mix((uint64_t)rank), n);
    CU(cudaMemcpy(src_base + off, want, n, cudaMemcpyDefault));
    CU(cudaMemset(dst_base + roff - PAD, POISON, n + 2 * PAD));
    settle();
    int result = d_put(scope, device, dst, roff, src, off, n, next, prev, slot, turn);
    CHECK(result == 0, "scope %d, %zu bytes: result %d", scope, n, result);
    /* The kernel has waited for the signal of prev: no barrier. */
    CU(cudaMemcpy(down, dst_base + roff - PAD, n + 2 * PAD, cudaMemcpyDefault));
    fill(want, seed ^ g_mix((uint64_t)prev), n);
    CHECK(memcmp(down + PAD, want, n) == 0, "scope %d, %zu bytes differ", scope, n);
    for (size_t i = 0; i < PAD; i++)
        CHECK(down[i] == POISON && down[PAD + n + i] == POISON,
              "scope %d, %zu bytes: written outside, %zu", scope, n, i);
    settle();
}

static void all_sizes(size_t step) {
    static const size_t sizes[] = {0,   1,    2,    3,    4,     7,     8,      9,
                                   16,  17,   31,   48,   63,    64,    100,    255,
                                   256, 1000, 4096, 8191, 20000, 65536, 100001, (2 << 20) + 5};
    for (int scope = 0; scope < D_SCOPES; scope++) {
        uint64_t turn = 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += step)
            one_size(scope, scope == D_THREAD && sizes[i] > 20000 ? sizes[i] % 20000 : sizes[i],
                     scope, ++turn);
    }
}

/* ---- many threads ---------------------------------------------------------------------------- */

static void many(int blocks, int each, int slot, uint64_t turn) {
    uint64_t n = (uint64_t)blocks * 256 * (uint64_t)each, seen = 0;
    int adds = 0; /* whether prev can add to our memory */
    MPI_Sendrecv(&dst.atomics, 1, MPI_INT, next, 0, &adds, 1, MPI_INT, prev, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    CU(cudaMemset(dst_base, POISON, (size_t)n * 8));
    CU(cudaMemset(dst_base + n * 8, 0, 8));
    settle();
    int result = d_many(device, dst, src, blocks, each, dst.atomics, prev, slot, n * turn, slot + 1,
                        turn);
    CHECK(result == 0, "%d blocks: result %d", blocks, result);
    /* All blocks of prev have flushed before they signalled. */
    CHECK(d_wait(device, prev, slot + 1, (uint64_t)blocks * turn) == 0,
          "%d blocks: not all have flushed", blocks);
    CU(cudaMemcpy(down, dst_base, n * 8 + 8, cudaMemcpyDefault));
    for (uint64_t i = 0; i < n && seen < 5; i++)
        seen += ((uint64_t *)(void *)down)[i] != i * 8 * 31 + turn;
    CHECK(seen == 0, "%d blocks: words differ", blocks);
    if (adds)
        CHECK(((uint64_t *)(void *)down)[n] == 3 * n, "%llu added up, not %llu",
              (unsigned long long)((uint64_t *)(void *)down)[n], (unsigned long long)(3 * n));
    settle();
}

/* ---- refusals and time limits ---------------------------------------------------------------- */

static void refusals(void) {
    MPIX_Device_rmem small = dst;
    MPIX_Device_mem none = src;
    CHECK(d_put(D_WARP, device, dst, AREA - 8, src, 0, 16, next, prev, 60, 0) == MPIX_DEVICE_ARG,
          "beyond the peer's memory");
    CHECK(d_put(D_BLOCK, device, dst, 0, src, AREA, 1, next, prev, 60, 0) == MPIX_DEVICE_ARG,
          "beyond local memory");
    CHECK(d_put(D_THREAD, device, dst, 0, src, 0, 8, next, prev, 64, 0) == MPIX_DEVICE_ARG,
          "a slot that does not exist");
    CHECK(d_signal(device, size, 0, 1) == MPIX_DEVICE_ARG &&
              d_signal(device, 0, -1, 1) == MPIX_DEVICE_ARG,
          "a signal to nobody");
    CHECK(d_signal(device, next, 0, UINT64_MAX) == MPIX_DEVICE_ARG, "a negative signal");
    CHECK(d_flush(device, -1) == MPIX_DEVICE_ARG && d_flush(device, next) == 0, "flush");
    CHECK(d_add(device, dst, 4, 1) == MPIX_DEVICE_ARG, "an address that is not aligned");
    small.atomics = 0;
    CHECK(d_add(device, small, 8, 1) == MPIX_DEVICE_UNSUPPORTED,
          "an addition where it can't be done");
    none.index = -1;
    if (!dst.ptr)
        CHECK(d_put(D_WARP, device, dst, 0, none, 0, 8, next, prev, 60, 0) ==
                  MPIX_DEVICE_UNSUPPORTED,
              "from memory that the network does not know");
}

/* An object of its own; frees the info. */
static MPIX_P2p open_other(MPI_Info *info, MPIX_Device *d) {
    MPIX_P2p other;
    EP(MPIX_P2p_create(MPI_COMM_WORLD, *info, &other));
    MPI_Info_free(info);
    MPIX_INIT(d);
    EP(MPIX_P2p_get_device(other, d));
    settle();
    return other;
}

/* With a short time limit. */
static void late(void) {
    MPI_Info info;
    MPIX_Device d;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", "0.2");
    MPIX_P2p other = open_other(&info, &d);
    double start = g_now_s();
    int result = d_wait(d, prev, 0, 1);
    double s = g_now_s() - start;
    CHECK(result == MPIX_DEVICE_TIMEOUT && s > 0.15 && s < 5,
          "a wait for nothing ended with %d after %.2f s", result, s);
    settle();
    CHECK(d_signal(d, next, 0, 5) == 0 && d_wait(d, prev, 0, 5) == 0, "a signal after a late one");
    settle();
    EP(MPIX_P2p_free(&other));
}

/*
 * Over chaos: the last rank's proxy does not run for 1.5 s, which is longer than the object's time
 * limit. Who waits in a kernel gets an error in time. When the proxy runs again, all that was
 * queued arrives: nothing was lost.
 */
static void stalled(void) {
    enum { MS = 1500, SIGNALS = 40 };
    MPI_Info info;
    MPIX_Device d;
    char text[16];
    int held = rank == size - 1, waits = prev == size - 1;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", "0.3");
    MPI_Info_set(info, "mpix_ep_chaos_stall_thread", "yes");
    MPI_Info_set(info, "mpix_ep_chaos_stall_at", "3");
    MPI_Info_set(info, "mpix_ep_chaos_stall_ms", "1500");
    MPI_Info_set(info, "mpix_ep_chaos_rank", (snprintf(text, sizeof text, "%d", size - 1), text));
    MPIX_P2p other = open_other(&info, &d);
    double start = g_now_s();
    for (int i = 0; i < SIGNALS; i++)
        CHECK(d_signal(d, next, 1, 1) == 0, "a signal to a proxy that does not run is not queued");
    int flushed = d_flush(d, next), waited = d_wait(d, prev, 1, SIGNALS);
    double s = g_now_s() - start;
    CHECK(flushed == (held ? MPIX_DEVICE_TIMEOUT : 0), "a flush beside a stalled proxy: %d",
          flushed);
    CHECK(waited == (waits ? MPIX_DEVICE_TIMEOUT : 0), "a wait beside a stalled proxy: %d", waited);
    CHECK(s < 3, "waiting took %.2f s", s);
    usleep(MS * 1000);
    settle();
    CHECK(d_flush(d, next) == 0 && d_wait(d, prev, 1, SIGNALS) == 0,
          "something was lost in the stall");
    settle();
    EP(MPIX_P2p_free(&other));
}

int main(int argc, char **argv) {
    size_t step = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    int devices = 0, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    next = (rank + 1) % size;
    prev = (rank + size - 1) % size;
    setup();
    all_sizes(step ? step : 1);
    for (int i = 0; i < 3; i++)
        many(step > 1 ? 2 : 16, step > 1 ? 2 : 8, 10, (uint64_t)i + 1);
    settle();
    refusals();
    settle();
    late();
    settle();
    /* the next rank is proxied */
    int chaos = getenv("MPIX_EP_TRANSPORT") &&
                !strcmp(getenv("MPIX_EP_TRANSPORT"), "chaos:shmem") && !dst.ptr;
    MPI_Allreduce(MPI_IN_PLACE, &chaos, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (chaos)
        stalled();
    settle();
    for (int r = 0; r < size; r++) {
        EP(MPIX_P2p_rmem_free(&src_at[r]));
        EP(MPIX_P2p_rmem_free(&dst_at[r]));
    }
    EP(MPIX_P2p_dereg(&src_mem));
    EP(MPIX_P2p_dereg(&dst_mem));
    EP(MPIX_P2p_free(&p2p));
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("p2p_device: %s\n", all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
