/*
 * world.c - the host program's world: its error handlers, its descriptors, and machines on which
 * ranks share memory or can't.
 *
 *   world --case handlers | descriptors | singletons | spaces | pids [--reach mapped|apart] |
 *   signals | locale [--locale NAME]
 */
#include <locale.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "harness.h"
#include "mpix_p2p.h"

/* ---- an MPI that gives each rank a shared communicator of its own ---------------------------- */

static int singletons, asked;

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out) {
    int rank;

    asked++;
    if (!singletons)
        return PMPI_Comm_split_type(comm, type, key, info, out);
    PMPI_Comm_rank(comm, &rank);
    return PMPI_Comm_split(comm, rank, key, out);
}

static int make(MPI_Comm comm, int mode, MPIX_Ep *ep) {
    MPIX_Ep_config config;

    MPIX_INIT(&config);
    config.mode = mode;
    config.layout = mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    config.max_topk = 2;
    config.num_experts = 2 * t_size;
    config.max_tokens = 4;
    config.max_row_bytes = 64;
    config.timeout_s = 60;
    return MPIX_Ep_create(comm, &config, MPI_INFO_NULL, ep);
}

/* How this rank reaches each other one. */
static void check_reach(int reach, int ranks, const char *why) {
    MPIX_Ep ep = MPIX_EP_NULL;

    if (!CHECK_OK(make(MPI_COMM_WORLD, MPIX_EP_HT, &ep)))
        return;
    for (int r = 0; r < ranks; r++) {
        MPIX_Ep_peer peer;
        MPIX_INIT(&peer);
        if (r == t_rank || !CHECK_OK(MPIX_Ep_get_peer(ep, r, &peer)))
            continue;
        CHECK(peer.reach == reach && strstr(peer.why, why),
              "rank %d is reached by %d, not %d, and not \"%s\": %s", r, peer.reach, reach, why,
              peer.why);
    }
    CHECK_OK(MPIX_Ep_free(&ep));
}

/* On one machine MPI is not asked: its call waits without limit for a rank that is killed
 * meanwhile. */
static void case_singletons(void) {
    asked = 0;
    singletons = 1;
    check_reach(MPIX_EP_REACH_MAPPED, t_size, "same host");
    singletons = 0;
    check_reach(MPIX_EP_REACH_MAPPED, t_size, "same host");
    CHECK(asked == 0, "MPI_Comm_split_type was called %d times", asked);
}

/* ---- containers that can't see each other ---------------------------------------------------- */

/*
 * Each rank goes to a network's name space of its own, where its sockets are not seen, and
 * then gives root's rights away, so /proc is refused. The rights come back, since MPI has
 * files to remove.
 */
static int case_spaces(void) {
    int alone = geteuid() == 0 && unshare(CLONE_NEWNET) == 0, all;

    MPI_Allreduce(&alone, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all) {
        if (t_rank == 0)
            printf("left out: only root makes name spaces\n");
        return 0;
    }
    /* Seen through /proc: the name space of the network alone keeps nobody apart. */
    check_reach(MPIX_EP_REACH_MAPPED, t_size, "through /proc");
    REQUIRE(seteuid(65534) == 0, "seteuid");
    check_reach(MPIX_EP_REACH_PROXIED, t_size, "same machine, but /proc is refused");
    REQUIRE(seteuid(0) == 0, "seteuid");
    return 1;
}

/* Each rank was started in a name space of processes of its own, in which all of them have
 * the same number. */
static void case_pids(int apart) {
    if (!apart) {
        check_reach(MPIX_EP_REACH_MAPPED, t_size, "through a socket");
        return;
    }
    REQUIRE(unshare(CLONE_NEWNET) == 0, "unshare");
    check_reach(MPIX_EP_REACH_PROXIED, t_size, "same machine, but in other name spaces");
}

/* ---- descriptors ----------------------------------------------------------------------------- */

enum { CONTEXTS = 12 };

/* With the first object each peer's process is watched. Further ones may have descriptors, but none
 * for each peer. */
static void case_descriptors(void) {
    MPIX_Ep ep[CONTEXTS];
    MPIX_P2p p2p[CONTEXTS];
    int before = t_open_files(), first, more, made = 0;

    for (; made < CONTEXTS; made++) {
        if (!CHECK_OK(make(MPI_COMM_WORLD, made % 2 ? MPIX_EP_LL : MPIX_EP_HT, &ep[made])))
            return;
        if (!CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, MPI_INFO_NULL, &p2p[made])))
            return;
        if (made == 0)
            first = t_open_files();
    }
    more = t_open_files() - first;
    CHECK(more <= 3 * (CONTEXTS - 1), "%d descriptors for %d more contexts and objects of %d ranks",
          more, CONTEXTS - 1, t_size);
    while (made-- > 0) {
        CHECK_OK(MPIX_P2p_free(&p2p[made]));
        CHECK_OK(MPIX_Ep_free(&ep[made]));
    }
    CHECK(t_open_files() == before, "%d descriptors, %d before", t_open_files(), before);
}

/* ---- error handlers -------------------------------------------------------------------------- */

static int calls, self_calls, last_code;

static void on_error(MPI_Comm *comm, int *code, ...) {
    int same = 0;

    MPI_Comm_compare(*comm, MPI_COMM_SELF, &same);
    *(same == MPI_IDENT ? &self_calls : &calls) += 1;
    last_code = *code;
}

/* A create that is refused calls this communicator's handler, once, and nobody else's. */
static void check_refused(MPI_Comm comm, const char *what, const char *text) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_P2p p2p = MPIX_P2P_NULL;
    MPIX_Error error;

    for (int api = 0; api < 2; api++) {
        calls = self_calls = 0;
        int code = api ? MPIX_P2p_create(comm, MPI_INFO_NULL, &p2p) : make(comm, MPIX_EP_HT, &ep);
        MPIX_INIT(&error);
        MPIX_Error_last(&error);
        CHECK(error.kind == MPIX_ERRK_ARG && error.code == code && strcmp(error.arg, "comm") == 0,
              "%s: kind %d, argument %s", what, error.kind, error.arg);
        CHECK(strstr(error.text, text), "%s: %s", what, error.text);
        CHECK(calls + self_calls == 1 && last_code == code,
              "%s: %d calls, %d of MPI_COMM_SELF's handler", what, calls, self_calls);
        CHECK(calls == (text[0] == 'c' && strstr(text, "inter")),
              "%s: %d calls of the communicator's own handler", what, calls);
    }
}

static void case_handlers(void) {
    MPI_Comm half, inter, freed;
    MPI_Errhandler handler, before;

    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_get_errhandler(MPI_COMM_SELF, &before);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, handler);
    MPI_Comm_split(MPI_COMM_WORLD, t_rank & 1, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - (t_rank & 1), 5, &inter);
    MPI_Comm_set_errhandler(inter, handler);
    check_refused(inter, "an intercommunicator", "comm is an intercommunicator");
    check_refused(MPI_COMM_NULL, "no communicator", "MPI_COMM_NULL");
#ifdef MPICH_VERSION /* looks whether a handle is one; Open MPI reads what is behind it */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &freed);
    MPI_Comm kept = freed;
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_Error error;
    MPI_Comm_free(&freed);
    make(kept, MPIX_EP_HT, &ep);
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(error.kind == MPIX_ERRK_ARG && strcmp(error.arg, "comm") == 0,
          "a freed communicator: kind %d, %s", error.kind, error.text);
#else
    (void)freed;
#endif
    MPI_Comm_set_errhandler(MPI_COMM_SELF, before);
    MPI_Errhandler_free(&before);
    MPI_Errhandler_free(&handler);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

/* ---- handlers of signals --------------------------------------------------------------------- */

static void on_signal(int sig) { (void)sig; }

/* Those of faults are the program's, whatever is loaded; one of them is left as it is. */
static void case_signals(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct sigaction before[4], after, own = {.sa_handler = on_signal};
    MPIX_Ep ep = MPIX_EP_NULL;

    for (int i = 0; i < 4; i++) {
        if (i < 3)
            sigaction(signals[i], &own, NULL);
        sigaction(signals[i], NULL, &before[i]);
    }
    if (!CHECK_OK(make(MPI_COMM_WORLD, MPIX_EP_HT, &ep)))
        return;
    for (int i = 0; i < 4; i++) {
        sigaction(signals[i], NULL, &after);
        CHECK(after.sa_handler == before[i].sa_handler, "signal %d has another handler",
              signals[i]);
    }
    CHECK_OK(MPIX_Ep_free(&ep));
}

/* ---- locales --------------------------------------------------------------------------------- */

/* Of even ranks only: what they compare with the others must be written alike. MPIX_EP_TIMEOUT is
 * 60.5 and MPIX_EP_REACH PROXIED. */
static void case_locale(const char *name) {
    MPIX_Ep ep = MPIX_EP_NULL;
    MPIX_P2p p2p = MPIX_P2P_NULL;
    MPIX_Ep_config config;
    MPIX_Ep_peer peer;
    MPIX_Error error;
    MPI_Info info;

    REQUIRE(t_rank % 2 || setlocale(LC_ALL, name), "there is no locale %s", name);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_net_timeout", "2.5");
    MPI_Info_set(info, "mpix_ep_isa", "PORTABLE");
    MPIX_INIT(&config);
    config.max_topk = 1;
    config.num_experts = t_size;
    config.max_tokens = 1;
    config.max_row_bytes = 16;
    if (CHECK_OK(MPIX_Ep_create(MPI_COMM_WORLD, &config, info, &ep))) {
        CHECK_OK(MPIX_Ep_get_config(ep, &config));
        CHECK(config.timeout_s == 60.5, "60.5 s became %g", config.timeout_s);
        MPIX_INIT(&peer);
        CHECK_OK(MPIX_Ep_get_peer(ep, (t_rank + 1) % t_size, &peer));
        CHECK(peer.reach == MPIX_EP_REACH_PROXIED, "MPIX_EP_REACH was not seen");
        CHECK_OK(MPIX_Ep_free(&ep));
    }
    if (CHECK_OK(MPIX_P2p_create(MPI_COMM_WORLD, info, &p2p)))
        CHECK_OK(MPIX_P2p_free(&p2p));
    /* A number in a text. */
    config.timeout_s = t_rank == 0 ? 61.25 : 62.5;
    CHECK(MPIX_Ep_create(MPI_COMM_WORLD, &config, info, &ep) != MPI_SUCCESS,
          "different limits were taken");
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(strstr(error.text, "61.25") && strstr(error.text, "62.5"), "%s", error.text);
    MPI_Info_free(&info);
}

int main(int argc, char **argv) {
    const char *which = t_option_text(argc, argv, "--case", "");

    /* asked without a launcher: whether MPI_Init works in name spaces of processes */
    if (strcmp(which, "bears") == 0) {
#ifdef OPEN_MPI
        return 0;
#else
        return 1;
#endif
    }
    t_init(&argc, &argv, "world");
    t_watchdog(120);
    if (strcmp(which, "handlers") == 0)
        case_handlers();
    else if (strcmp(which, "descriptors") == 0)
        case_descriptors();
    else if (strcmp(which, "singletons") == 0)
        case_singletons();
    else if (strcmp(which, "pids") == 0)
        case_pids(strcmp(t_option_text(argc, argv, "--reach", "mapped"), "apart") == 0);
    else if (strcmp(which, "signals") == 0)
        case_signals();
    else if (strcmp(which, "locale") == 0)
        case_locale(t_option_text(argc, argv, "--locale", "C"));
    else if (strcmp(which, "spaces") == 0) {
        int done = case_spaces(), status = t_end();
        return status || done ? status : 77;
    } else
        t_die(__FILE__, __LINE__, "--case \"%s\"", which);
    return t_end();
}
