/*
 * life.c - memory after a failure: what was given back to the caller is touched by nobody any more,
 * neither by threads of this process nor by a peer that was stopped and wakes.
 *
 *   life --object NAME --fault stall-here|stall-there|stopped|killed [--timeout SECONDS] [--stop
 *   SECONDS] [--stall-at N] [--pieces N]
 *
 * Objects: ep and ep-ll (MPIX_Ep_alloc), ep-register, p2p-alloc, p2p-reg, p2p-rmem (the peer's
 * handle only), p2p-free (registered memory that ends with the object). Two ranks move data
 * until the call fails; rank 1 is the one that stops or dies. Rank 0 gives the memory back. Half
 * of the caller's memory is then made inaccessible, which own threads run into, and half becomes
 * other memory at the same address, whose contents must last. Transports are chosen by the
 * environment. stall-*: the transport chaos holds operations back for longer than the time
 * limit, here or at the peer.
 */
#include "harness.h"
#include "mpix_p2p.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TOKENS = 64,
    ROW = 4096,
    EP_BYTES = 4 * TOKENS * ROW,
    P2P_BYTES = 4 << 20,
    PATTERN = 0x5c,
    PUTS = 6
};

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static const char *object, *fault;
static int peer, pieces;
static double stop_s = 1.5; /* how long a stopped rank, or a stalled operation, is away */

static MPIX_Ep ep;
static MPIX_Ep_handle handle;
static MPIX_P2p p2p;
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at[2];
static char *base;
static size_t bytes;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void rest(double seconds) {
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (seconds > 0 && nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

static int is(const char *what, const char *name) { return strcmp(what, name) == 0; }
static int begins(const char *what, const char *with) {
    return strncmp(what, with, strlen(with)) == 0;
}

/* ---- objects --------------------------------------------------------------------------------- */

static MPI_Info make_info(double timeout, long stall_at) {
    MPI_Info info;
    char text[32];
    MPI_Info_create(&info);
    snprintf(text, sizeof text, "%g", timeout);
    MPI_Info_set(info, "mpix_ep_timeout", text);
    if (begins(fault, "stall")) {
        snprintf(text, sizeof text, "%ld", stall_at);
        MPI_Info_set(info, "mpix_ep_chaos_stall_at", text);
        snprintf(text, sizeof text, "%.0f", stop_s * 1e3);
        MPI_Info_set(info, "mpix_ep_chaos_stall_ms", text);
        MPI_Info_set(info, "mpix_ep_chaos_rank", is(fault, "stall-here") ? "0" : "1");
    }
    return info;
}

static void own_memory(void) {
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base != MAP_FAILED, "no memory");
}

static void make_ep(double timeout, MPI_Info info) {
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.mode = is(object, "ep-ll") ? MPIX_EP_LL : MPIX_EP_HT;
    c.layout = c.mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    c.max_topk = 2;
    c.num_experts = 4;
    c.max_tokens = TOKENS;
    c.max_row_bytes = ROW;
    c.timeout_s = timeout;
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &c, info, &ep) == MPI_SUCCESS, "no context");
    bytes = EP_BYTES;
    if (is(object, "ep-register")) {
        int direct;
        own_memory();
        CHECK_OK(MPIX_Ep_register(ep, base, (MPI_Count)bytes, &direct));
    } else {
        CHECK_OK(MPIX_Ep_alloc(ep, (MPI_Count)bytes, MPI_INFO_NULL, &base));
    }
    CHECK_OK(MPIX_Ep_handle_create(ep, &handle));
    memset(base, 0, bytes);
    int ids[2 * TOKENS];
    for (int i = 0; i < 2 * TOKENS; i++)
        ids[i] = 2 * peer + i % 2;
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = TOKENS;
    r.topk = 2;
    r.ids = ids;
    (void)MPIX_Ep_route(handle, &r, NULL); /* may be the call that fails; then the next ones do */
}

static void make_p2p(MPI_Info info) {
    REQUIRE(MPIX_P2p_create(MPI_COMM_WORLD, info, &p2p) == MPI_SUCCESS, "no object");
    bytes = P2P_BYTES;
    if (is(object, "p2p-reg") || is(object, "p2p-free")) {
        own_memory();
        CHECK_OK(MPIX_P2p_reg(p2p, base, (MPI_Count)bytes, MPI_INFO_NULL, &mem));
    } else {
        CHECK_OK(MPIX_P2p_alloc(p2p, (MPI_Count)bytes, MPI_INFO_NULL, &base, &mem));
    }
    memset(base, 1 + t_rank, bytes);
    CHECK_OK(MPIX_P2p_exchange(mem, at));
}

/* ---- traffic --------------------------------------------------------------------------------- */

static int round_ep(void) {
    MPIX_Ep_dispatch_in di;
    MPIX_Ep_dispatch_out od;
    MPIX_Ep_combine_in ci;
    MPIX_Ep_combine_out co;
    MPIX_INIT(&di);
    MPIX_INIT(&od);
    MPIX_INIT(&ci);
    MPIX_INIT(&co);
    di.hidden = ci.hidden = ROW / 4;
    di.x = (MPIX_Ep_rows){.data = base, .dtype = MPIX_EP_F32};
    od.capacity_rows = 2 * TOKENS;
    od.x = (MPIX_Ep_rows){.data = base + TOKENS * ROW};
    ci.x = (MPIX_Ep_rows){.data = base + TOKENS * ROW, .dtype = MPIX_EP_F32};
    co.y = (MPIX_Ep_rows){.data = base + 3 * TOKENS * ROW};
    int code = MPIX_Ep_dispatch(handle, &di, &od);
    return code == MPI_SUCCESS ? MPIX_Ep_combine(handle, &ci, &co) : code;
}

/* Rank 1 puts most of the time; rank 0 puts, and waits for rank 1. */
static int round_p2p(uint64_t number) {
    static MPIX_P2p_iov iov[1024];
    MPIX_Xfer x[PUTS];
    int code = MPI_SUCCESS, n = 0;
    size_t part = bytes / (size_t)pieces;
    for (int i = 0; i < pieces; i++)
        iov[i] = (MPIX_P2p_iov){mem, (MPI_Count)((size_t)i * part), at[peer],
                                (MPI_Count)((size_t)i * part), (MPI_Count)part};
    for (; n < (t_rank == 1 ? PUTS : 1) && code == MPI_SUCCESS; n += code == MPI_SUCCESS)
        code = MPIX_P2p_iput(iov, pieces, &x[n]);
    for (int i = 0; i < n; i++) {
        int ended = MPIX_Xfer_wait(&x[i]);
        code = code == MPI_SUCCESS ? ended : code;
    }
    if (code == MPI_SUCCESS)
        code = MPIX_P2p_put_notify(iov, 1, 0, 1);
    if (code == MPI_SUCCESS && t_rank == 0)
        code = MPIX_P2p_notify_wait(p2p, peer, 0, number, NULL);
    return code;
}

/* Until it fails; a peer that was not told of anything may go on for as long as it likes. */
static int traffic(double seconds) {
    double end = now() + seconds;
    int code = MPI_SUCCESS;
    for (uint64_t i = 1; code == MPI_SUCCESS && now() < end; i++)
        code = p2p ? round_p2p(i) : round_ep();
    return code;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What the caller may do with memory that it got back. Of memory that was the library's: if nothing
 * is there any more, something else is. */
static void reuse(char *from, size_t n, int ours) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (ours) {
        REQUIRE(mmap(from, n / 2, PROT_NONE, flags | MAP_FIXED, -1, 0) == from, "mmap");
        from += n / 2;
        n /= 2;
        REQUIRE(mmap(from, n, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == from, "mmap");
    } else if (mmap(from, n, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0) != from) {
        base = NULL;
        return;
    }
    memset(from, PATTERN, n);
    base = from;
    bytes = n;
}

static void release(void) {
    int ours = 0;
    if (is(object, "ep-register")) {
        CHECK_OK(MPIX_Ep_deregister(ep, base));
        ours = 1;
    } else if (ep) {
        CHECK_OK(MPIX_Ep_dealloc(ep, base));
    } else if (is(object, "p2p-free")) {
        CHECK_OK(MPIX_P2p_free(&p2p));
        ours = 1;
    } else {
        CHECK_OK(MPIX_P2p_rmem_free(&at[peer]));
        if (is(object, "p2p-rmem")) {
            base = NULL;
            return;
        }
        CHECK_OK(MPIX_P2p_dereg(&mem));
        ours = is(object, "p2p-reg");
    }
    reuse(base, bytes, ours);
}

static void untouched(void) {
    size_t i = 0;
    while (base && i < bytes && base[i] == PATTERN)
        i++;
    CHECK(!base || i == bytes, "byte %zu of %zu of memory that was given back has become %d", i,
          bytes, base ? base[i] : 0);
}

static void finish(void) {
    if (ep)
        CHECK_OK(MPIX_Ep_free(&ep));
    if (p2p)
        CHECK_OK(MPIX_P2p_free(&p2p));
}

/* A child stops this rank from outside, wherever it is, and wakes it; or kills it. */
static pid_t stopper(double after) {
    pid_t me = getpid(), child = fork();
    if (child == 0) {
        rest(after);
        kill(me, is(fault, "killed") ? SIGKILL : SIGSTOP);
        rest(stop_s);
        kill(me, SIGCONT);
        _exit(0);
    }
    return child;
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "life");
    object = t_option_text(argc, argv, "--object", "ep");
    fault = t_option_text(argc, argv, "--fault", "stall-here");
    double timeout = atof(t_option_text(argc, argv, "--timeout", "0.5"));
    stop_s = atof(t_option_text(argc, argv, "--stop", "1.5"));
    pieces = (int)t_option(argc, argv, "--pieces", 256);
    REQUIRE(t_size == 2 && pieces > 0 && pieces <= 1024, "two ranks, at most 1024 pieces");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    t_watchdog(60);
    t_where("%s %s", object, fault);
    peer = 1 - t_rank;
    MPI_Info info = make_info(timeout, t_option(argc, argv, "--stall-at", 20));
    pid_t child = 0;
    if (begins(object, "ep"))
        make_ep(timeout, info);
    else
        make_p2p(info);
    MPI_Info_free(&info);
    if (t_rank == 1 && !begins(fault, "stall"))
        child = stopper(0.3);
    int code = traffic(t_rank == 0 ? 30 : 0.3 + stop_s + 1);
    CHECK(code != MPI_SUCCESS || t_rank == 1, "nothing failed");
    if (t_rank == 0)
        release();
    rest(stop_s + 0.7 - (t_rank == 1 && is(fault, "stopped") ? stop_s : 0));
    if (t_rank == 0) {
        untouched();
    } else {
        release();
        rest(0.2);
        untouched();
        if (is(fault, "stopped"))
            waitpid(child, NULL, 0);
    }
    finish();
    if (is(fault, "killed"))
        t_leave();
    MPI_Barrier(MPI_COMM_WORLD);
    return t_end();
}
