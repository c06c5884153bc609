/*
 * waits_apart.c - contexts of one process do not hold each other up.
 *
 * One context's network stands still for a while, with more to send than the proxy's queue takes.
 * Meanwhile its nonblocking calls start at once, calls of another context are fast, in this thread
 * and in another, and a third thread makes and frees contexts. Then the network moves again and all
 * that was sent is right.
 */
#include "call.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOPK = 2, TOKENS = 64, HIDDEN = 256, STALL_MS = 2500 };

static int mode, provided;

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

typedef struct world {
    MPI_Comm comm;
    MPIX_Ep ep;
    MPIX_Ep_handle handle;
    int *ids;
    float *x, *y;
} world;

static void make(world *w, const char *keys) {
    MPIX_Ep_config c;
    MPI_Info info;
    char copy[300], key[64], *save = NULL;
    MPIX_INIT(&c);
    c.mode = mode;
    c.layout = mode == MPIX_EP_LL ? MPIX_EP_SLOTS : MPIX_EP_COMPACT;
    c.max_topk = TOPK;
    c.num_experts = 2 * t_size;
    c.max_tokens = TOKENS;
    c.max_row_bytes = HIDDEN * 4;
    c.timeout_s = 60;
    MPI_Info_create(&info);
    snprintf(copy, sizeof copy, "%s", keys);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(word, '=');
        *eq = '\0';
        snprintf(key, sizeof key, "mpix_ep_%.50s", word);
        MPI_Info_set(info, key, eq + 1);
    }
    REQUIRE(MPIX_Ep_create(w->comm, &c, info, &w->ep) == MPI_SUCCESS, "no context");
    REQUIRE(MPIX_Ep_handle_create(w->ep, &w->handle) == MPI_SUCCESS, "no handle");
    MPI_Info_free(&info);
}

static void world_new(world *w, const char *keys) {
    memset(w, 0, sizeof *w);
    MPI_Comm_dup(MPI_COMM_WORLD, &w->comm);
    make(w, keys);
    w->ids = malloc(TOKENS * TOPK * sizeof *w->ids);
    w->x = malloc((size_t)TOKENS * HIDDEN * sizeof *w->x);
    w->y = malloc((size_t)t_size * TOKENS * HIDDEN * sizeof *w->y);
    for (int t = 0; t < TOKENS; t++) { /* every token goes to every one of two neighbours */
        w->ids[t * TOPK] = 2 * ((t_rank + 1) % t_size);
        w->ids[t * TOPK + 1] = 2 * t_rank + 1;
        for (int i = 0; i < HIDDEN; i++)
            w->x[t * HIDDEN + i] = (float)(t_rank * 1000 + t);
    }
}

static void world_free(world *w) {
    CHECK_OK(MPIX_Ep_handle_free(&w->handle));
    CHECK_OK(MPIX_Ep_free(&w->ep));
    MPI_Comm_free(&w->comm);
    free(w->ids);
    free(w->x);
    free(w->y);
}

static MPIX_Ep_routing routing(const world *w) {
    MPIX_Ep_routing r;
    MPIX_INIT(&r);
    r.num_tokens = TOKENS;
    r.topk = TOPK;
    r.ids = w->ids;
    return r;
}

static int dispatch(world *w, MPIX_Xfer *xfer) {
    MPIX_Ep_dispatch_in in;
    MPIX_Ep_dispatch_out out;
    MPIX_INIT(&in);
    MPIX_INIT(&out);
    in.hidden = HIDDEN;
    in.x.data = w->x;
    in.x.dtype = out.x.dtype = MPIX_EP_F32;
    out.x.data = w->y;
    out.capacity_rows = (MPI_Count)t_size * TOKENS;
    memset(w->y, 0, (size_t)t_size * TOKENS * HIDDEN * sizeof *w->y);
    return xfer ? MPIX_Ep_idispatch(w->handle, &in, &out, xfer)
                : MPIX_Ep_dispatch(w->handle, &in, &out);
}

/* All rows of this rank and of the one before it are there, once. */
static void dispatched(const world *w, const char *what) {
    int from = (t_rank + t_size - 1) % t_size, seen[2] = {0, 0};
    for (int r = 0; r < t_size * TOKENS; r++) {
        const float *row = w->y + (size_t)r * HIDDEN;
        for (int k = 0; k < 2; k++) {
            float base = (float)((k ? from : t_rank) * 1000);
            if ((row[0] != 0 || base == 0) && row[0] >= base && row[0] < base + TOKENS &&
                row[0] == row[HIDDEN - 1])
                seen[k]++;
        }
    }
    CHECK(seen[0] >= TOKENS && seen[1] >= TOKENS,
          "%s: %d own rows and %d of rank %d, expected %d of each", what, seen[0], seen[1], from,
          TOKENS);
}

static double fast_calls(world *w, int n, const char *what) {
    double longest = 0;
    for (int i = 0; i < n; i++) {
        MPIX_Ep_routing r = routing(w);
        double begin = now();
        CHECK_OK(MPIX_Ep_route(w->handle, &r, NULL));
        CHECK_OK(dispatch(w, NULL));
        double took = now() - begin;
        longest = took > longest ? took : longest;
        dispatched(w, what);
    }
    return longest;
}

static void *other_thread(void *arg) {
    world *w = arg;
    double longest = fast_calls(w, 20, "another thread's context");
    CHECK(longest < STALL_MS * 0.6e-3, "a call in another thread took %.2f s", longest);
    return NULL;
}

static void *maker_thread(void *arg) {
    world *w = arg;
    for (int i = 0; i < 3; i++) {
        double begin = now();
        make(w, "reach=auto");
        CHECK_OK(MPIX_Ep_handle_free(&w->handle));
        CHECK_OK(MPIX_Ep_free(&w->ep));
        CHECK(now() - begin < STALL_MS * 0.6e-3, "creation and free of a context took %.2f s",
              now() - begin);
    }
    return NULL;
}

static void round_of(const char *keys) {
    world slow, here, there, made = {0};
    pthread_t threads[2];
    MPIX_Xfer xfers[2];
    t_where("%s, %s", mode == MPIX_EP_LL ? "ll" : "ht", keys);
    world_new(&slow, keys);
    world_new(&here, "reach=auto");
    world_new(&there, "reach=auto");
    MPI_Comm_dup(MPI_COMM_WORLD, &made.comm);
    MPIX_Ep_routing r = routing(&slow);
    CHECK_OK(MPIX_Ep_route(slow.handle, &r, NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    CHECK_OK(dispatch(&slow, &xfers[0]));
    CHECK(now() - begin < STALL_MS * 0.6e-3, "the start of a nonblocking call took %.2f s",
          now() - begin);
    if (provided == MPI_THREAD_MULTIPLE) {
        pthread_create(&threads[0], NULL, other_thread, &there);
        pthread_create(&threads[1], NULL, maker_thread, &made);
    }
    double longest = fast_calls(&here, 20, "the other context");
    CHECK(longest < STALL_MS * 0.6e-3, "a call of the other context took %.2f s", longest);
    if (provided == MPI_THREAD_MULTIPLE)
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    CHECK_OK(MPIX_Xfer_wait(&xfers[0]));
    double stood = now() - begin;
    /* or nothing was shown */
    CHECK(stood > STALL_MS * 0.7e-3, "the network stood still for %.2f s only", stood);
    dispatched(&slow, "the slow context");
    world_free(&slow);
    world_free(&here);
    world_free(&there);
    MPI_Comm_free(&made.comm);
}

int main(int argc, char **argv) {
    t_thread_level = MPI_THREAD_MULTIPLE;
    t_init(&argc, &argv, "waits_apart");
    MPI_Query_thread(&provided);
    const char *proxy = t_option_text(argc, argv, "--proxy", "caller");
    char keys[300];
    t_watchdog(120);
    for (mode = 0; mode < 2; mode++) {
        snprintf(keys, sizeof keys,
                 "reach=proxied transport=chaos:shmem proxy=%s chunk_bytes=1k fifo_slots=2 "
                 "proxy_depth=2 chaos_stall_at=%d chaos_stall_ms=%d",
                 proxy, mode ? 3 : 12, STALL_MS);
        round_of(keys);
    }
    return t_end();
}
