/*
 * blame.c - whoever is absent, stopped or killed is named: by kind, rank and time, on every other
 * rank, wherever it stands.
 *
 *   blame --faults absent|stopped|killed|midway|ended [--limit MILLISECONDS]   (timeout_s where
 *                                                                              somebody is waited
 *                                                                              for in vain,
 *                                                                              default 1500)
 *
 * absent: never makes the call. stopped, killed: by a signal, in the call's place. midway: starts
 * the call first, without waiting, and is then stopped; ended: and is then killed. So its offers
 * are there, and what needs no peer's part. A case is a context of its own, with the fault before
 * one call. All cases of a fault run at once, so that their time limits pass together. See blame.h
 * for who is the victim. Environment: how ranks reach each other.
 */
#include "blame.h"

enum { TOKENS = 24, TOPK = 2, HIDDEN = 40, MAX_CASES = 96 };
enum {
    ROUTE,
    DISPATCH,
    AGAIN,
    COMBINE,
    PHASES
}; /* AGAIN: a dispatch of a routing that has
    * been used before */

static const char *const phase_names[] = {"route", "dispatch", "dispatch of a known routing",
                                          "combine"};

typedef struct {
    int place, mode, layout, phase;
    MPIX_Ep ep;
    MPIX_Ep_handle h;
    int ranks;
    int32_t ids[TOKENS * TOPK];
    float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN], *rows;
    float weights[TOKENS * TOPK];
    int64_t room;
    MPIX_Xfer xfer;
    double begin;
} test;

static cast actors;
static test *tests[MAX_CASES];
static int ntests;

static const char *case_name(const test *t) {
    static char text[160];
    snprintf(text, sizeof text, "%s %s, victim is rank %d of %d, before %s",
             t->mode == MPIX_EP_LL ? "LL" : "HT",
             t->layout == MPIX_EP_COMPACT  ? "COMPACT"
             : t->layout == MPIX_EP_EXPERT ? "EXPERT"
                                           : "SLOTS",
             t->place, t->ranks, phase_names[t->phase]);
    return text;
}

static int call(test *t, int phase, int blocking) {
    if (phase == ROUTE) {
        MPIX_Ep_routing in;
        MPIX_INIT(&in);
        in.num_tokens = TOKENS;
        in.topk = TOPK;
        in.ids = t->ids;
        return blocking ? MPIX_Ep_route(t->h, &in, NULL)
                        : MPIX_Ep_iroute(t->h, &in, NULL, &t->xfer);
    }
    if (phase == COMBINE) {
        MPIX_Ep_combine_in in;
        MPIX_Ep_combine_out out;
        MPIX_INIT(&in);
        MPIX_INIT(&out);
        in.hidden = HIDDEN;
        in.x.data = t->rows;
        in.x.dtype = MPIX_EP_F32;
        out.y.data = t->y;
        return blocking ? MPIX_Ep_combine(t->h, &in, &out)
                        : MPIX_Ep_icombine(t->h, &in, &out, &t->xfer);
    }
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x.data = t->x;
    in.x.dtype = MPIX_EP_F32;
    out.capacity_rows = t->room;
    out.x.data = t->rows;
    return blocking ? MPIX_Ep_dispatch(t->h, &in, &out)
                    : MPIX_Ep_idispatch(t->h, &in, &out, &t->xfer);
}

/* The context, and all that comes before the fault; collective over the case's ranks. */
static void test_make(int place, int mode, int layout, int phase, double timeout) {
    MPIX_Ep_config config;
    int me;
    if (actors.comm[place] == MPI_COMM_NULL)
        return;
    test *t = calloc(1, sizeof *t);
    REQUIRE(t && ntests < MAX_CASES, "no room for another case");
    tests[ntests++] = t;
    *t = (test){.place = place, .mode = mode, .layout = layout, .phase = phase};
    MPI_Comm_rank(actors.comm[place], &me);
    MPI_Comm_size(actors.comm[place], &t->ranks);
    t_where("%s", case_name(t));
    for (int i = 0; i < TOKENS * TOPK; i++) { /* every rank sends to every rank */
        t->ids[i] = (i / TOPK + i % TOPK * t->ranks + me) % (2 * t->ranks);
        t->weights[i] = 1;
    }
    t->room = (int64_t)t->ranks * TOKENS * TOPK;
    t->rows = calloc((size_t)t->room, sizeof(float) * HIDDEN);
    REQUIRE(t->rows, "no memory for rows");
    MPIX_INIT(&config);
    config.mode = mode;
    config.layout = layout;
    config.max_topk = TOPK;
    config.num_experts = 2 * t->ranks;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.timeout_s = timeout;
    /* creation has the time limit, too, and the survivors come from other cases */
    MPI_Barrier(actors.comm[place]);
    REQUIRE(CHECK_OK(MPIX_Ep_create(actors.comm[place], &config, MPI_INFO_NULL, &t->ep)),
            "no context");
    CHECK_OK(MPIX_Ep_handle_create(t->ep, &t->h));
    for (int p = ROUTE; p <= COMBINE; p++) /* once through */
        CHECK_OK(call(t, p, 1));
    for (int p = ROUTE; p < phase; p++)
        CHECK_OK(call(t, p, 1));
}

static void tests_make(double timeout) {
    static const int modes[][2] = {{MPIX_EP_HT, MPIX_EP_COMPACT},
                                   {MPIX_EP_HT, MPIX_EP_EXPERT},
                                   {MPIX_EP_LL, MPIX_EP_SLOTS},
                                   {MPIX_EP_LL, MPIX_EP_EXPERT}};
    for (int place = 0; place < actors.places; place++)
        for (int m = 0; m < 4; m++)
            /* low latency's route is local */
            for (int phase = modes[m][0] == MPIX_EP_LL ? DISPATCH : ROUTE; phase < PHASES; phase++)
                if (phase != AGAIN || modes[m][0] == MPIX_EP_LL)
                    test_make(place, modes[m][0], modes[m][1], phase, timeout);
}

static void blames(const test *t, int code, int kind, const char *what) {
    MPIX_Error error;
    char pid[32], told[64];
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    t_where("%s", case_name(t));
    if (!CHECK(code != MPI_SUCCESS, "%s succeeded", what))
        return;
    CHECK(error.kind == kind && error.rank == t->place && error.host[0],
          "%s: kind %d (expected %d), rank %d on \"%s\" (expected %d): %s", what, error.kind, kind,
          error.rank, error.host, t->place, error.text);
    snprintf(pid, sizeof pid, " %d ", (int)actors.pid[t->place]);
    /* another rank found it out */
    snprintf(told, sizeof told, "which waited for rank %d", t->place);
    if (kind == MPIX_ERRK_PEER)
        CHECK(strstr(error.text, pid) || strstr(error.text, told), "%s: no \"%s\" in: %s", what,
              pid, error.text);
}

/* Whether the call needs nothing more of a victim that has started it. */
static int needs_no_more(const test *t) { return t->mode == MPIX_EP_LL || t->phase == ROUTE; }

static void calls_start(void) {
    for (int i = 0; i < ntests; i++) {
        test *t = tests[i];
        t->begin = now();
        t_where("%s", case_name(t));
        CHECK_OK(call(t, t->phase, 0));
    }
}

static void calls_again(int kind, int midway) {
    for (int i = 0; i < ntests; i++) {
        MPIX_Error error;
        if (midway && needs_no_more(tests[i]))
            continue;
        blames(tests[i], call(tests[i], tests[i]->phase, 1), kind, "a call on the failed context");
        MPIX_INIT(&error);
        CHECK(MPIX_Ep_get_async_error(tests[i]->ep, &error) == MPI_SUCCESS && error.kind == kind &&
                  error.rank == tests[i]->place,
              "async error: kind %d, rank %d", error.kind, error.rank);
    }
}

/* Waits until each call has ended as it must. earliest, latest: seconds after the call's start, or
 * after `since` if that is later. */
static void survive(int kind, double earliest, double latest, int sig, int midway) {
    int left = ntests, killed = 0;
    double since = 0, begin = now();
    while (left > 0) {
        for (int i = 0; i < ntests; i++) {
            test *t = tests[i];
            int done;
            if (t->xfer == MPIX_XFER_NULL)
                continue;
            int code = MPIX_Xfer_test(&t->xfer, &done);
            double from = since > t->begin ? since : t->begin, took = now() - from;
            if (!done && code == MPI_SUCCESS)
                continue;
            left--;
            if (midway && needs_no_more(t)) {
                t_where("%s", case_name(t));
                CHECK_OK(code);
                continue;
            }
            blames(t, code, kind, "the call");
            CHECK(took >= earliest && took < latest,
                  "the error came after %.2f s, expected %.2f to %.2f", took, earliest, latest);
        }
        if (sig && !killed && now() - begin > 0.1) {
            cast_signal(&actors, sig);
            killed = 1;
            since = now();
        }
        usleep(500);
    }
    calls_again(kind, midway);
}

/* The victim is back: what it started ends, well or not. */
static void calls_end(void) {
    int left = 1;
    while (left) {
        left = 0;
        for (int i = 0; i < ntests; i++) {
            int done = 1;
            if (tests[i]->xfer != MPIX_XFER_NULL)
                (void)MPIX_Xfer_test(&tests[i]->xfer, &done);
            left |= !done;
        }
        usleep(500);
    }
}

static void tests_free(void) {
    for (int i = 0; i < ntests; i++) {
        CHECK_OK(MPIX_Ep_free(&tests[i]->ep));
        free(tests[i]->rows);
        free(tests[i]);
    }
    ntests = 0;
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "blame");
    const char *faults = t_option_text(argc, argv, "--faults", "absent");
    double limit = (double)t_option(argc, argv, "--limit", 1500) / 1000;
    int midway = !strcmp(faults, "midway") || !strcmp(faults, "ended");
    int stop = !strcmp(faults, "stopped") || !strcmp(faults, "midway"),
        dead = !strcmp(faults, "killed") || !strcmp(faults, "ended");
    int watched = dead && can_watch();
    t_watchdog(100);
    cast_make(&actors);
    tests_make(watched ? 60 : limit);
    t_where("%s", faults);
    if (midway && actors.victim >= 0)
        calls_start();
    MPI_Barrier(MPI_COMM_WORLD);
    if (actors.victim >= 0 && dead)
        pause();
    if (actors.victim < 0) {
        MPI_Barrier(actors.survivors); /* all have left the barrier that victims took part in */
        if (stop)
            cast_signal(&actors, SIGSTOP);
        MPI_Barrier(actors.survivors);
        calls_start();
        if (watched)
            survive(MPIX_ERRK_PEER, -0.3, 10, SIGKILL, midway);
        else
            survive(MPIX_ERRK_TIMEOUT, limit / 2, limit + 10, dead ? SIGKILL : 0, midway);
        if (dead)
            t_leave();
        if (stop) {
            MPI_Barrier(actors.survivors);
            cast_signal(&actors, SIGCONT);
        }
    }
    wait_for_all();
    calls_end();
    tests_free();
    cast_free(&actors);
    return t_end();
}
