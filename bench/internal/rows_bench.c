/*
 * rows_bench.c - how fast the row kernels move memory, against a plain streaming-store copy. For
 * developers; not installed.
 *
 * Several processes work at once on buffers larger than the caches, since that is how ranks of a
 * host use the kernels. The reference and the kernel alternate within every repetition. Every
 * figure is the median, in GB/s of bytes written (copy) or bytes read and written (sum), of the
 * slowest process.
 */
#include "config.h"

#include <getopt.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/param.h"
#include "kernels/host/convert.h"
#include "kernels/host/isa.h"
#include "mpix_ep.h"

enum { MAX_DST = 8, MAX_REPS = 101, MAX_PROCS = 64, CASES = 24 };

typedef struct bench {
    const mpix_rows_ops *ops;
    size_t row, rows; /* bytes of a row, rows per pass */
    size_t skew;      /* bytes by which destinations miss a cache line boundary */
    int procs, reps, me;
    char *src, *dst[MAX_DST], *y;
} bench;

typedef struct shared {
    atomic_int arrived, turn;
    double seconds[CASES][2][MAX_PROCS][MAX_REPS];
} shared;

typedef void (*bench_fn)(const bench *b, int arg);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void barrier(shared *sh, int procs) {
    int turn = atomic_load(&sh->turn);
    if (atomic_fetch_add(&sh->arrived, 1) == procs - 1) {
        atomic_store(&sh->arrived, 0);
        atomic_store(&sh->turn, turn + 1);
    }
    while (atomic_load(&sh->turn) == turn)
        sched_yield();
}

/* ---- the reference: one source, one destination, streaming stores of the widest registers ---- */

#if MPIX_ROWS_X86
__attribute__((target("avx512f"))) static void plain_avx512(char *dst, const char *src, size_t n) {
    for (size_t i = 0; i < n; i += 256)
        for (int k = 0; k < 4; k++)
            _mm512_stream_si512((__m512i *)(dst + i + 64 * k),
                                _mm512_loadu_si512(src + i + 64 * k));
}

static void plain_sse2(char *dst, const char *src, size_t n) {
    for (size_t i = 0; i < n; i += 64)
        for (int k = 0; k < 4; k++)
            _mm_stream_si128((__m128i *)(dst + i + 16 * k),
                             _mm_loadu_si128((const __m128i *)(src + i + 16 * k)));
}
#endif

static void run_plain(const bench *b, int arg) {
    size_t n = b->row * b->rows / 256 * 256;
    (void)arg;
#if MPIX_ROWS_X86
    if (__builtin_cpu_supports("avx512f"))
        plain_avx512(b->dst[0], b->src, n);
    else
        plain_sse2(b->dst[0], b->src, n);
    _mm_sfence();
#else
    memcpy(b->dst[0], b->src, n);
#endif
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static void copy_rows(const bench *b, int ndst, int streaming) {
    for (size_t r = 0; r < b->rows; r++) {
        void *dst[MAX_DST];
        for (int d = 0; d < ndst; d++)
            dst[d] = b->dst[d] + b->skew + r * b->row;
        b->ops->copy(b->src + r * b->row, b->row, dst, ndst, streaming);
    }
    b->ops->fence();
}

static void run_stream(const bench *b, int ndst) { copy_rows(b, ndst, 1); }
static void run_ordinary(const bench *b, int ndst) { copy_rows(b, ndst, 0); }

static void run_zero(const bench *b, int arg) {
    (void)arg;
    for (size_t r = 0; r < b->rows; r++)
        b->ops->zero(b->dst[0] + b->skew + r * b->row, b->row, 1);
    b->ops->fence();
}

/* Rows of different buffers, each its own group as in combine of the COMPACT layout. arg:
 * rows + 16 * dtype. */
static void run_sum(const bench *b, int arg) {
    int nterms = arg % 16, dtype = arg / 16;
    mpix_row_term terms[MAX_DST];
    for (size_t r = 0; r < b->rows; r++) {
        for (int t = 0; t < nterms; t++)
            /* Rows of a token lie anywhere in the peers' windows, not at equal offsets that would
             * compete for cache sets. */
            terms[t] = (mpix_row_term){.x = b->dst[t] + (r + 3 * (size_t)t) % b->rows * b->row,
                                       .w = {0.5f},
                                       .nw = nterms > 2,
                                       .group = t};
        mpix_row_sum sum = {.y = b->y + b->skew + r * b->row, .nterms = nterms, .terms = terms};
        b->ops->sum(&sum, dtype, MPIX_EP_NO_SCALES, dtype, b->row / mpix_dtype_size(dtype), 1);
    }
    b->ops->fence();
}

/* bf16 rows to fp8 and scales, as dispatch does before it copies: the result stays in the cache.
 * arg: scale_kind. */
static void run_quantize(const bench *b, int arg) {
    for (size_t r = 0; r < b->rows; r++)
        b->ops->quantize(b->src + r * b->row, MPIX_EP_BF16, b->y, MPIX_EP_F8E4M3, b->y + b->row / 2,
                         arg, b->row / 2);
}

typedef struct bench_case {
    const char *name;
    bench_fn fn;
    int arg;
    double rows_moved; /* per row of the pass */
    int read_too;      /* counts reads: the reference's too */
} bench_case;

static const bench_case cases[] = {
    {"copy 1 streaming", run_stream, 1, 1, 0},
    {"copy 2 streaming", run_stream, 2, 2, 0},
    {"copy 4 streaming", run_stream, 4, 4, 0},
    {"copy 8 streaming", run_stream, 8, 8, 0},
    {"copy 1 ordinary", run_ordinary, 1, 1, 0},
    {"copy 2 ordinary", run_ordinary, 2, 2, 0},
    {"copy 8 ordinary", run_ordinary, 8, 8, 0},
    {"zero streaming", run_zero, 0, 1, 0},
    {"sum 1 bf16", run_sum, 1 + 16 * MPIX_EP_BF16, 2, 1},
    {"sum 2 bf16", run_sum, 2 + 16 * MPIX_EP_BF16, 3, 1},
    {"sum 4 bf16 weighted", run_sum, 4 + 16 * MPIX_EP_BF16, 5, 1},
    {"sum 8 bf16 weighted", run_sum, 8 + 16 * MPIX_EP_BF16, 9, 1},
    {"sum 2 f32", run_sum, 2 + 16 * MPIX_EP_F32, 3, 1},
    {"sum 8 f32 weighted", run_sum, 8 + 16 * MPIX_EP_F32, 9, 1},
    {"sum 2 f16", run_sum, 2 + 16 * MPIX_EP_F16, 3, 1},
    {"quantize bf16 f32", run_quantize, MPIX_EP_SCALES_F32, 1, 1},
    {"quantize bf16 ue8m0", run_quantize, MPIX_EP_SCALES_UE8M0, 1, 1},
};
enum { NCASES = sizeof cases / sizeof *cases };

static char *buffer_new(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("rows_bench: mmap");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 2) /* 1.0 to 2.0 in bf16, ordinary numbers in f16 and f32 */
        memcpy(p + i, &(uint16_t){(uint16_t)(0x3f80 | (i * 7 >> 3 & 0x7f))}, 2);
    return p;
}

static void work(bench *b, shared *sh) {
    size_t bytes = b->row * b->rows + 4096;
    b->src = buffer_new(bytes);
    b->y = buffer_new(bytes);
    for (int d = 0; d < MAX_DST; d++)
        b->dst[d] = buffer_new(bytes);
    for (int c = 0; c < NCASES; c++) {
        for (int rep = -1; rep < b->reps; rep++) { /* the first one warms up */
            for (int kernel = 0; kernel < 2; kernel++) {
                barrier(sh, b->procs);
                double start = now();
                if (kernel)
                    cases[c].fn(b, cases[c].arg);
                else
                    run_plain(b, 0);
                if (rep >= 0)
                    sh->seconds[c][kernel][b->me][rep] = now() - start;
            }
        }
    }
}

static int double_cmp(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_slowest(const bench *b, double seconds[MAX_PROCS][MAX_REPS]) {
    double slowest[MAX_REPS];
    for (int rep = 0; rep < b->reps; rep++) {
        slowest[rep] = seconds[0][rep];
        for (int p = 1; p < b->procs; p++)
            slowest[rep] = seconds[p][rep] > slowest[rep] ? seconds[p][rep] : slowest[rep];
    }
    qsort(slowest, (size_t)b->reps, sizeof *slowest, double_cmp);
    return slowest[b->reps / 2];
}

static void print(const bench *b, shared *sh) {
    double bytes = (double)(b->row * b->rows) * 1e-9;
    printf("# %s, %d processes, rows of %zu bytes, %zu rows, destinations off by %zu bytes; GB/s "
           "per process\n",
           b->ops->name, b->procs, b->row, b->rows, b->skew);
    printf("%-22s %10s %10s %8s\n", "# kernel", "plain", "kernel", "ratio");
    for (int c = 0; c < NCASES; c++) {
        double plain = (cases[c].read_too ? 2 : 1) * bytes /
                       median_of_slowest(b, sh->seconds[c][0]);
        double kernel = cases[c].rows_moved * bytes / median_of_slowest(b, sh->seconds[c][1]);
        printf("%-22s %10.2f %10.2f %8.2f\n", cases[c].name, plain, kernel, kernel / plain);
    }
}

static void usage(FILE *to) {
    fprintf(to, "usage: rows_bench [-a auto|portable|avx2|avx512] [-p processes] [-r row bytes] "
                "[-n rows] [-k skew] "
                "[-i repetitions]\n");
}

static long number(const char *text, long least, long most) {
    char *end;
    long v = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || v < least || v > most) {
        fprintf(stderr, "rows_bench: %s is not a number from %ld to %ld\n", text, least, most);
        exit(2);
    }
    return v;
}

static int isa_of(const char *name) {
    static const char *const names[] = {"auto", "portable", "avx2", "avx512"};
    for (int isa = MPIX_ISA_AUTO; isa <= MPIX_ISA_AVX512; isa++)
        if (strcmp(name, names[isa]) == 0)
            return isa;
    usage(stderr);
    exit(2);
}

int main(int argc, char **argv) {
    bench b = {.row = 14336, .rows = 4096, .procs = 2, .reps = 11};
    int isa = MPIX_ISA_AUTO, opt, failed = 0;
    while ((opt = getopt(argc, argv, "a:p:r:n:k:i:h")) != -1) {
        switch (opt) {
        case 'a': isa = isa_of(optarg); break;
        case 'p': b.procs = (int)number(optarg, 1, MAX_PROCS); break;
        case 'r': b.row = (size_t)number(optarg, 8, 1 << 24) / 8 * 8; break;
        case 'n': b.rows = (size_t)number(optarg, 1, 1 << 20); break;
        case 'k': b.skew = (size_t)number(optarg, 0, 4096); break;
        case 'i': b.reps = (int)number(optarg, 1, MAX_REPS); break;
        default: usage(opt == 'h' ? stdout : stderr); return opt == 'h' ? 0 : 2;
        }
    }
    b.ops = mpix_rows_get(isa);
    if (!b.ops) {
        fprintf(stderr, "rows_bench: this processor or build has no such variant\n");
        return 1;
    }
    shared *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED) {
        perror("rows_bench: mmap");
        return 1;
    }
    for (b.me = 0; b.me < b.procs; b.me++) {
        pid_t pid = fork();
        if (pid < 0) {
            perror("rows_bench: fork");
            return 1;
        }
        if (pid == 0) {
            work(&b, sh);
            _exit(0);
        }
    }
    for (int p = 0, status; p < b.procs; p++)
        failed |= wait(&status) < 0 || status != 0;
    if (failed) {
        fprintf(stderr, "rows_bench: a process failed\n");
        return 1;
    }
    print(&b, sh);
    return 0;
}
