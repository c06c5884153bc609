/*
 * ep_faults.c - peers that are late, absent, stopped, killed or gone: the others get an error that
 * names them, in time, and free returns.
 *
 *   ep_faults --case late|absent|stopped|killed|gone|forgotten|injected [--progress caller|thread]
 *             [--mode ht|ll] [--limit SECONDS]    (timeout_s where a peer is waited for in
 *                                                 vain, default 1)
 *   ep_faults --case cut --command SHELL_COMMAND --heal SHELL_COMMAND
 *
 * The victim is the last rank but one (rank 1 of 2). `killed` and `gone` need a launcher that lets
 * survivors live; they leave by _exit, because MPI may not be able to finalize, and
 * tests/mpi/run.sh counts their verdicts. `cut` is for networks that MPI does not use: the victim's
 * command takes it off, for good as far as this context is concerned; every rank gets an error, the
 * victim too. `injected` is run over the transport chaos (environment), which fails or stalls at
 * chosen operations.
 */
#include "ep_faults.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static t_rng common = {.s = 8}, own;
int victim;
static const char *progress;
static double limit; /* timeout_s */
static int low_latency;

double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void rest(double seconds) {
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

const char *extra = "";

static void set_extra(MPI_Info info) {
    char copy[256], key[64], *save = NULL;
    snprintf(copy, sizeof copy, "%s", extra);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(word, '=');
        *eq = '\0';
        snprintf(key, sizeof key, "mpix_ep_%.50s", word);
        MPI_Info_set(info, key, eq + 1);
    }
}

int try_make(t_ctx *ctx, double timeout) {
    MPI_Info info;
    memset(ctx, 0, sizeof *ctx);
    MPIX_INIT(&ctx->config);
    ctx->config.mode = low_latency ? MPIX_EP_LL : MPIX_EP_HT;
    ctx->config.layout = low_latency ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    ctx->config.max_topk = 3;
    ctx->config.num_experts = 2 * t_size + 1;
    ctx->config.max_tokens = 20;
    ctx->config.max_row_bytes = 400;
    ctx->config.timeout_s = timeout;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_progress", progress);
    set_extra(info);
    int code = MPIX_Ep_create(MPI_COMM_WORLD, &ctx->config, info, &ctx->ep);
    MPI_Info_free(&info);
    return code;
}

void make(t_ctx *ctx, t_handle *handle, double timeout) {
    REQUIRE(try_make(ctx, timeout) == MPI_SUCCESS, "no context");
    ctx->area.bytes = 1 << 18;
    CHECK_OK(MPIX_Ep_alloc(ctx->ep, (MPI_Count)ctx->area.bytes, MPI_INFO_NULL, &ctx->area.base));
    t_handle_init(handle, ctx);
}

t_call *prepare(t_handle *handle, int kind) {
    t_shape s = {.seed = t_rand(&common), .hidden = 90, .dtype = MPIX_EP_F32, .flavour = REF_MIXED};
    if (kind == T_DISPATCH)
        return t_call_dispatch(handle, &s, &own);
    if (kind == T_COMBINE)
        return t_call_combine(handle, &s, &own);
    int64_t *ids = t_make_ids((int)handle->ctx->config.num_experts, NULL, T_UNIFORM, s.seed, 20, 3,
                              &own);
    t_call *call = t_call_route(handle, 20, 3, ids, 32, &own);
    free(ids);
    return call;
}

void all_well(t_handle *handle) {
    for (int kind = T_ROUTE; kind <= T_COMBINE; kind++)
        t_call_run(prepare(handle, kind), kind & 1);
}

/* An error of one kind that blames the victim. */
static void blames(int code, int kind, const char *what) {
    MPIX_Error error;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (!CHECK(code != MPI_SUCCESS, "%s: MPI_SUCCESS, expected an error about rank %d", what,
               victim))
        return;
    CHECK(error.kind == kind, "%s: kind %d, expected %d: %s", what, error.kind, kind, error.text);
    CHECK(error.rank == victim && error.host[0],
          "%s: blames rank %d on \"%s\", expected rank %d: %s", what, error.rank, error.host,
          victim, error.text);
}

/* What a context must still do after it has failed. */
static void failed_context(t_ctx *ctx, t_handle *handle, t_call *again, int kind) {
    MPIX_Error error;
    double begin = now();
    t_where("calls on a failed context");
    blames(t_call_start(again, 1), kind, "a call on the failed context");
    CHECK(now() - begin < 1, "a call on a failed context took %.2f s", now() - begin);
    MPIX_INIT(&error);
    CHECK(MPIX_Ep_get_async_error(ctx->ep, &error) == MPI_SUCCESS && error.kind == kind &&
              error.rank == victim,
          "async error: kind %d, rank %d", error.kind, error.rank);
    CHECK_OK(MPIX_Ep_handle_free(&handle->h));
    t_where("free of a failed context");
    begin = now();
    CHECK_OK(MPIX_Ep_free(&ctx->ep));
    CHECK(now() - begin < limit + 3, "free took %.2f s", now() - begin);
    CHECK(ctx->ep == MPIX_EP_NULL, "a freed context is not MPIX_EP_NULL");
}

/* The others' side: several transfers, all of which fail, in time. */
static void survive(t_ctx *ctx, t_handle *handle, t_call **calls, int n, int kind) {
    MPIX_Xfer xfers[4];
    int codes[4] = {0};
    double begin = now();
    for (int i = 0; i < n - 1; i++) {
        t_call_start(calls[i], 0); /* may find out at once */
        xfers[i] = calls[i]->xfer;
        if (calls[i]->code != MPI_SUCCESS)
            blames(calls[i]->code, kind, "start");
    }
    int code = MPIX_Xfer_waitall(n - 1, xfers, codes);
    if (xfers[0] == MPIX_XFER_NULL && calls[0]->code == MPI_SUCCESS)
        blames(code, kind, "waitall");
    for (int i = 0; i < n - 1; i++)
        CHECK(codes[i] != MPI_SUCCESS || calls[i]->code != MPI_SUCCESS,
              "transfer %d of a failed context succeeded", i);
    double took = now() - begin;
    CHECK(took < limit + 3, "the error came after %.2f s, timeout_s is %.2f", took, limit);
    if (kind == MPIX_ERRK_TIMEOUT)
        CHECK(took > limit * 0.8, "the error came after %.2f s, timeout_s is %.2f", took, limit);
    for (int i = 0; i < n; i++)
        for (int b = 0; b < calls[i]->nbufs; b++)
            CHECK_BUF(&calls[i]->bufs[b], calls[i]->names[b]);
    failed_context(ctx, handle, calls[n - 1], kind);
    for (int i = 0; i < n; i++)
        t_call_free(calls[i]);
}

/* A slow peer is no failure. */
static void late(void) {
    t_ctx ctx;
    t_handle handle;
    make(&ctx, &handle, 20);
    for (int kind = T_ROUTE; kind <= T_COMBINE; kind++) {
        t_call *call = prepare(&handle, kind);
        MPI_Barrier(MPI_COMM_WORLD);
        if (t_rank == victim)
            rest(0.4);
        double begin = now();
        t_call_run(call, kind & 1);
        if (t_rank != victim && !(low_latency && kind == T_ROUTE)) /* that one is local */
            CHECK(now() - begin > 0.2, "call %d did not wait for a late rank: %.3f s", kind,
                  now() - begin);
    }
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
}

/* The victim does not call, or stops itself for a while; then it comes back, and gets
 * an error too. */
static void away(int stop) {
    static const int kinds[] = {T_ROUTE, T_DISPATCH, T_COMBINE};
    for (int at = low_latency ? T_DISPATCH : T_ROUTE; at <= T_COMBINE; at++) {
        t_ctx ctx;
        t_handle handle;
        t_call *calls[3];
        t_where("rank %d is %s before call %d", victim, stop ? "stopped" : "absent", at);
        t_watchdog(60);
        make(&ctx, &handle, limit);
        all_well(&handle);
        for (int i = 0; i < 3; i++)
            calls[i] = prepare(&handle, i == 0 ? kinds[at] : T_DISPATCH);
        MPI_Barrier(MPI_COMM_WORLD);
        if (t_rank != victim) {
            survive(&ctx, &handle, calls, 3, MPIX_ERRK_TIMEOUT);
        } else {
            pid_t child = stop ? fork() : 0;
            if (stop && child == 0) { /* wakes its parent; does nothing else */
                rest(limit + 0.8);
                kill(getppid(), SIGCONT);
                _exit(0);
            }
            if (stop) {
                raise(SIGSTOP);
                waitpid(child, NULL, 0);
            } else {
                rest(limit + 0.8);
            }
            double begin = now();
            t_where("rank %d is back", victim);
            /* writes where it was granted to, if at all, and waits in vain */
            int code = t_call_start(calls[0], 1);
            /* Low latency: what the others had sent before they gave up is there, so the calls that
             * they started succeed here. */
            for (int i = 1; low_latency && i < 3 && code == MPI_SUCCESS; i++) {
                t_call_check(calls[i - 1]);
                code = t_call_start(calls[i], 1);
            }
            CHECK(code != MPI_SUCCESS || at == T_ROUTE || t_size == 1,
                  "the call that the others gave up on succeeded");
            CHECK(now() - begin < limit + 3, "its calls took %.2f s", now() - begin);
            begin = now();
            CHECK_OK(MPIX_Ep_free(&ctx.ep));
            CHECK(now() - begin < limit + 3, "its free took %.2f s", now() - begin);
            for (int i = 0; i < 3; i++)
                t_call_free(calls[i]);
        }
        t_plans_free();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* MPI and other contexts are none the worse. */
    t_ctx ctx;
    t_handle handle;
    make(&ctx, &handle, 20);
    all_well(&handle);
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
}

static int can_watch(void) {
#ifdef SYS_pidfd_open
    int fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
#else
    return 0;
#endif
}

/* The victim ends for good. */
static void dead(int by_signal) {
    t_ctx ctx;
    t_handle handle;
    t_call *calls[4];
    /* Where the system tells of the end of a process, it is noticed long before the time limit. */
    int watched = can_watch();
    make(&ctx, &handle, watched ? 40 : limit);
    all_well(&handle);
    for (int i = 0; i < 4; i++)
        calls[i] = prepare(&handle, i == 1 ? T_COMBINE : T_DISPATCH);
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == victim) {
        rest(0.3);
        if (by_signal)
            raise(SIGKILL);
        _exit(0);
    }
    survive(&ctx, &handle, calls, 4, watched ? MPIX_ERRK_PEER : MPIX_ERRK_TIMEOUT);
    t_leave();
}

/* Names that the library could have left in /dev/shm; MPI's own and other programs' are known
 * by their names. */
static int shm_names(char names[][64], int room) {
    static const char *const others[] = {".",   "vader_segment", "sm_segment", "ucx",  "psm",
                                         "osc", "mpich",         "mpi_",       "sem.", "open_mpi"};
    DIR *dir = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int known = 0;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            known |= strncmp(e->d_name, others[i], strlen(others[i])) == 0;
        if (!known && n < room)
            snprintf(names[n++], 64, "%.63s", e->d_name);
    }
    if (dir)
        closedir(dir);
    return n;
}

static void no_names(void) {
    char before[64][64], during[64][64];
    t_ctx ctx;
    t_handle handle;
    t_where("names in /dev/shm");
    MPI_Barrier(MPI_COMM_WORLD);
    int n = shm_names(before, 64);
    MPI_Barrier(MPI_COMM_WORLD);
    make(&ctx, &handle, 20);
    all_well(&handle);
    int m = shm_names(during, 64);
    for (int i = 0; i < m; i++) {
        int old = 0;
        for (int j = 0; j < n; j++)
            old |= strcmp(during[i], before[j]) == 0;
        /* windows have no names, so a death leaves none */
        CHECK(old, "/dev/shm/%s appeared", during[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
}

static void command(const char *text) {
    int status = text[0] ? system(text) : -1; /* NOLINT: the test's own command line */
    REQUIRE(status == 0, "the command \"%s\" ended with status %d", text, status);
}

/* The network is gone while calls are under way. Nobody frees before all have their error: who
 * hangs up would be blamed too. */
static void cut(const char *away, const char *back) {
    enum { PATIENCE = 20 }; /* timeout_s; the device gives up earlier, after net_timeout */
    t_ctx ctx;
    t_handle handle;
    MPIX_Error error;
    make(&ctx, &handle, PATIENCE);
    all_well(&handle);
    t_call *call = prepare(&handle, T_DISPATCH), *again = prepare(&handle, T_COMBINE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank == victim)
        command(away);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    int code = t_call_start(call, 1);
    double took = now() - begin;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (CHECK(code != MPI_SUCCESS, "the dispatch succeeded without a network")) {
        CHECK(error.kind == MPIX_ERRK_PEER || error.kind == MPIX_ERRK_TRANSPORT,
              "kind %d, expected PEER or TRANSPORT: %s", error.kind, error.text);
        CHECK(t_rank == victim ? error.rank >= 0 && error.rank != victim : error.rank == victim,
              "blames rank %d: %s", error.rank, error.text);
        CHECK(error.host[0] != 0, "names no host: %s", error.text);
    }
    CHECK(took < PATIENCE, "the error came after %.1f s, as late as the time limit", took);
    begin = now();
    CHECK(t_call_start(again, 1) != MPI_SUCCESS, "a call on the failed context succeeded");
    CHECK(now() - begin < 1, "a call on the failed context took %.1f s", now() - begin);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = now();
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    CHECK(now() - begin < 5, "free took %.1f s", now() - begin);
    t_call_free(call);
    t_call_free(again);
    t_plans_free();
    if (t_rank == victim)
        command(back);
    MPI_Barrier(MPI_COMM_WORLD);
    t_where("the network is back");
    make(&ctx, &handle, PATIENCE);
    all_well(&handle);
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
}

/* Contexts that are never freed are taken down in MPI_Finalize. */
static void forgotten(void) {
    t_ctx ctx[2];
    t_handle handle[2];
    for (int i = 0; i < 2; i++) {
        make(&ctx[i], &handle[i], 20);
        all_well(&handle[i]);
    }
    /* in flight, and left there; volatile, so that it stays reachable for the leak check */
    static t_call *volatile left;
    left = prepare(&handle[0], T_DISPATCH);
    CHECK_OK(t_call_start(left, 0));
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "ep_faults");
    const char *name = t_option_text(argc, argv, "--case", "late");
    progress = t_option_text(argc, argv, "--progress", "caller");
    low_latency = !strcmp(t_option_text(argc, argv, "--mode", "ht"), "ll");
    limit = (double)t_option(argc, argv, "--limit", 1);
    victim = t_size > 2 ? t_size - 2 : t_size - 1;
    own.s = 100 + (uint64_t)t_rank;
    t_where("%s", name);
    t_watchdog(60);
    REQUIRE(t_size > 1, "ep_faults needs two ranks");
    no_names();
    t_where("%s", name);
    if (strcmp(name, "late") == 0)
        late();
    else if (strcmp(name, "absent") == 0 || strcmp(name, "stopped") == 0)
        away(name[0] == 's');
    else if (strcmp(name, "killed") == 0 || strcmp(name, "gone") == 0)
        dead(name[0] == 'k');
    else if (strcmp(name, "forgotten") == 0)
        forgotten();
    else if (strcmp(name, "cut") == 0)
        cut(t_option_text(argc, argv, "--command", ""), t_option_text(argc, argv, "--heal", ""));
    else if (strcmp(name, "injected") == 0)
        injected();
    else
        t_die(__FILE__, __LINE__, "unknown case %s", name);
    return t_end();
}
