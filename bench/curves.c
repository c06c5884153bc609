/*
 * curves.c - what mpix_ep_bench --plot draws: medians of whole calls over the tokens of a rank, the
 * baseline's dashed.
 */
#include "config.h"

#include "bench/bench.h"
#include "bench/plot.h"

#include <errno.h>
#include <string.h>

static void curves_point(plot *p, const bench *b, const bench_result *r, const char *name,
                         int dashed, const bench_stats *s) {
    char text[64];
    if (b->opt.nsms > 1 && !dashed)
        snprintf(text, sizeof text, "%s, %d SMs", name, r->sms);
    else
        snprintf(text, sizeof text, "%s", name);
    plot_add(p, text, dashed, (double)r->tokens, s->median);
}

void bench_curves_write(const bench *b, const bench_result *r, int n, char *err, size_t errlen) {
    static plot p;
    const bench_options *o = &b->opt;
    const char *base = o->baseline == BENCH_NCCL ? "NCCL" : "MPI";
    char name[64];
    memset(&p, 0, sizeof p);
    snprintf(p.title, sizeof p.title, "mpix_ep_bench: %d ranks, %s memory, layout %s", b->size,
             o->cuda ? "GPU" : "host", o->layout == MPIX_EP_EXPERT ? "expert" : "compact");
    snprintf(p.subtitle, sizeof p.subtitle, "%s, hidden %ld, top-%d of %d experts; %s",
             bench_dtype_name(o->dtype), o->hidden, o->topk, o->num_experts,
             o->cuda ? b->gpu : b->cpu_model);
    p.xlabel = "tokens of each rank";
    p.ylabel = "time of a call (median, slowest rank)";
    for (int i = 0; i < n; i++) {
        curves_point(&p, b, &r[i], "route + dispatch", 0, &r[i].side[0].route_dispatch);
        snprintf(name, sizeof name, "the same by %s", base);
        if (r[i].has_base)
            curves_point(&p, b, &r[i], name, 1, &r[i].base_dispatch_all);
        if (!b->has_combine)
            continue;
        curves_point(&p, b, &r[i], "combine", 0, &r[i].side[0].combine);
        snprintf(name, sizeof name, "combine by %s", base);
        if (r[i].has_base)
            curves_point(&p, b, &r[i], name, 1, &r[i].base_combine_all);
    }
    if (plot_write(&p, o->plot_path) != 0)
        snprintf(err, errlen, "--plot %s: %s", o->plot_path, strerror(errno));
}
