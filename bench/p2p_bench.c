/*
 * p2p_bench.c - mpix_p2p_bench: MPIX_P2p_* between ranks 0 and 1, or all ranks at once, beside
 * MPI_Put/MPI_Get and memcpy, or in GPU memory beside NCCL's send and receive and cudaMemcpyPeer.
 *
 * A user of the installed headers and library only. The sides alternate, block by block, in one
 * run; every block is timed as a whole and divided by its iterations. A speedup compares medians.
 */
#include "config.h"

#include "bench/p2p.h"
#include "bench/plot.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 15, EXIT_USAGE = 2 };

static const char *const op_names[P2P_OPS] = {"put", "get", "send", "fetch_add", "notify", "seen"};
static const char *const test_names[P2P_TESTS] = {"latency", "bandwidth", "bidirectional", "rate",
                                                  "pairs"};
static const char *const side_names[P2P_SIDES] = {"mpix", "mpi", "nccl", "memcpy"};

static p2p_bench bench = {
    .blocks = BLOCKS, .iov_n = 1, .validate = 1, .min_bytes = 8, .max_bytes = (size_t)64 << 20};

void p2p_die(const p2p_bench *b, const char *what) {
    fprintf(stderr, "mpix_p2p_bench: rank %d: %s\n", b->rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void p2p_ok(const p2p_bench *b, int code, const char *call) {
    MPIX_Error error;

    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    fprintf(stderr, "mpix_p2p_bench: rank %d: %s: %s\n", b->rank, call, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int iterations_of(const p2p_bench *b, size_t bytes) {
    int n = b->iterations;

    if (!n && b->cuda)
        n = bytes <= 65536 ? 200 : bytes <= (1u << 20) ? 50 : 10;
    else if (!n)
        n = bytes <= 1024 ? 2000 : bytes <= 65536 ? 300 : bytes <= (1u << 20) ? 30 : 3;
    return b->test == P2P_LATENCY || b->iterations ? n : (n + 15) / 16;
}

/* Microseconds per transfer: the maximum over both ranks of each block. */
static void measure(p2p_bench *b, size_t bytes, bench_stats out[P2P_SIDES]) {
    double times[P2P_SIDES][BLOCKS];
    int window = b->test == P2P_LATENCY ? 1
                 : b->window            ? b->window
                 : bytes > (1u << 20)   ? 4
                                        : P2P_WINDOW,
        n = iterations_of(b, bytes);
    double per = b->test == P2P_LATENCY && (b->op == P2P_SEND || b->op >= P2P_NOTIFY) ? 2 : window;

    for (int block = 0; block < b->blocks + 2; block++) /* two to warm up */
        for (int side = 0; side < P2P_SIDES; side++) {
            double begin;
            if (!b->side[side])
                continue;
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
            for (int i = 0; i < n; i++)
                p2p_sides_run(b, side, bytes, window, b->rank == 0 || b->test == P2P_BIDIR);
            if (block >= 2)
                times[side][block - 2] = (MPI_Wtime() - begin) / n / per * 1e6;
        }
    for (int side = 0; side < P2P_SIDES; side++)
        if (b->side[side])
            out[side] = bench_stats_take(MPI_COMM_WORLD, times[side], b->blocks);
}

static unsigned char content(size_t i, int from, size_t bytes) {
    return (unsigned char)((i * 2654435761u >> 7) + (unsigned)from * 31u + bytes);
}

static void bring(const p2p_bench *b, void *to, const void *from, size_t bytes) {
    if (b->cuda)
        p2p_cuda_copy(b, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* All with all: the place of each rank holds what that rank has; this rank's own is not touched. */
static int verify_pairs(p2p_bench *b, size_t bytes) {
    unsigned char *here = malloc(bytes);
    int bad = 0;

    if (!here)
        p2p_die(b, "there is no memory");
    for (int r = 0; r < b->size; r++) {
        memset(here, r == b->rank ? 0x5a : 0, bytes);
        bring(b, b->base + p2p_pairs_place(b, r), here, bytes);
    }
    for (size_t i = 0; i < bytes; i++)
        here[i] = content(i, b->rank, bytes);
    bring(b, b->base, here, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    p2p_sides_run(b, P2P_OURS, bytes, 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int r = 0; r < b->size && !bad; r++) {
        bring(b, here, b->base + p2p_pairs_place(b, r), bytes);
        for (size_t i = 0; i < bytes && !bad; i++)
            bad = here[i] != (r == b->rank ? 0x5a : content(i, r, bytes));
    }
    free(here);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return !bad;
}

/* One transfer of fresh contents, in which every byte is looked at. */
static int verify(p2p_bench *b, size_t bytes) {
    int active = b->rank == 0 || b->test == P2P_BIDIR, bad = 0,
        receives = b->test == P2P_BIDIR || b->rank == (b->op == P2P_GET ? 0 : 1);
    unsigned char *here = malloc(bytes), *there = b->base + b->max_bytes;

    if (!here)
        p2p_die(b, "there is no memory");
    receives |= (b->op == P2P_SEND && b->test == P2P_LATENCY) || b->op >= P2P_NOTIFY;
    memset(here, 0, bytes);
    bring(b, there, here, bytes);
    if (b->op == P2P_ADD) {
        int64_t sum = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        p2p_sides_run(b, P2P_OURS, bytes, 4, active);
        MPI_Barrier(MPI_COMM_WORLD);
        bring(b, &sum, there, sizeof sum);
        bad = receives && sum != 4;
    } else {
        for (size_t i = 0; i < bytes; i++)
            here[i] = content(i, b->rank, bytes);
        bring(b, b->base, here, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        p2p_sides_run(b, P2P_OURS, bytes, 1, active);
        MPI_Barrier(MPI_COMM_WORLD);
        bring(b, here, there, bytes);
        /* seen has put a last byte of its own */
        for (size_t i = 0; receives && i < bytes - (b->op == P2P_SEEN) && !bad; i++)
            bad = here[i] != content(i, 1 - b->rank, bytes);
    }
    free(here);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return !bad;
}

/* ---- output ---------------------------------------------------------------------------------- */

static double bytes_per_us(const p2p_bench *b, size_t bytes, double us) {
    /* pairs: of a rank, one way */
    return (double)bytes * (b->test == P2P_BIDIR ? 2 : b->test == P2P_PAIRS ? b->size - 1 : 1) / us;
}

static void print_head(const p2p_bench *b) {
    printf(
        "# mpix_p2p_bench %s, %s, %s, %d pieces; times in us per transfer, medians of %d blocks\n",
        PACKAGE_VERSION, op_names[b->op], test_names[b->test], b->iov_n, b->blocks);
    if (b->test == P2P_PAIRS)
        printf("# %d ranks, each with all others at once; a transfer: one to, or from, each; MB/s "
               "of a rank, one way\n",
               b->size);
    if (b->cuda)
        printf("# GPU memory, %s, NCCL %d%s\n", b->gpu, b->nccl_version,
               b->stream ? ", on a stream" : "");
    printf("# %-8s %12s %10s %10s %12s", "bytes", "median", "min", "p99", "MB/s");
    for (int side = P2P_MPI; side < P2P_SIDES; side++)
        if (b->side[side])
            printf(" %12s %8s", side_names[side], "/ ours");
    printf("\n");
}

static void print(const p2p_bench *b, size_t bytes, const bench_stats s[P2P_SIDES], int verified) {
    const bench_stats *o = &s[P2P_OURS];

    printf("%-10zu %12.3f %10.3f %10.3f %12.1f", bytes, o->median, o->min, o->p99,
           bytes_per_us(b, bytes, o->median));
    for (int side = P2P_MPI; side < P2P_SIDES; side++)
        if (b->side[side])
            printf(" %12.3f %8.2f", s[side].median, bench_speedup(&s[side], o));
    printf("  %s\n", !b->validate ? "-" : verified ? "ok" : "WRONG");
    if (b->test == P2P_RATE)
        printf("#   %.0f messages per second\n", 1e6 / o->median);
    fflush(stdout);
}

#ifdef HAVE_JANSSON
static json_t *results;

static void json_add(const p2p_bench *b, size_t bytes, const bench_stats s[P2P_SIDES],
                     int verified) {
    json_t *list = json_array(),
           *entry = json_pack("{s:s, s:s, s:I, s:i, s:s, s:i, s:o, s:f, s:o}", "op",
                              op_names[b->op], "test", test_names[b->test], "bytes",
                              (json_int_t)bytes, "iov", b->iov_n, "memory",
                              b->cuda ? "cuda" : "host", "iterations", iterations_of(b, bytes),
                              "time_us", bench_stats_json(&s[P2P_OURS]), "wire_gbps",
                              bytes_per_us(b, bytes, s[P2P_OURS].median) / 1e3, "verified",
                              b->validate ? json_boolean(verified) : json_null());

    for (int side = P2P_MPI; side < P2P_SIDES; side++)
        if (b->side[side])
            json_array_append_new(list, json_pack("{s:s, s:o, s:f}", "name", side_names[side],
                                                  "time_us", bench_stats_json(&s[side]), "speedup",
                                                  bench_speedup(&s[side], &s[P2P_OURS])));
    if (json_array_size(list)) { /* the first one is what the speedup is over */
        json_object_set(entry, "baseline", json_array_get(list, 0));
        json_object_set(entry, "speedup", json_object_get(json_array_get(list, 0), "speedup"));
        json_object_set(entry, "baselines", list);
    }
    json_decref(list);
    json_array_append_new(results, entry);
}

static int json_write(const p2p_bench *b) {
    char host[64] = "", version[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;

    gethostname(host, sizeof host - 1);
    MPI_Get_library_version(version, &n);
    json_t *root = json_pack("{s:{s:s, s:s, s:i, s:i, s:s, s:s}, s:O}", "env", "version",
                             PACKAGE_VERSION, "host", host, "cores",
                             (int)sysconf(_SC_NPROCESSORS_ONLN), "ranks", b->size, "mpi", version,
                             "gpu", b->gpu, "results", results);
    int failed = !root || json_dump_file(root, b->json_path, JSON_INDENT(1));
    if (failed)
        fprintf(stderr, "mpix_p2p_bench: %s can't be written\n", b->json_path);
    json_decref(root);
    return failed;
}
#endif

static plot curves;

static void curve(const p2p_bench *b, size_t bytes, const bench_stats s[P2P_SIDES]) {
    for (int side = 0; side < P2P_SIDES; side++)
        if (b->side[side])
            plot_add(&curves, side == P2P_OURS ? "MPIX_P2p" : side_names[side], side != P2P_OURS,
                     (double)bytes, s[side].median);
}

static int curves_write(const p2p_bench *b) {
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(curves.title, sizeof curves.title, "mpix_p2p_bench: %s, %s", op_names[b->op],
             test_names[b->test]);
    snprintf(curves.subtitle, sizeof curves.subtitle, "%d ranks, %s memory, %d piece%s; %s",
             b->size, b->cuda ? b->gpu : "host", b->iov_n, b->iov_n == 1 ? "" : "s", host);
    curves.xlabel = "bytes";
    curves.ylabel = "time (median)";
    if (plot_write(&curves, b->plot_path) == 0)
        return 0;
    fprintf(stderr, "mpix_p2p_bench: --plot %s: %s\n", b->plot_path, strerror(errno));
    return 1;
}

/* ---- options --------------------------------------------------------------------------------- */

static void usage(FILE *to) {
    fputs("usage: mpirun -n 2 mpix_p2p_bench [options]\n"
          "  -o put|get|send|fetch_add|notify|seen   operation (put: with a flush; notify: "
          "put_notify and the target's wait;\n"
          "                               seen: a put whose last byte the target looks for in its "
          "memory; both half a round trip, latency only)\n"
          "  -t latency|bandwidth|bidirectional|rate|pairs   rate: messages per second, with many "
          "in flight; pairs: any number of ranks,\n"
          "                               each with all others at once (put and get); time of one "
          "transfer to each, MB/s of a rank, one way\n"
          "  -m MIN:MAX                   bytes, doubled from MIN to MAX, default 8:64m; suffix k, "
          "m\n"
          "  --memory host|cuda           kind of memory, default host\n"
          "  --stream                     cuda: put, get and notify by the _enqueue calls\n"
          "  --iov N                      pieces of each transfer, default 1\n"
          "  --window N                   transfers in flight but for latency, 1 to 32 (default by "
          "size)\n"
          "  -i N                         transfers per block, or rows of them (default by size)\n"
          "  --blocks N                   blocks, each side in turn, 1 to 15 (default)\n"
          "  -b mpi|nccl|memcpy|none      baselines: MPI (host memory: MPI_Win_allocate, flush) or "
          "NCCL (cuda), and memcpy; memcpy alone; none\n"
          "  -c 0|1                       verification, default 1; decides the exit status\n"
          "  --json FILE\n"
          "  --plot FILE.svg              draws the times over the sizes\n",
          to);
}

static int find(const char *text, const char *const names[], int n, int *value) {
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) {
            *value = i;
            return 1;
        }
    return 0;
}

static int number(const char *text, size_t *value) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    int shift = *end == 'k' ? 10 : *end == 'm' ? 20 : 0;
    end += shift != 0;
    if (errno || end == text || *end || *text == '-' || v > 1u << 30 || v << shift > 1u << 30)
        return 0;
    *value = (size_t)v << shift;
    return 1;
}

static int sizes(p2p_bench *b, char *text) {
    char *colon = strchr(text, ':');
    if (!colon)
        return number(text, &b->max_bytes) && (b->min_bytes = b->max_bytes) > 0;
    *colon = 0;
    return number(text, &b->min_bytes) && number(colon + 1, &b->max_bytes) && b->min_bytes > 0 &&
           b->min_bytes <= b->max_bytes;
}

enum { NONE, BASE_MPI, BASE_NCCL, BASE_MEMCPY };

/* NULL, or what does not go together. */
static const char *options_check(p2p_bench *b, int base) {
    if (b->op == P2P_ADD && b->iov_n != 1)
        return "fetch_add has no --iov";
    if (b->op >= P2P_NOTIFY && b->test != P2P_LATENCY)
        return "notify and seen are for latency";
    if (b->op == P2P_SEEN && b->cuda)
        return "seen is for host memory";
    if (b->test == P2P_PAIRS && ((b->op != P2P_PUT && b->op != P2P_GET) || b->iov_n != 1))
        return "pairs is for put and get, without --iov";
    if (b->test == P2P_PAIRS && base == BASE_MEMCPY)
        return "pairs has the baselines mpi, nccl and none";
    if (b->stream && (!b->cuda || b->op == P2P_SEND || b->op == P2P_ADD))
        return "--stream is for put, get and notify with --memory cuda";
    if (base == (b->cuda ? BASE_MPI : BASE_NCCL))
        return "the baselines of host memory are mpi and memcpy, those of --memory cuda nccl and "
               "memcpy";
#ifndef HAVE_JANSSON
    if (b->json_path)
        return "--json: this build has no jansson";
#endif
    if (base < 0)
        base = b->cuda ? BASE_NCCL : BASE_MPI;
    b->side[P2P_OURS] = 1;
    b->side[P2P_MPI] = base == BASE_MPI;
    b->side[P2P_NCCL] = base == BASE_NCCL && b->op != P2P_ADD; /* NCCL has no addition */
    b->side[P2P_COPY] = base != NONE && b->test != P2P_PAIRS;
    if (b->op == P2P_ADD)
        b->min_bytes = b->max_bytes = 8;
    return NULL;
}

/* 1: go on; 0: wrong; -1: help. */
static int options(p2p_bench *b, int argc, char **argv) {
    static const struct option names[] = {{"iov", required_argument, NULL, 'v'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"plot", required_argument, NULL, 'p'},
                                          {"window", required_argument, NULL, 'w'},
                                          {"blocks", required_argument, NULL, 'k'},
                                          {"memory", required_argument, NULL, 'y'},
                                          {"stream", no_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static const char *const base_names[] = {"none", "mpi", "nccl", "memcpy"},
                             *const yes_names[] = {"0", "1"}, *const memories[] = {"host", "cuda"};
    const char *wrong;
    size_t n;
    int c, good = 1, base = -1;

    opterr = b->rank == 0;
    while (good && (c = getopt_long(argc, argv, "o:t:m:i:b:c:h", names, NULL)) != -1) {
        switch (c) {
        case 'o': good = find(optarg, op_names, P2P_OPS, &b->op); break;
        case 't': good = find(optarg, test_names, P2P_TESTS, &b->test); break;
        case 'm': good = sizes(b, optarg); break;
        case 'b': good = find(optarg, base_names, 4, &base); break;
        case 'c': good = find(optarg, yes_names, 2, &b->validate); break;
        case 'y': good = find(optarg, memories, 2, &b->cuda); break;
        case 's': b->stream = 1; break;
        case 'v':
            good = number(optarg, &n) && n > 0 && n <= 65536;
            b->iov_n = (int)n;
            break;
        case 'i':
            good = number(optarg, &n) && n > 0;
            b->iterations = (int)n;
            break;
        case 'w':
            good = number(optarg, &n) && n > 0 && n <= P2P_WINDOW;
            b->window = (int)n;
            break;
        case 'k':
            good = number(optarg, &n) && n > 0 && n <= BLOCKS;
            b->blocks = (int)n;
            break;
        case 'j': b->json_path = optarg; break;
        case 'p': b->plot_path = optarg; break;
        case 'h': return -1;
        default: return 0;
        }
        if (!good && b->rank == 0)
            fprintf(stderr, "mpix_p2p_bench: \"%s\" is not a value of this option\n", optarg);
    }
    if (!good)
        return 0;
    wrong = optind < argc ? "there are words that are no options" : options_check(b, base);
    if (!wrong && (b->test == P2P_PAIRS ? b->size < 2 : b->size != 2))
        wrong = b->test == P2P_PAIRS ? "2 ranks or more are needed" : "2 ranks are needed";
    if (wrong && b->rank == 0)
        fprintf(stderr, "mpix_p2p_bench: %s\n", wrong);
    return !wrong;
}

int main(int argc, char **argv) {
    p2p_bench *b = &bench;
    const char *unable = NULL;
    int chosen, failed = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b->size);
    chosen = options(b, argc, argv);
    if (chosen > 0 && b->cuda)
        unable = p2p_cuda_choose(b);
    if (unable && b->rank == 0)
        fprintf(stderr, "mpix_p2p_bench: %s\n", unable);
    if (chosen <= 0 || unable) {
        if (b->rank == 0 && !unable)
            usage(chosen < 0 ? stdout : stderr);
        MPI_Finalize();
        return chosen < 0 ? 0 : EXIT_USAGE;
    }
    p2p_sides_open(b);
    if (b->cuda)
        p2p_cuda_open(b);
    if (b->rank == 0)
        print_head(b);
#ifdef HAVE_JANSSON
    results = json_array();
#endif
    for (size_t bytes = b->min_bytes; bytes <= b->max_bytes; bytes *= 2) {
        bench_stats s[P2P_SIDES];
        int verified;
        measure(b, bytes, s);
        verified = !b->validate ||
                   (b->test == P2P_PAIRS ? verify_pairs(b, bytes) : verify(b, bytes));
        failed |= !verified;
        if (b->rank == 0)
            print(b, bytes, s, verified);
        curve(b, bytes, s);
#ifdef HAVE_JANSSON
        json_add(b, bytes, s, verified);
#endif
    }
#ifdef HAVE_JANSSON
    if (b->json_path && b->rank == 0)
        failed |= json_write(b);
    json_decref(results);
#endif
    if (b->plot_path && b->rank == 0)
        failed |= curves_write(b);
    if (b->cuda)
        p2p_cuda_close(b);
    p2p_sides_close(b);
    MPI_Finalize();
    return failed;
}
