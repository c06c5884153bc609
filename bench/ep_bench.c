/*
 * ep_bench.c - mpix_ep_bench: what MPIX_Ep_route, dispatch and combine cost, and whether they
 * deliver what they should.
 */
#include "config.h"

#include "bench/bench.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BENCH_ROUNDS = 3, BENCH_RESULTS = 200 };

/* ---- what all parts use ---------------------------------------------------------------------- */

void bench_die(const bench *b, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "mpix_ep_bench: rank %d: %s\n", b->rank, text);
    MPI_Abort(MPI_COMM_WORLD, BENCH_EXIT_ERROR);
    _exit(BENCH_EXIT_ERROR);
}

void bench_check(const bench *b, int code, const char *call) {
    MPIX_Error error;
    if (code == MPI_SUCCESS)
        return;
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    if (error.kind == MPIX_ERRK_REMOTE) /* the rank to blame says more; give it the time to */
        sleep(1);
    bench_die(b, "%s: %s", call, error.text);
}

void *bench_alloc(const bench *b, size_t bytes) {
    size_t huge = 2 << 20, align = bytes >= huge ? huge : 64;
    void *p = NULL;
    if (posix_memalign(&p, align, bytes ? bytes : 1))
        bench_die(b, "no memory (%zu bytes)", bytes);
#ifdef MADV_HUGEPAGE
    if (bytes >= huge)
        madvise(p, bytes, MADV_HUGEPAGE);
#endif
    memset(p, 0, bytes);
    return p;
}

/* On a terminal a line that is written over. Launchers hand on a pipe: there a plain line, once in
 * PROGRESS_S seconds, so that a short run shows none. */
enum { PROGRESS_S = 10 };
void bench_progress(const bench *b, const char *fmt, ...) {
    static int shown;
    static double last_us;
    if (b->rank)
        return;
    char text[120];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!isatty(STDERR_FILENO)) {
        double now = bench_now_us();
        if (last_us == 0)
            last_us = now;
        if (*text && now - last_us >= PROGRESS_S * 1e6) {
            fprintf(stderr, "mpix_ep_bench: %s\n", text);
            last_us = now;
        }
        return;
    }
    if (*text)
        fprintf(stderr, "\r\033[K%s", text);
    else if (shown)
        fprintf(stderr, "\r\033[K");
    shown = *text != '\0';
    fflush(stderr);
}

double bench_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* Agreement: if any rank's text is not empty, the first such rank prints it. 1: somebody failed. */
static int bench_refused(const bench *b, const char *text) {
    int mine = *text ? b->rank : INT_MAX, first;
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, b->comm);
    if (first == INT_MAX)
        return 0;
    if (first == b->rank)
        fprintf(stderr, "mpix_ep_bench: %s\n", text);
    return 1;
}

/* All ranks must have the same options (a launcher can start them with different ones). */
static void bench_compare_options(const bench *b, char *err, size_t errlen) {
    bench_options root = b->opt;
    MPI_Bcast(&root, sizeof root, MPI_BYTE, 0, b->comm);
    if (!*err && memcmp(&root, &b->opt, sizeof root))
        snprintf(err, errlen, "the options of rank %d differ from those of rank 0", b->rank);
}

/* Before an hour is spent, not after it. */
static void bench_probe_file(const bench *b, const char *option, const char *path, char *err,
                             size_t errlen) {
    if (b->rank || !*path || *err)
        return;
    FILE *f = fopen(path, "a");
    if (f)
        fclose(f);
    else
        snprintf(err, errlen, "%s %s: %s", option, path, strerror(errno));
}

/* Rank 0 reads, everybody gets a copy. */
static void bench_load_file(bench *b, char *err, size_t errlen) {
    int64_t head[3] = {0};
    if (b->rank == 0) {
        head[0] = bench_npy_read(b->opt.routing_path, &b->file, err, errlen);
        head[1] = b->file.tokens;
        head[2] = b->file.k;
    }
    MPI_Bcast(head, 3, MPI_INT64_T, 0, b->comm);
    if (head[0])
        return;
    b->file.tokens = head[1];
    b->file.k = (int)head[2];
    size_t count = (size_t)head[1] * (size_t)head[2];
    if (b->rank)
        b->file.ids = bench_alloc(b, count * sizeof(int32_t));
    for (size_t at = 0; at < count; at += 1 << 20)
        MPI_Bcast(b->file.ids + at, (int)(count - at < 1 << 20 ? count - at : 1 << 20), MPI_INT32_T,
                  0, b->comm);
}

static void bench_judge_ids(const bench *b, char *err, size_t errlen) {
    const bench_npy *f = &b->file;
    for (int64_t t = 0; t < f->tokens; t++)
        for (int i = 0; i < f->k; i++) {
            int32_t id = f->ids[t * f->k + i];
            if (id >= b->opt.num_experts) {
                snprintf(err, errlen,
                         "routing file %s: token %lld chooses expert %d; --num-experts %d does not "
                         "cover it",
                         b->opt.routing_path, (long long)t, id, b->opt.num_experts);
                return;
            }
            for (int j = 0; j < i && id >= 0; j++)
                if (f->ids[t * f->k + j] == id) {
                    snprintf(err, errlen, "routing file %s: token %lld chooses expert %d twice",
                             b->opt.routing_path, (long long)t, id);
                    return;
                }
        }
}

/* Same outcome on every rank: all have the file. */
static void bench_judge_file(bench *b, char *err, size_t errlen) {
    bench_options *o = &b->opt;
    if (o->topk_given && o->topk != b->file.k)
        snprintf(err, errlen, "routing file %s has %d choices per token, but --num-topk is %d",
                 o->routing_path, b->file.k, o->topk);
    else if (o->tokens_max > b->file.tokens / b->size)
        snprintf(err, errlen, "routing file %s has %lld tokens; %d ranks of %ld need %lld",
                 o->routing_path, (long long)b->file.tokens, b->size, o->tokens_max,
                 (long long)b->size * o->tokens_max);
    else if (b->file.k > o->num_experts)
        snprintf(err, errlen, "routing file %s has %d choices per token, but --num-experts is %d",
                 o->routing_path, b->file.k, o->num_experts);
    else
        bench_judge_ids(b, err, errlen);
    o->topk = b->file.k;
}

static void bench_place_experts(bench *b) {
    int size = b->size, experts = b->opt.num_experts;
    b->expert_begin = bench_alloc(b, ((size_t)size + 1) * sizeof(int));
    b->expert_owner = bench_alloc(b, ((size_t)experts + 1) * sizeof(int));
    for (int r = 0; r < size; r++) {
        b->expert_begin[r + 1] = b->expert_begin[r] + experts / size + (r < experts % size);
        for (int e = b->expert_begin[r]; e < b->expert_begin[r + 1]; e++)
            b->expert_owner[e] = r;
    }
}

static void bench_derive(bench *b) {
    const bench_options *o = &b->opt;
    b->elem = bench_dtype_size(o->dtype);
    b->row_bytes = (size_t)o->hidden * b->elem;
    b->scale_elem = o->scale_kind == MPIX_EP_SCALES_F32     ? 4
                    : o->scale_kind == MPIX_EP_SCALES_UE8M0 ? 1
                                                            : 0;
    b->scale_bytes = ((size_t)o->hidden + 127) / 128 * b->scale_elem;
    b->has_combine = o->dtype != MPIX_EP_BYTES;
    b->ydtype = b->elem == 1 ? MPIX_EP_BF16 : o->dtype;
    b->y_elem = bench_dtype_size(b->ydtype);
    b->y_bytes = (size_t)o->hidden * b->y_elem;
    bench_place_experts(b);
}

static void bench_describe(bench *b) {
    char line[256], version[MPI_MAX_LIBRARY_VERSION_STRING];
    int len, local_rank, first;
    MPI_Comm local;
    snprintf(b->cpu_model, sizeof b->cpu_model, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10)) {
            snprintf(b->cpu_model, sizeof b->cpu_model, "%.*s", (int)strcspn(colon + 2, "\n"),
                     colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
    b->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (gethostname(b->host, sizeof b->host - 1))
        snprintf(b->host, sizeof b->host, "unknown host");
    MPI_Get_library_version(version, &len);
    snprintf(b->mpi_version, sizeof b->mpi_version, "%.*s", (int)strcspn(version, ",\n"), version);
    MPI_Comm_split_type(b->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &local_rank);
    MPI_Comm_free(&local);
    first = local_rank == 0;
    MPI_Allreduce(&first, &b->hosts, 1, MPI_INT, MPI_SUM, b->comm);
}

/* ---- one size -------------------------------------------------------------------------------- */

typedef struct bench_plans {
    bench_plan plan[BENCH_ROUNDS];
    int count;
    long capacity, recv_capacity;
} bench_plans;

/* Round 0 is the batch that is measured. Weights of even rounds make sums exact. */
static void bench_plans_make(const bench *b, long n, bench_plans *p) {
    long most[2] = {0, 0};
    memset(p, 0, sizeof *p);
    p->count = b->opt.validate ? BENCH_ROUNDS : 1;
    for (int i = 0; i < p->count; i++) {
        bench_plan_make(b, n, i, i % 2 == 0, &p->plan[i]);
        most[0] = p->plan[i].rows > most[0] ? p->plan[i].rows : most[0];
        most[1] = p->plan[i].pairs > most[1] ? p->plan[i].pairs : most[1];
    }
    MPI_Allreduce(MPI_IN_PLACE, most, 2, MPI_LONG, MPI_MAX, b->comm);
    p->capacity = most[0];
    p->recv_capacity = most[1];
}

static void bench_verify_round(const bench *b, const bench_plans *p, int round, bench_ours *o,
                               bench_base *m, bench_result *r) {
    int exact = round % 2 == 0;
    bench_progress(b, "%ld tokens: verification, round %d", p->plan[round].n, round);
    for (int buf = 0; buf < o->nbuf; buf++)
        r->verified &= bench_verify_ours(b, o, &p->plan[round], buf, round, exact);
    if (m)
        r->base_verified &= bench_verify_base(b, m, &p->plan[round], round, exact);
    bench_progress(b, "%s", "");
}

/* Values of ordinary size everywhere, so that nothing depends on what verification left behind. */
static void bench_fill(const bench *b, const bench_plan *plan, bench_ours *o, bench_base *m) {
    bench_values values;
    bench_fill_tokens(b, plan, 0, o->x, o->x_scales);
    if (!b->has_combine)
        return;
    bench_values_make(b, 0, &values);
    for (int i = 0; i < o->nbuf; i++)
        bench_fill_experts(b, plan, 0, &values, o->buf[i].ein, 0, o->buf[i].ein_scales, 0);
    if (m)
        bench_fill_experts(b, plan, 0, &values, m->ein, m->ein_stride, m->ein + b->row_bytes,
                           m->ein_stride);
}

static int bench_size_ll(const bench *b, long n, bench_result *r) {
    bench_plans p;
    bench_plans_make(b, n, &p);
    int good = b->opt.cuda ? bench_cuda_ll_size(b, p.plan, p.count, p.capacity, p.recv_capacity, r)
                           : bench_ll_size(b, p.plan, p.count, n, p.capacity, p.recv_capacity, r);
    for (int i = 0; i < p.count; i++)
        bench_plan_free(&p.plan[i]);
    return good;
}

static void bench_size(const bench *b, long n, bench_result *r) {
    bench_plans p;
    bench_ours o;
    bench_base base, *m = b->opt.baseline == BENCH_MPI ? &base : NULL;
    memset(r, 0, sizeof *r);
    bench_plans_make(b, n, &p);
    if (b->opt.cuda) {
        bench_cuda_size(b, p.plan, p.count, p.capacity, p.recv_capacity, r);
        for (int i = 0; i < p.count; i++)
            bench_plan_free(&p.plan[i]);
        return;
    }
    bench_ours_create(b, n, p.capacity, b->opt.buffers, b->opt.progress_thread ? "thread" : NULL,
                      &o);
    if (m)
        bench_base_create(b, &o, n, p.capacity, p.recv_capacity, m);
    r->verified = b->opt.validate ? 1 : -1;
    r->base_verified = b->opt.validate && m ? 1 : -1;
    for (int i = p.count - 1; b->opt.validate && i >= 0; i--)
        bench_verify_round(b, &p, i, &o, m, r);
    bench_fill(b, &p.plan[0], &o, m);
    bench_measure(b, &p.plan[0], &o, m, r);
    if (b->opt.validate) /* once more, after everything that happened */
        bench_verify_round(b, &p, 0, &o, m, r);
    if (m)
        bench_base_free(m);
    bench_ours_free(b, &o);
    if (b->opt.overlap)
        bench_overlap_run(b, &p.plan[0], p.capacity, r);
    for (int i = 0; i < p.count; i++)
        bench_plan_free(&p.plan[i]);
}

static int bench_run(bench *b) {
    static bench_result results[BENCH_RESULTS];
    char err[256] = "";
    int n = 0, good = 1;
    if (b->rank == 0)
        bench_report_head(b);
    for (long tokens = b->opt.tokens_min; tokens <= b->opt.tokens_max && n < BENCH_RESULTS;
         tokens = tokens ? tokens * 2 : 1) {
        for (int i = 0; (i == 0 || i < b->opt.nsms) && n < BENCH_RESULTS; i++, n++) {
            b->sms = b->opt.sms[i];
            if (b->opt.ll) {
                good &= bench_size_ll(b, tokens, &results[n]);
                continue;
            }
            bench_size(b, tokens, &results[n]);
            if (b->rank == 0)
                bench_report_result(b, &results[n]);
            good &= results[n].verified != 0 && results[n].base_verified != 0;
        }
    }
    if (b->rank == 0 && *b->opt.json_path)
        bench_json_write(b, results, n, err, sizeof err);
    if (b->rank == 0 && *b->opt.plot_path && !*err)
        bench_curves_write(b, results, n, err, sizeof err);
    int rc = bench_refused(b, err) ? BENCH_EXIT_ERROR : good ? BENCH_EXIT_OK : BENCH_EXIT_FAILED;
    if (b->rank == 0 && b->opt.ll)
        printf("# verification: %s\n", !b->opt.validate ? "off" : good ? "passed" : "FAILED");
    else if (b->rank == 0)
        bench_report_end(b, results, n);
    return rc;
}

int main(int argc, char **argv) {
    bench b;
    char err[1600] = "";
    int provided, rc = BENCH_EXIT_USAGE;
    memset(&b, 0, sizeof b);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &b.comm);
    MPI_Comm_rank(b.comm, &b.rank);
    MPI_Comm_size(b.comm, &b.size);
    int parsed = bench_options_parse(argc, argv, &b.opt, err, sizeof err),
        help = parsed == BENCH_OPTIONS_HELP, any;
    MPI_Allreduce(&help, &any, 1, MPI_INT, MPI_MAX, b.comm);
    if (any) {
        if (b.rank == 0)
            bench_options_usage(stdout);
        rc = BENCH_EXIT_OK;
        goto finalize;
    }
    if (bench_refused(&b, err))
        goto finalize;
    bench_compare_options(&b, err, sizeof err);
    if (!*err)
        bench_probe_file(&b, "--json", b.opt.json_path, err, sizeof err);
    bench_probe_file(&b, "--plot", b.opt.plot_path, err, sizeof err);
    if (bench_refused(&b, err))
        goto finalize;
    if (b.opt.routing == BENCH_FILE) {
        bench_load_file(&b, err, sizeof err);
        if (bench_refused(&b, err))
            goto finalize;
        bench_judge_file(&b, err, sizeof err);
        if (bench_refused(&b, err))
            goto finalize;
    }
    /* The library's errors are reported by this program. MPI's own end the job, as they
     * do by default. */
    MPI_Comm_dup(MPI_COMM_WORLD, &b.ep_comm);
    MPI_Comm_set_errhandler(b.ep_comm, MPI_ERRORS_RETURN);
    bench_derive(&b);
    bench_describe(&b);
    if (b.opt.cuda) {
        const char *why = bench_cuda_open(&b);
        snprintf(err, sizeof err, "%s", why ? why : "");
        rc = BENCH_EXIT_ERROR;
    }
    if (!bench_refused(&b, err))
        rc = bench_run(&b);
    MPI_Comm_free(&b.ep_comm);
finalize:
    free(b.file.ids);
    free(b.expert_begin);
    free(b.expert_owner);
    MPI_Comm_free(&b.comm);
    MPI_Finalize();
    return rc;
}
