/*
 * json.c - the results as JSON: {"env": {...}, "results": [{"op": ..., "bytes": ...,
 * "time_us": {...}, ...}]}.
 */
#include "config.h"

#include "bench/bench.h"

#include <string.h>

#ifdef HAVE_JANSSON

const char *bench_json_available(void) { return NULL; }

static json_t *json_env(const bench *b) {
    const bench_options *o = &b->opt;
    static const char *const scales[] = {"none", "f32", "ue8m0"}, *const buffers[] = {"", "alloc",
                                                                                      "malloc",
                                                                                      "both"};
    char routing[1100], version[32];
    int major, minor, patch;
    MPIX_Ep_get_version(&major, &minor, &patch);
    snprintf(version, sizeof version, "%d.%d.%d", major, minor, patch);
    if (o->routing == BENCH_ZIPF)
        snprintf(routing, sizeof routing, "zipf:%g", o->zipf_s);
    else
        snprintf(routing, sizeof routing, "%s",
                 o->routing == BENCH_FILE ? o->routing_path : "uniform");
    json_t *env = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s}", "version", PACKAGE_VERSION,
                            "library", version, "host", b->host, "cpu", b->cpu_model, "cores",
                            b->cores, "ranks", b->size, "hosts", b->hosts, "mpi", b->mpi_version);
    json_t *config =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:i, s:i, s:s, s:I, s:b, s:s, s:s, s:s}",
                  "mode", o->ll ? "ll" : "ht", "memory", o->cuda ? "cuda" : "host", "layout",
                  o->layout == MPIX_EP_EXPERT ? "expert"
                  : o->ll                     ? "slots"
                                              : "compact",
                  "expert_align", o->expert_align, "dtype", bench_dtype_name(o->dtype), "scales",
                  scales[o->scale_kind], "hidden", (json_int_t)o->hidden, "topk", o->topk,
                  "num_experts", o->num_experts, "routing", routing, "seed", (json_int_t)o->seed,
                  "metadata", o->metadata, "buffers", buffers[o->buffers], "progress",
                  o->progress_thread ? "thread" : "default", "copy", bench_copy_name());
    if (env && config)
        json_object_set_new(env, "config", config);
    return env;
}

/* Phases of the baseline, by name. */
static json_t *json_phases(const bench_stats *s, int n, const char *const names[]) {
    json_t *phases = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(phases, names[i], bench_stats_json(&s[i]));
    return phases;
}

static void json_add_baseline(const bench *b, json_t *entry, const bench_stats *whole,
                              const bench_stats *ours, json_t *phases, int verified) {
    const char *name = b->opt.baseline == BENCH_NCCL ? "nccl" : "mpi";
    json_t *base = json_pack("{s:s, s:o}", "name", name, "time_us", bench_stats_json(whole));
    if (phases)
        json_object_set_new(base, "phases_us", phases);
    if (verified >= 0)
        json_object_set_new(base, "verified", json_boolean(verified));
    json_object_set_new(entry, "baseline", base);
    json_object_set_new(entry, "speedup", json_real(bench_speedup(whole, ours)));
}

static json_t *json_entry(const bench *b, const bench_result *r, int side, const char *op,
                          const bench_stats *s, int moves) {
    const char *memory = b->opt.buffers == BENCH_MALLOC || side == 1 ? "malloc" : "alloc";
    json_t *entry = json_pack("{s:s, s:s, s:I, s:f, s:i, s:o}", "op", op, "buffers", memory,
                              "tokens", (json_int_t)r->tokens, "bytes", r->bytes, "samples",
                              r->samples, "time_us", bench_stats_json(s));
    if (moves && s->median > 0) {
        json_object_set_new(entry, "logical_gbps", json_real(r->bytes / s->median / 1e3));
        json_object_set_new(entry, "wire_gbps", json_real(r->wire_bytes / s->median / 1e3));
    }
    if (b->opt.cuda)
        json_object_set_new(entry, "num_sms", json_integer(r->sms));
    json_object_set_new(entry, "verified",
                        r->verified < 0 ? json_null() : json_boolean(r->verified));
    return entry;
}

static void json_add_copy(json_t *entry, const bench_result *r, const bench_stats *dispatch) {
    if (!(r->written > 0 && dispatch->median > 0 && r->copy.median > 0 && r->fanout.median > 0))
        return;
    json_object_set_new(entry, "copy",
                        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "bytes_written", r->written,
                                  "gbps", r->written / dispatch->median / 1e3, "copy_gbps",
                                  r->written / r->copy.median / 1e3, "ratio",
                                  bench_speedup(&r->copy, dispatch), "read_once_gbps",
                                  r->written / r->fanout.median / 1e3, "read_once_ratio",
                                  bench_speedup(&r->fanout, dispatch)));
}

static void json_add_overlap(json_t *entry, const bench_result *r, const char *op) {
    json_t *list = json_array();
    for (int i = 0; i < r->noverlap; i++) {
        const bench_overlap *o = &r->overlap[i];
        if (!strcmp(o->op, op))
            json_array_append_new(list,
                                  json_pack("{s:s, s:o, s:o, s:o, s:f}", "progress", o->progress,
                                            "call_us", bench_stats_json(&o->call), "compute_us",
                                            bench_stats_json(&o->compute), "both_us",
                                            bench_stats_json(&o->both), "ratio", o->ratio));
    }
    if (json_array_size(list))
        json_object_set(entry, "overlap", list);
    json_decref(list);
}

static void json_add_net(json_t *entry, const bench_net *net) {
    if (net->pairs > 0)
        json_object_set_new(entry, "network",
                            json_pack("{s:I, s:f, s:f, s:f}", "pairs", (json_int_t)net->pairs,
                                      "messages_per_peer", net->messages, "most_messages",
                                      net->most, "wire_bytes_per_peer", net->bytes));
}

/* --bounds: of a call among proxied peers. */
static void json_add_bounds(const bench *b, json_t *entry, const bench_result *r,
                            const bench_stats *s) {
    const bench_bounds *o = &r->bounds;
    if (b->opt.bounds && o->bytes > 0 && s->median > 0)
        json_object_set_new(entry, "bounds",
                            json_pack("{s:f, s:f, s:i, s:f}", "link_gbps", o->link, "copy_gbps",
                                      o->copy, "threads", o->threads, "proxied_gbps",
                                      o->bytes / s->median / 1e3));
}

static json_t *json_spans(const bench_stats *s) {
    return json_pack("{s:o, s:o, s:o, s:o}", "begin_us", bench_stats_json(&s[BENCH_BEGIN]),
                     "middle_us", bench_stats_json(&s[BENCH_MIDDLE]), "end_us",
                     bench_stats_json(&s[BENCH_END]), "whole_us",
                     bench_stats_json(&s[BENCH_WHOLE]));
}

/* --overlap in GPU memory: a call in halves, with and without a product in the middle. */
static void json_add_halves(json_t *entry, const bench_result *r, const char *op) {
    for (int i = 0; i < r->nhalves; i++)
        if (!strcmp(r->halves[i].op, op))
            json_object_set_new(entry, "overlap",
                                json_pack("{s:o, s:o, s:o}", "product_us",
                                          bench_stats_json(&r->halves[i].alone), "with_product",
                                          json_spans(r->halves[i].between), "without",
                                          json_spans(r->halves[i].without)));
}

/* Times by events on the GPU: "kernel_..." entries. */
static void json_add_gpu(const bench *b, const bench_result *r, json_t *list) {
    const bench_side *s = &r->side[0];
    json_t *dispatch = json_entry(b, r, 0, "kernel_dispatch", &s->gpu_dispatch, 1),
           *combine = json_entry(b, r, 0, "kernel_combine", &s->gpu_combine, 1);
    if (r->has_gpu_base) {
        json_add_baseline(b, dispatch, &r->gpu_base_dispatch[3], &s->gpu_dispatch, NULL,
                          r->base_verified);
        json_add_baseline(b, combine, &r->gpu_base_combine[3], &s->gpu_combine, NULL,
                          r->base_verified);
        json_object_set_new(json_object_get(dispatch, "baseline"), "bare_alltoallv_us",
                            bench_stats_json(&r->gpu_base_bare));
    }
    json_array_append_new(list, json_entry(b, r, 0, "kernel_route", &s->gpu_route, 0));
    json_array_append_new(list, dispatch);
    json_array_append_new(list, combine);
    json_array_append_new(list, json_entry(b, r, 0, "kernel_total", &s->gpu_total, 0));
    if (r->has_to_fp8)
        json_array_append_new(list,
                              json_entry(b, r, 0, "kernel_dispatch_to_fp8", &s->gpu_to_fp8, 0));
    if (r->has_float_sums)
        json_array_append_new(list, json_entry(b, r, 0, "kernel_combine_float_sums",
                                               &s->gpu_float_sums, 0));
    json_add_bounds(b, dispatch, r, &s->gpu_dispatch);
    json_add_bounds(b, combine, r, &s->gpu_combine);
    json_add_halves(dispatch, r, "dispatch");
    json_add_halves(combine, r, "combine");
}

static void json_add_side(const bench *b, const bench_result *r, int i, json_t *list) {
    static const char *const dispatch_phases[] = {"counts", "pack", "alltoallv", "unpack"};
    static const char *const combine_phases[] = {"local_reduce", "alltoallv", "reduce"};
    const bench_side *s = &r->side[i];
    json_array_append_new(list, json_entry(b, r, i, "route", &s->route, 0));
    json_t *dispatch = json_entry(b, r, i, "dispatch", &s->dispatch, 1);
    json_object_set_new(dispatch, "with_route_us", bench_stats_json(&s->route_dispatch));
    if (r->has_base) {
        json_add_baseline(b, dispatch, &r->base_dispatch_all, &s->route_dispatch,
                          b->opt.cuda ? NULL
                                      : json_phases(r->base_dispatch, BASE_DISPATCH_PHASES,
                                                    dispatch_phases),
                          r->base_verified);
        if (!b->opt.cuda)
            json_object_set_new(json_object_get(dispatch, "baseline"), "bare_alltoallv_us",
                                bench_stats_json(&r->base_bare));
    }
    json_add_copy(dispatch, r, &s->dispatch);
    json_add_net(dispatch, &r->net[0]);
    if (i == 0)
        json_add_overlap(dispatch, r, "dispatch");
    json_array_append_new(list, dispatch);
    if (!b->has_combine)
        return;
    json_t *combine = json_entry(b, r, i, "combine", &s->combine, 1);
    if (r->has_base)
        json_add_baseline(b, combine, &r->base_combine_all, &s->combine,
                          b->opt.cuda
                              ? NULL
                              : json_phases(r->base_combine, BASE_COMBINE_PHASES, combine_phases),
                          r->base_verified);
    json_add_net(combine, &r->net[1]);
    if (i == 0)
        json_add_overlap(combine, r, "combine");
    json_array_append_new(list, combine);
    json_t *total = json_entry(b, r, i, "total", &s->total, 0);
    if (r->has_base)
        json_add_baseline(b, total, &r->base_total, &s->total, NULL, r->base_verified);
    json_array_append_new(list, total);
    if (b->opt.cuda)
        json_add_gpu(b, r, list);
}

/* --mode ll: whole calls and the parts until this rank has sent, of both modes, MPI and
 * the bare copy. */
static void json_add_ll(const bench *b, const bench_result *r, json_t *list) {
    for (int i = 0; i < r->nll; i++) {
        const char *op = r->ll[i].op;
        json_t *entry = json_pack("{s:s, s:I, s:i, s:o}", "op", op + strspn(op, " "), "tokens",
                                  (json_int_t)r->tokens, "samples", r->samples, "time_us",
                                  bench_stats_json(&r->ll[i].stats));
        if (r->ll[i].speedup > 0)
            json_object_set_new(entry, "speedup", json_real(r->ll[i].speedup));
        if (b->opt.cuda)
            json_object_set_new(entry, "num_sms", json_integer(r->sms));
        json_object_set_new(entry, "verified",
                            r->verified < 0 ? json_null() : json_boolean(r->verified));
        json_array_append_new(list, entry);
    }
}

int bench_json_write(const bench *b, const bench_result *r, int n, char *err, size_t errlen) {
    json_t *list = json_array(), *env = json_env(b),
           *root = env && list ? json_pack("{s:O, s:O}", "env", env, "results", list) : NULL;
    int rc = 0;
    for (int i = 0; root && i < n; i++)
        json_add_ll(b, &r[i], list);
    for (int i = 0; root && i < n; i++)
        for (int side = 0; side < r[i].nside; side++)
            json_add_side(b, &r[i], side, list);
    /* A path that is not UTF-8 can't be in JSON; then there is no root. */
    if (!root) {
        snprintf(err, errlen,
                 "the results can't be put into JSON (is the routing file's name UTF-8?)");
        rc = -1;
    } else if (json_dump_file(root, b->opt.json_path, JSON_INDENT(2) | JSON_REAL_PRECISION(9))) {
        snprintf(err, errlen, "%s can't be written", b->opt.json_path);
        rc = -1;
    }
    json_decref(root);
    json_decref(env);
    json_decref(list);
    return rc;
}

#else

const char *bench_json_available(void) {
    return "this build has no JSON (jansson was not found when it was configured)";
}

int bench_json_write(const bench *b, const bench_result *r, int n, char *err, size_t errlen) {
    (void)b, (void)r, (void)n;
    snprintf(err, errlen, "%s", bench_json_available());
    return -1;
}

#endif
