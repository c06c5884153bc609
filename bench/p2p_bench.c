/*
 * p2p_bench.c - mpix_p2p_bench: MPIX_P2p_* between ranks 0 and 1, beside MPI_Put/MPI_Get and memcpy.
 *
 * A user of the installed headers and library only. Our side and the baselines alternate, block by block, in one run; every block is
 * timed as a whole and divided by its iterations. A speedup compares medians.
 */
#include "config.h"

#include "mpix_p2p.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef HAVE_JANSSON
#include <jansson.h>
#endif

enum { PUT, GET, SEND, ADD, OPS };
enum { LATENCY, BANDWIDTH, BIDIR, RATE, TESTS };
enum { OURS, MPI, COPY, SIDES };
enum { BLOCKS = 15, WINDOW = 32, EXIT_USAGE = 2 };

static const char *const op_names[OPS] = {"put", "get", "send", "fetch_add"};
static const char *const test_names[TESTS] = {"latency", "bandwidth", "bidirectional", "rate"};
static const char *const side_names[SIDES] = {"mpix", "mpi", "memcpy"};

typedef struct stats {
    double min, median, p90, p99, max;
    int n;
} stats;

static int rank, size, op = PUT, test = LATENCY, iov_n = 1, iterations, baselines = 1, validate = 1;
static size_t min_bytes = 8, max_bytes = (size_t)64 << 20;
static const char *json_path;

static MPIX_P2p p2p;
static MPIX_P2p_mem mem;
static MPIX_P2p_rmem at[2];
static MPIX_P2p_iov *iov, *iov_in;
static MPIX_Xfer xfers[2 * WINDOW];
static unsigned char *base, *win_base, *win_local, *copy_from, *copy_to;
static MPI_Win win;
static int64_t olds[WINDOW];

static void check(int code, const char *call) {
    MPIX_Error error;

    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    fprintf(stderr, "mpix_p2p_bench: rank %d: %s: %s\n", rank, call, error.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define OK(call) check((call), #call)

static void *get_memory(size_t bytes) {
    void *p = NULL;

    if (posix_memalign(&p, 4096, bytes)) {
        fprintf(stderr, "mpix_p2p_bench: no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    } else {
        memset(p, 0, bytes);
    }
    return p;
}

/* ---- one transfer, or a row of them --------------------------------------------------------------------------------------- */

/* In the origin's first half lies what is sent, in the second what arrives. */
static void ours(size_t bytes, int window, int active) {
    size_t piece = bytes / (size_t)iov_n;

    for (int i = 0; i < iov_n; i++) {
        size_t len = i + 1 < iov_n ? piece : bytes - piece * (size_t)(iov_n - 1), off = (size_t)i * piece;
        iov[i] = (MPIX_P2p_iov){mem, (MPI_Count)off, at[1 - rank], (MPI_Count)(max_bytes + off), (MPI_Count)len};
        if (op == GET)
            iov[i] = (MPIX_P2p_iov){mem, (MPI_Count)(max_bytes + off), at[1 - rank], (MPI_Count)off, (MPI_Count)len};
        iov_in[i] = (MPIX_P2p_iov){.mem = mem, .off = (MPI_Count)(max_bytes + off), .len = (MPI_Count)len};
    }
    if (op == SEND) {
        int n = 0;
        if (test == LATENCY) { /* there and back */
            if (rank == 0)
                OK(MPIX_P2p_send(p2p, 1, iov, iov_n));
            OK(MPIX_P2p_recv(p2p, 1 - rank, iov_in, iov_n, NULL));
            if (rank == 1)
                OK(MPIX_P2p_send(p2p, 0, iov, iov_n));
            return;
        }
        for (int i = 0; i < window; i++) {
            if (rank == 1 || test == BIDIR)
                OK(MPIX_P2p_irecv(p2p, 1 - rank, iov_in, iov_n, NULL, &xfers[n++]));
            if (active)
                OK(MPIX_P2p_isend(p2p, 1 - rank, iov, iov_n, &xfers[n++]));
        }
        OK(MPIX_Xfer_waitall(n, xfers, NULL));
        return;
    }
    if (!active)
        return;
    for (int i = 0; i < window; i++) {
        if (op == PUT)
            OK(MPIX_P2p_iput(iov, iov_n, &xfers[i]));
        else if (op == GET)
            OK(MPIX_P2p_iget(iov, iov_n, &xfers[i]));
        else
            OK(MPIX_P2p_ifetch_add(at[1 - rank], (MPI_Count)max_bytes, 1, &olds[i], &xfers[i]));
    }
    OK(MPIX_Xfer_waitall(window, xfers, NULL));
    if (op == PUT)
        OK(MPIX_P2p_flush(p2p, 1 - rank));
}

static void theirs(size_t bytes, int window, int active) {
    static MPI_Request requests[2 * WINDOW];
    static MPI_Status statuses[2 * WINDOW]; /* gcc takes MPICH's MPI_STATUSES_IGNORE for an address */
    int peer = 1 - rank, n = (int)bytes, k = 0;

    if (op == SEND) {
        if (test == LATENCY) {
            if (rank == 0)
                MPI_Send(win_local, n, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(win_base, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send(win_local, n, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
            return;
        }
        for (int i = 0; i < window; i++) {
            if (rank == 1 || test == BIDIR)
                MPI_Irecv(win_base, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[k++]);
            if (active)
                MPI_Isend(win_local, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[k++]);
        }
        MPI_Waitall(k, requests, statuses);
        return;
    }
    if (!active)
        return;
    for (int i = 0; i < window; i++) {
        for (int v = 0; v < iov_n; v++) { /* a vector is a row of calls and one flush */
            size_t piece = bytes / (size_t)iov_n, off = (size_t)v * piece, len = v + 1 < iov_n ? piece : bytes - off;
            static const int64_t one = 1;
            if (op == PUT)
                MPI_Put(win_local + off, (int)len, MPI_BYTE, peer, (MPI_Aint)(max_bytes + off), (int)len, MPI_BYTE, win);
            else if (op == GET)
                MPI_Get(win_base + max_bytes + off, (int)len, MPI_BYTE, peer, (MPI_Aint)off, (int)len, MPI_BYTE, win);
            else
                MPI_Fetch_and_op(&one, &olds[i], MPI_INT64_T, peer, (MPI_Aint)max_bytes, MPI_SUM, win);
        }
    }
    MPI_Win_flush(peer, win);
}

static void run(int side, size_t bytes, int window) {
    int active = rank == 0 || test == BIDIR;

    if (side == OURS)
        ours(bytes, window, active);
    else if (side == MPI)
        theirs(bytes, window, active);
    else if (active)
        for (int i = 0; i < window; i++)
            memcpy(copy_to, copy_from, bytes);
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Microseconds per transfer: the maximum over both ranks of each block. */
static void measure(size_t bytes, stats out[SIDES]) {
    double times[SIDES][BLOCKS];
    int window = test == LATENCY ? 1 : bytes > (1u << 20) ? 4 : WINDOW;
    double per = test == LATENCY && op == SEND ? 2 : window;
    int n = iterations ? iterations : bytes <= 1024 ? 2000 : bytes <= 65536 ? 300 : bytes <= (1u << 20) ? 30 : 3;

    n = test == LATENCY || iterations ? n : (n + 15) / 16;
    for (int block = 0; block < BLOCKS + 2; block++) /* two to warm up */
        for (int side = 0; side < (baselines ? SIDES : 1); side++) {
            double begin, t;
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
            for (int i = 0; i < n; i++)
                run(side, bytes, window);
            t = (MPI_Wtime() - begin) / n / per * 1e6;
            MPI_Allreduce(MPI_IN_PLACE, &t, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (block >= 2)
                times[side][block - 2] = t;
        }
    for (int side = 0; side < (baselines ? SIDES : 1); side++) {
        double *t = times[side];
        qsort(t, BLOCKS, sizeof *t, compare);
        out[side] = (stats){t[0], t[BLOCKS / 2], t[BLOCKS * 9 / 10], t[BLOCKS - 1 - BLOCKS / 100], t[BLOCKS - 1], n};
    }
}

static unsigned char content(size_t i, int from, size_t bytes) {
    return (unsigned char)((i * 2654435761u >> 7) + (unsigned)from * 31u + bytes);
}

/* One transfer of fresh contents, in which every byte is looked at. */
static int verify(size_t bytes) {
    int bad = 0, receives = op == GET ? rank == 0 || test == BIDIR : rank == 1 || test == BIDIR || (op == SEND && test == LATENCY);

    if (op == ADD) {
        *(int64_t *)(void *)(base + max_bytes) = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        ours(bytes, 4, rank == 0 || test == BIDIR);
        MPI_Barrier(MPI_COMM_WORLD);
        bad = receives && *(int64_t *)(void *)(base + max_bytes) != 4;
    } else {
        for (size_t i = 0; i < bytes; i++)
            base[i] = content(i, rank, bytes);
        memset(base + max_bytes, 0, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        ours(bytes, 1, rank == 0 || test == BIDIR);
        MPI_Barrier(MPI_COMM_WORLD);
        for (size_t i = 0; receives && i < bytes && !bad; i++)
            bad = base[max_bytes + i] != content(i, 1 - rank, bytes);
    }
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return !bad;
}

/* ---- output --------------------------------------------------------------------------------------------------------------- */

static double bytes_per_us(size_t bytes, double us) {
    return (double)bytes * (test == BIDIR ? 2 : 1) / us;
}

static void print(size_t bytes, const stats s[SIDES], int verified) {
    printf("%-10zu %12.3f %10.3f %10.3f %12.1f", bytes, s[OURS].median, s[OURS].min, s[OURS].p99, bytes_per_us(bytes, s[OURS].median));
    if (baselines)
        printf(" %12.3f %8.2f %12.3f", s[MPI].median, s[MPI].median / s[OURS].median, s[COPY].median);
    printf("  %s\n", !validate ? "-" : verified ? "ok" : "WRONG");
    fflush(stdout);
}

#ifdef HAVE_JANSSON
static json_t *results;

static json_t *json_stats(const stats *s) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "min", s->min, "median", s->median, "p90", s->p90, "p99", s->p99, "max", s->max);
}

static void json_add(size_t bytes, const stats s[SIDES], int verified) {
    json_t *entry = json_pack("{s:s, s:s, s:I, s:i, s:i, s:o, s:f, s:o}", "op", op_names[op], "test", test_names[test], "bytes",
                              (json_int_t)bytes, "iov", iov_n, "iterations", s[OURS].n, "time_us", json_stats(&s[OURS]), "wire_gbps",
                              bytes_per_us(bytes, s[OURS].median) / 1e3, "verified", validate ? json_boolean(verified) : json_null());
    if (baselines) {
        json_t *list = json_array();
        for (int side = MPI; side < SIDES; side++)
            json_array_append_new(list, json_pack("{s:s, s:o}", "name", side_names[side], "time_us", json_stats(&s[side])));
        json_object_set_new(entry, "baseline", json_incref(json_array_get(list, 0)));
        json_object_set_new(entry, "baselines", list);
        json_object_set_new(entry, "speedup", json_real(s[MPI].median / s[OURS].median));
    }
    json_array_append_new(results, entry);
}

static int json_write(void) {
    char host[64] = "", version[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    gethostname(host, sizeof host - 1);
    MPI_Get_library_version(version, &n);
    json_t *root = json_pack("{s:{s:s, s:s, s:i, s:i, s:s}, s:O}", "env", "version", PACKAGE_VERSION, "host", host, "cores",
                             (int)sysconf(_SC_NPROCESSORS_ONLN), "ranks", size, "mpi", version, "results", results);
    int failed = !root || json_dump_file(root, json_path, JSON_INDENT(1));
    if (failed)
        fprintf(stderr, "mpix_p2p_bench: %s can't be written\n", json_path);
    json_decref(root);
    return failed;
}
#endif

/* ---- options -------------------------------------------------------------------------------------------------------------- */

static void usage(FILE *to) {
    fputs("usage: mpirun -n 2 mpix_p2p_bench [options]\n"
          "  -o put|get|send|fetch_add    operation (put: with a flush)\n"
          "  -t latency|bandwidth|bidirectional|rate   rate: messages per second, with many in flight\n"
          "  -m MIN:MAX                   bytes, doubled from MIN to MAX, default 8:64m; suffix k, m\n"
          "  --iov N                      pieces of each transfer, default 1\n"
          "  -i N                         transfers per block (default by size); 15 blocks, each side in turn\n"
          "  -b mpi|none                  baselines: MPI (MPI_Win_allocate, flush) and memcpy, or none\n"
          "  -c 0|1                       verification, default 1; decides the exit status\n"
          "  --json FILE\n",
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

static int sizes(char *text) {
    char *colon = strchr(text, ':');
    if (!colon)
        return number(text, &max_bytes) && (min_bytes = max_bytes) > 0;
    *colon = 0;
    return number(text, &min_bytes) && number(colon + 1, &max_bytes) && min_bytes > 0 && min_bytes <= max_bytes;
}

static int options(int argc, char **argv) {
    static const struct option names[] = {{"iov", required_argument, NULL, 'v'}, {"json", required_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},      {NULL, 0, NULL, 0}};
    static const char *const base_names[] = {"none", "mpi"}, *const yes_names[] = {"0", "1"};
    size_t n;
    int c, good = 1;

    opterr = rank == 0;
    while (good && (c = getopt_long(argc, argv, "o:t:m:i:b:c:h", names, NULL)) != -1) {
        switch (c) {
        case 'o': good = find(optarg, op_names, OPS, &op); break;
        case 't': good = find(optarg, test_names, TESTS, &test); break;
        case 'm': good = sizes(optarg); break;
        case 'b': good = find(optarg, base_names, 2, &baselines); break;
        case 'c': good = find(optarg, yes_names, 2, &validate); break;
        case 'v':
            good = number(optarg, &n) && n > 0 && n <= 65536;
            iov_n = (int)n;
            break;
        case 'i':
            good = number(optarg, &n) && n > 0;
            iterations = (int)n;
            break;
        case 'j': json_path = optarg; break;
        case 'h': return -1;
        default: return 0;
        }
        if (!good && rank == 0)
            fprintf(stderr, "mpix_p2p_bench: \"%s\" is not a value of this option\n", optarg);
    }
    if (good && optind < argc) {
        if (rank == 0)
            fprintf(stderr, "mpix_p2p_bench: \"%s\" is not an option\n", argv[optind]);
        return 0;
    }
    if (good && op == ADD) {
        min_bytes = max_bytes = 8;
        if (iov_n != 1) {
            if (rank == 0)
                fprintf(stderr, "mpix_p2p_bench: fetch_add has no --iov\n");
            return 0;
        }
    }
#ifndef HAVE_JANSSON
    if (good && json_path) {
        if (rank == 0)
            fprintf(stderr, "mpix_p2p_bench: --json: this build has no jansson\n");
        return 0;
    }
#endif
    return good;
}

static void setup(void) {
    OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p));
    OK(MPIX_P2p_alloc(p2p, (MPI_Count)(2 * max_bytes), MPI_INFO_NULL, &base, &mem));
    OK(MPIX_P2p_exchange(mem, at));
    iov = calloc((size_t)iov_n, sizeof *iov);
    iov_in = calloc((size_t)iov_n, sizeof *iov_in);
    if (!iov || !iov_in)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(base, 1, 2 * max_bytes);
    if (!baselines)
        return;
    MPI_Win_allocate((MPI_Aint)(2 * max_bytes), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win_base, &win);
    memset(win_base, 1, 2 * max_bytes);
    MPI_Win_lock_all(0, win);
    win_local = get_memory(max_bytes);
    copy_from = get_memory(max_bytes);
    copy_to = get_memory(max_bytes);
}

int main(int argc, char **argv) {
    int chosen, failed = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    chosen = options(argc, argv);
    if (chosen <= 0 || size != 2) {
        if (rank == 0 && chosen > 0)
            fprintf(stderr, "mpix_p2p_bench: %d ranks, 2 are needed\n", size);
        if (rank == 0)
            usage(chosen < 0 ? stdout : stderr);
        MPI_Finalize();
        return chosen < 0 ? 0 : EXIT_USAGE;
    }
    setup();
    if (rank == 0)
        printf("# mpix_p2p_bench %s, %s, %s, %d pieces; times in us per transfer, medians of %d blocks\n# %-8s %12s %10s %10s %12s%s\n",
               PACKAGE_VERSION, op_names[op], test_names[test], iov_n, BLOCKS, "bytes", "median", "min", "p99",
               "MB/s", baselines ? "          mpi  mpi/ours       memcpy" : "");
#ifdef HAVE_JANSSON
    results = json_array();
#endif
    for (size_t bytes = min_bytes; bytes <= max_bytes; bytes *= 2) {
        stats s[SIDES];
        int verified;
        measure(bytes, s);
        verified = !validate || verify(bytes);
        failed |= !verified;
        if (rank == 0)
            print(bytes, s, verified);
        if (rank == 0 && test == RATE)
            printf("#   %.0f messages per second\n", 1e6 / s[OURS].median);
#ifdef HAVE_JANSSON
        json_add(bytes, s, verified);
#endif
    }
#ifdef HAVE_JANSSON
    if (json_path && rank == 0)
        failed |= json_write();
    json_decref(results);
#endif
    if (baselines) {
        MPI_Win_unlock_all(win);
        MPI_Win_free(&win);
    }
    free(win_local), free(copy_from), free(copy_to), free(iov), free(iov_in);
    OK(MPIX_P2p_free(&p2p));
    MPI_Finalize();
    return failed;
}
