/*
 * forks.c - processes that fork: what a child does with the library's objects, and how it ends,
 * does not touch the parent's job.
 *
 *   forks --end calls|free|exit|exec|work [--mode ht|ll] [--times N]
 *
 * Every rank but the last forks in the middle of its work. The child makes every call once (calls),
 * or frees all it has inherited (free), or ends by exit or exec, or goes on for a while with work
 * of its own and a child of its own, beside the parent (work).
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../mpi/count_mpi.h"
#include "harness.h"
#include "mpix_p2p.h"

static int mode; /* MPIX_EP_HT or LL */

enum { TOKENS = 16, HIDDEN = 64, EXPERTS_EACH = 2, P2P_BYTES = 4096 };

static struct {
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    float *rows; /* from MPIX_Ep_alloc */
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem *rmems;
    char *base;
    MPIX_Xfer xfer; /* a receive that nothing comes for before the parent's end */
    int capacity;
} w;

static int32_t ids[TOKENS];
static float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN], own_rows[1];

static void make(void) {
    MPIX_Ep_config config;

    w.capacity = TOKENS * t_size;
    MPIX_INIT(&config);
    config.mode = mode;
    config.layout = mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    config.max_topk = 1;
    config.num_experts = EXPERTS_EACH * t_size;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.timeout_s = 30;
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &w.ep) == 0, "MPIX_Ep_create");
    REQUIRE(MPIX_Ep_handle_create(w.ep, &w.handle) == 0, "MPIX_Ep_handle_create");
    REQUIRE(MPIX_Ep_alloc(w.ep, (MPI_Count)w.capacity * HIDDEN * 4, MPI_INFO_NULL, &w.rows) == 0,
            "MPIX_Ep_alloc");
    REQUIRE(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &w.p2p) == 0, "MPIX_P2p_create");
    REQUIRE(MPIX_P2p_alloc(w.p2p, P2P_BYTES, MPI_INFO_NULL, &w.base, &w.mem) == 0,
            "MPIX_P2p_alloc");
    w.rmems = calloc((size_t)t_size, sizeof *w.rmems);
    REQUIRE(MPIX_P2p_exchange(w.mem, w.rmems) == 0, "MPIX_P2p_exchange");
}

/* A round of everything, with its results checked. */
static void round_of(int n) {
    int next = (t_rank + 1) % t_size, before = (t_rank + t_size - 1) % t_size;
    MPI_Count received = 0;
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sum;

    t_where("round %d", n);
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = (t_rank + t + n) % (EXPERTS_EACH * t_size);
        for (int i = 0; i < HIDDEN; i++)
            x[t * HIDDEN + i] = (float)(t_rank * 4096 + t * 64 + i + n);
    }
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = TOKENS;
    routing.topk = 1;
    routing.ids = ids;
    counts.recv_total = &received;
    CHECK_OK(MPIX_Ep_route(w.handle, &routing, mode == MPIX_EP_LL ? NULL : &counts));
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x.data = x;
    in.x.dtype = MPIX_EP_F32;
    out.capacity_rows = w.capacity;
    out.x.data = w.rows;
    CHECK_OK(MPIX_Ep_dispatch(w.handle, &in, &out));
    MPIX_INIT(&back);
    MPIX_INIT(&sum);
    back.hidden = HIDDEN;
    back.x.data = w.rows;
    back.x.dtype = MPIX_EP_F32;
    sum.y.data = y;
    memset(y, 0, sizeof y);
    CHECK_OK(MPIX_Ep_combine(w.handle, &back, &sum));
    CHECK(memcmp(x, y, sizeof x) == 0, "what came back is not what was sent");

    MPIX_P2p_iov iov = {w.mem, 0, w.rmems[next], 2048, 64};
    memset(w.base, t_rank + n + 1, 64);
    CHECK_OK(MPIX_P2p_put_notify(&iov, 1, 0, 1));
    CHECK_OK(MPIX_P2p_notify_wait(w.p2p, before, 0, (uint64_t)n + 1, NULL));
    CHECK(w.base[2048] == (char)(before + n + 1), "rank %d put %d", before, w.base[2048]);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- in the child ---------------------------------------------------------------------------- */

static int faults;

static void refused(const char *what, int code) {
    MPIX_Error error;
    char owner[64];

    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    snprintf(owner, sizeof owner, "belongs to process %ld", (long)getppid());
    if (code != MPI_SUCCESS && error.code == code && error.kind == MPIX_ERRK_ARG &&
        strstr(error.text, owner))
        return;
    faults++;
    fprintf(stderr, "child of rank %d: %s gave %d, kind %d: %s\n", t_rank, what, code, error.kind,
            error.text);
}
#define REFUSED(call) refused(#call, (call))

static void calls_ep(void) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Ep_handle handle = MPIX_EP_HANDLE_NULL;
    MPIX_Ep_config config;
    MPIX_Ep_peer peer;
    MPIX_Ep_rows rows;
    MPIX_Error error;
    MPIX_Xfer xfer = MPIX_XFER_NULL;
    MPIX_Ep_routing routing;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sum;
    void *base;
    int flags[64];

    MPIX_INIT(&config);
    MPIX_INIT(&peer);
    MPIX_INIT(&error);
    MPIX_INIT(&routing);
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    MPIX_INIT(&back);
    MPIX_INIT(&sum);
    REFUSED(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep));
    REFUSED(MPIX_Ep_get_config(w.ep, &config));
    REFUSED(MPIX_Ep_set_errhandler(w.ep, MPI_ERRORS_RETURN));
    REFUSED(MPIX_Ep_get_async_error(w.ep, &error));
    REFUSED(MPIX_Ep_get_peer(w.ep, 0, &peer));
    REFUSED(MPIX_Ep_alloc(w.ep, 64, MPI_INFO_NULL, &base));
    REFUSED(MPIX_Ep_register(w.ep, own_rows, sizeof own_rows, flags));
    REFUSED(MPIX_Ep_get_mask(w.ep, flags));
    REFUSED(MPIX_Ep_set_mask(w.ep, 0, 1));
    REFUSED(MPIX_Ep_handle_create(w.ep, &handle));
    REFUSED(MPIX_Ep_route(w.handle, &routing, NULL));
    REFUSED(MPIX_Ep_iroute(w.handle, &routing, NULL, &xfer));
    REFUSED(MPIX_Ep_dispatch(w.handle, &in, &out));
    REFUSED(MPIX_Ep_idispatch(w.handle, &in, &out, &xfer));
    REFUSED(MPIX_Ep_combine(w.handle, &back, &sum));
    REFUSED(MPIX_Ep_icombine(w.handle, &back, &sum, &xfer));
    REFUSED(MPIX_Ep_route_enqueue(w.handle, &routing, NULL, NULL));
    REFUSED(MPIX_Ep_dispatch_enqueue(w.handle, &in, &out, NULL));
    REFUSED(MPIX_Ep_combine_enqueue(w.handle, &back, &sum, NULL));
    REFUSED(MPIX_Ep_dispatch_begin_enqueue(w.handle, &in, &out, NULL));
    REFUSED(MPIX_Ep_dispatch_end_enqueue(w.handle, NULL));
    REFUSED(MPIX_Ep_combine_begin_enqueue(w.handle, &back, &sum, NULL));
    REFUSED(MPIX_Ep_combine_end_enqueue(w.handle, NULL));
    REFUSED(MPIX_Ep_combine_buffer(w.handle, &rows));
}

static void calls_p2p(void) {
    MPIX_P2p p2p = MPIX_P2P_NULL;
    MPIX_P2p_mem mem = NULL;
    MPIX_P2p_rmem rmem = NULL;
    MPIX_P2p_iov iov = {w.mem, 0, w.rmems[0], 0, 8};
    MPIX_Xfer xfer = MPIX_XFER_NULL;
    MPIX_Error error;
    MPI_Count bytes = 0;
    void *base;
    int64_t old;
    int flag, n;

    MPIX_INIT(&error);
    REFUSED(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p));
    REFUSED(MPIX_P2p_set_errhandler(w.p2p, MPI_ERRORS_RETURN));
    REFUSED(MPIX_P2p_get_async_error(w.p2p, &error));
    REFUSED(MPIX_P2p_alloc(w.p2p, 64, MPI_INFO_NULL, &base, &mem));
    REFUSED(MPIX_P2p_reg(w.p2p, own_rows, 4, MPI_INFO_NULL, &mem));
    REFUSED(MPIX_P2p_export(w.mem, 0, 8, NULL, &bytes));
    REFUSED(MPIX_P2p_import(w.p2p, 0, own_rows, 4, &rmem));
    REFUSED(MPIX_P2p_exchange(w.mem, w.rmems));
    REFUSED(MPIX_P2p_put(&iov, 1));
    REFUSED(MPIX_P2p_iput(&iov, 1, &xfer));
    REFUSED(MPIX_P2p_get(&iov, 1));
    REFUSED(MPIX_P2p_iget(&iov, 1, &xfer));
    REFUSED(MPIX_P2p_put_notify(&iov, 1, 0, 1));
    REFUSED(MPIX_P2p_notify_test(w.p2p, 0, 0, 1, NULL, &flag));
    REFUSED(MPIX_P2p_notify_wait(w.p2p, 0, 0, UINT64_MAX, NULL));
    REFUSED(MPIX_P2p_fetch_add(w.rmems[0], 0, 1, &old));
    REFUSED(MPIX_P2p_send(w.p2p, 0, &iov, 1));
    REFUSED(MPIX_P2p_irecv(w.p2p, 0, &iov, 1, NULL, &xfer));
    REFUSED(MPIX_P2p_advertise(&iov, 1, 0, 1));
    REFUSED(MPIX_P2p_get_advert(w.p2p, 0, 1, 1, &rmem, &n));
    REFUSED(MPIX_P2p_flush(w.p2p, MPIX_ALL_PEERS));
    REFUSED(MPIX_Xfer_test(&w.xfer, &flag));
    REFUSED(MPIX_Xfer_wait(&w.xfer));
    REFUSED(MPIX_Xfer_waitall(1, &w.xfer, NULL));
    REFUSED(MPIX_Xfer_testany(1, &w.xfer, &n, &flag));
}

static void freed(const char *what, int code, const void *object) {
    if (code == MPI_SUCCESS && *(void *const *)object == NULL)
        return;
    faults++;
    fprintf(stderr, "child of rank %d: %s gave %d\n", t_rank, what, code);
}

static void free_all(int contexts_first) {
    MPIX_Ep ep = w.ep;
    MPIX_P2p p2p = w.p2p;

    for (int pass = 0; pass < 2; pass++) {
        if (pass == contexts_first) {
            freed("MPIX_Ep_handle_free", MPIX_Ep_handle_free(&w.handle), &w.handle);
            for (int r = 0; r < t_size; r++)
                freed("MPIX_P2p_rmem_free", MPIX_P2p_rmem_free(&w.rmems[r]), &w.rmems[r]);
            freed("MPIX_P2p_dereg", MPIX_P2p_dereg(&w.mem), &w.mem);
            continue;
        }
        void *none = NULL;
        freed("MPIX_Ep_dealloc", MPIX_Ep_dealloc(w.ep, w.rows), &none);
        freed("MPIX_Ep_free", MPIX_Ep_free(&w.ep), &w.ep);
        freed("MPIX_P2p_free", MPIX_P2p_free(&w.p2p), &w.p2p);
    }
    if (MPIX_Ep_free(&ep) == MPI_SUCCESS || MPIX_P2p_free(&p2p) == MPI_SUCCESS) {
        faults++;
        fprintf(stderr, "child of rank %d: an object was freed twice\n", t_rank);
    }
}

static void *thread_work(void *arg) {
    for (int i = 0; i < 200; i++) {
        void *p = malloc((size_t)i * 100 + 1);
        memset(p, i, (size_t)i * 100 + 1);
        free(p);
        usleep(500);
    }
    return arg;
}

/* The exit status: 0 if all is as it should be. */
static int child(const char *end, int n) {
    alarm(60); /* a deadlock is told by the signal */
    atomic_store(&counted, 0);
    if (strcmp(end, "calls") == 0) {
        calls_ep();
        calls_p2p();
    }
    if (strcmp(end, "work") == 0) {
        pthread_t thread;
        pid_t grandchild;
        int status = 0;
        pthread_create(&thread, NULL, thread_work, NULL);
        grandchild = fork();
        if (grandchild == 0) {
            free_all(n & 1);
            _exit(faults != 0);
        }
        pthread_join(thread, NULL);
        if (waitpid(grandchild, &status, 0) != grandchild || status != 0)
            faults++;
    }
    if (strcmp(end, "calls") == 0 || strcmp(end, "free") == 0)
        free_all(n & 1);
    int made = atomic_load(&counted);
    if (made)
        fprintf(stderr, "child of rank %d: %d MPI calls, the last %s\n", t_rank, made,
                atomic_load(&last_name));
    return faults + made != 0;
}

/* ---- in the parent --------------------------------------------------------------------------- */

static pid_t start_child(const char *end, int n) {
    fflush(NULL);
    pid_t pid = fork();

    REQUIRE(pid >= 0, "fork: %s", strerror(errno));
    if (pid > 0)
        return pid;
    if (strcmp(end, "exec") == 0) {
        execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
        _exit(1);
    }
    int status = child(end, n);
    if (strcmp(end, "exit") == 0)
        exit(status);
    _exit(status);
}

static void end_child(pid_t pid) {
    int status = -1;

    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child's status is 0x%x",
          (unsigned)status);
}

int main(int argc, char **argv) {
    const char *end = t_option_text(argc, argv, "--end", "calls");
    int times = (int)t_option(argc, argv, "--times", 4), beside = strcmp(end, "work") == 0;

    mode = strcmp(t_option_text(argc, argv, "--mode", "ht"), "ll") == 0 ? MPIX_EP_LL : MPIX_EP_HT;
    t_init(&argc, &argv, "forks");
    t_watchdog(150);
    make();
    MPIX_P2p_iov iov = {w.mem, 1024, NULL, 0, 8};
    CHECK_OK(MPIX_P2p_irecv(w.p2p, (t_rank + 1) % t_size, &iov, 1, NULL, &w.xfer));
    round_of(0);
    for (int n = 1; n <= times; n++) {
        pid_t pid = t_rank == t_size - 1 && t_size > 1 ? 0 : start_child(end, n);
        if (pid && !beside)
            end_child(pid);
        round_of(n);
        if (pid && beside)
            end_child(pid);
    }
    int before = (t_rank + t_size - 1) % t_size;
    iov.off = 1032;
    CHECK_OK(MPIX_P2p_send(w.p2p, before, &iov, 1));
    CHECK_OK(MPIX_Xfer_wait(&w.xfer));
    for (int r = 0; r < t_size; r++)
        CHECK_OK(MPIX_P2p_rmem_free(&w.rmems[r]));
    CHECK_OK(MPIX_P2p_dereg(&w.mem));
    CHECK_OK(MPIX_P2p_free(&w.p2p));
    CHECK_OK(MPIX_Ep_handle_free(&w.handle));
    CHECK_OK(MPIX_Ep_dealloc(w.ep, w.rows));
    CHECK_OK(MPIX_Ep_free(&w.ep));
    free(w.rmems);
    return t_end();
}
