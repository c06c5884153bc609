/*
 * ep_hops.c - what two hops send over the network, for the choices of a real router (data/routing):
 * bytes are those of the routing's unique (token, host) pairs, by the library's counters; and the
 * mode auto takes two hops there.
 *
 *   ep_hops [--dir DIR] [--tokens N] [--layers N]
 *
 * The hosts are virtual (environment). What two hops deliver is the business of ep_random.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 64, TOPK = 8, HIDDEN = 1024, FILE_TOKENS = 65536, CHUNK = 262144 };

typedef struct {
    long long dispatch, combine; /* bytes that all ranks sent */
} traffic;

static int64_t *load(const char *dir, int layer, int64_t first, int64_t ntok) {
    char path[4096], header[128];
    snprintf(path, sizeof path, "%s/layer%d_topk.npy", dir, layer);
    FILE *file = fopen(path, "rb");
    REQUIRE(file && fread(header, 1, sizeof header, file) == sizeof header, "%s can't be read",
            path);
    long length = 10 + (unsigned char)header[8] + 256 * (unsigned char)header[9];
    unsigned char *bytes = malloc((size_t)(ntok * TOPK));
    int64_t *ids = malloc((size_t)(ntok * TOPK) * sizeof *ids);
    REQUIRE(bytes && ids, "no memory");
    REQUIRE(fseek(file, length + (long)(first * TOPK), SEEK_SET) == 0 &&
                fread(bytes, TOPK, (size_t)ntok, file) == (size_t)ntok,
            "%s ends early", path);
    fclose(file);
    for (int64_t i = 0; i < ntok * TOPK; i++)
        ids[i] = bytes[i];
    free(bytes);
    return ids;
}

static long long sent(MPIX_Ep ep) {
    long long bytes = 0;
    for (int r = 0; r < t_size; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        CHECK_OK(MPIX_Ep_get_peer(ep, r, &peer));
        bytes += (long long)peer.bytes;
    }
    return bytes;
}

static long long everybody(long long n) {
    long long all;
    MPI_Allreduce(&n, &all, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* Unique (token, rank) or (token, host) pairs between hosts, of all ranks; experts lie in
 * equal blocks. */
static long long pairs(const int64_t *ids, int64_t ntok, int by_host) {
    long long n = 0;
    for (int64_t t = 0; t < ntok; t++)
        for (int to = 0; to < (by_host ? t_hosts : t_size); to++) {
            int hit = 0;
            for (int k = 0; k < TOPK; k++) {
                int rank = (int)(ids[t * TOPK + k] / (EXPERTS / t_size));
                hit |= (by_host ? t_host_of[rank] : rank) == to &&
                       t_host_of[rank] != t_host_of[t_rank];
            }
            n += hit;
        }
    return everybody(n);
}

static traffic measure(const int64_t *ids, int64_t ntok, int layout, const char *two_hops) {
    MPIX_Ep_config config;
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    MPIX_Ep_routing routing;
    MPIX_Ep_counts counts;
    MPIX_Ep_dispatch_in din;
    MPIX_Ep_dispatch_out dout;
    MPIX_Ep_combine_in cin;
    MPIX_Ep_combine_out cout;
    MPI_Info info;
    MPI_Count rows = 0;
    traffic total;
    MPIX_INIT(&config);
    config.layout = layout;
    config.num_experts = EXPERTS;
    config.max_topk = TOPK;
    config.max_tokens = ntok;
    config.max_row_bytes = 2 * HIDDEN;
    config.timeout_s = 60;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_two_hops", two_hops);
    REQUIRE(MPIX_Ep_create(MPI_COMM_WORLD, &config, info, &ep) == MPI_SUCCESS, "no context");
    MPI_Info_free(&info);
    CHECK_OK(MPIX_Ep_handle_create(ep, &handle));
    MPIX_INIT(&routing);
    MPIX_INIT(&counts);
    routing.num_tokens = ntok;
    routing.topk = TOPK;
    routing.ids = ids;
    routing.idx_bits = 64;
    counts.recv_total = &rows;
    CHECK_OK(MPIX_Ep_route(handle, &routing, &counts));
    uint16_t *x = calloc((size_t)ntok * HIDDEN, 2), *y = calloc((size_t)ntok * HIDDEN, 2),
             *out = calloc((size_t)rows * HIDDEN + 1, 2);
    REQUIRE(x && y && out, "no memory");
    MPIX_INIT(&din);
    MPIX_INIT(&dout);
    MPIX_INIT(&cin);
    MPIX_INIT(&cout);
    din.hidden = cin.hidden = HIDDEN;
    din.x = (MPIX_Ep_rows){.data = x, .dtype = MPIX_EP_BF16};
    dout.x.data = out;
    dout.capacity_rows = rows;
    cin.x = (MPIX_Ep_rows){.data = out, .dtype = MPIX_EP_BF16};
    cout.y.data = y;
    long long before = sent(ep);
    CHECK_OK(MPIX_Ep_dispatch(handle, &din, &dout));
    MPI_Barrier(MPI_COMM_WORLD); /* credit goes back while others are still in their calls */
    long long between = sent(ep);
    CHECK_OK(MPIX_Ep_combine(handle, &cin, &cout));
    MPI_Barrier(MPI_COMM_WORLD);
    total.dispatch = everybody(between - before);
    total.combine = everybody(sent(ep) - between);
    CHECK_OK(MPIX_Ep_free(&ep));
    free(x);
    free(y);
    free(out);
    return total;
}

/* n items of so many bytes: that, and for each chunk of them a head, a word and credit; for each
 * pair of ranks an offer and signals. */
static void check(const char *what, long long got, long long n, long long bytes) {
    long long ends = (long long)t_size * t_size, chunks = n * bytes / (CHUNK - 32 - bytes) + ends;
    CHECK(got >= n * bytes && got <= n * bytes + chunks * 64 + ends * 512,
          "%s: %lld bytes for %lld items of %lld, which are %lld", what, got, n, bytes, n * bytes);
}

int main(int argc, char **argv) {
    char fallback[4096];
    t_init(&argc, &argv, "ep_hops");
    snprintf(fallback, sizeof fallback, "%s/data/routing",
             getenv("MPIX_SRCDIR") ? getenv("MPIX_SRCDIR") : ".");
    const char *dir = t_option_text(argc, argv, "--dir", fallback);
    int64_t ntok = t_option(argc, argv, "--tokens", 700);
    int layers = (int)t_option(argc, argv, "--layers", 3);
    /* up16(4 + 8 * TOPK), up16(4 + 12 * TOPK) */
    long long row = 2 * HIDDEN, far = row + 80, ask = 112;
    for (int layer = 0; layer < layers && !t_failed_anywhere(); layer++) {
        int layout = layer == 1 ? MPIX_EP_EXPERT : MPIX_EP_COMPACT;
        int64_t *ids = load(dir, layer, ntok * t_rank % (FILE_TOKENS - ntok + 1), ntok);
        t_where("layer %d", layer);
        t_watchdog(60);
        long long flat = pairs(ids, ntok, 0), hop = pairs(ids, ntok, 1);
        traffic off = measure(ids, ntok, layout, "off"), on = measure(ids, ntok, layout, "on"),
                chosen = measure(ids, ntok, layout, "auto");
        check("dispatch, one hop", off.dispatch, flat, far);
        check("dispatch, two hops", on.dispatch, hop, row + ask);
        check("combine, two hops", on.combine, hop, row + ask);
        check("dispatch, auto", chosen.dispatch, hop, row + ask);
        check("combine, auto", chosen.combine, hop, row + ask);
        if (t_rank == 0)
            printf("# layer %d: %lld (token, rank) and %lld (token, host) pairs, %.2f; bytes sent "
                   "dispatch %lld and %lld, combine %lld and %lld\n",
                   layer, flat, hop, (double)flat / (double)hop, off.dispatch, on.dispatch,
                   off.combine, on.combine);
        free(ids);
    }
    return t_end();
}
