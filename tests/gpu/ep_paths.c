/*
 * ep_paths.c - one path of GPU memory, cell by cell: what the table of paths claims works and is
 * the host's to the bit, what it denies is refused with the path's name.
 *
 *   ep_paths CELLS PATH REACH
 *
 * As tests/mpi/ep_paths.c, for the paths of GPU memory; tests/paths.sh runs both.
 */
#include "batch.h"
#include "cells.h"

enum { TOKENS = 20, TOPK = 3, HIDDEN = 136, EXPERTS_EACH = 3 };

static const char *layout, *path, *reach;
static int number, ll, engines;
static side gpu, host;

static shape shape_of(int dtype) {
    static int32_t owner[64 * EXPERTS_EACH];
    shape s = {.seed = 21, .layout = number, .turns = 1, .reps = 1, .align = 1, .bits = 32};
    s.mode = ll ? MPIX_EP_LL : MPIX_EP_HT;
    s.experts = EXPERTS_EACH * t_size;
    for (int e = 0; e < s.experts; e++)
        owner[e] = e / EXPERTS_EACH;
    s.owner = owner;
    s.topk = TOPK;
    s.dtype = s.odtype = s.zdtype = dtype;
    s.ydtype = dtype > MPIX_EP_BF16 ? MPIX_EP_BF16 : dtype;
    s.weights = s.slots = 1;
    s.hidden = HIDDEN;
    s.most = TOKENS;
    s.keep = 8;
    s.capacity_rows = number == MPIX_EP_SLOTS ? t_size * TOKENS : t_size * TOKENS * TOPK;
    for (int r = 0; r < t_size; r++)
        s.tokens[r] = TOKENS - r;
    /* Sums of several ranks are rounded on their way in COMPACT over two hops, and in EXPERT. */
    int half = dtype == MPIX_EP_BF16 || dtype == MPIX_EP_F16;
    s.inexact = !ll && (t_hosts > 1 || (number == MPIX_EP_EXPERT && half));
    s.counts = ll ? 1u << SEND_RANK : 1u << RECV_TOTAL | 1u << RECV_RANK | 1u << RECV_EXPERT;
    return s;
}

/* A whole batch, compared; the cell is tried by that. */
static void works(const char *feature, const shape *s) {
    t_where("%s: %s, dtype %d", layout, feature, s->dtype);
    batch *b = batch_open(s, &gpu, &host);
    batch_dispatch(b, 0);
    if (s->zdtype != MPIX_EP_BYTES)
        batch_combine(b, 0);
    batch_close(b);
    cells_hold(layout, feature, MPI_SUCCESS);
}

/* A batch, and then a call that asks for what the table denies. */
static void refused(const char *feature, void (*spoil)(batch *b), int combine) {
    shape s = shape_of(MPIX_EP_F32);
    t_where("%s: %s is refused", layout, feature);
    batch *b = batch_open(&s, &gpu, &host);
    side *q = &b->side[GPU];
    batch_dispatch(b, 0);
    batch_combine(b, 0);
    spoil(b);
    cells_hold(layout, feature,
               combine ? MPIX_Ep_combine(q->h, &q->ci, &q->co)
                       : MPIX_Ep_dispatch(q->h, &q->in, &q->out));
    batch_close(b);
}

static int claims(const char *feature) { return cells_say(layout, feature) == CELL_YES; }
static int denies(const char *feature) { return cells_say(layout, feature) == CELL_NO; }

/* ---- features -------------------------------------------------------------------------------- */

static void try_forms(void) {
    static const char *const features[FORMS] = {"blocking", "nonblocking", "stream", "halves",
                                                "capture"};
    for (int form = BLOCKING; form < FORMS; form++) {
        shape s = shape_of(MPIX_EP_F32);
        s.form = form;
        /* LL's route is local; its counts are compared before dispatch gives others. */
        s.route_form = form >= ENQUEUE ? ENQUEUE : ll ? BLOCKING : form;
        works(features[form], &s);
    }
}

static void spoil_counts(batch *b) { b->side[GPU].out.recv_per_rank = b->counts[HOST]; }

static void try_counts(void) {
    shape s = shape_of(MPIX_EP_F32);
    if (claims("route-counts")) {
        works("route-counts", &s);
    } else {
        MPIX_Ep_counts counts;
        MPI_Count n[64];
        batch *b = batch_open(&s, &gpu, &host);
        MPIX_INIT(&counts);
        counts.recv_per_rank = n;
        t_where("%s: counts of route are refused", layout);
        cells_hold(layout, "route-counts", MPIX_Ep_route(b->side[GPU].h, &b->side[GPU].r, &counts));
        batch_close(b);
    }
    if (claims("dispatch-counts"))
        works("dispatch-counts", &s);
    else
        refused("dispatch-counts", spoil_counts, 0);
}

static void spoil_narrow(batch *b) { b->side[GPU].out.x.dtype = MPIX_EP_BF16; }

static void try_dtypes(void) {
    for (int dtype = MPIX_EP_F64; dtype <= MPIX_EP_BYTES; dtype++)
        for (int scales = 0; scales <= (is_fp8(dtype) ? 2 : 0); scales++) {
            shape s = shape_of(dtype);
            s.scales = s.oscales = s.zscales = scales;
            works("any-dtype", &s);
        }
    for (int from = MPIX_EP_F32; from <= MPIX_EP_BF16; from++) {
        shape s = shape_of(from);
        s.odtype = MPIX_EP_F8E4M3;
        s.oscales = 1 + from % 2;
        works("quantise", &s);
    }
    refused("narrow", spoil_narrow, 0);
}

static both elsewhere;
static void spoil_output(batch *b) {
    elsewhere = both_make(b->ox.bytes, NULL);
    b->side[GPU].out.x.data = elsewhere.dev;
}
static void spoil_input(batch *b) {
    elsewhere = both_make(b->z.bytes, NULL);
    b->side[GPU].ci.x.data = elsewhere.dev;
}

/* Rows of LL come from no context's memory in any of these batches, those of HT from the
 * context. */
static void try_places(void) {
    shape s = shape_of(MPIX_EP_F32);
    if (claims("any-output")) {
        works("any-output", &s);
    } else {
        refused("any-output", spoil_output, 0);
        both_free(&elsewhere);
    }
    if (denies("any-input")) {
        refused("any-input", spoil_input, 1);
        both_free(&elsewhere);
        return;
    }
    t_where("%s: combine's rows in other memory", layout);
    batch *b = batch_open(&s, &gpu, &host);
    batch_dispatch(b, 0);
    both z = b->z;
    b->z = both_make(z.bytes, NULL);
    batch_combine(b, 0);
    both_free(&b->z);
    b->z = z;
    batch_close(b);
    cells_hold(layout, "any-input", MPI_SUCCESS);
}

static void spoil_weights(batch *b) {
    b->side[GPU].ci.topk_weights = (const float *)(void *)b->w.dev;
}
static void spoil_f32(batch *b) {
    b->side[GPU].ci.x.dtype = MPIX_EP_BF16;
    b->side[GPU].ci.x.stride = 0;
    b->side[GPU].ci.wire = MPIX_EP_F32;
}
static void spoil_wire(batch *b) { b->side[GPU].ci.wire = MPIX_EP_F16; }

static void try_sums(void) {
    shape s = shape_of(MPIX_EP_F32);
    s.choicew = 1;
    if (claims("owner-weights"))
        works("owner-weights", &s);
    else if (denies("owner-weights"))
        refused("owner-weights", spoil_weights, 1);
    s = shape_of(MPIX_EP_BF16);
    s.wire = MPIX_EP_F32;
    s.host_wire = ll ? MPIX_EP_F32 : 0;
    s.inexact = !ll && t_hosts > 1;
    if (claims("wire-f32"))
        works("wire-f32", &s);
    else
        refused("wire-f32", spoil_f32, 1);
    s = shape_of(MPIX_EP_F32);
    s.wire = s.host_wire = MPIX_EP_F16;
    if (claims("wire-any"))
        works("wire-any", &s);
    else
        refused("wire-any", spoil_wire, 1);
}

static void try_buffer(void) {
    MPIX_Ep_rows rows = {0};
    shape s = shape_of(MPIX_EP_F32);
    s.buffer = 1;
    t_where("%s: combine-buffer", layout);
    if (claims("combine-buffer"))
        works("combine-buffer", &s);
    else
        cells_hold(layout, "combine-buffer", MPIX_Ep_combine_buffer(gpu.h, &rows));
    cells_hold(layout, "masking", MPIX_Ep_set_mask(gpu.ep, 0, 0));
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void config_make(MPIX_Ep_config *c) {
    MPIX_INIT(c);
    c->memkind = MPIX_EP_CUDA;
    c->mode = ll ? MPIX_EP_LL : MPIX_EP_HT;
    c->layout = number;
    c->num_sms = engines ? MPIX_EP_SMS_NONE : 0;
    c->num_experts = EXPERTS_EACH * t_size;
    c->max_topk = TOPK;
    c->max_tokens = TOKENS;
    c->max_row_bytes = 8 * HIDDEN;
    c->timeout_s = 60;
}

/* A context as it is, or with masking, or with copy engines. 1: it was made, as it should be. */
static int try_create(const char *feature, int masking, int none) {
    MPIX_Ep_config c;
    MPIX_Ep ep = NULL;
    config_make(&c);
    c.masking = masking;
    c.num_sms = none ? MPIX_EP_SMS_NONE : c.num_sms;
    t_where("%s: creation, %s", layout, feature);
    int made = cells_hold(layout, feature, MPIX_Ep_create(MPI_COMM_WORLD, &c, MPI_INFO_NULL, &ep));
    if (ep)
        MPIX_Ep_free(&ep);
    return made;
}

static void try_layout(void) {
    MPIX_Ep_config c;
    int none = denies("layout");
    if (!none && !claims(reach) && !denies(reach) && t_hosts > 1 && !claims("mixed"))
        return; /* what is asked for is refused for another reason, which has a run of its own */
    int moot = !claims(reach) && !denies(reach);
    if (!try_create(none || moot ? "layout" : reach, 0, 0) || none)
        return;
    if (denies("copy-engines"))
        try_create("copy-engines", 0, 1);
    try_create("masking", 1, 0);
    if (engines) /* not emulated: their handles can't be made */
        return;
    config_make(&c);
    batch_contexts(&c, 0, &gpu, &host);
    try_forms();
    try_counts();
    try_dtypes();
    try_places();
    try_sums();
    try_buffer();
    batch_contexts_free(&gpu, &host);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"COMPACT", "EXPERT", "SLOTS"};
    batch_program(&argc, &argv, "ep_paths");
    REQUIRE(argc == 4, "usage: ep_paths CELLS PATH REACH");
    path = argv[2], reach = argv[3];
    cells_read(argv[1], path);
    ll = strstr(path, "-ll") != NULL;
    engines = strstr(path, "copy-engine") != NULL;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (number = MPIX_EP_COMPACT; number <= MPIX_EP_SLOTS; number++) {
        /* Other layouts choose another path of GPU memory, which refuses them if nobody has
         * them. */
        int other = (!strcmp(path, "gpu-ht") && number == MPIX_EP_EXPERT) ||
                    (!strcmp(path, "gpu-expert") && number != MPIX_EP_EXPERT);
        layout = names[number];
        t_watchdog(250);
        if (!other)
            try_layout();
    }
    if (t_rank == 0)
        printf("ep_paths: %s %s: %d cells tried\n", path, reach, cells_tried);
    return t_end();
}
