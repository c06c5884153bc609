/*
 * env.c - ranks whose settings differ. Every parameter of the library's table is set on one rank
 * only, in its environment or by its info key, and an object is created and used. The table's flag
 * says what must happen:
 *
 *   equal on all ranks   an error on every rank: ARG on those that differ from rank 0, which names
 *                        the parameter, both values and both ranks, REMOTE with the same on the
 *                        others; and the same object can be made right after it
 *   may differ           the right result
 *
 * A parameter that this program has no value for is a failure, so a new one can't be forgotten.
 * What the job's environment says (reach, hosts, transport) is the base that one rank departs from.
 *
 *   env [--all 1] [--only NAME]    --all: both ways, every object, first and last rank, and all
 *                                  words of an enum; else they take turns
 *   env --every N                  one case of N
 *   env --segments 1               over libucp: segments of TCP differ between ranks
 *   env --threads N                so many threads create contexts at once
 */
#include "harness.h"
#include "env_values.h"

#include "base/param.h"
#include "base/status.h"
#include "mpix_p2p.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* LIMIT: seconds for one object */
enum {
    TOKENS = 40,
    TOPK = 2,
    HIDDEN = 96,
    WIDE = 4096,
    LARGE = 60000,
    HUGE_SEND = 300000,
    LIMIT = 60
};
enum { HT_COMPACT, HT_EXPERT, LL_EXPERT, LL_SLOTS, P2P, OBJECTS };
static const char *const objects[] = {"EP HT COMPACT", "EP HT EXPERT", "EP LL EXPERT",
                                      "EP LL SLOTS", "P2P"};

typedef struct {
    const mpix_param_desc *desc;
    const char *value;
    char base[MPIX_PARAM_STRING]; /* as the other ranks have it */
    int odd;                      /* the rank that has the value */
    int by_info;
} variation;

static int created, refused;

static void variable(char *buf, size_t len, const char *name) {
    snprintf(buf, len, "MPIX_EP_%s", name);
    for (char *c = buf; *c; c++)
        *c = (char)toupper((unsigned char)*c);
}

static void set(MPI_Info info, int by_info, const char *name, const char *value) {
    char key[64];
    if (by_info) {
        snprintf(key, sizeof key, "mpix_ep_%s", name);
        MPI_Info_set(info, key, value);
    } else {
        variable(key, sizeof key, name);
        setenv(key, value, 1);
    }
}

/* ---- the objects ----------------------------------------------------------------------------- */

static float element(int rank, int token, int i) {
    return (float)(1 + (rank * 31 + token * 7 + i) % 97);
}

/* One layer of experts that do nothing: y is x once per row. */
static void ep_layer(MPIX_Ep ep, int object, int hidden) {
    int experts = 2 * t_size,
        rows_per_token = object == HT_EXPERT || object == LL_EXPERT ? TOPK : 1;
    int rows = t_size * TOKENS * TOPK, ids[TOKENS * TOPK];
    float *x = malloc((size_t)(TOKENS * hidden) * sizeof *x),
          *y = malloc((size_t)(TOKENS * hidden) * sizeof *y), *there = NULL;
    MPIX_Ep_handle h = NULL;
    MPIX_Ep_routing routing;
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_Ep_combine_in back;
    MPIX_Ep_combine_out sums;
    REQUIRE(x && y, "no memory");
    for (int t = 0; t < TOKENS; t++) {
        ids[TOPK * t] = (t + t_rank) % experts;
        ids[TOPK * t + 1] = (t + t_rank + 1 + t % (experts - 1)) % experts;
        for (int i = 0; i < hidden; i++)
            x[t * hidden + i] = element(t_rank, t, i);
    }
    MPIX_INIT(&routing), MPIX_INIT(&in), MPIX_INIT(&out), MPIX_INIT(&back), MPIX_INIT(&sums);
    routing.num_tokens = TOKENS, routing.topk = TOPK, routing.ids = ids;
    in.hidden = back.hidden = hidden;
    in.x.data = x, in.x.dtype = MPIX_EP_F32;
    out.capacity_rows = rows;
    if (CHECK_OK(MPIX_Ep_alloc(ep, (MPI_Count)((size_t)(rows * hidden) * sizeof *there),
                               MPI_INFO_NULL, &there)) &&
        CHECK_OK(MPIX_Ep_handle_create(ep, &h))) {
        for (int round = 0; round < 3; round++) {
            out.x.data = there, back.x.data = there, back.x.dtype = MPIX_EP_F32, sums.y.data = y;
            memset(y, 0xff, (size_t)(TOKENS * hidden) * sizeof *y);
            if (!CHECK_OK(MPIX_Ep_route(h, &routing, NULL)) ||
                !CHECK_OK(MPIX_Ep_dispatch(h, &in, &out)) ||
                !CHECK_OK(MPIX_Ep_combine(h, &back, &sums)))
                break;
            int bad = 0;
            for (int t = 0; t < TOKENS; t++) {
                int apart = ids[TOPK * t] / 2 != ids[TOPK * t + 1] / 2;
                for (int i = 0; i < hidden; i++)
                    bad += y[t * hidden + i] !=
                           element(t_rank, t, i) *
                               (float)(rows_per_token == TOPK ? TOPK : 1 + apart);
            }
            CHECK(bad == 0, "%d of %d sums are wrong", bad, TOKENS * hidden);
        }
        CHECK_OK(MPIX_Ep_handle_free(&h));
    }
    free(x);
    free(y);
}

/* All meet, and go on serving each other meanwhile: what a call has only queued leaves in a later
 * one (tests/faults/p2p.mk has that). */
static void meet(MPIX_P2p p2p) {
    MPI_Request request;
    int done = 0, flag;
    uint64_t now;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (MPIX_P2p_notify_test(p2p, (t_rank + 1) % t_size, 0, 1, &now, &flag) != MPI_SUCCESS)
            break;
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* To the next rank: puts to both kinds of memory, a notification, a get from the one before, a
 * small and a large message. */
static void p2p_ring(MPIX_P2p p2p, int large) {
    enum { SMALL = 300 };
    int next = (t_rank + 1) % t_size, before = (t_rank + t_size - 1) % t_size, wrong = 0;
    unsigned char *area = NULL, *own = calloc(4, (size_t)large);
    MPIX_P2p_mem mem, reg;
    MPIX_P2p_rmem *rmem = calloc((size_t)t_size, sizeof *rmem),
                  *rreg = calloc((size_t)t_size, sizeof *rreg);
    uint64_t now;
    MPI_Count received = -1;
    MPIX_Xfer xfer = MPIX_XFER_NULL;
    REQUIRE(own && rmem && rreg, "no memory");
    if (!CHECK_OK(MPIX_P2p_alloc(p2p, 2 * large, MPI_INFO_NULL, &area, &mem)) ||
        !CHECK_OK(MPIX_P2p_reg(p2p, own, 4 * large, MPI_INFO_NULL, &reg)) ||
        !CHECK_OK(MPIX_P2p_exchange(mem, rmem)) || !CHECK_OK(MPIX_P2p_exchange(reg, rreg)))
        goto end;
    for (int i = 0; i < large; i++)
        own[i] = (unsigned char)(i * 3 + t_rank);
    for (int length = SMALL; length <= large; length += large - SMALL) {
        MPIX_P2p_iov put = {reg, 0, rmem[next], 0, length},
                     put2 = {reg, 0, rreg[next], large, length},
                     get = {reg, 2 * large, rreg[before], 0, length};
        MPIX_P2p_iov send = {.mem = reg, .off = 0, .len = length},
                     recv = {.mem = reg, .off = 3 * large, .len = large};
        int many = length == large;
        if (!CHECK_OK(MPIX_P2p_put(&put, 1)) || !CHECK_OK(MPIX_P2p_put_notify(&put2, 1, 3, 1)) ||
            !CHECK_OK(MPIX_P2p_flush(p2p, next)) ||
            !CHECK_OK(MPIX_P2p_notify_wait(p2p, before, 3, (uint64_t)(1 + many), &now)) ||
            !CHECK_OK(MPIX_P2p_get(&get, 1)) ||
            !CHECK_OK(MPIX_P2p_isend(p2p, next, &send, 1, &xfer)) ||
            !CHECK_OK(MPIX_P2p_recv(p2p, before, &recv, 1, &received)) ||
            !CHECK_OK(MPIX_Xfer_wait(&xfer)))
            break;
        CHECK(received == length, "%lld bytes were received of %d", (long long)received, length);
        for (int i = 0; i < length; i++) {
            unsigned char want = (unsigned char)(i * 3 + before);
            wrong += own[large + i] != want || own[2 * large + i] != want ||
                     own[3 * large + i] != want || area[i] != want;
        }
        CHECK(wrong == 0, "%d of %d bytes are wrong", wrong, length);
        meet(p2p);
    }
    int64_t old = -1;
    CHECK_OK(MPIX_P2p_fetch_add(rmem[next], large, 5, &old));
    CHECK(old == 0, "fetch_add gave %lld", (long long)old);
    for (int r = 0; r < t_size; r++) {
        CHECK_OK(MPIX_P2p_rmem_free(&rmem[r]));
        CHECK_OK(MPIX_P2p_rmem_free(&rreg[r]));
    }
    CHECK_OK(MPIX_P2p_dereg(&reg));
end:
    free(rmem);
    free(rreg);
    meet(p2p); /* all have read it */
    if (!t_failures())
        free(own);
}

/* ---- expectations ---------------------------------------------------------------------------- */

/* An agreed error: own of those that must differ from rank 0, REMOTE elsewhere, the same
 * told everywhere. */
static void expect_refused(const variation *v, int code) {
    char name[64], mine[MPIX_PARAM_STRING + 32], others[MPIX_PARAM_STRING + 32];
    int differs = v->odd == 0 ? t_rank != 0 : t_rank == v->odd, first = v->odd == 0 ? 1 : v->odd;
    MPIX_Error e;
    MPIX_INIT(&e);
    MPIX_Error_last(&e);
    snprintf(name, sizeof name, "mpix_ep_%s", v->desc->name);
    snprintf(mine, sizeof mine, "\"%.32s", v->value);
    snprintf(others, sizeof others, "\"%.32s", v->base);
    if (!CHECK(code != MPI_SUCCESS, "it must be equal on all ranks, and was taken"))
        return;
    CHECK(e.kind == (differs ? MPIX_ERRK_ARG : MPIX_ERRK_REMOTE), "kind %d: %s", e.kind, e.text);
    CHECK(!differs || strcmp(e.arg, name) == 0, "the argument is \"%s\": %s", e.arg, e.text);
    CHECK(differs ? e.rank == 0 : e.rank == first, "rank %d is named: %s", e.rank, e.text);
    CHECK(strstr(e.text, name) && strstr(e.text, mine) && strstr(e.text, others) &&
              strstr(e.text, "on rank 0"),
          "parameter, values and ranks are not named: %s", e.text);
    snprintf(mine, sizeof mine, "on rank %d", differs ? t_rank : first);
    CHECK(strstr(e.text, mine) != NULL, "\"%s\" is not there: %s", mine, e.text);
    refused += t_rank == 0;
}

/* What is asked to fail, or what this processor has not got, is refused on all ranks as
 * well, and named. */
static int may_fail(const variation *v) {
    return strcmp(v->desc->name, "chaos_fail_call") == 0 || strcmp(v->desc->name, "isa") == 0;
}

static int create(MPI_Comm comm, int object, int hidden, MPI_Info info, MPIX_Ep *ep,
                  MPIX_P2p *p2p) {
    MPIX_Ep_config c;
    if (object == P2P)
        return MPIX_P2p_create(comm, info, p2p);
    MPIX_INIT(&c);
    c.mode = object == LL_EXPERT || object == LL_SLOTS ? MPIX_EP_LL : MPIX_EP_HT;
    c.layout = object == HT_COMPACT ? MPIX_EP_COMPACT
               : object == LL_SLOTS ? MPIX_EP_SLOTS
                                    : MPIX_EP_EXPERT;
    c.max_topk = TOPK, c.num_experts = 2 * t_size, c.max_tokens = TOKENS,
    c.max_row_bytes = hidden * 4;
    return MPIX_Ep_create(comm, &c, info, ep);
}

static void use_and_free(int object, MPIX_Ep ep, MPIX_P2p p2p, int hidden, int large) {
    if (object == P2P) {
        p2p_ring(p2p, large);
        CHECK_OK(MPIX_P2p_free(&p2p));
    } else {
        ep_layer(ep, object, hidden);
        CHECK_OK(MPIX_Ep_free(&ep));
    }
    created += t_rank == 0;
}

static void one(const variation *v, int object) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_P2p p2p = MPIX_P2P_NULL;
    MPI_Info info;
    char env[64], *saved;
    const char *old;
    int code, failed, anywhere;
    t_where("%s: %s=%s by %s on rank %d, elsewhere %s", objects[object], v->desc->name, v->value,
            v->by_info ? "info" : "environment", v->odd, v->base);
    t_watchdog(LIMIT);
    MPI_Info_create(&info);
    variable(env, sizeof env, v->desc->name);
    old = getenv(env);
    saved = old ? strdup(old) : NULL;
    if (t_rank == v->odd) {
        set(info, v->by_info, v->desc->name, v->value);
        for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
            if (strcmp(beside[i][0], v->desc->name) == 0)
                set(info, 1, beside[i][1], beside[i][2]);
    }
    code = create(MPI_COMM_WORLD, object, HIDDEN, info, &ep, &p2p);
    MPI_Info_free(&info);
    if (saved)
        setenv(env, saved, 1);
    else
        unsetenv(env);
    free(saved);
    failed = code != MPI_SUCCESS;
    MPI_Allreduce(&failed, &anywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(anywhere == 0 || anywhere == t_size, "%d of %d ranks failed: not agreed", anywhere,
          t_size);
    REQUIRE(anywhere == 0 || anywhere == t_size, "the job can't go on");
    if (v->desc->flags & MPIX_PARAM_SAME) {
        expect_refused(v, code);
    } else if (failed && may_fail(v)) {
        MPIX_Error e;
        MPIX_INIT(&e);
        MPIX_Error_last(&e);
        CHECK(strstr(e.text, v->desc->name) != NULL, "parameter %s is not named: %s", v->desc->name,
              e.text);
        refused += t_rank == 0;
    } else {
        CHECK_OK(code);
    }
    if (!failed)
        use_and_free(object, ep, p2p, HIDDEN, LARGE);
    t_watchdog(LIMIT);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Value number n that is not the base; NULL: there are no more. */
static const char *value_of(const mpix_param_desc *desc, const char *base, int n) {
    static char words[256];
    char *rest = NULL;
    if (strcmp(desc->type, "enum") == 0) {
        snprintf(words, sizeof words, "%s", desc->values);
        for (char *word = strtok_r(words, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
            if (strcmp(word, base) != 0 && n-- == 0)
                return word;
        return NULL;
    }
    for (size_t i = 0; i < sizeof values / sizeof *values && n == 0; i++)
        if (strcmp(values[i].name, desc->name) == 0)
            return strcmp(values[i].value, base) != 0 ? values[i].value : values[i].other;
    return NULL;
}

/* ---- libucp's own settings ------------------------------------------------------------------- */

/* The segments of its TCP are not the same on all ranks: it aborts a process that gets more than it
 * takes. NULL: not set. */
static void segments(long all) {
    static const struct {
        const char *tx, *rx;
        int refused;
    } cases[] = {
        {"8k", "8k", 0}, {"64k", "64k", 0}, {NULL, "16k", 0}, {"1m", "1m", 0}, {"1k", "1k", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int odd = 0; odd < t_size; odd += t_size - 1)
            for (int object = 0; object < OBJECTS; object++) {
                MPIX_Ep ep = MPIX_EP_NULL;
                MPIX_P2p p2p = MPIX_P2P_NULL;
                if (!all && object != P2P && object != (int)((i + (odd > 0)) % P2P))
                    continue;
                t_where("%s: UCX_TCP_TX_SEG_SIZE=%s, UCX_TCP_RX_SEG_SIZE=%s on rank %d",
                        objects[object], cases[i].tx ? cases[i].tx : "", cases[i].rx, odd);
                t_watchdog(LIMIT);
                if (t_rank == odd && cases[i].tx)
                    setenv("UCX_TCP_TX_SEG_SIZE", cases[i].tx, 1);
                if (t_rank == odd)
                    setenv("UCX_TCP_RX_SEG_SIZE", cases[i].rx, 1);
                int code = create(MPI_COMM_WORLD, object, WIDE, MPI_INFO_NULL, &ep, &p2p);
                unsetenv("UCX_TCP_TX_SEG_SIZE");
                unsetenv("UCX_TCP_RX_SEG_SIZE");
                if (cases[i].refused) {
                    MPIX_Error e;
                    MPIX_INIT(&e);
                    MPIX_Error_last(&e);
                    CHECK(code != MPI_SUCCESS && strstr(e.text, "UCX_TCP_RX_SEG_SIZE"),
                          "the variable is not named: %s", e.text);
                } else if (CHECK_OK(code)) {
                    use_and_free(object, ep, p2p, WIDE, HUGE_SEND);
                }
            }
}

enum { MAX_THREADS = 8 };

typedef struct {
    MPI_Comm comm;
    int rounds;
} maker;

static void *make(void *arg) {
    const maker *m = arg;
    for (int k = 0; k < m->rounds && !t_failures(); k++) {
        MPIX_Ep ep = MPIX_EP_NULL;
        if (CHECK_OK(create(m->comm, HT_COMPACT, WIDE, MPI_INFO_NULL, &ep, NULL))) {
            ep_layer(ep, HT_COMPACT, WIDE);
            CHECK_OK(MPIX_Ep_free(&ep));
        }
    }
    return NULL;
}

/* Contexts that several threads create, use and free at once. */
static void threads(int n) {
    pthread_t thread[MAX_THREADS];
    maker m[MAX_THREADS];
    t_where("%d threads create contexts at once", n);
    t_watchdog(2 * LIMIT);
    for (int i = 0; i < n; i++) {
        m[i].rounds = 2;
        MPI_Comm_dup(MPI_COMM_WORLD, &m[i].comm);
    }
    for (int i = 0; i < n; i++)
        REQUIRE(pthread_create(&thread[i], NULL, make, &m[i]) == 0, "no thread");
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        MPI_Comm_free(&m[i].comm);
    }
}

int main(int argc, char **argv) {
    int n;
    mpix_params base;
    const mpix_param_desc *table = mpix_param_table(&n);
    int nthreads = (int)t_option(argc, argv, "--threads", 0);
    if (nthreads)
        t_thread_level = MPI_THREAD_MULTIPLE;
    t_init(&argc, &argv, "env");
    long all = t_option(argc, argv, "--all", 0), every = t_option(argc, argv, "--every", 1),
         turn = 0, cases = 0;
    const char *only = t_option_text(argc, argv, "--only", "");
    REQUIRE(t_size > 1, "one rank has nobody to differ from");
    if (t_option(argc, argv, "--segments", 0)) {
        segments(t_option(argc, argv, "--all", 0));
        return t_end();
    }
    if (nthreads) {
        int level;
        MPI_Query_thread(&level);
        if (level < MPI_THREAD_MULTIPLE) {
            if (t_rank == 0)
                printf("left out: this MPI has no MPI_THREAD_MULTIPLE\n");
            return t_end() ? 1 : 77;
        }
        threads(nthreads < MAX_THREADS ? nthreads : MAX_THREADS);
        return t_end();
    }
    REQUIRE(mpix_params_read(&base) == 0, "%s", mpix_error_tls()->text);
    for (int i = 0; i < n; i++) {
        variation v = {.desc = &table[i]};
        mpix_params_print(&base, v.desc, v.base, sizeof v.base);
        CHECK(value_of(v.desc, v.base, 0) != NULL,
              "parameter %s has no value in this test: add one", v.desc->name);
        for (int k = 0;
             (v.value = value_of(v.desc, v.base, k)) && (!*only || strcmp(only, v.desc->name) == 0);
             k++) {
            char copy[256];
            snprintf(copy, sizeof copy, "%s", v.value);
            v.value = copy;
            for (int object = 0; object < OBJECTS; object++)
                for (int how = 0; how < 4; how++) {
                    int chosen = all || ((turn + object) % 4 == how &&
                                         (object == P2P || object % 2 == (i + k) % 2));
                    v.by_info = how % 2;
                    v.odd = how < 2 ? t_size - 1 : 0;
                    if (chosen && cases++ % every == 0)
                        one(&v, object);
                }
            turn++;
        }
    }
    /* After all of this the base itself works. */
    for (int object = 0; object < OBJECTS; object++) {
        MPIX_Ep ep = MPIX_EP_NULL;
        MPIX_P2p p2p = MPIX_P2P_NULL;
        t_where("%s: nothing differs", objects[object]);
        if (CHECK_OK(create(MPI_COMM_WORLD, object, HIDDEN, MPI_INFO_NULL, &ep, &p2p)))
            use_and_free(object, ep, p2p, HIDDEN, LARGE);
    }
    if (t_rank == 0)
        printf("env: %d parameters, %d objects were used, %d refused\n", n, created, refused);
    return t_end();
}
