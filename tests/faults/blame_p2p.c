/*
 * blame_p2p.c - as blame.c, for one-sided and two-sided operations: whoever they wait for is named.
 *
 *   blame_p2p --faults absent|stopped|killed [--mem alloc|reg] [--limit MILLISECONDS (1200)]
 *
 * An object for each operation and each place of the victim. What needs nothing of the victim may
 * succeed: puts, gets, additions, a flush.
 */
#include "blame.h"
#include "mpix_p2p.h"

enum { BYTES = 1 << 18, MAX_OBJECTS = 80 };
enum { RECV, SEND, PUT, GET, ADD, NOTIFY, ADVERT, FLUSH, OPS }; /* from NOTIFY on they block */

static const char *const op_names[] = {"receive",
                                       "large send",
                                       "put",
                                       "get",
                                       "addition",
                                       "wait for a notification",
                                       "wait for an advertisement",
                                       "flush"};

typedef struct {
    int place, op, ranks;
    MPIX_P2p p2p;
    MPIX_P2p_mem mem;
    MPIX_P2p_rmem at[MAX_PLACES];
    char *base, *own; /* own: registered */
    MPIX_Xfer xfer;
    MPI_Count received;
    int64_t old;
    double begin;
} object;

static cast actors;
static object *objects[MAX_OBJECTS];
static int nobjects, registered;

static void where(const object *o) {
    t_where("%s, victim is rank %d of %d", op_names[o->op], o->place, o->ranks);
}

static void object_make(int place, int op, const char *timeout) {
    MPI_Info info;
    object *o = calloc(1, sizeof *o);
    REQUIRE(o && nobjects < MAX_OBJECTS, "no room for another object");
    objects[nobjects++] = o;
    o->place = place;
    o->op = op;
    MPI_Comm_size(actors.comm[place], &o->ranks);
    where(o);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpix_ep_timeout", timeout);
    MPI_Barrier(actors.comm[place]);
    REQUIRE(CHECK_OK(MPIX_P2p_create(actors.comm[place], info, &o->p2p)), "no object");
    MPI_Info_free(&info);
    if (registered) {
        REQUIRE((o->base = o->own = calloc(2, BYTES)) != NULL, "no memory");
        CHECK_OK(MPIX_P2p_reg(o->p2p, o->base, 2 * BYTES, MPI_INFO_NULL, &o->mem));
    } else {
        CHECK_OK(MPIX_P2p_alloc(o->p2p, 2 * BYTES, MPI_INFO_NULL, &o->base, &o->mem));
    }
    CHECK_OK(MPIX_P2p_exchange(o->mem, o->at));
}

static int start(object *o) {
    const MPIX_P2p_iov whole = {.mem = o->mem, .rmem = o->at[o->place], .len = BYTES};
    switch (o->op) {
    case RECV: return MPIX_P2p_irecv(o->p2p, o->place, &whole, 1, &o->received, &o->xfer);
    case SEND: return MPIX_P2p_isend(o->p2p, o->place, &whole, 1, &o->xfer);
    case PUT: return MPIX_P2p_iput(&whole, 1, &o->xfer);
    case GET: return MPIX_P2p_iget(&whole, 1, &o->xfer);
    default: return MPIX_P2p_ifetch_add(o->at[o->place], 0, 1, &o->old, &o->xfer);
    }
}

static int block(object *o) {
    int n;
    if (o->op == NOTIFY)
        return MPIX_P2p_notify_wait(o->p2p, o->place, 0, 1, NULL);
    if (o->op == ADVERT)
        return MPIX_P2p_get_advert(o->p2p, o->place, 1, 0, NULL, &n);
    int code = MPIX_P2p_put(&(MPIX_P2p_iov){o->mem, 0, o->at[o->place], 0, BYTES}, 1);
    return code ? code : MPIX_P2p_flush(o->p2p, MPIX_ALL_PEERS);
}

static void ended(const object *o, int code, int kind, double latest) {
    MPIX_Error error;
    char pid[32];
    double took = now() - o->begin;
    where(o);
    CHECK(took < latest, "it ended after %.2f s, expected %.2f", took, latest);
    if (code == MPI_SUCCESS) {
        CHECK((o->op >= PUT && o->op <= ADD) || o->op == FLUSH, "it succeeded");
        return;
    }
    MPIX_INIT(&error);
    MPIX_Error_last(&error);
    CHECK(error.kind == kind && error.rank == o->place && error.host[0],
          "kind %d (expected %d), rank %d on \"%s\": %s", error.kind, kind, error.rank, error.host,
          error.text);
    snprintf(pid, sizeof pid, "rank %d", o->place);
    CHECK(strstr(error.text, pid), "no \"%s\" in: %s", pid, error.text);
    MPIX_INIT(&error);
    CHECK(MPIX_P2p_get_async_error(o->p2p, &error) == MPI_SUCCESS && error.kind == kind &&
              error.rank == o->place,
          "async error: kind %d, rank %d", error.kind, error.rank);
}

static void survive(int kind, double latest, int sig) {
    int left = 0;
    double begin = now();
    for (int i = 0; i < nobjects; i++) {
        object *o = objects[i];
        o->begin = now();
        if (o->op >= NOTIFY)
            continue;
        int code = start(o);
        if (code != MPI_SUCCESS || o->xfer == MPIX_XFER_NULL)
            ended(o, code, kind, latest);
        left += o->xfer != MPIX_XFER_NULL;
    }
    while (left > 0) {
        for (int i = 0; i < nobjects; i++) {
            int done = 0, code = objects[i]->xfer == MPIX_XFER_NULL
                                     ? MPI_SUCCESS
                                     : MPIX_Xfer_test(&objects[i]->xfer, &done);
            if (done || code != MPI_SUCCESS) {
                ended(objects[i], code, kind, latest);
                left--;
            }
        }
        if (sig && now() - begin > 0.1) {
            cast_signal(&actors, sig);
            sig = 0;
        }
        usleep(500);
    }
    for (int i = 0; i < nobjects; i++) {
        object *o = objects[i];
        if (o->op < NOTIFY)
            continue;
        o->begin = now();
        ended(o, block(o), kind, latest);
    }
}

static void objects_free(void) {
    for (int i = 0; i < nobjects; i++) {
        object *o = objects[i];
        where(o);
        CHECK_OK(MPIX_P2p_free(&o->p2p));
        free(o->own);
        free(o);
    }
    nobjects = 0;
}

int main(int argc, char **argv) {
    t_init(&argc, &argv, "blame_p2p");
    const char *faults = t_option_text(argc, argv, "--faults", "absent");
    double limit = (double)t_option(argc, argv, "--limit", 1200) / 1000;
    int stop = !strcmp(faults, "stopped"), dead = !strcmp(faults, "killed"),
        watched = dead && can_watch();
    char timeout[32];
    registered = !strcmp(t_option_text(argc, argv, "--mem", "alloc"), "reg");
    t_watchdog(100);
    cast_make(&actors);
    snprintf(timeout, sizeof timeout, "%g", watched ? 60 : limit);
    for (int place = 0; place < actors.places; place++)
        for (int op = 0; op < OPS && actors.comm[place] != MPI_COMM_NULL; op++)
            object_make(place, op, timeout);
    t_where("%s", faults);
    MPI_Barrier(MPI_COMM_WORLD);
    if (actors.victim >= 0 && dead)
        pause();
    if (actors.victim < 0) {
        MPI_Barrier(actors.survivors); /* all have left the barrier that victims took part in */
        if (stop)
            cast_signal(&actors, SIGSTOP);
        MPI_Barrier(actors.survivors);
        survive(watched ? MPIX_ERRK_PEER : MPIX_ERRK_TIMEOUT, watched ? 10 : limit + 10,
                dead ? SIGKILL : 0);
        if (dead)
            t_leave();
        if (stop) {
            MPI_Barrier(actors.survivors);
            cast_signal(&actors, SIGCONT);
        }
    }
    wait_for_all();
    objects_free();
    cast_free(&actors);
    return t_end();
}
