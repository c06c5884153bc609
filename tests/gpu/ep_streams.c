/*
 * ep_streams.c - calls on streams, in graphs, in halves, under stress, and beside ranks that stop.
 *
 *   ep_streams [all|stress|ordered|killed|stalled [iterations of stress
 *   [none|expert|compact [num_sms]]]]
 *
 * none: rows by copy engines; then all ranks start the handles in the same order, since the host
 * waits for routings. expert: EXPERT layout, rows in order of expert, rank, token.
 * ordered: one handle after the other, for compute-sanitizer, under which kernels do not run
 * beside each other.
 */
#include "ep_streams.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

int rank, size, failures, expert;
static int devices, none, far; /* far: some peers are proxied */

static int async_kind(MPIX_Ep ep) {
    MPIX_Error e;
    MPIX_INIT(&e);
    EP(MPIX_Ep_get_async_error(ep, &e));
    return e.kind;
}

/* Several calls in one graph, replayed with other rows, eager calls in between. */
static void run_graph(MPIX_Ep ep, lane *l) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0;
    MPI_Count pageable;
    lane_shape(l, 42);
    lane_fill(l, 1);
    CU(cudaStreamSynchronize(l->stream));
    CU(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeGlobal));
    lane_call(l);
    lane_call(l);
    /* What would need the host is refused, and the capture goes on. */
    MPIX_Ep_counts host = l->c;
    host.recv_total = &pageable;
    CHECK(g_kind(MPIX_Ep_route_enqueue(l->h, &l->r, &host, l->stream)) == MPIX_ERRK_ARG,
          "pageable counts in a capture");
    EP(MPIX_Ep_dispatch_begin_enqueue(l->h, &l->in, &l->out, l->stream));
    EP(MPIX_Ep_dispatch_end_enqueue(l->h, l->stream));
    EP(MPIX_Ep_combine_enqueue(l->h, &l->ci, &l->co, l->stream));
    CU(cudaStreamEndCapture(l->stream, &graph));
    CU(cudaGraphGetNodes(graph, NULL, &nodes));
    /* EXPERT: two for a dispatch and for a route, among proxied peers two for its second half */
    CHECK(nodes <= 2 * 4 + (expert ? far ? 6 : 5 : 4), "%zu kernels for two turns and a split one",
          nodes);
    CU(cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t i = 0; i < 12; i++) {
        lane_fill(l, 100 + i);
        if (i % 3 == 1)
            lane_call(l);
        else
            CU(cudaGraphLaunch(exec, l->stream));
        lane_fetch(l);
        CU(cudaStreamSynchronize(l->stream));
        lane_check(l, 100 + i, i % 3 == 1 ? "eager between replays" : "replay");
    }
    EP(MPIX_Ep_dispatch(l->h, &l->in, &l->out)); /* on the context's own stream */
    CU(cudaGraphLaunch(exec, l->stream));
    CU(cudaStreamSynchronize(l->stream));
    CHECK(async_kind(ep) == 0, "an asynchronous error");
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));

    /* A graph without a route of its own, replayed after the routing has changed: told, and the
     * next replay works again. */
    CU(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeGlobal));
    EP(MPIX_Ep_dispatch_enqueue(l->h, &l->in, &l->out, l->stream));
    CU(cudaStreamEndCapture(l->stream, &graph));
    CU(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes <= 2, "a dispatch is %zu launches", nodes);
    CU(cudaGraphInstantiate(&exec, graph, 0));
    MPIX_Ep_routing other = l->r;
    other.num_tokens = l->tokens ? l->tokens - 1 : 1;
    EP(MPIX_Ep_route(l->h, &other, NULL));
    CU(cudaGraphLaunch(exec, l->stream));
    CU(cudaStreamSynchronize(l->stream));
    int kind = async_kind(ep);
    CHECK(kind == MPIX_ERRK_ARG || kind == MPIX_ERRK_REMOTE,
          "a replay with another routing: kind %d", kind);
    EP(MPIX_Ep_route(l->h, &l->r, NULL));
    lane_fill(l, 7);
    CU(cudaGraphLaunch(exec, l->stream));
    EP(MPIX_Ep_combine_enqueue(l->h, &l->ci, &l->co, l->stream));
    lane_fetch(l);
    CU(cudaStreamSynchronize(l->stream));
    lane_check(l, 7, "replay after an error");
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
}

/* Calls whose copies' sizes are the host's are refused, and the capture goes on; so
 * do eager calls. */
static void run_no_graph(MPIX_Ep ep, lane *l) {
    cudaGraph_t graph;
    lane_shape(l, 42);
    lane_fill(l, 1);
    lane_call(l);
    CU(cudaStreamSynchronize(l->stream));
    CU(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeGlobal));
    CHECK(g_kind(MPIX_Ep_route_enqueue(l->h, &l->r, &l->c, l->stream)) == MPIX_ERRK_UNSUPPORTED,
          "route in a capture");
    CHECK(g_kind(MPIX_Ep_dispatch_enqueue(l->h, &l->in, &l->out, l->stream)) ==
              MPIX_ERRK_UNSUPPORTED,
          "dispatch in a capture");
    CHECK(g_kind(MPIX_Ep_combine_begin_enqueue(l->h, &l->ci, &l->co, l->stream)) ==
              MPIX_ERRK_UNSUPPORTED,
          "half a combine in a capture");
    CU(cudaStreamEndCapture(l->stream, &graph));
    CU(cudaGraphDestroy(graph));
    lane_fill(l, 2);
    lane_call(l);
    lane_fetch(l);
    CU(cudaStreamSynchronize(l->stream));
    lane_check(l, 2, "after a refused capture");
    CHECK(async_kind(ep) == 0, "an asynchronous error");
}

static void run_halves(lane *l) {
    lane_shape(l, 77);
    CHECK(g_kind(MPIX_Ep_dispatch_end_enqueue(l->h, l->stream)) == MPIX_ERRK_ARG, "end of nothing");
    for (uint64_t i = 0; i < 5; i++) {
        lane_shape(l, 77 + i);
        lane_fill(l, 300 + i);
        EP(MPIX_Ep_route_enqueue(l->h, &l->r, &l->c, l->stream));
        EP(MPIX_Ep_dispatch_begin_enqueue(l->h, &l->in, &l->out, l->stream));
        CHECK(g_kind(MPIX_Ep_route_enqueue(l->h, &l->r, &l->c, l->stream)) == MPIX_ERRK_ARG,
              "route between the halves");
        CHECK(g_kind(MPIX_Ep_combine_end_enqueue(l->h, l->stream)) == MPIX_ERRK_ARG,
              "end of another call");
        EP(MPIX_Ep_dispatch_end_enqueue(l->h, l->stream));
        EP(MPIX_Ep_combine_begin_enqueue(l->h, &l->ci, &l->co, l->stream));
        EP(MPIX_Ep_combine_end_enqueue(l->h, l->stream));
        lane_fetch(l);
        CU(cudaStreamSynchronize(l->stream));
        lane_check(l, 300 + i, "halves");
    }
}

static void run_wrong(lane *l) {
    lane_shape(l, 5);
    lane_fill(l, 5);
    CU(cudaStreamSynchronize(l->stream));
    EP(MPIX_Ep_route(l->h, &l->r, &l->c));
    MPIX_Ep_combine_out co = l->co;
    co.y.data = malloc(TOKENS * HIDDEN * 4);
    MPIX_Ep_dispatch_in in = l->in;
    in.x.data = co.y.data;
    int any = l->tokens > 0, kind = g_kind(MPIX_Ep_dispatch(l->h, &in, &l->out));
    CHECK(kind == (any ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE) || !any, "rows in host memory: kind %d",
          kind);
    EP(MPIX_Ep_dispatch(l->h, &l->in, &l->out));
    kind = g_kind(MPIX_Ep_combine(l->h, &l->ci, &co));
    CHECK(kind == MPIX_ERRK_ARG || !any, "sums in host memory: kind %d", kind);
    free(co.y.data);
    if (devices > 1 && CUDART_VERSION >= 12080) {
        int here;
        cudaStream_t other;
        CU(cudaGetDevice(&here));
        CU(cudaSetDevice((here + 1) % devices));
        CU(cudaStreamCreate(&other));
        CU(cudaSetDevice(here));
        CHECK(g_kind(MPIX_Ep_dispatch_enqueue(l->h, &l->in, &l->out, other)) == MPIX_ERRK_ARG,
              "a stream of another device");
        CU(cudaStreamDestroy(other));
    }
    if (devices > 1) {
        int here;
        void *there;
        CU(cudaGetDevice(&here));
        CU(cudaSetDevice((here + 1) % devices));
        CU(cudaMalloc(&there, TOKENS * HIDDEN * 4));
        CU(cudaSetDevice(here));
        in.x.data = there;
        kind = g_kind(MPIX_Ep_dispatch(l->h, &in, &l->out));
        CHECK(kind == (any ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE) || !any,
              "rows in another device's memory: kind %d", kind);
        EP(MPIX_Ep_dispatch(l->h, &l->in, &l->out));
        CU(cudaFree(there));
    }
    MPIX_Xfer xfer;
    kind = g_kind(MPIX_Ep_idispatch(l->h, &l->in, &l->out, rank == 0 ? NULL : &xfer));
    if (rank != 0)
        kind = g_kind(MPIX_Xfer_wait(&xfer));
    CHECK(kind == (rank == 0 ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE),
          "no place for the transfer on rank 0: kind %d", kind);
    EP(MPIX_Ep_dispatch(l->h, &l->in, &l->out));
}

/* Random shapes and routings; two handles on two streams, and ranks start them in
 * different orders. */
static void run_stress(MPIX_Ep ep, lane *l, int iterations, int ordered) {
    for (int i = 0; i < iterations; i++) {
        uint64_t seed = g_mix((uint64_t)i + 1);
        for (int k = 0; k < 2; k++) {
            lane *one = &l[ordered ? k : (k + (none ? 0 : rank) + i) % 2];
            uint64_t own = seed + (uint64_t)(one - l);
            lane_shape(one, own);
            lane_fill(one, own);
            lane_call(one);
            lane_fetch(one);
            if (ordered)
                CU(cudaStreamSynchronize(one->stream));
        }
        for (int k = 0; k < 2; k++) {
            CU(cudaStreamSynchronize(l[k].stream));
            lane_check(&l[k], seed + (uint64_t)k, "stress");
        }
        if (failures || (i % 64 == 0 && async_kind(ep))) {
            CHECK(0, "stress: iteration %d, asynchronous error %d", i, async_kind(ep));
            return;
        }
    }
}

/* The last rank stops in the middle of its calls: the others are told who does not answer, and
 * their GPU goes on. */
static void run_stopped(const MPIX_Ep_config *like) {
    MPIX_Ep_config c = *like;
    MPIX_Ep ep;
    lane l;
    int pids[64], mine = (int)getpid();
    c.timeout_s = 1;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    lane_make(ep, &l);
    lane_shape(&l, 9);
    lane_fill(&l, 9);
    CU(cudaStreamSynchronize(l.stream));
    EP(MPIX_Ep_route(l.h, &l.r, NULL));
    MPI_Allgather(&mine, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
    if (rank == size - 1) {
        raise(SIGSTOP);
    } else {
        usleep(200000);
        int kind = g_kind(MPIX_Ep_dispatch(l.h, &l.in, &l.out));
        MPIX_Error e;
        MPIX_INIT(&e);
        MPIX_Error_last(&e);
        CHECK(kind == MPIX_ERRK_TIMEOUT, "a stopped peer: kind %d", kind);
        CHECK(size > 2 || e.rank == size - 1, "a stopped peer: rank %d is blamed", e.rank);
        CHECK(g_kind(MPIX_Ep_dispatch_enqueue(l.h, &l.in, &l.out, l.stream)) == MPIX_ERRK_TIMEOUT,
              "the context has failed");
        CU(cudaMemsetAsync(l.y, 1, 64, l.stream));
        CU(cudaStreamSynchronize(l.stream));
        usleep(300000); /* all have seen it */
        if (rank == 0)
            kill(pids[size - 1], SIGCONT);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CU(cudaDeviceSynchronize());
    EP(MPIX_Ep_free(&ep));
}

/*
 * Over chaos: the threads of the last rank's proxy do not run for some time from their operation
 * `at` on, while kernels of all ranks wait. Less than the time limit: nothing is lost. More: an
 * error on each rank when the limit is over, the GPUs go on, and free ends when the threads have.
 */
static void run_stalled(const MPIX_Ep_config *like, int at, int ms, double limit) {
    MPIX_Ep_config c = *like;
    MPIX_Ep ep;
    MPI_Info info;
    lane l;
    char text[32];
    int late = ms > limit * 1000, kind = 0, before = failures;
    c.timeout_s = limit;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_chaos_stall_thread", "yes");
    MPI_Info_set(info, "mpix_ep_chaos_stall_at", (snprintf(text, sizeof text, "%d", at), text));
    MPI_Info_set(info, "mpix_ep_chaos_stall_ms", (snprintf(text, sizeof text, "%d", ms), text));
    MPI_Info_set(info, "mpix_ep_chaos_rank", (snprintf(text, sizeof text, "%d", size - 1), text));
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, info, &ep));
    MPI_Info_free(&info);
    lane_make(ep, &l);
    lane_shape(&l, 9);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = g_now_s(), last = 0;
    for (int i = 0; i < 8 && !kind; i++) {
        lane_fill(&l, 9 + (uint64_t)i);
        CU(cudaStreamSynchronize(l.stream));
        double begin = g_now_s();
        kind = g_kind(MPIX_Ep_route(l.h, &l.r, &l.c));
        kind = kind ? kind : g_kind(MPIX_Ep_dispatch(l.h, &l.in, &l.out));
        kind = kind ? kind : g_kind(MPIX_Ep_combine(l.h, &l.ci, &l.co));
        last = g_now_s() - begin;
        if (kind)
            break;
        lane_fetch(&l);
        CU(cudaStreamSynchronize(l.stream));
        lane_check(&l, 9 + (uint64_t)i, "a stalled proxy");
    }
    double all = g_now_s() - start;
    CHECK(kind == (late ? MPIX_ERRK_TIMEOUT : 0),
          "a proxy that stalls %d ms from operation %d on, limit %.1f s: kind %d", ms, at, limit,
          kind);
    CHECK(all > (late ? limit : ms / 1e3) * 0.8,
          "a proxy that stalls %d ms: all was over after %.2f s", ms, all);
    CHECK(last < limit + 3, "a proxy that stalls %d ms, limit %.1f s: the call took %.2f s", ms,
          limit, last);
    if (late)
        CHECK(g_kind(MPIX_Ep_dispatch_enqueue(l.h, &l.in, &l.out, l.stream)) == MPIX_ERRK_TIMEOUT,
              "the context has failed");
    CU(cudaMemsetAsync(l.y, 1, 64, l.stream));
    CU(cudaStreamSynchronize(l.stream));
    MPI_Barrier(MPI_COMM_WORLD);
    start = g_now_s();
    EP(MPIX_Ep_free(&ep));
    CHECK(g_now_s() - start < ms / 1e3 + 3, "free took %.2f s", g_now_s() - start);
    if (rank == 0)
        printf("# proxy stalled %d ms from operation %d on, limit %.1f s: kind %d after %.2f s%s\n",
               ms, at, limit, kind, all, failures > before ? " FAILED" : "");
}

/* A context of its own with a time limit, and a lane in it that is filled and routed. */
static MPIX_Ep lane_routed(const MPIX_Ep_config *like, double limit, lane *l) {
    MPIX_Ep_config c = *like;
    MPIX_Ep ep;
    c.timeout_s = limit;
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    lane_make(ep, l);
    lane_shape(l, 9);
    lane_fill(l, 9);
    CU(cudaStreamSynchronize(l->stream));
    EP(MPIX_Ep_route(l->h, &l->r, NULL));
    return ep;
}

/* Two hops, two hosts of two ranks: the last rank sends its part and does not go on, so it
 * forwards nothing; its neighbour is told who that is, and the ranks of the other host have
 * all they need. */
static void run_no_forwarder(const MPIX_Ep_config *like) {
    lane l;
    MPIX_Ep ep = lane_routed(like, 1, &l);
    if (rank == 3) {
        EP(MPIX_Ep_dispatch_begin_enqueue(l.h, &l.in, &l.out, l.stream));
        CU(cudaStreamSynchronize(l.stream));
    } else {
        int kind = g_kind(MPIX_Ep_dispatch(l.h, &l.in, &l.out)),
            wanted = rank == 2 ? MPIX_ERRK_TIMEOUT : g_kind(MPI_SUCCESS);
        MPIX_Error e;
        MPIX_INIT(&e);
        MPIX_Error_last(&e);
        CHECK(kind == wanted, "a forwarder that stops: kind %d", kind);
        CHECK(rank < 2 || e.rank == 3, "a forwarder that stops: rank %d is blamed", e.rank);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 3)
        MPIX_Ep_dispatch_end_enqueue(l.h, l.stream); /* nobody waits for it any more */
    CU(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
    EP(MPIX_Ep_free(&ep));
}

/* The last rank dies. Ranks leave by _exit, since MPI may not be able to finalize; the script looks
 * at what was printed. */
static void run_killed(const MPIX_Ep_config *like) {
    lane l;
    lane_routed(like, 2, &l);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        raise(SIGKILL);
    usleep(300000);
    int kind = g_kind(MPIX_Ep_dispatch(l.h, &l.in, &l.out));
    CU(cudaMemsetAsync(l.y, 1, 64, l.stream));
    CU(cudaStreamSynchronize(l.stream));
    fprintf(stderr, "ep_streams: killed peer: rank %d: %s (kind %d)\n", rank,
            kind == MPIX_ERRK_PEER ? "passed" : "FAILED", kind);
    sleep(1);
    _exit(kind != MPIX_ERRK_PEER);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    int iterations = argc > 2 ? atoi(argv[2]) : 200;
    none = argc > 3 && !strcmp(argv[3], "none");
    expert = argc > 3 && !strcmp(argv[3], "expert");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(rank % devices));
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.memkind = MPIX_EP_CUDA;
    c.layout = expert ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
    c.max_topk = TOPK;
    c.num_experts = EXPERTS;
    c.max_tokens = TOKENS;
    c.max_row_bytes = HIDDEN * 4;
    c.num_sms = none ? MPIX_EP_SMS_NONE : argc > 4 ? atoi(argv[4]) : 6;
    c.timeout_s = 60;
    if (!strcmp(what, "killed"))
        run_killed(&c);
    if (!strcmp(what, "stalled")) { /* in the route's, the offer's and the rows' commands */
        for (int at = 1; at <= 9; at += 4) {
            run_stalled(&c, at, 400, 10);
            run_stalled(&c, at, 2000, 0.7);
        }
        iterations = 0;
    }
    MPIX_Ep ep;
    lane l[2];
    EP(MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    MPIX_Ep_peer peer;
    MPIX_INIT(&peer);
    EP(MPIX_Ep_get_peer(ep, (rank + size / 2) % size, &peer));
    far = peer.reach == MPIX_EP_REACH_PROXIED;
    lane_make(ep, &l[0]);
    lane_make(ep, &l[1]);
    if (!strcmp(what, "all")) {
        run_wrong(&l[1]);
        run_halves(&l[1]);
    }
    run_stress(ep, l, iterations, !strcmp(what, "ordered"));
    if (!strcmp(what, "all"))
        (none ? run_no_graph : run_graph)(ep, &l[0]);
    lane_free(ep, &l[0]);
    lane_free(ep, &l[1]);
    EP(MPIX_Ep_free(&ep));
    if (!strcmp(what, "all") && size > 1)
        run_stopped(&c);
    const char *two = getenv("MPIX_EP_TWO_HOPS"), *split = getenv("MPIX_EP_HOSTS");
    if (!strcmp(what, "all") && size == 4 && split && atoi(split) == 2 && two && !strcmp(two, "on"))
        run_no_forwarder(&c);
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("ep_streams: %d ranks on %d GPUs, %s%s, %d iterations of stress: %s\n", size,
               devices, what,
               none     ? " by copy engines"
               : expert ? ", EXPERT"
                        : "",
               iterations, all ? "FAILED" : "passed");
    MPI_Finalize();
    return all != 0;
}
