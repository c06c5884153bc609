/*
 * ep_traffic.c - what dispatch and combine send over the network, by the library's counters:
 * messages per peer do not depend on the number of tokens and experts, bytes are what has to
 * travel, and the proxy's memory per pair is bounded.
 *
 *   ep_traffic [--chunk BYTES] [--lanes N] [--threads N]
 *
 * Every pair is proxied (environment). The bound of the memory is for one lane, at the default
 * depth. The chunk is that of the parameter chunk_bytes.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static long chunk, lanes, threads;

static void counters(MPIX_Ep ep, MPIX_Ep_peer *peers) {
    for (int r = 0; r < t_size; r++) {
        MPIX_INIT(&peers[r]);
        CHECK_OK(MPIX_Ep_get_peer(ep, r, &peers[r]));
        CHECK(peers[r].reach == (r == t_rank ? MPIX_EP_REACH_SELF : MPIX_EP_REACH_PROXIED),
              "rank %d: reach %d", r, peers[r].reach);
        CHECK(r == t_rank || (peers[r].lanes == lanes && peers[r].transport[0] && peers[r].why[0]),
              "rank %d: %d lanes over \"%s\"", r, peers[r].lanes, peers[r].transport);
        CHECK(peers[r].proxy_threads == (r == t_rank ? 0 : threads),
              "rank %d: %d threads of the proxy", r, peers[r].proxy_threads);
        /* each thread counts for itself */
        CHECK(peers[r].memory <= 65536 * (lanes + (threads > 1 ? threads - 1 : 0)) &&
                  (r == t_rank) == (peers[r].memory == 0),
              "rank %d: %lld bytes of the proxy", r, (long long)peers[r].memory);
    }
}

static long long up(long long a, long long b) { return (a + b - 1) / b; }

/* items of so many bytes to a peer: whole ones in each chunk. */
static void check(const MPIX_Ep_peer *before, const MPIX_Ep_peer *after, const long long *items,
                  long long bytes, const char *what) {
    long long per_chunk = chunk / bytes > 0 ? chunk / bytes : 1;
    for (int r = 0; r < t_size; r++) {
        long long messages = (long long)(after[r].messages - before[r].messages),
                  sent = (long long)(after[r].bytes - before[r].bytes);
        if (r == t_rank)
            continue;
        CHECK(messages <= up(items[r], per_chunk) + lanes + 2,
              "%s to %d: %lld messages, %lld chunks, %ld lanes", what, r, messages,
              up(items[r], per_chunk), lanes);
        CHECK(messages >= up(items[r], per_chunk) + lanes,
              "%s to %d: %lld messages, fewer than there must be", what, r, messages);
        CHECK(sent >= items[r] * bytes && sent <= items[r] * bytes + 1024,
              "%s to %d: %lld bytes for %lld items of %lld", what, r, sent, items[r], bytes);
    }
}

static void shape(int experts, int64_t tokens, int topk, int64_t hidden) {
    t_ctx ctx;
    MPIX_Ep_handle handle;
    t_rng own = {.s = 5 + (uint64_t)t_rank};
    MPIX_Ep_peer *before = calloc((size_t)t_size, sizeof *before),
                 *after = calloc((size_t)t_size, sizeof *after);
    long long *send = calloc((size_t)t_size, sizeof *send),
              *recv = calloc((size_t)t_size, sizeof *recv);
    MPI_Count *recv_per_rank = calloc((size_t)t_size, sizeof *recv_per_rank), rows = 0;
    REQUIRE(before && after && send && recv && recv_per_rank, "no memory");
    t_where("%d experts, %lld tokens, top-%d, %lld elements", experts, (long long)tokens, topk,
            (long long)hidden);
    t_watchdog(60);
    memset(&ctx, 0, sizeof ctx);
    MPIX_INIT(&ctx.config);
    ctx.config.layout = MPIX_EP_COMPACT;
    ctx.config.max_topk = topk;
    ctx.config.num_experts = experts;
    ctx.config.max_tokens = tokens;
    ctx.config.max_row_bytes = 4 * hidden;
    ctx.config.timeout_s = 60;
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &ctx.config, MPI_INFO_NULL, &ctx.ep) == MPI_SUCCESS,
            "no context");
    CHECK_OK(MPIX_Ep_handle_create(ctx.ep, &handle));
    int64_t *ids = t_make_ids(experts, NULL, T_UNIFORM, 1, tokens, topk, &own);
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = tokens;
    routing.topk = topk;
    routing.ids = ids;
    routing.idx_bits = 64;
    counts.recv_per_rank = recv_per_rank;
    counts.recv_total = &rows;
    CHECK_OK(MPIX_Ep_route(handle, &routing, &counts));
    for (int r = 0; r < t_size; r++)
        recv[r] = (long long)recv_per_rank[r];
    MPI_Alltoall(recv, 1, MPI_LONG_LONG, send, 1, MPI_LONG_LONG, MPI_COMM_WORLD);
    float *x = calloc((size_t)(tokens * hidden) + 1, sizeof *x),
          *y = calloc((size_t)(tokens * hidden) + 1, sizeof *y),
          *out = calloc((size_t)(rows * hidden) + 1, sizeof *out);
    REQUIRE(x && y && out, "no memory");
    MPIX_Ep_dispatch_in din;
    MPIX_Ep_dispatch_out dout;
    MPIX_Ep_combine_in cin;
    MPIX_Ep_combine_out cout;
    MPIX_INIT(&din);
    MPIX_INIT(&dout);
    MPIX_INIT(&cin);
    MPIX_INIT(&cout);
    din.hidden = cin.hidden = hidden;
    din.x = (MPIX_Ep_rows){.data = x, .dtype = MPIX_EP_F32};
    dout.x.data = out;
    dout.capacity_rows = rows;
    cin.x = (MPIX_Ep_rows){.data = out, .dtype = MPIX_EP_F32};
    cout.y.data = y;
    for (int round = 0; round < 3; round++) { /* the first, and those that use banks again */
        long long row = 4 * hidden;           /* a multiple of 16 */
        counters(ctx.ep, before);
        CHECK_OK(MPIX_Ep_dispatch(handle, &din, &dout));
        counters(ctx.ep, after);
        check(before, after, send, row + up(4 + 8 * topk, 16) * 16, "dispatch");
        CHECK_OK(MPIX_Ep_combine(handle, &cin, &cout));
        counters(ctx.ep, before);
        check(after, before, recv, row + up(4 + 4 * topk, 16) * 16, "combine");
    }
    CHECK_OK(MPIX_Ep_free(&ctx.ep));
    free(ids);
    free(x);
    free(y);
    free(out);
    free(before);
    free(after);
    free(send);
    free(recv);
    free(recv_per_rank);
}

/* What a caller may get wrong. */
static void misuse(void) {
    MPIX_Ep_config config;
    MPIX_Ep_peer peer;
    MPIX_Ep ep;
    t_where("arguments of MPIX_Ep_get_peer");
    MPIX_INIT(&config);
    config.num_experts = 1;
    config.max_topk = 1;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &config, MPI_INFO_NULL, &ep) == MPI_SUCCESS,
            "no context");
    MPIX_INIT(&peer);
    CHECK(MPIX_Ep_get_peer(ep, -1, &peer) != MPI_SUCCESS &&
              MPIX_Ep_get_peer(ep, t_size, &peer) != MPI_SUCCESS,
          "no such rank");
    CHECK(MPIX_Ep_get_peer(ep, 0, NULL) != MPI_SUCCESS, "no output");
    peer.struct_size = 3;
    CHECK(MPIX_Ep_get_peer(ep, 0, &peer) != MPI_SUCCESS, "another size");
    CHECK(peer.transport[0] == '\0', "the output was written");
    CHECK_OK(MPIX_Ep_free(&ep));
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "ep_traffic");
    chunk = t_option(argc, argv, "--chunk", 262144);
    lanes = t_option(argc, argv, "--lanes", 1);
    threads = t_option(argc, argv, "--threads", 0);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    shape(8, 0, 2, 64);
    shape(8, 1, 2, 64);
    shape(8, 500, 2, 64);
    shape(256, 500, 8, 64);
    shape(256, 100, 8, 2048);
    shape(64, 1500, 4, 256);
    misuse();
    return t_end();
}
