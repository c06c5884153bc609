/*
 * waits.c - set-up calls, which need all ranks, with a peer that does not take part: they end in
 * time, and say who is missing.
 *
 *   waits --peer absent|failed|killed|elsewhere [--call NAME] [--limit MILLISECONDS]
 *   waits --peer limits|freed|last
 *
 * absent     the victim comes when the others have given up; it is told so at once
 * failed     the victim's object has failed, and it has freed it
 * killed     the victim's process has ended; one call, for there is one life (tests/survivors.sh
 *            counts the verdicts)
 * elsewhere  the victim is in another call of the object that needs all ranks
 * limits     time limits that are infinite, huge, and none at all
 * freed      the victim's process ends, the others free their objects: within a second
 * last       MPIX_Error_last tells of this thread's own failures only
 *
 * The victim is rank 1. Objects are made on duplicates of MPI_COMM_WORLD, since a communicator on
 * which a creation was given up is good for no other collective.
 */
#include "call.h"
#include "mpix_p2p.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VICTIM = 1, TOPK = 2, TOKENS = 8 };

typedef struct objects {
    MPI_Comm comm;
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem *rmems;
    char memory[64];
} objects;

/* A call that needs all ranks; which objects it needs. */
enum { NEEDS_NOTHING, NEEDS_EP, NEEDS_LL, NEEDS_P2P };

typedef struct set_up {
    const char *name;
    int needs;
    int (*call)(objects *o);
} set_up;

static double limit;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void rest(double seconds) {
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int ep_create(objects *o, int mode, double timeout, MPI_Info info) {
    MPIX_Ep_config c;
    MPIX_INIT(&c);
    c.mode = mode;
    c.layout = mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    c.max_topk = TOPK;
    c.num_experts = 2 * t_size;
    c.max_tokens = TOKENS;
    c.max_row_bytes = 256;
    c.timeout_s = timeout;
    return MPIX_Ep_create(o->comm, &c, info, &o->ep);
}

static int p2p_create(objects *o, const char *timeout) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", timeout);
    int code = MPIX_P2p_create(o->comm, info, &o->p2p);
    MPI_Info_free(&info);
    return code;
}

static const char *limit_text(void) {
    static char text[32];
    snprintf(text, sizeof text, "%.3f", limit);
    return text;
}

static int call_ep_create(objects *o) { return ep_create(o, MPIX_EP_HT, limit, MPI_INFO_NULL); }
static int call_p2p_create(objects *o) { return p2p_create(o, limit_text()); }

static int call_handle_create(objects *o) {
    MPIX_Ep_handle handle;
    return MPIX_Ep_handle_create(o->ep, &handle);
}

static int call_alloc(objects *o) {
    void *base;
    return MPIX_Ep_alloc(o->ep, 4096, MPI_INFO_NULL, &base);
}

static int call_register(objects *o) {
    int direct;
    return MPIX_Ep_register(o->ep, o->memory, sizeof o->memory, &direct);
}

static int call_combine_buffer(objects *o) {
    MPIX_Ep_rows rows = {0};
    return MPIX_Ep_combine_buffer(o->handle, &rows);
}

static int call_p2p_alloc(objects *o) {
    MPIX_P2p_mem mem;
    void *base;
    return MPIX_P2p_alloc(o->p2p, 4096, MPI_INFO_NULL, &base, &mem);
}

static int call_p2p_exchange(objects *o) { return MPIX_P2p_exchange(o->mem, o->rmems); }

static const set_up set_ups[] = {
    {"ep_create", NEEDS_NOTHING, call_ep_create},
    {"handle_create", NEEDS_EP, call_handle_create},
    {"alloc", NEEDS_EP, call_alloc},
    {"register", NEEDS_EP, call_register},
    {"ll_handle_create", NEEDS_LL, call_handle_create},
    {"combine_buffer", NEEDS_LL, call_combine_buffer},
    {"p2p_create", NEEDS_NOTHING, call_p2p_create},
    {"p2p_alloc", NEEDS_P2P, call_p2p_alloc},
    {"p2p_exchange", NEEDS_P2P, call_p2p_exchange},
};
enum { SET_UPS = sizeof set_ups / sizeof *set_ups };

/* What the call needs, with this time limit. */
static void make(objects *o, const set_up *s, double timeout) {
    char text[32];
    *o = (objects){.comm = MPI_COMM_NULL};
    MPI_Comm_dup(MPI_COMM_WORLD, &o->comm);
    MPI_Comm_set_errhandler(o->comm, MPI_ERRORS_RETURN);
    if (s->needs == NEEDS_EP || s->needs == NEEDS_LL) {
        REQUIRE(ep_create(o, s->needs == NEEDS_LL ? MPIX_EP_LL : MPIX_EP_HT, timeout,
                          MPI_INFO_NULL) == MPI_SUCCESS,
                "no context");
        REQUIRE(MPIX_Ep_handle_create(o->ep, &o->handle) == MPI_SUCCESS, "no handle");
    } else if (s->needs == NEEDS_P2P) {
        snprintf(text, sizeof text, "%.3f", timeout);
        REQUIRE(p2p_create(o, text) == MPI_SUCCESS, "no object");
        REQUIRE(MPIX_P2p_reg(o->p2p, o->memory, sizeof o->memory, MPI_INFO_NULL, &o->mem) ==
                    MPI_SUCCESS,
                "no memory");
        o->rmems = calloc((size_t)t_size, sizeof(*o->rmems));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void drop(objects *o) {
    double begin = now();
    if (o->ep)
        CHECK_OK(MPIX_Ep_free(&o->ep));
    if (o->p2p)
        CHECK_OK(MPIX_P2p_free(&o->p2p));
    CHECK(now() - begin < 1.5, "free of a failed object took %.2f s", now() - begin);
    free(o->rmems);
}

/* Another call of the object than the set-up call; it waits for the others in vain. */
static int other_call(objects *o) {
    if (o->p2p) {
        MPI_Count received;
        MPIX_P2p_iov iov = {.mem = o->mem, .len = sizeof o->memory};
        return MPIX_P2p_recv(o->p2p, 0, &iov, 1, &received);
    }
    int ids[TOKENS * TOPK];
    for (int i = 0; i < TOKENS * TOPK; i++)
        ids[i] = i % (2 * t_size);
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = TOKENS;
    r.topk = TOPK;
    r.ids = ids;
    int code = MPIX_Ep_route(o->handle, &r, NULL);
    if (code != MPI_SUCCESS)
        return code;
    float x[TOKENS * 16] = {0}, y[TOKENS * TOPK * 16 * 8];
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = 16;
    in.x.data = x;
    in.x.dtype = out.x.dtype = MPIX_EP_F32;
    out.x.data = y;
    out.capacity_rows = TOKENS * TOPK * 8;
    return MPIX_Ep_dispatch(o->handle, &in, &out);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

/* blamed: the only rank that may be named, -1: any other. */
static void verdict(int code, int kind, int blamed, double took, double least, double most,
                    const char *what) {
    MPIX_Error e;
    MPIX_INIT(&e);
    MPIX_Error_last(&e);
    if (!CHECK(code != MPI_SUCCESS, "%s succeeded without its peer", what))
        return;
    CHECK(e.kind == kind, "%s: kind %d, expected %d: %s", what, e.kind, kind, e.text);
    CHECK(blamed < 0 ? e.rank != t_rank : e.rank == blamed, "%s: names rank %d, expected %d: %s",
          what, e.rank, blamed, e.text);
    CHECK(took >= least && took <= most, "%s ended after %.2f s, expected %.2f to %.2f: %s", what,
          took, least, most, e.text);
}

/* A failed object refuses everything at once. */
static void again(objects *o, const set_up *s) {
    double begin = now();
    if (s->needs == NEEDS_NOTHING)
        return;
    CHECK(s->call(o) != MPI_SUCCESS, "%s succeeded on a failed object", s->name);
    CHECK(now() - begin < 1, "%s on a failed object took %.2f s", s->name, now() - begin);
}

static void absent(const set_up *s) {
    objects o;
    make(&o, s, limit);
    /* Of a creation's first meeting nobody knows who is missing. */
    int blamed = s->needs == NEEDS_NOTHING ? -1 : VICTIM;
    if (t_rank == VICTIM)
        rest(limit + 1);
    double begin = now();
    int code = s->call(&o);
    if (t_rank != VICTIM)
        verdict(code, MPIX_ERRK_TIMEOUT, blamed, now() - begin, limit * 0.5, limit + 3, s->name);
    else /* what its mapped peers have told is here */
        verdict(code, MPIX_ERRK_TIMEOUT, -1, now() - begin, 0,
                s->needs == NEEDS_NOTHING ? limit + 3 : limit * 0.9 + 0.3, s->name);
    again(&o, s);
    drop(&o);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void failed(const set_up *s) {
    objects o;
    if (s->needs == NEEDS_NOTHING)
        return;
    make(&o, s, limit);
    if (t_rank == VICTIM) {
        CHECK(other_call(&o) != MPI_SUCCESS, "a call without peers succeeded");
        drop(&o);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (t_rank != VICTIM) {
        double begin = now();
        int code = s->call(&o);
        /* The victim missed rank 0, which is told who missed it. */
        verdict(code, MPIX_ERRK_TIMEOUT, t_rank == 0 ? VICTIM : 0, now() - begin, 0, limit * 0.9,
                s->name);
        again(&o, s);
        drop(&o);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void elsewhere(const set_up *s) {
    objects o;
    if (s->needs == NEEDS_NOTHING)
        return;
    make(&o, s, limit);
    double begin = now();
    int code = t_rank == VICTIM ? other_call(&o) : s->call(&o);
    verdict(code, MPIX_ERRK_TIMEOUT, -1, now() - begin, limit * 0.5, limit + 3,
            t_rank == VICTIM ? "the other call" : s->name);
    again(&o, s);
    drop(&o);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void killed(const set_up *s) {
    objects o;
    double timeout = s->needs == NEEDS_NOTHING ? limit : 40;
    make(&o, s, timeout);
    if (t_rank == VICTIM)
        raise(SIGKILL);
    double begin = now();
    int code = s->call(&o);
    if (s->needs == NEEDS_NOTHING) /* of a creation's first meeting nobody knows who is missing */
        verdict(code, MPIX_ERRK_TIMEOUT, -1, now() - begin, limit * 0.5, limit + 3, s->name);
    else
        verdict(code, MPIX_ERRK_PEER, VICTIM, now() - begin, 0, 5, s->name);
    again(&o, s);
    drop(&o);
    t_leave();
}

/* ---- the end of objects whose peer is dead --------------------------------------------------- */

static void freed(const set_up *s) {
    objects o;
    make(&o, s, 40);
    if (t_rank == VICTIM)
        raise(SIGKILL);
    rest(0.3);
    drop(&o);
    t_leave();
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void limits(void) {
    static const double ep_limits[] = {INFINITY, 1e300, 1e18, 1.9e10, -1};
    static const char *const p2p_limits[] = {"inf", "1e300", "1e18", "2e10"};
    static const set_up nothing = {"limits", NEEDS_NOTHING, NULL};
    MPIX_Error e;
    objects o;
    for (size_t i = 0; i < 2 * (sizeof ep_limits / sizeof *ep_limits); i++) {
        MPI_Info info;
        make(&o, &nothing, 0);
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpix_ep_fd_passing", i & 1 ? "socket" : "auto");
        t_where("timeout_s = %g", ep_limits[i / 2]);
        REQUIRE(ep_create(&o, MPIX_EP_HT, ep_limits[i / 2], info) == MPI_SUCCESS,
                "no context with timeout_s = %g", ep_limits[i / 2]);
        CHECK_OK(MPIX_Ep_handle_create(o.ep, &o.handle));
        if (t_rank == VICTIM)
            rest(0.1);
        CHECK_OK(other_call(&o));
        CHECK_OK(MPIX_Ep_handle_free(&o.handle));
        CHECK_OK(MPIX_Ep_free(&o.ep));
        MPI_Info_free(&info);
    }
    for (size_t i = 0; i < sizeof p2p_limits / sizeof *p2p_limits; i++) {
        make(&o, &nothing, 0);
        t_where("timeout = %s", p2p_limits[i]);
        REQUIRE(p2p_create(&o, p2p_limits[i]) == MPI_SUCCESS, "no object with timeout = %s",
                p2p_limits[i]);
        CHECK_OK(MPIX_P2p_reg(o.p2p, o.memory, sizeof o.memory, MPI_INFO_NULL, &o.mem));
        MPIX_P2p_iov iov = {.mem = o.mem, .len = sizeof o.memory};
        if (t_rank == VICTIM) {
            MPI_Count received;
            CHECK_OK(MPIX_P2p_recv(o.p2p, 0, &iov, 1, &received));
        } else if (t_rank == 0) {
            rest(0.1);
            CHECK_OK(MPIX_P2p_send(o.p2p, VICTIM, &iov, 1));
        }
        CHECK_OK(MPIX_P2p_dereg(&o.mem));
        CHECK_OK(MPIX_P2p_free(&o.p2p));
    }
    make(&o, &nothing, 0);
    CHECK(ep_create(&o, MPIX_EP_HT, NAN, MPI_INFO_NULL) != MPI_SUCCESS,
          "timeout_s = NaN was taken");
    MPIX_INIT(&e);
    MPIX_Error_last(&e);
    CHECK(e.kind == MPIX_ERRK_ARG, "timeout_s = NaN: kind %d: %s", e.kind, e.text);
    CHECK(p2p_create(&o, "nan") != MPI_SUCCESS && p2p_create(&o, "-1") != MPI_SUCCESS &&
              p2p_create(&o, "-inf") != MPI_SUCCESS,
          "a timeout of nan, -1 or -inf was taken");
}

/* ---- MPIX_Error_last ------------------------------------------------------------------------- */

/* While a thread waits on one context, another one's call fails: what the thread knows of its own
 * last error stays. */
static void last(void) {
    static const set_up context = {"last", NEEDS_EP, NULL};
    objects a, b;
    MPIX_Error e;
    MPIX_Xfer xfers[2];
    int ids[TOKENS * TOPK];
    make(&a, &context, 20);
    make(&b, &context, 20);
    for (int i = 0; i < TOKENS * TOPK; i++)
        ids[i] = i % (2 * t_size);
    for (int wrong_first = 0; wrong_first < 2; wrong_first++) {
        MPIX_Ep_routing good, bad;
        MPIX_INIT(&good);
        good.num_tokens = TOKENS;
        good.topk = TOPK;
        good.ids = ids;
        bad = good;
        if (t_rank == 0) {
            bad.topk = TOPK + 5;
            rest(0.2); /* the others have begun theirs */
        }
        xfers[1] = MPIX_XFER_NULL;
        int code = MPIX_Ep_iroute(b.handle, &bad, NULL, &xfers[1]);
        CHECK(t_rank != 0 || code != MPI_SUCCESS, "topk %d was taken", bad.topk);
        if (t_rank == 0)
            rest(0.2);
        /* the thread's own last error: ARG */
        CHECK(MPIX_P2p_free(NULL) != MPI_SUCCESS, "NULL was taken");
        CHECK_OK(MPIX_Ep_iroute(a.handle, &good, NULL, &xfers[0]));
        if (wrong_first)
            for (int flag = 0; !flag;)
                CHECK_OK(MPIX_Xfer_test(&xfers[0], &flag));
        else
            CHECK_OK(MPIX_Xfer_wait(&xfers[0]));
        MPIX_INIT(&e);
        MPIX_Error_last(&e);
        CHECK(e.kind == MPIX_ERRK_ARG && !strcmp(e.arg, "p2p"),
              "the last error is another context's: kind %d, arg \"%s\": %s", e.kind, e.arg,
              e.text);
        if (xfers[1] != MPIX_XFER_NULL) {
            code = MPIX_Xfer_wait(&xfers[1]);
            MPIX_INIT(&e);
            MPIX_Error_last(&e);
            CHECK(code != MPI_SUCCESS && e.kind == MPIX_ERRK_REMOTE && e.rank == 0,
                  "kind %d, rank %d: %s", e.kind, e.rank, e.text);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_OK(MPIX_Ep_free(&a.ep));
    CHECK_OK(MPIX_Ep_free(&b.ep));
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "waits");
    const char *peer = t_option_text(argc, argv, "--peer", "absent"),
               *call = t_option_text(argc, argv, "--call", "");
    limit = (double)t_option(argc, argv, "--limit", 800) / 1000;
    t_watchdog(200);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (!strcmp(peer, "limits"))
        limits();
    else if (!strcmp(peer, "last"))
        last();
    char list[300];
    snprintf(list, sizeof list, ",%s,", call);
    for (int i = 0; i < SET_UPS; i++) {
        const set_up *s = &set_ups[i];
        char name[32];
        snprintf(name, sizeof name, ",%s,", s->name);
        if (*call && !strstr(list, name))
            continue;
        t_where("%s, peer %s", s->name, peer);
        if (!strcmp(peer, "absent"))
            absent(s);
        else if (!strcmp(peer, "failed"))
            failed(s);
        else if (!strcmp(peer, "elsewhere"))
            elsewhere(s);
        else if (!strcmp(peer, "killed"))
            killed(s);
        else if (!strcmp(peer, "freed"))
            freed(s);
    }
    return t_end();
}
