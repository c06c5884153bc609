/*
 * report.c - results in the layout of the OSU micro-benchmarks: comments with '#', then columns.
 */
#include "config.h"

#include "bench/bench.h"

#include <string.h>

static const char *report_routing(const bench *b, char *buf, size_t len) {
    if (b->opt.routing == BENCH_ZIPF)
        snprintf(buf, len, "zipf:%g", b->opt.zipf_s);
    else
        snprintf(buf, len, "%s", b->opt.routing == BENCH_FILE ? b->opt.routing_path : "uniform");
    return buf;
}

void bench_report_head(const bench *b) {
    const bench_options *o = &b->opt;
    static const char *const scales[] = {"", " with f32 scales", " with ue8m0 scales"};
    static const char *const buffers[] = {"", "alloc", "malloc", "alloc and malloc"};
    char routing[1100];
    int major, minor, patch;
    MPIX_Ep_get_version(&major, &minor, &patch);
    int blocks = (o->iterations + BENCH_BLOCK - 1) / BENCH_BLOCK;
    printf("# mpix_ep_bench %s, library %d.%d.%d: expert-parallel dispatch and combine\n",
           PACKAGE_VERSION, major, minor, patch);
    printf("# Machine: %s, %s, %d cores; %d ranks on %d hosts; %s\n", b->host, b->cpu_model,
           b->cores, b->size, b->hosts, b->mpi_version);
    if (o->cuda)
        printf("# GPU: %s; NCCL %d\n", b->gpu, b->nccl_version);
    printf("# Configuration: mode %s, %s memory, layout %s", o->ll ? "ll" : "ht",
           o->cuda ? "GPU" : "host",
           o->layout == MPIX_EP_EXPERT ? "expert"
           : o->ll                     ? "slots (ht: compact)"
                                       : "compact");
    if (o->layout == MPIX_EP_EXPERT)
        printf(" (align %d)", o->expert_align);
    printf(", %s%s, hidden %ld, top-%d of %d experts,\n", bench_dtype_name(o->dtype),
           scales[o->scale_kind], o->hidden, o->topk, o->num_experts);
    printf("#   routing %s, seed %llu, ids and weights %s, buffers %s, progress %s, baseline %s\n",
           report_routing(b, routing, sizeof routing), (unsigned long long)o->seed,
           o->metadata ? "carried" : "not carried", buffers[o->buffers],
           o->progress_thread ? "thread" : "default",
           o->baseline == BENCH_MPI    ? "mpi"
           : o->baseline == BENCH_NCCL ? "nccl"
                                       : "none");
    printf("# Times in us, maximum over ranks, of %d calls: %d blocks of %d alternating with the "
           "other kinds, the "
           "first %d of each dropped\n",
           blocks * BENCH_KEEP, blocks, BENCH_BLOCK, BENCH_DROP);
    if (o->ll) {
        bench_ll_head(b);
        return;
    }
    printf("# Size: bytes of rows received by a rank, local rows included (mean over ranks); "
           "logical GB/s counts them, "
           "wire GB/s those of other ranks\n");
    if (!b->has_combine)
        printf("# Opaque bytes have no sum: no combine\n");
    printf("#\n# %-8s %-13s %-22s", "Tokens", "Size", "Op");
    if (o->full)
        printf(" %11s %11s %11s %11s %11s %11s", "Min", "Avg", "Median", "P90", "P99", "Max");
    else
        printf(" %11s", "Median");
    printf(" %12s %9s", "Logical GB/s", "Wire GB/s");
    if (o->baseline != BENCH_NO_BASELINE)
        printf(" %11s %8s", o->baseline == BENCH_MPI ? "MPI" : "NCCL", "Speedup");
    printf("\n");
    fflush(stdout);
}

static double report_rate(double bytes, const bench_stats *s) {
    return s->median > 0 ? bytes / s->median / 1e3 : 0;
}

/* base NULL: nothing to compare with. moves: whether rows move, so that a bandwidth makes sense. */
static void report_row(const bench *b, const bench_result *r, const char *op, const char *kind,
                       const bench_stats *s, int moves, const bench_stats *base) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", op, kind);
    printf("%-10ld %-13.0f %-22s", r->tokens, r->bytes, name);
    if (b->opt.full)
        printf(" %11.2f %11.2f %11.2f %11.2f %11.2f %11.2f", s->min, s->avg, s->median, s->p90,
               s->p99, s->max);
    else
        printf(" %11.2f", s->median);
    if (moves)
        printf(" %12.3f %9.3f", report_rate(r->bytes, s), report_rate(r->wire_bytes, s));
    else
        printf(" %12s %9s", "-", "-");
    if (base)
        printf(" %11.2f %7.2fx", base->median, bench_speedup(base, s));
    else if (b->opt.baseline != BENCH_NO_BASELINE)
        printf(" %11s %8s", "-", "-");
    printf("\n");
}

static void report_side(const bench *b, const bench_result *r, int i) {
    const bench_side *s = &r->side[i];
    const char *kind = b->opt.buffers == BENCH_MALLOC || i == 1 ? " (malloc)" : "";
    report_row(b, r, "route", kind, &s->route, 0, NULL);
    report_row(b, r, "dispatch", kind, &s->dispatch, 1, NULL);
    report_row(b, r, "route+dispatch", kind, &s->route_dispatch, 1,
               r->has_base ? &r->base_dispatch_all : NULL);
    if (!b->has_combine)
        return;
    report_row(b, r, "combine", kind, &s->combine, 1, r->has_base ? &r->base_combine_all : NULL);
    report_row(b, r, "total", kind, &s->total, 0, r->has_base ? &r->base_total : NULL);
}

/* What limits proxied peers, and each call's part of the slower. */
static void report_bounds(const bench *b, const bench_result *r) {
    const bench_bounds *o = &r->bounds;
    const bench_side *s = &r->side[0];
    double slower = o->link < o->copy ? o->link : o->copy;
    if (!b->opt.bounds)
        return;
    if (o->bytes == 0) {
        printf("# Bounds: no peer is proxied\n");
        return;
    }
    printf("# Bounds: the link %.1f GB/s each way at once, copies by %d thread%s of each rank "
           "%.1f GB/s\n",
           o->link, o->threads, o->threads == 1 ? "" : "s", o->copy);
    for (int i = 0; i < 1 + b->has_combine; i++) {
        double rate = o->bytes / (i ? s->gpu_combine : s->gpu_dispatch).median / 1e3;
        printf("# Through the proxy, %s: %.1f GB/s, %.2f of the slower\n",
               i ? "combine" : "dispatch", rate, rate / slower);
    }
}

/* The halves of calls around a matrix product. */
static void report_halves(const bench_result *r) {
    for (int i = 0; i < r->nhalves; i++) {
        const bench_halves *h = &r->halves[i];
        const bench_stats *w = h->between, *o = h->without;
        printf("# Overlap of %s (GPU): product alone %.2f; begin %.2f, product %.2f (%.1f %% "
               "slower), end %.2f; without a product begin %.2f, end %.2f, whole %.2f\n",
               h->op, h->alone.median, w[BENCH_BEGIN].median, w[BENCH_MIDDLE].median,
               100 * (w[BENCH_MIDDLE].median / h->alone.median - 1), w[BENCH_END].median,
               o[BENCH_BEGIN].median, o[BENCH_END].median, o[BENCH_WHOLE].median);
    }
}

/* GPU memory: times by events, and the baseline's phases. */
static void report_gpu(const bench *b, const bench_result *r) {
    const bench_side *s = &r->side[0];
    const bench_stats *d = r->gpu_base_dispatch, *c = r->gpu_base_combine;
    report_row(b, r, "route", " (GPU)", &s->gpu_route, 0, NULL);
    report_row(b, r, "dispatch", " (GPU)", &s->gpu_dispatch, 1, r->has_gpu_base ? &d[3] : NULL);
    if (b->has_combine) {
        report_row(b, r, "combine", " (GPU)", &s->gpu_combine, 1, r->has_gpu_base ? &c[3] : NULL);
        report_row(b, r, "total", " (GPU)", &s->gpu_total, 0, NULL);
    }
    if (r->has_to_fp8)
        report_row(b, r, "dispatch to fp8", " (GPU)", &s->gpu_to_fp8, 0, NULL);
    if (r->has_float_sums)
        report_row(b, r, "combine, floats", " (GPU)", &s->gpu_float_sums, 0, NULL);
    report_bounds(b, r);
    report_halves(r);
    if (r->has_base)
        printf("# Baseline: counts to the host and to the peers %.2f of the whole dispatch %.2f\n",
               r->base_dispatch[BASE_COUNTS].median, r->base_dispatch_all.median);
    if (r->has_gpu_base)
        printf("# NCCL dispatch (GPU): pack %.2f + exchange %.2f + unpack %.2f; combine: exchange "
               "%.2f + sums %.2f; bare all-to-all-v of packed "
               "rows %.2f, %.2f of our dispatch\n",
               d[0].median, d[1].median, d[2].median, c[1].median, c[2].median,
               r->gpu_base_bare.median, bench_speedup(&r->gpu_base_bare, &s->gpu_dispatch));
}

static void report_base(const bench *b, const bench_result *r) {
    printf("# MPI dispatch: counts %.2f + pack %.2f + MPI_Alltoallv %.2f + unpack %.2f, whole "
           "%.2f; bare MPI_Alltoallv "
           "of packed rows %.2f\n",
           r->base_dispatch[BASE_COUNTS].median, r->base_dispatch[BASE_PACK].median,
           r->base_dispatch[BASE_EXCHANGE].median, r->base_dispatch[BASE_UNPACK].median,
           r->base_dispatch_all.median, r->base_bare.median);
    if (!b->has_combine)
        return;
    if (b->opt.layout == MPIX_EP_EXPERT)
        printf("# MPI combine: local sums %.2f + MPI_Alltoallv %.2f + sums %.2f, whole %.2f\n",
               r->base_combine[BASE_LOCAL_REDUCE].median, r->base_combine[BASE_BACK].median,
               r->base_combine[BASE_REDUCE].median, r->base_combine_all.median);
    else
        printf("# MPI combine (no packing): MPI_Alltoallv %.2f + sums %.2f, whole %.2f\n",
               r->base_combine[BASE_BACK].median, r->base_combine[BASE_REDUCE].median,
               r->base_combine_all.median);
}

void bench_report_result(const bench *b, const bench_result *r) {
    if (b->opt.cuda)
        printf("# SMs: %d\n", r->sms);
    for (int i = 0; i < r->nside; i++)
        report_side(b, r, i);
    if (b->opt.cuda)
        report_gpu(b, r);
    else if (r->has_base)
        report_base(b, r);
    for (int i = 0; i < r->nside && r->written > 0 && !b->opt.cuda; i++)
        printf("# Bytes written by dispatch%s: %.2f GB/s; copy of as many (%s) %.2f GB/s, ratio "
               "%.3f; each token read "
               "once %.2f GB/s, ratio %.3f\n",
               b->opt.buffers == BENCH_MALLOC || i == 1 ? " (malloc)" : "",
               report_rate(r->written, &r->side[i].dispatch), bench_copy_name(),
               report_rate(r->written, &r->copy), bench_speedup(&r->copy, &r->side[i].dispatch),
               report_rate(r->written, &r->fanout),
               bench_speedup(&r->fanout, &r->side[i].dispatch));
    for (int i = 0; i < 1 + b->has_combine && r->net[i].pairs > 0; i++)
        printf("# Network, %s: %.1f messages per peer (most %.0f), %.0f wire bytes per peer, %ld "
               "proxied pairs\n",
               i ? "combine" : "dispatch", r->net[i].messages, r->net[i].most, r->net[i].bytes,
               r->net[i].pairs);
    for (int i = 0; i < r->noverlap; i++) {
        const bench_overlap *o = &r->overlap[i];
        printf("# Overlap of %s, progress %s: call %.2f, computation %.2f, both %.2f: %.3f of the "
               "longer\n",
               o->op, o->progress, o->call.median, o->compute.median, o->both.median, o->ratio);
    }
    if (r->verified == 0)
        printf("# Verification of %ld tokens: FAILED\n", r->tokens);
    if (r->base_verified == 0)
        printf("# Verification of the baseline with %ld tokens: FAILED\n", r->tokens);
    fflush(stdout);
}

void bench_report_end(const bench *b, const bench_result *r, int n) {
    int good = 1;
    for (int i = 0; i < n; i++)
        good &= r[i].verified != 0 && r[i].base_verified != 0;
    printf("# verification: %s\n", !b->opt.validate ? "off" : good ? "passed" : "FAILED");
    fflush(stdout);
}
